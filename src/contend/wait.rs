//! The wait of a contender for its turn. The state machine [`Waiter`] decides the steps, and this module sends the
//! requests.

use std::sync::Arc;

use tokio::time::Instant;

use crate::contend::config::LockConfig;
use crate::contend::contender::Contender;
use crate::contend::directory::ask_keepers_in_background;
use crate::contend::permit_request::{PendingPermitRead, PermitRequest, SeenPermits};
use crate::contend::warnings::{PendingWarning, WarningRegistration};
use crate::error::error::Error;
use crate::observe::queue_view::QueueView;
use crate::observe::trace::AcquireTrace;
use crate::queue::mode::AcquisitionAim;
use crate::queue::node_name::NodeName;
use crate::queue::turn::{self, GrantSource, ListingClaim, PredecessorNews, Step, Waiter};
use crate::session::presence::{self, existence_check};
use crate::session::request::{Failure, Listing, Loss, Stat, Watch, WatchEvent};
use crate::session::retry::{self, RetryBudget, spawn_with_reply};
use crate::session::watch::log_cannot_watch;
use crate::telemetry::meter;

/// The wait of an acquisition, from the create of its node until it is granted or fails.
pub(crate) struct PendingAcquisition<'a> {
    pub(crate) config: &'a LockConfig,
    pub(crate) permits: Option<&'a PermitRequest>,
    pub(crate) aim: AcquisitionAim,
    pub(crate) label: Option<&'a str>,
    pub(crate) trace: &'a AcquireTrace,
    pub(crate) entry: &'a Contender,
    /// Stores each listing that makes the contender wait. `None` if neither a timeout error nor a listener needs the
    /// listings.
    pub(crate) view: Option<&'a QueueView>,
    /// Decides the next step of the wait.
    pub(crate) waiter: Waiter<Arc<NodeName>>,
    /// When a warning about the acquisition is due. `None` if there is to be no further warning, or if the acquisition
    /// is in the list [`WaitWarnings`](crate::contend::warnings::WaitWarnings) already.
    pub(crate) warn_at: Option<Instant>,
    pub(crate) registered: Option<WarningRegistration>,
    /// Counts the listings in which the server left out our node, although the leader had the node.
    pub(crate) denials: RetryBudget,
}

