//! Tests of one node that this library has created, without a backend.

use std::pin::pin;
use std::time::Duration;

use super::*;
use crate::session::request::SessionEnd;
use crate::session::store::SessionStore;
use crate::sync::atomic::AtomicBool;

impl Node {
    pub(in crate::session) fn waits_at(&self, path: String) {
        let now = self.lease.now();
        self.change(|it| it.state = NodeState::waiting_at(path, now));
    }
}

/// Returns a held node on a valid lease, and its session's store.
fn holding() -> (Arc<Node>, Arc<SessionStore>) {
    let store = Arc::new(SessionStore::new(Lease::new(Duration::from_secs(6))));
    store.record_begin(store.lease().now());
    let node = store.enter("/lock/node".to_owned());
    store.unwatched.take_due(Duration::ZERO);
    node.mark_held(store.lease().epoch().unwrap());
    assert!(node.now_if_held().is_some());
    (node, store)
}

/// The two ways in which a hold ends: it is given back, or lost.
const ENDS: [fn(&Arc<Node>); 2] = [|node| drop(node.mark_left()), |node| node.record_loss(Loss::Removed)];

/// `now_if_held` reads only atomics, so every change of the node must update them.
#[test]
fn now_if_held_is_none_once_the_node_is_lost_or_left() {
    for end in ENDS {
        let (node, _store) = holding();
        end(&node);
        assert_eq!(node.now_if_held(), None);
    }
}

/// A waker that checks the node inside `wake`, like an executor that polls the task there.
struct Looks {
    node: Arc<Node>,
    has_seen: AtomicBool,
}

impl Wake for Looks {
    fn wake(self: Arc<Self>) {
        let is_over = !self.node.is_held_even_if_lost() || self.node.detect_loss().is_some();
        self.has_seen.store(is_over, Ordering::SeqCst);
    }
}

