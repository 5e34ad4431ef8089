//! A kept node, which a process keeps in the queue between its uses of a lock, is lost as early as a held node. After the grant
//! of the next contender, the kept node grants no use, despite faults of the network, the servers and the process.
//!
//! A thread tries to use the lock again and again, with pauses of at most 500 µs. The test compares, on one clock, the last
//! moment at which the kept node granted a use with the moment of the next contender's grant. `LEASE_ROUNDS` sets the number of
//! rounds. Fault numbers are those of `tests/FAULTS.md`.

use std::future::IntoFuture;
use std::panic::resume_unwind;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use support::ensemble::{Ensemble, shared_ensemble};
use support::process::{Process, role, say};
use support::safe;
use support::scene::*;
use support::server::shared_server;
use support::wire::{Op, Proxy};
use zk_rwlock::{RwLock, ZooKeeper};

const SESSION_TIMEOUT: Duration = Duration::from_secs(4);

/// The time for which an unused kept node stays. It is longer than any of these tests.
const IDLE: Duration = Duration::from_secs(600);

fn keeping(zk: &ZooKeeper, path: &str) -> RwLock {
    RwLock::builder(zk, path).host("keeper").keep(IDLE).build().expect("valid")
}

/// Returns whether a new acquisition is granted at its first poll, under the node with this fencing token.
fn joins_at_once(lock: &RwLock, writes: bool, token: i64) -> bool {
    let mut context = Context::from_waker(Waker::noop());
    if writes {
        let granted = pin!(lock.write().into_future()).poll(&mut context);
        matches!(granted, Poll::Ready(Ok(guard)) if guard.fencing_token() == token)
    } else {
        let granted = pin!(lock.read().into_future()).poll(&mut context);
        matches!(granted, Poll::Ready(Ok(guard)) if guard.fencing_token() == token)
    }
}

/// A thread that uses a kept lock again and again.
struct User {
    stop: Arc<AtomicBool>,
    thread: thread::JoinHandle<(u64, Instant)>,
}

impl User {
    fn of(lock: &RwLock, writes: bool, token: i64) -> User {
        let stop = Arc::new(AtomicBool::new(false));
        let (lock, stopped) = (lock.clone(), Arc::clone(&stop));
        let thread = thread::spawn(move || {
            let (mut uses, mut last_let_in, mut was_refused) = (0, Instant::now(), false);
            while !stopped.load(Ordering::Relaxed) {
                // The clock is read before the try, so the kept node granted the use at this moment or later.
                let asked = Instant::now();
                if joins_at_once(&lock, writes, token) {
                    safe!(!was_refused, "a node that was given up lets a use in");
                    (uses, last_let_in) = (uses + 1, asked);
                } else {
                    was_refused = true;
                }
                thread::sleep(Duration::from_micros(500));
            }
            (uses, last_let_in)
        });
        User { stop, thread }
    }

    /// Stops the thread. Returns the number of uses that the kept node granted, and the moment of the last one.
    fn ends(self) -> (u64, Instant) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_else(|contradiction| resume_unwind(contradiction))
    }
}

/// Waits for `offset` and calls `cut`, which cuts off the process that keeps a node. Then another contender queues up. Checks
/// that the kept node grants no use after that contender's grant.
async fn round(
    keeper: &ZooKeeper,
    other: &ZooKeeper,
    path: String,
    writes: bool,
    offset: Duration,
    cut: impl FnOnce(),
) {
    let lock = keeping(keeper, &path);
    let token = if writes {
        soon("a free lock", lock.write()).await.expect("free").fencing_token()
    } else {
        soon("a free lock", lock.read()).await.expect("free").fencing_token()
    };
    let user = User::of(&lock, writes, token);
    tokio::time::sleep(offset).await;
    cut();
    let cut_at = Instant::now();
    let next = lock_at(other, &path).write().timeout(10 * SESSION_TIMEOUT).await.expect("freed by the expiry");
    let granted_at = Instant::now();
    let (uses, last_let_in) = user.ends();
    assert!(uses > 10, "{uses} uses");
    assert!(
        last_let_in < granted_at,
        "offset {offset:?}: let in {:?} after the cut, and the next one granted after {:?}",
        last_let_in - cut_at,
        granted_at - cut_at,
    );
    assert!(last_let_in > cut_at, "no use was served after the cut");
    next.release().await.expect("the next holder's session is alive");
}

async fn rounds_of(kind: &'static str, cut: fn(&Proxy)) {
    let server = shared_server();
    let rounds = std::env::var("LEASE_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(6_u64);
    let all: Vec<_> = (0..rounds)
        .map(|i| {
            let offset = Duration::from_millis(50) + SESSION_TIMEOUT.mul_f64(i as f64 / rounds as f64 / 2.0);
            tokio::spawn(async move {
                let proxy = Proxy::start(server.address());
                let keeper = connect_with(&proxy.address(), SESSION_TIMEOUT).await;
                let other = connect(&server.address()).await;
                round(&keeper, &other, format!("/kept-lease/{kind}/{i}"), i % 2 == 0, offset, || cut(&proxy)).await;
            })
        })
        .collect();
    for one in all {
        one.await.expect("the round keeps the invariant");
    }
}

/// The process that keeps the node is in a black hole, which loses all bytes of its connection (fault 74).
#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_node_in_a_black_hole_is_unusable_in_time() {
    rounds_of("black-hole", Proxy::black_hole).await;
}

