//! An actor of a world: what it does now, and what it says to hold. Knows neither clients nor checks.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use tokio_test::task::{self, Spawn};
use zk_rwlock::hold::Changes;
use zk_rwlock::semaphore::Permit;
use zk_rwlock::shared::{SharedReadGuard, SharedWriteGuard};
use zk_rwlock::{Error, HoldState, Mode, ReadGuard, WriteGuard};

type Doing = Pin<Box<dyn Future<Output = Result<Held, Error>> + Send>>;

pub(crate) enum Actor {
    Idle,
    Busy(Work),
    Holding(Held),
}

/// What an actor has begun. Polled only when it is woken, so that a wake-up that is lost is missed.
pub(crate) struct Work {
    task: Spawn<Doing>,
    is_new: bool,
    /// It was begun with a hold.
    holds: bool,
    /// What it waits for, if it does not give up at once.
    wish: Option<Claimed>,
    /// It was begun when each of these waited in the queue already.
    pub(crate) behind: Vec<Waits>,
    /// Tells it from every other work that waits in a queue. Known once nothing moves any more, and until something happens to
    /// nodes in the queue.
    pub(crate) queued: Option<u64>,
    /// How often the ensemble had forgotten when it was begun.
    pub(crate) age: u32,
}

/// Whoever stands in a queue, and for what.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waits {
    pub(crate) queued: u64,
    pub(crate) wish: Claimed,
}

pub(crate) enum Held {
    Reader(Vec<ReadGuard>),
    Writer(Box<WriteGuard>),
    ValueReader(Box<SharedReadGuard<u64>>),
    ValueWriter(Box<SharedWriteGuard<u64>>),
    Permit(Box<Permit>),
    /// An update is over with its lock.
    Nothing,
}

/// What a holder says of one hold.
pub(crate) struct Claim {
    pub(crate) state: HoldState,
    /// What the same guard answers to a plain question, right after that.
    pub(crate) says_held: bool,
    pub(crate) token: i64,
    pub(crate) what: Claimed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claimed {
    Lock(Mode),
    Permits(u32),
}

impl Claimed {
    /// Whether both can be held at once only in the order of the queue.
    pub(crate) fn excludes(self, other: Claimed) -> bool {
        match (self, other) {
            (Claimed::Lock(mode), Claimed::Lock(other)) => mode.excludes(other),
            (Claimed::Permits(_), Claimed::Permits(_)) => true,
            _ => false,
        }
    }
}

impl Claim {
    pub(crate) fn is_held(&self) -> bool {
        !matches!(self.state, HoldState::Lost { .. })
    }
}

impl Actor {
    /// Where it stands in a queue, if it is known to stand in one.
    pub(crate) fn waits(&self) -> Option<Waits> {
        let Actor::Busy(work) = self else { return None };
        Some(Waits { queued: work.queued?, wish: work.wish()? })
    }

    /// Waits for `wish`, or tries.
    pub(crate) fn begin(
        wish: Option<Claimed>,
        doing: impl Future<Output = Result<Held, Error>> + Send + 'static,
    ) -> Actor {
        Actor::Busy(Work::new(doing, false, wish))
    }

    /// As [`Actor::begin`], for a holder.
    pub(crate) fn go_on(doing: impl Future<Output = Result<Held, Error>> + Send + 'static) -> Actor {
        Actor::Busy(Work::new(doing, true, None))
    }
}

impl Work {
    fn new(
        doing: impl Future<Output = Result<Held, Error>> + Send + 'static,
        holds: bool,
        wish: Option<Claimed>,
    ) -> Work {
        let task: Spawn<Doing> = task::spawn(Box::pin(doing));
        Work { task, is_new: true, holds, wish, behind: Vec::new(), queued: None, age: 0 }
    }

    /// Whether it was not polled yet.
    pub(crate) fn is_new(&self) -> bool {
        self.is_new
    }

    /// Whether something has come that it was not polled for.
    pub(crate) fn is_woken(&self) -> bool {
        self.task.is_woken()
    }

    /// Whether a poll may lead anywhere.
    pub(crate) fn is_ready(&self) -> bool {
        self.is_new || self.is_woken()
    }

    pub(crate) fn holds(&self) -> bool {
        self.holds
    }

    pub(crate) fn wish(&self) -> Option<Claimed> {
        self.wish
    }

