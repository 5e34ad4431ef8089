//! Transactions under a lock whose replies are lost. If a node proves whether the transaction was done, the library reports that
//! outcome. The library never commits a transaction twice.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use support::hindered::{Hindered, Request};
use support::polled::now;
use support::scene::*;
use support::server::shared_server;
use support::wire::{Close, Frames, Op, Proxy, Rule};
use zk_rwlock::coordinator::{Coordinator, Failure, Kind, Operation, Outcome, Session};
use zk_rwlock::{Error, Memory, RwLock, Semaphore, Transaction, ZooKeeper};

/// Closes the connection once, and loses the transaction's reply (if `is_done`) or its request.
fn lost_once(proxy: &Proxy, node: &str, is_done: bool) {
    let of = if is_done { Frames::replies(Op::Multi) } else { Frames::requests(Op::Multi) };
    proxy.apply(Rule::on(of.about(node)).close(0, Close::Fin));
}

/// Returns the data and the version of a node, as the operator's client reads them. Returns `None` if the node does not exist.
async fn seen(operator: &ZooKeeper, node: &str) -> Option<(Vec<u8>, i32)> {
    match session(operator).await.data(node).await {
        Ok((data, stat)) => Some((data, stat.version)),
        Err(failure) => {
            assert_eq!(failure, Failure::NoNode);
            None
        }
    }
}

type Change = for<'a> fn(Transaction<'a>, &str) -> Transaction<'a>;

#[support::judged]
async fn a_commit_with_a_lost_reply_is_settled_and_done_once() {
    let (server, operator) = (shared_server(), connect(&shared_server().address()).await);
    let proxy = Proxy::start(server.address());
    let zk = connect_with(&proxy.address(), CALM).await;
    let guard = lock_at(&zk, "/doubts/lock").write().await.unwrap();
    let set: Change = |it, node| it.set_version(node, "new", 0);
    let delete: Change = |it, node| it.delete_version(node, 0);
    let create: Change = |it, node| it.create(format!("{node}.new"), "new");
    let ephemeral: Change = |it, node| it.create_ephemeral(format!("{node}.new"), "new");
    let several: Change =
        |it, node| it.create(format!("{node}.new"), "").set_version(node, "new", 0).set(node, "newer");
    let checks: Change = |it, node| it.check(node, 0);
    let (is_set, once) = (Outcome::Set { version: 1 }, Some((b"new".to_vec(), 1)));
    let all = vec![Outcome::Created, is_set, Outcome::Set { version: 2 }];
    let old = Some((b"old".to_vec(), 0));
    // Each row: a name, a change, the outcomes that the guard reports if the transaction was done, the outcomes if it was not
    // done, and the node afterwards. Outcomes of `None` mean that no node proves the outcome.
    for (name, change, done, undone, after) in [
        ("set", set, Some(vec![is_set]), Some(vec![is_set]), once),
        ("delete", delete, None, Some(vec![Outcome::Deleted]), None),
        ("create", create, Some(vec![Outcome::Created]), None, old.clone()),
        ("ephemeral", ephemeral, Some(vec![Outcome::Created]), None, old.clone()),
        ("checks", checks, Some(vec![Outcome::Checked]), Some(vec![Outcome::Checked]), old),
        ("several", several, Some(all), None, Some((b"newer".to_vec(), 2))),
    ] {
        for (is_done, expected) in [(true, done), (false, undone)] {
            let node = format!("/doubts/{name}-{is_done}");
            guard.transaction().create(&node, "old").commit().await.unwrap();
            guard.transaction().commit().await.expect("held");
            lost_once(&proxy, &node, is_done);
            let answer = soon(name, change(guard.transaction(), &node).commit()).await;
            match expected {
                Some(outcomes) => assert_eq!(answer.unwrap(), outcomes, "{name}, done: {is_done}"),
                None => assert!(matches!(answer, Err(Error::OutcomeUnknown { .. })), "{name}, {is_done}: {answer:?}"),
            }
            if is_done {
                assert_eq!(seen(&operator, &node).await, after, "{name}");
            }
        }
    }
    assert!(guard.is_held());
    guard.release().await.unwrap();
}

/// Other readers or permit holders may write the same data as this holder. So the data does not prove which holder's commit was
/// done.
#[support::judged]
async fn a_commit_beside_other_holders_is_settled_if_not_done() {
    let (proxy, path) = (Proxy::start(shared_server().address()), "/doubts-beside");
    let zk = connect_with(&proxy.address(), CALM).await;
    let reads = lock_at(&zk, path).read().await.unwrap();
    let permit = Semaphore::new(&zk, "/doubts-permits", 2).unwrap().acquire().await.unwrap();
    for (name, hold) in [("read", &*reads), ("permit", &*permit)] {
        for is_done in [false, true] {
            let node = format!("/doubts-{name}-{is_done}");
            hold.transaction().create(&node, "old").commit().await.unwrap();
            hold.transaction().commit().await.expect("held");
            lost_once(&proxy, &node, is_done);
            let answer = soon(name, hold.transaction().set_version(&node, "new", 0).commit()).await;
            assert_eq!(matches!(answer, Err(Error::OutcomeUnknown { .. })), is_done, "{name}: {answer:?}");
            assert!(answer.is_ok() || is_done, "{name}: {answer:?}");
        }
    }
}

/// Returns the result of a commit to `/v` at version 0 whose request is lost. Meanwhile `stranger` writes without the lock.
async fn forestalled(stranger: impl Fn(&Memory) + Send + Sync + 'static) -> Result<Vec<Outcome>, Error> {
    let (zk, is_lost) = (Memory::new(), AtomicBool::new(false));
    let other = zk.connect();
    let line = Hindered::new(&zk, move |asked| match asked {
        Request::Transact([_, Operation::Set { .. }]) if !is_lost.swap(true, Ordering::Relaxed) => {
            stranger(&other);
            Some(Failure::Unknown("lost".to_owned()))
        }
        _ => None,
    });
    let guard = RwLock::new(&line, "/lock").unwrap().write().await.unwrap();
    guard.transaction().create("/v", "old").commit().await.unwrap();
    soon("the commit", guard.transaction().set_version("/v", "new", 0).commit()).await
}

#[support::judged]
async fn a_commit_forestalled_without_the_lock_is_refused() {
    let put = |zk: &Memory, data: &[u8]| {
        let set = Operation::Set { path: "/v".to_owned(), data: data.to_vec(), version: None };
        now(of(zk).transact(&[set])).expect("the node exists");
    };
    let answer = forestalled(|_| {}).await;
    assert_eq!(answer.unwrap(), [Outcome::Set { version: 1 }], "another outcome, although no write came in between");
    let answer = forestalled(move |zk| put(zk, b"a stranger's")).await;
    assert!(matches!(answer, Err(Error::TransactionRefused { reason: Failure::BadVersion, .. })), "{answer:?}");
    let twice = forestalled(move |zk| [b"a", b"b"].iter().for_each(|data| put(zk, *data))).await;
    let gone = forestalled(|zk| zk.faults().remove("/v")).await;
    // The stranger deletes the node and creates it again, so the version is 0 as before and does not show the change.
    let anew = forestalled(|zk| {
        zk.faults().remove("/v");
        now(of(zk).create("/v", b"a stranger's", Kind::Persistent)).expect("the node is gone");
    });
    for answer in [twice, gone, anew.await] {
        assert!(matches!(answer, Err(Error::OutcomeUnknown { .. })), "{answer:?}");
    }
}

fn of(zk: &Memory) -> Arc<dyn Session> {
    Arc::clone(now(zk.session_slot(0)).expect("a connected client").session())
}
