//! The floor: what each workload costs with the client crate alone, and without a lock.
//!
//! An acquisition is the creation of a node and a release its deletion. In `drain` each contender watches the node
//! before its own and deletes its own when that is gone; in `readers` all watch the gate, and nothing more; in
//! `waiters` each makes its node and watches the one before it, and that is all. In `contend` and `mix` no contender
//! waits for another, so a lock takes longer there mostly for the waiting that it is for. In `keepers` a writer makes its
//! node and sets the data of the directory, and all that watch the data delete theirs.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::ValueEnum;
use serde_json::{Map, Value, json};
use tokio::sync::{Barrier, Semaphore};
use tokio::task::JoinSet;
use zookeeper_client::{Acls, Client, CreateMode};

use crate::Result;
use crate::meter::{self, Counted, Meter};

/// As many as the driver does, before anything is measured.
const WARM_UP: usize = 200;
const COUNTERS: [&str; 4] = ["packets_received", "packets_sent", "bytes_received_count", "response_bytes"];
const HOLD: Duration = Duration::from_millis(1);
const SESSION_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[arg(long)]
    zk: String,
    #[arg(long, value_enum)]
    workload: Workload,
    #[arg(long, default_value_t = 1)]
    n: usize,
    #[arg(long, default_value_t = 2_000)]
    ops: usize,
    #[arg(long, default_value_t = 1)]
    sessions: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum Workload {
    Write,
    Read,
    Contend,
    Mix,
    Drain,
    Readers,
    Waiters,
    Keepers,
}

/// One session, and where it makes its nodes.
#[derive(Clone)]
struct Contender {
    client: Client,
    directory: Arc<str>,
}

impl Contender {
    async fn enter(&self) -> Result<String> {
        // As long as the name of one of the lock's nodes.
        let prefix = format!("{}/localhost~00000000-WRITE-", self.directory);
        let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
        let (_, sequence) = self.client.create(&prefix, b"", &options).await?;
        Ok(format!("{prefix}{sequence}"))
    }

    async fn leave(&self, node: &str) -> Result<()> {
        Ok(self.client.delete(node, None).await?)
    }
}

struct Measured {
    ops: usize,
    elapsed: Duration,
    /// The median of the pairs, where there are any.
    pair: Option<Duration>,
    /// One reading, or one for each round.
    counted: Vec<Counted>,
    /// What the workload adds.
    extra: Map<String, Value>,
}

impl Measured {
    fn new(ops: usize, elapsed: Duration, counted: Counted) -> Measured {
        Measured { ops, elapsed, pair: None, counted: vec![counted], extra: Map::new() }
    }
}

