//! One place in a queue: taken, found again, given back.

pub(crate) mod deadlock;
pub(crate) mod directory;
pub(crate) mod removal;
pub(crate) mod ticket;
