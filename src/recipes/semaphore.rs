//! The public face of the semaphore: the handle, its builder, the permit, and the calls of operators.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use crate::call::{self, Call, SessionWorkError};
use crate::contend::acquisition::{AcquireOptions, Acquisition};
use crate::contend::contender::Contender;
use crate::contend::permit_request::PermitRequest;
use crate::contend::semaphore::{KnownPermitNumber, PermitNumberCopy, SemaphoreState};
use crate::error::error::{Error, PermitsError};
use crate::lock::acquire::{Acquire, Granting, Guard};
use crate::lock::hold::{Hold, HoldShare};
use crate::lock::rw_lock::{RwLock, RwLockBuilder};
use crate::queue::member::{Blockers, Member, Queue};
use crate::queue::metadata;
use crate::queue::mode::Mode;
use crate::queue::permits::{self, PERMITS, QUEUE};
use crate::session::contract::{Coordinator, Session};
use crate::session::presence;
use crate::session::request::{Failure, Operation};
use crate::session::retry;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};

/// A semaphore, shared by all processes that open the same path of the same ensemble. Together they never hold more
/// permits than the semaphore has, unless the number of permits was lowered while they held them.
///
/// A handle is cheap to clone, and holds nothing by itself. Each acquisition returns a [`Permit`], for one permit or
/// for several. Dropping or [releasing](Permit::release) the [`Permit`] gives its permits back. If a process dies, its
/// permits are free once its session has expired, after about one session timeout.
///
/// # The number
/// The ensemble stores the number of permits in the data of the semaphore's node: `permits=10`. Set the number once,
/// with [`set_permits`](Self::set_permits) or `zklock permits`, and open the handles without a number. If the ensemble
/// has no number yet, a handle that was opened with a number writes it. If the ensemble has another number,
/// acquisitions of that handle fail with [`Error::Permits`].
///
/// [`set_permits`](Self::set_permits) changes the number for all clients. Handles that have read the old number use the
/// new one from then on, and waiting acquisitions notice the change. No holder loses its permits.
///
/// # Fairness
/// Permits are granted strictly first come, first served. An acquisition of several permits blocks all acquisitions
/// behind it until it has its permits, even if enough permits for the later acquisitions are free. So nobody starves.
///
/// The first poll of an acquisition sends the request for a place in the queue. On a path that was never used, the
/// acquisition must be polled again, because the directory is created first. When the turn of the acquisition comes,
/// all acquisitions behind it wait, even if its future is not polled any more. So poll the future to its end, or drop
/// it.
///
/// # Deadlocks
/// A task that holds permits and waits for more may wait for ever, for its own permits or for those of a task that does
/// the same. Acquire all permits at once, with [`acquire_many`](Self::acquire_many).
///
/// The semaphore has two directories below its path. `queue` is the directory of a lock. The holder of that lock is the
/// next to take permits. `permits` has an ephemeral node for each holder of permits. Acquiring a free permit costs two
/// round trips. A released permit wakes only one waiter, however many wait.
///
/// # Examples
///
/// ```
/// use zk_rwlock::{Error, Memory, Semaphore};
/// # tokio_test::block_on(async {
/// let zk = Memory::new(); // or: ZooKeeper::connect("127.0.0.1:2181").await?
/// let geocoder = Semaphore::builder(&zk, "/limits/geocoder").build()?;
/// geocoder.set_permits(2).await?; // once, by an operator
///
/// let one = geocoder.acquire().await?;
/// let two = geocoder.acquire().await?;
/// assert!(geocoder.try_acquire().await.unwrap_err().is_would_block());
///
/// one.release().await?;
/// let three = geocoder.acquire().await?;
/// # drop((two, three));
/// # Ok::<(), Error>(()) }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct Semaphore {
    pub(crate) state: Arc<SemaphoreState>,
}

