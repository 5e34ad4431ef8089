//! The steps and the handles of a schedule, and their format in a file.
//!
//! A file contains the steps and not the seed. So the file still means the same after a change of the random choice.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use zk_rwlock::Dialect;

pub(crate) const CLIENTS: usize = 3;
pub(crate) const HANDLES: usize = 6;
pub(crate) const ACTORS: usize = 6;

/// A time that is longer than the session timeout. A client that is cut off for this long loses its holds.
pub(crate) const LONG: Duration = Duration::from_secs(11);

/// The time that passes in one [`Action::Wait`].
pub(crate) const WHILE: Duration = LONG.checked_div(4).expect("not divided by zero");

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Action {
    Read,
    Write,
    /// Acquires for reading with a timeout that ends at the next [`Action::Wait`]. The other actions named `Briefly`
    /// have the same timeout.
    ReadBriefly,
    WriteBriefly,
    TryRead,
    TryWrite,
    /// Adds one to the value by one call of `update`.
    Update,
    Acquire(u32),
    AcquireBriefly(u32),
    TryAcquire(u32),
    SetPermits(u32),
    /// Writes under the lock. After a loss the write must be refused.
    Commit,
    /// Reads under the lock. The result must include the writes of all earlier holders.
    Look,
    /// Reads the local copy of the value.
    Latest,
    /// Drops the actor's acquisition, commit or guard.
    Drop,
    Release,
    Downgrade,
    Share,
    /// Drops one of the actor's guards that share a read lock.
    Unshare,
    /// Polls this actor once, and no other actor.
    Run,
    /// Stops polling this actor.
    Sleep,
    /// Polls this actor again.
    Awake,
    /// Holds up the requests of this actor's client.
    Stall,
    /// Carries out the oldest request that is held up, and holds up its reply.
    CarryOut,
    /// Delivers the oldest reply that is held up.
    Deliver,
    /// Stops holding up requests of this actor's client.
    Flow,
    /// Breaks the connection of this actor's client. The field is the number of held-up requests that are still carried
    /// out, oldest first. The other requests are lost.
    Cut(usize),
    Heal,
    Expire,
    LoseReply,
    LoseRequest,
    Lag,
    CatchUp,
    Reap,
    /// An operator deletes a node in this directory.
    Remove(Part),
    /// An operator deletes all nodes in this directory.
    Clear(Part),
    /// Replaces this actor's handle by a new one. The old handle and the node that it keeps end with the last acquisition
    /// that uses them.
    Reopen,
    /// Makes a backup of the ensemble's data.
    BackUp,
    /// Stops the ensemble for longer than a session timeout, and restores the backup.
    Restore,
    /// The server of this actor's client loses its watches.
    Forget,
    /// The server of this actor's client shows one node in this directory as it is now, even after the node is changed
    /// or deleted.
    Freeze(Part),
    /// A stranger writes to a node in this directory, as a holder does at a hand-off.
    Forge(Part),
    /// The server of this actor's client carries out requests and sends no replies until [`Action::CatchUp`].
    Hush,
    Wait,
}

/// A directory: the lock's, the semaphore's queue, or its permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Part {
    Lock,
    Queue,
    Permits,
}

/// What is polled after a step, before the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum After {
    Nothing,
    /// Each actor that was woken is polled once.
    Polls,
    /// All actors are polled, and replies delivered, until nothing moves. Requests that are held up stay held up.
    Settles,
}

/// A step: the index of an actor, its action, and what is polled afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Step(pub(crate) usize, pub(crate) Action, pub(crate) After);

/// The settings of a handle of the lock, and of a handle of the semaphore with the same client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Handle {
    /// The index of the client. Handles of one client share a session.
    pub(crate) client: usize,
    pub(crate) dialect: Speech,
    /// The time in milliseconds for which an unused node is kept, or `None` if nodes are not kept between uses.
    pub(crate) keep: Option<u64>,
    /// Whether the handle uses the lock through the value that it guards.
    pub(crate) has_value: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Speech {
    Native,
    Curator,
    CuratorMutex,
    Kazoo,
}

impl Speech {
    pub(crate) fn dialect(self) -> Dialect {
        match self {
            Speech::Native => Dialect::Native,
            Speech::Curator => Dialect::Curator,
            Speech::CuratorMutex => Dialect::CuratorMutex,
            Speech::Kazoo => Dialect::Kazoo,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Schedule {
    /// The fault that this schedule once found, in words. Empty for a random schedule.
    pub(crate) finds: String,
    /// The number of permits at the start of the schedule.
    pub(crate) permits: u32,
    pub(crate) handles: Vec<Handle>,
    /// The index of each actor's handle. Actors with the same handle share the nodes that the handle keeps between uses.
    pub(crate) handle_of: Vec<usize>,
    /// Whether no background task runs for many steps. Then holders do not watch their own nodes yet, as at the
    /// beginning of a hold on ZooKeeper.
    pub(crate) are_blind: bool,
    pub(crate) steps: Vec<Step>,
}
