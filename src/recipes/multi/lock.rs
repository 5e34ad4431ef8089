//! The handle of several locks, which are acquired together: all or none.

use std::borrow::Borrow;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use crate::call::Call;
use crate::contend::acquisition::{AcquireOptions, Acquisition};
use crate::error::error::Error;
use crate::lock::acquire::{Acquire, Granting, Guard};
use crate::lock::rw_lock::RwLock;
use crate::queue::mode::Mode;
use crate::queue::quoted::quoted;
use crate::recipes::multi::guard::MultiGuard;

/// Several read/write locks that are acquired together: all or none.
///
/// Each path is an ordinary [`RwLock`]. Tasks that acquire one of the locks alone, and tasks that acquire several, wait
/// in the same queue. A handle is cheap to clone, and holds nothing by itself.
///
/// # Order
/// The locks are acquired one after the other, in the order of their paths, whatever the order in which they were
/// given. So two tasks that acquire the same locks never wait for each other in a circle. The first locks are held
/// while the task waits for the next. If a lock cannot be acquired, or one is lost meanwhile, the locks taken so far
/// are given back, the last one first.
///
/// The order protects only tasks that follow it. A task that holds a lock, or a [`MultiGuard`], must not wait for a
/// lock with an earlier path, nor for a lock that it holds already. See also [fairness](RwLock#fairness).
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use zk_rwlock::{Error, Memory, Mode, MultiLock, RwLock};
/// # tokio_test::block_on(async {
/// let zk = Memory::new(); // or: ZooKeeper::connect("127.0.0.1:2181").await?
/// let [from, to] = [RwLock::new(&zk, "/locks/accounts/7")?, RwLock::new(&zk, "/locks/accounts/3")?];
/// let rates = RwLock::new(&zk, "/locks/rates")?;
/// let transfer = MultiLock::new([(&from, Mode::Write), (&to, Mode::Write), (&rates, Mode::Read)])?;
///
/// let guard = transfer.lock().label("transfer").timeout(Duration::from_secs(30)).await?;
/// guard.transaction().create("/transfer", "7 to 3").commit().await?; // only if all three are held
/// guard.release().await?;
/// # Ok::<(), Error>(()) }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct MultiLock {
    /// The locks, sorted by path. They are acquired in this order.
    locks: Arc<[(RwLock, Mode)]>,
}

impl MultiLock {
    /// Combines these locks, each with its mode. Sends nothing. All the locks must be of one ensemble. Their clients
    /// may differ, if the connect strings end in the same path and have a server in common. Each lock has its own
    /// options. If this process [keeps](crate::RwLockBuilder::keep) a node of a lock between uses, the `MultiLock` does
    /// not use that node.
    ///
    /// # Errors
    /// [`Error::InvalidInput`] if there are no locks, if a path comes twice, or if the connect strings have no server
    /// in common or end in different paths. Such connect strings may belong to different ensembles. Locks of different
    /// ensembles have no common order, and no common transaction.
    ///
    /// # Examples
    ///
    /// ```
    /// use zk_rwlock::{Error, Memory, Mode, MultiLock, RwLock};
    /// let zk = Memory::new();
    /// let (accounts, rates) = (RwLock::new(&zk, "/locks/b")?, RwLock::new(&zk, "/locks/a")?);
    /// let locks = MultiLock::new([(&accounts, Mode::Write), (&rates, Mode::Read)])?;
    /// assert_eq!(locks.paths().collect::<Vec<_>>(), ["/locks/a", "/locks/b"]);
    /// # Ok::<(), Error>(())
    /// ```
    pub fn new<L: Borrow<RwLock>>(locks: impl IntoIterator<Item = (L, Mode)>) -> Result<MultiLock, Error> {
        let mut locks: Vec<_> = locks.into_iter().map(|(lock, mode)| (lock.borrow().clone(), mode)).collect();
        locks.sort_by(|(one, _), (other, _)| one.path().cmp(other.path()));
        if let [(first, _), others @ ..] = &locks[..] {
            others.iter().try_for_each(|(other, _)| check_same_ensemble(first, other))?;
        }
        // A node has only one valid path. So equal paths are the same lock, and different paths are different locks.
        if let Some(twice) = locks.windows(2).find(|pair| pair[0].0.path() == pair[1].0.path()) {
            let path = twice[0].0.path();
            return Err(Error::invalid(format!(
                "path {} comes twice; a lock can be held in one mode only",
                quoted(path)
            )));
        }
        if locks.is_empty() {
            return Err(Error::invalid("a MultiLock needs at least one lock"));
        }
        Ok(MultiLock { locks: locks.into() })
    }

