//! What operators do with a lock: they read its queue, remove a member of it, and ask for what is only kept.

use std::sync::Arc;

use crate::call::{self, Call};
use crate::contend::acquisition::Handle;
use crate::contend::directory;
use crate::error::error::Error;
use crate::lock::rw_lock::RwLock;
use crate::queue::member::{Member, Queue};
use crate::queue::metadata::{self, Record};
use crate::session::contract::Session;
use crate::session::request::{Failure, Operation};
use crate::session::retry;
use crate::sync::OnceLock;

impl Handle {
    /// The queue, of a semaphore that has so many permits or of a lock; and the names of the permits that are taken. If
    /// `is_synced`, it is no older than this call.
    pub(crate) async fn queue(&self, is_synced: bool, permits: Option<u32>) -> Result<(Queue, Vec<String>), Error> {
        let paths = &self.paths;
        let seen = call::on_a_session(&self.coordinator, ("read the queue of", self.shown()), |session| async move {
            let (taken, queued) = paths.names(&session, is_synced).await?;
            let queue = paths.read_queue(&session, self.dialect, (&taken, &queued), permits).await?;
            Ok((queue, taken, queued))
        });
        let (queue, taken, queued) = seen.await?;
        if paths.permits.is_none() {
            self.check_for_foreign(&queued)?;
        }
        Ok((queue, taken))
    }

    /// As [`Handle::queue`], with the record of when a job was last done. Both are asked for at once.
    async fn queue_and_record(&self) -> Result<Queue, Error> {
        let path = &self.queue;
        let read = |session| async move { last_done(&session, path).await };
        let last = call::on_a_session(&self.coordinator, ("read the record of", path), read);
        let ((queue, _), done) = tokio::try_join!(self.queue(false, None), last)?;
        Ok(Queue { done, ..queue })
    }

    /// Forgets when a job under the lock was last done.
    async fn forget(&self) -> Result<Option<Record>, Error> {
        let path = &metadata::record_path(&self.queue);
        let twin = &metadata::twin_of(path);
        // The record as it was found first. A success since then stays, also if an answer is lost and all is tried again.
        let last = &OnceLock::new();
        let found = call::on_a_session(&self.coordinator, ("forget the record", path), |session| async move {
            call::answered(&session, || session.sync(path)).await?;
            let forget = || async {
                let (record, second) =
                    (RecordNode::read(&session, path).await?, RecordNode::read(&session, twin).await?);
                if matches!(record, RecordNode::Foreign) {
                    return Ok(record);
                }
                let nodes = [(path, &record), (twin, &second)];
                let done = nodes.iter().filter_map(|(path, record)| Some((*path, record.done()?)));
                let now = done.clone().next().map(|(_, (now, _))| now);
                if now.is_some_and(|now| last.get_or_init(|| now.clone()) == now) {
                    let delete = |(path, (_, version)): (&String, (_, i32))| Operation::Delete {
                        path: path.clone(),
                        version: Some(version),
                    };
                    let delete: Vec<_> = done.map(delete).collect();
                    session.transact(&delete).await.map(drop).or_else(replaced_already)?;
                }
                Ok(record)
            };
            call::answered(&session, forget).await
        });
        match found.await? {
            RecordNode::Foreign if last.get().is_none() => Err(Error::ForeignRecord { path: path.clone() }),
            _ => Ok(last.get().cloned()),
        }
    }

    /// Removes the member of this queue that has the token.
    pub(crate) async fn evict(&self, queue: Queue, token: i64) -> Result<Option<Member>, Error> {
        let Some(member) = queue.members.into_iter().find(|member| member.token == Some(token)) else {
            return Ok(None);
        };
        let is_removed = call::removes(&self.coordinator, self.shown(), &self.paths.node(&member)).await?;
        Ok(is_removed.then_some(member))
    }

    async fn ask(&self) -> Result<(), Error> {
        if !self.dialect.hands_off() {
            return Err(Error::invalid(format!("to ask in the dialect {}, in which no node is kept", self.dialect)));
        }
        let path = &self.queue;
        let asked = call::on_a_session(&self.coordinator, ("ask", path), |session| async move {
            // A server that lags shows an older version of the directory. To set that is refused, and reports to nobody.
            call::answered(&session, || session.sync(path)).await?;
            match call::answered(&session, || directory::ask_as_it_is(&session, path, None)).await {
                Err(Failure::NoNode) => Ok(()),
                answer => answer,
            }
        });
        asked.await
    }
}

