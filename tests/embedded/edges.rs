//! Both sides of every bound of time: a short time before its end, and a short time after.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::time::Duration;

use support::hindered::LateCreate;
use support::polled::now;
use tokio::time::{advance, sleep};
use tokio_test::task;
use zk_rwlock::{Leadership, Memory, RwLock};

const PATH: &str = "/edges/lock";

/// The timeout of every session of an embedded ensemble.
const SESSION_TIMEOUT: Duration = Duration::from_secs(10);

const MINUTE: Duration = Duration::from_secs(60);

fn lock(zk: &Memory) -> RwLock {
    RwLock::new(zk, PATH).expect("valid")
}

/// Returns whether a bound still applies after this time.
type Probe = fn(Duration) -> Pin<Box<dyn Future<Output = bool>>>;

/// The bounds: in words, how long each applies, and its probe.
const BOUNDS: [(&str, Duration, Probe); 7] = [
    ("a create whose answer was lost may be carried out late", Duration::from_secs(100), |after| {
        Box::pin(is_late_create_removed(after))
    }),
    ("a kept node may be idle", MINUTE, |after| Box::pin(is_idle_node_there(after))),
    ("a lock may be held", MINUTE, |after| Box::pin(is_held(after))),
    ("an acquisition waits", MINUTE, |after| Box::pin(is_waiting(after))),
    ("work is done once", MINUTE, |after| Box::pin(is_work_done(after))),
    ("a candidate pauses after a short term", MINUTE, |after| Box::pin(is_pausing(after, Duration::ZERO))),
    ("a term counts as short", MINUTE, |after| Box::pin(is_pausing(Duration::ZERO, after))),
];

async fn is_late_create_removed(after: Duration) -> bool {
    let memory = Memory::new();
    let _holder = lock(&memory).write().await.expect("free");
    let late = LateCreate::of_a_timeout(&memory, PATH).await;
    sleep(after).await;
    late.arrives().await;
    sleep(SESSION_TIMEOUT / 2).await;
    memory.children(PATH).len() == 1
}

async fn is_idle_node_there(after: Duration) -> bool {
    let zk = Memory::new();
    let lock = RwLock::builder(&zk, PATH).keep(MINUTE).build().expect("valid");
    drop(lock.write().await.expect("free"));
    sleep(after).await;
    !zk.children(PATH).is_empty()
}

async fn is_held(after: Duration) -> bool {
    let lock = RwLock::builder(&Memory::new(), PATH).max_hold(MINUTE).build().expect("valid");
    let guard = lock.write().await.expect("free");
    sleep(after).await;
    guard.is_held()
}

async fn is_waiting(after: Duration) -> bool {
    let zk = Memory::new();
    let _held = lock(&zk).write().await.expect("free");
    let mut waits = task::spawn(lock(&zk.connect()).write().timeout(MINUTE).into_future());
    assert!(waits.poll().is_pending());
    advance(after).await;
    waits.poll().is_pending()
}

async fn is_work_done(after: Duration) -> bool {
    let zk = Memory::new();
    let guard = lock(&zk).write().once_in(MINUTE).await.expect("free").due().expect("due");
    guard.done().await.expect("recorded");
    drop(guard);
    zk.faults().set_clock_forward(after);
    !now(lock(&zk).write().once_in(MINUTE)).expect("free").is_due()
}

/// Returns whether a candidate whose first term was so long does not lead again after this time.
async fn is_pausing(after: Duration, term: Duration) -> bool {
    let candidate = Leadership::builder(&Memory::new(), PATH).pause(MINUTE).build().expect("valid");
    candidate.lead(|_term| sleep(term)).await.expect("the candidate leads");
    let mut campaign = task::spawn(candidate.lead(|_term| std::future::pending::<()>()));
    assert!(campaign.poll().is_pending());
    // A pause is random above its half.
    advance(if after < MINUTE { after / 2 } else { after }).await;
    assert!(campaign.poll().is_pending());
    !candidate.is_leader()
}

#[tokio::test(start_paused = true)]
async fn every_bound_of_time_applies_until_its_end_and_no_longer() {
    for (bound, lasts, probe) in BOUNDS {
        let step = lasts / 50;
        for (after, applies) in [(Duration::ZERO, true), (lasts / 5, true), (lasts - step, true), (lasts + step, false)]
        {
            assert_eq!(probe(after).await, applies, "{bound} for {lasts:?}: after {after:?}");
        }
    }
}
