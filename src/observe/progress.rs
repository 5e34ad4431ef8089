//! How far a waiter has come, as its caller hears it.

use std::fmt;
use std::sync::Arc;

use crate::queue::member::Blockers;

/// How far a waiter has come. Reported by [`Acquire::on_wait`](crate::Acquire::on_wait).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Progress {
    /// The directory of the lock, or of the semaphore, that it waits for.
    pub path: Arc<str>,
    /// Its place in the queue: the first contender has place 1. Holders of a lock count, and so do readers that a reader
    /// need not wait for. Holders of permits do not: they have left the queue of the semaphore.
    pub place: usize,
    /// How many contenders are in the queue, with the waiter itself and the contenders behind it.
    pub length: usize,
    /// The contenders in the way.
    pub blockers: Blockers,
}

impl Progress {
    pub(super) fn is_as(&self, other: &Progress) -> bool {
        let nodes = |of: &Progress| -> Vec<String> { of.blockers.first.iter().map(|it| it.node.clone()).collect() };
        (self.place, self.blockers.ahead) == (other.place, other.blockers.ahead) && nodes(self) == nodes(other)
    }
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "place {} of {}: {}", self.place, self.length, self.blockers)
    }
}
