//! Tests of the exit code if a second event comes while `zklock` still winds down after a first one. `docs/zklock.md`
//! has a table of the codes, and the test tries every cell of that table.

use std::os::unix::process::ExitStatusExt;

use futures_util::stream::{self, StreamExt};
use support::wire::Op;
use zk_rwlock::WriteGuard;

use super::*;

/// How many cells are tried at the same time.
const AT_ONCE: usize = 8;

const WITH_ONCE_IN: &str = "with `--once-in`, the command exits with 0";

/// The second event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    Nothing,
    Removed,
    SessionEnded,
    CutOff,
    Signal(Signal),
}

/// Returns the second events that the heading of a column means.
fn events(heading: &str) -> Vec<Then> {
    match heading {
        "nothing" => vec![Then::Nothing],
        "the lock is lost" => vec![Then::Removed, Then::SessionEnded, Then::CutOff],
        "TERM" => vec![Then::Signal(Signal::TERM)],
        "INT" => vec![Then::Signal(Signal::INT)],
        other => panic!("no test brings this event about: {other}"),
    }
}

/// Whether the lock can be lost in this way after the first event, so that `zklock` hears of the loss.
fn can_follow(first: &str, then: Then) -> bool {
    match then {
        // Otherwise zklock waits for a reply that a test holds back, behind which it would hear of nothing else.
        Then::Removed | Then::SessionEnded => first.contains("cleans up") || first.contains("its group goes on"),
        // The session would be so short that zklock is cut off before the wait is over.
        Then::CutOff => first != "`-w` is over",
        _ => true,
    }
}

/// Returns the cells of the table in `docs/zklock.md`: the first event, the second event, and the exit code.
fn cells() -> Vec<(String, Then, i32)> {
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/zklock.md")).expect("readable");
    let cut = |row: &str| row.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
    let mut rows = page.lines().skip_while(|line| !line.starts_with("| first event |"));
    let headings = cut(rows.next().expect("the page has the table"));
    let mut cells = Vec::new();
    for row in rows.skip(1).take_while(|line| line.starts_with('|')).map(cut) {
        for (heading, code) in headings.iter().zip(&row).skip(1) {
            let code = code.parse().expect("an exit code");
            let events = events(heading).into_iter().filter(|then| can_follow(&row[0], *then));
            cells.extend(events.map(|then| (row[0].clone(), then, code)));
        }
        cells.push((row[0].clone(), Then::Signal(Signal::KILL), 137));
    }
    cells
}

/// A `zklock` that winds down after a first event.
struct WindingDown {
    running: Running,
    told: Lines<BufReader<ChildStderr>>,
    proxy: Proxy,
    zk: ZooKeeper,
    lock: RwLock,
    /// The lock's holder, if `zklock` waits for the lock.
    held: Option<WriteGuard>,
    /// A process that the command has left behind.
    left: Option<Pid>,
    /// Whether the lock is still held, and the command cleans up.
    cleans_up_under_the_lock: bool,
    /// The processes of the command go on until this file exists.
    end: PathBuf,
    _files: tempfile::TempDir,
}

impl WindingDown {
    /// Starts `zklock`, and brings the first event about. Returns when `zklock` winds down.
    async fn begin(first: &str, then: Then, path: &str) -> WindingDown {
        let (zk, lock) = server_lock(path).await;
        let proxy = Proxy::start(shared_server().address());
        let files = scratch();
        let end = files.path().join("end");
        // The directory is gone if the test ends first.
        let goes_on =
            format!("while [ -e {} ] && ! [ -e {} ]; do sleep 0.02; done", files.path().display(), end.display());
        // This process of the command's group hears no signal. It prints its own pid and the command's.
        let leaves_a_process = format!("sh -c 'trap \"\" TERM INT; echo $$ $PPID; {goes_on}' & wait");
        let exits = |code: i32| format!("echo ready; {goes_on}; exit {code}");
        let cleans_up = format!(
            "clean() {{ echo cleaning; {goes_on}; exit 3; }}; trap clean TERM; trap : INT; echo ready; \
             while :; do sleep 0.02; done"
        );
        let (options, script): (&[&str], _) = match first {
            "TERM ends the command, and its group goes on" | "INT ends the command, and its group goes on" => {
                (&[], leaves_a_process)
            }
            "the command exits with 3 after TERM, and its group goes on" => {
                (&[], format!("trap 'exit 3' TERM; {leaves_a_process}"))
            }
            "TERM, and the command cleans up and exits with 3" => (&[], cleans_up),
            "the lock is lost, and the command cleans up" => (&[], cleans_up),
            "`--max-hold` is over, and the command cleans up" => (&["--max-hold", "1s"], cleans_up),
            WITH_ONCE_IN => (&["--once-in", "1h"], exits(0)),
            "`-w` is over" => (&["-w", "3s"], exits(3)),
            _ => (&[], exits(3)),
        };
        let waits = first.contains("waits") || first.contains("-w");
        let held = if waits { Some(lock.write().await.expect("free")) } else { None };
        // A lease that runs out must run out within the test. No other session may end by itself.
        let timeout = if then == Then::CutOff { "4s" } else { "60s" };
        let arguments = [&session_of(timeout)[..], &["--grace", "1h"], options, &[path, "-c", &script]].concat();
        let command = zklock_on(&proxy.address(), &arguments);
        let mut running = Running::start(command);
        let mut left = None;
        let leaves = || {
            let deletes = |(op, of): &(Op, String)| *op == Op::Delete || *op == Op::Multi && of.contains("Delete");
            proxy.requests().iter().any(deletes)
        };
        let leaves = async || eventually(&format!("zklock leaves: {first}"), || async { leaves() }).await;
        if waits {
            line_becomes(&lock, "W+ W-").await;
            // zklock knows its node, and watches it and the holder's.
            eventually("zklock watches", || async { proxy.count(Op::GetData) >= 2 }).await;
            proxy.black_hole_to_client();
            match &first[..4] {
                "TERM" => running.signal(Signal::TERM),
                "INT " => running.signal(Signal::INT),
                _ => {}
            }
            leaves().await;
        } else if script.contains("PPID") {
            let said = running.says().await;
            let pids: Vec<_> = said.split(' ').map(|pid| Pid::from_raw(pid.parse().expect("a number"))).collect();
            let [process, Some(command)] = pids[..] else { panic!("{said}") };
            left = process;
            running.signal(if first.starts_with("INT") { Signal::INT } else { Signal::TERM });
            let stat = PathBuf::from(format!("/proc/{}", command.as_raw_nonzero()));
            eventually("the command is reaped", || async { !stat.exists() }).await;
        } else if script.contains("cleaning") {
            assert_eq!(running.says().await, "ready");
            match first {
                "the lock is lost, and the command cleans up" => remove(&zk, path).await,
                "`--max-hold` is over, and the command cleans up" => {}
                _ => running.signal(Signal::TERM),
            }
            assert_eq!(running.says().await, "cleaning");
        } else {
            assert_eq!(running.says().await, "ready");
            proxy.black_hole_to_client();
            fs::write(&end, "").expect("writable");
            if first == WITH_ONCE_IN {
                let record = format!("{path}.done");
                let operator = session(&zk).await;
                eventually("the success is recorded", || async { operator.data(&record).await.is_ok() }).await;
            } else {
                leaves().await;
            }
        }
        let told = BufReader::new(running.child.stderr.take().expect("a pipe")).lines();
        let cleans_up_under_the_lock = first.starts_with("TERM, and");
        WindingDown { running, told, proxy, zk, lock, held, left, cleans_up_under_the_lock, end, _files: files }
    }

