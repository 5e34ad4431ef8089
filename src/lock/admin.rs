//! Calls for operators: read the queue, evict a member, forget the record of a job's last success, and ask processes to
//! give up the nodes that they keep between uses.

use std::sync::Arc;

use crate::call::{self, Call};
use crate::contend::config::LockConfig;
use crate::contend::directory;
use crate::error::error::Error;
use crate::lock::rw_lock::RwLock;
use crate::queue::member::{Member, Queue};
use crate::queue::metadata::{self, Record};
use crate::session::contract::Session;
use crate::session::request::{Failure, Operation};
use crate::session::retry;
use crate::sync::OnceLock;

impl LockConfig {
    /// Reads the queue. For a semaphore, also returns the names of the nodes of its holders. `permits` is the number of
    /// all permits of the semaphore, or `None` for a lock. With `is_synced`, the queue is not older than this call.
    /// Fails if the queue of a lock has a node of another dialect.
    pub(crate) async fn read_queue_and_permit_nodes(
        &self,
        is_synced: bool,
        permits: Option<u32>,
    ) -> Result<(Queue, Vec<String>), Error> {
        let paths = &self.paths;
        let seen = call::retry_on_fresh_session(
            &self.coordinator,
            ("read the queue of", self.user_path()),
            |session| async move {
                let (taken, queued) = paths.list_permits_and_queue(&session, is_synced).await?;
                let queue = paths.read_queue(&session, (&taken, &queued), permits).await?;
                Ok((queue, taken, queued))
            },
        );
        let (queue, taken, queued) = seen.await?;
        if paths.permits.is_none() {
            self.fail_if_foreign(&queued)?;
        }
        Ok((queue, taken))
    }

    /// Reads the queue, and at the same time the record of the last success of a job. A record that is not from this
    /// library, or that this client may not read, counts as no record.
    async fn read_queue_and_record(&self) -> Result<Queue, Error> {
        let (path, record) = (&self.directory, &metadata::record_path(&self.directory));
        let last =
            call::retry_on_fresh_session(&self.coordinator, ("read the record of", path), |session| async move {
                match call::ask_until_answered(&session, || FoundRecord::read(&session, record)).await {
                    Ok(FoundRecord::Done(done, _)) => Ok(Some(done)),
                    Ok(FoundRecord::None { .. } | FoundRecord::Foreign) | Err(Failure::NoAuth(_)) => Ok(None),
                    Err(failure) => Err(failure),
                }
            });
        let ((queue, _), done) = tokio::try_join!(self.read_queue_and_permit_nodes(false, None), last)?;
        Ok(Queue { done, ..queue })
    }

    /// Deletes the record of the last success of a job, and `twin`, a second node with a copy of the record. Returns
    /// the record, or `None` if there was none.
    async fn delete_record(&self) -> Result<Option<Record>, Error> {
        let path = &metadata::record_path(&self.directory);
        let twin = &metadata::twin_path(path);
        // The record that the first read found. A retry deletes only this record, so a success that is recorded
        // meanwhile stays.
        let last = &OnceLock::new();
        let found =
            call::retry_on_fresh_session(&self.coordinator, ("forget the record", path), |session| async move {
                call::ask_until_answered(&session, || session.sync(path)).await?;
                let forget = || async {
                    let (record, second) =
                        (FoundRecord::read(&session, path).await?, FoundRecord::read(&session, twin).await?);
                    if matches!(record, FoundRecord::Foreign) {
                        return Ok(record);
                    }
                    let (mut now, mut delete) = (None, Vec::new());
                    for (path, node) in [(path, &record), (twin, &second)] {
                        if let FoundRecord::Done(done, version) = node {
                            now.get_or_insert(done);
                            delete.push(Operation::Delete { path: path.clone(), version: Some(*version) });
                        }
                    }
                    if now.is_some_and(|now| last.get_or_init(|| now.clone()) == now) {
                        match session.transact(&delete).await {
                            // Another client has deleted the record meanwhile, or has recorded a later success. The
                            // record of a later success stays.
                            Err(Failure::Operation { failure, .. })
                                if matches!(*failure, Failure::NoNode | Failure::BadVersion) => {}
                            answer => drop(answer?),
                        }
                    }
                    Ok(record)
                };
                call::ask_until_answered(&session, forget).await
            });
        match found.await? {
            FoundRecord::Foreign if last.get().is_none() => Err(Error::ForeignRecord { path: path.clone() }),
            _ => Ok(last.get().cloned()),
        }
    }

    /// Removes the member of `queue` that has this fencing token, and returns the member. Returns `None` if there is no
    /// such member, or if its node was already gone.
    pub(crate) async fn evict(&self, queue: Queue, token: i64) -> Result<Option<Member>, Error> {
        let Some(member) = queue.members.into_iter().find(|member| member.token == Some(token)) else {
            return Ok(None);
        };
        let is_removed = call::delete_node(&self.coordinator, self.user_path(), &self.paths.node_path(&member)).await?;
        Ok(is_removed.then_some(member))
    }

    async fn ask_keepers(&self) -> Result<(), Error> {
        if !self.paths.dialect.signals_release() {
            return Err(Error::invalid(format!(
                "to ask in the dialect {}, in which no node is kept",
                self.paths.dialect
            )));
        }
        let path = &self.directory;
        let asked = call::retry_on_fresh_session(&self.coordinator, ("ask", path), |session| async move {
            // A server that lags could return an old version of the directory. The leader would then refuse the write
            // below, which expects that version, and no process would be notified. So the server is synced first.
            call::ask_until_answered(&session, || session.sync(path)).await?;
            let asked =
                call::ask_until_answered(&session, || directory::fire_directory_watches(&session, path, None)).await;
            asked.or_else(retry::default_if_no_node)
        });
        asked.await
    }
}

