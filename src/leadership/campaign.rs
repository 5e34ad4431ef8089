//! A campaign and the term it may lead to: when to stand, when to step down, when to try again; knows no work.

use std::fmt;
use std::future::{Future, IntoFuture, pending};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::call;
use crate::error::error::Error;
use crate::guard::guard::WriteGuard;
use crate::leadership::pause::{self, Pauses};
use crate::leadership::term::Term;
use crate::lock::rw_lock::RwLock;
use crate::session::loss::Loss;
use crate::session::request::Ending;
use crate::sync::{Mutex, random, watch};

/// Asks whether this candidate is fit to lead.
pub(crate) type Check = Box<dyn Fn() -> Pin<Box<dyn Future<Output = bool> + Send>> + Send + Sync>;

/// One candidate: what the clones of its handle share.
pub(crate) struct Candidate {
    pub(crate) lock: RwLock,
    /// The health check, and how often it is made.
    pub(crate) health: Option<(Duration, Check)>,
    pub(crate) status: watch::Sender<Status>,
    /// How long the next pause is, and when the present one is over.
    pub(crate) rest: Mutex<(Pauses, Option<Instant>)>,
    /// Since when the health check fails, if it does.
    pub(crate) unhealthy: Mutex<Option<Instant>>,
}

#[derive(Default)]
pub(crate) struct Status {
    campaigns: bool,
    is_stopped: bool,
    /// From the grant until the node is gone.
    term: Option<Term>,
    /// The present term is to be given up.
    is_resigned: bool,
}

impl Status {
    /// Numbers do not tell two terms apart: servers that came back empty, or restored, give the same ones again.
    fn is_in(&self, term: &Term) -> bool {
        self.term.as_ref().is_some_and(|it| Arc::ptr_eq(&it.guard, &term.guard))
    }
}

/// Why a term ends before its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Lost,
    Resigned,
    Unhealthy,
}

impl Candidate {
    pub(crate) fn new(lock: RwLock, health: Option<(Duration, Check)>, pause: Duration) -> Candidate {
        let (status, rest) = (watch::Sender::default(), Mutex::new((Pauses::new(pause), None)));
        Candidate { lock, health, status, rest, unhealthy: Mutex::default() }
    }

    /// The present term, if this candidate leads.
    pub(crate) fn term(&self) -> Option<Term> {
        let term = self.status.borrow().term.clone();
        // Not while the status is locked: whoever finds the loss of a term wakes the tasks that end it.
        term.filter(Term::is_leader)
    }

    /// Ends the present term, and waits until its node is gone.
    pub(crate) async fn resign(&self) -> bool {
        let mut status = self.status.subscribe();
        let Some(term) = self.term() else { return false };
        self.status.send_modify(|status| status.is_resigned |= status.is_in(&term));
        // It fails if the sender is gone, and we have it.
        let _ended = status.wait_for(|status| !status.is_in(&term)).await;
        true
    }

    /// Ends the campaign, for good, and waits until it has ended.
    pub(crate) async fn stop(&self) {
        let mut status = self.status.subscribe();
        self.status.send_modify(|status| status.is_stopped = true);
        let _ended = status.wait_for(|status| !status.campaigns).await;
    }

    /// Begins to campaign, unless this candidate does already.
    pub(crate) fn begin(&self) -> Result<Campaign<'_>, Error> {
        let is_first = self.status.send_if_modified(|status| !std::mem::replace(&mut status.campaigns, true));
        match is_first {
            true => Ok(Campaign { candidate: self }),
            false => Err(Error::invalid("a second campaign of one candidate; build a Leadership for each")),
        }
    }

    /// Waits until this candidate leads. Tries again for as long as that may help.
    async fn stand(&self) -> Result<WriteGuard, Error> {
        loop {
            self.rest().await;
            self.until_healthy().await;
            let granted = tokio::select! {
                biased;
                () = self.until_unhealthy() => continue,
                granted = self.lock.write().into_future() => granted,
            };
            match granted {
                Err(Error::Lost(loss) | Error::Evicted(loss)) => self.rests_after(Duration::ZERO, Err(loss)),
                Err(Error::Unreachable(_) | Error::OutcomeUnknown { .. }) => self.rests_after(Duration::ZERO, Ok(())),
                answer => return answer,
            }
        }
    }

    /// Waits until the pause is over, if there is one.
    async fn rest(&self) {
        let until = self.rest.lock().1;
        let left = until.map(|until| until.saturating_duration_since(Instant::now())).filter(|left| !left.is_zero());
        if let Some(left) = left {
            self.lock.handle().coordinator.sleep(left).await;
        }
    }

    /// Makes the next campaign wait, if the term, or the try, was too short or was lost.
    fn rests_after(&self, lasted: Duration, ended: Result<(), Loss>) {
        // There is nothing to wait for: the next try says so.
        if matches!(ended, Err(Loss::SessionOver(Ending::Closed | Ending::AuthFailed))) {
            return;
        }
        let mut rest = self.rest.lock();
        let longest = rest.0.after(lasted, ended.is_ok());
        rest.1 = longest.and_then(|longest| Instant::now().checked_add(pause::drawn(longest, random())));
    }

    async fn until_healthy(&self) {
        if let Some((interval, check)) = &self.health {
            while !self.is_healthy(*interval, check).await {
                self.lock.handle().coordinator.sleep(*interval).await;
            }
        }
    }

    async fn until_unhealthy(&self) {
        let Some((interval, check)) = &self.health else { return pending().await };
        loop {
            self.lock.handle().coordinator.sleep(*interval).await;
            if !self.is_healthy(*interval, check).await {
                return;
            }
        }
    }

    /// A check without an answer has failed.
    async fn is_healthy(&self, interval: Duration, check: &Check) -> bool {
        let is_healthy = call::unless(self.lock.handle().coordinator.sleep(interval), check()).await.unwrap_or(false);
        let mut unhealthy = self.unhealthy.lock();
        let before = *unhealthy;
        *unhealthy = (!is_healthy).then(|| before.unwrap_or_else(Instant::now));
        drop(unhealthy);
        let (path, data) = (self.lock.path(), self.data());
        match (before, is_healthy) {
            (None, false) => tracing::warn!(path, data, "the health check failed: no candidate until it succeeds"),
            (Some(since), true) => {
                tracing::info!(path, data, unhealthy = ?since.elapsed(), "the health check succeeds: a candidate again");
            }
            _ => {}
        }
        is_healthy
    }

    fn data(&self) -> Option<&str> {
        self.lock.handle().label.as_deref()
    }
}

