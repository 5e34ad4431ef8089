//! The arguments of zklock, and the help texts that explain them; does nothing.

use std::ffi::OsString;
use std::num::NonZeroU32;
use std::str::FromStr;
use std::time::Duration;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, Parser, Subcommand, ValueHint};
use clap_complete::Shell;
use zk_rwlock::Dialect;

use crate::exit;

const USAGE: &str = "zklock [OPTIONS] PATH [--] COMMAND [ARGUMENTS]...
       zklock [OPTIONS] PATH -c 'SHELL COMMAND'
       zklock [OPTIONS] ls|watch|ask|forget|permits|break|check ...";

/// What an option takes that is read from a file.
const FILE: ValueHint = ValueHint::FilePath;

/// The lines of the help texts fit into a manual page on a terminal of 80 columns.
const AFTER_HELP: &str = "\
Examples:
  run it alone, in the whole fleet
      zklock /locks/backup -- backup.sh
  ... or not at all, if it runs elsewhere
      zklock -n /locks/cron/report report --daily
  wait up to ten minutes, or exit with 9
      zklock -w 600 -E 9 /db/orders/migrate -- migrate
  together with other readers, while no writer is there
      zklock -s /db/orders/migrate -- app
  at most so many at once, in the whole fleet
      zklock -j /limits/geocoder -- import
  for cron on every host: once an hour, by whichever comes first
      zklock --once-in 50m /cron/report -- report
  a line for the shell
      zklock /locks/x -c 'make && make install'
  who holds it, who waits, behind whom, and when each queued up
      zklock ls /locks/backup
  the same for all locks below a path
      zklock ls --tree /locks
  have it given up where it is only kept, and in use by nobody
      zklock ask /locks/backup
  how many: five, from now on
      zklock permits /limits/geocoder 5
  have it run again at the next start, however long ago it was done
      zklock forget /cron/report
  remove the one with this token, and nobody else
      zklock break /locks/backup 4294967301

Exit codes:
  of the command; 128 + N if signal N ended it, or zklock while it
  waited. After a Ctrl-C zklock ends by that signal itself, so that a
  shell's loop around it ends: $? is 130
    0   with --once-in, also if the command was not run, because it was
        done already (--skipped-exit-code sets another)
    1   -n or -w did not get the lock (-E sets another);
        break: no holder or waiter has that token;
        forget: there is no record;
        check: something is odd
   64   wrong usage
   65   what is in ZooKeeper is in the way (contenders of another
        program, numbers that are used up), or the servers refuse, for a
        reason that they tell
   69   no server can be reached; the message says why
   71   this system gives no thread or no signals
   74   what was found could not be written to standard output
   75   the lock was lost while the command ran, whatever the command
        itself returned (--lost-exit-code sets another); with --once-in
        also if it was lost before the success was recorded
   76   the place in the queue, or the lock, was lost; nothing was run
   77   ZooKeeper denies the permission, or does not accept the
        credentials, also if it refuses them only later, while zklock
        waits or the command runs; with --once-in also if the command has
        succeeded, and that may not be recorded
  126   the command cannot be executed
  127   there is no such command

Environment:
  ZK_HOSTS      the servers, as for --zk
  ZK_AUTH       user:password, as for --auth, but seen by fewer people
  ZK_SASL       the same, as for --sasl
  ZK_AUTH_FILE, ZK_SASL_FILE
                a file with one line of it, as for --auth-file and
                --sasl-file
  ZK_TLS_CA, ZK_TLS_CERT, ZK_TLS_KEY
                files, as for --tls-ca, --tls-cert and --tls-key
  ZK_TICK_TIME  the servers' tickTime, as for --tick-time
                (an option counts before its variable, and what is empty
                counts as not given)
  NO_COLOR      no colours

  The command gets ZKLOCK_PATH, ZKLOCK_MODE (READ, WRITE or PERMIT) and
  ZKLOCK_TOKEN: a number that is higher than that of every earlier holder
  that excluded this one. Have the systems that the command writes to
  refuse lower numbers. With -j several hold at once, each with a number
  of its own. Of the variables above it does not get ZK_AUTH,
  ZK_SASL, their files, ZK_TLS_CERT and ZK_TLS_KEY, unless there is
  --keep-credentials: a zklock within the command needs it.

