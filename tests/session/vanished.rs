//! Persistent nodes of the library that vanish, because a server lets any client delete nodes without children (CVE-2026-79993).
//! On servers with that fault the test sends such a delete; on other servers a permitted client deletes the nodes.

use std::sync::Arc;
use std::time::Duration;

use zk_rwlock::coordinator::{Failure, Session};
use zk_rwlock::error::{PermitsError, ValueError};
use zk_rwlock::shared::CopyState;
use zk_rwlock::{Error, Leadership, RwLock, Semaphore, Shared, ZooKeeper};

use support::candidate::Candidate;
use support::scene::{connect, eventually, lock_at, session, soon};
use support::server::shared_server;
use support::stranger::{deletes, remove_node};

const PERIOD: Duration = Duration::from_secs(3_600);

async fn two() -> (ZooKeeper, ZooKeeper) {
    let address = shared_server().address();
    (connect(&address).await, connect(&address).await)
}

async fn vanishes(zk: &ZooKeeper, path: &str) {
    remove_node(shared_server(), &*session(zk).await, path).await;
}

async fn is_there(session: &Arc<dyn Session>, path: &str) -> bool {
    !matches!(session.data(path).await, Err(Failure::NoNode))
}

#[support::judged]
async fn a_container_never_vanishes_under_its_contenders() {
    let (zk, other) = two().await;
    let lock = lock_at(&zk, "/vanished/lock");
    let held = lock.write().await.expect("free");
    let waits = tokio::spawn(lock_at(&other, "/vanished/lock").write().into_future());
    eventually("the waiter waits", || async { lock.queue().await.unwrap().members.len() == 2 }).await;
    let nodes = session(&zk).await.children("/vanished/lock").await.unwrap();
    for path in nodes.iter().map(|name| format!("/vanished/lock/{name}")).chain(["/vanished/lock".to_owned()]) {
        assert!(!deletes(shared_server(), &path), "{path}");
    }
    held.transaction().commit().await.expect("the node still exists");
    let first = held.fencing_token();
    held.release().await.expect("held");
    let second = soon("the waiter", waits).await.unwrap().expect("the node still exists");
    assert!(second.fencing_token() > first);
    let last = second.fencing_token();
    second.release().await.expect("held");
    vanishes(&zk, "/vanished/lock").await;
    let anew = lock.write().await.expect("its directory is made anew");
    assert!(anew.fencing_token() > last, "{} after {last}", anew.fencing_token());
}

fn value_error<T>(result: Result<T, Error>) -> ValueError {
    let Err(error) = result else { panic!("a value") };
    error.value_error().unwrap_or_else(|| panic!("{error}")).clone()
}

#[support::judged]
async fn a_vanished_value_is_an_error_until_another_is_set() {
    const PATH: &str = "/vanished/value";
    let (zk, other) = two().await;
    let open = |zk: &ZooKeeper| Shared::builder(zk, PATH).initial(|| 0_u64).build().expect("valid");
    let (here, never_set) = (open(&zk), Shared::<u64>::new(&other, PATH).expect("valid"));
    assert_eq!(value_error(never_set.read().await), ValueError::Unset);
    here.write().replacing(7).await.expect("free").commit().await.expect("held");
    let live = soon("the value", here.live()).await.expect("a value");
    vanishes(&zk, "/vanished/value/value").await;
    eventually("the copy notices", || async { matches!(live.state(), CopyState::Behind(_)) }).await;
    assert_eq!(**live.get(), 7);
    for shared in [&here, &open(&zk), &open(&other), &never_set] {
        assert_eq!(value_error(shared.read().await), ValueError::Vanished);
        assert_eq!(value_error(shared.write().await), ValueError::Vanished);
        assert_eq!(value_error(shared.update(|value| *value += 1).await), ValueError::Vanished);
        assert_eq!(value_error(soon("an error", shared.live()).await), ValueError::Vanished);
        assert_eq!(value_error(soon("an error", shared.changes().next()).await.expect("open")), ValueError::Vanished);
    }
    assert!(!is_there(&session(&zk).await, "/vanished/value/value").await, "the initial value was written");
    open(&other).write().replacing(8).await.expect("free").commit().await.expect("held");
    assert_eq!(*here.read().await.expect("a value was set"), 8);
    eventually("the copy follows", || async { **live.get() == 8 }).await;

    // A handle that has read the value knows that a value existed, even after the copy of the value, its twin node, has vanished
    // as well. A new handle of another client takes the value for never set.
    vanishes(&zk, "/vanished/value/value").await;
    vanishes(&zk, "/vanished/value/value.twin").await;
    assert_eq!(value_error(here.read().await), ValueError::Vanished);
    assert_eq!(*open(&other).read().await.expect("as if never set"), 0);
}

#[support::judged]
async fn a_holder_of_a_vanished_value_commits_nothing() {
    let (zk, other) = two().await;
    let shared: Shared<u64> = Shared::builder(&zk, "/vanished/held").initial(|| 0).build().expect("valid");
    shared.update(|value| *value = 7).await.expect("free");
    let mut guard = shared.write().await.expect("free");
    *guard += 1;
    vanishes(&other, "/vanished/held/value").await;
    let refused = guard.commit().await;
    assert!(matches!(refused, Err(Error::TransactionRefused { reason: Failure::NoNode, .. })), "{refused:?}");
    drop(guard);
    assert!(!is_there(&session(&zk).await, "/vanished/held/value").await);
    assert_eq!(value_error(shared.read().await), ValueError::Vanished);
}

