//! How patiently a client opens a session, attempt after attempt, and how long it pauses before it comes back with a new one.
//!
//! Clients that lose their sessions together were cut off together: by a switch, or by an ensemble that was away. They find
//! the ensemble again at the same moment, and each asks it for a session, a place in each queue, and watches. A hundred
//! thousand of them would keep the ensemble busy for many seconds, while clients that were never cut off wait for their
//! answers. So each pauses for a time of its own before it comes back: the longer it was away, the longer it may pause. A
//! client that comes back alone pays an eighth of that time on average, and nothing for a short break, which its session
//! survives.

use std::time::Duration;

/// From this session timeout on, an attempt to connect is given up sooner than the client crate would, and a connection before the
/// client crate's own limit is over.
const LONG: Duration = Duration::from_secs(3);

/// A shorter limit would take every pause of a server for a break.
const QUICKEST: Duration = Duration::from_millis(350);

/// How long a client bears with a silent server. Quick and patient attempts take turns, so that a slow server is
/// reached, too, although it answers later than a quick client waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectPolicy {
    /// Soon gives up a silent connection, or an attempt at one, for a fresh one. After a break the kernel sends lost
    /// data again after longer and longer pauses, so a fresh connection is sooner back.
    Quick,
    /// Gives up a silent connection as late as the client crate does by default: for slow servers.
    Patient,
}

impl ConnectPolicy {
    /// How long a quick client's attempt at one server may take.
    ///
    /// Short sessions have the client crate's own limit: a shorter one would take every pause of a server for a break.
    fn quick(session_timeout: Duration) -> Duration {
        if session_timeout < LONG { session_timeout * 2 / 5 } else { (session_timeout / 12).max(QUICKEST) }
    }

    /// How long an attempt at one server may take; `None` for the client crate's default.
    pub fn attempt(self, session_timeout: Duration) -> Option<Duration> {
        match self {
            ConnectPolicy::Quick => Some(ConnectPolicy::quick(session_timeout)),
            ConnectPolicy::Patient => None,
        }
    }

    /// How long a connection may be silent, where breaks must not cost a lock that last as long as `rides_out`; `None` for the
    /// client crate's default.
    ///
    /// A connection outlives each standstill of half of this: see docs/upstream/README.md. The client crate notices the
    /// end of the limit late, by up to an eighth.
    pub fn silence(self, session_timeout: Duration, rides_out: Duration) -> Option<Duration> {
        let attempt = self.attempt(session_timeout)?;
        let longest = if session_timeout < LONG { attempt } else { session_timeout / 3 };
        Some(longest.min(rides_out * 8 / 9).max(attempt))
    }

    /// How long the attempts at all servers to open a session may take.
    pub fn limit(self, session_timeout: Duration) -> Duration {
        match self {
            ConnectPolicy::Quick => session_timeout / 4,
            ConnectPolicy::Patient => session_timeout,
        }
    }

    /// How the next attempt is made after one that its limit ended.
    pub fn after_silence(self) -> ConnectPolicy {
        match self {
            ConnectPolicy::Quick => ConnectPolicy::Patient,
            ConnectPolicy::Patient => ConnectPolicy::Quick,
        }
    }

    /// How the next attempt is made after one in which no server took the connection, and which `took` so long. Servers
    /// that refuse at once are not slow.
    pub fn after_refusals(self, took: Duration, session_timeout: Duration) -> ConnectPolicy {
        if took > ConnectPolicy::quick(session_timeout) { self.after_silence() } else { self }
    }

    /// Whether a session that was opened this way has to be tried with a request before it is used.
    pub fn is_tried(self) -> bool {
        self == ConnectPolicy::Patient
    }

    /// Whether such a session is kept, whose first answer `took` so long. It is not if the server is quick now: the server
    /// was away, and not slow. So the next attempt is a quick one.
    pub fn suits(took: Duration, session_timeout: Duration) -> bool {
        took > ConnectPolicy::quick(session_timeout) / 4
    }
}

/// No pause is longer than this part of the session timeout.
const LONGEST: u32 = 2;

/// A pause is up to this part of the time that the client was away.
const PART: u32 = 4;

/// How long a client pauses before it asks for a session in place of a lost one: at random up to a quarter of the time for
/// which it has had no answer, and no longer than half a session timeout. Full jitter, as others call it.
///
/// Before the first try, the pause counts from the moment when the client knew that its session was over. If that try
/// fails, the next pause counts from there.
pub fn reconnect_jitter(away: Duration, session_timeout: Duration, random: u64) -> Duration {
    let longest = (away / PART).min(session_timeout / LONGEST);
    longest.mul_f64((random % GRAINS) as f64 / GRAINS as f64)
}

/// Into so many steps a pause is divided.
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

    /// Of those who were away for as long, no tenth of the time gets more than its share.
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
