//! A node that a process keeps between uses, until another contender asks for it or it was idle for long.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::contend::acquisition::Handle;
use crate::contend::tenure::Tenure;
use crate::contend::timeout::WaitReport;
use crate::error::error::Error;
use crate::keep::uses::Uses;
use crate::observe::lock_paths;
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

/// The acquisition of a node that is to be kept. Any of the uses that wait for it may poll it.
pub(crate) type Work = Pin<Box<dyn Future<Output = Result<Box<Tenure>, Error>> + Send>>;

/// A node that several uses share, one after the other or together, from the beginning of its acquisition.
pub(crate) struct Kept {
    /// Weak, and so is the client: the session's thread looks at the node, and the last user of the client, who waits for
    /// the server, must not be that thread.
    handle: Weak<Handle>,
    warn_waiting: Option<Duration>,
    pub(super) idle: Duration,
    /// Set if the node is asked for before it was used again.
    in_vain: Arc<AtomicBool>,
    pub(super) state: Mutex<KeptState>,
    /// The acquisition, until it is granted, or has failed, or is given up. Locked while it is polled. Whatever the poll
    /// does may have another use looked at, on the same thread: so nothing waits for this lock.
    work: Mutex<Option<Work>>,
    /// A use was to poll the acquisition and has found it locked. The use that polls it now polls it once more.
    is_wanted: AtomicBool,
    /// Why the acquisition failed, from before its uses are refused.
    pub(super) error: OnceLock<Error>,
    /// Wakes all uses that wait.
    waker: Waker,
    /// Where the acquisition waits, for the errors of the uses' timeouts.
    pub(super) waiting: Arc<WaitReport>,
    /// A use began to wait. Counted by itself: whoever waits for that keeps no node that all others have left.
    pub(super) crowded: Arc<Notify>,
}

pub(super) struct KeptState {
    pub(super) uses: Uses<Waker>,
    /// From the grant until the node is given up.
    pub(super) granted: Option<Arc<Granted>>,
    /// When the last use ended.
    used: Moment,
    /// Why no use joins it any more.
    why: Option<Why>,
    /// From its grant, if it was not asked for before, until the node is given up.
    counted: Option<GaugeGuard>,
    /// Ends the background task when it is dropped.
    watched_over: Option<oneshot::Sender<()>>,
}

/// A node that was granted, and its hold: what each use points to, with one count for both.
pub(super) struct Granted {
    pub(super) kept: Arc<Kept>,
    pub(super) hold: Arc<Tenure>,
}

/// What remains of a node that is given up. Drop it once the state is unlocked: the end of the background task wakes that
/// task, and the end of the hold sends the removal.
struct Gone {
    granted: Arc<Granted>,
    why: Option<Why>,
    counted: Option<GaugeGuard>,
    uses: u64,
    idle_for: Duration,
    watched_over: Option<oneshot::Sender<()>>,
}

/// Why a node is not to be kept any longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// Another contender asked for it.
    Asked,
    /// No use came for as long as it may be idle.
    Idle,
    Lost,
    /// The handle was dropped, or the client was closed.
    Closed,
    /// This process wants the lock in a mode that the node does not cover.
    Replaced,
    /// It is not known what stands on the ensemble, or no watch tells when it is asked for.
    Unsure,
}

impl Why {
    pub(super) fn by(loss: Loss) -> Why {
        match loss {
            Loss::SessionOver(Ending::Closed) => Why::Closed,
            _ => Why::Lost,
        }
    }

    /// Its name in the metrics.
    fn label(self) -> &'static str {
        match self {
            Why::Asked => "asked",
            Why::Idle => "idle",
            Why::Lost => "lost",
            Why::Closed => "closed",
            Why::Replaced => "replaced",
            Why::Unsure => "unsure",
        }
    }
}

struct WakeAll(Weak<Kept>);

impl Wake for WakeAll {
    fn wake(self: Arc<Self>) {
        if let Some(kept) = self.0.upgrade() {
            let wakers = kept.state.lock().uses.wakers();
            wake(wakers);
        }
    }
}

