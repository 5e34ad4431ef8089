//! The state that all clones of a semaphore's handle share: its paths, the number of its permits, and whether its path
//! is known to have no lock.
//!
//! One path cannot be both a lock and a semaphore. Each side writes before it reads. A contender of the lock creates
//! its node, and then reads whether the path has a number of permits. A semaphore writes its number, and then lists the
//! lock's nodes. If both start at the same time, at least one side sees the other.
//!
//! An empty node may belong to a lock that nobody uses now. So a semaphore's node is never created empty: it is created
//! together with its number. The number is written to an existing empty node only if that node is known to be a
//! semaphore's, or if the user allows it.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;

use crate::call::SessionWorkError;
use crate::contend::config::LockConfig;
use crate::contend::contender::Contender;
use crate::contend::directory;
use crate::error::error::{Error, PermitsError};
use crate::queue::dialect::Dialect;
use crate::queue::metadata;
use crate::queue::permits::{self, PERMITS, QUEUE};
use crate::session::contract::Session;
use crate::session::presence;
use crate::session::request::{self, Failure, Kind, Operation, Stat};
use crate::session::retry;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};

/// The words for an acquisition of permits in errors.
pub(crate) const TAKE: &str = "take a permit of";

/// How often, at most, `commit_writes` sends its transaction, for example because the parents of the semaphore's node
/// are deleted again and again.
const CREATES: u32 = 64;

/// A contender of a lock at the semaphore's path causes an error only if each of this many listings, with this pause
/// between two of them, shows such a contender. A contender that is about to leave is usually gone by then.
const LISTINGS: u32 = 4;
const LISTING_PAUSE: Duration = Duration::from_millis(100);

/// The state that all clones of a semaphore's handle share.
#[derive(Debug)]
pub struct SemaphoreState {
    pub(crate) config: Arc<LockConfig>,
    pub(crate) number: Mutex<KnownPermitNumber>,
    /// The directory of the permit nodes.
    pub(crate) taken: Arc<str>,
    /// Whether a listing after the write of the number of permits showed no lock at the path. A contender of a lock
    /// that comes after that listing finds the number of permits, and leaves. Set to `false` again before this handle
    /// writes a number that is missing.
    pub(crate) has_no_lock: AtomicBool,
    /// Whether the user allows a number of permits in an empty node that exists already.
    pub(crate) at_existing_node: bool,
}

impl SemaphoreState {
    /// Fails if contenders of a lock are at the path. `children` is a listing of the path, if the caller has one. A
    /// contender of a lock leaves as soon as it finds a semaphore. So this method fails only if each of [`LISTINGS`]
    /// listings shows a contender's node.
    async fn fail_if_lock_present(
        &self,
        session: &Arc<dyn Session>,
        mut children: Option<Vec<String>>,
    ) -> Result<(), SessionWorkError> {
        for listings in 1.. {
            let names = match children.take() {
                Some(names) => names,
                None => {
                    let listed = retry::repeat_until_known(session, || session.children(self.config.user_path()));
                    listed.await.or_else(retry::default_if_no_node)?
                }
            };
            let Some(node) = names.into_iter().filter(|name| Dialect::of(name).is_some()).min() else { break };
            if listings == LISTINGS {
                return Err(self.permits_error(PermitsError::IsLocked { node }).into());
            }
            session.sleep(LISTING_PAUSE).await;
        }
        Ok(())
    }

