//! Completions for shells and manual pages, made from the definition of the arguments.

use clap::CommandFactory;
use clap_complete::Shell;
use clap_mangen::Man;

use crate::arguments::Arguments;
use crate::exit::{self, Exit};
use crate::output;

pub(crate) fn completions(shell: Shell) -> Result<u8, Exit> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "zklock", &mut text);
    Ok(print(text))
}

/// The page of zklock itself, or of one subcommand.
pub(crate) fn man(task: Option<&str>) -> Result<u8, Exit> {
    let mut command = Arguments::command();
    // So that subcommands know their whole name.
    command.build();
    let command = match task {
        None => command,
        Some(task) => match command.find_subcommand(task) {
            Some(command) => command.clone(),
            None => return Err(Exit::usage(format!("there is no subcommand {task:?}"))),
        },
    };
    let mut text = Vec::new();
    match Man::new(command).render(&mut text) {
        Ok(()) => Ok(print(text)),
        Err(error) => Err(Exit::new(exit::UNAVAILABLE, error.to_string())),
    }
}

fn print(text: Vec<u8>) -> u8 {
    output::print(&String::from_utf8_lossy(&text));
    0
}
