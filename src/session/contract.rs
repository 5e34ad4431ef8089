//! The contract between the lock and whatever keeps its nodes; knows neither locks nor ZooKeeper.
//!
//! A backend is a [`Coordinator`], which hands out [`Session`]s. Two come with this crate:
//! [`Memory`](crate::Memory) and [`ZooKeeper`](crate::ZooKeeper). The law they keep is written on [`Session`];
//! `tests/conformance.rs` proves each clause of it by name, against both.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use thiserror::Error;

pub use crate::session::lease::Lease;
pub use crate::session::lease::Moment;
pub use crate::session::node::keep_alive;

/// The answer to a request that is already on its way.
///
/// Dropping it does not take the request back.
pub type Reply<T> = Pin<Box<dyn Future<Output = Result<T, Failure>> + Send>>;

/// Work that outlives its caller: it removes what a dropped future or guard left behind.
pub type Chore = Pin<Box<dyn Future<Output = ()> + Send>>;

/// An ensemble, as one process reaches it: the maker of sessions.
///
/// # Clone
/// Handles are cheap to clone and share their sessions.
#[async_trait]
pub trait Coordinator: fmt::Debug + Send + Sync + 'static {
    /// Returns a berth on a session that is connected and alive now, with room for `watched_bytes` of watched paths.
    ///
    /// After a session ended, the next call opens a fresh one. While the session is disconnected the call waits for
    /// it to come back or to end.
    ///
    /// # Cancel safety
    /// Nothing is lost by dropping the future.
    ///
    /// # Errors
    /// [`Failure::Unreachable`] when no server answered within the backend's own bound, [`Failure::Over`] when this
    /// coordinator was closed or its credentials were refused.
    async fn berth(&self, watched_bytes: usize) -> Result<Berth, Failure>;

    /// Ends every session, and with them every node they own; returns when the ensemble has confirmed it, or when
    /// it could not be asked within the session timeout.
    ///
    /// Guards of those sessions are lost, waiting acquisitions fail, and new ones are refused.
    async fn close(&self);

    /// A timer that runs even if the caller's runtime has none.
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>>;
}

#[async_trait]
impl<C: Coordinator + ?Sized> Coordinator for Arc<C> {
    async fn berth(&self, watched_bytes: usize) -> Result<Berth, Failure> {
        (**self).berth(watched_bytes).await
    }

    async fn close(&self) {
        (**self).close().await;
    }

    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        (**self).sleep(duration)
    }
}

/// A place on a session: while it lives, room for its watches stays reserved.
#[derive(Debug)]
pub struct Berth {
    session: Arc<dyn Session>,
    _reservation: Option<Reservation>,
}

impl Berth {
    /// A berth on a session that never runs out of room.
    pub fn new(session: Arc<dyn Session>) -> Berth {
        Berth { session, _reservation: None }
    }

    /// A berth that gives its room back when it is dropped.
    pub fn with_reservation(session: Arc<dyn Session>, reservation: Reservation) -> Berth {
        Berth { session, _reservation: Some(reservation) }
    }

    /// The session.
    pub fn session(&self) -> &Arc<dyn Session> {
        &self.session
    }
}

/// Runs its closure when dropped: gives reserved room back.
pub struct Reservation(Option<Box<dyn FnOnce() + Send + Sync>>);

impl Reservation {
    /// Calls `give_back` once, on drop.
    pub fn new(give_back: impl FnOnce() + Send + Sync + 'static) -> Reservation {
        Reservation(Some(Box::new(give_back)))
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if let Some(give_back) = self.0.take() {
            give_back();
        }
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reservation")
    }
}

