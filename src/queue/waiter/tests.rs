//! Each arrow of the waiter's machine, as a table of news and steps.

use super::*;
use crate::queue::dialect::Dialect;

const FIRST: &str = "h~a-WRITE-0000000001";
const ME: &str = "h~b-WRITE-0000000002";
const TRUSTING: Rules = Rules { hands_off: true, trusts_book: true };

fn waiter(rules: Rules) -> Waiter<Contender> {
    Waiter::new(Contender::parse_as(ME, Dialect::Native).unwrap(), rules)
}

fn first(is_local: bool) -> Predecessor {
    Predecessor { name: FIRST.into(), mode: Mode::Write, is_local }
}

fn names(of: &[&str]) -> Vec<String> {
    of.iter().map(|name| (*name).to_owned()).collect()
}

impl Waiter<Contender> {
    fn book(&mut self, known: Known<u8>) -> Step<u8> {
        self.next(News::Known { known, has_listing: false })
    }

    fn lists(&mut self, of: &[&str]) -> Step<u8> {
        self.next(News::Listed { names: &names(of), known: Known::Nothing })
    }

    fn departs(&mut self, departure: Departure) -> Step<u8> {
        self.next(News::Departed(departure))
    }

    /// Waits for the first contender, by a watch.
    fn watches_first(&mut self) {
        assert_eq!(self.lists(&[FIRST, ME]), Step::Await { predecessor: first(false), watches: true, asks: false });
    }
}

fn taken(evidence: Proof<u8>, has_waited: bool) -> Step<u8> {
    Step::Take(Take { evidence, has_waited, ghosts: Vec::new() })
}

#[test]
fn a_waiter_takes_the_lock_by_the_book_without_a_listing() {
    assert_eq!(waiter(TRUSTING).book(Known::Granted(7)), taken(Proof::Book(7), false));
    let mut waiter = waiter(TRUSTING);
    waiter.watches_first();
    assert_eq!(waiter.departs(Departure::Gone), Step::Consult);
    assert_eq!(waiter.book(Known::Granted(7)), taken(Proof::Book(7), true));
}

#[test]
fn in_another_dialect_a_waiter_that_has_waited_lists_before_it_takes() {
    let rules = Rules { hands_off: false, trusts_book: false };
    assert_eq!(waiter(rules).book(Known::Granted(7)), taken(Proof::Book(7), false));
    let mut waiter = waiter(rules);
    waiter.watches_first();
    assert_eq!(waiter.departs(Departure::Signalled), Step::Consult, "a write to a node says nothing there");
    assert_eq!(waiter.book(Known::Granted(7)), Step::List);
    assert_eq!(waiter.lists(&[ME]), taken(Proof::Listing, true));
}

#[test]
fn a_waiter_awaits_a_local_predecessor_without_a_watch_only_if_nothing_else_is_asked() {
    let awaits = |rules: Rules| waiter(rules).book(Known::Behind(first(true)));
    assert_eq!(awaits(TRUSTING), Step::Await { predecessor: first(true), watches: false, asks: false });
    assert_eq!(awaits(Rules { trusts_book: false, ..TRUSTING }), Step::List);
    let at_hand = News::Known { known: Known::Behind::<u8>(first(true)), has_listing: true };
    assert_eq!(waiter(TRUSTING).next(at_hand), Step::List, "a listing that is at hand is newer");
}

#[test]
fn a_book_that_does_not_know_yet_what_a_watch_has_shown_is_not_believed() {
    let mut waiter = waiter(TRUSTING);
    waiter.watches_first();
    assert_eq!(waiter.departs(Departure::Gone), Step::Consult);
    assert_eq!(waiter.book(Known::Behind(first(false))), Step::List);
}

#[test]
fn a_book_is_believed_of_whomever_no_watch_has_shown_to_be_gone() {
    let awaits = |waiter: &mut Waiter<Contender>, predecessor: Predecessor| {
        let step = waiter.book(Known::Behind(predecessor.clone()));
        assert_eq!(step, Step::Await { predecessor, watches: false, asks: false });
    };
    let mut after_watch = waiter(TRUSTING);
    assert!(!after_watch.has_waited());
    after_watch.watches_first();
    assert!(after_watch.has_waited());
    assert_eq!(after_watch.departs(Departure::Gone), Step::Consult);
    awaits(&mut after_watch, Predecessor { name: "h~c-WRITE-0000000000".into(), ..first(true) });
    let mut without_watch = waiter(TRUSTING);
    awaits(&mut without_watch, first(true));
    assert_eq!(without_watch.departs(Departure::Gone), Step::Consult);
    awaits(&mut without_watch, first(true));
}

#[test]
fn a_writers_signal_lets_in_and_a_readers_does_not() {
    let mut behind_writer = waiter(TRUSTING);
    behind_writer.watches_first();
    assert_eq!(behind_writer.departs(Departure::Signalled), taken(Proof::Signal(FIRST.into()), true));
    let mut behind_reader = waiter(TRUSTING);
    let reader = "h~a-READ-0000000001";
    assert!(matches!(behind_reader.lists(&[reader, ME]), Step::Await { watches: true, .. }));
    assert_eq!(behind_reader.departs(Departure::Signalled), Step::Consult);
}

