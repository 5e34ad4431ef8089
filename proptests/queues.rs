//! Tests of whose turn it is, in every queue of up to six contenders, and in random large queues.

use std::collections::HashMap;

use proptest::prelude::*;
use zk_rwlock::Mode;
use zk_rwlock::coordinator::{IfTaken, PredecessorNews, Step, Turn, Waiter, turn};
use zk_rwlock::queue::NodeName;

fn contender(position: usize, mode: Mode) -> NodeName {
    let name = format!("h~{position}-{mode}-{position:010}");
    NodeName::parse(&name).expect("a well-formed name")
}

fn queue(modes: &[Mode]) -> Vec<NodeName> {
    modes.iter().enumerate().map(|(position, mode)| contender(position, *mode)).collect()
}

fn names(queue: &[NodeName]) -> Vec<&str> {
    queue.iter().map(NodeName::as_str).collect()
}

fn turns(queue: &[NodeName]) -> Vec<Turn> {
    let names = names(queue);
    queue.iter().map(|me| turn(me, &names)).collect()
}

/// Checks that the contenders whose turn it is do not exclude each other, that there is at least one such contender,
/// that no contenders wait for each other in a circle, and that no contender overtakes another.
fn check_turns(queue: &[NodeName]) {
    let turns = turns(queue);
    let granted: Vec<_> = queue.iter().zip(&turns).filter(|(_, turn)| **turn == Turn::Granted).collect();
    let writers = granted.iter().filter(|(contender, _)| contender.mode() == Mode::Write).count();
    assert!(writers == 0 || granted.len() == 1, "a writer holds together with another contender: {queue:?}");
    assert_eq!(granted.is_empty(), queue.is_empty(), "no contender is granted: {queue:?}");
    for (me, turn) in queue.iter().zip(&turns) {
        let mut excluding = queue.iter().filter(|p| p.sequence() < me.sequence() && p.mode().excludes(me.mode()));
        match turn {
            Turn::Granted => assert_eq!(excluding.next(), None, "{me} overtakes: {queue:?}"),
            Turn::Behind(p) => {
                let nearest = excluding.max_by_key(|p| p.sequence());
                assert_eq!(Some(p), nearest, "{me} does not wait for its predecessor: {queue:?}");
            }
            Turn::Evicted | Turn::Stuck(_) => panic!("{me} is in the queue: {queue:?}"),
        }
    }
}

/// Checks what happens when one contender leaves. At most one writer watched the contender's node, no reader that watched
/// the node is still behind another writer, and every contender whose turn changes watched the node.
fn check_departure(queue: &[NodeName], leaver: usize) {
    let before: HashMap<&str, Turn> = names(queue).into_iter().zip(turns(queue)).collect();
    let mut rest = queue.to_vec();
    let gone = rest.remove(leaver);
    let watches = |name: &str| matches!(&before[name], Turn::Behind(watched) if *watched == gone);
    let woken: Vec<_> = rest.iter().filter(|contender| watches(contender.as_str())).collect();
    let writers = woken.iter().filter(|contender| contender.mode() == Mode::Write).count();
    assert!(writers <= 1, "{gone} wakes {woken:?}");
    for reader in woken.iter().filter(|contender| contender.mode() == Mode::Read) {
        let between = |c: &&NodeName| {
            c.mode() == Mode::Write && c.sequence() > gone.sequence() && c.sequence() < reader.sequence()
        };
        assert_eq!(rest.iter().find(between), None, "{gone} wakes {reader}, which another writer still blocks");
    }
    for (contender, now) in rest.iter().zip(turns(&rest)) {
        let changed = before[contender.as_str()] != now;
        assert!(!changed || watches(contender.as_str()), "{contender} did not watch {gone}, which left");
        assert!(now != Turn::Granted || !changed || watches(contender.as_str()), "a wake-up was lost");
    }
}

/// One contender of a queue, with its waiter.
struct Waits {
    me: NodeName,
    waiter: Waiter<NodeName>,
    /// The last decision of the waiter: the node to wait for, or `None` to take the lock.
    awaits: Option<String>,
}

