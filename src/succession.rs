//! What one lock of this process remembers of its last grant; knows no I/O.
//!
//! Whoever uses a lock alone is always the next after itself. Its numbers show that, and it need not look at the queue.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::place::Standing;
use crate::tenure::Tenure;
use crate::turn::{self, Predecessor};

/// The last grant that did not rest on a hand-off, which a stranger may have forged.
#[derive(Debug, Default)]
pub(crate) struct Succession(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    last: Option<Last>,
    /// The newest contender was the next after the last one, so that the one after it may well be, too.
    was_next: bool,
}

#[derive(Debug)]
struct Last {
    contender: Predecessor,
    tenure: Arc<Tenure>,
}

impl Succession {
    /// Whether a look at the queue, which costs a request, will likely be needed.
    pub(crate) fn expects_others(&self) -> bool {
        !self.state().was_next
    }

    /// Whether it is certain, without a look, that nothing before `me` excludes it.
    pub(crate) fn proves(&self, me: &Standing) -> bool {
        let mut state = self.state();
        // Servers that lost everything they knew count from the start again, but no session outlives that.
        let last = state.last.as_ref().filter(|last| last.tenure.shares_session_with(&me.tenure));
        let last = last.map(|last| Predecessor { is_gone: last.tenure.is_gone(), ..last.contender });
        let next = last.filter(|last| turn::is_next(me.contender.place(), me.czxid, *last));
        state.was_next = next.is_some();
        next.is_some_and(|last| turn::is_next_alone(me.contender.place(), last))
    }

    /// `me` was granted, by a look at the queue or by this proof.
    pub(crate) fn granted(&self, me: &Standing) {
        let mut state = self.state();
        if state.last.as_ref().is_none_or(|last| last.contender.czxid < me.czxid) {
            let contender = Predecessor { place: me.contender.place(), czxid: me.czxid, is_gone: false };
            state.last = Some(Last { contender, tenure: Arc::clone(&me.tenure) });
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
