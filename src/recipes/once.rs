//! Work that one of many processes does once in a while: `once_in`, which grants the lock only if the work is due, and
//! the guard that records a success.

use std::ops::Deref;
use std::time::Duration;

use crate::call::Call;
use crate::contend::acquisition::AcquireOptions;
use crate::contend::transaction::Transaction;
use crate::error::error::Error;
use crate::lock::acquire::{self, Acquire, Granting, Guard};
use crate::lock::admin::FoundRecord;
use crate::lock::hold::WriteGuard;
use crate::lock::rw_lock::RwLock;
use crate::observe::trace;
use crate::queue::metadata::{self, Metadata, NowRange, Record, clamp_to_printable};
use crate::queue::mode::{AcquisitionAim, Mode};
use crate::session::node::state::NodeState;
use crate::session::presence;
use crate::session::request::Failure;
use crate::session::retry::RetryBudget;
use crate::telemetry::log::emit;
use crate::validation;

impl Acquire<WriteGuard> {
    /// Acquires the lock, and returns [`Work::Due`] with the guard if the work is due. The work is due unless a contender has
    /// [recorded](OnceGuard::done) a success within the last `period`, by the ensemble's clock. If the work is not due, gives
    /// the lock back, and returns [`Work::Done`] with the record.
    ///
    /// This is for work that every host starts at the same time, as cron does, and that only one host must do. All
    /// hosts wait for the lock. The first host does the work and records the success. The other hosts then get that
    /// record. If the first host fails, or dies, the next one gets a guard, and does the work. Choose a `period` that
    /// is longer than the difference of the hosts' clocks, and shorter than the time from one start to the next. The
    /// `period` begins when the work ends. So the time from one start to the next must be longer than the work and the
    /// `period` together.
    ///
    /// # The record
    /// The record is an ordinary node beside the lock's directory: `/cron/report.done` for the lock at `/cron/report`.
    /// Each lock has one record, so give each kind of work a lock of its own. When the server removes the empty
    /// directory, the record stays. The text of the record says who has done the work. The time of the success is the
    /// time at which the ensemble committed the record. [`RwLock::queue`](crate::RwLock::queue) shows the record, and
    /// [`RwLock::forget`](crate::RwLock::forget) deletes it.
    ///
    /// The node whose name ends with `.done.twin` has a copy of the record, if the client may create that node. If
    /// somebody deletes only the record, the copy still shows the success, and no host does the work again before the
    /// period is over. An empty node at the record's path counts as no record, so an operator can create that node
    /// beforehand, with an ACL of its own.
    ///
    /// # Whose clock counts
    /// Only the ensemble's clock counts. The time of the record is compared with the present time on that clock. The
    /// ensemble's leader has set the time of the record and the creation time of the contender's own node. The creation
    /// time is the present time if the contender has not waited. If it has waited, 99 % of the time since the reply to
    /// the create is added. The hundredth is left out in case the host's clock is fast. So no host's time of day is
    /// used, and a wait never makes two hosts do the work within one `period`. If another server becomes the leader,
    /// and its clock differs, the present period is wrong by that difference.
    ///
    /// A record whose time is in the future counts if that time is less than a `period` ahead. A record with a later time
    /// does not count. So a clock that was set back delays the work by no more than a `period`.
    ///
    /// # With other options and locks
    /// Each [dialect](crate::RwLockBuilder::dialect) of the lock can be used. There is no `once_in` for reads, and the guard
    /// has no `downgrade`, because nobody else may hold the lock while the work is done. For work that needs several locks,
    /// acquire the [`MultiLock`](crate::MultiLock) under this guard.
    ///
    /// # What it costs
    /// The requests of the lock itself, one read after the grant, and up to two more requests if there is no record.
    /// Recording a success costs one transaction.
    ///
    /// # Cancel safety
    /// Same as for [`RwLock::write`](crate::RwLock::write).
    ///
    /// # Errors
    /// The errors of [`RwLock::write`](crate::RwLock::write), and the following. After an error the lock is given back.
    ///
    /// - [`Error::InvalidInput`] for a period of zero, for a path to which `.done` cannot be added, and for a
    ///   [kept](crate::RwLockBuilder::keep) lock. A kept node is refused because its creation time is not the present
    ///   time, and because other hosts would wait until the node is given up.
    /// - [`Error::ForeignRecord`] if the node at the record's path is not a record.
    /// - [`Error::RecordVanished`] if somebody has deleted the record, and the work was done within the period.
    /// - [`Error::PermissionDenied`] if the record may not be read.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use zk_rwlock::{Error, Memory, RwLock};
    /// # use zk_rwlock::once::Work;
    /// # async fn send_report() {}
    /// # tokio_test::block_on(async {
    /// # let zk = Memory::new();
    /// let lock = RwLock::builder(&zk, "/cron/report").label("daily report").build()?;
    /// let period = Duration::from_secs(23 * 60 * 60);
    /// match lock.write().timeout(Duration::from_secs(600)).once_in(period).await? {
    ///     Work::Due(guard) => {
    ///         guard.run(send_report()).await?;
    ///         guard.done().await?;
    ///         guard.release().await?;
    ///     }
    ///     Work::Done(record) => println!("another host has sent it: {record}"),
    /// }
    /// assert!(!lock.write().once_in(period).await?.is_due());
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub fn once_in(self, period: Duration) -> Acquire<Work> {
        Acquire { source: (self.source, period), options: self.options }
    }
}

