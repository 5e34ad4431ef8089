//! The figures and the servers on `README.md` are those of the guide, of the catalogue of faults and of `make versions`.

use crate::snippets::{read, root};

/// `guide` compares that table with the lease.
#[test]
fn the_front_page_says_when_a_holder_knows_as_the_guide_does_and_no_more_faults_than_there_are() {
    let page = read(&root().join("README.md")).split_whitespace().collect::<Vec<_>>().join(" ");
    let guide = read(&root().join("docs/guide.md"));
    let row: Vec<&str> = guide.lines().find(|line| line.starts_with("| 10 s |")).expect("a row").split(" | ").collect();
    let known =
        format!("With a session timeout of 10 s, a holder that is cut off says \"lost\" after {} at most.", row[4]);
    assert!(page.contains(&known), "{known}");
    assert!(page.contains("Nobody else is granted the lock before that."));
    let faults = read(&root().join("tests/FAULTS.md"));
    let faults =
        faults.lines().filter(|line| line.starts_with("| ") && line[2..].starts_with(|c: char| c.is_ascii_digit()));
    let said = page.split("Tests cause more than ").nth(1).and_then(|rest| rest.split(' ').next()).expect("a number");
    assert!(said.parse::<usize>().expect("a number") < faults.count(), "{said}");
}

/// What `make versions` runs, as `tests/versions.sh` has it.
#[test]
fn the_front_page_names_the_servers_the_chapters_and_the_exceptions_that_make_versions_has() {
    let page = read(&root().join("README.md"));
    let script = read(&root().join("tests/versions.sh"));
    let between = |begin: &str, end: &str| {
        script.split_once(begin).and_then(|(_, rest)| rest.split_once(end)).expect("it is there").0
    };
    let table =
        page.split("| server | tested by |").nth(1).and_then(|rest| rest.split("\n\n").next()).expect("a table");
    let said = table.replace([',', '|'], " ");
    let mut servers: Vec<&str> = said.split_whitespace().filter(|word| word.starts_with("3.")).collect();
    servers.push("keeper");
    assert_eq!(servers, between("    set -- ", "\n").split(' ').collect::<Vec<_>>());
    let number = |count| ["none", "one", "two", "three", "four", "five", "six", "seven"][count];
    let chapters = between("chapters=(", ")").matches("--test ").count();
    assert!(table.contains(&format!("[{} chapters]", number(chapters))), "{chapters}");
    let exceptions = between("for test in ", "; do").split_whitespace().filter(|word| word.contains("::")).count();
    assert!(table.contains(&format!("[{} checks]", number(exceptions))), "{exceptions}");
}
