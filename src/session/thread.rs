//! A thread of the library's own; knows nothing of what runs on it but the numbers of the sessions.
//!
//! Sessions, heartbeats and removals run here. So a program that blocks its own runtime, or has none, neither loses its
//! locks nor leaves nodes behind.

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

use crate::sync::{Mutex, MutexGuard};

/// How long the thread goes on after its last user has gone, for sessions that are still being closed.
const FAREWELL: Duration = Duration::from_secs(1);

/// One thread for the whole process, for as long as it is used.
static KEEPER: Mutex<Weak<BackgroundThread>> = Mutex::new(Weak::new());

pub(crate) struct BackgroundThread {
    handle: Handle,
    thread: ThreadId,
    /// Dropped to stop the thread.
    _stop: oneshot::Sender<()>,
    tenants: mpsc::Sender<()>,
    sessions: Mutex<BTreeSet<i64>>,
}

impl BackgroundThread {
    /// The background thread of this process, started if need be.
    pub(crate) fn get() -> io::Result<Arc<BackgroundThread>> {
        let mut current = KEEPER.lock();
        if let Some(background) = current.upgrade() {
            return Ok(background);
        }
        let background = Arc::new(BackgroundThread::start()?);
        *current = Arc::downgrade(&background);
        Ok(background)
    }

    fn start() -> io::Result<BackgroundThread> {
        let (stop, stopped) = oneshot::channel::<()>();
        let (tenants, mut all_gone) = mpsc::channel::<()>(1);
        // It gets its runtime once there is a thread: a runtime must not be dropped where the caller may be async.
        let (give, given) = std::sync::mpsc::channel::<Runtime>();
        let thread = thread::Builder::new().name("zk-rwlock".to_owned()).spawn(move || {
            let Ok(runtime) = given.recv() else { return };
            runtime.block_on(async {
                let _dropped = stopped.await;
                let _or_late = tokio::time::timeout(FAREWELL, all_gone.recv()).await;
            });
        })?;
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let _it_waits_for_it = give.send(runtime);
        Ok(BackgroundThread { handle, thread: thread.thread().id(), _stop: stop, tenants, sessions: Mutex::default() })
    }

    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Runs a task, which keeps the thread running a little longer if it must still be finished.
    pub(crate) fn run(&self, task: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
        let tenant = self.tenants.clone();
        self.handle.spawn(task.map(move |()| drop(tenant)))
    }

    /// The sessions of this process, of whichever client.
    pub(crate) fn sessions(&self) -> MutexGuard<'_, BTreeSet<i64>> {
        self.sessions.lock()
    }

    pub(crate) fn is_current_thread(&self) -> bool {
        thread::current().id() == self.thread
    }

    /// A timer that runs on this thread, whatever polls it.
    pub(crate) fn sleep(self: &Arc<Self>, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let background = Arc::clone(self);
        let _context = self.handle.enter();
        let sleep = tokio::time::sleep(duration);
        Box::pin(sleep.map(move |()| drop(background)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_thread_knows_itself_and_no_other() {
        let background = BackgroundThread::get().expect("a thread");
        let there = Arc::clone(&background);
        let task = background.handle().spawn(async move { there.is_current_thread() });
        assert!(pollster::block_on(task).expect("it ends"));
        assert!(!background.is_current_thread());
    }
}
