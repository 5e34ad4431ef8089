//! A kept node: a node that a process keeps in ZooKeeper between uses (acquisitions of the lock by this process).
//! [`GiveUpReason`] lists the reasons for which the process gives the node up.

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
use crate::queue::mode::{AcquisitionAim, Mode};
use crate::queue::turn;
use crate::session::contract::Session;
use crate::session::lease::Moment;
use crate::session::listing;
use crate::session::request::{Loss, SessionEnd, Watch, WatchEvent};
use crate::session::retry::spawn_cancellable;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, MutexGuard, Notify, OnceLock};
use crate::telemetry::log::emit;
use crate::telemetry::meter::{self, GaugeGuard};
use crate::telemetry::{names, user_thread};

/// The future that acquires a kept node. All uses (acquisitions by this process) that wait for the node poll this
/// future, one at a time.
pub(crate) type AcquisitionFuture = Pin<Box<dyn Future<Output = Result<Arc<Contender>, Error>> + Send>>;

/// A kept node, from the start of its acquisition. Uses of the node run one after the other, or, if all of them read,
/// at the same time.
pub(crate) struct KeptNode {
    /// The pointer is weak, because the configuration owns the client, and a task on the library's thread owns this
    /// `KeptNode` for moments. If that task dropped the last pointer to the client, the drop would wait for the server,
    /// and the library's thread must not wait.
    config: Weak<LockConfig>,
    warn_waiting: Option<Duration>,
    pub(super) idle: Duration,
    /// The flag of `KeptNodeCache::in_vain` for the mode of this node. A request of another contender for the node sets
    /// the flag if the node has had at most one use, or else clears the flag.
    in_vain: Arc<AtomicBool>,
    pub(super) state: Mutex<KeptState>,
    /// The error of the acquisition, if the acquisition has failed. Set before the waiting uses are refused.
    pub(super) error: OnceLock<Error>,
    /// The last listing of the queue by the acquisition, cleared when the acquisition ends. It names the contenders
    /// ahead for timeout errors and `on_wait` listeners.
    pub(super) view: Arc<QueueView>,
    /// Notified when a use (an acquisition by this process) begins to wait for the node. A task clones this `Arc`, so
    /// it can await a notification without owning the node.
    pub(super) crowded: Arc<Notify>,
}

pub(super) struct KeptState {
    pub(super) uses: Uses<Waker>,
    /// The future that acquires the node, until it ends or is dropped. A use (an acquisition by this process) takes the
    /// future out for each poll, because the state must not be locked during the poll. The poll may wake another use,
    /// and that use may be polled on the same thread.
    pub(super) work: Option<AcquisitionFuture>,
    /// Set by a waiting use (an acquisition by this process) that wanted to poll `work` while another use polled it.
    /// The other use then polls `work` once more.
    is_wanted: bool,
    /// The granted node, from the grant until the node is given up.
    pub(super) granted: Option<Arc<GrantedNode>>,
    /// The time, on the clock of the lease, at which the latest use (an acquisition by this process) ended. Until a use
    /// has ended, this is the time of the grant.
    used: Moment,
    /// The reason of the first call of [`KeptState::close`].
    why: Option<GiveUpReason>,
    /// Counts the node in the metrics from the grant until the node is given up. `None` if the node was closed before
    /// the grant.
    counted: Option<GaugeGuard>,
    /// Dropping this sender cancels the background task.
    background_task: Option<oneshot::Sender<()>>,
}

/// A granted node and its contender. Each running use owns an `Arc` of this value.
pub(super) struct GrantedNode {
    pub(super) kept: Arc<KeptNode>,
    pub(super) hold: Arc<Contender>,
}

/// Why a kept node is given up, which removes the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GiveUpReason {
    /// A contender has requested that kept nodes be given up, may have done so, or waits behind the node.
    Asked,
    /// The node was idle for the time that the user has set.
    Idle,
    Lost,
    /// All clones of the lock handle were dropped, or the client was closed.
    Closed,
    /// An acquisition of this process cannot use the node, for example because the node does not cover the mode, or
    /// because the acquisition is that of a `MultiLock`, which uses no kept nodes.
    Replaced,
    /// A write under the node may still be carried out, or a downgrade may be half done. Or the process has no watch
    /// that reports requests of other contenders for the node.
    Unsure,
}

