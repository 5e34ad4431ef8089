//! The read/write lock and its options; knows no concrete backend.

pub(crate) mod admin;
pub(crate) mod rw_lock;
