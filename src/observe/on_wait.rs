//! Reports the progress of a wait to the user's listener, which [`on_wait`](crate::Acquire::on_wait) sets.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use crate::observe::lock_paths::LockPaths;
use crate::observe::queue_view::{QueueView, next_listing};
use crate::queue::member::Progress;
use crate::queue::node_name::NodeName;
use crate::session::contract::Session;
use crate::session::listing;
use crate::sync::Mutex;
use crate::telemetry::debug::debug;

/// The shortest pause before the queue is listed only for the listener.
const PAUSE_MIN: Duration = Duration::from_secs(1);

/// The user's function, which is called when the progress of the wait changes.
#[derive(Clone)]
pub(crate) struct ProgressListener(Arc<Mutex<Box<Callback>>>);

type Callback = dyn FnMut(&Progress) + Send;

impl ProgressListener {
    pub(crate) fn new(callback: impl FnMut(&Progress) + Send + 'static) -> ProgressListener {
        ProgressListener(Arc::new(Mutex::new(Box::new(callback))))
    }
}

/// The listener of one waiting acquisition, and the progress that it was last called with.
pub(crate) struct WaitReporter {
    listener: ProgressListener,
    reported: Option<Progress>,
}

impl WaitReporter {
    pub(crate) fn new(listener: &ProgressListener) -> WaitReporter {
        WaitReporter { listener: listener.clone(), reported: None }
    }

    /// Calls the listener when a listing of the queue shows other progress than at the last call. Uses the newest
    /// listing that the acquisition has made for itself. Until the acquisition makes another one, also lists the queue
    /// at intervals. Never returns.
    pub(crate) async fn report_changes(&mut self, paths: &LockPaths, view: &QueueView) -> Infallible {
        let mut waits = next_listing(view, 0).await;
        loop {
            self.report_if_changed(&waits.session, paths, waits.seen.clone()).await;
            waits = tokio::select! {
                biased;
                later = next_listing(view, waits.listings) => later,
                never = self.list_at_intervals(&waits.session, paths, &waits.me) => match never {},
            };
        }
    }

    /// Calls the listener with the progress `seen`, unless only the length of the queue has changed since the last
    /// call. Before it calls the listener, reads the nodes of the contenders that the waiter waits for.
    async fn report_if_changed(&mut self, session: &Arc<dyn Session>, paths: &LockPaths, seen: Progress) {
        if let Some(reported) = self.reported.as_mut().filter(|reported| reported.looks_same_as(&seen)) {
            reported.length = seen.length;
            return;
        }
        let blockers = paths.read_blocker_nodes(session, seen.blockers).await;
        self.report_progress(Progress { blockers, ..seen });
    }

    /// Calls the listener with this progress. Sends nothing.
    pub(crate) fn report_progress(&mut self, progress: Progress) {
        self.listener.0.lock()(&progress);
        self.reported = Some(progress);
    }

    /// Lists the queue at intervals, and calls the listener when the progress changes. Never returns.
    async fn list_at_intervals(&mut self, session: &Arc<dyn Session>, paths: &LockPaths, me: &NodeName) -> Infallible {
        loop {
            session.sleep(self.listing_interval()).await;
            // An error of the listing is ignored. If the error lasts, the acquisition itself reports it.
            if let Ok(names) = listing::list(session, &paths.queue).await {
                let seen = paths.read_progress(session, &names, me).await;
                self.report_if_changed(session, paths, seen).await;
            }
        }
    }

    /// Returns the interval between two listings. Each listing returns the names of all n waiters, where n is the
    /// length of the queue at the last listing. So waiters further back list less often: the waiter at place p lists
    /// every p * n milliseconds, but at most once a second. All waiters together then list at most 1000 * (1 + 1/2 +
    /// ... + 1/n) names a second, which is about 10,000 if n is 12,000.
    fn listing_interval(&self) -> Duration {
        let size = self.reported.as_ref().map_or(0, |reported| reported.place.saturating_mul(reported.length));
        let by_size = Duration::from_millis(u64::try_from(size).unwrap_or(u64::MAX));
        by_size.max(PAUSE_MIN)
    }
}

debug!(ProgressListener as "ProgressListener", |_it|);