#[tokio::main]
pub(crate) async fn run(arguments: &Arguments) -> Result<Value> {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos();
    let directory: Arc<str> = format!("/peers/raw-{}-{since_epoch}", std::process::id()).into();
    let mut sessions = Vec::new();
    for _ in 0..=arguments.sessions {
        let client = Client::connector().with_session_timeout(SESSION_TIMEOUT).connect(&arguments.zk).await?;
        sessions.push(Contender { client, directory: Arc::clone(&directory) });
    }
    // Not a container: a server that looks for empty ones could remove it between two rounds of the warm-up.
    sessions[0].client.mkdir(&directory, &CreateMode::Persistent.with_acls(Acls::anyone_all())).await?;
    // The keepers may be far.
    for _ in 0..if arguments.workload == Workload::Keepers { 10 } else { WARM_UP } {
        let node = sessions[0].enter().await?;
        sessions[0].leave(&node).await?;
    }
    let contenders: Vec<_> = (0..arguments.n).map(|i| sessions[i % arguments.sessions].clone()).collect();
    let mut measured = match arguments.workload {
        Workload::Write | Workload::Read => single(arguments, contenders).await?,
        Workload::Contend | Workload::Mix => together(arguments, contenders).await?,
        Workload::Drain | Workload::Readers => queue(arguments, contenders, &sessions[arguments.sessions]).await?,
        Workload::Waiters => waiters(arguments, contenders, &sessions[arguments.sessions]).await?,
        Workload::Keepers => keepers(arguments, contenders, &sessions[arguments.sessions]).await?,
    };
    // A session that is left to expire would take its nodes away in the middle of a later run.
    let states: Vec<_> = sessions.iter().map(|session| session.client.state_watcher()).collect();
    drop(sessions);
    for mut state in states {
        while !state.changed().await.is_terminated() {}
    }
    let workload = arguments.workload.to_possible_value().map(|name| name.get_name().to_owned());
    let ops = measured.ops as f64;
    let micros = measured.elapsed.as_secs_f64() * 1e6;
    let count = |name: &str| measured.counted.iter().map(|counted| counted.of(name)).sum::<Result<i64>>();
    let counts = COUNTERS.map(|name| (name, count(name)));
    let requests = count("packets_received")? as f64 / ops;
    let extra = &mut measured.extra;
    for (name, count) in counts {
        extra.insert(name.to_owned(), json!(count?));
    }
    extra.insert("requests_per_op".to_owned(), json!(requests));
    extra.insert("us_per_handoff".to_owned(), json!(micros / ops));
    extra.insert("total_us".to_owned(), json!(micros));
    Ok(json!({
        "peer": "raw",
        "workload": workload,
        "n": arguments.n,
        "ops": measured.ops,
        "sessions": arguments.sessions,
        "elapsed_s": measured.elapsed.as_secs_f64(),
        "ops_per_s": ops / measured.elapsed.as_secs_f64(),
        "p50_us": measured.pair.map(|pair| pair.as_secs_f64() * 1e6),
        "errors": 0,
        "extra": measured.extra,
    }))
}

async fn single(arguments: &Arguments, contenders: Vec<Contender>) -> Result<Measured> {
    let me = contenders.first().ok_or("there is no contender")?;
    let mut pairs = Vec::new();
    let meter = Meter::start(&arguments.zk)?;
    let began = Instant::now();
    for _ in 0..arguments.ops {
        let before = Instant::now();
        let node = me.enter().await?;
        me.leave(&node).await?;
        pairs.push(before.elapsed());
    }
    let elapsed = began.elapsed();
    let counted = meter.stop()?;
    pairs.sort_unstable();
    let pair = pairs.get(pairs.len() / 2).copied();
    Ok(Measured { pair, ..Measured::new(arguments.ops, elapsed, counted) })
}

async fn together(arguments: &Arguments, contenders: Vec<Contender>) -> Result<Measured> {
    let (ops, hold) = (arguments.ops, arguments.workload == Workload::Mix);
    let (tickets, go) = (Arc::new(AtomicUsize::new(0)), Arc::new(Barrier::new(arguments.n + 1)));
    let mut tasks: JoinSet<Result<()>> = JoinSet::new();
    for me in contenders {
        let (tickets, go) = (Arc::clone(&tickets), Arc::clone(&go));
        tasks.spawn(async move {
            go.wait().await;
            while tickets.fetch_add(1, Relaxed) < ops {
                let node = me.enter().await?;
                if hold {
                    tokio::time::sleep(HOLD).await;
                }
                me.leave(&node).await?;
            }
            Ok(())
        });
    }
    let meter = Meter::start(&arguments.zk)?;
    let began = Instant::now();
    go.wait().await;
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    let elapsed = began.elapsed();
    Ok(Measured::new(ops, elapsed, meter.stop()?))
}

async fn queue(arguments: &Arguments, contenders: Vec<Contender>, gate: &Contender) -> Result<Measured> {
    let (n, drain) = (arguments.n, arguments.workload == Workload::Drain);
    let first = gate.enter().await?;
    let mut entering: JoinSet<Result<(String, Contender)>> = JoinSet::new();
    for me in contenders {
        entering.spawn(async move { Ok((me.enter().await?, me)) });
    }
    let mut nodes = Vec::new();
    while let Some(entered) = entering.join_next().await {
        nodes.push(entered??);
    }
    nodes.sort_by(|(one, _), (other, _)| one.cmp(other));

    let granted = Arc::new(Semaphore::new(0));
    let mut tasks: JoinSet<Result<()>> = JoinSet::new();
    let mut before = first.clone();
    for (node, me) in nodes {
        let watched = before.clone();
        if drain {
            before.clone_from(&node);
        }
        let granted = Arc::clone(&granted);
        tasks.spawn(async move {
            let (_, watcher) = me.client.check_and_watch_stat(&watched).await?;
            watcher.changed().await;
            granted.add_permits(1);
            if drain {
                me.leave(&node).await?;
            }
            Ok(())
        });
    }
    meter::quiet(&arguments.zk, arguments.sessions).await?;
    let meter = Meter::start(&arguments.zk)?;
    let began = Instant::now();
    gate.leave(&first).await?;
    let _all = granted.acquire_many(u32::try_from(n)?).await?;
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    let elapsed = began.elapsed();
    Ok(Measured::new(n, elapsed, meter.stop()?))
}

