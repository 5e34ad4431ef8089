//! Migrates a PostgreSQL schema while no instance uses it, by one process at a time, and never by a process that lost the lock.
//!
//! `sqlx` runs the migrations, because its trait `Migrate` applies one inside a transaction that this program has begun. So
//! the check of the token, the statements and the entry in the history are committed together. For a server that is not on
//! loopback, add the feature `tls-rustls`. Newer versions need Rust 1.92 or later.

#[path = "../../common/mod.rs"]
mod common;
mod database;
mod schema;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use common::Result;
use database::{Database, applied, fence};
use schema::Schema;
use sqlx::migrate::Migrate;
use sqlx::postgres::PgConnectOptions;
use sqlx::{Connection, PgConnection};
use tokio::signal::ctrl_c;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::sleep;
use zk_rwlock::{Error, RwLock, ZooKeeper};

/// Be one process of a deployment whose instances share a database
#[derive(clap::Parser)]
struct Arguments {
    /// The ZooKeeper servers, where all processes of the deployment keep the lock
    #[arg(long, value_name = "HOST:PORT", value_parser = common::servers)]
    zookeeper: String,
    /// How long the servers keep the session of a process that they do not hear from
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=60))]
    session_timeout: u64,
    /// postgres://USER@HOST:PORT/NAME (and PGPASSWORD)
    #[arg(long)]
    database: PgConnectOptions,
    /// The versions of the schema, in files such as DIR/0001_customers.sql
    #[arg(long, value_name = "DIR")]
    migrations: PathBuf,
    /// The lock of this schema
    #[arg(long, value_name = "PATH", default_value = "/zk-rwlock-examples/migrate")]
    lock: String,
    /// How long to wait for the lock, for each lock of the database, and for an answer of the database
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
    timeout: u64,
    #[command(subcommand)]
    role: Role,
}

#[derive(clap::Subcommand)]
enum Role {
    /// Be the deploy job: wait until no instance uses the schema, migrate it to the version of this build, and end
    Up,
    /// Be an instance: serve on the version of this build until Ctrl-C or SIGTERM, or refuse to serve
    Serve,
}

#[derive(Debug, thiserror::Error)]
enum Refused {
    #[error("the database is at version {found}, and this build needs version {needed}: migrate it first")]
    Behind { found: i64, needed: i64 },
    #[error("the database is at version {found}, and this build knows version {needed}: it is too old to serve")]
    Ahead { found: i64, needed: i64 },
    #[error("version {0} was applied to the database in another wording than this build's, or in another order")]
    Changed(i64),
    #[error("version {0} is `-- no-transaction`, so no fence can keep a late one out: run it beside the instances")]
    Unfenced(i64),
    #[error("the database has not answered within {0:?}")]
    Silent(Duration),
    #[error("the database has seen a newer holder than {0}; if ZooKeeper is new: UPDATE lock_fence SET token = 0")]
    TooLate(i64),
}

#[tokio::main]
async fn main() -> ExitCode {
    let Err(error) = run(common::arguments()).await else { return ExitCode::SUCCESS };
    eprintln!("error: {error}");
    ExitCode::from(match (error.downcast_ref(), error.downcast_ref::<Error>()) {
        (Some(Refused::TooLate(_)), _) => 75,
        (_, Some(lock)) if lock.is_lost() => 75,
        (Some(Refused::Silent(_)), _) => 69,
        (_, Some(lock)) if lock.is_timeout() => 69,
        _ if database::is_locked(error.as_ref()) => 69,
        (Some(_), _) => 65,
        _ => 1,
    })
}

async fn run(arguments: Arguments) -> Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let connector = ZooKeeper::builder().connect_timeout(Duration::from_secs(3));
    let connector = connector.session_timeout(Duration::from_secs(arguments.session_timeout));
    let zk = connector.connect(&arguments.zookeeper).await?;
    let lock = RwLock::new(&zk, &arguments.lock)?;
    let schema = Schema::read(&arguments.migrations).await?;
    let limit = Duration::from_secs(arguments.timeout);
    let database = Database { options: arguments.database.options([("lock_timeout", limit.as_millis())]), limit };
    let stop = async {
        tokio::select! { _ = ctrl_c() => {}, _ = terminate.recv() => {} }
    };
    let stopped = "asked to stop, and an open migration is rolled back";
    let done = match arguments.role {
        Role::Up => tokio::select! { done = up(&lock, &schema, &database) => done, () = stop => Err(stopped.into()) },
        Role::Serve => tokio::select! { done = serve(&lock, &schema, &database) => done, () = stop => Ok(()) },
    };
    // Ends the session, so that the lock or the place in the queue is freed now, and not one session timeout later.
    zk.close().await;
    done
}

