//! Finds out where in a command line the cursor is, and which words can stand there.

use std::ffi::OsString;

use clap::{Arg, Command, ValueHint};
use zk_rwlock::Dialect;

/// A candidate for the word at the cursor, and its description.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CompletionCandidate {
    pub(crate) word: String,
    pub(crate) meaning: String,
}

/// The kind of word that can stand at the cursor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ExpectedWord {
    Nothing,
    Words(Vec<CompletionCandidate>),
    /// One of `words`, or a path in the ensemble. `options` are the options on the line that say how to connect.
    Path {
        words: Vec<CompletionCandidate>,
        options: Vec<OsString>,
    },
    /// The name of a file of this machine.
    File,
    /// A word of the command that zklock is to run. The number is the index of the command's first word. The first word of
    /// the line has the index 0.
    Command(usize),
}

/// Returns the kind of word that can stand at the cursor. The cursor is at the end of the last of `words`, and the
/// first of `words` is the name of the program. `program` must be built (`clap::Command::build`).
pub(crate) fn expected_word(program: &Command, words: &[String]) -> ExpectedWord {
    let Some((current, before)) = words.split_last() else { return ExpectedWord::Nothing };
    let (mut task, mut options) = (None, Vec::new());
    let (mut places, mut is_escaped, mut has_line) = (0, false, false);
    let mut at = 1;
    while let Some(word) = before.get(at) {
        at += 1;
        let command = task.unwrap_or(program);
        if is_escaped || !is_option(word) {
            match command.find_subcommand(word).filter(|_| task.is_none() && !is_escaped) {
                Some(found) => task = Some(found),
                // The words after the lock's path belong to the command that zklock is to run.
                None if task.is_none() => return expected_after_path(words, at, has_line),
                None => places += 1,
            }
        } else if word == "--" {
            is_escaped = true;
        } else if let Some((option, awaits)) = last_option_in_word(command, word) {
            has_line |= option.get_id() == "shell";
            // The number after `-j` is optional: the next word may be a path or another option.
            let has_none = option.get_id() == "permits" && before.get(at).unwrap_or(current).starts_with(['/', '-']);
            let awaits = awaits && !has_none;
            let value = if awaits { before.get(at) } else { None };
            if awaits && value.is_none() {
                return expected_option_value(option, current);
            }
            at += usize::from(awaits);
            if option.is_global_set() {
                options.extend([Some(word), value].into_iter().flatten().map(OsString::from));
            }
        }
    }
    let command = task.unwrap_or(program);
    if !is_escaped && current.starts_with('-') {
        return match current.split_once('=') {
            Some((name, value)) => {
                match last_option_in_word(command, name).map(|(option, _)| expected_option_value(option, value)) {
                    // The candidates are values of the option, and complete a word such as `--dialect=kazoo`.
                    Some(ExpectedWord::Words(mut words)) => {
                        words.iter_mut().for_each(|it| it.word.insert_str(0, &format!("{name}=")));
                        ExpectedWord::Words(words)
                    }
                    other => other.unwrap_or(ExpectedWord::Nothing),
                }
            }
            None => ExpectedWord::Words(option_candidates(command, current)),
        };
    }
    match task {
        None => {
            let words = if is_escaped { Vec::new() } else { subcommand_candidates(program, current) };
            ExpectedWord::Path { words, options }
        }
        Some(task) => match task.get_positionals().nth(places).or(task.get_positionals().find(takes_all_following)) {
            Some(place) if ["path", "paths"].contains(&place.get_id().as_str()) => {
                ExpectedWord::Path { words: Vec::new(), options }
            }
            Some(place) if place.get_id() == "task" => ExpectedWord::Words(subcommand_candidates(program, current)),
            Some(place) => expected_option_value(place, current),
            None => ExpectedWord::Nothing,
        },
    }
}

/// Returns the kind of word that can stand at the cursor, if the cursor is after the lock's path. `at` is the index of
/// the first word after the path. `has_line` says whether `-c` was given before the path.
fn expected_after_path(words: &[String], at: usize, has_line: bool) -> ExpectedWord {
    let first = words.get(at).filter(|_| at + 1 < words.len());
    match first.map(String::as_str) {
        _ if has_line => ExpectedWord::Nothing,
        Some("--") => ExpectedWord::Command(at + 1),
        Some("-c" | "--command") => ExpectedWord::Nothing,
        _ => ExpectedWord::Command(at),
    }
}

