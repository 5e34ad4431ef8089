//! Turns raw results into tables, plots and figures. The same results always give the same text.

pub(crate) mod figures;
pub(crate) mod plots;
pub(crate) mod results;
pub(crate) mod scale;
pub(crate) mod tables;

use results::{Outcome, Results};

const START: &str = "<!-- ";
const END: &str = "<!-- end -->";

/// Returns the page with the text between `<!-- table: NAME -->` or `<!-- value: NAME -->` and `<!-- end -->` replaced.
pub(crate) fn fill(page: &str, results: &Results) -> Outcome<String> {
    let mut filled = String::new();
    let mut rest = page;
    while let Some(Marker { before, whole, what, name, after }) = next_marker(rest) {
        let (_, after) = after.split_once(END).ok_or_else(|| format!("{what} {name:?} has no end"))?;
        filled.push_str(before);
        filled.push_str(whole);
        match what {
            "table" => filled.push_str(&format!("\n{}", tables::table(results, name)?)),
            _ => filled.push_str(&scale::value(results, name)?),
        }
        filled.push_str(END);
        rest = after;
    }
    Ok(filled + rest)
}

/// Returns the names of the tables on the page.
#[allow(dead_code, reason = "only the test of the page asks for it")]
pub(crate) fn tables_on(page: &str) -> Vec<&str> {
    let mut names = Vec::new();
    let mut rest = page;
    while let Some(marker) = next_marker(rest) {
        if marker.what == "table" {
            names.push(marker.name);
        }
        rest = marker.after;
    }
    names
}

/// Returns every table for which there are results.
#[allow(dead_code, reason = "the test of the page asks for none but its own")]
pub(crate) fn every_table(results: &Results) -> String {
    let made = tables::NAMES.iter().filter_map(|name| Some((name, tables::table(results, name).ok()?)));
    made.map(|(name, table)| format!("## {name}\n\n{table}\n")).collect()
}

struct Marker<'t> {
    before: &'t str,
    /// The marker itself, from `<!--` to `-->`.
    whole: &'t str,
    what: &'t str,
    name: &'t str,
    after: &'t str,
}

fn next_marker(text: &str) -> Option<Marker<'_>> {
    let starts = |kind: &str| text.find(&format!("{START}{kind}: "));
    let at = [starts("table"), starts("value")].into_iter().flatten().min()?;
    let length = text[at..].find("-->")? + "-->".len();
    let (what, name) = text[at + START.len()..at + length - "-->".len()].split_once(": ")?;
    let (before, after) = (&text[..at], &text[at + length..]);
    Some(Marker { before, whole: &text[at..at + length], what, name: name.trim(), after })
}
