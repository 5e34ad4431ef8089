//! [`Acquire`], the builder of an acquisition of any kind of guard; [`Granting`], the future of an acquisition; and the methods
//! of [`RwLock`] that acquire it.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use crate::call::{self, Call, Deadline};
use crate::contend::acquisition::{AcquireOptions, Acquisition};
use crate::error::error::Error;
use crate::keep::cache::KeptNodeCache;
use crate::keep::join;
use crate::lock::hold::{HoldShare, ReadGuard, WriteGuard};
use crate::lock::rw_lock::RwLock;
use crate::observe::on_wait::ProgressListener;
use crate::observe::trace::AcquireTrace;
use crate::queue::member::Progress;
use crate::queue::mode::Mode;
use crate::telemetry::debug::debug;

/// An acquisition that has not started. Await it, or set options first.
///
/// Made by the methods that acquire and may wait, such as [`RwLock::read`](crate::RwLock::read),
/// [`RwLock::write`](crate::RwLock::write), [`Semaphore::acquire`](crate::Semaphore::acquire) and
/// [`MultiLock::lock`](crate::MultiLock::lock). `G` is what the acquisition returns: a guard, or the result of work
/// under a guard, such as the [result of an update](crate::shared::Updated). Nothing is sent before the first poll.
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// # use zk_rwlock::{Error, Memory, RwLock};
/// # tokio_test::block_on(async {
/// # let lock = RwLock::new(&Memory::new(), "/locks/config")?;
/// let guard = lock.write().timeout(Duration::from_secs(5)).label("rotate keys").await?;
/// # Ok::<(), Error>(()) }).unwrap();
/// ```
#[must_use = "nothing is acquired before this is awaited"]
pub struct Acquire<G: Guard> {
    pub(crate) source: G::Source,
    pub(crate) options: AcquireOptions,
}

/// The output of an [`Acquire`]: a guard, or the result of work under a guard. Only types of this library implement
/// this trait.
pub trait Guard: Sized + 'static {
    /// What the guard is acquired from, such as a lock, several locks or a semaphore.
    #[doc(hidden)]
    type Source;

    #[doc(hidden)]
    fn acquire(source: Self::Source, options: AcquireOptions) -> Granting<Self>;
}

/// The future of an [`Acquire`].
///
/// # Cancel safety
/// Dropping the future gives up the place in the queue, or the lock if the lock was just granted.
#[must_use = "nothing is acquired before this is awaited"]
pub struct Granting<G>(GrantingStage<G>);

enum GrantingStage<G> {
    /// The first stage: the acquisition will try to join a kept node (a node that the process keeps between uses),
    /// without an allocation.
    Joining {
        cache: Arc<KeptNodeCache>,
        acquisition: Acquisition,
        guard: fn(HoldShare) -> G,
    },
    Working(Pin<Box<dyn Future<Output = Result<G, Error>> + Send>>),
    Over,
}

impl<G> Granting<G> {
    pub(crate) fn new(work: impl Future<Output = Result<G, Error>> + Send + 'static) -> Granting<G> {
        Granting(GrantingStage::Working(Box::pin(work)))
    }
}

impl<G: 'static> Future for Granting<G> {
    type Output = Result<G, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let GrantingStage::Joining { .. } = &self.0 {
            ready!(join::poll_consume_budget(context));
            if let GrantingStage::Joining { cache, mut acquisition, guard } =
                std::mem::replace(&mut self.0, GrantingStage::Over)
            {
                let begun = acquisition.options.start_timeout();
                let deadline = acquisition.report_error(begun)?;
                if let Some(used) = cache.try_join_newest(acquisition.mode) {
                    return Poll::Ready(Ok(guard(HoldShare::Kept(join::begin_use(&acquisition, used)))));
                }
                let work = async move { join_or_acquire(&cache, &mut acquisition, deadline).await.map(guard) };
                self.0 = GrantingStage::Working(Box::pin(work));
            }
        }
        match &mut self.0 {
            GrantingStage::Working(work) => work.as_mut().poll(context),
            _ => Poll::Pending,
        }
    }
}

