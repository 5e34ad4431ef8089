//! The state of one node of ours, from before its create until it is given back: decisions alone, with no I/O, lock or
//! clock. [`ContenderNode`](crate::session::node::ContenderNode) keeps it behind a lock, and the exhaustive model (`tests/models/`)
//! drives it.
//!
//! ```text
//!              asked                 created               granted
//! new --> Absent --> Coming -----------------> Waiting ------------> Holding
//!            ^         |                        |   ^                 |   ^
//!            +---------+                        v   |                 v   |
//!     refused, or the answer was lost           Moving                Moving
//!
//! In each phase the node can be left or dropped. The phase is Left then, and the caller gets the removals to carry out.
//! Moving: the node is being replaced, by the node of a reader (a downgrade), or of a permit (which a waiter holds
//! afterwards).
//! ```
//!
//! A lost node also has the reason of the loss, which is set once and never taken back. There are five reasons: the
//! session is over; the lease had a gap since the grant (for a waiter: since the lease was first valid); the hold
//! exceeded its limit; the node was removed; a stranger forged the grant. The owner of a lost node still leaves the node,
//! and deletes it in case it exists.

use std::sync::Arc;
use std::time::SystemTime;

use crate::queue::contender::Contender;
use crate::queue::mode::{self, Mode};
use crate::session::lease::Moment;
use crate::session::leaving::{Deletion, Leaving};
use crate::session::request::{Created, Ending, Event, Failure, Loss};

/// The phase of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Phase {
    /// No create was sent, or the create failed.
    #[default]
    Absent,
    /// The create is under way.
    Coming,
    /// The node is in the queue.
    Waiting,
    /// The node is held, in this epoch of the lease.
    Holding(u64),
    /// The node is being replaced by another one, while held in this epoch of the lease, or while waiting (`None`). The
    /// end of the old node is no loss.
    Moving(Option<u64>),
    /// The node is being deleted, or was deleted.
    Left,
}

/// When the first node of a contender was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Creation {
    /// The time on the ensemble's clock.
    pub(crate) ctime: SystemTime,
    /// A moment before the create, on the session's clock.
    pub(crate) sent: Moment,
    /// A moment after the create, on the session's clock.
    pub(crate) answered: Moment,
}

/// The facts that show a loss, other than the removal of the node.
pub(crate) struct Evidence {
    pub(crate) over: Option<Ending>,
    /// The epoch of the lease, if the lease is valid.
    pub(crate) valid_in: Option<u64>,
    /// Whether the hold has exceeded its limit.
    pub(crate) is_held_too_long: bool,
}

/// The state of one node of ours.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NodeState {
    phase: Phase,
    /// The contender. Before the create is answered, its name has no number yet.
    contender: Arc<Contender>,
    path: String,
    /// The id of the transaction that created the node: unique in the ensemble, rising, never reset.
    token: i64,
    creation: Creation,
    /// The number of the connection on which the create was sent, as `SessionStore::connection` counts them.
    connection: u64,
    /// Whether there may be an orphan in the queue: a node of ours that no answer has shown, because the answer to a
    /// create was lost, or because the node was left during a downgrade.
    may_have_orphan: bool,
    /// A node outside the queue that an exchange may have made, until an answer shows it.
    unseen: Option<String>,
    /// While the node waits: the epoch of the lease on which it relies, if the lease has been valid at all.
    valid_since: Option<u64>,
    loss: Option<Loss>,
    /// Whether the loss of the hold was reported.
    is_reported: bool,
    /// Whether a watch on this node was requested and has not fired yet.
    is_watched: bool,
}

impl NodeState {
    /// Returns the state of a node in this directory before its create. The contender's name has no number yet.
    pub fn new(directory: &str, contender: Contender) -> NodeState {
        NodeState {
            phase: Phase::Absent,
            path: format!("{directory}/{}", contender.name()),
            contender: Arc::new(contender),
            token: 0,
            creation: Creation { ctime: SystemTime::UNIX_EPOCH, sent: Moment::MAX, answered: Moment::MAX },
            connection: 0,
            may_have_orphan: false,
            unseen: None,
            valid_since: None,
            loss: None,
            is_reported: false,
            is_watched: false,
        }
    }

    /// Records that the create was sent.
    pub fn create_sent(&mut self, now: Moment, connection: u64) {
        (self.phase, self.connection) = (Phase::Coming, connection);
        self.creation.sent = self.creation.sent.min(now);
    }

    /// Records that the create failed, or that its answer was lost.
    pub fn refused(&mut self, failure: &Failure) {
        self.phase = Phase::Absent;
        self.may_have_orphan |= matches!(failure, Failure::Unknown(_));
    }

    /// Records that a create may have been carried out although its answer denies it.
    pub fn suspect_orphan(&mut self) {
        self.may_have_orphan = true;
    }

