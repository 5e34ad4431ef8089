//! The lock against a real server, in alternation with the least that any lock could cost there: ratios, not verdicts.
//!
//! `make bench` runs it. It starts a server, and for each workload and round the floor ([`raw`]) and the driver
//! (`examples/drive/main.rs`), each in a process of its own: with a session for each contender, as in as many processes, and
//! with all of them on one session. Printed are the medians over the rounds, and how many times the floor's ours is; the
//! same, and every run, are written as lines of JSON into `target/bench`. Locks that are kept ([`kept`]) stand beside those
//! that are not, and beside `tokio::sync::RwLock` in the same loops. `--all` adds the sizes that `docs/performance.md`
//! shows, and what is simulated.

mod kept;
mod link;
#[path = "../../examples/common/meter.rs"]
mod meter;
mod raw;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use clap::{Parser, Subcommand};
use kept::{Driver, Link};
use serde_json::{Value, json};
use support::server::Server;
use support::simulated::minutes;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// A name, the arguments of the driver and of the floor, and the runs that the case is part of.
#[rustfmt::skip]
const CASES: [(&str, &str, Set); 17] = [
    ("write", "--workload write --ops 2000", Set::Core),
    ("write-drop", "--workload write --ops 2000", Set::Core),
    ("read", "--workload read --ops 2000", Set::Core),
    ("contend-2", "--workload contend --n 2 --ops 2000", Set::All),
    ("contend-4", "--workload contend --n 4 --ops 2000", Set::All),
    ("contend-8", "--workload contend --n 8 --ops 2000", Set::Core),
    ("contend-16", "--workload contend --n 16 --ops 2000", Set::All),
    ("contend-64", "--workload contend --n 64 --ops 2000", Set::Core),
    ("mix-16", "--workload mix --n 16 --ops 2000", Set::Core),
    ("drain-10", "--workload drain --n 10", Set::Core),
    ("drain-100", "--workload drain --n 100", Set::Core),
    ("drain-1000", "--workload drain --n 1000", Set::Core),
    ("readers-100", "--workload readers --n 100", Set::All),
    ("readers-1000", "--workload readers --n 1000", Set::Core),
    ("waiters-100", "--workload waiters --n 100", Set::All),
    ("waiters-1000", "--workload waiters --n 1000", Set::All),
    ("waiters-10000", "--workload waiters --n 10000", Set::All),
];

/// When a case is run, unless it is asked for by its name.
#[derive(Clone, Copy, PartialEq)]
enum Set {
    Core,
    /// With `--all`.
    All,
}

/// The simulated clients that keep reads.
const SIMULATED: &str = "simulated-10000";
const SIMULATED_CLIENTS: usize = 10_000;

/// How long it takes each way on the link to a server that is far.
const FAR: Duration = Duration::from_millis(10);

/// As a server in production: the optimising compiler, more memory, and every transaction on the disk before it counts.
const JAVA: [&str; 3] = ["-XX:TieredStopAtLevel=4", "-Xmx1g", "-Dzookeeper.forceSync=yes"];

#[derive(Parser)]
struct Arguments {
    /// How often each workload is run
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Run all cases, which takes several times as long
    #[arg(long)]
    all: bool,
    /// Write every run to this file, as `docs/performance/results.jsonl` has them
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Run only these
    #[arg(value_parser = names())]
    cases: Vec<String>,
    /// What cargo says to every benchmark
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Parser)]
struct Floor {
    #[command(subcommand)]
    command: FloorCommand,
}

#[derive(Subcommand)]
enum FloorCommand {
    /// Run the floor of one workload
    Raw(raw::Arguments),
}

fn main() -> ExitCode {
    let told = |word: &str| std::env::args().skip(1).any(|argument| argument == word);
    let outcome = if std::env::args().nth(1).is_some_and(|first| first == "raw") {
        let FloorCommand::Raw(arguments) = Floor::parse().command;
        raw::run(&arguments).map(|line| println!("{line}"))
    } else if told("--rounds") || told("--help") {
        compare(&Arguments::parse())
    } else {
        println!("server: not run, because it starts a ZooKeeper and takes minutes; `make bench` runs it");
        Ok(())
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn names() -> Vec<&'static str> {
    let cases = CASES.iter().map(|(case, ..)| *case);
    cases.chain(kept::CASES.iter().map(|case| case.name)).chain([SIMULATED]).collect()
}

fn compare(arguments: &Arguments) -> Result<()> {
    let asked = |case: &str| arguments.cases.iter().any(|wanted| wanted == case);
    let mut bench = Bench::start(arguments)?;
    println!("{:<26}{:>12}{:>12}  {:<16}{:>8}{:>20}", "", "floor", "ours", "", "ratio", "requests an op");
    for (case, options, set) in CASES {
        let usual = arguments.cases.is_empty() && (arguments.all || set == Set::Core);
        if usual || asked(case) {
            bench.contend(case, options)?;
        }
    }
    let usual = arguments.cases.is_empty();
    for case in kept::CASES.iter().filter(|case| usual || asked(case.name)) {
        bench.keep(case)?;
    }
    if asked(SIMULATED) || arguments.cases.is_empty() && arguments.all {
        bench.simulate()?;
    }
    println!("ratio: ours in floors, by time; of what is kept, in what is not");
    println!("a session for each contender, as in processes of their own; one session: as the tasks of one process");
    println!("written to {}", bench.results.display());
    Ok(())
}

/// A server, the programs that put it to work, and what they said.
struct Bench<'a> {
    arguments: &'a Arguments,
    floor: PathBuf,
    driver: PathBuf,
    results: PathBuf,
    server: Server,
    far: String,
    runs: Vec<Value>,
    medians: Vec<Value>,
}

