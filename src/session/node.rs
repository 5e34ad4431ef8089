//! One node that this library creates: its [state](NodeState) behind a mutex, its watch, and the tasks that wait
//! for its changes. The watch is requested by the task `keep_alive`, or by a contender that waits. Both call
//! [`request_watch`](Node::request_watch), which is in `watch.rs`, because it needs the session.

use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use crate::queue::mode::Mode;
use crate::queue::node_name::{AcquisitionTag, NodeName};
use crate::session::lease::{Lease, Moment, nanos};
use crate::session::leaving::NodeRemoval;
use crate::session::node::state::{LossEvidence, NodeState};
use crate::session::request::{Created, Failure, HoldState, Loss, Reply, SessionEnd, Watch, WatchEvent};
use crate::session::thread::FORKED;
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Mutex, Notify};
use crate::telemetry::log::emit;
use crate::telemetry::meter::{self, PathLabel};
use crate::telemetry::names;

pub(crate) mod state;

/// The nodes that this library has created on a session and on which keep-alive has not requested a watch yet.
#[derive(Default)]
pub(crate) struct UnwatchedNodes {
    /// The nodes. The flag of a node says whether an earlier call of [`UnwatchedNodes::take_due`] has passed over the
    /// node.
    nodes: Mutex<Vec<(Arc<Node>, bool)>>,
    /// Wakes the task `watch_and_check_until_over`, because there is a new node to watch or a hand-off to check.
    pub(super) wake: Notify,
}

impl UnwatchedNodes {
    pub(crate) fn add(&self, node: &Arc<Node>) {
        let mut nodes = self.nodes.lock();
        nodes.push((Arc::clone(node), false));
        let is_first = nodes.len() == 1;
        drop(nodes);
        if is_first {
            self.wake.notify_one();
        }
    }

    /// Removes and returns the nodes to watch now. Also returns whether other nodes remain.
    /// `watch_and_check_until_over` waits for `grace` before each call.
    ///
    /// A node is watched at the second call after it was added, because most nodes are deleted sooner. With a `grace`
    /// of zero, a node is watched at the first call. A node that its owner has left is removed, but not returned.
    pub(super) fn take_due(&self, grace: Duration) -> (Vec<Arc<Node>>, bool) {
        let mut nodes = self.nodes.lock();
        let is_taken = |(node, was_passed_over): &mut (Arc<Node>, bool)| {
            std::mem::replace(was_passed_over, true) || grace.is_zero() || node.is_left()
        };
        let taken: Vec<_> = nodes.extract_if(.., is_taken).collect();
        let others_remain = !nodes.is_empty();
        // The removed nodes may be dropped only after the mutex is released: the destructors of their watches and
        // replies call the backend.
        drop(nodes);
        (taken.into_iter().map(|(node, _)| node).filter(|node| !node.is_left()).collect(), others_remain)
    }
}

/// One node that this library creates, from before the create until the owner has left the node.
pub(crate) struct Node {
    /// An id that no other node of the session has.
    pub(super) number: u64,
    /// The directory in which the node was created.
    directory: Arc<str>,
    tag: AcquisitionTag,
    path_label: Arc<PathLabel>,
    locked: Mutex<NodeInner>,
    /// Notified at a loss, at an event of the watch, when the owner leaves, and when the session's connection or lease
    /// changes.
    pub(super) changed: Notify,
    /// The number of writes that were sent and may still take effect. A *write* is a transaction that checks this node,
    /// and so takes effect only if the node exists. A call of [`Node::prepare_foreign_transaction`] counts
    /// for ever, because the caller may send its transaction at any time.
    unsettled: AtomicUsize,
    /// The number of transactions that check this node and were sent so far, whatever their outcome.
    writes: AtomicUsize,
    /// The epoch of the lease in which the node is held, plus 1. Zero if the node is not held, or is lost. Like
    /// `first_limit`, this is a copy of the state that is read without the mutex, because a node that is kept between
    /// uses may be checked millions of times a second.
    held_in: AtomicU64,
    /// When the first of the present holds reaches its time limit, in nanoseconds on the session's clock. If the
    /// process keeps the node between uses, each use counts as a hold. `u64::MAX` without a limit.
    first_limit: AtomicU64,
    lease: Arc<Lease>,
    /// The list to which the node is added again after an event that has used up its watch, unless the event is the
    /// node's deletion or the end of the session.
    unwatched: Weak<UnwatchedNodes>,
}

