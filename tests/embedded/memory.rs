//! Orders of events that cannot be repeated on a real server. The futures are polled by hand, without threads and sleeps.

use std::cell::Cell;
use std::future::IntoFuture;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use support::hindered::{Hindered, Request, begun};
use support::polled::*;
use support::slow::{Slow, SlowSession};
use tokio::task::JoinSet;
use tokio_test::task;
use tokio_test::{assert_pending, assert_ready, assert_ready_err, assert_ready_ok};
use zk_rwlock::coordinator::{Coordinator, Failure, Kind, Operation, Session, SessionEnd, SessionSlot, SessionStore};
use zk_rwlock::queue::{MemberState, NodeName, Progress};
use zk_rwlock::{ConnectionState, Error, Granting, HoldState, Loss, Memory, Mode, RwLock, WriteGuard};

const DIRECTORY: &str = "/lock";

/// The first of the last 2^20 sequence numbers. From this number on, the lock refuses new contenders, because
/// ZooKeeper's numbers are about to end.
const REFUSED_FROM: i32 = i32::MAX - (1 << 20) + 1;

/// Half of the range of sequence numbers. From this number on, the last contender to leave deletes the directory, so
/// that the numbers start again at 0.
const RESTART_FROM: i32 = 1 << 30;

fn open<C: Coordinator + Clone>(client: &C) -> RwLock {
    RwLock::new(client, DIRECTORY).expect("valid")
}

/// Returns two clients of one ensemble, each with the lock. The lock's directory exists and is empty.
fn two() -> (Memory, Memory, RwLock, RwLock) {
    let one = Memory::new();
    let other = one.connect();
    let (a, b) = (open(&one), open(&other));
    for lock in [&a, &b] {
        now(write(lock).release()).expect("held");
    }
    assert_eq!((one.children(DIRECTORY).len(), one.watches()), (0, 0));
    (one, other, a, b)
}

fn session(client: &Memory) -> Arc<dyn Session> {
    Arc::clone(now(client.session_slot(0)).expect("open").session())
}

fn transact(client: &Memory, operations: &[Operation]) {
    now(session(client).transact(operations)).expect("done");
}

/// Returns the modes and sequence numbers of the contenders in the directory.
fn contenders(zk: &Memory) -> Vec<(Mode, i64)> {
    let names = zk.children(DIRECTORY);
    let mut all: Vec<_> = names.iter().filter_map(|name| NodeName::parse(name)).collect();
    all.sort_by_key(NodeName::sequence);
    all.iter().map(|contender| (contender.mode(), contender.sequence())).collect()
}

fn assert_nothing_left(zk: &Memory) {
    assert_eq!(zk.children(DIRECTORY), Vec::<String>::new());
    assert_eq!(zk.watches(), 0);
}

// Acquisitions and releases whose requests or replies are lost.

#[test]
fn a_create_with_a_lost_reply_is_one_node_and_a_grant() {
    let (zk, other, a, b) = two();
    zk.faults().lose_next_reply();
    let guard = write(&a);
    assert_eq!(zk.children(DIRECTORY).len(), 1);
    assert!(guard.node_path().ends_with(&zk.children(DIRECTORY)[0]));
    assert!(guard.is_held());
    let mut next = writing(&b);
    assert_pending!(next.poll());
    now(guard.release()).expect("held");
    assert!(next.is_woken());
    drop(assert_ready_ok!(next.poll()));
    drop(next);
    assert_nothing_left(&other);
}

#[test]
fn a_create_whose_request_is_lost_is_sent_again() {
    let (zk, _other, a, _b) = two();
    let before = zk.requests();
    now(write(&a).release()).expect("held");
    let undisturbed = zk.requests() - before;
    zk.faults().lose_next_request();
    let guard = write(&a);
    assert_eq!(contenders(&zk), [(Mode::Write, 3)]);
    now(guard.release()).expect("held");
    assert!(zk.requests() > before + 2 * undisturbed, "no request was lost");
    assert_nothing_left(&zk);
}

#[test]
fn a_create_is_sent_again_as_often_as_it_is_lost() {
    let (zk, _other, a, _b) = two();
    for _ in 0..10 {
        zk.faults().lose_next_request();
    }
    zk.faults().lose_next_reply();
    let guard = read(&a);
    assert_eq!(contenders(&zk), [(Mode::Read, 2)]);
    drop(guard);
    assert_nothing_left(&zk);
}

#[test]
fn making_the_directory_survives_lost_messages() {
    for lose in
        [(|zk: &Memory| zk.faults().lose_next_reply()) as fn(&Memory), |zk: &Memory| zk.faults().lose_next_request()]
    {
        for times in 1..5 {
            let zk = Memory::new();
            let lock = RwLock::new(&zk, "/a/b/lock").expect("valid");
            for _ in 0..times {
                lose(&zk);
            }
            let mut acquiring = task::spawn(lock.write().into_future());
            let guard = assert_ready_ok!(acquiring.poll());
            assert_eq!(zk.children("/a/b/lock").len(), 1, "{times} lost");
            now(guard.release()).expect("held");
            assert_eq!(zk.children("/a/b/lock").len(), 0);
        }
    }
}

#[test]
fn a_waiter_whose_create_reply_is_lost_is_granted() {
    let (zk, other, a, b) = two();
    let held = write(&a);
    other.faults().lose_next_reply();
    let mut next = writing(&b);
    assert_pending!(next.poll());
    assert_eq!(contenders(&zk), [(Mode::Write, 2), (Mode::Write, 3)]);
    drop(held);
    assert!(next.is_woken());
    assert!(assert_ready_ok!(next.poll()).is_held());
    drop(next);
    assert_nothing_left(&zk);
}

#[test]
fn a_delete_with_a_lost_message_leaves_nothing() {
    let (zk, _other, a, _b) = two();
    for lose in
        [(|zk: &Memory| zk.faults().lose_next_reply()) as fn(&Memory), |zk: &Memory| zk.faults().lose_next_request()]
    {
        let guard = write(&a);
        lose(&zk);
        now(guard.release()).expect("held");
        assert_nothing_left(&zk);

        let guard = read(&a);
        lose(&zk);
        lose(&zk);
        drop(guard);
        assert_nothing_left(&zk);

        let guard = write(&a);
        let mut late = writing(&a);
        assert_pending!(late.poll());
        lose(&zk);
        drop(late);
        lose(&zk);
        drop(guard);
        assert_nothing_left(&zk);
    }
}

#[test]
fn a_downgrade_with_a_lost_message_is_one_read_node() {
    let (zk, _other, a, b) = two();
    for lose in
        [(|zk: &Memory| zk.faults().lose_next_reply()) as fn(&Memory), |zk: &Memory| zk.faults().lose_next_request()]
    {
        let guard = write(&a);
        let token = guard.fencing_token();
        let (mut beside, mut behind) = (reading(&b), writing(&b));
        assert_pending!(beside.poll());
        assert_pending!(behind.poll());
        lose(&zk);
        let guard = now(guard.downgrade()).expect("held");
        assert_eq!(guard.fencing_token(), token);
        assert!(guard.is_held());
        let modes: Vec<_> = contenders(&zk).iter().map(|(mode, _)| *mode).collect();
        assert_eq!(modes, [Mode::Read, Mode::Read, Mode::Write]);
        let shared = assert_ready_ok!(beside.poll());
        assert_pending!(behind.poll());
        now(guard.transaction().commit()).expect("held");
        now(guard.release()).expect("held");
        assert_pending!(behind.poll());
        drop(shared);
        drop(assert_ready_ok!(behind.poll()));
        drop((beside, behind));
        assert_nothing_left(&zk);
    }
}

#[test]
fn a_downgrade_dropped_while_cut_off_leaves_nothing() {
    let (zk, other, a, b) = two();
    for lose in [
        None,
        Some((|zk: &Memory| zk.faults().lose_next_reply()) as fn(&Memory)),
        Some(|zk: &Memory| zk.faults().lose_next_request()),
    ] {
        let guard = write(&a);
        zk.faults().cut();
        let mut downgrading = task::spawn(guard.downgrade());
        assert_pending!(downgrading.poll());
        if let Some(lose) = lose {
            lose(&zk);
        }
        drop(downgrading);
        zk.faults().heal();
        assert_nothing_left(&other);
        assert!(now(b.try_write()).is_ok());
    }
}

#[test]
fn a_hand_off_with_a_lost_message_grants_the_next() {
    let (zk, _other, a, b) = two();
    for lose in
        [(|zk: &Memory| zk.faults().lose_next_reply()) as fn(&Memory), |zk: &Memory| zk.faults().lose_next_request()]
    {
        for times in 1..4 {
            let guard = write(&a);
            let mut next = writing(&b);
            assert_pending!(next.poll());
            for _ in 0..times {
                lose(&zk);
            }
            now(guard.release()).expect("held");
            assert!(next.is_woken());
            let next = assert_ready_ok!(next.poll());
            assert!(next.is_held());
            assert_eq!(contenders(&zk).len(), 1);
            now(next.release()).expect("no client interfered");
            assert_nothing_left(&zk);
        }
    }
}

