//! [`RwLock`](crate::RwLock): its options, its acquisitions, its guards, and the calls of operators.

// This module comes first, so that the page of `RwLock` begins with its constructors. Rustdoc follows the modules' order.
pub(crate) mod rw_lock;

pub(crate) mod acquire;
pub(crate) mod admin;
pub(crate) mod hold;
