//! The lock on many threads, under schedules that shuttle draws: at each lock and each atomic of the library it decides
//! which thread goes on. Two who hold at once are found, and so is whoever waits for ever. CONTRIBUTING.md says how a
//! schedule that failed is run again.

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
