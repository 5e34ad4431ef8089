//! Whether a node of ours is still where we put it; knows neither modes nor turns.
//!
//! ```text
//!               granted               a downgrade begins
//! new --> Waiting ---------> Holding ---------------------> Moving
//!            |                |   ^                           |  |
//!            |                |   +---------------------------+  |
//!            |                |     the node has its new name    |
//!            |                v                                  |
//!            +-------------> Left <------------------------------+
//!                             the node is about to be deleted
//! ```
//!
//! Beside its phase a node has the reason of its loss. It is set once, and never taken back: the session is over, the
//! lease had a gap since the grant (or since it was first valid for a waiter), the node was removed, or its grant was a
//! stranger's doing. A node that was lost is still left by its owner, who deletes it in case it is there.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Instant;

use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use crate::session::lease::{Lease, Moment};
use crate::session::loss::{HoldState, Loss};
use crate::session::request::{Event, Failure, Reply, Watch};
use crate::telemetry::meter;

/// A watch on our own node that was asked for.
pub(crate) struct Asked {
    pub(super) path: String,
    pub(super) watch: Reply<Watch>,
}

/// Knows the lease that nodes are kept under, and hears what becomes of them.
pub(crate) trait Listener: fmt::Debug + Send + Sync {
    fn lease(&self) -> &Lease;

    /// The node was lost while its session lives on.
    fn lost(&self, node: &OwnNode);

    /// A stranger's write has used up the watch on this node.
    fn watch_again(&self, node: &Arc<OwnNode>);
}

/// One node of ours: where it is, what for, and whether it was lost.
#[derive(Debug)]
pub(crate) struct OwnNode {
    state: Mutex<State>,
    changed: Notify,
    /// Transactions under this hold of which nobody has heard what became of them, and others' who may send some.
    unsettled: AtomicUsize,
    listener: Weak<dyn Listener>,
    /// When we knew of the node.
    entered: Moment,
    this: Weak<OwnNode>,
}

#[derive(Debug)]
struct State {
    path: String,
    phase: Phase,
    /// While it waits: since when the lease has been valid without a gap, if it has been at all.
    valid_since: Option<u64>,
    /// It was called to look where it stands, and has not heard that yet.
    is_called: bool,
    loss: Option<Loss>,
    /// That a hold was lost has been told.
    is_told: bool,
    /// The watch on our own node, and what it wakes, which is this tenure itself: thousands of waiters need no task
    /// each for it. It keeps the tenure until it has told what it had to tell.
    own: Option<(Watch, Waker)>,
    /// The watch on our own node was asked for, and has told nothing yet.
    is_watched: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Waiting,
    /// Holding, since the lease has been valid without a gap.
    Holding(u64),
    /// Being replaced by a node of another name: that the old one goes is no loss.
    Moving(u64),
    Left,
}