fn vanished_number<T>(result: Result<T, Error>) -> u32 {
    match result {
        Err(Error::Permits { reason: PermitsError::Vanished { was }, .. }) => was,
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("permits were granted without a number"),
    }
}

#[support::judged]
async fn a_vanished_number_of_permits_is_never_guessed() {
    const PATH: &str = "/vanished/permits";
    let (zk, other) = two().await;
    let open = |zk: &ZooKeeper, permits| Semaphore::new(zk, PATH, permits).expect("valid");
    let first = open(&zk, 3);
    let permit = first.acquire().await.expect("free");
    first.set_permits(5).await.expect("allowed");
    assert!(!deletes(shared_server(), PATH), "a directory with permits can be deleted");
    permit.release().await.expect("held");
    drop(open(&other, 5).acquire_many(5).await.expect("there are five"));
    eventually("nobody holds", || async { first.queue().await.unwrap().members.is_empty() }).await;
    for path in ["/vanished/permits/queue", "/vanished/permits/permits", PATH] {
        vanishes(&zk, path).await;
    }
    let any = Semaphore::builder(&other, PATH).build().expect("valid");
    assert_eq!(vanished_number(open(&other, 3).acquire().await), 5);
    assert_eq!(vanished_number(open(&zk, 6).try_acquire().await), 5);
    assert_eq!(vanished_number(any.acquire().await), 5);
    // A semaphore handle that was opened with the same number of permits as before writes that number again.
    let five = open(&other, 5).acquire_many(5).await.expect("there are five");
    assert!(any.try_acquire().await.expect_err("all are taken").is_would_block());
    assert_eq!(any.permits().await.expect("readable"), Some(5));
    five.release().await.expect("held");

    for path in ["/vanished/permits/queue", "/vanished/permits/permits", PATH] {
        vanishes(&zk, path).await;
    }
    open(&other, 3).set_permits(3).await.expect("the number is set");
    drop(open(&zk, 3).acquire().await.expect("there are three"));
}

#[support::judged]
async fn work_whose_record_vanishes_waits_for_the_period() {
    const PATH: &str = "/vanished/cron";
    let (zk, other) = two().await;
    let (a, b) = (lock_at(&zk, PATH), lock_at(&other, PATH));
    let works = async |lock: &RwLock| {
        let guard = soon("the lock", lock.write().once_in(PERIOD)).await.expect("granted").due().expect("due");
        guard.done().await.expect("recorded");
        guard.release().await.expect("held");
    };
    works(&a).await;
    let token = a.queue().await.unwrap().done.expect("recorded").token;
    vanishes(&zk, "/vanished/cron.done").await;
    for lock in [&a, &b] {
        for refused in [soon("the lock", lock.write().once_in(PERIOD)).await, lock.try_once_in(PERIOD).await] {
            match refused {
                Err(Error::RecordVanished { path, last }) => {
                    assert_eq!((&*path, last.token), ("/vanished/cron.done", token));
                }
                other => panic!("{other:?}"),
            }
        }
    }
    // The record of the last success is gone, but the lock works: the work is due again after the period.
    assert!(a.write().once_in(Duration::from_millis(1)).await.expect("granted").is_due());
    let forgotten = b.forget().await.expect("allowed").expect("a record exists");
    assert_eq!(forgotten.token, token);
    works(&b).await;
    assert!(!a.try_once_in(PERIOD).await.expect("free").is_due());
    // The twin is a copy of the record. A vanished twin changes nothing, and the next record makes it again.
    vanishes(&zk, "/vanished/cron.done.twin").await;
    assert!(!a.try_once_in(PERIOD).await.expect("free").is_due());
    let guard = a.write().once_in(Duration::from_millis(1)).await.expect("granted").due().expect("due");
    guard.done().await.expect("recorded");
    assert!(is_there(&session(&zk).await, "/vanished/cron.done.twin").await);
}

#[support::judged]
async fn a_leaders_vanished_directory_costs_no_term() {
    const PATH: &str = "/vanished/leader";
    let (zk, other) = two().await;
    let open = |zk: &ZooKeeper| Leadership::builder(zk, PATH).pause(Duration::from_millis(10)).build().expect("valid");
    let mut first = Candidate::campaigns(open(&zk));
    let term = first.leads().await;
    assert!(!deletes(shared_server(), PATH), "a directory with a leader can be deleted");
    assert!(term.is_leader());
    let mut changes = open(&other).changes();
    let number = soon("the leader", changes.next()).await.unwrap().unwrap().expect("a value").term;
    assert_eq!(number, term.number());
    soon("the stop", first.leadership.stop()).await;
    assert_eq!(soon("none", changes.next()).await.unwrap().unwrap().map(|leader| leader.term), None);
    vanishes(&zk, PATH).await;
    let mut second = Candidate::campaigns(open(&other));
    assert!(second.leads().await.number() > number);
    let seen = soon("the leader", changes.next()).await.unwrap().unwrap().map(|leader| leader.term);
    assert_eq!(seen, second.leadership.term().map(|term| term.number()));
}
