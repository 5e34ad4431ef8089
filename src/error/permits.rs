//! Why a semaphore, or a lock at its path, grants nothing, as far as its number of permits is the reason.

use thiserror::Error;

/// What is wrong with the number of permits of a [`Semaphore`](crate::Semaphore).
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PermitsError {
    /// Nobody has said how many permits there are. Say it for all with
    /// [`set_permits`](crate::Semaphore::set_permits), or open the semaphore with a
    /// [number](crate::SemaphoreBuilder::permits).
    #[error("cannot be counted: nobody has said yet how many permits it has")]
    Unset,
    /// The ensemble had a number, and its node is gone: somebody has deleted it. Find out who deletes nodes, and say the number
    /// for all with [`set_permits`](crate::Semaphore::set_permits).
    #[error("had {was} permits, and the node that said so is gone: say for all how many it has now")]
    Vanished {
        /// How many there were.
        was: u32,
    },
    /// The ensemble has another number than this handle was opened with. Give all users the same number or, better, none,
    /// and change it for all with [`set_permits`](crate::Semaphore::set_permits).
    #[error("has {theirs} permits, and was opened here with {ours}")]
    Other {
        /// The number given here.
        ours: u32,
        /// The number that the ensemble keeps.
        theirs: u32,
    },
    /// More permits are wanted than there are, so they could never be granted. Ask for fewer, or raise the number for all
    /// with [`set_permits`](crate::Semaphore::set_permits).
    #[error("has {permits} permits, and {wanted} are wanted")]
    TooFew {
        /// How many are wanted.
        wanted: u32,
        /// How many there are.
        permits: u32,
    },
    /// The path is that of a lock which somebody holds or waits for. A path is a lock or a semaphore, and this semaphore came
    /// second. Use another path.
    #[error("is a lock, which {node} holds or waits for: a path is a lock or a semaphore, so use another one")]
    IsLocked {
        /// The name of the holder's node, or of a waiter's.
        node: String,
    },
    /// A lock was to be taken at the path of a semaphore: its node has a number of permits. Use another path. If nobody uses the
    /// semaphore any more, delete the node with all below it.
    #[error(
        "is a semaphore: a path is a lock or a semaphore, so use another one, or delete that node and all below it"
    )]
    NoLock,
    /// Something in the semaphore's nodes is not of this library, so nothing shows how many permits are free. The text says
    /// what. Remove it, or use another path.
    #[error("cannot be counted: {0}")]
    Doubtful(String),
}
