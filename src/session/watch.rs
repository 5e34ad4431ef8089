//! The watch on a node of ours: its request, by a contender that waits or by keep-alive, and the repetition of the request.
//! [`ContenderNode`] stores the watch and hears its event.

use std::future::Future;
use std::sync::Arc;

use crate::session::contract::Session;
use crate::session::node::ContenderNode;
use crate::session::presence;
use crate::session::request::Failure;
use crate::session::retry::RetryLimit;
use crate::telemetry::log::emit;

/// The most requests for a watch that one call of [`watch_own`] has under way at a time.
const ARMED_AT_ONCE: usize = 64;

impl ContenderNode {
    /// Sends a request for a watch on this node before this function returns. The returned future stores the watch.
    /// Returns `None` if a watch was requested already, or if no watch is needed.
    ///
    /// If the server answers that the node does not exist, the future asks the leader for the node. If the leader does
    /// not have the node either, the hold is lost. If the leader has the node, the future leaves the server. If no other server is
    /// left, it returns [`Failure::Diverged`], and the hold or the wait goes on.
    pub(crate) fn request_watch(
        self: &Arc<Self>,
        session: &Arc<dyn Session>,
    ) -> Option<impl Future<Output = Result<(), Failure>> + Send + use<>> {
        let path = self.change(|it| it.state.begin_to_watch())?;
        let (mut connection, mut watch) = (session.store().connection(), session.watch(&path));
        let (node, session) = (Arc::clone(self), Arc::clone(session));
        Some(async move {
            let answer = loop {
                let answer = watch.await;
                if answer.as_ref().err() != Some(&Failure::NoNode) {
                    break answer;
                }
                match presence::is_there(&session, &path, None).await {
                    Ok(true) => {}
                    Ok(false) => break Err(Failure::NoNode),
                    Err(failure) => break Err(failure),
                }
                if let Err(failure) = presence::leave(&session, connection, &path).await {
                    break Err(failure);
                }
                (connection, watch) = (session.store().connection(), session.watch(&path));
            };
            node.store_watch(&path, answer)
        })
    }
}

/// Arms the watches on these nodes, at most [`ARMED_AT_ONCE`] at a time, and repeats a request whose answer is lost.
pub(super) async fn watch_own(session: Arc<dyn Session>, mut unwatched: Vec<Arc<ContenderNode>>) {
    let mut tries = RetryLimit::ENDLESS;
    while !unwatched.is_empty() {
        let mut unknown = Vec::new();
        for some in unwatched.chunks(ARMED_AT_ONCE) {
            let requested: Vec<_> = some.iter().map(|node| (node, node.request_watch(&session))).collect();
            for (node, requested) in requested {
                let Some(stored) = requested else { continue };
                match stored.await {
                    Ok(()) | Err(Failure::Over(_)) => {}
                    Err(Failure::Unknown(_)) => unknown.push(Arc::clone(node)),
                    Err(failure) => cannot_watch(node, &failure),
                }
            }
        }
        unwatched = unknown;
        // If an answer was lost because the connection was lost, the server is not faulty. So the backoff starts again.
        if !session.lease().is_connected() {
            tries = RetryLimit::ENDLESS;
        }
        if !unwatched.is_empty() && tries.pause(&session).await.is_err() {
            return;
        }
    }
}

pub(crate) fn cannot_watch(node: &ContenderNode, failure: &Failure) {
    emit!(WARN, path = node.path(), %failure, "cannot watch a lock node of our own");
}
