//! The lock, and its options; knows neither how it is acquired nor any concrete backend.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::acquisition::builder::Acquire;
use crate::acquisition::flow;
use crate::acquisition::handle::Handle;
use crate::acquisition::join;
use crate::acquisition::shared_reads::SharedReads;
use crate::call::Call;
use crate::error::error::Error;
use crate::hold::guard::{ReadGuard, WriteGuard};
use crate::queue::dialect::Dialect;
use crate::queue::native;
use crate::session::contract::Coordinator;
use crate::ticket::deadlock::Deadlock;
use crate::validation;

/// One read/write lock, shared by everyone who opens the same path of the same ensemble.
///
/// A handle is cheap to clone, and holds nothing by itself: each acquisition gives a guard, and dropping or
/// [releasing](WriteGuard::release) the guard gives the lock back.
///
/// # Fairness
/// Strictly first come, first served. Readers hold together, but a reader that comes after a waiting writer waits
/// behind that writer, so writers do not starve. Hence a task that holds a read lock must not wait for another one
/// of the same lock: with a writer queued between the two, all three wait for ever. Use
/// [`ReadGuard::share`] for that. There is no upgrade from read to write, because two upgrading readers would
/// wait for each other: release, acquire the write lock, and look again.
///
/// An acquisition that was polled once has its place in the queue, and when its turn comes all others wait for it, also if
/// nobody polls it any more: poll it to its end, or drop it. [`warn_after_waiting`](RwLockBuilder::warn_after_waiting) tells
/// of one that is forgotten.
///
/// # Examples
///
/// ```
/// use zk_rwlock::{Error, Memory, RwLock};
/// # tokio_test::block_on(async {
/// let zk = Memory::new(); // or: ZooKeeper::connect("127.0.0.1:2181").await?
/// let lock = RwLock::new(&zk, "/locks/config")?;
///
/// let one = lock.read().await?;
/// let two = lock.read().await?;
/// drop((one, two));
///
/// let write = lock.write().label("rotate keys").await?;
/// write.release().await?;
/// # Ok::<(), Error>(()) }).unwrap();
/// ```
#[derive(Clone)]
pub struct RwLock {
    pub(crate) handle: Arc<Handle>,
}

impl RwLock {
    /// Opens the lock that is kept in directory `path`. Nothing is sent; a missing directory is made by the first
    /// acquisition.
    ///
    /// # Errors
    /// [`Error::InvalidInput`] if `path` is not an absolute ZooKeeper path, or is the root or in `/zookeeper`.
    pub fn new<C: Coordinator + Clone>(coordinator: &C, path: impl AsRef<str>) -> Result<RwLock, Error> {
        RwLock::builder(coordinator, path).build()
    }

    /// As [`RwLock::new`], with options.
    ///
    /// ```
    /// # use zk_rwlock::{Memory, RwLock};
    /// let lock = RwLock::builder(&Memory::new(), "/locks/config").host("web-1").label("billing").build().unwrap();
    /// assert_eq!(lock.path(), "/locks/config");
    /// ```
    pub fn builder<C: Coordinator + Clone>(coordinator: &C, path: impl AsRef<str>) -> RwLockBuilder {
        let coordinator: Arc<dyn Coordinator> = Arc::new(coordinator.clone());
        RwLockBuilder {
            coordinator,
            path: path.as_ref().to_owned(),
            host: None,
            label: None,
            dialect: Dialect::default(),
            lock_delay: Duration::ZERO,
            warn_waiting: None,
            warn_holding: None,
            deadlock: Deadlock::default(),
            max_age: None,
        }
    }

    /// The lock's directory.
    pub fn path(&self) -> &str {
        &self.handle.path
    }

