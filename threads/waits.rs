//! Shuttle's locks, which record the tasks that wait for them, and futures that say what they wait for. If a schedule
//! deadlocks, a report of all waits is printed.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::panic::{Location, PanicHookInfo, set_hook, take_hook};
use std::pin::Pin;
use std::ptr::from_ref;
use std::sync::{LockResult, Once, PoisonError, TryLockResult};
use std::task::{Context, Poll};

use shuttle::current::{self, TaskId};
use shuttle::sync::{MutexGuard, RwLockReadGuard, RwLockWriteGuard};

/// A task, and the line of code at which it takes a lock.
type At = (TaskId, &'static Location<'static>);

/// The last task that took a lock, and the tasks that wait for it.
type Lock = (Option<At>, Vec<At>);

thread_local! {
    /// The state of the locks, by address. The map is thread-local, because all tasks of a schedule run on one thread of
    /// the operating system.
    static LOCKS: RefCell<BTreeMap<usize, Lock>> = const { RefCell::new(BTreeMap::new()) };

    /// For each future, by address: the last task that polled it, and what it waits for.
    static FUTURES: RefCell<BTreeMap<usize, (TaskId, String)>> = const { RefCell::new(BTreeMap::new()) };
}

/// Returns a report that says for each waiting task for which lock or event it waits.
pub(crate) fn report() -> String {
    let line = |(task, at): &At| format!("{task:?} at {}:{}", at.file(), at.line());
    let waits = |(taken, waiting): &Lock| {
        let taken = taken.as_ref().map(line).unwrap_or_default();
        waiting
            .iter()
            .map(|it| format!("\n{} waits for the lock that was taken by {taken}", line(it)))
            .collect::<String>()
    };
    let awaits = |(task, what): &(TaskId, String)| format!("\n{task:?} waits for {what}");
    let locks: String = LOCKS.with_borrow(|locks| locks.values().map(waits).collect());
    FUTURES.with_borrow(|futures| locks + &futures.values().map(awaits).collect::<String>())
}

/// Makes a deadlock also print the [`report`].
fn report_deadlocks() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = take_hook();
        set_hook(Box::new(move |panic: &PanicHookInfo<'_>| {
            before(panic);
            if panic.payload().downcast_ref::<String>().is_some_and(|why| why.starts_with("deadlock!")) {
                eprintln!("what is waited for:{}", report());
            }
        }));
    });
}

#[track_caller]
fn taken<G>(address: usize, take: impl FnOnce() -> G) -> G {
    let Some(task) = current::try_get_current_task() else { return take() };
    let at = (task, Location::caller());
    report_deadlocks();
    LOCKS.with_borrow_mut(|locks| locks.entry(address).or_default().1.push(at));
    let guard = take();
    LOCKS.with_borrow_mut(|locks| {
        let (last, waiting) = locks.entry(address).or_default();
        waiting.retain(|it| it.0 != at.0);
        *last = Some(at);
    });
    guard
}

/// A future, with a description of what it waits for.
pub(crate) struct Awaited<F> {
    /// The future. It is boxed, so that its address does not change.
    pub(crate) future: Pin<Box<F>>,
    what: String,
}

impl<F> Awaited<F> {
    pub(crate) fn new(what: String, future: F) -> Awaited<F> {
        report_deadlocks();
        Awaited { future: Box::pin(future), what }
    }

    /// Wraps a future that waits for `what` since the line `at`.
    pub(crate) fn since(at: &Location<'_>, what: impl Display, future: F) -> Awaited<F> {
        Awaited::new(format!("{what} at {}:{}", at.file(), at.line()), future)
    }

    fn address(&self) -> usize {
        from_ref(&*self.future).cast::<()>() as usize
    }
}

impl<F: Future> Future for Awaited<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let answer = self.future.as_mut().poll(context);
        if let (true, Some(task)) = (answer.is_pending(), current::try_get_current_task()) {
            FUTURES.with_borrow_mut(|futures| futures.insert(self.address(), (task, self.what.clone())));
        }
        answer
    }
}

impl<F> Drop for Awaited<F> {
    fn drop(&mut self) {
        let _at_the_end_of_the_thread = FUTURES.try_with(|futures| futures.borrow_mut().remove(&self.address()));
    }
}

#[derive(Debug, Default)]
pub(crate) struct Mutex<T: ?Sized>(shuttle::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) const fn new(value: T) -> Mutex<T> {
        Mutex(shuttle::sync::Mutex::new(value))
    }
}

impl<T: ?Sized> Mutex<T> {
    #[track_caller]
    pub(crate) fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        taken(from_ref(self).cast::<()>() as usize, || self.0.lock())
    }

    pub(crate) fn try_lock(&self) -> TryLockResult<MutexGuard<'_, T>> {
        self.0.try_lock()
    }

    pub(crate) fn get_mut(&mut self) -> LockResult<&mut T> {
        self.0.get_mut()
    }
}

#[derive(Debug, Default)]
pub(crate) struct RwLock<T>(shuttle::sync::RwLock<T>);

impl<T> RwLock<T> {
    pub(crate) const fn new(value: T) -> RwLock<T> {
        RwLock(shuttle::sync::RwLock::new(value))
    }

    #[track_caller]
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, T> {
        taken(from_ref(self) as usize, || self.0.read()).unwrap_or_else(PoisonError::into_inner)
    }

    #[track_caller]
    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, T> {
        taken(from_ref(self) as usize, || self.0.write()).unwrap_or_else(PoisonError::into_inner)
    }
}