#[test]
fn a_release_while_cut_off_is_done_after_the_reconnect() {
    let (zk, _other, a, b) = two();
    let guard = write(&a);
    let mut next = writing(&b);
    assert_pending!(next.poll());
    zk.faults().cut();
    let mut releasing = task::spawn(guard.release());
    assert_pending!(releasing.poll());
    assert!(!next.is_woken());
    zk.faults().heal();
    assert!(releasing.is_woken() && next.is_woken());
    assert_ready_ok!(releasing.poll());
    drop(assert_ready_ok!(next.poll()));
    drop(next);
    assert_nothing_left(&zk);
}

// Reports to a waiter about its place in the queue.

/// Returns the reports that the waiter has received. Each report has the waiter's place, the number of contenders that
/// block the waiter, and the text of the first of these contenders.
fn heard(hears: &mpsc::Receiver<Progress>) -> Vec<(usize, usize, String)> {
    let first = |it: &Progress| it.blockers.first.first().map(ToString::to_string).unwrap_or_default();
    let text =
        |it: Progress| (it.place, it.blockers.ahead, first(&it).split(" queued ").next().unwrap_or("").to_owned());
    hears.try_iter().map(text).collect()
}

fn listener() -> (impl Fn(&Progress) + Clone + Send + 'static, mpsc::Receiver<Progress>) {
    let (sender, hears) = mpsc::channel();
    (move |progress: &Progress| sender.send(progress.clone()).expect("the receiver lives"), hears)
}

/// Returns the text by which a report names a contender with this label.
fn entry(mode: &str, host: &str, label: &str) -> String {
    format!("{mode} {host} pid {} \"{label}\"", std::process::id())
}

#[test]
fn a_waiter_hears_its_changed_place_and_blockers() {
    let zk = Memory::new();
    let lock = RwLock::builder(&zk, DIRECTORY).host("h").build().expect("valid");
    let holder = now(lock.write().label("holds").into_future()).expect("free");
    let mut reader = task::spawn(lock.read().label("reads").into_future());
    let mut writer = task::spawn(lock.write().label("waits").into_future());
    assert_pending!(reader.poll());
    assert_pending!(writer.poll());

    let (listener, hears) = listener();
    let mut last = task::spawn(lock.write().on_wait(listener).into_future());
    assert_pending!(last.poll());
    assert_eq!(heard(&hears), [(4, 3, entry("WRITE", "h", "holds"))]);

    // The waiter watches only its predecessor, so a release further ahead does not wake the waiter.
    drop(holder);
    drop(assert_ready_ok!(reader.poll()));
    let requests = zk.requests();
    assert!(!last.is_woken());
    assert_pending!(last.poll());
    assert_eq!((heard(&hears), zk.requests()), (Vec::new(), requests));

    drop(assert_ready_ok!(writer.poll()));
    assert!(last.is_woken());
    drop(assert_ready_ok!(last.poll()));
    assert_eq!(heard(&hears), Vec::new(), "a grant was reported as a wait");
}

#[test]
fn a_waiter_hears_that_its_predecessor_gave_up() {
    let zk = Memory::new();
    let lock = RwLock::builder(&zk, DIRECTORY).host("h").build().expect("valid");
    let holder = now(lock.read().label("one").into_future()).expect("free");
    let beside = now(lock.read().label("two").into_future()).expect("shared");
    let mut writers = [writing(&lock), writing(&lock)];
    for writer in &mut writers {
        assert_pending!(writer.poll());
    }
    let (listener, hears) = listener();
    let mut reader = task::spawn(lock.read().on_wait(listener).into_future());
    assert_pending!(reader.poll());
    // Of the four contenders ahead, only the two writers block the reader. The two readers hold, and a reader may hold
    // beside them.
    assert_eq!(heard(&hears).iter().map(|(place, ahead, _)| (*place, *ahead)).collect::<Vec<_>>(), [(5, 2)]);

    let [first, second] = writers;
    drop(holder);
    assert!(!reader.is_woken());
    drop(second);
    assert!(reader.is_woken());
    assert_pending!(reader.poll());
    assert_eq!(heard(&hears).iter().map(|(place, ahead, _)| (*place, *ahead)).collect::<Vec<_>>(), [(3, 1)]);
    drop((first, beside));
    drop(assert_ready_ok!(reader.poll()));
}

#[test]
fn on_wait_costs_a_read_per_name_and_no_listing() {
    let cost = |names: bool| {
        let (zk, _other, a, b) = two();
        let _held = write(&a);
        let before = zk.requests();
        let (listener, hears) = listener();
        let waiting = if names { b.write().on_wait(listener) } else { b.write() };
        let mut waiting = task::spawn(waiting.into_future());
        assert_pending!(waiting.poll());
        (zk.requests() - before, hears.try_iter().count())
    };
    let ((without, none), (with, once)) = (cost(false), cost(true));
    assert_eq!((with - without, none, once), (1, 0, 1));
}

#[tokio::test(start_paused = true)]
async fn a_waiter_in_a_short_queue_hears_of_changes_in_1_s() {
    let zk = Memory::new();
    let lock = open(&zk);
    let holder = write(&lock);
    let mut readers = [reading(&lock), reading(&lock)];
    for reader in &mut readers {
        assert_pending!(reader.poll());
    }
    let (listener, hears) = listener();
    let mut last = task::spawn(lock.write().on_wait(listener).into_future());
    assert_pending!(last.poll());
    drop(holder);
    drop(assert_ready_ok!(readers[0].poll()));
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_pending!(last.poll());
    let reported = hears.try_iter().map(|progress| (progress.place, progress.length)).collect::<Vec<_>>();
    assert_eq!(reported, [(4, 4), (2, 2)]);
    drop(assert_ready_ok!(readers[1].poll()));
    drop(assert_ready_ok!(last.poll()));
}

#[tokio::test(start_paused = true)]
async fn a_waiter_whose_listing_failed_hears_of_changes_later() {
    let zk = Memory::new();
    let (lock, fails) = (open(&zk), Arc::new(AtomicBool::new(false)));
    let failing = Arc::clone(&fails);
    let hindered = Hindered::new(&zk.connect(), move |asked| {
        let fails = matches!(asked, Request::Children(DIRECTORY)) && failing.swap(false, Ordering::Relaxed);
        fails.then(|| Failure::Unknown("the connection broke".to_owned()))
    });
    let holder = write(&lock);
    let mut readers = [reading(&lock), reading(&lock)];
    for reader in &mut readers {
        assert_pending!(reader.poll());
    }
    let (listener, hears) = listener();
    let waits = RwLock::new(&hindered, DIRECTORY).expect("valid");
    let mut last = task::spawn(waits.write().on_wait(listener).into_future());
    assert_pending!(last.poll());
    drop(holder);
    drop(assert_ready_ok!(readers[0].poll()));
    fails.store(true, Ordering::Relaxed);
    for expected in [&[(4, 4)][..], &[(2, 2)]] {
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_pending!(last.poll());
        assert!(!fails.load(Ordering::Relaxed), "the waiter did not list the queue");
        assert_eq!(hears.try_iter().map(|progress| (progress.place, progress.length)).collect::<Vec<_>>(), expected);
    }
    drop(assert_ready_ok!(readers[1].poll()));
    drop(assert_ready_ok!(last.poll()));
}

#[tokio::test(start_paused = true)]
async fn listening_waiters_read_under_10_000_names_a_second() {
    for waiters in [3_u64, 50] {
        let zk = Memory::new();
        let lock = open(&zk);
        let holder = write(&lock);
        let mut tasks = JoinSet::new();
        for _ in 0..waiters {
            tasks.spawn(lock.write().on_wait(|_| {}).into_future());
        }
        while zk.children(DIRECTORY).len() < waiters as usize + 1 {
            tokio::task::yield_now().await;
        }
        tokio::time::sleep(Duration::from_secs(20)).await;
        let requests = zk.requests();
        tokio::time::sleep(Duration::from_secs(100)).await;
        // No contender comes or leaves in these 100 s, so each request is a listing. Each listing returns the names of
        // the waiters and of the holder.
        let names = (zk.requests() - requests) * (waiters + 1);
        assert!(names > 1_000 && names < 10_000 * 100, "{waiters}: {names} in 100 seconds");
        tasks.abort_all();
        drop(holder);
    }
}

