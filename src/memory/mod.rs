//! The embedded backend: an ensemble in this process; knows no locks.

mod executor;
mod server;
mod session;
mod tree;

pub(crate) mod client;
