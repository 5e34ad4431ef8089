//! Finds out whether a path is a lock or a semaphore, reads its queue, and finds or removes contenders.

use zk_rwlock::coordinator::{Failure, permits_in_name};
use zk_rwlock::queue::Member;
use zk_rwlock::{Dialect, Error, Queue, RwLock, Semaphore, ZooKeeper};

use crate::{connect, output};

/// The lock or semaphore at a path.
#[derive(Debug)]
pub(crate) enum LockOrSemaphore {
    Lock(RwLock),
    Semaphore(Semaphore),
    /// A lock or a semaphore. Each request first finds out which of the two is at the path ([`is_semaphore`]).
    Either(RwLock, Semaphore, ZooKeeper),
}

impl LockOrSemaphore {
    /// Returns the lock or semaphore at the path, for reading its queue or removing a contender. Semaphores exist only
    /// in the native dialect.
    pub(crate) fn at(zk: &ZooKeeper, path: &str, dialect: Dialect) -> Result<LockOrSemaphore, Error> {
        let lock = RwLock::builder(zk, path).dialect(dialect).build()?;
        Ok(match dialect {
            Dialect::Native => LockOrSemaphore::Either(lock, Semaphore::builder(zk, path).build()?, zk.clone()),
            _ => LockOrSemaphore::Lock(lock),
        })
    }

    pub(crate) fn path(&self) -> &str {
        match self {
            LockOrSemaphore::Lock(lock) | LockOrSemaphore::Either(lock, ..) => lock.path(),
            LockOrSemaphore::Semaphore(semaphore) => semaphore.path(),
        }
    }

    pub(crate) async fn queue(&self) -> Result<Queue, Error> {
        match self {
            LockOrSemaphore::Semaphore(semaphore) => semaphore.queue().await,
            LockOrSemaphore::Either(_, semaphore, zk) if is_semaphore(semaphore, zk).await? => semaphore.queue().await,
            LockOrSemaphore::Lock(lock) | LockOrSemaphore::Either(lock, ..) => lock.queue().await,
        }
    }

    /// Finds the contender with this token. If an `Either` is a semaphore without such a contender, also searches the
    /// lock at the same path, because clients of older versions may have contended for a lock there.
    pub(crate) async fn find_contender(&self, token: i64) -> Result<Option<Member>, Error> {
        let among = |queue: Queue| queue.members.into_iter().find(|member| member.token == Some(token));
        match self {
            LockOrSemaphore::Either(lock, semaphore, zk) if is_semaphore(semaphore, zk).await? => {
                match among(semaphore.queue().await?) {
                    None => Ok(among(lock.queue().await?)),
                    found => Ok(found),
                }
            }
            _ => Ok(among(self.queue().await?)),
        }
    }

    /// Removes the contender with this token, if [`LockOrSemaphore::find_contender`] would find one, and returns it.
    pub(crate) async fn evict(&self, token: i64) -> Result<Option<Member>, Error> {
        match self {
            LockOrSemaphore::Semaphore(semaphore) => semaphore.evict(token).await,
            LockOrSemaphore::Either(lock, semaphore, zk) if is_semaphore(semaphore, zk).await? => {
                match semaphore.evict(token).await? {
                    None => lock.evict(token).await,
                    removed => Ok(removed),
                }
            }
            LockOrSemaphore::Lock(lock) | LockOrSemaphore::Either(lock, ..) => lock.evict(token).await,
        }
    }
}

/// Returns whether the path is a semaphore. The data of the node at the path decides:
/// - A valid number of permits: a semaphore.
/// - Other data: a semaphore, unless there is no directory of permits.
/// - No data, or no node: a semaphore if the directory of permits can be listed and has a permit.
/// - Data that this client may not read: a lock.
///
/// The directory of the queue decides nothing, because the servers remove it when it is empty.
pub(crate) async fn is_semaphore(semaphore: &Semaphore, zk: &ZooKeeper) -> Result<bool, Error> {
    let is_doubtful = match semaphore.permits().await {
        Ok(Some(_)) => return Ok(true),
        Ok(None) => false,
        Err(Error::Permits { .. }) => true,
        Err(Error::PermissionDenied { .. }) => return Ok(false),
        Err(error) => return Err(error),
    };
    let permits = format!("{}/permits", semaphore.path());
    Ok(match connect::send_request(zk, |session| session.children(&permits)).await {
        Ok(names) => is_doubtful || names.iter().any(|name| permits_in_name(name).is_some()),
        Err(failure) => is_doubtful && !matches!(failure, Failure::NoNode),
    })
}

/// Returns whether `path` is `above` or below it. Slashes at the end of `above` do not count.
pub(crate) fn is_at_or_below(path: &str, above: &str) -> bool {
    path.strip_prefix(above.trim_end_matches('/')).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Returns a message if neither the path nor its record (`PATH.done`) exists. Without this message, the answer "free"
/// would mislead a user who has mistyped the path.
pub(crate) async fn missing_path_message(zk: &ZooKeeper, path: &str) -> Option<String> {
    for node in [path.to_owned(), format!("{path}.done")] {
        if !matches!(connect::send_request(zk, |session| session.children(&node)).await, Err(Failure::NoNode)) {
            return None;
        }
    }
    Some(format!("{path}: there is no such path: it is mistyped, or has not been used for some time"))
}

/// Prints the message of [`missing_path_message`], if there is one.
pub(crate) async fn report_if_missing(zk: &ZooKeeper, path: &str) {
    missing_path_message(zk, path).await.iter().for_each(|words| output::print_message(words));
}
