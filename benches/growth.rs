//! Measures how costs grow with a number, from one to a hundred thousand. The number is that of locks in a process, of
//! held locks, of nodes that are kept between uses, of waiters, of readers that are granted the lock together, of
//! members that `queue()` reads, or of processes.
//!
//! Most cases run on the embedded ensemble, so they measure the library and, for reads, the embedded ensemble. `zklock
//! ls` and processes run on a real server ([`real`]). Times are processor times, which other programs do not distort.
//! Each case is a process of its own, because freed memory may be reused. `make growth` runs this program.

use std::fs::OpenOptions;
use std::future::IntoFuture;
use std::io::Write;
use std::iter::successors;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use clap::Parser;
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use support::fleet::{Capacity, Habits};
use support::polled::{now, read, reading, write, writing};
use support::storm::{Storm, World, storm};
use zk_rwlock::{Memory, RwLock, Semaphore};

#[path = "../examples/common/meter.rs"]
#[allow(dead_code, reason = "others ask for more")]
mod meter;
#[path = "growth/real.rs"]
mod real;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const PATH: &str = "/growth/lock";

#[derive(Parser)]
struct Arguments {
    /// Measure all cases; without this option nothing is done
    #[arg(long)]
    all: bool,
    /// Append a line for each case to this file
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Measure this case at this size
    #[arg(long, num_args = 2, hide = true)]
    case: Option<Vec<String>>,
    /// Be one of the processes that queue up at this server
    #[arg(long, hide = true)]
    process: Option<String>,
    /// Accepted because Cargo passes it to every benchmark
    #[arg(long, hide = true)]
    bench: bool,
}

