//! The thread that serves the sessions. It runs their tasks (heartbeats, removals), reads the sockets of the client
//! crate and fires timers, so that no answer is passed from one thread to another.
//!
//! Because of this thread, a program that blocks its own runtime, or has none, loses no lock, and the nodes of its
//! dropped guards are still deleted. The thread calls the wakers of callers' tasks, which must return soon, as on any
//! executor.

use std::any::Any;
use std::collections::BTreeSet;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;

use async_executor::{Executor, FallibleTask};
use async_io::Timer;
use futures_util::FutureExt;
use tokio::sync::oneshot;

use crate::session::lease::{Moment, nanos, since_boot};
use crate::sync::atomic::Ordering;
use crate::sync::{Mutex, of_process};
use crate::telemetry::{log, user_thread};

/// Sleeps for `duration` from this call on. The timer fires on any executor.
pub(crate) fn sleep(duration: Duration) -> impl Future<Output = ()> + Send + use<> {
    Timer::after(duration).map(drop)
}

/// The background thread of this process. The thread runs while a client or a session has an `Arc` of it.
static BACKGROUND: Mutex<Weak<BackgroundThread>> = Mutex::new(Weak::new());

/// The id of the process that has connected, or 0 before the first connect. A forked child lacks the threads of the
/// client crate and of this library, so connections in the child would not be served.
static PROCESS: of_process::AtomicU32 = of_process::AtomicU32::new(0);

/// Returns whether this process was forked after its parent had connected. This is cheap unless the process is a fork:
/// the system is asked for the process id at most about once in [`FORK_CHECK_EVERY`].
pub(crate) fn is_in_forked_process() -> bool {
    since_boot_unless_forked() == FORKED
}

/// The time that [`since_boot_unless_forked`] returns in a forked process. This time is later than the end of every
/// lease of a session with servers. So in the child, all copies of such leases are invalid.
pub(crate) const FORKED: Moment = Duration::from_secs(1 << 40);

/// How long an answer of `std::process::id` is used, in nanoseconds. The call enters the kernel, which would be slow
/// for a hold that is checked millions of times a second. A fork usually takes longer than this time, so the child's
/// first check calls `std::process::id` again.
const FORK_CHECK_EVERY: u64 = 20_000;

/// When `std::process::id` last showed that this process is not a fork, in nanoseconds since boot.
static FORK_CHECKED_AT: of_process::AtomicU64 = of_process::AtomicU64::new(0);

/// Returns the time since boot, or [`FORKED`] in a process that was forked after its parent had connected. A fork may
/// be noticed [`FORK_CHECK_EVERY`] late. Real sessions use this clock for their leases, because a forked process cannot
/// serve its parent's sessions.
pub(crate) fn since_boot_unless_forked() -> Moment {
    let now = since_boot();
    let at = nanos(now);
    if at.wrapping_sub(FORK_CHECKED_AT.load(Ordering::Relaxed)) < FORK_CHECK_EVERY {
        return now;
    }
    let process = PROCESS.load(Ordering::Relaxed);
    if process != 0 && process != std::process::id() {
        return FORKED;
    }
    FORK_CHECKED_AT.store(at, Ordering::Relaxed);
    now
}

pub(crate) struct BackgroundThread {
    /// The executor of the thread, which is dropped with its tasks when the thread ends.
    executor: Weak<Executor<'static>>,
    /// The ids of the sessions of all clients in this process.
    pub(crate) sessions: Mutex<BTreeSet<i64>>,
    _stop: oneshot::Sender<()>,
}

/// A task that returns its panic as an error. A panic of the task's destructor is caught, too, because otherwise the
/// executor would abort the process.
struct CatchPanic<F>(Option<Pin<Box<F>>>);

impl<F: Future> Future for CatchPanic<F> {
    type Output = thread::Result<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(task) = &mut self.0 else { return Poll::Pending };
        // The user may set a `tracing` subscriber at any time. So before each poll, this call keeps the events of other
        // crates on this thread away from the subscriber.
        log::silence_other_crates();
        let polled = catch_unwind(AssertUnwindSafe(|| task.as_mut().poll(context)));
        polled.map_or_else(|panicked| Poll::Ready(Err(panicked)), |polled| polled.map(Ok))
    }
}

impl<F> Drop for CatchPanic<F> {
    fn drop(&mut self) {
        let _panicked = user_thread::catch_panic(|| drop(self.0.take()));
    }
}