impl PendingAcquisition<'_> {
    /// Carries out the decisions of [`Waiter`](crate::queue::turn::Waiter) until our turn has come. `first` is the
    /// reply to the listing that was sent right after the create, or `None` if the node was found by a later listing.
    /// `sent` is the early read of a semaphore's permits, if it was sent.
    ///
    /// Returns how our turn came. Also returns what the early read showed, if the listing that was sent right before
    /// the early read has shown our turn.
    ///
    /// The long steps are in boxed futures of their own, because there may be thousands of waiters, and each value in
    /// this future takes memory for each waiter.
    pub(crate) async fn wait_for_turn(
        &mut self,
        (mut first, sent): (Option<Result<Listing, Failure>>, Option<PendingPermitRead>),
    ) -> Result<(GrantSource, Option<Box<SeenPermits>>), Error> {
        let mut early_read = None;
        if let Some(request) = self.permits {
            self.register_for_warning();
            let read = request.await_early_read(self.entry, sent).await;
            early_read = read.map_err(|why| request.state.acquisition_error(self.entry, why))?;
        }
        // `names` is the last listing. The listing is dropped when the contender begins to wait, because a long listing
        // takes memory.
        let (mut step, mut names) = (Step::List, None::<Listing>);
        loop {
            step = match step {
                Step::List => {
                    let reply = first.take().filter(|reply| !matches!(reply, Err(Failure::Unknown(_))));
                    early_read.take_if(|_| reply.is_none());
                    let (step, listed) = Box::pin(self.list_and_decide(reply)).await?;
                    names = Some(listed);
                    step
                }
                Step::AskLeader(claim) => {
                    let differs = Box::pin(self.leader_contradicts(&claim, names.clone().unwrap_or_default())).await?;
                    self.waiter.next_after_leader_answer(claim, differs)
                }
                Step::Await { predecessor, asks } => {
                    let names = names.take().unwrap_or_default();
                    let directory = names.directory.filter(|_| asks).map(Box::new);
                    Box::pin(self.report_wait(names)).await;
                    let news = tokio::select! {
                        biased;
                        event = self.await_predecessor_event(&predecessor.name, asks, directory) => event?,
                        gone = self.until_gone_at_leader(&predecessor.name, false) => gone?,
                    };
                    self.waiter.next_after_news(news)
                }
                Step::AwaitAtLeader(predecessor) => {
                    let news = self.until_gone_at_leader(&predecessor.name, true).await?;
                    self.waiter.next_after_news(news)
                }
                Step::Take(grant) => return Ok((grant, early_read.filter(|_| !self.waiter.has_waited()))),
                Step::Evicted => return Err(self.evicted_error()),
                Step::Stuck(rival) => return Err(self.config.stuck_error(rival)),
                Step::Foreign(name) => return Err(self.config.foreign_error(&name)),
                Step::WouldBlock => return Err(Box::pin(self.would_block_error(names.unwrap_or_default())).await),
            }
        }
    }

    /// Lists the queue, unless the answer is given as `reply`. Returns the next step and the listing. Starts the
    /// removal of orphans: nodes in the listing that earlier creates of this contender have made although the reply was
    /// lost. For a lock, before the first wait, fails if a value or a semaphore has the path of the lock.
    async fn list_and_decide(&mut self, reply: Option<Result<Listing, Failure>>) -> Result<(Step, Listing), Error> {
        let (entry, session, config) = (self.entry, self.entry.session(), self.config);
        let reply = match reply {
            Some(reply) => reply,
            None => retry::repeat_until_known(session, || entry.list_queue()).await,
        };
        let names = reply.map_err(|failure| config.acquisition_error(failure))?;
        entry.remove_orphans(&names);
        if !self.waiter.has_waited() {
            if self.permits.is_none() {
                config.fail_if_other_use(session, &names, names.directory.as_ref()).await?;
            }
            meter::record_queue_length(self.aim, &config.path_label, names.len().saturating_sub(1));
        }
        let is_alone = names.len() < 2;
        let closing = if is_alone { Vec::new() } else { session.store().closing_node_names(entry.directory()) };
        let step = self.waiter.next_after_listing(&names, &closing);
        Ok((step, names))
    }

    /// Asks the ensemble's leader whether `claim`, which the listing `names` has shown, is true. Returns whether the
    /// leader contradicts the claim. If this client's server goes on contradicting the leader, connects to another
    /// server. Sends nothing if our node is known to be lost and the claim is that our node is missing.
    async fn leader_contradicts(&mut self, claim: &ListingClaim, names: Listing) -> Result<bool, Error> {
        let (entry, session, config) = (self.entry, self.entry.session(), self.config);
        let differs = match claim {
            // Our node is known to be lost, so the acquisition must end, and the leader need not be asked.
            ListingClaim::Unlisted if entry.detect_loss().is_some() => Ok(false),
            ListingClaim::Unlisted => {
                presence::await_retry_if_leader_has(session, &entry.node().path(), &mut self.denials).await
            }
            // The directory may have been deleted and created again, which restarts the sequence numbers. A server that
            // still lists a node of the deleted directory then shows one number twice.
            ListingClaim::Rival(rival) => {
                presence::leave_server_if_listed(session, entry.directory(), vec![rival.clone()]).await
            }
            ListingClaim::Ahead => {
                let me = entry.node_name();
                config.paths.ask_leader_if_gone(session, &turn::blocker_names(&me, &names)).await
            }
        };
        differs.map_err(|failure| config.acquisition_error(failure))
    }

    /// Returns the error of a contender that would have to wait and must not. `names` is the listing that shows the
    /// contenders ahead.
    async fn would_block_error(&self, names: Listing) -> Error {
        let (session, me, paths) = (self.entry.session(), self.entry.node_name(), &self.config.paths);
        Error::WouldBlock { blockers: paths.read_blockers(session, &names, &me).await }
    }

    /// Registers the acquisition for a warning about a long wait. If there is a `view`, stores in it the contender's
    /// place and the contenders that it waits for, both from the listing `names`, for the user's listener and the
    /// timeout error.
    async fn report_wait(&mut self, names: Listing) {
        self.register_for_warning();
        let Some(view) = self.view else { return };
        let (session, me, paths) = (self.entry.session(), &*self.entry.node_name(), &self.config.paths);
        let seen = match view.has_listener {
            true => paths.read_progress(session, &names, me).await,
            false => paths.progress_from_names(&[], &names, me),
        };
        view.record_listing(session, me, seen);
    }

    /// Registers the acquisition for a warning about a long wait, unless it is registered already, or `warn_at` was
    /// `None` from the beginning.
    pub(crate) fn register_for_warning(&mut self) {
        let Some(due) = self.warn_at.take() else { return };
        let (node, session) = self.entry.node_and_session();
        let (label, span, permits) =
            (self.label.map(str::to_owned), self.trace.acquire_span(), self.permits.map(|it| it.count));
        self.registered =
            Some(self.config.warnings.register(due, PendingWarning { session, node, label, span, permits }));
    }

    /// Returns the error of a contender whose node is lost, or is not in the queue.
    fn evicted_error(&self) -> Error {
        self.config.evicted_error(self.entry.detect_loss().unwrap_or(Loss::Removed))
    }

    /// Watches the predecessor's node and, unless it is watched already, our own node. If `asks`, also
    /// [requests](ask_keepers_in_background) that processes give up the nodes that they keep between uses in the
    /// directory. Sends both requests for watches before it awaits the first reply. Returns the watch on the
    /// predecessor's node. If only our own node cannot be watched, logs this.
    ///
    /// Events come in the order of the changes. Our own watch is armed first, so a removal of our node is seen before a
    /// later release by the predecessor. The predecessor's watch is armed before the request to give up nodes is sent,
    /// so that the watch fires if the predecessor's node is given up.
    async fn arm_watches(&self, predecessor: &str, asks: bool, directory: Option<Stat>) -> Result<Watch, Failure> {
        let (session, node) = (self.entry.session(), self.entry.node());
        // A separate task stores our watch, because a check at the leader may end this wait before the reply, and the
        // watch must be stored even then.
        let own = node.request_watch(session).map(|stored| spawn_with_reply(session, stored, drop));
        let watch = session.watch(&self.entry.child_path(predecessor));
        if asks {
            let config = self.config;
            node.change(|it| it.state.asked_itself = true);
            ask_keepers_in_background(&config.directory, &config.has_warned_of_ask, session, directory);
        }
        // The reply about the predecessor's watch comes after the reply about our own watch. Awaiting the later reply
        // first wakes the task once instead of twice.
        let watch = watch.await;
        if let Some(own) = own {
            match own.await {
                Err(failure @ (Failure::Unknown(_) | Failure::Over(_))) => return Err(failure),
                Err(failure) => log_cannot_watch(node, &failure),
                Ok(()) => {}
            }
        }
        watch
    }

    /// Arms the watch on the predecessor's node, and waits for its event. Returns [`PredecessorNews::Missing`] if the
    /// server says that the node does not exist.
    async fn await_predecessor_event(
        &self,
        predecessor: &Arc<str>,
        mut asks: bool,
        directory: Option<Box<Stat>>,
    ) -> Result<PredecessorNews, Error> {
        // If a reply is lost, the watches are requested again. The request that asks other processes to give up their
        // kept nodes is sent once here, because a separate task repeats it.
        let arm = || self.arm_watches(predecessor, std::mem::take(&mut asks), directory.as_deref().copied());
        // The future that arms the watch is boxed, because it is larger than the watch itself, and thousands of waiters
        // spend most of their time awaiting the event of their watches.
        let watch = match Box::pin(retry::repeat_until_known(self.entry.session(), arm)).await {
            Ok(watch) => watch,
            Err(Failure::NoNode) => return Ok(PredecessorNews::Missing),
            Err(failure) => return Err(self.config.acquisition_error(failure)),
        };
        Ok(match watch.await {
            WatchEvent::Changed => PredecessorNews::Signalled,
            WatchEvent::Deleted | WatchEvent::LookAgain => PredecessorNews::ListAgain,
            // If the event is the end of the session, this wait never ends. The caller, which awaits the loss of our
            // node at the same time, ends the acquisition.
            WatchEvent::Over => std::future::pending().await,
        })
    }

    /// Checks our node and the predecessor's node at the ensemble's leader now and then, until one of the two is gone.
    /// The checks find a deletion whose event was lost. If `is_due`, the first check is sent at once. If this client's
    /// server still lists the predecessor's node, which is gone, connects to another server. Fails if our node is gone.
    async fn until_gone_at_leader(&self, predecessor: &Arc<str>, is_due: bool) -> Result<PredecessorNews, Error> {
        let (entry, config) = (self.entry, self.config);
        let check = || vec![existence_check(entry.child_path(predecessor), None)];
        entry.until_check_fails(is_due, check).await.map_err(|loss| config.evicted_error(loss))?;
        let gone = vec![predecessor.to_string()];
        // Boxed, because a waiter's future is as large as its largest step.
        let left = Box::pin(presence::leave_server_if_listed(entry.session(), entry.directory(), gone)).await;
        left.map(|_| PredecessorNews::ListAgain).map_err(|failure| config.acquisition_error(failure))
    }
}
