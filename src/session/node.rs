//! Whether a node of ours is still where we put it; knows neither modes nor turns.
//!
//! A [`Tenure`] is one node that this process keeps in a queue. The [`Roll`] lists those of one session, and
//! [`keep_alive`] looks after them: it watches each node, and renews the session's lease while there are any.

use std::collections::HashMap;
use std::mem::discriminant;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use thiserror::Error;
use tokio::sync::Notify;

use crate::queue::local::HandOff;
use crate::session::contract::Session;
use crate::session::lease::{Lease, Moment};
use crate::session::request::{Ending, Event, Failure, Operation, Reply, Watch};
use crate::telemetry::meter;

/// At most so many checks go into one heartbeat: its request must stay far below ZooKeeper's limit of 1 MiB.
const CHECKS_PER_HEARTBEAT: usize = 1_000;

/// So many watches on nodes of our own are asked for before the first is answered.
const ARMED_AT_ONCE: usize = 64;

/// Why a lock was lost. A lost guard never becomes valid again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Loss {
    /// The session is over, and its nodes with it.
    #[error("{0}")]
    SessionOver(#[from] Ending),
    /// The servers may give the session up soon, and grant the lock to others: too long ago was what they surely have
    /// heard of it.
    #[error("the lease on the session ran out before a quorum renewed it")]
    LeaseRanOut,
    /// Somebody deleted the lock's node.
    #[error("the lock's node was removed by somebody else")]
    Removed,
    /// Somebody wrote to a lock node, which passed for a hand-off while the holder still held.
    ///
    /// Found out a few milliseconds after such a grant. Whoever releases before that hands the false grant on, and
    /// the next one cannot tell: only an ACL that keeps strangers from writing helps.
    #[error("a stranger wrote to a lock node, which was taken for a hand-off")]
    Interfered,
}

impl Loss {
    /// Its name in the metrics.
    fn label(self) -> &'static str {
        match self {
            Loss::SessionOver(_) => "session-over",
            Loss::LeaseRanOut => "lease-ran-out",
            Loss::Removed => "removed",
            Loss::Interfered => "interfered",
        }
    }
}

/// How sure it is that a lock is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HoldState {
    /// The lock is held.
    Held,
    /// The connection is lost, but nobody else can be granted the lock yet. Start nothing new.
    Suspect {
        /// Unless the connection comes back, the lock is lost then.
        until: Instant,
    },
    /// The lock is lost, for good.
    Lost {
        /// Why.
        why: Loss,
    },
}

/// The changes of a guard's [`HoldState`]. Made by [`ReadGuard::changes`](crate::ReadGuard::changes) and
/// [`WriteGuard::changes`](crate::WriteGuard::changes).
#[derive(Debug)]
pub struct Changes {
    tenure: Arc<Tenure>,
    session: Arc<dyn Session>,
    last: Option<HoldState>,
}

impl Changes {
    pub(crate) fn new(tenure: Arc<Tenure>, session: Arc<dyn Session>) -> Changes {
        Changes { tenure, session, last: None }
    }

    /// Waits for the next state: the first call answers at once with the present one, and after
    /// [`HoldState::Lost`] there are no more.
    ///
    /// States that came and went between two calls are passed over. Once the guard is released there are no more.
    ///
    /// # Cancel safety
    /// No state is lost by dropping the future.
    pub async fn next(&mut self) -> Option<HoldState> {
        if matches!(self.last, Some(HoldState::Lost { .. })) {
            return None;
        }
        let (tenure, lease, last) = (&self.tenure, self.session.lease(), self.last);
        let is_news = |state: &HoldState| last.is_none_or(|last| discriminant(&last) != discriminant(state));
        let look = || match tenure.has_left() {
            true => Some(None),
            false => Some(tenure.hold_state(lease)).filter(is_news).map(Some),
        };
        let next = tenure.until(&self.session, look).await;
        self.last = next.or(self.last);
        next
    }
}

/// A watch on our own node that was asked for.
pub(crate) struct Asked {
    path: String,
    watch: Reply<Watch>,
}

