//! One node of ours: its [state](NodeState) behind a lock, the futures that it awaits, the tasks that wait for its
//! changes, and the limits of its holds. A contender changes the node, and keep-alive watches it.

use std::collections::BTreeSet;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use crate::queue::contender::{Contender, Tag};
use crate::queue::mode::Mode;
use crate::session::lease::{Lease, Moment, nanos};
use crate::session::node::state::{Evidence, NodeState};
use crate::session::request::{Created, Ending, Event, Failure, HoldState, Loss, Reply, Watch};
use crate::session::thread::FORKED;
use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Mutex, Notified, Notify, OnceLock};
use crate::telemetry::log::emit;
use crate::telemetry::{meter, names};

pub(crate) mod state;

/// A watch that was requested on a node of ours.
pub(crate) struct OwnWatch {
    pub(super) path: String,
    pub(super) watch: Reply<Watch>,
}

/// Our nodes that keep-alive will watch soon.
#[derive(Default)]
pub(crate) struct Unwatched {
    nodes: Mutex<Vec<WatchedSoon>>,
    /// Wakes `watch_nodes`, for a new node or for a hand-off to check.
    pub(super) wake: Notify,
}

struct WatchedSoon {
    node: Arc<ContenderNode>,
    was_passed_over: bool,
}

impl Unwatched {
    pub(crate) fn add(&self, node: &Arc<ContenderNode>) {
        let mut nodes = self.nodes.lock();
        nodes.push(WatchedSoon { node: Arc::clone(node), was_passed_over: false });
        let is_first = nodes.len() == 1;
        drop(nodes);
        if is_first {
            self.wake.notify_one();
        }
    }

    /// Takes the nodes to watch now, and returns whether there are more. Called once in each `grace`.
    ///
    /// Each node is passed over once, because many nodes are deleted again before the next call.
    pub(super) fn take(&self, grace: Duration) -> (Vec<Arc<ContenderNode>>, bool) {
        let mut nodes = self.nodes.lock();
        let mut due = Vec::new();
        nodes.retain_mut(|it| {
            let has_left = it.node.has_left();
            let is_due = grace.is_zero() || it.was_passed_over;
            it.was_passed_over = true;
            if is_due && !has_left {
                due.push(Arc::clone(&it.node));
            }
            !is_due && !has_left
        });
        (due, !nodes.is_empty())
    }
}

/// One node of ours, from before its create until it is surely gone.
pub(crate) struct ContenderNode {
    /// The node's number among those of its session.
    pub(super) number: u64,
    /// The directory of the queue.
    queue: Arc<str>,
    tag: Tag,
    state: Mutex<Locked>,
    changed: Notify,
    /// How many transactions under this hold have an unknown outcome. A path that was given to the caller counts as one.
    unsettled: AtomicUsize,
    /// How many transactions under this hold were sent.
    writes: AtomicUsize,
    /// The number of the last commit of a value under this hold.
    commits: AtomicU32,
    /// The epoch of the lease in which the node is held, plus 1. Zero if the node is not held, or lost.
    held_in: AtomicU64,
    /// Whether the node's owner has asked that all kept nodes in the directory be given up, this one included.
    has_asked: AtomicBool,
    lease: Arc<Lease>,
    limits: Limits,
    /// The list that this node joins again when a stranger's write has used up its watch.
    unwatched: Weak<Unwatched>,
}

/// The state of a node, and the futures that it awaits.
pub(crate) struct Locked {
    pub(crate) known: NodeState,
    pub(crate) creating: Option<Reply<Created>>,
    /// The watch on the directory's data. Other contenders set the data to ask that kept nodes be given up.
    pub(crate) directory_watch: Option<Reply<Watch>>,
    /// The watch on this node, and its waker, which is this `ContenderNode` itself, so thousands of waiters need no task each.
    /// The waker keeps the `ContenderNode` alive until the watch has fired.
    own: Option<(Watch, Waker)>,
    /// The directories that this contender made, the outermost first.
    pub(crate) made: Vec<String>,
}

impl ContenderNode {
    pub(super) fn new(
        number: u64,
        (queue, tag): (Arc<str>, Tag),
        mode: Mode,
        lease: &Arc<Lease>,
        unwatched: &Arc<Unwatched>,
    ) -> Arc<ContenderNode> {
        let known = NodeState::new(&queue, tag.unnumbered(mode));
        let state = Locked { known, creating: None, directory_watch: None, own: None, made: Vec::new() };
        Arc::new(ContenderNode {
            number,
            queue,
            tag,
            state: Mutex::new(state),
            changed: Notify::new(),
            unsettled: AtomicUsize::new(0),
            writes: AtomicUsize::new(0),
            commits: AtomicU32::new(0),
            held_in: AtomicU64::new(0),
            has_asked: AtomicBool::new(false),
            lease: Arc::clone(lease),
            limits: Limits::default(),
            unwatched: Arc::downgrade(unwatched),
        })
    }

