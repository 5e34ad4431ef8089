//! One own node: what it is for, and whether it was lost.
//!
//! ```text
//!               granted               a downgrade begins
//! new --> Waiting ---------> Holding ---------------------> Moving
//!          |   ^              |   ^                          ^ |  |
//!          |   |              |   +--------------------------|-+  |
//!          |   |              |      the node has moved      | |  |
//!          |   +--------------|------------------------------|-+  |
//!          +------------------|------------------------------+    |
//!          | a waiter becomes the holder of a permit              |
//!          |                  v                                   |
//!          +---------------> Left <-------------------------------+
//!                             the node is about to be deleted
//! ```
//!
//! Beside its phase, a node has the reason of its loss. The reason is set once, and never taken back. It is one of
//! five: the session is over; the lease had a gap since the grant (for a waiter: since the lease was first valid); it was
//! held for longer than it may be; the node was removed; its grant was forged by a stranger. The owner of a lost node still leaves it, and deletes the node
//! in case it is there.

use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use crate::session::lease::{Lease, Moment};
use crate::session::limits::Limits;
use crate::session::loss::{HoldState, Loss};
use crate::session::request::{Ending, Event, Failure, Reply, Watch};
use crate::session::thread::FORKED;
use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Mutex, Notified, Notify};
use crate::telemetry::log::tell;
use crate::telemetry::{meter, names};

/// A watch on an own node that was asked for.
pub(crate) struct Asked {
    pub(super) path: String,
    pub(super) watch: Reply<Watch>,
}

/// The own nodes that are to be watched soon.
#[derive(Default)]
pub(crate) struct Unwatched {
    nodes: Mutex<Vec<WatchedSoon>>,
    /// Wakes `watch_nodes`: there is a node, or something else to do.
    pub(super) news: Notify,
}

struct WatchedSoon {
    own_node: Arc<OwnNode>,
    was_passed_over: bool,
}

impl Unwatched {
    pub(crate) fn add(&self, own_node: &Arc<OwnNode>) {
        let mut nodes = self.nodes.lock();
        nodes.push(WatchedSoon { own_node: Arc::clone(own_node), was_passed_over: false });
        let is_first = nodes.len() == 1;
        drop(nodes);
        if is_first {
            self.news.notify_one();
        }
    }

    /// The nodes to watch now, and whether there are more. Called once in each `grace`.
    ///
    /// Each node is passed over once: many nodes are gone again by the next call.
    pub(super) fn take(&self, grace: Duration) -> (Vec<Arc<OwnNode>>, bool) {
        let mut nodes = self.nodes.lock();
        let mut due = Vec::new();
        nodes.retain_mut(|it| {
            let has_left = it.own_node.has_left();
            let is_due = grace.is_zero() || it.was_passed_over;
            it.was_passed_over = true;
            if is_due && !has_left {
                due.push(Arc::clone(&it.own_node));
            }
            !is_due && !has_left
        });
        (due, !nodes.is_empty())
    }
}

/// One node of ours: where it is, what for, and whether it was lost.
pub(crate) struct OwnNode {
    /// Among the nodes of its session.
    pub(super) number: u64,
    state: Mutex<NodeState>,
    changed: Notify,
    /// How many transactions under this hold have an unknown outcome. A path that was given to the caller counts as
    /// one.
    unsettled: AtomicUsize,
    /// How many transactions under this hold were sent.
    writes: AtomicUsize,
    /// The number of the last commit of a value under this hold.
    commits: AtomicU32,
    /// The epoch of the lease in which the node is held, and one; 0 if it is not held, or lost.
    held_in: AtomicU64,
    /// Its owner has asked for every node in the directory that is only kept, and so for this one.
    has_asked: AtomicBool,
    lease: Arc<Lease>,
    limits: Limits,
    /// Where it is entered when a stranger's write has used up the watch on it.
    unwatched: Weak<Unwatched>,
    /// When the library learnt of the node.
    entered: Moment,
}