    /// Records the created node, or the node that was found after a lost answer.
    ///
    /// # Errors
    /// The node belongs to another session, or its name is no contender's name.
    pub fn created(&mut self, created: &Created, session: i64, now: Moment) -> Result<(), Failure> {
        self.phase = Phase::Absent;
        let name = created.path.rsplit('/').next().unwrap_or_default();
        if created.ephemeral_owner != session {
            // The connection now belongs to another session, and so does the node.
            return Err(Failure::Refused(format!("node {name} belongs to another session")));
        }
        let Some(contender) = Contender::parse_as(name, self.contender.dialect()) else {
            return Err(Failure::Refused(format!("the server named the node {name:?}, which is no contender's name")));
        };
        self.phase = Phase::Waiting;
        self.path.truncate(self.path.rfind('/').map_or(0, |end| end + 1));
        self.path.push_str(name);
        (self.contender, self.token) = (Arc::new(contender), created.czxid);
        (self.creation.ctime, self.creation.answered) = (created.ctime, now);
        Ok(())
    }

    /// Marks the node as held, for as long as this epoch of the lease lasts.
    pub fn hold(&mut self, epoch: u64) {
        self.phase = Phase::Holding(epoch);
    }

    /// Begins a move: the node is being replaced, by one outside the queue at this path, or by another in the queue
    /// (`None`).
    pub fn begin_move(&mut self, outside: Option<String>) {
        match self.phase {
            Phase::Holding(epoch) => self.phase = Phase::Moving(Some(epoch)),
            Phase::Waiting => self.phase = Phase::Moving(None),
            _ => {}
        }
        self.unseen = outside;
    }

    /// Records that the node was replaced by this reader's node.
    pub fn downgraded(&mut self, reader: Contender) {
        if self.finish_move_at(self.path_of(reader.name())) {
            self.contender = Arc::new(reader);
        }
    }

    /// Records that the node outside the queue replaced this one. The token is the id of the transaction that created it.
    pub fn exchanged(&mut self, token: i64) {
        if let Some(path) = self.unseen.clone()
            && self.finish_move_at(path)
        {
            (self.token, self.unseen) = (token, None);
        }
    }

    /// Records that the node was not replaced, and that there is surely no node outside the queue.
    pub fn cancel_move(&mut self) {
        self.may_have_orphan |= self.may_be_reader();
        self.unseen = None;
        self.finish_move_at(self.path.clone());
    }

    /// Ends a move: the node is at this path. Returns `false` if the node was left meanwhile, so that either path may
    /// exist.
    fn finish_move_at(&mut self, path: String) -> bool {
        let Phase::Moving(held) = self.phase else { return false };
        self.phase = held.map_or(Phase::Waiting, Phase::Holding);
        // The event of the watch on the replaced node no longer matters.
        (self.path, self.is_watched) = (path, false);
        true
    }

    /// Leaves the node. Returns its removal, or `None` if there is no node, or it was left before. A writer that held
    /// signals its release if it may.
    pub fn leave(&mut self, may_signal: bool) -> Option<Leaving> {
        if !self.has_node() {
            return None;
        }
        let dialect = self.contender.dialect();
        let held_alone = self.is_holding() && self.is_in_queue() && self.contender.mode() == Mode::Write;
        self.may_have_orphan |= self.may_be_reader();
        let is_forged = self.loss == Some(Loss::Interfered);
        let is_old = !(0..mode::RESTART_FROM).contains(&self.contender.sequence());
        self.phase = Phase::Left;
        Some(Leaving::Deleting(Deletion {
            path: self.path.clone(),
            signals: may_signal && dialect.hands_off() && held_alone && !is_forged,
            restarts: is_old && !dialect.keeps_directories(),
            ..Deletion::default()
        }))
    }

    /// Ends the node in any phase. Returns the removals of all nodes that may exist, in order.
    pub fn end(&mut self, may_signal: bool) -> Vec<Leaving> {
        if self.phase == Phase::Coming {
            self.phase = Phase::Left;
            return vec![Leaving::Coming { sweeps: std::mem::take(&mut self.may_have_orphan) }];
        }
        let node = self.leave(may_signal);
        self.phase = Phase::Left;
        // The place in the queue is removed first, because the exchange fails without that place.
        let outside = self.unseen.take().map(Leaving::delete);
        let orphans = std::mem::take(&mut self.may_have_orphan).then_some(Leaving::Listing);
        node.into_iter().chain(outside).chain(orphans).collect()
    }

    /// Returns whether the node waits, and relies on no epoch of the lease yet.
    pub(crate) fn lacks_epoch(&self) -> bool {
        self.loss.is_none() && self.valid_since.is_none() && matches!(self.phase, Phase::Waiting | Phase::Moving(None))
    }

    /// Sets the epoch of the lease on which a waiter relies.
    pub(crate) fn rely_on(&mut self, epoch: Option<u64>) {
        self.valid_since = epoch;
    }

