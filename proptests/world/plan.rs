//! What a schedule consists of, and how it is written down; draws none, and carries nothing out.
//!
//! A schedule is written down as it is, and not as the seed that it was drawn from. So it stays the same schedule when the
//! drawing changes.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use zk_rwlock::Dialect;

pub(crate) const CLIENTS: usize = 3;
pub(crate) const HANDLES: usize = 6;
pub(crate) const ACTORS: usize = 6;

/// More than the session timeout: a client that was cut off for so long has lost what it held.
pub(crate) const LONG: Duration = Duration::from_secs(11);

/// What one [`Action::Wait`] lasts.
pub(crate) const WHILE: Duration = LONG.checked_div(4).expect("not divided by zero");

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Action {
    Read,
    Write,
    /// With a timeout that ends when the next [`Action::Wait`] does.
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
    /// A write under what is held: it must be refused once that is lost.
    Commit,
    /// A read under the lock, which must show what all earlier holders wrote.
    Look,
    /// A look at the copy of the value that this process has.
    Latest,
    /// Drops the acquisition, the commit or what is held.
    Drop,
    Release,
    Downgrade,
    Share,
    /// Drops one of the guards that share a read.
    Unshare,
    /// One poll of this actor, and no other.
    Run,
    /// From now on this actor is not polled, whatever comes.
    Sleep,
    /// It is polled again.
    Awake,
    /// From now on requests of this actor's client are held up.
    Stall,
    /// One of them is carried out, and its answer is held up.
    CarryOut,
    /// One of them is answered.
    Deliver,
    /// None is held up any more.
    Flow,
    /// The connection breaks. So many of the requests that are held up are carried out.
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
    /// Opens this actor's handle anew. The old one ends with its last acquisition, and takes the node that it keeps along.
    Reopen,
    /// Remembers all that the ensemble holds.
    BackUp,
    /// The ensemble stands still for longer than a session timeout, and comes back as it was then.
    Restore,
    /// The server of this actor's client forgets its watches.
    Forget,
    /// Whatever becomes of a node there, the server of this actor's client shows it as it is now.
    Freeze(Part),
    /// A stranger writes to a node there, as its holder does that hands off.
    Forge(Part),
    /// The server of this actor's client does what it is asked to, and says nothing until [`Action::CatchUp`].
    Hush,
    Wait,
}

/// Where an operator deletes something.
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
    /// Each actor that is woken is polled once.
    Polls,
    /// Everything, until nothing moves any more. Requests stay held up.
    Settles,
}

/// Which actor does what, and what runs before the next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Step(pub(crate) usize, pub(crate) Action, pub(crate) After);

/// A handle of the lock, and one of the semaphore.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Handle {
    /// Handles of one client share a session, and their contenders know of each other.
    pub(crate) client: usize,
    pub(crate) dialect: Speech,
    /// For how many milliseconds it keeps an idle node, if it keeps any.
    pub(crate) keep: Option<u64>,
    /// It uses the lock through the value that the lock guards.
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
    /// The fault that it has found, if it has found one.
    pub(crate) finds: String,
    /// How many permits there are at first.
    pub(crate) permits: u32,
    pub(crate) handles: Vec<Handle>,
    /// Which handle each actor uses. Actors of one handle share the nodes that it keeps.
    pub(crate) handle_of: Vec<usize>,
    /// Holders do not come to watch their own nodes for many steps, as on ZooKeeper at first.
    pub(crate) are_blind: bool,
    pub(crate) steps: Vec<Step>,
}
