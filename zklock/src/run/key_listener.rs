//! Finds out whether a key (Ctrl-C, Ctrl-\) was typed while the command ran.
//!
//! The terminal sends the signal of a key to its foreground group. While the terminal is lent to the command, this is
//! the command's group, so neither zklock nor the script, `make` or program that started zklock gets the signal. zklock
//! sends these processes the signal when the command has ended ([`pass_key_signal_on`]). The end of the command does
//! not say whether a key was typed: a command may handle Ctrl-C and exit with any code, and a command may exit with 130
//! without a Ctrl-C.
//!
//! So zklock starts its own program as a key listener. The key listener joins the command's group before the terminal
//! is lent. It blocks all signals, reads those of the keys from a file descriptor (signalfd(2)), which also says who
//! sent a signal, and writes to its standard output which key was typed:
//! - If the kernel sent the signal, a key was typed.
//! - If another process sent the signal to the whole group, no key was typed. For example, timeout(1) ends its own group.
//!   But a zklock within the command also passes a key on in this way. It sends SIGURG with the signal, so that the
//!   key listener recognizes it. SIGURG has no effect on a process that does not handle it.
//!
//! If the command does not have the terminal, another key listener listens in zklock's own group. If that key listener
//! gets SIGINT from the kernel, Ctrl-C was typed, and the script that started zklock got SIGINT, too. If a process sent
//! SIGINT to zklock alone, the key listener gets nothing. So after a command that exits with 0 despite a SIGINT, zklock
//! ends by SIGINT only if Ctrl-C was typed.
//!
//! A key is not missed even if it ends the command at once. The kernel sends the signal to all processes of the group
//! before the end of any of them can be noticed, and the key listener reads all pending signals before it ends.

use std::sync::atomic::AtomicI32;

use rustix::process::{Signal, kill_current_process_group};

/// The id of the key listener from its start until it is reaped, and 0 at other times. Only the first process of a
/// container reads this id, and such a zklock has at most one key listener.
pub(crate) static PID: AtomicI32 = AtomicI32::new(0);

/// Sends the signal of a key, and SIGURG, to all processes of zklock's group, and so to the script or program that
/// started zklock, as the terminal would have sent the key's signal. zklock itself gets the signals, too.
pub(crate) fn pass_key_signal_on(key: Signal) {
    for signal in [Signal::URG, key] {
        // This call does not use the group's number. In a container the number may be 1, and a signal to -1 would reach
        // every process. The error is ignored, because zklock is in the group, and may signal itself.
        let _ = kill_current_process_group(signal);
    }
}

#[cfg(target_os = "linux")]
pub(crate) use on_linux::{KeyListener, run_if_key_listener};

#[cfg(target_os = "linux")]
mod on_linux {
    use std::io::{self, Read};
    use std::os::unix::process::CommandExt;
    use std::process::{Child as Process, ChildStdin, Command, Stdio};
    use std::sync::atomic::Ordering;
    use std::sync::mpsc::{self, Receiver};
    use std::thread;
    use std::time::Duration;

    use nix::libc::SI_KERNEL;
    use nix::sys::signal::{SigSet, Signal as NamedSignal};
    use nix::sys::signalfd::{SfdFlags, SignalFd};
    use rustix::event::{PollFd, PollFlags, poll};
    use rustix::process::{Pid, Signal, getppid, kill_process};

    use super::PID;
    use crate::run::signals::{has_signal, ignored_signals};
    use crate::run::tie::OURSELVES;

    /// How long zklock waits for the end of the key listener before it kills the key listener.
    const PATIENCE: Duration = Duration::from_secs(1);

    /// The byte that the key listener writes as soon as it listens. No signal has this number.
    const LISTENS: u8 = 0;

    /// The first argument of the key listener, before the id of its parent. It cannot be the path of a lock, which
    /// begins with a slash.
    const KEY_LISTENER: &str = "witness-of";

    /// The process that listens for keys in a process group.
    #[derive(Debug)]
    pub(crate) struct KeyListener {
        pid: Pid,
        /// The key listener ends when its standard input ends.
        stdin: ChildStdin,
        /// Receives the process of the key listener and what it wrote, after its standard output has ended.
        ended: Receiver<(Process, Vec<u8>)>,
    }

    impl KeyListener {
        /// Starts a key listener in the group. Returns `None` if that fails, for example because the system has no
        /// process left, or no `/proc`.
        pub(crate) fn start(group: Pid) -> Option<KeyListener> {
            let mut command = Command::new(OURSELVES);
            command.arg0("zklock").args([KEY_LISTENER, &std::process::id().to_string()]);
            command.process_group(group.as_raw_nonzero().get());
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
            let (sender, started) = mpsc::channel();
            let (writes, ended) = mpsc::channel();
            // The key listener inherits the signal mask of the thread that starts it, and must have all signals
            // blocked. So it is started on a thread of its own, which blocks all signals.
            let listen = move || {
                let _ = SigSet::all().thread_set_mask();
                let mut listener = command.spawn().ok()?;
                let (stdin, stdout) = listener.stdin.take().zip(listener.stdout.take())?;
                let pid = Pid::from_child(&listener);
                PID.store(pid.as_raw_nonzero().get(), Ordering::Relaxed);
                sender.send((pid, stdin)).ok()?;
                let mut keys = Vec::new();
                let _ = { stdout }.read_to_end(&mut keys);
                writes.send((listener, keys)).ok()
            };
            thread::Builder::new().spawn(listen).ok()?;
            let (pid, stdin) = started.recv().ok()?;
            Some(KeyListener { pid, stdin, ended })
        }

