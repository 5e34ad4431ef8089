//! A holder learns of the loss of its lock before another contender is granted, whatever the network does.
//!
//! Each round cuts a holder off in one of several ways while another contender waits. The round compares, on one clock, the last
//! moment at which the guard said "held" with the moment of the other's grant. `LEASE_ROUNDS` sets the number of rounds of
//! each kind; `make soak` sets it high.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use support::ensemble::Ensemble;
use support::safe;
use support::scene::{connect as calm, connect_with};
use support::server::{Server, shared_server};
use support::wire::Proxy;
use support::witness::Witness;
use zk_rwlock::{Error, HoldState, Loss, RwLock, ZooKeeper};

const SESSION_TIMEOUT: Duration = Duration::from_secs(4);

fn rounds() -> u64 {
    std::env::var("LEASE_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(6)
}

async fn connect(address: &str) -> ZooKeeper {
    connect_with(address, SESSION_TIMEOUT).await
}

fn open(zk: &ZooKeeper, path: &str, host: &str) -> RwLock {
    RwLock::builder(zk, path).host(host).build().expect("the path and the host are valid")
}

/// Waits for `offset` and calls `cut`, which cuts the holder off. Checks that the holder's guard reports the loss before the next
/// holder is granted.
async fn round(holder: &ZooKeeper, other: &ZooKeeper, path: String, offset: Duration, cut: impl FnOnce()) {
    let guard = Arc::new(open(holder, &path, "holder").write().await.expect("the lock is free"));
    let next = tokio::spawn({
        let lock = open(other, &path, "next");
        async move {
            let guard = lock.write().timeout(10 * SESSION_TIMEOUT).await.expect("the lock is freed by the expiry");
            (Instant::now(), guard)
        }
    });
    let witness = Witness::of(&guard);
    tokio::time::sleep(offset).await;
    assert!(guard.is_held());
    cut();
    let cut_at = Instant::now();
    let why = guard.lost().await;
    let heard_at = Instant::now();
    let (granted_at, next) = next.await.expect("the waiter does not panic");
    let last_held = witness.last_held();
    assert_eq!(why, Loss::LeaseRanOut);
    let message = format!(
        "offset {offset:?}: said held until {:?}, said lost at {:?}, next granted at {:?} after the cut",
        last_held.saturating_duration_since(cut_at),
        heard_at - cut_at,
        granted_at - cut_at,
    );
    safe!(last_held < granted_at, "{message}");
    assert!(heard_at < granted_at, "{message}");
    assert!(!guard.is_held());
    next.release().await.expect("the next holder's session is alive");
}

/// Runs rounds of one kind concurrently, each with a proxy of its own. Their cuts are spread over half a session timeout, which
/// contains at least two heartbeats.
async fn rounds_of(kind: &'static str, cut: fn(&Proxy)) {
    let server = shared_server();
    let rounds = rounds();
    let all: Vec<_> = (0..rounds)
        .map(|i| {
            let offset = Duration::from_millis(10) + SESSION_TIMEOUT.mul_f64(i as f64 / rounds as f64 / 2.0);
            tokio::spawn(async move {
                let proxy = Proxy::start(server.address());
                let (holder, other) = (connect(&proxy.address()).await, calm(&server.address()).await);
                round(&holder, &other, format!("/lease/{kind}/{i}"), offset, || cut(&proxy)).await;
            })
        })
        .collect();
    for one in all {
        if let Err(failed) = one.await {
            resume_unwind(failed.into_panic());
        }
    }
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_in_a_black_hole_loses_the_lock_in_time() {
    rounds_of("black-hole", Proxy::black_hole).await;
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_with_lost_requests_loses_the_lock_in_time() {
    rounds_of("to-server", Proxy::black_hole_to_server).await;
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_with_lost_replies_loses_the_lock_in_time() {
    let server = shared_server();
    let proxy = Proxy::start(server.address());
    let (holder, other) = (connect(&proxy.address()).await, calm(&server.address()).await);
    let guard = Arc::new(open(&holder, "/lease/to-client", "holder").write().await.expect("the lock is free"));
    let witness = Witness::of(&guard);
    proxy.black_hole_to_client();
    let cut_at = Instant::now();
    assert_eq!(guard.lost().await, Loss::LeaseRanOut);
    let held_for = witness.last_held().saturating_duration_since(cut_at);
    assert!(held_for < SESSION_TIMEOUT, "said held until {held_for:?} after the cut");
    proxy.cut();
    let next = open(&other, "/lease/to-client", "next").write().timeout(5 * SESSION_TIMEOUT).await;
    next.expect("the session of the first holder expires").release().await.expect("held");
    assert!(!guard.is_held());
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_without_a_leader_loses_the_lock_in_time() {
    let ensemble = tokio::task::spawn_blocking(Ensemble::start).await.expect("the ensemble starts");
    let (follower, leader) = (ensemble.followers()[0], ensemble.leader());
    let holder = connect(&ensemble.server(follower).address()).await;
    let other = calm(&ensemble.server(leader).address()).await;
    let offset = SESSION_TIMEOUT / 3;
    round(&holder, &other, "/lease/quorum".to_owned(), offset, || ensemble.cut_from_leader(follower)).await;
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_of_leader_inside_the_lease_loses_nothing() {
    let ensemble = tokio::task::spawn_blocking(Ensemble::start).await.expect("the ensemble starts");
    let timeout = Duration::from_secs(10);
    let zk = connect_with(&ensemble.addresses(), timeout).await;
    let guard = open(&zk, "/lease/election", "holder").write().await.expect("the lock is free");
    let witness = Arc::new(guard);
    let watched = Arc::clone(&witness);
    let watching = thread::spawn(move || {
        let calm = Instant::now() + timeout;
        while Instant::now() < calm {
            assert!(watched.is_held(), "lost by an election: {:?}", watched.state());
            thread::sleep(Duration::from_millis(1));
        }
    });
    let _ensemble = tokio::task::spawn_blocking(move || {
        ensemble.server(ensemble.leader()).restart();
        watching.join().expect("the lock stays held");
        ensemble
    })
    .await
    .expect("the lock stays held");
    let guard = Arc::into_inner(witness).expect("the witness is gone");
    guard.release().await.expect("still held");
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_brief_disconnect_makes_a_hold_only_suspect() {
    let server = shared_server();
    let proxy = Proxy::start(server.address());
    let zk = connect(&proxy.address()).await;
    let guard = open(&zk, "/lease/blip", "holder").write().await.expect("the lock is free");
    let mut changes = guard.changes();
    assert_eq!(changes.next().await, Some(HoldState::Held));
    proxy.cut();
    assert!(matches!(changes.next().await, Some(HoldState::Suspect { .. })));
    assert!(guard.is_held(), "the guard was lost during a short break");
    proxy.heal();
    assert_eq!(changes.next().await, Some(HoldState::Held));
    // The lease from before the disconnect runs out within this time. A guard that still holds afterwards has renewed its lease.
    tokio::time::sleep(SESSION_TIMEOUT).await;
    guard.release().await.expect("a blip loses nothing");
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_silent_beyond_the_lease_costs_the_lock() {
    let server = tokio::task::spawn_blocking(Server::start).await.expect("the server starts");
    let zk = connect(&server.address()).await;
    let guard = open(&zk, "/lease/pause", "holder").write().await.expect("the lock is free");
    server.pause();
    let why = guard.lost().await;
    server.resume();
    assert_eq!(why, Loss::LeaseRanOut);
    assert!(matches!(guard.release().await, Err(Error::Lost(Loss::LeaseRanOut))));
    // Whether or not the session has ended, the lock can be acquired again.
    let again = open(&zk, "/lease/pause", "holder").write().timeout(10 * SESSION_TIMEOUT).await;
    again.expect("the old node is gone").release().await.expect("held");
}

#[support::judged]
fn a_blocked_runtime_keeps_the_lock() {
    let server = shared_server();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let zk = connect(&server.address()).await;
        let guard = open(&zk, "/lease/blocked", "holder").write().await.expect("the lock is free");
        thread::sleep(2 * SESSION_TIMEOUT);
        assert!(guard.is_held(), "the heartbeat starved: {:?}", guard.state());
        guard.release().await.expect("still held");
    });
}
