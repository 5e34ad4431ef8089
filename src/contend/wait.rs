//! The wait for the turn. The state machine [`Waiter`] decides the steps, and this module sends the requests.

use std::sync::Arc;

use futures_util::future::OptionFuture;

use crate::contend::acquisition::{Acquisition, Handle, IfTaken, WaitState};
use crate::contend::directory::ask;
use crate::contend::handle::ContenderHandle;
use crate::contend::queue_view::QueueView;
use crate::contend::warnings::Lateness;
use crate::error::error::{Error, PermitsError};
use crate::observe::on_wait::OnWait;
use crate::queue::contender::Contender;
use crate::queue::permits::{self, PERMITS, QUEUE};
use crate::queue::turn::{self, Departure, Predecessor, QueueEvent, Step, Take, Waiter};
use crate::session::contract::Session;
use crate::session::keep_alive;
use crate::session::presence::{self, Recheck, check};
use crate::session::request::{Event, Failure, Loss, Stat, Watch};
use crate::session::retry::{self, spawn_awaited};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::telemetry::meter;

/// A wait for the departure of one predecessor.
struct Behind<'a> {
    handle: &'a Handle,
    entry: &'a ContenderHandle,
    predecessor: Predecessor,
    /// Whether the previous wait had the same predecessor.
    is_again: bool,
    /// Whether to ask the predecessor's process to give the node up, because the process may merely keep the node
    /// between uses.
    asks: bool,
    directory: Option<Box<Stat>>,
    /// Whether the server has shown a ghost (a deleted node that this server still lists), so that it may show other
    /// ghosts.
    has_ghosts: bool,
    /// Notifies this wait if, shortly before the timeout, the leader shows that contenders ahead of us are ghosts.
    waiting: Option<&'a QueueView>,
}

impl Acquisition {
    /// Carries out the decisions of [`Waiter`] until our turn has come.
    ///
    /// The long steps are in boxed futures of their own, because each value in this future takes memory in each of
    /// thousands of waiters.
    pub(crate) async fn wait_for_turn(
        &self,
        entry: &ContenderHandle,
        wait: &mut WaitState<'_>,
        late: &mut Lateness<'_>,
    ) -> Result<Take, Error> {
        if let Some(target) = &self.target {
            late.begin(entry);
            target.check_early_read(entry).await?;
        }
        let mut waiter = Waiter::new(entry.contender(), self.handle.dialect.hands_off());
        let (mut step, mut before) = (Step::List, None);
        loop {
            step = match step {
                Step::List => Box::pin(self.list(entry, wait, &mut waiter, late)).await?,
                Step::Await { predecessor, asks } => {
                    let (directory, has_ghosts) = (wait.directory.take(), waiter.has_ghosts());
                    let (handle, waiting) = (&self.handle, wait.waiting);
                    let is_again = before.replace(Arc::clone(&predecessor.name)).as_ref() == Some(&predecessor.name);
                    let behind = Behind { handle, entry, predecessor, is_again, asks, directory, has_ghosts, waiting };
                    let departure = behind.departure(&mut wait.on_wait).await?;
                    waiter.next(QueueEvent::Departed(departure))
                }
                Step::Take(take) => return Ok(take),
                Step::Evicted => return Err(Error::Evicted(entry.find_loss().unwrap_or(Loss::Removed))),
                Step::Foreign(name) => return Err(self.handle.doubt(&name)),
            }
        }
    }

