//! One place in a queue: taken, found again, given back.

pub(crate) mod ask;
pub(crate) mod directory;
pub(crate) mod exchange;
pub(crate) mod removal;
pub(crate) mod ticket;
