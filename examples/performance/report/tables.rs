//! The tables of the page, each named by its workload and its server: `drain, 3.9.3 standalone`.

use std::fmt::Write as _;

use super::figures::{self, Figure, bytes_in, bytes_out, figure, is_ours, number, peers, requests, title, whole};
use super::results::{Outcome, Results, Run, in_order_of_appearance};
use super::scale;

/// A median of fewer runs is not in bold.
const BOLD_RUNS: usize = 3;

/// The tables that the results have lines for.
pub(crate) fn names(results: &Results) -> Vec<String> {
    let mut names = Vec::new();
    for label in results.labels() {
        let kinds = in_order_of_appearance(results.runs().filter(|run| run.label == label).map(kind));
        if results.runs().any(|run| run.label == label && is_ours(&run.peer) && is_summed_up(run)) {
            names.push(format!("summary, {label}"));
        }
        names.extend(kinds.into_iter().map(|kind| format!("{kind}, {label}")));
    }
    names
}

/// The table that shows a run.
#[allow(dead_code, reason = "only the test of the page asks for it")]
pub(crate) fn name_of(run: &Run) -> String {
    format!("{}, {}", kind(run), run.label)
}

pub(crate) fn table(results: &Results, name: &str) -> Outcome<String> {
    if let Some(name) = name.strip_prefix("scale: ") {
        return scale::table(results, name);
    }
    let (workload, label) = name.split_once(", ").ok_or_else(|| format!("no table is called {name:?}"))?;
    let of_label: Vec<&Run> = results.runs().filter(|run| run.label == label).collect();
    let chosen = |run: &&&Run| if workload == "summary" { is_summed_up(run) } else { kind(run) == workload };
    let mut cases: Vec<(&str, &str, u64)> = Vec::new();
    for run in of_label.iter().filter(chosen) {
        let case = (run.workload.as_str(), run.case.as_str(), run.n);
        if !cases.contains(&case) {
            cases.push(case);
        }
    }
    if cases.is_empty() {
        return Err(format!("there are no results for the table {name:?}").into());
    }
    let order = [
        "write",
        "read",
        "drain",
        "readers",
        "contend",
        "mix",
        "waiters",
        "kept",
        "keepers",
        "permits",
        "simulated",
        "growth",
        "storm",
    ];
    cases.sort_by_key(|(workload, _, n)| (order.iter().position(|known| known == workload), *n));
    Ok(match workload {
        "summary" => summary(results, label, &cases),
        "waiters" => waiters(results, label, &cases),
        "permits" => permits(results, label, &cases),
        "kept" => side_by_side(results, label, &cases),
        "growth" => growth(results, label),
        "storm" => storms(results, label),
        _ => plain(results, label, &cases),
    })
}

/// Whether the summary has a line for it.
fn is_summed_up(run: &Run) -> bool {
    !["growth", "kept", "keepers", "permits", "simulated", "storm"].contains(&kind(run))
}

/// Reads and writes of one contender are shown together.
fn kind(run: &Run) -> &str {
    match run.workload.as_str() {
        "write" | "read" => "uncontended",
        workload => workload,
    }
}

fn row<const N: usize>(table: &mut String, cells: [String; N]) {
    let _ = writeln!(table, "| {} |", cells.join(" | "));
}

/// How many times the time of `floor` that of `value` is.
fn times(figure: Figure, value: f64, floor: f64) -> f64 {
    if figure.is_rate { floor / value } else { value / floor }
}

/// A figure that stands out, unless it was measured too seldom to be relied on.
fn bold(digits: &str, runs: usize) -> String {
    if runs < BOLD_RUNS { digits.to_owned() } else { format!("**{digits}**") }
}

fn ratio(ratio: f64) -> String {
    if ratio < 0.01 { format!("{ratio:.4}") } else { format!("{ratio:.2}") }
}