    /// Lists the queue, and returns the next step. If the contender must wait, reports the contenders in the way.
    async fn list(
        &self,
        entry: &ContenderHandle,
        wait: &mut WaitState<'_>,
        waiter: &mut Waiter<Arc<Contender>>,
        late: &mut Lateness<'_>,
    ) -> Result<Step, Error> {
        let (session, me) = (entry.session(), &*entry.contender());
        let names = match wait.listing.take() {
            // The reply to the first listing was lost, or this is a later listing.
            None | Some(Err(Failure::Unknown(_))) => {
                self.target.iter().for_each(|target| target.discard_early_read());
                retry::until_known(session, || entry.list()).await
            }
            Some(names) => names,
        };
        let names = names.map_err(|failure| self.handle.stop(failure))?;
        entry.remove_orphans(&names);
        if !waiter.has_waited() {
            self.check_for_semaphore(session, &names, names.directory.as_ref()).await?;
            meter::entered(self.aim(), names.len().saturating_sub(1));
        }
        let is_alone = names.len() < 2;
        let leaving = if is_alone { Vec::new() } else { session.store().leaving_soon(entry.queue()) };
        let (paths, ghosts) = (&self.handle.paths, session.store().ghosts());
        waiter.pass_over(ghosts.shown(&paths.queue, &names, me.mode()));
        let mut step = waiter.next(QueueEvent::Listed { names: &names, leaving: &leaving });
        if step == Step::Evicted && !names.iter().any(|name| name == me.name()) {
            self.confirm_unlisted_node(entry, wait).await?;
            return Ok(Step::List);
        }
        if let (Step::Await { .. }, IfTaken::GiveUp) = (&step, wait.if_taken) {
            let ahead = paths.ghosts_ahead(session, &names, me.kind(), |names| turn::ahead_of(me, names));
            waiter.pass_over(ahead.await);
            step = waiter.next(QueueEvent::Listed { names: &names, leaving: &leaving });
        }
        let Step::Await { asks, .. } = step else { return Ok(step) };
        wait.directory = names.directory.filter(|_| asks).map(Box::new);
        if wait.if_taken == IfTaken::GiveUp {
            let blockers = paths.blockers(session, &names, me).await;
            return Err(Error::WouldBlock { blockers });
        }
        late.begin(entry);
        if let Some(on_wait) = &mut wait.on_wait {
            let seen = paths.progress(session, &names, me).await;
            on_wait.report_read(session, paths, me.dialect(), seen).await;
        }
        if let Some(waiting) = wait.waiting {
            let names = ghosts.without(&paths.queue, &names, me.mode());
            waiting.record(session, me, paths.progress_beside(&[], &names, me));
        }
        Ok(step)
    }
}

impl Acquisition {
    /// Asks the leader for our node, which the listing did not show, because a listing from a lagging server does not
    /// prove that the node is gone. Fails if the leader does not have the node.
    async fn confirm_unlisted_node(&self, entry: &ContenderHandle, wait: &mut WaitState<'_>) -> Result<(), Error> {
        let (session, path) = (entry.session(), entry.node().path());
        if entry.find_loss().is_none() {
            let is_at_leader = presence::leader_still_has(session, &path, &mut wait.denials).await;
            if is_at_leader.map_err(|failure| self.handle.stop(failure))? {
                return Ok(());
            }
        }
        Err(Error::Evicted(entry.find_loss().unwrap_or(Loss::Removed)))
    }

    /// Fails if the lock's path is that of a semaphore, whose node has data. Reads the data only if the stat of the
    /// node (or, without a stat, the names of its children) may be that of a semaphore.
    pub(crate) async fn check_for_semaphore(
        &self,
        session: &Arc<dyn Session>,
        names: &[String],
        directory: Option<&Stat>,
    ) -> Result<(), Error> {
        let is_known_to_be_none = || !names.iter().any(|name| name == QUEUE || name == PERMITS);
        if self.target.is_some()
            || directory.map_or_else(is_known_to_be_none, |stat| !permits::may_be_number(stat.data_length))
        {
            return Ok(());
        }
        let path = &self.handle.queue;
        match retry::data(session, path, false).await {
            Ok(Some((data, _))) if matches!(permits::decode(&data), Ok(Some(_))) => {
                Err(Error::Permits { path: path.to_string(), reason: PermitsError::NoLock })
            }
            // The node is missing, or has other data, or may not be read. A client that may not read the node could not use a
            // semaphore there either.
            Ok(_) | Err(Failure::NoAuth(_)) => Ok(()),
            Err(failure) => Err(self.handle.stop(failure)),
        }
    }
}