#[support::judged]
async fn a_waiter_whose_on_wait_panics_leaves_the_queue() {
    let (zk, _other, a, b) = two();
    let held = write(&a);
    let waiting = tokio::spawn(b.write().on_wait(|_| panic!("a panic on purpose")).into_future());
    assert!(waiting.await.is_err_and(|ended| ended.is_panic()));
    now(held.release()).expect("held");
    assert_nothing_left(&zk);
}

// Reports to a holder about the contenders that wait for its release.

#[test]
fn a_writer_finds_its_first_waiter_for_two_listings() {
    let (zk, _other, a, b) = two();
    let guard = write(&a);
    let requests = zk.requests();
    let mut contended = task::spawn(guard.contended());
    assert_pending!(contended.poll());
    assert_eq!(zk.requests() - requests, 1);

    let mut reader = reading(&b);
    assert_pending!(reader.poll());
    assert!(contended.is_woken());
    let requests = zk.requests();
    let first = assert_ready_ok!(contended.poll());
    assert_eq!((first.mode(), zk.requests() - requests), (Mode::Read, 1));
    // The waiter is still in the queue, so another call of `contended` returns immediately.
    assert_eq!(now(guard.contended()).expect("held"), first);
    drop(contended);
    drop(guard);
    drop(assert_ready_ok!(reader.poll()));
    drop(reader);
    assert_nothing_left(&zk);
}

#[tokio::test(start_paused = true)]
async fn a_reader_looks_for_writers_at_most_every_20_ms() {
    let (zk, other, a, b) = two();
    let guard = read(&a);
    let some_reads = |poll: &mut dyn FnMut()| {
        let requests = zk.requests();
        for _ in 0..4 {
            drop(read(&b));
            poll();
        }
        zk.requests() - requests
    };
    some_reads(&mut || {});
    let without = some_reads(&mut || {});
    let mut contended = task::spawn(guard.contended());
    assert_pending!(contended.poll());
    let beside = read(&b);
    assert!(contended.is_woken());
    assert_pending!(contended.poll());

    drop(beside);
    let with = some_reads(&mut || assert_pending!(contended.poll()));
    assert_eq!(with, without, "the holder listed the queue again");
    let mut writer = writing(&b);
    assert_pending!(writer.poll());
    tokio::time::advance(Duration::from_millis(20)).await;
    assert!(contended.is_woken());
    assert_eq!(assert_ready_ok!(contended.poll()).mode(), Mode::Write);
    drop(contended);
    now(guard.release()).expect("held");
    drop(assert_ready_ok!(writer.poll()));
    drop(writer);
    assert_nothing_left(&other);
}

#[test]
fn a_reconnected_holder_learns_who_queued_up_meanwhile() {
    let (zk, _other, a, b) = two();
    let guard = write(&a);
    let mut contended = task::spawn(guard.contended());
    assert_pending!(contended.poll());
    zk.faults().cut();
    let mut writer = writing(&b);
    assert_pending!(writer.poll());
    assert_pending!(contended.poll());
    zk.faults().heal();
    assert!(contended.is_woken());
    assert_eq!(assert_ready_ok!(contended.poll()).mode(), Mode::Write);
}

#[test]
fn a_holder_awaiting_contention_learns_of_its_loss() {
    let lose = [|zk: &Memory, _: &str| zk.faults().expire(), |zk: &Memory, path: &str| zk.faults().remove(path)];
    for (lose, why) in lose.into_iter().zip([Loss::SessionOver(SessionEnd::Expired), Loss::Removed]) {
        let (zk, _other, a, _b) = two();
        let guard = read(&a);
        let mut contended = task::spawn(guard.contended());
        assert_pending!(contended.poll());
        lose(&zk, &guard.node_path());
        assert!(contended.is_woken());
        assert!(matches!(assert_ready_err!(contended.poll()), Error::Lost(loss) if loss == why));
        drop(contended);
        drop(guard);
        assert_nothing_left(&zk);
    }
}

#[test]
fn a_writer_that_left_again_does_not_contend() {
    let (_zk, _other, a, b) = two();
    let guard = write(&a);
    let mut contended = task::spawn(guard.contended());
    assert_pending!(contended.poll());
    let mut writer = writing(&b);
    assert_pending!(writer.poll());
    drop(writer);
    assert!(contended.is_woken());
    assert_pending!(contended.poll());
}

// Futures of acquisitions, tries and releases, dropped after each number of polls.

/// More polls than any acquisition takes.
const POLLS: usize = 60;

#[test]
fn an_acquisition_dropped_at_any_poll_leaves_nothing() {
    for faults in FAULTS {
        let mut granted = false;
        for polls in 0..POLLS {
            let (zk, _other, _a, b) = two();
            let lock = open(&Slow(zk.clone()));
            lose(&zk, faults);
            let mut acquiring = writing(&lock);
            granted |= matches!(poll_up_to(&mut acquiring, polls), Some(Poll::Ready(Ok(_))));
            drop(acquiring);
            assert_eq!(zk.children(DIRECTORY), Vec::<String>::new(), "{faults:?} at poll {polls}");
            assert_eq!(zk.watches(), 0, "{faults:?} at poll {polls}");
            assert!(now(b.try_write()).is_ok());
        }
        assert!(granted, "{faults:?}: {POLLS} polls are too few");
    }
}

#[test]
fn a_waiter_dropped_at_any_poll_leaves_nothing() {
    for faults in FAULTS {
        let mut waited = false;
        for polls in 0..POLLS {
            let (zk, other, a, b) = two();
            let third = zk.connect();
            let held = write(&a);
            let mut between = reading(&b);
            assert_pending!(between.poll());
            let before = (zk.children(DIRECTORY), zk.watches());
            let lock = open(&Slow(third.clone()));
            lose(&third, faults);
            let mut acquiring = writing(&lock);
            waited |= poll_up_to(&mut acquiring, polls).is_none();
            let mut behind = reading(&b);
            assert_pending!(behind.poll());
            drop(acquiring);
            // The drop deletes the contender's node, so `behind` must now wait for the next contender ahead.
            if behind.is_woken() {
                assert_pending!(behind.poll());
            }
            drop(behind);
            assert_eq!((zk.children(DIRECTORY), zk.watches()), before, "{faults:?} at poll {polls}");
            assert!(held.is_held() && !between.is_woken());
            drop(held);
            drop(assert_ready_ok!(between.poll()));
            drop(between);
            assert_nothing_left(&other);
        }
        assert!(waited, "{faults:?}: {POLLS} polls are too few");
    }
}

#[test]
fn a_try_dropped_at_any_poll_leaves_nothing() {
    for faults in FAULTS {
        for taken in [false, true] {
            for polls in 0..POLLS {
                let (zk, other, a, _b) = two();
                let held = taken.then(|| write(&a));
                let before = (zk.children(DIRECTORY), zk.watches());
                let lock = open(&Slow(other.clone()));
                lose(&other, faults);
                let mut trying = task::spawn(lock.try_read());
                let answer = poll_up_to(&mut trying, polls);
                if let Some(Poll::Ready(answer)) = &answer {
                    assert_eq!(answer.is_ok(), !taken, "{answer:?}");
                }
                drop((answer, trying));
                assert_eq!((zk.children(DIRECTORY), zk.watches()), before, "{faults:?} at poll {polls}");
                drop(held);
            }
        }
    }
}

#[test]
fn a_release_dropped_at_any_poll_frees_the_lock() {
    for faults in FAULTS {
        for polls in 0..20 {
            let (zk, _other, _a, b) = two();
            let lock = open(&Slow(zk.clone()));
            for downgrades in [false, true] {
                let mut acquiring = writing(&lock);
                let Some(Poll::Ready(Ok(guard))) = poll_up_to(&mut acquiring, POLLS) else { panic!("not granted") };
                drop(acquiring);
                let mut next = writing(&b);
                assert_pending!(next.poll());
                lose(&zk, faults);
                if downgrades {
                    let mut downgrading = task::spawn(guard.downgrade());
                    drop(poll_up_to(&mut downgrading, polls));
                } else {
                    let mut releasing = task::spawn(guard.release());
                    drop(poll_up_to(&mut releasing, polls));
                }
                assert!(next.is_woken(), "{faults:?} at poll {polls}");
                let next = assert_ready_ok!(next.poll());
                assert!(next.is_held());
                assert_eq!(contenders(&zk).len(), 1, "{faults:?} at poll {polls}");
                drop(next);
                assert_nothing_left(&zk);
            }
        }
    }
}

