//! Which figure a run is judged by, and how figures and drivers are written.

use super::results::{Results, Run, in_order_of_appearance};
use crate::chart::thousands;

/// What a run is judged by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figure {
    pub(crate) unit: &'static str,
    pub(crate) of: fn(&Run) -> Option<f64>,
    /// More is better.
    pub(crate) is_rate: bool,
}

pub(crate) fn figure(workload: &str) -> Figure {
    let (unit, of, is_rate): (_, fn(&Run) -> Option<f64>, _) = match workload {
        "contend" | "mix" | "kept" => ("operations a second", |run| run.number("ops_per_s"), true),
        "drain" => ("µs a hand-off", |run| run.extra("us_per_handoff"), false),
        "readers" => ("µs until all are in", |run| run.extra("total_us"), false),
        "keepers" => ("µs until the writer holds", |run| run.number("p50_us"), false),
        "permits" => ("grants a second", |run| run.number("ops_per_s"), true),
        "simulated" => ("requests a second", |run| run.extra("requests_per_s"), false),
        "waiters" => ("µs a contender", |run| run.extra("us_per_waiter"), false),
        _ => ("µs a pair", |run| run.number("p50_us"), false),
    };
    Figure { unit, of, is_rate }
}

pub(crate) fn requests(run: &Run) -> Option<f64> {
    // Of millions of pairs that send nothing, the asking itself may be counted once too often.
    run.extra("requests_per_op").map(|requests| requests.max(0.0))
}

pub(crate) fn bytes_in(run: &Run) -> Option<f64> {
    run.per_op("bytes_received_count").map(|bytes| bytes.max(0.0))
}

pub(crate) fn bytes_out(run: &Run) -> Option<f64> {
    run.per_op("response_bytes").map(|bytes| bytes.max(0.0))
}

pub(crate) fn bytes(run: &Run) -> Option<f64> {
    Some(bytes_in(run)? + bytes_out(run)?)
}

pub(crate) fn memory(run: &Run) -> Option<f64> {
    run.extra("bytes_per_waiter")
}

/// The drivers in the order in which they are shown, with how they are called and drawn.
const PEERS: [(&str, &str, &str, &str); 11] = [
    ("raw", "raw: no lock", "#7f8c8d", "2 4"),
    ("ours-apart", "zk-rwlock", "#1f618d", ""),
    ("ours", "zk-rwlock, one session", "#1f618d", "4 4"),
    ("ours-drop", "zk-rwlock, guard dropped", "#5dade2", "8 6"),
    ("ours-kept-apart", "zk-rwlock, kept", "#5dade2", ""),
    ("ours-kept", "zk-rwlock, one session, kept", "#5dade2", "4 4"),
    ("local", "tokio's RwLock, in one process", "#7d3c98", "8 6"),
    ("zkclient", "zookeeper-client", "#1e8449", ""),
    ("zkclient-drop", "zookeeper-client, guard dropped", "#82c99d", "8 6"),
    ("curator", "Curator", "#c0392b", ""),
    ("kazoo", "kazoo", "#d68910", ""),
];

/// The drivers of the chosen runs, in the order of [`PEERS`]; then others, as they come.
pub(crate) fn peers(results: &Results, chosen: impl Fn(&Run) -> bool) -> Vec<&str> {
    let mut there = in_order_of_appearance(results.runs().filter(|run| chosen(run)).map(|run| run.peer.as_str()));
    there.sort_by_key(|peer| PEERS.iter().position(|known| known.0 == *peer).unwrap_or(PEERS.len()));
    there
}

pub(crate) fn title(peer: &str) -> &str {
    PEERS.iter().find(|known| known.0 == peer).map_or(peer, |known| known.1)
}

/// Colour and dashes.
pub(crate) fn look(peer: &str) -> (&'static str, &'static str) {
    PEERS.iter().find(|known| known.0 == peer).map_or(("#884ea0", ""), |known| (known.2, known.3))
}

pub(crate) fn is_ours(peer: &str) -> bool {
    peer.starts_with("ours")
}

/// Three digits or more, and groups of them.
pub(crate) fn number(value: f64) -> String {
    let decimals = match value.abs() {
        ..10.0 => 2,
        10.0..100.0 => 1,
        _ => 0,
    };
    thousands(&format!("{value:.decimals$}"))
}

pub(crate) fn whole(value: f64) -> String {
    thousands(&format!("{value:.0}"))
}
