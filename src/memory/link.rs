//! A session's connection to an embedded ensemble, and the tasks that wait for it to change.

use std::pin::pin;

use crate::session::request::Ending;
use crate::sync::{Mutex, Notify};

/// A session's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkState {
    Up,
    Down,
    Over(Ending),
}

/// It changes at once, and tells so later, in the order in which the tasks began to wait.
pub(super) struct Link {
    state: Mutex<LinkState>,
    changed: Notify,
}

impl Link {
    pub(super) fn up() -> Link {
        Link { state: Mutex::new(LinkState::Up), changed: Notify::new() }
    }

    pub(super) fn state(&self) -> LinkState {
        *self.state.lock()
    }

    /// Changes from now on, unless it is over.
    pub(super) fn change(&self, to: LinkState) {
        let mut state = self.state.lock();
        if !matches!(*state, LinkState::Over(_)) {
            *state = to;
        }
    }

    pub(super) fn tell(&self) {
        self.changed.notify_waiters();
    }

    /// Waits until it is such as `is_awaited` has an answer to.
    pub(super) async fn until<T>(&self, is_awaited: impl Fn(LinkState) -> Option<T>) -> T {
        loop {
            // Registered before looking, so that a change in between is not missed.
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            if let Some(answer) = is_awaited(self.state()) {
                return answer;
            }
            changed.await;
        }
    }
}
