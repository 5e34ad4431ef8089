//! Kept nodes: how uses of one process share a node, and when the node is given up.

pub(crate) mod cache;
pub(crate) mod join;
pub(crate) mod kept;
pub(crate) mod uses;
