//! A node that a process keeps between uses, until another contender asks for it or it was idle for long.

use std::sync::{Arc, Weak};
use std::task::{Poll, Waker};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::contend::request::Handle;
use crate::contend::tenure::{LimitedUse, Tenure};
use crate::error::error::Error;
use crate::keep::uses::{Joined, Uses};
use crate::observe::lock_paths;
use crate::observe::trace::Holding;
use crate::queue::contender::Contender;
use crate::queue::member::Blockers;
use crate::queue::mode::Mode;
use crate::session::lease::Moment;
use crate::session::request::{Ending, Event, Loss, Watch};
use crate::session::retry::spawn_cancellable;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, MutexGuard, Notify};
use crate::telemetry::log::tell;
use crate::telemetry::meter::{self, Present};
use crate::telemetry::names;

/// A node that several uses share, one after the other or together.
pub(crate) struct Kept {
    /// Weak, and so is the client: the session's thread looks at the node, and the last user of the client, who waits for
    /// the server, must not be that thread.
    handle: Weak<Handle>,
    warn_waiting: Option<Duration>,
    idle: Duration,
    /// Set if the node is asked for before it was used again.
    in_vain: Arc<AtomicBool>,
    state: Mutex<KeptState>,
    /// A use began to wait. Counted by itself: whoever waits for that keeps no node that all others have left.
    crowded: Arc<Notify>,
}

struct KeptState {
    uses: Uses<Waker>,
    /// From the grant until the node is given up.
    granted: Option<Arc<Granted>>,
    /// When the last use ended.
    used: Moment,
    /// Why no use joins it any more.
    why: Option<Why>,
    /// From its grant, if it was not asked for before, until the node is given up.
    counted: Option<Present>,
    /// Ends the background task when it is dropped.
    watched_over: Option<oneshot::Sender<()>>,
}

/// A node that was granted, and its hold: what each use points to, with one count for both.
struct Granted {
    kept: Arc<Kept>,
    hold: Arc<Tenure>,
}

