//! The library's own threads.
//!
//! Sessions, heartbeats and removals run on one. So a program that blocks its own runtime, or has none, neither loses its
//! locks nor leaves nodes behind. The same thread reads the sockets of the client crate, so an answer costs no other thread. The
//! second thread has timers.

use std::any::Any;
use std::collections::BTreeSet;
use std::future::poll_fn;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::thread::{self, ThreadId};
use std::time::Duration;

use async_executor::{Executor, FallibleTask};
use async_io::Timer;
use futures_util::FutureExt;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::{mpsc, oneshot};

use crate::session::lease::{Moment, nanos, since_boot};
use crate::session::shield::shielded;
use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::sync::{Mutex, MutexGuard};
use crate::telemetry::{relay, user_thread};

/// How long the thread goes on after its last user has gone, for sessions that are still being closed.
const FAREWELL: Duration = Duration::from_secs(1);

/// One thread for the whole process, for as long as it is used.
static BACKGROUND: Mutex<Weak<BackgroundThread>> = Mutex::new(Weak::new());

/// The process that has connected first. The client crate has a thread of its own for as long as that lasts. In a process that is
/// forked, nothing would serve a connection.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// Whether this process was forked from one that had connected.
pub(crate) fn is_forked() -> bool {
    since_boot_here() == FORKED
}

/// What the clock of a lease says in a process that was forked: later than the end of any lease.
pub(crate) const FORKED: Moment = Duration::from_secs(1 << 40);

/// How often the system is asked, at most, in which process this is. No process forks in less, and a hold is looked at millions of
/// times a second.
const ASKED_EVERY: u64 = 20_000;

/// When the system was asked last, in nanoseconds since boot.
static ASKED: AtomicU64 = AtomicU64::new(0);

/// The clock of a lease whose session no other process has.
pub(crate) fn since_boot_here() -> Moment {
    let now = since_boot();
    let at = nanos(now);
    if at.wrapping_sub(ASKED.load(Ordering::Relaxed)) < ASKED_EVERY {
        return now;
    }
    let process = PROCESS.load(Ordering::Relaxed);
    if process != 0 && process != std::process::id() {
        return FORKED;
    }
    ASKED.store(at, Ordering::Relaxed);
    now
}

pub(crate) struct BackgroundThread {
    tasks: Tasks,
    id: ThreadId,
    is_running: Arc<AtomicBool>,
    /// Since when it runs tasks without a pause, in nanoseconds; 0 while it waits for something to do.
    busy_since: Arc<AtomicU64>,
    /// What others wait for has timers of its own: they go on if the thread of the sessions stands still.
    timers: Arc<Timers>,
    tenants: mpsc::Sender<()>,
    sessions: Mutex<BTreeSet<i64>>,
    _stop: oneshot::Sender<()>,
}

/// Says, when it is dropped, that a thread has ended.
struct Alive(Arc<AtomicBool>);

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// A thread that runs no code of the user's, but wakers.
fn start(name: &str, is_running: &Arc<AtomicBool>, run: impl FnOnce(Alive) + Send + 'static) -> io::Result<ThreadId> {
    let alive = Alive(Arc::clone(is_running));
    let thread = thread::Builder::new().name(name.to_owned()).spawn(move || {
        user_thread::mark_library_thread();
        run(alive);
    })?;
    Ok(thread.thread().id())
}

/// The thread of the timers, until this is dropped. Its runtime is also that of the sockets by which servers are asked for a reason.
struct Timers {
    handle: Handle,
    is_running: Arc<AtomicBool>,
    _stop: oneshot::Sender<()>,
}

impl Timers {
    fn start() -> io::Result<Timers> {
        let (stop, stopped) = oneshot::channel::<()>();
        // It gets its runtime once there is a thread: a runtime must not be dropped where the caller may be async.
        let (give, given) = std::sync::mpsc::channel::<Runtime>();
        let is_running = Arc::new(AtomicBool::new(true));
        start("zk-rwlock-timer", &is_running, move |_alive| {
            let Ok(runtime) = given.recv() else { return };
            drop(runtime.block_on(stopped));
        })?;
        let mut builder = Builder::new_current_thread();
        // A subscriber may be set at any time.
        builder.enable_all().on_thread_park(relay::relay_this_thread).on_thread_unpark(relay::relay_this_thread);
        let runtime = builder.build()?;
        let handle = runtime.handle().clone();
        let _sent = give.send(runtime);
        Ok(Timers { handle, is_running, _stop: stop })
    }
}