        /// Ends the key listener. Returns the signal of the key that was typed last (`Some(None)` if no key was typed),
        /// or `None` if the key listener has never listened.
        pub(crate) fn end(self) -> Option<Option<Signal>> {
            // The key listener may have been stopped together with the command.
            let _ = kill_process(self.pid, Signal::CONT);
            drop(self.stdin);
            let ended = self.ended.recv_timeout(PATIENCE).or_else(|_| {
                // Another process may have stopped the key listener again.
                let _ = kill_process(self.pid, Signal::KILL);
                self.ended.recv()
            });
            let (mut listener, keys) = ended.ok()?;
            let _ = listener.wait();
            PID.store(0, Ordering::Relaxed);
            keys.last().map(|key| Signal::from_named_raw((*key).into()))
        }
    }

    /// Returns `false` unless this process was started as the key listener. The key listener reports the typed keys
    /// until its standard input ends, and then returns `true`. If it cannot listen, it returns `true` at once.
    pub(crate) fn run_if_key_listener() -> bool {
        let words: Vec<_> = std::env::args_os().skip(1).collect();
        let is_parent = |pid: &str| getppid().is_some_and(|parent| parent.as_raw_nonzero().to_string() == pid);
        if !matches!(&words[..], [word, pid] if word == KEY_LISTENER && pid.to_str().is_some_and(is_parent)) {
            return false;
        }
        let ignored = ignored_signals();
        let signals = [NamedSignal::SIGINT, NamedSignal::SIGQUIT, NamedSignal::SIGURG];
        let signals = signals.into_iter().filter(|signal| !has_signal(ignored, *signal as i32)).collect();
        let Ok(signals) = SignalFd::with_flags(&signals, SfdFlags::SFD_NONBLOCK) else { return true };
        let writes = |byte: u8| {
            // The error is ignored: it means that zklock has ended.
            let _ = rustix::io::write(io::stdout(), &[byte]);
        };
        writes(LISTENS);
        let (stdin, mut heard) = (io::stdin(), SignalsSeen::default());
        loop {
            let mut polled = [PollFd::new(&signals, PollFlags::IN), PollFd::new(&stdin, PollFlags::empty())];
            let is_over = poll(&mut polled, None).is_err() || !polled[1].revents().is_empty();
            while let Ok(Some(signal)) = signals.read_signal() {
                if let Some(key) = heard.observe_signal(signal.ssi_signo as i32, signal.ssi_code, signal.ssi_pid) {
                    writes(key as u8);
                }
            }
            if is_over {
                return true;
            }
        }
    }

    /// What the key listener remembers of earlier signals.
    #[derive(Default)]
    struct SignalsSeen {
        /// The last signal of a key that a process sent, and the id of that process.
        sent: Option<(i32, u32)>,
        /// The id of the process that sent the last SIGURG, or 0 if the kernel sent it.
        urges: Option<u32>,
    }

    impl SignalsSeen {
        /// Returns the signal of a key if `signal`, alone or with an earlier one, proves that the key was typed. `code` and
        /// `sender` are from the siginfo_t of `signal`.
        fn observe_signal(&mut self, signal: i32, code: i32, sender: u32) -> Option<i32> {
            match signal == Signal::URG.as_raw() {
                true => self.urges = Some(sender),
                false if code == SI_KERNEL => return Some(signal),
                false => self.sent = Some((signal, sender)),
            }
            // SIGURG may be read after the signal of the key, although it was sent first, because pending signals are
            // read in the order of their numbers.
            let (signal, _) = self.sent.filter(|(_, sender)| self.urges == Some(*sender))?;
            *self = SignalsSeen::default();
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
                let mut state = SignalsSeen::default();
                heard
                    .iter()
                    .map(|(signal, code, sender)| state.observe_signal(*signal, *code, *sender))
                    .last()
                    .flatten()
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

/// On other systems than Linux there is no key listener, so this type has no value.
#[cfg(not(target_os = "linux"))]
#[derive(Debug)]
pub(crate) enum KeyListener {}

#[cfg(not(target_os = "linux"))]
impl KeyListener {
    pub(crate) fn start(_: rustix::process::Pid) -> Option<KeyListener> {
        None
    }

    pub(crate) fn end(self) -> Option<Option<Signal>> {
        match self {}
    }
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn run_if_key_listener() -> bool {
    false
}
