//! What holding means, whatever is held, and the guards of one lock.

use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::time::Duration;

use crate::contend::changes::{Changes, GuardLife, states_of};
use crate::contend::handle::NodeData;
use crate::contend::transaction::Transaction;
use crate::error::error::Error;
use crate::keep::join::GuardHold;
use crate::queue::contender::Contender;
use crate::session::request::{HoldState, Loss};

/// Something that is held: what [`ReadGuard`](crate::ReadGuard), [`WriteGuard`](crate::WriteGuard),
/// [`Permit`](crate::semaphore::Permit) and a leader's [`Term`](crate::leadership::Term) have in common. They deref to it.
///
/// Below, "the lock" is also a semaphore's permits, or a leader's term.
pub struct Hold {
    held: GuardHold,
    life: GuardLife,
}

impl Hold {
    pub(crate) fn new(held: GuardHold) -> Hold {
        Hold { held, life: GuardLife::default() }
    }

    pub(crate) fn held(&self) -> &GuardHold {
        &self.held
    }

    pub(crate) fn held_mut(&mut self) -> &mut GuardHold {
        &mut self.held
    }

    pub(crate) fn into_held(self) -> GuardHold {
        self.held
    }

    /// The fields that `Debug` shows, of this and of what derefs to it.
    pub(crate) fn describe(&self, mut debug: fmt::DebugStruct<'_, '_>) -> fmt::Result {
        debug.field("path", &self.held.node().path()).field("fencing_token", &self.fencing_token());
        debug.field("is_held", &self.is_held()).finish()
    }

    /// Whether the lock is still held. The last moment of `true` lies before any conflicting grant.
    ///
    /// There is one exception: if somebody deletes the lock's node by hand, its holder and the next contender
    /// hear of it at the same time.
    ///
    /// The answer comes from the clock and costs no request. So it is right also in the first call after the
    /// process was stopped, or its runtime blocked. Once `false`, it stays `false`.
    pub fn is_held(&self) -> bool {
        self.held.find_loss().is_none()
    }

    /// How sure it is that the lock is held: like [`is_held`](Self::is_held), but it also shows that the
    /// connection is lost while the lock is not.
    pub fn state(&self) -> HoldState {
        self.held.state()
    }

    /// The changes of [`state`](Self::state), as they come.
    ///
    /// # Examples
    ///
    /// ```
    /// # use zk_rwlock::{Error, HoldState, Loss, Memory, RwLock};
    /// # tokio_test::block_on(async {
    /// # let zk = Memory::new();
    /// # let lock = RwLock::new(&zk, "/locks/config")?;
    /// let guard = lock.write().await?;
    /// let mut changes = guard.changes();
    /// assert_eq!(changes.next().await, Some(HoldState::Held));
    /// zk.faults().cut();
    /// assert!(matches!(changes.next().await, Some(HoldState::Suspect { .. })));
    /// zk.faults().expire();
    /// zk.faults().heal();
    /// assert!(matches!(changes.next().await, Some(HoldState::Lost { why: Loss::SessionOver(_) })));
    /// assert_eq!(changes.next().await, None);
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub fn changes(&self) -> Changes {
        states_of([self.held.node_and_session()], self.life.ended())
    }

    /// Waits until the lock is lost, and says why. It answers at the latest when the session's lease runs out,
    /// which is before the ensemble can give the lock to another contender. It is pending for as long as the
    /// lock is held.
    ///
    /// # Cancel safety
    /// Nothing is lost by dropping the future.
    ///
    /// # Examples
    ///
    /// ```
    /// # use zk_rwlock::{Error, Memory, RwLock};
    /// # async fn process_batch() {}
    /// # tokio_test::block_on(async {
    /// # let zk = Memory::new();
    /// # let lock = RwLock::new(&zk, "/locks/config")?;
    /// let guard = lock.write().await?;
    /// tokio::select! {
    ///     () = process_batch() => guard.release().await?,
    ///     why = guard.lost() => eprintln!("stopped, because {why}"),
    /// }
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub async fn lost(&self) -> Loss {
        self.held.lost().await
    }