impl Kept {
    /// A node that is being acquired.
    pub(crate) fn new(handle: &Arc<Handle>, mode: Mode, idle: Duration, in_vain: &Arc<AtomicBool>) -> Arc<Kept> {
        let (uses, used) = (Uses::new(mode), Moment::ZERO);
        let state = KeptState { uses, granted: None, used, why: None, counted: None, watched_over: None };
        let (warn_waiting, handle, in_vain) = (handle.warn_waiting, Arc::downgrade(handle), Arc::clone(in_vain));
        Arc::new_cyclic(|this| Kept {
            handle,
            warn_waiting,
            idle,
            in_vain,
            state: Mutex::new(state),
            work: Mutex::default(),
            is_wanted: AtomicBool::new(false),
            error: OnceLock::new(),
            waker: Waker::from(Arc::new(WakeAll(Weak::clone(this)))),
            waiting: Arc::default(),
            crowded: Arc::default(),
        })
    }

    /// The node is acquired by this.
    pub(super) fn acquire_by(&self, work: Work) {
        *self.work.lock() = Some(work);
    }

    /// Polls the acquisition as far as it gets. Every use that waits for it does so. So a use that is not polled, or
    /// gives up, does not hold up the others. Returns whether it has ended just now.
    pub(super) fn advance(self: &Arc<Self>) -> bool {
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
            if self.is_abandoned() {
                self.abandon();
            }
            return false;
        };
        drop(ended);
        self.waiting.end();
        match answer {
            Ok(hold) => self.grant(Arc::from(hold)),
            Err(error) => {
                let _first = self.error.set(error);
                self.failed();
            }
        }
        true
    }

    /// No use waits any more, so the acquisition is given up. A use that polls it now does that afterwards.
    pub(super) fn abandon(&self) {
        let work = self.work.try_lock().and_then(|mut work| work.take());
        if work.is_some() {
            self.waiting.end();
            self.failed();
        }
        drop(work);
    }

    /// The node is granted. The uses that wait may begin.
    fn grant(self: &Arc<Self>, hold: Arc<Tenure>) {
        let mut state = self.state.lock();
        state.used = hold.now();
        state.granted = Some(Arc::new(Granted { kept: Arc::clone(self), hold }));
        let is_asked = state.uses.is_asked();
        state.counted = (!is_asked).then(|| GaugeGuard::new(names::KEPT_NODES, None));
        let mut woken = state.uses.grant();
        if is_asked {
            state.leaves_soon();
        } else if self.idle.is_zero() && state.uses.is_idle() {
            woken.extend(state.ask(Why::Idle));
        }
        drop(settle(state, woken));
    }

    /// Admits no further use. The node is given up with the last use that it has, at once if it has none.
    pub(crate) fn give_up(&self, why: Why) {
        let mut state = self.state.lock();
        let woken = state.ask(why);
        // Sends the removal.
        drop(settle(state, woken));
    }

    /// Another contender asks for the node. Not the node's own acquisition, which asks for all nodes if it has to wait.
    fn note_the_ask(&self) {
        let state = self.state.lock();
        if !state.uses.is_asked() {
            self.in_vain.store(state.uses.count() <= 1, Ordering::Release);
        }
    }

    /// The node could not be acquired: all uses that wait are refused.
    fn failed(&self) {
        let woken = self.state.lock().uses.fail();
        wake(woken);
    }

    /// Whether no use waits for the node that is being acquired.
    pub(crate) fn is_abandoned(&self) -> bool {
        let state = self.state.lock();
        state.granted.is_none() && state.uses.is_idle()
    }

    /// The hold, from its grant until it is given up.
    pub(crate) fn hold(&self) -> Option<Arc<Tenure>> {
        self.state.lock().granted.as_ref().map(|granted| Arc::clone(&granted.hold))
    }

    /// The number and the mode of the first use that waits for others, and how many wait. None waits for others before the
    /// grant.
    fn granted_and_waiting(&self) -> Option<(u64, Mode, usize)> {
        let state = self.state.lock();
        let (number, mode) = state.granted.as_ref().and_then(|_| state.uses.first_waiting())?;
        Some((number, mode, state.uses.waiting()))
    }

    /// The node, whose uses are in the way of others of this process.
    pub(crate) fn as_blockers(&self) -> Blockers {
        let hold = self.hold();
        hold.map(|it| lock_paths::blocked_by(&it.contender(), it.note(), it.own_node().token())).unwrap_or_default()
    }

    /// Whether the node is held, and by no use.
    pub(crate) fn is_unused(&self) -> bool {
        let state = self.state.lock();
        state.granted.is_some() && state.uses.is_idle()
    }

    /// How many uses run and wait.
    pub(crate) fn uses(&self) -> usize {
        self.state.lock().uses.len()
    }

    /// Waits until a use of this process waits for another.
    pub(super) async fn is_crowded(kept: &Weak<Kept>) {
        let Some(crowded) = kept.upgrade().map(|kept| Arc::clone(&kept.crowded)) else { return };
        loop {
            // Registered before looking, so that a change in between is not missed.
            let mut crowded = std::pin::pin!(crowded.notified());
            crowded.as_mut().enable();
            if kept.upgrade().is_none_or(|kept| kept.state.lock().uses.waiting() > 0) {
                return;
            }
            crowded.await;
        }
    }

    /// A use has ended. Gives the hold, if it was the last use of a node that is to be given up.
    pub(super) fn end(&self, number: u64, hold: &Tenure, now: Moment) -> Option<Arc<Tenure>> {
        let mut state = self.state.lock();
        // A write of this use may yet be carried out, for as long as the node is there. So the next write must not run
        // under the same node.
        let is_unsure = state.uses.mode() == Mode::Write && hold.own_node().may_yet_write();
        let mut woken = if is_unsure { state.ask(Why::Unsure) } else { Vec::new() };
        woken.extend(state.leave(number, self.idle));
        state.used = state.used.max(now);
        settle(state, woken)
    }

    /// How long the node may still be idle.
    fn may_idle(&self, now: Moment) -> Duration {
        let state = self.state.lock();
        if state.granted.is_some() && state.uses.is_idle() {
            state.used.saturating_add(self.idle).saturating_sub(now)
        } else {
            self.idle
        }
    }

    /// Watches over the node from now on, which may not be granted yet. `asked` fires when another contender asks for it. A
    /// node is not kept if nothing tells of that.
    pub(crate) fn entered(self: &Arc<Self>, hold: &Tenure, asked: Option<Watch>) {
        let Some(watch) = asked else { return self.give_up(Why::Unsure) };
        let ((own_node, session), kept) = (hold.node_and_session(), Arc::downgrade(self));
        let by = Arc::clone(&session);
        let watched_over = spawn_cancellable(&by, async move {
            let why = tokio::select! {
                biased;
                event = watch => match event {
                    Event::Changed => Why::Asked,
                    // A directory that is gone had no nodes left, so ours is gone, too.
                    Event::Deleted | Event::Over => Why::Lost,
                },
                _ = own_node.lost(&session) => Why::Lost,
                () = is_idle(&kept, &session) => Why::Idle,
                () = is_in_the_way(&kept, &session) => Why::Asked,
                never = warns(&kept, &session) => match never {},
            };
            let why = own_node.find_loss().map_or(why, Why::by);
            if let Some(kept) = kept.upgrade() {
                if why == Why::Asked && !own_node.has_asked() {
                    kept.note_the_ask();
                }
                kept.give_up(why);
            }
        });
        self.state.lock().watched_over = Some(watched_over);
    }
}

