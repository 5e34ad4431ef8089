//! A kept node: a node that a process keeps between uses, until another contender asks for the node or the node was idle for too
//! long.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::contend::config::LockConfig;
use crate::contend::contender::Contender;
use crate::error::error::Error;
use crate::keep::uses::Uses;
use crate::observe::lock_paths;
use crate::observe::queue_view::QueueView;
use crate::queue::member::Blockers;
use crate::queue::mode::{Aim, Mode};
use crate::queue::turn;
use crate::session::contract::Session;
use crate::session::lease::Moment;
use crate::session::listing;
use crate::session::request::{Ending, Event, Loss, Watch};
use crate::session::retry::{self, spawn_cancellable};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, MutexGuard, Notify, OnceLock};
use crate::telemetry::log::emit;
use crate::telemetry::meter::{self, GaugeGuard};
use crate::telemetry::names;

/// The acquisition of a kept node. The uses that wait for the node poll this future, one at a time.
pub(crate) type AcquisitionFuture = Pin<Box<dyn Future<Output = Result<Arc<Contender>, Error>> + Send>>;

/// A kept node, from the start of its acquisition. Its uses follow one another or run at the same time.
pub(crate) struct KeptNode {
    /// The pointer is weak, because a task on the library's thread uses `KeptNode`. If the pointer were strong, that
    /// thread might drop the last pointer to the client. This drop closes the client and waits for the server, and the
    /// library's thread must not wait.
    config: Weak<LockConfig>,
    warn_waiting: Option<Duration>,
    pub(super) idle: Duration,
    /// Set if another contender asks for the node before the node has a second use. The next acquisition then keeps no node.
    in_vain: Arc<AtomicBool>,
    pub(super) state: Mutex<KeptState>,
    /// The error of the acquisition. Set before the waiting uses are refused.
    pub(super) error: OnceLock<Error>,
    /// The last listing of the queue by the acquisition. Timeout errors name the contenders of this listing.
    pub(super) view: Arc<QueueView>,
    /// Notified when a use begins to wait. The `Arc` lets a task await a notification without owning the node.
    pub(super) crowded: Arc<Notify>,
}

pub(super) struct KeptState {
    pub(super) uses: Uses<Waker>,
    /// The acquisition, until it ends. `None` while a use polls the acquisition, so that the state is not locked during the
    /// poll: the poll may wake another use, and that use may be polled on the same thread.
    pub(super) work: Option<AcquisitionFuture>,
    /// Set by a use that found no `work`, because another use was polling the acquisition. The other use then polls it again.
    is_wanted: bool,
    /// The hold, from the grant until the node is given up.
    pub(super) granted: Option<Arc<GrantedNode>>,
    /// The end of the last use, on the clock of the lease. Until a use has ended, this is the time of the grant.
    used: Moment,
    /// The first reason for which the node admits no further use.
    why: Option<GiveUpReason>,
    /// Counts the node in the metrics while it is kept.
    counted: Option<GaugeGuard>,
    /// Dropping this sender cancels the background task.
    background_task: Option<oneshot::Sender<()>>,
}

/// A granted node and its hold. Each running use owns a pointer to this value.
pub(super) struct GrantedNode {
    pub(super) kept: Arc<KeptNode>,
    pub(super) hold: Arc<Contender>,
}

/// Why a node is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GiveUpReason {
    /// Another contender asked this process to give the node up.
    Asked,
    /// The node was idle for too long.
    Idle,
    Lost,
    /// The lock handle was dropped, or the client was closed.
    Closed,
    /// An acquisition of this process cannot use the node: the node does not cover the mode, or the acquisition is that
    /// of a `MultiLock`, which uses no kept nodes.
    Replaced,
    /// A write under the node may still be carried out, a downgrade may be half done, or no watch reports whether other
    /// contenders ask for the node.
    Unsure,
}

impl GiveUpReason {
    pub(super) fn from_loss(loss: Loss) -> GiveUpReason {
        match loss {
            Loss::SessionOver(Ending::Closed) => GiveUpReason::Closed,
            _ => GiveUpReason::Lost,
        }
    }

    /// Returns the value of the label `cause` in the metrics.
    fn label(self) -> &'static str {
        match self {
            GiveUpReason::Asked => "asked",
            GiveUpReason::Idle => "idle",
            GiveUpReason::Lost => "lost",
            GiveUpReason::Closed => "closed",
            GiveUpReason::Replaced => "replaced",
            GiveUpReason::Unsure => "unsure",
        }
    }
}

/// The waker of the acquisition wakes all waiting uses.
impl Wake for KeptNode {
    fn wake(self: Arc<Self>) {
        let wakers = self.state.lock().uses.wakers();
        wake(wakers);
    }
}

