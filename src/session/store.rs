//! The store of one session: the lease, our nodes on the session, the listings under way, and
//! the known ghosts. The backend reports events to it; contenders and keep-alive read it.

use std::fmt;
use std::sync::{Arc, Weak};

use tracing::level_filters::LevelFilter;

use crate::queue::contender::Tag;
use crate::queue::mode::Mode;
use crate::session::directories::{Ghosts, Listings};
use crate::session::lease::{Lease, Moment};
use crate::session::node::{ContenderNode, Locked, Unwatched};
use crate::session::request::{Created, Ending, Failure};
use crate::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use crate::sync::{HashMap, Mutex, Notify};
use crate::telemetry::log::emit;

/// The store that the library keeps for one session. The backend makes it, hands it out, and reports each event to it.
///
/// # Implementing a backend
/// Call [`began`](SessionStore::began) once, [`answered`](SessionStore::answered) or [`acknowledged`](SessionStore::acknowledged) after
/// each answer, [`connected`](SessionStore::connected) and [`resumed`](SessionStore::resumed) as the connection changes, and
/// [`end`](SessionStore::end) when the session is over. None of these calls blocks or waits.
pub struct SessionStore {
    lease: Arc<Lease>,
    /// The number of the next node.
    next: AtomicU64,
    members: Mutex<Members>,
    /// Wakes the renewal of the lease: the connection changed, the session is over, or the lease must be renewed sooner.
    pub(super) renewal_wake: Notify,
    /// The nodes that keep-alive will watch soon. Its waker also announces hand-offs to check.
    pub(crate) unwatched: Arc<Unwatched>,
    /// The number of lost connections.
    connection: AtomicU64,
    listings: Listings,
    ghosts: Ghosts,
    is_signal_refused: AtomicBool,
    /// The newest zxid that an answer has shown.
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

    /// Records that the handshake of the current connection resumed this session. The handshake counts as soon as an
    /// operation is [acknowledged](SessionStore::acknowledged) that was sent on this connection.
    pub fn resumed(&self) {
        self.lease.resumed();
    }

    /// Turns steady mode on or off. In steady mode the lease never ends, for backends that need no heartbeat.
    pub fn steady(&self, steady: bool) {
        self.lease.steady(steady);
        self.wake_renewal();
        self.notify_all();
    }

