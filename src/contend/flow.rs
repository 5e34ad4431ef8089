//! An acquisition from its first request until the lock is granted or given up.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use crate::call::SESSION_TRIES;
use crate::contend::acquisition::{Acquisition, IfTaken, WaitContext};
use crate::contend::tenure::Tenure;
use crate::contend::timeout::WaitReport;
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
use crate::session::upkeep::HandOff;
use crate::session::{follow, listing, presence};
use crate::sync::random;
use crate::telemetry::log::emit;

/// How often an acquisition that finds the directory's numbers used up has the directory made anew. Other contenders
/// may be doing the same.
const RESTARTS: u32 = 8;

/// How often a directory may vanish after it was made and before we enter it. More often means that something is wrong.
pub(crate) const DIRECTORY_TRIES: usize = 64;

/// Whether no contender may hold the lock by this number: two contenders may get the same, or a later one a lower
/// number.
pub(crate) fn is_used_up(contender: &Contender) -> bool {
    !(0..mode::REFUSED_FROM).contains(&contender.sequence())
}

/// How often a quorum may confirm our node without a valid lease. More often means that something is wrong.
pub(crate) const LEASE_TRIES: u32 = 100;

/// A turn that has come, with the evidence for it.
pub(crate) struct Grant {
    /// The signal that shows it. `None` if a listing does.
    pub(crate) signal: Option<Arc<HandOff>>,
    pub(crate) kind: GrantKind,
    /// The contender had to wait.
    pub(crate) has_waited: bool,
    /// Those who have left the queue although our server shows them there.
    pub(crate) ghosts: Vec<Arc<str>>,
}

/// By what it was known that the lock could be taken.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum GrantKind {
    /// A listing right after the create.
    AtOnce,
    /// A later listing.
    Look,
    /// The holder's signal.
    HandOff,
    /// The node was held already, and is kept.
    Kept,
}

impl GrantKind {
    /// As traces and metrics show it.
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
    /// The grant for a waiter's evidence.
    pub(crate) fn by(take: Take, entry: &Tenure) -> Grant {
        let upkeep = entry.session().upkeep();
        let signal = take.signalled_by.map(|name| upkeep.hand_off(&entry.child(&name).into()));
        let kind = match (&signal, take.has_waited) {
            (Some(_), _) => GrantKind::HandOff,
            (None, true) => GrantKind::Look,
            (None, false) => GrantKind::AtOnce,
        };
        Grant { signal, kind, has_waited: take.has_waited, ghosts: take.ghosts }
    }
}

impl Acquisition {
    /// Queues up, and waits until the lock is granted.
    pub(crate) async fn acquire(&mut self) -> Result<Box<Tenure>, Error> {
        let timeout = self.reported(self.check().and_then(|()| self.options.timeout()))?;
        let on_wait = self.options.on_wait.take().map(OnWait::new);
        let answer = match timeout {
            None => self.enter(IfTaken::Wait, None, on_wait).await,
            // Boxed, because few of thousands of waiters need it: a waiter's future is as large as its largest step.
            Some(timeout) => Box::pin(self.enter_in_time(timeout, on_wait)).await,
        };
        self.reported(answer)
    }

    async fn enter_in_time(&self, timeout: Duration, on_wait: Option<Box<OnWait>>) -> Result<Box<Tenure>, Error> {
        let waiting = WaitReport::default();
        self.within(timeout, &waiting, pin!(self.enter(IfTaken::Wait, Some(&waiting), on_wait))).await
    }

    /// Queues up and waits. `waiting`, if given, records the contenders in the way.
    pub(crate) async fn enter(
        &self,
        if_taken: IfTaken,
        waiting: Option<&WaitReport>,
        on_wait: Option<Box<OnWait>>,
    ) -> Result<Box<Tenure>, Error> {
        // Boxed, as is what else few wait in for long.
        let (entry, listing, mut late) = Box::pin(self.queue_up_by_a_usable_number()).await?;
        let mut wait = WaitContext { if_taken, waiting, on_wait, listing, directory: None, denials: Tries::DENIALS };
        let turn = tokio::select! {
            biased;
            turn = self.wait_for_turn(&entry, &mut wait, &mut late) => turn,
            // A loss ends the wait also while an answer is outstanding.
            loss = entry.lost() => Err(self.handle.evicted(loss)),
        };
        Box::pin(self.take_or_give_up(&entry, turn, &mut wait, &mut late)).await?;
        self.begin_hold(&entry);
        Ok(entry)
    }

