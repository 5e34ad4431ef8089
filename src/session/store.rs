//! The record of one session: the lease, the connection, and the nodes that this library has created on the session.
//! The backend reports events to the record. Contenders and the task `keep_alive` read and change the record. More
//! methods of [`SessionStore`] are in `hand_off.rs`, `keep_alive.rs`, `listing.rs` and `removal.rs`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Weak};

use futures_util::future::BoxFuture;
use tokio::sync::Semaphore;

use crate::queue::mode::Mode;
use crate::queue::node_name::AcquisitionTag;
use crate::session::lease::{Lease, Moment};
use crate::session::node::{Node, UnwatchedNodes};
use crate::session::request::{Created, Failure, Listing, SessionEnd};
use crate::sync::atomic::{AtomicI64, Ordering};
use crate::sync::{HashMap, Mutex, Notify, watch};
use crate::telemetry::debug::debug;
use crate::telemetry::log::emit;
use crate::telemetry::meter::{self, PathLabel};
use crate::telemetry::names;
use crate::telemetry::user_thread::catch_panic;

/// The library's record of one session. A backend creates the store, returns it from
/// [`Session::store`](crate::coordinator::Session::store), and reports each event to it.
///
/// # Implementing a backend
///
/// Call [`record_begin`](SessionStore::record_begin) once, [`record_answer`](SessionStore::record_answer) or
/// [`record_quorum_answer`](SessionStore::record_quorum_answer) after each answer,
/// [`set_connected`](SessionStore::set_connected) and [`record_resume`](SessionStore::record_resume) as the connection
/// changes, and [`record_end_and_report`](SessionStore::record_end_and_report) when the session is over. None of these
/// calls waits for I/O.
pub struct SessionStore {
    lease: Arc<Lease>,
    /// While this mutex is locked, no backend and no waker is called. If a node's mutex is needed at the same time,
    /// this mutex is locked first, and never while a node's mutex is locked.
    pub(super) record: Mutex<SessionRecord>,
    /// Wakes the task that renews the lease, for example because the connection has changed, the session is over, or
    /// the renewal must run sooner.
    pub(super) renewal_wake: Notify,
    /// Notified when the connection is lost or back, and when the session is over.
    link_changed: Notify,
    /// The nodes of this session on which the task `keep_alive` has not requested a watch yet. The list's `wake` also
    /// tells that task of a hand-off to check.
    pub(crate) unwatched: Arc<UnwatchedNodes>,
    /// The highest zxid that [`SessionStore::record_zxid`] was given. This is an atomic outside `record`, because a
    /// backend may report a zxid while the backend holds a mutex of its own.
    newest_zxid: AtomicI64,
    /// Limits the removals of nodes that are under way after a loss of the connection, so that no heartbeat waits for
    /// thousands of removals.
    pub(super) late_removals: Semaphore,
}

/// The part of a session's record that its mutex protects.
#[derive(Default)]
pub(super) struct SessionRecord {
    pub(super) nodes: HashMap<u64, Arc<Node>>,
    /// How many nodes [`SessionStore::new_node`] has made. This is also the number of the newest node.
    nodes_made: u64,
    /// The number of the present connection: how often a connection was lost before.
    connection: u64,
    /// The lock directories in which the server has refused the write that signals a release, and until when this
    /// session sends no such write there.
    pub(super) signals_refused: HashMap<Arc<str>, Moment>,
    /// The hand-offs (releases that waiters took as their grants) to check, by the path of the releasing holder's node.
    pub(super) hand_offs: HashMap<Arc<str>, HandOff>,
    /// The path of the hand-off that was confirmed last. If the same hand-off grants the lock to another contender
    /// later, that grant needs no check.
    pub(super) last_confirmed: Option<Arc<str>>,
    /// The nodes that this process no longer keeps between uses, and deletes after the last use of each.
    closing: Vec<Weak<Node>>,
    /// When the task that renews the lease runs next, on the session's clock.
    pub(super) renewal: Moment,
    /// The creates that the ensemble may carry out after their owner has left, the oldest first. Each entry has the
    /// moment until which the ensemble may carry out the create, the directory, and the owner's tag.
    pub(super) late_creates: VecDeque<(Moment, Arc<str>, AcquisitionTag)>,
    /// The listings that are under way, by directory.
    pub(super) listings: HashMap<Arc<str>, PendingListings>,
    /// The directories to list after the next sync, each with the sender of the answer to its callers. `None` while no
    /// task sends such listings.
    pub(super) synced_listings: Option<BTreeMap<Arc<str>, ListingSender>>,
}

