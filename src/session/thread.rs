//! The library's own threads.
//!
//! Sessions, heartbeats and removals run on one. So a program that blocks its own runtime, or has none, neither loses its
//! locks nor leaves nodes behind. The other has timers.

use std::collections::BTreeSet;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::thread::{self, ThreadId};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use crate::session::lease::{Moment, nanos, since_boot};
use crate::session::shield::shielded;
use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::sync::{Mutex, MutexGuard};
use crate::telemetry::{relay, teller};

/// How long the thread goes on after its last user has gone, for sessions that are still being closed.
const FAREWELL: Duration = Duration::from_secs(1);

/// One thread for the whole process, for as long as it is used.
static KEEPER: Mutex<Weak<BackgroundThread>> = Mutex::new(Weak::new());

/// The process that has connected first. The client crate has a thread of its own for as long as that lasts. In a process that is
/// forked, nothing would serve a connection.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// Whether this process was forked from one that had connected.
pub(crate) fn is_forked() -> bool {
    let process = PROCESS.load(Ordering::Relaxed);
    process != 0 && process != std::process::id()
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
    if is_forked() {
        return FORKED;
    }
    ASKED.store(at, Ordering::Relaxed);
    now
}

pub(crate) struct BackgroundThread {
    main: Thread,
    /// What others wait for has timers of its own: they go on if the main thread stands still.
    timers: Thread,
    tenants: mpsc::Sender<()>,
    sessions: Mutex<BTreeSet<i64>>,
}

/// A thread that runs tasks until this is dropped. It runs no code of the user's, but wakers.
struct Thread {
    handle: Handle,
    id: ThreadId,
    is_running: Arc<AtomicBool>,
    /// Since when it runs tasks without a pause, in nanoseconds; 0 while it waits for something to do.
    busy_since: Arc<AtomicU64>,
    _stop: oneshot::Sender<()>,
}

