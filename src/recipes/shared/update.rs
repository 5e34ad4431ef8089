//! A value changed in one call: the lock, the change, the commit, and when to begin again.

use std::time::Duration;

use tokio::time::Instant;

use crate::call;
use crate::contend::request::Options;
use crate::error::error::Error;
use crate::error::value::Written;
use crate::lock::acquire::{Acquire, Granting, Guard};
use crate::recipes::shared::guard::SharedWriteGuard;
use crate::recipes::shared::shared::Shared;
use crate::session::request::{Failure, Loss};

/// How often an update begins again.
const TRIES: u32 = 16;

/// What an [update](Shared::update) has done.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Updated<R> {
    /// What the change returned.
    pub output: R,
    /// What is kept beside the value that the change made.
    pub written: Written,
}

impl<R: Send + 'static> Guard for Updated<R> {
    type Source = Box<dyn FnOnce(Options) -> Granting<Updated<R>> + Send>;

    fn acquire(update: Self::Source, options: Options) -> Granting<Updated<R>> {
        update(options)
    }
}

impl<T: Send + Sync + 'static> Shared<T> {
    /// Changes the value in one call: acquires the lock to write, reads the value, calls `change`, commits, and gives the
    /// lock back in the background.
    ///
    /// Await the returned builder, with or without options. Waits until every earlier contender has left. It costs what
    /// [`write`](Self::write) and a commit do. A write without the lock would cost less, but could change the value under
    /// a reader that holds the lock.
    ///
    /// Under the lock no other user of it is faster, so `change` is usually called once. The update begins again, with the
    /// value that is there by then, if nothing was written because the session ended, or because a client without the lock
    /// wrote the node. So **`change` may be called several times**, and must do nothing but change the value that it is
    /// given. After 16 times the error is returned. An update whose outcome is not known is not repeated.
    ///
    /// To look at the value before you decide whether to write it at all, use [`write`](Self::write).
    ///
    /// # Cancel safety
    /// Dropping the future gives the lock back. If the commit was sent, the value is then the old one or the new one.
    ///
    /// # Errors
    /// As for [`write`](Self::write) and for [`commit`](SharedWriteGuard::commit). [`Error::Timeout`] says that nothing
    /// was written. If the time is over while the commit is under way, the error is [`Error::OutcomeUnknown`].
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
    pub fn update<R>(&self, change: impl FnMut(&mut T) -> R + Send + 'static) -> Acquire<Updated<R>>
    where
        R: Send + 'static,
    {
        let shared = self.clone();
        Acquire::<Updated<R>>::new(Box::new(|options| Granting::by(update(shared, options, change))))
    }
}

async fn update<T, R>(
    shared: Shared<T>,
    options: Options,
    mut change: impl FnMut(&mut T) -> R + Send,
) -> Result<Updated<R>, Error>
where
    T: Send + Sync + 'static,
    R: Send,
{
    let (timeout, begun, mut tries) = (options.timeout()?, Instant::now(), 1);
    let left = || timeout.map(|timeout| timeout.saturating_sub(begun.elapsed()).max(Duration::from_millis(1)));
    loop {
        let options = Options { timeout: left(), ..options.clone() };
        let once = async {
            let mut guard = Acquire::<SharedWriteGuard<T>> { source: (shared.clone(), None), options }.await?;
            let output = change(&mut guard);
            match call::in_time(shared.store.node.coordinator(), left(), guard.commit()).await {
                Ok(written) => Ok(Updated { output, written }),
                Err(Error::Timeout { .. }) => {
                    let reason = "no answer in the time given".to_owned();
                    Err(Error::OutcomeUnknown { operation: "commit a value", reason })
                }
                Err(error) => Err(error),
            }
        };
        match once.await {
            Err(error) if tries < TRIES && begins_again(&error) => tries += 1,
            answer => return answer.map_err(|error| error.of_the_whole(timeout)),
        }
    }
}

/// Whether nothing was written for a reason that the next try may not meet. An operator who removes our node wants us to
/// stop.
fn begins_again(error: &Error) -> bool {
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
    use crate::session::request::Ending;

    #[test]
    fn an_update_begins_again_only_where_the_next_try_may_do_better() {
        let refused = |reason| Error::TransactionRefused { index: 0, path: "/v".to_owned(), reason };
        for error in [
            Error::Lost(Loss::LeaseRanOut),
            Error::Evicted(Loss::SessionOver(Ending::Expired)),
            refused(Failure::BadVersion),
            refused(Failure::NodeExists),
            refused(Failure::NoNode),
        ] {
            assert!(begins_again(&error), "{error}");
        }
        for error in [
            Error::Lost(Loss::Removed),
            Error::Evicted(Loss::Removed),
            refused(Failure::NoAuth(Box::default())),
            Error::Unreachable("away".to_owned()),
            Error::OutcomeUnknown { operation: "commit", reason: "cut".to_owned() },
        ] {
            assert!(!begins_again(&error), "{error}");
        }
    }
}
