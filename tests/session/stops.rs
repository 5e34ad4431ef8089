//! A process that is stopped while its work waits for a reply. The reply arrives during the stop, and another contender holds the
//! lock when the process continues.
//!
//! The children are this test binary itself: see [`support::process`].

use std::future::poll_fn;
use std::io::Write;
use std::net::TcpListener;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use support::process::{Process, role, say};
use support::safe;
use support::scene::*;
use support::server::shared_server;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use zk_rwlock::{Leadership, Mode, MultiLock, Semaphore, ZooKeeper};

/// The session timeout of the child. It is short, because each round stops the child until the server has ended its session.
const SHORT: Duration = Duration::from_secs(1);

const ROUNDS: usize = 10;

/// Returns the time of the monotonic clock, in nanoseconds. All processes of this machine share that clock.
fn clock() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

/// Connects to the parent and waits for a byte from it. Stores the time of the last poll in `polled`.
async fn answer(parent: String, polled: &AtomicU64) {
    let work = async {
        let mut parent = TcpStream::connect(parent).await.expect("the parent listens");
        say("works");
        parent.read_u8().await.expect("the parent answers");
    };
    let mut work = pin!(work);
    poll_fn(|context| {
        polled.store(clock(), Ordering::SeqCst);
        work.as_mut().poll(context)
    })
    .await;
}

/// Runs `work` once under a guard, several locks, a permit or leadership, depending on the role. Returns whether the output of
/// the work was returned. If the term of a leader ends during the work, its next term returns false.
async fn works(role: &str, zk: &ZooKeeper, path: &str, work: impl Future<Output = ()>) -> bool {
    match role {
        "guard" => lock_at(zk, path).write().await.expect("free").run(work).await.is_ok(),
        "several" => {
            let second = lock_at(zk, &format!("{path}-and-another"));
            let both = MultiLock::new([(&lock_at(zk, path), Mode::Write), (&second, Mode::Read)]).expect("two locks");
            both.lock().await.expect("free").run(work).await.is_ok()
        }
        "permit" => {
            let semaphore = Semaphore::new(zk, path, 1).expect("valid");
            semaphore.acquire().await.expect("free").run(work).await.is_ok()
        }
        _ => {
            let mut work = Some(work);
            let in_a_term = |_| {
                let work = work.take();
                async {
                    let is_first = work.is_some();
                    if let Some(work) = work {
                        work.await;
                    }
                    is_first
                }
            };
            let leadership = Leadership::new(zk, path).expect("valid");
            leadership.lead(in_a_term).await.expect("it leads again").expect("it was not stopped")
        }
    }
}

/// Tries to take the lock again and again until `mark`, a lock of the client's first session, is lost, and then once more. Prints
/// an error or "granted".
async fn tries(zk: &ZooKeeper, path: &str) {
    let mark = lock_at(zk, &format!("{path}-mark")).write().await.expect("free");
    let lock = lock_at(zk, path);
    say("works");
    loop {
        let is_old = mark.is_held();
        match lock.try_write().await {
            Ok(guard) => drop(guard),
            Err(error) => return say(&format!("{error}: {error:?}")),
        }
        if !is_old {
            return say("granted");
        }
    }
}

#[test]
fn the_child_process_of_other_tests() {
    let Some(role) = role() else { return };
    let mut words = role.split(' ');
    let mut word = || words.next().expect("a role, a server, a path and the parent's address").to_owned();
    let (role, server, path, parent) = (word(), word(), word(), word());
    let runtime = tokio::runtime::Runtime::new().expect("threads");
    runtime.block_on(async {
        let zk = connect_with(&server, SHORT).await;
        for _ in 0..ROUNDS {
            if role == "tries" {
                tries(&zk, &path).await;
                continue;
            }
            let polled = AtomicU64::new(0);
            let is_done = works(&role, &zk, &path, answer(parent.clone(), &polled)).await;
            say(&format!("{is_done} {}", polled.into_inner()));
        }
    });
}

/// Stops the child of this role during its work, in each round. During each stop, the acquisition `next` is granted, because the
/// ensemble ends the child's session.
async fn stop_during_work<G>(role: &str, path: &str, next: impl AsyncFn() -> G) {
    let parent = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = parent.local_addr().expect("bound");
    let mut child = Process::start(module_path!(), &format!("{role} {} {path} {address}", shared_server().address()));
    for round in 0..ROUNDS {
        assert_eq!(child.says(), "works", "round {round}");
        let (mut answer, _) = parent.accept().expect("the child has connected");
        child.signal("STOP");
        let next = soon("the next grant", next()).await;
        answer.write_all(b"x").expect("the child reads it later");
        let continued = clock();
        child.signal("CONT");
        drop(next);
        let said = child.says();
        let (is_done, polled) = said.split_once(' ').expect("two words");
        let polled: u64 = polled.parse().expect("a moment");
        safe!(is_done == "false", "round {round}: the output of the work was returned");
        safe!(polled < continued, "round {round}: polled {} ns after the next grant", polled - continued);
    }
}

#[support::judged]
async fn a_stopped_process_ends_its_work_under_a_guard() {
    let zk = connect(&shared_server().address()).await;
    let lock = lock_at(&zk, "/stops/guard");
    stop_during_work("guard", "/stops/guard", async || lock.write().await.expect("free in time")).await;
}

#[support::judged]
async fn a_stopped_process_ends_its_work_under_several_locks() {
    let zk = connect(&shared_server().address()).await;
    let lock = lock_at(&zk, "/stops/several");
    stop_during_work("several", "/stops/several", async || lock.write().await.expect("free in time")).await;
}

#[support::judged]
async fn a_stopped_process_ends_its_work_under_a_permit() {
    let zk = connect(&shared_server().address()).await;
    let semaphore = Semaphore::new(&zk, "/stops/permit", 1).expect("valid");
    stop_during_work("permit", "/stops/permit", async || semaphore.acquire().await.expect("free in time")).await;
}

#[support::judged]
async fn a_stopped_process_ends_the_work_of_its_term() {
    let zk = connect(&shared_server().address()).await;
    let lock = lock_at(&zk, "/stops/term");
    stop_during_work("term", "/stops/term", async || lock.write().await.expect("free in time")).await;
}

#[support::judged]
async fn a_try_after_a_stop_uses_a_fresh_session() {
    let zk = connect(&shared_server().address()).await;
    let mark = lock_at(&zk, "/stops/tries-mark");
    let mut child = Process::start(module_path!(), &format!("tries {} /stops/tries -", shared_server().address()));
    for round in 0..ROUNDS {
        assert_eq!(child.says(), "works", "round {round}");
        // Each round stops the child at another moment of a call.
        tokio::time::sleep(Duration::from_millis(7 * round as u64)).await;
        child.signal("STOP");
        let next = soon("the next grant", mark.write()).await.expect("free in time");
        child.signal("CONT");
        drop(next);
        assert_eq!(child.says(), "granted", "round {round}");
    }
}
