//! How the node of a contender is replaced by another in one transaction: a writer's by a reader's, or a place at the head of a queue
//! by a node outside the queue.
//!
//! The exchange checks that our place is there, so the ensemble itself refuses a contender that is not at the head any more.
//! It ends as a writer's release does, so the next contender in the queue is let in by the same commit.

use crate::contend::tenure::Tenure;
use crate::error::error::Error;
use crate::queue::contender::Contender;
use crate::session::node::state::NodeState;
use crate::session::presence::{is_there, leader_still_has};
use crate::session::request::{Failure, Kind, Loss, Operation, Stat};
use crate::session::retry::{Tries, until_known};

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
    /// Dropping this removes whichever of the two nodes there is.
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

impl Tenure {
    pub(crate) async fn downgrade(&self) -> Result<(), Error> {
        self.change_to_read().await?;
        self.holding.lock().begin_read_hold(self.shown(), self.own_node());
        Ok(())
    }

    /// Replaces the node by a READ node.
    pub(crate) async fn change_to_read(&self) -> Result<(), Error> {
        if let Some(loss) = self.find_loss() {
            return Err(Error::Lost(loss));
        }
        self.swap().await.map_err(|failure| self.lost_by(failure, "downgrade"))
    }

    /// Replaces a WRITE node by a READ node of the same number, in one transaction.
    async fn swap(&self) -> Result<(), Failure> {
        let writer = self.own_node().contender();
        let reader = Contender::parse_as(&writer.downgraded(), writer.dialect());
        let Some(reader) = reader.filter(|_| self.own_node().read(NodeState::has_node)) else {
            return Err(Failure::NoNode);
        };
        let (from, to) = (self.child(writer.name()), self.child(reader.name()));
        let swap = [
            Operation::Create { path: to.clone(), data: self.note().to_vec(), kind: Kind::Ephemeral },
            Operation::Delete { path: from.clone(), version: None },
        ];
        let session = self.session();
        // From here on either name may be ours; if this future is dropped, both are removed.
        self.own_node().change(|it| it.known.begin_move(None));
        let mut tries = Tries::LOST_ANSWERS;
        loop {
            let failure = match session.transact(&swap).await {
                Ok(_) => break,
                Err(failure @ Failure::Unknown(_)) => {
                    tries.again(session, failure).await?;
                    continue;
                }
                // An earlier try, whose answer was lost, has replaced the node; or it is a stranger's; or it is gone by now.
                Err(Failure::Operation { failure, .. }) if *failure == Failure::NodeExists => {
                    match until_known(session, || session.data(&to)).await {
                        Ok((_, stat)) if stat.ephemeral_owner == session.id() => break,
                        // A server that denies the new node, or may not show it, does not overrule the leader, which has
                        // no old one any more.
                        Err(Failure::NoNode | Failure::NoAuth(_))
                            if is_there(session, &from, None).await == Ok(false) =>
                        {
                            break;
                        }
                        Err(Failure::NoNode) if !tries.are_over() => {
                            tries.pause(session).await?;
                            continue;
                        }
                        Ok(_) | Err(Failure::NoNode | Failure::NoAuth(_)) => *failure,
                        Err(failure) => failure,
                    }
                }
                Err(failure) => failure,
            };
            // If that is not known, either name may be ours.
            if !matches!(failure, Failure::Unknown(_)) {
                self.own_node().end_move(NodeState::cancel_move);
            }
            return Err(failure);
        }
        self.own_node().end_move(|it| it.downgraded(reader));
        session.upkeep().unwatched.add(self.own_node());
        Ok(())
    }

    /// Exchanges our place for another node. The place must be at the head of the queue.
    ///
    /// # Cancel safety
    /// Dropping this removes whichever of the two nodes there is.
    pub(crate) async fn exchange(&self, exchange: &Exchange<'_>) -> Result<(), NotExchanged> {
        let (session, own_node) = (self.session(), self.own_node());
        if !own_node.read(NodeState::has_node) {
            return Err(NotExchanged::Evicted);
        }
        own_node.change(|it| it.known.begin_move(Some(exchange.to.clone())));
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
                Tried::WithoutSignal => session.upkeep().record_signal_refused(),
            }
        };
        let stat = match answer {
            Ok(stat) if stat.ephemeral_owner == session.id() => stat,
            // The connection has changed to another session, and the node belongs to that session. It is not ours.
            Ok(_) => {
                return Err(NotExchanged::Failed(Failure::Refused(format!("{} is of another session", exchange.to))));
            }
            Err(why) => {
                own_node.end_move(NodeState::cancel_move);
                match why {
                    NotExchanged::Evicted => own_node.lose(Loss::Removed),
                    _ => session.upkeep().unwatched.add(own_node),
                }
                return Err(why);
            }
        };
        own_node.end_move(|it| it.exchanged(stat.czxid));
        session.upkeep().unwatched.add(own_node);
        Ok(())
    }

    async fn try_to_exchange(&self, exchange: &Exchange<'_>) -> Tried {
        let (session, from) = (self.session(), self.own_node().path());
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
