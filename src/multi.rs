//! Several locks at once: all or none; knows no queue and no backend.

use std::fmt;
use std::future::{Future, IntoFuture, poll_fn};
use std::mem;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::{Duration, Instant as StdInstant};

use thiserror::Error;
use tokio::time::Instant;

use crate::coordinator::Coordinator;
use crate::dialect::Dialect;
use crate::error::Error;
use crate::guard::{Held, NodeData};
use crate::lock::{RwLock, check_label};
use crate::name::Mode;
use crate::path;
use crate::tenure::{Changes, HoldState, Loss};
use crate::transaction::Transaction;

/// Several read/write locks that are taken together: all or none.
///
/// Each path is an [`RwLock`] as any other, and whoever takes one of them alone queues with those who take several.
/// Like [`RwLock`], a handle is cheap to clone and holds nothing by itself.
///
/// # Order
/// The locks are taken one after the other, in the order of their paths, whatever the order in which they were named:
/// so those who take the same locks never wait for each other in a circle. The first ones are held while the next are
/// waited for. If one cannot be had, or one is lost meanwhile, those that were taken are given back, the last one first.
///
/// That order protects only those who keep it: a task that holds a lock, or a [`MultiGuard`], must not wait for a lock
/// whose path comes earlier, nor for one that it holds already. See also [fairness](RwLock#fairness).
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
    /// In the order in which they are taken.
    locks: Arc<[(RwLock, Mode)]>,
}

impl MultiLock {
    /// Opens the locks that are kept in these directories, each to be taken in its mode. Nothing is sent.
    ///
    /// # Errors
    /// [`Error::InvalidInput`] if there are none, if a path comes twice, or if [`RwLock::new`] would refuse one.
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
        P: Into<String>,
    {
        let mut builder = MultiLock::builder(coordinator);
        builder.locks.extend(locks.into_iter().map(|(path, mode)| (path.into(), mode)));
        builder.build()
    }

