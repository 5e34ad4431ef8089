//! One session: its requests, its lease, our nodes on it and how they are kept alive.

pub(crate) mod connection;
pub(crate) mod contract;
pub(crate) mod errand;
pub(crate) mod follow;
pub(crate) mod ghosts;
pub(crate) mod keep_alive;
pub(crate) mod lease;
pub(crate) mod leaving;
pub(crate) mod limits;
pub(crate) mod listing;
pub(crate) mod listings;
pub(crate) mod loss;
pub(crate) mod node;
pub(crate) mod nodes;
pub(crate) mod presence;
pub(crate) mod request;
pub(crate) mod retry;
pub(crate) mod shield;
pub(crate) mod thread;
pub(crate) mod unasked;
pub(crate) mod upkeep;
pub(crate) mod wakeup;

#[cfg(test)]
mod tests;
