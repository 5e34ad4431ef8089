//! The requests that a value costs, and commits whose requests or replies are lost.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use zk_rwlock::coordinator::{Coordinator, Failure, Kind, Operation};
use zk_rwlock::error::ValueError;
use zk_rwlock::format::Raw;
use zk_rwlock::security::{Acl, Permissions};
use zk_rwlock::{Error, Memory, Shared, ZooKeeper};

use crate::checks::{self, session};
use support::copy::Copied;
use support::hindered::{Hindered, Request};
use support::polled::now;
use support::scene::{CALM, becomes_empty, connect, connect_with, soon};
use support::server::{Server, shared_server};
use support::wire::{Close, Frames, Op, Proxy, Rule};

/// The timeout of sessions that expire in a test.
const SHORT: Duration = Duration::from_secs(1);

fn counter(client: &ZooKeeper, path: &str) -> Shared<u64> {
    Shared::builder(client, path).initial(|| 0).build().expect("a valid path")
}

async fn version(client: &impl Coordinator, shared: &Shared<u64>) -> i32 {
    let session = session(client).await;
    session.sync(shared.value_path()).await.expect("synced");
    session.data(shared.value_path()).await.expect("a value").1.version
}

/// Returns the requests about the value and those about the lock, without the watches of contenders on their own nodes.
fn requests(wire: &Proxy) -> (Vec<Op>, Vec<Op>) {
    let (about_value, about_lock): (Vec<_>, Vec<_>) =
        wire.requests().into_iter().partition(|(_, path)| path.contains("/value"));
    let about_lock = about_lock.into_iter().filter(|(op, _)| *op != Op::GetData);
    (about_value.into_iter().map(|(op, _)| op).collect(), about_lock.map(|(op, _)| op).collect())
}

/// Runs `work` until eight of its last ten runs have sent the same requests, and returns these requests. A run may
/// differ from the others because a heartbeat was sent.
async fn usual(wire: &Proxy, work: impl AsyncFn()) -> (Vec<Op>, Vec<Op>) {
    let mut costs: Vec<(Vec<Op>, Vec<Op>)> = Vec::new();
    for _ in 0..100 {
        wire.reset();
        work().await;
        costs.push(requests(wire));
        let last = &costs[costs.len().saturating_sub(10)..];
        let agree = |cost: &&(Vec<Op>, Vec<Op>)| last.iter().filter(|other| *other == *cost).count();
        if let Some(usual) = last.iter().find(|cost| agree(cost) >= 8) {
            return usual.clone();
        }
    }
    panic!("{costs:?}");
}

#[support::judged]
async fn a_read_and_a_commit_send_one_request_the_copy_none() {
    let server = shared_server();
    let wire = Proxy::start(server.address());
    let zk = connect(&wire.address()).await;
    let shared = counter(&zk, "/shared/cost");
    let shared = Copied::of(&shared);
    let lock = shared.lock();
    let of_a_read = usual(&wire, async || lock.read().await.unwrap().release().await.unwrap()).await;
    assert_eq!(of_a_read, (vec![], vec![Op::Create2, Op::GetChildren2, Op::Delete]));
    let of_a_value = usual(&wire, async || shared.read().await.unwrap().release().await.unwrap()).await;
    assert_eq!(of_a_value, (vec![Op::GetData], vec![Op::Create2, Op::GetChildren2, Op::Delete]));
    let of_a_write = usual(&wire, async || lock.write().await.unwrap().release().await.unwrap()).await;
    assert_eq!(of_a_write, (vec![], vec![Op::Create2, Op::GetChildren2, Op::Multi]));
    let two_commits = async || {
        let mut guard = shared.write().await.unwrap();
        for value in 1..=2 {
            *guard = value;
            guard.commit().await.unwrap();
        }
        guard.release().await.unwrap();
    };
    assert_eq!(
        usual(&wire, two_commits).await,
        (vec![Op::GetData, Op::Multi, Op::Multi], vec![Op::Create2, Op::GetChildren2, Op::Multi])
    );

    wire.reset();
    let mut changes = shared.changes();
    assert_eq!(**soon("the first", changes.next()).await.unwrap().unwrap(), 2);
    assert_eq!(requests(&wire), (vec![Op::Multi, Op::GetData, Op::GetData], vec![]));
    wire.reset();
    for _ in 0..10_000 {
        assert_eq!(**shared.latest().unwrap(), 2);
    }
    assert_eq!((wire.requests(), wire.notifications()), (vec![], 0));

    let other = connect(&server.address()).await;
    counter(&other, "/shared/cost").write().replacing(7).await.unwrap().commit().await.unwrap();
    assert_eq!(**soon("the next", changes.next()).await.unwrap().unwrap(), 7);
    assert_eq!(requests(&wire), (vec![Op::GetData, Op::GetData], vec![]));
    assert_eq!(wire.notifications(), 1);
}

