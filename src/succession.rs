//! What all handles of one lock in this process know of its queue together; knows no I/O.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};

use crate::dialect::Dialect;
use crate::lease::Lease;
use crate::name::Mode;
use crate::own_queue::{Ground, OwnQueue, Parting, Told, Way};
use crate::place::Standing;
use crate::tenure::Tenure;

/// The locks of this process whose handles know of each other.
static LOCKS: LazyLock<Mutex<HashMap<Lock, Weak<Succession>>>> = LazyLock::new(Mutex::default);

/// A lock, by what all handles of it have in common.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Lock {
    ensemble: String,
    directory: Arc<str>,
    dialect: Dialect,
}

/// One lock's queue of this process.
#[derive(Debug, Default)]
pub(crate) struct Succession {
    lock: Option<Lock>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    queue: OwnQueue<Arc<Standing>>,
    /// How often somebody was granted, gave up a part or left.
    steps: u64,
    /// The session of the first who came, and whether others came on another, or wrote through another.
    session: Option<Weak<Lease>>,
    is_mixed: bool,
    /// The last one who came was the next after another, so that the one after it may well be, too.
    was_next: bool,
}

/// The nearest contender before another that excludes it.
#[derive(Clone, Debug)]
pub(crate) struct Ahead {
    /// Where its node is, or was.
    pub(crate) path: Arc<str>,
    pub(crate) mode: Mode,
    pub(crate) whose: Whose,
}

/// What the nearest contender before another is to this process.
#[derive(Clone, Debug)]
pub(crate) enum Whose {
    /// Its own: who waits for it will be told.
    Own,
    /// Its own, if both are of one ensemble, which shows when its node is seen.
    Neighbour(Arc<Tenure>),
    /// Nobody known.
    Stranger,
}

/// Where a contender stands, as far as that is known without a look at the queue.
#[derive(Debug)]
pub(crate) enum Found {
    Nothing,
    /// Nothing excludes it.
    Granted(Ground),
    Behind(Ahead),
}

impl Succession {
    /// What is known of the lock in this directory to all handles of it whose ensemble goes by this name.
    pub(crate) fn of(ensemble: Option<String>, directory: &Arc<str>, dialect: Dialect) -> Arc<Succession> {
        let Some(ensemble) = ensemble else {
            return Arc::default();
        };
        let lock = Lock { ensemble, directory: Arc::clone(directory), dialect };
        let mut locks = locks();
        if let Some(known) = locks.get(&lock).and_then(Weak::upgrade) {
            return known;
        }
        let new = Arc::new(Succession { lock: Some(lock.clone()), state: Mutex::default() });
        locks.insert(lock, Arc::downgrade(&new));
        new
    }

    /// Whether a look at the queue, which costs a request, will likely be needed.
    pub(crate) fn expects_others(&self) -> bool {
        !self.state().was_next
    }

    /// How often anything has happened by which others of the process may have been let in.
    pub(crate) fn steps(&self) -> u64 {
        self.state().steps
    }

    /// Whether one who is let in may have been so by what another session has seen since then, and its own has not. A
    /// session shows all that was written before it wrote itself.
    pub(crate) fn may_be_ahead_of_its_session(&self, steps: u64) -> bool {
        let state = self.state();
        state.is_mixed && state.steps != steps
    }

    /// Somebody comes on this session, or writes through it.
    pub(crate) fn is_used_on(&self, session: &Weak<Lease>) {
        self.state().is_used_on(session);
    }

    /// The node of `me` was created.
    pub(crate) fn entered(&self, me: &Arc<Standing>) {
        self.change(|state| {
            let told = state.queue.enter(me.key().id, me.contender.place(), me.czxid, me, are_kin);
            state.was_next = state.queue.was_next(me.contender.sequence());
            state.is_used_on(me.tenure.session());
            told
        });
    }

    /// Where `me` stands.
    pub(crate) fn find(&self, me: &Standing) -> Found {
        let state = self.state();
        let ahead = |other: &Standing, mode, whose| {
            let path = other.tenure.path();
            // A writer may have become a reader just now.
            let is_it = path.ends_with(other.contender.name());
            if is_it { Found::Behind(Ahead { path: path.into(), mode, whose }) } else { Found::Nothing }
        };
        match state.queue.way(me.key()) {
            Way::Clear(ground) => Found::Granted(ground),
            Way::Behind(other) => match state.queue.member(other) {
                Some(other) => ahead(other, other.contender.mode(), Whose::Own),
                None => Found::Nothing,
            },
            Way::BehindStranger(path) => Found::Behind(Ahead { path, mode: Mode::Write, whose: Whose::Stranger }),
            Way::Unknown => match state.queue.neighbour(me.key()) {
                Some((other, mode)) => ahead(other, mode, Whose::Neighbour(Arc::clone(&other.tenure))),
                None => Found::Nothing,
            },
        }
    }

    /// The session of `me` has seen the node of its neighbour.
    pub(crate) fn saw(&self, me: &Standing, neighbour: &Tenure) {
        neighbour.seen_with(&me.tenure);
        self.change(|state| state.queue.found_kin(me.key(), are_kin));
    }

    /// `me` was granted.
    pub(crate) fn granted(&self, me: &Standing, ground: &Ground) {
        self.step(|queue| queue.granted(me.key(), ground));
    }

    /// `me` waits for this one.
    pub(crate) fn waits(&self, me: &Standing, ahead: &Ahead) {
        if matches!(ahead.whose, Whose::Stranger) {
            self.state().queue.waits_for(me.key(), &ahead.path);
        }
    }

    /// `me`, which held the write lock, holds the read lock now.
    pub(crate) fn downgraded(&self, me: &Arc<Standing>) {
        self.step(|queue| queue.downgraded(me.key(), me));
    }

    /// `me` does not hold, and will not.
    pub(crate) fn left(&self, me: &Standing, parting: Parting) {
        self.step(|queue| queue.left(me.key(), parting));
    }

    fn step(&self, step: impl FnOnce(&mut OwnQueue<Arc<Standing>>) -> Told<Arc<Standing>>) {
        self.change(|state| {
            state.steps += 1;
            step(&mut state.queue)
        });
    }

    fn change(&self, change: impl FnOnce(&mut State) -> Told<Arc<Standing>>) {
        let told = change(&mut self.state());
        // Not while it is locked: whoever is called may come back at once.
        for who in told {
            who.tenure.call();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn is_used_on(&mut self, session: &Weak<Lease>) {
        let first = self.session.get_or_insert_with(|| Weak::clone(session));
        self.is_mixed |= !Weak::ptr_eq(first, session);
    }
}

impl Drop for Succession {
    fn drop(&mut self) {
        if let Some(lock) = &self.lock {
            let mut locks = locks();
            // There may be a new one by now.
            if locks.get(lock).is_some_and(|known| known.strong_count() == 0) {
                locks.remove(lock);
            }
        }
    }
}

fn are_kin(one: &Arc<Standing>, other: &Arc<Standing>) -> bool {
    one.tenure.is_kin_of(&other.tenure)
}

fn locks() -> MutexGuard<'static, HashMap<Lock, Weak<Succession>>> {
    LOCKS.lock().unwrap_or_else(PoisonError::into_inner)
}
