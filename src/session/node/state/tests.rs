//! Tests of each transition of a node.

use super::*;
use crate::queue::dialect::Dialect;
use crate::queue::node_name::AcquisitionTag;

impl NodeState {
    /// Returns a node that has been waiting at this path since `now`.
    pub(in crate::session) fn waiting_at(path: String, now: Moment) -> NodeState {
        let tag = AcquisitionTag::new(Dialect::Native, "host~id".to_owned());
        let mut record = NodeState::new("/lock", tag.unnumbered_name(Mode::Write));
        (record.phase, record.path, record.creation_times.answered) = (Phase::Waiting, path, now);
        record
    }
}

const NOW: Moment = Moment::from_secs(100);
const SESSION: i64 = 7;
const WRITER: &str = "/lock/host~id-WRITE-0000000003";
const READER: &str = "/lock/host~id-READ-0000000003";
const PERMIT: &str = "/permits/host~id-1";

fn tag() -> AcquisitionTag {
    AcquisitionTag::new(Dialect::Native, "host~id".to_owned())
}

/// Returns a node before its create.
fn absent(mode: Mode) -> NodeState {
    NodeState::new("/lock", tag().unnumbered_name(mode))
}

fn unknown() -> Failure {
    Failure::Unknown(String::new())
}

fn created(path: &str) -> Created {
    Created { path: path.to_owned(), czxid: 40, ctime: SystemTime::UNIX_EPOCH, ephemeral_owner: SESSION }
}

/// Returns a waiting writer.
fn waiting() -> NodeState {
    let mut record = absent(Mode::Write);
    record.record_create_sent(NOW, 0);
    record.record_created(&created(WRITER), SESSION, NOW).unwrap();
    record
}

fn holding() -> NodeState {
    let mut record = waiting();
    record.mark_held(2);
    record
}

/// Returns a node in each phase, in the order of [`Phase`], and for `Moving` two: a waiter and a holder.
fn of_each_phase() -> Vec<NodeState> {
    let (mut coming, mut moving, mut changing, mut left) = (absent(Mode::Write), waiting(), holding(), holding());
    coming.record_create_sent(NOW, 0);
    moving.begin_replacement(Some(PERMIT.to_owned()));
    changing.begin_replacement(None);
    left.mark_left();
    vec![absent(Mode::Write), coming, waiting(), holding(), moving, changing, left]
}

/// Returns what this removal deletes (a path, or words for a node without a known path), and whether the deletion
/// signals the release.
fn removed(leaving: &NodeRemoval) -> (&str, bool) {
    match leaving {
        NodeRemoval::Coming { lists_after: false } => ("the created node", false),
        NodeRemoval::Coming { lists_after: true } => ("the created node, and all", false),
        NodeRemoval::Listing => ("all", false),
        NodeRemoval::Deleting(deletion) => (&deletion.path, deletion.signals),
        other => panic!("{other:?} removes nothing"),
    }
}

/// Checks that [`NodeState::mark_left_in_any_phase`] returns the removals of these paths, in this order. Each path
/// comes with whether its deletion signals the release.
#[track_caller]
fn ends_with<const N: usize>(mut record: NodeState, expected: [(&str, bool); N]) {
    let removals = record.mark_left_in_any_phase();
    assert_eq!(removals.iter().map(removed).collect::<Vec<_>>(), expected);
    assert_eq!((record.phase(), record.loss()), (Phase::Left, record.loss.or(Some(Loss::GivenBack))));
    assert_eq!((record.mark_left_in_any_phase(), record.mark_left()), (vec![], None), "each removal is returned once");
}

