//! An acquisition that does not wait for other contenders, and writes nothing if the lock is taken.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use crate::call::{self, SESSION_TRIES};
use crate::contend::acquisition::Acquisition;
use crate::contend::handle::ContenderHandle;
use crate::error::error::Error;
use crate::queue::turn::{self, IfTaken};
use crate::session::contract::Session;
use crate::session::request::{Ending, Loss};
use crate::validation;

/// How often a `try_` method looks again because a contender in the way has left. On a busy lock there is always another.
const LOOKS_MAX: u32 = 3;

impl Acquisition {
    /// Acquires the lock or the permits without waiting for other contenders. Writes nothing if they are taken.
    pub(crate) async fn attempt(mut self, timeout: Option<Duration>) -> Result<Arc<ContenderHandle>, Error> {
        let span = self.begin_trace();
        let attempt = async {
            let mut tries = 0;
            loop {
                tries += 1;
                let limit = self.fail_if_taken().await?;
                match self.take_now(limit).await {
                    // The process was stopped or cut off while its node was in the queue. The session is over or the lease has
                    // run out, so the node is gone or will be removed. The caller may safely try again.
                    Err(Error::Evicted(Loss::LeaseRanOut | Loss::SessionOver(Ending::Expired | Ending::Replaced)))
                        if tries < SESSION_TRIES => {}
                    answer => return answer,
                }
            }
        };
        let reported = async { self.reported(call::in_time(&self.config.coordinator, timeout, attempt).await) };
        span.around(pin!(reported)).await
    }

    /// Fails if a new contender would have to wait. Writes nothing. Returns the session timeout.
    pub(crate) async fn fail_if_taken(&self) -> Result<Duration, Error> {
        validation::check_label(self.label())?;
        self.check()?;
        let path = &self.config.queue;
        let (paths, (dialect, mode)) = (&self.config.paths, (self.config.dialect, self.mode));
        let mut looks = 0;
        loop {
            looks += 1;
            let seen = call::on_a_session(&self.config.coordinator, ("list", path), |session| async move {
                let names = call::names(&session, path, false).await?;
                Ok((session, names))
            });
            let (session, names) = seen.await?;
            self.config.check_for_foreign(&names)?;
            if self.target.is_none() {
                let check = self.check_for_semaphore(&session, &names, None);
                call::bounded(&self.config.coordinator, session.timeout(), check).await?;
            }
            let ahead = turn::ahead_of_newcomer(dialect, mode, &names);
            if self.has_enough(&session).await? && ahead.is_empty() {
                return Ok(session.timeout());
            }
            let gone = paths.are_some_gone(&session, &ahead).await;
            let are_some_gone = gone.map_err(|failure| Error::from_failure(failure, "list", path))?;
            if !are_some_gone || looks == LOOKS_MAX {
                return Err(Error::WouldBlock {
                    blockers: paths.blockers_of_newcomer(&session, &names, (dialect, mode)).await,
                });
            }
        }
    }

    /// Returns `false` if the target (the permits of a semaphore) is taken. Returns `true` if the target is free or cannot be
    /// read, or if there is no target.
    async fn has_enough(&self, session: &Arc<dyn Session>) -> Result<bool, Error> {
        let Some(target) = &self.target else { return Ok(true) };
        let available = target.is_available(session);
        Ok(call::bounded(&self.config.coordinator, session.timeout(), available).await? != Some(false))
    }

    /// Enters the queue, and takes the lock if no contender is in the way. Waits at most `limit` for replies of the ensemble.
    pub(crate) async fn take_now(&self, limit: Duration) -> Result<Arc<ContenderHandle>, Error> {
        call::bounded(&self.config.coordinator, limit, self.enter(IfTaken::GiveUp, None, None)).await
    }
}
