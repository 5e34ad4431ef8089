//! The lock, and how it is acquired; knows no concrete backend.

use std::collections::hash_map::RandomState;
use std::fmt;
use std::future::{Future, IntoFuture, poll_fn};
use std::hash::BuildHasher;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::{Duration, SystemTime};

use tracing::{Instrument, Span};

use crate::coordinator::{Coordinator, Event, Failure, Operation, Session};
use crate::deadlock::{Asker, Deadlock, OwnHold};
use crate::dialect::Dialect;
use crate::error::Error;
use crate::guard::{Held, ReadGuard, WriteGuard};
use crate::listing::Names;
use crate::meter;
use crate::name::{self, Contender, Mode, Owner};
use crate::path;
use crate::place::{self, Place};
use crate::progress::{OnWait, Progress};
use crate::queue::{self, Blockers, Member, Note, Queue};
use crate::shared_reads::{SharedReads, Work};
use crate::succession::Succession;
use crate::tenure::Loss;
use crate::trace::Acquiring;
use crate::turn::{self, Turn};

/// How often a directory may vanish between its making and our entering before something must be wrong.
const DIRECTORY_TRIES: usize = 64;

/// How often a quorum may confirm our node without the lease becoming valid, before something must be wrong.
const LEASE_TRIES: u32 = 100;

/// How often an acquisition starts over because its session ended before it had a place.
const SESSION_TRIES: usize = 3;

/// A timed-out acquisition looks up who is in its way so long before its time is over, at most.
const LOOK_UP_AHEAD: Duration = Duration::from_millis(200);

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
    shared: Arc<Shared>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    coordinator: Arc<dyn Coordinator>,
    pub(crate) path: Arc<str>,
    pub(crate) host: String,
    pub(crate) label: Option<String>,
    dialect: Dialect,
    lock_delay: Duration,
    warn_waiting: Option<Duration>,
    warn_holding: Option<Duration>,
    deadlock: Deadlock,
    reads: SharedReads,
    succession: Succession,
}

impl Shared {
    /// Fails if somebody is in the directory who may go by another rule.
    fn check_for_strangers(&self, names: &[String]) -> Result<(), Error> {
        turn::stranger(self.dialect, names).map_or(Ok(()), |node| Err(self.doubt(node)))
    }

    fn doubt(&self, stranger: &str) -> Error {
        let speaks = self.dialect.stranger(stranger).unwrap_or(self.dialect);
        let (path, node) = (self.path.to_string(), stranger.to_owned());
        Error::ForeignContender { path, node, speaks, dialect: self.dialect }
    }
}

impl RwLock {
    /// Opens the lock that is kept in directory `path`. Nothing is sent; a missing directory is made by the first
    /// acquisition.
    ///
    /// # Errors
    /// [`Error::InvalidInput`] if `path` is not an absolute ZooKeeper path, or is the root or in `/zookeeper`.
    pub fn new<C: Coordinator + Clone>(coordinator: &C, path: &str) -> Result<RwLock, Error> {
        RwLock::builder(coordinator, path).build()
    }

