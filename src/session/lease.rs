//! The lease of a session: until when the session is surely alive, computed from the times of requests and answers. A
//! guard is valid only while the lease is valid.
//!
//! The ensemble may expire a session one session timeout T after its leader last heard of the session. A client cannot
//! see this in time: on a server that is cut off from the leader, the connection looks healthy, and a read still shows
//! the client's node.
//!
//! A server that is a follower notes which sessions send it requests. The follower reports these sessions to the leader
//! in its answer to the leader's ping, every half tick. The leader hears of the follower's sessions only by these
//! reports, and by a handshake that creates or resumes a session. The leader does not hear of a session by a request
//! that a follower forwards. So these rules decide how long the lease lasts:
//! - A *touch* is the sending of a request that was answered.
//! - A touch *counts*, that is, extends the lease, once a quorum acknowledges an operation that was sent a [settling
//!   time](Lease::with_tick_time) after the touch's answer came, on the same connection. In between, the follower has
//!   answered a ping, and the follower's messages reach the leader in order.
//! - A handshake that created the session extends the lease from the moment of its sending, as soon as it is answered,
//!   because a quorum has created the session.
//! - A handshake that resumed the session extends the lease only once a quorum acknowledges an operation that was sent
//!   on the same connection. The handshake's answer alone proves too little: it comes from the leader alone, which may
//!   have been deposed without knowing it. The new leader counts the session's timeout from its own election, which may
//!   have been before the handshake.
//! - The lease ends T minus a stop margin after the newest touch that counts. The margin covers slow clocks, and gives
//!   holders the time to stop their work. A lease that has run out has *lapsed*.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::session::request::SessionEnd;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::telemetry::debug::debug;

/// A moment on a session's clock.
pub type Moment = Duration;

type Clock = Box<dyn Fn() -> Moment + Send + Sync>;

/// The longest tick that the lease assumes if the backend gives no tick time. ZooKeeper's default `tickTime` is 3 s.
const LONGEST_TICK: Duration = Duration::from_secs(3);

/// The settling time is half a tick plus a slack, because a ping may reach the follower late. This is the shortest
/// slack.
const LEAST_SLACK: Duration = Duration::from_millis(100);

const LEAST_MARGIN: Duration = Duration::from_millis(300);

/// The shortest time between two heartbeats is the session timeout divided by this number, except after a reconnect.
const MOST_HEARTBEATS: u32 = 20;

/// [`Lease::record_answer`] keeps at most two touches (requests that were answered) for each 64th of the session
/// timeout, and drops a touch that is older than the session timeout. So about 128 touches are kept at most.
const TOUCH_STEPS: u32 = 64;

/// A lease on a session: how long the session is surely alive.
///
/// A backend reports answers, losses of the connection and the end of the session through the session's
/// [`SessionStore`](crate::coordinator::SessionStore).
pub struct Lease {
    timeout: Duration,
    settling: Duration,
    margin: Duration,
    clock: Clock,
    state: Mutex<LeaseState>,
    /// A copy of `LeaseState::end` in nanoseconds, but 0 once the session is over. [`Lease::now_if_valid_in`] reads
    /// this copy without the mutex, because a program may ask millions of times a second whether it still holds a lock.
    valid_until: AtomicU64,
    /// The epoch that ends at `valid_until`. The epoch is the number of times that the lease has run out.
    valid_in: AtomicU64,
}

#[derive(Default)]
struct LeaseState {
    /// When the lease ends, on the session's clock. [`Moment::MAX`] in steady mode. Zero before the lease begins, and
    /// after [`LeaseState::end_epoch_if_run_out`] has found that the lease has run out. The end of the session does not
    /// change this.
    end: Moment,
    /// When the newest request that has extended the lease was sent, or when steady mode was last turned on or off.
    /// Stays as it is when the lease runs out.
    counted: Moment,
    /// The answered requests of this connection that may still extend the lease, the oldest first. Such a request
    /// extends the lease once a quorum acknowledges an operation that was sent a settling time after the request's
    /// answer.
    touches: VecDeque<AnsweredRequest>,
    /// When a connection was last lost. Zero before the first loss. A request sent after this moment was sent on the
    /// present connection.
    last_lost_at: Moment,
    /// When the newest answered request or handshake was sent. Before the first answer on the present connection, this
    /// may be one of an earlier connection.
    answered: Moment,
    /// How long the newest answer took, from the sending of its request.
    lateness: Duration,
    /// The number of times that the lease has run out. A hold belongs to one epoch, so that a later renewal of the
    /// lease does not make the hold valid again.
    epoch: u64,
    /// Why the session is over, and when this was recorded. `None` while the session is not over.
    over: Option<(SessionEnd, Moment)>,
    /// When the connection was lost, or when the session ended if it was connected until then. `None` while the session
    /// is connected.
    disconnected_since: Option<Instant>,
    /// When the handshake that resumed the session on the present connection was sent. `None` without such a handshake,
    /// and once it has extended the lease.
    resumed: Option<Moment>,
}