/// One node of ours: where it is, what for, and whether it was lost.
#[derive(Debug)]
pub(crate) struct Tenure {
    state: Mutex<State>,
    changed: Notify,
    /// Transactions under this hold of which nobody has heard what became of them, and others' who may send some.
    unsettled: AtomicUsize,
    lease: Weak<Lease>,
    /// When we knew of the node.
    entered: Moment,
    this: Weak<Tenure>,
}

#[derive(Debug)]
struct State {
    path: String,
    phase: Phase,
    /// While it waits: since when the lease has been valid without a gap, if it has been at all.
    valid_since: Option<u64>,
    /// It was called to look where it stands, and has not heard that yet.
    is_called: bool,
    loss: Option<Loss>,
    /// That a hold was lost has been told.
    is_told: bool,
    /// The watch on our own node, and what it wakes, which is this tenure itself: thousands of waiters need no task
    /// each for it. It keeps the tenure until it has told what it had to tell.
    own: Option<(Watch, Waker)>,
    /// The watch on our own node was asked for, and has told nothing yet.
    is_watched: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Waiting,
    /// Holding, since the lease has been valid without a gap.
    Holding(u64),
    /// Being replaced by a node of another name: that the old one goes is no loss.
    Moving(u64),
    Left,
}

impl Tenure {
    pub(crate) fn new(path: String, lease: &Arc<Lease>) -> Arc<Tenure> {
        let state = Mutex::new(State {
            path,
            phase: Phase::Waiting,
            valid_since: None,
            is_called: false,
            loss: None,
            is_told: false,
            own: None,
            is_watched: false,
        });
        let (changed, unsettled, entered) = (Notify::new(), AtomicUsize::new(0), lease.now());
        let lease = Arc::downgrade(lease);
        Arc::new_cyclic(|this| Tenure { state, changed, unsettled, lease, entered, this: Weak::clone(this) })
    }

    pub(crate) fn path(&self) -> String {
        self.state().path.clone()
    }

    /// The stretch of the lease that the node can rely on, if there is one by now.
    pub(crate) fn stretch(&self, lease: &Lease) -> Option<u64> {
        lease.stretch().filter(|_| lease.lasts_from(self.entered))
    }

    /// Its path, to tell others: what they do while the node is there is settled once it is gone, and not before.
    pub(crate) fn path_for_others(&self) -> String {
        self.write_begins();
        self.path()
    }

    /// From now on this node's owner holds, as long as the lease stays valid without a gap.
    pub(crate) fn hold(&self, stretch: u64) {
        self.state().phase = Phase::Holding(stretch);
    }

    pub(crate) fn is_holding(&self) -> bool {
        matches!(self.state().phase, Phase::Holding(_) | Phase::Moving(_))
    }

    /// A transaction is sent that is carried out only while the node is there.
    pub(crate) fn write_begins(&self) {
        self.unsettled.fetch_add(1, Ordering::Relaxed);
    }

