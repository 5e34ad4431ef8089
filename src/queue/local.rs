//! The queue of one lock, as far as one session knows it from its own contenders; knows no I/O.
//!
//! The requests of one session take effect in one order. So if two contenders of a session have consecutive numbers,
//! the second learns its turn from the first, without a listing. This is the common case: a task that uses a lock alone
//! always follows itself, and tasks of one session that contend for a lock often follow each other. A holder that
//! releases can also wake the next contender of its session, long before the ensemble has answered.
//!
//! Of other sessions' contenders this queue knows only what a listing or a hand-off showed, and that none of them
//! stands between two consecutive numbers.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use crate::queue::mode::{Mode, Slot};
use crate::queue::turn;
use crate::sync::atomic::{AtomicBool, Ordering};

/// How many contenders that have left are remembered for their successor. The successor may be of another session, and
/// then it never enters here.
const REMEMBERED: usize = 64;

/// What a grant rests on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Evidence {
    /// Evidence that no client can have forged.
    Sure,
    /// The signal of a holder. Another client can have forged it, as long as the holder's node is not known to be gone.
    HandOff(Arc<HandOff>),
}

/// A signal that a holder has released the lock.
#[derive(Debug)]
pub(crate) struct HandOff {
    /// The path of the holder's node.
    pub(crate) path: Arc<str>,
    is_gone: AtomicBool,
}

impl HandOff {
    pub(crate) fn new(path: Arc<str>) -> HandOff {
        HandOff { path, is_gone: AtomicBool::new(false) }
    }

    /// The node is gone, so the signal was true.
    pub(crate) fn confirm(&self) {
        self.is_gone.store(true, Ordering::Release);
    }

    pub(crate) fn is_confirmed(&self) -> bool {
        self.is_gone.load(Ordering::Acquire)
    }
}

impl PartialEq for HandOff {
    fn eq(&self, other: &HandOff) -> bool {
        self.path == other.path
    }
}

impl Eq for HandOff {}

/// How a contender leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// It held the write lock until now.
    LetGo,
    /// It held the read lock, or waited.
    Plain,
    /// It lost its node.
    Lost,
}

/// Where a contender stands. Its predecessor is the nearest contender before it that excludes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LocalTurn {
    /// This session does not know.
    Unknown,
    /// Nothing excludes it.
    Clear(Evidence),
    /// Its predecessor is of this session, and has this number.
    Behind(i64),
    /// Its predecessor is a writer of another session, whose node has this name.
    BehindRemote(Arc<str>),
}

/// What stands directly before a contender. Contenders that have left do not count.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Before {
    Unknown,
    /// There is no writer before it, at any distance.
    NoWriter(Evidence),
    /// There is no contender before it, at any distance.
    Nobody(Evidence),
    /// The contender of this session that has this number.
    Next(i64),
}

/// One contender of this session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    /// Its number in the queue. Numbers are given again after the directory is made anew.
    pub(crate) number: i64,
    /// An id that no other contender of this process has.
    pub(crate) id: u64,
}

/// One session's contenders for one lock.
#[derive(Clone, Debug)]
pub(crate) struct LocalQueue<T> {
    members: BTreeMap<i64, Member<T>>,
    /// How many members have left, and are only remembered.
    left: usize,
}

#[derive(Clone, Debug)]
struct Member<T> {
    id: u64,
    mode: Mode,
    czxid: i64,
    entry: T,
    before: Before,
    turn: LocalTurn,
    /// It has left, and is remembered for the contender that comes directly after it.
    has_left: bool,
    /// Its process may keep its node between uses, and gives it up when asked.
    may_keep: bool,
}

impl<T> Default for LocalQueue<T> {
    fn default() -> LocalQueue<T> {
        LocalQueue { members: BTreeMap::new(), left: 0 }
    }
}

impl<T: Clone> LocalQueue<T> {
    /// Enters `entry`, whose node transaction `czxid` created. Returns the contenders to wake.
    pub(crate) fn enter(&mut self, id: u64, slot: Slot, czxid: i64, entry: &T) -> Vec<T> {
        let mut woken = Vec::new();
        let number = slot.sequence;
        // A member with this number, or whose recorded neighbour leaves no room for it, dates from before the directory
        // was made anew.
        self.part(number, Exit::Lost, &mut woken);
        self.forget(number);
        if let Some((upper, member)) = self.members.range_mut(number..).next()
            && matches!(member.before, Before::Next(lower) if lower < number)
        {
            member.before = Before::Unknown;
            let upper = *upper;
            self.renew(upper, &mut woken);
        }
        // Members with higher numbers and older nodes date from before the directory was made anew. Such a member is
        // forgotten if it has left.
        let above = self.members.range(above(number)).rev().take_while(|(_, it)| it.czxid < czxid);
        let before: Vec<i64> = above.filter(|(_, it)| it.has_left).map(|(number, _)| *number).collect();
        before.into_iter().for_each(|number| self.forget(number));
        let member = Member {
            id,
            mode: slot.mode,
            czxid,
            entry: entry.clone(),
            before: Before::Unknown,
            turn: LocalTurn::Unknown,
            has_left: false,
            may_keep: false,
        };
        self.members.insert(number, member);
        self.join(number, &mut woken);
        // The answer to a later create may have come first.
        if let Some(upper) = number.checked_add(1)
            && self.members.get(&upper).is_some_and(|upper| !upper.has_left)
        {
            self.join(upper, &mut woken);
        }
        woken
    }

