//! What went wrong, by what the caller can do about it.

use std::io;
use std::time::Duration;

use thiserror::Error;

use crate::error::value::ValueError;
use crate::queue::dialect::Dialect;
use crate::queue::member::Blockers;
use crate::queue::metadata::Record;
use crate::session::contract::CutOff;
use crate::session::request::{Denied, Ending, Failure, Loss};

/// Why a lock operation did not succeed.
///
/// `Display` gives a text for people, which includes the text of the [`source`](std::error::Error::source). `Debug` gives the
/// variant and its fields. A `main` that returns an error prints it by `Debug`, so print it by `Display` instead, as below.
///
/// An `Error` converts into an [`io::Error`] of the kind that fits best. [`into_inner`](io::Error::into_inner) gives this error
/// back.
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
///
/// A function that returns an `io::Error`:
///
/// ```
/// # use std::error::Error as _;
/// # use std::io;
/// # use std::time::Duration;
/// # use zk_rwlock::{Error, Loss, Memory, RwLock, block_on};
/// fn migrate(lock: &RwLock) -> io::Result<()> {
///     let guard = lock.write().timeout(Duration::from_millis(10)).blocking()?;
///     Ok(block_on(guard.release())?)
/// }
/// # let lock = RwLock::new(&Memory::new(), "/locks/config")?;
/// let _held = lock.read().blocking()?;
/// assert_eq!(migrate(&lock).unwrap_err().kind(), io::ErrorKind::TimedOut);
/// assert_eq!(Error::Lost(Loss::Removed).source().unwrap().to_string(), Loss::Removed.to_string());
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The call itself was wrong, and nothing was sent. Mend the program or its configuration.
    #[error("invalid input: {0}")]
    InvalidInput(String),

    /// The time given was over first. The place in the queue, if there was one, was given up. Try again, or look at the
    /// contenders in the way. A holder that [keeps](crate::queue::Member::keeps) the lock was asked for it, so its process uses it
    /// still, unless this client may not write the lock's directory.
    #[error(
        "not {} within {}: {}",
        if .blockers.ahead > 0 { "granted" } else { "done" },
        humantime::format_duration(*.waited),
        obstacle(blockers, cut_off.as_ref())
    )]
    Timeout {
        /// The time given.
        waited: Duration,
        /// The contenders that were in the way; while cut off, by the last listing.
        blockers: Blockers,
        /// Since when and why the client had no connection when the time was over. `None` if it had one.
        cut_off: Option<CutOff>,
    },

    /// A `try_` method found the lock taken, or another contender came first. Go on with other work. A holder that
    /// [keeps](crate::queue::Member::keeps) the lock may be idle: it was not [asked](crate::RwLock::ask).
    #[error("would block: {blockers}")]
    WouldBlock {
        /// The contenders in the way.
        blockers: Blockers,
    },

    /// The lock was held and is not any more. Stop the work that it guarded: another contender may hold it already.
    #[error("the lock was lost: {0}")]
    Lost(#[source] Loss),

    /// The place in the queue was lost before the lock was granted. Acquire again if you still want it.
    #[error("lost the place in the queue: {0}")]
    Evicted(#[source] Loss),

    /// No server answered in time. Look at the network and at the ensemble. Nothing is held or queued. If an
    /// [eviction](crate::RwLock::evict) was sent, it is not known whether it was carried out.
    #[error("ZooKeeper cannot be reached: {0}")]
    Unreachable(String),

    /// This coordinator was closed and will never connect again, or its credentials were refused: mend the credentials.
    #[error("{0}, and no new one can be opened")]
    Closed(#[source] Ending),

    /// The ensemble does not allow the operation. `delete` and `create` are permissions of the *parent* node.
    ///
    /// When the operation is [`ENTER_OWN_DIRECTORY`](Error::ENTER_OWN_DIRECTORY), mend the [`Acl`](crate::security::Acl) that
    /// this client gives to the nodes that it makes.
    ///
    /// No node is left behind, except in one case: when the operation is [`DELETE_OWN_NODE`](Error::DELETE_OWN_NODE),
    /// the node at `path` stays, in the way of other contenders, until its session ends: see
    /// [`ZooKeeper::close`](crate::ZooKeeper::close).
    #[error("permission denied: {operation} {path}: {lacks}")]
    PermissionDenied {
        /// What was tried.
        operation: &'static str,
        /// On which node.
        path: String,
        /// The right that is missing, on which node, and as whom this client is authenticated.
        lacks: Box<Denied>,
    },

    /// The servers refuse the [`Acl`](crate::security::Acl) that this client gives to its nodes. After `sasl` or `digest`, that is
    /// [`Acl::creator`](crate::security::Acl::creator) by default, and they have not authenticated this client: servers that are
    /// not set up for SASL pass over a login with it. Set the servers up, or mend the ACL.
    #[error(
        "the servers refuse the ACL of this client's nodes, so they may not have authenticated this client: {path}"
    )]
    InvalidAcl {
        /// The lock's directory.
        path: String,
    },

    /// The lock's directory, or one above it, is an ephemeral node, which can have no children. Choose another path.
    #[error("{path} cannot be made a lock directory: it or a node above it is ephemeral")]
    EphemeralParent {
        /// The lock's directory.
        path: String,
    },

    /// The directory's sequence numbers are nearly used up, and contenders are in it. Let all of them leave: the next
    /// contender restarts the numbers, if nothing else is in the directory. Or use another path.
    #[error("{path} has used up its sequence numbers: let all leave, remove what else is in it, or use another path")]
    SequenceExhausted {
        /// The lock's directory.
        path: String,
    },

    /// A contender in the lock's directory may go by another rule than this lock, so nothing shows whose turn it is.
    /// Open the lock in the other [dialect](Dialect), or use another path.
    #[error("{path} is also used by others: {node} is {}; nothing is granted beside it", .dialect.describe(*.speaks))]
    ForeignContender {
        /// The lock's directory.
        path: String,
        /// The name of the node.
        node: String,
        /// The dialect of the node. It is the dialect of the lock if the node has the lock's mark and no number behind
        /// it.
        speaks: Dialect,
        /// The dialect of the lock.
        dialect: Dialect,
    },

    /// The [`Semaphore`](crate::Semaphore) grants nothing, because of its number of permits; or its path is that of a lock, or a
    /// lock's that of a semaphore. The reason says what to do.
    #[error("{path} {reason}")]
    Permits {
        /// The semaphore.
        path: String,
        /// What is wrong with the number.
        #[source]
        reason: PermitsError,
    },

    /// One lock of a [`MultiLock`](crate::MultiLock) failed, and none of them is held.
    ///
    /// From a [`MultiGuard`](crate::MultiGuard), it is the lock that was lost first.
    #[error("{path}: {error}")]
    OneOfMany {
        /// That lock's directory.
        path: String,
        /// What went wrong with it.
        #[source]
        error: Box<Error>,
    },

    /// A guarded transaction was refused, and nothing was changed. The lock is still held.
    #[error("operation {index} on {path} failed, and nothing was changed: {reason}")]
    TransactionRefused {
        /// Which operation, counted from 0 in the order in which they were added.
        index: usize,
        /// Its node.
        path: String,
        /// Why.
        #[source]
        reason: Failure,
    },

    /// The lock is as it should be, but the [value](crate::Shared) behind it cannot be read or written. The value in the
    /// ensemble is as it was.
    #[error("{path}: {error}")]
    Value {
        /// The value's node.
        path: String,
        /// What is wrong with it.
        #[source]
        error: ValueError,
    },

    /// What lies where the [record](crate::Acquire::once_in) of a job's last success would lie was not written by this
    /// library. Look at it. Then delete it, or use another path. It stays as it is.
    #[error(
        "{path} is no record of when a job was last done: look at it, and delete it or use another path for the lock"
    )]
    ForeignRecord {
        /// The node.
        path: String,
    },

    /// The [record](crate::Acquire::once_in) of a job's last success is gone: somebody has deleted its node. The second record
    /// beside it says that the job was done within the period, so it is not due. Find out who deletes nodes. To have the job done
    /// again, [forget](crate::RwLock::forget) it.
    #[error(
        "{path} is gone, which recorded what was {last}: it is not due yet; to have it done again, forget the record"
    )]
    RecordVanished {
        /// The node.
        path: String,
        /// What it recorded.
        last: Box<Record>,
    },

    /// The connection broke, or the client was closed, before the answer came. The operation may or may not have been
    /// carried out. Read to find out.
    #[error("{operation}: the outcome is unknown: {reason}")]
    OutcomeUnknown {
        /// What was tried.
        operation: &'static str,
        /// What is known.
        reason: String,
    },

    /// The server refused, for a reason that only people can act on.
    #[error("{operation} {path}: {reason}")]
    Refused {
        /// What was tried.
        operation: &'static str,
        /// On which node.
        path: String,
        /// What the server said.
        reason: String,
    },
}

