//! Words for people on standard error, results on standard output; knows nothing of what they say.

use std::io::{self, IsTerminal, Write};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::exit::{self, Exit};

/// Whether this is a terminal that can do more than print one line after the other.
pub(crate) fn is_screen(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && std::env::var_os("TERM").is_some_and(|term| term != "dumb")
}

/// Whether results may be coloured: on a terminal whose user has not switched colours off (<https://no-color.org>).
pub(crate) fn is_colourful() -> bool {
    let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    is_screen(&io::stdout()) && !unwanted
}

/// Prints words for people. A failure is ignored: zklock goes on without a reader.
pub(crate) fn say(words: &str) {
    let _ = writeln!(io::stderr().lock(), "zklock: {words}");
}

/// Prints a result in one piece. `false` if nobody reads it any more, as after `| head`.
pub(crate) fn print(text: &str) -> Result<bool, Exit> {
    let mut out = io::stdout().lock();
    written(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
}

/// The outcome of writing to standard output, as for [`print()`].
pub(crate) fn written(outcome: io::Result<()>) -> Result<bool, Exit> {
    match outcome {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Exit::new(exit::NOT_WRITTEN, format!("cannot write to standard output: {error}"))),
    }
}

/// Whether the output still has a reader. Without printing there is no other way to notice that `| head` has ended.
pub(crate) fn is_read() -> bool {
    let out = io::stdout();
    let mut polled = [PollFd::new(&out, PollFlags::empty())];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut polled, Some(&at_once)).is_err() || !polled[0].revents().intersects(PollFlags::ERR | PollFlags::HUP)
}

/// Makes foreign text safe for a terminal. Control characters, and characters that turn the direction of the text, are
/// shown and not obeyed.
pub(crate) fn tame(text: &str) -> String {
    let mut tamed = String::with_capacity(text.len());
    for character in text.chars() {
        let turns = matches!(character, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        match character.is_control() || turns {
            true => tamed.extend(character.escape_default()),
            false => tamed.push(character),
        }
    }
    tamed
}

/// How many columns of a terminal the text takes.
pub(crate) fn width(text: &str) -> usize {
    text.width()
}

/// The beginning of the text that fits into so many columns, with a mark at its end if there was more.
pub(crate) fn shorten(text: &str, most: usize) -> String {
    if width(text) <= most {
        return text.to_owned();
    }
    let mut left = most.saturating_sub(1);
    let fits = |character: &char| {
        let width = character.width().unwrap_or(0);
        let fits = width <= left;
        left = left.saturating_sub(width);
        fits
    };
    text.chars().take_while(fits).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shortened_fits_also_where_characters_are_wide() {
        for text in ["", "plain", "日本語ラベル", "a日b本c", "e\u{301}e\u{301}e\u{301}"] {
            assert_eq!(shorten(text, 80), text);
            for most in 1..width(text) {
                let short = shorten(text, most);
                assert!(width(&short) <= most && width(&short) + 1 >= most && short.ends_with('…'), "{short:?} {most}");
            }
        }
    }
}
