//! The lock on a real server, under the actions of its users, of operators and of the network.

use std::collections::BTreeMap;
use std::future::{Future, IntoFuture, poll_fn};
use std::net::TcpListener;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use support::candidate::{Candidate, TermEvent};
use support::port::Port;
use support::safe;
use support::scene::*;
use support::server::{Server, shared_server};
use support::wire::{Op, Proxy};
use tokio::runtime::Runtime;
use tokio::task::{JoinHandle, JoinSet};
use tokio_test::task::{self, Spawn};
use zk_rwlock::coordinator::{Failure, Kind};
use zk_rwlock::error::SessionEnd;
use zk_rwlock::queue::MemberState;
use zk_rwlock::security::{Acl, Permissions};
use zk_rwlock::{Error, HoldState, Leadership, Loss, Mode, RwLock, Semaphore, Shared, Survey, WriteGuard, ZooKeeper};

/// The session timeout in tests that wait for a session to expire, or that show that heartbeats keep a session alive for longer.
const SHORT: Duration = Duration::from_secs(2);

// ----------------------------------------------------------------------------------------------------------- Exclusion

/// Two halves that are equal except while a writer works. Only the lock protects them.
#[derive(Debug, Default)]
struct Halves {
    left: AtomicU64,
    right: AtomicU64,
}

impl Halves {
    async fn read(&self) -> (u64, u64) {
        let left = self.left.load(Ordering::Relaxed);
        tokio::task::yield_now().await;
        (left, self.right.load(Ordering::Relaxed))
    }

    async fn increment(&self) {
        let (left, right) = self.read().await;
        self.left.store(left + 1, Ordering::Relaxed);
        tokio::task::yield_now().await;
        self.right.store(right + 1, Ordering::Relaxed);
    }
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_tasks_in_ten_sessions_lose_no_update() {
    const TASKS: u64 = 50;
    const ROUNDS: u64 = 20;
    let server = shared_server();
    let mut sessions = Vec::new();
    for _ in 0..10 {
        sessions.push(connect(&server.address()).await);
    }
    let value = Arc::new(Halves::default());
    let tokens = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let lock = lock_at(&sessions[task as usize % 10], "/locks/halves");
        let (value, tokens) = (Arc::clone(&value), Arc::clone(&tokens));
        tasks.spawn(async move {
            let mut writes = 0;
            for round in 0..ROUNDS {
                if (task + round) % 3 == 0 {
                    let guard = lock.write().await.unwrap();
                    value.increment().await;
                    tokens.lock().unwrap().push(guard.fencing_token());
                    writes += 1;
                    match round % 4 {
                        0 => drop(guard),
                        1 => {
                            let reader = guard.downgrade().await.unwrap();
                            let (left, right) = value.read().await;
                            safe!(left == right, "a write came while a reader held: {left}, {right}");
                            reader.release().await.unwrap();
                        }
                        _ => guard.release().await.unwrap(),
                    }
                } else {
                    let guard = lock.read().await.unwrap();
                    let (left, right) = value.read().await;
                    safe!(left == right, "a write was seen half done: {left}, {right}");
                    if round % 2 == 0 { drop(guard) } else { guard.release().await.unwrap() }
                }
            }
            writes
        });
    }
    let writes: u64 = within(SOON * 2, "all tasks", tasks.join_all()).await.into_iter().sum();

    let (left, right) = (value.left.load(Ordering::Relaxed), value.right.load(Ordering::Relaxed));
    safe!((left, right) == (writes, writes), "of {writes} writes there are {left} and {right}");
    let tokens = std::mem::take(&mut *tokens.lock().unwrap());
    assert_eq!(tokens.len() as u64, writes);
    safe!(tokens.is_sorted_by(|earlier, later| earlier < later), "{tokens:?}");
    becomes_empty(&sessions[0], "/locks/halves").await;
}

// --------------------------------------------------------------------------------------------------------------- Order

#[support::judged]
async fn a_reader_never_overtakes_an_earlier_writer() {
    let server = shared_server();
    let (one, two) = (connect(&server.address()).await, connect(&server.address()).await);
    let (here, there) = (lock_at(&one, "/locks/overtake"), lock_at(&two, "/locks/overtake"));
    let first = here.read().await.unwrap();
    let second = writer(&there);
    line_becomes(&here, "R+ W-").await;
    let third = reader(&here);
    line_becomes(&here, "R+ W- R-").await;

    assert!(here.try_read().await.unwrap_err().is_would_block());
    assert!(!second.is_finished() && !third.is_finished());
    first.release().await.unwrap();
    let second = granted(second).await;
    assert_eq!(line(&here).await, "W+ R-");
    assert!(!third.is_finished());
    second.release().await.unwrap();
    granted(third).await.release().await.unwrap();
}

#[support::judged]
async fn readers_between_two_writers_hold_together() {
    let server = shared_server();
    let (one, two) = (connect(&server.address()).await, connect(&server.address()).await);
    let (here, there) = (lock_at(&one, "/locks/between"), lock_at(&two, "/locks/between"));
    let first = here.write().await.unwrap();
    let mut readers = Vec::new();
    for i in 0..3 {
        readers.push(reader(if i % 2 == 0 { &here } else { &there }));
        line_becomes(&here, &format!("W+{}", " R-".repeat(i + 1))).await;
    }
    let last = writer(&there);
    line_becomes(&here, "W+ R- R- R- W-").await;

    first.release().await.unwrap();
    let mut together = Vec::new();
    for task in readers {
        together.push(granted(task).await);
    }
    assert!(together.iter().all(|guard| guard.is_held()));
    assert_eq!(line(&here).await, "R+ R+ R+ W-");
    while let Some(guard) = together.pop() {
        assert!(!last.is_finished());
        guard.release().await.unwrap();
    }
    granted(last).await.release().await.unwrap();
}

#[support::judged]
async fn two_writers_behind_a_reader_hold_in_turn() {
    let server = shared_server();
    let (one, two) = (connect(&server.address()).await, connect(&server.address()).await);
    let (here, there) = (lock_at(&one, "/locks/two-writers"), lock_at(&two, "/locks/two-writers"));
    let first = here.read().await.unwrap();
    let second = writer(&there);
    line_becomes(&here, "R+ W-").await;
    let third = writer(&here);
    line_becomes(&here, "R+ W- W-").await;

    first.release().await.unwrap();
    let second = granted(second).await;
    assert_eq!(line(&here).await, "W+ W-");
    assert!(!third.is_finished());
    let token = second.fencing_token();
    second.release().await.unwrap();
    let third = granted(third).await;
    assert!(token < third.fencing_token());
    third.release().await.unwrap();
}

#[support::judged]
async fn a_downgrade_lets_in_readers_and_no_writer() {
    let server = shared_server();
    let (one, two) = (connect(&server.address()).await, connect(&server.address()).await);
    let (here, there) = (lock_at(&one, "/locks/downgrade"), lock_at(&two, "/locks/downgrade"));
    let first = here.write().await.unwrap();
    let second = reader(&there);
    line_becomes(&here, "W+ R-").await;
    let third = writer(&there);
    line_becomes(&here, "W+ R- W-").await;
    let fourth = reader(&here);
    line_becomes(&here, "W+ R- W- R-").await;

    let token = first.fencing_token();
    let first = first.downgrade().await.unwrap();
    let second = granted(second).await;
    assert_eq!(line(&here).await, "R+ R+ W- R-");
    assert_eq!(first.fencing_token(), token);
    assert!(second.fencing_token() > token);
    second.release().await.unwrap();
    assert!(!third.is_finished() && !fourth.is_finished());
    first.release().await.unwrap();
    let third = granted(third).await;
    assert_eq!(line(&here).await, "W+ R-");
    assert!(!fourth.is_finished());
    third.release().await.unwrap();
    granted(fourth).await.release().await.unwrap();
}

