//! Tests of the lock on many threads, under random schedules of shuttle. Shuttle chooses the next thread at each lock
//! and each atomic of the library. The tests find two conflicting holders, and threads that wait for ever.
//! CONTRIBUTING.md says how to run a failed schedule again.

extern crate zk_rwlock_threads as zk_rwlock;

mod deadlocks;
mod explore;
mod keeps;
mod leaders;
mod locks;
mod losses;
mod permits;
mod several;
mod values;
#[allow(dead_code, unreachable_pub, reason = "only what is tried here is used")]
mod waits;
mod witness;
mod world;
