//! The end of the sequence numbers, on a real server whose counter the test sets.
//!
//! From ZooKeeper 3.6 on, the counter stops at 2147483647, and several contenders get that number. A lock that grants the lowest
//! number would be granted to all of them, so the library refuses contenders long before that number.

use std::sync::Arc;

use support::scene::{
    becomes_empty, children, connect, granted, line, line_becomes, lock_at, reader, session, soon, writer,
};
use support::server::{Server, WITHOUT_DIGESTS, shared_server};
use tokio::task::JoinSet;
use zk_rwlock::coordinator::{Failure, Kind, Session};
use zk_rwlock::queue::{MemberState, NodeName};
use zk_rwlock::{Error, Loss, Mode, RwLock, ZooKeeper};

/// From this sequence number on (half of all numbers), the last contender to leave deletes the directory, so that the numbers
/// start again at 0.
const RESTART_FROM: i32 = 1 << 30;

/// From this sequence number on (the last 2^20 numbers), the lock refuses new contenders.
const REFUSED_FROM: i32 = i32::MAX - (1 << 20) + 1;

const DIRECTORY: &str = "/locks/old";

/// Returns a server on which the next contender gets the sequence number `next`. If `kept`, a node of another program prevents
/// the deletion of the directory.
async fn server_at(next: i32, kept: bool) -> Server {
    let server = Server::start_with(&[], &WITHOUT_DIGESTS);
    let zk = connect(&server.address()).await;
    soon("the first use", lock_at(&zk, DIRECTORY).write()).await.expect("free").release().await.expect("held");
    if kept {
        let file = session(&zk).await.create(&format!("{DIRECTORY}/foo"), &[], Kind::Persistent).await;
        file.expect("every client may create here");
    }
    zk.close().await;
    server.set_next_sequence(DIRECTORY, next);
    server
}

async fn two(server: &Server) -> (ZooKeeper, RwLock, ZooKeeper, RwLock) {
    let (a, b) = (connect(&server.address()).await, connect(&server.address()).await);
    let (lock_a, lock_b) = (lock_at(&a, DIRECTORY), lock_at(&b, DIRECTORY));
    (a, lock_a, b, lock_b)
}

async fn numbers(zk: &ZooKeeper) -> Vec<(Mode, i64)> {
    let names = children(zk, DIRECTORY).await;
    let mut numbers: Vec<_> = names.iter().filter_map(|name| NodeName::parse(name)).collect();
    numbers.sort_by_key(NodeName::sequence);
    numbers.iter().map(|contender| (contender.mode(), contender.sequence())).collect()
}

