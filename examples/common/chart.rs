//! Draws line charts in panels with logarithmic axes as SVG.

use std::fmt::Write as _;

const MARGIN: f64 = 80.0;
const TOP: f64 = 66.0;
const LEGEND_ROW: f64 = 20.0;
/// The least vertical distance between the names of two lines of a chart, in pixels.
const NAME_ROW: f64 = 18.0;

#[derive(Debug)]
pub(crate) struct Chart {
    pub(crate) title: String,
    /// The title of the horizontal axis.
    pub(crate) across: String,
    /// The panels. The vertical axis is marked at round figures, and the horizontal axis at the values of the points.
    pub(crate) panels: Vec<Panel>,
    pub(crate) panel_width: f64,
    pub(crate) panel_height: f64,
    /// The style of each line, in the same order in all panels.
    pub(crate) styles: Vec<Style>,
    pub(crate) names: Names,
}

/// Where the names of the lines are drawn.
#[allow(dead_code, reason = "each program that draws has its own choice")]
#[derive(Clone, Copy, Debug)]
pub(crate) enum Names {
    /// At the end of each line, with the line's last figure. A column of this width to the right of a panel has room
    /// for the names.
    AtEnds(f64),
    /// Below all panels, in columns of this width.
    Below(f64),
}

/// A panel, with a line for each style.
#[derive(Debug)]
pub(crate) struct Panel {
    pub(crate) title: String,
    /// The title of the vertical axis: what is measured, in its unit.
    pub(crate) up: String,
    pub(crate) lines: Vec<Vec<Point>>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Point {
    pub(crate) x: f64,
    pub(crate) y: f64,
    /// The least and the greatest of the values whose median is `y`.
    pub(crate) range: Option<(f64, f64)>,
}

#[derive(Clone, Debug)]
pub(crate) struct Style {
    pub(crate) name: String,
    pub(crate) colour: &'static str,
    /// The pattern of dashes. Dashes keep a line visible below another one.
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
        // The margin keeps lines away from the edge of the panel.
        let margin = ((most - least) * 0.04).max(0.02);
        Axis { from: least - margin, to: most + margin }
    }

    /// Returns the position of a value along the axis, from 0 to 1.
    fn share(&self, value: f64) -> f64 {
        (log(value) - self.from) / (self.to - self.from)
    }

    /// Returns the marks: powers of ten, and on a short axis also two and five times each power.
    fn marks(&self) -> impl Iterator<Item = f64> {
        let steps: &[f64] = if self.to - self.from > 2.5 { &[1.0] } else { &[1.0, 2.0, 5.0] };
        let powers = self.from.floor() as i32..=self.to.ceil() as i32;
        let marks = powers.flat_map(move |power| steps.iter().map(move |step| step * 10_f64.powi(power)));
        marks.filter(|mark| (0.0..=1.0).contains(&self.share(*mark)))
    }
}

fn log(value: f64) -> f64 {
    value.max(1e-3).log10()
}

/// Formats a figure with few digits.
fn figure(value: f64) -> String {
    let decimals = match value {
        ..0.1 => 3,
        ..1.0 => 2,
        ..10.0 => 1,
        _ => 0,
    };
    let digits = format!("{value:.decimals$}");
    let digits = if digits.contains('.') { digits.trim_end_matches('0').trim_end_matches('.') } else { &digits };
    thousands(digits)
}

