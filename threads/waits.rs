//! Shuttle's locks, which remember who waits for them, where, and who took them last: a deadlock then names both.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::panic::{Location, PanicHookInfo, set_hook, take_hook};
use std::ptr::from_ref;
use std::sync::{LockResult, Once, TryLockResult};

use shuttle::current::{self, TaskId};
use shuttle::sync::{MutexGuard, RwLockReadGuard, RwLockWriteGuard};

/// A task, and the line at which it takes a lock.
type At = (TaskId, &'static Location<'static>);

/// Who took a lock last, and who waits for it.
type Lock = (Option<At>, Vec<At>);

thread_local! {
    /// By their addresses. All tasks of a schedule are one thread.
    static LOCKS: RefCell<BTreeMap<usize, Lock>> = const { RefCell::new(BTreeMap::new()) };
}

/// Who waits for which lock now.
pub(crate) fn report() -> String {
    let line = |(task, at): &At| format!("{task:?} at {}:{}", at.file(), at.line());
    let waits = |(taken, waiting): &Lock| {
        let taken = taken.as_ref().map(line).unwrap_or_default();
        waiting
            .iter()
            .map(|it| format!("\n{} waits for the lock that was taken by {taken}", line(it)))
            .collect::<String>()
    };
    LOCKS.with_borrow(|locks| locks.values().map(waits).collect())
}

/// From now on a deadlock says who waits for which lock.
fn report_deadlocks() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = take_hook();
        set_hook(Box::new(move |panic: &PanicHookInfo<'_>| {
            before(panic);
            if panic.payload().downcast_ref::<String>().is_some_and(|why| why.starts_with("deadlock!")) {
                eprintln!("the locks that are waited for:{}", report());
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
    pub(crate) fn read(&self) -> LockResult<RwLockReadGuard<'_, T>> {
        taken(from_ref(self) as usize, || self.0.read())
    }

    #[track_caller]
    pub(crate) fn write(&self) -> LockResult<RwLockWriteGuard<'_, T>> {
        taken(from_ref(self) as usize, || self.0.write())
    }
}
