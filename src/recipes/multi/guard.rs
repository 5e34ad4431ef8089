//! The guard of several locks: the first loss, the fencing tokens, guarded reads and writes, and the release of all
//! locks.

use std::future::pending;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join_all, select_all};

use crate::contend::contender::{Contender, NodeData, while_held};
use crate::contend::transaction::Transaction;
use crate::error::error::Error;
use crate::observe::changes::{Changes, DropSignal, worst_state};
use crate::queue::node_name::NodeName;
use crate::session::request::{HoldState, Loss};
use crate::sync::OnceLock;
use crate::telemetry::debug::debug;
use crate::validation;

/// Returns the error of an acquisition that lost one of its locks before the last lock was granted.
fn evicted_error((path, why): (&str, Loss)) -> Error {
    Error::Evicted(why).with_lock_path(path)
}

/// Returns the error of a guard that lost a lock.
fn lost_error((path, why): (&str, Loss)) -> Error {
    Error::Lost(why).with_lock_path(path)
}

/// Returns the output of the first future that is ready. If several are ready at the same poll, returns the output of
/// the one that comes first in the list. Never returns if the list is empty.
async fn first_ready<F: Future>(futures: impl Iterator<Item = F>) -> F::Output {
    let futures: Vec<_> = futures.map(Box::pin).collect();
    match futures.is_empty() {
        true => pending().await,
        false => select_all(futures).await.0,
    }
}

/// Several locks, held together. Made by [`MultiLock::lock`](crate::MultiLock::lock).
///
/// The guard is lost as soon as any of its locks is lost. The other locks stay taken until the guard is
/// [released](Self::release) or dropped. Dropping the guard gives the locks back in the background, from the last to the
/// first. The guard may be dropped on any thread, also outside a runtime and in a panic. Before a program ends, it should
/// [`release`](Self::release) the guard: see [`WriteGuard`](crate::WriteGuard).
#[must_use = "if unused, the locks are given back at once"]
pub struct MultiGuard {
    /// The locks, sorted by path. They were acquired in this order. A complete guard has at least one lock.
    locks: Vec<Arc<Contender>>,
    first_loss: OnceLock<(String, Loss)>,
    life: DropSignal,
}

impl MultiGuard {
    pub(crate) fn empty() -> MultiGuard {
        MultiGuard { locks: Vec::new(), first_loss: OnceLock::new(), life: DropSignal::default() }
    }

    /// Waits for the grant of the next lock, whose directory is `path`, and adds that lock. Fails if `granted` fails,
    /// or if a lock of this guard is lost during the wait.
    pub(crate) async fn add_when_granted(
        &mut self,
        path: &str,
        granted: impl Future<Output = Result<Arc<Contender>, Error>>,
    ) -> Result<(), Error> {
        let held = tokio::select! {
            biased;
            answer = granted => answer.map_err(|error| error.with_lock_path(path))?,
            loss = self.lost() => return Err(evicted_error(loss)),
        };
        self.locks.push(held);
        Ok(())
    }

    /// Returns the guard, once all locks are granted. Fails if a lock was lost while the later locks were acquired.
    pub(crate) fn check_all_held(self) -> Result<MultiGuard, Error> {
        match self.first_loss() {
            Some(loss) => Err(evicted_error(loss)),
            None => Ok(self),
        }
    }

    /// Returns the path of the lost lock, and the reason; `None` if no lock is lost. If several locks are lost, always
    /// returns the loss that was found first.
    fn first_loss(&self) -> Option<(&str, Loss)> {
        let lost = self.first_loss.get().or_else(|| {
            let found = self.locks.iter().find_map(|held| Some((held.user_path().to_owned(), held.detect_loss()?)))?;
            Some(self.first_loss.get_or_init(|| found))
        });
        lost.map(|(path, why)| (path.as_str(), *why))
    }