    /// It was carried out, or never will be.
    pub(crate) fn write_settled(&self) {
        self.unsettled.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether a transaction may yet be carried out.
    pub(crate) fn may_yet_write(&self) -> bool {
        self.unsettled.load(Ordering::Relaxed) > 0
    }

    /// The node is about to be replaced; [`Tenure::moved`] ends this.
    pub(crate) fn moving(&self) {
        let mut state = self.state();
        if let Phase::Holding(stretch) = state.phase {
            state.phase = Phase::Moving(stretch);
        }
    }

    /// The node is at `path` now.
    pub(crate) fn moved(&self, path: String) {
        let mut state = self.state();
        state.path = path;
        // The watch on the node that was replaced has nothing more to tell.
        state.own = None;
        state.is_watched = false;
        if let Phase::Moving(stretch) = state.phase {
            state.phase = Phase::Holding(stretch);
        }
    }

    /// The node is about to be deleted by us.
    pub(crate) fn left(&self) {
        self.state().phase = Phase::Left;
        self.changed.notify_waiters();
    }

    /// Has it look where it stands.
    pub(crate) fn call(&self) {
        self.state().is_called = true;
        self.changed.notify_waiters();
    }

    /// Waits until it is called to do so, or until the node is lost.
    pub(crate) async fn called(&self, session: &Arc<dyn Session>) -> Result<(), Loss> {
        let is_called = || std::mem::take(&mut self.state().is_called).then_some(Ok(()));
        self.until(session, || self.loss(session.lease()).map(Err).or_else(is_called)).await
    }

    fn has_left(&self) -> bool {
        self.state().phase == Phase::Left
    }

    /// The node was lost; the first reason stays.
    pub(crate) fn lose(&self, loss: Loss) {
        let mut state = self.state();
        let is_first = state.loss.is_none();
        state.loss.get_or_insert(loss);
        let news = state.news();
        drop(state);
        tell(news);
        self.changed.notify_waiters();
        if is_first {
            self.tell_book(loss);
        }
    }

    /// The contenders of this session behind a node that was lost look for themselves. When the session is over, they are
    /// lost as well.
    fn tell_book(&self, loss: Loss) {
        if matches!(loss, Loss::Removed | Loss::Interfered)
            && let Some(lease) = self.lease.upgrade()
        {
            lease.books().lost(self);
        }
    }

    /// Looks at everything that can be known without asking the ensemble: the reason of the loss, if it is lost.
    pub(crate) fn loss(&self, lease: &Lease) -> Option<Loss> {
        let mut state = self.state();
        let was_lost = state.loss.is_some();
        // Before the watch: who was stopped for too long finds its node removed, by the server and for that reason.
        if state.loss.is_none() {
            let since = match state.phase {
                Phase::Holding(stretch) | Phase::Moving(stretch) => Some(stretch),
                Phase::Waiting => {
                    state.valid_since = state.valid_since.or_else(|| self.stretch(lease));
                    state.valid_since
                }
                Phase::Left => None,
            };
            let ran_out = since.is_some_and(|stretch| !lease.covers(stretch)).then_some(Loss::LeaseRanOut);
            state.loss = lease.over().map(Loss::SessionOver).or(ran_out);
        }
        let told = state.look();
        let (loss, news) = (state.loss, state.news());
        drop(state);
        tell(news);
        self.told(told);
        if let Some(loss) = loss.filter(|_| !was_lost) {
            self.tell_book(loss);
        }
        loss
    }

    /// Passes on, now that the state is unlocked, that the watch on our own node has told something.
    fn told(&self, event: Option<Event>) {
        let Some(event) = event else { return };
        self.changed.notify_waiters();
        // A stranger's write has used the watch up.
        if event == Event::Changed
            && self.is_standing_at(&self.path())
            && let (Some(this), Some(lease)) = (self.this.upgrade(), self.lease.upgrade())
        {
            lease.roll().watch(&this);
        }
    }

    /// Waits until the node is lost, at the latest when the lease runs out.
    pub(crate) async fn lost(&self, session: &Arc<dyn Session>) -> Loss {
        self.until(session, || self.loss(session.lease())).await
    }

    /// Waits until it is not held any more, whether released or lost.
    pub(crate) async fn ended(&self, session: &Arc<dyn Session>) {
        let look = || (self.has_left() || self.loss(session.lease()).is_some()).then_some(());
        self.until(session, look).await;
    }

    /// How sure it is that the lock is held.
    pub(crate) fn hold_state(&self, lease: &Lease) -> HoldState {
        match (self.loss(lease), lease.remaining()) {
            (Some(why), _) => HoldState::Lost { why },
            (None, Some(left)) if !lease.is_connected() => {
                Instant::now().checked_add(left).map_or(HoldState::Held, |until| HoldState::Suspect { until })
            }
            _ => HoldState::Held,
        }
    }

    /// Waits until `look` finds something; looks again after every change, and when the lease would run out.
    async fn until<T>(&self, session: &Arc<dyn Session>, mut look: impl FnMut() -> Option<T>) -> T {
        loop {
            // Registered before looking, so that a change in between is not missed.
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            if let Some(found) = look() {
                return found;
            }
            match session.lease().remaining() {
                // It ran out since we looked.
                None if self.is_holding() => {}
                Some(left) if self.is_holding() && left < Duration::MAX => {
                    // In slices, because timers stand still while the machine is suspended and the lease does not.
                    let slice = left.min(session.timeout() / 20);
                    tokio::select! {
                        () = changed => {}
                        () = session.sleep(slice) => {}
                    }
                }
                _ => changed.await,
            }
        }
    }

    fn is_standing_at(&self, path: &str) -> bool {
        let state = self.state();
        state.path == path && !matches!(state.phase, Phase::Left | Phase::Moving(_))
    }

    fn gone_from(&self, path: &str) {
        if self.is_standing_at(path) {
            self.lose(Loss::Removed);
        }
    }

    /// Whether the watch on our own node will tell what happens to it.
    pub(crate) fn is_armed(&self) -> bool {
        self.state().own.is_some()
    }

    /// Asks for a watch on our own node, unless that is done. The request is on its way when this returns.
    pub(crate) fn ask_to_watch(&self, session: &Arc<dyn Session>) -> Option<Asked> {
        let mut state = self.state();
        if state.is_watched || matches!(state.phase, Phase::Left | Phase::Moving(_)) {
            return None;
        }
        state.is_watched = true;
        let path = state.path.clone();
        drop(state);
        Some(Asked { watch: session.watch(&path), path })
    }

    /// Keeps the watch on our own node. A node that is not there any more is lost.
    pub(crate) async fn watched(self: &Arc<Self>, asked: Asked) -> Result<(), Failure> {
        let Asked { path, watch } = asked;
        match watch.await {
            Ok(watch) => {
                self.arm(&path, watch);
                Ok(())
            }
            Err(Failure::NoNode) => {
                self.gone_from(&path);
                Ok(())
            }
            Err(failure) => {
                let mut state = self.state();
                state.is_watched &= state.path != path;
                Err(failure)
            }
        }
    }

    fn arm(self: &Arc<Self>, path: &str, watch: Watch) {
        let mut state = self.state();
        if state.path == path {
            state.own = Some((watch, Waker::from(Arc::clone(self))));
        }
        drop(state);
        self.look();
    }

    /// Looks at the watch on our own node, which may have something to tell.
    fn look(&self) {
        if let Some(lease) = self.lease.upgrade() {
            self.loss(&lease);
            return;
        }
        let mut state = self.state();
        let (told, news) = (state.look(), state.news());
        drop(state);
        tell(news);
        self.told(told);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wake for Tenure {
    fn wake(self: Arc<Self>) {
        self.look();
    }
}

/// What is told of a lost hold: its node, and why. Only once nothing is locked, because subscribers are not ours.
fn tell(news: Option<(String, Loss)>) {
    if let Some((node, cause)) = news {
        meter::lost(cause.label());
        tracing::warn!(node, %cause, "a lock was lost while it was held");
    }
}

impl State {
    /// The loss of a hold, once.
    fn news(&mut self) -> Option<(String, Loss)> {
        let holds = matches!(self.phase, Phase::Holding(_) | Phase::Moving(_));
        let loss = self.loss.filter(|_| holds && !self.is_told)?;
        self.is_told = true;
        Some((self.path.clone(), loss))
    }

    /// Looks at the watch on our own node, and returns what it has told just now.
    ///
    /// Events come in order, so whoever has just seen another node's event also sees here what happened before it,
    /// even if nobody has been woken yet.
    fn look(&mut self) -> Option<Event> {
        let (watch, waker) = self.own.as_mut()?;
        // A task that has run for long would be told to come back later by waking it, here and now, under our lock.
        let watch = std::pin::pin!(tokio::task::unconstrained(watch));
        let Poll::Ready(event) = watch.poll(&mut Context::from_waker(waker)) else {
            return None;
        };
        self.own = None;
        self.is_watched = false;
        if event == Event::Deleted && matches!(self.phase, Phase::Waiting | Phase::Holding(_)) {
            self.loss.get_or_insert(Loss::Removed);
        }
        Some(event)
    }
}

/// The nodes that are kept under one session.
#[derive(Debug, Default)]
pub(crate) struct Roll {
    members: Mutex<Members>,
    /// The connection was lost or is back, the session is over, or somebody joined an empty roll.
    stirred: Notify,
    /// Somebody has a node that is not watched yet, or must confirm a hand-off.
    unwatched: Notify,
}

#[derive(Debug, Default)]
struct Members {
    next: u64,
    all: HashMap<u64, Arc<Tenure>>,
    unwatched: Vec<Unwatched>,
    /// Nodes that must be gone, because those who waited for them were granted by a hand-off.
    handed_off: HashMap<Arc<str>, HandedOff>,
    /// The last of them that was gone indeed.
    gone: Option<Arc<HandOff>>,
    over: bool,
}

/// A node that its owner does not watch yet.
#[derive(Debug)]
struct Unwatched {
    tenure: Arc<Tenure>,
    was_passed_over: bool,
}

#[derive(Debug)]
struct HandedOff {
    signal: Arc<HandOff>,
    granted: Vec<Arc<Tenure>>,
    is_asked: bool,
}

impl Roll {
    /// Enters a node; it stays until [`Roll::strike`].
    pub(crate) fn enter(&self, tenure: &Arc<Tenure>) -> u64 {
        let mut members = self.members();
        let number = members.next;
        members.next += 1;
        members.all.insert(number, Arc::clone(tenure));
        let is_first = members.all.len() == 1;
        drop(members);
        if is_first {
            self.stir();
        }
        self.watch(tenure);
        number
    }

    pub(crate) fn strike(&self, number: u64) {
        self.members().all.remove(&number);
    }

    /// Has the node watched, soon.
    pub(crate) fn watch(&self, tenure: &Arc<Tenure>) {
        let mut members = self.members();
        members.unwatched.push(Unwatched { tenure: Arc::clone(tenure), was_passed_over: false });
        let first = members.unwatched.len() == 1;
        drop(members);
        if first {
            self.unwatched.notify_one();
        }
    }

    /// The nodes to watch now, out of those that are looked at once in each `grace`, and whether there are others.
    ///
    /// Each is passed over once: many are gone again by then.
    fn to_watch(&self, grace: Duration) -> (Vec<Arc<Tenure>>, bool) {
        let mut members = self.members();
        let mut due = Vec::new();
        members.unwatched.retain_mut(|it| {
            let has_left = it.tenure.has_left();
            let is_due = grace.is_zero() || it.was_passed_over;
            it.was_passed_over = true;
            if is_due && !has_left {
                due.push(Arc::clone(&it.tenure));
            }
            !is_due && !has_left
        });
        (due, !members.unwatched.is_empty())
    }

    /// The signal that the holder whose node is at `path` has sent. Thousands of readers may be let in by one.
    pub(crate) fn hand_off(&self, path: &Arc<str>) -> Arc<HandOff> {
        let members = self.members();
        let known = members.handed_off.get(path).map(|handed| &handed.signal);
        let known = known.or(members.gone.as_ref().filter(|gone| gone.path == *path));
        known.cloned().unwrap_or_else(|| Arc::new(HandOff::new(Arc::clone(path))))
    }

    /// Asks for a look whether the node is gone by whose hand-off `tenure` was granted.
    pub(crate) fn confirm_gone(&self, signal: &Arc<HandOff>, tenure: &Arc<Tenure>) {
        if signal.is_confirmed() {
            return;
        }
        let mut members = self.members();
        if members.gone.as_ref().is_some_and(|gone| gone.path == signal.path) {
            return signal.confirm();
        }
        let handed = members.handed_off.entry(Arc::clone(&signal.path)).or_insert_with(|| {
            let signal = Arc::clone(signal);
            HandedOff { signal, granted: Vec::new(), is_asked: false }
        });
        handed.granted.push(Arc::clone(tenure));
        drop(members);
        self.unwatched.notify_one();
    }

    /// The paths of nodes to look at, of which somebody still holds by their hand-off.
    fn to_look_at(&self) -> Vec<Arc<str>> {
        let mut members = self.members();
        members.handed_off.retain(|_, handed| handed.is_asked || handed.granted.iter().any(|it| it.is_holding()));
        let unasked = members.handed_off.iter_mut().filter(|(_, handed)| !handed.is_asked);
        let asked = unasked.map(|(path, handed)| {
            handed.is_asked = true;
            Arc::clone(path)
        });
        asked.collect()
    }

    /// Ends a look at a node that was handed off; returns those who were granted by that.
    fn looked_at(&self, path: &Arc<str>, is_gone: bool) -> Vec<Arc<Tenure>> {
        let mut members = self.members();
        let Some(HandedOff { signal, granted, .. }) = members.handed_off.remove(path) else { return Vec::new() };
        if is_gone {
            signal.confirm();
            members.gone = Some(signal);
        }
        granted
    }

    /// Whoever has not been told otherwise by now lost its node with the session, and not to whoever removes it next.
    pub(crate) fn session_is_over(&self, lease: &Lease) {
        self.members().over = true;
        self.look_at_all(lease);
        self.tell_all();
        self.stir();
        self.unwatched.notify_one();
    }

    /// Has the renewal of the lease look again.
    pub(crate) fn stir(&self) {
        self.stirred.notify_one();
    }

    /// Notices who has lost its node, and tells.
    pub(crate) fn look_at_all(&self, lease: &Lease) {
        for tenure in self.all() {
            tenure.loss(lease);
        }
    }

    /// Tells of the holds that are in doubt because the connection is lost, and of those that are not any more.
    pub(crate) fn link_changed(&self, lease: &Lease, is_connected: bool) {
        if !tracing::enabled!(tracing::Level::WARN) {
            return;
        }
        for tenure in self.all().into_iter().filter(|tenure| tenure.is_holding() && tenure.loss(lease).is_none()) {
            let (node, left) = (tenure.path(), lease.remaining().unwrap_or_default());
            if is_connected {
                tracing::info!(node, ?left, "the connection is back, and the lock is still held");
            } else {
                tracing::warn!(node, ?left, "the connection is lost while a lock is held");
            }
        }
    }

    /// Has everyone who waits for a loss look again.
    pub(crate) fn tell_all(&self) {
        for tenure in self.all() {
            tenure.changed.notify_waiters();
        }
    }

    fn all(&self) -> Vec<Arc<Tenure>> {
        self.members().all.values().cloned().collect()
    }

    /// The nodes for a heartbeat to check: all that hold, or else one that waits.
    pub(crate) fn to_check(&self) -> Vec<(Arc<Tenure>, String)> {
        let members = self.members();
        let standing = || members.all.values().filter(|tenure| tenure.is_standing_at(&tenure.path()));
        let holding = standing().filter(|tenure| tenure.is_holding());
        let mut chosen: Vec<_> = holding.map(|tenure| (Arc::clone(tenure), tenure.path())).collect();
        if chosen.is_empty() {
            chosen.extend(standing().next().map(|tenure| (Arc::clone(tenure), tenure.path())));
        }
        chosen
    }

    fn is_empty(&self) -> bool {
        self.members().all.is_empty()
    }

    fn is_over(&self) -> bool {
        self.members().over
    }

    fn members(&self) -> MutexGuard<'_, Members> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Looks after the nodes of a session until it is over: a backend spawns this once a session, on its own thread.
///
/// Each node is watched by its owner, at the latest from one to two `grace` after it was entered: a short hold is over by
/// then and costs nothing. A waiter watches its node from the first moment. Each fifth of the session timeout a read
/// touches the session, each quarter also while there are no nodes, so that the next acquisition need not wait for the
/// lease; while there are, a transaction that only checks them follows, by which that counts.
pub async fn keep_alive(session: Weak<dyn Session>, grace: Duration) {
    let Some(lease) = session.upgrade().map(|session| Arc::clone(session.lease())) else {
        return;
    };
    tokio::join!(watch_nodes(&session, &lease, grace), renew(&session, &lease));
}

async fn watch_nodes(session: &Weak<dyn Session>, lease: &Lease, grace: Duration) {
    let roll = lease.roll();
    let mut more = false;
    loop {
        if !more {
            roll.unwatched.notified().await;
        }
        let pause = session.upgrade().filter(|_| !grace.is_zero()).map(|session| session.sleep(grace));
        if let Some(pause) = pause {
            pause.await;
        }
        let Some(session) = session.upgrade().filter(|_| !roll.is_over()) else {
            return;
        };
        let unwatched;
        (unwatched, more) = roll.to_watch(grace);
        if !unwatched.is_empty() {
            session.spawn(Box::pin(watch_own(Arc::clone(&session), unwatched)));
        }
        for path in roll.to_look_at() {
            session.spawn(Box::pin(expect_gone(Arc::downgrade(&session), path)));
        }
    }
}

/// Arms the watches of nodes on their owners' behalf: of thousands, a few at a time.
async fn watch_own(session: Arc<dyn Session>, unwatched: Vec<Arc<Tenure>>) {
    for some in unwatched.chunks(ARMED_AT_ONCE) {
        let asked: Vec<_> = some.iter().map(|tenure| (tenure, tenure.ask_to_watch(&session))).collect();
        for (tenure, asked) in asked {
            let Some(asked) = asked else { continue };
            match tenure.watched(asked).await {
                Ok(()) | Err(Failure::Over(_)) => {}
                Err(Failure::Unknown(_)) => {
                    if session.connected().await.is_ok() {
                        session.lease().roll().watch(tenure);
                    }
                }
                Err(failure) => cannot_watch(tenure, &failure),
            }
        }
    }
}

pub(crate) fn cannot_watch(tenure: &Tenure, failure: &Failure) {
    tracing::warn!(path = tenure.path(), %failure, "cannot watch a lock node of our own");
}

/// A hand-off is the one write to a lock node, in the transaction that deletes it: if the node is still there, somebody
/// else wrote to it, and the contenders that took that for a hand-off do not hold.
///
/// A server that lags may show a node that is gone. So a node that is seen is no proof: a quorum is asked as well.
async fn expect_gone(session: Weak<dyn Session>, path: Arc<str>) {
    loop {
        let Some(live) = session.upgrade() else {
            return;
        };
        let mut answer = live.data(&path).await.map(drop);
        if answer.is_ok() {
            let check = [Operation::Check { path: path.to_string(), version: None }];
            answer = live.transact(&check).await.map(drop).map_err(|failure| match failure {
                Failure::Operation { failure, .. } => *failure,
                failure => failure,
            });
        }
        if matches!(answer, Err(Failure::Unknown(_))) && live.connected().await.is_ok() {
            continue;
        }
        let is_gone = answer == Err(Failure::NoNode);
        let is_there = answer.is_ok();
        let granted = live.lease().roll().looked_at(&path, is_gone);
        if is_there {
            tracing::error!(path = &*path, "a stranger wrote to a lock node, which was taken for a hand-off");
            for tenure in granted {
                tenure.lose(Loss::Interfered);
            }
        }
        return;
    }
}

async fn renew(session: &Weak<dyn Session>, lease: &Arc<Lease>) {
    // At first the handshake counts.
    let Some(timeout) = session.upgrade().map(|session| session.timeout()) else { return };
    let mut due = lease.now() + timeout / 4;
    let mut is_told = true;
    loop {
        let stirred = lease.roll().stirred.notified();
        let Some(live) = session.upgrade().filter(|_| !lease.roll().is_over()) else {
            return;
        };
        let left = lease.remaining();
        // What was held is lost when the lease runs out, whether anybody looks or not.
        if left.is_none() && !std::mem::replace(&mut is_told, true) {
            lease.roll().look_at_all(lease);
            lease.roll().tell_all();
        }
        is_told &= left.is_none();
        let now = lease.now();
        // While nothing is kept the client's own pings must have room in between: requests put them off.
        let period = if lease.roll().is_empty() { live.timeout() / 4 } else { lease.heartbeat_period() };
        due = due.min(now + period);
        if lease.is_steady() {
            drop(live);
            stirred.await;
            continue;
        } else if !lease.is_connected() {
            // As soon as the connection is back.
            due = now;
        } else if due <= now {
            due = now + period;
            live.spawn(Box::pin(heartbeat(Weak::clone(session), Arc::clone(lease))));
        }
        let nap = if lease.is_connected() { due - now } else { live.timeout() };
        let nap = nap.min(left.unwrap_or(nap));
        let pause = live.sleep(nap);
        drop(live);
        let mut stirred = std::pin::pin!(stirred);
        let is_over = tokio::select! {
            () = &mut stirred => false,
            () = pause => lease.now() < now + nap / 2,
        };
        // Timers that are over at once are those of a runtime that is gone.
        if is_over {
            stirred.await;
        }
    }
}

/// Touches the session, and has that count if anything is kept under it.
async fn heartbeat(session: Weak<dyn Session>, lease: Arc<Lease>) {
    let Some(live) = session.upgrade() else { return };
    if !lease.roll().is_empty() {
        meter::heartbeat();
    }
    let soon = live.timeout() / 20;
    let touched = lease.now();
    if lease.since_touch() > soon {
        let touch = live.data("/");
        drop(live);
        if let Err(Failure::Unknown(_) | Failure::Over(_)) = touch.await {
            return;
        }
    } else {
        drop(live);
    }
    let Some(pause) = session.upgrade().map(|session| session.sleep(lease.settling())) else { return };
    pause.await;
    // A session that is busy needs no check.
    if let Some(live) = session.upgrade().filter(|_| !lease.counts_since(touched.saturating_sub(soon)))
        && lease.is_connected()
    {
        check_own(&live).await;
    }
}

/// A check-only transaction commits through the quorum, changes nothing, and fails when a node is gone.
async fn check_own(session: &Arc<dyn Session>) {
    for some in session.lease().roll().to_check().chunks(CHECKS_PER_HEARTBEAT) {
        let check = |(_, path): &(_, String)| Operation::Check { path: path.clone(), version: None };
        let checks: Vec<_> = some.iter().map(check).collect();
        match session.transact(&checks).await {
            Err(Failure::Operation { index, failure }) if *failure == Failure::NoNode => {
                if let Some((tenure, path)) = some.get(index) {
                    tenure.gone_from(path);
                }
            }
            Err(Failure::Operation { failure, .. }) => {
                tracing::warn!(%failure, "a heartbeat cannot check a lock node of our own");
            }
            Err(_) => return,
            Ok(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    /// The server removes the node of a session that has expired, and tells its owner, if it listens again, of that first.
    #[test]
    fn a_node_found_removed_after_the_lease_ran_out_was_lost_with_the_lease() {
        for (stopped_for, why) in [(0, Loss::Removed), (6_000, Loss::LeaseRanOut)] {
            let clock = Arc::new(AtomicU64::new(100_000));
            let hands = Arc::clone(&clock);
            let read = move || Duration::from_millis(hands.load(Ordering::SeqCst));
            let lease = Arc::new(Lease::with_clock(Duration::from_secs(6), Box::new(read)));
            lease.began(lease.now());
            let tenure = Tenure::new("/lock/node".to_owned(), &lease);
            tenure.hold(lease.stretch().unwrap());
            assert_eq!(tenure.loss(&lease), None);

            clock.fetch_add(stopped_for, Ordering::SeqCst);
            tenure.arm("/lock/node", Watch::new(std::future::ready(Event::Deleted)));
            assert_eq!(tenure.loss(&lease), Some(why));
        }
    }
}