impl Waits {
    /// Carries out the waiter's decisions.
    fn follow(&mut self, mut step: Step, names: &[String]) {
        loop {
            step = match step {
                Step::List => self.waiter.next_after_listing(names, &[]),
                Step::Await { predecessor, .. } => {
                    self.awaits = Some(predecessor.name.to_string());
                    return;
                }
                Step::Take(_) => {
                    self.awaits = None;
                    return;
                }
                other => panic!("{}: {other:?} in {names:?}", self.me),
            }
        }
    }
}

/// Checks the waiters of a queue until it is empty: contenders leave one after another in `order`, and every waiter
/// takes the lock exactly at its turn. If bit `n` of `vanishes` is set, the node of the `n`th contender to leave
/// disappears without the signal of a hand-off.
fn check_waits(modes: &[Mode], order: &[usize], vanishes: u64) {
    let mut names: Vec<String> = queue(modes).iter().map(|it| it.as_str().to_owned()).collect();
    let begin = |me: NodeName| Waits { waiter: Waiter::new(me.clone(), true, IfTaken::Wait), me, awaits: None };
    let mut all: Vec<Waits> = queue(modes).into_iter().map(begin).collect();
    for waits in &mut all {
        waits.follow(Step::List, &names);
    }
    for (time, leaver) in order.iter().enumerate() {
        let leaver = contender(*leaver, modes[*leaver]);
        let at = all.iter().position(|waits| waits.me == leaver).expect("each contender leaves once");
        let held = all.remove(at).awaits.is_none();
        let is_signalled = held && leaver.mode() == Mode::Write && vanishes >> (time % 64) & 1 == 0;
        names.retain(|name| name != leaver.as_str());
        for waits in all.iter_mut().filter(|waits| waits.awaits.as_deref() == Some(leaver.as_str())) {
            let news = if is_signalled { PredecessorNews::Signalled } else { PredecessorNews::ListAgain };
            let step = waits.waiter.next_after_news(news);
            waits.follow(step, &names);
        }
        for waits in &all {
            let expected = match turn(&waits.me, &names) {
                Turn::Granted => None,
                Turn::Behind(nearest) => Some(nearest.as_str().to_owned()),
                Turn::Evicted | Turn::Stuck(_) => panic!("{} is in the queue", waits.me),
            };
            assert_eq!(waits.awaits, expected, "{} after {leaver} has left", waits.me);
        }
    }
}

/// Checks that neither the order of a listing nor names of other libraries change a decision.
fn check_indifference(queue: &[NodeName], listing: &[&str]) {
    let straight = turns(queue);
    for (me, expected) in queue.iter().zip(straight) {
        assert_eq!(turn(me, listing), expected, "{me}: the order or a foreign name changes the turn in {listing:?}");
    }
}

/// Checks that a contender whose sequence number is negative, or shared with another contender, is not granted, and
/// that later contenders wait.
fn check_doubt(modes: &[Mode], sequences: &[i64]) {
    let name = |(i, (mode, sequence)): (usize, (&Mode, &i64))| format!("h~{i}-{mode}-{sequence:010}");
    let names: Vec<String> = modes.iter().zip(sequences).enumerate().map(name).collect();
    let members: Vec<_> = names.iter().filter_map(|name| NodeName::parse(name)).collect();
    assert_eq!(members.len(), names.len());
    let mut granted: Vec<&NodeName> = Vec::new();
    for me in &members {
        let doubtful = me.sequence() < 0 || members.iter().filter(|c| c.sequence() == me.sequence()).count() > 1;
        match turn(me, &names) {
            Turn::Granted => {
                assert!(!doubtful, "{me} is granted in {names:?}");
                granted.push(me);
            }
            Turn::Evicted => panic!("{me} is in the queue: {names:?}"),
            Turn::Stuck(_) => assert!(doubtful, "{me} is stuck in {names:?}"),
            Turn::Behind(_) => assert!(!doubtful),
        }
    }
    let writers = granted.iter().filter(|contender| contender.mode() == Mode::Write).count();
    assert!(writers == 0 || granted.len() == 1, "{granted:?} hold at once in {names:?}");
}

fn mode_vectors(size: usize) -> impl Iterator<Item = Vec<Mode>> {
    let mode = |bits: u32, i: usize| if bits >> i & 1 == 0 { Mode::Read } else { Mode::Write };
    (0..1_u32 << size).map(move |bits| (0..size).map(|i| mode(bits, i)).collect())
}

