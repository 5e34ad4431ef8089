//! The guards of one lock, and [`Hold`], the part that they have in common with permits and terms. A [`HoldShare`] is
//! what such a guard owns.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use crate::contend::contender::{Contender, NodeData};
use crate::contend::transaction::Transaction;
use crate::error::error::Error;
use crate::keep::cache::KeptUseShare;
use crate::observe::changes::{Changes, DropSignal};
use crate::queue::node_name::NodeName;
use crate::session::request::{HoldState, Loss};
use crate::telemetry::debug::debug;

/// The common part of [`ReadGuard`](crate::ReadGuard), [`WriteGuard`](crate::WriteGuard),
/// [`Permit`](crate::semaphore::Permit) and a leader's [`Term`](crate::leadership::Term), which deref to this type.
///
/// In the methods below, "the lock" also means the permits of a semaphore, and the term of a leader.
pub struct Hold {
    pub(crate) held: HoldShare,
    life: DropSignal,
}

impl Hold {
    pub(crate) fn new(held: HoldShare) -> Hold {
        Hold { held, life: DropSignal::default() }
    }

    /// Returns the inner hold, and ends the streams that [`changes`](Self::changes) has returned.
    pub(crate) fn into_guard_hold(self) -> HoldShare {
        self.held
    }

    /// Returns whether the lock is still held. The answer has already turned `false` when a conflicting contender can
    /// be granted the lock.
    ///
    /// There is one exception: if somebody else deletes this holder's node, the holder and the next contender are
    /// notified at the same time.
    ///
    /// This method sends no request, and compares the clock with the end of the session's lease. So the answer is right
    /// also in the first call after the process was suspended and continued, or after its runtime was blocked. Once the
    /// answer is `false`, it stays `false`.
    pub fn is_held(&self) -> bool {
        self.held.detect_loss().is_none()
    }

    /// Returns the state of the lock. More detailed than [`is_held`](Self::is_held): while the connection is lost and the lease
    /// is valid, the state is [`Suspect`](HoldState::Suspect).
    pub fn state(&self) -> HoldState {
        self.held.hold_state()
    }

