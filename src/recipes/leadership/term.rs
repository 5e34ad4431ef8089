//! One term of a leader, as its work sees it.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use crate::lock::hold::{Hold, WriteGuard};

/// One term of a leader. [`Leadership::lead`](crate::Leadership::lead) gives it to the work.
///
/// It derefs to [`Hold`], with all that holding means. It is cheap to clone, for the tasks that the work starts. A clone does
/// not make the term last: when the term ends, every clone [says so](Self::is_leader), and a transaction of it is refused.
#[derive(Clone)]
pub struct Term {
    pub(crate) guard: Arc<WriteGuard>,
}

impl Term {
    /// The number of the term: higher than that of every term before, of whichever candidate. It is the
    /// [fencing token](Hold::fencing_token) of the grant.
    ///
    /// Send it along with every write to another system, and have that system refuse a number lower than the highest it
    /// has seen. Then a leader that was stopped, or whose packets were late, does no harm.
    pub fn number(&self) -> i64 {
        self.fencing_token()
    }

    /// Whether the term still lasts. The last moment of `true` lies before another candidate leads: see
    /// [`Hold::is_held`], also for the one exception. Sends nothing.
    pub fn is_leader(&self) -> bool {
        self.is_held()
    }
}

impl Deref for Term {
    type Target = Hold;

    fn deref(&self) -> &Hold {
        &self.guard
    }
}

impl fmt::Debug for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Term").field("number", &self.number()).field("is_leader", &self.is_leader()).finish()
    }
}