/// Makes a node with the next sequence number, as a program without this library would.
async fn join(session: &Arc<dyn Session>, prefix: &str) -> Result<String, Failure> {
    let created = session.create(&format!("{DIRECTORY}/{prefix}"), &[], Kind::EphemeralSequential).await?;
    Ok(created.path.rsplit('/').next().unwrap_or_default().to_owned())
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_contender_to_leave_restarts_old_numbers() {
    let server = server_at(RESTART_FROM - 1, false).await;
    let (zk, a, _other, b) = two(&server).await;
    let before = soon("free", a.write()).await.expect("free");
    let mut token = before.fencing_token();
    let next = reader(&b);
    line_becomes(&a, "W+ R-").await;
    assert_eq!(numbers(&zk).await, [(Mode::Write, i64::from(RESTART_FROM) - 1), (Mode::Read, 1 << 30)]);
    before.release().await.expect("held");
    let next = granted(next).await;
    assert!(next.fencing_token() > token && next.is_held());
    token = next.fencing_token();
    soon("the last one leaves", next.release()).await.expect("held");
    let gone = session(&zk).await.children(DIRECTORY).await;
    assert_eq!(gone, Err(Failure::NoNode), "the last contender to leave did not delete the directory");

    let fresh = soon("free", b.write()).await.expect("free");
    assert_eq!(numbers(&zk).await, [(Mode::Write, 0)]);
    assert!(fresh.fencing_token() > token, "the token did not rise");
    fresh.release().await.expect("held");
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn newcomers_near_the_last_number_are_refused() {
    let server = server_at(REFUSED_FROM - 3, false).await;
    let (zk, a, _other, b) = two(&server).await;
    let first = soon("free", a.write()).await.expect("free");
    let second = reader(&b);
    line_becomes(&a, "W+ R-").await;
    let third = writer(&a);
    line_becomes(&a, "W+ R- W-").await;
    for lock in [&a, &b] {
        let error = soon("a refusal", lock.write()).await.expect_err("the numbers end");
        assert!(matches!(&error, Error::SequenceExhausted { path } if path == DIRECTORY), "{error:?}");
        let error = soon("a refusal", lock.read()).await.expect_err("the numbers end");
        assert!(matches!(error, Error::SequenceExhausted { .. }), "{error:?}");
    }
    assert_eq!(line(&b).await, "W+ R- W-", "a refused contender is still in the queue");
    first.release().await.expect("held");
    granted(second).await.release().await.expect("held");
    granted(third).await.release().await.expect("held");
    // The last contender to leave has deleted the directory, so the numbers start again without an operator.
    let fresh = soon("the numbers start again", b.write()).await.expect("free");
    assert_eq!(numbers(&zk).await, [(Mode::Write, 0)]);
    fresh.release().await.expect("held");
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn several_contenders_with_the_last_number_all_fail() {
    let server = server_at(i32::MAX - 1, true).await;
    let (zk, a, other, b) = two(&server).await;
    let (one, two) = (session(&zk).await, session(&other).await);

    // The reason for the limit: the server gives several contenders the same number.
    let names = [
        join(&one, "x-WRITE-").await.expect("a number"),
        join(&two, "y-WRITE-").await.expect("a number"),
        join(&one, "z-READ-").await.expect("a number"),
    ];
    assert_eq!(names, ["x-WRITE-2147483646", "y-WRITE-2147483647", "z-READ-2147483647"]);

    for lock in [&a, &b] {
        for error in [
            soon("a refusal", lock.write()).await.expect_err("the numbers end"),
            soon("a refusal", lock.read()).await.expect_err("the numbers end"),
        ] {
            assert!(matches!(error, Error::SequenceExhausted { .. }), "{error:?}");
        }
        assert!(soon("an answer", lock.try_write()).await.is_err_and(|error| error.is_would_block()));
    }
    let queue = soon("the queue", a.queue()).await.expect("readable");
    let states: Vec<_> = queue.members.iter().map(|member| member.state.clone()).collect();
    assert_eq!(states, [MemberState::Holds, MemberState::Stuck, MemberState::Stuck]);

    // The first of the contenders with this number has left. Still no other contender with the same number may be granted.
    one.delete(&format!("{DIRECTORY}/{}", names[0])).await.expect("the node exists");
    let queue = soon("the queue", b.queue()).await.expect("readable");
    assert_eq!(queue.holders().count(), 0);
    for (session, name) in [(&two, &names[1]), (&one, &names[2])] {
        session.delete(&format!("{DIRECTORY}/{name}")).await.expect("the node exists");
    }
    assert_eq!(children(&zk, DIRECTORY).await, ["foo"]);
    let error = soon("a refusal", a.write()).await.expect_err("a foreign file keeps the directory");
    assert!(error.to_string().contains(DIRECTORY), "{error}");
    one.delete(&format!("{DIRECTORY}/foo")).await.expect("the node exists");
    let fresh = soon("the numbers start again", b.write()).await.expect("free");
    assert_eq!(numbers(&zk).await, [(Mode::Write, 0)]);
    fresh.release().await.expect("held");
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn an_empty_directory_of_used_up_numbers_works_again() {
    let server = server_at(REFUSED_FROM, false).await;
    for (again, next) in [(false, REFUSED_FROM), (true, i32::MAX), (true, -1), (true, i32::MIN)] {
        if again {
            server.set_next_sequence(DIRECTORY, next);
        }
        let (zk, a, _other, b) = two(&server).await;
        let first = soon("the numbers start again", a.write()).await.expect("the directory is empty");
        assert_eq!(numbers(&zk).await, [(Mode::Write, 0)], "from {next}");
        let second = reader(&b);
        line_becomes(&a, "W+ R-").await;
        first.release().await.expect("held");
        granted(second).await.release().await.expect("held");
    }
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn many_contenders_at_used_up_numbers_are_all_served() {
    let server = server_at(i32::MAX, false).await;
    let (zk, a, _other, b) = two(&server).await;
    let mut pairs = JoinSet::new();
    for lock in [&a, &b].repeat(3) {
        let lock = lock.clone();
        pairs.spawn(async move { lock.write().await.expect("the numbers start again").release().await.expect("held") });
    }
    soon("everyone had the lock", pairs.join_all()).await;
    becomes_empty(&zk, DIRECTORY).await;
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_deleted_near_the_end_loses_its_holder() {
    let server = server_at(REFUSED_FROM - 1, false).await;
    let (zk, a, _other, b) = two(&server).await;
    let held = soon("free", a.write()).await.expect("free");
    let operator = session(&zk).await;
    operator.delete(&held.node_path()).await.expect("the node exists");
    assert_eq!(soon("the loss", held.lost()).await, Loss::Removed);
    operator.delete(DIRECTORY).await.expect("the directory is empty");
    let fresh = soon("the numbers start again", b.write()).await.expect("free");
    assert_eq!(numbers(&zk).await, [(Mode::Write, 0)]);
    assert!(fresh.fencing_token() > held.fencing_token());
    assert!(matches!(soon("an answer", held.release()).await, Err(Error::Lost(Loss::Removed))));
    assert!(fresh.is_held());
    fresh.release().await.expect("held");
}

/// Every create takes a number of the directory's counter, so a node that is made by hand may have the number that the next contender
/// gets.
#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_made_by_hand_with_our_number_is_named() {
    let zk = connect(&shared_server().address()).await;
    let operator = session(&zk).await;
    for (round, (name, kind)) in [
        ("foo-WRITE-0000000002", Kind::Persistent),
        ("foo-READ-0000000002", Kind::Persistent),
        ("foo~a1-WRITE-0000000002", Kind::Ephemeral),
    ]
    .into_iter()
    .enumerate()
    {
        for writes in [true, false] {
            let directory = format!("/locks/by-hand-{round}-{writes}");
            let lock = lock_at(&zk, &directory);
            soon("the first use", lock.write()).await.expect("free").release().await.expect("held");
            let by_hand = format!("{directory}/{name}");
            operator.create(&by_hand, &[], kind).await.expect("every client may create here");
            let error = match writes {
                true => soon("the refusal", lock.write()).await.map(drop),
                false => soon("the refusal", lock.read()).await.map(drop),
            };
            let error = error.expect_err("two nodes have the same number");
            let Error::NumberTaken { path, node } = &error else { panic!("{error:?}") };
            assert_eq!((&path[..], &node[..]), (&directory[..], name));
            assert!(!error.is_lost(), "nothing was removed: {error}");
            let said = error.to_string();
            assert!(said.starts_with(&by_hand) && said.ends_with("delete it"), "{said}");
            assert_eq!(children(&zk, &directory).await, [name], "the contender has left its node");
            operator.delete(&by_hand).await.expect("the node exists");
            soon("the cure", lock.write()).await.expect("free").release().await.expect("held");
        }
    }
}
