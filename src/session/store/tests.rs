//! Tests of a session's store, without a backend.

use std::task::{Context, Wake, Waker};
use std::time::Duration;

use super::*;
use crate::session::request::{Loss, SessionEnd};
use crate::sync::atomic::AtomicU64;

/// Returns the store of a session of 10 s that begins now, and its clock in milliseconds.
fn begun() -> (Arc<SessionStore>, Arc<AtomicU64>) {
    SessionStore::begun(Duration::from_secs(10))
}

fn holding(store: &Arc<SessionStore>) -> Arc<Node> {
    let node = store.enter("/lock/node".to_owned());
    node.mark_held(store.lease().epoch().expect("it has just begun"));
    node
}

#[test]
fn a_renewal_after_a_lapse_revives_no_hold() {
    let renewals: [fn(&SessionStore); 2] = [
        |store| store.record_begin(store.lease().now()),
        |store| {
            store.set_connected(false);
            store.set_connected(true);
            store.record_resume(store.lease().now());
            store.record_quorum_answer(store.lease().now());
        },
    ];
    for renew in renewals {
        let (store, clock) = begun();
        let node = holding(&store);
        store.record_answer(store.lease().now());
        clock.fetch_add(30_000, Ordering::SeqCst);
        renew(&store);
        assert_eq!(node.detect_loss(), Some(Loss::LeaseRanOut));
        assert!(node.now_if_held().is_none());
    }
}

#[test]
fn an_answer_is_a_touch() {
    let (store, clock) = begun();
    for _ in 0..2 {
        store.record_answer(store.lease().now());
        assert_eq!(store.lease().since_touch(), Duration::ZERO);
        clock.fetch_add(2_000, Ordering::SeqCst);
        assert_eq!(store.lease().since_touch(), Duration::from_secs(2));
    }
}

#[test]
fn a_handshake_counts_only_once_reported_as_resumed() {
    for resumes in [false, true] {
        let (store, clock) = begun();
        clock.fetch_add(5_000, Ordering::SeqCst);
        store.record_answer(store.lease().now());
        store.set_connected(false);
        store.set_connected(true);
        if resumes {
            store.record_resume(store.lease().now());
        }
        let before = store.lease().remaining();
        store.record_quorum_answer(store.lease().now());
        assert_eq!(store.lease().remaining() > before, resumes);
    }
}

#[test]
fn each_lost_connection_counts_once() {
    let (store, _clock) = begun();
    for (is_connected, losses) in [(true, 0), (false, 1), (false, 1), (true, 1), (true, 1), (false, 2)] {
        store.set_connected(is_connected);
        assert_eq!(store.connection_number(), losses);
    }
}

const GRACE: Duration = Duration::from_millis(50);

fn store() -> Arc<SessionStore> {
    let store = Arc::new(SessionStore::new(Lease::new(Duration::from_secs(6))));
    store.record_begin(store.lease().now());
    store
}

fn enter<const N: usize>(store: &Arc<SessionStore>, names: [&str; N]) -> [Arc<Node>; N] {
    names.map(|name| store.enter(format!("/a/{name}")))
}

fn names(own_nodes: &[Arc<Node>]) -> Vec<String> {
    own_nodes.iter().map(|node| node.path()).collect()
}

#[test]
fn a_node_is_watched_at_the_second_call_if_still_there() {
    let store = store();
    let [_, gone] = enter(&store, ["1", "2"]);
    let to_watch = || {
        let (due, more) = store.unwatched.take_due(GRACE);
        (names(&due), more)
    };
    assert_eq!(to_watch(), (vec![], true));
    gone.mark_left();
    enter(&store, ["3"]);
    assert_eq!(to_watch(), (vec!["/a/1".to_owned()], true));
    assert_eq!(to_watch(), (vec!["/a/3".to_owned()], false));
    assert_eq!(to_watch(), (vec![], false));
    let [gone] = enter(&store, ["4"]);
    gone.mark_left();
    assert_eq!(to_watch(), (vec![], false));
    enter(&store, ["5"]);
    assert_eq!(names(&store.unwatched.take_due(Duration::ZERO).0), ["/a/5"]);
}

#[test]
fn leaving_nodes_are_listed_until_they_are_gone() {
    let store = store();
    let [first, second, third] = enter(&store, ["1", "2", "3"]);
    store.mark_node_closing(&first);
    store.mark_node_closing(&second);
    assert_eq!(store.closing_node_names("/a"), ["1", "2"]);
    assert!(store.closing_node_names("/b").is_empty() && store.closing_node_names("/a/1").is_empty());
    store.forget_node(&first);
    drop((first, store.unwatched.take_due(Duration::ZERO)));
    assert_eq!(store.closing_node_names("/a"), ["2"]);
    store.mark_node_closing(&third);
    assert_eq!(store.record.lock().closing.len(), 2, "the deleted node is forgotten");
}

#[test]
fn a_node_that_was_left_is_no_longer_kept_alive() {
    let store = store();
    let [node] = enter(&store, ["1"]);
    assert!(!store.has_no_nodes());
    node.mark_left();
    store.forget_node(&node);
    assert!(store.has_no_nodes());
}

#[test]
fn a_loss_by_the_session_end_keeps_its_reason() {
    let store = store();
    let [holder, waiter, removed] = enter(&store, ["1", "2", "3"]);
    holder.mark_held(store.lease().epoch().unwrap());
    removed.record_loss(Loss::Removed);
    assert!(!store.is_over());
    store.record_end_and_report(SessionEnd::Expired);
    assert!(store.is_over());
    for (node, loss) in [
        (holder, Loss::SessionOver(SessionEnd::Expired)),
        (waiter, Loss::SessionOver(SessionEnd::Expired)),
        (removed, Loss::Removed),
    ] {
        node.record_loss(Loss::Interfered);
        assert_eq!(node.detect_loss(), Some(loss));
    }
}

#[test]
fn a_panicking_waker_keeps_no_other_node_from_being_told() {
    struct Panics;
    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("on purpose");
        }
    }
    let (store, _clock) = begun();
    let nodes: Vec<_> = (0..8).map(|_| holding(&store)).collect();
    let panicking = Waker::from(Arc::new(Panics));
    let mut waiting: Vec<_> = nodes.iter().map(|node| Box::pin(node.changed.notified())).collect();
    for (index, changed) in waiting.iter_mut().enumerate() {
        let waker = if index % 2 == 0 { &panicking } else { Waker::noop() };
        assert!(changed.as_mut().poll(&mut Context::from_waker(waker)).is_pending());
    }
    store.record_end_and_report(SessionEnd::Expired);
    for (node, changed) in nodes.iter().zip(&mut waiting) {
        assert!(changed.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
        assert_eq!(node.detect_loss(), Some(Loss::SessionOver(SessionEnd::Expired)));
    }
}
