//! Random tests of queues, names, values and schedules.
//!
//! A failing case is written to `proptest-regressions` next to this file. Later runs replay it first.

mod names;
mod queues;
mod schedules;
mod values;
mod world;
