//! Checks that the tests named in `FAULTS.md` and `planted.txt` exist, that the faults in `FAULTS.md` are numbered without
//! gaps, and that each fault says where it was seen.

use std::fs;
use std::path::Path;

/// Returns every `file::test` in backticks. Commands and types in backticks have another form.
pub(super) fn named(table: &str) -> Vec<&str> {
    let of_tests = |name: &&str| {
        name.contains("::") && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "_:".contains(c))
    };
    table.split('`').skip(1).step_by(2).filter(of_tests).collect()
}

/// Returns whether the test exists. `lock::faults::NAME` is in `tests/lock/faults.rs`, `threads::locks::NAME` in
/// `threads/locks.rs`, and `recipes::shared::codec::tests::NAME` is a unit test in `src/recipes/shared/codec.rs`. Unit
/// tests of the command are in `zklock/src`.
pub(super) fn exists(name: &str) -> bool {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let Some((module, test)) = name.rsplit_once("::") else { return false };
    let file = format!("{}.rs", module.replace("::", "/"));
    let beside = file.strip_suffix("/tests.rs").map(|beside| format!("{beside}.rs"));
    // The file of a folder's own code.
    let within = file.strip_suffix("/tests.rs").map(|folder| format!("{folder}/mod.rs"));
    let units = beside.iter().chain(&within).flat_map(|beside| [&file, beside]);
    let units = units.flat_map(|path| ["../src", "../zklock/src"].map(|sources| root.join(sources).join(path)));
    let main = format!("{}/main.rs", file.trim_end_matches(".rs"));
    let tests = [".", "../zklock/tests", "../proptests", ".."].map(|tests| root.join(tests));
    tests
        .iter()
        .flat_map(|tests| [tests.join(&file), tests.join(&main)])
        .chain(units)
        .filter_map(|path| fs::read_to_string(path).ok())
        .any(|source| [format!("fn {test}("), format!("fn {test}<")].iter().any(|it| source.contains(it)))
}

#[test]
fn every_test_in_the_catalogue_exists() {
    let table = include_str!("../FAULTS.md");
    let missing: Vec<_> = named(table).into_iter().filter(|name| !exists(name)).collect();
    assert_eq!(missing, Vec::<&str>::new());
    assert!(!exists("lock::faults::there_is_no_such_test"));
}

/// A line of `planted.txt` is one fault that was planted in the code. The third cell names the tests that find the
/// fault, as `chapter file::test`, `unit NAME` or `shuttle NAME`. If no test finds the fault, the cell says `lives` and
/// the fourth gives the reason.
#[test]
fn planted_faults_name_code_and_tests_that_exist() {
    for line in include_str!("../planted.txt").lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let cells: Vec<&str> = line.split(" | ").collect();
        let is_tried_no_more = cells[2] == "lives" || cells[2].ends_with("the line is gone");
        assert_eq!(cells.len(), if is_tried_no_more { 4 } else { 5 }, "{line}");
        assert!(cells.iter().all(|cell| cell.chars().any(char::is_alphanumeric)), "a cell is empty: {line}");
        let (file, function) = cells[1].split_once("::").expect(line);
        // Most are in `src`. Others are named from the top of the repository.
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let source = fs::read_to_string(root.join("src").join(file)).or_else(|_| fs::read_to_string(root.join(file)));
        let source = source.unwrap_or_else(|error| panic!("{file}: {error}"));
        let forms = [format!("fn {function}("), format!("fn {function}<"), format!("\n{function}() {{")];
        assert!(forms.iter().any(|form| source.contains(form)), "{line}");
        let words: Vec<&str> = cells[2].split(' ').collect();
        for it in words.windows(2).filter(|it| it[1].contains("::")) {
            let is_whole = ["unit", "shuttle"].contains(&it[0]);
            let name = if is_whole { it[1].to_owned() } else { it.join("::") };
            assert!(exists(name.trim_end_matches(',')), "{name}");
        }
    }
}

#[test]
fn each_fault_has_its_number_and_a_test() {
    let table = include_str!("../FAULTS.md");
    let rows: Vec<&str> =
        table.lines().filter(|line| line.starts_with("| ") && line.matches('|').count() == 8).collect();
    let rows = rows.iter().filter(|row| row[2..].starts_with(|first: char| first.is_ascii_digit()));
    for (number, row) in (1..).zip(rows.clone()) {
        assert!(row.starts_with(&format!("| {number} ")), "{row}");
        assert!(!named(row).is_empty(), "{row}");
    }
    assert!(rows.count() >= 62);
}

/// Returns whether the text is one of the three words for where a fault was seen. `field` needs the number of a report.
fn says_where(seen: &str) -> bool {
    let reports = seen.strip_prefix("field: ").unwrap_or_default();
    ["server", "paper"].contains(&seen) || reports.contains(|c: char| c.is_ascii_digit())
}