/// Says, when it is dropped, that the thread has ended.
struct Running(Arc<AtomicBool>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Thread {
    /// `late` is done before the thread ends.
    fn start(name: &str, late: impl Future<Output = ()> + Send + 'static) -> io::Result<Thread> {
        let (stop, stopped) = oneshot::channel::<()>();
        // It gets its runtime once there is a thread: a runtime must not be dropped where the caller may be async.
        let (give, given) = std::sync::mpsc::channel::<Runtime>();
        let is_running = Arc::new(AtomicBool::new(true));
        let running = Running(Arc::clone(&is_running));
        let thread = thread::Builder::new().name(name.to_owned()).spawn(move || {
            let Ok(runtime) = given.recv() else { return };
            // It has ended before its tasks are dropped, in which others may hear of that.
            let _running = running;
            teller::this_thread_is_ours();
            relay::relay_this_thread();
            runtime.block_on(async {
                let _dropped = stopped.await;
                late.await;
            });
        })?;
        let mut builder = Builder::new_current_thread();
        let busy_since = Arc::new(AtomicU64::new(nanos(since_boot())));
        let [waits, works] = [Arc::clone(&busy_since), Arc::clone(&busy_since)];
        // A subscriber may be set at any time.
        builder.enable_all().on_thread_park(move || {
            relay::relay_this_thread();
            waits.store(0, Ordering::Relaxed);
        });
        builder.on_thread_unpark(move || {
            works.store(nanos(since_boot()), Ordering::Relaxed);
            relay::relay_this_thread();
        });
        let runtime = builder.build()?;
        let handle = runtime.handle().clone();
        let _it_waits_for_it = give.send(runtime);
        Ok(Thread { handle, id: thread.thread().id(), is_running, busy_since, _stop: stop })
    }
}

impl BackgroundThread {
    /// The background thread of this process, started if need be.
    pub(crate) fn get() -> io::Result<Arc<BackgroundThread>> {
        let _by_another = PROCESS.compare_exchange(0, std::process::id(), Ordering::Relaxed, Ordering::Relaxed);
        relay::prepared();
        let mut current = KEEPER.lock();
        if let Some(background) = current.upgrade().filter(|background| background.is_running()) {
            return Ok(background);
        }
        let background = Arc::new(BackgroundThread::start()?);
        *current = Arc::downgrade(&background);
        Ok(background)
    }

    fn start() -> io::Result<BackgroundThread> {
        let (tenants, mut all_gone) = mpsc::channel::<()>(1);
        let main = Thread::start("zk-rwlock", async move {
            let _or_late = tokio::time::timeout(FAREWELL, all_gone.recv()).await;
        })?;
        let timers = Thread::start("zk-rwlock-timer", async {})?;
        Ok(BackgroundThread { main, timers, tenants, sessions: Mutex::default() })
    }

    /// Whether tasks are run. A thread may end by a panic, and then its sessions are over.
    pub(crate) fn is_running(&self) -> bool {
        !is_forked() && [&self.main, &self.timers].iter().all(|it| it.is_running.load(Ordering::Acquire))
    }

    /// For how long the thread of the sessions has run tasks without a pause: if it is long, one of them stands still.
    pub(crate) fn busy_for(&self) -> Duration {
        match self.main.busy_since.load(Ordering::Relaxed) {
            0 => Duration::ZERO,
            since => since_boot().saturating_sub(Duration::from_nanos(since)),
        }
    }

    pub(crate) fn handle(&self) -> &Handle {
        &self.main.handle
    }

    /// Runs a task, which keeps the thread running a little longer if it must still be finished.
    pub(crate) fn run(&self, task: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
        let tenant = self.tenant();
        self.main.handle.spawn(task.map(move |()| drop(tenant)))
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
        let is_here = thread::current().id() == self.main.id;
        let _context = if is_here { self.main.handle.enter() } else { self.timers.handle.enter() };
        let sleep = tokio::time::sleep(duration);
        Box::pin(shielded(sleep).map(move |()| drop(background)))
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Wake, Waker};

    use super::*;

    #[test]
    fn the_threads_are_known_as_ours_and_no_other() {
        let background = BackgroundThread::get().expect("a thread");
        assert!(pollster::block_on(background.handle().spawn(async { teller::is_ours() })).expect("it ends"));
        assert!(!teller::is_ours());
    }

    #[test]
    fn a_timer_goes_on_while_the_thread_stands_still() {
        let background = BackgroundThread::get().expect("a thread");
        let (go_on, blocked) = std::sync::mpsc::channel::<()>();
        drop(background.handle().spawn(async move { _ = blocked.recv() }));
        pollster::block_on(background.sleep(Duration::from_millis(10)));
        drop(go_on);
    }

    #[test]
    fn a_thread_that_ends_by_a_panic_says_so_before_its_tasks_are_dropped() {
        struct Panics;
        impl Wake for Panics {
            fn wake(self: Arc<Self>) {
                panic!("as a stranger may");
            }
        }
        struct Tells(std::sync::mpsc::Sender<bool>, Weak<BackgroundThread>);
        impl Drop for Tells {
            fn drop(&mut self) {
                self.0.send(self.1.upgrade().is_some_and(|it| it.is_running())).expect("it is awaited");
            }
        }
        let background = Arc::new(BackgroundThread::start().expect("a thread"));
        let (tell, told) = std::sync::mpsc::channel();
        let tells = Tells(tell, Arc::downgrade(&background));
        assert!(background.is_running());
        drop(background.handle().spawn(async move {
            let _kept = tells;
            // Its timers call this waker in the thread's own loop.
            let mut sleep = Box::pin(tokio::time::sleep(Duration::from_millis(1)));
            let waker = Waker::from(Arc::new(Panics));
            assert!(sleep.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            std::future::pending::<()>().await;
        }));
        assert!(!told.recv().expect("it is dropped"));
    }
}