    /// Fails if contenders of a lock are at the path. Must be called after the number of permits was written. Once a
    /// listing has shown no lock, later calls send no listing, as long as `has_no_lock` stays set.
    pub(crate) async fn ensure_no_lock(
        &self,
        session: &Arc<dyn Session>,
        children: Option<Vec<String>>,
    ) -> Result<(), SessionWorkError> {
        if !self.has_no_lock.load(Ordering::Acquire) {
            self.fail_if_lock_present(session, children).await?;
            self.has_no_lock.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// If this client refuses ACLs that are wider than its own, fails if the ACL of the semaphore's node or of the
    /// permits' directory is wider. Such an ACL could let other clients change the number of permits or take permits.
    pub(crate) async fn fail_if_rights_wider(&self, session: &Arc<dyn Session>) -> Result<(), SessionWorkError> {
        for node in [self.config.user_path(), &self.taken] {
            match retry::fail_if_rights_wider(session, node).await {
                Ok(()) | Err(Failure::NoNode) => {}
                Err(failure) => return Err(failure.into()),
            }
        }
        Ok(())
    }

    pub(crate) fn doubtful_error(&self, what: String) -> Error {
        self.permits_error(PermitsError::Doubtful(what))
    }

    pub(crate) fn permits_error(&self, reason: PermitsError) -> Error {
        Error::Permits { path: self.config.user_path().to_string(), reason }
    }

    pub(crate) fn too_few_permits_error(&self, wanted: u32, permits: u32) -> Error {
        self.permits_error(PermitsError::TooFew { wanted, permits })
    }

    /// Returns the error of an acquisition in the queue that ended with `why`. If a request has failed, and the
    /// contender's node is lost, returns the error of the loss instead.
    pub(crate) fn acquisition_error(&self, entry: &Contender, why: SessionWorkError) -> Error {
        match why {
            SessionWorkError::Refused(error) => error,
            SessionWorkError::Failed(failure) => match (entry.detect_loss(), failure) {
                (Some(loss), _) => self.config.evicted_error(loss),
                (None, failure @ (Failure::NoNode | Failure::Over(_))) => self.config.acquisition_error(failure),
                (None, failure) => Error::from_failure(failure, TAKE, self.config.user_path()),
            },
        }
    }
}

/// The number of permits, as far as the handle knows.
#[derive(Clone, Copy, Debug)]
pub(crate) enum KnownPermitNumber {
    Unknown,
    /// The number of permits that the user gave, until the handle reads the same number from the ensemble, or writes
    /// it.
    Given(u32),
    /// The number of permits in the ensemble at this handle's last read or write.
    Seen(u32),
}

impl SemaphoreState {
    /// Returns the number of permits that the handle knows, if there is one. The handle writes this number if the
    /// ensemble has none.
    pub(crate) fn known_number(&self) -> Option<u32> {
        match *self.number.lock() {
            KnownPermitNumber::Unknown => None,
            KnownPermitNumber::Given(number) | KnownPermitNumber::Seen(number) => Some(number),
        }
    }

    /// Stores the ensemble's number of permits. From now on the handle uses this number.
    ///
    /// # Errors
    /// [`Error::Permits`] if the user gave another number, and the handle has stored no number of the ensemble yet.
    pub(crate) fn record_number(&self, number: u32) -> Result<(), Error> {
        let mut known = self.number.lock();
        match *known {
            KnownPermitNumber::Given(ours) if ours != number => {
                Err(self.permits_error(PermitsError::Other { ours, theirs: number }))
            }
            _ => {
                *known = KnownPermitNumber::Seen(number);
                Ok(())
            }
        }
    }

    /// Fails if the request is for no permits. As long as the handle has not seen the ensemble's number, also fails if
    /// the request is for more than the user gave. Returns whether the caller must read the ensemble's number before it
    /// enters the queue, because the ensemble may have fewer permits than requested.
    pub(crate) fn check_wanted_count(&self, wanted: u32) -> Result<bool, Error> {
        if wanted == 0 {
            return Err(Error::invalid("an acquisition needs at least one permit"));
        }
        match *self.number.lock() {
            KnownPermitNumber::Given(permits) if wanted > permits => Err(self.too_few_permits_error(wanted, permits)),
            KnownPermitNumber::Given(_) => Ok(false),
            KnownPermitNumber::Seen(permits) => Ok(wanted > permits),
            KnownPermitNumber::Unknown => Ok(wanted > 1),
        }
    }
}

/// The content of the twin node, which stores a second copy of the semaphore's number of permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PermitNumberCopy {
    Missing,
    /// The twin exists and holds no number of permits.
    NoNumber,
    Number(u32),
}

impl SemaphoreState {
    /// Returns the number of permits in the semaphore's node, and the node's version. `node` is a read of the
    /// semaphore's node. If the node has no number, writes the number that this handle knows. If the node is missing,
    /// and there is a `maker`, creates the node together with the number, and records this in `maker`.
    ///
    /// # Errors
    /// - [`Failure::NoNode`]: the node is missing, and there is no `maker`.
    /// - [`PermitsError::Vanished`]: the node has no number, but the twin node has a copy of a number other than the
    ///   one that this handle knows, if it knows one. So the number was deleted.
    /// - [`PermitsError::Unset`]: the node has no number, and this handle knows none.
    /// - [`PermitsError::Doubtful`]: the node has data that are no number.
    /// - The errors of [`SemaphoreState::record_number`] and [`SemaphoreState::write_number`].
    pub(crate) async fn read_or_write_number(
        &self,
        session: &Arc<dyn Session>,
        mut node: Option<(Vec<u8>, Stat)>,
        maker: Option<&Contender>,
    ) -> Result<(u32, i32), SessionWorkError> {
        let (path, mut rounds) = (self.config.user_path(), 0);
        loop {
            if let Some((data, stat)) = &node
                && let Some(number) = self.parse_number(data)?
            {
                self.record_number(number)?;
                return Ok((number, stat.version));
            }
            if node.is_none() && maker.is_none() {
                return Err(Failure::NoNode.into());
            }
            let version = node.as_ref().map(|(_, stat)| stat.version);
            match (self.known_number(), self.read_twin(session).await?) {
                (known, PermitNumberCopy::Number(was)) if known != Some(was) => {
                    // Our server may lag behind, and not show the number that another client has written. So the leader
                    // is asked whether the node is as in our read: missing, or of this version. If so, the number was
                    // deleted.
                    if presence::exists_at_leader(session, &**path, version).await? == version.is_some() {
                        return Err(self.permits_error(PermitsError::Vanished { was }).into());
                    }
                }
                (None, _) => return Err(self.permits_error(PermitsError::Unset).into()),
                (Some(number), twin) => {
                    if let Some(version) = self.write_number(session, number, node.as_ref(), twin, maker).await? {
                        return Ok((number, version));
                    }
                }
            }
            Self::leave_server_or_pause(session, path, version, &mut rounds).await?;
            node = retry::read_data(session, path, version.is_none()).await?;
        }
    }