Signals:
  Each signal that ends a process, real-time ones too, ends zklock while
  it waits; after that, the command's process group gets it, as it gets
  CONT, TSTP, TTIN, TTOU, URG and WINCH. If that ends the command, the
  lock is given back when the whole group has ended: what does not heed
  the signal gets KILL after --grace, or at the next signal. Nobody can
  catch KILL and STOP. What was ignored when zklock started (by nohup;
  INT and QUIT by a script's &) stays ignored by zklock and by the
  command, as with flock(1) and env(1); PIPE does not.

Once in a while:
  With --once-in 50m the command is run only if it has not succeeded
  within the last 50 minutes, by ZooKeeper's clock; no host's clock
  counts. All hosts may start it at the same time: one runs it, the
  others wait, and exit with 0 when it was done. If it fails or dies, the
  next of them runs it. Its success (exit code 0) is recorded in a node
  beside the lock, PATH.done, which `zklock ls` shows.

At most so many:
  With -j the command is run under one of the permits of PATH, which all
  hosts share: GNU parallel's `sem`, for many machines. First come, first
  served. How many there are is said once: zklock permits PATH 3. It is
  kept in the data of PATH, and counts for all, also while they run.
  Nobody who holds is stopped. Leave the number out of -j: with -j 3,
  zklock says so itself where nobody has, and where there is another
  number it exits with 64 and says both.
  A path is either a lock or has permits: the second to come is refused
  with 65. ls, watch, break and check see which it is. The options and
  exit codes are the same for both.

When the lock is lost:
  The command's process group gets TERM. What is left of it gets KILL
  when the command itself has ended, or after --grace; zklock exits with
  75. The grace is cut short so that KILL comes before
  ZooKeeper lets anybody else in: TERM when a quarter of the session
  timeout is left until then. A network that is gone for 0.4 of the
  session timeout does not cost the lock, if --tick-time is given and is
  at most a fifth of it; -v says what a break may last otherwise.
  After `zklock break` the next contender may start at once, while the
  command still has its grace.
  With --max-hold 1h a command that hangs loses the lock: after an hour
  it gets TERM, and then KILL, as above, before the next one starts.

What zklock cannot do for you:
  - Killed with -9 it takes the process of the command along (Linux), and
    the lock is free one session timeout later. What that process has
    started itself runs on, and so does a command with rights of its own
    (sudo, setuid).
  - Stopped (SIGSTOP, Ctrl-Z) for longer than three quarters of the
    session timeout it loses the lock. By SIGSTOP it leaves the command
    running until it wakes, beside the next holder. Ctrl-Z stops the
    command too, and it is killed rather than continued if the lock is
    gone. While zklock waits, Ctrl-Z costs the place in the queue after
    the session timeout, and it ends with 76 when it goes on; it holds up
    nobody meanwhile. `bg` instead: it waits in the background.
  - What a command that ends by itself leaves in the background runs on
    without the lock.
  - Processes that leave the command's process group (setsid) get none of
    these signals.";

/// Run a command while holding a read/write lock in ZooKeeper: flock(1) for many machines.
///
/// The lock is a directory of ZooKeeper, PATH. Without -s the command runs alone under the lock. With -s it may run
/// together with other commands under -s. First come, first served. The lock is given back when the command ends, and
/// if this machine dies, one session timeout later.
#[derive(Debug, Parser)]
#[command(name = "zklock", version, override_usage = USAGE, after_long_help = AFTER_HELP, max_term_width = 110)]
#[command(after_help = "Examples, exit codes and environment: zklock --help", disable_help_subcommand = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) task: Option<Task>,

    #[command(flatten)]
    pub(crate) run: Run,

    #[command(flatten)]
    pub(crate) connection: Connection,
}

