//! Lost creates that may be carried out after their owners have looked for their nodes and left.
//!
//! Servers refuse the requests that a session sent to another server before. But a server that was stopped or cut off may
//! still have a create when the session comes back to it, and the leader then takes the create for one of the new
//! connection. The server sends it before the requests of that connection, so a new listing shows the node.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::queue::contender::Tag;
use crate::session::lease::{Lease, Moment};
use crate::sync::Mutex;

/// The number of session timeouts for which a server may keep a request that it has not sent to the leader. A follower keeps it
/// for `syncLimit` ticks, by default 5, and a session timeout is 2 ticks or more.
const KEPT_FOR: u32 = 10;

/// The directory and the owner of each such create, and until when it is expected, the oldest first.
#[derive(Default)]
pub(super) struct LateCreates(Mutex<VecDeque<(Moment, Arc<str>, Tag)>>);

impl LateCreates {
    /// Records that a create of this owner may be carried out late.
    pub(super) fn expect(&self, lease: &Lease, directory: &Arc<str>, tag: &Tag) {
        let until = lease.now().saturating_add(KEPT_FOR * lease.timeout());
        let mut expected = self.0.lock();
        forget_old(&mut expected, lease);
        expected.push_back((until, Arc::clone(directory), tag.clone()));
    }

    /// Returns the owners of the creates that are still expected, by directory.
    pub(super) fn by_directory(&self, lease: &Lease) -> BTreeMap<Arc<str>, Vec<Tag>> {
        let mut expected = self.0.lock();
        forget_old(&mut expected, lease);
        let expected = expected.clone();
        let mut owners = BTreeMap::<_, Vec<Tag>>::new();
        for (_, directory, tag) in expected {
            owners.entry(directory).or_default().push(tag);
        }
        owners
    }
}

fn forget_old(expected: &mut VecDeque<(Moment, Arc<str>, Tag)>, lease: &Lease) {
    let now = lease.now();
    while expected.front().is_some_and(|(until, ..)| *until <= now) {
        expected.pop_front();
    }
}
