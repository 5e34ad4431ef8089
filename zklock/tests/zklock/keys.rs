//! Tests of Ctrl-C and Ctrl-\ on a terminal: the script or program that started `zklock` hears of a key, and of nothing
//! else.

use super::*;
use support::wire::Op;

const CTRL_C: &str = "\x03";
const CTRL_BACKSLASH: &str = "\x1c";

/// A command that ends with `end` after a key. It has the terminal as soon as it has read a line. It waits by `sleep`,
/// because `read` could miss a signal that comes shortly before it.
fn handles_keys(end: &str) -> String {
    format!("ulimit -c 0; read line; trap '{end}' INT QUIT; echo ready; while :; do sleep 0.05; done")
}

/// Runs `program` on a terminal, which starts `zklock`, and presses the key when the command has the terminal. Returns
/// the rest of the screen, and the exit code.
async fn after_key(key: &str, program: &str, arguments: &[&str]) -> (String, Option<i32>) {
    let mut terminal = OnTerminal::start_program(program, arguments);
    terminal.press("go\n");
    terminal.shows("ready");
    terminal.press(key);
    terminal.rest().await
}

/// Returns a script that traps the signal, runs `zklock` with the command `$1`, and goes on.
fn trapping(signal: &str, path: &str) -> String {
    format!("trap 'echo CLEANUP; exit 99' {signal}; \"$0\" {path} -- bash -c \"$1\"; echo \"NEXT $?\"")
}

fn assert_cleaned_up_once((rest, code): (String, Option<i32>), what: &str) {
    assert_eq!(
        (rest.matches("CLEANUP").count(), rest.contains("NEXT"), code),
        (1, false, Some(99)),
        "{what}: {rest:?}"
    );
}

#[support::judged]
async fn a_script_hears_a_key_however_the_command_ends() {
    for (key, signal, code) in [(CTRL_C, "INT", 130), (CTRL_BACKSLASH, "QUIT", 131)] {
        let script = trapping(signal, "/zklock/keys/trap");
        for end in ["exit 0", &format!("exit {code}"), "exit 7", "kill -KILL $$"] {
            let heard = after_key(key, "bash", &["-c", &script, binary(), &handles_keys(end)]).await;
            assert_cleaned_up_once(heard, &format!("{signal}, {end}"));
        }
    }
}

#[support::judged]
async fn a_script_without_a_trap_ends_at_ctrl_c() {
    for end in ["exit 0", "exit 130"] {
        let script = "\"$0\" /zklock/keys/plain -- bash -c \"$1\"; echo \"NEXT $?\"";
        let (rest, code) = after_key(CTRL_C, "bash", &["-c", script, binary(), &handles_keys(end)]).await;
        assert_eq!((rest.contains("NEXT"), code), (false, None), "{end}: {rest:?}");

        // The command does not get the terminal here, and the terminal sends the signal to the script and to zklock.
        let script = "\"$0\" /zklock/keys/plain -- bash -c \"$1\" >/dev/null; echo \"NEXT $?\"";
        let command = format!("trap '{end}' INT; echo ready >/dev/tty; while :; do sleep 0.05; done");
        let (rest, code) = after_key(CTRL_C, "bash", &["-c", script, binary(), &command]).await;
        assert_eq!((rest.contains("NEXT"), code), (false, None), "{end}, without the terminal: {rest:?}");
    }
}

#[support::judged]
async fn make_does_not_go_on_after_ctrl_c() {
    let files = scratch();
    let makefile = files.path().join("Makefile");
    for end in ["exit 0", "exit 130"] {
        let command = handles_keys(end).replace('\'', "'\\''");
        fs::write(
            &makefile,
            format!("all:\n\t@'{}' /zklock/keys/make -- bash -c '{command}'\n\t@echo NEXT\n", binary()),
        )
        .unwrap();
        let (rest, code) = after_key(CTRL_C, "make", &["-f", makefile.to_str().unwrap()]).await;
        // make says "Interrupt", or "wait: No child processes" if its signal handler has already reaped zklock.
        assert!(!rest.contains("NEXT") && code != Some(0), "{end}: {code:?} {rest:?}");
    }
}

