//! Nodes that a session's server shows though the ensemble no longer has them, as far as the leader has said so. No name
//! ever comes again, so none of them is asked for twice.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::queue::mode::Mode;
use crate::sync::{HashMap, Mutex};

/// How many ghosts a session knows at most.
const KNOWN_MAX: usize = 10_000;

/// The ghosts that a session knows, by their directories. A writer may have become a reader, which the server does not show:
/// then it is a ghost for reads only.
#[derive(Default)]
pub(crate) struct Ghosts(Mutex<HashMap<Arc<str>, Directory>>);

/// By name, with the mode of those that may pass over it: a read, or all.
type Directory = BTreeMap<Arc<str>, Mode>;

impl Ghosts {
    /// The ghosts for this mode among these names of a directory.
    pub(crate) fn among(&self, directory: &str, names: &[String], mode: Mode) -> Vec<Arc<str>> {
        let all = self.0.lock();
        let Some(ghosts) = all.get(directory) else { return Vec::new() };
        let known = names.iter().filter_map(|name| ghosts.get_key_value(&**name));
        known.filter(|(_, by)| passes(mode, **by)).map(|(name, _)| Arc::clone(name)).collect()
    }

    /// As [`Ghosts::among`], of all that the server shows there now. Forgets what it no longer shows.
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

    /// These names without the ghosts for this mode.
    pub(crate) fn without<'n>(&self, directory: &str, names: &'n [String], mode: Mode) -> Cow<'n, [String]> {
        let ghosts = self.among(directory, names, mode);
        if ghosts.is_empty() {
            return Cow::Borrowed(names);
        }
        let is_ghost = |name: &&String| ghosts.iter().any(|ghost| **ghost == ***name);
        Cow::Owned(names.iter().filter(|name| !is_ghost(name)).cloned().collect())
    }

    /// Enters a ghost that may be passed over by this mode. Returns whether it was not known at all.
    pub(super) fn enter(&self, directory: &str, name: &Arc<str>, by: Mode) -> bool {
        let mut all = self.0.lock();
        if all.values().map(BTreeMap::len).sum::<usize>() >= KNOWN_MAX {
            all.clear();
        }
        let ghosts = all.entry(directory.into()).or_default();
        let before = ghosts.get(name).copied();
        if before != Some(Mode::Write) {
            ghosts.insert(Arc::clone(name), by);
        }
        before.is_none()
    }
}

/// Whether this mode may pass over a ghost that is one by the other.
pub(super) fn passes(mode: Mode, by: Mode) -> bool {
    mode == Mode::Read || by == Mode::Write
}
