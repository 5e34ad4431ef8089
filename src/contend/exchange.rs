//! The exchange of a contender's node for another node in one transaction. A downgrade exchanges a WRITE node for a
//! READ node. The first contender in a semaphore's queue exchanges its node for a permit.
//!
//! The transaction fails if our node is gone. The exchange for a permit writes to our node and deletes it, as a
//! writer's release does. So the next contender in the queue takes the exchange for a hand-off, and becomes the first.
//! If servers refuse the write, the exchange only deletes our node, and the next contender lists the queue.

use crate::contend::contender::Contender;
use crate::error::error::Error;
use crate::queue::node_name::NodeName;
use crate::session::node::state::NodeState;
use crate::session::presence::{await_retry_if_leader_has, exists_at_leader};
use crate::session::request::{Failure, Kind, Loss, Operation, parent_path};
use crate::session::retry::RetryBudget;

/// The indices of three operations in the transaction of [`Contender::exchange_node`]: the check of our node, the
/// create of the new node, and the write to our node that signals the hand-off to waiters.
const OWN_PLACE: usize = 0;
const NEW_NODE: usize = 2;
const SIGNAL: usize = 3;

impl Contender {
    pub(crate) async fn downgrade(&self) -> Result<(), Error> {
        self.downgrade_untraced().await?;
        self.trace.lock().begin_read_hold(self.user_path(), self.node());
        Ok(())
    }

    /// Downgrades: replaces the WRITE node by a READ node. Fails if the lock is lost.
    pub(crate) async fn downgrade_untraced(&self) -> Result<(), Error> {
        if let Some(loss) = self.detect_loss() {
            return Err(Error::Lost(loss));
        }
        self.replace_by_read_node().await.map_err(|failure| self.holder_error(failure, "downgrade"))
    }

    /// Replaces the WRITE node by a READ node with the same sequence number. Fails if this contender has no node.
    /// Repeats the transaction while its outcome is unknown, up to a limit.
    async fn replace_by_read_node(&self) -> Result<(), Failure> {
        let writer = self.node().node_name();
        let reader = NodeName::parse_as(&writer.name_after_downgrade(), writer.dialect());
        let Some(reader) = reader.filter(|_| self.node().read(NodeState::has_node)) else {
            return Err(Failure::NoNode);
        };
        let (from, to) = (self.child_path(writer.as_str()), self.child_path(reader.as_str()));
        let swap = [
            Operation::Create { path: to.clone(), data: self.node_data().to_vec(), kind: Kind::Ephemeral },
            Operation::Delete { path: from.clone(), version: None },
        ];
        let session = self.session();
        // From here on, the WRITE node or the READ node may exist. If this future is dropped, dropping the contender
        // removes whichever exists.
        self.node().change(|it| it.state.begin_replacement(None));
        let (mut tries, mut may_be_done) = (RetryBudget::LOST_ANSWERS, false);
        loop {
            let failure = match session.transact(&swap).await {
                Ok(_) => break,
                Err(failure @ Failure::Unknown(_)) => {
                    may_be_done = true;
                    tries.await_retry(session, failure).await?;
                    continue;
                }
                // The reply to an earlier try was lost, and the READ node exists. If the leader no longer has the WRITE
                // node, the earlier try was carried out. If the leader still has the WRITE node, another client has
                // created the READ node.
                Err(Failure::Operation { failure, .. }) if may_be_done && *failure == Failure::NodeExists => {
                    match exists_at_leader(session, &from, None).await {
                        Ok(false) => break,
                        Ok(true) => *failure,
                        Err(failure) => failure,
                    }
                }
                Err(failure) => failure,
            };
            // After an unknown outcome the node stays marked as moving, because the WRITE node or the READ node may
            // exist.
            if !matches!(failure, Failure::Unknown(_)) {
                self.node().end_replacement(NodeState::record_not_replaced);
            }
            return Err(failure);
        }
        self.node().end_replacement(|it| it.record_downgrade(reader));
        session.store().unwatched.add(self.node());
        Ok(())
    }

