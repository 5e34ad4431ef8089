//! How a guard reports what becomes of its hold; knows nothing of modes and turns.

use std::mem::discriminant;
use std::sync::Arc;

use crate::session::contract::Session;
use crate::session::loss::HoldState;
use crate::session::node::Tenure;

/// The changes of a guard's [`HoldState`]. Made by [`ReadGuard::changes`](crate::ReadGuard::changes) and
/// [`WriteGuard::changes`](crate::WriteGuard::changes).
#[derive(Debug)]
pub struct Changes {
    tenure: Arc<Tenure>,
    session: Arc<dyn Session>,
    last: Option<HoldState>,
}

impl Changes {
    pub(crate) fn new(tenure: Arc<Tenure>, session: Arc<dyn Session>) -> Changes {
        Changes { tenure, session, last: None }
    }

    /// Waits for the next state: the first call answers at once with the present one, and after
    /// [`HoldState::Lost`] there are no more.
    ///
    /// States that came and went between two calls are passed over. Once the guard is released there are no more.
    ///
    /// # Cancel safety
    /// No state is lost by dropping the future.
    pub async fn next(&mut self) -> Option<HoldState> {
        if matches!(self.last, Some(HoldState::Lost { .. })) {
            return None;
        }
        let (tenure, lease, last) = (&self.tenure, self.session.lease(), self.last);
        let is_news = |state: &HoldState| last.is_none_or(|last| discriminant(&last) != discriminant(state));
        let look = || match tenure.has_left() {
            true => Some(None),
            false => Some(tenure.hold_state(lease)).filter(is_news).map(Some),
        };
        let next = tenure.until(&self.session, look).await;
        self.last = next.or(self.last);
        next
    }
}
