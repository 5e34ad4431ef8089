//! What changes, as a stream, and the states of a hold, or of several holds as one, in the order in which they come.

use std::fmt;
use std::mem::discriminant;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use futures_core::Stream;
use futures_util::future::select_all;
use futures_util::stream::unfold;
use futures_util::{FutureExt, StreamExt};

use crate::session::contract::Session;
use crate::session::node::OwnNode;
use crate::session::request::HoldState;
use crate::session::shield::Shield;
use crate::sync::{Mutex, OnceLock, watch};

/// What changes, in the order in which it does: the [`HoldState`] of a guard, [who leads](crate::LeaderChanges), or
/// [a value](crate::ValueChanges). Made by [`Hold::changes`](crate::Hold::changes),
/// [`MultiGuard::changes`](crate::MultiGuard::changes), [`Leadership::changes`](crate::Leadership::changes) and
/// [`Shared::changes`](crate::Shared::changes).
///
/// The states of a guard end with [`HoldState::Lost`], and once the guard is released.
///
/// It is also a [`Stream`] of what [`next`](Self::next) gives, for the combinators of `futures` and `tokio-stream`.
///
/// # Examples
///
/// ```
/// # use zk_rwlock::{Error, HoldState, Loss, Memory, RwLock};
/// # tokio_test::block_on(async {
/// use futures_util::StreamExt;
///
/// # let zk = Memory::new();
/// let guard = RwLock::new(&zk, "/locks/config")?.write().await?;
/// let mut changes = guard.changes();
/// assert_eq!(changes.next().await, Some(HoldState::Held));
/// zk.faults().remove("/locks/config"); // an operator breaks the lock
/// let rest: Vec<HoldState> = changes.collect().await;
/// assert_eq!(rest, [HoldState::Lost { why: Loss::Removed }]);
/// # Ok::<(), Error>(()) }).unwrap();
/// ```
pub struct Changes<T = HoldState> {
    /// The mutex is never contended: it makes this `Sync`.
    items: Mutex<Pin<Box<dyn Stream<Item = T> + Send>>>,
    shield: Shield,
}

impl<T> Changes<T> {
    pub(crate) fn of(items: impl Stream<Item = T> + Send + 'static) -> Changes<T> {
        Changes { items: Mutex::new(Box::pin(items.fuse())), shield: Shield::default() }
    }

    /// Waits for the next change. The first call gives what there is now: the state of a guard at once. `None` says that
    /// nothing more will come.
    ///
    /// What came and went between two calls is passed over, but never the newest.
    ///
    /// # Cancel safety
    /// No change is lost by dropping the future.
    pub async fn next(&mut self) -> Option<T> {
        StreamExt::next(self).await
    }
}

impl<T> Stream for Changes<T> {
    type Item = T;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        let Changes { items, shield } = &mut *self;
        shield.poll(context, |context| items.get_mut().as_mut().poll_next(context))
    }
}

impl<T> fmt::Debug for Changes<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Changes")
    }
}

/// A held node, and its session.
pub(crate) type OneHold = (Arc<OwnNode>, Arc<dyn Session>);

/// The common states of these holds, for as long as their guard is there.
pub(crate) fn states_of(holds: impl IntoIterator<Item = OneHold>, ended: GuardEnded) -> Changes {
    let holds: Arc<[OneHold]> = holds.into_iter().collect();
    let states = unfold(None, move |last| {
        let next = next_state(Arc::clone(&holds), last);
        next.map(|next| next.map(|state| (state, Some(state))))
    });
    Changes::of(states.take_until(ended))
}

/// Tells the streams of a guard's states that the guard is gone. A node may stay when it goes: it is kept, or shared.
#[derive(Debug, Default)]
pub(crate) struct GuardLife(OnceLock<watch::Sender<()>>);

/// The end of a guard.
pub(crate) type GuardEnded = Pin<Box<dyn Future<Output = ()> + Send>>;

impl GuardLife {
    pub(crate) fn ended(&self) -> GuardEnded {
        let mut life = self.0.get_or_init(|| watch::Sender::new(())).subscribe();
        // Nothing is ever sent.
        Box::pin(async move { drop(life.changed().await) })
    }
}

/// Waits until the common state of all the holds is of another kind than the last one. `None` once a hold is released, and
/// after a loss.
async fn next_state(holds: Arc<[OneHold]>, last: Option<HoldState>) -> Option<HoldState> {
    if matches!(last, Some(HoldState::Lost { .. })) {
        return None;
    }
    loop {
        let states = holds.iter().map(state_of).collect::<Option<Vec<HoldState>>>()?;
        let state = worst_of(states.iter().copied())?;
        if last.is_none_or(|last| discriminant(&last) != discriminant(&state)) {
            return Some(state);
        }
        // Each future waits for a change of its own hold's state, so that a change costs one look at each hold.
        let changed = holds.iter().zip(&states).map(|(hold, before)| {
            let look = || {
                let is_as_before = state_of(hold).is_some_and(|now| discriminant(&now) == discriminant(before));
                (!is_as_before).then_some(())
            };
            Box::pin(hold.0.until(&hold.1, look))
        });
        select_all(changed).await;
    }
}

/// The state of one hold, `None` if it was released.
fn state_of((own_node, _): &OneHold) -> Option<HoldState> {
    (!own_node.has_left()).then(|| own_node.hold_state())
}

/// The common state of several holds, `None` if there are none. It is lost if one hold is lost, with the first loss in
/// the list. Otherwise it is in doubt if one hold is in doubt, until the earliest would be lost.
pub(crate) fn worst_of(states: impl Iterator<Item = HoldState>) -> Option<HoldState> {
    let rank = |state: &HoldState| match state {
        HoldState::Lost { .. } => (0, None::<Instant>),
        HoldState::Suspect { until } => (1, Some(*until)),
        HoldState::Held => (2, None),
    };
    states.min_by_key(rank)
}