/// The tasks of the thread of the sessions. They end with it.
#[derive(Clone)]
pub(crate) struct Tasks(Weak<Executor<'static>>);

impl Tasks {
    /// Runs a task. What it panics over ends it, and nothing else.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.begin(task).into_iter().for_each(FallibleTask::detach);
    }

    /// Runs a task until what this returns is dropped. That gives its output, or what it has panicked over, or `None` once the
    /// thread has ended.
    pub(crate) fn begin<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> Option<FallibleTask<thread::Result<T>>> {
        Some(self.0.upgrade()?.spawn(Guarded(Some(Box::pin(task)))).fallible())
    }
}

/// A task whose panics are its output. The executor would end the process over a panic of a destructor.
struct Guarded<F>(Option<Pin<Box<F>>>);

impl<F: Future> Future for Guarded<F> {
    type Output = thread::Result<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(task) = &mut self.0 else { return Poll::Pending };
        // A subscriber may be set at any time, and nothing of it runs on this thread.
        relay::relay_this_thread();
        let polled = catch_unwind(AssertUnwindSafe(|| task.as_mut().poll(context)));
        polled.map_or_else(|panicked| Poll::Ready(Err(panicked)), |polled| polled.map(Ok))
    }
}

impl<F> Drop for Guarded<F> {
    fn drop(&mut self) {
        let _panicked = user_thread::guarded(|| drop(self.0.take()));
    }
}

