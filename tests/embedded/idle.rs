//! Futures that have sent requests and are then never polled again. They must not block other contenders.

use std::future::IntoFuture;

use support::polled::*;
use support::wired::Wired;
use tokio::sync::oneshot;
use tokio_test::{assert_pending, assert_ready_ok, task};
use zk_rwlock::coordinator::Coordinator;
use zk_rwlock::queue::NodeName;
use zk_rwlock::{Guard, Memory, RwLock, Semaphore};

const DIRECTORY: &str = "/lock";

fn lock(client: &Wired) -> RwLock {
    RwLock::new(client, DIRECTORY).expect("valid")
}

/// Returns a client of a lock whose directory exists.
fn client() -> Wired {
    let wired = Wired::new(Memory::new());
    drop(write(&lock(&wired)));
    wired
}

/// Begins several acquisitions. They send their requests, and are not polled when the replies come.
fn idle<G: Guard>(wired: &Wired, begin: impl Fn(&RwLock) -> Acquiring<G>) -> Vec<Acquiring<G>> {
    wired.stall();
    let mut idle: Vec<_> = (0..4).map(|_| begin(&lock(wired))).collect();
    idle.iter_mut().for_each(|it| assert!(it.poll().is_pending()));
    deliver_all(wired);
    idle
}

fn deliver_all(wired: &Wired) {
    wired.flow();
    while wired.deliver() {}
}

#[test]
fn idle_readers_block_no_reader_and_no_try() {
    let wired = client();
    let _idle = idle(&wired, reading);
    assert!(read(&lock(&wired)).is_held());
    assert!(now(lock(&wired).try_read()).expect("only readers are there").is_held());
}

#[test]
fn idle_writers_block_no_contender_ahead() {
    let wired = client();
    let holder = read(&RwLock::new(&wired.memory.connect(), DIRECTORY).expect("valid"));
    let mut head = writing(&lock(&wired));
    assert_pending!(head.poll());
    let _idle = idle(&wired, writing);
    drop(holder);
    assert!(assert_ready_ok!(head.poll()).is_held());
}

#[test]
fn an_idle_downgrade_blocks_no_reader_of_its_session() {
    let wired = client();
    let guard = write(&lock(&wired));
    let mut reader = reading(&lock(&wired));
    assert_pending!(reader.poll());
    wired.stall();
    let mut downgrade = task::spawn(Box::pin(guard.downgrade()));
    assert_pending!(downgrade.poll());
    deliver_all(&wired);
    assert!(assert_ready_ok!(reader.poll()).is_held());
}

#[test]
fn an_idle_release_whose_request_was_lost_is_sent_again() {
    let wired = client();
    let mut release = task::spawn(Box::pin(write(&lock(&wired)).release()));
    wired.stall();
    assert_pending!(release.poll());
    wired.cut(0);
    wired.flow();
    wired.memory.faults().heal();
    assert_eq!(wired.memory.children(DIRECTORY), Vec::<String>::new());
}

#[test]
fn an_idle_waiter_with_a_removed_node_blocks_nobody() {
    let wired = client();
    let memory = &wired.memory;
    let holder = write(&RwLock::new(&memory.connect(), DIRECTORY).expect("valid"));
    let mut idle = writing(&lock(&wired));
    wired.stall();
    assert_pending!(idle.poll());
    while wired.deliver() {}
    let (done, mut polled) = oneshot::channel();
    // No other task runs during this background task, so the waiter is the first to request the watch on its own node.
    now(memory.session_slot(0)).expect("always open").session().spawn(Box::pin(async move {
        assert_pending!(idle.poll());
        drop(done.send(idle));
    }));
    let _idle = polled.try_recv().expect("the background task runs at once");
    assert!(wired.has_requests(), "the waiter has not asked for its watches");
    deliver_all(&wired);
    let mut next = writing(&lock(&wired));
    assert_pending!(next.poll());
    let mut queue: Vec<_> = memory.children(DIRECTORY).iter().filter_map(|name| NodeName::parse(name)).collect();
    queue.sort_by_key(NodeName::sequence);
    memory.faults().remove(format!("{DIRECTORY}/{}", queue[1].as_str()));
    drop(holder);
    assert!(assert_ready_ok!(next.poll()).is_held());
}

#[test]
fn an_idle_acquisition_with_its_permit_blocks_nobody() {
    let wired = Wired::new(Memory::new());
    let permits = Semaphore::builder(&wired, "/limit").permits(2).build().expect("valid");
    // After two uses, the session knows the queue, and so a new contender knows its predecessor.
    (0..2).for_each(|_| drop(now(permits.acquire()).expect("free")));
    let mut idle = task::spawn(permits.acquire().into_future());
    wired.stall();
    while wired.memory.children("/limit/permits").is_empty() {
        assert_pending!(idle.poll());
        while wired.deliver() {}
    }
    let mut next = task::spawn(permits.acquire().into_future());
    assert_pending!(next.poll());
    deliver_all(&wired);
    assert!(
        poll_up_to(&mut next, 9).is_some_and(|answer| answer.is_ready()),
        "the contender did not get the free permit"
    );
}
