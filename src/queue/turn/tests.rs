//! Tests of turns in small queues, and of each transition of the waiter's state machine.

use super::*;
use crate::queue::dialect::Dialect;

/// Makes the names of a queue from a text with an `R` or `W` for each contender, numbered from 0. Returns the names in
/// reverse order.
fn queue(modes: &str) -> Vec<String> {
    let name_of = |(i, mode)| format!("h~{i}-{}-{i:010}", if mode == 'R' { "READ" } else { "WRITE" });
    let mut names: Vec<String> = modes.chars().enumerate().map(name_of).collect();
    names.reverse();
    names
}

/// Returns the turn of each contender, in the order of arrival: `!` for granted, the sequence number of its
/// predecessor, or `x` for evicted or stuck.
fn seen(queue: &[String]) -> String {
    let mut members: Vec<_> = queue.iter().filter_map(|n| NodeName::parse(n)).collect();
    members.sort_by_key(|c| (c.sequence(), c.as_str().to_owned()));
    members.iter().map(|me| symbol(&turn(me, queue))).collect()
}

fn symbol(turn: &Turn) -> String {
    match turn {
        Turn::Granted => "!".to_owned(),
        Turn::Behind(other) => other.sequence().to_string(),
        Turn::Evicted | Turn::Stuck(_) => "x".to_owned(),
    }
}

#[test]
fn each_contender_in_a_small_queue_has_the_right_turn() {
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
    let me = NodeName::parse("h~9-READ-0000000009").unwrap();
    assert_eq!(turn(&me, queue("RR")), Turn::Evicted);
}

#[test]
fn a_shared_or_negative_number_is_never_granted() {
    let stuck = ["a~1-WRITE-2147483647", "b~2-WRITE-2147483647", "c~3-READ-2147483647"].map(str::to_owned);
    assert_eq!(seen(&stuck), "xxx");
    let wrapped = ["a~1-READ--000000005", "b~2-WRITE--2147483648"].map(str::to_owned);
    assert_eq!(seen(&wrapped), "xx");
    let turn_of = |queue: &[String]| turn(&NodeName::parse(&queue[0]).unwrap(), queue);
    assert_eq!(turn_of(&stuck), Turn::Stuck(Some("b~2-WRITE-2147483647".to_owned())), "the first in text order");
    assert_eq!(turn_of(&wrapped), Turn::Stuck(None));
}

#[test]
fn a_contender_behind_a_tie_waits_for_it() {
    let queue = ["a~1-WRITE-0000000005", "b~2-WRITE-0000000005", "c~3-READ-0000000006"].map(str::to_owned);
    assert_eq!(seen(&queue), "xx5");
}

#[test]
fn turns_gives_the_same_answers_as_turn() {
    let tied = ["a~1-WRITE-0000000005", "b~2-READ-0000000005", "c~3-READ-0000000006", "d~4-WRITE--000000001"];
    for queue in [queue("WRRWRWWR"), queue("RRRW"), tied.map(str::to_owned).to_vec()] {
        for (me, its_turn) in all_turns(Dialect::Native, &queue) {
            assert_eq!(its_turn, turn(&me, &queue), "{me} in {queue:?}");
        }
    }
}

#[test]
fn contenders_ahead_are_listed_in_order_of_arrival() {
    let queue = queue("RWRW");
    assert_eq!(
        blocker_names(&NodeName::newcomer(Dialect::Native, Mode::Read), &queue),
        ["h~1-WRITE-0000000001", "h~3-WRITE-0000000003"]
    );
    assert_eq!(blocker_names(&NodeName::newcomer(Dialect::Native, Mode::Write), &queue).len(), 4);
    let me = NodeName::parse("h~2-READ-0000000002").unwrap();
    assert_eq!(blocker_names(&me, &queue), ["h~1-WRITE-0000000001"]);
    assert_eq!(place_and_length(&me, &queue), (3, 4));
}