    /// As [`RwLock::new`], with options.
    ///
    /// ```
    /// # use zk_rwlock::{Memory, RwLock};
    /// let lock = RwLock::builder(&Memory::new(), "/locks/config").host("web-1").label("billing").build().unwrap();
    /// assert_eq!(lock.path(), "/locks/config");
    /// ```
    pub fn builder<C: Coordinator + Clone>(coordinator: &C, path: &str) -> RwLockBuilder {
        let coordinator: Arc<dyn Coordinator> = Arc::new(coordinator.clone());
        RwLockBuilder {
            coordinator,
            path: path.to_owned(),
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
        &self.shared.path
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
    /// See [`Error`]; [`Error::Timeout`] only if a [`timeout`](AcquireRead::timeout) was given.
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
    pub fn read(&self) -> AcquireRead {
        AcquireRead(Acquisition::new(&self.shared, Mode::Read))
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
    /// See [`Error`]; [`Error::Timeout`] only if a [`timeout`](AcquireWrite::timeout) was given.
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
    pub fn write(&self) -> AcquireWrite {
        AcquireWrite(Acquisition::new(&self.shared, Mode::Write))
    }

    /// Acquires the lock to read if no writer holds it or waits for it; does not wait, and when the lock is taken
    /// writes nothing to the ensemble.
    ///
    /// The answer may be as old as the server's view of the queue. Whoever is beaten to a lock that looked free has
    /// written one node, and removed it. While the connection is lost, waits for it to come back, at most until the
    /// session is over and no fresh one can be opened.
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
    pub async fn try_read(&self) -> Result<ReadGuard, Error> {
        if let Some(held) = self.shared.reads.join() {
            meter::granted(Mode::Read, "joined");
            return Ok(ReadGuard::on(held));
        }
        let held = Arc::from(Acquisition::new(&self.shared, Mode::Read).attempt().await?);
        self.shared.reads.offer(&held);
        Ok(ReadGuard::on(held))
    }

    /// Acquires the lock to write if nobody holds it or waits for it; does not wait, and when the lock is taken
    /// writes nothing to the ensemble.
    ///
    /// The answer may be as old as the server's view of the queue. Whoever is beaten to a lock that looked free has
    /// written one node, and removed it. While the connection is lost, waits for it to come back, at most until the
    /// session is over and no fresh one can be opened.
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
    pub async fn try_write(&self) -> Result<WriteGuard, Error> {
        Acquisition::new(&self.shared, Mode::Write).attempt().await.map(WriteGuard::new)
    }

    /// Blocks the thread until the lock is acquired to read: [`RwLock::read`] for code that is not async.
    ///
    /// Needs no runtime. Called from an async task it blocks that task's thread; the session lives on a thread of
    /// its own and is not disturbed. With options: [`AcquireRead::blocking`].
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
    /// As for [`RwLock::blocking_read`]. With options: [`AcquireWrite::blocking`].
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

    /// Reads the queue: everyone in it in order, who holds, who waits, since when and behind whom.
    ///
    /// Costs one listing and one read for each member. The snapshot may be as old as the server's view.
    ///
    /// # Cancel safety
    /// Only reads.
    ///
    /// # Errors
    /// [`Error::ForeignContender`] where another [dialect](Dialect) is spoken, too; otherwise see [`Error`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use zk_rwlock::{Error, Memory, RwLock};
    /// # tokio_test::block_on(async {
    /// # let lock = RwLock::new(&Memory::new(), "/locks/config")?;
    /// let guard = lock.write().label("rotate keys").await?;
    /// let queue = lock.queue().await?;
    /// assert_eq!(queue.holders().next().unwrap().label.as_deref(), Some("rotate keys"));
    /// println!("{queue}");
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub async fn queue(&self) -> Result<Queue, Error> {
        let fault = |failure| Error::from_failure(failure, "read the queue of", &self.shared.path);
        let berth = self.shared.coordinator.berth(0).await.map_err(fault)?;
        let session = berth.session();
        let mut tries = 0;
        loop {
            let names = match session.children(&self.shared.path).await {
                Err(Failure::NoNode) => Ok(Vec::new()),
                answer => answer,
            };
            let queue = match names {
                Ok(names) => {
                    self.shared.check_for_strangers(&names)?;
                    queue::of(session, &self.shared.path, self.shared.dialect, &names).await
                }
                Err(failure) => Err(failure),
            };
            match queue {
                Err(Failure::Unknown(_)) if tries < place::UNKNOWN_TRIES => {
                    place::before_next_try(session, &mut tries).await.map_err(fault)?;
                }
                answer => return answer.map_err(fault),
            }
        }
    }

    /// Removes the one member of the queue whose [token](crate::Member::token) this is, and says who that was; `None`
    /// if nobody in the queue has it, and then nothing is changed.
    ///
    /// For people who have seen in the [`queue`](RwLock::queue) that somebody hangs. A holder is told at once, by
    /// [`Loss::Removed`], but perhaps after the next one was let in; a waiter gets [`Error::Evicted`].
    ///
    /// Nobody else is ever hit: a token is given once, and a node's name is too, because the random id of one
    /// acquisition is in it. So it is enough to look at the token, and then to delete by name.
    ///
    /// # Cancel safety
    /// Dropping the future may leave the member removed or not.
    ///
    /// # Errors
    /// [`Error::PermissionDenied`] for those who may not; otherwise see [`Error`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use zk_rwlock::{Error, Memory, RwLock};
    /// # tokio_test::block_on(async {
    /// # let lock = RwLock::new(&Memory::new(), "/locks/config")?;
    /// let hangs = lock.write().label("hangs").await?;
    /// let token = lock.queue().await?.members[0].token.expect("anybody may read");
    /// assert_eq!(lock.evict(token).await?.expect("still there").label.as_deref(), Some("hangs"));
    /// assert!(!hangs.is_held());
    /// assert!(lock.evict(token).await?.is_none());
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub async fn evict(&self, token: i64) -> Result<Option<Member>, Error> {
        let fault = |failure| Error::from_failure(failure, "remove a node of", &self.shared.path);
        let berth = self.shared.coordinator.berth(0).await.map_err(fault)?;
        let session = berth.session();
        // A server that lags would not show a member that others see already.
        match place::settled(session, || session.sync(&self.shared.path)).await {
            Ok(()) | Err(Failure::NoNode) => {}
            Err(failure) => return Err(fault(failure)),
        }
        let mut asked = None;
        let mut tries = 0;
        loop {
            let queue = self.queue().await?;
            let Some(member) = queue.members.into_iter().find(|member| member.token == Some(token)) else {
                // What was asked for and is not there any more was done.
                return Ok(asked);
            };
            let path = format!("{}/{}", self.shared.path, member.node);
            let answer = session.delete(&path).await;
            match answer {
                Ok(()) => return Ok(Some(member)),
                // It left by itself just now, or by an earlier try.
                Err(Failure::NoNode) => return Ok(asked),
                Err(Failure::Unknown(_)) if tries < place::UNKNOWN_TRIES => {
                    asked = Some(member);
                    place::before_next_try(session, &mut tries).await.map_err(fault)?;
                }
                Err(failure) => return Err(fault(failure)),
            }
        }
    }
}

impl fmt::Debug for RwLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RwLock")
            .field("path", &self.shared.path)
            .field("host", &self.shared.host)
            .finish_non_exhaustive()
    }
}

/// Options of a lock. Made by [`RwLock::builder`].
#[derive(Debug)]
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
    /// holder that are still under way time to arrive. A waiting writer that gives up looks like one that vanished.
    /// Those who arrive after it has vanished do not know of it, and readers that vanish are not told from those that
    /// release. A writer that downgraded, and was gone before whoever waited had looked again, looks like one that
    /// vanished. Give everyone who uses the lock the same delay.
    ///
    /// Refused in another [`dialect`](Self::dialect) than the native one, where nobody says that it released.
    pub fn lock_delay(mut self, delay: Duration) -> Self {
        self.lock_delay = delay;
        self
    }

