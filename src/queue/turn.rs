//! Decides by names alone whose turn it is ([`turn`]). A waiter's state machine ([`Waiter`]) is told what happened and
//! returns the next step.
//!
//! ```text
//!            the predecessor has left, or its node was missing once
//!         +----------------------------------------------------------+
//!         v                                                          |
//! new -> List -- behind -----------------> Await                     |
//!        | ^ |                               | | missing twice       |
//!        | | | granted                       | +---> AwaitAtLeader --+
//!        | | +---------> Take <--------------+
//!        | |                signalled by a writer
//!        | | the leader contradicts the listing
//!        v |
//!       AskLeader -- the leader agrees --> Evicted, Stuck or WouldBlock
//! ```
//!
//! A waiter gives up in three cases: the listing lacks the waiter's own node, or shows the waiter's number twice, or
//! shows a predecessor although the waiter must not wait. Before the waiter gives up, it asks the ensemble's leader,
//! because the server of the listing may lag behind. In two more cases the waiter gives up without asking. `List` leads
//! to `Stuck` if the waiter's number is negative. `List` leads to the step `Foreign`, not shown above, if the queue has
//! a contender of another dialect, whose rules may differ.
//!
//! `contend/wait.rs` carries out the steps. The exhaustive model and the property tests drive the same state machine.

use std::borrow::Borrow;
use std::sync::Arc;

use crate::queue::dialect::{self, Dialect};
use crate::queue::mode::{Mode, ModeAndSequence};
use crate::queue::node_name::NodeName;

/// Where a contender stands in its queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Turn {
    /// The contender has its turn: no earlier contender excludes it. In the queue of a lock, the contender holds the
    /// lock.
    Granted,
    /// The contender waits for its predecessor, which has this name. The predecessor is the nearest earlier contender
    /// that excludes the contender. The next step is to watch the predecessor's node.
    Behind(NodeName),
    /// The contender has no turn, because its node is not in the queue. The next step is to ask the ensemble's leader,
    /// and to stop waiting if the leader agrees.
    Evicted,
    /// The contender has no turn, because the node of this name has the same number. The next step is to ask the
    /// ensemble's leader, and to stop waiting if the leader agrees. `None` if the contender's number is negative
    /// instead. The next step is then to stop waiting.
    Stuck(Option<String>),
}

/// Decides the turn of `me` from the names of the lock directory's children.
///
/// Reads the names once, in any order, and ignores the names of nodes that are not contenders. The [dialect](Dialect)
/// of `me` decides which names are contenders' names. This function ignores contenders of other dialects. An
/// acquisition that lists such a contender fails.
///
/// A contender whose number is negative, or equal to that of another contender, is never granted the lock. ZooKeeper
/// assigns such numbers when the sequence numbers are used up.
///
/// ```
/// use zk_rwlock::queue::NodeName;
/// use zk_rwlock::coordinator::{Turn, turn};
/// let queue = ["b~2-READ-0000000001", "a~1-WRITE-0000000000", "c~3-WRITE-0000000002"];
/// let of = |name| turn(&NodeName::parse(name).unwrap(), queue);
/// assert_eq!(of("a~1-WRITE-0000000000"), Turn::Granted);
/// assert_eq!(of("b~2-READ-0000000001"), Turn::Behind(NodeName::parse("a~1-WRITE-0000000000").unwrap()));
/// assert_eq!(of("c~3-WRITE-0000000002"), Turn::Behind(NodeName::parse("b~2-READ-0000000001").unwrap()));
/// ```
pub fn turn<I>(me: &NodeName, queue: I) -> Turn
where
    I: IntoIterator<Item: AsRef<str>>,
{
    decide_turn(me, queue, |_| {}, |_| false)
}

/// Returns the result of [`turn`], and the name of a [foreign](Dialect::foreign) contender if there is one: the first
/// in text order. If there is one, the turn has no meaning, because the rules of the foreign contender may differ.
pub(crate) fn turn_and_foreign_name<'q>(me: &NodeName, queue: &'q [String]) -> (Turn, Option<&'q str>) {
    let mut foreign: Option<&str> = None;
    let note_foreign = |name: &'q String| {
        if me.dialect().foreign(name).is_some() && foreign.is_none_or(|first| &name[..] < first) {
            foreign = Some(name);
        }
    };
    let turn = decide_turn(me, queue, note_foreign, |_| false);
    (turn, foreign)
}