#[test]
fn a_waiter_gives_up_without_its_node_and_beside_foreign_contenders() {
    let foreign = "_c_5cf2ad84-2a9c-4f12-a1ab-0f4d8ce1a4a9-__WRIT__0000000001";
    assert_eq!(waiter(TRUSTING).lists(&[FIRST]), Step::Evicted);
    assert_eq!(waiter(TRUSTING).lists(&[foreign]), Step::Evicted);
    assert_eq!(waiter(TRUSTING).lists(&[foreign, ME]), Step::Foreign(foreign.to_owned()));
}

#[test]
fn a_waiter_asks_the_ensemble_once_and_not_for_its_own_session() {
    let asks = |step: Step<u8>| match step {
        Step::Await { asks, .. } => asks,
        other => panic!("{other:?}"),
    };
    let kept = ["h~a~keep-READ-0000000000", "h~c~keep-READ-0000000001"];
    let mut behind_strangers = waiter(TRUSTING);
    assert!(asks(behind_strangers.lists(&[kept[0], kept[1], ME])));
    assert_eq!(behind_strangers.departs(Departure::Gone), Step::Consult);
    assert_eq!(behind_strangers.book(Known::Nothing), Step::List);
    assert!(!asks(behind_strangers.lists(&[kept[0], ME])), "it was asked together with the first");

    let mut behind_others = waiter(TRUSTING);
    let plain = "h~c-READ-0000000001";
    assert!(asks(behind_others.lists(&[kept[0], plain, ME])), "not only its predecessor is in the way");
    assert!(!asks(waiter(TRUSTING).lists(&[plain, ME])));
    assert!(!asks(waiter(TRUSTING).lists(&[kept[0], FIRST, ME])), "the writer between the two asks");

    // A kept writer of our own session is asked alone, and may leave before it has asked those before it.
    let mut behind_a_writer = waiter(TRUSTING);
    let writer = "h~c~keep-WRITE-0000000001";
    assert!(asks(behind_a_writer.lists(&[kept[0], writer, ME])));
    assert_eq!(behind_a_writer.departs(Departure::Gone), Step::Consult);
    assert_eq!(behind_a_writer.book(Known::Nothing), Step::List);
    assert!(asks(behind_a_writer.lists(&[kept[0], ME])));

    let local = |name: &str, mode| Known::Behind(Predecessor { name: name.into(), mode, is_local: true });
    let mut behind_its_own = waiter(TRUSTING);
    let step = behind_its_own.book(local(kept[1], Mode::Read));
    assert_eq!(step, Step::List, "only a listing shows the readers of others");
    let (alone, both) = (names(&[kept[1], ME]), names(&[kept[0], kept[1], ME]));
    let step = behind_its_own.next(News::Listed { names: &alone, known: local(kept[1], Mode::Read) });
    assert!(!asks(step), "it is asked without the ensemble");
    assert!(asks(waiter(TRUSTING).next(News::Listed { names: &both, known: local(kept[1], Mode::Read) })));
    assert!(!asks(waiter(TRUSTING).book(local(writer, Mode::Write))), "it asks for what is before it");
}

#[test]
fn a_waiter_passes_over_whoever_left_without_a_word_for_as_long_as_a_server_shows_it() {
    let third = Waiter::new(Contender::parse("h~c-WRITE-0000000003").unwrap(), TRUSTING);
    let (mut waiter, holder, me) = (third, "h~0-WRITE-0000000000", "h~c-WRITE-0000000003");
    let awaits = |step: Step<u8>| match step {
        Step::Await { predecessor, .. } => predecessor.name.to_string(),
        other => panic!("{other:?}"),
    };
    assert_eq!(awaits(waiter.lists(&[holder, FIRST, ME, me])), ME);
    assert_eq!(waiter.departs(Departure::Missed), Step::Consult);
    let known = |name: &str| Known::Behind(Predecessor { name: name.into(), mode: Mode::Write, is_local: true });
    assert_eq!(waiter.book(known(ME)), Step::List, "the book has not heard of it either");
    assert_eq!(awaits(waiter.lists(&[holder, FIRST, ME, me])), FIRST);
    assert_eq!(waiter.departs(Departure::Missed), Step::Consult);
    assert_eq!(waiter.book(Known::Nothing), Step::List);
    assert_eq!(awaits(waiter.lists(&[holder, FIRST, ME, me])), holder, "writers before a ghost count");
    assert_eq!(waiter.ghosts, [ME, FIRST].map(Arc::from));
    // What only looks like a ghost's name counts: a writer that has downgraded has its number.
    assert_eq!(awaits(waiter.lists(&["h~b-READ-0000000002", FIRST, ME, me])), "h~b-READ-0000000002");
    // The other server has heard of all.
    assert_eq!(waiter.departs(Departure::Gone), Step::Consult);
    assert_eq!(waiter.book(Known::Nothing), Step::List);
    assert_eq!(waiter.lists(&[me]), taken(Proof::Listing, true), "with no ghost");
}

#[test]
fn a_waiter_beside_a_ghost_takes_the_lock_only_if_its_own_node_is_there() {
    let (evidence, ghosts) = (Proof::Listing, vec![FIRST.into()]);
    let taken = Step::Take(Take { evidence, has_waited: true, ghosts });
    for (left, step) in [(&[FIRST, ME][..], taken), (&[FIRST], Step::Evicted)] {
        let mut waiter = waiter(TRUSTING);
        waiter.watches_first();
        assert_eq!(waiter.departs(Departure::Missed), Step::Consult);
        assert_eq!(waiter.lists(left), step);
    }
}
