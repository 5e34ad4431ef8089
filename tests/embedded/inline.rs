//! Futures that are polled inside the call of their waker, on the thread that wakes them. The embedded ensemble runs
//! its background tasks in this way, and an executor may run its tasks so.

use std::future::{Future, IntoFuture};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use crate::kept::{keeping, plain};
use support::polled::*;
use support::scene::soon;
use support::slow::Slow;
use tokio_test::{assert_pending, assert_ready_ok};
use zk_rwlock::coordinator::{Coordinator, SessionEnd};
use zk_rwlock::{Loss, Memory, RwLock};

/// Longer than any step of these tests, unless the step hangs.
const FOR_EVER: Duration = Duration::from_secs(60);

struct Inline<T> {
    future: Mutex<Option<Pin<Box<dyn Future<Output = T> + Send>>>>,
    output: Mutex<Option<T>>,
    /// Whether a wake-up polls the future inside the call of the waker.
    is_on: AtomicBool,
    is_woken: AtomicBool,
}

impl<T: Send + 'static> Inline<T> {
    fn new(future: impl IntoFuture<Output = T, IntoFuture: Send + 'static>) -> Arc<Inline<T>> {
        let future = Mutex::new(Some(Box::pin(future.into_future()) as Pin<Box<dyn Future<Output = T> + Send>>));
        let (is_on, is_woken) = (AtomicBool::new(false), AtomicBool::new(false));
        Arc::new(Inline { future, output: Mutex::default(), is_on, is_woken })
    }

    fn poll(self: &Arc<Self>) {
        let waker = Waker::from(Arc::clone(self));
        loop {
            // A wake-up during a poll only sets the flag. The polling thread then polls once more.
            let Ok(mut future) = self.future.try_lock() else { return };
            let Some(polled) = future.as_mut() else { return };
            if let Poll::Ready(output) = polled.as_mut().poll(&mut Context::from_waker(&waker)) {
                *future = None;
                *self.output.lock().expect("no panic") = Some(output);
            }
            if !self.is_woken.swap(false, Ordering::SeqCst) {
                return;
            }
        }
    }
}

impl<T: Send + 'static> Wake for Inline<T> {
    fn wake(self: Arc<Self>) {
        if self.is_on.load(Ordering::SeqCst) {
            self.is_woken.store(true, Ordering::SeqCst);
            self.poll();
        }
    }
}

/// Runs the test on a thread of its own, and fails if the test deadlocks.
fn ends(test: impl FnOnce() + Send + 'static) {
    let (done, is_done) = mpsc::channel();
    let tested = thread::spawn(move || {
        test();
        let _ = done.send(());
    });
    match is_done.recv_timeout(FOR_EVER) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("deadlock: a thread waits for itself"),
        _ => tested.join().expect("no panic"),
    }
}

#[test]
fn a_refused_use_may_read_the_queue_at_once() {
    ends(|| {
        let zk = Memory::new();
        drop(write(&plain(&zk)));
        let kept = keeping(&zk);
        zk.faults().cut(); // both must ask before either is answered
        let (mut first, second) = (writing(&kept), Inline::new(kept.write()));
        assert_pending!(first.poll());
        second.poll();
        // The reply to the first use's create is lost. Without that reply, the first use could miss the request of
        // another contender to give up the node, so the first use does not keep its node. The second use must queue up
        // itself.
        zk.faults().lose_next_reply();
        zk.faults().heal();
        second.is_on.store(true, Ordering::SeqCst);
        drop(assert_ready_ok!(first.poll()));
        second.poll();
        drop(second.output.lock().expect("no panic").take().expect("granted").expect("no error"));
        assert_eq!(zk.children(crate::kept::DIRECTORY), Vec::<String>::new());
    });
}

/// Both uses share one acquisition. The first use polls the acquisition, is woken once more, and is then not polled again. The
/// second use, which was woken as well, reads the queue while the first use polls.
#[test]
fn a_use_that_reads_the_queue_outlives_the_polling_use() {
    ends(|| {
        let kept = RwLock::builder(&Slow(Memory::new()), "/lock").keep(FOR_EVER).build().expect("valid");
        let (mut first, second) = (reading(&kept), Inline::new(kept.read()));
        assert_pending!(first.poll());
        second.poll();
        second.is_on.store(true, Ordering::SeqCst);
        let _first = first.poll();
        let granted = second.output.lock().expect("no panic").take();
        assert!(granted.expect("the acquisition was polled to its end").expect("no error").is_held());
    });
}

#[tokio::test]
async fn a_panicking_task_ends_its_session_and_is_replaced() {
    let zk = Memory::new();
    for is_cut in [false, true] {
        let guard = plain(&zk).write().await.expect("free");
        let slot = zk.session_slot(0).await.expect("connected");
        if is_cut {
            zk.faults().cut();
        }
        // The thread that wakes the task also polls the task, so the task's panic unwinds into this call.
        let spawned = catch_unwind(AssertUnwindSafe(|| slot.session().spawn(Box::pin(async { panic!("on purpose") }))));
        assert!(spawned.is_err());
        assert_eq!(soon("the loss", guard.lost()).await, Loss::SessionOver(SessionEnd::Failed));
        zk.faults().heal();
        drop(guard);
        plain(&zk).write().await.expect("free").release().await.expect("held");
        assert!(zk.state().is_connected());
    }
}