impl Bench<'_> {
    fn start(arguments: &Arguments) -> Result<Bench<'_>> {
        // This program is target/release/deps/server-HASH.
        let floor = std::env::current_exe()?;
        let directory = |up: usize| floor.ancestors().nth(up).map(Path::to_owned).ok_or("no target directory");
        let driver = directory(2)?.join("examples/drive");
        if !driver.exists() {
            return Err(format!("{} is missing: `make bench` builds it", driver.display()).into());
        }
        let results = directory(3)?.join("bench");
        fs::create_dir_all(&results)?;
        let server = Server::start_with(&["tickTime=2000", "minSessionTimeout=4000"], &JAVA);
        let far = link::start(server.address(), FAR)?;
        let (runs, medians) = (Vec::new(), Vec::new());
        Ok(Bench { arguments, floor, driver, results, server, far, runs, medians })
    }

    /// Runs a driver, and notes what it says.
    fn run(&mut self, case: &str, round: u32, driver: Driver, options: &str) -> Result<Value> {
        let said = match driver {
            Driver::Raw => run(Command::new(&self.floor).arg("raw"), options)?,
            Driver::Ours => run(&mut Command::new(&self.driver), &format!("{options} --json"))?,
        };
        self.note(case, round, said.clone());
        Ok(said)
    }

    fn note(&mut self, case: &str, round: u32, said: Value) {
        let label = format!("{} standalone", self.server.version());
        let mut line = json!({ "label": label, "case": case, "round": round });
        if let (Some(line), Value::Object(said)) = (line.as_object_mut(), said) {
            line.extend(said);
        }
        self.runs.push(line);
    }

    /// Contenders in processes of their own and on one session, and the floor.
    fn contend(&mut self, case: &str, options: &str) -> Result<()> {
        let (mut floor, mut ours, mut on_one) = (Vec::new(), Vec::new(), Vec::new());
        let to = format!("--zk {} {options}", self.server.address());
        let contenders = contenders(options);
        // For waiters, the figure is what a process pays for each of them.
        let sessions = if case.starts_with("waiters") { 1 } else { contenders };
        for round in 0..self.arguments.rounds {
            floor.push(self.run(case, round, Driver::Raw, &format!("{to} --sessions {sessions}"))?);
            if sessions == contenders {
                let how = if case == "write-drop" { "--release drop" } else { "--apart" };
                ours.push(self.run(case, round, Driver::Ours, &format!("{to} {how}"))?);
            }
            if contenders > 1 {
                on_one.push(self.run(case, round, Driver::Ours, &format!("{to} --sessions 1"))?);
            }
        }
        for (name, ours) in [(case.to_owned(), ours), (format!("{case}, one session"), on_one)] {
            if !ours.is_empty() {
                self.medians.push(compared(&name, unit(case), &floor, &ours)?);
            }
        }
        self.write()
    }

    /// A lock that is kept, beside one that is not, the floor, and the lock of one process.
    fn keep(&mut self, case: &kept::Case) -> Result<()> {
        let address = if case.link == Link::Far { self.far.clone() } else { self.server.address() };
        let mut said: Vec<(String, Vec<Value>)> = Vec::new();
        for round in 0..self.arguments.rounds {
            for (driver, options) in case.drives {
                let options = format!("--zk {address} {options}");
                let mut run = self.run(case.name, round, *driver, &options)?;
                if let Some(line) = self.runs.last_mut() {
                    line["workload"] = json!(case.workload);
                }
                run["workload"] = json!(case.workload);
                let peer = run["peer"].as_str().unwrap_or_default().to_owned();
                match said.iter_mut().find(|(known, _)| *known == peer) {
                    Some((_, runs)) => runs.push(run),
                    None => said.push((peer, vec![run])),
                }
            }
        }
        let of = |peer: &str| said.iter().find(|(known, _)| known == peer).map(|(_, runs)| runs);
        for (plain, kept, name) in [
            ("ours", "ours-kept", case.name.to_owned()),
            ("ours-apart", "ours-kept-apart", case.name.to_owned()),
            ("local", "ours-kept", format!("{}, in a local lock", case.name)),
        ] {
            if let (Some(plain), Some(kept)) = (of(plain), of(kept)) {
                self.medians.push(compared(&name, unit(case.workload), plain, kept)?);
            }
        }
        self.write()
    }

    /// What thousands of clients that keep reads ask of the embedded ensemble: counted, in virtual time. One run, because
    /// every run counts the same.
    fn simulate(&mut self) -> Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build()?;
        let minutes = runtime.block_on(minutes(SIMULATED_CLIENTS, &[false, true]));
        for (case, minute) in [SIMULATED.to_owned(), format!("{SIMULATED}-written")].into_iter().zip(minutes) {
            println!("{case:<26}{minute:?}");
            let said = json!({
                "peer": "ours-kept-apart", "workload": "simulated", "n": SIMULATED_CLIENTS, "ops": minute.reads, "elapsed_s": 60, "errors": 0,
                "extra": {
                    "writes": minute.writes,
                    "requests_per_s": minute.requests as f64 / 60.0,
                    "requests_per_op": minute.requests as f64 / minute.reads as f64,
                },
            });
            self.note(&case, 0, said);
        }
        self.write()
    }

    /// After each case: what was measured stays, whatever becomes of the next one.
    fn write(&self) -> Result<()> {
        write_lines(&self.results.join("runs.jsonl"), &self.runs)?;
        write_lines(&self.results.join("medians.jsonl"), &self.medians)?;
        self.arguments.out.as_deref().map_or(Ok(()), |out| write_lines(out, &self.runs))
    }
}

