//! What is known of one node of ours, from before its create until it is given back: decisions alone, with no I/O, lock or clock.
//!
//! ```text
//!              asked                 created               granted
//! new --> Absent --> Coming -----------------> Waiting ------------> Holding
//!            ^         |                        |   ^                 |   ^
//!            +---------+                        v   |                 v   |
//!     refused, or the answer was lost           Moving                Moving
//!
//! In each of them the node can be left or dropped: then it is Left, with what is still to be removed.
//! Moving: being replaced, by the node of a reader (a downgrade), or of a permit (which a waiter then holds).
//! ```
//!
//! Beside its phase a node has the reason of a loss. The reason is set once, and never taken back. It is one of
//! five: the session is over; the lease had a gap since the grant (for a waiter: since the lease was first valid); it was
//! held for longer than it may be; the node was removed; its grant was forged by a stranger. The owner of a lost node still leaves
//! it, and deletes the node in case it is there.

use std::sync::Arc;
use std::time::SystemTime;

use crate::queue::contender::Contender;
use crate::queue::mode::{self, Mode};
use crate::session::lease::Moment;
use crate::session::leaving::{Deletion, Leaving};
use crate::session::request::{Created, Ending, Event, Failure, Loss};

/// Where a node stands in its life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Phase {
    /// No node was asked for, or the request failed.
    #[default]
    Absent,
    /// The create is under way.
    Coming,
    /// In the queue.
    Waiting,
    /// Holding, in this epoch of the lease.
    Holding(u64),
    /// Being replaced by another node: while it holds, in this epoch of the lease, or while it waits. The end of the old
    /// node is no loss.
    Moving(Option<u64>),
    /// Being deleted, or deleted.
    Left,
}

/// When the first node of a contender was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Birth {
    /// On the ensemble's clock.
    pub(crate) ctime: SystemTime,
    /// On the session's clock: not before this moment.
    pub(crate) asked: Moment,
    /// On the session's clock: not after this moment.
    pub(crate) answered: Moment,
}

/// What shows whether a node is lost that nobody has removed.
pub(crate) struct Evidence {
    pub(crate) over: Option<Ending>,
    /// The epoch of the lease, if the lease is valid.
    pub(crate) valid_in: Option<u64>,
    /// It is held for longer than it may be.
    pub(crate) is_held_too_long: bool,
}

/// What is known of one node of ours.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NodeState {
    phase: Phase,
    /// Its name in the queue. Until a server has given it a number, the name is what it asks for.
    contender: Arc<Contender>,
    path: String,
    /// The number of the transaction that created it: ensemble-wide, rising, never reset.
    token: i64,
    birth: Birth,
    /// On which connection the node was asked for, as `Upkeep::connection` counts them.
    connection: u64,
    /// There may be a node of ours in the queue that no answer has shown: the answer to a create was lost, or the node was left
    /// during a downgrade.
    may_have_orphan: bool,
    /// A node outside the queue that an exchange may have made. No answer has shown it.
    unseen: Option<String>,
    /// While it waits: the epoch since which the lease has been valid without a gap, if it has been valid at all.
    valid_since: Option<u64>,
    loss: Option<Loss>,
    /// The loss of the hold has been reported.
    is_reported: bool,
    /// The watch on this node was asked for, and has not fired yet.
    is_watched: bool,
}

impl NodeState {
    /// A node that is not asked for yet, in this directory. The contender's name has no number yet.
    pub fn new(directory: &str, contender: Contender) -> NodeState {
        NodeState {
            phase: Phase::Absent,
            path: format!("{directory}/{}", contender.name()),
            contender: Arc::new(contender),
            token: 0,
            birth: Birth { ctime: SystemTime::UNIX_EPOCH, asked: Moment::MAX, answered: Moment::MAX },
            connection: 0,
            may_have_orphan: false,
            unseen: None,
            valid_since: None,
            loss: None,
            is_reported: false,
            is_watched: false,
        }
    }

    /// The create was sent.
    pub fn asked(&mut self, now: Moment, connection: u64) {
        (self.phase, self.connection) = (Phase::Coming, connection);
        self.birth.asked = self.birth.asked.min(now);
    }

    /// The create failed, or its answer was lost.
    pub fn refused(&mut self, failure: &Failure) {
        self.phase = Phase::Absent;
        self.may_have_orphan |= matches!(failure, Failure::Unknown(_));
    }

