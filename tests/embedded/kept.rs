//! Nodes that a process keeps between uses, on the embedded ensemble. The futures are polled by hand, without threads and sleeps.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::memory::costs;
use support::polled::*;
use support::wired::Wired;
use tokio_test::{assert_pending, assert_ready, assert_ready_err, assert_ready_ok, task};
use zk_rwlock::coordinator::Coordinator;
use zk_rwlock::queue::NodeName;
use zk_rwlock::{Dialect, Error, HoldState, Loss, Memory, Mode, RwLock};

pub(crate) const DIRECTORY: &str = "/lock";

/// An idle time for tests that need no particular idle time. It is longer than any of them.
pub(crate) const IDLE: Duration = Duration::from_secs(60);

pub(crate) fn keeping<C: Coordinator + Clone>(client: &C) -> RwLock {
    RwLock::builder(client, DIRECTORY).keep(IDLE).build().expect("valid")
}

pub(crate) fn plain<C: Coordinator + Clone>(client: &C) -> RwLock {
    RwLock::new(client, DIRECTORY).expect("valid")
}

/// Returns a client, a lock of this client that keeps its nodes, and a plain lock of another client. The lock's directory exists
/// and is empty.
pub(crate) fn two() -> (Memory, RwLock, RwLock) {
    let zk = Memory::new();
    let other = plain(&zk.connect());
    drop(write(&other));
    assert_nothing_left(&zk);
    let kept = keeping(&zk);
    (zk, kept, other)
}

/// Returns the modes of the contenders in the directory, in the order of the queue.
pub(crate) fn line(zk: &Memory) -> Vec<Mode> {
    let mut all: Vec<_> = zk.children(DIRECTORY).iter().filter_map(|name| NodeName::parse(name)).collect();
    all.sort_by_key(NodeName::sequence);
    all.iter().map(NodeName::mode).collect()
}

#[track_caller]
fn assert_nothing_left(zk: &Memory) {
    assert_eq!(zk.children(DIRECTORY), Vec::<String>::new());
    assert_eq!(zk.watches(), 0);
}

// Uses that join the node that their process keeps.

#[test]
fn a_kept_node_serves_a_thousand_reads_without_a_request() {
    let (zk, kept, _) = two();
    let first = costs(&zk, 4, "arm, create, list, and the watch on our own node", || read(&kept));
    let (path, token) = (first.node_path(), first.fencing_token());
    drop(first);
    assert_eq!(line(&zk), [Mode::Read]);
    costs(&zk, 0, "joining", || {
        for _ in 0..1_000 {
            let guard = read(&kept);
            assert!(guard.is_held() && guard.node_path() == path && guard.fencing_token() == token);
            now(guard.release()).expect("held");
        }
    });
    assert!(NodeName::parse(path.rsplit('/').next().expect("a name")).is_some_and(|it| it.keeps()));
}

#[test]
fn a_kept_write_node_serves_uses_without_a_request() {
    let (zk, kept, _) = two();
    drop(write(&kept));
    costs(&zk, 0, "joining", || {
        for _ in 0..100 {
            drop(write(&kept));
            let (one, two) = (read(&kept), read(&kept));
            let mut late = writing(&kept);
            assert_pending!(late.poll());
            drop(one);
            assert_pending!(late.poll());
            drop(two);
            drop(assert_ready_ok!(late.poll()));
        }
    });
    assert_eq!(line(&zk), [Mode::Write]);
}

#[test]
fn uses_of_one_write_node_are_granted_in_order() {
    let (_, kept, _) = two();
    let first = write(&kept);
    let (mut one, mut two, mut three, mut four) = (reading(&kept), reading(&kept), writing(&kept), reading(&kept));
    for waiting in [&mut one, &mut two, &mut four] {
        assert_pending!(waiting.poll());
    }
    assert_pending!(three.poll());
    drop(first);
    assert!(one.is_woken() && two.is_woken() && four.is_woken() && !three.is_woken());
    let (one, two, four) = (assert_ready_ok!(one.poll()), assert_ready_ok!(two.poll()), assert_ready_ok!(four.poll()));
    let mut fifth = reading(&kept);
    assert_pending!(fifth.poll(), "a read passed the waiting write");
    drop((one, two, four));
    let three = assert_ready_ok!(three.poll());
    assert_pending!(fifth.poll());
    drop(three);
    drop(assert_ready_ok!(fifth.poll()));
}

