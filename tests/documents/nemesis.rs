//! Checks the table of `docs/choosing.md` against the results of `make nemesis` in `docs/nemesis.jsonl`. `make pages`
//! writes the table.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::nemesis_results::{self as results, Round};
use crate::snippets::{WRITE, read, root};

const BEGIN: &str = "<!-- table: nemesis -->\n";
const END: &str = "<!-- end -->";

/// The session timeout of the rounds, in milliseconds.
const TIMEOUT_MS: f64 = 4_000.0;

/// The default number of rounds of `make nemesis`.
const ROUNDS: usize = 20;

fn rounds() -> Vec<Round> {
    results::read(&read(&root().join("docs/nemesis.jsonl")))
}

#[test]
fn the_table_matches_the_results() {
    let file = root().join("docs/choosing.md");
    let page = read(&file);
    let (before, rest) = page.split_once(BEGIN).expect("the table begins");
    let (_, after) = rest.split_once(END).expect("the table ends");
    let made = format!("{before}{BEGIN}{}{END}{after}", results::table(&rounds()));
    if std::env::var_os(WRITE).is_some() && made != page {
        fs::write(&file, &made).expect("writable");
    } else {
        assert_eq!(page, made, "the table differs from the results: run `make pages`");
    }
}

#[test]
fn every_round_exists_and_our_library_passes() {
    results::judge(&rounds(), ROUNDS);
}

#[test]
fn a_falsified_round_is_refused() {
    let is_refused = |fault: &str, falsify: &dyn Fn(&mut Round)| {
        let mut rounds = rounds();
        falsify(rounds.iter_mut().find(|it| it.fault == fault && it.library == results::OURS).expect("it is there"));
        catch_unwind(AssertUnwindSafe(|| results::judge(&rounds, ROUNDS))).is_err()
    };
    assert!(is_refused(results::DELETED, &|round| round.denied_from = None));
    assert!(is_refused(results::DELETED, &|round| round.held_until += 2000.0));
    for fault in [results::BLACK_HOLE, results::PAUSE] {
        assert!(is_refused(fault, &|round| round.signal = None));
        assert!(is_refused(fault, &|round| round.lost = Some(round.end)));
    }
    for fault in [results::CUT, results::BREAK] {
        assert!(!is_refused(fault, &|_| {}));
        assert!(is_refused(fault, &|round| round.lost = Some(1.0)));
        assert!(is_refused(fault, &|round| round.denied_from = Some(1.0)));
    }
    assert!(is_refused(results::BREAK, &|round| (round.lost, round.granted) = (Some(1.0), Some(2.0))));
}

/// `docs/choosing.md` says, as a point against this library, how long before the next grant our holder gives up.
#[test]
fn the_page_says_how_early_our_holder_gives_up() {
    let away = [results::BLACK_HOLE, results::ANSWERS_LOST, results::REQUESTS_LOST, results::CUT_ALONE];
    let rounds = rounds();
    let of_ours = rounds.iter().filter(|it| it.library == results::OURS && away.contains(&&*it.fault));
    let early = Vec::from_iter(of_ours.filter_map(|it| Some((it.granted? - it.lost?) / TIMEOUT_MS)));
    let (least, most) = (early.iter().copied().fold(f64::MAX, f64::min), early.iter().copied().fold(0.0, f64::max));
    let page = read(&root().join("docs/choosing.md"));
    assert_eq!(early.len(), away.len() * ROUNDS);
    assert!(page.contains(&format!("**{least:.1} to {most:.1} T** before")), "{least:.1} to {most:.1}");
}

fn round(granted: Option<f64>, denied_from: Option<f64>, signal: Option<f64>) -> Round {
    Round {
        fault: results::DELETED.to_owned(),
        library: results::OURS.to_owned(),
        round: 0,
        void: 0,
        granted,
        resumed: None,
        first_answer: None,
        held_until: 30.0,
        denied_from,
        signal,
        lost: None,
        end: 1000.0,
    }
}

#[test]
fn a_cell_has_the_median_and_the_worst_overlap() {
    let cell = |rounds: &[Round]| {
        let table = results::table(rounds);
        let row = table.lines().find(|line| line.starts_with("| node deleted")).expect("it has a row");
        row.split(" | ").nth(1).expect("it has a cell").to_owned()
    };
    let beside = |granted| round(Some(granted), Some(31.0), Some(20.0));
    assert_eq!(cell(&[beside(40.0)]), "0, 0, never");
    assert_eq!(cell(&[beside(29.9)]), "0.001, 0, never");
    assert_eq!(cell(&[beside(40.0), beside(10.0), beside(25.0)]), "0.005–0.020, 0–0.010, never");
    assert_eq!(cell(&[beside(40.0), round(Some(10.0), None, None)]), "never, never, never");
    assert_eq!(cell(&[round(None, None, None)]), "kept");
    assert_eq!(cell(&[beside(40.0), round(None, None, None)]), "0, 0, never; kept: 1");
    assert_eq!(cell(&[round(None, Some(31.0), None)]), "-, -, -; lost for nobody: 1");
}