#[support::judged]
async fn python_raises_keyboard_interrupt_after_ctrl_c() {
    let program = "import subprocess, sys
try:
    print('NEXT', subprocess.run([sys.argv[1], '/zklock/keys/python', '--', 'bash', '-c', sys.argv[2]]))
except KeyboardInterrupt:
    print('CLEANUP'); sys.exit(99)";
    if std::process::Command::new("python3").arg("--version").output().is_err() {
        std::io::stderr().write_all(b"\n!!! there is no python3 here: its subprocess.run was NOT tried\n").unwrap();
        return;
    }
    for end in ["exit 0", "exit 130", "exit 7"] {
        let heard = after_key(CTRL_C, "python3", &["-c", program, binary(), &handles_keys(end)]).await;
        assert_cleaned_up_once(heard, end);
    }
}

#[support::judged]
async fn each_caller_of_nested_zklocks_hears_a_key_once() {
    for (key, signal) in [(CTRL_C, "INT"), (CTRL_BACKSLASH, "QUIT")] {
        // The inner zklock is the command of the outer one, or a script between the two handles the key.
        let direct = format!(
            "trap 'echo CLEANUP; exit 99' {signal}
            \"$0\" /zklock/keys/outer -- \"$0\" /zklock/keys/inner -- bash -c \"$1\"; echo NEXT"
        );
        let between = format!(
            "trap 'echo CLEANUP; exit 99' {signal}
            \"$0\" /zklock/keys/outer -- bash -c 'trap \"echo BETWEEN; exit 0\" {signal}
            \"$0\" /zklock/keys/inner -- bash -c \"$1\"; echo NEXT' \"$0\" \"$1\"; echo NEXT"
        );
        for (script, heard) in [(direct, 0), (between, 1)] {
            let (rest, code) = after_key(key, "bash", &["-c", &script, binary(), &handles_keys("exit 7")]).await;
            assert_eq!(rest.matches("BETWEEN").count(), heard, "{signal}: {rest:?}");
            assert_cleaned_up_once((rest, code), signal);
        }
    }
}

#[support::judged]
async fn a_script_goes_on_if_no_key_was_typed() {
    for (command, code) in [
        ("exit 130", 130),
        ("kill -INT $$; sleep 100", 130),
        ("trap 'exit 130' INT; kill -INT $$; sleep 100", 130),
        // timeout(1) sends the signal to its whole group, which is the command's.
        ("exec timeout -s INT 0.1 sleep 100", 124),
        ("trap 'exit 0' INT; kill -INT 0; sleep 100", 0),
    ] {
        let command = format!("read line; echo ready; {command}");
        let script = trapping("INT", "/zklock/keys/none");
        let (rest, ends) = after_key("", "bash", &["-c", &script, binary(), &command]).await;
        assert!(rest.contains(&format!("NEXT {code}\r\n")) && !rest.contains("CLEANUP"), "{command}: {rest:?}");
        assert_eq!(ends, Some(0), "{command}: {rest:?}");
    }
}

#[support::judged]
async fn an_ignored_key_stays_ignored() {
    let script = "trap '' INT QUIT; \"$0\" /zklock/keys/ignored -- bash -c \"$1\"; echo \"NEXT $?\"";
    let command = "read line; echo ready; read line; echo \"read $line\"";
    for key in [CTRL_C, CTRL_BACKSLASH] {
        let mut terminal = OnTerminal::start_program("bash", &["-c", script, binary(), command]);
        terminal.press("go\n");
        terminal.shows("ready");
        terminal.press(key);
        terminal.press("more\n");
        terminal.shows("read more");
        terminal.shows("NEXT 0");
        assert_eq!(terminal.ends().await, Some(0), "{key:?}");
    }
}

