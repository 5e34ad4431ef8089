//! Many tasks of one process read under a lock that the process keeps between reads. The example measures the reads,
//! and how soon a writer elsewhere gets the lock. Without `--zookeeper` the example needs no server.
//!
//! ```text
//! cargo run --release --example kept_reads
//! cargo run --release --example kept_reads -- --zookeeper 127.0.0.1:2181 --tasks 200 --idle 10m
//! cargo run --release --example kept_reads -- --without-keeping    # to see what keeping is for
//! ```
//!
//! Each task acquires the read lock, holds it while other tasks run, and drops the guard. The process keeps its node
//! between the reads until the writer asks for the lock. Then the running reads end, the writer is granted the lock,
//! and later reads queue behind the writer.

mod common;

use std::collections::HashSet;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::meter::Meter;
use serde_json::{Value, json};
use tokio::task::{JoinSet, yield_now};
use tokio::time::sleep;
use zk_rwlock::RwLock;

const LOCK: &str = "/zk-rwlock-examples/kept_reads/lock";

/// Read with many tasks under a lock that the process keeps, and measure how soon a writer elsewhere gets it
#[derive(Clone, clap::Parser)]
struct Arguments {
    #[command(flatten)]
    backend: common::Backend,
    /// The number of tasks that read
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    tasks: u32,
    /// How long an unused node is kept
    #[arg(long, default_value = "1m", value_parser = humantime::parse_duration)]
    idle: Duration,
    /// How long to read without a writer, and then again with one
    #[arg(long, default_value = "3s", value_parser = humantime::parse_duration)]
    duration: Duration,
    /// Do not keep the node: each read makes a node of its own
    #[arg(long)]
    without_keeping: bool,
    /// Print one line of JSON, without the part with a writer
    #[arg(long)]
    json: bool,
}

#[tokio::main]
async fn main() -> ExitCode {
    common::exit(run(common::arguments()).await)
}

async fn run(arguments: Arguments) -> common::Result<()> {
    let (ours, theirs) = (arguments.backend.connect().await?, arguments.backend.connect().await?);
    let lock = RwLock::builder(&ours, LOCK);
    let lock = if arguments.without_keeping { lock } else { lock.keep(arguments.idle) }.build()?;
    let elsewhere = RwLock::builder(&theirs, LOCK).label("writer").build()?;

    if arguments.json {
        let server = arguments.backend.zookeeper.as_deref().and_then(|servers| servers.split('/').next());
        let meter = server.map(Meter::start).transpose()?;
        let done = reads(&lock, &arguments).await?;
        let requests = meter.map(|meter| meter.stop()?.of("packets_received")).transpose()?;
        println!("{}", done.json(&arguments, requests));
        ours.close().await;
        theirs.close().await;
        return Ok(());
    }
    println!("{} tasks read for {}:", arguments.tasks, humantime::format_duration(arguments.duration));
    println!("  {}", reads(&lock, &arguments).await?);

    println!("the same, with a writer elsewhere that wants the lock again and again:");
    let stop = Arc::new(AtomicBool::new(false));
    let writer = tokio::spawn(write(elsewhere, Arc::clone(&stop)));
    let done = reads(&lock, &arguments).await;
    stop.store(true, Ordering::Relaxed);
    let (writes, longest_wait) = writer.await??;
    let done = done?;
    println!("  {done}");
    println!(
        "  {writes} writes, of which the longest waited {longest_wait:.1?}; the longest read took {:.1?}",
        done.longest
    );
    ours.close().await;
    theirs.close().await;
    Ok(())
}

/// The figures of the reads by one or more tasks.
#[derive(Default)]
struct Reads {
    number: u64,
    took: Duration,
    /// The longest time for which a task held the lock: from the grant to the drop of the guard.
    longest: Duration,
    nodes: HashSet<i64>,
}

impl std::fmt::Display for Reads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let rate = self.number as f64 / self.took.as_secs_f64();
        write!(f, "{rate:.0} reads a second: {} reads on {} nodes", self.number, self.nodes.len())
    }
}

impl Reads {
    fn json(&self, arguments: &Arguments, requests: Option<i64>) -> Value {
        json!({
            "peer": if arguments.without_keeping { "ours" } else { "ours-kept" },
            "workload": "shared",
            "n": arguments.tasks,
            "ops": self.number,
            "sessions": 1,
            "elapsed_s": self.took.as_secs_f64(),
            "ops_per_s": self.number as f64 / self.took.as_secs_f64(),
            "errors": 0,
            "extra": {
                "nodes": self.nodes.len(),
                "requests_per_op": requests.map(|requests| requests as f64 / self.number as f64),
            },
        })
    }
}

/// Reads with many concurrent tasks.
async fn reads(lock: &RwLock, arguments: &Arguments) -> common::Result<Reads> {
    let began = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..arguments.tasks {
        tasks.spawn(read(lock.clone(), began + arguments.duration));
    }
    let mut all = Reads::default();
    while let Some(some) = tasks.join_next().await {
        let some = some??;
        all.number += some.number;
        all.longest = all.longest.max(some.longest);
        all.nodes.extend(some.nodes);
    }
    all.took = began.elapsed();
    Ok(all)
}

async fn read(lock: RwLock, end: Instant) -> common::Result<Reads> {
    let (mut reads, mut node) = (Reads::default(), 0);
    let mut now = Instant::now();
    while now < end {
        let guard = lock.read().await?;
        let granted = Instant::now();
        yield_now().await; // here a task would look at what the lock guards
        if guard.fencing_token() != node {
            node = guard.fencing_token();
            reads.nodes.insert(node);
        }
        drop(guard);
        now = Instant::now();
        reads.longest = reads.longest.max(now - granted);
        reads.number += 1;
    }
    Ok(reads)
}

/// Writes again and again. Returns the number of writes and the longest wait.
async fn write(lock: RwLock, stop: Arc<AtomicBool>) -> common::Result<(u32, Duration)> {
    let (mut writes, mut longest) = (0, Duration::ZERO);
    while !stop.load(Ordering::Relaxed) {
        let asked = Instant::now();
        let guard = lock.write().await?;
        longest = longest.max(asked.elapsed());
        writes += 1;
        guard.release().await?;
        sleep(Duration::from_millis(10)).await; // so that there is something to keep
    }
    Ok((writes, longest))
}
