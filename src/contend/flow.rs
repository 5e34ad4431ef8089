//! The way of an acquisition from its first request until the lock is granted or given up.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use crate::call::SESSION_TRIES;
use crate::contend::acquisition::{Acquisition, EntryState, IfTaken};
use crate::contend::handle::ContenderHandle;
use crate::contend::queue_view::QueueView;
use crate::contend::warnings::Lateness;
use crate::error::error::Error;
use crate::observe::on_wait::OnWait;
use crate::observe::trace;
use crate::queue::contender::{Contender, Tag};
use crate::queue::dialect::LONGEST_MARKER;
use crate::queue::metadata::Metadata;
use crate::queue::mode;
use crate::queue::turn::Take;
use crate::session::directories::Names;
use crate::session::request::{Failure, Loss};
use crate::session::retry::{self, Tries};
use crate::session::store::HandOff;
use crate::session::{follow, listing, presence};
use crate::sync::random;
use crate::telemetry::log::emit;

/// How often one acquisition tries to have a directory recreated whose sequence numbers are used up. Several contenders may do
/// that at once.
const RESTARTS: u32 = 8;

/// How often the directory may vanish between its creation and the create of our node. More often means that something is wrong.
pub(crate) const DIRECTORY_TRIES: usize = 64;

/// Returns whether the contender's sequence number is unsafe: near the end of the numbers, several contenders may get the same
/// number, and later contenders lower ones.
pub(crate) fn is_used_up(contender: &Contender) -> bool {
    !(0..mode::REFUSED_FROM).contains(&contender.sequence())
}

/// How often a quorum may confirm our node while the lease is invalid. More often means that something is wrong.
pub(crate) const LEASE_TRIES: u32 = 100;

/// The evidence that a contender's turn has come.
pub(crate) struct Grant {
    /// The hand-off that let the contender in. `None` if a listing showed the turn.
    pub(crate) signal: Option<Arc<HandOff>>,
    pub(crate) kind: GrantKind,
    /// Whether the contender had to wait.
    pub(crate) has_waited: bool,
    /// Contenders that our server still lists although they have left the queue.
    pub(crate) ghosts: Vec<Arc<str>>,
}

/// How a contender learned that its turn had come.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum GrantKind {
    /// From the listing that was sent with its create.
    AtOnce,
    /// From a later listing.
    Look,
    /// From the hand-off of the holder before it.
    HandOff,
    /// The process kept the node from an earlier use.
    Kept,
}

impl GrantKind {
    /// Returns the name that traces and metrics show.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            GrantKind::AtOnce => "at once",
            GrantKind::Look => "look",
            GrantKind::HandOff => "hand-off",
            GrantKind::Kept => "kept",
        }
    }
}

impl Grant {
    /// Builds a grant from what the waiter decided.
    pub(crate) fn by(take: Take, entry: &ContenderHandle) -> Grant {
        let store = entry.session().store();
        let signal = take.signalled_by.map(|name| store.hand_off(&entry.child(&name).into()));
        let kind = match (&signal, take.has_waited) {
            (Some(_), _) => GrantKind::HandOff,
            (None, true) => GrantKind::Look,
            (None, false) => GrantKind::AtOnce,
        };
        Grant { signal, kind, has_waited: take.has_waited, ghosts: take.ghosts }
    }
}

impl Acquisition {
    /// Enters the queue, and waits until the lock is granted.
    pub(crate) async fn acquire(&mut self) -> Result<Box<ContenderHandle>, Error> {
        let timeout = self.reported(self.check().and_then(|()| self.options.timeout()))?;
        let on_wait = self.options.on_wait.take().map(OnWait::new);
        let answer = match timeout {
            None => self.enter(IfTaken::Wait, None, on_wait).await,
            // Boxed, because a waiter's future is as large as its largest step, and few of thousands of waiters have a timeout.
            Some(timeout) => Box::pin(self.enter_in_time(timeout, on_wait)).await,
        };
        self.reported(answer)
    }

    async fn enter_in_time(
        &self,
        timeout: Duration,
        on_wait: Option<Box<OnWait>>,
    ) -> Result<Box<ContenderHandle>, Error> {
        let waiting = QueueView::default();
        self.within(timeout, &waiting, pin!(self.enter(IfTaken::Wait, Some(&waiting), on_wait))).await
    }

    /// Enters the queue and waits. `waiting` records the contenders in the way.
    pub(crate) async fn enter(
        &self,
        if_taken: IfTaken,
        waiting: Option<&QueueView>,
        on_wait: Option<Box<OnWait>>,
    ) -> Result<Box<ContenderHandle>, Error> {
        // Boxed, because few waiters are in this step for long.
        let (entry, listing, mut late) = Box::pin(self.queue_up_by_a_usable_number()).await?;
        let mut wait = EntryState { if_taken, waiting, on_wait, listing, directory: None, denials: Tries::DENIALS };
        let turn = tokio::select! {
            biased;
            turn = self.wait_for_turn(&entry, &mut wait, &mut late) => turn,
            // A loss ends the wait even if the answer to a request never comes.
            loss = entry.lost() => Err(self.handle.evicted(loss)),
        };
        Box::pin(self.take_or_give_up(&entry, turn, &mut wait, &mut late)).await?;
        self.begin_hold(&entry);
        Ok(entry)
    }

