//! An acquisition of a lock with [`keep`](crate::RwLockBuilder::keep): joins a node that the process keeps between
//! uses, or acquires a node to keep. A lock without `keep` uses nothing of this file.

use std::cell::Cell;
use std::future::{pending, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::call::Deadline;
use crate::contend::acquisition::{AcquireOptions, Acquisition};
use crate::error::error::Error;
use crate::keep::cache::{KeptNodeCache, KeptUseShare, PendingUse};
use crate::keep::kept::{AcquisitionFuture, KeptNode};
use crate::keep::uses::UseState;
use crate::observe::on_wait::WaitReporter;
use crate::observe::trace::{self, AcquireTrace};
use crate::queue::member::Progress;
use crate::queue::mode::Mode;
use crate::queue::turn::IfTaken;

/// Consumes tokio's cooperative budget, so that a task that acquires in a loop sometimes yields to other tasks. Only
/// every fourth call on a thread consumes a unit, because a use of a kept node is much shorter than the operations that
/// tokio counts.
pub(crate) fn poll_consume_budget(context: &mut Context<'_>) -> Poll<()> {
    thread_local!(static USES: Cell<u8> = const { Cell::new(0) });
    let uses = USES.get().wrapping_add(1);
    USES.set(uses);
    if !uses.is_multiple_of(4) { Poll::Ready(()) } else { pin!(tokio::task::consume_budget()).poll(context) }
}

/// Joins the newest kept node for a call of a `try_` method, which must not wait. Returns `None` if the call must enter
/// the queue with a node of its own. Fails with [`Error::WouldBlock`] if the node is granted, and other acquisitions
/// that use it exclude this one.
pub(crate) fn join_without_waiting(
    acquisition: &mut Acquisition,
    cache: &KeptNodeCache,
) -> Result<Option<KeptUseShare>, Error> {
    match cache.join_newest(acquisition.mode) {
        UseState::Runs(used) => {
            let _span = acquisition.begin_trace();
            return Ok(Some(begin_use(acquisition, used)));
        }
        UseState::Waits(waits) => {
            if waits.kept.granted_contender().is_some() {
                return acquisition.report_error(Err(Error::WouldBlock { blockers: waits.kept.as_blockers() }));
            }
            // Another use is acquiring the node, and may have to wait. This attempt must not wait, so it enters the queue
            // with a node of its own.
        }
        // The node has refused the use, or there is no node. An idle node that stayed could block the attempt, so it is
        // given up.
        UseState::Refused => cache.give_up_idle_node(),
    }
    Ok(None)
}

/// Waits until a use of a kept node (an acquisition by this process) runs, or until the deadline. Returns `None` if
/// this acquisition must enter the queue with a node of its own. There are three such cases:
/// - The next acquisition of this mode must keep no node, because another contender requested the last kept node before
///   the second use of that node.
/// - This acquisition is a write, and the kept node that it waited for has refused it.
/// - The process was forked.
pub(crate) async fn wait_for_use(
    acquisition: &mut Acquisition,
    cache: &KeptNodeCache,
    deadline: Option<Deadline>,
) -> Result<Option<KeptUseShare>, Error> {
    loop {
        let mut waits =
            match cache.join_newest_or_acquire(acquisition.mode, |kept| kept_node_acquisition(acquisition, kept)) {
                UseState::Runs(used) => return Ok(Some(used)),
                UseState::Refused => return Ok(None),
                UseState::Waits(waits) => waits,
            };
        let used = match deadline {
            None if acquisition.options.on_wait.is_none() => waits.wait().await?,
            // The future is boxed, because moving this large future would be most of the cost of a short wait.
            deadline => Box::pin(wait_for_pending_use(acquisition, &mut waits, deadline)).await?,
        };
        match used {
            Some(used) => return Ok(Some(used)),
            // A write that is refused after it has waited enters the queue with a node of its own, behind a contender
            // that asked for the kept node. Refused reads can share a new kept node.
            None if acquisition.mode == Mode::Write => return Ok(None),
            None => {}
        }
    }
}

/// Waits until the use runs or is refused. Fails at the deadline, if there is one. Meanwhile calls the `on_wait`
/// listener, if there is one.
async fn wait_for_pending_use(
    acquisition: &Acquisition,
    waits: &mut PendingUse,
    deadline: Option<Deadline>,
) -> Result<Option<KeptUseShare>, Error> {
    let kept = Arc::clone(&waits.kept);
    let reports = async {
        let Some(mut on_wait) = acquisition.options.on_wait.as_ref().map(WaitReporter::new) else {
            return pending().await;
        };
        tokio::select! {
            biased;
            // This future registers no waker, and needs none: the grant wakes the tasks of all waiting uses.
            () = poll_fn(|_| if kept.granted_contender().is_some() { Poll::Ready(()) } else { Poll::Pending }) => {}
            never = on_wait.report_changes(&acquisition.config.paths, &kept.view) => match never {},
        }
        let (path, uses) = (Arc::clone(&acquisition.config.directory), kept.use_count());
        on_wait.report_progress(Progress { path, place: uses, length: uses, blockers: kept.as_blockers() });
        pending().await
    };
    match acquisition.await_until_deadline(deadline, &kept.view, reports, waits.wait()).await {
        // The node was granted already, so this use has waited for other uses of this process. The error names their node.
        Err(Error::Timeout { waited, cut_off, .. }) if kept.granted_contender().is_some() => {
            Err(Error::Timeout { waited, blockers: kept.as_blockers(), cut_off })
        }
        answer => answer,
    }
}

/// Returns the acquisition of a kept node. It is shared by all uses (acquisitions by this process) that wait for the
/// node. It has no timeout, because each use has a timeout of its own. A use that times out reads the contenders ahead
/// from `kept.view`.
fn kept_node_acquisition(first: &Acquisition, kept: &Arc<KeptNode>) -> AcquisitionFuture {
    let options = AcquireOptions { label: first.options.label.clone(), ..AcquireOptions::default() };
    let mut all = Acquisition::new(Arc::clone(&first.config), first.mode, options);
    let shared = Arc::downgrade(kept);
    all.on_node_created = Some(Box::new(move |entry, asked| {
        if let Some(kept) = shared.upgrade() {
            kept.start_give_up_task(entry, asked);
        }
    }));
    let span = all.begin_trace();
    let view = Arc::clone(&kept.view);
    let work = async move { all.enter_and_wait(IfTaken::Wait, Some(&view)).await };
    AcquireTrace::instrument(span, Box::pin(work))
}

/// Starts a use of a kept node (an acquisition by this process): reports the grant to tracing and metrics, and starts
/// the time limit and the trace of the use.
pub(crate) fn begin_use(acquisition: &Acquisition, mut used: KeptUseShare) -> KeptUseShare {
    trace::count_grant(acquisition.aim(), used.contender().node().path_label(), "kept");
    acquisition.trace.record_span_field("sequence", used.contender().node_name().sequence());
    used.start_limit_and_trace(acquisition.begin_hold_trace(used.contender()));
    used
}
