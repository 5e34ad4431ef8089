//! Thousands of waiters in one process. They survive a reconnect, keep their order, and use little memory and few
//! requests.
//!
//! `SCALE_WAITERS` sets the number of waiters. `make soak` sets 10,000.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use support::server::Server;
use support::wire::{Op, Proxy};
use zk_rwlock::{RwLock, ZooKeeper};

fn waiters() -> usize {
    std::env::var("SCALE_WAITERS").ok().and_then(|waiters| waiters.parse().ok()).unwrap_or(3_000)
}

async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(120);
    while !holds().await {
        assert!(Instant::now() < deadline, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// The client crate by itself could not restore so many watches on one session.
#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_of_waiters_keep_their_order_at_a_reconnect() {
    let count = waiters();
    let server = tokio::task::spawn_blocking(Server::start).await.expect("the server starts");
    let proxy = Proxy::start(server.address());
    let connect = async |address: String| {
        let zk = ZooKeeper::builder().session_timeout(Duration::from_secs(30)).connect(&address).await;
        zk.expect("the server can be reached")
    };
    let (zk, gatekeeper) = (connect(proxy.address()).await, connect(server.address()).await);
    let lock = RwLock::builder(&zk, "/scale/queue").host("w").build().expect("valid");
    let gate = RwLock::new(&gatekeeper, "/scale/queue").expect("valid");
    let held = gate.write().await.expect("free");

    let order = Arc::new(Mutex::new(Vec::new()));
    let queued = Arc::new(AtomicUsize::new(0));
    let tasks: Vec<_> = (0..count)
        .map(|_| {
            let (lock, order, queued) = (lock.clone(), Arc::clone(&order), Arc::clone(&queued));
            tokio::spawn(async move {
                queued.fetch_add(1, Ordering::Relaxed);
                let guard = lock.write().await.expect("a waiter survives the reconnect");
                let sequence: i64 =
                    guard.node_path().rsplit('-').next().and_then(|s| s.parse().ok()).expect("a sequence");
                order.lock().expect("no waiter panicked").push(sequence);
                guard.release().await.expect("held until released");
            })
        })
        .collect();
    eventually("everyone is queued", async || gate.queue().await.is_ok_and(|queue| queue.members.len() == count + 1))
        .await;
    // Every waiter watches two nodes: its predecessor's and its own.
    let all_watch = count as u64;
    eventually("everyone watches", async || server.watches() > all_watch).await;

    proxy.rst();
    eventually("the watches are back", async || proxy.count(Op::Exists) > all_watch && server.watches() > all_watch)
        .await;
    held.release().await.expect("held until released");
    for task in tasks {
        task.await.expect("no waiter panics");
    }
    let order = Arc::into_inner(order).expect("all tasks have ended").into_inner().expect("no waiter panicked");
    assert!(order.is_sorted(), "the order was not kept");
    assert_eq!(order.len(), count);
    eventually("no watch is left", async || server.watches() == 0).await;
    assert!(gate.queue().await.expect("reachable").members.is_empty());
}
