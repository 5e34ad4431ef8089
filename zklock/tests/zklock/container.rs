//! Tests of `zklock` as the first process of a container, that is, of a PID namespace.

use super::*;

/// Returns the command that can make a PID namespace on this machine: `unshare` as root, in a user namespace, or by
/// sudo. `None` if none of the three is allowed, as in most containers.
fn unshare() -> Option<&'static [&'static str]> {
    const WAYS: [&[&str]; 3] = [
        &["unshare"],
        &["unshare", "--user", "--map-root-user"],
        &["sudo", "--non-interactive", "--preserve-env", "unshare"],
    ];
    let found = WAYS.into_iter().find(|way| {
        let mut command = std::process::Command::new(way[0]);
        command.args(&way[1..]).args(["--pid", "--fork", "--mount-proc", "true"]);
        command.stdin(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
    });
    if found.is_none() {
        let words =
            "\n!!! no namespace of processes can be made here: zklock as the first process of one was NOT tried\n";
        std::io::stderr().write_all(words.as_bytes()).unwrap();
    }
    found
}

/// Returns the command line that runs a command as the first process of a PID namespace. With `begins_session` the
/// command begins a Unix session that has the terminal (`setsid -c`), as under `docker run -it`. Otherwise the command
/// stays in the Unix session of `unshare`.
fn first_process<'a>(unshare: &[&'a str], begins_session: bool, command: &[&'a str]) -> Vec<&'a str> {
    let session = if begins_session { &["setsid", "-c"][..] } else { &[] };
    [unshare, &["--pid", "--fork", "--mount-proc", "--kill-child"], session, command].concat()
}

fn on_terminal(unshare: &[&str], begins_session: bool, command: &[&str]) -> OnTerminal {
    let words = first_process(unshare, begins_session, command);
    if !begins_session {
        return OnTerminal::start_program(words[0], &words[1..]);
    }
    // Only root may take a terminal away from a session. So this terminal belongs to no session before the container's.
    let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    let mut command = Command::new(words[0]);
    prepare(&mut command, &shared_server().address());
    command.args(&words[1..]);
    OnTerminal::start_command(terminal, command)
}

#[support::judged]
async fn pid_1_passes_exit_codes_and_signals_on() {
    let Some(unshare) = unshare() else { return };
    // Signal 37 is RTMIN+3, which stops systemd in a container. zklock passes it on to the command.
    let real_time = ("kill -37 1; sleep 100", 165);
    for (script, code) in [("exit 6", 6), ("kill -TERM $$", 143), ("test $PPID = 1", 0), real_time] {
        let words = first_process(unshare, false, &[binary(), "/zklock/first/codes", "-c", script]);
        let mut command = Command::new(words[0]);
        prepare(&mut command, &shared_server().address());
        let run = ended({
            command.args(&words[1..]);
            command
        })
        .await;
        assert_eq!((run.code, &run.stderr[..]), (Some(code), ""), "{script}: {run:#?}");
    }
}

/// Half of the orphans exit, and half are ended by a real-time signal.
#[support::judged]
async fn pid_1_reaps_orphans_of_its_command() {
    let Some(unshare) = unshare() else { return };
    let script = "for n in $(seq 25); do (true &); (sh -c 'kill -37 $$' &); done
        until ! grep -l '^State:.Z' /proc/[0-9]*/status >/dev/null 2>&1; do sleep 0.05; done; exit 6";
    let words = first_process(unshare, false, &[binary(), "/zklock/first/orphans", "-c", script]);
    let mut command = Command::new(words[0]);
    prepare(&mut command, &shared_server().address());
    command.args(&words[1..]);
    let run = ended(command).await;
    assert_eq!((run.code, &run.stderr[..]), (Some(6), ""), "{run:#?}");
}

/// Without signalfd(2) the key listener ends at once. zklock reaps its key listener itself, because the id may not be used again before.
#[support::judged]
async fn pid_1_reaps_no_key_listener_as_an_orphan() {
    let Some(unshare) = unshare() else { return };
    let (files, path) = (scratch(), "/zklock/first/key_listener");
    let script = "ended() { grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null | wc -l; }
        until [ $(ended) = 1 ]; do sleep 0.05; done
        orphan=$(sh -c 'sleep 0.1 >/dev/null & echo $!'); until ! [ -e /proc/$orphan ]; do sleep 0.05; done; echo left $(ended).";
    let without = keys::without_signalfd(&files);
    let mut terminal = on_terminal(unshare, true, &["env", &without, binary(), path, "-c", script]);
    terminal.shows("left 1.");
    assert_eq!(terminal.ends().await, Some(0));
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn ctrl_c_ends_the_command_and_pid_1_with_130() {
    let Some(unshare) = unshare() else { return };
    for begins_session in [true, false] {
        let path = format!("/zklock/first/ctrl-c-{begins_session}");
        let (_zk, lock) = server_lock(&path).await;
        let mut terminal = on_terminal(
            unshare,
            begins_session,
            &[binary(), &path, "-c", "echo began; read line; echo read $line; read more"],
        );
        terminal.shows("began");
        terminal.press("a line\n");
        terminal.shows("read a line");
        terminal.press("\x03");
        let (rest, code) = terminal.rest().await;
        assert_eq!(code, Some(130), "{begins_session}: {rest}");
        assert!(!rest.contains("panicked"), "{begins_session}: {rest}");
        line_becomes(&lock, "").await;
    }
}

/// The group of a container's first process has the number 1, and a signal to group -1 would reach every process.
#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn ctrl_c_spares_the_other_processes_of_a_container() {
    let Some(unshare) = unshare() else { return };
    let script = "trap : INT; setsid env --default-signal=INT sleep 100 & other=$!
        \"$0\" /zklock/first/others -c 'echo began; read line'; kill -0 $other && echo spared";
    let mut terminal = on_terminal(unshare, true, &["sh", "-c", script, binary()]);
    terminal.shows("began");
    terminal.press("\x03");
    terminal.shows("spared");
    terminal.rest().await;
}

/// In these containers no shell could continue a stopped zklock, so zklock continues the stopped command immediately.
#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn ctrl_z_is_undone_where_no_shell_can_continue() {
    let Some(unshare) = unshare() else { return };
    let command = "echo began; read line; echo read $line";
    let script = format!("\"$0\" /zklock/first/ctrl-z -c '{command}'; true");
    let path = "/zklock/first/ctrl-z-first";
    for first in [&[binary(), path, "-c", command][..], &["sh", "-c", &script, binary()]] {
        let mut terminal = on_terminal(unshare, true, first);
        terminal.shows("began");
        terminal.press("\x1a");
        terminal.press("a line\n");
        terminal.shows("read a line");
        terminal.rest().await;
    }
}