debug!(Granting<G> as "Granting" for [G], |_it|);

impl<G: Guard> Acquire<G> {
    pub(crate) fn new(source: G::Source) -> Acquire<G> {
        Acquire { source, options: AcquireOptions::default() }
    }

    /// Sets the time after which the acquisition gives up its place in the queue and fails with [`Error::Timeout`].
    ///
    /// The time begins with the first poll. The time also covers the acquisition of several locks, and the read of a
    /// value under the lock. The error comes in time, also while disconnected. With a timeout of zero, the acquisition
    /// fails with [`Error::InvalidInput`]. To not wait at all, use a `try_` method.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.options.timeout = Some(timeout);
        self
    }

    /// Sets the purpose of this acquisition, in words for people. [`RwLock::queue`](crate::RwLock::queue) and the
    /// errors of waiters show the label. A [`Shared`](crate::Shared) value that is committed under the guard is stored
    /// with the label. A label of more than 256 bytes, or with a control character, is refused.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.options.label = Some(label.into());
        self
    }

    /// Calls `callback` with the place in the queue and the contenders that the acquisition waits for. The first call
    /// comes once the acquisition has read these contenders, unless the lock is granted earlier. A further call comes
    /// when the acquisition finds that the place or these contenders have changed.
    ///
    /// Every acquisition lists the queue when it begins to wait. It lists the queue again when its predecessor has left
    /// but another contender still blocks it. With this callback, the acquisition also lists the queue in intervals. An
    /// interval is one second, or as many milliseconds as the place times the length of the queue, if that is longer.
    /// So all waiters with a callback together read no more than about 10,000 names a second.
    /// Each call of `callback` also costs one read for each contender that it names (at most 8).
    ///
    /// The acquisition waits while `callback` runs. If `callback` panics, the place in the queue is given up. With several
    /// locks, [`Progress::path`] is the lock that is waited for.
    ///
    /// # Examples
    ///
    /// ```
    /// # use zk_rwlock::{Error, Memory, RwLock};
    /// # tokio_test::block_on(async {
    /// # let lock = RwLock::new(&Memory::new(), "/locks/config")?;
    /// let guard = lock.write().on_wait(|progress| eprintln!("waiting at {progress}")).await?;
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub fn on_wait(mut self, callback: impl FnMut(&Progress) + Send + 'static) -> Self {
        self.options.on_wait = Some(ProgressListener::new(callback));
        self
    }

    /// Blocks the thread until the acquisition ends, and returns the guard or the error. Needs no runtime.
    ///
    /// # Errors
    /// The same errors as when the acquisition is awaited.
    ///
    /// # Panics
    /// On a thread that runs tasks of a tokio runtime: write `.await` there. See [`block_on`](crate::block_on).
    #[track_caller]
    pub fn blocking(self) -> Result<G, Error> {
        call::block_on(self)
    }
}

impl<G: Guard> IntoFuture for Acquire<G> {
    type Output = Result<G, Error>;
    type IntoFuture = Granting<G>;

    fn into_future(self) -> Self::IntoFuture {
        G::acquire(self.source, self.options)
    }
}

debug!(Acquire<G> as "Acquire" for [G: Guard], |it| options: it.options);

impl Guard for WriteGuard {
    type Source = RwLock;

    fn acquire(lock: RwLock, options: AcquireOptions) -> Granting<WriteGuard> {
        acquire_guard(lock, Mode::Write, options, WriteGuard::new)
    }
}

impl Guard for ReadGuard {
    type Source = RwLock;

    fn acquire(lock: RwLock, options: AcquireOptions) -> Granting<ReadGuard> {
        acquire_guard(lock, Mode::Read, options, ReadGuard::new)
    }
}

