//! Whose turn it is, a function of names alone; and how one contender waits for its turn, a value that takes news and says what
//! to do next.
//!
//! ```text
//!          the predecessor has gone
//!         +-----------------------+
//!         v                       |
//! new -> List -- behind --> Await-+
//!         |                   |
//!         | granted           | signalled by a writer
//!         +------> Take <-----+
//! ```
//!
//! A predecessor may have gone without a word, and be shown all the same: then it is passed over from then on.
//!
//! `List` can also end the wait: with `Evicted` if our node is not in the queue, or with `Foreign` if a foreign
//! contender is there, whose rule may differ.
//!
//! The acquisition carries the steps out. The exhaustive model and the property tests drive the same value.

use std::borrow::Borrow;
use std::sync::Arc;

use crate::queue::contender::Contender;
use crate::queue::dialect::{self, Dialect};
use crate::queue::mode::{Mode, Slot};

/// Where a contender stands in its queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Nothing before it excludes it: the lock is its own.
    Granted,
    /// It waits. Next, watch this contender: its predecessor, the nearest contender before it that excludes it.
    Behind(Contender),
    /// It has no turn: its node is not in the queue, its number is negative, or another node has the same number. Next,
    /// give up.
    Evicted,
}

/// Decides the turn of `me` from the names of the lock directory's children.
///
/// Reads the names once, in any order, and ignores names that are not contenders'. A contender whose number is
/// negative, or shared with another contender, is never granted: ZooKeeper hands out such numbers at the end of the
/// sequence, and then two contenders could both be the lowest. The [dialect](Dialect) of `me` decides which names are
/// contenders'. This function does not look for contenders of other dialects: the lock does.
///
/// ```
/// use zk_rwlock::Contender;
/// use zk_rwlock::coordinator::{Turn, turn};
/// let queue = ["b~2-READ-0000000001", "a~1-WRITE-0000000000", "c~3-WRITE-0000000002"];
/// let of = |name| turn(&Contender::parse(name).unwrap(), queue);
/// assert_eq!(of("a~1-WRITE-0000000000"), Turn::Granted);
/// assert_eq!(of("b~2-READ-0000000001"), Turn::Behind(Contender::parse("a~1-WRITE-0000000000").unwrap()));
/// assert_eq!(of("c~3-WRITE-0000000002"), Turn::Behind(Contender::parse("b~2-READ-0000000001").unwrap()));
/// ```
pub fn turn<I>(me: &Contender, queue: I) -> Turn
where
    I: IntoIterator<Item: AsRef<str>>,
{
    decide(me, queue, |_| {}, |_| false)
}

/// As [`turn`], and the name of a foreign contender if there is one. Its rule may differ, so then the turn means
/// nothing.
pub(crate) fn turn_among_foreign<'q>(me: &Contender, queue: &'q [String]) -> (Turn, Option<&'q str>) {
    let mut foreign: Option<&str> = None;
    let look = |name: &'q String| {
        if me.dialect().foreign(name).is_some() && foreign.is_none_or(|first| &name[..] < first) {
            foreign = Some(name);
        }
    };
    let turn = decide(me, queue, look, |_| false);
    (turn, foreign)
}

/// As [`turn`], to be shown to people: here two nodes of one number may belong to one holder.
pub(crate) fn as_seen(me: &Contender, queue: &[String]) -> Turn {
    decide(me, queue, |_| {}, |other| me.dialect().is_one_holder(other, me.slot()))
}

