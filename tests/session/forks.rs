//! A process that forks while it holds a lock. In the child every call fails immediately, and the parent keeps its lock.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use support::forks::{Forks, fork};
use support::process::{Process, role, say};
use support::scene::*;
use support::server::shared_server;
use zk_rwlock::error::SessionEnd;
use zk_rwlock::{ConnectionState, Error, HoldState, Leadership, Loss, RwLock, Semaphore, Shared, ZooKeeper, block_on};

const PATH: &str = "/forks/held";

/// Longer than all calls of the child take if each is refused immediately, and shorter than a single call that times out.
const AT_ONCE: Duration = Duration::from_secs(10);

fn open(zk: &ZooKeeper) -> RwLock {
    RwLock::new(zk, PATH).expect("valid")
}

fn await_file(path: impl AsRef<Path>) {
    let deadline = Instant::now() + SOON;
    while !path.as_ref().exists() {
        assert!(Instant::now() < deadline, "the child has not ended");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn assert_refused<T>(answer: Result<T, Error>) {
    match answer {
        Err(error @ (Error::Closed(SessionEnd::Forked) | Error::Lost(Loss::SessionOver(SessionEnd::Forked)))) => {
            assert!(error.to_string().contains("forked"), "{error}");
        }
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("a call of the child did not fail"),
    }
}

#[test]
fn the_child_process_of_other_tests() {
    let Some(role) = role() else { return };
    match role.split(' ').collect::<Vec<_>>()[..] {
        ["held", server, ended] => fork_once(server, ended),
        ["busy", server, place] => fork_while_busy(server, Path::new(place)),
        _ => panic!("{role}"),
    }
}

/// Forks while a lock is held. The child creates the file `ended` before it ends.
fn fork_once(server: &str, ended: &str) {
    let builder = ZooKeeper::builder().session_timeout(CALM);
    let zk = block_on(builder.clone().connect(server)).expect("the server is reachable");
    let guard = open(&zk).write().blocking().expect("free");
    let kept = RwLock::builder(&zk, "/forks/kept").keep(CALM).build().expect("valid");
    block_on(kept.read().blocking().expect("free").release()).expect("held");
    let written = RwLock::builder(&zk, "/forks/written").keep(CALM).build().expect("valid");
    block_on(written.write().blocking().expect("free").release()).expect("held");
    if fork() {
        let forked = Loss::SessionOver(SessionEnd::Forked);
        assert!(!guard.is_held() && guard.state() == HoldState::Lost { why: forked } && guard.session_left().is_zero());
        assert_eq!(block_on(guard.lost()), forked);
        assert!(matches!(block_on(guard.run(async {})), Err(Error::Lost(loss)) if loss == forked));
        let began = Instant::now();
        let lock = open(&zk);
        assert_refused(lock.read().blocking());
        assert_refused(lock.write().timeout(CALM).blocking());
        assert_refused(lock.try_write().blocking());
        assert_refused(lock.queue().blocking());
        assert_refused(kept.read().blocking());
        assert_refused(written.try_write().blocking());
        assert_refused(written.write().blocking());
        assert_refused(Semaphore::new(&zk, "/forks/permits", 1).expect("valid").acquire().blocking());
        assert_refused(Shared::<u32>::new(&zk, "/forks/value").expect("valid").read().blocking());
        assert_refused(block_on(Leadership::new(&zk, "/forks/leader").expect("valid").lead(|_| async {})));
        assert_refused(block_on(guard.transaction().create("/forks/never", "").commit()));
        assert_refused(block_on(guard.read_node("/forks")));
        assert!(matches!(zk.state(), ConnectionState::Closed), "{}", zk.state());
        drop((guard, kept, written));
        block_on(zk.close());
        drop((lock, zk));
        assert!(began.elapsed() < AT_ONCE, "{:?}", began.elapsed());
        assert_refused(block_on(builder.connect(server)));
        fs::write(ended, "").expect("writable");
        std::process::exit(0);
    }
    await_file(ended);
    assert!(guard.is_held());
    block_on(guard.transaction().commit()).expect("the child has deleted nothing");
    assert_eq!(kept.queue().blocking().expect("readable").members.len(), 1, "the node is no longer kept");
    block_on(guard.release()).expect("held");
    say("held");
}

#[support::judged]
async fn a_forked_child_fails_every_call_and_releases_nothing() {
    let forks = Forks::build();
    let place = tempfile::tempdir().expect("the directory for temporary files is writable");
    let role = format!("held {} {}", shared_server().address(), place.path().join("ended").display());
    let mut parent = Process::start_in(module_path!(), &role, &[forks.environment()]);
    assert_eq!(parent.says(), "held");
    let lock = lock_at(&connect(&shared_server().address()).await, PATH);
    drop(soon("the lock", lock.write()).await.expect("the parent has released the lock"));
}

/// The number of forks of a busy parent. At each fork, the other threads are at other lines of code.
const FORKS: u32 = 40;

/// Forks again and again while other threads use a kept node. Each child creates a file in `place` before it ends.
fn fork_while_busy(server: &str, place: &Path) {
    let zk = block_on(ZooKeeper::builder().session_timeout(CALM).connect(server)).expect("the server is reachable");
    let lock = RwLock::builder(&zk, "/forks/busy").keep(CALM).max_hold(CALM).build();
    let lock = Arc::new(lock.expect("valid"));
    let guard = lock.read().blocking().expect("free");
    for _ in 0..2 {
        let lock = Arc::clone(&lock);
        std::thread::spawn(move || {
            loop {
                drop(lock.read().blocking().expect("kept"));
            }
        });
    }
    for number in 0..FORKS {
        let ended = place.join(number.to_string());
        if fork() {
            // A child that hangs must not outlive the test.
            std::thread::spawn(|| {
                std::thread::sleep(AT_ONCE);
                std::process::exit(1);
            });
            assert!(guard.session_left().is_zero() && !guard.is_held());
            drop(guard);
            fs::write(ended, "").expect("writable");
            std::process::exit(0);
        }
        await_file(ended);
    }
    assert!(guard.is_held());
    say("done");
}

#[support::judged]
async fn a_forked_child_waits_for_no_thread_of_its_parent() {
    let forks = Forks::build();
    let place = tempfile::tempdir().expect("the directory for temporary files is writable");
    let role = format!("busy {} {}", shared_server().address(), place.path().display());
    let mut parent = Process::start_in(module_path!(), &role, &[forks.environment()]);
    assert_eq!(parent.says(), "done");
}