    /// Logs a warning, once, for an acquisition that has waited this long: with who is in the way. Default: never, because
    /// what is long is the user's to say, and because each waiter then has a timer, and keeps some names.
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
    /// - [Timeouts](AcquireRead::timeout) and cancelling concern only the one read.
    /// - A read with a [label](AcquireRead::label) other than the [lock's](Self::label) enters by itself, so that the
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

    /// Opens the lock. Nothing is sent.
    ///
    /// # Errors
    /// [`Error::InvalidInput`] says which option was wrong, and how.
    pub fn build(self) -> Result<RwLock, Error> {
        path::check_directory(&self.path)?;
        if let Some(host) = &self.host {
            name::check_host(host)?;
        }
        check_label(self.label.as_deref())?;
        if self.max_age == Some(Duration::ZERO) {
            return Err(Error::invalid("a max_age of zero; to share no reads, leave share_reads out"));
        }
        if !self.dialect.hands_off() && !self.lock_delay.is_zero() {
            return Err(Error::invalid(format!(
                "a lock_delay in the dialect {}, where a writer that released looks like one that vanished",
                self.dialect
            )));
        }
        Ok(RwLock {
            shared: Arc::new(Shared {
                coordinator: self.coordinator,
                path: self.path.into(),
                host: self.host.unwrap_or_else(name::machine),
                label: self.label,
                dialect: self.dialect,
                lock_delay: self.lock_delay,
                warn_waiting: self.warn_waiting,
                warn_holding: self.warn_holding,
                deadlock: self.deadlock,
                reads: SharedReads::new(self.max_age.unwrap_or_default()),
                succession: Succession::default(),
            }),
        })
    }
}

/// A read acquisition that has not started: await it, or set options first. Made by [`RwLock::read`].
#[derive(Debug)]
#[must_use = "nothing is acquired before this is awaited"]
pub struct AcquireRead(Acquisition);

/// A write acquisition that has not started: await it, or set options first. Made by [`RwLock::write`].
#[derive(Debug)]
#[must_use = "nothing is acquired before this is awaited"]
pub struct AcquireWrite(Acquisition);

macro_rules! acquire {
    ($acquire:ident, $guard:ident, $granting:ident, $acquire_name:literal) => {
        impl $acquire {
            /// Gives up, and leaves the queue, when the lock was not granted within `timeout`.
            ///
            /// The error is told in time, also while disconnected. Zero is refused: that is what the `try_` methods
            /// are for.
            pub fn timeout(mut self, timeout: Duration) -> Self {
                self.0.timeout = Some(timeout);
                self
            }

            /// What this acquisition is for, in words for people: [`RwLock::queue`] and the errors of those who
            /// wait show it. At most 256 bytes, without control characters.
            pub fn label(mut self, label: impl Into<String>) -> Self {
                self.0.label = Some(label.into());
                self
            }

            /// Calls `tell` with its place in the queue and who is in the way, if the lock is not granted at once, and
            /// again whenever it finds that changed.
            ///
            /// It finds out when it looks at the queue anyway: at first, and when the one whom it waits for has left
            /// and it has to go on waiting. Those further ahead come and go unheard, for the sake of the server; use
            /// [`on_wait_every`](Self::on_wait_every) to hear of them, too. Costs a read for each of those named (at
            /// most 8) whenever it tells. `tell` holds up the acquisition for as long as it runs.
            ///
            /// # Examples
            ///
            /// ```
            /// # use zk_rwlock::{Error, Memory, RwLock};
            /// # tokio_test::block_on(async {
            /// # let lock = RwLock::new(&Memory::new(), "/locks/config")?;
            #[doc = concat!("let guard = lock.", $acquire_name, "().on_wait(|progress| eprintln!(\"waiting at {progress}\")).await?;")]
            /// # Ok::<(), Error>(()) }).unwrap();
            /// ```
            pub fn on_wait(mut self, tell: impl FnMut(&Progress) + Send + 'static) -> Self {
                self.0.on_wait = Some(OnWait::new(tell, None));
                self
            }

            /// As [`on_wait`](Self::on_wait), and looks at the queue each `interval` besides, while it waits.
            ///
            /// Each look costs the server a listing, which is as long as the queue: for a few who wait and are
            /// watched by people. Zero is refused.
            pub fn on_wait_every(mut self, interval: Duration, tell: impl FnMut(&Progress) + Send + 'static) -> Self {
                self.0.on_wait = Some(OnWait::new(tell, Some(interval)));
                self
            }

            /// Blocks the thread until the lock is granted. Needs no runtime.
            ///
            /// # Errors
            /// As when awaited.
            pub fn blocking(self) -> Result<$guard, Error> {
                let mut acquisition = self.0;
                acquisition.is_blocking = true;
                pollster::block_on(acquisition.$granting())
            }
        }

        impl IntoFuture for $acquire {
            type Output = Result<$guard, Error>;
            type IntoFuture = Granting<$guard>;

            fn into_future(self) -> Self::IntoFuture {
                self.0.$granting()
            }
        }
    };
}

