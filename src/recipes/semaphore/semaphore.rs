//! The semaphore, and its options.

use std::sync::Arc;
use std::time::Duration;

use crate::call::Call;
use crate::contend::request::{Acquisition, Options};
use crate::error::error::Error;
use crate::lock::acquire::{Acquire, Granting, Guard};
use crate::lock::rw_lock::{RwLock, RwLockBuilder};
use crate::queue::mode::Mode;
use crate::recipes::semaphore::limit::PermitLimit;
use crate::recipes::semaphore::permit::Permit;
use crate::recipes::semaphore::state::SemaphoreState;
use crate::recipes::semaphore::take::PermitRequest;
use crate::session::contract::Coordinator;
use crate::sync::atomic::AtomicBool;

/// A number of permits, shared by all processes that open the same path of the same ensemble: at most so many hold one at
/// once, in the whole fleet.
///
/// A handle is cheap to clone, and holds nothing by itself. Each acquisition gives a [`Permit`], for one permit or for
/// several. Dropping or [releasing](Permit::release) it gives them back. If a process dies, its permits are free one
/// session timeout later.
///
/// # The number
/// The ensemble keeps the number, in the data of the semaphore's node: `permits=10`. Say it once, with
/// [`set_permits`](Self::set_permits) or `zklock permits`, and leave it out of the options of those who take permits. If the ensemble
/// has none, a handle that was opened with a number writes it. A handle
/// that was opened with another number gets [`Error::Permits`] at its first use. [`set_permits`](Self::set_permits)
/// changes the number for all: handles that have seen the old one go by the new one from then on, acquisitions that wait
/// notice, and nobody who holds is thrown out.
///
/// # Fairness
/// Strictly first come, first served, also when one asks for several: the first in the queue holds up those behind it, even
/// if there are enough permits for them. So nobody starves.
///
/// An acquisition that was polled once has asked for its place in the queue, and soon has it; on a path that was never used it has to
/// be polled on. When its turn comes, all behind it wait for it, even if its future is not polled any more. So poll it to its end, or drop it.
///
/// # Deadlocks
/// A task that holds permits and waits for more may wait for itself, or for others that do the same. Take all at once, with
/// [`acquire_many`](Self::acquire_many).
///
/// # Nodes
/// Below the path there are two directories. `queue` is that of a lock, whose holder is the next to take permits. `permits`
/// has an ephemeral node for each holder. A permit that is free costs two round trips. One that is given back wakes one
/// waiter, however many there are.
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
    pub(super) state: Arc<SemaphoreState>,
}

impl Semaphore {
    /// Opens the semaphore at `path`, which has so many permits. Nothing is sent. The first acquisition makes the nodes
    /// if they are missing.
    ///
    /// # Errors
    /// [`Error::InvalidInput`] if `path` is not an absolute ZooKeeper path, or is the root or in `/zookeeper`; or if there
    /// were no permits.
    pub fn new<C: Coordinator + Clone>(
        coordinator: &C,
        path: impl AsRef<str>,
        permits: u32,
    ) -> Result<Semaphore, Error> {
        Semaphore::builder(coordinator, path).permits(permits).build()
    }

    /// As [`Semaphore::new`], with options.
    ///
    /// ```
    /// # use zk_rwlock::{Memory, Semaphore};
    /// let limit = Semaphore::builder(&Memory::new(), "/limits/geocoder").permits(10).build().unwrap();
    /// assert_eq!(limit.path(), "/limits/geocoder");
    /// ```
    pub fn builder<C: Coordinator + Clone>(coordinator: &C, path: impl AsRef<str>) -> SemaphoreBuilder {
        SemaphoreBuilder { lock: RwLock::builder(coordinator, path), permits: None }
    }

    /// The semaphore's node.
    pub fn path(&self) -> &str {
        self.state.handle.shown()
    }

    /// Acquires a permit.
    ///
    /// Await the returned builder, with or without options. Waits until all who came earlier have got theirs, and one is
    /// free. See [`Semaphore`] for fairness.
    ///
    /// # Cancel safety
    /// Dropping the future at any point gives up the place in the queue, and a permit that was taken just then. It leaves
    /// neither node nor watch behind, as soon as the server can be reached.
    ///
    /// # Errors
    /// [`Error::Permits`] if the semaphore has another number of permits than this handle was opened with.
    /// [`Error::Timeout`], which names the holders, only if a [`timeout`](Acquire::timeout) was given. Otherwise see
    /// [`Error`].
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