/// Returns a message for a panic, with the first line of the panic's own message. If that line says that too many files
/// are open, the message explains this.
pub(crate) fn panic_message(panicked: &(dyn Any + Send)) -> String {
    let message = panicked.downcast_ref::<String>().map(String::as_str).or(panicked.downcast_ref::<&str>().copied());
    let message = message.and_then(|message| message.lines().next()).unwrap_or_default();
    if message.contains("Too many open files") {
        return format!(
            "this process may open too few files (RLIMIT_NOFILE, ulimit -n): a connection needs some ten file descriptors: {message}"
        );
    }
    format!("the attempt panicked: {message}")
}

impl BackgroundThread {
    /// Returns the background thread of this process. Starts it if there is none.
    pub(crate) fn get_or_start() -> io::Result<Arc<BackgroundThread>> {
        let _result = PROCESS.compare_exchange(0, std::process::id(), Ordering::Relaxed, Ordering::Relaxed);
        let mut current = BACKGROUND.lock();
        if let Some(background) = current.upgrade() {
            return Ok(background);
        }
        // The reactor of `async-io` panics if the process has no file descriptor left.
        let started = catch_unwind(BackgroundThread::start);
        let background = Arc::new(started.unwrap_or_else(|panicked| Err(io::Error::other(panic_message(&*panicked))))?);
        *current = Arc::downgrade(&background);
        Ok(background)
    }

    fn start() -> io::Result<BackgroundThread> {
        let (stop, stopped) = oneshot::channel::<()>();
        // The first timer starts the reactor of `async-io`. This timer starts the reactor now, so that a panic of the
        // reactor is caught by the caller of this function and becomes an error.
        let _started = Timer::after(Duration::from_secs(1)).now_or_never();
        let running = Arc::new(Executor::new());
        let executor = Arc::downgrade(&running);
        thread::Builder::new().name("zk-rwlock".to_owned()).spawn(move || {
            user_thread::mark_library_thread();
            async_io::block_on(running.run(stopped))
        })?;
        Ok(BackgroundThread { executor, sessions: Mutex::default(), _stop: stop })
    }

    /// Runs a task in the background. If the task panics, only this task ends. If the thread has ended, the task is
    /// dropped.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.spawn_with_handle(task).into_iter().for_each(FallibleTask::detach);
    }

    /// Runs a task until it ends or the returned handle is dropped. Returns `None` if the thread has already ended. The
    /// handle is a future: it returns the task's output or panic, or `None` if the thread ends before the task.
    pub(crate) fn spawn_with_handle<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> Option<FallibleTask<thread::Result<T>>> {
        Some(self.executor.upgrade()?.spawn(CatchPanic(Some(Box::pin(task)))).fallible())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_library_threads_are_known_as_ours() {
        let background = BackgroundThread::get_or_start().expect("a thread");
        let is_ours = background.spawn_with_handle(async { user_thread::is_library_thread() }).expect("a thread");
        assert!(pollster::block_on(is_ours).expect("a thread").expect("no panic"));
        assert!(!user_thread::is_library_thread());
    }

    #[test]
    fn a_timer_fires_while_the_thread_is_blocked() {
        let background = BackgroundThread::get_or_start().expect("a thread");
        let (go_on, blocked) = std::sync::mpsc::channel::<()>();
        background.spawn(async move { _ = blocked.recv() });
        pollster::block_on(sleep(Duration::from_millis(10)));
        drop(go_on);
    }

    #[test]
    fn a_panic_ends_only_its_own_task() {
        struct Panics;
        impl Drop for Panics {
            fn drop(&mut self) {
                panic!("a panic of a destructor");
            }
        }
        let background = BackgroundThread::get_or_start().expect("a thread");
        let panicked = background
            .spawn_with_handle(async { assert!(!user_thread::is_library_thread(), "a panic of a task") })
            .expect("a thread");
        assert!(pollster::block_on(panicked).expect("a thread").is_err());
        let panics = Panics;
        let given_up = background.spawn_with_handle(async move {
            let _panics = panics;
            std::future::pending::<()>().await;
        });
        drop(given_up);
        let next = background.spawn_with_handle(async {}).expect("a thread");
        assert!(pollster::block_on(next).is_some());
    }

    #[test]
    fn a_panic_for_lack_of_files_is_explained() {
        let message = |words: &'static str| panic_message(&words);
        let lacking = "cannot initialize: Os { code: 24, message: \"Too many open files\" }\nand more";
        let lacking = message(lacking);
        assert!(
            lacking.starts_with("this process may open too few files") && lacking.ends_with("files\" }"),
            "{lacking}"
        );
        assert_eq!(message("a bug"), "the attempt panicked: a bug");
    }
}
