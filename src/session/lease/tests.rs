//! Tests of the lease on a clock that each test advances, without a server.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;

#[test]
fn the_longest_safe_break_depends_on_timeout_and_tick() {
    let rides_out = |timeout: u64, tick: Option<u64>, attempt: u64| {
        let mut lease = Lease::new(Duration::from_millis(timeout));
        if let Some(tick) = tick {
            lease = lease.with_tick_time(Duration::from_millis(tick));
        }
        lease.survivable_break(Duration::from_millis(attempt)).as_millis() / 100
    };
    // The table of `docs/operating.md` has a row for each session timeout, and a column for each tick.
    let page = include_str!("../../../docs/operating.md");
    let section = page.split("\n## Breaks of the connection\n").nth(1).and_then(|rest| rest.split("\n## ").next());
    let rows = section.expect("the section").lines().filter(|line| line.starts_with("| ") && line.contains(" s |"));
    let rows: Vec<&str> = rows.skip(1).collect();
    assert_eq!(rows.len(), 4);
    for row in rows {
        let seconds: Vec<&str> = row.trim_matches(['|', ' ']).split(" | ").collect();
        let timeout = seconds[0].trim_end_matches(" s").parse::<u64>().expect("seconds") * 1_000;
        let attempt = crate::zookeeper::connection::attempt_time_limit(Duration::from_millis(timeout)).as_millis();
        for (tick, shown) in [None, Some(2_000), Some(500)].into_iter().zip(&seconds[1..]) {
            let tenths = rides_out(timeout, tick, u64::try_from(attempt).expect("short"));
            assert_eq!(format!("{}.{} s", tenths / 10, tenths % 10), *shown, "{row}");
        }
    }
    assert_eq!(rides_out(10_000, Some(2_000), 2_500), 25);
    assert_eq!(rides_out(1_000, None, 1_000), 0);
}

const fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// The stop margin for a session timeout of 6 s.
const MARGIN: Duration = ms(1_000);

/// The settling time: half a tick of 2 s, plus an eighth of the tick.
const SETTLING: Duration = ms(1_250);

struct Stage {
    lease: Lease,
    clock: Arc<AtomicU64>,
}

impl Stage {
    /// Returns the lease of a session that begins now and has a timeout of 6 s, and its clock in milliseconds.
    fn begun() -> Stage {
        let stage = Stage::before_the_session();
        stage.lease.record_begin(stage.lease.now());
        stage
    }

    fn before_the_session() -> Stage {
        let clock = Arc::new(AtomicU64::new(100_000));
        let read = Arc::clone(&clock);
        let read = move || ms(read.load(Ordering::SeqCst));
        Stage { lease: Lease::with_clock(ms(6_000), Box::new(read)).with_tick_time(ms(2_000)), clock }
    }

    fn advance(&self, time: Duration) {
        self.clock.fetch_add(u64::try_from(time.as_millis()).unwrap(), Ordering::SeqCst);
    }

    /// Records a read that is sent now and answered immediately. Returns when the read was sent.
    fn touch(&self) -> Moment {
        self.lease.record_answer(self.lease.now());
        self.lease.now()
    }

    /// Records a write that is sent now and that a quorum acknowledges immediately.
    fn write(&self) {
        self.lease.record_quorum_answer(self.lease.now());
    }

    /// Returns whether the request sent at `touch` is the newest request that has extended the lease.
    fn counts(&self, touch: Moment) -> bool {
        self.lease.remaining() == (touch + ms(6_000) - MARGIN).checked_sub(self.lease.now())
    }
}

#[test]
fn the_lease_is_invalid_until_the_session_begins() {
    let stage = Stage::before_the_session();
    assert_eq!(stage.lease.remaining(), None);
    stage.write();
    assert_eq!(stage.lease.remaining(), None);
    stage.lease.record_begin(stage.lease.now() - ms(500));
    assert_eq!(stage.lease.remaining(), Some(ms(4_500)));
    assert_eq!(stage.lease.session_left(), ms(5_500));
}

#[test]
fn a_touch_counts_by_an_operation_a_settling_time_later() {
    let stage = Stage::begun();
    let began = stage.lease.now();
    let sent = stage.lease.now();
    stage.advance(ms(400));
    stage.lease.record_answer(sent);
    stage.advance(SETTLING - ms(1));
    let early = stage.lease.now();
    stage.advance(ms(1));
    let in_time = stage.lease.now();
    stage.lease.record_quorum_answer(early);
    assert!(stage.counts(began));
    stage.lease.record_quorum_answer(in_time);
    assert!(stage.counts(sent));
    // A write, like a read, extends the lease only by a later operation, and not by its own acknowledgement.
    stage.advance(ms(300));
    stage.write();
    assert!(stage.counts(sent));
}

