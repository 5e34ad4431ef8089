//! A candidate's campaign and terms: when the candidate queues up, when it resigns, and how long it pauses.

use std::future::pending;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::contend::contender::while_held;
use crate::error::error::Error;
use crate::lock::hold::{Hold, WriteGuard};
use crate::lock::rw_lock::RwLock;
use crate::session::request::{Loss, SessionEnd};
use crate::session::retry;
use crate::sync::{Mutex, random, watch};
use crate::telemetry::log::emit;

/// The user's health check. Its future returns whether this candidate is fit to lead.
pub(crate) type HealthCheck = Box<dyn Fn() -> Pin<Box<dyn Future<Output = bool> + Send>> + Send + Sync>;

/// The state of one candidate. All clones of its `Leadership` handle share this state.
pub(crate) struct Candidate {
    pub(crate) lock: RwLock,
    /// The interval between two health checks, and the check. `None` if the user set no check.
    pub(crate) health: Option<(Duration, HealthCheck)>,
    pub(crate) status: watch::Sender<CandidateStatus>,
    /// The backoff between campaigns, and the time at which the pause before the next campaign ends, if one is due.
    pub(crate) next_pause: Mutex<(Backoff, Option<Instant>)>,
    /// The time of the first health check that has failed since the last successful one. `None` while the candidate is healthy.
    pub(crate) unhealthy_since: Mutex<Option<Instant>>,
}

#[derive(Default)]
pub(crate) struct CandidateStatus {
    pub(crate) is_campaigning: bool,
    pub(crate) is_stopped: bool,
    /// The present term: set when the write lock is granted, and cleared when the [`RunningTerm`] is dropped.
    pub(crate) term: Option<Term>,
    /// Whether the present term must end because this candidate resigned.
    pub(crate) is_resigned: bool,
}

impl CandidateStatus {
    /// Returns whether `term` is the present term. Compares the guards, because term numbers can repeat: an ensemble
    /// that was emptied, or restored from a backup, gives the same numbers again.
    pub(crate) fn is_present_term(&self, term: &Term) -> bool {
        self.term.as_ref().is_some_and(|it| Arc::ptr_eq(&it.guard, &term.guard))
    }
}

/// The reason why a term ends before its work has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TermEndReason {
    Lost,
    Resigned,
    Unhealthy,
}

/// The maximum length of a pause: 100 years. With a much longer pause, `Instant::now() + pause` could overflow and panic.
const MAX_PAUSE: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

impl Candidate {
    pub(crate) fn new(lock: RwLock, health: Option<(Duration, HealthCheck)>, pause: Duration) -> Candidate {
        let (status, next_pause) = (watch::Sender::default(), Mutex::new((Backoff::new(pause), None)));
        Candidate { lock, health, status, next_pause, unhealthy_since: Mutex::default() }
    }

    /// Begins a campaign. Fails if this candidate campaigns already.
    pub(crate) fn begin_campaign(self: &Arc<Self>) -> Result<Campaign, Error> {
        let is_first = self.status.send_if_modified(|status| !std::mem::replace(&mut status.is_campaigning, true));
        match is_first {
            true => Ok(Campaign { candidate: Arc::clone(self) }),
            false => Err(Error::invalid("this candidate campaigns already; build a Leadership for each campaign")),
        }
    }

    /// Waits until this candidate leads, and returns the guard of the write lock. If an attempt fails with an error
    /// that a retry can fix, tries again after a pause. While the candidate is unhealthy, it does not queue up.
    async fn wait_to_lead(&self) -> Result<WriteGuard, Error> {
        let mut has_warned = false;
        loop {
            self.wait_for_pause().await;
            self.until_health_is(true).await;
            let granted = tokio::select! {
                biased;
                () = self.until_health_is(false) => continue,
                granted = self.lock.write().into_future() => granted,
            };
            match granted {
                Err(Error::Lost(loss) | Error::Evicted(loss)) => self.schedule_pause(Duration::ZERO, Err(loss)),
                Err(Error::Unreachable(_) | Error::OutcomeUnknown { .. }) => {
                    self.schedule_pause(Duration::ZERO, Ok(()))
                }
                Err(error @ Error::Diverged { .. }) => {
                    self.schedule_pause(Duration::ZERO, Ok(()));
                    if !std::mem::replace(&mut has_warned, true) {
                        emit!(WARN, path = self.lock.path(), %error, "cannot campaign, and tries again");
                    }
                }
                answer => return answer,
            }
        }
    }

