//! A leader that is cut off from its followers and does not know that they have elected another leader. Clients of the old leader
//! are granted no lock, keep no lock beyond their session, and read no old data under a lock.
//!
//! `ALONE_TIMEOUT` sets the session timeout, in seconds, of the holder whose connection breaks again and again; `make soak` sets it high.

use std::future::IntoFuture;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use support::ensemble::Ensemble;
use support::rounds::shared;
use support::safe;
use support::scene::*;
use support::wire::Proxy;
use support::witness::Witness;
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::{sleep, timeout};
use zk_rwlock::coordinator::Kind;
use zk_rwlock::{Error, Shared, ZooKeeper};

/// The servers' `syncLimit`: the number of ticks for which a leader goes on without its followers. This limit is longer than any
/// of these tests.
const SYNC_LIMIT: u32 = 400;

const TICK: Duration = Duration::from_millis(500);

/// The time that a test waits before it concludes that no reply or grant comes.
const A_WHILE: Duration = Duration::from_millis(500);

/// The time between the test's two reads and its break of the connection: long enough for a reply to the first of a heartbeat's
/// two requests, and shorter than the time between the two.
const A_MOMENT: Duration = Duration::from_millis(50);

/// Returns the ensemble, which the tests of this file use one after the other.
async fn ensemble() -> MutexGuard<'static, Ensemble> {
    static SHARED: OnceLock<Mutex<Ensemble>> = OnceLock::new();
    let start = || shared(&SHARED, || Mutex::new(Ensemble::start_patient(SYNC_LIMIT, &[])));
    let ensemble = tokio::task::spawn_blocking(start).await.expect("the ensemble starts").lock().await;
    // A failed test may have left the leader cut off.
    becomes_whole(&ensemble).await;
    ensemble
}

async fn becomes_whole(ensemble: &Ensemble) {
    ensemble.heal_links();
    eventually("the old leader follows the new one", async || ensemble.is_whole()).await;
}

fn others(ensemble: &Ensemble) -> String {
    let addresses: Vec<_> = ensemble.followers().iter().map(|number| ensemble.server(*number).address()).collect();
    addresses.join(",")
}

