//! Draws a timeline as an SVG that needs no other file.

use std::cmp::Reverse;
use std::fmt::Write as _;
use std::time::{Duration, SystemTime};

use crate::output::{duration_in_two_units, duration_text_to_millis};
use crate::place::is_at_or_below;
use crate::timeline::rows::{ContenderRow, Picture, WatcherGap};

const WIDTH: f64 = 1200.0;
/// The width of the texts on the left of the picture.
const NAMES: f64 = 330.0;
/// The width to the right of the time axis, into which the text of the last mark may reach.
const RIGHT: f64 = 40.0;
const ROW: f64 = 18.0;
const TOP: f64 = 76.0;

/// The most characters of the name of a row.
const NAME_MAX: usize = 48;

/// The possible distances between two marks of the time axis, in milliseconds. If all of them are too short, the
/// distance is a number of days.
const STEPS: [u64; 22] = [
    1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000, 300_000, 600_000, 1_800_000,
    3_600_000, 14_400_000, 43_200_000, 86_400_000,
];

/// A day in milliseconds.
const DAY: u64 = 86_400_000;

/// The style sheet of the picture. The bar of a waiting contender is light and that of a holder is dark, so that the two
/// differ in a print without colours, too.
const STYLE: &str = include_str!("style.css");

/// The time axis of the picture.
struct TimeAxis {
    from: SystemTime,
    length: Duration,
}

impl TimeAxis {
    fn of(picture: &Picture<'_>) -> TimeAxis {
        let (from, to) = picture.begin_and_end();
        TimeAxis { from, length: to.duration_since(from).unwrap_or_default().max(Duration::from_millis(1)) }
    }

    fn end(&self) -> SystemTime {
        self.from + self.length
    }

    fn x_of_time(&self, at: SystemTime) -> f64 {
        let since = at.duration_since(self.from).unwrap_or_default().min(self.length);
        NAMES + since.as_secs_f64() / self.length.as_secs_f64() * (WIDTH - NAMES - RIGHT)
    }

    /// Returns the times of the marks, at most eleven.
    fn mark_times(&self) -> Vec<SystemTime> {
        let length = self.length.as_millis();
        let step = STEPS
            .into_iter()
            .find(|step| length / u128::from(*step) <= 10)
            .unwrap_or_else(|| DAY * u64::try_from(length.div_ceil(10 * u128::from(DAY))).unwrap_or(u64::MAX / DAY));
        let begin = self.from.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_millis();
        let first = begin.div_ceil(u128::from(step)) * u128::from(step);
        (0..=10u64)
            .map(|at| SystemTime::UNIX_EPOCH + Duration::from_millis(u64::try_from(first).unwrap_or(0) + at * step))
            .take_while(|at| *at <= self.end())
            .collect()
    }
}

/// Returns the picture as the text of an SVG file.
pub(crate) fn svg_text(picture: &Picture<'_>) -> String {
    let axis = TimeAxis::of(picture);
    let mut paths: Vec<_> = picture.paths.iter().filter(|(_, rows)| !rows.is_empty()).collect();
    // The path with the longest wait comes first.
    paths.sort_by_key(|(_, rows)| Reverse(rows.values().map(|row| row.waited(axis.end())).max()));
    let height = TOP + ROW * (picture.count + paths.len() + 1) as f64;
    // The SVG has a height, because a browser would otherwise shrink the picture until all rows fit into the window.
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\">\n\
         <title>zklock timeline</title>\n<style>\n{STYLE}</style>\n"
    );
    draw_legend(&mut svg, &axis);
    for at in axis.mark_times() {
        let x = axis.x_of_time(at);
        let _ =
            writeln!(svg, "<line class=\"axis\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{}\" y2=\"{height}\"/>", TOP - 8.0);
        let _ = writeln!(
            svg,
            "<text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            TOP - 12.0,
            time_of_day(at, axis.length)
        );
    }
    let mut y = TOP;
    for (path, rows) in paths {
        let below = y;
        let _ = writeln!(
            svg,
            "<text x=\"8\" y=\"{:.1}\"><tspan class=\"path\">{}</tspan>{}</text>",
            y + 13.0,
            escape_xml(path),
            escape_xml(&longest_times_text(rows.values(), &axis))
        );
        let mut rows: Vec<_> = rows.iter().collect();
        rows.sort_by_key(|(node, row)| (row.queued, row.token, *node));
        for (_, row) in rows {
            y += ROW;
            draw_row(&mut svg, &axis, row, y);
        }
        y += ROW;
        let is_seen = |it: &&WatcherGap| is_at_or_below(path, &it.path);
        for cut_off in picture.disconnections.iter().filter(is_seen) {
            let (from, to) = (axis.x_of_time(cut_off.from), axis.x_of_time(cut_off.to.unwrap_or(axis.end())));
            let _ = writeln!(
                svg,
                "<rect class=\"break\" x=\"{from:.1}\" y=\"{below:.1}\" width=\"{:.1}\" height=\"{:.1}\"><title>the watcher was cut off \
                 from {}: what happened meanwhile is not known</title></rect>",
                (to - from).max(1.0),
                y - below,
                humantime::format_rfc3339_millis(cut_off.from),
            );
        }
    }
    svg + "</svg>\n"
}