    /// What follows the wait.
    async fn take_or_give_up(
        &self,
        entry: &Tenure,
        turn: Result<Take, Error>,
        wait: &mut WaitContext<'_>,
        late: &mut Lateness<'_>,
    ) -> Result<(), Error> {
        let taken = match (turn, &self.goal) {
            (Ok(take), None) => {
                let grant = Grant::by(take, entry);
                // A waiter whose watch on its own node was used up by another client's write may have been evicted
                // without noticing.
                let is_deaf =
                    grant.signal.is_some() && entry.find_loss().is_none() && !entry.own_node().has_own_watch();
                if !is_deaf && self.take(entry, &grant)? {
                    return Ok(());
                }
                late.begin(entry);
                self.grant_once_confirmed(entry, grant).await
            }
            (Ok(take), Some(goal)) => tokio::select! {
                biased;
                exchanged = goal.exchange(self, entry, take, wait) => exchanged,
                loss = entry.lost() => Err(self.handle.evicted(loss)),
            },
            (Err(error), _) => Err(error),
        };
        // A contender that lacks one permission may also lack the permission to leave. The error must say so.
        let Err(Error::PermissionDenied { operation, path, lacks }) = taken else { return taken };
        match entry.leave().await {
            Err(Failure::NoAuth(lacks)) => Err(Error::stays(entry.own_node().path(), lacks)),
            Ok(()) if entry.unmake_directory().await => Err(Error::shut_out(&self.handle.queue, lacks)),
            _ => Err(Error::PermissionDenied { operation, path, lacks }),
        }
    }

