//! How a node of ours is removed, by as many requests as that takes: a value that takes answers and says what to ask next.
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
//!
//! `contend/removal.rs` carries it out. The exhaustive model drives the same value.

use crate::session::request::Failure;

/// A node of ours on its way out.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Leaving {
    /// The create is under way of a node that nobody wants any more. All nodes of its owner are swept if the answer to an earlier
    /// create was lost.
    Coming {
        /// Whether one was.
        sweeps: bool,
    },
    /// A node is being deleted.
    Deleting(Deletion),
    /// All nodes of the owner are looked for, also one whose create took effect although its answer was lost. The listing follows a
    /// sync, which is a later write of this session, so the lost create cannot take effect after it.
    Listing,
    /// The answer was lost. The same is asked again once the connection is back.
    Cut(Box<Leaving>),
    /// The directory is being deleted, so that its numbers begin anew. That is refused while any contender is in it.
    Restarting,
    /// Nothing is left to do. [`Failure::NoNode`] says that the node had gone before we asked.
    Gone(Result<(), Failure>),
}

/// One deletion, and what follows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Deletion {
    /// The node.
    pub path: String,
    /// It is written to in the same transaction: a waiter that watches the node sees its data change, and so knows that the node
    /// was held and released.
    pub signals: bool,
    pub(super) restarts: bool,
    /// An earlier try, whose answer was lost, may have deleted it.
    pub(super) is_again: bool,
    pub(super) sweeps: bool,
    /// The nodes to delete next, the last one first.
    pub(super) rest: Vec<String>,
}

/// What to ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask<'a> {
    /// The answer to the create.
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

/// What was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// To [`Ask::Created`]: the node's path.
    Created(Result<String, Failure>),
    /// To [`Ask::Delete`] and [`Ask::Restart`].
    Deleted(Result<(), Failure>),
    /// To [`Ask::List`]: the paths of the owner's nodes.
    Listed(Result<Vec<String>, Failure>),
    /// To [`Ask::Link`].
    Linked(Result<(), Failure>),
}

/// What else an answer has shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shown {
    /// The ensemble does not let this session write to its nodes.
    SignalRefused,
    /// A node cannot be removed, and the next one is.
    Stays(String, Failure),
    /// The owner's nodes cannot be looked for.
    Unlisted(Failure),
}

impl Leaving {
    /// A node is deleted, without a signal.
    pub fn delete(path: String) -> Leaving {
        Leaving::Deleting(Deletion { path, ..Deletion::default() })
    }

    /// What to ask for now; the outcome if there is nothing left to ask.
    ///
    /// # Errors
    /// Why the node stays, or that it had gone before we asked.
    pub fn asks(&self) -> Result<Ask<'_>, &Result<(), Failure>> {
        Ok(match self {
            Leaving::Coming { .. } => Ask::Created,
            Leaving::Deleting(deletion) => Ask::Delete(deletion),
            Leaving::Listing => Ask::List,
            Leaving::Cut(_) => Ask::Link,
            Leaving::Restarting => Ask::Restart,
            Leaving::Gone(outcome) => return Err(outcome),
        })
    }

    /// The answer has come to what it asks.
    pub fn on(self, answer: Input) -> (Leaving, Option<Shown>) {
        let next = match (self, answer) {
            (Leaving::Coming { sweeps }, Input::Created(created)) => match created {
                Ok(path) => Leaving::Deleting(Deletion { path, sweeps, ..Deletion::default() }),
                Err(over @ Failure::Over(_)) => Leaving::Gone(Err(over)),
                // A server that errs can deny the directory of a node that it has made.
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
                Err(failure) => return (Leaving::Gone(Ok(())), Some(Shown::Unlisted(failure))),
            },
            (Leaving::Cut(again), Input::Linked(Ok(()))) => *again,
            (Leaving::Cut(_), Input::Linked(Err(over))) => Leaving::Gone(Err(over)),
            (Leaving::Restarting, Input::Deleted(_)) => Leaving::Gone(Ok(())),
            // It answers something else.
            (it, _) => it,
        };
        (next, None)
    }
}

impl Deletion {
    fn on(mut self, answer: Result<(), Failure>) -> (Leaving, Option<Shown>) {
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
            // A server that refuses the signal may still allow a plain delete, which waiters also see. A refused delete is about
            // this directory alone.
            Failure::NoAuth(_) | Failure::Refused(_) if self.signals && index == 0 => {
                self.signals = false;
                (Leaving::Deleting(self), Some(Shown::SignalRefused))
            }
            failure => {
                let goes_on = self.sweeps || !self.rest.is_empty();
                let is_there = goes_on && !matches!(failure, Failure::NoNode | Failure::Over(_));
                let shown = is_there.then(|| Shown::Stays(self.path.clone(), failure.clone()));
                (self.ended(Err(failure)), shown)
            }
        }
    }

    /// What follows this deletion.
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
