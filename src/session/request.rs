//! The requests of a session and their answers, and the reasons why a session ends and why a lock is lost.

use std::fmt;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use futures_util::FutureExt;
use futures_util::future::try_join_all;
use thiserror::Error;

/// The answer to a request. The request was sent already, or will be sent even if the reply is not polled.
///
/// Dropping the reply does not cancel the request.
pub type Reply<T> = Pin<Box<dyn Future<Output = Result<T, Failure>> + Send>>;

/// Returns `Ok(None)` for the failures "the node does not exist" and "this client may not read the node". Keeps every
/// other failure.
pub(crate) fn none_if_no_node_or_no_auth<T>(answer: Result<T, Failure>) -> Result<Option<T>, Failure> {
    match answer {
        Ok(it) => Ok(Some(it)),
        Err(Failure::NoNode | Failure::NoAuth(_)) => Ok(None),
        Err(failure) => Err(failure),
    }
}

/// Waits for all replies, or for the first failure. If a node does not exist, or this client may not read it, its
/// answer is `None` and no failure.
pub(crate) fn join_optional_replies<T: Send + 'static>(replies: Vec<Reply<T>>) -> Reply<Vec<Option<T>>> {
    Box::pin(try_join_all(replies.into_iter().map(|reply| reply.map(none_if_no_node_or_no_auth))))
}

/// A background task that outlives its caller, such as the removal of the node of a dropped future or guard.
pub type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The data and the stat of each of several nodes. `None` for a node that does not exist, or that this client may not
/// read.
pub type NodeContents = Vec<Option<(Vec<u8>, Stat)>>;

/// The kind of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Stays until deleted.
    Persistent,
    /// Stays until a client deletes the node, or the ensemble does so some time after the deletion of the last child.
    Container,
    /// Deleted when the session that created it ends, unless a client deletes it before.
    Ephemeral,
    /// Like [`Ephemeral`](Kind::Ephemeral), and the ensemble appends a rising sequence number to the name.
    EphemeralSequential,
}

/// A node that was created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Created {
    /// The node's path, with the sequence number if the node has one.
    pub path: String,
    /// The id (zxid) of the transaction that created the node, unique in the ensemble.
    pub czxid: i64,
    /// When the node was created, on the ensemble's clock.
    pub ctime: SystemTime,
    /// The id of the session that owns the node, 0 if the node is not ephemeral.
    pub ephemeral_owner: i64,
}

/// The metadata of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// The id (zxid) of the transaction that created the node, unique in the ensemble.
    pub czxid: i64,
    /// How often the node's data was set.
    pub version: i32,
    /// When the node was created, on the ensemble's clock.
    pub ctime: SystemTime,
    /// When the node's data was last set, on the ensemble's clock. At first this is the creation time.
    pub mtime: SystemTime,
    /// The id of the session that owns the node, 0 if the node is not ephemeral.
    pub ephemeral_owner: i64,
    /// The length of the node's data in bytes.
    pub data_length: usize,
}

/// The names of a directory's children.
#[derive(Default)]
pub(crate) struct Children {
    pub(super) names: Vec<String>,
    /// The stat of the directory at the moment of the listing, if the backend gives it.
    pub(crate) directory: Option<Stat>,
}

impl Deref for Children {
    type Target = Vec<String>;

    fn deref(&self) -> &Vec<String> {
        &self.names
    }
}

/// The answer to a listing, shared by all its callers.
pub(crate) type Listing = Arc<Children>;

/// One operation of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Creates a node that is not sequential.
    Create {
        /// The path of the new node.
        path: String,
        /// The data of the new node.
        data: Vec<u8>,
        /// The kind of the new node, which must not be sequential.
        kind: Kind,
    },
    /// Sets a node's data.
    Set {
        /// The path of the node.
        path: String,
        /// The new data.
        data: Vec<u8>,
        /// The version that the node must have, if one is given.
        version: Option<i32>,
    },
    /// Deletes a node.
    Delete {
        /// The path of the node.
        path: String,
        /// The version that the node must have, if one is given.
        version: Option<i32>,
    },
    /// Changes nothing, but fails the transaction if the node does not exist or has another version.
    Check {
        /// The path of the node.
        path: String,
        /// The version that the node must have, if one is given.
        version: Option<i32>,
    },
}

