//! Counters, measurements and logs, and the threads on which the user's recorder and subscriber run.

pub(crate) mod debug;
pub(crate) mod log;
pub(crate) mod meter;
#[cfg(feature = "metrics")]
pub mod metrics;
pub(crate) mod names;
pub(crate) mod user_thread;