fn replaced_already(failure: Failure) -> Result<(), Failure> {
    match failure {
        Failure::Operation { failure, .. } if matches!(*failure, Failure::NoNode | Failure::BadVersion) => Ok(()),
        failure => Err(failure),
    }
}

impl RwLock {
    /// Reads the queue: every member in order, with its state, when it queued up, and its predecessor. Also reads
    /// when a job under the lock was [last done](crate::Queue::done).
    ///
    /// Costs one listing, one request for each 256 members, and one for the record. The snapshot may be as old as the
    /// server's view, and shows all that this server shows, also a node that the ensemble no longer has: `zklock check` compares
    /// the servers. A holder that has released still shows as holding until the ensemble has removed its node, and its
    /// successor as waiting. [How long it takes](Call#how-long-it-takes) is bounded by the session timeout, and with
    /// [`timeout`](Call::timeout).
    ///
    /// # Cancel safety
    /// Only reads.
    ///
    /// # Errors
    /// [`Error::ForeignContender`] if another [dialect](crate::Dialect) is spoken there, too. [`Error::Unreachable`] if
    /// no server answers in time, or session after session ends. Otherwise see [`Error`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use zk_rwlock::{Error, Memory, RwLock};
    /// # tokio_test::block_on(async {
    /// # let lock = RwLock::new(&Memory::new(), "/locks/config")?;
    /// let guard = lock.write().label("rotate keys").await?;
    /// let queue = lock.queue().await?;
    /// assert_eq!(queue.holders().next().unwrap().label.as_deref(), Some("rotate keys"));
    /// println!("{queue}");
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub fn queue(&self) -> Call<Queue> {
        let handle = Arc::clone(self.handle());
        Call::in_time(&self.handle().coordinator, async move { handle.queue_and_record().await })
    }

    /// Removes the member of the queue that has this [token](crate::queue::Member::token), and returns it. `None` if no member
    /// has the token, and then nothing is changed.
    ///
    /// This is for operators who have seen in the [`queue`](RwLock::queue) that a member hangs. A holder is told at
    /// once, by [`Loss::Removed`](crate::Loss::Removed), but perhaps only after the next contender was let in. A waiter
    /// gets [`Error::Evicted`], and is never granted the lock.
    ///
    /// No other member is ever hit. A token is given once. A node's name is given once, too, because it contains the
    /// random id of one acquisition. So it is enough to look at the token, and then to delete by name.
    ///
    /// # Cancel safety
    /// After the future is dropped the member may have been removed, or not.
    ///
    /// # Errors
    /// [`Error::PermissionDenied`] if this client may not remove the node. After [`Error::Unreachable`],
    /// [`Error::Closed`] and [`Error::Timeout`] the member may have been removed, or not. Otherwise see [`Error`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use zk_rwlock::{Error, Memory, RwLock};
    /// # tokio_test::block_on(async {
    /// # let lock = RwLock::new(&Memory::new(), "/locks/config")?;
    /// let hangs = lock.write().label("hangs").await?;
    /// let token = lock.queue().await?.members[0].token.expect("this client may read");
    /// assert_eq!(lock.evict(token).await?.expect("still there").label.as_deref(), Some("hangs"));
    /// assert!(!hangs.is_held());
    /// assert!(lock.evict(token).await?.is_none());
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub fn evict(&self, token: i64) -> Call<Option<Member>> {
        let handle = Arc::clone(self.handle());
        Call::in_time(&self.handle().coordinator, async move {
            // A server that lags might not show a member that other clients see already.
            handle.evict(handle.queue(true, None).await?.0, token).await
        })
    }