    /// Returns a stream of the [`state`](Self::state): first the present state, and then the new state whenever its
    /// kind has changed. If the kind changes several times between two polls, the stream skips all states but the
    /// newest. The stream ends after `Lost`, and when the guard is dropped.
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
        self.life.stream_states_of([self.held.node_and_session()])
    }

    /// Waits until the lock is lost, and returns the reason. Ready at the latest when the session's lease runs out.
    /// This is before the ensemble can end the session, so the lock's node still exists then, unless somebody has
    /// deleted the node.
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
        self.held.until_lost().await
    }

    /// Returns the time for which this guard's node will at least stay in ZooKeeper, unless somebody removes the node.
    /// During that time no conflicting contender is granted the lock.
    ///
    /// The ensemble keeps the session, and with it the node, for one session timeout from the time when the library
    /// sent the last request that the leader has surely received. With a [`max_hold`](crate::RwLockBuilder::max_hold),
    /// the library may remove the node earlier, and this method takes that into account. Once the time is over, this
    /// method returns zero.
    ///
    /// When the lease runs out, [`lost`](Self::lost) is ready. The time left is then the
    /// [`stop_margin`](crate::ZooKeeperBuilder::stop_margin), by default a sixth of the session timeout. Use this time
    /// to stop work that cannot be dropped, such as another process.
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

    /// Waits until a contender has to wait because of this guard, and returns the first such contender. Writers have to wait
    /// for a [`ReadGuard`](crate::ReadGuard), and all contenders for a [`WriteGuard`](crate::WriteGuard). Returns immediately
    /// if a contender already waits for this guard.
    ///
    /// A contender waits for the holders of permits only if too few permits are free.
    ///
    /// A long piece of work can use this method to make way at a good moment. After this guard is released, a waiting writer
    /// may still have to wait for other readers.
    ///
    /// If the node is [kept](crate::RwLockBuilder::keep), an acquisition of the same process that waits for this node
    /// counts as a contender, too. Such an acquisition has no node of its own, so the call then returns the name of
    /// this guard's node.
    ///
    /// A call lists the lock's directory and sets a watch on it. While the call waits, it lists the directory again
    /// after each change, at most 50 times a second, and after a long time without a change. For a reader's guard, each
    /// reader that comes or goes is a change. So if there are many readers, call this on one of them. For permits,
    /// three more reads follow each listing that shows a waiting contender. Dropping the future ends the watch.
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
    pub async fn contended(&self) -> Result<NodeName, Error> {
        self.held.until_contended().await
    }

    /// Runs `work` while the lock is held, and drops `work` as soon as the lock is lost.
    ///
    /// The clock is read before each poll of the work, and once more when the work is done. So if the lock was lost
    /// while the process was suspended, the work is not polled again, and its output is not returned.
    ///
    /// A poll that has begun runs to the next await point of the work. Other systems may still carry out requests that
    /// the work has sent, so protect these systems with the [fencing token](Self::fencing_token). After [`Error::Lost`]
    /// each [transaction](Self::transaction) of the work was done entirely or not at all, and none is done after the
    /// next contender is granted the lock.
    ///
    /// # Cancel safety
    /// Dropping the future drops `work`.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lock was lost before or during the work, or is found lost when the work is done. The
    /// output of the work is then dropped.
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
        self.held.run_while_held(work).await
    }

    /// Returns the fencing token: a number that is higher than the token of each earlier holder that excluded this one
    /// and had another node.
    ///
    /// Send the token along with every write to another system, and have that system refuse a token lower than the
    /// highest that it has seen. Then a holder that was stopped, or whose packets were late, does no harm. The token is
    /// the id of the transaction that made this guard's node (`czxid`), so the token rises even if the lock's directory
    /// is deleted and made again. [`downgrade`](crate::WriteGuard::downgrade) and [`share`](crate::ReadGuard::share)
    /// keep the token.
    ///
    /// All guards on one [kept](crate::RwLockBuilder::keep) node have the same token. So the token rises from node to
    /// node, and not from one acquisition to the next on the same node.
    pub fn fencing_token(&self) -> i64 {
        self.held.node().token()
    }

    /// Returns the path of this guard's own node, for logs and tests.
    ///
    /// If another client needs the path for a transaction, call
    /// [`prepare_foreign_transaction`](Self::prepare_foreign_transaction) instead.
    pub fn node_path(&self) -> String {
        self.held.node().path()
    }

    /// Returns the path of this guard's own node, for a transaction that another ZooKeeper client sends.
    ///
    /// The other client adds a check that this node exists to its transaction. The ensemble then commits the
    /// transaction only while the node exists. As long as the node exists, no conflicting contender is granted the
    /// lock.
    ///
    /// The library cannot know when that transaction is over. So this call marks a node that is
    /// [kept](crate::RwLockBuilder::keep):
    ///
    /// - A WRITE node is removed after this use of the node. If the node stayed, the transaction could commit while a
    ///   later guard uses the node.
    /// - A [`Shared`](crate::Shared) handle that keeps the node reads its value again for each later guard on the node.
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

    /// Reads any node. Returns `None` if the node does not exist.
    ///
    /// The read is sent on the session of the lock. So the read sees everything that an earlier holder wrote to
    /// ZooKeeper before it released the lock, if that holder excluded this one. A read on another connection may miss
    /// some of this.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing, because the call only reads.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lock is lost. [`Error::PermissionDenied`] if this client may not read the node.
    /// [`Error::InvalidInput`] if the path is invalid.
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
        self.held.read_node(path.as_ref()).await
    }

    /// Starts a transaction, which the ensemble commits only if the lock is still held at the commit. See [`Transaction`].
    pub fn transaction(&self) -> Transaction<'_> {
        Transaction::new(vec![&self.held], false)
    }
}

debug!(Hold as "Hold", |it| path: it.held.node().path(), fencing_token: it.fencing_token(), is_held: it.is_held());

/// A guard of a lock that is held to read: shared with other readers. Made by [`RwLock::read`](crate::RwLock::read).
/// Derefs to [`Hold`], which has the methods that all such guards have.
///
/// Dropping the guard releases the lock in the background, unless other guards share its node, or the node stays
/// [kept](crate::RwLockBuilder::keep). The drop may happen on any thread, also outside a runtime and in a panic. If the
/// process exits immediately after the drop, the request may not be sent. So a program that is about to end should
/// [`release`](Self::release) the guard. Or it can drop its lock and coordinator handles after the guard: dropping the
/// last coordinator handle waits a moment for the server.
#[derive(Debug)]
#[must_use = "if unused, the lock is given back at once"]
pub struct ReadGuard {
    hold: Hold,
}

/// A guard of a lock that is held to write: alone. Made by [`RwLock::write`](crate::RwLock::write). Derefs to [`Hold`],
/// which has the methods that all such guards have.
///
/// Dropping the guard releases the lock in the background, unless the node stays [kept](crate::RwLockBuilder::keep).
/// The drop may happen on any thread, also outside a runtime and in a panic. If the process exits immediately after the
/// drop, the request may not be sent. So a program that is about to end should [`release`](Self::release) the guard. Or
/// it can drop its lock and coordinator handles after the guard: dropping the last coordinator handle waits a moment
/// for the server.
#[derive(Debug)]
#[must_use = "if unused, the lock is given back at once"]
pub struct WriteGuard {
    hold: Hold,
}

