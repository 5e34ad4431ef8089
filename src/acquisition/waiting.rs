//! Where an acquisition waits, by its last listing: for its timeout's error, and for the reads that share it; sends
//! nothing.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::queue::contender::Contender;
use crate::queue::member::Blockers;
use crate::session::contract::Session;
use crate::snapshot::progress::Progress;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, MutexGuard};

/// Where an acquisition waits, for the error of its timeout, and for the warning that it takes long.
pub(crate) struct Waiting {
    pub(crate) began: Instant,
    waits: Mutex<Option<Waits>>,
    /// Whether the warning is taken on. One is enough: the acquisition's own, or the background task's.
    is_warned_of: AtomicBool,
    /// Ends the background task's part when this is dropped.
    pub(crate) background: Mutex<Option<oneshot::Sender<()>>>,
}

impl Waiting {
    pub(crate) fn begin() -> Waiting {
        Waiting {
            began: Instant::now(),
            waits: Mutex::default(),
            is_warned_of: AtomicBool::new(false),
            background: Mutex::default(),
        }
    }

    pub(crate) fn waits(&self) -> MutexGuard<'_, Option<Waits>> {
        self.waits.lock()
    }

    /// Takes the warning on, if nothing else has.
    pub(crate) fn takes_warning_on(&self) -> bool {
        !self.is_warned_of.swap(true, Ordering::Relaxed)
    }

    /// Who is in the way of an acquisition that warns itself: nobody is known yet. One with a ticket leaves the warning to
    /// the session's background task.
    pub(crate) fn unwarned(&self) -> Option<Blockers> {
        self.takes_warning_on().then(Blockers::default)
    }

    /// Records what the acquisition saw when it listed the queue.
    pub(crate) fn sees(&self, session: &Arc<dyn Session>, me: &Contender, seen: Progress) {
        let mut waits = self.waits();
        let looks = waits.as_ref().map_or(1, |waits| waits.looks + 1);
        *waits = Some(Waits { session: Arc::clone(session), me: me.clone(), seen, looks });
    }

    /// The acquisition has ended: what it waited for is in the way of nobody.
    pub(crate) fn ends(&self) {
        let waits = self.waits().take();
        let background = self.background.lock().take();
        drop((waits, background));
    }

    /// The contenders in the way by the last listing.
    pub(crate) fn seen_in_the_way(&self) -> Blockers {
        self.waits().as_ref().map(|waits| waits.seen.blockers.clone()).unwrap_or_default()
    }
}

#[derive(Clone)]
pub(crate) struct Waits {
    pub(crate) session: Arc<dyn Session>,
    pub(crate) me: Contender,
    /// The acquisition's position by its last listing.
    pub(crate) seen: Progress,
    /// How many listings there were.
    pub(crate) looks: usize,
}

/// Where the acquisition waits, once it has listed the queue more than `looks` times. A listing wakes the read that
/// polls the shared acquisition, and with it all the reads that wait.
pub(crate) async fn looked_since(waiting: &Waiting, looks: usize) -> Waits {
    poll_fn(|_| match &*waiting.waits() {
        Some(waits) if waits.looks > looks => Poll::Ready(waits.clone()),
        _ => Poll::Pending,
    })
    .await
}
