//! A server that stands still, as to collect garbage: with a read timeout that is long enough it costs no connection, and without
//! it no commit its outcome whose versions are named.

use std::time::Duration;

use support::scene::*;
use support::server::Server;
use zk_rwlock::ZooKeeper;
use zk_rwlock::coordinator::Outcome;

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_of_half_the_read_timeout_costs_no_commit_its_outcome() {
    let server = Server::start();
    let stop = Duration::from_millis(1500);
    let builder = ZooKeeper::builder().session_timeout(Duration::from_secs(10)).read_timeout(2 * stop);
    let zk = builder.connect(&server.address()).await.expect("reachable");
    let guard = lock_at(&zk, "/pauses/lock").write().await.expect("free");
    for round in 0..3 {
        // At another moment between two pings.
        tokio::time::sleep(stop / 5 * round).await;
        server.pause();
        let path = format!("/pauses/{round}");
        let commit = soon("the commit", guard.transaction().create(&path, "").commit());
        let goes_on = async {
            tokio::time::sleep(stop).await;
            server.resume();
        };
        let (outcome, ()) = tokio::join!(commit, goes_on);
        assert!(outcome.is_ok(), "{round}: {outcome:?}");
    }
    assert!(guard.is_held());
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_that_costs_the_connection_costs_no_commit_its_outcome_that_names_a_version() {
    let server = Server::start();
    let zk = ZooKeeper::builder().session_timeout(Duration::from_secs(10)).connect(&server.address()).await;
    let guard = lock_at(&zk.expect("reachable"), "/pauses/named").write().await.expect("free");
    guard.transaction().create("/pauses/node", "").commit().await.expect("held");
    guard.transaction().commit().await.expect("held");
    for (version, stop) in (0..).zip([900, 1500].map(Duration::from_millis)) {
        server.pause();
        let commit = guard.transaction().set_version("/pauses/node", format!("{version}"), version);
        let goes_on = async {
            tokio::time::sleep(stop).await;
            server.resume();
        };
        let (outcome, ()) = tokio::join!(soon("the commit", commit.commit()), goes_on);
        assert_eq!(outcome.expect("it is found out"), [Outcome::Set { version: version + 1 }], "{stop:?}");
        guard.transaction().commit().await.expect("held");
    }
}
