//! Quotes a text of a user, or of another client, in a message.

use std::borrow::Cow;

/// The longest text that a message shows whole, in characters. A label of 256 bytes fits.
const WHOLE: usize = 256;

/// The number of characters that a message shows of the beginning, and of the end, of a text longer than `WHOLE`.
const SHOWN: usize = 100;

/// Returns the text in quotation marks, escaped like a string in Rust's `{:?}`. If the text has more than `WHOLE`
/// characters, `…` replaces its middle.
pub(crate) fn quoted(text: &str) -> String {
    format!("{:?}", shortened(text, WHOLE, SHOWN))
}

/// Returns the text. If the text has more than `whole` characters, returns its first and its last `shown` characters,
/// with `…` in between.
pub(crate) fn shortened(text: &str, whole: usize, shown: usize) -> Cow<'_, str> {
    if text.chars().nth(whole).is_none() {
        return text.into();
    }
    let begin: String = text.chars().take(shown).collect();
    let rest = text.char_indices().rev().nth(shown - 1).map_or(0, |(at, _)| at);
    format!("{begin}…{}", &text[rest..]).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_quoted_by_its_beginning_and_end() {
        assert_eq!(quoted("a\n\"b\""), r#""a\n\"b\"""#);
        assert_eq!(quoted(&"é".repeat(WHOLE)), format!("{:?}", "é".repeat(WHOLE)));
        let end = "é".repeat(SHOWN);
        assert_eq!(
            quoted(&format!("{}b{}", "a".repeat(WHOLE), end)),
            format!("{:?}", format!("{}…{end}", "a".repeat(SHOWN)))
        );
    }
}