/// The requests of the process are lost, but events still arrive. The event of an ask, by which a waiter requests the node, does
/// not extend the lease (fault 74).
#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_node_with_lost_requests_is_unusable_in_time() {
    let server = shared_server();
    let proxy = Proxy::start(server.address());
    let keeper = connect_with(&proxy.address(), SESSION_TIMEOUT).await;
    let other = connect(&server.address()).await;
    let path = "/kept-lease/to-server";
    let lock = keeping(&keeper, path);
    let token = soon("a free lock", lock.write()).await.expect("free").fencing_token();
    let user = User::of(&lock, true, token);
    proxy.black_hole_to_server();
    let next = lock_at(&other, path).write().timeout(10 * SESSION_TIMEOUT).await.expect("freed by the expiry");
    let granted_at = Instant::now();
    let (_, last_let_in) = user.ends();
    safe!(last_let_in < granted_at);
    next.release().await.expect("held");
}

/// The server of the process that keeps the node is cut off from the leader (fault 74).
#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_node_without_a_leader_is_unusable_in_time() {
    let ensemble = tokio::task::spawn_blocking(Ensemble::start).await.expect("the ensemble starts");
    let (follower, leader) = (ensemble.followers()[0], ensemble.leader());
    let keeper = connect_with(&ensemble.server(follower).address(), SESSION_TIMEOUT).await;
    let other = connect(&ensemble.server(leader).address()).await;
    let offset = SESSION_TIMEOUT / 3;
    let cut = || ensemble.cut_from_leader(follower);
    round(&keeper, &other, "/kept-lease/quorum".to_owned(), true, offset, cut).await;
}

/// The server of the process that keeps the node lags. So the process learns late that a waiter asks for the node, and uses it
/// until then (fault 72).
#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_keeper_on_a_lagging_server_is_asked_later() {
    let ensemble = shared_ensemble().await;
    let (leader, follower) = (ensemble.leader(), ensemble.followers()[0]);
    let keeper = connect(&ensemble.server(follower).address()).await;
    let near = Proxy::start(ensemble.server(leader).address());
    let other = connect(&near.address()).await;
    let path = "/kept-lag";
    let lock = keeping(&keeper, path);
    for _ in 0..2 {
        soon("a free lock", lock.read()).await.expect("free").release().await.expect("held");
    }
    ensemble.hold_from_leader(follower);
    let waits = writer(&lock_at(&other, path));
    eventually("the ask", || async { near.count(Op::Multi) > 0 }).await;
    let here = lock_at(&other, path);
    line_becomes(&here, "R+ W-").await;
    drop(soon("a kept node", lock.read()).await.expect("kept"));
    assert!(!waits.is_finished());
    ensemble.heal_links();
    granted(waits).await.release().await.expect("held");
    let again = soon("a free lock", lock.read()).await.expect("free");
    assert!(again.is_held());
}

// --------------------------------------------------------------------------------------------------- Stopped processes

/// Returns the time of the monotonic clock, in nanoseconds. All processes of this machine share that clock.
fn clock() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

/// The child process: keeps a node and uses it all the time, without a runtime, until the kept node grants no use.
#[test]
fn the_child_process_of_other_tests() {
    let Some(role) = role() else { return };
    let (server, path) = role.split_once(' ').expect("a server and a path");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let zk = runtime.block_on(connect_with(server, SESSION_TIMEOUT));
    let lock = keeping(&zk, path);
    let token = lock.write().blocking().unwrap().fencing_token();
    say("kept");
    let mut last_let_in = clock();
    loop {
        let asked = clock();
        if !joins_at_once(&lock, true, token) {
            say(&format!("{last_let_in} {asked}"));
            return;
        }
        last_let_in = asked;
        // The loop has no pause, so that after a stop of the process, this try runs before the library's threads run.
        std::hint::spin_loop();
    }
}

/// The process is stopped when a waiter asks for its kept node, and its session ends during the stop (fault 75).
#[support::judged]
async fn a_stopped_process_cannot_use_its_kept_node() {
    let (server, path) = (shared_server().address(), "/kept-lease/stopped");
    let zk = connect(&server).await;
    let mut keeper = Process::start(module_path!(), &format!("{server} {path}"));
    assert_eq!(keeper.says(), "kept");
    tokio::time::sleep(Duration::from_millis(50)).await;
    keeper.signal("STOP");
    let next = soon("the grant", lock_at(&zk, path).write()).await.expect("freed by the expiry");
    let granted_at = clock();
    keeper.signal("CONT");
    let said = tokio::task::spawn_blocking(move || keeper.says());
    let said = soon("the keeper's last word", said).await.unwrap();
    let (last_let_in, first_refused) = said.split_once(' ').unwrap();
    let (last_let_in, first_refused): (u64, u64) = (last_let_in.parse().unwrap(), first_refused.parse().unwrap());
    safe!(last_let_in < granted_at, "let in {} ns after the next grant", last_let_in - granted_at);
    assert!(last_let_in < first_refused);
    assert!(next.is_held());
    next.release().await.unwrap();
}
