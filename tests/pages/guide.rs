//! The snippets of `docs/guide.md`; knows nothing of the words around them.

use zk_rwlock::{Error, Memory};

#[tokio::test]
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

    // For each request that you serve: no lock, nothing sent. Only the first value has to be waited for.
    let live = config.live().timeout(Duration::from_secs(30)).await?;
    assert_eq!(live.get().password, "very secret");
    // end
    Ok(())
}

#[tokio::test]
async fn shared_configuration_2() -> Result<(), Error> {
    let zk = Memory::new();
    // page: shared-configuration
    use std::time::Duration;
    use zk_rwlock::RwLock;

    let lock = RwLock::new(&zk, "/locks/billing")?;

    // Alone: both nodes change together, and only if the lock is held when the ensemble commits the change.
    let writer = lock.write().timeout(Duration::from_secs(5)).label("rotate password").await?;
    writer.transaction().create("/endpoint", "db-1").create("/password", "secret").commit().await?;

    // From writer to reader without a gap: no other writer comes before we have read the nodes back.
    let reader = writer.downgrade().await?;
    let endpoint = reader.data("/endpoint").await?.expect("just created");
    assert_eq!(endpoint.data, b"db-1");
    reader.release().await?;
    // end
    Ok(())
}

#[tokio::test]
async fn guarded_writes() -> Result<(), Error> {
    let zk = Memory::new();
    // page: guarded-writes
    use zk_rwlock::RwLock;

    let lock = RwLock::new(&zk, "/locks/config")?;
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
async fn from_reading_to_writing() -> Result<(), Error> {
    let zk = Memory::new();
    let before = zk_rwlock::RwLock::new(&zk, "/locks/report")?.write().await?;
    before.transaction().create("/report", "stale").commit().await?;
    before.release().await?;
    // page: from-reading-to-writing
    use zk_rwlock::{NodeData, RwLock};

    let lock = RwLock::new(&zk, "/locks/report")?;
    let is_stale = |report: &Option<NodeData>| report.as_ref().is_some_and(|report| report.data == b"stale");

    let reader = lock.read().await?; // with many others, and most of the time there is nothing to do
    let report = reader.data("/report").await?;
    reader.release().await?;
    if is_stale(&report) {
        let writer = lock.write().await?;
        if is_stale(&writer.data("/report").await?) {
            writer.transaction().set("/report", "fresh").commit().await?; // by one of those who saw it stale
        }
        writer.release().await?;
    }
    // end
    assert_eq!(lock.read().await?.data("/report").await?.unwrap().data, b"fresh");
    Ok(())
}

#[tokio::test]
async fn keep_the_lock_between_uses() -> Result<(), Error> {
    let zk = Memory::new();
    // page: keep-the-lock-between-uses
    use std::time::Duration;
    use zk_rwlock::RwLock;

    let lock = RwLock::builder(&zk, "/locks/billing").keep(Duration::from_secs(60)).build()?;
    let token = lock.read().await?.fencing_token();
    assert_eq!(lock.read().await?.fencing_token(), token); // the same node, and nothing was sent

    let elsewhere = RwLock::new(&zk.connect(), "/locks/billing")?;
    let writer = elsewhere.write().await?; // asks, and is granted as soon as no read runs
    assert!(writer.fencing_token() > token);
    // end
    Ok(())
}

#[tokio::test]
async fn database_migrations() -> Result<(), Box<dyn std::error::Error>> {
    use sqlx::migrate::{Migrate, Migration, MigrationType};
    use sqlx::{Connection, SqliteConnection};
    let zk = Memory::new();
    let orders = "CREATE TABLE orders (id INTEGER PRIMARY KEY)";
    let migration = Migration::new(42, "orders".into(), MigrationType::Simple, orders.into(), false);
    let mut database = SqliteConnection::connect("sqlite::memory:").await?;
    database.ensure_migrations_table().await?;
    sqlx::raw_sql(
        "CREATE TABLE lock_fence (name TEXT PRIMARY KEY, token INTEGER NOT NULL);
        INSERT INTO lock_fence VALUES ('schema', 0);",
    )
    .execute(&mut database)
    .await?;
    // page: database-migrations
    use std::time::Duration;
    use zk_rwlock::RwLock;

    let lock = RwLock::new(&zk, "/locks/orders/migrate")?;
    let guard = lock
        .write()
        .timeout(Duration::from_secs(600))
        .label("orders: migrate to v42")
        .on_wait(|progress| println!("waiting at {progress}"))
        .await?;

    let token = guard.fencing_token();
    let work = async {
        let mut transaction = database.begin_with("BEGIN IMMEDIATE").await?; // in Postgres: begin()
        let seen = "UPDATE lock_fence SET token = $1 WHERE name = 'schema' AND token <= $1";
        if sqlx::query(seen).bind(token).execute(&mut *transaction).await?.rows_affected() == 0 {
            return Err("a later holder has been here".into());
        }
        transaction.apply(&migration).await?;
        Ok::<(), Box<dyn std::error::Error>>(transaction.commit().await?)
    };
    guard.run(work).await??; // dropped at its next await if the lock is lost
    guard.release().await?;
    // end
    assert_eq!(database.list_applied_migrations().await?[0].version, 42);
    Ok(())
}

#[tokio::test]
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

#[tokio::test]
async fn batch_workers_2() -> Result<(), Error> {
    // page: batch-workers
    use zk_rwlock::{Loss, Memory, RwLock};

    let zk = Memory::new();
    let guard = RwLock::new(&zk, "/locks/batch/7")?.write().await?;
    zk.faults().expire(); // as if the ensemble had given our session up
    assert!(matches!(guard.lost().await, Loss::SessionOver(_)));
    assert!(guard.run(async { "work" }).await.is_err());
    // end
    Ok(())
}

#[tokio::test]
async fn jobs_that_cron_starts_on_every_host() -> Result<(), Error> {
    async fn send_report(_token: i64) -> Result<(), Error> {
        Ok(())
    }
    let zk = Memory::new();
    // page: jobs-that-cron-starts-on-every-host
    use std::time::Duration;
    use zk_rwlock::RwLock;

    let lock = RwLock::builder(&zk, "/cron/report").label("hourly report").build()?;
    let period = Duration::from_secs(50 * 60);

    match lock.write().timeout(Duration::from_secs(30 * 60)).once_in(period).await? {
        None => println!("{}", lock.queue().await?), // when it was last done, and by whom
        Some(guard) => {
            // If this fails, nothing is recorded, and the next host does it.
            guard.run(send_report(guard.fencing_token())).await??;
            guard.done().await?;
            guard.release().await?;
        }
    }

    // A test sets the ensemble's clock, and need not wait.
    assert!(lock.write().once_in(period).await?.is_none());
    zk.faults().set_clock_forward(period);
    assert!(lock.write().once_in(period).await?.is_some());
    // end
    Ok(())
}

#[tokio::test]
async fn several_locks_at_once() -> Result<(), Error> {
    let zk = Memory::new();
    // page: several-locks-at-once
    use std::time::Duration;
    use zk_rwlock::{Mode, MultiLock, RwLock};

    let open = |path| RwLock::new(&zk, path);
    let (from, to, rates) = (open("/locks/accounts/7")?, open("/locks/accounts/3")?, open("/locks/rates")?);
    let all = MultiLock::new([(&from, Mode::Write), (&to, Mode::Write), (&rates, Mode::Read)])?;
    let guard = all.lock().label("transfer").timeout(Duration::from_secs(30)).await?; // the error says which lock failed
    guard.transaction().create("/transfer-42", "from 7 to 3").commit().await?; // only if each is held
    let token_of_7 = guard.fencing_token("/locks/accounts/7").expect("one of them");
    guard.release().await?; // the last one first
    // end
    assert!(token_of_7 > 0);
    Ok(())
}

#[tokio::test]
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
    use zk_rwlock::{Leadership, Term};

    async fn schedule(term: Term) -> Result<(), Error> {
        while let Some(job) = next_job().await {
            // In ZooKeeper: only if this term still lasts. To other systems, send `term.number()`, as a fencing token.
            term.transaction().create(format!("/jobs/{job}"), "to do").commit().await?;
        }
        Ok(())
    }

    let leadership = Leadership::builder(&zk, "/leaders/scheduler")
        .data("http://web-1:8080") // what everybody can read of the leader
        .health(Duration::from_secs(5), database_answers)
        .build()?;
    if let Some(done) = leadership.lead(schedule).await? {
        done?; // the work has ended by itself
    }

    // hidden
    let follow = async {
        // shown
        // Anywhere in the fleet, also in programs that are no candidates: who leads, and who leads next.
        let mut changes = leadership.changes();
        while let Some(leader) = changes.next().await {
            match leader? {
                Some(leader) => println!("{leader}"), // web-1 pid 4242 "http://web-1:8080" in term 4294967301
                None => println!("nobody leads"),
            }
        }
        // end
        Ok::<(), Error>(())
    };
    // Nobody leads any more, so the first change is the last.
    assert!(tokio::time::timeout(Duration::from_millis(10), follow).await.is_err());
    Ok(())
}

