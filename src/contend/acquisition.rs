//! An acquisition: its options, its target, the handle that it comes from, and the errors that end it.

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
use crate::queue::dialect::Dialect;
use crate::queue::mode::{Aim, Mode};
use crate::queue::turn::{self, Take};
use crate::session::contract::{Coordinator, Session};
use crate::session::directories::Names;
use crate::session::node::ContenderNode;
use crate::session::request::{Ending, Failure, Loss, Stat, Watch};
use crate::session::retry::Tries;
use crate::sync::Mutex;
use crate::telemetry::log::OwnSpan;
use crate::validation;

/// What all clones of a lock share: where the lock is kept, and its options.
pub(crate) struct Handle {
    pub(crate) coordinator: Arc<dyn Coordinator>,
    /// The queue's directory.
    pub(crate) queue: Arc<str>,
    /// The paths that are searched for contenders in the way.
    pub(crate) paths: LockPaths,
    pub(crate) host: String,
    pub(crate) label: Option<String>,
    pub(crate) dialect: Dialect,
    pub(crate) warn_waiting: Option<Duration>,
    pub(crate) warn_holding: Option<Duration>,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) asking: Arc<Asking>,
    pub(crate) waiters: SlowAcquisitions,
}

impl Handle {
    /// The path that the user gave.
    pub(crate) fn shown(&self) -> &Arc<str> {
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

    /// Returns the error of an acquisition whose node was lost.
    pub(crate) fn evicted(&self, loss: Loss) -> Error {
        match loss {
            Loss::SessionOver(ending) => self.stop(Failure::Over(ending)),
            loss => Error::Evicted(loss),
        }
    }

    /// Returns the error of an acquisition whose request failed.
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

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").field("path", self.shown()).field("host", &self.host).finish_non_exhaustive()
    }
}

/// The options of one acquisition.
#[derive(Clone, Debug, Default)]
pub struct Options {
    pub(crate) timeout: Option<Duration>,
    pub(crate) label: Option<String>,
    pub(crate) on_wait: Option<Box<Listener>>,
}

impl Options {
    /// Returns how long the acquisition may take.
    ///
    /// # Errors
    /// [`Error::InvalidInput`] if an option is invalid.
    pub(crate) fn timeout(&self) -> Result<Option<Duration>, Error> {
        validation::check_label(self.label.as_deref())?;
        match self.timeout {
            Some(Duration::ZERO) => Err(Error::invalid("a timeout of zero; to not wait at all, use a try_ method")),
            timeout => Ok(timeout),
        }
    }
}

/// Is called once the node exists, if uses other than the caller's may share the node. The watch fires when another contender
/// asks for the node. `None` if no such watch is armed.
pub(crate) type Sharing = Box<dyn Fn(&ContenderHandle, Option<Watch>) + Send + Sync>;

/// A resource for which the head of the queue exchanges its node. Without a target, the head holds the lock.
#[async_trait]
pub(crate) trait ExchangeTarget: Send + Sync {
    /// Returns the number of permits requested.
    fn count(&self) -> u32;

    /// Returns the total length of the paths that the head watches for the target.
    fn watched_bytes(&self) -> usize;

    /// Fails if the target can never be granted. Sends nothing.
    fn check(&self) -> Result<(), Error>;

    /// Like [`ExchangeTarget::check`], but may ask the ensemble.
    async fn check_first(&self) -> Result<(), Error>;

    /// Sends an early read of the target behind the create of our node, if the listing of the queue was sent, too.
    fn send_early_read(&self, entry: &ContenderHandle, is_listed: bool);

    /// Discards the early read. It is too old when the queue is listed again.
    fn discard_early_read(&self);

    /// Waits for the early read, and fails if the target can never be granted.
    async fn check_early_read(&self, held: &ContenderHandle) -> Result<(), Error>;

    /// Returns whether the head of the queue could make the exchange now. `None` if that cannot be read.
    async fn is_available(&self, session: &Arc<dyn Session>) -> Result<Option<bool>, Error>;

    /// Asks the leader about the holders. Returns whether the server shows ghosts among them.
    async fn check_for_ghosts(&self, session: &Arc<dyn Session>) -> bool;

    /// Exchanges the head's place for the target. Waits until that is possible.
    async fn exchange(
        &self,
        acquisition: &Acquisition,
        held: &ContenderHandle,
        turn: Take,
        wait: &mut EntryState<'_>,
    ) -> Result<(), Error>;
}

/// One acquisition under way.
pub(crate) struct Acquisition {
    pub(crate) handle: Arc<Handle>,
    pub(crate) mode: Mode,
    pub(crate) options: Options,
    pub(crate) trace: AcquireTrace,
    pub(crate) sharing: Option<Sharing>,
    pub(crate) target: Option<Arc<dyn ExchangeTarget>>,
}

impl Acquisition {
    /// Creates an acquisition. Its label defaults to the lock's label.
    pub(crate) fn new(handle: Arc<Handle>, mode: Mode, mut options: Options) -> Acquisition {
        options.label = options.label.or_else(|| handle.label.clone());
        Acquisition { handle, mode, options, trace: AcquireTrace::default(), sharing: None, target: None }
    }

