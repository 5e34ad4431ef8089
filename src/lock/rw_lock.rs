//! [`RwLock`] and its builder. The methods that acquire the lock are in `acquire.rs`, and the methods for operators in
//! `admin.rs`.

use std::sync::Arc;
use std::time::Duration;

use crate::contend::config::LockConfig;
use crate::contend::warnings::{WARN_AFTER, WaitWarnings};
use crate::error::error::Error;
use crate::keep::cache::KeptNodeCache;
use crate::observe::lock_paths::LockPaths;
use crate::queue::dialect::{Dialect, machine_name};
use crate::session::contract::Coordinator;
use crate::telemetry::meter::PathLabel;
use crate::validation;

/// One read/write lock, shared by all processes that open the same path of the same ensemble.
///
/// A handle is cheap to clone, and holds no lock itself. Each acquisition gives a guard. Dropping or
/// [releasing](crate::WriteGuard::release) the guard releases the lock.
///
/// # Fairness
/// The lock is granted strictly first come, first served. Readers hold the lock together, but a reader that comes after
/// a waiting writer waits behind that writer, so writers do not starve. Hence a task that holds a read lock must not
/// wait for a second read lock on the same path: if a writer queues up between the two reads, the task and the writer
/// wait for each other for ever. Use [`ReadGuard::share`](crate::ReadGuard::share) instead. There is no upgrade from
/// read to write, because two upgrading readers would wait for each other. Release the read lock, acquire the write
/// lock, and read again what the lock guards: [the guide](crate::guide#from-reading-to-writing) has the pattern.
///
/// Acquisitions that join a node which their process [keeps](RwLockBuilder::keep) do not queue. They can join the node
/// until the process learns that another contender waits for the lock.
///
/// The first poll of an acquisition sends the request for a place in the queue. More polls are needed while the client
/// is disconnected. They are also needed on a path that was never used, because the directory is created first. When
/// the turn of the acquisition comes, all contenders behind the acquisition wait, even if its future is not polled any
/// more. So poll the future to its end, or drop it.
/// [`warn_after_waiting`](RwLockBuilder::warn_after_waiting) reports an acquisition that is not polled.
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
#[derive(Clone, Debug)]
pub struct RwLock {
    pub(crate) config: Arc<LockConfig>,
    /// The cache of the node that this process keeps between uses. `None` unless the user set `keep`.
    pub(crate) cache: Option<Arc<KeptNodeCache>>,
}

impl RwLock {
    /// Opens the lock in directory `path`. Nothing is sent. Acquisitions create the directory if it is missing.
    ///
    /// # Errors
    /// [`Error::InvalidInput`] if `path` is not an absolute ZooKeeper path, or is the root or in `/zookeeper`.
    pub fn new<C: Coordinator + Clone>(coordinator: &C, path: impl AsRef<str>) -> Result<RwLock, Error> {
        RwLock::builder(coordinator, path).build()
    }

    /// Returns a builder, to open the lock in directory `path` with options.
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
            warn_waiting: Some(WARN_AFTER),
            warn_holding: None,
            max_hold: None,
            idle: None,
            is_election: false,
            path_label: None,
        }
    }

    /// Returns the path of the lock's directory.
    pub fn path(&self) -> &str {
        &self.config.directory
    }
}

/// A builder of a lock, with its options. Made by [`RwLock::builder`].
#[derive(Clone, Debug)]
#[must_use = "nothing is opened before `build`"]
pub struct RwLockBuilder {
    coordinator: Arc<dyn Coordinator>,
    path: String,
    host: Option<String>,
    label: Option<String>,
    dialect: Dialect,
    warn_waiting: Option<Duration>,
    warn_holding: Option<Duration>,
    max_hold: Option<Duration>,
    idle: Option<Duration>,
    pub(crate) is_election: bool,
    path_label: Option<Arc<str>>,
}