fn draw_legend(svg: &mut String, axis: &TimeAxis) {
    let from = humantime::format_rfc3339_millis(axis.from);
    let _ = writeln!(
        svg,
        "<text x=\"8\" y=\"40\">from {from}, for {}; times in UTC</text>",
        duration_text_to_millis(axis.length)
    );
    let parts = [
        ("waits", 10.0, "waits to write"),
        ("holds", 10.0, "holds to write"),
        ("waits", 4.0, "waits to read"),
        ("holds", 4.0, "holds to read"),
    ];
    let mut x = 8.0;
    for (class, high, words) in parts {
        let _ = writeln!(
            svg,
            "<rect class=\"{class}\" x=\"{x}\" y=\"{}\" width=\"26\" height=\"{high}\"/>",
            16.0 - high / 2.0
        );
        let _ = writeln!(svg, "<text x=\"{}\" y=\"20\">{words}</text>", x + 32.0);
        x += 130.0;
    }
    let _ = writeln!(
        svg,
        "<path class=\"mark\" d=\"{}\"/><text x=\"{}\" y=\"20\">went without the lock, or with its session</text>",
        cross_path(x, 16.0),
        x + 12.0
    );
}

fn draw_row(svg: &mut String, axis: &TimeAxis, row: &ContenderRow, y: f64) {
    let high = if row.mode == "READ" { 5.0 } else { 12.0 };
    let (middle, end) = (y + ROW / 2.0, row.went.unwrap_or(axis.end()));
    let _ = writeln!(svg, "<g><title>{}</title>", escape_xml(&tooltip(row)));
    let _ = writeln!(svg, "<text x=\"16\" y=\"{:.1}\">{}</text>", middle + 4.0, escape_xml(&row_label(row)));
    let mut bar = |class: &str, from: SystemTime, to: SystemTime| {
        let (x, right) = (axis.x_of_time(from), axis.x_of_time(to));
        let (width, top) = ((right - x).max(1.0), middle - high / 2.0);
        let _ = writeln!(
            svg,
            "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{high}\"/>"
        );
    };
    if row.granted.is_none_or(|granted| granted > row.queued) {
        bar("waits", row.queued, row.granted.unwrap_or(end));
    }
    if let Some(granted) = row.granted {
        bar("holds", granted, end);
    }
    if row.went.is_some() && (row.granted.is_none() || row.went_with > Some(0)) {
        let _ = writeln!(svg, "<path class=\"mark\" d=\"{}\"/>", cross_path(axis.x_of_time(end), middle));
    }
    svg.push_str("</g>\n");
}

/// Returns the data of an SVG path that draws a cross around this point.
fn cross_path(x: f64, y: f64) -> String {
    let (left, right, top, bottom) = (x - 4.0, x + 4.0, y - 4.0, y + 4.0);
    format!("M{left:.1} {top:.1}L{right:.1} {bottom:.1}M{left:.1} {bottom:.1}L{right:.1} {top:.1}")
}

/// Returns the text on the left of a row, cut to [`NAME_MAX`] characters.
fn row_label(row: &ContenderRow) -> String {
    let label = row.label.as_ref().map_or_else(String::new, |label| format!(" \"{label}\""));
    let token = row.token.map_or_else(String::new, |token| format!(" {token}"));
    let room = NAME_MAX.saturating_sub(token.chars().count());
    let name = format!("{} {}{label}", row.mode, row.host);
    match name.chars().count() > room {
        true => name.chars().take(room.saturating_sub(1)).collect::<String>() + "…" + &token,
        false => name + &token,
    }
}

