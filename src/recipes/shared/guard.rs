//! The guards of a value, and the calls that acquire them: read, write, commit, update.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use crate::call::{self, Call};
use crate::contend::acquisition::AcquireOptions;
use crate::error::error::Error;
use crate::error::value::Written;
use crate::lock::acquire::{self, Acquire, Granting, Guard};
use crate::lock::hold::{ReadGuard, WriteGuard};
use crate::queue::mode::Mode;
use crate::recipes::shared::codec::{CommitId, Stored};
use crate::recipes::shared::node::{CommitBase, CommittedValue};
use crate::recipes::shared::shared::Shared;
use crate::recipes::shared::store::{LoadedValue, SharedState};
use crate::session::request::{Failure, Loss};

/// A [`Shared`](crate::Shared) value, held to read. Derefs to the value as it was when the lock was granted. While the
/// guard is held, no writer changes the value under the lock.
///
/// Dropping the guard gives the lock back.
#[must_use = "if unused, the lock is given back at once"]
pub struct SharedReadGuard<T> {
    stored: Arc<Stored<T>>,
    guard: ReadGuard,
}

/// A [`Shared`](crate::Shared) value, held by one writer alone. Derefs to a copy of the value. [`commit`](Self::commit)
/// writes the copy to the value's node. Dropping the guard without a commit discards the changes of the copy.
///
/// Dropping the guard gives the lock back.
#[must_use = "if unused, the lock is given back at once"]
pub struct SharedWriteGuard<T> {
    loaded: LoadedValue<T>,
    /// Whether the outcome of this guard's last commit is unknown: the future of the commit was dropped, or the search
    /// for the outcome failed.
    in_doubt: bool,
    label: Option<String>,
    state: Arc<SharedState<T>>,
    guard: WriteGuard,
}

macro_rules! shared_guard {
    ($guard:ident, $lock:ident) => {
        impl<T> $guard<T> {
            /// Returns the guard of the lock, for its state, for transactions on other nodes, and for everything else
            /// that a holder can do.
            pub fn lock(&self) -> &$lock {
                &self.guard
            }

            #[doc = concat!("Gives the lock back: see [`", stringify!($lock), "::release`].")]
            ///
            /// # Cancel safety
            /// If the future is dropped after its first poll, the release goes on in the background.
            ///
            /// # Errors
            /// [`Error::Lost`] if the lock had been lost before. [`Error::PermissionDenied`] if the node may not be
            /// deleted.
            pub async fn release(self) -> Result<(), Error> {
                self.guard.release().await
            }
        }

        impl<T: fmt::Debug> fmt::Debug for $guard<T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($guard)).field("value", &**self).field("lock", &self.guard).finish()
            }
        }
    };
}

shared_guard!(SharedReadGuard, ReadGuard);
shared_guard!(SharedWriteGuard, WriteGuard);

impl<T> SharedReadGuard<T> {
    /// Returns the writer of the value, and the time of the write.
    pub fn written(&self) -> &Written {
        self.stored.written()
    }

    /// Returns the value alone, and gives the lock back in the background. Clones the value if other guards have the
    /// same copy of it, which happens when the lock is [kept](crate::RwLockBuilder::keep).
    pub fn into_inner(self) -> T
    where
        T: Clone,
    {
        Arc::unwrap_or_clone(self.stored).into_inner()
    }
}

impl<T> Deref for SharedReadGuard<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.stored
    }
}

