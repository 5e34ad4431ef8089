//! Defines and parses the arguments of zklock, and holds its help texts.

use std::ffi::{OsStr, OsString};
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Args, Command, CommandFactory, FromArgMatches, Parser, ValueHint};
use clap_complete::Shell;
use zk_rwlock::Dialect;

use crate::exit;

const USAGE: &str = "zklock [OPTIONS] PATH [--] COMMAND [ARGUMENTS]...
       zklock [OPTIONS] PATH -c 'SHELL COMMAND'
       zklock [OPTIONS] ls|watch|timeline|ask|forget|permits|break|check ...";

/// The completion hint for an argument that names a file.
const FILE: ValueHint = ValueHint::FilePath;

/// The text that `zklock --help` prints after the options. In a manual page its lines fit into 80 columns.
const AFTER_HELP: &str = include_str!("help/options.txt").trim_ascii_end();

/// The text that only the manual page has, after the text of the help. Its lines fit into 80 columns there.
pub(crate) const MANUAL: &str = include_str!("help/manual.txt").trim_ascii_end();

/// Run a command while holding a read/write lock in ZooKeeper: flock(1) for many machines.
///
/// The lock is a directory in ZooKeeper, PATH. Without -s the command runs alone under the lock. With -s it may run
/// together with other commands under -s. First come, first served. The lock is given back when the command ends. If
/// this machine dies, the lock is free one session timeout later.
#[derive(Debug, Parser)]
#[command(name = "zklock", version, override_usage = USAGE, after_long_help = AFTER_HELP, max_term_width = 110)]
#[command(after_help = "All options, with examples and exit codes: zklock --help", disable_help_subcommand = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) task: Option<Subcommand>,

    #[command(flatten)]
    pub(crate) run: RunArguments,

    #[command(flatten)]
    pub(crate) connection: ConnectionArguments,
}

/// The line that the help of a subcommand prints in place of the options of the connection.
const ELSEWHERE: &str = "Options of the connection, such as --zk and --auth-file: zklock --help";

impl Arguments {
    /// Returns the definition of the arguments, for parsing and for help. Every subcommand accepts the options of the
    /// connection. Its help hides them, and says where they are described.
    pub(crate) fn clap_command() -> Command {
        let program = Arguments::command();
        let connection: Vec<Arg> = program
            .get_arguments()
            .filter(|option| option.is_global_set())
            .map(|option| option.clone().hide(true))
            .collect();
        program.mut_subcommands(|task| {
            let longer = task.get_after_long_help().map(|more| format!("{more}\n\n{ELSEWHERE}"));
            let task = task.args(connection.clone()).after_help(ELSEWHERE);
            longer.into_iter().fold(task, Command::after_long_help)
        })
    }

    fn parse_words(words: &[OsString]) -> Result<Arguments, clap::Error> {
        let matches = Arguments::clap_command().try_get_matches_from(words)?;
        Arguments::from_arg_matches(&matches).map_err(|error| error.format(&mut Arguments::clap_command()))
    }

    /// Parses the command line. A word that begins with `/` and follows a `-j` of zklock is not read as the number of
    /// permits.
    pub(crate) fn from_command_line(mut words: Vec<OsString>) -> Result<Arguments, clap::Error> {
        let beginnings: Vec<_> = words.iter().map(|word| beginning_if_too_long(word)).collect();
        if beginnings.iter().any(Option::is_some) {
            // clap compares an unknown option with every known one, which takes seconds if the unknown option is very
            // long. So the line is first parsed with the beginning of each long word instead of the word. This parse
            // refuses an unknown long option. It does not refuse a long word that is a value, or that belongs to the
            // command that zklock runs. The whole words are parsed below.
            let either = |(word, beginning): (&OsString, Option<OsString>)| beginning.unwrap_or_else(|| word.clone());
            Arguments::from_command_line(words.iter().zip(beginnings).map(either).collect())?;
        }
        let lacks_number = |pair: &[OsString]| {
            let is_j = || {
                Arguments::parse_words(&[words[0].clone(), pair[0].clone()])
                    .is_ok_and(|it| matches!(it.run.permits, Some(WantedPermits(None))))
            };
            pair[1].as_encoded_bytes().starts_with(b"/") && beginning_if_too_long(&pair[0]).is_none() && is_j()
        };
        if let Some(at) = words.windows(2).position(lacks_number) {
            // Only a `-j` before the lock's path is an option of zklock. A later `-j` belongs to the command that
            // zklock runs. The empty word that is inserted after `-j` stands for the missing number.
            let before = Arguments::parse_words(&words[..at]);
            if before.is_ok_and(|before| before.task.is_none() && before.run.words.is_empty()) {
                words.insert(at + 1, OsString::new());
            }
        }
        Arguments::parse_words(&words).map_err(without_misleading_tip)
    }
}

