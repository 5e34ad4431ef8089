//! One contender, from the first request until its node is gone.
//!
//! - Asking: an [`acquisition`] has the options. [`flow`] leads it to a grant, or [`attempt`] without waiting.
//! - Waiting: [`wait`] for the turn, with a [`timeout`] and [`warnings`]; a [`queue_view`] has the last listing.
//! - Its node and its hold: [`handle`], in a [`directory`]; [`changes`], [`transaction`].
//! - Leaving: [`removal`] deletes the node; [`exchange`] trades the node for a permit.
//!
//! The types: an `Acquisition` is one call of the user. A `ContenderHandle` is the handle of its node, and later of its hold; a guard owns
//! it. An `ContenderNode` is the node behind a lock, shared with the session's thread. `NodeState` is the machine of that node, and
//! `Waiter` decides the next step of a wait. A `Contender` is the parsed name of a node. A `Member` is a contender as people see
//! it.

pub(crate) mod acquisition;
pub(crate) mod attempt;
pub(crate) mod changes;
pub(crate) mod directory;
pub(crate) mod exchange;
pub(crate) mod flow;
pub(crate) mod handle;
pub(crate) mod queue_view;
pub(crate) mod removal;
pub(crate) mod timeout;
pub(crate) mod transaction;
pub(crate) mod wait;
pub(crate) mod warnings;