/// Calls `visit` with every order of `items` (Heap's algorithm).
fn permutations<T>(items: &mut [T], size: usize, visit: &mut impl FnMut(&[T])) {
    if size <= 1 {
        return visit(items);
    }
    for i in 0..size {
        permutations(items, size - 1, visit);
        items.swap(if size.is_multiple_of(2) { i } else { 0 }, size - 1);
    }
}

/// Returns every vector of `size` numbers of a small range, so that equal and negative numbers occur in every position.
fn number_vectors(size: usize) -> impl Iterator<Item = Vec<i64>> {
    const NUMBERS: [i64; 3] = [-1, 3, 4];
    let digit = |n: usize, i: u32| NUMBERS[n / NUMBERS.len().pow(i) % NUMBERS.len()];
    let size = u32::try_from(size).expect("the size is small");
    (0..NUMBERS.len().pow(size)).map(move |n| (0..size).map(|i| digit(n, i)).collect())
}

#[test]
fn every_queue_up_to_six_has_correct_turns() {
    for modes in (0..=6).flat_map(mode_vectors) {
        check_turns(&queue(&modes));
    }
}

#[test]
fn a_departure_wakes_no_herd_in_queues_up_to_six() {
    for modes in (1..=6).flat_map(mode_vectors) {
        (0..modes.len()).for_each(|leaver| check_departure(&queue(&modes), leaver));
    }
}

#[test]
fn the_order_of_a_listing_up_to_six_changes_no_turn() {
    for modes in (0..=6).flat_map(mode_vectors) {
        let queue = queue(&modes);
        let mut listing = names(&queue);
        let size = listing.len();
        permutations(&mut listing, size, &mut |listing| check_indifference(&queue, listing));
    }
}

#[test]
fn ties_and_negative_numbers_up_to_six_grant_nobody() {
    for modes in (0..=6).flat_map(mode_vectors) {
        number_vectors(modes.len()).for_each(|numbers| check_doubt(&modes, &numbers));
    }
}

#[test]
fn every_order_of_leaving_up_to_five_grants_in_turn() {
    for modes in (1..=5).flat_map(mode_vectors) {
        let mut order: Vec<usize> = (0..modes.len()).collect();
        let size = order.len();
        permutations(&mut order, size, &mut |order| {
            (0..1_u64 << size).for_each(|vanishes| check_waits(&modes, order, vanishes));
        });
    }
}

fn modes() -> impl Strategy<Value = Vec<Mode>> {
    prop::collection::vec(prop_oneof![Just(Mode::Read), Just(Mode::Write)], 1..60)
}

proptest! {
    #[test]
    fn large_queues_have_correct_turns(modes in modes(), leaver in any::<prop::sample::Index>()) {
        check_turns(&queue(&modes));
        check_departure(&queue(&modes), leaver.index(modes.len()));
    }

    #[test]
    fn large_queues_empty_in_order(modes in modes(), seed in any::<u64>(), vanishes in any::<u64>()) {
        let mut order: Vec<usize> = (0..modes.len()).collect();
        order.sort_by_key(|position| seed.rotate_left(*position as u32).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        check_waits(&modes, &order, vanishes);
    }

    #[test]
    fn order_and_foreign_names_change_no_turn(
        modes in modes(),
        foreign in prop::collection::vec("[a-z]{1,5}(-READ-[0-9]{1,9})?", 0..10),
        seed in any::<u64>(),
    ) {
        let queue = queue(&modes);
        let mut listing = names(&queue);
        listing.extend(foreign.iter().map(String::as_str));
        listing.sort_by_key(|name| name.bytes().fold(seed, |hash, byte| hash.rotate_left(7) ^ u64::from(byte)));
        check_indifference(&queue, &listing);
    }

    #[test]
    fn doubtful_numbers_grant_nobody_in_large_queues(
        members in prop::collection::vec((prop_oneof![Just(Mode::Read), Just(Mode::Write)], -2_i64..12), 0..30),
    ) {
        let (modes, sequences): (Vec<_>, Vec<_>) = members.into_iter().unzip();
        check_doubt(&modes, &sequences);
    }
}
