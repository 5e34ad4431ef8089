//! Several locks at once: all or none; knows no queue and no backend.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::Instant;
use tracing::Instrument;

use crate::acquisition::request::Acquisition;
use crate::acquisition::request::Options;
use crate::call::Limit;
use crate::call::{self, Call};
use crate::error::error::Error;
use crate::guard::acquire::{Acquire, Granting, Guard};
use crate::hold::hold::Hold;
use crate::hold::trace;
use crate::lock::rw_lock::{RwLock, RwLockBuilder};
use crate::multi::guard::{MultiGuard, Taken};
use crate::queue::dialect::Dialect;
use crate::queue::mode::{Aim, Mode};
use crate::session::contract::Coordinator;
use crate::validation;

/// Several read/write locks that are taken together: all or none.
///
/// Each path is an ordinary [`RwLock`]. A task that takes one of the locks alone queues with the tasks that take
/// several. A handle is cheap to clone, and holds nothing by itself.
///
/// # Order
/// The locks are taken one after the other, in the order of their paths, whatever the order in which they were given.
/// So two tasks that take the same locks never wait for each other in a circle. The first locks are held while the next
/// are waited for. If one lock cannot be had, or one is lost meanwhile, the locks taken so far are given back, the last
/// one first.
///
/// The order protects only the tasks that keep it. A task that holds a lock, or a [`MultiGuard`], must not wait for a
/// lock with an earlier path, nor for a lock that it holds already. See also [fairness](RwLock#fairness).
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use zk_rwlock::{Error, Memory, MultiLock};
/// # tokio_test::block_on(async {
/// let zk = Memory::new(); // or: ZooKeeper::connect("127.0.0.1:2181").await?
/// let transfer = MultiLock::builder(&zk)
///     .write("/locks/accounts/7")
///     .write("/locks/accounts/3")
///     .read("/locks/rates")
///     .label("transfer")
///     .build()?;
///
/// let guard = transfer.lock().timeout(Duration::from_secs(30)).await?;
/// guard.transaction().create("/transfer", "7 to 3").commit().await?; // only if all three are held
/// guard.release().await?;
/// # Ok::<(), Error>(()) }).unwrap();
/// ```
#[derive(Clone)]
pub struct MultiLock {
    /// In the order in which the locks are taken, which is the order of their paths.
    locks: Arc<[(RwLock, Mode)]>,
    coordinator: Arc<dyn Coordinator>,
}

impl MultiLock {
    /// Opens the locks that are kept in these directories, each with the mode in which it is taken. Nothing is sent.
    ///
    /// # Errors
    /// [`Error::InvalidInput`] if there are no locks, if a path comes twice, or if [`RwLock::new`] would refuse a path.
    ///
    /// # Examples
    ///
    /// ```
    /// use zk_rwlock::{Memory, Mode, MultiLock};
    /// let locks = MultiLock::new(&Memory::new(), [("/locks/b", Mode::Write), ("/locks/a", Mode::Read)]).unwrap();
    /// assert_eq!(locks.paths().collect::<Vec<_>>(), ["/locks/a", "/locks/b"]);
    /// ```
    pub fn new<C, P>(coordinator: &C, locks: impl IntoIterator<Item = (P, Mode)>) -> Result<MultiLock, Error>
    where
        C: Coordinator + Clone,
        P: AsRef<str>,
    {
        let mut builder = MultiLock::builder(coordinator);
        builder.locks.extend(locks.into_iter().map(|(path, mode)| (path.as_ref().to_owned(), mode)));
        builder.build()
    }

    /// As [`MultiLock::new`], with options.
    pub fn builder<C: Coordinator + Clone>(coordinator: &C) -> MultiLockBuilder {
        MultiLockBuilder { options: RwLock::builder(coordinator, "/"), locks: Vec::new() }
    }

