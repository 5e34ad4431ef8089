//! The queue in the last listing of a waiting acquisition.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use crate::queue::member::{Blockers, Member, Progress};
use crate::queue::node_name::NodeName;
use crate::session::contract::Session;
use crate::sync::{Mutex, Notify};

/// The last listing of a waiting acquisition, for its timeout error and for its progress reports.
#[derive(Default)]
pub(crate) struct QueueView {
    pub(crate) snapshot: Mutex<Option<LastListing>>,
    /// Whether the user has set a listener with `on_wait`. If so, an acquisition of permits lists both the queue and
    /// the holders of permits for each snapshot.
    pub(crate) has_listener: bool,
    /// Notified when the ensemble's leader does not have a node that the acquisition waits for, although this client's
    /// server may still list that node. Only the first contender in a semaphore's queue waits for this. It then lists
    /// the holders of permits again.
    pub(crate) look_again: Notify,
}

impl QueueView {
    /// Stores a listing of the queue. `seen` may have only the names of the nodes. If the last snapshot has the data of
    /// a node in `seen`, copies the data from there.
    pub(crate) fn record_listing(&self, session: &Arc<dyn Session>, me: &NodeName, mut seen: Progress) {
        let mut snapshot = self.snapshot.lock();
        let known = snapshot.iter().flat_map(|before| &before.seen.blockers.first).filter(|it| it.token.is_some());
        for read in known {
            if let Some(member) = seen.blockers.first.iter_mut().find(|member| member.node == read.node) {
                *member = Member { state: member.state.clone(), ..read.clone() };
            }
        }
        let listings = snapshot.as_ref().map_or(1, |snapshot| snapshot.listings + 1);
        *snapshot = Some(LastListing { session: Arc::clone(session), me: me.clone(), seen, listings });
    }

    /// Drops the listing, because the acquisition has ended.
    pub(crate) fn clear(&self) {
        let snapshot = self.snapshot.lock().take();
        drop(snapshot);
    }

    /// Returns the contenders that the acquisition waits for according to the last listing.
    pub(crate) fn last_blockers(&self) -> Blockers {
        self.snapshot.lock().as_ref().map(|snapshot| snapshot.seen.blockers.clone()).unwrap_or_default()
    }
}

/// The last listing of a waiting acquisition.
#[derive(Clone)]
pub(crate) struct LastListing {
    pub(crate) session: Arc<dyn Session>,
    pub(crate) me: NodeName,
    /// The acquisition's place in the queue, and the contenders that it waits for.
    pub(crate) seen: Progress,
    /// How many listings the acquisition has made so far.
    pub(crate) listings: usize,
}

/// Waits until the acquisition has listed the queue more than `listings` times, and returns the last listing.
///
/// This future registers no waker, because the task that polls it also polls the acquisition. Whatever wakes the
/// acquisition also wakes this future. If several tasks wait for one acquisition of a kept node, all of them are woken.
pub(crate) async fn next_listing(view: &QueueView, listings: usize) -> LastListing {
    poll_fn(|_| match &*view.snapshot.lock() {
        Some(snapshot) if snapshot.listings > listings => Poll::Ready(snapshot.clone()),
        _ => Poll::Pending,
    })
    .await
}
