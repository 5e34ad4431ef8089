//! Migrates a schema while no instance uses it, by one process at a time, and never by a process that lost the lock.
//! Without `--zookeeper` it needs no server.
//!
//! ```text
//! cargo run -p example-migrate                      # several instances start together on a SQLite file, one migrates it
//! cargo run -p example-migrate -- --show-fence      # a holder that comes too late is refused by the database
//!
//! export AT='--zookeeper zk1:2181 --database postgres://app@db/orders'
//! cargo run -p example-migrate -- $AT serve         # an instance: holds the lock to read while it serves
//! cargo run -p example-migrate -- $AT up            # the deploy job: waits until all have stopped, migrates
//! ```
//!
//! No lock service can prevent that a statement arrives late. So the database stores the highest fencing token it has
//! seen, and refuses a migration with a lower one. Each migration writes its token first, in its own transaction.
//!
//! The migrations run with `sqlx`, because its trait `Migrate` applies a migration inside a transaction that this
//! program has begun. So the check of the token, the statements and the entry in the history are committed together.
//! `refinery` begins and commits by itself; only its hidden traits would allow a check in between. Both are maintained
//! and have permissive licences. Newer crates need Rust 1.92 or later. For a server that is not on loopback, add the
//! feature `tls-rustls`.

#[path = "../../common/mod.rs"]
mod common;
mod database;
mod fence;
mod instance;
mod migration;
mod schema;

use std::ffi::OsString;
use std::future::pending;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use database::{Database, Silent};
use fence::{Fence, TooLate};
use schema::{Mismatch, Schema, version};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use zk_rwlock::RwLock;
use zk_rwlock::coordinator::Coordinator;

/// Start several instances of a service together: one migrates the database, the others wait for it
///
/// This happens without a command. With a command, this process is one process of a deployment.
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
    #[command(flatten)]
    backend: common::Backend,
    /// The database: postgres://USER@HOST:PORT/NAME (and PGPASSWORD), or a SQLite file, which is created if it is
    /// missing [default: a temporary file]
    #[arg(long, global = true, value_name = "DATABASE", value_parser = database::place)]
    database: Option<String>,
    /// Read the versions of the schema from files such as DIR/0001_customers.sql [default: those built in]
    #[arg(long, global = true, value_name = "DIR")]
    migrations: Option<PathBuf>,
    /// The lock of this schema
    #[arg(long, global = true, value_name = "PATH", default_value = "/zk-rwlock-examples/migrate")]
    lock: String,
    /// How long to wait for the lock, for each lock of the database, and for an answer of the database
    #[arg(long, global = true, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
    timeout: u64,
    /// The number of instances; on the embedded ensemble, tasks
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=64))]
    instances: u32,
    /// Also show how the database refuses a holder that has lost the lock without noticing
    #[arg(long, conflicts_with = "database")]
    show_fence: bool,
    #[command(subcommand)]
    role: Option<Role>,
}

#[derive(Clone, clap::Subcommand)]
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

/// The settings that all processes of a deployment share.
#[derive(Clone)]
struct Site {
    backend: common::Backend,
    database: Database,
    schema: Schema,
    lock: String,
    timeout: Duration,
}

impl Site {
    fn fence(&self, token: i64) -> Fence<'_> {
        Fence { database: &self.database, token, limit: self.timeout }
    }
}

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct WrongUsage(&'static str);

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
    if error.is::<WrongUsage>() {
        64
    } else if error.is::<Mismatch>() {
        65
    } else if lock.is_some_and(zk_rwlock::Error::is_timeout) || error.is::<Silent>() || database::is_locked(error) {
        69
    } else if error.is::<TooLate>() || lock.is_some_and(zk_rwlock::Error::is_lost) {
        75
    } else {
        1
    }
}

