//! Until when a session is surely alive; knows no locks.
//!
//! The ensemble may give a session up one session timeout T after the last packet it got from it, and nobody tells
//! the client in time: not the connection's state, not a read of one's own node (both stay green on a server that is
//! cut off from its leader). So a session counts as alive only until two thirds of T after the *sending* of the
//! newest request that a quorum answered.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::books::Books;
use crate::coordinator::Ending;
use crate::deadlock::Holds;
use crate::listing::Listings;
use crate::tenure::Roll;

/// A moment on a session's clock.
pub type Moment = Duration;

type Clock = Box<dyn Fn() -> Moment + Send + Sync>;

/// The library's own knowledge of how long its session lives, and what is kept under it.
pub struct Lease {
    timeout: Duration,
    clock: Clock,
    state: Mutex<State>,
    roll: Roll,
    listings: Listings,
    holds: Holds,
    books: Books,
    is_signal_refused: AtomicBool,
}

#[derive(Debug)]
struct State {
    /// `None` while every moment counts as acknowledged.
    end: Option<Moment>,
    /// When the newest request was sent that a quorum answered; unlike `end`, kept when the lease runs out.
    newest: Moment,
    /// Counts how often the lease ran out, so that what was held before stays lost after a renewal.
    epoch: u64,
    over: Option<Ending>,
    connected: bool,
}

impl Lease {
    /// A lease for a session with this timeout, on a clock that also runs while the machine is suspended.
    ///
    /// It has run out until the first [`Lease::acknowledged`].
    pub fn new(timeout: Duration) -> Lease {
        Lease::with_clock(timeout, Box::new(since_boot))
    }

    /// A lease on a clock of the backend's own.
    pub fn with_clock(timeout: Duration, clock: Box<dyn Fn() -> Moment + Send + Sync>) -> Lease {
        let state = State { end: Some(Duration::ZERO), newest: Duration::ZERO, epoch: 0, over: None, connected: true };
        Lease {
            timeout,
            clock,
            state: Mutex::new(state),
            roll: Roll::default(),
            listings: Listings::default(),
            holds: Holds::default(),
            books: Books::default(),
            is_signal_refused: AtomicBool::new(false),
        }
    }

    /// Now, on this lease's clock: take it just before a request is sent.
    pub fn now(&self) -> Moment {
        (self.clock)()
    }

    /// A quorum answered a request that was sent at `sent`.
    pub fn acknowledged(&self, sent: Moment) {
        let now = self.now();
        let mut state = self.state();
        let lapsed = state.lapse(now);
        if let Some(end) = &mut state.end {
            *end = (*end).max(sent + self.term());
        }
        state.newest = state.newest.max(sent);
        drop(state);
        if lapsed {
            self.roll.look_at_all(self);
            self.roll.tell_all();
        }
    }

    /// Counts every moment as acknowledged from now on, or no longer: for backends that need no heartbeat.
    pub fn steady(&self, steady: bool) {
        let now = self.now();
        let mut state = self.state();
        state.lapse(now);
        state.end = if steady { None } else { Some(now + self.term()) };
        state.newest = now;
        drop(state);
        self.roll.tell_all();
    }

    /// The connection was lost or is back. This changes nothing about the lease itself: it only makes it
    /// [suspect](crate::HoldState::Suspect).
    pub fn connected(&self, connected: bool) {
        let was = std::mem::replace(&mut self.state().connected, connected);
        if was != connected {
            self.roll.link_changed(self, connected);
        }
        if was && !connected {
            self.books.disconnected();
        }
        self.roll.tell_all();
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.state().connected
    }

    /// The session is over; the first reason stays.
    pub fn end(&self, why: Ending) {
        self.state().over.get_or_insert(why);
        self.roll.session_is_over(self);
    }

    /// Why the session is over, if it is.
    pub fn over(&self) -> Option<Ending> {
        self.state().over
    }

    /// How long the session is surely still alive; `None` when that is not known any more.
    pub fn remaining(&self) -> Option<Duration> {
        self.validity().map(|(left, _)| left)
    }

    /// For how long the ensemble surely keeps the session: until one session timeout after the sending of the newest
    /// request that a quorum answered. Zero once that is over, or the session is.
    ///
    /// Longer than [`remaining`](Lease::remaining): what is between the two is there to stop work in.
    pub fn session_left(&self) -> Duration {
        let now = self.now();
        let state = self.state();
        match (state.over, state.end) {
            (Some(_), _) => Duration::ZERO,
            (None, None) => Duration::MAX,
            (None, Some(_)) => (state.newest + self.timeout).saturating_sub(now),
        }
    }

    /// How long until the next heartbeat is due: a quarter of the session timeout after the newest quorum answer
    /// was asked for.
    pub(crate) fn until_heartbeat(&self) -> Duration {
        let not_due_below = self.term() - self.timeout / 4;
        self.remaining().map_or(Duration::ZERO, |left| left.saturating_sub(not_due_below))
    }

    /// Whether the backend vouches for every moment, so that no heartbeat is needed.
    pub(crate) fn is_steady(&self) -> bool {
        self.state().end.is_none()
    }

