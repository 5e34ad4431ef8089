//! Whether the server has shown that it takes us for the session that owns our nodes; sends nothing itself.
//!
//! Some servers answer a reconnect with another session, and the client crate does not say so.

use std::sync::{Arc, Weak};

use crate::session::request::{Created, Ending, Failure};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The session whose identity is in question.
pub(super) trait Claimant: Send + Sync {
    /// Asks the server, in the background, which session it takes us for. Then calls [`Identity::was_asked`].
    fn confirm(&self);

    /// The server takes us for another session, so this session serves no more.
    fn replaced(&self);
}

/// What the server has shown of one session since its last reconnect.
pub(super) struct Identity {
    session: i64,
    claimant: Weak<dyn Claimant>,
    /// Counts the connections of this session.
    connection: AtomicU64,
    /// The newest connection on which the server has shown the session's identity.
    shown_on: AtomicU64,
    is_asked: AtomicBool,
}

impl Identity {
    pub(super) fn new(session: i64, claimant: Weak<dyn Claimant>) -> Identity {
        let (connection, shown_on) = (AtomicU64::new(0), AtomicU64::new(0));
        Identity { session, claimant, connection, shown_on, is_asked: AtomicBool::new(false) }
    }

    /// The number of the connection that the session has now.
    pub(super) fn connection(&self) -> u64 {
        self.connection.load(Ordering::Acquire)
    }

    /// The session has lost its connection, or has a new one. Nothing is shown on that connection yet.
    pub(super) fn connection_changes(&self) {
        self.connection.fetch_add(1, Ordering::AcqRel);
    }

    pub(super) fn is_shown_on(&self, connection: u64) {
        self.shown_on.fetch_max(connection, Ordering::AcqRel);
    }

    pub(super) fn is_known(&self) -> bool {
        self.shown_on.load(Ordering::Acquire) == self.connection()
    }

    /// Starts a check, in the background, that the server takes us for the session that owns our nodes.
    pub(super) fn ask(&self) {
        if !self.is_known()
            && let Some(claimant) = self.claimant.upgrade()
            && !self.is_asked.swap(true, Ordering::AcqRel)
        {
            claimant.confirm();
        }
    }

    /// The check has ended, whatever the answer was.
    pub(super) fn was_asked(&self) {
        self.is_asked.store(false, Ordering::Release);
    }

    /// The owner of a node that the session creates now.
    pub(super) fn owner(self: &Arc<Self>) -> NodeOwner {
        NodeOwner { connection: self.connection(), identity: Arc::clone(self) }
    }
}

/// The owner that a node of this session must have.
pub(super) struct NodeOwner {
    identity: Arc<Identity>,
    /// The connection on which the create was sent.
    connection: u64,
}

impl NodeOwner {
    /// Checks a node that was created. If it belongs to another session, the server has replaced this one.
    pub(super) fn created(&self, created: Created) -> Result<Created, Failure> {
        let ephemeral_owner = created.ephemeral_owner;
        if ephemeral_owner != 0 && ephemeral_owner != self.identity.session {
            if let Some(claimant) = self.identity.claimant.upgrade() {
                claimant.replaced();
            }
            return Err(Failure::Over(Ending::Replaced));
        }
        if ephemeral_owner == self.identity.session {
            self.identity.is_shown_on(self.connection);
        }
        Ok(created)
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests;
