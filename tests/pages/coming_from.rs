//! The snippets of `docs/coming-from.md`.

use zk_rwlock::{Error, Memory};

#[support::judged]
async fn apache_curator() -> Result<(), Error> {
    // page: apache-curator
    use std::time::Duration;
    use zk_rwlock::{HoldState, Mode, MultiLock, RwLock, ZooKeeper};

    // hidden
    async fn connect() -> Result<ZooKeeper, Error> {
        // shown
        let zk = ZooKeeper::connect("zk1:2181").await?;
        // hidden
        Ok(zk)
    }
    let _needs_a_server = connect;
    let (zk, path) = (Memory::new(), "/locks/config");
    let work = async {};
    // shown
    let lock = RwLock::new(&zk, path)?;
    let reader = lock.read().await?;
    let again = reader.share();
    drop((reader, again));

    let guard = lock.write().timeout(Duration::from_secs(30)).await?;
    assert!(guard.is_held() && guard.state() == HoldState::Held);
    guard.run(work).await?;
    guard.release().await?;

    let writer = lock.write().await?;
    writer.transaction().create("/config", "v1").commit().await?;
    writer.transaction().set("/config", "v2").commit().await?;
    writer.release().await?;

    let guard = lock.try_write().await?;
    println!("{}", lock.queue().await?);
    let reader = guard.downgrade().await?;
    drop(reader);

    let (a, b) = (RwLock::new(&zk, "/locks/a")?, RwLock::new(&zk, "/locks/b")?);
    let both = MultiLock::new([(&a, Mode::Write), (&b, Mode::Write)])?;
    both.lock().await?.release().await?;
    // end
    Ok(())
}

#[support::judged]
async fn kazoo() -> Result<(), Error> {
    // page: kazoo
    use std::time::Duration;
    use zk_rwlock::{RwLock, ZooKeeper};

    // hidden
    async fn connect() -> Result<ZooKeeper, Error> {
        // shown
        let zk = ZooKeeper::builder().connect("zk1:2181").await?;
        // hidden
        Ok(zk)
    }
    let _needs_a_server = connect;
    let (zk, path) = (Memory::new(), "/locks/config");
    // shown
    let lock = RwLock::builder(&zk, path).host("web-1").build()?;
    let guard = lock.write().await?;
    let its = lock.clone();
    let waiting = tokio::spawn(async move { its.read().await });
    waiting.abort();
    assert!(guard.is_held());
    let mut changes = guard.changes();
    println!("{:?}", changes.next().await);
    drop(guard);

    let guard = lock.write().timeout(Duration::from_secs(30)).await?;
    drop(guard);
    let guard = lock.try_read().await?;
    // end
    drop(guard);
    Ok(())
}

#[support::judged]
async fn etcd() -> Result<(), Error> {
    // page: etcd
    use std::time::Duration;
    use zk_rwlock::{RwLock, ZooKeeper};

    let options = ZooKeeper::builder().session_timeout(Duration::from_secs(10));
    // hidden
    drop(options);
    let zk = Memory::new();
    // shown
    let lock = RwLock::new(&zk, "/locks/config")?;
    let guard = lock.write().await?;
    println!("token {}", guard.fencing_token());
    guard.transaction().create("/config", "v1").commit().await?;
    guard.release().await?;

    let guard = lock.write().await?;
    tokio::select! {
        why = async { guard.lost().await } => println!("stop, because {why}"),
        () = async { /* the work */ } => {}
    }
    drop(guard);
    lock.try_write().await?.release().await?;
    lock.read().await?.release().await?;
    // end
    Ok(())
}

#[support::judged]
async fn electing_a_leader() -> Result<(), Error> {
    let zk = Memory::new();
    // page: electing-a-leader
    use zk_rwlock::Leadership;
    use zk_rwlock::leadership::Term;

    let leadership = Leadership::builder(&zk, "/leaders/scheduler").data("http://web-1:8080").build()?;
    let mut changes = leadership.changes();
    let work = async |term: Term| println!("this one leads in term {}", term.number());
    leadership.lead(work).await?;

    assert!(!leadership.is_leader());
    assert!(!leadership.resign().await);
    leadership.stop().await;
    println!("{:?}, {:?}", leadership.leader().await?, changes.next().await);
    // end
    Ok(())
}