/// So many characters of a problem with an input stay as they are: those about a path of 1,024 bytes do.
const LONGEST_PROBLEM: usize = 4_000;

/// Of a longer one, so many are kept at its beginning, and as many at its end.
const SHOWN: usize = 150;

impl Error {
    /// The operation of a [`PermissionDenied`](Error::PermissionDenied) that leaves a node behind.
    pub const DELETE_OWN_NODE: &str = "delete our own node (it stays until its session ends)";

    /// The operation of a [`PermissionDenied`](Error::PermissionDenied) that the caller's own [`Acl`](crate::security::Acl)
    /// causes. The directory is removed again, so no other client finds it.
    pub const ENTER_OWN_DIRECTORY: &str = "enter the directory that it made (the ACL of this client shuts the client out: allow its own user to read, create and delete)";

    /// Whether a `try_` method found the lock taken.
    pub fn is_would_block(&self) -> bool {
        matches!(self.cause(), Error::WouldBlock { .. })
    }

    /// Whether the time given was over first.
    pub fn is_timeout(&self) -> bool {
        matches!(self.cause(), Error::Timeout { .. })
    }

    /// Whether a lock that was held, or a place in the queue, was lost.
    pub fn is_lost(&self) -> bool {
        matches!(self.cause(), Error::Lost(_) | Error::Evicted(_))
    }