#[derive(Default)]
struct NodeState {
    path: String,
    phase: Phase,
    /// While it waits: the epoch since which the lease has been valid without a gap, if it has been valid at all.
    valid_since: Option<u64>,
    loss: Option<Loss>,
    /// The loss of the hold has been reported.
    is_told: bool,
    /// The watch on this node, and its waker, which is this own node itself: so thousands of waiters need no task each.
    /// The waker keeps the own node alive until the watch has fired.
    own: Option<(Watch, Waker)>,
    /// The watch on this node was asked for, and has not fired yet.
    is_watched: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Waiting,
    /// Holding, in this epoch of the lease.
    Holding(u64),
    /// Being replaced by another node: while it holds, in this epoch of the lease, or while it waits. The end of the old
    /// node is no loss.
    Moving(Option<u64>),
    Left,
}

impl OwnNode {
    pub(super) fn new(path: String, number: u64, lease: &Arc<Lease>, unwatched: &Arc<Unwatched>) -> Arc<OwnNode> {
        let state = Mutex::new(NodeState { path, ..NodeState::default() });
        Arc::new(OwnNode {
            number,
            state,
            changed: Notify::new(),
            unsettled: AtomicUsize::new(0),
            writes: AtomicUsize::new(0),
            commits: AtomicU32::new(0),
            held_in: AtomicU64::new(0),
            has_asked: AtomicBool::new(false),
            lease: Arc::clone(lease),
            limits: Limits::default(),
            unwatched: Arc::downgrade(unwatched),
            entered: lease.now(),
        })
    }

    pub(crate) fn path(&self) -> String {
        self.state.lock().path.clone()
    }

    /// The epoch of the lease that the node can rely on, if there is one by now.
    pub(crate) fn epoch(&self) -> Option<u64> {
        self.lease.epoch().filter(|_| self.lease.lasts_from(self.entered))
    }

    /// Its path, to give to the caller. What the caller does while the node is there is settled once the node is gone,
    /// and not before.
    pub(crate) fn path_for_others(&self) -> String {
        self.write_begins();
        self.path()
    }

    /// From now on this node's owner holds, as long as this epoch of the lease lasts.
    pub(crate) fn hold(&self, epoch: u64) {
        let mut state = self.state.lock();
        state.phase = Phase::Holding(epoch);
        self.publish(&state);
    }

    pub(crate) fn is_holding(&self) -> bool {
        self.state.lock().is_holding()
    }

    /// A transaction is sent that is carried out only while the node is there.
    pub(crate) fn write_begins(&self) {
        self.unsettled.fetch_add(1, Ordering::Relaxed);
        self.writes.fetch_add(1, Ordering::Relaxed);
    }

    /// A transaction was carried out, or never will be.
    pub(crate) fn write_settled(&self) {
        self.unsettled.fetch_sub(1, Ordering::Relaxed);
    }

    /// How many transactions were sent under this hold, if all of them are settled.
    pub(crate) fn settled_writes(&self) -> Option<usize> {
        let writes = self.writes.load(Ordering::Relaxed);
        (!self.may_yet_write()).then_some(writes)
    }

    /// The number of the next commit of a value. No two of one node have the same, so that a commit whose answer was lost
    /// can be told from those of other uses of the node.
    pub(crate) fn next_commit(&self) -> u32 {
        self.commits.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
    }

