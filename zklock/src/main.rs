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

use crate::arguments::{Arguments, Subcommand};
use crate::exit::Exit;

fn main() -> ExitCode {
    if run::key_listener::run_if_key_listener() {
        return ExitCode::SUCCESS;
    }
    let outcome = match run::tie::become_command_if_launcher()
        .map_or_else(|| Ok(Arguments::from_command_line(std::env::args_os().collect())), Err)
    {
        Err(exit) => Err(exit),
        Ok(Ok(arguments)) => run_in_runtime(arguments),
        Ok(Err(error)) => {
            let printed = output::result_of_write(output::print_clap_error(&error));
            // clap returns --help and --version as an error whose text belongs on standard output.
            if error.use_stderr() { Err(Exit::usage("")) } else { printed.map(|_| 0) }
        }
    };
    output::finish_messages();
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(exit) => {
            if !exit.message().is_empty() {
                output::print_message(&output::escape_and_shorten(exit.message()));
            }
            ExitCode::from(exit.code())
        }
    }
}

/// The approximate number of files that a tokio runtime and a connection to ZooKeeper open together.
const FILES: usize = 16;

fn run_in_runtime(arguments: Arguments) -> Result<u8, Exit> {
    let cannot_start = |error: io::Error| Exit::new(exit::SYSTEM, format!("cannot start: {error}"));
    // zklock opens this many files, and closes them again, to see whether enough file descriptors are left. If too few
    // were left, tokio's runtime would panic.
    let spare: io::Result<Vec<File>> = (0..FILES).map(|_| File::open("/dev/null")).collect();
    drop(spare.map_err(cannot_start)?);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(cannot_start)?;
    runtime.block_on(dispatch(arguments))
}

async fn dispatch(arguments: Arguments) -> Result<u8, Exit> {
    let connection = &arguments.connection;
    if arguments.task.is_some() {
        run::signals::unblock_all_signals();
    }
    if connection.verbose {
        log::enable();
    }
    match &arguments.task {
        None => run::acquire_and_run(&arguments.run, connection).await,
        Some(Subcommand::Ls(ls)) => show::list_queues(ls, connection).await,
        Some(Subcommand::Watch(watch)) => show::live::watch_queues(watch, connection).await,
        Some(Subcommand::Timeline(order)) => timeline::print_timeline(order),
        Some(Subcommand::Break(which)) => operate::evict_contender(which, connection).await,
        Some(Subcommand::Ask(which)) => operate::ask_keepers(which, connection).await,
        Some(Subcommand::Forget(which)) => operate::forget_record(which, connection).await,
        Some(Subcommand::Permits(which)) => operate::set_or_remove_permits(which, connection).await,
        Some(Subcommand::Check(check)) => check::check_lock(check, connection).await,
        Some(Subcommand::Complete { shell }) => complete::print_candidates(*shell).await,
        Some(Subcommand::Completions { shell }) => complete::completions::print_completions(*shell),
        Some(Subcommand::Man { task }) => complete::completions::print_manual_page(task.as_deref()),
    }
}
