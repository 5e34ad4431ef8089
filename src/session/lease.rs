//! Until when a session is surely alive, computed from the moments of requests and answers.
//!
//! The ensemble may give a session up one session timeout T after its leader last heard of it. Nothing shows the client
//! this in time: neither the state of the connection nor a read of its own node. Both look healthy on a server that is
//! cut off from its leader.
//!
//! A follower notes which sessions send it requests. It reports them to the leader in its answer to the leader's ping,
//! every half tick. The leader hears of a session only by these reports, and by a handshake that creates or resumes the
//! session. It does not hear of a session by the requests that a follower forwards. So:
//! - A *touch* is the sending of a request that was answered.
//! - A touch *counts* once a quorum acknowledges an operation that was sent a [settling time](Lease::with_tick_time)
//!   after the touch's answer came, on the same connection. In between, the follower has answered a ping, and its
//!   messages reach the leader in order.
//! - The sending of the handshake that created the session counts once it is answered, because a quorum has created the
//!   session. A handshake that resumed it is answered by the leader alone, which may have been deposed without knowing it:
//!   the others have elected another leader, for which the session began anew before that handshake. So that handshake
//!   counts once a quorum acknowledges an operation that was sent on the same connection.
//! - The lease ends one T after the newest touch that counts, less a margin for clocks and for holders, which must
//!   stop.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use crate::session::request::Ending;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};

/// A moment on a session's clock.
pub type Moment = Duration;

type Clock = Box<dyn Fn() -> Moment + Send + Sync>;

/// The longest tick that is assumed if the backend gives none: ZooKeeper's own default.
const LONGEST_TICK: Duration = Duration::from_secs(3);

/// An allowance for the delay of a ping between two servers.
const LEAST_SLACK: Duration = Duration::from_millis(100);

const LEAST_MARGIN: Duration = Duration::from_millis(300);

/// How many heartbeats are sent within one session timeout, at most.
const MOST_HEARTBEATS: u32 = 20;

/// How many touches that do not count yet are kept apart within one session timeout.
const TOUCHES: u32 = 64;

/// What the library knows of how long its session lives.
///
/// A backend reports what happens through the session's [`Upkeep`](crate::coordinator::Upkeep).
pub struct Lease {
    timeout: Duration,
    settling: Duration,
    margin: Duration,
    clock: Clock,
    state: Mutex<LeaseState>,
    /// What the state says, for [`Lease::covered_at`]: a kept node is checked millions of times a second.
    valid_until: AtomicU64,
    valid_in: AtomicU64,
}

#[derive(Default)]
struct LeaseState {
    /// `None` while every moment counts.
    end: Option<Moment>,
    /// The newest touch that counts; unlike `end`, kept when the lease runs out.
    counted: Moment,
    /// Touches of this connection that do not count yet, the oldest first.
    touches: VecDeque<Touch>,
    /// Since when requests are sent on this connection.
    connected_since: Moment,
    /// When the newest request was sent that was answered on this connection or, while there is none, on the previous
    /// connection.
    answered: Moment,
    /// How long the last answer took.
    lateness: Duration,
    /// Counts how often the lease ran out, so that a hold from before stays lost after a renewal.
    epoch: u64,
    /// Why it is over, and when that was known.
    over: Option<(Ending, Moment)>,
    connected: bool,
    /// The handshake of this connection, as long as it does not count.
    handshake: Option<Handshake>,
}

#[derive(Clone, Copy)]
struct Handshake {
    /// It was sent at this moment or later.
    sent: Moment,
    /// It is known to have resumed this session and no other.
    is_ours: bool,
}

#[derive(Clone, Copy)]
struct Touch {
    sent: Moment,
    answered: Moment,
}

impl Lease {
    /// A lease for a session with this timeout, on a clock that (on Linux) also runs while the machine is suspended.
    ///
    /// It counts as run out until [`Upkeep::began`](crate::coordinator::Upkeep::began).
    pub fn new(timeout: Duration) -> Lease {
        Lease::with_clock(timeout, Box::new(since_boot))
    }

