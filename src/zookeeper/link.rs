//! The state of a session's connection.

use std::time::Instant;

use crate::session::request::Ending;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SessionLink {
    Up,
    /// The connection was lost at this moment, and the session is not over.
    Down(Instant),
    /// The session is over, and lost its connection at this moment.
    Over(Ending, Instant),
}

impl SessionLink {
    /// Returns when the connection was lost. `None` while the session is connected.
    pub(super) fn lost(self) -> Option<Instant> {
        match self {
            SessionLink::Up => None,
            SessionLink::Down(since) | SessionLink::Over(_, since) => Some(since),
        }
    }

    /// Changes the state to `now`, unless the session is over. Returns whether the state has changed.
    pub(super) fn change(&mut self, now: SessionLink) -> bool {
        let is_change = *self != now && !matches!(self, SessionLink::Over(..));
        if is_change {
            *self = now;
        }
        is_change
    }
}