/// Puts commas between groups of three digits.
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
        let beside = if let Names::AtEnds(room) = self.names { room } else { 0.0 };
        let width = self.panels.len() as f64 * (self.panel_width + beside + MARGIN) + MARGIN / 2.0;
        let below = TOP + self.panel_height + 58.0;
        let (legend, height) = match self.names {
            Names::AtEnds(_) => (String::new(), below - 8.0),
            Names::Below(column) => self.legend(width, below, column),
        };
        let mut drawn = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"14\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
             <text x=\"{MARGIN}\" y=\"24\" font-size=\"18\">{}</text>\n",
            self.title
        );
        for (number, panel) in self.panels.iter().enumerate() {
            self.draw(&mut drawn, MARGIN + number as f64 * (self.panel_width + beside + MARGIN), panel);
        }
        drawn + &legend + "</svg>\n"
    }

    /// Returns the names of the lines, drawn below the panels, and the height of the picture with them.
    fn legend(&self, width: f64, top: f64, column: f64) -> (String, f64) {
        let columns = (((width - MARGIN) / column) as usize).max(1);
        let mut drawn = String::new();
        for (number, style) in self.styles.iter().enumerate() {
            let x = MARGIN + (number % columns) as f64 * column;
            let y = top + (number / columns) as f64 * LEGEND_ROW;
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
        (drawn, top + self.styles.len().div_ceil(columns) as f64 * LEGEND_ROW + 2.0)
    }

    fn draw(&self, drawn: &mut String, left: f64, panel: &Panel) {
        let points = || panel.lines.iter().flatten();
        let mut values: Vec<f64> = points().map(|point| point.x).collect();
        values.sort_by(f64::total_cmp);
        values.dedup();
        let across = Axis::over(values.iter().copied());
        let ends = |point: &Point| point.range.map_or([point.y; 2], |(least, most)| [least, most]);
        let up = Axis::over(points().flat_map(ends));
        let x = |value: f64| left + self.panel_width * across.share(value);
        let y = |value: f64| TOP + self.panel_height * (1.0 - up.share(value));
        let (right, bottom) = (left + self.panel_width, TOP + self.panel_height);

        let _ = writeln!(drawn, "<text x=\"{left}\" y=\"{}\">{}</text>", TOP - 12.0, panel.title);
        for mark in up.marks() {
            let (y, text) = (y(mark), figure(mark));
            let _ = writeln!(
                drawn,
                "<line x1=\"{left}\" y1=\"{y:.1}\" x2=\"{right}\" y2=\"{y:.1}\" stroke=\"#ddd\"/>\
                 <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{text}</text>",
                left - 6.0,
                y + 5.0
            );
        }
        for value in values {
            let (x, y, text) = (x(value), bottom + 20.0, thousands(&value.to_string()));
            let _ = writeln!(drawn, "<text x=\"{x:.1}\" y=\"{y}\" text-anchor=\"middle\">{text}</text>");
        }
        let (middle, below) = (left + self.panel_width / 2.0, bottom + 40.0);
        let _ = writeln!(
            drawn,
            "<text x=\"{middle}\" y=\"{below}\" text-anchor=\"middle\">{} (logarithmic)</text>\
             <text transform=\"translate({} {}) rotate(-90)\" text-anchor=\"middle\">{} (logarithmic)</text>",
            self.across,
            left - 62.0,
            TOP + self.panel_height / 2.0,
            panel.up
        );
        for (style, line) in self.styles.iter().zip(&panel.lines) {
            draw_line(drawn, style, line, &x, &y);
        }
        if let Names::AtEnds(_) = self.names {
            self.name_ends(drawn, panel, right, &x, &y);
        }
    }

    /// Draws each name as close to the end of its line as the other names allow, and connects the name with the line.
    fn name_ends(&self, drawn: &mut String, panel: &Panel, right: f64, x: &dyn Fn(f64) -> f64, y: &dyn Fn(f64) -> f64) {
        let last = |(style, line)| -> Option<(&Style, &Point)> { Some((style, <[Point]>::last(line)?)) };
        let lines = self.styles.iter().zip(panel.lines.iter().map(Vec::as_slice));
        let mut ends: Vec<(&Style, &Point)> = lines.filter_map(last).collect();
        ends.sort_by(|(_, one), (_, other)| other.y.total_cmp(&one.y));
        let rows = apart(ends.iter().map(|(_, point)| y(point.y)).collect(), TOP + self.panel_height);
        for ((style, point), row) in ends.into_iter().zip(rows) {
            let (from, text, colour) = (x(point.x) + 5.0, right + 14.0, style.colour);
            let _ = writeln!(
                drawn,
                "<line x1=\"{from:.1}\" y1=\"{:.1}\" x2=\"{}\" y2=\"{row:.1}\" stroke=\"{colour}\" stroke-width=\"0.6\"/>\
                 <text x=\"{text}\" y=\"{:.1}\" fill=\"{colour}\">{}: {}</text>",
                y(point.y),
                right + 10.0,
                row + 5.0,
                style.name,
                figure(point.y)
            );
        }
    }
}

/// Moves sorted rows apart: first down, until each row is far enough from the row above, and then up again from the
/// bottom.
fn apart(mut rows: Vec<f64>, bottom: f64) -> Vec<f64> {
    for index in 1..rows.len() {
        rows[index] = rows[index].max(rows[index - 1] + NAME_ROW);
    }
    let mut limit = bottom;
    for row in rows.iter_mut().rev() {
        *row = row.min(limit);
        limit = *row - NAME_ROW;
    }
    rows
}

fn draw_line(drawn: &mut String, style: &Style, line: &[Point], x: &dyn Fn(f64) -> f64, y: &dyn Fn(f64) -> f64) {
    let corners: Vec<String> = line.iter().map(|point| format!("{:.1},{:.1}", x(point.x), y(point.y))).collect();
    let (colour, dashes) = (style.colour, style.dashes());
    let corners = corners.join(" ");
    let _ = writeln!(
        drawn,
        "<polyline points=\"{corners}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2.5\"{dashes}/>"
    );
    for point in line {
        let x = x(point.x);
        if let Some((least, most)) = point.range {
            let (least, most) = (y(least), y(most));
            let _ = writeln!(
                drawn,
                "<line x1=\"{x:.1}\" y1=\"{least:.1}\" x2=\"{x:.1}\" y2=\"{most:.1}\" stroke=\"{colour}\"/>"
            );
        }
        let _ = writeln!(drawn, "<circle cx=\"{x:.1}\" cy=\"{:.1}\" r=\"4\" fill=\"{colour}\"/>", y(point.y));
    }
}

impl Style {
    fn dashes(&self) -> String {
        if self.dashes.is_empty() { String::new() } else { format!(" stroke-dasharray=\"{}\"", self.dashes) }
    }
}