    /// For how long the ensemble surely keeps the session, and so keeps every conflicting contender out, unless
    /// somebody removes the lock's node. It ends one session timeout after the sending of the newest request
    /// that the leader has surely heard of. Zero once that time is over.
    ///
    /// [`ZooKeeperBuilder::stop_margin`](crate::ZooKeeperBuilder::stop_margin), a sixth of the session timeout,
    /// is left when the lease runs out and [`lost`](Self::lost) answers. It is the time to stop work that
    /// cannot be dropped, such as another process.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use zk_rwlock::{Error, Memory, RwLock};
    /// # tokio_test::block_on(async {
    /// # let zk = Memory::new();
    /// # let lock = RwLock::new(&zk, "/locks/config")?;
    /// let guard = lock.write().await?;
    /// assert!(guard.session_left() > Duration::ZERO);
    /// zk.faults().expire();
    /// assert_eq!(guard.session_left(), Duration::ZERO);
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub fn session_left(&self) -> Duration {
        self.held.session_left()
    }

    /// Waits until a contender queues up that this guard keeps out, and gives the first such contender. A
    /// [`ReadGuard`](crate::ReadGuard) keeps out writers, a [`WriteGuard`](crate::WriteGuard) readers too. Ready at once if such a contender waits
    /// already.
    ///
    /// Permits keep out who finds too few of them. Who is about to take permits that are free does not count; each newcomer in
    /// the queue costs three reads more.
    ///
    /// With this a long piece of work can make way at a good moment. Nothing forces it to. After this guard is
    /// released, a waiting writer may still have to wait for other readers.
    ///
    /// If the node is [kept](crate::RwLockBuilder::keep), uses of the same process that wait for this guard count,
    /// too. They have no node of their own: the contender given is then this guard's own.
    ///
    /// It costs nothing unless it is called. A call costs a listing with a watch on the lock's directory. A
    /// writer's guard lists once more when a contender came. A reader's guard lists once more whenever a reader
    /// comes or goes, at most 50 times a second: so let one reader of many call it. Both look after a long silence,
    /// too. Dropping the future ends the watch.
    ///
    /// # Cancel safety
    /// Nothing is lost by dropping the future.
    ///
    /// # Errors
    /// [`Error::Lost`] once the lock is lost; [`Error::PermissionDenied`] if the directory may not be read.
    ///
    /// # Examples
    ///
    /// ```
    /// # use zk_rwlock::{Error, Memory, RwLock};
    /// # async fn next_step() {}
    /// # tokio_test::block_on(async {
    /// # let zk = Memory::new();
    /// # let lock = RwLock::new(&zk, "/locks/config")?;
    /// let guard = lock.write().await?;
    /// # let other = lock.clone();
    /// # let late = tokio::spawn(async move { other.write().await });
    /// let mut contended = std::pin::pin!(guard.contended());
    /// let first = loop {
    ///     tokio::select! {
    ///         biased;
    ///         first = &mut contended => break first?,
    ///         () = next_step() => {}
    ///     }
    /// #   tokio::task::yield_now().await;
    /// };
    /// println!("making way for {first}");
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub async fn contended(&self) -> Result<Contender, Error> {
        self.held.contended().await
    }

    /// Runs `work` while the lock is held, and drops it as soon as the lock is lost.
    ///
    /// The clock is read before each poll of the work, and once more when the work is done. So a process that was stopped
    /// never goes on with it, nor gives its output, although an answer that the work waited for has come meanwhile.
    ///
    /// By then the work has done all that stands before its next await point, also if it was stopped or blocked on the
    /// way there. Requests that it has sent to other systems go on there, hence the
    /// [fencing token](Self::fencing_token). After [`Error::Lost`] each of its [transactions](Self::transaction) was
    /// done entirely or not at all, and none is done once the next contender is granted.
    ///
    /// # Cancel safety
    /// Dropping the future drops `work`.
    ///
    /// # Errors
    /// [`Error::Lost`], also if the work was done but the lock had been lost by then. Its output is dropped.
    ///
    /// # Examples
    ///
    /// ```
    /// # use zk_rwlock::{Error, Memory, RwLock};
    /// # tokio_test::block_on(async {
    /// # let lock = RwLock::new(&Memory::new(), "/locks/config")?;
    /// let guard = lock.write().await?;
    /// let answer = guard.run(async { 42 }).await?;
    /// # assert_eq!(answer, 42);
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub async fn run<F: Future>(&self, work: F) -> Result<F::Output, Error> {
        self.held.run(work).await
    }