    /// Looks for a loss in the evidence; the first reason stays.
    ///
    /// Must be called before the watch's event is [handled](NodeState::heard). If the owner was stopped for too long, the
    /// server has removed the node, but the lapse of the lease is the reason of the loss.
    pub(crate) fn find_loss(&mut self, evidence: &Evidence) {
        let since = match self.phase {
            Phase::Holding(epoch) | Phase::Moving(Some(epoch)) => Some(epoch),
            Phase::Waiting | Phase::Moving(None) => self.valid_since,
            Phase::Absent | Phase::Coming | Phase::Left => return,
        };
        let over = evidence.over.map(Loss::SessionOver);
        let ran_out = (since.is_some() && since != evidence.valid_in).then_some(Loss::LeaseRanOut);
        let too_long = evidence.is_held_too_long.then_some(Loss::HeldTooLong);
        self.loss = self.loss.or(over).or(ran_out).or(too_long);
    }

    /// Handles an event of the watch on the node.
    pub(crate) fn heard(&mut self, event: Event) {
        self.is_watched = false;
        if event == Event::Deleted && matches!(self.phase, Phase::Waiting | Phase::Holding(_)) {
            self.lose(Loss::Removed);
        }
    }

    /// Records a loss; the first reason stays.
    pub fn lose(&mut self, loss: Loss) {
        self.loss.get_or_insert(loss);
    }

    /// Returns why the node is no longer held or waiting.
    pub fn loss(&self) -> Option<Loss> {
        self.loss.or((self.phase == Phase::Left).then_some(Loss::GivenBack))
    }

    /// Returns the node's path and the loss of the hold, if that was not reported yet.
    pub(crate) fn take_unreported_loss(&mut self) -> Option<(String, Loss)> {
        let loss = self.loss.filter(|_| self.is_holding() && !self.is_reported)?;
        self.is_reported = true;
        Some((self.path.clone(), loss))
    }

    /// Returns the path to watch, unless a watch was requested already.
    pub(crate) fn begin_to_watch(&mut self) -> Option<String> {
        let watches = !self.is_watched && matches!(self.phase, Phase::Waiting | Phase::Holding(_));
        self.is_watched |= watches;
        watches.then(|| self.path.clone())
    }

    /// Records that the requested watch on this path could not be armed.
    pub(crate) fn watch_failed(&mut self, path: &str) {
        self.is_watched &= self.path != path;
    }

    /// Returns the epoch of the lease in which the node is held; `None` if the node is not held, or lost.
    pub(crate) fn held_in(&self) -> Option<u64> {
        match (self.loss, self.phase) {
            (None, Phase::Holding(epoch) | Phase::Moving(Some(epoch))) => Some(epoch),
            _ => None,
        }
    }

    /// Returns the phase.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    pub(crate) fn is_holding(&self) -> bool {
        matches!(self.phase, Phase::Holding(_) | Phase::Moving(Some(_)))
    }

    pub(crate) fn has_left(&self) -> bool {
        self.phase == Phase::Left
    }

    /// Returns whether an answer has shown the node, and it was not left.
    pub(crate) fn has_node(&self) -> bool {
        matches!(self.phase, Phase::Waiting | Phase::Holding(_) | Phase::Moving(_))
    }

    pub(crate) fn is_standing_at(&self, path: &str) -> bool {
        matches!(self.phase, Phase::Waiting | Phase::Holding(_)) && self.path == path
    }

    /// Returns whether the node is in the queue, and not a permit.
    pub(crate) fn is_in_queue(&self) -> bool {
        self.path.ends_with(self.contender.name())
    }

    /// Returns the orphans among these names: other nodes of this owner, which a lost answer can leave. A listing after a
    /// later write of this session shows them all.
    pub fn orphans(&self, names: &[String]) -> Vec<String> {
        let (looks, me) = (self.may_have_orphan && self.has_node(), &self.contender);
        let has_our_tag = |name: &str| me.dialect().split(name).is_some_and(|(tag, _)| tag == me.tag());
        let is_one = |name: &&String| looks && *name != me.name() && has_our_tag(name);
        names.iter().filter(is_one).cloned().collect()
    }

    /// Returns whether a downgrade is under way, so that a reader's node may exist.
    fn may_be_reader(&self) -> bool {
        matches!(self.phase, Phase::Moving(_)) && self.unseen.is_none()
    }

    /// Returns the path with another name in the same directory.
    fn path_of(&self, name: &str) -> String {
        format!("{}/{name}", self.path.rsplit_once('/').unwrap_or_default().0)
    }

    /// Returns the path of the node, or the path of its create.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Returns the contender in the queue, also while the node is a permit outside the queue.
    pub fn contender(&self) -> &Arc<Contender> {
        &self.contender
    }

    pub(crate) fn token(&self) -> i64 {
        self.token
    }

    pub(crate) fn creation(&self) -> Creation {
        self.creation
    }

    pub(crate) fn connection(&self) -> u64 {
        self.connection
    }
}

#[cfg(test)]
mod tests;
