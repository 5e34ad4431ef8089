//! Clients that have lost their sessions do not all open new ones at the same moment: each client first waits for a random time.

use std::time::{Duration, Instant};

use support::scene::*;
use support::server::shared_server;
use support::wire::{Op, Proxy};
use tokio::task::JoinSet;
use tokio::time::sleep;

const CLIENTS: usize = 12;

/// The time for which the clients are cut off. A client's random pause takes up to a quarter of this time, and at most half a
/// session timeout.
const AWAY: Duration = Duration::from_secs(6);

/// Without random pauses, all clients would reconnect within this time.
const TOGETHER: Duration = Duration::from_millis(100);

/// Connects clients, each through a proxy of its own, and cuts them all off for a while. Each client holds a lock, and acquires
/// the lock again as soon as the lock is lost.
async fn cut_off(path: &str, session_timeout: Duration) -> (Vec<Proxy>, JoinSet<()>) {
    let (mut proxies, mut holders) = (Vec::new(), Vec::new());
    for number in 0..CLIENTS {
        let proxy = Proxy::start(shared_server().address());
        let zk = connect_with(&proxy.address(), session_timeout).await;
        let lock = lock_at(&zk, &format!("{path}-{number}"));
        holders.push((soon("a free lock", lock.write()).await.expect("free"), lock));
        proxies.push(proxy);
    }
    let mut coming = JoinSet::new();
    for ((guard, lock), proxy) in holders.into_iter().zip(&proxies) {
        proxy.cut();
        proxy.reset();
        coming.spawn(async move {
            guard.lost().await;
            lock.write().await.expect("free again").release().await.expect("held");
        });
    }
    sleep(AWAY).await;
    (proxies, coming)
}

/// Checks that the reconnects are spread out. With random pauses, three quarters of the reconnects fall within `TOGETHER` less
/// than once in ten thousand runs.
fn assert_spread_out(mut comebacks: Vec<Duration>) {
    comebacks.sort();
    let many = CLIENTS * 3 / 4;
    let is_crowd = |window: &[Duration]| window[many - 1] - window[0] <= TOGETHER;
    assert!(!comebacks.windows(many).any(is_crowd), "{comebacks:?}");
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn clients_pause_before_they_replace_ended_sessions() {
    let (proxies, coming) = cut_off("/comeback/found", CALM).await;
    proxies.iter().for_each(|proxy| shared_server().end_session(&proxy.granted().expect("the client has a session")));
    proxies.iter().for_each(Proxy::heal);
    within(2 * SOON, "all comebacks", coming.join_all()).await;
    // The times are measured from each client's first handshake, which finds that the old session has ended, to its last
    // handshake, which opens a new session.
    let handshakes = proxies.iter().map(|proxy| proxy.arrivals(Op::Handshake));
    assert_spread_out(handshakes.map(|all| *all.last().expect("the client has reconnected") - all[0]).collect());
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn clients_pause_between_retries_in_an_outage() {
    // The session timeout is a third of `AWAY`, so these clients notice the end of their sessions while they are cut off, and
    // keep trying to open new ones.
    let (proxies, coming) = cut_off("/comeback/outage", AWAY / 3).await;
    let healed = Instant::now();
    proxies.iter().for_each(Proxy::heal);
    within(2 * SOON, "all comebacks", coming.join_all()).await;
    let handshakes = proxies.iter().map(|proxy| proxy.arrivals(Op::Handshake));
    assert_spread_out(handshakes.map(|all| *all.last().expect("the client has reconnected") - healed).collect());
}