    /// A number that is higher than the token of every earlier holder that excluded this one.
    ///
    /// Send it along with every write to another system, and have that system refuse a number lower than the
    /// highest it has seen. Then a holder that was stopped, or whose packets were late, does no harm. The
    /// number is that of the transaction that made the lock's node (`czxid`), and the ensemble counts all its
    /// transactions together. So it rises even if the lock's directory is deleted and made anew.
    /// [`downgrade`](crate::WriteGuard::downgrade) and [`share`](crate::ReadGuard::share) keep it.
    ///
    /// Guards that use one [kept](crate::RwLockBuilder::keep) node have one token. So tokens rise with each
    /// node, and not with each use within a process.
    pub fn fencing_token(&self) -> i64 {
        self.held.node().token()
    }

    /// Returns the path of the lock's node, for logs and tests.
    ///
    /// Changes nothing. For a transaction of another client, use
    /// [`prepare_foreign_transaction`](Self::prepare_foreign_transaction).
    pub fn node_path(&self) -> String {
        self.held.node().path()
    }

    /// Returns the path of the lock's node, for a transaction that another ZooKeeper client sends.
    ///
    /// The client adds a check that this node exists. The ensemble commits such a transaction only while the lock is held.
    ///
    /// The library cannot know when that transaction is over. So this call marks the node:
    ///
    /// - If the lock [keeps](crate::RwLockBuilder::keep) its node and this is a WRITE node, the node is given up after this
    ///   use. Otherwise the transaction could commit under a later use of the same node.
    /// - A [`Shared`](crate::Shared) handle that keeps the node reads its value again at each later use of this node.
    ///
    /// For a transaction on the lock's own session, use [`transaction`](Self::transaction), which needs no path.
    ///
    /// # Examples
    ///
    /// ```
    /// # use zk_rwlock::{Error, Memory, RwLock};
    /// # tokio_test::block_on(async {
    /// # let lock = RwLock::new(&Memory::new(), "/locks/config")?;
    /// let guard = lock.write().await?;
    /// let node = guard.prepare_foreign_transaction();
    /// // With another client: multi(check(node, ANY_VERSION), set("/config", "v2"))
    /// assert_eq!(node, guard.node_path());
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub fn prepare_foreign_transaction(&self) -> String {
        self.held.node().prepare_foreign_transaction()
    }

    /// Reads any node; `None` if it does not exist.
    ///
    /// It reads on the lock's own session. So it sees everything that earlier holders which excluded this one
    /// wrote to ZooKeeper before they released. A read on another connection might not.
    ///
    /// # Cancel safety
    /// Only reads.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lock is gone; [`Error::PermissionDenied`], [`Error::InvalidInput`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use zk_rwlock::{Error, Memory, RwLock};
    /// # tokio_test::block_on(async {
    /// # let lock = RwLock::new(&Memory::new(), "/locks/config")?;
    /// let guard = lock.write().await?;
    /// match guard.read_node("/config").await? {
    ///     Some(config) => println!("version {}: {} bytes", config.version, config.data.len()),
    ///     None => println!("not configured yet"),
    /// }
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub async fn read_node(&self, path: impl AsRef<str>) -> Result<Option<NodeData>, Error> {
        self.held.data(path.as_ref()).await
    }

    /// Starts a transaction that is committed only if the lock is still held then. See [`Transaction`].
    pub fn transaction(&self) -> Transaction<'_> {
        Transaction::under(&self.held)
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.describe(f.debug_struct("Hold"))
    }
}

/// The lock, held to read: shared with other readers. Made by [`RwLock::read`](crate::RwLock::read).
/// It derefs to [`Hold`], with all that holding means.
///
/// Dropping the guard gives the lock back in the background: from any thread, also outside a runtime and in a panic. A
/// program that ends right after that should [`release`](Self::release) the guard, or also drop its lock and
/// coordinator handles. Dropping the last handle waits a moment for the server. A process that exits at once takes the
/// request with it.
#[must_use = "if unused, the lock is given back at once"]
pub struct ReadGuard {
    hold: Hold,
}

