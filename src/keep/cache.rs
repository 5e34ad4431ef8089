//! How the acquisitions of one process share a node that it keeps: which of them acquires it, and which join it.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use crate::contend::request::{Handle, WaitReport};
use crate::contend::tenure::Tenure;
use crate::error::error::Error;
use crate::keep::kept::{Kept, KeptUse, WaitingUse, Why};
use crate::keep::uses::Joined;
use crate::queue::mode::Mode;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, OnceLock, SharedMutex};

/// The acquisition of a node that is to be kept. Any of the uses that wait for it may poll it.
pub(crate) type Work = Pin<Box<dyn Future<Output = Result<Box<Tenure>, Error>> + Send>>;

/// The nodes that one lock's handle keeps.
pub(crate) struct Cache {
    handle: Arc<Handle>,
    idle: Duration,
    /// The newest node. Only this one is joined.
    newest: SharedMutex<Option<Arc<Entry>>>,
    /// Whether the last node of this mode was kept in vain: then the next use keeps nothing.
    reads_in_vain: Arc<AtomicBool>,
    writes_in_vain: Arc<AtomicBool>,
}

impl Cache {
    pub(crate) fn new(handle: &Arc<Handle>, idle: Duration) -> Cache {
        let (reads_in_vain, writes_in_vain) = (Arc::default(), Arc::default());
        Cache { handle: Arc::clone(handle), idle, newest: SharedMutex::default(), reads_in_vain, writes_in_vain }
    }

    /// Joins the newest node, if it covers this mode and is still kept.
    pub(crate) fn join(&self, mode: Mode) -> Joined<KeptUse, WaitingEntry> {
        // Millions of times a second: no clone of the entry, which all tasks would count in one place.
        let newest = self.newest.read();
        let used = newest.as_ref().and_then(|entry| entry.kept.join_now(mode));
        drop(newest);
        if let Some(used) = used.filter(|used| used.hold().held_at().is_some()) {
            return Joined::Runs(used);
        }
        let newest = self.newest.write().clone();
        newest.map_or(Joined::Refused, |entry| entry.join(mode))
    }

    /// As [`Cache::join`]. If there is nothing to join, begins to acquire a node, unless that has not paid off lately.
    pub(crate) fn join_or_begin(
        &self,
        mode: Mode,
        begin: impl Fn(&Arc<Kept>) -> (Work, Arc<WaitReport>),
    ) -> Joined<KeptUse, WaitingEntry> {
        loop {
            let before = self.newest.write().clone();
            match before.as_ref().map_or(Joined::Refused, |entry| entry.join(mode)) {
                Joined::Refused => {}
                found => return found,
            }
            let Some(kept) = self.begins(mode) else {
                self.replaced(before);
                return Joined::Refused;
            };
            let (work, waiting) = begin(&kept);
            let entry = Entry::new(kept, work, waiting);
            let found = entry.join(mode);
            let mut newest = self.newest.write();
            // Another use may have been as fast.
            if newest.as_ref().map(Arc::as_ptr) == before.as_ref().map(Arc::as_ptr) {
                *newest = Some(entry);
                drop(newest);
                self.replaced(before);
                return found;
            }
        }
    }

    /// A node of this mode that may be kept; `None` if the last one was kept in vain.
    fn begins(&self, mode: Mode) -> Option<Arc<Kept>> {
        let in_vain = match mode {
            Mode::Read => &self.reads_in_vain,
            Mode::Write => &self.writes_in_vain,
        };
        let keeps = !in_vain.swap(false, Ordering::AcqRel);
        keeps.then(|| Kept::new(&self.handle, mode, self.idle, in_vain))
    }

    /// Gives the newest node up if it is idle, because it does not cover what this process wants now.
    pub(crate) fn let_go(&self) {
        let newest = self.newest.write().take_if(|entry| entry.kept.is_unused());
        self.replaced(newest);
    }

    /// This node is not joined any more.
    fn replaced(&self, entry: Option<Arc<Entry>>) {
        entry.iter().for_each(|entry| entry.kept.give_up(Why::Replaced));
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        let newest = self.newest.write().take();
        if let Some(entry) = newest {
            entry.kept.give_up(Why::Closed);
        }
    }
}

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache").field("idle", &self.idle).finish_non_exhaustive()
    }
}

/// A node that is kept, from the beginning of its acquisition.
pub(crate) struct Entry {
    kept: Arc<Kept>,
    /// The acquisition, until it is granted, or has failed, or is given up. Locked while it is polled. Whatever the poll
    /// does may have another use looked at, on the same thread: so nothing waits for this lock.
    work: Mutex<Option<Work>>,
    /// A use was to poll the acquisition and has found it locked. The use that polls it now polls it once more.
    is_wanted: AtomicBool,
    /// Why the acquisition failed, from before its uses are refused.
    error: OnceLock<Error>,
    /// Wakes all uses that wait.
    waker: Waker,
    /// Where the acquisition waits, for the errors of the uses' timeouts.
    pub(crate) waiting: Arc<WaitReport>,
}

