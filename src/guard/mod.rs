//! How a caller asks for a lock, and what a guard can do.

pub(crate) mod acquire;
pub(crate) mod hold;
