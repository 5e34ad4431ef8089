//! What a waiter hears while it waits; decides nothing.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::coordinator::Session;
use crate::dialect::Dialect;
use crate::listing;
use crate::name::Contender;
use crate::queue::{self, Blockers};
use crate::turn;

/// How far a waiter has come. Told by [`AcquireWrite::on_wait`](crate::AcquireWrite::on_wait).
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Progress {
    /// Its place in the queue: whoever came first has place 1. Holders count, and so do readers whom a reader need not
    /// wait for.
    pub place: usize,
    /// Who is in the way.
    pub blockers: Blockers,
}

impl Progress {
    /// As far as a listing tells, without asking anybody.
    pub(crate) fn by_name(names: &[String], me: &Contender) -> Progress {
        Progress { place: turn::earlier_than(me, names) + 1, blockers: queue::blockers_by_name(names, me) }
    }

    fn is_as(&self, other: &Progress) -> bool {
        let nodes = |of: &Progress| -> Vec<String> { of.blockers.first.iter().map(|it| it.node.clone()).collect() };
        (self.place, self.blockers.ahead) == (other.place, other.blockers.ahead) && nodes(self) == nodes(other)
    }
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "place {}: {}", self.place, self.blockers)
    }
}

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
        if self.told.as_ref().is_some_and(|told| told.is_as(&seen)) {
            return;
        }
        let blockers = queue::read_again(session, directory, dialect, &seen.blockers).await;
        let progress = Progress { blockers, ..seen };
        self.tell.get_mut().unwrap_or_else(PoisonError::into_inner)(&progress);
        self.told = Some(progress);
    }

    /// Looks at the queue each time the interval has passed, if one was given, and tells what is news.
    pub(crate) async fn keep_looking(&mut self, session: &Arc<dyn Session>, directory: &Arc<str>, me: &Contender) {
        let Some(every) = self.every else {
            return std::future::pending().await;
        };
        loop {
            session.sleep(every).await;
            // Whoever waits in earnest finds out itself what goes wrong.
            if let Ok(names) = listing::list(session, directory).await {
                self.tell(session, directory, me.dialect(), Progress::by_name(&names, me)).await;
            }
        }
    }
}

impl fmt::Debug for OnWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnWait").field("every", &self.every).finish_non_exhaustive()
    }
}
