//! [`Error`], whose variants tell a caller what to do.

use std::time::Duration;

use thiserror::Error;

use crate::error::value::ValueError;
use crate::queue::dialect::Dialect;
use crate::queue::member::Blockers;
use crate::queue::metadata::Record;
use crate::queue::quoted::shortened;
use crate::session::contract::CutOff;
use crate::session::request::{DeniedRight, Failure, Loss, SessionEnd, disagreement_message};

/// Why a lock operation did not succeed.
///
/// `Display` gives a text for people, which includes the text of the [`source`](std::error::Error::source). `Debug`
/// gives the variant and its fields. If `main` returns an error, Rust prints the error by `Debug`. So let `main` print
/// the error by `Display` itself, as below.
///
/// # Examples
///
/// A program that prints its error by `Display`:
///
/// ```
/// use std::process::ExitCode;
/// use zk_rwlock::{Error, Memory, RwLock};
///
/// async fn run() -> Result<(), Error> {
///     let lock = RwLock::new(&Memory::new(), "/locks/config")?;
///     lock.write().await?.release().await
/// }
///
/// #[tokio::main]
/// async fn main() -> ExitCode {
///     match run().await {
///         Ok(()) => ExitCode::SUCCESS,
///         Err(error) => {
///             eprintln!("{error}");
///             ExitCode::FAILURE
///         }
///     }
/// }
/// ```
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// An argument or an option is wrong, and nothing was changed. Fix the program or its configuration.
    #[error("invalid input: {0}")]
    InvalidInput(String),

    /// The timeout expired. An acquisition that was in the queue leaves it. Try again, or look at the contenders that
    /// the acquisition waited for.
    ///
    /// A holder among these contenders may be a process that [keeps](crate::queue::Member::keeps) the lock even while
    /// it does not use the lock. That process was then requested to give the lock up, unless this client may not write
    /// the lock's directory. It gives the lock up as soon as it does not use the lock.
    #[error(
        "not {} within {}: {}",
        if .blockers.ahead > 0 { "granted" } else { "done" },
        humantime::format_duration(*.waited),
        timeout_reason(blockers, cut_off.as_ref())
    )]
    Timeout {
        /// The timeout that expired.
        waited: Duration,
        /// The contenders that the acquisition waited for. If the client was disconnected, they are from the last
        /// listing of the queue that it could read. Empty for a call that waits for no contender, such as
        /// [`RwLock::queue`](crate::RwLock::queue).
        blockers: Blockers,
        /// Since when and why the client had no connection at the timeout. `None` if the client was connected.
        cut_off: Option<CutOff>,
    },

    /// A `try_` method found the lock taken, or another contender was faster. Go on with other work. The holder may be
    /// a process that [keeps](crate::queue::Member::keeps) the lock without using it now. A `try_` method does not
    /// [ask](crate::RwLock::ask) such a process to give the lock up. [`Semaphore::remove`](crate::Semaphore::remove)
    /// also fails with this error, if the semaphore is in use.
    #[error("would block: {blockers}")]
    WouldBlock {
        /// The contenders that an acquisition would have waited for.
        blockers: Blockers,
    },

    /// The lock was held and is lost. Stop the work under it: another contender may hold the lock already.
    #[error("the lock was lost: {0}")]
    Lost(#[source] Loss),

    /// The place in the queue was lost before the lock was granted. Acquire again if you still want the lock.
    #[error("lost the place in the queue: {0}")]
    Evicted(#[source] Loss),

    /// No server answered in time, or the session ended before the answer came. Check the network and the ensemble. An
    /// acquisition that failed with this error has no lock, and no place in the queue any more. An
    /// [eviction](crate::RwLock::evict) that was sent may or may not have been carried out.
    #[error("ZooKeeper cannot be reached: {0}")]
    Unreachable(String),

    /// The client never connects again. It was closed, or the servers refused its credentials, or this process was
    /// forked from a process that had connected. Fix the credentials, or fork before you connect.
    #[error("{0}, and no new one can be opened")]
    Closed(#[source] SessionEnd),

    /// The ensemble does not allow the operation. `delete` and `create` are permissions of the *parent* node.
    ///
    /// If the operation is [`ENTER_OWN_DIRECTORY`](Error::ENTER_OWN_DIRECTORY), fix the [`Acl`](crate::security::Acl)
    /// that this client gives to the nodes that it makes.
    ///
    /// No node is left behind, with one exception: if the operation is [`DELETE_OWN_NODE`](Error::DELETE_OWN_NODE), the
    /// node at `path` keeps other contenders out until its session ends. See
    /// [`ZooKeeper::close`](crate::ZooKeeper::close).
    #[error("permission denied: {operation} {path}: {lacks}")]
    PermissionDenied {
        /// The operation that was refused, in words.
        operation: &'static str,
        /// The path of the node that the operation is about.
        path: String,
        /// The missing permission, the node that lacks it, and the identities of this client.
        lacks: Box<DeniedRight>,
    },

    /// The servers refuse the [`Acl`](crate::security::Acl) that this client gives to its nodes. A client with `sasl`
    /// or `digest` gives [`Acl::creator`](crate::security::Acl::creator) by default. The servers refuse that ACL if
    /// they have not authenticated the client: servers that are not set up for SASL ignore a SASL login. Set the
    /// servers up, or fix the ACL.
    #[error(
        "the servers refuse the ACL of this client's nodes, so they may not have authenticated this client: {path}"
    )]
    InvalidAcl {
        /// The path of the lock's directory.
        path: String,
    },

    /// The lock's directory, or one above it, is an ephemeral node, which can have no children. Choose another path.
    #[error("{path} cannot be made a lock directory: it or a node above it is ephemeral")]
    EphemeralParent {
        /// The path of the lock's directory.
        path: String,
    },

    /// The sequence numbers of the directory are used up. Let all contenders leave. If the directory is then
    /// empty, the next contender restarts the numbers. Or use another path.
    #[error("{path} has used up its sequence numbers: let all leave, remove what else is in it, or use another path")]
    SequenceExhausted {
        /// The path of the lock's directory.
        path: String,
    },

    /// A contender in the lock's directory may follow other rules than this lock, so the names do not show whose turn
    /// it is. Open the lock in the other [dialect](Dialect), or use another path.
    #[error("{path} is also used by others: {node} is {}; nothing is granted beside it", .dialect.describe_foreign(*.speaks))]
    ForeignContender {
        /// The path of the lock's directory.
        path: String,
        /// The name of the foreign contender's node.
        node: String,
        /// The dialect of the node. If the node's name has the marker of a mode (such as `__WRIT__`) but no number,
        /// this is the dialect of the marker, and may be the lock's own dialect.
        speaks: Dialect,
        /// The dialect of the lock.
        dialect: Dialect,
    },

    /// A node in the lock's directory has the sequence number of the node that this acquisition made. The servers give
    /// each number only once, so a person or another program chose the name of that node. While that node exists, no
    /// lock is granted here, because the numbers do not show whose turn it is. Delete that node.
    #[error(
        "{path}/{node} has the number of the node that the servers made for this acquisition, so it was made by hand: delete it"
    )]
    NumberTaken {
        /// The path of the lock's directory.
        path: String,
        /// The name of the node with the same number.
        node: String,
    },

    /// The [`Semaphore`](crate::Semaphore) grants nothing, because something is wrong with its number of permits: for
    /// example, no number is set. Or a semaphore was opened at the path of a lock, or a lock at the path of a
    /// semaphore. The text of `reason` says what to do.
    #[error("{path} {reason}")]
    Permits {
        /// The path of the directory of the semaphore or the lock.
        path: String,
        /// What is wrong with the number of permits, or what else the path is used for.
        #[source]
        reason: PermitsError,
    },

    /// One lock of a [`MultiLock`](crate::MultiLock) failed. If the acquisition failed with this error, no lock of the
    /// `MultiLock` is held.
    #[error("{path}: {error}")]
    OneOfMany {
        /// The path of the lock that failed. A [`MultiGuard`](crate::MultiGuard) gives the path of the lock that was lost
        /// first.
        path: String,
        /// The error of that lock.
        #[source]
        error: Box<Error>,
    },

    /// The ensemble refused a transaction of a guard, and nothing was changed. The lock was still held at that time.
    #[error("operation {index} on {path} failed, and nothing was changed: {reason}")]
    TransactionRefused {
        /// The index of the operation, from 0, in the order in which the operations were added.
        index: usize,
        /// The path of the operation's node.
        path: String,
        /// The reason why the operation was refused.
        #[source]
        reason: Failure,
    },

    /// The [value](crate::Shared) behind the lock cannot be read or written. The lock itself works, and the value in
    /// the ensemble is unchanged.
    #[error("{path}: {error}")]
    Value {
        /// The path of the value's node.
        path: String,
        /// What is wrong with the value.
        #[source]
        error: ValueError,
    },

    /// The node at the path of a [record](crate::Acquire::once_in) was not written by this library, so the library does
    /// not change it. Look at the node. Then delete the node, or use another path for the lock.
    #[error(
        "{path} is no record of when a job was last done: look at it, and delete it or use another path for the lock"
    )]
    ForeignRecord {
        /// The path of the node.
        path: String,
    },

    /// The node of a [record](crate::Acquire::once_in) was deleted. A copy of the record says that the job was done
    /// within the period, so the job is not due. Find out who deletes nodes. To have the job done again,
    /// [forget](crate::RwLock::forget) the record.
    #[error(
        "{path} is gone, which recorded what was {last}: it is not due yet; to have it done again, forget the record"
    )]
    RecordVanished {
        /// The path of the record's node.
        path: String,
        /// The record, as read from its copy.
        last: Box<Record>,
    },

    /// A server does not agree with the ensemble's leader about a node, and no other server can be used: each of the
    /// others was tried or does not answer. Run `zklock check` with the path of this node. The command asks all
    /// servers, and says what to do. An acquisition that failed with this error has no lock, and no place in the queue
    /// any more.
    #[error("{}", disagreement_message(.node, .server))]
    Diverged {
        /// The path of the node.
        node: String,
        /// The address of the server.
        server: String,
    },

    /// The connection was lost, or the client was closed, before the answer came. The operation may or may not have
    /// been carried out. To find out, read the nodes.
    #[error("{operation}: the outcome is unknown: {reason}")]
    OutcomeUnknown {
        /// The operation whose outcome is unknown, in words.
        operation: &'static str,
        /// The reason why no answer came.
        reason: String,
    },

    /// The operation failed for a reason that has no variant of its own. The reason says what to change.
    #[error("{operation} {path}: {reason}")]
    Refused {
        /// The operation that was refused, in words.
        operation: &'static str,
        /// The path of the node that the operation is about.
        path: String,
        /// The reason, in words.
        reason: String,
    },
}