    /// The process of this contender, which has just entered, may keep its node between uses.
    pub(crate) fn may_keep(&mut self, key: Key) {
        if let Some(member) = self.members.get_mut(&key.number).filter(|it| it.id == key.id) {
            member.may_keep = true;
        }
    }

    /// Where this contender stands.
    pub(crate) fn turn(&self, key: Key) -> LocalTurn {
        let member = self.members.get(&key.number).filter(|it| it.id == key.id);
        member.map_or(LocalTurn::Unknown, |member| member.turn.clone())
    }

    /// The contender of this number, if it stands in the queue.
    pub(crate) fn member(&self, number: i64) -> Option<&T> {
        self.members.get(&number).filter(|it| !it.has_left).map(|it| &it.entry)
    }

    /// All contenders that stand in the queue.
    pub(crate) fn members(&self) -> impl Iterator<Item = &T> {
        self.members.values().filter(|it| !it.has_left).map(|it| &it.entry)
    }

    /// Whether nothing is known.
    pub(crate) fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Whether this contender came directly after another contender of the session.
    pub(crate) fn was_next(&self, number: i64) -> bool {
        self.members.get(&number).is_some_and(|it| it.before != Before::Unknown)
    }

    /// This contender was granted the lock.
    pub(crate) fn granted(&mut self, key: Key, evidence: &Evidence) -> Vec<T> {
        let mut woken = Vec::new();
        let number = key.number;
        let Some(member) = self.members.get(&number).filter(|it| it.id == key.id && !it.has_left) else {
            return woken;
        };
        let (mode, turn) = (member.mode, LocalTurn::Clear(evidence.clone()));
        let before = match (mode, &member.before) {
            (Mode::Write, _) => Before::Nobody(evidence.clone()),
            // The writer directly before this reader has lost its node, and has not noticed.
            (Mode::Read, Before::Next(lower)) if self.excludes(*lower, mode) => Before::NoWriter(evidence.clone()),
            (Mode::Read, before) => before.clone(),
        };
        if let Some(member) = self.members.get_mut(&number) {
            member.before = before;
            if !matches!(member.turn, LocalTurn::Clear(_)) {
                member.turn = turn;
            }
        }
        self.renew_above(number, &mut woken);
        woken
    }

    /// This contender waits for a node of another session.
    pub(crate) fn waits_for(&mut self, key: Key, name: &Arc<str>) {
        let Some(member) = self.members.get_mut(&key.number).filter(|it| it.id == key.id) else { return };
        if member.mode == Mode::Read && matches!(member.turn, LocalTurn::Unknown | LocalTurn::BehindRemote(_)) {
            member.turn = LocalTurn::BehindRemote(Arc::clone(name));
        }
    }

    /// This contender held the write lock, and now holds the read lock, as `entry`.
    pub(crate) fn downgraded(&mut self, key: Key, entry: &T) -> Vec<T> {
        let mut woken = Vec::new();
        if let Some(member) = self.members.get_mut(&key.number).filter(|it| it.id == key.id) {
            member.mode = Mode::Read;
            member.entry = entry.clone();
            self.renew_above(key.number, &mut woken);
        }
        woken
    }

    /// This contender leaves the queue: it does not hold the lock, and never will.
    pub(crate) fn left(&mut self, key: Key, exit: Exit) -> Vec<T> {
        let mut woken = Vec::new();
        if self.is_here(key) {
            self.part(key.number, exit, &mut woken);
            if self.left > REMEMBERED
                && let Some(oldest) = self.members.iter().find(|(_, it)| it.has_left).map(|(number, _)| *number)
            {
                self.forget(oldest);
            }
        }
        woken
    }

    /// Forgets everything. Returns all contenders in the queue, so that each of them looks again.
    pub(crate) fn forget_all(&mut self) -> Vec<T> {
        self.left = 0;
        std::mem::take(&mut self.members).into_values().filter(|it| !it.has_left).map(|it| it.entry).collect()
    }

