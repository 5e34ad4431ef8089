//! One contender, from asking until its node is gone.
//!
//! - Asking: an [`acquisition`] has the options. [`flow`] leads it to a grant, or [`attempt`] without waiting.
//! - Waiting: [`wait`] for the turn, with a [`timeout`] and [`warnings`].
//! - Its node and its hold: [`tenure`], in a [`directory`]; [`changes`], [`transaction`].
//! - Leaving: [`removal`] deletes the node; [`exchange`] trades the node for a permit.
//!
//! Who is who: an `Acquisition` is what was asked for. A `Tenure` is its place and its hold, and a guard owns it. An `OwnNode` is the node
//! behind a lock, which the session's thread sees too; `NodeState` is what is known of it, and `Waiter` says what it does next. A
//! `Contender` is a node's name, parsed. A `Member` is a contender as people see it.

pub(crate) mod acquisition;
pub(crate) mod attempt;
pub(crate) mod changes;
pub(crate) mod directory;
pub(crate) mod exchange;
pub(crate) mod flow;
pub(crate) mod removal;
pub(crate) mod tenure;
pub(crate) mod timeout;
pub(crate) mod transaction;
pub(crate) mod wait;
pub(crate) mod warnings;