impl RwLock {
    /// Reads the queue. The answer has each member in order, with its state, its age and its predecessor, and the
    /// record of the [last success](crate::Queue::done) of a job under the lock.
    ///
    /// Sends one request to list the members, one for each 256 members, and one to read the record. The answer may be
    /// as old as the data of the server that answers. A server that lags may show a node that the ensemble no longer
    /// has: `zklock check` compares the servers. A holder that releases is shown as holding, and its successor as
    /// waiting, until the ensemble has removed the holder's node.
    ///
    /// [How long it takes](Call#how-long-it-takes) is limited by the session timeout, or by [`timeout`](Call::timeout).
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing, because the call only reads.
    ///
    /// # Errors
    /// [`Error::ForeignContender`] if a contender uses another [dialect](crate::Dialect). [`Error::Unreachable`] if
    /// no server answers in time, or if several sessions end during the call. Otherwise see [`Error`].
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
        let config = Arc::clone(&self.config);
        Call::with_deadline(&self.config.coordinator, async move { config.read_queue_and_record().await })
    }

    /// Removes the member of the queue that has this [token](crate::queue::Member::token), and returns it. Returns
    /// `None` if no member has the token, or if the member has just left.
    ///
    /// Call this if the [`queue`](RwLock::queue) shows a member that hangs. A holder is notified that it has lost
    /// the lock, with [`Loss::Removed`](crate::Loss::Removed), but perhaps only after the next contender was granted the
    /// lock. A waiter gets [`Error::Evicted`], and is never granted the lock.
    ///
    /// The call never removes a later member by mistake, because a token and the name of a node are used only once.
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
        let config = Arc::clone(&self.config);
        Call::with_deadline(&self.config.coordinator, async move {
            // `true` syncs the server first, because a server that lags may not show a member that other clients see already.
            config.evict(config.read_queue_and_permit_nodes(true, None).await?.0, token).await
        })
    }

    /// Deletes the record of the [last success](crate::once::OnceGuard::done) of a job under the lock, and returns the record.
    /// `None` if there was no record. The job is due at the next [`once_in`](crate::Acquire::once_in).
    ///
    /// Waits for no holder. A job that is running still records its success when it is done. If a success is recorded during
    /// the call, its record stays.
    ///
    /// # Cancel safety
    /// After the future is dropped the record may have been deleted, or not.
    ///
    /// # Errors
    /// [`Error::ForeignRecord`] if the node was not written by this library. The node then stays.
    /// [`Error::PermissionDenied`] if this client may not read the record, or may not delete it. After
    /// [`Error::Unreachable`], [`Error::Closed`] and [`Error::Timeout`] the record may have been deleted, or not.
    /// Otherwise see [`Error`].
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
        let config = Arc::clone(&self.config);
        Call::with_deadline(&self.config.coordinator, async move { config.delete_record().await })
    }

    /// Asks every process that [keeps](crate::RwLockBuilder::keep) a node of the lock between uses to delete that node:
    /// immediately if the node is idle, or else after the uses that run now. This process deletes its kept nodes, too.
    ///
    /// A contender that waits sends this request by itself. This call is for operators, and for programs that want the
    /// lock to be free before they call a `try_` method, which does not send the request.
    ///
    /// Waits until the request is committed. The nodes may still exist then: [`queue`](RwLock::queue) shows those that
    /// are left. The request writes the data of the lock's directory unchanged, so the version of the directory rises
    /// by one. Each process that keeps a node when the call begins receives the request once that process is connected.
    ///
    /// # Cancel safety
    /// After the future is dropped the processes may have been asked, or not.
    ///
    /// # Errors
    /// [`Error::PermissionDenied`] if this client may not read and write the lock's directory. [`Error::InvalidInput`] in
    /// any [dialect](crate::Dialect) but the native one, because no node is kept in the others. After
    /// [`Error::Unreachable`], [`Error::Closed`] and [`Error::Timeout`] the processes may have been asked, or not.
    /// Otherwise see [`Error`].
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
        let config = Arc::clone(&self.config);
        Call::with_deadline(&self.config.coordinator, async move { config.ask_keepers().await })
    }
}

/// What was found at the path of a record of a job's last success.
pub(crate) enum FoundRecord {
    /// There is no record. `is_there` is `true` if the node exists without data. An operator may have created such a
    /// node beforehand.
    None { is_there: bool },
    /// A record, and the version of its node.
    Done(Record, i32),
    /// The content is not a record of this library.
    Foreign,
}

impl FoundRecord {
    /// Reads the record of a job's last success at `path`.
    pub(crate) async fn read(session: &Arc<dyn Session>, path: &str) -> Result<FoundRecord, Failure> {
        let node = retry::read_data(session, path, false).await?;
        Ok(match node {
            None => FoundRecord::None { is_there: false },
            Some((data, _)) if data.is_empty() => FoundRecord::None { is_there: true },
            Some((data, stat)) => match metadata::parse_record(&data, stat.mtime) {
                Some(last) => FoundRecord::Done(last, stat.version),
                None => FoundRecord::Foreign,
            },
        })
    }
}
