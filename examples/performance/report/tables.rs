//! Makes the tables of `docs/performance.md` and of `README.md`.

use std::fmt::Write as _;

use super::figures::{Figure, figure, number, peers, title, whole};
use super::results::{Line, Outcome, Results, in_order_of_appearance};

/// The names of all tables, except that of `README.md`.
pub(crate) const NAMES: [&str; 10] =
    ["trips", "processor", "second", "requests", "bytes", "ensemble", "ensemble-processor", "kept", "growth", "storms"];

/// The rows of the table in `README.md`: the title and the name of the case.
const FRONT: [(&str, &str); 5] = [
    ("take the write lock, and release it", "write"),
    ("pass the lock on, while 50 writers wait", "drain-50"),
    ("give the lock to 200 waiting readers", "readers-200"),
    ("take it and release it, while 7 others do", "contend-8"),
    ("write, while 100 sessions keep read locks", "keepers-100"),
];

/// Returns whether the table shows this measurement.
pub(crate) fn shows(name: &str, line: &Line) -> bool {
    let is_kept = line.text("case").starts_with("kept-");
    match name {
        "kept" => is_kept,
        // The cases that empty a whole queue are shown in plots instead.
        "second" if ["drain", "readers"].contains(&line.text("kind")) => false,
        name => !is_kept && figure(name).is_some_and(|figure| line.text("place") == figure.place),
    }
}

pub(crate) fn table(results: &Results, name: &str) -> Outcome<String> {
    let table = match (name, figure(if name == "kept" { "second" } else { name })) {
        ("front", _) => front(results, figure("trips").ok_or("there are round trips")?),
        ("growth", _) => growth(results),
        ("storms", _) => storms(results),
        (_, Some(figure)) => side_by_side(results, name, figure),
        _ => return Err(format!("no table is called {name:?}").into()),
    };
    if table.lines().count() < 3 {
        Err(format!("there are no results for the table {name:?}").into())
    } else {
        Ok(table)
    }
}

/// Returns a table with a row for each case and a column for each peer.
fn side_by_side(results: &Results, name: &str, figure: Figure) -> String {
    let there = peers(results, |line| shows(name, line));
    let heads: String = there.iter().map(|peer| format!(" {} |", title(peer))).collect();
    let mut table = format!("| {} |{heads}\n|---|{}\n", figure.unit, "--:|".repeat(there.len()));
    let cases = results.compared.iter().filter(|line| shows(name, line)).map(|line| line.text("case"));
    for case in in_order_of_appearance(cases) {
        let cell = |peer: &&str| {
            let median = figure.median(results, case, peer);
            let digits = median.map_or_else(String::new, |value| figure.written(value));
            // The column of zk-rwlock is bold.
            if *peer == "ours-apart" && median.is_some() { format!(" **{digits}** |") } else { format!(" {digits} |") }
        };
        let _ = writeln!(table, "| {case} |{}", there.iter().map(cell).collect::<String>());
    }
    table
}

fn front(results: &Results, trips: Figure) -> String {
    let columns = [&["ours-apart", "ours-kept-apart"][..], &["zookeeper-client"], &["curator"], &["kazoo"]];
    let heads: String = columns.iter().map(|peers| format!(" {} |", title(peers[0]))).collect();
    let mut table = format!("| {} |{heads}\n|---|--:|--:|--:|--:|\n", trips.unit);
    for (what, case) in FRONT {
        let cell = |peers: &&[&str]| peers.iter().find_map(|peer| trips.median(results, case, peer));
        let cells =
            columns.iter().map(cell).map(|median| median.map_or_else(|| "-".to_owned(), |value| trips.written(value)));
        let _ = writeln!(table, "| {what} | {} |", cells.collect::<Vec<_>>().join(" | "));
    }
    table
}

/// Returns the exponent with which `y` grows in `x`: the slope of log y over log x, by least squares.
pub(crate) fn exponent(points: &[(f64, f64)]) -> f64 {
    let logarithms = points.iter().map(|(x, y)| (x.ln(), y.ln()));
    let mean = |of: fn((f64, f64)) -> f64| logarithms.clone().map(of).sum::<f64>() / points.len() as f64;
    let (x, y, xx, xy) = (mean(|(x, _)| x), mean(|(_, y)| y), mean(|(x, _)| x * x), mean(|(x, y)| x * y));
    (xy - x * y) / (xx - x * x)
}

/// Returns a table of the cost per item, with a row for each unit in each case and a column for each number of items.
fn growth(results: &Results) -> String {
    let lines = &results.growth;
    let mut sizes: Vec<u64> = lines.iter().filter_map(|line| Some(line.number("n")? as u64)).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let heads: String = sizes.iter().map(|n| format!(" {} |", whole(*n as f64))).collect();
    let columns = "--:|".repeat(sizes.len() + 1);
    let mut table = format!("| zk-rwlock | each |{heads} exponent |\n|---|---|{columns}\n");
    for case in in_order_of_appearance(lines.iter().map(|line| line.text("case"))) {
        for (unit, name) in [("µs", "us_each"), ("bytes", "bytes_each"), ("seconds for all", "seconds")] {
            let digits = if unit == "bytes" { whole } else { number };
            let is = |line: &&Line, n: u64| line.text("case") == case && line.number("n") == Some(n as f64);
            let of = |n: &u64| lines.iter().find(|line| is(line, *n))?.number(name);
            if sizes.iter().any(|n| of(n).is_some()) {
                let cells: String =
                    sizes.iter().map(|n| format!(" {} |", of(n).map_or_else(String::new, digits))).collect();
                let times = |n: u64| if name == "seconds" { 1.0 } else { n as f64 };
                let of_all = sizes.iter().filter_map(|n| Some((*n as f64, times(*n) * of(n)?)));
                let _ = writeln!(table, "| {case} | {unit} |{cells} {:.2} |", exponent(&of_all.collect::<Vec<_>>()));
            }
        }
    }
    table
}

/// Returns a table of the load on an ensemble when a whole fleet reconnects.
fn storms(results: &Results) -> String {
    let mut table =
        "| what befalls the fleet | requests a second before | in the busiest second | longest wait | all are back after | locks lost elsewhere |\n\
                     |---|--:|--:|--:|--:|--:|\n"
            .to_owned();
    for line in &results.storms {
        let of = |name| line.number(name).unwrap_or_default();
        let count = |name| whole(of(name));
        let time = |name| match of(name) {
            short if short < 1.0 => format!("{} ms", whole(short * 1_000.0)),
            long => format!("{} s", number(long)),
        };
        let cells = [count("before_per_s"), count("peak_per_s"), time("longest_wait_s"), time("back_after_s")];
        let _ = writeln!(table, "| {} | {} | {} |", line.text("case"), cells.join(" | "), count("lost_elsewhere"));
    }
    table
}
