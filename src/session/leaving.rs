//! The removal of a node that this library has created, and of its owner's orphans (nodes whose creates had no answer),
//! as a state machine without I/O. Each step of [`NodeRemoval`], except `Gone`, awaits an answer, which decides the
//! next step. `session/removal.rs` sends the requests, and the exhaustive model (`tests/models/`) drives the same
//! machine.
//!
//! | step | answer | next step |
//! |---|---|---|
//! | `Coming` | the node was created | `Deleting` |
//! | | the answer was lost, or is `NoNode` | `Listing` |
//! | | another failure, and the answer to an earlier create was lost | `Listing` |
//! | | another failure | `Gone` |
//! | `Deleting` | deleted, or `NoNode` to a repeated delete | the first that applies: `Deleting` the next listed node, `Listing`, `Restarting` (if the sequence numbers of the directory are nearly used up), `Gone` |
//! | | the write that signals the release was refused | `Deleting`, without that write |
//! | | another failure | as after "deleted", but not `Restarting` |
//! | `Listing` | the nodes of the owner | `Deleting` the first of them, or `Gone` if there are none |
//! | | failed | `Gone` |
//! | `Restarting` | any | `Gone` |
//! | `Deleting` or `Listing` | the answer was lost | `Cut` |
//! | `Cut` | the connection is back | the step before it |
//! | any | the session is over | `Gone` |

use crate::session::request::Failure;

/// The present step of the removal of one node that this library has created.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum NodeRemoval {
    /// The owner has left before the answer to its create came. The removal awaits the answer, and then deletes the
    /// created node.
    Coming {
        /// Whether the answer to an earlier create was lost, so that the removal also lists and deletes all nodes of
        /// the owner.
        lists_after: bool,
    },
    /// A node is being deleted.
    Deleting(Deletion),
    /// All nodes of the owner are being listed, to be deleted next. The listing also finds a node that was created
    /// although the answer to its create was lost. A sync is sent before the listing, and takes effect after every
    /// create that this session sent earlier. Only a server that was cut off may still carry out such a create later,
    /// so `session/removal.rs::remove_late_nodes` lists the nodes again after each reconnect.
    Listing,
    /// The answer to a request was lost. The removal waits for the connection, and then repeats the step in the box.
    Cut(Box<NodeRemoval>),
    /// The directory is being deleted, so that its sequence numbers start again at zero. The server refuses the
    /// deletion while the directory has a child.
    Restarting,
    /// The removal has ended, with this result. [`Failure::NoNode`] means that the last node to delete did not exist,
    /// and that this removal has not deleted it.
    Gone(Result<(), Failure>),
}

/// The deletion of one node, and the steps that follow the deletion.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Deletion {
    /// The path of the node.
    pub path: String,
    /// Whether the transaction that deletes the node also sets its data, which signals the release. A waiter that
    /// watches the node then receives "data changed" and knows that a holder has released the lock.
    pub signals: bool,
    /// Whether the directory is deleted after the successful deletion of the last node, so that its sequence numbers
    /// start again at zero.
    pub(super) restarts: bool,
    /// Whether the node may be gone already, for example because the answer to an earlier delete was lost.
    /// [`Failure::NoNode`] then counts as a success.
    pub(super) is_again: bool,
    /// Whether all nodes of the owner are listed and deleted afterwards, because the answer to an earlier create was
    /// lost.
    pub(super) lists_after: bool,
    /// The paths of further nodes to delete afterwards. The last one is deleted first.
    pub(super) rest: Vec<String>,
}

/// The answer to the request of a removal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RemovalStepAnswer {
    /// In [`NodeRemoval::Coming`], the answer to the create: the node's path.
    Created(Result<String, Failure>),
    /// In [`NodeRemoval::Deleting`], the answer to the delete of the node. In [`NodeRemoval::Restarting`], the answer
    /// to the delete of the directory.
    Deleted(Result<(), Failure>),
    /// In [`NodeRemoval::Listing`]: the paths of the owner's nodes.
    Listed(Result<Vec<String>, Failure>),
    /// In [`NodeRemoval::Cut`]: the session is connected, or over.
    Linked(Result<(), Failure>),
}

/// An event of a removal, for the caller to log or to record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RemovalReport {
    /// The server refuses to let this session set the data of its own node. The delete is repeated without that write.
    SignalRefused,
    /// The node at this path cannot be deleted. The removal goes on with its next step.
    Stays(String, Failure),
    /// The owner's nodes cannot be listed, so a node may stay until the session ends.
    Unlisted(Failure),
}