/// A case: its name, its least and greatest size, the least number of items to measure in all (one item alone is too
/// fast to measure), and the function that measures it.
type Case = (&'static str, [usize; 2], usize, fn(usize) -> Measured);

const CASES: [Case; 11] = [
    ("handles", [1, 100_000], 1_000, handles),
    ("holds", [1, 100_000], 1_000, holds),
    ("kept nodes", [1, 100_000], 1_000, kept),
    ("waiters", [1, 10_000], 1_000, waiters),
    ("hand-offs", [1, 10_000], 1_000, hand_offs),
    ("readers let in", [1, 10_000], 1_000, readers),
    ("members read", [1, 10_000], 1_000, members),
    ("waiters for a permit", [1, 10_000], 1_000, permits),
    ("`zklock ls`", [1_000, 100_000], 1, real::list),
    ("processes", [1, 1_000], 1, real::processes),
    ("processes, simulated", [1_000, 100_000], 1, simulated),
];

/// The figures of a case, for all its items together.
struct Measured {
    processor: Duration,
    /// Bytes of memory, or bytes to and from the server. `None` if neither is measured.
    bytes: Option<u64>,
    /// The elapsed time. `None` in cases for which no user waits.
    clock: Option<Duration>,
}

/// Returns the processor time of this process.
fn processor() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

fn resident() -> u64 {
    meter::memory("VmRSS").expect("the system reports the memory of this process")
}

/// Measures the processor time and the memory that `build` needs to make its items.
fn built<T>(build: impl FnOnce() -> T) -> Measured {
    let (bytes, before) = (resident(), processor());
    let all = build();
    let (processor, bytes) = (processor() - before, Some(resident().saturating_sub(bytes)));
    // The items are leaked, so that the next round does not reuse their memory.
    std::mem::forget(all);
    Measured { processor, bytes, clock: None }
}

fn done(work: impl FnOnce()) -> Measured {
    let before = processor();
    work();
    Measured { processor: processor() - before, bytes: None, clock: None }
}

fn lock(zk: &Memory, path: &str) -> RwLock {
    RwLock::new(zk, path).expect("a valid path")
}

fn handles(n: usize) -> Measured {
    let zk = Memory::new();
    built(|| (0..n).map(|i| lock(&zk, &format!("{PATH}/{i}"))).collect::<Vec<_>>())
}

fn holds(n: usize) -> Measured {
    let zk = Memory::new();
    let locks: Vec<_> = (0..n).map(|i| lock(&zk, &format!("{PATH}/{i}"))).collect();
    built(|| locks.iter().map(write).collect::<Vec<_>>())
}

fn kept(n: usize) -> Measured {
    let zk = Memory::new();
    let keeping =
        |i| RwLock::builder(&zk, format!("{PATH}/{i}")).keep(Duration::from_secs(600)).build().expect("valid");
    let locks: Vec<_> = (0..n).map(keeping).collect();
    built(|| locks.iter().for_each(|lock| drop(read(lock))))
}

fn waiters(n: usize) -> Measured {
    let lock = lock(&Memory::new(), PATH);
    let _held = write(&lock);
    built(|| {
        let mut waiting: Vec<_> = (0..n).map(|_| writing(&lock)).collect();
        waiting.iter_mut().for_each(|it| assert!(it.poll().is_pending()));
        waiting
    })
}

/// Grants the lock to a queue of writers, one after the other.
fn hand_offs(n: usize) -> Measured {
    let lock = lock(&Memory::new(), PATH);
    let mut held = Some(write(&lock));
    let mut waiting: Vec<_> = (0..n).map(|_| writing(&lock)).collect();
    waiting.iter_mut().for_each(|it| assert!(it.poll().is_pending()));
    done(|| {
        for mut next in waiting {
            now(held.take().expect("held").release()).expect("the lock is held until here");
            held = Some(loop {
                if let std::task::Poll::Ready(guard) = next.poll() {
                    break guard.expect("granted");
                }
                assert!(next.is_woken(), "the next waiter was not woken");
            });
        }
    })
}

fn readers(n: usize) -> Measured {
    let lock = lock(&Memory::new(), PATH);
    let held = write(&lock);
    let mut waiting: Vec<_> = (0..n).map(|_| reading(&lock)).collect();
    waiting.iter_mut().for_each(|it| assert!(it.poll().is_pending()));
    let mut guards = Vec::with_capacity(n);
    done(|| {
        now(held.release()).expect("the lock is held until here");
        for it in &mut waiting {
            while it.poll().map(|guard| guards.push(guard.expect("granted"))).is_pending() {
                assert!(it.is_woken(), "a reader was not woken");
            }
        }
    })
}

fn members(n: usize) -> Measured {
    let lock = lock(&Memory::new(), PATH);
    let _held: Vec<_> = (0..n).map(|_| read(&lock)).collect();
    built(|| now(lock.queue()).expect("the embedded ensemble answers"))
}

fn permits(n: usize) -> Measured {
    let semaphore = Semaphore::new(&Memory::new(), PATH, 4).expect("valid");
    let _held: Vec<_> = (0..4).map(|_| now(semaphore.acquire()).expect("free")).collect();
    built(|| {
        let acquire = || tokio_test::task::spawn(semaphore.acquire().into_future());
        let mut waiting: Vec<_> = (0..n).map(|_| acquire()).collect();
        waiting.iter_mut().for_each(|it| assert!(it.poll().is_pending()));
        waiting
    })
}

/// Simulates that all processes, ten for each lock, lose their server for two seconds.
fn simulated(n: usize) -> Measured {
    let habits = Habits { session_timeout: Duration::from_secs(40), pauses: true };
    let (contenders, per_lock, is_mixed, seed) = (1, 10, false, 1);
    // The capacity is that of `CAPACITY` in benches/scale.rs.
    let capacity = Capacity { writes: 30_000, reads: 120_000, names: 2_700_000 };
    let world = World { processes: n, contenders, per_lock, is_mixed, capacity, habits, seed };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let runtime = runtime.expect("a runtime");
    done(|| assert_eq!(runtime.block_on(storm(&world, Storm::LeaderChange(Duration::from_secs(2)))).lost, 0))
}

fn be(case: &[String]) -> Result<()> {
    let [name, n] = case else { return Err("a case and its size".into()) };
    let n: usize = n.parse()?;
    let (.., in_all, measure) = CASES.into_iter().find(|(known, ..)| known == name).ok_or("no such case")?;
    // Without a runtime the embedded ensemble would start a thread for the timers of each acquisition.
    let runtime = Box::leak(Box::new(tokio::runtime::Builder::new_current_thread().enable_time().build()?));
    let _entered = runtime.enter();
    let rounds: Vec<Measured> = (0..in_all.div_ceil(n)).map(|_| measure(n)).collect();
    let processor: Duration = rounds.iter().map(|round| round.processor).sum();
    let bytes: Option<u64> = rounds.iter().map(|round| round.bytes).sum();
    let each = |of: f64| of / (n * rounds.len()) as f64;
    let line = json!({
        "case": name,
        "n": n,
        "us_each": each(processor.as_secs_f64() * 1e6),
        "bytes_each": bytes.map(|bytes| each(bytes as f64)),
        "seconds": rounds[0].clock.map(|clock| clock.as_secs_f64()),
    });
    println!("{line}");
    Ok(())
}

fn all(out: Option<&PathBuf>) -> Result<()> {
    let this = std::env::current_exe()?;
    let mut lines = String::new();
    println!("{:<22}{:>10}{:>16}{:>16}{:>16}", "", "", "µs each", "bytes each", "seconds");
    for (name, [least, most], ..) in CASES {
        for n in successors(Some(least), |n| Some(10 * n)).take_while(|n| *n <= most) {
            let output =
                Command::new(&this).args(["--case", name, &n.to_string()]).stderr(Stdio::inherit()).output()?;
            if !output.status.success() {
                return Err(format!("{name}, {n}: {}", output.status).into());
            }
            let said = String::from_utf8(output.stdout)?;
            let line: Value = serde_json::from_str(&said)?;
            let shown = |name: &str, digits: usize| {
                line[name].as_f64().map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
            };
            let (time, bytes, clock) = (shown("us_each", 2), shown("bytes_each", 0), shown("seconds", 2));
            println!("{name:<22}{n:>10}{time:>16}{bytes:>16}{clock:>16}");
            lines.push_str(&said);
        }
    }
    if let Some(file) = out {
        OpenOptions::new().create(true).append(true).open(file)?.write_all(lines.as_bytes())?;
    }
    Ok(())
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let done = match &arguments {
        Arguments { process: Some(server), .. } => real::process(server),
        Arguments { case: Some(case), .. } => be(case),
        Arguments { all: true, out, .. } => all(out.as_ref()),
        _ => Ok(()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
