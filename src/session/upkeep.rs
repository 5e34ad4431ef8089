//! What the library keeps for one session: its lease, the own nodes on it, the listings under way, and the ghosts that it
//! knows.

use std::fmt;
use std::sync::{Arc, Weak};

use tracing::level_filters::LevelFilter;

use crate::queue::contender::Tag;
use crate::queue::mode::Mode;
use crate::session::directories::{Ghosts, Listings};
use crate::session::lease::{Lease, Moment};
use crate::session::node::{Locked, OwnNode, Unwatched};
use crate::session::request::{Created, Ending, Failure};
use crate::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use crate::sync::{HashMap, Mutex, Notify};
use crate::telemetry::log::emit;

/// What the library keeps for one session. Its backend makes it, hands it out, and reports to it what happens.
///
/// # Implementing a backend
/// Call [`began`](Upkeep::began) once, [`answered`](Upkeep::answered) or [`acknowledged`](Upkeep::acknowledged) after each
/// answer, [`connected`](Upkeep::connected) and [`resumed`](Upkeep::resumed) as the connection changes, and
/// [`end`](Upkeep::end) when the session is over. None of these calls blocks or waits.
pub struct Upkeep {
    lease: Arc<Lease>,
    /// The number of the next own node.
    next: AtomicU64,
    members: Mutex<Members>,
    /// The connection was lost or is back, the session is over, or the lease is to be renewed sooner.
    pub(super) renewal_wake: Notify,
    /// The nodes that keep-alive watches soon. It also hears here of a hand-off to be confirmed.
    pub(crate) unwatched: Arc<Unwatched>,
    /// Counts how often the connection was lost.
    connection: AtomicU64,
    listings: Listings,
    ghosts: Ghosts,
    is_signal_refused: AtomicBool,
    /// The newest change of the ensemble that an answer has shown.
    newest_zxid: AtomicI64,
}

impl Upkeep {
    /// The upkeep of a session that lives as long as this lease says.
    pub fn new(lease: Lease) -> Upkeep {
        Upkeep {
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

    /// Until when the session is surely alive.
    pub fn lease(&self) -> &Arc<Lease> {
        &self.lease
    }

    /// The ensemble created the session, and was asked to at this moment or later.
    pub fn began(&self, asked: Moment) {
        let lapsed = self.lease.began(asked);
        self.look_if(lapsed);
    }

    /// A request was answered that was sent at `sent`.
    pub fn answered(&self, sent: Moment) {
        self.lease.answered(sent);
    }

    /// As [`Upkeep::answered`], for an operation that a quorum has acknowledged.
    pub fn acknowledged(&self, sent: Moment) {
        let lapsed = self.lease.acknowledged(sent);
        self.look_if(lapsed);
    }

    /// The connection that is up now is known to be this session's: the handshake that resumed it counts as soon as an
    /// operation is [acknowledged](Upkeep::acknowledged) that was sent on this connection.
    pub fn resumed(&self) {
        self.lease.resumed();
    }

    /// Counts every moment as acknowledged from now on, or no longer: for backends that need no heartbeat.
    pub fn steady(&self, steady: bool) {
        self.lease.steady(steady);
        self.wake_renewal();
        self.notify_all();
    }

    /// The connection was lost or is back. The lease stays as it is: a lost connection only makes holds
    /// [suspect](crate::HoldState::Suspect).
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

    /// The session is over; the first reason stays.
    pub fn end(&self, why: Ending) {
        self.lease.end(why);
        self.members.lock().over = true;
        // A node that was not lost before is lost with the session, whatever removes the node next.
        self.look_at_all();
        self.wake_renewal();
        self.unwatched.wake.notify_one();
    }

    /// An answer has shown this change of the ensemble.
    pub(crate) fn record_zxid(&self, zxid: i64) {
        self.newest_zxid.fetch_max(zxid, Ordering::AcqRel);
    }

    /// The newest change of the ensemble that an answer has shown; 0 if none has shown any. What is asked for from now on changes
    /// nothing before that.
    pub(crate) fn newest_zxid(&self) -> i64 {
        self.newest_zxid.load(Ordering::Acquire)
    }

    /// A node in this directory that is not asked for yet.
    pub(crate) fn begin(&self, directory: &Arc<str>, tag: &Tag, mode: Mode) -> Arc<OwnNode> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        OwnNode::new(number, (Arc::clone(directory), tag.clone()), mode, &self.lease, &self.unwatched)
    }

    /// The node was created, or found after a lost answer, by this session. It is kept alive and watched until
    /// [`Upkeep::leave`].
    pub(crate) fn created(&self, own_node: &Arc<OwnNode>, created: &Created, session: i64) -> Result<(), Failure> {
        let now = self.lease.now();
        let (answer, _unlocked) = own_node.change(|it| (it.known.created(created, session, now), it.creating.take()));
        answer?;
        self.add(own_node);
        Ok(())
    }

    /// The node is given back, or nobody wants it any more. Returns what `left` says of it, which is told whether it may signal.
    pub(crate) fn leave<T>(&self, own_node: &Arc<OwnNode>, left: impl FnOnce(&mut Locked, bool) -> T) -> T {
        let removals = own_node.leave(|it| left(it, !self.is_signal_refused()));
        self.remove(own_node);
        removals
    }

    /// How often the connection was lost. Two answers between which this stays the same are of one connection.
    pub(crate) fn connection(&self) -> u64 {
        self.connection.load(Ordering::Acquire)
    }

    pub(crate) fn listings(&self) -> &Listings {
        &self.listings
    }

    pub(crate) fn ghosts(&self) -> &Ghosts {
        &self.ghosts
    }

    /// The ensemble does not let this session write to its own nodes before it deletes them.
    pub(crate) fn signal_refused(&self) {
        self.is_signal_refused.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_signal_refused(&self) -> bool {
        self.is_signal_refused.load(Ordering::Relaxed)
    }

    /// Every hold is lost when the lease has run out, even if the same answer renews the lease.
    fn look_if(&self, lapsed: bool) {
        if lapsed {
            self.look_at_all();
        }
    }
}

impl fmt::Debug for Upkeep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upkeep").field("lease", &self.lease).finish_non_exhaustive()
    }
}