#[test]
fn a_hundred_reads_at_once_acquire_one_node_together() {
    let (zk, kept, _) = two();
    drop(write(&plain(&zk)));
    zk.faults().cut(); // nothing is answered before all have asked
    let mut all: Vec<_> = (0..100).map(|_| reading(&kept)).collect();
    for reading in &mut all {
        assert_pending!(reading.poll());
    }
    zk.faults().heal();
    let guards: Vec<_> = all.iter_mut().map(|reading| assert_ready_ok!(reading.poll())).collect();
    assert_eq!(line(&zk), [Mode::Read]);
    drop(guards);
    assert_eq!(line(&zk), [Mode::Read]);
    drop(kept);
    assert_nothing_left(&zk);
}

// Requests of other contenders to give up a kept node.

#[test]
fn an_idle_node_is_given_up_as_soon_as_a_contender_waits() {
    for mode in [Mode::Read, Mode::Write] {
        let (zk, kept, other) = two();
        match mode {
            Mode::Read => drop((read(&kept), read(&kept))),
            Mode::Write => drop(write(&kept)),
        }
        let guard = write(&other);
        assert_eq!(line(&zk), [Mode::Write]);
        drop(guard);
        assert_nothing_left(&zk);
    }
}

#[test]
fn a_node_that_was_asked_for_admits_no_further_use() {
    let (zk, kept, other) = two();
    let (one, two) = (read(&kept), read(&kept));
    let mut writer = writing(&other);
    assert_pending!(writer.poll());
    let mut late = reading(&kept);
    assert_pending!(late.poll(), "the read did not queue up behind the writer that asked");
    assert_eq!(line(&zk), [Mode::Read, Mode::Write, Mode::Read]);
    drop(one);
    assert_pending!(writer.poll());
    drop(two);
    let writer = assert_ready_ok!(writer.poll());
    assert_pending!(late.poll());
    drop(writer);
    drop(assert_ready_ok!(late.poll()));
}

#[test]
fn a_node_asked_for_before_its_grant_serves_its_waiters() {
    let (zk, kept, other) = two();
    let holder = write(&other);
    let (mut one, mut two) = (reading(&kept), reading(&kept));
    assert_pending!(one.poll());
    assert_pending!(two.poll());
    let mut writer = writing(&other);
    assert_pending!(writer.poll());
    assert_eq!(line(&zk), [Mode::Write, Mode::Read, Mode::Write]);
    drop(holder);
    let (one, two) = (assert_ready_ok!(one.poll()), assert_ready_ok!(two.poll()));
    let mut late = reading(&kept);
    assert_pending!(late.poll(), "a use joined a node that was asked for");
    drop((one, two));
    drop(assert_ready_ok!(writer.poll()));
    drop(assert_ready_ok!(late.poll()));
}

#[test]
fn a_node_asked_for_serves_one_write_and_requeues_others() {
    let (zk, kept, other) = two();
    let holder = write(&other);
    let (mut one, mut two) = (writing(&kept), writing(&kept));
    assert_pending!(one.poll());
    assert_pending!(two.poll());
    assert_eq!(line(&zk), [Mode::Write; 2], "the second use does not wait for the first in its own process");
    let mut reader = reading(&other);
    assert_pending!(reader.poll());
    assert_pending!(two.poll());
    assert_eq!(line(&zk), [Mode::Write, Mode::Write, Mode::Read, Mode::Write]);
    drop(holder);
    drop(assert_ready_ok!(one.poll()));
    let reader = assert_ready_ok!(reader.poll());
    assert_pending!(two.poll());
    drop(reader);
    drop(assert_ready_ok!(two.poll()));
}