    /// Queues up, in a directory whose numbers are not used up.
    async fn queue_up_by_a_usable_number(
        &self,
    ) -> Result<(Box<Tenure>, Option<Result<Names, Failure>>, Lateness<'_>), Error> {
        if let Some(goal) = &self.goal {
            goal.check_first().await?;
        }
        let began = Instant::now();
        let (mut entry, mut listing) = self.warned_of(pin!(self.queue_up())).await?;
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

    /// Takes a place at the end of the queue, and lists the queue with it.
    pub(crate) async fn queue_up(&self) -> Result<(Box<Tenure>, Option<Result<Names, Failure>>), Error> {
        let handle = &self.handle;
        // By this number we tell our node from all others, also after the answer to its create was lost.
        let tag = Tag::new(handle.dialect, handle.dialect.new_tag(&handle.host, self.sharing.is_some(), random));
        let since = SystemTime::now();
        let metadata = Metadata {
            host: handle.host.clone(),
            pid: Some(std::process::id()),
            label: self.options.label.clone(),
            permits: self.goal.as_ref().map(|goal| goal.count()),
        };
        // Each waiter watches two nodes: its own, and its predecessor's, whose host may be longer.
        let mut watched = 2 * (handle.queue.len() + "/".len() + LONGEST_MARKER.len() + "0000000000".len());
        watched += tag.len() + handle.dialect.longest_tag(tag.len());
        if self.sharing.is_some() {
            watched += handle.queue.len();
        }
        watched += self.goal.as_ref().map_or(0, |goal| goal.watched_bytes());
        let mut tries = 0;
        loop {
            let session_slot =
                handle.coordinator.session_slot(watched).await.map_err(|failure| self.handle.stop(failure))?;
            let node = session_slot.session().upkeep().begin(&handle.queue, &tag, self.mode);
            let keeps = self.sharing.is_some();
            let note = metadata.encode(since);
            let entry = Tenure::new(session_slot, node, keeps, handle.shown(), &handle.coordinator, note);
            tries += 1;
            match self.take_place(&entry).await {
                Ok(listing) => return Ok((entry, listing)),
                // The session ended unnoticed while it was idle. It had no node of ours, so a fresh session will do.
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

    /// Creates the node in the directory, and lists the children. Gives no listing if the answer to the create was lost.
    pub(crate) async fn take_place(&self, entry: &Tenure) -> Result<Option<Result<Names, Failure>>, Failure> {
        let (mut missing, mut tries) = (0, Tries::LOST_ANSWERS);
        loop {
            // All requests are on their way before one is answered.
            entry.ask_for_node();
            let (listing, is_sent) = listing::list_or_join(entry.session(), entry.queue());
            self.goal.iter().for_each(|goal| goal.send_early_read(entry, is_sent));
            // The listing is answered after the create, so waiting for the listing first wakes the task once, and not
            // twice.
            let listing = listing.await;
            match entry.await_create().await {
                Ok(()) => return Ok(Some(listing)),
                // The directory can vanish again between its making and the next try: the server reaps it when it is
                // empty.
                Err(Failure::NoNode) if missing < DIRECTORY_TRIES => {
                    missing += 1;
                    // If a server errs, the listing behind the create shows the node that it denies. A second node would
                    // wait behind that one for ever.
                    let is_there =
                        listing.is_ok_and(|names| names.iter().any(|name| entry.own_node().tag().is_on(name)));
                    if is_there && entry.recover().await? {
                        return Ok(None);
                    }
                    let has_to_stay = self.handle.dialect.keeps_directories();
                    match entry.make_directory(has_to_stay).await {
                        // A directory above it may be a container, too, if Curator made it.
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

    /// Leaves a directory whose numbers are used up. Says whether the directory may be made anew: it may if only
    /// contenders are left in it that will find the numbers used up, too.
    pub(crate) async fn leave_used_up(&self, entry: Box<Tenure>) -> Result<bool, Error> {
        let dialect = self.handle.dialect;
        match entry.leave().await {
            Ok(()) | Err(Failure::NoNode) => {}
            Err(Failure::NoAuth(lacks)) => return Err(Error::stays(entry.own_node().path(), lacks)),
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

    /// Takes the lock, now that no contender before us excludes us. Returns whether it did: if not, a quorum has to be asked first.
    ///
    /// Our evidence may be old, if we were cut off. Only under a valid lease is it certain that the session still
    /// exists, and with it our own node.
    pub(crate) fn take(&self, entry: &Tenure, grant: &Grant) -> Result<bool, Error> {
        let (session, own_node) = (entry.session(), entry.own_node());
        if let Some(loss) = entry.find_loss() {
            return Err(Error::Evicted(loss));
        }
        let Some(epoch) = own_node.epoch() else { return Ok(false) };
        own_node.hold(epoch);
        if let Some(signal) = &grant.signal {
            session.upkeep().request_check(signal, own_node);
        }
        let kind = grant.kind.as_str();
        trace::count_grant(self.aim(), kind);
        let (sequence, token) = (entry.contender().sequence(), entry.own_node().token());
        emit!(DEBUG, path = &**self.handle.shown(), mode = %self.aim(), sequence, token, kind, "granted");
        Ok(true)
    }

    pub(crate) async fn grant_once_confirmed(&self, entry: &Tenure, grant: Grant) -> Result<(), Error> {
        let (session, own_node) = (entry.session(), entry.own_node());
        for tries in 0..LEASE_TRIES {
            if tries > 1 {
                session.sleep(session.timeout() / 20).await;
            }
            match presence::is_there(session, own_node.path(), None).await {
                Ok(true) => {}
                Ok(false) => own_node.lose(Loss::Removed),
                Err(failure) => return Err(self.handle.stop(failure)),
            }
            if self.take(entry, &grant)? {
                return Ok(());
            }
        }
        // The servers' answers take longer than the lease, or the server does not show whose session this is.
        Err(Error::Unreachable("the servers' answers come too late for the lease".to_owned()))
    }

    /// Records the hold for its limit, for tracing, and for the warning that it lasts long.
    pub(crate) fn begin_hold(&self, entry: &Tenure) {
        if let Some(longest) = self.handle.max_hold {
            entry.limit(longest);
        }
        // Of a node that is shared, each use is traced.
        if self.sharing.is_some() {
            return self.trace.record("token", entry.own_node().token());
        }
        entry.limit_and_trace(self.holding(entry));
    }
}
