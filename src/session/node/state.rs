//! The state of one node that this library creates, from before the create until the owner leaves the node. The
//! state has no I/O, mutex or clock. [`Node`](crate::session::node::Node) keeps it behind a mutex, and the exhaustive
//! model (`tests/models/`) drives it.
//!
//! | phase | event | next phase |
//! |---|---|---|
//! | `Absent` | the create was sent | `Coming` |
//! | | a node whose create had no answer was found | `Waiting` |
//! | `Coming` | the create failed, or its answer was lost | `Absent`, with the next [`EntryStep`] or the end of the acquisition |
//! | | the node was created | `Waiting` |
//! | `Waiting` | the lock was granted | `Holding` |
//! | | an exchange for a permit was sent | `Moving` |
//! | `Holding` | a downgrade was sent | `Moving` |
//! | `Moving` | the node was replaced, or the replacement was given up | the phase before it |
//! | any | the owner gives the node back, or is dropped | `Left` |
//!
//! A node is lost if the session is over, if the lease has run out since the grant (for a waiter: since the waiter
//! first relied on it), if the hold exceeded its limit, if the node was removed, or if a stranger forged the grant. The
//! first of these losses is recorded, and the phase stays. The owner still leaves the node, so that it is deleted if it
//! exists.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::queue::mode::{self, Mode};
use crate::queue::node_name::NodeName;
use crate::session::lease::Moment;
use crate::session::leaving::{Deletion, NodeRemoval};
use crate::session::request::{Created, Failure, Loss, SessionEnd, WatchEvent};

/// The phase of a node, which is the step of its life as this process knows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Phase {
    /// No create awaits its answer, and no node is known to exist.
    #[default]
    Absent,
    /// The create was sent, and its answer is awaited.
    Coming,
    /// The node exists, and the lock is not granted yet.
    Waiting,
    /// The lock is held, in this epoch of the lease.
    Holding(u64),
    /// The node is being replaced by another one. The node is held in this epoch of the lease, or waits (`None`). In
    /// this phase, the deletion of the old node is no loss.
    Moving(Option<u64>),
    /// The owner has left the node, or has left before there was a node. A node that exists is deleted, unless its
    /// deletion fails.
    Left,
}

/// The creates of one node may lose this many answers, and may find the directory missing this many times. One more
/// such failure ends the acquisition. There is a limit because a broken server could lose every answer, and because
/// servers may delete the empty directory again before every create.
const CREATES_MAX: u8 = 64;

/// The next step of an acquisition that has no node yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryStep {
    /// Send a create, and a listing after it.
    Create,
    /// Look for the node that a create may have made. If there is no such node, create again.
    Recover,
    /// Create the directory, and then create again.
    MakeDirectory,
}

/// When the node was created. If another node replaces this one later, the times stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CreationTimes {
    /// The creation time on the ensemble's clock.
    pub(crate) ctime: SystemTime,
    /// When the first create was sent, on the session's clock.
    pub(crate) sent: Moment,
    /// When the answer that showed the node came, on the session's clock.
    pub(crate) answered: Moment,
}

/// Facts from which [`NodeState::detect_loss`] decides whether the node is lost.
pub(crate) struct LossEvidence {
    /// The present moment, on the session's clock.
    pub(crate) now: Moment,
    pub(crate) over: Option<SessionEnd>,
    /// The present epoch of the lease, or `None` while the lease is invalid.
    pub(crate) valid_in: Option<u64>,
}

/// The time limits of the holds of a node, or of the uses of a node that is kept between uses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct HoldLimits {
    /// The longest duration of one hold or use.
    longest: Option<Duration>,
    /// When the present holds and uses reach their limits, in order. Holds that reach it at the same moment are
    /// interchangeable.
    ends: Vec<Moment>,
    /// When a hold or use was first found to have exceeded its limit.
    exceeded: Option<Moment>,
}

impl HoldLimits {
    /// Limits each later hold or use to this duration. Only the first call has an effect.
    pub(crate) fn set_longest_once(&mut self, longest: Duration) {
        self.longest.get_or_insert(longest);
    }

    /// Begins a hold or use, and returns when it reaches its limit. Returns `None` if there is no limit.
    pub(crate) fn add_deadline(&mut self, now: Moment) -> Option<Moment> {
        let end = now.saturating_add(self.longest?);
        self.ends.insert(self.ends.partition_point(|other| *other <= end), end);
        Some(end)
    }

