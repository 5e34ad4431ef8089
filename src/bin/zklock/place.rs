//! What is at a path: a lock, or a semaphore; knows no command.

use zk_rwlock::coordinator::Coordinator;
use zk_rwlock::{Dialect, Error, Member, Queue, RwLock, Semaphore};

/// What a path is used as.
#[derive(Debug)]
pub(crate) enum Place {
    Lock(RwLock),
    Semaphore(Semaphore),
    /// What it is, its data say at the moment of a look.
    Either(RwLock, Semaphore),
}

impl Place {
    /// Whatever is there, to look at it. Semaphores are only of the native dialect.
    pub(crate) fn whatever<C: Coordinator + Clone>(zk: &C, path: &str, dialect: Dialect) -> Result<Place, Error> {
        let lock = RwLock::builder(zk, path).dialect(dialect).build()?;
        Ok(match dialect {
            Dialect::Native => Place::Either(lock, Semaphore::builder(zk, path).build()?),
            _ => Place::Lock(lock),
        })
    }

    pub(crate) fn path(&self) -> &str {
        match self {
            Place::Lock(lock) | Place::Either(lock, _) => lock.path(),
            Place::Semaphore(semaphore) => semaphore.path(),
        }
    }

    pub(crate) async fn queue(&self) -> Result<Queue, Error> {
        match self {
            Place::Semaphore(semaphore) => semaphore.queue().await,
            Place::Either(_, semaphore) if is_one(semaphore).await? => semaphore.queue().await,
            Place::Lock(lock) | Place::Either(lock, _) => lock.queue().await,
        }
    }

    /// Removes the one with this token.
    pub(crate) async fn evict(&self, token: i64) -> Result<Option<Member>, Error> {
        match self {
            Place::Semaphore(semaphore) => semaphore.evict(token).await,
            Place::Either(_, semaphore) if is_one(semaphore).await? => semaphore.evict(token).await,
            Place::Lock(lock) | Place::Either(lock, _) => lock.evict(token).await,
        }
    }
}

/// Whether a semaphore is there. Data that are something else, or that we may not read, are a lock's.
pub(crate) async fn is_one(semaphore: &Semaphore) -> Result<bool, Error> {
    match semaphore.permits().await {
        Ok(number) => Ok(number.is_some()),
        Err(Error::DoubtfulPermits { .. } | Error::PermissionDenied { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}
