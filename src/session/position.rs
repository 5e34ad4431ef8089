//! An own node with its contender: a position in a queue.

use std::sync::Arc;
use std::time::SystemTime;

use crate::queue::contender::Contender;
use crate::session::lease::Moment;
use crate::session::node::OwnNode;

/// When the first node of a position was created.
#[derive(Clone, Copy)]
pub(crate) struct Birth {
    /// On the ensemble's clock.
    pub(crate) ctime: SystemTime,
    /// On the session's clock: not before this moment.
    pub(crate) asked: Moment,
    /// On the session's clock: not after this moment.
    pub(crate) answered: Moment,
}

/// The position of an own node in a directory.
pub(crate) struct Position {
    pub(crate) contender: Contender,
    /// The number of the transaction that created the first node of this position: ensemble-wide, rising, never reset.
    pub(crate) czxid: i64,
    pub(crate) birth: Birth,
    pub(crate) own_node: Arc<OwnNode>,
}