    pub(crate) fn poll(&mut self) -> Option<Result<Held, Error>> {
        self.is_new = false;
        match self.task.poll() {
            std::task::Poll::Ready(answer) => Some(answer),
            std::task::Poll::Pending => None,
        }
    }
}

impl Held {
    pub(crate) fn claims(&self) -> Vec<Claim> {
        // The state first: it finds a loss, and the plain answer must not contradict it.
        macro_rules! claim {
            ($guard:expr, $token:expr, $what:expr) => {{
                let state = $guard.state();
                Claim { state, says_held: $guard.is_held(), token: $token, what: $what }
            }};
        }
        let (read, write) = (Claimed::Lock(Mode::Read), Claimed::Lock(Mode::Write));
        match self {
            Held::Reader(guards) => guards.iter().map(|guard| claim!(guard, guard.fencing_token(), read)).collect(),
            Held::Writer(guard) => vec![claim!(guard, guard.fencing_token(), write)],
            Held::ValueReader(guard) => vec![claim!(guard.lock(), guard.lock().fencing_token(), read)],
            Held::ValueWriter(guard) => vec![claim!(guard.lock(), guard.lock().fencing_token(), write)],
            Held::Permit(permit) => vec![claim!(permit, permit.fencing_token(), Claimed::Permits(permit.count()))],
            Held::Nothing => vec![],
        }
    }

    /// Reports what becomes of the hold.
    pub(crate) fn changes(&self) -> Option<Changes> {
        match self {
            Held::Reader(guards) => guards.first().map(|guard| guard.changes()),
            Held::Writer(guard) => Some(guard.changes()),
            Held::ValueReader(guard) => Some(guard.lock().changes()),
            Held::ValueWriter(guard) => Some(guard.lock().changes()),
            Held::Permit(permit) => Some(permit.changes()),
            Held::Nothing => None,
        }
    }

    pub(crate) fn release(self) {
        match self {
            Held::Reader(guards) => guards.into_iter().for_each(|guard| give_back(guard.release())),
            Held::Writer(guard) => give_back(guard.release()),
            Held::ValueReader(guard) => give_back(guard.release()),
            Held::ValueWriter(guard) => give_back(guard.release()),
            Held::Permit(permit) => give_back(permit.release()),
            Held::Nothing => {}
        }
    }
}

/// Starts a release, which goes on in the background if it cannot finish now.
fn give_back(release: impl Future<Output = Result<(), Error>>) {
    let mut release = task::spawn(release);
    let _in_time_or_later = release.poll();
}

/// Waits for news of a hold, as a program does that works meanwhile. Polled only when it is woken.
pub(crate) struct Listener {
    next: Spawn<Changes>,
    is_new: bool,
    has_heard: bool,
}

impl Listener {
    pub(crate) fn new(changes: Changes) -> Listener {
        Listener { next: task::spawn(changes), is_new: true, has_heard: false }
    }

    /// Whether it has heard by now that the hold was lost.
    pub(crate) fn has_heard(&mut self) -> bool {
        while std::mem::take(&mut self.is_new) || self.next.is_woken() {
            while let std::task::Poll::Ready(Some(state)) = self.next.poll_next() {
                self.has_heard |= matches!(state, HoldState::Lost { .. });
            }
        }
        self.has_heard
    }
}

/// The commits of the value, by what their writers know of them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Commits(Arc<Mutex<Counts>>);

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    /// Said to be done.
    pub(crate) done: u64,
    /// Under way, or given up, or said to be unknown.
    pub(crate) maybe: u64,
    under_way: u64,
    /// How often the ensemble forgot.
    age: u64,
}

impl Commits {
    pub(crate) fn counts(&self) -> Counts {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut Counts)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Counts anew. What is under way may still be done.
    pub(crate) fn forget(&self) {
        self.change(|it| *it = Counts { done: 0, maybe: it.under_way, under_way: it.under_way, age: it.age + 1 });
    }

    pub(crate) fn begin(&self) -> Commit {
        self.change(|it| {
            it.maybe += 1;
            it.under_way += 1;
        });
        Commit { commits: self.clone(), age: self.counts().age }
    }
}

/// A commit that is under way.
pub(crate) struct Commit {
    commits: Commits,
    age: u64,
}

impl Commit {
    pub(crate) fn ends<T>(self, answer: &Result<T, Error>) {
        self.commits.change(|it| match answer {
            _ if it.age != self.age => {}
            Ok(_) => (it.done, it.maybe) = (it.done + 1, it.maybe - 1),
            Err(Error::OutcomeUnknown { .. }) => {}
            Err(_) => it.maybe -= 1,
        });
    }
}

impl Drop for Commit {
    fn drop(&mut self) {
        self.commits.change(|it| it.under_way -= 1);
    }
}