    /// A lease on a clock of the backend's own.
    pub fn with_clock(timeout: Duration, clock: Box<dyn Fn() -> Moment + Send + Sync>) -> Lease {
        let state = LeaseState { end: Some(Duration::ZERO), connected: true, ..LeaseState::default() };
        let lease = Lease {
            timeout,
            settling: Duration::ZERO,
            margin: default_margin(timeout),
            clock,
            state: Mutex::new(state),
            valid_until: AtomicU64::new(0),
            valid_in: AtomicU64::new(0),
        };
        lease.with_tick_time(LONGEST_TICK.min(timeout / 2))
    }

    /// What the servers call `tickTime`; by default the smaller of 3 s and half the session timeout.
    ///
    /// A touch counts by an operation that was sent half a tick, plus a slack of an eighth of a tick (at least 100 ms),
    /// after the touch's answer.
    pub fn with_tick_time(mut self, tick: Duration) -> Lease {
        self.settling = tick / 2 + (tick / 8).max(LEAST_SLACK);
        self
    }

    /// How long the lease ends before the ensemble may give the session up. By default a sixth of the session timeout,
    /// but at least 300 ms, and at most a quarter of the session timeout.
    pub fn with_stop_margin(mut self, margin: Duration) -> Lease {
        self.margin = margin;
        self
    }