/// The name of every option of zklock has fewer characters than this.
const TOO_LONG: usize = 64;

/// Returns the first [`TOO_LONG`] characters of a word that has more, if they begin with `--` and contain no `=`,
/// because clap could take such a word for the name of an option. Returns `None` for any other word.
fn beginning_if_too_long(word: &OsStr) -> Option<OsString> {
    let word = word.to_string_lossy();
    let (end, _) = word.char_indices().nth(TOO_LONG)?;
    (word.starts_with("--") && !word[..end].contains('=')).then(|| word[..end].into())
}

/// Options of flock(1) that zklock does not have.
const OF_FLOCK: [&str; 5] = ["-F", "--no-fork", "-u", "--unlock", "--fcntl"];

/// Changes only an error about an unknown argument. Removes clap's tip to pass the argument after `--`, where zklock
/// would read it as the lock's path. If the argument is in [`OF_FLOCK`], a new tip says why zklock does not have this
/// option.
fn without_misleading_tip(mut error: clap::Error) -> clap::Error {
    if error.kind() == ErrorKind::UnknownArgument {
        error.remove(ContextKind::Suggested);
        let argument = error.get(ContextKind::InvalidArg).map(ToString::to_string).unwrap_or_default();
        if OF_FLOCK.contains(&&*argument) {
            let tip = "flock(1) has this option, but zklock has not: the session needs a process that runs as long as the command";
            error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
        }
    }
    error
}

/// The arguments for running a command.
#[derive(Debug, Args)]
pub(crate) struct RunArguments {
    /// Share the lock with other commands under -s (a read lock).
    #[arg(short = 's', long, overrides_with = "exclusive")]
    pub(crate) shared: bool,

    /// Hold the lock alone (a write lock): the default.
    #[arg(short = 'x', short_alias = 'e', long)]
    exclusive: bool,

    /// Run under a permit: at most as many run at once as `zklock permits` has set.
    ///
    /// The number counts for the whole fleet. N sets the number if none is set yet. Better leave N out.
    #[arg(short = 'j', long, value_name = "N", num_args = 0..=1, default_missing_value = "", value_parser = parse_permits, conflicts_with_all = ["shared", "exclusive", "once_in"])]
    pub(crate) permits: Option<WantedPermits>,

    /// Do not wait: exit with 1 (or -E) if the lock is taken.
    #[arg(short = 'n', long, visible_alias = "nb")]
    pub(crate) nonblock: bool,

    /// Wait at most this long, in seconds (or like 1m30s), then exit with 1 (or -E).
    ///
    /// The time counts once zklock is connected. 0 means -n.
    #[arg(short = 'w', long, visible_alias = "timeout", value_name = "SECS", value_parser = parse_duration, allow_negative_numbers = true)]
    pub(crate) wait: Option<Duration>,

    /// The exit code when -n or -w does not get the lock.
    #[arg(short = 'E', long, value_name = "CODE", value_parser = parse_exit_code, default_value_t = exit::NEGATIVE, hide_default_value = true, allow_negative_numbers = true)]
    pub(crate) conflict_exit_code: u8,

    /// Run the command only if it has not succeeded within this time, like 50m.
    ///
    /// A number without a unit means seconds. The time is measured by ZooKeeper's clock. If the command has succeeded
    /// within this time, zklock exits with 0 (or --skipped-exit-code).
    #[arg(long, value_name = "TIME", value_parser = parse_duration, conflicts_with = "shared")]
    pub(crate) once_in: Option<Duration>,

    /// The exit code when --once-in does not run the command, because it was already done.
    #[arg(long, value_name = "CODE", value_parser = parse_exit_code, default_value_t = 0, hide_default_value = true, requires = "once_in", hide_short_help = true)]
    pub(crate) skipped_exit_code: u8,