    /// Acquires the lock to read: shared with other readers.
    ///
    /// Await the returned builder, with or without options. Waits until every writer that came earlier has left.
    /// See [`RwLock`] for fairness.
    ///
    /// # Cancel safety
    /// Dropping the future at any point gives up the place in the queue and leaves nothing behind: no node and no
    /// watch, as soon as the server can be reached.
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
        Acquire::new(Arc::clone(&self.handle))
    }

    /// Acquires the lock to write: alone.
    ///
    /// Await the returned builder, with or without options. Waits until everyone who came earlier has left.
    /// See [`RwLock`] for fairness.
    ///
    /// # Cancel safety
    /// As for [`RwLock::read`].
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
    /// let held = lock.write().label("migrate v42").await?;
    /// let late = lock.write().timeout(Duration::from_millis(10)).await.unwrap_err();
    /// assert!(late.to_string().contains("migrate v42"), "{late}");
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub fn write(&self) -> Acquire<WriteGuard> {
        Acquire::new(Arc::clone(&self.handle))
    }

    /// Acquires the lock to read if no writer holds it or waits for it; does not wait, and when the lock is taken
    /// writes nothing to the ensemble.
    ///
    /// The answer may be as old as the server's view of the queue. Whoever is beaten to a lock that looked free has
    /// written one node, and removed it. [How long it takes](Call#how-long-it-takes) is bounded by the session timeout,
    /// and with [`timeout`](Call::timeout).
    ///
    /// # Cancel safety
    /// As for [`RwLock::read`].
    ///
    /// # Errors
    /// [`Error::WouldBlock`], which says who is in the way; otherwise see [`Error`].
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
        join::try_read(Arc::clone(&self.handle))
    }

    /// Acquires the lock to write if nobody holds it or waits for it; does not wait, and when the lock is taken
    /// writes nothing to the ensemble.
    ///
    /// The answer may be as old as the server's view of the queue. Whoever is beaten to a lock that looked free has
    /// written one node, and removed it. [How long it takes](Call#how-long-it-takes) is bounded by the session timeout,
    /// and with [`timeout`](Call::timeout).
    ///
    /// # Cancel safety
    /// As for [`RwLock::read`].
    ///
    /// # Errors
    /// [`Error::WouldBlock`], which says who is in the way; otherwise see [`Error`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use zk_rwlock::{Error, Memory, RwLock};
    /// # tokio_test::block_on(async {
    /// # let lock = RwLock::new(&Memory::new(), "/locks/partition-7")?;
    /// match lock.try_write().await {
    ///     Ok(guard) => { /* work on the partition */ }
    ///     Err(error) if error.is_would_block() => { /* somebody else does */ }
    ///     Err(error) => return Err(error),
    /// }
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub fn try_write(&self) -> Call<WriteGuard> {
        flow::try_write(Arc::clone(&self.handle))
    }

    /// Blocks the thread until the lock is acquired to read: [`RwLock::read`] for code that is not async.
    ///
    /// Needs no runtime. Called from an async task it blocks that task's thread; the session lives on a thread of
    /// its own and is not disturbed. With options: [`Acquire::blocking`].
    ///
    /// # Errors
    /// As for [`RwLock::read`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use zk_rwlock::{Error, Memory, RwLock};
    /// let lock = RwLock::new(&Memory::new(), "/locks/config")?;
    /// let guard = lock.blocking_read()?;
    /// # Ok::<(), Error>(())
    /// ```
    pub fn blocking_read(&self) -> Result<ReadGuard, Error> {
        self.read().blocking()
    }

    /// Blocks the thread until the lock is acquired to write: [`RwLock::write`] for code that is not async.
    ///
    /// As for [`RwLock::blocking_read`]. With options: [`Acquire::blocking`].
    ///
    /// # Errors
    /// As for [`RwLock::write`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use zk_rwlock::{Error, Memory, RwLock};
    /// let lock = RwLock::new(&Memory::new(), "/locks/config")?;
    /// let guard = lock.blocking_write()?;
    /// # Ok::<(), Error>(())
    /// ```
    pub fn blocking_write(&self) -> Result<WriteGuard, Error> {
        self.write().blocking()
    }
}

impl fmt::Debug for RwLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RwLock")
            .field("path", &self.handle.path)
            .field("host", &self.handle.host)
            .finish_non_exhaustive()
    }
}

/// Options of a lock. Made by [`RwLock::builder`].
#[derive(Clone, Debug)]
#[must_use = "nothing is opened before `build`"]
pub struct RwLockBuilder {
    coordinator: Arc<dyn Coordinator>,
    path: String,
    host: Option<String>,
    label: Option<String>,
    dialect: Dialect,
    lock_delay: Duration,
    warn_waiting: Option<Duration>,
    warn_holding: Option<Duration>,
    deadlock: Deadlock,
    max_age: Option<Duration>,
}