    /// Writes the number of permits to the semaphore's node, or creates the node with this number. `node` is the
    /// caller's read of the node. `twin` is a read of the twin node, which stores a copy of the number. Returns the new
    /// version of the node, or `None` if the nodes to be written are no longer as the caller read them, because another
    /// client or an earlier try of ours has changed them. Fails if the node must not get a number.
    pub(crate) async fn write_number(
        &self,
        session: &Arc<dyn Session>,
        number: u32,
        node: Option<&(Vec<u8>, Stat)>,
        twin: PermitNumberCopy,
        maker: Option<&Contender>,
    ) -> Result<Option<i32>, SessionWorkError> {
        let is_unset = node.is_none_or(|(data, _)| permits::decode_permit_number(data) == Ok(None));
        if is_unset {
            // Until the number is written, contenders of a lock may come, although an earlier listing showed no lock.
            self.has_no_lock.store(false, Ordering::Release);
        }
        let (path, data) = (self.config.user_path().to_string(), permits::encode_permit_number(number));
        let twin_path = metadata::twin_path(&path);
        let second = match twin {
            PermitNumberCopy::Missing => {
                Operation::Create { path: twin_path, data: data.clone(), kind: Kind::Persistent }
            }
            PermitNumberCopy::NoNumber | PermitNumberCopy::Number(_) => {
                Operation::Set { path: twin_path, data: data.clone(), version: None }
            }
        };
        let (writes, version) = match node {
            None => {
                self.fail_if_job_record(session).await?;
                (vec![Operation::Create { path, data, kind: Kind::Persistent }, second], 0)
            }
            Some((_, stat)) => {
                if is_unset {
                    // If this is the path of a lock, the number of permits would keep the lock's users out.
                    self.fail_if_lock_present(session, None).await?;
                    self.fail_if_other_use(session, twin).await?;
                }
                let mut writes = vec![Operation::Set { path, data, version: Some(stat.version) }, second];
                // The node may be a container, which no answer of a server shows. Servers delete a container without a
                // child, and the number with it. So the directory of the permits is created as a child.
                if retry::read_data(session, &self.taken, false).await?.is_none() {
                    let (path, data) = (self.taken.to_string(), Vec::new());
                    writes.push(Operation::Create { path, data, kind: Kind::Persistent });
                }
                (writes, stat.version.wrapping_add(1))
            }
        };
        let is_written = self.commit_writes(session, writes, maker.filter(|_| node.is_none())).await?;
        if is_written {
            *self.number.lock() = KnownPermitNumber::Seen(number);
        }
        Ok(is_written.then_some(version))
    }

