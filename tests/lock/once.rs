//! Work that one of many processes does once in a period (`once_in`), on a real server: its cost, frame by frame, and faults of
//! its record. The record is a node with the time of the last success.

use std::time::Duration;

use support::scene::*;
use support::server::shared_server;
use support::wire::Op;
use zk_rwlock::coordinator::{Failure, Kind};
use zk_rwlock::once::{OnceGuard, Work};
use zk_rwlock::security::{Acl, Permissions};
use zk_rwlock::{Error, RwLock, ZooKeeper};

use super::wire::Tapped;

const PERIOD: Duration = Duration::from_secs(3_600);

async fn due(lock: &RwLock) -> Option<OnceGuard> {
    soon("the lock", lock.write().once_in(PERIOD)).await.expect("granted").due()
}

/// Returns a guard for work that is due again, because its period is a millisecond.
async fn due_again(lock: &RwLock) -> OnceGuard {
    for _ in 0..1_000 {
        if let Work::Due(guard) =
            soon("the lock", lock.write().once_in(Duration::from_millis(1))).await.expect("granted")
        {
            return guard;
        }
    }
    panic!("a thousand acquisitions took less than a millisecond");
}

async fn works(lock: &RwLock) {
    let guard = due(lock).await.expect("due");
    soon("the record", guard.done()).await.expect("recorded");
    soon("the release", guard.release()).await.expect("held");
}

/// Whether the record's node exists and is not empty.
async fn is_recorded(zk: &ZooKeeper, directory: &str) -> bool {
    match session(zk).await.data(&format!("{directory}.done")).await {
        Ok((data, _)) => !data.is_empty(),
        Err(failure) => {
            assert_eq!(failure, Failure::NoNode);
            false
        }
    }
}

#[support::judged]
async fn once_costs_one_read_and_a_success_one_write() {
    let tapped = Tapped::new(shared_server()).await;
    let lock = lock_at(&tapped.zk, "/lock/once/cost");
    works(&lock).await;
    soon("the answer", lock.forget()).await.expect("allowed").expect("a record existed");
    works(&lock).await;

    // Two kinds of requests are not counted: the watch of the holder on its own node, which comes 5 ms after the grant, and the
    // listing, which a session skips if it knows the queue.
    let requests = || {
        let counts = |(op, path): &(Op, String)| match op {
            Op::GetChildren2 | Op::RemoveWatches => false,
            Op::GetData => path.ends_with(".done"),
            _ => true,
        };
        tapped.proxy.requests().into_iter().filter(counts).map(|(op, _)| op).collect::<Vec<_>>()
    };
    tapped.proxy.reset();
    lock.write().await.unwrap().release().await.unwrap();
    assert_eq!(requests(), [Op::Create2, Op::Multi]);
    tapped.proxy.reset();
    assert!(due(&lock).await.is_none());
    eventually("the lock is released", || async { requests().len() > 2 }).await;
    assert_eq!(requests(), [Op::Create2, Op::GetData, Op::Multi]);

    let guard = due_again(&lock).await;
    tapped.proxy.reset();
    guard.done().await.unwrap();
    assert_eq!(requests(), [Op::Multi]);
    let (_, parts) = tapped.proxy.requests().into_iter().find(|(op, _)| *op == Op::Multi).expect("counted");
    let (check, sets) = parts.split_once(", ").expect("a check and what is set");
    assert!(check.starts_with("Check /lock/once/cost/"), "{parts}");
    assert_eq!(sets, "SetData /lock/once/cost.done, SetData /lock/once/cost.done.twin");
}

#[support::judged]
async fn a_contender_that_waits_reads_the_record_when_granted() {
    let tapped = Tapped::new(shared_server()).await;
    let (holder, path) = (connect(&shared_server().address()).await, "/lock/once/waits");
    let (theirs, ours) = (lock_at(&holder, path), lock_at(&tapped.zk, path));
    let guard = due(&theirs).await.expect("due");
    let waits = tokio::spawn(async move { ours.write().once_in(PERIOD).await });
    line_becomes(&theirs, "W+ W-").await;
    tapped.settle().await;
    let reads = || tapped.proxy.requests().iter().filter(|(_, path)| path.ends_with(".done")).count();
    assert_eq!(reads(), 0);
    guard.done().await.unwrap();
    guard.release().await.unwrap();
    assert!(granted(waits).await.due().is_none());
    assert_eq!(reads(), 1);
}