    /// As [`MultiLock::new`], with options.
    pub fn builder<C: Coordinator + Clone>(coordinator: &C) -> MultiLockBuilder {
        MultiLockBuilder {
            coordinator: Arc::new(coordinator.clone()),
            locks: Vec::new(),
            host: None,
            label: None,
            dialect: Dialect::default(),
            lock_delay: Duration::ZERO,
        }
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
    /// Dropping the future at any point gives back what was taken, and the place in the queue of the next one: no node
    /// and no watch is left behind, as soon as the server can be reached.
    ///
    /// # Errors
    /// [`Error::OneOfMany`] says which lock failed, and how; [`Error::Timeout`] only if a
    /// [`timeout`](AcquireMulti::timeout) was given. [`Error::Evicted`] may be about a lock that had been taken already.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use zk_rwlock::{Error, Memory, Mode, MultiLock, RwLock};
    /// # tokio_test::block_on(async {
    /// # let zk = Memory::new();
    /// let held = RwLock::new(&zk, "/locks/b")?.write().label("migrate v42").await?;
    /// let both = MultiLock::new(&zk, [("/locks/a", Mode::Write), ("/locks/b", Mode::Write)])?;
    /// let late = both.lock().timeout(Duration::from_millis(10)).await.unwrap_err();
    /// assert!(late.is_timeout() && late.to_string().starts_with("/locks/b: not granted within 10ms"), "{late}");
    /// assert!(late.to_string().contains("migrate v42"));
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub fn lock(&self) -> AcquireMulti {
        AcquireMulti { locks: self.clone(), timeout: None, label: None }
    }

    /// Acquires all the locks if none of them is taken; does not wait, and when one is taken writes nothing to the
    /// ensemble.
    ///
    /// Looks at all of them at once, and then enters one after the other. Whoever is beaten to one after that look
    /// gives back those it had taken. See [`RwLock::try_write`] for the rest.
    ///
    /// # Cancel safety
    /// As for [`MultiLock::lock`].
    ///
    /// # Errors
    /// [`Error::OneOfMany`] with the first lock that is taken and [`Error::WouldBlock`], which says who is in the way;
    /// otherwise as for [`MultiLock::lock`].
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
    pub async fn try_lock(&self) -> Result<MultiGuard, Error> {
        let looks = self.locks.iter().map(|(lock, mode)| lock.look(*mode)).collect();
        for ((lock, _), look) in self.locks.iter().zip(all_of(looks).await) {
            look.map_err(|error| error.of_one(lock.path()))?;
        }
        let mut taken = Taken::default();
        for (lock, mode) in &*self.locks {
            taken.add(lock, lock.take_now(*mode)).await?;
        }
        taken.complete()
    }

    /// Blocks the thread until all the locks are acquired: [`MultiLock::lock`] for code that is not async.
    ///
    /// Needs no runtime. With options: [`AcquireMulti::blocking`].
    ///
    /// # Errors
    /// As for [`MultiLock::lock`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use zk_rwlock::{Error, Memory, Mode, MultiLock};
    /// let both = MultiLock::new(&Memory::new(), [("/locks/a", Mode::Write), ("/locks/b", Mode::Read)])?;
    /// let guard = both.blocking_lock()?;
    /// # Ok::<(), Error>(())
    /// ```
    pub fn blocking_lock(&self) -> Result<MultiGuard, Error> {
        self.lock().blocking()
    }

    async fn acquire(&self, timeout: Option<Duration>, label: Option<String>) -> Result<MultiGuard, Error> {
        check_label(label.as_deref())?;
        if timeout == Some(Duration::ZERO) {
            return Err(Error::invalid("a timeout of zero; to not wait at all, use try_lock"));
        }
        let begun = Instant::now();
        let mut taken = Taken::default();
        for (lock, mode) in &*self.locks {
            let left = timeout.map(|timeout| timeout.saturating_sub(begun.elapsed()));
            let granted = async {
                match left {
                    Some(Duration::ZERO) => {
                        Err(Error::Timeout { waited: Duration::ZERO, blockers: Default::default() })
                    }
                    left => lock.take(*mode, left, label.clone()).await,
                }
            };
            // What was waited for is the whole, whichever of the locks the time ran out at.
            let granted = async {
                match (granted.await, timeout) {
                    (Err(Error::Timeout { blockers, .. }), Some(waited)) => Err(Error::Timeout { waited, blockers }),
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
    coordinator: Arc<dyn Coordinator>,
    locks: Vec<(String, Mode)>,
    host: Option<String>,
    label: Option<String>,
    dialect: Dialect,
    lock_delay: Duration,
}

impl MultiLockBuilder {
    /// Adds the lock in directory `path`, to be taken shared with other readers.
    pub fn read(mut self, path: impl Into<String>) -> Self {
        self.locks.push((path.into(), Mode::Read));
        self
    }

    /// Adds the lock in directory `path`, to be taken alone.
    pub fn write(mut self, path: impl Into<String>) -> Self {
        self.locks.push((path.into(), Mode::Write));
        self
    }

    /// As [`RwLockBuilder::host`](crate::RwLockBuilder::host), for all the locks.
    pub fn host(mut self, host: impl Into<String>) -> Self {
        self.host = Some(host.into());
        self
    }

    /// As [`RwLockBuilder::label`](crate::RwLockBuilder::label), for all the locks.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// As [`RwLockBuilder::dialect`](crate::RwLockBuilder::dialect), for all the locks.
    pub fn dialect(mut self, dialect: Dialect) -> Self {
        self.dialect = dialect;
        self
    }

    /// As [`RwLockBuilder::lock_delay`](crate::RwLockBuilder::lock_delay), for each of the locks.
    pub fn lock_delay(mut self, delay: Duration) -> Self {
        self.lock_delay = delay;
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
        // A node has one valid path only: what is written in another way is refused, and not taken for another node.
        named.iter().try_for_each(|(path, _)| path::check_directory(path))?;
        named.sort_by(|(one, _), (other, _)| one.cmp(other));
        if let Some(twice) = named.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            let path = &twice[0].0;
            return Err(Error::invalid(format!("path {path:?} comes twice; a lock can be held in one mode only")));
        }
        let open = |(path, mode): (String, Mode)| {
            let mut builder =
                RwLock::builder(&self.coordinator, &path).dialect(self.dialect).lock_delay(self.lock_delay);
            if let Some(host) = &self.host {
                builder = builder.host(host);
            }
            if let Some(label) = &self.label {
                builder = builder.label(label);
            }
            Ok((builder.build()?, mode))
        };
        Ok(MultiLock { locks: named.into_iter().map(open).collect::<Result<_, Error>>()? })
    }
}

/// An acquisition of several locks that has not started: await it, or set options first. Made by [`MultiLock::lock`].
#[derive(Debug)]
#[must_use = "nothing is acquired before this is awaited"]
pub struct AcquireMulti {
    locks: MultiLock,
    timeout: Option<Duration>,
    label: Option<String>,
}

impl AcquireMulti {
    /// Gives up, and gives back what was taken, when not all the locks were granted within `timeout`, counted for all
    /// of them together.
    ///
    /// The error is told in time, also while disconnected. Zero is refused: that is what
    /// [`try_lock`](MultiLock::try_lock) is for.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// What this acquisition is for, in words for people: the queues of all the locks show it. At most 256 bytes,
    /// without control characters.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// Blocks the thread until all the locks are granted. Needs no runtime.
    ///
    /// # Errors
    /// As when awaited.
    pub fn blocking(self) -> Result<MultiGuard, Error> {
        pollster::block_on(self.into_future())
    }
}

impl IntoFuture for AcquireMulti {
    type Output = Result<MultiGuard, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.locks.acquire(self.timeout, self.label).await })
    }
}

/// Which of several locks was lost, and why. Told by [`MultiGuard::lost`].
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
#[error("{path}: {why}")]
pub struct MultiLoss {
    /// The lock's directory.
    pub path: String,
    /// Why it was lost.
    pub why: Loss,
}

impl From<MultiLoss> for Error {
    fn from(loss: MultiLoss) -> Error {
        Error::Lost(loss.why).of_one(&loss.path)
    }
}

/// What was taken. Given back from the last to the first when it is dropped.
#[derive(Default)]
struct Taken {
    /// In the order in which they were taken, which is that of their paths.
    locks: Vec<Held>,
    first_loss: OnceLock<MultiLoss>,
}

impl Taken {
    /// Adds the next lock when it is granted, unless one of the others is lost before that.
    async fn add(
        &mut self,
        lock: &RwLock,
        granted: impl Future<Output = Result<Box<Held>, Error>>,
    ) -> Result<(), Error> {
        let held = tokio::select! {
            biased;
            answer = granted => answer.map_err(|error| error.of_one(lock.path()))?,
            loss = self.lost() => return Err(evicted(loss)),
        };
        self.locks.push(*held);
        Ok(())
    }

