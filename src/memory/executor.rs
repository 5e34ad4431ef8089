//! Runs the background work of an embedded ensemble.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::task::{Context, Wake, Waker};

use crate::session::request::Task;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{HashMap, Mutex};

/// Runs tasks on the thread that makes them ready: nothing happens in the background that a test did not cause.
#[derive(Default)]
pub(super) struct Executor {
    chores: Mutex<Tasks>,
    running: AtomicBool,
}

#[derive(Default)]
struct Tasks {
    next: u64,
    pending: HashMap<u64, Task>,
    ready: VecDeque<u64>,
}

impl Executor {
    pub(super) fn spawn(self: &Arc<Self>, chore: Task) {
        let mut chores = self.chores.lock();
        chores.next += 1;
        let number = chores.next;
        chores.pending.insert(number, chore);
        drop(chores);
        self.ready(number);
    }

    fn ready(self: &Arc<Self>, number: u64) {
        self.chores.lock().ready.push_back(number);
        // A thread that runs tasks already will come to this task. A task may make other tasks ready while it runs.
        while !self.chores.lock().ready.is_empty() && !self.running.swap(true, Ordering::AcqRel) {
            let _running = Running(&self.running);
            self.run();
        }
    }

    fn run(self: &Arc<Self>) {
        while let Some((number, mut chore)) = self.next() {
            let waker = Waker::from(Arc::new(Ready { executor: Arc::downgrade(self), number }));
            // Inside a tokio task that has run for long, tokio would make this task yield, here and now, for ever.
            let polled =
                std::pin::pin!(tokio::task::unconstrained(chore.as_mut())).poll(&mut Context::from_waker(&waker));
            if polled.is_pending() {
                self.chores.lock().pending.insert(number, chore);
            }
        }
    }

    fn next(&self) -> Option<(u64, Task)> {
        let mut chores = self.chores.lock();
        loop {
            let number = chores.ready.pop_front()?;
            if let Some(chore) = chores.pending.remove(&number) {
                return Some((number, chore));
            }
        }
    }
}

/// Lets another thread run tasks when this thread is done, also after a panic.
struct Running<'a>(&'a AtomicBool);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

struct Ready {
    executor: Weak<Executor>,
    number: u64,
}

impl Wake for Ready {
    fn wake(self: Arc<Self>) {
        if let Some(executor) = self.executor.upgrade() {
            executor.ready(self.number);
        }
    }
}
