//! Tests with every signal that can be caught. The signal is sent to a `zklock` that waits, or to a `zklock` whose
//! command has left a process in the background.

use futures_util::future::join_all;

use super::*;

/// Signals that no process can catch.
const UNCAUGHT: [i32; 2] = [Signal::KILL.as_raw(), Signal::STOP.as_raw()];

/// Signals that end no process by default, and PIPE, which `zklock` causes itself if nobody reads its output.
const HARMLESS: [i32; 8] = [
    Signal::CHILD.as_raw(),
    Signal::CONT.as_raw(),
    Signal::TSTP.as_raw(),
    Signal::TTIN.as_raw(),
    Signal::TTOU.as_raw(),
    Signal::URG.as_raw(),
    Signal::WINCH.as_raw(),
    Signal::PIPE.as_raw(),
];

/// Signals that the C library reserves for itself.
const OF_THE_LIBRARY: [i32; 2] = [32, 33];

/// How many runs of `zklock` are tested at the same time.
const AT_ONCE: usize = 8;

fn ending() -> Vec<i32> {
    let others = [&UNCAUGHT[..], &HARMLESS, &OF_THE_LIBRARY].concat();
    (1..=64).filter(|signal| !others.contains(signal)).collect()
}

/// Sends a signal by its number, because real-time signals have no names.
async fn send(signal: i32, to: Pid) {
    let sent = Command::new("sh").args(["-c", &format!("kill -{signal} {}", to.as_raw_nonzero())]).status();
    assert!(soon("the signal", sent).await.expect("sh can be run").success(), "{signal}");
}

fn code(signal: i32) -> Option<i32> {
    (signal != Signal::INT.as_raw()).then_some(128 + signal)
}

