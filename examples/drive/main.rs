//! Puts the lock through a workload and prints one line of JSON: `cargo run --release --example drive -- --help`.
//!
//! The command line, the workloads and the line are those of a common set of drivers for ZooKeeper locks, so that
//! this one can be run beside them. It uses the public interface alone, on sessions that are all opened, and after 200
//! acquisitions that are all done, before anything is measured. What the server did is what its `mntr` says.
//!
//! All contenders are in this one process, as those of the other drivers are. Those on one session know of each other, which
//! spares requests; those on different sessions do not, as in different processes. So `--apart`, with a session for each
//! contender, measures what as many processes do, and without it `--sessions 1` what the tasks of one service do. Only the
//! keepers of `--workload keepers` are processes of their own, because their waking is what is measured.

#[path = "../common/mod.rs"]
mod common;
mod contender;
mod keepers;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::{Parser, ValueEnum};
use common::Result as Outcome;
use common::meter::{self, Counted, Meter};
use contender::{Census, Contender, Lock, Release};
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Map, Value, json};
use tokio::sync::{Barrier, Semaphore};
use tokio::task::JoinHandle;
use zk_rwlock::coordinator::Coordinator;
use zk_rwlock::{Error, RwLock, ZooKeeper};

const WARM_UP: usize = 200;
const MANY_SECONDS: Duration = Duration::from_secs(60);
const HOLD: Duration = Duration::from_millis(1);
/// Where a pair takes no longer than a look at a clock, the clock is looked at once in so many.
const TIMED: usize = 64;
const SESSION_TIMEOUT: Duration = Duration::from_secs(30);
const COUNTERS: [&str; 4] = ["packets_received", "packets_sent", "bytes_received_count", "response_bytes"];

#[derive(Parser)]
struct Args {
    /// The servers, as HOST:PORT[,HOST:PORT...].
    #[arg(long, default_value = "127.0.0.1:2181")]
    zk: String,
    #[arg(long, value_enum)]
    workload: Workload,
    /// How many contenders.
    #[arg(long, default_value_t = 1)]
    n: usize,
    /// How many acquisitions in all.
    #[arg(long, default_value_t = 2_000)]
    ops: usize,
    /// How many sessions the contenders share; the gate has one more. `--apart` decides it otherwise.
    #[arg(long, default_value_t = 1)]
    sessions: usize,
    /// Decides which operations of `mix` are writes.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How guards are given back: awaited until the node is gone, or dropped.
    #[arg(long, value_enum, default_value_t = Release::Await)]
    release: Release,
    /// Give each contender a session of its own, so that none knows of another, as in processes of their own.
    #[arg(long)]
    apart: bool,
    /// One of so many operations of `mix` is a write.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    write_one_in: u64,
    /// Keep the node of each lock between uses, until it was idle for so long.
    #[arg(long, value_name = "IDLE", num_args = 0..=1, default_missing_value = "1m", value_parser = humantime::parse_duration)]
    keep: Option<Duration>,
    /// Measure `tokio::sync::RwLock` instead, in the same loops; needs no server.
    #[arg(long, conflicts_with_all = ["keep", "apart"])]
    local: bool,
    /// Be one of the keepers of this lock.
    #[arg(long, hide = true, value_name = "PATH")]
    keeper_of: Option<String>,
    /// Print one line of JSON, which is all there is.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum Workload {
    /// Every contender writes.
    Write,
    /// Every contender reads.
    Read,
    /// All contend for the write lock and hold it for no time.
    Contend,
    /// As contend, with a hold of 1 ms; only some write.
    Mix,
    /// All are queued to write behind a gate, which opens.
    Drain,
    /// All are queued to read behind a gate, which opens.
    Readers,
    /// All queue up to write behind a gate, which stays shut: what queueing costs, and the memory of the waiters.
    Waiters,
    /// A writer comes to as many processes that have read and, with `--keep`, keep their nodes: the time until its grant.
    Keepers,
}

/// The time of the processor that this process has used so far.
fn processor() -> Duration {
    let used = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(used.tv_sec.unsigned_abs(), u32::try_from(used.tv_nsec).unwrap_or_default())
}

/// What goes into the line of JSON of what the servers counted, as far as they count it.
fn counts(counted: &Counted) -> Map<String, Value> {
    let risen = COUNTERS.into_iter().filter_map(|name| Some((name.to_owned(), json!(counted.of(name).ok()?))));
    let after = ("watch_count_after".to_owned(), json!(counted.last("watch_count").ok()));
    risen.chain([after]).collect()
}

struct Measured {
    ops: usize,
    elapsed: Duration,
    latencies: Vec<Duration>,
    extra: Map<String, Value>,
}

