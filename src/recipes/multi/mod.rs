//! Several locks at once, all or none.

pub(crate) mod guard;
pub(crate) mod lock;