    /// A create may have been carried out although its answer denies it.
    pub fn suspect_orphan(&mut self) {
        self.may_have_orphan = true;
    }

    /// The create was answered, or its node was found. Fails if it is none of ours.
    ///
    /// # Errors
    /// It belongs to another session, or its name is no contender's.
    pub fn created(&mut self, created: &Created, session: i64, now: Moment) -> Result<(), Failure> {
        self.phase = Phase::Absent;
        let name = created.path.rsplit('/').next().unwrap_or_default();
        if created.ephemeral_owner != session {
            // The connection has changed to another session, and the node belongs to that session. It is not ours.
            return Err(Failure::Refused(format!("node {name} belongs to another session")));
        }
        let Some(contender) = Contender::parse_as(name, self.contender.dialect()) else {
            return Err(Failure::Refused(format!("the server named the node {name:?}, which is no contender's name")));
        };
        self.phase = Phase::Waiting;
        self.path.truncate(self.path.rfind('/').map_or(0, |end| end + 1));
        self.path.push_str(name);
        (self.contender, self.token) = (Arc::new(contender), created.czxid);
        (self.birth.ctime, self.birth.answered) = (created.ctime, now);
        Ok(())
    }

    /// From now on it holds, as long as this epoch of the lease lasts.
    pub fn hold(&mut self, epoch: u64) {
        self.phase = Phase::Holding(epoch);
    }

    /// It is about to be replaced: by a node outside the queue at this path, or by another in the queue.
    pub fn begin_move(&mut self, outside: Option<String>) {
        match self.phase {
            Phase::Holding(epoch) => self.phase = Phase::Moving(Some(epoch)),
            Phase::Waiting => self.phase = Phase::Moving(None),
            _ => {}
        }
        self.unseen = outside;
    }

    /// It was replaced by the node of this reader, which is ours.
    pub fn downgraded(&mut self, reader: Contender) {
        if self.finish_move_at(self.path_of(reader.name())) {
            self.contender = Arc::new(reader);
        }
    }

    /// It was replaced by the node outside the queue, which is ours, and which this transaction has created.
    pub fn exchanged(&mut self, token: i64) {
        if let Some(path) = self.unseen.clone()
            && self.finish_move_at(path)
        {
            (self.token, self.unseen) = (token, None);
        }
    }

    /// It was not replaced. Without doubt there is no node outside.
    pub fn cancel_move(&mut self) {
        self.may_have_orphan |= self.may_be_reader();
        self.unseen = None;
        self.finish_move_at(self.path.clone());
    }

    /// The end of a move: the node is at this path. `false` if it was left meanwhile: then either may be there.
    fn finish_move_at(&mut self, path: String) -> bool {
        let Phase::Moving(held) = self.phase else { return false };
        self.phase = held.map_or(Phase::Waiting, Phase::Holding);
        // The watch on the node that was replaced has nothing more to tell.
        (self.path, self.is_watched) = (path, false);
        true
    }

    /// Gives the node back. Returns what removes it; `None` if there is none to remove, or it was left before. A writer that held
    /// alone signals its release if it may.
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

    /// Nobody wants the node any more, however far it has got. Returns what removes all that there may be, in this order.
    pub fn end(&mut self, may_signal: bool) -> Vec<Leaving> {
        if self.phase == Phase::Coming {
            self.phase = Phase::Left;
            return vec![Leaving::Coming { sweeps: std::mem::take(&mut self.may_have_orphan) }];
        }
        let node = self.leave(may_signal);
        self.phase = Phase::Left;
        // After the place in the queue: without that, the exchange is not carried out any more.
        let outside = self.unseen.take().map(Leaving::delete);
        let orphans = std::mem::take(&mut self.may_have_orphan).then_some(Leaving::Listing);
        node.into_iter().chain(outside).chain(orphans).collect()
    }

    /// Whether it could be lost, and waits without an epoch to rely on.
    pub(crate) fn lacks_epoch(&self) -> bool {
        self.loss.is_none() && self.valid_since.is_none() && matches!(self.phase, Phase::Waiting | Phase::Moving(None))
    }

    /// While it waits, it relies on the lease from this epoch on.
    pub(crate) fn rely_on(&mut self, epoch: Option<u64>) {
        self.valid_since = epoch;
    }