    pub(crate) fn remove_deadline(&mut self, end: Moment) {
        if let Ok(index) = self.ends.binary_search(&end) {
            self.ends.remove(index);
        }
    }

    /// Returns when the first of the present holds and uses reaches its limit. `None` if none has a limit.
    pub(super) fn first_deadline(&self) -> Option<Moment> {
        self.ends.first().copied()
    }

    /// Returns the time until the first of the present holds and uses reaches its limit. If there is no present hold or
    /// use, returns the limit itself, because a hold that begins now cannot exceed its limit sooner. Returns
    /// `Duration::MAX` if there is no limit.
    pub(super) fn remaining(&self, now: Moment) -> Duration {
        self.first_deadline().map(|end| end.saturating_sub(now)).or(self.longest).unwrap_or(Duration::MAX)
    }

    /// Returns the time until the node is given up: `margin` after the moment at which a hold or use was first found to
    /// have exceeded its limit. If there was no such moment yet, counts from the moment at which the first of the
    /// present holds and uses reaches its limit. Returns `None` if none of them has a limit either.
    pub(super) fn time_until_given_up(&self, now: Moment, margin: Duration) -> Option<Duration> {
        self.exceeded.or(self.first_deadline()).map(|end| end.saturating_add(margin).saturating_sub(now))
    }
}

/// The state of one node that this library creates.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NodeState {
    phase: Phase,
    /// The node's name in the queue, without a sequence number before the answer to the create.
    name: Arc<NodeName>,
    path: String,
    /// The fencing token: the czxid of the node. A node that is created later, anywhere in the ensemble, has a greater
    /// czxid.
    token: i64,
    creation_times: CreationTimes,
    /// The connection on which the create was sent, as a count: see
    /// [`SessionStore::connection_number`](crate::session::store::SessionStore::connection_number).
    connection: u64,
    /// The number of creates whose answers were lost.
    unanswered: u8,
    /// The number of creates to which the server answered that there is no directory.
    without_directory: u8,
    /// Whether there may be an orphan in the queue. An orphan is a node of this owner that no answer has shown. An
    /// orphan may exist if the answer to a create was lost or disagreed with a listing, or if it is not known whether a
    /// downgrade took effect.
    may_have_orphan: bool,
    /// The path of the permit for which a waiter exchanges its node. Set until an answer shows whether the exchange
    /// took effect.
    unseen: Option<String>,
    /// The epoch of the lease whose end means that the waiter is lost. `None` while the waiter relies on no epoch.
    relied_epoch: Option<u64>,
    loss: Option<Loss>,
    /// Whether [`NodeState::take_unreported_loss`] has returned the loss of the hold.
    is_reported: bool,
    /// Whether a watch on this node was requested, and has neither failed nor fired. A node that replaces this one
    /// begins without a watch.
    is_watched: bool,
    /// Whether the owner, while it waited, has asked processes to give up the nodes in this directory that they keep
    /// between uses. If so, an event of the watch on the directory may come from the owner's own request, and does not
    /// prove a request of another contender.
    pub(crate) asked_itself: bool,
    /// The id of the last commit of a shared value under this node, or 0 before the first one.
    commits: u32,
    pub(crate) limits: HoldLimits,
}

impl NodeState {
    /// Returns the state of a node in this directory before its create. `name` has no sequence number yet.
    pub fn new(directory: &str, name: NodeName) -> NodeState {
        NodeState {
            phase: Phase::Absent,
            path: format!("{directory}/{}", name.as_str()),
            name: Arc::new(name),
            token: 0,
            creation_times: CreationTimes { ctime: SystemTime::UNIX_EPOCH, sent: Moment::MAX, answered: Moment::MAX },
            connection: 0,
            unanswered: 0,
            without_directory: 0,
            may_have_orphan: false,
            unseen: None,
            relied_epoch: None,
            loss: None,
            is_reported: false,
            is_watched: false,
            asked_itself: false,
            commits: 0,
            limits: HoldLimits::default(),
        }
    }

    /// Records that a create was sent at `now` on this connection. Of repeated creates, `CreationTimes::sent` keeps the
    /// moment of the first.
    pub fn record_create_sent(&mut self, now: Moment, connection: u64) {
        (self.phase, self.connection) = (Phase::Coming, connection);
        self.creation_times.sent = self.creation_times.sent.min(now);
    }

