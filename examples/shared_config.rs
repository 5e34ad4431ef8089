//! A configuration of two znodes that must match, read and changed by several processes at once.
//!
//! ```text
//! cargo run --example shared_config
//! cargo run --example shared_config -- --zookeeper 127.0.0.1:2181 --processes 4
//! cargo run --example shared_config -- --without-lock      # to see what the lock is for
//! ```
//!
//! Readers take the read lock, so that nothing changes between their two reads. Who changes the configuration takes
//! the write lock and sets both nodes in one transaction, which is committed only if the lock is still held then.
//! One znode alone needs no lock: ZooKeeper reads and writes it as a whole anyway.

mod common;

use std::process::ExitCode;
use std::time::Duration;

use common::Client;
use tokio::task::JoinSet;
use tokio::time::sleep;
use zk_rwlock::coordinator::{Coordinator, Failure};
use zk_rwlock::{ReadGuard, RwLock, WriteGuard};

const ENDPOINT: &str = "/zk-rwlock-examples/shared_config/endpoint";
const PASSWORD: &str = "/zk-rwlock-examples/shared_config/password";
const LOCK: &str = "/zk-rwlock-examples/shared_config/lock";

/// How often a process reads the configuration before it changes it.
const READS: u32 = 5;

/// How long to wait for the lock before something must be wrong.
const PATIENCE: Duration = Duration::from_secs(10);

/// A configuration of two znodes that must match, read and changed by several processes at once
#[derive(Clone, clap::Parser)]
struct Arguments {
    #[command(flatten)]
    backend: common::Backend,
    /// How many processes use the configuration; on the embedded ensemble, tasks
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    processes: u32,
    /// How often each of them changes it
    #[arg(long, default_value_t = 3)]
    changes: u32,
    /// Read without the lock
    #[arg(long)]
    without_lock: bool,
    /// Be one of the processes: this program starts them itself
    #[arg(long, hide = true)]
    number: Option<u32>,
}

#[tokio::main]
async fn main() -> ExitCode {
    common::exit(run(common::arguments()).await)
}

async fn run(arguments: Arguments) -> common::Result<()> {
    if let Some(number) = arguments.number {
        return process(number, &arguments).await;
    }
    arguments.backend.connect().await?.close().await; // so that a server that is not there is told once
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
    println!("nobody saw a half-done change");
    Ok(())
}

/// Reads the configuration over and over, and changes it now and then.
async fn process(number: u32, arguments: &Arguments) -> common::Result<()> {
    let name = format!("process {number}");
    let zk = arguments.backend.connect().await?;
    let lock = RwLock::builder(&zk, LOCK).label(&name).build()?;
    for _ in 0..arguments.changes {
        for _ in 0..READS {
            if arguments.without_lock {
                read(Source::Unlocked(&zk)).await?;
            } else {
                let guard = lock.read().timeout(PATIENCE).await?;
                guard.run(read(Source::Reader(&guard))).await??; // an error also if the lock was lost while we read
                guard.release().await?;
            }
        }
        publish(&lock, &name).await?;
    }
    println!("{name}: read the configuration {} times, and always found a pair", READS * arguments.changes);
    zk.close().await;
    Ok(())
}

/// Changes both nodes at once, and reads what was published before anybody can change it again.
async fn publish(lock: &RwLock, name: &str) -> common::Result<()> {
    let guard = lock.write().timeout(PATIENCE).await?;
    let change = guard.transaction();
    let change = match read(Source::Writer(&guard)).await? {
        None => change.create(ENDPOINT, endpoint(1)).create(PASSWORD, password(1)),
        Some(version) => change.set(ENDPOINT, endpoint(version + 1)).set(PASSWORD, password(version + 1)),
    };
    change.commit().await?; // refused as a whole if the lock is not held any more

    // From writer to reader, in place: other readers may come in now, and no writer comes between.
    let guard = guard.downgrade().await?;
    let version = guard.run(read(Source::Reader(&guard))).await??.ok_or("the configuration is gone")?;
    println!("{name}: published version {version} under fencing token {}", guard.fencing_token());
    guard.release().await?;
    Ok(())
}

fn endpoint(version: u64) -> String {
    format!("https://db-{version}.example")
}

fn password(version: u64) -> String {
    format!("secret-{version}")
}

/// Reads both nodes, and says which version they are; an error if they do not match. `None` before the first version.
async fn read(source: Source<'_>) -> common::Result<Option<u64>> {
    let found_endpoint = source.node(ENDPOINT).await?;
    sleep(Duration::from_millis(5)).await; // time enough for a change to come between, if there were no lock
    let found_password = source.node(PASSWORD).await?;
    let (Some(found_endpoint), Some(found_password)) = (&found_endpoint, &found_password) else {
        return if found_endpoint == found_password { Ok(None) } else { Err("saw one node without the other".into()) };
    };
    let version = found_password.strip_prefix("secret-").and_then(|version| version.parse().ok());
    match version {
        Some(version) if *found_endpoint == endpoint(version) => Ok(Some(version)),
        _ => Err(format!("saw a half-done change: {found_endpoint} with {found_password}").into()),
    }
}

/// What the configuration is read through: a guard, which sees all that earlier holders wrote, or no lock at all.
#[derive(Clone, Copy)]
enum Source<'a> {
    Reader(&'a ReadGuard),
    Writer(&'a WriteGuard),
    Unlocked(&'a Client),
}

impl Source<'_> {
    /// A node's data, if there is the node.
    async fn node(self, path: &str) -> common::Result<Option<String>> {
        let data = match self {
            Source::Reader(guard) => guard.data(path).await?.map(|node| node.data),
            Source::Writer(guard) => guard.data(path).await?.map(|node| node.data),
            Source::Unlocked(zk) => match zk.berth(0).await?.session().data(path).await {
                Ok((data, _)) => Some(data),
                Err(Failure::NoNode) => None,
                Err(failure) => return Err(failure.into()),
            },
        };
        Ok(data.map(String::from_utf8).transpose()?)
    }
}
