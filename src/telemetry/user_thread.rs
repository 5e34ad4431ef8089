//! Threads on which the user's code runs: subscribers of `tracing`, and recorders of metrics. This code may block for
//! ever, or panic. If the code blocked a thread of the library, a lease could be lost. If it blocked the thread of a
//! caller, the caller would not learn of a lost lock.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Duration;

use crate::sync::Mutex;
use crate::sync::atomic::{AtomicUsize, Ordering};

type Work = Box<dyn FnOnce() + Send>;

thread_local! {
    static IS_LIBRARY_THREAD: Cell<bool> = const { Cell::new(false) };
}

/// Marks this thread as one of the library's, so that [`is_library_thread`] returns `true` on it.
pub(crate) fn mark_library_thread() {
    IS_LIBRARY_THREAD.set(true);
}

pub(crate) fn is_library_thread() -> bool {
    IS_LIBRARY_THREAD.get()
}

/// Runs the user's code on the calling thread, and catches its panic. Returns `None` after a panic.
pub(crate) fn catch_panic<T>(work: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(work)).ok()
}

/// A thread for the user's code. It starts with the first piece of work, and runs until the process ends.
pub(crate) struct UserCodeThread {
    name: &'static str,
    /// The sender of work to the thread, and the id of the process that started the thread. A forked child of that
    /// process does not have the thread. So the first call of `enqueue` in the child starts another thread.
    queue: Mutex<Option<(Sender<Work>, u32)>>,
    waiting: AtomicUsize,
}

impl UserCodeThread {
    pub(crate) const fn new(name: &'static str) -> UserCodeThread {
        UserCodeThread { name, queue: Mutex::new(None), waiting: AtomicUsize::new(0) }
    }

    /// Queues `work` behind all earlier work, and returns immediately. If the thread cannot be started, returns
    /// `false`, and the work is never run.
    pub(crate) fn enqueue(&'static self, work: impl FnOnce() + Send + 'static) -> bool {
        let mut queue = self.queue.lock();
        let process = std::process::id();
        if queue.as_ref().is_none_or(|(_, of)| *of != process) {
            self.waiting.store(0, Ordering::Relaxed);
            let (give, given) = mpsc::channel();
            let started = thread::Builder::new().name(self.name.to_owned()).spawn(move || self.run_queued(&given));
            // If the thread cannot be started, `queue` stays empty, so the next call tries again.
            *queue = started.is_ok().then_some((give, process));
        }
        let Some((queue, _)) = &*queue else {
            // The work is leaked and not dropped, because the drop may run the user's code, which might block this
            // thread for ever.
            std::mem::forget(work);
            return false;
        };
        self.waiting.fetch_add(1, Ordering::Relaxed);
        queue.send(Box::new(work)).is_ok()
    }

    /// Returns how many pieces of work are queued or running.
    pub(crate) fn pending_count(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Waits until all earlier work is done, for at most `limit`. Returns whether that work is done. Also returns
    /// `false` if the thread cannot be started.
    pub(crate) fn flush(&'static self, limit: Duration) -> bool {
        if self.pending_count() == 0 {
            return true;
        }
        let (done, is_done) = mpsc::channel();
        self.enqueue(move || _ = done.send(()));
        is_done.recv_timeout(limit).is_ok()
    }

    fn run_queued(&self, given: &Receiver<Work>) {
        while let Ok(work) = given.recv() {
            let _panicked = catch_panic(work);
            self.waiting.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn blocking_or_panicking_work_stops_one_thread() {
        static THREAD: UserCodeThread = UserCodeThread::new("a user thread");
        let (sender, receiver) = mpsc::channel();
        assert!(THREAD.flush(Duration::ZERO), "no work waits");
        THREAD.enqueue(|| panic!("a panic of a subscriber"));
        THREAD.enqueue(move || sender.send(thread::current().name().map(str::to_owned)).expect("the receiver waits"));
        assert_eq!(receiver.recv().expect("the thread goes on").as_deref(), Some("a user thread"));
        assert!(THREAD.flush(Duration::from_secs(60)));
        let (go_on, blocked) = mpsc::channel::<()>();
        THREAD.enqueue(move || _ = blocked.recv());
        THREAD.enqueue(|| {});
        assert!(!THREAD.flush(Duration::from_millis(1)));
        assert!(THREAD.pending_count() >= 2);
        drop(go_on);
        assert!(THREAD.flush(Duration::from_secs(60)));
        assert!(!is_library_thread());
    }
}