#[test]
fn a_failed_create_is_repeated_under_the_same_name() {
    let mut record = absent(Mode::Write);
    assert_eq!((record.phase(), record.path()), (Phase::Absent, "/lock/host~id-WRITE-"));
    assert!(record.node_name().sequence() < 0, "a name without a number can never hold");
    let (make_directory, recover) = (EntryStep::MakeDirectory, EntryStep::Recover);
    let failures =
        [(Failure::NoNode, make_directory, false), (unknown(), recover, true), (Failure::NoNode, make_directory, true)];
    for (failure, step, may_have_orphan) in failures {
        record.record_create_sent(NOW, 1);
        assert_eq!(record.phase(), Phase::Coming);
        assert_eq!(record.record_create_failure(failure, false), Ok(step));
        assert_eq!((record.phase(), record.may_have_orphan), (Phase::Absent, may_have_orphan));
        assert_eq!(record.path(), "/lock/host~id-WRITE-", "the next create has the same name");
    }
    record.record_create_sent(2 * NOW, 3);
    record.record_created(&created(WRITER), SESSION, 3 * NOW).unwrap();
    assert_eq!((record.phase(), record.path(), record.node_name().sequence()), (Phase::Waiting, WRITER, 3));
    assert_eq!((record.token(), record.connection_of_create()), (40, 3));
    assert_eq!((record.creation_times().sent, record.creation_times().answered), (NOW, 3 * NOW));
}

#[test]
fn a_node_of_another_session_or_foreign_name_is_refused() {
    for (path, session) in [(WRITER, SESSION + 1), ("/lock/strange", SESSION)] {
        let mut record = absent(Mode::Write);
        record.record_create_sent(NOW, 0);
        assert!(matches!(record.record_created(&created(path), session, NOW), Err(Failure::Refused(_))));
        assert_eq!((record.phase(), record.has_node()), (Phase::Absent, false));
    }
}

#[test]
fn only_a_writer_that_held_signals_its_release() {
    let reader = |holds: bool| {
        let mut record = absent(Mode::Read);
        record.record_create_sent(NOW, 0);
        record.record_created(&created(READER), SESSION, NOW).unwrap();
        if holds {
            record.mark_held(1);
        }
        record
    };
    let mut forged = holding();
    forged.record_loss(Loss::Interfered);
    let mut lost = holding();
    lost.record_loss(Loss::LeaseRanOut);
    for (mut record, signals) in [
        (waiting(), false),
        (holding(), true),
        (reader(false), false),
        (reader(true), false),
        (forged, false),
        (lost, true),
    ] {
        let path = record.path().to_owned();
        ends_with(record.clone(), [(&path, signals)]);
        assert_eq!(record.mark_left().as_ref().map(removed), Some((&*path, signals)));
        assert_eq!(record.mark_left(), None);
    }
}

#[test]
fn a_node_with_a_high_number_restarts_the_numbers() {
    for (number, restarts) in [(mode::RESTART_FROM - 1, false), (mode::RESTART_FROM, true), (-5, true)] {
        let mut record = absent(Mode::Write);
        record.record_create_sent(NOW, 0);
        let named = created(&format!("/lock/host~id-WRITE-{number:010}"));
        record.record_created(&named, SESSION, NOW).unwrap();
        let Some(NodeRemoval::Deleting(deletion)) = record.mark_left() else { panic!("there is no node to delete") };
        assert_eq!(deletion.restarts, restarts, "{number}");
    }
}

#[test]
fn the_end_removes_every_node_that_may_exist() {
    let coming = |may_have_orphan| {
        let mut record = absent(Mode::Write);
        record.record_create_sent(NOW, 0);
        record.may_have_orphan = may_have_orphan;
        record
    };
    ends_with(absent(Mode::Write), []);
    ends_with(coming(false), [("the created node", false)]);
    ends_with(coming(true), [("the created node, and all", false)]);
    let mut lost = coming(false);
    lost.record_create_failure(unknown(), false).unwrap();
    ends_with(lost, [("all", false)]);
    let mut denied = coming(false);
    let mut listed = denied.clone();
    denied.record_create_failure(Failure::NoNode, false).unwrap();
    ends_with(denied, []);
    assert_eq!(listed.record_create_failure(Failure::NoNode, true), Ok(EntryStep::Recover));
    ends_with(listed, [("all", false)]);
    let mut exchanging = waiting();
    exchanging.begin_replacement(Some(PERMIT.to_owned()));
    ends_with(exchanging, [(WRITER, false), (PERMIT, false)]);
    let mut changing = holding();
    changing.begin_replacement(None);
    ends_with(changing, [(WRITER, true), ("all", false)]);
}

