//! Finds out whether a key (Ctrl-C, Ctrl-\) was typed while the command had the terminal.
//!
//! The terminal sends the signal of a key to its foreground group. While the terminal is lent to the command, this is
//! the command's group, so neither zklock nor the script, `make` or program that started zklock gets the signal. zklock
//! sends it to them when the command has ended ([`pass_on`]). The end of the command does not say whether a key was
//! typed: a command may handle Ctrl-C and exit with any code, and a command may exit with 130 without a Ctrl-C.
//!
//! So zklock starts its own program as a witness. The witness joins the command's group before the terminal is lent. It
//! blocks all signals, reads those of the keys from a file descriptor (signalfd(2)), which also says who sent a signal,
//! and writes to its standard output which key was typed:
//! - The kernel sent the signal: the terminal did so for a key.
//! - Another process sent the signal to the whole group: this is no key, for example if timeout(1) ends its own group.
//!   But a zklock within the command also passes a key on in this way. It sends SIGURG with the signal, so that the
//!   witness recognizes it. A process that does not handle SIGURG does not notice this.
//!
//! No key is missed: the kernel sends the signal to all processes of the group before the end of any of them can be
//! noticed, and the witness reads the signals that it has before it ends.

use rustix::process::{Signal, kill_current_process_group};

/// Sends the signal of a key to the script or program that started zklock, as the terminal would have done. zklock
/// itself gets the signal, too.
pub(crate) fn pass_on(key: Signal) {
    for signal in [Signal::URG, key] {
        // This call does not use the group's number: in a container the number may be 1, and a signal to -1 would reach
        // every process. The error is ignored: zklock is in the group, and may signal itself.
        let _ = kill_current_process_group(signal);
    }
}

#[cfg(target_os = "linux")]
pub(crate) use on_linux::{Witness, bear};

#[cfg(target_os = "linux")]
mod on_linux {
    use std::io::{self, Read};
    use std::os::unix::process::CommandExt;
    use std::process::{Child as Process, ChildStdin, Command, Stdio};
    use std::sync::mpsc;
    use std::thread::{self, JoinHandle};

    use nix::libc::SI_KERNEL;
    use nix::sys::signal::{SigSet, Signal as NamedSignal};
    use nix::sys::signalfd::{SfdFlags, SignalFd};
    use rustix::event::{PollFd, PollFlags, poll};
    use rustix::process::{Pid, Signal, getppid, kill_process};

    use crate::signals::{ignored, is_in};
    use crate::tie::OURSELVES;

    /// The first argument of the witness, before the id of its parent. It cannot be the path of a lock, which begins with
    /// a slash.
    const WITNESS: &str = "witness-of";

    /// The process that listens in the command's group.
    #[derive(Debug)]
    pub(crate) struct Witness {
        pid: Pid,
        /// The witness ends when its standard input ends.
        stdin: ChildStdin,
        /// Reads what the witness writes.
        listens: JoinHandle<Option<(Process, Vec<u8>)>>,
    }

    impl Witness {
        /// Starts a witness in the group. Returns `None` if the system has no process left, or no `/proc`.
        pub(crate) fn start(group: Pid) -> Option<Witness> {
            let mut command = Command::new(OURSELVES);
            command.arg0("zklock").args([WITNESS, &std::process::id().to_string()]);
            command.process_group(group.as_raw_nonzero().get());
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
            let (sender, started) = mpsc::channel();
            // The witness inherits from this thread that all signals are blocked. The only child of the main thread is
            // the command.
            let listen = move || {
                let _ = SigSet::all().thread_set_mask();
                let mut witness = command.spawn().ok()?;
                let (stdin, stdout) = witness.stdin.take().zip(witness.stdout.take())?;
                sender.send((Pid::from_child(&witness), stdin)).ok()?;
                let mut keys = Vec::new();
                let _ = { stdout }.read_to_end(&mut keys);
                Some((witness, keys))
            };
            let listens = thread::Builder::new().spawn(listen).ok()?;
            let (pid, stdin) = started.recv().ok()?;
            Some(Witness { pid, stdin, listens })
        }

        /// Ends the witness. Returns the signal of the key that was typed last.
        pub(crate) fn ends(self) -> Option<Signal> {
            // The witness may have been stopped together with the command.
            let _ = kill_process(self.pid, Signal::CONT);
            drop(self.stdin);
            let (mut witness, keys) = self.listens.join().ok()??;
            let _ = witness.wait();
            keys.last().and_then(|key| Signal::from_named_raw((*key).into()))
        }
    }

