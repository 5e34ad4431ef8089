//! The semaphore beside Curator's `InterProcessSemaphoreV2` and kazoo's `Semaphore`: so many processes contend for a few
//! permits of one server, and each holds its permit for a moment.
//!
//! `make bench-permits` runs it, once `make interop` has provided the others. Each contender is a process of its own, with
//! one session, whoever it is of. They say when they are ready, begin together, and report from when to when they held, on
//! the one clock of the machine. So the same run that counts grants shows how many held at once.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread;
use std::time::Duration;

use clap::Parser;
use rustix::time::{ClockId, clock_gettime};
use serde_json::json;
use support::server::Server;
use zk_rwlock::{Semaphore, ZooKeeper};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// As a server in production: the optimising compiler, more memory, and every transaction on the disk before it counts.
const JAVA: [&str; 3] = ["-XX:TieredStopAtLevel=4", "-Xmx1g", "-Dzookeeper.forceSync=yes"];

/// How often each contender takes a permit before it says that it is ready.
const WARM_UP: usize = 10;

#[derive(Parser)]
struct Arguments {
    /// How often each of them is measured, in alternation; without it nothing is done
    #[arg(long)]
    rounds: Option<u32>,
    /// How many contenders
    #[arg(long, default_value_t = 16)]
    contenders: usize,
    /// How many permits
    #[arg(long, default_value_t = 4)]
    permits: u32,
    /// How long a run takes
    #[arg(long, default_value = "10s", value_parser = duration)]
    lasts: Duration,
    /// How long a permit is held, in whole milliseconds
    #[arg(long, default_value_t = 1)]
    hold: u64,
    /// Add every run to this file, as `docs/performance/results.jsonl` has them
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Only these: ours, curator, kazoo
    peers: Vec<String>,
    /// Be a contender: servers, path, permits, and for how many milliseconds to contend and to hold
    #[arg(long, num_args = 5, hide = true)]
    contend: Option<Vec<String>>,
    /// Cargo says so to every benchmark
    #[arg(long, hide = true)]
    bench: bool,
}

fn duration(text: &str) -> std::result::Result<Duration, String> {
    let seconds = text.strip_suffix('s').unwrap_or(text).parse::<f64>().map_err(|error| error.to_string())?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

/// Nanoseconds on the one clock of all processes of this machine.
fn clock() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

/// One of our contenders.
fn contend(arguments: &[String]) -> Result<()> {
    let [servers, path, permits, lasts, hold] = arguments else { return Err("five arguments".into()) };
    let (lasts, hold) = (lasts.parse::<u64>()? * 1_000_000, Duration::from_millis(hold.parse()?));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let zk = ZooKeeper::builder().session_timeout(Duration::from_secs(30)).connect(servers).await?;
        let semaphore = Semaphore::new(&zk, path, permits.parse()?)?;
        for _ in 0..WARM_UP {
            semaphore.acquire().await?.release().await?;
        }
        println!("ready");
        std::io::stdin().read_line(&mut String::new())?;
        let mut holds = String::new();
        let end = clock() + lasts;
        while clock() < end {
            let permit = semaphore.acquire().await?;
            let begun = clock();
            tokio::time::sleep(hold).await;
            holds.push_str(&format!("{begun} {}\n", clock()));
            permit.release().await?;
        }
        print!("{holds}");
        zk.close().await;
        Ok(())
    })
}

/// A contender of one of them.
fn command(peer: &str, root: &Path) -> Result<Command> {
    let interop = root.join("target/interop");
    let mut command = match peer {
        "ours" => {
            let mut command = Command::new(std::env::current_exe()?);
            command.arg("--contend");
            command
        }
        "curator" => {
            let mut command = Command::new("java");
            let classes = format!("{}/classes:{}/jars/*", interop.display(), interop.display());
            command.args(["-Xmx96m", "-XX:+UseSerialGC", "-cp", &classes, "CuratorSemaphore"]);
            command
        }
        "kazoo" => {
            let mut command = Command::new(interop.join("venv/bin/python"));
            command.arg(root.join("tests/interop/kazoo_semaphore.py"));
            command
        }
        other => return Err(format!("there is no peer {other}").into()),
    };
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    Ok(command)
}