    /// Carries out these writes in one transaction. The first of them writes the semaphore's node, or creates it with
    /// its number, so that no client sees a new node without a number. If the parents of a new node are missing,
    /// creates them first. Records each created node in `maker`, if there is one. Returns `false` if one of the nodes
    /// is not as the writes expect, because another client or an earlier try of ours has changed, created or deleted
    /// it.
    ///
    /// If a server refuses one of the other writes, leaves that write out. This client may have no right to create the
    /// twin node beside the semaphore's node, and the semaphore works without the copy in the twin node.
    async fn commit_writes(
        &self,
        session: &Arc<dyn Session>,
        mut writes: Vec<Operation>,
        maker: Option<&Contender>,
    ) -> Result<bool, SessionWorkError> {
        let made = |node: &str| maker.iter().for_each(|maker| maker.record_created_path(node));
        for _ in 0..CREATES {
            match retry::repeat_until_known(session, || session.transact(&writes)).await {
                Ok(_) => {
                    let is_create = |it: &&Operation| matches!(it, Operation::Create { .. });
                    writes.iter().filter(is_create).for_each(|create| made(create.path()));
                    return Ok(true);
                }
                Err(Failure::Operation { index, failure }) => match (&writes[0], *failure) {
                    (Operation::Create { path, .. }, Failure::NoNode) if index == 0 => match request::parent_path(path)
                    {
                        "/" => retry::repeat_until_known(session, || session.make_root()).await?,
                        parent => directory::make_directories(session, parent, true, made).await?,
                    },
                    (_, Failure::BadVersion | Failure::NodeExists | Failure::NoNode) => return Ok(false),
                    _ if (1..writes.len()).contains(&index) => drop(writes.remove(index)),
                    (_, failure) => return Err(failure.into()),
                },
                Err(failure) => return Err(failure.into()),
            }
        }
        Err(Failure::NoNode.into())
    }

    /// Fails if the semaphore's node, which has no number of permits, is or may be used for something else. Does not
    /// fail if the twin node has a copy of a number, which shows that the node is a semaphore's. A node without signs
    /// of another use is accepted only if the user allows this.
    async fn fail_if_other_use(
        &self,
        session: &Arc<dyn Session>,
        twin: PermitNumberCopy,
    ) -> Result<(), SessionWorkError> {
        if matches!(twin, PermitNumberCopy::Number(_)) {
            return Ok(());
        }
        self.fail_if_job_record(session).await?;
        let path = self.config.user_path();
        let children = retry::repeat_until_known(session, || session.children(path)).await;
        let children = children.or_else(retry::default_if_no_node)?;
        let reason = match children.iter().filter(|name| *name != QUEUE && *name != PERMITS).min() {
            Some(other) => PermitsError::OtherUse(format!("{path}/{other}")),
            None if self.at_existing_node => return Ok(()),
            None => PermitsError::EmptyNode,
        };
        Err(self.permits_error(reason).into())
    }

    /// Fails if there is a record of a job that ran [once in a while](crate::Acquire::once_in) under a lock at this
    /// path. The record of the job's last success is in a node beside the path, and a copy of it in the twin of that
    /// node.
    async fn fail_if_job_record(&self, session: &Arc<dyn Session>) -> Result<(), SessionWorkError> {
        let record = metadata::record_path(self.config.user_path());
        for path in [record.clone(), metadata::twin_path(&record)] {
            let node = retry::read_data(session, &path, false).await?;
            if node.is_some_and(|(data, stat)| metadata::parse_record(&data, stat.mtime).is_some()) {
                return Err(self.permits_error(PermitsError::OtherUse(path)).into());
            }
        }
        Ok(())
    }

