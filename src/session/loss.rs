//! Why a lock was lost, and how sure it is that one is held.

use std::time::Instant;

use thiserror::Error;

use crate::session::request::Ending;

/// Why a lock was lost. A lost guard never becomes valid again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
#[non_exhaustive]
pub enum Loss {
    /// The session is over, and its nodes with it.
    #[error("{0}")]
    SessionOver(#[from] Ending),
    /// The servers may give the session up soon, and then another contender may be granted the lock. It is too long
    /// since the servers surely heard of the session.
    #[error("the lease on the session ran out before a quorum renewed it")]
    LeaseRanOut,
    /// It was held for longer than the holder's own [limit](crate::RwLockBuilder::max_hold) allows.
    #[error("it was held for longer than its limit allows")]
    HeldTooLong,
    /// Another client deleted the lock's node.
    #[error("the lock's node was removed by somebody else")]
    Removed,
    /// It was given back, and not lost. A clone of a [`Term`](crate::Term) says so once the term has ended.
    #[error("the lock was given back")]
    GivenBack,
    /// A stranger wrote to a lock node, and the write passed for a hand-off while the holder still held.
    ///
    /// The false grant is found out after a few milliseconds. A holder that releases before that passes the false grant
    /// on, and the next holder finds that out after a fifth of the session timeout, if the rightful one is still there.
    /// Only an ACL that keeps strangers from writing helps for sure. Nobody gets permits of a
    /// [`Semaphore`](crate::Semaphore) so.
    #[error("a stranger wrote to a lock node, and the write was taken for a hand-off")]
    Interfered,
}

impl Loss {
    /// Its name in the metrics.
    pub(super) fn label(self) -> &'static str {
        match self {
            Loss::SessionOver(_) => "session-over",
            Loss::LeaseRanOut => "lease-ran-out",
            Loss::HeldTooLong => "held-too-long",
            Loss::Removed => "removed",
            Loss::GivenBack => "given-back",
            Loss::Interfered => "interfered",
        }
    }
}

/// How sure it is that a lock is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HoldState {
    /// The lock is held.
    Held,
    /// The connection is lost, but no other contender can be granted the lock yet. Start nothing new.
    Suspect {
        /// Unless the connection comes back, the lock is lost then.
        until: Instant,
    },
    /// The lock is lost, for good.
    Lost {
        /// Why.
        why: Loss,
    },
}
