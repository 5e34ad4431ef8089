//! Kept nodes: nodes that the process keeps in ZooKeeper between uses. A use is one acquisition of the lock by this
//! process, with its guards. This folder decides how uses share a node, and when the process gives the node up.

pub(crate) mod cache;
pub(crate) mod join;
pub(crate) mod kept;
pub(crate) mod uses;