/// The lock, held to write: alone. Made by [`RwLock::write`](crate::RwLock::write). It derefs to
/// [`Hold`], with all that holding means.
///
/// Dropping the guard gives the lock back in the background: from any thread, also outside a runtime and in a panic. A
/// program that ends right after that should [`release`](Self::release) the guard, or also drop its lock and
/// coordinator handles. Dropping the last handle waits a moment for the server. A process that exits at once takes the
/// request with it.
#[must_use = "if unused, the lock is given back at once"]
pub struct WriteGuard {
    hold: Hold,
}

macro_rules! guard {
    ($guard:ident) => {
        impl $guard {
            pub(crate) fn new(held: GuardHold) -> $guard {
                $guard { hold: Hold::new(held) }
            }
        }

        impl Deref for $guard {
            type Target = Hold;

            fn deref(&self) -> &Hold {
                &self.hold
            }
        }

        impl fmt::Debug for $guard {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.hold.describe(f.debug_struct(stringify!($guard)))
            }
        }
    };
}

guard!(ReadGuard);
guard!(WriteGuard);

impl ReadGuard {
    /// Whether its node is kept between uses.
    pub(crate) fn is_kept(&self) -> bool {
        matches!(self.hold.held(), GuardHold::Kept(_))
    }

    /// One more guard on the same node, without queueing. Use it for a re-entrant read.
    ///
    /// The node leaves with its last guard. All its guards are lost together.
    ///
    /// # Examples
    ///
    /// ```
    /// # use zk_rwlock::{Error, Memory, RwLock};
    /// # tokio_test::block_on(async {
    /// # let lock = RwLock::new(&Memory::new(), "/locks/config")?;
    /// let guard = lock.read().await?;
    /// let inner = guard.share();
    /// drop(guard);
    /// assert!(inner.is_held());
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub fn share(&self) -> ReadGuard {
        ReadGuard::new(self.hold.held().share())
    }

    /// Gives the lock back, and returns when its node is surely gone. If several guards share one node, by
    /// [`share`](ReadGuard::share), only the last release does that. The earlier ones return at once. So does the last
    /// one if the node is [kept](crate::RwLockBuilder::keep).
    ///
    /// # Cancel safety
    /// If the future is dropped after its first poll, the release goes on in the background. Before it, the guard is
    /// dropped.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lock had been lost before. [`Error::PermissionDenied`] if the node may not be deleted:
    /// then it stays, and keeps the lock taken, until its session ends.
    pub async fn release(self) -> Result<(), Error> {
        self.hold.into_held().release().await
    }
}

impl WriteGuard {
    /// Gives the lock back, and returns when its node is surely gone, or at once if the node is
    /// [kept](crate::RwLockBuilder::keep).
    ///
    /// # Cancel safety
    /// If the future is dropped after its first poll, the release goes on in the background. Before it, the guard is
    /// dropped.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lock had been lost before. [`Error::PermissionDenied`] if the node may not be deleted:
    /// then it stays, and keeps the lock taken, until its session ends.
    pub async fn release(self) -> Result<(), Error> {
        self.hold.into_held().release().await
    }

    /// Turns the write lock into a read lock, in place and in one transaction. No contender writes in between. Readers
    /// right behind are let in, and writers behind go on waiting.
    ///
    /// The fencing token stays the same.
    ///
    /// # Cancel safety
    /// Dropping the future gives the lock back.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lock is gone. After any error the lock has been given back.
    ///
    /// # Examples
    ///
    /// ```
    /// # use zk_rwlock::{Error, Memory, RwLock};
    /// # tokio_test::block_on(async {
    /// # let lock = RwLock::new(&Memory::new(), "/locks/config")?;
    /// let writer = lock.write().await?;
    /// let token = writer.fencing_token();
    /// let reader = writer.downgrade().await?;
    /// assert_eq!(reader.fencing_token(), token);
    /// assert!(lock.try_read().await.is_ok() && lock.try_write().await.is_err());
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub async fn downgrade(mut self) -> Result<ReadGuard, Error> {
        self.hold.held_mut().downgrade().await?;
        Ok(ReadGuard { hold: self.hold })
    }
}
