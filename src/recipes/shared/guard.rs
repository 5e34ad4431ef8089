//! The value while its lock is held.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use crate::error::error::Error;
use crate::error::value::Written;
use crate::lock::hold::{ReadGuard, WriteGuard};
use crate::recipes::shared::codec::Stored;
use crate::recipes::shared::envelope::Mark;
use crate::recipes::shared::node::{Base, NewValue};
use crate::recipes::shared::store::{Loaded, Store};

/// A [`Shared`](crate::Shared) value, held to read. It does not change for as long as the guard is held. Derefs to the
/// value.
///
/// The value was read once, when the lock was granted. Dropping the guard gives the lock back.
#[must_use = "if unused, the lock is given back at once"]
pub struct SharedReadGuard<T> {
    stored: Arc<Stored<T>>,
    guard: ReadGuard,
}

/// A [`Shared`](crate::Shared) value, held to write: alone. Derefs to a copy of the value. [`commit`](Self::commit)
/// writes changes to the copy. If the guard is dropped without it, they are discarded.
///
/// Dropping the guard gives the lock back.
#[must_use = "if unused, the lock is given back at once"]
pub struct SharedWriteGuard<T> {
    loaded: Loaded<T>,
    /// A commit was dropped, or its outcome could not be found.
    in_doubt: bool,
    label: Option<String>,
    store: Arc<Store<T>>,
    guard: WriteGuard,
}

macro_rules! shared_guard {
    ($guard:ident, $lock:ident) => {
        impl<T> $guard<T> {
            /// The lock's own guard, for its state, for transactions on other nodes, and for everything else that it
            /// can do.
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
    pub(crate) fn new(stored: Arc<Stored<T>>, guard: ReadGuard) -> Self {
        SharedReadGuard { stored, guard }
    }

    /// The writer of the value, and the time.
    pub fn written(&self) -> &Written {
        self.stored.written()
    }

    /// The value alone. The lock is given back in the background. The value is cloned if other reads have it, too,
    /// because its lock is [kept](crate::RwLockBuilder::keep).
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
    pub(crate) fn new(loaded: Loaded<T>, label: Option<String>, store: Arc<Store<T>>, guard: WriteGuard) -> Self {
        SharedWriteGuard { loaded, in_doubt: false, label, store, guard }
    }

    /// Writes the value as it is now. One transaction checks that the lock is held and that no client has written the
    /// value since, and then writes it: all of it, or nothing. Returns what is kept beside the value. It may be called
    /// several times.
    ///
    /// If the connection breaks before the answer comes, `commit` finds the outcome, and tries again if nothing was
    /// written. So every error but [`Error::OutcomeUnknown`] means that this commit has written nothing. This takes
    /// as long as the connection is away, at most until the session is over and the next one has been opened, or could
    /// not be.
    ///
    /// # Cancel safety
    /// The transaction is sent at the first poll. Dropping the future after that does not take it back: the value is
    /// then the old one or the new one. Another commit finds out which.
    ///
    /// # Errors
    /// - [`Error::Lost`]: the lock is gone. The node holds the old value, or a later holder's.
    /// - [`Error::Value`]: the value [cannot be written down](crate::error::ValueError::Unwritable), or is [too
    ///   large](crate::error::ValueError::TooLarge). The node holds the old value.
    /// - [`Error::TransactionRefused`]: a client that does not hold the lock wrote or deleted the node, and its change
    ///   stays. Release, and acquire again. With [`NoAuth`](crate::coordinator::Failure::NoAuth), the ACL of the node
    ///   does not let us write, or the ACL of the node above it, if there is no node yet.
    /// - [`Error::OutcomeUnknown`]: no server could be reached any more, the client was closed before the answer came, or
    ///   other clients have written several times since. The old value is there, or the new one was.
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
        let (node, held, loaded) = (&self.store.node, self.guard.held(), &mut self.loaded);
        if self.in_doubt {
            loaded.base = node.base(held, loaded.base).await?;
        }
        let payload = self.store.payload(&loaded.value)?;
        self.in_doubt = true;
        let answer = node.write(held, &payload, &self.label, loaded.base).await;
        self.in_doubt = matches!(answer, Err(Error::OutcomeUnknown { .. }));
        let committed = answer?;
        let NewValue { version, written, .. } = &committed;
        loaded.base = Base { version: Some(*version), mark: Some(Mark::of(written)), ..loaded.base };
        loaded.written = Some(written.clone());
        self.store.committed(held.ticket().session().lease(), &committed);
        Ok(committed.written)
    }

    /// The writer of the value before the last commit of this guard, or of that commit. `None` if there is no value
    /// yet.
    pub fn written(&self) -> Option<&Written> {
        self.loaded.written.as_ref()
    }

    /// Turns the write lock into a read lock, without a gap: see [`WriteGuard::downgrade`]. Changes that were not
    /// committed are discarded: the value is read again.
    ///
    /// # Cancel safety
    /// Dropping the future gives the lock back.
    ///
    /// # Errors
    /// As [`WriteGuard::downgrade`], and as [`Shared::read`](crate::Shared::read) for the value.
    pub async fn downgrade(self) -> Result<SharedReadGuard<T>, Error> {
        let guard = self.guard.downgrade().await?;
        let stored = self.store.read_under(&guard).await?;
        Ok(SharedReadGuard::new(stored, guard))
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