    /// Takes the lock, or exchanges the node for the target, once the wait is over.
    async fn take_or_give_up(
        &self,
        entry: &ContenderHandle,
        turn: Result<Take, Error>,
        wait: &mut EntryState<'_>,
        late: &mut Lateness<'_>,
    ) -> Result<(), Error> {
        let taken = match (turn, &self.target) {
            (Ok(take), None) => {
                let grant = Grant::by(take, entry);
                // A write by another client to our node uses our watch up. A waiter without that watch may have been evicted
                // without noticing.
                let is_deaf = grant.signal.is_some() && entry.find_loss().is_none() && !entry.node().has_own_watch();
                if !is_deaf && self.take(entry, &grant)? {
                    return Ok(());
                }
                late.begin(entry);
                self.grant_once_confirmed(entry, grant).await
            }
            (Ok(take), Some(target)) => tokio::select! {
                biased;
                exchanged = target.exchange(self, entry, take, wait) => exchanged,
                loss = entry.lost() => Err(self.handle.evicted(loss)),
            },
            (Err(error), _) => Err(error),
        };
        // A contender that lacks one permission may also lack the permission to delete its node. Then the error says so.
        let Err(Error::PermissionDenied { operation, path, lacks }) = taken else { return taken };
        match entry.leave().await {
            Err(Failure::NoAuth(lacks)) => Err(Error::stays(entry.node().path(), lacks)),
            Ok(()) if entry.unmake_directory().await => Err(Error::shut_out(&self.handle.queue, lacks)),
            _ => Err(Error::PermissionDenied { operation, path, lacks }),
        }
    }

    /// Enters the queue of a directory whose sequence numbers are not used up.
    async fn queue_up_by_a_usable_number(
        &self,
    ) -> Result<(Box<ContenderHandle>, Option<Result<Names, Failure>>, Lateness<'_>), Error> {
        if let Some(target) = &self.target {
            target.check_first().await?;
        }
        let began = Instant::now();
        let (mut entry, mut listing) = self.warn_if_slow(pin!(self.queue_up())).await?;
        let mut tries = 0;
        while is_used_up(&entry.contender()) {
            tries += 1;
            if tries > RESTARTS || !Box::pin(self.leave_used_up(entry)).await? {
                return Err(Error::SequenceExhausted { path: self.handle.queue.to_string() });
            }
            (entry, listing) = Box::pin(self.queue_up()).await?;
        }
        if let Some(sharing) = &self.sharing {
            sharing(&entry, entry.directory_watch().await);
        }
        self.trace.record("sequence", entry.contender().sequence());
        Ok((entry, listing, Lateness::since(began, self)))
    }

    /// Enters at the end of the queue, and lists the queue in the same flight.
    pub(crate) async fn queue_up(&self) -> Result<(Box<ContenderHandle>, Option<Result<Names, Failure>>), Error> {
        let handle = &self.handle;
        // The random part of the tag identifies our node even if the answer to the create is lost.
        let tag = Tag::new(handle.dialect, handle.dialect.new_tag(&handle.host, self.sharing.is_some(), random));
        let since = SystemTime::now();
        let metadata = Metadata {
            host: handle.host.clone(),
            pid: Some(std::process::id()),
            label: self.options.label.clone(),
            permits: self.target.as_ref().map(|target| target.count()),
        };
        // Each waiter watches two nodes: its own and its predecessor's. The predecessor's name may be longer.
        let mut watched = 2 * (handle.queue.len() + "/".len() + LONGEST_MARKER.len() + "0000000000".len());
        watched += tag.len() + handle.dialect.longest_tag(tag.len());
        if self.sharing.is_some() {
            watched += handle.queue.len();
        }
        watched += self.target.as_ref().map_or(0, |target| target.watched_bytes());
        let mut tries = 0;
        loop {
            let session_slot =
                handle.coordinator.session_slot(watched).await.map_err(|failure| self.handle.stop(failure))?;
            let node = session_slot.session().store().begin(&handle.queue, &tag, self.mode);
            let keeps = self.sharing.is_some();
            let note = metadata.encode(since);
            let entry = ContenderHandle::new(session_slot, node, keeps, handle.shown(), &handle.coordinator, note);
            tries += 1;
            match self.take_place(&entry).await {
                Ok(listing) => return Ok((entry, listing)),
                // The session ended while it was idle and owned none of our nodes, so a fresh session will do.
                Err(Failure::Over(_)) if tries < SESSION_TRIES => {
                    follow::wait_until_known_to_be_over(entry.session()).await;
                }
                Err(Failure::NoAuth(lacks)) if entry.unmake_directory().await => {
                    return Err(Error::shut_out(&handle.queue, lacks));
                }
                Err(failure) => return Err(self.handle.stop(failure)),
            }
        }
    }

