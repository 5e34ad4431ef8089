//! The cache of one lock handle: the newest kept node (a node that the process keeps between uses), and the uses that
//! join this node.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::contend::config::LockConfig;
use crate::contend::contender::{Contender, LimitedUse};
use crate::error::error::Error;
use crate::keep::kept::{Granted, KeptNode, Why, Work, wake};
use crate::keep::uses::Joined;
use crate::observe::trace::HoldTrace;
use crate::queue::mode::Mode;
use crate::queue::node_name::NodeName;
use crate::session::lease::Moment;
use crate::session::request::Loss;
use crate::session::thread::{FORKED, is_forked};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::telemetry::debug::debug;

/// The nodes that one lock handle keeps between uses.
pub(crate) struct Cache {
    config: Arc<LockConfig>,
    idle: Duration,
    /// The newest kept node. New uses join only this node.
    newest: Mutex<Option<Arc<KeptNode>>>,
    /// One flag for READ nodes and one for WRITE nodes: whether another contender asked for the last kept node of this mode
    /// before the node had a second use. If so, the next acquisition of this mode keeps no node.
    in_vain: [Arc<AtomicBool>; 2],
}

impl Cache {
    pub(crate) fn new(config: &Arc<LockConfig>, idle: Duration) -> Cache {
        Cache { config: Arc::clone(config), idle, newest: Mutex::default(), in_vain: Default::default() }
    }

    /// Joins the newest kept node. Returns `None` if the use cannot run now, or if there is no such node.
    pub(crate) fn join_now(&self, mode: Mode) -> Option<KeptUse> {
        // The use joins the node while the mutex is locked, so the `Arc` of the node is not cloned. This code runs
        // millions of times a second, and the clone would be one more write to memory that all threads write.
        let newest = self.newest.lock();
        let used = newest.as_ref().and_then(|kept| kept.join_now(mode));
        drop(newest);
        used.filter(|used| used.hold().held_at().is_some())
    }

    /// Joins the newest kept node. Refuses the use in a forked process. Also refuses the use if no node is kept, or if
    /// the newest node is lost, is closed to further uses or does not cover this mode.
    pub(crate) fn join(&self, mode: Mode) -> Joined<KeptUse, PendingUse> {
        if is_forked() {
            return Joined::Refused;
        }
        let newest = self.newest.lock().clone();
        newest.map_or(Joined::Refused, |kept| kept.join(mode))
    }

    /// Joins the newest kept node, or begins to acquire a new node with `begin`. Refuses the use in a forked process.
    /// Also refuses a use that needs a new node if another contender asked for the last node of this mode before that
    /// node had a second use.
    pub(crate) fn join_or_begin(
        &self,
        mode: Mode,
        begin: impl Fn(&Arc<KeptNode>) -> Work,
    ) -> Joined<KeptUse, PendingUse> {
        loop {
            // A forked process has no thread that would grant a use.
            if is_forked() {
                return Joined::Refused;
            }
            let before = self.newest.lock().clone();
            match before.as_ref().map_or(Joined::Refused, |kept| kept.join(mode)) {
                Joined::Refused => {}
                found => return found,
            }
            let Some(kept) = self.new_node(mode) else {
                give_up(before, Why::Replaced);
                return Joined::Refused;
            };
            let work = begin(&kept);
            kept.state.lock().work = Some(work);
            let found = kept.join(mode);
            let mut newest = self.newest.lock();
            // Another use may have replaced the newest node since `before` was read. If so, the next round of the loop
            // joins the node of that use.
            if newest.as_ref().map(Arc::as_ptr) == before.as_ref().map(Arc::as_ptr) {
                *newest = Some(kept);
                drop(newest);
                give_up(before, Why::Replaced);
                return found;
            }
        }
    }

    /// Creates a kept node of this mode, without an acquisition yet. Returns `None` if another contender asked for the
    /// last node of this mode before that node had a second use. The call after a `None` creates a node again.
    fn new_node(&self, mode: Mode) -> Option<Arc<KeptNode>> {
        let in_vain = &self.in_vain[usize::from(mode == Mode::Write)];
        let keeps = !in_vain.swap(false, Ordering::AcqRel);
        keeps.then(|| KeptNode::new(&self.config, mode, self.idle, in_vain))
    }

