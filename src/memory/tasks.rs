//! The background tasks of an embedded ensemble.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Wake, Waker};

use crate::session::request::Task;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{HashMap, Mutex};

/// An executor without a thread of its own: the thread that wakes a task runs the task. So only the calls of a test cause events
/// in the background.
#[derive(Default)]
pub(super) struct Executor {
    tasks: Mutex<Tasks>,
    running: AtomicBool,
}

#[derive(Default)]
struct Tasks {
    next: u64,
    pending: HashMap<u64, Task>,
    ready: VecDeque<u64>,
}

impl Executor {
    pub(super) fn spawn(self: &Arc<Self>, task: Task) {
        let mut tasks = self.tasks.lock();
        tasks.next += 1;
        let number = tasks.next;
        tasks.pending.insert(number, task);
        drop(tasks);
        self.schedule(number);
    }

    fn schedule(self: &Arc<Self>, number: u64) {
        self.tasks.lock().ready.push_back(number);
        // If a thread already runs tasks, that thread runs this task, too. That thread may be the current thread,
        // because a running task may wake other tasks.
        while !self.tasks.lock().ready.is_empty() && !self.running.swap(true, Ordering::AcqRel) {
            let _running = Running(&self.running);
            self.run();
        }
    }

    fn run(self: &Arc<Self>) {
        while let Some((number, mut task)) = self.next() {
            let waker = Waker::from(Arc::new(Ready { executor: Arc::downgrade(self), number }));
            // This thread may be in the poll of a tokio task whose budget is used up. Without `unconstrained`, each poll here
            // would then yield and wake this task again without end.
            let polled = pin!(tokio::task::unconstrained(task.as_mut())).poll(&mut Context::from_waker(&waker));
            if polled.is_pending() {
                self.tasks.lock().pending.insert(number, task);
            }
        }
    }

    fn next(&self) -> Option<(u64, Task)> {
        let mut tasks = self.tasks.lock();
        loop {
            let number = tasks.ready.pop_front()?;
            if let Some(task) = tasks.pending.remove(&number) {
                return Some((number, task));
            }
        }
    }
}

/// The right of this thread to run tasks. The drop, also by a panic, lets another thread run tasks.
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
            executor.schedule(self.number);
        }
    }
}
