//! Streams of changes, such as the states of a hold, and a holder's wait until another contender wants its lock.

use std::fmt;
use std::mem::discriminant;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures_core::Stream;
use futures_util::future::select_all;
use futures_util::stream::unfold;
use futures_util::{FutureExt, StreamExt};

use crate::contend::handle::{ContenderHandle, OneHold};
use crate::error::error::Error;
use crate::queue::contender::Contender;
use crate::queue::permits::{self, PERMITS, Room};
use crate::queue::{metadata, turn};
use crate::session::follow;
use crate::session::lease::Moment;
use crate::session::presence::Recheck;
use crate::session::request::{Failure, HoldState};
use crate::session::retry::{self};
use crate::sync::{Mutex, OnceLock, watch};

/// A stream of changes in their order: the [`HoldState`] of a guard, [who leads](crate::leadership::LeaderChanges), or
/// [a value](crate::shared::ValueChanges).
///
/// Made by [`Hold::changes`](crate::Hold::changes), [`MultiGuard::changes`](crate::MultiGuard::changes),
/// [`Leadership::changes`](crate::Leadership::changes) and [`Shared::changes`](crate::Shared::changes).
///
/// The states of a guard end with [`HoldState::Lost`], or when the guard is released.
///
/// This is also a [`Stream`] of the items of [`next`](Self::next), for the combinators of `futures` and `tokio-stream`.
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
    /// The mutex makes this type `Sync`. No code ever waits for the mutex.
    items: Mutex<Pin<Box<dyn Stream<Item = T> + Send>>>,
}

impl<T> Changes<T> {
    pub(crate) fn of(items: impl Stream<Item = T> + Send + 'static) -> Changes<T> {
        Changes { items: Mutex::new(Box::pin(items.fuse())) }
    }

    /// Waits for the next change. The first call returns the present state immediately. `None` means that no change can
    /// follow.
    ///
    /// Changes between two calls may be skipped, but never the newest.
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
        self.items.get_mut().as_mut().poll_next(context)
    }
}

impl<T> fmt::Debug for Changes<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Changes")
    }
}

/// A part of a guard. Dropping this part ends the streams of the guard's states. The end of the node cannot end the streams,
/// because the node outlives the guard if the node is kept or shared.
#[derive(Debug, Default)]
pub(crate) struct GuardLife(OnceLock<watch::Sender<()>>);

impl GuardLife {
    /// Returns a stream of the combined states of the guard's holds, of which there is at least one.
    pub(crate) fn states_of(&self, holds: impl IntoIterator<Item = OneHold>) -> Changes {
        let holds: Arc<[OneHold]> = holds.into_iter().collect();
        let states = unfold(None, move |last| {
            let next = next_state(Arc::clone(&holds), last);
            next.map(|next| next.map(|state| (state, Some(state))))
        });
        let mut life = self.0.get_or_init(|| watch::Sender::new(())).subscribe();
        // Nothing is sent on this channel. `changed` returns an error when the guard, and with it the sender, is
        // dropped. The error is ignored, because only the end matters.
        Changes::of(states.take_until(Box::pin(async move { drop(life.changed().await) })))
    }
}

/// Waits until the combined state of the holds is of another kind than `last`. `None` after a loss or a release.
async fn next_state(holds: Arc<[OneHold]>, last: Option<HoldState>) -> Option<HoldState> {
    if matches!(last, Some(HoldState::Lost { .. })) {
        return None;
    }
    let changed = || {
        // A hold that was released has no state.
        let states = holds.iter().map(|(node, _)| (!node.has_left()).then(|| node.hold_state()));
        let states = states.collect::<Option<Vec<HoldState>>>();
        let state = states.and_then(|states| worst_of(states.into_iter()));
        let is_as_before = state.map(|now| discriminant(&now)) == last.map(|last| discriminant(&last));
        (state.is_none() || !is_as_before).then_some(state)
    };
    let changes = holds.iter().map(|(node, session)| Box::pin(node.until(session, changed)));
    select_all(changes).await.0
}

/// Combines the states of several holds. Returns the first loss in the list. If there is none, returns the suspect state that
/// ends first. `None` for an empty list.
pub(crate) fn worst_of(states: impl Iterator<Item = HoldState>) -> Option<HoldState> {
    let rank = |state: &HoldState| match state {
        HoldState::Lost { .. } => (0, None::<Instant>),
        HoldState::Suspect { until } => (1, Some(*until)),
        HoldState::Held => (2, None),
    };
    states.min_by_key(rank)
}

