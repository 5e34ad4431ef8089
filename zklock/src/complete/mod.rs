//! The hidden subcommand `complete`, which the completion scripts of the shells call. It reads a command line up to the
//! cursor and prints the possible next words. It reports no errors of the line or of the ensemble, because a message
//! would disturb the line that the user is typing.
//!
//! The words of the command line come by standard input, each ended by a zero byte. They are not passed as arguments,
//! because a password among them would show in the list of processes. bash sends one word more: the part of the last
//! word that bash will replace by the chosen candidate. The answer is empty if there is nothing to complete. Otherwise
//! its first line is one of these:
//! - `words`: a line for each candidate follows, with the word and, if there is one, a tab and a description;
//! - `file`: the shell completes the name of a file;
//! - `command N`: the shell completes a command that begins after the first N words.
//!
//! For bash, a candidate is the text to insert, with its quotes. For zsh and fish, it is the whole word, because these
//! shells add the quotes.
//!
//! The engine of `clap_complete` cannot be used here. Its completer of a value sees only the word at the cursor, and
//! not the options elsewhere on the line that state the servers and the login. Its scripts pass the words as arguments.
//! And the engine is behind an unstable feature.

pub(crate) mod completions;
mod cursor;
mod quotes;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{self, Read};
use std::sync::Arc;
use std::time::Duration;

use clap::{CommandFactory, Parser};
use clap_complete::Shell;
use zk_rwlock::coordinator::{Coordinator, Session};
use zk_rwlock::queue::NodeName;
use zk_rwlock::{Dialect, Memory, RwLock};

use crate::arguments::{Arguments, ConnectionArguments};
use crate::complete::cursor::{CompletionCandidate, ExpectedWord};
use crate::complete::quotes::TypedWord;
use crate::connect::{self, connect_silently};
use crate::exit::Exit;
use crate::output::{self, escape_controls};

/// The longest wait for the ensemble. It is short, because the user waits at the prompt meanwhile.
const TIME_LIMIT: Duration = Duration::from_secs(1);

/// If more paths than this are offered, zklock does not check which of them have locks below, because each check is a
/// request to the server.
const LOOKED_INTO: usize = 100;

/// A node that has both of these children counts as a semaphore.
const OF_A_SEMAPHORE: [&str; 2] = ["queue", "permits"];

/// The suffix of the record of a `--once-in` job. The record of the lock `/a` is `/a.done`.
const RECORD: &str = ".done";

/// The suffix of the name of a twin: a second node beside a value or a record, whose name is the name of the first node
/// with this suffix. The twin proves that the first node existed, even after the first node was deleted.
const TWIN: &str = ".twin";

pub(crate) async fn print_candidates(shell: Shell) -> Result<u8, Exit> {
    let mut line = Vec::new();
    // There is no completion for a line that is not UTF-8.
    let read = io::stdin().lock().read_to_end(&mut line).is_ok();
    let Some(line) = String::from_utf8(line).ok().filter(|_| read) else { return Ok(0) };
    let (words, typed) = read_line(shell, &line);
    let mut program = Arguments::command();
    program.build();
    let answer = match (cursor::expected_word(&program, &words), words.last()) {
        (ExpectedWord::Words(words), _) => candidates_text(&words, typed.as_ref()),
        (ExpectedWord::Path { mut words, options }, Some(current)) => {
            let line = [OsString::from("zklock")].into_iter().chain(options).chain(["ls".into(), "/".into()]);
            if let Ok(arguments) = Arguments::try_parse_from(line) {
                let paths = tokio::time::timeout(TIME_LIMIT, path_candidates(current, &arguments.connection)).await;
                words.extend(paths.unwrap_or_default());
            }
            candidates_text(&words, typed.as_ref())
        }
        (ExpectedWord::File, _) => "file\n".to_owned(),
        (ExpectedWord::Command(at), _) => format!("command {at}\n"),
        (ExpectedWord::Nothing | ExpectedWord::Path { .. }, _) => return Ok(0),
    };
    output::print_result(&answer)?;
    Ok(0)
}

/// Reads a command line up to the cursor, as a shell sends it: words that each end with a zero byte. The last word may
/// lack its zero byte. Returns the words without their quotes, and the last word as it was typed, with its quotes. There
/// is no typed word if the shell is not bash, or sent one word only.
fn read_line(shell: Shell, line: &str) -> (Vec<String>, Option<TypedWord>) {
    let mut typed: Vec<&str> = line.strip_suffix('\0').unwrap_or(line).split('\0').collect();
    let replaced = if shell == Shell::Bash && typed.len() > 1 { typed.pop() } else { None };
    let last = typed.len() - 1;
    let word = |(at, word): (usize, &&str)| match shell {
        // bash sends all words with their quotes. fish sends only the word at the cursor with its quotes.
        Shell::Bash => quotes::unquote_bash(word),
        Shell::Fish if at == last => quotes::unquote_fish(word),
        _ => (*word).to_owned(),
    };
    let words = typed.iter().enumerate().map(word).collect();
    (words, replaced.map(|replaced| TypedWord::new(typed[last], replaced)))
}

fn candidates_text(words: &[CompletionCandidate], typed: Option<&TypedWord>) -> String {
    let line = |CompletionCandidate { word, meaning }: &CompletionCandidate| {
        let word = typed.map_or_else(|| Some(word.clone()), |typed| typed.text_to_insert(word))?;
        Some(if meaning.is_empty() { format!("{word}\n") } else { format!("{word}\t{meaning}\n") })
    };
    words.iter().filter_map(line).fold("words\n".to_owned(), |text, line| text + &line)
}