impl Arguments {
    /// Reads the words of the command line. The path may follow `-j`, and is no number then.
    pub(crate) fn read(mut words: Vec<OsString>) -> Result<Arguments, clap::Error> {
        let lacks_number = |pair: &[OsString]| {
            let is_j = || Arguments::try_parse_from([&words[0], &pair[0]]).is_ok_and(|it| it.run.takes_any_number());
            pair[1].as_encoded_bytes().starts_with(b"/") && is_j()
        };
        if let Some(at) = words.windows(2).position(lacks_number) {
            // Behind the lock's path the words are those of the command.
            let before = Arguments::try_parse_from(&words[..at]);
            if before.is_ok_and(|before| before.task.is_none() && before.run.words.is_empty()) {
                words.insert(at + 1, OsString::new());
            }
        }
        Arguments::try_parse_from(words).map_err(without_misleading_tip)
    }
}

/// Options of flock(1) that zklock cannot have.
const OF_FLOCK: [&str; 5] = ["-F", "--no-fork", "-u", "--unlock", "--fcntl"];

/// An unknown option is no value: behind `--` it would be taken for the lock.
fn without_misleading_tip(mut error: clap::Error) -> clap::Error {
    if error.kind() == ErrorKind::UnknownArgument {
        error.remove(ContextKind::Suggested);
        let argument = error.get(ContextKind::InvalidArg).map(ToString::to_string).unwrap_or_default();
        if OF_FLOCK.contains(&&*argument) {
            let tip = "flock(1) has it, and zklock has not: a session needs a process that stays beside the command";
            error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
        }
    }
    error
}

/// Running a command.
#[derive(Debug, Args)]
pub(crate) struct Run {
    /// Share the lock with other commands under -s (a read lock).
    #[arg(short = 's', long, overrides_with = "exclusive")]
    pub(crate) shared: bool,

    /// Hold it alone (a write lock): the default.
    #[arg(short = 'x', short_alias = 'e', long)]
    exclusive: bool,

    /// Run it together with others, at most so many at once in the whole fleet (a semaphore): as many as `zklock permits`
    /// has set. N says how many where nobody has; better leave it out.
    #[arg(short = 'j', long, value_name = "N", num_args = 0..=1, default_missing_value = "", value_parser = permits, conflicts_with_all = ["shared", "exclusive", "once_in"])]
    pub(crate) permits: Option<Permits>,

    /// Do not wait: exit with 1 (or -E) if the lock is taken.
    #[arg(short = 'n', long, visible_alias = "nb")]
    pub(crate) nonblock: bool,

    /// Wait at most so long from being connected on, in seconds (or like 1m30s); then exit with 1 (or -E). 0 is -n.
    #[arg(short = 'w', long, visible_alias = "timeout", value_name = "SECS", value_parser = duration, allow_negative_numbers = true)]
    pub(crate) wait: Option<Duration>,

    /// The exit code when -n or -w does not get the lock.
    #[arg(short = 'E', long, value_name = "CODE", value_parser = exit_code, default_value_t = exit::NEGATIVE, hide_default_value = true, allow_negative_numbers = true)]
    pub(crate) conflict_exit_code: u8,

    /// Run the command only if it has not succeeded within this time, in seconds (or like 50m), by ZooKeeper's clock.
    /// Otherwise exit with 0 (or --skipped-exit-code).
    #[arg(long, value_name = "TIME", value_parser = duration, conflicts_with = "shared")]
    pub(crate) once_in: Option<Duration>,

    /// The exit code when --once-in does not run the command, because it was done already.
    #[arg(long, value_name = "CODE", value_parser = exit_code, default_value_t = 0, hide_default_value = true, requires = "once_in")]
    pub(crate) skipped_exit_code: u8,

    /// Changes nothing; flock(1) has it. The command never inherits anything that could keep the lock.
    #[arg(short = 'o', long, hide = true)]
    close: bool,

    /// Run this line with $SHELL (or /bin/sh) instead of a command.
    #[arg(short = 'c', long = "command", value_name = "CMD")]
    pub(crate) shell: Option<OsString>,

    /// When the lock is lost: how long the command may take to end after TERM, before KILL. Cut short so that it ends
    /// before another contender can be let in.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = duration)]
    pub(crate) grace: Duration,

    /// Hold for so long at most, in seconds (or like 1h): then the lock is lost, the command is ended as after any loss,
    /// and the next contender is let in [default: for as long as the command runs].
    #[arg(long, value_name = "TIME", value_parser = positive)]
    pub(crate) max_hold: Option<Duration>,

