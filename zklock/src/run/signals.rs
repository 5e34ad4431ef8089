//! Turns the signals of [`ENDING`], [`FAULTS`] and [`OTHERS`], and the real-time signals, into a stream. A signal that
//! was ignored when zklock was started stays ignored.
//!
//! zklock may be started with blocked signals, because a program inherits the signal mask of the program that starts
//! it. A blocked signal could not end zklock, so zklock unblocks all signals. When it starts the command, it sets the
//! inherited mask again for that time, so that the command inherits the same mask.

#[cfg(target_os = "linux")]
use std::thread;
use std::{fs, io};

#[cfg(target_os = "linux")]
use nix::sys::signal::Signal as NamedSignal;
use nix::sys::signal::{SigSet, SigmaskHow};
use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind, signal};
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};

use crate::exit::{self, Exit};

/// Signals that zklock listens to from the start of the command on. They never end zklock. It passes them on to the
/// command, except CONT, for which it decides whether to continue the command.
const OTHERS: [Signal; 6] = [Signal::WINCH, Signal::URG, Signal::TSTP, Signal::TTIN, Signal::TTOU, Signal::CONT];

/// Signals that end a process by default, except [`FAULTS`] and the real-time signals. KILL is missing, because it
/// cannot be caught. PIPE is missing, because zklock's own output may cause it. zklock listens to these signals before
/// it connects, unless they were ignored when zklock was started. Before the command runs, such a signal ends zklock.
/// Later zklock passes it on to the command.
const ENDING: &[Signal] = &[
    Signal::HUP,
    Signal::INT,
    Signal::QUIT,
    Signal::TERM,
    Signal::USR1,
    Signal::USR2,
    Signal::ALARM,
    Signal::VTALARM,
    Signal::PROF,
    Signal::XCPU,
    Signal::XFSZ,
    #[cfg(target_os = "linux")]
    Signal::IO,
    #[cfg(target_os = "linux")]
    Signal::POWER,
    #[cfg(target_os = "linux")]
    Signal::STKFLT,
];

/// Signals by which a program ends after a fault of its own. Another process can send them, too. zklock blocks them, if
/// it can, and a thread waits for those that another process sends. A handler cannot be used: after a real fault of
/// zklock, the handler would return to the faulty instruction. A real fault still ends zklock, although the signal is
/// blocked.
#[cfg(target_os = "linux")]
const FAULTS: [NamedSignal; 7] = [
    NamedSignal::SIGILL,
    NamedSignal::SIGTRAP,
    NamedSignal::SIGABRT,
    NamedSignal::SIGBUS,
    NamedSignal::SIGFPE,
    NamedSignal::SIGSEGV,
    NamedSignal::SIGSYS,
];

#[derive(Debug)]
pub(crate) struct Signals {
    sender: UnboundedSender<Signal>,
    receiver: UnboundedReceiver<Signal>,
    /// The signals that were blocked when zklock was started.
    before: SigSet,
}