/// Returns the turn of `me` for display. Unlike [`turn`], this function accepts two nodes of the same number if they
/// may belong to one holder.
pub(crate) fn turn_for_display(me: &NodeName, queue: &[String]) -> Turn {
    decide_turn(me, queue, |_| {}, |other| me.dialect().may_be_one_holder(other, me.place()))
}

/// Decides the turn of `me`. Calls `on_other_name` for each name that is not a contender's in the dialect of `me`, with
/// an exception for malformed names that a comment below describes. `may_share` says whether another contender may have
/// the same sequence number as `me`.
fn decide_turn<I>(
    me: &NodeName,
    queue: I,
    mut on_other_name: impl FnMut(I::Item),
    may_share: impl Fn(ModeAndSequence) -> bool,
) -> Turn
where
    I: IntoIterator<Item: AsRef<str>>,
{
    let (mine, dialect) = (me.place(), me.dialect());
    let mut present = false;
    // Another node with the number of `me`. If there are several, the first in text order.
    let mut rival: Option<String> = None;
    let mut nearest: Option<(i64, I::Item)> = None;
    for child in queue {
        let name = child.as_ref();
        // If 10,000 contenders arrive together, each reads 10,000 names. So this check reads only the end of a name. It
        // skips each name that cannot be the predecessor's, because its number is higher than ours, or lower than that
        // of the latest possible predecessor so far.
        //
        // Each contender of another dialect must reach `on_other_name`, so that it does not go unnoticed. This check
        // skips none of them, because their names have `_` or `k-` before the digits, and `unsigned_sequence_at_end`
        // requires `E-` or `D-`. A malformed name such as `a__WRIT__D-0000000007` may be skipped, but no library makes
        // such a name.
        if dialect == Dialect::Native
            && let Some(sequence) = dialect::unsigned_sequence_at_end(name)
            && (sequence > mine.sequence || nearest.as_ref().is_some_and(|(nearest, _)| *nearest > sequence))
        {
            continue;
        }
        let Some(other) = dialect.parse_mode_and_sequence(name) else {
            on_other_name(child);
            continue;
        };
        if name == me.as_str() {
            present = true;
        } else if other.sequence == mine.sequence {
            if !may_share(other) && rival.as_deref().is_none_or(|first| name < first) {
                rival = Some(name.to_owned());
            }
        } else if blocks(other, mine)
            && nearest.as_ref().is_none_or(|(sequence, nearest)| (*sequence, nearest.as_ref()) < (other.sequence, name))
        {
            nearest = Some((other.sequence, child));
        }
    }
    if !present {
        return Turn::Evicted;
    }
    if rival.is_some() || mine.sequence < 0 {
        return Turn::Stuck(rival);
    }
    match nearest.and_then(|(_, name)| NodeName::parse_as(name.as_ref(), dialect)) {
        Some(contender) => Turn::Behind(contender),
        None => Turn::Granted,
    }
}

/// Returns whether `me`, a writer that waits for readers, has to ask processes to give up kept nodes (nodes that their
/// processes keep between uses). Only the kept nodes of readers between the last earlier writer and `me` count, because
/// that writer itself asks processes to give up the nodes before its own. A node in `closing` does not count, because
/// its process is about to give it up.
pub(crate) fn must_ask_kept_readers(me: &NodeName, queue: &[String], closing: &[String]) -> bool {
    // `looks_kept` comes first, because it rejects most names by their last characters, and a waiter may list 10,000
    // names.
    let kept = queue.iter().filter(|name| dialect::looks_kept(name) && !closing.contains(name));
    let before = |name: &String| me.dialect().parse_mode_and_sequence(name).filter(|it| it.sequence < me.sequence());
    let readers = kept.filter_map(before).filter(|it| it.mode == Mode::Read);
    let Some(newest) = readers.map(|it| it.sequence).max() else { return false };
    let writers = queue.iter().filter_map(before).filter(|it| it.mode == Mode::Write);
    writers.map(|it| it.sequence).max() < Some(newest)
}

