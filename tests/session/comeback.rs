//! Clients that have lost their sessions do not all come back at the same moment: each pauses for a time of its own.

use std::time::{Duration, Instant};

use support::scene::*;
use support::server::shared_server;
use support::wire::{Op, Proxy};
use tokio::task::JoinSet;
use tokio::time::sleep;

const CLIENTS: usize = 12;

/// For how long they are cut off. A pause is up to a quarter of it, and half a session timeout at most.
const AWAY: Duration = Duration::from_secs(6);

/// So close together come clients that do not pause, or that all pause for the same time.
const TOGETHER: Duration = Duration::from_millis(100);

/// Clients that have been cut off for a while, each behind a proxy of its own. Each of them held a lock, and acquires it once
/// more as soon as it is lost.
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

/// Three quarters of them never come together: the draws of sound clients do not do that once in ten thousand runs.
fn are_spread_out(mut comebacks: Vec<Duration>) {
    comebacks.sort();
    let many = CLIENTS * 3 / 4;
    let is_crowd = |window: &[Duration]| window[many - 1] - window[0] <= TOGETHER;
    assert!(!comebacks.windows(many).any(is_crowd), "{comebacks:?}");
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn clients_pause_before_they_replace_ended_sessions() {
    let (proxies, coming) = cut_off("/comeback/found", CALM).await;
    proxies.iter().for_each(|proxy| shared_server().end_session(&proxy.granted().expect("it has a session")));
    proxies.iter().for_each(Proxy::heal);
    within(2 * SOON, "all comebacks", coming.join_all()).await;
    // The first handshake finds the old session over, and the last one gets another.
    let handshakes = proxies.iter().map(|proxy| proxy.arrivals(Op::Handshake));
    are_spread_out(handshakes.map(|all| *all.last().expect("it is back") - all[0]).collect());
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn clients_pause_between_retries_in_an_outage() {
    // They know for long that their sessions are over, and look for others.
    let (proxies, coming) = cut_off("/comeback/outage", AWAY / 3).await;
    let healed = Instant::now();
    proxies.iter().for_each(Proxy::heal);
    within(2 * SOON, "all comebacks", coming.join_all()).await;
    let handshakes = proxies.iter().map(|proxy| proxy.arrivals(Op::Handshake));
    are_spread_out(handshakes.map(|all| *all.last().expect("it is back") - healed).collect());
}
