//! Nodes that a process keeps between uses: how uses share one, and when it is given up.

pub(crate) mod cache;
pub(crate) mod join;
pub(crate) mod kept;
pub(crate) mod uses;