impl<T: Send + Sync + 'static> SharedWriteGuard<T> {
    /// Writes the guard's copy of the value to the node, and returns the header of the new value. One transaction checks that
    /// the lock is held, checks that no other client has written the node since this guard read or wrote it, and writes the
    /// whole value. If a check fails, nothing is written. A guard can commit several times.
    ///
    /// If the connection breaks before the reply comes, `commit` waits until the connection is back. If the session
    /// ends, `commit` waits for a new session, or until none can be opened. Then `commit` reads the node to find the
    /// outcome, and sends the transaction again if nothing was written. So every error but [`Error::OutcomeUnknown`]
    /// means that this commit has written nothing.
    ///
    /// # Cancel safety
    /// The transaction is sent at the first poll. Dropping the future after that does not cancel the transaction. The
    /// node then has the old value or the new one. The next commit of this guard first finds out which one the node
    /// has.
    ///
    /// # Errors
    /// - [`Error::Lost`]: the lock is lost. The node holds the old value, or the value of a later holder.
    /// - [`Error::Value`]: the value [cannot be encoded](crate::error::ValueError::Unwritable), or is [too
    ///   large](crate::error::ValueError::TooLarge). The node holds the old value.
    /// - [`Error::TransactionRefused`]: a client without the lock wrote or deleted the node, and its change stays.
    ///   Release the guard, and acquire the lock again. If the failure is
    ///   [`NoAuth`](crate::coordinator::Failure::NoAuth) instead, an ACL does not let this client write the node, or
    ///   create the missing node.
    /// - [`Error::OutcomeUnknown`]: no server could be reached any more, the client was closed before the reply came,
    ///   or other clients have written several times since. The node holds the old value, or the new one was written.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[cfg(feature = "json")]
    /// # tokio_test::block_on(async {
    /// # use zk_rwlock::{Error, Memory, Shared};
    /// # let zk = Memory::new();
    /// let names: Shared<Vec<String>> = Shared::builder(&zk, "/names").initial(Vec::new).build()?;
    /// let mut value = names.write().label("add ann").await?;
    /// value.push("ann".to_owned());
    /// let written = value.commit().await?;
    /// assert_eq!((written.label.as_deref(), written.token), (Some("add ann"), value.lock().fencing_token()));
    /// value.push("bob".to_owned());
    /// drop(value); // without bob
    /// assert_eq!(*names.read().await?, ["ann"]);
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub async fn commit(&mut self) -> Result<Written, Error> {
        let (node, hold, loaded) = (&self.state.node, &self.guard.held, &mut self.loaded);
        if self.in_doubt {
            loaded.base = node.base_after_unknown_commit(hold, loaded.base).await?;
        }
        let payload = self.state.encode(&loaded.value)?;
        self.in_doubt = true;
        let answer = node.write(hold, &payload, &self.label, loaded.base).await;
        self.in_doubt = matches!(answer, Err(Error::OutcomeUnknown { .. }));
        let committed = answer?;
        let CommittedValue { version, written, .. } = &committed;
        loaded.base = CommitBase { version: Some(*version), commit_id: Some(CommitId::new(written)), ..loaded.base };
        loaded.written = Some(written.clone());
        self.state.record_commit(hold.session().lease(), &committed);
        Ok(committed.written)
    }

    /// Returns the writer of the value that the guard's last commit wrote. If the guard has committed nothing, returns
    /// the writer of the value that was read at the grant. `None` if there is no value yet, or none with a valid
    /// header.
    pub fn written(&self) -> Option<&Written> {
        self.loaded.written.as_ref()
    }

    /// Turns the write lock into a read lock, without a gap: see [`WriteGuard::downgrade`]. Reads the value again, so
    /// uncommitted changes are discarded.
    ///
    /// # Cancel safety
    /// Dropping the future gives the lock back.
    ///
    /// # Errors
    /// The errors of [`WriteGuard::downgrade`] and of [`Shared::read`](crate::Shared::read).
    pub async fn downgrade(self) -> Result<SharedReadGuard<T>, Error> {
        load_read_guard(self.state, self.guard.downgrade().await?).await
    }
}

impl<T> Deref for SharedWriteGuard<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.loaded.value
    }
}

impl<T> DerefMut for SharedWriteGuard<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.loaded.value
    }
}

