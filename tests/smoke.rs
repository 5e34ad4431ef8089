//! Temporary smoke test.
mod support;
use std::time::Duration;
use zk_rwlock::{Memory, RwLock, ZooKeeper, coordinator::Coordinator};

async fn drive<C: Coordinator + Clone>(a: C, b: C) {
    let la = RwLock::new(&a, "/locks/smoke").unwrap();
    let lb = RwLock::new(&b, "/locks/smoke").unwrap();
    let r1 = la.read().label("one").await.unwrap();
    let r2 = lb.read().await.unwrap();
    println!("{}", la.queue().await.unwrap());
    let w = lb.write().label("x").timeout(Duration::from_millis(100)).await.unwrap_err();
    println!("{w}");
    assert!(lb.try_write().await.unwrap_err().is_would_block());
    let w = tokio::spawn({
        let lb = lb.clone();
        async move { lb.write().label("w").await.unwrap() }
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    println!("{}", la.queue().await.unwrap());
    let r3 = tokio::spawn({
        let lb = la.clone();
        async move { lb.read().label("r3").await.unwrap() }
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    r1.release().await.unwrap();
    r2.release().await.unwrap();
    let w = w.await.unwrap();
    println!("{}", la.queue().await.unwrap());
    let t = w.fencing_token();
    w.release().await.unwrap();
    let r3 = r3.await.unwrap();
    assert!(r3.fencing_token() > t);
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(r3.is_held());
    drop(r3);
    let w = la.write().await.unwrap();
    let r = w.downgrade().await.unwrap();
    println!("{}", la.queue().await.unwrap());
    r.release().await.unwrap();
    println!("{}", la.queue().await.unwrap());
}

#[tokio::test]
async fn memory() {
    let zk = Memory::new();
    drive(zk.clone(), zk.connect()).await;
    assert_eq!(zk.watches(), 0);
}

#[tokio::test]
async fn zookeeper() {
    let server = support::server::shared_server();
    let a = ZooKeeper::connect(&server.address()).await.unwrap();
    let b = ZooKeeper::connect(&server.address()).await.unwrap();
    drive(a.clone(), b).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(server.watches(), 0);
    a.close().await;
}
