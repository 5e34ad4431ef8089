//! `README.md` is short.

use crate::snippets::{read, root};

/// A newcomer reads the page in five minutes.
const WORDS_MAX: usize = 1_000;

#[test]
fn the_front_page_has_at_most_1000_words() {
    let words = read(&root().join("README.md")).split_whitespace().count();
    assert!(words <= WORDS_MAX, "{words}");
}