impl Error {
    /// The `operation` of a [`PermissionDenied`](Error::PermissionDenied) which says that this client may not delete
    /// its own node. The node then stays until its session ends.
    pub const DELETE_OWN_NODE: &str = "delete our own node (it stays until its session ends)";

    /// The `operation` of a [`PermissionDenied`](Error::PermissionDenied) which says that this client made the lock's
    /// directory, but may not use it, because of the client's own [`Acl`](crate::security::Acl). The client removes the
    /// directory again.
    pub const ENTER_OWN_DIRECTORY: &str = "enter the directory that it made (the ACL of this client shuts the client out: allow its own user to read, create and delete)";

    /// Returns whether the [cause](Self::cause) is [`WouldBlock`](Error::WouldBlock): mostly, a `try_` method found the
    /// lock taken.
    pub fn is_would_block(&self) -> bool {
        matches!(self.cause(), Error::WouldBlock { .. })
    }

    /// Returns whether the [cause](Self::cause) is [`Timeout`](Error::Timeout): the timeout expired.
    pub fn is_timeout(&self) -> bool {
        matches!(self.cause(), Error::Timeout { .. })
    }

    /// Returns whether the [cause](Self::cause) is [`Lost`](Error::Lost) or [`Evicted`](Error::Evicted): a lock that
    /// was held, or a place in the queue, was lost.
    pub fn is_lost(&self) -> bool {
        matches!(self.cause(), Error::Lost(_) | Error::Evicted(_))
    }

