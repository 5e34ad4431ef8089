//! How a caller asks for the lock for work that may not be due, and how that shows; writes no record.

use std::sync::Arc;
use std::time::Duration;

use crate::call::Call;
use crate::contend::request::Options;
use crate::error::error::Error;
use crate::keep::join::Lock;
use crate::lock::acquire::{self, Acquire, Granting, Guard};
use crate::lock::hold::WriteGuard;
use crate::lock::rw_lock::RwLock;
use crate::observe::record::{self, Record};
use crate::observe::trace;
use crate::queue::done::{self, Now};
use crate::queue::metadata::date;
use crate::queue::mode::{Aim, Mode};
use crate::queue::twin;
use crate::recipes::once::guard::OnceGuard;
use crate::session::node::state::NodeState;
use crate::session::presence;
use crate::session::request::{Failure, Loss};
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
            let rest = rest.inspect_err(|error| trace::not_granted(&lock.handle.path, aim, error))?;
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
        validation::check_directory(&done::path_of(&handle.path))?;
        Ok(Judging { host: handle.host.clone(), label: label.or_else(|| handle.label.clone()), period })
    }

    /// Looks whether the work is due. If not, gives the lock back.
    async fn judge(self, guard: WriteGuard) -> Result<Option<OnceGuard>, Error> {
        let hold = guard.held();
        let (session, path) = (hold.ticket().session(), done::path_of(hold.directory()));
        let seen = hold.run(record::at(session, &path)).await?;
        let (last, is_there) = match seen.map_err(|failure| refused(failure, &path))? {
            Record::Foreign => return Err(Error::ForeignRecord { path }),
            Record::None { is_there: true } => (None, true),
            // It was never made, or is gone: then its twin says so.
            Record::None { is_there: false } => {
                let twin = hold.run(record::at(session, &twin::of(&path))).await?;
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
            return Ok(Some(OnceGuard::new(guard, self.host, self.label, is_there)));
        };
        if !is_there {
            return Err(Error::RecordVanished { path, last: Box::new(last) });
        }
        let at = humantime::format_rfc3339_millis(date(last.at));
        tell!(DEBUG, path = hold.directory(), host = last.host, %at, "not due: it was done");
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
