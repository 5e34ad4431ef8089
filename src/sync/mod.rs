//! What the library's threads share their state by, and what it draws by lot.
//!
//! These are the standard library's and tokio's. No other file takes a lock, an atomic or a map in random order from there,
//! because a test puts others in their place, and so decides each switch from one thread to another: `threads/sync.rs`.

mod lock;

pub(crate) use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
pub(crate) use std::sync::{MutexGuard, OnceLock, atomic};
pub(crate) use std::thread_local;

pub(crate) use tokio::sync::{Notify, futures::Notified, watch};

#[cfg(feature = "metrics")]
pub(crate) use lock::Condvar;
pub(crate) use lock::{Mutex, SharedMutex};

/// For what the whole process shares: a test runs several schedules at once.
pub(crate) mod of_process {
    pub(crate) use std::sync::atomic::AtomicBool;
}

mod raw {
    pub(super) use std::sync::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
}

/// A number that nobody else draws.
pub(crate) fn random() -> u64 {
    RandomState::new().hash_one(std::process::id())
}