/// One session: an ordered line of requests, and the owner of ephemeral nodes.
///
/// # Contract
/// 1. **Sent at the call.** A request is on its way when the method returns, whether or not its [`Reply`] is polled
///    or dropped. Methods may be called from any thread, outside a runtime, and in a panic.
/// 2. **One order.** A session's requests take effect, and are answered, in the order of the calls.
/// 3. **Own writes are seen.** A read sent after a write of this session sees that write, and everything before it.
/// 4. **Reads may be stale**, but never go back in time. [`Session::sync`] brings them up to date.
/// 5. **Sequence numbers** of one directory rise with every sequential create, until its end, where they stick or wrap.
/// 6. **Creation ids** (`czxid`) rise ensemble-wide, and are never used twice, not even after the directory is made anew.
/// 7. **A transaction** takes effect as a whole or not at all; no one sees it half done.
/// 8. **A watch** fires once, with the first change after the state that its arming saw; a node that is gone when the
///    watch would be armed is [`Failure::NoNode`] and leaves no watch. Events come in the order of the changes, before
///    the answer of any later read that shows them, and a change while disconnected is told after the reconnect.
///    Dropping a [`Watch`] removes it.
/// 9. **Ephemeral nodes** live until deleted or until their session is over; a session that is over answers every
///    request with [`Failure::Over`], and never comes back.
/// 10. **An unknown outcome is never guessed**: [`Failure::Unknown`] says that the request may or may not have been
///     carried out, every other failure that it was not.
/// 11. **The lease** ([`Session::lease`]) is told when the session [began](Lease::began), of every request that was
///     [answered](Lease::answered), by a quorum ([`Lease::acknowledged`]) or not, of each
///     [connection](Lease::connected), and when a handshake is known to have [resumed](Lease::resumed) the session.
///
/// # Implementing it
/// Spawn [`keep_alive`] once for each session.
#[async_trait]
pub trait Session: fmt::Debug + Send + Sync + 'static {
    /// The ensemble's number for this session, as `ephemeral_owner` shows it.
    fn id(&self) -> i64;

    /// The negotiated session timeout.
    fn timeout(&self) -> Duration;

    /// Until when this session is surely alive, and which nodes are kept under it.
    fn lease(&self) -> &Arc<Lease>;

    /// Waits until the session is connected; an error when it is over.
    async fn connected(&self) -> Result<(), Ending>;

    /// Waits until the session is over, and says why.
    async fn over(&self) -> Ending;

    /// Creates a node. The name of a sequential one is `path` with ten digits appended.
    fn create(&self, path: &str, data: &[u8], kind: Kind) -> Reply<Created>;

    /// Deletes a node.
    fn delete(&self, path: &str) -> Reply<()>;

    /// The names of a node's children, in no order.
    fn children(&self, path: &str) -> Reply<Vec<String>>;

    /// A node's data.
    fn data(&self, path: &str) -> Reply<(Vec<u8>, Stat)>;

    /// Arms a one-shot watch on an existing node.
    fn watch(&self, path: &str) -> Reply<Watch>;

    /// The names of a node's children, in no order, and a one-shot watch on them: it tells with [`Event::Changed`] when
    /// the first of them comes or goes, and of nothing that happens to them otherwise.
    fn watch_children(&self, path: &str) -> Reply<(Vec<String>, Watch)>;

    /// Brings this session's reads up to date with the ensemble.
    ///
    /// By default with a transaction that checks the node at `path` and changes nothing: one that fails is carried out as
    /// well, as far as this goes. ZooKeeper's own `sync` may be answered by a leader that has been deposed and does not know
    /// it yet ([ZOOKEEPER-1675](https://issues.apache.org/jira/browse/ZOOKEEPER-1675)); what a quorum commits may not.
    fn sync(&self, path: &str) -> Reply<()> {
        let checked = self.transact(&[Operation::Check { path: path.to_owned(), version: None }]);
        Box::pin(async move {
            match checked.await {
                Ok(_) => Ok(()),
                Err(Failure::Operation { failure, .. }) if !matches!(*failure, Failure::Refused(_)) => Ok(()),
                Err(failure) => Err(failure),
            }
        })
    }

    /// Commits all operations or none. The failure of one is [`Failure::Operation`].
    fn transact(&self, operations: &[Operation]) -> Reply<Vec<Outcome>>;

    /// Runs `chore` to its end in the background, without help from the caller's runtime, or until the session is over.
    fn spawn(&self, chore: Chore);

    /// A timer that runs even if the caller's runtime has none.
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>>;
}

/// What kind of node to create.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Stays until deleted.
    Persistent,
    /// Stays until deleted, or until the ensemble reaps it some time after its last child has gone.
    Container,
    /// Goes with its session.
    Ephemeral,
    /// Goes with its session; the ensemble appends a rising number to its name.
    EphemeralSequential,
}

/// A node that was created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Created {
    /// Its whole path, with the sequence number if it has one.
    pub path: String,
    /// The ensemble-wide number of the transaction that created it.
    pub czxid: i64,
    /// The session that owns it, 0 if it is not ephemeral.
    pub ephemeral_owner: i64,
}

