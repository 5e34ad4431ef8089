//! Checks that the Rust code of each page is a snippet of a file in `tests/pages`, which is compiled and run. `make
//! pages` runs this test in order to write the snippets into the pages.

use std::fs;
use std::path::{Path, PathBuf};

use support::page::{Snippet, filled, snippets};

/// The environment variable with which `make pages` makes the test write the pages.
pub(super) const WRITE: &str = "WRITE_PAGES";

pub(super) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

pub(super) fn files(directory: &str, extension: &str) -> Vec<PathBuf> {
    let all = fs::read_dir(root().join(directory)).expect("a directory").map(|file| file.expect("readable").path());
    let mut files: Vec<PathBuf> = all.filter(|file| file.extension().is_some_and(|it| it == extension)).collect();
    files.sort();
    files
}

pub(super) fn read(file: &Path) -> String {
    fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

/// Returns the pages with Rust code, each with its snippets. For example, the snippets of `docs/coming-from.md` are in
/// `tests/pages/coming_from.rs`.
fn pages() -> Vec<(PathBuf, Vec<Snippet>)> {
    let mut pages = files("docs", "md");
    pages.retain(|page| !page.ends_with("README.md"));
    pages.push(root().join("README.md"));
    let with_snippets = |page: PathBuf| {
        let name = page.file_stem().expect("a name").to_string_lossy().to_lowercase().replace('-', "_");
        let source = root().join("tests/pages").join(name).with_extension("rs");
        let found = if source.exists() { snippets(&read(&source)) } else { Vec::new() };
        (page, found)
    };
    pages.into_iter().map(with_snippets).collect()
}

#[test]
fn the_rust_of_each_page_is_that_of_its_snippets() {
    let mut shown = 0;
    for (file, snippets) in pages() {
        let page = read(&file);
        let made = filled(&page, &snippets).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        if std::env::var_os(WRITE).is_some() && made != page {
            fs::write(&file, &made).expect("writable");
            println!("{}", file.display());
        } else {
            assert!(made == page, "{} does not show what is compiled: run `make pages`", file.display());
        }
        shown += snippets.len();
    }
    assert!(shown > 12, "{shown}");
}

#[test]
fn every_file_of_snippets_is_compiled_and_has_a_page() {
    let main = read(&root().join("tests/pages/main.rs"));
    let sources = files("tests/pages", "rs");
    let names: Vec<String> =
        sources.iter().map(|file| file.file_stem().expect("a name").display().to_string()).collect();
    let names: Vec<&String> = names.iter().filter(|name| *name != "main").collect();
    let with_snippets = pages().into_iter().filter(|(_, snippets)| !snippets.is_empty()).count();
    assert_eq!(names.len(), with_snippets, "{names:?}");
    for name in names {
        assert!(main.contains(&format!("\nmod {name};\n")), "{name}");
    }
}

/// A snippet that is compiled and not run must give the reason in an attribute of its function.
#[test]
fn every_snippet_is_run_or_needs_a_server() {
    const NEEDS: &str = "#[expect(dead_code, reason = \"it needs a server\")]";
    let (mut run, mut compiled) = (0, 0);
    for snippet in pages().into_iter().flat_map(|(_, snippets)| snippets) {
        match snippet.attribute.as_str() {
            "#[test]" | "#[support::judged]" => run += 1,
            NEEDS => compiled += 1,
            _ => panic!("{snippet:?}"),
        }
    }
    assert!(run > 3 * compiled, "{run} are run, and {compiled} are not");
}

#[test]
fn no_page_has_hidden_lines() {
    for (file, snippets) in pages() {
        let page = read(&file);
        assert_eq!(page.matches("```rust").count(), page.matches("\n```rust\n").count(), "{}", file.display());
        for line in snippets.iter().flat_map(|snippet| snippet.code.lines()) {
            assert!(line != "#" && !line.starts_with("# "), "{}: {line}", file.display());
            assert!(line.len() <= 120, "{}: {line}", file.display());
        }
    }
}

#[test]
fn a_snippet_has_no_hidden_lines_or_indentation() {
    let source = "#[test]\nfn one() {\n    let before = 1;\n    // page: a-page\n    if true {\n        now();\n    }\n    \
                  // hidden\n    fn inside() {\n        // shown\n        then();\n        // hidden\n    }\n    // shown\n\n    \
                  last();\n    // end\n    after();\n}\n";
    let [snippet] = snippets(source).try_into().expect("one");
    assert_eq!(snippet.code, "if true {\n    now();\n}\nthen();\n\nlast();\n");
    assert_eq!((&*snippet.heading, &*snippet.attribute), ("a-page", "#[test]"));

    let page = "# A page\n\n```sh\n# no heading\n```\n\n```rust\nold();\n```\n\nMore.\n";
    let made = filled(page, &[snippet]).expect("they go together");
    assert_eq!(made, page.replace("old();\n", "if true {\n    now();\n}\nthen();\n\nlast();\n"));
    assert!(filled(page, &[]).is_err() && filled("# A page\n", &snippets(source)).is_err());
    assert!(filled(&page.replace("A page", "Another"), &snippets(source)).is_err());
}
