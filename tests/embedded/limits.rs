//! Limits on how long a lock may be held: when the holder learns of its loss, and when the next contender is granted.
//! The tests run in virtual time.

use std::future::{IntoFuture, pending};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use support::hindered::{Hindered, begun};
use support::polled::{now, reading, writing};
use tokio::time::{Instant, advance, sleep};
use tokio_test::assert_pending;
use tokio_test::task;
use zk_rwlock::{
    Error, HoldState, Leadership, Loss, Memory, Mode, MultiLock, RwLock, RwLockBuilder, Semaphore, Shared,
};

const PATH: &str = "/lock";
const LIMIT: Duration = Duration::from_secs(60);

/// The time from the loss at the limit to the next grant: a sixth of the session timeout of 10 s, rounded up to a whole
/// millisecond.
const MARGIN: Duration = Duration::from_millis(1_667);

/// An upper bound on how late a timer fires: twice the resolution of tokio's timers, which is 1 ms.
const TICK: Duration = Duration::from_millis(2);

fn limited(zk: &Memory) -> RwLockBuilder {
    RwLock::builder(zk, PATH).max_hold(LIMIT)
}

fn lock(zk: &Memory) -> RwLock {
    limited(zk).build().expect("valid")
}

fn other(zk: &Memory) -> RwLock {
    RwLock::new(&zk.connect(), PATH).expect("valid")
}

