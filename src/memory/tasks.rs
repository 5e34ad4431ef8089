//! The background tasks of an embedded ensemble.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::task::unconstrained;

use crate::session::request::Task;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};

/// An executor without a thread of its own: the thread that wakes a task runs the task, unless another thread runs
/// tasks already. So a task runs only during a call that the test makes, or when a timer fires.
#[derive(Default)]
pub(super) struct Executor {
    /// The thread that runs the tasks holds this mutex while it does so.
    tasks: Mutex<FuturesUnordered<Task>>,
    /// The spawned tasks that were not moved to `tasks` yet.
    spawned: Mutex<Vec<Task>>,
    is_woken: AtomicBool,
}

impl Executor {
    pub(super) fn spawn(self: &Arc<Self>, task: Task) {
        self.spawned.lock().push(task);
        self.run_ready_tasks();
    }

    /// Runs the tasks that are ready. If a thread is running tasks already, returns immediately, and that thread runs
    /// these tasks, too. It may be the caller's own thread, because a running task may wake other tasks.
    ///
    /// # Panics
    /// If a task panics. The other tasks that are ready run first.
    fn run_ready_tasks(self: &Arc<Self>) {
        let waker = Waker::from(Arc::new(ExecutorWaker(Arc::downgrade(self))));
        let mut context = Context::from_waker(&waker);
        let mut panicked = None;
        self.is_woken.store(true, Ordering::SeqCst);
        while self.is_woken.load(Ordering::SeqCst)
            && let Some(mut tasks) = self.tasks.try_lock()
        {
            while self.is_woken.swap(false, Ordering::SeqCst) {
                tasks.extend(std::mem::take(&mut *self.spawned.lock()));
                loop {
                    // The caller may be a tokio task that has used up its cooperative budget. Without `unconstrained`,
                    // tokio's futures in these tasks would then wake the executor again in each poll, and this loop
                    // would not end.
                    let mut poll = || pin!(unconstrained(tasks.next())).poll(&mut context);
                    match catch_unwind(AssertUnwindSafe(&mut poll)) {
                        Ok(Poll::Ready(Some(()))) => {}
                        Ok(_) => break,
                        // The panic has dropped only the task that panicked. The loop goes on, because other tasks may
                        // be ready.
                        Err(panic) => panicked = Some(panic),
                    }
                }
            }
        }
        if let Some(panic) = panicked {
            resume_unwind(panic);
        }
    }
}

struct ExecutorWaker(Weak<Executor>);

impl Wake for ExecutorWaker {
    fn wake(self: Arc<Self>) {
        self.0.upgrade().iter().for_each(Executor::run_ready_tasks);
    }
}
