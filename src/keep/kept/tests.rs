use std::future::poll_fn;
use std::task::Wake;

use tokio_test::{assert_pending, assert_ready_ok};

use super::*;
use crate::contend::acquisition::{AcquireOptions, Acquisition};
use crate::contend::warnings::WARN_AFTER;
use crate::keep::cache::{KeptUseShare, PendingUse};
use crate::keep::uses::UseState;
use crate::lock::rw_lock::RwLock;
use crate::memory::client::Memory;
use crate::session::contract::Coordinator;

const IDLE: Duration = Duration::from_secs(1);

/// Creates a kept READ node that is not granted, with this many waiting uses. Also returns its flag `in_vain`: whether
/// another contender asked for the node before the second use of the node.
fn entering(uses: usize) -> (Arc<KeptNode>, Vec<UseState<KeptUseShare, PendingUse>>, Arc<AtomicBool>) {
    let (lock, in_vain) = (RwLock::new(&Memory::new(), "/a").unwrap(), Arc::default());
    let kept = KeptNode::new(&lock.config, Mode::Read, IDLE, &in_vain);
    let uses = (0..uses).map(|_| kept.join(Mode::Read)).collect();
    (kept, uses, in_vain)
}

#[test]
fn an_ask_before_the_second_use_means_kept_in_vain() {
    for (uses, is_in_vain) in [(1, true), (2, false), (3, false)] {
        let (kept, _uses, in_vain) = entering(uses);
        in_vain.store(!is_in_vain, Ordering::Release);
        kept.record_ask();
        assert_eq!(in_vain.load(Ordering::Acquire), is_in_vain, "{uses} uses");
    }
}

#[test]
fn an_ask_for_a_closed_node_changes_no_flag() {
    for why in [
        GiveUpReason::Idle,
        GiveUpReason::Lost,
        GiveUpReason::Closed,
        GiveUpReason::Replaced,
        GiveUpReason::Unsure,
        GiveUpReason::Asked,
    ] {
        let (kept, _uses, in_vain) = entering(1);
        kept.give_up(why);
        kept.record_ask();
        assert!(!in_vain.load(Ordering::Acquire), "{why:?}");
    }
}

/// Gives the node an acquisition that never ends, and whose polls call `polled`. Returns a weak pointer that can be
/// upgraded until the acquisition is dropped.
fn acquire_without_end(kept: &KeptNode, mut polled: impl FnMut() + Send + 'static) -> Weak<()> {
    let lives = Arc::new(());
    let seen = Arc::downgrade(&lives);
    kept.state.lock().work = Some(Box::pin(poll_fn(move |_| {
        let _lives = &lives;
        polled();
        Poll::Pending
    })));
    seen
}

#[test]
fn an_acquisition_without_a_waiting_use_is_dropped() {
    let (kept, mut uses, _) = entering(2);
    let work = acquire_without_end(&kept, || ());
    uses.pop();
    assert!(work.upgrade().is_some());
    uses.pop();
    assert!(work.upgrade().is_none());
    assert!(matches!(kept.join(Mode::Read), UseState::Refused), "a use waits for an acquisition that was dropped");
}

/// A poll of the acquisition may wake the task of the last waiting use, and the waker may run that task, which drops the use.
#[test]
fn an_acquisition_whose_last_use_leaves_in_a_poll_is_dropped() {
    let (kept, mut uses, _) = entering(2);
    let work = acquire_without_end(&kept, move || uses.clear());
    assert!(!kept.poll_acquisition());
    assert!(work.upgrade().is_none());
}

/// Another thread may poll a use during the poll that grants the node, and then sees no grant yet. Unless the grant
/// wakes this use, its listener does not hear that another use of this process holds the lock.
#[tokio::test(start_paused = true)]
async fn a_use_that_goes_on_waiting_is_woken_by_the_grant() {
    let lock = RwLock::new(&Memory::new(), "/a").unwrap();
    let mut acquisition = Acquisition::new(Arc::clone(&lock.config), Mode::Write, AcquireOptions::default());
    let hold = acquisition.acquire().await.unwrap();
    let kept = KeptNode::new(&lock.config, Mode::Write, IDLE, &Arc::default());
    let [UseState::Waits(mut first), UseState::Waits(mut second)] = [(); 2].map(|()| kept.join(Mode::Write)) else {
        panic!("a use runs before the grant");
    };
    let second = Arc::new(Mutex::new(tokio_test::task::spawn(async move { second.wait().await.map(drop) })));
    let meanwhile = Arc::clone(&second);
    kept.state.lock().work = Some(Box::pin(async move {
        assert_pending!(meanwhile.lock().poll());
        Ok(hold)
    }));
    let running = assert_ready_ok!(tokio_test::task::spawn(first.wait()).poll());
    assert!(running.is_some() && second.lock().is_woken());
    kept.give_up(GiveUpReason::Closed);
}

