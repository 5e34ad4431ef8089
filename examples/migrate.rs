//! Several instances of a service start together: one migrates the database, the others wait for it.
//!
//! ```text
//! cargo run --example migrate
//! cargo run --example migrate -- --zookeeper 127.0.0.1:2181 --instances 4
//! cargo run --example migrate -- --show-fence      # a holder that comes too late is refused by the database
//! ```
//!
//! No lock service can keep a statement that was sent in time from arriving late. So the database remembers the
//! highest fencing token it has seen, and each migration begins, in its own SQL transaction, by showing a higher one.

mod common;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use rusqlite::{Connection, TransactionBehavior};
use tokio::task::{JoinSet, spawn_blocking};
use zk_rwlock::RwLock;
use zk_rwlock::coordinator::Coordinator;

const LOCK: &str = "/zk-rwlock-examples/migrate";

/// The version of the schema that this service needs.
const VERSION: u32 = 3;

/// What brings the schema from each version to the next.
const MIGRATIONS: [&str; VERSION as usize] = [
    "CREATE TABLE customer (id INTEGER PRIMARY KEY, name TEXT NOT NULL);
     INSERT INTO customer (name) VALUES ('Ada Lovelace'), ('Alan Turing');",
    "ALTER TABLE customer ADD COLUMN surname TEXT;",
    "UPDATE customer SET surname = substr(name, instr(name, ' ') + 1), name = substr(name, 1, instr(name, ' ') - 1);",
];

/// Several instances of a service start together: one migrates the database, the others wait for it
#[derive(Clone, clap::Parser)]
struct Arguments {
    #[command(flatten)]
    backend: common::Backend,
    /// How many instances start; on the embedded ensemble, tasks
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=64))]
    instances: u32,
    /// The SQLite database, made if it is missing [default: a temporary one]
    #[arg(long, value_name = "FILE")]
    database: Option<PathBuf>,
    /// Show also how the database refuses a holder that lost the lock and does not know it yet
    #[arg(long, conflicts_with = "database")]
    show_fence: bool,
    /// Be one of the instances: this program starts them itself
    #[arg(long, hide = true, requires = "database")]
    number: Option<u32>,
}

#[tokio::main]
async fn main() -> ExitCode {
    common::exit(run(common::arguments()).await)
}

async fn run(arguments: Arguments) -> common::Result<()> {
    if let (Some(number), Some(database)) = (arguments.number, &arguments.database) {
        return instance(number, &arguments.backend, database).await;
    }
    arguments.backend.connect().await?.close().await; // so that a server that is not there is told once
    match &arguments.database {
        Some(database) => all_instances(&arguments, database).await,
        None => {
            let directory = tempfile::tempdir()?;
            let database = directory.path().join("customers.db");
            if arguments.show_fence {
                late_holder(&arguments, &database).await
            } else {
                all_instances(&arguments, &database).await
            }
        }
    }
}

async fn all_instances(arguments: &Arguments, database: &Path) -> common::Result<()> {
    let numbers = 1..=arguments.instances;
    if let Some(servers) = &arguments.backend.zookeeper {
        let command = |number: u32| -> Vec<OsString> {
            let options = ["--zookeeper".into(), servers.into(), "--database".into(), database.into()];
            options.into_iter().chain(["--number".into(), number.to_string().into()]).collect()
        };
        common::processes(numbers.map(command)).await?;
    } else {
        let task = |number| {
            let (backend, database) = (arguments.backend.clone(), database.to_owned());
            async move { instance(number, &backend, &database).await }
        };
        common::all(numbers.map(task).collect::<JoinSet<_>>()).await?;
    }
    println!("the database is at version {}", version(&Connection::open(database)?)?);
    Ok(())
}

/// What an instance does before it serves its first request.
async fn instance(number: u32, backend: &common::Backend, database: &Path) -> common::Result<()> {
    let name = format!("instance {number}");
    let zk = backend.connect().await?;
    let lock = RwLock::builder(&zk, LOCK).build()?;

    let waits = format!("{name} waits:");
    let guard = lock
        .write()
        .timeout(Duration::from_secs(60))
        .label(format!("{name}: migrate to v{}", VERSION))
        .on_wait(move |progress| println!("{waits} {}", progress.blockers))
        .await?;
    if version(&Connection::open(database)?)? == VERSION {
        println!("{name}: the database is migrated, nothing to do");
    } else {
        let token = guard.fencing_token();
        println!("{name} migrates, with fencing token {token}");
        let database = database.to_owned();
        // Returns at once when the lock is lost. The migration itself would go on, in the database: hence the token.
        let from = guard.run(spawn_blocking(move || migrate(&database, token))).await???;
        println!("{name} has migrated from version {from} to {}", VERSION);
    }
    guard.release().await?;
    zk.close().await;
    Ok(())
}

/// Brings the schema up to date in one SQL transaction, or changes nothing. Returns the version it was before.
fn migrate(database: &Path, token: i64) -> common::Result<u32> {
    let mut connection = Connection::open(database)?;
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    transaction.execute_batch(
        "CREATE TABLE IF NOT EXISTS schema_fence (token INTEGER NOT NULL);
         INSERT INTO schema_fence SELECT 0 WHERE NOT EXISTS (SELECT * FROM schema_fence);",
    )?;
    if transaction.execute("UPDATE schema_fence SET token = ?1 WHERE token < ?1", [token])? == 0 {
        return Err(format!("the database has seen a newer holder of the lock than the one with token {token}").into());
    }
    let from = version(&transaction)?;
    for migration in MIGRATIONS.iter().skip(from as usize) {
        transaction.execute_batch(migration)?;
        thread::sleep(Duration::from_millis(100)); // as if there were more than two customers
    }
    transaction.pragma_update(None, "user_version", VERSION)?;
    transaction.commit()?;
    Ok(from)
}

/// One holder's session ends before its migration reaches the database, where it comes after somebody else's.
async fn late_holder(arguments: &Arguments, database: &Path) -> common::Result<()> {
    let zk = arguments.backend.connect().await?;
    let guard = RwLock::new(&zk, LOCK)?.write().timeout(Duration::from_secs(60)).await?;
    let token = guard.fencing_token();
    println!("the late holder has fencing token {token}, and sends its migration");
    zk.close().await;
    println!("its session ends, and with it the lock: {}", guard.lost().await);

    all_instances(arguments, database).await?;

    match migrate(database, token) {
        Err(refusal) => println!("the late migration arrives, and is refused: {refusal}"),
        Ok(_) => return Err("the late migration was carried out".into()),
    }
    Ok(())
}

fn version(connection: &Connection) -> rusqlite::Result<u32> {
    connection.pragma_query_value(None, "user_version", |row| row.get(0))
}
