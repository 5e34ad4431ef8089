//! The workload `keepers`: processes that have read and sit idle, and a writer that comes; knows no other workload.
//!
//! Each keeper is a process of its own, which this program starts once more. At each line on its standard input it reads
//! twice, so that a node it keeps was used again, and answers with a line.

use std::process::Stdio;
use std::time::Instant;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use zk_rwlock::RwLock;

use crate::common::Result as Outcome;
use crate::common::meter::{self, Meter};
use crate::contender::{Contender, Lock};
use crate::{Args, Measured, counts, percentiles};

/// How often the round trip is measured before each write.
const ROUND_TRIPS: usize = 20;

struct Keeper {
    child: Child,
    orders: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Keeper {
    fn start(args: &Args, directory: &str) -> Outcome<Keeper> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["--workload", "keepers", "--zk", &args.zk, "--keeper-of", directory]);
        if let Some(idle) = args.keep {
            command.arg("--keep").arg(humantime::format_duration(idle).to_string());
        }
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true).spawn()?;
        let (Some(orders), Some(answers)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("a keeper has no pipes".into());
        };
        Ok(Keeper { child, orders, answers: BufReader::new(answers).lines() })
    }

    async fn order(&mut self) -> Outcome<()> {
        Ok(self.orders.write_all(b"\n").await?)
    }

    async fn answer(&mut self) -> Outcome<()> {
        match self.answers.next_line().await? {
            Some(_) => Ok(()),
            None => Err("a keeper has ended".into()),
        }
    }

    async fn end(self) -> Outcome<()> {
        let Keeper { mut child, orders, answers } = self;
        drop(orders);
        let status = child.wait().await?;
        drop(answers);
        if status.success() { Ok(()) } else { Err(format!("a keeper failed ({status})").into()) }
    }
}

/// What a keeper does, until its standard input ends.
pub(crate) async fn keep(lock: &RwLock) -> Outcome<()> {
    let mut orders = BufReader::new(tokio::io::stdin()).lines();
    while orders.next_line().await?.is_some() {
        for _ in 0..2 {
            lock.read().await?.release().await?;
        }
        println!("read");
    }
    Ok(())
}

/// Each write is measured from its asking to its grant.
pub(crate) async fn keepers(args: &Args, writer: &Contender, zk: &zk_rwlock::ZooKeeper) -> Outcome<Measured> {
    let Lock::Fleet(lock) = &writer.lock else { return Err("there are no keepers of a local lock".into()) };
    let mut keepers = (0..args.n).map(|_| Keeper::start(args, lock.path())).collect::<Outcome<Vec<_>>>()?;
    let (mut grants, mut trips, mut extra) = (Vec::new(), Vec::new(), serde_json::Map::new());
    for _ in 0..args.ops {
        for keeper in &mut keepers {
            keeper.order().await?;
        }
        for keeper in &mut keepers {
            keeper.answer().await?;
        }
        meter::quiet(&args.zk, args.n).await?;
        trips.extend(round_trips(zk, lock.path()).await?);
        let meter = Meter::start(&args.zk)?;
        let before = Instant::now();
        let held = writer.acquire(true).await?;
        grants.push(before.elapsed());
        for (name, count) in counts(&meter.stop()?) {
            let sum = extra.get(&name).and_then(Value::as_i64).unwrap_or(0) + count.as_i64().unwrap_or(0);
            extra.insert(name, json!(sum));
        }
        writer.release(held).await?;
    }
    for keeper in keepers {
        keeper.end().await?;
    }
    extra.insert("round_trip_us".to_owned(), percentiles(&mut trips)["p50_us"].clone());
    extra.insert("keepers".to_owned(), json!(args.n));
    let elapsed = grants.iter().sum();
    Ok(Measured { ops: args.ops, elapsed, latencies: grants, extra })
}

async fn round_trips(zk: &zk_rwlock::ZooKeeper, directory: &str) -> Outcome<Vec<std::time::Duration>> {
    use zk_rwlock::coordinator::Coordinator;
    let session_slot = zk.session_slot(0).await?;
    let mut trips = Vec::new();
    for _ in 0..ROUND_TRIPS {
        let before = Instant::now();
        session_slot.session().data(directory).await?;
        trips.push(before.elapsed());
    }
    Ok(trips)
}
