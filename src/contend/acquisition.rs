//! One acquisition: its options, its target (the permits of a semaphore), the lock handle that it uses, and the errors
//! that end it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::contend::directory::Asking;
use crate::contend::handle::ContenderHandle;
use crate::contend::queue_view::QueueView;
use crate::error::error::Error;
use crate::observe::lock_paths::LockPaths;
use crate::observe::on_wait::{Listener, OnWait};
use crate::observe::trace::{self, AcquireTrace};
use crate::queue::contender::Contender;
use crate::queue::dialect::Dialect;
use crate::queue::mode::{Aim, Mode};
use crate::queue::turn::{self, Grant, Waiter};
use crate::session::contract::{Coordinator, Session};
use crate::session::node::ContenderNode;
use crate::session::request::{Ending, Failure, Loss, Watch};
use crate::sync::Mutex;
use crate::telemetry::log::OwnSpan;
use crate::telemetry::meter::PathLabel;
use crate::validation;

/// The paths and the options of a lock, and the list of its waiting acquisitions. All clones of a lock share it.
pub(crate) struct LockConfig {
    pub(crate) coordinator: Arc<dyn Coordinator>,
    /// The directory of the queue.
    pub(crate) queue: Arc<str>,
    /// The lock's paths, for reads of the queue and of the holders.
    pub(crate) paths: LockPaths,
    pub(crate) host: String,
    pub(crate) label: Option<String>,
    pub(crate) dialect: Dialect,
    pub(crate) warn_waiting: Option<Duration>,
    pub(crate) warn_holding: Option<Duration>,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) asking: Arc<Asking>,
    pub(crate) warnings: WarningList,
    pub(crate) path_label: Arc<PathLabel>,
}

impl LockConfig {
    /// Returns the path that the user gave.
    pub(crate) fn user_path(&self) -> &Arc<str> {
        &self.paths.path
    }

    /// Fails if the directory contains a contender of another dialect.
    pub(crate) fn check_for_foreign(&self, names: &[String]) -> Result<(), Error> {
        turn::foreign(self.dialect, names).map_or(Ok(()), |node| Err(self.doubt(node)))
    }

    pub(crate) fn doubt(&self, foreign: &str) -> Error {
        let speaks = self.dialect.foreign(foreign).unwrap_or(self.dialect);
        let (path, node) = (self.queue.to_string(), foreign.to_owned());
        Error::ForeignContender { path, node, speaks, dialect: self.dialect }
    }

    /// Returns the error of an acquisition whose node never has a turn, because the node `rival` has the same sequence number.
    pub(crate) fn stuck(&self, rival: Option<String>) -> Error {
        let path = self.queue.to_string();
        match rival {
            Some(node) => Error::NumberTaken { path, node },
            None => Error::SequenceExhausted { path },
        }
    }

    /// Returns the error of an acquisition whose node was lost before the grant.
    pub(crate) fn evicted(&self, loss: Loss) -> Error {
        match loss {
            Loss::SessionOver(ending) => self.stop(Failure::Over(ending)),
            loss => Error::Evicted(loss),
        }
    }

    /// Returns the error of an acquisition whose request failed with `failure`.
    pub(crate) fn stop(&self, failure: Failure) -> Error {
        match failure {
            // The directory was deleted, and our node with it.
            Failure::NoNode => Error::Evicted(Loss::Removed),
            Failure::Over(ending @ (Ending::Expired | Ending::Replaced | Ending::Failed)) => {
                Error::Evicted(Loss::SessionOver(ending))
            }
            failure => Error::from_failure(failure, "enter", &self.queue),
        }
    }
}

impl fmt::Debug for LockConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockConfig").field("path", self.user_path()).field("host", &self.host).finish_non_exhaustive()
    }
}

/// The options of one acquisition.
#[derive(Clone, Debug, Default)]
pub struct Options {
    pub(crate) timeout: Option<Duration>,
    pub(crate) label: Option<String>,
    pub(crate) on_wait: Option<Listener>,
}

impl Options {
    /// Returns the timeout of the acquisition; `None` if it has none.
    ///
    /// # Errors
    /// [`Error::InvalidInput`] if the timeout is zero or the label is invalid.
    pub(crate) fn timeout(&self) -> Result<Option<Duration>, Error> {
        validation::check_label(self.label.as_deref())?;
        match self.timeout {
            Some(Duration::ZERO) => Err(Error::invalid("a timeout of zero; to not wait at all, use a try_ method")),
            timeout => Ok(timeout),
        }
    }
}

