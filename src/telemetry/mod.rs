//! What is counted, measured and logged, and who is told.

pub(crate) mod log;
pub(crate) mod meter;
#[cfg(feature = "metrics")]
pub mod metrics;
pub(crate) mod names;
pub(crate) mod relay;
pub(crate) mod user_thread;