    /// Returns the path of this guard's own node in the directory of each lock, in the order in which the locks were
    /// taken.
    ///
    /// Any client can add checks that these nodes exist to a ZooKeeper transaction. The transaction then commits only
    /// while all the nodes exist. As long as a node exists, no conflicting contender is granted its lock.
    pub fn node_paths(&self) -> impl Iterator<Item = String> {
        self.locks.iter().map(|held| held.node().path())
    }

    /// Returns the [fencing token](crate::Hold::fencing_token) of the lock in directory `path`. `None` if this guard
    /// has no such lock.
    ///
    /// Give each resource the token of the lock that guards it. Tokens of different locks cannot be compared.
    ///
    /// # Examples
    ///
    /// ```
    /// # use zk_rwlock::{Error, Memory, Mode, MultiLock, RwLock};
    /// # tokio_test::block_on(async {
    /// # let zk = Memory::new();
    /// # let [a, b] = [RwLock::new(&zk, "/locks/a")?, RwLock::new(&zk, "/locks/b")?];
    /// # let both = MultiLock::new([(&a, Mode::Write), (&b, Mode::Write)])?;
    /// let earlier = both.lock().await?.fencing_token("/locks/a").unwrap();
    /// let guard = both.lock().await?;
    /// assert!(guard.fencing_token("/locks/a").unwrap() > earlier);
    /// assert_eq!(guard.fencing_tokens().count(), 2);
    /// assert_eq!(guard.fencing_token("/locks/c"), None);
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub fn fencing_token(&self, path: impl AsRef<str>) -> Option<i64> {
        self.fencing_tokens().find(|(directory, _)| *directory == path.as_ref()).map(|(_, token)| token)
    }

    /// Returns each lock's directory and fencing token, in the order in which the locks were taken.
    pub fn fencing_tokens(&self) -> impl Iterator<Item = (&str, i64)> {
        self.locks.iter().map(|held| (held.user_path(), held.node().token()))
    }

    /// Returns whether all the locks are still held. See [`Hold::is_held`](crate::Hold::is_held).
    pub fn is_held(&self) -> bool {
        self.first_loss().is_none()
    }

    /// Returns the state of the guard. The guard is lost if any of its locks is lost. Otherwise it is suspect if any of
    /// its locks is suspect, and held if none is. If several locks are suspect, the state has the earliest `until` of
    /// them.
    pub fn state(&self) -> HoldState {
        match self.first_loss() {
            Some((_, why)) => HoldState::Lost { why },
            None => worst_state(self.locks.iter().map(|held| held.hold_state())).unwrap_or(HoldState::Held),
        }
    }

    /// Returns a stream of the [`state`](Self::state): first the present state, and then the new state whenever its
    /// kind has changed. If the kind changes several times between two polls, the stream skips all states but the
    /// newest. The stream ends after `Lost`, and when the guard is dropped.
    ///
    /// # Examples
    ///
    /// ```
    /// # use zk_rwlock::{Error, HoldState, Loss, Memory, Mode, MultiLock, RwLock};
    /// # tokio_test::block_on(async {
    /// # let zk = Memory::new();
    /// # let [a, b] = [RwLock::new(&zk, "/locks/a")?, RwLock::new(&zk, "/locks/b")?];
    /// # let both = MultiLock::new([(&a, Mode::Write), (&b, Mode::Read)])?;
    /// let guard = both.lock().await?;
    /// let mut changes = guard.changes();
    /// assert_eq!(changes.next().await, Some(HoldState::Held));
    /// zk.faults().remove("/locks/b");
    /// assert_eq!(changes.next().await, Some(HoldState::Lost { why: Loss::Removed }));
    /// assert_eq!(changes.next().await, None);
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub fn changes(&self) -> Changes {
        self.life.stream_states_of(self.locks.iter().map(|held| held.node_and_session()))
    }