#[support::judged]
async fn the_last_handle_takes_the_watch_with_it() {
    let server = Server::start();
    let zk = connect(&server.address()).await;
    let shared = counter(&zk, "/shared/watch");
    shared.read().await.unwrap().release().await.unwrap();
    let mut changes = shared.changes();
    soon("the first", changes.next()).await.unwrap().unwrap();
    let missing: Shared<u64> = Shared::new(&zk, "/not/there").unwrap();
    let mut none = missing.changes();
    soon("the missing value", none.next()).await.unwrap().unwrap_err();
    drop((shared, missing, none));
    support::scene::eventually("only the other one watches", || async { server.watches() == 1 }).await;
    drop(changes);
    support::scene::eventually("no watch is left", || async { server.watches() == 0 }).await;
}

#[support::judged]
async fn a_commit_whose_request_or_answer_is_lost_is_done_once() {
    let wire = Proxy::start(shared_server().address());
    let (zk, operator) = (connect(&wire.address()).await, connect(&shared_server().address()).await);
    let shared = counter(&zk, "/shared/lost");
    let frames = |request: bool| if request { Frames::requests(Op::Multi) } else { Frames::replies(Op::Multi) };
    // The first of these commits creates the node.
    for (round, (request, how)) in
        [(true, Close::Fin), (false, Close::Fin), (true, Close::Rst), (false, Close::Rst)].into_iter().enumerate()
    {
        for path in ["/shared/lost", &format!("/shared/lost-{round}")] {
            let shared = counter(&zk, path);
            let mut guard = shared.write().await.unwrap();
            let before = guard.written().cloned();
            let fault = wire.apply(Rule::on(frames(request).about("/value")).close(0, how));
            *guard += 1;
            let written = soon("the commit", guard.commit()).await.unwrap();
            assert!(fault.has_happened());
            assert_eq!(written.token, guard.lock().fencing_token());
            let reader = soon("the downgrade", guard.downgrade()).await.unwrap();
            assert_eq!((*reader, reader.written()), (if before.is_some() { round as u64 + 1 } else { 1 }, &written));
            assert_eq!(version(&operator, &shared).await, if before.is_some() { round as i32 } else { 0 });
        }
    }
    assert_eq!(*shared.read().await.unwrap(), 4);
}

/// Another client deletes the node and creates it again, with the same version as before.
#[support::judged]
async fn a_commit_in_doubt_does_not_overwrite_a_recreated_node() {
    let (zk, path) = (Memory::new(), "/shared/anew");
    let stranger = session(&zk.connect()).await;
    let has_happened = AtomicBool::new(false);
    let (operator, node) = (zk.connect(), format!("{path}/value"));
    let line = Hindered::new(&zk, move |asked| {
        let Request::Transact([_, Operation::Set { path, .. }]) = asked else { return None };
        if has_happened.swap(true, Ordering::Relaxed) {
            return None;
        }
        operator.faults().remove(path);
        now(stranger.create(path, b"a stranger's", Kind::Persistent)).expect("created");
        Some(Failure::Unknown("lost".to_owned()))
    });
    drop(checks::counter(&zk, path).read().await.unwrap());
    let shared = checks::counter(&line, path);
    let mut guard = shared.write().await.unwrap();
    let error = guard.commit().await.unwrap_err();
    assert!(matches!(error, Error::OutcomeUnknown { .. }), "{error}");
    let error = guard.commit().await.unwrap_err();
    assert!(matches!(error, Error::TransactionRefused { reason: Failure::BadVersion, .. }), "{error}");
    assert_eq!(session(&zk).await.data(&node).await.unwrap().0, b"a stranger's");
}

