//! Ties the life of the command to that of zklock on Linux: if zklock is killed (-9), the system kills the command.
//!
//! Linux kills a process when its parent dies if the process has asked to be killed (PR_SET_PDEATHSIG). So zklock
//! starts its own program once more, as the launcher. The launcher asks to be killed, makes sure that its parent still
//! lives, and then becomes the command by exec. The process keeps its id, its group, its terminal and its files.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::exit::{self, Exit};
use crate::output::quote_argument;
#[cfg(target_os = "linux")]
use crate::run::signals;
use crate::terminal::our_group;

/// The first argument of the launcher, the process that becomes the command. It cannot be the path of a lock, which
/// begins with a slash.
#[cfg(target_os = "linux")]
const LAUNCHER: &str = "tied-to";

/// On Linux, a path of this program that stays valid when the program's file is replaced.
pub(crate) const OURSELVES: &str = "/proc/self/exe";

/// Returns whether the command is started through the launcher, the process that becomes the command. The launcher
/// needs Linux and `/proc`.
pub(crate) fn can_use_launcher() -> bool {
    cfg!(target_os = "linux") && std::fs::exists(OURSELVES).is_ok_and(|exists| exists)
}

/// Returns the command that starts the program, through the launcher if [`can_use_launcher`] allows it. The system
/// kills the launcher, and so the command, when the thread that has spawned the launcher ends. So this thread has to
/// live as long as zklock. `faults` is from [`Signals::faults_blocked_before`].
///
/// [`Signals::faults_blocked_before`]: crate::run::signals::Signals::faults_blocked_before
pub(crate) fn new_command(program: &OsStr, arguments: &[OsString], faults: u64) -> Command {
    #[cfg(target_os = "linux")]
    if can_use_launcher() {
        let mut command = Command::new(OURSELVES);
        let parent = format!("{}:{faults:x}", std::process::id());
        command.arg0("zklock").arg(LAUNCHER).arg(parent).arg(program).args(arguments);
        return command;
    }
    let mut command = Command::new(program);
    command.args(arguments);
    command
}

/// Becomes the command, if this process was started as the launcher. Returns an error if that fails, and `None` if this
/// process is not the launcher.
#[cfg(target_os = "linux")]
pub(crate) fn become_command_if_launcher() -> Option<Exit> {
    use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal, setsid};

    let mut words = std::env::args_os().skip(1);
    words.next().filter(|word| word == LAUNCHER)?;
    let told = words.next().unwrap_or_default().into_string().unwrap_or_default();
    let (parent, faults) = told.split_once(':').unwrap_or((&told, ""));
    let parent = parent.parse().ok().and_then(Pid::from_raw);
    let Some((parent, program)) = parent.zip(words.next()) else {
        return Some(Exit::usage(format!("{LAUNCHER} is only for zklock itself")));
    };
    if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
        return Some(Exit::new(exit::SYSTEM, format!("cannot tie the command to zklock: {error}")));
    }
    // This process has asked to be killed when its parent dies, but the parent may have died before that. A parent
    // outside of this PID namespace has no id here, and is not checked.
    if getppid().is_some_and(|now| now != parent) {
        return Some(Exit::new(exit::code_of_signal(Signal::KILL.as_raw()), ""));
    }
    // If the group began outside of this PID namespace, it cannot be signalled, and the terminal cannot be lent to it.
    // So the command gets a Unix session of its own. There it can read from the terminal without a loan.
    if our_group().is_none()
        && let Err(error) = setsid()
    {
        return Some(Exit::new(exit::SYSTEM, format!("cannot begin a session for the command: {error}")));
    }
    signals::unblock_fault_signals(u64::from_str_radix(faults, 16).unwrap_or(0));
    let error = Command::new(&program).args(words).exec();
    Some(cannot_run_error(&program, &error))
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn become_command_if_launcher() -> Option<Exit> {
    None
}

pub(crate) fn cannot_run_error(program: &OsStr, error: &io::Error) -> Exit {
    let code = match error.kind() {
        io::ErrorKind::NotFound => exit::NO_SUCH_COMMAND,
        // The system has no process left, or no memory.
        io::ErrorKind::WouldBlock | io::ErrorKind::OutOfMemory => exit::SYSTEM,
        _ => exit::NOT_EXECUTABLE,
    };
    Exit::new(code, format!("cannot run {}: {error}", quote_argument(program)))
}
