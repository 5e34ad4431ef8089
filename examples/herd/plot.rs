//! Draws the cost of a release against the length of the queue.

use crate::Cost;
use crate::common::chart::{Chart, Names, Panel, Point, Style};
use crate::ways::Way;

type Figure = fn(&Cost) -> f64;

/// The title of each panel, what its vertical axis counts, and the figure.
const PANELS: [(&str, &str, Figure); 3] = [
    ("watches fired", "watches", |cost| cost.notifications),
    ("requests received", "requests", |cost| cost.requests),
    ("requests and answers", "bytes", |cost| cost.bytes_in + cost.bytes_out),
];

fn style(way: Way) -> Style {
    let (colour, dashes) = match way {
        Way::OneNode => ("#c0392b", ""),
        Way::Children => ("#d68910", "8 6"),
        Way::Ours => ("#1f618d", ""),
    };
    Style { name: way.title().to_owned(), colour, dashes }
}

/// Returns a chart with a panel for each figure and a line for each way.
pub(crate) fn svg(costs: &[Cost]) -> String {
    let line = |way: Way, figure: Figure| {
        let of_way = costs.iter().filter(|cost| cost.way == way);
        of_way.map(|cost| Point { x: cost.n as f64, y: figure(cost), range: None }).collect()
    };
    let panel = |(title, up, figure): (&str, &str, Figure)| Panel {
        title: title.to_owned(),
        up: up.to_owned(),
        lines: Way::ALL.into_iter().map(|way| line(way, figure)).collect(),
    };
    let chart = Chart {
        title: "What one release costs the server".to_owned(),
        across: "contenders".to_owned(),
        panels: PANELS.into_iter().map(panel).collect(),
        panel_width: 250.0,
        panel_height: 220.0,
        styles: Way::ALL.into_iter().map(style).collect(),
        names: Names::Below(320.0),
    };
    chart.svg()
}