impl Semaphore {
    /// Opens the semaphore at `path`, with this number of permits. Sends nothing. Acquisitions create missing nodes.
    ///
    /// # Errors
    /// [`Error::InvalidInput`] if `path` is not an absolute ZooKeeper path, or is the root or in `/zookeeper`, or if
    /// `permits` is zero.
    pub fn new<C: Coordinator + Clone>(
        coordinator: &C,
        path: impl AsRef<str>,
        permits: u32,
    ) -> Result<Semaphore, Error> {
        Semaphore::builder(coordinator, path).permits(permits).build()
    }

    /// Returns a builder, to open the semaphore at `path` with options.
    ///
    /// ```
    /// # use zk_rwlock::{Memory, Semaphore};
    /// let limit = Semaphore::builder(&Memory::new(), "/limits/geocoder").permits(10).build().unwrap();
    /// assert_eq!(limit.path(), "/limits/geocoder");
    /// ```
    pub fn builder<C: Coordinator + Clone>(coordinator: &C, path: impl AsRef<str>) -> SemaphoreBuilder {
        SemaphoreBuilder { lock: RwLock::builder(coordinator, path), permits: None, at_existing_node: false }
    }

    /// Returns the path of the semaphore's node.
    pub fn path(&self) -> &str {
        self.state.config.user_path()
    }

    /// Acquires a permit.
    ///
    /// Await the returned builder, with or without options. The acquisition waits until all earlier acquisitions have
    /// their permits or have left, and one permit is free. See [fairness](Semaphore#fairness).
    ///
    /// # Cancel safety
    /// Dropping the future at any point gives up the place in the queue, and a permit if one was just taken. The
    /// acquisition's nodes and watches are removed as soon as the server can be reached.
    ///
    /// # Errors
    /// [`Error::Permits`] if the semaphore has another number of permits than this handle was opened with, or if
    /// neither the ensemble nor this handle has a number. [`Error::Timeout`], which names the holders, only if a
    /// [`timeout`](Acquire::timeout) was given. For other errors see [`Error`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use zk_rwlock::{Error, Memory, Semaphore};
    /// # tokio_test::block_on(async {
    /// # tokio::time::pause();
    /// # let geocoder = Semaphore::new(&Memory::new(), "/limits/geocoder", 1)?;
    /// let held = geocoder.acquire().label("nightly import").await?;
    /// let late = geocoder.acquire().timeout(Duration::from_millis(10)).await.unwrap_err();
    /// assert!(late.to_string().contains("nightly import"), "{late}");
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub fn acquire(&self) -> Acquire<Permit> {
        self.acquire_many(1)
    }

    /// Acquires several permits at once: all or none.
    ///
    /// Works like [`acquire`](Self::acquire). An acquisition of several permits takes none before all of them are free.
    /// Meanwhile it blocks all acquisitions behind it.
    ///
    /// # Cancel safety
    /// Same as for [`acquire`](Self::acquire).
    ///
    /// # Errors
    /// [`Error::Permits`] if the semaphore has fewer permits. If this handle was opened with fewer permits, the
    /// acquisition fails without a request. If the number of permits is lowered during the wait, the acquisition fails
    /// once it is the first in the queue. [`Error::InvalidInput`] if `permits` is zero. The other errors are those of
    /// [`acquire`](Self::acquire).
    ///
    /// # Examples
    ///
    /// ```
    /// # use zk_rwlock::error::PermitsError;
    /// # use zk_rwlock::{Error, Memory, Semaphore};
    /// # tokio_test::block_on(async {
    /// # let zk = Memory::new();
    /// let connections = Semaphore::new(&zk, "/limits/connections", 10)?;
    /// let three = connections.acquire_many(3).await?;
    /// assert_eq!(three.count(), 3);
    /// let refused = connections.acquire_many(11).await;
    /// let too_few = PermitsError::TooFew { wanted: 11, permits: 10 };
    /// assert!(matches!(&refused, Err(Error::Permits { reason, .. }) if *reason == too_few));
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub fn acquire_many(&self, permits: u32) -> Acquire<Permit> {
        Acquire::new((Arc::clone(&self.state), permits))
    }