#[support::judged]
async fn a_writer_that_gives_up_lets_nobody_in_early() {
    let server = shared_server();
    let zk = connect(&server.address()).await;
    let lock = lock_at(&zk, "/locks/gives-up");
    let first = lock.read().await.unwrap();
    let second = writer(&lock);
    line_becomes(&lock, "R+ W-").await;
    let third = writer(&lock);
    line_becomes(&lock, "R+ W- W-").await;
    let fourth = reader(&lock);
    line_becomes(&lock, "R+ W- W- R-").await;

    second.abort();
    line_becomes(&lock, "R+ W- R-").await;
    third.abort();
    let fourth = granted(fourth).await;
    assert_eq!(line(&lock).await, "R+ R+");
    drop((first, fourth));
    becomes_empty(&zk, "/locks/gives-up").await;
}

// ----------------------------------------------------------------------------------------------------------- Operators

#[support::judged]
async fn a_holder_learns_of_its_deleted_node() {
    let server = shared_server();
    let zk = connect(&server.address()).await;
    let operator = connect(&server.address()).await;
    let lock = lock_at(&zk, "/locks/operator-holder");
    let guard = lock.write().await.unwrap();

    let bare = session(&operator).await;
    bare.delete(&guard.node_path()).await.unwrap();

    assert_eq!(soon("lost()", guard.lost()).await, Loss::Removed);
    assert!(!guard.is_held());
    assert_eq!(guard.state(), HoldState::Lost { why: Loss::Removed });
    let write = guard.transaction().create("/after-the-loss", "").commit().await;
    assert!(matches!(write, Err(Error::Lost(Loss::Removed))), "{write:?}");
    assert!(matches!(bare.data("/after-the-loss").await, Err(Failure::NoNode)));
    let release = guard.release().await;
    assert!(matches!(release, Err(Error::Lost(Loss::Removed))), "{release:?}");
    lock.write().await.unwrap().release().await.unwrap();
}

#[support::judged]
async fn a_transaction_without_its_node_is_refused() {
    let server = shared_server();
    let (zk, operator) = (connect(&server.address()).await, connect(&server.address()).await);
    let guard = lock_at(&zk, "/locks/guarded").write().await.unwrap();
    guard.transaction().create("/guarded", "1").commit().await.unwrap();

    session(&operator).await.delete(&guard.node_path()).await.unwrap();
    // The server refuses the transaction, even if the guard has not noticed the loss yet.
    let late = guard.transaction().set("/guarded", "2").commit().await;

    assert!(matches!(late, Err(Error::Lost(Loss::Removed))), "{late:?}");
    assert!(!guard.is_held());
    assert_eq!(session(&operator).await.data("/guarded").await.unwrap().0, b"1");
}

#[support::judged]
async fn a_waiter_whose_node_is_deleted_is_evicted() {
    let server = shared_server();
    let (one, two) = (connect(&server.address()).await, connect(&server.address()).await);
    let operator = connect(&server.address()).await;
    let (here, there) = (lock_at(&one, "/locks/operator-waiter"), lock_at(&two, "/locks/operator-waiter"));
    let holder = here.write().await.unwrap();
    let evicted = writer(&there);
    line_becomes(&here, "W+ W-").await;
    let next = writer(&there);
    line_becomes(&here, "W+ W- W-").await;
    let last = writer(&here);
    line_becomes(&here, "W+ W- W- W-").await;

    let node = here.queue().await.unwrap().members[1].node.clone();
    session(&operator).await.delete(&format!("/locks/operator-waiter/{node}")).await.unwrap();

    let error = refused(evicted).await;
    assert!(matches!(error, Error::Evicted(Loss::Removed)), "{error:?}");
    assert!(holder.is_held() && !next.is_finished());
    holder.release().await.unwrap();
    let next = granted(next).await;
    assert_eq!(line(&here).await, "W+ W-");
    assert!(!last.is_finished());
    next.release().await.unwrap();
    granted(last).await.release().await.unwrap();
}

// -------------------------------------------------------------------------------------------------------- Cancellation

