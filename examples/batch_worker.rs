//! Workers share the partitions of a batch. Each partition has a lock, and the worker that gets the lock does the work.
//! Without `--zookeeper` the example needs no server.
//!
//! ```text
//! cargo run --example batch_worker
//! cargo run --example batch_worker -- --zookeeper 127.0.0.1:2181 --partitions 20 --workers 4
//! ```
//!
//! Several processes with the same `--batch` share its partitions. Ctrl-C or SIGTERM stops a process cleanly: its
//! partitions are free for the others at once, and not only after a session timeout. On the embedded ensemble worker 1
//! loses its session in the middle of its first partition, and another worker takes the partition over.

mod common;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use common::Client;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;
use zk_rwlock::coordinator::Coordinator;
use zk_rwlock::{Memory, RwLock, WriteGuard};

/// Workers share the partitions of a batch: each partition has a lock, and the worker that gets it does the work
#[derive(clap::Parser)]
struct Arguments {
    #[command(flatten)]
    backend: common::Backend,
    /// The number of partitions of the batch
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1000))]
    partitions: u32,
    /// The number of workers in this process, each with a session of its own
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=64))]
    workers: u32,
    /// How long the work on a partition takes
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 200)]
    work: u64,
    /// The name of the batch [default: a new one]
    #[arg(long, value_name = "NAME")]
    batch: Option<String>,
}

#[tokio::main]
async fn main() -> ExitCode {
    common::exit(run(common::arguments()).await)
}

async fn run(arguments: Arguments) -> common::Result<()> {
    let now = humantime::format_rfc3339_millis(SystemTime::now());
    let batch = Arc::new(Batch {
        name: arguments.batch.unwrap_or_else(|| now.to_string()),
        work: Duration::from_millis(arguments.work),
        done: Mutex::new((1..=arguments.partitions).map(|partition| (partition, Vec::new())).collect()),
        stop: watch::Sender::new(false),
    });
    println!("batch {} has {} partitions", batch.name, arguments.partitions);

    let mut terminate = signal(SignalKind::terminate())?;
    let asked = Arc::clone(&batch);
    tokio::spawn(async move {
        tokio::select! {
            _ = tokio::signal::ctrl_c() => {}
            _ = terminate.recv() => {}
        }
        println!("asked to stop");
        asked.stop.send_replace(true);
    });

    let mut workers = JoinSet::new();
    for number in 1..=arguments.workers {
        // A clone of worker 1's client, with which the demonstration expires the session of worker 1.
        let victim = arguments.backend.embedded().filter(|_| number == 1);
        let zk = match &victim {
            Some(memory) => Arc::new(memory.clone()),
            None => arguments.backend.connect().await?,
        };
        let first = (number - 1) * arguments.partitions / arguments.workers;
        workers.spawn(Worker { name: format!("worker {number}"), zk, batch: Arc::clone(&batch), victim }.run(first));
    }
    common::all(workers).await?;
    batch.report()
}

struct Batch {
    name: String,
    work: Duration,
    /// The workers that have processed each partition. If the lock works, this is one worker for each partition.
    done: Mutex<BTreeMap<u32, Vec<String>>>,
    stop: watch::Sender<bool>,
}

struct Worker {
    name: String,
    zk: Client,
    batch: Arc<Batch>,
    /// The client of the worker whose session expires in the demonstration.
    victim: Option<Memory>,
}

impl Worker {
    /// Goes round the partitions, beginning after `first`, until all partitions are done or the worker is asked to
    /// stop.
    async fn run(mut self, first: u32) -> common::Result<()> {
        loop {
            let open = self.batch.open(first);
            if open.is_empty() || self.batch.is_stopped() {
                break;
            }
            for partition in open {
                let lock = RwLock::builder(&self.zk, format!("{}/lock", node(partition))).label(&self.name).build()?;
                let acquired = tokio::select! {
                    acquired = lock.try_write() => acquired,
                    () = self.batch.stopped() => break,
                };
                match acquired {
                    Ok(guard) => self.work(partition, guard).await?,
                    // Another worker has the lock. The try to acquire it wrote nothing to the ensemble.
                    Err(error) if error.is_would_block() => {}
                    Err(error) => return Err(error.into()),
                }
            }
            // Other workers process the remaining partitions. These are tried again, because a worker may lose its lock.
            sleep(Duration::from_millis(20)).await;
        }
        self.zk.close().await;
        Ok(())
    }

