//! Tests of the attempts to connect, without a server.

use super::*;

const SECOND: Duration = Duration::from_secs(1);

const TIMEOUT: Duration = Duration::from_secs(12);

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn target(server: usize) -> ConnectTarget {
    ConnectTarget { server, address: Some(([10, 0, 0, 1], u16::try_from(server).unwrap() + 1).into()) }
}

/// Returns the attempts of a client with this many servers, which it tries in the order of the connect string.
fn of(servers: usize) -> Attempts {
    let mut attempts = Attempts::new(TIMEOUT, attempt_time_limit(TIMEOUT));
    let mut place = 0;
    for server in 0..servers {
        attempts.record_addresses(server, &[target(server).address], || {
            place += 1;
            place
        });
    }
    attempts
}

/// Returns the server of the next attempt, and how long the attempt may take. If a pause comes first, moves `now` to
/// its end.
fn next(attempts: &mut Attempts, now: &mut Moment) -> (usize, Duration) {
    loop {
        match attempts.next_step(*now) {
            ConnectStep::Attempt(target, limit) => return (target.server, limit),
            ConnectStep::Pause(pause) => *now += pause,
        }
    }
}

/// Lets the next `times` attempts fail for the reason `why`, and returns their servers.
fn fail(attempts: &mut Attempts, now: &mut Moment, why: AttemptFailure, times: usize) -> Vec<usize> {
    let one = |_| {
        let (server, _) = next(attempts, now);
        attempts.record_failure(target(server), why, *now);
        server
    };
    (0..times).map(one).collect()
}

#[test]
fn limits_depend_on_the_session_timeout() {
    let attempt = |timeout| attempt_time_limit(ms(timeout)).as_millis();
    assert_eq!([1_000, 2_999, 3_000, 4_200, 6_000, 60_000].map(attempt), [400, 1_199, 350, 350, 500, 5_000]);
    let silence = |timeout| silence_limit(ms(timeout), ms(timeout)).as_millis();
    assert_eq!([1_000, 2_999, 3_000, 6_000, 60_000].map(silence), [400, 1_199, 1_000, 2_000, 20_000]);
    let silence = |rides_out| silence_limit(ms(6_000), ms(rides_out)).as_millis();
    assert_eq!([2_250, 1_800, 562, 0].map(silence), [2_000, 1_600, 500, 500]);
}

#[test]
fn each_address_is_tried_once_before_any_is_tried_twice() {
    let (mut attempts, mut now) = (of(3), SECOND);
    assert_eq!(attempts.clone().next_step(now), ConnectStep::Attempt(target(0), SECOND));
    assert_eq!(fail(&mut attempts, &mut now, AttemptFailure::Refused, 6), [0, 1, 2, 0, 1, 2]);
    assert_eq!(Attempts::new(TIMEOUT, SECOND).next_step(now), ConnectStep::Pause(Duration::MAX));
}

#[test]
fn only_the_first_round_has_no_pauses() {
    let (mut attempts, mut now) = (of(2), SECOND);
    fail(&mut attempts, &mut now, AttemptFailure::Refused, 2);
    assert_eq!(now, SECOND);
    assert!(attempts.is_round_over());
    for round in 1..100 {
        fail(&mut attempts, &mut now, AttemptFailure::Refused, 1);
        assert_eq!(now, SECOND + round * TIMEOUT / 40);
    }
    attempts.record_ready(target(0));
    attempts.record_loss(target(0), now, false, false);
    let before = now;
    fail(&mut attempts, &mut now, AttemptFailure::Refused, 2);
    assert_eq!(now, before, "a ready connection begins a new first round");
}

/// The server refuses each attempt, so no connection becomes ready, and each attempt after the first has to wait.
#[test]
fn a_connection_that_never_gets_ready_does_not_end_a_round() {
    let (mut attempts, mut now) = (of(1), SECOND);
    for _ in 0..41 {
        fail(&mut attempts, &mut now, AttemptFailure::Refused, 1);
    }
    assert_eq!(now, SECOND + TIMEOUT);
}

