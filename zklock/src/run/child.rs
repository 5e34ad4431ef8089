//! Starts, signals and reaps the command that zklock runs. zklock signals the command's process group as a whole.

use std::collections::HashSet;
use std::ffi::OsString;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::Child as Process;
use std::sync::atomic::{AtomicI32, Ordering};
use std::thread;
use std::{fmt, fs};

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, getpgid, getpid, getppid, kill_current_process_group, kill_process,
    kill_process_group, test_kill_process_group, waitid,
};
use tokio::signal::unix::SignalKind;
use tokio::sync::mpsc::{self, UnboundedReceiver};

use crate::exit::{self, Exit};
use crate::output;
use crate::run::key_listener::{self, KeyListener};
use crate::run::signals::{self, Signals};
use crate::run::tie;
use crate::terminal::{Terminal, our_group};

/// The signals of the keys Ctrl-C and Ctrl-\.
const KEYS: [Signal; 2] = [Signal::INT, Signal::QUIT];

/// A change in the state of the command's own process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChildEvent {
    Stopped(Signal),
    Ended,
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChildOutcome {
    /// The command's exit code. After a signal: 128 plus the signal's number, as in a shell. 255 if the code is
    /// unknown.
    pub(crate) code: u8,
    /// The signal of a key (Ctrl-C, Ctrl-\) that was typed while the command had the terminal. The terminal sent the
    /// signal only to the command's process group. So zklock has to send it to the program that started zklock.
    pub(crate) typed: Option<Signal>,
    /// The signal by which zklock has to end ([`end_by_sigint_or_code`]). If this is `None`, zklock exits with `code`,
    /// unless a late SIGINT ends it ([`ChildOutcome::exit_code`]).
    ends_by: Option<Signal>,
    /// The command's process group, if its remaining processes must end, too: if a signal that zklock passed on has
    /// ended the command, or if zklock has passed on TERM.
    pub(crate) cut_short: Option<Pid>,
}

impl ChildOutcome {
    /// Returns the exit code of zklock. Does not return if zklock ends by SIGINT ([`end_by_sigint_or_code`]). `late` is
    /// a signal that came after the command had ended. It is ignored unless it is SIGINT and the command has ended with
    /// 0.
    pub(crate) fn exit_code(self, late: Option<Signal>) -> u8 {
        let late = late.filter(|signal| *signal == Signal::INT && self.code == 0);
        self.ends_by.or(late).map_or(self.code, end_by_sigint_or_code)
    }

    /// Returns this outcome, changed so that zklock ends as [`end_by_sigint_or_code`] does for `signal`, which came
    /// after the command had ended.
    pub(crate) fn then_ended_by(self, signal: Signal) -> ChildOutcome {
        ChildOutcome { ends_by: Some(signal), ..self }
    }
}

/// Ends zklock by SIGINT if the signal is SIGINT. A shell that runs zklock in a loop ends the loop only then, and not
/// if zklock exits with a code. For every other signal, returns the exit code. Also returns it if zklock is the first
/// process of a container, because such a process cannot end by its own signal.
pub(crate) fn end_by_sigint_or_code(signal: Signal) -> u8 {
    if signal == Signal::INT && !getpid().is_init() {
        output::finish_messages();
        let _ = signal_hook::low_level::emulate_default_handler(signal.as_raw());
    }
    exit::code_of_signal(signal.as_raw())
}

/// Returns whether a stopped zklock would probably never be continued. This is so if zklock is the first process of its
/// PID namespace, or if zklock's parent is the first process and is in the same group. A shell that could continue
/// zklock by `fg` or `bg` would have started it in another group.
fn is_job_control_missing() -> bool {
    let is_init_in_our_group = |parent: Pid| parent.is_init() && getpgid(Some(parent)).ok() == our_group();
    getpid().is_init() || getppid().is_some_and(is_init_in_our_group)
}

/// The id of the command's process from its start until it is reaped, and 0 at other times.
static COMMAND: AtomicI32 = AtomicI32::new(0);