fn percentiles(latencies: &mut [Duration]) -> Map<String, Value> {
    latencies.sort_unstable();
    let at = |share: f64| {
        let index = ((share * latencies.len() as f64) as usize).min(latencies.len().saturating_sub(1));
        latencies.get(index).map(|latency| latency.as_nanos() as f64 / 1e3)
    };
    [("p50_us", 0.5), ("p99_us", 0.99), ("max_us", 1.0)]
        .into_iter()
        .map(|(name, share)| (name.to_owned(), json!(at(share))))
        .collect()
}

async fn single(args: &Args, me: &Contender) -> Outcome<Measured> {
    let write = args.workload == Workload::Write;
    let (mut acquire, mut release, mut pair) = (Vec::new(), Vec::new(), Vec::new());
    let meter = Meter::start(&args.zk)?;
    let start = Instant::now();
    for _ in 0..args.ops {
        let before = Instant::now();
        let held = me.acquire(write).await?;
        let between = Instant::now();
        me.release(held).await?;
        let after = Instant::now();
        acquire.push(between - before);
        release.push(after - between);
        pair.push(after - before);
    }
    let elapsed = start.elapsed();
    let mut extra = counts(&meter.stop()?);
    extra.insert("acquire".to_owned(), percentiles(&mut acquire).into());
    extra.insert("release".to_owned(), percentiles(&mut release).into());
    Ok(Measured { ops: args.ops, elapsed, latencies: pair, extra })
}

/// Tasks that do nothing else, each for its share of the operations: for pairs that cost less than sharing a counter.
async fn busy(args: &Args, contenders: Vec<Contender>) -> Outcome<Measured> {
    let (each, write) = (args.ops / args.n, args.workload == Workload::Write);
    let go = Arc::new(Barrier::new(args.n + 1));
    let start_one = |me: Contender| -> JoinHandle<Result<Vec<Duration>, Error>> {
        let go = Arc::clone(&go);
        tokio::spawn(async move {
            let mut pairs = Vec::new();
            go.wait().await;
            for turn in 0..each {
                let before = turn.is_multiple_of(TIMED).then(Instant::now);
                let held = me.acquire(write).await?;
                me.release(held).await?;
                pairs.extend(before.map(|before| before.elapsed()));
            }
            Ok(pairs)
        })
    };
    let tasks: Vec<_> = contenders.into_iter().map(start_one).collect();
    let meter = if args.local { None } else { Some(Meter::start(&args.zk)?) };
    let start = Instant::now();
    go.wait().await;
    let mut latencies = Vec::new();
    for task in tasks {
        latencies.append(&mut task.await??);
    }
    let elapsed = start.elapsed();
    let extra = meter.map_or_else(|| Ok(Map::new()), |meter| meter.stop().map(|counted| counts(&counted)))?;
    let ops = each * args.n;
    Ok(Measured { ops, elapsed, latencies, extra })
}

async fn contend(args: &Args, contenders: Vec<Contender>) -> Outcome<Measured> {
    let (ops, seed, mix, one_in) = (args.ops, args.seed, args.workload == Workload::Mix, args.write_one_in);
    let tickets = Arc::new(AtomicUsize::new(0));
    let go = Arc::new(Barrier::new(args.n + 1));
    let start_one = |me: Contender| -> JoinHandle<Result<Vec<Duration>, Error>> {
        let (tickets, go) = (Arc::clone(&tickets), Arc::clone(&go));
        tokio::spawn(async move {
            let mut pairs = Vec::new();
            go.wait().await;
            loop {
                let ticket = tickets.fetch_add(1, SeqCst);
                if ticket >= ops {
                    return Ok(pairs);
                }
                let write = !mix || is_write(seed, ticket as u64, one_in);
                let before = Instant::now();
                let held = me.acquire(write).await?;
                if mix {
                    tokio::time::sleep(HOLD).await;
                }
                me.release(held).await?;
                pairs.push(before.elapsed());
            }
        })
    };
    let tasks: Vec<_> = contenders.into_iter().map(start_one).collect();
    let meter = Meter::start(&args.zk)?;
    let start = Instant::now();
    go.wait().await;
    let mut all = Vec::new();
    for task in tasks {
        all.push(task.await??);
    }
    let elapsed = start.elapsed();
    let mut extra = counts(&meter.stop()?);
    extra.insert("count_min".to_owned(), json!(all.iter().map(Vec::len).min()));
    extra.insert("count_max".to_owned(), json!(all.iter().map(Vec::len).max()));
    Ok(Measured { ops, elapsed, latencies: all.concat(), extra })
}

/// SplitMix64: which operations write is the same for every driver.
fn is_write(seed: u64, ticket: u64, one_in: u64) -> bool {
    let mut x = seed.wrapping_mul(1_000_003).wrapping_add(ticket).wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (x ^ (x >> 31)).is_multiple_of(one_in)
}

