//! What fits on an ensemble: arithmetic on the library's limits and on what was measured.

use std::fmt::Write as _;

use super::figures::{figure, number, requests, whole};
use super::plots;
use super::results::{Outcome, Results};

/// `WATCHED_BYTES_MAX` of `src/zookeeper/session.rs`.
const WATCHED_BYTES_MAX: f64 = 96.0 * 1024.0;

/// What ZooKeeper's `jute.maxbuffer` is unless set.
const LISTING_BYTES_MAX: f64 = 1_048_575.0;

/// A heartbeat is due after this share of the session timeout: `heartbeat_period` in `src/session/lease.rs`.
const HEARTBEAT_SHARE: f64 = 0.2;

/// How long the random id is that follows a host.
pub(crate) const ID_BYTES: usize = 8;

/// A create and a delete, or a create and the transaction that hands the lock on.
const WRITES_A_PAIR: f64 = 2.0;

/// What is left to plan with, so that elections, slow disks and other users have room.
const PLANNED_SHARE: f64 = 0.5;

/// Writes a second of saturated ensembles of three and of five servers, in thousands: Hunt and others, "ZooKeeper:
/// Wait-free coordination for Internet-scale systems", USENIX 2010, table 1. Only their ratio is used.
const PUBLISHED: (f64, f64) = (21.0, 18.0);

/// What one server commits a second when it is kept busy: the most pairs of bare writes in any run, times two.
fn committed(results: &Results) -> Outcome<f64> {
    let label = plots::label(results);
    let contended = results.runs().filter(|run| run.label == label && run.workload == "contend" && run.peer == "raw");
    let medians = contended.filter_map(|run| results.median(label, &run.case, "raw", figure("contend").of));
    let most = medians.map(|median| median.value).max_by(f64::total_cmp).ok_or("raw has no run of contend")?;
    Ok(most * WRITES_A_PAIR)
}

/// What to plan with on an ensemble of three, and of five.
fn planned(results: &Results) -> Outcome<(f64, f64)> {
    let three = (committed(results)? * PLANNED_SHARE / 1_000.0).round() * 1_000.0;
    Ok((three, (three * PUBLISHED.1 / PUBLISHED.0 / 1_000.0).round() * 1_000.0))
}

fn heartbeats(sessions: f64, timeout: f64) -> f64 {
    sessions / (timeout * HEARTBEAT_SHARE)
}

/// The watched bytes that one waiter reserves: two paths of `DIRECTORY/HOST~ID-WRITE-SEQUENCE`.
pub(crate) fn watched_bytes(directory: usize, host: usize) -> f64 {
    2.0 * (directory + host + "~".len() + ID_BYTES + "/-WRITE-0000000000".len()) as f64
}

/// The bytes of one name in a listing, with its length before it.
fn listed_bytes(host: usize) -> f64 {
    (4 + host + "~".len() + ID_BYTES + "-WRITE-0000000000".len()) as f64
}

/// Figures inside sentences.
pub(crate) fn value(results: &Results, name: &str) -> Outcome<String> {
    let label = plots::label(results);
    let median = |case: &str, peer: &str, of| {
        let median = results.median(label, case, peer, of).ok_or_else(|| format!("{peer} has no run of {case}"));
        median.map(|median| median.value)
    };
    let (three, five) = planned(results)?;
    let words: Vec<&str> = name.split(' ').collect();
    Ok(match words[..] {
        ["raw", "writes"] => whole((committed(results)? / 100.0).round() * 100.0),
        ["planned", "3"] => whole(three),
        ["planned", "5"] => whole(five),
        ["pairs", "3"] => whole(three / WRITES_A_PAIR),
        ["pairs", "5"] => whole(five / WRITES_A_PAIR),
        ["heartbeats", sessions, timeout] => whole(heartbeats(sessions.parse()?, timeout.parse()?)),
        // From process to process.
        ["grants", case] => whole(1e6 / median(case, "ours-apart", figure("drain").of)?),
        ["figure", case, peer] => {
            let workload = case.split('-').next().unwrap_or_default();
            number(median(case, peer, figure(workload).of)?)
        }
        // Of pairs that are measured by how many there are a second, by contenders that wait for each other.
        ["nanoseconds", case, peer] => whole(1e9 / median(case, peer, figure("kept").of)?),
        ["millions", case, peer] => format!("{:.1}", median(case, peer, figure("kept").of)? / 1e6),
        ["milliseconds", case, peer] => format!("{:.1}", median(case, peer, figure("keepers").of)? / 1e3),
        ["trips", case, peer] => {
            let trip = median(case, peer, |run| run.extra("round_trip_us"))?;
            format!("{:.1}", median(case, peer, figure("keepers").of)? / trip)
        }
        ["times", case, peer] => {
            let of = figure(case.split('-').next().unwrap_or_default()).of;
            format!("{:.2}", median(case, peer, of)? / median(case, "raw", of)?)
        }
        ["requests", case, peer] => format!("{:.2}", median(case, peer, requests)?),
        ["waiters", directory, host] => {
            whole((WATCHED_BYTES_MAX / watched_bytes(directory.parse()?, host.parse()?)).floor())
        }
        ["listed", host] => whole((LISTING_BYTES_MAX / listed_bytes(host.parse()?)).floor()),
        _ => return Err(format!("no value is called {name:?}").into()),
    })
}