    /// Acquires a permit if one is free and nobody waits. Waits for no contender. Writes nothing to the ensemble if the
    /// permits are already taken, or if another contender waits.
    ///
    /// Before the call fails because of holders or waiters, it asks the ensemble's leader whether the nodes of these
    /// holders and waiters still exist. If another contender takes the permit at the same time, this call creates one
    /// node, removes it, and fails. [How long the call takes](Call#how-long-it-takes) is limited by the session
    /// timeout, or by [`timeout`](Call::timeout).
    ///
    /// # Cancel safety
    /// Same as for [`acquire`](Self::acquire).
    ///
    /// # Errors
    /// [`Error::WouldBlock`], which names the holders and the waiters. The other errors are those of
    /// [`acquire`](Self::acquire).
    ///
    /// # Examples
    ///
    /// ```
    /// # use zk_rwlock::{Error, Memory, Semaphore};
    /// # tokio_test::block_on(async {
    /// # let geocoder = Semaphore::new(&Memory::new(), "/limits/geocoder", 1)?;
    /// match geocoder.try_acquire().await {
    ///     Ok(permit) => { /* ask the geocoder */ }
    ///     Err(error) if error.is_would_block() => { /* others do: go on without */ }
    ///     Err(error) => return Err(error),
    /// }
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub fn try_acquire(&self) -> Call<Permit> {
        self.try_acquire_many(1)
    }

    /// Acquires several permits at once, all or none, if they are free and nobody waits. In all other respects, works like
    /// [`try_acquire`](Self::try_acquire).
    ///
    /// # Cancel safety
    /// Same as for [`acquire`](Self::acquire).
    ///
    /// # Errors
    /// The errors of [`try_acquire`](Self::try_acquire) and of [`acquire_many`](Self::acquire_many).
    pub fn try_acquire_many(&self, permits: u32) -> Call<Permit> {
        let acquisition = new_acquisition(Arc::clone(&self.state), permits, AcquireOptions::default());
        Call::new(move |deadline| async move {
            let held = acquisition.try_acquire(deadline).await?;
            Ok(Permit::new(held, permits))
        })
    }
}

impl Guard for Permit {
    /// The semaphore, and the number of permits to acquire.
    type Source = (Arc<SemaphoreState>, u32);

    fn acquire((state, permits): Self::Source, options: AcquireOptions) -> Granting<Permit> {
        let mut acquisition = new_acquisition(state, permits, options);
        let span = acquisition.begin_trace();
        let work = async move { acquisition.acquire().await.map(|held| Permit::new(held, permits)) };
        Granting::new(span.instrument(Box::pin(work)))
    }
}

fn new_acquisition(state: Arc<SemaphoreState>, permits: u32, options: AcquireOptions) -> Acquisition {
    let mut acquisition = Acquisition::new(Arc::clone(&state.config), Mode::Write, options);
    acquisition.permits = Some(PermitRequest { state, count: permits });
    acquisition
}

/// The options of a semaphore. Made by [`Semaphore::builder`].
#[derive(Clone, Debug)]
#[must_use = "nothing is opened before `build`"]
pub struct SemaphoreBuilder {
    lock: RwLockBuilder,
    permits: Option<u32>,
    at_existing_node: bool,
}

impl SemaphoreBuilder {
    /// Sets the number of permits. This handle writes the number to the ensemble if the ensemble has no number yet. If the
    /// ensemble has another number, acquisitions fail. So it is better to leave this option out, and to set the number once
    /// with [`set_permits`](Semaphore::set_permits): see [`Semaphore`](Semaphore#the-number).
    ///
    /// Default: the number that the ensemble has. If the ensemble has no number, acquisitions fail with [`Error::Permits`].
    /// Zero is refused.
    pub fn permits(mut self, permits: u32) -> Self {
        self.permits = Some(permits);
        self
    }

