//! The timeout of an acquisition: its error names the contenders in the way, as recently as they can be read.

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

/// How long before its timeout an acquisition asks the leader for those in its way, at most. If they are ghosts, it is granted
/// within that time, also by servers that commit slowly.
const ASK_AHEAD: Duration = Duration::from_secs(2);

/// How long before its timeout an acquisition looks up whom its error is to name, at most.
pub(super) const LOOK_UP_AHEAD: Duration = Duration::from_millis(500);

impl Acquisition {
    /// Waits for the grant until the timeout. The error then names the contenders in the way, by `waiting`.
    pub(crate) async fn within<G>(
        &self,
        timeout: Duration,
        waiting: &WaitReport,
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
                    // While cut off, the last listing is the best answer.
                    let blockers = found.flatten().unwrap_or_else(|| waiting.seen_in_the_way());
                    return Err(Error::Timeout { waited: timeout, blockers, cut_off });
                }
                blockers = &mut looking, if found.is_none() => found = Some(blockers),
            }
        }
    }

    /// Asks the leader for those in the way of a waiter. Returns whether it is one already.
    async fn ask_for_ghosts(&self, waiting: &WaitReport) -> bool {
        let waits = waiting.waits().clone();
        let Some(WaitSnapshot { session, me, .. }) = waits else { return false };
        let Ok(names) = session.children(&self.handle.queue).await else { return true };
        let paths = &self.handle.paths;
        let ghosts = paths.ghosts_ahead(&session, &names, me.kind(), |names| turn::ahead_of(&me, names)).await;
        let mut has_ghosts = !ghosts.is_empty();
        let names = session.upkeep().ghosts().without(&self.handle.queue, &names, me.mode());
        if let (Some(goal), []) = (&self.goal, &turn::ahead_of(&me, &names)[..]) {
            has_ghosts |= goal.check_for_ghosts(&session).await;
        }
        // It is granted, or it waits for others.
        if has_ghosts {
            waiting.notify_of_ghosts();
        }
        true
    }

    /// The contenders in the way of a waiter, as far as that can be read now. `None` if it has not listed any yet.
    async fn in_the_way(&self, waiting: &WaitReport) -> Option<Blockers> {
        let waits = waiting.waits().clone();
        let WaitSnapshot { session, me, seen, .. } = waits?;
        let Ok(names) = session.children(&self.handle.queue).await else { return Some(seen.blockers) };
        Some(self.handle.paths.blockers(&session, &names, &me).await)
    }
}

/// Where an acquisition waits, for the error of its timeout.
#[derive(Default)]
pub(crate) struct WaitReport {
    waits: Mutex<Option<WaitSnapshot>>,
    /// Contenders in the way were found to be ghosts.
    ghosts_found: Notify,
}

impl WaitReport {
    pub(crate) fn waits(&self) -> MutexGuard<'_, Option<WaitSnapshot>> {
        self.waits.lock()
    }

    /// Waits until contenders in the way were found to be ghosts since the last listing.
    pub(crate) async fn ghosts_found(&self) {
        self.ghosts_found.notified().await;
    }

    pub(crate) fn notify_of_ghosts(&self) {
        self.ghosts_found.notify_one();
    }

    /// Records what the acquisition saw when it listed the queue.
    pub(crate) fn record(&self, session: &Arc<dyn Session>, me: &Contender, seen: Progress) {
        let mut waits = self.waits();
        let looks = waits.as_ref().map_or(1, |waits| waits.looks + 1);
        *waits = Some(WaitSnapshot { session: Arc::clone(session), me: me.clone(), seen, looks });
    }

    /// The acquisition has ended: what it waited for is in the way of nobody.
    pub(crate) fn end(&self) {
        let waits = self.waits().take();
        drop(waits);
    }

    /// The contenders in the way by the last listing.
    pub(crate) fn seen_in_the_way(&self) -> Blockers {
        self.waits().as_ref().map(|waits| waits.seen.blockers.clone()).unwrap_or_default()
    }
}

/// What its last listing has shown.
#[derive(Clone)]
pub(crate) struct WaitSnapshot {
    pub(crate) session: Arc<dyn Session>,
    pub(crate) me: Contender,
    /// The acquisition's position by its last listing.
    pub(crate) seen: Progress,
    /// How many listings there were.
    pub(crate) looks: usize,
}

/// Where the acquisition waits, once it has listed the queue more than `looks` times. A listing wakes the read that
/// polls the shared acquisition, and with it all the reads that wait.
pub(crate) async fn looked_since(waiting: &WaitReport, looks: usize) -> WaitSnapshot {
    poll_fn(|_| match &*waiting.waits() {
        Some(waits) if waits.looks > looks => Poll::Ready(waits.clone()),
        _ => Poll::Pending,
    })
    .await
}