    /// What is wrong with the [value](crate::Shared) behind the lock, if that is what went wrong.
    pub fn value_error(&self) -> Option<&ValueError> {
        match self {
            Error::Value { error, .. } => Some(error),
            _ => None,
        }
    }

    /// What went wrong with one lock, whether it was acquired alone or together with other locks.
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

    /// This error, as that of the lock at `path` among several.
    pub(crate) fn of_one(self, path: &str) -> Error {
        match self {
            // It names its path already.
            Error::InvalidInput(_) | Error::OneOfMany { .. } => self,
            error => Error::OneOfMany { path: path.to_owned(), error: Box::new(error) },
        }
    }

    /// This error of a part. If its time was over, the error tells of the whole wait.
    pub(crate) fn of_the_whole(self, waited: Option<Duration>) -> Error {
        match (self, waited) {
            (Error::Timeout { blockers, cut_off, .. }, Some(waited)) => Error::Timeout { waited, blockers, cut_off },
            (error, _) => error,
        }
    }

    /// A node that we made and may not remove.
    pub(crate) fn stays(path: String, lacks: Box<Denied>) -> Error {
        Error::PermissionDenied { operation: Error::DELETE_OWN_NODE, path, lacks }
    }

    /// A directory that we made, and may not use by the ACL that we gave it.
    pub(crate) fn shut_out(path: &str, lacks: Box<Denied>) -> Error {
        Error::PermissionDenied { operation: Error::ENTER_OWN_DIRECTORY, path: path.to_owned(), lacks }
    }

    /// The time given was over, and the call waited for no contender.
    pub(crate) fn late(waited: Duration, cut_off: Option<CutOff>) -> Error {
        Error::Timeout { waited, blockers: Blockers::default(), cut_off }
    }

    /// A problem that repeats a very long input is shortened in the middle.
    pub(crate) fn invalid(problem: impl Into<String>) -> Error {
        let problem: String = problem.into();
        if problem.chars().nth(LONGEST_PROBLEM).is_none() {
            return Error::InvalidInput(problem);
        }
        let begin: String = problem.chars().take(SHOWN).collect();
        let rest = problem.char_indices().rev().nth(SHOWN - 1).map_or(0, |(at, _)| at);
        Error::InvalidInput(format!("{begin}…{}", &problem[rest..]))
    }