#[test]
fn an_acquisition_dropped_while_cut_off_leaves_nothing() {
    let (zk, other, a, b) = two();
    for contended in [false, true] {
        let held = contended.then(|| write(&b));
        let before = zk.children(DIRECTORY);
        zk.faults().cut();
        let mut acquiring = writing(&a);
        assert_pending!(acquiring.poll());
        drop(acquiring);
        zk.faults().heal();
        assert_eq!(zk.children(DIRECTORY), before);
        if contended {
            let mut acquiring = writing(&a);
            assert_pending!(acquiring.poll());
            zk.faults().cut();
            drop(acquiring);
            assert_eq!(zk.children(DIRECTORY).len(), 2);
            zk.faults().heal();
            assert_eq!(zk.children(DIRECTORY), before);
        }
        drop(held);
        assert_nothing_left(&other);
    }
}

#[test]
fn the_third_waits_for_the_first_when_the_second_leaves() {
    let (zk, _other, a, b) = two();
    let held = write(&a);
    let (mut middle, mut last) = (writing(&b), writing(&a));
    assert_pending!(middle.poll());
    assert_pending!(last.poll());
    drop(middle);
    assert!(last.is_woken());
    assert_pending!(last.poll());
    assert!(!last.is_woken());
    now(held.release()).expect("held");
    assert!(last.is_woken());
    drop(assert_ready_ok!(last.poll()));
    drop(last);
    assert_nothing_left(&zk);
}

/// A writer holds, a second writer waits, and a reader waits behind both. When the second writer leaves, the reader
/// must wait for the first. Curator's first reader-writer lock forgot the first writer.
#[test]
fn a_reader_whose_writer_leaves_awaits_an_earlier_one() {
    let (zk, _other, a, b) = two();
    let held = write(&a);
    let mut between = writing(&b);
    let mut last = reading(&a);
    assert_pending!(between.poll());
    assert_pending!(last.poll());
    drop(between);
    assert!(last.is_woken());
    assert_pending!(last.poll());
    now(held.release()).expect("held");
    assert!(last.is_woken());
    drop(assert_ready_ok!(last.poll()));
    drop(last);
    assert_nothing_left(&zk);
}

#[test]
fn a_waiter_whose_session_ends_lets_nobody_in_early() {
    let (zk, other, a, b) = two();
    let held = write(&a);
    let (mut middle, mut last) = (writing(&b), writing(&a));
    assert_pending!(middle.poll());
    assert_pending!(last.poll());
    other.faults().expire();
    assert!(assert_ready_err!(middle.poll()).is_lost());
    assert!(last.is_woken());
    assert_pending!(last.poll());
    assert!(held.is_held());
    drop((middle, held));
    drop(assert_ready_ok!(last.poll()));
    drop(last);
    assert_nothing_left(&zk);
}

/// A lock that sorts whole names grants the contender whose host comes first in the alphabet (ZOOKEEPER-2931).
#[test]
fn the_names_of_hosts_do_not_decide_who_is_first() {
    let zk = Memory::new();
    let on = |host| RwLock::builder(&zk, DIRECTORY).host(host).build().expect("valid");
    let held = write(&on("z-WRITE-9"));
    let (mut second, mut third) = (writing(&on("m")), writing(&on("a-READ-0")));
    assert_pending!(second.poll());
    assert_pending!(third.poll());
    drop(held);
    assert_pending!(third.poll());
    let held = assert_ready_ok!(second.poll());
    assert_pending!(third.poll());
    drop(held);
    drop(assert_ready_ok!(third.poll()));
}

/// A lock has no upgrade, because two readers that upgrade at the same time would deadlock. When two readers try to
/// upgrade by hand, their errors name the contenders that they wait for.
#[tokio::test(start_paused = true)]
async fn two_readers_that_try_to_write_time_out() {
    let (zk, _other, a, b) = two();
    let (one, two) = (read(&a), read(&b));
    let limit = Duration::from_secs(1);
    let (first, second) = tokio::join!(a.write().timeout(limit), b.write().timeout(limit));
    for error in [first.expect_err("a reader holds"), second.expect_err("a reader holds")] {
        let Error::Timeout { blockers, .. } = error else { panic!("{error:?}") };
        let readers = blockers.first.iter().filter(|member| member.mode == Mode::Read).count();
        assert_eq!(readers, 2, "{blockers}");
    }
    assert!(one.is_held() && two.is_held());
    drop(two);
    assert_pending!(writing(&b).poll());
    drop(one);
    assert!(write(&b).is_held());
    assert_nothing_left(&zk);
}

// Lagging servers, and events that arrive late.

#[test]
fn a_create_brings_a_lagging_server_up_to_date() {
    let (zk, other, a, b) = two();
    other.faults().lag();
    let held = write(&a);
    let mut next = writing(&b);
    // The waiter's server lags. When the waiter queued up, that server listed an empty directory.
    assert_pending!(next.poll());
    drop(held);
    assert!(!next.is_woken(), "the event has arrived too early");
    other.faults().catch_up();
    assert!(next.is_woken());
    drop(assert_ready_ok!(next.poll()));
    drop(next);
    assert_nothing_left(&zk);
}

#[test]
fn a_create_with_a_lost_reply_is_found_despite_lag() {
    let (zk, other, a, b) = two();
    other.faults().lag();
    let held = read(&a);
    other.faults().lose_next_reply();
    let shared = read(&b);
    assert_eq!(contenders(&zk), [(Mode::Read, 2), (Mode::Read, 3)]);
    drop((held, shared));
    assert_nothing_left(&zk);
}

/// The reply to the create is lost. The listing that should find the node comes from a server that does not have the node yet.
#[test]
fn a_dropped_create_with_lost_reply_leaves_nothing() {
    let (zk, other, _a, b) = two();
    other.faults().lag();
    other.faults().lose_next_reply();
    let session = Slow(other.clone());
    let mut acquiring = writing(&open(&session));
    for _ in 0..POLLS {
        if zk.children(DIRECTORY).is_empty() {
            assert_pending!(acquiring.poll());
        }
    }
    assert_eq!((zk.children(DIRECTORY).len(), now(b.queue()).expect("readable").members.len()), (1, 0));
    drop(acquiring);
    assert_nothing_left(&zk);
}

#[test]
fn a_silent_servers_replies_arrive_in_order_later() {
    let (zk, other, a, b) = two();
    let held = write(&a);
    other.faults().silence();
    let mut next = writing(&b);
    assert_pending!(next.poll());
    assert_eq!(contenders(&zk).len(), 2, "the silent server did not carry out the requests");
    other.faults().catch_up();
    assert_pending!(next.poll());
    other.faults().silence();
    drop(held);
    assert_pending!(next.poll());
    other.faults().catch_up();
    assert!(assert_ready_ok!(next.poll()).is_held());
    drop(next);
    assert_nothing_left(&zk);
}

#[tokio::test(start_paused = true)]
async fn a_holder_of_a_silent_server_loses_at_its_lease_end() {
    let (_zk, other, _a, b) = two();
    let guard = write(&b);
    other.faults().silence();
    assert_eq!(guard.state(), HoldState::Held);
    tokio::time::advance(Duration::from_secs(11)).await;
    assert_eq!(now(guard.lost()), Loss::LeaseRanOut);
    other.faults().catch_up();
    assert!(!guard.is_held());
}

#[test]
fn a_try_beaten_on_a_lagging_server_leaves_nothing() {
    let (zk, other, a, b) = two();
    other.faults().lag();
    let held = write(&a);
    let before = zk.children(DIRECTORY);
    // The lagging server lists an empty directory. The try must still fail, because its node has a higher number than the
    // holder's.
    let error = now(b.try_write()).expect_err("taken");
    assert!(error.is_would_block());
    assert_eq!(zk.children(DIRECTORY), before);
    drop(held);
    other.faults().catch_up();
    drop(now(b.try_write()).expect("free"));
    assert_nothing_left(&zk);
}

#[test]
fn a_member_hidden_by_a_lagging_server_can_be_evicted() {
    let (zk, other, a, b) = two();
    other.faults().lag();
    let held = write(&a);
    assert!(now(b.queue()).expect("readable").members.is_empty(), "the server does not lag");
    let gone = now(b.evict(held.fencing_token())).expect("allowed").expect("the node exists");
    assert_eq!(gone.token, Some(held.fencing_token()));
    assert!(!held.is_held());
    assert_nothing_left(&zk);
}

#[test]
fn an_eviction_reports_the_removed_despite_a_lost_reply() {
    let (zk, other, a, b) = two();
    let held = write(&a);
    other.faults().lose_next_reply();
    let gone = now(b.evict(held.fencing_token())).expect("allowed").expect("the node existed");
    assert_eq!(gone.token, Some(held.fencing_token()));
    assert_nothing_left(&zk);
}