/// What remains of a node that is given up. Drop it once the state is unlocked: the end of the background task wakes that
/// task, and the end of the hold sends the removal.
struct Gone {
    granted: Arc<Granted>,
    why: Option<Why>,
    counted: Option<Present>,
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
    fn by(loss: Loss) -> Why {
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

impl Kept {
    /// A node that is being acquired.
    pub(crate) fn new(handle: &Arc<Handle>, mode: Mode, idle: Duration, in_vain: &Arc<AtomicBool>) -> Arc<Kept> {
        let (uses, used) = (Uses::new(mode), Moment::ZERO);
        let state = KeptState { uses, granted: None, used, why: None, counted: None, watched_over: None };
        let (warn_waiting, handle, in_vain) = (handle.warn_waiting, Arc::downgrade(handle), Arc::clone(in_vain));
        let (state, crowded) = (Mutex::new(state), Arc::default());
        Arc::new(Kept { handle, warn_waiting, idle, in_vain, state, crowded })
    }

    pub(crate) fn join(self: &Arc<Self>, mode: Mode) -> Joined<KeptUse, WaitingUse> {
        let mut state = self.state.lock();
        match state.uses.join(mode) {
            Joined::Refused => Joined::Refused,
            Joined::Waits(number) => {
                drop(state);
                self.crowded.notify_waiters();
                Joined::Waits(WaitingUse { kept: Arc::clone(self), number, is_granted: false, is_over: false })
            }
            Joined::Runs(number) => {
                let granted = state.granted.clone();
                drop(state);
                self.run(number, granted).map_or(Joined::Refused, Joined::Runs)
            }
        }
    }

    /// As [`Kept::join`], if the use need not wait. The use may find the node lost.
    pub(crate) fn join_now(&self, mode: Mode) -> Option<KeptUse> {
        let mut state = self.state.lock();
        let granted = Arc::clone(state.granted.as_ref()?);
        let number = state.uses.join_now(mode)?;
        drop(state);
        Some(KeptUse::new(granted, number))
    }

    /// The use of this number, unless the node was lost. A lost node admits no use.
    fn run(&self, number: u64, granted: Option<Arc<Granted>>) -> Option<KeptUse> {
        let used = KeptUse::new(granted?, number);
        if let Err(loss) = used.held_at() {
            self.give_up(Why::by(loss));
            return None;
        }
        Some(used)
    }

    /// The node is granted. The uses that wait may begin.
    pub(crate) fn granted(self: &Arc<Self>, hold: Arc<Tenure>) {
        let mut state = self.state.lock();
        state.used = hold.now();
        state.granted = Some(Arc::new(Granted { kept: Arc::clone(self), hold }));
        let is_asked = state.uses.is_asked();
        state.counted = (!is_asked).then(|| Present::new(names::KEPT_NODES, None));
        let mut woken = state.uses.granted();
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
    pub(crate) fn failed(&self) {
        let woken = self.state.lock().uses.fail();
        wake(woken);
    }

    /// Wakes all uses that wait.
    pub(crate) fn wake_waiting(&self) {
        let wakers = self.state.lock().uses.wakers();
        wake(wakers);
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
    async fn is_crowded(kept: &Weak<Kept>) {
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
    fn end(&self, number: u64, hold: &Tenure, now: Moment) -> Option<Arc<Tenure>> {
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
                () = idle_check::is_idle(&kept, &session) => Why::Idle,
                () = idle_check::is_in_the_way(&kept, &session) => Why::Asked,
                never = idle_check::warns(&kept, &session) => match never {},
            };
            let why = own_node.loss().map_or(why, Why::by);
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
    fn leave(&mut self, number: u64, idle: Duration) -> Vec<Waker> {
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
            session.upkeep().leaves_soon(&own_node);
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
            let (path, cause) = (hold.directory(), why.label());
            meter::count(names::KEPT_GIVEN_UP, &[("cause", cause)]);
            tell!(DEBUG, path, cause, uses, ?idle_for, "a kept lock is given up");
        }
        hold
    }
}

/// Unlocks the state of a node, and then wakes these uses. Gives the hold, if no use is left and none can come.
fn settle(mut state: MutexGuard<'_, KeptState>, woken: Vec<Waker>) -> Option<Arc<Tenure>> {
    let gone = state.end_if_over();
    drop(state);
    wake(woken);
    gone.map(Gone::end)
}

/// Only once nothing is locked: a task that is woken may look at once.
fn wake(woken: Vec<Waker>) {
    woken.into_iter().for_each(Waker::wake);
}

/// A use of a kept node, or a share in one. Dropping the last share ends the use, and gives the node up if it was the last one of a node that is not
/// to be kept.
pub(crate) struct KeptUse {
    granted: Arc<Granted>,
    number: u64,
    /// What is told of the use when it ends, if anything is.
    told: Option<Arc<Holding>>,
    /// Until when it may last, if it may not for ever.
    limit: Option<Arc<LimitedUse>>,
    /// A downgrade is under way, so the node may be either.
    is_changing: bool,
    is_over: bool,
}

impl KeptUse {
    fn new(granted: Arc<Granted>, number: u64) -> KeptUse {
        KeptUse { granted, number, told: None, limit: None, is_changing: false, is_over: false }
    }

    pub(crate) fn hold(&self) -> &Arc<Tenure> {
        &self.granted.hold
    }

    fn kept(&self) -> &Kept {
        &self.granted.kept
    }

    /// The present moment, unless the node was lost.
    pub(crate) fn held_at(&self) -> Result<Moment, Loss> {
        match self.hold().held_at() {
            Some(now) => Ok(now),
            None => self.hold().loss().map_or_else(|| Ok(self.hold().now()), Err),
        }
    }

    /// Waits until a contender waits that this use keeps out. A use of this process that waits has no node of its own, so
    /// the contender is then this process's own.
    pub(crate) async fn contended(&self) -> Result<Contender, Error> {
        let kept = Arc::downgrade(&self.granted.kept);
        tokio::select! {
            biased;
            first = self.hold().contended() => first,
            () = Kept::is_crowded(&kept) => Ok((*self.hold().contender()).clone()),
        }
    }

    /// The lock was granted to this use. `holding` ends with it.
    pub(crate) fn granted(&mut self, holding: Holding) {
        self.limit = self.hold().limited_use().map(Arc::new);
        self.told = holding.is_recorded().then(|| Arc::new(holding));
    }

    /// The same use once more. It ends with the last of them.
    pub(crate) fn share(&self) -> KeptUse {
        self.kept().state.lock().uses.share(self.number);
        let mut share = KeptUse::new(Arc::clone(&self.granted), self.number);
        share.told = self.told.clone();
        share.limit = self.limit.clone();
        share
    }

    /// Ends the use. Gives the hold, if the node goes with it.
    fn end(&mut self, now: impl FnOnce(&Tenure) -> Moment) -> Option<Arc<Tenure>> {
        self.told = None;
        self.limit = None;
        if std::mem::replace(&mut self.is_over, true) {
            return None;
        }
        if self.is_changing {
            self.kept().give_up(Why::Unsure);
        }
        self.kept().end(self.number, self.hold(), now(self.hold()))
    }

    /// Ends the use, and returns when the node is surely gone, if it goes with it.
    pub(crate) async fn release(mut self) -> Result<(), Error> {
        let now = self.held_at().map_err(Error::Lost)?;
        match self.end(|_| now) {
            Some(hold) => hold.give_back().await,
            None => Ok(()),
        }
    }

    /// Replaces the node by a READ node, under which this use goes on as a read.
    pub(crate) async fn downgrade(&mut self) -> Result<(), Error> {
        self.is_changing = true;
        self.hold().change_to_read().await?;
        self.is_changing = false;
        if let Some(holding) = self.told.as_mut().and_then(Arc::get_mut) {
            holding.begin_read_hold(self.granted.hold.directory(), self.granted.hold.own_node());
        }
        let woken = self.kept().state.lock().uses.downgraded(self.number);
        wake(woken);
        Ok(())
    }
}

impl Drop for KeptUse {
    fn drop(&mut self) {
        drop(self.end(Tenure::now));
    }
}

/// A use that waits for others of its process, or for the node to be granted. Dropping it ends the wait.
pub(crate) struct WaitingUse {
    kept: Arc<Kept>,
    number: u64,
    /// It was seen waiting for others under a node that is granted.
    pub(crate) is_granted: bool,
    is_over: bool,
}

impl WaitingUse {
    /// The use, once it may run; `None` if it was refused.
    pub(crate) fn poll(&mut self, waker: &Waker) -> Poll<Option<KeptUse>> {
        let mut state = self.kept.state.lock();
        match state.uses.standing(self.number, waker) {
            Joined::Waits(()) => {
                self.is_granted = state.granted.is_some();
                Poll::Pending
            }
            Joined::Refused => {
                self.is_over = true;
                Poll::Ready(None)
            }
            Joined::Runs(()) => {
                let granted = state.granted.clone();
                drop(state);
                self.is_over = true;
                Poll::Ready(self.kept.run(self.number, granted))
            }
        }
    }
}

impl Drop for WaitingUse {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let mut state = self.kept.state.lock();
        let woken = state.leave(self.number, self.kept.idle);
        drop(settle(state, woken));
    }
}

mod idle_check;

#[cfg(all(test, not(shuttle)))]
mod tests;