/// Returns the text after a path: the longest wait and the longest hold. Each is left out if it is zero.
fn longest_times_text<'r>(rows: impl Iterator<Item = &'r ContenderRow> + Clone, axis: &TimeAxis) -> String {
    let end = axis.end();
    let waits = rows.clone().map(|row| ("wait", row.waited(end), row.queued, row));
    let holds = rows.filter_map(|row| Some(("hold", row.held(end), row.granted?, row)));
    [waits.max_by_key(|it| it.1), holds.max_by_key(|it| it.1)]
        .into_iter()
        .flatten()
        .filter(|(_, time, ..)| *time > Duration::ZERO)
        .map(|(what, time, since, row)| {
            let time = if time < Duration::from_secs(60) {
                duration_text_to_millis(time)
            } else {
                duration_in_two_units(time)
            };
            format!("; longest {what}: {time} from {}, {}", time_of_day(since, axis.length), row_label(row))
        })
        .collect()
}

/// Returns the text that is shown while the pointer is on a row.
fn tooltip(row: &ContenderRow) -> String {
    let time = |at: SystemTime| humantime::format_rfc3339_millis(at).to_string();
    let between =
        |from: SystemTime, to: SystemTime| duration_text_to_millis(to.duration_since(from).unwrap_or_default());
    let pid = row.pid.map_or_else(String::new, |pid| format!(" pid {pid}"));
    let mut text = format!("{} {}{pid}", row.mode, row.host);
    if let Some(label) = &row.label {
        let _ = write!(text, " \"{label}\"");
    }
    if let Some(token) = row.token {
        let _ = write!(text, ", token {token}");
    }
    let _ = write!(text, "\nqueued {}", time(row.queued));
    match (row.granted, row.went) {
        (Some(granted), went) => {
            let _ = write!(text, "\ngranted {}, after {}", time(granted), between(row.queued, granted));
            if let Some(went) = went {
                let _ = write!(text, "\nwent {}, after holding for {}", time(went), between(granted, went));
            }
        }
        (None, Some(went)) => {
            let _ = write!(text, "\nwent without the lock {}, after {}", time(went), between(row.queued, went));
        }
        (None, None) => {}
    }
    if let Some(others @ 1..) = row.went_with {
        let others = if others == 1 { "the other node".to_owned() } else { format!("{others} other nodes") };
        let _ = write!(text, "\nwent together with {others} of its session, which may have ended");
    }
    text
}

/// Returns the time of day in UTC: to the millisecond in a picture of less than 20 s, to the second in one of less than
/// a day, and otherwise to the minute, with month and day.
fn time_of_day(at: SystemTime, length: Duration) -> String {
    let written = humantime::format_rfc3339_millis(at).to_string();
    let (day, time) = written.trim_end_matches('Z').split_once('T').unwrap_or_default();
    match length.as_secs() {
        0..20 => time.to_owned(),
        20..86_400 => time[..8].to_owned(),
        _ => format!("{} {}", &day[5..], &time[..5]),
    }
}

/// Escapes `&`, `<`, `>` and `"` for XML. Replaces control characters except the newline, and also U+FFFE and U+FFFF,
/// by U+FFFD, because XML forbids most of them.
fn escape_xml(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\n' => escaped.push('\n'),
            control if control.is_control() || ['\u{fffe}', '\u{ffff}'].contains(&control) => escaped.push('\u{fffd}'),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_leave_its_element() {
        assert_eq!(escape_xml("<script>&\"\u{1b}\u{0}\u{ffff}ä"), "&lt;script&gt;&amp;&quot;\u{fffd}\u{fffd}\u{fffd}ä");
    }

    #[test]
    fn the_axis_has_few_round_marks() {
        for seconds in [1, 59, 3_600, 86_400, 10 * 86_400, 33 * 86_400] {
            let axis = TimeAxis {
                from: SystemTime::UNIX_EPOCH + Duration::from_millis(1_234_567),
                length: Duration::from_secs(seconds),
            };
            let marks = axis.mark_times();
            assert!((2..=11).contains(&marks.len()), "{seconds}: {}", marks.len());
            assert!(marks.iter().all(|at| axis.x_of_time(*at) >= NAMES && axis.x_of_time(*at) <= WIDTH), "{seconds}");
        }
    }
}