#[test]
fn an_eviction_reports_no_contender_that_had_left() {
    let (mut evicted, mut left) = (0, 0);
    for polls in 0..20 {
        let (zk, other, a, _) = two();
        let held = write(&a);
        let slow = open(&Slow(other));
        let mut evicting = task::spawn(slow.evict(held.fencing_token()));
        let done = poll_up_to(&mut evicting, polls);
        let is_removed = zk.children(DIRECTORY).is_empty();
        drop(held);
        if let Some(Poll::Ready(answer)) = done {
            assert!(answer.expect("allowed").is_some() && is_removed);
            break;
        }
        let Some(Poll::Ready(answer)) = poll_up_to(&mut evicting, 20) else { panic!("{polls}: no answer") };
        assert_eq!(answer.expect("allowed").is_some(), is_removed, "{polls}");
        (evicted, left) = (evicted + usize::from(is_removed), left + usize::from(!is_removed));
    }
    assert!(evicted > 0 && left > 1, "{evicted}, {left}");
}

#[tokio::test(start_paused = true)]
async fn a_guard_without_a_lease_is_not_downgraded() {
    for downgrades in [false, true] {
        let (zk, _other, a, b) = two();
        let held = write(&a);
        zk.faults().cut();
        tokio::time::advance(Duration::from_secs(10)).await;
        zk.faults().heal();
        assert_eq!((held.is_held(), contenders(&zk).len()), (false, 1), "the lock is still held, or its node is gone");
        let error = match downgrades {
            true => held.downgrade().await.map(drop),
            false => held.release().await,
        };
        assert!(matches!(error, Err(Error::Lost(Loss::LeaseRanOut))), "{error:?}");
        drop(write(&b));
        assert_nothing_left(&zk);
    }
}

/// The event of the hand-off reaches the waiter only after the ensemble has ended the waiter's session.
#[tokio::test(start_paused = true)]
async fn an_old_hand_off_grants_nothing_without_a_lease() {
    let (_zk, other, a, b) = two();
    let held = write(&a);
    let mut next = writing(&b);
    assert_pending!(next.poll());
    other.faults().lag();
    held.release().await.expect("held");
    other.faults().cut();
    tokio::time::advance(Duration::from_secs(10)).await;
    other.faults().catch_up();
    assert!(next.is_woken(), "the old event has not come");
    let error = assert_ready_err!(next.poll());
    assert!(matches!(error, Error::Evicted(Loss::LeaseRanOut)), "{error:?}");
    other.faults().expire();
    let taken = write(&a);
    other.faults().heal();
    assert!(taken.is_held());
}

/// An operator ends the waiter's session while the session's lease is still valid. The order of the events shows that the
/// waiter's node was deleted before the hand-off.
#[test]
fn an_old_hand_off_is_no_grant_once_the_node_is_gone() {
    let (_zk, other, a, b) = two();
    let held = write(&a);
    let mut next = writing(&b);
    assert_pending!(next.poll());
    other.faults().lag();
    other.faults().cut();
    other.faults().expire();
    now(held.release()).expect("held");
    other.faults().catch_up();
    let error = assert_ready_err!(next.poll());
    assert!(error.is_lost(), "{error:?}");
    assert!(write(&a).is_held());
}

/// The hand-off reaches the waiter before its coordinator is closed, and the waiter is polled only afterwards. The error is the
/// same as that of a waiter whose turn had not come.
#[test]
fn a_grant_that_a_close_overtakes_is_closed() {
    let (_zk, other, a, b) = two();
    let held = write(&a);
    let mut next = writing(&b);
    assert_pending!(next.poll());
    now(held.release()).expect("held");
    assert!(next.is_woken(), "the hand-off has not come");
    now(other.close());
    let error = assert_ready_err!(next.poll());
    assert!(matches!(error, Error::Closed(SessionEnd::Closed)), "{error:?}");
    drop(next);
    assert!(write(&a).is_held());
}

/// A waiter that is cut off fails with `LeaseRanOut` when its lease runs out, as a holder does. The waiter's node is
/// deleted after the reconnect.
#[tokio::test(start_paused = true)]
async fn a_waiter_cut_off_is_evicted_at_the_lease_end() {
    let (zk, other, a, b) = two();
    let held = write(&a);
    let mut next = writing(&b);
    assert_pending!(next.poll());
    other.faults().cut();
    tokio::time::advance(Duration::from_millis(8_300)).await;
    assert_pending!(next.poll());
    tokio::time::advance(Duration::from_millis(100)).await;
    assert!(next.is_woken());
    let error = assert_ready_err!(next.poll());
    assert!(matches!(error, Error::Evicted(Loss::LeaseRanOut)), "{error:?}");
    drop(next);
    other.faults().heal();
    held.release().await.expect("held");
    assert_nothing_left(&zk);
}

/// The event of the hand-off arrives 8 s late, but the waiter's lease is still valid then. So the hand-off counts as a
/// grant.
#[tokio::test(start_paused = true)]
async fn an_old_hand_off_is_a_grant_while_the_lease_is_valid() {
    let (_zk, other, a, b) = two();
    let held = write(&a);
    let mut next = writing(&b);
    assert_pending!(next.poll());
    other.faults().lag();
    held.release().await.expect("held");
    other.faults().cut();
    tokio::time::advance(Duration::from_secs(8)).await;
    other.faults().catch_up();
    let held = assert_ready_ok!(next.poll());
    assert!(held.is_held());
    other.faults().heal();
    assert!(held.is_held());
}

#[tokio::test(start_paused = true)]
async fn a_guard_cut_off_is_lost_at_the_lease_end() {
    let (zk, _other, a, _b) = two();
    let held = write(&a);
    let mut lost = task::spawn(held.lost());
    assert_pending!(lost.poll());
    zk.faults().cut();
    tokio::time::advance(Duration::from_millis(8_300)).await;
    assert!(held.is_held());
    tokio::time::advance(Duration::from_millis(100)).await;
    assert!(!held.is_held());
    assert_eq!(assert_ready!(lost.poll()), Loss::LeaseRanOut);
    zk.faults().heal();
    assert!(!held.is_held(), "a lost guard became valid again");
}

/// A client without heartbeats, whose lease runs on a clock that the test sets.
#[derive(Clone, Debug)]
struct Suspended(Memory, Arc<SessionStore>);

#[async_trait]
impl Coordinator for Suspended {
    async fn session_slot(&self, own_bytes: usize) -> Result<SessionSlot, Failure> {
        let inner = self.0.session_slot(own_bytes).await?;
        Ok(SessionSlot::new(Arc::new(SlowSession(Arc::clone(inner.session()), Arc::clone(&self.1)))))
    }

    async fn close(&self) {
        Coordinator::close(&self.0).await;
    }

    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        self.0.sleep(duration)
    }
}

/// While a machine is suspended, the ensemble's clock advances, but the machine's timers do not.
#[tokio::test(start_paused = true)]
async fn a_suspended_machine_has_lost_its_locks_before_timers() {
    let (store, clock) = begun(Duration::from_secs(10));
    let lock = open(&Suspended(Memory::new(), store));
    let (asked, waiting) = (lock.read().await.expect("free"), lock.read().await.expect("shared"));
    let mut lost = task::spawn(waiting.lost());
    assert_pending!(lost.poll());
    assert!(asked.is_held());
    clock.fetch_add(3_600, Ordering::SeqCst);
    assert!(!asked.is_held(), "a guard is held after the suspend");
    // The timer of the lease sleeps in slices of a twentieth of the session timeout: here 500 ms. So a task that awaits
    // the loss learns of the loss after the current slice, and not only after the whole lease.
    tokio::time::advance(Duration::from_millis(501)).await;
    assert_eq!(assert_ready!(lost.poll()), Loss::LeaseRanOut);
}

#[support::judged]
async fn a_suspended_machine_cannot_use_its_kept_node() {
    for writes in [false, true] {
        let (store, clock) = begun(Duration::from_secs(10));
        let client = Suspended(Memory::new(), store);
        let lock = RwLock::builder(&client, DIRECTORY).keep(Duration::from_secs(86_400)).build().expect("valid");
        let token = async || {
            let token = async {
                if writes {
                    lock.write().await.map(|it| it.fencing_token())
                } else {
                    lock.read().await.map(|it| it.fencing_token())
                }
            };
            tokio::time::timeout(Duration::from_millis(50), token).await
        };
        let first = token().await.expect("free").expect("granted");
        assert_eq!(token().await.expect("kept").expect("kept"), first);
        clock.fetch_add(3_600, Ordering::SeqCst);
        let again = token().await;
        assert!(!matches!(again, Ok(Ok(again)) if again == first), "the use got the lost node");
    }
}