impl RwLockBuilder {
    /// Sets the name of this host, which is stored in the nodes of this handle. Default: the name of the machine.
    ///
    /// The host may contain letters, digits, `.`, `_` and `-`, and has at most 64 bytes.
    pub fn host(mut self, host: impl Into<String>) -> Self {
        self.host = Some(host.into());
        self
    }

    /// Sets the label of acquisitions that set none themselves. Default: no label.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// Sets the naming scheme of the nodes, for a path that Java or Python programs use as a lock, too. Default:
    /// [`Dialect::Native`]. All users of the path must have the same dialect.
    ///
    /// # Examples
    ///
    /// ```
    /// # use zk_rwlock::{Dialect, Error, Memory, RwLock};
    /// # tokio_test::block_on(async {
    /// # let zk = Memory::new();
    /// let lock = RwLock::builder(&zk, "/locks/config").dialect(Dialect::Kazoo).build()?;
    /// let guard = lock.read().await?; // kazoo's WriteLock(client, "/locks/config") waits, its ReadLock does not
    /// assert!(guard.node_path().contains("__rlock__"));
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub fn dialect(mut self, dialect: Dialect) -> Self {
        self.dialect = dialect;
        self
    }

    /// Logs one warning for an acquisition that has waited for `limit`, with the contenders that it waits for, if they
    /// can be read in time. Default: 30 s. `None` turns the warning off.
    ///
    /// Once the acquisition is in the queue, a background task of the session logs the warning. So the warning comes even if
    /// the future is not polled, as in a runtime that is blocked. If the turn of the acquisition has come and its future is
    /// not polled, the warning says so. Before the acquisition is in the queue, for example without a session, the future
    /// itself logs the warning.
    ///
    /// One warning stands for all late acquisitions of this handle and its clones that are in the queue. The warning
    /// names the first of them, and its field `others` has the number of the rest. The next warning comes a second
    /// later at the earliest. For an acquisition that waits for other guards of this process on a [kept](Self::keep)
    /// node, the warning may be late by up to a quarter of `limit`.
    pub fn warn_after_waiting(mut self, limit: impl Into<Option<Duration>>) -> Self {
        self.warn_waiting = limit.into();
        self
    }

    /// Logs one warning for a lock that has been held for `limit`, with the label of the holder. Default: never, because some
    /// locks are held for the life of a process, and because the option costs a timer for each hold.
    ///
    /// A [downgrade](crate::WriteGuard::downgrade) does not restart the time.
    pub fn warn_after_holding(mut self, limit: Duration) -> Self {
        self.warn_holding = Some(limit);
        self
    }

    /// Limits how long a guard of this handle holds the lock. After `limit` the guard is [lost](crate::Hold::lost) with
    /// [`Loss::HeldTooLong`](crate::Loss::HeldTooLong), and the next contender is granted the lock. Use the limit against
    /// holders that hang. Default: no limit.
    ///
    /// After `limit`, [`is_held`](crate::Hold::is_held) returns `false`, [`lost`](crate::Hold::lost) is ready,
    /// [`run`](crate::Hold::run) drops its work, and no [transaction](crate::Hold::transaction) is sent. A thread of
    /// the library removes the node when the guard is dropped. If the guard is not dropped, the thread removes the node
    /// one [`stop_margin`](crate::ZooKeeperBuilder::stop_margin) after the library has noticed that `limit` has passed.
    /// This also holds if the guard was lost earlier for another reason. Because of the margin, the holder is notified
    /// before the next contender is granted the lock. Requests of the holder to other systems may still be under way.
    /// The [fencing token](crate::Hold::fencing_token) protects against them.
    ///
    /// - The time begins with the grant. A [downgrade](crate::WriteGuard::downgrade) or [share](crate::ReadGuard::share) does
    ///   not restart it.
    /// - In a [`MultiLock`](crate::MultiLock) the time of each lock begins with its own grant, also while the next lock is
    ///   waited for.
    /// - On a [kept](Self::keep) node each acquisition has its own time. When the guard of one acquisition is held for
    ///   too long, the node is lost, and all guards on the node with it.
    /// - A leader whose [term](crate::leadership::Term) lasts longer hands over, and campaigns again after a pause.
    /// - The limit holds for this handle and its clones. Other handles have limits of their own.
    ///
    /// A limit of zero is refused.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use zk_rwlock::{Error, Loss, Memory, RwLock};
    /// # let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    /// # runtime.block_on(async {
    /// # let zk = Memory::new();
    /// let lock = RwLock::builder(&zk, "/locks/config").max_hold(Duration::from_secs(600)).build()?;
    /// let hangs = lock.write().await?;
    /// let next = lock.write().await?; // ten minutes later
    /// assert_eq!(hangs.lost().await, Loss::HeldTooLong);
    /// # drop(next);
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub fn max_hold(mut self, limit: Duration) -> Self {
        self.max_hold = Some(limit);
        self
    }

