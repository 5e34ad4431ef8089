//! Warnings about slow acquisitions and long holds.

use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::Instant;

use crate::call;
use crate::contend::acquisition::{Acquisition, LockConfig, Wait, WarningEntry};
use crate::contend::handle::ContenderHandle;
use crate::contend::timeout::LOOK_UP_AHEAD;
use crate::observe::trace::HoldTrace;
use crate::queue::member::Blockers;
use crate::queue::mode::Aim;
use crate::queue::turn::{self, Turn};
use crate::session::retry::spawn_cancellable;
use crate::telemetry::log::emit;

/// The default time after which a warning about a waiting acquisition is logged.
pub(crate) const WARN_AFTER: Duration = Duration::from_secs(30);

/// The shortest time between two warnings of one background task.
const PAUSE: Duration = Duration::from_secs(1);

impl Acquisition {
    /// Begins the trace of a hold, or of one use of a kept node. Starts a task that warns if the hold or the use lasts
    /// long.
    pub(crate) fn begin_hold_trace(&self, hold: &ContenderHandle) -> HoldTrace {
        let (path, node) = (self.config.user_path(), hold.node());
        let mut trace = self.trace.granted(self.aim(), path, self.label(), node);
        if let Some(limit) = self.config.warn_holding {
            let (node, session) = hold.node_and_session();
            let (path, label, token) = (Arc::clone(path), self.options.label.clone(), node.token());
            let late = session.sleep(limit);
            trace.warning = Some(spawn_cancellable(&session, async move {
                late.await;
                if node.detect_loss().is_none() {
                    let node = node.path();
                    emit!(WARN, path = &*path, node, label, token, held = ?limit, "a lock is held for long");
                }
            }));
        }
        trace
    }

    /// Polls `queued` until the acquisition has entered the queue, and warns if that takes long. The caller's task logs
    /// this warning, because there may be no session yet whose thread could run a background task.
    pub(crate) async fn warn_if_slow<G>(&self, mut queued: impl Future<Output = G> + Unpin) -> G {
        let Some(limit) = self.config.warn_waiting else { return queued.await };
        if let Some(answer) = call::unless(self.config.coordinator.sleep(limit), &mut queued).await {
            return answer;
        }
        self.config.warn(self.aim(), self.label(), &Blockers::default(), 0);
        queued.await
    }
}

impl Wait<'_> {
    /// Registers the acquisition for a warning when it begins to wait. Starts the warning task if none runs.
    ///
    /// A background task logs the warning, because the acquisition's own future may not be polled. If the future is not
    /// polled when the acquisition's turn comes, all contenders behind the acquisition wait.
    pub(crate) fn warn_if_long(&mut self) {
        let Some(due) = self.warn_at.take() else { return };
        let Acquisition { config, options, trace, target, .. } = self.acquisition;
        let (node, session) = self.entry.node_and_session();
        let (label, span, target) = (options.label.clone(), trace.span(), target.clone());
        let (key, has_task) = config.warnings.enter(due, WarningEntry { session, node, label, span, target });
        self.registered = Some(key);
        if !has_task {
            config.warnings.set_task(spawn_cancellable(self.entry.session(), warn_of_slow(Arc::downgrade(config))));
        }
    }
}

/// Warns about the slow acquisitions of one lock handle. Ends when there is no acquisition to warn of.
async fn warn_of_slow(config: Weak<LockConfig>) -> Option<()> {
    // While the task sleeps, it holds only a weak pointer to the handle. If a timer ends too early, its runtime has
    // shut down, so the task ends, too.
    let sleep = async |time: Duration| {
        let (begun, timer) = (Instant::now(), config.upgrade()?.coordinator.sleep(time));
        timer.await;
        (begun.elapsed() >= time / 2).then_some(())
    };
    loop {
        let next = config.upgrade()?.warnings.next()?;
        sleep(next).await?;
        let config = config.upgrade()?;
        if let Some((waiter, others)) = config.warnings.due() {
            let span = waiter.span.clone();
            span.around(pin!(config.warn_of(waiter, others))).await;
            drop(config);
            sleep(PAUSE).await?;
        }
    }
}

impl LockConfig {
    pub(crate) fn warn(&self, aim: Aim, label: Option<&str>, blockers: &Blockers, others: usize) {
        let (path, waited) = (&**self.user_path(), self.warn_waiting.unwrap_or_default());
        let others = (others > 0).then_some(others);
        emit!(WARN, path, mode = %aim, label = label.map(str::to_owned), ?waited, %blockers, others, "it takes long to acquire a lock");
    }

    /// Warns about one slow acquisition. `others` is the number of other slow acquisitions, which get no warning of their own.
    async fn warn_of(&self, waiter: WarningEntry, others: usize) {
        let WarningEntry { session, node, label, target, .. } = &waiter;
        let me = &node.contender();
        let look = async {
            let names = session.children(&self.queue).await.ok()?;
            Some((turn::turn(me, &names), self.paths.blockers(session, &names, me).await))
        };
        let found = call::unless(session.sleep(LOOK_UP_AHEAD), look).await.flatten();
        let mut is_its_turn = matches!(found, Some((Turn::Granted, _)));
        if let Some(target) = target.as_ref().filter(|_| is_its_turn) {
            is_its_turn = matches!(target.is_available(session).await, Ok(Some(true)));
        }
        if is_its_turn {
            session.sleep(LOOK_UP_AHEAD).await;
        }
        let aim = if target.is_some() { Aim::Permit } else { Aim::Lock(me.mode()) };
        if is_its_turn && waiter.waits() {
            let (path, node, waited) = (&**self.user_path(), me.name(), self.warn_waiting.unwrap_or_default());
            emit!(WARN,
                path,
                mode = %aim,
                label,
                node,
                ?waited,
                "the turn of an acquisition has come, and its future is not polled: all behind it wait"
            );
        } else if waiter.waits() {
            self.warn(aim, label.as_deref(), &found.map(|(_, blockers)| blockers).unwrap_or_default(), others);
        }
    }
}
