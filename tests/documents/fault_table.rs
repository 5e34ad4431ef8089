//! `FAULTS.md` names tests that exist, and misses no fault.

use std::fs;
use std::path::Path;

/// Every `file::test` in backticks; commands and types are spelt otherwise.
pub(super) fn named(table: &str) -> Vec<&str> {
    let of_tests = |name: &&str| {
        name.contains("::") && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "_:".contains(c))
    };
    table.split('`').skip(1).step_by(2).filter(of_tests).collect()
}

/// Whether `lock::faults::some_test` is a test in `tests/lock/faults.rs`, and so on, and `threads::locks::some_test` one in
/// `threads/locks.rs`.
pub(super) fn exists(name: &str) -> bool {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let Some((module, test)) = name.rsplit_once("::") else { return false };
    let file = format!("{}.rs", module.replace("::", "/"));
    [root.join(&file), root.join("../proptests").join(&file), root.join("..").join(&file)]
        .iter()
        .filter_map(|path| fs::read_to_string(path).ok())
        .any(|source| [format!("fn {test}("), format!("fn {test}<")].iter().any(|it| source.contains(it)))
}

#[test]
fn every_fault_of_the_table_has_a_test_that_exists() {
    let table = include_str!("../FAULTS.md");
    let missing: Vec<_> = named(table).into_iter().filter(|name| !exists(name)).collect();
    assert_eq!(missing, Vec::<&str>::new());
    assert!(!exists("lock::faults::there_is_no_such_test"));
}

#[test]
fn the_catalogue_is_numbered_and_names_a_test_for_each_fault() {
    let table = include_str!("../FAULTS.md");
    let rows: Vec<&str> =
        table.lines().filter(|line| line.starts_with("| ") && line.matches('|').count() == 7).collect();
    let rows = rows.iter().filter(|row| row[2..].starts_with(|first: char| first.is_ascii_digit()));
    for (number, row) in (1..).zip(rows.clone()) {
        assert!(row.starts_with(&format!("| {number} ")), "{row}");
        assert!(!named(row).is_empty(), "{row}");
    }
    assert!(rows.count() >= 62);
}