impl RwLockBuilder {
    /// The host that this process's nodes name. Default: the machine's name.
    ///
    /// Letters, digits, `.`, `_` and `-`, at most 64 bytes.
    pub fn host(mut self, host: impl Into<String>) -> Self {
        self.host = Some(host.into());
        self
    }

    /// What every acquisition says it is doing, unless it says otherwise itself. Default: nothing.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// Whose names the lock's nodes have: for a path that programs in Java or Python lock, too. Default:
    /// [`Dialect::Native`]. Give everyone who uses the path the same.
    ///
    /// # Examples
    ///
    /// ```
    /// # use zk_rwlock::{Dialect, Error, Memory, RwLock};
    /// # tokio_test::block_on(async {
    /// # let zk = Memory::new();
    /// let lock = RwLock::builder(&zk, "/locks/config").dialect(Dialect::Kazoo).build()?;
    /// let guard = lock.read().await?; // kazoo's WriteLock(client, "/locks/config") waits, its ReadLock does not
    /// assert!(guard.path().contains("__rlock__"));
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub fn dialect(mut self, dialect: Dialect) -> Self {
        self.dialect = dialect;
        self
    }

    /// Has whoever waited for a writer that vanished (crashed, was cut off, had its node removed) wait this long
    /// before it takes the lock; a writer that released is followed at once. Default: zero.
    ///
    /// For work that cannot check a [fencing token](WriteGuard::fencing_token): it gives requests of the vanished
    /// holder that are still under way time to arrive. A waiting writer that gives up looks like one that vanished if it
    /// is of the same session as the contender before it, which may have let it in.
    /// Those who arrive after it has vanished do not know of it, and readers that vanish are not told from those that
    /// release. A writer that downgraded, and was gone before whoever waited had looked again, looks like one that
    /// vanished; so does one that released in the moment in which whoever comes enters and does not watch yet. Give
    /// everyone who uses the lock the same delay.
    ///
    /// A session whose own [ACL](crate::ZooKeeperBuilder::acl) does not let it write to its nodes cannot say that it
    /// releases: each of its releases looks like a vanishing.
    ///
    /// Refused in another [`dialect`](Self::dialect) than the native one, where nobody says that it released.
    pub fn lock_delay(mut self, delay: Duration) -> Self {
        self.lock_delay = delay;
        self
    }

    /// Logs a warning, once, for an acquisition that has waited this long: with who is in the way. Default: never, because
    /// what is long is the user's to say, and because each waiter then has a timer, and keeps some names.
    ///
    /// Once the acquisition has a place in the queue, the warning comes from the session's own background, also if the
    /// future is not polled, as in a runtime that is blocked. If its turn has come by then, and the future is still not
    /// polled, the warning says that. Reads that wait for one [shared](Self::share_reads) node are warned of together.
    pub fn warn_after_waiting(mut self, limit: Duration) -> Self {
        self.warn_waiting = Some(limit);
        self
    }

    /// Logs a warning, once, for a lock that has been held this long: with the label of whoever holds it. Default: never,
    /// because some locks are held for as long as a process lives, and because each hold then has a timer.
    ///
    /// A holder that downgrades goes on holding.
    pub fn warn_after_holding(mut self, limit: Duration) -> Self {
        self.warn_holding = Some(limit);
        self
    }

    /// What becomes of an acquisition that waits for a hold of its own task, and so for ever. Default:
    /// [`Deadlock::Warn`].
    ///
    /// Seen when it first looks at the queue, from what this process holds on the same session: two handles of one
    /// coordinator are seen together, two connections are not. Somebody else may hold the guard by now, and release it:
    /// hence only a warning, unless you ask for more.
    ///
    /// # Examples
    ///
    /// ```
    /// # use zk_rwlock::{Deadlock, Error, Memory, RwLock};
    /// # let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    /// # runtime.block_on(async {
    /// # let zk = Memory::new();
    /// let lock = RwLock::builder(&zk, "/locks/config").on_deadlock(Deadlock::Refuse).build()?;
    /// let reader = lock.read().await?;
    /// assert!(matches!(lock.write().await, Err(Error::WouldDeadlock { same_task: true, .. })));
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub fn on_deadlock(mut self, deadlock: Deadlock) -> Self {
        self.deadlock = deadlock;
        self
    }