    /// Allows this handle to write the number of permits to an empty node that exists already, which an operator may
    /// have created with an ACL of its own. Without this option, an empty node leads to the error
    /// [`PermitsError::EmptyNode`](crate::error::PermitsError::EmptyNode). The reason is that the node may be the
    /// directory of a lock that nobody uses now, and a number in it would keep the users of that lock out. The option
    /// is not needed if the node is already that of a semaphore, or does not exist.
    ///
    /// # Examples
    ///
    /// ```
    /// # use zk_rwlock::error::PermitsError;
    /// # use zk_rwlock::{Error, Memory, RwLock, Semaphore};
    /// # tokio_test::block_on(async {
    /// # let zk = Memory::new();
    /// RwLock::new(&zk, "/limits/geocoder")?.write().await?.release().await?; // leaves an empty node
    /// let refused = Semaphore::builder(&zk, "/limits/geocoder").build()?.set_permits(2).await.unwrap_err();
    /// assert!(matches!(refused, Error::Permits { reason: PermitsError::EmptyNode, .. }));
    ///
    /// let geocoder = Semaphore::builder(&zk, "/limits/geocoder").at_existing_node().build()?;
    /// geocoder.set_permits(2).await?;
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub fn at_existing_node(mut self) -> Self {
        self.at_existing_node = true;
        self
    }

    /// Limits how long this handle's permits are held: see [`RwLockBuilder::max_hold`]. Default: no limit.
    pub fn max_hold(mut self, limit: Duration) -> Self {
        self.lock = self.lock.max_hold(limit);
        self
    }

    /// Sets options of the queue, such as host, label and warnings. [`build`](Self::build) refuses
    /// [`keep`](RwLockBuilder::keep), and any [dialect](RwLockBuilder::dialect) but the native one.
    ///
    /// # Examples
    ///
    /// ```
    /// # use zk_rwlock::{Error, Memory, Semaphore};
    /// # let zk = Memory::new();
    /// let limit = Semaphore::builder(&zk, "/limits/geocoder").permits(3).lock(|lock| lock.label("nightly")).build()?;
    /// # Ok::<(), Error>(())
    /// ```
    pub fn lock(mut self, options: impl FnOnce(RwLockBuilder) -> RwLockBuilder) -> Self {
        self.lock = options(self.lock);
        self
    }

    /// Opens the semaphore. Sends nothing.
    ///
    /// # Errors
    /// [`Error::InvalidInput`] says which option is wrong, and why.
    pub fn build(self) -> Result<Semaphore, Error> {
        if self.permits == Some(0) {
            return Err(Error::invalid("a semaphore needs at least one permit"));
        }
        let config = self.lock.into_semaphore_config()?;
        let taken = config.paths.permits.clone().unwrap_or_default();
        let state = SemaphoreState {
            config: Arc::new(config),
            number: Mutex::new(self.permits.map_or(KnownPermitNumber::Unknown, KnownPermitNumber::Given)),
            taken,
            has_no_lock: AtomicBool::new(false),
            at_existing_node: self.at_existing_node,
        };
        Ok(Semaphore { state: Arc::new(state) })
    }
}

/// One permit of a [`Semaphore`](crate::Semaphore), or several that were acquired together. Made by
/// [`Semaphore::acquire`](crate::Semaphore::acquire).
///
/// Derefs to [`Hold`], with everything a holder can do. Holders of other permits use the resource at the same time. So
/// the resource must not refuse a [fencing token](Hold::fencing_token) just because it has seen a higher one. If the
/// resource has a numbered place for each holder, it can compare the tokens that were used at the same place.
///
/// Dropping this value gives its permits back in the background. The permit may be dropped on any thread, also outside
/// a runtime and in a panic. Before a program ends, it should [`release`](Self::release) the permit: see
/// [`WriteGuard`](crate::WriteGuard).
#[derive(Debug)]
#[must_use = "if unused, the permits are given back at once"]
pub struct Permit {
    hold: Hold,
    count: u32,
}

impl Permit {
    pub(super) fn new(held: Arc<Contender>, count: u32) -> Permit {
        Permit { hold: Hold::new(HoldShare::Alone(held)), count }
    }

