//! What it means to hold several locks: loss of the first, release of all, tokens, guarded writes; knows no order.

use std::fmt;
use std::future::{Future, poll_fn};
use std::mem;
use std::sync::OnceLock;
use std::task::Poll;
use std::time::{Duration, Instant};

use thiserror::Error;

use crate::error::error::Error;
use crate::hold::changes::Changes;
use crate::hold::guard::{Held, NodeData};
use crate::hold::transaction::Transaction;
use crate::lock::rw_lock::RwLock;
use crate::queue::contender::Contender;
use crate::session::loss::{HoldState, Loss};
use crate::validation;

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
pub(crate) struct Taken {
    /// In the order in which they were taken, which is that of their paths.
    locks: Vec<Held>,
    first_loss: OnceLock<MultiLoss>,
}

impl Taken {
    /// Adds the next lock when it is granted, unless one of the others is lost before that.
    pub(crate) async fn add(
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
    pub(crate) fn complete(self) -> Result<MultiGuard, Error> {
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

/// Several locks, held together. Made by [`MultiLock::lock`](crate::MultiLock::lock).
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
        self.taken.locks.iter().map(|held| held.tenure().path_for_others())
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

    /// For how long the ensemble surely keeps all the locks' sessions. See
    /// [`WriteGuard::session_left`](crate::WriteGuard::session_left).
    pub fn session_left(&self) -> Duration {
        self.taken.locks.iter().map(Held::session_left).min().unwrap_or_default()
    }

    /// Waits until somebody queues up whom one of the locks keeps out, and says at which lock, and who is the first of
    /// them there. See [`WriteGuard::contended`](crate::WriteGuard::contended) and, for locks that are taken to read,
    /// [`ReadGuard::contended`](crate::ReadGuard::contended).
    ///
    /// # Cancel safety
    /// Nothing is lost by dropping the future.
    ///
    /// # Errors
    /// [`Error::OneOfMany`] with [`Error::Lost`] once a lock is lost, or with [`Error::PermissionDenied`] if its directory
    /// may not be read.
    ///
    /// # Examples
    ///
    /// ```
    /// # use zk_rwlock::{Error, Memory, Mode, MultiLock, RwLock};
    /// # tokio_test::block_on(async {
    /// # let zk = Memory::new();
    /// # let both = MultiLock::new(&zk, [("/locks/a", Mode::Write), ("/locks/b", Mode::Write)])?;
    /// # let lock_b = RwLock::new(&zk, "/locks/b")?;
    /// let guard = both.lock().await?;
    /// # tokio::spawn(async move { lock_b.read().await });
    /// let (path, first) = guard.contended().await?;
    /// println!("making way for {first} in {path}");
    /// # assert_eq!(path, "/locks/b");
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub async fn contended(&self) -> Result<(&str, Contender), Error> {
        let each = self.taken.locks.iter().map(|held| async {
            let first = held.contended().await.map_err(|error| error.of_one(held.directory()))?;
            Ok((held.directory(), first))
        });
        tokio::select! {
            biased;
            loss = self.lost() => Err(loss.into()),
            first = first_of(each.collect()) => first,
        }
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
        validation::check(path)?;
        match (self.taken.loss(), self.taken.locks.last()) {
            (None, Some(last)) => {
                // Its node was created last, so its session shows what was written before any of the locks was granted.
                last.data(path).await.map_err(|error| match error {
                    lost @ Error::Lost(_) => lost.of_one(last.directory()),
                    error => error,
                })
            }
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
            .field("nodes", &self.taken.locks.iter().map(|held| held.tenure().path()).collect::<Vec<_>>())
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
        HoldState::Lost { .. } => (0, None::<Instant>),
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
pub(crate) async fn all_of<F: Future>(futures: Vec<F>) -> Vec<F::Output> {
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
