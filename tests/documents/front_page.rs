//! `README.md` is short, and its figures are those of `docs/performance.md` and of the tests.

use std::fs;

use support::page::rows;

use crate::report::{figures, plots, results::Results, scale};
use crate::snippets::{read, root};

/// A newcomer reads the page in five minutes.
const WORDS_MAX: usize = 1_300;

fn page() -> String {
    read(&root().join("README.md"))
}

/// The page in one line, because a figure may stand at the end of one.
fn text() -> String {
    page().split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn the_front_page_has_at_most_1300_words() {
    let words = page().split_whitespace().count();
    assert!(words <= WORDS_MAX, "{words}");
}

#[test]
fn the_figures_of_the_front_page_are_those_that_were_measured() {
    let raw = fs::read_to_string(root().join("docs/performance/results.jsonl")).expect("results");
    let results = Results::read(&raw).expect("results");
    let label = plots::label(&results);
    let value = |name: &str| scale::value(&results, name).expect("it was measured");
    let milliseconds = |case: &str, peer: &str| {
        let of = figures::figure("readers").of;
        let median = results.median(label, case, peer, of).expect("it was measured");
        assert!(median.runs >= 3, "{case} {peer}: a median of {} runs", median.runs);
        figures::whole(median.value / 1e3)
    };
    // The best of the others is the best of all that were measured.
    let rate = |peer: &str| results.median(label, "contend-8", peer, figures::figure("contend").of).map(|it| it.value);
    let best = ["zkclient", "zkclient-drop", "curator", "kazoo"]
        .into_iter()
        .max_by(|a, b| rate(a).partial_cmp(&rate(b)).expect("numbers"));
    assert_eq!(best, Some("zkclient"));
    for sentence in [
        format!(
            "Eight contenders with a session each: {} acquisitions a second. The best of the others (zookeeper-client): {}.",
            value("figure contend-8 ours-apart"),
            value("figure contend-8 zkclient")
        ),
        format!(
            "1,000 readers that wait for a writer all hold {} ms after its release. With Curator: {} ms.",
            milliseconds("readers-1000", "ours-apart"),
            milliseconds("readers-1000", "curator")
        ),
        format!(
            "A read with its release is {:.0} requests; with `keep`, it is none, and takes {} ns.",
            value("requests read ours-apart").parse::<f64>().expect("a number"),
            value("nanoseconds kept-read-1 ours-kept")
        ),
    ] {
        assert!(text().contains(&sentence), "README.md does not say what was measured: {sentence}");
    }
    assert_eq!(value("requests kept-read-1 ours-kept"), "0.00");
}

#[test]
fn the_front_page_counts_the_faults_and_the_lease_as_they_are() {
    let faults = include_str!("../FAULTS.md");
    let is_numbered =
        |line: &&str| line.starts_with("| ") && line[2..].starts_with(|first: char| first.is_ascii_digit());
    let count = faults.lines().filter(is_numbered).count();
    assert!(count >= 80 && text().contains("Tests cause some 80 kinds of faults"), "there are {count}");
    let guide = read(&root().join("docs/guide.md"));
    let default = rows(&guide).into_iter().find(|row| row.len() == 6 && row[0] == "10 s").expect("a row");
    assert!(text().contains(&format!("says \"lost\" after {} at most", default[4])), "{default:?}");
    assert!(read(&root().join("docs/lease.svg")).contains(&format!("{} (5/6)", default[4])));
}
