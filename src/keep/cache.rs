//! The node that one lock handle and its clones keep in ZooKeeper between uses (a kept node), and the uses that join
//! the node. A use is one acquisition of the lock by this process, with its guards.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::contend::config::LockConfig;
use crate::contend::contender::{Contender, UseLimit};
use crate::error::error::Error;
use crate::keep::kept::{AcquisitionFuture, GiveUpReason, GrantedNode, KeptNode, wake_all};
use crate::keep::uses::UseState;
use crate::observe::trace::HoldTrace;
use crate::queue::mode::Mode;
use crate::queue::node_name::NodeName;
use crate::session::lease::Moment;
use crate::session::request::Loss;
use crate::session::thread::{FORKED, is_in_forked_process};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::telemetry::debug::debug;

/// The newest node that one lock handle and its clones keep in ZooKeeper between uses (acquisitions by this process).
/// An earlier node is given up when its last use ends.
pub(crate) struct KeptNodeCache {
    config: Arc<LockConfig>,
    idle: Duration,
    /// The newest kept node, which may be closed to further uses. A new use joins no other kept node.
    newest: Mutex<Option<Arc<KeptNode>>>,
    /// One flag for each mode, `[READ, WRITE]`. The flag is set when another contender requests a kept node of this
    /// mode before the second use of that node, because the node was then kept for nothing. The next acquisition of
    /// this mode that needs a new node keeps none, and resets the flag. A request after the second use resets the flag,
    /// too.
    in_vain: [Arc<AtomicBool>; 2],
}

impl KeptNodeCache {
    pub(crate) fn new(config: &Arc<LockConfig>, idle: Duration) -> KeptNodeCache {
        KeptNodeCache { config: Arc::clone(config), idle, newest: Mutex::default(), in_vain: Default::default() }
    }

    /// Starts a use (an acquisition by this process) of the newest kept node. Returns `None` if there is no such node,
    /// if the use would have to wait or is refused, or if the node may be lost.
    pub(crate) fn try_join_newest(&self, mode: Mode) -> Option<KeptUseShare> {
        // The use joins while `newest` is locked, which saves a clone of the node's `Arc`. This code may run millions
        // of times a second, and each clone would change a reference count that all threads share.
        let newest = self.newest.lock();
        let used = newest.as_ref().and_then(|kept| kept.join_now(mode));
        drop(newest);
        used.filter(|used| used.contender().now_if_held().is_some())
    }

    /// Joins the newest kept node with a new use (an acquisition by this process), which then runs or waits. Refuses
    /// the use if this process was forked, there is no node, or the node [refuses](UseState::Refused) the use.
    pub(crate) fn join_newest(&self, mode: Mode) -> UseState<KeptUseShare, PendingUse> {
        if is_in_forked_process() {
            return UseState::Refused;
        }
        let newest = self.newest.lock().clone();
        newest.map_or(UseState::Refused, |kept| kept.join(mode))
    }

    /// Joins the newest kept node. If that node refuses the use, joins a new node instead: `begin` returns the future
    /// that acquires the new node. Refuses the use in a forked process. Also refuses a use that needs a new node if the
    /// flag of its mode in `in_vain` is set, because this acquisition must keep no node.
    pub(crate) fn join_newest_or_acquire(
        &self,
        mode: Mode,
        begin: impl Fn(&Arc<KeptNode>) -> AcquisitionFuture,
    ) -> UseState<KeptUseShare, PendingUse> {
        loop {
            // A fork copies only the thread that calls it. So the library's thread, which grants uses, does not run in
            // this process.
            if is_in_forked_process() {
                return UseState::Refused;
            }
            let before = self.newest.lock().clone();
            match before.as_ref().map_or(UseState::Refused, |kept| kept.join(mode)) {
                UseState::Refused => {}
                found => return found,
            }
            let Some(kept) = self.new_node_if_worth_keeping(mode) else {
                give_up_node(before, GiveUpReason::Replaced);
                return UseState::Refused;
            };
            let work = begin(&kept);
            kept.state.lock().work = Some(work);
            let found = kept.join(mode);
            let mut newest = self.newest.lock();
            // Another thread may have changed `newest` since `before` was read. If so, the new node is dropped, and the
            // loop tries again to join the newest node.
            if newest.as_ref().map(Arc::as_ptr) == before.as_ref().map(Arc::as_ptr) {
                *newest = Some(kept);
                drop(newest);
                give_up_node(before, GiveUpReason::Replaced);
                return found;
            }
        }
    }