/// The command exits with 0 by itself. The key is typed before zklock, which stands still, takes the terminal back.
#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_typed_at_the_end_of_the_command_is_heard() {
    let script = trapping("INT", "/zklock/keys/end");
    let command = "echo \"$PPID $$ pids\"; read line; echo ready; read line; exit 0";
    let mut terminal = OnTerminal::start_program("bash", &["-c", &script, binary(), command]);
    let pids = terminal.before(" pids");
    let [zklock, command] = [0, 1].map(|at| {
        let pid = pids.split_whitespace().nth(at).and_then(|pid| pid.parse().ok());
        Pid::from_raw(pid.unwrap_or_else(|| panic!("{pids:?}"))).unwrap()
    });
    terminal.press("go\n");
    terminal.shows("ready");
    kill_process(zklock, Signal::STOP).unwrap();
    eventually("zklock stands still", || async { state(zklock) == 'T' }).await;
    terminal.press("go\n");
    eventually("the command has ended", || async { state(command) == 'Z' }).await;
    terminal.press(CTRL_C);
    terminal.shows("^C");
    kill_process(zklock, Signal::CONT).unwrap();
    assert_cleaned_up_once(terminal.rest().await, "at the end");
}

/// The command has ended, and the terminal sends the signal to the script and to zklock.
#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn ctrl_c_during_the_release_ends_the_script() {
    let proxy = Proxy::start(shared_server().address());
    let unanswered = proxy.hold_reply(Op::CloseSession);
    let script = "\"$0\" /zklock/keys/release true; echo NEXT";
    let mut terminal = OnTerminal::start_with(&proxy.address(), &[], "bash", &["-c", script, binary()]);
    unanswered.arrives().await;
    terminal.press(CTRL_C);
    let (rest, code) = terminal.rest().await;
    assert_eq!((rest.contains("NEXT"), code), (false, None), "{rest:?}");
    unanswered.release();
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_is_heard_even_if_the_lock_is_lost_afterwards() {
    let path = "/zklock/keys/lost";
    let (_zk, lock) = server_lock(path).await;
    let command = "read line; trap 'echo caught' INT; echo ready; while :; do sleep 0.05; done";
    let mut terminal = OnTerminal::start_program("bash", &["-c", &trapping("INT", path), binary(), command]);
    terminal.press("go\n");
    terminal.shows("ready");
    terminal.press(CTRL_C);
    terminal.shows("caught");
    let token = lock.queue().await.unwrap().members[0].token.unwrap();
    assert_eq!(run(&["break", "--yes", path, &token.to_string()]).await.code, Some(0));
    assert_cleaned_up_once(terminal.rest().await, "after a loss");
}

/// Returns the environment variable, `NAME=VALUE`, by which programs have no signalfd(2). The C compiler that links the
/// tests makes the library that it names.
pub(super) fn without_signalfd(files: &tempfile::TempDir) -> String {
    let [source, library] = ["none.c", "none.so"].map(|name| files.path().join(name));
    let text =
        "#include <errno.h>\nint signalfd(int file, const void *mask, int flags) { errno = ENOSYS; return -1; }\n";
    fs::write(&source, text).unwrap();
    let mut cc = std::process::Command::new("cc");
    cc.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source);
    assert!(cc.status().expect("a C compiler").success());
    format!("LD_PRELOAD={}", library.display())
}

/// Without signalfd(2) there is no key listener, and the end of the command is all that zklock knows.
#[support::judged]
async fn without_signalfd_a_command_that_a_key_ends_tells_of_the_key() {
    let files = scratch();
    let script = format!("export {}\n{}", without_signalfd(&files), trapping("INT", "/zklock/keys/no-signalfd"));
    let end_by_key = "trap - INT; kill -INT $$";
    let heard = after_key(CTRL_C, "bash", &["-c", &script, binary(), &handles_keys(end_by_key)]).await;
    assert_cleaned_up_once(heard, end_by_key);
    let (rest, code) = after_key(CTRL_C, "bash", &["-c", &script, binary(), &handles_keys("exit 7")]).await;
    assert_eq!((rest.contains("CLEANUP"), rest.contains("NEXT 7"), code), (false, true, Some(0)), "{rest:?}");
}