/// The ensemble calls the waker in the middle of a change. A waker that then sends a request must not deadlock on the ensemble's
/// lock.
#[test]
fn a_woken_task_may_use_the_ensemble() {
    struct Curious(Memory, AtomicU64);

    impl Wake for Curious {
        fn wake(self: Arc<Self>) {
            self.0.children(DIRECTORY);
            self.1.fetch_add(1, Ordering::SeqCst);
        }
    }

    let (done, finished) = mpsc::channel();
    thread::spawn(move || {
        let (zk, other, a, b) = two();
        let waker = Arc::new(Curious(zk.clone(), AtomicU64::new(0)));
        let poll = |future: &mut Granting<WriteGuard>| {
            let waker = Waker::from(Arc::clone(&waker));
            Pin::new(future).poll(&mut Context::from_waker(&waker)).is_ready()
        };
        let held = write(&a);
        let mut by_an_event = b.write().into_future();
        assert!(!poll(&mut by_an_event));
        drop(held);
        assert!(poll(&mut by_an_event));
        other.faults().cut();
        let mut by_the_connection = b.write().into_future();
        assert!(!poll(&mut by_the_connection));
        other.faults().heal();
        assert!(poll(&mut by_the_connection));
        let mut by_the_end = b.write().into_future();
        let held = write(&a);
        assert!(!poll(&mut by_the_end));
        other.faults().expire();
        assert!(poll(&mut by_the_end));
        drop(held);
        done.send(waker.1.load(Ordering::SeqCst)).expect("the test waits");
    });
    let woken = finished.recv_timeout(Duration::from_secs(20)).expect("no task is stuck");
    assert!(woken >= 3, "{woken}");
}

// Hand-offs that foreign clients forge.

#[test]
fn a_waiter_that_takes_a_forged_hand_off_loses_the_lock() {
    let (zk, _other, a, b) = two();
    let stranger = zk.connect();
    let held = write(&a);
    let mut next = writing(&b);
    assert_pending!(next.poll());
    transact(&stranger, &[Operation::Set { path: held.node_path(), data: Vec::new(), version: None }]);
    assert!(next.is_woken());
    let falsely = assert_ready_ok!(next.poll());
    assert!(!falsely.is_held());
    assert_eq!(now(falsely.lost()), Loss::Interfered);
    assert!(held.is_held(), "the holder lost its node");
    assert!(matches!(now(falsely.release()), Err(Error::Lost(Loss::Interfered))));
    drop(next);
    assert!(now(b.try_write()).is_err());
    now(held.release()).expect("held");
    assert_nothing_left(&zk);
}

#[test]
fn a_forged_hand_off_is_found_by_the_first_check() {
    let (zk, other, a, b) = two();
    let held = write(&a);
    let mut next = writing(&b);
    assert_pending!(next.poll());
    transact(&zk.connect(), &[Operation::Set { path: held.node_path(), data: Vec::new(), version: None }]);
    other.faults().silence();
    for _ in 0..3 {
        other.faults().lose_next_reply();
    }
    let falsely = assert_ready_ok!(next.poll());
    assert!(falsely.is_held(), "an event has arrived too early");
    other.faults().catch_up();
    assert_eq!(now(falsely.lost()), Loss::Interfered);
}

#[test]
fn a_forged_hand_off_is_found_despite_a_lost_check() {
    let (zk, other, a, b) = two();
    let held = write(&a);
    let mut next = writing(&b);
    assert_pending!(next.poll());
    transact(&zk.connect(), &[Operation::Set { path: held.node_path(), data: Vec::new(), version: None }]);
    other.faults().silence();
    let falsely = assert_ready_ok!(next.poll());
    other.faults().cut();
    assert!(falsely.is_held(), "an event has arrived too early");
    other.faults().heal();
    assert_eq!(now(falsely.lost()), Loss::Interfered);
    assert!(held.is_held());
}

#[tokio::test(start_paused = true)]
async fn a_grant_after_a_false_holder_is_lost_as_well() {
    let (zk, other, a, b) = two();
    let third = zk.connect();
    let held = write(&a);
    let (mut next, mut last) = (writing(&b), writing(&open(&third)));
    assert_pending!(next.poll());
    assert_pending!(last.poll());
    transact(&zk.connect(), &[Operation::Set { path: held.node_path(), data: Vec::new(), version: None }]);
    other.faults().silence();
    drop(assert_ready_ok!(next.poll()));
    let falsely = assert_ready_ok!(last.poll());
    assert_eq!(falsely.lost().await, Loss::Interfered);
    assert!(held.is_held());
}

#[tokio::test(start_paused = true)]
async fn a_forged_hand_off_is_found_after_a_downgrade() {
    let (zk, _other, a, b) = two();
    let held = write(&a);
    let mut next = writing(&b);
    assert_pending!(next.poll());
    transact(&zk.connect(), &[Operation::Set { path: held.node_path(), data: Vec::new(), version: None }]);
    let reads = now(held.downgrade()).expect("held");
    let falsely = assert_ready_ok!(next.poll());
    assert_eq!(falsely.lost().await, Loss::Interfered);
    assert!(reads.is_held());
}

#[test]
fn a_false_holder_hands_off_to_nobody() {
    let (zk, _other, a, b) = two();
    let stranger = zk.connect();
    let held = write(&a);
    let (mut next, mut last) = (writing(&b), writing(&b));
    assert_pending!(next.poll());
    assert_pending!(last.poll());
    transact(&stranger, &[Operation::Set { path: held.node_path(), data: Vec::new(), version: None }]);
    let falsely = assert_ready_ok!(next.poll());
    drop(falsely);
    assert_pending!(last.poll());
    assert!(held.is_held());
    drop(held);
    assert!(assert_ready_ok!(last.poll()).is_held());
}

#[test]
fn a_foreign_write_to_a_waiting_node_is_no_hand_off() {
    let (zk, _other, a, b) = two();
    let stranger = zk.connect();
    let held = write(&a);
    let (mut next, mut last) = (writing(&b), writing(&a));
    assert_pending!(next.poll());
    assert_pending!(last.poll());
    let queue = now(b.queue()).expect("readable");
    let waits = format!("{DIRECTORY}/{}", queue.members[1].node);
    transact(&stranger, &[Operation::Set { path: waits, data: Vec::new(), version: None }]);
    if let Poll::Ready(answer) = last.poll() {
        let falsely = answer.expect("granted by the stranger");
        assert_eq!(now(falsely.lost()), Loss::Interfered);
    }
    assert!(held.is_held());
    drop(last);
    assert_pending!(next.poll());
    drop(held);
    drop(assert_ready_ok!(next.poll()));
    drop(next);
    assert_nothing_left(&zk);
}

// The end of the sequence numbers.

#[test]
fn nobody_may_enter_with_the_last_million_numbers() {
    let (zk, _other, a, b) = two();
    // A foreign node in the directory prevents the deletion of the directory.
    transact(&zk, &[Operation::Create { path: format!("{DIRECTORY}/foo"), data: Vec::new(), kind: Kind::Persistent }]);
    zk.faults().set_next_sequence(DIRECTORY, REFUSED_FROM - 1);
    let last = read(&a);
    assert_eq!(contenders(&zk), [(Mode::Read, i64::from(REFUSED_FROM) - 1)]);
    for error in [
        now(b.write().into_future()).expect_err("refused"),
        now(b.read().into_future()).expect_err("refused"),
        now(b.try_read()).expect_err("refused"),
        now(a.read().into_future()).expect_err("refused"),
    ] {
        assert!(matches!(&error, Error::SequenceExhausted { path } if path == DIRECTORY), "{error:?}");
        assert_eq!(zk.children(DIRECTORY).len(), 2);
    }
    assert!(last.is_held());
    now(last.release()).expect("held");
    assert_eq!(zk.children(DIRECTORY), ["foo"]);
    let error = now(b.write().into_future()).expect_err("refused");
    assert!(matches!(error, Error::SequenceExhausted { .. }));
    assert_eq!((zk.children(DIRECTORY).len(), zk.watches()), (1, 0));
}

#[test]
fn the_last_contender_to_leave_restarts_the_sequence() {
    let (zk, _other, a, b) = two();
    zk.faults().set_next_sequence(DIRECTORY, RESTART_FROM - 1);
    let before = write(&a);
    let mut token = before.fencing_token();
    now(before.release()).expect("held");
    assert_eq!(zk.children("/"), ["lock"], "the directory was deleted too early");

    let (one, two) = (read(&a), read(&b));
    assert_eq!(contenders(&zk), [(Mode::Read, 1 << 30), (Mode::Read, (1 << 30) + 1)]);
    assert!(one.fencing_token() > token);
    now(one.release()).expect("held");
    assert!(two.is_held(), "the other contender lost its lock");
    token = two.fencing_token();
    now(two.release()).expect("held");
    assert_eq!(zk.children("/"), Vec::<String>::new());

    let fresh = write(&b);
    assert_eq!(contenders(&zk), [(Mode::Write, 0)]);
    assert!(fresh.fencing_token() > token);
}