impl RwLock {
    /// Like [`write`](RwLock::write) with [`once_in`](Acquire::once_in), but does not wait for another contender. If
    /// the lock is taken, the call fails with [`Error::WouldBlock`], even if the holder is doing this work.
    ///
    /// # Cancel safety
    /// Same as for [`RwLock::try_write`].
    ///
    /// # Errors
    /// The errors of [`RwLock::try_write`] and of [`Acquire::once_in`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use zk_rwlock::{Error, Memory, RwLock};
    /// # tokio_test::block_on(async {
    /// # let lock = RwLock::new(&Memory::new(), "/cron/report")?;
    /// let hour = Duration::from_secs(60 * 60);
    /// let guard = lock.try_once_in(hour).await?.due().expect("never done");
    /// assert!(lock.try_once_in(hour).await.unwrap_err().is_would_block());
    /// guard.done().await?;
    /// guard.release().await?;
    /// assert!(!lock.try_once_in(hour).await?.is_due());
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub fn try_once_in(&self, period: Duration) -> Call<Work> {
        let lock = self.clone();
        Call::new(move |deadline| async move {
            check_once_options(&lock, period)?;
            acquire::try_acquire_then(lock, Mode::Write, deadline, WriteGuard::new, |it| check_if_due(it, period)).await
        })
    }
}

impl Guard for Work {
    type Source = (RwLock, Duration);

    fn acquire((lock, period): Self::Source, options: AcquireOptions) -> Granting<Work> {
        Granting::new(async move {
            let aim = AcquisitionAim::Lock(Mode::Write);
            check_once_options(&lock, period).inspect_err(|error| {
                trace::report_failed_acquire((&lock.config.directory, &lock.config.path_label), aim, error)
            })?;
            acquire::acquire_then(lock, options, |guard| check_if_due(guard, period)).await
        })
    }
}

/// Fails if `once_in` cannot be used with this period or this lock.
fn check_once_options(RwLock { config, cache }: &RwLock, period: Duration) -> Result<(), Error> {
    if period.is_zero() {
        return Err(Error::invalid("the period of once_in is zero"));
    }
    if cache.is_some() {
        return Err(Error::invalid(
            "once_in on a kept lock: work that is done once in a while needs no kept node, and other hosts would \
             wait until the node is given up; open the lock without keep",
        ));
    }
    validation::check_lock_directory(&metadata::record_path(&config.directory))
}