/// What the ensemble knows of a node besides its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// The ensemble-wide number of the transaction that created it.
    pub czxid: i64,
    /// How often its data was set.
    pub version: i32,
    /// When it was created, on the ensemble's clock.
    pub ctime: SystemTime,
    /// The session that owns it, 0 if it is not ephemeral.
    pub ephemeral_owner: i64,
}

/// One operation of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Creates a node; not a sequential one.
    Create {
        /// Where.
        path: String,
        /// Its data.
        data: Vec<u8>,
        /// Its kind.
        kind: Kind,
    },
    /// Sets a node's data.
    Set {
        /// Which node.
        path: String,
        /// The new data.
        data: Vec<u8>,
        /// Only if the node has this version.
        version: Option<i32>,
    },
    /// Deletes a node.
    Delete {
        /// Which node.
        path: String,
        /// Only if the node has this version.
        version: Option<i32>,
    },
    /// Changes nothing, but fails the transaction when the node is not there.
    Check {
        /// Which node.
        path: String,
        /// Only if the node has this version.
        version: Option<i32>,
    },
}

/// What one operation of a committed transaction did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// The node was created.
    Created,
    /// The data was set, and this is the node's version now.
    Set {
        /// To give to the next conditional operation.
        version: i32,
    },
    /// The node was deleted.
    Deleted,
    /// The node was there.
    Checked,
}

/// What a watch saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The node's data was set; or, where its children are watched, one of them came or went.
    Changed,
    /// The node is gone.
    Deleted,
    /// The session is over; nothing more will be seen.
    Over,
}

/// An armed one-shot watch: a future of its event. Dropping it removes the watch.
pub struct Watch {
    event: Pin<Box<dyn Future<Output = Event> + Send>>,
    owner: Option<i64>,
}

impl Watch {
    /// Wraps the future that completes with the event.
    pub fn new(event: impl Future<Output = Event> + Send + 'static) -> Watch {
        Watch { event: Box::pin(event), owner: None }
    }

    /// The session that owns the node on which the watch was armed, if the backend tells it.
    pub fn with_owner(mut self, ephemeral_owner: i64) -> Watch {
        self.owner = Some(ephemeral_owner);
        self
    }

    pub(crate) fn owner(&self) -> Option<i64> {
        self.owner
    }
}

impl Future for Watch {
    type Output = Event;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Event> {
        self.event.as_mut().poll(context)
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watch")
    }
}

/// Why a session is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Ending {
    /// The ensemble gave it up, or was not reached for longer than the session timeout.
    #[error("the session expired")]
    Expired,
    /// This process closed it.
    #[error("the session was closed")]
    Closed,
    /// The ensemble refused its credentials.
    #[error("the session's credentials were refused")]
    AuthFailed,
    /// A reconnect was answered with a different session, so the nodes of this one are not ours any more.
    #[error("the session was replaced by another one on a reconnect")]
    Replaced,
}

/// Why a request did not succeed, told apart by what the caller may conclude.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Failure {
    /// Not carried out: there is no such node (for a create: no such parent).
    #[error("no such node")]
    NoNode,
    /// Not carried out: the node exists already.
    #[error("the node exists already")]
    NodeExists,
    /// Not carried out: the node has children.
    #[error("the node has children")]
    NotEmpty,
    /// Not carried out: the node has another version.
    #[error("the node has another version")]
    BadVersion,
    /// Not carried out: the session may not do that.
    #[error("permission denied")]
    NoAuth,
    /// Not carried out: the parent is ephemeral and can have no children.
    #[error("the parent is ephemeral")]
    ParentIsEphemeral,
    /// Not carried out, for a reason that only people can act on.
    #[error("refused: {0}")]
    Refused(String),
    /// Not carried out, and not refused: a create that went out in one transaction with another request, which was. Ask
    /// again.
    #[error("refused with another request, in one transaction")]
    NotTried,
    /// Not carried out: no server could be reached.
    #[error("no server could be reached: {0}")]
    Unreachable(String),
    /// The session is over, and its ephemeral nodes are gone or will be.
    #[error("{0}")]
    Over(Ending),
    /// It may or may not have been carried out.
    #[error("the outcome is unknown: {0}")]
    Unknown(String),
    /// The transaction was not carried out, because this operation of it failed.
    #[error("operation {index}: {failure}")]
    Operation {
        /// Which, counted from 0.
        index: usize,
        /// Why.
        failure: Box<Failure>,
    },
}