#[test]
fn a_task_woken_by_a_loss_finds_it_at_once() {
    for end in ENDS {
        let (node, _store) = holding();
        let has_seen = AtomicBool::new(false);
        let looks = Arc::new(Looks { node: Arc::clone(&node), has_seen });
        let mut changed = pin!(node.changed.notified());
        let waker = Waker::from(Arc::clone(&looks));
        assert!(changed.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        end(&node);
        assert!(looks.has_seen.load(Ordering::SeqCst));
    }
}

/// A server deletes the node when the session expires. If the process was stopped until then, the event of the deletion
/// may come before the owner has checked its lease.
#[test]
fn a_removal_after_a_lapse_counts_as_the_lapse() {
    for (stopped_for, why) in [(0, Loss::Removed), (6_000, Loss::LeaseRanOut)] {
        let (store, clock) = SessionStore::begun(Duration::from_secs(6));
        let lease = store.lease();
        let node = store.enter("/lock/node".to_owned());
        node.mark_held(lease.epoch().unwrap());
        assert_eq!(node.detect_loss(), None);

        clock.fetch_add(stopped_for, Ordering::SeqCst);
        watched(&node, Ok(fired(WatchEvent::Deleted))).expect("the watch is armed");
        assert_eq!(node.detect_loss(), Some(why));
    }
}

/// In this test, answers come so late that the lease of a session without nodes may end before the next read extends
/// it.
#[test]
fn a_node_does_not_rely_on_a_lease_that_may_end_too_soon() {
    let (store, clock) = SessionStore::begun(Duration::from_secs(6));
    let lease = store.lease();
    let late = Duration::from_secs(1);
    clock.fetch_add(1_000, Ordering::SeqCst);
    store.record_answer(lease.now() - late);
    let node = store.enter("/lock/node".to_owned());
    assert_eq!((lease.epoch(), node.epoch()), (Some(0), None));
    store.record_answer(lease.now());
    clock.fetch_add(3_000, Ordering::SeqCst);
    store.record_quorum_answer(lease.now());
    store.record_answer(lease.now() - late);
    assert_eq!(node.epoch(), Some(0), "a later touch has extended the lease");
}

fn to_watch(node: &Node) -> Option<String> {
    node.change(|it| it.state.take_path_to_watch())
}

fn fired(event: WatchEvent) -> Watch {
    Box::pin(std::future::ready(event))
}

/// Stores `watch` in the node, as the answer to a request for a watch.
fn watched(node: &Arc<Node>, watch: Result<Watch, Failure>) -> Result<(), Failure> {
    node.store_watch("/lock/node", watch)
}

#[test]
fn a_watch_is_armed_again_after_a_failure_or_a_write() {
    let (node, store) = holding();
    let path = || Some("/lock/node".to_owned());
    assert_eq!((to_watch(&node), to_watch(&node)), (path(), None));
    let unknown = Failure::Unknown(String::new());
    assert_eq!(watched(&node, Err(unknown.clone())), Err(unknown));
    assert_eq!((node.has_watch(), to_watch(&node)), (false, path()));
    assert_eq!(watched(&node, Ok(Box::pin(std::future::pending()))), Ok(()));
    assert_eq!((node.has_watch(), to_watch(&node)), (true, None));
    assert!(store.unwatched.take_due(Duration::ZERO).0.is_empty());

    let (node, store) = holding();
    assert_eq!(to_watch(&node), path());
    assert_eq!(watched(&node, Ok(fired(WatchEvent::Changed))), Ok(()));
    assert_eq!((node.has_watch(), node.detect_loss()), (false, None));
    assert_eq!((store.unwatched.take_due(Duration::ZERO).0.len(), to_watch(&node)), (1, path()));
}

#[test]
fn events_of_a_replaced_node_do_not_end_the_new_hold() {
    let (node, _store) = holding();
    to_watch(&node);
    node.change(|it| it.state.begin_replacement(Some("/lock/new".to_owned())));
    node.record_gone_if_at("/lock/node");
    assert_eq!((node.detect_loss(), to_watch(&node)), (None, None));
    node.end_replacement(|it| it.record_exchange(0));
    assert_eq!(to_watch(&node), Some("/lock/new".to_owned()));
    assert!(watched(&node, Err(Failure::Unknown(String::new()))).is_err());
    assert_eq!(to_watch(&node), None, "a watch on the new node was requested already");
    assert_eq!(watched(&node, Ok(fired(WatchEvent::Deleted))), Ok(()));
    assert_eq!(watched(&node, Err(Failure::NoNode)), Ok(()));
    assert_eq!((node.detect_loss(), node.has_watch()), (None, false));
    node.record_gone_if_at("/lock/new");
    assert_eq!(node.detect_loss(), Some(Loss::Removed));
}

#[test]
fn a_hold_is_suspect_while_its_connection_is_lost() {
    let (node, store) = holding();
    assert_eq!(node.hold_state(), HoldState::Held);
    store.set_connected(false);
    assert!(matches!(node.hold_state(), HoldState::Suspect { .. }));
    store.set_connected(true);
    assert_eq!(node.hold_state(), HoldState::Held);
    store.record_end_and_report(SessionEnd::Expired);
    let why = Loss::SessionOver(SessionEnd::Expired);
    assert_eq!(node.hold_state(), HoldState::Lost { why });
}

/// After `prepare_foreign_transaction` the caller may send a transaction at any time, so the writes are never settled.
#[test]
fn writes_are_settled_once_each_has_an_outcome() {
    let (node, _store) = holding();
    assert_eq!((node.has_unsettled_write(), node.writes_if_settled()), (false, Some(0)));
    node.count_sent_write();
    node.count_sent_write();
    node.settle_write();
    assert_eq!((node.has_unsettled_write(), node.writes_if_settled()), (true, None));
    node.settle_write();
    assert_eq!((node.has_unsettled_write(), node.writes_if_settled()), (false, Some(2)));
    node.prepare_foreign_transaction();
    assert_eq!((node.has_unsettled_write(), node.writes_if_settled()), (true, None));
}

#[test]
fn a_lease_that_ends_during_the_question_is_a_loss() {
    let (jumps, reads) = (Arc::new(AtomicBool::new(false)), AtomicU64::new(0));
    let may_jump = Arc::clone(&jumps);
    let read = move || {
        let before = if may_jump.load(Ordering::SeqCst) { reads.fetch_add(1, Ordering::SeqCst) } else { 0 };
        Duration::from_secs(if before > 0 { 110 } else { 100 })
    };
    let store = SessionStore::begun_on(Duration::from_secs(6), read);
    let node = store.enter("/lock/node".to_owned());
    node.mark_held(store.lease().epoch().unwrap());
    jumps.store(true, Ordering::SeqCst);
    assert_eq!(node.hold_state(), HoldState::Lost { why: Loss::LeaseRanOut });
}

/// Returns a held node on a session with a timeout of 6 s, and a function that ends the session's lease.
fn expiring() -> (Arc<Node>, impl Fn()) {
    let (store, clock) = SessionStore::begun(Duration::from_secs(6));
    let node = store.enter("/lock/node".to_owned());
    node.mark_held(store.lease().epoch().unwrap());
    (node, move || _ = clock.fetch_add(6_000, Ordering::SeqCst))
}

#[test]
fn a_lapse_during_a_look_is_found_by_the_next_look() {
    let (node, expire) = expiring();
    let mut looks = 0;
    let look = || {
        looks += 1;
        if looks == 1 {
            expire();
            return None;
        }
        node.detect_loss()
    };
    let found = pin!(node.until(tokio::time::sleep, look)).poll(&mut Context::from_waker(Waker::noop()));
    assert_eq!(found, Poll::Ready(Loss::LeaseRanOut));
}

/// While the machine is suspended, tokio's timers stand still, but the lease's clock goes on. Here, `expire` advances
/// the lease's clock alone.
#[tokio::test(start_paused = true)]
async fn a_holder_learns_of_a_suspend_within_300_ms() {
    let (node, expire) = expiring();
    let wakes = async {
        tokio::time::sleep(Duration::from_millis(1)).await;
        expire();
        tokio::time::Instant::now()
    };
    let (why, woke) = tokio::join!(node.until_lost(tokio::time::sleep), wakes);
    assert_eq!(why, Loss::LeaseRanOut);
    assert!(woke.elapsed() <= Duration::from_millis(300), "{:?}", woke.elapsed());
}