/// A signal that a holder has released the lock. Another client can have forged it, as long as nobody has looked whether a
/// contender is left up to the holder's node.
pub(crate) struct HandOff {
    /// The path of the holder's node.
    pub(crate) path: Arc<str>,
    is_gone: AtomicBool,
}

impl HandOff {
    fn new(path: Arc<str>) -> HandOff {
        HandOff { path, is_gone: AtomicBool::new(false) }
    }

    /// Nobody is left, so the signal was true.
    pub(crate) fn confirm(&self) {
        self.is_gone.store(true, Ordering::Release);
    }

    pub(crate) fn is_confirmed(&self) -> bool {
        self.is_gone.load(Ordering::Acquire)
    }
}

#[derive(Default)]
struct Members {
    all: HashMap<u64, Arc<OwnNode>>,
    /// Nodes that must be gone, because their waiters were granted by a hand-off.
    handed_off: HashMap<Arc<str>, HandedOff>,
    /// The last of these hand-offs after which nobody was left.
    gone: Option<Arc<HandOff>>,
    /// Nodes that leave by themselves with their last use.
    leaving: Vec<Weak<OwnNode>>,
    over: bool,
    /// When the renewal of the lease looks next.
    renewal: Moment,
}

struct HandedOff {
    signal: Arc<HandOff>,
    granted: Vec<Arc<OwnNode>>,
    is_asked: bool,
}

impl Upkeep {
    /// Adds a node that is there; it stays until [`Upkeep::remove`]. Wakes the renewal of the lease if that would be late for it.
    pub(super) fn add(&self, own_node: &Arc<OwnNode>) {
        let renewed_by = self.lease.now() + self.lease.heartbeat_period();
        let mut members = self.members.lock();
        members.all.insert(own_node.number, Arc::clone(own_node));
        let is_late = members.all.len() == 1 && members.renewal > renewed_by;
        drop(members);
        // A wake-up of the session's thread for each short hold would cost a tenth of it.
        if is_late {
            self.wake_renewal();
        }
        self.unwatched.add(own_node);
    }

    pub(super) fn remove(&self, own_node: &OwnNode) {
        self.members.lock().all.remove(&own_node.number);
    }

    /// The signal of the holder whose node is at `path`. One signal may let in thousands of readers.
    pub(crate) fn hand_off(&self, path: &Arc<str>) -> Arc<HandOff> {
        let members = self.members.lock();
        let known = members.handed_off.get(path).map(|handed| &handed.signal);
        let known = known.or(members.gone.as_ref().filter(|gone| gone.path == *path));
        known.cloned().unwrap_or_else(|| Arc::new(HandOff::new(Arc::clone(path))))
    }

