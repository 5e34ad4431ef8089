//! Tests of the command `zklock`: the binary itself, on a real server.
//!
//! The commands under the lock are scripts for `sh`. They print a line when they are ready, so no test sleeps for a
//! fixed time.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, LazyLock, Once};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::ioctl_fionread;
use rustix::pipe::fcntl_getpipe_size;
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use serde_json::Value;
use support::page;
use support::port::Port;
use support::program::program;
use support::scene::*;
use support::server::{Server, WITH_JAAS, WITHOUT_DIGESTS, shared_server};
use support::wire::Proxy;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStderr, ChildStdout, Command};
use zk_rwlock::coordinator::{Failure, Kind};
use zk_rwlock::security::{Acl, Permissions};
use zk_rwlock::{Dialect, Leadership, Loss, RwLock, ZooKeeper};

/// The session timeout of a zklock that a test disconnects.
const SHORT: Duration = Duration::from_secs(2);

/// The options for a session that a test ends. The session's time is also the limit of a connect, which a busy machine
/// would reach, so the limit is stated as well.
fn session_of(timeout: &str) -> [&str; 4] {
    ["--session-timeout", timeout, "--connect-timeout", "60s"]
}

/// Signals that end a waiting `zklock`. `zklock` passes them on to a running command.
const PASSED_ON: [Signal; 6] = [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM, Signal::USR1, Signal::USR2];

mod advice;
mod check;
mod completion;
mod container;
mod credentials;
mod edges;
mod keys;
mod limits;
mod once;
mod packages;
mod permits;
mod reasons;
mod screen;
mod settings;
mod signals;
mod systemd;
mod tie;
mod timeline;
mod trips;
mod waiting;
mod watch;
mod winding_down;

// ---------------------------------------------------------------------------------------- Starting and awaiting zklock

fn binary() -> &'static str {
    static PATH: LazyLock<String> = LazyLock::new(|| program("zklock").display().to_string());
    &PATH
}

/// Returns `zklock` with these arguments, on the server that all tests share.
fn zklock<S: AsRef<str>>(arguments: &[S]) -> Command {
    zklock_on(&shared_server().address(), arguments)
}

fn zklock_on<S: AsRef<str>>(server: &str, arguments: &[S]) -> Command {
    let mut command = Command::new(binary());
    prepare(&mut command, server);
    command.args(arguments.iter().map(AsRef::as_ref));
    command
}

fn prepare(command: &mut Command, server: &str) {
    unignore_signals();
    command.env("ZK_HOSTS", server).env("SHELL", "/bin/sh");
    for name in [
        "NO_COLOR",
        "ZK_TICK_TIME",
        "ZK_AUTH",
        "ZK_SASL",
        "ZK_AUTH_FILE",
        "ZK_SASL_FILE",
        "ZK_TLS_CA",
        "ZK_TLS_CERT",
        "ZK_TLS_KEY",
    ] {
        command.env_remove(name);
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
}

/// Registers a handler without effect for each signal that this process ignores, as under nohup(1) or behind a script's
/// `&`. A child inherits that a signal is ignored, but no handlers.
fn unignore_signals() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let status = fs::read_to_string("/proc/self/status").expect("/proc exists on Linux");
        let ignored =
            status.lines().find_map(|line| line.strip_prefix("SigIgn:")).expect("the status has a line SigIgn");
        let ignored = u64::from_str_radix(ignored.trim(), 16).expect("SigIgn is a hexadecimal number");
        for signal in PASSED_ON.iter().filter(|signal| ignored & (1 << (signal.as_raw() - 1)) != 0) {
            signal_hook::flag::register(signal.as_raw(), Arc::default()).expect("the signal can be handled");
        }
    });
}