acquire!(AcquireRead, ReadGuard, read, "read");
acquire!(AcquireWrite, WriteGuard, write, "write");

pub(crate) type Granting<G> = Pin<Box<dyn Future<Output = Result<G, Error>> + Send>>;

#[derive(Debug)]
struct Acquisition {
    shared: Arc<Shared>,
    mode: Mode,
    timeout: Option<Duration>,
    label: Option<String>,
    on_wait: Option<Box<OnWait>>,
    trace: Acquiring,
    is_blocking: bool,
    /// Whether all who share reads wait for it, so that it is nobody's own.
    is_for_all: bool,
}

/// Where an acquisition waits, for the error that its timeout gives.
pub(crate) type Waiting = Mutex<Option<Waits>>;

#[derive(Clone)]
pub(crate) struct Waits {
    session: Arc<dyn Session>,
    me: Contender,
    /// Where it stood when it last looked.
    seen: Progress,
    /// How often it has looked.
    looks: usize,
}

/// What to do when the contender in the way would have to be waited for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Patience {
    Wait,
    GiveUp,
}

impl Acquisition {
    fn new(shared: &Arc<Shared>, mode: Mode) -> Acquisition {
        Acquisition {
            shared: Arc::clone(shared),
            mode,
            timeout: None,
            label: shared.label.clone(),
            on_wait: None,
            trace: Acquiring::default(),
            is_blocking: false,
            is_for_all: false,
        }
    }

    async fn acquire(&mut self) -> Result<Box<Held>, Error> {
        self.check()?;
        let timeout = self.timeout;
        let on_wait = self.on_wait.take();
        match timeout {
            None if self.shared.warn_waiting.is_none() => self.enter(Patience::Wait, None, on_wait).await,
            // Boxed, as all that few of thousands of waiters need: their futures are as large as the largest step.
            timeout => Box::pin(self.enter_watched(timeout, on_wait)).await,
        }
    }

    fn begin(&mut self) -> Span {
        self.trace = Acquiring::begin(&self.shared.path, self.mode, self.label.as_deref());
        self.trace.span()
    }

    fn check(&self) -> Result<(), Error> {
        check_label(self.label.as_deref())?;
        if self.timeout == Some(Duration::ZERO) {
            return Err(Error::invalid("a timeout of zero; to not wait at all, use try_read or try_write"));
        }
        if self.on_wait.as_ref().is_some_and(|on_wait| on_wait.every == Some(Duration::ZERO)) {
            return Err(Error::invalid("an interval of zero between looks at the queue"));
        }
        Ok(())
    }

    async fn enter_watched(&self, timeout: Option<Duration>, on_wait: Option<Box<OnWait>>) -> Result<Box<Held>, Error> {
        let waiting = Waiting::default();
        let granted = self.warned(&waiting, self.enter(Patience::Wait, Some(&waiting), on_wait));
        match timeout {
            None => granted.await,
            Some(timeout) => self.within(timeout, &waiting, granted).await,
        }
    }

    /// What is granted, with a warning if that takes long.
    async fn warned<G>(&self, waiting: &Waiting, granted: impl Future<Output = Result<G, Error>>) -> Result<G, Error> {
        let Some(limit) = self.shared.warn_waiting else {
            return granted.await;
        };
        let mut granted = std::pin::pin!(granted);
        let sleep = |duration| self.shared.coordinator.sleep(duration);
        tokio::select! {
            biased;
            answer = &mut granted => return answer,
            () = sleep(limit) => {}
        }
        let blockers = tokio::select! {
            biased;
            answer = &mut granted => return answer,
            found = self.in_the_way(waiting) => found,
            // Cut off, there is nobody to ask.
            () = sleep(LOOK_UP_AHEAD) => self.seen_in_the_way(waiting),
        };
        let (path, label) = (&*self.shared.path, self.label.as_deref());
        tracing::warn!(path, mode = %self.mode, label, waited = ?limit, %blockers, "it takes long to acquire a lock");
        granted.await
    }

    /// What is granted in time, or who was in the way of the one that `waiting` tells of.
    async fn within<G>(
        &self,
        timeout: Duration,
        waiting: &Waiting,
        granted: impl Future<Output = Result<G, Error>>,
    ) -> Result<G, Error> {
        let mut granted = std::pin::pin!(granted);
        let look_up = LOOK_UP_AHEAD.min(timeout / 5);
        let sleep = |duration| self.shared.coordinator.sleep(duration);
        tokio::select! {
            biased;
            answer = &mut granted => return answer,
            () = sleep(timeout - look_up) => {}
        }
        let mut in_time = sleep(look_up);
        // Cut off, there is nobody to ask; what was seen before is then the best to tell.
        let mut blockers = self.seen_in_the_way(waiting);
        let mut looking = std::pin::pin!(self.in_the_way(waiting));
        let mut looked = false;
        loop {
            tokio::select! {
                biased;
                answer = &mut granted => return answer,
                found = &mut looking, if !looked => {
                    blockers = found;
                    looked = true;
                }
                () = &mut in_time => {
                    meter::timed_out(self.mode);
                    return Err(Error::Timeout { waited: timeout, blockers });
                }
            }
        }
    }