    /// The guard, if nothing was lost on the way.
    fn complete(self) -> Result<MultiGuard, Error> {
        match self.loss() {
            Some(loss) => Err(evicted(loss)),
            None => Ok(MultiGuard { taken: self }),
        }
    }

    fn loss(&self) -> Option<MultiLoss> {
        let found = self.locks.iter().find_map(|held| Some(loss_of(held, held.loss()?)));
        // What was found first stays the answer.
        self.first_loss.get().cloned().or_else(|| found.map(|loss| self.first_loss.get_or_init(|| loss).clone()))
    }

    async fn lost(&self) -> MultiLoss {
        let each = self.locks.iter().map(|held| async { loss_of(held, held.lost().await) });
        let loss = match self.loss() {
            Some(loss) => loss,
            None => first_of(each.collect()).await,
        };
        self.first_loss.get_or_init(|| loss).clone()
    }

    fn find(&self, path: &str) -> Option<&Held> {
        self.locks.iter().find(|held| held.directory() == path)
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        while self.locks.pop().is_some() {}
    }
}

fn loss_of(held: &Held, why: Loss) -> MultiLoss {
    MultiLoss { path: held.directory().to_owned(), why }
}

/// A loss before all were granted.
fn evicted(loss: MultiLoss) -> Error {
    Error::Evicted(loss.why).of_one(&loss.path)
}

/// Several locks, held together. Made by [`MultiLock::lock`].
///
/// The guard is lost as soon as any of its locks is. The others stay taken until it is [released](Self::release) or
/// dropped, which gives them back from the last to the first, in the background: from anywhere, also outside a runtime
/// and in a panic. See [`WriteGuard`](crate::WriteGuard) for a program that ends right after that.
#[must_use = "if unused, the locks are given back at once"]
pub struct MultiGuard {
    /// Never empty.
    taken: Taken,
}

impl MultiGuard {
    /// The locks' directories, in the order in which they were taken.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.taken.locks.iter().map(|held| held.directory())
    }