/// Returns the size in bytes of one request with these operations. The backend prepends `root` bytes to each path, and
/// the ACL of a created node takes `acl` bytes.
pub(crate) fn request_size(operations: &[Operation], root: usize, acl: usize) -> usize {
    // In ZooKeeper's wire format, a length, a version or the flags of a create take four bytes. The header of the
    // request takes eight bytes. A header of nine bytes stands before each operation, and after the last one.
    let text = |text: &str| 4 + root + text.len();
    let each = operations.iter().map(|operation| match operation {
        Operation::Create { path, data, .. } => text(path) + 4 + data.len() + acl + 4,
        Operation::Set { path, data, .. } => text(path) + 4 + data.len() + 4,
        Operation::Delete { path, .. } | Operation::Check { path, .. } => text(path) + 4,
    });
    8 + each.map(|bytes| 9 + bytes).sum::<usize>() + 9
}

/// The size in bytes of an ACL with one entry, which allows everything to anyone.
pub(crate) const ACL_OF_ANYONE: usize = 4 + 4 + 4 + "world".len() + 4 + "anyone".len();

impl Operation {
    /// Returns the path of the operation's node.
    pub fn path(&self) -> &str {
        match self {
            Operation::Create { path, .. }
            | Operation::Set { path, .. }
            | Operation::Delete { path, .. }
            | Operation::Check { path, .. } => path,
        }
    }

    /// Returns the right that the operation needs, and the path of the node on which it needs the right.
    pub(crate) fn required_right(&self) -> (&'static str, &str) {
        match self {
            Operation::Create { path, .. } => ("CREATE", parent_path(path)),
            Operation::Set { path, .. } => ("WRITE", path),
            Operation::Delete { path, .. } => ("DELETE", parent_path(path)),
            Operation::Check { path, .. } => ("READ", path),
        }
    }
}

pub(crate) fn parent_path(path: &str) -> &str {
    path.rsplit_once('/').map(|(parent, _)| parent).filter(|parent| !parent.is_empty()).unwrap_or("/")
}

/// The result of one operation of a committed transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// The node was created.
    Created,
    /// The data was set.
    Set {
        /// The new version of the node's data, for the next conditional operation.
        version: i32,
    },
    /// The node was deleted.
    Deleted,
    /// The node exists, and has the given version if there is one.
    Checked,
}

/// The event of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchEvent {
    /// The node's data was set. For a watch on children: a child was created or deleted.
    Changed,
    /// The node was deleted.
    Deleted,
    /// While the connection was lost, the node or its children may have changed. The owner of the watch must look
    /// again. This event never proves a hand-off, because it does not come from the change itself.
    LookAgain,
    /// The session is over, and no further event comes.
    Over,
}

/// An armed one-shot watch, which is a future of its event. Dropping the future removes the watch.
pub type Watch = Pin<Box<dyn Future<Output = WatchEvent> + Send>>;

/// Why a session is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
#[non_exhaustive]
pub enum SessionEnd {
    /// The ensemble expired the session, or could not be reached for longer than the session timeout.
    #[error("the session expired")]
    Expired,
    /// This process closed the session.
    #[error("the session was closed")]
    Closed,
    /// The ensemble refused the session's credentials.
    #[error("the session's credentials were refused")]
    AuthFailed,
    /// A reconnect was answered with a different session, so the nodes of the old session no longer belong to this
    /// client.
    #[error("the session was replaced by another one on a reconnect")]
    Replaced,
    /// A task of this process that serves the session panicked, by a fault of this library or of a crate that it uses.
    /// The next acquisition opens another session.
    #[error("the session's store has failed")]
    Failed,
    /// This process was forked from a process that had connected. The sessions belong to the parent. The child has no
    /// threads that serve a connection, and shares the parent's `epoll` instance, so a connection of the child would
    /// disturb the parent's connections.
    #[error(
        "this process was forked from one that had connected, whose threads it lacks and whose epoll it shares: fork first and \
         connect then, or exec"
    )]
    Forked,
}