    async fn wait_for_pause(&self) {
        let until = self.next_pause.lock().1;
        if let Some(until) = until.filter(|until| *until > Instant::now()) {
            self.lock.config.coordinator.sleep(until.saturating_duration_since(Instant::now())).await;
        }
    }

    /// Schedules a pause before the next campaign, if the last term was short or was lost, or if the campaign failed.
    /// Schedules none after a loss that no retry can fix. `lasted` is the length of the term, or zero if the campaign led
    /// to no term. `ended` has the loss, if the lock was lost.
    fn schedule_pause(&self, lasted: Duration, ended: Result<(), Loss>) {
        // After a loss for one of these reasons, the next campaign fails with an error that no retry can fix. So no
        // pause is needed.
        if matches!(ended, Err(Loss::SessionOver(SessionEnd::Closed | SessionEnd::AuthFailed | SessionEnd::Forked))) {
            return;
        }
        let mut next_pause = self.next_pause.lock();
        let longest = next_pause.0.next_max_pause(lasted, ended.is_ok());
        next_pause.1 = longest.map(|longest| Instant::now() + random_pause(longest.min(MAX_PAUSE), random()));
    }

    /// Runs the health check until its result is `is_wanted`. Without a health check, the candidate always counts as
    /// healthy.
    async fn until_health_is(&self, is_wanted: bool) {
        let Some((interval, check)) = &self.health else {
            match is_wanted {
                true => return,
                false => return pending().await,
            }
        };
        // A caller that waits for the candidate to become unhealthy has just seen a successful check. So the next check
        // comes after one interval.
        if !is_wanted {
            self.lock.config.coordinator.sleep(*interval).await;
        }
        while self.run_health_check(*interval, check).await != is_wanted {
            self.lock.config.coordinator.sleep(*interval).await;
        }
    }

    /// Runs the health check, and logs a change of the result. A check that takes longer than `interval` counts as
    /// failed.
    async fn run_health_check(&self, interval: Duration, check: &HealthCheck) -> bool {
        let is_healthy = retry::run_until(self.lock.config.coordinator.sleep(interval), check()).await.unwrap_or(false);
        let mut unhealthy_since = self.unhealthy_since.lock();
        let before = *unhealthy_since;
        *unhealthy_since = (!is_healthy).then(|| before.unwrap_or_else(Instant::now));
        drop(unhealthy_since);
        let (path, data) = (self.lock.path(), self.own_data());
        match (before, is_healthy) {
            (None, false) => emit!(WARN, path, data, "the health check failed: not campaigning until it succeeds"),
            (Some(since), true) => {
                emit!(INFO, path, data, unhealthy = ?since.elapsed(), "the health check succeeds: campaigning again");
            }
            _ => {}
        }
        is_healthy
    }

    fn own_data(&self) -> Option<String> {
        self.lock.config.label.clone()
    }
}

/// A running campaign, which ends when this value is dropped.
pub(crate) struct Campaign {
    candidate: Arc<Candidate>,
}

impl Campaign {
    /// Waits for the next term. Returns `None` once the candidate is stopped.
    pub(crate) fn next_term(&self) -> BoxedFuture<Result<Option<RunningTerm>, Error>> {
        let candidate = Arc::clone(&self.candidate);
        Box::pin(async move {
            let mut status = candidate.status.subscribe();
            let granted = tokio::select! {
                biased;
                _ = status.wait_for(|status| status.is_stopped) => return Ok(None),
                granted = candidate.wait_to_lead() => granted?,
            };
            let (term, began) = (Term { guard: Arc::new(granted) }, Instant::now());
            candidate.status.send_modify(|status| {
                status.term = Some(term.clone());
                status.is_resigned = false;
            });
            let (path, data) = (candidate.lock.path(), candidate.own_data());
            emit!(INFO, path, term = term.number(), data, "a term begins");
            drop(status);
            Ok(Some(RunningTerm { candidate, term, began, why: "dropped" }))
        })
    }
}