#[test]
fn an_entry_ends_at_a_failure_that_no_create_can_mend() {
    for failure in [Failure::Over(SessionEnd::Expired), Failure::NodeExists] {
        assert_eq!(absent(Mode::Read).record_create_failure(failure.clone(), true), Err(failure));
    }
    for failure in [unknown(), Failure::NoNode] {
        let mut record = absent(Mode::Read);
        let created = (1..=CREATES_MAX).all(|_| record.record_create_failure(failure.clone(), false).is_ok());
        assert_eq!((created, record.record_create_failure(failure.clone(), false)), (true, Err(failure)));
    }
}

#[test]
fn a_downgraded_writer_holds_on_as_a_reader() {
    let mut record = holding();
    record.take_path_to_watch();
    record.begin_replacement(None);
    assert_eq!(
        (record.phase(), record.held_epoch(), record.take_path_to_watch()),
        (Phase::Moving(Some(2)), Some(2), None)
    );
    record.record_downgrade(NodeName::parse("host~id-READ-0000000003").unwrap());
    assert_eq!((record.phase(), record.path(), record.token()), (Phase::Holding(2), READER, 40));
    assert_eq!(record.take_path_to_watch(), Some(READER.to_owned()), "the old watch shows no event of the new node");
    ends_with(record.clone(), [(READER, false)]);
    record.may_have_orphan = true;
    record.begin_replacement(None);
    record.record_downgrade(NodeName::parse("host~id-READ-0000000003").unwrap());
    ends_with(record, [(READER, false), ("all", false)]);
}

#[test]
fn a_waiter_exchanges_its_place_for_its_permit() {
    let mut record = waiting();
    record.begin_replacement(Some(PERMIT.to_owned()));
    record.record_exchange(50);
    assert_eq!((record.phase(), record.path(), record.token()), (Phase::Waiting, PERMIT, 50));
    assert_eq!(record.node_name().sequence(), 3);
    record.mark_held(2);
    ends_with(record, [(PERMIT, false)]);
}

#[test]
fn a_refused_move_changes_nothing() {
    let mut record = waiting();
    record.begin_replacement(Some(PERMIT.to_owned()));
    record.record_not_replaced();
    assert_eq!((record.phase(), record.path(), record.token()), (Phase::Waiting, WRITER, 40));
    ends_with(record, [(WRITER, false)]);
    let mut record = holding();
    record.begin_replacement(None);
    record.record_not_replaced();
    assert_eq!((record.phase(), record.path()), (Phase::Holding(2), WRITER));
    ends_with(record, [(WRITER, true), ("all", false)]);
}

#[test]
fn a_node_left_during_a_move_stays_left() {
    let mut record = holding();
    record.begin_replacement(None);
    assert_eq!(record.mark_left().as_ref().map(removed), Some((WRITER, true)));
    record.record_downgrade(NodeName::parse("host~id-READ-0000000003").unwrap());
    assert_eq!(record.phase(), Phase::Left);
    ends_with(record, [("all", false)]);
}

const LIMIT: Duration = Duration::from_secs(10);

fn evidence() -> LossEvidence {
    LossEvidence { now: NOW, over: None, valid_in: Some(2) }
}

#[test]
fn the_first_reason_of_a_loss_stays() {
    let over = Loss::SessionOver(SessionEnd::Expired);
    let long = LossEvidence { now: NOW + LIMIT, ..evidence() };
    let ended = LossEvidence { over: Some(SessionEnd::Expired), valid_in: None, ..long };
    let lapsed = LossEvidence { valid_in: Some(3), ..long };
    for (evidence, loss) in
        [(evidence(), None), (ended, Some(over)), (lapsed, Some(Loss::LeaseRanOut)), (long, Some(Loss::HeldTooLong))]
    {
        let mut record = holding();
        record.limits.set_longest_once(LIMIT);
        record.limits.add_deadline(NOW).expect("limited");
        record.detect_loss(&evidence);
        assert_eq!((record.loss(), record.held_epoch()), (loss, Some(2).filter(|_| loss.is_none())));
        record.record_loss(Loss::Removed);
        assert_eq!(record.loss(), loss.or(Some(Loss::Removed)), "the first reason stays");
        record.detect_loss(&LossEvidence { over: Some(SessionEnd::Closed), ..evidence });
        assert_eq!(record.loss(), loss.or(Some(Loss::Removed)));
    }
}

