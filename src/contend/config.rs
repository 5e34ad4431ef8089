//! The paths and the options of a lock, and the errors of its acquisitions.

use std::sync::Arc;
use std::time::Duration;

use crate::contend::warnings::WaitWarnings;
use crate::error::error::{Error, PermitsError};
use crate::observe::lock_paths::LockPaths;
use crate::queue::metadata::VALUE_TWIN;
use crate::queue::permits::{self, PERMITS, QUEUE};
use crate::queue::turn;
use crate::session::contract::{Coordinator, Session};
use crate::session::request::{Failure, Loss, SessionEnd, Stat};
use crate::session::retry;
use crate::sync::atomic::AtomicBool;
use crate::telemetry::debug::debug;
use crate::telemetry::meter::PathLabel;

/// The paths and the options of a lock or semaphore. All clones of a handle share one `LockConfig`.
pub(crate) struct LockConfig {
    pub(crate) coordinator: Arc<dyn Coordinator>,
    /// The directory of the queue.
    pub(crate) directory: Arc<str>,
    /// The lock's paths, for reads of the queue and of the holders.
    pub(crate) paths: LockPaths,
    pub(crate) host: String,
    pub(crate) label: Option<String>,
    /// Whether the contenders are candidates of an election. The data of each node says so.
    pub(crate) is_election: bool,
    pub(crate) warn_holding: Option<Duration>,
    pub(crate) max_hold: Option<Duration>,
    /// By a write to the directory, this client asks other processes to give up the nodes that they keep between uses.
    /// This flag says whether a failure of such a write was logged: only the first failure is logged.
    pub(crate) has_warned_of_ask: Arc<AtomicBool>,
    pub(crate) warnings: Arc<WaitWarnings>,
    pub(crate) path_label: Arc<PathLabel>,
}

impl LockConfig {
    /// Returns the path that the user gave.
    pub(crate) fn user_path(&self) -> &Arc<str> {
        &self.paths.path
    }

    /// Fails if one of `names`, the children of the directory, is [foreign](crate::Dialect::foreign) to the lock's
    /// dialect.
    pub(crate) fn fail_if_foreign(&self, names: &[String]) -> Result<(), Error> {
        turn::first_foreign(self.paths.dialect, names).map_or(Ok(()), |node| Err(self.foreign_error(node)))
    }

    /// Fails if the lock's path is that of a [`Shared`](crate::Shared) value, which has its lock in a child node, or of
    /// a semaphore, whose node has data. `names` are the children of the node at that path, and `directory` is its
    /// stat. Reads the data of the node only if their length fits a number of permits. Without a stat, reads the data
    /// only if a child is named like a directory of a semaphore. Also fails if the read fails, unless this client has
    /// no right to read the node.
    pub(crate) async fn fail_if_other_use(
        &self,
        session: &Arc<dyn Session>,
        names: &[String],
        directory: Option<&Stat>,
    ) -> Result<(), Error> {
        let path = &self.directory;
        if names.iter().any(|name| name == VALUE_TWIN) {
            return Err(Error::invalid(format!(
                "{path} is the path of a value, and the lock of that value is {path}/lock"
            )));
        }
        let is_known_to_be_none = || !names.iter().any(|name| name == QUEUE || name == PERMITS);
        if directory.map_or_else(is_known_to_be_none, |stat| !permits::may_be_permit_number_length(stat.data_length)) {
            return Ok(());
        }
        match retry::read_data(session, path, false).await {
            Ok(Some((data, _))) if matches!(permits::decode_permit_number(&data), Ok(Some(_))) => {
                Err(Error::Permits { path: path.to_string(), reason: PermitsError::NoLock })
            }
            // If the node is missing or has other data, there is no semaphore. If this client may not read the node, it
            // could not use a semaphore there, so this is no failure either.
            Ok(_) | Err(Failure::NoAuth(_)) => Ok(()),
            Err(failure) => Err(self.acquisition_error(failure)),
        }
    }

    pub(crate) fn foreign_error(&self, foreign: &str) -> Error {
        let speaks = self.paths.dialect.foreign(foreign).unwrap_or(self.paths.dialect);
        let (path, node) = (self.directory.to_string(), foreign.to_owned());
        Error::ForeignContender { path, node, speaks, dialect: self.paths.dialect }
    }

    /// Returns the error of an acquisition whose node never gets its turn. The node `rival` has the same sequence
    /// number. If `rival` is `None`, the number is negative.
    pub(crate) fn stuck_error(&self, rival: Option<String>) -> Error {
        let path = self.directory.to_string();
        match rival {
            Some(node) => Error::NumberTaken { path, node },
            None => Error::SequenceExhausted { path },
        }
    }

    /// Returns the error of an acquisition whose node was lost before the grant.
    pub(crate) fn evicted_error(&self, loss: Loss) -> Error {
        match loss {
            Loss::SessionOver(ending) => self.acquisition_error(Failure::Over(ending)),
            loss => Error::Evicted(loss),
        }
    }

    /// Returns the error of an acquisition whose request failed with `failure`.
    pub(crate) fn acquisition_error(&self, failure: Failure) -> Error {
        match failure {
            // Our node is gone, perhaps together with the directory.
            Failure::NoNode => Error::Evicted(Loss::Removed),
            Failure::Over(ending @ (SessionEnd::Expired | SessionEnd::Replaced | SessionEnd::Failed)) => {
                Error::Evicted(Loss::SessionOver(ending))
            }
            failure => Error::from_failure(failure, "enter", &self.directory),
        }
    }
}

debug!(LockConfig as "LockConfig", |it| path: it.user_path(), host: it.host);
