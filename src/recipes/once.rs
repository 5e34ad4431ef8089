//! Work that is done once in a while, by whichever process comes first: how a caller asks for the lock if the work is due,
//! and the guard that records its success.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use crate::call::Call;
use crate::contend::request::Options;
use crate::contend::transaction::Transaction;
use crate::error::error::Error;
use crate::keep::join::Lock;
use crate::lock::acquire::{self, Acquire, Granting, Guard};
use crate::lock::admin::Record;
use crate::lock::hold::WriteGuard;
use crate::lock::rw_lock::RwLock;
use crate::observe::trace;
use crate::queue::metadata::{self, Now, date};
use crate::queue::mode::{Aim, Mode};
use crate::session::node::state::NodeState;
use crate::session::presence;
use crate::session::request::{Failure, Loss};
use crate::session::retry::Tries;
use crate::telemetry::log::tell;
use crate::validation;

impl Acquire<WriteGuard> {
    /// Gives the guard only if the work that the lock guards is due: if no contender has [recorded](OnceGuard::done) a
    /// success of it within the last `period`, by the ensemble's clock. Otherwise gives the lock back, and gives `None`.
    ///
    /// For work that every host starts at the same time, as cron does, and that one of them shall do. All of them wait for
    /// the lock. The first does the work and records its success; the others then find the record fresh. If the first
    /// fails, or dies, the next one gets a guard, and does the work. So choose a `period` somewhat shorter than the time
    /// from one start to the next, and longer than the hosts' clocks differ.
    /// It counts from the end of the work, so leave room for as long as the work takes.
    ///
    /// # The record
    /// It is one ordinary node beside the lock's directory: `/cron/report.done` for the lock at `/cron/report`. There is one for
    /// each lock, so give each kind of work a lock of its own. The server removes the directory when it is empty, and the
    /// record stays. It says in text who has done the work; *when* is the time at which the
    /// ensemble committed it. [`RwLock::queue`](crate::RwLock::queue) shows it, and [`RwLock::forget`](crate::RwLock::forget)
    /// deletes it. Beside it lies the same once more, in a node whose name ends with `.done.twin`: if the record is gone otherwise,
    /// no host does the work again before the period is over. An empty node counts as none, so that an operator can make it beforehand, with an ACL of its own.
    ///
    /// # Whose clock counts
    /// Only the ensemble's: the time of the record is compared with the time at which the lock's own node was created. Both
    /// were written by the leader. A contender that has waited adds the time of its wait, counted from the answer to its
    /// create, less a hundredth. So no host's time of day is used, and the work is never given out twice within a `period`
    /// because of a wait. If the ensemble changes to a leader whose clock differs, the period that
    /// is under way is wrong by that difference.
    /// A record whose time is still to come, by less than a `period`, is fresh; by more, it is not: so a clock that was set
    /// back delays the work by no more than a `period`.
    ///
    /// # With other options and locks
    /// The dialect does not matter. For reads there is no such call, and the guard has no `downgrade`: while the work is done,
    /// nobody else holds the lock. For work that needs several locks, take the [`MultiLock`](crate::MultiLock) under this guard.
    ///
    /// # What it costs
    /// One read more than the lock itself, after the grant, and another while there is no record; and one transaction for the
    /// record of a success.
    ///
    /// # Cancel safety
    /// As for [`RwLock::write`](crate::RwLock::write).
    ///
    /// # Errors
    /// As for [`RwLock::write`](crate::RwLock::write), and then the lock is given back.
    ///
    /// - [`Error::InvalidInput`] for a period of zero, for a path to which `.done` cannot be added, and for a lock that is
    ///   [kept](crate::RwLockBuilder::keep): an old node shows no present time, and the other hosts would wait until it is
    ///   given up.
    /// - [`Error::ForeignRecord`] if something else lies where the record would lie.
    /// - [`Error::RecordVanished`] if somebody has deleted the record, and the job was done within the period.
    /// - [`Error::PermissionDenied`] if the record may not be read.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use zk_rwlock::{Error, Memory, RwLock};
    /// # async fn send_report() {}
    /// # tokio_test::block_on(async {
    /// # let zk = Memory::new();
    /// let lock = RwLock::builder(&zk, "/cron/report").label("daily report").build()?;
    /// let period = Duration::from_secs(23 * 60 * 60);
    /// match lock.write().timeout(Duration::from_secs(600)).once_in(period).await? {
    ///     Some(guard) => {
    ///         guard.run(send_report()).await?;
    ///         guard.done().await?;
    ///         guard.release().await?;
    ///     }
    ///     None => println!("another host has sent it"),
    /// }
    /// assert!(lock.write().once_in(period).await?.is_none());
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub fn once_in(self, period: Duration) -> Acquire<Option<OnceGuard>> {
        Acquire { source: (self.source, period), options: self.options }
    }
}