    /// flock(1) has this option. Here it has no effect, because the command never inherits a file that could keep the lock.
    #[arg(short = 'o', long, hide = true)]
    close: bool,

    /// Run this line with $SHELL (or /bin/sh) instead of a command.
    #[arg(short = 'c', long = "command", value_name = "CMD")]
    pub(crate) shell: Option<OsString>,

    /// How long the command may take to end between TERM and KILL, after the lock is lost. zklock shortens this time so
    /// that the command ends before the lock can be granted to another contender.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = parse_duration, hide_short_help = true)]
    pub(crate) grace: Duration,

    /// Hold the lock for at most this long, in seconds (or like 1h). Then the lock is lost, and the command is ended as
    /// after any loss [default: for as long as the command runs].
    #[arg(long, value_name = "TIME", value_parser = parse_positive_duration, hide_short_help = true)]
    pub(crate) max_hold: Option<Duration>,

    /// The exit code when the lock was lost.
    #[arg(long, value_name = "CODE", value_parser = parse_exit_code, default_value_t = exit::LOST, hide_short_help = true)]
    pub(crate) lost_exit_code: u8,

    /// Leave ZK_AUTH, ZK_SASL and the other variables with credentials in the environment of the command.
    #[arg(long, hide_short_help = true)]
    pub(crate) keep_credentials: bool,

    /// The label that others see [default: the beginning of the command line].
    ///
    /// Put no secrets into the beginning of the command line, or give a label.
    #[arg(long, value_name = "TEXT")]
    pub(crate) label: Option<String>,

    /// The host that other users of the lock see [default: the machine's name].
    #[arg(long, value_name = "NAME", hide_short_help = true)]
    pub(crate) host: Option<String>,

    /// Print nothing while waiting, or when the lock was not granted.
    ///
    /// Print nothing either when --once-in does not run the command.
    #[arg(short = 'q', long, conflicts_with = "verbose")]
    pub(crate) quiet: bool,

    /// The lock's path in ZooKeeper, and the command to run, with its arguments.
    #[arg(value_name = "PATH [--] COMMAND", trailing_var_arg = true)]
    pub(crate) words: Vec<OsString>,
}

impl RunArguments {
    /// Returns whether zklock gives up, instead of waiting, if the lock is taken: with `-n`, or with `-w 0`.
    pub(crate) fn does_not_wait(&self) -> bool {
        self.nonblock || self.wait == Some(Duration::ZERO)
    }
}

/// The arguments for connecting to ZooKeeper.
#[derive(Debug, Args)]
#[command(next_help_heading = "Connection")]
pub(crate) struct ConnectionArguments {
    /// The servers: host:port,host:port [env: ZK_HOSTS] [default: 127.0.0.1:2181].
    ///
    /// A path at the end becomes the root of all paths.
    #[arg(long, global = true, value_name = "HOSTS")]
    pub(crate) zk: Option<OsString>,

    /// The naming scheme of the lock's nodes: native, or the scheme of another program that uses the lock, which is curator
    /// (InterProcessReadWriteLock), curator-mutex (InterProcessMutex) or kazoo. ls --tree detects the scheme.
    #[arg(long, global = true, value_name = "NAME", default_value_t = Dialect::Native, hide_default_value = true, hide_short_help = true)]
    pub(crate) dialect: Dialect,

    /// How long ZooKeeper keeps the lock of a zklock that it does not hear from. The servers may limit this time.
    #[arg(long, global = true, value_name = "TIME", default_value = "10s", value_parser = parse_positive_duration, hide_short_help = true)]
    pub(crate) session_timeout: Duration,

    /// How long to try to reach a server [default: the session timeout; with -n 3s at most]. -w shortens this time,
    /// down to 1s. After this time zklock exits with 69, and says why each server gives no session.
    #[arg(long, global = true, value_name = "TIME", value_parser = parse_positive_duration, hide_short_help = true)]
    pub(crate) connect_timeout: Option<Duration>,

    /// The tickTime of the servers' configuration [env: ZK_TICK_TIME] [default: the smaller of 3s and half the session
    /// timeout]. If a small tick time is given, the lock survives a longer disconnection. The value must not be less than
    /// the servers' own.
    #[arg(long, global = true, value_name = "TIME", hide_short_help = true)]
    pub(crate) tick_time: Option<OsString>,