impl RwLock {
    /// Acquires the lock to read: shared with other readers.
    ///
    /// Await the returned builder, with or without options. The acquisition waits until every earlier writer has left. See
    /// [`RwLock`] for fairness.
    ///
    /// # Cancel safety
    /// Dropping the future at any point gives up the place in the queue. The acquisition's node and watches are removed as soon
    /// as the server can be reached.
    ///
    /// # Errors
    /// See [`Error`]; [`Error::Timeout`] only if a [`timeout`](Acquire::timeout) was given.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use zk_rwlock::{Error, Memory, RwLock};
    /// # tokio_test::block_on(async {
    /// # let lock = RwLock::new(&Memory::new(), "/locks/config")?;
    /// let guard = lock.read().timeout(Duration::from_secs(5)).label("reload").await?;
    /// assert!(guard.is_held());
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub fn read(&self) -> Acquire<ReadGuard> {
        Acquire::new(self.clone())
    }

    /// Acquires the lock to write: alone.
    ///
    /// Await the returned builder, with or without options. The acquisition waits until every earlier contender has left.
    /// See [`RwLock`] for fairness.
    ///
    /// # Cancel safety
    /// The same as that of [`RwLock::read`].
    ///
    /// # Errors
    /// See [`Error`]; [`Error::Timeout`] only if a [`timeout`](Acquire::timeout) was given.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use zk_rwlock::{Error, Memory, RwLock};
    /// # tokio_test::block_on(async {
    /// # tokio::time::pause();
    /// # let lock = RwLock::new(&Memory::new(), "/locks/config")?;
    /// let held = lock.write().label("migrate v42").await?;
    /// let late = lock.write().timeout(Duration::from_millis(10)).await.unwrap_err();
    /// assert!(late.to_string().contains("migrate v42"), "{late}");
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub fn write(&self) -> Acquire<WriteGuard> {
        Acquire::new(self.clone())
    }

    /// Acquires the lock to read if no writer holds it or waits for it. Waits for no contender. Writes nothing to the
    /// ensemble if the lock is already taken.
    ///
    /// A server that lags may show the node of a contender that has left. So before the call reports that the lock is
    /// taken, it asks the ensemble's leader whether the contenders that exclude it still exist. If the lock looked free
    /// but another contender is faster, the call fails after it has written one node and removed that node. [How long
    /// the call takes](Call#how-long-it-takes) is limited by the session timeout, or by [`timeout`](Call::timeout).
    ///
    /// # Cancel safety
    /// The same as that of [`RwLock::read`].
    ///
    /// # Errors
    /// [`Error::WouldBlock`], which names the contenders that an acquisition would wait for. Otherwise see [`Error`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use zk_rwlock::{Error, Memory, RwLock};
    /// # tokio_test::block_on(async {
    /// # let lock = RwLock::new(&Memory::new(), "/locks/config")?;
    /// let writer = lock.write().await?;
    /// assert!(lock.try_read().await.unwrap_err().is_would_block());
    /// writer.release().await?;
    /// let reader = lock.try_read().await?;
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub fn try_read(&self) -> Call<ReadGuard> {
        let lock = self.clone();
        Call::new(|deadline| async move { lock.try_acquire(Mode::Read, deadline).await.map(ReadGuard::new) })
    }

    /// Acquires the lock to write if no contender holds it or waits for it. Waits for no contender. Writes nothing to
    /// the ensemble if the lock is already taken.
    ///
    /// A server that lags may show the node of a contender that has left. So before the call reports that the lock is
    /// taken, it asks the ensemble's leader whether the contenders that exclude it still exist. If the lock looked free
    /// but another contender is faster, the call fails after it has written one node and removed that node. [How long
    /// the call takes](Call#how-long-it-takes) is limited by the session timeout, or by [`timeout`](Call::timeout).
    ///
    /// # Cancel safety
    /// The same as that of [`RwLock::read`].
    ///
    /// # Errors
    /// [`Error::WouldBlock`], which names the contenders that an acquisition would wait for. Otherwise see [`Error`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use zk_rwlock::{Error, Memory, RwLock};
    /// # tokio_test::block_on(async {
    /// # let lock = RwLock::new(&Memory::new(), "/locks/partition-7")?;
    /// match lock.try_write().await {
    ///     Ok(guard) => { /* work on the partition */ }
    ///     Err(error) if error.is_would_block() => { /* another process does */ }
    ///     Err(error) => return Err(error),
    /// }
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub fn try_write(&self) -> Call<WriteGuard> {
        let lock = self.clone();
        Call::new(|deadline| async move { lock.try_acquire(Mode::Write, deadline).await.map(WriteGuard::new) })
    }

