//! Delivers the signals that zklock receives as a stream. SIGCHLD is not part of it.

use std::fs;
#[cfg(target_os = "linux")]
use std::thread;

#[cfg(target_os = "linux")]
use nix::sys::signal::{SigSet, Signal as NamedSignal};
use rustix::process::{Signal, getpid};
use tokio::signal::unix::{self, SignalKind, signal};
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};

use crate::child;
use crate::exit::{self, Exit};
#[cfg(target_os = "linux")]
use crate::tie;

/// Signals that concern only a running command. All other signals that can be caught are passed on to a running
/// command, and end a zklock that waits, once it has left the queue.
const OTHERS: [Signal; 6] = [Signal::WINCH, Signal::URG, Signal::TSTP, Signal::TTIN, Signal::TTOU, Signal::CONT];

/// Signals that end a process by default, except [`FAULTS`] and the real-time signals. PIPE is missing, because
/// zklock's own output may cause it.
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

/// Signals that the kernel sends to a faulty program. If another process sends one of them, a thread takes it from the
/// queue of blocked signals. A handler would not do: after a real fault of zklock it would return to the faulty
/// instruction. A real fault still ends zklock.
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
}

impl Signals {
    /// Begins to deliver the signals that would end zklock.
    pub(crate) fn listen() -> Result<Signals, Exit> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let signals = Signals { sender, receiver };
        signals.add(ENDING.iter().copied().chain(real_time()))?;
        signals.add_faults()?;
        if getpid().is_init() {
            let mut ended = stream(SignalKind::child())?;
            tokio::spawn(async move {
                while ended.recv().await.is_some() {
                    child::reap_orphans();
                }
            });
        }
        Ok(signals)
    }

    /// Begins to deliver also the signals that concern only a command.
    pub(crate) fn listen_to_all(&self) -> Result<(), Exit> {
        // The parent of zklock may have ignored SIGCHLD. Then the exit codes of children would be lost.
        let _stays_registered = stream(SignalKind::child())?;
        self.add(OTHERS)
    }

    pub(crate) async fn next(&mut self) -> Signal {
        match self.receiver.recv().await {
            Some(signal) => signal,
            // Never happens, because `self` has a sender.
            None => std::future::pending().await,
        }
    }

    /// Waits for the next signal that would end zklock. Signals for a command are passed over, because no command runs.
    pub(crate) async fn next_ending(&mut self) -> Signal {
        loop {
            let signal = self.next().await;
            if !OTHERS.contains(&signal) {
                return signal;
            }
        }
    }

    fn add(&self, signals: impl IntoIterator<Item = Signal>) -> Result<(), Exit> {
        let ignored = ignored();
        for which in signals.into_iter().filter(|which| !is_in(ignored, which.as_raw())) {
            let mut stream = stream(SignalKind::from_raw(which.as_raw()))?;
            let sender = self.sender.clone();
            tokio::spawn(async move { while stream.recv().await.is_some() && sender.send(which).is_ok() {} });
        }
        Ok(())
    }

    /// Blocks the signals of [`FAULTS`] for this thread and the threads that it starts later, and takes them from the
    /// queue.
    #[cfg(target_os = "linux")]
    fn add_faults(&self) -> Result<(), Exit> {
        if !tie::has_stage() {
            // Without the stage a command would inherit the blocked signals, and never get them.
            return Ok(());
        }
        let ignored = ignored();
        let faults: SigSet = FAULTS.into_iter().filter(|which| !is_in(ignored, *which as i32)).collect();
        faults.thread_block().map_err(|error| cannot_listen(&error))?;
        let sender = self.sender.clone();
        let take = move || {
            while let Ok(signal) = faults.wait() {
                if Signal::from_named_raw(signal as i32).is_none_or(|signal| sender.send(signal).is_err()) {
                    return;
                }
            }
        };
        // Without a thread the signals keep their default action.
        if thread::Builder::new().spawn(take).is_err() {
            restore();
        }
        Ok(())
    }

    #[cfg(not(target_os = "linux"))]
    fn add_faults(&self) -> Result<(), Exit> {
        Ok(())
    }
}

/// Unblocks the signals that the parent zklock has blocked for its own threads.
#[cfg(target_os = "linux")]
pub(crate) fn restore() {
    // This cannot fail, because all these signals exist.
    let _ = FAULTS.into_iter().collect::<SigSet>().thread_unblock();
}

/// Returns the real-time signals, which have only numbers.
fn real_time() -> impl Iterator<Item = Signal> {
    #[cfg(target_os = "linux")]
    return (0..).map_while(<Signal as rustix_libc_wrappers::process::SignalExt>::rt);
    #[cfg(not(target_os = "linux"))]
    return std::iter::empty();
}

fn stream(kind: SignalKind) -> Result<unix::Signal, Exit> {
    signal(kind).map_err(|error| cannot_listen(&error))
}

fn cannot_listen(error: &dyn std::fmt::Display) -> Exit {
    Exit::new(exit::SYSTEM, format!("cannot listen to signals: {error}"))
}

/// Returns the set of ignored signals, if the system reports it. A signal that nohup(1), or a shell without job
/// control, set to be ignored stays ignored, also by the command.
fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let set = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).unwrap_or(0)
}

fn is_in(set: u64, signal: i32) -> bool {
    set & (1 << (signal - 1)) != 0
}