    /// Waits until one of the locks is lost, and returns its directory and the reason. The method returns before the
    /// ensemble can grant that lock to another contender, unless somebody deletes the lock's node. It never returns
    /// while all locks are held.
    ///
    /// If several locks are found lost together, the one whose path sorts first is returned. Later calls return the
    /// same answer.
    ///
    /// # Cancel safety
    /// Nothing is lost by dropping the future.
    ///
    /// # Examples
    ///
    /// ```
    /// # use zk_rwlock::{Error, Memory, Mode, MultiLock, RwLock};
    /// # async fn process_batch() {}
    /// # tokio_test::block_on(async {
    /// # let zk = Memory::new();
    /// # let [a, b] = [RwLock::new(&zk, "/locks/a")?, RwLock::new(&zk, "/locks/b")?];
    /// # let both = MultiLock::new([(&a, Mode::Write), (&b, Mode::Read)])?;
    /// let guard = both.lock().await?;
    /// tokio::select! {
    ///     () = process_batch() => guard.release().await?,
    ///     (path, why) = guard.lost() => eprintln!("stopped: {path} was lost: {why}"),
    /// }
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub async fn lost(&self) -> (&str, Loss) {
        loop {
            if let Some(loss) = self.first_loss() {
                return loss;
            }
            first_ready(self.locks.iter().map(|held| held.until_lost())).await;
        }
    }

    /// Returns the shortest [`session_left`](crate::Hold::session_left) of all the locks.
    pub fn session_left(&self) -> Duration {
        self.locks.iter().map(|held| held.session_left()).min().unwrap_or_default()
    }

    /// Waits until another contender must wait for one of the locks. Returns that lock's directory, and the first contender
    /// that must wait there. See [`Hold::contended`](crate::Hold::contended).
    ///
    /// # Cancel safety
    /// Nothing is lost by dropping the future.
    ///
    /// # Errors
    /// [`Error::OneOfMany`] with [`Error::Lost`] once a lock is lost, or with [`Error::PermissionDenied`] if a lock's
    /// directory may not be read.
    ///
    /// # Examples
    ///
    /// ```
    /// # use zk_rwlock::{Error, Memory, Mode, MultiLock, RwLock};
    /// # tokio_test::block_on(async {
    /// # let zk = Memory::new();
    /// # let [a, b] = [RwLock::new(&zk, "/locks/a")?, RwLock::new(&zk, "/locks/b")?];
    /// # let both = MultiLock::new([(&a, Mode::Write), (&b, Mode::Write)])?;
    /// # let lock_b = RwLock::new(&zk, "/locks/b")?;
    /// let guard = both.lock().await?;
    /// # tokio::spawn(async move { lock_b.read().await });
    /// let (path, first) = guard.contended().await?;
    /// println!("making way for {first} in {path}");
    /// # assert_eq!(path, "/locks/b");
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub async fn contended(&self) -> Result<(&str, NodeName), Error> {
        let each = self.locks.iter().map(|held| async {
            let first = held.until_contended().await.map_err(|error| error.with_lock_path(held.user_path()))?;
            Ok((held.user_path(), first))
        });
        self.run(first_ready(each)).await?
    }

    /// Runs `work` while all the locks are held, and drops `work` as soon as a lock is lost. [`Hold::run`](crate::Hold::run)
    /// says what `work` may have done by then.
    ///
    /// # Cancel safety
    /// Dropping the future drops `work`.
    ///
    /// # Errors
    /// [`Error::OneOfMany`] with [`Error::Lost`] if a lock is lost before `work` completes.
    ///
    /// # Examples
    ///
    /// ```
    /// # use zk_rwlock::{Error, Memory, Mode, MultiLock, RwLock};
    /// # tokio_test::block_on(async {
    /// # let zk = Memory::new();
    /// # let [a, b] = [RwLock::new(&zk, "/locks/a")?, RwLock::new(&zk, "/locks/b")?];
    /// # let both = MultiLock::new([(&a, Mode::Write), (&b, Mode::Read)])?;
    /// let guard = both.lock().await?;
    /// assert_eq!(guard.run(async { 42 }).await?, 42);
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub async fn run<F: Future>(&self, work: F) -> Result<F::Output, Error> {
        while_held(|| self.first_loss(), self.lost(), work).await.map_err(lost_error)
    }

