//! The steps and handles of a schedule, and their form in a file.
//!
//! A file has the steps themselves and not a seed, so that it keeps its meaning when the way of drawing changes.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use zk_rwlock::Dialect;

pub(crate) const CLIENTS: usize = 3;
pub(crate) const HANDLES: usize = 6;
pub(crate) const ACTORS: usize = 6;

/// More than the session timeout: a client that is cut off for this long loses its holds.
pub(crate) const LONG: Duration = Duration::from_secs(11);

/// The duration of one [`Action::Wait`].
pub(crate) const WHILE: Duration = LONG.checked_div(4).expect("not divided by zero");

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Action {
    Read,
    Write,
    /// Reads or writes with a timeout that ends with the next [`Action::Wait`].
    ReadBriefly,
    WriteBriefly,
    TryRead,
    TryWrite,
    /// Adds one to the value, in one call.
    Update,
    Acquire(u32),
    AcquireBriefly(u32),
    TryAcquire(u32),
    SetPermits(u32),
    /// Writes under the hold. The write must be refused after a loss.
    Commit,
    /// Reads under the lock. The read must show the writes of all earlier holders.
    Look,
    /// Reads the process's copy of the value.
    Latest,
    /// Drops the acquisition, the commit or the guard.
    Drop,
    Release,
    Downgrade,
    Share,
    /// Drops one of the guards that share a read.
    Unshare,
    /// Polls this actor once, and no other.
    Run,
    /// Stops polling this actor.
    Sleep,
    /// Polls this actor again.
    Awake,
    /// Holds up the requests of this actor's client.
    Stall,
    /// Carries out the oldest of them, and holds up its reply.
    CarryOut,
    /// Delivers the oldest reply.
    Deliver,
    /// Stops holding up requests.
    Flow,
    /// Breaks the connection. This many of the held-up requests are carried out.
    Cut(usize),
    Heal,
    Expire,
    LoseReply,
    LoseRequest,
    Lag,
    CatchUp,
    Reap,
    /// An operator deletes a node.
    Remove(Part),
    /// An operator deletes a whole directory.
    Clear(Part),
    /// Opens this actor's handle again. The old handle and its kept node end with its last acquisition.
    Reopen,
    /// Saves a copy of the ensemble's data.
    BackUp,
    /// Stops the ensemble for longer than a session timeout, and restores the saved copy.
    Restore,
    /// The server of this actor's client loses its watches.
    Forget,
    /// The server of this actor's client shows a node there as it is now, whatever happens to it.
    Freeze(Part),
    /// A stranger writes to a node there, as a holder does at a hand-off.
    Forge(Part),
    /// The server of this actor's client carries out requests without replies until [`Action::CatchUp`].
    Hush,
    Wait,
}

/// A place where an operator deletes a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Part {
    Lock,
    Queue,
    Permits,
}

/// What runs between a step and the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum After {
    Nothing,
    /// Each woken actor is polled once.
    Polls,
    /// Everything runs until nothing moves. Requests stay held up.
    Settles,
}

/// An actor, its action, and what runs before the next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Step(pub(crate) usize, pub(crate) Action, pub(crate) After);

/// A handle of the lock, and one of the semaphore.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Handle {
    /// Handles of one client share a session, so their contenders know each other.
    pub(crate) client: usize,
    pub(crate) dialect: Speech,
    /// How many milliseconds an idle node is kept, if nodes are kept.
    pub(crate) keep: Option<u64>,
    /// Whether it uses the lock through the guarded value.
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
    /// The fault that the schedule has found, if any.
    pub(crate) finds: String,
    /// The number of permits at the beginning.
    pub(crate) permits: u32,
    pub(crate) handles: Vec<Handle>,
    /// The handle of each actor. Actors with one handle share its kept nodes.
    pub(crate) handle_of: Vec<usize>,
    /// Whether holders do not watch their own nodes for many steps, as at first on ZooKeeper.
    pub(crate) are_blind: bool,
    pub(crate) steps: Vec<Step>,
}
