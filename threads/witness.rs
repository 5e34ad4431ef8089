//! A witness that keeps guards. It fails if the guards that say "held" at the same moment exclude each other, or have
//! more permits than the semaphore.

use std::sync::Arc;

use shuttle::sync::Mutex;
use shuttle::thread;
use zk_rwlock::semaphore::Permit;
use zk_rwlock::{ReadGuard, WriteGuard};

/// A guard of any kind, which the [`Witness`] asks for its share of the lock, and whether it is held.
pub(crate) trait Says: Send + Sync + 'static {
    /// Returns the share of the lock that the guard takes: a writer takes `whole`, a reader 1, and a permit's guard its
    /// number of permits.
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
    /// The largest sum of weights that may be held at the same time. For a semaphore this is its number of permits. For
    /// a lock it is more than the number of readers, so that a writer excludes all of them.
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

    /// Shows the guard to the witness while other threads run, and returns it.
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

    /// Adds a guard that stays with the witness even after its loss, until [`Witness::forgets`].
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
        // The new guard is asked after the others. If it is held now, it was held when they were asked.
        if me.says_held() {
            assert!(held + me.weight(self.whole) <= self.whole, "held at once: {held} and {}", me.weight(self.whole));
        }
        present.push(me);
    }
}