    /// Returns what is wrong with the [value](crate::Shared) behind the lock, if the [cause](Self::cause) is
    /// [`Value`](Error::Value).
    pub fn value_error(&self) -> Option<&ValueError> {
        match self.cause() {
            Error::Value { error, .. } => Some(error),
            _ => None,
        }
    }

    /// Returns the error of the one lock that failed: for [`OneOfMany`](Error::OneOfMany) the inner error, and for any
    /// other variant this error.
    ///
    /// # Examples
    ///
    /// ```
    /// # use zk_rwlock::{Error, Loss};
    /// let error = Error::Lost(Loss::Removed);
    /// assert!(matches!(error.cause(), Error::Lost(Loss::Removed)));
    /// let error = Error::OneOfMany { path: "/locks/a".to_owned(), error: Box::new(error) };
    /// assert!(matches!(error.cause(), Error::Lost(Loss::Removed)));
    /// ```
    pub fn cause(&self) -> &Error {
        match self {
            Error::OneOfMany { error, .. } => error.cause(),
            error => error,
        }
    }

    /// Turns the error of one lock of a [`MultiLock`](crate::MultiLock) into the error of the `MultiLock`. That is
    /// [`OneOfMany`](Error::OneOfMany) with the path of the lock, or the same error in the two cases below.
    pub(crate) fn with_lock_path(self, path: &str) -> Error {
        match self {
            // An invalid input is wrong for every lock, so the error names no path. `OneOfMany` names the path already.
            Error::InvalidInput(_) | Error::OneOfMany { .. } => self,
            error => Error::OneOfMany { path: path.to_owned(), error: Box::new(error) },
        }
    }