async fn queue(args: &Args, contenders: Vec<Contender>, gate: (ZooKeeper, Contender, &str)) -> Outcome<Measured> {
    let drain = args.workload == Workload::Drain;
    let (zk, gate, directory) = gate;
    let held = gate.acquire(true).await?;
    let granted = Arc::new(Semaphore::new(0));
    // Readers hold until all of them do: their leaving is not measured.
    let may_leave = Arc::new(Semaphore::new(if drain { args.n } else { 0 }));
    let start_one = |me: Contender| -> JoinHandle<Result<Instant, Error>> {
        let (granted, may_leave) = (Arc::clone(&granted), Arc::clone(&may_leave));
        tokio::spawn(async move {
            let held = me.acquire(drain).await?;
            let at = Instant::now();
            granted.add_permits(1);
            let _leave = may_leave.acquire().await;
            me.release(held).await?;
            Ok(at)
        })
    };
    let tasks: Vec<_> = contenders.into_iter().map(start_one).collect();
    await_queue(args, &zk, directory).await?;
    let meter = Meter::start(&args.zk)?;
    let start = Instant::now();
    gate.release(held).await?;
    let _all = granted.acquire_many(u32::try_from(args.n)?).await?;
    let mut grants = Vec::new();
    let (elapsed, mut extra);
    if drain {
        for task in tasks {
            grants.push(task.await??);
        }
        elapsed = start.elapsed();
        extra = counts(&meter.stop()?);
    } else {
        elapsed = start.elapsed();
        extra = counts(&meter.stop()?);
        may_leave.add_permits(args.n);
        for task in tasks {
            grants.push(task.await??);
        }
    }
    grants.sort_unstable();
    let mut before = start;
    let mut gap = |at: Instant| at - std::mem::replace(&mut before, if drain { at } else { start });
    let latencies = grants.into_iter().map(&mut gap).collect();
    let micros = elapsed.as_nanos() as f64 / 1e3;
    let (name, value) = if drain { ("us_per_handoff", micros / args.n as f64) } else { ("total_us", micros) };
    extra.insert(name.to_owned(), json!(value));
    Ok(Measured { ops: args.n, elapsed, latencies, extra })
}

/// Nothing is granted here, so there are no latencies: the time is that until the server hears no more of them.
async fn waiters(args: &Args, contenders: impl FnOnce() -> Vec<Contender>, gate: &Contender) -> Outcome<Measured> {
    let _held = gate.acquire(true).await?;
    // The gate's own watch is counted before, and not as one of theirs.
    meter::quiet(&args.zk, args.sessions).await?;
    let memory_before = meter::memory("VmRSS");
    let mut meter = Meter::start(&args.zk)?;
    let start = Instant::now();
    let wait = |me: Contender| tokio::spawn(async move { me.acquire(true).await.map(drop) });
    let tasks: Vec<_> = contenders().into_iter().map(wait).collect();
    let mut last = meter.silence().await?;
    // A server that flushes each transaction to a slow disk is silent in between, too.
    while meter.rises("ephemerals_count")? < i64::try_from(args.n)? && start.elapsed() < MANY_SECONDS {
        last = meter.silence().await?;
    }
    let elapsed = last - start;
    let nodes = meter.rises("ephemerals_count")?;
    let counted = meter.stop()?;
    if nodes != i64::try_from(args.n)? {
        return Err("not all contenders have their nodes".into());
    }
    if let Some(early) = tasks.iter().find(|task| task.is_finished()) {
        return Err(format!("a waiter came past the gate, or failed: {early:?}").into());
    }
    let mut extra = counts(&counted);
    let each = |memory: Option<u64>| Some((memory? as f64 - memory_before? as f64) / args.n as f64);
    extra.insert("bytes_per_waiter".to_owned(), json!(each(meter::memory("VmRSS"))));
    extra.insert("peak_bytes_per_waiter".to_owned(), json!(each(meter::memory("VmHWM"))));
    extra.insert("us_per_waiter".to_owned(), json!(elapsed.as_secs_f64() * 1e6 / args.n as f64));
    tasks.iter().for_each(JoinHandle::abort);
    Ok(Measured { ops: args.n, elapsed, latencies: Vec::new(), extra })
}

async fn connect(args: &Args) -> Result<ZooKeeper, Error> {
    ZooKeeper::builder().session_timeout(SESSION_TIMEOUT).connect(&args.zk).await
}

fn lock(args: &Args, zk: &ZooKeeper, directory: &str) -> Result<RwLock, Error> {
    let lock = RwLock::builder(zk, directory);
    if let Some(idle) = args.keep { lock.keep(idle) } else { lock }.build()
}

