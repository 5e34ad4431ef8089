//! Migrates a schema while no instance uses it, by one process at a time, and never by a process that lost the lock.
//!
//! ```text
//! export AT='--zookeeper zk1:2181 --database postgres://app@db/orders --migrations migrations'
//! cargo run -p example-migrate -- $AT serve         # an instance: holds the lock to read while it serves
//! cargo run -p example-migrate -- $AT up            # the deploy job: waits until all have stopped, migrates
//! ```
//!
//! `docs/migrations.md` shows the core in 40 lines. `sqlx` runs the migrations, because its trait `Migrate` applies a migration
//! inside a transaction that this program has begun. So the check of the token, the statements and the entry in the history are
//! committed together. For a server that is not on loopback, add the feature `tls-rustls`. Newer versions need Rust 1.92 or later.

#[path = "../../common/mod.rs"]
mod common;
mod database;
mod migration;

use std::future::pending;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use common::Result;
use database::{Database, Silent, TooLate};
use migration::{Mismatch, Schema};
use sqlx::AnyConnection;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::sleep;
use zk_rwlock::queue::Progress;
use zk_rwlock::{RwLock, ZooKeeper};

/// Be one process of a deployment whose instances share a database
#[derive(clap::Parser)]
#[command(after_help = "Exit codes:
  0   done
  1   failed, or asked to stop; an open migration is rolled back
  64  wrong usage
  65  the database is not at the version that this build is made for, or has another history
  69  the lock, or a lock of the database, was not granted in time: the output says who is in the way; or the database
      did not answer
  75  the lock was lost, or the database has seen a later holder: another process migrates; start again to be sure")]
struct Arguments {
    /// The ZooKeeper servers, where all processes of the deployment keep the lock
    #[arg(long, value_name = "HOST:PORT", value_parser = common::servers)]
    zookeeper: String,
    /// How long the servers keep the session of a process that they do not hear from
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=60))]
    session_timeout: u64,
    /// postgres://USER@HOST:PORT/NAME (and PGPASSWORD), or a SQLite file, which is created if it is missing
    #[arg(long, value_name = "DATABASE", value_parser = Database::parse)]
    database: String,
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
    /// Be an instance: serve on the version of this build, or refuse to serve
    Serve {
        /// Migrate an older schema first
        #[arg(long)]
        migrate: bool,
        /// The name that other processes see when they wait for this instance [default: one with its pid]
        #[arg(long)]
        name: Option<String>,
        /// How long to serve [default: until Ctrl-C or SIGTERM]
        #[arg(long = "for", value_name = "MILLISECONDS")]
        duration: Option<u64>,
    },
}

/// What a process works with.
struct Site {
    name: String,
    lock: RwLock,
    database: Database,
    schema: Schema,
}

impl Site {
    fn timeout(&self) -> Duration {
        self.database.limit
    }

    fn version(&self) -> i64 {
        self.schema.version()
    }

    /// Returns a function that prints for whom this process waits.
    fn telling(&self) -> impl FnMut(&Progress) + Send + 'static {
        let name = self.name.clone();
        move |progress| println!("{name} waits: {}", progress.blockers)
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(common::arguments()).await {
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(code(error.as_ref()))
        }
        Ok(()) => ExitCode::SUCCESS,
    }
}

fn code(error: &(dyn std::error::Error + 'static)) -> u8 {
    let lock = error.downcast_ref::<zk_rwlock::Error>();
    if error.is::<Mismatch>() {
        65
    } else if lock.is_some_and(zk_rwlock::Error::is_timeout) || error.is::<Silent>() || database::is_locked(error) {
        69
    } else if error.is::<TooLate>() || lock.is_some_and(zk_rwlock::Error::is_lost) {
        75
    } else {
        1
    }
}

async fn run(arguments: Arguments) -> Result<()> {
    let connector = ZooKeeper::builder().connect_timeout(Duration::from_secs(3));
    let connector = connector.session_timeout(Duration::from_secs(arguments.session_timeout));
    let zk = connector.connect(&arguments.zookeeper).await?;
    let name = match &arguments.role {
        Role::Up => "deploy job".to_owned(),
        Role::Serve { name, .. } => name.clone().unwrap_or_else(|| format!("instance {}", std::process::id())),
    };
    let site = Site {
        name,
        lock: RwLock::new(&zk, &arguments.lock)?,
        database: Database { place: arguments.database, limit: Duration::from_secs(arguments.timeout) },
        schema: Schema::read(&arguments.migrations).await?,
    };
    let done = match arguments.role {
        Role::Up => tokio::select! {
            biased;
            () = asked_to_stop() => Err("asked to stop before all migrations were done; an open migration is rolled back".into()),
            done = up(&site) => done,
        },
        Role::Serve { migrate, duration, .. } => tokio::select! {
            biased;
            () = asked_to_stop() => Ok(()),
            done = serve(&site, migrate, duration.map(Duration::from_millis)) => done,
        }
        .inspect(|()| println!("{} stops", site.name)),
    };
    // Ends the session, so that the lock or the place in the queue is freed now, and not one session timeout later.
    zk.close().await;
    done
}

/// Waits for Ctrl-C or SIGTERM.
async fn asked_to_stop() {
    let Ok(mut terminate) = signal(SignalKind::terminate()) else { return pending().await };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = tokio::signal::ctrl_c() => {}
    }
}

async fn up(site: &Site) -> Result<()> {
    if let Some(guard) = migration::alone(site).await? {
        migration::migrate(site, &guard).await?;
        guard.release().await?;
    }
    Ok(())
}

/// Holds the lock to read and serves, but only on the version of the schema that this build needs.
async fn serve(site: &Site, migrates: bool, duration: Option<Duration>) -> Result<()> {
    let alone = if migrates { migration::alone(site).await? } else { None };
    let guard = if let Some(writer) = alone {
        migration::migrate(site, &writer).await?;
        // The downgrade lets no other process change the schema between the migration and the first request.
        writer.downgrade().await?
    } else {
        // A waiting migration is ahead in the queue, so the read lock is granted when the migration is done.
        let acquire =
            site.lock.read().timeout(site.timeout()).label(format!("{}: serve on v{}", site.name, site.version()));
        acquire.on_wait(site.telling()).await?
    };
    let mut connection = site.database.connect().await?;
    let requests = async {
        // An earlier holder's commit may still be on the way to the database, which refuses it after `raise`.
        site.database.raise(&site.name, &mut connection, guard.fencing_token()).await?;
        request(site, &mut connection).await?;
        println!("{} serves on version {}", site.name, site.version());
        let began = Instant::now();
        while duration.is_none_or(|duration| began.elapsed() < duration) {
            sleep(Duration::from_millis(20)).await;
            request(site, &mut connection).await?;
        }
        Ok(())
    };
    // When the lock is lost, `run` drops the work, because a migration may begin then.
    guard.run(requests).await?
}

/// Stands for the work of a service. It checks the version, although nobody can migrate while the read lock is held.
async fn request(site: &Site, connection: &mut AnyConnection) -> Result<()> {
    Ok(site.schema.fits(&site.database.applied(connection).await?)?)
}