#[test]
fn only_a_waiter_that_had_a_lease_is_lost_by_a_lapse() {
    let mut record = waiting();
    record.detect_loss(&LossEvidence { valid_in: None, ..evidence() });
    assert!(record.waits_without_epoch() && record.loss().is_none(), "the waiter has no epoch yet");
    record.set_waiter_epoch(Some(2));
    record.detect_loss(&evidence());
    assert!(!record.waits_without_epoch() && record.loss().is_none());
    record.detect_loss(&LossEvidence { valid_in: None, ..evidence() });
    assert_eq!(record.loss(), Some(Loss::LeaseRanOut));
    assert!(!record.waits_without_epoch());
}

#[test]
fn a_deletion_event_is_a_loss_unless_the_node_moves() {
    for (mut record, standing) in of_each_phase().into_iter().zip([false, false, true, true, false, false, false]) {
        let given_back = (record.phase() == Phase::Left).then_some(Loss::GivenBack);
        record.record_watch_event(WatchEvent::Changed);
        assert_eq!(record.loss(), given_back);
        record.record_watch_event(WatchEvent::Deleted);
        let loss = if standing { Some(Loss::Removed) } else { given_back };
        assert_eq!((record.loss(), record.phase()), (loss, record.phase()), "{:?}", record.phase());
    }
}

#[test]
fn a_lost_hold_is_reported_once_and_a_lost_waiter_never() {
    for (mut record, is_reported) in of_each_phase().into_iter().zip([false, false, false, true, false, true, false]) {
        record.record_loss(Loss::Removed);
        let path = record.path().to_owned();
        assert_eq!(record.take_unreported_loss(), is_reported.then_some((path, Loss::Removed)), "{:?}", record.phase());
        assert_eq!(record.take_unreported_loss(), None);
    }
}

#[test]
fn orphans_are_nodes_of_its_owner_after_a_lost_answer() {
    let names = ["host~id-WRITE-0000000003", "host~id-WRITE-0000000002", "host~it-WRITE-0000000001", "strange"];
    let names = names.map(str::to_owned);
    let mut record = waiting();
    assert_eq!(record.orphans(&names), Vec::<String>::new());
    record.may_have_orphan = true;
    assert_eq!(record.orphans(&names), [names[1].clone()]);
    record.mark_left();
    assert_eq!(record.orphans(&names), Vec::<String>::new(), "the removal of the node also removes orphans");
}

const MARGIN: Duration = Duration::from_secs(2);

const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn the_first_use_over_its_limit_ends_the_node() {
    let mut limits = HoldLimits::default();
    assert_eq!(
        (limits.add_deadline(s(1)), limits.remaining(s(1)), limits.first_deadline()),
        (None, Duration::MAX, None)
    );
    limits.set_longest_once(s(10));
    let [first, second] = [s(1), s(4)].map(|at| limits.add_deadline(at).expect("limited"));
    assert_eq!((limits.remaining(s(4)), limits.first_deadline()), (s(7), Some(s(11))));
    limits.remove_deadline(first);
    assert_eq!((limits.remaining(s(4)), limits.first_deadline()), (s(10), Some(s(14))));
    assert_eq!(limits.time_until_given_up(s(4), MARGIN), Some(s(12)));
    limits.exceeded = Some(s(14));
    limits.remove_deadline(second);
    assert_eq!((limits.time_until_given_up(s(15), MARGIN), limits.first_deadline()), (Some(s(1)), None));
}

#[test]
fn a_later_use_does_not_reach_its_limit_earlier() {
    let mut limits = HoldLimits::default();
    limits.set_longest_once(s(10));
    let until = s(3) + limits.remaining(s(3));
    limits.add_deadline(s(3)).expect("limited");
    assert_eq!(limits.first_deadline(), Some(until));
    limits.set_longest_once(Duration::MAX);
    assert_eq!(limits.remaining(s(3)), s(10), "the first limit counts");
}
