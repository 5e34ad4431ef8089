//! The lock among processes that are killed, stopped, or exit.
//!
//! The children are this test binary itself: see [`support::process`].

use std::thread;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use support::process::{Process, role, say};
use support::safe;
use support::scene::*;
use support::server::{TICK, shared_server};
use zk_rwlock::{Error, RwLock, ZooKeeper};

/// The session timeout. The tests' servers notice a crash at the first tick after this time.
const SHORT: Duration = Duration::from_secs(2);

/// The time that a busy machine may take in addition.
const SLACK: Duration = Duration::from_secs(3);

/// Returns the time of the monotonic clock, in nanoseconds. All processes of this machine share that clock.
fn clock() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

// -------------------------------------------------------------------------------------------------------- The children

#[test]
fn the_child_process_of_other_tests() {
    let Some(role) = role() else { return };
    let mut words = role.split(' ').map(str::to_owned);
    let mut word = || words.next().expect("a role, a server, a path and a session timeout");
    let (role, server, path) = (word(), word(), word());
    let session_timeout = Duration::from_millis(word().parse().expect("a number of milliseconds"));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let zk = runtime.block_on(connect_with(&server, session_timeout));
    let lock = RwLock::builder(&zk, &path);
    let lock = if role.starts_with("keep-") { lock.keep(CALM) } else { lock }.build().unwrap();
    match role.as_str() {
        "hold" => hold(&lock),
        "watch" => watch(&lock),
        "drop-and-return" | "keep-drop-and-return" => drop_and_return(lock, zk),
        "wait-and-return" | "keep-wait-and-return" => wait_and_return(lock, zk),
        "release-and-exit" => release_and_exit(&lock),
        "return-with-guard" => return_with_guard(lock, zk),
        other => panic!("there is no role {other}"),
    }
}

fn hold(lock: &RwLock) {
    let _guard = lock.write().blocking().unwrap();
    say("held");
    loop {
        thread::park();
    }
}

/// Calls `is_held` on the guard without pause and without a runtime, until it returns false. Prints the times just before the
/// last call that returned true and before the call that returned false.
fn watch(lock: &RwLock) {
    let guard = lock.write().blocking().unwrap();
    say("held");
    let mut last_yes = clock();
    loop {
        let asked = clock();
        if !guard.is_held() {
            return say(&format!("{last_yes} {asked}"));
        }
        last_yes = asked;
        // The loop has no pause, so that after a stop of the process, this call runs before the library's threads run.
        std::hint::spin_loop();
    }
}

/// Drops the guard, then the handles, and exits immediately.
fn drop_and_return(lock: RwLock, zk: ZooKeeper) {
    let guard = lock.write().blocking().unwrap();
    say("held");
    drop(guard);
    drop((lock, zk));
    std::process::exit(0);
}

/// Gives up the wait for the lock, then drops the handles, and exits immediately.
fn wait_and_return(lock: RwLock, zk: ZooKeeper) {
    let error = lock.write().timeout(Duration::from_millis(500)).blocking().unwrap_err();
    assert!(matches!(error, Error::Timeout { .. }), "{error}");
    drop((lock, zk));
    std::process::exit(0);
}

/// Releases the lock and exits while the handles still exist, as handles in a `static` do at an exit.
fn release_and_exit(lock: &RwLock) {
    let guard = lock.write().blocking().unwrap();
    say("held");
    pollster::block_on(guard.release()).unwrap();
    std::process::exit(0);
}

/// Drops the handles first and the guard last, and exits.
fn return_with_guard(lock: RwLock, zk: ZooKeeper) {
    let guard = lock.write().blocking().unwrap();
    say("held");
    drop((lock, zk));
    drop(guard);
    std::process::exit(0);
}

// ---------------------------------------------------------------------------------------------------------- The parent

fn start(role: &str, path: &str, session_timeout: Duration) -> Process {
    Process::start(
        module_path!(),
        &format!("{role} {} {path} {}", shared_server().address(), session_timeout.as_millis()),
    )
}

