//! Tests of the record of a session, without a backend.

use std::pin::pin;
use std::time::Duration;

use super::*;
use crate::session::request::{Ending, Loss};
use crate::sync::atomic::AtomicU64;

/// Returns the upkeep of a session that has just begun, and its clock in seconds.
fn begun() -> (Arc<Upkeep>, Arc<AtomicU64>) {
    let clock = Arc::new(AtomicU64::new(1_000));
    let hands = Arc::clone(&clock);
    let read = move || Duration::from_secs(hands.load(Ordering::SeqCst));
    let upkeep = Arc::new(Upkeep::new(Lease::with_clock(Duration::from_secs(10), Box::new(read))));
    upkeep.began(upkeep.lease().now());
    (upkeep, clock)
}

fn holding(upkeep: &Arc<Upkeep>) -> Arc<ContenderNode> {
    let node = upkeep.enter("/lock/node".to_owned());
    node.hold(upkeep.lease().epoch().expect("it has just begun"));
    node
}

#[test]
fn a_renewal_after_a_lapse_revives_no_hold() {
    let renewals: [fn(&Upkeep); 2] = [
        |upkeep| upkeep.began(upkeep.lease().now()),
        |upkeep| {
            upkeep.connected(false);
            upkeep.connected(true);
            upkeep.resumed();
            upkeep.acknowledged(upkeep.lease().now());
        },
    ];
    for renew in renewals {
        let (upkeep, clock) = begun();
        let node = holding(&upkeep);
        upkeep.answered(upkeep.lease().now());
        clock.fetch_add(30, Ordering::SeqCst);
        renew(&upkeep);
        assert_eq!(node.find_loss(), Some(Loss::LeaseRanOut));
        assert!(node.held_at().is_none());
    }
}

#[test]
fn an_answer_is_a_touch() {
    let (upkeep, clock) = begun();
    for _ in 0..2 {
        upkeep.answered(upkeep.lease().now());
        assert_eq!(upkeep.lease().since_touch(), Duration::ZERO);
        clock.fetch_add(2, Ordering::SeqCst);
        assert_eq!(upkeep.lease().since_touch(), Duration::from_secs(2));
    }
}

#[test]
fn a_handshake_counts_only_once_reported_as_resumed() {
    for resumes in [false, true] {
        let (upkeep, clock) = begun();
        clock.fetch_add(5, Ordering::SeqCst);
        upkeep.answered(upkeep.lease().now());
        upkeep.connected(false);
        upkeep.connected(true);
        if resumes {
            upkeep.resumed();
        }
        let before = upkeep.lease().remaining();
        upkeep.acknowledged(upkeep.lease().now());
        assert_eq!(upkeep.lease().remaining() > before, resumes);
    }
}

#[test]
fn each_lost_connection_counts_once() {
    let (upkeep, _clock) = begun();
    for (is_connected, losses) in [(true, 0), (false, 1), (false, 1), (true, 1), (true, 1), (false, 2)] {
        upkeep.connected(is_connected);
        assert_eq!(upkeep.connection(), losses);
    }
}

#[test]
fn a_signal_that_was_refused_once_is_not_tried_again() {
    let (upkeep, _clock) = begun();
    assert!(!upkeep.is_signal_refused());
    upkeep.record_signal_refused();
    assert!(upkeep.is_signal_refused());
}

const GRACE: Duration = Duration::from_millis(50);

fn upkeep() -> Arc<Upkeep> {
    let upkeep = Arc::new(Upkeep::new(Lease::new(Duration::from_secs(6))));
    upkeep.began(upkeep.lease().now());
    upkeep
}

fn enter<const N: usize>(upkeep: &Arc<Upkeep>, names: [&str; N]) -> [Arc<ContenderNode>; N] {
    names.map(|name| upkeep.enter(format!("/a/{name}")))
}

fn names(own_nodes: &[Arc<ContenderNode>]) -> Vec<String> {
    own_nodes.iter().map(|node| node.path()).collect()
}

#[test]
fn a_node_is_watched_at_the_second_call_if_still_there() {
    let upkeep = upkeep();
    let [_, gone] = enter(&upkeep, ["1", "2"]);
    let to_watch = || {
        let (due, more) = upkeep.unwatched.take(GRACE);
        (names(&due), more)
    };
    assert_eq!(to_watch(), (vec![], true));
    gone.leave(|it| it.known.leave(true));
    enter(&upkeep, ["3"]);
    assert_eq!(to_watch(), (vec!["/a/1".to_owned()], true));
    assert_eq!(to_watch(), (vec!["/a/3".to_owned()], false));
    assert_eq!(to_watch(), (vec![], false));
    let [gone] = enter(&upkeep, ["4"]);
    gone.leave(|it| it.known.leave(true));
    assert_eq!(to_watch(), (vec![], false));
    enter(&upkeep, ["5"]);
    assert_eq!(names(&upkeep.unwatched.take(Duration::ZERO).0), ["/a/5"]);
}

