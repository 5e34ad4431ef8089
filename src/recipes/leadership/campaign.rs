//! A campaign and the term it may lead to: when to stand, when to step down, when to try again.

use std::fmt;
use std::future::{Future, IntoFuture, pending};
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::call;
use crate::error::error::Error;
use crate::lock::hold::{Hold, WriteGuard};
use crate::lock::rw_lock::RwLock;
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
    pub(crate) fn begin_campaign(self: &Arc<Self>) -> Result<Campaign, Error> {
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
                Err(Error::Lost(loss) | Error::Evicted(loss)) => self.schedule_rest(Duration::ZERO, Err(loss)),
                Err(Error::Unreachable(_) | Error::OutcomeUnknown { .. }) => self.schedule_rest(Duration::ZERO, Ok(())),
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
    fn schedule_rest(&self, lasted: Duration, ended: Result<(), Loss>) {
        // There is nothing to wait for: the next try says so.
        if matches!(ended, Err(Loss::SessionOver(Ending::Closed | Ending::AuthFailed | Ending::Forked))) {
            return;
        }
        let mut rest = self.rest.lock();
        let longest = rest.0.after(lasted, ended.is_ok());
        rest.1 = longest.map(|longest| Instant::now() + random_pause(longest.min(FOR_EVER), random()));
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

    fn data(&self) -> Option<String> {
        self.lock.handle().label.clone()
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
    pub(crate) fn wait_for_end(&self) -> Task<End> {
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
        move || term.guard.held().find_loss().map(|_| End::Lost)
    }

    /// The work is over, or was dropped. Gives what it has given.
    pub(crate) async fn finish<T>(self, ended: Result<T, End>) -> Result<Option<T>, Error> {
        let given_back: Task<Result<(), Error>> = Box::pin(self.give_back(ended.as_ref().err().copied()));
        given_back.await?;
        Ok(ended.ok())
    }

    /// Gives the lock back when the work has been dropped, or has ended by itself: `why` is `None`. Returns when the next
    /// candidate leads, or can. A lock that was lost is not waited for.
    async fn give_back(mut self, why: Option<End>) -> Result<(), Error> {
        let (loss, lasted) = (self.term.guard.held().find_loss(), self.begun.elapsed());
        self.why = match (loss, why) {
            (Some(_), _) | (None, Some(End::Lost)) => "lost",
            (None, Some(End::Resigned)) => "resigned",
            (None, Some(End::Unhealthy)) => "unhealthy",
            (None, None) => "done",
        };
        if let Some(loss) = loss {
            self.candidate.schedule_rest(lasted, Err(loss));
            return Ok(());
        }
        if why != Some(End::Resigned) {
            self.candidate.schedule_rest(lasted, Ok(()));
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

/// One term of a leader. [`Leadership::lead`](crate::Leadership::lead) gives it to the work.
///
/// It derefs to [`Hold`], with all that holding means. It is cheap to clone, for the tasks that the work starts. A clone does
/// not make the term last: when the term ends, every clone [says so](Self::is_leader), and a transaction of it is refused.
#[derive(Clone)]
pub struct Term {
    pub(crate) guard: Arc<WriteGuard>,
}

impl Term {
    /// The number of the term: higher than that of every term before, of whichever candidate. It is the
    /// [fencing token](Hold::fencing_token) of the grant.
    ///
    /// Send it along with every write to another system, and have that system refuse a number lower than the highest it
    /// has seen. Then a leader that was stopped, or whose packets were late, does no harm.
    pub fn number(&self) -> i64 {
        self.fencing_token()
    }

    /// Whether the term still lasts. The last moment of `true` lies before another candidate leads: see
    /// [`Hold::is_held`], also for the one exception. Sends nothing.
    pub fn is_leader(&self) -> bool {
        self.is_held()
    }
}

impl Deref for Term {
    type Target = Hold;

    fn deref(&self) -> &Hold {
        &self.guard
    }
}

impl fmt::Debug for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Term").field("number", &self.number()).field("is_leader", &self.is_leader()).finish()
    }
}

/// The pause is doubled at most so often.
const DOUBLINGS: u32 = 5;

/// How many terms in a row were short, or were none at all, and so how long the next pause is.
pub(crate) struct Pauses {
    pause: Duration,
    short: u32,
}

impl Pauses {
    pub(crate) fn new(pause: Duration) -> Pauses {
        Pauses { pause, short: 0 }
    }

    /// The longest pause before the next campaign, after a term that lasted so long, or zero if it came to none. `None` if
    /// there is none to be made: the term lasted for long, and its end was wanted.
    pub(crate) fn after(&mut self, lasted: Duration, is_wanted: bool) -> Option<Duration> {
        let longest = self.pause.saturating_mul(1 << self.short);
        if lasted > longest {
            self.short = 0;
            return (!is_wanted).then_some(self.pause);
        }
        self.short = (self.short + 1).min(DOUBLINGS);
        Some(longest)
    }
}

/// A time between half of `longest` and all of it, by a number drawn at random: candidates that lost together must not
/// come back together.
pub(crate) fn random_pause(longest: Duration, random: u64) -> Duration {
    let half = longest / 2;
    half + half.mul_f64((random % 1_000) as f64 / 1_000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_pause_doubles_up_to_32_times_and_begins_anew_after_a_long_term() {
        let mut pauses = Pauses::new(SECOND);
        let longest: Vec<_> = (0..8).map(|_| pauses.after(Duration::ZERO, false).unwrap().as_secs()).collect();
        assert_eq!(longest, [1, 2, 4, 8, 16, 32, 32, 32]);
        assert_eq!(pauses.after(32 * SECOND, false), Some(32 * SECOND), "no longer than the pause before it");
        assert_eq!(pauses.after(33 * SECOND, false), Some(SECOND));
        assert_eq!(pauses.after(SECOND / 2, false), Some(SECOND));
    }

    #[test]
    fn a_long_term_whose_end_was_wanted_is_followed_by_no_pause_and_a_short_one_is() {
        let mut pauses = Pauses::new(SECOND);
        assert_eq!(pauses.after(2 * SECOND, true), None);
        assert_eq!(pauses.after(SECOND, true), Some(SECOND));
        assert_eq!(pauses.after(2 * SECOND, true), Some(2 * SECOND));
        assert_eq!(pauses.after(5 * SECOND, true), None);
        assert_eq!(Pauses::new(Duration::ZERO).after(Duration::ZERO, false), Some(Duration::ZERO));
        assert_eq!(Pauses::new(Duration::MAX).after(SECOND, false), Some(Duration::MAX));
    }

    #[test]
    fn what_is_drawn_lies_between_half_of_the_longest_and_all_of_it() {
        let drawn: Vec<_> = [0, 500, 999, 1_000, u64::MAX].map(|random| random_pause(SECOND, random)).to_vec();
        assert!(drawn.iter().all(|it| (SECOND / 2..=SECOND).contains(it)), "{drawn:?}");
        assert!(drawn[0] < drawn[1] && drawn[1] < drawn[2] && drawn[0] == drawn[3]);
    }
}