/// Calls `pass_over` for each name that is not a contender's. `may_share` says whether a slot may have the number of
/// `me`.
fn decide<I>(me: &Contender, queue: I, mut pass_over: impl FnMut(I::Item), may_share: impl Fn(Slot) -> bool) -> Turn
where
    I: IntoIterator<Item: AsRef<str>>,
{
    let (mine, dialect) = (me.slot(), me.dialect());
    let mut present = false;
    let mut alone = true;
    let mut nearest: Option<(i64, I::Item)> = None;
    for child in queue {
        let name = child.as_ref();
        // When ten thousand contenders come at once, each reads ten thousand names. So most names are skipped by their
        // last digits.
        if dialect == Dialect::Native
            && let Some(sequence) = dialect::sequence_if_plain(name)
            && (sequence > mine.sequence || nearest.as_ref().is_some_and(|(nearest, _)| *nearest > sequence))
        {
            continue;
        }
        let Some(other) = dialect.slot(name) else {
            pass_over(child);
            continue;
        };
        if name == me.name() {
            present = true;
        } else if other.sequence == mine.sequence {
            alone &= may_share(other);
        } else if blocks(other, mine)
            && nearest.as_ref().is_none_or(|(sequence, nearest)| (*sequence, nearest.as_ref()) < (other.sequence, name))
        {
            nearest = Some((other.sequence, child));
        }
    }
    if !present || !alone || mine.sequence < 0 {
        return Turn::Evicted;
    }
    match nearest.and_then(|(_, name)| Contender::parse_as(name.as_ref(), dialect)) {
        Some(contender) => Turn::Behind(contender),
        None => Turn::Granted,
    }
}

/// Whether `me`, a writer that waits for readers, has to ask for a node that one of them may only keep. It asks for the
/// readers that came after the last writer before it: that writer asks for the others. Those that are `leaving` by themselves need not be
/// asked for.
pub(crate) fn is_reader_kept_before(me: &Contender, queue: &[String], leaving: &[String]) -> bool {
    // Most names are passed over by their last characters: a waiter may list ten thousand names.
    let kept = queue.iter().filter(|name| dialect::may_keep(name) && !leaving.contains(name));
    let before = |name: &String| me.dialect().slot(name).filter(|it| it.sequence < me.sequence());
    let readers = kept.filter_map(before).filter(|it| it.mode == Mode::Read);
    let Some(newest) = readers.map(|it| it.sequence).max() else { return false };
    let writers = queue.iter().filter_map(before).filter(|it| it.mode == Mode::Write);
    writers.map(|it| it.sequence).max() < Some(newest)
}

/// The first name, in the order of text, of a foreign contender.
pub(crate) fn foreign(dialect: Dialect, queue: &[String]) -> Option<&str> {
    queue.iter().map(String::as_str).filter(|name| dialect.foreign(name).is_some()).min()
}

/// The contenders that a newcomer of this mode would have to wait for, in the order of arrival.
pub(crate) fn ahead_of_newcomer(dialect: Dialect, mode: Mode, queue: &[String]) -> Vec<&str> {
    in_order(dialect, queue, |other| other.mode.excludes(mode))
}

/// The contenders that `me` waits for, in the order of arrival.
pub(crate) fn ahead_of<'q>(me: &Contender, queue: &'q [String]) -> Vec<&'q str> {
    in_order(me.dialect(), queue, |other| blocks(other, me.slot()))
}

/// The place of `me`, counted from 1, whether or not it waits for the contenders before it; and how many contenders
/// there are.
pub(crate) fn place_of(me: &Contender, queue: &[String]) -> (usize, usize) {
    let places = queue.iter().filter_map(|child| me.dialect().slot(child));
    places.fold((1, 0), |(mine, all), other| (mine + usize::from(other.sequence < me.sequence()), all + 1))
}

/// The first waiter that `me`, a holder, keeps out.
pub(crate) fn first_kept_out(me: &Contender, queue: &[String]) -> Option<Contender> {
    first_of_others(me, queue, |other| other.sequence > me.sequence() && other.mode.excludes(me.mode()))
}

/// The first waiter that `me`, who has left this queue with its permits, may keep out. The queue may have been made anew since,
/// and begun its numbers again.
pub(crate) fn first_in_queue(me: &Contender, queue: &[String]) -> Option<Contender> {
    first_of_others(me, queue, |_| true)
}

/// A second node of the same owner, from a create whose answer was lost, is no waiter.
fn first_of_others(me: &Contender, queue: &[String], is_wanted: impl Fn(Slot) -> bool) -> Option<Contender> {
    let wanted = in_order(me.dialect(), queue, is_wanted);
    wanted.into_iter().filter_map(|name| Contender::parse_as(name, me.dialect())).find(|it| it.tag() != me.tag())
}