/// What a panic has said, and what is lacking if it is known.
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
    /// The background thread of this process, started if need be.
    pub(crate) fn get() -> io::Result<Arc<BackgroundThread>> {
        let _result = PROCESS.compare_exchange(0, std::process::id(), Ordering::Relaxed, Ordering::Relaxed);
        relay::prepare_and_wait();
        let mut current = BACKGROUND.lock();
        if let Some(background) = current.upgrade().filter(|background| background.is_running()) {
            return Ok(background);
        }
        // The reactors panic if the system gives them no file descriptor.
        let started = catch_unwind(BackgroundThread::start);
        let background = Arc::new(started.unwrap_or_else(|panicked| Err(io::Error::other(panic_message(&*panicked))))?);
        *current = Arc::downgrade(&background);
        Ok(background)
    }

    fn start() -> io::Result<BackgroundThread> {
        let (stop, stopped) = oneshot::channel::<()>();
        let (tenants, mut all_gone) = mpsc::channel::<()>(1);
        // What reads the sockets begins here, where a panic of its is an error.
        let _started = Timer::after(FAREWELL).now_or_never();
        let (timers, executor) = (Arc::new(Timers::start()?), Arc::new(Executor::new()));
        let (is_running, busy_since) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicU64::new(0)));
        let (tasks, busy, of_tokio) = (Tasks(Arc::downgrade(&executor)), Arc::clone(&busy_since), Arc::clone(&timers));
        let until_stopped = async move {
            let _dropped = stopped.await;
            tokio::select! {
                _ = all_gone.recv() => {}
                _ = Timer::after(FAREWELL) => {}
            }
        };
        let id = start("zk-rwlock", &is_running, move |alive| {
            let _context = of_tokio.handle.enter();
            // It has ended before its tasks are dropped, in which others may hear of that.
            let (executor, _alive) = (executor, alive);
            let mut running = pin!(executor.run(until_stopped));
            async_io::block_on(poll_fn(|context| {
                busy.store(nanos(since_boot()), Ordering::Relaxed);
                let ended = running.as_mut().poll(context);
                busy.store(0, Ordering::Relaxed);
                ended
            }));
        })?;
        let sessions = Mutex::default();
        Ok(BackgroundThread { tasks, id, is_running, busy_since, timers, tenants, sessions, _stop: stop })
    }

    /// Whether tasks are run. A thread may end by a panic, and then its sessions are over.
    pub(crate) fn is_running(&self) -> bool {
        !is_forked() && [&self.is_running, &self.timers.is_running].iter().all(|it| it.load(Ordering::Acquire))
    }

    /// For how long the thread of the sessions has run tasks without a pause: if it is long, one of them stands still.
    pub(crate) fn busy_for(&self) -> Duration {
        match self.busy_since.load(Ordering::Relaxed) {
            0 => Duration::ZERO,
            since => since_boot().saturating_sub(Duration::from_nanos(since)),
        }
    }

    pub(crate) fn handle(&self) -> &Tasks {
        &self.tasks
    }

    /// Runs a task, which keeps the thread running a little longer if it must still be finished.
    pub(crate) fn run(&self, task: impl Future<Output = ()> + Send + 'static) {
        let tenant = self.tenant();
        self.tasks.spawn(task.map(move |()| drop(tenant)));
    }

    /// While it lives, the thread goes on a little longer.
    pub(crate) fn tenant(&self) -> mpsc::Sender<()> {
        self.tenants.clone()
    }

    /// The sessions of this process, of whichever client.
    pub(crate) fn sessions(&self) -> MutexGuard<'_, BTreeSet<i64>> {
        self.sessions.lock()
    }

    /// A timer that goes on whatever polls it, and if this thread stands still.
    pub(crate) fn sleep(self: &Arc<Self>, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        if is_forked() {
            // No timer would ever fire.
            return Box::pin(std::future::pending());
        }
        let background = Arc::clone(self);
        if thread::current().id() == self.id {
            return Box::pin(shielded(Timer::after(duration)).map(move |_| drop(background)));
        }
        let _context = self.timers.handle.enter();
        let sleep = tokio::time::sleep(duration);
        Box::pin(shielded(sleep).map(move |()| drop(background)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_library_threads_are_known_as_ours() {
        let background = BackgroundThread::get().expect("a thread");
        let is_ours = background.handle().begin(async { user_thread::is_library_thread() }).expect("a thread");
        assert!(pollster::block_on(is_ours).expect("a thread").expect("no panic"));
        assert!(!user_thread::is_library_thread());
    }

    #[test]
    fn a_timer_fires_while_the_thread_is_blocked() {
        let background = BackgroundThread::get().expect("a thread");
        let (go_on, blocked) = std::sync::mpsc::channel::<()>();
        background.handle().spawn(async move { _ = blocked.recv() });
        pollster::block_on(background.sleep(Duration::from_millis(10)));
        drop(go_on);
    }

    #[test]
    fn a_panic_ends_only_its_own_task() {
        struct Panics;
        impl Drop for Panics {
            fn drop(&mut self) {
                panic!("as a destructor may");
            }
        }
        let background = BackgroundThread::get().expect("a thread");
        let panicked = background
            .handle()
            .begin(async { assert!(!user_thread::is_library_thread(), "as a task may") })
            .expect("a thread");
        assert!(pollster::block_on(panicked).expect("a thread").is_err());
        let panics = Panics;
        let given_up = background.handle().begin(async move {
            let _panics = panics;
            std::future::pending::<()>().await;
        });
        drop(given_up);
        let next = background.handle().begin(async {}).expect("a thread");
        assert!(pollster::block_on(next).is_some() && background.is_running());
    }

    #[test]
    fn is_running_is_false_before_the_tasks_are_dropped() {
        struct Tells(std::sync::mpsc::Sender<bool>, Arc<AtomicBool>);
        impl Drop for Tells {
            fn drop(&mut self) {
                self.0.send(self.1.load(Ordering::Acquire)).expect("it is awaited");
            }
        }
        let background = BackgroundThread::start().expect("a thread");
        let (tell, told) = std::sync::mpsc::channel();
        let tells = Tells(tell, Arc::clone(&background.is_running));
        assert!(background.is_running());
        background.handle().spawn(async move {
            let _kept = tells;
            std::future::pending::<()>().await;
        });
        drop(background);
        assert!(!told.recv().expect("it is dropped"));
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
