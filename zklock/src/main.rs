//! `zklock`: flock(1) for many machines. `zklock --help` says what it does.
//!
//! This program uses the library `zk_rwlock` only through the library's public interface.

mod arguments;
mod check;
mod complete;
mod connect;
mod exit;
mod log;
mod operate;
mod output;
mod place;
mod run;
mod show;
mod status_line;
mod terminal;
mod timeline;

use std::fs::File;
use std::io;
use std::process::ExitCode;

use crate::arguments::{Arguments, Task};
use crate::exit::Exit;

fn main() -> ExitCode {
    if run::witness::run_if_witness() {
        return ExitCode::SUCCESS;
    }
    let outcome = match run::tie::become_command_if_stage()
        .map_or_else(|| Ok(Arguments::from_command_line(std::env::args_os().collect())), Err)
    {
        Err(exit) => Err(exit),
        Ok(Ok(arguments)) => run_in_runtime(arguments),
        Ok(Err(error)) => {
            let printed = output::result_of_write(output::print_error(&error));
            // clap returns --help and --version as an error whose text belongs on standard output.
            if error.use_stderr() { Err(Exit::usage("")) } else { printed.map(|_| 0) }
        }
    };
    output::finish();
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(exit) => {
            if !exit.message().is_empty() {
                output::say(&output::readable(exit.message()));
            }
            ExitCode::from(exit.code())
        }
    }
}

/// The approximate number of files that a tokio runtime and a connection to ZooKeeper open together.
const FILES: usize = 16;

fn run_in_runtime(arguments: Arguments) -> Result<u8, Exit> {
    let cannot_start = |error: io::Error| Exit::new(exit::SYSTEM, format!("cannot start: {error}"));
    // zklock opens this many files, and closes them again, to see whether enough file descriptors are left. Without
    // them tokio's runtime would panic.
    let spare: io::Result<Vec<File>> = (0..FILES).map(|_| File::open("/dev/null")).collect();
    drop(spare.map_err(cannot_start)?);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(cannot_start)?;
    runtime.block_on(dispatch(arguments))
}

async fn dispatch(arguments: Arguments) -> Result<u8, Exit> {
    let connection = &arguments.connection;
    if arguments.task.is_some() {
        run::signals::unblock_all();
    }
    if connection.verbose {
        log::enable();
    }
    match &arguments.task {
        None => run::run(&arguments.run, connection).await,
        Some(Task::Ls(ls)) => show::ls(ls, connection).await,
        Some(Task::Watch(watch)) => show::live::watch(watch, connection).await,
        Some(Task::Timeline(order)) => timeline::timeline(order),
        Some(Task::Break(which)) => operate::evict(which, connection).await,
        Some(Task::Ask(which)) => operate::ask(which, connection).await,
        Some(Task::Forget(which)) => operate::forget(which, connection).await,
        Some(Task::Permits(which)) => operate::permits(which, connection).await,
        Some(Task::Check(check)) => check::check(check, connection).await,
        Some(Task::Complete { shell }) => complete::complete(*shell).await,
        Some(Task::Completions { shell }) => complete::completions::completions(*shell),
        Some(Task::Man { task }) => complete::completions::man(task.as_deref()),
    }
}
