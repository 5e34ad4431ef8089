//! Protects the library's threads from the wakers of callers' tasks, which are the user's code. Every
//! future that a caller polls and that a library thread may wake is wrapped in [`shielded`]. So a waker that panics does not keep
//! other wakers from being called, and a waker that blocks for ever blocks one thread only.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;
use std::ptr;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use crate::sync::{Mutex, thread_local};
use crate::telemetry::user_thread::{guarded, is_library_thread};

thread_local! {
    /// The data pointer of the shielded waker with which this thread polls now, so that a nested shield adds no second
    /// wrapper. Null outside every shield.
    static SHIELDED: Cell<*const ()> = const { Cell::new(ptr::null()) };
}

/// The wrapper around a task's waker. A new wrapper is made when the task polls with another waker. Dropping the shield
/// drops the task's waker on the thread of the task. A library thread may keep the wrapper for longer, but does not run
/// the destructor of the task's waker.
#[derive(Default)]
pub(crate) struct Shield(Option<Arc<Shielded>>);

struct Shielded(Mutex<Slot>);

enum Slot {
    Waker(Waker),
    /// A thread is calling the waker.
    Called,
    /// A thread is calling the waker, and must call it again afterwards.
    CalledAgain,
    /// The shield was dropped, so there is no task to wake.
    Gone,
}

impl Shielded {
    fn is_of(&self, waker: &Waker) -> bool {
        matches!(&*self.0.lock(), Slot::Waker(own) if own.will_wake(waker))
    }

    fn give_up(&self) {
        let slot = std::mem::replace(&mut *self.0.lock(), Slot::Gone);
        let _panicked = guarded(|| drop(slot));
    }
}

impl Wake for Shielded {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let mut slot = self.0.lock();
        // At most one thread calls the waker at a time, so a waker that blocks for ever blocks only that thread.
        let waker = match std::mem::replace(&mut *slot, Slot::Called) {
            Slot::Waker(waker) => waker,
            Slot::Called | Slot::CalledAgain => return *slot = Slot::CalledAgain,
            Slot::Gone => return *slot = Slot::Gone,
        };
        drop(slot);
        loop {
            let _panicked = guarded(|| waker.wake_by_ref());
            let mut slot = self.0.lock();
            match &*slot {
                Slot::CalledAgain => *slot = Slot::Called,
                Slot::Called => return *slot = Slot::Waker(waker),
                Slot::Gone | Slot::Waker(_) => break,
            }
        }
        let _panicked = guarded(|| drop(waker));
    }
}

impl Drop for Shield {
    fn drop(&mut self) {
        self.0.iter().for_each(|shielded| shielded.give_up());
    }
}

/// Restores [`SHIELDED`] to the previous value when dropped.
struct Inside(*const ());

impl Drop for Inside {
    fn drop(&mut self) {
        SHIELDED.with(|it| it.set(self.0));
    }
}

impl Shield {
    /// Calls `poll` with a shielded waker in place of the task's waker. On a library thread, and inside another shield,
    /// `poll` gets the present waker unchanged.
    pub(crate) fn poll<T>(
        &mut self,
        context: &mut Context<'_>,
        poll: impl FnOnce(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        // A user's waker may have a null data pointer, as `SHIELDED` is outside of all shields.
        let inside = SHIELDED.with(Cell::get);
        if is_library_thread() || !inside.is_null() && ptr::eq(context.waker().data(), inside) {
            return poll(context);
        }
        let shielded = match self.0.as_ref().filter(|it| it.is_of(context.waker())) {
            Some(same) => Arc::clone(same),
            None => {
                let another = Arc::new(Shielded(Mutex::new(Slot::Waker(context.waker().clone()))));
                self.0.replace(Arc::clone(&another)).iter().for_each(|before| before.give_up());
                another
            }
        };
        let waker = Waker::from(shielded);
        let _inside = Inside(SHIELDED.with(|it| it.replace(waker.data())));
        poll(&mut Context::from_waker(&waker))
    }
}

/// Awaits a future that library threads wake, with a shielded waker.
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

    /// A waker that panics when it is called and when it is dropped.
    struct Panics;

    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("a panic of a waker");
        }
    }

    impl Drop for Panics {
        fn drop(&mut self) {
            panic!("a panic of a waker");
        }
    }

    #[test]
    fn a_panicking_waker_stops_no_other_waker() {
        let event = Notify::new();
        let mut bad = Box::pin(shielded(event.notified()));
        assert!(bad.as_mut().poll(&mut Context::from_waker(&Waker::from(Arc::new(Panics)))).is_pending());
        let mut good = tokio_test::task::spawn(shielded(event.notified()));
        assert!(good.poll().is_pending());
        event.notify_waiters();
        assert!(good.is_woken());
        drop(bad);
    }

    #[test]
    fn a_waker_without_data_is_shielded() {
        let waker = Waker::noop();
        assert!(waker.data().is_null());
        let polled =
            Shield::default().poll(&mut Context::from_waker(waker), |it| Poll::Ready(it.waker().will_wake(waker)));
        assert_eq!(polled, Poll::Ready(false));
    }

    #[test]
    fn a_waker_is_dropped_with_its_future() {
        struct Idle;
        impl Wake for Idle {
            fn wake(self: Arc<Self>) {}
        }
        let (sender, receiver) = tokio::sync::oneshot::channel::<()>();
        let (mut waits, idle) = (Box::pin(shielded(receiver)), Arc::new(Idle));
        assert!(waits.as_mut().poll(&mut Context::from_waker(&Waker::from(Arc::clone(&idle)))).is_pending());
        assert_eq!(Arc::strong_count(&idle), 2);
        drop(waits);
        assert_eq!(Arc::strong_count(&idle), 1);
        drop(sender);
    }

    #[test]
    fn a_blocking_waker_blocks_only_one_thread() {
        struct Blocks(mpsc::SyncSender<()>, crate::sync::Mutex<mpsc::Receiver<()>>);
        impl Wake for Blocks {
            fn wake(self: Arc<Self>) {
                self.0.send(()).expect("the receiver waits");
                self.1.lock().recv().expect("the sender sends");
            }
        }
        let ((sender, receiver), (go_on, blocked)) = (mpsc::sync_channel(2), mpsc::channel());
        let waker = Waker::from(Arc::new(Blocks(sender, crate::sync::Mutex::new(blocked))));
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
        receiver.recv().expect("the waker is called");
        // The other thread is blocked in the waker's first call. This call returns immediately, and makes the other
        // thread call the waker again.
        shielded.wake_by_ref();
        go_on.send(()).expect("the waker is blocked");
        receiver.recv().expect("the waker is called again");
        go_on.send(()).expect("the waker is blocked");
        one.join().expect("no panic");
    }
}
