//! The lock against a real server, in alternation with the least that any lock could cost there: ratios, not verdicts.
//!
//! `make bench` runs it. It starts a server, and for each workload and round the floor ([`raw`]) and the driver
//! (`examples/drive.rs`), each in a process of its own: with a session for each contender, as in as many processes, and
//! with all of them on one session. Printed are the medians over the rounds, and how many times the floor's ours is; the
//! same, and every run, are written as lines of JSON into `target/bench`. `--all` adds the sizes that
//! `docs/performance.md` shows, and what has no floor.

#[path = "../../examples/common/meter.rs"]
mod meter;
mod raw;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use clap::{Parser, Subcommand};
use serde_json::{Value, json};
use support::server::Server;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// A name, the arguments of the driver and of the floor, and the runs that the case is part of.
#[rustfmt::skip]
const CASES: [(&str, &str, Set); 18] = [
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
    ("shared-64", "--tasks 64 --duration 3s --json", Set::Shared),
];

/// When a case is run, unless it is asked for by its name.
#[derive(Clone, Copy, PartialEq)]
enum Set {
    Core,
    /// With `--all`.
    All,
    /// With `--all`; by another example, and without a floor.
    Shared,
}

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
    /// Append every run to this file, as `docs/performance/results.jsonl` has them
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Run only these
    #[arg(value_parser = CASES.map(|(case, ..)| case))]
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

fn compare(arguments: &Arguments) -> Result<()> {
    // This program is target/release/deps/server-HASH.
    let this = std::env::current_exe()?;
    let directory = |up: usize| this.ancestors().nth(up).map(Path::to_owned).ok_or("no target directory");
    let example = |name: &str| {
        let program = directory(2)?.join("examples").join(name);
        let missing = || format!("{} is missing: `make bench` builds it", program.display());
        if program.exists() { Ok(program) } else { Err(missing()) }
    };
    let (driver, kept_reads) = (example("drive")?, example("kept_reads")?);
    let results = directory(3)?.join("bench");
    fs::create_dir_all(&results)?;
    let server = Server::start_with(&["tickTime=2000", "minSessionTimeout=4000"], &JAVA);
    let label = format!("{} standalone", server.version());
    let (mut runs, mut medians) = (Vec::new(), Vec::new());
    println!("{:<26}{:>12}{:>12}  {:<16}{:>8}{:>20}", "", "floor", "ours", "", "ratio", "requests an op");
    for (case, options, set) in CASES {
        let usual = arguments.cases.is_empty() && (arguments.all || set == Set::Core);
        if !usual && !arguments.cases.iter().any(|wanted| wanted == case) {
            continue;
        }
        let (mut floor, mut ours, mut on_one) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..arguments.rounds {
            let server = server.address();
            let mut note = |of: &mut Vec<Value>, run: Value| {
                let mut line = json!({ "label": label, "case": case, "round": round });
                if let (Some(line), Some(run)) = (line.as_object_mut(), run.as_object()) {
                    line.extend(run.clone());
                }
                runs.push(line);
                of.push(run);
            };
            if set == Set::Shared {
                let to = format!("--zookeeper {server} {options}");
                note(&mut ours, run(&mut Command::new(&kept_reads), &to)?);
                note(&mut floor, run(&mut Command::new(&kept_reads), &format!("{to} --without-keeping"))?);
                continue;
            }
            let to = format!("--zk {server} {options}");
            let contenders = contenders(options);
            // For waiters, the figure is what a process pays for each of them.
            let sessions = if case.starts_with("waiters") { 1 } else { contenders };
            note(&mut floor, run(Command::new(&this).arg("raw"), &format!("{to} --sessions {sessions}"))?);
            let mut drive = |of: &mut Vec<Value>, how: &str| -> Result<()> {
                note(of, run(&mut Command::new(&driver), &format!("{to} {how} --json"))?);
                Ok(())
            };
            if sessions == contenders {
                drive(&mut ours, if case == "write-drop" { "--release drop" } else { "--apart" })?;
            }
            if contenders > 1 {
                drive(&mut on_one, "--sessions 1")?;
            }
        }
        for (name, ours) in [(case.to_owned(), ours), (format!("{case}, one session"), on_one)] {
            if !ours.is_empty() {
                medians.push(compared(&name, unit(case), &floor, &ours)?);
            }
        }
    }
    write_lines(&results.join("runs.jsonl"), &runs)?;
    write_lines(&results.join("medians.jsonl"), &medians)?;
    if let Some(out) = &arguments.out {
        let before = fs::read_to_string(out).unwrap_or_default();
        fs::write(out, before + &lines(&runs)).map_err(|error| format!("{}: {error}", out.display()))?;
    }
    println!("ratio: ours in floors, by time");
    println!("a session for each contender, as in processes of their own; one session: as the tasks of one process");
    println!("written to {}", results.display());
    Ok(())
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
    let requests = |runs: &[Value]| median(runs, |run| run["extra"]["requests_per_op"].as_f64());
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
        "contend" | "mix" | "shared" => run["ops_per_s"].as_f64(),
        "drain" => run["extra"]["us_per_handoff"].as_f64(),
        "readers" => run["extra"]["total_us"].as_f64(),
        "waiters" => run["extra"]["us_per_waiter"].as_f64(),
        _ => run["p50_us"].as_f64(),
    }
}

fn unit(case: &str) -> &'static str {
    match case.split('-').next() {
        Some("contend" | "mix" | "shared") => "ops/s",
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

fn write_lines(file: &PathBuf, values: &[Value]) -> Result<()> {
    fs::write(file, lines(values)).map_err(|error| format!("{}: {error}", file.display()).into())
}

fn lines(values: &[Value]) -> String {
    values.iter().map(|value| format!("{value}\n")).collect()
}