struct WakeAll(Weak<Kept>);

impl Wake for WakeAll {
    fn wake(self: Arc<Self>) {
        if let Some(kept) = self.0.upgrade() {
            kept.wake_waiting();
        }
    }
}

impl Entry {
    fn new(kept: Arc<Kept>, work: Work, waiting: Arc<WaitReport>) -> Arc<Entry> {
        let waker = Waker::from(Arc::new(WakeAll(Arc::downgrade(&kept))));
        let (work, is_wanted, error) = (Mutex::new(Some(work)), AtomicBool::new(false), OnceLock::new());
        Arc::new(Entry { kept, work, is_wanted, error, waker, waiting })
    }

    fn join(self: &Arc<Self>, mode: Mode) -> Joined<KeptUse, WaitingEntry> {
        match self.kept.join(mode) {
            Joined::Runs(used) => Joined::Runs(used),
            Joined::Waits(waiting) => Joined::Waits(WaitingEntry { entry: Arc::clone(self), waiting: Some(waiting) }),
            Joined::Refused => Joined::Refused,
        }
    }

    /// Polls the acquisition as far as it gets. Every use that waits for it does so. So a use that is not polled, or
    /// gives up, does not hold up the others. Returns whether it has ended just now.
    fn advance(&self) -> bool {
        let (ended, answer) = loop {
            self.is_wanted.store(true, Ordering::SeqCst);
            // It may even be this use that polls it now, further up the stack.
            let Some(mut work) = self.work.try_lock() else { return false };
            self.is_wanted.store(false, Ordering::SeqCst);
            let Some(under_way) = work.as_mut() else { return false };
            if let Poll::Ready(answer) = under_way.as_mut().poll(&mut Context::from_waker(&self.waker)) {
                break (work.take(), answer);
            }
            drop(work);
            if self.is_wanted.load(Ordering::SeqCst) {
                continue;
            }
            // The last use that waits for it may have left meanwhile.
            if self.kept.is_abandoned() {
                self.abandon();
            }
            return false;
        };
        drop(ended);
        self.waiting.ends();
        match answer {
            Ok(hold) => self.kept.granted(Arc::from(hold)),
            Err(error) => {
                let _first = self.error.set(error);
                self.kept.failed();
            }
        }
        true
    }

    /// No use waits any more, so the acquisition is given up. A use that polls it now does that afterwards.
    fn abandon(&self) {
        let work = self.work.try_lock().and_then(|mut work| work.take());
        if work.is_some() {
            self.waiting.ends();
            self.kept.failed();
        }
        drop(work);
    }
}

/// A use that waits for the node to be acquired, or for other uses of its process. Dropping it ends the wait. If it was
/// the last one that waited for the acquisition, the acquisition is given up.
pub(crate) struct WaitingEntry {
    entry: Arc<Entry>,
    waiting: Option<WaitingUse>,
}

impl WaitingEntry {
    /// Where the acquisition waits.
    pub(crate) fn waiting(&self) -> &Arc<WaitReport> {
        &self.entry.waiting
    }

    /// The node that it waits for.
    pub(crate) fn kept(&self) -> &Arc<Kept> {
        &self.entry.kept
    }

    /// Waits until the use may run; `None` if the node is not kept any more.
    ///
    /// # Cancel safety
    /// Nothing is lost by dropping the future.
    pub(crate) async fn granted(&mut self) -> Result<Option<KeptUse>, Error> {
        poll_fn(|context| self.poll(context)).await
    }

    /// Waits until the use may run, or is refused, or waits for others under a node that is granted.
    ///
    /// # Cancel safety
    /// Nothing is lost by dropping the future.
    pub(crate) async fn settled(&mut self) -> Result<Joined<KeptUse, ()>, Error> {
        poll_fn(|context| match self.poll(context) {
            Poll::Pending if self.waiting.as_ref().is_some_and(|it| it.is_granted) => {
                Poll::Ready(Ok(Joined::Waits(())))
            }
            answer => answer.map_ok(|used| used.map_or(Joined::Refused, Joined::Runs)),
        })
        .await
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<KeptUse>, Error>> {
        loop {
            let Some(waiting) = &mut self.waiting else { return Poll::Ready(Ok(None)) };
            match waiting.poll(context.waker()) {
                Poll::Ready(Some(used)) => return Poll::Ready(Ok(Some(used))),
                Poll::Ready(None) => return Poll::Ready(self.entry.error.get().cloned().map_or(Ok(None), Err)),
                Poll::Pending if !waiting.is_granted && self.entry.advance() => {}
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}

impl Drop for WaitingEntry {
    fn drop(&mut self) {
        // Nobody polls the acquisition of a node that is granted.
        let was_granted = self.waiting.take().is_some_and(|it| it.is_granted);
        // Whatever woke this use to poll the acquisition has woken all others, too.
        if !was_granted && self.entry.kept.is_abandoned() {
            self.entry.abandon();
        }
    }
}
