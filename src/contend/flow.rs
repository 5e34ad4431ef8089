//! An acquisition from its first request until the lock is granted or the acquisition has failed.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use crate::call::SESSION_TRIES;
use crate::contend::acquisition::{Acquisition, SeenPermits, Wait};
use crate::contend::handle::ContenderHandle;
use crate::contend::queue_view::QueueView;
use crate::error::error::Error;
use crate::observe::on_wait::OnWait;
use crate::observe::trace;
use crate::queue::contender::{Contender, Tag};
use crate::queue::dialect::LONGEST_MARKER;
use crate::queue::metadata::Metadata;
use crate::queue::mode;
use crate::queue::turn::{Grant, IfTaken, Waiter};
use crate::session::node::state::EntryStep;
use crate::session::request::{Failure, Loss, Names};
use crate::session::retry;
use crate::session::{follow, listing, presence};
use crate::sync::random;
use crate::telemetry::log::emit;

/// How often one acquisition enters the queue again because the sequence numbers of the directory are used up. One further try
/// may not suffice, because other contenders may delete and recreate the directory at the same time.
const RESTARTS: u32 = 8;

/// How often an acquisition asks a quorum for its node while the lease stays invalid. The acquisition fails after that. From the
/// third try on, tries are a twentieth of the session timeout apart, so all tries take about five session timeouts.
pub(crate) const LEASE_TRIES: u32 = 100;

/// Why an acquisition has not entered the queue.
pub(crate) enum NotEntered {
    /// A request failed.
    Failed(Failure),
    /// The target of the acquisition (the permits of a semaphore) must not be made at its path.
    Refused(Error),
}

impl From<Failure> for NotEntered {
    fn from(failure: Failure) -> NotEntered {
        NotEntered::Failed(failure)
    }
}

/// Returns whether the contender's sequence number is negative, or too close to the maximum. At the maximum, several contenders
/// get the same number, or later contenders get lower numbers.
pub(crate) fn is_used_up(contender: &Contender) -> bool {
    !(0..mode::REFUSED_FROM).contains(&contender.sequence())
}

impl Acquisition {
    /// Enters the queue, and waits until the lock is granted.
    pub(crate) async fn acquire(&mut self) -> Result<Arc<ContenderHandle>, Error> {
        let timeout = self.reported(self.check().and_then(|()| self.options.timeout()))?;
        let on_wait = self.options.on_wait.take().map(OnWait::new);
        let answer = match timeout {
            None => self.enter(IfTaken::Wait, None, on_wait).await,
            // Boxed, because a waiter's future is as large as its largest step, and few waiters have a timeout.
            Some(timeout) => Box::pin(self.enter_in_time(timeout, on_wait)).await,
        };
        self.reported(answer)
    }

    async fn enter_in_time(
        &self,
        timeout: Duration,
        on_wait: Option<Box<OnWait>>,
    ) -> Result<Arc<ContenderHandle>, Error> {
        let view = QueueView::default();
        self.within(timeout, &view, pin!(self.enter(IfTaken::Wait, Some(&view), on_wait))).await
    }

    /// Enters the queue. Returns the granted lock, after a wait unless `if_taken` is to give up. `view` stores each listing after which the
    /// acquisition waits, for the timeout error.
    pub(crate) async fn enter(
        &self,
        if_taken: IfTaken,
        view: Option<&QueueView>,
        on_wait: Option<Box<OnWait>>,
    ) -> Result<Arc<ContenderHandle>, Error> {
        // Boxed, because a waiter's future is as large as its largest step, and this step is short.
        let (entry, listing, began) = Box::pin(self.queue_up_by_a_usable_number()).await?;
        let due = self.config.warn_waiting.and_then(|limit| began.checked_add(limit));
        let mut wait = Wait {
            acquisition: self,
            entry: &entry,
            view,
            on_wait,
            waiter: Waiter::new(entry.contender(), self.config.dialect.hands_off(), if_taken),
            // After the warning that the acquisition has not entered the queue, there is no second one.
            warn_at: due.filter(|due| Instant::now() < *due),
            registered: None,
        };
        let taken = tokio::select! {
            biased;
            taken = async {
                let (grant, early_read) = wait.wait_for_turn(listing).await?;
                Box::pin(self.take_or_exchange(grant, early_read, &mut wait)).await
            } => taken,
            // A loss of our node ends the acquisition even if the reply to a request never comes.
            loss = entry.lost() => Err(self.config.evicted(loss)),
        };
        drop(wait);
        match taken {
            Ok(()) => {
                self.begin_hold(&entry);
                Ok(entry)
            }
            Err(denied @ Error::PermissionDenied { .. }) => Err(Box::pin(self.leave_denied(&entry, denied)).await),
            Err(error) => Err(error),
        }
    }