impl KeptState {
    /// No use joins any more. Returns the uses to wake.
    fn ask(&mut self, why: Why) -> Vec<Waker> {
        self.why.get_or_insert(why);
        if !self.uses.is_asked() && !self.uses.is_idle() {
            self.leaves_soon();
        }
        self.uses.asked()
    }

    /// A use has ended, or waits no longer. Returns the uses to wake.
    pub(super) fn leave(&mut self, number: u64, idle: Duration) -> Vec<Waker> {
        let mut woken = self.uses.leave(number);
        if idle.is_zero() && self.granted.is_some() && self.uses.is_idle() {
            woken.extend(self.ask(Why::Idle));
        }
        woken
    }

    /// Nobody has to ask for the node any more.
    fn leaves_soon(&self) {
        if let Some(granted) = &self.granted {
            let (own_node, session) = granted.hold.node_and_session();
            session.upkeep().mark_leaving(&own_node);
        }
    }

    /// The hold, if no use is left and none can come.
    fn end_if_over(&mut self) -> Option<Gone> {
        if !self.uses.is_over() {
            return None;
        }
        let granted = self.granted.take()?;
        let (uses, idle_for) = (self.uses.count(), granted.hold.now().saturating_sub(self.used));
        let (counted, watched_over) = (self.counted.take(), self.watched_over.take());
        Some(Gone { granted, why: self.why, counted, uses, idle_for, watched_over })
    }
}

