//! How long a candidate waits before it campaigns again.

use std::time::Duration;

/// The pause is doubled at most so often.
const DOUBLINGS: u32 = 5;

/// How many terms in a row were short, or were none at all, and so how long the next pause is.
pub(crate) struct Pauses {
    pause: Duration,
    short: u32,
}

impl Pauses {
    pub(crate) fn new(pause: Duration) -> Pauses {
        Pauses { pause, short: 0 }
    }

    /// The longest pause before the next campaign, after a term that lasted so long, or zero if it came to none. `None` if
    /// there is none to be made: the term lasted for long, and its end was wanted.
    pub(crate) fn after(&mut self, lasted: Duration, is_wanted: bool) -> Option<Duration> {
        let longest = self.pause.saturating_mul(1 << self.short);
        if lasted > longest {
            self.short = 0;
            return (!is_wanted).then_some(self.pause);
        }
        self.short = (self.short + 1).min(DOUBLINGS);
        Some(longest)
    }
}

/// A time between half of `longest` and all of it, by a number drawn at random: candidates that lost together must not
/// come back together.
pub(crate) fn drawn(longest: Duration, random: u64) -> Duration {
    let half = longest / 2;
    half + half.mul_f64((random % 1_000) as f64 / 1_000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_pause_doubles_up_to_32_times_and_begins_anew_after_a_long_term() {
        let mut pauses = Pauses::new(SECOND);
        let longest: Vec<_> = (0..8).map(|_| pauses.after(Duration::ZERO, false).unwrap().as_secs()).collect();
        assert_eq!(longest, [1, 2, 4, 8, 16, 32, 32, 32]);
        assert_eq!(pauses.after(32 * SECOND, false), Some(32 * SECOND), "no longer than the pause before it");
        assert_eq!(pauses.after(33 * SECOND, false), Some(SECOND));
        assert_eq!(pauses.after(SECOND / 2, false), Some(SECOND));
    }

    #[test]
    fn a_long_term_whose_end_was_wanted_is_followed_by_no_pause_and_a_short_one_is() {
        let mut pauses = Pauses::new(SECOND);
        assert_eq!(pauses.after(2 * SECOND, true), None);
        assert_eq!(pauses.after(SECOND, true), Some(SECOND));
        assert_eq!(pauses.after(2 * SECOND, true), Some(2 * SECOND));
        assert_eq!(pauses.after(5 * SECOND, true), None);
        assert_eq!(Pauses::new(Duration::ZERO).after(Duration::ZERO, false), Some(Duration::ZERO));
        assert_eq!(Pauses::new(Duration::MAX).after(SECOND, false), Some(Duration::MAX));
    }

    #[test]
    fn what_is_drawn_lies_between_half_of_the_longest_and_all_of_it() {
        let drawn: Vec<_> = [0, 500, 999, 1_000, u64::MAX].map(|random| drawn(SECOND, random)).to_vec();
        assert!(drawn.iter().all(|it| (SECOND / 2..=SECOND).contains(it)), "{drawn:?}");
        assert!(drawn[0] < drawn[1] && drawn[1] < drawn[2] && drawn[0] == drawn[3]);
    }
}