    /// Returns the number of permits that were acquired together.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Gives the permits back, and returns when their node is surely gone.
    ///
    /// # Cancel safety
    /// If the future is dropped after its first poll, the release goes on in the background. If it is dropped before,
    /// the permit is dropped with it.
    ///
    /// # Errors
    /// [`Error::Lost`] if the permits had been lost before. [`Error::PermissionDenied`] if the node may not be deleted:
    /// then the node stays, and its permits stay taken, until its session ends.
    pub async fn release(self) -> Result<(), Error> {
        self.hold.into_guard_hold().release().await
    }
}

impl Deref for Permit {
    type Target = Hold;

    fn deref(&self) -> &Hold {
        &self.hold
    }
}

impl Semaphore {
    /// Reads the holders of permits, in the order in which they took their permits, and the waiters, in the order of their
    /// arrival.
    ///
    /// Sends two requests that list the nodes, one that reads the number of permits, and one for each 256 members. The
    /// result may be as old as the data of the server that answers. [How long the call takes](Call#how-long-it-takes)
    /// is limited by the session timeout, or by [`timeout`](Call::timeout).
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing, because the call only reads.
    ///
    /// # Errors
    /// [`Error::Permits`] if neither the ensemble nor this handle has a number of permits, or if the path is used for
    /// something else than a semaphore. [`Error::Unreachable`] if no server answers in time, or if each new session
    /// ends before the answer. For other errors see [`Error`].
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
        Call::with_deadline(&self.state.config.coordinator, async move { read_queue(&state, false).await })
    }

    /// Removes the holder or waiter that has this [token](crate::queue::Member::token), and returns it. Returns `None`
    /// if no member has the token, or if the member has just left.
    ///
    /// Works like [`RwLock::evict`](crate::RwLock::evict). The removed holder is notified, but another contender may be
    /// granted the permits before the notification arrives.
    ///
    /// # Cancel safety
    /// If the future is dropped, the member may or may not have been removed.
    ///
    /// # Errors
    /// [`Error::PermissionDenied`] if this client may not remove the node. After [`Error::Unreachable`] and
    /// [`Error::Timeout`] the member may or may not have been removed. For other errors see [`Error`].
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
        Call::with_deadline(&self.state.config.coordinator, async move {
            // A sync is sent before the listing, because a lagging server may not show the member yet.
            state.config.evict(read_queue(&state, true).await?, token).await
        })
    }

    /// Reads how many permits the semaphore has. Returns `None` if no number is set yet.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing, because the call only reads.
    ///
    /// # Errors
    /// [`Error::Permits`] if the path is used for something else than a semaphore. For other errors see [`Error`].
    pub fn permits(&self) -> Call<Option<u32>> {
        let state = Arc::clone(&self.state);
        let work = async move { read_permit_number(&state, "read the permits of", false).await };
        Call::with_deadline(&self.state.config.coordinator, work)
    }

    /// Changes the number of permits, for all clients. Creates the semaphore's node if it is missing. Fails if the path is used
    /// for a lock, a job's record or a value. Without [`at_existing_node`](SemaphoreBuilder::at_existing_node) also fails if
    /// the path has an empty node, which may be that of a lock that nobody uses now.
    ///
    /// No holder loses its permits. If more permits are held than the new number, none is granted until enough permits
    /// are given back. Waiting acquisitions use the new number. An acquisition of more permits than the new number
    /// fails with [`Error::Permits`] once it is the first in the queue. From now on, a program that opens the semaphore
    /// with a number must give the new one. Handles that were used before need not be opened again.
    ///
    /// # Cancel safety
    /// If the future is dropped, the number may or may not have been changed.
    ///
    /// # Errors
    /// [`Error::InvalidInput`] for zero. [`Error::Permits`] if the path is or may be used for something else, or if the
    /// node's data is no number of permits and no permit was ever taken there. [`Error::PermissionDenied`] if this client may
    /// not write the semaphore's node. After [`Error::Unreachable`], [`Error::Timeout`] and [`Error::OutcomeUnknown`] the
    /// number may or may not have been changed. For other errors see [`Error`].
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
        Call::with_deadline(&self.state.config.coordinator, async move { set_permits(&state, permits).await })
    }

    /// Removes the semaphore, if nobody holds or waits for a permit. One transaction deletes its node, its two
    /// directories and the node beside it that has a copy of the number of permits. Afterwards the path can be used for
    /// a lock. Returns the number of permits that the semaphore had, or `None` if there is no semaphore.
    ///
    /// If there are other nodes below the semaphore's node, that node stays, without a number. Another handle that knows a
    /// number creates the semaphore again at its next acquisition. This handle and its clones forget the number.
    ///
    /// # Cancel safety
    /// If the future is dropped, the semaphore may or may not have been removed.
    ///
    /// # Errors
    /// [`Error::WouldBlock`], which names the holders and the waiters, if there are any. [`Error::Permits`] if the path is used
    /// for something else than a semaphore. [`Error::PermissionDenied`] if this client may not delete one of the nodes. After
    /// [`Error::Unreachable`], [`Error::Timeout`] and [`Error::OutcomeUnknown`] the semaphore may or may not have been removed.
    /// For other errors see [`Error`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use zk_rwlock::{Error, Memory, RwLock, Semaphore};
    /// # tokio_test::block_on(async {
    /// # let zk = Memory::new();
    /// let geocoder = Semaphore::new(&zk, "/limits/geocoder", 3)?;
    /// let permit = geocoder.acquire().await?;
    /// assert!(geocoder.remove().await.unwrap_err().is_would_block());
    ///
    /// permit.release().await?;
    /// assert_eq!(geocoder.remove().await?, Some(3));
    /// RwLock::new(&zk, "/limits/geocoder")?.write().await?.release().await?;
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub fn remove(&self) -> Call<Option<u32>> {
        let state = Arc::clone(&self.state);
        Call::with_deadline(&self.state.config.coordinator, async move { remove_semaphore(&state).await })
    }
}

