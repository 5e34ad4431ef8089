//! The wait for the turn. The state machine [`Waiter`](crate::queue::turn::Waiter) decides the steps, and this module
//! sends the requests.

use std::sync::Arc;

use futures_util::future::OptionFuture;

use crate::contend::acquisition::{Acquisition, IfTaken, Wait};
use crate::contend::directory::ask;
use crate::error::error::{Error, PermitsError};
use crate::queue::permits::{self, PERMITS, QUEUE};
use crate::queue::turn::{self, Departure, Predecessor, QueueEvent, Step, Take};
use crate::session::contract::Session;
use crate::session::keep_alive;
use crate::session::presence::{self, Recheck, check};
use crate::session::request::{Event, Failure, Loss, Stat, Watch};
use crate::session::retry::{self, spawn_awaited};
use crate::telemetry::meter;

impl Wait<'_> {
    /// Carries out the decisions of [`Waiter`](crate::queue::turn::Waiter) until our turn has come.
    ///
    /// The long steps are in boxed futures of their own, because each value in this future takes memory in each of
    /// thousands of waiters.
    pub(crate) async fn wait_for_turn(&mut self) -> Result<Take, Error> {
        if let Some(target) = &self.acquisition.target {
            self.warn_if_long();
            self.early_read = target.early_read(self.entry).await?;
        }
        // The predecessor whose node the server has listed, and then said not to exist. This decides only how the wait
        // learns of the departure, so the machine does not know it.
        let (mut step, mut denied) = (Step::List, None);
        loop {
            step = match step {
                Step::List => Box::pin(self.list()).await?,
                Step::Await { predecessor: Predecessor { name, .. }, asks } => {
                    let departure = self.departure(&name, &mut denied, asks).await?;
                    self.waiter.next(QueueEvent::Departed(departure))
                }
                Step::Take(take) => return Ok(take),
                Step::Evicted => return Err(self.evicted()),
                Step::Stuck(rival) => return Err(self.acquisition.config.stuck(rival)),
                Step::Foreign(name) => return Err(self.acquisition.config.doubt(&name)),
            }
        }
    }

    /// Lists the queue, and returns the next step. If the contender must wait, reports the contenders in the way.
    async fn list(&mut self) -> Result<Step, Error> {
        let (acquisition, entry) = (self.acquisition, self.entry);
        let (session, me, config) = (entry.session(), &*entry.contender(), &acquisition.config);
        let names = match self.listing.take() {
            // The reply to the first listing was lost, or this is a later listing.
            None | Some(Err(Failure::Unknown(_))) => {
                self.early_read = None;
                retry::until_known(session, || entry.list()).await
            }
            Some(names) => names,
        };
        let names = names.map_err(|failure| config.stop(failure))?;
        entry.remove_orphans(&names);
        if !self.waiter.has_waited() {
            acquisition.check_for_semaphore(session, &names, names.directory.as_ref()).await?;
            meter::entered(acquisition.aim(), &config.path_label, names.len().saturating_sub(1));
        }
        let is_alone = names.len() < 2;
        let closing = if is_alone { Vec::new() } else { session.store().closing_soon(entry.queue()) };
        let paths = &config.paths;
        let step = self.waiter.next(QueueEvent::Listed { names: &names, closing: &closing });
        // This function, and not the machine, decides that the step is not final: see `Step::Evicted`.
        if step == Step::Evicted {
            self.confirm_unlisted_node().await?;
            return Ok(Step::List);
        }
        // A server that kept a node of a directory that was deleted shows a number twice, when the new directory gives it again.
        if let Step::Stuck(Some(rival)) = &step {
            let has_left = presence::leave_if_listed(session, entry.queue(), vec![rival.clone()]).await;
            if has_left.map_err(|failure| config.stop(failure))? {
                return Ok(Step::List);
            }
        }
        if let (Step::Await { .. }, IfTaken::GiveUp) = (&step, self.if_taken) {
            let gone = paths.are_some_gone(session, &turn::ahead_of(me, &names)).await;
            if gone.map_err(|failure| config.stop(failure))? {
                return Ok(Step::List);
            }
        }
        let Step::Await { asks, .. } = step else { return Ok(step) };
        self.directory = names.directory.filter(|_| asks).map(Box::new);
        if self.if_taken == IfTaken::GiveUp {
            let blockers = paths.blockers(session, &names, me).await;
            return Err(Error::WouldBlock { blockers });
        }
        self.warn_if_long();
        if let Some(on_wait) = &mut self.on_wait {
            let seen = paths.progress(session, &names, me).await;
            on_wait.report_read(session, paths, me.dialect(), seen).await;
        }
        if let Some(view) = self.view {
            view.record(session, me, paths.progress_beside(&[], &names, me));
        }
        Ok(step)
    }

    /// Asks the leader for our node, which the listing did not show, because a listing from a lagging server does not
    /// prove that the node is gone. Fails if the leader does not have the node.
    async fn confirm_unlisted_node(&mut self) -> Result<(), Error> {
        let entry = self.entry;
        if entry.detect_loss().is_none() {
            let is_at_leader =
                presence::leader_still_has(entry.session(), &entry.node().path(), &mut self.denials).await;
            if is_at_leader.map_err(|failure| self.acquisition.config.stop(failure))? {
                return Ok(());
            }
        }
        Err(self.evicted())
    }

    /// Returns the error of a contender that has no turn any more.
    fn evicted(&self) -> Error {
        self.acquisition.config.evicted(self.entry.detect_loss().unwrap_or(Loss::Removed))
    }

    /// Watches our own node and the predecessor's node. If `asks`, also [asks](ask) for every kept node in the directory.
    /// Sends all requests before the first reply is awaited. Returns the watch on the predecessor's node.
    ///
    /// Events come in the order of the changes. Our own watch is armed first, so a removal of our node is seen before a
    /// later release by the predecessor. The predecessor's watch is armed before the request for kept nodes, so the
    /// watch fires when the predecessor's node is given up.
    async fn arm(&self, predecessor: &str, asks: bool) -> Result<Watch, Failure> {
        let (session, node) = (self.entry.session(), self.entry.node());
        // A task of its own stores our watch, because a check at the leader may end this wait before the reply, and the watch
        // must be stored even then.
        let own = node.request_watch(session).map(|stored| spawn_awaited(session, stored, drop));
        let watch = session.watch(&self.entry.child(predecessor));
        if asks && !node.change(|it| std::mem::replace(&mut it.state.has_asked, true)) {
            let config = &self.acquisition.config;
            ask(&config.queue, &config.asking, session, self.directory.as_deref().copied());
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
    /// changes. `denied` is the predecessor of the previous wait, if that wait found no node to watch.
    async fn departure(
        &mut self,
        predecessor: &Arc<str>,
        denied: &mut Option<Arc<str>>,
        asks: bool,
    ) -> Result<Departure, Error> {
        let mut on_wait = self.on_wait.take();
        let (session, paths, me) = (self.entry.session(), &self.acquisition.config.paths, &*self.entry.contender());
        // Boxed, because only a few of thousands of waiters have a listener.
        let looking = on_wait.as_mut().map(|on_wait| Box::pin(on_wait.keep_looking(session, paths, me)));
        let departure = tokio::select! {
            biased;
            event = self.await_event(predecessor, denied, asks) => event,
            found = self.check_in_intervals(predecessor) => found,
            Some(never) = OptionFuture::from(looking) => match never {},
        };
        self.on_wait = on_wait;
        departure
    }

    /// Arms the watch on the predecessor's node, and waits for its event.
    async fn await_event(
        &self,
        predecessor: &Arc<str>,
        denied: &mut Option<Arc<str>>,
        asks: bool,
    ) -> Result<Departure, Error> {
        let is_again = denied.take().as_ref() == Some(predecessor);
        let armed = Box::pin(retry::until_known(self.entry.session(), || self.arm(predecessor, asks)));
        // Boxed, because the future that arms the watch is larger than the watch, and thousands of waiters await their watches.
        let watch = match armed.await {
            Ok(watch) => watch,
            // The server lists the predecessor's node, and reports for the second time that the node does not exist. So
            // the leader is asked.
            Err(Failure::NoNode) if is_again => {
                return match Box::pin(self.is_gone_at_leader(predecessor)).await? {
                    true => Ok(Departure::ListAgain),
                    // `check_in_intervals`, which is polled together with this future, ends the wait.
                    false => std::future::pending().await,
                };
            }
            Err(Failure::NoNode) => {
                *denied = Some(Arc::clone(predecessor));
                return Ok(Departure::ListAgain);
            }
            Err(failure) => return Err(self.acquisition.config.stop(failure)),
        };
        Ok(match watch.await {
            Event::Changed => Departure::Signalled,
            Event::Deleted | Event::LookAgain => Departure::ListAgain,
            // The session is over. The caller ends the acquisition with the loss of our own node.
            Event::Over => std::future::pending().await,
        })
    }

    /// Checks our node and the predecessor's node at the leader in intervals, until one of the two nodes is gone. The
    /// checks find a departure whose event was lost.
    async fn check_in_intervals(&self, predecessor: &Arc<str>) -> Result<Departure, Error> {
        let mut recheck = Recheck::new(self.entry.session());
        loop {
            recheck.pause().await;
            // Boxed, because a waiter's future is as large as its largest step, and most waiters pause here.
            if Box::pin(self.is_gone_at_leader(predecessor)).await? {
                return Ok(Departure::ListAgain);
            }
        }
    }

    /// Checks our node and the predecessor's node at the leader once. Returns whether the predecessor's node is gone. If the
    /// server lists it all the same, leaves the server.
    async fn is_gone_at_leader(&self, predecessor: &Arc<str>) -> Result<bool, Error> {
        let (entry, config) = (self.entry, &self.acquisition.config);
        let failing = entry.failing(vec![check(entry.child(predecessor), None)]).await;
        let is_gone = !failing.map_err(|loss| config.evicted(loss))?.is_empty();
        let gone = is_gone.then(|| predecessor.to_string()).into_iter().collect();
        let left = presence::leave_if_listed(entry.session(), entry.queue(), gone).await;
        left.map(|_| is_gone).map_err(|failure| config.stop(failure))
    }
}

impl Acquisition {
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
        let path = &self.config.queue;
        match retry::data(session, path, false).await {
            Ok(Some((data, _))) if matches!(permits::decode(&data), Ok(Some(_))) => {
                Err(Error::Permits { path: path.to_string(), reason: PermitsError::NoLock })
            }
            // The node is missing, or has other data, or may not be read. A client that may not read the node could not use a
            // semaphore there either.
            Ok(_) | Err(Failure::NoAuth(_)) => Ok(()),
            Err(failure) => Err(self.config.stop(failure)),
        }
    }
}