    /// Creates a kept node of this mode. The caller then stores the acquisition in it. If the flag of this mode in
    /// `in_vain` is set, resets the flag and returns `None` instead.
    fn new_node_if_worth_keeping(&self, mode: Mode) -> Option<Arc<KeptNode>> {
        let in_vain = &self.in_vain[usize::from(mode == Mode::Write)];
        let keeps = !in_vain.swap(false, Ordering::AcqRel);
        keeps.then(|| KeptNode::new(&self.config, mode, self.idle, in_vain))
    }

    /// Gives up the newest kept node if the node is granted and no use runs or waits. Called for an acquisition of this
    /// process that cannot use the node.
    pub(crate) fn give_up_idle_node(&self) {
        let newest = self.newest.lock().take_if(|kept| kept.is_unused());
        give_up_node(newest, GiveUpReason::Replaced);
    }
}

impl Drop for KeptNodeCache {
    fn drop(&mut self) {
        let newest = self.newest.lock().take();
        give_up_node(newest, GiveUpReason::Closed);
    }
}

/// Calls [`KeptNode::give_up`] on a node that is no longer the newest, if there is one.
fn give_up_node(kept: Option<Arc<KeptNode>>, why: GiveUpReason) {
    kept.iter().for_each(|kept| kept.give_up(why));
}

debug!(KeptNodeCache as "KeptNodeCache", |it| idle: it.idle);

impl KeptNode {
    pub(crate) fn join(self: &Arc<Self>, mode: Mode) -> UseState<KeptUseShare, PendingUse> {
        let mut state = self.state.lock();
        let (joined, granted) = (state.uses.join(mode), state.granted.clone());
        drop(state);
        match joined {
            UseState::Refused => UseState::Refused,
            UseState::Waits(number) => {
                self.crowded.notify_waiters();
                UseState::Waits(PendingUse { kept: Arc::clone(self), number, is_over: false })
            }
            UseState::Runs(number) => {
                self.running_use_unless_lost(number, granted).map_or(UseState::Refused, UseState::Runs)
            }
        }
    }

    /// Starts a use (an acquisition by this process) of this node. Returns `None` if the use would have to wait or is
    /// refused. Does not check whether the node is lost.
    pub(crate) fn join_now(&self, mode: Mode) -> Option<KeptUseShare> {
        let mut state = self.state.lock();
        let granted = Arc::clone(state.granted.as_ref()?);
        let number = state.uses.join_now(mode)?;
        drop(state);
        Some(KeptUseShare::new(granted, number))
    }

    /// Returns the running use with this id. Returns `None` if `granted` is `None`. If the node is lost, ends the use,
    /// closes the node to further uses, and returns `None`.
    fn running_use_unless_lost(&self, number: u64, granted: Option<Arc<GrantedNode>>) -> Option<KeptUseShare> {
        let used = KeptUseShare::new(granted?, number);
        if let Err(loss) = used.now_if_held() {
            self.give_up(GiveUpReason::from_loss(loss));
            return None;
        }
        Some(used)
    }
}

/// A share of a running use of a kept node. Each guard of the use owns one share, and dropping the last share ends the
/// use. If the node is closed to further uses, the end of its last use gives the node up.
pub(crate) struct KeptUseShare {
    granted: Arc<GrantedNode>,
    number: u64,
    /// What ends with the last share of the use: the span, the part of the gauge of holders, and the task that warns of
    /// a long hold. `None` if the use has none of them, or has not started its trace yet.
    trace: Option<Arc<HoldTrace>>,
    /// The time limit of the use. `None` without `max_hold`, or if the limit has not started yet.
    limit: Option<Arc<UseLimit>>,
    /// Whether a downgrade has begun and has not succeeded. The ensemble may then have the WRITE node or the READ node.
    is_changing: bool,
    is_over: bool,
}

impl KeptUseShare {
    fn new(granted: Arc<GrantedNode>, number: u64) -> KeptUseShare {
        KeptUseShare { granted, number, trace: None, limit: None, is_changing: false, is_over: false }
    }

    pub(crate) fn contender(&self) -> &Arc<Contender> {
        &self.granted.hold
    }

    /// Returns the loss of the hold if the hold is found lost. Otherwise returns the present time on the lease's clock.
    pub(crate) fn now_if_held(&self) -> Result<Moment, Loss> {
        match self.contender().now_if_held() {
            Some(now) => Ok(now),
            None => self.contender().detect_loss().map_or_else(|| Ok(self.contender().lease_now()), Err),
        }
    }

    /// Waits until another contender must wait for this node, or until an acquisition by this process waits for the
    /// node. Returns the name of the contender's node. A waiting acquisition of this process has no node of its own, so
    /// the name of the kept node is returned for it. Fails if the node is lost or the queue cannot be listed.
    pub(crate) async fn until_contended(&self) -> Result<NodeName, Error> {
        let kept = Arc::downgrade(&self.granted.kept);
        tokio::select! {
            biased;
            first = self.contender().until_contended() => first,
            () = KeptNode::until_a_use_waits(&kept) => Ok((*self.contender().node_name()).clone()),
        }
    }