#[test]
fn a_silent_address_gets_more_time_and_comes_last() {
    let (mut attempts, mut now) = (of(2), SECOND);
    let limits: Vec<_> = (0..6)
        .map(|_| {
            let (server, limit) = next(&mut attempts, &mut now);
            attempts.record_failure(
                target(server),
                if server == 0 { AttemptFailure::Silent } else { AttemptFailure::Refused },
                now,
            );
            (server, limit.as_secs())
        })
        .collect();
    assert_eq!(limits, [(0, 1), (1, 1), (1, 1), (0, 2), (1, 1), (0, 4)]);
    for _ in 0..4 {
        attempts.record_failure(target(0), AttemptFailure::Silent, now);
    }
    assert_eq!(fail(&mut attempts, &mut now, AttemptFailure::Refused, 1), [1]);
    assert_eq!(attempts.next_step(now + SECOND), ConnectStep::Attempt(target(0), TIMEOUT));
    attempts.record_ready(target(0));
    assert_eq!(attempts.next_step(now + SECOND), ConnectStep::Attempt(target(0), SECOND), "success resets the limit");
}

#[test]
fn attempts_stay_quick_while_a_lease_may_last() {
    let (mut attempts, mut now) = (of(1), SECOND);
    next(&mut attempts, &mut now);
    attempts.record_ready(target(0));
    attempts.record_loss(target(0), now, false, false);
    let lost = now;
    let mut limits = Vec::new();
    while limits.len() < 16 {
        let (_, limit) = next(&mut attempts, &mut now);
        now += limit;
        attempts.record_failure(target(0), AttemptFailure::Silent, now);
        limits.push((limit.as_secs(), now < lost + TIMEOUT));
    }
    assert!(limits.iter().all(|(limit, is_early)| !is_early || *limit == 1), "{limits:?}");
    assert_eq!(limits.last().map(|(limit, _)| *limit), Some(12));
}

#[test]
fn a_stolen_session_goes_back_to_the_same_server_at_once() {
    let (mut attempts, mut now) = (of(3), SECOND);
    fail(&mut attempts, &mut now, AttemptFailure::Silent, 1);
    assert_eq!(next(&mut attempts, &mut now).0, 1);
    attempts.record_ready(target(1));
    for (keeps_writes, broke) in [(false, true), (true, false)] {
        let mut other = attempts.clone();
        other.record_loss(target(1), now, keeps_writes, broke);
        assert_eq!(next(&mut other, &mut now).0, 2, "not stolen");
    }
    attempts.record_loss(target(1), now, true, true);
    assert_eq!(attempts.next_step(now), ConnectStep::Attempt(target(1), SECOND));
    attempts.record_failure(target(1), AttemptFailure::Refused, now);
    assert_eq!(fail(&mut attempts, &mut now, AttemptFailure::Refused, 1), [2], "only once");
}

#[test]
fn a_server_with_unanswered_writes_is_avoided_while_another_may_answer() {
    let (mut attempts, mut now) = (of(2), SECOND);
    next(&mut attempts, &mut now);
    attempts.record_ready(target(0));
    attempts.record_loss(target(0), now, true, false);
    assert_eq!(next(&mut attempts, &mut now).0, 1);
    let mut of_one = attempts.clone();
    attempts.record_ready(target(1));
    attempts.record_loss(target(1), now, false, false);
    assert_eq!(next(&mut attempts, &mut now).0, 1, "the other one may still carry out the writes");
    of_one.record_failure(target(1), AttemptFailure::Refused, now);
    assert_eq!(next(&mut of_one, &mut now).0, 0, "no other server answers");
    attempts.record_ready(target(1));
    now += 10 * TIMEOUT;
    attempts.record_loss(target(1), now, false, false);
    assert_eq!(next(&mut attempts, &mut now).0, 0, "after ten session timeouts");
}