/// A hand-off to check: a release that waiters of this process took as their grants.
#[derive(Default)]
pub(super) struct HandOff {
    /// The nodes of this process to which the hand-off granted the lock: one writer, or perhaps thousands of readers.
    pub(super) granted: Vec<Arc<Node>>,
    pub(super) is_under_check: bool,
}

/// The answer to a listing, or `None` until the answer has come.
pub(super) type ListingAnswer = Option<Result<Listing, Failure>>;

/// The sender of one listing's answer to all callers of that listing.
pub(super) type ListingSender = watch::Sender<ListingAnswer>;

/// The listings of one directory that are sent and not answered yet, and the callers of the next one.
#[derive(Default)]
pub(super) struct PendingListings {
    pub(super) under_way: usize,
    /// Whether the last answer had so many names that only one listing is sent at a time.
    pub(super) is_large: bool,
    /// The sender of the next listing's answer to the callers that wait for that listing. `None` if no caller waits.
    pub(super) next: Option<ListingSender>,
}

/// The most removals of nodes that are under way at a time after a loss of the connection.
const LATE_REMOVALS_MAX: usize = 128;

impl SessionStore {
    /// Returns the store of a session with this lease.
    pub fn new(lease: Lease) -> SessionStore {
        meter::increment_counter(names::SESSIONS_BEGUN, None, &[]);
        SessionStore {
            lease: Arc::new(lease),
            record: Mutex::default(),
            renewal_wake: Notify::new(),
            link_changed: Notify::new(),
            unwatched: Arc::default(),
            newest_zxid: AtomicI64::new(0),
            late_removals: Semaphore::new(LATE_REMOVALS_MAX),
        }
    }

    /// Returns the lease, which says until when the session is surely alive.
    pub fn lease(&self) -> &Arc<Lease> {
        &self.lease
    }

    /// Records that the ensemble created the session, in answer to a handshake sent at `sent` or later.
    pub fn record_begin(&self, sent: Moment) {
        // A backend may call this method again. If the lease had run out, this answer may have renewed it. A later check
        // could then find the lease valid and miss the loss of a hold, so the loss of every hold is recorded now.
        if self.lease.record_begin(sent) {
            self.detect_all_losses();
        }
    }

    /// Records the answer to a request that was sent at `sent`.
    pub fn record_answer(&self, sent: Moment) {
        self.lease.record_answer(sent);
    }

    /// Records the answer to an operation that was sent at `sent` and that a quorum has acknowledged. Unlike
    /// [`SessionStore::record_answer`], this call may extend the lease.
    pub fn record_quorum_answer(&self, sent: Moment) {
        if self.lease.record_quorum_answer(sent) {
            self.detect_all_losses();
        }
    }

    /// Records that a handshake, which was sent at `sent` or later, resumed this session on a new connection. The
    /// handshake extends the lease once an operation that was sent on this connection is
    /// [acknowledged](SessionStore::record_quorum_answer).
    pub fn record_resume(&self, sent: Moment) {
        self.lease.record_resume(sent);
    }

    /// Turns steady mode on or off, for backends that need no heartbeat. In steady mode the lease lasts until the
    /// session is over. When steady mode is turned off, the lease lasts for its full duration from now on.
    pub fn set_endless(&self, steady: bool) {
        self.lease.set_endless(steady);
        self.renewal_wake.notify_one();
        self.notify_all();
    }