#[test]
fn a_holder_keeps_out_later_contenders_that_it_excludes() {
    let queue = queue("RRWRW");
    let first = |name| first_excluded_waiter(&NodeName::parse(name).unwrap(), &queue, false).map(|it| it.sequence());
    assert_eq!(first("h~0-READ-0000000000"), Some(2));
    assert_eq!(first("h~2-WRITE-0000000002"), Some(3));
    assert_eq!(first("h~3-READ-0000000003"), Some(4));
    assert_eq!(first("h~4-WRITE-0000000004"), None);
    let own = ["h~0-WRITE-0000000000", "h~0-WRITE-0000000001"].map(str::to_owned);
    assert_eq!(first_excluded_waiter(&NodeName::parse(&own[0]).unwrap(), &own, false), None);
    let tied = ["h~0-READ-0000000005", "h~1-WRITE-0000000005", "h~2-WRITE-0000000006"].map(str::to_owned);
    let kept_out = first_excluded_waiter(&NodeName::parse(&tied[0]).unwrap(), &tied, false);
    assert_eq!(kept_out.unwrap().as_str(), tied[2], "a node of the same number is not later");
}

#[test]
fn the_first_foreign_name_in_text_order_is_reported() {
    let mut queue = ["a__WRIT__0000000005", "b__WRIT__0000000004", "h~0-WRITE-0000000009"].map(str::to_owned).to_vec();
    let me = NodeName::parse("h~0-WRITE-0000000009").unwrap();
    for _ in 0..queue.len() {
        queue.rotate_left(1);
        assert_eq!(turn_and_foreign_name(&me, &queue), (Turn::Granted, Some("a__WRIT__0000000005")));
    }
    queue.retain(|name| name.starts_with('h'));
    assert_eq!(turn_and_foreign_name(&me, &queue), (Turn::Granted, None));
}

#[test]
fn a_native_name_is_foreign_in_another_dialect() {
    let mine = "a__WRIT__0000000005".to_owned();
    let me = NodeName::parse_as(&mine, Dialect::Curator).unwrap();
    for number in [4, 9] {
        let queue = [mine.clone(), format!("h~0-WRITE-{number:010}")];
        assert_eq!(turn_and_foreign_name(&me, &queue).1, Some(&queue[1][..]));
    }
}

#[test]
fn a_waiter_behind_a_tie_awaits_its_last_name() {
    let mut queue = ["a~1-WRITE-0000000005", "b~2-WRITE-0000000005", "c~3-WRITE-0000000006"].map(str::to_owned);
    let me = NodeName::parse("c~3-WRITE-0000000006").unwrap();
    for _ in 0..2 {
        queue.reverse();
        let Turn::Behind(other) = turn(&me, &queue) else { panic!("the waiter is not behind the tie") };
        assert_eq!(other.as_str(), "b~2-WRITE-0000000005");
    }
}

const FIRST: &str = "h~a-WRITE-0000000001";
const ME: &str = "h~b-WRITE-0000000002";

fn waiter(signals_release: bool) -> Waiter<NodeName> {
    Waiter::new(NodeName::parse_as(ME, Dialect::Native).unwrap(), signals_release, IfTaken::Wait)
}

impl Waiter<NodeName> {
    fn lists(&mut self, of: &[&str]) -> Step {
        let names: Vec<String> = of.iter().map(|name| (*name).to_owned()).collect();
        self.next_after_listing(&names, &[])
    }