impl SessionEnd {
    /// Returns the value of the label `cause` in the metrics.
    pub(super) fn label(self) -> &'static str {
        match self {
            SessionEnd::Expired => "expired",
            SessionEnd::Closed => "closed",
            SessionEnd::AuthFailed => "auth-failed",
            SessionEnd::Replaced => "replaced",
            SessionEnd::Failed => "failed",
            SessionEnd::Forked => "forked",
        }
    }
}

/// The right that a refused client lacks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct DeniedRight {
    /// The right that the request needs: `READ`, `WRITE`, `CREATE` or `DELETE`.
    pub right: &'static str,
    /// The node on which the request needs the right.
    pub node: String,
    /// The user as whom the client is authenticated, for people to read. Empty if the client has no credentials.
    pub whom: String,
}

impl fmt::Display for DeniedRight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whom = if self.whom.is_empty() { "a client without credentials" } else { &self.whom };
        write!(f, "no {} on {} for {whom}", self.right, self.node)
    }
}

/// The reason why a request did not succeed. The variant says whether the request may have been carried out.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Error)]
#[non_exhaustive]
pub enum Failure {
    /// Not carried out: there is no such node (for a create: no such parent).
    #[error("no such node")]
    NoNode,
    /// Not carried out: the node's parent, at this path, does not exist. A backend answers [`NoNode`](Failure::NoNode),
    /// and the library then finds out which node is missing.
    #[error("no such node: the parent {0}")]
    NoParent(String),
    /// Not carried out: the node exists already.
    #[error("the node exists already")]
    NodeExists,
    /// Not carried out: the node has children.
    #[error("the node has children")]
    NotEmpty,
    /// Not carried out: the node has another version.
    #[error("the node has another version")]
    BadVersion,
    /// Not carried out: the session lacks a right.
    #[error("permission denied: {0}")]
    NoAuth(Box<DeniedRight>),
    /// Not carried out: the parent is ephemeral and can have no children.
    #[error("the parent is ephemeral")]
    ParentIsEphemeral,
    /// Not carried out: the ACL of the new node is not valid for this client.
    #[error("the servers refuse the ACL")]
    InvalidAcl,
    /// Not carried out, for a reason that a person must resolve. The text gives the reason.
    #[error("refused: {0}")]
    Refused(String),
    /// The server and the leader do not agree about a node, and no other server is left. The request may or may not
    /// have been carried out.
    #[error("{}", disagreement_message(.node, .server))]
    Diverged {
        /// The path of the node.
        node: String,
        /// The address of the server.
        server: String,
    },
    /// Not carried out: no server could be reached.
    #[error("no server could be reached: {0}")]
    Unreachable(String),
    /// The session is over, and its ephemeral nodes are gone or will be. The request may or may not have been carried
    /// out.
    #[error("{0}")]
    Over(SessionEnd),
    /// The request may or may not have been carried out.
    #[error("the outcome is unknown: {0}")]
    Unknown(String),
    /// The transaction was not carried out, because this operation of it failed.
    #[error("operation {index}: {failure}")]
    Operation {
        /// The index of the operation, counted from 0.
        index: usize,
        /// The failure of the operation.
        failure: Box<Failure>,
    },
}

/// Returns the message about a server and a leader that do not agree about a node. The message does not say which of
/// them is wrong, because the leader may have lost the node.
pub(crate) fn disagreement_message(node: &str, server: &str) -> String {
    format!(
        "{node}: the server {server} and the leader do not agree about it, and no other server is left: zklock check, \
         with that node as its path, asks all servers, and says what to do"
    )
}

