//! How a place at the head of a queue is exchanged for a node outside the queue, in one transaction.
//!
//! The transaction checks that our place is there, so the ensemble itself refuses a contender that is not at the head any more.
//! It ends as a writer's release does, so the next contender in the queue is let in by the same commit.

use crate::contend::ticket::Ticket;
use crate::session::node::state::NodeState;
use crate::session::presence::leader_still_has;
use crate::session::request::{Failure, Kind, Loss, Operation, Stat};
use crate::session::retry::Tries;

/// What a place is exchanged for.
pub(crate) struct Exchange<'a> {
    /// The path of the new node. No other node ever has it.
    pub(crate) to: String,
    pub(crate) data: &'a [u8],
    /// The exchange is made only if this node has this version.
    pub(crate) unchanged: (&'a str, i32),
}

/// Why a place was not exchanged.
pub(crate) enum NotExchanged {
    /// Our place was gone.
    Evicted,
    /// The node that must not change has changed. We keep our place.
    Changed,
    /// The directory of the new node does not exist. We keep our place.
    NoDirectory,
    /// Dropping the ticket removes whichever of the two nodes there is.
    Failed(Failure),
}

/// The operations of the transaction, by their index.
const OWN_PLACE: usize = 0;
const UNCHANGED: usize = 1;
const NEW_NODE: usize = 2;
const SIGNAL: usize = 3;

/// What one try of the transaction has shown.
enum Tried {
    Done(Stat),
    /// Our place is gone, and the server denies the new node. It is there if this try was carried out, or an earlier one
    /// whose answer was lost.
    Unseen {
        is_done: bool,
    },
    /// There is no new node, and none will be.
    NotDone(NotExchanged),
    /// There may be a new node.
    Failed(Failure),
    /// The server refuses the signal. A plain delete serves as well: see `removal.rs`.
    WithoutSignal,
}

impl Ticket {
    /// Exchanges our place for another node. The place must be at the head of the queue.
    ///
    /// # Cancel safety
    /// Dropping the ticket removes whichever of the two nodes there is.
    pub(crate) async fn exchange(&self, exchange: &Exchange<'_>) -> Result<(), NotExchanged> {
        let (session, own_node) = (self.session(), self.node());
        if !own_node.read(NodeState::has_node) {
            return Err(NotExchanged::Evicted);
        }
        own_node.change(|it| it.known.moves(Some(exchange.to.clone())));
        let (mut tries, mut denials, mut may_be_done) = (Tries::LOST_ANSWERS, Tries::DENIALS, false);
        let answer = loop {
            match self.try_to_exchange(exchange).await {
                Tried::Done(stat) => break Ok(stat),
                Tried::NotDone(why) => break Err(why),
                // What the ensemble has committed, no server can deny: the leader is asked.
                Tried::Unseen { is_done } => {
                    may_be_done |= is_done;
                    let is_there = may_be_done
                        && leader_still_has(session, &exchange.to, &mut denials).await.map_err(NotExchanged::Failed)?;
                    if !is_there {
                        break Err(NotExchanged::Evicted);
                    }
                }
                Tried::Failed(failure) => {
                    may_be_done = true;
                    tries.again(session, failure).await.map_err(NotExchanged::Failed)?;
                }
                Tried::WithoutSignal => session.upkeep().signal_refused(),
            }
        };
        let stat = match answer {
            Ok(stat) if stat.ephemeral_owner == session.id() => stat,
            // The connection has changed to another session, and the node belongs to that session. It is not ours.
            Ok(_) => {
                return Err(NotExchanged::Failed(Failure::Refused(format!("{} is of another session", exchange.to))));
            }
            Err(why) => {
                own_node.moved(NodeState::stays);
                match why {
                    NotExchanged::Evicted => own_node.lose(Loss::Removed),
                    _ => session.upkeep().nodes().unwatched.add(own_node),
                }
                return Err(why);
            }
        };
        own_node.moved(|it| it.exchanged(stat.czxid));
        session.upkeep().nodes().unwatched.add(own_node);
        Ok(())
    }

    async fn try_to_exchange(&self, exchange: &Exchange<'_>) -> Tried {
        let (session, from) = (self.session(), self.node().path());
        let (to, (unchanged, version)) = (exchange.to.clone(), exchange.unchanged);
        let mut operations = vec![
            Operation::Check { path: from.clone(), version: None },
            Operation::Check { path: unchanged.to_owned(), version: Some(version) },
            Operation::Create { path: to.clone(), data: exchange.data.to_vec(), kind: Kind::Ephemeral },
        ];
        let signals = !session.upkeep().is_signal_refused();
        if signals {
            operations.push(Operation::Set { path: from.clone(), data: Vec::new(), version: None });
        }
        operations.push(Operation::Delete { path: from, version: None });
        // The read is answered after the transaction, and shows what became of it. It also shows the number of the
        // creating transaction, which some servers leave out of the answer to a transaction.
        let (answer, seen) = (session.transact(&operations), session.data(&to));
        match (answer.await, seen.await) {
            (_, Ok((_, stat))) => Tried::Done(stat),
            (Ok(_), Err(Failure::NoNode)) => Tried::Unseen { is_done: true },
            (Err(Failure::Operation { index, failure }), Err(Failure::NoNode)) => match (index, *failure) {
                (OWN_PLACE, Failure::NoNode) => Tried::Unseen { is_done: false },
                (UNCHANGED, Failure::BadVersion) => Tried::NotDone(NotExchanged::Changed),
                (NEW_NODE, Failure::NoNode) => Tried::NotDone(NotExchanged::NoDirectory),
                (SIGNAL, Failure::NoAuth(_) | Failure::Refused(_)) if signals => Tried::WithoutSignal,
                (_, failure) => Tried::NotDone(NotExchanged::Failed(failure)),
            },
            (Err(failure @ (Failure::Unknown(_) | Failure::Over(_))), _) => Tried::Failed(failure),
            (Err(failure), Err(Failure::NoNode)) => Tried::NotDone(NotExchanged::Failed(failure)),
            (_, Err(failure)) => Tried::Failed(failure),
        }
    }
}
