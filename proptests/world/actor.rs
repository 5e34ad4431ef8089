//! The actors of a world: the call that each of them has in progress, and the answers of the guards that it holds.

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

/// A call of an actor that is in progress. The call is polled only after its waker has fired, so that a lost wake-up
/// makes a test fail.
pub(crate) struct Work {
    task: Spawn<Doing>,
    is_new: bool,
    /// Whether the actor held the lock or permits when the work began.
    holds: bool,
    /// The lock mode or the permits that the work acquires. `None` if the work never waits in a queue.
    wish: Option<Claimed>,
    /// The contenders that were in the queue when the work began.
    pub(crate) behind: Vec<Waits>,
    /// The work's place in the order in which all contenders so far have queued. `None` until the first check at which
    /// nothing moves, and after a node in the queue was changed.
    pub(crate) queued: Option<u64>,
    /// The number of times that the ensemble had been restored when the work began.
    pub(crate) age: u32,
}

/// A contender in a queue, and what it acquires.
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
    /// An update ended, and has released its lock.
    Nothing,
}

/// What one guard answers to the checks.
pub(crate) struct Claim {
    pub(crate) state: HoldState,
    /// The answer to `is_held`, which was asked right after `state`.
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
    /// Returns whether a contender that acquires the one must wait for a contender that acquires the other.
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
    /// Returns the actor's place in a queue, if it is known.
    pub(crate) fn waits(&self) -> Option<Waits> {
        let Actor::Busy(work) = self else { return None };
        Some(Waits { queued: work.queued?, wish: work.wish()? })
    }

    /// Returns an actor that begins work. The work acquires `wish`. If `wish` is `None`, the work never waits in a
    /// queue.
    pub(crate) fn begin(
        wish: Option<Claimed>,
        doing: impl Future<Output = Result<Held, Error>> + Send + 'static,
    ) -> Actor {
        Actor::Busy(Work::new(doing, false, wish))
    }

    /// Returns an actor that begins work while it holds the lock or permits.
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

    /// Returns whether the work was never polled.
    pub(crate) fn is_new(&self) -> bool {
        self.is_new
    }

    /// Returns whether the work's waker has fired since the last poll.
    pub(crate) fn is_woken(&self) -> bool {
        self.task.is_woken()
    }

    /// Returns whether a poll of the work may make progress.
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
        // Asks `state` first, because that call notices a loss. After it, `is_held` must give the same answer.
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

    /// Returns the stream of the changes of the actor's hold.
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

/// Polls a release once. The library continues the release in the background.
fn give_back(release: impl Future<Output = Result<(), Error>>) {
    let mut release = task::spawn(release);
    let _in_time_or_later = release.poll();
}

/// A task that reads the changes of a hold, as a program does while it works. The task is polled only after its waker
/// has fired.
pub(crate) struct Listener {
    next: Spawn<Changes>,
    is_new: bool,
    has_heard: bool,
}

impl Listener {
    pub(crate) fn new(changes: Changes) -> Listener {
        Listener { next: task::spawn(changes), is_new: true, has_heard: false }
    }

    /// Polls the task if it was woken. Returns whether the task has learned of the loss of the hold.
    pub(crate) fn has_heard(&mut self) -> bool {
        while std::mem::take(&mut self.is_new) || self.next.is_woken() {
            while let std::task::Poll::Ready(Some(state)) = self.next.poll_next() {
                self.has_heard |= matches!(state, HoldState::Lost { .. });
            }
        }
        self.has_heard
    }
}

/// Counts of the writers' commits, by the outcome that was reported to the writer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Commits(Arc<Mutex<Counts>>);

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    /// The number of commits that were reported as done.
    pub(crate) done: u64,
    /// The number of commits that are in progress, were dropped, or have an unknown outcome.
    pub(crate) maybe: u64,
    under_way: u64,
    /// The number of times that the ensemble was restored.
    age: u64,
}

impl Commits {
    pub(crate) fn counts(&self) -> Counts {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut Counts)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Resets the counts after a restore. Commits in progress may still succeed, so they stay in `maybe`.
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

/// A commit in progress.
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
