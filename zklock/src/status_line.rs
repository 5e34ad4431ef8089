//! A status line that is redrawn in place, while zklock is in the foreground of the terminal.

use std::io;
use std::time::Duration;

use crate::output::{self, shorten, width};
use crate::terminal;

/// The columns of `^C` or `^Z`, which the terminal shows when the user types Ctrl-C or Ctrl-Z.
const TYPED: usize = 2;

/// The longest wait until the status line is erased. The wait has a limit, because a terminal that is stopped (Ctrl-S)
/// prints nothing.
const TAKEN_BACK: Duration = Duration::from_millis(200);

/// A line on the terminal. Each [`StatusLine::draw`] overwrites it. Dropping this value erases it, if zklock is in the
/// foreground then.
#[derive(Debug, Default)]
pub(crate) struct StatusLine {
    is_drawn: bool,
}

impl StatusLine {
    /// Returns whether a line can be drawn: standard error is a terminal with cursor control, and zklock is in its
    /// foreground.
    pub(crate) fn can_be_drawn() -> bool {
        output::has_cursor_control(&io::stderr()) && terminal::is_background(io::stderr()) == Some(false)
    }

    /// Draws the first line of `briefer` that fits into the terminal. If none fits, draws the last line, shortened. In
    /// `briefer` each line has fewer details than the one before.
    pub(crate) fn draw(&mut self, briefer: impl IntoIterator<Item = String>) {
        let (columns, _) = terminal::columns_and_rows(io::stderr());
        let room = columns.saturating_sub(1 + TYPED);
        let lines: Vec<_> = briefer.into_iter().map(|line| format!("zklock: {line}")).collect();
        let line = lines.iter().find(|line| width(line) <= room).or(lines.last());
        let line = line.map_or_else(String::new, |line| shorten(line, room));
        output::queue_for_stderr(format!("\r\x1b[K{line}"));
        self.is_drawn = true;
    }
}

impl Drop for StatusLine {
    fn drop(&mut self) {
        // The line is erased only if zklock is in the foreground. In the background, another text, such as a prompt,
        // may stand in its place and would be erased.
        if self.is_drawn && StatusLine::can_be_drawn() {
            // zklock waits until the line is erased, because the command that zklock runs may write next.
            output::print_and_wait(TAKEN_BACK, "\r\x1b[K".to_owned());
        }
    }
}
