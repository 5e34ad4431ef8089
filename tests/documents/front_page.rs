//! `README.md` is short, and what it says was measured is in the results.

use crate::snippets::{read, root};

/// A newcomer reads the page in five minutes.
const WORDS_MAX: usize = 1_000;

#[test]
fn the_front_page_has_at_most_1000_words() {
    let words = read(&root().join("README.md")).split_whitespace().count();
    assert!(words <= WORDS_MAX, "{words}");
}

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

/// What is counted in these was measured.
const UNITS: [&str; 8] = ["ns", "µs", "ms", "times", "percent", "%", "acquisitions", "round"];

/// The figures with such a unit that come from no results.
fn unmarked(text: &str) -> Vec<String> {
    let mut parts = text.split("<!-- value: ");
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        plain.push_str(part.split_once("<!-- end -->").map_or(part, |(_, after)| after));
    }
    let words: Vec<&str> =
        plain.split_whitespace().map(|word| word.trim_matches(['(', ')', '.', ',', ':', ';'])).collect();
    let of_unit = |pair: &&[&str]| pair[0].starts_with(|c: char| c.is_ascii_digit()) && UNITS.contains(&pair[1]);
    words.windows(2).filter(of_unit).map(|pair| pair.join(" ")).collect()
}

/// `performance_doc` compares what is marked.
#[test]
fn what_a_bullet_of_the_front_page_says_was_measured_is_marked() {
    let page = read(&root().join("README.md"));
    let bullets: Vec<&str> = page.split("\n\n").filter(|part| part.starts_with("- **")).collect();
    assert!(!bullets.is_empty());
    for bullet in bullets {
        assert_eq!(unmarked(bullet), Vec::<String>::new(), "put it between `<!-- value: … -->` and `<!-- end -->`");
    }
}

#[test]
fn a_figure_without_a_marker_is_found() {
    assert_eq!(unmarked("- **Fast.** 2.5 times as fast, (289 ns)."), ["2.5 times", "289 ns"]);
    assert_eq!(unmarked("all hold <!-- value: a b -->32<!-- end --> ms after 10 s"), Vec::<String>::new());
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
