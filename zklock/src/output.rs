//! Prints messages for people on standard error, and results on standard output.

use std::convert::Infallible;
use std::ffi::OsStr;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::sync::OnceLock;
use std::sync::mpsc::{self, Sender, SyncSender};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::exit::{self, Exit};
use crate::terminal;

/// The number of texts for standard error that can be queued. If the queue is full, a further text is dropped.
const UNREAD_MAX: usize = 1000;

/// The longest wait of [`print_message`] and [`finish_messages`]. It is short, because the wait blocks the thread that
/// handles signals.
const FAREWELL: Duration = Duration::from_secs(1);

/// Returns whether the stream is a terminal that should have cursor control: `TERM` is set, and not to `dumb`.
pub(crate) fn has_cursor_control(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && std::env::var_os("TERM").is_some_and(|term| term != "dumb")
}

/// Returns whether results may be coloured: standard output is a terminal with cursor control, and `NO_COLOR` is unset
/// or empty (<https://no-color.org>).
pub(crate) fn is_colourful() -> bool {
    let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    has_cursor_control(&io::stdout()) && !unwanted
}

/// Prints `zklock: ` and a message, as [`print_and_wait`] does with the limit [`FAREWELL`]. A failure is ignored,
/// because zklock goes on even if nobody reads its messages.
pub(crate) fn print_message(words: &str) {
    print_message_within(FAREWELL, words);
}

/// Prints a message as [`print_message`] does, but waits at most `limit`. A message that is not written by then stays queued.
pub(crate) fn print_message_within(limit: Duration, words: &str) {
    // zklock waits so that the message appears before later output, for example that of the command.
    print_and_wait(limit, format!("zklock: {words}\n"));
}

/// A text to print, and a sender if [`print_and_wait`] waits for the text. The printing thread drops the sender after
/// it has written the text, and so ends the wait.
type QueuedText = (String, Option<Sender<Infallible>>);

/// The channel to the thread that prints. The first text starts the thread. If the system could not start the thread,
/// this is `None`, and [`enqueue`] writes each text itself.
static PRINTER: OnceLock<Option<SyncSender<QueuedText>>> = OnceLock::new();

/// Queues a text for the thread that writes to standard error. The text is dropped if the queue is full. If there is no
/// such thread, this function writes the text itself.
pub(crate) fn queue_for_stderr(text: String) {
    enqueue((text, None));
}

/// Waits up to [`FAREWELL`] until all queued texts are written. Does not wait if the queue is full, because then
/// probably nobody reads standard error.
pub(crate) fn finish_messages() {
    if PRINTER.get().is_some() {
        print_and_wait(FAREWELL, String::new());
    }
}

/// Queues a text as [`queue_for_stderr`] does, and waits up to `limit` until the text is written or dropped. If there is no
/// printing thread, this function writes the text itself, without a limit.
pub(crate) fn print_and_wait(limit: Duration, text: String) {
    let (sender, printed) = mpsc::channel();
    enqueue((text, Some(sender)));
    // Nothing is ever sent. This call returns when the printing thread drops the sender, or after `limit`.
    let _ = printed.recv_timeout(limit);
}

fn enqueue(text: QueuedText) {
    match PRINTER.get_or_init(start_printer) {
        Some(printer) => drop(printer.try_send(text)),
        None => drop(io::stderr().write_all(text.0.as_bytes())),
    }
}

fn start_printer() -> Option<SyncSender<QueuedText>> {
    let (sender, texts) = mpsc::sync_channel::<QueuedText>(UNREAD_MAX);
    let print = move || {
        terminal::with_sigttou_blocked(|| {
            texts.into_iter().for_each(|(text, _sender)| drop(io::stderr().write_all(text.as_bytes())))
        });
    };
    thread::Builder::new().spawn(print).is_ok().then_some(sender)
}

/// Prints a result in as few writes as possible, so that after a stop (Ctrl-Z) the screen usually shows either the
/// whole result or nothing. Returns `Ok(false)` if standard output has no reader any more, as after `| head`, and an
/// error if a write fails for another reason.
pub(crate) fn print_result(text: &str) -> Result<bool, Exit> {
    let out = io::stdout().lock();
    let mut left = text.as_bytes();
    while !left.is_empty() {
        match rustix::io::write(&out, left) {
            Ok(length) => left = &left[length..],
            Err(Errno::INTR) => {}
            Err(error) => return result_of_write(Err(error.into())),
        }
    }
    Ok(true)
}

