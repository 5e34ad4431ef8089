//! The parts of a page in Markdown that a test reads.

/// What stands in the fenced blocks of a page that begin with these words.
pub fn blocks<'page>(page: &'page str, words: &str) -> Vec<&'page str> {
    let opening = format!("```{words}\n");
    page.split(opening.as_str()).skip(1).map(|rest| rest.split("```").next().unwrap_or_default()).collect()
}

/// The cells of each row of the page's tables, without their headings.
pub fn rows(page: &str) -> Vec<Vec<&str>> {
    let lines: Vec<&str> = page.lines().collect();
    let is_row = |line: &str| line.starts_with('|') && !line.starts_with("|--");
    let body = lines.windows(2).filter(|pair| is_row(pair[0]) && !pair[1].starts_with("|--")).map(|pair| pair[0]);
    body.map(|line| line.trim_matches('|').split(" | ").map(str::trim).collect()).collect()
}