#[test]
fn an_operation_counts_as_a_touch_by_a_later_operation() {
    let stage = Stage::begun();
    stage.advance(ms(1_000));
    let first = stage.lease.now();
    stage.write();
    stage.advance(SETTLING);
    stage.write();
    assert!(stage.counts(first));
}

#[test]
fn the_newest_touch_that_is_old_enough_counts() {
    let stage = Stage::begun();
    let mut touches = Vec::new();
    for _ in 0..40_000 {
        stage.advance(ms(1));
        touches.push(stage.touch());
    }
    let old_enough = stage.lease.now() - SETTLING;
    stage.write();
    let newest = stage.lease.now() + stage.lease.remaining().unwrap() + MARGIN - ms(6_000);
    assert!(newest <= old_enough && newest + ms(6_000) / TOUCH_STEPS >= old_enough, "{newest:?} of {old_enough:?}");
    assert!(stage.lease.state.lock().touches.len() <= TOUCH_STEPS as usize + 2);
    // Every request that was answered a settling time before this operation may now extend the lease, so the newest of
    // them does.
    let last = *touches.last().unwrap();
    stage.advance(SETTLING);
    stage.write();
    assert!(stage.counts(last));
}

#[test]
fn requests_of_an_old_connection_make_nothing_count() {
    let stage = Stage::begun();
    let began = stage.lease.now();
    stage.advance(ms(1));
    stage.lease.record_answer(stage.lease.now());
    stage.advance(SETTLING);
    let sent = stage.lease.now();
    stage.advance(ms(1));
    stage.lease.set_connected(false);
    stage.lease.set_connected(true);
    // This operation was sent before the connection was lost, and its answer is reported only now.
    stage.lease.record_quorum_answer(sent);
    stage.lease.record_answer(sent);
    stage.advance(SETTLING);
    stage.write();
    assert!(stage.counts(began));
}

#[test]
fn a_handshake_counts_from_its_sending() {
    let stage = Stage::begun();
    let began = stage.lease.now();
    stage.advance(ms(1_000));
    let last = stage.touch();
    stage.advance(ms(500));
    let early = stage.lease.now();
    stage.advance(ms(1));
    stage.lease.set_connected(false);
    stage.advance(ms(500));
    let handshake = stage.lease.now();
    stage.lease.set_connected(true);
    stage.touch();
    stage.write();
    assert!(stage.counts(began), "the handshake is not known to have resumed this session");
    stage.lease.record_resume(handshake);
    assert!(stage.counts(began), "a deposed leader may have answered the handshake");
    stage.lease.record_quorum_answer(early);
    assert!(stage.counts(began), "an operation sent before the handshake makes nothing count");
    stage.write();
    assert!(stage.counts(handshake) && !stage.counts(last));
    // The first acknowledged operation has let the handshake extend the lease at once. But a later request needs the
    // settling time again.
    stage.advance(ms(1));
    let newer = stage.touch();
    stage.write();
    assert!(!stage.counts(newer));
}

#[test]
fn a_renewal_after_a_lapse_begins_a_new_epoch() {
    let stage = Stage::begun();
    let epoch = stage.lease.epoch().unwrap();
    assert_eq!(stage.lease.epoch(), Some(epoch));
    stage.advance(ms(4_000));
    stage.touch();
    stage.advance(SETTLING);
    stage.write();
    assert!(stage.lease.remaining().is_some());
    assert_ne!(stage.lease.epoch(), Some(epoch));
}

#[test]
fn renewals_in_time_keep_the_epoch() {
    let stage = Stage::begun();
    let epoch = stage.lease.epoch().unwrap();
    for _ in 0..5 {
        stage.advance(ms(2_400));
        stage.touch();
        stage.advance(SETTLING);
        stage.write();
    }
    assert_eq!(stage.lease.epoch(), Some(epoch));
}

/// In this test, no method that takes the mutex is called when the lease ends, so only the clock shows that the lease
/// has run out.
#[test]
fn the_atomics_agree_with_the_locked_state() {
    let stage = Stage::begun();
    let first = stage.lease.epoch().unwrap();
    assert_eq!(stage.lease.now_if_valid_in(first), Some(stage.lease.now()));
    assert_eq!(stage.lease.now_if_valid_in(first + 1), None);
    stage.advance(ms(4_999));
    assert_eq!(stage.lease.now_if_valid_in(first), Some(stage.lease.now()));
    stage.advance(ms(1));
    assert_eq!(stage.lease.now_if_valid_in(first), None);

    stage.lease.record_begin(stage.lease.now());
    let second = stage.lease.epoch().unwrap();
    assert_eq!(
        (stage.lease.now_if_valid_in(first), stage.lease.now_if_valid_in(second)),
        (None, Some(stage.lease.now()))
    );
    stage.lease.set_endless(true);
    stage.advance(ms(60_000));
    assert_eq!(stage.lease.now_if_valid_in(second), Some(stage.lease.now()));
    stage.lease.record_end(SessionEnd::Expired);
    assert_eq!(stage.lease.now_if_valid_in(second), None);
}