/// Begins to reap orphaned processes that have ended, if zklock is the first process of a container: such a process is
/// the parent of all orphans. Call this function in the single-threaded runtime of the thread that starts the command.
/// On another thread the task could reap the command before [`COMMAND`] is set.
pub(crate) fn start_orphan_reaper() -> Result<(), Exit> {
    if getpid().is_init() {
        let mut ended = signals::signal_stream(SignalKind::child())?;
        tokio::spawn(async move {
            while ended.recv().await.is_some() {
                reap_orphans();
            }
        });
    }
    Ok(())
}

fn reap_orphans() {
    let is_ours = |pid| [&COMMAND, &key_listener::PID].into_iter().any(|ours| ours.load(Ordering::Relaxed) == pid);
    let ended = list_processes().filter(|(pid, stat)| stat.has_ended && stat.parent == 1 && !is_ours(*pid));
    for orphan in ended.filter_map(|(pid, _)| Pid::from_raw(pid)) {
        // The error is ignored: it means that the process is no child of zklock, for example because it belongs to
        // another PID namespace.
        let _ = waitid(WaitId::Pid(orphan), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
    }
}

/// Returns the ids and states of the processes that `/proc` lists.
fn list_processes() -> impl Iterator<Item = (i32, ProcessStat)> {
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid| Some((pid, ProcessStat::of(pid)?)))
}

/// The state of a process, from `/proc/PID/stat`.
pub(crate) struct ProcessStat {
    has_ended: bool,
    pub(crate) parent: i32,
    group: i32,
}

impl ProcessStat {
    pub(crate) fn of(pid: impl fmt::Display) -> Option<ProcessStat> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The program's name stands in parentheses and may contain any character, so the other fields begin after the
        // last parenthesis.
        let mut fields = stat.rsplit_once(") ")?.1.split(' ');
        let has_ended = matches!(fields.next()?, "Z" | "X");
        let mut number = || fields.next()?.parse().ok();
        Some(ProcessStat { has_ended, parent: number()?, group: number()? })
    }
}

/// A command that was started. Only [`Child::reap`] reaps its process. Until then the system does not reuse the process
/// id, so a signal cannot reach another process.
#[derive(Debug)]
pub(crate) struct Child {
    process: Process,
    group: Pid,
    events: UnboundedReceiver<ChildEvent>,
    terminal: Option<Terminal>,
    /// The process that listens for keys in the command's group. It starts when the terminal is first lent to the
    /// command. `None` before that, and if it cannot be started.
    key_listener: Option<KeyListener>,
    /// Whether zklock took the terminal from the command when both were stopped. [`Child::resume`] resets this.
    was_foreground: bool,
    /// The signals that zklock has passed on to the command.
    passed_on: HashSet<i32>,
    /// The process that listens for keys that are typed while zklock's own group has the terminal. zklock gets the
    /// signal of a key, too, but does not see whether the signal was typed or sent by a process. After a command that
    /// exits with 0, zklock ends by the signal if it was typed.
    listener_among_us: Option<KeyListener>,
}

impl Child {
    /// Starts the command in a process group of its own. If zklock's own group has no number in this PID namespace, the
    /// command begins a Unix session (setsid(2)) instead. The command's environment is that of zklock without the
    /// variables in `without`, plus `environment`. On Linux the command is killed when the calling thread ends
    /// ([`tie`]), so call this function on the main thread.
    pub(crate) fn spawn(
        words: &[OsString],
        environment: &[(&str, String)],
        without: &[&str],
        signals: &Signals,
    ) -> Result<Child, Exit> {
        let (program, arguments) = words.split_first().ok_or_else(|| Exit::usage("no command"))?;
        let terminal = Terminal::open();
        let lends = Terminal::is_interactive() && terminal.as_ref().is_some_and(Terminal::is_ours);
        let mut command = tie::new_command(program, arguments, signals.faults_blocked_before());
        if our_group().is_some() {
            command.process_group(0); // otherwise the command begins a session
        }
        for name in without {
            command.env_remove(name);
        }
        command.envs(environment.iter().map(|(name, value)| (name, value)));
        // The thread that waits for the command's events starts before the command. In the other order, a failure to
        // start the thread would leave a running command behind.
        let (started, starts) = std::sync::mpsc::channel();
        let (sender, events) = mpsc::unbounded_channel();
        let listens = thread::Builder::new().spawn(move || {
            let Ok(group) = starts.recv() else { return };
            while let Some(event) = next_event(group) {
                if sender.send(event).is_err() || event == ChildEvent::Ended {
                    return;
                }
            }
        });
        listens.map_err(|error| Exit::new(exit::SYSTEM, format!("cannot listen to the command: {error}")))?;
        // `KeyListener` is a process that listens for keys. It starts before the command, so that it gets each key that
        // is typed while the command runs.
        let among_us = terminal.as_ref().filter(|_| !lends && !getpid().is_init());
        let listener_among_us = among_us.and_then(|terminal| KeyListener::start(terminal.our_group()));
        let process =
            signals.with_inherited_mask(|| command.spawn()).map_err(|error| tie::cannot_run_error(program, &error))?;
        let group = Pid::from_child(&process);
        COMMAND.store(group.as_raw_nonzero().get(), Ordering::Relaxed);
        let _ = started.send(group);
        let mut child = Child {
            process,
            group,
            events,
            terminal,
            key_listener: None,
            was_foreground: false,
            passed_on: HashSet::new(),
            listener_among_us,
        };
        if lends {
            // zklock sends no CONT here, because CONT would undo a Ctrl-Z that was typed just now. The command may
            // already have asked for the terminal, and have been stopped for that. Then the stop is reported as an
            // event, and `handle_stop` continues the command.
            child.lend_terminal();
        }
        Ok(child)
    }