    /// Starts the time limit of the use if `max_hold` is set. Stores `trace` if the end of the use must be
    /// recorded.
    pub(crate) fn start_limit_and_trace(&mut self, trace: HoldTrace) {
        self.limit = self.contender().begin_limited_use().map(Arc::new);
        self.trace = trace.has_end_to_record().then(|| Arc::new(trace));
    }

    /// Returns a further share of the use, for a further guard.
    pub(crate) fn share(&self) -> KeptUseShare {
        self.granted.kept.state.lock().uses.add_guard(self.number);
        let mut share = KeptUseShare::new(Arc::clone(&self.granted), self.number);
        share.trace = self.trace.clone();
        share.limit = self.limit.clone();
        share
    }

    /// Ends this share of the use, unless the share has ended before. If this gives the node up, returns the node's
    /// contender, which the caller must give back or drop. `now` returns the present time, or [`FORKED`] in a forked
    /// process, in which nothing is ended.
    fn end_share(&mut self, now: impl FnOnce(&Contender) -> Moment) -> Option<Arc<Contender>> {
        if std::mem::replace(&mut self.is_over, true) {
            return None;
        }
        let now = now(self.contender());
        if now == FORKED {
            // Dropping a trace or a limit locks a mutex. If a thread of the parent process held this mutex during the
            // fork, the mutex stays locked for ever in this process.
            std::mem::forget((self.trace.take(), self.limit.take()));
            return None;
        }
        self.trace = None;
        self.limit = None;
        if self.is_changing {
            self.granted.kept.give_up(GiveUpReason::Unsure);
        }
        self.granted.kept.end_share(self.number, self.contender(), now)
    }

    /// Ends this share of the use. If this gives the node up, waits until the node is gone. If the node was lost, ends
    /// the share and returns the loss.
    pub(crate) async fn release(mut self) -> Result<(), Error> {
        let now = self.now_if_held().map_err(Error::Lost)?;
        match self.end_share(|_| now) {
            Some(hold) => hold.give_back().await,
            None => Ok(()),
        }
    }

    /// Replaces the WRITE node by a READ node. The use continues as a read. After an error, or if the future is
    /// dropped, the end of the use gives the node up.
    pub(crate) async fn downgrade(&mut self) -> Result<(), Error> {
        self.is_changing = true;
        self.contender().downgrade_untraced().await?;
        self.is_changing = false;
        if let Some(trace) = self.trace.as_mut().and_then(Arc::get_mut) {
            trace.begin_read_hold(self.granted.hold.user_path(), self.granted.hold.node());
        }
        let woken = self.granted.kept.state.lock().uses.record_downgrade(self.number);
        wake_all(woken);
        Ok(())
    }
}

impl Drop for KeptUseShare {
    fn drop(&mut self) {
        drop(self.end_share(Contender::lease_now));
    }
}

/// A use (an acquisition by this process) that waits for the grant of a kept node, or for other uses of the node.
/// Dropping this value ends the use. If this was the only use of a node that is not granted yet, the acquisition of the
/// node is dropped, too.
pub(crate) struct PendingUse {
    /// The node that the use waits for.
    pub(super) kept: Arc<KeptNode>,
    number: u64,
    is_over: bool,
}

impl PendingUse {
    /// Waits until the use runs. Returns `None` if the node refuses the use or is lost. Fails if the acquisition of the
    /// node has failed.
    ///
    /// # Cancel safety
    /// Dropping the future does not end the use. The next call of this method continues the wait.
    pub(crate) async fn wait(&mut self) -> Result<Option<KeptUseShare>, Error> {
        poll_fn(|context| self.poll(context)).await
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<KeptUseShare>, Error>> {
        loop {
            let mut state = self.kept.state.lock();
            let (use_state, granted) = (state.uses.poll_state(self.number, context.waker()), state.granted.clone());
            drop(state);
            self.is_over = use_state != UseState::Waits(());
            return Poll::Ready(match use_state {
                UseState::Waits(()) if self.kept.poll_acquisition() => continue,
                UseState::Waits(()) => return Poll::Pending,
                UseState::Runs(()) => Ok(self.kept.running_use_unless_lost(self.number, granted)),
                UseState::Refused => self.kept.error.get().cloned().map_or(Ok(None), Err),
            });
        }
    }
}

impl Drop for PendingUse {
    fn drop(&mut self) {
        if !self.is_over {
            let mut state = self.kept.state.lock();
            let woken = state.uses.end_share(self.number);
            drop(self.kept.give_up_if_closed_and_unused(state, woken));
        }
    }
}
