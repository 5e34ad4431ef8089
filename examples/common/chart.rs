//! Lines in panels with logarithmic axes, drawn as SVG; knows nothing of what they show.

use std::fmt::Write as _;

const MARGIN: f64 = 70.0;
const TOP: f64 = 60.0;
const LEGEND_ROW: f64 = 20.0;

#[derive(Debug)]
pub(crate) struct Chart {
    pub(crate) title: String,
    /// What grows from left to right.
    pub(crate) across: String,
    /// The marks up are powers of ten; those across are the values there are, spaced by their logarithm.
    pub(crate) panels: Vec<Panel>,
    pub(crate) panel_width: f64,
    pub(crate) panel_height: f64,
    /// What each line of a panel is, in the same order in all panels.
    pub(crate) styles: Vec<Style>,
    /// How much room the name of a line needs in the legend.
    pub(crate) legend_width: f64,
}

/// One figure: a line for each style.
#[derive(Debug)]
pub(crate) struct Panel {
    pub(crate) title: String,
    pub(crate) lines: Vec<Vec<Point>>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Point {
    pub(crate) x: f64,
    pub(crate) y: f64,
    /// The least and the most of what `y` is the median of.
    pub(crate) range: Option<(f64, f64)>,
}

#[derive(Clone, Debug)]
pub(crate) struct Style {
    pub(crate) name: String,
    pub(crate) colour: &'static str,
    /// Where two lines run together, the upper one must let the other be seen.
    pub(crate) dashes: &'static str,
}

/// A logarithmic axis.
struct Axis {
    from: f64,
    to: f64,
}

impl Axis {
    fn over(values: impl Iterator<Item = f64> + Clone) -> Axis {
        let logs = values.map(log);
        let (least, most) = (logs.clone().fold(f64::INFINITY, f64::min), logs.fold(f64::NEG_INFINITY, f64::max));
        // A line along the edge would be hard to see.
        Axis { from: least - 0.1, to: most + 0.1 }
    }

    fn whole(self) -> Axis {
        Axis { from: self.from.floor(), to: self.to.ceil() }
    }

    /// How far along the axis a value is, from 0 to 1.
    fn share(&self, value: f64) -> f64 {
        (log(value) - self.from) / (self.to - self.from)
    }

    fn marks(&self) -> impl Iterator<Item = i32> {
        self.from as i32..=self.to as i32
    }
}

fn log(value: f64) -> f64 {
    value.max(1e-3).log10()
}

/// A power of ten as people write it.
fn power_of_ten(power: i32) -> String {
    match power {
        ..0 => format!("{:.*}", power.unsigned_abs() as usize, 10_f64.powi(power)),
        _ => thousands(&format!("1{}", "0".repeat(power as usize))),
    }
}

/// Digits in groups of three.
pub(crate) fn thousands(digits: &str) -> String {
    let (whole, rest) = digits.split_once('.').map_or((digits, None), |(whole, rest)| (whole, Some(rest)));
    let mut grouped = String::new();
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    rest.map_or(grouped.clone(), |rest| format!("{grouped}.{rest}"))
}

impl Chart {
    pub(crate) fn svg(&self) -> String {
        let width = self.panels.len() as f64 * (self.panel_width + MARGIN) + MARGIN / 2.0;
        let columns = (((width - MARGIN) / self.legend_width) as usize).max(1);
        let rows = self.styles.len().div_ceil(columns);
        let legend = TOP + self.panel_height + 58.0;
        let height = legend + rows as f64 * LEGEND_ROW + 2.0;
        let mut drawn = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
             <text x=\"{MARGIN}\" y=\"22\" font-size=\"15\">{}</text>\n",
            self.title
        );
        for (number, panel) in self.panels.iter().enumerate() {
            self.draw(&mut drawn, MARGIN + number as f64 * (self.panel_width + MARGIN), panel);
        }
        for (number, style) in self.styles.iter().enumerate() {
            let x = MARGIN + (number % columns) as f64 * self.legend_width;
            let y = legend + (number / columns) as f64 * LEGEND_ROW;
            let _ = writeln!(
                drawn,
                "<line x1=\"{x}\" y1=\"{0}\" x2=\"{1}\" y2=\"{0}\" stroke=\"{2}\" stroke-width=\"2\"{3}/>\
                 <text x=\"{4}\" y=\"{y}\">{5}</text>",
                y - 4.0,
                x + 24.0,
                style.colour,
                style.dashes(),
                x + 30.0,
                style.name
            );
        }
        drawn + "</svg>\n"
    }

    fn draw(&self, drawn: &mut String, left: f64, panel: &Panel) {
        let points = || panel.lines.iter().flatten();
        let mut values: Vec<f64> = points().map(|point| point.x).collect();
        values.sort_by(f64::total_cmp);
        values.dedup();
        let across = Axis::over(values.iter().copied());
        let ends = |point: &Point| point.range.map_or([point.y; 2], |(least, most)| [least, most]);
        let up = Axis::over(points().flat_map(ends)).whole();
        let x = |value: f64| left + self.panel_width * across.share(value);
        let y = |value: f64| TOP + self.panel_height * (1.0 - up.share(value));
        let (right, bottom) = (left + self.panel_width, TOP + self.panel_height);

        let _ = writeln!(drawn, "<text x=\"{left}\" y=\"{}\">{}</text>", TOP - 10.0, panel.title);
        for mark in up.marks() {
            let y = y(10_f64.powi(mark));
            let _ = writeln!(
                drawn,
                "<line x1=\"{left}\" y1=\"{y:.1}\" x2=\"{right}\" y2=\"{y:.1}\" stroke=\"#ddd\"/>\
                 <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                left - 6.0,
                y + 4.0,
                power_of_ten(mark)
            );
        }
        for value in values {
            let mark = thousands(&value.to_string());
            let (x, y) = (x(value), bottom + 18.0);
            let _ = writeln!(drawn, "<text x=\"{x:.1}\" y=\"{y}\" text-anchor=\"middle\">{mark}</text>");
        }
        let _ = writeln!(
            drawn,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            left + self.panel_width / 2.0,
            bottom + 36.0,
            self.across
        );
        for (style, line) in self.styles.iter().zip(&panel.lines) {
            let corners: Vec<String> =
                line.iter().map(|point| format!("{:.1},{:.1}", x(point.x), y(point.y))).collect();
            let _ = writeln!(
                drawn,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"{}/>",
                corners.join(" "),
                style.colour,
                style.dashes()
            );
            for point in line {
                let (x, colour) = (x(point.x), style.colour);
                if let Some((least, most)) = point.range {
                    let (least, most) = (y(least), y(most));
                    let _ = writeln!(
                        drawn,
                        "<line x1=\"{x:.1}\" y1=\"{least:.1}\" x2=\"{x:.1}\" y2=\"{most:.1}\" stroke=\"{colour}\"/>"
                    );
                }
                let _ = writeln!(drawn, "<circle cx=\"{x:.1}\" cy=\"{:.1}\" r=\"3\" fill=\"{colour}\"/>", y(point.y));
            }
        }
    }
}

impl Style {
    fn dashes(&self) -> String {
        if self.dashes.is_empty() { String::new() } else { format!(" stroke-dasharray=\"{}\"", self.dashes) }
    }
}