    /// Bears witness until standard input ends, and returns `true`, if this process was started as the witness.
    pub(crate) fn bear() -> bool {
        let words: Vec<_> = std::env::args_os().skip(1).collect();
        let is_parent = |pid: &str| getppid().is_some_and(|parent| parent.as_raw_nonzero().to_string() == pid);
        if !matches!(&words[..], [word, pid] if word == WITNESS && pid.to_str().is_some_and(is_parent)) {
            return false;
        }
        let ignored = ignored();
        let signals = [NamedSignal::SIGINT, NamedSignal::SIGQUIT, NamedSignal::SIGURG];
        let signals = signals.into_iter().filter(|signal| !is_in(ignored, *signal as i32)).collect();
        let Ok(signals) = SignalFd::with_flags(&signals, SfdFlags::SFD_NONBLOCK) else { return true };
        let (stdin, mut heard) = (io::stdin(), Heard::default());
        loop {
            let mut polled = [PollFd::new(&signals, PollFlags::IN), PollFd::new(&stdin, PollFlags::empty())];
            let is_over = poll(&mut polled, None).is_err() || !polled[1].revents().is_empty();
            while let Ok(Some(signal)) = signals.read_signal() {
                if let Some(key) = heard.key(signal.ssi_signo as i32, signal.ssi_code, signal.ssi_pid) {
                    // The error is ignored: it means that zklock has ended.
                    let _ = rustix::io::write(io::stdout(), &[key as u8]);
                }
            }
            if is_over {
                return true;
            }
        }
    }

    /// What processes have sent to the whole group.
    #[derive(Default)]
    struct Heard {
        /// The last signal of a key that a process sent, and the id of that process.
        sent: Option<(i32, u32)>,
        /// The process that sent the last SIGURG.
        urges: Option<u32>,
    }

    impl Heard {
        /// Returns the signal of a key if this signal proves that the key was typed. `code` and `sender` are from the
        /// siginfo_t of the signal.
        fn key(&mut self, signal: i32, code: i32, sender: u32) -> Option<i32> {
            match signal == Signal::URG.as_raw() {
                true => self.urges = Some(sender),
                false if code == SI_KERNEL => return Some(signal),
                false => self.sent = Some((signal, sender)),
            }
            // SIGURG may come after the other signal, because a lower number is read first.
            let (signal, _) = self.sent.filter(|(_, sender)| self.urges == Some(*sender))?;
            *self = Heard::default();
            Some(signal)
        }
    }

    #[cfg(test)]
    mod tests {
        use nix::libc::SI_USER;

        use super::*;

        const INT: i32 = Signal::INT.as_raw();
        const URG: i32 = Signal::URG.as_raw();

        #[test]
        fn only_the_terminal_and_an_inner_zklock_prove_a_key() {
            let last = |heard: &[(i32, i32, u32)]| {
                let mut state = Heard::default();
                heard.iter().map(|(signal, code, sender)| state.key(*signal, *code, *sender)).last().flatten()
            };
            assert_eq!(last(&[(INT, SI_KERNEL, 0)]), Some(INT));
            assert_eq!(last(&[(INT, SI_USER, 7)]), None, "timeout(1) ends its own group");
            assert_eq!(last(&[(INT, SI_USER, 7), (URG, SI_USER, 7)]), Some(INT));
            assert_eq!(last(&[(URG, SI_USER, 7), (INT, SI_USER, 7)]), Some(INT));
            assert_eq!(last(&[(URG, SI_USER, 7), (INT, SI_USER, 8)]), None, "two senders");
            assert_eq!(
                last(&[(URG, SI_USER, 7), (INT, SI_USER, 7), (INT, SI_USER, 7)]),
                None,
                "it passes a key on once"
            );
            assert_eq!(last(&[(URG, SI_KERNEL, 0)]), None, "a socket has urgent data");
        }
    }
}

/// On other systems there is no witness.
#[cfg(not(target_os = "linux"))]
#[derive(Debug)]
pub(crate) enum Witness {}

#[cfg(not(target_os = "linux"))]
impl Witness {
    pub(crate) fn start(_: rustix::process::Pid) -> Option<Witness> {
        None
    }

    pub(crate) fn ends(self) -> Option<Signal> {
        match self {}
    }
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn bear() -> bool {
    false
}
