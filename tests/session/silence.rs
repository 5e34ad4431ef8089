//! A holder stands still, or its requests do not arrive, and soon afterwards its server is cut off from the leader. Then only
//! that follower knows that the session is alive. The leader may end the session although a quorum has acknowledged one of its
//! requests.
//!
//! `SILENCE_ROUNDS` sets the number of holders; `make soak` sets it high.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use support::ensemble::Ensemble;
use support::safe;
use support::scene::lock_at;
use support::standstill::Stint;
use support::wire::Proxy;
use support::witness::Witness;
use zk_rwlock::ZooKeeper;
use zk_rwlock::coordinator::Coordinator;

/// Runs rounds in which a holder stands still, or its requests do not arrive, for a while. Afterwards its follower is cut off
/// from the leader, so only that follower knows that the session is alive.
async fn rounds_of_silence(timeout: Duration) {
    const TICK: Duration = Duration::from_millis(500);
    const TOGETHER: u64 = 8;
    let ensemble = tokio::task::spawn_blocking(Ensemble::start).await.expect("the ensemble starts");
    let (follower, leader) = (ensemble.followers()[0], ensemble.leader());
    // The observer uses the client crate directly, because the test stops the library's thread.
    let observer = zookeeper_client::Client::connector().with_session_timeout(Duration::from_secs(20));
    let observer = observer.connect(&ensemble.server(leader).address()).await.expect("reachable");
    let mode = zookeeper_client::CreateMode::EphemeralSequential.with_acls(zookeeper_client::Acls::anyone_all());
    let mut random = Seeded(timeout.as_micros() as u64);
    let rounds = std::env::var("SILENCE_ROUNDS").ok().and_then(|rounds| rounds.parse().ok());
    let batches = rounds.unwrap_or(2 * TOGETHER).div_ceil(TOGETHER);
    let (mut least, mut early, mut starved) = (Duration::MAX, 0, 0);
    let stint = Stint::begin(batches as u32 * (30 * TICK + 10 * timeout));
    for batch in 0..batches {
        let mut holders = Vec::new();
        let mut number = 0;
        while holders.len() < TOGETHER as usize {
            number += 1;
            let proxy = Proxy::start(ensemble.server(follower).address());
            let builder = ZooKeeper::builder().session_timeout(timeout).tick_time(TICK).connect_timeout(10 * TICK);
            let zk = builder.connect(&proxy.address()).await.expect("reachable");
            let lock = lock_at(&zk, &format!("/silence-{}/{batch}-{number}", timeout.as_millis()));
            let guard = Arc::new(lock.write().await.expect("the lock is free"));
            // A write comes before the read. The observer's server may lag, and even a leader may reply to a `sync` before it
            // has applied the create of the node, which the follower has applied and answered.
            observer.create("/observed-", &[], &mode).await.expect("the observer's session goes on");
            let node = match observer.get_and_watch_data(&guard.node_path()).await {
                Ok((_, _, node)) => node,
                // On a busy machine, a session with a timeout of one second may expire before its round begins.
                Err(zookeeper_client::Error::NoNode) => {
                    safe!(!guard.is_held(), "the node is gone, and its holder says that it holds");
                    starved += 1;
                    stint.is_over(false, || format!("{starved} sessions were lost before their round"));
                    continue;
                }
                Err(error) => panic!("the observer fails: {error}"),
            };
            let gone = tokio::spawn(async move {
                node.changed().await;
                Instant::now()
            });
            holders.push((proxy, zk, Witness::of(&guard), gone));
            tokio::time::sleep(timeout / 5 / TOGETHER as u32).await;
        }
        tokio::time::sleep(timeout.mul_f64(random.share())).await;
        let silence = timeout.mul_f64(0.7 * random.share());
        if batch % 2 == 0 {
            // All sessions of a process share one thread. This task blocks that thread, as SIGSTOP would.
            let session = Arc::clone(holders[0].1.session_slot(0).await.expect("alive").session());
            session.spawn(Box::pin(async move { thread::sleep(silence) }));
            tokio::time::sleep(silence).await;
        } else {
            holders.iter().for_each(|(proxy, ..)| proxy.black_hole());
            tokio::time::sleep(silence).await;
            holders.iter().for_each(|(proxy, ..)| proxy.heal());
        }
        // At some of these moments, the next heartbeat has been acknowledged, but the follower has not yet reported the session
        // in its answer to the leader's ping.
        let after = TICK.mul_f64(1.5 * random.share());
        tokio::time::sleep(after).await;
        ensemble.cut_from_leader(follower);
        for (_proxy, _zk, witness, gone) in holders {
            let gone = tokio::time::timeout(10 * timeout + Duration::from_secs(10), gone).await;
            let gone = gone.expect("the leader gives the session up").expect("no panic");
            let held = witness.last_held();
            safe!(held < gone, "{silence:?}, cut {after:?} later: held for {:?} too long", held - gone);
            least = least.min(gone - held);
            early += 1;
        }
        ensemble.heal_links();
        let calm = Instant::now() + Duration::from_secs(30);
        while !ensemble.is_whole() {
            assert!(Instant::now() < calm, "the follower does not come back");
            tokio::time::sleep(TICK).await;
        }
    }
    println!(
        "T = {timeout:?}: {early} holders said lost in time, the latest by {least:?}; {starved} more lost their session before"
    );
}

/// A random generator: SplitMix64.
struct Seeded(u64);

impl Seeded {
    fn share(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// The rounds of the two session timeouts run one after the other, because a blocked thread stops all sessions of the process.
#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_on_a_cut_follower_loses_the_lock_in_time() {
    rounds_of_silence(Duration::from_secs(4)).await;
    // The session timeout is two ticks, the shortest that servers grant.
    rounds_of_silence(Duration::from_secs(1)).await;
}
