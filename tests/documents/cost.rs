//! Checks that the table of `docs/cost.md` has the numbers to which `tests/session/cost.rs` holds each reconnect.

use support::cost::{BEHIND_ONE_SYNC, ROWS, SYNC};
use support::page::rows;

const PAGE: &str = include_str!("../../docs/cost.md");

#[test]
fn the_page_has_the_costs_that_are_checked() {
    let section = PAGE.split_once("\n## After a reconnect\n").expect("the page has it").1;
    let section = section.split("\n## ").next().expect("it is there");
    let shown: Vec<_> = rows(section).into_iter().map(|row| row.join(" | ")).collect();
    let checked = ROWS.map(|row| format!("{} | {} | {}", row.of, row.at_once, row.in_the_minute));
    assert_eq!(shown, checked);
    assert!(SYNC.of.starts_with(&BEHIND_ONE_SYNC.to_string()), "{SYNC:?}");
    assert!(section.contains(&format!("at most {BEHIND_ONE_SYNC} directories at a time")));
}
