//! Reads quoted words of bash and fish command lines, and quotes completions for bash.

/// The kind of quotes that are open at a place in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OpenQuote {
    None,
    Single,
    Double,
    /// `$'..'`, in which a backslash begins an escape.
    Ansi,
}

/// A word of a bash command line up to the cursor. bash replaces only the end of the word by the chosen candidate.
#[derive(Debug)]
pub(crate) struct TypedWord {
    /// The text before the replaced end, without its quotes.
    before: String,
    quote: OpenQuote,
}

impl TypedWord {
    /// Reads a word. `replaced` is the end of the word that bash is going to replace.
    pub(crate) fn new(word: &str, replaced: &str) -> TypedWord {
        let (_, quote, quoted_from) = parse_quotes(word);
        let kept = word.strip_suffix(replaced).map_or(0, str::len);
        // bash keeps an open quote at the end of the word, and the text before this quote, even if they are in
        // `replaced`.
        let kept = if quote == OpenQuote::None { kept } else { kept.max(quoted_from) };
        TypedWord { before: parse_quotes(&word[..kept]).0, quote }
    }

    /// Returns the text that bash has to insert to turn the typed word into `word`. The text is escaped, so that no
    /// name acts as a command or ends the quotes around it. Returns `None` if `word` does not begin with the part
    /// of the typed word that bash keeps.
    pub(crate) fn text_to_insert(&self, word: &str) -> Option<String> {
        let rest = word.strip_prefix(&self.before)?;
        let mut escaped = String::with_capacity(rest.len());
        for character in rest.chars() {
            match (self.quote, character) {
                // In double quotes bash expands `!` to an earlier line, even after a backslash. So the text closes the
                // quotes before the `!` and opens them again after it.
                (OpenQuote::Double, '!') => escaped.push_str("\"\\!\""),
                (OpenQuote::Double, '\\' | '"' | '$' | '`') => escaped.extend(['\\', character]),
                (OpenQuote::Single, '\'') => escaped.push_str("'\\''"),
                (OpenQuote::Ansi, '\\' | '\'' | '!') => escaped.push_str(&format!("\\x{:02x}", u32::from(character))),
                (OpenQuote::None, _) if !is_plain(character) => escaped.extend(['\\', character]),
                _ => escaped.push(character),
            }
        }
        // bash adds the closing quote after the inserted text, unless the text ends with the same kind of quote. In
        // that case the text itself must have the closing quote.
        let end = match self.quote {
            OpenQuote::Single => escaped.ends_with('\'').then_some('\''),
            OpenQuote::Double => escaped.ends_with('"').then_some('"'),
            OpenQuote::None | OpenQuote::Ansi => None,
        };
        escaped.extend(end);
        Some(escaped)
    }
}

/// Returns whether the character needs no backslash outside of quotes. `:` and `=` need none: they end a word only
/// for bash's completion, not when bash runs the line.
fn is_plain(character: char) -> bool {
    character.is_alphanumeric() || "/._-+,:=@%".contains(character)
}

/// Returns a word of a bash command line without its quotes. Variables and other expansions stay as they are.
pub(crate) fn unquote_bash(word: &str) -> String {
    parse_quotes(word).0
}

/// Returns the word without its quotes, the kind of quotes that are open at its end, and an index: where the text after
/// the last opening quote begins.
fn parse_quotes(word: &str) -> (String, OpenQuote, usize) {
    let (mut text, mut quote, mut quoted_from) = (String::new(), OpenQuote::None, 0);
    let mut rest = word;
    while let Some(character) = rest.chars().next() {
        let after = &rest[character.len_utf8()..];
        let next = after.chars().next();
        let (meant, taken, now) = match (quote, character) {
            (OpenQuote::None, '$') if next == Some('\'') => (None, 2, OpenQuote::Ansi),
            (OpenQuote::None, '$') if next == Some('"') => (None, 2, OpenQuote::Double),
            (OpenQuote::None, '\'') => (None, 1, OpenQuote::Single),
            (OpenQuote::None, '"') => (None, 1, OpenQuote::Double),
            (OpenQuote::Single | OpenQuote::Ansi, '\'') | (OpenQuote::Double, '"') => (None, 1, OpenQuote::None),
            (OpenQuote::Ansi, '\\') => {
                let (meant, taken) = parse_escape(after);
                (meant, 1 + taken, quote)
            }
            (OpenQuote::Double, '\\') if !matches!(next, None | Some('\\' | '"' | '$' | '`')) => (Some('\\'), 1, quote),
            (OpenQuote::None | OpenQuote::Double, '\\') => (next, 1 + next.map_or(0, char::len_utf8), quote),
            _ => (Some(character), character.len_utf8(), quote),
        };
        text.extend(meant);
        rest = &rest[taken..];
        if quote == OpenQuote::None && now != OpenQuote::None {
            quoted_from = word.len() - rest.len();
        }
        quote = now;
    }
    (text, quote, quoted_from)
}

