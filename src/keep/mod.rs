//! Kept nodes: nodes that the process keeps between uses. A use is one acquisition of the lock by this process, with
//! its guards. The folder decides how uses share a node, and when the process gives the node up.

pub(crate) mod cache;
pub(crate) mod join;
pub(crate) mod kept;
pub(crate) mod uses;