impl GiveUpReason {
    pub(super) fn from_loss(loss: Loss) -> GiveUpReason {
        match loss {
            Loss::SessionOver(SessionEnd::Closed) => GiveUpReason::Closed,
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

/// A `KeptNode` is the waker of its own acquisition. This waker wakes all uses (acquisitions by this process) that wait
/// for the node, because each of them can poll the node's acquisition.
impl Wake for KeptNode {
    fn wake(self: Arc<Self>) {
        let wakers = self.state.lock().uses.wakers();
        wake_all(wakers);
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

    /// Polls the node's acquisition, unless another use (an acquisition by this process) is polling it. Returns whether
    /// the node's acquisition ended in this call. Every use that waits for the node calls this function. So if the task
    /// of one use is not polled, the other uses are not delayed.
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
            // If the last waiting use has left during the poll, `give_up_if_closed_and_unused` drops the acquisition.
            drop(self.give_up_if_closed_and_unused(state, Vec::new()));
            if !is_wanted {
                return false;
            }
        };
        self.view.clear();
        match answer {
            Ok(hold) => self.record_grant(hold),
            Err(error) => {
                let _first = self.error.set(error);
                let woken = self.state.lock().uses.record_failure();
                wake_all(woken);
            }
        }
        true
    }

    /// Stores the granted contender `hold`, and wakes all waiting uses (acquisitions by this process): those that now
    /// run, and those that go on waiting, whose listeners hear of the grant. If the node has no use and must not stay
    /// idle, gives the node up.
    fn record_grant(self: &Arc<Self>, hold: Arc<Contender>) {
        let mut state = self.state.lock();
        state.used = hold.lease_now();
        let path_label = Arc::clone(hold.node().path_label());
        state.granted = Some(Arc::new(GrantedNode { kept: Arc::clone(self), hold }));
        let is_closed = state.uses.is_closed;
        state.counted = (!is_closed).then(|| GaugeGuard::new(names::KEPT_NODES, None, Some(&path_label)));
        let mut woken = state.uses.record_grant();
        woken.extend(state.uses.wakers());
        if is_closed {
            state.mark_closing();
        }
        drop(self.give_up_if_closed_and_unused(state, woken));
    }

    /// Closes the node to further uses (acquisitions by this process), and refuses waiting uses as [`Uses::close`]
    /// does. If the node has no use, gives it up now. Otherwise it is given up when its last use ends.
    pub(crate) fn give_up(&self, why: GiveUpReason) {
        let mut state = self.state.lock();
        let woken = state.close(why);
        // Dropping the contender sends the removal of the node.
        drop(self.give_up_if_closed_and_unused(state, woken));
    }

    /// Handles another contender's request for the node: records in `in_vain` whether the request came before the node's
    /// second use. Does nothing if the node is closed already.
    fn record_ask(&self) {
        let state = self.state.lock();
        if !state.uses.is_closed {
            self.in_vain.store(state.uses.joined_so_far() <= 1, Ordering::Release);
        }
    }

    /// Returns the contender of the granted node. `None` before the grant, and after the node was given up.
    pub(crate) fn granted_contender(&self) -> Option<Arc<Contender>> {
        self.state.lock().granted.as_ref().map(|granted| Arc::clone(&granted.hold))
    }

    /// Returns the kept node as the blocker of an acquisition by this process that waits until other acquisitions have
    /// used the node. Returns no blocker if the node is not granted yet or was given up.
    pub(crate) fn as_blockers(&self) -> Blockers {
        let hold = self.granted_contender();
        hold.map(|it| lock_paths::blockers_from_holder(&it.node_name(), it.node_data(), it.node().token()))
            .unwrap_or_default()
    }

    /// Returns whether the node is granted, and no use of it runs or waits.
    pub(crate) fn is_unused(&self) -> bool {
        let state = self.state.lock();
        state.granted.is_some() && state.uses.is_idle()
    }

    /// Returns the number of running and waiting uses.
    pub(crate) fn use_count(&self) -> usize {
        self.state.lock().uses.len()
    }

    /// Waits until an acquisition by this process waits for the node. Returns immediately if the `KeptNode` is already
    /// dropped.
    pub(super) async fn until_a_use_waits(kept: &Weak<KeptNode>) {
        let Some(crowded) = kept.upgrade().map(|kept| Arc::clone(&kept.crowded)) else { return };
        loop {
            // A call of `notify_waiters` wakes only futures that exist at the call. So this future is made before the
            // check, and no use that begins to wait after the check is missed.
            let crowded = crowded.notified();
            if kept.upgrade().is_none_or(|kept| !kept.state.lock().uses.waiting.is_empty()) {
                return;
            }
            crowded.await;
        }
    }

    /// Ends one share of the use with this id. If this gives the node up, returns the node's contender, which the
    /// caller must give back or drop.
    pub(super) fn end_share(&self, number: u64, hold: &Contender, now: Moment) -> Option<Arc<Contender>> {
        let mut state = self.state.lock();
        // A transaction under this WRITE node whose outcome is unknown may still be carried out while the node exists.
        // So no later write of this process may use the node.
        let is_unsure = state.uses.mode == Mode::Write && hold.node().has_unsettled_write();
        let mut woken = if is_unsure { state.close(GiveUpReason::Unsure) } else { Vec::new() };
        woken.extend(state.uses.end_share(number));
        state.used = state.used.max(now);
        self.give_up_if_closed_and_unused(state, woken)
    }

    /// Unlocks the state, and then calls the wakers `woken`. If the node is closed and has no use, returns its
    /// contender, or drops the acquisition if the node is not granted yet. If the node was counted as kept, the end is
    /// counted and logged.
    ///
    /// With an idle time of zero, first closes a granted node that has no use.
    pub(super) fn give_up_if_closed_and_unused(
        &self,
        mut state: MutexGuard<'_, KeptState>,
        mut woken: Vec<Waker>,
    ) -> Option<Arc<Contender>> {
        if self.idle.is_zero() && state.granted.is_some() && state.uses.is_idle() {
            woken.extend(state.close(GiveUpReason::Idle));
        }
        let is_over = state.uses.is_over();
        // These values are dropped after the unlock. Dropping the sender `background_task` wakes the background task,
        // and dropping the acquisition may remove its node and call wakers.
        let (granted, why) = (state.granted.take_if(|_| is_over), state.why);
        let parts = granted.as_ref().map(|_| (state.counted.take(), state.background_task.take()));
        let (uses, used) = (state.uses.joined_so_far(), state.used);
        let dropped = state.work.take_if(|_| is_over);
        drop(state);
        wake_all(woken);
        if dropped.is_some() {
            self.view.clear();
        }
        let hold = Arc::clone(&granted?.hold);
        if let (Some((Some(_counted), _)), Some(why)) = (parts, why) {
            let (path, cause, idle_for) = (hold.user_path(), why.label(), hold.lease_now().saturating_sub(used));
            meter::increment_counter(names::KEPT_GIVEN_UP, Some(hold.node().path_label()), &[("cause", cause)]);
            emit!(DEBUG, path, cause, uses, ?idle_for, "a kept lock is given up");
        }
        Some(hold)
    }

    /// Returns how much longer the node may stay idle. For a node that has a use or is not granted, this is the whole
    /// idle time.
    fn idle_time_left(&self, now: Moment) -> Duration {
        let state = self.state.lock();
        if state.granted.is_some() && state.uses.is_idle() {
            state.used.saturating_add(self.idle).saturating_sub(now)
        } else {
            self.idle
        }
    }

    /// Starts the background task that gives the node up. Called once the node exists, before the grant. `asked` is the
    /// watch on the lock's directory, which fires when a contender requests that kept nodes be given up. Without this
    /// watch, the node is closed to further uses, and no task starts.
    pub(crate) fn start_give_up_task(self: &Arc<Self>, entry: &Contender, asked: Option<Watch>) {
        let Some(watch) = asked else { return self.give_up(GiveUpReason::Unsure) };
        let ((node, session), kept) = (entry.node_and_session(), Arc::downgrade(self));
        let by = Arc::clone(&session);
        let background_task = spawn_cancellable(&by, async move {
            let why = tokio::select! {
                biased;
                event = watch => match event {
                    // Clients write the data of the directory only to request kept nodes. `LookAgain` means that a
                    // write may have been missed while the connection was lost.
                    WatchEvent::Changed | WatchEvent::LookAgain => GiveUpReason::Asked,
                    // A server deletes only an empty directory. So if the directory is deleted, our node is gone.
                    // `Over` means that the session has ended.
                    WatchEvent::Deleted | WatchEvent::Over => GiveUpReason::Lost,
                },
                _ = node.until_lost(|pause| session.sleep(pause)) => GiveUpReason::Lost,
                () = until_idle_too_long(&kept, &session) => GiveUpReason::Idle,
                () = wait_for_contention(&kept, &session) => GiveUpReason::Asked,
                never = warn_of_long_waits(&kept, &session) => match never {},
            };
            let why = node.detect_loss().map_or(why, GiveUpReason::from_loss);
            if let Some(kept) = kept.upgrade() {
                // While it waited, the acquisition of this node may have requested kept nodes itself, which fires our
                // own watch, too. The event then does not prove that another contender has asked. So the node is given
                // up, but `in_vain` stays as it is.
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
    /// Closes the node to further uses (acquisitions by this process). If the node was closed before, keeps the reason
    /// of that earlier call. Returns the wakers of the uses that are refused.
    fn close(&mut self, why: GiveUpReason) -> Vec<Waker> {
        self.why.get_or_insert(why);
        if !self.uses.is_closed && !self.uses.is_idle() {
            self.mark_closing();
        }
        self.uses.close()
    }

    /// Tells the session that the node is about to be given up, so that other contenders of this process do not request
    /// it. Does nothing before the grant.
    fn mark_closing(&self) {
        if let Some(granted) = &self.granted {
            let (node, session) = granted.hold.node_and_session();
            session.store().mark_node_closing(&node);
        }
    }
}

/// Calls the wakers of the uses (acquisitions by this process) that wait for a kept node. The caller must not have
/// locked the state of a kept node, because a waker may poll a use inside this call.
pub(super) fn wake_all(woken: Vec<Waker>) {
    // A waker that panics must not fail the use whose poll has led here, or keep the others from being woken.
    woken.into_iter().for_each(|waker| _ = user_thread::catch_panic(|| waker.wake()));
}

/// The shortest pause between two checks whether a node was idle for too long, or whether its uses wait for too long.
const IDLE_PAUSE: Duration = Duration::from_millis(10);

/// The shortest and the longest pause between two listings of the queue. The pause is the idle time of the node within
/// these bounds. The listings find a contender behind the node whose request for the node was not sent, or was not
/// reported by the watch.
const QUEUE_PAUSES: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(600));

/// How often the first waiting use is checked within `warn_waiting`, the time after which a warning is due. The warning
/// is logged when the same use was the first waiting use at `CHECKS + 1` checks in a row.
const CHECKS: u32 = 4;

/// Waits until the node was idle for the time `idle` of the `KeptNode`. Returns early if the session is over, or if the
/// `KeptNode` was dropped. Never returns if `idle` is zero.
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
        session.sleep(left.max(IDLE_PAUSE)).await;
    }
}

/// Lists the queue in intervals until a contender waits behind the node. The watch may have missed this contender,
/// because the contender lacks the permission to write the directory, or the event was lost. Never returns once the
/// session is over or the `KeptNode` is dropped.
async fn wait_for_contention(kept: &Weak<KeptNode>, session: &Arc<dyn Session>) {
    while let Some(pause) = kept.upgrade().map(|kept| kept.idle.clamp(QUEUE_PAUSES.0, QUEUE_PAUSES.1)) {
        session.sleep(pause).await;
        // The task copies the name and the directory, and drops `hold`. If it kept `hold` during the listing, that
        // could delay the removal of the node after the last use.
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

/// Logs a warning if the first waiting use has waited for other uses of this node for `warn_waiting`. Never returns.
async fn warn_of_long_waits(kept: &Weak<KeptNode>, session: &Arc<dyn Session>) -> Infallible {
    // A waiting use has no timer of its own, because millions of uses may begin in a second. This task checks the first
    // waiting use in intervals instead.
    let (mut first, mut checks) = (None, 0);
    while let Some(limit) = kept.upgrade().and_then(|kept| kept.warn_waiting) {
        // While no use waits, the task has no timer and stays asleep.
        KeptNode::until_a_use_waits(kept).await;
        session.sleep((limit / CHECKS).max(IDLE_PAUSE)).await;
        let Some(kept) = kept.upgrade() else { break };
        let state = kept.state.lock();
        // Before the grant, uses wait for the acquisition, which logs warnings of its own.
        let waits = state.granted.as_ref().and_then(|_| state.uses.first_waiting());
        let others = state.uses.waiting.len().saturating_sub(1);
        drop(state);
        checks = if waits == first { checks + 1 } else { 1 };
        first = waits;
        if let (Some((_, mode)), true, Some(config)) = (waits, checks == CHECKS + 1, kept.config.upgrade()) {
            config.warnings.log_slow_wait(AcquisitionAim::Lock(mode), None, &kept.as_blockers(), others);
        }
    }
    std::future::pending().await
}

#[cfg(all(test, not(shuttle)))]
mod tests;
