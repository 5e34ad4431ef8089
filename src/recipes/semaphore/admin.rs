//! What operators do with a semaphore: they read who holds and who waits, remove one of them, and change the number of
//! permits.

use std::sync::Arc;

use crate::call::{self, Call};
use crate::contend::directory;
use crate::error::error::Error;
use crate::error::permits::PermitsError;
use crate::queue::member::{Member, Queue};
use crate::queue::permits::{self, PERMITS};
use crate::recipes::semaphore::semaphore::Semaphore;
use crate::recipes::semaphore::state::SemaphoreState;
use crate::session::contract::Session;
use crate::session::presence;
use crate::session::request::Failure;
use crate::session::retry::{self, Tries};

impl Semaphore {
    /// Reads who holds permits, and who waits for some: the holders in the order in which they took theirs, then the waiters
    /// in the order of arrival.
    ///
    /// Costs two listings, one read for the number, and one request for each 256 members. The snapshot may be as old as the
    /// server's view. [How long it takes](Call#how-long-it-takes) is bounded by the session timeout, and with
    /// [`timeout`](Call::timeout).
    ///
    /// # Cancel safety
    /// Only reads.
    ///
    /// # Errors
    /// [`Error::Permits`] if something else is there. [`Error::Unreachable`] if no server answers in time, or session
    /// after session ends. Otherwise see [`Error`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use zk_rwlock::{Error, Memory, Semaphore};
    /// # tokio_test::block_on(async {
    /// # let zk = Memory::new();
    /// let geocoder = Semaphore::builder(&zk, "/limits/geocoder").permits(10).lock(|lock| lock.host("web-1")).build()?;
    /// let three = geocoder.acquire_many(3).label("nightly import").await?;
    /// let queue = geocoder.queue().await?;
    /// assert_eq!((queue.permits, queue.free()), (Some(10), Some(7)));
    /// let text = queue.to_string();
    /// assert!(text.starts_with("/limits/geocoder: 7 of 10 permits free\n  3 PERMITS web-1 pid "), "{text}");
    /// assert_eq!(queue.holders().next().unwrap().token, Some(three.fencing_token()));
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub fn queue(&self) -> Call<Queue> {
        let state = Arc::clone(&self.state);
        Call::in_time(&self.state.handle.coordinator, async move { queue(&state, false).await })
    }

    /// Removes the holder or waiter that has this [token](crate::Member::token), and returns it. `None` if nobody has it, and
    /// then nothing is changed.
    ///
    /// As [`RwLock::evict`](crate::RwLock::evict). A holder is told at once, but perhaps only after its permits were given to
    /// another.
    ///
    /// # Cancel safety
    /// After the future is dropped the member may have been removed, or not.
    ///
    /// # Errors
    /// [`Error::PermissionDenied`] if this client may not remove the node. After [`Error::Unreachable`] and
    /// [`Error::Timeout`] the member may have been removed, or not. Otherwise see [`Error`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use zk_rwlock::{Error, Memory, Semaphore};
    /// # tokio_test::block_on(async {
    /// # let geocoder = Semaphore::new(&Memory::new(), "/limits/geocoder", 1)?;
    /// let hangs = geocoder.acquire().label("hangs").await?;
    /// assert_eq!(geocoder.evict(hangs.fencing_token()).await?.expect("still there").label.as_deref(), Some("hangs"));
    /// assert!(!hangs.is_held());
    /// assert!(geocoder.evict(hangs.fencing_token()).await?.is_none());
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub fn evict(&self, token: i64) -> Call<Option<Member>> {
        let state = Arc::clone(&self.state);
        Call::in_time(&self.state.handle.coordinator, async move {
            // A server that lags might not show a member that other clients see already.
            state.handle.evict(queue(&state, true).await?, token).await
        })
    }

    /// Reads how many permits the semaphore has; `None` if nobody has said so yet.
    ///
    /// # Cancel safety
    /// Only reads.
    ///
    /// # Errors
    /// [`Error::Permits`] if something else is there. Otherwise see [`Error`].
    pub fn permits(&self) -> Call<Option<u32>> {
        let state = Arc::clone(&self.state);
        let work = async move { number(&state, "read the permits of", false).await };
        Call::in_time(&self.state.handle.coordinator, work)
    }

