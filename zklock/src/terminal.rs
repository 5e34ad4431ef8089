//! Lends the terminal to the command and takes it back.
//!
//! The command runs in a process group of its own. So the command can be stopped without stopping zklock, and gets each
//! Ctrl-C only once. But only the foreground group of a terminal may read from the terminal and gets Ctrl-C. So if
//! zklock is in the foreground, it lends the terminal to the command's group, as a shell does:
//! - at the start of the command, if standard input and output are terminals, because then the user talks to the
//!   command;
//! - otherwise when the command uses the terminal and the system therefore stops it by SIGTTIN or SIGTTOU. Until then
//!   the foreground is left to the processes that share a pipe with zklock, such as `less` in `zklock ... | less`.
//!   zklock receives Ctrl-C and passes it on to the command.
//!
//! A helper process, the key listener, tells zklock whether Ctrl-C was typed ([`crate::run::key_listener`]). While the
//! command has the terminal, zklock itself does not get Ctrl-C.

use std::cell::OnceCell;
use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;

use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use rustix::process::Pid;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcgetwinsize, tcsetattr, tcsetpgrp};

/// The controlling terminal of zklock.
#[derive(Debug)]
pub(crate) struct Terminal {
    tty: File,
    our_group: Pid,
    /// The terminal's settings when it was first lent to the command. They are not read earlier, because another
    /// process may have changed them for a while: `less` in a pipe with zklock, or a shell that reads its next line.
    settings: OnceCell<Termios>,
}

impl Terminal {
    /// Opens the controlling terminal. Returns `None` if that fails, for example because there is none, or if
    /// [`our_group`] returns `None`.
    pub(crate) fn open() -> Option<Terminal> {
        let our_group = our_group()?;
        let tty = OpenOptions::new().read(true).write(true).open("/dev/tty").ok()?;
        Some(Terminal { tty, our_group, settings: OnceCell::new() })
    }

    /// Returns whether the command gets the terminal at its start: if standard input and output are terminals, zklock
    /// assumes that the user talks to the command.
    pub(crate) fn is_interactive() -> bool {
        io::stdin().is_terminal() && io::stdout().is_terminal()
    }

    /// Returns the process group of zklock.
    pub(crate) fn our_group(&self) -> Pid {
        self.our_group
    }

    /// Returns whether zklock's group has the foreground of the terminal.
    pub(crate) fn is_ours(&self) -> bool {
        tcgetpgrp(&self.tty).is_ok_and(|group| group == self.our_group)
    }

    /// Returns whether this group has the foreground of the terminal.
    pub(crate) fn is_lent_to(&self, group: Pid) -> bool {
        tcgetpgrp(&self.tty).is_ok_and(|foreground| foreground == group)
    }

    pub(crate) fn lend_to(&self, group: Pid) {
        if let Ok(settings) = tcgetattr(&self.tty) {
            self.settings.get_or_init(|| settings);
        }
        with_sigttou_blocked(|| tcsetpgrp(&self.tty, group));
    }

    /// Makes zklock's group the foreground group of the terminal, if `group` has the foreground.
    pub(crate) fn take_back_from(&self, group: Pid) {
        if self.is_lent_to(group) {
            with_sigttou_blocked(|| tcsetpgrp(&self.tty, self.our_group));
        }
    }

    /// Restores the settings that the terminal had before it was first lent, if it was lent and zklock has the
    /// foreground. A killed command cannot restore them itself.
    pub(crate) fn restore_settings(&self) {
        if let Some(settings) = self.settings.get().filter(|_| self.is_ours()) {
            with_sigttou_blocked(|| tcsetattr(&self.tty, OptionalActions::Now, settings));
        }
    }
}

/// Returns the process group of zklock. `None` if the group has no number in this PID namespace, because it began
/// outside of the namespace, as with `unshare --pid`. `rustix::process::getpgrp` would panic for such a group.
pub(crate) fn our_group() -> Option<Pid> {
    Pid::from_raw(nix::unistd::getpgrp().as_raw())
}

/// Returns whether another group than zklock's has the foreground of the terminal `of`. `None` if `of` is not the
/// controlling terminal of zklock's Unix session (setsid(2)).
pub(crate) fn is_background(of: impl AsFd) -> Option<bool> {
    tcgetpgrp(of).ok().map(|group| Some(group) != our_group())
}

/// Returns the columns and rows of the terminal of this stream, or 80 columns and 24 rows if either number is unknown.
pub(crate) fn columns_and_rows(of: impl AsFd) -> (usize, usize) {
    let known = tcgetwinsize(of).ok().filter(|size| size.ws_col > 0 && size.ws_row > 0);
    known.map_or((80, 24), |size| (size.ws_col.into(), size.ws_row.into()))
}

/// Calls `change`, which changes the terminal or writes to it, with SIGTTOU blocked. If SIGTTOU were not blocked, it
/// would stop a zklock that does this in the background. Does nothing if the signal cannot be blocked.
pub(crate) fn with_sigttou_blocked<T>(change: impl FnOnce() -> T) {
    let mut held_off = SigSet::empty();
    held_off.add(Signal::SIGTTOU);
    if let Ok(before) = held_off.thread_swap_mask(SigmaskHow::SIG_BLOCK) {
        // An error is ignored, because zklock has no other way to make the change. The change fails, for example, if
        // the terminal is gone or the command's group has ended.
        let _ = change();
        let _ = before.thread_set_mask();
    }
}