#[support::judged]
async fn a_killed_holder_is_followed_at_its_timeout() {
    let zk = connect(&shared_server().address()).await;
    let lock = lock_at(&zk, "/locks/killed");
    let mut holder = start("hold", "/locks/killed", SHORT);
    assert_eq!(holder.says(), "held");
    let next = writer(&lock);
    line_becomes(&lock, "W+ W-").await;

    holder.signal("KILL");
    let killed = Instant::now();
    let next = granted(next).await;
    let took = killed.elapsed();

    assert!(took < SHORT + TICK * 2 + SLACK, "{took:?}");
    assert!(next.is_held());
    next.release().await.unwrap();
}

#[support::judged]
async fn a_holder_that_released_is_followed_at_once() {
    let zk = connect(&shared_server().address()).await;
    for role in ["drop-and-return", "keep-drop-and-return", "release-and-exit", "return-with-guard"] {
        for round in 0..5 {
            let path = format!("/locks/{role}-{round}");
            let mut holder = start(role, &path, CALM);
            assert_eq!(holder.says(), "held");
            assert!(holder.child.wait().unwrap().success());
            // The limit is far below the session timeout of the process that exited, so the lock is granted because the process
            // gave the lock up.
            let next = within(CALM / 6, role, lock_at(&zk, &path).write()).await.unwrap();
            next.release().await.unwrap();
        }
    }
}

/// A waiter that gives up has no guard, so the drop of the last handle must wait until its node is gone.
#[support::judged]
async fn a_waiter_that_gave_up_leaves_no_node_behind() {
    let zk = connect(&shared_server().address()).await;
    for role in ["wait-and-return", "keep-wait-and-return"] {
        for round in 0..5 {
            let lock = lock_at(&zk, &format!("/locks/{role}-{round}"));
            let held = lock.write().await.unwrap();
            let mut waiter = start(role, lock.path(), CALM);
            assert!(waiter.child.wait().unwrap().success());
            line_becomes(&lock, "W+").await;
            held.release().await.unwrap();
        }
    }
}

#[support::judged]
async fn a_stopped_holder_reports_its_loss_at_once() {
    let zk = connect(&shared_server().address()).await;
    let lock = lock_at(&zk, "/locks/stopped");
    let mut holder = start("watch", "/locks/stopped", SHORT);
    assert_eq!(holder.says(), "held");
    let next = writer(&lock);
    line_becomes(&lock, "W+ W-").await;

    holder.signal("STOP");
    let Ok(next) = tokio::time::timeout(SOON, next).await else {
        let (sessions, watches) = (shared_server().four_letter("dump"), shared_server().four_letter("wchp"));
        panic!("no grant within {SOON:?}; the queue is {}, {sessions} {watches}", line(&lock).await);
    };
    let next = next.expect("the task does not panic").expect("the lock is granted");
    let granted_at = clock();
    let continued = clock();
    holder.signal("CONT");
    let said = tokio::task::spawn_blocking(move || holder.says());
    let said = soon("the holder's no", said).await.unwrap();

    let (last_yes, first_no) = said.split_once(' ').unwrap();
    let (last_yes, first_no): (u64, u64) = (last_yes.parse().unwrap(), first_no.parse().unwrap());
    safe!(last_yes < granted_at, "held {} ns after the next grant", last_yes - granted_at);
    assert!(last_yes < continued && last_yes < first_no);
    assert!(next.is_held());
    next.release().await.unwrap();
}

#[support::judged]
async fn a_holder_stopped_within_its_lease_still_holds() {
    let zk = connect(&shared_server().address()).await;
    let lock = lock_at(&zk, "/locks/paused");
    let mut holder = start("watch", "/locks/paused", CALM);
    assert_eq!(holder.says(), "held");
    let next = writer(&lock);
    line_becomes(&lock, "W+ W-").await;

    holder.signal("STOP");
    holder.signal("CONT");
    assert_eq!(line(&lock).await, "W+ W-");
    assert!(!next.is_finished());
    // The holder dies before it can report a loss: it prints nothing more, and its node is still there.
    holder.signal("KILL");
    assert_eq!(holder.said().next(), None);
    assert!(!next.is_finished());
}