#[test]
fn the_restart_survives_lost_answers_and_dropped_guards() {
    for lose in
        [(|zk: &Memory| zk.faults().lose_next_reply()) as fn(&Memory), |zk: &Memory| zk.faults().lose_next_request()]
    {
        let (zk, _other, a, b) = two();
        zk.faults().set_next_sequence(DIRECTORY, RESTART_FROM);
        let held = write(&a);
        let mut next = writing(&b);
        assert_pending!(next.poll());
        lose(&zk);
        drop(held);
        drop(assert_ready_ok!(next.poll()));
        drop(next);
        assert_eq!(zk.children("/"), Vec::<String>::new());
        drop(read(&a));
        assert_eq!(zk.children("/"), ["lock"]);
    }
}

#[test]
fn the_very_last_number_is_not_granted_twice() {
    let (zk, _other, a, b) = two();
    let stranger = zk.connect();
    let create = |name: &str, kind| Operation::Create { path: format!("{DIRECTORY}/{name}"), data: Vec::new(), kind };
    transact(&stranger, &[create("foo", Kind::Persistent)]);
    zk.faults().set_next_sequence(DIRECTORY, i32::MAX);
    for lock in [&a, &b, &a] {
        let error = now(lock.write().into_future()).expect_err("refused");
        assert!(matches!(error, Error::SequenceExhausted { .. }), "{error:?}");
        assert_eq!(zk.children(DIRECTORY), ["foo"]);
    }
    // Another program makes two nodes with the last number. The queue shows them, and no new contender is granted.
    transact(&stranger, &[create("x-WRITE-2147483647", Kind::Ephemeral), create("y-READ-2147483647", Kind::Ephemeral)]);
    let queue = now(b.queue()).expect("readable");
    assert!(queue.members.iter().all(|member| member.state == MemberState::Stuck) && queue.members.len() == 2);
    assert_eq!(queue.holders().count(), 0);
    assert!(now(a.try_read()).is_err_and(|error| error.is_would_block()));
    assert!(matches!(now(a.read().into_future()), Err(Error::SequenceExhausted { .. })));
}

// Lock directories that are reaped or deleted.

#[test]
fn containers_are_reaped_between_uses_only() {
    let (zk, _other, a, b) = two();
    let mut token = 0;
    for _ in 0..3 {
        zk.faults().reap_containers();
        assert_eq!(zk.children("/"), Vec::<String>::new());
        let held = write(&a);
        assert_eq!(contenders(&zk), [(Mode::Write, 0)]);
        assert!(held.fencing_token() > token);
        token = held.fencing_token();
        zk.faults().reap_containers();
        assert!(held.is_held());
        let mut next = reading(&b);
        assert_pending!(next.poll());
        drop(held);
        zk.faults().reap_containers();
        let next = assert_ready_ok!(next.poll());
        assert!(next.is_held());
        now(next.release()).expect("held");
    }
    zk.faults().reap_containers();
    assert!(now(a.try_read()).is_ok());
}

/// The directory is deleted at each poll of the acquisition in turn: before the create, before the listing, and while the
/// contender waits.
#[test]
fn the_directory_may_vanish_at_any_poll() {
    let (mut granted, mut evicted) = (0, 0);
    for polls in 0..POLLS {
        let zk = Memory::new();
        let operator = zk.connect();
        let lock = open(&Slow(zk.clone()));
        let mut acquiring = writing(&lock);
        if matches!(poll_up_to(&mut acquiring, polls), Some(Poll::Ready(_))) {
            break;
        }
        operator.faults().remove(DIRECTORY);
        match poll_up_to(&mut acquiring, 10 * POLLS) {
            Some(Poll::Ready(Ok(guard))) => {
                assert!(guard.is_held());
                assert_eq!(zk.children(DIRECTORY).len(), 1);
                granted += 1;
            }
            Some(Poll::Ready(Err(Error::Evicted(Loss::Removed)))) => evicted += 1,
            other => panic!("at poll {polls}: {other:?}"),
        }
        drop(acquiring);
        assert_eq!((zk.children(DIRECTORY).len(), zk.watches()), (0, 0), "at poll {polls}");
        drop(poll_up_to(&mut writing(&lock), POLLS).expect("the lock is free"));
    }
    assert!(granted > 0 && evicted > 0, "{granted} granted, {evicted} evicted");
}

#[test]
fn the_directory_may_be_deleted_while_it_is_used() {
    let (zk, _other, a, b) = two();
    let held = write(&a);
    let mut next = writing(&b);
    assert_pending!(next.poll());
    zk.faults().remove(DIRECTORY);
    assert!(!held.is_held());
    assert!(matches!(assert_ready_err!(next.poll()), Error::Evicted(Loss::Removed)));
    assert_eq!(now(held.lost()), Loss::Removed);
    assert!(write(&b).is_held());
    assert!(matches!(now(held.release()), Err(Error::Lost(Loss::Removed))));
    drop(next);
    assert_nothing_left(&zk);
}

/// A timer that is polled after the end of its runtime panics. The library must not poll such a timer: even a caught
/// panic prints a backtrace.
#[test]
fn a_test_with_a_disconnected_client_does_not_panic() {
    thread_local!(static PANICS: Cell<usize> = const { Cell::new(0) });
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        PANICS.set(PANICS.get() + 1);
        hook(panic);
    }));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let (zk, guard) = runtime.block_on(async {
        let zk = Memory::new();
        let guard = open(&zk).write().await.expect("free");
        zk.faults().cut();
        tokio::time::sleep(Duration::from_millis(1)).await;
        (zk, guard)
    });
    drop(runtime);
    assert!(guard.is_held());
    assert_eq!((PANICS.get(), zk.children(DIRECTORY).len()), (0, 1));
}

// The number of requests that each step sends.

/// Checks the number of requests that all clients together send in a step.
#[track_caller]
pub(crate) fn costs<T>(zk: &Memory, requests: u64, what: &str, step: impl FnOnce() -> T) -> T {
    let before = zk.requests();
    let output = step();
    assert_eq!(zk.requests() - before, requests, "{what}");
    output
}

/// The reply to the create names the node to delete, so the removal needs no sync and no listing.
#[test]
fn an_acquisition_dropped_before_its_reply_costs_a_delete() {
    let (zk, _other, a, _b) = two();
    drop(write(&a));
    zk.faults().silence();
    let mut early = writing(&a);
    assert_pending!(early.poll());
    costs(&zk, 1, "the delete", || {
        drop(early);
        zk.faults().catch_up();
    });
    assert_nothing_left(&zk);
}

#[test]
fn each_step_sends_only_the_requests_that_it_needs() {
    let zk = Memory::new();
    let other = zk.connect();
    let (a, b) = (open(&zk), open(&other));
    // Each acquisition sends a create, a listing, and a watch on its own node. The first acquisition finds no
    // directory, so it makes the directory and repeats the create and the listing.
    let held = costs(&zk, 6, "create and listing twice, the directory made in between, and the watch", || write(&a));
    costs(&zk, 1, "the delete", || now(held.release()).expect("held"));
    let held = costs(&zk, 3, "an acquisition of a free lock", || write(&a));
    costs(&zk, 0, "nothing: the guard asks the clock", || assert!(held.is_held()));
    costs(&zk, 0, "nothing", || assert_pending!(task::spawn(held.lost()).poll()));
    costs(&zk, 3, "the listing, the check at the leader, and the read of the holder's node", || {
        now(b.try_write()).expect_err("taken")
    });
    costs(&zk, 3, "the listing, the read of the holder's node, and the read of the last record", || {
        now(b.queue()).expect("readable")
    });

    let mut next = writing(&b);
    let mut last = reading(&b);
    costs(&zk, 4, "an acquisition, and the watch on the holder's node", || assert_pending!(next.poll()));
    costs(&zk, 4, "an acquisition, and the watch on its predecessor", || assert_pending!(last.poll()));
    costs(&zk, 0, "nothing, because nothing has happened", || assert_pending!(next.poll()));
    costs(&zk, 1, "one transaction", || now(held.release()).expect("held"));
    assert!(!last.is_woken(), "more than one waiter was woken");
    let held =
        costs(&zk, 1, "no listing, but a check that the holder's node is gone", || assert_ready_ok!(next.poll()));
    let held = costs(&zk, 2, "one transaction, and the watch on the new node", || now(held.downgrade()).expect("held"));
    assert!(last.is_woken());
    let shared = costs(&zk, 1, "the listing", || assert_ready_ok!(last.poll()));
    costs(&zk, 0, "nothing: a share uses the same node", || drop(held.share()));
    let third = costs(&zk, 4, "the listing of a try, and an acquisition", || now(a.try_read()).expect("shared"));
    costs(&zk, 1, "one transaction", || now(held.transaction().commit()).expect("held"));
    costs(&zk, 1, "one read", || now(held.read_node("/config")).expect("held"));
    let inside = format!("{DIRECTORY}/foo");
    costs(&zk, 0, "refused", || now(held.transaction().set(&inside, "").commit()).expect_err("inside"));
    costs(&zk, 0, "refused", || now(a.read().timeout(Duration::ZERO).into_future()).expect_err("zero"));
    costs(&zk, 0, "refused", || now(a.read().label("a\nb").into_future()).expect_err("a control character"));
    let mut waiter = writing(&a);
    costs(&zk, 4, "an acquisition, and the watch on the reader's node", || assert_pending!(waiter.poll()));
    costs(&zk, 1, "the delete", || drop(waiter));
    for guard in [held, shared, third] {
        costs(&zk, 1, "the delete", || drop(guard));
    }
    assert_nothing_left(&zk);
}