/// A function that the acquisition of a kept node (a node that the process keeps between uses) calls once the node exists. The
/// watch is on the lock's directory, and fires when another contender asks for the node. The argument is `None` if the watch is
/// not known to be armed.
pub(crate) type OnEntered = Box<dyn Fn(&ContenderHandle, Option<Watch>) + Send + Sync>;

/// The permits for which the head of a semaphore's queue exchanges its node. The acquisition of a lock has no target,
/// because the head of its queue holds the lock.
#[async_trait]
pub(crate) trait ExchangeTarget: Send + Sync {
    /// Returns the number of permits requested.
    fn count(&self) -> u32;

    /// Fails if the handle knows that the target can never be granted. Sends nothing.
    fn check(&self) -> Result<(), Error>;

    /// Fails if the target can never be granted. If the handle does not know the number of permits, reads this number from the
    /// ensemble first.
    async fn check_first(&self) -> Result<(), Error>;

    /// Makes the node of the target, before the acquisition makes the directory of the queue below it. Returns an inner error if the
    /// node must not become that of the target.
    async fn make(&self, entry: &ContenderHandle) -> Result<Result<(), Error>, Failure>;

    /// Sends an early read of the target (the permits of a semaphore) right after the create of our node. Sends nothing
    /// if `is_listed` is false, because the early read is valid only after a listing of the queue that this acquisition
    /// sent.
    fn send_early_read(&self, entry: &ContenderHandle, is_listed: bool);

    /// Returns the early read of the target; `None` if no read was sent or answered. Fails if the target can never be granted.
    async fn early_read(&self, entry: &ContenderHandle) -> Result<Option<Box<SeenPermits>>, Error>;

    /// Returns whether the head of the queue could exchange its node for the target now. `None` if the permits cannot be read.
    async fn is_available(&self, session: &Arc<dyn Session>) -> Result<Option<bool>, Error>;

    /// Exchanges the node of the head of the queue for the target. Waits until the target is free. `early_read` is the early read
    /// of the target, if the contender was the head in the listing that was sent right before this read.
    async fn exchange(
        &self,
        grant: Grant,
        early_read: Option<Box<SeenPermits>>,
        wait: &mut Wait<'_>,
    ) -> Result<(), Error>;
}

/// The result of one read: the number of permits, and the permits that are taken.
pub(crate) struct SeenPermits {
    pub(crate) number: u32,
    /// The version of the semaphore's node, whose data is the number of permits.
    pub(crate) version: i32,
    /// The names of the permit nodes, one for each holder.
    pub(crate) names: Vec<String>,
}

/// A call of the user that acquires a lock or permits.
pub(crate) struct Acquisition {
    pub(crate) config: Arc<LockConfig>,
    pub(crate) mode: Mode,
    pub(crate) options: Options,
    pub(crate) trace: AcquireTrace,
    /// A function to call once the node exists. `None` unless the process may keep the node between uses.
    pub(crate) on_entered: Option<OnEntered>,
    pub(crate) target: Option<Arc<dyn ExchangeTarget>>,
}

impl Acquisition {
    /// Creates an acquisition. Its label defaults to the lock's label.
    pub(crate) fn new(config: Arc<LockConfig>, mode: Mode, mut options: Options) -> Acquisition {
        options.label = options.label.or_else(|| config.label.clone());
        Acquisition { config, mode, options, trace: AcquireTrace::default(), on_entered: None, target: None }
    }

    /// Returns the aim of the acquisition: a lock in one mode, or a permit.
    pub(crate) fn aim(&self) -> Aim {
        if self.target.is_some() { Aim::Permit } else { Aim::Lock(self.mode) }
    }

    /// Fails if the handle knows that the target can never be granted. Sends nothing.
    pub(super) fn check(&self) -> Result<(), Error> {
        self.target.as_ref().map_or(Ok(()), |target| target.check())
    }

    /// Returns whether the process may keep the node between uses.
    pub(crate) fn may_be_kept(&self) -> bool {
        self.on_entered.is_some()
    }

    pub(crate) fn label(&self) -> Option<&str> {
        self.options.label.as_deref()
    }

