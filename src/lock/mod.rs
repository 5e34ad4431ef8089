//! The read/write lock and its options; knows no concrete backend.

pub(crate) mod acquire;
pub(crate) mod admin;
pub(crate) mod hold;
pub(crate) mod rw_lock;
