//! In the place of `src/sync.rs`, when the library is built for these tests: what shuttle switches threads at, and nothing
//! that differs from run to run.

use std::hash::{BuildHasherDefault, DefaultHasher};

use shuttle::rand::RngCore;
pub(crate) use shuttle::sync::{Condvar, Mutex, MutexGuard, RwLock, RwLockWriteGuard, atomic};
pub(crate) use shuttle::thread;
use tokio::sync::futures::Notified;

/// A map whose order is the same in every run.
pub(crate) type HashMap<K, V> = std::collections::HashMap<K, V, BuildHasherDefault<DefaultHasher>>;

/// A set whose order is the same in every run.
pub(crate) type HashSet<T> = std::collections::HashSet<T, BuildHasherDefault<DefaultHasher>>;

/// A number that the schedule draws.
pub(crate) fn random() -> u64 {
    shuttle::rand::thread_rng().next_u64()
}

/// Tokio's, with a switch before each step. Without one, nothing could happen between a look under a lock and the wait
/// for a notification. Tokio's other channels need none: whoever polls one does nothing but that.
#[derive(Debug)]
pub(crate) struct Notify(tokio::sync::Notify);

impl Notify {
    pub(crate) fn new() -> Notify {
        Notify(tokio::sync::Notify::new())
    }

    pub(crate) fn notified(&self) -> Notified<'_> {
        switch();
        self.0.notified()
    }

    pub(crate) fn notify_one(&self) {
        switch();
        self.0.notify_one();
    }

    pub(crate) fn notify_waiters(&self) {
        switch();
        self.0.notify_waiters();
    }
}

impl Default for Notify {
    fn default() -> Notify {
        Notify::new()
    }
}

/// Shuttle may go on with another thread before any look at an atomic.
fn switch() {
    let _ = atomic::AtomicBool::new(false).load(atomic::Ordering::Relaxed);
}