/// Returns the guard if the work is due. Otherwise drops the guard, and returns the record. Fails if the record cannot
/// be read, or was deleted within the period.
async fn check_if_due(guard: WriteGuard, period: Duration) -> Result<Work, Error> {
    let hold = &guard.held;
    let (session, path) = (hold.session(), metadata::record_path(hold.user_path()));
    let refused = |failure| Error::from_failure_under_lock(failure, "read the record", &path);
    let seen = hold.run_while_held(FoundRecord::read(session, &path)).await?;
    let (last, is_there) = match seen.map_err(refused)? {
        FoundRecord::Foreign => return Err(Error::ForeignRecord { path }),
        FoundRecord::None { is_there: true } => (None, true),
        // The server shows no record. If `twin`, the node with a copy of the record, exists, the record may have been
        // deleted.
        FoundRecord::None { is_there: false } => {
            let twin = hold.run_while_held(FoundRecord::read(session, &metadata::twin_path(&path))).await?;
            let last = if let FoundRecord::Done(last, _) = twin.map_err(refused)? { Some(last) } else { None };
            // This client's server may not show a new record yet, so the ensemble's leader is asked.
            let is_there = match last {
                Some(_) => hold.run_while_held(presence::exists_at_leader(session, &path, None)).await? == Ok(true),
                None => false,
            };
            (last, is_there)
        }
        FoundRecord::Done(last, _) => (Some(last), true),
    };
    let (creation, at) = (hold.node().read(NodeState::creation_times), hold.lease_now());
    let now =
        NowRange::from_elapsed(creation.ctime, at.saturating_sub(creation.answered), at.saturating_sub(creation.sent));
    let Some(last) = last.filter(|last| now.may_be_within(period, last.at)) else {
        return Ok(Work::Due(OnceGuard { guard, had_record: is_there }));
    };
    if !is_there {
        return Err(Error::RecordVanished { path, last: Box::new(last) });
    }
    let at = humantime::format_rfc3339_millis(clamp_to_printable(last.at));
    emit!(DEBUG, path = hold.user_path(), host = last.host, %at, "the work is not due: it was done within the period");
    // The lock is given back in the background, and an error of that is ignored. The result is right without the lock,
    // because the record is older than the grant.
    drop(guard);
    Ok(Work::Done(last))
}

/// The name of the operation in errors.
const OPERATION: &str = "record the success in";

/// Whether the work under a lock is due. Given by [`Acquire::once_in`](crate::Acquire::once_in) and
/// [`RwLock::try_once_in`](crate::RwLock::try_once_in).
#[derive(Debug)]
#[must_use = "if unused, the lock is given back at once, and the work stays due"]
pub enum Work {
    /// The work is due. Do it under this guard, and then call [`OnceGuard::done`].
    Due(OnceGuard),
    /// The work was done within the period, as this record says. The lock is given back.
    Done(Record),
}

impl Work {
    /// Returns whether the work is due.
    pub fn is_due(&self) -> bool {
        matches!(self, Work::Due(_))
    }

    /// Returns the guard if the work is due.
    pub fn due(self) -> Option<OnceGuard> {
        match self {
            Work::Due(guard) => Some(guard),
            Work::Done(_) => None,
        }
    }
}

/// A write guard for work that is due. Made by [`Acquire::once_in`](crate::Acquire::once_in).
///
/// Derefs to the [`WriteGuard`], with everything a holder can do. When the work has succeeded, call
/// [`done`](Self::done). If the guard is dropped or [released](Self::release) without that call, the record stays as it
/// was, the work stays due, and the next contender gets a guard.
#[derive(Debug)]
#[must_use = "if unused, the lock is given back at once, and the work stays due"]
pub struct OnceGuard {
    guard: WriteGuard,
    /// Whether the node of the record existed when it was read after the grant. The node may have been empty.
    had_record: bool,
}