#[test]
fn one_ask_releases_the_kept_reads_of_many_processes() {
    let (zk, _, other) = two();
    let clients: Vec<_> = (0..50).map(|_| zk.connect()).collect();
    let locks: Vec<_> = clients.iter().map(keeping).collect();
    for lock in &locks {
        drop((read(lock), read(lock)));
    }
    assert_eq!(line(&zk), [Mode::Read; 50]);
    let guard = costs(&zk, 50 + 6, "create, list, two watches, one ask, fifty removals, one listing", || write(&other));
    drop(guard);
    assert_nothing_left(&zk);
}

/// The keeper's watch on the directory must be armed before any other client can see the keeper's node.
#[test]
fn an_ask_at_any_moment_of_the_create_is_heard() {
    for carried_out in 0..=3 {
        let zk = Memory::new();
        drop(write(&plain(&zk)));
        let wired = Wired::new(zk.clone());
        let (keeper, other) = (keeping(&wired), plain(&zk.connect()));
        wired.stall();
        let mut kept = writing(&keeper);
        assert_pending!(kept.poll());
        (0..carried_out).for_each(|_| wired.carry_out());
        let mut writer = writing(&other);
        let before = writer.poll();
        wired.flow();
        while wired.deliver() {}
        let is_ahead = before.is_ready();
        drop(before);
        drop(assert_ready_ok!(kept.poll()));
        assert!(is_ahead || writer.poll().is_ready(), "after {carried_out} requests, the node is kept before a waiter");
    }
}

#[test]
fn an_ask_does_not_change_the_directorys_data() {
    let (_zk, kept, other) = two();
    let guard = write(&other);
    now(guard.transaction().set(DIRECTORY, "what an application keeps there").commit()).expect("held");
    drop(guard);
    drop((read(&kept), read(&kept)));
    let guard = write(&other);
    let node = now(guard.read_node(DIRECTORY)).expect("held").expect("the node exists");
    assert_eq!(node.data, b"what an application keeps there");
}

/// The ask is carried out, its answer is lost, and the waiter gives up. Until its session is connected again, the directory is
/// deleted and made anew. The new directory has the version that the old one had before the ask.
#[test]
fn a_lost_ask_is_not_repeated_in_a_directory_made_anew() {
    let zk = Memory::new();
    let (kept, wired) = (keeping(&zk), Wired::new(zk.connect()));
    drop((read(&kept), read(&kept)));
    let other = plain(&wired);
    let mut waiter = writing(&other);
    wired.stall();
    assert_pending!(waiter.poll());
    assert!(wired.deliver() && wired.deliver() && !wired.has_requests(), "expected a create and a listing");
    assert_pending!(waiter.poll());
    drop(waiter);
    wired.cut(4);
    assert_nothing_left(&zk);

    zk.faults().reap_containers();
    drop((read(&kept), read(&kept)));
    wired.flow();
    wired.memory.faults().heal();
    assert_eq!(line(&zk), [Mode::Read], "a node was given up for which nobody has asked");
}

#[test]
fn a_waiter_asks_its_own_session_and_the_others() {
    let zk = Memory::new();
    let (ours, theirs) = (zk.connect(), zk.connect());
    let all = [&theirs, &ours].map(keeping);
    for kept in &all {
        drop((read(kept), read(kept)));
    }
    // The reader stands in the queue between the writer and the node that the writer's own session keeps.
    let reader = read(&plain(&zk));
    let own = plain(&ours);
    let mut writer = writing(&own);
    assert_pending!(writer.poll());
    drop(reader);
    drop(assert_ready_ok!(writer.poll()));
    assert_nothing_left(&zk);
}

#[test]
fn a_try_sends_no_ask() {
    let (zk, kept, other) = two();
    drop((read(&kept), read(&kept)));
    let Error::WouldBlock { blockers } = now(other.try_write()).unwrap_err() else { panic!("the node is not kept") };
    assert!(blockers.first[0].keeps);
    assert_eq!(line(&zk), [Mode::Read]);
    drop(now(other.try_read()).expect("shared"));
}

// Reads and writes of one process on kept nodes.

