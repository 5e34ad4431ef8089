//! The guard of work that is due, which records its success.

use std::fmt;
use std::ops::Deref;

use crate::contend::transaction::Transaction;
use crate::error::error::Error;
use crate::lock::hold::WriteGuard;
use crate::queue::{done, twin};
use crate::session::request::Failure;
use crate::session::retry::Tries;
use crate::telemetry::log::tell;

/// What an error says was tried.
const RECORD: &str = "record the success in";

/// The lock, held to write, for work that is due. Made by [`Acquire::once_in`](crate::Acquire::once_in).
///
/// It derefs to the [`WriteGuard`], with all that a holder can do. When the work has succeeded, call [`done`](Self::done).
/// Dropping or [releasing](Self::release) the guard without that leaves the record as it was: the work stays due, and the
/// next contender gets a guard.
#[must_use = "if unused, the lock is given back at once, and the work stays due"]
pub struct OnceGuard {
    guard: WriteGuard,
    host: String,
    label: Option<String>,
    /// Whether there was a record before.
    is_there: bool,
}

impl OnceGuard {
    pub(super) fn new(guard: WriteGuard, host: String, label: Option<String>, is_there: bool) -> OnceGuard {
        OnceGuard { guard, host, label, is_there }
    }

    /// Records that the work has succeeded just now, and returns when that is committed. Does not release the lock: the
    /// work is still this holder's until the guard is dropped or [released](Self::release). Called again, it records a
    /// later success.
    ///
    /// The record is written only if the lock is still held when the ensemble commits it. So a holder that was cut off,
    /// and whose successor does the work again, records nothing late.
    ///
    /// # Cancel safety
    /// If the future is dropped after its first poll, the success may have been recorded, or not.
    ///
    /// # Errors
    /// After any error but [`Error::OutcomeUnknown`] nothing was recorded, and the next contender does the work again.
    ///
    /// - [`Error::Lost`] if the lock was lost.
    /// - [`Error::PermissionDenied`] if this client may not write the record, or not create it beside the lock's directory.
    /// - [`Error::OutcomeUnknown`] if the session ended before an answer came: the next
    ///   [`once_in`](crate::Acquire::once_in) finds out.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use zk_rwlock::{Error, Memory, RwLock};
    /// # async fn send_report() {}
    /// # tokio_test::block_on(async {
    /// # let lock = RwLock::new(&Memory::new(), "/cron/report")?;
    /// if let Some(guard) = lock.write().once_in(Duration::from_secs(50 * 60)).await? {
    ///     guard.run(send_report()).await?;
    ///     guard.done().await?;
    ///     guard.release().await?;
    /// }
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub async fn done(&self) -> Result<(), Error> {
        let (path, text) = (self.record(), done::text(&self.host, self.label.as_deref(), self.fencing_token()));
        let session = self.guard.held().ticket().session();
        let (mut in_doubt, mut tries, twin) = (false, Tries::LOST_ANSWERS, twin::of(&path));
        // Both are made at once. A twin that may not be made is left out: an operator may have made the record alone.
        let (mut is_there, mut has_twin) = (self.is_there, Some(self.is_there));
        loop {
            let transaction = write(self.guard.transaction(), &path, &text, is_there);
            let transaction = match has_twin {
                Some(has_twin) => write(transaction, &twin, &text, has_twin),
                None => transaction,
            };
            let Err(error) = transaction.commit_once().await else {
                tell!(DEBUG, path, token = self.fencing_token(), "recorded that the work was done");
                return Ok(());
            };
            tries.count();
            match error {
                Error::TransactionRefused { path, reason, .. } if path == twin && !tries.are_over() => {
                    has_twin = match reason {
                        Failure::NoNode => Some(false),
                        Failure::NodeExists => Some(true),
                        _ => None,
                    };
                }
                Error::TransactionRefused { reason: Failure::NoNode, .. } if is_there && !tries.are_over() => {
                    is_there = false;
                }
                Error::TransactionRefused { reason: Failure::NodeExists, .. } if !is_there && !tries.are_over() => {
                    is_there = true;
                }
                // To record the success twice does no harm.
                Error::OutcomeUnknown { .. } if !tries.are_over() => {
                    in_doubt = true;
                    if tries.pause(session).await.is_err() {
                        return Err(error);
                    }
                }
                error if in_doubt => {
                    return Err(Error::OutcomeUnknown { operation: RECORD, reason: error.to_string() });
                }
                Error::TransactionRefused { reason: Failure::NoAuth(lacks), .. } => {
                    return Err(Error::PermissionDenied { operation: RECORD, path, lacks });
                }
                error => return Err(error),
            }
        }
    }

    /// The path of the record: that of the lock, with `.done` at its end.
    pub fn record(&self) -> String {
        done::path_of(self.guard.held().directory())
    }

    /// Gives the lock back: see [`WriteGuard::release`]. Records nothing.
    ///
    /// # Errors
    /// As for [`WriteGuard::release`].
    pub async fn release(self) -> Result<(), Error> {
        self.guard.release().await
    }
}

/// Sets a node, or makes it.
fn write<'g>(transaction: Transaction<'g>, path: &str, text: &[u8], is_there: bool) -> Transaction<'g> {
    match is_there {
        true => transaction.set(path, text),
        false => transaction.create(path, text),
    }
}

impl Deref for OnceGuard {
    type Target = WriteGuard;

    fn deref(&self) -> &WriteGuard {
        &self.guard
    }
}

impl fmt::Debug for OnceGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnceGuard").field("guard", &self.guard).field("label", &self.label).finish_non_exhaustive()
    }
}