/// Waits until the gate and all contenders have their nodes, and then for the server to have gone quiet.
async fn await_queue(args: &Args, zk: &ZooKeeper, directory: &str) -> Outcome<()> {
    let session_slot = zk.session_slot(0).await?;
    while session_slot.session().children(directory).await?.len() < args.n + 1 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    meter::quiet(&args.zk, args.sessions).await
}

#[tokio::main]
async fn main() -> Outcome<()> {
    let mut args = Args::parse();
    if args.apart {
        args.sessions = args.n;
    }
    if args.keep.is_some()
        && !args.apart
        && [Workload::Drain, Workload::Readers, Workload::Waiters].contains(&args.workload)
    {
        return Err("contenders of one process that keep a node wait for that one node: add --apart".into());
    }
    if let Some(directory) = &args.keeper_of {
        let zk = connect(&args).await?;
        keepers::keep(&lock(&args, &zk, directory)?).await?;
        zk.close().await;
        return Ok(());
    }
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos();
    let directory = format!("/peers/ours-{}-{since_epoch}", std::process::id());
    let mut sessions = Vec::new();
    if !args.local {
        for _ in 0..=args.sessions {
            sessions.push(connect(&args).await?);
        }
    }
    let locks = match args.local {
        true => vec![Lock::Local(Arc::default()); args.sessions + 1],
        false => sessions.iter().map(|zk| lock(&args, zk, &directory).map(Lock::Fleet)).collect::<Result<_, _>>()?,
    };
    let census = Arc::new(Census::default());
    let contender =
        |session: usize| Contender { lock: locks[session].clone(), release: args.release, census: Arc::clone(&census) };
    let first = contender(0);
    // The keepers may be far.
    for _ in 0..if args.workload == Workload::Keepers { 10 } else { WARM_UP } {
        let held = first.acquire(![Workload::Read, Workload::Keepers].contains(&args.workload)).await?;
        first.release(held).await?;
    }
    let contenders = || (0..args.n).map(|i| contender(i % args.sessions)).collect::<Vec<_>>();
    let gate = contender(args.sessions);
    let is_busy = args.local || args.keep.is_some() || args.n > 1;
    let before = processor();
    let mut measured = match args.workload {
        Workload::Write | Workload::Read if is_busy => busy(&args, contenders()).await?,
        Workload::Write | Workload::Read => single(&args, &first).await?,
        Workload::Contend | Workload::Mix => contend(&args, contenders()).await?,
        Workload::Drain | Workload::Readers => {
            queue(&args, contenders(), (sessions[args.sessions].clone(), gate, &directory)).await?
        }
        Workload::Waiters => waiters(&args, contenders, &gate).await?,
        Workload::Keepers => keepers::keepers(&args, &gate, &sessions[args.sessions]).await?,
    };
    let processor = processor().saturating_sub(before).as_secs_f64() * 1e6;
    measured.extra.insert("processor_us_per_op".to_owned(), json!(processor / measured.ops as f64));
    let violations = census.violations();
    if let Some(requests) = measured.extra.get("packets_received").and_then(Value::as_i64) {
        measured.extra.insert("requests_per_op".to_owned(), json!(requests as f64 / measured.ops as f64));
    }
    measured.extra.insert("violations".to_owned(), json!(violations));
    let workload = args.workload.to_possible_value().map(|name| name.get_name().to_owned());
    let peer = match (args.local, args.keep.is_some(), args.apart, args.release) {
        (true, ..) => "local",
        (false, true, true, _) => "ours-kept-apart",
        (false, true, false, _) => "ours-kept",
        (false, false, true, _) => "ours-apart",
        (false, false, false, Release::Await) => "ours",
        (false, false, false, Release::Drop) => "ours-drop",
    };
    let mut line = Map::new();
    for (name, value) in [
        ("peer", json!(peer)),
        ("version", json!(env!("CARGO_PKG_VERSION"))),
        ("workload", json!(workload)),
        ("n", json!(args.n)),
        ("ops", json!(measured.ops)),
        ("sessions", json!(args.sessions)),
        ("elapsed_s", json!(measured.elapsed.as_secs_f64())),
        ("ops_per_s", json!(measured.ops as f64 / measured.elapsed.as_secs_f64())),
    ] {
        line.insert(name.to_owned(), value);
    }
    line.append(&mut percentiles(&mut measured.latencies));
    line.insert("errors".to_owned(), json!(violations));
    line.insert("extra".to_owned(), measured.extra.into());
    println!("{}", Value::Object(line));
    // Thousands of nodes go with their session at once; left to the guards, each would be a request.
    for session in sessions {
        session.close().await;
    }
    Ok(())
}