    /// The locks' directories, in the order in which they are taken.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.locks.iter().map(|(lock, _)| lock.path())
    }

    /// Acquires all the locks.
    ///
    /// Await the returned builder, with or without options. Waits for one lock after the other, in their
    /// [order](MultiLock#order).
    ///
    /// # Cancel safety
    /// Dropping the future at any point gives back the locks taken so far, and the place in the queue of the next one.
    /// It leaves neither node nor watch behind, as soon as the server can be reached.
    ///
    /// # Errors
    /// [`Error::OneOfMany`] says which lock failed, and how. [`Error::Timeout`] only if a [`timeout`](Acquire::timeout)
    /// was given. [`Error::Evicted`] may concern a lock that had been taken already.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use zk_rwlock::{Error, Memory, Mode, MultiLock, RwLock};
    /// # tokio_test::block_on(async {
    /// # tokio::time::pause();
    /// # let zk = Memory::new();
    /// let held = RwLock::new(&zk, "/locks/b")?.write().label("migrate v42").await?;
    /// let both = MultiLock::new(&zk, [("/locks/a", Mode::Write), ("/locks/b", Mode::Write)])?;
    /// let late = both.lock().timeout(Duration::from_millis(10)).await.unwrap_err();
    /// assert!(late.is_timeout() && late.to_string().starts_with("/locks/b: not granted within 10ms"), "{late}");
    /// assert!(late.to_string().contains("migrate v42"));
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub fn lock(&self) -> Acquire<MultiGuard> {
        Acquire::new(self.clone())
    }

    /// Acquires all the locks if none of them is taken. Does not wait. Writes nothing to the ensemble if one is taken.
    ///
    /// Looks at all the locks at once, and then enters their queues one after the other. If another contender is faster
    /// to one of them after that look, the call gives back the locks it has taken. See [`RwLock::try_write`] for the
    /// rest.
    ///
    /// # Cancel safety
    /// As for [`MultiLock::lock`].
    ///
    /// # Errors
    /// [`Error::OneOfMany`] with the first lock that is taken and [`Error::WouldBlock`], which names the contenders in
    /// the way. Otherwise as for [`MultiLock::lock`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use zk_rwlock::{Error, Memory, Mode, MultiLock, RwLock};
    /// # tokio_test::block_on(async {
    /// # let zk = Memory::new();
    /// # let both = MultiLock::new(&zk, [("/locks/a", Mode::Write), ("/locks/b", Mode::Read)])?;
    /// let reader = RwLock::new(&zk, "/locks/a")?.read().await?;
    /// match both.try_lock().await {
    ///     Ok(guard) => { /* work on both */ }
    ///     Err(error) if error.is_would_block() => { /* "/locks/a: would block: held by ..." */ }
    ///     Err(error) => return Err(error),
    /// }
    /// reader.release().await?;
    /// assert!(both.try_lock().await.is_ok());
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub fn try_lock(&self) -> Call<MultiGuard> {
        let this = self.clone();
        Call::new(move |timeout| async move { call::in_time(&this.coordinator, timeout, this.attempt()).await })
    }

    async fn attempt(&self) -> Result<MultiGuard, Error> {
        let looks = self.locks.iter().map(|(lock, mode)| look(lock, *mode));
        let mut limit = Duration::MAX;
        for ((lock, mode), look) in self.locks.iter().zip(join_all(looks).await) {
            limit = look.map_err(|error| refused(lock, *mode, error).of_one(lock.path()))?;
        }
        let mut taken = Taken::default();
        for (lock, mode) in &*self.locks {
            taken.add(lock, take_now(lock, *mode, limit)).await?;
        }
        taken.complete()
    }

    async fn acquire(&self, options: Options) -> Result<MultiGuard, Error> {
        let timeout = options.timeout().map_err(|error| match &*self.locks {
            [(lock, mode), ..] => refused(lock, *mode, error),
            [] => error,
        })?;
        let begun = Instant::now();
        let mut taken = Taken::default();
        for (lock, mode) in &*self.locks {
            let left = timeout.map(|timeout| timeout.saturating_sub(begun.elapsed()));
            let granted = async {
                match left {
                    Some(Duration::ZERO) => Err(refused(lock, *mode, Error::late(Duration::ZERO, None))),
                    left => {
                        let limit = left.map(Limit::Timeout);
                        take(lock, *mode, Options { limit, ..options.clone() }).await
                    }
                }
            };
            // The time counts for all the locks together, so the error reports that wait, whichever lock the time ran
            // out at.
            let granted = async {
                match (granted.await, timeout) {
                    (Err(Error::Timeout { blockers, cut_off, .. }), Some(waited)) => {
                        Err(Error::Timeout { waited, blockers, cut_off })
                    }
                    (answer, _) => answer,
                }
            };
            taken.add(lock, granted).await?;
        }
        taken.complete()
    }
}

impl fmt::Debug for MultiLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.locks.iter().map(|(lock, mode)| (lock.path(), mode))).finish()
    }
}

