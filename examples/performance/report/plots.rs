//! The plots of the page: each one figure against one size, a line for each driver, with the range of its runs.

use super::figures::{self, Figure, figure, look, peers, title};
use super::results::{Results, Run};
use crate::chart::{Chart, Names, Panel, Point, Style};

/// What is drawn is the server with the most results.
pub(crate) fn label(results: &Results) -> &str {
    let lines = |label: &str| results.runs().filter(|run| run.label == label).count();
    // Of several with as many the first one.
    results.labels().into_iter().rev().max_by_key(|label| lines(label)).unwrap_or_default()
}

/// Whether a plot shows the runs of this workload.
#[allow(dead_code, reason = "only the test of the page asks for it")]
pub(crate) fn is_drawn(workload: &str) -> bool {
    plots().iter().any(|plot| plot.workload == workload)
}

struct Plot {
    file: &'static str,
    title: &'static str,
    across: &'static str,
    workload: &'static str,
    of: fn(&Run) -> Option<f64>,
}

fn plots() -> [Plot; 6] {
    let of = |workload: &str| -> fn(&Run) -> Option<f64> {
        let Figure { of, .. } = figure(workload);
        of
    };
    let plot = |file, title, across, workload, of| Plot { file, title, across, workload, of };
    [
        plot("hand-off-time.svg", "Time of a hand-off, in microseconds", "writers queued", "drain", of("drain")),
        plot(
            "hand-off-bytes.svg",
            "Bytes a hand-off, to and from the server",
            "writers queued",
            "drain",
            figures::bytes,
        ),
        plot("readers.svg", "Microseconds until all readers are let in", "readers queued", "readers", of("readers")),
        plot("contend.svg", "Acquisitions a second", "contenders", "contend", of("contend")),
        plot("memory.svg", "Bytes of memory a waiter", "waiters in one process", "waiters", figures::memory),
        plot(
            "queueing.svg",
            "Time to queue up, in microseconds a contender",
            "writers that come at once",
            "waiters",
            of("waiters"),
        ),
    ]
}

/// The files and what is in them.
pub(crate) fn svgs(results: &Results) -> Vec<(&'static str, String)> {
    plots().into_iter().filter_map(|plot| Some((plot.file, svg(results, &plot)?))).collect()
}

/// `None` where there is nothing to draw.
fn svg(results: &Results, plot: &Plot) -> Option<String> {
    let label = label(results);
    let is_of_plot = |run: &Run| run.label == label && run.workload == plot.workload && (plot.of)(run).is_some();
    let peers = peers(results, is_of_plot);
    let line = |peer: &&str| {
        let of_peer = results.runs().filter(|run| is_of_plot(run) && run.peer == *peer);
        let mut cases: Vec<(u64, &str)> = of_peer.map(|run| (run.n, run.case.as_str())).collect();
        cases.sort_unstable();
        cases.dedup();
        let point = |(n, case): (u64, &str)| {
            let median = results.median(label, case, peer, plot.of)?;
            Some(Point { x: n as f64, y: median.value, range: Some((median.least, median.most)) })
        };
        cases.into_iter().filter_map(point).collect()
    };
    let style = |peer: &&str| {
        let (colour, dashes) = look(peer);
        Style { name: title(peer).to_owned(), colour, dashes }
    };
    let lines: Vec<Vec<Point>> = peers.iter().map(line).collect();
    if lines.is_empty() {
        return None;
    }
    let chart = Chart {
        title: plot.title.to_owned(),
        across: plot.across.to_owned(),
        panels: vec![Panel { title: format!("ZooKeeper {label}; medians, and the least and the most"), lines }],
        panel_width: 620.0,
        panel_height: 420.0,
        styles: peers.iter().map(style).collect(),
        names: Names::AtEnds(290.0),
    };
    Some(chart.svg())
}
