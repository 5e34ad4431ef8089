//! The limits of attempts to connect and of silent connections, and the random pause before a lost session is replaced.
//!
//! A switch or an outage of the ensemble cuts off many clients together, and they lose their sessions together. They
//! reach the ensemble again at the same moment, and each requests a session, a place in each queue, and watches.
//! 100,000 such clients would keep the ensemble busy for many seconds, while all other clients wait for their answers.
//! So each client pauses for a random time before it reconnects: the longer it was cut off, the longer the pause may
//! be. On average the pause is an eighth of the outage. A short break costs no pause, because the session survives it.

use std::time::Duration;

/// The session timeout from which on the limits of attempts to connect and of silent connections are shorter than the
/// client crate's.
const LONG: Duration = Duration::from_secs(3);

/// The least limit of an attempt to connect. A shorter limit would mistake an ordinary pause of a server for a broken
/// connection.
const QUICKEST: Duration = Duration::from_millis(350);

/// How long a client waits for a silent server. Quick and patient attempts to connect alternate, so that the client
/// also reaches a server whose answer comes after a quick attempt has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectPolicy {
    /// Gives up a silent attempt or connection early, and opens a new connection. After a break the kernel resends lost
    /// data at growing intervals, so a new connection recovers sooner.
    Quick,
    /// Gives up a silent attempt or connection as late as the client crate does by default, so that slow servers can
    /// answer.
    Patient,
}

impl ConnectPolicy {
    /// Returns the limit of a quick attempt to connect to one server.
    ///
    /// Sessions with a short timeout use the client crate's own limit, because a shorter limit would mistake an
    /// ordinary pause of a server for a broken connection.
    fn quick(session_timeout: Duration) -> Duration {
        if session_timeout < LONG { session_timeout * 2 / 5 } else { (session_timeout / 12).max(QUICKEST) }
    }

    /// Returns the limit of an attempt to connect to one server; `None` for the client crate's default.
    pub fn attempt(self, session_timeout: Duration) -> Option<Duration> {
        match self {
            ConnectPolicy::Quick => Some(ConnectPolicy::quick(session_timeout)),
            ConnectPolicy::Patient => None,
        }
    }

    /// Returns how long a connection may be silent; `None` for the client crate's default. `rides_out` is the longest
    /// break of the connection that must cost no lock.
    ///
    /// A connection survives a server's pause of half of this limit: see `docs/upstream/read-timeout.patch`. The client
    /// crate notices that the limit has passed late, by up to an eighth of the limit.
    pub fn silence(self, session_timeout: Duration, rides_out: Duration) -> Option<Duration> {
        let attempt = self.attempt(session_timeout)?;
        let longest = if session_timeout < LONG { attempt } else { session_timeout / 3 };
        Some(longest.min(rides_out * 8 / 9).max(attempt))
    }

    /// Returns how long an attempt to open a session may take with this policy, over all servers of the list.
    pub fn limit(self, session_timeout: Duration) -> Duration {
        match self {
            ConnectPolicy::Quick => session_timeout / 4,
            ConnectPolicy::Patient => session_timeout,
        }
    }

    /// Returns the policy of the next attempt, after an attempt with this policy has timed out.
    pub fn after_silence(self) -> ConnectPolicy {
        match self {
            ConnectPolicy::Quick => ConnectPolicy::Patient,
            ConnectPolicy::Patient => ConnectPolicy::Quick,
        }
    }

    /// Returns the policy of the next attempt, after all servers have refused an attempt with this policy. `took` is
    /// the length of the refused attempt. If it is within the limit of a quick attempt, the servers are not slow, and
    /// the policy stays.
    pub fn after_refusals(self, took: Duration, session_timeout: Duration) -> ConnectPolicy {
        if took > ConnectPolicy::quick(session_timeout) { self.after_silence() } else { self }
    }

    /// Returns whether a session that this policy opened is tested with one request before it is used.
    pub fn is_tried(self) -> bool {
        self == ConnectPolicy::Patient
    }

    /// Returns whether a tested session is used. `took` is the time until the answer to the test. A quick answer means
    /// that the server was unreachable before, and not slow. So the session is then dropped, and the next attempt is
    /// quick.
    pub fn suits(took: Duration, session_timeout: Duration) -> bool {
        took > ConnectPolicy::quick(session_timeout) / 4
    }
}

