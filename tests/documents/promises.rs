//! Checks that each promise of a page has a test: `PROMISES.md` lists them. A promise is a row of a table, a numbered item, or
//! a sentence with a number.

use std::iter::Peekable;

use crate::fault_table::{exists, named};
use crate::snippets::{read, root};

/// Words that count as a number.
const NUMBERS: [&str; 34] = [
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "half",
    "third",
    "thirds",
    "quarter",
    "quarters",
    "fifth",
    "fifths",
    "sixth",
    "sixths",
    "seventh",
    "eighth",
    "eighths",
    "ninth",
    "ninths",
    "tenth",
    "twelfth",
    "hundred",
    "hundreds",
    "thousand",
    "thousands",
    "million",
    "millions",
    "twice",
];

/// A part of a page that promises something.
#[derive(Debug)]
enum Part {
    /// A table: its heading, and the first cell of each row.
    Table(String, Vec<String>),
    Sentence(String),
}

/// Returns the first cell of a row of a table.
fn first_cell(row: &str) -> &str {
    row.trim_matches(['|', ' ']).split('|').next().unwrap_or_default().trim()
}

/// Returns the text without code, and without the targets of links.
fn prose(text: &str) -> String {
    let text: String = text.split('`').step_by(2).collect();
    text.split("](")
        .enumerate()
        .map(|(at, part)| if at == 0 { part } else { part.split_once(')').unwrap_or_default().1 })
        .collect()
}

fn has_a_number(sentence: &str) -> bool {
    let prose = prose(sentence).to_lowercase();
    prose
        .split(|letter: char| !letter.is_alphanumeric())
        .any(|word| NUMBERS.contains(&word) || word.starts_with(|first: char| first.is_ascii_digit()))
}

/// Splits a paragraph or an item of a list after each full stop, colon or question mark before a capital or a mark.
fn sentences(text: &str) -> Vec<&str> {
    let begins = |rest: &str| rest.starts_with(|first: char| first.is_uppercase() || "`*[(".contains(first));
    let ends = text
        .match_indices(['.', ':', '?'])
        .map(|(at, _)| at + 1)
        .filter(|at| text[*at..].strip_prefix(' ').is_some_and(begins));
    let cuts: Vec<usize> = [0].into_iter().chain(ends).chain([text.len()]).collect();
    cuts.windows(2).map(|cut| text[cut[0]..cut[1]].trim()).collect()
}

/// Returns what a page promises, in order. Of a file in Rust, only the documentation at its top counts.
fn parts(page: &str) -> Vec<Part> {
    let text = read(&root().join(page));
    let lines =
        text.lines().map(|line| line.strip_prefix("//!").map_or(line, |line| line.strip_prefix(' ').unwrap_or(line)));
    let is_rust = page.ends_with(".rs");
    let of_page: Vec<&str> =
        lines.zip(text.lines()).take_while(|(_, raw)| !is_rust || raw.starts_with("//!")).map(|it| it.0).collect();
    let mut parts = Vec::new();
    // Code stands between fences.
    let prose = of_page.split(|line| line.starts_with("```")).step_by(2);
    for block in prose.flat_map(|lines| lines.split(|line| line.is_empty())) {
        let Some(first) = block.first() else { continue };
        if first.starts_with('|') {
            let rows = block[2..].iter().map(|row| first_cell(row).to_owned());
            parts.push(Part::Table(first_cell(first).to_owned(), rows.collect()));
        } else if !first.starts_with(['#', '!']) {
            let mut items: Vec<String> = Vec::new();
            for line in block.iter().filter(|line| !(line.starts_with('[') && line.contains("]: "))) {
                match items.last_mut() {
                    Some(item) if !line.starts_with("- ") && !is_numbered(line) => {
                        *item += &format!(" {}", line.trim())
                    }
                    _ => items.push(line.trim_start_matches("- ").to_owned()),
                }
            }
            for item in items {
                if is_numbered(&item) {
                    parts.push(Part::Sentence(item));
                } else {
                    let counted = sentences(&item).into_iter().filter(|it| has_a_number(it));
                    parts.extend(counted.map(|it| Part::Sentence(it.to_owned())));
                }
            }
        }
    }
    parts
}

fn is_numbered(line: &str) -> bool {
    line.split_once(". ").is_some_and(|(number, _)| number.parse::<u8>().is_ok())
}

/// The rows of `PROMISES.md` for a page: how the promise begins, and the tests.
fn entries<'a>(list: &'a str, page: &str) -> Vec<(&'a str, &'a str)> {
    let section = list.split("\n## ").find(|section| section.lines().next() == Some(page)).unwrap_or_default();
    let rows = section.lines().filter(|line| line.starts_with('|')).skip(2);
    rows.map(|row| row.trim_matches('|').split_once(" | ").expect("two cells"))
        .map(|(promise, tests)| (promise.trim(), tests.trim()))
        .collect()
}

/// Takes the next entry if it begins like this promise, and goes as far as its last number: a number that changes on the page
/// must change in the tests, too.
fn take<'a>(entries: &mut Peekable<impl Iterator<Item = (&'a str, &'a str)>>, promise: &str) -> bool {
    entries.next_if(|(begins, _)| promise.strip_prefix(begins).is_some_and(|rest| !has_a_number(rest))).is_some()
}

#[test]
fn every_promise_of_a_page_has_a_test() {
    let list = read(&root().join("tests/PROMISES.md"));
    let pages: Vec<&str> = list.split("\n## ").skip(1).filter_map(|section| section.lines().next()).collect();
    let mut wrong = Vec::new();
    for page in &pages {
        let entries = entries(&list, page);
        for (promise, tests) in &entries {
            let missing: Vec<_> = named(tests).into_iter().filter(|name| !exists(name)).collect();
            if named(tests).is_empty() && !tests.starts_with("no test: ") || !missing.is_empty() {
                wrong.push(format!(
                    "{page}: {promise}: name a test that exists, or say `no test: ` and why: {missing:?}"
                ));
            }
        }
        let mut entries = entries.into_iter().peekable();
        for part in parts(page) {
            let (heading, promises) = match part {
                Part::Table(heading, rows) => (Some(heading), rows),
                Part::Sentence(sentence) => (None, vec![sentence]),
            };
            // One entry may serve for a whole table.
            if heading.is_some_and(|heading| take(&mut entries, &format!("table: {heading}"))) {
                continue;
            }
            let unlisted = promises.iter().filter(|promise| !take(&mut entries, promise));
            wrong.extend(
                unlisted.map(|promise| format!("{page}: not in tests/PROMISES.md up to its last number: {promise}")),
            );
        }
        wrong.extend(entries.map(|(promise, _)| format!("{page}: no longer on the page, or not there: {promise}")));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(pages.len() >= 5, "{pages:?}");
}

#[test]
fn a_sentence_with_a_number_is_a_promise() {
    let text = "Beyond 4,096 events, it drops. Nothing here: `a(4)` [is](one#2) meant. **Half of them** wait.";
    let counted: Vec<_> = sentences(text).into_iter().filter(|it| has_a_number(it)).collect();
    assert_eq!(counted, ["Beyond 4,096 events, it drops.", "**Half of them** wait."]);
}
