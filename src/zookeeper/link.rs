//! Whether a session is connected, lost its connection, or is over.

use std::time::Instant;

use crate::session::request::Ending;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SessionLink {
    Up,
    /// Lost at this moment.
    Down(Instant),
    /// Over, and lost at this moment.
    Over(Ending, Instant),
}

impl SessionLink {
    /// When the connection was lost. `None` while it is up.
    pub(super) fn lost(self) -> Option<Instant> {
        match self {
            SessionLink::Up => None,
            SessionLink::Down(since) | SessionLink::Over(_, since) => Some(since),
        }
    }

    /// Returns whether that is news. What is over stays so.
    pub(super) fn becomes(&mut self, now: SessionLink) -> bool {
        let is_news = *self != now && !matches!(self, SessionLink::Over(..));
        if is_news {
            *self = now;
        }
        is_news
    }
}
