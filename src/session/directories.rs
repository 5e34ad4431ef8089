//! A session's record of directories: the listings under way, each shared by several callers, and the ghosts. A ghost
//! is a node that the session's server lists although the ensemble has deleted it.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;
use std::sync::Arc;

use crate::queue::mode::Mode;
use crate::session::request::{Failure, Stat};
use crate::sync::{HashMap, Mutex, watch};

/// The most concurrent listings of one small directory. With more than one, a caller often need not wait for the
/// listing of another caller.
const UNDER_WAY_MAX: usize = 4;

/// The most names of a small directory. A larger directory has one listing at a time, because several would fill memory
/// with copies of the same names.
pub(super) const MANY: usize = 256;

/// The names of a directory's children.
pub(crate) struct Children {
    pub(super) names: Vec<String>,
    /// The stat of the directory at the moment of the listing, if the backend gives it.
    pub(crate) directory: Option<Stat>,
}

impl Deref for Children {
    type Target = Vec<String>;

    fn deref(&self) -> &Vec<String> {
        &self.names
    }
}

/// The answer to a listing, shared by all its callers.
pub(crate) type Names = Arc<Children>;

type Answer = Option<Result<Names, Failure>>;

/// The sender of one listing's answer to all callers of that listing.
pub(super) type Callers = watch::Sender<Answer>;

/// The listings of one session.
#[derive(Default)]
pub(crate) struct Listings(Mutex<HashMap<Arc<str>, Directory>>);

#[derive(Default)]
struct Directory {
    under_way: usize,
    /// Whether the directory had more than [`MANY`] names in the last answer.
    is_large: bool,
    /// The callers that wait for the next listing, which is sent when a listing under way is answered.
    next: Option<Callers>,
}

impl Directory {
    fn most(&self) -> usize {
        if self.is_large { 1 } else { UNDER_WAY_MAX }
    }
}

impl Listings {
    /// Adds a caller, and returns the receiver of its answer. If the caller must send a listing now, also returns the
    /// sender of the answer. The caller then calls [`Listings::end`] once the listing is answered.
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

    /// Records the answer to a listing. If the next listing must be sent now, returns the sender of its answer, and
    /// whether the directory is large.
    pub(super) fn end(&self, directory: &Arc<str>, is_large: bool) -> Option<(Callers, bool)> {
        let mut all = self.0.lock();
        let listed = all.get_mut(directory)?;
        listed.is_large = is_large;
        // The directory may have become large, so that more listings are under way than its limit allows. The next
        // listing is sent once fewer are under way.
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

/// The most ghosts that a session records. When this number is reached, the session forgets all of them.
const KNOWN_MAX: usize = 10_000;

/// The ghosts that a session has found, by directory. If the server still lists the node of a downgraded writer, only
/// readers may ignore that ghost, because the reader that replaced the writer still holds the lock.
#[derive(Default)]
pub(crate) struct Ghosts(Mutex<HashMap<Arc<str>, Known>>);

/// The name of each ghost in a directory, and the contenders that may ignore it: `Read` for readers only, `Write` for
/// readers and writers.
type Known = BTreeMap<Arc<str>, Mode>;

impl Ghosts {
    /// Returns the ghosts among these names that a contender of this mode may ignore.
    pub(crate) fn among(&self, directory: &str, names: &[String], mode: Mode) -> Vec<Arc<str>> {
        let all = self.0.lock();
        let Some(ghosts) = all.get(directory) else { return Vec::new() };
        let known = names.iter().filter_map(|name| ghosts.get_key_value(&**name));
        known.filter(|(_, passable_by)| may_pass(mode, **passable_by)).map(|(name, _)| Arc::clone(name)).collect()
    }

    /// As [`Ghosts::among`], where `names` is a complete listing of the directory. Forgets each ghost that is not in
    /// the listing.
    pub(crate) fn shown(&self, directory: &str, names: &[String], mode: Mode) -> Vec<Arc<str>> {
        let mut all = self.0.lock();
        if let Some(ghosts) = all.get_mut(directory) {
            let shown: BTreeSet<&str> = names.iter().map(|name| &**name).collect();
            ghosts.retain(|name, _| shown.contains(&**name));
            if ghosts.is_empty() {
                all.remove(directory);
            }
        }
        drop(all);
        self.among(directory, names, mode)
    }

    /// Returns these names without the ghosts that a contender of this mode may ignore.
    pub(crate) fn without<'n>(&self, directory: &str, names: &'n [String], mode: Mode) -> Cow<'n, [String]> {
        let ghosts = self.among(directory, names, mode);
        if ghosts.is_empty() {
            return Cow::Borrowed(names);
        }
        let is_ghost = |name: &&String| ghosts.iter().any(|ghost| **ghost == ***name);
        Cow::Owned(names.iter().filter(|name| !is_ghost(name)).cloned().collect())
    }

