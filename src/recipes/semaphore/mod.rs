//! A semaphore: at most so many holders at once.

pub(crate) mod admin;
pub(crate) mod limit;
pub(crate) mod number;
pub(crate) mod permit;
pub(crate) mod semaphore;
pub(crate) mod state;
pub(crate) mod take;
