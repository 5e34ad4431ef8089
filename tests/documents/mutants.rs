//! `mutants.txt`, with which `make mutants` compares the faults that it planted and no test found, is about code that exists.

use std::fs;
use std::path::Path;

/// The function that a fault is in, as cargo-mutants names the fault. A fault in a constant is in none.
fn function(fault: &str) -> Option<&str> {
    let path = match fault.rsplit_once(" in ") {
        Some((_, path)) => path,
        None => fault.strip_prefix("replace ")?.split(" -> ").next()?.split(" with ").next()?,
    };
    path.rsplit("::").next().filter(|name| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'))
}

#[test]
fn each_fault_that_no_test_finds_is_explained_and_in_code_that_exists() {
    assert_eq!(function("replace <impl Display for A>::fmt -> Result with Ok(Default::default())"), Some("fmt"));
    assert_eq!(function("replace match guard a < b with true in Queue<T>::enter"), Some("enter"));
    assert_eq!((function("replace Known::over with ()"), function("replace << with >>")), (Some("over"), None));
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let lines = include_str!("../mutants.txt").lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    for line in lines {
        let (name, reason) = line.split_once(" # ").unwrap_or_else(|| panic!("{line}: no reason"));
        let (file, fault) = name.split_once(": ").unwrap_or_else(|| panic!("{line}: no file"));
        assert!(reason.len() > 20, "{line}: no reason");
        let source = fs::read_to_string(root.join(file)).unwrap_or_else(|error| panic!("{line}: {error}"));
        let Some(function) = function(fault) else { continue };
        let is_there = [format!("fn {function}("), format!("fn {function}<")].iter().any(|it| source.contains(it));
        assert!(is_there, "{line}: there is no `{function}`");
    }
}