    /// Changes the state of the node, and publishes it. Reports a lost hold to tracing and metrics after the lock is
    /// released, because subscribers run the user's code.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut Locked) -> T) -> T {
        let mut state = self.state.lock();
        let answer = change(&mut state);
        self.held_in.store(state.known.held_in().map_or(0, |epoch| epoch + 1), Ordering::Release);
        let unreported = state.known.take_unreported_loss();
        drop(state);
        if let Some((node, cause)) = unreported {
            meter::count(names::LOSSES, &[("cause", cause.label())]);
            emit!(WARN, node, %cause, "a lock was lost while it was held");
        }
        answer
    }

    pub(crate) fn read<T>(&self, read: impl FnOnce(&NodeState) -> T) -> T {
        read(&self.state.lock().known)
    }

    pub(crate) fn queue(&self) -> &Arc<str> {
        &self.queue
    }

    pub(crate) fn tag(&self) -> &Tag {
        &self.tag
    }

    pub(crate) fn path(&self) -> String {
        self.read(|it| it.path().to_owned())
    }

    /// Returns the node's contender in the queue, also while the node is a permit outside the queue.
    pub(crate) fn contender(&self) -> Arc<Contender> {
        self.read(|it| Arc::clone(it.contender()))
    }

    /// Returns the id of the transaction that created the node: unique in the ensemble, rising, never reset.
    pub(crate) fn token(&self) -> i64 {
        self.read(NodeState::token)
    }

    /// Returns the epoch of the lease on which the node relies, if the lease is valid.
    pub(crate) fn epoch(&self) -> Option<u64> {
        self.epoch_since(self.read(NodeState::creation).answered)
    }

    fn epoch_since(&self, entered: Moment) -> Option<u64> {
        self.lease.epoch().filter(|_| self.lease.lasts_from(entered))
    }

    /// Returns the path, for the caller. The caller may use it in transactions until the node is gone, so the node's
    /// writes stay unsettled until then.
    pub(crate) fn prepare_foreign_transaction(&self) -> String {
        self.begin_write();
        self.path()
    }

    /// Marks the node as held, for as long as this epoch of the lease lasts.
    pub(crate) fn hold(&self, epoch: u64) {
        self.change(|it| it.known.hold(epoch));
    }

    pub(crate) fn is_holding(&self) -> bool {
        self.read(NodeState::is_holding)
    }

    /// Counts a transaction that is sent, and is carried out only while the node is there.
    pub(crate) fn begin_write(&self) {
        self.unsettled.fetch_add(1, Ordering::Relaxed);
        self.writes.fetch_add(1, Ordering::Relaxed);
    }

    /// Records that a transaction was carried out, or never will be.
    pub(crate) fn settle_write(&self) {
        self.unsettled.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns how many transactions were sent under this hold, if all of them are settled.
    pub(crate) fn settled_writes(&self) -> Option<usize> {
        let writes = self.writes.load(Ordering::Relaxed);
        (!self.may_yet_write()).then_some(writes)
    }

    /// Returns the number of the next commit of a value. The numbers of one node differ, so that a commit whose answer
    /// was lost can be told from the commits of other uses of the node.
    pub(crate) fn next_commit(&self) -> u32 {
        self.commits.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
    }

    /// Takes back the number of a commit that is not sent, unless a later commit has a number already.
    pub(crate) fn commit_not_sent(&self, number: u32) {
        let _result =
            self.commits.compare_exchange(number, number.wrapping_sub(1), Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Returns whether a transaction may still be carried out.
    pub(crate) fn may_yet_write(&self) -> bool {
        self.unsettled.load(Ordering::Relaxed) > 0
    }

    /// Records that the node's owner asks that all kept nodes in the directory be given up.
    pub(crate) fn mark_asked(&self) {
        self.has_asked.store(true, Ordering::Release);
    }

    pub(crate) fn has_asked(&self) -> bool {
        self.has_asked.load(Ordering::Acquire)
    }

    /// Ends a move as `change` says, and drops the watch on the replaced node, whose events no longer matter.
    pub(crate) fn end_move(&self, change: impl FnOnce(&mut NodeState)) {
        let _unlocked = self.change(|it| {
            change(&mut it.known);
            it.own.take()
        });
    }

    /// Leaves the node, because its owner gives it back or was dropped. Applies `change`, and returns its result.
    pub(super) fn leave<T>(self: &Arc<Self>, change: impl FnOnce(&mut Locked) -> T) -> T {
        if !self.read(NodeState::has_node) {
            return self.change(change);
        }
        // Reports a loss, if there is one.
        self.find_loss();
        let removals = self.change(change);
        self.changed.notify_waiters();
        removals
    }

    /// Waits for the next change that a task may await.
    #[track_caller]
    pub(super) fn changed(&self) -> Notified<'_> {
        self.changed.notified()
    }

    /// Wakes every task that waits for a change.
    pub(super) fn wake_all(&self) {
        self.changed.notify_waiters();
    }

    pub(crate) fn has_left(&self) -> bool {
        self.read(NodeState::has_left)
    }

    /// Records a loss; the first reason stays.
    pub(crate) fn lose(&self, loss: Loss) {
        self.change(|it| it.known.lose(loss));
        self.changed.notify_waiters();
    }

    /// Returns why the node is no longer held or waiting, as far as this process knows without a request.
    pub(crate) fn find_loss(self: &Arc<Self>) -> Option<Loss> {
        let (lease, now) = (&self.lease, self.lease.now());
        if now == FORKED {
            // No lock may be taken here: a thread of the parent may have held it when the process forked.
            return Some(Loss::SessionOver(Ending::Forked));
        }
        let (loss, event) = self.change(|it| {
            if it.known.loss().is_none() && it.known.has_node() {
                if it.known.lacks_epoch() {
                    it.known.rely_on(self.epoch_since(it.known.creation().answered));
                }
                it.known.find_loss(&Evidence {
                    valid_in: lease.epoch_at(now),
                    over: lease.over(),
                    is_held_too_long: !self.limits.allows(now),
                });
                if it.known.loss() == Some(Loss::HeldTooLong) {
                    self.limits.record_exceeded(now, lease.margin());
                }
            }
            let event = it.poll_watch();
            (it.known.loss(), event)
        });
        self.handle_event(event);
        loss
    }

    /// Returns the present moment if the node is held and no loss was found so far. `None` if only [`ContenderNode::find_loss`]
    /// can tell.
    pub(crate) fn held_at(&self) -> Option<Moment> {
        let now = self.lease.covered_at(self.held_in.load(Ordering::Acquire).checked_sub(1)?)?;
        self.limits.allows(now).then_some(now)
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Returns how long the node is surely held, by the lease and the limits. `None` if that time is over.
    pub(crate) fn remaining(&self) -> Option<Duration> {
        let left = self.lease.remaining()?.min(self.limits.left(self.lease.now()));
        (!left.is_zero()).then_some(left)
    }

    /// Returns how long it is until the node is given up, if its holds have a limit.
    pub(crate) fn given_up_in(&self) -> Option<Duration> {
        self.limits.given_up_in(self.lease.now(), self.lease.margin())
    }

    /// Returns whether the node is held and no loss was found. A lost node is excluded, because a failed check of it
    /// would hide others in the same transaction.
    pub(super) fn is_held(&self) -> bool {
        self.read(|it| it.held_in().is_some())
    }

    /// Returns the path, unless the node is being replaced or was left.
    pub(crate) fn standing_path(&self) -> Option<String> {
        self.read(|it| it.is_standing_at(it.path()).then(|| it.path().to_owned()))
    }

    /// Handles the event of the watch, after the lock on the state is released.
    fn handle_event(self: &Arc<Self>, event: Option<Event>) {
        let Some(event) = event else { return };
        self.changed.notify_waiters();
        if event == Event::Changed
            && self.standing_path().is_some()
            && let Some(unwatched) = self.unwatched.upgrade()
        {
            unwatched.add(self);
        }
    }

    /// Returns how sure it is that the lock is held.
    pub(crate) fn hold_state(self: &Arc<Self>) -> HoldState {
        match (self.find_loss(), self.remaining()) {
            (Some(why), _) => HoldState::Lost { why },
            (None, Some(left)) if !self.lease.is_connected() => {
                Instant::now().checked_add(left).map_or(HoldState::Held, |until| HoldState::Suspect { until })
            }
            _ => HoldState::Held,
        }
    }

    /// Records that the leader has no node at this path.
    pub(super) fn record_gone_from(&self, path: &str) {
        if self.read(|it| it.is_standing_at(path)) {
            self.lose(Loss::Removed);
        }
    }

    /// Returns whether a watch on this node is armed.
    pub(crate) fn has_own_watch(&self) -> bool {
        self.state.lock().own.is_some()
    }

    /// Awaits the requested watch and stores it. If the node does not exist, the hold is lost.
    pub(crate) async fn store_watch(self: &Arc<Self>, requested: OwnWatch) -> Result<(), Failure> {
        let OwnWatch { path, watch } = requested;
        match watch.await {
            Ok(watch) => {
                self.arm(&path, watch);
                Ok(())
            }
            Err(Failure::NoNode) => {
                self.record_gone_from(&path);
                Ok(())
            }
            Err(failure) => {
                self.change(|it| it.known.watch_failed(&path));
                Err(failure)
            }
        }
    }

    fn arm(self: &Arc<Self>, path: &str, watch: Watch) {
        let mut state = self.state.lock();
        if state.known.path() == path {
            state.own = Some((watch, Waker::from(Arc::clone(self))));
        }
        drop(state);
        // The watch may have fired already.
        self.find_loss();
    }
}

impl Wake for ContenderNode {
    fn wake(self: Arc<Self>) {
        self.find_loss();
    }
}

impl Locked {
    /// Polls the watch on this node, and returns its event if it has fired now.
    ///
    /// Events come in order. A task that has received another node's event finds here all earlier events of this node,
    /// even if this watch has woken no task yet.
    fn poll_watch(&mut self) -> Option<Event> {
        let (watch, waker) = self.own.as_mut()?;
        // Without `unconstrained`, tokio may force a long-running task to yield: it wakes the task here, under our lock.
        let watch = std::pin::pin!(tokio::task::unconstrained(watch));
        let Poll::Ready(event) = watch.poll(&mut Context::from_waker(waker)) else {
            return None;
        };
        self.own = None;
        self.known.heard(event);
        Some(event)
    }
}

pub(crate) struct Limits {
    /// The limit for each hold or use.
    longest: OnceLock<Duration>,
    ends: Mutex<Ends>,
    /// The earliest of the ends, in nanoseconds, for reads without the lock: a kept node is checked millions of times a
    /// second.
    first: AtomicU64,
    /// When the node is given up, once a hold or use has exceeded the limit.
    given_up: OnceLock<Moment>,
}

/// When a hold or use reaches its limit, and its number, because several may end together.
pub(crate) type LimitEnd = (Moment, u64);

#[derive(Default)]
struct Ends {
    all: BTreeSet<LimitEnd>,
    /// How many holds and uses have begun.
    begun: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        let (longest, ends, given_up) = (OnceLock::new(), Mutex::default(), OnceLock::new());
        Limits { longest, ends, first: AtomicU64::new(u64::MAX), given_up }
    }
}

impl Limits {
    /// Limits each later hold, or use of a kept node, to this duration. Only the first call counts.
    pub(crate) fn set(&self, longest: Duration) {
        self.longest.get_or_init(|| longest);
    }

    /// Begins a hold or use. `None` if there is no limit.
    pub(crate) fn begin(&self, now: Moment) -> Option<LimitEnd> {
        let end = now.saturating_add(*self.longest.get()?);
        let mut ends = self.ends.lock();
        ends.begun += 1;
        let end = (end, ends.begun);
        ends.all.insert(end);
        self.publish(&ends);
        Some(end)
    }

    pub(crate) fn end(&self, end: LimitEnd) {
        let mut ends = self.ends.lock();
        ends.all.remove(&end);
        self.publish(&ends);
    }

    fn publish(&self, ends: &Ends) {
        self.first.store(ends.first().map_or(u64::MAX, nanos), Ordering::Release);
    }

    /// Returns whether no hold or use has exceeded its limit.
    pub(crate) fn allows(&self, now: Moment) -> bool {
        nanos(now) < self.first.load(Ordering::Acquire)
    }

    /// Records that a hold or use has exceeded its limit. The node is given up after the margin.
    pub(crate) fn record_exceeded(&self, now: Moment, margin: Duration) {
        self.given_up.get_or_init(|| now.saturating_add(margin));
    }

    /// Returns for how long surely no hold or use exceeds its limit. A later one ends after that time.
    pub(crate) fn left(&self, now: Moment) -> Duration {
        let Some(longest) = self.longest.get() else { return Duration::MAX };
        self.ends.lock().first().map_or(*longest, |end| end.saturating_sub(now))
    }

    /// Returns how long it is until the node is given up, or would be, if all present holds went on. `None` if never.
    pub(crate) fn given_up_in(&self, now: Moment, margin: Duration) -> Option<Duration> {
        let would_be = || self.ends.lock().first().map(|end| end.saturating_add(margin));
        self.given_up.get().copied().or_else(would_be).map(|end| end.saturating_sub(now))
    }
}

impl Ends {
    fn first(&self) -> Option<Moment> {
        self.all.first().map(|(end, _)| *end)
    }
}

#[cfg(test)]
mod tests;