    /// Acquires so many permits at once: all or none.
    ///
    /// As [`acquire`](Self::acquire). An acquisition that waits for several permits holds up those behind it, and gathers
    /// none before it has them all.
    ///
    /// # Cancel safety
    /// As for [`acquire`](Self::acquire).
    ///
    /// # Errors
    /// [`Error::Permits`] if the semaphore does not have so many: before anything is sent, if it follows from the
    /// number that this handle was opened with. It comes also to an acquisition that waits, as the first in the queue, when
    /// the number falls below what it wants. [`Error::InvalidInput`] if no permits are asked for. Otherwise as for
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
    /// assert!(matches!(connections.acquire_many(11).await, Err(Error::Permits { reason: PermitsError::TooFew { wanted: 11, permits: 10 }, .. })));
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub fn acquire_many(&self, permits: u32) -> Acquire<Permit> {
        Acquire::new((Arc::clone(&self.state), permits))
    }

    /// Acquires a permit if one is free and nobody waits. Does not wait. Writes nothing to the ensemble if there is none.
    ///
    /// Before it fails, it asks the leader whether those in the way are still there. If another contender is faster to a permit
    /// that looked free, this call has written one node, and removed it. [How long it takes](Call#how-long-it-takes) is bounded by the session
    /// timeout, and with [`timeout`](Call::timeout).
    ///
    /// # Cancel safety
    /// As for [`acquire`](Self::acquire).
    ///
    /// # Errors
    /// [`Error::WouldBlock`], which names the holders and those who wait. Otherwise as for [`acquire`](Self::acquire).
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

    /// Acquires so many permits at once, all or none, if they are free and nobody waits. As
    /// [`try_acquire`](Self::try_acquire) for the rest.
    ///
    /// # Cancel safety
    /// As for [`acquire`](Self::acquire).
    ///
    /// # Errors
    /// As for [`try_acquire`](Self::try_acquire) and [`acquire_many`](Self::acquire_many).
    pub fn try_acquire_many(&self, permits: u32) -> Call<Permit> {
        let acquisition = acquisition(Arc::clone(&self.state), permits, Options::default());
        Call::new(move |timeout| async move {
            let held = acquisition.attempt(timeout).await?;
            Ok(Permit::new(held, permits))
        })
    }
}

impl Guard for Permit {
    /// With how many permits are wanted.
    type Source = (Arc<SemaphoreState>, u32);

    fn acquire((state, permits): Self::Source, options: Options) -> Granting<Permit> {
        let mut acquisition = acquisition(state, permits, options);
        let span = acquisition.begin();
        let work = async move { acquisition.acquire().await.map(|held| Permit::new(held, permits)) };
        Granting::by(span.around(Box::pin(work)))
    }
}

fn acquisition(state: Arc<SemaphoreState>, permits: u32, options: Options) -> Acquisition {
    let mut acquisition = Acquisition::new(Arc::clone(&state.handle), Mode::Write, options);
    acquisition.goal = Some(Arc::new(PermitRequest::new(state, permits)));
    acquisition
}

/// Options of a semaphore. Made by [`Semaphore::builder`].
#[derive(Clone, Debug)]
#[must_use = "nothing is opened before `build`"]
pub struct SemaphoreBuilder {
    lock: RwLockBuilder,
    permits: Option<u32>,
}

impl SemaphoreBuilder {
    /// How many permits there are, if nobody has said so for all. Better leave it out, and say it once with
    /// [`set_permits`](Semaphore::set_permits): see [`Semaphore`](Semaphore#the-number).
    ///
    /// Default: the number that the ensemble has. If it has none, acquisitions fail with [`Error::Permits`]. Zero is
    /// refused.
    pub fn permits(mut self, permits: u32) -> Self {
        self.permits = Some(permits);
        self
    }

    /// Nobody holds permits by this handle for longer: see [`RwLockBuilder::max_hold`]. Default: a permit holds until it goes.
    pub fn max_hold(mut self, limit: Duration) -> Self {
        self.lock = self.lock.max_hold(limit);
        self
    }

    /// Options of the queue: host, label and warnings. To [keep](RwLockBuilder::keep) permits between uses, or to queue in
    /// another [dialect](RwLockBuilder::dialect), is refused.
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

    /// Opens the semaphore. Nothing is sent.
    ///
    /// # Errors
    /// [`Error::InvalidInput`] says which option was wrong, and how.
    pub fn build(self) -> Result<Semaphore, Error> {
        if self.permits == Some(0) {
            return Err(Error::invalid("a semaphore of no permits; it has at least one"));
        }
        let handle = self.lock.for_semaphore()?;
        let taken = handle.paths.permits.clone().unwrap_or_default();
        let state = SemaphoreState {
            handle: Arc::new(handle),
            limit: PermitLimit::new(self.permits),
            taken,
            is_alone: AtomicBool::new(false),
        };
        Ok(Semaphore { state: Arc::new(state) })
    }
}