impl<T: Send + Sync + 'static> Shared<T> {
    /// Acquires the lock to read, and reads the value. The guard's value does not change while the guard is held.
    ///
    /// Await the returned builder, with or without options. The acquisition waits until every earlier writer has left:
    /// see [`RwLock`](crate::RwLock) for fairness. The read of the value costs one request, or none if the lock was
    /// [kept](crate::RwLockBuilder::keep) since an earlier read.
    ///
    /// The value is that of the last writer, whichever server this client is connected to. A server that shows the
    /// grant to this client also shows that the earlier writer has released the lock, and so shows every commit before
    /// that release. Later reads of the session never show an older state.
    ///
    /// If there is no value yet, the first reader writes the [initial value](crate::shared::SharedBuilder::initial), if the
    /// handle has one.
    ///
    /// # Cancel safety
    /// Same as for [`RwLock::read`](crate::RwLock::read).
    ///
    /// # Errors
    /// The errors of [`RwLock::read`](crate::RwLock::read), and [`Error::Value`] if the node holds no value of this
    /// library. Then the lock is given back.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[cfg(feature = "json")]
    /// # tokio_test::block_on(async {
    /// # use std::time::Duration;
    /// # use zk_rwlock::{Error, Memory, Shared};
    /// # let zk = Memory::new();
    /// let limit: Shared<u32> = Shared::builder(&zk, "/limits/requests").initial(|| 100).build()?;
    /// let value = limit.read().timeout(Duration::from_secs(5)).await?;
    /// assert_eq!(*value, 100);
    /// value.release().await?;
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub fn read(&self) -> Acquire<SharedReadGuard<T>> {
        Acquire::new(self.clone())
    }

    /// Acquires the lock to write, and reads the value. The guard can change the value and
    /// [commit](SharedWriteGuard::commit) the change.
    ///
    /// Await the returned builder, with or without options. The acquisition waits until every earlier contender has left.
    ///
    /// # Cancel safety
    /// Same as for [`RwLock::write`](crate::RwLock::write).
    ///
    /// # Errors
    /// The errors of [`Shared::read`].
    ///
    /// # Examples
    ///
    /// ```
    /// # #[cfg(feature = "json")]
    /// # tokio_test::block_on(async {
    /// # use zk_rwlock::{Error, Memory, Shared};
    /// # let zk = Memory::new();
    /// let limit: Shared<u32> = Shared::builder(&zk, "/limits/requests").initial(|| 100).build()?;
    /// let mut value = limit.write().label("double").await?;
    /// *value *= 2;
    /// value.commit().await?;
    /// assert_eq!(*value.downgrade().await?, 200);
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub fn write(&self) -> Acquire<SharedWriteGuard<T>> {
        Acquire::new((self.clone(), None))
    }

    /// Acquires the lock to read if no writer holds it or waits for it, and reads the value. See
    /// [`RwLock::try_read`](crate::RwLock::try_read).
    ///
    /// # Cancel safety
    /// Same as for [`RwLock::try_read`](crate::RwLock::try_read).
    ///
    /// # Errors
    /// [`Error::WouldBlock`], which names the contenders that the call would wait for. The other errors are those of
    /// [`Shared::read`].
    pub fn try_read(&self) -> Call<SharedReadGuard<T>> {
        let Shared { state } = self.clone();
        Call::new(|deadline| {
            acquire::try_acquire_then(state.node.lock.clone(), Mode::Read, deadline, ReadGuard::new, |it| {
                load_read_guard(state, it)
            })
        })
    }

    /// Acquires the lock to write if no contender holds it or waits for it, and reads the value. See
    /// [`RwLock::try_write`](crate::RwLock::try_write).
    ///
    /// # Cancel safety
    /// Same as for [`RwLock::try_write`](crate::RwLock::try_write).
    ///
    /// # Errors
    /// [`Error::WouldBlock`], which names the contenders that the call would wait for. The other errors are those of
    /// [`Shared::read`].
    pub fn try_write(&self) -> Call<SharedWriteGuard<T>> {
        let Shared { state } = self.clone();
        Call::new(|deadline| {
            acquire::try_acquire_then(state.node.lock.clone(), Mode::Write, deadline, WriteGuard::new, |it| {
                load_write_guard(state, None, None, it)
            })
        })
    }
}

