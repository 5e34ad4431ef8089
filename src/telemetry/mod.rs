//! What is counted and measured; decides nothing.

pub(crate) mod log;
pub(crate) mod meter;
#[cfg(feature = "metrics")]
pub mod metrics;
pub(crate) mod names;
#[cfg(feature = "metrics")]
mod recorder;
pub(crate) mod relay;
pub(crate) mod teller;