fn assert_held_too_long<T: std::fmt::Debug>(answer: Result<T, Error>) {
    let error = answer.expect_err("the lock was held for too long");
    let error = if let Error::OneOfMany { error, .. } = error { *error } else { error };
    assert!(matches!(error, Error::Lost(Loss::HeldTooLong)), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_holder_hears_of_its_limit_before_the_next_grant() {
    let zk = Memory::new();
    let guard = Arc::new(lock(&zk).write().await.expect("free"));
    let began = Instant::now();
    let heard = tokio::spawn({
        let guard = Arc::clone(&guard);
        async move { (guard.lost().await, began.elapsed(), guard.state()) }
    });
    let dropped = tokio::spawn({
        let guard = Arc::clone(&guard);
        async move { (guard.run(pending::<()>()).await, began.elapsed()) }
    });
    let waits = tokio::spawn(other(&zk).write().into_future());
    sleep(LIMIT - TICK).await;
    assert!(guard.is_held() && guard.session_left() > MARGIN && guard.session_left() <= MARGIN + TICK);
    let next = waits.await.expect("no panic").expect("the node is removed after the limit");
    let granted = began.elapsed();
    let (why, heard, state) = heard.await.expect("no panic");
    assert_eq!((why, state), (Loss::HeldTooLong, HoldState::Lost { why }));
    let (work, stopped) = dropped.await.expect("no panic");
    assert_held_too_long(work);
    assert!(
        LIMIT <= heard && heard <= LIMIT + TICK && LIMIT <= stopped && stopped <= LIMIT + TICK,
        "{heard:?} {stopped:?}"
    );
    assert!(heard + MARGIN - 2 * TICK <= granted && granted <= LIMIT + MARGIN + 2 * TICK, "{granted:?}");
    assert_eq!(guard.session_left(), Duration::ZERO);
    assert_held_too_long(guard.transaction().create("/late", "").commit().await);
    assert_held_too_long(guard.read_node("/late").await);
    assert_held_too_long(Arc::into_inner(guard).expect("alone").release().await);
    assert!(next.is_held());
    sleep(10 * LIMIT).await;
    assert!(next.is_held(), "the next holder lost its lock, although it has no limit");
}

#[tokio::test(start_paused = true)]
async fn an_unpolled_holder_loses_the_lock_at_its_limit() {
    let zk = Memory::new();
    let guard = now(lock(&zk).read()).expect("free");
    let share = guard.share();
    let mut waits = writing(&other(&zk));
    assert_pending!(waits.poll());
    advance(LIMIT - TICK).await;
    assert!(guard.is_held() && share.is_held());
    advance(TICK).await;
    assert!(!guard.is_held() && !share.is_held());
    drop((guard, share));
    let _next = now(waits.into_inner()).expect("free");
}

/// The holder's session lives on, so the holder's node stays until the library deletes the node.
#[tokio::test(start_paused = true)]
async fn a_hung_holder_without_a_lease_ends_at_its_limit() {
    for is_kept in [false, true] {
        let zk = Memory::new();
        let ours = zk.connect();
        let builder = limited(&ours);
        let lock = if is_kept { builder.keep(LIMIT) } else { builder }.build().expect("valid");
        let (guard, began) = (lock.write().await.expect("free"), Instant::now());
        ours.faults().cut();
        assert_eq!(guard.lost().await, Loss::LeaseRanOut);
        ours.faults().heal();
        let next = other(&zk).write().timeout(2 * LIMIT).await.expect("the node is removed after the limit");
        assert!(next.is_held() && began.elapsed() >= LIMIT + MARGIN - TICK, "{:?}", began.elapsed());
        assert!(began.elapsed() <= LIMIT + 2 * MARGIN, "{:?}", began.elapsed());
        assert_eq!(guard.lost().await, Loss::LeaseRanOut, "the first reason was replaced");
    }
}

#[tokio::test(start_paused = true)]
async fn a_downgrade_does_not_restart_the_limit() {
    let zk = Memory::new();
    let guard = now(lock(&zk).write()).expect("free");
    advance(LIMIT / 2).await;
    let guard = guard.downgrade().await.expect("held");
    advance(LIMIT / 2).await;
    assert_eq!((guard.is_held(), guard.lost().await), (false, Loss::HeldTooLong));
    drop(now(other(&zk).read()).expect("beside a reader"));
    let _next = other(&zk).write().await.expect("the node is removed after the limit");
}

/// The reply to the downgrade comes after the limit, so the node at the limit is no longer the writer's.
#[tokio::test(start_paused = true)]
async fn a_reader_whose_downgrade_took_long_ends_at_its_limit() {
    let zk = Memory::new();
    let slow = Hindered::new(&zk, |_| None).with_commits_that_take(3 * MARGIN);
    let lock = RwLock::builder(&slow, PATH).max_hold(LIMIT).build().expect("valid");
    let guard = lock.write().await.expect("free");
    sleep(LIMIT - MARGIN).await;
    let guard = guard.downgrade().await.expect("held when it began");
    let next = other(&zk).write().timeout(LIMIT).await.expect("the reader's node is removed as well");
    assert!(next.is_held() && !guard.is_held());
}

/// The process was stopped until long after the limit. Its holder still gets the margin to stop its work.
#[tokio::test(start_paused = true)]
async fn the_margin_after_the_limit_begins_when_it_is_noticed() {
    let zk = Memory::new();
    let guard = lock(&zk).write().await.expect("free");
    let waits = tokio::spawn(other(&zk).write().into_future());
    sleep(TICK).await;
    advance(LIMIT + 2 * MARGIN).await;
    let noticed = Instant::now();
    assert_eq!(guard.lost().await, Loss::HeldTooLong);
    let _next = waits.await.expect("no panic").expect("the node is removed after the margin");
    assert!(noticed.elapsed() >= MARGIN - TICK, "{:?}", noticed.elapsed());
}

#[tokio::test(start_paused = true)]
async fn permits_are_given_up_at_their_limit() {
    let zk = Memory::new();
    let limited = Semaphore::builder(&zk, PATH).permits(2).max_hold(LIMIT).build().expect("valid");
    let held = limited.acquire_many(2).await.expect("free");
    let began = Instant::now();
    let others = Semaphore::new(&zk.connect(), PATH, 2).expect("valid");
    let next = others.acquire().await.expect("the permits are removed after the limit");
    assert!(began.elapsed() >= LIMIT + MARGIN - TICK && !held.is_held());
    assert_eq!(held.lost().await, Loss::HeldTooLong);
    assert_eq!(zk.children("/lock/permits").len(), 1);
    assert_held_too_long(held.release().await);
    drop(next);
}

#[tokio::test(start_paused = true)]
async fn each_of_several_limits_counts_from_its_grant() {
    let zk = Memory::new();
    let second = RwLock::new(&zk, "/second").expect("valid");
    let both = MultiLock::new([(&lock(&zk), Mode::Write), (&second, Mode::Write)]).expect("valid");
    let held = both.lock().await.expect("free");
    assert_held_too_long(held.run(pending::<()>()).await);
    assert_eq!(held.lost().await, (PATH, Loss::HeldTooLong));
    drop(held);
    let in_the_way = second.write().await.expect("free");
    let error = both.lock().await.expect_err("the second is taken");
    assert!(error.to_string().contains("held for longer"), "{error}");
    drop(in_the_way);
}

#[tokio::test(start_paused = true)]
async fn a_term_ends_at_its_limit_and_another_leads() {
    let zk = Memory::new();
    let hangs = Leadership::builder(&zk, PATH).lock(|lock| lock.max_hold(LIMIT)).build().expect("valid");
    let began = Instant::now();
    let mut terms = 0;
    let mut leads = task::spawn(hangs.lead(|_| {
        terms += 1;
        pending::<()>()
    }));
    assert_pending!(leads.poll());
    let next = Leadership::new(&zk.connect(), PATH).expect("valid");
    let led = next.lead(async |_| began.elapsed());
    let elapsed = tokio::select! {
        _ = leads => panic!("the work of the first leader ended"),
        elapsed = led => elapsed.expect("the candidate leads").expect("the campaign was not stopped"),
    };
    assert!(elapsed >= LIMIT && elapsed <= LIMIT + TICK, "the work was not dropped at the limit: {elapsed:?}");
    assert_eq!(terms, 1);
}

#[tokio::test(start_paused = true)]
async fn each_use_of_a_kept_node_has_its_own_limit() {
    let zk = Memory::new();
    let lock = limited(&zk).keep(100 * LIMIT).build().expect("valid");
    for _ in 0..5 {
        let guard = lock.read().await.expect("free");
        sleep(LIMIT / 2).await;
        assert!(guard.is_held());
    }
    let before = zk.children(PATH);
    sleep(3 * LIMIT).await;
    let (short, long) = (lock.read().await.expect("kept"), lock.read().await.expect("kept"));
    assert_eq!(zk.children(PATH), before, "the limit ended an idle node, which is not held");
    let shared = long.share();
    drop(short);
    drop(long);
    sleep(LIMIT - TICK).await;
    assert!(shared.is_held());
    let late = lock.read().await.expect("kept");
    sleep(TICK).await;
    assert_eq!((shared.is_held(), late.is_held()), (false, false), "a use outlived the limit of the shared node");
    let next = other(&zk).write().await.expect("the node is removed after the limit");
    assert_eq!(shared.lost().await, Loss::HeldTooLong);
    drop((next, shared, late));
    assert!(lock.read().await.expect("free").is_held());
}

#[tokio::test(start_paused = true)]
async fn values_and_once_guards_have_the_limit_of_their_lock() {
    let zk = Memory::new();
    let value: Shared<u32> =
        Shared::builder(&zk, "/value").initial(|| 1).lock(|lock| lock.max_hold(LIMIT)).build().expect("valid");
    let mut held = value.write().await.expect("free");
    *held = 2;
    sleep(LIMIT).await;
    assert_held_too_long(held.commit().await);
    drop(held);
    assert_eq!(*value.read().await.expect("free"), 1);

    let once = lock(&zk).write().once_in(LIMIT).await.expect("free").due().expect("due");
    sleep(LIMIT).await;
    assert_held_too_long(once.done().await);
}

#[test]
fn a_limit_of_zero_is_refused() {
    let zk = Memory::new();
    let refused = RwLock::builder(&zk, PATH).max_hold(Duration::ZERO).build().expect_err("a limit of zero is refused");
    assert!(matches!(refused, Error::InvalidInput(_)), "{refused}");
    assert!(Semaphore::builder(&zk, PATH).max_hold(Duration::ZERO).build().is_err());
    let lock = RwLock::builder(&zk, PATH).max_hold(Duration::MAX).build().expect("valid");
    assert!(now(lock.write()).expect("free").is_held());
    let mut waits = reading(&lock);
    drop(waits.poll());
}

/// After a pause of the process, a use begins before any task has found that the node is past its limit.
#[tokio::test(start_paused = true)]
async fn no_use_joins_a_kept_node_past_its_limit() {
    let (store, clock) = begun(10 * LIMIT);
    let line = Hindered::new(&Memory::new(), |_| None).with_store(&store);
    let kept = RwLock::builder(&line, PATH).keep(LIMIT).max_hold(LIMIT).build().expect("valid");
    let first = kept.read().await.expect("free");
    clock.fetch_add(LIMIT.as_secs(), Ordering::Relaxed);
    let second = kept.read().await.expect("only readers are there");
    assert_eq!((first.is_held(), second.is_held()), (false, true));
}
