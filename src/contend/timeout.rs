//! The timeout of an acquisition. Its error names the contenders in the way.

use std::convert::Infallible;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;

use crate::call;
use crate::contend::acquisition::Acquisition;
use crate::contend::queue_view::{QueueSnapshot, QueueView};
use crate::error::error::Error;
use crate::queue::turn;
use crate::session::contract::Session;
use crate::session::listing;
use crate::session::request::Names;

/// The longest time before the timeout at which a waiter asks the leader for the contenders in the way. If our server lists
/// one that the leader does not have, the rest of the time suffices for a grant at another server, even if commits are slow.
const ASK_AHEAD: Duration = Duration::from_secs(2);

/// The longest time before the timeout at which a waiter reads the nodes of the contenders in the way, whose hosts and
/// labels the timeout error names.
pub(super) const LOOK_UP_AHEAD: Duration = Duration::from_millis(500);

impl Acquisition {
    /// Waits for `granted` until the timeout. The error of a timeout names the contenders in the way.
    pub(crate) async fn within<G>(
        &self,
        timeout: Duration,
        view: &QueueView,
        granted: impl Future<Output = Result<G, Error>>,
    ) -> Result<G, Error> {
        let (ask, look_up) = (ASK_AHEAD.min(timeout / 5 * 2), LOOK_UP_AHEAD.min(timeout / 5));
        let looking = async {
            self.config.coordinator.sleep(timeout - ask).await;
            let asked = self.ask_the_leader(view);
            let until_look_up = self.config.coordinator.sleep(ask - look_up).map(Ok);
            if let (false, ()) = tokio::try_join!(asked, until_look_up)? {
                self.ask_the_leader(view).await?;
            }
            self.look_up(view).await;
            pending::<Result<Infallible, Error>>().await
        };
        tokio::select! {
            biased;
            answer = granted => answer,
            cut_off = call::late(&self.config.coordinator, timeout) => {
                Err(Error::Timeout { waited: timeout, blockers: view.seen_in_the_way(), cut_off })
            }
            Err(diverged) = looking => Err(diverged),
        }
    }

    /// Asks the leader for the contenders in the way. Leaves the server if it lists one that the leader does not have. Returns
    /// `false` if the acquisition has not listed the queue yet.
    async fn ask_the_leader(&self, view: &QueueView) -> Result<bool, Error> {
        let snapshot = view.snapshot.lock().clone();
        let Some(QueueSnapshot { session, me, .. }) = snapshot else { return Ok(false) };
        let Some(names) = self.list_once_connected(&session).await else { return Ok(true) };
        let gone = self.config.paths.are_some_gone(&session, &turn::ahead_of(&me, &names)).await;
        if gone.map_err(|failure| self.config.stop(failure))? {
            view.look_again.notify_one();
        }
        Ok(true)
    }

    /// Lists the queue, once the session is connected: what is sent without a connection is sent after the reconnect, when
    /// this acquisition may have ended.
    async fn list_once_connected(&self, session: &Arc<dyn Session>) -> Option<Names> {
        session.connected().await.ok()?;
        listing::list(session, &self.config.queue).await.ok()
    }

    /// Reads the contenders in the way, and stores them with their hosts and labels. If their nodes cannot be read, the
    /// contenders of the last listing stay.
    async fn look_up(&self, view: &QueueView) {
        let snapshot = view.snapshot.lock().clone();
        if let Some(QueueSnapshot { session, me, .. }) = snapshot
            && let Some(names) = self.list_once_connected(&session).await
        {
            let blockers = self.config.paths.blockers(&session, &names, &me).await;
            if let Some(snapshot) = &mut *view.snapshot.lock() {
                snapshot.seen.blockers = blockers;
            }
        }
    }
}