    /// Keeps the node of the lock between uses, until another contender asks for the lock. While no other process wants
    /// the lock, acquiring the lock again costs no request. Default: each use has a node of its own, which is removed
    /// with the guard.
    ///
    /// When the last guard on a node is dropped, the node stays. The next acquisition of this handle or its clones is
    /// granted immediately if the node covers the mode of the acquisition: a READ node covers reads, a WRITE node
    /// covers writes and reads. The acquisitions that use one node follow the rules of the lock among themselves, first
    /// come first served. The node is given up
    ///
    /// - when another contender asks for the lock: immediately if the node is idle, or else after the uses that run.
    ///   Once a contender has asked, no further acquisition joins the node. A later acquisition queues up behind that
    ///   contender;
    /// - when the node was idle for `idle`, and when the last clone of the handle is dropped;
    /// - when the node is lost. The lease guards a kept node like any other, so a use never begins under a lost lock.
    ///
    /// A waiting contender asks in one request, whatever its own options are. For this request it needs the permission
    /// to write the lock's directory. Without that permission, the contender logs this once. Then it waits until the
    /// node was idle for `idle`, or until the process that keeps the node lists the queue and finds the contender. This
    /// process lists the queue in intervals of `idle`, but at least 30 s and at most ten minutes apart. A `try_` method
    /// does not ask. To take a lock that others keep, use a [timeout](crate::Acquire::timeout), or [ask](RwLock::ask)
    /// first.
    ///
    /// - Guards that use one node have one [token](crate::Hold::fencing_token), and are [lost](crate::Hold::lost) together.
    /// - [`release`](crate::ReadGuard::release) waits for nothing while the node is kept.
    /// - [`downgrade`](crate::WriteGuard::downgrade) turns the kept node into a READ node, which stays kept.
    /// - The queue shows the [label](crate::Acquire::label) of the acquisition that made the node.
    /// - A WRITE node is given up after a use that has called
    ///   [`prepare_foreign_transaction`](crate::Hold::prepare_foreign_transaction).
    /// - If another contender asks for a kept node that had only one use, the node was kept for nothing. So the next
    ///   acquisition of the same mode that needs a new node keeps none.
    /// - A `try_` method can join a kept node, but a node that it creates is not kept. If an idle node does not cover
    ///   the mode of the call, the call gives the node up.
    /// - With [`Duration::ZERO`] no node stays idle. Uses that overlap share a node, which is removed when the last of these
    ///   uses ends.
    ///
    /// Any [`dialect`](Self::dialect) but the native one is refused.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use zk_rwlock::{Error, Memory, RwLock};
    /// # tokio_test::block_on(async {
    /// # let zk = Memory::new();
    /// let lock = RwLock::builder(&zk, "/locks/config").keep(Duration::from_secs(60)).build()?;
    /// drop(lock.read().await?);
    /// let before = zk.requests();
    /// for _ in 0..1_000 {
    ///     drop(lock.read().await?);
    /// }
    /// assert_eq!(zk.requests(), before);
    ///
    /// let other = RwLock::new(&zk, "/locks/config")?;
    /// let writer = other.write().await?; // asks for the lock, and is granted it
    /// # drop(writer);
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub fn keep(mut self, idle: Duration) -> Self {
        self.idle = Some(idle);
        self
    }