    /// Records a lost connection, or a connection that is back. The lease stays as it is, so a lost connection only makes
    /// holds [suspect](crate::HoldState::Suspect).
    ///
    /// A backend must report a lost connection before any answer that comes on the next one.
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
    }

    /// Records the end of the session; the first reason stays.
    pub fn end(&self, why: Ending) {
        self.lease.end(why);
        self.members.lock().over = true;
        // Each node that is not lost yet is lost with the session, even if an event reports its removal later.
        self.find_all_losses();
        self.wake_renewal();
        self.unwatched.wake.notify_one();
    }

    /// Records that an answer has shown this zxid.
    pub(crate) fn record_zxid(&self, zxid: i64) {
        self.newest_zxid.fetch_max(zxid, Ordering::AcqRel);
    }

    /// Returns the newest zxid that an answer has shown, 0 at first. A later request of this session changes nothing
    /// before that zxid.
    pub(crate) fn newest_zxid(&self) -> i64 {
        self.newest_zxid.load(Ordering::Acquire)
    }

    /// Returns a new node for this directory. Its create is not sent yet.
    pub(crate) fn begin(&self, directory: &Arc<str>, tag: &Tag, mode: Mode) -> Arc<ContenderNode> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        ContenderNode::new(number, (Arc::clone(directory), tag.clone()), mode, &self.lease, &self.unwatched)
    }

    /// Records that the node was created by this session, or was found after a lost answer. Keep-alive watches the node
    /// until [`SessionStore::leave`].
    pub(crate) fn created(&self, node: &Arc<ContenderNode>, created: &Created, session: i64) -> Result<(), Failure> {
        let now = self.lease.now();
        let (answer, _unlocked) = node.change(|it| (it.known.created(created, session, now), it.creating.take()));
        answer?;
        self.add(node);
        Ok(())
    }

    /// Takes a node out of the session's record, because its owner gives it back or was dropped. Applies `change`, and
    /// returns its result. The second argument of `change` is whether the node may signal its release.
    pub(crate) fn leave<T>(&self, node: &Arc<ContenderNode>, change: impl FnOnce(&mut Locked, bool) -> T) -> T {
        let removals = node.leave(|it| change(it, !self.is_signal_refused()));
        self.remove(node);
        removals
    }

    /// Returns the number of lost connections. Two answers came on one connection if this number is the same at both.
    pub(crate) fn connection(&self) -> u64 {
        self.connection.load(Ordering::Acquire)
    }

    pub(crate) fn listings(&self) -> &Listings {
        &self.listings
    }

    pub(crate) fn ghosts(&self) -> &Ghosts {
        &self.ghosts
    }

    /// Records that the ensemble does not let this session write to its own nodes before it deletes them.
    pub(crate) fn record_signal_refused(&self) {
        self.is_signal_refused.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_signal_refused(&self) -> bool {
        self.is_signal_refused.load(Ordering::Relaxed)
    }

    /// Looks at every node if the lease lapsed, so that each hold is lost even if the same answer renews the lease.
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

/// A signal that a holder has released the lock. Another client may have forged the signal, so it is confirmed only
/// once no contender up to the holder's node is left.
pub(crate) struct HandOff {
    pub(crate) path: Arc<str>,
    is_confirmed: AtomicBool,
}

impl HandOff {
    fn new(path: Arc<str>) -> HandOff {
        HandOff { path, is_confirmed: AtomicBool::new(false) }
    }

    /// Records that no contender is left, so the signal was true.
    pub(crate) fn confirm(&self) {
        self.is_confirmed.store(true, Ordering::Release);
    }

    pub(crate) fn is_confirmed(&self) -> bool {
        self.is_confirmed.load(Ordering::Acquire)
    }
}

#[derive(Default)]
struct Members {
    all: HashMap<u64, Arc<ContenderNode>>,
    /// Hand-offs to check, by the path of the node that must be gone.
    handed_off: HashMap<Arc<str>, HandedOff>,
    /// The last hand-off that was confirmed.
    last_confirmed: Option<Arc<HandOff>>,
    /// Nodes that are deleted after their last use.
    leaving: Vec<Weak<ContenderNode>>,
    over: bool,
    /// When the renewal of the lease runs next.
    renewal: Moment,
}

struct HandedOff {
    signal: Arc<HandOff>,
    granted: Vec<Arc<ContenderNode>>,
    is_under_check: bool,
}

impl SessionStore {
    /// Adds a node that exists, until [`SessionStore::remove`]. Wakes the renewal of the lease if that would run too late for
    /// the node.
    pub(super) fn add(&self, node: &Arc<ContenderNode>) {
        let renewed_by = self.lease.now() + self.lease.heartbeat_period();
        let mut members = self.members.lock();
        members.all.insert(node.number, Arc::clone(node));
        let is_late = members.all.len() == 1 && members.renewal > renewed_by;
        drop(members);
        // A wake-up of the session's thread for each short hold would cost a tenth of that hold's time.
        if is_late {
            self.wake_renewal();
        }
        self.unwatched.add(node);
    }

    pub(super) fn remove(&self, node: &ContenderNode) {
        self.members.lock().all.remove(&node.number);
    }

    /// Returns the signal of the holder whose node is at `path`. One signal may let in thousands of readers.
    pub(crate) fn hand_off(&self, path: &Arc<str>) -> Arc<HandOff> {
        let members = self.members.lock();
        let known = members.handed_off.get(path).map(|handed| &handed.signal);
        let known = known.or(members.last_confirmed.as_ref().filter(|last| last.path == *path));
        known.cloned().unwrap_or_else(|| Arc::new(HandOff::new(Arc::clone(path))))
    }

    /// Asks keep-alive to check that the holder's node is gone, because that holder's signal let `node` in.
    pub(crate) fn request_check(&self, signal: &Arc<HandOff>, node: &Arc<ContenderNode>) {
        let mut members = self.members.lock();
        let is_confirmed =
            signal.is_confirmed() || members.last_confirmed.as_ref().is_some_and(|last| last.path == signal.path);
        if is_confirmed && !members.handed_off.contains_key(&signal.path) {
            return signal.confirm();
        }
        let handed = members.handed_off.entry(Arc::clone(&signal.path)).or_insert_with(|| {
            let signal = Arc::clone(signal);
            HandedOff { signal, granted: Vec::new(), is_under_check: false }
        });
        handed.granted.push(Arc::clone(node));
        drop(members);
        self.unwatched.wake.notify_one();
    }

    /// Records that this node is no longer kept. The node is deleted after its last use, so no contender needs to ask
    /// that it be given up.
    pub(crate) fn mark_leaving(&self, node: &Arc<ContenderNode>) {
        let mut members = self.members.lock();
        members.leaving.retain(|node| node.strong_count() > 0);
        members.leaving.push(Arc::downgrade(node));
    }

    /// Returns the names of the nodes in this directory that are deleted after their last use.
    pub(crate) fn leaving_soon(&self, directory: &str) -> Vec<String> {
        let leaving: Vec<_> = self.members.lock().leaving.iter().filter_map(Weak::upgrade).collect();
        let name = |node: Arc<ContenderNode>| Some(node.path().strip_prefix(directory)?.strip_prefix('/')?.to_owned());
        leaving.into_iter().filter_map(name).collect()
    }

    /// Returns the paths to check: the nodes of hand-offs that let in a contender which still holds.
    pub(super) fn take_unchecked(&self) -> Vec<Arc<str>> {
        let mut members = self.members.lock();
        members.handed_off.retain(|_, handed| handed.is_under_check || handed.granted.iter().any(|it| it.is_holding()));
        let unchecked = members.handed_off.iter_mut().filter(|(_, handed)| !handed.is_under_check);
        let paths = unchecked.map(|(path, handed)| {
            handed.is_under_check = true;
            Arc::clone(path)
        });
        paths.collect()
    }

    /// Records that no contender up to the node of this hand-off is left, so contenders that it lets in later need no
    /// check.
    pub(super) fn record_confirmed(&self, signal: Arc<HandOff>) {
        signal.confirm();
        self.members.lock().last_confirmed = Some(signal);
    }

    /// Ends the check of a hand-off. Returns the hand-off, and our nodes that were granted by it.
    pub(super) fn finish_check(&self, path: &Arc<str>) -> Option<(Arc<HandOff>, Vec<Arc<ContenderNode>>)> {
        self.members.lock().handed_off.remove(path).map(|handed| (handed.signal, handed.granted))
    }

    pub(crate) fn wake_renewal(&self) {
        self.renewal_wake.notify_one();
    }

    /// Looks at each node and reports each loss. Then wakes every task that waits for a loss.
    pub(crate) fn find_all_losses(&self) {
        for node in self.all() {
            node.find_loss();
        }
        self.notify_all();
    }

    /// Logs for each hold that the connection was lost, or that it is back.
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

    /// Wakes every task that waits for a loss.
    pub(crate) fn notify_all(&self) {
        for node in self.all() {
            node.wake_all();
        }
    }

    fn all(&self) -> Vec<Arc<ContenderNode>> {
        self.members.lock().all.values().cloned().collect()
    }

    /// Returns the nodes that a heartbeat checks: all nodes of holders, or else one node of a waiter.
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

    /// Records when the renewal of the lease runs next. Returns false if the session was idle and now has nodes.
    pub(super) fn plan_renewal(&self, at: Moment, is_idle: bool) -> bool {
        let mut members = self.members.lock();
        members.renewal = at;
        !is_idle || members.all.is_empty()
    }

    pub(super) fn is_over(&self) -> bool {
        self.members.lock().over
    }
}

#[cfg(test)]
mod tests;