/// Reads the queue. If `is_synced`, the result is no older than this call. Fails if no number of permits is known, or
/// if the directory of permits has a node that is no permit.
async fn read_queue(state: &SemaphoreState, is_synced: bool) -> Result<Queue, Error> {
    let number = read_permit_number(state, "read the queue of", is_synced).await?.or(state.known_number());
    let (queue, taken) = state.config.read_queue_and_permit_nodes(is_synced, number).await?;
    if let Err(name) = permits::count_taken_permits(&taken) {
        return Err(state.doubtful_error(format!("{name:?} is no permit")));
    }
    number.map(|_| queue).ok_or_else(|| state.permits_error(PermitsError::Unset))
}

/// Runs `work` on a session. Repeats `work` while its outcome is unknown, as [`call::ask_until_answered`] does. If the
/// session ends, repeats `work` on a fresh session, as [`call::retry_on_fresh_session`] does.
async fn run_with_retries<T, F>(
    state: &SemaphoreState,
    operation: &'static str,
    work: impl Fn(Arc<dyn Session>) -> F,
) -> Result<T, Error>
where
    F: Future<Output = Result<T, SessionWorkError>>,
{
    let (path, work) = (state.config.user_path(), &work);
    let answer = call::retry_on_fresh_session(&state.config.coordinator, (operation, path), |session| async move {
        call::ask_until_answered(&session, || async {
            SessionWorkError::refusal_as_answer(work(Arc::clone(&session)).await)
        })
        .await
    });
    answer.await?
}

async fn read_permit_number(
    state: &SemaphoreState,
    operation: &'static str,
    is_synced: bool,
) -> Result<Option<u32>, Error> {
    let read = run_with_retries(state, operation, |session| async move {
        let node = retry::read_data(&session, state.config.user_path(), is_synced).await?;
        Ok(node.map_or(Ok(None), |(data, _)| state.parse_number(&data))?)
    });
    read.await
}

async fn set_permits(state: &SemaphoreState, permits: u32) -> Result<(), Error> {
    if permits == 0 {
        return Err(Error::invalid("a semaphore needs at least one permit"));
    }
    run_with_retries(state, "set the permits of", |session| try_to_set_permits(state, session, permits)).await
}

