//! The snippets of `docs/guide.md`.

use zk_rwlock::{Error, Memory};

#[support::judged]
async fn the_lock() -> Result<(), Error> {
    async fn close_the_month() {}
    let zk = Memory::new();
    // page: the-lock
    use std::time::Duration;
    use zk_rwlock::RwLock;

    let lock = RwLock::new(&zk, "/locks/billing")?;
    let guard = lock.write().timeout(Duration::from_secs(30)).label("close the month").await?; // or read()
    guard.run(close_the_month()).await?; // fails if the lock is lost meanwhile
    guard.release().await?;
    // end
    Ok(())
}

#[support::judged]
async fn shared_configuration() -> Result<(), Error> {
    let zk = Memory::new();
    // page: shared-configuration
    use serde::{Deserialize, Serialize};
    use std::time::Duration;
    use zk_rwlock::Shared;

    #[derive(Serialize, Deserialize)]
    struct Config {
        endpoint: String,
        password: String,
    }

    let first = || Config { endpoint: "db-1".to_owned(), password: "secret".to_owned() };
    let config = Shared::builder(&zk, "/billing/config").initial(first).build()?;

    // No process changes it while the guard is held.
    let reader = config.read().timeout(Duration::from_secs(5)).await?;
    println!("{} as of {}", reader.endpoint, reader.written());
    reader.release().await?;

    // A copy, to change as you like. A change that is not committed is discarded.
    let mut writer = config.write().timeout(Duration::from_secs(5)).label("rotate password").await?;
    writer.password = "more secret".to_owned();
    writer.commit().await?;
    writer.release().await?;

    // The same in one call.
    config.update(|config| config.password = "very secret".to_owned()).label("rotate password").await?;

    // Waits for an answer of the servers. Fails if there is no value, and no `initial`.
    let live = config.live().timeout(Duration::from_secs(30)).await?;
    assert_eq!(live.get().password, "very secret");
    // end
    Ok(())
}

#[support::judged]
async fn guarded_writes() -> Result<(), Error> {
    let zk = Memory::new();
    // page: guarded-writes
    use zk_rwlock::RwLock;

    let lock = RwLock::new(&zk, "/locks/config")?;
    let guard = lock.write().await?;
    guard.transaction().create("/endpoint", "db-1").create("/password", "secret-1").commit().await?;
    let endpoint = guard.read_node("/endpoint").await?.expect("just created");
    guard
        .transaction()
        .set_version("/endpoint", "db-2", endpoint.version)
        .set("/password", "secret-2")
        .commit()
        .await?;
    // end
    Ok(())
}

#[support::judged]
async fn batch_workers() -> Result<(), Error> {
    async fn process(_partition: u32, _token: i64) {}
    let zk = Memory::new();
    // page: batch-workers
    use zk_rwlock::RwLock;

    for partition in 0..4 {
        let lock = RwLock::new(&zk, format!("/locks/batch/{partition}"))?;
        let guard = match lock.try_write().await {
            Ok(guard) => guard,
            Err(taken) if taken.is_would_block() => continue, // nothing was written
            Err(error) => return Err(error),
        };
        tokio::select! {
            () = process(partition, guard.fencing_token()) => guard.release().await?,
            why = guard.lost() => eprintln!("partition {partition} is dropped: {why}"),
        }
    }
    // end
    Ok(())
}

#[support::judged]
async fn jobs_that_cron_starts_on_every_host() -> Result<(), Error> {
    async fn send_report(_token: i64) -> Result<(), Error> {
        Ok(())
    }
    let zk = Memory::new();
    // page: jobs-that-cron-starts-on-every-host
    use std::time::Duration;
    use zk_rwlock::RwLock;
    use zk_rwlock::once::Work;

    let lock = RwLock::builder(&zk, "/cron/report").label("hourly report").build()?;
    let period = Duration::from_secs(50 * 60);

    match lock.write().timeout(Duration::from_secs(30 * 60)).once_in(period).await? {
        Work::Done(record) => println!("{record}"), // when it was done, and by whom
        Work::Due(guard) => {
            // If this fails, nothing is recorded, and the next host does it.
            guard.run(send_report(guard.fencing_token())).await??;
            guard.done().await?;
            guard.release().await?;
        }
    }
    // end
    assert!(!lock.write().once_in(period).await?.is_due());
    zk.faults().set_clock_forward(period);
    assert!(lock.write().once_in(period).await?.is_due());
    Ok(())
}

