//! Reads the path of the lock and the command from the words of the command line.

use std::ffi::OsString;

use clap::CommandFactory;

use crate::arguments::{Arguments, RunArguments};
use crate::exit::Exit;
use crate::output::{quote_argument, shorten, shorten_argument};

/// The maximal width of a label that is made from a command line, in columns.
const LABEL_MADE: usize = 60;

/// The lock's path, the command to run under the lock, and the label.
#[derive(Debug)]
pub(crate) struct LockedCommand {
    pub(crate) path: String,
    pub(crate) command: Vec<OsString>,
    pub(crate) label: String,
}

/// Returns the visible subcommand that is most similar to this word, if their Jaro similarity is more than 0.7. clap
/// uses the same measure.
fn similar_subcommand(word: &str) -> Option<String> {
    let program = Arguments::command();
    let names = program.get_subcommands().filter(|task| !task.is_hide_set()).map(|task| task.get_name());
    let like = names.map(|name| (strsim::jaro(word, name), name)).filter(|(likeness, _)| *likeness > 0.7);
    like.max_by(|one, other| one.0.total_cmp(&other.0)).map(|(_, name)| name.to_owned())
}

impl LockedCommand {
    pub(crate) fn from_arguments(run: &RunArguments) -> Result<LockedCommand, Exit> {
        let mut words = run.words.iter().cloned();
        let path = words
            .next()
            .ok_or_else(|| Exit::usage("the path of a lock and a command are missing: see zklock --help"))?;
        let path = path.into_string().map_err(|path| {
            Exit::usage(format!("{} is no path in ZooKeeper: it is not valid UTF-8", quote_argument(&path)))
        })?;
        if !path.starts_with('/') {
            let meant = similar_subcommand(&path).map(|task| format!("did you mean {task}? ")).unwrap_or_default();
            return Err(Exit::usage(format!(
                "{} is neither the path of a lock, which begins with a slash, nor a subcommand; {meant}see zklock --help",
                quote_argument(path.as_ref())
            )));
        }
        let mut command: Vec<OsString> = words.collect();
        let mut shell = run.shell.clone();
        match command.first().and_then(|word| word.to_str()) {
            Some("--") => drop(command.remove(0)),
            // As in flock(1), `-c` may stand after the path, too.
            Some("-c" | "--command") if shell.is_none() && command.len() == 2 => {
                shell = command.pop();
                command.clear();
            }
            Some("-c" | "--command") if shell.is_none() => {
                let problem = match command.len() {
                    1 => "the line for the shell is missing",
                    _ => "it takes one word, so quote the line",
                };
                return Err(Exit::usage(format!("-c: {problem}: zklock PATH -c 'SHELL COMMAND'")));
            }
            Some(word) if word.starts_with('-') => {
                let word = shorten_argument(word);
                return Err(Exit::usage(format!("{word}: options go before the lock's path, the command after it")));
            }
            _ => {}
        }
        let label = run.label.clone().unwrap_or_else(|| match &shell {
            Some(line) => label_from_words(std::slice::from_ref(line)),
            None => label_from_words(&command),
        });
        let command = match (shell, command.is_empty()) {
            (Some(_), false) => return Err(Exit::usage("give -c or a command, not both")),
            (None, true) => {
                return Err(Exit::usage("the command to run under the lock is missing: zklock PATH -- COMMAND"));
            }
            (None, false) => command,
            (Some(line), true) => {
                let shell = std::env::var_os("SHELL").filter(|shell| !shell.is_empty());
                vec![shell.unwrap_or_else(|| "/bin/sh".into()), "-c".into(), line]
            }
        };
        Ok(LockedCommand { path, command, label })
    }
}

/// Makes a label from the beginning of a command line.
fn label_from_words(words: &[OsString]) -> String {
    let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
    // Uses at most `LABEL_MADE + 1` characters. `shorten` needs one more than `LABEL_MADE` to see that the line is
    // longer. The number of characters is limited, because some characters take no column, but the library's limit for
    // labels counts them, too.
    let line = words.join(" ").chars().take(LABEL_MADE + 1).collect::<String>();
    let fit: String = line.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    shorten(&fit, LABEL_MADE)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn read(words: &[&str]) -> Arguments {
        Arguments::try_parse_from(["zklock"].iter().chain(words)).expect("valid arguments")
    }

    fn order(words: &[&str]) -> LockedCommand {
        LockedCommand::from_arguments(&read(words).run).expect("a command and a lock")
    }

    #[test]
    fn a_misspelt_subcommand_gets_a_suggestion() {
        for (word, task) in [("lss", "ls"), ("wach", "watch"), ("brake", "break"), ("chekc", "check")] {
            assert_eq!(similar_subcommand(word).as_deref(), Some(task));
        }
        assert_eq!(["migrate", "true", "web-1"].map(similar_subcommand), [None, None, None]);
    }

    #[test]
    fn each_flock_form_of_command_is_accepted() {
        assert_eq!(order(&["/l", "make", "-j"]).command, ["make", "-j"]);
        assert_eq!(order(&["/l", "--", "-c"]).command, ["-c"]);
        for words in [&["-c", "make all", "/l"], &["/l", "-c", "make all"], &["/l", "--command", "make all"]] {
            let LockedCommand { command, label, .. } = order(words);
            assert_eq!((&command[1..], &*label), (&["-c".into(), "make all".into()][..], "make all"), "{words:?}");
        }
        for (words, problem) in [
            (&["/l", "-c"][..], "-c: the line for the shell is missing"),
            (&["/l", "-c", "make", "all"], "-c: it takes one word, so quote the line"),
            (&["/l", "--command"], "-c: the line for the shell is missing"),
        ] {
            let refused = LockedCommand::from_arguments(&read(words).run)
                .expect_err("LockedCommand::from_arguments must refuse this");
            assert!(refused.message().starts_with(problem), "{words:?}: {}", refused.message());
        }
        for words in [&["/l", "-x"][..], &["-c", "make", "/l", "-c", "test"]] {
            let refused = LockedCommand::from_arguments(&read(words).run)
                .expect_err("LockedCommand::from_arguments must refuse this");
            assert!(
                refused.message().contains("options go before the lock's path"),
                "{words:?}: {}",
                refused.message()
            );
        }
    }

    #[test]
    fn a_label_is_the_beginning_of_the_command_line() {
        let labelled = |word: &str| label_from_words(&["echo".into(), word.into()]);
        let just_fits = "a".repeat(LABEL_MADE - "echo ".len());
        assert_eq!(labelled(&just_fits), format!("echo {just_fits}"));
        let too_long = labelled(&format!("{just_fits}b"));
        assert!(too_long.ends_with("a…") && too_long.chars().count() == LABEL_MADE, "{too_long}");
        assert_eq!(labelled("a\nb\tc"), "echo a b c");
    }
}
