//! What is told of an acquisition while it waits: the error of its timeout, the warning that it takes long.

use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::Instant;

use crate::call;
use crate::contend::request::{Acquisition, Handle, RegisteredWaiter, WaitReport, WaitSnapshot};
use crate::contend::tenure::Tenure;
use crate::error::error::Error;
use crate::observe::trace::HoldTrace;
use crate::queue::member::Blockers;
use crate::queue::mode::Aim;
use crate::queue::turn::{self, Turn};
use crate::session::contract::Session;
use crate::session::retry::spawn_cancellable;
use crate::telemetry::log::emit;

/// How often the task that warns looks at a queue, at most.
const PAUSE: Duration = Duration::from_secs(1);

/// How long before its timeout an acquisition asks the leader for those in its way, at most. If they are ghosts, it is granted
/// within that time, also by servers that commit slowly.
const ASK_AHEAD: Duration = Duration::from_secs(2);

/// How long before its timeout an acquisition looks up whom its error is to name, at most.
const LOOK_UP_AHEAD: Duration = Duration::from_millis(500);

impl Acquisition {
    /// What is told of a hold, or of one use of a kept one, until it ends.
    pub(crate) fn holding(&self, hold: &Tenure) -> HoldTrace {
        let (path, own_node) = (self.handle.shown(), hold.own_node());
        let mut holding = self.trace.begin_hold(self.aim(), path, self.label(), own_node);
        if let Some(limit) = self.handle.warn_holding {
            let (own_node, session) = hold.node_and_session();
            let (path, label, token) = (Arc::clone(path), self.options.label.clone(), own_node.token());
            let late = session.sleep(limit);
            holding.set_warning(spawn_cancellable(&session, async move {
                late.await;
                if own_node.find_loss().is_none() {
                    let node = own_node.path();
                    emit!(WARN, path = &*path, node, label, token, held = ?limit, "a lock is held for long");
                }
            }));
        }
        holding
    }

    /// Waits for the place in the queue, and warns if that takes long: no background task can, without a session.
    pub(crate) async fn warned_of<G>(&self, mut queued: impl Future<Output = G> + Unpin) -> G {
        let Some(limit) = self.handle.warn_waiting else { return queued.await };
        if let Some(answer) = call::unless(self.handle.coordinator.sleep(limit), &mut queued).await {
            return answer;
        }
        self.handle.warn(self.aim(), self.label(), &Blockers::default(), 0);
        queued.await
    }

    /// Waits for the grant until the timeout. The error then names the contenders in the way, by `waiting`.
    pub(crate) async fn within<G>(
        &self,
        timeout: Duration,
        waiting: &WaitReport,
        mut granted: impl Future<Output = Result<G, Error>> + Unpin,
    ) -> Result<G, Error> {
        let (ask, look_up) = (ASK_AHEAD.min(timeout / 5 * 2), LOOK_UP_AHEAD.min(timeout / 5));
        let mut late = call::late(&self.handle.coordinator, timeout);
        let mut looking = pin!(async {
            self.handle.coordinator.sleep(timeout - ask).await;
            let asked = self.ask_for_ghosts(waiting);
            let (is_asked, ()) = tokio::join!(asked, self.handle.coordinator.sleep(ask - look_up));
            if !is_asked {
                self.ask_for_ghosts(waiting).await;
            }
            self.in_the_way(waiting).await
        });
        let mut found = None;
        loop {
            tokio::select! {
                biased;
                answer = &mut granted => return answer,
                cut_off = &mut late => {
                    // While cut off, the last listing is the best answer.
                    let blockers = found.flatten().unwrap_or_else(|| waiting.seen_in_the_way());
                    return Err(Error::Timeout { waited: timeout, blockers, cut_off });
                }
                blockers = &mut looking, if found.is_none() => found = Some(blockers),
            }
        }
    }

    /// Asks the leader for those in the way of a waiter. Returns whether it is one already.
    async fn ask_for_ghosts(&self, waiting: &WaitReport) -> bool {
        let waits = waiting.waits().clone();
        let Some(WaitSnapshot { session, me, .. }) = waits else { return false };
        let Ok(names) = session.children(&self.handle.queue).await else { return true };
        let paths = &self.handle.paths;
        let ghosts = paths.ghosts_ahead(&session, &names, me.kind(), |names| turn::ahead_of(&me, names)).await;
        let mut has_ghosts = !ghosts.is_empty();
        let names = session.upkeep().ghosts().without(&self.handle.queue, &names, me.mode());
        if let (Some(goal), []) = (&self.goal, &turn::ahead_of(&me, &names)[..]) {
            has_ghosts |= goal.check_for_ghosts(&session).await;
        }
        // It is granted, or it waits for others.
        if has_ghosts {
            waiting.notify_of_ghosts();
        }
        true
    }