/// Every driver in every case.
fn plain(results: &Results, label: &str, cases: &[(&str, &str, u64)]) -> String {
    let unit = figure(cases[0].0).unit;
    let mut table = format!(
        "| case | driver | {unit} | least … most | times raw | requests | bytes in + out | runs |\n\
         |---|---|--:|--:|--:|--:|--:|--:|\n"
    );
    for (workload, case, _) in cases {
        let figure = figure(workload);
        let median = |peer, of| results.median(label, case, peer, of);
        let floor = median("raw", figure.of);
        for peer in peers(results, |run| run.label == label && run.case == *case) {
            let Some(its) = median(peer, figure.of) else { continue };
            let optional = |of, digits: fn(f64) -> String| median(peer, of).map(|median| digits(median.value));
            let bytes = optional(bytes_in, number).zip(optional(bytes_out, number));
            row(
                &mut table,
                [
                    (*case).to_owned(),
                    title(peer).to_owned(),
                    bold(&number(its.value), its.runs),
                    format!("{} … {}", number(its.least), number(its.most)),
                    floor.map_or_else(String::new, |floor| ratio(times(figure, its.value, floor.value))),
                    optional(requests, |value| format!("{value:.3}")).unwrap_or_default(),
                    bytes.map_or_else(String::new, |(taken, given)| format!("{taken} + {given}")),
                    its.runs.to_string(),
                ],
            );
        }
    }
    table
}

/// Ours, as processes apart, beside the floor and the best of the others, by time: a ratio of 2 is twice as slow.
fn summary(results: &Results, label: &str, cases: &[(&str, &str, u64)]) -> String {
    let mut table = "| case | figure | raw | ours | our time / raw's | best of the others | its time / ours | requests: raw, ours, its |\n\
                     |---|---|--:|--:|--:|---|--:|--:|\n"
        .to_owned();
    for (workload, case, _) in cases {
        let figure = figure(workload);
        let of_runs = |peer: &str| results.median(label, case, peer, figure.of);
        let median = |peer: &str| of_runs(peer).map(|median| median.value);
        let there = peers(results, |run| run.label == label && run.case == *case);
        let Some(ours) = ["ours-apart", "ours-drop"].into_iter().find(|peer| there.contains(peer)) else { continue };
        let Some(of_ours) = of_runs(ours) else { continue };
        let floor = median("raw");
        let others = there.iter().filter(|peer| **peer != "raw" && !is_ours(peer));
        let others = others.filter_map(|peer| Some((*peer, median(peer)?)));
        let best = others.min_by(|(_, one), (_, other)| times(figure, *one, *other).total_cmp(&1.0));
        let asked = ["raw", ours].into_iter().chain(best.map(|(peer, _)| peer));
        let asked = asked.filter_map(|peer| results.median(label, case, peer, requests));
        let asked: Vec<String> = asked.map(|median| format!("{:.2}", median.value)).collect();
        row(
            &mut table,
            [
                (*case).to_owned(),
                figure.unit.to_owned(),
                floor.map_or_else(String::new, number),
                bold(&number(of_ours.value), of_ours.runs),
                floor.map_or_else(String::new, |floor| ratio(times(figure, of_ours.value, floor))),
                best.map_or_else(String::new, |(peer, value)| format!("{}: {}", title(peer), number(value))),
                best.map_or_else(String::new, |(_, value)| ratio(times(figure, value, of_ours.value))),
                asked.join(", "),
            ],
        );
    }
    table
}

/// A line for each case, and a column for each driver.
fn side_by_side(results: &Results, label: &str, cases: &[(&str, &str, u64)]) -> String {
    let figure = figure(cases[0].0);
    let there = peers(results, |run| run.label == label && cases.iter().any(|(_, case, _)| run.case == *case));
    let heads: String = there.iter().map(|peer| format!(" {} |", title(peer))).collect();
    let mut table = format!("| {} |{heads}\n|---|{}\n", figure.unit, "--:|".repeat(there.len()));
    for (_, case, _) in cases {
        let cell = |peer: &&str| match results.median(label, case, peer, figure.of) {
            Some(median) => format!(" {} |", bold(&number(median.value), median.runs)),
            None => "  |".to_owned(),
        };
        let _ = writeln!(table, "| {case} |{}", there.iter().map(cell).collect::<String>());
    }
    table
}