    async fn then(&mut self, then: Then) {
        match then {
            Then::Nothing => self.proxy.heal(),
            Then::Removed => {
                remove(&self.zk, self.lock.path()).await;
                self.proxy.heal();
            }
            Then::SessionEnded => {
                // Otherwise zklock would take its session back.
                self.proxy.cut();
                shared_server().end_session(&self.proxy.granted().expect("zklock has a session"));
                self.proxy.heal();
            }
            Then::CutOff => self.proxy.cut(),
            Then::Signal(signal) => self.running.signal(signal),
        }
        if self.cleans_up_under_the_lock && !matches!(then, Then::Nothing | Then::Signal(_)) {
            while !soon("zklock says the loss", self.told.next_line())
                .await
                .expect("text")
                .expect("a loss")
                .contains("lost: ")
            {}
        }
        // zklock must end the processes that the command has left, except if nothing happens, or if zklock is gone.
        if self.left.is_none() || [Then::Nothing, Then::Signal(Signal::KILL)].contains(&then) {
            fs::write(&self.end, "").expect("writable");
        }
    }
}

/// Removes the nodes of the lock by hand, as an operator does.
async fn remove(zk: &ZooKeeper, path: &str) {
    let operator = session(zk).await;
    for node in children(zk, path).await {
        // The node may be gone: zklock leaves.
        let _ = operator.delete(&format!("{path}/{node}")).await;
    }
}

/// Tries one cell of the table. Returns what is wrong.
async fn try_cell(number: usize, (first, then, code): (String, Then, i32)) -> Option<String> {
    let mut it = WindingDown::begin(&first, then, &format!("/zklock/winding-down/{number}")).await;
    it.then(then).await;
    let status = soon(&format!("the end of zklock after {first}, then {then:?}"), it.running.child.wait()).await;
    let status = status.expect("zklock runs");
    let seen = status.code().or(status.signal().map(|signal| 128 + signal));
    // A shell's loop around zklock ends only if zklock ends by INT, and not if it exits with 130.
    if seen != Some(code) || (code == 130) != (status.signal() == Some(Signal::INT.as_raw())) {
        return Some(format!("{first}, then {then:?}: {status}, and not {code}"));
    }
    if it.left.is_some_and(tie::lives) && then != Then::Signal(Signal::KILL) {
        return Some(format!("{first}, then {then:?}: a process of the command's group outlives zklock"));
    }
    // Otherwise the lock is free when the session ends.
    if ![Then::CutOff, Then::Signal(Signal::KILL)].contains(&then) {
        let free = line_becomes(&it.lock, if it.held.is_some() { "W+" } else { "" });
        let free = tokio::time::timeout(SOON / 2, free).await;
        return free.is_err().then(|| format!("{first}, then {then:?}: the lock stays taken"));
    }
    None
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn every_second_event_gives_the_documented_exit_code() {
    let cells = cells();
    assert!(cells.len() > 60, "{cells:?}");
    let tried = cells.into_iter().enumerate().map(|(number, cell)| try_cell(number, cell));
    let wrong: Vec<String> = stream::iter(tried).buffer_unordered(AT_ONCE).filter_map(async |it| it).collect().await;
    assert_eq!(wrong, Vec::<String>::new());
}
