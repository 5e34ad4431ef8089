//! Checks that the folders, files, tests and commands that `docs/architecture.md` and `CONTRIBUTING.md` name exist.

use std::collections::BTreeSet;
use std::fs;

use support::page::{blocks, rows};

use crate::snippets::root;
use crate::{fault_table, layers};

const PAGE: &str = include_str!("../../docs/architecture.md");
const CONTRIBUTING: &str = include_str!("../../CONTRIBUTING.md");

/// Returns the texts in backticks that contain no space.
fn spans(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2).filter(|span| !span.contains(char::is_whitespace))
}

#[test]
fn the_page_shows_each_folder() {
    let picture = blocks(PAGE, "text")[0];
    let missing = |name: &&str| {
        let name = name.rsplit('/').next().unwrap_or_default();
        !picture.contains(&format!(" {name}/ ")) && !picture.contains(&format!(" {name}.rs "))
    };
    let missing: Vec<&str> = layers::LAYERS.iter().map(|(name, _)| *name).filter(missing).collect();
    assert_eq!(missing, Vec::<&str>::new());
}

/// Returns the names of the enum's variants, in their order.
fn variants<'s>(source: &'s str, name: &str) -> Vec<&'s str> {
    let body = source.split_once(&format!("pub enum {name} {{\n")).expect("it is there").1;
    let body = body.split_once("\n}").expect("it ends").0;
    let names = body.lines().filter_map(|line| line.strip_prefix("    "));
    let names = names.filter(|line| line.starts_with(|first: char| first.is_ascii_uppercase()));
    names.map(|line| line.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default()).collect()
}

#[test]
fn the_page_shows_the_phases_of_each_machine() {
    let machines: Vec<_> = rows(PAGE).into_iter().skip_while(|row| !row[0].starts_with("one node, from")).collect();
    assert!(machines.len() > 3, "they are on the page");
    for (row, (file, name)) in machines.into_iter().zip([
        ("session/node/state.rs", "Phase"),
        ("session/leaving.rs", "NodeRemoval"),
        ("queue/turn.rs", "Step"),
    ]) {
        let source = fs::read_to_string(root().join("src").join(file)).expect("it is there");
        assert_eq!(spans(row[1]).collect::<Vec<_>>(), [file]);
        assert_eq!(spans(row[2]).collect::<Vec<_>>(), variants(&source, name), "{name}");
    }
}

#[test]
fn the_pages_name_files_items_and_tests_that_exist() {
    for span in spans(PAGE).chain(spans(CONTRIBUTING)) {
        let Some((file, item)) = span.split_once(".rs") else { continue };
        let places = [root().join("src"), root()].map(|place| place.join(format!("{file}.rs")));
        let source = places.iter().find_map(|file| fs::read_to_string(file).ok());
        let source = source.unwrap_or_else(|| panic!("{span}: no such file"));
        let item = item.strip_prefix("::").map_or(String::new(), |name| format!(" {name}"));
        assert!(source.contains(&item), "{span}: no such item");
    }
    let tests = [fault_table::named(PAGE), fault_table::named(CONTRIBUTING)].concat();
    let missing: Vec<_> = tests.iter().filter(|name| !fault_table::exists(name)).collect();
    assert_eq!(missing, Vec::<&&str>::new());
    assert!(tests.len() > 20, "{}", tests.len());
}

#[test]
fn the_commands_for_contributors_exist() {
    let makefile = include_str!("../../Makefile");
    let named = |before: &'static str| {
        let rest = CONTRIBUTING.split(before).skip(1);
        rest.map(|rest| rest.split(|c: char| !(c.is_ascii_lowercase() || c == '-')).next().unwrap_or_default())
    };
    let targets: BTreeSet<&str> = named("`make ").chain(named("\nmake ")).collect();
    assert!(targets.len() > 10, "{targets:?}");
    for target in targets {
        assert!(makefile.contains(&format!("\n{target}:")), "make {target}");
    }
    let manifest = |package: &str| fs::read_to_string(root().join(package).join("Cargo.toml")).unwrap_or_default();
    let manifests = [".", "tests", "proptests", "threads", "benches", "zklock"].map(manifest).concat();
    for name in named("-p ").chain(named("--test ")).chain(named("--bench ")) {
        assert!(manifests.contains(&format!("name = \"{name}\"")), "{name}");
    }
}