    /// Acquires without waiting, and without writing when the lock is taken.
    async fn attempt(mut self) -> Result<Box<Held>, Error> {
        let span = self.begin();
        let mode = self.mode;
        let answer = self.attempt_at_once().instrument(span).await;
        if matches!(answer, Err(Error::WouldBlock { .. })) {
            meter::would_block(mode);
        }
        answer
    }

    async fn attempt_at_once(&self) -> Result<Box<Held>, Error> {
        self.look().await?;
        self.enter(Patience::GiveUp, None, None).await
    }

    /// Fails if a newcomer would have to wait. Writes nothing.
    async fn look(&self) -> Result<(), Error> {
        check_label(self.label.as_deref())?;
        let path = &self.shared.path;
        let fault = |failure| Error::from_failure(failure, "list", path);
        let berth = self.shared.coordinator.berth(0).await.map_err(fault)?;
        let session = berth.session();
        let listing = place::settled(session, || session.children(path)).await;
        let children = match listing {
            Err(Failure::NoNode) => Vec::new(),
            answer => answer.map_err(fault)?,
        };
        self.shared.check_for_strangers(&children)?;
        let newcomer = (self.shared.dialect, self.mode);
        let blockers = queue::blockers_of_newcomer(session, path, &children, newcomer).await;
        if blockers.ahead > 0 {
            return Err(Error::WouldBlock { blockers });
        }
        Ok(())
    }

    /// Queues up and waits, telling `waiting`, if anybody asks, who is in the way.
    async fn enter(
        &self,
        patience: Patience,
        waiting: Option<&Waiting>,
        on_wait: Option<Box<OnWait>>,
    ) -> Result<Box<Held>, Error> {
        let (mut held, mut look) = Box::pin(self.queue_up()).await?;
        match self.wait_for_turn(&held, &mut look, patience, waiting, on_wait).await {
            Ok(()) => {
                self.begin_hold(&mut held);
                Ok(held)
            }
            // Who may not do all that it takes may not be allowed to leave either, and must be told.
            Err(error @ Error::PermissionDenied { .. }) => match held.place().leave().await {
                Err(Failure::NoAuth) => Err(Error::stays(held.tenure().path())),
                _ => Err(error),
            },
            Err(error) => Err(error),
        }
    }

    fn asker(&self) -> Asker {
        if self.is_for_all { Asker::Unknown } else { Asker::here(self.is_blocking) }
    }

    /// Says so, or fails, if what it is going to wait for is its own.
    fn check_for_deadlock(&self, held: &Held, nearest: &Contender) -> Result<(), Error> {
        let deadlock = self.shared.deadlock;
        if deadlock == Deadlock::Ignore {
            return Ok(());
        }
        let holds = held.place().session().lease().holds();
        let Some(own) = holds.waited_for(&self.shared.path, nearest.sequence(), self.asker()) else {
            return Ok(());
        };
        let OwnHold { node: holder, is_of_the_same: same_task } = own;
        match deadlock {
            Deadlock::Refuse if same_task => return Err(Error::WouldDeadlock { holder, same_task }),
            Deadlock::RefuseInProcess => return Err(Error::WouldDeadlock { holder, same_task }),
            Deadlock::Warn if same_task => {
                let (path, label) = (&*self.shared.path, self.label.as_deref());
                tracing::warn!(path, mode = %self.mode, label, holder, "a task waits for a lock that it holds itself");
            }
            _ => {}
        }
        Ok(())
    }

    /// Has it seen from outside that the lock is held.
    fn begin_hold(&self, held: &mut Held) {
        let (standing, lease) = (held.standing(), held.place().session().lease());
        let sequence = standing.contender.sequence();
        lease.holds().begin(standing.czxid, &self.shared.path, sequence, self.asker(), &standing.tenure);
        held.granted(self.trace.granted(&self.shared.path, self.label.as_deref(), held.standing()));
        let Some(limit) = self.shared.warn_holding else {
            return;
        };
        let (session, tenure) = (Arc::clone(held.place().session()), Arc::clone(held.tenure()));
        let (path, label, token) = (Arc::clone(&self.shared.path), self.label.clone(), held.standing().czxid);
        let mode = self.mode;
        let watch = Arc::clone(&session);
        session.spawn(Box::pin(async move {
            tokio::select! {
                biased;
                () = tenure.ended(&watch) => {}
                () = watch.sleep(limit) => {
                    tracing::warn!(path = &*path, %mode, label, token, held = ?limit, "a lock is held for long");
                }
            }
        }));
    }