#[support::judged]
async fn a_commit_that_is_cut_at_any_byte_is_done_once() {
    let wire = Proxy::start(shared_server().address());
    let (zk, operator) = (connect(&wire.address()).await, connect(&shared_server().address()).await);
    let shared = counter(&zk, "/shared/cut");
    let mut guard = shared.write().await.unwrap();
    guard.commit().await.unwrap();
    // The cuts reach beyond the end of the request and of the reply, because both are shorter than 396 bytes.
    for (number, bytes) in (0..400).step_by(9).enumerate() {
        let how = if number % 2 == 0 { Close::Fin } else { Close::Rst };
        let frames = if number % 3 == 0 { Frames::replies(Op::Multi) } else { Frames::requests(Op::Multi) };
        let fault = wire.apply(Rule::on(frames.about("/value")).close(bytes, how));
        *guard += 1;
        let written = soon("the commit", guard.commit()).await.unwrap();
        assert!(fault.has_happened());
        assert_eq!(written.commit, number as u32 + 2);
        assert_eq!(version(&operator, &shared).await, number as i32 + 1);
    }
    assert_eq!(*guard.downgrade().await.unwrap(), 45);
}

/// A caller is cut off for longer than its session lives, and other callers commit meanwhile. After the reconnect, the
/// caller still learns the outcome of its commit.
#[support::judged]
async fn a_commit_in_doubt_settles_after_later_commits() {
    let operator = connect(&shared_server().address()).await;
    for (is_done, path) in [(true, "/shared/doubt-done"), (false, "/shared/doubt-undone")] {
        let wire = Proxy::start(shared_server().address());
        let zk = connect_with(&wire.address(), SHORT).await;
        let (here, there) = (counter(&zk, path), counter(&operator, path));
        there.read().await.unwrap().release().await.unwrap();

        let mut guard = here.write().await.unwrap();
        *guard = 1;
        let frames = if is_done { Frames::replies(Op::Multi) } else { Frames::requests(Op::Multi) };
        let fault = wire.apply(Rule::on(frames.about("/value")).close(0, Close::Fin));
        let commit = tokio::spawn(async move {
            let answer = guard.commit().await;
            (answer, guard.lock().is_held())
        });
        soon("the fault", fault.happens()).await;
        wire.cut();
        let mut next = soon("the next holder", there.write()).await.unwrap();
        assert_eq!(*next, u64::from(is_done));
        *next = 5;
        next.commit().await.unwrap();
        wire.heal();
        let (answer, is_held) = soon("the commit", commit).await.unwrap();
        match answer {
            Ok(written) => assert!(is_done, "{written:?}"),
            Err(error) => assert!(!is_done && matches!(error, Error::Lost(_)), "{error}"),
        }
        assert!(!is_held);
        assert_eq!(*next.downgrade().await.unwrap(), 5);
    }
}

#[support::judged]
async fn a_value_too_large_for_the_servers_is_refused() {
    let server = Server::start_with(&[], &["-Djute.maxbuffer=20000"]);
    let zk = connect_with(&server.address(), CALM).await;
    let shared: Shared<Vec<u8>> = Shared::with_format(&zk, "/shared/limit", Raw).build().unwrap();
    let mut guard = shared.write().replacing(vec![1; 100]).await.unwrap();
    for _ in 0..2 {
        let sent = guard.len();
        if sent == 100 {
            guard.commit().await.unwrap();
        }
        guard.resize(30_000, 2);
        let error = soon("the commit", guard.commit()).await.unwrap_err();
        let error = error.value_error().unwrap_or_else(|| panic!("{error}"));
        assert!(matches!(error, ValueError::TooLarge { bytes: 30_000.., limit: None }), "{error}");
        assert!(error.to_string().contains("jute.maxbuffer"), "{error}");
    }
    assert!(guard.lock().is_held());
    let guard = guard.downgrade().await.unwrap();
    assert_eq!(*guard, vec![1; 100]);
    guard.release().await.unwrap();
    let mut guard = shared.write().replacing(vec![3; 15_000]).await.unwrap();
    guard.commit().await.unwrap();
}

#[support::judged]
async fn a_timeout_holds_when_the_connection_breaks_in_the_read() {
    let wire = Proxy::start(shared_server().address());
    let zk = connect(&wire.address()).await;
    let shared = counter(&zk, "/shared/late");
    shared.read().await.unwrap().release().await.unwrap();
    for is_blocking in [false, true] {
        let held = wire.hold(Frames::requests(Op::GetData).about("/value"));
        let reading = shared.read().timeout(Duration::from_millis(300));
        let answer = if is_blocking {
            let blocked = tokio::task::spawn_blocking(|| reading.blocking());
            soon("the timeout", blocked).await.unwrap()
        } else {
            soon("the timeout", reading).await
        };
        let error = answer.unwrap_err();
        assert!(held.has_arrived() && error.is_timeout(), "{error}");
        held.release();
        assert_eq!(*soon("a read", shared.read()).await.unwrap(), 0);
    }
}

