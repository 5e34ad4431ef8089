//! The snippets of `docs/operating.md`.

use zk_rwlock::{Error, Memory};

#[support::judged]
async fn reading_the_queue() -> Result<(), Error> {
    let zk = Memory::new();
    // page: reading-the-queue
    use zk_rwlock::RwLock;

    let lock = RwLock::new(&zk, "/locks/orders/migrate")?;
    let guard = lock.write().label("migrate v42").await?;
    let queue = lock.queue().await?;
    println!("{queue}"); // /locks/orders/migrate:\n  WRITE web-1 pid 4242 "migrate v42" queued 12s ago, holds
    let holder = queue.holders().next().expect("we do");
    assert_eq!(holder.label.as_deref(), Some("migrate v42"));
    // end
    drop(guard);
    Ok(())
}

#[expect(dead_code, reason = "it needs a server")]
async fn who_may_do_what(password: &str) -> Result<(), Error> {
    // page: who-may-do-what
    use zk_rwlock::ZooKeeper;
    use zk_rwlock::security::{Acl, Permissions};

    let zk = ZooKeeper::builder()
        .digest("orders", password)
        .acl(Acl::creator().allow("world", "anyone", Permissions::READ)) // others may look
        .connect("zk1:2181,zk2:2181,zk3:2181")
        .await?;
    // end
    zk.close().await;
    Ok(())
}

#[test]
fn metrics_of_each_lock() -> Result<(), Error> {
    let zk = Memory::new();
    // page: metrics-of-each-lock
    use zk_rwlock::RwLock;

    let config = RwLock::builder(&zk, "/locks/config").metrics_by_path(str::to_owned).build()?;
    let order = RwLock::builder(&zk, "/locks/orders/4711").metrics_by_path(|_| "/locks/orders".to_owned()).build()?;
    // end
    drop((config, order));
    Ok(())
}

#[test]
fn a_readiness_probe() {
    let zk = Memory::new();
    let respond = |code: u16, text: &str| assert_eq!((code, text), (200, "connected"));
    // page: a-readiness-probe
    use zk_rwlock::ConnectionState;

    match zk.state() {
        ConnectionState::Connected => respond(200, "connected"),
        state => respond(503, &state.to_string()), // connecting for 7s: zk1:2181: Connection refused (os error 111)
    }
    // end
}
