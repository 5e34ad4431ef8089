//! A node of ours with its place in a queue; knows nothing of the contenders around it.

use std::sync::Arc;

use crate::queue::contender::Contender;
use crate::queue::local::Key;
use crate::session::node::OwnNode;

/// A node of ours that is in the directory.
#[derive(Debug)]
pub(crate) struct Position {
    pub(crate) contender: Contender,
    /// The number of the transaction that created the first node of this place: ensemble-wide, rising, never reset.
    pub(crate) czxid: i64,
    pub(crate) own_node: Arc<OwnNode>,
    pub(crate) number: u64,
    /// What no other place of this process has.
    pub(crate) id: u64,
}

impl Position {
    pub(crate) fn new(contender: Contender, czxid: i64, own_node: Arc<OwnNode>, number: u64, id: u64) -> Position {
        Position { contender, czxid, own_node, number, id }
    }

    pub(crate) fn key(&self) -> Key {
        Key { number: self.contender.sequence(), id: self.id }
    }
}