impl<T: Send + Sync + 'static> Guard for SharedReadGuard<T> {
    type Source = Shared<T>;

    fn acquire(Shared { state }: Shared<T>, options: AcquireOptions) -> Granting<SharedReadGuard<T>> {
        Granting::new(acquire::acquire_then(state.node.lock.clone(), options, |guard| load_read_guard(state, guard)))
    }
}

impl<T: Send + Sync + 'static> Guard for SharedWriteGuard<T> {
    /// The handle, and the value of [`Acquire::replacing`].
    type Source = (Shared<T>, Option<T>);

    fn acquire((Shared { state }, instead): Self::Source, options: AcquireOptions) -> Granting<SharedWriteGuard<T>> {
        let label = options.label.clone();
        Granting::new(acquire::acquire_then(state.node.lock.clone(), options, |guard| {
            load_write_guard(state, instead, label, guard)
        }))
    }
}

impl<T: Send + Sync + 'static> Acquire<SharedWriteGuard<T>> {
    /// Gives the guard this value instead of the node's content, even if the node holds no value, or a value that cannot be
    /// read. A [commit](SharedWriteGuard::commit) then writes this value.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[cfg(feature = "json")]
    /// # tokio_test::block_on(async {
    /// # use zk_rwlock::{Error, Memory, RwLock, Shared};
    /// # let zk = Memory::new();
    /// let limit: Shared<u32> = Shared::new(&zk, "/limits/requests")?;
    /// assert!(limit.write().await.is_err(), "there is nothing to change yet");
    /// limit.write().replacing(100).await?.commit().await?;
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub fn replacing(mut self, value: T) -> Self {
        self.source.1 = Some(value);
        self
    }
}

async fn load_read_guard<T: Send + Sync + 'static>(
    state: Arc<SharedState<T>>,
    guard: ReadGuard,
) -> Result<SharedReadGuard<T>, Error> {
    Ok(SharedReadGuard { stored: state.read_or_initialize(&guard).await?, guard })
}

async fn load_write_guard<T: Send + Sync + 'static>(
    state: Arc<SharedState<T>>,
    instead: Option<T>,
    label: Option<String>,
    guard: WriteGuard,
) -> Result<SharedWriteGuard<T>, Error> {
    let loaded = state.load_for_write(&guard.held, instead).await?;
    let label = label.or_else(|| state.node.label().clone());
    Ok(SharedWriteGuard { loaded, in_doubt: false, label, state, guard })
}

/// The maximum number of tries of one update.
const TRIES: u32 = 16;

/// The result of an [update](Shared::update).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Updated<R> {
    /// The output of the user's function.
    pub output: R,
    /// The header of the new value.
    pub written: Written,
}

impl<R: Send + 'static> Guard for Updated<R> {
    type Source = Box<dyn FnOnce(AcquireOptions) -> Granting<Updated<R>> + Send>;

    fn acquire(update: Self::Source, options: AcquireOptions) -> Granting<Updated<R>> {
        update(options)
    }
}

