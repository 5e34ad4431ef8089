//! One contender, from asking until its node is gone.
//!
//! - Asking: [`request`] has the options, [`flow`] the way to a grant, [`wait`] the turn, [`report`] who is in the way.
//! - Its node and its hold: [`tenure`], in a [`directory`]; [`changes`], [`transaction`].
//! - Leaving: [`removal`] deletes the node; [`exchange`] trades it for a permit.

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
