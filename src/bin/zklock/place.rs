//! What is at a path: a lock, or a semaphore; knows no command.

use std::sync::Arc;

use zk_rwlock::coordinator::Coordinator;
use zk_rwlock::{Dialect, Error, Member, Queue, RwLock, Semaphore};

use crate::connect;

/// What a path is used as.
#[derive(Debug)]
pub(crate) enum Place {
    Lock(RwLock),
    Semaphore(Semaphore),
    /// What it is, its data say at the moment of a look.
    Either(RwLock, Semaphore, Arc<dyn Coordinator>),
}

impl Place {
    /// Whatever is there, to look at it. Semaphores are only of the native dialect.
    pub(crate) fn whatever<C: Coordinator + Clone>(zk: &C, path: &str, dialect: Dialect) -> Result<Place, Error> {
        let lock = RwLock::builder(zk, path).dialect(dialect).build()?;
        Ok(match dialect {
            Dialect::Native => Place::Either(lock, Semaphore::builder(zk, path).build()?, Arc::new(zk.clone())),
            _ => Place::Lock(lock),
        })
    }

    pub(crate) fn path(&self) -> &str {
        match self {
            Place::Lock(lock) | Place::Either(lock, ..) => lock.path(),
            Place::Semaphore(semaphore) => semaphore.path(),
        }
    }

    pub(crate) async fn queue(&self) -> Result<Queue, Error> {
        match self {
            Place::Semaphore(semaphore) => semaphore.queue().await,
            Place::Either(_, semaphore, zk) if is_one(semaphore, zk).await? => semaphore.queue().await,
            Place::Lock(lock) | Place::Either(lock, ..) => lock.queue().await,
        }
    }

    /// Removes the one with this token.
    pub(crate) async fn evict(&self, token: i64) -> Result<Option<Member>, Error> {
        match self {
            Place::Semaphore(semaphore) => semaphore.evict(token).await,
            Place::Either(_, semaphore, zk) if is_one(semaphore, zk).await? => semaphore.evict(token).await,
            Place::Lock(lock) | Place::Either(lock, ..) => lock.evict(token).await,
        }
    }
}

/// Whether a semaphore is there. Data that are something else are a lock's, unless the node has the parts of a semaphore.
/// Data that we may not read are a lock's.
async fn is_one(semaphore: &Semaphore, zk: &Arc<dyn Coordinator>) -> Result<bool, Error> {
    match semaphore.permits().await {
        Ok(number) => Ok(number.is_some()),
        Err(Error::DoubtfulPermits { .. }) => {
            let Ok(session_slot) = zk.session_slot(0).await else { return Ok(false) };
            let session = session_slot.session();
            let names = connect::answered(session, session.children(semaphore.path())).await.unwrap_or_default();
            Ok(has_parts_of_one(names.iter().map(String::as_str)))
        }
        Err(Error::PermissionDenied { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether a node with these children looks like a semaphore.
pub(crate) fn has_parts_of_one<'n>(names: impl Iterator<Item = &'n str>) -> bool {
    names.filter(|name| ["queue", "permits"].contains(name)).count() == 2
}