/// Returns the name of a contender that is [foreign](Dialect::foreign) to `dialect`: the first in text order if there
/// are several.
pub(crate) fn first_foreign(dialect: Dialect, queue: &[String]) -> Option<&str> {
    queue.iter().map(String::as_str).filter(|name| dialect.foreign(name).is_some()).min()
}

/// Returns the names of the contenders that `me` waits for, in the order of arrival.
pub(crate) fn blocker_names<'q>(me: &NodeName, queue: &'q [String]) -> Vec<&'q str> {
    names_in_order(me.dialect(), queue, |other| blocks(other, me.place()))
}

/// Returns the place of `me` in the queue, counted from 1, and the number of contenders in the queue. The place counts
/// every earlier contender, also a reader that `me` need not wait for.
pub(crate) fn place_and_length(me: &NodeName, queue: &[String]) -> (usize, usize) {
    let places = queue.iter().filter_map(|child| me.dialect().parse_mode_and_sequence(child));
    places.fold((1, 0), |(mine, all), other| (mine + usize::from(other.sequence < me.sequence()), all + 1))
}

/// Returns the first waiter that `me`, a holder, excludes. If `has_left`, `me` has left the queue of a semaphore for
/// its permits, and any contender in the queue counts as such a waiter. The sequence numbers of these contenders are
/// not compared with that of `me`, because the numbers restart when the queue's directory is deleted and created again.
///
/// A node with the tag of `me` comes from a create of `me` whose reply was lost, so the node is no waiter.
pub(crate) fn first_excluded_waiter(me: &NodeName, queue: &[String], has_left: bool) -> Option<NodeName> {
    let is_kept_out =
        |other: ModeAndSequence| has_left || other.sequence > me.sequence() && other.mode.excludes(me.mode());
    let kept_out = names_in_order(me.dialect(), queue, is_kept_out);
    kept_out.into_iter().filter_map(|name| NodeName::parse_as(name, me.dialect())).find(|it| it.tag() != me.tag())
}

/// Returns all contenders in the order of arrival, each with its turn as [`turn_for_display`] decides it.
pub(crate) fn all_turns(dialect: Dialect, queue: &[String]) -> Vec<(NodeName, Turn)> {
    let ordered = names_in_order(dialect, queue, |_| true).into_iter();
    let ordered: Vec<NodeName> = ordered.filter_map(|name| NodeName::parse_as(name, dialect)).collect();
    let (mut last, mut last_write): (Option<&NodeName>, Option<&NodeName>) = (None, None);
    let mut turns = Vec::with_capacity(ordered.len());
    // Contenders of the same number do not wait for each other. None of them gets a turn, unless they may be nodes of
    // one holder.
    for group in ordered.chunk_by(|one, next| one.sequence() == next.sequence()) {
        for contender in group {
            let nearest = if contender.mode() == Mode::Write { last } else { last_write };
            let mut others = group.iter().filter(|it| it.as_str() != contender.as_str());
            let rival = others.find(|it| !dialect.may_be_one_holder(it.place(), contender.place()));
            turns.push(if rival.is_some() || contender.sequence() < 0 {
                Turn::Stuck(rival.map(|it| it.as_str().to_owned()))
            } else {
                nearest.map_or(Turn::Granted, |nearest| Turn::Behind(nearest.clone()))
            });
        }
        last = group.last();
        last_write = group.iter().rfind(|it| it.mode() == Mode::Write).or(last_write);
    }
    ordered.into_iter().zip(turns).collect()
}

fn blocks(other: ModeAndSequence, mine: ModeAndSequence) -> bool {
    other.sequence < mine.sequence && other.mode.excludes(mine.mode)
}

fn names_in_order(dialect: Dialect, queue: &[String], wanted: impl Fn(ModeAndSequence) -> bool) -> Vec<&str> {
    let mut chosen: Vec<(i64, &str)> = queue
        .iter()
        .filter_map(|child| {
            dialect
                .parse_mode_and_sequence(child)
                .filter(|place| wanted(*place))
                .map(|place| (place.sequence, child.as_str()))
        })
        .collect();
    chosen.sort_unstable();
    chosen.into_iter().map(|(_, child)| child).collect()
}

