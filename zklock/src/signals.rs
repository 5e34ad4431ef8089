//! The signals that zklock gets, as a stream; knows nothing of their effects.

use std::fs;

use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind, signal};
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};

use crate::exit::{self, Exit};

/// Signals that end zklock while it waits, after it has left the queue. They are passed on to a command that runs.
const ENDING: [Signal; 6] = [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM, Signal::USR1, Signal::USR2];

/// Signals that concern only a command that runs.
const OTHERS: [Signal; 3] = [Signal::WINCH, Signal::TSTP, Signal::CONT];

#[derive(Debug)]
pub(crate) struct Signals {
    sender: UnboundedSender<Signal>,
    receiver: UnboundedReceiver<Signal>,
}

impl Signals {
    /// From now on, signals that would end us come through this stream instead.
    pub(crate) fn listen() -> Result<Signals, Exit> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let signals = Signals { sender, receiver };
        signals.add(&ENDING)?;
        Ok(signals)
    }

    /// From now on, signals that are passed on to a command come through this stream, too.
    pub(crate) fn listen_to_all(&self) -> Result<(), Exit> {
        // The process that started us may have ignored SIGCHLD. Then we would get no exit code of a child.
        let _stays_registered = stream(SignalKind::child())?;
        self.add(&OTHERS)
    }

    pub(crate) async fn next(&mut self) -> Signal {
        match self.receiver.recv().await {
            Some(signal) => signal,
            // Never happens: we have a sender ourselves.
            None => std::future::pending().await,
        }
    }

    /// The next one that would end us. The others concern only a command, and none runs.
    pub(crate) async fn next_ending(&mut self) -> Signal {
        loop {
            let signal = self.next().await;
            if ENDING.contains(&signal) {
                return signal;
            }
        }
    }

    fn add(&self, signals: &[Signal]) -> Result<(), Exit> {
        let ignored = ignored();
        // A signal that nohup(1), or a shell without job control, had us ignore stays ignored, by the command too.
        for &which in signals.iter().filter(|which| ignored & (1 << (which.as_raw() - 1)) == 0) {
            let mut stream = stream(SignalKind::from_raw(which.as_raw()))?;
            let sender = self.sender.clone();
            tokio::spawn(async move { while stream.recv().await.is_some() && sender.send(which).is_ok() {} });
        }
        Ok(())
    }
}

fn stream(kind: SignalKind) -> Result<unix::Signal, Exit> {
    signal(kind).map_err(|error| Exit::new(exit::SYSTEM, format!("cannot listen to signals: {error}")))
}

/// The set of ignored signals, as far as the system reports it.
fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let set = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).unwrap_or(0)
}