    /// Creates the node, and lists the directory. Returns no listing if the answer to the create was lost.
    pub(crate) async fn take_place(&self, entry: &ContenderHandle) -> Result<Option<Result<Names, Failure>>, Failure> {
        let (mut missing, mut tries) = (0, Tries::LOST_ANSWERS);
        loop {
            // All requests are sent before the first answer is awaited.
            entry.ask_for_node();
            let (listing, is_sent) = listing::list_or_join(entry.session(), entry.queue());
            self.target.iter().for_each(|target| target.send_early_read(entry, is_sent));
            // The listing is answered after the create. Awaiting the listing first wakes the task once instead of twice.
            let listing = listing.await;
            match entry.await_create().await {
                Ok(()) => return Ok(Some(listing)),
                // The server may reap the empty directory between its creation and the next try.
                Err(Failure::NoNode) if missing < DIRECTORY_TRIES => {
                    missing += 1;
                    // A faulty server may deny a create and yet list the node. A second node of ours would wait behind the first
                    // one forever.
                    let is_there = listing.is_ok_and(|names| names.iter().any(|name| entry.node().tag().is_on(name)));
                    if is_there && entry.recover().await? {
                        return Ok(None);
                    }
                    let has_to_stay = self.handle.dialect.keeps_directories();
                    match entry.make_directory(has_to_stay).await {
                        // A parent directory that Curator made may be a container, and vanish too.
                        Ok(()) | Err(Failure::NoNode) => {}
                        Err(failure) => return Err(failure),
                    }
                }
                Err(Failure::Unknown(_)) if !tries.are_over() => {
                    tries.count();
                    if entry.recover().await? {
                        return Ok(None);
                    }
                }
                Err(failure) => return Err(failure),
            }
        }
    }

    /// Leaves a directory whose sequence numbers are used up. Returns whether the directory may be recreated: only if every
    /// contender left in it will find the numbers used up as well.
    pub(crate) async fn leave_used_up(&self, entry: Box<ContenderHandle>) -> Result<bool, Error> {
        let dialect = self.handle.dialect;
        match entry.leave().await {
            Ok(()) | Err(Failure::NoNode) => {}
            Err(Failure::NoAuth(lacks)) => return Err(Error::stays(entry.node().path(), lacks)),
            Err(failure) => return Err(self.handle.stop(failure)),
        }
        if dialect.keeps_directories() {
            return Ok(false);
        }
        let is_passing = |name: &String| Contender::parse_as(name, dialect).is_some_and(|other| is_used_up(&other));
        match retry::until_known(entry.session(), || entry.list()).await {
            Ok(names) => Ok(names.iter().all(is_passing)),
            Err(Failure::NoNode) => Ok(true),
            Err(failure) => Err(self.handle.stop(failure)),
        }
    }

    /// Takes the lock, because no contender ahead excludes us. Returns `false` if a quorum must be asked first.
    ///
    /// The evidence may be old if we were cut off. Only a valid lease makes sure that our session and our node still exist.
    pub(crate) fn take(&self, entry: &ContenderHandle, grant: &Grant) -> Result<bool, Error> {
        let (session, node) = (entry.session(), entry.node());
        if let Some(loss) = entry.find_loss() {
            return Err(Error::Evicted(loss));
        }
        let Some(epoch) = node.epoch() else { return Ok(false) };
        node.hold(epoch);
        if let Some(signal) = &grant.signal {
            session.store().request_check(signal, node);
        }
        let kind = grant.kind.as_str();
        trace::count_grant(self.aim(), kind);
        let (sequence, token) = (entry.contender().sequence(), entry.node().token());
        emit!(DEBUG, path = &**self.handle.shown(), mode = %self.aim(), sequence, token, kind, "granted");
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
                Err(failure) => return Err(self.handle.stop(failure)),
            }
            if self.take(entry, &grant)? {
                return Ok(());
            }
        }
        // The answers take longer than the lease lasts, or the server does not confirm our session.
        Err(Error::Unreachable("the servers' answers come too late for the lease".to_owned()))
    }

    /// Starts the limit, the trace and the warning of a hold.
    pub(crate) fn begin_hold(&self, entry: &ContenderHandle) {
        if let Some(longest) = self.handle.max_hold {
            entry.limit(longest);
        }
        // Each use of a shared node has a trace of its own.
        if self.sharing.is_some() {
            return self.trace.record("token", entry.node().token());
        }
        entry.limit_and_trace(self.holding(entry));
    }
}
