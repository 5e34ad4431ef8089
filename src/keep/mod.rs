//! Kept nodes: how the uses of one process share a node, and when the process gives the node up. A use is one acquisition of the
//! lock by this process, with its guards.

pub(crate) mod cache;
pub(crate) mod join;
pub(crate) mod kept;
pub(crate) mod uses;