/// Returns the character that an escape in `$'..'` stands for, and the length of the escape without its backslash.
/// `\xHH`, which [`TypedWord::text_to_insert`] writes, stands for the ASCII character with the hexadecimal code HH. Any
/// other character after the backslash stands for itself.
fn parse_escape(after: &str) -> (Option<char>, usize) {
    let code = after.strip_prefix('x').and_then(|digits| digits.get(..2));
    match code.and_then(|digits| u8::from_str_radix(digits, 16).ok()).filter(u8::is_ascii) {
        Some(code) => (Some(code.into()), 3),
        None => (after.chars().next(), after.chars().next().map_or(0, char::len_utf8)),
    }
}

/// Returns a word of a fish command line without its quotes. Unlike in bash, a backslash in single quotes escapes a
/// quote and a backslash.
pub(crate) fn unquote_fish(word: &str) -> String {
    let (mut text, mut quote) = (String::new(), None);
    let mut characters = word.chars().peekable();
    while let Some(character) = characters.next() {
        match (character, quote) {
            ('\\', None) => text.extend(characters.next()),
            ('\\', Some(quote)) => {
                let escapes = |next: &char| *next == '\\' || *next == quote || (quote == '"' && *next == '$');
                text.push(characters.next_if(escapes).unwrap_or('\\'));
            }
            ('\'' | '"', None) => quote = Some(character),
            (end, Some(begin)) if end == begin => quote = None,
            (other, _) => text.push(other),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_are_removed_as_the_shell_does() {
        for (typed, meant) in [
            ("/a", "/a"),
            ("'/a b'", "/a b"),
            ("\"/a 'b'\"", "/a 'b'"),
            ("/a\\ b", "/a b"),
            ("'/a\\b'", "/a\\b"),
            ("\"/a", "/a"),
            ("--zk=\"$HOSTS\"", "--zk=$HOSTS"),
            ("/a\\", "/a"),
        ] {
            assert_eq!((&unquote_bash(typed)[..], &unquote_fish(typed)[..]), (meant, meant), "{typed}");
        }
        for (typed, meant) in [
            ("'/it'\\''s", "/it's"),
            ("\"/a\\$b\\x", "/a$b\\x"),
            ("$'/it\\x27s\\\\", "/it's\\"),
            ("$'/it\\'s", "/it's"),
            ("$\"/a", "/a"),
            ("$'/a\\x2", "/ax2"),
            ("$'/a\\", "/a"),
        ] {
            assert_eq!(unquote_bash(typed), meant, "{typed}");
        }
        assert_eq!(unquote_fish("'/it\\'s \\$"), "/it's \\$");
    }

    #[test]
    fn a_name_is_escaped_for_the_open_quotes() {
        let name = "/c/$(x) '\"`\\!é";
        for (typed, replaced, put) in [
            ("/c/", "/c/", r#"/c/\$\(x\)\ \'\"\`\\\!é"#),
            ("\"/c/", "/c/", r#"/c/\$(x) '\"\`\\"\!"é"#),
            ("'/c/", "/c/", r#"/c/$(x) '\''"`\!é"#),
            ("$'/c/", "/c/", r#"/c/$(x) \x27"`\x5c\x21é"#),
            ("/c/\"$(", "$(", r#"\$(x) '\"\`\\"\!"é"#),
            ("\"/c/\"", "\"/c/\"", r#"/c/\$\(x\)\ \'\"\`\\\!é"#),
            // Some frameworks for completion in bash report the open quote as part of the replaced text.
            ("'/c/", "'/c/", r#"/c/$(x) '\''"`\!é"#),
            ("nothing/c/", "another", r#"/c/\$\(x\)\ \'\"\`\\\!é"#),
        ] {
            assert_eq!(TypedWord::new(typed, replaced).text_to_insert(name).as_deref(), Some(put), "{typed}");
        }
        assert_eq!(TypedWord::new("--zk=a", "a").text_to_insert("--zk=ab").as_deref(), Some("ab"));
        assert_eq!(TypedWord::new("/a", "").text_to_insert("/b"), None);
        // bash adds no closing quote after an inserted text that ends with a quote. So these texts have a closing quote
        // of their own.
        assert_eq!(TypedWord::new("'/", "/").text_to_insert("/it'").as_deref(), Some(r"/it'\'''"));
        assert_eq!(TypedWord::new("\"/", "/").text_to_insert("/it\"").as_deref(), Some(r#"/it\"""#));
        assert_eq!(TypedWord::new("\"/", "/").text_to_insert("/it!").as_deref(), Some(r#"/it"\!"""#));
    }
}
