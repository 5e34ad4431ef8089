//! The record of one session: the lease, our nodes on the session, the hand-offs to check, the listings under way, and
//! the known ghosts. The backend reports events to the record; contenders and keep-alive read it.

use std::fmt;
use std::sync::{Arc, Weak};

use tracing::level_filters::LevelFilter;

use crate::queue::contender::Tag;
use crate::queue::mode::Mode;
use crate::session::directories::{Ghosts, Listings};
use crate::session::lease::{Lease, Moment};
use crate::session::node::{ContenderNode, Locked, Unwatched};
use crate::session::request::{Created, Ending, Failure};
use crate::session::shield::shielded;
use crate::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use crate::sync::{HashMap, Mutex, Notify};
use crate::telemetry::log::emit;

/// The library's record of one session. A backend creates the store, returns it from
/// [`Session::store`](crate::coordinator::Session::store), and reports each event to it.
///
/// # Implementing a backend
///
/// Call [`began`](SessionStore::began) once, [`answered`](SessionStore::answered) or
/// [`acknowledged`](SessionStore::acknowledged) after each answer, [`connected`](SessionStore::connected) and
/// [`resumed`](SessionStore::resumed) as the connection changes, and [`end`](SessionStore::end) when the session is
/// over. None of these calls blocks or waits.
pub struct SessionStore {
    lease: Arc<Lease>,
    /// The id that the next node gets.
    next: AtomicU64,
    members: Mutex<Members>,
    /// Wakes the task that renews the lease, because the connection has changed, the session is over, or the renewal
    /// must run sooner.
    pub(super) renewal_wake: Notify,
    /// Notified when the connection is lost or back, and when the session is over.
    link_changed: Notify,
    /// Our nodes on which keep-alive has not requested a watch yet. The list's `wake` also notifies keep-alive of a
    /// hand-off to check.
    pub(crate) unwatched: Arc<Unwatched>,
    /// The number of times that the connection was lost.
    connection: AtomicU64,
    listings: Listings,
    ghosts: Ghosts,
    is_signal_refused: AtomicBool,
    /// The highest zxid of all answers.
    newest_zxid: AtomicI64,
}

impl SessionStore {
    /// Returns the store of a session with this lease.
    pub fn new(lease: Lease) -> SessionStore {
        SessionStore {
            lease: Arc::new(lease),
            next: AtomicU64::new(0),
            members: Mutex::default(),
            renewal_wake: Notify::new(),
            link_changed: Notify::new(),
            unwatched: Arc::default(),
            connection: AtomicU64::new(0),
            listings: Listings::default(),
            ghosts: Ghosts::default(),
            is_signal_refused: AtomicBool::new(false),
            newest_zxid: AtomicI64::new(0),
        }
    }

    /// Returns the lease: until when the session is surely alive.
    pub fn lease(&self) -> &Arc<Lease> {
        &self.lease
    }

    /// Records that the ensemble created the session, in answer to a handshake sent at `sent` or later.
    pub fn began(&self, sent: Moment) {
        let lapsed = self.lease.began(sent);
        self.find_all_losses_if(lapsed);
    }

    /// Records the answer to a request that was sent at `sent`.
    pub fn answered(&self, sent: Moment) {
        self.lease.answered(sent);
    }

    /// As [`SessionStore::answered`], for an operation that a quorum has acknowledged.
    pub fn acknowledged(&self, sent: Moment) {
        let lapsed = self.lease.acknowledged(sent);
        self.find_all_losses_if(lapsed);
    }

    /// Records that the handshake of the current connection resumed this session. The handshake extends the lease once
    /// an operation that was sent on this connection is [acknowledged](SessionStore::acknowledged).
    pub fn resumed(&self) {
        self.lease.resumed();
    }

    /// Turns steady mode on or off. In steady mode the lease never ends, for backends that need no heartbeat.
    pub fn steady(&self, steady: bool) {
        self.lease.steady(steady);
        self.wake_renewal();
        self.notify_all();
    }