    /// Adds a ghost that may be ignored by readers only (`passable_by` is `Read`) or by all contenders (`Write`).
    /// Returns whether the ghost is new.
    pub(super) fn enter(&self, directory: &str, name: &Arc<str>, passable_by: Mode) -> bool {
        let mut all = self.0.lock();
        if all.values().map(BTreeMap::len).sum::<usize>() >= KNOWN_MAX {
            all.clear();
        }
        let ghosts = all.entry(directory.into()).or_default();
        let before = ghosts.get(name).copied();
        if before != Some(Mode::Write) {
            ghosts.insert(Arc::clone(name), passable_by);
        }
        before.is_none()
    }
}

/// Returns whether a contender of `mode` may ignore a ghost with this `passable_by`, as in [`Known`].
pub(super) fn may_pass(mode: Mode, passable_by: Mode) -> bool {
    mode == Mode::Read || passable_by == Mode::Write
}

#[cfg(test)]
mod tests {
    use super::*;

    const FEW: bool = false;
    const LARGE: bool = true;

    /// Begins a listing for each of `callers` callers. Returns how many of them must send a listing, and the receivers
    /// of the others.
    fn begin(listings: &Listings, directory: &Arc<str>, callers: usize) -> (usize, Vec<watch::Receiver<Answer>>) {
        let all = (0..callers).map(|_| listings.begin(directory));
        let joined: Vec<_> = all.filter(|(_, sends)| sends.is_none()).map(|(answer, _)| answer).collect();
        (callers - joined.len(), joined)
    }

    #[test]
    fn at_most_four_listings_of_a_small_directory_run() {
        let (listings, directory) = (Listings::default(), Arc::from("/lock"));
        let (sent, joined) = begin(&listings, &directory, 6);
        assert_eq!((sent, joined.len()), (4, 2));
        let (next, is_large) = listings.end(&directory, FEW).expect("two callers wait for the next listing");
        assert_eq!((next.receiver_count(), is_large), (2, false));
        // The next listing is under way in place of the answered one, so a new caller still has to wait.
        assert_eq!(begin(&listings, &directory, 1).0, 0);
        let other = Arc::from("/other");
        assert_eq!(begin(&listings, &other, 4).0, 4, "each directory has its own limit");
    }

    #[test]
    fn a_large_directory_has_one_listing_at_a_time() {
        let (listings, directory) = (Listings::default(), Arc::from("/lock"));
        assert_eq!(begin(&listings, &directory, 2).0, 2);
        assert!(listings.end(&directory, LARGE).is_none(), "no caller waits");
        let (sent, joined) = begin(&listings, &directory, 1);
        assert_eq!((sent, joined.len()), (0, 1), "one is under way");
        let (next, is_large) = listings.end(&directory, LARGE).expect("one caller waits");
        assert_eq!((next.receiver_count(), is_large), (1, true));
    }

    #[test]
    fn a_new_limit_applies_to_listings_under_way() {
        let (listings, directory) = (Listings::default(), Arc::from("/lock"));
        let (_, joined) = begin(&listings, &directory, 5);
        assert_eq!(joined.len(), 1);
        for left in [3, 2, 1] {
            assert!(listings.end(&directory, LARGE).is_none(), "{left} are under way");
        }
        assert!(listings.end(&directory, LARGE).is_some(), "no other listing is under way");
    }

    #[test]
    fn no_listing_is_sent_for_dropped_callers() {
        let (listings, directory) = (Listings::default(), Arc::from("/lock"));
        drop(begin(&listings, &directory, 6));
        for _ in 0..4 {
            assert!(listings.end(&directory, FEW).is_none());
        }
        assert!(listings.0.lock().is_empty(), "a directory that is not listed takes no memory");
        assert!(listings.end(&directory, FEW).is_none());
    }
}
