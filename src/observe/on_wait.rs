//! The function of a caller that hears of its wait, and when it is called.

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

/// How long a waiter pauses at least between two looks for changes.
const PAUSE_MIN: Duration = Duration::from_secs(1);

/// The caller's function that hears of its wait.
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

/// The listener of one waiter, and what it has heard last.
pub(crate) struct OnWait {
    listener: Box<Listener>,
    heard: Option<Progress>,
}

impl OnWait {
    pub(crate) fn new(listener: Box<Listener>) -> Box<OnWait> {
        Box::new(OnWait { listener, heard: None })
    }

    /// Reports what was seen, if it is news. Reads the nodes of the contenders in the way first.
    pub(crate) async fn tell(
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
        self.tell_at_once(Progress { blockers, ..seen });
    }

    /// Reports what is known without a look at the queue.
    pub(crate) fn tell_at_once(&mut self, progress: Progress) {
        self.listener.tell.lock()(&progress);
        self.heard = Some(progress);
    }

    /// Looks at the queue each time the interval has passed, and reports news.
    pub(crate) async fn keep_looking(
        &mut self,
        session: &Arc<dyn Session>,
        paths: &LockPaths,
        me: &Contender,
    ) -> Infallible {
        loop {
            session.sleep(self.pause()).await;
            // A failure is ignored here: the wait itself finds out what goes wrong.
            if let Ok(names) = listing::list(session, &paths.queue).await {
                let seen = paths.progress(session, &names, me).await;
                self.tell(session, paths, me.dialect(), seen).await;
            }
        }
    }

    /// Each look reads all the names, so a waiter looks the less often, the further back it stands. At place p of n it
    /// reads n names every p * n milliseconds. All waiters together read 1000 * (1 + 1/2 + ... + 1/n) names a second,
    /// which is less than ten thousand.
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
