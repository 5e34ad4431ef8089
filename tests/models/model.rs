//! An exhaustive search of the [protocol](super::protocol): every interleaving of a few contenders, with every fault.
//!
//! The search checks each property in every reachable state. Versions of the protocol that are known to be wrong are
//! searched too, and the search must find their faults.
//!
//! Three contenders take seconds. `MODEL_CONTENDERS=4`, which `make soak` sets, takes minutes.

use stateright::{Checker, Model};
use support::replay::OF_THE_MODEL;
use zk_rwlock::Mode;

use crate::protocol::{Action, Asking, Protocol, Role, Signals};

/// Returns every multiset of `size` roles. One order of each is enough, because the search tries all orders of arrival.
pub(super) fn companies(size: usize, roles: &[Role]) -> Vec<Vec<Role>> {
    if size == 0 {
        return vec![Vec::new()];
    }
    let begins = |first: usize| {
        let rest = companies(size - 1, &roles[first..]);
        rest.into_iter().map(move |rest| [vec![roles[first]], rest].concat())
    };
    (0..roles.len()).flat_map(begins).collect()
}

pub(super) const PLAIN: [Role; 2] = [(Mode::Read, false), (Mode::Write, false)];
pub(super) const ALL: [Role; 4] = [(Mode::Read, false), (Mode::Write, false), (Mode::Read, true), (Mode::Write, true)];

/// Returns the correct protocol, with every kind of fault.
pub(super) fn of(companies: Vec<Vec<Role>>) -> Protocol {
    let expiries = usize::MAX;
    let (signals, asking) = (Signals::HoldingWriters, Asking::Right);
    Protocol { companies, signals, asking, loses_answers: true, expiries, operators: 0 }
}

fn search(protocol: Protocol) -> impl Checker<Protocol> {
    let checker = protocol.checker().threads(2).spawn_bfs().join();
    println!("{} states, {} of them different", checker.state_count(), checker.unique_state_count());
    checker
}

fn contenders() -> usize {
    std::env::var("MODEL_CONTENDERS").ok().and_then(|n| n.parse().ok()).unwrap_or(3)
}

fn keeps_every_property(protocol: Protocol) {
    let checker = search(protocol);
    checker.assert_properties();
    assert!(checker.unique_state_count() > 10_000, "the search was cut short");
}

#[test]
fn every_interleaving_keeps_every_property() {
    keeps_every_property(of(companies(contenders(), &PLAIN)));
}

/// By default, three contenders get fewer faults than two: no lost replies, and at most one expired session. With
/// `MODEL_CONTENDERS=4` they get as many as two.
#[test]
fn every_property_holds_with_kept_nodes_too() {
    let keepers = |company: &Vec<Role>| company.iter().filter(|(_, keeps)| *keeps).count();
    let all = companies(3, &ALL);
    if contenders() > 3 {
        return keeps_every_property(of(all));
    }
    keeps_every_property(Protocol { operators: 1, ..of(companies(2, &ALL)) });
    let one = all.iter().filter(|company| keepers(company) == 1).cloned().collect();
    keeps_every_property(Protocol { loses_answers: false, expiries: 1, ..of(one) });
    keeps_every_property(Protocol { loses_answers: false, expiries: 0, ..of(all) });
}

fn assert_found(wrong: Protocol, property: &'static str) {
    assert!(search(wrong).discovery(property).is_some(), "the search does not find the fault");
}

#[test]
fn two_hold_at_once_if_readers_signal() {
    let wrong = Protocol { signals: Signals::ReadersToo, ..of(companies(3, &PLAIN)) };
    assert_found(wrong, "a writer holds alone");
}

#[test]
fn two_hold_at_once_if_cancelled_waiters_signal() {
    let wrong = Protocol { signals: Signals::CancelledWaitersToo, ..of(companies(3, &PLAIN)) };
    assert_found(wrong, "a writer holds alone");
}

/// Checks that the search finds a writer that waits for ever behind a kept node, if contenders ask for kept nodes in
/// this wrong way.
fn waits_for_ever(asking: Asking) {
    let company = || vec![vec![(Mode::Read, true), (Mode::Write, false)]];
    let wrong = |asking| Protocol { asking, loses_answers: false, expiries: 0, operators: 1, ..of(company()) };
    search(wrong(Asking::Right)).assert_properties();
    assert_found(wrong(asking), "no contender waits for ever for a kept node");
    assert_found(wrong(asking), "every waiter moves on without a fault");
}

#[test]
fn a_writer_waits_for_ever_if_creates_precede_watches() {
    waits_for_ever(Asking::CreatedBeforeArmed);
}

#[test]
fn a_writer_waits_for_ever_if_an_asked_node_is_kept() {
    waits_for_ever(Asking::ForgottenBeforeTheGrant);
}

#[test]
fn a_writer_waits_for_ever_if_it_does_not_ask() {
    waits_for_ever(Asking::NobodyAsks);
}

#[test]
fn a_writer_waits_for_ever_if_it_asks_by_an_old_version() {
    waits_for_ever(Asking::ByAnOldVersion);
}

/// Each of these actions must also occur in the real run of `crowd::traces`.
#[test]
fn crowd_traces_checks_for_every_action_of_the_model() {
    let name = |action: Action| match action {
        Action::ArmDirectory(_) => "ArmDirectory",
        Action::Enter(_) => "Enter",
        Action::EnterAnswerLost(_) => "EnterAnswerLost",
        Action::EnterRequestLost(_) => "EnterRequestLost",
        Action::Recover(_) => "Recover",
        Action::List(_) => "List",
        Action::Arm(_) => "Arm",
        Action::See(_) => "See",
        Action::Ask(_) => "Ask",
        Action::Notify(_) => "Notify",
        Action::OperatorAsks => "OperatorAsks",
        Action::Release(_) => "Release",
        Action::UseAgain(_) => "UseAgain",
        Action::GiveUp(_) => "GiveUp",
        Action::Downgrade(_) => "Downgrade",
        Action::Cancel(_) => "Cancel",
        Action::Expire(_) => "Expire",
    };
    let mut taken = std::collections::BTreeSet::new();
    // Collects the actions of all states of two contenders.
    let model = Protocol { operators: 1, ..of(companies(2, &ALL)) };
    let mut open = model.init_states();
    let mut known: std::collections::HashSet<_> = open.iter().cloned().collect();
    while let Some(state) = open.pop() {
        let mut actions = Vec::new();
        model.actions(&state, &mut actions);
        for action in actions {
            taken.insert(name(action));
            open.extend(model.next_state(&state, action).filter(|next| known.insert(next.clone())));
        }
    }
    assert_eq!(taken, std::collections::BTreeSet::from(OF_THE_MODEL));
}