    /// Enters the queue. Tries again if the sequence number of the new node is used up. Also returns when this began.
    async fn queue_up_by_a_usable_number(
        &self,
    ) -> Result<(Arc<ContenderHandle>, Option<Result<Names, Failure>>, Instant), Error> {
        if let Some(target) = &self.target {
            target.check_first().await?;
        }
        let began = Instant::now();
        let (mut entry, mut listing) = self.warn_if_slow(pin!(self.queue_up())).await?;
        let mut tries = 0;
        while is_used_up(&entry.contender()) {
            tries += 1;
            if tries > RESTARTS || !Box::pin(self.leave_used_up(entry)).await? {
                return Err(Error::SequenceExhausted { path: self.config.queue.to_string() });
            }
            (entry, listing) = Box::pin(self.queue_up()).await?;
        }
        if let Some(on_entered) = &self.on_entered {
            on_entered(&entry, entry.directory_watch().await);
        }
        self.trace.record("sequence", entry.contender().sequence());
        Ok((entry, listing, began))
    }

    /// Creates our node at the end of the queue. Returns the node, and the first listing of the queue that was sent
    /// after the create.
    pub(crate) async fn queue_up(&self) -> Result<(Arc<ContenderHandle>, Option<Result<Names, Failure>>), Error> {
        let config = &self.config;
        // The random part of the tag identifies our node even if the reply to the create is lost.
        let new_tag = || Tag::new(config.dialect, config.dialect.new_tag(&config.host, self.may_be_kept(), random));
        let mut tag = new_tag();
        let since = SystemTime::now();
        let metadata = Metadata {
            host: config.host.clone(),
            pid: Some(std::process::id()),
            label: self.options.label.clone(),
            permits: self.target.as_ref().map(|target| target.count()),
        };
        // The session slot reserves room for the paths of the contender's nodes: its place in the queue, and a permit.
        let name = "/".len() + tag.len() + LONGEST_MARKER.len() + "0000000000".len();
        let permit = config.paths.permits.as_ref().map_or(0, |permits| permits.len() + name);
        let own_bytes = config.queue.len() + name + permit;
        let mut tries = 0;
        loop {
            let session_slot =
                config.coordinator.session_slot(own_bytes).await.map_err(|failure| self.config.stop(failure))?;
            let node = session_slot.session().store().new_node(&config.queue, &config.path_label, &tag, self.mode);
            let keeps = self.may_be_kept();
            let note = metadata.encode(since);
            let entry = ContenderHandle::new(session_slot, node, keeps, config.user_path(), &config.coordinator, note);
            tries += 1;
            match self.take_place(&entry).await {
                Ok(listing) => return Ok((entry, listing)),
                // The next try uses another session. It also uses another tag, because the create may have been carried out on
                // this session, and no session takes the node of another one for its own.
                Err(NotEntered::Failed(Failure::Over(_))) if tries < SESSION_TRIES => {
                    tag = new_tag();
                    follow::wait_until_known_to_be_over(entry.session()).await;
                }
                Err(NotEntered::Failed(Failure::NoAuth(lacks))) if entry.unmake_directory().await => {
                    return Err(Error::shut_out(&config.queue, lacks));
                }
                // No create has found the directory, so there was no node that another client could have removed.
                Err(NotEntered::Failed(failure @ Failure::NoNode)) => {
                    return Err(Error::from_failure(failure, "enter", &config.queue));
                }
                Err(NotEntered::Failed(failure)) => return Err(self.config.stop(failure)),
                Err(NotEntered::Refused(error)) => return Err(error),
            }
        }
    }

    /// Creates the node, and lists the directory. `None` in place of a listing if the reply to the create was lost. The
    /// machine [`NodeState`](crate::session::node::state::NodeState) decides the steps.
    pub(crate) async fn take_place(
        &self,
        entry: &ContenderHandle,
    ) -> Result<Option<Result<Names, Failure>>, NotEntered> {
        let mut step = EntryStep::Create;
        loop {
            step = match step {
                EntryStep::Create => {
                    // The listing does not wait for the reply to the create, so that together they take one round trip,
                    // unless many callers of this session list the directory.
                    entry.ask_for_node();
                    let (listing, is_sent) = listing::list_or_join(entry.session(), entry.queue());
                    self.target.iter().for_each(|target| target.send_early_read(entry, is_sent));
                    // The listing is answered after the create. Awaiting the later reply first wakes the task once
                    // instead of twice.
                    let listing = listing.await;
                    match entry.await_create(&listing).await? {
                        None => return Ok(Some(listing)),
                        Some(next) => next,
                    }
                }
                EntryStep::Recover if entry.recover().await? => return Ok(None),
                EntryStep::Recover => EntryStep::Create,
                EntryStep::MakeDirectory => {
                    if let Some(target) = &self.target {
                        target.make(entry).await?.map_err(NotEntered::Refused)?;
                    }
                    match entry.make_directory(self.config.dialect.keeps_directories()).await {
                        // A parent that Curator created may be a container, so the server may have deleted the parent. The
                        // next create finds out.
                        Ok(()) | Err(Failure::NoNode) => EntryStep::Create,
                        Err(failure) => return Err(failure.into()),
                    }
                }
            };
        }
    }

