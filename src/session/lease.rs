//! The lease of a session: until when the session is surely alive, computed from the times of requests and answers. A
//! guard is valid only while the lease is valid.
//!
//! The ensemble may expire a session one session timeout T after its leader last heard of it. Neither the state of the
//! connection nor a read of the own node shows this in time, because both look healthy on a server that is cut off from
//! its leader.
//!
//! A follower notes which sessions send it requests. It reports them to the leader in its answer to the leader's ping,
//! every half tick. The leader hears of a session only by these reports, and by a handshake that creates or resumes the
//! session. A request that a follower forwards does not count as hearing of the session. Therefore:
//! - A *touch* is the sending of a request that was answered.
//! - A touch *counts* once a quorum acknowledges an operation that was sent a [settling time](Lease::with_tick_time)
//!   after the touch's answer came, on the same connection. In between, the follower has answered a ping, and its
//!   messages reach the leader in order.
//! - A handshake that created the session counts from its sending, as soon as it is answered, because a quorum has created the
//!   session.
//! - A handshake that resumed the session counts once a quorum acknowledges an operation that was sent on the same connection.
//!   The leader alone answers such a handshake, and may have been deposed without knowing it. A new leader restarts the
//!   session's timeout when it is elected, which may be before the handshake.
//! - The lease ends one T after the newest touch that counts, less a margin for clocks and for holders, which must
//!   stop. A lease that has run out has *lapsed*.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use crate::session::request::Ending;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};

/// A moment on a session's clock.
pub type Moment = Duration;

type Clock = Box<dyn Fn() -> Moment + Send + Sync>;

/// The longest tick that the lease assumes if the backend gives none: ZooKeeper's own default.
const LONGEST_TICK: Duration = Duration::from_secs(3);

/// The least slack for the delay of a ping between two servers.
const LEAST_SLACK: Duration = Duration::from_millis(100);

const LEAST_MARGIN: Duration = Duration::from_millis(300);

/// The most heartbeats within one session timeout.
const MOST_HEARTBEATS: u32 = 20;

/// The number of touches within one session timeout that are kept apart while they do not count yet.
const TOUCHES: u32 = 64;

/// A lease on a session: how long the session is surely alive.
///
/// A backend reports each event through the session's [`SessionStore`](crate::coordinator::SessionStore).
pub struct Lease {
    timeout: Duration,
    settling: Duration,
    margin: Duration,
    clock: Clock,
    state: Mutex<LeaseState>,
    /// When the lease ends, in nanoseconds, and in which epoch: copies of the state that [`Lease::covered_at`] reads
    /// without the lock, because a kept node is checked millions of times a second.
    valid_until: AtomicU64,
    valid_in: AtomicU64,
}

#[derive(Default)]
struct LeaseState {
    /// When the lease ends; `None` in steady mode.
    end: Option<Moment>,
    /// When the newest touch that counts was sent. Unlike `end`, a lapse does not reset it.
    counted: Moment,
    /// Touches of this connection that do not count yet, the oldest first.
    touches: VecDeque<Touch>,
    /// When the previous connection was lost. Requests sent since then belong to this connection.
    connected_since: Moment,
    /// When the newest answered request was sent, on this connection or, before its first answer, on the previous one.
    answered: Moment,
    /// How long the last answer took.
    lateness: Duration,
    /// The number of lapses so far. A hold belongs to one epoch, so a renewal after a lapse does not revive it.
    epoch: u64,
    /// Why the session is over, and when that became known.
    over: Option<(Ending, Moment)>,
    connected: bool,
    /// The handshake of this connection, until it counts.
    handshake: Option<Handshake>,
}

#[derive(Clone, Copy)]
struct Handshake {
    /// The handshake was sent at this moment or later.
    sent: Moment,
    /// Whether the handshake is known to have resumed this session.
    is_ours: bool,
}

#[derive(Clone, Copy)]
struct Touch {
    sent: Moment,
    answered: Moment,
}

impl Lease {
    /// Returns a lease for a session with this timeout, on a clock that (on Linux) also runs while the machine is
    /// suspended.
    ///
    /// The lease is invalid until [`SessionStore::began`](crate::coordinator::SessionStore::began).
    pub fn new(timeout: Duration) -> Lease {
        Lease::with_clock(timeout, Box::new(since_boot))
    }

    /// Returns a lease on a clock of the backend.
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

    /// Sets the servers' `tickTime`. By default the lease assumes the smaller of 3 s and half the session timeout.
    ///
    /// An operation makes a touch count if it was sent half a tick after the touch's answer, plus a slack of an eighth of
    /// a tick (at least 100 ms).
    pub fn with_tick_time(mut self, tick: Duration) -> Lease {
        self.settling = tick / 2 + (tick / 8).max(LEAST_SLACK);
        self
    }