#[test]
fn a_write_gives_up_the_read_node_of_its_handle_first() {
    let (zk, kept, _) = two();
    drop(read(&kept));
    drop(write(&kept));
    assert_eq!(line(&zk), [Mode::Write]);
    drop(read(&kept));
    assert_eq!(line(&zk), [Mode::Write]);
}

#[test]
fn a_try_write_is_not_blocked_by_its_own_node() {
    let (zk, kept, _) = two();
    drop(read(&kept));
    drop(now(kept.try_write()).expect("only kept"));
    assert_eq!(line(&zk), [], "the handle without `keep` kept a node");
    for _ in 0..2 {
        let guard = now(kept.try_write()).expect("free");
        let Error::WouldBlock { blockers } = now(kept.try_read()).unwrap_err() else { panic!("a write runs") };
        assert_eq!(blockers.ahead, 1);
        drop(guard);
    }
}

#[test]
fn a_downgraded_write_goes_on_as_a_kept_read_node() {
    let (zk, kept, other) = two();
    let guard = write(&kept);
    let (mut reader, mut writer) = (reading(&kept), writing(&kept));
    assert_pending!(reader.poll());
    assert_pending!(writer.poll());
    let token = guard.fencing_token();
    let guard = now(guard.downgrade()).expect("held");
    assert_eq!(guard.fencing_token(), token);
    let reader = assert_ready_ok!(reader.poll());
    assert_eq!(reader.fencing_token(), token);
    drop(now(other.try_read()).expect("readers of other processes hold with it"));
    assert_pending!(writer.poll(), "a write joined a READ node");
    assert_eq!(line(&zk), [Mode::Read, Mode::Write]);
    drop((guard, reader));
    drop(assert_ready_ok!(writer.poll()));
}

#[test]
fn a_downgrade_that_is_dropped_gives_the_lock_back() {
    let (zk, kept, other) = two();
    let guard = write(&kept);
    zk.faults().cut();
    let mut downgrade = tokio_test::task::spawn(guard.downgrade());
    assert_pending!(downgrade.poll());
    drop(downgrade);
    zk.faults().heal();
    drop(write(&other));
    assert_nothing_left(&zk);
}

/// The ensemble may have the WRITE node or the READ node, so no use of the process may join the node.
#[test]
fn a_node_whose_downgrade_was_dropped_is_not_joined() {
    let (zk, kept, _other) = two();
    let guard = write(&kept);
    let unsure = guard.node_path();
    zk.faults().cut();
    let mut downgrade = task::spawn(guard.downgrade());
    assert_pending!(downgrade.poll());
    drop(downgrade);
    let mut next = writing(&kept);
    assert_pending!(next.poll(), "a use joined a node whose mode is unknown");
    zk.faults().heal();
    assert_ne!(assert_ready_ok!(next.poll()).node_path(), unsure);
}

#[test]
fn a_downgrade_admits_the_waiting_reads_of_the_process() {
    let (_zk, kept, _other) = two();
    let guard = write(&kept);
    let mut waits = reading(&kept);
    assert_pending!(waits.poll());
    let reader = now(guard.downgrade()).expect("held");
    assert!(waits.is_woken(), "the waiting read is not woken");
    assert!(assert_ready_ok!(waits.poll()).is_held() && reader.is_held());
}

/// The reads run under a WRITE node, so a write of the process could run under the node as well.
#[test]
fn a_share_keeps_writes_of_the_process_waiting() {
    let (_zk, kept, _other) = two();
    drop(write(&kept));
    let guard = read(&kept);
    let share = guard.share();
    drop(guard);
    let mut writer = writing(&kept);
    assert_pending!(writer.poll(), "a write runs beside a read");
    drop(share);
    drop(assert_ready_ok!(writer.poll()));
}

#[test]
fn a_shared_guard_ends_its_use_with_the_last_share() {
    let (zk, kept, other) = two();
    let guard = read(&kept);
    let inner = guard.share();
    drop(guard);
    let mut writer = writing(&other);
    assert_pending!(writer.poll());
    let more = inner.share();
    drop(inner);
    assert_pending!(writer.poll());
    now(more.release()).expect("held");
    drop(assert_ready_ok!(writer.poll()));
    assert_nothing_left(&zk);
}