impl KeptNode {
    /// Creates a kept node without an acquisition. The caller sets `work`.
    pub(crate) fn new(
        config: &Arc<LockConfig>,
        mode: Mode,
        idle: Duration,
        in_vain: &Arc<AtomicBool>,
    ) -> Arc<KeptNode> {
        let state = KeptState {
            uses: Uses::new(mode),
            work: None,
            is_wanted: false,
            granted: None,
            used: Moment::ZERO,
            why: None,
            counted: None,
            background_task: None,
        };
        Arc::new(KeptNode {
            config: Arc::downgrade(config),
            warn_waiting: config.warnings.after,
            idle,
            in_vain: Arc::clone(in_vain),
            state: Mutex::new(state),
            error: OnceLock::new(),
            view: Arc::default(),
            crowded: Arc::default(),
        })
    }

    /// Polls the acquisition. Returns whether the acquisition ended in this call. Every waiting use calls this
    /// function, so a use whose task is not polled does not delay the other uses.
    pub(super) fn poll_acquisition(self: &Arc<Self>) -> bool {
        let waker = Waker::from(Arc::clone(self));
        let answer = loop {
            let mut state = self.state.lock();
            let work = state.work.take();
            state.is_wanted = work.is_none();
            drop(state);
            let Some(mut work) = work else { return false };
            if let Poll::Ready(answer) = work.as_mut().poll(&mut Context::from_waker(&waker)) {
                break answer;
            }
            let mut state = self.state.lock();
            state.work = Some(work);
            let is_wanted = state.is_wanted;
            // If the last waiting use has left during the poll, `give_up_if_over` drops the acquisition.
            drop(self.give_up_if_over(state, Vec::new()));
            if !is_wanted {
                return false;
            }
        };
        self.view.clear();
        match answer {
            Ok(hold) => self.grant(hold),
            Err(error) => {
                let _first = self.error.set(error);
                let woken = self.state.lock().uses.fail();
                wake(woken);
            }
        }
        true
    }

    /// Stores the hold, and wakes the uses that may run.
    fn grant(self: &Arc<Self>, hold: Arc<Contender>) {
        let mut state = self.state.lock();
        state.used = hold.now();
        let path_label = Arc::clone(hold.node().path_label());
        state.granted = Some(Arc::new(GrantedNode { kept: Arc::clone(self), hold }));
        let is_closed = state.uses.is_closed;
        state.counted = (!is_closed).then(|| GaugeGuard::new(names::KEPT_NODES, None, Some(&path_label)));
        let woken = state.uses.grant();
        if is_closed {
            state.mark_closing();
        }
        drop(self.give_up_if_over(state, woken));
    }

    /// Closes the node to further uses. The node is given up when its last use ends, or now if it has no use.
    pub(crate) fn give_up(&self, why: GiveUpReason) {
        let mut state = self.state.lock();
        let woken = state.close(why);
        // Dropping the hold sends the removal of the node.
        drop(self.give_up_if_over(state, woken));
    }

    /// Handles another contender's request for the node: records in `in_vain` whether the request came before the node's
    /// second use. Does nothing if the node is closed already.
    fn record_ask(&self) {
        let state = self.state.lock();
        if !state.uses.is_closed {
            self.in_vain.store(state.uses.count_so_far() <= 1, Ordering::Release);
        }
    }

    /// Returns the hold, from the grant until the node is given up.
    pub(crate) fn granted_contender(&self) -> Option<Arc<Contender>> {
        self.state.lock().granted.as_ref().map(|granted| Arc::clone(&granted.hold))
    }

    /// Returns the kept node as the blocker that another use of this process waits for. Returns no blocker unless the
    /// node is held.
    pub(crate) fn as_blockers(&self) -> Blockers {
        let hold = self.granted_contender();
        hold.map(|it| lock_paths::blocked_by(&it.node_name(), it.node_data(), it.node().token())).unwrap_or_default()
    }

    /// Returns whether the node is held and has no use.
    pub(crate) fn is_unused(&self) -> bool {
        let state = self.state.lock();
        state.granted.is_some() && state.uses.is_idle()
    }

    /// Returns the number of running and waiting uses.
    pub(crate) fn use_count(&self) -> usize {
        self.state.lock().uses.len()
    }

    /// Waits until a use of this process waits for the node. Returns at once if the `KeptNode` was dropped.
    pub(super) async fn until_a_use_waits(kept: &Weak<KeptNode>) {
        let Some(crowded) = kept.upgrade().map(|kept| Arc::clone(&kept.crowded)) else { return };
        loop {
            // This future is made before the check, so that a use that begins to wait after the check is not missed.
            let crowded = crowded.notified();
            if kept.upgrade().is_none_or(|kept| !kept.state.lock().uses.waiting.is_empty()) {
                return;
            }
            crowded.await;
        }
    }