    /// Authenticate with ZooKeeper's digest scheme [env: ZK_AUTH]. Only the same user has rights on the nodes that are
    /// then created. Other users of this machine see this option in the list of processes: better use --auth-file or
    /// ZK_AUTH.
    #[arg(long, global = true, value_name = "USER:PASSWORD", hide_short_help = true)]
    pub(crate) auth: Option<OsString>,

    /// Like --auth, from a file of one line, such as a credential of systemd or a secret of Kubernetes [env: ZK_AUTH_FILE].
    #[arg(long, global = true, value_name = "FILE", value_hint = FILE, hide_short_help = true)]
    pub(crate) auth_file: Option<OsString>,

    /// Authenticate with SASL's DIGEST-MD5, as a user of the servers' JAAS file. Apart from this, the option is like --auth:
    /// better use --sasl-file or ZK_SASL [env: ZK_SASL].
    #[arg(long, global = true, value_name = "USER:PASSWORD", hide_short_help = true)]
    pub(crate) sasl: Option<OsString>,

    /// Like --sasl, from a file of one line [env: ZK_SASL_FILE].
    #[arg(long, global = true, value_name = "FILE", value_hint = FILE, hide_short_help = true)]
    pub(crate) sasl_file: Option<OsString>,

    /// Encrypt, and trust servers with a certificate by one of these authorities (PEM) [env: ZK_TLS_CA].
    #[arg(long, global = true, value_name = "FILE", value_hint = FILE, hide_short_help = true)]
    pub(crate) tls_ca: Option<OsString>,

    /// The certificate of this client, for servers that ask for one (PEM) [env: ZK_TLS_CERT].
    #[arg(long, global = true, value_name = "FILE", value_hint = FILE, hide_short_help = true)]
    pub(crate) tls_cert: Option<OsString>,

    /// The key to --tls-cert (PEM) [env: ZK_TLS_KEY].
    #[arg(long, global = true, value_name = "FILE", value_hint = FILE, hide_short_help = true)]
    pub(crate) tls_key: Option<OsString>,

    /// Report when the lock is granted, and its token, and log the connection.
    #[arg(short = 'v', long, global = true)]
    pub(crate) verbose: bool,
}

/// The subcommands.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Subcommand {
    /// Show who holds a lock and who waits, or who has the permits of a semaphore.
    ///
    /// A holder whose STATE is `keeps` may keep the lock between uses. Such a holder, if idle, gives the lock up as soon as a
    /// waiting contender or `zklock ask` asks for it. Others cannot see whether a holder is idle. A holder whose STATE is
    /// `leads` is the leader of an election.
    ///
    /// In a narrow terminal the column SESSION is dropped first, then long hosts and labels are shortened, then PID is
    /// dropped. TOKEN is always shown. With `| cat` all columns are shown, and in --json all
    /// labels are whole.
    Ls(LsArguments),
    /// Show what ls shows, live, until interrupted.
    ///
    /// `zklock ls --help` explains the states.
    ///
    /// In the background (`zklock watch PATH &`) nothing is drawn. `fg` continues the display.
    Watch(WatchArguments),
    /// Draw the lines of `zklock watch --json`: who waited, who held, and when.
    ///
    /// The picture is SVG. A contender has a row, with its mode, host, label and token. Waiting is light and holding is dark.
    /// The bar of a write is high, and the bar of a read is low. Hover over a row for its times. `watch` sees neither why a
    /// holder left nor the moment between a release and the next grant. A grey bar covers the time in which `watch` was cut off.
    Timeline(TimelineArguments),
    /// Ask the processes that only keep a lock to give it up.
    ///
    /// A process may keep a lock between uses. Such a process gives the lock up at once, or when its present uses have
    /// ended. A holder that uses the lock loses nothing. A waiting contender asks by itself, but one with -n does not. This
    /// command does not wait until the lock is free.
    Ask(AskArguments),
    /// Forget the last run under --once-in, so that the next start runs the command.
    Forget(ForgetArguments),
    /// Set how many commands may run at once under -j, or remove the semaphore.
    Permits(PermitsArguments),
    /// Remove one holder or waiter, by its token.
    Break(BreakArguments),
    /// Look for oddities in a lock's directory, and for servers that disagree.
    ///
    /// Exit with 1 if there are any.
    Check(CheckArguments),
    /// Answer a completion script, which sends the words of the command line to standard input.
    #[command(hide = true)]
    Complete {
        /// The shell.
        shell: Shell,
    },
    /// Print completions for a shell, for example: source <(zklock completions bash)
    ///
    /// In bash, zsh and fish the completions include the paths of the ensemble, and the words after the lock complete as a
    /// command.
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Print the manual page (roff) of zklock or of a subcommand.
    Man {
        /// The subcommand.
        task: Option<String>,
    },
}