    /// Records that the connection is lost (`false`) or back (`true`). The lease stays as it is, so a lost connection
    /// only makes holds [suspect](crate::HoldState::Suspect).
    ///
    /// A backend must report a lost connection before any answer that comes on the next connection. A connection that
    /// breaks before it was reported as back is reported as lost, too.
    pub fn set_connected(&self, is_connected: bool) {
        let lost = self.lease.disconnected_since();
        let has_changed = self.lease.set_connected(is_connected);
        self.renewal_wake.notify_one();
        if has_changed && !is_connected {
            self.record.lock().connection += 1;
        }
        if has_changed {
            lost.iter().for_each(|lost| meter::record_connection_break(lost.elapsed()));
            self.log_connection_change(is_connected);
        }
        self.notify_all();
        let _panicked = catch_panic(|| self.link_changed.notify_waiters());
    }

    /// Records the end of the session, unless an earlier end is recorded. Every node that waits or is held, and is not
    /// lost yet, is then lost.
    pub fn record_end_and_report(&self, why: SessionEnd) {
        self.record_end(why);
        // The end of the session is recorded as the loss of each node now, before an event can report the deletion of
        // the node as its loss.
        self.detect_all_losses();
        self.renewal_wake.notify_one();
        self.unwatched.wake.notify_one();
        let _panicked = catch_panic(|| self.link_changed.notify_waiters());
    }

    /// Records the end of the session, but reports no loss yet, because reporting a loss calls wakers. A backend calls
    /// this method while it holds a mutex of its own, and [`SessionStore::record_end_and_report`] after it has released
    /// the mutex.
    pub(crate) fn record_end(&self, why: SessionEnd) {
        let lost = self.lease.disconnected_since();
        if self.lease.record_end(why) {
            meter::increment_counter(names::SESSIONS_ENDED, None, &[("cause", why.label())]);
            lost.filter(|_| why != SessionEnd::Closed)
                .iter()
                .for_each(|lost| meter::record_connection_break(lost.elapsed()));
        }
    }