/// The state machine of one contender that waits. `C` is its [`NodeName`], or a pointer to it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Waiter<C> {
    me: C,
    /// Whether a writer that held the lock signals its release by a write to its node.
    signals_release: bool,
    if_taken: IfTaken,
    /// The predecessor that the contender waits for.
    awaited: Option<Predecessor>,
    /// The name of the predecessor's node, if the server has listed the node and then said that it does not exist.
    /// `None` again after the next [`PredecessorNews`], or once there is another predecessor.
    missing: Option<Arc<str>>,
    /// Whether a listing has shown a predecessor.
    has_waited: bool,
    /// Whether a [`Step::Await`] of this waiter has asked processes to give up the nodes that they keep between uses.
    /// No later step asks again.
    has_asked: bool,
}

/// Whether an acquisition waits or fails if an earlier contender excludes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IfTaken {
    /// The acquisition waits.
    Wait,
    /// The acquisition fails.
    GiveUp,
}

/// A waiter's predecessor: the nearest earlier contender that excludes the waiter.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Predecessor {
    /// The name of the predecessor's node.
    pub name: Arc<str>,
    /// The mode of the predecessor.
    pub mode: Mode,
}

/// What a listing has shown that makes the waiter give up if the ensemble's leader confirms it. The leader is asked,
/// because the server of the listing may lag behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListingClaim {
    /// The waiter's own node is not in the queue.
    Unlisted,
    /// The node of this name has the same number as the waiter's own node.
    Rival(String),
    /// Contenders are ahead of a waiter that must not wait.
    Ahead,
}

/// What a waiter has learned about its predecessor's node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PredecessorNews {
    /// The node's data changed. In the native dialect, this is how a writer signals its release.
    Signalled,
    /// The node was deleted, or may have changed while no event could come. The waiter has to list the directory again.
    ListAgain,
    /// The server says that the node does not exist, so there is no watch. The waiter has to list the directory again
    /// or, if the server says this twice in a row, to ask the ensemble's leader.
    Missing,
}

/// The next step of a waiter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// List the directory.
    List,
    /// Ask the ensemble's leader whether what the last listing showed is true.
    AskLeader(ListingClaim),
    /// Watch the predecessor's node, and wait for an event.
    Await {
        /// The contender to wait for.
        predecessor: Predecessor,
        /// Whether to ask, once the watch is set, that processes give up the nodes that they keep between uses and do
        /// not use now.
        asks: bool,
    },
    /// Ask the ensemble's leader again and again until it no longer has the predecessor's node. The server lists this
    /// node, but has said twice that the node does not exist, so the server cannot watch the node.
    AwaitAtLeader(Predecessor),
    /// Take the lock, or take permits at the head of a semaphore's queue.
    Take(GrantSource),
    /// Give up, because the waiter's own node is not in the queue.
    Evicted,
    /// Give up, because the node of this name has the same number as the waiter's own node. `None` if the waiter's
    /// number is negative instead.
    Stuck(Option<String>),
    /// Give up, because the node of this name is that of a foreign contender, whose rules may differ.
    Foreign(String),
    /// Give up, because contenders are ahead, and the waiter must not wait.
    WouldBlock,
}

/// How a contender learned that its turn had come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GrantSource {
    /// From a listing, without a wait for another contender. Usually, that listing was sent together with the
    /// contender's create.
    AtOnce,
    /// From a listing, after a wait.
    Look,
    /// From the hand-off of its predecessor.
    HandOff {
        /// The name of the predecessor's node, while the hand-off still has to be confirmed, because another client can
        /// forge a hand-off. `None` if no confirmation is needed any more.
        unconfirmed: Option<Arc<str>>,
    },
}

impl GrantSource {
    /// Returns the word for this value in traces and metrics.
    pub(crate) fn as_str(&self) -> &'static str {
        match self {
            GrantSource::AtOnce => "at once",
            GrantSource::Look => "look",
            GrantSource::HandOff { .. } => "hand-off",
        }
    }

    /// Returns the name of the node whose hand-off is not confirmed yet, if there is one.
    pub(crate) fn predecessor_to_confirm(&self) -> Option<&Arc<str>> {
        if let GrantSource::HandOff { unconfirmed } = self { unconfirmed.as_ref() } else { None }
    }
}

