//! `zklock` as the first process of a container: in a namespace of processes, on a terminal and off it.

use super::*;

/// A command as the first process of a namespace, with the terminal as `docker run -it` gives it (`setsid -c`), or as a plain
/// `unshare` leaves it.
fn first_process(begins_session: bool, command: &[&str]) -> (&'static str, Vec<String>) {
    let mut words = vec!["--pid", "--fork", "--mount-proc", "--kill-child"];
    if begins_session {
        words.extend(["setsid", "-c"]);
    }
    words.extend(command);
    let mut words: Vec<String> = words.into_iter().map(str::to_owned).collect();
    if rustix::process::geteuid().is_root() {
        return ("unshare", words);
    }
    words.splice(0..0, ["--non-interactive", "--preserve-env", "unshare"].map(str::to_owned));
    ("sudo", words)
}

fn on_terminal(begins_session: bool, command: &[&str]) -> OnTerminal {
    let (program, words) = first_process(begins_session, command);
    OnTerminal::start_program(program, &words.iter().map(String::as_str).collect::<Vec<_>>())
}

#[support::judged]
async fn as_the_first_process_it_gives_codes_and_signals_as_ever() {
    // RTMIN+3, by which a system in a container is stopped, is one of the signals that zklock passes on.
    let real_time = ("kill -37 1; sleep 100", 165);
    for (script, code) in [("exit 6", 6), ("kill -TERM $$", 143), ("test $PPID = 1", 0), real_time] {
        let (program, words) = first_process(false, &[binary(), "/zklock/first/codes", "-c", script]);
        let mut command = Command::new(program);
        prepare(&mut command, &shared_server().address());
        let run = ended({
            command.args(words);
            command
        })
        .await;
        assert_eq!((run.code, &run.stderr[..]), (Some(code), ""), "{script}: {run:#?}");
    }
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn ctrl_c_ends_the_command_and_the_first_process_with_130() {
    for begins_session in [true, false] {
        let path = format!("/zklock/first/ctrl-c-{begins_session}");
        let (_zk, lock) = server_lock(&path).await;
        let mut terminal =
            on_terminal(begins_session, &[binary(), &path, "-c", "echo began; read line; echo read $line; read more"]);
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

/// The number of the group of a container's first process is 1, and a signal to "group -1" would reach every process.
#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn ctrl_c_spares_the_other_processes_of_a_container() {
    let script = "trap : INT; setsid env --default-signal=INT sleep 100 & other=$!
        \"$0\" /zklock/first/others -c 'echo began; read line'; kill -0 $other && echo spared";
    let mut terminal = on_terminal(true, &["sh", "-c", script, binary()]);
    terminal.shows("began");
    terminal.press("\x03");
    terminal.shows("spared");
    terminal.rest().await;
}

/// There is no shell that could continue them.
#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn ctrl_z_stops_nothing_for_ever_in_a_container_without_a_shell_for_jobs() {
    let command = "echo began; read line; echo read $line";
    let script = format!("\"$0\" /zklock/first/ctrl-z -c '{command}'; true");
    let path = "/zklock/first/ctrl-z-first";
    for first in [&[binary(), path, "-c", command][..], &["sh", "-c", &script, binary()]] {
        let mut terminal = on_terminal(true, first);
        terminal.shows("began");
        terminal.press("\x1a");
        terminal.press("a line\n");
        terminal.shows("read a line");
        terminal.rest().await;
    }
}