/// Turns the outcome of a write to standard output into the result of [`print_result`].
pub(crate) fn result_of_write(outcome: io::Result<()>) -> Result<bool, Exit> {
    match outcome {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Exit::new(exit::NOT_WRITTEN, format!("cannot write to standard output: {error}"))),
    }
}

/// Returns `false` if standard output has no reader any more, as after `| head`. The poll finds this out without a
/// write.
pub(crate) fn has_reader() -> bool {
    let out = io::stdout();
    let mut polled = [PollFd::new(&out, PollFlags::empty())];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut polled, Some(&at_once)).is_err() || !polled[0].revents().intersects(PollFlags::ERR | PollFlags::HUP)
}

/// Makes text from other users safe for a terminal: escapes the characters for which [`is_control`] returns `true`.
pub(crate) fn escape_controls(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match is_control(character) {
            true => escaped.extend(character.escape_default()),
            false => escaped.push(character),
        }
    }
    escaped
}

/// The length of the longest line that a message shows whole, in characters. The library's longest valid path, 1024
/// bytes, fits.
const LONGEST_LINE: usize = 4000;

/// The width, in columns, to which an overlong line of a message, or a long argument in a message, is shortened.
const SHORT_LINE: usize = 300;

/// Prepares a message with text from other users for the terminal: escapes control characters, and shortens each line
/// of more than [`LONGEST_LINE`] characters.
pub(crate) fn escape_and_shorten(words: &str) -> String {
    let line = |line: &str| {
        let is_long = line.chars().nth(LONGEST_LINE).is_some();
        escape_controls(&if is_long { shorten_in_the_middle(line, SHORT_LINE) } else { line.to_owned() })
    };
    words.split('\n').map(line).collect::<Vec<_>>().join("\n")
}

/// Returns an argument as a message shows it: in quotation marks, with escapes, and shortened in the middle if it is
/// long.
pub(crate) fn quote_argument(argument: &OsStr) -> String {
    shorten_argument(&format!("{argument:?}"))
}

/// Returns the text of an argument as a message shows it: shortened in the middle if it is long.
pub(crate) fn shorten_argument(argument: &str) -> String {
    shorten_in_the_middle(argument, SHORT_LINE)
}

/// Prints the help, or an error about the arguments, as clap does. An error that quotes a long argument may have a line
/// of more than [`SHORT_LINE`] characters. Then the long lines are shortened, and the error is printed without colours.
pub(crate) fn print_clap_error(error: &clap::Error) -> io::Result<()> {
    let words = error.to_string();
    if error.use_stderr() && words.lines().any(|line| line.chars().nth(SHORT_LINE).is_some()) {
        let short = words.lines().map(|line| escape_controls(&shorten_argument(line)) + "\n").collect::<String>();
        return io::stderr().write_all(short.as_bytes());
    }
    error.print()
}

/// Makes JSON safe for a terminal: replaces control characters by `\u` escapes, which JSON allows within strings. ASCII
/// white space stays, because serde_json leaves it only between values.
pub(crate) fn escape_controls_in_json(json: &str) -> String {
    let mut escaped = String::with_capacity(json.len());
    for character in json.chars() {
        match is_control(character) && !character.is_ascii_whitespace() {
            true => escaped.push_str(&format!("\\u{:04x}", u32::from(character))),
            false => escaped.push(character),
        }
    }
    escaped
}

