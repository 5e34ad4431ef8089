//! What is known of an acquisition while it waits: for its timeout's error, and for those who share its node; sends nothing.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use crate::queue::contender::Contender;
use crate::queue::member::Blockers;
use crate::session::contract::Session;
use crate::session::listings::Names;
use crate::session::request::{Failure, Stat};
use crate::snapshot::on_wait::OnWait;
use crate::snapshot::progress::Progress;
use crate::sync::{Mutex, MutexGuard};

/// What to do if the turn has not come.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum IfTaken {
    Wait,
    GiveUp,
}

/// What an acquisition that has its ticket keeps until its turn has come.
pub(crate) struct Wait<'a> {
    pub(crate) patience: IfTaken,
    /// Records the contenders in the way.
    pub(crate) waiting: Option<&'a Waiting>,
    pub(crate) on_wait: Option<Box<OnWait>>,
    /// The listing that was requested together with the node. `None` after a create whose answer was lost.
    pub(crate) look: Option<Result<Names, Failure>>,
    /// What the last listing showed of the directory itself, if it is needed next.
    pub(crate) directory: Option<Box<Stat>>,
}

/// Where an acquisition waits, for the error of its timeout.
#[derive(Default)]
pub(crate) struct Waiting(Mutex<Option<Waits>>);

impl Waiting {
    pub(crate) fn waits(&self) -> MutexGuard<'_, Option<Waits>> {
        self.0.lock()
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
        drop(waits);
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