impl Gone {
    /// Reports that a kept node is given up. Gives the hold.
    fn end(self) -> Arc<Tenure> {
        let Gone { granted, why, counted, uses, idle_for, watched_over } = self;
        let hold = Arc::clone(&granted.hold);
        drop(watched_over);
        if let (Some(_), Some(why)) = (counted, why) {
            let (path, cause) = (hold.shown(), why.label());
            meter::count(names::KEPT_GIVEN_UP, &[("cause", cause)]);
            emit!(DEBUG, path, cause, uses, ?idle_for, "a kept lock is given up");
        }
        hold
    }
}

/// Unlocks the state of a node, and then wakes these uses. Gives the hold, if no use is left and none can come.
pub(super) fn settle(mut state: MutexGuard<'_, KeptState>, woken: Vec<Waker>) -> Option<Arc<Tenure>> {
    let gone = state.end_if_over();
    drop(state);
    wake(woken);
    gone.map(Gone::end)
}

/// Only once nothing is locked: a task that is woken may look at once.
pub(super) fn wake(woken: Vec<Waker>) {
    woken.into_iter().for_each(Waker::wake);
}

/// How often to look whether a node is idle, at most.
const IDLE_LOOK: Duration = Duration::from_millis(10);

/// How often to look whether a contender waits whose ask was not heard: at most, and at least.
const QUEUE_LOOK: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(600));

/// How often a use is seen waiting before it is warned of.
const LOOKS: u32 = 4;

/// Waits until the node was idle for as long as it may be.
async fn is_idle(kept: &Weak<Kept>, session: &Arc<dyn Session>) {
    // Without an idle time, the last use gives the node up by itself.
    if kept.upgrade().is_some_and(|kept| kept.idle.is_zero()) {
        return std::future::pending().await;
    }
    loop {
        let now = session.lease().now();
        let Some(left) = kept.upgrade().map(|kept| kept.may_idle(now)) else { return };
        if left.is_zero() {
            return;
        }
        // While it is in use, there is no need to look often.
        if !retry::slept(session, left.max(IDLE_LOOK)).await {
            return;
        }
    }
}

/// Waits until a contender waits behind the node. It may not be allowed to ask for it, or its ask may have been lost.
async fn is_in_the_way(kept: &Weak<Kept>, session: &Arc<dyn Session>) {
    while let Some(pause) = kept.upgrade().map(|kept| kept.idle.clamp(QUEUE_LOOK.0, QUEUE_LOOK.1)) {
        if !retry::slept(session, pause).await {
            return std::future::pending().await;
        }
        // The hold itself is not kept here: it ends with its last use.
        let hold = kept.upgrade().and_then(|kept| kept.hold());
        let place = hold.map(|hold| (hold.contender(), Arc::clone(hold.queue())));
        let Some((me, directory)) = place else { continue };
        if let Ok(names) = listing::list(session, &directory).await
            && turn::first_kept_out(&me, &session.upkeep().ghosts().without(&directory, &names, Mode::Write)).is_some()
        {
            return;
        }
    }
    std::future::pending().await
}

/// Warns of uses that wait for long for others under this node.
async fn warns(kept: &Weak<Kept>, session: &Arc<dyn Session>) -> Infallible {
    // Millions of uses may wait in a second. So none of them has a timer: the first that waits is looked at now and then.
    let mut first = None;
    while let Some(limit) = kept.upgrade().and_then(|kept| kept.warn_waiting) {
        // Without a use that waits, this wakes nobody.
        if first.is_none() {
            Kept::is_crowded(kept).await;
            first = kept.upgrade().and_then(|kept| kept.granted_and_waiting()).map(|(number, ..)| (number, 1));
        }
        if !retry::slept(session, (limit / LOOKS).max(IDLE_LOOK)).await {
            break;
        }
        let Some(kept) = kept.upgrade() else { break };
        let waits = kept.granted_and_waiting();
        first = match (waits, first) {
            (Some((number, mode, _)), Some((before, seen))) if number == before => {
                if seen == LOOKS
                    && let Some(handle) = kept.handle.upgrade()
                {
                    let others = waits.map_or(0, |(_, _, all)| all - 1);
                    handle.warn(Aim::Lock(mode), None, &kept.as_blockers(), others);
                }
                Some((number, seen + 1))
            }
            _ => waits.map(|(number, ..)| (number, 1)),
        };
    }
    std::future::pending().await
}

#[cfg(all(test, not(shuttle)))]
mod tests;