/// Polls the future up to this many times: once immediately, and again after each wake-up. Then drops the future.
async fn poll_at_most<F: IntoFuture>(times: u64, future: F) -> Option<F::Output> {
    let mut future = pin!(future.into_future());
    let mut left = times;
    poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match future.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            // No poll is left, so the function returns without waiting for another wake-up.
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

async fn nothing_is_left(server: &Server, zk: &ZooKeeper, directory: &str) {
    becomes_empty(zk, directory).await;
    let deadline = Instant::now() + SOON;
    while server.watches() > 0 {
        assert!(Instant::now() < deadline, "watches are left:\n{}", server.four_letter("wchp"));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Returns the number of watches on the server, including those on children, which `wchp` and `wchs` leave out.
fn all_watches(server: &Server) -> u64 {
    let report = server.four_letter("mntr");
    let count = report.lines().find_map(|line| line.strip_prefix("zk_watch_count"));
    count.and_then(|count| count.trim().parse().ok()).expect("the server counts its watches")
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_wait_for_contention_leaves_no_watch() {
    const DIRECTORY: &str = "/locks/contended";
    let server = Server::start();
    let zk = connect(&server.address()).await;
    let guard = lock_at(&zk, DIRECTORY).write().await.unwrap();
    for times in 1..3 {
        assert!(poll_at_most(times, guard.contended()).await.is_none());
    }
    tokio::select! {
        contended = guard.contended() => panic!("no other contender is there: {contended:?}"),
        () = eventually("the node and the directory are watched", || async { all_watches(&server) == 2 }) => {}
    }
    eventually("the directory is not watched any more", || async { all_watches(&server) == 1 }).await;
    guard.release().await.unwrap();
    eventually("nothing is watched", || async { all_watches(&server) == 0 }).await;
    nothing_is_left(&server, &zk, DIRECTORY).await;
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_cancelled_acquisitions_leave_nothing() {
    const DIRECTORY: &str = "/locks/cancelled";
    let server = Server::start();
    let mut sessions = Vec::new();
    for _ in 0..4 {
        sessions.push(connect(&server.address()).await);
    }
    let operator = connect(&server.address()).await;
    let in_the_way = lock_at(&operator, DIRECTORY);
    let mut seeded = Seeded(7);
    let (mut cancelled, mut completed) = (0, 0);
    for batch in 0..20 {
        // From batch to batch, the lock is free, held by a writer, or held by a reader.
        let (writer, reader) = match batch % 3 {
            0 => (None, None),
            1 => (Some(soon("the lock", in_the_way.write()).await.unwrap()), None),
            _ => (None, Some(soon("the lock", in_the_way.read()).await.unwrap())),
        };
        let mut tasks = JoinSet::new();
        for zk in &sessions {
            let lock = lock_at(zk, DIRECTORY);
            let plan: Vec<_> = (0..13)
                .map(|i| (seeded.below(2), 1 + seeded.below(9), seeded.below(if i % 4 == 0 { 6_000 } else { 1_500 })))
                .collect();
            tasks.spawn(async move {
                let mut completed = 0;
                for (write, polls, micros) in plan {
                    let time = Duration::from_micros(micros);
                    let done = if write == 1 {
                        tokio::time::timeout(time, poll_at_most(polls, lock.write())).await.ok().flatten().is_some()
                    } else {
                        tokio::time::timeout(time, poll_at_most(polls, lock.read())).await.ok().flatten().is_some()
                    };
                    completed += u64::from(done);
                }
                completed
            });
        }
        let done: u64 = soon("a batch", tasks.join_all()).await.into_iter().sum();
        completed += done;
        cancelled += 52 - done;
        drop((writer, reader));
    }
    assert_eq!(cancelled + completed, 1_040);
    assert!(cancelled >= 500, "only {cancelled} were cancelled");
    nothing_is_left(&server, &operator, DIRECTORY).await;
    soon("the lock", in_the_way.write()).await.unwrap().release().await.unwrap();
}

#[support::judged]
async fn an_acquisition_dropped_at_a_poll_leaves_nothing() {
    const DIRECTORY: &str = "/locks/each-poll";
    let server = Server::start();
    let (zk, other) = (connect(&server.address()).await, connect(&server.address()).await);
    let (lock, in_the_way) = (lock_at(&zk, DIRECTORY), lock_at(&other, DIRECTORY));
    for taken in [false, true] {
        let holder = if taken { Some(soon("the lock", in_the_way.write()).await.unwrap()) } else { None };
        for polls in 1..12 {
            // While an acquisition waits for the holder, nothing wakes it. So a timeout ends the wait of [`poll_at_most`] for
            // more polls.
            let time = Duration::from_millis(20);
            let write = tokio::time::timeout(time, poll_at_most(polls, lock.write())).await;
            let read = tokio::time::timeout(time, poll_at_most(polls, lock.read())).await;
            if taken {
                assert!(!matches!(write, Ok(Some(_))) && !matches!(read, Ok(Some(_))));
            }
        }
        drop(holder);
        nothing_is_left(&server, &other, DIRECTORY).await;
    }
}

#[support::judged]
async fn keepers_and_askers_dropped_leave_nothing() {
    const DIRECTORY: &str = "/locks/each-poll-of-keepers";
    let server = Server::start();
    let (zk, other) = (connect(&server.address()).await, connect(&server.address()).await);
    let lock = RwLock::builder(&zk, DIRECTORY).keep(Duration::from_secs(600)).build().expect("valid");
    let asker = lock_at(&other, DIRECTORY);
    for polls in 1..12 {
        for taken in [false, true] {
            let holder = if taken { Some(soon("the lock", asker.write()).await.unwrap()) } else { None };
            let time = Duration::from_millis(20);
            let (one, two) = tokio::join!(
                tokio::time::timeout(time, poll_at_most(polls, lock.write())),
                tokio::time::timeout(time, poll_at_most(polls, lock.read())),
            );
            assert!(!taken || (!matches!(one, Ok(Some(_))) && !matches!(two, Ok(Some(_)))));
            drop((one, two, holder));
            // The library keeps a node from the second use on.
            for _ in 0..2 {
                drop(soon("the kept lock", lock.read()).await.unwrap());
            }
            drop(tokio::time::timeout(time, poll_at_most(polls, asker.write())).await);
            drop(soon("the lock after one that asked", asker.read()).await.unwrap());
        }
    }
    drop(lock);
    nothing_is_left(&server, &other, DIRECTORY).await;
}

/// Starts four futures: each is polled once, sends its requests, and is not polled again.
fn idle<F: IntoFuture>(begin: impl Fn() -> F) -> Vec<Spawn<F::IntoFuture>> {
    let mut idle: Vec<_> = (0..4).map(|_| task::spawn(begin().into_future())).collect();
    idle.iter_mut().for_each(|it| assert!(it.poll().is_pending()));
    idle
}

#[support::judged]
async fn unpolled_futures_block_nobody_of_their_session() {
    let address = shared_server().address();
    let (zk, other) = (connect(&address).await, connect(&address).await);
    let lock = lock_at(&zk, "/integration/idle");
    let holder = lock_at(&other, "/integration/idle").read().await.unwrap();
    let readers = idle(|| lock.read());
    let reader = soon("a read beside reads", lock.read()).await.unwrap();
    soon("a try", lock.try_read()).await.unwrap().release().await.unwrap();
    reader.release().await.unwrap();
    drop(readers);

    let mut head = task::spawn(lock.write().into_future());
    assert!(head.poll().is_pending());
    let _behind = idle(|| lock.write());
    holder.release().await.unwrap();
    drop(soon("the head of the queue", head).await.unwrap());
}

#[support::judged]
async fn a_leaving_waiter_spares_its_neighbours_watch() {
    let server = shared_server();
    let (zk, operator) = (connect(&server.address()).await, connect(&server.address()).await);
    let lock = lock_at(&zk, "/locks/neighbour");
    let holder = lock.write().await.unwrap();
    let middle = writer(&lock);
    line_becomes(&lock, "W+ W-").await;
    let last = writer(&lock);
    line_becomes(&lock, "W+ W- W-").await;
    let node = format!("/locks/neighbour/{}", lock.queue().await.unwrap().members[1].node);
    // The middle waiter and its successor both watch the waiter's node. They are of one session, so the server counts one watch.
    eventually("the waiter's own watch", || async { watchers_of(server, &node) == 1 }).await;

    last.abort();
    line_becomes(&lock, "W+ W-").await;
    session(&operator).await.delete(&node).await.unwrap();

    let error = refused(middle).await;
    assert!(matches!(error, Error::Evicted(Loss::Removed)), "{error:?}");
    holder.release().await.unwrap();
}

fn watchers_of(server: &Server, node: &str) -> usize {
    let answer = server.four_letter("wchp");
    answer.lines().skip_while(|line| *line != node).skip(1).take_while(|line| line.starts_with('\t')).count()
}

// -------------------------------------------------------------------------------------------------------------- Guards

#[support::judged]
fn a_guard_may_be_dropped_without_a_runtime() {
    let server = shared_server();
    let runtime = Runtime::new().unwrap();
    let zk = runtime.block_on(connect(&server.address()));
    let lock = lock_at(&zk, "/locks/no-runtime");
    let writer = runtime.block_on(lock.write().into_future()).unwrap();

    thread::spawn(move || drop(writer)).join().unwrap();

    let reader = lock.read().timeout(SOON).blocking().unwrap();
    drop(reader);
    drop(lock.write().timeout(SOON).blocking().unwrap());
}

#[support::judged]
fn a_panic_gives_the_lock_back() {
    let server = shared_server();
    let runtime = Runtime::new().unwrap();
    let zk = runtime.block_on(connect(&server.address()));
    let lock = lock_at(&zk, "/locks/panic");
    let guard = lock.write().blocking().unwrap();
    let panicked = catch_unwind(AssertUnwindSafe(move || {
        let _guard = guard;
        std::panic::resume_unwind(Box::new("a panic without output"));
    }));
    assert!(panicked.is_err());
    drop(lock.write().timeout(SOON).blocking().unwrap());
}

#[support::judged]
fn a_guard_outlives_the_runtime_it_was_acquired_on() {
    let server = shared_server();
    let runtime = Runtime::new().unwrap();
    let zk = runtime.block_on(connect(&server.address()));
    let lock = lock_at(&zk, "/locks/shutdown");
    let guard = runtime.block_on(lock.write().into_future()).unwrap();
    runtime.shutdown_timeout(SOON);

    assert!(guard.is_held());
    drop(guard);
    drop(lock.write().timeout(SOON).blocking().unwrap());
}

#[support::judged]
fn a_runtime_that_shuts_down_frees_its_locks() {
    let server = shared_server();
    let runtime = Runtime::new().unwrap();
    let zk = runtime.block_on(connect(&server.address()));
    let lock = lock_at(&zk, "/locks/tasks");
    let (is_held, held) = std::sync::mpsc::channel();
    runtime.spawn({
        let lock = lock.clone();
        async move {
            let _guard = lock.write().await.unwrap();
            is_held.send(()).unwrap();
            std::future::pending::<()>().await;
        }
    });
    held.recv_timeout(SOON).unwrap();
    runtime.spawn(lock.read().into_future());
    runtime.shutdown_timeout(SOON);

    drop(lock.write().timeout(SOON).blocking().unwrap());
}

#[support::judged]
async fn the_last_drop_of_guard_or_handle_frees_the_lock() {
    let server = shared_server();
    let other = connect(&server.address()).await;
    let next = lock_at(&other, "/locks/last-handle");
    for guard_first in [true, false] {
        let zk = connect(&server.address()).await;
        let lock = lock_at(&zk, "/locks/last-handle");
        let id = session(&zk).await.id();
        let guard = lock.write().await.unwrap();
        if guard_first {
            drop(guard);
            drop((lock, zk));
        } else {
            drop((lock, zk));
            assert!(guard.is_held());
            drop(guard);
        }
        // The limit is far below the session timeout, so the grant does not come from the end of a session.
        within(CALM / 3, "the grant", next.write()).await.unwrap().release().await.unwrap();
        let named = format!("0x{id:x}");
        eventually("the session is closed", || async { !server.four_letter("cons").contains(&named) }).await;
    }
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn closing_ends_the_guards_before_the_next_grant() {
    let server = shared_server();
    let other = connect(&server.address()).await;
    let next = lock_at(&other, "/locks/closing");
    for _ in 0..10 {
        let zk = connect(&server.address()).await;
        let lock = lock_at(&zk, "/locks/closing");
        let guard = lock.write().await.unwrap();
        let waiter = writer(&lock);
        line_becomes(&lock, "W+ W-").await;
        let next = timed_writer(&next);
        line_becomes(&lock, "W+ W- W-").await;

        let watching = watch_closely(guard);
        soon("close", zk.close()).await;
        let (next, granted_at) = granted(next).await;
        let (guard, last_yes) = watching.join().unwrap();

        let late = last_yes.and_then(|last_yes| last_yes.checked_duration_since(granted_at));
        assert_eq!(late, None, "held after the next grant");
        assert_eq!(soon("lost()", guard.lost()).await, Loss::SessionOver(SessionEnd::Closed));
        let error = refused(waiter).await;
        assert!(matches!(error, Error::Closed(SessionEnd::Closed)), "{error:?}");
        let error = lock.write().await.unwrap_err();
        assert!(matches!(error, Error::Closed(SessionEnd::Closed)), "{error:?}");
        drop(guard);
        assert!(next.is_held());
        next.release().await.unwrap();
    }
}

// ----------------------------------------------------------------------------------------------- Timeouts and refusals

#[support::judged]
async fn a_timeout_names_the_holder() {
    let server = shared_server();
    let (one, two) = (connect(&server.address()).await, connect(&server.address()).await);
    let before = SystemTime::now();
    let here = RwLock::builder(&one, "/locks/timeout").host("web-1").label("nightly").build().unwrap();
    let there = lock_at(&two, "/locks/timeout");
    let _holder = here.write().label("migrate v42").await.unwrap();
    let _waiter = writer(&here);
    line_becomes(&here, "W+ W-").await;

    // On a busy machine, the acquisition may time out before the members' data is read.
    let error = with_time_enough(Duration::from_millis(500), async |limit| {
        let started = Instant::now();
        let error = there.write().timeout(limit).await.unwrap_err();
        let Error::Timeout { waited, blockers, .. } = &error else { panic!("{error}") };
        assert!(*waited == limit && started.elapsed() >= limit, "{error}");
        let is_whole = blockers.ahead == 2 && blockers.first.iter().all(|blocker| blocker.pid.is_some());
        if is_whole { Ok(error) } else { Err(error) }
    })
    .await;
    let text = error.to_string();
    let Error::Timeout { blockers, .. } = error else { panic!("{text}") };
    assert_eq!(blockers.first.len(), 2);
    let (holder, waiter) = (&blockers.first[0], &blockers.first[1]);
    assert_eq!((holder.mode, &holder.state), (Mode::Write, &MemberState::Holds));
    assert_eq!((holder.host.as_str(), holder.label.as_deref()), ("web-1", Some("migrate v42")));
    assert_eq!((holder.pid, holder.session), (Some(std::process::id()), Some(session(&one).await.id())));
    let (earliest, latest) = (before - Duration::from_secs(1), SystemTime::now() + Duration::from_secs(1));
    assert!(holder.since.is_some_and(|since| (earliest..latest).contains(&since)), "{holder:?}");
    assert_eq!(waiter.state, MemberState::Waits { behind: holder.node.clone() });
    assert_eq!(waiter.label.as_deref(), Some("nightly"));
    assert!(text.contains("web-1") && text.contains("migrate v42") && text.contains("2 ahead"), "{text}");
    line_becomes(&here, "W+ W-").await;
}

#[support::judged]
async fn a_timeout_while_cut_off_names_known_blockers() {
    let server = shared_server();
    let proxy = Proxy::start(server.address());
    let (zk, other) = (connect(&proxy.address()).await, connect(&server.address()).await);
    let cut_off = lock_at(&zk, "/locks/silence");
    let here = RwLock::builder(&other, "/locks/silence").host("web-1").build().unwrap();
    let holder = here.write().await.unwrap();
    let limit = Duration::from_millis(700);

    // The connection breaks while the waiter waits, and before the newcomer starts.
    let waiter = tokio::spawn(cut_off.write().timeout(limit).into_future());
    // Once the waiter watches its predecessor and its own node, it knows which contenders block it.
    eventually("the waiter's watches", || async { proxy.count(Op::GetData) == 2 }).await;
    proxy.black_hole();
    let newcomer = tokio::spawn(cut_off.read().timeout(limit).into_future());
    let outcomes = (refused(waiter).await, refused(newcomer).await);

    // The waiter still names the contenders that it saw before the cut.
    let (Error::Timeout { blockers: known, .. }, Error::Timeout { blockers: unknown, .. }) = outcomes else {
        panic!("{outcomes:?}");
    };
    assert_eq!((known.ahead, unknown.ahead), (1, 0));
    let named = &known.first[0];
    assert_eq!((named.mode, named.host.as_str(), &named.state), (Mode::Write, "web-1", &MemberState::Holds));
    proxy.cut();
    assert!(soon("the timeout", cut_off.read().timeout(limit)).await.unwrap_err().is_timeout());

    // After the reconnect, the client deletes the nodes of the waiter and the newcomer.
    proxy.heal();
    line_becomes(&here, "W+").await;
    holder.release().await.unwrap();
    becomes_empty(&other, "/locks/silence").await;
}

#[support::judged]
async fn a_missing_server_is_unreachable_in_time() {
    let closed = Port::reserve();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    for address in [closed.address(), silent.local_addr().unwrap()] {
        let limit = Duration::from_millis(500);
        let builder = ZooKeeper::builder().session_timeout(CALM).connect_timeout(limit);
        let error = soon("the refusal", builder.connect(&address.to_string())).await.unwrap_err();
        assert!(matches!(&error, Error::Unreachable(why) if why.contains(" within 500ms: ")), "{error:?}");
    }
}

#[support::judged]
async fn a_vanished_server_is_unreachable_in_time() {
    let server = shared_server();
    let proxy = Proxy::start(server.address());
    let limit = Duration::from_millis(500);
    let builder = ZooKeeper::builder().session_timeout(Duration::from_millis(600)).connect_timeout(limit);
    let zk = builder.connect(&proxy.address()).await.unwrap();
    let lock = lock_at(&zk, "/locks/went-away");
    let over = session(&zk).await;
    proxy.cut();
    soon("the end of the session", over.store().until_over()).await;

    let error = soon("the refusal", lock.write()).await.unwrap_err();
    assert!(matches!(&error, Error::Unreachable(why) if why.contains(" within 500ms: ")), "{error:?}");
    proxy.heal();
    drop(soon("the lock", lock.write()).await.unwrap());
}

#[support::judged]
async fn a_stranger_cannot_enter_a_users_lock() {
    let server = shared_server();
    let owner = ZooKeeper::builder().session_timeout(CALM).digest("owner", "secret");
    let owner = owner.connect(&server.address()).await.unwrap();
    let stranger = connect(&server.address()).await;
    let (mine, theirs) = (lock_at(&owner, "/private-1/lock"), lock_at(&stranger, "/private-1/lock"));
    let guard = mine.write().await.unwrap();
    let before = children(&owner, "/private-1/lock").await;

    for error in [
        theirs.write().await.unwrap_err(),
        theirs.read().await.unwrap_err(),
        theirs.try_write().await.unwrap_err(),
        theirs.queue().await.unwrap_err(),
        lock_at(&stranger, "/private-1/another").write().await.unwrap_err(),
    ] {
        assert!(matches!(error, Error::PermissionDenied { .. }), "{error:?}");
    }
    assert!(matches!(session(&stranger).await.delete(&guard.node_path()).await, Err(Failure::NoAuth(_))));
    assert!(guard.is_held());
    assert_eq!(children(&owner, "/private-1/lock").await, before);
    assert_eq!(children(&owner, "/private-1").await, ["lock"]);
    let colleague = ZooKeeper::builder().session_timeout(CALM).digest("owner", "secret");
    let colleague = colleague.connect(&server.address()).await.unwrap();
    let waiter = writer(&lock_at(&colleague, "/private-1/lock"));
    line_becomes(&mine, "W+ W-").await;
    guard.release().await.unwrap();
    drop(granted(waiter).await);
}

#[support::judged]
async fn a_contender_that_may_only_read_sees_the_queue() {
    let server = shared_server();
    let acl = Acl::creator().allow("world", "anyone", Permissions::READ);
    let owner = ZooKeeper::builder().session_timeout(CALM).digest("owner", "secret").acl(acl);
    let owner = owner.connect(&server.address()).await.unwrap();
    let visitor = connect(&server.address()).await;
    let (mine, theirs) = (lock_at(&owner, "/private-2/lock"), lock_at(&visitor, "/private-2/lock"));
    let guard = mine.write().label("in the window").await.unwrap();

    let error = theirs.write().await.unwrap_err();
    assert!(matches!(&error, Error::PermissionDenied { path, .. } if path == "/private-2/lock"), "{error:?}");
    assert!(theirs.try_read().await.unwrap_err().is_would_block());
    let queue = theirs.queue().await.unwrap();
    assert_eq!(queue.holders().next().unwrap().label.as_deref(), Some("in the window"));
    guard.release().await.unwrap();
    let error = theirs.try_read().await.unwrap_err();
    assert!(matches!(error, Error::PermissionDenied { .. }), "{error:?}");
    assert!(children(&owner, "/private-2/lock").await.is_empty());
}

#[support::judged]
async fn unreadable_members_are_shown_and_counted() {
    let (visitor, server) = (connect(&shared_server().address()).await, shared_server());
    let owner = ZooKeeper::builder().session_timeout(CALM).digest("owner", "secret").acl(Acl::creator());
    let owner = owner.connect(&server.address()).await.unwrap();
    let limit = |zk: &ZooKeeper| Semaphore::new(zk, "/half-closed/limit", 2).expect("valid");
    limit(&visitor).acquire().await.unwrap().release().await.unwrap();
    session(&owner).await.create("/half-closed/closed", b"", Kind::Persistent).await.unwrap();

    let permit = limit(&owner).acquire().await.unwrap();
    let queue = limit(&visitor).queue().await.unwrap();
    assert_eq!((queue.members.len(), queue.free()), (1, Some(1)), "{queue}");
    assert_eq!((queue.members[0].token, queue.members[0].pid), (None, None));
    let survey = Survey::below(&visitor, "/half-closed").await.unwrap();
    assert_eq!(survey.unreadable, ["/half-closed/closed"]);
    assert_eq!(survey.queues.iter().map(|queue| queue.free()).collect::<Vec<_>>(), [Some(1)]);
    permit.release().await.unwrap();
}

#[support::judged]
async fn a_directory_below_an_ephemeral_node_is_refused() {
    let server = shared_server();
    let zk = connect(&server.address()).await;
    session(&zk).await.create("/passing", b"", Kind::Ephemeral).await.unwrap();
    for path in ["/passing", "/passing/lock"] {
        let error = lock_at(&zk, path).write().await.unwrap_err();
        assert!(matches!(error, Error::EphemeralParent { .. }), "{path}: {error:?}");
    }
}

/// Deletes a node and all nodes below it, as `deleteall` does.
async fn delete_all(operator: &ZooKeeper, path: &str) {
    let mut paths = vec![path.to_owned()];
    for at in 0.. {
        let Some(path) = paths.get(at).cloned() else { break };
        paths.extend(children(operator, &path).await.into_iter().map(|child| format!("{path}/{child}")));
    }
    for path in paths.iter().rev() {
        let deleted = session(operator).await.delete(path).await;
        assert!(matches!(deleted, Ok(()) | Err(Failure::NoNode)), "{path}: {deleted:?}");
    }
}

/// An operator, or the reaper of containers, deletes the path at the end of the connect string while the client is connected.
#[support::judged]
async fn a_deleted_chroot_is_made_again() {
    let address = shared_server().address();
    let (zk, operator) = (connect(&format!("{address}/vanishing/apps")).await, connect(&address).await);
    let vanishes = async || {
        delete_all(&operator, "/vanishing").await;
        assert_eq!(session(&operator).await.children("/vanishing").await, Err(Failure::NoNode));
    };
    for path in ["/config", "/locks/config"] {
        vanishes().await;
        soon("the lock", lock_at(&zk, path).write()).await.unwrap().release().await.unwrap();
        vanishes().await;
        soon("the lock", lock_at(&zk, path).try_read()).await.unwrap().release().await.unwrap();
    }
    vanishes().await;
    let limit = Semaphore::new(&zk, "/limit", 2).unwrap();
    soon("a permit", limit.acquire()).await.unwrap().release().await.unwrap();
    vanishes().await;
    soon("the number", limit.set_permits(3)).await.unwrap();
    soon("a permit", limit.acquire()).await.unwrap().release().await.unwrap();
    vanishes().await;
    let value = Shared::builder(&zk, "/value").initial(|| 1).build().unwrap();
    soon("the value", value.write()).await.unwrap().release().await.unwrap();
    vanishes().await;
    let due = soon("the work", lock_at(&zk, "/job").write().once_in(SHORT)).await.unwrap().due();
    soon("the record", due.expect("never done").done()).await.unwrap();
    vanishes().await;
    let mut leads = Candidate::campaigns(Leadership::new(&zk, "/leader").unwrap());
    leads.leads().await;
    soon("the stop", leads.leadership.stop()).await;
    let parents = ["/vanishing", "/vanishing/apps"];
    for path in parents {
        let (_, stat) = session(&operator).await.data(path).await.unwrap();
        assert_eq!(stat.ephemeral_owner, 0, "{path} is not persistent");
    }
}

/// The holder and the waiter lose their nodes with the chroot. Both clients go on with the chroot that is made again.
#[support::judged]
async fn contenders_of_a_deleted_chroot_queue_up_anew() {
    let address = shared_server().address();
    let operator = connect(&address).await;
    let below = format!("{address}/vanishing-queue");
    let (here, there) = (connect(&below).await, connect(&below).await);
    let (ours, theirs) = (lock_at(&here, "/config"), lock_at(&there, "/config"));
    let guard = ours.write().await.unwrap();
    let waiter = writer(&theirs);
    line_becomes(&ours, "W+ W-").await;
    let mut leads = Candidate::campaigns(Leadership::new(&here, "/leader").unwrap());
    leads.leads().await;
    let mut waits = Candidate::campaigns(Leadership::new(&there, "/leader").unwrap());
    line_becomes(&lock_at(&operator, "/vanishing-queue/leader"), "W+ W-").await;

    delete_all(&operator, "/vanishing-queue").await;
    assert_eq!(soon("the loss", guard.lost()).await, Loss::Removed);
    // The waiter may hold for a moment, because the operator may delete the holder's node first.
    let waited = soon("the end of the wait", waiter).await.unwrap();
    if let Ok(guard) = waited {
        assert_eq!(soon("the loss", guard.lost()).await, Loss::Removed);
    }
    soon("the lock", theirs.write()).await.unwrap().release().await.unwrap();
    soon("the lock", ours.write()).await.unwrap().release().await.unwrap();
    leads.is_dropped().await;
    let led = async {
        tokio::select! {
            term = leads.leads() => term,
            Some(TermEvent::Leads(term)) = waits.events.recv() => term,
        }
    };
    let term = soon("the next term", led).await;
    eventually("a term that lasts", || async { children(&operator, "/vanishing-queue/leader").await.len() == 2 }).await;
    drop(term);
    soon("the stop", leads.leadership.stop()).await;
    soon("the stop", waits.leadership.stop()).await;
}

#[support::judged]
async fn a_deleted_chroot_that_may_not_be_made_is_named() {
    let address = shared_server().address();
    let owner = || ZooKeeper::builder().session_timeout(CALM).digest("owner", "secret");
    let closed = owner().acl(Acl::creator()).connect(&address).await.unwrap();
    session(&closed).await.create("/closed-parent", b"", Kind::Persistent).await.unwrap();
    let open = Acl::nobody().allow("world", "anyone", Permissions::ALL);
    let owner = owner().acl(open).connect(&format!("{address}/closed-parent/apps")).await.unwrap();
    let below = connect(&format!("{address}/closed-parent/apps")).await;
    session(&closed).await.delete("/closed-parent/apps").await.unwrap();
    for path in ["/config", "/locks/config"] {
        let error = soon("the error", lock_at(&below, path).write()).await.unwrap_err();
        let lacks = "no CREATE on /closed-parent (the connect string's /closed-parent/apps is missing)";
        let words = format!("permission denied: enter {path}: {lacks} for a client without credentials");
        assert_eq!(error.to_string(), words);
    }
    soon("the lock", lock_at(&owner, "/config").write()).await.unwrap().release().await.unwrap();
    soon("the lock", lock_at(&below, "/config").write()).await.unwrap().release().await.unwrap();
}

#[support::judged]
async fn a_chroot_belongs_to_the_client_that_makes_it() {
    let address = shared_server().address();
    let owner = ZooKeeper::builder().session_timeout(CALM).digest("owner", "secret");
    let owner = owner.connect(&format!("{address}/closed-apps/billing")).await.unwrap();
    session(&owner).await.create("/made", b"", Kind::Persistent).await.unwrap();
    let stranger = session(&connect(&address).await).await;
    for closed in ["/closed-apps", "/closed-apps/billing"] {
        let inside = format!("{closed}/x");
        let refused = [
            stranger.children(closed).await.map(drop),
            stranger.create(&inside, b"", Kind::Persistent).await.map(drop),
        ];
        for (answer, right) in refused.into_iter().zip(["READ", "CREATE"]) {
            let words = format!("permission denied: no {right} on {closed} for a client without credentials");
            assert_eq!(answer.unwrap_err().to_string(), words);
        }
    }
}

#[support::judged]
async fn a_chroot_is_made_and_holds_everything() {
    let server = shared_server();
    let zk = connect(&format!("{}/apps/billing", server.address())).await;
    let whole = connect(&server.address()).await;
    let inner = lock_at(&zk, "/locks/config");
    let guard = inner.write().await.unwrap();

    let node = guard.node_path();
    assert!(node.starts_with("/locks/config/"), "{node}");
    let names = children(&whole, "/apps/billing/locks/config").await;
    assert_eq!(names, [node.trim_start_matches("/locks/config/")]);
    assert!(children(&whole, "/locks/config").await.is_empty());
    let outside = writer(&lock_at(&whole, "/apps/billing/locks/config"));
    line_becomes(&inner, "W+ W-").await;
    assert!(!outside.is_finished());
    guard.release().await.unwrap();
    drop(granted(outside).await);
    let again = connect(&format!("{}/apps/billing", server.address())).await;
    let lock = lock_at(&again, "/locks/config");
    let mut guard = soon("the lock", lock.write()).await.unwrap();
    // Depending on the moment, the release and the next create are sent as one transaction, so the test tries often.
    for _ in 0..20 {
        drop(guard);
        guard = soon("the lock again", lock.write()).await.unwrap();
        assert!(guard.node_path().starts_with("/locks/config/"), "{}", guard.node_path());
    }
}

// ------------------------------------------------------------------------------------------ The queue as people see it

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_never_shows_waiters_without_a_holder() {
    let path = "/locks/brief";
    let mut busy = JoinSet::new();
    for _ in 0..3 {
        let zk = connect(&shared_server().address()).await;
        let lock = lock_at(&zk, path);
        busy.spawn(async move {
            let _zk = zk;
            loop {
                let _held = lock.write().await.unwrap();
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        });
    }
    let observer = lock_at(&connect(&shared_server().address()).await, path);
    for _ in 0..100 {
        let queue = observer.queue().await.unwrap();
        assert!(queue.members.is_empty() || queue.holders().count() == 1, "{queue}");
    }
    assert!(busy.try_join_next().is_none(), "the tasks ended too early");
}

#[support::judged]
async fn a_nodes_data_names_its_contender() {
    let server = shared_server();
    let (zk, operator) = (connect(&server.address()).await, connect(&server.address()).await);
    let lock = RwLock::builder(&zk, "/locks/note").host("web-1").build().unwrap();
    let before = SystemTime::now() - Duration::from_millis(1);
    let guard = lock.write().label("rotate keys").await.unwrap();

    let (data, stat) = session(&operator).await.data(&guard.node_path()).await.unwrap();
    let text = String::from_utf8(data).unwrap();
    let fields: BTreeMap<_, _> = text.lines().map(|line| line.split_once('=').unwrap()).collect();
    assert_eq!(fields.keys().copied().collect::<Vec<_>>(), ["host", "label", "pid", "since"]);
    assert_eq!(fields["host"], "web-1");
    assert_eq!(fields["label"], "rotate keys");
    assert_eq!(fields["pid"], std::process::id().to_string());
    let since = humantime::parse_rfc3339(fields["since"]).unwrap();
    assert!(before <= since && since <= SystemTime::now(), "{text}");
    assert_eq!(stat.ephemeral_owner, session(&zk).await.id());
    assert_eq!(stat.czxid, guard.fencing_token());
    assert!(guard.node_path().starts_with("/locks/note/web-1~"), "{}", guard.node_path());

    let reader = guard.downgrade().await.unwrap();
    let (data, stat) = session(&operator).await.data(&reader.node_path()).await.unwrap();
    assert_eq!(String::from_utf8(data).unwrap(), text);
    assert_eq!(stat.version, 0);
}

#[support::judged]
async fn the_queue_shows_members_with_their_sessions() {
    let server = shared_server();
    let (one, two) = (connect(&server.address()).await, connect(&server.address()).await);
    let here = RwLock::builder(&one, "/locks/queue").host("web-1").build().unwrap();
    let there = RwLock::builder(&two, "/locks/queue").host("web-2").build().unwrap();
    assert_eq!(here.queue().await.unwrap().to_string(), "/locks/queue: free");
    let first = here.read().label("report").await.unwrap();
    let _second = there.read().await.unwrap();
    let _third = tokio::spawn(there.write().label("import").into_future());
    line_becomes(&here, "R+ R+ W-").await;
    session(&one).await.create("/locks/queue/README", b"no contender", Kind::Ephemeral).await.unwrap();

    let queue = there.queue().await.unwrap();
    let (one, two) = (session(&one).await.id(), session(&two).await.id());
    let seen: Vec<_> = queue.members.iter().map(|m| (m.host.as_str(), m.session, m.label.as_deref())).collect();
    assert_eq!(
        seen,
        [("web-1", Some(one), Some("report")), ("web-2", Some(two), None), ("web-2", Some(two), Some("import"))]
    );
    assert!(queue.members.iter().all(|member| member.pid == Some(std::process::id()) && member.since.is_some()));
    assert_eq!((queue.holders().count(), queue.waiters().count()), (2, 1));
    assert_eq!(format!("/locks/queue/{}", queue.members[0].node), first.node_path());
    let waits = MemberState::Waits { behind: queue.members[1].node.clone() };
    assert_eq!(queue.members[2].state, waits);
}

// ---------------------------------------------------------------------------------------------------- Ends of sessions

/// Calls `is_held` on the guard without pause until it returns false. Returns the guard and the time just before the last call
/// that returned true.
fn watch_closely(guard: WriteGuard) -> thread::JoinHandle<(WriteGuard, Option<Instant>)> {
    thread::spawn(move || {
        let mut last_yes = None;
        loop {
            let asked = Instant::now();
            if !guard.is_held() {
                return (guard, last_yes);
            }
            last_yes = Some(asked);
            thread::yield_now();
        }
    })
}

/// Starts a write acquisition. Its task returns the guard and the time of the grant.
fn timed_writer(lock: &RwLock) -> JoinHandle<Result<(WriteGuard, Instant), Error>> {
    let acquisition = lock.write();
    tokio::spawn(async move { acquisition.await.map(|guard| (guard, Instant::now())) })
}

#[support::judged]
async fn a_holder_cut_off_loses_the_lock_in_time() {
    let server = shared_server();
    let proxy = Proxy::start(server.address());
    let (zk, other) = (connect_with(&proxy.address(), SHORT).await, connect(&server.address()).await);
    let (cut_off, here) = (lock_at(&zk, "/locks/expiry"), lock_at(&other, "/locks/expiry"));
    let guard = cut_off.write().await.unwrap();
    let first_token = guard.fencing_token();
    let next = timed_writer(&here);
    line_becomes(&here, "W+ W-").await;

    let watching = watch_closely(guard);
    proxy.cut();
    let (next, granted_at) = granted(next).await;
    let (guard, last_yes) = watching.join().unwrap();

    let last_yes = last_yes.expect("the lock was held at first");
    safe!(last_yes < granted_at, "held {:?} after the next grant", last_yes - granted_at);
    assert_eq!(guard.state(), HoldState::Lost { why: guard.lost().await });
    safe!(first_token < next.fencing_token(), "{first_token} before {}", next.fencing_token());
    proxy.heal();
    // A late release of the lost guard must not affect the next holder.
    assert!(matches!(soon("release", guard.release()).await, Err(Error::Lost(_))));
    assert!(next.is_held());
    next.release().await.unwrap();

    let again = soon("a new acquisition on the same handle", cut_off.write()).await.unwrap();
    assert!(again.is_held());
    again.release().await.unwrap();
}

#[support::judged]
async fn an_expired_waiter_fails_and_its_handle_works() {
    let server = shared_server();
    let proxy = Proxy::start(server.address());
    let (zk, other) = (connect_with(&proxy.address(), SHORT).await, connect(&server.address()).await);
    let (cut_off, here) = (lock_at(&zk, "/locks/expired-waiter"), lock_at(&other, "/locks/expired-waiter"));
    let holder = here.write().await.unwrap();
    let waiter = writer(&cut_off);
    line_becomes(&here, "W+ W-").await;

    proxy.cut();
    line_becomes(&here, "W+").await;
    let error = refused(waiter).await;
    proxy.heal();
    assert!(matches!(error, Error::Evicted(Loss::LeaseRanOut)), "{error:?}");
    let again = writer(&cut_off);
    line_becomes(&here, "W+ W-").await;
    holder.release().await.unwrap();
    granted(again).await.release().await.unwrap();
}

#[support::judged]
async fn only_a_session_with_a_hold_sends_heartbeats() {
    let server = shared_server();
    let proxy = Proxy::start(server.address());
    let zk = connect_with(&proxy.address(), SHORT).await;
    let lock = lock_at(&zk, "/locks/heartbeat");
    let guard = lock.write().await.unwrap();
    let doubted = Arc::new(AtomicBool::new(false));
    let mut changes = guard.changes();
    assert_eq!(changes.next().await, Some(HoldState::Held));
    let doubts = tokio::spawn({
        let doubted = Arc::clone(&doubted);
        async move {
            changes.next().await;
            doubted.store(true, Ordering::Relaxed);
        }
    });

    proxy.reset();
    tokio::time::sleep(SHORT * 3).await;
    let heartbeats = proxy.count(Op::Multi);
    // A heartbeat comes in each fifth of the session timeout, which makes fifteen in three timeouts, and fewer on a busy machine.
    assert!((6..=18).contains(&heartbeats), "{heartbeats} heartbeats in three session timeouts");
    let check = format!("Check {}", guard.node_path());
    for (op, what) in proxy.requests() {
        assert!(op == Op::GetData || (op, what.as_str()) == (Op::Multi, check.as_str()), "{op:?} {what}");
    }
    assert!(guard.is_held() && !doubted.load(Ordering::Relaxed));
    doubts.abort();
    guard.release().await.unwrap();

    proxy.reset();
    tokio::time::sleep(SHORT).await;
    // The client has sent only reads, one in each quarter of the session timeout. These reads renew the lease, so the next
    // acquisition is granted immediately.
    assert!(proxy.requests().iter().all(|(op, path)| (*op, path.as_str()) == (Op::GetData, "/")));
    assert!((1..=7).contains(&proxy.count(Op::GetData)), "{:?}", proxy.requests());
    assert!(proxy.count(Op::Ping) > 0, "the session sends no pings");
}

#[support::judged]
async fn a_brief_disconnect_loses_no_lock_and_no_place() {
    let server = shared_server();
    let (first, second) = (Proxy::start(server.address()), Proxy::start(server.address()));
    let (one, two) = (connect(&first.address()).await, connect(&second.address()).await);
    let operator = connect(&server.address()).await;
    let (here, there) = (lock_at(&one, "/locks/blip"), lock_at(&two, "/locks/blip"));
    let calm = lock_at(&operator, "/locks/blip");
    let guard = here.write().await.unwrap();
    let waiter = writer(&there);
    line_becomes(&calm, "W+ W-").await;
    let last = writer(&calm);
    line_becomes(&calm, "W+ W- W-").await;

    for proxy in [&first, &second] {
        proxy.reset();
        proxy.disconnect();
        eventually("the reconnect", || async { proxy.connections() == 1 }).await;
        proxy.rst();
        eventually("the reconnect", || async { proxy.connections() == 2 }).await;
    }
    // The client makes these requests on its new connections, and the server answers them.
    guard.transaction().commit().await.unwrap();
    assert!(guard.is_held() && !waiter.is_finished());
    assert_eq!(line(&calm).await, "W+ W- W-");
    guard.release().await.unwrap();
    let waiter = granted(waiter).await;
    assert!(!last.is_finished());
    waiter.release().await.unwrap();
    granted(last).await.release().await.unwrap();
}

#[support::judged]
async fn a_guard_is_suspect_until_the_reconnect() {
    let server = shared_server();
    let proxy = Proxy::start(server.address());
    let zk = connect(&proxy.address()).await;
    let guard = lock_at(&zk, "/locks/suspect").write().await.unwrap();
    let mut changes = guard.changes();
    assert_eq!(changes.next().await, Some(HoldState::Held));
    proxy.cut();
    let state = soon("a change", changes.next()).await;
    assert!(matches!(state, Some(HoldState::Suspect { .. })), "{state:?}");
    assert!(guard.is_held());
    proxy.heal();
    assert_eq!(soon("a change", changes.next()).await, Some(HoldState::Held));
    guard.release().await.unwrap();
}

#[support::judged]
async fn a_server_that_crashes_and_returns_loses_nothing() {
    let server = Server::start();
    let (one, two) = (connect(&server.address()).await, connect(&server.address()).await);
    let (here, there) = (lock_at(&one, "/locks/crash"), lock_at(&two, "/locks/crash"));
    let guard = here.write().await.unwrap();
    let waiter = writer(&there);
    line_becomes(&here, "W+ W-").await;

    server.restart();

    soon("an answer", guard.transaction().commit()).await.ok();
    assert!(guard.is_held() && !waiter.is_finished());
    soon("release", guard.release()).await.unwrap();
    granted(waiter).await.release().await.unwrap();
}

// ----------------------------------------------------------------------------------- Lost requests, replies and events

/// The loss of one frame of a session, together with its connection.
#[derive(Clone, Copy, Debug)]
enum Mishap {
    /// The server never receives the request, and the connection is closed.
    RequestLost,
    /// The server has carried the request out, but the connection is closed before the reply.
    ReplyLost,
    /// Like `RequestLost`, but the connection is reset.
    RequestReset,
    /// Like `ReplyLost`, but the connection is reset.
    ReplyReset,
}

const MISHAPS: [Mishap; 4] = [Mishap::RequestLost, Mishap::ReplyLost, Mishap::RequestReset, Mishap::ReplyReset];

impl Mishap {
    /// Awaits `deed` while this mishap hits the next frame of the kind `op`. Panics if no such frame comes.
    async fn inject<F: Future>(self, proxy: &Proxy, op: Op, deed: F) -> F::Output {
        let fault = match self {
            Mishap::RequestLost => proxy.drop_request(op, 1),
            Mishap::ReplyLost => proxy.drop_reply(op, 1),
            Mishap::RequestReset | Mishap::ReplyReset => {
                let held = match self {
                    Mishap::RequestReset => proxy.hold_request(op),
                    _ => proxy.hold_reply(op),
                };
                let reset = async {
                    soon("the frame", held.arrives()).await;
                    proxy.rst();
                    held.release();
                };
                return tokio::join!(soon("the end of the call", deed), reset).0;
            }
        };
        let output = soon("the end of the call", deed).await;
        assert!(fault.has_happened(), "{self:?} of {op:?} did not happen");
        output
    }
}

/// Returns a proxy, a lock on a session behind that proxy, and a client of an operator with a direct connection. The lock's
/// directory exists.
async fn fragile(server: &Server, directory: &str) -> (Proxy, RwLock, ZooKeeper) {
    let proxy = Proxy::start(server.address());
    let (zk, operator) = (connect(&proxy.address()).await, connect(&server.address()).await);
    lock_at(&operator, directory).read().await.unwrap().release().await.unwrap();
    (proxy, lock_at(&zk, directory), operator)
}

#[support::judged]
async fn a_lost_create_or_listing_leaves_one_node() {
    for op in [Op::Create2, Op::GetChildren2] {
        for mishap in MISHAPS {
            let directory = format!("/locks/lost-{op:?}-{mishap:?}");
            let (proxy, lock, operator) = fragile(shared_server(), &directory).await;
            let guard = mishap.inject(&proxy, op, lock.write().into_future()).await.unwrap();
            let node = guard.node_path();
            assert!(guard.is_held());
            eventually("only the guard's node is left", || async {
                let names = children(&operator, &directory).await;
                assert!(!names.is_empty(), "{mishap:?} of {op:?}");
                names.len() == 1 && node.ends_with(&names[0])
            })
            .await;
            guard.release().await.unwrap();
            assert!(children(&operator, &directory).await.is_empty());
            drop(soon("the next", lock_at(&operator, &directory).write()).await.unwrap());
        }
    }
}

#[support::judged]
async fn a_dropped_lost_create_leaves_nothing() {
    for mishap in MISHAPS {
        let directory = format!("/locks/dropped-{mishap:?}");
        let (proxy, lock, operator) = fragile(shared_server(), &directory).await;
        mishap
            .inject(&proxy, Op::Create2, async {
                assert!(poll_at_most(4, lock.write()).await.is_none_or(|answer| answer.is_ok()));
                // The client deletes the node in the background after the reconnect. The reply to this listing shows that the
                // client has reconnected.
                eventually("the reconnect", || async { proxy.connections() >= 2 }).await;
                lock.queue().await.unwrap();
            })
            .await;
        becomes_empty(&operator, &directory).await;
        drop(soon("the next", lock_at(&operator, &directory).write()).await.unwrap());
    }
}

#[support::judged]
async fn a_release_that_is_lost_leaves_no_node() {
    for (mode, op) in [(Mode::Write, Op::Multi), (Mode::Read, Op::Delete)] {
        for mishap in MISHAPS {
            let directory = format!("/locks/unreleased-{op:?}-{mishap:?}");
            let (proxy, lock, operator) = fragile(shared_server(), &directory).await;
            let waiter = if mode == Mode::Write {
                let guard = lock.write().await.unwrap();
                let waiter = writer(&lock_at(&operator, &directory));
                line_becomes(&lock_at(&operator, &directory), "W+ W-").await;
                mishap.inject(&proxy, op, guard.release()).await.unwrap();
                waiter
            } else {
                let guard = lock.read().await.unwrap();
                let waiter = writer(&lock_at(&operator, &directory));
                line_becomes(&lock_at(&operator, &directory), "R+ W-").await;
                mishap.inject(&proxy, op, guard.release()).await.unwrap();
                waiter
            };
            let next = granted(waiter).await;
            assert_eq!(children(&operator, &directory).await.len(), 1);
            next.release().await.unwrap();
            assert!(children(&operator, &directory).await.is_empty());
        }
    }
}

#[support::judged]
async fn a_dropped_lost_delete_leaves_nothing() {
    for mishap in MISHAPS {
        let directory = format!("/locks/undeleted-{mishap:?}");
        let (proxy, lock, operator) = fragile(shared_server(), &directory).await;
        let guard = lock.write().await.unwrap();
        mishap
            .inject(&proxy, Op::Multi, async {
                drop(guard);
                becomes_empty(&operator, &directory).await;
                eventually("the reconnect", || async { proxy.connections() >= 2 }).await;
            })
            .await;
        drop(soon("the next", lock.write()).await.unwrap());
    }
}

#[support::judged]
async fn a_downgrade_that_is_lost_is_done_once() {
    for mishap in MISHAPS {
        let directory = format!("/locks/undowngraded-{mishap:?}");
        let (proxy, lock, operator) = fragile(shared_server(), &directory).await;
        let guard = lock.write().await.unwrap();
        let guard = mishap.inject(&proxy, Op::Multi, guard.downgrade()).await.unwrap();
        assert!(guard.is_held());
        assert_eq!(line(&lock_at(&operator, &directory)).await, "R+");
        guard.release().await.unwrap();
        assert!(children(&operator, &directory).await.is_empty());
    }
}

#[support::judged]
async fn a_waiter_whose_watch_request_is_lost_is_granted() {
    for mishap in MISHAPS {
        let directory = format!("/locks/unarmed-{mishap:?}");
        let (proxy, lock, operator) = fragile(shared_server(), &directory).await;
        let here = lock_at(&operator, &directory);
        let holder = here.write().await.unwrap();
        let mut waiter = None;
        mishap
            .inject(&proxy, Op::GetData, async {
                waiter = Some(writer(&lock));
                eventually("the reconnect", || async { proxy.connections() >= 2 }).await;
            })
            .await;
        line_becomes(&here, "W+ W-").await;
        holder.release().await.unwrap();
        granted(waiter.unwrap()).await.release().await.unwrap();
    }
}

#[support::judged]
async fn a_waiter_that_missed_an_event_is_granted() {
    for reader_waits in [false, true] {
        let directory = format!("/locks/missed-{reader_waits}");
        let (proxy, lock, operator) = fragile(shared_server(), &directory).await;
        let here = lock_at(&operator, &directory);
        let holder = here.write().await.unwrap();
        let node = holder.node_path();
        let waiter = if reader_waits {
            let acquisition = lock.read().into_future();
            tokio::spawn(async move { acquisition.await.map(drop) })
        } else {
            let acquisition = lock.write().into_future();
            tokio::spawn(async move { acquisition.await.map(drop) })
        };
        eventually("both watches", || async { watchers_of(shared_server(), &node) == 2 }).await;

        proxy.black_hole_to_client();
        holder.release().await.unwrap();
        assert_eq!(line(&here).await, if reader_waits { "R+" } else { "W+" });
        proxy.disconnect();
        assert!(!waiter.is_finished());
        proxy.heal();
        granted(waiter).await;
        becomes_empty(&operator, &directory).await;
    }
}

/// All acquisitions share one attempt to connect. Attempts of their own, one after the other, would take far longer.
#[support::judged]
async fn a_crowd_without_a_server_fails_together() {
    let server = Server::start();
    let builder = ZooKeeper::builder().session_timeout(Duration::from_secs(1)).connect_timeout(Duration::from_secs(1));
    let zk = builder.connect(&server.address()).await.unwrap();
    let lock = lock_at(&zk, "/locks/crowd");
    lock.write().await.unwrap().release().await.unwrap();
    drop(server);
    let crowd: Vec<_> = (0..12)
        .map(|_| {
            let lock = lock.clone();
            tokio::spawn(async move { lock.try_write().await.map(drop) })
        })
        .collect();
    // The limit covers the end of the session, one attempt to connect, and a second attempt for acquisitions that came during the
    // first. Twelve attempts would take far longer.
    let all = async {
        for one in crowd {
            let error = one.await.unwrap().unwrap_err();
            assert!(matches!(error, Error::Unreachable(_)), "{error}");
        }
    };
    within(Duration::from_secs(8), "the whole crowd's error", all).await;
}