    /// Records that the create failed, or that its answer was lost. Returns the next step of the acquisition.
    /// `is_listed` says whether the listing that was sent after the create shows a node of this owner.
    ///
    /// # Errors
    /// `failure`, if another create cannot help, or if [`CREATES_MAX`] earlier creates have failed for the same reason.
    pub fn record_create_failure(&mut self, failure: Failure, is_listed: bool) -> Result<EntryStep, Failure> {
        self.phase = Phase::Absent;
        let (tries, step) = match failure {
            Failure::Unknown(_) => (&mut self.unanswered, EntryStep::Recover),
            // A faulty server may report a missing directory and yet list the node. So no second node is created here:
            // the second node would wait behind the first node for ever.
            Failure::NoNode if is_listed => (&mut self.without_directory, EntryStep::Recover),
            Failure::NoNode => (&mut self.without_directory, EntryStep::MakeDirectory),
            failure => return Err(failure),
        };
        self.may_have_orphan |= step == EntryStep::Recover;
        *tries += 1;
        if *tries > CREATES_MAX { Err(failure) } else { Ok(step) }
    }

    /// Records the node from the answer to its create, or from a listing after that answer was lost.
    ///
    /// # Errors
    /// [`Failure::Refused`] if the node belongs to another session, or if its name is no contender's name.
    pub fn record_created(&mut self, created: &Created, session: i64, now: Moment) -> Result<(), Failure> {
        self.phase = Phase::Absent;
        let name = created.path.rsplit('/').next().unwrap_or_default();
        if created.ephemeral_owner != session {
            // The connection was re-established with another session, and that session has created the node.
            return Err(Failure::Refused(format!("node {name} belongs to another session")));
        }
        let Some(parsed) = NodeName::parse_as(name, self.name.dialect()) else {
            return Err(Failure::Refused(format!("the server named the node {name:?}, which is no contender's name")));
        };
        self.phase = Phase::Waiting;
        self.path.truncate(self.path.rfind('/').map_or(0, |end| end + 1));
        self.path.push_str(name);
        (self.name, self.token) = (Arc::new(parsed), created.czxid);
        (self.creation_times.ctime, self.creation_times.answered) = (created.ctime, now);
        Ok(())
    }

    /// Marks the node as held in this epoch of the lease. The hold is lost when the epoch ends.
    pub fn mark_held(&mut self, epoch: u64) {
        self.phase = Phase::Holding(epoch);
    }

    /// Begins to replace a node that waits or is held. `outside` is the path of the permit outside the queue that
    /// replaces the node. With `None`, a reader's node in the queue replaces it (a downgrade).
    pub fn begin_replacement(&mut self, outside: Option<String>) {
        match self.phase {
            Phase::Holding(epoch) => self.phase = Phase::Moving(Some(epoch)),
            Phase::Waiting => self.phase = Phase::Moving(None),
            _ => {}
        }
        self.unseen = outside;
    }

    /// Records that this reader's node has replaced the node, unless the owner has left the node meanwhile.
    pub fn record_downgrade(&mut self, reader: NodeName) {
        if self.end_replacement_at(self.path_of(reader.as_str())) {
            self.name = Arc::new(reader);
        }
    }

    /// Records that the permit has replaced the node, unless the owner has given the node up meanwhile. `token` is the
    /// czxid of the permit.
    pub fn record_exchange(&mut self, token: i64) {
        if let Some(path) = self.unseen.clone()
            && self.end_replacement_at(path)
        {
            (self.token, self.unseen) = (token, None);
        }
    }

    /// Records that the node was not replaced. Called only if no permit was or will be created in the node's place. But
    /// after a downgrade whose answer was lost, the new READ node may exist. That READ node is then an orphan.
    pub fn record_not_replaced(&mut self) {
        self.may_have_orphan |= self.may_have_reader_node();
        self.unseen = None;
        self.end_replacement_at(self.path.clone());
    }

    /// Ends a replacement: from now on the node is at this path. If no replacement is under way, because the owner has
    /// left the node meanwhile, returns `false` and changes nothing. The old node or the new node may exist then.
    fn end_replacement_at(&mut self, path: String) -> bool {
        let Phase::Moving(held) = self.phase else { return false };
        self.phase = held.map_or(Phase::Waiting, Phase::Holding);
        // Events of a watch on the replaced node no longer matter.
        (self.path, self.is_watched) = (path, false);
        true
    }

