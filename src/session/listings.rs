//! Which listings of a session are under way, and which callers wait for the next.

use std::ops::Deref;
use std::sync::Arc;

use crate::session::request::{Failure, Stat};
use crate::sync::{HashMap, Mutex, watch};

/// How many listings of a small directory are under way at once, so that a few callers do not wait for each other.
const UNDER_WAY_MAX: usize = 4;

/// A directory with more names than this has one listing at a time: several would fill memory with copies of the same
/// names.
pub(super) const MANY: usize = 256;

/// The names of a directory's children.
pub(crate) struct Children {
    pub(super) names: Vec<String>,
    /// What is known of the directory itself at the same moment.
    pub(crate) directory: Option<Stat>,
}

impl Deref for Children {
    type Target = Vec<String>;

    fn deref(&self) -> &Vec<String> {
        &self.names
    }
}

/// A listing that several callers may share.
pub(crate) type Names = Arc<Children>;

type Answer = Option<Result<Names, Failure>>;

/// The callers that wait for the same listing.
pub(super) type Callers = watch::Sender<Answer>;

/// The listings of one session.
#[derive(Default)]
pub(crate) struct Listings(Mutex<HashMap<Arc<str>, Directory>>);

#[derive(Default)]
struct Directory {
    under_way: usize,
    /// The last answer had many names.
    is_large: bool,
    /// The listing that is sent when one under way is answered, with the callers that wait for it.
    next: Option<Callers>,
}

impl Directory {
    fn most(&self) -> usize {
        if self.is_large { 1 } else { UNDER_WAY_MAX }
    }
}

impl Listings {
    /// A caller waits for a listing. If it must be sent now, its callers are returned, for [`Listings::end`] afterwards.
    pub(super) fn begin(&self, directory: &Arc<str>) -> (watch::Receiver<Answer>, Option<Callers>) {
        let mut all = self.0.lock();
        let listed = all.entry(Arc::clone(directory)).or_default();
        if listed.under_way < listed.most() {
            listed.under_way += 1;
            let (callers, answer) = watch::channel(None);
            return (answer, Some(callers));
        }
        (listed.next.get_or_insert_with(|| watch::channel(None).0).subscribe(), None)
    }

    /// A listing was answered, with many names or few. Returns the callers of the next one if it must be sent now, and
    /// whether the directory is large.
    pub(super) fn end(&self, directory: &Arc<str>, is_large: bool) -> Option<(Callers, bool)> {
        let mut all = self.0.lock();
        let listed = all.get_mut(directory)?;
        listed.is_large = is_large;
        // If more listings are under way than allowed, the next one waits for them, too.
        let next = if listed.under_way <= listed.most() { listed.next.take() } else { None };
        let next = next.filter(|next| next.receiver_count() > 0);
        if next.is_none() {
            listed.under_way -= 1;
            if listed.under_way == 0 {
                all.remove(directory);
            }
        }
        next.map(|next| (next, is_large))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FEW: bool = false;
    const LARGE: bool = true;

    /// So many callers that each ask for a listing. Returns how many of them send one, and the others.
    fn begin(listings: &Listings, directory: &Arc<str>, callers: usize) -> (usize, Vec<watch::Receiver<Answer>>) {
        let all = (0..callers).map(|_| listings.begin(directory));
        let joined: Vec<_> = all.filter(|(_, sends)| sends.is_none()).map(|(answer, _)| answer).collect();
        (callers - joined.len(), joined)
    }

    #[test]
    fn four_callers_list_a_small_directory_at_once_and_no_fifth() {
        let (listings, directory) = (Listings::default(), Arc::from("/lock"));
        let (sent, joined) = begin(&listings, &directory, 6);
        assert_eq!((sent, joined.len()), (4, 2));
        let (next, is_large) = listings.end(&directory, FEW).expect("two wait for it");
        assert_eq!((next.receiver_count(), is_large), (2, false));
        // The listing that was answered makes room for the next, and for no other caller.
        assert_eq!(begin(&listings, &directory, 1).0, 0);
        let other = Arc::from("/other");
        assert_eq!(begin(&listings, &other, 4).0, 4, "each directory has its own");
    }

    #[test]
    fn a_large_directory_is_listed_once_at_a_time() {
        let (listings, directory) = (Listings::default(), Arc::from("/lock"));
        assert_eq!(begin(&listings, &directory, 2).0, 2);
        assert!(listings.end(&directory, LARGE).is_none(), "nobody waits");
        let (sent, joined) = begin(&listings, &directory, 1);
        assert_eq!((sent, joined.len()), (0, 1), "one is under way");
        let (next, is_large) = listings.end(&directory, LARGE).expect("one waits");
        assert_eq!((next.receiver_count(), is_large), (1, true));
    }

    #[test]
    fn the_next_listing_waits_for_all_but_as_many_as_may_be_under_way() {
        let (listings, directory) = (Listings::default(), Arc::from("/lock"));
        let (_, joined) = begin(&listings, &directory, 5);
        assert_eq!(joined.len(), 1);
        for left in [3, 2, 1] {
            assert!(listings.end(&directory, LARGE).is_none(), "{left} are under way");
        }
        assert!(listings.end(&directory, LARGE).is_some(), "it is the only one");
    }

    #[test]
    fn no_listing_is_sent_for_callers_that_have_gone() {
        let (listings, directory) = (Listings::default(), Arc::from("/lock"));
        drop(begin(&listings, &directory, 6));
        for _ in 0..4 {
            assert!(listings.end(&directory, FEW).is_none());
        }
        assert!(listings.0.lock().is_empty(), "nothing is kept of a directory that nobody lists");
        assert!(listings.end(&directory, FEW).is_none());
    }
}