    /// The path of each lock's node, in the same order.
    ///
    /// Anybody's ZooKeeper transaction that checks that these nodes exist is done only while all the locks are held.
    pub fn nodes(&self) -> impl Iterator<Item = String> {
        self.taken.locks.iter().map(|held| held.tenure().path())
    }

    /// The [fencing token](crate::WriteGuard::fencing_token) of the lock in directory `path`; `None` if that is not
    /// among the locks.
    ///
    /// Each resource is told the token of the lock that guards it: tokens of different locks do not compare.
    ///
    /// # Examples
    ///
    /// ```
    /// # use zk_rwlock::{Error, Memory, Mode, MultiLock};
    /// # tokio_test::block_on(async {
    /// # let both = MultiLock::new(&Memory::new(), [("/locks/a", Mode::Write), ("/locks/b", Mode::Write)])?;
    /// let earlier = both.lock().await?.fencing_token("/locks/a").unwrap();
    /// let guard = both.lock().await?;
    /// assert!(guard.fencing_token("/locks/a").unwrap() > earlier);
    /// assert_eq!(guard.fencing_tokens().count(), 2);
    /// assert_eq!(guard.fencing_token("/locks/c"), None);
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub fn fencing_token(&self, path: &str) -> Option<i64> {
        self.taken.find(path).map(|held| held.standing().czxid)
    }

    /// Each lock's directory with its fencing token, in the order in which they were taken.
    pub fn fencing_tokens(&self) -> impl Iterator<Item = (&str, i64)> {
        self.taken.locks.iter().map(|held| (held.directory(), held.standing().czxid))
    }

    /// Whether all the locks are still held. See [`WriteGuard::is_held`](crate::WriteGuard::is_held).
    pub fn is_held(&self) -> bool {
        self.taken.loss().is_none()
    }

    /// How sure it is that all the locks are held: in doubt if one of them is, until the earliest would be lost.
    pub fn state(&self) -> HoldState {
        match self.taken.loss() {
            Some(loss) => HoldState::Lost { why: loss.why },
            None => together(self.taken.locks.iter().map(|held| held.state())),
        }
    }

    /// The changes of [`state`](Self::state), as they come.
    ///
    /// # Examples
    ///
    /// ```
    /// # use zk_rwlock::{Error, HoldState, Loss, Memory, Mode, MultiLock};
    /// # tokio_test::block_on(async {
    /// # let zk = Memory::new();
    /// # let both = MultiLock::new(&zk, [("/locks/a", Mode::Write), ("/locks/b", Mode::Read)])?;
    /// let guard = both.lock().await?;
    /// let mut changes = guard.changes();
    /// assert_eq!(changes.next().await, Some(HoldState::Held));
    /// zk.remove("/locks/b");
    /// assert_eq!(changes.next().await, Some(HoldState::Lost { why: Loss::Removed }));
    /// assert_eq!(changes.next().await, None);
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub fn changes(&self) -> MultiChanges {
        MultiChanges { each: self.taken.locks.iter().map(|held| (held.changes(), None)).collect(), last: None }
    }