/// Returns whether the reply to a write or a transaction proves that a quorum has processed the request, and thus that
/// the session was alive. Some replies from a quorum give `false`, too.
pub(crate) fn is_from_quorum<T>(answer: &Result<T, Failure>) -> bool {
    match answer {
        Ok(_) => true,
        // A quorum also agrees on the failure of a transaction. But `Refused` and `InvalidAcl` may come from the client
        // crate, which then has sent nothing.
        Err(Failure::Operation { failure, .. }) => !matches!(**failure, Failure::Refused(_) | Failure::InvalidAcl),
        Err(_) => false,
    }
}

/// The reason why a lock was lost. A lost guard never becomes valid again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
#[non_exhaustive]
pub enum Loss {
    /// The session is over, and its nodes are deleted or will be.
    #[error("{0}")]
    SessionOver(#[from] SessionEnd),
    /// Too much time has passed since the ensemble certainly heard of the session. The ensemble may soon expire the
    /// session, and another contender may then be granted the lock.
    #[error("the lease on the session ran out before a quorum renewed it")]
    LeaseRanOut,
    /// The lock was held for longer than the holder's own [limit](crate::RwLockBuilder::max_hold) allows.
    #[error("it was held for longer than its limit allows")]
    HeldTooLong,
    /// The node of this holder was deleted, and not by the holder itself.
    #[error("the lock's node was removed by somebody else")]
    Removed,
    /// The lock was given back, and not lost. A clone of a [`Term`](crate::leadership::Term) has this reason once the
    /// term has ended without a loss.
    #[error("the lock was given back")]
    GivenBack,
    /// A stranger wrote to a lock node while its owner still held the lock, and waiters took the write for a hand-off.
    ///
    /// The library usually detects the false grant after a few milliseconds. If a holder releases before that, the next
    /// holder also has a false grant. The library detects the second false grant after a fifth of the session timeout,
    /// if the rightful holder is still there. Only an ACL that keeps strangers from writing prevents this for sure. A
    /// [`Semaphore`](crate::Semaphore) never gives permits by such a write.
    #[error("a stranger wrote to a lock node, and the write was taken for a hand-off")]
    Interfered,
}

impl Loss {
    /// Returns the value of the label `cause` in the metrics.
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

/// Whether a lock is held, and how certain that is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HoldState {
    /// The lock is held.
    Held,
    /// The connection is lost, but no other contender can be granted the lock yet. Start no new work that needs the
    /// lock.
    Suspect {
        /// When the lock is lost unless the connection comes back.
        until: Instant,
    },
    /// The lock is lost for good.
    Lost {
        /// The reason of the loss.
        why: Loss,
    },
}

/// Writes a text for people: `held`, or for example `lost: the session expired` or `suspect: lost in 2s 300ms unless
/// the connection comes back`.
impl fmt::Display for HoldState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HoldState::Held => f.write_str("held"),
            HoldState::Suspect { until } => {
                let left =
                    u64::try_from(until.saturating_duration_since(Instant::now()).as_millis()).unwrap_or(u64::MAX);
                let left = humantime::format_duration(Duration::from_millis(left / 100 * 100));
                write!(f, "suspect: lost in {left} unless the connection comes back")
            }
            HoldState::Lost { why } => write!(f, "lost: {why}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hold_state_is_readable() {
        assert_eq!(HoldState::Held.to_string(), "held");
        let suspect = |left| HoldState::Suspect { until: Instant::now() + Duration::from_millis(left) }.to_string();
        assert_eq!(suspect(0), "suspect: lost in 0s unless the connection comes back");
        assert!(suspect(3_600_050).starts_with("suspect: lost in "), "{}", suspect(3_600_050));
        let lost = HoldState::Lost { why: Loss::SessionOver(SessionEnd::Expired) };
        assert_eq!(lost.to_string(), "lost: the session expired");
    }
}
