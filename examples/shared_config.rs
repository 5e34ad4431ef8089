//! A typed configuration behind the lock, which several processes read and change. Without `--zookeeper` the example
//! needs no server.
//!
//! ```text
//! cargo run --example shared_config
//! cargo run --example shared_config -- --zookeeper 127.0.0.1:2181 --processes 4
//! cargo run --example shared_config -- --without-lock      # to see what the lock is for
//! ```
//!
//! Readers take the read lock, so that the value does not change while they use it. A process that changes the
//! configuration takes the write lock, changes the value in memory, and commits it. The commit succeeds only while the
//! process still holds the lock. Without the lock, two processes can read the same value, and one of their changes is
//! lost.

mod common;

use std::process::ExitCode;
use std::time::Duration;

use common::Client;
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;
use tokio::time::sleep;
use zk_rwlock::Shared;
use zk_rwlock::coordinator::{Coordinator, Operation};
use zk_rwlock::format::{Format, Json, Raw};

const PATH: &str = "/zk-rwlock-examples/shared_config";

/// The path of the value that is changed without the lock.
const UNLOCKED: &str = "/zk-rwlock-examples/shared_config/unlocked";

/// How often a process reads the configuration before each change.
const READS: u32 = 5;

/// How long to wait for the lock. A longer wait is an error.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

/// Read and change a configuration in several processes
#[derive(Clone, clap::Parser)]
struct Arguments {
    #[command(flatten)]
    backend: common::Backend,
    /// The number of processes, or of tasks on the embedded ensemble
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    processes: u32,
    /// How often each process changes the configuration
    #[arg(long, default_value_t = 3)]
    changes: u32,
    /// Read and write without the lock
    #[arg(long)]
    without_lock: bool,
    /// Be one of the processes, which this program starts
    #[arg(long, hide = true)]
    number: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Config {
    version: u64,
    endpoint: String,
    password: String,
}

impl Config {
    fn of(version: u64) -> Config {
        Config { version, endpoint: format!("https://db-{version}.example"), password: format!("secret-{version}") }
    }

    /// Returns the version, or an error if the parts do not match.
    fn check(&self) -> common::Result<u64> {
        if *self == Config::of(self.version) { Ok(self.version) } else { Err(format!("saw {self:?}").into()) }
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    common::exit(run(common::arguments()).await)
}

async fn run(arguments: Arguments) -> common::Result<()> {
    if let Some(number) = arguments.number {
        return process(number, &arguments).await;
    }
    let zk = arguments.backend.connect().await?; // so that an absent server is reported once
    let config = open(&zk, "all")?;
    if arguments.without_lock {
        make_unlocked(&zk).await?;
    }
    let before = version(&zk, &config, &arguments).await?;
    let numbers = 1..=arguments.processes;
    if arguments.backend.zookeeper.is_some() {
        let more = |number: u32| std::env::args_os().skip(1).chain(["--number".into(), number.to_string().into()]);
        common::processes(numbers.map(|number| more(number).collect())).await?;
    } else {
        let task = |number| {
            let arguments = arguments.clone();
            async move { process(number, &arguments).await }
        };
        common::all(numbers.map(task).collect::<JoinSet<_>>()).await?;
    }
    let (made, found) = (u64::from(arguments.processes * arguments.changes), version(&zk, &config, &arguments).await?);
    zk.close().await;
    if found != before + made {
        return Err(format!("{} of {made} changes were lost", before + made - found).into());
    }
    println!("no change was lost");
    Ok(())
}

fn open(zk: &Client, name: &str) -> Result<Shared<Config>, zk_rwlock::Error> {
    Shared::builder(zk, PATH).initial(|| Config::of(0)).lock(|lock| lock.label(name)).build()
}

async fn version(zk: &Client, config: &Shared<Config>, arguments: &Arguments) -> common::Result<u64> {
    if arguments.without_lock {
        read_unlocked(zk).await?.check()
    } else {
        config.read().timeout(LOCK_TIMEOUT).await?.check()
    }
}

/// Runs a process: reads the configuration several times before each change.
async fn process(number: u32, arguments: &Arguments) -> common::Result<()> {
    let name = format!("process {number}");
    let zk = arguments.backend.connect().await?;
    let config = open(&zk, &name)?;
    let copy = match arguments.without_lock {
        true => None,
        false => Some(config.live().timeout(LOCK_TIMEOUT).await?),
    };
    for _ in 0..arguments.changes {
        if arguments.without_lock {
            publish_unlocked(&zk).await?;
            continue;
        }
        for _ in 0..READS {
            let guard = config.read().timeout(LOCK_TIMEOUT).await?;
            guard.check()?;
            guard.release().await?; // an error if the lock was lost while we read
            // A request handler would read `copy` without the lock. A watch keeps `copy` up to date.
            copy.as_ref().map_or(Ok(0), |copy| copy.get().check())?;
        }
        publish(&config, &name).await?;
    }
    if !arguments.without_lock {
        println!("{name}: read the configuration {} times, and always found a pair", READS * arguments.changes);
    }
    zk.close().await;
    Ok(())
}

/// Changes the configuration, and reads the new value before another process can change it again.
async fn publish(config: &Shared<Config>, name: &str) -> common::Result<()> {
    let mut guard = config.write().timeout(LOCK_TIMEOUT).await?;
    *guard = Config::of(guard.version + 1);
    guard.commit().await?; // refused if the lock is not held any more

    // The downgrade lets other readers in, but no writer in between.
    let guard = guard.downgrade().await?;
    println!("{name}: published version {} under fencing token {}", guard.check()?, guard.written().token);
    guard.release().await?;
    Ok(())
}

/// Changes the configuration without the lock. Other processes may read the old value at the same time.
async fn publish_unlocked(zk: &Client) -> common::Result<()> {
    let version = read_unlocked(zk).await?.check()?;
    sleep(Duration::from_millis(5)).await; // time enough for a change to come between
    let data = Json.encode(&Config::of(version + 1))?;
    let set = Operation::Set { path: format!("{UNLOCKED}/value"), data, version: None };
    zk.session_slot(0).await?.session().transact(&[set]).await?;
    Ok(())
}

async fn read_unlocked(zk: &Client) -> common::Result<Config> {
    let (bytes, _) = zk.session_slot(0).await?.session().data(&format!("{UNLOCKED}/value")).await?;
    let is_first = !bytes.starts_with(b"{");
    if is_first { Ok(Config::of(0)) } else { Json.decode(&bytes).map_err(|error| error.to_string().into()) }
}

/// Creates the node of the value that is changed without a lock, and clears its data. Only this preparation uses a lock.
async fn make_unlocked(zk: &Client) -> common::Result<()> {
    let node: Shared<Vec<u8>> = Shared::with_format(zk, UNLOCKED, Raw).build()?;
    let mut guard = node.write().replacing(Vec::new()).await?;
    guard.commit().await?;
    Ok(guard.release().await?)
}