    /// The exit code when the lock was lost.
    #[arg(long, value_name = "CODE", value_parser = exit_code, default_value_t = exit::LOST)]
    pub(crate) lost_exit_code: u8,

    /// Leave ZK_AUTH, ZK_SASL and the other variables with credentials in the environment of the command.
    #[arg(long)]
    pub(crate) keep_credentials: bool,

    /// The label that other users of the lock see [default: the beginning of the command line, so have no secrets
    /// there].
    #[arg(long, value_name = "TEXT")]
    pub(crate) label: Option<String>,

    /// The host that other users of the lock see [default: the machine's name].
    #[arg(long, value_name = "NAME")]
    pub(crate) host: Option<String>,

    /// Say nothing while waiting (off a terminal and in the background that begins after a second), nor when -n or -w does not get the lock, nor when --once-in does not run the command.
    #[arg(short = 'q', long, conflicts_with = "verbose")]
    pub(crate) quiet: bool,

    /// The lock's path in ZooKeeper, which starts with a slash, and the command to run, with its arguments.
    #[arg(value_name = "PATH [--] COMMAND", trailing_var_arg = true)]
    pub(crate) words: Vec<OsString>,
}

impl Run {
    /// Whether there is a `-j` without a number.
    fn takes_any_number(&self) -> bool {
        matches!(self.permits, Some(Permits(None)))
    }

    /// Whether a lock that is taken is not waited for.
    pub(crate) fn does_not_wait(&self) -> bool {
        self.nonblock || self.wait == Some(Duration::ZERO)
    }
}

/// Reaching ZooKeeper.
#[derive(Debug, Args)]
#[command(next_help_heading = "Connection")]
pub(crate) struct Connection {
    /// The servers: host:port,host:port, with a path at the end to keep everything below [env: ZK_HOSTS] [default:
    /// 127.0.0.1:2181].
    #[arg(long, global = true, value_name = "HOSTS")]
    pub(crate) zk: Option<OsString>,

    /// The naming scheme of the lock's nodes: native, or that of other programs that use the lock: curator
    /// (InterProcessReadWriteLock), curator-mutex (InterProcessMutex) or kazoo. ls --tree finds it by itself.
    #[arg(long, global = true, value_name = "NAME", default_value_t = Dialect::Native, hide_default_value = true)]
    pub(crate) dialect: Dialect,

    /// How long ZooKeeper keeps the lock of a zklock that it does not hear from. The servers bound it.
    #[arg(long, global = true, value_name = "TIME", default_value = "10s", value_parser = positive)]
    pub(crate) session_timeout: Duration,

    /// How long to try to reach a server [default: the session timeout; with -n 3s at most]. With -w no longer than that,
    /// but at least 1s. Then exit with 69, and say why each server gives no session.
    #[arg(long, global = true, value_name = "TIME", value_parser = positive)]
    pub(crate) connect_timeout: Option<Duration>,

    /// The tickTime of the servers' configuration [env: ZK_TICK_TIME] [default: the smaller of 3s and half the session
    /// timeout]. With a small one given, the lock survives a longer break of the network. It must not be less than the
    /// servers' own.
    #[arg(long, global = true, value_name = "TIME")]
    pub(crate) tick_time: Option<OsString>,

    /// Authenticate with ZooKeeper's digest scheme [env: ZK_AUTH]. Only the same user may then touch the nodes that are
    /// made. Other users of this machine see the option in the list of processes: better --auth-file or ZK_AUTH.
    #[arg(long, global = true, value_name = "USER:PASSWORD")]
    pub(crate) auth: Option<OsString>,

    /// The same, from a file of one line: a credential of systemd, a secret of Kubernetes [env: ZK_AUTH_FILE].
    #[arg(long, global = true, value_name = "FILE", value_hint = FILE)]
    pub(crate) auth_file: Option<OsString>,

    /// Authenticate with SASL's DIGEST-MD5, as a user of the servers' JAAS file; otherwise as --auth. Better
    /// --sasl-file or ZK_SASL [env: ZK_SASL].
    #[arg(long, global = true, value_name = "USER:PASSWORD")]
    pub(crate) sasl: Option<OsString>,

    /// The same, from a file of one line [env: ZK_SASL_FILE].
    #[arg(long, global = true, value_name = "FILE", value_hint = FILE)]
    pub(crate) sasl_file: Option<OsString>,