impl Drop for Campaign {
    fn drop(&mut self) {
        self.candidate.status.send_modify(|status| status.is_campaigning = false);
    }
}

/// A boxed future of one step of a campaign. The type `dyn Future + Send` states that the step is `Send`. Without the
/// box, the compiler would have to prove that the future of `lead` is `Send`, and would fail if the caller's work
/// borrows.
type BoxedFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A term while its work runs. The term ends at the latest when this value is dropped, even if clones of the [`Term`]
/// exist.
pub(crate) struct RunningTerm {
    candidate: Arc<Candidate>,
    pub(crate) term: Term,
    began: Instant,
    /// The reason of the term's end, for the log.
    why: &'static str,
}

impl RunningTerm {
    /// Waits until the work must stop: the lock is lost, the candidate has resigned or is stopped, or its health check
    /// fails.
    fn until_term_end(&self) -> BoxedFuture<TermEndReason> {
        let (candidate, term) = (Arc::clone(&self.candidate), self.term.clone());
        Box::pin(async move {
            let mut status = candidate.status.subscribe();
            tokio::select! {
                biased;
                _ = term.guard.lost() => TermEndReason::Lost,
                _ = status.wait_for(|status| status.is_stopped || status.is_resigned) => TermEndReason::Resigned,
                () = candidate.until_health_is(false) => TermEndReason::Unhealthy,
            }
        })
    }

    /// Runs the work of the term, and drops the work if the term ends first. Then gives the lock back. Returns the
    /// output of the work, or `None` if the term ended first. If the lock cannot be given back, returns that error
    /// instead.
    pub(crate) async fn run<F: Future>(self, work: F) -> Result<Option<F::Output>, Error> {
        let term = self.term.clone();
        let loss = || term.guard.held.detect_loss().map(|_| TermEndReason::Lost);
        // `while_held` drops the work before it returns. So the work no longer runs when the lock is given back.
        let ended = while_held(loss, self.until_term_end(), work).await;
        let given_back: BoxedFuture<Result<(), Error>> = Box::pin(self.give_lock_back(ended.as_ref().err().copied()));
        given_back.await?;
        Ok(ended.ok())
    }

    /// Gives the lock back, and waits until its node is gone. Does not wait if the lock is lost. Also schedules the
    /// pause before the next campaign. `why` is the reason why the work was dropped, or `None` if the work has ended by
    /// itself.
    async fn give_lock_back(mut self, why: Option<TermEndReason>) -> Result<(), Error> {
        let (loss, lasted) = (self.term.guard.held.detect_loss(), self.began.elapsed());
        self.why = match (loss, why) {
            (Some(_), _) | (None, Some(TermEndReason::Lost)) => "lost",
            (None, Some(TermEndReason::Resigned)) => "resigned",
            (None, Some(TermEndReason::Unhealthy)) => "unhealthy",
            (None, None) => "done",
        };
        if let Some(loss) = loss {
            self.candidate.schedule_pause(lasted, Err(loss));
            return Ok(());
        }
        if why != Some(TermEndReason::Resigned) {
            self.candidate.schedule_pause(lasted, Ok(()));
        }
        match self.term.guard.held.give_back().await {
            Err(Error::Lost(_)) => Ok(()),
            answer => answer,
        }
    }
}

impl Drop for RunningTerm {
    fn drop(&mut self) {
        let (path, data, lasted, why) =
            (self.candidate.lock.path(), self.candidate.own_data(), self.began.elapsed(), self.why);
        emit!(INFO, path, term = self.term.number(), data, ?lasted, why, "a term ends");
        // `drop` cannot wait for the reply to the removal of the node, so the reply is dropped. The removal goes on in
        // the background.
        drop(self.term.guard.held.leave().1);
        let mut ended = None;
        self.candidate.status.send_modify(|status| ended = status.term.take());
        drop(ended);
    }
}

