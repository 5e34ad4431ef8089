//! Wakers of callers' tasks, called by the library's threads: one that panics, or blocks for ever, costs nobody else.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;
use std::ptr;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use crate::sync::atomic::{AtomicU8, Ordering};
use crate::sync::thread_local;
use crate::telemetry::teller::{guarded, is_ours};

const IDLE: u8 = 0;
const WAKING: u8 = 1;
/// Woken again meanwhile.
const AGAIN: u8 = 2;

thread_local! {
    /// The waker of the shield that this thread polls in, by its address.
    static SHIELDED: Cell<*const ()> = const { Cell::new(ptr::null()) };
}

/// Takes the place of a task's waker, for as long as the task polls with the same.
#[derive(Default)]
pub(crate) struct Shield(Option<Arc<Shielded>>);

struct Shielded {
    /// Until it is dropped.
    waker: Option<Waker>,
    state: AtomicU8,
}

impl Wake for Shielded {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // One thread at a time: a waker that blocks for ever takes one thread with it, and no other.
        if self.state.swap(AGAIN, Ordering::AcqRel) != IDLE {
            return;
        }
        loop {
            self.state.store(WAKING, Ordering::Release);
            let _panicked = guarded(|| self.waker.iter().for_each(Waker::wake_by_ref));
            if self.state.compare_exchange(WAKING, IDLE, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                return;
            }
        }
    }
}

impl Drop for Shielded {
    fn drop(&mut self) {
        let _panicked = guarded(|| drop(self.waker.take()));
    }
}

/// While it lives, this thread polls in a shield.
struct Inside(*const ());

impl Drop for Inside {
    fn drop(&mut self) {
        SHIELDED.with(|it| it.set(self.0));
    }
}

impl Shield {
    /// Polls with a waker that does no harm.
    pub(crate) fn poll<T>(
        &mut self,
        context: &mut Context<'_>,
        poll: impl FnOnce(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        if is_ours() || ptr::eq(context.waker().data(), SHIELDED.with(Cell::get)) {
            return poll(context);
        }
        let is_same = |it: &&Arc<Shielded>| it.waker.as_ref().is_some_and(|it| it.will_wake(context.waker()));
        let shielded = match self.0.as_ref().filter(is_same) {
            Some(same) => Arc::clone(same),
            None => {
                let waker = Some(context.waker().clone());
                Arc::clone(self.0.insert(Arc::new(Shielded { waker, state: AtomicU8::new(IDLE) })))
            }
        };
        let waker = Waker::from(shielded);
        let _inside = Inside(SHIELDED.with(|it| it.replace(waker.data())));
        poll(&mut Context::from_waker(&waker))
    }
}

/// The output of what wakes its task from the library's threads.
pub(crate) async fn shielded<F: Future>(work: F) -> F::Output {
    let (mut work, mut shield) = (pin!(work), Shield::default());
    poll_fn(|context| shield.poll(context, |context| work.as_mut().poll(context))).await
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use tokio::sync::Notify;

    use super::*;

    /// Panics when it is called, and when it is dropped.
    struct Panics;

    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("as a stranger may");
        }
    }

    impl Drop for Panics {
        fn drop(&mut self) {
            panic!("as a stranger may");
        }
    }

    #[test]
    fn a_waker_that_panics_costs_no_other_its_wake_up() {
        let news = Notify::new();
        let mut bad = Box::pin(shielded(news.notified()));
        assert!(bad.as_mut().poll(&mut Context::from_waker(&Waker::from(Arc::new(Panics)))).is_pending());
        let mut good = tokio_test::task::spawn(shielded(news.notified()));
        assert!(good.poll().is_pending());
        news.notify_waiters();
        assert!(good.is_woken());
        drop(bad);
    }

    #[test]
    fn a_waker_that_blocks_takes_one_thread_with_it_and_is_called_again() {
        struct Blocks(mpsc::SyncSender<()>, crate::sync::Mutex<mpsc::Receiver<()>>);
        impl Wake for Blocks {
            fn wake(self: Arc<Self>) {
                self.0.send(()).expect("it is awaited");
                self.1.lock().recv().expect("it goes on");
            }
        }
        let ((tell, told), (go_on, blocked)) = (mpsc::sync_channel(2), mpsc::channel());
        let waker = Waker::from(Arc::new(Blocks(tell, crate::sync::Mutex::new(blocked))));
        let (mut shield, mut kept) = (Shield::default(), None);
        let mut keep = |context: &mut Context<'_>| {
            kept = Some(context.waker().clone());
            Poll::<()>::Pending
        };
        assert!(shield.poll(&mut Context::from_waker(&waker), &mut keep).is_pending());
        let shielded = kept.expect("polled");
        let one = thread::spawn({
            let shielded = shielded.clone();
            move || shielded.wake()
        });
        told.recv().expect("it is called");
        // This thread is not blocked, and its call is not lost.
        shielded.wake_by_ref();
        go_on.send(()).expect("it is blocked");
        told.recv().expect("it is called again");
        go_on.send(()).expect("it is blocked");
        one.join().expect("no panic");
    }
}