/// The part of a node that its mutex protects.
///
/// Two fields are about the watch on the node: `NodeState::is_watched` says that the watch need not be requested, and
/// `own` is the armed watch. An empty cell of the table means that the event does not change the field.
///
/// | event | `is_watched` | `own` |
/// |---|---|---|
/// | [`request_watch`](Node::request_watch), by the waiter or keep-alive: [`NodeState::take_path_to_watch`] | `true` | |
/// | [`store_watch`](Node::store_watch): the watch was armed | `true` | `Some` |
/// | [`store_watch`](Node::store_watch): not armed ([`NodeState::record_watch_failure`]), but the node is not gone | `false` | |
/// | [`poll_watch`](NodeInner::poll_watch): the watch has fired ([`NodeState::record_watch_event`]) | `false` | `None` |
/// | [`end_replacement`](Node::end_replacement): a replacement of the node has ended | `false` | `None` |
pub(crate) struct NodeInner {
    pub(crate) state: NodeState,
    pub(crate) creating: Option<Reply<Created>>,
    /// The watch on the directory's data. A contender sets the data to request that other contenders give up the nodes
    /// that they keep between uses.
    pub(crate) directory_watch: Option<Reply<Watch>>,
    /// The watch on this node, and the waker with which the watch is polled. The waker is this `Node` itself, so that
    /// thousands of waiters need no task each. The waker keeps the `Node` alive while this watch is stored.
    pub(super) own: Option<(Watch, Waker)>,
}

impl Node {
    pub(super) fn new(
        number: u64,
        (directory, tag): (Arc<str>, AcquisitionTag),
        path_label: &Arc<PathLabel>,
        mode: Mode,
        lease: &Arc<Lease>,
        unwatched: &Arc<UnwatchedNodes>,
    ) -> Arc<Node> {
        let state = NodeState::new(&directory, tag.unnumbered_name(mode));
        let locked = NodeInner { state, creating: None, directory_watch: None, own: None };
        Arc::new(Node {
            number,
            directory,
            tag,
            path_label: Arc::clone(path_label),
            locked: Mutex::new(locked),
            changed: Notify::new(),
            unsettled: AtomicUsize::new(0),
            writes: AtomicUsize::new(0),
            held_in: AtomicU64::new(0),
            first_limit: AtomicU64::new(u64::MAX),
            lease: Arc::clone(lease),
            unwatched: Arc::downgrade(unwatched),
        })
    }