#[support::judged]
async fn one_leader() -> Result<(), Error> {
    let zk = Memory::new();
    async fn database_answers() -> bool {
        true
    }
    async fn next_job() -> Option<u32> {
        None
    }
    // page: one-leader
    use std::time::Duration;
    use zk_rwlock::Leadership;
    use zk_rwlock::leadership::Term;

    let mut handed_out = 0; // the work may have state, which the next term goes on with
    let schedule = async move |term: Term| {
        while let Some(job) = next_job().await {
            // Done only if this term lasts, and `/jobs` is there. To other systems, send `term.number()` as a token.
            term.transaction().create(format!("/jobs/{job}"), "to do").commit().await?;
            handed_out += 1;
        }
        Ok::<_, Error>(handed_out)
    };

    let leadership = Leadership::builder(&zk, "/leaders/scheduler")
        .data("http://web-1:8080") // what all can read of the leader
        .health(Duration::from_secs(5), database_answers)
        .build()?;
    if let Some(done) = leadership.lead_mut(schedule).await? {
        done?; // the work has ended by itself
    }
    // end
    Ok(())
}

#[support::judged]
async fn at_most_so_many_at_once() -> Result<(), Error> {
    let zk = Memory::new();
    async fn ask_the_geocoder() {}
    // page: at-most-so-many-at-once
    use std::time::Duration;
    use zk_rwlock::Semaphore;

    let geocoder = Semaphore::builder(&zk, "/limits/geocoder").build()?;
    geocoder.set_permits(10).await?; // once, by an operator, and not by each worker

    let permit = geocoder.acquire().timeout(Duration::from_secs(30)).await?; // the error names the holders
    permit.run(ask_the_geocoder()).await?; // dropped if the permit is lost
    permit.release().await?;

    let four = geocoder.acquire_many(4).await?; // all four or none
    println!("{}", geocoder.queue().await?); // 6 of 10 permits free, and who has the others
    // end
    assert_eq!(four.count(), 4);
    Ok(())
}

#[support::judged]
async fn mixed_fleets() -> Result<(), Error> {
    let zk = Memory::new();
    // page: mixed-fleets
    use zk_rwlock::{Dialect, RwLock};

    let lock = RwLock::builder(&zk, "/locks/billing").dialect(Dialect::Curator).build()?;
    let guard = lock.write().await?; // InterProcessReadWriteLock(client, "/locks/billing") waits
    guard.release().await?;
    // end
    Ok(())
}

#[test]
fn programs_without_a_runtime() -> Result<(), Error> {
    // page: programs-without-a-runtime
    use std::time::Duration;
    use zk_rwlock::{Error, Memory, RwLock, block_on};

    fn main() -> Result<(), Error> {
        let zk = Memory::new(); // or: block_on(ZooKeeper::connect("zk1:2181,zk2:2181,zk3:2181"))?
        let lock = RwLock::new(&zk, "/locks/report")?;

        let guard = lock.write().label("monthly report").timeout(Duration::from_secs(60)).blocking()?;
        for page in 1..=12 {
            if !guard.is_held() {
                break; // the lock is lost
            }
            block_on(guard.transaction().create(format!("/page-{page}"), "done").commit())?;
        }
        println!("{}", lock.queue().blocking()?);
        block_on(guard.release())?;
        block_on(zk.close());
        Ok(())
    }
    // end
    main()
}

#[support::judged]
async fn tests_without_a_server() -> Result<(), Error> {
    // page: tests-without-a-server
    use zk_rwlock::{Loss, Memory, RwLock};

    tokio::time::pause(); // or #[tokio::test(start_paused = true)]
    let zk = Memory::new();
    let guard = RwLock::new(&zk, "/locks/billing")?.write().label("migrate v42").await?;
    let refused = RwLock::new(&zk.connect(), "/locks/billing")?.try_read().await.unwrap_err();
    assert!(refused.to_string().contains("migrate v42")); // the error names the holder

    zk.faults().cut();
    assert!(guard.is_held()); // the lease runs
    let work = std::future::pending::<()>(); // yours
    assert!(guard.run(work).await.is_err()); // dropped when the lease ends
    assert_eq!(guard.lost().await, Loss::LeaseRanOut);
    // end
    Ok(())
}

#[support::judged]
async fn a_function_that_takes_both_backends() -> Result<(), Error> {
    let zk = Memory::new();
    // page: tests-without-a-server
    use std::sync::Arc;
    use zk_rwlock::{Coordinator, Error, RwLock};

    fn migration_lock<C: Coordinator + Clone>(zk: &C) -> Result<RwLock, Error> {
        RwLock::new(zk, "/locks/migration")
    }

    struct Service {
        zk: Arc<dyn Coordinator>,
    }

    let service = Service { zk: Arc::new(zk) };
    let lock = migration_lock(&service.zk)?;
    // end
    lock.write().await?.release().await
}
