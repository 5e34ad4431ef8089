//! Warnings about acquisitions that wait for long.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::observe::lock_paths::LockPaths;
use crate::queue::member::Blockers;
use crate::queue::mode::AcquisitionAim;
use crate::queue::turn::{self, Turn};
use crate::session::contract::{Coordinator, Session};
use crate::session::node::Node;
use crate::session::retry::{self, spawn_cancellable};
use crate::sync::Mutex;
use crate::telemetry::log::{UserSpan, emit};

/// The default time after which a warning about a waiting acquisition is logged.
pub(crate) const WARN_AFTER: Duration = Duration::from_secs(30);

/// The shortest pause between two warnings of one background task.
const PAUSE: Duration = Duration::from_secs(1);

/// The longest time for the reads that find the contenders which block an acquisition. After this time, the warning is
/// logged without names. An acquisition whose turn has come has the same time to take the lock or permits, before it is
/// reported as not polled.
const LOOK_UP: Duration = Duration::from_millis(500);

/// The waiting acquisitions of one lock handle and its clones whose warnings are not due yet. One background task logs
/// the warnings.
pub(crate) struct WaitWarnings {
    coordinator: Arc<dyn Coordinator>,
    paths: LockPaths,
    /// The time after which a warning about a waiting acquisition is logged. `None` if there is to be no warning.
    pub(crate) after: Option<Duration>,
    table: Mutex<WaitingTable>,
}

#[derive(Default)]
struct WaitingTable {
    next: u64,
    /// The acquisitions, by the time at which the warning is due.
    waiting: BTreeMap<(Instant, u64), PendingWarning>,
    /// Dropping this sender cancels the warning task.
    warning_task: Option<oneshot::Sender<()>>,
}

/// One acquisition that waits in the queue.
pub(crate) struct PendingWarning {
    pub(crate) session: Arc<dyn Session>,
    pub(crate) node: Arc<Node>,
    pub(crate) label: Option<String>,
    pub(crate) span: UserSpan,
    /// The number of permits that the acquisition waits for. `None` for a lock.
    pub(crate) permits: Option<u32>,
}

impl WaitWarnings {
    pub(crate) fn new(
        coordinator: &Arc<dyn Coordinator>,
        paths: &LockPaths,
        after: Option<Duration>,
    ) -> Arc<WaitWarnings> {
        let (coordinator, paths, table) = (Arc::clone(coordinator), paths.clone(), Mutex::default());
        Arc::new(WaitWarnings { coordinator, paths, after, table })
    }

    /// Adds a waiting acquisition, about which a warning is due at `due`. Starts the warning task if none runs.
    /// Dropping the returned value removes the acquisition.
    ///
    /// A background task logs the warning, because the acquisition's own future may not be polled any more. If its turn
    /// has come then, such an acquisition can block all contenders behind it, so this warning matters most.
    pub(crate) fn register(self: &Arc<Self>, due: Instant, waiter: PendingWarning) -> WarningRegistration {
        let session = Arc::clone(&waiter.session);
        let mut table = self.table.lock();
        let key = (due, table.next);
        table.next += 1;
        table.waiting.insert(key, waiter);
        // If the task has panicked, or was dropped with its executor, the sender is closed.
        let has_task = table.warning_task.as_ref().is_some_and(|task| !task.is_closed());
        drop(table);
        if !has_task {
            let task = spawn_cancellable(&session, warn_of_slow_waits(Arc::downgrade(self)));
            let before = self.table.lock().warning_task.replace(task);
            drop(before);
        }
        WarningRegistration { warnings: Arc::clone(self), key }
    }

    /// Returns the time until the next warning is due. If there is no acquisition to warn of, ends the warning task,
    /// and returns `None`.
    fn next_due_or_end_task(&self) -> Option<Duration> {
        let mut table = self.table.lock();
        let next = table.waiting.first_key_value().map(|((due, _), _)| due.saturating_duration_since(Instant::now()));
        table.warning_task.take_if(|_| next.is_none());
        next
    }