    /// How long the lease ends before the ensemble may give the session up.
    pub(crate) fn margin(&self) -> Duration {
        self.margin
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Now, on this lease's clock: take it just before a request is sent.
    pub fn now(&self) -> Moment {
        (self.clock)()
    }

    /// The ensemble created the session, and was asked to at this moment or later. Returns whether the lease has run
    /// out just now.
    pub(super) fn began(&self, asked: Moment) -> bool {
        self.state.lock().answered = asked;
        self.counts(asked)
    }

    /// A request was answered that was sent at `sent`.
    pub(super) fn answered(&self, sent: Moment) {
        let now = self.now();
        let step = self.timeout / TOUCHES;
        let mut state = self.state.lock();
        if sent < state.connected_since {
            return;
        }
        state.answered = state.answered.max(sent);
        state.lateness = now.saturating_sub(sent);
        // Of many touches in a short time, the newest is enough.
        let last_but_one = state.touches.len().checked_sub(2).and_then(|at| state.touches.get(at));
        if last_but_one.is_some_and(|touch| now < touch.answered.saturating_add(step)) {
            state.touches.pop_back();
        }
        state.touches.push_back(Touch { sent, answered: now });
        // A touch that is older than a session timeout keeps no session alive.
        while state.touches.front().is_some_and(|touch| touch.sent.saturating_add(self.timeout) <= now) {
            state.touches.pop_front();
        }
    }

    /// As [`Lease::answered`], for an operation that a quorum has acknowledged. Returns whether the lease has run out
    /// just now.
    pub(super) fn acknowledged(&self, sent: Moment) -> bool {
        let mut newest = None;
        let mut state = self.state.lock();
        if sent >= state.connected_since {
            newest = state.handshake.take_if(|handshake| handshake.is_ours).map(|handshake| handshake.sent);
            while let Some(touch) =
                state.touches.front().filter(|touch| touch.answered.saturating_add(self.settling) <= sent)
            {
                newest = newest.max(Some(touch.sent));
                state.touches.pop_front();
            }
        }
        drop(state);
        let lapsed = newest.is_some_and(|touch| self.counts(touch));
        self.answered(sent);
        lapsed
    }

    /// The handshake of this connection has resumed this session. It counts by the next operation that a quorum
    /// acknowledges.
    pub(super) fn resumed(&self) {
        if let Some(handshake) = &mut self.state.lock().handshake {
            handshake.is_ours = true;
        }
    }

    fn counts(&self, touch: Moment) -> bool {
        let now = self.now();
        let mut state = self.state.lock();
        let lapsed = state.lapse(now);
        if let Some(end) = &mut state.end {
            *end = (*end).max(touch.saturating_add(self.term()));
        }
        state.counted = state.counted.max(touch);
        self.publish(&state);
        lapsed
    }

    /// Counts every moment as acknowledged from now on, or no longer.
    pub(super) fn steady(&self, steady: bool) {
        let now = self.now();
        let mut state = self.state.lock();
        state.lapse(now);
        state.end = if steady { None } else { Some(now.saturating_add(self.term())) };
        state.counted = now;
        self.publish(&state);
    }

    /// The connection was lost or is back. Returns whether that is news.
    pub(super) fn connected(&self, connected: bool) -> bool {
        let now = self.now();
        let mut state = self.state.lock();
        let was = std::mem::replace(&mut state.connected, connected);
        if was && !connected {
            state.touches.clear();
            state.connected_since = now;
            // Its moment is not known. It is sent after every request that was answered on the previous connection.
            state.handshake = Some(Handshake { sent: state.answered, is_ours: false });
        }
        was != connected
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.state.lock().connected
    }

    /// The session is over; the first reason stays.
    pub(crate) fn end(&self, why: Ending) {
        let now = self.now();
        let mut state = self.state.lock();
        state.over.get_or_insert((why, now));
        self.publish(&state);
    }

    /// Why the session is over, if it is.
    pub fn over(&self) -> Option<Ending> {
        self.state.lock().over.map(|(why, _)| why)
    }

    /// When the last request was sent that had an answer, and when the session was known to be over. `None` while it is not.
    pub fn away(&self) -> Option<(Moment, Moment)> {
        let state = self.state.lock();
        state.over.map(|(_, ended)| (state.answered.min(ended), ended))
    }

    /// How long the session is surely still alive; `None` when that is not known any more.
    pub fn remaining(&self) -> Option<Duration> {
        self.validity().map(|(left, _)| left)
    }

    /// For how long the ensemble surely keeps the session: until one session timeout after the newest touch that
    /// counts. Zero once that time is over, or the session is.
    ///
    /// Longer than [`remaining`](Lease::remaining): the difference is the time to stop work in.
    pub fn session_left(&self) -> Duration {
        let now = self.now();
        let state = self.state.lock();
        match (state.over, state.end) {
            (Some(_), _) => Duration::ZERO,
            (None, None) => Duration::MAX,
            (None, Some(_)) => state.counted.saturating_add(self.timeout).saturating_sub(now),
        }
    }

    /// How often a heartbeat is due: every fifth of the session timeout. More often if answers come late. More often,
    /// too, if the stop margin is larger than its default, so that as much of the lease as by default is left when a
    /// break begins.
    ///
    /// Two answers and the settling time pass from the sending of a touch until it counts. The next touch must count
    /// before the lease ends.
    pub(crate) fn heartbeat_period(&self) -> Duration {
        let usual = (self.timeout / 5).saturating_sub(self.margin.saturating_sub(default_margin(self.timeout)));
        usual.min(self.spare() / 2).max(self.timeout / MOST_HEARTBEATS)
    }

    /// How often an idle session, without a node, is touched: there must be room for the client's own pings, which requests
    /// put off.
    pub(crate) fn idle_period(&self) -> Duration {
        self.timeout / 4
    }

    /// How long a break of the connection may last, at any time, without costing a hold: if an attempt to connect that the
    /// break swallows takes no longer than `attempt`. Zero if the lease may end even without a break.
    pub(crate) fn rides_out(&self, attempt: Duration) -> Duration {
        let oldest = self.heartbeat_period() + self.settling;
        self.term().saturating_sub(oldest).saturating_sub(attempt)
    }

    /// How far apart touches may be, at most, so that each counts before the lease ends that the previous touch gave.
    fn spare(&self) -> Duration {
        let lateness = self.state.lock().lateness;
        self.term().saturating_sub(self.settling).saturating_sub(lateness * 2)
    }

    /// Whether the lease will be renewed in time for a node that was entered at this moment.
    ///
    /// If answers come very late, the touches of an idle session are too far apart. The lease then has one gap, until a
    /// touch counts that was sent at this moment or later.
    pub(crate) fn lasts_from(&self, entered: Moment) -> bool {
        self.is_steady() || self.spare() >= self.idle_period() || self.counts_since(entered)
    }

    /// Whether the next touch can count before the lease ends, at the most heartbeats.
    pub(crate) fn is_renewable(&self) -> bool {
        self.settling + self.timeout / MOST_HEARTBEATS < self.term()
    }

    /// How long after a touch's answer the operation is sent by which the touch counts.
    pub(crate) fn settling(&self) -> Duration {
        self.settling
    }

    /// How long ago the newest request was sent that was answered on this connection.
    pub(crate) fn since_touch(&self) -> Duration {
        self.now().saturating_sub(self.state.lock().touches.back().map_or(Duration::ZERO, |touch| touch.sent))
    }

    /// Whether a request was answered on this connection, or it is the first one.
    pub(crate) fn is_answered(&self) -> bool {
        let state = self.state.lock();
        state.answered >= state.connected_since
    }

    /// How long ago the newest request was sent that was answered, or the last connection was lost.
    pub(crate) fn silent_for(&self) -> Duration {
        let state = self.state.lock();
        self.now().saturating_sub(state.answered.max(state.connected_since))
    }

    /// Whether a touch counts that was sent at this moment or later.
    pub(crate) fn counts_since(&self, moment: Moment) -> bool {
        self.state.lock().counted >= moment
    }

    /// Whether the backend vouches for every moment, so that no heartbeat is needed.
    pub(crate) fn is_steady(&self) -> bool {
        self.state.lock().end.is_none()
    }

    /// The current epoch, if the lease is valid now: the time since which it has been valid without a gap.
    pub(crate) fn epoch(&self) -> Option<u64> {
        self.epoch_at(self.now())
    }

    /// As [`Lease::epoch`], at this present moment.
    pub(crate) fn epoch_at(&self, now: Moment) -> Option<u64> {
        self.validity_at(now).map(|(_, epoch)| epoch)
    }

    /// The present moment, if the lease is valid and has been since this epoch began. Looks at nothing that is locked.
    /// `None` if only [`Lease::epoch_at`] can tell.
    pub(crate) fn covered_at(&self, epoch: u64) -> Option<Moment> {
        // The end before its epoch, and the clock last: an end is published after its epoch.
        let until = self.valid_until.load(Ordering::Acquire);
        if self.valid_in.load(Ordering::Acquire) != epoch {
            return None;
        }
        let now = self.now();
        (nanos(now) < until).then_some(now)
    }

    fn publish(&self, state: &LeaseState) {
        let until = match (state.over, state.end) {
            (Some(_), _) => 0,
            (None, None) => u64::MAX,
            (None, Some(end)) => nanos(end),
        };
        self.valid_in.store(state.epoch, Ordering::Release);
        self.valid_until.store(until, Ordering::Release);
    }

    fn validity(&self) -> Option<(Duration, u64)> {
        self.validity_at(self.now())
    }

    fn validity_at(&self, now: Moment) -> Option<(Duration, u64)> {
        let mut state = self.state.lock();
        if state.lapse(now) {
            self.publish(&state);
        }
        let left = match (state.over, state.end) {
            (Some(_), _) => None,
            (None, None) => Some(Duration::MAX),
            (None, Some(end)) => end.checked_sub(now).filter(|left| !left.is_zero()),
        };
        left.map(|left| (left, state.epoch))
    }

    fn term(&self) -> Duration {
        self.timeout.saturating_sub(self.margin)
    }
}

fn default_margin(timeout: Duration) -> Duration {
    (timeout / 6).max(LEAST_MARGIN).min(timeout / 4)
}

/// More than 500 years are as good as for ever.
pub(super) fn nanos(moment: Moment) -> u64 {
    u64::try_from(moment.as_nanos()).unwrap_or(u64::MAX)
}

impl LeaseState {
    /// Ends the epoch if the lease has run out. Every hold of that epoch stays lost, even if a late answer renews the
    /// lease.
    ///
    /// Returns whether the lease has run out just now.
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
pub(crate) fn since_boot() -> Moment {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0))
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) fn since_boot() -> Moment {
    use std::sync::OnceLock;
    use std::time::Instant;
    static START: OnceLock<Instant> = OnceLock::new();
    // Never zero, which stands for a lease that ran out.
    START.get_or_init(Instant::now).elapsed() + Duration::from_nanos(1)
}

#[cfg(all(test, not(shuttle)))]
mod tests;