    /// Returns what the acquisition asks for: a lock in one mode, or a permit.
    pub(crate) fn aim(&self) -> Aim {
        if self.target.is_some() { Aim::Permit } else { Aim::Lock(self.mode) }
    }

    /// Fails if the target can never be granted. Sends nothing.
    pub(super) fn check(&self) -> Result<(), Error> {
        self.target.as_ref().map_or(Ok(()), |target| target.check())
    }

    pub(crate) fn label(&self) -> Option<&str> {
        self.options.label.as_deref()
    }

    pub(crate) fn begin(&mut self) -> OwnSpan {
        self.trace = AcquireTrace::begin(self.handle.shown(), self.aim(), self.label(), self.sharing.is_some());
        self.trace.span()
    }

    /// Reports a failure to tracing and metrics.
    pub(crate) fn reported<G>(&self, answer: Result<G, Error>) -> Result<G, Error> {
        answer.inspect_err(|error| trace::not_granted(self.handle.shown(), self.aim(), error))
    }
}

/// The waiting acquisitions of one lock handle. One task warns about all of them.
#[derive(Default)]
pub(crate) struct SlowAcquisitions(Mutex<Table>);

#[derive(Default)]
struct Table {
    next: u64,
    all: BTreeMap<u64, SlowAcquisition>,
    /// Cancels the warning task when dropped.
    watched: Option<oneshot::Sender<()>>,
}

/// One acquisition that waits in the queue.
#[derive(Clone)]
pub(crate) struct SlowAcquisition {
    pub(crate) began: Instant,
    pub(crate) session: Arc<dyn Session>,
    pub(crate) node: Arc<ContenderNode>,
    pub(crate) label: Option<String>,
    pub(crate) span: OwnSpan,
    pub(crate) target: Option<Arc<dyn ExchangeTarget>>,
    pub(crate) is_warned_of: bool,
}

impl SlowAcquisitions {
    /// Adds a waiter. Returns its number, and whether a warning task runs.
    pub(crate) fn enter(&self, waiter: SlowAcquisition) -> (u64, bool) {
        let mut table = self.0.lock();
        let number = table.next;
        table.next += 1;
        table.all.insert(number, waiter);
        // The last warning task may have ended with its session.
        (number, table.watched.as_ref().is_some_and(|watched| !watched.is_closed()))
    }

    /// Stores the handle of a new warning task. An earlier task is cancelled.
    pub(crate) fn set_task(&self, task: oneshot::Sender<()>) {
        let before = self.0.lock().watched.replace(task);
        drop(before);
    }

    pub(crate) fn leave(&self, number: u64) {
        let waiter = self.0.lock().all.remove(&number);
        drop(waiter);
    }

    /// Returns the time until the first waiter is overdue that has no warning yet.
    pub(crate) fn next(&self, limit: Duration) -> Option<Duration> {
        self.0.lock().unwarned().next().map(|waiter| limit.saturating_sub(waiter.began.elapsed()))
    }

    /// Returns the first overdue waiter, and the number of the others. Marks all of them as warned about.
    pub(crate) fn due(&self, limit: Duration) -> Option<(SlowAcquisition, usize)> {
        let mut table = self.0.lock();
        let mut due = table.unwarned().filter(|waiter| waiter.began.elapsed() >= limit);
        let first = due.next().map(|waiter| {
            waiter.is_warned_of = true;
            waiter.clone()
        })?;
        let others = due.map(|waiter| waiter.is_warned_of = true).count();
        Some((first, others))
    }

    /// Ends the warning task if no waiter still needs a warning. Returns whether it ended.
    pub(crate) fn end_task_if_all_are_warned(&self) -> bool {
        let mut table = self.0.lock();
        let is_over = table.unwarned().next().is_none();
        table.watched.take_if(|_| is_over);
        is_over
    }
}

impl Table {
    fn unwarned(&mut self) -> impl Iterator<Item = &mut SlowAcquisition> {
        self.all.values_mut().filter(|waiter| !waiter.is_warned_of && waiter.waits())
    }
}

impl SlowAcquisition {
    /// Returns whether the acquisition has been neither granted nor given up.
    pub(crate) fn waits(&self) -> bool {
        !self.node.is_holding() && !self.node.has_left()
    }
}

/// What an acquisition does if another contender is in the way.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum IfTaken {
    Wait,
    GiveUp,
}

/// The state of an acquisition from the create of its node until its turn.
pub(crate) struct EntryState<'a> {
    pub(crate) if_taken: IfTaken,
    /// Records the contenders in the way.
    pub(crate) waiting: Option<&'a QueueView>,
    pub(crate) on_wait: Option<Box<OnWait>>,
    /// The answer to the listing that was sent with the create. `None` if the answer to the create was lost.
    pub(crate) listing: Option<Result<Names, Failure>>,
    /// The stat of the directory by the last listing, kept if the next step needs it.
    pub(crate) directory: Option<Box<Stat>>,
    /// Counts the listings without our node although the leader had the node.
    pub(crate) denials: Tries,
}