/// The arguments of `zklock ls`.
#[derive(Debug, Args)]
#[command(override_usage = "zklock ls [OPTIONS] PATH", after_long_help = include_str!("help/ls_json.txt").trim_ascii_end())]
pub(crate) struct LsArguments {
    /// The lock, or with --tree the path at and below which to look for locks.
    #[arg(value_name = "PATH")]
    pub(crate) path: String,

    /// Show every lock at and below PATH that has a holder, a waiter, or a record of a run under --once-in.
    #[arg(long)]
    pub(crate) tree: bool,

    /// Print JSON, as `zklock ls --help` documents it.
    #[arg(long)]
    pub(crate) json: bool,
}

/// The arguments of `zklock watch`.
#[derive(Debug, Args)]
#[command(override_usage = "zklock watch [OPTIONS] PATH...", after_long_help = include_str!("help/watch_json.txt").trim_ascii_end())]
pub(crate) struct WatchArguments {
    /// The locks. Several locks are shown in one table, with a row for each.
    #[arg(value_name = "PATH", required = true)]
    pub(crate) paths: Vec<String>,

    /// Show every lock at and below PATH that has a holder, a waiter, or a record of a run under --once-in.
    #[arg(long)]
    pub(crate) tree: bool,

    /// How often to read the queue on a screen. Elsewhere each change is printed as soon as ZooKeeper tells of it, and a change
    /// that ZooKeeper does not tell of is seen within this time.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_positive_duration)]
    pub(crate) interval: Duration,

    /// Print a line of JSON for each change, as `zklock watch --help` documents it. `zklock timeline` draws the lines.
    #[arg(long)]
    pub(crate) json: bool,
}

/// The arguments of `zklock timeline`.
#[derive(Debug, Args)]
#[command(override_usage = "zklock timeline [OPTIONS] [FILE]... > PICTURE.svg")]
pub(crate) struct TimelineArguments {
    /// The lines of each watcher, one file for each. Without a file, standard input is read.
    #[arg(value_name = "FILE", value_hint = FILE)]
    pub(crate) files: Vec<PathBuf>,

    /// Draw only what happened after this time, such as 2026-11-28T14:05:00Z.
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub(crate) from: Option<SystemTime>,

    /// Draw only what happened before this time.
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub(crate) to: Option<SystemTime>,

    /// Draw only the locks at and below this path.
    #[arg(long, value_name = "PATH")]
    pub(crate) lock: Option<String>,
}

/// Parses the value of `--from` or `--to`.
fn parse_time(text: &str) -> Result<SystemTime, String> {
    humantime::parse_rfc3339_weak(text).map_err(|error| format!("{error}; a time is like 2026-11-28T14:05:00Z, in UTC"))
}

/// The arguments of `zklock ask`.
#[derive(Debug, Args)]
#[command(override_usage = "zklock ask [OPTIONS] PATH")]
pub(crate) struct AskArguments {
    /// The lock. The client needs the rights READ and WRITE on the lock's directory.
    #[arg(value_name = "PATH")]
    pub(crate) path: String,
}

/// The arguments of `zklock forget`.
#[derive(Debug, Args)]
#[command(override_usage = "zklock forget [OPTIONS] PATH")]
pub(crate) struct ForgetArguments {
    /// The lock. The record is the node PATH.done beside it.
    #[arg(value_name = "PATH")]
    pub(crate) path: String,
}

/// The arguments of `zklock permits`.
#[derive(Debug, Args)]
#[command(override_usage = "zklock permits [OPTIONS] PATH N\n       zklock permits [OPTIONS] PATH --remove")]
pub(crate) struct PermitsArguments {
    /// The semaphore that `zklock -j` uses. It is created if there is no node. A path that has another use is refused, such as
    /// the path of a lock, of a job with a record, or of a value.
    #[arg(value_name = "PATH")]
    pub(crate) path: String,

