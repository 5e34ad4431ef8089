//! The listener of `on_wait`: a function of the caller that is called with the progress of its wait.

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::observe::lock_paths::LockPaths;
use crate::queue::contender::Contender;
use crate::queue::dialect::Dialect;
use crate::queue::member::Progress;
use crate::session::contract::Session;
use crate::session::listing;
use crate::sync::Mutex;

/// The shortest time between two reads of the queue.
const PAUSE_MIN: Duration = Duration::from_secs(1);

/// The caller's function.
#[derive(Clone)]
pub(crate) struct Listener {
    tell: Arc<Mutex<Tell>>,
}

type Tell = dyn FnMut(&Progress) + Send;

impl Listener {
    pub(crate) fn boxed(tell: impl FnMut(&Progress) + Send + 'static) -> Box<Listener> {
        Box::new(Listener { tell: Arc::new(Mutex::new(tell)) })
    }
}

/// The listener of one waiter, and the last progress that it was called with.
pub(crate) struct OnWait {
    listener: Box<Listener>,
    heard: Option<Progress>,
}

impl OnWait {
    pub(crate) fn new(listener: Box<Listener>) -> Box<OnWait> {
        Box::new(OnWait { listener, heard: None })
    }

    /// Calls the listener if the progress has changed. Reads the nodes of the contenders in the way first.
    pub(crate) async fn report_read(
        &mut self,
        session: &Arc<dyn Session>,
        paths: &LockPaths,
        dialect: Dialect,
        seen: Progress,
    ) {
        if let Some(heard) = self.heard.as_mut().filter(|heard| heard.is_as(&seen)) {
            heard.length = seen.length;
            return;
        }
        let blockers = paths.read_again(session, dialect, &seen.blockers).await;
        self.report(Progress { blockers, ..seen });
    }

    /// Calls the listener with this progress, without a read.
    pub(crate) fn report(&mut self, progress: Progress) {
        self.listener.tell.lock()(&progress);
        self.heard = Some(progress);
    }

    /// Reads the queue in intervals, and calls the listener when the progress changes.
    pub(crate) async fn keep_looking(
        &mut self,
        session: &Arc<dyn Session>,
        paths: &LockPaths,
        me: &Contender,
    ) -> Infallible {
        loop {
            session.sleep(self.pause()).await;
            // An error is ignored here, because the wait itself meets it, too.
            if let Ok(names) = listing::list(session, &paths.queue).await {
                let seen = paths.progress(session, &names, me).await;
                self.report_read(session, paths, me.dialect(), seen).await;
            }
        }
    }

    /// Returns the interval between two reads. Each read lists all names, so a waiter reads less often the further back it is: at
    /// place p of n, n names every p * n milliseconds. All waiters together list 1000 * (1 + 1/2 + ... + 1/n) names a second,
    /// fewer than ten thousand.
    fn pause(&self) -> Duration {
        let size = self.heard.as_ref().map_or(0, |heard| heard.place.saturating_mul(heard.length));
        let by_size = Duration::from_millis(u64::try_from(size).unwrap_or(u64::MAX));
        by_size.max(PAUSE_MIN)
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").finish_non_exhaustive()
    }
}