pub(crate) fn table(results: &Results, name: &str) -> Outcome<String> {
    match name {
        "ensembles" => ensembles(results),
        "heartbeats" => heartbeat_table(results),
        "examples" => examples(results),
        _ => Err(format!("no table is called {name:?}").into()),
    }
}

fn share(part: f64, of: f64) -> String {
    let percent = part / of * 100.0;
    if percent < 0.5 { "under 1 %".to_owned() } else { format!("{} %", whole(percent)) }
}

fn ensembles(results: &Results) -> Outcome<String> {
    let (three, five) = planned(results)?;
    let mut table =
        "| ensemble | writes a second to plan with | acquisitions with their releases | or sessions that only \
                     hold, at 10 s | at 40 s |\n|---|--:|--:|--:|--:|\n"
            .to_owned();
    for (servers, writes) in [("three servers", three), ("five servers", five)] {
        let holding = |timeout: f64| whole(writes * timeout * HEARTBEAT_SHARE);
        let (pairs, short, long) = (whole(writes / WRITES_A_PAIR), holding(10.0), holding(40.0));
        let _ = writeln!(table, "| {servers} | {} | {pairs} | {short} | {long} |", whole(writes));
    }
    Ok(table)
}

fn heartbeat_table(results: &Results) -> Outcome<String> {
    let (three, _) = planned(results)?;
    let timeouts = [5.0, 10.0, 20.0, 40.0];
    let mut table = "| sessions that hold or wait |".to_owned();
    for timeout in timeouts {
        let _ = write!(table, " T = {timeout} s |");
    }
    table.push_str("\n|--:|--:|--:|--:|--:|\n");
    for sessions in [1_000.0, 10_000.0, 50_000.0] {
        let _ = write!(table, "| {} |", whole(sessions));
        for timeout in timeouts {
            let beats = heartbeats(sessions, timeout);
            let _ = write!(table, " {} ({}) |", whole(beats), share(beats, three));
        }
        table.push('\n');
    }
    Ok(table)
}

/// What is asked of the ensemble: how many sessions hold or wait, their timeout, and how many nodes of locks are made
/// a second.
const EXAMPLES: [(&str, f64, f64, f64); 7] = [
    ("100 processes, 10 acquisitions a second in all", 100.0, 10.0, 10.0),
    ("1,000 processes, each acquires once a second", 1_000.0, 10.0, 1_000.0),
    ("10,000 processes, each holds a lock for hours", 10_000.0, 10.0, 0.0),
    ("the same with a session timeout of 40 s", 10_000.0, 40.0, 0.0),
    ("10,000 processes, each reads 100 times a second, a node for each read", 10_000.0, 10.0, 1_000_000.0),
    ("the same with `keep`, and a write a minute", 10_000.0, 10.0, 10_000.0 / 60.0),
    ("the same with `keep`, a write a minute, and a session timeout of 40 s", 10_000.0, 40.0, 10_000.0 / 60.0),
];

fn examples(results: &Results) -> Outcome<String> {
    let (three, five) = planned(results)?;
    let mut table = "| load | heartbeats a second, at most | writes of locks | writes in all | of the plan, three \
                     servers | five |\n|---|--:|--:|--:|--:|--:|\n"
        .to_owned();
    for (load, sessions, timeout, nodes) in EXAMPLES {
        let (beats, writes) = (heartbeats(sessions, timeout), nodes * WRITES_A_PAIR);
        let _ = writeln!(
            table,
            "| {load} | {} | {} | {} | {} | {} |",
            whole(beats),
            whole(writes),
            whole(beats + writes),
            share(beats + writes, three),
            share(beats + writes, five)
        );
    }
    Ok(table)
}
