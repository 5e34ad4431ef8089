//! The completion scripts for shells, and the manual pages.
//!
//! The scripts for bash, zsh and fish ask `zklock complete` for candidates and pass them to the shell. For other
//! shells, `clap_complete` generates a script from the definition of the arguments, without paths.

use std::io;

use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

use crate::arguments::{Arguments, MANUAL};
use crate::exit::{self, Exit};
use crate::output::{self, quote_argument};

pub(crate) fn print_completions(shell: Shell) -> Result<u8, Exit> {
    let mut text = Vec::new();
    match shell {
        Shell::Bash => text.extend(include_bytes!("shells/zklock.bash")),
        Shell::Zsh => text.extend(include_bytes!("shells/zklock.zsh")),
        Shell::Fish => text.extend(include_bytes!("shells/zklock.fish")),
        other => clap_complete::generate(other, &mut Arguments::command(), "zklock", &mut text),
    }
    print_bytes(&text)
}

/// Prints the manual page of zklock itself, or of one subcommand.
pub(crate) fn print_manual_page(task: Option<&str>) -> Result<u8, Exit> {
    let mut command = Arguments::clap_command();
    // `build` gives the subcommands their full names, such as "zklock ls".
    command.build();
    let command = match task {
        None => command,
        Some(task) => match command.find_subcommand(task) {
            Some(command) => command.clone(),
            None => {
                return Err(Exit::usage(format!(
                    "there is no subcommand {}: see zklock --help",
                    quote_argument(task.as_ref())
                )));
            }
        },
    };
    let mut text = Vec::new();
    render_manual_page(command, &mut text).map_err(|error| Exit::new(exit::SYSTEM, error.to_string()))?;
    print_bytes(&text)
}

/// Renders a manual page with `clap_mangen`, but keeps the line breaks of the text after the help. This text has
/// columns, and roff would join its lines into a paragraph. The page of zklock itself ends with [`MANUAL`]. It leaves
/// out the lines of the help that begin with `More: `, because they refer to the manual page.
fn render_manual_page(command: Command, text: &mut Vec<u8>) -> io::Result<()> {
    let tasks = command.has_subcommands();
    let mut epilogue = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
    if tasks {
        epilogue =
            epilogue.lines().filter(|line| !line.starts_with("More: ")).map(|line| format!("{line}\n")).collect();
        epilogue += MANUAL;
    }
    let man = Man::new(command).source(concat!("zklock ", env!("CARGO_PKG_VERSION")));
    man.render_title(text)?;
    man.render_name_section(text)?;
    man.render_synopsis_section(text)?;
    man.render_description_section(text)?;
    man.render_options_section(text)?;
    if tasks {
        man.render_subcommands_section(text)?;
    }
    let mut sections = Roff::new();
    let mut is_headed = false;
    for line in epilogue.lines() {
        let heading = line.strip_suffix(':').filter(|line| !line.starts_with(' '));
        if heading.is_some() || !is_headed {
            sections.control("SH", [&heading.unwrap_or("Notes").to_uppercase()[..]]);
            sections.control("nf", []);
            is_headed = true;
        }
        if heading.is_none() {
            sections.text([roman(line)]);
        }
    }
    sections.to_writer(text)
}

fn print_bytes(text: &[u8]) -> Result<u8, Exit> {
    output::print_result(&String::from_utf8_lossy(text))?;
    Ok(0)
}