impl RwLock {
    /// As [`write`](RwLock::write) with [`once_in`](Acquire::once_in), but does not wait for another contender. A lock that
    /// is taken is [`Error::WouldBlock`], also if its holder does the work.
    ///
    /// # Cancel safety
    /// As for [`RwLock::try_write`].
    ///
    /// # Errors
    /// As for [`RwLock::try_write`] and [`Acquire::once_in`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use zk_rwlock::{Error, Memory, RwLock};
    /// # tokio_test::block_on(async {
    /// # let lock = RwLock::new(&Memory::new(), "/cron/report")?;
    /// let hour = Duration::from_secs(60 * 60);
    /// let guard = lock.try_once_in(hour).await?.expect("never done");
    /// assert!(lock.try_once_in(hour).await.unwrap_err().is_would_block());
    /// guard.done().await?;
    /// guard.release().await?;
    /// assert!(lock.try_once_in(hour).await?.is_none());
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub fn try_once_in(&self, period: Duration) -> Call<Option<OnceGuard>> {
        let lock = Arc::clone(&self.lock);
        Call::new(move |timeout| async move {
            let rest = Judging::new(&lock, None, period)?;
            acquire::attempt(lock, Mode::Write, timeout, WriteGuard::new, |guard| rest.judge(guard)).await
        })
    }
}

impl Guard for Option<OnceGuard> {
    type Source = (Arc<Lock>, Duration);

    fn acquire((lock, period): Self::Source, options: Options) -> Granting<Option<OnceGuard>> {
        Granting::by(async move {
            let rest = Judging::new(&lock, options.label.clone(), period);
            let aim = Aim::Lock(Mode::Write);
            let rest = rest.inspect_err(|error| trace::not_granted(&lock.handle.queue, aim, error))?;
            acquire::acquire_and(lock, options, |guard| rest.judge(guard)).await
        })
    }
}

/// What remains to be done once the lock is granted.
struct Judging {
    host: String,
    label: Option<String>,
    period: Duration,
}

impl Judging {
    fn new(Lock { handle, cache }: &Lock, label: Option<String>, period: Duration) -> Result<Judging, Error> {
        if period.is_zero() {
            return Err(Error::invalid("once in a period of zero"));
        }
        if cache.is_some() {
            return Err(Error::invalid(
                "once_in on a lock that is kept: work that is done once in a while needs no kept node, and other hosts would \
                 wait until it is given up; open the lock without keep",
            ));
        }
        validation::check_directory(&metadata::record_path(&handle.queue))?;
        Ok(Judging { host: handle.host.clone(), label: label.or_else(|| handle.label.clone()), period })
    }

    /// Looks whether the work is due. If not, gives the lock back.
    async fn judge(self, guard: WriteGuard) -> Result<Option<OnceGuard>, Error> {
        let hold = guard.held();
        let (session, path) = (hold.session(), metadata::record_path(hold.shown()));
        let seen = hold.run(Record::read(session, &path)).await?;
        let (last, is_there) = match seen.map_err(|failure| refused(failure, &path))? {
            Record::Foreign => return Err(Error::ForeignRecord { path }),
            Record::None { is_there: true } => (None, true),
            // It was never made, or is gone: then its twin says so.
            Record::None { is_there: false } => {
                let twin = hold.run(Record::read(session, &metadata::twin_of(&path))).await?;
                let twin = twin.map_err(|failure| refused(failure, &path))?;
                let last = twin.done().map(|(last, _)| last.clone());
                // Our server may have missed the record. So the leader says.
                let is_there = match last {
                    Some(_) => hold.run(presence::is_there(session, &path, None)).await? == Ok(true),
                    None => false,
                };
                (last, is_there)
            }
            Record::Done(last, _) => (Some(last), true),
        };
        let (birth, at) = (hold.own_node().read(NodeState::birth), hold.now());
        let now = Now::since(birth.ctime, at.saturating_sub(birth.answered), at.saturating_sub(birth.asked));
        let Some(last) = last.filter(|last| now.is_within(self.period, last.at)) else {
            return Ok(Some(OnceGuard { guard, host: self.host, label: self.label, is_there }));
        };
        if !is_there {
            return Err(Error::RecordVanished { path, last: Box::new(last) });
        }
        let at = humantime::format_rfc3339_millis(date(last.at));
        tell!(DEBUG, path = hold.shown(), host = last.host, %at, "not due: it was done");
        // The work was done, whatever becomes of our lock, and whenever the time is over.
        drop(guard);
        Ok(None)
    }
}

fn refused(failure: Failure, path: &str) -> Error {
    match failure {
        Failure::Over(ending) => Error::Lost(Loss::SessionOver(ending)),
        failure => Error::from_failure(failure, "read the record", path),
    }
}

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
        let (path, text) =
            (self.record(), metadata::record_text(&self.host, self.label.as_deref(), self.fencing_token()));
        let session = self.guard.held().session();
        let (mut in_doubt, mut tries, twin) = (false, Tries::LOST_ANSWERS, metadata::twin_of(&path));
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
        metadata::record_path(self.guard.held().shown())
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
