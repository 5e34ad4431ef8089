//! The removal of one node of ours, by as many requests as it takes: a value that takes answers and returns the next
//! request. `contend/removal.rs` carries the requests out, and the exhaustive model (`tests/models/`) drives the same
//! value.
//!
//! ```text
//!           created                   done, or gone by an earlier try
//! Coming -------------> Deleting --------------------------------------> Restarting --> Gone
//!    |                  |  ^   ^   (of the last in a directory whose numbers are nearly used up)
//!    |   lost answer    v  |   | each node of ours
//!    |                  Cut    +--- Listing --> Gone
//!    |                  |  ^          ^
//!    |                  v  | link     |
//!    |                  Listing       |
//!    +--------------------------------+ the answer was lost, or one before it
//! ```

use crate::session::request::Failure;

/// The removal of a node of ours.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Leaving {
    /// The create is under way, but its owner was dropped. If the answer to an earlier create was lost, all nodes of the
    /// owner are removed (a sweep).
    Coming {
        /// Whether the answer to an earlier create was lost.
        sweeps: bool,
    },
    /// A node is being deleted.
    Deleting(Deletion),
    /// All nodes of the owner are listed, to find one whose create took effect although its answer was lost. The listing
    /// follows a sync. The sync is a later write of this session, so the lost create cannot take effect after it.
    Listing,
    /// The answer was lost. The same request is repeated once the connection is back.
    Cut(Box<Leaving>),
    /// The directory is being deleted, so that its numbers start again. The server refuses that while a contender is in
    /// it.
    Restarting,
    /// Nothing is left to do. [`Failure::NoNode`] means that the node was gone before the first request.
    Gone(Result<(), Failure>),
}

/// One deletion, and the steps that follow it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Deletion {
    /// The path of the node.
    pub path: String,
    /// Whether the same transaction also writes to the node. A waiter that watches the node sees its data change, and
    /// learns that the node was held and released.
    pub signals: bool,
    pub(super) restarts: bool,
    /// Whether an earlier try, whose answer was lost, may have deleted the node.
    pub(super) is_again: bool,
    pub(super) sweeps: bool,
    /// The nodes to delete afterwards, in reverse order.
    pub(super) rest: Vec<String>,
}

/// The next request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemovalRequest<'a> {
    /// Await the answer to the create.
    Created,
    /// Delete this node.
    Delete(&'a Deletion),
    /// Delete the directory.
    Restart,
    /// Sync, and list the nodes of the owner.
    List,
    /// Wait for the connection.
    Link,
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// To [`RemovalRequest::Created`]: the node's path.
    Created(Result<String, Failure>),
    /// To [`RemovalRequest::Delete`] and [`RemovalRequest::Restart`].
    Deleted(Result<(), Failure>),
    /// To [`RemovalRequest::List`]: the paths of the owner's nodes.
    Listed(Result<Vec<String>, Failure>),
    /// To [`RemovalRequest::Link`].
    Linked(Result<(), Failure>),
}

/// A fact that the caller reports, besides the next request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RemovalReport {
    /// The ensemble does not let this session write to its nodes.
    SignalRefused,
    /// A node cannot be removed. The next one is tried.
    Stays(String, Failure),
    /// The owner's nodes cannot be listed.
    Unlisted(Failure),
}

impl Leaving {
    /// Returns the removal of a node without a signal.
    pub fn delete(path: String) -> Leaving {
        Leaving::Deleting(Deletion { path, ..Deletion::default() })
    }