    /// Changes the number of permits, for all. Makes the semaphore's node if it is missing.
    ///
    /// Nobody who holds is thrown out: if fewer permits are left than are taken, none is granted until enough are given
    /// back. Acquisitions that wait go by the new number. One that wants more than there are fails with
    /// [`Error::Permits`], once it is the first in the queue. From now on programs must open the semaphore with the
    /// new number, but handles that were used before go on.
    ///
    /// # Cancel safety
    /// After the future is dropped the number may have been changed, or not.
    ///
    /// # Errors
    /// [`Error::InvalidInput`] for zero. [`Error::Permits`] if the node has data that are no number of permits, and
    /// no permit was ever taken there.
    /// [`Error::PermissionDenied`] if this client may not write the semaphore's node. After [`Error::Unreachable`],
    /// [`Error::Timeout`] and [`Error::OutcomeUnknown`] the number may have been changed, or not. Otherwise see [`Error`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use zk_rwlock::error::PermitsError;
    /// # use zk_rwlock::{Error, Memory, Semaphore};
    /// # tokio_test::block_on(async {
    /// # let zk = Memory::new();
    /// let geocoder = Semaphore::new(&zk, "/limits/geocoder", 1)?;
    /// let one = geocoder.acquire().await?;
    /// geocoder.set_permits(2).await?;
    /// let two = geocoder.acquire().await?;
    ///
    /// let stale = Semaphore::new(&zk, "/limits/geocoder", 1)?;
    /// assert!(matches!(stale.acquire().await, Err(Error::Permits { reason: PermitsError::Other { ours: 1, theirs: 2 }, .. })));
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub fn set_permits(&self, permits: u32) -> Call<()> {
        let state = Arc::clone(&self.state);
        Call::in_time(&self.state.handle.coordinator, async move { set(&state, permits).await })
    }
}

/// The queue. If `is_synced`, it is no older than this call.
async fn queue(state: &SemaphoreState, is_synced: bool) -> Result<Queue, Error> {
    let number = number(state, "read the queue of", is_synced).await?.or(state.limit.known());
    let (queue, taken) = state.handle.queue(is_synced, number).await?;
    if let Err(name) = permits::taken(&taken) {
        return Err(state.doubtful(format!("{name:?} is no permit")));
    }
    number.map(|_| queue).ok_or_else(|| state.doubt(PermitsError::Unset))
}

async fn number(state: &SemaphoreState, operation: &'static str, is_synced: bool) -> Result<Option<u32>, Error> {
    let path = state.handle.shown();
    let node = call::on_a_session(&state.handle.coordinator, (operation, path), |session| async move {
        call::answered(&session, || retry::data(&session, path, is_synced)).await
    });
    node.await?.map_or(Ok(None), |(data, _)| state.number(&data))
}

async fn set(state: &SemaphoreState, permits: u32) -> Result<(), Error> {
    if permits == 0 {
        return Err(Error::invalid("a semaphore of no permits; it has at least one"));
    }
    let path = state.handle.shown();
    let set = call::on_a_session(&state.handle.coordinator, ("set the permits of", path), |session| async move {
        call::answered(&session, || try_to_set(state, &session, permits)).await
    });
    set.await??;
    state.limit.is_set(permits);
    Ok(())
}

async fn try_to_set(
    state: &SemaphoreState,
    session: &Arc<dyn Session>,
    permits: u32,
) -> Result<Result<(), Error>, Failure> {
    let (path, mut is_made) = (state.handle.shown(), false);
    loop {
        let Some((data, stat)) = retry::data(session, path, true).await? else {
            // The leader has what the server denies.
            if is_made {
                presence::leader_still_has(session, path, &mut Tries::NONE.clone()).await?;
            }
            is_made = true;
            directory::make(session, path, true, |_| {}).await?;
            continue;
        };
        // Who has never been a semaphore may have data that somebody needs.
        if let Err(error) = state.number(&data)
            && retry::data(session, &format!("{path}/{PERMITS}"), false).await?.is_none()
        {
            return Ok(Err(error));
        }
        if permits::decode(&data).is_ok_and(|number| number.is_none())
            && let Some(error) = state.finds_lock(session, None).await?
        {
            return Ok(Err(error));
        }
        let twin = state.twin(session).await?;
        match state.write(session, permits, stat.version, twin).await {
            Ok(()) => return Ok(Ok(())),
            Err(Failure::BadVersion | Failure::NoNode) => {}
            Err(failure) => return Err(failure),
        }
    }
}
