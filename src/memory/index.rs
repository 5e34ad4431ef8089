//! Which sessions watch a path, and which nodes a session owns; knows what the ensemble tells it, and no tree.
//!
//! An ensemble of a hundred thousand sessions cannot look at all of them for each change, nor at all nodes for each session
//! that ends.

use std::collections::BTreeSet;

use crate::memory::tree::{Change, Owned};
use crate::sync::HashMap;

/// The sessions by what they watch, and the ephemeral nodes by their sessions.
#[derive(Default)]
pub(super) struct Index {
    /// By the key of the watch. May name a session whose watch has fired since.
    watching: HashMap<String, BTreeSet<i64>>,
    /// They are late to hear of a change, and must be told of every one: a watch may be armed in what is past.
    lagging: BTreeSet<i64>,
    owned: HashMap<i64, BTreeSet<String>>,
}

impl Index {
    pub(super) fn watches(&mut self, session: i64, key: &str) {
        self.watching.entry(key.to_owned()).or_default().insert(session);
    }

    pub(super) fn watches_no_more(&mut self, session: i64, key: &str) {
        if let Some(sessions) = self.watching.get_mut(key) {
            sessions.remove(&session);
            if sessions.is_empty() {
                self.watching.remove(key);
            }
        }
    }

    pub(super) fn lags(&mut self, session: i64, lags: bool) {
        if lags {
            self.lagging.insert(session);
        } else {
            self.lagging.remove(&session);
        }
    }

    /// The sessions that must hear of these changes, in the order of their numbers.
    pub(super) fn concerned(&self, changes: &[Change]) -> BTreeSet<i64> {
        let watch = changes.iter().filter_map(|(path, _)| self.watching.get(path)).flatten();
        watch.chain(&self.lagging).copied().collect()
    }

    /// An ephemeral node came or went.
    pub(super) fn notes(&mut self, node: Owned) {
        let Owned { session, path, is_there } = node;
        let paths = self.owned.entry(session).or_default();
        if is_there {
            paths.insert(path);
        } else {
            paths.remove(&path);
        }
        if paths.is_empty() {
            self.owned.remove(&session);
        }
    }

    /// The ephemeral nodes of a session, in the order of their paths.
    pub(super) fn owned_by(&self, session: i64) -> Vec<String> {
        self.owned.get(&session).into_iter().flatten().cloned().collect()
    }

    /// The ephemeral nodes are these, and no others.
    pub(super) fn owns_anew(&mut self, all: impl Iterator<Item = Owned>) {
        self.owned.clear();
        all.for_each(|node| self.notes(node));
    }
}
