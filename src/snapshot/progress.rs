//! What a caller hears while its acquisition waits; decides nothing.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::queue::contender::Contender;
use crate::queue::dialect::Dialect;
use crate::queue::member::Blockers;
use crate::queue::turn;
use crate::session::contract::Session;
use crate::session::listing;
use crate::snapshot::read;

/// How far a waiter has come. Reported by [`Acquire::on_wait`](crate::Acquire::on_wait).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Progress {
    /// The directory of the lock that it waits for.
    pub path: Arc<str>,
    /// Its place in the queue: the first contender has place 1. Holders count, and so do readers that a reader need not
    /// wait for.
    pub place: usize,
    /// How many contenders are in the queue, with the waiter itself and the contenders behind it.
    pub length: usize,
    /// The contenders in the way.
    pub blockers: Blockers,
}

impl Progress {
    /// The progress as far as a listing shows it, without a request.
    pub(crate) fn by_name(path: &Arc<str>, names: &[String], me: &Contender) -> Progress {
        let (place, length) = turn::place_of(me, names);
        Progress { path: Arc::clone(path), place, length, blockers: read::blockers_by_name(names, me) }
    }

    fn is_as(&self, other: &Progress) -> bool {
        let nodes = |of: &Progress| -> Vec<String> { of.blockers.first.iter().map(|it| it.node.clone()).collect() };
        (self.place, self.blockers.ahead) == (other.place, other.blockers.ahead) && nodes(self) == nodes(other)
    }
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "place {} of {}: {}", self.place, self.length, self.blockers)
    }
}

/// How long a waiter pauses at least between two looks for changes, unless the caller has given an interval.
const PAUSE_MIN: Duration = Duration::from_secs(1);

/// The caller's function that hears of its wait.
#[derive(Clone)]
pub(crate) struct Listener {
    tell: Arc<Mutex<Tell>>,
    /// How often to look, if the caller has given an interval.
    pub(crate) every: Option<Duration>,
}

type Tell = dyn FnMut(&Progress) + Send;

impl Listener {
    pub(crate) fn boxed(tell: impl FnMut(&Progress) + Send + 'static, every: Option<Duration>) -> Box<Listener> {
        Box::new(Listener { tell: Arc::new(Mutex::new(tell)), every })
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
    pub(crate) async fn tell(&mut self, session: &Arc<dyn Session>, dialect: Dialect, seen: Progress) {
        if let Some(heard) = self.heard.as_mut().filter(|heard| heard.is_as(&seen)) {
            heard.length = seen.length;
            return;
        }
        let blockers = read::read_again(session, &seen.path, dialect, &seen.blockers).await;
        self.tell_at_once(Progress { blockers, ..seen });
    }

    /// Reports what is known without a look at the queue.
    pub(crate) fn tell_at_once(&mut self, progress: Progress) {
        self.listener.tell.lock().unwrap_or_else(PoisonError::into_inner)(&progress);
        self.heard = Some(progress);
    }

    /// Looks at the queue each time the interval has passed, and reports news.
    pub(crate) async fn keep_looking(&mut self, session: &Arc<dyn Session>, directory: &Arc<str>, me: &Contender) {
        loop {
            session.sleep(self.pause()).await;
            // A failure is ignored here: the wait itself finds out what goes wrong.
            if let Ok(names) = listing::list(session, directory).await {
                self.tell(session, me.dialect(), Progress::by_name(directory, &names, me)).await;
            }
        }
    }

    /// Each look reads all the names, so a waiter looks the less often, the further back it stands. At place p of n it
    /// reads n names every p * n milliseconds. All waiters together read 1000 * (1 + 1/2 + ... + 1/n) names a second,
    /// which is less than ten thousand.
    fn pause(&self) -> Duration {
        let size = self.heard.as_ref().map_or(0, |heard| heard.place.saturating_mul(heard.length));
        let by_size = Duration::from_millis(u64::try_from(size).unwrap_or(u64::MAX));
        self.listener.every.unwrap_or(by_size.max(PAUSE_MIN))
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").field("every", &self.every).finish_non_exhaustive()
    }
}
