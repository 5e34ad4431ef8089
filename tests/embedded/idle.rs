//! Futures that are polled once, and then not again while their answers come: nobody else waits for them.

use support::polled::*;
use support::wired::Wired;
use tokio_test::{assert_pending, assert_ready_ok};
use zk_rwlock::{Guard, Memory, RwLock};

const DIRECTORY: &str = "/lock";

fn lock(client: &Wired) -> RwLock {
    RwLock::new(client, DIRECTORY).expect("valid")
}

/// A client of a lock whose directory is there.
fn client() -> Wired {
    let wired = Wired::new(Memory::new());
    drop(write(&lock(&wired)));
    wired
}

/// So many acquisitions that have sent their requests, and are not polled when the answers come.
fn idle<G: Guard>(wired: &Wired, begin: impl Fn(&RwLock) -> Acquiring<G>) -> Vec<Acquiring<G>> {
    wired.stall();
    let mut idle: Vec<_> = (0..4).map(|_| begin(&lock(wired))).collect();
    idle.iter_mut().for_each(|it| assert!(it.poll().is_pending()));
    wired.flow();
    while wired.deliver() {}
    idle
}

#[test]
fn idle_readers_hold_up_no_reader_and_no_try() {
    let wired = client();
    let _idle = idle(&wired, reading);
    assert!(read(&lock(&wired)).is_held());
    assert!(now(lock(&wired).try_read()).expect("only readers are there").is_held());
}

#[test]
fn idle_writers_hold_up_none_before_them() {
    let wired = client();
    let holder = read(&RwLock::new(&wired.memory.connect(), DIRECTORY).expect("valid"));
    let mut head = writing(&lock(&wired));
    assert_pending!(head.poll());
    let _idle = idle(&wired, writing);
    drop(holder);
    assert!(assert_ready_ok!(head.poll()).is_held());
}
