//! Simulates, in virtual time, a hundred thousand clients that reconnect at the same time: after a mass expiry, a
//! change of the leader, or a rolling restart. The library runs unchanged on the embedded ensemble. The capacity of an
//! ensemble is a model. `make scale` runs this program.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use serde_json::json;
use support::fleet::{Capacity, Habits};
use support::storm::{Measured, Storm, World, storm};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const SECOND: Duration = Duration::from_secs(1);

/// The capacity per second: the requests that one busy server on loopback answers, and the names of 46 bytes that fit
/// into a network of one gigabit per second.
const CAPACITY: Capacity = Capacity { writes: 30_000, reads: 120_000, names: 2_700_000 };

#[derive(Parser)]
struct Arguments {
    /// Simulate fleets of this many contenders; without this option nothing is done
    #[arg(long)]
    contenders: Option<usize>,
    /// Simulate only the cases with this text in their name
    #[arg(long, default_value = "")]
    only: String,
    /// The seed of all random choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Append a line for each case to this file
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Accepted because Cargo passes it to every benchmark
    #[arg(long, hide = true)]
    bench: bool,
}

/// The simulated cases: the name, the event, and whether clients pause before they reconnect. Clients pause only after
/// they have lost their session.
const STORMS: [(&str, Storm, bool); 4] = [
    ("mass expiry, at once", Storm::Expiry(SECOND.saturating_mul(60)), false),
    ("mass expiry", Storm::Expiry(SECOND.saturating_mul(60)), true),
    ("leader change", Storm::LeaderChange(SECOND.saturating_mul(2)), true),
    ("rolling restart", Storm::RollingRestart(SECOND.saturating_mul(30)), true),
];

fn simulated(world: &World, what: Storm) -> Result<Measured> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build()?;
    Ok(runtime.block_on(storm(world, what)))
}

fn all(arguments: &Arguments, contenders: usize) -> Result<()> {
    for (case, kind, pauses) in STORMS {
        if !case.contains(&arguments.only) {
            continue;
        }
        let habits = Habits { session_timeout: 40 * SECOND, pauses };
        // Each contender is a process of its own, and ten contenders share a lock.
        let world = World {
            processes: contenders,
            contenders: 1,
            per_lock: 10,
            is_mixed: false,
            capacity: CAPACITY,
            habits,
            seed: arguments.seed,
        };
        let began = std::time::Instant::now();
        let seen = simulated(&world, kind)?;
        println!("{case}: {seen:?}, simulated in {:.0?}", began.elapsed());
        let line = json!({
            "case": case,
            "n": contenders,
            "before_per_s": seen.before,
            "peak_per_s": seen.peak,
            "comebacks_per_s": seen.comebacks_at_peak,
            "longest_wait_s": seen.longest_wait.as_secs_f64(),
            "back_after_s": seen.back_after.as_secs_f64(),
            "creates_under_way": seen.creates_under_way,
            "sessions": seen.sessions,
            "lost_elsewhere": seen.lost_elsewhere,
            "lost": seen.lost,
        });
        if let Some(file) = &arguments.out {
            writeln!(OpenOptions::new().create(true).append(true).open(file)?, "{line}")?;
        }
    }
    Ok(())
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match arguments.contenders.map_or(Ok(()), |contenders| all(&arguments, contenders)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
