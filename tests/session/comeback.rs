//! Clients that have lost their sessions do not all come back at the same moment: each pauses for a time of its own.

use std::time::{Duration, Instant};

use support::scene::*;
use support::server::shared_server;
use support::wire::{Op, Proxy};
use tokio::task::JoinHandle;
use tokio::time::sleep;
use zk_rwlock::{WriteGuard, ZooKeeper};

const CLIENTS: usize = 12;

/// For how long they are cut off. A pause is up to a quarter of it, and half a session timeout at most.
const AWAY: Duration = Duration::from_secs(6);

/// So close together come clients that do not pause, or that all pause for the same time.
const TOGETHER: Duration = Duration::from_millis(100);

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

/// Three quarters of them never come together: the draws of sound clients do not do that once in ten thousand runs.
fn are_spread_out(mut comebacks: Vec<Duration>) {
    comebacks.sort();
    let many = CLIENTS * 3 / 4;
    let is_crowd = |window: &[Duration]| window[many - 1] - window[0] <= TOGETHER;
    assert!(!comebacks.windows(many).any(is_crowd), "{comebacks:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_find_their_sessions_over_pause_before_they_ask_for_others() {
    let (path, session_timeout) = ("/comeback/found", CALM);
    let (mut proxies, mut coming) = (Vec::new(), Vec::new());
    for (number, (proxy, zk, guard)) in holders(path, session_timeout).await.into_iter().enumerate() {
        proxy.cut();
        proxy.reset();
        proxies.push(proxy);
        coming.push(comes_back(format!("{path}-{number}"), zk, guard));
    }
    sleep(AWAY).await;
    proxies.iter().for_each(|proxy| shared_server().end_session(&proxy.granted().expect("it has a session")));
    proxies.iter().for_each(Proxy::heal);
    for client in coming {
        within(2 * SOON, "its comeback", client).await.expect("it does not panic");
    }
    // The first handshake finds the old session over, and the last one gets another.
    let handshakes = proxies.iter().map(|proxy| proxy.arrivals(Op::Handshake));
    are_spread_out(handshakes.map(|all| *all.last().expect("it is back") - all[0]).collect());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_whose_sessions_end_in_an_outage_pause_between_their_tries() {
    let (path, session_timeout) = ("/comeback/outage", Duration::from_secs(2));
    let (mut proxies, mut coming) = (Vec::new(), Vec::new());
    for (number, (proxy, zk, guard)) in holders(path, session_timeout).await.into_iter().enumerate() {
        proxy.cut();
        proxy.reset();
        proxies.push(proxy);
        coming.push(comes_back(format!("{path}-{number}"), zk, guard));
    }
    // Long after they know that their sessions are over, and have begun to look for others.
    sleep(AWAY).await;
    let healed = Instant::now();
    proxies.iter().for_each(Proxy::heal);
    for client in coming {
        within(2 * SOON, "its comeback", client).await.expect("it does not panic");
    }
    let handshakes = proxies.iter().map(|proxy| proxy.arrivals(Op::Handshake));
    are_spread_out(handshakes.map(|all| *all.last().expect("it is back") - healed).collect());
}