    /// Gives up the newest kept node if it is idle, because an acquisition of this process could not join the node.
    pub(crate) fn let_go(&self) {
        let newest = self.newest.lock().take_if(|kept| kept.is_unused());
        give_up(newest, Why::Replaced);
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        let newest = self.newest.lock().take();
        give_up(newest, Why::Closed);
    }
}

/// Gives up a node that is no longer the newest.
fn give_up(kept: Option<Arc<KeptNode>>, why: Why) {
    kept.iter().for_each(|kept| kept.give_up(why));
}

debug!(Cache as "Cache", |it| idle: it.idle);

impl KeptNode {
    pub(crate) fn join(self: &Arc<Self>, mode: Mode) -> Joined<KeptUse, PendingUse> {
        let mut state = self.state.lock();
        let (joined, granted) = (state.uses.join(mode), state.granted.clone());
        drop(state);
        match joined {
            Joined::Refused => Joined::Refused,
            Joined::Waits(number) => {
                self.crowded.notify_waiters();
                Joined::Waits(PendingUse { kept: Arc::clone(self), number, is_over: false })
            }
            Joined::Runs(number) => self.run(number, granted).map_or(Joined::Refused, Joined::Runs),
        }
    }

    /// Joins the node like [`KeptNode::join`], but returns `None` if the use cannot run now. Does not check whether the node is
    /// lost.
    pub(crate) fn join_now(&self, mode: Mode) -> Option<KeptUse> {
        let mut state = self.state.lock();
        let granted = Arc::clone(state.granted.as_ref()?);
        let number = state.uses.join_now(mode)?;
        drop(state);
        Some(KeptUse::new(granted, number))
    }

    /// Returns the running use with this id. Returns `None` if `granted` is `None`, because the node has no hold. If the node is
    /// lost, gives the node up and returns `None`.
    fn run(&self, number: u64, granted: Option<Arc<Granted>>) -> Option<KeptUse> {
        let used = KeptUse::new(granted?, number);
        if let Err(loss) = used.held_at() {
            self.give_up(Why::from_loss(loss));
            return None;
        }
        Some(used)
    }
}

/// A running use of a kept node, or one of several shares of the use. Dropping the last share ends the use. If the node is
/// closed to further uses, the node is given up when its last use ends.
pub(crate) struct KeptUse {
    granted: Arc<Granted>,
    number: u64,
    /// The span of the use, the gauge of holders and the warning about a long hold, which all end with the use. `None`
    /// if the user wants none of them.
    trace: Option<Arc<HoldTrace>>,
    /// The time limit of the use. `None` if uses have no limit.
    limit: Option<Arc<LimitedUse>>,
    /// Whether a downgrade has begun and not ended. During a downgrade, the ensemble may have the WRITE node or the READ node.
    is_changing: bool,
    is_over: bool,
}

impl KeptUse {
    fn new(granted: Arc<Granted>, number: u64) -> KeptUse {
        KeptUse { granted, number, trace: None, limit: None, is_changing: false, is_over: false }
    }

    pub(crate) fn hold(&self) -> &Arc<Contender> {
        &self.granted.hold
    }

    /// Returns the loss of the hold if the hold is found lost. Otherwise returns the present time on the lease's clock.
    pub(crate) fn held_at(&self) -> Result<Moment, Loss> {
        match self.hold().held_at() {
            Some(now) => Ok(now),
            None => self.hold().detect_loss().map_or_else(|| Ok(self.hold().now()), Err),
        }
    }

    /// Waits until this use excludes another contender or another use of this process. Returns the name of that contender's
    /// node. A waiting use of this process has no node of its own, so the name of the kept node is returned for it.
    pub(crate) async fn contended(&self) -> Result<NodeName, Error> {
        let kept = Arc::downgrade(&self.granted.kept);
        tokio::select! {
            biased;
            first = self.hold().contended() => first,
            () = KeptNode::wait_until_crowded(&kept) => Ok((*self.hold().node_name()).clone()),
        }
    }