#[test]
fn each_fault_says_where_it_was_seen() {
    let (_, tables) = include_str!("../FAULTS.md").split_once("\n## Catalogue\n").expect("the catalogue");
    let (mut lines, mut count) = (tables.lines(), 0);
    while let Some(heading) = lines.by_ref().find(|line| line.starts_with('|')) {
        let column = heading.split('|').position(|cell| cell.trim() == "seen").expect(heading);
        for row in lines.by_ref().skip(1).take_while(|line| line.starts_with('|')) {
            assert!(row.split('|').nth(column).is_some_and(|seen| says_where(seen.trim())), "{row}");
        }
        count += 1;
    }
    assert!(count >= 11);
    assert!(!["", "field", "field: Curator", "report"].iter().any(|seen| says_where(seen)));
}

/// Returns the rows of the table whose heading has these columns, as cells.
fn rows<'a>(text: &'a str, columns: &str) -> Vec<Vec<&'a str>> {
    let table = text.lines().skip_while(|line| !line.starts_with(columns)).skip(2);
    table.take_while(|line| line.starts_with('|')).map(|row| row.split('|').map(str::trim).collect()).collect()
}

#[test]
fn every_promise_names_instruments_that_exist() {
    let (faults, promises) = (include_str!("../FAULTS.md"), include_str!("../../docs/guarantees.md"));
    let instruments = rows(faults, "| instrument |");
    let names: Vec<&str> = instruments.iter().map(|row| row[1]).collect();
    for row in &instruments {
        assert!(!named(row[3]).is_empty(), "{row:?}");
    }
    let numbered = promises.lines().take_while(|line| !line.starts_with("###"));
    let numbered =
        numbered.filter(|line| line.split_once(". ").is_some_and(|(number, _)| number.parse::<u8>().is_ok()));
    let (watched, words) = (rows(promises, "| promise |"), rows(faults, "| promise |"));
    assert_eq!(watched.len(), numbered.count());
    let used: Vec<&str> = watched
        .iter()
        .map(|row| row[2])
        .chain(words.iter().map(|row| row[3]))
        .flat_map(|cell| cell.split(", "))
        .collect();
    let unknown: Vec<_> = used.iter().filter(|it| !names.contains(it)).collect();
    let unused: Vec<_> = names.iter().filter(|it| !used.contains(it)).collect();
    assert!(unknown.is_empty() && unused.is_empty() && words.len() == 9, "{unknown:?} {unused:?}");
}

/// Returns the modules of `tests/` that a recipe of the Makefile runs, as `chapter::module`. The recipe names them as
/// `session::{lease,silence} lock::multi` or `--test crowd swarm::`.
fn stages(recipe: &str) -> Vec<String> {
    let words: Vec<&str> = recipe.split([' ', ';', '\n', '\t']).filter(|word| !word.is_empty()).collect();
    let of_a_chapter = |word: &&str| word.contains("::") && !word.ends_with("::");
    let listed = words.iter().copied().filter(of_a_chapter).flat_map(|word| {
        let (chapter, modules) = word.split_once("::").unwrap_or_default();
        modules
            .trim_matches(['{', '}'])
            .split(',')
            .map(move |module| format!("{chapter}::{module}"))
            .collect::<Vec<_>>()
    });
    let single = words.windows(3).filter(|it| it[0] == "--test" && it[2].ends_with("::"));
    listed.chain(single.map(|it| format!("{}::{}", it[1], it[2].trim_end_matches(':')))).collect()
}

/// The recipe of `make soak` must set each environment variable that lengthens a test, and run each test that reads
/// such a variable.
#[test]
fn make_soak_runs_every_instrument() {
    let soak = include_str!("../../Makefile").split("\nsoak:").nth(1).and_then(|rest| rest.split("\n\n").next());
    let soak = soak.expect("the Makefile has it");
    let stages = stages(soak);
    assert!(
        ["session::silence", "lock::multi", "crowd::swarm"].iter().all(|it| stages.iter().any(|stage| stage == it))
    );
    for row in rows(include_str!("../FAULTS.md"), "| instrument |") {
        let knobs: Vec<&str> = row[4].split('`').skip(1).step_by(2).collect();
        for knob in &knobs {
            let name = knob.split('=').next().unwrap_or(knob);
            assert!(soak.contains(&format!("{name}=")), "{knob}");
        }
        for test in named(row[3]).into_iter().filter(|_| !knobs.is_empty()) {
            let (module, name) = test.rsplit_once("::").expect("a module's");
            let chapter = module.split("::").next().unwrap_or_default();
            let is_run = match chapter {
                "session" | "crowd" | "lock" => stages.iter().any(|stage| stage == module),
                "models" => soak.contains("--test models --"),
                "threads" => soak.contains("-p zk-rwlock-threads --"),
                "schedules" => soak.contains("-p zk-rwlock-proptests --"),
                _ => soak.contains("--lib -- any_ fuzzed\n") && ["any_", "fuzzed"].iter().any(|it| name.contains(it)),
            };
            assert!(is_run, "{test} is no part of `make soak`");
        }
    }
}