/// The locks of a [`MultiLock`], and their options. Made by [`MultiLock::builder`].
#[derive(Debug)]
#[must_use = "nothing is opened before `build`"]
pub struct MultiLockBuilder {
    /// The options of each lock, without its path.
    options: RwLockBuilder,
    locks: Vec<(String, Mode)>,
}

impl MultiLockBuilder {
    /// Adds the lock in directory `path`, taken to read: shared with other readers.
    pub fn read(mut self, path: impl AsRef<str>) -> Self {
        self.locks.push((path.as_ref().to_owned(), Mode::Read));
        self
    }

    /// Adds the lock in directory `path`, taken to write: alone.
    pub fn write(mut self, path: impl AsRef<str>) -> Self {
        self.locks.push((path.as_ref().to_owned(), Mode::Write));
        self
    }

    /// As [`RwLockBuilder::host`], for all the locks.
    pub fn host(mut self, host: impl Into<String>) -> Self {
        self.options = self.options.host(host);
        self
    }

    /// As [`RwLockBuilder::label`], for all the locks.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.options = self.options.label(label);
        self
    }

    /// As [`RwLockBuilder::dialect`], for all the locks.
    pub fn dialect(mut self, dialect: Dialect) -> Self {
        self.options = self.options.dialect(dialect);
        self
    }

    /// As [`RwLockBuilder::warn_after_waiting`], for each of the locks.
    pub fn warn_after_waiting(mut self, limit: impl Into<Option<Duration>>) -> Self {
        self.options = self.options.warn_after_waiting(limit);
        self
    }

    /// As [`RwLockBuilder::warn_after_holding`], for each of the locks. The first lock is held while the last is waited
    /// for.
    pub fn warn_after_holding(mut self, limit: Duration) -> Self {
        self.options = self.options.warn_after_holding(limit);
        self
    }

    /// Opens the locks. Nothing is sent.
    ///
    /// # Errors
    /// [`Error::InvalidInput`] if there are no locks, if one comes twice, or if an option was wrong.
    pub fn build(self) -> Result<MultiLock, Error> {
        let mut named = self.locks;
        if named.is_empty() {
            return Err(Error::invalid("no path; a MultiLock needs at least one"));
        }
        // A node has only one valid path. Any other spelling is refused, and not taken for another node.
        named.iter().try_for_each(|(path, _)| validation::check_directory(path))?;
        named.sort_by(|(one, _), (other, _)| one.cmp(other));
        if let Some(twice) = named.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            let path = &twice[0].0;
            return Err(Error::invalid(format!("path {path:?} comes twice; a lock can be held in one mode only")));
        }
        let coordinator = self.options.coordinator();
        let open = |(path, mode)| Ok((self.options.at(path).build()?, mode));
        Ok(MultiLock { locks: named.into_iter().map(open).collect::<Result<_, Error>>()?, coordinator })
    }
}

impl Guard for MultiGuard {
    type Source = MultiLock;

    fn acquire(locks: MultiLock, options: Options) -> Granting<MultiGuard> {
        Granting::by(async move { locks.acquire(options).await })
    }
}

/// Waits for one of the locks.
async fn take(lock: &RwLock, mode: Mode, options: Options) -> Result<Box<Hold>, Error> {
    let mut acquisition = Acquisition::new(Arc::clone(lock.handle()), mode, options);
    let span = acquisition.begin();
    acquisition.acquire().instrument(span).await
}

/// Takes one of the locks after a look, without waiting for any contender, and waits for the servers no longer than
/// `limit`.
async fn take_now(lock: &RwLock, mode: Mode, limit: Duration) -> Result<Box<Hold>, Error> {
    let mut acquisition = Acquisition::new(Arc::clone(lock.handle()), mode, Options::default());
    let span = acquisition.begin();
    let take = async { acquisition.reported(acquisition.take_now(limit).await) };
    take.instrument(span).await
}

/// Fails if the lock is taken. Writes nothing. Returns the session timeout.
async fn look(lock: &RwLock, mode: Mode) -> Result<Duration, Error> {
    Acquisition::new(Arc::clone(lock.handle()), mode, Options::default()).look().await
}

/// Reports why one of the locks was not granted. Then none was.
fn refused(lock: &RwLock, mode: Mode, error: Error) -> Error {
    trace::not_granted(lock.path(), Aim::Lock(mode), &error);
    error
}
