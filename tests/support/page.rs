//! The tables, fenced blocks and snippets of Rust in a Markdown page. Use it for tests that compare a page with the
//! code.

/// Returns the contents of the page's fenced blocks whose info string begins with `words`.
pub fn blocks<'page>(page: &'page str, words: &str) -> Vec<&'page str> {
    let opening = format!("```{words}\n");
    page.split(opening.as_str()).skip(1).map(|rest| rest.split("```").next().unwrap_or_default()).collect()
}

/// Returns the cells of each row of the page's tables, without headings.
pub fn rows(page: &str) -> Vec<Vec<&str>> {
    let lines: Vec<&str> = page.lines().chain([""]).collect(); // a row may be the last line
    let is_row = |line: &str| line.starts_with('|') && !line.starts_with("|--");
    let body = lines.windows(2).filter(|pair| is_row(pair[0]) && !pair[1].starts_with("|--")).map(|pair| pair[0]);
    body.map(|line| line.trim_matches('|').split(" | ").map(str::trim).collect()).collect()
}

/// Returns the anchor of a heading, for a link to the heading.
pub fn anchor(heading: &str) -> String {
    let kept = |c: &char| c.is_alphanumeric() || [' ', '-', '_'].contains(c);
    heading.trim_start_matches('#').trim().to_lowercase().chars().filter(kept).collect::<String>().replace(' ', "-")
}

/// A snippet from a file in `tests/pages`.
#[derive(Debug, PartialEq, Eq)]
pub struct Snippet {
    /// The anchor of the heading above the snippet.
    pub heading: String,
    /// The lines of the snippet, without indentation.
    pub code: String,
    /// The attribute of the function that contains the snippet, such as `#[tokio::test]`.
    pub attribute: String,
}

/// Returns the snippets of a file, in order.
pub fn snippets(source: &str) -> Vec<Snippet> {
    let mut found = Vec::new();
    let mut attribute = "";
    let mut snippet: Option<Snippet> = None;
    let mut part: Option<Vec<&str>> = None;
    for line in source.lines() {
        let mark = line.trim_start();
        if line.starts_with("#[") {
            attribute = line;
        } else if let Some(heading) = mark.strip_prefix("// page: ") {
            assert!(snippet.is_none(), "a snippet has no end before: {line}");
            let (heading, attribute) = (heading.to_owned(), attribute.to_owned());
            snippet = Some(Snippet { heading, code: String::new(), attribute });
            part = Some(Vec::new());
        } else if let Some(open) = &mut snippet {
            match mark {
                "// hidden" => open.code += &dedented(&part.take().expect("something is shown")),
                "// shown" => part = Some(Vec::new()),
                "// end" => {
                    open.code += &dedented(&part.take().expect("a part of the snippet has begun"));
                    found.extend(snippet.take());
                }
                _ => part.iter_mut().for_each(|part| part.push(line)),
            }
        }
    }
    assert!(snippet.is_none(), "a snippet has no end: {snippet:?}");
    found
}

fn dedented(lines: &[&str]) -> String {
    let indents = lines.iter().filter(|line| !line.is_empty()).map(|line| line.len() - line.trim_start().len());
    let indent = indents.min().unwrap_or_default();
    lines.iter().map(|line| format!("{}\n", line.get(indent..).unwrap_or_default())).collect()
}

/// Fills the page's blocks of Rust with these snippets. Fails with a description of the first block or snippet that has
/// no counterpart.
pub fn filled(page: &str, snippets: &[Snippet]) -> Result<String, String> {
    let (mut filled, mut heading, mut block) = (String::new(), String::new(), None);
    let mut left = snippets.iter();
    for line in page.lines() {
        match block {
            None if line.starts_with('#') => heading = anchor(line),
            None => block = line.strip_prefix("```"),
            Some(_) if line == "```" => block = None,
            Some("rust") => continue,
            Some(_) => {}
        }
        filled += &format!("{line}\n");
        if line == "```rust" {
            let next = left.next().filter(|snippet| snippet.heading == heading);
            filled += &next.ok_or_else(|| format!("a block of Rust under #{heading} has no snippet"))?.code;
        }
    }
    match left.next() {
        Some(snippet) => Err(format!("a snippet for #{} has no block of Rust there", snippet.heading)),
        None => Ok(filled),
    }
}