struct Contender {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

/// From when to when each permit was held.
fn holds(peer: &str, server: &Server, path: &str, arguments: &Arguments, root: &Path) -> Result<Vec<(u64, u64)>> {
    let mut contenders = Vec::new();
    for _ in 0..arguments.contenders {
        let mut command = command(peer, root)?;
        let lasts = arguments.lasts.as_millis().to_string();
        command.args([&server.address(), path, &arguments.permits.to_string(), &lasts, &arguments.hold.to_string()]);
        let mut child = command.spawn()?;
        let lines = BufReader::new(child.stdout.take().ok_or("a pipe")?).lines();
        contenders.push(Contender { child, lines });
    }
    for contender in &mut contenders {
        let said = contender.lines.next().ok_or_else(|| format!("a contender of {peer} has ended early"))??;
        if said != "ready" {
            return Err(format!("a contender of {peer} says {said:?}").into());
        }
    }
    for contender in &mut contenders {
        contender.child.stdin.take().ok_or("a pipe")?.write_all(b"go\n")?;
    }
    let all: Vec<_> = contenders.into_iter().map(|contender| thread::spawn(move || of_one(contender))).collect();
    let mut holds = Vec::new();
    for one in all {
        holds.extend(one.join().map_err(|_| "a thread has panicked")??);
    }
    Ok(holds)
}

fn of_one(mut contender: Contender) -> Result<Vec<(u64, u64)>> {
    let mut holds = Vec::new();
    for line in contender.lines.by_ref() {
        let line = line?;
        let (from, until) = line.split_once(' ').ok_or_else(|| format!("{line:?} is no hold"))?;
        holds.push((from.parse()?, until.parse()?));
    }
    contender.child.wait()?;
    Ok(holds)
}

/// How many permits were held at once at most, and how often they were more than there are.
///
/// Zero violations say something only where the most is as many as there are: who holds for a millisecond hardly meets others.
fn most_and_violations(holds: &[(u64, u64)], permits: u32) -> (i64, usize) {
    // What ends at the same moment ends first.
    let ends = holds.iter().map(|(_, until)| (*until, -1));
    let mut changes: Vec<(u64, i64)> = holds.iter().map(|(from, _)| (*from, 1)).chain(ends).collect();
    changes.sort_unstable();
    let (mut held, mut most, mut over) = (0, 0, 0);
    for (_, change) in changes {
        held += change;
        most = most.max(held);
        over += usize::from(change > 0 && held > i64::from(permits));
    }
    (most, over)
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of.get(of.len() / 2).copied().unwrap_or_default()
}

fn measure(rounds: u32, arguments: &Arguments) -> Result<()> {
    let root: PathBuf = [env!("CARGO_MANIFEST_DIR"), ".."].iter().collect();
    let every = ["ours", "curator", "kazoo"].map(str::to_owned);
    let peers = if arguments.peers.is_empty() { &every[..] } else { &arguments.peers };
    let server = Server::start_with(&[], &JAVA);
    let (mut rates, mut lines) = (vec![Vec::new(); peers.len()], Vec::new());
    for round in 0..rounds {
        for (peer, rates) in peers.iter().zip(&mut rates) {
            let holds = holds(peer, &server, &format!("/{peer}-{round}"), arguments, &root)?;
            let (first, last) = (holds.iter().map(|hold| hold.0).min(), holds.iter().map(|hold| hold.1).max());
            let seconds = (last.unwrap_or(1) - first.unwrap_or(0)) as f64 / 1e9;
            let rate = holds.len() as f64 / seconds;
            let (most, over) = most_and_violations(&holds, arguments.permits);
            let grants = holds.len();
            println!(
                "{peer}: {rate:.0} grants a second, {grants} in {seconds:.1} s, at most {most} at once, {over} violations"
            );
            rates.push(rate);
            // Each of ours is a process of its own, as theirs are.
            let peer = if peer == "ours" { "ours-apart" } else { peer };
            lines.push(json!({
                "label": format!("{} standalone", server.version()),
                "case": format!("permits-{}", arguments.hold),
                "round": round,
                "peer": peer,
                "workload": "permits",
                "n": arguments.contenders,
                "ops": grants,
                "sessions": arguments.contenders,
                "elapsed_s": seconds,
                "ops_per_s": rate,
                "errors": over,
                "extra": { "permits": arguments.permits, "hold_ms": arguments.hold, "most": most },
            }));
        }
    }
    if let Some(file) = &arguments.out {
        let mut file = OpenOptions::new().create(true).append(true).open(file)?;
        for line in lines {
            writeln!(file, "{line}")?;
        }
    }
    let medians: Vec<f64> = rates.into_iter().map(median).collect();
    for (peer, rate) in peers.iter().zip(&medians) {
        println!("median of {peer}: {rate:.0} grants a second; {} has {:.2} times that", peers[0], medians[0] / rate);
    }
    Ok(())
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let done = match (&arguments.contend, arguments.rounds) {
        (Some(contender), _) => contend(contender),
        (None, Some(rounds)) => measure(rounds, &arguments),
        (None, None) => Ok(()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