/// As in `drain`, but only the queueing up is measured, and no contender releases.
async fn waiters(arguments: &Arguments, contenders: Vec<Contender>, gate: &Contender) -> Result<Measured> {
    let n = arguments.n;
    let first = gate.enter().await?;
    meter::quiet(&arguments.zk, arguments.sessions).await?;
    let memory_before = meter::memory("VmRSS");
    let mut meter = Meter::start(&arguments.zk)?;
    let began = Instant::now();
    let mut entering: JoinSet<Result<(String, Contender)>> = JoinSet::new();
    for me in contenders {
        entering.spawn(async move { Ok((me.enter().await?, me)) });
    }
    let mut nodes = vec![(first, gate.clone())];
    while let Some(entered) = entering.join_next().await {
        nodes.push(entered??);
    }
    nodes.sort_by(|(one, _), (other, _)| one.cmp(other));
    let mut waiting: JoinSet<Result<()>> = JoinSet::new();
    for pair in nodes.windows(2) {
        let (before, me) = (pair[0].0.clone(), pair[1].1.clone());
        waiting.spawn(async move {
            let (_, watcher) = me.client.check_and_watch_stat(&before).await?;
            watcher.changed().await;
            Ok(())
        });
    }
    let elapsed = meter.silence().await? - began;
    let counted = meter.stop()?;
    let mut extra = Map::new();
    let each = |memory: Option<u64>| Some((memory? as f64 - memory_before? as f64) / n as f64);
    extra.insert("bytes_per_waiter".to_owned(), json!(each(meter::memory("VmRSS"))));
    extra.insert("peak_bytes_per_waiter".to_owned(), json!(each(meter::memory("VmHWM"))));
    extra.insert("us_per_waiter".to_owned(), json!(elapsed.as_secs_f64() * 1e6 / n as f64));
    Ok(Measured { extra, ..Measured::new(n, elapsed, counted) })
}

/// From the creation of the writer's node until the last of the others is deleted, in each round.
async fn keepers(arguments: &Arguments, contenders: Vec<Contender>, writer: &Contender) -> Result<Measured> {
    let (mut grants, mut counted) = (Vec::new(), Vec::new());
    for _ in 0..arguments.ops {
        let mut tasks: JoinSet<Result<()>> = JoinSet::new();
        let entered = Arc::new(Semaphore::new(0));
        for me in contenders.clone() {
            let entered = Arc::clone(&entered);
            tasks.spawn(async move {
                let (_, _, asked) = me.client.get_and_watch_data(&me.directory).await?;
                let node = me.enter().await?;
                entered.add_permits(1);
                asked.changed().await;
                me.leave(&node).await
            });
        }
        let _all = entered.acquire_many(u32::try_from(arguments.n)?).await?;
        meter::quiet(&arguments.zk, arguments.sessions).await?;
        let meter = Meter::start(&arguments.zk)?;
        let began = Instant::now();
        let node = writer.enter().await?;
        writer.client.set_data(&writer.directory, b"", None).await?;
        while let Some(ended) = tasks.join_next().await {
            ended??;
        }
        grants.push(began.elapsed());
        counted.push(meter.stop()?);
        writer.leave(&node).await?;
    }
    let elapsed = grants.iter().sum();
    grants.sort_unstable();
    let pair = grants.get(grants.len() / 2).copied();
    Ok(Measured { ops: arguments.ops, elapsed, pair, counted, extra: Map::new() })
}