/// One term of a leader. [`Leadership::lead`](crate::Leadership::lead) passes the term to the work.
///
/// Derefs to [`Hold`], with everything a holder can do. A term is cheap to clone for the tasks that the work starts. A
/// clone does not prolong the term. When the term ends, [`is_leader`](Self::is_leader) is false in every clone, and
/// transactions are refused.
#[derive(Clone, Debug)]
pub struct Term {
    pub(crate) guard: Arc<WriteGuard>,
}

impl Term {
    /// Returns the number of the term, which is the [fencing token](Hold::fencing_token) of the grant. The number is
    /// higher than that of every earlier term, of any candidate.
    ///
    /// Send the number with every write to another system, and let that system refuse a number lower than the highest that
    /// it has seen. Then a late write of an earlier leader does no harm.
    pub fn number(&self) -> i64 {
        self.fencing_token()
    }

    /// Returns whether the term still lasts. The method sends nothing. The answer has already turned `false` when
    /// another candidate can lead, with one exception: see [`Hold::is_held`].
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

const MAX_DOUBLINGS: u32 = 5;

/// The backoff between campaigns: the pause doubles with each failed campaign or short term in a row, up to 32 times
/// its first length.
pub(crate) struct Backoff {
    pause: Duration,
    short: u32,
}

impl Backoff {
    pub(crate) fn new(pause: Duration) -> Backoff {
        Backoff { pause, short: 0 }
    }

    /// Returns the maximum of the random pause before the next campaign. `lasted` is the length of the last term, or
    /// zero if the campaign failed. `without_loss` is `true` if the term or campaign ended without a loss of the lock.
    /// Returns `None` if no pause is needed: after a term that was longer than this maximum and was not lost.
    pub(crate) fn next_max_pause(&mut self, lasted: Duration, without_loss: bool) -> Option<Duration> {
        let longest = self.pause.saturating_mul(1 << self.short);
        if lasted > longest {
            self.short = 0;
            return (!without_loss).then_some(self.pause);
        }
        self.short = (self.short + 1).min(MAX_DOUBLINGS);
        Some(longest)
    }
}

/// Returns a random time between half of `longest` and `longest`. Without the jitter, candidates that lost their
/// connections together would campaign again at the same time.
pub(crate) fn random_pause(longest: Duration, random: u64) -> Duration {
    let half = longest / 2;
    half + half.mul_f64((random % 1_000) as f64 / 1_000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_pause_doubles_to_32_times_until_a_long_term() {
        let mut pauses = Backoff::new(SECOND);
        let longest: Vec<_> = (0..8).map(|_| pauses.next_max_pause(Duration::ZERO, false).unwrap().as_secs()).collect();
        assert_eq!(longest, [1, 2, 4, 8, 16, 32, 32, 32]);
        assert_eq!(
            pauses.next_max_pause(32 * SECOND, false),
            Some(32 * SECOND),
            "the term is no longer than the last pause"
        );
        assert_eq!(pauses.next_max_pause(33 * SECOND, false), Some(SECOND));
        assert_eq!(pauses.next_max_pause(SECOND / 2, false), Some(SECOND));
    }

    #[test]
    fn only_a_short_term_without_a_loss_pauses() {
        let mut pauses = Backoff::new(SECOND);
        assert_eq!(pauses.next_max_pause(2 * SECOND, true), None);
        assert_eq!(pauses.next_max_pause(SECOND, true), Some(SECOND));
        assert_eq!(pauses.next_max_pause(2 * SECOND, true), Some(2 * SECOND));
        assert_eq!(pauses.next_max_pause(5 * SECOND, true), None);
        assert_eq!(Backoff::new(Duration::ZERO).next_max_pause(Duration::ZERO, false), Some(Duration::ZERO));
        assert_eq!(Backoff::new(Duration::MAX).next_max_pause(SECOND, false), Some(Duration::MAX));
    }

    #[test]
    fn a_pause_is_random_above_half_of_the_longest() {
        let pauses: Vec<_> = [0, 500, 999, 1_000, u64::MAX].map(|random| random_pause(SECOND, random)).to_vec();
        assert!(pauses.iter().all(|it| (SECOND / 2..=SECOND).contains(it)), "{pauses:?}");
        assert!(pauses[0] < pauses[1] && pauses[1] < pauses[2] && pauses[0] == pauses[3]);
    }
}