    /// Removes the acquisitions whose warning is due. Of those that still wait, returns the one that has waited
    /// longest, and the number of the others. `None` if none still waits.
    fn take_due(&self) -> Option<(PendingWarning, usize)> {
        let mut table = self.table.lock();
        let later = table.waiting.split_off(&(Instant::now(), u64::MAX));
        let due = std::mem::replace(&mut table.waiting, later);
        drop(table);
        let mut due = due.into_values().filter(PendingWarning::still_waits);
        Some((due.next()?, due.count()))
    }

    pub(crate) fn log_slow_wait(&self, aim: AcquisitionAim, label: Option<&str>, blockers: &Blockers, others: usize) {
        let (path, waited) = (&*self.paths.path, self.after.unwrap_or_default());
        let others = (others > 0).then_some(others);
        emit!(WARN, path, mode = %aim, label = label.map(str::to_owned), ?waited, %blockers, others, "it takes long to acquire a lock");
    }

    /// Warns about one slow acquisition, unless it has stopped waiting meanwhile. `others` is the number of other slow
    /// acquisitions, which get no warning of their own.
    async fn read_blockers_and_warn(&self, waiter: PendingWarning, others: usize) {
        let PendingWarning { session, node, label, permits, .. } = &waiter;
        let me = &node.node_name();
        let look = async {
            let names = session.children(&self.paths.queue).await.ok()?;
            Some((turn::turn(me, &names), self.paths.read_blockers(session, &names, me).await))
        };
        let found = retry::run_until(session.sleep(LOOK_UP), look).await.flatten();
        let mut is_its_turn = matches!(found, Some((Turn::Granted, _)));
        if let Some(permits) = permits.filter(|_| is_its_turn) {
            is_its_turn = matches!(self.paths.read_total_and_if_free(session, permits).await, Some((_, true)));
        }
        if is_its_turn {
            session.sleep(LOOK_UP).await;
        }
        let aim = if permits.is_some() { AcquisitionAim::Permit } else { AcquisitionAim::Lock(me.mode()) };
        if is_its_turn && waiter.still_waits() {
            let (path, node, waited) = (&*self.paths.path, me.as_str(), self.after.unwrap_or_default());
            emit!(WARN,
                path,
                mode = %aim,
                label,
                node,
                ?waited,
                "the turn of an acquisition has come, and its future is not polled: all behind it wait"
            );
        } else if waiter.still_waits() {
            self.log_slow_wait(aim, label.as_deref(), &found.map(|(_, blockers)| blockers).unwrap_or_default(), others);
        }
    }
}

/// An acquisition in the list of [`WaitWarnings`]. Dropping this value removes the acquisition from the list.
pub(crate) struct WarningRegistration {
    warnings: Arc<WaitWarnings>,
    key: (Instant, u64),
}

impl Drop for WarningRegistration {
    fn drop(&mut self) {
        let waiter = self.warnings.table.lock().waiting.remove(&self.key);
        drop(waiter);
    }
}

impl PendingWarning {
    /// Returns whether the acquisition still waits: the lock is not granted, and the acquisition has not given up.
    fn still_waits(&self) -> bool {
        !self.node.is_held_even_if_lost() && !self.node.is_left()
    }
}

/// Warns about the slow acquisitions of one lock handle. Ends when no acquisition waits for its warning, or
/// when the handle is gone.
async fn warn_of_slow_waits(warnings: Weak<WaitWarnings>) -> Option<()> {
    // While the task sleeps, it has only a weak pointer to `WaitWarnings`.
    loop {
        let timer = warnings.upgrade().and_then(|it| Some(it.coordinator.sleep(it.next_due_or_end_task()?)))?;
        timer.await;
        let warnings = warnings.upgrade()?;
        if let Some((waiter, others)) = warnings.take_due() {
            let span = waiter.span.clone();
            span.instrument(pin!(warnings.read_blockers_and_warn(waiter, others))).await;
            let timer = warnings.coordinator.sleep(PAUSE);
            drop(warnings);
            timer.await;
        }
    }
}