    /// Sets how long the lease ends before the ensemble may expire the session. By default a sixth of the session
    /// timeout, but at least 300 ms, and at most a quarter of the session timeout.
    pub fn with_stop_margin(mut self, margin: Duration) -> Lease {
        self.margin = margin;
        self
    }

    pub(crate) fn margin(&self) -> Duration {
        self.margin
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Returns the present moment on this lease's clock. Call it just before a request is sent.
    pub fn now(&self) -> Moment {
        (self.clock)()
    }

    /// Records that the ensemble created the session, in answer to a handshake sent at `sent` or later. Returns whether
    /// the lease lapsed since the last call.
    pub(super) fn began(&self, sent: Moment) -> bool {
        self.state.lock().answered = sent;
        self.count_touch(sent)
    }

    /// Records the answer to a request that was sent at `sent`.
    pub(super) fn answered(&self, sent: Moment) {
        let now = self.now();
        let step = self.timeout / TOUCHES;
        let mut state = self.state.lock();
        if sent < state.connected_since {
            return;
        }
        state.answered = state.answered.max(sent);
        state.lateness = now.saturating_sub(sent);
        // Of many touches in a short time, only the newest is kept.
        let last_but_one = state.touches.len().checked_sub(2).and_then(|at| state.touches.get(at));
        if last_but_one.is_some_and(|touch| now < touch.answered.saturating_add(step)) {
            state.touches.pop_back();
        }
        state.touches.push_back(Touch { sent, answered: now });
        // A touch older than a session timeout keeps no session alive.
        while state.touches.front().is_some_and(|touch| touch.sent.saturating_add(self.timeout) <= now) {
            state.touches.pop_front();
        }
    }

    /// As [`Lease::answered`], for an operation that a quorum has acknowledged. Returns whether the lease lapsed since
    /// the last call.
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
        let lapsed = newest.is_some_and(|touch| self.count_touch(touch));
        self.answered(sent);
        lapsed
    }

    /// Records that the handshake of this connection resumed this session. The handshake counts by the next operation
    /// that a quorum acknowledges.
    pub(super) fn resumed(&self) {
        if let Some(handshake) = &mut self.state.lock().handshake {
            handshake.is_ours = true;
        }
    }

