//! Words for people on standard error, results on standard output; knows nothing of what they say.

use std::io::{self, IsTerminal, Write};

/// Whether results may be coloured: on a terminal whose user has not said no (<https://no-color.org>).
pub(crate) fn is_colourful() -> bool {
    let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    io::stdout().is_terminal() && !unwanted && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Tells people something. That nobody listens is no reason to stop.
pub(crate) fn say(words: &str) {
    let _ = writeln!(io::stderr().lock(), "zklock: {words}");
}

/// Prints a result in one piece; `false` if nobody reads it any more, as after `| head`.
pub(crate) fn print(text: &str) -> bool {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_ok()
}

/// Makes text of strangers safe for a terminal: control characters are shown and not obeyed.
pub(crate) fn tame(text: &str) -> String {
    let mut tamed = String::with_capacity(text.len());
    for character in text.chars() {
        match character.is_control() {
            true => tamed.extend(character.escape_default()),
            false => tamed.push(character),
        }
    }
    tamed
}

/// The first characters of a text, and a mark if there were more.
pub(crate) fn shorten(text: &str, most: usize) -> String {
    match text.chars().count() > most {
        true => text.chars().take(most.saturating_sub(1)).chain(['…']).collect(),
        false => text.to_owned(),
    }
}
