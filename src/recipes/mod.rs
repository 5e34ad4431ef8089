//! What is made of the lock: a semaphore, work that is done once in a while, one leader, several locks at once, a value
//! behind a lock. Each folder is a recipe of its own, and imports no other.

pub(crate) mod leadership;
pub(crate) mod multi;
pub(crate) mod once;
pub(crate) mod semaphore;
pub(crate) mod shared;
