//! The embedded backend: an ensemble in this process.

pub(crate) mod client;
