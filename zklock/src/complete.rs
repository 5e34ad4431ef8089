//! `complete`, which the shells' completions call: reads a command line up to the cursor, and prints what can stand
//! there. Whatever goes wrong, it says nothing: somebody is typing.
//!
//! The words come by standard input, each ended by a zero byte, and not as arguments: a password among them would show
//! in the list of processes. bash gives one more: what it replaces at the end of the last. The first line of the answer is `words`, `file` or `command N`, where N counts the words
//! before the command. After `words` there is a line for each word, and behind a tab what it means. For bash the words are
//! quoted, and only what it has to put there; zsh and fish quote by themselves.
//!
//! `clap_complete` has an engine of its own. It does not do here: its completer of a value sees only the word at the cursor,
//! and not the servers and the login that stand elsewhere on the line; its scripts give the words as arguments; and it is
//! behind a feature that is called unstable.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{self, Read};
use std::sync::Arc;
use std::time::Duration;

use clap::{CommandFactory, Parser};
use clap_complete::Shell;
use zk_rwlock::coordinator::{Coordinator, Session};
use zk_rwlock::queue::Contender;
use zk_rwlock::{Dialect, Memory, RwLock};

use crate::arguments::{Arguments, Connection};
use crate::connect::connect_within;
use crate::cursor::{self, Completion, WantedWord};
use crate::exit::Exit;
use crate::output::{self, tame};
use crate::quotes::{self, TypedWord};

/// How long somebody who presses a key waits at most, where the ensemble is away.
const PATIENCE: Duration = Duration::from_secs(1);

/// Of so many paths it is looked up whether they go on.
const LOOKED_INTO: usize = 100;

/// What a node's children are that make a semaphore of it.
const OF_A_SEMAPHORE: [&str; 2] = ["queue", "permits"];

/// What the record ends with that is beside a lock under which a job is done once in a while.
const RECORD: &str = ".done";

/// What the name of a node ends with that says that another one was there.
const TWIN: &str = ".twin";

pub(crate) async fn complete(shell: Shell) -> Result<u8, Exit> {
    let mut line = Vec::new();
    // A line that is no text is completed by nothing.
    let read = io::stdin().lock().read_to_end(&mut line).is_ok();
    let Some(line) = String::from_utf8(line).ok().filter(|_| read) else { return Ok(0) };
    let Line { words, typed } = Line::read(shell, &line);
    let mut program = Arguments::command();
    program.build();
    let answer = match (cursor::wanted(&program, &words), words.last()) {
        (WantedWord::Words(words), _) => told(&words, typed.as_ref()),
        (WantedWord::Path { mut words, options }, Some(current)) => {
            let line = [OsString::from("zklock")].into_iter().chain(options).chain(["ls".into(), "/".into()]);
            if let Ok(arguments) = Arguments::try_parse_from(line) {
                let paths = tokio::time::timeout(PATIENCE, paths(current, &arguments.connection)).await;
                words.extend(paths.unwrap_or_default());
            }
            told(&words, typed.as_ref())
        }
        (WantedWord::File, _) => "file\n".to_owned(),
        (WantedWord::Command(at), _) => format!("command {at}\n"),
        (WantedWord::Nothing | WantedWord::Path { .. }, _) => return Ok(0),
    };
    output::print(&answer)?;
    Ok(0)
}

/// A line up to the cursor, as a shell gives it.
struct Line {
    /// Without the quotes that the shell has left.
    words: Vec<String>,
    /// The last word, in bash.
    typed: Option<TypedWord>,
}

impl Line {
    /// Each word ends with a zero byte, which the last may lack.
    fn read(shell: Shell, line: &str) -> Line {
        let mut typed: Vec<&str> = line.strip_suffix('\0').unwrap_or(line).split('\0').collect();
        let replaced = if shell == Shell::Bash && typed.len() > 1 { typed.pop() } else { None };
        let last = typed.len() - 1;
        let word = |(at, word): (usize, &&str)| match shell {
            // bash gives all words as they were typed, and fish the one at the cursor.
            Shell::Bash => quotes::unquoted(word),
            Shell::Fish if at == last => quotes::unquoted_in_fish(word),
            _ => (*word).to_owned(),
        };
        let words = typed.iter().enumerate().map(word).collect();
        Line { words, typed: replaced.map(|replaced| TypedWord::new(typed[last], replaced)) }
    }
}

fn told(words: &[Completion], typed: Option<&TypedWord>) -> String {
    let line = |Completion { word, meaning }: &Completion| {
        let word = typed.map_or_else(|| Some(word.clone()), |typed| typed.completed(word))?;
        Some(if meaning.is_empty() { format!("{word}\n") } else { format!("{word}\t{meaning}\n") })
    };
    words.iter().filter_map(line).fold("words\n".to_owned(), |text, line| text + &line)
}

