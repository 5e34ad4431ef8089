//! What a backend keeps for one session: its lease, the own nodes on it, and what is known of their queues; sends
//! nothing.

use std::fmt;
use std::sync::Arc;

use crate::session::books::Books;
use crate::session::holds::Holds;
use crate::session::lease::{Lease, Moment};
use crate::session::listings::Listings;
use crate::session::node::{Listener, OwnNode};
use crate::session::nodes::OwnNodes;
use crate::session::request::Ending;
use crate::sync::atomic::{AtomicBool, Ordering};

/// What the library keeps for one session. Its backend makes it, hands it out, and reports to it what happens.
///
/// # Implementing a backend
/// Call [`began`](Upkeep::began) once, [`answered`](Upkeep::answered) or [`acknowledged`](Upkeep::acknowledged) after each
/// answer, [`connected`](Upkeep::connected) and [`resumed`](Upkeep::resumed) as the connection changes, and
/// [`end`](Upkeep::end) when the session is over. None of these calls blocks or waits.
pub struct Upkeep {
    lease: Arc<Lease>,
    nodes: OwnNodes,
    books: Books,
    listings: Listings,
    holds: Holds,
    is_signal_refused: AtomicBool,
}

impl Upkeep {
    /// The upkeep of a session that lives as long as this lease says.
    pub fn new(lease: Lease) -> Upkeep {
        Upkeep {
            lease: Arc::new(lease),
            nodes: OwnNodes::default(),
            books: Books::default(),
            listings: Listings::default(),
            holds: Holds::default(),
            is_signal_refused: AtomicBool::new(false),
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
            self.books.disconnected();
        }
        if is_news {
            self.nodes.link_changed(&self.lease, connected);
        }
        self.nodes.tell_all();
    }

    /// The session is over; the first reason stays.
    pub fn end(&self, why: Ending) {
        self.lease.end(why);
        self.nodes.session_is_over(&self.lease);
    }

    pub(crate) fn nodes(&self) -> &OwnNodes {
        &self.nodes
    }

    pub(crate) fn books(&self) -> &Books {
        &self.books
    }

    pub(crate) fn listings(&self) -> &Listings {
        &self.listings
    }

    pub(crate) fn holds(&self) -> &Holds {
        &self.holds
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
            self.nodes.look_at_all(&self.lease);
            self.nodes.tell_all();
        }
    }
}

impl Listener for Upkeep {
    fn lease(&self) -> &Lease {
        &self.lease
    }

    fn lost(&self, node: &OwnNode) {
        self.books.lost(node);
    }

    fn watch_again(&self, node: &Arc<OwnNode>) {
        self.nodes.watch(node);
    }
}

impl fmt::Debug for Upkeep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Upkeep").field("lease", &self.lease).finish_non_exhaustive()
    }
}