    /// Starts the time limit of the use, and stores its trace.
    pub(crate) fn begin(&mut self, trace: HoldTrace) {
        self.limit = self.hold().begin_limited_use().map(Arc::new);
        self.trace = trace.is_recorded().then(|| Arc::new(trace));
    }

    /// Returns a further share of the use, for a further guard.
    pub(crate) fn share(&self) -> KeptUse {
        self.granted.kept.state.lock().uses.share(self.number);
        let mut share = KeptUse::new(Arc::clone(&self.granted), self.number);
        share.trace = self.trace.clone();
        share.limit = self.limit.clone();
        share
    }

    /// Ends the use. Returns the hold if the node is given up now. `now` returns the time of the end.
    fn end(&mut self, now: impl FnOnce(&Contender) -> Moment) -> Option<Arc<Contender>> {
        if std::mem::replace(&mut self.is_over, true) {
            return None;
        }
        let now = now(self.hold());
        if now == FORKED {
            // Dropping a trace or a limit would lock mutexes, which the parent's threads may have held during the fork.
            std::mem::forget((self.trace.take(), self.limit.take()));
            return None;
        }
        self.trace = None;
        self.limit = None;
        if self.is_changing {
            self.granted.kept.give_up(Why::Unsure);
        }
        self.granted.kept.end_use(self.number, self.hold(), now)
    }

    /// Ends the use. If the node is given up now, waits until the node is gone.
    pub(crate) async fn release(mut self) -> Result<(), Error> {
        let now = self.held_at().map_err(Error::Lost)?;
        match self.end(|_| now) {
            Some(hold) => hold.give_back().await,
            None => Ok(()),
        }
    }

    /// Downgrades the node. The use continues as a read.
    pub(crate) async fn downgrade(&mut self) -> Result<(), Error> {
        self.is_changing = true;
        self.hold().change_to_read().await?;
        self.is_changing = false;
        if let Some(trace) = self.trace.as_mut().and_then(Arc::get_mut) {
            trace.begin_read_hold(self.granted.hold.user_path(), self.granted.hold.node());
        }
        let woken = self.granted.kept.state.lock().uses.downgraded(self.number);
        wake(woken);
        Ok(())
    }
}

impl Drop for KeptUse {
    fn drop(&mut self) {
        drop(self.end(Contender::now));
    }
}

/// A use that waits until the node is acquired, or until other uses of the node end. Dropping the use ends the wait. If
/// no other use waits for the acquisition of the node, the drop cancels the acquisition, too.
pub(crate) struct PendingUse {
    /// The node that the use waits for.
    pub(super) kept: Arc<KeptNode>,
    number: u64,
    is_over: bool,
}

impl PendingUse {
    /// Waits until the use runs. Returns `None` if the use is refused, because the node is closed to further uses or lost.
    ///
    /// # Cancel safety
    /// If the future is dropped, the use still waits, and the next call of this method goes on with the wait.
    pub(crate) async fn wait(&mut self) -> Result<Option<KeptUse>, Error> {
        poll_fn(|context| self.poll(context)).await
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<KeptUse>, Error>> {
        loop {
            let mut state = self.kept.state.lock();
            let (standing, granted) = (state.uses.standing(self.number, context.waker()), state.granted.clone());
            drop(state);
            self.is_over = standing != Joined::Waits(());
            return Poll::Ready(match standing {
                Joined::Waits(()) if self.kept.poll_acquisition() => continue,
                Joined::Waits(()) => return Poll::Pending,
                Joined::Runs(()) => Ok(self.kept.run(self.number, granted)),
                Joined::Refused => self.kept.error.get().cloned().map_or(Ok(None), Err),
            });
        }
    }
}

impl Drop for PendingUse {
    fn drop(&mut self) {
        if !self.is_over {
            let mut state = self.kept.state.lock();
            let woken = state.uses.leave(self.number);
            drop(self.kept.settle(state, woken));
        }
    }
}