    /// Asks keep-alive to check that the holder's node is gone, whose signal let `own_node` in.
    pub(crate) fn request_check(&self, signal: &Arc<HandOff>, own_node: &Arc<OwnNode>) {
        let mut members = self.members.lock();
        let is_gone = signal.is_confirmed() || members.gone.as_ref().is_some_and(|gone| gone.path == signal.path);
        if is_gone && !members.handed_off.contains_key(&signal.path) {
            return signal.confirm();
        }
        let handed = members.handed_off.entry(Arc::clone(&signal.path)).or_insert_with(|| {
            let signal = Arc::clone(signal);
            HandedOff { signal, granted: Vec::new(), is_asked: false }
        });
        handed.granted.push(Arc::clone(own_node));
        drop(members);
        self.unwatched.wake.notify_one();
    }

    /// This node is no longer kept. It leaves with its last use, and nobody has to ask for it.
    pub(crate) fn mark_leaving(&self, own_node: &Arc<OwnNode>) {
        let mut members = self.members.lock();
        members.leaving.retain(|node| node.strong_count() > 0);
        members.leaving.push(Arc::downgrade(own_node));
    }

    /// The names of the nodes in this directory that nobody has to ask for.
    pub(crate) fn leaving_soon(&self, directory: &str) -> Vec<String> {
        let leaving: Vec<_> = self.members.lock().leaving.iter().filter_map(Weak::upgrade).collect();
        let name = |node: Arc<OwnNode>| Some(node.path().strip_prefix(directory)?.strip_prefix('/')?.to_owned());
        leaving.into_iter().filter_map(name).collect()
    }

    /// The paths of the nodes to check: the nodes whose hand-off let in a contender that still holds.
    pub(super) fn take_unchecked(&self) -> Vec<Arc<str>> {
        let mut members = self.members.lock();
        members.handed_off.retain(|_, handed| handed.is_asked || handed.granted.iter().any(|it| it.is_holding()));
        let unasked = members.handed_off.iter_mut().filter(|(_, handed)| !handed.is_asked);
        let asked = unasked.map(|(path, handed)| {
            handed.is_asked = true;
            Arc::clone(path)
        });
        asked.collect()
    }

    /// Nobody is left up to the node of this hand-off, so those whom it lets in later need not look again.
    pub(super) fn record_confirmed(&self, signal: Arc<HandOff>) {
        signal.confirm();
        self.members.lock().gone = Some(signal);
    }

    /// Ends the check of a node after a hand-off. Returns the hand-off, and the own nodes that were granted by it.
    pub(super) fn finish_check(&self, path: &Arc<str>) -> Option<(Arc<HandOff>, Vec<Arc<OwnNode>>)> {
        self.members.lock().handed_off.remove(path).map(|handed| (handed.signal, handed.granted))
    }

    /// Makes the renewal of the lease look again.
    pub(crate) fn wake_renewal(&self) {
        self.renewal_wake.notify_one();
    }

    /// Looks at each node, and reports each loss; then every task that waits for a loss looks.
    pub(crate) fn look_at_all(&self) {
        for own_node in self.all() {
            own_node.find_loss();
        }
        self.notify_all();
    }

    /// Logs each hold that is in doubt because the connection is lost, or no longer in doubt because it is back.
    pub(crate) fn log_link(&self, is_connected: bool) {
        if LevelFilter::current() < LevelFilter::WARN {
            return;
        }
        for own_node in
            self.all().into_iter().filter(|own_node| own_node.is_holding() && own_node.find_loss().is_none())
        {
            let (node, left) = (own_node.path(), self.lease.remaining().unwrap_or_default());
            if is_connected {
                emit!(INFO, node, ?left, "the connection is back, and the lock is still held");
            } else {
                emit!(WARN, node, ?left, "the connection is lost while a lock is held");
            }
        }
    }

    /// Makes every task that waits for a loss look again.
    pub(crate) fn notify_all(&self) {
        for own_node in self.all() {
            own_node.wake_all();
        }
    }

    fn all(&self) -> Vec<Arc<OwnNode>> {
        self.members.lock().all.values().cloned().collect()
    }

    /// The nodes for a heartbeat to check: all nodes of holders, or else one node of a waiter.
    pub(crate) fn to_check(&self) -> Vec<(Arc<OwnNode>, String)> {
        let members = self.members.lock();
        let standing = |own_node: &Arc<OwnNode>| Some((Arc::clone(own_node), own_node.standing()?));
        let holding = members.all.values().filter(|own_node| own_node.is_held());
        let mut chosen: Vec<_> = holding.filter_map(standing).collect();
        if chosen.is_empty() {
            chosen.extend(members.all.values().find_map(standing));
        }
        chosen
    }

    pub(super) fn has_no_nodes(&self) -> bool {
        self.members.lock().all.is_empty()
    }

    /// The renewal of the lease looks next at this moment. Returns false if nodes have come to a session that was idle.
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
