//! What holds for every queue, every name and every schedule.
//!
//! A failing case is written to `proptest-regressions` beside this file, and replayed first from then on.

mod names;
mod queues;
mod schedules;
mod values;
mod world;