    /// Returns the next request, or the outcome if no request is left.
    ///
    /// # Errors
    /// Why the node stays, or that it was gone before the first request.
    pub fn next_request(&self) -> Result<RemovalRequest<'_>, &Result<(), Failure>> {
        Ok(match self {
            Leaving::Coming { .. } => RemovalRequest::Created,
            Leaving::Deleting(deletion) => RemovalRequest::Delete(deletion),
            Leaving::Listing => RemovalRequest::List,
            Leaving::Cut(_) => RemovalRequest::Link,
            Leaving::Restarting => RemovalRequest::Restart,
            Leaving::Gone(outcome) => return Err(outcome),
        })
    }

    /// Handles the answer to the last request.
    pub fn on(self, answer: Input) -> (Leaving, Option<RemovalReport>) {
        let next = match (self, answer) {
            (Leaving::Coming { sweeps }, Input::Created(created)) => match created {
                Ok(path) => Leaving::Deleting(Deletion { path, sweeps, ..Deletion::default() }),
                Err(over @ Failure::Over(_)) => Leaving::Gone(Err(over)),
                // A faulty server may deny the directory of a node that it has created.
                Err(Failure::Unknown(_) | Failure::NoNode) => Leaving::Listing,
                Err(_) if sweeps => Leaving::Listing,
                Err(_) => Leaving::Gone(Ok(())),
            },
            (Leaving::Deleting(deletion), Input::Deleted(answer)) => return deletion.on(answer),
            (Leaving::Listing, Input::Listed(listed)) => match listed {
                Ok(mut rest) => {
                    rest.reverse();
                    Deletion { rest, ..Deletion::default() }.ended(Ok(()))
                }
                Err(Failure::NoNode) => Leaving::Gone(Ok(())),
                Err(Failure::Unknown(_)) => Leaving::Cut(Box::new(Leaving::Listing)),
                Err(over @ Failure::Over(_)) => Leaving::Gone(Err(over)),
                Err(failure) => return (Leaving::Gone(Ok(())), Some(RemovalReport::Unlisted(failure))),
            },
            (Leaving::Cut(again), Input::Linked(Ok(()))) => *again,
            (Leaving::Cut(_), Input::Linked(Err(over))) => Leaving::Gone(Err(over)),
            (Leaving::Restarting, Input::Deleted(_)) => Leaving::Gone(Ok(())),
            // The answer belongs to another request.
            (it, _) => it,
        };
        (next, None)
    }
}

impl Deletion {
    fn on(mut self, answer: Result<(), Failure>) -> (Leaving, Option<RemovalReport>) {
        let (index, failure) = match answer {
            Ok(()) => return (self.ended(Ok(())), None),
            Err(Failure::Operation { index, failure }) => (index, *failure),
            Err(failure) => (0, failure),
        };
        match failure {
            Failure::NoNode if self.is_again => (self.ended(Ok(())), None),
            Failure::Unknown(_) => {
                self.is_again = true;
                (Leaving::Cut(Box::new(Leaving::Deleting(self))), None)
            }
            // A server that refuses the signal may still allow a plain delete, which waiters also see. A refused delete
            // says nothing about signals, because it concerns only this directory.
            Failure::NoAuth(_) | Failure::Refused(_) if self.signals && index == 0 => {
                self.signals = false;
                (Leaving::Deleting(self), Some(RemovalReport::SignalRefused))
            }
            failure => {
                let goes_on = self.sweeps || !self.rest.is_empty();
                let is_there = goes_on && !matches!(failure, Failure::NoNode | Failure::Over(_));
                let report = is_there.then(|| RemovalReport::Stays(self.path.clone(), failure.clone()));
                (self.ended(Err(failure)), report)
            }
        }
    }

    /// Returns the step after this deletion.
    fn ended(mut self, outcome: Result<(), Failure>) -> Leaving {
        match self.rest.pop() {
            _ if matches!(outcome, Err(Failure::Over(_))) => Leaving::Gone(outcome),
            Some(path) => Leaving::Deleting(Deletion { path, rest: self.rest, ..Deletion::default() }),
            None if self.sweeps => Leaving::Listing,
            None if self.restarts && outcome.is_ok() => Leaving::Restarting,
            None => Leaving::Gone(outcome),
        }
    }
}

#[cfg(test)]
mod tests;
