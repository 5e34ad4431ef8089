//! Several locks at once, all or none; knows no queue and no backend.

pub(crate) mod guard;
pub(crate) mod lock;