/// All contenders in the order of arrival, each with its turn: [`as_seen`] for all of them, in one pass.
pub(crate) fn turns(dialect: Dialect, queue: &[String]) -> Vec<(Contender, Turn)> {
    let ordered = in_order(dialect, queue, |_| true).into_iter();
    let ordered: Vec<Contender> = ordered.filter_map(|name| Contender::parse_as(name, dialect)).collect();
    let (mut last, mut last_write): (Option<&Contender>, Option<&Contender>) = (None, None);
    let mut turns = Vec::with_capacity(ordered.len());
    // Contenders of one number do not count as before each other. They have no turn, unless they may be nodes of one
    // holder.
    for group in ordered.chunk_by(|one, next| one.sequence() == next.sequence()) {
        for contender in group {
            let nearest = if contender.mode() == Mode::Write { last } else { last_write };
            let mut others = group.iter().filter(|it| it.name() != contender.name());
            let is_doubtful = others.any(|it| !dialect.is_one_holder(it.slot(), contender.slot()));
            turns.push(if is_doubtful || contender.sequence() < 0 {
                Turn::Evicted
            } else {
                nearest.map_or(Turn::Granted, |nearest| Turn::Behind(nearest.clone()))
            });
        }
        last = group.last();
        last_write = group.iter().rfind(|it| it.mode() == Mode::Write).or(last_write);
    }
    ordered.into_iter().zip(turns).collect()
}

fn blocks(other: Slot, mine: Slot) -> bool {
    other.sequence < mine.sequence && other.mode.excludes(mine.mode)
}

fn in_order(dialect: Dialect, queue: &[String], wanted: impl Fn(Slot) -> bool) -> Vec<&str> {
    let mut chosen: Vec<(i64, &str)> = queue
        .iter()
        .filter_map(|child| {
            dialect.slot(child).filter(|slot| wanted(*slot)).map(|slot| (slot.sequence, child.as_str()))
        })
        .collect();
    chosen.sort_unstable();
    chosen.into_iter().map(|(_, child)| child).collect()
}

/// One contender that waits. `C` is its [`Contender`], or a reference to it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Waiter<C> {
    me: C,
    /// A writer that held signals its release by a write to its node.
    hands_off: bool,
    awaited: Option<Predecessor>,
    /// The contender had to wait.
    has_waited: bool,
    /// All contenders before it were asked to give up nodes that they may only keep.
    has_asked: bool,
    /// The names of contenders that have left by what the leader says, and that the server still shows. None of them ever
    /// comes again, so they are passed over.
    ghosts: Vec<Arc<str>>,
}

/// The nearest contender before a waiter that excludes the waiter.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Predecessor {
    /// The name of its node.
    pub name: Arc<str>,
    /// Its mode.
    pub mode: Mode,
}

/// What a waiter learns.
#[derive(Debug)]
pub enum News<'a> {
    /// The answer to [`Step::List`].
    Listed {
        /// The names in the directory, in any order.
        names: &'a [String],
        /// Those of them that leave soon by themselves, and need not be asked for.
        leaving: &'a [String],
    },
    /// What became of the predecessor: the answer to [`Step::Await`].
    Departed(Departure),
}

/// What became of a predecessor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Departure {
    /// Its node was written to.
    Signalled,
    /// Something else happened to its node, perhaps before it could be watched; or another listing may show more.
    ListAgain,
    /// The leader no longer has its node, nor one after a downgrade that would be in the way, although nothing was heard of that.
    GoneAtLeader,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// List the directory.
    List,
    /// Watch the predecessor's node, and wait until something happens to it.
    Await {
        /// The contender to wait for.
        predecessor: Predecessor,
        /// Whether to ask the contenders before us to give up nodes that they may only keep, once the predecessor's node
        /// is watched.
        asks: bool,
    },
    /// Take the lock.
    Take(Take),
    /// Give up: our node is not in the queue, or has no number of its own.
    Evicted,
    /// Give up: the node of this name is a foreign contender, so nothing shows whose turn it is.
    Foreign(String),
}