    /// Returns the error for a node of this client that the client itself may not delete.
    pub(crate) fn own_node_undeletable(path: String, lacks: Box<DeniedRight>) -> Error {
        Error::PermissionDenied { operation: Error::DELETE_OWN_NODE, path, lacks }
    }

    /// Returns the error for a directory that this client created with an ACL that denies access to this client itself.
    pub(crate) fn own_directory_denied(path: &str, lacks: Box<DeniedRight>) -> Error {
        Error::PermissionDenied { operation: Error::ENTER_OWN_DIRECTORY, path: path.to_owned(), lacks }
    }

    /// Returns the timeout error of a call that waits for no contender.
    pub(crate) fn timed_out(waited: Duration, cut_off: Option<CutOff>) -> Error {
        Error::Timeout { waited, blockers: Blockers::default(), cut_off }
    }

    /// Returns the error for an invalid input. If the text has more than 4,000 characters, its middle is left out.
    pub(crate) fn invalid(problem: impl Into<String>) -> Error {
        // The longest path has 1,024 bytes. A text about such a path has fewer than 4,000 characters, and is not
        // shortened.
        Error::InvalidInput(shortened(&problem.into(), 4_000, 150).into_owned())
    }

    /// Turns the failure of a request into an error. `operation` says what the request was to do, and `path` at which
    /// node. If the caller holds the lock, use [`Error::from_failure_under_lock`] instead, because the end of the
    /// session is then a loss of the lock.
    pub(crate) fn from_failure(failure: Failure, operation: &'static str, path: &str) -> Error {
        let path = path.to_owned();
        match failure {
            Failure::NoAuth(lacks) => Error::PermissionDenied { operation, path, lacks },
            Failure::InvalidAcl => Error::InvalidAcl { path },
            Failure::ParentIsEphemeral => Error::EphemeralParent { path },
            Failure::Diverged { node, server } => Error::Diverged { node, server },
            Failure::Unreachable(reason) => Error::Unreachable(reason),
            Failure::Over(ending @ (SessionEnd::Closed | SessionEnd::AuthFailed | SessionEnd::Forked)) => {
                Error::Closed(ending)
            }
            Failure::Over(ending) => Error::Unreachable(ending.to_string()),
            Failure::Unknown(reason) => Error::OutcomeUnknown { operation, reason },
            Failure::Operation { failure, .. } => Error::from_failure(*failure, operation, &path),
            other => Error::Refused { operation, path, reason: other.to_string() },
        }
    }

