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
use zk_rwlock::{Error, RwLock};

const ENDPOINT: &str = "/zk-rwlock-examples/shared_config/endpoint";
const PASSWORD: &str = "/zk-rwlock-examples/shared_config/password";
const LOCK: &str = "/zk-rwlock-examples/shared_config/lock";

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
    let mut reads = 0;
    for _ in 0..arguments.changes {
        for _ in 0..5 {
            if arguments.without_lock {
                read(&zk).await?.check()?;
            } else {
                let guard = lock.read().timeout(Duration::from_secs(10)).await?;
                // What was read is worth nothing if the lock was lost meanwhile: `run` tells.
                guard.run(read(&zk)).await??.check()?;
                guard.release().await?;
            }
            reads += 1;
        }
        publish(&zk, &lock, &name).await?;
    }
    println!("{name}: {reads} reads, {} changes, every read found a pair", arguments.changes);
    zk.close().await;
    Ok(())
}

/// Changes both nodes to the next version at once, and reads what was published before anybody can change it again.
async fn publish(zk: &Client, lock: &RwLock, name: &str) -> common::Result<()> {
    let guard = lock.write().timeout(Duration::from_secs(10)).await?;
    let old = read(zk).await?;
    let new = Config::version(old.number()? + 1);
    let change = guard.transaction();
    let change = if old.is_missing() {
        change.create(ENDPOINT, new.endpoint).create(PASSWORD, new.password)
    } else {
        change.set(ENDPOINT, new.endpoint).set(PASSWORD, new.password)
    };
    change.commit().await?;

    // From writer to reader, in place: other readers come in now, and no writer comes between.
    let guard = guard.downgrade().await?;
    let published = guard.run(read(zk)).await??;
    published.check()?;
    println!("{name}: published {published} under fencing token {}", guard.fencing_token());
    guard.release().await?;
    Ok(())
}

/// The two nodes must match: that is what a half-done change breaks.
#[derive(PartialEq, Eq)]
struct Config {
    endpoint: String,
    password: String,
}

impl Config {
    fn version(number: u64) -> Config {
        Config { endpoint: format!("https://db-{number}.example"), password: format!("secret-{number}") }
    }
}