/// The exit code and output of a run.
#[derive(Debug)]
struct Run {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

async fn run<S: AsRef<str>>(arguments: &[S]) -> Run {
    ended(zklock(arguments)).await
}

async fn ended(mut command: Command) -> Run {
    let child = command.spawn().expect("the program starts");
    let output = soon("the end of the program", child.wait_with_output()).await.expect("the program ends");
    let text = |bytes| String::from_utf8(bytes).expect("the output is UTF-8");
    Run { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

/// Awaits the end of a run as [`ended()`] does, but for a run that may take minutes.
async fn ended_within_minutes(command: Command) -> Run {
    Running::start(command).ends_within(Duration::from_secs(120)).await
}

/// A running `zklock`.
struct Running {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Running {
    fn start(mut command: Command) -> Running {
        let mut child = command.spawn().expect("the program starts");
        let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        Running { child, lines }
    }

    /// Returns the next line on standard output.
    async fn says(&mut self) -> String {
        soon("a line of output", self.lines.next_line()).await.expect("readable").expect("the command prints a line")
    }

    /// Waits until the command prints `ready`.
    async fn ready(mut self) -> Running {
        assert_eq!(self.says().await, "ready");
        self
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().expect("zklock runs") as i32).expect("a pid")
    }

    fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("zklock runs");
    }

    /// Waits for the end, and returns the exit code and the rest of the output.
    async fn ends(self) -> Run {
        self.ends_within(SOON).await
    }

    async fn ends_within(mut self, limit: Duration) -> Run {
        let status = within(limit, "the end of the program", self.child.wait()).await.expect("the program ends");
        let (mut stdout, mut stderr) = (String::new(), String::new());
        while let Ok(Some(line)) = soon("the end of standard output", self.lines.next_line()).await {
            stdout.push_str(&line);
            stdout.push('\n');
        }
        let told = self.child.stderr.take();
        if let Some(mut told) = told {
            soon("the end of standard error", told.read_to_string(&mut stderr)).await.expect("the output is UTF-8");
        }
        Run { code: status.code(), stdout, stderr }
    }
}

async fn server_lock(path: &str) -> (ZooKeeper, RwLock) {
    let zk = connect(&shared_server().address()).await;
    let lock = lock_at(&zk, path);
    (zk, lock)
}

/// Returns a directory for the files of the children. It is deleted when it is dropped.
fn scratch() -> tempfile::TempDir {
    tempfile::tempdir().expect("the directory for temporary files is writable")
}

// ---------------------------------------------------------------------------------------------------------- Exit codes

#[support::judged]
async fn each_way_to_end_has_its_exit_code() {
    let (_zk, taken) = server_lock("/zklock/codes/taken").await;
    let held = taken.write().label("in the way").await.unwrap();
    let (free, taken) = ("/zklock/codes/free", "/zklock/codes/taken");
    let trials: &[(&[&str], i32)] = &[
        // The exit code of the command is passed on.
        (&[free, "true"], 0),
        (&[free, "--", "true"], 0),
        (&[free, "sh", "-c", "exit 42"], 42),
        (&[free, "--", "sh", "-c", "exit 255"], 255),
        (&["--", free, "sh", "-c", "exit 5"], 5),
        (&["-c", "exit 3", free], 3),
        (&[free, "-c", "exit 4"], 4),
        (&["-x", free, "false"], 1),
        (&["-e", free, "true"], 0),
        (&["-s", free, "true"], 0),
        (&["-o", "-x", free, "true"], 0),
        (&["-n", "-w", "5", free, "true"], 0),
        (&[free, "ls", "/"], 0),
        // A command that a signal ended gives 128 plus the number of the signal.
        (&[free, "-c", "kill -HUP $$"], 129),
        (&[free, "-c", "kill -INT $$"], 130),
        (&[free, "-c", "kill -KILL $$"], 137),
        (&[free, "-c", "kill -TERM $$"], 143),
        // Another contender holds the lock.
        (&["-n", taken, "true"], 1),
        (&["--nonblock", "-s", taken, "true"], 1),
        (&["--nb", "-E", "75", taken, "true"], 75),
        (&["-w", "0.2", taken, "true"], 1),
        (&["-w", "0", taken, "true"], 1),
        (&["--timeout", "200ms", "--conflict-exit-code", "0", taken, "true"], 0),
        // The arguments are wrong.
        (&[], 64),
        (&[free], 64),
        (&[free, "--"], 64),
        (&["relative", "true"], 64),
        (&["/trailing/", "true"], 64),
        (&["/zookeeper", "true"], 64),
        (&["--bogus", free, "true"], 64),
        (&[free, "-s", "true"], 64),
        (&["-c", "true", free, "true"], 64),
        (&["-w", "soon", free, "true"], 64),
        (&["-w", "-1", free, "true"], 64),
        (&["-E", "256", free, "true"], 64),
        (&["-E", "-1", free, "true"], 64),
        (&["--host", "no/host", free, "true"], 64),
        (&["--label", "two\nlines", free, "true"], 64),
        (&["--auth", "nobody", free, "true"], 64),
        (&["--sasl", "nobody", free, "true"], 64),
        (&["--tls-cert", "/nowhere", free, "true"], 64),
        (&["--tls-ca", "/nowhere", free, "true"], 64),
        (&["--session-timeout", "0", free, "true"], 64),
        (&["--tick-time", "0", free, "true"], 64),
        (&["ls"], 64),
        (&["ask"], 64),
        (&["ask", "relative"], 64),
        (&["ask", "/"], 64),
        (&["ask", "--dialect", "kazoo", free], 64),
        (&["break", free], 64),
        (&["break", free, "token"], 64),
        (&["man", "nothing"], 64),
        // The command does not exist, or cannot be executed.
        (&[free, "/nowhere/at/all"], 127),
        (&[free, "/etc/passwd"], 126),
        (&[free, "/etc"], 126),
        // No server can be reached.
        (&["--zk", "127.0.0.1:1", "--session-timeout", "0.3", free, "true"], 69),
        (&["--zk", "127.0.0.1:1", "--session-timeout", "300ms", "ls", free], 69),
        (&["ls", free, "--zk", "127.0.0.1:1", "--session-timeout", "300ms"], 69),
        // The help or the version is printed.
        (&["--help"], 0),
        (&["-V"], 0),
        (&["ls", "--help"], 0),
    ];
    for (arguments, code) in trials {
        let run = run(arguments).await;
        assert_eq!(run.code, Some(*code), "{arguments:?}: {run:#?}");
        let in_vain = arguments.contains(&taken) && *code != 64;
        let told = run.stderr.contains("held by WRITE") && run.stderr.contains("in the way");
        // On a busy machine 200 ms may pass before zklock has learned who holds the lock.
        let is_hurried = arguments.contains(&"0.2") || arguments.contains(&"200ms");
        assert!(in_vain == told || is_hurried, "{run:#?}");
        assert_eq!([64, 69, 126, 127].contains(code) || in_vain, !run.stderr.is_empty(), "{arguments:?}: {run:#?}");
    }
    let quiet = run(&["-q", "-n", taken, "true"]).await;
    assert_eq!((quiet.code, &quiet.stderr[..]), (Some(1), ""));
    held.release().await.unwrap();
}

#[support::judged]
async fn a_result_that_cannot_be_written_exits_with_74() {
    let path = "/zklock/full";
    for arguments in [&["ls", path][..], &["check", path], &["watch", path], &["man"], &["--help"]] {
        let mut command = zklock(arguments);
        command.stdout(OpenOptions::new().write(true).open("/dev/full").unwrap());
        let run = ended(command).await;
        assert_eq!(run.code, Some(74), "{run:#?}");
        assert!(run.stderr.contains("cannot write to standard output"), "{run:#?}");
    }
    // zklock itself writes nothing to standard output while it runs a command.
    let mut command = zklock(&[path, "-c", "exit 3"]);
    command.stdout(OpenOptions::new().write(true).open("/dev/full").unwrap());
    assert_eq!(ended(command).await.code, Some(3));
}

/// The path at the end of `ZK_HOSTS` is made by the first lock below it.
#[support::judged]
async fn a_look_makes_no_path() {
    let operator = connect(&shared_server().address()).await;
    let below = format!("{}/never-looked-at/apps", shared_server().address());
    for arguments in [&["ls", "/lock"][..], &["ls", "--tree", "/"], &["check", "/lock"]] {
        let run = ended(zklock_on(&below, arguments)).await;
        assert_eq!(session(&operator).await.children("/never-looked-at").await, Err(Failure::NoNode), "{run:?}");
    }
    let run = ended(zklock_on(&below, &["/lock", "--", "true"])).await;
    assert_eq!(run.code, Some(0), "{run:?}");
    assert_eq!(children(&operator, "/never-looked-at/apps").await, ["lock"]);
}

#[support::judged]
async fn a_denied_client_exits_with_77() {
    let path = "/zklock-allowed/lock";
    let mut theirs = zklock(&[path, "true"]);
    theirs.env("ZK_AUTH", "owner:hunter2");
    assert_eq!(ended(theirs).await.code, Some(0));
    for arguments in
        [&[path, "true"][..], &["ls", path], &["check", path], &["ask", path], &["break", "--yes", path, "1"]]
    {
        let run = run(arguments).await;
        assert_eq!(run.code, Some(77), "{arguments:?}: {run:#?}");
        assert!(run.stderr.contains("permission denied"), "{run:#?}");
    }
    let run = run(&["--auth", "owner:hunter2", path, "true"]).await;
    assert_eq!(run.code, Some(0), "{run:#?}");
    let help = ended({
        let mut help = zklock(&["--help"]);
        help.env("ZK_AUTH", "owner:hunter2");
        help
    });
    assert!(!help.await.stdout.contains("hunter2"));
}

#[support::judged]
async fn a_sasl_user_is_authenticated() {
    let module = "org.apache.zookeeper.server.auth.DigestLoginModule";
    let users = format!("Server {{ {module} required user_alice=\"of: alice\"; }};\n");
    let server = Server::start_with_files(
        &[("jaas.conf", &users)],
        &["authProvider.1=org.apache.zookeeper.server.auth.SASLAuthenticationProvider"],
        &WITH_JAAS,
    );
    let path = "/zklock/sasl";
    let address = server.address();
    let on = |arguments: &[&str]| zklock_on(&address, arguments);
    assert_eq!(ended(on(&["--sasl", "alice:of: alice", path, "true"])).await.code, Some(0));
    assert_eq!(ended(on(&["ls", path])).await.code, Some(77), "only alice has rights on the lock");
    let mut alice = on(&["ls", path]);
    alice.env("ZK_SASL", "alice:of: alice");
    assert_eq!(ended(alice).await.code, Some(0));
    let wrong = ended(on(&["--sasl", "alice:guess", "ls", path])).await;
    assert_eq!(wrong.code, Some(77), "{wrong:#?}");
}

#[support::judged]
async fn tls_files_authenticate_server_and_client() {
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let (certificate, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    let port = Port::reserve();
    // Server and client use the same self-signed certificate, and trust it.
    let _server = Server::start_with_files(
        &[("both.pem", &format!("{key}{certificate}")), ("certificate.pem", &certificate)],
        &[
            "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory",
            &format!("secureClientPort={port}"),
            "secureClientPortAddress=127.0.0.1",
            "ssl.keyStore.location={home}/both.pem",
            "ssl.keyStore.type=PEM",
            "ssl.trustStore.location={home}/certificate.pem",
            "ssl.trustStore.type=PEM",
            "ssl.clientAuth=need",
        ],
        &[],
    );
    let files = scratch();
    for (name, text) in [("certificate.pem", &certificate), ("key.pem", &key)] {
        fs::write(files.path().join(name), text).unwrap();
    }
    let file = |name: &str| files.path().join(name).display().to_string();
    let (certificate, key) = (file("certificate.pem"), file("key.pem"));
    let trust = ["--tls-ca", &certificate];
    let identity = ["--tls-cert", &certificate, "--tls-key", &key];
    let address = port.address().to_string();
    let command = ["/zklock/tls", "--", "sh", "-c", "exit 6"];
    let known = ended(zklock_on(&address, &[&trust[..], &identity, &command].concat())).await;
    assert_eq!(known.code, Some(6), "{known:#?}");
    // The session timeout is short, because a refused client tries again until the session timeout is over.
    let short = ["--session-timeout", "1"];
    let stranger = ended(zklock_on(&address, &[&short[..], &trust, &command].concat())).await;
    let plain = ended(zklock_on(&address, &[&short[..], &command].concat())).await;
    assert_eq!((stranger.code, plain.code), (Some(69), Some(69)), "{stranger:#?} {plain:#?}");
}

// ------------------------------------------------------------------------------------------------- Running the command

#[support::judged]
async fn the_command_gets_lock_variables_and_standard_input() {
    let path = "/zklock/environment";
    let script = "echo $ZKLOCK_PATH $ZKLOCK_MODE $ZKLOCK_TOKEN; cat";
    let mut tokens = Vec::new();
    for (option, mode) in [("-s", "READ"), ("-x", "WRITE")] {
        let mut command = zklock(&["--verbose", option, path, "--", "sh", "-c", script]);
        let mut running = Running::start({
            command.stdin(Stdio::piped());
            command
        });
        let said = running.says().await;
        let (told, token) = said.rsplit_once(' ').unwrap();
        assert_eq!(told, format!("{path} {mode}"));
        tokens.push(token.parse::<i64>().unwrap());
        let mut input = running.child.stdin.take().unwrap();
        input.write_all(b"one line\n").await.unwrap();
        drop(input);
        let run = running.ends().await;
        assert_eq!((run.code, &run.stdout[..]), (Some(0), "one line\n"));
        assert!(run.stderr.contains(&format!("granted {path}")) && run.stderr.contains(token), "{run:#?}");
    }
    assert!(tokens[0] < tokens[1], "{tokens:?}");
}

/// Returns the exit code after a signal. After SIGINT there is none, because zklock ends by that signal; a shell
/// reports 130.
fn ended_by(signal: Signal) -> Option<i32> {
    (signal != Signal::INT).then_some(128 + signal.as_raw())
}

#[support::judged]
async fn signals_reach_the_whole_group_of_the_command() {
    let path = "/zklock/signals";
    for signal in PASSED_ON.into_iter().chain([Signal::WINCH, Signal::CONT]) {
        // The shell runs a trap only after its `sleep` has ended. The `sleep` gets the signal too, or ends by itself.
        let number = signal.as_raw();
        let script = format!("trap 'echo got {number}; exit 33' {number}; echo ready; while :; do sleep 0.05; done");
        let running = Running::start(zklock(&[path, "-c", &script])).ready().await;
        running.signal(signal);
        let run = running.ends().await;
        assert_eq!((run.code, run.stdout), (Some(33), format!("got {number}\n")), "{}", run.stderr);
    }
    for signal in PASSED_ON {
        // The inner shell prints `ready` and becomes `sleep` by exec. A child that dash has forked, and that has not
        // called exec yet, does not react to Ctrl-C.
        let script = "sh -c 'echo ready; exec sleep 100'; sleep 100";
        let running = Running::start(zklock(&[path, "-c", script])).ready().await;
        running.signal(signal);
        assert_eq!(running.ends().await.code, ended_by(signal));
    }
}

/// Returns `zklock` started with these signals ignored, as under nohup(1) or behind a script's `&`.
fn ignoring(arguments: &[&str]) -> Command {
    let mut command = Command::new("sh");
    prepare(&mut command, &shared_server().address());
    command.args(["-c", "trap '' HUP INT QUIT TERM USR1 USR2 PIPE; exec \"$0\" \"$@\"", binary()]);
    command.args(arguments);
    command
}

#[support::judged]
async fn an_ignored_signal_stays_ignored() {
    let path = "/zklock/nohup";
    let (_zk, lock) = server_lock(path).await;
    let held = lock.write().await.unwrap();
    let script = "for signal in HUP INT QUIT TERM USR1 USR2; do kill -$signal $$; done; echo ready; read line; exit 9";
    let mut command = ignoring(&[path, "-c", script]);
    command.stdin(Stdio::piped());
    let running = Running::start(command);
    line_becomes(&lock, "W+ W-").await;
    PASSED_ON.iter().for_each(|signal| running.signal(*signal));
    held.release().await.unwrap();
    let mut running = running.ready().await;
    PASSED_ON.iter().for_each(|signal| running.signal(*signal));
    running.child.stdin.take().unwrap().write_all(b"go on\n").await.unwrap();
    assert_eq!(running.ends().await.code, Some(9));

    let run = ended(ignoring(&[path, "-c", "kill -PIPE $$; exit 9"])).await;
    assert_eq!(run.code, Some(128 + Signal::PIPE.as_raw()), "PIPE is the exception that the help names");
}

#[support::judged]
async fn signal_tests_pass_where_signals_are_ignored() {
    let tests = ["each_way_to_end_has_its_exit_code", "a_signalled_waiter_leaves_the_queue_at_once"];
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' HUP INT QUIT TERM USR1 USR2; exec \"$0\" \"$@\" --exact"]);
    command.arg(std::env::current_exe().unwrap()).args(tests).stdout(Stdio::piped()).stderr(Stdio::piped());
    let run = ended(command).await;
    assert!(run.code == Some(0) && run.stdout.contains("2 passed"), "{run:#?}");
}

#[support::judged]
async fn the_exit_code_survives_an_ignored_sigchld() {
    let mut command = Command::new("bash");
    prepare(&mut command, &shared_server().address());
    let script = "trap '' CHLD; exec \"$0\" /zklock/sigchld -c 'exit 7'";
    command.args(["-c", script, binary()]);
    let run = ended(command).await;
    assert_eq!(run.code, Some(7), "{run:#?}");
}

// ------------------------------------------------------------------------------------------------ Waiting for the lock

#[support::judged]
async fn readers_run_together_and_a_writer_after_them() {
    let path = "/zklock/together";
    let (_zk, lock) = server_lock(path).await;
    let files = scratch();
    let end = files.path().join("end");
    let wait = format!("echo ready; until [ -e {} ]; do sleep 0.02; done", end.display());
    let one = Running::start(zklock(&["-s", path, "-c", &wait])).ready().await;
    let two = Running::start(zklock(&["--shared", path, "-c", &wait])).ready().await;
    let script = format!("test -e {} && echo after", end.display());
    let writer = Running::start(zklock(&["--label", "third", path, "-c", &script]));
    line_becomes(&lock, "R+ R+ W-").await;
    let queue = lock.queue().await.unwrap();
    assert_eq!(queue.members[2].label.as_deref(), Some("third"));
    assert!(queue.members[0].label.as_deref().unwrap().starts_with("echo ready; until"), "{queue}");
    fs::write(&end, "").unwrap();
    let run = writer.ends().await;
    assert_eq!((run.code, &run.stdout[..]), (Some(0), "after\n"));
    assert_eq!((one.ends().await.code, two.ends().await.code), (Some(0), Some(0)));
}

#[support::judged]
async fn a_signalled_waiter_leaves_the_queue_at_once() {
    let path = "/zklock/impatient";
    let (_zk, lock) = server_lock(path).await;
    let held = lock.write().await.unwrap();
    for signal in PASSED_ON {
        let waiting = Running::start(zklock(&["--session-timeout", "60", path, "echo", "ran"]));
        line_becomes(&lock, "W+ W-").await;
        waiting.signal(signal);
        let run = waiting.ends().await;
        assert_eq!((run.code, &run.stdout[..]), (ended_by(signal), ""));
        // The node is gone when zklock has ended, long before the session would expire.
        assert_eq!(line(&lock).await, "W+");
    }
    held.release().await.unwrap();
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn giving_up_does_not_wait_for_a_cut_network() {
    let path = "/zklock/unheard";
    let (_zk, lock) = server_lock(path).await;
    let held = lock.write().await.unwrap();
    let proxy = Proxy::start(shared_server().address());
    let options = ["--session-timeout", "60", path, "true"];
    let impatient = Running::start(zklock_on(&proxy.address(), &[&["-w", "3"], &options[..]].concat()));
    let interrupted = Running::start(zklock_on(&proxy.address(), &options));
    line_becomes(&lock, "W+ W- W-").await;
    proxy.black_hole();
    interrupted.signal(Signal::INT);
    // The session timeout is three times the longest wait of this test, so neither run has waited for the end of its
    // session.
    assert_eq!((interrupted.ends().await.code, impatient.ends().await.code), (ended_by(Signal::INT), Some(1)));
    held.release().await.unwrap();
}

#[support::judged]
async fn a_wait_off_a_terminal_prints_a_line_per_change() {
    let path = "/zklock/lines";
    let (_zk, lock) = server_lock(path).await;
    let first = lock.write().label("first").await.unwrap();
    let second = writer(&lock);
    line_becomes(&lock, "W+ W-").await;
    let mut waiting = Running::start(zklock(&[path, "echo", "ran"]));
    let mut told = BufReader::new(waiting.child.stderr.take().unwrap()).lines();
    let mut line = async || soon("a line of output", told.next_line()).await.unwrap().expect("zklock prints a message");
    let said = line().await;
    assert!(said.contains("waiting to write /zklock/lines: place 3, held by WRITE"), "{said}");
    assert!(said.contains(&format!("pid {} \"first\" queued ", std::process::id())), "{said}");
    first.release().await.unwrap();
    let said = line().await;
    assert!(said.contains("place 2, held by WRITE") && !said.contains("first"), "{said}");
    granted(second).await.release().await.unwrap();
    assert_eq!(waiting.says().await, "ran");
    assert_eq!(waiting.ends().await.code, Some(0));
}

// ----------------------------------------------------------------------------------------------------- Losing the lock

/// Returns a script that writes the time into a file again and again, and that leaves a process in the background that
/// does the same. Only KILL ends the two.
fn immortal(file: &Path) -> String {
    let stamp = format!("while :; do date +%s%N >> {}; done", file.display());
    format!("trap '' TERM HUP INT; ({stamp}) & echo ready; {stamp}")
}

/// Returns the last time in the file, without a time that is only half written.
fn last_stamp(file: &Path) -> u64 {
    let text = fs::read_to_string(file).unwrap();
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    whole.lines().map(|line| line.parse::<u64>().expect("a number of nanoseconds")).max().expect("the program ends")
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_off_command_is_dead_before_the_next_starts() {
    for (round, cut) in [Proxy::cut as fn(&Proxy), Proxy::black_hole].into_iter().enumerate() {
        let path = format!("/zklock/cut-{round}");
        let (_zk, lock) = server_lock(&path).await;
        let files = scratch();
        let (stamps, start) = (files.path().join("stamps"), files.path().join("start"));
        let proxy = Proxy::start(shared_server().address());
        let timeout = SHORT.as_millis().to_string() + "ms";
        let options = ["--grace", "1h", &path, "-c", &immortal(&stamps)];
        let holder = zklock_on(&proxy.address(), &[&session_of(&timeout)[..], &options].concat());
        let holder = Running::start(holder).ready().await;
        let next = Running::start(zklock(&[&path, "-c", &format!("date +%s%N > {}", start.display())]));
        line_becomes(&lock, "W+ W-").await;

        cut(&proxy);
        let (holder, next) = tokio::join!(holder.ends(), next.ends());
        assert_eq!((holder.code, next.code), (Some(75), Some(0)), "{holder:#?} {next:#?}");
        assert!(holder.stderr.contains("the lock was lost") && holder.stderr.contains("was killed"), "{holder:#?}");
        let (last, first) = (last_stamp(&stamps), last_stamp(&start));
        assert!(last < first, "the old command ran {} ns into the next one", last - first);
    }
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn unread_messages_do_not_delay_killing_the_command() {
    for (round, more) in [&[][..], &["-v"]].into_iter().enumerate() {
        let path = &format!("/zklock/unread-{round}")[..];
        let (_zk, lock) = server_lock(path).await;
        let files = scratch();
        let (stamps, start) = (files.path().join("stamps"), files.path().join("start"));
        let proxy = Proxy::start(shared_server().address());
        let (unread, mut full) = std::io::pipe().expect("a pipe");
        let timeout = SHORT.as_millis().to_string() + "ms";
        let options = ["--grace", "1h", path, "-c", &immortal(&stamps)];
        let mut holder = zklock_on(&proxy.address(), &[more, &session_of(&timeout), &options].concat());
        holder.stderr(full.try_clone().expect("a pipe"));
        let holder = Running::start(holder).ready().await;
        let next = Running::start(zklock(&[path, "-c", &format!("date +%s%N > {}", start.display())]));
        line_becomes(&lock, "W+ W-").await;
        let size = fcntl_getpipe_size(&full).expect("the system reports the size of a pipe");
        let filler = thread::spawn(move || full.write_all(&vec![b'.'; 2 * size]));
        eventually("the pipe is full", || async { ioctl_fionread(&unread).expect("a pipe") > size as u64 - 4096 })
            .await;

        proxy.cut();
        assert_eq!(next.ends().await.code, Some(0));
        let (last, first) = (last_stamp(&stamps), last_stamp(&start));
        assert!(last < first, "{more:?}: the old command ran {} ns into the next one", last - first);
        drop(unread);
        assert_eq!(holder.ends().await.code, Some(75));
        assert!(filler.join().expect("the thread does not panic").is_err(), "nobody may read the pipe");
    }
}

#[support::judged]
async fn zklock_exits_even_if_its_message_is_unread() {
    let (_zk, lock) = server_lock("/zklock/unread-end").await;
    let held = lock.write().await.expect("free");
    let (unread, mut full) = std::io::pipe().expect("a pipe");
    full.write_all(&vec![b'.'; fcntl_getpipe_size(&full).expect("the system reports the size of a pipe")])
        .expect("the empty pipe has room");
    let mut command = zklock(&["-n", lock.path(), "true"]);
    command.stderr(full);
    assert_eq!(Running::start(command).ends().await.code, Some(1));
    held.release().await.expect("held");
    drop(unread);
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_lock_sends_term_and_overrides_the_exit_code() {
    let path = "/zklock/heeds";
    for (options, code) in [(&[][..], 75), (&["--lost-exit-code", "99"], 99)] {
        let proxy = Proxy::start(shared_server().address());
        let script = "trap 'echo cleaned up; exit 0' TERM; echo ready; while :; do sleep 0.02; done";
        let arguments = [&session_of("8s"), options, &[path, "-c", script]].concat();
        let holder = Running::start(zklock_on(&proxy.address(), &arguments)).ready().await;
        proxy.cut();
        let run = holder.ends().await;
        assert_eq!((run.code, &run.stdout[..]), (Some(code), "cleaned up\n"), "{run:#?}");
        assert!(run.stderr.contains("the command has ended on TERM"), "{run:#?}");
    }
}

/// The session stays alive, so only `--grace` limits the time between TERM and KILL.
#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_that_ignores_term_is_killed_after_the_grace() {
    let path = "/zklock/deaf";
    let (zk, _lock) = server_lock(path).await;
    let script = "trap '' TERM; echo ready; while :; do sleep 0.02; done";
    let holder = Running::start(zklock(&["--grace", "0.2", path, "-c", script])).ready().await;
    let operator = session(&zk).await;
    let node = operator.children(path).await.unwrap().remove(0);
    let removed = Instant::now();
    operator.delete(&format!("{path}/{node}")).await.unwrap();
    let run = holder.ends().await;
    assert!(removed.elapsed() >= Duration::from_millis(200), "{:?}", removed.elapsed());
    assert_eq!(run.code, Some(75), "{run:#?}");
    assert!(run.stderr.contains("the command was killed"), "{run:#?}");
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_answers_only_pings_delays_no_command() {
    let proxy = Proxy::start(shared_server().address());
    proxy.answer_only_pings();
    let path = "/zklock/pings";
    let commands: &[&[&str]] = &[
        &["ls", path],
        &["ls", "--tree", path],
        &["check", path],
        &["break", "--yes", path, "1"],
        &["-n", path, "true"],
    ];
    let running: Vec<_> = commands
        .iter()
        .map(|command| {
            let command = if command[0] == "-n" {
                [&["--session-timeout", "2s"], *command].concat()
            } else {
                [&command[..1], &["--session-timeout", "2s"], &command[1..]].concat()
            };
            (command.join(" "), tokio::spawn(ended(zklock_on(&proxy.address(), &command))))
        })
        .collect();
    for (command, run) in running {
        let run = run.await.unwrap();
        assert_eq!(run.code, Some(69), "{command}: {run:#?}");
        assert!(run.stderr.contains("no answer within 2s"), "{command}: {run:#?}");
    }
}

/// Starts a holder behind a proxy, cuts the connection, and waits until the holder reports the disconnection. Returns
/// the proxy, the holder, and the holder's further messages. The command under the lock reads a line of input and ends
/// with 8.
async fn cut_off(path: &str) -> (Proxy, Running, Lines<BufReader<ChildStderr>>) {
    let proxy = Proxy::start(shared_server().address());
    let options = ["--session-timeout", "60s", path, "-c", "echo ready; read line; exit 8"];
    let mut command = zklock_on(&proxy.address(), &options);
    command.stdin(Stdio::piped());
    let mut holder = Running::start(command).ready().await;
    let mut told = BufReader::new(holder.child.stderr.take().unwrap()).lines();
    // zklock does not report a short disconnection, so the connection stays cut until the report.
    proxy.cut();
    let said = soon("the loss of the connection", told.next_line()).await.unwrap().unwrap();
    assert!(said.contains("the connection is lost"), "{said}");
    (proxy, holder, told)
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_short_disconnection_loses_nothing() {
    let (proxy, mut holder, mut told) = cut_off("/zklock/blip").await;
    proxy.heal();
    let said = soon("the message that the connection is back", told.next_line()).await.unwrap().unwrap();
    assert!(said.contains("the connection is back"), "{said}");
    holder.child.stdin.take().unwrap().write_all(b"end\n").await.unwrap();
    assert_eq!(holder.ends().await.code, Some(8));
}

/// The session timeout is three times the longest wait of this test, so zklock does not wait for the end of the
/// session.
#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn an_unreachable_release_says_when_the_lock_is_free() {
    let (_proxy, mut holder, mut told) = cut_off("/zklock/unreached").await;
    holder.child.stdin.take().unwrap().write_all(b"end\n").await.unwrap();
    let ended = Instant::now();
    let said = soon("the last message", told.next_line()).await.unwrap().unwrap();
    assert!(said.contains("the lock is free when the session ends, in "), "{said}");
    assert_eq!(holder.ends().await.code, Some(8));
    assert!(ended.elapsed() < Duration::from_secs(2), "{:?}", ended.elapsed());
}

/// The test stops only zklock (SIGSTOP). The servers keep running.
#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_waiter_reports_that_it_stood_still() {
    let path = "/zklock/stopped-waiter";
    let (_zk, lock) = server_lock(path).await;
    let guard = lock.write().await.unwrap();
    let waiter = Running::start(zklock(&[&session_of("2s")[..], &[path, "true"]].concat()));
    line_becomes(&lock, "W+ W-").await;
    waiter.signal(Signal::STOP);
    line_becomes(&lock, "W+").await;
    waiter.signal(Signal::CONT);
    let run = waiter.ends().await;
    assert_eq!(run.code, Some(76), "{run:#?}");
    assert!(run.stderr.contains("stood still") && !run.stderr.contains("cut off"), "{run:#?}");
    guard.release().await.unwrap();
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn zklock_stopped_past_its_lease_kills_its_command() {
    let path = "/zklock/stopped";
    let (_zk, lock) = server_lock(path).await;
    let files = scratch();
    let stamps = files.path().join("stamps");
    let script = immortal(&stamps);
    let holder = Running::start(zklock(&[&session_of("2s")[..], &[path, "-c", &script]].concat())).ready().await;
    let next = writer(&lock);
    line_becomes(&lock, "W+ W-").await;
    holder.signal(Signal::STOP);
    let next = granted(next).await;
    holder.signal(Signal::CONT);
    let run = holder.ends().await;
    assert_eq!(run.code, Some(75), "{run:#?}");
    assert!(run.stderr.contains("was killed") && run.stderr.contains("stood still"), "{run:#?}");
    assert!(!run.stderr.contains("cut off"), "the message must not blame the servers: {run:#?}");
    // No process of the command's group may write any more.
    let ended = last_stamp(&stamps);
    let length = fs::metadata(&stamps).unwrap().len();
    next.release().await.unwrap();
    assert_eq!((last_stamp(&stamps), fs::metadata(&stamps).unwrap().len()), (ended, length));
}

/// Lets a command end by itself while zklock is stopped, and then continues zklock.
async fn ends_while_zklock_is_stopped(path: &str) {
    let (_zk, lock) = server_lock(path).await;
    let home = tempfile::tempdir().unwrap();
    let pid = home.path().join("pid");
    let ends = format!("echo $$ > {}; echo ready; read end; exit 0", pid.display());
    let mut command = zklock(&[&session_of("2s")[..], &[path, "-c", &ends]].concat());
    command.stdin(Stdio::piped());
    let mut holder = Running::start(command).ready().await;
    let next = writer(&lock);
    line_becomes(&lock, "W+ W-").await;
    holder.signal(Signal::STOP);
    let next = granted(next).await;
    holder.child.stdin.take().unwrap().write_all(b"end\n").await.unwrap();
    let stat = format!("/proc/{}/stat", std::fs::read_to_string(pid).unwrap().trim());
    eventually("the command is a zombie", || async { std::fs::read_to_string(&stat).unwrap().contains(") Z ") }).await;
    holder.signal(Signal::CONT);
    let run = holder.ends().await;
    assert_eq!(run.code, Some(75), "{run:#?}");
    assert!(run.stderr.trim_end().ends_with("the command has ended"), "{run:#?}");
    next.release().await.unwrap();
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_that_ended_during_a_long_stop_counts_as_lost() {
    // Whether zklock first notices the loss or the end of the command is random, so there are four rounds.
    for round in 0..4 {
        let paths: [_; 3] = std::array::from_fn(|at| format!("/zklock/ended-meanwhile/{round}-{at}"));
        let [one, two, three] = paths.each_ref().map(|path| ends_while_zklock_is_stopped(path));
        tokio::join!(one, two, three);
    }
}

// --------------------------------------------------------------------------------- Looking at locks and repairing them

#[support::judged]
async fn ls_shows_the_queue_as_a_table_and_as_json() {
    let path = "/zklock/seen";
    let (_zk, lock) = server_lock(path).await;
    let empty = run(&["ls", path]).await;
    assert_eq!((empty.code, &empty.stdout[..]), (Some(0), "/zklock/seen: free\n"));
    let zk = connect(&shared_server().address()).await;
    let other = RwLock::builder(&zk, path).host("web-2").build().unwrap();
    let holder = lock.read().label("report\u{e9}").await.unwrap();
    let waits = writer(&other);
    line_becomes(&lock, "R+ W-").await;

    let table = run(&["ls", path]).await;
    let rows: Vec<Vec<&str>> = table.stdout.lines().map(|line| line.split_whitespace().collect()).collect();
    let headings = ["PLACE", "STATE", "MODE", "HOST", "PID", "LABEL", "QUEUED", "SESSION", "BEHIND", "TOKEN"];
    assert_eq!((table.code, rows.len(), &rows[0][..]), (Some(0), 3, &headings[..]), "{table:#?}");
    assert_eq!((&rows[1][..3], rows[1][5]), (&["1", "holds", "READ"][..], "report\u{e9}"));
    assert_eq!(rows[1].last(), Some(&&holder.fencing_token().to_string()[..]));
    assert_eq!(&rows[2][..4], &["2", "waits", "WRITE", "web-2"]);
    assert!(!table.stdout.contains('\x1b'), "colours must not appear off a terminal");

    let json = run(&["ls", "--json", path]).await;
    let json: Value = serde_json::from_str(&json.stdout).unwrap();
    let (first, second) = (&json["members"][0], &json["members"][1]);
    assert_eq!(json["path"], path);
    let keys: Vec<_> = first.as_object().unwrap().keys().map(String::as_str).collect();
    let documented = "place state keeps candidate mode permits host pid label since session behind node token";
    assert_eq!(keys.join(" "), documented);
    assert_eq!((&first["state"], &first["mode"], &first["behind"]), (&"holds".into(), &"READ".into(), &Value::Null));
    assert_eq!(first["token"], holder.fencing_token());
    assert_eq!(first["pid"], std::process::id());
    assert_eq!((&second["state"], &second["behind"], &second["label"]), (&"waits".into(), &1.into(), &Value::Null));
    assert!(holder.node_path().ends_with(first["node"].as_str().unwrap()));
    let session = format!("{:#x}", session(&zk).await.id());
    assert_eq!(second["session"], session);
    humantime::parse_rfc3339(first["since"].as_str().unwrap()).unwrap();
    holder.release().await.unwrap();
    granted(waits).await.release().await.unwrap();
}

#[support::judged]
async fn control_characters_are_escaped_in_all_output() {
    let path = "/zklock/obeyed";
    let (_zk, lock) = server_lock(path).await;
    let label = format!("turned\u{202e}{}", "\u{301}".repeat(115));
    let held = lock.write().label(&label).await.unwrap();
    for arguments in
        [&["ls", "--json", path][..], &["ls", "--json", "--tree", path], &["ls", path], &["-n", path, "true"]]
    {
        let run = run(arguments).await;
        let said = format!("{}{}", run.stdout, run.stderr);
        assert!(said.contains("turned\\u") && said.contains("202e") && !said.contains('\u{202e}'), "{run:#?}");
        if arguments.contains(&"--json") {
            let json: Value = serde_json::from_str(&run.stdout).unwrap();
            let queue = json["locks"].get(0).unwrap_or(&json);
            assert_eq!(queue["members"][0]["label"], label);
        }
    }
    held.release().await.unwrap();
}

#[support::judged]
async fn a_missing_path_is_reported_as_missing() {
    let path = "/zklock-nowhere/mistyped";
    for arguments in [
        &["ls", path][..],
        &["ls", "--json", path],
        &["ls", "--tree", path],
        &["check", path],
        &["check", "--json", path],
        &["ask", path],
    ] {
        let run = run(arguments).await;
        assert_eq!(run.code, Some(0), "{run:#?}");
        assert!(run.stderr.contains(&format!("{path}: there is no such path")), "{arguments:?}: {run:#?}");
    }
    for more in [&[][..], &["--json"]] {
        let mut watch = Running::start(zklock(&[&["watch", path], more].concat()));
        watch.says().await;
        watch.signal(Signal::INT);
        let watched = watch.ends().await;
        assert!(watched.stderr.contains(&format!("{path}: there is no such path")), "{more:?}: {watched:#?}");
    }
    for arguments in [&["break", "--yes", path, "7"][..], &["forget", path]] {
        let nobody = run(arguments).await;
        assert!(nobody.code == Some(1) && nobody.stderr.contains("there is no such path"), "{nobody:#?}");
    }
    let (_zk, lock) = server_lock("/zklock-somewhere").await;
    lock.write().await.unwrap().release().await.unwrap();
    for task in ["ls", "check", "ask"] {
        assert!(!run(&[task, lock.path()]).await.stderr.contains("no such path"));
    }
    let mut watch = Running::start(zklock(&["watch", lock.path()]));
    watch.says().await;
    watch.signal(Signal::INT);
    assert_eq!(watch.ends().await.stderr, "");
}

#[support::judged]
async fn ls_of_a_directory_of_locks_points_to_ls_tree() {
    let (_zk, lock) = server_lock("/zklock-above/one").await;
    let held = lock.write().await.unwrap();
    let mut watch = Running::start(zklock(&["watch", "/zklock-above"]));
    assert_eq!(watch.says().await, "/zklock-above: free");
    watch.signal(Signal::INT);
    assert!(watch.ends().await.stderr.contains("see zklock ls --tree /zklock-above"));
    let above = run(&["ls", "/zklock-above"]).await;
    assert_eq!((above.code, &above.stdout[..]), (Some(0), "/zklock-above: free\n"));
    assert!(above.stderr.contains("see zklock ls --tree /zklock-above"), "{above:#?}");
    held.release().await.unwrap();
    let free = run(&["ls", "/zklock-above/one"]).await;
    assert_eq!(free.stderr, "");
}

#[support::judged]
async fn a_table_aligns_wide_characters() {
    let path = "/zklock/wide";
    let (_zk, lock) = server_lock(path).await;
    let (_one, _two) = (lock.read().label("日本語").await.unwrap(), lock.read().label("plain").await.unwrap());
    let table = run(&["ls", path]).await;
    let after_label = |line: &str, label: &str| {
        let (before, after) = line.split_once(label).unwrap();
        (before.len(), after.chars().take_while(|c| *c == ' ').count())
    };
    let lines: Vec<&str> = table.stdout.lines().collect();
    // The first label takes six terminal columns, and the second label five. So two blanks follow the first label, and
    // three the second.
    assert_eq!(after_label(lines[1], "日本語").1, 2, "{}", table.stdout);
    assert_eq!(after_label(lines[2], "plain"), (after_label(lines[1], "日本語").0, 3), "{}", table.stdout);
}

#[support::judged]
async fn ls_tree_shows_all_locks_below_a_path() {
    let (zk, one) = server_lock("/zklock-tree/one").await;
    let two = lock_at(&zk, "/zklock-tree/deep/two");
    let (_one, _two) = (one.write().await.unwrap(), two.read().label("two").await.unwrap());
    let table = run(&["ls", "--tree", "/zklock-tree"]).await;
    assert_eq!(table.code, Some(0));
    assert!(table.stdout.starts_with("/zklock-tree/deep/two:\nPLACE"), "{table:#?}");
    assert!(table.stdout.contains("\n\n/zklock-tree/one:\nPLACE"), "{table:#?}");
    let json = run(&["ls", "--tree", "--json", "/zklock-tree"]).await;
    let json: Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!(json["prefix"], "/zklock-tree");
    assert_eq!(json["locks"][0]["members"][0]["label"], "two");
    assert_eq!(json["locks"].as_array().unwrap().len(), 2);
    let none = run(&["ls", "--tree", "/zklock-nowhere"]).await;
    assert_eq!((none.code, none.stdout.lines().count()), (Some(0), 1));
}

#[support::judged]
async fn ls_tree_names_what_it_may_not_list() {
    let (_zk, open) = server_lock("/zklock-hidden/open").await;
    open.write().await.unwrap().release().await.unwrap();
    let owner = ZooKeeper::builder().digest("owner", "hunter2").connect(&shared_server().address()).await.unwrap();
    let _held = lock_at(&owner, "/zklock-hidden/closed/lock").write().await.unwrap();
    let hidden = "/zklock-hidden/closed: may not be listed, so locks at or below this path are not shown\n";
    for prefix in ["/zklock-hidden", "/zklock-hidden/closed"] {
        let tree = run(&["ls", "--tree", prefix]).await;
        let none = format!("{prefix}: no lock that this client may look for has a holder or a waiter\n");
        assert_eq!((tree.code, tree.stdout), (Some(0), format!("{none}\n{hidden}")));
    }
}

#[support::judged]
async fn ls_tree_prints_a_path_that_only_has_a_record_once() {
    let path = "/zklock-tree-done/job";
    assert_eq!(run(&["--once-in", "1h", path, "true"]).await.code, Some(0));
    let tree = run(&["ls", "--tree", "/zklock-tree-done"]).await;
    assert_eq!(tree.stdout.matches(path).count(), 1, "{tree:#?}");
    assert!(tree.stdout.starts_with(&format!("{path}: free\nlast done ")), "{tree:#?}");
}

/// The errors come from the library, from zklock and from clap.
#[support::judged]
async fn error_messages_shorten_long_arguments() {
    for length in [1_000, 3_000, 100_000] {
        let long = "a".repeat(length);
        let (path, wrong) = (format!("/{long}/"), format!("/{long}//"));
        let option = format!("--{long}");
        for arguments in [
            &[&path[..], "true"][..],
            &["ls", &wrong],
            &["check", &path],
            &[&long, "true"],
            &["/l", &option],
            &[&option, "/l", "true"],
            &["ls", &option, "/l"],
            &["-j", &option, "/l", "true"],
            &["-w", &long, "/l", "true"],
            &["-E", &long, "/l", "true"],
            &["--host", &long, "/l", "true"],
            &["--label", &format!("{long}\n"), "/l", "true"],
            &["--dialect", &long, "/l", "true"],
            &["--zk", &format!("{long}:"), "/l", "true"],
            &["--sasl", &format!("{long}\":it"), "/l", "true"],
            &["--auth-file", &long, "/l", "true"],
            &["break", "/l", &long],
            &["man", &long],
        ] {
            let run = run(arguments).await;
            assert_eq!(run.code, Some(64), "{} {run:#?}", arguments[0]);
            assert!(run.stderr.len() < 1_000, "{} bytes: {:.60} {:.60}", run.stderr.len(), arguments[0], arguments[1]);
        }
    }
}

/// The system kills a program that computes for longer than its limit of one second.
#[support::judged]
async fn a_long_word_is_compared_with_no_option() {
    let long = format!("--{}", "a".repeat(100_000));
    let limited = |arguments: &[&str]| {
        let mut command = Command::new("/bin/sh");
        prepare(&mut command, &shared_server().address());
        command.args(["-c", "ulimit -t 1; exec \"$0\" \"$@\"", binary()]).args(arguments);
        ended(command)
    };
    for arguments in
        [&[&long[..], "/l", "true"][..], &["ls", &long, "/l"], &["-j", &long, "/l", "true"], &["/l", &long]]
    {
        let run = limited(arguments).await;
        assert_eq!(run.code, Some(64), "{:.9} {run:#?}", arguments[0]);
    }
    let run = limited(&["/zklock/long-word", "--", "sh", "-c", "echo ${#1}", "sh", &long, "/not/of/-j"]).await;
    assert_eq!((run.code, &run.stdout[..]), (Some(0), "100002\n"), "{run:#?}");
}

/// This library writes at most 256 bytes of a label. Another client may write more.
#[support::judged]
async fn a_long_label_of_a_holder_is_shortened_in_messages() {
    let path = "/zklock/long-label";
    let (zk, lock) = server_lock(path).await;
    drop(lock.write().await.unwrap());
    let node = format!("{path}/web-1~1-WRITE-0000000007");
    let data = format!("host=web-1\npid=7\nlabel={}", "a".repeat(3_000));
    session(&zk).await.create(&node, data.as_bytes(), Kind::Ephemeral).await.unwrap();
    let taken = run(&["-n", path, "true"]).await;
    assert_eq!(taken.code, Some(1), "{taken:#?}");
    assert!(taken.stderr.contains("WRITE web-1 pid 7 \"aaa") && taken.stderr.len() < 500, "{taken:#?}");
}

#[support::judged]
async fn ls_tree_reports_circles_of_waiting_processes() {
    let (zk, _lock) = server_lock("/zklock-circle/a").await;
    let of =
        |host: &str, name: &str| RwLock::builder(&zk, format!("/zklock-circle/{name}")).host(host).build().unwrap();
    let (ants, bees, crows) =
        (of("ants", "a").write().await, of("bees", "b").write().await, of("crows", "c").write().await);
    let behind = writer(&of("ants", "b"));
    line_becomes(&of("ants", "b"), "W+ W-").await;
    // A process that only waits is in no circle. Tasks of one process that wait for each other are no circle either.
    let (beside, own) = (writer(&of("crows", "b")), writer(&of("crows", "c")));
    line_becomes(&of("ants", "b"), "W+ W- W-").await;
    line_becomes(&of("ants", "c"), "W+ W-").await;
    let none = run(&["ls", "--tree", "--json", "/zklock-circle"]).await;
    assert_eq!(serde_json::from_str::<Value>(&none.stdout).unwrap()["cycles"], serde_json::json!([]));

    let closes = writer(&of("bees", "a"));
    line_becomes(&of("ants", "a"), "W+ W-").await;
    let table = run(&["ls", "--tree", "/zklock-circle"]).await;
    let pid = std::process::id();
    let told = format!(
        "waiting for each other in a circle, and stuck if each keeps what it holds:\n  \
         ants pid {pid} waits for /zklock-circle/b, which bees pid {pid} holds\n  \
         bees pid {pid} waits for /zklock-circle/a, which ants pid {pid} holds\n"
    );
    assert!(table.stdout.ends_with(&told), "{table:#?}");
    let json = run(&["ls", "--tree", "--json", "/zklock-circle"]).await;
    let json: Value = serde_json::from_str(&json.stdout).unwrap();
    let circle = json["cycles"].as_array().unwrap();
    assert_eq!((circle.len(), &circle[0][1]["waits"]["host"]), (1, &Value::from("bees")));
    for task in [behind, beside, own, closes] {
        task.abort();
    }
    drop((ants, bees, crows));
}

#[support::judged]
async fn watch_prints_each_change_of_the_queue() {
    let path = "/zklock/watched";
    let (_zk, lock) = server_lock(path).await;
    let mut watch = Running::start(zklock(&["watch", "--json", "--interval", "10ms", path]));
    let members = |line: String| serde_json::from_str::<Value>(&line).unwrap()["members"].as_array().unwrap().len();
    assert_eq!(members(watch.says().await), 0);
    let held = lock.write().await.unwrap();
    assert_eq!(members(watch.says().await), 1);
    held.release().await.unwrap();
    assert_eq!(members(watch.says().await), 0);
    watch.signal(Signal::INT);
    assert_eq!(watch.ends().await.code, None, "watch ends by the signal itself");
}

#[support::judged]
async fn watch_ends_when_its_reader_has_ended() {
    let mut command = Command::new("bash");
    prepare(&mut command, &shared_server().address());
    let script = "\"$0\" watch --interval 0.01 /zklock/unread | head -n 1; echo ${PIPESTATUS[0]}";
    command.args(["-c", script, binary()]);
    let run = ended(command).await;
    assert_eq!(run.stdout, "/zklock/unread: free\n0\n", "{run:#?}");
}

#[support::judged]
async fn break_removes_by_token_and_refuses_a_stale_token() {
    let path = "/zklock/broken";
    let (_zk, lock) = server_lock(path).await;
    let script = "trap 'echo told; exit 0' TERM; echo ready; while :; do sleep 0.02; done";
    let holder = Running::start(zklock(&["--label", "hangs", path, "-c", script])).ready().await;
    let next = writer(&lock);
    line_becomes(&lock, "W+ W-").await;
    let token = lock.queue().await.unwrap().members[0].token.unwrap().to_string();

    // `break` asks for confirmation, but standard input is no terminal.
    let unasked = run(&["break", path, &token]).await;
    assert_eq!((unasked.code, line(&lock).await), (Some(64), "W+ W-".to_owned()), "{unasked:#?}");
    let broken = run(&["break", "--yes", path, &token]).await;
    assert_eq!(broken.code, Some(0), "{broken:#?}");
    assert!(broken.stdout.contains("removed WRITE") && broken.stdout.contains("hangs"), "{broken:#?}");
    let next = granted(next).await;
    let run_of_holder = holder.ends().await;
    assert_eq!((run_of_holder.code, &run_of_holder.stdout[..]), (Some(75), "told\n"), "{run_of_holder:#?}");

    // The token of a former holder removes no contender, and the message lists the present contenders.
    for arguments in [&["break", "--yes", path, &token][..], &["break", path, &token]] {
        let stale = run(arguments).await;
        assert_eq!(stale.code, Some(1), "{stale:#?}");
        assert!(stale.stderr.contains("nothing was removed"), "{stale:#?}");
        assert!(stale.stderr.contains(&next.fencing_token().to_string()), "{stale:#?}");
    }
    // The token of another lock's holder removes no contender either.
    let (_zk, other) = server_lock("/zklock/unbroken").await;
    let other = other.write().await.unwrap();
    let elsewhere = run(&["break", "--yes", path, &other.fencing_token().to_string()]).await;
    assert_eq!(elsewhere.code, Some(1), "{elsewhere:#?}");
    assert!(next.is_held() && other.is_held());
    next.release().await.unwrap();
}

/// Returns a lock of another client that keeps its node between uses.
async fn keeping(path: &str) -> (ZooKeeper, RwLock) {
    let zk = connect(&shared_server().address()).await;
    let lock = RwLock::builder(&zk, path).host("keeper").keep(10 * SOON).build().unwrap();
    (zk, lock)
}

#[support::judged]
async fn ask_frees_an_idle_kept_lock() {
    let path = "/zklock/asked/idle";
    let (_zk, lock) = keeping(path).await;
    lock.read().await.unwrap().release().await.unwrap();
    let taken = run(&["-n", path, "true"]).await;
    assert_eq!(taken.code, Some(1), "{taken:#?}");
    assert!(taken.stderr.contains("would block: kept by READ keeper pid "), "{taken:#?}");
    let asked = run(&["ask", path]).await;
    assert_eq!((asked.code, &asked.stdout[..], &asked.stderr[..]), (Some(0), "", ""));
    eventually("the lock is free", || async { run(&["-n", path, "true"]).await.code == Some(0) }).await;
}

#[support::judged]
async fn ask_frees_a_used_kept_lock_after_the_use() {
    let path = "/zklock/asked/used";
    let (_zk, lock) = keeping(path).await;
    let guard = lock.write().await.unwrap();
    assert_eq!(run(&["ask", path]).await.code, Some(0));
    assert_eq!((guard.is_held(), run(&["-n", path, "true"]).await.code), (true, Some(1)));
    guard.release().await.unwrap();
    assert_eq!(run(&["-n", path, "true"]).await.code, Some(0));
}

#[support::judged]
async fn ls_and_a_waiter_distinguish_kept_from_held() {
    let path = "/zklock/asked/seen";
    let (_zk, kept) = keeping(path).await;
    let (_other, plain) = server_lock(path).await;
    let (kept, held) = (kept.read().await.unwrap(), plain.read().label("here").await.unwrap());
    let mut waiting = Running::start(zklock(&[path, "echo", "ran"]));
    let mut told = BufReader::new(waiting.child.stderr.take().unwrap()).lines();
    let said = soon("a line of output", told.next_line()).await.unwrap().unwrap();
    assert!(said.contains("place 3, held by READ ") && said.contains(" \"here\" queued "), "{said}");
    assert!(said.contains(", kept by READ keeper pid "), "{said}");

    let table = run(&["ls", path]).await;
    let states: Vec<_> = table.stdout.lines().map(|line| line.split_whitespace().nth(1).unwrap()).collect();
    assert_eq!(states, ["STATE", "keeps", "holds", "waits"], "{table:#?}");
    let json: Value = serde_json::from_str(&run(&["ls", "--json", path]).await.stdout).unwrap();
    let states: Vec<_> = (0..3).map(|i| (&json["members"][i]["state"], &json["members"][i]["keeps"])).collect();
    let (holds, waits) = (Value::from("holds"), Value::from("waits"));
    let (yes, no) = (Value::from(true), Value::from(false));
    assert_eq!(states, [(&holds, &yes), (&holds, &no), (&waits, &no)]);
    let mut watch = Running::start(zklock(&["watch", path]));
    assert!(watch.says().await.starts_with("PLACE") && watch.says().await.contains("  keeps  READ "));
    watch.signal(Signal::INT);

    kept.release().await.unwrap();
    held.release().await.unwrap();
    assert_eq!(waiting.says().await, "ran");
}

#[support::judged]
async fn ls_tells_a_leader_from_a_holder() {
    let path = "/zklock/asked/led";
    let (zk, _lock) = server_lock(path).await;
    let candidate = Leadership::builder(&zk, path).build().unwrap();
    let leading = tokio::spawn(async move { candidate.lead(|_| std::future::pending::<()>()).await });
    eventually("a leader", || async { run(&["ls", path]).await.stdout.contains("  leads  WRITE ") }).await;
    let json: Value = serde_json::from_str(&run(&["ls", "--json", path]).await.stdout).unwrap();
    let member = &json["members"][0];
    assert_eq!((&member["state"], &member["candidate"]), (&Value::from("holds"), &Value::from(true)));
    leading.abort();
}

#[support::judged]
async fn ask_changes_no_plain_holder_and_no_missing_path() {
    let path = "/zklock/asked/held";
    let (zk, lock) = server_lock(path).await;
    let held = lock.write().await.unwrap();
    assert_eq!(run(&["ask", path]).await.code, Some(0));
    assert_eq!((held.is_held(), line(&lock).await), (true, "W+".to_owned()));
    let asked = run(&["ask", "/zklock/asked/nothing"]).await;
    assert_eq!((asked.code, &asked.stdout[..]), (Some(0), ""), "{asked:#?}");
    assert!(asked.stderr.contains("/zklock/asked/nothing: there is no such path"), "{asked:#?}");
    assert_eq!(session(&zk).await.data("/zklock/asked/nothing").await.unwrap_err(), Failure::NoNode);
}

#[support::judged]
async fn ask_reports_denied_rights_and_foreign_dialects() {
    let path = "/zklock-refused/lock";
    let acl = Acl::creator().allow("world", "anyone", Permissions::READ);
    let builder = ZooKeeper::builder().digest("owner", "hunter2").acl(acl);
    let owner = builder.connect(&shared_server().address()).await.unwrap();
    lock_at(&owner, path).read().await.unwrap().release().await.unwrap();
    let denied = run(&["ask", path]).await;
    let lacks = format!("no WRITE on {path} for a client without credentials: set ZK_AUTH or ZK_SASL");
    assert_eq!(
        (denied.code, &denied.stderr[..]),
        (Some(77), &*format!("zklock: permission denied: ask {path}: {lacks}\n"))
    );
    let elsewhere = run(&["--dialect", "curator", "ask", path]).await;
    assert_eq!(elsewhere.code, Some(64));
    assert!(elsewhere.stderr.contains("to ask in the dialect curator, in which no node is kept"), "{elsewhere:#?}");
}

#[support::judged]
async fn check_reports_each_oddity_of_a_lock() {
    let path = "/zklock/checked";
    let (zk, lock) = server_lock(path).await;
    let held = lock.write().await.unwrap();
    let clean = run(&["check", path]).await;
    check::assert_clean(&clean, path, "on 1 of 1 servers");
    let operator = session(&zk).await;
    for (name, kind) in [
        ("notes.txt", Kind::Persistent),
        ("stale~1-WRITE-0000000007", Kind::Persistent),
        ("a~1-READ-0000000008", Kind::Ephemeral),
        ("b~2-READ-0000000008", Kind::Ephemeral),
        ("c~3-READ--000000005", Kind::Ephemeral),
        ("d~4-READ-1073741824", Kind::Ephemeral),
    ] {
        operator.create(&format!("{path}/{name}"), &[], kind).await.unwrap();
    }
    let odd = run(&["check", path]).await;
    assert_eq!(odd.code, Some(1), "{odd:#?}");
    let json = run(&["check", "--json", path]).await;
    assert_eq!(json.code, Some(1));
    let json: Value = serde_json::from_str(&json.stdout).unwrap();
    let found: Vec<_> = json["odd"]
        .as_array()
        .unwrap()
        .iter()
        .map(|odd| format!("{} {}", odd["kind"].as_str().unwrap(), odd["node"].as_str().unwrap_or("-")))
        .collect();
    let expected = [
        "tie a~1-READ-0000000008",
        "tie b~2-READ-0000000008",
        "negative c~3-READ--000000005",
        "foreign notes.txt",
        "persistent stale~1-WRITE-0000000007",
        "old -",
    ];
    assert_eq!(found, expected);
    assert_eq!(odd.stdout.lines().count(), expected.len());
    assert!(held.is_held());
}

/// A directory is a semaphore only if it has both a queue and permits.
#[support::judged]
async fn half_a_semaphore_is_checked_as_a_lock() {
    let (zk, lock) = server_lock("/zklock/half").await;
    drop(lock.write().await.unwrap());
    let operator = session(&zk).await;
    for part in ["queue", "permits"] {
        let path = format!("/zklock/half-{part}");
        for node in [&path, &format!("{path}/{part}")] {
            operator.create(node, &[], Kind::Persistent).await.unwrap();
        }
        let odd = run(&["check", &path]).await;
        assert!(odd.code == Some(1) && odd.stdout.starts_with(&format!("{path}: {part}: ")), "{odd:#?}");
    }
}

#[support::judged]
async fn ls_hints_at_other_nodes_only_for_a_free_lock() {
    let (zk, lock) = server_lock("/zklock/directory").await;
    let _held = lock.write().await.unwrap();
    session(&zk).await.create("/zklock/directory/notes", &[], Kind::Persistent).await.unwrap();
    let taken = run(&["ls", lock.path()]).await;
    assert!(taken.stdout.contains("WRITE") && taken.stderr.is_empty(), "{taken:#?}");
    assert_eq!(run(&["-j", "2", "/zklock/free-permits", "true"]).await.code, Some(0));
    let free = run(&["ls", "/zklock/free-permits"]).await;
    assert!(free.stdout.contains("2 of 2 permits free") && free.stderr.is_empty(), "{free:#?}");
}

#[support::judged]
async fn each_dialect_works_by_option_and_is_suggested() {
    let path = "/zklock/spoken";
    let (zk, _lock) = server_lock(path).await;
    for dialect in [Dialect::Curator, Dialect::CuratorMutex, Dialect::Kazoo] {
        let name = dialect.to_string();
        let lock = RwLock::builder(&zk, path).dialect(dialect).build().unwrap();
        let held = lock.write().label("spoken").await.unwrap();

        for unaware in [&["-n", path, "true"][..], &["ls", path], &["break", "-y", path, "1"]] {
            let run = run(unaware).await;
            assert_eq!(run.code, Some(65), "{run:#?}");
            assert!(run.stderr.contains(&format!("--dialect {name}")), "{run:#?}");
        }
        let odd = run(&["check", path]).await;
        assert!(odd.code == Some(1) && odd.stdout.contains(&format!("--dialect {name}")), "{odd:#?}");

        let taken = run(&["--dialect", &name, "-n", path, "true"]).await;
        assert!(taken.code == Some(1) && taken.stderr.contains("spoken"), "{taken:#?}");
        let seen = run(&["--dialect", &name, "ls", "--json", path]).await;
        let json: Value = serde_json::from_str(&seen.stdout).unwrap();
        assert_eq!((&json["dialect"], &json["members"][0]["label"]), (&name.as_str().into(), &"spoken".into()));
        let tree = run(&["ls", "--tree", path]).await;
        assert!(tree.stdout.starts_with(&format!("{path} ({name}):\nPLACE")), "{tree:#?}");
        assert_eq!(run(&["check", path, "--dialect", &name]).await.code, Some(0));
        let token = held.fencing_token().to_string();
        assert_eq!(run(&["break", "-y", "--dialect", &name, path, &token]).await.code, Some(0));
        assert_eq!(soon("the loss", held.lost()).await, Loss::Removed);
        drop(held);
        assert_eq!(run(&["--dialect", &name, path, "true"]).await.code, Some(0));
    }
    let unknown = run(&["--dialect", "latin", path, "true"]).await;
    assert!(unknown.code == Some(64) && unknown.stderr.contains("curator-mutex"), "{unknown:#?}");
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_nearly_used_up_sequence_is_odd() {
    let path = "/zklock/old";
    let server = Server::start_with(&[], &WITHOUT_DIGESTS);
    assert_eq!(ended(zklock_on(&server.address(), &[path, "true"])).await.code, Some(0));
    server.set_next_sequence(path, (1 << 30) + 7);
    let holder = Running::start(zklock_on(&server.address(), &[path, "-c", "echo ready; sleep 100"])).ready().await;
    let odd = ended(zklock_on(&server.address(), &["check", path])).await;
    assert_eq!(odd.code, Some(1));
    assert!(odd.stdout.contains("at 1073741831 of 2147483647"), "{odd:#?}");
    holder.signal(Signal::TERM);
    assert_eq!(holder.ends().await.code, Some(143));
}

#[support::judged]
async fn completions_and_manual_pages_know_the_subcommands() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let run = run(&["completions", shell]).await;
        // The scripts for bash, zsh and fish call `zklock complete` when they need candidates.
        let asks = run.stdout.contains(&format!("zklock complete {shell}"));
        assert!(run.code == Some(0) && (asks || run.stdout.contains("watch")), "{shell}");
    }
    let page = run(&["man"]).await;
    assert!(page.stdout.contains(".TH zklock") && page.stdout.contains("ZKLOCK_TOKEN"), "{page:#?}");
    // roff leaves the lines of this section as they are, because they have columns.
    assert!(page.stdout.contains(".SH \"EXIT CODES\"\n.nf\n"), "{page:#?}");
    let page = run(&["man", "ls"]).await;
    assert!(page.stdout.contains("\\-\\-tree") && page.stdout.contains(".nf\n  path "), "{page:#?}");
}

// ------------------------------------------------------------------------------------------------------- On a terminal

/// A program on a pseudo-terminal. The test presses its keys and reads its screen.
struct OnTerminal {
    keys: File,
    screen: Receiver<String>,
    seen: String,
    child: Child,
    /// Ends the processes that are left on the terminal.
    _session: Session,
}

/// A Unix session. Its processes are killed when the test ends, also those that are stopped.
struct Session(u32);

impl Session {
    /// Returns the processes that have not ended.
    fn processes(&self) -> Vec<Pid> {
        let lives_here = |stat: &str| {
            let fields: Vec<_> = stat.rsplit_once(") ")?.1.split(' ').collect();
            (fields[0] != "Z" && fields[3] == self.0.to_string()).then_some(())
        };
        let of_session = |process: std::io::Result<fs::DirEntry>| {
            let process = process.ok()?;
            lives_here(&fs::read_to_string(process.path().join("stat")).ok()?)?;
            Pid::from_raw(process.file_name().to_str()?.parse().ok()?)
        };
        fs::read_dir("/proc").unwrap().filter_map(of_session).collect()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // A process may have started another one meanwhile, so this looks again until nothing can be killed.
        while self.processes().into_iter().filter(|process| kill_process(*process, Signal::KILL).is_ok()).count() > 0 {
            thread::yield_now();
        }
    }
}

impl OnTerminal {
    fn start(arguments: &[&str]) -> OnTerminal {
        OnTerminal::start_program(binary(), arguments)
    }

    fn start_program(program: &str, arguments: &[&str]) -> OnTerminal {
        OnTerminal::start_with(&shared_server().address(), &[], program, arguments)
    }

    fn start_sized((columns, rows): (u16, u16), program: &str, arguments: &[&str]) -> OnTerminal {
        let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        tcsetwinsize(&terminal, Winsize { ws_col: columns, ws_row: rows, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
        OnTerminal::start_on(terminal, &shared_server().address(), &[], program, arguments)
    }

    fn start_with(server: &str, environment: &[(&str, &str)], program: &str, arguments: &[&str]) -> OnTerminal {
        let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        OnTerminal::start_on(terminal, server, environment, program, arguments)
    }

    /// Starts a program in a new Unix session whose controlling terminal is `terminal`, as a login does.
    fn start_on(
        terminal: OwnedFd,
        server: &str,
        environment: &[(&str, &str)],
        program: &str,
        arguments: &[&str],
    ) -> OnTerminal {
        let mut command = Command::new("setsid");
        prepare(&mut command, server);
        command.args(["-c", program]).args(arguments).env("TERM", "xterm").envs(environment.iter().copied());
        OnTerminal::start_command(terminal, command)
    }

    /// Starts a command with the terminal as its standard streams.
    fn start_command(terminal: OwnedFd, mut command: Command) -> OnTerminal {
        grantpt(&terminal).unwrap();
        unlockpt(&terminal).unwrap();
        let name = PathBuf::from(ptsname(&terminal, Vec::new()).unwrap().into_string().unwrap());
        let end = || Stdio::from(OpenOptions::new().read(true).write(true).open(&name).unwrap());
        command.stdin(end()).stdout(end()).stderr(end());
        let child = command.spawn().expect("setsid can be run");
        let keys = File::from(terminal);
        let mut output = keys.try_clone().unwrap();
        let (sender, screen) = mpsc::channel();
        thread::spawn(move || {
            let mut piece = [0; 4096];
            // An error ends the loop, too: it means that no process has the terminal open any more.
            while let Ok(length @ 1..) = output.read(&mut piece) {
                if sender.send(String::from_utf8_lossy(&piece[..length]).into_owned()).is_err() {
                    return;
                }
            }
        });
        let session = Session(child.id().expect("setsid runs"));
        OnTerminal { keys, screen, seen: String::new(), child, _session: session }
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until this text has appeared on the screen, and drops the screen's text up to the end of it.
    #[track_caller]
    fn shows(&mut self, text: &str) {
        self.before(text);
    }

    /// Waits for this text as [`OnTerminal::shows`] does, and returns the text before it.
    #[track_caller]
    fn before(&mut self, text: &str) -> String {
        let deadline = Instant::now() + SOON;
        loop {
            if let Some(at) = self.seen.find(text) {
                let before = self.seen[..at].to_owned();
                self.seen.drain(..at + text.len());
                return before;
            }
            match self.screen.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(piece) => self.seen.push_str(&piece),
                Err(error) => panic!("{text:?} is not on the screen ({error}): {:?}", self.seen),
            }
        }
    }

    /// Adds the output that has appeared by now to `seen`.
    fn take(&mut self) {
        self.seen.extend(self.screen.try_iter());
    }

    fn resize(&self, columns: u16, rows: u16) {
        tcsetwinsize(&self.keys, Winsize { ws_col: columns, ws_row: rows, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
    }

    /// Returns all output until the end of the program, and its exit code.
    async fn rest(&mut self) -> (String, Option<i32>) {
        let code = self.ends().await;
        let mut rest = std::mem::take(&mut self.seen);
        rest.extend(self.screen.iter());
        (rest, code)
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().expect("zklock runs") as i32).expect("a pid")
    }

    async fn ends(&mut self) -> Option<i32> {
        soon("the end of the program", self.child.wait()).await.unwrap().code()
    }
}

/// Returns the state of a process from `/proc`: `T` if it is stopped.
fn state(pid: Pid) -> char {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap();
    stat.rsplit_once(") ").unwrap().1.chars().next().unwrap()
}

#[support::judged]
async fn a_command_on_a_terminal_reads_what_is_typed() {
    let mut terminal = OnTerminal::start(&["/zklock/tty/read", "--", "sh", "-c", "echo ready; cat; exit 6"]);
    terminal.shows("ready");
    terminal.press("typed\n");
    terminal.shows("typed");
    terminal.shows("typed");
    terminal.press("\x04");
    assert_eq!(terminal.ends().await, Some(6));
}

#[support::judged]
async fn ctrl_c_reaches_a_command_on_a_terminal_once() {
    // The command has the terminal once it has read a line. The script waits by `sleep`, because `read` could miss a
    // signal that comes shortly before it.
    let script = "read line; told=; trap 'told=1; echo caught' INT; echo ready; until [ $told ]; do sleep 0.05; done
        while ! read line; do :; done; echo got $line; exit 5";
    let mut terminal = OnTerminal::start(&["/zklock/tty/int", "--", "bash", "-c", script]);
    terminal.press("go\n");
    terminal.shows("ready");
    terminal.press("\x03");
    terminal.shows("caught");
    terminal.press("x\n");
    terminal.shows("got x");
    assert_eq!(terminal.ends().await, Some(5));
    assert!(!terminal.seen.contains("caught"), "{:?}", terminal.seen);

    let mut terminal = OnTerminal::start(&["/zklock/tty/int", "--", "sh", "-c", "echo ready; exec sleep 100"]);
    terminal.shows("ready");
    terminal.press("\x03");
    // zklock ends by the signal itself, so that a shell reports 130 and ends its loop.
    assert_eq!(terminal.ends().await, None);
}

#[support::judged]
async fn ctrl_c_also_ends_the_script_that_runs_zklock() {
    let script =
        "trap 'echo script too; exit 9' INT; \"$0\" /zklock/tty/script -c 'echo ready; exec sleep 100'; echo on";
    let mut terminal = OnTerminal::start_program("sh", &["-c", script, binary()]);
    terminal.shows("ready");
    terminal.press("\x03");
    terminal.shows("script too");
    assert_eq!(terminal.ends().await, Some(9));

    let script = "for i in 1 2; do \"$0\" /zklock/tty/script -c 'echo ready; exec sleep 100'; echo code $?; done";
    let mut terminal = OnTerminal::start_program("bash", &["-c", script, binary()]);
    terminal.shows("ready");
    terminal.press("\x03");
    assert_eq!(terminal.ends().await, None);
    assert!(!terminal.seen.contains("code"), "{:?}", terminal.seen);

    // zklock also ends by the signal while it waits, and while the command does not have the terminal.
    let (_zk, lock) = server_lock("/zklock/tty/taken").await;
    let held = lock.write().await.unwrap();
    let script = "for i in 1 2; do \"$0\" /zklock/tty/taken true; echo code $?; done";
    let mut terminal = OnTerminal::start_program("bash", &["-c", script, binary()]);
    line_becomes(&lock, "W+ W-").await;
    terminal.press("\x03");
    assert_eq!(terminal.ends().await, None);
    assert!(!terminal.seen.contains("code"), "{:?}", terminal.seen);
    held.release().await.unwrap();
    let script = "for i in 1 2; do \"$0\" /zklock/tty/script -c 'echo ready >/dev/tty; exec sleep 100' >/dev/null
        echo code $?; done";
    let mut terminal = OnTerminal::start_program("bash", &["-c", script, binary()]);
    terminal.shows("ready");
    terminal.press("\x03");
    assert_eq!(terminal.ends().await, None);
    assert!(!terminal.seen.contains("code"), "{:?}", terminal.seen);

    // If the parent handles the signal, zklock's end is reported as an exit code.
    let script = "trap : INT; \"$0\" /zklock/tty/script -c 'echo ready; exec sleep 100'; echo code $?";
    let mut terminal = OnTerminal::start_program("bash", &["-c", script, binary()]);
    terminal.shows("ready");
    terminal.press("\x03");
    terminal.shows("code 130");
    assert_eq!(terminal.ends().await, Some(0));
}

/// Continues a stopped zklock. The typed text is echoed and read by the command, which ends at the end of its input.
async fn goes_on(mut terminal: OnTerminal) {
    kill_process(terminal.pid(), Signal::CONT).unwrap();
    terminal.press("typed after\n");
    terminal.shows("typed after");
    terminal.shows("typed after");
    terminal.press("\x04");
    assert_eq!(terminal.ends().await, Some(0));
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn nested_zklocks_stop_and_continue_together() {
    let zklock = binary();
    let mut terminal =
        OnTerminal::start(&["/zklock/tty/outer", "--", zklock, "/zklock/tty/inner", "-c", "echo ready; exec cat"]);
    terminal.shows("ready");
    terminal.press("\x1a");
    eventually("the outer zklock is stopped", || async { state(terminal.pid()) == 'T' }).await;
    goes_on(terminal).await;
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn ctrl_z_stops_command_and_zklock_until_continued() {
    let mut terminal = OnTerminal::start(&["/zklock/tty/stop", "--", "sh", "-c", "echo pid $$; exec cat"]);
    terminal.shows("pid ");
    terminal.shows("\n");
    let command = {
        let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", terminal.pid().as_raw_nonzero()));
        Pid::from_raw(children.unwrap().trim().parse().unwrap()).unwrap()
    };
    terminal.press("\x1a");
    eventually("zklock and its command are stopped", || async {
        state(command) == 'T' && state(terminal.pid()) == 'T'
    })
    .await;
    goes_on(terminal).await;
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_command_does_not_go_on_without_the_lock() {
    let path = "/zklock/tty/asleep";
    let (_zk, lock) = server_lock(path).await;
    let files = scratch();
    let stamps = files.path().join("stamps");
    // The script uses only built-ins: a shell does not stop while a child of it is stopped between vfork and exec.
    let script = format!("echo ready; while :; do echo >> {}; done", stamps.display());
    let mut terminal = OnTerminal::start(&[&session_of("1s")[..], &[path, "-c", &script]].concat());
    terminal.shows("ready");
    terminal.press("\x1a");
    // The next contender is granted only because the session has expired.
    let next = soon("the grant", lock.write()).await.unwrap();
    let written = fs::metadata(&stamps).map_or(0, |file| file.len());
    kill_process(terminal.pid(), Signal::CONT).unwrap();
    assert_eq!(terminal.ends().await, Some(75));
    assert_eq!(fs::metadata(&stamps).map_or(0, |file| file.len()), written);
    next.release().await.unwrap();
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_live_line_names_the_holder_on_a_terminal() {
    let path = "/zklock/tty/live";
    let (_zk, lock) = server_lock(path).await;
    let held = lock.write().label("slow").await.unwrap();
    let mut terminal = OnTerminal::start(&[path, "echo", "granted"]);
    for _ in 0..2 {
        terminal.shows("\r\x1b[Kzklock: waiting ");
        terminal.shows("place 2, held by WRITE ");
    }
    held.release().await.unwrap();
    // These escape sequences remove the live line.
    terminal.shows("\r\x1b[Kgranted\r\n");
    assert_eq!(terminal.ends().await, Some(0));
    assert!(!terminal.seen.contains('\n'));
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn break_asks_for_confirmation_on_a_terminal() {
    let path = "/zklock/tty/break";
    let (_zk, lock) = server_lock(path).await;
    let held = lock.write().label("hangs").await.unwrap();
    let token = held.fencing_token().to_string();
    for (answer, code) in [("\n", 1), ("no\n", 1), ("y\n", 0)] {
        assert!(held.is_held());
        let mut terminal = OnTerminal::start(&["break", path, &token]);
        terminal.shows("remove WRITE");
        terminal.shows("[y/N] ");
        terminal.press(answer);
        assert_eq!(terminal.ends().await, Some(code), "{answer:?}");
    }
    soon("the loss", held.lost()).await;
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn colours_need_a_terminal_without_no_color() {
    let path = "/zklock/tty/colour";
    let (_zk, lock) = server_lock(path).await;
    let _held = lock.write().await.unwrap();
    let mut terminal = OnTerminal::start(&["ls", path]);
    terminal.shows("\x1b[32m1      holds");
    assert_eq!(terminal.ends().await, Some(0));
    for environment in [&[("NO_COLOR", "1")], &[("TERM", "dumb")]] {
        let zklock = binary();
        for task in ["ls", "watch"] {
            let mut terminal = OnTerminal::start_with(&shared_server().address(), environment, zklock, &[task, path]);
            let before = terminal.before("1      holds");
            terminal.shows("\n");
            terminal.press("\x03");
            let rest = before + &terminal.rest().await.0;
            assert!(!rest.contains("\x1b[3") && !rest.contains("\x1b[1m"), "{task} {environment:?}: {rest:?}");
        }
    }
    // An empty NO_COLOR does not switch the colours off (<https://no-color.org>).
    let mut terminal = OnTerminal::start_with(&shared_server().address(), &[("NO_COLOR", "")], binary(), &["ls", path]);
    terminal.shows("\x1b[32m1      holds");
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn watch_fits_its_screen() {
    let path = "/zklock/tty/watched";
    let (_zk, lock) = server_lock(path).await;
    let mut held = Vec::new();
    for _ in 0..9 {
        held.push(lock.read().label("a label that is so long that not much of it is shown").await.unwrap());
    }
    let mut terminal = OnTerminal::start(&["watch", "--interval", "1h", path]);
    // This terminal has no size, so zklock assumes 80 columns and 24 rows, and all nine rows fit.
    terminal.shows("\x1b[H/zklock/tty/watched ");
    terminal.shows("9      holds");
    terminal.shows("\x1b[J");
    for (columns, rows) in [(60, 8), (40, 6), (20, 12)] {
        terminal.seen.clear();
        terminal.resize(columns, rows);
        // zklock redraws the screen immediately, although the next request is due in an hour. Five rows show no member:
        // the path, an empty row, the headings, the number of members that are left out, and the last row, which stays
        // free.
        let shown = rows - 3 - 1 - 1;
        if u32::from(shown) < 9 {
            terminal.shows(&format!("{shown}      holds"));
            terminal.shows(&format!("\n... and {} more\x1b[K\r\n\x1b[J", 9 - shown));
        } else {
            terminal.shows(&format!("9      {}\x1b", held[8].fencing_token()));
        }
    }
    terminal.press("\x03");
    assert_eq!(terminal.ends().await, None, "watch ends by the signal itself");
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn watch_reports_an_outage_and_recovers() {
    let path = "/zklock/tty/silent";
    let (_zk, lock) = server_lock(path).await;
    lock.write().await.unwrap().release().await.unwrap();
    let proxy = Proxy::start(shared_server().address());
    let arguments = ["watch", "--interval", "20ms", "--session-timeout", "60", path];
    let mut terminal = OnTerminal::start_with(&proxy.address(), &[], binary(), &arguments);
    let mut lines = Running::start(zklock_on(&proxy.address(), &arguments));
    let mut told = BufReader::new(lines.child.stderr.take().unwrap()).lines();
    for _ in 0..2 {
        terminal.shows("free");
    }
    assert_eq!(lines.says().await, "/zklock/tty/silent: free");
    proxy.cut();
    terminal.shows("no answer for ");
    let said = soon("a message", told.next_line()).await.unwrap().unwrap();
    assert!(said.contains("no answer for 3s"), "{said}");
    let _held = lock.write().await.unwrap();
    proxy.heal();
    terminal.shows("1      holds");
    assert_eq!(lines.says().await, "");
    assert!(lines.says().await.starts_with("PLACE"));
    lines.signal(Signal::INT);
}

#[support::judged]
async fn terminal_settings_are_restored_after_a_kill() {
    let script = "\"$0\" /zklock/tty/killed -c 'stty -echo; echo ready; kill -9 $$'
        echo end: $(stty -a | tr ' ;' '\\n\\n' | grep -x -e echo -e -echo)";
    let mut terminal = OnTerminal::start_program("bash", &["-c", script, binary()]);
    terminal.shows("ready");
    terminal.shows("end: echo");
    assert_eq!(terminal.ends().await, Some(0));
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn terminal_settings_of_other_programs_are_kept() {
    let files = scratch();
    let script = "cd \"$1\"; mkfifo up go; stty -echo
        \"$0\" /zklock/tty/pipe -c 'echo up >up; read line <go; kill -9 $$' | cat & read line <up
        stty echo; echo >go; wait; echo end: $(stty -a | tr ' ;' '\\n\\n' | grep -x -e echo -e -echo)";
    let directory = files.path().display().to_string();
    let mut terminal = OnTerminal::start_program("bash", &["-c", script, binary(), &directory]);
    terminal.shows("end: echo");
    assert_eq!(terminal.ends().await, Some(0));
}

// ----------------------------------------------------------------------------------- The commands in the documentation

/// Returns a directory with `zklock`, and with a script for each of these names, which prints its arguments.
fn commands(stand_ins: &[&str]) -> tempfile::TempDir {
    let directory = scratch();
    std::os::unix::fs::symlink(binary(), directory.path().join("zklock")).unwrap();
    for name in stand_ins {
        let file = directory.path().join(name);
        fs::write(&file, "#!/bin/sh\nprintf '%s' \"${0##*/}\"; printf ' [%s]' \"$@\"; echo\n").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    }
    directory
}

/// Returns a `sh` that runs this line and finds `zklock` in the directory `commands`.
fn typed(line: &str, commands: &tempfile::TempDir) -> Command {
    let mut command = Command::new("sh");
    prepare(&mut command, &shared_server().address());
    let path = format!("{}:{}", commands.path().display(), std::env::var("PATH").unwrap_or_default());
    command.env("PATH", path).args(["-c", line]);
    command
}

#[support::judged]
async fn the_commands_in_the_docs_work_as_printed() {
    let commands = commands(&["sqlx", "psql", "import"]);
    let pages = [
        include_str!("../../../docs/guide.md"),
        include_str!("../../../docs/fencing.md"),
        include_str!("../../../docs/operating.md"),
    ];
    let mut lines = pages.into_iter().flat_map(|page| page::blocks(page, "sh")).flat_map(str::lines);
    let mut line = move || lines.next();
    let mut next = |begins: &str| {
        let line = line();
        if !begins.is_empty() {
            assert!(line.is_some_and(|line| line.starts_with(begins)), "{line:?}");
        }
        line.unwrap_or_default()
    };
    let (_zk, lock) = server_lock("/locks/orders/migrate").await;
    let held = lock.write().label("migrate v42").await.unwrap();

    // The second job waits and names the holder.
    let mut job = Running::start(typed(next("zklock -w 600 "), &commands));
    let mut told = BufReader::new(job.child.stderr.take().unwrap()).lines();
    let said = soon("a message", told.next_line()).await.unwrap().unwrap();
    assert!(said.contains("held by WRITE") && said.contains("\"migrate v42\""), "{said}");
    let token = held.fencing_token();
    held.release().await.unwrap();
    assert_eq!(job.says().await, "sqlx [migrate] [run]");
    assert_eq!(job.ends().await.code, Some(0));

    assert_eq!(ended(typed(next("zklock permits "), &commands)).await.code, Some(0));
    let limited = ended(typed(next("zklock -j /limits/geocoder "), &commands)).await;
    assert_eq!((limited.code, limited.stdout.trim()), (Some(0), "import [addresses.csv]"), "{limited:#?}");
    let ls = ended(typed(next("zklock ls "), &commands)).await;
    assert_eq!(ls.stdout, "/limits/geocoder: 10 of 10 permits free\n");

    let in_shell = ended(typed(next("zklock /locks/orders/migrate -- sh -c 'psql "), &commands)).await;
    let given = in_shell.stdout.strip_prefix("psql [-1] [-v] [ON_ERROR_STOP=1] [-v] [token=").unwrap();
    let (given, file) = given.split_once("] ").unwrap();
    assert!(given.parse::<i64>().unwrap() > token, "{in_shell:#?}");
    assert_eq!((in_shell.code, file), (Some(0), "[-f] [migrate.sql]\n"));

    let held = lock.write().label("hangs").await.unwrap();
    let ls = ended(typed(next("zklock ls "), &commands)).await;
    assert!(ls.code == Some(0) && ls.stdout.contains("hangs"), "{ls:#?}");
    let mut watch = Running::start(typed(&format!("exec {}", next("zklock watch ")), &commands));
    assert!(watch.says().await.starts_with("PLACE") && watch.says().await.contains("hangs"));
    watch.signal(Signal::INT);
    let checked = ended(typed(next("zklock check "), &commands)).await;
    check::assert_clean(&checked, "/locks/orders/migrate", "on 1 of 1 servers");

    assert_eq!(ended(typed(next("zklock ask "), &commands)).await.code, Some(0));
    assert!(held.is_held(), "ask must not end a lock that is not kept");

    // No contender here has the printed token, so nothing is removed. With the holder's token `break` asks for
    // confirmation on a terminal.
    let line = next("zklock break ");
    let stale = ended(typed(line, &commands)).await;
    assert!(stale.code == Some(1) && stale.stderr.contains("nothing was removed") && held.is_held(), "{stale:#?}");
    let (line, _) = line.rsplit_once(' ').unwrap();
    let line = format!("{line} {}", held.fencing_token());
    let zklock = binary();
    let mut terminal = OnTerminal::start_program("sh", &["-c", &line.replacen("zklock", "\"$0\"", 1), zklock]);
    terminal.shows("hangs");
    terminal.shows("[y/N] ");
    terminal.press("y\n");
    assert_eq!(terminal.ends().await, Some(0));
    soon("the loss", held.lost()).await;
    assert_eq!(next(""), "", "the docs have a command that this test does not run");
}

/// Runs both commands of each row of the page: util-linux's `flock` with a file, and `zklock` with a lock.
#[support::judged]
async fn flock_and_zklock_have_equal_codes_and_output() {
    let commands = commands(&[]);
    let page = include_str!("../../../docs/coming-from.md");
    let rows = page::rows(page.split("## flock(1)").nth(1).unwrap());
    let quoted = |cell: &str| cell.strip_prefix('`')?.strip_suffix('`').map(str::to_owned);
    let pairs: Vec<_> = rows.iter().filter_map(|row| Some((quoted(row[0])?, quoted(row[1])?))).collect();
    let (_zk, lock) = server_lock("/zklock/flock").await;
    let file = commands.path().join("file").display().to_string();
    let concrete = |line: &str| {
        let line = line.replace("CMD ARGS", "echo one two").replace("CMD", "sh -c 'echo run; exit 7'");
        line.replace("'A && B'", "'echo A && echo B'").replace("PATH", "/zklock/flock").replace("FILE", &file)
    };
    let mut compared = 0;
    for (theirs, ours) in pairs.iter().filter(|(theirs, _)| theirs.starts_with("flock ")) {
        assert!(ours.starts_with("zklock "), "{ours}");
        let (theirs, ours) = (concrete(theirs), concrete(ours));
        let outcome = async |line: &str| {
            let run = ended(typed(line, &commands)).await;
            (run.code, run.stdout)
        };
        assert_eq!(outcome(&theirs).await, outcome(&ours).await, "{theirs} | {ours}");
        // A wait of 30 s would take too long here.
        let (theirs, ours) = (theirs.replace("-w 30", "-w 0.1"), ours.replace("-w 30", "-w 0.1"));
        if [" -n ", " -w "].iter().any(|option| theirs.contains(option)) {
            let held = lock.write().await.unwrap();
            let taken = outcome(&format!("exec 9>{file}; flock 9; {theirs}")).await;
            assert_eq!(taken, outcome(&ours).await, "{theirs} | {ours}");
            assert_ne!(taken.0, Some(7), "{theirs}");
            held.release().await.unwrap();
            compared += 1;
        }
        compared += 1;
    }
    assert_eq!(compared, 8 + 3);
    let script = commands.path().join("alone");
    let itself = rows
        .iter()
        .find(|row| row[0].ends_with("a script that locks itself"))
        .expect("the page has a row for such a script");
    let line = itself[1].split('`').nth(1).unwrap();
    let line = line.replace("\\|", "|").replace(" PATH", " /zklock/flock");
    fs::write(&script, format!("#!/bin/sh\n{line}\necho \"$1 under $ZKLOCK_PATH\"; exit 7\n")).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let alone = ended(typed(&format!("{} word", script.display()), &commands)).await;
    assert_eq!((alone.code, &alone.stdout[..]), (Some(7), "word under /zklock/flock\n"), "{alone:#?}");
    let listed = ended(typed(&concrete(&pairs.iter().find(|(theirs, _)| theirs == "lslocks").unwrap().1), &commands));
    assert_eq!(listed.await.stdout, "/zklock/flock: free\n");
}

#[support::judged]
async fn option_c_runs_the_users_shell_or_sh() {
    for (shell, printed, code) in [("/bin/echo", "-c exit 3\n", 0), ("", "", 3)] {
        let mut command = zklock(&["/zklock/shell", "-c", "exit 3"]);
        command.env("SHELL", shell);
        let run = ended(command).await;
        assert_eq!((&run.stdout[..], run.code), (printed, Some(code)), "{run:#?}");
    }
}

/// No server listens at the address, so a command that connected would exit with 69 after ten seconds.
#[support::judged]
async fn an_invalid_path_is_refused_before_connecting() {
    let nowhere = "127.0.0.1:1";
    for path in ["relative", "/a//b", "/a/../b", "/zookeeper", "/zookeeper/l", "/\u{1d11e}"] {
        for command in
            [vec![path, "true"], vec!["ls", path], vec!["watch", path], vec!["check", path], vec!["break", path, "1"]]
        {
            let output = zklock_on(nowhere, &command).output().await.unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(64), "{command:?}: {said}");
            assert!(said.contains(path), "{command:?}: {said}");
            let is_zookeepers = said.contains("ZooKeeper keeps its own nodes in /zookeeper");
            assert_eq!(is_zookeepers, path.starts_with("/zookeeper"), "{command:?}: {said}");
        }
    }
}
