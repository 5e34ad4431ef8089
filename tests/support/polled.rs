//! Futures that a test polls by hand, on the embedded ensemble. Use them to drop a future between any two of its
//! requests, or to check what the first poll does.

use std::future::IntoFuture;
use std::task::Poll;

use tokio_test::assert_ready;
use tokio_test::task::{self, Spawn};
use zk_rwlock::{Granting, Memory, ReadGuard, RwLock, WriteGuard};

pub type Acquiring<G> = Spawn<Granting<G>>;

pub fn reading(lock: &RwLock) -> Acquiring<ReadGuard> {
    task::spawn(lock.read().into_future())
}

pub fn writing(lock: &RwLock) -> Acquiring<WriteGuard> {
    task::spawn(lock.write().into_future())
}

/// Polls a future once, and returns its output. Panics if the future is not ready.
pub fn now<F: IntoFuture>(future: F) -> F::Output {
    assert_ready!(task::spawn(future.into_future()).poll())
}

pub fn read(lock: &RwLock) -> ReadGuard {
    now(lock.read()).expect("free or shared")
}

pub fn write(lock: &RwLock) -> WriteGuard {
    now(lock.write()).expect("free")
}

/// Polls up to `polls` times. After the first poll, polls only if the waker has fired. Returns `None` if the future
/// waits for a wake-up.
pub fn poll_up_to<F: Future>(future: &mut Spawn<F>, polls: usize) -> Option<Poll<F::Output>> {
    for i in 0..polls {
        if i > 0 && !future.is_woken() {
            return None;
        }
        if let Poll::Ready(output) = future.poll() {
            return Some(Poll::Ready(output));
        }
    }
    Some(Poll::Pending)
}

/// The part of a write that is lost: its request or its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    Reply,
    Request,
}

/// Several cases to test. Each case is a list of losses for consecutive writes.
pub const FAULTS: [&[Lost]; 7] = [
    &[],
    &[Lost::Reply],
    &[Lost::Request],
    &[Lost::Reply, Lost::Reply],
    &[Lost::Reply, Lost::Request],
    &[Lost::Request, Lost::Reply],
    &[Lost::Request, Lost::Request, Lost::Reply],
];

/// Applies these losses to the client's next writes, one for each write.
pub fn lose(zk: &Memory, faults: &[Lost]) {
    for fault in faults {
        match fault {
            Lost::Reply => zk.faults().lose_next_reply(),
            Lost::Request => zk.faults().lose_next_request(),
        }
    }
}