    pub(crate) async fn next_event(&mut self) -> ChildEvent {
        self.events.recv().await.unwrap_or(ChildEvent::Ended)
    }

    /// Sends the signal to the whole process group, or to the command's process alone if the group cannot be signalled.
    /// Returns `false` if zklock has no right to send it.
    pub(crate) fn send_signal(&self, signal: Signal) -> bool {
        // Signalling the group fails if the group is empty or zklock may not signal it. It also fails if the command is
        // to begin its own Unix session (setsid(2)) but has not begun it yet. After each failure the process alone is
        // signalled, which helps only if the session has not begun yet.
        let signalled = kill_process_group(self.group, signal).or_else(|_| kill_process(self.group, signal));
        signalled != Err(Errno::PERM)
    }

    /// Sends the command a signal that zklock received, and remembers the signal.
    pub(crate) fn pass_signal_on(&mut self, signal: Signal) {
        self.passed_on.insert(signal.as_raw());
        self.send_signal(signal);
    }

    /// Continues a stopped command. If the command had the terminal when it was stopped, and zklock has the foreground
    /// now, first lends the terminal to the command again.
    pub(crate) fn resume(&mut self) {
        let lends = std::mem::take(&mut self.was_foreground);
        if lends && self.terminal.as_ref().is_some_and(Terminal::is_ours) {
            self.lend_terminal();
        }
        self.send_signal(Signal::CONT);
    }

    /// Handles a stop of the command by the signal `by`. Does nothing if zklock has no terminal.
    /// - If the command was stopped because it used the terminal (TTIN, TTOU), and now has the terminal or can be lent
    ///   it, zklock continues the command.
    /// - Otherwise, if the command has the terminal, zklock's whole group stops as well, until `fg` or `bg`, so that
    ///   the shell notices the stop. There is an exception: if nobody could continue the group
    ///   ([`is_job_control_missing`]), zklock continues the command instead.
    /// - If the command does not have the terminal, zklock stops itself after TTIN, TTOU and TSTP, and ignores any
    ///   other stop.
    pub(crate) fn handle_stop(&mut self, by: Signal) {
        let Some(terminal) = &self.terminal else { return };
        let lent = terminal.is_lent_to(self.group);
        let asks = matches!(by, Signal::TTIN | Signal::TTOU);
        if asks && lent {
            // The command asked for the terminal before zklock lent it. The command has the terminal by now, so it only
            // has to be continued.
            self.send_signal(Signal::CONT);
        } else if asks && terminal.is_ours() {
            self.lend_terminal();
            self.send_signal(Signal::CONT);
        } else if lent && is_job_control_missing() {
            self.send_signal(Signal::CONT);
        } else if lent {
            terminal.take_back_from(self.group);
            self.was_foreground = true;
            // The signal has stopped only the command. zklock and the processes of its group, such as the script or
            // another zklock that started it, have to stop as well.
            let _ = kill_current_process_group(Signal::STOP);
        } else if asks || by == Signal::TSTP {
            let _ = kill_process(getpid(), Signal::STOP);
        }
        // In all other cases another process has stopped the command on purpose. zklock keeps running, because a
        // stopped zklock would lose the lock.
    }

