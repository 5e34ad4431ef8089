//! How long a client pauses before it comes back to the ensemble with a new session.
//!
//! Clients that lose their sessions together were cut off together: by a switch, or by an ensemble that was away. They find
//! the ensemble again at the same moment, and each asks it for a session, a place in each queue, and watches. A hundred
//! thousand of them would keep the ensemble busy for many seconds, while clients that were never cut off wait for their
//! answers. So each pauses for a time of its own before it comes back: the longer it was away, the longer it may pause. A
//! client that comes back alone pays an eighth of that time on average, and nothing for a short break, which its session
//! survives.

use std::time::Duration;

/// No pause is longer than this part of the session timeout.
const LONGEST: u32 = 2;

/// A pause is up to this part of the time that the client was away.
const PART: u32 = 4;

/// How long a client pauses before it asks for a session in place of a lost one: at random up to a quarter of the time for
/// which it has had no answer, and no longer than half a session timeout. Full jitter, as others call it.
///
/// Before the first try, the pause counts from the moment when the client knew that its session was over. If that try
/// fails, the next pause counts from there.
pub fn comeback(away: Duration, session_timeout: Duration, random: u64) -> Duration {
    let longest = (away / PART).min(session_timeout / LONGEST);
    longest.mul_f64((random % GRAINS) as f64 / GRAINS as f64)
}

/// Into so many steps a pause is divided.
const GRAINS: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_pause_is_up_to_a_quarter_of_the_time_away_and_half_a_session_timeout_at_most() {
        let longest = |away: u32| comeback(away * SECOND, 10 * SECOND, u64::MAX).as_millis();
        assert_eq!([0, 4, 10, 20, 40, 3_600].map(longest), [0, 999, 2_499, 4_999, 4_999, 4_999]);
        assert_eq!(comeback(Duration::MAX, Duration::MAX, 0), Duration::ZERO);
        assert!(comeback(Duration::MAX, Duration::MAX, GRAINS / 2) > SECOND);
    }

    /// Of those who were away for as long, no tenth of the time gets more than its share.
    #[test]
    fn pauses_are_spread_evenly_over_the_whole_time() {
        let mut tenths = [0; 10];
        for number in 0..10_000 {
            let pause = comeback(40 * SECOND, 20 * SECOND, number * GRAINS / 10_000);
            tenths[usize::try_from(pause.as_secs()).unwrap()] += 1;
        }
        assert!(tenths.iter().all(|count| (999..=1_001).contains(count)), "{tenths:?}");
    }
}
