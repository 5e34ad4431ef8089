//! Limits on how long a lock may be held, on each backend: the holder learns of the loss before the next contender is
//! granted.

// These functions are public, because a macro in `main.rs` calls them.
#![allow(unreachable_pub)]

use std::time::{Duration, Instant};

use zk_rwlock::{Loss, RwLock, Semaphore};

use support::harness::Harness;
use support::scene::{eventually, soon, writer};

const LIMIT: Duration = Duration::from_millis(200);

pub async fn a_holder_hears_of_its_limit_before_the_next_grant<H: Harness>(h: &H) {
    let (mine, theirs, directory) = (h.client().await, h.client().await, h.directory());
    let lock = RwLock::builder(&mine, &directory).max_hold(LIMIT).build().expect("valid");
    let next = RwLock::new(&theirs, &directory).expect("valid");
    for keeps_its_guard in [true, false] {
        let began = Instant::now();
        let guard = soon("a free lock", lock.write()).await.expect("free");
        let waits = tokio::spawn({
            let next = next.clone();
            async move { (writer(&next).await.expect("no panic").expect("the lock is given up"), Instant::now()) }
        });
        let why = soon("the end of its time", guard.lost()).await;
        let heard = Instant::now();
        assert_eq!((why, guard.is_held()), (Loss::HeldTooLong, false));
        assert!(heard - began >= LIMIT);
        let guard = keeps_its_guard.then_some(guard);
        let (granted, at) = soon("the next grant", waits).await.expect("no panic");
        assert!(heard < at, "granted {:?} before the holder heard of its limit", heard - at);
        granted.release().await.expect("held");
        drop(guard);
    }
}

pub async fn permits_are_given_up_at_their_limit<H: Harness>(h: &H) {
    let (mine, theirs, directory) = (h.client().await, h.client().await, h.directory());
    let limited = Semaphore::builder(&mine, &directory).permits(1).max_hold(LIMIT).build().expect("valid");
    let permit = soon("a free permit", limited.acquire()).await.expect("free");
    let next = Semaphore::new(&theirs, &directory, 1).expect("valid");
    let waits = tokio::spawn(async move { (next.acquire().await.expect("the lock is given up"), Instant::now()) });
    assert_eq!(soon("the end of its time", permit.lost()).await, Loss::HeldTooLong);
    let heard = Instant::now();
    let (granted, at) = soon("the next grant", waits).await.expect("no panic");
    assert!(heard < at && !permit.is_held());
    granted.release().await.expect("held");
}

pub async fn a_use_over_its_limit_ends_its_kept_node<H: Harness>(h: &H) {
    let (mine, theirs, directory) = (h.client().await, h.client().await, h.directory());
    let lock =
        RwLock::builder(&mine, &directory).keep(Duration::from_secs(600)).max_hold(LIMIT).build().expect("valid");
    let next = RwLock::new(&theirs, &directory).expect("valid");
    for _ in 0..3 {
        soon("a free lock", lock.read()).await.expect("kept").release().await.expect("held");
    }
    let hangs = soon("a free lock", lock.read()).await.expect("kept");
    assert_eq!(soon("the end of its time", hangs.lost()).await, Loss::HeldTooLong);
    eventually("the node is given up", || async { next.queue().await.is_ok_and(|queue| queue.members.is_empty()) })
        .await;
    assert!(soon("a free lock", next.write()).await.expect("free").is_held());
}