#[support::judged]
async fn a_record_whose_request_or_answer_is_lost_is_written() {
    for (name, is_there) in [("new", false), ("old", true)] {
        for is_reply in [true, false] {
            let tapped = Tapped::new(shared_server()).await;
            let path = format!("/lock/once/lost-{name}-{is_reply}");
            let lock = lock_at(&tapped.zk, &path);
            if is_there {
                works(&lock).await;
            }
            let guard = due_again(&lock).await;
            let fault = match is_reply {
                true => tapped.proxy.drop_reply(Op::Multi, 1),
                false => tapped.proxy.drop_request(Op::Multi, 1),
            };
            soon("the record", guard.done()).await.expect("recorded");
            drop(fault);
            soon("the release", guard.release()).await.expect("held");
            assert!(is_recorded(&tapped.zk, &path).await, "{path}");
            assert!(due(&lock).await.is_none(), "{path}");
        }
    }
}

#[support::judged]
async fn a_worker_that_is_cut_off_records_nothing() {
    let (tapped, zk) = (Tapped::new(shared_server()).await, connect(&shared_server().address()).await);
    let short = ZooKeeper::builder().session_timeout(Duration::from_secs(2)).connect_timeout(SOON);
    let cut_off = short.connect(&tapped.proxy.address()).await.unwrap();
    let path = "/lock/once/cut-off";
    let (ours, theirs) = (lock_at(&cut_off, path), lock_at(&zk, path));
    let guard = due(&ours).await.expect("due");
    let waits = tokio::spawn(async move { theirs.write().once_in(PERIOD).await });
    line_becomes(&lock_at(&zk, path), "W+ W-").await;
    tapped.proxy.cut();
    let next = granted(waits).await.due().expect("due");
    assert!(!guard.is_held());
    tapped.proxy.heal();
    let error = soon("the answer", guard.done()).await.expect_err("the lock was lost");
    assert!(error.is_lost(), "{error:?}");
    assert!(!is_recorded(&zk, path).await);
    next.done().await.unwrap();
}

/// Returns the client that owns the record, another client, and that other client's lock. Everyone may use the lock, but only the
/// owner may write the record.
async fn guarded(path: &str) -> (ZooKeeper, ZooKeeper, RwLock) {
    let acl = Acl::creator().allow("world", "anyone", Permissions::READ);
    let builder = ZooKeeper::builder().digest("owner", "hunter2").acl(acl);
    let owner = builder.connect(&shared_server().address()).await.unwrap();
    let anybody = connect(&shared_server().address()).await;
    let lock = lock_at(&anybody, path);
    soon("a lock", lock.write()).await.unwrap().release().await.unwrap();
    session(&owner).await.create(&format!("{path}.done"), b"", Kind::Persistent).await.unwrap();
    (owner, anybody, lock)
}

#[support::judged]
async fn a_record_that_may_not_be_written_leaves_the_work_due() {
    let path = "/lock/once/denied";
    let (_owner, anybody, lock) = guarded(path).await;
    for _ in 0..2 {
        let guard = due(&lock).await.expect("due");
        let error = soon("the answer", guard.done()).await.expect_err("only the owner may");
        assert!(
            matches!(&error, Error::PermissionDenied { path: at, .. } if *at == format!("{path}.done")),
            "{error:?}"
        );
        let lacks = format!("no WRITE on {path}.done for a client without credentials");
        assert_eq!(error.to_string(), format!("permission denied: record the success in {path}.done: {lacks}"));
        assert!(guard.is_held() && !is_recorded(&anybody, path).await);
        guard.release().await.unwrap();
    }
}

#[support::judged]
async fn a_record_that_may_not_be_made_or_read_is_an_error() {
    let acl = Acl::creator();
    let builder = ZooKeeper::builder().digest("owner", "hunter2").acl(acl);
    let owner = builder.connect(&shared_server().address()).await.unwrap();
    let (operator, parent) = (session(&owner).await, "/lock-once-closed");
    operator.create(parent, b"", Kind::Persistent).await.unwrap();
    let anybody = connect(&shared_server().address()).await;

    // Only the owner of the parent directory may write in it, but the lock's directory is open to everyone.
    let builder = ZooKeeper::builder().digest("owner", "hunter2").acl(Acl::anyone());
    let opened = builder.connect(&shared_server().address()).await.unwrap();
    let path = format!("{parent}/report");
    session(&opened).await.create(&path, b"", Kind::Persistent).await.unwrap();
    let lock = lock_at(&anybody, &path);
    let guard = due(&lock).await.expect("due");
    assert!(matches!(guard.done().await, Err(Error::PermissionDenied { .. })));
    guard.release().await.unwrap();

    // This record may be read only by its owner.
    operator.create(&format!("{path}.done"), b"", Kind::Persistent).await.unwrap();
    let refused = soon("the refusal", lock.write().once_in(PERIOD)).await.expect_err("the record may not be read");
    assert!(matches!(refused, Error::PermissionDenied { .. }), "{refused:?}");
    assert_eq!(line(&lock).await, "", "the queue cannot be read");
}