/// The shortest time between two listings while a holder waits for contention: at most 50 listings a second.
const LISTING_PAUSE: Duration = Duration::from_millis(20);

impl ContenderHandle {
    /// Waits until this hold excludes a contender in the queue. Returns the first such contender.
    pub(crate) async fn contended(&self) -> Result<Contender, Error> {
        self.run(self.wait_until_contended()).await?
    }

    async fn wait_until_contended(&self) -> Result<Contender, Error> {
        let (mut before, mut pause) = (None, LISTING_PAUSE);
        loop {
            let first = self.first_kept_out().await?;
            if !self.is_of_semaphore() || self.finds_too_few(&first).await? {
                return Ok(first);
            }
            // Enough permits are free, so this contender is about to take its permits, unless its process is stopped. The loop
            // lists again after a pause, which doubles while the same contender is the first.
            let session = self.session();
            let first = Some(first.name().to_owned());
            pause = if before == first { (2 * pause).min(session.timeout()) } else { LISTING_PAUSE };
            before = first;
            session.sleep(pause).await;
        }
    }

    /// Returns whether this is a permit of a semaphore. The queue of a semaphore is a directory below the user's path.
    fn is_of_semaphore(&self) -> bool {
        self.user_path() != &**self.queue()
    }

    async fn first_kept_out(&self) -> Result<Contender, Error> {
        let (session, directory) = (self.session(), self.queue());
        let (mut last_change, mut recheck) = (None::<Moment>, Recheck::new(session));
        loop {
            let (names, mut change) = match retry::until_known(session, || session.watch_children(directory)).await {
                Ok(seen) => seen,
                // The servers delete the directory of a semaphore's queue when the directory has been empty for a while. The next
                // contender creates the directory again.
                Err(Failure::NoNode) if self.is_of_semaphore() => match follow::possible(session, directory).await {
                    Ok(()) => continue,
                    Err(_) => return std::future::pending().await,
                },
                Err(failure) => return Err(self.lost_by(failure, "watch")),
            };
            let first = match self.is_of_semaphore() {
                true => turn::first_in_queue(&self.contender(), &names),
                false => turn::first_kept_out(&self.contender(), &names),
            };
            if let Some(first) = first {
                return Ok(first);
            }
            // Dropped early, because a long listing would take memory during the wait for the watch.
            drop(names);
            // `wait` returns after the event of the watch. It also returns after a while without an event, because an
            // event may be lost. An error means that the session is over. The caller then reports the loss of the hold.
            if recheck.wait(&mut change).await.is_err() {
                return std::future::pending().await;
            }
            // Thousands of readers may come and go, and each of them ends a wait. The pause limits the listings to 50 a second.
            let since = last_change.map(|last| self.now().saturating_sub(last));
            if let Some(rest) = since.and_then(|since| LISTING_PAUSE.checked_sub(since)) {
                session.sleep(rest).await;
            }
            last_change = Some(self.now());
        }
    }

    /// Returns whether the first contender in the queue asks for more permits than are free.
    async fn finds_too_few(&self, first: &Contender) -> Result<bool, Error> {
        let (session, queue) = (self.session(), self.queue());
        let Some((semaphore, _)) = queue.rsplit_once('/') else { return Ok(true) };
        let (node, taken) = (format!("{queue}/{}", first.name()), format!("{semaphore}/{PERMITS}"));
        let read = || async {
            // All requests are sent before the first reply is awaited, so that together they take one round trip.
            let (node, number, names) = (session.data(&node), session.data(semaphore), session.children(&taken));
            let wanted = match node.await {
                Err(failure @ (Failure::Unknown(_) | Failure::Over(_))) => return Err(failure),
                answer => answer.map(|(data, _)| metadata::read(&data).permits),
            };
            Ok((wanted, number.await?.0, names.await?))
        };
        let (wanted, number, names) =
            retry::until_known(session, read).await.map_err(|failure| self.lost_by(failure, "read"))?;
        let wanted = match wanted {
            // The contender's node is gone, because the contender took its permits or gave up.
            Err(Failure::NoNode) => return Ok(false),
            Err(_) => None,
            Ok(wanted) => wanted,
        };
        let number = permits::decode(&number).ok().flatten();
        let room = wanted.zip(number).map(|(wanted, number)| permits::room(number, &names, wanted));
        Ok(room != Some(Ok(Room::Enough)))
    }
}