    /// Takes a place at the end of the queue, with a look at the queue as it is then, unless none may be needed.
    async fn queue_up(&self) -> Result<(Box<Held>, Option<Result<Names, Failure>>), Error> {
        let shared = &self.shared;
        let owner = Owner::new(shared.dialect, shared.dialect.new_owner(&shared.host, random));
        let note = Note {
            host: shared.host.clone(),
            pid: std::process::id(),
            label: self.label.clone(),
            since: SystemTime::now(),
        };
        let data = note.encode();
        // Each waiter watches two nodes: its own, and the one before it.
        let watched = 2 * (shared.path.len() + owner.len() + "/READ-lock-0000000000".len());
        let mut tries = 0;
        let (place, look) = loop {
            let berth = shared.coordinator.berth(watched).await.map_err(|failure| self.stop(failure))?;
            let place = Place::new(berth, Arc::clone(&shared.path), owner.clone());
            tries += 1;
            match self.take_place(&place, &data).await {
                Ok(look) => break (place, look),
                // The session ended unnoticed while it was idle: nothing of ours was in it, so a fresh one will do.
                Err(Failure::Over(_)) if tries < SESSION_TRIES => {
                    // Its requests fail a moment before it counts as over, and until then it is given out again.
                    let session = place.session();
                    tokio::select! {
                        _ = session.over() => {}
                        () = session.sleep(session.timeout() / 20) => {}
                    }
                }
                Err(failure) => return Err(self.stop(failure)),
            }
        };
        let held = Held::new(place, Arc::clone(shared), data).ok_or_else(|| self.stop(Failure::NoNode))?;
        Ok((held, look))
    }

    /// Puts a node into the directory, with a look at the children as they are then, unless none may be needed.
    async fn take_place(&self, place: &Place, data: &[u8]) -> Result<Option<Result<Names, Failure>>, Failure> {
        let (mut missing, mut unknown) = (0, 0_u32);
        loop {
            let entered = if self.shared.succession.expects_others() {
                place.enter_and_list(self.mode, data).await.map(Some)
            } else {
                place.enter(self.mode, data).await.map(|()| None)
            };
            match entered {
                Ok(look) => return Ok(look),
                // The directory can vanish again between its making and the next try: the server reaps it when empty.
                Err(Failure::NoNode) if missing < DIRECTORY_TRIES => {
                    missing += 1;
                    let has_to_stay = self.shared.dialect.keeps_directories();
                    match place::make_directory(place.session(), &self.shared.path, has_to_stay).await {
                        // One above it may be a container, too, where Curator made it.
                        Ok(()) | Err(Failure::NoNode) => {}
                        Err(failure) => return Err(failure),
                    }
                }
                Err(Failure::Unknown(_)) if unknown < place::UNKNOWN_TRIES => {
                    unknown += 1;
                    if place.recover().await? {
                        return Ok(None);
                    }
                }
                Err(failure) => return Err(failure),
            }
        }
    }

    /// Look, wait, and look again, until it is our turn.
    async fn wait_for_turn(
        &self,
        held: &Held,
        look: &mut Option<Result<Names, Failure>>,
        patience: Patience,
        waiting: Option<&Waiting>,
        mut on_wait: Option<Box<OnWait>>,
    ) -> Result<(), Error> {
        let place = held.place();
        let session = place.session();
        let me = held.contender();
        // What the last writer that vanished would be called as a reader.
        let mut vanished: Option<String> = None;
        if me.sequence() < 0 || me.sequence() >= name::REFUSED_FROM {
            return Err(Error::SequenceExhausted { path: self.shared.path.to_string() });
        }
        if !place.is_unsure() && self.shared.succession.proves(held.standing()) {
            meter::entered(self.mode, 0);
            return Box::pin(self.grant(held, None, "next")).await;
        }
        let mut has_waited = false;
        loop {
            let children = match look.take() {
                Some(children) => children,
                None => place.list().await,
            };
            let names = match children {
                Ok(names) => names,
                Err(Failure::Unknown(_)) => {
                    place::settled(session, || place.list()).await.map_err(|failure| self.stop(failure))?
                }
                Err(failure) => return Err(self.stop(failure)),
            };
            place.remove_strays(&names);
            if !has_waited {
                meter::entered(self.mode, names.len().saturating_sub(1));
            }
            // A writer that became a reader is still there, and lets go as readers do.
            vanished = vanished.filter(|reader| !names.contains(reader));
            let (turn, stranger) = turn::turn_among_strangers(me, &names);
            if let Some(stranger) = stranger.filter(|_| turn != Turn::Evicted) {
                return Err(self.shared.doubt(stranger));
            }
            let nearest = match turn {
                Turn::Granted => {
                    if vanished.is_some() && !self.shared.lock_delay.is_zero() {
                        tokio::select! {
                            () = session.sleep(self.shared.lock_delay) => {}
                            loss = held.lost() => return Err(Error::Evicted(loss)),
                        }
                    }
                    let kind = if has_waited { "look" } else { "at once" };
                    return Box::pin(self.grant(held, None, kind)).await;
                }
                Turn::Evicted => return Err(Error::Evicted(held.loss().unwrap_or(Loss::Removed))),
                Turn::Behind(nearest) => nearest,
            };
            if patience == Patience::GiveUp {
                let blockers = Box::pin(queue::blockers(session, &self.shared.path, &names, me)).await;
                return Err(Error::WouldBlock { blockers });
            }
            if !has_waited {
                self.check_for_deadlock(held, &nearest)?;
            }
            if let Some(on_wait) = &mut on_wait {
                let seen = Progress::by_name(&names, me);
                Box::pin(on_wait.tell(session, &self.shared.path, me.dialect(), seen)).await;
            }
            if let Some(waiting) = waiting {
                let seen = Progress::by_name(&names, me);
                let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
                let looks = waiting.as_ref().map_or(1, |waits| waits.looks + 1);
                *waiting = Some(Waits { session: Arc::clone(session), me: me.clone(), seen, looks });
            }
            // A queue of thousands must not keep thousands of copies of itself.
            drop(names);
            has_waited = true;
            let watched = place.child(nearest.name());
            let event = match on_wait.as_mut().filter(|on_wait| on_wait.every.is_some()) {
                None => self.departure(held, &watched).await?,
                Some(on_wait) => Box::pin(self.departure_watched(held, &watched, on_wait)).await?,
            };
            if nearest.mode() == Mode::Write {
                // Only a writer that held says so when it goes; then nothing before us is left. Elsewhere anybody may
                // have written, for any reason.
                if event == Some(Event::Changed) && self.shared.dialect.hands_off() {
                    return Box::pin(self.grant(held, Some(watched), "hand-off")).await;
                }
                vanished = Some(nearest.downgraded());
            }
        }
    }