    /// Ends the use with this id. Returns the hold if the node is given up now.
    pub(super) fn end_use(&self, number: u64, hold: &Contender, now: Moment) -> Option<Arc<Contender>> {
        let mut state = self.state.lock();
        // A transaction of this writer whose outcome is unknown may still be carried out while the node exists. So the next
        // writer must not use the same node.
        let is_unsure = state.uses.mode == Mode::Write && hold.node().has_unsettled_write();
        let mut woken = if is_unsure { state.close(GiveUpReason::Unsure) } else { Vec::new() };
        woken.extend(state.uses.leave(number));
        state.used = state.used.max(now);
        self.give_up_if_over(state, woken)
    }

    /// Unlocks the state, and then calls the wakers `woken`. If the node is closed to further uses and its last use has
    /// ended, returns the hold, and counts and logs that the node is given up. If the node is not granted yet, drops
    /// the acquisition instead.
    ///
    /// With an idle time of zero, first closes a granted node that has no use.
    pub(super) fn give_up_if_over(
        &self,
        mut state: MutexGuard<'_, KeptState>,
        mut woken: Vec<Waker>,
    ) -> Option<Arc<Contender>> {
        if self.idle.is_zero() && state.granted.is_some() && state.uses.is_idle() {
            woken.extend(state.close(GiveUpReason::Idle));
        }
        let is_over = state.uses.is_over();
        // These values are dropped after the unlock, because the drop wakes the background task and may end the hold.
        let (granted, why) = (state.granted.take_if(|_| is_over), state.why);
        let parts = granted.as_ref().map(|_| (state.counted.take(), state.background_task.take()));
        let (uses, used) = (state.uses.count_so_far(), state.used);
        let dropped = state.work.take_if(|_| is_over);
        drop(state);
        wake(woken);
        if dropped.is_some() {
            self.view.clear();
        }
        let hold = Arc::clone(&granted?.hold);
        if let (Some((Some(_counted), _)), Some(why)) = (parts, why) {
            let (path, cause, idle_for) = (hold.user_path(), why.label(), hold.now().saturating_sub(used));
            meter::count(names::KEPT_GIVEN_UP, Some(hold.node().path_label()), &[("cause", cause)]);
            emit!(DEBUG, path, cause, uses, ?idle_for, "a kept lock is given up");
        }
        Some(hold)
    }

    /// Returns how much longer the node may stay idle. For a node with a use, this is the whole idle time.
    fn idle_time_left(&self, now: Moment) -> Duration {
        let state = self.state.lock();
        if state.granted.is_some() && state.uses.is_idle() {
            state.used.saturating_add(self.idle).saturating_sub(now)
        } else {
            self.idle
        }
    }

    /// Starts the background task that gives the node up. The acquisition calls this function once the node is created,
    /// perhaps before the grant. `asked` fires when another contender asks for the node. Without `asked`, the node is
    /// not kept.
    pub(crate) fn start_give_up_task(self: &Arc<Self>, entry: &Contender, asked: Option<Watch>) {
        let Some(watch) = asked else { return self.give_up(GiveUpReason::Unsure) };
        let ((node, session), kept) = (entry.node_and_session(), Arc::downgrade(self));
        let by = Arc::clone(&session);
        let background_task = spawn_cancellable(&by, async move {
            let why = tokio::select! {
                biased;
                event = watch => match event {
                    // The data of the directory changes only when a contender asks for the kept nodes. `LookAgain` means that a
                    // change may have been missed while the connection was lost.
                    Event::Changed | Event::LookAgain => GiveUpReason::Asked,
                    // Servers delete only empty directories. So if the directory is deleted, our node is gone.
                    Event::Deleted | Event::Over => GiveUpReason::Lost,
                },
                _ = node.until_lost(|pause| retry::sleep_fully(&session, pause)) => GiveUpReason::Lost,
                () = until_idle_too_long(&kept, &session) => GiveUpReason::Idle,
                () = wait_for_contention(&kept, &session) => GiveUpReason::Asked,
                never = warn_of_long_waits(&kept, &session) => match never {},
            };
            let why = node.detect_loss().map_or(why, GiveUpReason::from_loss);
            if let Some(kept) = kept.upgrade() {
                // The acquisition of a kept node asks for all kept nodes while it waits, and this request fires our own watch,
                // too. So after a request of our own, the event does not prove that another contender has asked. The node is
                // then given up, but `in_vain` stays as it is.
                if why == GiveUpReason::Asked && !node.read(|it| it.asked_itself) {
                    kept.record_ask();
                }
                kept.give_up(why);
            }
        });
        self.state.lock().background_task = Some(background_task);
    }
}