#[test]
fn a_write_node_whose_path_was_given_out_is_not_kept() {
    let (zk, kept, _) = two();
    let guard = write(&kept);
    let path = guard.node_path();
    drop(guard);
    let guard = write(&kept);
    assert_eq!(guard.node_path(), path, "the call of `node_path` changed the node");
    assert_eq!(guard.prepare_foreign_transaction(), path);
    drop(guard);
    assert!(zk.children(DIRECTORY).iter().all(|name| !path.ends_with(name)), "the node of that path is still there");
}

// The end of a kept node: the last handle of its lock is dropped, or the node is lost.

#[test]
fn the_last_clone_of_a_handle_removes_its_idle_node() {
    let (zk, kept, _) = two();
    let clone = kept.clone();
    drop(read(&kept));
    drop(kept);
    assert_eq!(line(&zk), [Mode::Read]);
    let guard = read(&clone);
    drop(clone);
    assert_eq!(line(&zk), [Mode::Read]);
    drop(guard);
    assert_nothing_left(&zk);
}

#[test]
fn a_lost_node_admits_no_use() {
    for how in [(|zk: &Memory| zk.faults().expire()) as fn(&Memory), |zk| {
        zk.faults().remove(format!("{DIRECTORY}/{}", zk.children(DIRECTORY)[0]))
    }] {
        let (zk, kept, other) = two();
        let guard = write(&kept);
        drop(guard);
        let guard = write(&kept);
        how(&zk);
        assert!(!guard.is_held());
        drop(guard);
        let other = write(&other);
        let mut late = writing(&kept);
        assert_pending!(late.poll());
        drop(other);
        drop(assert_ready_ok!(late.poll()));
    }
}

#[test]
fn an_idle_node_that_was_lost_is_not_used_again() {
    let (zk, kept, other) = two();
    drop((read(&kept), read(&kept)));
    zk.faults().expire();
    let writer = write(&other);
    let mut late = reading(&kept);
    assert_pending!(late.poll());
    drop(writer);
    assert!(assert_ready_ok!(late.poll()).is_held());
}

#[test]
fn a_directory_deleted_under_a_kept_node_ends_it() {
    let (zk, kept, other) = two();
    drop((read(&kept), read(&kept)));
    zk.faults().remove(DIRECTORY);
    let guard = write(&other);
    assert!(guard.is_held());
    let mut late = reading(&kept);
    assert_pending!(late.poll());
}

#[test]
fn a_deleted_directory_does_not_stop_keeping() {
    let (zk, kept, _) = two();
    for _ in 0..3 {
        drop(read(&kept));
        let node = zk.children(DIRECTORY);
        assert_eq!(node.len(), 1, "the node is not kept after its only use");
        zk.faults().remove(DIRECTORY);
    }
}

#[test]
fn guards_on_one_node_are_lost_together() {
    let (zk, kept, _) = two();
    let (one, two) = (read(&kept), read(&kept));
    zk.faults().expire();
    assert!(matches!(now(one.lost()), Loss::SessionOver(_)) && matches!(now(two.lost()), Loss::SessionOver(_)));
    assert!(matches!(now(one.release()), Err(Error::Lost(_))));
    let after = read(&kept);
    assert!(after.is_held() && !two.is_held());
}

#[test]
fn a_closed_client_grants_nothing_from_a_kept_node() {
    let (zk, kept, _) = two();
    drop(read(&kept));
    now(zk.close());
    assert_ready_err!(reading(&kept).poll());
}

// Uses that wait together until the node of their process is granted.

