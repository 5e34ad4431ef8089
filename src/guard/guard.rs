//! The guards of one lock: what a holder can do beside holding; knows neither how the lock was acquired nor what its queue
//! looks like.

use std::fmt;
use std::ops::Deref;

use crate::error::error::Error;
use crate::guard::hold::Hold;
use crate::keep::held::Held;

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
            pub(crate) fn new(held: Held) -> $guard {
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
        matches!(self.hold.held(), Held::Kept(_))
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