macro_rules! guard {
    ($guard:ident) => {
        impl $guard {
            pub(crate) fn new(held: HoldShare) -> $guard {
                $guard { hold: Hold::new(held) }
            }
        }

        impl Deref for $guard {
            type Target = Hold;

            fn deref(&self) -> &Hold {
                &self.hold
            }
        }
    };
}

guard!(ReadGuard);
guard!(WriteGuard);

impl ReadGuard {
    /// Returns whether the guard's node is a kept node: a node that this process keeps for several acquisitions.
    pub(crate) fn is_kept(&self) -> bool {
        matches!(self.hold.held, HoldShare::Kept(_))
    }

    /// Returns one more guard on the same node, without queueing. Use this for a read inside a read.
    ///
    /// The node is removed with its last guard, unless the node stays [kept](crate::RwLockBuilder::keep). All guards on
    /// one node are lost together.
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
        ReadGuard::new(self.hold.held.share())
    }

    /// Releases the lock, and returns when its node is surely gone. If several guards [share](ReadGuard::share) the node,
    /// only the last release waits for that, and the earlier releases return immediately. No release waits if the node stays
    /// [kept](crate::RwLockBuilder::keep) for later uses.
    ///
    /// # Cancel safety
    /// The lock is released even if the future is dropped. A release that was polled goes on in the background.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lock had been lost before. [`Error::PermissionDenied`] if this client may not delete the node.
    /// The node then stays, and the lock stays taken, until the session ends.
    pub async fn release(self) -> Result<(), Error> {
        self.hold.into_guard_hold().release().await
    }
}

impl WriteGuard {
    /// Releases the lock, and returns when its node is surely gone, or immediately if the node stays
    /// [kept](crate::RwLockBuilder::keep) for later uses.
    ///
    /// # Cancel safety
    /// The lock is released even if the future is dropped. A release that was polled goes on in the background.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lock had been lost before. [`Error::PermissionDenied`] if this client may not delete the node.
    /// The node then stays, and the lock stays taken, until the session ends.
    pub async fn release(self) -> Result<(), Error> {
        self.hold.into_guard_hold().release().await
    }

    /// Turns the write lock into a read lock, in place and in one transaction. No other writer can come in between. Readers
    /// right behind this holder are granted the lock, and the first writer behind goes on waiting.
    ///
    /// The fencing token stays the same.
    ///
    /// # Cancel safety
    /// Dropping the future releases the lock.
    ///
    /// # Errors
    /// [`Error::Lost`] if the lock was lost. After any error the lock is released.
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
        self.hold.held.downgrade().await?;
        Ok(ReadGuard { hold: self.hold })
    }
}

/// What a guard owns: a contender that only this guard and its [shares](HoldShare::share) use, or one use of a node
/// that the process keeps for several acquisitions.
pub(crate) enum HoldShare {
    Alone(Arc<Contender>),
    Kept(KeptUseShare),
}

impl HoldShare {
    /// Returns another share of the hold, for another guard.
    pub(crate) fn share(&self) -> HoldShare {
        match self {
            HoldShare::Alone(hold) => HoldShare::Alone(Arc::clone(hold)),
            HoldShare::Kept(used) => HoldShare::Kept(used.share()),
        }
    }

    /// Releases this share of the hold. Waits until the node is gone, or returns immediately if the node stays kept for later
    /// uses, or if other guards share the hold.
    pub(crate) async fn release(self) -> Result<(), Error> {
        match self {
            HoldShare::Alone(hold) => {
                // After this share is dropped, another guard may release the node, which would hide an earlier loss. So
                // the loss is read before.
                let loss = hold.detect_loss();
                match Arc::into_inner(hold) {
                    Some(hold) => hold.give_back().await,
                    None => loss.map_or(Ok(()), |loss| Err(Error::Lost(loss))),
                }
            }
            HoldShare::Kept(used) => used.release().await,
        }
    }

    pub(crate) async fn until_contended(&self) -> Result<NodeName, Error> {
        match self {
            HoldShare::Alone(hold) => hold.until_contended().await,
            HoldShare::Kept(used) => used.until_contended().await,
        }
    }

    pub(crate) async fn downgrade(&mut self) -> Result<(), Error> {
        match self {
            HoldShare::Alone(hold) => hold.downgrade().await,
            HoldShare::Kept(used) => used.downgrade().await,
        }
    }
}

impl Deref for HoldShare {
    type Target = Contender;

    fn deref(&self) -> &Contender {
        match self {
            HoldShare::Alone(hold) => hold,
            HoldShare::Kept(used) => used.contender(),
        }
    }
}
