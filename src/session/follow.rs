//! Watches a node on one session after another ([`watch_across_sessions`]). Copies of shared values and observers of
//! elections use this. [`until_node_may_exist`] waits for a node that does not exist yet.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use crate::session::contract::{Coordinator, Session, SessionSlot};
use crate::session::presence::{self, LeaderRecheckTimer, fail_if_session_ended};
use crate::session::request::Failure;
use crate::session::retry;

/// The pause after a failed request, before the node is watched or read again.
pub(crate) const PAUSE: Duration = Duration::from_secs(1);

/// The node or directory that [`watch_across_sessions`] watches.
pub(crate) trait NodeWatcher: Sync {
    /// Returns the client, or `None` if the node or directory need not be watched any more.
    fn coordinator(&self) -> Option<Arc<dyn Coordinator>>;

    /// Watches the node or directory on one session until a request fails.
    fn watch(&self, session: &Arc<dyn Session>) -> impl Future<Output = Result<Infallible, Failure>> + Send;

    /// Reports a failure of a request, or of [`Coordinator::session_slot`]. Not called for [`Failure::Unknown`] or
    /// [`Failure::Unreachable`], or when [`NodeWatcher::watch`] fails because its session is over. If the failure is
    /// [`Failure::Over`], [`watch_across_sessions`] then returns.
    fn report_failure(&self, failure: Failure);
}

/// Watches the node or directory of `it` until [`NodeWatcher::coordinator`] returns `None`, or until
/// [`Coordinator::session_slot`] fails because the client is closed or its credentials were refused.
pub(crate) async fn watch_across_sessions(it: &impl NodeWatcher) {
    let mut session_slot: Option<SessionSlot> = None;
    loop {
        let failure = match &session_slot {
            Some(on) => {
                let Err(failure) = it.watch(on.session()).await;
                if let Failure::Over(_) = failure {
                    until_end_recorded(on.session()).await;
                    session_slot = None;
                    continue;
                }
                failure
            }
            None => {
                let Some(coordinator) = it.coordinator() else { return };
                match coordinator.session_slot(0).await {
                    Ok(another) => {
                        session_slot = Some(another);
                        continue;
                    }
                    Err(failure @ Failure::Over(_)) => return it.report_failure(failure),
                    Err(failure) => failure,
                }
            }
        };
        // A lost answer or an unreachable ensemble says nothing about the node or directory, so it is not reported.
        if !matches!(failure, Failure::Unknown(_) | Failure::Unreachable(_)) {
            it.report_failure(failure);
        }
        let Some(pause) = it.coordinator().map(|coordinator| coordinator.sleep(PAUSE)) else { return };
        pause.await;
    }
}

/// Waits until the backend has recorded the end of the session, for up to a twentieth of the session timeout. A request
/// may fail a moment before the end is recorded. In between, the coordinator would return the same session again.
pub(crate) async fn until_end_recorded(session: &Arc<dyn Session>) {
    let _ending = retry::run_until(session.sleep(session.timeout() / 20), session.store().until_over()).await;
}

/// A pause before [`until_node_may_exist`] returns, so that a caller that calls it again at once does not repeat the
/// requests in a tight loop.
const LOOK_PAUSE: Duration = Duration::from_millis(20);

/// Waits until the node at `path` may exist, or for [`PAUSE`] after a failure. Fails only if the session is over.
/// Watches the children of the nearest ancestor that exists, because [`Session::watch`] fails for a missing node.
pub(crate) async fn until_node_may_exist(session: &Arc<dyn Session>, path: &str) -> Result<(), Failure> {
    let (mut wanted, mut look) = (path, LeaderRecheckTimer::new(session));
    loop {
        let (directory, name) = wanted.rsplit_once('/').unwrap_or_default();
        let directory = if directory.is_empty() { "/" } else { directory };
        match retry::repeat_until_known(session, || session.watch_children(directory)).await {
            // Either the node `name` was created just now, or a faulty server lists the node but answers reads of the
            // node with `NoNode`. For the second case, the pause keeps the caller from a tight loop.
            Ok((names, _)) if names.iter().any(|it| it == name) => {
                session.sleep(LOOK_PAUSE).await;
                return Ok(());
            }
            Ok((names, change)) => {
                drop(names);
                tokio::select! {
                    biased;
                    event = change => fail_if_session_ended(session, event).await?,
                    // The ensemble's leader has the node at `path`, although no event has come. If this session's
                    // server still lacks the node, the session moves to another server, if there is one.
                    () = look.until_leader_confirms(path, true) => {
                        let _diverged = presence::leave_differing_server(session, path, None).await;
                        wanted = path;
                        continue;
                    }
                }
                if wanted != path {
                    session.sleep(LOOK_PAUSE).await;
                }
                return Ok(());
            }
            Err(Failure::NoNode) if directory != "/" => wanted = directory,
            Err(failure @ Failure::Over(_)) => return Err(failure),
            Err(_) => {
                session.sleep(PAUSE).await;
                return Ok(());
            }
        }
    }
}
