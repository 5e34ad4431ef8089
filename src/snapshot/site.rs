//! Where those are who may be in the way of a waiter: in a queue, and for a semaphore also among the holders of permits;
//! knows no turns.

use std::sync::Arc;

use crate::call;
use crate::queue::contender::Contender;
use crate::queue::dialect::Dialect;
use crate::queue::member::{Blockers, Member, MemberState};
use crate::queue::mode::Mode;
use crate::queue::permits::{PERMITS, QUEUE};
use crate::session::contract::Session;
use crate::snapshot::progress::Progress;
use crate::snapshot::{permits, read};

/// The directories of a lock or of a semaphore.
#[derive(Clone, Debug)]
pub(crate) struct Site {
    /// The path that the user gave.
    pub(crate) path: Arc<str>,
    /// The queue's directory.
    pub(crate) queue: Arc<str>,
    /// The directory of the permits that are taken, if it is a semaphore.
    pub(crate) permits: Option<Arc<str>>,
}

impl Site {
    pub(crate) fn of_lock(path: Arc<str>) -> Site {
        Site { queue: Arc::clone(&path), path, permits: None }
    }

    pub(crate) fn of_semaphore(path: Arc<str>) -> Site {
        let (queue, permits) = (format!("{path}/{QUEUE}").into(), format!("{path}/{PERMITS}").into());
        Site { path, queue, permits: Some(permits) }
    }

    /// How many bytes of paths the first in the queue watches: a semaphore's number, and its permits.
    pub(crate) fn watched_by_the_head(&self) -> usize {
        self.permits.as_ref().map_or(0, |permits| self.path.len() + permits.len())
    }

    /// Those in the way of `me`, as far as they can be read. The names are those in the queue.
    pub(crate) async fn blockers(&self, session: &Arc<dyn Session>, names: &[String], me: &Contender) -> Blockers {
        match &self.permits {
            None => read::blockers(session, &self.queue, names, me).await,
            Some(_) => {
                let seen = self.progress(session, names, me).await.blockers;
                self.read_in_time(session, me.dialect(), seen).await
            }
        }
    }

    /// Those in the way of a newcomer of this dialect and mode, as far as they can be read.
    pub(crate) async fn blockers_of_newcomer(
        &self,
        session: &Arc<dyn Session>,
        names: &[String],
        newcomer: (Dialect, Mode),
    ) -> Blockers {
        let waiters = read::blockers_of_newcomer(session, &self.queue, names, newcomer).await;
        match &self.permits {
            None => waiters,
            Some(permits) => {
                let seen = permits::with_holders(&taken(session, permits).await, waiters);
                self.read_in_time(session, newcomer.0, seen).await
            }
        }
    }

    /// The progress of `me` as far as a listing of the queue shows it, without a request.
    pub(crate) fn progress_in_queue(&self, names: &[String], me: &Contender) -> Progress {
        self.progress_beside(&[], names, me)
    }

    /// The progress of `me` by the names of those in the way. The names given are those in the queue.
    pub(crate) async fn progress(&self, session: &Arc<dyn Session>, names: &[String], me: &Contender) -> Progress {
        match &self.permits {
            None => self.progress_in_queue(names, me),
            Some(permits) => self.progress_beside(&taken(session, permits).await, names, me),
        }
    }

    /// As [`Site::progress`], beside these holders of permits.
    pub(crate) fn progress_beside(&self, taken: &[String], names: &[String], me: &Contender) -> Progress {
        let mut progress = Progress::by_name(&self.path, names, me);
        if self.permits.is_some() {
            progress.blockers = permits::with_holders(taken, progress.blockers);
        }
        progress
    }

    /// Those who were seen by name, with the data of their nodes.
    pub(crate) async fn read_again(&self, session: &Arc<dyn Session>, dialect: Dialect, seen: &Blockers) -> Blockers {
        let Some(permits) = &self.permits else {
            return read::read_again(session, &self.queue, dialect, seen).await;
        };
        let is_holder = |member: &Member| member.state == MemberState::Holds;
        let (holders, waiters): (Vec<Member>, Vec<Member>) = seen.first.iter().cloned().partition(is_holder);
        let first = waiters.into_iter().map(permits::as_in_queue).collect();
        let waiters = Blockers { ahead: seen.ahead, first };
        let mut first = permits::read_again(session, permits, &holders).await.unwrap_or(holders);
        let waiters = read::read_again(session, &self.queue, dialect, &waiters).await.first;
        first.extend(waiters.into_iter().map(permits::as_waiter));
        Blockers { ahead: seen.ahead, first }
    }

    async fn read_in_time(&self, session: &Arc<dyn Session>, dialect: Dialect, seen: Blockers) -> Blockers {
        let read = self.read_again(session, dialect, &seen);
        // Their names alone still show the hosts.
        call::unless(session.sleep(session.timeout()), read).await.unwrap_or(seen)
    }
}

/// The names of the permits that are taken, none if they cannot be listed soon.
async fn taken(session: &Arc<dyn Session>, permits: &str) -> Vec<String> {
    let names = call::unless(session.sleep(session.timeout()), session.children(permits)).await;
    names.and_then(Result::ok).unwrap_or_default()
}
