//! The command: a process group that is signalled as a whole; knows no locks.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child as Process, Command};
use std::thread;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, getpgrp, getpid, kill_process, kill_process_group, waitid};
use tokio::sync::mpsc::{self, UnboundedReceiver};

use crate::exit;
use crate::terminal::Terminal;

/// What happened to the command's own process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Stopped(Signal),
    Ended,
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reaped {
    /// Its exit code, as a shell tells it.
    pub(crate) code: u8,
    /// What ended it was typed (Ctrl-C), and nobody but it was told, because it had the terminal.
    typed: Option<Signal>,
}

impl Reaped {
    /// Has those who started us, a script or `make`, hear what was typed, as if the terminal had been theirs.
    pub(crate) fn pass_on(self) {
        if let Some(signal) = self.typed {
            let _ = kill_process_group(getpgrp(), signal);
        }
    }
}

/// A command that runs. It is reaped only by [`Child::reap`], so that its number stays its own until then, and no
/// signal can hit a stranger.
#[derive(Debug)]
pub(crate) struct Child {
    process: Process,
    group: Pid,
    events: UnboundedReceiver<Event>,
    terminal: Option<Terminal>,
    /// It was stopped together with us, while it had the terminal.
    was_foreground: bool,
}

impl Child {
    /// Starts it, in a process group of its own.
    pub(crate) fn spawn(words: &[OsString], environment: &[(&str, String)]) -> io::Result<Child> {
        let (program, arguments) = words.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let terminal = Terminal::open();
        let lends = Terminal::is_talked_to() && terminal.as_ref().is_some_and(Terminal::is_ours);
        let mut command = Command::new(program);
        command.args(arguments).process_group(0);
        command.envs(environment.iter().map(|(name, value)| (name, value)));
        let process = command.spawn()?;
        let group = Pid::from_child(&process);
        let (sender, events) = mpsc::unbounded_channel();
        thread::spawn(move || {
            while let Some(event) = next_event(group) {
                if sender.send(event).is_err() || event == Event::Ended {
                    return;
                }
            }
        });
        let child = Child { process, group, events, terminal, was_foreground: false };
        if lends {
            child.lend_terminal();
        }
        Ok(child)
    }

    pub(crate) async fn next_event(&mut self) -> Event {
        self.events.recv().await.unwrap_or(Event::Ended)
    }

    /// Signals the whole group.
    pub(crate) fn signal(&self, signal: Signal) {
        // Refused only if nobody is left in it, or to whom we may not.
        let _ = kill_process_group(self.group, signal);
    }

    /// Lets it go on, if it was stopped; with the terminal, if it had it before.
    pub(crate) fn resume(&mut self) {
        let lends = std::mem::take(&mut self.was_foreground);
        if lends && self.terminal.as_ref().is_some_and(Terminal::is_ours) {
            self.lend_terminal();
        } else {
            self.signal(Signal::CONT);
        }
    }

    /// It was stopped. If the terminal did that we do as a shell's job does: it gets the terminal, or we stop too, so
    /// that the shell sees it, until `fg` or `bg`.
    pub(crate) fn was_stopped(&mut self, by: Signal) {
        let Some(terminal) = &self.terminal else { return };
        let lent = terminal.is_lent_to(self.group);
        match by {
            // It asked before it had been lent the terminal.
            Signal::TTIN | Signal::TTOU if lent => self.signal(Signal::CONT),
            Signal::TTIN | Signal::TTOU if terminal.is_ours() => self.lend_terminal(),
            Signal::TSTP | Signal::TTIN | Signal::TTOU => {
                terminal.take_back(self.group);
                self.was_foreground = lent || by != Signal::TSTP;
                // Whoever had Ctrl-Z for himself has to share it with those who started him, such as a script.
                let _ = if lent { kill_process_group(terminal.ours(), Signal::STOP) } else { stop_self() };
            }
            // Somebody wants it to stand still. We do not, because the lock would be lost.
            _ => {}
        }
    }

    /// Takes the terminal back and reaps the process, which must have ended.
    pub(crate) fn reap(mut self) -> Reaped {
        let status = self.process.wait();
        let signal = status.as_ref().ok().and_then(ExitStatusExt::signal);
        let mut typed = None;
        if let Some(terminal) = &self.terminal {
            if terminal.is_lent_to(self.group) {
                typed = [Signal::INT, Signal::QUIT].into_iter().find(|typed| signal == Some(typed.as_raw()));
            }
            terminal.take_back(self.group);
            if signal.is_some() {
                terminal.restore();
            }
        }
        let code = match (signal, status) {
            (Some(signal), _) => exit::by_signal(signal),
            (None, Ok(status)) => status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX),
            (None, Err(_)) => u8::MAX,
        };
        Reaped { code, typed }
    }

    fn lend_terminal(&self) {
        if let Some(terminal) = &self.terminal {
            terminal.lend(self.group);
        }
        // It may have asked already, and have been stopped for it.
        self.signal(Signal::CONT);
    }
}

fn stop_self() -> rustix::io::Result<()> {
    kill_process(getpid(), Signal::STOP)
}

/// Blocks until something happened to the process. One that ended is left to be reaped.
fn next_event(process: Pid) -> Option<Event> {
    loop {
        match waitid(WaitId::Pid(process), WaitIdOptions::EXITED | WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT) {
            Ok(Some(status)) if status.stopped() => {
                // Taken, so that it is not told again.
                let stop = waitid(WaitId::Pid(process), WaitIdOptions::STOPPED | WaitIdOptions::NOHANG).ok().flatten();
                let signal = stop.and_then(|stop| stop.stopping_signal()).and_then(Signal::from_named_raw);
                if let Some(signal) = signal {
                    return Some(Event::Stopped(signal));
                }
            }
            Ok(Some(_)) => return Some(Event::Ended),
            Ok(None) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return None,
        }
    }
}