    /// Joins a node that this process keeps between uses, or acquires the lock with a node of its own. Fails instead of
    /// waiting for another contender, or for another acquisition of this process that uses the kept node.
    pub(crate) async fn try_acquire(&self, mode: Mode, deadline: Option<Deadline>) -> Result<HoldShare, Error> {
        let mut acquisition = Acquisition::new(Arc::clone(&self.config), mode, AcquireOptions::default());
        if let Some(cache) = &self.cache
            && let Some(used) = join::join_without_waiting(&mut acquisition, cache)?
        {
            return Ok(HoldShare::Kept(used));
        }
        acquisition.try_acquire(deadline).await.map(HoldShare::Alone)
    }
}

/// Returns the future of an acquisition, which uses a node that this process keeps between uses, or a node of its own.
fn acquire_guard<G: 'static>(
    lock: RwLock,
    mode: Mode,
    options: AcquireOptions,
    guard: fn(HoldShare) -> G,
) -> Granting<G> {
    let mut acquisition = Acquisition::new(lock.config, mode, options);
    let span = acquisition.begin_trace();
    if let Some(cache) = lock.cache {
        let joining = Granting(GrantingStage::Joining { cache, acquisition, guard });
        return if span.is_none() { joining } else { Granting::new(span.instrument(joining)) };
    }
    let work = Box::pin(async move { acquisition.acquire().await.map(|hold| guard(HoldShare::Alone(hold))) });
    Granting(GrantingStage::Working(AcquireTrace::instrument(span, work)))
}

/// Waits for a use of a kept node. If no kept node can serve the acquisition, acquires the lock with a node of its own
/// instead.
async fn join_or_acquire(
    cache: &KeptNodeCache,
    acquisition: &mut Acquisition,
    deadline: Option<Deadline>,
) -> Result<HoldShare, Error> {
    match join::wait_for_use(acquisition, cache, deadline).await {
        Ok(Some(used)) => Ok(HoldShare::Kept(join::begin_use(acquisition, used))),
        // This large future is boxed, because moving the future would be most of the cost of a short wait.
        Ok(None) => Box::pin(acquisition.acquire()).await.map(HoldShare::Alone),
        Err(error) => acquisition.report_error(Err(error)),
    }
}

/// Acquires the lock, and then runs `rest` within what is left of the timeout.
pub(crate) async fn acquire_then<L, G, F>(
    lock: RwLock,
    mut options: AcquireOptions,
    rest: impl FnOnce(L) -> F,
) -> Result<G, Error>
where
    L: Guard<Source = RwLock>,
    F: Future<Output = Result<G, Error>>,
{
    // `start_timeout` fails if an option is invalid. The error is ignored here, because the acquisition below fails
    // with the same error.
    let deadline = options.start_timeout().unwrap_or_default();
    let coordinator = Arc::clone(&lock.config.coordinator);
    let guard = Acquire::<L> { source: lock, options }.await?;
    call::within_deadline(&coordinator, deadline, rest(guard)).await
}

/// Acquires the lock without waiting for a contender, and then runs `rest` within what is left of the timeout, and
/// within the limit of [`call::within_session_timeout`].
pub(crate) async fn try_acquire_then<L, G, F>(
    lock: RwLock,
    mode: Mode,
    deadline: Option<Deadline>,
    guard: fn(HoldShare) -> L,
    rest: impl FnOnce(L) -> F,
) -> Result<G, Error>
where
    F: Future<Output = Result<G, Error>>,
{
    let held = lock.try_acquire(mode, deadline).await?;
    let limit = held.session().timeout();
    let coordinator = &lock.config.coordinator;
    call::within_deadline(coordinator, deadline, call::within_session_timeout(coordinator, limit, rest(guard(held))))
        .await
}
