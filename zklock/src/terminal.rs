//! Which process group may read the terminal.
//!
//! The command runs in a process group of its own. So it can be stopped as a whole without stopping us, and it gets
//! Ctrl-C once. But only the foreground group of a terminal may read from it, and Ctrl-C goes to that group. So we do
//! as shells do, and lend the terminal to the command's group:
//! - at its start, if standard input and output are the terminal: then the user talks to the command;
//! - otherwise when it asks, which stops it by SIGTTIN or SIGTTOU. Until then the foreground is left to the processes
//!   that are in one pipe with us, such as `less` in `zklock ... | less`, and Ctrl-C comes to us and is passed on.

use std::cell::OnceCell;
use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;

use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use rustix::process::Pid;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcgetwinsize, tcsetattr, tcsetpgrp};

/// Our controlling terminal.
#[derive(Debug)]
pub(crate) struct Terminal {
    tty: File,
    ours: Pid,
    /// The terminal's settings before the command had it, if it did. At other times the settings belong to another
    /// process: to `less` in a pipe with us, or to a shell that reads its next line.
    settings: OnceCell<Termios>,
}

impl Terminal {
    /// `None` if we have no terminal, or none to lend.
    pub(crate) fn open() -> Option<Terminal> {
        let ours = our_group()?;
        let tty = OpenOptions::new().read(true).write(true).open("/dev/tty").ok()?;
        Some(Terminal { tty, ours, settings: OnceCell::new() })
    }

    /// Whether a command gets the terminal without asking.
    pub(crate) fn is_talked_to() -> bool {
        io::stdin().is_terminal() && io::stdout().is_terminal()
    }

    /// Whether the foreground is ours to lend.
    pub(crate) fn is_ours(&self) -> bool {
        tcgetpgrp(&self.tty).is_ok_and(|group| group == self.ours)
    }

    /// Whether that group has the foreground.
    pub(crate) fn is_lent_to(&self, group: Pid) -> bool {
        tcgetpgrp(&self.tty).is_ok_and(|foreground| foreground == group)
    }

    pub(crate) fn lend(&self, group: Pid) {
        if let Ok(settings) = tcgetattr(&self.tty) {
            self.settings.get_or_init(|| settings);
        }
        undisturbed(|| tcsetpgrp(&self.tty, group));
    }

    /// Takes the foreground back from a group that we lent it to.
    pub(crate) fn take_back(&self, group: Pid) {
        if self.is_lent_to(group) {
            undisturbed(|| tcsetpgrp(&self.tty, self.ours));
        }
    }

    /// Undoes what a command that was killed did to the terminal.
    pub(crate) fn restore(&self) {
        if let Some(settings) = self.settings.get().filter(|_| self.is_ours()) {
            undisturbed(|| tcsetattr(&self.tty, OptionalActions::Now, settings));
        }
    }
}

/// Our process group. It has no number here, hence `None`, if it began outside of our namespace of processes, as with
/// `unshare --pid`. The function of rustix knows no such group, and panics.
pub(crate) fn our_group() -> Option<Pid> {
    Pid::from_raw(nix::unistd::getpgrp().as_raw())
}

/// Whether that is our controlling terminal, and its foreground is ours.
pub(crate) fn is_foreground(of: impl AsFd) -> bool {
    tcgetpgrp(of).is_ok_and(|group| Some(group) == our_group())
}

/// Whether another group has the foreground of that terminal. `None` if the terminal controls no process of our session.
pub(crate) fn is_background(of: impl AsFd) -> Option<bool> {
    tcgetpgrp(of).ok().map(|group| Some(group) != our_group())
}

/// How many columns and rows the terminal of this stream has.
pub(crate) fn size(of: impl AsFd) -> (usize, usize) {
    let known = tcgetwinsize(of).ok().filter(|size| size.ws_col > 0 && size.ws_row > 0);
    known.map_or((80, 24), |size| (size.ws_col.into(), size.ws_row.into()))
}

/// Changes the terminal from the background, or writes to it. SIGTTOU, which would stop us for that, is held off meanwhile.
pub(crate) fn undisturbed<T>(change: impl FnOnce() -> T) {
    let mut held_off = SigSet::empty();
    held_off.add(Signal::SIGTTOU);
    if let Ok(before) = held_off.thread_swap_mask(SigmaskHow::SIG_BLOCK) {
        // The terminal may be gone. Then there is nothing to change.
        let _ = change();
        let _ = before.thread_set_mask();
    }
}
