//! Tests of the messages that zklock prints while it waits, on a terminal and elsewhere.

use support::wire::{Frames, Op, Rule};

use super::*;

#[support::judged]
async fn a_short_wait_off_a_terminal_prints_nothing() {
    let path = "/zklock/short-wait";
    let (_zk, lock) = server_lock(path).await;
    let mut short = 0;
    // On a busy machine a wait may take longer than a second, and then a message is right. So the test tries several
    // times.
    for _ in 0..20 {
        let held = lock.write().await.unwrap();
        let started = Instant::now();
        let waiting = Running::start(zklock(&[path, "echo", "ran"]));
        line_becomes(&lock, "W+ W-").await;
        held.release().await.unwrap();
        let run = waiting.ends().await;
        assert_eq!((run.code, &run.stdout[..]), (Some(0), "ran\n"));
        if started.elapsed() < Duration::from_secs(1) {
            assert_eq!(run.stderr, "");
            short += 1;
        }
        if short == 3 {
            return;
        }
    }
    panic!("{short} of 20 waits were shorter than a second");
}

/// Returns a shell with job control that starts `zklock` in the background.
fn in_background(path: &str, then: &str) -> OnTerminal {
    let script = format!("set -m; \"$0\" {path} -c 'echo granted' & echo started; {then}");
    OnTerminal::start_program("bash", &["-c", &script, binary()])
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_background_wait_draws_over_no_prompt() {
    let path = "/zklock/tty/background";
    let (_zk, lock) = server_lock(path).await;
    let held = lock.write().label("slow").await.unwrap();
    let mut terminal = in_background(path, "wait");
    terminal.shows("started");
    terminal.shows("zklock: waiting to write");
    terminal.shows("\n");
    held.release().await.unwrap();
    let (rest, code) = terminal.rest().await;
    assert_eq!(code, Some(0));
    assert!(rest.contains("granted"), "{rest:?}");
    assert!(!rest.contains('\x1b'), "{rest:?}");
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_in_the_foreground_has_a_live_line() {
    let path = "/zklock/tty/foreground";
    let (_zk, lock) = server_lock(path).await;
    let held = lock.write().label("slow").await.unwrap();
    let mut terminal = in_background(path, "read line; fg %1");
    terminal.shows("zklock: waiting to write");
    terminal.press("\n");
    terminal.shows("\r\x1b[Kzklock: waiting ");
    held.release().await.unwrap();
    terminal.shows("granted");
    assert_eq!(terminal.ends().await, Some(0));
}

/// Returns a shell with job control whose `zklock` was stopped by Ctrl-Z as soon as it waited. Enter lets the shell
/// continue it.
async fn stopped_while_it_waits(lock: &RwLock, path: &str) -> OnTerminal {
    let script = format!("set -m; \"$0\" {path} -c 'echo granted'; echo stopped; read line; fg %1; echo \"code $?\"");
    let mut terminal = OnTerminal::start_program("bash", &["-c", &script, binary()]);
    line_becomes(lock, "W+ W-").await;
    terminal.shows("zklock: waiting ");
    terminal.press("\x1a");
    terminal.shows("stopped");
    terminal
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_briefly_stopped_waiter_keeps_its_place() {
    let path = "/zklock/tty/paused";
    let (_zk, lock) = server_lock(path).await;
    let held = lock.write().await.unwrap();
    let mut terminal = stopped_while_it_waits(&lock, &format!("--session-timeout 30 {path}")).await;
    assert_eq!(line(&lock).await, "W+ W-");
    terminal.press("\n");
    held.release().await.unwrap();
    terminal.shows("granted");
    terminal.shows("code 0");
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_stopped_past_its_session_exits_with_76() {
    let path = "/zklock/tty/forgotten";
    let (_zk, lock) = server_lock(path).await;
    let held = lock.write().await.unwrap();
    let mut terminal = stopped_while_it_waits(&lock, &format!("{} {path}", session_of("1").join(" "))).await;
    line_becomes(&lock, "W+").await;
    terminal.press("\n");
    terminal.shows("lost the place in the queue");
    terminal.shows("code 76");
    held.release().await.unwrap();
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_line_says_why_no_server_is_reached_yet() {
    let port = Port::reserve();
    let address = port.address().to_string();
    let arguments = ["--connect-timeout", "60", "/zklock/tty/connecting", "echo", "granted"];
    let mut terminal = OnTerminal::start_with(&address, &[], binary(), &arguments);
    terminal.shows("\r\x1b[Kzklock: connecting for ");
    terminal.shows(&format!(" to {address}\r\x1b[K"));
    terminal.shows(&format!("s: {address}: Connection refused (os error 111)\r\x1b[K"));
    let _proxy = Proxy::start_on(port, shared_server().address());
    // The line is removed.
    terminal.shows("\r\x1b[Kgranted\r\n");
    assert_eq!(terminal.ends().await, Some(0));

    let port = Port::reserve();
    let arguments = ["-q", "--connect-timeout", "2500ms", "/zklock/tty/connecting", "true"];
    let mut terminal = OnTerminal::start_with(&port.address().to_string(), &[], binary(), &arguments);
    let (rest, code) = terminal.rest().await;
    assert_eq!((code, rest.contains("connecting for")), (Some(69), false), "{rest:?}");
}

/// Two commands each hold a lock, and run a `zklock` that waits for the lock of the other one.
#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_in_a_circle_names_the_circle() {
    let (a, b) = ("/zklock/deadlock/a", "/zklock/deadlock/b");
    let (_zk, lock_a) = server_lock(a).await;
    let (_other, lock_b) = server_lock(b).await;
    let (files, held) = (scratch(), "echo held; read line");
    // The first command waits without a limit, so its wait stands when the second command gives up.
    let nested = |wanted: &str, limit: &str| format!("{held}; {} {limit} {wanted} true; echo ended $?", binary());
    let script = |name: &str, text: String| {
        let file = files.path().join(name);
        fs::write(&file, text).unwrap();
        file.display().to_string()
    };
    let (first, second) = (script("first", nested(b, "")), script("second", nested(a, "-w 1")));
    let start = |lock: &str, script: &str| {
        let mut command = zklock(&[lock, "sh", script]);
        command.stdin(Stdio::piped());
        Running::start(command)
    };
    let (mut one, mut other) = (start(a, &first), start(b, &second));
    let pids = [one.pid(), other.pid()].map(Pid::as_raw_nonzero);
    for running in [&mut one, &mut other] {
        assert_eq!(running.says().await, "held");
    }
    one.child.stdin.take().unwrap().write_all(b"go\n").await.unwrap();
    line_becomes(&lock_b, "W+ W-").await;
    other.child.stdin.take().unwrap().write_all(b"go\n").await.unwrap();
    assert_eq!(other.says().await, "ended 1");
    let ended = other.ends().await;
    let circle = format!("waits for {a}, which ");
    assert!(ended.stderr.contains("; this wait closes a circle: ") && ended.stderr.contains(&circle), "{ended:#?}");
    for (pid, wanted) in [(pids[0], b), (pids[1], a)] {
        assert!(ended.stderr.contains(&format!("pid {pid} waits for {wanted}, which ")), "{ended:#?}");
    }
    // The circle is broken by the end of the second command.
    assert_eq!(one.says().await, "ended 0");
    assert_eq!(one.ends().await.code, Some(0));

    // A wait that is in no circle says nothing of one.
    let _held = lock_a.write().await.unwrap();
    let late = run(&["-w", "0.3", a, "true"]).await;
    assert!(late.code == Some(1) && !late.stderr.contains("circle"), "{late:#?}");
}

/// A `zklock` that runs under no other one holds nothing, so it closes no circle.
#[support::judged]
async fn a_wait_under_no_other_zklock_lists_no_other_lock() {
    let (parent, path) = ("/zklock/unsearched", "/zklock/unsearched/lock");
    let (_zk, lock) = server_lock(path).await;
    let held = lock.write().await.unwrap();
    let proxy = Proxy::start(shared_server().address());
    let late = ended(zklock_on(&proxy.address(), &["-w", "0.3", path, "true"])).await;
    assert_eq!(late.code, Some(1), "{late:#?}");
    let requests = proxy.requests();
    assert!(
        requests.iter().any(|(_, at)| at.starts_with(path)) && requests.iter().all(|(_, at)| at != parent),
        "{requests:?}"
    );
    drop(held);
}

/// The search lists the lock of the outer `zklock`, and gets no answer.
#[support::judged]
async fn a_search_for_a_circle_ends_without_an_answer() {
    let (outer, path) = ("/zklock/silent/outer", "/zklock/silent/lock");
    let (zk, lock) = server_lock(path).await;
    let held = [lock.write().await.unwrap(), lock_at(&zk, outer).write().await.unwrap()];
    let proxy = Proxy::start(shared_server().address());
    let search = proxy.apply(Rule::on(Frames::requests(Op::GetChildren2).about(outer)).and_all_later().lose());
    let mut command = zklock_on(&proxy.address(), &["--session-timeout", "60", "-w", "0.3", path, "true"]);
    command.env("ZKLOCK_PATH", outer).env("ZKLOCK_TOKEN", "1");
    let late = ended(command).await;
    assert!(late.code == Some(1) && search.has_happened(), "{late:#?}");
    drop(held);
}

/// A command that waits for the lock under which it runs waits for itself.
#[support::judged]
async fn a_wait_for_the_own_lock_names_the_circle() {
    let path = "/zklock/own-lock";
    let own = run(&[path, binary(), "-w", "0.5", path, "true"]).await;
    assert_eq!(own.code, Some(1), "{own:#?}");
    assert!(own.stderr.contains(&format!("waits for {path}, which ")), "{own:#?}");
}
