//! `zklock`: flock(1) for many machines. What it does is told by `zklock --help`.
//!
//! One concern a file, and all of them use the library through its public interface alone.

mod arguments;
mod check;
mod child;
mod completions;
mod connect;
mod cycles;
mod evict;
mod exit;
mod list;
mod output;
mod run;
mod signals;
mod table;
mod terminal;
mod waiting;

use std::process::ExitCode;

use clap::Parser;

use crate::arguments::{Arguments, Task};
use crate::exit::Exit;

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            // Nobody may be listening any more, and then there is nothing left to say.
            let _ = error.print();
            // Help and the version were asked for.
            return if error.use_stderr() { ExitCode::from(exit::USAGE) } else { ExitCode::SUCCESS };
        }
    };
    let outcome = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Exit::new(exit::UNAVAILABLE, format!("cannot start: {error}")))
        .and_then(|runtime| runtime.block_on(act(arguments)));
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(exit) => {
            if !exit.message().is_empty() {
                output::say(exit.message());
            }
            ExitCode::from(exit.code())
        }
    }
}

async fn act(arguments: Arguments) -> Result<u8, Exit> {
    let connection = &arguments.connection;
    match &arguments.task {
        None => run::run(&arguments.run, connection).await,
        Some(Task::Ls(ls)) => list::ls(ls, connection).await,
        Some(Task::Watch(watch)) => list::watch(watch, connection).await,
        Some(Task::Break(which)) => evict::evict(which, connection).await,
        Some(Task::Check(check)) => check::check(check, connection).await,
        Some(Task::Completions { shell }) => completions::completions(*shell),
        Some(Task::Man { task }) => completions::man(task.as_deref()),
    }
}