/// The grant wakes uses inside the poll of the use that is granted. That use must not fail by the waker of another.
#[test]
fn a_waker_that_panics_fails_no_use_and_keeps_none_asleep() {
    struct Panics;
    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("a panic of a waker");
        }
    }
    let mut other = tokio_test::task::spawn(poll_fn(|context| Poll::Ready(context.waker().clone())));
    let Poll::Ready(waker) = other.poll() else { panic!("the task is ready at once") };
    wake_all(vec![Arc::new(Panics).into(), waker]);
    assert!(other.is_woken());
}

#[test]
fn a_node_before_its_grant_is_not_idle() {
    let (kept, uses, _) = entering(1);
    drop(uses);
    assert_eq!(kept.idle_time_left(Moment::ZERO.saturating_add(10 * IDLE)), IDLE);
}

#[tokio::test(start_paused = true)]
async fn the_warning_task_sleeps_while_no_use_waits() {
    let ((kept, _uses, _), slot) = (entering(0), Memory::new().session_slot(0).await.unwrap());
    let seen = Arc::downgrade(&kept);
    let mut warns = tokio_test::task::spawn(warn_of_long_waits(&seen, slot.session()));
    assert_pending!(warns.poll());
    tokio::time::advance(10 * WARN_AFTER).await;
    assert!(!warns.is_woken());
    let _waits = kept.join(Mode::Read);
    assert!(warns.is_woken());
    assert_pending!(warns.poll());
    tokio::time::advance(WARN_AFTER).await;
    assert!(warns.is_woken(), "a use waits");
}

/// The warning task must not own the node. A granted node owns its contender, and the contender owns the client. If the
/// task owned the node, the client would stay open for ever.
#[tokio::test(start_paused = true)]
async fn the_warning_task_does_not_own_the_node() {
    let ((kept, ..), slot) = (entering(0), Memory::new().session_slot(0).await.unwrap());
    let seen = Arc::downgrade(&kept);
    let mut warns = tokio_test::task::spawn(warn_of_long_waits(&seen, slot.session()));
    assert_pending!(warns.poll());
    drop(kept);
    assert!(seen.upgrade().is_none());
}

/// Before the grant, a kept node must not own the client. A task on the library's thread owns the kept node for
/// moments. If that task dropped the last pointer to the client, the drop would wait for the server, and the library's
/// thread must not wait.
#[test]
fn a_kept_node_does_not_own_the_client() {
    let lock = RwLock::new(&Memory::new(), "/a").unwrap();
    let (config, in_vain) = (Arc::downgrade(&lock.config), Arc::default());
    let kept = KeptNode::new(&lock.config, Mode::Read, IDLE, &in_vain);
    drop(lock);
    assert!(config.upgrade().is_none());
    drop(kept);
}

/// The documentation of the metric `zk_rwlock_kept_given_up_total` lists the values of its label `cause`.
#[test]
fn each_reason_has_its_label_in_the_metrics() {
    let closed = GiveUpReason::from_loss(Loss::SessionOver(SessionEnd::Closed));
    let names = [
        GiveUpReason::Asked,
        GiveUpReason::Idle,
        GiveUpReason::from_loss(Loss::Removed),
        closed,
        GiveUpReason::Replaced,
        GiveUpReason::Unsure,
    ]
    .map(GiveUpReason::label);
    assert_eq!(names, ["asked", "idle", "lost", "closed", "replaced", "unsure"]);
    assert_eq!(GiveUpReason::from_loss(Loss::LeaseRanOut), GiveUpReason::Lost);
}
