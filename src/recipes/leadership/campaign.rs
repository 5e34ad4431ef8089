//! A campaign and the term it may lead to: when to stand, when to step down, when to try again.

use std::future::{Future, IntoFuture, pending};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::call;
use crate::error::error::Error;
use crate::lock::hold::WriteGuard;
use crate::lock::rw_lock::RwLock;
use crate::recipes::leadership::pause::{self, Pauses};
use crate::recipes::leadership::term::Term;
use crate::session::request::{Ending, Loss};
use crate::sync::{Mutex, random, watch};
use crate::telemetry::log::tell;

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
    pub(crate) campaigns: bool,
    pub(crate) is_stopped: bool,
    /// From the grant until the node is gone.
    pub(crate) term: Option<Term>,
    /// The present term is to be given up.
    pub(crate) is_resigned: bool,
}

impl Status {
    /// Numbers do not tell two terms apart: servers that came back empty, or restored, give the same ones again.
    pub(crate) fn is_in(&self, term: &Term) -> bool {
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

/// A longer pause lasts so long.
const FOR_EVER: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

impl Candidate {
    pub(crate) fn new(lock: RwLock, health: Option<(Duration, Check)>, pause: Duration) -> Candidate {
        let (status, rest) = (watch::Sender::default(), Mutex::new((Pauses::new(pause), None)));
        Candidate { lock, health, status, rest, unhealthy: Mutex::default() }
    }

    /// Begins to campaign, unless this candidate does already.
    pub(crate) fn begin(self: &Arc<Self>) -> Result<Campaign, Error> {
        let is_first = self.status.send_if_modified(|status| !std::mem::replace(&mut status.campaigns, true));
        match is_first {
            true => Ok(Campaign { candidate: Arc::clone(self) }),
            false => Err(Error::invalid("a second campaign of one candidate; build a Leadership for each")),
        }
    }

    /// Waits until this candidate leads. Tries again for as long as that may help.
    async fn stand(&self) -> Result<WriteGuard, Error> {
        loop {
            self.rest().await;
            self.until_healthy(true).await;
            let granted = tokio::select! {
                biased;
                () = self.until_healthy(false) => continue,
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
        if let Some(until) = until.filter(|until| *until > Instant::now()) {
            self.lock.handle().coordinator.sleep(until.saturating_duration_since(Instant::now())).await;
        }
    }

    /// Makes the next campaign wait, if the term, or the try, was too short or was lost.
    fn rests_after(&self, lasted: Duration, ended: Result<(), Loss>) {
        // There is nothing to wait for: the next try says so.
        if matches!(ended, Err(Loss::SessionOver(Ending::Closed | Ending::AuthFailed | Ending::Forked))) {
            return;
        }
        let mut rest = self.rest.lock();
        let longest = rest.0.after(lasted, ended.is_ok());
        rest.1 = longest.map(|longest| Instant::now() + pause::drawn(longest.min(FOR_EVER), random()));
    }

    /// Waits until a health check says so.
    async fn until_healthy(&self, is_wanted: bool) {
        let Some((interval, check)) = &self.health else {
            match is_wanted {
                true => return,
                false => return pending().await,
            }
        };
        // The last check has just said the contrary.
        if !is_wanted {
            self.lock.handle().coordinator.sleep(*interval).await;
        }
        while self.is_healthy(*interval, check).await != is_wanted {
            self.lock.handle().coordinator.sleep(*interval).await;
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
            (None, false) => tell!(WARN, path, data, "the health check failed: no candidate until it succeeds"),
            (Some(since), true) => {
                tell!(INFO, path, data, unhealthy = ?since.elapsed(), "the health check succeeds: a candidate again");
            }
            _ => {}
        }
        is_healthy
    }

    fn data(&self) -> Option<&str> {
        self.lock.handle().label.as_deref()
    }
}

/// A campaign of a candidate. It ends when this is dropped.
pub(crate) struct Campaign {
    candidate: Arc<Candidate>,
}

impl Campaign {
    /// The next term; `None` once the candidate is stopped.
    pub(crate) fn next(&self) -> Task<Result<Option<CampaignTurn>, Error>> {
        let candidate = Arc::clone(&self.candidate);
        Box::pin(async move {
            let mut status = candidate.status.subscribe();
            let granted = tokio::select! {
                biased;
                _ = status.wait_for(|status| status.is_stopped) => return Ok(None),
                granted = candidate.stand() => granted?,
            };
            let (term, begun) = (Term { guard: Arc::new(granted) }, Instant::now());
            candidate.status.send_modify(|status| {
                status.term = Some(term.clone());
                status.is_resigned = false;
            });
            let (path, data) = (candidate.lock.path(), candidate.data());
            tell!(INFO, path, term = term.number(), data, "a term begins");
            drop(status);
            Ok(Some(CampaignTurn { candidate, term, begun, why: "dropped" }))
        })
    }
}

impl Drop for Campaign {
    fn drop(&mut self) {
        self.candidate.status.send_modify(|status| status.campaigns = false);
    }
}

/// A step of a campaign. It borrows nothing and names no type: so the compiler sees that the future of `lead` can be sent to another
/// thread, whatever the work borrows.
type Task<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A term, while its work runs. Dropping this ends it, also while others have the term.
pub(crate) struct CampaignTurn {
    candidate: Arc<Candidate>,
    term: Term,
    begun: Instant,
    /// Why it ends, for the log.
    why: &'static str,
}

impl CampaignTurn {
    pub(crate) fn term(&self) -> Term {
        self.term.clone()
    }

    /// Waits until the work has to stop.
    pub(crate) fn ends(&self) -> Task<End> {
        let (candidate, term) = (Arc::clone(&self.candidate), self.term());
        Box::pin(async move {
            let mut status = candidate.status.subscribe();
            tokio::select! {
                biased;
                _ = term.guard.lost() => End::Lost,
                _ = status.wait_for(|status| status.is_stopped || status.is_resigned) => End::Resigned,
                () = candidate.until_healthy(false) => End::Unhealthy,
            }
        })
    }

    /// Asks whether the term is over without our doing.
    pub(crate) fn loss(&self) -> impl Fn() -> Option<End> + use<> {
        let term = self.term();
        move || term.guard.held().loss().map(|_| End::Lost)
    }

    /// The work is over, or was dropped. Gives what it has given.
    pub(crate) async fn over<T>(self, ended: Result<T, End>) -> Result<Option<T>, Error> {
        self.end(ended.as_ref().err().copied()).await?;
        Ok(ended.ok())
    }

    /// Gives the lock back when the work has been dropped, or has ended by itself: `why` is `None`. Returns when the next
    /// candidate leads, or can. A lock that was lost is not waited for.
    fn end(self, why: Option<End>) -> Task<Result<(), Error>> {
        Box::pin(self.gives_back(why))
    }

    async fn gives_back(mut self, why: Option<End>) -> Result<(), Error> {
        let (loss, lasted) = (self.term.guard.held().loss(), self.begun.elapsed());
        self.why = match (loss, why) {
            (Some(_), _) | (None, Some(End::Lost)) => "lost",
            (None, Some(End::Resigned)) => "resigned",
            (None, Some(End::Unhealthy)) => "unhealthy",
            (None, None) => "done",
        };
        if let Some(loss) = loss {
            self.candidate.rests_after(lasted, Err(loss));
            return Ok(());
        }
        if why != Some(End::Resigned) {
            self.candidate.rests_after(lasted, Ok(()));
        }
        match self.term.guard.held().give_back().await {
            Err(Error::Lost(_)) => Ok(()),
            answer => answer,
        }
    }
}

impl Drop for CampaignTurn {
    fn drop(&mut self) {
        let (path, data, lasted, why) =
            (self.candidate.lock.path(), self.candidate.data(), self.begun.elapsed(), self.why);
        tell!(INFO, path, term = self.term.number(), data, ?lasted, why, "a term ends");
        // Dropping the future lets the removal go on in the background.
        drop(self.term.guard.held().leave());
        let mut ended = None;
        self.candidate.status.send_modify(|status| ended = status.term.take());
        drop(ended);
    }
}