#[test]
fn other_waiters_keep_the_place_of_a_cancelled_one() {
    let (zk, kept, other) = two();
    let holder = write(&other);
    let mut all: Vec<_> = (0..3).map(|_| reading(&kept)).collect();
    for waiting in &mut all {
        assert_pending!(waiting.poll());
    }
    let place = zk.children(DIRECTORY);
    drop(all.remove(0));
    assert_eq!(zk.children(DIRECTORY), place);
    drop(holder);
    assert!(all.iter().all(|it| it.is_woken()));
    for waiting in &mut all {
        drop(assert_ready_ok!(waiting.poll()));
    }
}

#[test]
fn waiters_that_all_give_up_leave_no_node() {
    let (zk, kept, other) = two();
    let holder = write(&other);
    let mut all: Vec<_> = (0..3).map(|_| reading(&kept)).collect();
    for waiting in &mut all {
        assert_pending!(waiting.poll());
    }
    drop(all);
    assert_eq!(line(&zk), [Mode::Write]);
    drop(holder);
    drop(read(&kept));
    assert_eq!(line(&zk), [Mode::Read]);
}

#[test]
fn a_failure_reaches_all_waiters_and_the_next_starts_anew() {
    let (zk, kept, other) = two();
    let holder = write(&other);
    let (mut one, mut two) = (reading(&kept), reading(&kept));
    assert_pending!(one.poll());
    assert_pending!(two.poll());
    zk.faults().expire();
    for waiting in [&mut one, &mut two] {
        assert!(matches!(assert_ready_err!(waiting.poll()), Error::Evicted(_)));
    }
    drop(holder);
    drop(read(&kept));
}

#[test]
fn a_node_acquired_by_asking_is_kept_the_next_time() {
    let (zk, kept, _) = two();
    let another = keeping(&zk.connect());
    drop(read(&another));
    drop(write(&kept));
    assert_eq!(line(&zk), [], "the write has not asked for all nodes");
    drop(write(&kept));
    assert_eq!(line(&zk), [Mode::Write]);
}

#[test]
fn a_node_asked_for_before_reuse_skips_keeping_once() {
    let (zk, kept, other) = two();
    for is_kept in [true, false, true, false] {
        drop(read(&kept));
        assert_eq!(!line(&zk).is_empty(), is_kept);
        drop(write(&other));
        assert_eq!(line(&zk), []);
    }
    drop((read(&kept), read(&kept)));
    drop(write(&other));
    drop(read(&kept));
    assert_eq!(line(&zk), [Mode::Read], "the node is not kept although two uses shared the last one");
}

// Locks that keep their nodes for an idle time of zero.

fn sharing(zk: &Memory) -> RwLock {
    RwLock::builder(zk, DIRECTORY).keep(Duration::ZERO).build().expect("valid")
}

#[test]
fn zero_idle_time_shares_a_node_among_overlapping_uses() {
    let (zk, _, _) = two();
    let lock = sharing(&zk);
    let (one, two) = (read(&lock), read(&lock));
    drop(one);
    let three = read(&lock);
    drop(two);
    assert_eq!((line(&zk), three.node_path()), (vec![Mode::Read], read(&lock).node_path()));
    now(three.release()).expect("held");
    assert_nothing_left(&zk);
}

#[test]
fn zero_idle_time_writes_take_turns_under_one_node() {
    let (zk, _, _) = two();
    let lock = sharing(&zk);
    let first = write(&lock);
    let mut others = [(); 3].map(|()| writing(&lock));
    others.iter_mut().for_each(|it| assert_pending!(it.poll()));
    let (token, before) = (first.fencing_token(), zk.requests());
    drop(first);
    for it in &mut others {
        let guard = assert_ready_ok!(it.poll());
        assert_eq!(guard.fencing_token(), token);
        assert_eq!(zk.requests(), before, "a use of the shared node sent a request");
        drop(guard);
    }
    assert_nothing_left(&zk);
}

#[test]
fn zero_idle_time_removes_a_node_with_its_only_use() {
    let (zk, _, other) = two();
    let lock = sharing(&zk);
    let held = write(&other);
    let mut waits = writing(&lock);
    assert_pending!(waits.poll());
    drop(waits);
    drop(held);
    assert_nothing_left(&zk);
    let running = write(&lock);
    let mut waits = writing(&lock);
    assert_pending!(waits.poll());
    drop(running);
    drop(waits);
    assert_nothing_left(&zk);
}