#[test]
fn the_changes_of_a_guard_end_with_its_release() {
    let zk = Memory::new();
    let lock = RwLock::new(&zk, "/locks/changes").expect("a valid path");
    let guard = pollster::block_on(lock.write().into_future()).expect("free");
    let mut changes = guard.changes();
    assert_eq!(pollster::block_on(changes.next()), Some(zk_rwlock::HoldState::Held));
    let mut next = tokio_test::task::spawn(changes.next());
    assert!(next.poll().is_pending());
    drop(guard);
    assert!(next.is_woken(), "the stream was not woken when the guard went");
    assert_eq!(next.poll(), std::task::Poll::Ready(None));
}

#[test]
fn the_changes_of_a_guard_are_a_stream() {
    use futures::StreamExt;

    let zk = Memory::new();
    let guard =
        pollster::block_on(RwLock::new(&zk, "/locks/stream").expect("valid").write().into_future()).expect("free");
    let mut states = tokio_test::task::spawn(guard.changes().enumerate());
    assert_eq!(states.poll_next(), std::task::Poll::Ready(Some((0, zk_rwlock::HoldState::Held))));
    assert!(states.poll_next().is_pending());
    zk.faults().remove("/locks/stream");
    assert!(states.is_woken(), "the stream was not woken for the loss");
    let lost = zk_rwlock::HoldState::Lost { why: zk_rwlock::Loss::Removed };
    assert_eq!(states.poll_next(), std::task::Poll::Ready(Some((1, lost))));
    assert_eq!(states.poll_next(), std::task::Poll::Ready(None));
}

/// When a task has used up its tokio budget, tokio's operations return pending. The ensemble's background work runs on the same
/// thread, and must end in spite of this budget.
#[support::judged(flavor = "multi_thread", worker_threads = 1)]
async fn background_work_ends_beside_a_task_that_never_pauses() {
    let zk = Memory::new();
    let lock = RwLock::new(&zk, "/locks/busy").expect("a valid path");
    let guard = lock.write().await.expect("free");
    while tokio::task::coop::has_budget_remaining() {
        let _one_less = tokio_test::task::spawn(tokio::task::consume_budget()).poll();
    }
    drop(guard);
    lock.write().await.expect("free").release().await.expect("held");
    assert_nothing_left(&zk);
}

#[test]
fn a_probe_reports_a_cut_and_its_start() {
    let before = Instant::now();
    let zk = Memory::new();
    assert_eq!(zk.state(), ConnectionState::Connected);
    drop(write(&open(&zk)));
    zk.faults().cut();
    zk.faults().expire();
    let ConnectionState::Connecting { since, why: Some(_) } = zk.state() else { panic!("{}", zk.state()) };
    let late = open(&zk).write().timeout(Duration::from_millis(20)).blocking().unwrap_err().to_string();
    assert!(
        late.starts_with("not done within 20ms: cut off for ") && late.ends_with(": the connection is cut"),
        "{late}"
    );
    assert!(before <= since && since <= Instant::now());
    zk.faults().heal();
    assert!(zk.state().is_connected());
    now(zk.close());
    assert_eq!(zk.state(), ConnectionState::Closed);
}

#[test]
fn a_cut_before_the_first_use_takes_effect() {
    let zk = Memory::new();
    zk.faults().cut();
    let lock = RwLock::new(&zk, DIRECTORY).expect("valid");
    let mut writing = writing(&lock);
    assert_pending!(writing.poll());
    zk.faults().heal();
    drop(assert_ready_ok!(writing.poll()));
}

#[test]
fn an_unused_session_is_closed_and_its_nodes_go() {
    let (zk, other, _a, _b) = two();
    let session = session(&zk);
    now(session.create("/lock/mine", b"", Kind::Ephemeral)).expect("the directory exists");
    assert_eq!(other.children(DIRECTORY).len(), 1);
    drop((zk, _a));
    assert_eq!(other.children(DIRECTORY).len(), 1);
    drop(session);
    assert_eq!(other.children(DIRECTORY).len(), 0);
}

#[test]
fn each_client_has_a_session_of_its_own() {
    let (zk, other, _a, _b) = two();
    let ids = [session(&zk).id(), session(&other).id()];
    assert_eq!([zk.session_id(), other.session_id()], ids.map(Some));
    assert_ne!(ids[0], ids[1]);
}

#[test]
fn the_ensemble_counts_the_watches_of_all_clients() {
    let (zk, other, a, b) = two();
    let guard = write(&a);
    let mut waiters = [writing(&b), writing(&a), writing(&b)];
    for waiter in &mut waiters {
        let before = zk.watches();
        assert_pending!(waiter.poll());
        assert!(zk.watches() > before && zk.watches() == other.watches(), "{before} and then {}", zk.watches());
    }
    drop((waiters, guard));
    assert_nothing_left(&zk);
}

#[test]
fn a_restore_brings_back_exactly_the_saved_state() {
    let (zk, other, _a, _b) = two();
    let make =
        |path: &str, data: &[u8], kind| drop(now(session(&zk).create(path, data, kind)).expect("the node is new"));
    make("/value", b"old", Kind::Persistent);
    make("/lock/mine", b"", Kind::Ephemeral);
    let owner = session(&zk).id();
    let backup = zk.faults().back_up();
    let set = Operation::Set { path: "/value".to_owned(), data: b"new".to_vec(), version: None };
    transact(&other, &[set]);
    now(session(&other).delete("/lock/mine")).expect("the node exists");
    make("/later", b"", Kind::Persistent);
    make("/lock/later", b"", Kind::Ephemeral);

    zk.faults().restore(&backup);
    assert_eq!(now(session(&other).data("/value")).expect("the client has reconnected").0, b"old");
    assert_eq!(now(session(&other).data("/later")).map(drop), Err(Failure::NoNode));
    assert_eq!(zk.children(DIRECTORY), ["mine"]);
    let stat = now(session(&other).data("/lock/mine")).expect("the client has reconnected").1;
    assert_eq!(stat.ephemeral_owner, owner);
    assert_ne!(session(&zk).id(), owner);
}

/// The error of a timeout names the holder with its label, also if the queue changes after the waiter has read the
/// holder's node, so that the waiter lists the queue again.
#[tokio::test(start_paused = true)]
async fn a_timeout_keeps_what_it_has_read_of_a_holder() {
    let memory = Memory::new();
    let [first, second, third] = [0; 3].map(|_| RwLock::new(&memory.connect(), "/lock").expect("valid"));
    let held = first.write().label("rotate keys").await.expect("free");
    let mut leaves = task::spawn(second.write().into_future());
    assert_pending!(leaves.poll());
    let waits = tokio::spawn(third.write().timeout(Duration::from_secs(2)).into_future());
    tokio::time::sleep(Duration::from_millis(1_900)).await;
    drop(leaves);

    let error = waits.await.expect("no panic").map(drop).expect_err("the lock is held").to_string();
    assert!(error.contains("rotate keys") && error.contains("1 ahead"), "{error}");
    drop(held);
}

#[test]
fn a_panic_of_a_task_stops_no_task_of_another_session() {
    let memory = Memory::new();
    let [panics, goes_on] = [0; 2].map(|_| now(memory.connect().session_slot(0)).expect("open"));
    let (send, sent) = tokio::sync::oneshot::channel::<()>();
    let (report, reported) = mpsc::channel();
    goes_on.session().spawn(Box::pin(async move { report.send(sent.await).expect("the test waits") }));
    let (fail, failed) = tokio::sync::oneshot::channel::<()>();
    panics.session().spawn(Box::pin(async move { _ = failed.await.expect_err("a panic of a task") }));

    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| fail.send(())));
    assert!(panicked.is_err() && panics.session().lease().ending().is_some());
    send.send(()).expect("the task waits");
    assert_eq!(reported.try_recv(), Ok(Ok(())));
}
