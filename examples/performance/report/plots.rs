//! Makes the plots of `docs/performance.md`. Each plot shows one figure against one size. It has a line for each peer (a
//! library in one configuration), and shows the range of the peer's rounds.

use super::figures::{bytes, look, peers, seconds, title};
use super::results::{Line, Results};
use crate::chart::{Chart, Names, Panel, Point, Style};

struct Plot {
    file: &'static str,
    title: &'static str,
    across: &'static str,
    up: &'static str,
    /// The prefix of the names of the plotted cases. The size follows the prefix.
    cases: &'static str,
    of: fn(&Line) -> Option<f64>,
}

#[rustfmt::skip]
const PLOTS: [Plot; 3] = [
    Plot { file: "hand-off.svg", title: "Bytes a hand-off, to and from the server", across: "writers queued", up: "bytes a hand-off",
        cases: "drain-", of: bytes },
    Plot { file: "readers.svg", title: "Time until all readers are let in, on loopback", across: "readers queued", up: "milliseconds",
        cases: "readers-", of: |line| Some(seconds(line)? * 1e3) },
    Plot { file: "contend.svg", title: "Acquisitions a second, on loopback", across: "contenders", up: "acquisitions a second",
        cases: "contend-", of: |line| Some(1.0 / seconds(line)?) },
];

/// Returns the name and the content of each plot's file.
pub(crate) fn svgs(results: &Results) -> Vec<(&'static str, String)> {
    PLOTS.iter().filter_map(|plot| Some((plot.file, svg(results, plot)?))).collect()
}

/// Returns a plot, or `None` if there are no results for it.
fn svg(results: &Results, plot: &Plot) -> Option<String> {
    let is_of_plot = |line: &Line| line.text("place") == "loopback" && line.text("case").starts_with(plot.cases);
    let mut sizes: Vec<(u64, &str)> = Vec::new();
    for line in results.compared.iter().filter(|line| is_of_plot(line)) {
        sizes.push((line.number("n")? as u64, line.text("case")));
    }
    sizes.sort_unstable();
    sizes.dedup();
    let peers = peers(results, is_of_plot);
    let line = |peer: &&str| {
        let point = |(n, case): &(u64, &str)| {
            let median = results.median(["loopback", case, peer], plot.of)?;
            Some(Point { x: *n as f64, y: median.value, range: Some((median.least, median.most)) })
        };
        sizes.iter().filter_map(point).collect()
    };
    let style = |peer: &&str| {
        let (colour, dashes) = look(peer);
        Style { name: title(peer).to_owned(), colour, dashes }
    };
    let server = results.compared.first()?.text("server");
    let chart = Chart {
        title: plot.title.to_owned(),
        across: plot.across.to_owned(),
        panels: vec![Panel {
            title: format!("ZooKeeper {server}; medians, and the least and the most"),
            up: plot.up.to_owned(),
            lines: peers.iter().map(line).collect(),
        }],
        panel_width: 620.0,
        panel_height: 420.0,
        styles: peers.iter().map(style).collect(),
        names: Names::AtEnds(290.0),
    };
    (!peers.is_empty()).then(|| chart.svg())
}