    fn count_touch(&self, touch: Moment) -> bool {
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

    /// Turns steady mode on or off. In steady mode the lease never ends.
    pub(super) fn steady(&self, steady: bool) {
        let now = self.now();
        let mut state = self.state.lock();
        state.lapse(now);
        state.end = if steady { None } else { Some(now.saturating_add(self.term())) };
        state.counted = now;
        self.publish(&state);
    }

    /// Records a lost connection, or a connection that is back. Returns whether this changed anything.
    pub(super) fn connected(&self, connected: bool) -> bool {
        let now = self.now();
        let mut state = self.state.lock();
        let was = std::mem::replace(&mut state.connected, connected);
        if was && !connected {
            state.touches.clear();
            state.connected_since = now;
            // The time of the handshake is not known, but it is sent after every request that the previous connection
            // answered.
            state.handshake = Some(Handshake { sent: state.answered, is_ours: false });
        }
        was != connected
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.state.lock().connected
    }

    /// Records the end of the session; the first reason stays.
    pub(crate) fn end(&self, why: Ending) {
        let now = self.now();
        let mut state = self.state.lock();
        state.over.get_or_insert((why, now));
        self.publish(&state);
    }

    /// Returns why the session is over, or `None` if it is not.
    pub fn over(&self) -> Option<Ending> {
        self.state.lock().over.map(|(why, _)| why)
    }

    /// Returns when the last answered request was sent, and when the session was known to be over. `None` before its end.
    pub fn away(&self) -> Option<(Moment, Moment)> {
        let state = self.state.lock();
        state.over.map(|(_, ended)| (state.answered.min(ended), ended))
    }

    /// Returns how long the session is surely still alive, or `None` if the lease has run out.
    pub fn remaining(&self) -> Option<Duration> {
        self.validity().map(|(left, _)| left)
    }

    /// Returns how long the ensemble surely keeps the session: until one session timeout after the newest touch that
    /// counts. Zero after that time, and after the end of the session.
    ///
    /// This is longer than [`remaining`](Lease::remaining). The difference is the time in which to stop work.
    pub fn session_left(&self) -> Duration {
        let now = self.now();
        let state = self.state.lock();
        match (state.over, state.end) {
            (Some(_), _) => Duration::ZERO,
            (None, None) => Duration::MAX,
            (None, Some(_)) => state.counted.saturating_add(self.timeout).saturating_sub(now),
        }
    }

    /// Returns the time between heartbeats: a fifth of the session timeout, or less if answers come late. Also less if
    /// the stop margin is larger than its default, so that a break finds as much of the lease left as by default.
    ///
    /// From the sending of a touch until it counts, two answers and the settling time pass. The next touch must count
    /// before the lease ends.
    pub(crate) fn heartbeat_period(&self) -> Duration {
        let usual = (self.timeout / 5).saturating_sub(self.margin.saturating_sub(default_margin(self.timeout)));
        usual.min(self.spare() / 2).max(self.timeout / MOST_HEARTBEATS)
    }

    /// Returns the time between touches of a session without nodes. It leaves room for the client's own pings, which
    /// every request postpones.
    pub(crate) fn idle_period(&self) -> Duration {
        self.timeout / 4
    }

    /// Returns how long a break of the connection may last, at any time, without the loss of a hold, if a connection
    /// attempt during the break takes no longer than `attempt`. Zero if the lease may end even without a break.
    pub(crate) fn rides_out(&self, attempt: Duration) -> Duration {
        let oldest = self.heartbeat_period() + self.settling;
        self.term().saturating_sub(oldest).saturating_sub(attempt)
    }

    /// Returns the longest time between two touches at which the second counts before the lease given by the first ends.
    fn spare(&self) -> Duration {
        let lateness = self.state.lock().lateness;
        self.term().saturating_sub(self.settling).saturating_sub(lateness * 2)
    }

    /// Returns whether the lease will be renewed in time for a node that was created at this moment.
    ///
    /// If answers come very late, the touches of an idle session are too far apart. The lease then has one gap, until a
    /// touch counts that was sent at this moment or later.
    pub(crate) fn lasts_from(&self, entered: Moment) -> bool {
        self.is_steady() || self.spare() >= self.idle_period() || self.counts_since(entered)
    }

    /// Returns whether the next touch can count before the lease ends, with the most frequent heartbeats.
    pub(crate) fn is_renewable(&self) -> bool {
        self.settling + self.timeout / MOST_HEARTBEATS < self.term()
    }

    /// Returns how long after a touch's answer an operation must be sent for the touch to count.
    pub(crate) fn settling(&self) -> Duration {
        self.settling
    }

    /// Returns how long ago the newest request that this connection answered was sent.
    pub(crate) fn since_touch(&self) -> Duration {
        self.now().saturating_sub(self.state.lock().touches.back().map_or(Duration::ZERO, |touch| touch.sent))
    }

    /// Returns whether this connection has answered a request, or is the first connection.
    pub(crate) fn is_answered(&self) -> bool {
        let state = self.state.lock();
        state.answered >= state.connected_since
    }

    /// Returns for how long no request was answered: since the newest answered request was sent, or since the last
    /// connection was lost.
    pub(crate) fn silent_for(&self) -> Duration {
        let state = self.state.lock();
        self.now().saturating_sub(state.answered.max(state.connected_since))
    }

    /// Returns whether a touch counts that was sent at this moment or later.
    pub(crate) fn counts_since(&self, moment: Moment) -> bool {
        self.state.lock().counted >= moment
    }

    /// Returns whether the lease is in steady mode, so that no heartbeat is needed.
    pub(crate) fn is_steady(&self) -> bool {
        self.state.lock().end.is_none()
    }

    /// Returns the current epoch, if the lease is valid now. An epoch is a time in which the lease is valid without a
    /// gap.
    pub(crate) fn epoch(&self) -> Option<u64> {
        self.epoch_at(self.now())
    }

    /// As [`Lease::epoch`], at the given present moment.
    pub(crate) fn epoch_at(&self, now: Moment) -> Option<u64> {
        self.validity_at(now).map(|(_, epoch)| epoch)
    }

    /// Returns the present moment if the lease is valid and was valid throughout this epoch. Takes no lock. `None` if
    /// only [`Lease::epoch_at`] can tell.
    pub(crate) fn covered_at(&self, epoch: u64) -> Option<Moment> {
        // Reads the end, then its epoch, then the clock, because `publish` stores the epoch before the end.
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

/// Returns nanoseconds. More than 500 years become the maximum.
pub(super) fn nanos(moment: Moment) -> u64 {
    u64::try_from(moment.as_nanos()).unwrap_or(u64::MAX)
}

impl LeaseState {
    /// Ends the epoch if the lease has run out, so that a late answer that renews the lease revives no hold of that
    /// epoch.
    ///
    /// Returns whether the lease ran out since the last call.
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

/// Returns the time since boot. On Linux `Instant` stands still while the machine is suspended, and the ensemble's clock
/// does not.
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
    // Never zero: zero means that the lease has run out.
    START.get_or_init(Instant::now).elapsed() + Duration::from_nanos(1)
}

#[cfg(all(test, not(shuttle)))]
mod tests;
