//! The judge of the reads and writes of one register. It checks, with stateright's testers of linearizability and of
//! sequential consistency, whether the replies are possible at their times.
//!
//! No two writes have the same value. So a write of unknown outcome whose value was never read proves nothing, and the
//! judge leaves it out.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::time::Duration;

use stateright::semantics::{ConsistencyTester, LinearizabilityTester, SequentialConsistencyTester, SequentialSpec};

/// A register that holds a number, 0 at first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Register(u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    /// A read returned this value.
    Read { saw: u64 },
    /// A client read one value and then wrote another, with no other write in between.
    Swap { saw: u64, wrote: u64 },
    /// A client wrote this value without reading first.
    Put { wrote: u64 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Done,
    /// The register had another value than the operation expected, so the operation changed nothing.
    Refused,
}

impl SequentialSpec for Register {
    type Op = Op;
    type Ret = Answer;

    fn invoke(&mut self, op: &Op) -> Answer {
        match *op {
            Op::Read { saw } | Op::Swap { saw, .. } if saw != self.0 => return Answer::Refused,
            Op::Read { .. } => {}
            Op::Swap { wrote, .. } | Op::Put { wrote } => self.0 = wrote,
        }
        Answer::Done
    }
}

impl Op {
    fn saw(self) -> Option<u64> {
        match self {
            Op::Read { saw } | Op::Swap { saw, .. } => Some(saw),
            Op::Put { .. } => None,
        }
    }

    fn wrote(self) -> Option<u64> {
        match self {
            Op::Swap { wrote, .. } | Op::Put { wrote } => Some(wrote),
            Op::Read { .. } => None,
        }
    }
}

/// One operation. The times of all operations are on one clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Event {
    /// The index of the client. A client does one operation at a time.
    pub(super) who: usize,
    pub(super) op: Op,
    pub(super) from: Duration,
    /// The end of the operation. `None` is an unknown outcome: the operation may take effect at any later time, or
    /// never.
    pub(super) until: Option<Duration>,
}

/// Returns the values of all writes in an order that explains all replies, or `None` if no such order exists.
pub(super) fn serialized(events: &[Event]) -> Option<Vec<u64>> {
    let mut tester = LinearizabilityTester::new(Register::default());
    let mut names = BTreeSet::new();
    let mut moments = Vec::new();
    for event in noticed(events) {
        // The tester refuses a second operation of a client while the first is in progress. An operation of unknown
        // outcome never ends, so it gets a client of its own.
        let name = (event.who, if event.until.is_none() { names.len() + 1 } else { 0 });
        names.insert(name);
        moments.push((event.from, false, name, event.op));
        moments.extend(event.until.map(|until| (until, true, name, event.op)));
    }
    // At equal times, an operation begins before another ends, so that the two overlap.
    moments.sort_by_key(|(moment, is_answer, ..)| (*moment, *is_answer));
    for (_, is_answer, name, op) in moments {
        let noted = if is_answer { tester.on_return(name, Answer::Done) } else { tester.on_invoke(name, op) };
        noted.expect("a client does two operations at once");
    }
    let order = tester.serialized_history()?;
    let done = order.into_iter().filter(|(_, answer)| *answer == Answer::Done);
    Some(done.filter_map(|(op, _)| op.wrote()).collect())
}

/// Returns the events without the writes of unknown outcome whose values were never read.
fn noticed(events: &[Event]) -> Vec<Event> {
    let (mut taken, mut open): (Vec<Event>, Vec<Event>) = events.iter().partition(|event| event.until.is_some());
    loop {
        let seen: BTreeSet<u64> = taken.iter().filter_map(|event| event.op.saw()).collect();
        let is_seen = |event: &Event| event.op.wrote().is_some_and(|wrote| seen.contains(&wrote));
        let (found, rest): (Vec<Event>, Vec<Event>) = open.into_iter().partition(is_seen);
        if found.is_empty() {
            return taken;
        }
        taken.extend(found);
        open = rest;
    }
}

/// Returns whether a copy can have shown the values `looks` in this order, if the writes were done in the order
/// `written`. A copy may lag, but never shows an older value after a newer one.
pub(super) fn is_followed(written: &[u64], looks: &[u64]) -> bool {
    // The id of the tester's client that reads. The tester tries the client with the lower id first. With the reads
    // first, the search needs no backtracking.
    const LOOKS: usize = 0;
    const WRITES: usize = 1;
    let mut tester = SequentialConsistencyTester::new(Register::default());
    let writes = written.iter().map(|wrote| (WRITES, Op::Put { wrote: *wrote }));
    for (who, op) in looks.iter().map(|saw| (LOOKS, Op::Read { saw: *saw })).chain(writes) {
        tester.on_invret(who, op, Answer::Done).expect("one operation at a time");
    }
    tester.is_consistent()
}