impl KeptState {
    /// Closes the node to further uses. Returns the wakers of the uses that are refused.
    fn close(&mut self, why: GiveUpReason) -> Vec<Waker> {
        self.why.get_or_insert(why);
        if !self.uses.is_closed && !self.uses.is_idle() {
            self.mark_closing();
        }
        self.uses.close()
    }

    /// Marks the node as about to be given up, so that other contenders of this process do not ask for it.
    fn mark_closing(&self) {
        if let Some(granted) = &self.granted {
            let (node, session) = granted.hold.node_and_session();
            session.store().mark_closing(&node);
        }
    }
}

/// Wakes the tasks that wait for uses. No mutex of this module may be locked, because a woken task may be polled inside
/// the call.
pub(super) fn wake(woken: Vec<Waker>) {
    woken.into_iter().for_each(Waker::wake);
}

/// The shortest time between two checks of a node: whether it was idle for too long, and whether its uses wait for too long.
const IDLE_PAUSE: Duration = Duration::from_millis(10);

/// The shortest and the longest pause between two listings of the queue. The pause is the idle time of the node within
/// these bounds. The listings find a contender that waits behind the node and whose request for the node was not
/// reported by the watch.
const QUEUE_PAUSES: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(600));

/// The time before a warning is divided into this number of intervals, with a check after each. A warning is logged
/// when the same use was the first waiting use at `CHECKS + 1` checks in a row.
const CHECKS: u32 = 4;

/// Waits until the node was idle for the time `idle` of the `KeptNode`. Returns early if the session is over, or if the
/// `KeptNode` was dropped.
async fn until_idle_too_long(kept: &Weak<KeptNode>, session: &Arc<dyn Session>) {
    // With an idle time of zero, the node is given up by the call that ends the last use, and not by this task.
    if kept.upgrade().is_some_and(|kept| kept.idle.is_zero()) {
        return std::future::pending().await;
    }
    loop {
        let now = session.lease().now();
        let Some(left) = kept.upgrade().map(|kept| kept.idle_time_left(now)) else { return };
        if left.is_zero() {
            return;
        }
        // While the node is in use, `left` is the whole idle time, so the task sleeps for the whole idle time between two checks.
        if !retry::sleep_fully(session, left.max(IDLE_PAUSE)).await {
            return;
        }
    }
}

/// Lists the queue in intervals until a contender waits behind the node. The watch may not have reported this
/// contender, because the contender lacks the permission to ask for the node, or the event was lost.
async fn wait_for_contention(kept: &Weak<KeptNode>, session: &Arc<dyn Session>) {
    while let Some(pause) = kept.upgrade().map(|kept| kept.idle.clamp(QUEUE_PAUSES.0, QUEUE_PAUSES.1)) {
        if !retry::sleep_fully(session, pause).await {
            return std::future::pending().await;
        }
        // The task takes only copies, because a pointer to the hold would delay the removal of the node after the last
        // use.
        let hold = kept.upgrade().and_then(|kept| kept.granted_contender());
        let place = hold.map(|hold| (hold.node_name(), Arc::clone(hold.directory())));
        let Some((me, directory)) = place else { continue };
        if let Ok(names) = listing::list(session, &directory).await
            && turn::first_excluded_waiter(&me, &names, false).is_some()
        {
            return;
        }
    }
    std::future::pending().await
}

/// Warns about uses that wait long for other uses of this node.
async fn warn_of_long_waits(kept: &Weak<KeptNode>, session: &Arc<dyn Session>) -> Infallible {
    // Uses have no timers of their own, because millions of uses may begin in a second. This task checks the first waiting use in
    // intervals instead.
    let (mut first, mut checks) = (None, 0);
    while let Some(limit) = kept.upgrade().and_then(|kept| kept.warn_waiting) {
        // While no use waits, the task has no timer and stays asleep.
        KeptNode::until_a_use_waits(kept).await;
        if !retry::sleep_fully(session, (limit / CHECKS).max(IDLE_PAUSE)).await {
            break;
        }
        let Some(kept) = kept.upgrade() else { break };
        let state = kept.state.lock();
        // Before the grant, uses wait for the node and not for other uses.
        let waits = state.granted.as_ref().and_then(|_| state.uses.first_waiting());
        let others = state.uses.waiting.len().saturating_sub(1);
        drop(state);
        checks = if waits == first { checks + 1 } else { 1 };
        first = waits;
        if let (Some((_, mode)), true, Some(config)) = (waits, checks == CHECKS + 1, kept.config.upgrade()) {
            config.warnings.warn(Aim::Lock(mode), None, &kept.as_blockers(), others);
        }
    }
    std::future::pending().await
}

#[cfg(all(test, not(shuttle)))]
mod tests;