    /// Waits until something happened to the node at `path`; `None` if it is gone already.
    async fn departure(&self, held: &Held, path: &str) -> Result<Option<Event>, Error> {
        let session = held.place().session();
        let watch = match place::settled(session, || session.watch(path)).await {
            Ok(watch) => watch,
            Err(Failure::NoNode) => return Ok(None),
            Err(failure) => return Err(self.stop(failure)),
        };
        tokio::select! {
            biased;
            event = watch => Ok(Some(event)),
            loss = held.lost() => Err(Error::Evicted(loss)),
        }
    }

    /// As [`Self::departure`], and tells meanwhile what changes.
    async fn departure_watched(&self, held: &Held, path: &str, on_wait: &mut OnWait) -> Result<Option<Event>, Error> {
        tokio::select! {
            biased;
            event = self.departure(held, path) => event,
            () = on_wait.keep_looking(held.place().session(), &self.shared.path, held.contender()) => Ok(None),
        }
    }

    /// Takes the lock, now that nothing before us excludes us.
    ///
    /// What we know may be old, if we were cut off: only under a valid lease is it certain that the session, and so
    /// our node, still exists. Without one a quorum is asked first.
    async fn grant(&self, held: &Held, handed_off: Option<String>, kind: &'static str) -> Result<(), Error> {
        let (session, tenure) = (held.place().session(), held.tenure());
        for tries in 0..LEASE_TRIES {
            if let Some(loss) = held.loss() {
                return Err(Error::Evicted(loss));
            }
            if let Some(stretch) = session.lease().stretch() {
                tenure.hold(stretch);
                match handed_off {
                    Some(path) => session.lease().roll().confirm_gone(path, tenure),
                    None => self.shared.succession.granted(held.standing()),
                }
                meter::granted(self.mode, kind);
                let (sequence, token) = (held.contender().sequence(), held.standing().czxid);
                tracing::debug!(path = &*self.shared.path, mode = %self.mode, sequence, token, kind, "granted");
                return Ok(());
            }
            if tries > 1 {
                session.sleep(session.timeout() / 20).await;
            }
            let check = [Operation::Check { path: tenure.path(), version: None }];
            match place::settled(session, || session.transact(&check)).await {
                Ok(_) => {}
                Err(Failure::Operation { failure, .. }) if *failure == Failure::NoNode => tenure.lose(Loss::Removed),
                Err(failure) => return Err(self.stop(failure)),
            }
        }
        // Its answers take longer than the lease, or it does not say whose session this is.
        Err(Error::Unreachable("the servers answer too late to hold a lock by".to_owned()))
    }

    /// Who is in the way of one that waits, as far as that can be read now.
    async fn in_the_way(&self, waiting: &Waiting) -> Blockers {
        let waits = waiting.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(Waits { session, me, seen, .. }) = waits else {
            return Blockers::default();
        };
        match session.children(&self.shared.path).await {
            Ok(children) => queue::blockers(&session, &self.shared.path, &children, &me).await,
            Err(_) => seen.blockers,
        }
    }

    /// Who was in the way of one that waits when it last looked.
    fn seen_in_the_way(&self, waiting: &Waiting) -> Blockers {
        let waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.as_ref().map(|waits| waits.seen.blockers.clone()).unwrap_or_default()
    }

    fn stop(&self, failure: Failure) -> Error {
        match failure {
            // The directory went while we stood in it, and our node with it.
            Failure::NoNode => Error::Evicted(Loss::Removed),
            failure => Error::from_failure(failure, "enter", &self.shared.path),
        }
    }
}

/// How a builder becomes a guard, and what reads of one process share on the way.
impl Acquisition {
    fn write(mut self) -> Granting<WriteGuard> {
        let span = self.begin();
        Acquiring::around(span, Box::pin(async move { self.acquire().await.map(WriteGuard::new) }))
    }