    /// Answers the claim of `step` as the leader. `differs` says whether the leader contradicts the claim.
    fn hears_of(&mut self, step: Step, differs: bool) -> Step {
        let Step::AskLeader(claim) = step else { panic!("{step:?}") };
        self.next_after_leader_answer(claim, differs)
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

#[test]
fn a_waiter_takes_the_lock_when_nothing_precedes_it() {
    let mut alone = waiter(true);
    assert_eq!((alone.lists(&[ME]), alone.has_waited()), (Step::Take(GrantSource::AtOnce), false));
    let mut waiter = waiter(true);
    assert_eq!(awaits(waiter.lists(&[FIRST, ME])), FIRST);
    assert!(waiter.has_waited());
    assert_eq!(waiter.next_after_news(PredecessorNews::ListAgain), Step::List);
    assert_eq!(waiter.lists(&[ME]), Step::Take(GrantSource::Look));
}

#[test]
fn a_writers_signal_grants_and_a_readers_does_not() {
    let mut behind_writer = waiter(true);
    assert_eq!(awaits(behind_writer.lists(&[FIRST, ME])), FIRST);
    let taken = Step::Take(GrantSource::HandOff { unconfirmed: Some(FIRST.into()) });
    assert_eq!(behind_writer.next_after_news(PredecessorNews::Signalled), taken);
    let mut behind_reader = waiter(true);
    assert_eq!(awaits(behind_reader.lists(&["h~a-READ-0000000001", ME])), "h~a-READ-0000000001");
    assert_eq!(behind_reader.next_after_news(PredecessorNews::Signalled), Step::List);
}

#[test]
fn a_write_to_a_node_is_no_signal_in_a_foreign_dialect() {
    let mut waiter = waiter(false);
    assert_eq!(awaits(waiter.lists(&[FIRST, ME])), FIRST);
    assert_eq!(waiter.next_after_news(PredecessorNews::Signalled), Step::List);
    assert_eq!(waiter.lists(&[ME]), Step::Take(GrantSource::Look));
}

#[test]
fn a_waiter_without_its_node_or_with_foreigners_gives_up() {
    let foreign = "_c_5cf2ad84-2a9c-4f12-a1ab-0f4d8ce1a4a9-__WRIT__0000000001";
    for listing in [&[FIRST][..], &[foreign]] {
        let mut waiter = waiter(true);
        let step = waiter.lists(listing);
        assert_eq!(waiter.hears_of(step, false), Step::Evicted);
    }
    assert_eq!(waiter(true).lists(&[foreign, ME]), Step::Foreign(foreign.to_owned()));
    let rival = "foo-WRITE-0000000002";
    assert_eq!(waiter(true).lists(&[ME, rival, foreign]), Step::Foreign(foreign.to_owned()));
    let mut waiter = waiter(true);
    let step = waiter.lists(&[ME, rival]);
    assert_eq!(waiter.hears_of(step, false), Step::Stuck(Some(rival.to_owned())));
    let negative = NodeName::parse("h~b-WRITE--000000002").unwrap();
    let mut of_negative = Waiter::new(negative.clone(), true, IfTaken::Wait);
    assert_eq!(of_negative.lists(&[negative.as_str()]), Step::Stuck(None), "the leader is not asked");
}

#[test]
fn a_waiter_whose_node_only_a_lagging_server_lacks_lists_again() {
    let mut waiter = waiter(true);
    let step = waiter.lists(&[FIRST]);
    assert_eq!(step, Step::AskLeader(ListingClaim::Unlisted));
    assert_eq!(waiter.hears_of(step, true), Step::List);
    assert_eq!(waiter.lists(&[ME]), Step::Take(GrantSource::AtOnce));
}

#[test]
fn a_rival_that_the_leader_does_not_have_is_no_rival() {
    let (mut waiter, rival) = (waiter(true), "foo-WRITE-0000000002");
    let step = waiter.lists(&[ME, rival]);
    assert_eq!(step, Step::AskLeader(ListingClaim::Rival(rival.to_owned())));
    assert_eq!(waiter.hears_of(step, true), Step::List);
    assert_eq!(waiter.lists(&[ME]), Step::Take(GrantSource::AtOnce));
}

#[test]
fn a_waiter_that_must_not_wait_asks_the_leader_for_those_ahead() {
    let mut waiter = Waiter::new(NodeName::parse(ME).unwrap(), true, IfTaken::GiveUp);
    let step = waiter.lists(&[FIRST, ME]);
    assert_eq!(step, Step::AskLeader(ListingClaim::Ahead));
    assert_eq!(waiter.hears_of(step, true), Step::List, "one of them is gone");
    let step = waiter.lists(&[FIRST, ME]);
    assert_eq!(waiter.hears_of(step, false), Step::WouldBlock);
}

#[test]
fn a_predecessor_that_is_listed_and_missing_twice_is_awaited_at_the_leader() {
    let mut waiter = waiter(true);
    assert_eq!(awaits(waiter.lists(&[FIRST, ME])), FIRST);
    assert_eq!(
        waiter.next_after_news(PredecessorNews::Missing),
        Step::List,
        "it may have gone between the listing and the watch"
    );
    assert_eq!(awaits(waiter.lists(&[FIRST, ME])), FIRST);
    let first = Predecessor { name: FIRST.into(), mode: Mode::Write };
    assert_eq!(waiter.next_after_news(PredecessorNews::Missing), Step::AwaitAtLeader(first));
    assert_eq!(waiter.next_after_news(PredecessorNews::ListAgain), Step::List);
    assert_eq!(awaits(waiter.lists(&[FIRST, ME])), FIRST);
    assert_eq!(
        waiter.next_after_news(PredecessorNews::Missing),
        Step::List,
        "the leader has answered for what was missing before"
    );

    let second = "h~c-WRITE-0000000001";
    assert_eq!(awaits(waiter.lists(&[second, ME])), second);
    assert_eq!(waiter.next_after_news(PredecessorNews::Missing), Step::List, "another node was missing before");
    assert_eq!(awaits(waiter.lists(&[second, ME])), second);
    assert_eq!(waiter.next_after_news(PredecessorNews::ListAgain), Step::List);
    assert_eq!(awaits(waiter.lists(&[second, ME])), second);
    assert_eq!(waiter.next_after_news(PredecessorNews::Missing), Step::List, "it was watched since");
}

#[test]
fn a_waiter_asks_once_for_the_kept_nodes_before_it() {
    let kept = ["h~a~keep-READ-0000000000", "h~c~keep-READ-0000000001"];
    let mut behind_kept_nodes = waiter(true);
    assert!(asks(behind_kept_nodes.lists(&[kept[0], kept[1], ME])));
    assert_eq!(behind_kept_nodes.next_after_news(PredecessorNews::ListAgain), Step::List);
    assert!(!asks(behind_kept_nodes.lists(&[kept[0], ME])), "one ask covers both kept nodes");

    let plain = "h~c-READ-0000000001";
    assert!(asks(waiter(true).lists(&[kept[0], plain, ME])), "a kept node before the predecessor needs an ask, too");
    assert!(!asks(waiter(true).lists(&[plain, ME])));
    assert!(!asks(waiter(true).lists(&[kept[0], FIRST, ME])), "the writer between the two asks for the kept node");

    let writer = "h~c~keep-WRITE-0000000001";
    let closing = [kept[1].to_owned(), writer.to_owned()];
    let lists = |of: &[&str]| {
        let names: Vec<String> = of.iter().map(|name| (*name).to_owned()).collect();
        asks(waiter(true).next_after_listing(&names, &closing))
    };
    for leaves in [kept[1], writer] {
        assert!(!lists(&[leaves, ME]), "a node that leaves by itself needs no ask");
    }
    assert!(lists(&["h~d~keep-WRITE-0000000001", ME]), "another kept node still needs an ask");
    assert!(lists(&[kept[0], kept[1], ME]), "the other kept node still needs an ask");

    let mut behind_a_writer = waiter(true);
    assert!(asks(behind_a_writer.lists(&[kept[0], "h~c~keep-WRITE-0000000001", ME])));
    assert_eq!(behind_a_writer.next_after_news(PredecessorNews::ListAgain), Step::List);
    assert!(!asks(behind_a_writer.lists(&[kept[0], ME])), "one ask covers the reader and the writer");
}
