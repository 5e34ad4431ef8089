//! Several locks at once.

pub(crate) mod guard;
pub(crate) mod lock;
