//! The read/write lock and its options.

pub(crate) mod admin;
pub(crate) mod rw_lock;
