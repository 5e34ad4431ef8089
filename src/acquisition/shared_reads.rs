//! One READ node for many reads of a process; knows neither how a node is acquired nor what a queue is.
//!
//! Nothing here keeps a node: the node leaves with the last guard on it, and an [`Entry`] ends with the last read that
//! waits for it.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use tokio::sync::Notify;

use crate::acquisition::waiting::Waiting;
use crate::error::error::Error;
use crate::hold::hold::Hold;
use crate::session::lease::Moment;

/// A shared acquisition. Any of the reads that wait for it may poll it.
pub(crate) type Work = Pin<Box<dyn Future<Output = Result<Box<Hold>, Error>> + Send>>;

type Outcome = Result<Arc<Hold>, Error>;

/// What the reads of one lock share. If the age is zero, they share nothing.
pub(crate) struct SharedReads {
    max_age: Duration,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    granted: Option<Granted>,
    /// The acquisition under way, if a read waits for one.
    entry: Weak<Entry>,
}

/// A node that reads may join.
struct Granted {
    held: Weak<Hold>,
    /// No read joins from this moment on. It is a moment on the clock of the node's session.
    until: Moment,
}

impl SharedReads {
    pub(crate) fn new(max_age: Duration) -> SharedReads {
        SharedReads { max_age, state: Mutex::default() }
    }

    pub(crate) fn are_shared(&self) -> bool {
        !self.max_age.is_zero()
    }

    /// One more user of the node, if there is a node that is surely held and young enough.
    pub(crate) fn join(&self) -> Option<Arc<Hold>> {
        let (held, until) = self.state().granted.as_ref().map(|granted| (granted.held.upgrade(), granted.until))?;
        match held {
            Some(held) if held.now() < until && held.loss().is_none() => Some(held),
            unfit => {
                self.forget(unfit);
                None
            }
        }
    }

    /// As [`SharedReads::join`]. If there is nothing to join, gives the acquisition under way. `start` begins one if
    /// there is none.
    pub(crate) fn join_or_enter(&self, start: impl FnOnce() -> (Work, Arc<Waiting>)) -> Result<Arc<Hold>, Arc<Entry>> {
        loop {
            if let Some(held) = self.join() {
                return Ok(held);
            }
            let mut state = self.state();
            if state.granted.is_some() {
                continue; // another read was granted a node meanwhile
            }
            return Err(state.entry.upgrade().unwrap_or_else(|| {
                let (work, waiting) = start();
                let entry = Arc::new(Entry::new(work, waiting));
                state.entry = Arc::downgrade(&entry);
                entry
            }));
        }
    }

    /// Lets later reads join this hold, which was granted just now.
    pub(crate) fn offer(&self, held: &Arc<Hold>) {
        if !self.are_shared() {
            return;
        }
        let until = held.now().saturating_add(self.max_age);
        self.state().granted = Some(Granted { held: Arc::downgrade(held), until });
    }

    /// Waits until the shared acquisition has ended.
    ///
    /// # Cancel safety
    /// The acquisition goes on for as long as any read waits for it.
    pub(crate) async fn granted(&self, entry: &Entry) -> Outcome {
        loop {
            // Registered before the look, so that no change in between is missed.
            let mut changed = std::pin::pin!(entry.changed.0.notified());
            changed.as_mut().enable();
            if let Some(outcome) = self.advance(entry) {
                let held = outcome?;
                // The first read to look saw the grant, perhaps a while ago: the lock may have been lost since.
                return held.loss().map_or(Ok(held), |loss| Err(Error::Evicted(loss)));
            }
            changed.await;
        }
    }

    /// Polls the acquisition as far as it gets. Every read that waits for it does so. So a read that is not polled, or
    /// gives up, does not hold up the other reads.
    fn advance(&self, entry: &Entry) -> Option<Outcome> {
        let mut progress = entry.progress.lock().unwrap_or_else(PoisonError::into_inner);
        let work = match &mut *progress {
            Progress::Done(outcome) => return Some(outcome.clone()),
            Progress::UnderWay(work) => work,
        };
        let Poll::Ready(answer) = work.as_mut().poll(&mut Context::from_waker(&entry.waker)) else {
            return None;
        };
        let outcome = answer.map(Arc::from);
        // All reads that wait were woken to see this outcome. No further read may join them.
        self.state().entry = Weak::new();
        if let Ok(held) = &outcome {
            self.offer(held);
        }
        *progress = Progress::Done(outcome.clone());
        Some(outcome)
    }

    fn forget(&self, unfit: Option<Arc<Hold>>) {
        let mut state = self.state();
        let now = state.granted.as_ref().and_then(|granted| granted.held.upgrade());
        if now.as_ref().map(Arc::as_ptr) == unfit.as_ref().map(Arc::as_ptr) {
            state.granted = None;
        }
        // The state is unlocked before the holds are dropped: dropping the last hold sends requests.
        drop(state);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for SharedReads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedReads").field("max_age", &self.max_age).finish_non_exhaustive()
    }
}

/// A shared acquisition. When the last read that waits drops it, the acquisition is given up, or the hold that it was
/// granted.
pub(crate) struct Entry {
    progress: Mutex<Progress>,
    changed: Arc<Changed>,
    /// Wakes all reads that wait.
    waker: Waker,
    /// Where the acquisition waits, for the errors of the reads' timeouts.
    pub(crate) waiting: Arc<Waiting>,
}

enum Progress {
    UnderWay(Work),
    Done(Outcome),
}

struct Changed(Notify);

impl Wake for Changed {
    fn wake(self: Arc<Self>) {
        self.0.notify_waiters();
    }
}

impl Entry {
    fn new(work: Work, waiting: Arc<Waiting>) -> Entry {
        let changed = Arc::new(Changed(Notify::new()));
        let waker = Waker::from(Arc::clone(&changed));
        Entry { progress: Mutex::new(Progress::UnderWay(work)), changed, waker, waiting }
    }
}