#[support::judged]
async fn a_first_value_an_update_and_a_copy_cost_as_promised() {
    let wire = Proxy::start(shared_server().address());
    let zk = connect(&wire.address()).await;
    // The first value costs two transactions: the commit of the initial value, and the release of the lock.
    let shared = counter(&zk, "/shared/comforts");
    let live = soon("the first value", shared.live()).await.unwrap();
    assert_eq!((**live.get(), wire.count(Op::Multi)), (0, 2), "{:?}", wire.requests());
    let (other, tapped) = (connect(&shared_server().address()).await, Proxy::start(shared_server().address()));
    let writer = counter(&connect(&tapped.address()).await, "/shared/comforts");
    let update = async || {
        writer.update(|value| *value += 1).await.unwrap();
        becomes_empty(&other, "/shared/comforts/lock").await;
    };
    let (about_value, about_lock) = usual(&tapped, update).await;
    assert_eq!(about_value, [Op::GetData, Op::Multi]);
    assert_eq!(about_lock, [Op::Create2, Op::GetChildren2, Op::Multi]);
    let newest = *writer.read().await.unwrap();
    soon("the last", shared.wait_for(move |value| *value == newest)).await.unwrap();
    wire.reset();
    for _ in 0..10_000 {
        assert_eq!(**live.get(), newest);
    }
    let value = shared.wait_for(move |value| *value == newest).await.unwrap();
    assert_eq!((**value, wire.requests(), wire.notifications()), (newest, vec![], 0));
}

#[support::judged]
async fn an_update_under_a_kept_lock_costs_a_read_and_a_commit() {
    let wire = Proxy::start(shared_server().address());
    let zk = connect(&wire.address()).await;
    let shared: Shared<u64> = Shared::builder(&zk, "/shared/kept-update")
        .initial(|| 0)
        .lock(|lock| lock.keep(Duration::from_secs(600)))
        .build()
        .unwrap();
    shared.update(|value| *value += 1).await.unwrap();
    let update = async || drop(shared.update(|value| *value += 1).await.unwrap());
    assert_eq!(usual(&wire, update).await, (vec![Op::GetData, Op::Multi], vec![]));
}

#[support::judged]
async fn the_first_value_survives_a_lost_connection_and_session() {
    let wire = Proxy::start(shared_server().address());
    let (zk, other) = (connect_with(&wire.address(), SHORT).await, connect(&shared_server().address()).await);
    for (number, frames) in [
        Frames::requests(Op::Multi).about("/value"),
        Frames::replies(Op::Multi).about("/value"),
        Frames::replies(Op::Create2).about("/lock"),
    ]
    .into_iter()
    .enumerate()
    {
        let path = format!("/shared/first-{number}");
        let fault = wire.apply(Rule::on(frames).close(0, Close::Rst));
        let shared = counter(&zk, &path);
        let first = tokio::spawn(async move { shared.live().await });
        soon("the fault", fault.happens()).await;
        if number == 0 {
            // The cut lasts longer than the session lives.
            wire.cut();
            tokio::time::sleep(3 * SHORT).await;
            wire.heal();
        }
        let live = soon("the first value", first).await.unwrap().unwrap();
        assert_eq!((**live.get(), live.get().written().commit), (0, 1));
        assert_eq!(version(&other, &counter(&other, &path)).await, 0, "the value was written twice");
        becomes_empty(&other, &format!("{path}/lock")).await;
    }
}

#[support::judged]
async fn a_forbidden_first_value_is_an_error_of_the_changes() {
    let all_but_create = Permissions::READ | Permissions::WRITE | Permissions::DELETE;
    let acl = Acl::nobody().allow("world", "anyone", all_but_create);
    let zk = ZooKeeper::builder().acl(acl).session_timeout(CALM).connect(&shared_server().address()).await.unwrap();
    // The client may make the directory, but no node in the directory.
    let error = soon("the refusal", counter(&zk, "/shared-forbidden").live()).await.unwrap_err();
    assert!(matches!(error, Error::PermissionDenied { .. }), "{error}");
    let mut changes = counter(&zk, "/shared-forbidden").changes();
    let error = soon("the refusal", changes.next()).await.expect("open").unwrap_err();
    assert!(matches!(error, Error::PermissionDenied { .. }), "{error}");
}