impl Behind<'_> {
    /// Watches our own node and the predecessor's node. If `asks`, also asks the predecessor's process to give the node
    /// up. Sends all requests before the first reply is awaited. Returns the watch on the predecessor's node.
    ///
    /// Events come in the order of the changes. Our own watch is armed first, so a removal of our node is seen before a
    /// later release by the predecessor. The predecessor's watch is armed before the request to give the node up, so
    /// the watch fires when the node is given up.
    async fn arm(&self, is_asked: &AtomicBool) -> Result<Watch, Failure> {
        let (session, node) = (self.entry.session(), self.entry.node());
        // A task of its own stores our watch, because a check at the leader may end this wait before the reply, and the watch
        // must be stored even then.
        let own = node.request_watch(session).map(|own_watch| {
            let (live, node) = (Arc::clone(session), Arc::clone(node));
            spawn_awaited(session, async move { keep_alive::store_watch(&live, &node, own_watch).await }, drop)
        });
        let watch = session.watch(&self.entry.child(&self.predecessor.name));
        if self.asks && !is_asked.swap(true, Ordering::Relaxed) {
            node.mark_asked();
            ask(&self.handle.queue, &self.handle.asking, session, self.directory.as_deref().copied());
        }
        // The predecessor's watch is answered last. Awaiting the later reply first wakes the task once instead of twice.
        let watch = watch.await;
        if let Some(own) = own {
            match own.await {
                Err(failure @ (Failure::Unknown(_) | Failure::Over(_))) => return Err(failure),
                Err(failure) => keep_alive::cannot_watch(node, &failure),
                Ok(()) => {}
            }
        }
        watch
    }

    /// Waits until the predecessor's node changes or goes. Meanwhile calls the user's `on_wait` listener when the progress
    /// changes.
    async fn departure(&self, on_wait: &mut Option<Box<OnWait>>) -> Result<Departure, Error> {
        let (session, paths, me) = (self.entry.session(), &self.handle.paths, &*self.entry.contender());
        // Boxed, because only a few of thousands of waiters have a listener.
        let looking = on_wait.as_mut().map(|on_wait| Box::pin(on_wait.keep_looking(session, paths, me)));
        let ghosts_found = self.waiting.map(|waiting| Box::pin(waiting.ghosts_found()));
        tokio::select! {
            biased;
            await_event = self.await_event() => await_event,
            check_in_intervals = self.check_in_intervals() => check_in_intervals,
            Some(never) = OptionFuture::from(looking) => match never {},
            Some(()) = OptionFuture::from(ghosts_found) => Ok(Departure::ListAgain),
        }
    }

    /// Arms the watch on the predecessor's node, and waits for its event.
    async fn await_event(&self) -> Result<Departure, Error> {
        let armed = Box::pin(async {
            let is_asked = AtomicBool::new(false);
            retry::until_known(self.entry.session(), || self.arm(&is_asked)).await
        });
        // Boxed, because the future that arms the watch is larger than the watch, and thousands of waiters await their watches.
        let watch = match armed.await {
            Ok(watch) => watch,
            // The server lists the predecessor's node, and reports for the second time that the node does not exist. So
            // the leader is asked.
            Err(Failure::NoNode) if self.is_again => match Box::pin(self.check_at_leader(true)).await? {
                Some(departure) => return Ok(departure),
                // The leader has the node. `check_in_intervals`, which is polled together with this future, ends the wait.
                None => return std::future::pending().await,
            },
            Err(Failure::NoNode) => return Ok(Departure::ListAgain),
            Err(failure) => return Err(self.handle.stop(failure)),
        };
        Ok(match watch.await {
            Event::Changed => Departure::Signalled,
            Event::Deleted => Departure::ListAgain,
            // The session is over. The caller ends the acquisition with the loss of our own node.
            Event::Over => std::future::pending().await,
        })
    }

    /// Checks our node and the predecessor's node at the leader in intervals, until one of the two nodes is gone. The
    /// checks find a departure whose event was lost.
    async fn check_in_intervals(&self) -> Result<Departure, Error> {
        let mut recheck = Recheck::after(self.entry.session(), self.has_ghosts);
        let mut is_at_once = self.has_ghosts;
        loop {
            recheck.pause().await;
            // Boxed, because a waiter's future is as large as its largest step, and most waiters pause here.
            if let Some(departure) = Box::pin(self.check_at_leader(std::mem::take(&mut is_at_once))).await? {
                return Ok(departure);
            }
        }
    }

    /// Checks our node and the predecessor's node at the leader once. Returns the departure, or `None` to go on waiting.
    /// `is_at_once` says whether no pause came before this check.
    async fn check_at_leader(&self, is_at_once: bool) -> Result<Option<Departure>, Error> {
        let (entry, predecessor) = (self.entry, &self.predecessor.name);
        let check_in_intervals = entry.failing(vec![check(entry.child(predecessor), None)]).await;
        if check_in_intervals.map_err(|loss| self.handle.evicted(loss))?.is_empty() {
            return Ok(None);
        }
        let (gone, kind) = (vec![Arc::clone(predecessor)], entry.contender().kind());
        let ghosts = presence::ghosts_of(entry.session(), entry.queue(), gone, kind).await;
        Ok(match ghosts.is_empty() {
            // A downgrade has replaced the predecessor's node. This server may still list the WRITE node, so an
            // immediate new listing could repeat without end. The wait goes on, and only a check after a pause leads to
            // a new listing.
            true => (!is_at_once).then_some(Departure::ListAgain),
            false => Some(Departure::GoneAtLeader),
        })
    }
}