impl<C: Borrow<NodeName>> Waiter<C> {
    /// Creates the state machine of a contender whose node exists. Its first step is [`Step::List`]. `signals_release`
    /// says whether a writer that held the lock signals its release by a write to its node.
    pub fn new(me: C, signals_release: bool, if_taken: IfTaken) -> Waiter<C> {
        Waiter { me, signals_release, if_taken, awaited: None, missing: None, has_waited: false, has_asked: false }
    }

    /// Returns whether a listing has shown a predecessor.
    pub fn has_waited(&self) -> bool {
        self.has_waited
    }

    /// Returns whether the contender must not wait.
    pub(crate) fn must_not_wait(&self) -> bool {
        self.if_taken == IfTaken::GiveUp
    }

    /// Returns the next step after the directory was listed, as [`Step::List`] requires. `names` are the names in the
    /// directory, in any order. The waiter need not ask processes to give up the nodes in `closing`, because these
    /// processes are about to do so anyway.
    pub fn next_after_listing(&mut self, names: &[String], closing: &[String]) -> Step {
        let (turn, foreign) = turn_and_foreign_name(self.me.borrow(), names);
        match (turn, foreign) {
            (Turn::Evicted, _) => Step::AskLeader(ListingClaim::Unlisted),
            (_, Some(name)) => Step::Foreign(name.to_owned()),
            (Turn::Stuck(Some(rival)), None) => Step::AskLeader(ListingClaim::Rival(rival)),
            (Turn::Stuck(None), None) => Step::Stuck(None),
            (Turn::Granted, None) if self.has_waited => Step::Take(GrantSource::Look),
            (Turn::Granted, None) => Step::Take(GrantSource::AtOnce),
            (Turn::Behind(nearest), None) => {
                self.has_waited = true;
                if self.must_not_wait() {
                    return Step::AskLeader(ListingClaim::Ahead);
                }
                let is_kept = match nearest.mode() {
                    Mode::Write => nearest.keeps() && closing.iter().all(|name| name != nearest.as_str()),
                    Mode::Read => must_ask_kept_readers(self.me.borrow(), names, closing),
                };
                // One write to the directory asks all processes to give up the nodes that they keep between uses in it.
                // All nodes ahead of this waiter are older than its own node, and so than this write. So a second write
                // is never needed.
                let asks = is_kept && !self.has_asked;
                self.has_asked |= asks;
                self.missing.take_if(|missing| **missing != *nearest.as_str());
                let predecessor = Predecessor { name: nearest.as_str().into(), mode: nearest.mode() };
                self.awaited = Some(predecessor.clone());
                Step::Await { predecessor, asks }
            }
        }
    }

    /// Returns the next step after the ensemble's leader was asked about `claim`, as [`Step::AskLeader`] requires.
    /// `differs` says whether the leader contradicts the listing.
    pub fn next_after_leader_answer(&mut self, claim: ListingClaim, differs: bool) -> Step {
        match claim {
            _ if differs => Step::List,
            ListingClaim::Unlisted => Step::Evicted,
            ListingClaim::Rival(rival) => Step::Stuck(Some(rival)),
            ListingClaim::Ahead => Step::WouldBlock,
        }
    }

    /// Returns the next step after the predecessor's node has changed or is gone. This ends [`Step::Await`] and
    /// [`Step::AwaitAtLeader`].
    pub fn next_after_news(&mut self, news: PredecessorNews) -> Step {
        let Some(predecessor) = self.awaited.take() else { return Step::List };
        let was_missing = self.missing.take().is_some();
        match news {
            // In the native dialect, a writer changes its node only after its turn has come, in the transaction that
            // deletes the node. So no earlier contender is left. Because another client may have forged the change, the
            // grant is checked later. In another dialect, any client may change a node for any reason.
            PredecessorNews::Signalled if self.signals_release && predecessor.mode == Mode::Write => {
                Step::Take(GrantSource::HandOff { unconfirmed: Some(predecessor.name) })
            }
            PredecessorNews::Missing if was_missing => {
                self.awaited = Some(predecessor.clone());
                Step::AwaitAtLeader(predecessor)
            }
            PredecessorNews::Missing => {
                self.missing = Some(predecessor.name);
                Step::List
            }
            PredecessorNews::Signalled | PredecessorNews::ListAgain => Step::List,
        }
    }
}

#[cfg(test)]
mod tests;
