//! The connections of a session: when the library tells of a break, how often it tries, and what it finds on an ensemble
//! that has gone back to an earlier state.

use std::time::{Duration, Instant};

use support::events;
use support::rules::{Close, Rule};
use support::scene::*;
use support::server::{Server, shared_server};
use support::wire::{Frames, Op, Proxy};
use zk_rwlock::error::SessionEnd;
use zk_rwlock::{Loss, ZooKeeper};

const LONG: Duration = Duration::from_secs(30);

/// The events that the connections of this client's session have logged.
struct Told(String);

impl Told {
    async fn of(zk: &ZooKeeper) -> Told {
        Told(format!("session=\"{:x}\"", session(zk).await.id()))
    }

    fn with(&self, words: &str) -> Vec<String> {
        events::with(&[&self.0, words])
    }

    /// Waits until there are as many events of a loss, and of a return.
    async fn become_of_breaks(&self, lost: usize, back: usize) {
        let are_there = || async {
            let count = |words| self.with(words).len();
            (count("INFO message=the connection is lost "), count("INFO message=the connection is back "))
                == (lost, back)
        };
        eventually(&format!("{lost} losses and {back} returns are told"), are_there).await;
    }
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_break_is_told_once_when_it_begins_and_once_when_it_ends() {
    events::collect();
    let proxy = Proxy::start(shared_server().address());
    let zk = connect_with(&proxy.address(), LONG).await;
    let _held = soon("free", lock_at(&zk, "/connections/told").write()).await.expect("free");
    let told = Told::of(&zk).await;
    proxy.disconnect();
    told.become_of_breaks(1, 1).await;
    let (lost, back) = (told.with("the connection is lost "), told.with("the connection is back "));
    let server = format!("server=\"{}\"", proxy.address());
    assert!(lost[0].contains(&server) && lost[0].contains("why=it broke"), "{lost:?}");
    assert!(back[0].contains(&server) && back[0].contains("after="), "{back:?}");

    proxy.cut();
    let attempt = "DEBUG message=an attempt to resume the session has failed";
    eventually("some attempts are told", || async { told.with(attempt).len() >= 3 }).await;
    assert!(told.with(attempt).iter().all(|it| it.contains(&server) && it.contains("why=Refused")));
    told.become_of_breaks(2, 1).await;
    proxy.heal();
    told.become_of_breaks(2, 2).await;
}

/// Counts the attempts of a session on a server that closes each connection over a request.
async fn assert_attempts_on(path: &str, closed_over: Op) {
    events::collect();
    const TIMEOUT: Duration = Duration::from_secs(20);
    let proxy = Proxy::start(shared_server().address());
    let zk = connect_with(&proxy.address(), TIMEOUT).await;
    let held = soon("free", lock_at(&zk, path).write()).await.expect("free");
    let told = Told::of(&zk).await;
    let before = proxy.arrivals(Op::Handshake).len();
    proxy.apply(Rule::on(Frames::requests(closed_over)).and_all_later().close(0, Close::Fin));
    let began = Instant::now();
    proxy.disconnect();
    let attempts = || proxy.arrivals(Op::Handshake).len() - before;
    eventually("some attempts", || async { attempts() >= 6 }).await;
    let most = began.elapsed().div_duration_f64(TIMEOUT / 40) as usize + 2;
    assert!(attempts() <= most, "{} attempts, of at most {most}", attempts());
    told.become_of_breaks(1, 0).await;
    proxy.forget_rules();
    told.become_of_breaks(1, 1).await;
    held.release().await.expect("held");
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_break_before_they_are_ready_come_at_most_forty_a_session_timeout() {
    assert_attempts_on("/connections/ping", Op::Ping).await;
    assert_attempts_on("/connections/check", Op::Multi).await;
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_ends_if_one_of_its_watches_cannot_be_armed_again() {
    let proxy = Proxy::start(shared_server().address());
    let zk = connect_with(&proxy.address(), Duration::from_secs(1)).await;
    let held = soon("free", lock_at(&zk, "/connections/armed").write()).await.expect("free");
    let id = session(&zk).await.id();
    // A watch is armed again by a read of the node, without its data.
    let node = held.node_path();
    proxy.apply(Rule::on(Frames::replies(Op::Exists).about(&node)).and_all_later().close(0, Close::Fin));
    eventually("a watch on the node", || async {
        proxy.requests().iter().any(|(op, path)| *op == Op::GetData && *path == node)
    })
    .await;
    proxy.disconnect();
    soon("the loss", held.lost()).await;
    let next = soon("a new session", lock_at(&zk, "/connections/armed").write()).await.expect("free");
    assert!(session(&zk).await.id() != id && next.is_held());
}

/// The servers do not refuse a client that has seen newer transactions than they have, because a session is resumed
/// with a zxid of 0.
#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_an_older_ensemble_still_knows_ends_when_its_node_is_gone() {
    let server = Server::start();
    let zk = connect_with(&server.address(), LONG).await;
    let kept = soon("free", lock_at(&zk, "/connections/kept").write()).await.expect("free");
    server.back_up();
    let gone = soon("free", lock_at(&zk, "/connections/gone").write()).await.expect("free");
    let id = session(&zk).await.id();
    server.restore();
    soon("the loss", gone.lost()).await;
    assert_eq!(soon("the loss", kept.lost()).await, Loss::SessionOver(SessionEnd::Expired));
    let next = soon("a new session", lock_at(&zk, "/connections/kept").write()).await.expect("free");
    assert!(session(&zk).await.id() != id && next.is_held());
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_an_older_ensemble_still_knows_ends_at_its_next_node() {
    let server = Server::start();
    let zk = connect_with(&server.address(), LONG).await;
    let kept = soon("free", lock_at(&zk, "/connections/kept").write()).await.expect("free");
    let other = lock_at(&zk, "/connections/other");
    soon("free", other.write()).await.expect("free").release().await.expect("held");
    server.back_up();
    for _ in 0..20 {
        soon("free", other.write()).await.expect("free").release().await.expect("held");
    }
    let id = session(&zk).await.id();
    server.restore();
    // The node of this hold, and the session, are as the backup has them.
    let next = soon("a new session", other.write()).await.expect("free");
    assert_eq!(soon("the loss", kept.lost()).await, Loss::SessionOver(SessionEnd::Expired));
    assert!(session(&zk).await.id() != id && next.is_held());
}