#[tokio::test]
async fn at_most_so_many_at_once() -> Result<(), Error> {
    let zk = Memory::new();
    async fn ask_the_geocoder() {}
    // page: at-most-so-many-at-once
    use std::time::Duration;
    use zk_rwlock::Semaphore;

    let geocoder = Semaphore::builder(&zk, "/limits/geocoder").permits(10).lock(|lock| lock.label("import")).build()?;

    let permit = geocoder.acquire().timeout(Duration::from_secs(30)).await?; // the error names the holders
    permit.run(ask_the_geocoder()).await?; // dropped if the permit is lost
    permit.release().await?;

    let four = geocoder.acquire_many(4).await?; // all four or none
    println!("{}", geocoder.queue().await?); // /limits/geocoder: 6 of 10 permits free, and who has the others
    // end
    assert_eq!(four.count(), 4);
    Ok(())
}

#[tokio::test]
async fn several_ensembles() -> Result<(), Error> {
    use std::collections::BTreeMap;
    let (ours, more) = ([("amber", Memory::new()), ("basalt", Memory::new()), ("cedar", Memory::new())], Memory::new());
    // page: several-ensembles
    use zk_rwlock::RwLock;

    /// FNV-1a and a last mix. Not `DefaultHasher`: what it gives may change with the next compiler.
    fn weight(ensemble: &str, path: &str) -> u64 {
        let bytes = ensemble.bytes().chain([0]).chain(path.bytes());
        let hash =
            bytes.fold(0xcbf29ce484222325, |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100000001b3));
        (hash ^ (hash >> 32)).wrapping_mul(0x9e3779b97f4a7c15)
    }

    let ensemble_of = |path: &str| ours.iter().max_by_key(|(name, _)| weight(name, path)).expect("there are some");
    let path = "/locks/orders/4711";
    let (name, zk) = ensemble_of(path);
    let guard = RwLock::new(zk, path)?.write().await?;
    // end
    assert_eq!((*name, weight("amber", path)), ("basalt", 422_121_503_783_635_633)); // on every platform, for ever
    drop(guard);
    // An ensemble more takes its share from each of the others, and no path goes anywhere else.
    let larger: Vec<(&str, &Memory)> = ours.iter().map(|(name, zk)| (*name, zk)).chain([("diorite", &more)]).collect();
    let mut shares = BTreeMap::new();
    for number in 0..10_000 {
        let path = format!("/locks/orders/{number}");
        let then = larger.iter().max_by_key(|(name, _)| weight(name, &path)).expect("there are some").0;
        assert!(then == "diorite" || then == ensemble_of(&path).0);
        *shares.entry(then).or_insert(0) += 1;
    }
    assert!(shares.values().all(|share| (2_300..2_700).contains(share)), "{shares:?}");
    Ok(())
}

