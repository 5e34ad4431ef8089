//! Property tests of queues, names, values and schedules, with random input.
//!
//! An input of a property that fails is written to `proptest-regressions` next to this file. Later runs begin with the
//! inputs in that file.

mod names;
mod queues;
mod schedules;
mod values;
mod world;