    /// Leaves a directory whose sequence numbers are used up. Returns whether the caller may enter the queue again, in a new
    /// directory: `true` if the directory is gone, or contains only contenders whose numbers are used up and which therefore
    /// leave, too. Always `false` in a dialect whose directories must stay.
    pub(crate) async fn leave_used_up(&self, entry: Arc<ContenderHandle>) -> Result<bool, Error> {
        let dialect = self.config.dialect;
        match entry.leave().await {
            Ok(()) | Err(Failure::NoNode) => {}
            Err(Failure::NoAuth(lacks)) => return Err(Error::stays(entry.node().path(), lacks)),
            Err(failure) => return Err(self.config.stop(failure)),
        }
        if dialect.keeps_directories() {
            return Ok(false);
        }
        let is_passing = |name: &String| Contender::parse_as(name, dialect).is_some_and(|other| is_used_up(&other));
        match retry::until_known(entry.session(), || entry.list()).await {
            Ok(names) => Ok(names.iter().all(is_passing)),
            Err(Failure::NoNode) => Ok(true),
            Err(failure) => Err(self.config.stop(failure)),
        }
    }

    /// After the wait, takes the lock, or exchanges the node for the target (the permits of a semaphore).
    async fn take_or_exchange(
        &self,
        grant: Grant,
        early_read: Option<Box<SeenPermits>>,
        wait: &mut Wait<'_>,
    ) -> Result<(), Error> {
        let entry = wait.entry;
        if let Some(target) = &self.target {
            return target.exchange(grant, early_read, wait).await;
        }
        // A stranger's write uses up the watch on our node. After that, a removal goes unnoticed, so a hand-off is accepted
        // only once a quorum has shown our node. If the loss of our node is already known, `hold_if_leased` returns it.
        let may_miss_removal =
            grant.unconfirmed().is_some() && entry.detect_loss().is_none() && !entry.node().has_own_watch();
        if !may_miss_removal && self.hold_if_leased(entry, &grant)? {
            return Ok(());
        }
        wait.warn_if_long();
        self.grant_once_confirmed(entry, grant).await
    }

    /// Takes the lock, because no contender ahead excludes us. Returns `false` if the node [cannot rely on
    /// the lease](crate::session::node::ContenderNode::epoch), so that a quorum must be asked first.
    ///
    /// If this process was cut off or stopped, the decision to take the lock may rest on old replies. Only a valid
    /// lease ensures that our session, and so our node, still exists.
    pub(crate) fn hold_if_leased(&self, entry: &ContenderHandle, grant: &Grant) -> Result<bool, Error> {
        let (session, node) = (entry.session(), entry.node());
        if let Some(loss) = entry.detect_loss() {
            return Err(self.config.evicted(loss));
        }
        let Some(epoch) = node.epoch() else { return Ok(false) };
        node.hold(epoch);
        if let Some(name) = grant.unconfirmed() {
            session.store().request_check(&entry.child(name).into(), node);
        }
        let kind = grant.as_str();
        trace::count_grant(self.aim(), node.path_label(), kind);
        let (sequence, token) = (entry.contender().sequence(), entry.node().token());
        emit!(DEBUG, path = &**self.config.user_path(), mode = %self.aim(), sequence, token, kind, "granted");
        Ok(true)
    }

    pub(crate) async fn grant_once_confirmed(&self, entry: &ContenderHandle, grant: Grant) -> Result<(), Error> {
        let (session, node) = (entry.session(), entry.node());
        for tries in 0..LEASE_TRIES {
            if tries > 1 {
                session.sleep(session.timeout() / 20).await;
            }
            match presence::is_there(session, node.path(), None).await {
                Ok(true) => {}
                Ok(false) => node.lose(Loss::Removed),
                Err(failure) => return Err(self.config.stop(failure)),
            }
            if self.hold_if_leased(entry, &grant)? {
                return Ok(());
            }
        }
        // The replies take longer than the lease lasts, or the server does not confirm our session.
        Err(Error::Unreachable("the servers' answers come too late for the lease".to_owned()))
    }

    /// Starts the time limit and the trace of a hold, and the task that warns if the hold lasts long.
    pub(crate) fn begin_hold(&self, hold: &ContenderHandle) {
        if let Some(longest) = self.config.max_hold {
            hold.limit(longest);
        }
        // Each use of a kept node (a node that the process keeps between uses) has a trace of its own.
        if self.may_be_kept() {
            return self.trace.record("token", hold.node().token());
        }
        hold.limit_and_trace(self.begin_hold_trace(hold));
    }

    /// Leaves the queue after `denied`, the error of a missing permission. Returns the error for the user: `denied`, or
    /// the error that our node may not be deleted either, or the error that our own ACL keeps us out of the directory.
    async fn leave_denied(&self, entry: &ContenderHandle, denied: Error) -> Error {
        match (entry.leave().await, denied) {
            (Err(Failure::NoAuth(lacks)), _) => Error::stays(entry.node().path(), lacks),
            (Ok(()), Error::PermissionDenied { lacks, .. }) if entry.unmake_directory().await => {
                Error::shut_out(&self.config.queue, lacks)
            }
            (_, denied) => denied,
        }
    }
}