/// Returns the paths in the ensemble that begin with `current`, have no slash after this beginning, and may be locks or
/// directories of locks. Adds a slash to a path if there may be locks below it, unless there are more than
/// [`LOOKED_INTO`] paths. Returns no paths if the servers cannot be asked.
async fn path_candidates(current: &str, connection: &ConnectionArguments) -> Vec<CompletionCandidate> {
    let Some((directory, _)) = (if current.is_empty() { "/" } else { current }).rsplit_once('/') else {
        return Vec::new();
    };
    // An invalid path cannot have a lock below it, so the servers are not asked.
    if !directory.is_empty() && RwLock::new(&Memory::new(), directory).is_err() {
        return Vec::new();
    }
    let Ok(options) = connect::client_options(TIME_LIMIT, connection) else { return Vec::new() };
    let Ok(zk) = connect_silently(&options, connection).await else { return Vec::new() };
    let mut paths = Vec::new();
    if let Ok(slot) = zk.session_slot(0).await {
        let below = possible_locks_below(slot.session(), directory).await;
        paths = below.into_iter().filter(|path| path.starts_with(current)).collect::<Vec<_>>();
        if paths.len() <= LOOKED_INTO {
            add_slash_if_locks_below(slot.session(), &mut paths).await;
        }
    }
    zk.close().await;
    paths.into_iter().map(|word| CompletionCandidate { word, meaning: String::new() }).collect()
}

/// Returns the paths directly below this directory that may be locks or directories of locks ([`possible_lock_names`]),
/// except `/zookeeper`, which is the servers' own. Returns none if the directory cannot be listed. An empty `directory`
/// means the root.
async fn possible_locks_below(session: &Arc<dyn Session>, directory: &str) -> BTreeSet<String> {
    let root = if directory.is_empty() { "/" } else { directory };
    let children = session.children(root).await.unwrap_or_default();
    possible_lock_names(&children)
        .map(|name| format!("{directory}/{name}"))
        .filter(|path| path != "/zookeeper")
        .collect()
}

/// Returns the names of possible locks or directories of locks among these children. Leaves out contenders, twins (see
/// [`TWIN`]), the parts of a semaphore, and names with control characters. For a record, returns the name of its lock.
fn possible_lock_names(children: &[String]) -> impl Iterator<Item = &str> {
    let is_semaphore = OF_A_SEMAPHORE.iter().all(|name| children.iter().any(|child| child == name));
    let is_part = move |name: &&str| is_semaphore && OF_A_SEMAPHORE.contains(name);
    let is_contender =
        |name: &&str| NodeName::parse_as(name, Dialect::Native).is_some() || Dialect::Native.foreign(name).is_some();
    // A name with control characters is not offered, because a terminal could show another name in its place.
    let names = children.iter().map(String::as_str).filter(|name| escape_controls(name) == *name);
    // The twin of a record or of a value (see `TWIN`) is no lock.
    let is_twin = |name: &&str| {
        let of = name.strip_suffix(TWIN);
        of.is_some_and(|of| of.ends_with(RECORD) || children.iter().any(|child| child == of))
    };
    let names = names.filter(move |name| !is_part(name) && !is_contender(name) && !is_twin(name));
    // The servers remove the empty directory of a lock without contenders, but not the record of a `--once-in` job. So
    // the record `/a.done` shows that there is a lock `/a`.
    names.map(|name| name.strip_suffix(RECORD).filter(|lock| !lock.is_empty()).unwrap_or(name))
}

async fn add_slash_if_locks_below(session: &Arc<dyn Session>, paths: &mut [String]) {
    // All requests are sent before the first reply is awaited, so they take one round trip.
    let replies: Vec<_> = paths.iter().map(|path| session.children(path)).collect();
    for (path, reply) in paths.iter_mut().zip(replies) {
        if reply.await.is_ok_and(|children| possible_lock_names(&children).next().is_some()) {
            path.push('/');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_that_the_shell_leaves_are_removed() {
        let words = |shell, line| read_line(shell, line).0;
        let line = "zklock\0'-w'\0'/a b'\0";
        let in_bash = format!("{line}/a b'\0");
        assert_eq!(words(Shell::Bash, &in_bash), ["zklock", "-w", "/a b"], "bash sends all words as they were typed");
        assert_eq!(
            words(Shell::Fish, line),
            ["zklock", "'-w'", "/a b"],
            "fish sends only the last word as it was typed"
        );
        assert_eq!(words(Shell::Zsh, line), ["zklock", "'-w'", "'/a b'"]);
        assert_eq!(words(Shell::Zsh, "zklock\0"), ["zklock"]);
        assert_eq!(words(Shell::Fish, "zklock\0'/a"), ["zklock", "/a"], "the last word may lack its zero byte");
        assert_eq!(words(Shell::Fish, ""), [""]);
        assert_eq!(words(Shell::Zsh, "zklock\0\0"), ["zklock", ""], "the second word is still empty");
    }

    #[test]
    fn contenders_and_semaphore_parts_are_not_offered() {
        let named = |children: &[&str]| {
            let children: Vec<String> = children.iter().map(|name| (*name).to_owned()).collect();
            possible_lock_names(&children).map(str::to_owned).collect::<Vec<_>>()
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
            assert_eq!(
                possible_lock_names(&[name.to_owned(), "plain".to_owned()]).collect::<Vec<_>>(),
                ["plain"],
                "{name:?}"
            );
        }
    }
}