    /// Waits until the first of the locks is lost, and says which and why: before the ensemble can give it to anybody
    /// else. Pending for as long as all are held.
    ///
    /// Of locks that are found lost together, the first by path is named; the answer never changes later.
    ///
    /// # Cancel safety
    /// Nothing is lost by dropping the future.
    ///
    /// # Examples
    ///
    /// ```
    /// # use zk_rwlock::{Error, Memory, Mode, MultiLock};
    /// # async fn process_batch() {}
    /// # tokio_test::block_on(async {
    /// # let both = MultiLock::new(&Memory::new(), [("/locks/a", Mode::Write), ("/locks/b", Mode::Read)])?;
    /// let guard = both.lock().await?;
    /// tokio::select! {
    ///     () = process_batch() => guard.release().await?,
    ///     loss = guard.lost() => eprintln!("stopped: lost {}, because {}", loss.path, loss.why),
    /// }
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub async fn lost(&self) -> MultiLoss {
        self.taken.lost().await
    }

    /// Runs `work` while all the locks are held, and drops it as soon as one is lost. See
    /// [`WriteGuard::run`](crate::WriteGuard::run).
    ///
    /// # Cancel safety
    /// Dropping the future drops `work`.
    ///
    /// # Errors
    /// [`Error::OneOfMany`] with [`Error::Lost`], also when the work was done but a lock had been lost by then.
    ///
    /// # Examples
    ///
    /// ```
    /// # use zk_rwlock::{Error, Memory, Mode, MultiLock};
    /// # tokio_test::block_on(async {
    /// # let both = MultiLock::new(&Memory::new(), [("/locks/a", Mode::Write), ("/locks/b", Mode::Read)])?;
    /// let guard = both.lock().await?;
    /// assert_eq!(guard.run(async { 42 }).await?, 42);
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub async fn run<F: Future>(&self, work: F) -> Result<F::Output, Error> {
        tokio::select! {
            biased;
            loss = self.lost() => Err(loss.into()),
            output = work => Ok(output),
        }
    }

    /// Reads any node; `None` if it does not exist.
    ///
    /// Reads on the session that was granted its lock last, and so sees everything that earlier holders of any of
    /// these locks wrote to ZooKeeper before they let go.
    ///
    /// # Cancel safety
    /// Only reads.
    ///
    /// # Errors
    /// [`Error::OneOfMany`] with [`Error::Lost`] if a lock is gone; [`Error::PermissionDenied`], [`Error::InvalidInput`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use zk_rwlock::{Error, Memory, Mode, MultiLock};
    /// # tokio_test::block_on(async {
    /// # let both = MultiLock::new(&Memory::new(), [("/locks/a", Mode::Write), ("/locks/b", Mode::Read)])?;
    /// let guard = both.lock().await?;
    /// assert_eq!(guard.data("/config").await?, None);
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub async fn data(&self, path: &str) -> Result<Option<NodeData>, Error> {
        path::check(path)?;
        match (self.taken.loss(), self.taken.locks.last()) {
            (None, Some(last)) => last.data(path).await.map_err(|error| match error {
                lost @ Error::Lost(_) => lost.of_one(last.directory()),
                error => error,
            }),
            (Some(loss), _) => Err(loss.into()),
            (None, None) => Ok(None),
        }
    }

