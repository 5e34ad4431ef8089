//! Temporary smoke test.
mod support;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use zk_rwlock::{RwLock, ZooKeeper};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stress() {
    let server = support::server::shared_server();
    let mut zks = vec![];
    for _ in 0..10 {
        zks.push(
            ZooKeeper::builder().session_timeout(Duration::from_secs(6)).connect(&server.address()).await.unwrap(),
        );
    }
    let a = Arc::new(AtomicU64::new(0));
    let b = Arc::new(AtomicU64::new(0));
    let last = Arc::new(AtomicU64::new(0));
    let mut tasks = vec![];
    for i in 0..50usize {
        let zk = zks[i % 10].clone();
        let (a, b, last) = (a.clone(), b.clone(), last.clone());
        tasks.push(tokio::spawn(async move {
            let lock = RwLock::new(&zk, "/locks/stress").unwrap();
            for k in 0..20usize {
                if (i + k) % 4 == 0 {
                    let g = lock.write().await.unwrap();
                    let x = a.load(Ordering::Relaxed);
                    a.store(x + 1, Ordering::Relaxed);
                    tokio::task::yield_now().await;
                    let y = b.load(Ordering::Relaxed);
                    assert_eq!(x, y);
                    b.store(y + 1, Ordering::Relaxed);
                    let t = g.fencing_token() as u64;
                    assert!(last.swap(t, Ordering::Relaxed) < t);
                    if k % 3 == 0 {
                        drop(g)
                    } else if k % 3 == 1 {
                        g.downgrade().await.unwrap().release().await.unwrap()
                    } else {
                        g.release().await.unwrap();
                    }
                } else {
                    let g = lock.read().await.unwrap();
                    let x = a.load(Ordering::Relaxed);
                    tokio::task::yield_now().await;
                    assert_eq!(x, b.load(Ordering::Relaxed));
                    if k % 2 == 0 {
                        drop(g)
                    } else {
                        g.release().await.unwrap();
                    }
                }
            }
        }));
    }
    let t = Instant::now();
    for t in tasks {
        t.await.unwrap();
    }
    println!("stress {:?} a={} ", t.elapsed(), a.load(Ordering::Relaxed));
    assert_eq!(a.load(Ordering::Relaxed), 250);
    let lock = RwLock::new(&zks[0], "/locks/stress").unwrap();
    let end = Instant::now() + Duration::from_secs(5);
    while !lock.queue().await.unwrap().members.is_empty() || server.watches() > 0 {
        assert!(Instant::now() < end, "{} {}", lock.queue().await.unwrap(), server.four_letter("wchp"));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // cancels
    let hold = RwLock::new(&zks[1], "/locks/stress").unwrap();
    let mut guard = None;
    for i in 0..1000u64 {
        if i % 50 == 0 {
            guard = if i % 100 == 0 { Some(hold.write().await.unwrap()) } else { None }
        }
        let l = RwLock::new(&zks[(i % 10) as usize], "/locks/stress").unwrap();
        let d = Duration::from_micros((i * 7919) % 3000);
        if i % 2 == 0 {
            let _ = tokio::time::timeout(d, l.write()).await;
        } else {
            let _ = tokio::time::timeout(d, l.read()).await;
        }
    }
    drop(guard);
    let end = Instant::now() + Duration::from_secs(5);
    while !lock.queue().await.unwrap().members.is_empty() || server.watches() > 0 {
        assert!(Instant::now() < end, "{} {}", lock.queue().await.unwrap(), server.four_letter("wchp"));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    println!("cancels done {:?}", t.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many() {
    let server = support::server::shared_server();
    let zk = ZooKeeper::builder().session_timeout(Duration::from_secs(20)).connect(&server.address()).await.unwrap();
    let lock = RwLock::new(&zk, "/locks/many").unwrap();
    let gate = lock.write().await.unwrap();
    let n = 3000;
    let t = Instant::now();
    let tasks: Vec<_> = (0..n)
        .map(|_| {
            let l = lock.clone();
            tokio::spawn(async move {
                let g = l.write().await.unwrap();
                g.release().await.unwrap();
            })
        })
        .collect();
    while lock.queue().await.unwrap().members.len() != n + 1 {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    println!("{zk:?} queued {n} in {:?}; watches {}", t.elapsed(), server.watches());
    tokio::time::sleep(Duration::from_millis(300)).await;
    println!("watches {}", server.watches());
    let t = Instant::now();
    gate.release().await.unwrap();
    for t in tasks {
        t.await.unwrap();
    }
    println!("drained {:?}", t.elapsed());
    tokio::time::sleep(Duration::from_millis(300)).await;
    println!("watches {}", server.watches());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blip() {
    use zk_rwlock::HoldState;
    let server = support::server::Server::start();
    let proxy = support::wire::Proxy::start(server.address());
    let zk = ZooKeeper::builder().session_timeout(Duration::from_secs(3)).connect(&proxy.address()).await.unwrap();
    let other = ZooKeeper::builder().session_timeout(Duration::from_secs(3)).connect(&server.address()).await.unwrap();
    let lock = RwLock::new(&zk, "/locks/blip").unwrap();
    let g = lock.write().await.unwrap();
    let waiter = tokio::spawn({
        let l = lock.clone();
        async move { l.read().await }
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    let mut ch = g.changes();
    let log = tokio::spawn(async move {
        let t = Instant::now();
        while let Some(s) = ch.next().await {
            println!("{:?} {s:?}", t.elapsed());
        }
    });
    proxy.disconnect();
    tokio::time::sleep(Duration::from_millis(1000)).await;
    assert_eq!(g.state(), HoldState::Held);
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert!(g.is_held());
    }
    println!("still held after blip; requests {:?}", proxy.requests().iter().rev().take(6).collect::<Vec<_>>());
    proxy.black_hole();
    let t = Instant::now();
    let ol = RwLock::new(&other, "/locks/blip").unwrap();
    let next = tokio::spawn(async move {
        let g = ol.write().await.unwrap();
        (Instant::now(), g)
    });
    let why = g.lost().await;
    println!("lost after {:?}: {why}", t.elapsed());
    let (at, g2) = next.await.unwrap();
    println!("next granted after {:?}", at - t);
    proxy.heal();
    println!("waiter: {:?}", waiter.await.unwrap().map(|_| ()));
    println!("release: {:?}", g.release().await);
    let again = lock.read().timeout(Duration::from_millis(300)).await.unwrap_err();
    println!("{again}");
    g2.release().await.unwrap();
    let _g = lock.read().await.unwrap();
    log.await.unwrap();
}