    /// Records that the connection is lost (`false`) or back (`true`). The lease stays as it is, so a lost connection
    /// only makes holds [suspect](crate::HoldState::Suspect).
    ///
    /// A backend must report a lost connection before any answer that comes on the next connection.
    pub fn connected(&self, connected: bool) {
        let has_changed = self.lease.connected(connected);
        self.wake_renewal();
        if has_changed && !connected {
            self.connection.fetch_add(1, Ordering::AcqRel);
        }
        if has_changed {
            self.log_link(connected);
        }
        self.notify_all();
        self.link_changed.notify_waiters();
    }

    /// Records the end of the session, unless an earlier end is recorded. All nodes are lost.
    pub fn end(&self, why: Ending) {
        self.lease.end(why);
        // The end of the session is recorded as the loss of every node that is not lost yet, before an event can report
        // the deletion of the node.
        self.find_all_losses();
        self.wake_renewal();
        self.unwatched.wake.notify_one();
        self.link_changed.notify_waiters();
    }

    /// Waits until the session is connected. Fails when the session is over.
    pub(crate) async fn until_connected(&self) -> Result<(), Ending> {
        self.until(|lease| lease.over().map(Err).or_else(|| lease.is_connected().then_some(Ok(())))).await
    }

    /// Waits until the session is over, and returns the reason.
    pub(crate) async fn until_over(&self) -> Ending {
        self.until(Lease::over).await
    }

    /// Waits until `awaited` returns a value. Looks at each change of the connection, and at the end of the session.
    pub(crate) async fn until<T>(&self, awaited: impl Fn(&Lease) -> Option<T>) -> T {
        loop {
            // Made before the lease is read, so that a change in between is not missed.
            let changed = self.link_changed.notified();
            if let Some(answer) = awaited(&self.lease) {
                return answer;
            }
            shielded(changed).await;
        }
    }

    /// Records the zxid of an answer.
    pub(crate) fn record_zxid(&self, zxid: i64) {
        self.newest_zxid.fetch_max(zxid, Ordering::AcqRel);
    }

    /// Returns the highest zxid of all answers so far, 0 before the first one. Every write that this session sends
    /// later gets a higher zxid.
    pub(crate) fn newest_zxid(&self) -> i64 {
        self.newest_zxid.load(Ordering::Acquire)
    }

    /// Returns a new node for this directory, whose create is not sent yet.
    pub(crate) fn begin(&self, directory: &Arc<str>, tag: &Tag, mode: Mode) -> Arc<ContenderNode> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        ContenderNode::new(number, (Arc::clone(directory), tag.clone()), mode, &self.lease, &self.unwatched)
    }

    /// Records the created node, from the answer to its create, or from a listing after that answer was lost.
    /// Keep-alive checks and watches the node until [`SessionStore::leave`].
    pub(crate) fn created(&self, node: &Arc<ContenderNode>, created: &Created, session: i64) -> Result<(), Failure> {
        let now = self.lease.now();
        let (answer, _unlocked) = node.change(|it| (it.known.created(created, session, now), it.creating.take()));
        answer?;
        self.add(node);
        Ok(())
    }

    /// Removes a node from this record, because its owner gives the lock back or was dropped. Applies `change` to the
    /// node, and returns its result. The second argument of `change` is whether the removal may signal the release.
    pub(crate) fn leave<T>(&self, node: &Arc<ContenderNode>, change: impl FnOnce(&mut Locked, bool) -> T) -> T {
        let removals = node.leave(|it| change(it, !self.is_signal_refused()));
        self.remove(node);
        removals
    }

    /// Returns how often the connection was lost. If this count is the same at two answers, both came on the same
    /// connection.
    pub(crate) fn connection(&self) -> u64 {
        self.connection.load(Ordering::Acquire)
    }

    pub(crate) fn listings(&self) -> &Listings {
        &self.listings
    }

    pub(crate) fn ghosts(&self) -> &Ghosts {
        &self.ghosts
    }

    /// Records that the server refuses to let this session set the data of its own nodes. Releases are then plain
    /// deletes.
    pub(crate) fn record_signal_refused(&self) {
        self.is_signal_refused.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_signal_refused(&self) -> bool {
        self.is_signal_refused.load(Ordering::Relaxed)
    }

    /// Records the loss of every hold if `lapsed`, that is, if an answer showed that the lease had run out. Otherwise a
    /// hold could survive the lapse, because the same answer may have renewed the lease.
    fn find_all_losses_if(&self, lapsed: bool) {
        if lapsed {
            self.find_all_losses();
        }
    }
}

