//! The embedded backend: an ensemble in this process.

mod executor;
mod server;
mod session;
mod tree;

pub(crate) mod client;
