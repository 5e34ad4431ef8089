//! Clients that have lost their sessions do not all come back at the same moment: each pauses for a time of its own.

use std::time::{Duration, Instant};

use support::scene::*;
use support::server::shared_server;
use support::wire::{Op, Proxy};
use tokio::task::JoinHandle;
use tokio::time::sleep;
use zk_rwlock::{WriteGuard, ZooKeeper};

const CLIENTS: usize = 12;

/// Longer than a client takes that does not pause, and far shorter than most pauses.
const AT_ONCE: Duration = Duration::from_millis(20);

/// Clients of sessions that last so long, each with a lock of its own behind a proxy of its own.
async fn holders(path: &str, session_timeout: Duration) -> Vec<(Proxy, ZooKeeper, WriteGuard)> {
    let mut holders = Vec::new();
    for number in 0..CLIENTS {
        let proxy = Proxy::start(shared_server().address());
        let zk = connect_with(&proxy.address(), session_timeout).await;
        let guard = soon("a free lock", lock_at(&zk, &format!("{path}-{number}")).write()).await.expect("free");
        holders.push((proxy, zk, guard));
    }
    holders
}

/// Acquires the lock once more as soon as it is lost.
fn comes_back(path: String, zk: ZooKeeper, guard: WriteGuard) -> JoinHandle<()> {
    tokio::spawn(async move {
        guard.lost().await;
        lock_at(&zk, &path).write().await.expect("free again").release().await.expect("held");
    })
}

/// At least half of them paused.
fn are_spread_out(mut pauses: Vec<Duration>) {
    pauses.sort();
    assert!(pauses[CLIENTS / 2] >= AT_ONCE, "{pauses:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_find_their_sessions_over_pause_before_they_ask_for_others() {
    let (path, session_timeout) = ("/comeback/found", Duration::from_secs(6));
    let (mut proxies, mut coming) = (Vec::new(), Vec::new());
    for (number, (proxy, zk, guard)) in holders(path, session_timeout).await.into_iter().enumerate() {
        proxy.cut();
        proxy.reset();
        proxies.push(proxy);
        coming.push(comes_back(format!("{path}-{number}"), zk, guard));
    }
    // The longer they are away, the longer they may pause.
    sleep(session_timeout / 2).await;
    proxies.iter().for_each(|proxy| shared_server().end_session(&proxy.granted().expect("it has a session")));
    proxies.iter().for_each(Proxy::heal);
    for client in coming {
        within(2 * SOON, "its comeback", client).await.expect("it does not panic");
    }
    // The first handshake finds the old session over, and the second asks for another.
    let handshakes = proxies.iter().map(|proxy| proxy.arrivals(Op::Handshake));
    are_spread_out(handshakes.map(|all| all[1] - all[0]).collect());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_whose_sessions_end_in_an_outage_come_back_one_by_one() {
    let (path, session_timeout) = ("/comeback/outage", Duration::from_secs(2));
    let (mut proxies, mut coming) = (Vec::new(), Vec::new());
    for (number, (proxy, zk, guard)) in holders(path, session_timeout).await.into_iter().enumerate() {
        proxy.cut();
        proxy.reset();
        proxies.push(proxy);
        coming.push(comes_back(format!("{path}-{number}"), zk, guard));
    }
    // Long after they know that their sessions are over, and have begun to look for others.
    sleep(3 * session_timeout).await;
    let healed = Instant::now();
    proxies.iter().for_each(Proxy::heal);
    for client in coming {
        within(2 * SOON, "its comeback", client).await.expect("it does not panic");
    }
    let handshakes = proxies.iter().map(|proxy| proxy.arrivals(Op::Handshake));
    are_spread_out(handshakes.map(|all| all[0] - healed).collect());
}
