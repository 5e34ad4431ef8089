//! The read/write lock and its options.

pub(crate) mod acquire;
pub(crate) mod admin;
pub(crate) mod hold;
pub(crate) mod rw_lock;
