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

/// Nothing that was measured is left out because it does not look well.
#[test]
fn every_result_is_in_a_table() {
    let page = page();
    let on_page = report::tables_on(&page);
    let results = results();
    let missing: Vec<_> =
        tables::names(&results).into_iter().filter(|name| !on_page.contains(&name.as_str())).collect();
    assert_eq!(missing, Vec::<String>::new());
    for run in results.runs() {
        let name = tables::names(&results).into_iter().find(|name| *name == tables::name_of(run));
        let table = tables::table(&results, &name.expect("each run has a table")).expect("it has results");
        let of_run = |line: &&str| line.contains(report::figures::title(&run.peer));
        assert!(table.lines().any(|line| of_run(&line)), "{run:?}");
    }
}

/// What contenders on one session know of each other must not be taken for what processes can do.
#[test]
fn processes_apart_lead_wherever_several_contend() {
    let results = results();
    let contended = |run: &&report::results::Run| ["contend", "mix", "drain", "readers"].contains(&&*run.workload);
    for run in results.runs().filter(contended) {
        let table = tables::table(&results, &tables::name_of(run)).expect("it has results");
        let rows = table.lines().filter(|line| line.starts_with(&format!("| {} | zk-rwlock", run.case)));
        let drivers: Vec<&str> = rows.map(|line| line.split(" | ").nth(1).unwrap_or_default()).collect();
        assert_eq!(drivers, ["zk-rwlock", "zk-rwlock, one session"], "{}", run.case);
    }
    let median = |peer| results.median(plots::label(&results), "contend-8", peer, |run| run.number("ops_per_s"));
    let apart = report::figures::number(median("ours-apart").expect("it was measured").value);
    let summary = tables::table(&results, &format!("summary, {}", plots::label(&results))).expect("it has results");
    let row = summary.lines().find(|line| line.starts_with("| contend-8 |")).expect("it was measured");
    assert_eq!(row.split(" | ").nth(3), Some(&*format!("**{apart}**")));
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

/// In the section on scale people wrote words: its figures are worked out by the command, or stand in the code.
#[test]
fn the_figures_of_the_section_on_scale_are_made_or_stand_in_the_code() {
    let page = page();
    let (_, section) = page.split_once("\n## Scale past one machine\n").expect("there is such a section");
    let section = section.split("\n## ").next().unwrap_or_default();
    let mut by_hand = report::written_by_hand(section);
    let source = |file: &str| text(&format!("../../src/{file}"));
    for (cited, is_so) in [
        ("T/5", source("session/lease.rs").contains("self.timeout / 5") && scale::HEARTBEAT_SHARE == 0.2),
        ("`5 · S / T`", scale::HEARTBEAT_SHARE == 0.2),
        ("96 KiB", source("zookeeper/session.rs").contains("const WATCHED_BYTES_MAX: usize = 96 * 1024;")),
        ("1,000 nodes", source("session/keep_alive.rs").contains("const CHECKS_PER_HEARTBEAT: usize = 1_000;")),
        ("10 s", source("zookeeper/options.rs").contains("const SESSION_TIMEOUT: Duration = Duration::from_secs(10);")),
        ("USENIX 2010", true),
        ("1 MiB", true),
    ] {
        assert!(is_so, "{cited} is not what the code says");
        assert!(by_hand.contains(cited), "{cited} is not cited any more");
        by_hand = by_hand.replace(cited, "");
    }
    // The points of a list are counted.
    let text_of = |line: &str| line.trim_start_matches(|sign: char| sign.is_ascii_digit()).to_owned();
    let has_figure = |line: &String| line.contains(|sign: char| sign.is_ascii_digit());
    let figures: Vec<String> = by_hand.lines().map(text_of).filter(has_figure).collect();
    assert_eq!(figures, Vec::<String>::new(), "figures that are not worked out");
}

/// The arithmetic on names is about the names that are made.
#[tokio::test]
async fn a_waiter_takes_the_watched_bytes_that_the_page_says() {
    let zk = zk_rwlock::Memory::new();
    let lock = zk_rwlock::RwLock::builder(&zk, "/locks/config").host("web-1").build().expect("valid");
    let guard = lock.write().await.expect("free");
    let twice = 2.0 * guard.path().len() as f64;
    assert_eq!(twice, scale::watched_bytes("/locks/config".len(), "web-1".len()), "{}", guard.path());
    assert!(text("../../src/zookeeper/session.rs").contains("96 * 1024") && scale::WATCHED_BYTES_MAX == 98_304.0);
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