    /// Records that the owner leaves the node, and returns the node's removal. Changes nothing and returns `None` if no
    /// answer has shown the node, or if the owner has left it before.
    ///
    /// The removal of a writer's node that held the lock in the queue also signals the release to waiters, unless the
    /// hold came from a forged hand-off, or the dialect has no hand-offs.
    pub fn mark_left(&mut self) -> Option<NodeRemoval> {
        if !self.has_node() {
            return None;
        }
        let dialect = self.name.dialect();
        // The path of a permit is outside the queue, so it does not end with the name in the queue.
        let is_in_queue = self.path.ends_with(self.name.as_str());
        let held_alone = self.is_held_even_if_lost() && is_in_queue && self.name.mode() == Mode::Write;
        self.may_have_orphan |= self.may_have_reader_node();
        let is_forged = self.loss == Some(Loss::Interfered);
        let is_old = !(0..mode::RESTART_FROM).contains(&self.name.sequence());
        self.phase = Phase::Left;
        Some(NodeRemoval::Deleting(Deletion {
            path: self.path.clone(),
            signals: dialect.signals_release() && held_alone && !is_forged,
            restarts: is_old && !dialect.must_keep_directories(),
            ..Deletion::default()
        }))
    }

    /// Records that the owner leaves the node, in any phase. Returns the removals of all nodes that may exist, in the
    /// order in which they must be sent.
    pub fn mark_left_in_any_phase(&mut self) -> Vec<NodeRemoval> {
        if self.phase == Phase::Coming {
            self.phase = Phase::Left;
            return vec![NodeRemoval::Coming { lists_after: std::mem::take(&mut self.may_have_orphan) }];
        }
        let node = self.mark_left();
        self.phase = Phase::Left;
        // The node in the queue is removed first. An exchange that is still under way then fails, so that it cannot
        // create a permit after the removal of the permit.
        let outside = self.unseen.take().map(NodeRemoval::by_plain_delete);
        let orphans = std::mem::take(&mut self.may_have_orphan).then_some(NodeRemoval::Listing);
        node.into_iter().chain(outside).chain(orphans).collect()
    }

    /// Returns whether the node waits and relies on no epoch of the lease yet.
    pub(crate) fn waits_without_epoch(&self) -> bool {
        self.relied_epoch.is_none() && matches!(self.phase, Phase::Waiting | Phase::Moving(None))
    }

    /// Sets the epoch of the lease on which a waiter relies. The waiter is lost when that epoch ends.
    pub(crate) fn set_waiter_epoch(&mut self, epoch: Option<u64>) {
        self.relied_epoch = epoch;
    }

    /// Records the loss that the evidence shows, if there is one, unless an earlier loss is recorded. Without a node,
    /// does nothing.
    ///
    /// Must be called before an event of the watch is [recorded](NodeState::record_watch_event). If the process was
    /// stopped for long, the lease has run out and the server has removed the node. The end of the lease must then be
    /// recorded as the loss, because it is the cause of the removal.
    pub(crate) fn detect_loss(&mut self, evidence: &LossEvidence) {
        let since = match self.phase {
            Phase::Holding(epoch) | Phase::Moving(Some(epoch)) => Some(epoch),
            Phase::Waiting | Phase::Moving(None) => self.relied_epoch,
            Phase::Absent | Phase::Coming | Phase::Left => return,
        };
        let over = evidence.over.map(Loss::SessionOver);
        let ran_out = (since.is_some() && since != evidence.valid_in).then_some(Loss::LeaseRanOut);
        let is_held_too_long = self.limits.first_deadline().is_some_and(|end| end <= evidence.now);
        let too_long = is_held_too_long.then_some(Loss::HeldTooLong);
        self.loss = self.loss.or(over).or(ran_out).or(too_long);
        if self.loss == Some(Loss::HeldTooLong) {
            self.limits.exceeded.get_or_insert(evidence.now);
        }
    }

    /// Records an event of the watch on the node. A deletion is a loss only if the node waits or is held, and is not
    /// being replaced.
    pub(crate) fn record_watch_event(&mut self, event: WatchEvent) {
        self.is_watched = false;
        if event == WatchEvent::Deleted && matches!(self.phase, Phase::Waiting | Phase::Holding(_)) {
            self.record_loss(Loss::Removed);
        }
    }

    /// Records a loss, unless an earlier loss is recorded.
    pub fn record_loss(&mut self, loss: Loss) {
        self.loss.get_or_insert(loss);
    }