    /// Waits until the session is connected. Fails when the session is over.
    pub fn until_connected(&self) -> BoxFuture<'_, Result<(), SessionEnd>> {
        Box::pin(self.until(|lease| lease.ending().map(Err).or_else(|| lease.is_connected().then_some(Ok(())))))
    }

    /// Waits until the session is over, and returns the reason.
    pub fn until_over(&self) -> BoxFuture<'_, SessionEnd> {
        Box::pin(self.until(Lease::ending))
    }

    /// Waits until `awaited` returns a value. Calls `awaited` at once, after each change of the connection, and at the
    /// end of the session.
    async fn until<T>(&self, awaited: impl Fn(&Lease) -> Option<T>) -> T {
        loop {
            // The future is made before the lease is read, so that a change in between is not missed.
            let changed = self.link_changed.notified();
            if let Some(answer) = awaited(&self.lease) {
                return answer;
            }
            changed.await;
        }
    }

    /// Records the zxid of an answer.
    pub(crate) fn record_zxid(&self, zxid: i64) {
        self.newest_zxid.fetch_max(zxid, Ordering::AcqRel);
    }

    /// Returns the highest zxid that was recorded so far, or 0 before the first one. Every write that this session
    /// sends after this call gets a higher zxid.
    pub(crate) fn newest_zxid(&self) -> i64 {
        self.newest_zxid.load(Ordering::Acquire)
    }

    /// Returns a new node for this directory. The create of the node is not sent yet.
    pub(crate) fn new_node(
        &self,
        directory: &Arc<str>,
        path_label: &Arc<PathLabel>,
        tag: &AcquisitionTag,
        mode: Mode,
    ) -> Arc<Node> {
        let mut record = self.record.lock();
        record.nodes_made += 1;
        let named = (Arc::clone(directory), tag.clone());
        Node::new(record.nodes_made, named, path_label, mode, &self.lease, &self.unwatched)
    }

    /// Records the created node, from the answer to its create, or from a listing after that answer was lost. Until
    /// [`SessionStore::forget_node`], the task `keep_alive` watches and checks the node. Fails as
    /// `NodeState::record_created` does.
    pub(crate) fn record_created(&self, node: &Arc<Node>, created: &Created, session: i64) -> Result<(), Failure> {
        let now = self.lease.now();
        let (answer, _unlocked) =
            node.change(|it| (it.state.record_created(created, session, now), it.creating.take()));
        answer?;
        self.add_node(node);
        Ok(())
    }

    /// Removes a node from this record, because its owner has left it.
    pub(crate) fn forget_node(&self, node: &Arc<Node>) {
        if !self.lease.is_connected() {
            // Drops the watch on the node. If the watch stayed, it would be armed again after the reconnect.
            let _unlocked = node.change(|it| it.own.take());
        }
        self.record.lock().nodes.remove(&node.number);
    }

    /// Returns how often the connection was lost. A connection that breaks before it is reported as back is not
    /// counted. Two answers that came while the session was connected came on the same connection if this count is the
    /// same at both.
    pub fn connection_number(&self) -> u64 {
        self.record.lock().connection
    }

    /// Adds a created node, which stays until [`SessionStore::forget_node`]. If the session has no other node, and the
    /// next renewal of the lease would be too late for this node, also wakes the task that renews the lease.
    pub(super) fn add_node(&self, node: &Arc<Node>) {
        let renewed_by = self.lease.now() + self.lease.heartbeat_period();
        let mut record = self.record.lock();
        record.nodes.insert(node.number, Arc::clone(node));
        let is_late = record.nodes.len() == 1 && record.renewal > renewed_by;
        drop(record);
        // The task that renews the lease is woken only if necessary, because a wake-up costs a tenth of the time of a
        // short hold.
        if is_late {
            self.renewal_wake.notify_one();
        }
        self.unwatched.add(node);
    }

    /// Records that this node is no longer kept between uses, and is deleted after its last use. A contender that waits
    /// behind the node then need not request that this process give the node up.
    pub(crate) fn mark_node_closing(&self, node: &Arc<Node>) {
        let mut record = self.record.lock();
        record.closing.retain(|node| node.strong_count() > 0);
        record.closing.push(Arc::downgrade(node));
    }

    /// Returns the names of the nodes in this directory that are no longer kept between uses, and are deleted after
    /// their last use.
    pub(crate) fn closing_node_names(&self, directory: &str) -> Vec<String> {
        let closing: Vec<_> = self.record.lock().closing.iter().filter_map(Weak::upgrade).collect();
        let name = |node: Arc<Node>| Some(node.path().strip_prefix(directory)?.strip_prefix('/')?.to_owned());
        closing.into_iter().filter_map(name).collect()
    }

    /// Calls [`Node::detect_loss`] on each node, which records and reports a loss if there is one. Then wakes every
    /// task that waits for a change of a node.
    pub(crate) fn detect_all_losses(&self) {
        for node in self.all_nodes() {
            // A loss calls the wakers of callers. If a waker panics, the losses of the other nodes must still be
            // recorded.
            let _panicked = catch_panic(|| node.detect_loss());
        }
        self.notify_all();
    }

    /// Logs, for each node that is still held, that the connection is lost (`false`) or back (`true`).
    pub(crate) fn log_connection_change(&self, is_connected: bool) {
        for node in
            self.all_nodes().into_iter().filter(|node| node.is_held_even_if_lost() && node.detect_loss().is_none())
        {
            let (node, left) = (node.path(), self.lease.remaining().unwrap_or_default());
            if is_connected {
                emit!(INFO, node, ?left, "the connection is back, and the lock is still held");
            } else {
                emit!(WARN, node, ?left, "the connection is lost while a lock is held");
            }
        }
    }

    /// Wakes every task that waits for a change of a node.
    pub(crate) fn notify_all(&self) {
        for node in self.all_nodes() {
            let _panicked = catch_panic(|| node.changed.notify_waiters());
        }
    }

    fn all_nodes(&self) -> Vec<Arc<Node>> {
        self.record.lock().nodes.values().cloned().collect()
    }

    /// Returns the paths of this session's nodes that exist, as far as the session knows, and that are not being
    /// replaced.
    pub(crate) fn own_paths(&self) -> BTreeSet<String> {
        self.all_nodes().iter().filter_map(|node| node.path_if_in_place()).collect()
    }

    pub(crate) fn has_no_nodes(&self) -> bool {
        self.record.lock().nodes.is_empty()
    }

    pub(super) fn is_over(&self) -> bool {
        self.lease.ending().is_some()
    }
}

debug!(SessionStore as "SessionStore", |it| lease: it.lease);

#[cfg(test)]
mod tests;
