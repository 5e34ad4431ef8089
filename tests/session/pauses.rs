//! A server that stands still, as during a garbage collection. A stop of up to half the read timeout breaks no connection. After
//! a longer stop, no commit is in doubt if the commit names the versions of its nodes.
//!
//! A subscriber serves a whole process, so the logs are checked in a child process, which is this test binary itself: see
//! [`support::process`].

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use support::process::{Process, role, say};
use support::scene::*;
use support::server::Server;
use support::wire::{Frames, Op, Proxy, Rule};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};
use zk_rwlock::ZooKeeper;
use zk_rwlock::coordinator::Outcome;

/// The session timeout. With this timeout, a stop of [`STOP`] breaks no connection.
const TIMEOUT: Duration = Duration::from_secs(10);
const STOP: Duration = Duration::from_millis(1500);

/// A subscriber that prints the events of the levels `info`, `warn` and `error`, once [`HEARS`] is set.
struct Loud;

static HEARS: AtomicBool = AtomicBool::new(false);

impl Subscriber for Loud {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() < Level::DEBUG
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        if HEARS.load(Ordering::SeqCst) {
            say(&format!("{event:?}"));
        }
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// The child process: commits while the server stands still, and prints the outcomes.
#[test]
fn the_child_process_of_other_tests() {
    let Some(role) = role() else { return };
    tracing::subscriber::set_global_default(Loud).expect("the first");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let server = Server::start();
        let zk = connect_with(&server.address(), TIMEOUT).await;
        let guard = lock_at(&zk, "/pauses/loud").write().await.expect("free");
        HEARS.store(true, Ordering::SeqCst);
        for round in 0..role.parse().unwrap() {
            // Each round stops the server at another moment between two pings.
            tokio::time::sleep(STOP / 5 * (round % 5)).await;
            server.pause();
            let path = format!("/pauses/loud-{round}");
            let commit = soon("the commit", guard.transaction().create(&path, "").commit());
            let (outcome, ()) = tokio::join!(commit, goes_on(&server, STOP));
            say(&format!("{:?}", outcome.map(|outcomes| outcomes.len())));
        }
        HEARS.store(false, Ordering::SeqCst);
        say(&format!("{}", guard.is_held()));
    });
}

async fn goes_on(server: &Server, after: Duration) {
    tokio::time::sleep(after).await;
    server.resume();
}

#[support::judged]
async fn a_stop_of_a_seventh_leaves_no_commit_in_doubt() {
    let rounds = 3;
    let mut child = Process::start(module_path!(), &rounds.to_string());
    let said: Vec<_> = tokio::task::spawn_blocking(move || child.said().collect()).await.expect("no panic");
    let mut expected = vec!["Ok(1)".to_owned(); rounds];
    expected.push("true".to_owned());
    assert_eq!(said, expected);
}

/// The server stops for so long that the client closes the connection and reconnects.
#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_of_two_fifths_of_the_timeout_costs_no_lock() {
    let server = Server::start();
    let builder = ZooKeeper::builder().session_timeout(TIMEOUT).tick_time(TIMEOUT / 5);
    let zk = builder.connect(&server.address()).await.expect("reachable");
    let guard = lock_at(&zk, "/pauses/long").write().await.expect("free");
    for round in 0..2 {
        tokio::time::sleep(TIMEOUT / 10 * round).await;
        server.pause();
        goes_on(&server, TIMEOUT * 2 / 5).await;
        assert!(tokio::time::timeout(TIMEOUT / 2, guard.lost()).await.is_err(), "round {round}: the lock was lost");
    }
    guard.transaction().commit().await.expect("held");
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_of_half_the_read_timeout_settles_commits() {
    let server = Server::start();
    let stop = STOP;
    let builder = ZooKeeper::builder().session_timeout(TIMEOUT).read_timeout(2 * stop);
    let zk = builder.connect(&server.address()).await.expect("reachable");
    let guard = lock_at(&zk, "/pauses/lock").write().await.expect("free");
    for round in 0..3 {
        // Each round stops the server at another moment between two pings.
        tokio::time::sleep(stop / 5 * round).await;
        server.pause();
        let path = format!("/pauses/{round}");
        let commit = soon("the commit", guard.transaction().create(&path, "").commit());
        let (outcome, ()) = tokio::join!(commit, goes_on(&server, stop));
        assert!(outcome.is_ok(), "{round}: {outcome:?}");
    }
    assert!(guard.is_held());
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_with_a_disconnect_settles_versioned_commits() {
    let server = Server::start();
    let builder = ZooKeeper::builder().session_timeout(TIMEOUT).read_timeout(TIMEOUT / 12);
    let zk = builder.connect(&server.address()).await;
    let guard = lock_at(&zk.expect("reachable"), "/pauses/named").write().await.expect("free");
    guard.transaction().create("/pauses/node", "").commit().await.expect("held");
    guard.transaction().commit().await.expect("held");
    for (version, stop) in (0..).zip([900, 1500].map(Duration::from_millis)) {
        server.pause();
        let commit = guard.transaction().set_version("/pauses/node", format!("{version}"), version);
        let (outcome, ()) = tokio::join!(soon("the commit", commit.commit()), goes_on(&server, stop));
        assert_eq!(outcome.expect("the outcome is settled"), [Outcome::Set { version: version + 1 }], "{stop:?}");
        guard.transaction().commit().await.expect("held");
    }
}

/// The time limit of one client's attempts to connect must not close the connection of another client of the process.
#[support::judged]
async fn an_impatient_client_costs_another_client_no_lock() {
    let server = Server::start();
    let proxy = Proxy::start(server.address());
    let of = |timeout| ZooKeeper::builder().session_timeout(timeout).connect(proxy.address());
    let [sooner, other] = [of(TIMEOUT / 2).await.unwrap(), of(TIMEOUT).await.unwrap()];
    drop(lock_at(&sooner, "/pauses/sooner").write().await.unwrap());
    let held = lock_at(&other, "/pauses/later").write().await.unwrap();
    // An attempt to connect may take a twelfth of the client's session timeout. This delay is too long for the first client and
    // short enough for the second.
    proxy.apply(Rule::on(Frames::replies(Op::Handshake)).and_all_later().delay(TIMEOUT / 20));
    proxy.disconnect();
    let lost = tokio::time::timeout(TIMEOUT, held.lost()).await;
    assert!(lost.is_err(), "{lost:?}");
}

/// Short attempts to connect end before the late reply to the handshake. A longer attempt gets the reply. Afterwards the server
/// answers other requests quickly, so the client keeps the session.
#[support::judged]
async fn a_slow_handshake_alone_prevents_no_session() {
    let server = Server::start();
    let proxy = Proxy::start(server.address());
    proxy.apply(Rule::on(Frames::replies(Op::Handshake)).and_all_later().delay(TIMEOUT / 6));
    let connected = ZooKeeper::builder().session_timeout(TIMEOUT).connect(proxy.address()).await;
    connected.expect("its second patient session is kept");
}