/// Migrates under the write lock, which is granted when no instance uses the schema.
async fn up(lock: &RwLock, schema: &Schema, database: &Database) -> Result<()> {
    let history = async { applied(&mut database.connect("migrate").await?).await };
    // A job that has nothing to do does not wait for the instances.
    if schema.pending(&database.in_time(history).await?)?.is_empty() {
        println!("nothing to do: the database is at version {}", schema.version);
        return Ok(());
    }
    let acquire = lock.write().timeout(database.limit).label(format!("migrate to v{}", schema.version));
    let guard = acquire.on_wait(|progress| println!("waits: {}", progress.blockers)).await?;
    let token = guard.fencing_token();
    println!("migrates, with fencing token {token}");
    // When the lock is lost, `run` drops the work, and the database rolls an open migration back.
    match guard.run(database.watched(token, migrate(schema, database, token))).await? {
        // The next holder may have refused this one, or ended its connection, before this process notices the loss.
        Err(_) if !guard.is_held() => return Err(Error::Lost(guard.lost().await).into()),
        done => done?,
    }
    Ok(guard.release().await?)
}

/// Applies the missing migrations, each in a transaction that overlaps with none of another holder.
async fn migrate(schema: &Schema, database: &Database, token: i64) -> Result<()> {
    // Later holders recognize the connection by its name.
    let mut connection = database.connect(&format!("lock_fence {token}")).await?;
    sqlx::raw_sql(database::SET_UP).execute(&mut connection).await?;
    let mut from = None;
    loop {
        let mut transaction = connection.begin().await?;
        if !fence(&mut transaction, token).await? {
            return Err(Refused::TooLate(token).into());
        }
        // The history is read behind the fence, so no earlier holder can change it any more.
        transaction.ensure_migrations_table().await?;
        let applied = transaction.list_applied_migrations().await?;
        let from = *from.get_or_insert(schema::version(&applied));
        let Some(next) = schema.pending(&applied)?.first() else {
            transaction.commit().await?;
            println!("has migrated from version {from} to {}", schema.version);
            return Ok(());
        };
        println!("applies version {}, {}", next.version, next.description);
        // sqlx's transaction is a savepoint in this one. Statements, history and token are committed together.
        let took = transaction.apply(next).await?;
        transaction.commit().await?;
        println!("has applied version {} in {took:.1?}", next.version);
    }
}

/// Holds the lock to read and serves, but only on the version of the schema that this build needs.
async fn serve(lock: &RwLock, schema: &Schema, database: &Database) -> Result<()> {
    // A waiting migration is ahead in the queue, so the read lock is granted when the migration is done.
    let acquire = lock.read().timeout(database.limit).label(format!("serve on v{}", schema.version));
    let guard = acquire.on_wait(|progress| println!("waits: {}", progress.blockers)).await?;
    let requests = async {
        let mut connection = database.connect("serve").await?;
        check(schema, &mut connection).await?;
        // A commit of an earlier holder may still be on its way. The database refuses it from now on. The fence may have the
        // higher token of another instance, which refuses the same holders: the next one that migrates is above both.
        fence(&mut connection, guard.fencing_token()).await?;
        check(schema, &mut connection).await?;
        println!("serves on version {}", schema.version);
        loop {
            // Stands for the work of a service. The version stays the same while the lock is held.
            sleep(Duration::from_millis(20)).await;
            check(schema, &mut connection).await?;
        }
    };
    // When the lock is lost, `run` drops the work, because a migration may begin then.
    guard.run(database.watched(guard.fencing_token(), requests)).await?
}

/// Checks that the applied versions are exactly the versions of this build.
async fn check(schema: &Schema, connection: &mut PgConnection) -> Result<()> {
    let applied = applied(connection).await?;
    match schema.pending(&applied)? {
        [] => Ok(()),
        _ => Err(Refused::Behind { found: schema::version(&applied), needed: schema.version }.into()),
    }
}
