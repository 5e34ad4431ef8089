//! Checks the figures and the server versions in `README.md` against the guide, the catalogue of faults and `make
//! versions`.

use crate::snippets::{read, root};

/// `guide.rs` checks the guide's row against the code of the lease.
#[test]
fn the_figures_are_those_of_guide_and_catalogue() {
    let page = read(&root().join("README.md"));
    let guide = read(&root().join("docs/guide.md"));
    let row: Vec<&str> = guide.lines().find(|line| line.starts_with("| 10 s |")).expect("a row").split(" | ").collect();
    assert!(page.contains(&format!("says \"lost\" after {} at most", row[2])), "{}", row[2]);
    let faults = read(&root().join("tests/FAULTS.md"));
    let faults =
        faults.lines().filter(|line| line.starts_with("| ") && line[2..].starts_with(|c: char| c.is_ascii_digit()));
    let said = page.split("more than ").nth(1).and_then(|rest| rest.split(' ').next()).expect("a number");
    assert!(said.parse::<usize>().expect("a number") < faults.count(), "{said}");
}

/// Returns the version numbers in a text, such as `3.9.6`.
fn releases(text: &str) -> Vec<&str> {
    let words = text.split(|c: char| !c.is_ascii_digit() && c != '.').map(|word| word.trim_matches('.'));
    words.filter(|word| word.starts_with("3.") && word.matches('.').count() == 2).collect()
}

fn between<'t>(text: &'t str, begin: &str, end: &str) -> &'t str {
    text.split_once(begin).and_then(|(_, rest)| rest.split_once(end)).unwrap_or_else(|| panic!("no {begin:?}")).0
}

#[test]
fn pages_and_workflow_name_the_tested_servers() {
    let [front, page, workflow, script] =
        ["README.md", "docs/versions.md", ".github/workflows/ci.yml", "tests/versions.sh"]
            .map(|it| read(&root().join(it)));
    let expected = releases(between(&script, "    set -- ", " keeper\n"));
    assert!(expected.len() > 4, "{expected:?}");
    assert_eq!(releases(between(&front, "**Status:**", "\n\n")), expected);
    assert_eq!(releases(between(&workflow, "zookeeper: [", "]")), expected);
    let table = between(&page, "| server | its jars | result |\n", "\n\n");
    let servers: Vec<&str> = table.lines().filter_map(|row| row.split('|').nth(1)).map(str::trim).skip(1).collect();
    assert_eq!(servers.split_last(), Some((&"\"Keeper\"", &expected[..])));
    let number = |count| ["none", "one", "two", "three", "four", "five", "six", "seven", "eight"][count];
    let chapters = between(&script, "chapters=(", ")").matches("--test ").count();
    assert!(page.contains(&format!("{} chapters of the tests", number(chapters))), "{chapters}");
    let exceptions =
        between(&script, "for test in ", "; do").split_whitespace().filter(|word| word.contains("::")).count();
    assert!(table.contains(&format!("but for {} of its checks", number(exceptions))), "{exceptions}");
}