    /// Changes the state of the node under its mutex, and updates `held_in` and `first_limit`. A lost hold is logged
    /// and counted after the mutex is released, because subscribers of `tracing` run user code.
    ///
    /// A value with a destructor (a watch, a reply) must be returned by the closure, and dropped by the caller after
    /// the mutex is released, because its destructor calls the backend. Callers name such a value `_unlocked`.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut NodeInner) -> T) -> T {
        let mut locked = self.locked.lock();
        let answer = change(&mut locked);
        self.held_in.store(locked.state.held_epoch().map_or(0, |epoch| epoch + 1), Ordering::Release);
        self.first_limit.store(locked.state.limits.first_deadline().map_or(u64::MAX, nanos), Ordering::Release);
        let unreported = locked.state.take_unreported_loss();
        drop(locked);
        if let Some((node, cause)) = unreported {
            meter::increment_counter(names::LOSSES, Some(&self.path_label), &[("cause", cause.label())]);
            emit!(WARN, node, %cause, "a lock was lost while it was held");
        }
        answer
    }

    pub(crate) fn read<T>(&self, read: impl FnOnce(&NodeState) -> T) -> T {
        read(&self.locked.lock().state)
    }

    pub(crate) fn directory(&self) -> &Arc<str> {
        &self.directory
    }

    pub(crate) fn tag(&self) -> &AcquisitionTag {
        &self.tag
    }

    /// Returns the label of the lock's path in the metrics.
    pub(crate) fn path_label(&self) -> &Arc<PathLabel> {
        &self.path_label
    }

    pub(crate) fn path(&self) -> String {
        self.read(|it| it.path().to_owned())
    }

    /// Returns the name of the node in the queue, even after the node was exchanged for a permit outside the queue.
    pub(crate) fn node_name(&self) -> Arc<NodeName> {
        self.read(|it| Arc::clone(it.node_name()))
    }

    /// Returns the fencing token: the czxid of the node. A node that is created later, anywhere in the ensemble, has a
    /// greater czxid.
    pub(crate) fn token(&self) -> i64 {
        self.read(NodeState::token)
    }

    /// Returns the current epoch of the lease, if the lease is valid and this node [can rely on
    /// it](Lease::is_reliable_if_created_at).
    pub(crate) fn epoch(&self) -> Option<u64> {
        self.reliable_epoch_if_created_at(self.read(NodeState::creation_times).answered)
    }

    fn reliable_epoch_if_created_at(&self, entered: Moment) -> Option<u64> {
        self.lease.epoch().filter(|_| self.lease.is_reliable_if_created_at(entered))
    }

    /// Returns the node's path, for the caller to check in a transaction of its own. The caller may send that
    /// transaction at any time, so [`Node::has_unsettled_write`] returns `true` from now on.
    pub(crate) fn prepare_foreign_transaction(&self) -> String {
        self.count_sent_write();
        self.path()
    }

    /// Marks the node as held in this epoch of the lease. The hold is lost when the epoch ends.
    pub(crate) fn mark_held(&self, epoch: u64) {
        self.change(|it| it.state.mark_held(epoch));
    }

    pub(crate) fn is_held_even_if_lost(&self) -> bool {
        self.read(NodeState::is_held_even_if_lost)
    }

    /// Returns whether the node is held, and no loss is recorded.
    pub(super) fn is_held(&self) -> bool {
        self.read(|it| it.held_epoch().is_some())
    }

    /// Counts a transaction that is sent now and takes effect only if the node exists.
    pub(crate) fn count_sent_write(&self) {
        self.unsettled.fetch_add(1, Ordering::Relaxed);
        self.writes.fetch_add(1, Ordering::Relaxed);
    }

    /// Records that a counted transaction has taken effect, or never will take effect.
    pub(crate) fn settle_write(&self) {
        self.unsettled.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns how many transactions that check this node were sent, or `None` while the outcome of any of them is
    /// unknown.
    pub(crate) fn writes_if_settled(&self) -> Option<usize> {
        let writes = self.writes.load(Ordering::Relaxed);
        (!self.has_unsettled_write()).then_some(writes)
    }

    /// Returns whether a transaction that checks this node may still take effect.
    pub(crate) fn has_unsettled_write(&self) -> bool {
        self.unsettled.load(Ordering::Relaxed) > 0
    }

    /// Ends the replacement of the node by another one: applies `change`, and drops the watch on the replaced node,
    /// whose events no longer matter.
    pub(crate) fn end_replacement(&self, change: impl FnOnce(&mut NodeState)) {
        let _unlocked = self.change(|it| {
            change(&mut it.state);
            it.own.take()
        });
    }

    /// Records that the owner has left the node, and returns its loss and its removal: see [`NodeState::mark_left`].
    /// Reports a loss that was not reported yet, and wakes the waiting tasks.
    pub(crate) fn mark_left(self: &Arc<Self>) -> (Option<Loss>, Option<NodeRemoval>) {
        let loss = self.detect_loss();
        let leaving = self.change(|it| it.state.mark_left());
        self.changed.notify_waiters();
        (loss, leaving)
    }

    /// Does the same as [`mark_left`](Node::mark_left), but also before the create is answered
    /// ([`NodeState::mark_left_in_any_phase`]). Returns the removals of all nodes that may exist, and the reply to the
    /// create if it is still awaited.
    pub(crate) fn mark_left_in_any_phase(self: &Arc<Self>) -> (Vec<NodeRemoval>, Option<Reply<Created>>) {
        if !self.is_left() {
            self.detect_loss();
        }
        let ended = self.change(|it| (it.state.mark_left_in_any_phase(), it.creating.take()));
        self.changed.notify_waiters();
        ended
    }

    /// Returns whether this process is a fork of the process that created the node. If so, the caller must not record
    /// anything or wake a task, because both need mutexes. A thread of the parent may have held these mutexes at the
    /// fork, and taking them here would then block for ever.
    pub(crate) fn is_in_forked_process(&self) -> bool {
        self.lease.now() == FORKED
    }

    pub(crate) fn is_left(&self) -> bool {
        self.read(NodeState::is_left)
    }

    /// Records a loss, unless an earlier loss is recorded. Wakes the waiting tasks.
    pub(crate) fn record_loss(&self, loss: Loss) {
        self.change(|it| it.state.record_loss(loss));
        self.changed.notify_waiters();
    }

    /// Checks the lease, the limits and the watch for a loss. Records a loss, unless one is recorded already, and
    /// reports the loss of a hold. Returns the recorded loss. Sends no request. In a forked process, records nothing
    /// and returns a [`Loss::SessionOver`].
    ///
    /// Polls the watch on the node, and wakes the waiting tasks if the watch has fired. If the owner waits for the lock
    /// and relies on no epoch of the lease yet, the owner relies on the current epoch from now on, unless the node
    /// [cannot rely on it](Lease::is_reliable_if_created_at).
    pub(crate) fn detect_loss(self: &Arc<Self>) -> Option<Loss> {
        let (lease, now) = (&self.lease, self.lease.now());
        if now == FORKED {
            return Some(Loss::SessionOver(SessionEnd::Forked));
        }
        let (loss, event) = self.change(|it| {
            if it.state.loss().is_none() && it.state.has_node() {
                if it.state.waits_without_epoch() {
                    it.state.set_waiter_epoch(self.reliable_epoch_if_created_at(it.state.creation_times().answered));
                }
                it.state.detect_loss(&LossEvidence { now, valid_in: lease.epoch_at(now), over: lease.ending() });
            }
            let event = it.poll_watch();
            (it.state.loss(), event)
        });
        self.handle_event(event);
        loss
    }

    /// Waits until the hold is lost or given back, and returns the reason as a [`Loss`].
    pub(crate) async fn until_lost<S: Future<Output = ()>>(self: &Arc<Self>, sleep: impl Fn(Duration) -> S) -> Loss {
        self.until(sleep, || self.detect_loss()).await
    }

    /// Waits until `look` returns a value. Calls `look` immediately, and after every change of the node. While the node
    /// is held, also calls `look` again and again, because the lease or a limit of the hold may end without such a
    /// change.
    pub(crate) async fn until<T, S: Future<Output = ()>>(
        &self,
        sleep: impl Fn(Duration) -> S,
        mut look: impl FnMut() -> Option<T>,
    ) -> T {
        loop {
            // `changed` is created before the call of `look`, so that no change during the call is missed.
            let changed = std::pin::pin!(self.changed.notified());
            if let Some(found) = look() {
                return found;
            }
            match self.remaining() {
                // The lease or a limit has ended, so `look` is called again immediately.
                None if self.is_held_even_if_lost() => {}
                Some(left) if self.is_held_even_if_lost() && left < Duration::MAX => {
                    // While the machine is suspended, a timer stands still but the lease goes on, so one long sleep
                    // could end after the lease. That is why the sleep is divided into slices.
                    let slice = left.min(self.lease.timeout() / 20);
                    tokio::select! {
                        biased;
                        () = changed => {}
                        () = sleep(slice) => {}
                    }
                }
                _ => changed.await,
            }
        }
    }

    /// Returns the present moment if the node is held, no loss is recorded, and neither the lease nor a limit has
    /// ended. Takes no mutex. After `None` the caller must call [`Node::detect_loss`], because the atomics may be older
    /// than the state.
    pub(crate) fn now_if_held(&self) -> Option<Moment> {
        let now = self.lease.now_if_valid_in(self.held_in.load(Ordering::Acquire).checked_sub(1)?)?;
        (nanos(now) < self.first_limit.load(Ordering::Acquire)).then_some(now)
    }

    /// Returns how long the lease and the limits still allow a hold of the node, whether or not the node is held now.
    /// `None` if the lease has ended or a limit is reached.
    pub(crate) fn remaining(&self) -> Option<Duration> {
        let left = self.lease.remaining()?.min(self.read(|it| it.limits.remaining(self.lease.now())));
        (!left.is_zero()).then_some(left)
    }

    /// Returns the time until the node is given up, which happens one stop margin of the lease after a hold, or a use
    /// of a kept node, first reaches its time limit. Zero if that moment has passed. `None` if no present hold or use
    /// has a limit, and none has exceeded its limit.
    pub(crate) fn time_until_given_up(&self) -> Option<Duration> {
        self.read(|it| it.limits.time_until_given_up(self.lease.now(), self.lease.stop_margin()))
    }

    /// Returns the path of the node. `None` before an answer has shown the node, while the node is being replaced, and
    /// after its owner has left it.
    pub(crate) fn path_if_in_place(&self) -> Option<String> {
        self.read(|it| it.path_if_in_place().map(str::to_owned))
    }

    /// Wakes the waiting tasks after an event of the watch. If the data of the node was set, or the connection was
    /// lost, also lets keep-alive watch the node again, unless it was left or is being replaced. The caller must not
    /// hold the mutex of the state.
    fn handle_event(self: &Arc<Self>, event: Option<WatchEvent>) {
        let Some(event) = event else { return };
        self.changed.notify_waiters();
        if matches!(event, WatchEvent::Changed | WatchEvent::LookAgain)
            && self.read(|it| it.path_if_in_place().is_some())
            && let Some(unwatched) = self.unwatched.upgrade()
        {
            unwatched.add(self);
        }
    }

    /// Returns whether the lock is held, suspect or lost.
    pub(crate) fn hold_state(self: &Arc<Self>) -> HoldState {
        if let Some(why) = self.detect_loss() {
            return HoldState::Lost { why };
        }
        match self.remaining() {
            Some(left) if !self.lease.is_connected() => {
                Instant::now().checked_add(left).map_or(HoldState::Held, |until| HoldState::Suspect { until })
            }
            Some(_) => HoldState::Held,
            // The lease or a limit has ended since the call of `detect_loss` above.
            None => HoldState::Lost { why: self.detect_loss().unwrap_or(Loss::LeaseRanOut) },
        }
    }

    /// Records a loss, because the ensemble's leader has no node at `path`. Does nothing unless this node is still at
    /// `path`.
    pub(super) fn record_gone_if_at(&self, path: &str) {
        if self.read(|it| it.path_if_in_place() == Some(path)) {
            self.record_loss(Loss::Removed);
        }
    }

    /// Returns whether a watch on this node is armed.
    pub(crate) fn has_watch(&self) -> bool {
        self.locked.lock().own.is_some()
    }

    /// Stores the watch that was requested for the node at `path`, unless another node has replaced that node. If the
    /// node does not exist, records the loss, unless the node was replaced, and returns `Ok`. Returns every other
    /// failure.
    pub(super) fn store_watch(self: &Arc<Self>, path: &str, answer: Result<Watch, Failure>) -> Result<(), Failure> {
        match answer {
            Ok(watch) => {
                let own = (watch, Waker::from(Arc::clone(self)));
                // A watch that is not stored, or that the new watch replaces, is dropped after the mutex is released,
                // because its destructor calls the backend.
                let _before = self.change(|it| if it.state.path() == path { it.own.replace(own) } else { Some(own) });
                // Polls the stored watch, which may have fired already, and registers its waker.
                self.detect_loss();
            }
            Err(Failure::NoNode) => self.record_gone_if_at(path),
            Err(failure) => {
                self.change(|it| it.state.record_watch_failure(path));
                return Err(failure);
            }
        }
        Ok(())
    }
}

impl Wake for Node {
    fn wake(self: Arc<Self>) {
        self.detect_loss();
    }
}

impl NodeInner {
    /// Polls the watch on this node. If the watch has fired, records and returns its event.
    ///
    /// A backend delivers events in order. So a task that has received the event of another node finds every earlier
    /// event of this node here, even if no waker was called for that event yet.
    fn poll_watch(&mut self) -> Option<WatchEvent> {
        let (watch, waker) = self.own.as_mut()?;
        // Without `unconstrained`, tokio's cooperative budget may make this poll return `Pending` and call the waker
        // immediately. The waker would then wait for ever for the mutex of the state, which is locked here.
        let watch = std::pin::pin!(tokio::task::unconstrained(watch));
        let Poll::Ready(event) = watch.poll(&mut Context::from_waker(waker)) else {
            return None;
        };
        self.own = None;
        self.state.record_watch_event(event);
        Some(event)
    }
}

#[cfg(test)]
mod tests;