    /// This commit is not sent after all. Its number goes to the next one, unless there is a next one already.
    pub(crate) fn commit_not_sent(&self, number: u32) {
        let _there_is =
            self.commits.compare_exchange(number, number.wrapping_sub(1), Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Whether a transaction may yet be carried out.
    pub(crate) fn may_yet_write(&self) -> bool {
        self.unsettled.load(Ordering::Relaxed) > 0
    }

    /// Its owner asks for every node in the directory that is only kept.
    pub(crate) fn asks(&self) {
        self.has_asked.store(true, Ordering::Release);
    }

    pub(crate) fn has_asked(&self) -> bool {
        self.has_asked.load(Ordering::Acquire)
    }

    /// The node is about to be replaced; [`OwnNode::moved`] ends this.
    pub(crate) fn moving(&self) {
        let mut state = self.state.lock();
        match state.phase {
            Phase::Holding(epoch) => state.phase = Phase::Moving(Some(epoch)),
            Phase::Waiting => state.phase = Phase::Moving(None),
            Phase::Moving(_) | Phase::Left => {}
        }
    }

    /// The node is at `path` now.
    pub(crate) fn moved(&self, path: String) {
        let mut state = self.state.lock();
        state.path = path;
        // The watch on the node that was replaced has nothing more to tell.
        state.own = None;
        state.is_watched = false;
        if let Phase::Moving(held) = state.phase {
            state.phase = held.map_or(Phase::Waiting, Phase::Holding);
        }
    }

    /// The node is about to be deleted by us.
    pub(crate) fn left(&self) {
        let mut state = self.state.lock();
        state.phase = Phase::Left;
        self.publish(&state);
        drop(state);
        self.changed.notify_waiters();
    }

    /// The next change of anything that a task may wait for.
    #[track_caller]
    pub(super) fn changed(&self) -> Notified<'_> {
        self.changed.notified()
    }

    /// Wakes every task that waits for a change, so that it looks.
    pub(super) fn wake_all(&self) {
        self.changed.notify_waiters();
    }

    pub(crate) fn has_left(&self) -> bool {
        self.state.lock().phase == Phase::Left
    }

    /// The node was lost; the first reason stays.
    pub(crate) fn lose(&self, loss: Loss) {
        let mut state = self.state.lock();
        state.loss.get_or_insert(loss);
        self.publish(&state);
        let news = state.news();
        drop(state);
        tell(news);
        self.changed.notify_waiters();
    }

    /// Why the node is held or waits no longer, as far as that can be known without asking the ensemble.
    pub(crate) fn loss(self: &Arc<Self>) -> Option<Loss> {
        let (lease, now) = (&self.lease, self.lease.now());
        if now == FORKED {
            // A lock may be one that a thread of the parent's had when the process forked.
            return Some(Loss::SessionOver(Ending::Forked));
        }
        let mut state = self.state.lock();
        // The lease comes before the watch. The server removes the node of an owner that was stopped for too long, so
        // the lease is the reason.
        if state.loss.is_none() && state.phase != Phase::Left {
            let since = match state.phase {
                Phase::Holding(epoch) | Phase::Moving(Some(epoch)) => Some(epoch),
                Phase::Waiting | Phase::Moving(None) => {
                    state.valid_since = state.valid_since.or_else(|| self.epoch());
                    state.valid_since
                }
                Phase::Left => None,
            };
            let ran_out = since.is_some_and(|epoch| !lease.covers_at(epoch, now)).then_some(Loss::LeaseRanOut);
            let too_long = !self.limits.allows(now);
            state.loss = lease.over().map(Loss::SessionOver).or(ran_out).or(too_long.then_some(Loss::HeldTooLong));
            if state.loss == Some(Loss::HeldTooLong) {
                self.limits.exceeded(now, lease.margin());
            }
        }
        let told = state.look();
        self.publish(&state);
        let given_back = (state.phase == Phase::Left).then_some(Loss::GivenBack);
        let (loss, news) = (state.loss.or(given_back), state.news());
        drop(state);
        tell(news);
        self.told(told);
        loss
    }

    /// The present moment, if the node is held, and was not found lost so far. `None` if only [`OwnNode::loss`] can tell.
    pub(crate) fn held_at(&self) -> Option<Moment> {
        let now = self.lease.covered_at(self.held_in.load(Ordering::Acquire).checked_sub(1)?)?;
        self.limits.allows(now).then_some(now)
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// How long it is surely held, as far as time alone can end that. `None` when that is not known any more.
    pub(crate) fn remaining(&self) -> Option<Duration> {
        let left = self.lease.remaining()?.min(self.limits.left(self.lease.now()));
        (!left.is_zero()).then_some(left)
    }

    /// How long it is until the node is given up, if it may be held only for so long.
    pub(crate) fn given_up_in(&self) -> Option<Duration> {
        self.limits.given_up_in(self.lease.now(), self.lease.margin())
    }

    /// Whether it holds, and was not found lost so far: a lost node that is gone would hide others from a check of all.
    pub(super) fn is_held(&self) -> bool {
        let state = self.state.lock();
        state.is_holding() && state.loss.is_none()
    }

    fn publish(&self, state: &NodeState) {
        let held_in = match (state.loss, state.phase) {
            (None, Phase::Holding(epoch) | Phase::Moving(Some(epoch))) => epoch + 1,
            _ => 0,
        };
        self.held_in.store(held_in, Ordering::Release);
    }

    /// Passes the event of the watch on, now that the state is unlocked.
    fn told(self: &Arc<Self>, event: Option<Event>) {
        let Some(event) = event else { return };
        self.changed.notify_waiters();
        if event == Event::Changed
            && self.is_standing_at(&self.path())
            && let Some(unwatched) = self.unwatched.upgrade()
        {
            unwatched.add(self);
        }
    }

    /// How sure it is that the lock is held.
    pub(crate) fn hold_state(self: &Arc<Self>) -> HoldState {
        match (self.loss(), self.remaining()) {
            (Some(why), _) => HoldState::Lost { why },
            (None, Some(left)) if !self.lease.is_connected() => {
                Instant::now().checked_add(left).map_or(HoldState::Held, |until| HoldState::Suspect { until })
            }
            _ => HoldState::Held,
        }
    }

    pub(crate) fn is_standing_at(&self, path: &str) -> bool {
        let state = self.state.lock();
        state.path == path && !matches!(state.phase, Phase::Left | Phase::Moving(_))
    }

    pub(super) fn gone_from(&self, path: &str) {
        if self.is_standing_at(path) {
            self.lose(Loss::Removed);
        }
    }

    /// Whether a watch is armed that will show what happens to this node.
    pub(crate) fn is_armed(&self) -> bool {
        self.state.lock().own.is_some()
    }

    /// The path on which to arm the watch now, unless one was asked for already.
    pub(super) fn begin_to_watch(&self) -> Option<String> {
        let mut state = self.state.lock();
        if state.is_watched || matches!(state.phase, Phase::Left | Phase::Moving(_)) {
            return None;
        }
        state.is_watched = true;
        Some(state.path.clone())
    }

    /// Keeps the watch that was asked for. A node that is not there any more is lost.
    pub(crate) async fn watched(self: &Arc<Self>, asked: Asked) -> Result<(), Failure> {
        let Asked { path, watch } = asked;
        match watch.await {
            Ok(watch) => {
                self.arm(&path, watch);
                Ok(())
            }
            Err(Failure::NoNode) => {
                self.gone_from(&path);
                Ok(())
            }
            Err(failure) => {
                let mut state = self.state.lock();
                state.is_watched &= state.path != path;
                Err(failure)
            }
        }
    }

    fn arm(self: &Arc<Self>, path: &str, watch: Watch) {
        let mut state = self.state.lock();
        if state.path == path {
            state.own = Some((watch, Waker::from(Arc::clone(self))));
        }
        drop(state);
        // It may have fired.
        self.loss();
    }
}

impl Wake for OwnNode {
    fn wake(self: Arc<Self>) {
        self.loss();
    }
}

/// Reports a lost hold, with its node and the reason, to tracing and metrics. Only once nothing is locked, because
/// subscribers run code that is not ours.
fn tell(news: Option<(String, Loss)>) {
    if let Some((node, cause)) = news {
        meter::count(names::LOSSES, &[("cause", cause.label())]);
        tell!(WARN, node, %cause, "a lock was lost while it was held");
    }
}

impl NodeState {
    fn is_holding(&self) -> bool {
        matches!(self.phase, Phase::Holding(_) | Phase::Moving(Some(_)))
    }

    /// The loss of a hold, if it has not been reported yet.
    fn news(&mut self) -> Option<(String, Loss)> {
        let loss = self.loss.filter(|_| self.is_holding() && !self.is_told)?;
        self.is_told = true;
        Some((self.path.clone(), loss))
    }

    /// Looks at the watch on this node, and returns its event if it has fired just now.
    ///
    /// Events come in order. So a task that has just seen another node's event also sees here what happened before it,
    /// even if this watch has woken no task yet.
    fn look(&mut self) -> Option<Event> {
        let (watch, waker) = self.own.as_mut()?;
        // Tokio would make a task that has run for long yield by waking it, here and now, under our lock.
        let watch = std::pin::pin!(tokio::task::unconstrained(watch));
        let Poll::Ready(event) = watch.poll(&mut Context::from_waker(waker)) else {
            return None;
        };
        self.own = None;
        self.is_watched = false;
        if event == Event::Deleted && matches!(self.phase, Phase::Waiting | Phase::Holding(_)) {
            self.loss.get_or_insert(Loss::Removed);
        }
        Some(event)
    }
}

#[cfg(test)]
mod tests;
