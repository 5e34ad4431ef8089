//! [`RwLock`](crate::RwLock): its options, its acquisitions, its guards, and the calls of operators.

pub(crate) mod acquire;
pub(crate) mod admin;
pub(crate) mod hold;
pub(crate) mod rw_lock;