async fn try_to_set_permits(
    state: &SemaphoreState,
    session: Arc<dyn Session>,
    permits: u32,
) -> Result<(), SessionWorkError> {
    let (session, path) = (&session, state.config.user_path());
    loop {
        let node = retry::read_data(session, path, true).await?;
        let twin = state.read_twin(session).await?;
        // If the data is no number, and there is no directory of permits, the node may belong to another program. So
        // its data is not overwritten, and the call fails.
        if let Some((data, _)) = &node
            && let Err(error) = state.parse_number(data)
            && retry::read_data(session, &state.taken, false).await?.is_none()
        {
            return Err(error.into());
        }
        if state.write_number(session, permits, node.as_ref(), twin, None).await?.is_some() {
            return Ok(());
        }
        presence::leave_differing_server(session, path, node.map(|(_, stat)| stat.version)).await?;
    }
}

/// How often the removal of a semaphore is tried. A try fails, for example, if another client changes one of the nodes
/// meanwhile.
const REMOVALS: u32 = 64;

async fn remove_semaphore(state: &SemaphoreState) -> Result<Option<u32>, Error> {
    let mut was = None;
    for _ in 0..REMOVALS {
        let tried = run_with_retries(state, "remove the semaphore", |session| try_to_remove_semaphore(state, session));
        let (number, is_done) = tried.await?;
        was = number.or(was);
        if is_done {
            if was.is_some() {
                *state.number.lock() = KnownPermitNumber::Unknown;
                state.has_no_lock.store(false, Ordering::Release);
            }
            return Ok(was);
        }
        let (Queue { members, .. }, _) = state.config.read_queue_and_permit_nodes(true, was).await?;
        if !members.is_empty() {
            let ahead = members.len();
            let first = members.into_iter().take(presence::NAMED).collect();
            return Err(Error::WouldBlock { blockers: Blockers { ahead, first } });
        }
    }
    Err(state.doubtful_error("its directories have nodes that are neither permits nor waiters".to_owned()))
}

/// Removes the semaphore's nodes. Returns the number of permits in the node, or in `twin`, the node with a copy of the
/// number. Also returns whether nothing is left to remove. The nodes stay if somebody holds or waits for permits, or if
/// another client has changed one of them meanwhile. If the semaphore's node has other children, it stays, without
/// data.
async fn try_to_remove_semaphore(
    state: &SemaphoreState,
    session: Arc<dyn Session>,
) -> Result<(Option<u32>, bool), SessionWorkError> {
    let (session, path) = (&session, state.config.user_path());
    let node = retry::read_data(session, path, true).await?;
    let twin = state.read_twin(session).await?;
    let number = node.as_ref().map_or(Ok(None), |(data, _)| state.parse_number(data))?;
    let of_twin = if let PermitNumberCopy::Number(was) = twin { Some(was) } else { None };
    let Some(number) = number.or(of_twin) else { return Ok((None, true)) };
    let children = retry::repeat_until_known(session, || session.children(path)).await;
    let children = children.or_else(retry::default_if_no_node)?;
    let delete = |path: String| Operation::Delete { path, version: None };
    let (own, others): (Vec<_>, Vec<_>) = children.iter().partition(|name| *name == QUEUE || *name == PERMITS);
    let mut operations: Vec<_> = own.into_iter().map(|name| delete(format!("{path}/{name}"))).collect();
    if let Some((_, stat)) = node {
        let (path, version) = (path.to_string(), Some(stat.version));
        operations.push(match others.is_empty() {
            true => Operation::Delete { path, version },
            false => Operation::Set { path, data: Vec::new(), version },
        });
    }
    if twin != PermitNumberCopy::Missing {
        operations.push(delete(metadata::twin_path(path)));
    }
    match retry::repeat_until_known(session, || session.transact(&operations)).await {
        Ok(_) => Ok((Some(number), true)),
        Err(Failure::Operation { failure, .. }) => match *failure {
            Failure::NotEmpty | Failure::NoNode | Failure::BadVersion => Ok((Some(number), false)),
            failure => Err(failure.into()),
        },
        Err(failure) => Err(failure.into()),
    }
}
