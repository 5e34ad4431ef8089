//! Ties the command's life to ours: if we are killed (-9), the system kills the command.
//!
//! Linux kills a process with its parent if the process itself has asked for that. So the command is started by way of a
//! stage: our own program, which asks, makes sure that the parent still lives, and then becomes the command. The process
//! keeps its number, its group, its terminal and its files.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::exit::{self, Exit};
#[cfg(target_os = "linux")]
use crate::{signals, terminal::our_group};

/// The first argument of the stage. No lock's path is like it, since those begin with a slash.
#[cfg(target_os = "linux")]
const STAGE: &str = "tied-to";

/// Our program by a name by which it is found also when its file was replaced.
#[cfg(target_os = "linux")]
const OURSELVES: &str = "/proc/self/exe";

/// Whether commands are started by way of the stage.
#[cfg(target_os = "linux")]
pub(crate) fn has_stage() -> bool {
    std::fs::exists(OURSELVES).is_ok_and(|exists| exists)
}

/// Starts this program with these arguments, tied to us where that can be had. The system counts the calling thread as
/// the parent: that has to live as long as we do.
pub(crate) fn command(program: &OsStr, arguments: &[OsString]) -> Command {
    #[cfg(target_os = "linux")]
    if has_stage() {
        let mut command = Command::new(OURSELVES);
        command.arg0("zklock").arg(STAGE).arg(std::process::id().to_string()).arg(program).args(arguments);
        return command;
    }
    let mut command = Command::new(program);
    command.args(arguments);
    command
}

/// Becomes the command, if this process was started as the stage. Returns only an error, or `None` if it is no stage.
#[cfg(target_os = "linux")]
pub(crate) fn stage() -> Option<Exit> {
    use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal, setsid};

    let mut words = std::env::args_os().skip(1);
    words.next().filter(|word| word == STAGE)?;
    let parent = words.next().and_then(|pid| Pid::from_raw(pid.to_str()?.parse().ok()?));
    let Some((parent, program)) = parent.zip(words.next()) else {
        return Some(Exit::usage(format!("{STAGE} is for zklock itself")));
    };
    if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
        return Some(Exit::new(exit::SYSTEM, format!("cannot tie the command to zklock: {error}")));
    }
    // It may have died before we asked. A parent in another namespace of processes has no number here.
    if getppid().is_some_and(|now| now != parent) {
        return Some(Exit::new(exit::by_signal(Signal::KILL.as_raw()), ""));
    }
    // In a group from outside of our namespace of processes, which cannot be signalled, there is no terminal to lend either.
    // A command in a session of its own reads from the terminal without that.
    if our_group().is_none()
        && let Err(error) = setsid()
    {
        return Some(Exit::new(exit::SYSTEM, format!("cannot begin a session for the command: {error}")));
    }
    signals::restore();
    let error = Command::new(&program).args(words).exec();
    Some(cannot_run(&program, &error))
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn stage() -> Option<Exit> {
    None
}

pub(crate) fn cannot_run(program: &OsStr, error: &io::Error) -> Exit {
    let code = match error.kind() {
        io::ErrorKind::NotFound => exit::NO_SUCH_COMMAND,
        // No process, or no memory for it.
        io::ErrorKind::WouldBlock | io::ErrorKind::OutOfMemory => exit::SYSTEM,
        _ => exit::NOT_EXECUTABLE,
    };
    Exit::new(code, format!("cannot run {program:?}: {error}"))
}
