//! The mutexes, atomics and maps that the library's threads share, and a function that returns a random number.
//!
//! The library's other files import these types from here, and not from the standard library or tokio. The test
//! `threads/` replaces this file by `threads/sync.rs`, whose types let the test decide every switch between threads.

mod lock;

pub(crate) use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
pub(crate) use std::sync::{MutexGuard, OnceLock, atomic};

pub(crate) use tokio::sync::{Notify, mpsc, watch};

pub(crate) use lock::Mutex;

/// Types for state that the whole process shares. In `threads/sync.rs`, these types are the standard types, too. The
/// test `threads/` runs several schedules concurrently in one process, so it cannot control state that they all share.
pub(crate) mod of_process {
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
}

mod raw {
    pub(super) use std::sync::{Mutex, MutexGuard};
}

/// Returns a random number.
pub(crate) fn random() -> u64 {
    // If the operating system gives no random number, the result is a hash of the process id with the standard
    // library's random keys.
    getrandom::u64().unwrap_or_else(|_| RandomState::new().hash_one(std::process::id()))
}
