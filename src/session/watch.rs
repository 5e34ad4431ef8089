//! The request for the watch on a node that this library has created. Either a waiting contender or the task
//! `keep_alive` sends the request. [`Node`] stores the watch and receives its event.

use std::sync::Arc;

use futures_util::future::{FutureExt, OptionFuture};
use futures_util::stream::{self, StreamExt};

use crate::session::contract::Session;
use crate::session::node::Node;
use crate::session::presence;
use crate::session::request::{Failure, Reply, Watch};
use crate::session::retry::{RetryBudget, repeat_within_limit};
use crate::telemetry::log::emit;

/// The most requests for a watch that one call of [`watch_own_nodes`] has under way at a time.
const ARMED_AT_ONCE: usize = 64;

impl Node {
    /// Sends a request for a watch on this node before this function returns. The returned future stores the watch.
    /// Returns `None` if a watch was requested already, or if no watch is needed.
    ///
    /// If the server answers that the node does not exist, the ensemble's leader is asked. If the leader does not have
    /// the node either, the future records that the hold or the wait is lost. If the leader has the node, this client
    /// moves to another server, and requests the watch there. If there is no other server, the future returns
    /// [`Failure::Diverged`], and the hold or the wait goes on.
    pub(crate) fn request_watch(
        self: &Arc<Self>,
        session: &Arc<dyn Session>,
    ) -> Option<impl Future<Output = Result<(), Failure>> + Send + use<>> {
        let path = self.change(|it| it.state.take_path_to_watch())?;
        let (connection, watch) = (session.store().connection_number(), session.watch(&path));
        let (node, session) = (Arc::clone(self), Arc::clone(session));
        Some(async move {
            let answer = await_watch(&session, &path, connection, watch).await;
            node.store_watch(&path, answer)
        })
    }
}

/// Returns the watch on a node. `watch` is the reply to a request for that watch, which was sent on the connection with
/// the number `connection`. If the server answers that the node does not exist, but the leader has it, requests the
/// watch again from another server.
async fn await_watch(
    session: &Arc<dyn Session>,
    path: &str,
    mut connection: u64,
    mut watch: Reply<Watch>,
) -> Result<Watch, Failure> {
    loop {
        match watch.await {
            Err(Failure::NoNode) if presence::exists_at_leader(session, path, None).await? => {
                presence::leave_server(session, connection, path).await?;
                (connection, watch) = (session.store().connection_number(), session.watch(path));
            }
            answer => return answer,
        }
    }
}

/// Arms the watches on these nodes, at most [`ARMED_AT_ONCE`] at a time, and repeats a request whose answer is lost.
/// Logs any other failure, except the end of the session.
pub(super) async fn watch_own_nodes(session: Arc<dyn Session>, unwatched: Vec<Arc<Node>>) {
    let arm = async |node: Arc<Node>| {
        let request = || OptionFuture::from(node.request_watch(&session)).map(|stored| stored.unwrap_or(Ok(())));
        match repeat_within_limit(&session, RetryBudget::ENDLESS, request).await {
            Ok(()) | Err(Failure::Over(_)) => {}
            Err(failure) => log_cannot_watch(&node, &failure),
        }
    };
    stream::iter(unwatched).for_each_concurrent(ARMED_AT_ONCE, arm).await;
}

pub(crate) fn log_cannot_watch(node: &Node, failure: &Failure) {
    emit!(WARN, path = node.path(), %failure, "cannot watch a lock node of our own");
}