    /// Encrypt, and trust servers with a certificate by one of these authorities (PEM) [env: ZK_TLS_CA].
    #[arg(long, global = true, value_name = "FILE", value_hint = FILE)]
    pub(crate) tls_ca: Option<OsString>,

    /// Our certificate for servers that ask for one (PEM) [env: ZK_TLS_CERT].
    #[arg(long, global = true, value_name = "FILE", value_hint = FILE)]
    pub(crate) tls_cert: Option<OsString>,

    /// The key to --tls-cert (PEM) [env: ZK_TLS_KEY].
    #[arg(long, global = true, value_name = "FILE", value_hint = FILE)]
    pub(crate) tls_key: Option<OsString>,

    /// Report when the lock is granted, and its token; and show the log of the connection, on standard error.
    #[arg(short = 'v', long, global = true)]
    pub(crate) verbose: bool,
}

/// What else there is to do than to run a command.
#[derive(Debug, Subcommand)]
pub(crate) enum Task {
    /// Show who holds a lock and who waits for it, or who has the permits of a semaphore.
    ///
    /// A holder whose STATE is `keeps` uses the lock, or is idle and gives it up as soon as it is asked: by a contender that
    /// waits, or by `zklock ask`. From outside the two look the same.
    ///
    /// On a terminal the table has no more columns than that: SESSION goes first, then long hosts and labels are shortened,
    /// then PID goes. TOKEN is always there. With `| cat`, and in --json, nothing is left out.
    Ls(Ls),
    /// The same, live, until interrupted. `zklock ls --help` says what the states mean.
    ///
    /// In the background (`zklock watch PATH &`) nothing is drawn, and after `fg` again.
    Watch(WatchOrder),
    /// Ask the processes that only keep a lock to give it up.
    ///
    /// A process may keep a lock between uses. Each one that does gives it up: at once, or when the uses that run have
    /// ended. Nothing is taken away from a holder that uses the lock. A contender that waits asks by itself, and -n does
    /// not. Does not wait until the lock is free.
    Ask(Ask),
    /// Forget when a command was last done under --once-in, so that it is run at its next start.
    Forget(Forget),
    /// Set how many may run at once under `zklock -j`, for all who do.
    Permits(SetPermits),
    /// Remove one holder or waiter, by its token.
    Break(Break),
    /// Look for what is odd in a lock's directory, and for servers that show it otherwise; exit with 1 if there is
    /// something.
    Check(Check),
    /// What the completions ask: the words come by standard input.
    #[command(hide = true)]
    Complete {
        /// Which shell.
        shell: Shell,
    },
    /// Print completions for a shell: source <(zklock completions bash).
    ///
    /// In bash, zsh and fish they know the paths of the ensemble, and complete what follows the lock as a command.
    Completions {
        /// Which shell.
        shell: Shell,
    },
    /// Print the manual page (roff), of zklock or of one of its subcommands.
    Man {
        /// Which subcommand.
        task: Option<String>,
    },
}

const JSON_HELP: &str = "\
With --json, one object:
  path      the lock
  dialect   the naming scheme of its nodes, as for --dialect
  permits   {\"all\", \"free\"}, if it is a semaphore (zklock -j), or null;
            both are 0 if its number is no number
  done      when a command was last done under --once-in, or null:
    at        by ZooKeeper's clock, RFC 3339 in UTC
    host, pid, label, token
              of the zklock that recorded it; all but host may be null
  members   in the order of arrival, each:
    place     1, 2, 3...
    state     \"holds\", \"waits\", or \"stuck\" (will never hold: see
              `zklock check`)
    keeps     whether its process may keep the lock between uses. If it
              holds, it may be idle: see `zklock ask`
    mode      \"READ\" or \"WRITE\"; of a semaphore \"PERMIT\"
    permits   how many permits it holds or waits for, or null
    host, pid, label
              as it says itself; pid and label may be null, and host
              empty in another dialect than native
    since     when it queued up, or was granted permits, RFC 3339 in
              UTC. Since when a lock is held does not show
    session   the ensemble's number for its session, like \"0x100000a\"
    behind    the place of its predecessor, or null
    node      the name of its node
    token     for `zklock break`; the holder's fencing token
              since, session and token are null if its node could not be
              read: it has just left, or its ACL forbids it

