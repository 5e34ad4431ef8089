//! Which sessions of this process are surely of one ensemble; knows no I/O.
//!
//! That two of them were opened with the same text says little: names are pointed elsewhere, servers lose all they knew.
//! But a session that has seen the node of another is of that one's ensemble, for as long as both live.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Taken to join two families, so that no two joins cross.
static JOINING: Mutex<()> = Mutex::new(());

static FAMILIES: AtomicU64 = AtomicU64::new(0);

/// One session, among those that are known to be of its ensemble.
#[derive(Debug, Default)]
pub(crate) struct Kin(Arc<Family>);

#[derive(Debug)]
struct Family {
    /// The older one is joined, so that the way to it stays short however many sessions come and go.
    number: u64,
    joined: OnceLock<Arc<Family>>,
}

impl Default for Family {
    fn default() -> Family {
        Family { number: FAMILIES.fetch_add(1, Ordering::Relaxed), joined: OnceLock::new() }
    }
}

impl Kin {
    /// Whether the two have been seen to be of one ensemble.
    pub(crate) fn is_of(&self, other: &Kin) -> bool {
        Arc::ptr_eq(self.family(), other.family())
    }

    /// One of the two has seen a node of the other.
    pub(crate) fn seen_with(&self, other: &Kin) {
        let _one_at_a_time = JOINING.lock().unwrap_or_else(PoisonError::into_inner);
        let (mine, theirs) = (self.family(), other.family());
        let (older, younger) = if mine.number < theirs.number { (mine, theirs) } else { (theirs, mine) };
        if !Arc::ptr_eq(older, younger) {
            // It is the last of its line, which only a join can change, and we are the only one.
            let _was_empty = younger.joined.set(Arc::clone(older));
        }
    }

    fn family(&self) -> &Arc<Family> {
        let mut family = &self.0;
        while let Some(joined) = family.joined.get() {
            family = joined;
        }
        family
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_has_been_seen_with_one_of_a_family_is_of_it() {
        let kin: Vec<Kin> = (0..6).map(|_| Kin::default()).collect();
        assert!(kin[0].is_of(&kin[0]) && !kin[0].is_of(&kin[1]));
        kin[1].seen_with(&kin[0]);
        kin[2].seen_with(&kin[3]);
        assert!(kin[0].is_of(&kin[1]) && kin[3].is_of(&kin[2]) && !kin[1].is_of(&kin[2]));
        kin[3].seen_with(&kin[1]);
        kin[1].seen_with(&kin[3]);
        assert!(kin[..4].iter().all(|it| it.is_of(&kin[0]) && !it.is_of(&kin[4])));
        kin[4].seen_with(&kin[5]);
        kin[0].seen_with(&kin[5]);
        assert!(kin.iter().all(|it| it.is_of(&kin[2])));
    }

    #[test]
    fn the_way_to_the_oldest_stays_short_as_sessions_come_and_go() {
        let mut last = Kin::default();
        for _ in 0..1_000 {
            let next = Kin::default();
            next.seen_with(&last);
            last = next;
        }
        assert!(last.0.joined.get().is_some_and(|oldest| oldest.joined.get().is_none()));
    }
}