    /// Turns the failure of a request that was sent while a lock was held into an error. The end of the session becomes
    /// [`Error::Lost`], because the lock's node ends with the session.
    pub(crate) fn from_failure_under_lock(failure: Failure, operation: &'static str, path: &str) -> Error {
        match failure {
            Failure::Over(ending) => Error::Lost(Loss::SessionOver(ending)),
            failure => Error::from_failure(failure, operation, path),
        }
    }
}

/// Returns the words for why the call was not done at the timeout.
fn timeout_reason(blockers: &Blockers, cut_off: Option<&CutOff>) -> String {
    match cut_off {
        None => blockers.to_string(),
        Some(cut_off) if blockers.ahead == 0 => cut_off.to_string(),
        Some(cut_off) => format!("{cut_off}; before that, {blockers}"),
    }
}

/// Why a [`Semaphore`](crate::Semaphore) grants nothing: something is wrong with its number of permits, or its path is
/// used for something else. Also the error of a lock at the path of a semaphore.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PermitsError {
    /// The number was never set. Set it with [`set_permits`](crate::Semaphore::set_permits), or open the semaphore with
    /// a [number](crate::semaphore::SemaphoreBuilder::permits).
    #[error("has no number of permits yet: set it with set_permits, or with zklock permits")]
    Unset,
    /// The node with the number of permits was deleted. Find out who deletes nodes, and set the number again with
    /// [`set_permits`](crate::Semaphore::set_permits).
    #[error(
        "had {was} permits, and the node that said so is gone: set the number with set_permits, or with zklock permits"
    )]
    Vanished {
        /// The number of permits before the deletion.
        was: u32,
    },
    /// This handle was opened with another number of permits than the ensemble has. Open all handles with the same
    /// number or, better, without a number, and change the number with [`set_permits`](crate::Semaphore::set_permits).
    #[error(
        "has {theirs} permits, and was opened here with {ours}: leave the number out, or change it with set_permits or zklock permits"
    )]
    Other {
        /// The number of permits that this handle was opened with.
        ours: u32,
        /// The number of permits in the ensemble.
        theirs: u32,
    },
    /// The request is for more permits than the semaphore has, so it is not granted. Ask for fewer permits, or raise
    /// the number with [`set_permits`](crate::Semaphore::set_permits).
    #[error(
        "has {permits} permits, and {wanted} are wanted: ask for fewer, or raise the number with set_permits or zklock permits"
    )]
    TooFew {
        /// The number of permits in the request.
        wanted: u32,
        /// The number of permits that exist.
        permits: u32,
    },
    /// There is a lock with contenders at this path. A path is either a lock or a semaphore, so use another path.
    #[error("is a lock, which {node} holds or waits for: a path is a lock or a semaphore, so use another one")]
    IsLocked {
        /// The name of the node of a holder or a waiter.
        node: String,
    },
    /// There is a semaphore at the path of this lock, as the number of permits in the node shows. Use another path. If
    /// the semaphore is not used any more, [remove](crate::Semaphore::remove) it.
    #[error("is a semaphore: a path is a lock or a semaphore, so use another one, or remove the semaphore")]
    NoLock,
    /// The path has an empty node without a number of permits. The node may be the directory of a lock that is idle
    /// now. If a number of permits were written into the node, that lock could not be used any more. Use another path.
    /// If you know that it is not a lock, set the number with
    /// [`at_existing_node`](crate::semaphore::SemaphoreBuilder::at_existing_node).
    #[error("exists without a number of permits, and may be a lock that is idle now: use another path")]
    EmptyNode,
    /// The path is used for something else: there is a [record](crate::Acquire::once_in) of a job for this path, or
    /// other nodes lie below the path, as below the path of a [value](crate::Shared). The text names the node. Use
    /// another path.
    #[error("is used for something else, of which {0} is a part: use another path")]
    OtherUse(String),
    /// A node of the semaphore was not written by this library, so the free permits cannot be counted. The text names
    /// the node. Remove that node, or use another path.
    #[error("cannot be counted: {0}")]
    Doubtful(String),
}