    /// The new number of permits. No command that holds a permit is stopped.
    #[arg(value_name = "N", value_parser = parse_positive_number, required_unless_present = "remove")]
    pub(crate) number: Option<NonZeroU32>,

    /// Make the semaphore also at an empty node that exists already. Such a node may be a lock that is idle now, whose users
    /// would then be kept out.
    #[arg(long)]
    pub(crate) create: bool,

    /// Remove the semaphore, so that the path can be used for a lock again. If somebody holds or waits for a permit, exit
    /// with 65, and say who it is.
    #[arg(long, conflicts_with_all = ["number", "create"])]
    pub(crate) remove: bool,
}

/// The arguments of `zklock break`.
#[derive(Debug, Args)]
#[command(override_usage = "zklock break [OPTIONS] PATH TOKEN")]
pub(crate) struct BreakArguments {
    /// The lock.
    #[arg(value_name = "PATH")]
    pub(crate) path: String,

    /// The token of the holder or waiter to remove: see `zklock ls`. No two nodes in a queue ever have the same token.
    #[arg(value_name = "TOKEN", value_parser = parse_token)]
    pub(crate) token: i64,

    /// Do not ask for confirmation.
    #[arg(short = 'y', long)]
    pub(crate) yes: bool,
}

/// The arguments of `zklock check`.
#[derive(Debug, Args)]
#[command(
    override_usage = "zklock check [OPTIONS] PATH",
    after_long_help = include_str!("help/check_json.txt").trim_ascii_end()
)]
pub(crate) struct CheckArguments {
    /// The lock.
    #[arg(value_name = "PATH")]
    pub(crate) path: String,

    /// Print JSON, as `zklock check --help` documents it.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Parses a number of seconds, as flock(1) takes it, or a time with units, such as `1m30s`.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let numbers = || text.split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty());
    let time = match text.parse::<f64>() {
        Ok(seconds) => Duration::try_from_secs_f64(seconds).ok(),
        // humantime panics over some times whose parts add up to more than 2^64 s. So two kinds of text are refused
        // here: a text of more than 64 bytes, and a text of several numbers in which a number has more than 9 digits.
        Err(_) if text.len() > 64 || (numbers().count() > 1 && numbers().any(|digits| digits.len() > 9)) => None,
        Err(_) => humantime::parse_duration(text).ok(),
    };
    time.ok_or_else(|| "expected a number of seconds, or a time like 1m30s".to_owned())
}

/// Parses a time as [`parse_duration`] does, and refuses zero.
fn parse_positive_duration(text: &str) -> Result<Duration, String> {
    parse_duration(text)
        .and_then(|time| if time.is_zero() { Err("it must be more than zero".to_owned()) } else { Ok(time) })
}

/// The number of permits that `-j` is given with. `None` if `-j` is given without a number: zklock then uses the number
/// that is stored in ZooKeeper.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WantedPermits(pub(crate) Option<NonZeroU32>);

fn parse_permits(text: &str) -> Result<WantedPermits, String> {
    if text.is_empty() {
        Ok(WantedPermits(None))
    } else {
        parse_positive_number(text).map(|number| WantedPermits(Some(number)))
    }
}

fn parse_positive_number(text: &str) -> Result<NonZeroU32, String> {
    parse_whole_number(text, "a whole number from 1 on")
}

fn parse_exit_code(text: &str) -> Result<u8, String> {
    parse_whole_number(text, "an exit code from 0 to 255")
}

fn parse_token(text: &str) -> Result<i64, String> {
    parse_whole_number(text, "a token, a whole number that zklock ls shows")
}

