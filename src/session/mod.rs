//! One session: its requests, its lease, and the nodes that this library has created on the session. A backend provides
//! the session (`contract.rs`), and contenders (holders and waiters) use it.

pub(crate) mod contract;
pub(crate) mod follow;
pub(crate) mod hand_off;
pub(crate) mod keep_alive;
pub(crate) mod lease;
pub(crate) mod leaving;
pub(crate) mod listing;
pub(crate) mod node;
pub(crate) mod presence;
pub(crate) mod removal;
pub(crate) mod request;
pub(crate) mod retry;
pub(crate) mod store;
pub(crate) mod thread;
pub(crate) mod watch;

#[cfg(test)]
mod tests;
