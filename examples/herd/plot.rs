//! What releases cost, drawn as SVG against the length of the queue; knows nothing of servers.

use std::fmt::Write as _;

use crate::Cost;
use crate::ways::Way;

const PANEL: (f64, f64) = (250.0, 220.0);
const MARGIN: f64 = 70.0;
const TOP: f64 = 60.0;

type Figure = fn(&Cost) -> f64;

const PANELS: [(&str, Figure); 3] = [
    ("watches fired", |cost| cost.notifications),
    ("requests received", |cost| cost.requests),
    ("bytes of requests and answers", |cost| cost.bytes_in + cost.bytes_out),
];

/// Where two ways cost the same, one line lies upon the other and must let it be seen.
fn dashes(way: Way) -> &'static str {
    if way == Way::Children { " stroke-dasharray=\"8 6\"" } else { "" }
}

fn colour(way: Way) -> &'static str {
    match way {
        Way::OneNode => "#c0392b",
        Way::Children => "#d68910",
        Way::Ours => "#1f618d",
    }
}

/// A logarithmic axis over whole powers of `base`.
struct Axis {
    base: f64,
    from: f64,
    to: f64,
}

impl Axis {
    fn over(base: f64, values: impl Iterator<Item = f64> + Clone) -> Axis {
        let logs = values.map(|value| value.max(1e-3).log(base));
        let (least, most) = (logs.clone().fold(f64::INFINITY, f64::min), logs.fold(f64::NEG_INFINITY, f64::max));
        // A line along the edge would be hard to see.
        Axis { base, from: (least - 0.1).floor(), to: (most + 0.1).ceil() }
    }

    /// How far along the axis a value is, from 0 to 1.
    fn share(&self, value: f64) -> f64 {
        (value.max(1e-3).log(self.base) - self.from) / (self.to - self.from)
    }

    fn marks(&self) -> impl Iterator<Item = f64> {
        (self.from as i32..=self.to as i32).map(|power| self.base.powi(power))
    }
}

/// One panel for each figure, one line in it for each way; both axes are logarithmic.
pub(crate) fn svg(costs: &[Cost]) -> String {
    let (width, height) = (PANELS.len() as f64 * (PANEL.0 + MARGIN) + MARGIN / 2.0, TOP + PANEL.1 + 80.0);
    let mut drawn = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{MARGIN}\" y=\"22\" font-size=\"15\">What one release costs the server, by contenders</text>\n"
    );
    for (number, (title, figure)) in PANELS.iter().enumerate() {
        let left = MARGIN + number as f64 * (PANEL.0 + MARGIN);
        panel(&mut drawn, left, title, costs, *figure);
    }
    for (number, way) in Way::ALL.into_iter().enumerate() {
        let (x, y) = (MARGIN + number as f64 * (PANEL.0 + MARGIN), TOP + PANEL.1 + 58.0);
        let _ = writeln!(
            drawn,
            "<line x1=\"{x}\" y1=\"{}\" x2=\"{}\" y2=\"{}\" stroke=\"{}\" stroke-width=\"2\"{}/>\
             <text x=\"{}\" y=\"{y}\">{}</text>",
            y - 4.0,
            x + 24.0,
            y - 4.0,
            colour(way),
            dashes(way),
            x + 30.0,
            way.title()
        );
    }
    drawn + "</svg>\n"
}

fn panel(drawn: &mut String, left: f64, title: &str, costs: &[Cost], figure: Figure) {
    let across = Axis::over(2.0, costs.iter().map(|cost| cost.n as f64));
    let up = Axis::over(10.0, costs.iter().map(figure));
    let x = |n: usize| left + PANEL.0 * across.share(n as f64);
    let y = |value: f64| TOP + PANEL.1 * (1.0 - up.share(value));
    let bottom = TOP + PANEL.1;
    let _ = writeln!(drawn, "<text x=\"{left}\" y=\"{}\">{title}</text>", TOP - 10.0);
    for mark in up.marks() {
        let y = y(mark);
        let _ = writeln!(
            drawn,
            "<line x1=\"{left}\" y1=\"{y:.1}\" x2=\"{}\" y2=\"{y:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{mark}</text>",
            left + PANEL.0,
            left - 6.0,
            y + 4.0
        );
    }
    for cost in costs.iter().filter(|cost| cost.way == Way::Ours) {
        let x = x(cost.n);
        let _ = writeln!(drawn, "<text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>", bottom + 18.0, cost.n);
    }
    for way in Way::ALL {
        let points: Vec<(f64, f64)> =
            costs.iter().filter(|cost| cost.way == way).map(|cost| (x(cost.n), y(figure(cost)))).collect();
        let line: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let _ = writeln!(
            drawn,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"{}/>",
            line.join(" "),
            colour(way),
            dashes(way)
        );
        for (x, y) in points {
            let _ = writeln!(drawn, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{}\"/>", colour(way));
        }
    }
}