#[derive(Clone, Copy)]
struct AnsweredRequest {
    sent: Moment,
    answered: Moment,
}

impl Lease {
    /// Returns a lease for a session with this timeout. On Linux, the lease's clock also runs while the machine is
    /// suspended.
    ///
    /// The lease is invalid until [`SessionStore::record_begin`](crate::coordinator::SessionStore::record_begin).
    pub fn new(timeout: Duration) -> Lease {
        Lease::with_clock(timeout, Box::new(since_boot))
    }

    /// Returns a lease on the given clock.
    pub fn with_clock(timeout: Duration, clock: Box<dyn Fn() -> Moment + Send + Sync>) -> Lease {
        let lease = Lease {
            timeout,
            settling: Duration::ZERO,
            margin: default_margin(timeout),
            clock,
            state: Mutex::new(LeaseState::default()),
            valid_until: AtomicU64::new(0),
            valid_in: AtomicU64::new(0),
        };
        lease.with_tick_time(LONGEST_TICK.min(timeout / 2))
    }

    /// Sets the servers' `tickTime`. By default the lease assumes the smaller of 3 s and half the session timeout.
    ///
    /// The settling time is half a tick plus a slack of an eighth of a tick (at least 100 ms). A request that was
    /// answered extends the lease once a quorum acknowledges an operation that was sent at least a settling time after
    /// that answer.
    pub fn with_tick_time(mut self, tick: Duration) -> Lease {
        self.settling = tick / 2 + (tick / 8).max(LEAST_SLACK);
        self
    }

    /// Sets the stop margin: how long before the ensemble may expire the session the lease ends. By default this is a
    /// sixth of the session timeout, or 300 ms if that is longer. But the default is never longer than a quarter of the
    /// session timeout.
    pub fn with_stop_margin(mut self, margin: Duration) -> Lease {
        self.margin = margin;
        self
    }