#[test]
fn an_ended_session_has_no_lease() {
    let stage = Stage::begun();
    stage.lease.record_end(SessionEnd::Expired);
    stage.lease.record_end(SessionEnd::Closed);
    stage.lease.record_begin(stage.lease.now());
    assert_eq!((stage.lease.remaining(), stage.lease.ending()), (None, Some(SessionEnd::Expired)));
}

#[test]
fn a_short_session_can_renew_its_lease_in_time() {
    for timeout in [ms(250), ms(400), ms(1_000), ms(2_000), ms(4_000), ms(60_000)] {
        let lease = Lease::new(timeout);
        assert!(
            lease.is_renewable() && lease.heartbeat_period() + lease.settling < lease.duration_from_touch(),
            "{timeout:?}"
        );
    }
}

#[test]
fn late_answers_shorten_the_heartbeat_period() {
    let stage = Stage::begun();
    assert_eq!(stage.lease.heartbeat_period(), ms(1_200));
    let sent = stage.lease.now();
    stage.advance(ms(1_500));
    stage.lease.record_answer(sent);
    assert_eq!(stage.lease.heartbeat_period(), ms(375));
}

#[test]
fn margin_and_settling_follow_from_the_session_timeout() {
    for (timeout, margin, settling) in
        [(400, 100, 200), (1_500, 300, 475), (6_000, 1_000, 1_875), (60_000, 10_000, 1_875)]
    {
        let lease = Lease::new(ms(timeout));
        assert_eq!(
            (lease.timeout() - lease.duration_from_touch(), lease.settling_time()),
            (ms(margin), ms(settling)),
            "{timeout}"
        );
    }
}

#[test]
fn a_large_stop_margin_shortens_the_heartbeat_period() {
    for (margin, period) in [(0, 1_200), (1_000, 1_200), (1_500, 700), (2_000, 300), (9_000, 300)] {
        let lease = Stage::begun().lease.with_stop_margin(ms(margin));
        assert_eq!(lease.heartbeat_period(), ms(period), "{margin}");
    }
}

#[test]
fn a_lease_too_short_for_a_heartbeat_is_not_renewable() {
    for (margin, is_renewable) in [(4_449, true), (4_450, false), (9_000, false)] {
        let lease = Stage::begun().lease.with_stop_margin(ms(margin));
        assert_eq!(lease.is_renewable(), is_renewable, "{margin}");
    }
}

#[test]
fn very_late_answers_leave_a_gap_in_an_idle_lease() {
    for (late, lasts) in [(0, true), (1_125, true), (1_126, false)] {
        let stage = Stage::begun();
        let began = stage.lease.now();
        stage.advance(ms(late));
        stage.lease.record_answer(began);
        assert!(stage.lease.has_been_extended_since(began) && stage.lease.is_reliable_if_created_at(began));
        let entered = began + ms(1);
        assert!(!stage.lease.has_been_extended_since(entered));
        assert_eq!(stage.lease.is_reliable_if_created_at(entered), lasts, "{late}");
        stage.lease.set_endless(true);
        assert!(stage.lease.is_reliable_if_created_at(stage.lease.now() + ms(1)));
    }
}

#[test]
fn a_repeated_connection_report_changes_nothing() {
    let stage = Stage::begun();
    stage.advance(ms(1_000));
    let touch = stage.touch();
    assert!(!stage.lease.set_connected(true) && stage.lease.is_connected());
    stage.advance(SETTLING);
    stage.write();
    assert!(stage.counts(touch), "the connection is still the same");
    assert!(stage.lease.set_connected(false) && !stage.lease.is_connected());
    assert!(!stage.lease.set_connected(false));
    assert!(stage.lease.set_connected(true));
    // A request that was sent at the moment of the loss may have been sent on the new connection, so its answer is
    // recorded.
    stage.touch();
    assert_eq!(stage.lease.since_touch(), Duration::ZERO);
    stage.advance(ms(700));
    assert_eq!(stage.lease.since_touch(), ms(700));
}