fn parse_whole_number<T: FromStr>(text: &str, expected: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("expected {expected}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clap_definition_is_valid() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn a_path_after_j_is_not_read_as_a_number() {
        let read = |line: &str| {
            let words = line.split(' ').map(OsString::from).collect();
            let run = Arguments::from_command_line(words).expect(line).run;
            let permits = run.permits.expect(line).0.map_or(0, NonZeroU32::get);
            (permits, run.words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" "))
        };
        for (line, permits, words) in [
            ("zklock -j 3 /l -- make -j /x", 3, "/l -- make -j /x"),
            ("zklock -j3 /l make", 3, "/l make"),
            ("zklock -j /l ls /", 0, "/l ls /"),
            ("zklock -j /l -- check", 0, "/l -- check"),
            ("zklock --permits /l make", 0, "/l make"),
            ("zklock -w 5 -nj /l make", 0, "/l make"),
            ("zklock -j -n /l make", 0, "/l make"),
            ("zklock -j -cj /l", 0, "/l"),
            ("zklock --auth-file /f -j /l make -j /x", 0, "/l make -j /x"),
        ] {
            assert_eq!(read(line), (permits, words.to_owned()), "{line}");
        }
        let line = ["zklock", "-cmake -j", "/l"].map(OsString::from);
        let run = Arguments::from_command_line(line.to_vec()).expect("valid").run;
        assert!(run.permits.is_none() && run.words == ["/l"], "{run:?}");
        let line = ["zklock", "/l", "make", "-j", "/x"].map(OsString::from);
        let run = Arguments::from_command_line(line.to_vec()).expect("valid").run;
        assert!(run.permits.is_none() && run.words.len() == 4, "{run:?}");
    }

    #[test]
    fn a_wrong_number_error_says_what_is_expected() {
        for (words, expected) in [
            (["-j", "many"], "expected a whole number from 1 on"),
            (["-j", "0"], "expected a whole number from 1 on"),
            (["-E", "256"], "expected an exit code from 0 to 255"),
            (["-w", "soon"], "expected a number of seconds, or a time like 1m30s"),
            (["-w", "-1"], "expected a number of seconds, or a time like 1m30s"),
        ] {
            let line = ["zklock", words[0], words[1], "/l", "true"].map(OsString::from);
            let error = Arguments::from_command_line(line.to_vec()).expect_err(expected).to_string();
            assert!(error.contains(&format!("'{}'", words[1])) && error.contains(expected), "{error}");
        }
        let line = ["zklock", "break", "/l", "it"].map(OsString::from);
        let error = Arguments::from_command_line(line.to_vec()).expect_err("not a token").to_string();
        assert!(error.contains("expected a token, a whole number that zklock ls shows"), "{error}");
    }

    #[test]
    fn help_lines_fit_80_columns_in_a_manual_page() {
        let mut command = Arguments::clap_command();
        let mut texts = vec![command.get_after_long_help().map(ToString::to_string), Some(MANUAL.to_owned())];
        texts.extend(command.get_subcommands_mut().map(|task| task.get_after_long_help().map(ToString::to_string)));
        let texts: Vec<String> = texts.into_iter().flatten().collect();
        assert!(texts.len() > 2);
        for line in texts.iter().flat_map(|text| text.lines()) {
            // `man` indents these lines by seven columns.
            assert!(line.len() + 7 <= 80, "{line}");
        }
    }

    /// The short help has fewer than 50 lines. The help of a subcommand does not list the options of the connection,
    /// although they are accepted before and after the subcommand.
    #[test]
    fn the_short_help_is_short_and_a_subcommand_repeats_no_option_of_the_connection() {
        let help = |words: &[&str]| {
            let words: Vec<_> = words.iter().map(OsString::from).collect();
            Arguments::from_command_line(words).expect_err("help is asked for").to_string()
        };
        assert!(help(&["zklock", "-h"]).lines().count() < 50, "{}", help(&["zklock", "-h"]));
        for task in ["ls", "watch", "timeline", "ask", "forget", "permits", "break", "check"] {
            for flag in ["-h", "--help"] {
                let text = help(&["zklock", task, flag]);
                assert!(!text.contains("--session-timeout") && text.contains("zklock --help"), "{text}");
            }
        }
        let read = Arguments::from_command_line(["zklock", "ls", "--zk", "x:1", "/l"].map(OsString::from).to_vec())
            .expect("valid");
        assert_eq!(read.connection.zk.as_deref(), Some(OsStr::new("x:1")));
        let read = Arguments::from_command_line(["zklock", "--zk", "x:1", "ls", "/l"].map(OsString::from).to_vec())
            .expect("valid");
        assert_eq!(read.connection.zk.as_deref(), Some(OsStr::new("x:1")));
    }

    #[test]
    fn times_are_seconds_or_have_units() {
        for (text, milliseconds) in [("5", 5000), ("0.25", 250), ("0", 0), ("1m30s", 90_000), ("20ms", 20)] {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(milliseconds)), "{text}");
        }
        for text in ["", "-1", "soon", "inf", "NaN", "1e300"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }
}