    /// Returns the id of the next commit of a shared value. Each commit under one node has an id of its own, which
    /// identifies the commit if its answer is lost.
    pub(crate) fn next_commit_id(&mut self) -> u32 {
        self.commits = self.commits.wrapping_add(1);
        self.commits
    }

    /// Takes back the id of a commit that was not sent. If a later commit has an id already, this id stays unused,
    /// which does no harm.
    pub(crate) fn give_back_commit_id(&mut self, number: u32) {
        self.commits = if self.commits == number { number.wrapping_sub(1) } else { self.commits };
    }

    /// Returns the recorded loss, or [`Loss::GivenBack`] once the owner has left the node.
    pub fn loss(&self) -> Option<Loss> {
        self.loss.or((self.phase == Phase::Left).then_some(Loss::GivenBack))
    }

    /// Returns the path and the loss of a held node that was lost, but only once. Otherwise returns `None`.
    pub(crate) fn take_unreported_loss(&mut self) -> Option<(String, Loss)> {
        let loss = self.loss.filter(|_| self.is_held_even_if_lost() && !self.is_reported)?;
        self.is_reported = true;
        Some((self.path.clone(), loss))
    }

    /// Returns the path on which to request a watch, or `None` if a watch was requested already, or no watch is needed
    /// in this phase.
    pub(crate) fn take_path_to_watch(&mut self) -> Option<String> {
        let path = self.path_if_in_place().filter(|_| !self.is_watched)?.to_owned();
        self.is_watched = true;
        Some(path)
    }

    /// Records that the watch requested on this path was not armed. Does nothing if the node is at another path now.
    pub(crate) fn record_watch_failure(&mut self, path: &str) {
        self.is_watched &= self.path != path;
    }

    /// Returns the epoch of the lease in which the node is held, or `None` if the node is not held, or is lost.
    pub(crate) fn held_epoch(&self) -> Option<u64> {
        match (self.loss, self.phase) {
            (None, Phase::Holding(epoch) | Phase::Moving(Some(epoch))) => Some(epoch),
            _ => None,
        }
    }

    /// Returns the phase of the node.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    pub(crate) fn is_held_even_if_lost(&self) -> bool {
        matches!(self.phase, Phase::Holding(_) | Phase::Moving(Some(_)))
    }

    pub(crate) fn is_left(&self) -> bool {
        self.phase == Phase::Left
    }

    /// Returns whether an answer has shown the node and the owner has not left it.
    pub(crate) fn has_node(&self) -> bool {
        matches!(self.phase, Phase::Waiting | Phase::Holding(_) | Phase::Moving(_))
    }

    /// Returns the path of the node. `None` while the node is being replaced, and while there is no node.
    pub(crate) fn path_if_in_place(&self) -> Option<&str> {
        matches!(self.phase, Phase::Waiting | Phase::Holding(_)).then_some(&*self.path)
    }

    /// Returns the orphans among these names: other nodes of this owner, which may exist if the answer to a create was
    /// lost. This session must have sent the create first, then some write, and then the listing of these names. So the
    /// names contain every orphan. Returns none if no orphan is possible, or if this owner has no node now.
    pub fn orphans(&self, names: &[String]) -> Vec<String> {
        let (looks, me) = (self.may_have_orphan && self.has_node(), &self.name);
        let has_our_tag = |name: &str| me.dialect().split_name(name).is_some_and(|(tag, _)| tag == me.tag());
        let is_one = |name: &&String| looks && *name != me.as_str() && has_our_tag(name);
        names.iter().filter(is_one).cloned().collect()
    }

    /// Returns whether a downgrade is under way, so that the reader's node may exist.
    fn may_have_reader_node(&self) -> bool {
        matches!(self.phase, Phase::Moving(_)) && self.unseen.is_none()
    }

    /// Returns the path of `name` in the directory of this node.
    fn path_of(&self, name: &str) -> String {
        format!("{}/{name}", self.path.rsplit_once('/').unwrap_or_default().0)
    }

    /// Returns the path of the node. Before the answer to the create, the path has no sequence number.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Returns the name of the node in the queue, even after the node was exchanged for a permit outside the queue.
    pub fn node_name(&self) -> &Arc<NodeName> {
        &self.name
    }

    pub(crate) fn token(&self) -> i64 {
        self.token
    }

    pub(crate) fn creation_times(&self) -> CreationTimes {
        self.creation_times
    }

    pub(crate) fn connection_of_create(&self) -> u64 {
        self.connection
    }
}

#[cfg(test)]
mod tests;
