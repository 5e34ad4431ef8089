//! The timeout of an acquisition. Its error names the contenders in the way.

use std::pin::pin;
use std::time::Duration;

use crate::call;
use crate::contend::acquisition::Acquisition;
use crate::contend::queue_view::{QueueSnapshot, QueueView};
use crate::error::error::Error;
use crate::queue::member::Blockers;
use crate::queue::turn;

/// The longest time before the timeout at which a waiter asks the leader whether the contenders in the way are ghosts
/// (deleted nodes that our server still lists). If they are, the rest of the time suffices for a grant, even if commits
/// are slow.
const ASK_AHEAD: Duration = Duration::from_secs(2);

/// The longest time before the timeout at which a waiter reads the nodes of the contenders in the way, whose hosts and
/// labels the timeout error names.
pub(super) const LOOK_UP_AHEAD: Duration = Duration::from_millis(500);

impl Acquisition {
    /// Waits for `granted` until the timeout. The error of a timeout names the contenders in the way.
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
                    // If the contenders' nodes could not be read again, the error names the contenders of the last
                    // listing.
                    let blockers = found.flatten().unwrap_or_else(|| waiting.seen_in_the_way());
                    return Err(Error::Timeout { waited: timeout, blockers, cut_off });
                }
                blockers = &mut looking, if found.is_none() => found = Some(blockers),
            }
        }
    }

    /// Asks the leader whether the contenders in the way are ghosts (deleted nodes that our server still lists). Wakes
    /// the waiter if some are. Returns `false` if the acquisition has not listed the queue yet.
    async fn ask_for_ghosts(&self, waiting: &QueueView) -> bool {
        let snapshot = waiting.snapshot.lock().clone();
        let Some(QueueSnapshot { session, me, .. }) = snapshot else { return false };
        let Ok(names) = session.children(&self.handle.queue).await else { return true };
        let paths = &self.handle.paths;
        let ghosts = paths.ghosts_ahead(&session, &names, me.kind(), |names| turn::ahead_of(&me, names)).await;
        let mut has_ghosts = !ghosts.is_empty();
        let names = session.store().ghosts().without(&self.handle.queue, &names, me.mode());
        if let (Some(target), []) = (&self.target, &turn::ahead_of(&me, &names)[..]) {
            has_ghosts |= target.check_for_ghosts(&session).await;
        }
        // The waiter lists the queue again. The waiter is then granted the lock, or waits for other contenders.
        if has_ghosts {
            waiting.ghosts_found.notify_one();
        }
        true
    }

    /// Reads the contenders in the way, with their hosts and labels. `None` if the acquisition has not listed the queue yet.
    async fn in_the_way(&self, waiting: &QueueView) -> Option<Blockers> {
        let snapshot = waiting.snapshot.lock().clone();
        let QueueSnapshot { session, me, seen, .. } = snapshot?;
        let Ok(names) = session.children(&self.handle.queue).await else { return Some(seen.blockers) };
        Some(self.handle.paths.blockers(&session, &names, &me).await)
    }
}
