//! Checks that the links and pictures of the pages, and of the library's own documentation, lead to files and headings
//! that exist.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use support::page::anchor;

use crate::snippets::{WRITE, files, read, root};

const BESIDES: [&str; 9] = [
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "CHANGELOG.md",
    "examples/README.md",
    "examples/kubernetes/README.md",
    "examples/systemd/README.md",
    "tests/README.md",
    "docs/upstream/README.md",
];
const LIB: &str = include_str!("../../src/lib.rs");

fn pages() -> Vec<PathBuf> {
    let mut pages = files("docs", "md");
    pages.extend(BESIDES.map(|page| root().join(page)));
    pages
}

/// Returns the anchors of a page's headings.
fn anchors(page: &str) -> BTreeSet<String> {
    page.lines().filter(|line| line.starts_with('#')).map(anchor).collect()
}

/// Returns the link definitions of a page, such as `[guide]: guide.md`.
fn definitions(page: &str) -> Vec<(&str, &str)> {
    page.lines().filter_map(|line| line.strip_prefix('[')?.split_once("]: ")).collect()
}

fn links_in_text(page: &str) -> impl Iterator<Item = &str> {
    page.split("](").skip(1).map(|rest| rest.split(')').next().unwrap_or_default())
}

#[test]
fn every_link_has_a_target() {
    let mut followed = 0;
    for file in pages() {
        let page = read(&file);
        let defined = definitions(&page).into_iter().map(|(_, link)| link);
        for link in links_in_text(&page).chain(defined).filter(|link| !link.starts_with("https://")) {
            let (to, heading) = link.split_once('#').map_or((link, None), |(to, heading)| (to, Some(heading)));
            let to: PathBuf = if to.is_empty() { file.clone() } else { file.parent().expect("a directory").join(to) };
            assert!(to.exists(), "{}: {link}", file.display());
            if let Some(heading) = heading {
                assert!(anchors(&read(&to)).contains(heading), "{}: {link}", file.display());
            }
            followed += 1;
        }
    }
    assert!(followed > 60, "{followed}");
}

/// Markdown shows an undefined link as text in brackets.
#[test]
fn every_link_by_name_is_defined() {
    for file in pages() {
        let page = read(&file);
        let defined: Vec<&str> = definitions(&page).into_iter().map(|(name, _)| name).collect();
        for name in page.split("][").skip(1).map(|rest| rest.split(']').next().unwrap_or_default()) {
            assert!(defined.contains(&name), "{}: [{name}]", file.display());
        }
        let unused = |name: &&&str| !page.contains(&format!("][{name}]")) && !page.contains(&format!(" [{name}]"));
        assert_eq!(defined.iter().find(unused), None, "{}", file.display());
    }
}

/// Returns the pages that `src/lib.rs` includes, each with the lines of `src/lib.rs` before it. Those lines define the
/// links of the page for docs.rs.
fn included() -> Vec<(&'static str, &'static str)> {
    let mut included = Vec::new();
    for module in LIB.split("pub mod ") {
        let (before, page) = module.split_once("doc = include_str!(\"../docs/").unwrap_or_default();
        let (pictures, page) = page.split_once("/docs/").unwrap_or(("", page));
        if let Some((page, _)) = page.split_once('"') {
            included.push((page, if pictures.is_empty() { before } else { module }));
        }
    }
    included
}

/// docs.rs has only the documentation, and no files next to it. So a relative link to a file would be broken there.
#[test]
fn a_page_of_the_crate_docs_has_no_relative_link() {
    let included = included();
    assert_eq!(included.len(), 8, "{included:?}");
    let pictures = read(&root().join("docs/pictures.txt"));
    for (name, before) in included {
        let page = read(&root().join("docs").join(name));
        let relative: Vec<&str> =
            links_in_text(&page).filter(|link| !link.starts_with("https://") && !link.starts_with('#')).collect();
        assert_eq!(relative, Vec::<&str>::new(), "{name}: give the link a name");
        for (link, to) in definitions(&page) {
            let there = match to.ends_with(".svg") {
                true => before.contains("docs/pictures.txt") && pictures.contains(&format!("[{link}]: data:")),
                false => to.starts_with("https://") || before.contains(&format!("/// [{link}]: ")),
            };
            assert!(there, "{name}: src/lib.rs has to say where [{link}] leads");
        }
    }
}

/// Returns a picture as the text of a `data:` link.
fn data(picture: &Path) -> String {
    let encoded = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' | b':' | b';' | b'=' | b',' => {
            char::from(byte).to_string()
        }
        _ => format!("%{byte:02X}"),
    };
    read(picture).bytes().map(encoded).collect()
}

#[test]
fn the_pictures_of_the_crate_docs_are_current() {
    let line = |(name, file): (&str, &str)| format!("[{name}]: data:image/svg+xml,{}\n", data(&root().join(file)));
    let made: String = [
        ("picture", "docs/protocol.svg"),
        ("lease", "docs/lease.svg"),
        ("queue-picture", "docs/queue.svg"),
        ("states-picture", "docs/states.svg"),
        ("keep-picture", "docs/keep.svg"),
        ("fencing-picture", "docs/fencing.svg"),
        ("which-picture", "docs/which.svg"),
    ]
    .map(line)
    .concat();
    let file = root().join("docs/pictures.txt");
    if std::env::var_os(WRITE).is_some() {
        fs::write(&file, &made).expect("writable");
    }
    assert!(read(&file) == made, "docs/pictures.txt differs from the pictures: run `make pages`");
}

#[test]
fn the_pictures_have_colours_for_light_and_dark() {
    for name in ["protocol.svg", "lease.svg", "queue.svg", "states.svg", "keep.svg", "fencing.svg", "which.svg"] {
        let picture = read(&root().join("docs").join(name));
        let style = picture.split("<style>").nth(1).and_then(|rest| rest.split("</style>").next()).expect("a style");
        let (light, dark) = style.split_once("@media (prefers-color-scheme:dark)").expect("both");
        let used: BTreeSet<&str> =
            picture.split("class=\"").skip(1).map(|rest| rest.split('"').next().unwrap_or_default()).collect();
        assert!(used.len() > 4, "{used:?}");
        for class in used {
            assert!(light.contains(&format!(".{class}")) && dark.contains(&format!(".{class}")), "{name}: {class}");
        }
    }
    assert!(read(&root().join("docs/guide.md")).contains("][picture]"));
    assert!(read(&root().join("README.md")).contains("](docs/lease.svg)"));
}
