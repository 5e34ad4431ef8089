//! A semaphore as all clones of its handle know it: where it is, its number of permits, and that it is no lock.
//!
//! A path is a lock or a semaphore. Each writes first, and then looks: a contender of the lock makes its node and then sees
//! whether there is a number of permits; a semaphore has its number and then looks for such nodes. So of two that come
//! together at least one sees the other.

use std::sync::Arc;
use std::time::Duration;

use crate::contend::request::{Handle, IfTaken, WaitContext};
use crate::contend::tenure::Tenure;
use crate::error::error::Error;
use crate::error::permits::PermitsError;
use crate::queue::dialect::Dialect;
use crate::queue::mode::Mode;
use crate::recipes::semaphore::limit::{self, PermitLimit};
use crate::session::contract::Session;
use crate::session::request::Failure;
use crate::session::{presence, retry};
use crate::sync::atomic::{AtomicBool, Ordering};

/// The operation that a refusal names.
pub(super) const TAKE: &str = "take a permit of";

/// How often a lock's contender is looked for, and the pause between.
const LOOKS: u32 = 4;
const LOOK_PAUSE: Duration = Duration::from_millis(100);

/// A semaphore as all clones of its handle know it.
#[derive(Debug)]
pub struct SemaphoreState {
    pub(crate) handle: Arc<Handle>,
    pub(crate) limit: PermitLimit,
    /// The directory of the permits that are taken.
    pub(crate) taken: Arc<str>,
    /// No lock is there since the number is. Who comes for the lock later sees the number.
    pub(super) is_alone: AtomicBool,
}

/// A semaphore at one moment.
pub(super) struct SeenPermits {
    pub(super) number: u32,
    /// The version of the semaphore's node, whose data are the number.
    pub(super) version: i32,
    /// The nodes of those who hold permits.
    pub(super) names: Vec<String>,
}

impl SemaphoreState {
    /// As [`SemaphoreState::finds_lock`], for an acquisition.
    pub(super) async fn check_for_lock(
        &self,
        session: &Arc<dyn Session>,
        children: Option<Vec<String>>,
    ) -> Result<(), Error> {
        self.finds_lock(session, children).await.map_err(|failure| self.no_permit(failure))?.map_or(Ok(()), Err)
    }

    /// The error if the path is that of a lock which somebody holds or waits for, by these children or by a listing. Who has come
    /// for the lock and finds a semaphore leaves at once, so a second look decides.
    pub(super) async fn finds_lock(
        &self,
        session: &Arc<dyn Session>,
        mut children: Option<Vec<String>>,
    ) -> Result<Option<Error>, Failure> {
        for looks in 1.. {
            let names = match children.take() {
                Some(names) => names,
                None => self.beside(session).await?,
            };
            let Some(node) = names.into_iter().filter(|name| Dialect::of(name).is_some()).min() else { break };
            if looks == LOOKS {
                return Ok(Some(self.doubt(PermitsError::IsLocked { node })));
            }
            session.sleep(LOOK_PAUSE).await;
        }
        Ok(None)
    }

    /// The children of the semaphore's own node. Waits for the servers as long as its caller does: an acquisition may wait.
    async fn beside(&self, session: &Arc<dyn Session>) -> Result<Vec<String>, Failure> {
        let path = self.handle.shown();
        retry::until_known(session, || session.children(path)).await.or_else(retry::none_without_directory)
    }

    /// As [`SemaphoreState::check_for_lock`], until none was found once. The semaphore has its number by now.
    pub(super) async fn is_alone(
        &self,
        session: &Arc<dyn Session>,
        children: Option<Vec<String>>,
    ) -> Result<(), Error> {
        if !self.is_alone.load(Ordering::Acquire) {
            self.check_for_lock(session, children).await?;
            self.is_alone.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Fails if others could change the number or take permits, by an ACL that this client refuses.
    pub(super) async fn check_rights(&self, session: &Arc<dyn Session>) -> Result<(), Error> {
        let nodes = [self.handle.shown(), &self.taken];
        for node in nodes.into_iter().filter(|_| session.refuses_wider_rights()) {
            let wider = match retry::until_known(session, || session.wider_rights(node)).await {
                Ok(wider) => wider.join("; "),
                Err(Failure::NoNode) => continue,
                Err(failure) => return Err(self.no_permit(failure)),
            };
            if !wider.is_empty() {
                let refused = format!("the ACL of {node} is wider than that of this client: {wider}");
                return Err(self.no_permit(Failure::Refused(refused)));
            }
        }
        Ok(())
    }

    /// The permits of these names, without those of which it is known that the leader no longer has them.
    pub(super) fn without_ghosts(&self, session: &Arc<dyn Session>, names: &[String]) -> Vec<String> {
        session.upkeep().ghosts().without(&self.taken, names, Mode::Write).into_owned()
    }

    /// Asks the leader for these permits, all that the server shows. Returns those that it no longer has.
    pub(super) async fn finds_ghosts(&self, session: &Arc<dyn Session>, names: &[String]) -> Vec<Arc<str>> {
        presence::ghosts_among(session, &self.taken, names, (self.handle.dialect, Mode::Write)).await
    }

    /// There are too few permits. Reports who has them, or gives up.
    pub(super) async fn report_short(
        &self,
        held: &Tenure,
        now: &SeenPermits,
        wait: &mut WaitContext<'_>,
    ) -> Result<(), Error> {
        let (session, paths, me) = (held.ticket().session(), &self.handle.paths, &*held.contender());
        let alone = [me.name().to_owned()];
        if wait.patience == IfTaken::GiveUp {
            return Err(Error::WouldBlock { blockers: paths.blockers(session, &alone, me).await });
        }
        if let Some(on_wait) = &mut wait.on_wait {
            let names = session.children(&self.handle.path).await;
            let names = names.ok().filter(|names| !names.is_empty()).unwrap_or_else(|| alone.to_vec());
            on_wait.tell(session, paths, me.dialect(), paths.progress_beside(&now.names, &names, me)).await;
        }
        if let Some(waiting) = wait.waiting {
            waiting.sees(session, me, paths.progress_beside(&now.names, &alone, me));
        }
        Ok(())
    }

    pub(super) fn doubtful(&self, what: String) -> Error {
        self.doubt(PermitsError::Doubtful(what))
    }

    pub(super) fn doubt(&self, reason: PermitsError) -> Error {
        limit::of(self.handle.shown(), reason)
    }

    pub(super) fn no_permit(&self, failure: Failure) -> Error {
        match failure {
            Failure::NoNode | Failure::Over(_) => self.handle.stop(failure),
            failure => Error::from_failure(failure, TAKE, self.handle.shown()),
        }
    }
}
