//! The embedded backend: an ensemble in this process; knows no locks.

mod clock;
mod executor;
mod index;
mod link;
mod server;
mod session;
mod tree;

pub(crate) mod client;
