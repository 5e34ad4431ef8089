//! Until when a node may be held, where its owner has set a limit.
//!
//! A node has one hold, or, if it is kept, the uses that run. Each of them may last so long. The node is lost with the first
//! that lasts longer, and is given up a margin after that moment: by then who holds has been told.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::session::lease::{Moment, nanos};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Mutex, OnceLock};

pub(crate) struct Limits {
    /// How long each may last.
    longest: OnceLock<Duration>,
    ends: Mutex<Ends>,
    /// The first of the ends, in nanoseconds: a kept node is checked millions of times a second.
    first: AtomicU64,
    /// When the node is given up, once one has lasted too long.
    given_up: OnceLock<Moment>,
}

/// When one ends, and its number: several may end together.
pub(crate) type LimitEnd = (Moment, u64);

#[derive(Default)]
struct Ends {
    all: BTreeSet<LimitEnd>,
    /// How many have begun.
    begun: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        let (longest, ends, given_up) = (OnceLock::new(), Mutex::default(), OnceLock::new());
        Limits { longest, ends, first: AtomicU64::new(u64::MAX), given_up }
    }
}

impl Limits {
    /// From now on each hold, or use, may last so long.
    pub(crate) fn set(&self, longest: Duration) {
        self.longest.get_or_init(|| longest);
    }

    /// A hold, or a use, begins. `None` if it may last for ever.
    pub(crate) fn begins(&self, now: Moment) -> Option<LimitEnd> {
        let end = now.saturating_add(*self.longest.get()?);
        let mut ends = self.ends.lock();
        ends.begun += 1;
        let end = (end, ends.begun);
        ends.all.insert(end);
        self.publish(&ends);
        Some(end)
    }

    pub(crate) fn ended(&self, end: LimitEnd) {
        let mut ends = self.ends.lock();
        ends.all.remove(&end);
        self.publish(&ends);
    }

    fn publish(&self, ends: &Ends) {
        self.first.store(ends.first().map_or(u64::MAX, nanos), Ordering::Release);
    }

    /// Whether none has lasted too long.
    pub(crate) fn allows(&self, now: Moment) -> bool {
        nanos(now) < self.first.load(Ordering::Acquire)
    }

    /// One is found to have lasted too long: the node is given up a margin from now.
    pub(crate) fn exceeded(&self, now: Moment, margin: Duration) {
        self.given_up.get_or_init(|| now.saturating_add(margin));
    }

    /// For how long surely none lasts too long. One that begins later ends later than that, too.
    pub(crate) fn left(&self, now: Moment) -> Duration {
        let Some(longest) = self.longest.get() else { return Duration::MAX };
        self.ends.lock().first().map_or(*longest, |end| end.saturating_sub(now))
    }

    /// How long it is until the node is given up, or would be; `None` if it would not.
    pub(crate) fn given_up_in(&self, now: Moment, margin: Duration) -> Option<Duration> {
        let would_be = || self.ends.lock().first().map(|end| end.saturating_add(margin));
        self.given_up.get().copied().or_else(would_be).map(|end| end.saturating_sub(now))
    }
}

impl Ends {
    fn first(&self) -> Option<Moment> {
        self.all.first().map(|(end, _)| *end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARGIN: Duration = Duration::from_secs(2);

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn the_first_that_lasts_too_long_ends_the_node() {
        let limits = Limits::default();
        assert_eq!((limits.begins(s(1)), limits.left(s(1)), limits.allows(s(1 << 30))), (None, Duration::MAX, true));
        limits.set(s(10));
        let [first, second] = [s(1), s(4)].map(|at| limits.begins(at).expect("limited"));
        assert_eq!((limits.left(s(4)), limits.allows(s(10)), limits.allows(s(11))), (s(7), true, false));
        limits.ended(first);
        assert_eq!((limits.left(s(4)), limits.allows(s(13)), limits.allows(s(14))), (s(10), true, false));
        assert_eq!(limits.given_up_in(s(4), MARGIN), Some(s(12)));
        limits.exceeded(s(14), MARGIN);
        limits.ended(second);
        assert_eq!((limits.given_up_in(s(15), MARGIN), limits.allows(s(15))), (Some(s(1)), true));
    }

    #[test]
    fn who_begins_next_ends_no_earlier_than_is_said_now() {
        let limits = Limits::default();
        limits.set(s(10));
        let until = s(3) + limits.left(s(3));
        limits.begins(s(3)).expect("limited");
        assert!(limits.allows(until - s(1)) && !limits.allows(until));
        limits.set(Duration::MAX);
        assert_eq!(limits.left(s(3)), s(10), "the first word counts");
    }
}