// Options that a lock with kept nodes refuses, and uses across runtimes and threads.

#[test]
fn an_unkeepable_lock_is_refused_with_the_reason() {
    let zk = Memory::new();
    for dialect in [Dialect::Curator, Dialect::CuratorMutex, Dialect::Kazoo] {
        let error =
            RwLock::builder(&zk, DIRECTORY).dialect(dialect).keep(IDLE).build().expect_err("keeping is refused");
        assert!(matches!(&error, Error::InvalidInput(problem) if problem.contains("keep")), "{error}");
    }
    let forever = RwLock::builder(&zk, DIRECTORY).keep(Duration::MAX).build().expect("valid");
    drop((read(&forever), read(&forever)));
}

#[test]
fn a_node_idle_before_it_is_watched_hears_asks_too() {
    let (zk, _, other) = two();
    let forever = RwLock::builder(&zk, DIRECTORY).keep(Duration::MAX).build().expect("valid");
    let slot = now(zk.session_slot(0)).expect("always open");
    let clone = forever.clone();
    // The ensemble runs one background task at a time. So both uses end before the background task that watches the
    // kept node can start.
    slot.session().spawn(Box::pin(async move { drop((read(&clone), read(&clone))) }));
    assert_eq!(line(&zk), [Mode::Read]);
    drop(write(&other));
    assert_nothing_left(&zk);
}

#[test]
fn a_clone_on_another_thread_joins_too() {
    let (zk, kept, _) = two();
    drop(read(&kept));
    let kept = Arc::new(kept);
    let before = zk.requests();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..1_000).for_each(|_| drop(kept.read().blocking().expect("kept"))));
        }
    });
    assert_eq!(zk.requests(), before);
}

/// Tokio's budget lets a task take 128 steps before the task must yield. Every fourth use counts as a step, so the task
/// must yield after about 512 uses.
#[support::judged]
async fn a_task_that_only_joins_yields_now_and_then() {
    let (_zk, kept, _) = two();
    drop(kept.read().await.expect("free"));
    let uses = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&uses);
    let reads = tokio::spawn(async move {
        for _ in 0..4_000 {
            drop(kept.read().await.expect("kept"));
            counted.fetch_add(1, Ordering::Relaxed);
        }
    });
    let mut turns = Vec::new();
    while !reads.is_finished() {
        tokio::task::yield_now().await;
        turns.push(uses.load(Ordering::Relaxed));
    }
    let between: Vec<_> = turns.windows(2).map(|turns| turns[1] - turns[0]).collect();
    let (_last, whole) = between.split_last().expect("the loop of uses never pauses");
    assert!(whole.len() > 1 && whole.iter().all(|uses| (300..=1_000).contains(uses)), "{turns:?}");
}

#[test]
fn a_waiting_use_of_the_same_process_contends() {
    let (_zk, kept, _) = two();
    drop(write(&kept));
    let guard = write(&kept);
    let mut contended = tokio_test::task::spawn(guard.contended());
    assert_pending!(contended.poll());
    let mut late = reading(&kept);
    assert_pending!(late.poll());
    assert!(contended.is_woken());
    let contender = assert_ready_ok!(contended.poll());
    assert!(guard.node_path().ends_with(contender.as_str()));
}

#[test]
fn the_changes_of_a_guard_end_although_its_node_stays() {
    for is_kept in [true, false] {
        let zk = Memory::new();
        let lock = if is_kept { keeping(&zk) } else { plain(&zk) };
        let guard = read(&lock);
        let other = (!is_kept).then(|| guard.share());
        let mut changes = guard.changes();
        assert_eq!(now(changes.next()), Some(HoldState::Held));
        let mut next = task::spawn(changes.next());
        assert_pending!(next.poll());
        now(guard.release()).expect("held");
        assert!(next.is_woken());
        assert_eq!(assert_ready!(next.poll()), None);
        assert_eq!(line(&zk), [Mode::Read]);
        drop(other);
    }
}
