//! The lock against a real server, in alternation with the least that any lock could cost there: ratios, not verdicts.
//!
//! `make bench` runs it. It starts a server, and for each workload and round the driver (`examples/drive.rs`) and the
//! floor ([`raw`]), each in a process of its own. Printed are the medians over the rounds, and how many times the
//! floor's ours is; the same, and every run, are written as lines of JSON into `target/bench`.

#[path = "../../examples/common/meter.rs"]
mod meter;
mod raw;
#[path = "../../tests/support/mod.rs"]
mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use clap::{Parser, Subcommand};
use serde_json::{Value, json};
use support::server::Server;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// A name, and what tells the driver and the floor what to do.
const CASES: [(&str, &str); 10] = [
    ("write", "--workload write --ops 2000"),
    ("write-drop", "--workload write --ops 2000"),
    ("read", "--workload read --ops 2000"),
    ("contend-8", "--workload contend --n 8 --sessions 8 --ops 2000"),
    ("contend-64", "--workload contend --n 64 --sessions 16 --ops 2000"),
    ("mix-16", "--workload mix --n 16 --sessions 8 --ops 2000"),
    ("drain-10", "--workload drain --n 10 --sessions 10"),
    ("drain-100", "--workload drain --n 100 --sessions 20"),
    ("drain-1000", "--workload drain --n 1000 --sessions 20"),
    ("readers-1000", "--workload readers --n 1000 --sessions 20"),
];

/// As a server in production: the optimising compiler, more memory, and every transaction on the disk before it counts.
const JAVA: [&str; 3] = ["-XX:TieredStopAtLevel=4", "-Xmx1g", "-Dzookeeper.forceSync=yes"];

#[derive(Parser)]
struct Arguments {
    /// How often each workload is run
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Run only these
    #[arg(value_parser = CASES.map(|(case, _)| case))]
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
    let driver = directory(2)?.join("examples/drive");
    if !driver.exists() {
        return Err(format!("{} is missing: `make bench` builds it", driver.display()).into());
    }
    let results = directory(3)?.join("bench");
    fs::create_dir_all(&results)?;
    let server = Server::start_with(&["tickTime=2000", "minSessionTimeout=4000"], &JAVA);
    let (mut runs, mut medians) = (Vec::new(), Vec::new());
    println!("{:<14}{:>12}{:>12}  {:<16}{:>8}{:>20}", "", "floor", "ours", "", "ratio", "requests an op");
    for (case, options) in CASES {
        if !arguments.cases.is_empty() && !arguments.cases.iter().any(|wanted| wanted == case) {
            continue;
        }
        let (mut floor, mut ours) = (Vec::new(), Vec::new());
        for round in 1..=arguments.rounds {
            let server = server.address();
            let floor_run = run(Command::new(&this).arg("raw"), &server, options)?;
            let drop = if case == "write-drop" { "--release drop --json" } else { "--json" };
            let our_run = run(&mut Command::new(&driver), &server, &format!("{options} {drop}"))?;
            for (runs_of, run) in [(&mut floor, floor_run), (&mut ours, our_run)] {
                runs.push(json!({ "case": case, "round": round, "run": run }));
                runs_of.push(run);
            }
        }
        let (unit, floor_median, our_median) = (unit(case), median(&floor, figure)?, median(&ours, figure)?);
        let rate = unit == "ops/s";
        // How many times the floor's time.
        let ratio = if rate { floor_median / our_median } else { our_median / floor_median };
        let requests = |runs: &[Value]| median(runs, |run| run["extra"]["requests_per_op"].as_f64());
        let (floor_requests, our_requests) = (requests(&floor)?, requests(&ours)?);
        println!(
            "{case:<14}{floor_median:>12.1}{our_median:>12.1}  {unit:<16}{ratio:>7.2}x{floor_requests:>9.2} -> {our_requests:.2}"
        );
        medians.push(json!({
            "case": case, "unit": unit, "rounds": arguments.rounds, "floor": floor_median, "ours": our_median,
            "ratio": ratio, "requests_per_op_floor": floor_requests, "requests_per_op_ours": our_requests,
        }));
    }
    write_lines(&results.join("runs.jsonl"), &runs)?;
    write_lines(&results.join("medians.jsonl"), &medians)?;
    println!("ratio: ours in floors, by time; written to {}", results.display());
    Ok(())
}

/// The line of JSON that a driver prints.
fn run(program: &mut Command, server: &str, options: &str) -> Result<Value> {
    let output = program
        .args(["--zk", server])
        .args(options.split(' '))
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()?;
    if !output.status.success() {
        return Err(format!("{options}: a driver ended with {}", output.status).into());
    }
    let line: Value = serde_json::from_slice(&output.stdout)?;
    match line["errors"].as_i64() {
        Some(0) => Ok(line),
        _ => Err(format!("{options}: a driver saw errors: {line}").into()),
    }
}

/// What a run is judged by, in the unit of its workload.
fn figure(run: &Value) -> Option<f64> {
    match run["workload"].as_str()? {
        "contend" | "mix" => run["ops_per_s"].as_f64(),
        "drain" => run["extra"]["us_per_handoff"].as_f64(),
        "readers" => run["extra"]["total_us"].as_f64(),
        _ => run["p50_us"].as_f64(),
    }
}

fn unit(case: &str) -> &'static str {
    match case.split('-').next() {
        Some("contend" | "mix") => "ops/s",
        Some("drain") => "us a hand-off",
        Some("readers") => "us for all",
        _ => "us a pair (p50)",
    }
}

fn median(runs: &[Value], of: impl Fn(&Value) -> Option<f64>) -> Result<f64> {
    let mut values = runs.iter().map(of).collect::<Option<Vec<f64>>>().ok_or("a run has no figure")?;
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().ok_or_else(|| "there was no run".into())
}

fn write_lines(file: &PathBuf, lines: &[Value]) -> Result<()> {
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    fs::write(file, text).map_err(|error| format!("{}: {error}", file.display()).into())
}