/// The divisor of the session timeout that gives one upper bound of a random pause.
const LONGEST: u32 = 2;

/// The divisor of the time since the last answer that gives the other upper bound of a random pause.
const PART: u32 = 4;

/// Returns a client's random pause before it replaces a lost session ("full jitter"): up to a quarter of `away`, the
/// time since the last answer, and at most half a session timeout.
///
/// Before the first attempt, the pause begins when the client knows that its session is over. After a failed attempt,
/// the next pause begins at the failure.
pub fn reconnect_jitter(away: Duration, session_timeout: Duration, random: u64) -> Duration {
    let longest = (away / PART).min(session_timeout / LONGEST);
    longest.mul_f64((random % GRAINS) as f64 / GRAINS as f64)
}

/// The number of equal steps between no pause and the longest pause. The random number picks one of them.
const GRAINS: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn quick_limits_are_shorter_than_the_crates() {
        let attempt = |timeout| ConnectPolicy::Quick.attempt(ms(timeout)).unwrap().as_millis();
        assert_eq!([1_000, 2_999, 3_000, 4_200, 6_000, 60_000].map(attempt), [400, 1_199, 350, 350, 500, 5_000]);
        let silence = |timeout| ConnectPolicy::Quick.silence(ms(timeout), ms(timeout)).unwrap().as_millis();
        assert_eq!([1_000, 2_999, 3_000, 6_000, 60_000].map(silence), [400, 1_199, 1_000, 2_000, 20_000]);
        let silence = |rides_out| ConnectPolicy::Quick.silence(ms(6_000), ms(rides_out)).unwrap().as_millis();
        assert_eq!([2_250, 1_800, 562, 0].map(silence), [2_000, 1_600, 500, 500]);
        assert_eq!(ConnectPolicy::Patient.attempt(ms(6_000)), None);
        assert_eq!(ConnectPolicy::Patient.silence(ms(6_000), ms(6_000)), None);
        assert_eq!(
            [ConnectPolicy::Quick, ConnectPolicy::Patient].map(|it| it.limit(ms(6_000))),
            [ms(1_500), ms(6_000)]
        );
    }

    #[test]
    fn policies_alternate_unless_refusals_are_quick() {
        use ConnectPolicy::{Patient, Quick};
        assert_eq!([Quick, Patient].map(ConnectPolicy::after_silence), [Patient, Quick]);
        for (took, next) in [(0, [Quick, Patient]), (500, [Quick, Patient]), (501, [Patient, Quick])] {
            assert_eq!([Quick, Patient].map(|it| it.after_refusals(ms(took), ms(6_000))), next, "{took} ms");
        }
    }

    #[test]
    fn a_patient_session_is_used_on_slow_servers() {
        assert_eq!([ConnectPolicy::Quick, ConnectPolicy::Patient].map(ConnectPolicy::is_tried), [false, true]);
        assert_eq!([0, 125, 126].map(|took| ConnectPolicy::suits(ms(took), ms(6_000))), [false, false, true]);
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_pause_is_bounded_by_time_away_and_timeout() {
        let longest = |away: u32| reconnect_jitter(away * SECOND, 10 * SECOND, u64::MAX).as_millis();
        assert_eq!([0, 4, 10, 20, 40, 3_600].map(longest), [0, 999, 2_499, 4_999, 4_999, 4_999]);
        assert_eq!(reconnect_jitter(Duration::MAX, Duration::MAX, 0), Duration::ZERO);
        assert!(reconnect_jitter(Duration::MAX, Duration::MAX, GRAINS / 2) > SECOND);
    }

    #[test]
    fn pauses_are_spread_evenly() {
        let mut tenths = [0; 10];
        for number in 0..10_000 {
            let pause = reconnect_jitter(40 * SECOND, 20 * SECOND, number * GRAINS / 10_000);
            tenths[usize::try_from(pause.as_secs()).unwrap()] += 1;
        }
        assert!(tenths.iter().all(|count| (999..=1_001).contains(count)), "{tenths:?}");
    }
}