    /// The current uninterrupted stretch of validity, if the lease is valid now.
    pub(crate) fn stretch(&self) -> Option<u64> {
        self.validity().map(|(_, stretch)| stretch)
    }

    /// Whether the lease is valid and has been ever since that stretch began.
    pub(crate) fn covers(&self, stretch: u64) -> bool {
        self.stretch() == Some(stretch)
    }

    pub(crate) fn roll(&self) -> &Roll {
        &self.roll
    }

    pub(crate) fn listings(&self) -> &Listings {
        &self.listings
    }

    pub(crate) fn books(&self) -> &Books {
        &self.books
    }

    pub(crate) fn holds(&self) -> &Holds {
        &self.holds
    }

    /// The ensemble does not let this session write to its own nodes before it deletes them.
    pub(crate) fn signal_refused(&self) {
        self.is_signal_refused.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_signal_refused(&self) -> bool {
        self.is_signal_refused.load(Ordering::Relaxed)
    }

    fn validity(&self) -> Option<(Duration, u64)> {
        let now = self.now();
        let mut state = self.state();
        state.lapse(now);
        let left = match (state.over, state.end) {
            (Some(_), _) => None,
            (None, None) => Some(Duration::MAX),
            (None, Some(end)) => end.checked_sub(now).filter(|left| !left.is_zero()),
        };
        left.map(|left| (left, state.epoch))
    }

    fn term(&self) -> Duration {
        self.timeout * 2 / 3
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// A lease that has run out stays so for everything that was held under it, even if a late answer renews it.
    ///
    /// Says whether it has run out just now.
    fn lapse(&mut self, now: Moment) -> bool {
        let lapsed = self.end.is_some_and(|end| !end.is_zero() && end <= now);
        if lapsed {
            self.epoch += 1;
            self.end = Some(Duration::ZERO);
        }
        lapsed
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease").field("timeout", &self.timeout).field("remaining", &self.remaining()).finish()
    }
}

/// `Instant` stands still while the machine is suspended, on Linux; the ensemble's clock does not.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn since_boot() -> Moment {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0))
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn since_boot() -> Moment {
    use std::sync::OnceLock;
    use std::time::Instant;
    static START: OnceLock<Instant> = OnceLock::new();
    // Never zero, which stands for a lease that ran out.
    START.get_or_init(Instant::now).elapsed() + Duration::from_nanos(1)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;

    use super::*;

    /// A lease of 6 s session timeout, so of 4 s, and its clock in milliseconds.
    fn lease() -> (Lease, Arc<AtomicU64>) {
        let clock = Arc::new(AtomicU64::new(100_000));
        let hands = Arc::clone(&clock);
        let read = move || Duration::from_millis(hands.load(Ordering::SeqCst));
        (Lease::with_clock(Duration::from_secs(6), Box::new(read)), clock)
    }

    #[test]
    fn it_has_run_out_until_a_quorum_answers() {
        let (lease, _) = lease();
        assert_eq!(lease.remaining(), None);
        lease.acknowledged(lease.now());
        assert_eq!(lease.remaining(), Some(Duration::from_secs(4)));
    }

    #[test]
    fn it_counts_from_the_sending_not_from_the_answer() {
        let (lease, clock) = lease();
        let sent = lease.now();
        clock.fetch_add(3_000, Ordering::SeqCst);
        lease.acknowledged(sent);
        assert_eq!(lease.remaining(), Some(Duration::from_secs(1)));
    }

    #[test]
    fn an_answer_older_than_the_newest_does_not_shorten_it() {
        let (lease, clock) = lease();
        let old = lease.now();
        clock.fetch_add(1_000, Ordering::SeqCst);
        lease.acknowledged(lease.now());
        lease.acknowledged(old);
        assert_eq!(lease.remaining(), Some(Duration::from_secs(4)));
    }

    #[test]
    fn what_was_held_when_it_ran_out_stays_lost_after_a_renewal() {
        let (lease, clock) = lease();
        lease.acknowledged(lease.now());
        let stretch = lease.stretch().unwrap();
        assert!(lease.covers(stretch));
        clock.fetch_add(4_000, Ordering::SeqCst);
        lease.acknowledged(lease.now());
        assert!(lease.remaining().is_some());
        assert!(!lease.covers(stretch));
    }

    #[test]
    fn renewals_in_time_are_one_stretch() {
        let (lease, clock) = lease();
        lease.acknowledged(lease.now());
        let stretch = lease.stretch().unwrap();
        for _ in 0..5 {
            clock.fetch_add(3_999, Ordering::SeqCst);
            lease.acknowledged(lease.now());
        }
        assert!(lease.covers(stretch));
    }

    #[test]
    fn nothing_remains_of_an_ended_session() {
        let (lease, _) = lease();
        lease.acknowledged(lease.now());
        lease.end(Ending::Expired);
        lease.end(Ending::Closed);
        lease.acknowledged(lease.now());
        assert_eq!((lease.remaining(), lease.over()), (None, Some(Ending::Expired)));
    }
}