    /// Waits until the process has ended, reaps it, and takes the terminal back if the command has it.
    pub(crate) fn reap(mut self) -> ChildOutcome {
        let status = self.process.wait();
        COMMAND.store(0, Ordering::Relaxed);
        let signal = status.as_ref().ok().and_then(ExitStatusExt::signal);
        let by_key = || KEYS.into_iter().find(|key| signal == Some(key.as_raw()));
        let mut typed = None;
        if let Some(terminal) = &self.terminal {
            let was_lent = terminal.is_lent_to(self.group);
            // The terminal is taken back before the key listener ends. In the other
            // order, a key could be typed while nothing listens.
            terminal.take_back_from(self.group);
            // If no key listener answers, a key counts as typed if SIGINT or SIGQUIT ended the command.
            typed = self.key_listener.take().and_then(KeyListener::end).unwrap_or_else(by_key).filter(|_| was_lent);
            if signal.is_some() {
                terminal.restore_settings();
            }
        }
        let code = match (signal, status) {
            (Some(signal), _) => exit::code_of_signal(signal),
            (None, Ok(status)) => status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX),
            (None, Err(_)) => u8::MAX,
        };
        let ended_by_ours = signal.filter(|signal| self.passed_on.contains(signal));
        // A command that handles TERM may end with an exit code instead of the signal. So if TERM was passed on, every
        // end of the command counts as caused by it.
        let is_cut_short = ended_by_ours.is_some() || self.passed_on.contains(&Signal::TERM.as_raw());
        // After Ctrl-C or Ctrl-\, zklock ends by the key's signal ([`end_by_sigint_or_code`]) if the command's exit
        // code is 0 or the code for this signal. Any other exit code has another cause.
        let typed_to_us = self.listener_among_us.take().and_then(KeyListener::end).flatten();
        let ends_by_key = typed.or(typed_to_us).filter(|key| [0, exit::code_of_signal(key.as_raw())].contains(&code));
        let ends_by = ends_by_key.or((ended_by_ours == Some(Signal::INT.as_raw())).then_some(Signal::INT));
        ChildOutcome { code, typed, ends_by, cut_short: is_cut_short.then_some(self.group) }
    }

    /// Lends the command the terminal. Before the first loan, starts the key listener in
    /// the command's group.
    fn lend_terminal(&mut self) {
        if let Some(terminal) = &self.terminal {
            if self.key_listener.is_none() {
                self.key_listener = KeyListener::start(self.group);
            }
            terminal.lend_to(self.group);
        }
    }
}

/// Kills all remaining processes of a group.
pub(crate) fn kill_group(group: Pid) {
    // The error is ignored: it means that no process is left, or that the processes belong to another user.
    let _ = kill_process_group(group, Signal::KILL);
}

/// Returns whether a process of the group still runs, as far as `/proc` shows. A zombie does not count.
pub(crate) fn is_group_alive(group: Pid) -> bool {
    let is_of_group = |stat: ProcessStat| stat.group == group.as_raw_nonzero().get() && !stat.has_ended;
    test_kill_process_group(group) != Err(Errno::SRCH) && list_processes().any(|(_, stat)| is_of_group(stat))
}

/// Blocks until the process has stopped or ended. An ended process is not reaped here. Returns `None` if the process
/// cannot be waited for.
fn next_event(process: Pid) -> Option<ChildEvent> {
    loop {
        match waitid(WaitId::Pid(process), WaitIdOptions::EXITED | WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT) {
            Ok(Some(status)) if status.stopped() => {
                // This call consumes the stop, so that the stop is not reported again.
                let stop = waitid(WaitId::Pid(process), WaitIdOptions::STOPPED | WaitIdOptions::NOHANG).ok().flatten();
                let signal = stop.and_then(|stop| stop.stopping_signal()).and_then(Signal::from_named_raw);
                if let Some(signal) = signal {
                    return Some(ChildEvent::Stopped(signal));
                }
            }
            Ok(Some(_)) => return Some(ChildEvent::Ended),
            Ok(None) | Err(Errno::INTR) => {}
            Err(_) => return None,
        }
    }
}