impl fmt::Debug for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let status = self.status.borrow();
        let (campaigns, term) = (status.campaigns, status.term.clone());
        drop(status);
        let mut debug = f.debug_struct("Leadership");
        debug.field("path", &self.lock.path()).field("campaigns", &campaigns).field("term", &term);
        debug.finish_non_exhaustive()
    }
}

/// A campaign of a candidate. It ends when this is dropped.
pub(crate) struct Campaign<'a> {
    candidate: &'a Candidate,
}

impl Campaign<'_> {
    /// The next term; `None` once the candidate is stopped.
    pub(crate) async fn next(&self) -> Result<Option<CampaignTurn<'_>>, Error> {
        let mut status = self.candidate.status.subscribe();
        let granted = tokio::select! {
            biased;
            _ = status.wait_for(|status| status.is_stopped) => return Ok(None),
            granted = self.candidate.stand() => granted?,
        };
        let (term, begun) = (Term { guard: Arc::new(granted) }, Instant::now());
        self.candidate.status.send_modify(|status| {
            status.term = Some(term.clone());
            status.is_resigned = false;
        });
        let (path, data) = (self.candidate.lock.path(), self.candidate.data());
        tracing::info!(path, term = term.number(), data, "a term begins");
        Ok(Some(CampaignTurn { candidate: self.candidate, term, begun, is_told: false }))
    }
}

impl Drop for Campaign<'_> {
    fn drop(&mut self) {
        self.candidate.status.send_modify(|status| status.campaigns = false);
    }
}

/// A term, while its work runs. Dropping this ends it, whoever else has the term.
pub(crate) struct CampaignTurn<'a> {
    candidate: &'a Candidate,
    term: Term,
    begun: Instant,
    /// Its end was logged.
    is_told: bool,
}

impl CampaignTurn<'_> {
    pub(crate) fn term(&self) -> Term {
        self.term.clone()
    }

    /// Waits until the work has to stop.
    pub(crate) async fn ends(&self) -> End {
        let mut status = self.candidate.status.subscribe();
        tokio::select! {
            biased;
            _ = self.term.guard.lost() => End::Lost,
            _ = status.wait_for(|status| status.is_stopped || status.is_resigned) => End::Resigned,
            () = self.candidate.until_unhealthy() => End::Unhealthy,
        }
    }

    /// Whether the work was done in the term, and not after it.
    pub(crate) fn is_lost(&self) -> bool {
        self.term.guard.held().loss().is_some()
    }

    /// Gives the lock back when the work has been dropped, or has ended by itself: `why` is `None`. Returns when the next
    /// candidate leads, or can. A lock that was lost is not waited for.
    pub(crate) async fn end(mut self, why: Option<End>) -> Result<(), Error> {
        let loss = self.term.guard.held().loss();
        let lasted = self.tell(match (loss, why) {
            (Some(_), _) | (None, Some(End::Lost)) => "lost",
            (None, Some(End::Resigned)) => "resigned",
            (None, Some(End::Unhealthy)) => "unhealthy",
            (None, None) => "done",
        });
        match (loss, why) {
            (Some(loss), _) => {
                self.candidate.rests_after(lasted, Err(loss));
                return Ok(());
            }
            (None, Some(End::Resigned)) => {}
            (None, _) => self.candidate.rests_after(lasted, Ok(())),
        }
        match self.term.guard.held().give_back().await {
            Err(Error::Lost(_)) => Ok(()),
            answer => answer,
        }
    }

    /// Logs, once, why the term ends. Returns how long it lasted.
    fn tell(&mut self, why: &str) -> Duration {
        let lasted = self.begun.elapsed();
        if !std::mem::replace(&mut self.is_told, true) {
            let (path, data) = (self.candidate.lock.path(), self.candidate.data());
            tracing::info!(path, term = self.term.number(), data, ?lasted, why, "a term ends");
        }
        lasted
    }
}

impl Drop for CampaignTurn<'_> {
    fn drop(&mut self) {
        self.tell("dropped");
        // Dropping the future lets the removal go on in the background.
        drop(self.term.guard.held().leave());
        let mut ended = None;
        self.candidate.status.send_modify(|status| ended = status.term.take());
        drop(ended);
    }
}