impl fmt::Debug for SessionStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionStore").field("lease", &self.lease).finish_non_exhaustive()
    }
}

#[derive(Default)]
struct Members {
    all: HashMap<u64, Arc<ContenderNode>>,
    /// The hand-offs to check, by the path of the releasing holder's node.
    hand_offs: HashMap<Arc<str>, HandOff>,
    /// The last hand-off that was confirmed. If this hand-off grants the lock to another contender later, that grant
    /// needs no check.
    last_confirmed: Option<Arc<str>>,
    /// The nodes that their owner no longer keeps between uses, and deletes after the last use.
    leaving: Vec<Weak<ContenderNode>>,
    /// When the renewal of the lease runs next, on the session's clock.
    renewal: Moment,
}

/// A write to a holder's node that waiters take as the release of the lock by that holder. A stranger may have sent the
/// write. So the hand-off is confirmed only when no contender is left whose sequence number is at most that of the
/// holder.
#[derive(Default)]
struct HandOff {
    /// Our nodes to which the hand-off granted the lock. There may be thousands of readers.
    granted: Vec<Arc<ContenderNode>>,
    /// Whether keep-alive has begun to check the hand-off.
    is_under_check: bool,
}

impl SessionStore {
    /// Adds a created node, until [`SessionStore::remove`]. If the node is the session's first, and the next renewal of
    /// the lease would be too late for it, also wakes the task that renews the lease.
    pub(super) fn add(&self, node: &Arc<ContenderNode>) {
        let renewed_by = self.lease.now() + self.lease.heartbeat_period();
        let mut members = self.members.lock();
        members.all.insert(node.number, Arc::clone(node));
        let is_late = members.all.len() == 1 && members.renewal > renewed_by;
        drop(members);
        // The task is woken only if it must be, because a wake-up costs a tenth of the time of a short hold.
        if is_late {
            self.wake_renewal();
        }
        self.unwatched.add(node);
    }

    pub(super) fn remove(&self, node: &ContenderNode) {
        self.members.lock().all.remove(&node.number);
    }

    /// Requests that keep-alive check the hand-off by the holder whose node was at `path`, because the hand-off has
    /// granted the lock to `node`. Does nothing if the hand-off is the last one that was confirmed.
    pub(crate) fn request_check(&self, path: &Arc<str>, node: &Arc<ContenderNode>) {
        let mut members = self.members.lock();
        // A check that has not ended also covers `node`, even if the hand-off is confirmed.
        if members.last_confirmed.as_ref() == Some(path) && !members.hand_offs.contains_key(path) {
            return;
        }
        members.hand_offs.entry(Arc::clone(path)).or_default().granted.push(Arc::clone(node));
        drop(members);
        self.unwatched.wake.notify_one();
    }

    /// Records that this node is no longer kept between uses, and is deleted after its last use. A contender behind the
    /// node then need not request that the node be given up.
    pub(crate) fn mark_leaving(&self, node: &Arc<ContenderNode>) {
        let mut members = self.members.lock();
        members.leaving.retain(|node| node.strong_count() > 0);
        members.leaving.push(Arc::downgrade(node));
    }