#[test]
fn leaving_nodes_are_listed_until_they_are_gone() {
    let upkeep = upkeep();
    let [first, second, third] = enter(&upkeep, ["1", "2", "3"]);
    upkeep.mark_leaving(&first);
    upkeep.mark_leaving(&second);
    assert_eq!(upkeep.leaving_soon("/a"), ["1", "2"]);
    assert!(upkeep.leaving_soon("/b").is_empty() && upkeep.leaving_soon("/a/1").is_empty());
    upkeep.remove(&first);
    drop((first, upkeep.unwatched.take(Duration::ZERO)));
    assert_eq!(upkeep.leaving_soon("/a"), ["2"]);
    upkeep.mark_leaving(&third);
    assert_eq!(upkeep.members.lock().leaving.len(), 2, "the deleted node is forgotten");
}

#[test]
fn a_first_node_wakes_only_a_renewal_that_is_too_late() {
    let upkeep = upkeep();
    let lease = upkeep.lease();
    let is_woken = || pin!(upkeep.renewal_wake.notified()).enable();
    assert!(upkeep.plan_renewal(lease.now() + lease.heartbeat_period(), true));
    let [first] = enter(&upkeep, ["1"]);
    assert!(!is_woken());
    assert!(!upkeep.plan_renewal(lease.now() + lease.timeout(), true), "the session has a node");
    let [second] = enter(&upkeep, ["2"]);
    upkeep.remove(&first);
    upkeep.remove(&second);
    assert!(upkeep.has_no_nodes() && !is_woken());
    let [_third] = enter(&upkeep, ["3"]);
    assert!(is_woken());
    let [_fourth] = enter(&upkeep, ["4"]);
    assert!(!is_woken(), "the fourth is not the first node");
}

#[test]
fn all_holders_are_checked_or_else_one_waiter() {
    let upkeep = upkeep();
    let [first, second, third] = enter(&upkeep, ["1", "2", "3"]);
    let to_check = || {
        let mut paths: Vec<_> = upkeep.to_check().into_iter().map(|(_, path)| path).collect();
        paths.sort();
        paths
    };
    assert_eq!(to_check().len(), 1);
    first.hold(0);
    second.hold(0);
    assert_eq!(to_check(), ["/a/1", "/a/2"]);
    first.leave(|it| it.known.leave(true));
    assert_eq!(to_check(), ["/a/2"]);
    second.change(|it| it.known.begin_move(None));
    assert_eq!(to_check(), ["/a/3"]);
    third.leave(|it| it.known.leave(true));
    assert!(to_check().is_empty());
}

#[test]
fn a_hand_off_is_checked_once_for_all_it_granted() {
    let upkeep = upkeep();
    let [holder, other] = enter(&upkeep, ["2", "3"]);
    let path: Arc<str> = Arc::from("/a/1");
    let signal = upkeep.hand_off(&path);
    upkeep.request_check(&signal, &holder);
    assert!(Arc::ptr_eq(&signal, &upkeep.hand_off(&path)) && !signal.is_confirmed());
    assert!(upkeep.take_unchecked().is_empty(), "no contender holds yet");
    holder.hold(0);
    upkeep.request_check(&signal, &other);
    upkeep.request_check(&signal, &holder);
    assert_eq!((upkeep.take_unchecked(), upkeep.take_unchecked()), (vec![Arc::clone(&path)], vec![]));
    upkeep.request_check(&upkeep.hand_off(&path), &other);
    let (signal, granted) = upkeep.finish_check(&path).expect("the check is under way");
    assert_eq!(names(&granted), ["/a/3", "/a/2", "/a/3"], "the check covers all until it has ended");
    assert!(upkeep.finish_check(&path).is_none() && !signal.is_confirmed());
}

#[test]
fn the_last_confirmed_hand_off_is_not_checked_again() {
    let upkeep = upkeep();
    let [holder] = enter(&upkeep, ["3"]);
    holder.hold(0);
    let [gone, there]: [Arc<str>; 2] = ["/a/1", "/a/2"].map(Arc::from);
    for (path, is_gone) in [(&there, false), (&gone, true)] {
        upkeep.request_check(&upkeep.hand_off(path), &holder);
        upkeep.take_unchecked();
        let (signal, granted) = upkeep.finish_check(path).expect("the check is under way");
        assert_eq!(names(&granted), ["/a/3"]);
        if is_gone {
            upkeep.record_confirmed(signal);
        }
    }
    assert!(upkeep.hand_off(&gone).is_confirmed() && !upkeep.hand_off(&there).is_confirmed());
    let again = Arc::new(HandOff::new(Arc::clone(&gone)));
    upkeep.request_check(&again, &holder);
    assert!(again.is_confirmed() && upkeep.take_unchecked().is_empty());
    let again = upkeep.hand_off(&there);
    upkeep.request_check(&again, &holder);
    assert!(!again.is_confirmed());
    assert_eq!(upkeep.take_unchecked(), [there]);
}

#[test]
fn a_loss_by_the_session_end_keeps_its_reason() {
    let upkeep = upkeep();
    let [holder, waiter, removed] = enter(&upkeep, ["1", "2", "3"]);
    holder.hold(upkeep.lease().epoch().unwrap());
    removed.lose(Loss::Removed);
    assert!(!upkeep.is_over());
    upkeep.end(Ending::Expired);
    assert!(upkeep.is_over());
    for (node, loss) in [
        (holder, Loss::SessionOver(Ending::Expired)),
        (waiter, Loss::SessionOver(Ending::Expired)),
        (removed, Loss::Removed),
    ] {
        node.lose(Loss::Interfered);
        assert_eq!(node.find_loss(), Some(loss));
    }
}
