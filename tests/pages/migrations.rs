//! The snippets of `docs/migrations.md`.

use std::fs;
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use zk_rwlock::Memory;

#[support::judged]
async fn in_a_program() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    // page: in-a-program
    use std::error::Error;
    use std::time::Duration;

    use sqlx::migrate::{Migrate, Migrator};
    use sqlx::{AnyConnection, Connection};
    use zk_rwlock::{RwLock, WriteGuard};

    type Outcome = Result<(), Box<dyn Error + Send + Sync>>;

    const FENCE: &str = "UPDATE lock_fence SET token = $1 WHERE name = 'orders' AND token <= $1";

    async fn migrate(lock: &RwLock, database: &mut AnyConnection, versions: &Migrator) -> Outcome {
        // Drain: each instance holds the lock to read while it serves.
        // Timeout: the error names the instances that still serve.
        let acquire = lock.write().timeout(Duration::from_secs(600)).label("migrate orders");
        let guard = acquire.on_wait(|progress| eprintln!("waits: {}", progress.blockers)).await?;
        // Loss: the work is dropped, and with it the open transaction, which is then rolled back.
        guard.run(apply(&guard, database, versions)).await??;
        guard.release().await?;
        Ok(())
    }

    async fn apply(guard: &WriteGuard, database: &mut AnyConnection, versions: &Migrator) -> Outcome {
        for version in versions.iter() {
            let mut transaction = database.begin().await?;
            let fenced = sqlx::query(FENCE).bind(guard.fencing_token()).execute(&mut *transaction).await?;
            if fenced.rows_affected() == 0 {
                return Err("a later holder has been here".into());
            }
            // The history is read behind the fence, so no earlier holder can change it any more.
            transaction.ensure_migrations_table().await?;
            let applied = transaction.list_applied_migrations().await?;
            if applied.iter().all(|one| one.version != version.version) {
                transaction.apply(version).await?; // Rollback: an error ends this function, and drops the transaction.
            }
            transaction.commit().await?;
        }
        Ok(())
    }
    // end

    sqlx::any::install_default_drivers();
    let folder = tempfile::tempdir()?;
    let mut database =
        AnyConnection::connect(&format!("sqlite:{}?mode=rwc", folder.path().join("db").display())).await?;
    let set_up =
        "CREATE TABLE lock_fence (name TEXT PRIMARY KEY, token BIGINT); INSERT INTO lock_fence VALUES ('orders', 0)";
    sqlx::raw_sql(set_up).execute(&mut database).await?;
    let build = folder.path().join("versions");
    fs::create_dir(&build)?;
    fs::write(build.join("1_one.sql"), "CREATE TABLE ledger (version BIGINT); INSERT INTO ledger VALUES (1);")?;
    fs::write(build.join("2_two.sql"), "INSERT INTO ledger VALUES (2); INSERT INTO nowhere VALUES (2);")?;
    let versions = async || Migrator::new(build.as_path()).await.expect("files");
    let applied = async |database: &mut AnyConnection| -> Vec<i64> {
        sqlx::query_scalar("SELECT version FROM ledger").fetch_all(database).await.expect("a table")
    };

    let zk = Memory::new();
    let lock = RwLock::new(&zk, "/locks/orders/migrate")?;
    let serving = RwLock::new(&zk.connect(), "/locks/orders/migrate")?.read().label("web-7").await?;
    tokio::time::pause();
    let late = migrate(&lock, &mut database, &versions().await).await.expect_err("web-7 serves").to_string();
    assert!(late.contains("10m") && late.contains("\"web-7\""), "{late}");
    tokio::time::resume();
    serving.release().await?;

    let broken = migrate(&lock, &mut database, &versions().await).await.expect_err("it is broken");
    assert!(broken.to_string().contains("nowhere"), "{broken}");
    assert_eq!(applied(&mut database).await, [1]);

    fs::write(build.join("2_two.sql"), "INSERT INTO ledger VALUES (2);")?;
    let guard = lock.write().await?;
    let loaded = versions().await;
    {
        let mut work = pin!(guard.run(apply(&guard, &mut database, &loaded)));
        assert!(poll_fn(|context| Poll::Ready(work.as_mut().poll(context).is_pending())).await);
        zk.faults().expire();
        assert!(work.await.is_err_and(|error| error.is_lost()));
    }
    assert_eq!(applied(&mut database).await, [1]);

    migrate(&lock, &mut database, &loaded).await?;
    assert_eq!(applied(&mut database).await, [1, 2]);
    let refused = apply(&guard, &mut database, &loaded).await.expect_err("a late holder").to_string();
    assert_eq!(refused, "a later holder has been here");
    Ok(())
}