/// What queueing up costs, and the memory of the waiters.
fn waiters(results: &Results, label: &str, cases: &[(&str, &str, u64)]) -> String {
    let mut table =
        "| waiters | driver | bytes of memory a waiter | least … most | µs a contender | requests | bytes in + out | \
                     runs |\n|--:|---|--:|--:|--:|--:|--:|--:|\n"
            .to_owned();
    for (workload, case, n) in cases {
        for peer in peers(results, |run| run.label == label && run.case == *case) {
            let median = |of| results.median(label, case, peer, of);
            let Some(memory) = median(figures::memory) else { continue };
            let optional = |of, digits: fn(f64) -> String| median(of).map(|median| digits(median.value));
            let bytes = optional(bytes_in, number).zip(optional(bytes_out, number));
            row(
                &mut table,
                [
                    whole(*n as f64),
                    title(peer).to_owned(),
                    bold(&whole(memory.value), memory.runs),
                    format!("{} … {}", whole(memory.least), whole(memory.most)),
                    optional(figure(workload).of, number).unwrap_or_default(),
                    optional(requests, |value| format!("{value:.3}")).unwrap_or_default(),
                    bytes.map_or_else(String::new, |(taken, given)| format!("{taken} + {given}")),
                    memory.runs.to_string(),
                ],
            );
        }
    }
    table
}

/// The grants of a semaphore's permits, beside ours.
fn permits(results: &Results, label: &str, cases: &[(&str, &str, u64)]) -> String {
    let mut table =
        "| case | driver | grants a second | least … most | ours, in its | held at once, at most | runs |\n\
                     |---|---|--:|--:|--:|--:|--:|\n"
            .to_owned();
    for (workload, case, _) in cases {
        let median = |peer, of| results.median(label, case, peer, of);
        let grants = figure(workload).of;
        let ours = median("ours-apart", grants);
        for peer in peers(results, |run| run.label == label && run.case == *case) {
            let (Some(its), Some(held)) = (median(peer, grants), median(peer, |run| run.extra("most"))) else {
                continue;
            };
            row(
                &mut table,
                [
                    (*case).to_owned(),
                    title(peer).to_owned(),
                    bold(&number(its.value), its.runs),
                    format!("{} … {}", number(its.least), number(its.most)),
                    ours.map_or_else(String::new, |ours| ratio(ours.value / its.value)),
                    whole(held.most),
                    its.runs.to_string(),
                ],
            );
        }
    }
    table
}

/// What each of so many costs, in a line for each case and a column for each number.
fn growth(results: &Results, label: &str) -> String {
    let runs: Vec<&Run> = results.runs().filter(|run| run.label == label && kind(run) == "growth").collect();
    let mut sizes: Vec<u64> = runs.iter().map(|run| run.n).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let heads: String = sizes.iter().map(|n| format!(" {} |", whole(*n as f64))).collect();
    let mut table = format!("| {} | each |{heads}\n|---|---|{}\n", title("ours"), "--:|".repeat(sizes.len()));
    for case in in_order_of_appearance(runs.iter().map(|run| run.case.as_str())) {
        for (unit, name) in [("µs", "us_each"), ("bytes", "bytes_each")] {
            let digits = if unit == "µs" { number } else { whole };
            let of = |n: &u64| runs.iter().find(|run| run.case == case && run.n == *n)?.extra(name);
            if sizes.iter().any(|n| of(n).is_some()) {
                let cells: String =
                    sizes.iter().map(|n| format!(" {} |", of(n).map_or_else(String::new, digits))).collect();
                let _ = writeln!(table, "| {case} | {unit} |{cells}");
            }
        }
    }
    table
}

/// What an ensemble is asked when a whole fleet comes back.
fn storms(results: &Results, label: &str) -> String {
    let mut table =
        "| zk-rwlock, its fleet: what befalls it | contenders | requests a second before | in the busiest second | sessions and places among them \
                     | creates under way | longest wait | all are back after | locks lost elsewhere |\n\
                     |---|--:|--:|--:|--:|--:|--:|--:|--:|\n"
            .to_owned();
    for run in results.runs().filter(|run| run.label == label && kind(run) == "storm") {
        let of = |name| run.extra(name).unwrap_or_default();
        let time = |name| match of(name) {
            short if short < 1.0 => format!("{} ms", whole(short * 1_000.0)),
            long => format!("{} s", number(long)),
        };
        row(
            &mut table,
            [
                run.case.clone(),
                whole(run.n as f64),
                whole(of("before_per_s")),
                whole(of("peak_per_s")),
                whole(of("comebacks_per_s")),
                whole(of("creates_under_way")),
                time("longest_wait_s"),
                time("back_after_s"),
                whole(of("lost_elsewhere")),
            ],
        );
    }
    table
}