/// Returns whether the argument takes all words that follow.
fn takes_all_following(place: &&Arg) -> bool {
    place.get_num_args().is_some_and(|number| number.max_values() == usize::MAX)
}

fn is_option(word: &str) -> bool {
    word.len() > 1 && word.starts_with('-')
}

/// Returns the last option in a word like `-w`, `-nw`, `--wait` or `--wait=5`, and whether the option takes a value
/// that is not in this word. Returns `None` if an option in the word is unknown.
fn last_option_in_word<'a>(command: &'a Command, word: &str) -> Option<(&'a Arg, bool)> {
    let takes = |option: &Arg| option.get_action().takes_values();
    if let Some(long) = word.strip_prefix("--") {
        let (name, value) = long.split_once('=').map_or((long, None), |(name, value)| (name, Some(value)));
        let has_name = |option: &&Arg| {
            let others = option.get_all_aliases().unwrap_or_default();
            option.get_long() == Some(name) || others.contains(&name)
        };
        let option = command.get_arguments().find(has_name)?;
        return Some((option, takes(option) && value.is_none()));
    }
    let mut letters = word.strip_prefix('-')?.chars();
    let mut last = None;
    while let Some(letter) = letters.next() {
        let has_letter = |option: &&Arg| {
            let others = option.get_all_short_aliases().unwrap_or_default();
            option.get_short() == Some(letter) || others.contains(&letter)
        };
        let option = command.get_arguments().find(has_letter)?;
        // If the option takes a value, the rest of the word is the value.
        if takes(option) {
            return Some((option, letters.as_str().is_empty()));
        }
        last = Some((option, false));
    }
    last
}

fn expected_option_value(of: &Arg, current: &str) -> ExpectedWord {
    let named = |word: String| CompletionCandidate { word, meaning: String::new() };
    let words: Vec<String> = match of.get_id().as_str() {
        "dialect" => Dialect::ALL.iter().map(Dialect::to_string).collect(),
        _ if of.get_value_hint() == ValueHint::FilePath => return ExpectedWord::File,
        _ => of.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect(),
    };
    match words.is_empty() {
        true => ExpectedWord::Nothing,
        false => ExpectedWord::Words(words.into_iter().filter(|word| word.starts_with(current)).map(named).collect()),
    }
}

fn option_candidates(command: &Command, current: &str) -> Vec<CompletionCandidate> {
    let mut candidates = Vec::new();
    for option in command.get_arguments().filter(|option| !option.is_hide_set() && !option.is_positional()) {
        let meaning = option.get_help().map(|help| first_sentence(&help.to_string())).unwrap_or_default();
        let long = option.get_long().map(|long| format!("--{long}"));
        let short = option.get_short().map(|short| format!("-{short}"));
        for word in long.into_iter().chain(short).filter(|word| word.starts_with(current)) {
            candidates.push(CompletionCandidate { word, meaning: meaning.clone() });
        }
    }
    candidates
}

/// Returns the subcommands that begin with `current` and are not hidden.
fn subcommand_candidates(program: &Command, current: &str) -> Vec<CompletionCandidate> {
    let shown = program.get_subcommands().filter(|task| !task.is_hide_set() && task.get_name().starts_with(current));
    let about = |task: &Command| task.get_about().map(|about| first_sentence(&about.to_string())).unwrap_or_default();
    shown.map(|task| CompletionCandidate { word: task.get_name().to_owned(), meaning: about(task) }).collect()
}

