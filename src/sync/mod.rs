//! The locks, atomics and maps that the library's threads share, and its random numbers.
//!
//! These types come from the standard library and tokio. All other files import them from here, because a test of
//! schedules replaces them (`threads/sync.rs`) and then decides each switch from one thread to another.

mod lock;

pub(crate) use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
pub(crate) use std::sync::{MutexGuard, OnceLock, atomic};
pub(crate) use std::thread_local;

pub(crate) use tokio::sync::{Notify, futures::Notified, watch};

#[cfg(feature = "metrics")]
pub(crate) use lock::Condvar;
pub(crate) use lock::{Mutex, SharedMutex};

/// For state that the whole process shares, which no schedule replaces, because a test runs several schedules at once.
pub(crate) mod of_process {
    pub(crate) use std::sync::atomic::AtomicBool;
}

mod raw {
    pub(super) use std::sync::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
}

/// Returns a random number.
pub(crate) fn random() -> u64 {
    // The operating system has random numbers on each platform that the library supports.
    getrandom::u64().unwrap_or_else(|_| RandomState::new().hash_one(std::process::id()))
}
