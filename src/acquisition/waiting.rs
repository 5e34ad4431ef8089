//! Where an acquisition waits, as far as it has looked: for its timeout's error, and for those who wait with it.

use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Poll;

use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::queue::contender::Contender;
use crate::queue::member::Blockers;
use crate::session::contract::Session;
use crate::snapshot::progress::Progress;

/// Where an acquisition waits, for the error that its timeout gives, and for the warning that it takes long.
pub(crate) struct Waiting {
    pub(crate) began: Instant,
    waits: Mutex<Option<Waits>>,
    /// One warning is enough: the acquisition's own, or that of the session's background.
    is_warned_of: AtomicBool,
    /// Ends the background's part, when this is dropped.
    pub(crate) background: OnceLock<oneshot::Sender<()>>,
}

impl Waiting {
    pub(crate) fn begin() -> Waiting {
        Waiting {
            began: Instant::now(),
            waits: Mutex::default(),
            is_warned_of: AtomicBool::new(false),
            background: OnceLock::new(),
        }
    }

    pub(crate) fn waits(&self) -> MutexGuard<'_, Option<Waits>> {
        self.waits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the warning is left to whoever asks.
    pub(crate) fn takes_warning_on(&self) -> bool {
        !self.is_warned_of.swap(true, Ordering::Relaxed)
    }

    /// The acquisition has looked at the queue.
    pub(crate) fn sees(&self, session: &Arc<dyn Session>, me: &Contender, seen: Progress) {
        let mut waits = self.waits();
        let looks = waits.as_ref().map_or(1, |waits| waits.looks + 1);
        *waits = Some(Waits { session: Arc::clone(session), me: me.clone(), seen, looks });
    }

    /// Who was in the way when it last looked.
    pub(crate) fn seen_in_the_way(&self) -> Blockers {
        self.waits().as_ref().map(|waits| waits.seen.blockers.clone()).unwrap_or_default()
    }
}

#[derive(Clone)]
pub(crate) struct Waits {
    pub(crate) session: Arc<dyn Session>,
    pub(crate) me: Contender,
    /// Where it stood when it last looked.
    pub(crate) seen: Progress,
    /// How often it has looked.
    pub(crate) looks: usize,
}

/// Where it waits, once it has looked more than so often. Whoever takes a shared acquisition on has been woken by that,
/// and so have all who wait for it.
pub(crate) async fn looked_since(waiting: &Waiting, looks: usize) -> Waits {
    poll_fn(|_| match &*waiting.waits() {
        Some(waits) if waits.looks > looks => Poll::Ready(waits.clone()),
        _ => Poll::Pending,
    })
    .await
}