    /// Finds out whether it is lost. The first reason stays.
    ///
    /// To be called before what its watch has told is [heard](NodeState::heard): the server removes the node of an owner that was stopped
    /// for too long, so the lease is the reason.
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

    /// The watch on the node has told this.
    pub(crate) fn heard(&mut self, event: Event) {
        self.is_watched = false;
        if event == Event::Deleted && matches!(self.phase, Phase::Waiting | Phase::Holding(_)) {
            self.lose(Loss::Removed);
        }
    }

    /// The node was lost; the first reason stays.
    pub fn lose(&mut self, loss: Loss) {
        self.loss.get_or_insert(loss);
    }

    /// Why it is held, or waits, no longer.
    pub fn loss(&self) -> Option<Loss> {
        self.loss.or((self.phase == Phase::Left).then_some(Loss::GivenBack))
    }

    /// The loss of a hold, with its node, if it has not been reported yet.
    pub(crate) fn take_unreported_loss(&mut self) -> Option<(String, Loss)> {
        let loss = self.loss.filter(|_| self.is_holding() && !self.is_reported)?;
        self.is_reported = true;
        Some((self.path.clone(), loss))
    }

    /// The path on which to arm the watch now, unless one was asked for already.
    pub(crate) fn begin_to_watch(&mut self) -> Option<String> {
        let watches = !self.is_watched && matches!(self.phase, Phase::Waiting | Phase::Holding(_));
        self.is_watched |= watches;
        watches.then(|| self.path.clone())
    }

    /// The watch that was asked for on this path cannot be armed.
    pub(crate) fn watch_failed(&mut self, path: &str) {
        self.is_watched &= self.path != path;
    }

    /// The epoch of the lease in which the node is held; `None` if it is not held, or lost.
    pub(crate) fn held_in(&self) -> Option<u64> {
        match (self.loss, self.phase) {
            (None, Phase::Holding(epoch) | Phase::Moving(Some(epoch))) => Some(epoch),
            _ => None,
        }
    }

    /// Where it stands in its life.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    pub(crate) fn is_holding(&self) -> bool {
        matches!(self.phase, Phase::Holding(_) | Phase::Moving(Some(_)))
    }

    pub(crate) fn has_left(&self) -> bool {
        self.phase == Phase::Left
    }

    /// An answer has shown its node, and nobody has left it.
    pub(crate) fn has_node(&self) -> bool {
        matches!(self.phase, Phase::Waiting | Phase::Holding(_) | Phase::Moving(_))
    }

    pub(crate) fn is_standing_at(&self, path: &str) -> bool {
        matches!(self.phase, Phase::Waiting | Phase::Holding(_)) && self.path == path
    }

    /// Whether its node is the one in the queue, and not a permit.
    pub(crate) fn is_in_queue(&self) -> bool {
        self.path.ends_with(self.contender.name())
    }

    /// Nodes of its owner among these names that are not its own: after a lost answer there may be some. A listing that follows a
    /// later write of ours shows them all.
    pub fn orphans(&self, names: &[String]) -> Vec<String> {
        let (looks, me) = (self.may_have_orphan && self.has_node(), &self.contender);
        let has_our_tag = |name: &str| me.dialect().split(name).is_some_and(|(tag, _)| tag == me.tag());
        let is_one = |name: &&String| looks && *name != me.name() && has_our_tag(name);
        names.iter().filter(is_one).cloned().collect()
    }

    /// Whether a downgrade is under way: then there is the node of a reader in its place, or will be.
    fn may_be_reader(&self) -> bool {
        matches!(self.phase, Phase::Moving(_)) && self.unseen.is_none()
    }

    /// Its path with another name in its directory.
    fn path_of(&self, name: &str) -> String {
        format!("{}/{name}", self.path.rsplit_once('/').unwrap_or_default().0)
    }

    /// Where it is, or what is asked for.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Its contender in the queue, also while it holds a permit outside.
    pub fn contender(&self) -> &Arc<Contender> {
        &self.contender
    }

    pub(crate) fn token(&self) -> i64 {
        self.token
    }

    pub(crate) fn birth(&self) -> Birth {
        self.birth
    }

    pub(crate) fn connection(&self) -> u64 {
        self.connection
    }
}

#[cfg(test)]
mod tests;
