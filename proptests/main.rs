//! Property tests of queues, names, values and schedules, with random input.
//!
//! A failing input of a property is written to `proptest-regressions` next to this file. Later runs begin with these
//! inputs.

mod names;
mod queues;
mod schedules;
mod values;
mod world;
