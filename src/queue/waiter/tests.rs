//! Each arrow of the waiter's machine, as a table of news and steps.

use super::*;
use crate::queue::dialect::Dialect;

const FIRST: &str = "h~a-WRITE-0000000001";
const ME: &str = "h~b-WRITE-0000000002";

fn waiter(hands_off: bool) -> Waiter<Contender> {
    Waiter::new(Contender::parse_as(ME, Dialect::Native).unwrap(), hands_off)
}

impl Waiter<Contender> {
    fn lists(&mut self, of: &[&str]) -> Step {
        let names: Vec<String> = of.iter().map(|name| (*name).to_owned()).collect();
        self.next(News::Listed { names: &names, leaving: &[] })
    }

    fn departs(&mut self, departure: Departure) -> Step {
        self.next(News::Departed(departure))
    }
}

fn awaits(step: Step) -> String {
    match step {
        Step::Await { predecessor, .. } => predecessor.name.to_string(),
        other => panic!("{other:?}"),
    }
}

fn asks(step: Step) -> bool {
    match step {
        Step::Await { asks, .. } => asks,
        other => panic!("{other:?}"),
    }
}

fn taken_by_listing(has_waited: bool) -> Step {
    Step::Take(Take { signalled_by: None, has_waited, ghosts: Vec::new() })
}

#[test]
fn a_waiter_takes_the_lock_once_a_listing_shows_nobody_in_the_way() {
    let mut alone = waiter(true);
    assert_eq!((alone.lists(&[ME]), alone.has_waited()), (taken_by_listing(false), false));
    let mut waiter = waiter(true);
    assert_eq!(awaits(waiter.lists(&[FIRST, ME])), FIRST);
    assert!(waiter.has_waited());
    assert_eq!(waiter.departs(Departure::ListAgain), Step::List);
    assert_eq!(waiter.lists(&[ME]), taken_by_listing(true));
}

#[test]
fn a_writers_signal_lets_in_and_a_readers_does_not() {
    let mut behind_writer = waiter(true);
    assert_eq!(awaits(behind_writer.lists(&[FIRST, ME])), FIRST);
    let taken = Step::Take(Take { signalled_by: Some(FIRST.into()), has_waited: true, ghosts: Vec::new() });
    assert_eq!(behind_writer.departs(Departure::Signalled), taken);
    let mut behind_reader = waiter(true);
    assert_eq!(awaits(behind_reader.lists(&["h~a-READ-0000000001", ME])), "h~a-READ-0000000001");
    assert_eq!(behind_reader.departs(Departure::Signalled), Step::List);
}

#[test]
fn in_another_dialect_a_write_to_a_node_says_nothing() {
    let mut waiter = waiter(false);
    assert_eq!(awaits(waiter.lists(&[FIRST, ME])), FIRST);
    assert_eq!(waiter.departs(Departure::Signalled), Step::List);
    assert_eq!(waiter.lists(&[ME]), taken_by_listing(true));
}

#[test]
fn a_waiter_gives_up_without_its_node_and_beside_foreign_contenders() {
    let foreign = "_c_5cf2ad84-2a9c-4f12-a1ab-0f4d8ce1a4a9-__WRIT__0000000001";
    assert_eq!(waiter(true).lists(&[FIRST]), Step::Evicted);
    assert_eq!(waiter(true).lists(&[foreign]), Step::Evicted);
    assert_eq!(waiter(true).lists(&[foreign, ME]), Step::Foreign(foreign.to_owned()));
}

#[test]
fn a_waiter_asks_once_for_what_may_only_be_kept_and_leaves_it_to_a_writer_between() {
    let kept = ["h~a~keep-READ-0000000000", "h~c~keep-READ-0000000001"];
    let mut behind_keepers = waiter(true);
    assert!(asks(behind_keepers.lists(&[kept[0], kept[1], ME])));
    assert_eq!(behind_keepers.departs(Departure::ListAgain), Step::List);
    assert!(!asks(behind_keepers.lists(&[kept[0], ME])), "it was asked together with the first");

    let plain = "h~c-READ-0000000001";
    assert!(asks(waiter(true).lists(&[kept[0], plain, ME])), "not only its predecessor is in the way");
    assert!(!asks(waiter(true).lists(&[plain, ME])));
    assert!(!asks(waiter(true).lists(&[kept[0], FIRST, ME])), "the writer between the two asks");

    let writer = "h~c~keep-WRITE-0000000001";
    let leaving = [kept[1].to_owned(), writer.to_owned()];
    let lists = |of: &[&str]| {
        let names: Vec<String> = of.iter().map(|name| (*name).to_owned()).collect();
        asks(waiter(true).next(News::Listed { names: &names, leaving: &leaving }))
    };
    for leaves in [kept[1], writer] {
        assert!(!lists(&[leaves, ME]), "it goes without being asked");
    }
    assert!(lists(&["h~d~keep-WRITE-0000000001", ME]), "another one has to be asked for");
    assert!(lists(&[kept[0], kept[1], ME]), "the other one has to be asked for");

    let mut behind_a_writer = waiter(true);
    assert!(asks(behind_a_writer.lists(&[kept[0], "h~c~keep-WRITE-0000000001", ME])));
    assert_eq!(behind_a_writer.departs(Departure::ListAgain), Step::List);
    assert!(!asks(behind_a_writer.lists(&[kept[0], ME])), "it was asked together with the writer");
}

#[test]
fn a_waiter_passes_over_whoever_left_without_a_word_for_as_long_as_a_server_shows_it() {
    let (holder, me) = ("h~0-WRITE-0000000000", "h~c-WRITE-0000000003");
    let mut waiter = Waiter::new(Contender::parse(me).unwrap(), true);
    assert_eq!(awaits(waiter.lists(&[holder, FIRST, ME, me])), ME);
    assert_eq!(waiter.departs(Departure::GoneAtLeader), Step::List);
    assert_eq!(awaits(waiter.lists(&[holder, FIRST, ME, me])), FIRST);
    assert_eq!(waiter.departs(Departure::GoneAtLeader), Step::List);
    assert_eq!(awaits(waiter.lists(&[holder, FIRST, ME, me])), holder, "writers before a ghost count");
    assert_eq!(waiter.ghosts, [ME, FIRST].map(Arc::from));
    // What only looks like a ghost's name counts: a writer that has downgraded has its number.
    assert_eq!(awaits(waiter.lists(&["h~b-READ-0000000002", FIRST, ME, me])), "h~b-READ-0000000002");
    // The other server has heard of all.
    assert_eq!(waiter.departs(Departure::ListAgain), Step::List);
    assert_eq!(waiter.lists(&[me]), taken_by_listing(true));
    assert!(!waiter.has_ghosts());
}

#[test]
fn a_waiter_beside_a_ghost_is_evicted_without_its_node() {
    let taken = Step::Take(Take { signalled_by: None, has_waited: true, ghosts: vec![FIRST.into()] });
    for (left, step) in [(&[FIRST, ME][..], taken), (&[FIRST], Step::Evicted)] {
        let mut waiter = waiter(true);
        assert_eq!(awaits(waiter.lists(&[FIRST, ME])), FIRST);
        assert_eq!(waiter.departs(Departure::GoneAtLeader), Step::List);
        assert_eq!(waiter.lists(left), step);
    }
}