/// The contender's turn has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Take {
    /// The name of the writer whose signal shows it. `None` if a listing does.
    pub signalled_by: Option<Arc<str>>,
    /// The contender had to wait.
    pub has_waited: bool,
    /// The contenders that it has passed over: they have left, and the server still shows them.
    pub ghosts: Vec<Arc<str>>,
}

impl<C: Borrow<Contender>> Waiter<C> {
    /// A contender that has its node. Its first step is [`Step::List`]. `hands_off` says whether a writer that held signals
    /// its release by a write to its node.
    pub fn new(me: C, hands_off: bool) -> Waiter<C> {
        Waiter { me, hands_off, awaited: None, has_waited: false, has_asked: false, ghosts: Vec::new() }
    }

    /// What to do next, now that the last step has brought this news.
    pub fn next(&mut self, news: News<'_>) -> Step {
        match news {
            News::Listed { names, leaving } => self.after_listing(names, leaving),
            News::Departed(departure) => self.after_departure(departure),
        }
    }

    /// Whether the contender has waited for another.
    pub fn has_waited(&self) -> bool {
        self.has_waited
    }

    /// Whether the server has shown contenders that had left.
    pub fn has_ghosts(&self) -> bool {
        !self.ghosts.is_empty()
    }

    /// These contenders have left, by what the leader says, although the server shows them.
    pub fn pass_over(&mut self, ghosts: impl IntoIterator<Item = Arc<str>>) {
        for ghost in ghosts {
            if !self.ghosts.contains(&ghost) {
                self.ghosts.push(ghost);
            }
        }
    }

    fn after_listing(&mut self, names: &[String], leaving: &[String]) -> Step {
        self.ghosts.retain(|ghost| names.iter().any(|name| **name == **ghost));
        let without_ghosts: Vec<String>;
        let names = if self.ghosts.is_empty() {
            names
        } else {
            let is_ghost = |name: &&String| self.ghosts.iter().any(|ghost| ***name == **ghost);
            without_ghosts = names.iter().filter(|name| !is_ghost(name)).cloned().collect();
            &without_ghosts
        };
        let (turn, foreign) = turn_among_foreign(self.me.borrow(), names);
        match (turn, foreign) {
            (Turn::Evicted, _) => Step::Evicted,
            (_, Some(name)) => Step::Foreign(name.to_owned()),
            (Turn::Granted, None) => self.take(None),
            (Turn::Behind(nearest), None) => {
                let is_kept = match nearest.mode() {
                    Mode::Write => nearest.keeps() && leaving.iter().all(|name| name != nearest.name()),
                    Mode::Read => is_reader_kept_before(self.me.borrow(), names, leaving),
                };
                // One change of the directory asks for every node that was there when ours was created.
                let asks = is_kept && !self.has_asked;
                self.has_asked |= asks;
                self.has_waited = true;
                let predecessor = Predecessor { name: nearest.name().into(), mode: nearest.mode() };
                self.awaited = Some(predecessor.clone());
                Step::Await { predecessor, asks }
            }
        }
    }

    fn after_departure(&mut self, departure: Departure) -> Step {
        let Some(predecessor) = self.awaited.take() else { return Step::List };
        match departure {
            // Only a writer that held writes to its node when it leaves, and then no contender before us is left. In
            // another dialect any client may have written, for any reason.
            Departure::Signalled if self.hands_off && predecessor.mode == Mode::Write => {
                self.take(Some(predecessor.name))
            }
            Departure::GoneAtLeader => {
                self.ghosts.push(predecessor.name);
                Step::List
            }
            Departure::Signalled | Departure::ListAgain => Step::List,
        }
    }

    fn take(&self, signalled_by: Option<Arc<str>>) -> Step {
        Step::Take(Take { signalled_by, has_waited: self.has_waited, ghosts: self.ghosts.clone() })
    }
}

#[cfg(test)]
mod tests;