#[test]
fn a_server_that_disagrees_is_left_once_in_ten_minutes_and_avoided() {
    let (mut attempts, mut now) = (of(2), SECOND);
    assert!(attempts.record_leave_if_allowed(target(0), now));
    assert!(!attempts.record_leave_if_allowed(target(0), now + 599 * SECOND));
    for _ in 0..3 {
        assert_eq!(next(&mut attempts, &mut now).0, 1);
        attempts.record_ready(target(1));
    }
    let mut alone = attempts.clone();
    alone.record_failure(target(1), AttemptFailure::Silent, now);
    assert_eq!(next(&mut alone, &mut now).0, 0);
    now += 600 * SECOND;
    assert_eq!(next(&mut attempts, &mut now).0, 0);
    assert!(
        attempts.record_leave_if_allowed(target(0), now)
            && attempts.record_leave_if_allowed(target(1), now)
            && !attempts.record_leave_if_allowed(target(1), now)
    );
}

#[test]
fn the_only_address_is_left_three_times_in_ten_minutes() {
    let mut attempts = of(1);
    for now in [SECOND, 700 * SECOND] {
        let leaves: Vec<_> = (0..5).map(|_| attempts.record_leave_if_allowed(target(0), now)).collect();
        assert_eq!(leaves, [true, true, true, false, false]);
    }
}

#[test]
fn an_address_that_is_no_longer_found_is_forgotten() {
    let (mut attempts, mut now) = (of(2), SECOND);
    attempts.record_loss(target(0), now, false, false);
    assert!(!attempts.is_address_fresh(target(0)));
    let moved = Some(([10, 0, 0, 2], 1).into());
    attempts.record_addresses(0, &[moved], || 0);
    assert_eq!(attempts.next_step(now), ConnectStep::Attempt(ConnectTarget { server: 0, address: moved }, SECOND));
    assert!(
        attempts.is_address_fresh(ConnectTarget { server: 0, address: moved }) && !attempts.is_address_fresh(target(0))
    );
    assert_eq!(next(&mut attempts, &mut now).0, 1);
}

/// Checks in random histories that each attempt after the first round begins late enough, and that none waits for ever
/// while an address is known.
#[test]
fn random_histories_keep_the_rules() {
    let mut seed = 1_u64;
    let mut draw = move |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    for _ in 0..2_000 {
        let servers = usize::try_from(draw(4) + 1).unwrap();
        let (mut attempts, mut now) = (of(servers), SECOND);
        let (mut since_ready, mut begun) = (0, Vec::new());
        for _ in 0..60 {
            let (server, limit) = next(&mut attempts, &mut now);
            assert!(limit >= SECOND && limit <= TIMEOUT);
            begun.push((now, since_ready));
            since_ready += 1;
            now += ms(draw(1_000));
            match draw(6) {
                0 => attempts.record_failure(target(server), AttemptFailure::Silent, now),
                1..4 => attempts.record_failure(target(server), AttemptFailure::Refused, now),
                _ => {
                    attempts.record_ready(target(server));
                    if draw(3) == 0 {
                        let _left = attempts.record_leave_if_allowed(target(server), now);
                    }
                    now += ms(draw(30_000));
                    attempts.record_loss(target(server), now, draw(2) == 0, draw(8) == 0);
                    since_ready = 0;
                }
            }
        }
        for pair in begun.windows(2) {
            let [(before, _), (at, nth)] = pair else { unreachable!() };
            let is_in_first_round = *nth <= servers;
            assert!(is_in_first_round || *at - *before >= TIMEOUT / 40, "{before:?}, {at:?}, {nth}");
        }
    }
}

#[test]
fn a_pause_is_bounded_by_time_away_and_timeout() {
    let longest = |away: u32| new_session_jitter(away * SECOND, 10 * SECOND, u64::MAX).as_millis();
    assert_eq!([0, 4, 10, 20, 40, 3_600].map(longest), [0, 999, 2_499, 4_999, 4_999, 4_999]);
    assert_eq!(new_session_jitter(Duration::MAX, Duration::MAX, 0), Duration::ZERO);
    assert!(new_session_jitter(Duration::MAX, Duration::MAX, GRAINS / 2) > SECOND);
}

#[test]
fn pauses_are_spread_evenly() {
    let mut tenths = [0; 10];
    for number in 0..10_000 {
        let pause = new_session_jitter(40 * SECOND, 20 * SECOND, number * GRAINS / 10_000);
        tenths[usize::try_from(pause.as_secs()).unwrap()] += 1;
    }
    assert!(tenths.iter().all(|count| (999..=1_001).contains(count)), "{tenths:?}");
}