    /// The contenders in the way of a waiter, as far as that can be read now. `None` if it has not listed any yet.
    async fn in_the_way(&self, waiting: &WaitReport) -> Option<Blockers> {
        let waits = waiting.waits().clone();
        let WaitSnapshot { session, me, seen, .. } = waits?;
        let Ok(names) = session.children(&self.handle.queue).await else { return Some(seen.blockers) };
        Some(self.handle.paths.blockers(&session, &names, &me).await)
    }
}

/// Has a background task of the session warn if an acquisition waits for long, until this is dropped. An acquisition that
/// is not polled cannot warn by itself. Once its turn has come, it blocks all contenders behind it.
pub(crate) struct Lateness<'a> {
    acquisition: &'a Acquisition,
    began: Instant,
    /// The warning of the wait for a place has said it.
    is_warned_of: bool,
    number: Option<u64>,
}

impl<'a> Lateness<'a> {
    pub(crate) fn since(began: Instant, acquisition: &'a Acquisition) -> Lateness<'a> {
        let is_warned_of = acquisition.handle.warn_waiting.is_some_and(|limit| began.elapsed() >= limit);
        Lateness { acquisition, began, is_warned_of, number: None }
    }

    /// The acquisition has a place in the queue, and may have to wait.
    pub(crate) fn begin(&mut self, held: &Tenure) {
        let Acquisition { handle, options, trace, goal, .. } = self.acquisition;
        let (Some(limit), None) = (handle.warn_waiting, self.number) else { return };
        let (session, own_node) = (Arc::clone(held.session()), Arc::clone(held.own_node()));
        let (label, span, goal) = (options.label.clone(), trace.span(), goal.clone());
        let (began, is_warned_of) = (self.began, self.is_warned_of);
        let waiter = RegisteredWaiter { began, session, own_node, label, span, goal, is_warned_of };
        let (number, is_watched) = handle.waiters.enter(waiter);
        self.number = Some(number);
        if !is_watched {
            let session = held.session();
            let watch = warn_of_late(Arc::downgrade(handle), limit, Arc::downgrade(session));
            handle.waiters.watched_by(spawn_cancellable(session, watch));
        }
    }
}

impl Drop for Lateness<'_> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.acquisition.handle.waiters.leave(number);
        }
    }
}

/// Warns of the acquisitions of one handle that wait for long, until none has waited for a while.
async fn warn_of_late(handle: Weak<Handle>, limit: Duration, session: Weak<dyn Session>) -> Option<()> {
    // A session that nobody else uses is closed. A timer that is over at once belongs to a runtime that is gone.
    let sleep = async |time: Duration| {
        let (begun, timer) = (Instant::now(), session.upgrade()?.sleep(time));
        timer.await;
        (begun.elapsed() >= time / 2).then_some(())
    };
    loop {
        let next = handle.upgrade()?.waiters.next(limit);
        // A later waiter cannot become overdue before this timer.
        sleep(next.unwrap_or(limit)).await?;
        let handle = handle.upgrade()?;
        if let Some((waiter, others)) = handle.waiters.due(limit) {
            let span = waiter.span.clone();
            span.around(pin!(handle.warn_of(waiter, others))).await;
            drop(handle);
            sleep(PAUSE).await?;
        } else if next.is_none() && handle.waiters.end_watch_if_all_are_warned() {
            return None;
        }
    }
}

impl Handle {
    pub(crate) fn warn(&self, aim: Aim, label: Option<&str>, blockers: &Blockers, others: usize) {
        let (path, waited) = (&**self.shown(), self.warn_waiting.unwrap_or_default());
        let others = (others > 0).then_some(others);
        emit!(WARN, path, mode = %aim, label = label.map(str::to_owned), ?waited, %blockers, others, "it takes long to acquire a lock");
    }

    /// Warns of an acquisition that waits for long.
    async fn warn_of(&self, waiter: RegisteredWaiter, others: usize) {
        let RegisteredWaiter { session, own_node, label, goal, .. } = &waiter;
        let me = &own_node.contender();
        let look = async {
            let names = session.children(&self.queue).await.ok()?;
            Some((turn::turn(me, &names), self.paths.blockers(session, &names, me).await))
        };
        let found = call::unless(session.sleep(LOOK_UP_AHEAD), look).await.flatten();
        let mut is_its_turn = matches!(found, Some((Turn::Granted, _)));
        if let Some(goal) = goal.as_ref().filter(|_| is_its_turn) {
            is_its_turn = matches!(goal.is_available(session).await, Ok(Some(true)));
        }
        if is_its_turn {
            session.sleep(LOOK_UP_AHEAD).await;
        }
        let aim = if goal.is_some() { Aim::Permit } else { Aim::Lock(me.mode()) };
        if is_its_turn && waiter.waits() {
            let (path, node, waited) = (&**self.shown(), me.name(), self.warn_waiting.unwrap_or_default());
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
