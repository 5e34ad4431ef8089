//! A lock and a semaphore at the same path. The recipe that comes second is refused, and the first is not affected.

use std::future::IntoFuture;
use std::task::Poll;
use std::time::Duration;

use support::polled::{now, read, write};
use tokio_test::task;
use zk_rwlock::coordinator::{Coordinator, Operation};
use zk_rwlock::error::PermitsError;
use zk_rwlock::{Dialect, Error, Leadership, Memory, RwLock, Semaphore};

const PATH: &str = "/one";

fn lock(zk: &Memory) -> RwLock {
    RwLock::new(&zk.connect(), PATH).expect("valid")
}

fn semaphore(zk: &Memory) -> Semaphore {
    Semaphore::new(&zk.connect(), PATH, 2).expect("valid")
}

fn reason<T: std::fmt::Debug>(answer: Result<T, Error>) -> PermitsError {
    match answer.expect_err("the second to come is refused") {
        Error::Permits { path, reason } if path == PATH => reason,
        other => panic!("{other}"),
    }
}

fn left(zk: &Memory) -> Vec<String> {
    [PATH, "/one/queue", "/one/permits"].map(|path| zk.children(path)).concat()
}

#[tokio::test(start_paused = true)]
async fn a_semaphore_is_refused_where_a_lock_is_in_use() {
    let zk = Memory::new();
    let held = lock(&zk).read().await.expect("free");
    for answer in [
        semaphore(&zk).acquire().await.map(drop),
        semaphore(&zk).try_acquire().await.map(drop),
        Semaphore::builder(&zk, PATH).build().expect("valid").set_permits(3).await,
    ] {
        let reason = reason(answer);
        assert!(matches!(&reason, PermitsError::IsLocked { node } if held.node_path().ends_with(node)), "{reason}");
    }
    let next = lock(&zk);
    let waits = tokio::spawn(next.write().into_future());
    held.release().await.expect("held");
    drop(waits.await.expect("no panic").expect("no semaphore is in use"));
    drop(read(&next));
    assert_eq!(left(&zk), [""; 0]);
    // The lock is idle now, and its next user must not be kept out.
    assert_eq!(reason(semaphore(&zk).acquire().await), PermitsError::EmptyNode);
    let allowed = Semaphore::builder(&zk, PATH).permits(2).at_existing_node().build().expect("valid");
    drop(allowed.acquire().await.expect("the user says that it is no lock any more"));
}

/// The directory of an idle lock is a container, which servers delete when it was empty for a while.
#[tokio::test(start_paused = true)]
async fn a_number_in_the_directory_of_an_idle_lock_stays() {
    for is_set_first in [true, false] {
        let zk = Memory::new();
        drop(write(&lock(&zk)));
        let allowed = Semaphore::builder(&zk, PATH).permits(2).at_existing_node().build().expect("valid");
        if is_set_first {
            allowed.set_permits(2).await.expect("allowed");
        } else {
            allowed.acquire().await.expect("allowed").release().await.expect("held");
        }
        // One pass deletes the directories in it, and the next one would delete the node.
        for permits in [2, 3] {
            for _ in 0..2 {
                zk.faults().reap_containers();
            }
            let opened = Semaphore::builder(&zk.connect(), PATH).build().expect("valid");
            assert_eq!(opened.permits().await.expect("stored"), Some(permits), "set first: {is_set_first}");
            opened.acquire_many(permits).await.expect("free").release().await.expect("held");
            opened.set_permits(3).await.expect("allowed");
        }
        assert_eq!(allowed.remove().await.expect("unused"), Some(3));
        drop(write(&lock(&zk)));
    }
}