    /// Returns the names of the nodes in this directory that are no longer kept between uses, and are deleted after
    /// their last use.
    pub(crate) fn leaving_soon(&self, directory: &str) -> Vec<String> {
        let leaving: Vec<_> = self.members.lock().leaving.iter().filter_map(Weak::upgrade).collect();
        let name = |node: Arc<ContenderNode>| Some(node.path().strip_prefix(directory)?.strip_prefix('/')?.to_owned());
        leaving.into_iter().filter_map(name).collect()
    }

    /// Returns the paths of the hand-offs whose check must start now. Each path is returned once. Forgets a hand-off if
    /// no contender to which it granted the lock still holds.
    pub(super) fn take_unchecked(&self) -> Vec<Arc<str>> {
        let mut members = self.members.lock();
        members.hand_offs.retain(|_, it| it.is_under_check || it.granted.iter().any(|node| node.is_holding()));
        let unchecked = members.hand_offs.iter_mut().filter(|(_, it)| !it.is_under_check);
        let paths = unchecked.map(|(path, it)| {
            it.is_under_check = true;
            Arc::clone(path)
        });
        paths.collect()
    }

    /// Records that the hand-off at this path is confirmed. If it grants the lock to another contender later, that
    /// grant needs no check.
    pub(super) fn record_confirmed(&self, path: Arc<str>) {
        self.members.lock().last_confirmed = Some(path);
    }

    /// Ends the check of a hand-off. Returns our nodes to which the hand-off granted the lock.
    pub(super) fn finish_check(&self, path: &Arc<str>) -> Option<Vec<Arc<ContenderNode>>> {
        self.members.lock().hand_offs.remove(path).map(|it| it.granted)
    }

    pub(crate) fn wake_renewal(&self) {
        self.renewal_wake.notify_one();
    }

    /// Calls [`ContenderNode::find_loss`] on each node, which records and reports a loss. Then wakes every task that
    /// waits for a change of a node.
    pub(crate) fn find_all_losses(&self) {
        for node in self.all() {
            node.find_loss();
        }
        self.notify_all();
    }

    /// Logs, for each node that is held, that the connection was lost or is back.
    pub(crate) fn log_link(&self, is_connected: bool) {
        if LevelFilter::current() < LevelFilter::WARN {
            return;
        }
        for node in self.all().into_iter().filter(|node| node.is_holding() && node.find_loss().is_none()) {
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
        for node in self.all() {
            node.wake_all();
        }
    }

    fn all(&self) -> Vec<Arc<ContenderNode>> {
        self.members.lock().all.values().cloned().collect()
    }

    /// Returns the nodes that a heartbeat checks, with their paths: all nodes that are held, or one node of a waiter if
    /// none is held.
    pub(crate) fn to_check(&self) -> Vec<(Arc<ContenderNode>, String)> {
        let members = self.members.lock();
        let standing = |node: &Arc<ContenderNode>| Some((Arc::clone(node), node.standing_path()?));
        let holding = members.all.values().filter(|node| node.is_held());
        let mut chosen: Vec<_> = holding.filter_map(standing).collect();
        if chosen.is_empty() {
            chosen.extend(members.all.values().find_map(standing));
        }
        chosen
    }

    pub(super) fn has_no_nodes(&self) -> bool {
        self.members.lock().all.is_empty()
    }

    /// Records when the renewal of the lease runs next. Returns `false` if the plan is out of date, because the caller
    /// took the session for idle (`is_idle`) and a node was added since. The caller must then plan again.
    pub(super) fn plan_renewal(&self, at: Moment, is_idle: bool) -> bool {
        let mut members = self.members.lock();
        members.renewal = at;
        !is_idle || members.all.is_empty()
    }

    pub(super) fn is_over(&self) -> bool {
        self.lease.over().is_some()
    }
}

#[cfg(test)]
mod tests;