With --json and --tree, one object:
  prefix      the path below which locks were looked for
  locks       objects as above; without members where a command was once
              done, and nobody holds or waits
  unreadable  paths that may not be listed
  cycles      of processes that wait for each other, each a list of
              {\"waits\": {\"host\", \"pid\"}, \"path\",
              \"holds\": {\"host\", \"pid\"}}

Fields may be added, and none will be changed.";

/// `zklock ls`
#[derive(Debug, Args)]
#[command(override_usage = "zklock ls [OPTIONS] PATH", after_long_help = JSON_HELP)]
pub(crate) struct Ls {
    /// The lock; with --tree, where to look for locks.
    #[arg(value_name = "PATH")]
    pub(crate) path: String,

    /// Show every lock at and below PATH that has a holder or a waiter, or under which a command was once done.
    #[arg(long)]
    pub(crate) tree: bool,

    /// Print JSON: `zklock ls --help` says which.
    #[arg(long)]
    pub(crate) json: bool,
}

/// `zklock watch`
#[derive(Debug, Args)]
#[command(override_usage = "zklock watch [OPTIONS] PATH")]
pub(crate) struct WatchOrder {
    /// The lock.
    #[arg(value_name = "PATH")]
    pub(crate) path: String,

    /// How often to look.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = positive)]
    pub(crate) interval: Duration,

    /// Print a line of JSON, as `zklock ls --json`, whenever the queue changes.
    #[arg(long)]
    pub(crate) json: bool,
}

/// `zklock ask`
#[derive(Debug, Args)]
#[command(override_usage = "zklock ask [OPTIONS] PATH")]
pub(crate) struct Ask {
    /// The lock. Its directory must be readable and writable to us.
    #[arg(value_name = "PATH")]
    pub(crate) path: String,
}

/// `zklock forget`
#[derive(Debug, Args)]
#[command(override_usage = "zklock forget [OPTIONS] PATH")]
pub(crate) struct Forget {
    /// The lock. The record is the node PATH.done beside it.
    #[arg(value_name = "PATH")]
    pub(crate) path: String,
}

/// `zklock permits`
#[derive(Debug, Args)]
#[command(override_usage = "zklock permits [OPTIONS] PATH N")]
pub(crate) struct SetPermits {
    /// What `zklock -j` uses. It is made if it is missing.
    #[arg(value_name = "PATH")]
    pub(crate) path: String,

    /// How many permits there are from now on. Nobody who holds one is stopped.
    #[arg(value_name = "N", value_parser = number)]
    pub(crate) number: NonZeroU32,
}

/// `zklock break`
#[derive(Debug, Args)]
#[command(override_usage = "zklock break [OPTIONS] PATH TOKEN")]
pub(crate) struct Break {
    /// The lock.
    #[arg(value_name = "PATH")]
    pub(crate) path: String,

    /// The token of the holder or waiter to remove: see `zklock ls`. No two ever have the same.
    #[arg(value_name = "TOKEN", value_parser = token)]
    pub(crate) token: i64,

    /// Do not ask.
    #[arg(short = 'y', long)]
    pub(crate) yes: bool,
}

/// `zklock check`
#[derive(Debug, Args)]
#[command(
    override_usage = "zklock check [OPTIONS] PATH",
    after_long_help = "\
With --json, one object:
  path      the lock
  odd       each: {\"kind\", \"node\", \"what\"}. The kind is one of foreign,
            unreadable, persistent, written, tie, negative, record, acl,
            diverged, ghost, beside, used-up, old, overdrawn, number,
            away. The last five have null as their node.
  servers   each server of --zk: {\"server\", \"version\", \"mode\",
            \"losses\", \"vulnerabilities\", \"problem\"}: the issues of
            ZooKeeper's by which its release can lose or keep nodes, its
            CVEs that concern a lock, and why it was not looked at
  looked_at, of  how many servers of the ensemble were looked at, and
            how many it has; null if the servers may not tell

Every server of --zk is asked: diverged are nodes that one shows and
another does not, also after it has caught up with the leader. To
delete data is advised only of fewer servers than a majority, which
the majority and the leader contradict, and only if all servers of
the ensemble were looked at. With
4lw.commands.whitelist=srvr,dump the servers also tell which sessions
live: a ghost is a node whose session is over. A server that was not
looked at within --connect-timeout (or 10 s) is odd, too: away, also
one that --zk does not name. Of a name with several addresses one is
asked.

The counter shows only in the nodes that are there. The counter of an
empty directory does not show."
)]
pub(crate) struct Check {
    /// The lock.
    #[arg(value_name = "PATH")]
    pub(crate) path: String,

    /// Print JSON: `zklock check --help` says which.
    #[arg(long)]
    pub(crate) json: bool,
}

/// A number of seconds, as in flock(1), or a time with units.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let numbers = || text.split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty());
    let time = match text.parse::<f64>() {
        Ok(seconds) => Duration::try_from_secs_f64(seconds).ok(),
        // humantime panics over some sums of more than 2^64 s.
        Err(_) if text.len() > 64 || (numbers().count() > 1 && numbers().any(|digits| digits.len() > 9)) => None,
        Err(_) => humantime::parse_duration(text).ok(),
    };
    time.ok_or_else(|| "expected a number of seconds, or a time like 1m30s".to_owned())
}