impl NodeRemoval {
    /// Returns the removal of the node at `path` by a plain delete, without the write that signals the release.
    pub fn by_plain_delete(path: String) -> NodeRemoval {
        NodeRemoval::Deleting(Deletion { path, ..Deletion::default() })
    }

    /// Returns the removal of the node at `path`. A late create (carried out after its owner had left) has made this
    /// node.
    pub(super) fn of_late_create(path: String) -> NodeRemoval {
        NodeRemoval::Deleting(Deletion { path, is_again: true, ..Deletion::default() })
    }

    /// Handles the answer to the request of this step. Returns the next step, and an event to report if there is one.
    pub fn advance(self, answer: RemovalStepAnswer) -> (NodeRemoval, Option<RemovalReport>) {
        let next = match (self, answer) {
            (NodeRemoval::Coming { lists_after }, RemovalStepAnswer::Created(created)) => match created {
                Ok(path) => NodeRemoval::Deleting(Deletion { path, lists_after, ..Deletion::default() }),
                Err(over @ Failure::Over(_)) => NodeRemoval::Gone(Err(over)),
                // The owner's nodes are also listed after `NoNode`, because a faulty server may create the node and yet
                // answer that the directory does not exist.
                Err(Failure::Unknown(_) | Failure::NoNode) => NodeRemoval::Listing,
                Err(_) if lists_after => NodeRemoval::Listing,
                Err(_) => NodeRemoval::Gone(Ok(())),
            },
            (NodeRemoval::Deleting(deletion), RemovalStepAnswer::Deleted(answer)) => return deletion.advance(answer),
            (NodeRemoval::Listing, RemovalStepAnswer::Listed(listed)) => match listed {
                Ok(mut rest) => {
                    rest.reverse();
                    Deletion { rest, ..Deletion::default() }.next_step(Ok(()))
                }
                Err(Failure::NoNode) => NodeRemoval::Gone(Ok(())),
                Err(Failure::Unknown(_)) => NodeRemoval::Cut(Box::new(NodeRemoval::Listing)),
                Err(over @ Failure::Over(_)) => NodeRemoval::Gone(Err(over)),
                Err(failure) => return (NodeRemoval::Gone(Ok(())), Some(RemovalReport::Unlisted(failure))),
            },
            (NodeRemoval::Cut(again), RemovalStepAnswer::Linked(Ok(()))) => *again,
            (NodeRemoval::Cut(_), RemovalStepAnswer::Linked(Err(over))) => NodeRemoval::Gone(Err(over)),
            (NodeRemoval::Restarting, RemovalStepAnswer::Deleted(_)) => NodeRemoval::Gone(Ok(())),
            // The answer does not belong to this step, so it is ignored.
            (it, _) => it,
        };
        (next, None)
    }
}

impl Deletion {
    fn advance(mut self, answer: Result<(), Failure>) -> (NodeRemoval, Option<RemovalReport>) {
        let (index, failure) = match answer {
            Ok(()) => return (self.next_step(Ok(())), None),
            Err(Failure::Operation { index, failure }) => (index, *failure),
            Err(failure) => (0, failure),
        };
        match failure {
            Failure::NoNode if self.is_again => (self.next_step(Ok(())), None),
            Failure::Unknown(_) => {
                self.is_again = true;
                (NodeRemoval::Cut(Box::new(NodeRemoval::Deleting(self))), None)
            }
            // A server that refuses to set the data may still allow a plain delete, which also notifies the waiters.
            // Only a refusal of the write (operation 0), or of the whole request, shows that the write is not allowed.
            Failure::NoAuth(_) | Failure::Refused(_) if self.signals && index == 0 => {
                self.signals = false;
                (NodeRemoval::Deleting(self), Some(RemovalReport::SignalRefused))
            }
            failure => {
                let goes_on = self.lists_after || !self.rest.is_empty();
                let is_there = goes_on && !matches!(failure, Failure::NoNode | Failure::Over(_));
                let report = is_there.then(|| RemovalReport::Stays(self.path.clone(), failure.clone()));
                (self.next_step(Err(failure)), report)
            }
        }
    }

    /// Returns the step after this deletion has ended with `outcome`.
    fn next_step(mut self, outcome: Result<(), Failure>) -> NodeRemoval {
        match self.rest.pop() {
            _ if matches!(outcome, Err(Failure::Over(_))) => NodeRemoval::Gone(outcome),
            Some(path) => NodeRemoval::Deleting(Deletion { path, rest: self.rest, ..Deletion::default() }),
            None if self.lists_after => NodeRemoval::Listing,
            None if self.restarts && outcome.is_ok() => NodeRemoval::Restarting,
            None => NodeRemoval::Gone(outcome),
        }
    }
}

#[cfg(test)]
mod tests;