fn first_sentence(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    let sentence = line.split(". ").next().unwrap_or_default();
    sentence.split(" [").next().unwrap_or_default().trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::arguments::Arguments;

    fn expected_in(line: &str) -> ExpectedWord {
        let mut program = Arguments::command();
        program.build();
        expected_word(&program, &line.split(' ').map(str::to_owned).collect::<Vec<_>>())
    }

    fn words_in(line: &str) -> Vec<String> {
        match expected_in(line) {
            ExpectedWord::Words(words) | ExpectedWord::Path { words, .. } => {
                words.into_iter().map(|word| word.word).collect()
            }
            other => panic!("{line:?}: {other:?}"),
        }
    }

    fn options_in(line: &str) -> Vec<OsString> {
        match expected_in(line) {
            ExpectedWord::Path { options, .. } => options,
            other => panic!("{line:?}: {other:?}"),
        }
    }

    #[test]
    fn the_first_word_is_a_subcommand_or_a_path() {
        assert_eq!(
            words_in("zklock "),
            ["ls", "watch", "timeline", "ask", "forget", "permits", "break", "check", "completions", "man"]
        );
        assert_eq!(words_in("zklock w"), ["watch"]);
        for line in
            ["zklock /", "zklock -- /l", "zklock -n -w 5 /l", "zklock -nw5 /l", "zklock --wait=5 /l", "zklock ls /"]
        {
            assert_eq!(words_in(line), Vec::<String>::new(), "{line}");
        }
        assert!(matches!(expected_in("zklock watch /l "), ExpectedWord::Path { .. }), "several locks");
        for task in ["ls", "ask", "forget", "break", "check", "permits"] {
            assert!(matches!(expected_in(&format!("zklock {task} ")), ExpectedWord::Path { .. }), "{task}");
            assert_eq!(expected_in(&format!("zklock {task} /l ")), ExpectedWord::Nothing, "{task}");
        }
    }

    #[test]
    fn words_after_the_lock_path_are_a_command() {
        for (line, at) in [
            ("zklock /l ", 2),
            ("zklock /l make", 2),
            ("zklock /l make -j ", 2),
            ("zklock /l -- ", 3),
            ("zklock /l -- make", 3),
            ("zklock -n /l -- make", 4),
            ("zklock -w 5 --label /x /l make", 6),
            ("zklock -j -w 5 /l ", 5),
            ("zklock -j /l ", 3),
            ("zklock --zk=h:1 -- /l make", 4),
            ("zklock /l ls /", 2),
            ("zklock -- ls /l", 3),
            ("zklock /l --", 2),
            ("zklock /l -c", 2),
        ] {
            assert_eq!(expected_in(line), ExpectedWord::Command(at), "{line}");
        }
        for line in
            ["zklock /l -c ", "zklock -c make /l ", "zklock /l --command ma", "zklock -c ", "zklock --command=ma"]
        {
            assert_eq!(expected_in(line), ExpectedWord::Nothing, "{line}");
        }
    }

    #[test]
    fn options_values_and_files_are_offered() {
        assert_eq!(words_in("zklock --tick"), ["--tick-time"]);
        assert_eq!(words_in("zklock ls --j"), ["--json"]);
        assert!(words_in("zklock -").contains(&"-w".to_owned()));
        assert_eq!(words_in("zklock -j --tick"), ["--tick-time"]);
        assert!(!words_in("zklock --").contains(&"--close".to_owned()), "--close has no effect");
        assert_eq!(words_in("zklock --dialect cur"), ["curator", "curator-mutex"]);
        assert_eq!(words_in("zklock --dialect=k"), ["--dialect=kazoo"]);
        assert_eq!(words_in("zklock completions b"), ["bash"]);
        assert_eq!(words_in("zklock man wa"), ["watch"]);
        for line in ["zklock --auth-file ", "zklock ls --tls-ca /e", "zklock --tls-key=", "zklock -n --sasl-file x"] {
            assert_eq!(expected_in(line), ExpectedWord::File, "{line}");
        }
        for line in ["zklock -w ", "zklock -nw ", "zklock --auth ", "zklock --bogus=", "zklock break /l 4"] {
            assert_eq!(expected_in(line), ExpectedWord::Nothing, "{line}");
        }
    }

    #[test]
    fn connection_options_are_found_anywhere_on_the_line() {
        assert_eq!(options_in("zklock -n --zk a:1 -w 5 --tls-ca=x /"), ["--zk", "a:1", "--tls-ca=x"]);
        assert_eq!(options_in("zklock ls --zk a:1 -v /"), ["--zk", "a:1", "-v"]);
        assert_eq!(options_in("zklock --zk a:1 ls --json /"), ["--zk", "a:1"]);
    }

    #[test]
    fn every_candidate_has_a_one_line_description() {
        let mut program = Arguments::command();
        program.build();
        let all = option_candidates(&program, "").into_iter().chain(subcommand_candidates(&program, ""));
        for CompletionCandidate { word, meaning } in all {
            assert!(!meaning.is_empty() && !meaning.contains(['\n', '\t']), "{word}: {meaning:?}");
        }
    }
}
