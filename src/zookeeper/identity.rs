//! Whether the server has shown that it takes us for the session that owns our nodes; sends nothing itself.
//!
//! Some servers answer a reconnect with another session, and the client crate does not say so.

use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What the server has shown of one session since its last reconnect.
pub(super) struct Identity {
    session: i64,
    /// Asks the server, in the background, which session it takes us for. Then calls [`Identity::was_asked`].
    confirm: Box<dyn Fn() + Send + Sync>,
    /// Counts the connections of this session.
    connection: AtomicU64,
    /// The newest connection on which the server has shown the session's identity.
    shown_on: AtomicU64,
    is_asked: AtomicBool,
}

impl Identity {
    pub(super) fn new(session: i64, confirm: impl Fn() + Send + Sync + 'static) -> Identity {
        let (connection, shown_on) = (AtomicU64::new(0), AtomicU64::new(0));
        Identity { session, confirm: Box::new(confirm), connection, shown_on, is_asked: AtomicBool::new(false) }
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
        if !self.is_known() && !self.is_asked.swap(true, Ordering::AcqRel) {
            (self.confirm)();
        }
    }

    /// The check has ended, whatever the answer was.
    pub(super) fn was_asked(&self) {
        self.is_asked.store(false, Ordering::Release);
    }

    /// Whether the server took us for this session when a node with this owner was made, by a request that was sent on this
    /// connection. Otherwise the server has replaced the session.
    pub(super) fn made(&self, ephemeral_owner: i64, connection: u64) -> bool {
        if ephemeral_owner == self.session {
            self.is_shown_on(connection);
        }
        ephemeral_owner == 0 || ephemeral_owner == self.session
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests;
