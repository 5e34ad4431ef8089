//! The snippets of `README.md`; knows nothing of the words around them.

use zk_rwlock::{Error, Memory};

#[expect(dead_code, reason = "it needs a server")]
fn zk_rwlock() -> Result<(), Error> {
    // page: zk-rwlock
    use serde::{Deserialize, Serialize};
    use zk_rwlock::{Shared, ZooKeeper};

    #[derive(Serialize, Deserialize)]
    struct Config {
        endpoint: String,
    }

    #[tokio::main]
    async fn main() -> Result<(), zk_rwlock::Error> {
        let zk = ZooKeeper::connect("zk1:2181,zk2:2181,zk3:2181").await?;
        let config = Shared::builder(&zk, "/billing/config").initial(|| Config { endpoint: "db-1".into() }).build()?;

        let reader = config.read().await?; // together with other readers
        println!("connecting to {}", reader.endpoint);
        reader.release().await?;

        let mut writer = config.write().label("move to db-2").await?; // alone
        writer.endpoint = "db-2".into();
        writer.commit().await?; // done only if the lock is still held
        writer.release().await
    }
    // end
    let _needs_a_server: fn() -> Result<(), Error> = main;
    Ok(())
}

#[expect(dead_code, reason = "it needs a server")]
async fn zk_rwlock_2(zk: zk_rwlock::ZooKeeper) -> Result<(), Error> {
    // page: zk-rwlock
    use std::time::Duration;
    use zk_rwlock::RwLock;

    let lock = RwLock::new(&zk, "/locks/billing")?;
    let writer = lock.write().timeout(Duration::from_secs(30)).label("migrate v42").await?;
    writer.run(async { /* dropped at its next await if the lock is lost */ }).await?;
    writer.release().await
    // end
}

#[tokio::test]
async fn zk_rwlock_3() -> Result<(), Error> {
    // page: zk-rwlock
    use zk_rwlock::{Memory, RwLock};

    let zk = Memory::new();
    let other_process = zk.connect();
    let guard = RwLock::new(&zk, "/locks/billing")?.write().label("migrate v42").await?;

    let refused = RwLock::new(&other_process, "/locks/billing")?.try_read().await.unwrap_err();
    assert!(refused.to_string().contains("migrate v42")); // the error names the holder

    zk.expire(); // the ensemble gives up our session
    assert!(!guard.is_held());
    // end
    Ok(())
}

#[expect(dead_code, reason = "it needs a server")]
async fn security(password: &str) -> Result<(), Box<dyn std::error::Error>> {
    // page: security
    use zk_rwlock::{Tls, ZooKeeper};

    let tls = Tls::from_ca_pem(&std::fs::read_to_string("ca.pem")?)?;
    let zk = ZooKeeper::builder().tls(tls).digest("billing", password).connect("zk1:2281,zk2:2281,zk3:2281").await?;
    // end
    zk.close().await;
    Ok(())
}

#[tokio::test]
async fn guarded_writes() -> Result<(), Error> {
    let lock = RwLock::new(&Memory::new(), "/locks/config")?;
    // page: guarded-writes
    use zk_rwlock::RwLock;

    let guard = lock.write().await?;
    guard.transaction().create("/endpoint", "db-1").create("/password", "secret-1").commit().await?;
    let endpoint = guard.data("/endpoint").await?.expect("just created");
    guard
        .transaction()
        .set_version("/endpoint", "db-2", endpoint.version)
        .set("/password", "secret-2")
        .commit()
        .await?;
    // end
    Ok(())
}

#[tokio::test]
async fn a_value_behind_the_lock() -> Result<(), Error> {
    let zk = Memory::new();
    // page: a-value-behind-the-lock
    use zk_rwlock::Shared;

    let limit: Shared<u32> = Shared::builder(&zk, "/limits/requests").initial(|| 100).build()?;
    let live = limit.live().await?;
    let mut value = limit.write().label("double").await?;
    *value *= 2;
    value.commit().await?; // without it, dropping the guard discards the change
    drop(value);
    limit.update(|limit| *limit += 1).await?; // the same in one call

    assert_eq!(**live.get(), 201);
    // end
    Ok(())
}

#[tokio::test]
async fn several_locks_at_once() -> Result<(), Error> {
    let zk = Memory::new();
    // page: several-locks-at-once
    use std::time::Duration;
    use zk_rwlock::MultiLock;

    let both =
        MultiLock::builder(&zk).write("/locks/accounts/7").write("/locks/accounts/3").read("/locks/rates").build()?;
    let guard = both.lock().timeout(Duration::from_secs(30)).await?; // the error says which lock could not be taken
    guard.transaction().create("/transfer-42", "from 7 to 3").commit().await?;
    guard.release().await?; // the last one first
    // end
    Ok(())
}

#[tokio::test]
async fn the_cost() -> Result<(), Error> {
    let zk = Memory::new();
    // page: the-cost
    use std::time::Duration;
    use zk_rwlock::RwLock;

    let lock = RwLock::builder(&zk, "/locks/config").keep(Duration::from_secs(60)).build()?;
    drop(lock.read().await?); // makes a node, which stays
    let before = zk.requests();
    drop(lock.read().await?);
    assert_eq!(zk.requests(), before);
    // end
    Ok(())
}

#[tokio::test]
async fn seeing_inside() -> Result<(), Error> {
    let zk = Memory::new();
    // page: seeing-inside
    use std::time::Duration;
    use zk_rwlock::{Deadlock, RwLock};

    let lock = RwLock::builder(&zk, "/locks/config")
        .warn_after_waiting(Duration::from_secs(30)) // logs which contenders are in the way
        .warn_after_holding(Duration::from_secs(60)) // logs the holder's label
        .on_deadlock(Deadlock::Refuse) // an error if a task waits for itself; default: a warning
        .build()?;
    let guard = lock.write().label("rebuild").on_wait(|progress| eprintln!("waiting at {progress}")).await?;
    tokio::select! {
        biased;
        () = async { /* the next part of a long piece of work */ } => {}
        first = guard.contended() => println!("time to make way for {}", first?),
    }
    // end
    Ok(())
}