    /// Starts a transaction that is committed only if all the locks are still held then. See [`Transaction`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use zk_rwlock::{Error, Memory, Mode, MultiLock};
    /// # tokio_test::block_on(async {
    /// # let zk = Memory::new();
    /// # let both = MultiLock::new(&zk, [("/locks/a", Mode::Write), ("/locks/b", Mode::Read)])?;
    /// let guard = both.lock().await?;
    /// guard.transaction().create("/config", "v1").commit().await?;
    ///
    /// zk.remove("/locks/b"); // an operator breaks one of the locks
    /// let refused = guard.transaction().set("/config", "v2").commit().await.unwrap_err();
    /// assert!(refused.is_lost() && refused.to_string().starts_with("/locks/b: "), "{refused}");
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub fn transaction(&self) -> Transaction<'_> {
        Transaction::under_all(&self.taken.locks)
    }

    /// Gives all the locks back, from the last to the first, and returns when their nodes are surely gone.
    ///
    /// All requests are sent before any is answered: it takes as long as one release.
    ///
    /// # Cancel safety
    /// Dropping the future after its first poll lets the release go on in the background; before it, drops the guard.
    ///
    /// # Errors
    /// [`Error::OneOfMany`] with the lock that had been lost before, or else the first whose node could not be deleted:
    /// see [`WriteGuard::release`](crate::WriteGuard::release). All the others have been given back.
    pub async fn release(mut self) -> Result<(), Error> {
        let loss = self.taken.loss();
        let locks = mem::take(&mut self.taken.locks);
        let release = |held: Held| async {
            let path = held.directory().to_owned();
            held.release().await.map_err(|error| error.of_one(&path))
        };
        let released = all_of(locks.into_iter().rev().map(release).collect()).await;
        match loss {
            Some(loss) => Err(loss.into()),
            None => released.into_iter().rev().collect(),
        }
    }
}

impl fmt::Debug for MultiGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MultiGuard")
            .field("nodes", &self.nodes().collect::<Vec<_>>())
            .field("is_held", &self.is_held())
            .finish()
    }
}

/// The changes of a [`MultiGuard`]'s [`HoldState`]. Made by [`MultiGuard::changes`].
#[derive(Debug)]
pub struct MultiChanges {
    /// With the state that each told last.
    each: Vec<(Changes, Option<HoldState>)>,
    last: Option<HoldState>,
}

impl MultiChanges {
    /// Waits for the next state: the first call answers at once with the present one, and after
    /// [`HoldState::Lost`], or when the guard was released, there are no more.
    ///
    /// # Cancel safety
    /// No state is lost by dropping the future.
    pub async fn next(&mut self) -> Option<HoldState> {
        while !matches!(self.last, Some(HoldState::Lost { .. })) {
            let told = self.each.iter_mut().map(|(changes, state)| async {
                let next = changes.next().await;
                *state = next;
                next.is_some()
            });
            if !first_of(told.collect()).await {
                return None;
            }
            // Until each has told its first state there is none of the whole.
            let Some(states) = self.each.iter().map(|(_, state)| *state).collect::<Option<Vec<_>>>() else {
                continue;
            };
            let state = together(states.into_iter());
            if self.last.map(|last| mem::discriminant(&last)) != Some(mem::discriminant(&state)) {
                self.last = Some(state);
                return self.last;
            }
        }
        None
    }
}

/// The state of all of these together: the worst of them.
fn together(states: impl Iterator<Item = HoldState>) -> HoldState {
    let rank = |state: &HoldState| match state {
        HoldState::Held => (2, None),
        HoldState::Suspect { until } => (1, Some(*until)),
        HoldState::Lost { .. } => (0, None::<StdInstant>),
    };
    states.min_by_key(rank).unwrap_or(HoldState::Held)
}

/// What the first of them gives; of those that are ready together, the first in the list. Pending if there are none.
async fn first_of<F: Future>(futures: Vec<F>) -> F::Output {
    let mut futures: Vec<_> = futures.into_iter().map(Box::pin).collect();
    poll_fn(|context| {
        let ready = futures.iter_mut().find_map(|future| match future.as_mut().poll(context) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        });
        ready.map_or(Poll::Pending, Poll::Ready)
    })
    .await
}

/// What all of them give, in their order. They are first polled in that order, too.
async fn all_of<F: Future>(futures: Vec<F>) -> Vec<F::Output> {
    let mut running: Vec<_> = futures.into_iter().map(|future| (Box::pin(future), None)).collect();
    poll_fn(|context| {
        for (future, output) in &mut running {
            if output.is_none()
                && let Poll::Ready(ready) = future.as_mut().poll(context)
            {
                *output = Some(ready);
            }
        }
        if running.iter().all(|(_, output)| output.is_some()) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    running.into_iter().filter_map(|(_, output)| output).collect()
}