/// How many contend.
fn contenders(options: &str) -> usize {
    let n = options.split(' ').skip_while(|word| *word != "--n").nth(1);
    n.and_then(|n| n.parse().ok()).unwrap_or(1)
}

/// Prints and returns how the medians of the runs compare.
fn compared(case: &str, unit: &str, floor: &[Value], ours: &[Value]) -> Result<Value> {
    let (floor_median, our_median) = (median(floor, figure)?, median(ours, figure)?);
    let rate = unit == "ops/s";
    // How many times the floor's time.
    let ratio = if rate { floor_median / our_median } else { our_median / floor_median };
    let requests = |runs: &[Value]| median(runs, |run| run["extra"]["requests_per_op"].as_f64().or(Some(0.0)));
    let (floor_requests, our_requests) = (requests(floor)?, requests(ours)?);
    println!(
        "{case:<26}{floor_median:>12.1}{our_median:>12.1}  {unit:<16}{ratio:>7.2}x{floor_requests:>9.2} -> {our_requests:.2}"
    );
    Ok(json!({
        "case": case, "unit": unit, "rounds": ours.len(), "floor": floor_median, "ours": our_median,
        "ratio": ratio, "requests_per_op_floor": floor_requests, "requests_per_op_ours": our_requests,
    }))
}

/// The line of JSON that a driver prints.
fn run(program: &mut Command, options: &str) -> Result<Value> {
    let output = program.args(options.split(' ')).stdin(Stdio::null()).stderr(Stdio::inherit()).output()?;
    if !output.status.success() {
        return Err(format!("{options}: a driver ended with {}", output.status).into());
    }
    let line: Value = serde_json::from_slice(&output.stdout)?;
    match line["errors"].as_i64() {
        Some(0) => Ok(line),
        _ => Err(format!("{options}: a driver saw errors: {line}").into()),
    }
}

/// The figure that a run is judged by, in the unit of its workload.
fn figure(run: &Value) -> Option<f64> {
    match run["workload"].as_str()? {
        "contend" | "mix" | "kept" => run["ops_per_s"].as_f64(),
        "drain" => run["extra"]["us_per_handoff"].as_f64(),
        "readers" => run["extra"]["total_us"].as_f64(),
        "waiters" => run["extra"]["us_per_waiter"].as_f64(),
        _ => run["p50_us"].as_f64(),
    }
}

fn unit(case: &str) -> &'static str {
    match case.split('-').next() {
        Some("contend" | "mix" | "kept") => "ops/s",
        Some("keepers") => "us until granted",
        Some("drain") => "us a hand-off",
        Some("readers") => "us for all",
        Some("waiters") => "us to queue up",
        _ => "us a pair (p50)",
    }
}

fn median(runs: &[Value], of: impl Fn(&Value) -> Option<f64>) -> Result<f64> {
    let mut values = runs.iter().map(of).collect::<Option<Vec<f64>>>().ok_or("a run has no figure")?;
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().ok_or_else(|| "there was no run".into())
}

fn write_lines(file: &Path, values: &[Value]) -> Result<()> {
    fs::write(file, lines(values)).map_err(|error| format!("{}: {error}", file.display()).into())
}

fn lines(values: &[Value]) -> String {
    values.iter().map(|value| format!("{value}\n")).collect()
}
