//! One contender, from asking until its node is gone.
//!
//! - Asking: [`request`] has the options, [`flow`] the way to a grant, [`wait`] the turn, [`report`] who is in the way.
//! - Its node and its hold: [`tenure`], in a [`directory`]; [`changes`], [`transaction`].
//! - Leaving: [`removal`] deletes the node; [`exchange`] trades it for a permit.
//!
//! Who is who: an `Acquisition` is what was asked for. A `Tenure` is its place and its hold, and a guard owns it. An `OwnNode` is the node
//! behind a lock, which the session's thread sees too; `NodeState` is what is known of it, and `Waiter` says what it does next. A
//! `Contender` is a node's name, parsed. A `Member` is a contender as people see it.

pub(crate) mod changes;
pub(crate) mod directory;
pub(crate) mod exchange;
pub(crate) mod flow;
pub(crate) mod removal;
pub(crate) mod report;
pub(crate) mod request;
pub(crate) mod tenure;
pub(crate) mod transaction;
pub(crate) mod wait;
