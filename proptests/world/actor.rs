//! An actor of a world: what it does now, and what it says to hold. Knows neither clients nor checks.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use tokio_test::task::{self, Spawn};
use zk_rwlock::{Error, HoldState, Mode, Permit, ReadGuard, SharedReadGuard, SharedWriteGuard, WriteGuard};

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
    pub(crate) token: i64,
    pub(crate) what: Claimed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claimed {
    Lock(Mode),
    Permits(u32),
}

impl Claim {
    pub(crate) fn is_held(&self) -> bool {
        !matches!(self.state, HoldState::Lost { .. })
    }
}

impl Actor {
    pub(crate) fn begin(doing: impl Future<Output = Result<Held, Error>> + Send + 'static) -> Actor {
        Actor::Busy(Work { task: task::spawn(Box::pin(doing)), is_new: true, holds: false })
    }

    /// As [`Actor::begin`], for a holder.
    pub(crate) fn go_on(doing: impl Future<Output = Result<Held, Error>> + Send + 'static) -> Actor {
        Actor::Busy(Work { task: task::spawn(Box::pin(doing)), is_new: true, holds: true })
    }
}

impl Work {
    /// Whether a poll may lead anywhere.
    pub(crate) fn is_ready(&self) -> bool {
        self.is_new || self.task.is_woken()
    }

    pub(crate) fn holds(&self) -> bool {
        self.holds
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
        let lock = |mode, state, token| Claim { state, token, what: Claimed::Lock(mode) };
        match self {
            Held::Reader(guards) => {
                guards.iter().map(|guard| lock(Mode::Read, guard.state(), guard.fencing_token())).collect()
            }
            Held::Writer(guard) => vec![lock(Mode::Write, guard.state(), guard.fencing_token())],
            Held::ValueReader(guard) => vec![lock(Mode::Read, guard.lock().state(), guard.fencing_token())],
            Held::ValueWriter(guard) => vec![lock(Mode::Write, guard.lock().state(), guard.fencing_token())],
            Held::Permit(permit) => {
                let (state, token) = (permit.state(), permit.fencing_token());
                vec![Claim { state, token, what: Claimed::Permits(permit.count()) }]
            }
            Held::Nothing => vec![],
        }
    }

    /// The lock's node, if it is a lock that is held.
    pub(crate) fn lock_node(&self) -> Option<String> {
        match self {
            Held::Reader(guards) => guards.first().map(ReadGuard::path),
            Held::Writer(guard) => Some(guard.path()),
            Held::ValueReader(guard) => Some(guard.lock().path()),
            Held::ValueWriter(guard) => Some(guard.lock().path()),
            Held::Permit(_) | Held::Nothing => None,
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
