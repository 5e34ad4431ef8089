//! The queue as an acquisition that waits has last seen it.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use crate::queue::contender::Contender;
use crate::queue::member::{Blockers, Progress};
use crate::session::contract::Session;
use crate::sync::{Mutex, MutexGuard, Notify};

/// What an acquisition that waits has seen of the queue, for the error of its timeout.
#[derive(Default)]
pub(crate) struct QueueView {
    waits: Mutex<Option<QueueSnapshot>>,
    /// Notified when contenders in the way were found to be ghosts.
    ghosts_found: Notify,
}

impl QueueView {
    pub(crate) fn waits(&self) -> MutexGuard<'_, Option<QueueSnapshot>> {
        self.waits.lock()
    }

    /// Waits until contenders in the way are found to be ghosts.
    pub(crate) async fn ghosts_found(&self) {
        self.ghosts_found.notified().await;
    }

    pub(crate) fn notify_of_ghosts(&self) {
        self.ghosts_found.notify_one();
    }

    /// Records a listing of the queue.
    pub(crate) fn record(&self, session: &Arc<dyn Session>, me: &Contender, seen: Progress) {
        let mut waits = self.waits();
        let looks = waits.as_ref().map_or(1, |waits| waits.looks + 1);
        *waits = Some(QueueSnapshot { session: Arc::clone(session), me: me.clone(), seen, looks });
    }

    /// Forgets the listing, because the acquisition has ended.
    pub(crate) fn end(&self) {
        let waits = self.waits().take();
        drop(waits);
    }

    /// Returns the contenders in the way by the last listing.
    pub(crate) fn seen_in_the_way(&self) -> Blockers {
        self.waits().as_ref().map(|waits| waits.seen.blockers.clone()).unwrap_or_default()
    }
}

/// The last listing of an acquisition that waits.
#[derive(Clone)]
pub(crate) struct QueueSnapshot {
    pub(crate) session: Arc<dyn Session>,
    pub(crate) me: Contender,
    /// The position and the contenders in the way.
    pub(crate) seen: Progress,
    /// The number of listings so far.
    pub(crate) looks: usize,
}

/// Waits until the queue was listed more than `looks` times. A listing wakes the caller that polls the shared acquisition, and so
/// all callers that wait for it.
pub(crate) async fn next_listing(waiting: &QueueView, looks: usize) -> QueueSnapshot {
    poll_fn(|_| match &*waiting.waits() {
        Some(waits) if waits.looks > looks => Poll::Ready(waits.clone()),
        _ => Poll::Pending,
    })
    .await
}
