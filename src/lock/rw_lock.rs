//! The lock, and its options; knows neither how the lock is acquired nor any concrete backend.

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

/// One read/write lock, shared by all processes that open the same path of the same ensemble.
///
/// A handle is cheap to clone, and holds nothing by itself. Each acquisition gives a guard. Dropping or
/// [releasing](WriteGuard::release) the guard gives the lock back.
///
/// # Fairness
/// Strictly first come, first served. Readers hold together, but a reader that comes after a waiting writer waits
/// behind that writer, so writers do not starve. Hence a task that holds a read lock must not wait for another read
/// lock of the same lock: with a writer queued between the two, all three wait for ever. Use [`ReadGuard::share`] for
/// that. There is no upgrade from read to write, because two upgrading readers would wait for each other. Release,
/// acquire the write lock, and look again.
///
/// An acquisition that was polled once has its place in the queue. When its turn comes, all contenders behind it wait
/// for it, even if its future is not polled any more. So poll it to its end, or drop it.
/// [`warn_after_waiting`](RwLockBuilder::warn_after_waiting) reports an acquisition that is forgotten.
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
    /// Opens the lock that is kept in directory `path`. Nothing is sent. The first acquisition makes the directory if
    /// it is missing.
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
    /// Await the returned builder, with or without options. Waits until every earlier writer has left. See [`RwLock`]
    /// for fairness.
    ///
    /// # Cancel safety
    /// Dropping the future at any point gives up the place in the queue. It leaves neither node nor watch behind, as
    /// soon as the server can be reached.
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
    /// Await the returned builder, with or without options. Waits until every earlier contender has left. See
    /// [`RwLock`] for fairness.
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

    /// Acquires the lock to read if no writer holds it or waits for it. Does not wait. Writes nothing to the ensemble
    /// if the lock is taken.
    ///
    /// The answer may be as old as the server's view of the queue. If another contender is faster to a lock that looked
    /// free, this call has written one node, and removed it. [How long it takes](Call#how-long-it-takes) is bounded by
    /// the session timeout, and with [`timeout`](Call::timeout).
    ///
    /// # Cancel safety
    /// As for [`RwLock::read`].
    ///
    /// # Errors
    /// [`Error::WouldBlock`], which names the contenders in the way. Otherwise see [`Error`].
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

    /// Acquires the lock to write if no contender holds it or waits for it. Does not wait. Writes nothing to the
    /// ensemble if the lock is taken.
    ///
    /// The answer may be as old as the server's view of the queue. If another contender is faster to a lock that looked
    /// free, this call has written one node, and removed it. [How long it takes](Call#how-long-it-takes) is bounded by
    /// the session timeout, and with [`timeout`](Call::timeout).
    ///
    /// # Cancel safety
    /// As for [`RwLock::read`].
    ///
    /// # Errors
    /// [`Error::WouldBlock`], which names the contenders in the way. Otherwise see [`Error`].
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
        flow::try_write(Arc::clone(&self.handle))
    }

    /// Blocks the thread until the lock is acquired to read: [`RwLock::read`] for code that is not async.
    ///
    /// Needs no runtime. A call from an async task blocks that task's thread. The session lives on a thread of its own,
    /// and is not disturbed. With options: [`Acquire::blocking`].
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
    /// The host that the nodes of this process name. Default: the machine's name.
    ///
    /// Letters, digits, `.`, `_` and `-`, at most 64 bytes.
    pub fn host(mut self, host: impl Into<String>) -> Self {
        self.host = Some(host.into());
        self
    }

    /// The label of every acquisition that sets none itself. Default: no label.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// The naming scheme of the lock's nodes, for a path that programs in Java or Python lock, too. Default:
    /// [`Dialect::Native`]. Give all users of the path the same dialect.
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

    /// After a writer vanishes (crash, lost connection, deleted node), its successors wait this long before they take
    /// the lock. After a release they do not wait. Default: zero.
    ///
    /// This is for work that cannot check a [fencing token](WriteGuard::fencing_token). It gives requests of the
    /// vanished writer that are still under way time to arrive. It has limits:
    ///
    /// - A contender that arrives after the writer has vanished does not know of it, and does not wait.
    /// - A reader that vanishes looks like a reader that releases.
    /// - A waiting writer that gives up looks like one that vanished, if it is of the same session as the contender
    ///   before it, which may have let it in.
    /// - A writer that downgraded, and was gone before its successor had listed the queue again, looks like one that
    ///   vanished.
    /// - A writer that releases in the moment in which its successor enters, and does not watch yet, looks like one
    ///   that vanished.
    ///
    /// Give all users of the lock the same delay.
    ///
    /// A session whose own [ACL](crate::ZooKeeperBuilder::acl) does not let it write to its nodes cannot announce a
    /// release: each of its releases looks like a vanishing.
    ///
    /// Refused in any [`dialect`](Self::dialect) but the native one: in the others no release is announced.
    pub fn lock_delay(mut self, delay: Duration) -> Self {
        self.lock_delay = delay;
        self
    }

    /// Logs one warning for an acquisition that has waited this long, with the contenders in the way. Default: never,
    /// because the user decides what is long, and because each waiter then has a timer, and keeps some names.
    ///
    /// Once the acquisition has a place in the queue, the warning comes from a background task of the session. So it
    /// comes also if the future is not polled, as in a runtime that is blocked. If the acquisition's turn has come by
    /// then, and the future is still not polled, the warning says that. Reads that wait for one
    /// [shared](Self::share_reads) node get one warning together.
    pub fn warn_after_waiting(mut self, limit: Duration) -> Self {
        self.warn_waiting = Some(limit);
        self
    }

    /// Logs one warning for a lock that has been held this long, with the holder's label. Default: never, because some
    /// locks are held for as long as a process lives, and because each hold then has a timer.
    ///
    /// A downgrade does not end a hold.
    pub fn warn_after_holding(mut self, limit: Duration) -> Self {
        self.warn_holding = Some(limit);
        self
    }

    /// What to do with an acquisition that waits for a hold of its own task, and so for ever. Default:
    /// [`Deadlock::Warn`].
    ///
    /// The check is made when the acquisition first lists the queue, against what this process holds on the same
    /// session. So it covers two handles of one coordinator, but not two connections. The guard may have moved to
    /// another task by now, which will release it: hence only a warning, unless you ask for more.
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

    /// Lets the reads of this process that use this lock, or clones of it, share one node. Hundreds of tasks that read
    /// then cost two writes of the ensemble together, and not two each. Default: each read has a node of its own.
    ///
    /// A read joins a node that another read was granted less than `max_age` ago, if that node is still held: at once,
    /// and without a request. If there is no node to join, one node enters the queue for all reads that ask meanwhile.
    /// They are granted together, or fail with the same error. The entry goes on for as long as any of them waits. The
    /// node leaves with its last guard. Reads that do not overlap share nothing, unless a guard is kept between them.
    ///
    /// Writers pay the price, because reads that join overtake the waiting writers. But a shared node holds up a writer
    /// for at most `max_age`, counted from the node's grant, plus the longest read. Later reads queue behind the
    /// writer. A read counts from its grant, even if its task has not run since. Sharing is no way to hold two read
    /// locks at once: after `max_age` the second one has to [queue](RwLock#fairness).
    ///
    /// - The guards on one node have one [token](ReadGuard::fencing_token) and are [lost](ReadGuard::lost) together. A
    ///   read never gets a guard that is lost already: after a loss the next read enters afresh.
    /// - [`release`](ReadGuard::release) of the last guard waits until the node is surely gone. An earlier release
    ///   waits for nothing.
    /// - A [timeout](Acquire::timeout), or dropping the future, concerns only the one read.
    /// - A read with a [label](Acquire::label) other than the [lock's](Self::label) enters by itself, so that the queue
    ///   shows it.
    /// - [`try_read`](RwLock::try_read) joins a node that is granted, and other reads may join its own. It does not
    ///   wait for an entry under way.
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

    /// The same options, for the lock in another directory.
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