/// Returns whether the character could change a terminal or the arrangement of the text: a control character, one that
/// sets the direction of text, or a line or paragraph separator.
pub(crate) fn is_control(character: char) -> bool {
    let turns =
        matches!(character, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    character.is_control() || turns || matches!(character, '\u{2028}' | '\u{2029}')
}

/// Returns how many columns of a terminal the text takes.
pub(crate) fn width(text: &str) -> usize {
    text.width()
}

/// The greatest number of characters for each column: [`longest_beginning`] and [`longest_end`] may fill a number of
/// columns, and return at most this many characters for each of them. Some characters take no column, so without this
/// limit a text of few columns could have very many characters.
const STACKED: usize = 4;

fn fits(text: &str, most: usize) -> bool {
    text.chars().nth(STACKED.saturating_mul(most)).is_none() && width(text) <= most
}

/// Returns the text if it fits into `most` columns. Otherwise returns its beginning with [`MORE`] at the end. This also
/// fits into `most` columns, unless `most` is zero, because [`MORE`] alone takes a column.
pub(crate) fn shorten(text: &str, most: usize) -> String {
    if fits(text, most) {
        return text.to_owned();
    }
    format!("{}{MORE}", longest_beginning(text, most.saturating_sub(1)))
}

/// Returns the text if it fits into `most` columns. Otherwise returns its beginning and its end with [`MORE`] between
/// them. This also fits into `most` columns, unless `most` is zero, because [`MORE`] alone takes a column.
pub(crate) fn shorten_in_the_middle(text: &str, most: usize) -> String {
    if fits(text, most) {
        return text.to_owned();
    }
    let left = most.saturating_sub(1);
    let begins = longest_beginning(text, left - left / 2);
    // A character without width belongs to the character before it. So `ends` must not begin with such a character.
    let ends =
        longest_end(&text[begins.len()..], left - width(begins)).trim_start_matches(|c: char| c.width() == Some(0));
    format!("{begins}{MORE}{ends}")
}

/// The mark in place of the part that a shortened text leaves out.
const MORE: char = '…';

/// Returns as much of the beginning as fits into `most` columns, within the limit of [`STACKED`]. Measures each
/// possible beginning as a whole, because some characters are wider together than alone.
fn longest_beginning(text: &str, most: usize) -> &str {
    let ends = text.char_indices().take(STACKED.saturating_mul(most)).map(|(at, character)| at + character.len_utf8());
    let fitting = ends.take_while(|&at| width(&text[..at]) <= most).last();
    &text[..fitting.unwrap_or(0)]
}

/// Returns as much of the end as fits into `most` columns, within the limit of [`STACKED`].
fn longest_end(text: &str, most: usize) -> &str {
    let starts = text.char_indices().rev().take(STACKED.saturating_mul(most)).map(|(at, _)| at);
    let fitting = starts.take_while(|&at| width(&text[at..]) <= most).last();
    &text[fitting.unwrap_or(text.len())..]
}

/// Returns the time in its two greatest units that are not zero, such as `1h 5m`. Leaves out parts of a second.
pub(crate) fn duration_in_two_units(time: Duration) -> String {
    let whole = humantime::format_duration(Duration::from_secs(time.as_secs())).to_string();
    whole.split(' ').take(2).collect::<Vec<_>>().join(" ")
}

/// Returns a time without parts of a millisecond.
pub(crate) fn duration_text_to_millis(time: Duration) -> String {
    let whole = Duration::from_millis(u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
    humantime::format_duration(whole).to_string()
}

/// Breaks a line between words into lines of at most `most` columns. A longer word stays whole, because it may be a
/// path that a user copies. Continuation lines are indented by two more columns. Without `most` the line stays whole.
pub(crate) fn wrap_line(line: &str, most: Option<usize>) -> String {
    let Some(most) = most.filter(|most| width(line) > *most) else { return line.to_owned() };
    let words = line.trim_start_matches(' ');
    let indent = " ".repeat(line.len() - words.len());
    let (mut text, mut used) = (indent.clone(), indent.len());
    for (at, word) in words.split(' ').enumerate() {
        if at > 0 && used + 1 + width(word) > most {
            text.push_str(&format!("\n{indent}  "));
            used = indent.len() + 2;
        } else if at > 0 {
            text.push(' ');
            used += 1;
        }
        text.push_str(word);
        used += width(word);
    }
    text
}

/// Returns how many columns a table on this stream may take. `None` means that there is no limit, because the stream is
/// no terminal.
pub(crate) fn terminal_columns(of: &(impl IsTerminal + AsFd)) -> Option<usize> {
    of.is_terminal().then(|| terminal::columns_and_rows(of).0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shortened_text_fits_with_wide_characters() {
        for text in ["", "plain", "日本語ラベル", "a日b本c", "e\u{301}e\u{301}e\u{301}"] {
            assert_eq!(shorten(text, 80), text);
            for most in 1..width(text) {
                let short = shorten(text, most);
                assert!(width(&short) <= most && width(&short) + 1 >= most && short.ends_with('…'), "{short:?} {most}");
            }
        }
    }

    #[test]
    fn text_cut_in_the_middle_keeps_both_ends() {
        assert_eq!(shorten_in_the_middle("web-frontend-17", 15), "web-frontend-17");
        assert_eq!(shorten_in_the_middle("web-frontend-17", 8), "web-…-17");
        assert_eq!(shorten_in_the_middle("e\u{301}e\u{301}e\u{301}e\u{301}", 3), "e\u{301}…e\u{301}");
        for text in
            ["web-frontend-17", "日本語のホスト名", "a日b本c語", "\u{2764}\u{fe0f}\u{2764}\u{fe0f}\u{2764}\u{fe0f}"]
        {
            for most in 1..width(text) {
                let short = shorten_in_the_middle(text, most);
                assert!(width(&short) <= most && short.contains('…'), "{short:?} {most}");
                assert!(most < 5 || !short.starts_with('…') && !short.ends_with('…'), "{short:?} {most}");
            }
        }
    }

    #[test]
    fn zero_width_text_is_cut_to_a_limited_length() {
        for begins in ["", "e", "日本"] {
            let marks = format!("{begins}{}", "\u{301}".repeat(5_000));
            let (short, middle) = (shorten(&marks, 40), shorten_in_the_middle(&marks, 40));
            assert!(short.chars().count() <= 161 && short.ends_with('…'), "{short:?}");
            assert!(middle.chars().count() <= 161 && middle.contains('…'), "{middle:?}");
        }
    }

    #[test]
    fn escaped_json_parses_to_the_same_value() {
        let foreign = serde_json::json!({ "label": "a\u{9b}31m\u{202e}b\u{7f}\u{2028}日本\n\"" });
        for json in [foreign.to_string(), format!("{foreign:#}")] {
            let escaped = escape_controls_in_json(&json);
            assert!(!escaped.chars().any(|c| is_control(c) && c != '\n'), "{escaped:?}");
            assert!(escaped.contains("\\u009b31m\\u202eb\\u007f\\u2028日本"), "{escaped}");
            assert_eq!(serde_json::from_str::<serde_json::Value>(&escaped).expect("valid JSON"), foreign);
        }
    }

    #[test]
    fn lines_wrap_between_words_only() {
        let line = "  one pid 1 waits for /a/very/long/path, which two pid 2 holds";
        assert_eq!(wrap_line(line, None), line);
        assert_eq!(wrap_line(line, Some(width(line))), line);
        let expected = "  one pid 1 waits\n    for\n    /a/very/long/path,\n    which two pid 2\n    holds";
        assert_eq!(wrap_line(line, Some(19)), expected);
        assert_eq!(wrap_line("/long/path: free", Some(3)), "/long/path:\n  free");
    }

    #[test]
    fn control_characters_are_shown_escaped() {
        assert_eq!(escape_controls("plain 日本 é"), "plain 日本 é");
        assert_eq!(escape_controls("\x1b[2J"), "\\u{1b}[2J");
        assert_eq!(
            escape_controls("a\u{202e}b\u{2066}c"),
            "a\\u{202e}b\\u{2066}c",
            "the characters change the direction of the text"
        );
        assert_eq!(escape_controls("a\u{200f}b\u{2028}c\u{9b}d"), "a\\u{200f}b\\u{2028}c\\u{9b}d");
        assert_eq!(escape_controls("a\nb"), "a\\nb");
    }

    #[test]
    fn a_broken_pipe_is_no_error_but_a_full_disk_is() {
        assert!(result_of_write(Ok(())).is_ok_and(|has_reader| has_reader));
        assert!(result_of_write(Err(io::ErrorKind::BrokenPipe.into())).is_ok_and(|has_reader| !has_reader));
        assert!(
            result_of_write(Err(io::ErrorKind::StorageFull.into())).is_err_and(|exit| exit.code() == exit::NOT_WRITTEN)
        );
    }
}