    /// Reads any node. Returns `None` if the node does not exist.
    ///
    /// The read is sent on the session of the lock that was granted last. So the read sees everything that earlier
    /// holders of these locks wrote to ZooKeeper before they released, except for readers whose locks this guard could
    /// share.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing, because the call only reads.
    ///
    /// # Errors
    /// [`Error::OneOfMany`] with [`Error::Lost`] if a lock is lost. [`Error::PermissionDenied`] if the node may not be
    /// read. [`Error::InvalidInput`] if `path` is no valid path.
    ///
    /// # Examples
    ///
    /// ```
    /// # use zk_rwlock::{Error, Memory, Mode, MultiLock, RwLock};
    /// # tokio_test::block_on(async {
    /// # let zk = Memory::new();
    /// # let [a, b] = [RwLock::new(&zk, "/locks/a")?, RwLock::new(&zk, "/locks/b")?];
    /// # let both = MultiLock::new([(&a, Mode::Write), (&b, Mode::Read)])?;
    /// let guard = both.lock().await?;
    /// assert_eq!(guard.read_node("/config").await?, None);
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub async fn read_node(&self, path: impl AsRef<str>) -> Result<Option<NodeData>, Error> {
        validation::check_path(path.as_ref())?;
        let Some(last) = self.locks.last() else { return Ok(None) };
        // The node of the last lock was created last. So a read on its session sees everything that was written before
        // any of the locks was granted.
        self.run(last.read_node(path.as_ref())).await?.map_err(|error| match (error, self.first_loss()) {
            (Error::Lost(_), Some(first)) => lost_error(first),
            (lost @ Error::Lost(_), None) => lost.with_lock_path(last.user_path()),
            (error, _) => error,
        })
    }

    /// Starts a transaction, which the ensemble commits only if all the locks are still held at the commit. See
    /// [`Transaction`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use zk_rwlock::{Error, Memory, Mode, MultiLock, RwLock};
    /// # tokio_test::block_on(async {
    /// # let zk = Memory::new();
    /// # let [a, b] = [RwLock::new(&zk, "/locks/a")?, RwLock::new(&zk, "/locks/b")?];
    /// # let both = MultiLock::new([(&a, Mode::Write), (&b, Mode::Read)])?;
    /// let guard = both.lock().await?;
    /// guard.transaction().create("/config", "v1").commit().await?;
    ///
    /// zk.faults().remove("/locks/b"); // an operator breaks one of the locks
    /// let refused = guard.transaction().set("/config", "v2").commit().await.unwrap_err();
    /// assert!(refused.is_lost() && refused.to_string().starts_with("/locks/b: "), "{refused}");
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub fn transaction(&self) -> Transaction<'_> {
        Transaction::new(self.locks.iter().map(|held| &**held).collect(), true)
    }

    /// Gives all the locks back, from the last to the first, and returns when their nodes are surely gone.
    ///
    /// Sends the requests for all locks before any of them is answered, so the call takes about as long as the release
    /// of one lock.
    ///
    /// # Cancel safety
    /// Dropping the future gives the locks back in any case. A release that was polled goes on in the background.
    ///
    /// # Errors
    /// [`Error::OneOfMany`] if a lock had been lost before, or if the node of a lock could not be deleted: see
    /// [`WriteGuard::release`](crate::WriteGuard::release). The call tries to give back every lock, even after such an
    /// error.
    pub async fn release(mut self) -> Result<(), Error> {
        let loss = self.first_loss().map(lost_error);
        let locks = mem::take(&mut self.locks);
        let release = |held: Arc<Contender>| async move {
            let path = held.user_path().to_owned();
            held.give_back().await.map_err(|error| error.with_lock_path(&path))
        };
        let released = join_all(locks.into_iter().rev().map(release)).await;
        match loss {
            Some(lost) => Err(lost),
            None => released.into_iter().rev().collect(),
        }
    }
}

impl Drop for MultiGuard {
    fn drop(&mut self) {
        while self.locks.pop().is_some() {}
    }
}

debug!(MultiGuard as "MultiGuard", |it| nodes: it.node_paths().collect::<Vec<_>>(), is_held: it.is_held());
