//! [`RwLock`](crate::RwLock): its options, its acquisitions, its guards, and the calls of operators.

// Comes first, so that the page of `RwLock` begins with its constructors: rustdoc follows the order of the modules.
pub(crate) mod rw_lock;

pub(crate) mod acquire;
pub(crate) mod admin;
pub(crate) mod hold;