    /// Returns the locks' directories, in the order in which the locks are acquired.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.locks.iter().map(|(lock, _)| lock.path())
    }

    /// Acquires all the locks.
    ///
    /// Await the returned builder, with or without options. The acquisition waits for one lock after the other, in their
    /// [order](MultiLock#order).
    ///
    /// # Cancel safety
    /// Dropping the future at any point gives back the locks taken so far, and the place in the queue of the next lock.
    /// The nodes and watches of the acquisition are removed as soon as the server can be reached.
    ///
    /// # Errors
    /// [`Error::OneOfMany`], with the lock that failed and the reason. The reason is [`Error::Timeout`] only if a
    /// [`timeout`](Acquire::timeout) was given. It is [`Error::Evicted`] also if a lock that was already granted is
    /// lost while the call waits for a later lock. [`Error::InvalidInput`] if an option is invalid.
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
    /// let [a, b] = [RwLock::new(&zk, "/locks/a")?, RwLock::new(&zk, "/locks/b")?];
    /// let both = MultiLock::new([(&a, Mode::Write), (&b, Mode::Write)])?;
    /// let late = both.lock().timeout(Duration::from_millis(10)).await.unwrap_err();
    /// assert!(late.is_timeout() && late.to_string().starts_with("/locks/b: not granted within 10ms"), "{late}");
    /// assert!(late.to_string().contains("migrate v42"));
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub fn lock(&self) -> Acquire<MultiGuard> {
        Acquire::new(self.clone())
    }

    /// Acquires all the locks if none of them is taken. Waits for no contender. Creates no node if a lock is already
    /// taken.
    ///
    /// If this process [keeps](crate::RwLockBuilder::keep) an idle node of one of the locks, first gives that node up.
    /// Reads the queues of all the locks at once, and then acquires one lock after the other. If another contender
    /// acquires one of the locks meanwhile, the call gives back the locks that it has taken, and fails. In all other
    /// respects, works like [`RwLock::try_write`].
    ///
    /// # Cancel safety
    /// Same as for [`MultiLock::lock`].
    ///
    /// # Errors
    /// [`Error::OneOfMany`] with the first lock that is taken and [`Error::WouldBlock`], which names the contenders
    /// that the call would wait for. The other errors are those of [`MultiLock::lock`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use zk_rwlock::{Error, Memory, Mode, MultiLock, RwLock};
    /// # tokio_test::block_on(async {
    /// # let zk = Memory::new();
    /// # let [a, b] = [RwLock::new(&zk, "/locks/a")?, RwLock::new(&zk, "/locks/b")?];
    /// # let both = MultiLock::new([(&a, Mode::Write), (&b, Mode::Read)])?;
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
        Call::with_deadline(&self.locks[0].0.config.coordinator, async move { this.try_acquire().await })
    }

    async fn try_acquire(&self) -> Result<MultiGuard, Error> {
        // The `MultiLock` cannot reuse a node that this process keeps between uses (`RwLockBuilder::keep`). Such a node
        // would even make the lock look taken. So idle kept nodes are given up first.
        self.locks.iter().filter_map(|(lock, _)| lock.cache.as_ref()).for_each(|cache| cache.give_up_idle_node());
        let all: Vec<_> =
            self.locks.iter().map(|(lock, mode)| new_acquisition(lock, *mode, AcquireOptions::default())).collect();
        let mut limit = Duration::MAX;
        for (one, check) in all.iter().zip(join_all(all.iter().map(Acquisition::fail_if_taken)).await) {
            limit = one.report_error(check).map_err(|error| error.with_lock_path(one.config.user_path()))?;
        }
        let mut taken = MultiGuard::empty();
        for mut one in all {
            let (span, path) = (one.begin_trace(), Arc::clone(one.config.user_path()));
            // `fail_if_taken` has just found the lock free. So the lock need not be listed again before this
            // contender's node is created.
            let take = async { one.report_error(one.take_now(limit).await) };
            taken.add_when_granted(&path, span.instrument(pin!(take))).await?;
        }
        taken.check_all_held()
    }

    async fn acquire(&self, mut options: AcquireOptions) -> Result<MultiGuard, Error> {
        // Starts the timeout once, for all the locks together. The error of an invalid option is ignored here, because
        // the acquisition of the first lock fails with the same error.
        _ = options.start_timeout();
        let mut taken = MultiGuard::empty();
        for (lock, mode) in &*self.locks {
            let mut one = new_acquisition(lock, *mode, options.clone());
            let granted = async { one.begin_trace().instrument(pin!(one.acquire())).await };
            taken.add_when_granted(lock.path(), granted).await?;
        }
        taken.check_all_held()
    }
}

fn new_acquisition(lock: &RwLock, mode: Mode, options: AcquireOptions) -> Acquisition {
    Acquisition::new(Arc::clone(&lock.config), mode, options)
}

/// Fails if both clients have connect strings, and these name no common server or end in different paths.
fn check_same_ensemble(one: &RwLock, other: &RwLock) -> Result<(), Error> {
    let namespace = |lock: &RwLock| lock.config.coordinator.namespace();
    let (Some((servers, root)), Some((others, other_root))) = (namespace(one), namespace(other)) else { return Ok(()) };
    let refused = |problem: String| {
        let (one, other) = (quoted(one.path()), quoted(other.path()));
        Err(Error::invalid(format!("{one} and {other} cannot be taken together: {problem}")))
    };
    if root != other_root {
        let or_root = |root: String| if root.is_empty() { "/".to_owned() } else { root };
        let (root, other) = (or_root(root), or_root(other_root));
        return refused(format!("their connect strings end in different paths, {root} and {other}"));
    }
    if !servers.iter().any(|server| others.contains(server)) {
        let (servers, others) = (servers.join(","), others.join(","));
        return refused(format!("their connect strings have no server in common, {servers} and {others}"));
    }
    Ok(())
}

impl Guard for MultiGuard {
    type Source = MultiLock;

    fn acquire(locks: MultiLock, options: AcquireOptions) -> Granting<MultiGuard> {
        Granting::new(async move { locks.acquire(options).await })
    }
}