/// The paths of the ensemble that begin like this one. Those that go on end with a slash.
async fn paths(current: &str, connection: &Connection) -> Vec<Completion> {
    let Some((directory, _)) = (if current.is_empty() { "/" } else { current }).rsplit_once('/') else {
        return Vec::new();
    };
    // What no lock can be below is not asked for.
    if !directory.is_empty() && RwLock::new(&Memory::new(), directory).is_err() {
        return Vec::new();
    }
    let Ok(zk) = connect_within(PATIENCE, connection).await else { return Vec::new() };
    let mut paths = Vec::new();
    if let Ok(slot) = zk.session_slot(0).await {
        let below = below(slot.session(), directory).await;
        paths = below.into_iter().filter(|path| path.starts_with(current)).collect::<Vec<_>>();
        if paths.len() <= LOOKED_INTO {
            mark_those_that_go_on(slot.session(), &mut paths).await;
        }
    }
    zk.close().await;
    paths.into_iter().map(|word| Completion { word, meaning: String::new() }).collect()
}

/// The locks and directories of locks right below this one, which is empty for the root.
async fn below(session: &Arc<dyn Session>, directory: &str) -> BTreeSet<String> {
    let root = if directory.is_empty() { "/" } else { directory };
    let children = session.children(root).await.unwrap_or_default();
    names(&children).map(|name| format!("{directory}/{name}")).filter(|path| path != "/zookeeper").collect()
}

/// Those of a node's children that are locks or directories of locks, by their names.
fn names(children: &[String]) -> impl Iterator<Item = &str> {
    let is_semaphore = OF_A_SEMAPHORE.iter().all(|name| children.iter().any(|child| child == name));
    let is_part = move |name: &&str| is_semaphore && OF_A_SEMAPHORE.contains(name);
    let is_contender =
        |name: &&str| Contender::parse_as(name, Dialect::Native).is_some() || Dialect::Native.foreign(name).is_some();
    // A name that could make a terminal show something else than what stands there is nothing to choose from.
    let names = children.iter().map(String::as_str).filter(|name| tame(name) == *name);
    // The second node of what is kept, and no lock.
    let is_twin = |name: &&str| {
        let of = name.strip_suffix(TWIN);
        of.is_some_and(|of| of.ends_with(RECORD) || children.iter().any(|child| child == of))
    };
    let names = names.filter(move |name| !is_part(name) && !is_contender(name) && !is_twin(name));
    // A lock whose directory is gone while nobody holds it is known by its record.
    names.map(|name| name.strip_suffix(RECORD).filter(|lock| !lock.is_empty()).unwrap_or(name))
}

async fn mark_those_that_go_on(session: &Arc<dyn Session>, paths: &mut [String]) {
    // All requests are sent before the first answer is awaited.
    let replies: Vec<_> = paths.iter().map(|path| session.children(path)).collect();
    for (path, reply) in paths.iter_mut().zip(replies) {
        if reply.await.is_ok_and(|children| names(&children).next().is_some()) {
            path.push('/');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_that_the_shell_leaves_are_removed() {
        let words = |shell, line| Line::read(shell, line).words;
        let line = "zklock\0'-w'\0'/a b'\0";
        let in_bash = format!("{line}/a b'\0");
        assert_eq!(words(Shell::Bash, &in_bash), ["zklock", "-w", "/a b"], "bash gives all words as they were typed");
        assert_eq!(words(Shell::Fish, line), ["zklock", "'-w'", "/a b"], "fish only the last");
        assert_eq!(words(Shell::Zsh, line), ["zklock", "'-w'", "'/a b'"]);
        assert_eq!(words(Shell::Zsh, "zklock\0"), ["zklock"]);
        assert_eq!(words(Shell::Fish, "zklock\0'/a"), ["zklock", "/a"], "the last may lack its zero byte");
        assert_eq!(words(Shell::Fish, ""), [""]);
        assert_eq!(words(Shell::Zsh, "zklock\0\0"), ["zklock", ""], "nothing is typed of the second word yet");
    }

    #[test]
    fn contenders_and_semaphore_parts_are_not_offered() {
        let named = |children: &[&str]| {
            let children: Vec<String> = children.iter().map(|name| (*name).to_owned()).collect();
            names(&children).map(str::to_owned).collect::<Vec<_>>()
        };
        let curator = "_c_6f6e1f0e-4b8f-4f3a-9d5c-0a1b2c3d4e5f-__WRIT__0000000004";
        assert_eq!(named(&["web~1-WRITE-0000000001", "web~2-READ-0000000002", curator, "deep"]), ["deep"]);
        assert_eq!(named(&["queue", "permits"]), Vec::<String>::new());
        assert_eq!(named(&["queue", "permits", "deep"]), ["deep"]);
        assert_eq!(named(&["queue", "report.done", ".done"]), ["queue", "report", ".done"]);
        assert_eq!(
            named(&["report.done", "report.done.twin", "value", "value.twin", "twin.twin"]),
            ["report", "value", "twin.twin"]
        );
    }

    #[test]
    fn a_name_with_control_characters_is_not_offered() {
        for name in ["a\tb", "a\nb", "\x1b[2J", "\x7f", "\u{9b}", "\u{202e}gnp", "a\u{200f}", "a\u{61c}b", "\u{2028}"] {
            assert_eq!(names(&[name.to_owned(), "plain".to_owned()]).collect::<Vec<_>>(), ["plain"], "{name:?}");
        }
    }
}
