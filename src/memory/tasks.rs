//! The background tasks of an embedded ensemble, and the state of a session's connection.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Wake, Waker};

use crate::session::request::{Ending, Task};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{HashMap, Mutex, Notify};

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

/// The state of a session's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkState {
    Up,
    Down,
    Over(Ending),
}

/// The state of a connection, and a notification for the tasks that wait for a change. The state changes immediately;
/// the tasks are notified later, in the order in which they began to wait.
pub(super) struct Link {
    state: Mutex<LinkState>,
    changed: Notify,
}

impl Link {
    pub(super) fn up() -> Link {
        Link { state: Mutex::new(LinkState::Up), changed: Notify::new() }
    }

    pub(super) fn state(&self) -> LinkState {
        *self.state.lock()
    }

    /// Changes the state, unless the session is over.
    pub(super) fn change(&self, to: LinkState) {
        let mut state = self.state.lock();
        if !matches!(*state, LinkState::Over(_)) {
            *state = to;
        }
    }

    pub(super) fn notify(&self) {
        self.changed.notify_waiters();
    }

    /// Waits until `is_awaited` returns a value for the state.
    pub(super) async fn wait_until<T>(&self, is_awaited: impl Fn(LinkState) -> Option<T>) -> T {
        loop {
            // Registered before the state is read, so that a change in between is not missed.
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            if let Some(answer) = is_awaited(self.state()) {
                return answer;
            }
            changed.await;
        }
    }
}