    /// What a failed request means for a caller that does not hold the lock.
    pub(crate) fn from_failure(failure: Failure, operation: &'static str, path: &str) -> Error {
        let path = path.to_owned();
        match failure {
            Failure::NoAuth(lacks) => Error::PermissionDenied { operation, path, lacks },
            Failure::InvalidAcl => Error::InvalidAcl { path },
            Failure::ParentIsEphemeral => Error::EphemeralParent { path },
            Failure::Unreachable(reason) => Error::Unreachable(reason),
            Failure::Over(ending @ (Ending::Closed | Ending::AuthFailed | Ending::Forked)) => Error::Closed(ending),
            Failure::Over(ending) => Error::Unreachable(ending.to_string()),
            Failure::Unknown(reason) => Error::OutcomeUnknown { operation, reason },
            Failure::Operation { failure, .. } => Error::from_failure(*failure, operation, &path),
            other => Error::Refused { operation, path, reason: other.to_string() },
        }
    }
}

/// What was in the way when the time was over.
fn obstacle(blockers: &Blockers, cut_off: Option<&CutOff>) -> String {
    match cut_off {
        None => blockers.to_string(),
        Some(cut_off) if blockers.ahead == 0 => cut_off.to_string(),
        Some(cut_off) => format!("{cut_off}; before that, {blockers}"),
    }
}

/// What is wrong with the number of permits of a [`Semaphore`](crate::Semaphore).
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PermitsError {
    /// Nobody has said how many permits there are. Say it for all with
    /// [`set_permits`](crate::Semaphore::set_permits), or open the semaphore with a
    /// [number](crate::semaphore::SemaphoreBuilder::permits).
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

impl From<Error> for io::Error {
    fn from(error: Error) -> io::Error {
        use io::ErrorKind;
        let kind = match error.cause() {
            Error::InvalidInput(_) => ErrorKind::InvalidInput,
            Error::Timeout { .. } => ErrorKind::TimedOut,
            Error::WouldBlock { .. } => ErrorKind::WouldBlock,
            Error::Lost(_) | Error::Evicted(_) => ErrorKind::ConnectionAborted,
            Error::PermissionDenied { .. } | Error::InvalidAcl { .. } | Error::Closed(Ending::AuthFailed) => {
                ErrorKind::PermissionDenied
            }
            Error::Unreachable(_) | Error::Closed(_) => ErrorKind::NotConnected,
            Error::EphemeralParent { .. } => ErrorKind::NotADirectory,
            Error::SequenceExhausted { .. } => ErrorKind::QuotaExceeded,
            Error::ForeignContender { .. } => ErrorKind::ResourceBusy,
            Error::Permits { reason: PermitsError::Other { .. } | PermitsError::TooFew { .. }, .. } => {
                ErrorKind::InvalidInput
            }
            Error::Permits { reason: PermitsError::IsLocked { .. } | PermitsError::NoLock, .. } => {
                ErrorKind::ResourceBusy
            }
            Error::Permits { .. } => ErrorKind::InvalidData,
            Error::TransactionRefused { reason: Failure::NoNode | Failure::NoParent(_), .. } => ErrorKind::NotFound,
            Error::TransactionRefused { reason: Failure::NodeExists, .. } => ErrorKind::AlreadyExists,
            Error::TransactionRefused { reason: Failure::NoAuth(_), .. } => ErrorKind::PermissionDenied,
            Error::TransactionRefused { reason: Failure::NotEmpty, .. } => ErrorKind::DirectoryNotEmpty,
            Error::Value { error: ValueError::Unset | ValueError::Vanished, .. } => ErrorKind::NotFound,
            Error::RecordVanished { .. } => ErrorKind::NotFound,
            Error::Value { .. } | Error::ForeignRecord { .. } => ErrorKind::InvalidData,
            Error::OutcomeUnknown { .. } => ErrorKind::ConnectionReset,
            Error::TransactionRefused { .. } | Error::Refused { .. } | Error::OneOfMany { .. } => ErrorKind::Other,
        };
        io::Error::new(kind, error)
    }
}
