//! What the tests stand on: a real server, a wire that can be tapped and cut, and acquisitions that are polled by hand.

// Every test binary compiles this module and none uses all of it; `pub` keeps its usual meaning.
#![allow(dead_code, unreachable_pub)]

pub mod ensemble;
pub mod example;
pub mod fake;
pub mod frames;
pub mod history;
pub mod keeper;
pub mod page;
pub mod polled;
pub mod port;
pub mod postgres;
pub mod process;
pub mod rules;
pub mod scene;
pub mod server;
pub mod slow;
pub mod snapshot;
pub mod wire;
pub mod witness;
