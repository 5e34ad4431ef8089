//! What the library keeps for one session: its lease, the own nodes on it, the listings under way, and the ghosts that it
//! knows.

use std::fmt;
use std::sync::Arc;

use crate::queue::contender::Owner;
use crate::queue::mode::Mode;
use crate::session::ghosts::Ghosts;
use crate::session::lease::{Lease, Moment};
use crate::session::listings::Listings;
use crate::session::node::{Locked, OwnNode};
use crate::session::nodes::OwnNodes;
use crate::session::request::{Created, Ending, Failure};
use crate::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

/// What the library keeps for one session. Its backend makes it, hands it out, and reports to it what happens.
///
/// # Implementing a backend
/// Call [`began`](Upkeep::began) once, [`answered`](Upkeep::answered) or [`acknowledged`](Upkeep::acknowledged) after each
/// answer, [`connected`](Upkeep::connected) and [`resumed`](Upkeep::resumed) as the connection changes, and
/// [`end`](Upkeep::end) when the session is over. None of these calls blocks or waits.
pub struct Upkeep {
    lease: Arc<Lease>,
    nodes: OwnNodes,
    /// Counts how often the connection was lost.
    connection: AtomicU64,
    listings: Listings,
    ghosts: Ghosts,
    is_signal_refused: AtomicBool,
    /// The newest change of the ensemble that an answer has shown.
    newest: AtomicI64,
}

impl Upkeep {
    /// The upkeep of a session that lives as long as this lease says.
    pub fn new(lease: Lease) -> Upkeep {
        Upkeep {
            lease: Arc::new(lease),
            nodes: OwnNodes::default(),
            connection: AtomicU64::new(0),
            listings: Listings::default(),
            ghosts: Ghosts::default(),
            is_signal_refused: AtomicBool::new(false),
            newest: AtomicI64::new(0),
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
        self.nodes.stir();
        self.nodes.tell_all();
    }

    /// The connection was lost or is back. The lease stays as it is: a lost connection only makes holds
    /// [suspect](crate::HoldState::Suspect).
    ///
    /// A backend must report a lost connection before any answer that comes on the next one.
    pub fn connected(&self, connected: bool) {
        let is_news = self.lease.connected(connected);
        self.nodes.stir();
        if is_news && !connected {
            self.connection.fetch_add(1, Ordering::AcqRel);
        }
        if is_news {
            self.nodes.link_changed(&self.lease, connected);
        }
        self.nodes.tell_all();
    }

    /// The session is over; the first reason stays.
    pub fn end(&self, why: Ending) {
        self.lease.end(why);
        self.nodes.session_is_over();
    }

    /// An answer has shown this change of the ensemble.
    pub(crate) fn shows(&self, zxid: i64) {
        self.newest.fetch_max(zxid, Ordering::AcqRel);
    }

    /// The newest change of the ensemble that an answer has shown; 0 if none has shown any. What is asked for from now on changes
    /// nothing before that.
    pub(crate) fn newest(&self) -> i64 {
        self.newest.load(Ordering::Acquire)
    }

    pub(crate) fn nodes(&self) -> &OwnNodes {
        &self.nodes
    }

    /// A node in this directory that is not asked for yet.
    pub(crate) fn begin(&self, directory: &Arc<str>, owner: &Owner, mode: Mode) -> Arc<OwnNode> {
        self.nodes.begin((Arc::clone(directory), owner.clone()), mode, &self.lease)
    }

    /// The node was created, or found after a lost answer, by this session. It is kept alive and watched until
    /// [`OwnNodes::strike`].
    pub(crate) fn created(&self, own_node: &Arc<OwnNode>, created: &Created, session: i64) -> Result<(), Failure> {
        own_node.created(created, session)?;
        self.nodes.enter(own_node);
        Ok(())
    }

    /// The node is given back, or nobody wants it any more. Returns what `left` says of it, which is told whether it may signal.
    pub(crate) fn leave<T>(&self, own_node: &Arc<OwnNode>, left: impl FnOnce(&mut Locked, bool) -> T) -> T {
        let removals = own_node.leave(|it| left(it, !self.is_signal_refused()));
        self.nodes.strike(own_node);
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
            self.nodes.look_at_all();
        }
    }
}

impl fmt::Debug for Upkeep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upkeep").field("lease", &self.lease).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::session::loss::Loss;
    use crate::sync::atomic::AtomicU64;

    /// The upkeep of a session that has just begun, and its clock in seconds.
    fn begun() -> (Arc<Upkeep>, Arc<AtomicU64>) {
        let clock = Arc::new(AtomicU64::new(1_000));
        let hands = Arc::clone(&clock);
        let read = move || Duration::from_secs(hands.load(Ordering::SeqCst));
        let upkeep = Arc::new(Upkeep::new(Lease::with_clock(Duration::from_secs(10), Box::new(read))));
        upkeep.began(upkeep.lease().now());
        (upkeep, clock)
    }

    fn holding(upkeep: &Arc<Upkeep>) -> Arc<OwnNode> {
        let own_node = upkeep.enter("/lock/node".to_owned());
        own_node.hold(upkeep.lease().epoch().expect("it has just begun"));
        own_node
    }

    #[test]
    fn a_hold_whose_lease_ran_out_is_lost_though_an_answer_renews_it() {
        let renewals: [fn(&Upkeep); 2] = [
            |upkeep| upkeep.began(upkeep.lease().now()),
            |upkeep| {
                upkeep.connected(false);
                upkeep.connected(true);
                upkeep.resumed();
                upkeep.acknowledged(upkeep.lease().now());
            },
        ];
        for renew in renewals {
            let (upkeep, clock) = begun();
            let own_node = holding(&upkeep);
            upkeep.answered(upkeep.lease().now());
            clock.fetch_add(30, Ordering::SeqCst);
            renew(&upkeep);
            assert_eq!(own_node.loss(), Some(Loss::LeaseRanOut));
            assert!(own_node.held_at().is_none());
        }
    }

    #[test]
    fn an_answer_is_a_touch() {
        let (upkeep, clock) = begun();
        for _ in 0..2 {
            upkeep.answered(upkeep.lease().now());
            assert_eq!(upkeep.lease().since_touch(), Duration::ZERO);
            clock.fetch_add(2, Ordering::SeqCst);
            assert_eq!(upkeep.lease().since_touch(), Duration::from_secs(2));
        }
    }

    #[test]
    fn a_handshake_counts_only_if_it_is_known_to_have_resumed_the_session() {
        for resumes in [false, true] {
            let (upkeep, clock) = begun();
            clock.fetch_add(5, Ordering::SeqCst);
            upkeep.answered(upkeep.lease().now());
            upkeep.connected(false);
            upkeep.connected(true);
            if resumes {
                upkeep.resumed();
            }
            let before = upkeep.lease().remaining();
            upkeep.acknowledged(upkeep.lease().now());
            assert_eq!(upkeep.lease().remaining() > before, resumes);
        }
    }

    #[test]
    fn each_connection_that_is_lost_counts_once() {
        let (upkeep, _clock) = begun();
        for (is_connected, losses) in [(true, 0), (false, 1), (false, 1), (true, 1), (true, 1), (false, 2)] {
            upkeep.connected(is_connected);
            assert_eq!(upkeep.connection(), losses);
        }
    }

    #[test]
    fn a_signal_that_was_refused_once_is_not_tried_again() {
        let (upkeep, _clock) = begun();
        assert!(!upkeep.is_signal_refused());
        upkeep.signal_refused();
        assert!(upkeep.is_signal_refused());
    }
}