    pub(crate) fn stop_margin(&self) -> Duration {
        self.margin
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Returns the present moment on this lease's clock. A backend reads this clock just before it sends a request.
    pub fn now(&self) -> Moment {
        (self.clock)()
    }

    /// Records that the ensemble created the session, in answer to a handshake that was sent at `sent` or later, and so
    /// begins the lease. Returns `true` only if the lease had begun before, and this call is the first to find that the
    /// lease has run out.
    pub(super) fn record_begin(&self, sent: Moment) -> bool {
        self.state.lock().answered = sent;
        self.extend_from(sent)
    }

    /// Records the answer to a request that was sent at `sent`. Ignores a request of an earlier connection.
    pub(super) fn record_answer(&self, sent: Moment) {
        let now = self.now();
        let step = self.timeout / TOUCH_STEPS;
        let mut state = self.state.lock();
        if sent < state.last_lost_at {
            return;
        }
        state.answered = state.answered.max(sent);
        state.lateness = now.saturating_sub(sent);
        // The number of touches is bounded: of any three touches in a row, the first and the last were answered at
        // least a `step` apart. So if the second newest touch was answered less than a `step` ago, the present touch
        // replaces the newest touch.
        let second_newest = state.touches.len().checked_sub(2).and_then(|at| state.touches.get(at));
        if second_newest.is_some_and(|touch| now < touch.answered.saturating_add(step)) {
            state.touches.pop_back();
        }
        state.touches.push_back(AnsweredRequest { sent, answered: now });
        // A request that was sent more than one session timeout ago cannot extend the lease.
        while state.touches.front().is_some_and(|touch| touch.sent.saturating_add(self.timeout) <= now) {
            state.touches.pop_front();
        }
    }

    /// Does the same as [`Lease::record_answer`], for an operation that was sent at `sent` and that a quorum has
    /// acknowledged. If the operation was sent on the present connection, it may also extend the lease. The lease then
    /// counts from one of two requests, whichever was sent later: the newest one that was answered at least a settling
    /// time before `sent`, or the handshake that has [resumed](Lease::record_resume) the session. Returns `true` if
    /// this call is the first to find that the lease has run out.
    pub(super) fn record_quorum_answer(&self, sent: Moment) -> bool {
        let mut newest = None;
        let mut state = self.state.lock();
        if sent >= state.last_lost_at {
            let is_settled = |touch: &AnsweredRequest| touch.answered.saturating_add(self.settling) <= sent;
            let settled = state.touches.partition_point(is_settled);
            newest = state.touches.drain(..settled).map(|touch| touch.sent).max().max(state.resumed.take());
        }
        drop(state);
        let lapsed = newest.is_some_and(|touch| self.extend_from(touch));
        self.record_answer(sent);
        lapsed
    }

    /// Records that the handshake of this connection, which was sent at `sent` or later, resumed this session. The
    /// handshake extends the lease once a quorum acknowledges an operation that was sent later on this connection.
    pub(super) fn record_resume(&self, sent: Moment) {
        let mut state = self.state.lock();
        state.resumed = Some(sent);
        state.answered = state.answered.max(sent);
    }

    /// Extends the lease to its full duration after `touch`, the moment at which a request was sent, unless the lease
    /// ends later already. Returns `true` if this call is the first to find that the lease had run out before.
    fn extend_from(&self, touch: Moment) -> bool {
        let now = self.now();
        let mut state = self.state.lock();
        let lapsed = state.end_epoch_if_run_out(now);
        state.end = state.end.max(touch.saturating_add(self.duration_from_touch()));
        state.counted = state.counted.max(touch);
        self.update_atomics(&state);
        lapsed
    }

    /// Turns steady mode on or off. In steady mode the lease lasts until the session is over. When steady mode is
    /// turned off, the lease lasts for its full duration from now on.
    pub(super) fn set_endless(&self, steady: bool) {
        let now = self.now();
        let mut state = self.state.lock();
        state.end_epoch_if_run_out(now);
        state.end = if steady { Moment::MAX } else { now.saturating_add(self.duration_from_touch()) };
        state.counted = now;
        self.update_atomics(&state);
    }

    /// Records that the connection is lost (`false`) or back (`true`). Returns whether that is a change. After the end
    /// of the session, changes nothing and returns `false`.
    pub(super) fn set_connected(&self, is_connected: bool) -> bool {
        let now = self.now();
        let mut state = self.state.lock();
        if state.over.is_some() {
            return false;
        }
        if !is_connected {
            // No request of this connection may extend the lease through an operation on a later connection. So the
            // touches (the answered requests) are dropped. This happens even if the connection counts as lost already,
            // because answers may have come on a connection that was never reported as back.
            state.touches.clear();
            (state.last_lost_at, state.resumed) = (now, None);
        }
        let is_change = state.disconnected_since.is_none() != is_connected;
        if is_change {
            state.disconnected_since = (!is_connected).then(Instant::now);
        }
        is_change
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.disconnected_since().is_none()
    }

    /// Returns when the connection was lost, or when the session ended if it was connected until then. `None` while the
    /// session is connected.
    pub(crate) fn disconnected_since(&self) -> Option<Instant> {
        self.state.lock().disconnected_since
    }

    /// Records the end of the session, unless an earlier end is recorded. Returns whether this end was recorded.
    pub(crate) fn record_end(&self, why: SessionEnd) -> bool {
        let now = self.now();
        let mut state = self.state.lock();
        let is_first = state.over.is_none();
        state.over.get_or_insert((why, now));
        state.disconnected_since.get_or_insert_with(Instant::now);
        self.update_atomics(&state);
        is_first
    }

    /// Returns why the session is over, or `None` if it is not.
    pub fn ending(&self) -> Option<SessionEnd> {
        self.state.lock().over.map(|(why, _)| why)
    }

    /// Returns two moments: when the newest answered request was sent, and when the end of the session was recorded.
    /// The first moment is never later than the second. `None` while the session is not over.
    pub fn last_answered_sent_at_and_end(&self) -> Option<(Moment, Moment)> {
        let state = self.state.lock();
        state.over.map(|(_, ended)| (state.answered.min(ended), ended))
    }

    /// Returns how long the lease is still valid, or `None` if it has run out or the session is over. `Duration::MAX`
    /// in steady mode.
    pub fn remaining(&self) -> Option<Duration> {
        self.remaining_and_epoch_at(self.now()).map(|(left, _)| left)
    }

    /// Returns how long the ensemble surely keeps the session: until one session timeout after the sending of the
    /// newest request that has extended the lease. Zero after that time, and after the end of the session.
    /// `Duration::MAX` in steady mode.
    ///
    /// While the lease is valid, this is longer than [`remaining`](Lease::remaining) by the stop margin (except in
    /// steady mode). A holder whose lease has ended must stop its work within the margin.
    pub fn session_left(&self) -> Duration {
        let now = self.now();
        let state = self.state.lock();
        match (state.over, state.end) {
            (Some(_), _) => Duration::ZERO,
            (None, Moment::MAX) => Duration::MAX,
            (None, _) => state.counted.saturating_add(self.timeout).saturating_sub(now),
        }
    }

    /// Returns the time between heartbeats: usually a fifth of the session timeout. In two cases the time is shorter,
    /// but at least a twentieth of the timeout:
    /// - Answers come late, or the settling time is long. The period is then at most half of the longest period with
    ///   which the next heartbeat still extends the lease before the lease ends.
    /// - The stop margin is longer than its default. The period is then shorter by the difference. So a loss of the
    ///   connection leaves as much of the lease as with the default margin.
    pub(crate) fn heartbeat_period(&self) -> Duration {
        let usual = (self.timeout / 5).saturating_sub(self.margin.saturating_sub(default_margin(self.timeout)));
        usual.min(self.longest_touch_interval() / 2).max(self.timeout / MOST_HEARTBEATS)
    }

    /// Returns the time between the reads that keep a session without nodes alive: a quarter of the session timeout.
    /// The ZooKeeper client crate pings only after it has sent nothing for up to 3/16 of the session timeout, so more
    /// frequent reads could suppress the pings.
    pub(crate) fn nodeless_read_period(&self) -> Duration {
        self.timeout / 4
    }

    /// Returns how long the connection may be lost without the loss of a hold, in the worst case: the connection breaks
    /// just before a heartbeat extends the lease. `attempt` is the time for the attempt to reconnect, and is
    /// subtracted. Zero if even the shortest break may cost a hold.
    pub(crate) fn survivable_break(&self, attempt: Duration) -> Duration {
        let oldest = self.heartbeat_period() + self.settling;
        self.duration_from_touch().saturating_sub(oldest).saturating_sub(attempt)
    }

    /// Returns the longest time between the sending of two requests with which the second request still extends the
    /// lease before the lease ends.
    fn longest_touch_interval(&self) -> Duration {
        let lateness = self.state.lock().lateness;
        self.duration_from_touch().saturating_sub(self.settling).saturating_sub(lateness * 2)
    }

    /// Returns whether a node whose create was answered at `entered` can rely on the present lease.
    ///
    /// While a session has no node, only one read is sent every [`nodeless_read_period`](Lease::nodeless_read_period).
    /// If answers come late, the lease may end before the next read extends it. The first node can then rely on the
    /// lease only after a request that was sent at `entered` or later has extended the lease.
    pub(crate) fn is_reliable_if_created_at(&self, entered: Moment) -> bool {
        self.is_endless()
            || self.longest_touch_interval() >= self.nodeless_read_period()
            || self.has_been_extended_since(entered)
    }

    /// Returns whether heartbeats at the shortest period can extend the lease before it ends, if servers answer
    /// promptly.
    pub(crate) fn is_renewable(&self) -> bool {
        self.settling + self.timeout / MOST_HEARTBEATS < self.duration_from_touch()
    }

    /// Returns the settling time. An answered request extends the lease once a later operation is acknowledged. That
    /// operation must be sent at least the settling time after the request's answer.
    pub(crate) fn settling_time(&self) -> Duration {
        self.settling
    }

    /// Returns the time since the newest recorded request of this connection was sent. If none is recorded, returns the
    /// time since the zero of the lease's clock, which is so long that a new request is due.
    pub(crate) fn since_touch(&self) -> Duration {
        self.now().saturating_sub(self.state.lock().touches.back().map_or(Duration::ZERO, |touch| touch.sent))
    }

    /// Returns the time since the newest answered request was sent, or since the previous connection was lost if that
    /// was later.
    pub(crate) fn silent_for(&self) -> Duration {
        let state = self.state.lock();
        self.now().saturating_sub(state.answered.max(state.last_lost_at))
    }

    /// Returns when the newest answered request or handshake was sent.
    pub(crate) fn last_answered_sent_at(&self) -> Moment {
        self.state.lock().answered
    }

    /// Returns whether the lease was extended by a request that was sent at `moment` or later, or steady mode was
    /// turned on or off at `moment` or later.
    pub(crate) fn has_been_extended_since(&self, moment: Moment) -> bool {
        self.state.lock().counted >= moment
    }

    /// Returns whether the lease is in steady mode, so that no heartbeat is needed.
    pub(crate) fn is_endless(&self) -> bool {
        self.state.lock().end == Moment::MAX
    }

    /// Returns the current epoch, or `None` if the lease is invalid. Within one epoch the lease is valid without a gap.
    pub(crate) fn epoch(&self) -> Option<u64> {
        self.epoch_at(self.now())
    }

    /// Does the same as [`Lease::epoch`], where `now` is the present moment.
    pub(crate) fn epoch_at(&self, now: Moment) -> Option<u64> {
        self.remaining_and_epoch_at(now).map(|(_, epoch)| epoch)
    }

    /// Returns the present moment if the lease is valid and still in this epoch. Takes no mutex. After `None` the
    /// caller must call [`Lease::epoch_at`], because the atomics may be older than the state.
    pub(crate) fn now_if_valid_in(&self, epoch: u64) -> Option<Moment> {
        // The end is read before its epoch, because `update_atomics` stores the epoch before the end. The clock is read
        // last. If the clock were read first and this thread then paused, the lease could end during the pause without
        // being noticed here.
        let until = self.valid_until.load(Ordering::Acquire);
        if self.valid_in.load(Ordering::Acquire) != epoch {
            return None;
        }
        let now = self.now();
        (nanos(now) < until).then_some(now)
    }

    fn update_atomics(&self, state: &LeaseState) {
        self.valid_in.store(state.epoch, Ordering::Release);
        self.valid_until.store(state.over.map_or(nanos(state.end), |_| 0), Ordering::Release);
    }

    fn remaining_and_epoch_at(&self, now: Moment) -> Option<(Duration, u64)> {
        let mut state = self.state.lock();
        if state.end_epoch_if_run_out(now) {
            self.update_atomics(&state);
        }
        let left = if state.end == Moment::MAX { Duration::MAX } else { state.end.saturating_sub(now) };
        (state.over.is_none() && !left.is_zero()).then_some((left, state.epoch))
    }

    /// Returns how long the lease lasts from the sending of the request that extends it: one session timeout, less the
    /// stop margin.
    fn duration_from_touch(&self) -> Duration {
        self.timeout.saturating_sub(self.margin)
    }
}

fn default_margin(timeout: Duration) -> Duration {
    (timeout / 6).max(LEAST_MARGIN).min(timeout / 4)
}

/// Returns the moment in nanoseconds, at most `u64::MAX` (more than 500 years).
pub(super) fn nanos(moment: Moment) -> u64 {
    u64::try_from(moment.as_nanos()).unwrap_or(u64::MAX)
}

impl LeaseState {
    /// Ends the epoch if the lease has run out. A late answer may renew the lease later, but no hold of the ended epoch
    /// becomes valid again.
    ///
    /// Returns `true` if this call is the first to find that the lease has run out.
    fn end_epoch_if_run_out(&mut self, now: Moment) -> bool {
        let lapsed = !self.end.is_zero() && self.end <= now;
        if lapsed {
            self.epoch += 1;
            self.end = Duration::ZERO;
        }
        lapsed
    }
}

debug!(Lease as "Lease", |it| timeout: it.timeout, remaining: it.remaining());

/// Returns the time since boot. This clock goes on while the machine is suspended, as the ensemble's clock does,
/// whereas `Instant` on Linux stands still.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) fn since_boot() -> Moment {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0))
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) fn since_boot() -> Moment {
    use std::sync::OnceLock;
    static START: OnceLock<Instant> = OnceLock::new();
    // One nanosecond is added, so that the clock never reads zero, which the lease uses for "not yet".
    START.get_or_init(Instant::now).elapsed() + Duration::from_nanos(1)
}

#[cfg(all(test, not(shuttle)))]
mod tests;