/// Returns the key listener of the `zklock` that listens in this process group.
async fn key_listener(group: &str) -> Pid {
    let found = || {
        let is_key_listener = |process: &fs::DirEntry| {
            let read = |name| fs::read_to_string(process.path().join(name)).unwrap_or_default();
            read("cmdline").split('\0').nth(1) == Some("witness-of")
                && read("stat").rsplit_once(") ").is_some_and(|(_, stat)| stat.split(' ').nth(2) == Some(group))
        };
        let process = fs::read_dir("/proc").unwrap().flatten().find(is_key_listener)?;
        Pid::from_raw(process.file_name().to_str()?.parse().ok()?)
    };
    eventually("the key listener listens", || async { found().is_some() }).await;
    found().unwrap()
}

/// Types Ctrl-C, which the command only notes, and ends the command after `stop` has stopped the key listener.
async fn assert_heard_although_stopped(path: &str, stop: impl AsyncFnOnce(Pid)) {
    let command = "echo $$ pid; read line; trap 'echo caught' INT; echo ready; while :; do sleep 0.05; done";
    let mut terminal = OnTerminal::start_program("bash", &["-c", &trapping("INT", path), binary(), command]);
    let group = terminal.before(" pid").trim().to_owned();
    terminal.press("go\n");
    terminal.shows("ready");
    let key_listener = key_listener(&group).await;
    terminal.press(CTRL_C);
    terminal.shows("caught");
    stop(key_listener).await;
    kill_process(Pid::from_raw(group.parse().unwrap()).unwrap(), Signal::KILL).unwrap();
    assert_cleaned_up_once(terminal.rest().await, path);
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_typed_before_a_stop_of_the_key_listener_is_heard() {
    assert_heard_although_stopped("/zklock/keys/stopped", async |key_listener| {
        kill_process(key_listener, Signal::STOP).unwrap();
        eventually("the key listener stands still", || async { state(key_listener) == 'T' }).await;
    })
    .await;
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_listener_that_is_stopped_again_and_again_does_not_keep_the_lock() {
    let mut stops = None;
    assert_heard_although_stopped("/zklock/keys/stopped-again", async |key_listener| {
        // The key listener needs its time to write the key. After that this loop stops it for good.
        eventually("the key listener waits", || async { state(key_listener) == 'S' }).await;
        let stop = format!("while kill -STOP {}; do :; done", key_listener.as_raw_nonzero());
        stops =
            Some(Command::new("bash").args(["-c", &stop]).stderr(Stdio::null()).kill_on_drop(true).spawn().unwrap());
        eventually("the key listener stands still", || async { state(key_listener) == 'T' }).await;
    })
    .await;
    assert!(soon("the end of the key listener", stops.unwrap().wait()).await.is_ok());
}

/// The command's standard input is not the terminal, so the command does not get the terminal.
#[support::judged]
async fn a_signal_to_zklock_alone_ends_no_script() {
    let script = "\"$0\" /zklock/keys/alone -- bash -c \"$1\" </dev/null; echo \"NEXT $?\"";
    for (command, signal) in
        [("trap 'exit 0' INT", "INT"), ("trap 'exit 0' QUIT", "QUIT"), ("trap 'exit 130' INT", "INT")]
    {
        let command = format!("{command}; kill -{signal} $PPID; while :; do sleep 0.05; done");
        let mut terminal = OnTerminal::start_program("bash", &["-c", script, binary(), &command]);
        let (rest, code) = terminal.rest().await;
        assert_eq!((rest.contains("NEXT"), code), (true, Some(0)), "{command}: {rest:?}");
        assert!(rest.contains(if command.contains("130") { "NEXT 130" } else { "NEXT 0" }), "{command}: {rest:?}");
    }
}
