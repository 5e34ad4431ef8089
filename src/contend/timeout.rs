//! The timeout of an acquisition. Its error names the contenders in the way.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use crate::call;
use crate::contend::acquisition::Acquisition;
use crate::error::error::Error;
use crate::queue::contender::Contender;
use crate::queue::member::{Blockers, Progress};
use crate::queue::turn;
use crate::session::contract::Session;
use crate::sync::{Mutex, MutexGuard, Notify};

/// How long before its timeout, at most, a waiter asks the leader whether the contenders in the way are ghosts. If they are, the
/// rest of the time is enough for a grant, even if commits are slow.
const ASK_AHEAD: Duration = Duration::from_secs(2);

/// How long before its timeout, at most, a waiter reads which contenders the error is to name.
pub(super) const LOOK_UP_AHEAD: Duration = Duration::from_millis(500);

impl Acquisition {
    /// Waits for `granted` until the timeout. The error names the contenders in the way.
    pub(crate) async fn within<G>(
        &self,
        timeout: Duration,
        waiting: &QueueView,
        mut granted: impl Future<Output = Result<G, Error>> + Unpin,
    ) -> Result<G, Error> {
        let (ask, look_up) = (ASK_AHEAD.min(timeout / 5 * 2), LOOK_UP_AHEAD.min(timeout / 5));
        let mut late = call::late(&self.handle.coordinator, timeout);
        let mut looking = pin!(async {
            self.handle.coordinator.sleep(timeout - ask).await;
            let asked = self.ask_for_ghosts(waiting);
            let (is_asked, ()) = tokio::join!(asked, self.handle.coordinator.sleep(ask - look_up));
            if !is_asked {
                self.ask_for_ghosts(waiting).await;
            }
            self.in_the_way(waiting).await
        });
        let mut found = None;
        loop {
            tokio::select! {
                biased;
                answer = &mut granted => return answer,
                cut_off = &mut late => {
                    // While the session is disconnected, the last listing is the best answer.
                    let blockers = found.flatten().unwrap_or_else(|| waiting.seen_in_the_way());
                    return Err(Error::Timeout { waited: timeout, blockers, cut_off });
                }
                blockers = &mut looking, if found.is_none() => found = Some(blockers),
            }
        }
    }

    /// Asks the leader whether the contenders in the way are ghosts. Returns `false` if the acquisition does not wait in the
    /// queue yet.
    async fn ask_for_ghosts(&self, waiting: &QueueView) -> bool {
        let waits = waiting.waits().clone();
        let Some(QueueSnapshot { session, me, .. }) = waits else { return false };
        let Ok(names) = session.children(&self.handle.queue).await else { return true };
        let paths = &self.handle.paths;
        let ghosts = paths.ghosts_ahead(&session, &names, me.kind(), |names| turn::ahead_of(&me, names)).await;
        let mut has_ghosts = !ghosts.is_empty();
        let names = session.upkeep().ghosts().without(&self.handle.queue, &names, me.mode());
        if let (Some(goal), []) = (&self.goal, &turn::ahead_of(&me, &names)[..]) {
            has_ghosts |= goal.check_for_ghosts(&session).await;
        }
        // The waiter lists the queue again: it is granted, or waits for other contenders.
        if has_ghosts {
            waiting.notify_of_ghosts();
        }
        true
    }

    /// Reads the contenders in the way. `None` if the acquisition has not listed the queue yet.
    async fn in_the_way(&self, waiting: &QueueView) -> Option<Blockers> {
        let waits = waiting.waits().clone();
        let QueueSnapshot { session, me, seen, .. } = waits?;
        let Ok(names) = session.children(&self.handle.queue).await else { return Some(seen.blockers) };
        Some(self.handle.paths.blockers(&session, &names, &me).await)
    }
}

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