async fn run(arguments: Arguments) -> common::Result<()> {
    if arguments.role.is_some() && arguments.database.is_some() && arguments.backend.zookeeper.is_none() {
        // The embedded ensemble exists only in this process, and could not exclude another process.
        return Err(WrongUsage("a process of a deployment needs --zookeeper, where the others keep the lock").into());
    }
    arguments.backend.connect().await?.close().await; // so that an absent server is reported at once
    let directory = tempfile::tempdir()?;
    let site = Site {
        backend: arguments.backend,
        database: match &arguments.database {
            Some(place) => place.as_str().into(),
            None => directory.path().join("customers.db").as_path().into(),
        },
        schema: match &arguments.migrations {
            Some(directory) => Schema::read(directory).await?,
            None => Schema::built_in(),
        },
        lock: arguments.lock,
        timeout: Duration::from_secs(arguments.timeout),
    };
    match arguments.role {
        Some(Role::Up) => up(&site).await,
        Some(Role::Serve { migrate, name, duration }) => {
            let name = name.unwrap_or_else(|| format!("instance {}", std::process::id()));
            instance::serve(&site, &name, migrate, duration.map(Duration::from_millis)).await
        }
        None if arguments.show_fence => late_holder(&site, arguments.instances).await,
        None => all_instances(&site, arguments.instances, arguments.migrations).await,
    }
}

async fn up(site: &Site) -> common::Result<()> {
    let zk = site.backend.connect().await?;
    let work = async {
        let lock = RwLock::new(&zk, &site.lock)?;
        if let Some(guard) = migration::alone(site, "deploy job", &lock).await? {
            migration::run(site, "deploy job", &guard).await?;
            guard.release().await?;
        }
        Ok(())
    };
    let done = tokio::select! {
        biased;
        () = asked_to_stop() => Err("asked to stop before all migrations were done; an open migration is rolled back".into()),
        done = work => done,
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

async fn all_instances(site: &Site, instances: u32, migrations: Option<PathBuf>) -> common::Result<()> {
    let name = |number| format!("instance {number}");
    if let Some(servers) = &site.backend.zookeeper {
        let command = |number| {
            let mut words: Vec<OsString> = vec!["--zookeeper".into(), servers.into()];
            words.extend([
                "--database".into(),
                site.database.place().into(),
                "--lock".into(),
                site.lock.as_str().into(),
            ]);
            words.extend(migrations.iter().flat_map(|directory| ["--migrations".into(), directory.into()]));
            words.extend(["serve", "--migrate", "--for", "0", "--name"].map(OsString::from));
            words.push(name(number).into());
            words
        };
        common::processes((1..=instances).map(command)).await?;
    } else {
        let task = |number| {
            let (site, name) = (site.clone(), name(number));
            async move { instance::serve(&site, &name, true, Some(Duration::ZERO)).await }
        };
        common::all((1..=instances).map(task).collect::<JoinSet<_>>()).await?;
    }
    let applied = site.database.applied(&mut site.database.connect(site.timeout).await?).await?;
    println!("the database is at version {}", version(&applied));
    Ok(())
}

/// Shows a late holder: its session ends before its migration reaches the database, and another holder migrates first.
async fn late_holder(site: &Site, instances: u32) -> common::Result<()> {
    let zk = site.backend.connect().await?;
    let guard = RwLock::new(&zk, &site.lock)?.write().timeout(site.timeout).await?;
    let token = guard.fencing_token();
    println!("the late holder has fencing token {token}, and sends its migration");
    zk.close().await;
    println!("its session ends, and with it the lock: {}", guard.lost().await);

    all_instances(site, instances, None).await?;

    // `apply` runs outside of the guard's `run`, as if the holder had not noticed the loss.
    match migration::apply(site, "the late holder", token, || true).await {
        Err(refusal) if refusal.is::<TooLate>() => {
            println!("the late migration arrives, and is refused: {refusal}");
            Ok(())
        }
        Err(other) => Err(other),
        Ok(()) => Err("the late migration was carried out".into()),
    }
}