impl Signals {
    /// Begins to deliver the signals of [`ENDING`], the real-time signals and, if `can_use_launcher` is set, the
    /// signals of [`FAULTS`]. `can_use_launcher` is from [`tie::can_use_launcher`].
    ///
    /// [`tie::can_use_launcher`]: crate::run::tie::can_use_launcher
    pub(crate) fn listen(can_use_launcher: bool) -> Result<Signals, Exit> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let mut signals = Signals { sender, receiver, before: SigSet::empty() };
        signals.listen_to(ENDING.iter().copied().chain(real_time_signals()))?;
        // The signals are unblocked after their handlers are set, because a signal may already be pending, and would
        // end zklock.
        let unblocked = SigSet::empty().thread_swap_mask(SigmaskHow::SIG_SETMASK);
        signals.before = unblocked.map_err(|error| cannot_listen_error(&error))?;
        // The signals of `FAULTS` are blocked only if the command is started through the launcher, a process that
        // unblocks them before it becomes the command. Without the launcher the command would inherit the blocked
        // signals.
        if can_use_launcher {
            signals.add_faults()?;
        }
        Ok(signals)
    }

    /// Begins to deliver the signals of [`OTHERS`], too.
    pub(crate) fn listen_to_all(&self) -> Result<(), Exit> {
        // zklock inherits it if its parent ignores SIGCHLD. Then the exit codes of children would be lost, unless there
        // is a handler for SIGCHLD.
        let _stays_registered = signal_stream(SignalKind::child())?;
        self.listen_to(OTHERS)
    }

    /// Calls `spawn`, which starts the command, with the signal mask that zklock was started with. If zklock has
    /// blocked the signals of [`FAULTS`], they stay blocked, because zklock still waits for them. The process that
    /// becomes the command unblocks them before it runs the command's program.
    pub(crate) fn with_inherited_mask<T>(&self, spawn: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        // `extend` keeps the real-time signals of the set, which have no names, but `|` would drop them.
        let mut mask = self.before;
        mask.extend(&SigSet::thread_get_mask()?);
        let ours = mask.thread_swap_mask(SigmaskHow::SIG_SETMASK)?;
        let spawned = spawn();
        // Setting the mask back cannot fail, because this thread had the same mask before.
        let _ = ours.thread_set_mask();
        spawned
    }

    /// Returns those signals of [`FAULTS`] that were blocked when zklock was started, as a set with a bit for each
    /// signal.
    pub(crate) fn faults_blocked_before(&self) -> u64 {
        #[cfg(target_os = "linux")]
        return FAULTS
            .into_iter()
            .filter(|which| self.before.contains(*which))
            .fold(0, |set, which| set | signal_bit(which as i32));
        #[cfg(not(target_os = "linux"))]
        0
    }

    pub(crate) async fn next_signal(&mut self) -> Signal {
        match self.receiver.recv().await {
            Some(signal) => signal,
            // `recv` never returns `None`, because `self` has a sender.
            None => std::future::pending().await,
        }
    }

    /// Takes all signals from the stream that have come so far, and returns the last one that is not in [`OTHERS`].
    pub(crate) fn take_pending(&mut self) -> Option<Signal> {
        let come = std::iter::from_fn(|| self.receiver.try_recv().ok());
        come.filter(|signal| !OTHERS.contains(signal)).last()
    }

    /// Puts a signal back, at the end of the stream.
    pub(crate) fn put_back(&self, signal: Signal) {
        // This cannot fail, because `self` has the receiver.
        let _ = self.sender.send(signal);
    }

    /// Waits for the next signal that is not in [`OTHERS`]. Drops the signals of [`OTHERS`] that come before it.
    pub(crate) async fn next_ending_signal(&mut self) -> Signal {
        loop {
            let signal = self.next_signal().await;
            if !OTHERS.contains(&signal) {
                return signal;
            }
        }
    }

    fn listen_to(&self, signals: impl IntoIterator<Item = Signal>) -> Result<(), Exit> {
        let ignored = ignored_signals();
        for which in signals.into_iter().filter(|which| !has_signal(ignored, which.as_raw())) {
            let mut stream = signal_stream(SignalKind::from_raw(which.as_raw()))?;
            let sender = self.sender.clone();
            tokio::spawn(async move { while stream.recv().await.is_some() && sender.send(which).is_ok() {} });
        }
        Ok(())
    }

    /// Blocks the signals of [`FAULTS`] that zklock does not ignore, for this thread and the threads that it starts
    /// later. Starts a thread that waits for these signals and puts them into the stream.
    #[cfg(target_os = "linux")]
    fn add_faults(&self) -> Result<(), Exit> {
        let ignored = ignored_signals();
        let faults: SigSet = FAULTS.into_iter().filter(|which| !has_signal(ignored, *which as i32)).collect();
        faults.thread_block().map_err(|error| cannot_listen_error(&error))?;
        let sender = self.sender.clone();
        let take = move || {
            while let Ok(signal) = faults.wait() {
                if Signal::from_named_raw(signal as i32).is_none_or(|signal| sender.send(signal).is_err()) {
                    return;
                }
            }
        };
        // If the system cannot start the thread, the signals are unblocked and have their default action.
        if thread::Builder::new().spawn(take).is_err() {
            unblock_fault_signals(0);
        }
        Ok(())
    }

    #[cfg(not(target_os = "linux"))]
    fn add_faults(&self) -> Result<(), Exit> {
        Ok(())
    }
}

/// Unblocks all signals. Only subcommands need this. A zklock that runs a command unblocks them in [`Signals::listen`].
pub(crate) fn unblock_all_signals() {
    // The error is ignored, because a subcommand also does its work if signals stay blocked.
    let _ = SigSet::empty().thread_set_mask();
}

/// Unblocks the signals of [`FAULTS`], except those in the set `blocked`.
#[cfg(target_os = "linux")]
pub(crate) fn unblock_fault_signals(blocked: u64) {
    let faults: SigSet = FAULTS.into_iter().filter(|which| !has_signal(blocked, *which as i32)).collect();
    // This cannot fail, because all these signals exist.
    let _ = faults.thread_unblock();
}

/// Returns the real-time signals, which have only numbers.
fn real_time_signals() -> impl Iterator<Item = Signal> {
    #[cfg(target_os = "linux")]
    return (0..).map_while(<Signal as rustix_libc_wrappers::process::SignalExt>::rt);
    #[cfg(not(target_os = "linux"))]
    return std::iter::empty();
}

pub(crate) fn signal_stream(kind: SignalKind) -> Result<unix::Signal, Exit> {
    signal(kind).map_err(|error| cannot_listen_error(&error))
}

fn cannot_listen_error(error: &dyn std::fmt::Display) -> Exit {
    Exit::new(exit::SYSTEM, format!("cannot listen to signals: {error}"))
}

/// Returns the set of signals that zklock ignores, or the empty set if the system does not report it. zklock and the
/// command keep ignoring a signal that was ignored at the start of zklock, for example by nohup(1) or by a shell
/// without job control.
pub(crate) fn ignored_signals() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let set = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).unwrap_or(0)
}

pub(crate) fn has_signal(set: u64, signal: i32) -> bool {
    set & signal_bit(signal) != 0
}

fn signal_bit(signal: i32) -> u64 {
    1 << (signal - 1)
}
