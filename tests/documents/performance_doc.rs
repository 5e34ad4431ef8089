//! `docs/performance.md` shows what was measured: its tables, plots and figures are made from the raw results beside it.

use std::fs;
use std::path::PathBuf;

use crate::report::results::Results;
use crate::report::{self, plots, scale, tables};

const AGAIN: &str = "it is not what the results say: run `make figures`";

fn directory() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/performance")
}

fn text(name: &str) -> String {
    let file = directory().join(name);
    fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

fn page() -> String {
    text("../performance.md")
}

fn results() -> Results {
    Results::read(&text("results.jsonl")).expect("every line is the result of a run without errors")
}

#[test]
fn the_page_says_what_was_measured() {
    let page = page();
    let filled = report::fill(&page, &results()).expect("all tables and values have results");
    for (shown, made) in page.lines().zip(filled.lines()) {
        assert_eq!(shown, made, "{AGAIN}");
    }
    assert_eq!(page, filled, "{AGAIN}");
    // Markdown would take the whole line for HTML.
    assert!(!page.contains("\n<!-- value"), "a value must not begin a line");
}

#[test]
fn the_plots_show_what_was_measured_and_each_is_on_the_page() {
    let page = page();
    let made = plots::svgs(&results());
    for (file, svg) in &made {
        assert_eq!(&text(file), svg, "{file}: {AGAIN}");
        assert!(page.contains(&format!("](performance/{file})")), "{file} is not shown");
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{file}");
    }
    let mut drawn: Vec<_> = made.iter().map(|(file, _)| (*file).to_owned()).collect();
    let files = fs::read_dir(directory()).expect("it is a directory").map(|file| file.expect("readable").file_name());
    let mut there: Vec<_> = files.map(|file| file.into_string().expect("a name in ASCII")).collect();
    there.retain(|file| file != "results.jsonl");
    drawn.sort();
    there.sort();
    assert_eq!(there, drawn);
}

/// The workloads whose figures stand in sentences.
const IN_SENTENCES: [&str; 2] = ["keepers", "simulated"];

/// Nothing that was measured is left out because it does not look well.
#[test]
fn every_case_that_was_measured_is_in_a_table_a_plot_or_a_sentence() {
    let page = page();
    let on_page = report::tables_on(&page);
    let results = results();
    let label = plots::label(&results);
    let summary = format!("summary, {label}");
    assert!(on_page.contains(&&*summary));
    let summary = tables::table(&results, &summary).expect("it has results");
    for run in results.runs() {
        let is_shown = on_page.contains(&&*tables::name_of(run))
            || summary.contains(&format!("| {} |", run.case))
            || run.label == label && (plots::is_drawn(&run.workload) || IN_SENTENCES.contains(&&*run.workload));
        assert!(is_shown, "{run:?}");
    }
}

/// As `make performance` writes them.
#[test]
fn all_tables_can_be_made_without_a_page() {
    let all = report::every_table(&results()).expect("each has results");
    for name in tables::names(&results()) {
        assert!(all.contains(&format!("## {name}\n\n| ")), "{name}");
    }
}

#[test]
fn a_marker_that_means_nothing_is_an_error() {
    let results = results();
    for page in [
        "<!-- table: drain, nowhere --><!-- end -->",
        "<!-- value: nothing --><!-- end -->",
        "<!-- value: raw writes --> and no end",
    ] {
        assert!(report::fill(page, &results).is_err(), "{page}");
    }
    assert_eq!(report::fill("<!-- a remark -->", &results).expect("no marker"), "<!-- a remark -->");
}

/// The arithmetic on names is about the names that are made.
#[tokio::test]
async fn a_waiter_takes_the_watched_bytes_that_the_page_says() {
    let zk = zk_rwlock::Memory::new();
    let lock = zk_rwlock::RwLock::builder(&zk, "/locks/config").host("web-1").build().expect("valid");
    let guard = lock.write().await.expect("free");
    let twice = 2.0 * guard.path().len() as f64;
    assert_eq!(twice, scale::watched_bytes("/locks/config".len(), "web-1".len()), "{}", guard.path());
}

/// A result with errors must not get into a median.
#[test]
fn a_run_that_failed_is_no_result() {
    let run = |rest: &str| format!(r#"{{"label":"l","case":"write","peer":"ours","workload":"write","n":1{rest}}}"#);
    assert!(Results::read(&run(r#","errors":0,"p50_us":5.0"#)).is_ok());
    for failed in [r#","errors":1,"p50_us":5.0"#, r#","failed":"exit 1""#, ""] {
        assert!(Results::read(&run(failed)).is_err(), "{failed}");
    }
    let unsupported = Results::read(&run(r#","unsupported":true"#)).expect("a peer that cannot do it is no error");
    assert_eq!(unsupported.runs().count(), 0);
}

#[test]
fn medians_lie_in_the_middle() {
    let run = |peer: &str, p50: f64| {
        format!(r#"{{"label":"l, big","case":"c","peer":"{peer}","workload":"write","n":1,"errors":0,"p50_us":{p50}}}"#)
    };
    let lines = [run("odd", 9.0), run("odd", 1.0), run("odd", 2.0), run("even", 1.0), run("even", 4.0)];
    let results = Results::read(&lines.join("\n")).expect("they are results");
    let of = |peer| results.median("l", "c", peer, |run| run.number("p50_us")).expect("there are runs");
    let (odd, even) = (of("odd"), of("even"));
    assert_eq!((odd.value, odd.least, odd.most, odd.runs), (2.0, 1.0, 9.0, 3));
    assert_eq!((even.value, even.runs), (2.5, 2));
    assert!(results.median("l", "c", "nobody", |run| run.number("p50_us")).is_none());
}
