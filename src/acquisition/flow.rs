//! An acquisition from its first request until the lock is granted or given up; knows neither turns nor the hold's end.

use std::sync::Arc;
use std::time::Duration;

use tracing::Instrument;

use crate::acquisition::enqueue::is_used_up;
use crate::acquisition::request::Acquisition;
use crate::acquisition::wait::{Patience, Wait};
use crate::acquisition::waiting::Waiting;
use crate::call;
use crate::error::error::Error;
use crate::hold::hold::Hold;
use crate::queue::turn;
use crate::session::request::Failure;
use crate::snapshot::on_wait::OnWait;
use crate::validation;

/// How often an acquisition that finds the directory's numbers used up has the directory made anew. Other contenders
/// may be doing the same.
const RESTARTS: u32 = 8;

impl Acquisition {
    /// Queues up, and waits until the lock is granted.
    pub(crate) async fn acquire(&mut self) -> Result<Box<Hold>, Error> {
        let checked = self.check_wanted().and_then(|_| self.options.timeout());
        let answer = match checked {
            Err(error) => Err(error),
            Ok(None) if self.handle.warn_waiting.is_none() => {
                let on_wait = self.options.on_wait.take().map(OnWait::new);
                self.enter(Patience::Wait, None, on_wait).await
            }
            // Boxed, because few of thousands of waiters need it: a waiter's future is as large as its largest step.
            Ok(timeout) => Box::pin(self.enter_watched(timeout)).await,
        };
        self.reported(answer)
    }

    async fn enter_watched(&mut self, timeout: Option<Duration>) -> Result<Box<Hold>, Error> {
        let waiting = Arc::new(Waiting::begin());
        let on_wait = self.options.on_wait.take().map(OnWait::new);
        let granted = self.warned(|| waiting.unwarned(), self.enter(Patience::Wait, Some(&waiting), on_wait));
        match timeout {
            None => granted.await,
            Some(timeout) => self.within(timeout, &waiting, granted).await,
        }
    }

    /// Queues up and waits. `waiting`, if given, records the contenders in the way.
    pub(crate) async fn enter(
        &self,
        patience: Patience,
        waiting: Option<&Arc<Waiting>>,
        on_wait: Option<Box<OnWait>>,
    ) -> Result<Box<Hold>, Error> {
        if self.wanted.is_some() {
            Box::pin(self.check_number()).await?;
        }
        let (mut held, mut look) = Box::pin(self.queue_up()).await?;
        let mut tries = 0;
        while is_used_up(held.contender()) {
            tries += 1;
            if tries > RESTARTS || !Box::pin(self.restarts(held)).await? {
                return Err(Error::SequenceExhausted { path: self.handle.path.to_string() });
            }
            (held, look) = Box::pin(self.queue_up()).await?;
        }
        if let Some(kept) = &self.kept {
            kept.watch_over(&held, held.ticket().armed().await);
        }
        self.trace.entered(held.position());
        if let Some(waiting) = waiting {
            self.warn_in_background(&held, waiting);
        }
        let mut wait = Wait { patience, waiting, on_wait, look, directory: None };
        let turn = tokio::select! {
            biased;
            turn = self.wait_for_turn(&held, &mut wait) => turn,
            // A loss ends the wait also while an answer is outstanding.
            loss = held.lost() => Err(self.evicted(loss)),
        };
        let granted = match (turn, &self.wanted) {
            (Ok(grant), None) => self.grant(&held, grant).await,
            (Ok(grant), Some(wanted)) => Box::pin(self.take_permits_unless_lost(wanted, &held, grant, &mut wait)).await,
            (Err(error), _) => Err(error),
        };
        match granted {
            Ok(()) => {
                self.begin_hold(&held);
                Ok(held)
            }
            // A contender that lacks one permission may also lack the permission to leave. The error must say so.
            Err(Error::PermissionDenied { operation, path, lacks }) => match held.ticket().leave().await {
                Err(Failure::NoAuth(lacks)) => Err(Error::stays(held.own_node().path(), lacks)),
                Ok(()) if held.ticket().unmake_directory().await => Err(Error::shut_out(&self.handle.path, lacks)),
                _ => Err(Error::PermissionDenied { operation, path, lacks }),
            },
            Err(error) => Err(error),
        }
    }

    /// Acquires without waiting. Writes nothing if the lock is taken.
    pub(crate) async fn attempt(self, timeout: Option<Duration>) -> Result<Box<Hold>, Error> {
        self.attempt_beside(timeout, None, || ()).await
    }

    /// As [`Self::attempt`], beside a node of this name: it is in the way of nobody, because `let_go` removes it.
    pub(crate) async fn attempt_beside(
        mut self,
        timeout: Option<Duration>,
        own: Option<&str>,
        let_go: impl FnOnce() + Send,
    ) -> Result<Box<Hold>, Error> {
        let span = self.begin();
        let attempt = async {
            let limit = self.look_beside(own).await?;
            let_go();
            self.take_now(limit).await
        };
        let reported = async { self.reported(call::in_time(&self.handle.coordinator, timeout, attempt).await) };
        reported.instrument(span).await
    }

    /// Fails if a newcomer would have to wait. Writes nothing. Returns the session timeout.
    pub(crate) async fn look(&self) -> Result<Duration, Error> {
        self.look_beside(None).await
    }

    /// As [`Self::look`], but the node of this name does not count.
    async fn look_beside(&self, own: Option<&str>) -> Result<Duration, Error> {
        validation::check_label(self.label())?;
        self.check_wanted()?;
        let path = &self.handle.path;
        let seen = call::on_a_session(&self.handle.coordinator, |session| async move {
            let names = call::names(&session, path, false).await?;
            Ok((session, names))
        });
        let (session, mut names) = seen.await.map_err(|failure| Error::from_failure(failure, "list", path))?;
        names.retain(|name| Some(&name[..]) != own);
        self.handle.check_for_foreign(&names)?;
        let newcomer = (self.handle.dialect, self.mode);
        let is_free = turn::ahead_of_newcomer(self.handle.dialect, self.mode, &names).is_empty();
        if self.is_room(&session).await? != Some(false) && is_free {
            return Ok(session.timeout());
        }
        Err(Error::WouldBlock { blockers: self.handle.site.blockers_of_newcomer(&session, &names, newcomer).await })
    }

    /// Takes the lock after a look, without waiting for any contender, and waits for the servers no longer than
    /// `limit`.
    pub(crate) async fn take_now(&self, limit: Duration) -> Result<Box<Hold>, Error> {
        call::bounded(&self.handle.coordinator, limit, self.enter(Patience::GiveUp, None, None)).await
    }
}