#[test]
fn away_is_from_the_last_answered_request_to_the_end() {
    let stage = Stage::begun();
    assert_eq!(stage.lease.last_answered_sent_at_and_end(), None);
    stage.advance(ms(1_000));
    let last = stage.touch();
    stage.advance(ms(8_000));
    let end = stage.lease.now();
    stage.lease.record_end(SessionEnd::Expired);
    stage.advance(ms(1_000));
    stage.lease.record_end(SessionEnd::Closed);
    assert_eq!(stage.lease.last_answered_sent_at_and_end(), Some((last, end)));
}

#[test]
fn no_duration_overflows() {
    let lengths = [Duration::ZERO, Duration::from_nanos(1), ms(6_000), Duration::MAX];
    for number in 0..lengths.len().pow(3) {
        let length = |place: u32| lengths[number / lengths.len().pow(place) % lengths.len()];
        let (timeout, tick, margin) = (length(0), length(1), length(2));
        let lease = Lease::with_clock(timeout, Box::new(|| ms(100_000))).with_tick_time(tick).with_stop_margin(margin);
        lease.record_begin(lease.now());
        (0..3).for_each(|_| lease.record_answer(lease.now()));
        lease.record_quorum_answer(lease.now());
        assert!(lease.remaining().unwrap_or_default() <= timeout && lease.session_left() <= timeout);
        assert!(lease.heartbeat_period() <= timeout);
        lease.set_endless(true);
        lease.set_endless(false);
        lease.set_connected(false);
        lease.record_end(SessionEnd::Expired);
    }
}

#[test]
fn the_session_outlasts_the_lease_by_the_margin() {
    let stage = Stage::begun();
    let began = stage.lease.now();
    stage.advance(ms(4_999));
    assert_eq!((stage.lease.remaining(), stage.lease.session_left()), (Some(ms(1)), ms(1_001)));
    stage.advance(ms(1));
    assert_eq!((stage.lease.remaining(), stage.lease.session_left()), (None, MARGIN));
    stage.lease.set_endless(true);
    assert_eq!((stage.lease.remaining(), stage.lease.session_left()), (Some(Duration::MAX), Duration::MAX));
    stage.advance(ms(60_000));
    stage.lease.set_endless(false);
    assert!(stage.lease.has_been_extended_since(began + ms(65_000)) && !stage.lease.is_endless());
    assert_eq!((stage.lease.remaining(), stage.lease.session_left()), (Some(ms(5_000)), ms(6_000)));
    stage.lease.record_end(SessionEnd::Expired);
    assert_eq!(stage.lease.session_left(), Duration::ZERO);
}

/// A caller that gets `true` from `record_quorum_answer` must record the loss of the holds, so only one caller may get
/// `true`.
#[test]
fn an_answer_after_a_lapse_reports_the_lapse_once() {
    let stage = Stage::begun();
    let touch = stage.touch();
    stage.advance(SETTLING);
    assert!(!stage.lease.record_quorum_answer(stage.lease.now()) && stage.counts(touch));
    let touch = stage.touch();
    stage.advance(ms(6_000) - SETTLING);
    assert!(stage.lease.record_quorum_answer(stage.lease.now()), "sent one settling time after {touch:?}");
    assert!(!stage.lease.record_quorum_answer(stage.lease.now()));
}

#[test]
fn the_lease_clock_advances_with_the_standard_clock() {
    let (first, begun) = (since_boot(), std::time::Instant::now());
    std::thread::sleep(ms(5));
    let passed = begun.elapsed();
    assert!(first > Duration::ZERO && since_boot() - first >= passed);
}

/// The servers keep the session for 6 s by their clock. In this time the holder's clock, which may be slow, advances by
/// `passed`.
#[test]
fn a_clock_may_be_slow_by_at_most_the_stop_margin() {
    for (passed, is_borne) in [(ms(6_000), true), (ms(6_000) - MARGIN, true), (ms(6_000) - MARGIN - ms(1), false)] {
        let stage = Stage::begun();
        stage.advance(passed);
        assert_eq!(stage.lease.remaining().is_none(), is_borne, "{passed:?} of 6 s");
    }
    let margins = [2_000, 10_000, 40_000].map(|timeout| (timeout, Lease::new(ms(timeout)).stop_margin()));
    for (timeout, margin) in margins {
        assert!(6 * margin >= ms(timeout - 5), "the documentation promises a sixth: {margin:?} of {timeout} ms");
    }
}

#[test]
fn steady_mode_does_not_hide_a_lapse() {
    let Stage { lease, clock } = Stage::begun();
    let before = lease.epoch().expect("valid");
    clock.fetch_add(6_000, Ordering::SeqCst);
    lease.set_endless(true);
    assert!(lease.epoch().is_some_and(|epoch| epoch != before), "a hold from before the lapse is valid again");
}
