//! Holding: what a hold is, its transactions, how it is lost.

pub(crate) mod changes;
mod contended;
mod doubt;
pub(crate) mod limit;
pub(crate) mod tenure;
pub(crate) mod transaction;