    /// Forgets when a job under the lock was [last done](crate::once::OnceGuard::done), and returns that; `None` if there was no
    /// record. The next [`once_in`](crate::Acquire::once_in) then gives a guard, however long ago the job was done.
    ///
    /// Deletes the record, which lies beside the lock's directory. Waits for no holder. A job that runs now records its
    /// success when it is done. A success that is recorded during the call stays.
    ///
    /// # Cancel safety
    /// After the future is dropped the record may have been deleted, or not.
    ///
    /// # Errors
    /// [`Error::ForeignRecord`] if what lies there is no record of ours: it stays. [`Error::PermissionDenied`] if this
    /// client may not read it, or not delete below its parent. After [`Error::Unreachable`], [`Error::Closed`] and
    /// [`Error::Timeout`] the record may have been deleted, or not. Otherwise see [`Error`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use zk_rwlock::{Error, Memory, RwLock};
    /// # tokio_test::block_on(async {
    /// # let zk = Memory::new();
    /// let (lock, day) = (RwLock::new(&zk, "/cron/report")?, Duration::from_secs(24 * 60 * 60));
    /// lock.write().once_in(day).await?.due().expect("never done").done().await?;
    /// assert!(!lock.write().once_in(day).await?.is_due());
    /// println!("forgot: {}", lock.forget().await?.expect("it was done"));
    /// assert!(lock.write().once_in(day).await?.is_due());
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub fn forget(&self) -> Call<Option<Record>> {
        let handle = Arc::clone(self.handle());
        Call::in_time(&self.handle().coordinator, async move { handle.forget().await })
    }

    /// Asks every process that only [keeps](crate::RwLockBuilder::keep) the lock to give it up: at once if its node is
    /// idle, or else with the uses that run. This includes the nodes that this process keeps.
    ///
    /// A contender that waits asks by itself. This call is for operators and for programs that want the lock free without
    /// taking it, or that take it by a `try_` method, which asks nobody.
    ///
    /// Waits until the request is committed, and not until a node is gone: [`queue`](RwLock::queue) shows the nodes that
    /// are left. It sets the data of the lock's directory to what they are, so their version rises by one. It asks
    /// the processes that keep the lock when the call begins. A lock whose directory does not exist is kept by nobody.
    ///
    /// # Cancel safety
    /// After the future is dropped the processes may have been asked, or not.
    ///
    /// # Errors
    /// [`Error::PermissionDenied`] if this client may not read and write the lock's directory. [`Error::InvalidInput`] in
    /// any [dialect](crate::Dialect) but the native one: in the others no node is kept. After [`Error::Unreachable`],
    /// [`Error::Closed`] and [`Error::Timeout`] the processes may have been asked, or not. Otherwise see [`Error`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use zk_rwlock::{Error, Memory, RwLock};
    /// # tokio_test::block_on(async {
    /// # let zk = Memory::new();
    /// let kept = RwLock::builder(&zk, "/locks/config").keep(Duration::from_secs(60)).build()?;
    /// drop(kept.read().await?);
    ///
    /// let other = RwLock::new(&zk.connect(), "/locks/config")?;
    /// assert!(other.try_write().await.unwrap_err().is_would_block());
    /// other.ask().await?;
    /// let writer = other.try_write().await?;
    /// # drop(writer);
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub fn ask(&self) -> Call<()> {
        let handle = Arc::clone(self.handle());
        Call::in_time(&self.handle().coordinator, async move { handle.ask().await })
    }
}

/// What lies where a lock's record would lie.
pub(crate) enum RecordNode {
    /// No node, or an empty one, as an operator may make it beforehand.
    None { is_there: bool },
    /// With the version of its node.
    Done(Record, i32),
    /// A node with other content.
    Foreign,
}

impl RecordNode {
    /// Reads the record at `path`.
    pub(crate) async fn read(session: &Arc<dyn Session>, path: &str) -> Result<RecordNode, Failure> {
        let node = retry::data(session, path, false).await?;
        Ok(match node {
            None => RecordNode::None { is_there: false },
            Some((data, _)) if data.is_empty() => RecordNode::None { is_there: true },
            Some((data, stat)) => match metadata::read_done(&data, stat.mtime) {
                Some(last) => RecordNode::Done(last, stat.version),
                None => RecordNode::Foreign,
            },
        })
    }

    /// What it says, and the version of its node.
    pub(crate) fn done(&self) -> Option<(&Record, i32)> {
        match self {
            RecordNode::Done(done, version) => Some((done, *version)),
            RecordNode::None { .. } | RecordNode::Foreign => None,
        }
    }
}

/// The record of the lock in this directory, for people to see: none if it may not be read, or says nothing.
pub(crate) async fn last_done(session: &Arc<dyn Session>, directory: &str) -> Result<Option<Record>, Failure> {
    let path = metadata::record_path(directory);
    match call::answered(session, || RecordNode::read(session, &path)).await {
        Ok(RecordNode::Done(done, _)) => Ok(Some(done)),
        Ok(RecordNode::None { .. } | RecordNode::Foreign) | Err(Failure::NoAuth(_)) => Ok(None),
        Err(failure) => Err(failure),
    }
}