impl OnceGuard {
    /// Records that the work has succeeded just now, and returns when the record is committed. Does not release the
    /// lock, so the next contender still waits until the guard is dropped or [released](Self::release). Another call
    /// records a later success.
    ///
    /// The record is written only if the lock is still held when the ensemble commits the record. So a holder that was
    /// cut off cannot write its record later, when its successor may be doing the work again.
    ///
    /// # Cancel safety
    /// If the future is dropped after its first poll, the success may or may not have been recorded.
    ///
    /// # Errors
    /// After any error but [`Error::OutcomeUnknown`] this call has recorded nothing. The next contender then does the
    /// work again, unless an earlier call has recorded a success.
    ///
    /// - [`Error::Lost`] if the lock was lost.
    /// - [`Error::PermissionDenied`] if this client may not write the record, or may not create it beside the lock's
    ///   directory.
    /// - [`Error::OutcomeUnknown`] if the session ended before a reply came. The next
    ///   [`once_in`](crate::Acquire::once_in) finds the outcome.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use zk_rwlock::{Error, Memory, RwLock};
    /// # use zk_rwlock::once::Work;
    /// # async fn send_report() {}
    /// # tokio_test::block_on(async {
    /// # let lock = RwLock::new(&Memory::new(), "/cron/report")?;
    /// if let Work::Due(guard) = lock.write().once_in(Duration::from_secs(50 * 60)).await? {
    ///     guard.run(send_report()).await?;
    ///     guard.done().await?;
    ///     guard.release().await?;
    /// }
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub async fn done(&self) -> Result<(), Error> {
        let Metadata { host, label, .. } = metadata::parse_metadata(self.guard.held.node_data());
        let (path, text) = (self.record(), metadata::encode_record(&host, label.as_deref(), self.fencing_token()));
        let session = self.guard.held.session();
        let (mut in_doubt, mut tries, twin) = (false, RetryBudget::LOST_ANSWERS, metadata::twin_path(&path));
        // One transaction writes the record and `twin`, the node with a copy of the record. If this client may not
        // write `twin`, only the record is written: an operator may have created only the record, with an ACL for this
        // client.
        let (mut is_there, mut has_twin) = (self.had_record, Some(self.had_record));
        loop {
            let transaction = add_node_write(self.guard.transaction(), &path, &text, is_there);
            let transaction = match has_twin {
                Some(has_twin) => add_node_write(transaction, &twin, &text, has_twin),
                None => transaction,
            };
            let Err(error) = transaction.commit_without_retry().await else {
                emit!(DEBUG, path, token = self.fencing_token(), "recorded a success of the work");
                return Ok(());
            };
            tries.count_try();
            let may_retry = !tries.is_reached();
            match error {
                Error::TransactionRefused { path, reason, .. } if may_retry && path == twin => {
                    has_twin = match reason {
                        Failure::NoNode => Some(false),
                        Failure::NodeExists => Some(true),
                        _ => None,
                    };
                }
                Error::TransactionRefused { reason: Failure::NoNode, .. } if may_retry && is_there => is_there = false,
                Error::TransactionRefused { reason: Failure::NodeExists, .. } if may_retry && !is_there => {
                    is_there = true
                }
                // The first try may have recorded the success. The retry then records it a second time, which does no
                // harm.
                Error::OutcomeUnknown { .. } if may_retry => {
                    in_doubt = true;
                    if tries.pause(session).await.is_err() {
                        return Err(error);
                    }
                }
                error if in_doubt => {
                    return Err(Error::OutcomeUnknown { operation: OPERATION, reason: error.to_string() });
                }
                Error::TransactionRefused { reason: Failure::NoAuth(lacks), .. } => {
                    return Err(Error::PermissionDenied { operation: OPERATION, path, lacks });
                }
                error => return Err(error),
            }
        }
    }

    /// Returns the path of the record: the path of the lock, with `.done` at the end.
    pub fn record(&self) -> String {
        metadata::record_path(self.guard.held.user_path())
    }

    /// Gives the lock back: see [`WriteGuard::release`]. Records nothing.
    ///
    /// # Errors
    /// The errors of [`WriteGuard::release`].
    pub async fn release(self) -> Result<(), Error> {
        self.guard.release().await
    }
}

/// Adds a write of a node to the transaction: a set if `is_there`, otherwise a create.
fn add_node_write<'g>(transaction: Transaction<'g>, path: &str, text: &[u8], is_there: bool) -> Transaction<'g> {
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