    /// Whether this contender stands in the queue.
    pub(crate) fn is_here(&self, key: Key) -> bool {
        self.members.get(&key.number).is_some_and(|it| it.id == key.id && !it.has_left)
    }

    fn excludes(&self, number: i64, mode: Mode) -> bool {
        self.members.get(&number).is_some_and(|it| it.mode.excludes(mode))
    }

    fn forget(&mut self, number: i64) {
        if self.members.remove(&number).is_some_and(|it| it.has_left) {
            self.left -= 1;
        }
    }

    /// Finds out what stands directly before this contender, if that is not known.
    fn join(&mut self, number: i64, woken: &mut Vec<T>) {
        let Some(below) = number.checked_sub(1) else { return };
        let (Some(me), Some(lower)) = (self.members.get(&number), self.members.get(&below)) else { return };
        let slot = |member: &Member<T>, sequence| Slot { mode: member.mode, sequence };
        let is_next = turn::is_next(slot(me, number), me.czxid, slot(lower, below), lower.czxid);
        if me.before != Before::Unknown || !is_next {
            return;
        }
        let before = if lower.has_left { lower.before.clone() } else { Before::Next(below) };
        if lower.has_left {
            // No other contender can come directly after it.
            self.forget(below);
        }
        if let Some(me) = self.members.get_mut(&number) {
            me.before = before;
        }
        self.renew(number, woken);
    }

    fn part(&mut self, number: i64, exit: Exit, woken: &mut Vec<T>) {
        let Some(member) = self.members.get_mut(&number).filter(|it| !it.has_left) else { return };
        let left_behind = match (exit, &member.turn, &member.before) {
            // A writer that held the lock had no contender before it.
            (Exit::LetGo, LocalTurn::Clear(evidence), _) => Before::Nobody(evidence.clone()),
            (Exit::LetGo | Exit::Lost, ..) => Before::Unknown,
            (Exit::Plain, LocalTurn::Clear(evidence), Before::Unknown) => Before::NoWriter(evidence.clone()),
            (Exit::Plain, _, before) => before.clone(),
        };
        member.before = left_behind.clone();
        member.has_left = true;
        self.left += 1;
        if let Some(upper) = self.right_after(number) {
            self.forget(number);
            if let Some(upper) = self.members.get_mut(&upper) {
                upper.before = left_behind;
            }
            self.renew(upper, woken);
        }
    }

    /// The number of the contender that is known to come directly after this number.
    fn right_after(&self, number: i64) -> Option<i64> {
        let (upper, member) = self.members.range(above(number)).next()?;
        (member.before == Before::Next(number)).then_some(*upper)
    }

    fn renew_above(&mut self, number: i64, woken: &mut Vec<T>) {
        if let Some(upper) = self.right_after(number) {
            self.renew(upper, woken);
        }
    }

    /// Finds out where this contender stands, after a change before it; then the contenders after it, as far as their
    /// turn changes with it.
    fn renew(&mut self, mut number: i64, woken: &mut Vec<T>) {
        loop {
            let Some(member) = self.members.get(&number) else { return };
            let turn = self.turn_after(&member.before, member.mode);
            // A grant stays a grant.
            if turn == member.turn || matches!(member.turn, LocalTurn::Clear(_)) {
                return;
            }
            let is_news = match turn {
                LocalTurn::Clear(_) | LocalTurn::Unknown => !member.has_left,
                // Its predecessor has left. The next one may only keep its node, and then it has to be asked for.
                LocalTurn::Behind(next) => {
                    let was_behind = matches!(member.turn, LocalTurn::Behind(_)) && !member.has_left;
                    was_behind && self.members.get(&next).is_some_and(|it| it.may_keep)
                }
                LocalTurn::BehindRemote(_) => false,
            };
            let Some(member) = self.members.get_mut(&number) else { return };
            member.turn = turn;
            if is_news {
                woken.push(member.entry.clone());
            }
            match self.right_after(number) {
                Some(upper) => number = upper,
                None => return,
            }
        }
    }

    fn turn_after(&self, before: &Before, mode: Mode) -> LocalTurn {
        match before {
            Before::Nobody(evidence) => LocalTurn::Clear(evidence.clone()),
            Before::NoWriter(evidence) if mode == Mode::Read => LocalTurn::Clear(evidence.clone()),
            Before::Unknown | Before::NoWriter(_) => LocalTurn::Unknown,
            Before::Next(number) => match self.members.get(number) {
                None => LocalTurn::Unknown,
                Some(lower) if lower.mode.excludes(mode) => LocalTurn::Behind(*number),
                Some(lower) => lower.turn.clone(),
            },
        }
    }
}

/// All numbers above this one.
fn above(number: i64) -> (Bound<i64>, Bound<i64>) {
    (Bound::Excluded(number), Bound::Unbounded)
}

#[cfg(test)]
mod tests;