    /// Exchanges our node, the first in the queue, for a new node at `to`. The caller must choose a path that no other
    /// request creates. Repeats the transaction while its outcome is unknown, up to a limit. The exchange fails if the
    /// node `unchanged` has another version than the given one.
    ///
    /// # Errors
    /// - [`Failure::NoNode`]: our node, or the node `unchanged`, did not exist.
    /// - [`Failure::BadVersion`]: the node `unchanged` has another version. Our node stays.
    /// - [`Failure::NoParent`]: the directory of `to` does not exist. Our node stays.
    ///
    /// After another failure, dropping the contender removes our node or the node `to`, whichever exists.
    ///
    /// # Cancel safety
    /// Dropping the contender removes our node or the node `to`, whichever exists.
    pub(crate) async fn exchange_node(&self, to: &str, (unchanged, version): (&str, i32)) -> Result<(), Failure> {
        let (session, node) = (self.session(), self.node());
        if !node.read(NodeState::has_node) {
            return Err(Failure::NoNode);
        }
        let from = node.path();
        let mut operations = vec![
            Operation::Check { path: from.clone(), version: None },
            Operation::Check { path: unchanged.to_owned(), version: Some(version) },
            Operation::Create { path: to.to_owned(), data: self.node_data().to_vec(), kind: Kind::Ephemeral },
            Operation::Set { path: from.clone(), data: Vec::new(), version: None },
            Operation::Delete { path: from, version: None },
        ];
        node.change(|it| it.state.begin_replacement(Some(to.to_owned())));
        let (mut tries, mut denials, mut may_be_done) = (RetryBudget::LOST_ANSWERS, RetryBudget::DENIALS, false);
        let failure = loop {
            let signals = !session.store().is_signal_refused(self.directory());
            operations.retain(|it| signals || !matches!(it, Operation::Set { .. }));
            // The server answers the read after the transaction, so the read shows the outcome. The read also returns
            // the czxid of the new node, which some servers leave out of the reply to a transaction.
            let (answer, seen) = (session.transact(&operations), session.data(to));
            match (answer.await, seen.await) {
                (_, Ok((_, stat))) if stat.ephemeral_owner == session.id() => {
                    node.end_replacement(|it| it.record_exchange(stat.czxid));
                    session.store().unwatched.add(node);
                    return Ok(());
                }
                // Another session owns the new node, although no other client creates a node at this path. So the
                // server has replaced our session by another one, and the node of that session is no grant for us.
                (_, Ok(_)) => return Err(Failure::Refused(format!("{to} is of another session"))),
                // The new node may exist, because the transaction got no reply, or because the read after it failed.
                (Err(failure @ (Failure::Unknown(_) | Failure::Over(_))), _) | (_, Err(failure))
                    if failure != Failure::NoNode =>
                {
                    may_be_done = true;
                    tries.await_retry(session, failure).await?;
                    continue;
                }
                (Ok(_), _) => may_be_done = true,
                (Err(Failure::Operation { index, failure }), _) => match (index, *failure) {
                    (OWN_PLACE, Failure::NoNode) => {}
                    (NEW_NODE, Failure::NoNode) => break Failure::NoParent(parent_path(to).to_owned()),
                    (SIGNAL, Failure::NoAuth(_) | Failure::Refused(_)) if signals => {
                        session.store().record_signal_refused(self.directory());
                        continue;
                    }
                    (_, failure) => break failure,
                },
                (Err(failure), _) => break failure,
            }
            // Our node is gone, and our server, which may lag behind, does not show the new node. If a try may have
            // created the new node, the ensemble's leader is asked.
            if !may_be_done || !await_retry_if_leader_has(session, to, &mut denials).await? {
                node.end_replacement(NodeState::record_not_replaced);
                node.record_loss(Loss::Removed);
                return Err(Failure::NoNode);
            }
        };
        node.end_replacement(NodeState::record_not_replaced);
        session.store().unwatched.add(node);
        Err(failure)
    }
}
