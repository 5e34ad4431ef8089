//! Checks that the tables, plots and figures of `docs/performance.md` are made from the raw results in
//! `docs/performance/`.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::Ordering;

use support::hindered::Hindered;
use zk_rwlock::{Memory, RwLock};

use crate::report::results::{Results, of_one_run};
use crate::report::{self, plots, scale, tables};
use crate::snippets::{files, read, root};

const AGAIN: &str = "it differs from the results: run `make figures`";

const PAGE: &str = "../performance.md";

fn directory() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/performance")
}

fn text(name: &str) -> String {
    let file = directory().join(name);
    fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

fn results() -> Results {
    let read = Results::read(&text("results.jsonl"), &text("growth.jsonl"), &text("storms.jsonl"));
    read.expect("every line is a result, and each file of one run")
}

#[test]
fn the_figures_are_those_of_the_results() {
    let results = results();
    for file in files("docs", "md").into_iter().chain([root().join("README.md")]) {
        let (name, page) = (file.display(), read(&file));
        // `docs/choosing.md` has no marks of single values, and `nemesis.rs` checks its table.
        if !page.contains("<!-- value: ") {
            continue;
        }
        let filled = report::fill(&page, &results).expect("all tables and values have results");
        for (shown, made) in page.lines().zip(filled.lines()) {
            assert_eq!(shown, made, "{name}: {AGAIN}");
        }
        assert_eq!(page, filled, "{name}: {AGAIN}");
        // If a line begins with a comment, Markdown treats the whole line as HTML.
        assert!(!page.contains("\n<!-- value"), "{name}: a value must not begin a line");
    }
}

#[test]
fn the_front_page_has_its_table() {
    let front = read(&root().join("README.md"));
    assert!(front.contains("\n<!-- table: front -->\n") && front.contains("<!-- value: "));
}

#[test]
fn the_plots_show_the_results() {
    let page = text(PAGE);
    let made = plots::svgs(&results());
    for (file, svg) in &made {
        assert_eq!(&text(file), svg, "{file}: {AGAIN}");
        assert!(page.contains(&format!("](performance/{file})")), "{file} is not shown");
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{file}");
    }
    let mut drawn: Vec<_> = made.iter().map(|(file, _)| (*file).to_owned()).collect();
    let files = fs::read_dir(directory()).expect("it is a directory").map(|file| file.expect("readable").file_name());
    let mut there: Vec<_> = files.map(|file| file.into_string().expect("a name in ASCII")).collect();
    there.retain(|file| !file.ends_with(".jsonl"));
    drawn.sort();
    there.sort();
    assert_eq!(there, drawn);
}

/// Every result in the directory must be in a table, however bad it is.
#[test]
fn every_case_that_was_measured_is_in_a_table() {
    let page = text(PAGE);
    let on_page = report::tables_on(&page);
    for line in &results().compared {
        assert!(on_page.iter().any(|name| tables::shows(name, line)), "{line:?}");
    }
    assert!(["growth", "storms"].iter().all(|name| on_page.contains(name)), "{on_page:?}");
}

/// `make performance` writes the tables in this way, before a page exists.
#[test]
fn all_tables_can_be_made_without_a_page() {
    let all = report::every_table(&results());
    for name in tables::NAMES {
        assert!(all.contains(&format!("## {name}\n\n| ")), "{name}");
    }
}

#[test]
fn an_unknown_marker_is_an_error() {
    let results = results();
    for page in [
        "<!-- table: nothing --><!-- end -->",
        "<!-- value: nothing --><!-- end -->",
        "<!-- value: trips write nobody --><!-- end -->",
        "<!-- value: trips write ours-apart / nobody --><!-- end -->",
        "<!-- value: planned --> and no end",
    ] {
        assert!(report::fill(page, &results).is_err(), "{page}");
    }
    assert_eq!(report::fill("<!-- a remark -->", &results).expect("no marker"), "<!-- a remark -->");
}

/// Checks the formula by which the page calculates the bytes of own paths against the bytes that an acquisition
/// reserves.
#[support::judged]
async fn a_waiter_reserves_the_stated_bytes() {
    let (zk, reserved) = Hindered::noting(&Memory::new());
    let lock = RwLock::builder(&zk, "/locks/config").host("web-1").build().expect("valid");
    let _held = lock.write().await.expect("free");
    let reserved = reserved.load(Ordering::Relaxed);
    assert_eq!(reserved, scale::own_bytes("/locks/config".len(), "web-1".len()));
}

/// All results must come from one run, because the machine may differ between two runs.
#[test]
fn lines_of_two_runs_are_refused() {
    let line = |run: &str| format!(r#"{{"run":"{run}","case":"write"}}"#);
    let (one, other) = (line("2026-11-24"), line("2026-11-25"));
    assert_eq!(of_one_run(&[&*one, &one].join("\n")).expect("one run").len(), 2);
    for refused in
        [[&*one, &other].join("\n"), [&*one, r#"{"case":"write"}"#].join("\n"), line(""), "no line".to_owned()]
    {
        assert!(of_one_run(&refused).is_err(), "{refused}");
    }
}

#[test]
fn medians_lie_in_the_middle() {
    let line = |peer: &str, seconds: f64| {
        format!(r#"{{"run":"r","place":"link","case":"c","peer":"{peer}","ops":2,"seconds":{seconds}}}"#)
    };
    let lines = [line("odd", 9.0), line("odd", 1.0), line("odd", 2.0), line("even", 1.0), line("even", 4.0)];
    let results = Results::read(&lines.join("\n"), "", "").expect("they are results");
    let of = |peer| results.median(["link", "c", peer], |line| line.number("seconds")).expect("there are lines");
    let (odd, even) = (of("odd"), of("even"));
    assert_eq!((odd.value, odd.least, odd.most, even.value), (2.0, 1.0, 9.0, 2.5));
    assert!(results.median(["link", "c", "nobody"], |line| line.number("seconds")).is_none());
    // The median of the first peer is 2 s for two acquisitions. At 20 ms a round trip, an acquisition takes 50 round
    // trips.
    assert_eq!(scale::value(&results, "trips c odd").expect("a value"), "50.00");
    assert_eq!(scale::value(&results, "trips c even / odd").expect("a value"), "1.25");
}

#[test]
fn quadratic_growth_has_the_exponent_two() {
    let square = [1.0, 10.0, 100.0].map(|n| (n, 3.0 * n * n));
    assert_eq!(format!("{:.2}", tables::exponent(&square)), "2.00");
    let each_as_much = [1.0, 10.0, 1_000.0].map(|n| (n, 7.0 * n));
    assert_eq!(format!("{:.2}", tables::exponent(&each_as_much)), "1.00");
}