    pub(crate) fn begin_trace(&mut self) -> OwnSpan {
        let names = (&**self.config.user_path(), &self.config.path_label);
        self.trace = AcquireTrace::begin(names, self.aim(), self.label(), self.may_be_kept());
        self.trace.span()
    }

    /// Reports an error in `answer` to tracing and metrics. Returns `answer`.
    pub(crate) fn reported<G>(&self, answer: Result<G, Error>) -> Result<G, Error> {
        let names = (&**self.config.user_path(), &*self.config.path_label);
        answer.inspect_err(|error| trace::not_granted(names, self.aim(), error))
    }
}

/// The waiting acquisitions of one lock handle that have no warning yet. One background task logs the warnings about all of
/// them.
#[derive(Default)]
pub(crate) struct WarningList(Mutex<Table>);

#[derive(Default)]
struct Table {
    next: u64,
    /// The acquisitions, by the time at which the warning is due.
    waiting: BTreeMap<(Instant, u64), WarningEntry>,
    /// The sender that cancels the warning task when dropped.
    warning_task: Option<oneshot::Sender<()>>,
}

/// One acquisition that waits in the queue.
pub(crate) struct WarningEntry {
    pub(crate) session: Arc<dyn Session>,
    pub(crate) node: Arc<ContenderNode>,
    pub(crate) label: Option<String>,
    pub(crate) span: OwnSpan,
    pub(crate) target: Option<Arc<dyn ExchangeTarget>>,
}

impl WarningList {
    /// Adds a waiting acquisition, of which the task warns at `due`. Returns its key, and whether a warning task runs.
    pub(crate) fn enter(&self, due: Instant, waiter: WarningEntry) -> ((Instant, u64), bool) {
        let mut table = self.0.lock();
        let key = (due, table.next);
        table.next += 1;
        table.waiting.insert(key, waiter);
        // If the task has ended, because the runtime of its timer has shut down, the receiver of its sender is closed.
        (key, table.warning_task.as_ref().is_some_and(|task| !task.is_closed()))
    }

    /// Stores the sender that cancels a new warning task. Cancels an earlier task.
    pub(crate) fn set_task(&self, task: oneshot::Sender<()>) {
        let before = self.0.lock().warning_task.replace(task);
        drop(before);
    }

    /// Returns the time until the next warning is due. If there is no acquisition to warn of, ends the warning task, and
    /// returns `None`.
    pub(crate) fn next(&self) -> Option<Duration> {
        let mut table = self.0.lock();
        let next = table.waiting.first_key_value().map(|((due, _), _)| due.saturating_duration_since(Instant::now()));
        table.warning_task.take_if(|_| next.is_none());
        next
    }

    /// Removes the acquisitions whose warning is due. Returns the one that has waited longest, and the number of the others.
    pub(crate) fn due(&self) -> Option<(WarningEntry, usize)> {
        let mut table = self.0.lock();
        let later = table.waiting.split_off(&(Instant::now(), u64::MAX));
        let due = std::mem::replace(&mut table.waiting, later);
        drop(table);
        let mut due = due.into_values().filter(WarningEntry::waits);
        Some((due.next()?, due.count()))
    }
}

impl WarningEntry {
    /// Returns whether the acquisition still waits: the lock is not granted, and the acquisition has not given up.
    pub(crate) fn waits(&self) -> bool {
        !self.node.is_holding() && !self.node.has_left()
    }
}

/// The wait of an acquisition, from the create of its node until the grant.
pub(crate) struct Wait<'a> {
    pub(crate) acquisition: &'a Acquisition,
    pub(crate) entry: &'a ContenderHandle,
    /// Where each listing of the queue is stored, for the timeout error and for progress reports. `None` if nothing needs the
    /// listings.
    pub(crate) view: Option<&'a QueueView>,
    pub(crate) on_wait: Option<Box<OnWait>>,
    /// The decisions of the contender.
    pub(crate) waiter: Waiter<Arc<Contender>>,
    /// When a warning about the acquisition is due. `None` if there is to be no warning, or the acquisition is in the list of
    /// those to warn of.
    pub(crate) warn_at: Option<Instant>,
    /// The key of the acquisition in [`LockConfig::warnings`].
    pub(crate) registered: Option<(Instant, u64)>,
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        if let Some(key) = self.registered {
            let waiter = self.acquisition.config.warnings.0.lock().waiting.remove(&key);
            drop(waiter);
        }
    }
}