    /// Adds the label `path` to all [metrics](crate::metrics) of the lock. The function `label` makes the label's value from
    /// the path of the lock, and is called once, by this method. Default: only the gauges of waiters and holders have the label
    /// `path`, and its value is the path of the lock.
    ///
    /// For each value the recorder makes time series, and may never drop them. With a fixed set of locks, `label` can return
    /// the path itself. If paths contain the numbers of orders or the names of tenants, the number of paths has no bound. Then
    /// let `label` return what these paths have in common.
    ///
    /// With this option, [`build`](Self::build) creates the lock's counters of losses with the value zero, so that an alert
    /// sees the first loss. Install the recorder before that.
    ///
    /// # Examples
    ///
    /// ```
    /// # use zk_rwlock::{Error, Memory, RwLock};
    /// # let zk = Memory::new();
    /// let config = RwLock::builder(&zk, "/locks/config").metrics_by_path(str::to_owned).build()?;
    /// let order = RwLock::builder(&zk, "/locks/orders/4711").metrics_by_path(|_| "/locks/orders".to_owned()).build()?;
    /// # Ok::<(), Error>(())
    /// ```
    #[cfg(feature = "metrics")]
    pub fn metrics_by_path(mut self, label: impl FnOnce(&str) -> String) -> Self {
        self.path_label = Some(label(&self.path).into());
        self
    }

    /// Opens the lock. Nothing is sent.
    ///
    /// # Errors
    /// [`Error::InvalidInput`] says which option was wrong, and how.
    pub fn build(self) -> Result<RwLock, Error> {
        if !self.dialect.signals_release() && self.idle.is_some() {
            return Err(Error::invalid(format!(
                "keep in the dialect {}, in which nobody asks for a lock that is only kept",
                self.dialect
            )));
        }
        let idle = self.idle;
        let config = Arc::new(self.into_config(LockPaths::of_lock)?);
        let cache = idle.map(|idle| Arc::new(KeptNodeCache::new(&config, idle)));
        Ok(RwLock { config, cache })
    }

    /// Returns the configuration of a semaphore at this path. Fails if an option does not fit a semaphore. The queue of
    /// a semaphore works like that of a lock.
    pub(crate) fn into_semaphore_config(self) -> Result<LockConfig, Error> {
        if self.idle.is_some() {
            return Err(Error::invalid("keep in a semaphore; permits that nobody uses are given back"));
        }
        if self.dialect != Dialect::Native {
            return Err(Error::invalid(format!("a semaphore in the dialect {}; it has only its own", self.dialect)));
        }
        self.into_config(LockPaths::of_semaphore)
    }

    fn into_config(self, paths: impl FnOnce(Arc<str>, Dialect) -> LockPaths) -> Result<LockConfig, Error> {
        validation::check_lock_directory(&self.path)?;
        if let Some(host) = &self.host {
            validation::check_host(host)?;
        }
        validation::check_label(self.label.as_deref())?;
        if self.max_hold == Some(Duration::ZERO) {
            return Err(Error::invalid("a max_hold of zero; nobody could hold"));
        }
        let paths = paths(self.path.into(), self.dialect);
        let path_label = PathLabel::new(&paths.path, self.path_label);
        Ok(LockConfig {
            warnings: WaitWarnings::new(&self.coordinator, &paths, self.warn_waiting),
            coordinator: self.coordinator,
            directory: Arc::clone(&paths.queue),
            paths,
            host: self.host.unwrap_or_else(machine_name),
            label: self.label,
            is_election: self.is_election,
            warn_holding: self.warn_holding,
            max_hold: self.max_hold,
            has_warned_of_ask: Arc::default(),
            path_label,
        })
    }
}
