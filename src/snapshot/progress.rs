//! What a waiter hears while it waits; decides nothing.

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

/// How far a waiter has come. Told by [`AcquireWrite::on_wait`](crate::AcquireWrite::on_wait).
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Progress {
    /// Its place in the queue: whoever came first has place 1. Holders count, and so do readers whom a reader need not
    /// wait for.
    pub place: usize,
    /// How many are in the queue, itself and those behind it among them.
    pub length: usize,
    /// Who is in the way.
    pub blockers: Blockers,
}

impl Progress {
    /// As far as a listing tells, without asking anybody.
    pub(crate) fn by_name(names: &[String], me: &Contender) -> Progress {
        let (place, length) = turn::place_of(me, names);
        Progress { place, length, blockers: read::blockers_by_name(names, me) }
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

/// How long a waiter at least goes without looking for what changed, unless it is told how often to look.
const PAUSE_MIN: Duration = Duration::from_secs(1);

/// Whom to tell, and what was told last.
pub(crate) struct OnWait {
    /// In a mutex only so that the future which holds it can be sent between threads.
    tell: Mutex<Tell>,
    pub(crate) every: Option<Duration>,
    told: Option<Progress>,
}

type Tell = Box<dyn FnMut(&Progress) + Send>;

impl OnWait {
    pub(crate) fn new(tell: impl FnMut(&Progress) + Send + 'static, every: Option<Duration>) -> Box<OnWait> {
        Box::new(OnWait { tell: Mutex::new(Box::new(tell)), every, told: None })
    }

    /// Tells what was seen, if it is news. Reads what those in the way have written into their nodes.
    pub(crate) async fn tell(&mut self, session: &Arc<dyn Session>, directory: &str, dialect: Dialect, seen: Progress) {
        if let Some(told) = self.told.as_mut().filter(|told| told.is_as(&seen)) {
            told.length = seen.length;
            return;
        }
        let blockers = read::read_again(session, directory, dialect, &seen.blockers).await;
        let progress = Progress { blockers, ..seen };
        self.tell.get_mut().unwrap_or_else(PoisonError::into_inner)(&progress);
        self.told = Some(progress);
    }

    /// Looks at the queue each time the interval has passed, and tells what is news.
    pub(crate) async fn keep_looking(&mut self, session: &Arc<dyn Session>, directory: &Arc<str>, me: &Contender) {
        loop {
            session.sleep(self.pause()).await;
            // Whoever waits in earnest finds out itself what goes wrong.
            if let Ok(names) = listing::list(session, directory).await {
                self.tell(session, directory, me.dialect(), Progress::by_name(&names, me)).await;
            }
        }
    }
}

impl OnWait {
    /// Each look reads all the names, so it is left to those in front: a queue of n reads n names so often that all of it
    /// together reads a thousand times (1 + 1/2 + ... + 1/n) a second, which is less than ten thousand.
    fn pause(&self) -> Duration {
        let size = self.told.as_ref().map_or(0, |told| told.place.saturating_mul(told.length));
        let by_size = Duration::from_millis(u64::try_from(size).unwrap_or(u64::MAX));
        self.every.unwrap_or(by_size.max(PAUSE_MIN))
    }
}

/// Whom to tell of several locks, of which one is waited for at a time.
#[derive(Clone)]
pub(crate) struct OnWaits(Arc<Mutex<TellOfOne>>);

type TellOfOne = dyn FnMut(&str, &Progress) + Send;

impl OnWaits {
    pub(crate) fn new(tell: impl FnMut(&str, &Progress) + Send + 'static) -> OnWaits {
        OnWaits(Arc::new(Mutex::new(tell)))
    }

    /// The same, of the lock at `path`.
    pub(crate) fn of(&self, path: &str) -> Box<OnWait> {
        let (tell, path) = (Arc::clone(&self.0), path.to_owned());
        let tell = move |progress: &Progress| tell.lock().unwrap_or_else(PoisonError::into_inner)(&path, progress);
        OnWait::new(tell, None)
    }
}

impl fmt::Debug for OnWaits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnWaits")
    }
}

impl fmt::Debug for OnWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnWait").field("every", &self.every).finish_non_exhaustive()
    }
}