#[tokio::test]
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

#[tokio::test]
async fn executors_and_panics_that_abort() -> Result<(), Error> {
    // page: executors-and-panics-that-abort
    use std::future::IntoFuture;
    // hidden
    use zk_rwlock::{Memory, RwLock};
    let zk = Memory::new();
    // shown
    let (orders, stock) = (RwLock::new(&zk, "/locks/orders")?, RwLock::new(&zk, "/locks/stock")?);
    let (one, other, queue) = futures::join!(orders.read().into_future(), stock.read().into_future(), orders.queue());
    // end
    drop((one?, other?, queue?));
    Ok(())
}

#[test]
fn programs_without_a_runtime() -> std::io::Result<()> {
    // page: programs-without-a-runtime
    use std::time::Duration;
    use zk_rwlock::{Blocking, Memory, RwLock};

    fn main() -> std::io::Result<()> {
        let zk = Memory::new(); // or: ZooKeeper::connect("zk1:2181,zk2:2181,zk3:2181").blocking()?
        let lock = RwLock::new(&zk, "/locks/report")?;

        match lock.try_write().timeout(Duration::from_secs(5)).blocking() {
            Err(error) if error.is_would_block() => eprintln!("{error}"),
            taken => taken?.release().blocking()?,
        }
        let guard = lock.write().label("monthly report").timeout(Duration::from_secs(60)).blocking()?;
        for page in 1..=12 {
            if !guard.is_held() {
                break; // somebody else may have the lock
            }
            guard.transaction().create(format!("/page-{page}"), "done").commit().blocking()?;
        }
        println!("{}", lock.queue().blocking()?);
        guard.release().blocking()?;
        zk.close().blocking();
        Ok(())
    }
    // end
    main()
}

#[tokio::test]
async fn tests_without_a_server() -> Result<(), Error> {
    // page: tests-without-a-server
    use zk_rwlock::{Memory, RwLock};

    let zk = Memory::new();
    let other_process = zk.connect();
    let guard = RwLock::new(&zk, "/locks/billing")?.write().label("migrate v42").await?;

    let refused = RwLock::new(&other_process, "/locks/billing")?.try_read().await.unwrap_err();
    assert!(refused.to_string().contains("migrate v42")); // the error names the holder

    zk.faults().expire(); // the ensemble gives up our session
    assert!(!guard.is_held());
    // end
    Ok(())
}

#[tokio::test]
async fn what_errors_mean_and_what_to_do() -> Result<(), Error> {
    let zk = Memory::new();
    // page: what-errors-mean-and-what-to-do
    use std::time::Duration;
    use zk_rwlock::RwLock;

    let lock = RwLock::new(&zk, "/locks/orders")?;
    match lock.write().timeout(Duration::from_secs(5)).await {
        Ok(guard) => guard.release().await?,
        Err(late) if late.is_timeout() => eprintln!("not now: {late}"),
        Err(lost) if lost.is_lost() => eprintln!("acquire again: {lost}"),
        Err(other) => return Err(other),
    }
    // end
    Ok(())
}
