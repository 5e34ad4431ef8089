//! Whose turn it is: a function of names alone.

use crate::name::{self, Contender, Mode, Place};

/// Where a contender stands in its queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Nothing before it excludes it: the lock is its own.
    Granted,
    /// It waits; the next thing to do is to watch this contender, the nearest one before it that excludes it.
    Behind(Contender),
    /// It has no place: its node is not in the queue, or its number is negative or not its alone.
    /// The next thing to do is to give up.
    Evicted,
}

/// Decides the turn of `me` from the names of the lock directory's children.
///
/// Reads the names once, in any order, and passes over those that are not contenders. A number that several
/// contenders share, or that is negative, is never granted: at the end of the sequence ZooKeeper hands out such
/// numbers, and "the lowest wins" would then be two.
///
/// ```
/// use zk_rwlock::{Contender, Turn, turn};
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
    let mine = me.place();
    let mut present = false;
    let mut alone = true;
    let mut nearest: Option<(i64, I::Item)> = None;
    for child in queue {
        let name = child.as_ref();
        // When ten thousand contenders come at once, each reads ten thousand names: most are passed over at a glance.
        if let Some(sequence) = name::sequence_if_plain(name)
            && (sequence > mine.sequence || nearest.as_ref().is_some_and(|(nearest, _)| *nearest > sequence))
        {
            continue;
        }
        let Some(other) = name::place(name) else {
            continue;
        };
        if name == me.name() {
            present = true;
        } else if other.sequence == mine.sequence {
            alone = false;
        } else if blocks(other, mine)
            && nearest.as_ref().is_none_or(|(sequence, nearest)| (*sequence, nearest.as_ref()) < (other.sequence, name))
        {
            nearest = Some((other.sequence, child));
        }
    }
    if !present || !alone || mine.sequence < 0 {
        return Turn::Evicted;
    }
    match nearest.and_then(|(_, name)| Contender::parse(name.as_ref())) {
        Some(contender) => Turn::Behind(contender),
        None => Turn::Granted,
    }
}

/// Those that a newcomer of this mode would have to wait for, first come first.
pub(crate) fn ahead_of_newcomer(mode: Mode, queue: &[String]) -> Vec<&str> {
    in_order(queue, |other| other.mode.excludes(mode))
}

/// Those that `me` waits for, first come first.
pub(crate) fn ahead_of<'q>(me: &Contender, queue: &'q [String]) -> Vec<&'q str> {
    in_order(queue, |other| blocks(other, me.place()))
}

/// The whole queue in the order of arrival, each with its turn: [`turn`] for everyone, in one pass.
pub(crate) fn line(queue: &[String]) -> Vec<(Contender, Turn)> {
    let ordered: Vec<Contender> = in_order(queue, |_| true).into_iter().filter_map(Contender::parse).collect();
    let shares = |a: Option<&Contender>, b: &Contender| a.is_some_and(|a| a.sequence() == b.sequence());
    let (mut last, mut last_write): (Option<usize>, Option<usize>) = (None, None);
    let mut turns = Vec::with_capacity(ordered.len());
    let mut start = 0;
    while start < ordered.len() {
        // Contenders of one number neither see each other as earlier nor have a turn.
        let tied = ordered[start..].iter().take_while(|c| shares(Some(&ordered[start]), c)).count();
        for contender in &ordered[start..start + tied] {
            let nearest = if contender.mode() == Mode::Write { last } else { last_write };
            turns.push(if tied > 1 || contender.sequence() < 0 {
                Turn::Evicted
            } else {
                nearest.map_or(Turn::Granted, |i| Turn::Behind(ordered[i].clone()))
            });
        }
        for (i, contender) in ordered.iter().enumerate().skip(start).take(tied) {
            last = Some(i);
            last_write = if contender.mode() == Mode::Write { Some(i) } else { last_write };
        }
        start += tied;
    }
    ordered.into_iter().zip(turns).collect()
}

fn blocks(other: Place, mine: Place) -> bool {
    other.sequence < mine.sequence && other.mode.excludes(mine.mode)
}

fn in_order(queue: &[String], wanted: impl Fn(Place) -> bool) -> Vec<&str> {
    let mut chosen: Vec<(i64, &str)> = queue
        .iter()
        .filter_map(|child| {
            name::place(child).filter(|place| wanted(*place)).map(|place| (place.sequence, child.as_str()))
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

    /// What each sees: `!` granted, a digit for whom it is behind, `x` evicted.
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
            for (me, its_turn) in line(&queue) {
                assert_eq!(its_turn, turn(&me, &queue), "{me} in {queue:?}");
            }
        }
    }

    #[test]
    fn those_ahead_come_first_come_first() {
        let queue = queue("RWRW");
        assert_eq!(ahead_of_newcomer(Mode::Read, &queue), ["h~1-WRITE-0000000001", "h~3-WRITE-0000000003"]);
        assert_eq!(ahead_of_newcomer(Mode::Write, &queue).len(), 4);
        let me = Contender::parse("h~2-READ-0000000002").unwrap();
        assert_eq!(ahead_of(&me, &queue), ["h~1-WRITE-0000000001"]);
    }
}
