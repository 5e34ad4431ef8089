//! Tests of each step of a removal.

use super::*;
use crate::session::request::{DeniedRight, SessionEnd};

const PATH: &str = "/lock/host~id-WRITE-0000000003";

fn unknown() -> Failure {
    Failure::Unknown(String::new())
}

fn over() -> Failure {
    Failure::Over(SessionEnd::Expired)
}

fn no_auth() -> Failure {
    Failure::NoAuth(Box::<DeniedRight>::default())
}

fn in_transaction(index: usize, failure: Failure) -> Failure {
    Failure::Operation { index, failure: Box::new(failure) }
}

/// Returns the request of this step, or the result of the removal, as a short text.
fn next_request_of(leaving: &NodeRemoval) -> String {
    match leaving {
        NodeRemoval::Coming { .. } => "created?".to_owned(),
        NodeRemoval::Deleting(Deletion { path, signals, .. }) => {
            format!("{} {path}", if *signals { "signal" } else { "delete" })
        }
        NodeRemoval::Restarting => "restart".to_owned(),
        NodeRemoval::Listing => "list".to_owned(),
        NodeRemoval::Cut(_) => "link?".to_owned(),
        NodeRemoval::Gone(outcome) => format!("{outcome:?}"),
    }
}

/// Gives these answers to the removal. Checks the next request after each, and that nothing is reported.
#[track_caller]
fn goes(mut leaving: NodeRemoval, steps: impl IntoIterator<Item = (RemovalStepAnswer, &'static str)>) {
    for (answer, expected) in steps {
        let report;
        (leaving, report) = leaving.advance(answer);
        assert_eq!((next_request_of(&leaving), report), (expected.to_owned(), None));
    }
}

fn deleting(signals: bool, restarts: bool) -> NodeRemoval {
    NodeRemoval::Deleting(Deletion { path: PATH.to_owned(), signals, restarts, ..Deletion::default() })
}

fn deleted(failure: impl Into<Option<Failure>>) -> RemovalStepAnswer {
    RemovalStepAnswer::Deleted(failure.into().map_or(Ok(()), Err))
}

const LINKED: RemovalStepAnswer = RemovalStepAnswer::Linked(Ok(()));

#[test]
fn a_deletion_is_repeated_until_its_outcome_is_known() {
    let again = "delete /lock/host~id-WRITE-0000000003";
    goes(deleting(false, false), [(deleted(None), "Ok(())")]);
    goes(deleting(false, false), [(deleted(Failure::NoNode), "Err(NoNode)")]);
    goes(
        deleting(false, false),
        [(deleted(unknown()), "link?"), (LINKED, again), (deleted(Failure::NoNode), "Ok(())")],
    );
    let again = "signal /lock/host~id-WRITE-0000000003";
    goes(
        deleting(true, false),
        [
            (deleted(unknown()), "link?"),
            (LINKED, again),
            (deleted(unknown()), "link?"),
            (LINKED, again),
            (deleted(in_transaction(0, Failure::NoNode)), "Ok(())"),
        ],
    );
    goes(
        deleting(true, false),
        [(deleted(unknown()), "link?"), (RemovalStepAnswer::Linked(Err(over())), "Err(Over(Expired))")],
    );
    goes(deleting(true, true), [(deleted(over()), "Err(Over(Expired))")]);
}

#[test]
fn a_refused_signal_is_followed_by_a_plain_delete() {
    for refusal in [no_auth(), Failure::Refused(String::new())] {
        let (plain, report) = deleting(true, false).advance(deleted(in_transaction(0, refusal)));
        assert_eq!(report, Some(RemovalReport::SignalRefused));
        assert_eq!(next_request_of(&plain), "delete /lock/host~id-WRITE-0000000003");
        assert_eq!(plain.advance(deleted(no_auth())), (NodeRemoval::Gone(Err(no_auth())), None));
    }
    // The delete (operation 1) was refused, and not the write (operation 0), so the session may still signal a release.
    let refused = deleting(true, false).advance(deleted(in_transaction(1, no_auth())));
    assert_eq!(refused, (NodeRemoval::Gone(Err(no_auth())), None));
}

#[test]
fn the_last_deletion_restarts_the_sequence_numbers() {
    goes(deleting(true, true), [(deleted(None), "restart"), (deleted(Failure::NotEmpty), "Ok(())")]);
    goes(deleting(true, true), [(deleted(Failure::NoNode), "Err(NoNode)")]);
}

#[test]
fn a_node_created_after_its_owner_left_is_deleted() {
    let created = || RemovalStepAnswer::Created(Ok(PATH.to_owned()));
    let coming = |lists_after| NodeRemoval::Coming { lists_after };
    let delete = "delete /lock/host~id-WRITE-0000000003";
    goes(coming(false), [(created(), delete), (deleted(None), "Ok(())")]);
    goes(coming(true), [(created(), delete), (deleted(None), "list")]);
    goes(coming(true), [(created(), delete), (deleted(Failure::NoNode), "list")]);
    goes(coming(true), [(created(), delete), (deleted(unknown()), "link?"), (LINKED, delete), (deleted(None), "list")]);
    for (failure, next) in [(unknown(), "list"), (Failure::NoNode, "list"), (no_auth(), "Ok(())")] {
        goes(coming(false), [(RemovalStepAnswer::Created(Err(failure)), next)]);
    }
    goes(coming(true), [(RemovalStepAnswer::Created(Err(no_auth())), "list")]);
    goes(coming(true), [(RemovalStepAnswer::Created(Err(over())), "Err(Over(Expired))")]);
}

#[test]
fn each_listed_node_of_the_owner_is_deleted() {
    let listed = |names: &[&str]| RemovalStepAnswer::Listed(Ok(names.iter().map(|name| (*name).to_owned()).collect()));
    goes(NodeRemoval::Listing, [(listed(&[]), "Ok(())")]);
    goes(NodeRemoval::Listing, [(RemovalStepAnswer::Listed(Err(Failure::NoNode)), "Ok(())")]);
    goes(NodeRemoval::Listing, [(RemovalStepAnswer::Listed(Err(over())), "Err(Over(Expired))")]);
    goes(
        NodeRemoval::Listing,
        [
            (RemovalStepAnswer::Listed(Err(unknown())), "link?"),
            (LINKED, "list"),
            (listed(&["/a", "/b", "/c"]), "delete /a"),
            (deleted(Failure::NoNode), "delete /b"),
            (deleted(unknown()), "link?"),
            (LINKED, "delete /b"),
            (deleted(Failure::NoNode), "delete /c"),
            (deleted(None), "Ok(())"),
        ],
    );
    goes(NodeRemoval::Listing, [(listed(&["/a", "/b"]), "delete /a"), (deleted(over()), "Err(Over(Expired))")]);
    let (next, report) = NodeRemoval::Listing.advance(listed(&["/a", "/b"])).0.advance(deleted(no_auth()));
    assert_eq!(
        (next_request_of(&next), report),
        ("delete /b".to_owned(), Some(RemovalReport::Stays("/a".to_owned(), no_auth())))
    );
    let unlisted = NodeRemoval::Listing.advance(RemovalStepAnswer::Listed(Err(no_auth())));
    assert_eq!(unlisted, (NodeRemoval::Gone(Ok(())), Some(RemovalReport::Unlisted(no_auth()))));
}

#[test]
fn an_answer_to_another_request_changes_nothing() {
    let machines = || {
        [NodeRemoval::Coming { lists_after: true }, deleting(true, true), NodeRemoval::Listing, NodeRemoval::Restarting]
    };
    for (at, machine) in machines().into_iter().enumerate() {
        assert_eq!(machine.advance(LINKED), (machines()[at].clone(), None));
    }
}