/// As [`duration`], but not zero.
fn positive(text: &str) -> Result<Duration, String> {
    duration(text).and_then(|time| if time.is_zero() { Err("it must be more than zero".to_owned()) } else { Ok(time) })
}

/// How many permits `-j` says that there are; `None` if as many as the ensemble has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Permits(pub(crate) Option<NonZeroU32>);

fn permits(text: &str) -> Result<Permits, String> {
    if text.is_empty() { Ok(Permits(None)) } else { number(text).map(|number| Permits(Some(number))) }
}

fn number(text: &str) -> Result<NonZeroU32, String> {
    whole(text, "a whole number from 1 on")
}

fn exit_code(text: &str) -> Result<u8, String> {
    whole(text, "an exit code from 0 to 255")
}

fn token(text: &str) -> Result<i64, String> {
    whole(text, "a token, a whole number that zklock ls shows")
}

fn whole<T: FromStr>(text: &str, expected: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("expected {expected}"))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_clap_definition_is_valid() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn a_path_after_j_is_not_read_as_a_number() {
        let read = |line: &str| {
            let words = line.split(' ').map(OsString::from).collect();
            let run = Arguments::read(words).expect(line).run;
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
        let run = Arguments::read(line.to_vec()).expect("valid").run;
        assert!(run.permits.is_none() && run.words == ["/l"], "{run:?}");
        let line = ["zklock", "/l", "make", "-j", "/x"].map(OsString::from);
        let run = Arguments::read(line.to_vec()).expect("valid").run;
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
            let error = Arguments::read(line.to_vec()).expect_err(expected).to_string();
            assert!(error.contains(&format!("'{}'", words[1])) && error.contains(expected), "{error}");
        }
        let line = ["zklock", "break", "/l", "it"].map(OsString::from);
        let error = Arguments::read(line.to_vec()).expect_err("no token").to_string();
        assert!(error.contains("expected a token, a whole number that zklock ls shows"), "{error}");
    }

    #[test]
    fn help_lines_fit_80_columns_in_a_manual_page() {
        let mut command = Arguments::command();
        let mut texts = vec![command.get_after_long_help().map(ToString::to_string)];
        texts.extend(command.get_subcommands_mut().map(|task| task.get_after_long_help().map(ToString::to_string)));
        let texts: Vec<String> = texts.into_iter().flatten().collect();
        assert!(texts.len() > 2);
        for line in texts.iter().flat_map(|text| text.lines()) {
            // `man` indents them by seven columns.
            assert!(line.len() + 7 <= 80, "{line}");
        }
    }

    #[test]
    fn times_are_seconds_or_have_units() {
        for (text, milliseconds) in [("5", 5000), ("0.25", 250), ("0", 0), ("1m30s", 90_000), ("20ms", 20)] {
            assert_eq!(duration(text), Ok(Duration::from_millis(milliseconds)), "{text}");
        }
        for text in ["", "-1", "soon", "inf", "NaN", "1e300"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}
