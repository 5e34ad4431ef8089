//! The instruments of the tests: servers that a test starts, proxies that cut and delay traffic, embedded ensembles
//! that answer late or fail, futures that a test polls by hand, and judges of recorded runs.

// Only the tests and the benchmarks of this repository use this crate, and its documentation is not published.
#![allow(missing_docs, missing_debug_implementations)]

pub mod candidate;
pub mod clock;
pub mod copy;
pub mod cost;
pub mod ensemble;
pub mod events;
pub mod fake;
pub mod fleet;
#[cfg(target_os = "linux")]
pub mod forks;
pub mod frames;
pub mod garble;
pub mod harness;
pub mod hindered;
pub mod history;
pub mod keeper;
pub mod page;
pub mod peer;
pub mod polled;
pub mod port;
pub mod postgres;
pub mod process;
pub mod program;
pub mod replay;
pub mod rounds;
pub mod rules;
pub mod scene;
pub mod server;
pub mod several;
pub mod simulated;
pub mod slow;
pub mod snapshot;
pub mod standstill;
pub mod storm;
pub mod stranger;
pub mod trace;
pub mod two;
pub mod txn_log;
pub mod wire;
pub mod wired;
pub mod witness;

pub use judged::judged;
