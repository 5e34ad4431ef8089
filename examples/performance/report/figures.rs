//! Computes figures from measurements, and formats figures and the names of peers. A peer is a library in one
//! configuration, such as zk-rwlock with one session for all contenders. A [`Line`] of the comparison is one
//! measurement of one peer.

use super::results::{Line, Outcome, Results, in_order_of_appearance};
use crate::chart::thousands;

/// A round trip on the link, in seconds. It is `DELAY` of `benches/compare.py` in both directions.
const ROUND_TRIP: f64 = 0.020;

/// A figure, such as a time or a number of requests, with the place where it is measured and the way to compute it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figure {
    pub(crate) place: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) of: fn(&Line) -> Option<f64>,
    /// Formats the figure.
    digits: fn(f64) -> String,
}

/// Returns the seconds for one acquisition, or, if many readers are granted the lock together, for all these readers.
pub(crate) fn seconds(line: &Line) -> Option<f64> {
    let seconds = line.number("seconds")?;
    Some(if line.text("kind") == "readers" { seconds } else { seconds / line.number("ops")? })
}

fn rate(line: &Line) -> Option<f64> {
    Some(line.number("ops")? / line.number("seconds")?)
}

pub(crate) fn bytes(line: &Line) -> Option<f64> {
    Some(line.number("bytes_in")? + line.number("bytes_out")?)
}

/// Returns the figure with the name that tables and sentences use for it.
pub(crate) fn figure(name: &str) -> Option<Figure> {
    let figure = |place, unit, of, digits| Some(Figure { place, unit, of, digits });
    match name {
        "trips" => {
            figure("link", "round trips", |line| Some(seconds(line)? / ROUND_TRIP), |value| format!("{value:.2}"))
        }
        "processor" => figure("loopback", "µs of the client's processor", |line| line.number("processor_us"), number),
        "second" => figure("loopback", "a second", rate, number),
        // For a peer that sends nothing, the count may be below zero, because the cost of reading the counters may be
        // subtracted once too often.
        "requests" => figure("loopback", "requests", |line| Some(line.number("requests")?.max(0.0)), number),
        "bytes" => figure("loopback", "bytes, both ways", |line| Some(bytes(line)?.max(0.0)), number),
        "ensemble-processor" => {
            figure("ensemble", "µs of the client's processor", |line| line.number("processor_us"), number)
        }
        "ensemble" => figure("ensemble", "a second", rate, number),
        "nanoseconds" => figure("loopback", "ns", |line| Some(seconds(line)? * 1e9), whole),
        _ => None,
    }
}

impl Figure {
    pub(crate) fn median(&self, results: &Results, case: &str, peer: &str) -> Option<f64> {
        Some(results.median([self.place, case, peer], self.of)?.value)
    }

    pub(crate) fn written(&self, value: f64) -> String {
        (self.digits)(value)
    }

    /// Returns the spread of the figure, in percent. For each peer in each case, the difference between the greatest
    /// and the least round is divided by the median. Nine of ten of these quotients are at most the spread.
    pub(crate) fn spread(&self, results: &Results) -> Outcome<f64> {
        let here: Vec<&Line> = results.compared.iter().filter(|line| line.text("place") == self.place).collect();
        let mut spreads = Vec::new();
        for case in in_order_of_appearance(here.iter().map(|line| line.text("case"))) {
            for peer in peers(results, |line| line.is(self.place, case)) {
                let median = results.median([self.place, case, peer], self.of).ok_or("a line has no figure")?;
                spreads.push((median.most - median.least) / median.value * 100.0);
            }
        }
        spreads.sort_by(f64::total_cmp);
        spreads.get(spreads.len() * 9 / 10).copied().ok_or_else(|| "nothing was measured there".into())
    }
}

/// The peers in the order of the tables: id, title, and the colour and the dash pattern of the peer's line in the
/// plots.
const PEERS: [(&str, &str, &str, &str); 9] = [
    ("raw", "raw: no lock", "#7f8c8d", "2 4"),
    ("zookeeper-client", "zookeeper-client", "#1e8449", ""),
    ("curator", "Curator", "#c0392b", ""),
    ("kazoo", "kazoo", "#d68910", ""),
    ("ours-apart", "zk-rwlock", "#1f618d", ""),
    ("ours", "zk-rwlock, one session", "#1f618d", "4 4"),
    ("ours-kept-apart", "zk-rwlock, kept", "#5dade2", ""),
    ("ours-kept", "zk-rwlock, one session, kept", "#5dade2", "4 4"),
    ("local", "tokio's RwLock, in one process", "#7d3c98", "8 6"),
];

/// Returns the peers that have a measurement for which `chosen` returns `true`, in the order of [`PEERS`].
pub(crate) fn peers(results: &Results, chosen: impl Fn(&Line) -> bool) -> Vec<&'static str> {
    let is_there = |peer: &str| results.compared.iter().any(|line| chosen(line) && line.text("peer") == peer);
    PEERS.iter().map(|known| known.0).filter(|peer| is_there(peer)).collect()
}

pub(crate) fn title(peer: &str) -> &str {
    PEERS.iter().find(|known| known.0 == peer).map_or(peer, |known| known.1)
}

/// Returns the colour and the dash pattern of the peer's line in the plots.
pub(crate) fn look(peer: &str) -> (&'static str, &'static str) {
    PEERS.iter().find(|known| known.0 == peer).map_or(("#884ea0", ""), |known| (known.2, known.3))
}

/// Formats a number with at least three digits, in groups of three.
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