impl OwnNode {
    pub(crate) fn new<L: Listener + 'static>(path: String, listener: &Arc<L>) -> Arc<OwnNode> {
        let state = Mutex::new(State {
            path,
            phase: Phase::Waiting,
            valid_since: None,
            is_called: false,
            loss: None,
            is_told: false,
            own: None,
            is_watched: false,
        });
        let (changed, unsettled, entered) = (Notify::new(), AtomicUsize::new(0), listener.lease().now());
        let listener: Weak<L> = Arc::downgrade(listener);
        Arc::new_cyclic(|this| OwnNode { state, changed, unsettled, listener, entered, this: Weak::clone(this) })
    }

    pub(crate) fn path(&self) -> String {
        self.state().path.clone()
    }

    /// The stretch of the lease that the node can rely on, if there is one by now.
    pub(crate) fn epoch(&self, lease: &Lease) -> Option<u64> {
        lease.epoch().filter(|_| lease.lasts_from(self.entered))
    }

    /// Its path, to tell others: what they do while the node is there is settled once it is gone, and not before.
    pub(crate) fn path_for_others(&self) -> String {
        self.write_begins();
        self.path()
    }

    /// From now on this node's owner holds, as long as the lease stays valid without a gap.
    pub(crate) fn hold(&self, epoch: u64) {
        self.state().phase = Phase::Holding(epoch);
    }

    pub(crate) fn is_holding(&self) -> bool {
        matches!(self.state().phase, Phase::Holding(_) | Phase::Moving(_))
    }

    /// A transaction is sent that is carried out only while the node is there.
    pub(crate) fn write_begins(&self) {
        self.unsettled.fetch_add(1, Ordering::Relaxed);
    }

    /// It was carried out, or never will be.
    pub(crate) fn write_settled(&self) {
        self.unsettled.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether a transaction may yet be carried out.
    pub(crate) fn may_yet_write(&self) -> bool {
        self.unsettled.load(Ordering::Relaxed) > 0
    }

    /// The node is about to be replaced; [`OwnNode::moved`] ends this.
    pub(crate) fn moving(&self) {
        let mut state = self.state();
        if let Phase::Holding(epoch) = state.phase {
            state.phase = Phase::Moving(epoch);
        }
    }

    /// The node is at `path` now.
    pub(crate) fn moved(&self, path: String) {
        let mut state = self.state();
        state.path = path;
        // The watch on the node that was replaced has nothing more to tell.
        state.own = None;
        state.is_watched = false;
        if let Phase::Moving(epoch) = state.phase {
            state.phase = Phase::Holding(epoch);
        }
    }

    /// The node is about to be deleted by us.
    pub(crate) fn left(&self) {
        self.state().phase = Phase::Left;
        self.changed.notify_waiters();
    }

    /// Has it look where it stands.
    pub(crate) fn call(&self) {
        self.state().is_called = true;
        self.changed.notify_waiters();
    }

    /// Whether it was called since the last time that this was asked.
    pub(super) fn take_call(&self) -> bool {
        std::mem::take(&mut self.state().is_called)
    }

    /// The next change of anything that a task may wait for.
    pub(super) fn changed(&self) -> Notified<'_> {
        self.changed.notified()
    }

    /// Has every task look that waits for a change.
    pub(super) fn wake_all(&self) {
        self.changed.notify_waiters();
    }

    pub(crate) fn has_left(&self) -> bool {
        self.state().phase == Phase::Left
    }

    /// The node was lost; the first reason stays.
    pub(crate) fn lose(&self, loss: Loss) {
        let mut state = self.state();
        let is_first = state.loss.is_none();
        state.loss.get_or_insert(loss);
        let news = state.news();
        drop(state);
        tell(news);
        self.changed.notify_waiters();
        if is_first {
            self.tell_book(loss);
        }
    }

    /// The contenders of this session behind a node that was lost look for themselves. When the session is over, they are
    /// lost as well.
    fn tell_book(&self, loss: Loss) {
        if matches!(loss, Loss::Removed | Loss::Interfered)
            && let Some(listener) = self.listener.upgrade()
        {
            listener.lost(self);
        }
    }

    /// Looks at everything that can be known without asking the ensemble: the reason of the loss, if it is lost.
    pub(crate) fn loss(&self, lease: &Lease) -> Option<Loss> {
        let mut state = self.state();
        let was_lost = state.loss.is_some();
        // Before the watch: who was stopped for too long finds its node removed, by the server and for that reason.
        if state.loss.is_none() {
            let since = match state.phase {
                Phase::Holding(epoch) | Phase::Moving(epoch) => Some(epoch),
                Phase::Waiting => {
                    state.valid_since = state.valid_since.or_else(|| self.epoch(lease));
                    state.valid_since
                }
                Phase::Left => None,
            };
            let ran_out = since.is_some_and(|epoch| !lease.covers(epoch)).then_some(Loss::LeaseRanOut);
            state.loss = lease.over().map(Loss::SessionOver).or(ran_out);
        }
        let told = state.look();
        let (loss, news) = (state.loss, state.news());
        drop(state);
        tell(news);
        self.told(told);
        if let Some(loss) = loss.filter(|_| !was_lost) {
            self.tell_book(loss);
        }
        loss
    }

    /// Passes on, now that the state is unlocked, that the watch on our own node has told something.
    fn told(&self, event: Option<Event>) {
        let Some(event) = event else { return };
        self.changed.notify_waiters();
        if event == Event::Changed
            && self.is_standing_at(&self.path())
            && let (Some(this), Some(listener)) = (self.this.upgrade(), self.listener.upgrade())
        {
            listener.watch_again(&this);
        }
    }

    /// How sure it is that the lock is held.
    pub(crate) fn hold_state(&self, lease: &Lease) -> HoldState {
        match (self.loss(lease), lease.remaining()) {
            (Some(why), _) => HoldState::Lost { why },
            (None, Some(left)) if !lease.is_connected() => {
                Instant::now().checked_add(left).map_or(HoldState::Held, |until| HoldState::Suspect { until })
            }
            _ => HoldState::Held,
        }
    }

    pub(super) fn is_standing_at(&self, path: &str) -> bool {
        let state = self.state();
        state.path == path && !matches!(state.phase, Phase::Left | Phase::Moving(_))
    }

    pub(super) fn gone_from(&self, path: &str) {
        if self.is_standing_at(path) {
            self.lose(Loss::Removed);
        }
    }

    /// Whether the watch on our own node will tell what happens to it.
    pub(crate) fn is_armed(&self) -> bool {
        self.state().own.is_some()
    }

    /// Where the watch on our own node is to be armed now, unless one was asked for already.
    pub(super) fn begin_to_watch(&self) -> Option<String> {
        let mut state = self.state();
        if state.is_watched || matches!(state.phase, Phase::Left | Phase::Moving(_)) {
            return None;
        }
        state.is_watched = true;
        Some(state.path.clone())
    }

    /// Keeps the watch on our own node. A node that is not there any more is lost.
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
                let mut state = self.state();
                state.is_watched &= state.path != path;
                Err(failure)
            }
        }
    }

    fn arm(self: &Arc<Self>, path: &str, watch: Watch) {
        let mut state = self.state();
        if state.path == path {
            state.own = Some((watch, Waker::from(Arc::clone(self))));
        }
        drop(state);
        self.look();
    }

    /// Looks at the watch on our own node, which may have something to tell.
    fn look(&self) {
        if let Some(listener) = self.listener.upgrade() {
            self.loss(listener.lease());
            return;
        }
        let mut state = self.state();
        let (told, news) = (state.look(), state.news());
        drop(state);
        tell(news);
        self.told(told);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wake for OwnNode {
    fn wake(self: Arc<Self>) {
        self.look();
    }
}

/// What is told of a lost hold: its node, and why. Only once nothing is locked, because subscribers are not ours.
fn tell(news: Option<(String, Loss)>) {
    if let Some((node, cause)) = news {
        meter::lost(cause.label());
        tracing::warn!(node, %cause, "a lock was lost while it was held");
    }
}

impl State {
    /// The loss of a hold, once.
    fn news(&mut self) -> Option<(String, Loss)> {
        let holds = matches!(self.phase, Phase::Holding(_) | Phase::Moving(_));
        let loss = self.loss.filter(|_| holds && !self.is_told)?;
        self.is_told = true;
        Some((self.path.clone(), loss))
    }

    /// Looks at the watch on our own node, and returns what it has told just now.
    ///
    /// Events come in order, so whoever has just seen another node's event also sees here what happened before it,
    /// even if nobody has been woken yet.
    fn look(&mut self) -> Option<Event> {
        let (watch, waker) = self.own.as_mut()?;
        // A task that has run for long would be told to come back later by waking it, here and now, under our lock.
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
mod tests {
    use std::sync::atomic::AtomicU64;
    use std::time::Duration;

    use super::*;
    use crate::session::upkeep::Upkeep;

    /// The server removes the node of a session that has expired, and tells its owner, if it listens again, of that first.
    #[test]
    fn a_node_found_removed_after_the_lease_ran_out_was_lost_with_the_lease() {
        for (stopped_for, why) in [(0, Loss::Removed), (6_000, Loss::LeaseRanOut)] {
            let clock = Arc::new(AtomicU64::new(100_000));
            let hands = Arc::clone(&clock);
            let read = move || Duration::from_millis(hands.load(Ordering::SeqCst));
            let upkeep = Arc::new(Upkeep::new(Lease::with_clock(Duration::from_secs(6), Box::new(read))));
            let lease = upkeep.lease();
            upkeep.began(lease.now());
            let own_node = OwnNode::new("/lock/node".to_owned(), &upkeep);
            own_node.hold(lease.epoch().unwrap());
            assert_eq!(own_node.loss(lease), None);

            clock.fetch_add(stopped_for, Ordering::SeqCst);
            own_node.arm("/lock/node", Watch::new(std::future::ready(Event::Deleted)));
            assert_eq!(own_node.loss(lease), Some(why));
        }
    }
}