    fn read(mut self) -> Granting<ReadGuard> {
        let span = self.begin();
        // A label of its own must be seen in the queue, and whatever is wrong must be told.
        if self.shared.reads.are_shared() && self.label == self.shared.label && self.check().is_ok() {
            Acquiring::around(span, Box::pin(self.shared_read()))
        } else {
            Acquiring::around(span, Box::pin(async move { self.acquire().await.map(ReadGuard::new) }))
        }
    }

    async fn shared_read(mut self) -> Result<ReadGuard, Error> {
        // A task that does nothing but join must let others run, too.
        tokio::task::consume_budget().await;
        let on_wait = self.on_wait.take();
        let held = match self.shared.reads.join() {
            Some(held) => {
                meter::granted(Mode::Read, "joined");
                held
            }
            // Boxed, because a future that only joins is small.
            None => Box::pin(self.enter_shared(on_wait)).await?,
        };
        self.trace.granted_place(held.standing());
        Ok(ReadGuard::on(held))
    }

    /// Waits, together with all who do, for the one that enters.
    async fn enter_shared(&self, on_wait: Option<Box<OnWait>>) -> Result<Arc<Held>, Error> {
        let reads = &self.shared.reads;
        let entry = match reads.join_or_enter(|| self.for_all()) {
            Ok(held) => return Ok(held),
            Err(entry) => entry,
        };
        let granted = async {
            let mut granted = std::pin::pin!(reads.granted(&entry));
            if let Some(mut on_wait) = on_wait {
                tokio::select! {
                    biased;
                    answer = &mut granted => return answer,
                    () = self.tell_of(&entry.waiting, &mut on_wait) => {}
                }
            }
            granted.await
        };
        match self.timeout {
            None => self.warned(&entry.waiting, granted).await,
            Some(timeout) => self.within(timeout, &entry.waiting, self.warned(&entry.waiting, granted)).await,
        }
    }

    /// Tells how far the acquisition that all wait for has come, whenever that changes.
    async fn tell_of(&self, waiting: &Waiting, on_wait: &mut OnWait) {
        let mut waits = looked_since(waiting, 0).await;
        loop {
            on_wait.tell(&waits.session, &self.shared.path, waits.me.dialect(), waits.seen.clone()).await;
            waits = tokio::select! {
                biased;
                later = looked_since(waiting, waits.looks) => later,
                () = on_wait.keep_looking(&waits.session, &self.shared.path, &waits.me) => return,
            };
        }
    }

    /// The acquisition of all who wait for it. Their timeouts are their own, but know by it who is in the way.
    fn for_all(&self) -> (Work, Arc<Waiting>) {
        let waiting = Arc::new(Waiting::default());
        let mut all = Acquisition::new(&self.shared, Mode::Read);
        all.is_for_all = true;
        let _for_its_hold = all.begin();
        let its_own = Arc::clone(&waiting);
        let work = Box::pin(async move { all.enter(Patience::Wait, Some(&its_own), None).await });
        (work, waiting)
    }
}

/// Where it waits, once it has looked more than so often. Whoever takes a shared acquisition on has been woken by that,
/// and so have all who wait for it.
async fn looked_since(waiting: &Waiting, looks: usize) -> Waits {
    poll_fn(|_| match &*waiting.lock().unwrap_or_else(PoisonError::into_inner) {
        Some(waits) if waits.looks > looks => Poll::Ready(waits.clone()),
        _ => Poll::Pending,
    })
    .await
}

/// What a [`MultiLock`](crate::MultiLock) does with each of its locks.
impl RwLock {
    /// Waits for the lock, as the builders do.
    pub(crate) async fn take(
        &self,
        mode: Mode,
        timeout: Option<Duration>,
        label: Option<String>,
    ) -> Result<Box<Held>, Error> {
        let mut acquisition = Acquisition::new(&self.shared, mode);
        acquisition.timeout = timeout;
        acquisition.label = label.or(acquisition.label);
        let span = acquisition.begin();
        acquisition.acquire().instrument(span).await
    }

    /// Fails if the lock is taken. Writes nothing.
    pub(crate) async fn look(&self, mode: Mode) -> Result<(), Error> {
        Acquisition::new(&self.shared, mode).look().await
    }

    /// Takes the lock after a [look](Self::look), without waiting.
    pub(crate) async fn take_now(&self, mode: Mode) -> Result<Box<Held>, Error> {
        let mut acquisition = Acquisition::new(&self.shared, mode);
        let span = acquisition.begin();
        acquisition.enter(Patience::GiveUp, None, None).instrument(span).await
    }
}

pub(crate) fn check_label(label: Option<&str>) -> Result<(), Error> {
    let Some(label) = label else { return Ok(()) };
    if label.len() > 256 {
        return Err(Error::invalid(format!("a label of {} bytes; at most 256 are kept", label.len())));
    }
    if label.chars().any(char::is_control) {
        return Err(Error::invalid(format!("label {label:?} contains a control character")));
    }
    Ok(())
}

/// What no other acquisition has: it tells our node from everyone else's, also after the answer to its create was lost.
fn random() -> u64 {
    RandomState::new().hash_one(std::process::id())
}