    /// Returns the number of permits in the data of the semaphore's node. `None` if the data are empty. Fails if the
    /// data are anything else.
    pub(crate) fn parse_number(&self, data: &[u8]) -> Result<Option<u32>, Error> {
        let not_a_number = |what: String| self.doubtful_error(format!("its data {what:?} is no number of permits"));
        permits::decode_permit_number(data).map_err(not_a_number)
    }

    pub(crate) async fn read_twin(&self, session: &Arc<dyn Session>) -> Result<PermitNumberCopy, Failure> {
        Ok(match retry::read_data(session, &metadata::twin_path(self.config.user_path()), false).await? {
            None => PermitNumberCopy::Missing,
            Some((data, _)) => permits::decode_permit_number(&data)
                .ok()
                .flatten()
                .map_or(PermitNumberCopy::NoNumber, PermitNumberCopy::Number),
        })
    }

    /// Adds to `rounds`, a count of disagreements of this client's server and the ensemble's leader about the node
    /// `path`. The first disagreement may be due to a change at that moment. After each later disagreement, connects to
    /// another server if server and leader still disagree, and otherwise waits for a session timeout.
    pub(crate) async fn leave_server_or_pause(
        session: &Arc<dyn Session>,
        path: &str,
        version: Option<i32>,
        rounds: &mut u32,
    ) -> Result<(), Failure> {
        *rounds += 1;
        if *rounds > 1 && !presence::leave_differing_server(session, path, version).await? {
            // The wait also ends when the session ends. The caller's next request then fails.
            retry::run_until(session.store().until_over().map(drop), session.sleep(session.timeout())).await;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::client::Memory;
    use crate::recipes::semaphore::Semaphore;

    /// Returns the state of a handle that was built with this number of permits, or with none.
    fn opened(given: Option<u32>) -> Arc<SemaphoreState> {
        let builder = Semaphore::builder(&Memory::new(), "/s");
        let builder = given.into_iter().fold(builder, |builder, number| builder.permits(number));
        builder.build().expect("valid").state
    }

    /// Returns whether a request for `wanted` permits must read the ensemble's number first. Fails with the known
    /// number of permits if the request is for more.
    fn check(limit: &SemaphoreState, wanted: u32) -> Result<bool, u32> {
        limit.check_wanted_count(wanted).map_err(|error| match error {
            Error::Permits { reason: PermitsError::TooFew { wanted: asked, permits }, .. } if asked == wanted => {
                permits
            }
            other => panic!("{other}"),
        })
    }

    #[test]
    fn too_many_permits_are_refused_without_a_request() {
        let limit = opened(Some(3));
        assert_eq!(limit.known_number(), Some(3));
        assert_eq!([1, 2, 3, 4].map(|wanted| check(&limit, wanted)), [Ok(false), Ok(false), Ok(false), Err(3)]);
    }

    #[test]
    fn the_ensemble_is_asked_for_more_permits_than_seen() {
        let unknown = opened(None);
        assert_eq!(unknown.known_number(), None);
        assert_eq!([1, 2].map(|wanted| check(&unknown, wanted)), [Ok(false), Ok(true)]);
        let limit = opened(Some(3));
        *limit.number.lock() = KnownPermitNumber::Seen(5);
        assert_eq!(limit.known_number(), Some(5));
        assert_eq!([4, 5, 6].map(|wanted| check(&limit, wanted)), [Ok(false), Ok(false), Ok(true)]);
    }

    #[test]
    fn a_request_for_no_permits_is_refused() {
        for limit in [opened(None), opened(Some(1))] {
            assert!(matches!(limit.check_wanted_count(0), Err(Error::InvalidInput(_))));
        }
    }

    #[test]
    fn only_the_first_read_refuses_another_number() {
        let limit = opened(Some(3));
        assert!(matches!(
            limit.record_number(4),
            Err(Error::Permits { reason: PermitsError::Other { ours: 3, theirs: 4 }, .. })
        ));
        assert_eq!(limit.known_number(), Some(3));
        assert!(limit.record_number(3).is_ok() && limit.record_number(4).is_ok());
        assert_eq!(limit.known_number(), Some(4));
        let unknown = opened(None);
        assert!(unknown.record_number(2).is_ok());
        assert_eq!(unknown.known_number(), Some(2));
    }
}
