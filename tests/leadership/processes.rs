//! Leaders that are killed, are stopped, or exit. Each leader is a child process: see [`support::process`].

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use tokio::task::spawn_blocking;
use zk_rwlock::leadership::Term;
use zk_rwlock::{Leadership, ZooKeeper};

use support::candidate::Candidate;
use support::process::{Process, role, say};
use support::scene::{CALM, becomes_empty, connect, connect_with, eventually, lock_at, soon};
use support::server::shared_server;

/// The session timeout of a leader that is killed.
const SHORT: Duration = Duration::from_secs(2);

fn leadership(zk: &ZooKeeper, path: &str) -> Leadership {
    let host = format!("pid-{}", std::process::id());
    Leadership::builder(zk, path).lock(|lock| lock.host(host)).pause(Duration::from_millis(10)).build().expect("valid")
}

/// The child process: leads, prints the number of its term, and then does what its role says.
#[test]
fn the_child_process_of_other_tests() {
    let Some(role) = role() else { return };
    let mut words = role.split(' ');
    let mut word = || words.next().expect("a role, a server, a path and a session timeout");
    let (role, server, path) = (word().to_owned(), word(), word());
    let session_timeout = Duration::from_millis(word().parse().expect("a number of milliseconds"));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let zk = connect_with(server, session_timeout).await;
        let leadership = leadership(&zk, path);
        let seen = Arc::new(AtomicI64::new(0));
        if role == "asks" {
            let (asked, seen) = (leadership.clone(), Arc::clone(&seen));
            std::thread::spawn(move || asks(&asked, &seen));
        }
        let work = |term: Term| {
            let (role, leadership, seen) = (role.clone(), leadership.clone(), Arc::clone(&seen));
            async move {
                // The thread in `asks` reports the end of a term only if it has seen that term. So the work waits until
                // that thread has seen the term.
                while role == "asks" && seen.load(Ordering::Acquire) != term.number() {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                say(&format!("leads {}", term.number()));
                if role == "stops" {
                    leadership.stop().await;
                }
                pending::<()>().await
            }
        };
        leadership.lead(work).await.unwrap();
        // The process exits without closing the client, as at the end of `main`.
        std::process::exit(0);
    });
}

/// Asks without pause whether this process leads. Records the current term, and prints the number of each term when
/// that term is over.
fn asks(leadership: &Leadership, seen: &AtomicI64) {
    let mut led = None;
    loop {
        match (leadership.term(), led) {
            (Some(term), _) => {
                led = Some(term.number());
                seen.store(term.number(), Ordering::Release);
            }
            (None, Some(term)) => {
                say(&format!("no {term}"));
                led = None;
            }
            (None, None) => {}
        }
        std::hint::spin_loop();
    }
}

/// Starts a child that leads. Returns the child and the number of its term.
async fn child(role: &str, path: &str, session_timeout: Duration) -> (Process, i64) {
    let role = format!("{role} {} {path} {}", shared_server().address(), session_timeout.as_millis());
    let start = spawn_blocking(move || {
        let mut child = Process::start(module_path!(), &role);
        let term = leads(&child.says());
        (child, term)
    });
    soon("the child leads", start).await.unwrap()
}

fn leads(words: &str) -> i64 {
    let term = words.strip_prefix("leads ").unwrap_or_else(|| panic!("the child says {words:?}"));
    term.parse().expect("the number of a term")
}

#[support::judged]
async fn a_killed_leader_is_followed_by_another() {
    const PATH: &str = "/leaders/killed";
    let zk = connect(&shared_server().address()).await;
    let (leader, term) = child("leads", PATH, SHORT).await;
    let mut next = Candidate::campaigns(leadership(&zk, PATH));
    let lock = lock_at(&zk, PATH);
    eventually("the waiter waits", || async { lock.queue().await.unwrap().waiters().count() == 1 }).await;
    let seen = next.leadership.leader().await.unwrap().expect("the child leads");
    assert_eq!((seen.term, seen.pid), (term, Some(leader.child.id())));
    let mut changes = next.leadership.changes();
    assert_eq!(changes.next().await.unwrap().unwrap().map(|leader| leader.term), Some(term));
    leader.signal("KILL");
    let second = next.leads().await;
    assert!(second.number() > term);
    assert_eq!(changes.next().await.unwrap().unwrap().map(|leader| leader.term), Some(second.number()));
    soon("the stop", next.leadership.stop()).await;
    becomes_empty(&zk, PATH).await;
}

#[support::judged]
async fn a_leader_that_exits_is_followed_at_once() {
    const PATH: &str = "/leaders/ended";
    let zk = connect(&shared_server().address()).await;
    let mut last = 0;
    for _ in 0..3 {
        // The session outlives the test, so the term does not end by itself.
        let (_child, term) = child("stops", PATH, CALM).await;
        let mut next = Candidate::campaigns(leadership(&zk, PATH));
        let second = next.leads().await.number();
        assert!(last < term && term < second);
        soon("the stop", next.leadership.stop()).await;
        last = second;
    }
    becomes_empty(&zk, PATH).await;
}

#[support::judged]
async fn a_stopped_leader_loses_and_campaigns_again() {
    const PATH: &str = "/leaders/stopped";
    let zk = connect(&shared_server().address()).await;
    let (mut leader, term) = child("asks", PATH, SHORT).await;
    let mut next = Candidate::campaigns(leadership(&zk, PATH));
    leader.signal("STOP");
    let second = next.leads().await.number();
    leader.signal("CONT");
    let answer = spawn_blocking(move || (leader.says(), leader));
    let (no, mut leader) = soon("the answer", answer).await.unwrap();
    assert_eq!(no, format!("no {term}"));
    let lock = lock_at(&zk, PATH);
    eventually("the candidate campaigns again", || async { lock.queue().await.unwrap().waiters().count() == 1 }).await;
    soon("the stop", next.leadership.stop()).await;
    let again = spawn_blocking(move || (leader.says(), leader));
    let (words, _leader) = soon("the next term", again).await.unwrap();
    assert!(leads(&words) > second);
}