impl<T: Send + Sync + 'static> Shared<T> {
    /// Changes the value in one call: acquires the lock to write, reads the value, calls `change`, commits the value,
    /// and gives the lock back in the background.
    ///
    /// Await the returned builder, with or without options. The update waits until every earlier contender has left, and
    /// costs as much as [`write`](Self::write) and a commit.
    ///
    /// Nobody else changes the value under the lock, so `change` is usually called once. The update is tried again,
    /// with the present value, if nothing was written because the session ended, or because a client without the lock
    /// wrote the node. So **`change` may be called several times**, and must do nothing but change the value that it is
    /// given. After 16 tries the last error is returned. An update with an unknown outcome is not tried again.
    ///
    /// To read the value before you decide whether to write it, use [`write`](Self::write).
    ///
    /// # Cancel safety
    /// Dropping the future gives the lock back. If the commit was sent, the value is then the old one or the new one.
    ///
    /// # Errors
    /// The errors of [`write`](Self::write) and of [`commit`](SharedWriteGuard::commit). [`Error::Timeout`] means that
    /// nothing was written. If the timeout passes during the commit, the error is [`Error::OutcomeUnknown`].
    ///
    /// # Panics
    /// If `change` panics, nothing is written, and the lock is given back.
    ///
    /// # Examples
    ///
    /// ```
    /// # #[cfg(feature = "json")]
    /// # tokio_test::block_on(async {
    /// # use std::time::Duration;
    /// # use zk_rwlock::{Error, Memory, Shared};
    /// # let zk = Memory::new();
    /// let next: Shared<u64> = Shared::builder(&zk, "/invoices/next").initial(|| 1).build()?;
    /// let take = |next: &mut u64| {
    ///     *next += 1;
    ///     *next - 1
    /// };
    /// let number = next.update(take).timeout(Duration::from_secs(5)).label("invoice").await?.output;
    /// assert_eq!((number, next.update(take).await?.output), (1, 2));
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub fn update<R: Send + 'static>(&self, change: impl FnMut(&mut T) -> R + Send + 'static) -> Acquire<Updated<R>> {
        let shared = self.clone();
        Acquire::<Updated<R>>::new(Box::new(|options| Granting::new(update(shared, options, change))))
    }
}

async fn update<T: Send + Sync + 'static, R: Send>(
    shared: Shared<T>,
    mut options: AcquireOptions,
    mut change: impl FnMut(&mut T) -> R + Send,
) -> Result<Updated<R>, Error> {
    let (deadline, mut tries) = (options.start_timeout()?, 1);
    loop {
        let once = async {
            let acquire = Acquire::<SharedWriteGuard<T>> { source: (shared.clone(), None), options: options.clone() };
            let mut guard = acquire.await?;
            let output = change(&mut guard);
            match call::within_deadline(shared.state.node.coordinator(), deadline, guard.commit()).await {
                Ok(written) => Ok(Updated { output, written }),
                Err(Error::Timeout { .. }) => {
                    let reason = "no answer in the time given".to_owned();
                    Err(Error::OutcomeUnknown { operation: "commit a value", reason })
                }
                Err(error) => Err(error),
            }
        };
        match once.await {
            Err(error) if tries < TRIES && is_retryable(&error) => tries += 1,
            answer => return answer,
        }
    }
}

/// Returns whether the error means that nothing was written and another try may succeed. If the lock's node was
/// removed, the update is not tried again, because an operator may have removed the node to stop the update.
fn is_retryable(error: &Error) -> bool {
    match error {
        Error::Lost(loss) | Error::Evicted(loss) => matches!(loss, Loss::SessionOver(_) | Loss::LeaseRanOut),
        Error::TransactionRefused { reason, .. } => {
            matches!(reason, Failure::BadVersion | Failure::NodeExists | Failure::NoNode)
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::request::SessionEnd;

    #[test]
    fn an_update_retries_only_if_a_retry_can_help() {
        let refused = |reason| Error::TransactionRefused { index: 0, path: "/v".to_owned(), reason };
        for error in [
            Error::Lost(Loss::LeaseRanOut),
            Error::Evicted(Loss::SessionOver(SessionEnd::Expired)),
            refused(Failure::BadVersion),
            refused(Failure::NodeExists),
            refused(Failure::NoNode),
        ] {
            assert!(is_retryable(&error), "{error}");
        }
        for error in [
            Error::Lost(Loss::Removed),
            Error::Evicted(Loss::Removed),
            refused(Failure::NoAuth(Box::default())),
            Error::Unreachable("away".to_owned()),
            Error::OutcomeUnknown { operation: "commit", reason: "cut".to_owned() },
        ] {
            assert!(!is_retryable(&error), "{error}");
        }
    }
}