/// Returns copies of the history, each with one wrong reply and the name of the fault.
pub(super) fn falsified(events: &[Event]) -> Vec<(&'static str, Vec<Event>)> {
    let with = |at: usize, op: Op| {
        let mut events = events.to_vec();
        events[at].op = op;
        events
    };
    let done = || events.iter().enumerate().filter(|(_, event)| event.until.is_some());
    // Returns a value that was certainly overwritten before the event began.
    let overwritten = |event: &Event| {
        let before = done().filter(|(_, earlier)| earlier.until < Some(event.from));
        before
            .filter_map(|(_, earlier)| matches!(earlier.op, Op::Swap { .. }).then(|| earlier.op.saw()).flatten())
            .next()
    };
    let mut wrong = Vec::new();
    let mut reads = done().filter(|(_, event)| matches!(event.op, Op::Read { .. }));
    if let Some((at, old)) = reads.find_map(|(at, event)| Some((at, overwritten(event)?))) {
        wrong.push(("a stale read", with(at, Op::Read { saw: old })));
    }
    let swaps = || done().filter(|(_, event)| matches!(event.op, Op::Swap { .. }));
    if let Some((at, old)) = swaps().find_map(|(at, event)| Some((at, overwritten(event)?))) {
        let wrote = events[at].op.wrote().expect("a swap");
        wrong.push(("a lost update", with(at, Op::Swap { saw: old, wrote })));
    }
    if let (Some((_, one)), Some((at, _))) = (swaps().next(), swaps().nth(1)) {
        wrong.push(("two increments that returned the same number", with(at, one.op)));
    }
    wrong
}

// -------------------------------------------------------------------------------------------------- Tests of the judge

fn event(who: usize, op: Op, from: u64, until: impl Into<Option<u64>>) -> Event {
    Event { who, op, from: Duration::from_millis(from), until: until.into().map(Duration::from_millis) }
}

/// Returns a correct history: increments and reads by three clients, some at the same time.
fn right() -> Vec<Event> {
    vec![
        event(0, Op::Swap { saw: 0, wrote: 1 }, 0, 5),
        event(1, Op::Read { saw: 1 }, 3, 8),
        event(2, Op::Read { saw: 0 }, 1, 6),
        event(1, Op::Swap { saw: 1, wrote: 2 }, 10, 20),
        event(0, Op::Read { saw: 2 }, 12, 22),
        event(2, Op::Swap { saw: 2, wrote: 3 }, 23, 30),
        event(0, Op::Read { saw: 3 }, 31, 40),
        event(1, Op::Read { saw: 3 }, 32, 39),
    ]
}

#[test]
fn a_right_history_passes_and_falsified_ones_fail() {
    assert_eq!(serialized(&right()), Some(vec![1, 2, 3]));
    let wrong = falsified(&right());
    assert_eq!(wrong.len(), 3);
    for (what, events) in wrong {
        assert_eq!(serialized(&events), None, "{what}");
    }
}

#[test]
fn an_unknown_write_is_done_once_at_any_time_or_never() {
    let open = event(2, Op::Swap { saw: 3, wrote: 4 }, 41, None);
    let with = |more: &[Event]| serialized(&[&right()[..], &[open], more].concat());
    assert!(with(&[]).is_some());
    let old = event(0, Op::Read { saw: 3 }, 50, 51);
    let new = event(0, Op::Read { saw: 4 }, 60, 61);
    assert_eq!(with(&[old, new]), Some(vec![1, 2, 3, 4]));
    // A client may begin another operation after one of unknown outcome.
    assert!(with(&[new, event(2, Op::Swap { saw: 4, wrote: 5 }, 62, 63)]).is_some());
    let back = event(1, Op::Read { saw: 3 }, 70, 71);
    assert_eq!(with(&[new, back]), None, "a value that was read may not vanish");
    let before = event(1, Op::Read { saw: 4 }, 40, 40);
    assert_eq!(with(&[before]), None, "an operation takes effect before its request");
    let past = event(1, Op::Swap { saw: 3, wrote: 5 }, 50, 51);
    assert_eq!(with(&[past, new]), None, "a swap of a replaced value may not succeed");
}

#[test]
fn an_unknown_put_may_replace_any_value() {
    let put = event(2, Op::Put { wrote: 9 }, 41, None);
    let more = [event(0, Op::Swap { saw: 3, wrote: 4 }, 45, 46), event(1, Op::Read { saw: 9 }, 50, 51)];
    assert_eq!(serialized(&[&right()[..], &[put], &more].concat()), Some(vec![1, 2, 3, 4, 9]));
}

#[test]
fn copies_may_lag_and_skip_but_never_go_back() {
    assert!(is_followed(&[1, 2, 3], &[0, 0, 2, 2]));
    assert!(is_followed(&[1, 2, 3], &[]));
    assert!(!is_followed(&[1, 2, 3], &[2, 1]));
    assert!(!is_followed(&[1, 2, 3], &[4]));
    let long: Vec<u64> = (1..60).collect();
    assert!(is_followed(&long, &long) && !is_followed(&long, &[59, 58]));
}