    /// Has the reads of this process that use this lock, or clones of it, share one node: hundreds of tasks that read
    /// pay for two writes of the ensemble together, and not each. Default: each read has a node of its own.
    ///
    /// A read joins the node that another one was granted less than `max_age` ago, at once and without a request, if
    /// it is still held. If there is none to join, one node enters for all who ask meanwhile, and they are granted it
    /// together, or fail with the same error; it goes on for as long as any of them waits. The node leaves with its last
    /// guard: reads that do not overlap share nothing, unless a guard is kept between them.
    ///
    /// Writers pay the price: reads that join overtake those who wait. But a writer is held up by a shared node for at
    /// most `max_age`, counted from when that node was granted, plus the longest read; the reads that come later queue
    /// behind it. A read counts from its grant, whether its task has run since or not. Sharing is no way to hold two
    /// read locks at once: once the age is over the second one has to [queue](RwLock#fairness).
    ///
    /// - The guards on one node have one [token](ReadGuard::fencing_token) and are [lost](ReadGuard::lost) together. None
    ///   is handed out that is lost already: after a loss the next read enters afresh.
    /// - [`release`](ReadGuard::release) of the last guard waits until the node is surely gone, of others for nothing.
    /// - [Timeouts](Acquire::timeout) and cancelling concern only the one read.
    /// - A read with a [label](Acquire::label) other than the [lock's](Self::label) enters by itself, so that the
    ///   queue shows it.
    /// - [`try_read`](RwLock::try_read) joins what is granted, and what it is granted itself may be joined; it does not
    ///   wait for the entering of others.
    ///
    /// Zero is refused.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use zk_rwlock::{Error, Memory, RwLock};
    /// # tokio_test::block_on(async {
    /// # let zk = Memory::new();
    /// let lock = RwLock::builder(&zk, "/locks/config").share_reads(Duration::from_millis(100)).build()?;
    /// let (one, two) = tokio::join!(lock.read(), lock.clone().read());
    /// assert_eq!(one?.path(), two?.path());
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub fn share_reads(mut self, max_age: Duration) -> Self {
        self.max_age = Some(max_age);
        self
    }

    pub(crate) fn coordinator(&self) -> Arc<dyn Coordinator> {
        Arc::clone(&self.coordinator)
    }

    /// The same, for the lock in another directory.
    pub(crate) fn at(&self, path: String) -> RwLockBuilder {
        RwLockBuilder { path, ..self.clone() }
    }

    /// Opens the lock. Nothing is sent.
    ///
    /// # Errors
    /// [`Error::InvalidInput`] says which option was wrong, and how.
    pub fn build(self) -> Result<RwLock, Error> {
        validation::check_directory(&self.path)?;
        if let Some(host) = &self.host {
            validation::check_host(host)?;
        }
        validation::check_label(self.label.as_deref())?;
        if self.max_age == Some(Duration::ZERO) {
            return Err(Error::invalid("a max_age of zero; to share no reads, leave share_reads out"));
        }
        if !self.dialect.hands_off() && !self.lock_delay.is_zero() {
            return Err(Error::invalid(format!(
                "a lock_delay in the dialect {}, where a writer that released looks like one that vanished",
                self.dialect
            )));
        }
        let path: Arc<str> = self.path.into();
        Ok(RwLock {
            handle: Arc::new(Handle {
                book: Mutex::default(),
                coordinator: self.coordinator,
                path,
                host: self.host.unwrap_or_else(native::machine),
                label: self.label,
                dialect: self.dialect,
                lock_delay: self.lock_delay,
                warn_waiting: self.warn_waiting,
                warn_holding: self.warn_holding,
                deadlock: self.deadlock,
                reads: SharedReads::new(self.max_age.unwrap_or_default()),
            }),
        })
    }
}
