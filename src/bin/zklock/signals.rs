//! The signals that we get, as a stream; knows nothing of what they lead to.

use std::fs;

use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind, signal};
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};

use crate::exit::{self, Exit};

/// Those that end one who waits, which leaves the queue first, and are passed on to a command that runs.
const ENDING: [Signal; 6] = [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM, Signal::USR1, Signal::USR2];

/// Those that concern only a command that runs.
const OTHERS: [Signal; 3] = [Signal::WINCH, Signal::TSTP, Signal::CONT];

#[derive(Debug)]
pub(crate) struct Signals {
    sender: UnboundedSender<Signal>,
    receiver: UnboundedReceiver<Signal>,
}

impl Signals {
    /// From now on, those that would end us are told here instead.
    pub(crate) fn listen() -> Result<Signals, Exit> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let signals = Signals { sender, receiver };
        signals.add(&ENDING)?;
        Ok(signals)
    }

    /// From now on, also those that are passed on to a command.
    pub(crate) fn listen_to_all(&self) -> Result<(), Exit> {
        // Whoever started us may have had this one ignored. Then no exit code of a child could be had.
        let _stays_registered = stream(SignalKind::child())?;
        self.add(&OTHERS)
    }

    pub(crate) async fn next(&mut self) -> Signal {
        match self.receiver.recv().await {
            Some(signal) => signal,
            // Never: we have a sender ourselves.
            None => std::future::pending().await,
        }
    }

    fn add(&self, signals: &[Signal]) -> Result<(), Exit> {
        let ignored = ignored();
        // What nohup(1) or a shell without job control had us ignore stays ignored, by the command too.
        for &which in signals.iter().filter(|which| ignored & (1 << (which.as_raw() - 1)) == 0) {
            let mut stream = stream(SignalKind::from_raw(which.as_raw()))?;
            let sender = self.sender.clone();
            tokio::spawn(async move { while stream.recv().await.is_some() && sender.send(which).is_ok() {} });
        }
        Ok(())
    }
}

fn stream(kind: SignalKind) -> Result<unix::Signal, Exit> {
    signal(kind).map_err(|error| Exit::new(exit::UNAVAILABLE, format!("cannot listen to signals: {error}")))
}

/// The set of signals that are ignored, as far as the system tells.
fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let set = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).unwrap_or(0)
}
