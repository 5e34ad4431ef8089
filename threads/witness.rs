//! A witness that keeps guards and checks that no two of them say at the same moment that they hold, if they exclude
//! each other.

use std::sync::Arc;

use shuttle::sync::Mutex;
use shuttle::thread;
use zk_rwlock::semaphore::Permit;
use zk_rwlock::{ReadGuard, WriteGuard};

/// A guard's own statements.
pub(crate) trait Says: Send + Sync + 'static {
    /// Returns how much of the lock the guard takes: a writer takes all, a reader the smallest part.
    fn weight(&self, whole: usize) -> usize;

    fn says_held(&self) -> bool;
}

impl Says for WriteGuard {
    fn weight(&self, whole: usize) -> usize {
        whole
    }

    fn says_held(&self) -> bool {
        self.is_held()
    }
}

impl Says for ReadGuard {
    fn weight(&self, _: usize) -> usize {
        1
    }

    fn says_held(&self) -> bool {
        self.is_held()
    }
}

impl Says for Permit {
    fn weight(&self, _: usize) -> usize {
        usize::try_from(self.count()).expect("few permits")
    }

    fn says_held(&self) -> bool {
        self.is_held()
    }
}

/// The guards of one lock or semaphore.
pub(crate) struct Witness {
    /// More than the number of readers, or the number of permits.
    whole: usize,
    present: Mutex<Vec<Arc<dyn Says>>>,
}

impl Witness {
    pub(crate) fn of_lock() -> Arc<Witness> {
        Witness::of_permits(1_000)
    }

    pub(crate) fn of_permits(whole: usize) -> Arc<Witness> {
        Arc::new(Witness { whole, present: Mutex::new(Vec::new()) })
    }

    /// Works for a moment under the guard, and returns it.
    pub(crate) fn works<G: Says>(&self, guard: G) -> G {
        let guard = Arc::new(guard);
        self.comes(Arc::clone(&guard) as Arc<dyn Says>);
        thread::yield_now();
        let mut present = self.present.lock().expect("no panic");
        let me = Arc::as_ptr(&guard).cast::<()>();
        present.retain(|it| Arc::as_ptr(it).cast::<()>() != me);
        drop(present);
        Arc::into_inner(guard).expect("the last clone")
    }

    /// Adds a guard that others may keep for longer than it is held. [`Witness::forgets`] drops it.
    pub(crate) fn stays(&self, guard: impl Says) {
        self.comes(Arc::new(guard));
    }

    pub(crate) fn forgets(&self) {
        let all = std::mem::take(&mut *self.present.lock().expect("no panic"));
        drop(all);
    }

    fn comes(&self, me: Arc<dyn Says>) {
        let mut present = self.present.lock().expect("no panic");
        let held: usize = present.iter().filter(|it| it.says_held()).map(|it| it.weight(self.whole)).sum();
        // The new guard is asked last: if it is held now, it was held while the others were asked.
        if me.says_held() {
            assert!(held + me.weight(self.whole) <= self.whole, "held at once: {held} and {}", me.weight(self.whole));
        }
        present.push(me);
    }
}