/// Runs a command that leaves the process `left` in the background, and sends the signal to `zklock`. Returns whether
/// the process still lived when the next contender was granted the lock.
async fn outlives(zk: &ZooKeeper, path: &str, signal: i32, left: &str) -> bool {
    let lock = lock_at(zk, path);
    let mut running = Running::start(zklock(&["--grace", "500ms", path, "-c", &format!("{left} & wait")]));
    let left = Pid::from_raw(running.says().await.parse().expect("a number")).expect("a pid");
    let next = writer(&lock);
    line_becomes(&lock, "W+ W-").await;
    send(signal, running.pid()).await;
    let next = granted(next).await;
    let outlives = tie::lives(left);
    assert_eq!(running.ends().await.code, code(signal), "signal {signal}");
    next.release().await.expect("it is held");
    outlives
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn the_whole_group_ends_before_the_next_grant() {
    assert_eq!(ending().len(), 52, "{:?}", ending());
    let zk = connect(&shared_server().address()).await;
    for signals in ending().chunks(AT_ONCE) {
        let runs = signals.iter().map(async |signal| {
            let path = format!("/zklock/each-signal/{signal}");
            // A shell starts background processes with INT and QUIT ignored. `env` restores the default action of the
            // two signals.
            let left = "env --default-signal=INT,QUIT sh -c 'echo $$; exec sleep 100'";
            assert!(!outlives(&zk, &path, *signal, left).await, "signal {signal}");
        });
        join_all(runs).await;
    }
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn deaf_processes_are_killed_before_the_next_grant() {
    let zk = connect(&shared_server().address()).await;
    for signal in [Signal::ALARM, Signal::TERM, Signal::INT] {
        let deaf = "sh -c \"trap '' ALRM TERM INT; echo \\$\\$; exec sleep 100\"";
        let path = format!("/zklock/deaf-signal/{}", signal.as_raw());
        assert!(!outlives(&zk, &path, signal.as_raw(), deaf).await, "{signal:?}");
    }
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_signalled_waiter_leaves_the_queue_before_it_ends() {
    let (_zk, lock) = server_lock("/zklock/each-signal-waiting").await;
    let held = lock.write().await.expect("free");
    for signals in ending().chunks(AT_ONCE) {
        let waiting = || Running::start(zklock(&["--session-timeout", "60", lock.path(), "echo", "ran"]));
        let waiting: Vec<_> = signals.iter().map(|signal| (*signal, waiting())).collect();
        line_becomes(&lock, &format!("W+{}", " W-".repeat(signals.len()))).await;
        join_all(waiting.into_iter().map(|(signal, waiting)| async move {
            send(signal, waiting.pid()).await;
            let run = waiting.ends().await;
            assert_eq!((run.code, &run.stdout[..]), (code(signal), ""), "signal {signal}");
        }))
        .await;
        assert_eq!(line(&lock).await, "W+");
    }
    held.release().await.expect("it is held");
}

#[support::judged]
async fn harmless_signals_and_faults_reach_the_command() {
    for signal in ["URG", "WINCH", "CONT"] {
        let script = format!("got=; trap 'got=1' {signal}; echo ready; until [ $got ]; do sleep 0.02; done; exit 9");
        let running = Running::start(zklock(&["/zklock/harmless-signal", "-c", &script])).ready().await;
        let sent =
            Command::new("sh").args(["-c", &format!("kill -{signal} {}", running.pid().as_raw_nonzero())]).status();
        assert!(sent.await.expect("sh can be run").success());
        assert_eq!(running.ends().await.code, Some(9), "{signal}");
    }
    for fault in ["ILL", "ABRT", "BUS", "FPE", "SEGV", "SYS", "TRAP"] {
        let run = run(&["/zklock/faults", "-c", &format!("kill -{fault} $$; exit 9")]).await;
        assert!(run.code.is_some_and(|code| code > 128), "{fault}: {run:#?}");
    }
    let masks = run(&["/zklock/masks", "grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"]).await;
    let mut alone = Command::new("grep");
    prepare(&mut alone, "");
    alone.args(["-E", "^Sig(Blk|Ign)", "/proc/self/status"]);
    assert_eq!(masks.stdout, ended(alone).await.stdout, "the command must have the signal masks of zklock's parent");
}

/// Returns `zklock` as a supervisor starts it that has blocked these signals.
fn with_blocked(signals: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new("env");
    prepare(&mut command, &shared_server().address());
    command.arg(format!("--block-signal{signals}")).args(arguments);
    command
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_signal_that_was_blocked_at_the_start_ends_zklock() {
    let path = "/zklock/blocked-signals";
    let (_zk, lock) = server_lock(path).await;
    // `env` unblocks the signals for the command, which could not be ended otherwise.
    let command = ["--", "env", "--default-signal=TERM,INT,HUP", "sh", "-c", "echo ready; exec sleep 100"];
    for signals in ["=TERM,INT,HUP", ""] {
        for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
            let zklock = || with_blocked(signals, &[&[binary(), path], &command[..]].concat());
            let holding = Running::start(zklock()).ready().await;
            let waiting = Running::start(zklock());
            line_becomes(&lock, "W+ W-").await;
            waiting.signal(signal);
            let run = waiting.ends().await;
            assert_eq!((run.code, &run.stdout[..]), (code(signal.as_raw()), ""), "{signals} {signal:?}");
            holding.signal(signal);
            assert_eq!(holding.ends().await.code, code(signal.as_raw()), "{signals} {signal:?}");
        }
    }
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_signal_that_was_blocked_at_the_start_ends_the_other_tasks() {
    let path = "/zklock/blocked-signals-watched";
    let (_zk, lock) = server_lock(path).await;
    lock.write().await.expect("free").release().await.expect("it is held");
    for signal in [Signal::TERM, Signal::INT] {
        let mut watch = Running::start(with_blocked("", &[binary(), "watch", "--interval", "1h", path]));
        watch.says().await;
        watch.signal(signal);
        assert_eq!(watch.ends().await.code, None, "{signal:?}");
    }
}

#[support::judged]
async fn the_command_gets_the_blocked_signals_of_the_start() {
    let grep = ["grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"];
    for signals in ["=TERM,INT,HUP", "=ABRT,SEGV", "=CHLD,CONT,TSTP,PIPE", "=RTMIN+3", ""] {
        let masks = ended(with_blocked(signals, &[&[binary(), "/zklock/blocked-masks"], &grep[..]].concat())).await;
        let alone = ended(with_blocked(signals, &grep)).await;
        assert_eq!((masks.code, &masks.stdout), (Some(0), &alone.stdout), "{signals} {masks:#?}");
    }
}
