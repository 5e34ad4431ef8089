//! How much room on a session is reserved for the paths that a contender watches. Too little, and after a reconnect the
//! server refuses the request that sets the watches again; too much, and there are more sessions than needed.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use support::polled::now;
use tokio_test::{assert_pending, task};
use zk_rwlock::coordinator::{Coordinator, Failure, SessionSlot};
use zk_rwlock::{Memory, RwLock, Semaphore};

const PATH: &str = "/locks/of-a-service/config";

/// A client that notes how many bytes each session slot was asked for.
#[derive(Clone, Debug)]
struct Noted(Memory, Arc<Mutex<Vec<usize>>>);

#[async_trait]
impl Coordinator for Noted {
    async fn session_slot(&self, watched_bytes: usize) -> Result<SessionSlot, Failure> {
        self.1.lock().expect("no panic").push(watched_bytes);
        self.0.session_slot(watched_bytes).await
    }

    async fn close(&self) {
        Coordinator::close(&self.0).await;
    }

    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        self.0.sleep(duration)
    }
}

impl Noted {
    fn new() -> Noted {
        Noted(Memory::new(), Arc::default())
    }

    /// How many bytes were asked for last.
    fn reserved(&self) -> usize {
        *self.1.lock().expect("no panic").last().expect("a slot was asked for")
    }

    /// The length of the path of the longest node in this directory.
    fn longest(&self, directory: &str) -> usize {
        let names = self.0.children(directory);
        directory.len() + 1 + names.iter().map(String::len).max().expect("somebody is there")
    }
}

/// A few bytes more than needed are no harm: the name of a node is not known before the server has numbered it.
fn assert_enough(reserved: usize, needed: usize) {
    assert!((needed..=needed + 16).contains(&reserved), "{reserved} bytes are reserved for {needed}");
}

#[test]
fn a_contender_has_room_for_its_own_node_and_its_predecessors() {
    let zk = Noted::new();
    let lock = RwLock::new(&zk, PATH).expect("valid");
    let _held = now(lock.write()).expect("free");
    let mut waits = task::spawn(lock.write().into_future());
    assert_pending!(waits.poll());
    assert_enough(zk.reserved(), 2 * zk.longest(PATH));
}

#[test]
fn a_contender_that_keeps_its_node_has_room_for_the_directory_too() {
    let zk = Noted::new();
    let lock = RwLock::builder(&zk, PATH).keep(Duration::from_secs(1)).build().expect("valid");
    let _held = now(lock.write()).expect("free");
    assert_enough(zk.reserved(), 2 * zk.longest(PATH) + PATH.len());
}

#[test]
fn the_first_that_waits_for_permits_has_room_for_the_number_and_the_permits() {
    let zk = Noted::new();
    let limit = Semaphore::new(&zk, PATH, 1).expect("valid");
    let _held = now(limit.acquire()).expect("free");
    let mut waits = task::spawn(limit.acquire().into_future());
    assert_pending!(waits.poll());
    let (queue, permits) = (format!("{PATH}/queue"), format!("{PATH}/permits"));
    assert_enough(zk.reserved(), 2 * zk.longest(&queue) + PATH.len() + permits.len());
}
