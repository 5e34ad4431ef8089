//! Streams of changes, such as the states of a hold.

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
use crate::session::node::Node;
use crate::session::request::HoldState;
use crate::sync::{Mutex, OnceLock, watch};
use crate::telemetry::debug::debug;

/// The node of a hold, and the session of the node. A task or stream that observes the hold owns this pair. The lock
/// can be released or lost while such a pair exists.
pub(crate) type ObservedHold = (Arc<Node>, Arc<dyn Session>);

/// A stream of changes in their order: the [`HoldState`] of a guard, [who leads](crate::leadership::LeaderChanges), or
/// [a value](crate::shared::ValueChanges).
///
/// Made by [`Hold::changes`](crate::Hold::changes), [`MultiGuard::changes`](crate::MultiGuard::changes),
/// [`Leadership::changes`](crate::Leadership::changes) and [`Shared::changes`](crate::Shared::changes).
///
/// The states of a guard end with [`HoldState::Lost`], or when the guard is released or dropped.
///
/// This type is also a [`Stream`], for the combinators of `futures` and `tokio-stream`. The items of the stream are
/// those that [`next`](Self::next) returns.
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
    /// The mutex only makes this type `Sync`. It is never locked, because `poll_next` has `&mut self`.
    items: Mutex<Pin<Box<dyn Stream<Item = T> + Send>>>,
}

impl<T> Changes<T> {
    pub(crate) fn new(items: impl Stream<Item = T> + Send + 'static) -> Changes<T> {
        Changes { items: Mutex::new(Box::pin(items.fuse())) }
    }

    /// Waits for the next change. The first call returns the present state. It does so immediately for the state of a
    /// guard. For a leader or a value, it waits until the first one is known. `None` means that no change can follow.
    ///
    /// If several changes happen between two calls, only the newest is sure to be returned.
    ///
    /// # Cancel safety
    /// If the future is dropped, no change is lost. The next call returns the change.
    pub async fn next(&mut self) -> Option<T> {
        StreamExt::next(self).await
    }
}

impl<T> Stream for Changes<T> {
    type Item = T;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        self.items.get_mut().as_mut().poll_next(context)
    }
}

debug!(Changes<T> as "Changes" for [T], |_it|);

/// A part of a guard. When the guard is dropped, this part ends the streams of the guard's states. The streams cannot
/// end with the lock's node instead, because several guards may share a node, and a node may be kept for the next
/// guard.
#[derive(Debug, Default)]
pub(crate) struct DropSignal(OnceLock<watch::Sender<()>>);

impl DropSignal {
    /// Returns a stream of the combined states of the guard's holds. `holds` must not be empty.
    pub(crate) fn stream_states_of(&self, holds: impl IntoIterator<Item = ObservedHold>) -> Changes {
        let holds: Arc<[ObservedHold]> = holds.into_iter().collect();
        let states = unfold(None, move |last| {
            let next = next_combined_state(Arc::clone(&holds), last);
            next.map(|next| next.map(|state| (state, Some(state))))
        });
        let mut life = self.0.get_or_init(|| watch::Sender::new(())).subscribe();
        // Nothing is ever sent on this channel. When the guard is dropped, the sender is dropped, too. Then `changed`
        // returns, which ends the stream.
        Changes::new(states.take_until(Box::pin(async move { drop(life.changed().await) })))
    }
}

/// Waits until the combined state of the holds has another variant than `last`, and returns that state. Returns `None`
/// if a hold was released. Also returns `None` if `last` is a loss, because no state can follow a loss.
async fn next_combined_state(holds: Arc<[ObservedHold]>, last: Option<HoldState>) -> Option<HoldState> {
    if matches!(last, Some(HoldState::Lost { .. })) {
        return None;
    }
    let changed = || {
        // A hold that was released has no state.
        let states = holds.iter().map(|(node, _)| (!node.is_left()).then(|| node.hold_state()));
        let states = states.collect::<Option<Vec<HoldState>>>();
        let state = states.and_then(|states| worst_state(states.into_iter()));
        let is_as_before = state.map(|now| discriminant(&now)) == last.map(|last| discriminant(&last));
        (state.is_none() || !is_as_before).then_some(state)
    };
    let changes = holds.iter().map(|(node, session)| Box::pin(node.until(|pause| session.sleep(pause), changed)));
    select_all(changes).await.0
}

/// Combines the states of several holds. If a hold is lost, returns the first loss in the list. Otherwise, if a hold is
/// suspect, returns the suspect state with the earliest `until`. Otherwise returns `Held`. For an empty list, returns
/// `None`.
pub(crate) fn worst_state(states: impl Iterator<Item = HoldState>) -> Option<HoldState> {
    let rank = |state: &HoldState| match state {
        HoldState::Lost { .. } => (0, None::<Instant>),
        HoldState::Suspect { until } => (1, Some(*until)),
        HoldState::Held => (2, None),
    };
    states.min_by_key(rank)
}