/// A leader that does not know that it is deposed answers a handshake by itself. That answer must not extend the lease, because
/// the new leader lets the session expire. (The model checker in `models::lease_model` found this fault.)
#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_handshake_with_a_deposed_leader_prolongs_no_lock() {
    let limit = std::env::var("ALONE_TIMEOUT").ok().map_or(3, |value| value.parse().expect("a number"));
    let session_timeout = Duration::from_secs(limit);
    let ensemble = ensemble().await;
    let near = Arc::new(Proxy::start(ensemble.server(ensemble.leader()).address()));
    let builder = ZooKeeper::builder().session_timeout(session_timeout).tick_time(TICK).connect_timeout(SOON);
    let zk = builder.connect(&near.address()).await.expect("reachable");
    let (path, other) = ("/alone/handshake", connect(&others(&ensemble)).await);
    let held = Arc::new(soon("a free lock", lock_at(&zk, path).write()).await.expect("free"));
    let lock = lock_at(&other, path);
    let next = writer(&lock);
    line_becomes(&lock, "W+ W-").await;

    // After every two reads and [`A_MOMENT`], this task breaks the connection, so that the client sends many handshakes, also to
    // the deposed leader.
    let (flapping, client) = (Arc::clone(&near), session(&zk).await);
    let flaps = tokio::spawn(async move {
        loop {
            let _ = timeout(A_WHILE, async { (client.data("/").await, client.data("/").await) }).await;
            sleep(A_MOMENT).await;
            flapping.disconnect();
        }
    });
    let witness = Witness::of(&held);
    sleep(A_WHILE).await;
    near.reset();
    let alone = tokio::task::block_in_place(|| ensemble.leave_leader_alone());
    let next = within(4 * session_timeout + SOON, "the grant", next).await;
    let (next, granted_at) = (next.expect("no panic").expect("granted"), Instant::now());
    safe!(!held.is_held(), "two hold the lock");
    flaps.abort();
    let last_held = witness.last_held();
    assert!(ensemble.leads(alone), "the old leader has noticed the cut, so this run proves nothing");
    assert!(near.connections() > 0, "no client reconnected to the old leader");
    safe!(last_held < granted_at, "held {:?} after the next grant", last_held - granted_at);
    next.release().await.expect("held");
    becomes_whole(&ensemble).await;
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_alone_grants_nothing_and_serves_no_old_data() {
    const REGISTER: &str = "/alone-register";
    let ensemble = ensemble().await;
    let near = ensemble.server(ensemble.leader()).address();
    let (stays, goes_on) = (connect(&near).await, connect(&others(&ensemble)).await);
    for path in [REGISTER, "/alone-held"] {
        session(&goes_on).await.create(path, b"1", Kind::Persistent).await.expect("created");
    }

    // A client of the old leader holds a lock, keeps the node of a lock between uses, and waits for a lock that another client
    // holds.
    let held = lock_at(&stays, "/alone/held").read().await.expect("free");
    let kept: Shared<u64> = Shared::builder(&stays, "/alone/kept")
        .initial(|| 1)
        .lock(|lock| lock.keep(Duration::MAX))
        .build()
        .expect("valid");
    drop(kept.read().await.expect("free"));
    let elsewhere = lock_at(&goes_on, "/alone/elsewhere").write().await.expect("free");
    let there = lock_at(&stays, "/alone/elsewhere");
    let waits_there = reader(&there);
    line_becomes(&there, "W+ R-").await;
    let free = lock_at(&stays, "/alone/free");
    free.write().await.expect("free").release().await.expect("held");

    let alone = tokio::task::block_in_place(|| ensemble.leave_leader_alone());
    let behind = lock_at(&goes_on, "/alone/held");
    let was_granted = Arc::new(AtomicBool::new(false));
    let notes = Arc::clone(&was_granted);
    let excluded = tokio::spawn(async move {
        let guard = behind.write().await?;
        notes.store(true, Ordering::SeqCst);
        guard.transaction().set("/alone-held", "2").commit().await?;
        Ok(guard)
    });
    let value: Shared<u64> = Shared::builder(&goes_on, "/alone/kept").build().expect("valid");
    let commits = tokio::spawn(value.update(|value| *value += 1).into_future());
    let commit = elsewhere.transaction().set(REGISTER, "2").commit();
    soon("the new leader's quorum", commit).await.expect("held");
    elsewhere.release().await.expect("held");
    lock_at(&goes_on, "/alone/new").write().await.expect("free").release().await.expect("held");
    sleep(A_WHILE).await;

    let old = session(&stays).await;
    assert_eq!(old.data(REGISTER).await.expect("there").0, b"1", "the old leader returned a new value");
    assert_eq!(held.read_node("/alone-held").await.expect("held").expect("there").data, b"1");
    // The sync gets no answer, because the old leader has no quorum. A server answers a session's requests in order, so the old
    // leader answers nothing after the sync.
    assert!(timeout(A_WHILE, old.sync("/")).await.is_err(), "the old leader answers a sync");
    assert!(!waits_there.is_finished(), "a waiter was granted at the old leader");
    for mode in [free.try_write().timeout(A_WHILE).await, free.write().timeout(A_WHILE).await] {
        assert!(matches!(mode, Err(Error::Timeout { .. })), "{mode:?}");
    }
    let again = timeout(Duration::ZERO, kept.read()).await.expect("the node is kept").expect("held");
    assert!(again.lock().is_held() && held.is_held());
    assert_eq!(*again, 1);
    assert!(!commits.is_finished() && !was_granted.load(Ordering::SeqCst));
    assert!(ensemble.leads(alone), "the old leader has noticed the cut, so this run proves nothing");
    drop(again);

    becomes_whole(&ensemble).await;
    let guard = granted(waits_there).await;
    assert_eq!(guard.read_node(REGISTER).await.expect("held").expect("there").data, b"2");
    held.release().await.expect("the holder's session has survived");
    let excluded = granted(excluded).await;
    assert_eq!(excluded.read_node("/alone-held").await.expect("held").expect("there").data, b"2");
    excluded.release().await.expect("held");
    soon("the commit", commits).await.expect("no panic").expect("the kept node was given up");
    assert_eq!(*soon("the value", kept.read()).await.expect("free"), 2);
}