#[tokio::test(start_paused = true)]
async fn a_lock_is_refused_at_the_path_of_a_semaphore() {
    let zk = Memory::new();
    let permit = semaphore(&zk).acquire().await.expect("free");
    let before = left(&zk);
    for dialect in Dialect::ALL {
        let lock = RwLock::builder(&zk, PATH).dialect(dialect).build().expect("valid");
        assert_eq!(reason(lock.write().await), PermitsError::NoLock);
        assert_eq!(reason(lock.try_read().await), PermitsError::NoLock);
    }
    let kept = RwLock::builder(&zk, PATH).keep(Duration::from_secs(60)).build().expect("valid");
    assert_eq!(reason(kept.read().await), PermitsError::NoLock);
    assert_eq!(reason(lock(&zk).write().once_in(Duration::from_secs(60)).await.map(drop)), PermitsError::NoLock);
    let leadership = Leadership::new(&zk, PATH).expect("valid");
    assert_eq!(reason(leadership.lead(async |_| ()).await), PermitsError::NoLock);
    assert_eq!(left(&zk), before);
    permit.release().await.expect("held");
    assert_eq!(
        reason(lock(&zk).write().await),
        PermitsError::NoLock,
        "a semaphore with free permits was not recognized"
    );

    // A new contender of the lock is refused. A new contender of the semaphore waits, and is then granted its permit.
    let mut refused = task::spawn(lock(&zk).write().into_future());
    let foreign = Operation::Create {
        path: format!("{PATH}/h~1-WRITE-0000000009"),
        data: vec![],
        kind: zk_rwlock::coordinator::Kind::Ephemeral,
    };
    let session = std::sync::Arc::clone(zk.session_slot(0).await.expect("open").session());
    session.transact(std::slice::from_ref(&foreign)).await.expect("allowed");
    let fresh = semaphore(&zk);
    let mut acquires = task::spawn(fresh.acquire().into_future());
    assert!(acquires.poll().is_pending());
    session.delete(foreign.path()).await.expect("the node exists");
    drop(acquires.into_inner().await.expect("the contender has left"));
    drop(refused.poll());

    zk.faults().remove(PATH);
    assert!(lock(&zk).write().await.expect("the semaphore is gone").is_held());
}

#[test]
fn a_lock_and_a_semaphore_never_hold_together() {
    use support::slow::Slow;
    let (mut granted, mut refused) = (0, 0);
    for lead in 0..12 {
        for lock_first in [true, false] {
            let zk = Memory::new();
            let lock = RwLock::new(&Slow(zk.connect()), PATH).expect("valid");
            let semaphore = Semaphore::new(&Slow(zk.connect()), PATH, 1).expect("valid");
            let mut locks = task::spawn(lock.write().into_future());
            let mut acquires = task::spawn(semaphore.acquire().into_future());
            let (mut locked, mut acquired) = (None, None);
            for turn in 0..200 {
                let lock_goes = if turn < lead { lock_first } else { (turn % 2 == 0) == lock_first };
                if lock_goes && locked.is_none() {
                    if let Poll::Ready(answer) = locks.poll() {
                        locked = Some(answer);
                    }
                } else if !lock_goes
                    && acquired.is_none()
                    && let Poll::Ready(answer) = acquires.poll()
                {
                    acquired = Some(answer);
                }
            }
            let hold = (matches!(locked, Some(Ok(_))), matches!(acquired, Some(Ok(_))));
            assert_ne!(hold, (true, true), "polls ahead: {lead}, lock first: {lock_first}");
            granted += usize::from(hold.0 || hold.1);
            refused += usize::from(matches!(locked, Some(Err(_))) || matches!(acquired, Some(Err(_))));
        }
    }
    assert!(granted > 0 && refused > 0, "{granted} {refused}");
}

#[test]
fn a_lock_may_have_other_locks_below_it() {
    let zk = Memory::new();
    let (above, below) = (lock(&zk), RwLock::new(&zk, "/one/queue").expect("valid"));
    let _permits = write(&RwLock::new(&zk, "/one/permits").expect("valid"));
    let held = write(&below);
    let set = Operation::Set { path: PATH.to_owned(), data: b"permits=none".to_vec(), version: None };
    let session = std::sync::Arc::clone(now(zk.session_slot(0)).expect("open").session());
    now(session.transact(&[set])).expect("allowed");
    drop(write(&above));
    drop(now(above.try_write()).expect("free"));
    drop(held);
}