    async fn work(&mut self, partition: u32, guard: WriteGuard) -> common::Result<()> {
        let (name, batch) = (&self.name, &self.batch);
        let mark = guard.read_node(&node(partition)).await?.ok_or("the partition's node is gone")?;
        if mark.data == batch.name.as_bytes() {
            batch.found_done(partition);
            return Ok(guard.release().await?);
        }
        println!("{name} takes partition {partition}, with fencing token {}", guard.fencing_token());
        let worked = tokio::select! {
            worked = guard.run(process(batch.work, self.victim.take())) => worked,
            () = batch.stopped() => {
                println!("{name} leaves partition {partition} to others");
                return Ok(guard.release().await?);
            }
        };
        // Only a worker that still holds the lock can mark the partition as done, because the transaction checks that the
        // lock's node exists.
        let mark = guard.transaction().set_version(node(partition), batch.name.as_str(), mark.version);
        let marked = match worked {
            Ok(()) => mark.commit().await,
            Err(error) => Err(error),
        };
        match marked {
            Ok(_) => {
                println!("{name} has done partition {partition}");
                batch.add(partition, name);
                Ok(guard.release().await?)
            }
            Err(error) if error.is_lost() => {
                println!("{name} drops partition {partition}: {error}");
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// Does the work of one partition. The work can be dropped at each `await`. Halfway, the session of `victim` expires.
async fn process(work: Duration, victim: Option<Memory>) {
    sleep(work / 2).await;
    if let Some(victim) = victim {
        println!("the ensemble gives up the session of worker 1");
        victim.faults().expire();
    }
    sleep(work / 2).await;
}

impl Batch {
    /// Returns the partitions that are not done, in a circle beginning after `first`.
    fn open(&self, first: u32) -> Vec<u32> {
        let done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        let mut open: Vec<u32> = done.iter().filter(|(_, by)| by.is_empty()).map(|(partition, _)| *partition).collect();
        let before = open.iter().filter(|partition| **partition <= first).count();
        open.rotate_left(before);
        open
    }

    fn add(&self, partition: u32, by: &str) {
        let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        done.entry(partition).or_default().push(by.to_owned());
    }

    fn found_done(&self, partition: u32) {
        let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        let by = done.entry(partition).or_default();
        if by.is_empty() {
            by.push("another process".to_owned());
        }
    }

    fn is_stopped(&self) -> bool {
        *self.stop.borrow()
    }

    async fn stopped(&self) {
        let _ = self.stop.subscribe().wait_for(|stop| *stop).await;
    }

    fn report(&self) -> common::Result<()> {
        let done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        for (partition, by) in done.iter().filter(|(_, by)| !by.is_empty()) {
            println!("partition {partition}: {}", by.join(" and "));
        }
        let open = done.values().filter(|by| by.is_empty()).count();
        if done.values().any(|by| by.len() > 1) {
            return Err("a partition was processed twice".into());
        }
        match open {
            0 => println!("every partition was processed exactly once"),
            _ if self.is_stopped() => println!("stopped; {open} of {} partitions are left to others", done.len()),
            _ => return Err(format!("{open} partitions were not processed").into()),
        }
        Ok(())
    }
}

/// Returns the node of a partition. Its data is the last batch in which the partition was processed, and its lock lies
/// below it.
fn node(partition: u32) -> String {
    format!("/zk-rwlock-examples/batch_worker/partition-{partition}")
}
