//! Whose turn it is: a function of names alone.

use crate::queue::contender::Contender;
use crate::queue::dialect::Dialect;
use crate::queue::mode::{Mode, Slot};
use crate::queue::native;

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
            && let Some(sequence) = native::sequence_if_plain(name)
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
    let kept = queue.iter().filter(|name| native::may_keep(name) && !leaving.contains(name));
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
    wanted.into_iter().filter_map(|name| Contender::parse_as(name, me.dialect())).find(|it| it.owner() != me.owner())
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

#[cfg(test)]
mod tests {
    use super::*;

    /// `R` and `W` make a queue numbered from 0, shown to `turn` last name first.
    fn queue(modes: &str) -> Vec<String> {
        let name_of = |(i, mode)| format!("h~{i}-{}-{i:010}", if mode == 'R' { "READ" } else { "WRITE" });
        let mut names: Vec<String> = modes.chars().enumerate().map(name_of).collect();
        names.reverse();
        names
    }

    /// What each contender sees: `!` granted, the number of its predecessor, `x` evicted.
    fn seen(queue: &[String]) -> String {
        let mut members: Vec<_> = queue.iter().filter_map(|n| Contender::parse(n)).collect();
        members.sort_by_key(|c| (c.sequence(), c.name().to_owned()));
        members.iter().map(|me| symbol(&turn(me, queue))).collect()
    }

    fn symbol(turn: &Turn) -> String {
        match turn {
            Turn::Granted => "!".to_owned(),
            Turn::Behind(other) => other.sequence().to_string(),
            Turn::Evicted => "x".to_owned(),
        }
    }

    #[test]
    fn turns_of_small_queues() {
        for (modes, turns) in [
            ("", ""),
            ("R", "!"),
            ("W", "!"),
            ("RR", "!!"),
            ("RW", "!0"),
            ("WR", "!0"),
            ("WW", "!0"),
            ("RRW", "!!1"),
            ("WRRWR", "!0023"),
            ("RWRRW", "!0113"),
        ] {
            assert_eq!(seen(&queue(modes)), turns, "queue {modes}");
        }
    }

    #[test]
    fn a_node_that_is_not_in_the_queue_is_evicted() {
        let me = Contender::parse("h~9-READ-0000000009").unwrap();
        assert_eq!(turn(&me, queue("RR")), Turn::Evicted);
    }

    #[test]
    fn a_shared_or_negative_number_is_never_granted() {
        let stuck = ["a~1-WRITE-2147483647", "b~2-WRITE-2147483647", "c~3-READ-2147483647"].map(str::to_owned);
        assert_eq!(seen(&stuck), "xxx");
        let wrapped = ["a~1-READ--000000005", "b~2-WRITE--2147483648"].map(str::to_owned);
        assert_eq!(seen(&wrapped), "xx");
    }

    #[test]
    fn whoever_comes_after_a_tie_waits_for_it() {
        let queue = ["a~1-WRITE-0000000005", "b~2-WRITE-0000000005", "c~3-READ-0000000006"].map(str::to_owned);
        assert_eq!(seen(&queue), "xx5");
    }

    #[test]
    fn the_line_is_everyones_turn() {
        let tied = ["a~1-WRITE-0000000005", "b~2-READ-0000000005", "c~3-READ-0000000006", "d~4-WRITE--000000001"];
        for queue in [queue("WRRWRWWR"), queue("RRRW"), tied.map(str::to_owned).to_vec()] {
            for (me, its_turn) in turns(Dialect::Native, &queue) {
                assert_eq!(its_turn, turn(&me, &queue), "{me} in {queue:?}");
            }
        }
    }

    #[test]
    fn those_ahead_come_first_come_first() {
        let queue = queue("RWRW");
        assert_eq!(
            ahead_of_newcomer(Dialect::Native, Mode::Read, &queue),
            ["h~1-WRITE-0000000001", "h~3-WRITE-0000000003"]
        );
        assert_eq!(ahead_of_newcomer(Dialect::Native, Mode::Write, &queue).len(), 4);
        let me = Contender::parse("h~2-READ-0000000002").unwrap();
        assert_eq!(ahead_of(&me, &queue), ["h~1-WRITE-0000000001"]);
        assert_eq!(place_of(&me, &queue), (3, 4));
    }

    #[test]
    fn a_holder_keeps_out_whoever_came_later_and_cannot_hold_beside_it() {
        let queue = queue("RRWRW");
        let first = |name| first_kept_out(&Contender::parse(name).unwrap(), &queue).map(|it| it.sequence());
        assert_eq!(first("h~0-READ-0000000000"), Some(2));
        assert_eq!(first("h~2-WRITE-0000000002"), Some(3));
        assert_eq!(first("h~3-READ-0000000003"), Some(4));
        assert_eq!(first("h~4-WRITE-0000000004"), None);
        let own = ["h~0-WRITE-0000000000", "h~0-WRITE-0000000001"].map(str::to_owned);
        assert_eq!(first_kept_out(&Contender::parse(&own[0]).unwrap(), &own), None);
        let tied = ["h~0-READ-0000000005", "h~1-WRITE-0000000005", "h~2-WRITE-0000000006"].map(str::to_owned);
        let kept_out = first_kept_out(&Contender::parse(&tied[0]).unwrap(), &tied);
        assert_eq!(kept_out.unwrap().name(), tied[2], "a node of the same number did not come later");
    }

    #[test]
    fn of_several_names_in_doubt_the_first_is_told_in_whatever_order_they_are_listed() {
        let mut queue =
            ["a__WRIT__0000000005", "b__WRIT__0000000004", "h~0-WRITE-0000000009"].map(str::to_owned).to_vec();
        let me = Contender::parse("h~0-WRITE-0000000009").unwrap();
        for _ in 0..queue.len() {
            queue.rotate_left(1);
            assert_eq!(turn_among_foreign(&me, &queue), (Turn::Granted, Some("a__WRIT__0000000005")));
        }
        queue.retain(|name| name.starts_with('h'));
        assert_eq!(turn_among_foreign(&me, &queue), (Turn::Granted, None));
    }

    #[test]
    fn a_native_name_is_in_doubt_in_another_dialect_whatever_its_number() {
        let mine = "a__WRIT__0000000005".to_owned();
        let me = Contender::parse_as(&mine, Dialect::Curator).unwrap();
        for number in [4, 9] {
            let queue = [mine.clone(), format!("h~0-WRITE-{number:010}")];
            assert_eq!(turn_among_foreign(&me, &queue).1, Some(&queue[1][..]));
        }
    }

    #[test]
    fn behind_a_tie_the_last_of_its_names_is_awaited_in_whatever_order_they_are_listed() {
        let mut queue = ["a~1-WRITE-0000000005", "b~2-WRITE-0000000005", "c~3-WRITE-0000000006"].map(str::to_owned);
        let me = Contender::parse("c~3-WRITE-0000000006").unwrap();
        for _ in 0..2 {
            queue.reverse();
            let Turn::Behind(other) = turn(&me, &queue) else { panic!("it is not behind the tie") };
            assert_eq!(other.name(), "b~2-WRITE-0000000005");
        }
    }
}
