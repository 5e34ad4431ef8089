//! One acquisition of a lock or of permits: its options, and its steps from the first request until it is granted or
//! has failed.

use std::convert::Infallible;
use std::future::pending;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::FutureExt;
use tokio::time::Instant;

use crate::call::{self, Deadline, SESSION_TRIES, SessionWorkError};
use crate::contend::config::LockConfig;
use crate::contend::contender::Contender;
use crate::contend::permit_request::{PendingPermitRead, PermitRequest, SeenPermits};
use crate::contend::wait::PendingAcquisition;
use crate::error::error::Error;
use crate::observe::on_wait::{ProgressListener, WaitReporter};
use crate::observe::queue_view::{LastListing, QueueView};
use crate::observe::trace::{self, AcquireTrace, HoldTrace};
use crate::queue::dialect::LONGEST_MARKER;
use crate::queue::member::Blockers;
use crate::queue::metadata::Metadata;
use crate::queue::mode::{self, AcquisitionAim, Mode};
use crate::queue::node_name::{AcquisitionTag, NodeName};
use crate::queue::turn::{self, GrantSource, IfTaken, Waiter};
use crate::session::contract::Session;
use crate::session::node::state::EntryStep;
use crate::session::request::{Failure, Listing, Loss, SessionEnd, Watch};
use crate::session::retry::{self, RetryBudget, spawn_cancellable};
use crate::session::{follow, listing, presence};
use crate::sync::random;
use crate::telemetry::log::{UserSpan, emit};
use crate::validation;

/// How often, at most, one acquisition enters the queue again because the directory's sequence numbers are used up. One
/// try may not suffice: only an empty directory can be deleted, and another contender may enter the old directory
/// before the deletion.
const RESTARTS: u32 = 8;

/// How often, at most, an acquisition whose turn has come asks a quorum whether its node exists. It asks again while
/// the session's lease (the time for which this client may rely on its session) is not valid. After the last try the
/// acquisition fails. Each try from the third on waits for a twentieth of the session timeout first, so all tries
/// together wait for about five session timeouts.
const LEASE_TRIES: u32 = 100;

/// How often, at most, [`Acquisition::fail_if_taken`] looks at the queue. It looks again if the ensemble's leader no
/// longer has one of the nodes that a new contender would have to wait for. There is a limit, because on a busy lock
/// each look may show another contender.
const LOOKS_MAX: u32 = 3;

/// How long before its timeout, at most, a waiter asks the ensemble's leader whether the contenders ahead exist. If
/// this client's server lists a contender that the leader does not have, the client changes to another server. Two
/// seconds usually suffice for the question, for the change of servers and for a grant at the new server.
const ASK_AHEAD: Duration = Duration::from_secs(2);

/// How long before its timeout, at most, a waiter reads the nodes of the first contenders that it waits for, so that
/// the timeout error can name their hosts and labels.
const LOOK_UP_AHEAD: Duration = Duration::from_millis(500);

/// The options of one acquisition.
#[derive(Clone, Debug, Default)]
pub struct AcquireOptions {
    pub(crate) timeout: Option<Duration>,
    /// When the timeout runs out. `None` until [`AcquireOptions::start_timeout`] is called, and without a timeout.
    pub(crate) deadline: Option<Deadline>,
    pub(crate) label: Option<String>,
    pub(crate) on_wait: Option<ProgressListener>,
}

impl AcquireOptions {
    /// Starts the timeout, unless an earlier call of this method has started it. Returns the deadline; `None` if there
    /// is no timeout.
    ///
    /// # Errors
    /// [`Error::InvalidInput`] if the timeout is zero or the label is invalid. [`Error::Timeout`] after the deadline.
    pub(crate) fn start_timeout(&mut self) -> Result<Option<Deadline>, Error> {
        validation::check_label(self.label.as_deref())?;
        let Some(timeout) = self.timeout else { return Ok(None) };
        if timeout.is_zero() {
            return Err(Error::invalid("a timeout of zero; to not wait at all, use a try_ method"));
        }
        match self.deadline {
            Some(deadline) if deadline.time_left().is_zero() => Err(Error::timed_out(timeout, None)),
            _ => Ok(Some(*self.deadline.get_or_insert_with(|| Deadline::new(timeout)))),
        }
    }
}

/// A function that an acquisition calls once its node exists, if the process may keep that node between uses. The
/// second argument is a watch on the lock's directory, which fires when another contender requests that such nodes be
/// given up. The argument is `None` if it is unknown whether the watch is armed.
pub(crate) type OnNodeCreated = Box<dyn Fn(&Contender, Option<Watch>) + Send + Sync>;

/// The reads that were sent right after the create of the node: the answer to the listing of the queue, and the early
/// read of a semaphore's permits, whose replies are still to be awaited. The listing is `None` if the create seemed to
/// fail, and a later listing showed the node. The early read is `None` if it was not sent.
pub(crate) type ReadsWithCreate = (Option<Result<Listing, Failure>>, Option<PendingPermitRead>);

/// One acquisition of a lock, or of permits of a semaphore, with its options.
pub(crate) struct Acquisition {
    pub(crate) config: Arc<LockConfig>,
    pub(crate) mode: Mode,
    pub(crate) options: AcquireOptions,
    pub(crate) trace: AcquireTrace,
    /// A function to call once the node exists. `None` unless the process may keep the node between uses.
    pub(crate) on_node_created: Option<OnNodeCreated>,
    /// The request for permits of a semaphore, or `None` for a lock. The first contender in a semaphore's queue
    /// exchanges its node for a permit node, whereas the first contender in a lock's queue holds the lock.
    pub(crate) permits: Option<PermitRequest>,
}

impl Acquisition {
    /// Creates an acquisition. Its label defaults to the lock's label.
    pub(crate) fn new(config: Arc<LockConfig>, mode: Mode, mut options: AcquireOptions) -> Acquisition {
        options.label = options.label.or_else(|| config.label.clone());
        Acquisition { config, mode, options, trace: AcquireTrace::default(), on_node_created: None, permits: None }
    }

    /// Returns the aim of the acquisition: a lock in one mode, or a permit.
    pub(crate) fn aim(&self) -> AcquisitionAim {
        if self.permits.is_some() { AcquisitionAim::Permit } else { AcquisitionAim::Lock(self.mode) }
    }

    /// Returns whether the process may keep the node between uses.
    pub(crate) fn may_keep_node(&self) -> bool {
        self.on_node_created.is_some()
    }

    pub(crate) fn label(&self) -> Option<&str> {
        self.options.label.as_deref()
    }

    pub(crate) fn begin_trace(&mut self) -> UserSpan {
        let names = (&**self.config.user_path(), &self.config.path_label);
        self.trace = AcquireTrace::begin(names, self.aim(), self.label(), self.may_keep_node());
        self.trace.acquire_span()
    }

    /// Logs an error in `answer`. Also counts it in the metrics if it is [`Error::WouldBlock`] or [`Error::Timeout`].
    /// Returns `answer`.
    pub(crate) fn report_error<G>(&self, answer: Result<G, Error>) -> Result<G, Error> {
        let names = (&**self.config.user_path(), &*self.config.path_label);
        answer.inspect_err(|error| trace::report_failed_acquire(names, self.aim(), error))
    }

    /// Enters the queue, and waits until the lock or the permits are granted. Fails at the timeout, if there is one.
    pub(crate) async fn acquire(&mut self) -> Result<Arc<Contender>, Error> {
        let begun = self.options.start_timeout();
        let deadline = self.report_error(begun)?;
        let answer = match (deadline, &self.options.on_wait) {
            (None, None) => self.enter_and_wait(IfTaken::Wait, None).await,
            // This step is boxed, because a waiter's future is as large as its largest step, and few waiters have a
            // timeout or a listener.
            (_, listener) => {
                let in_time = async {
                    let view = QueueView { has_listener: listener.is_some(), ..QueueView::default() };
                    let reports = async {
                        let Some(listener) = listener else { return pending().await };
                        Box::pin(WaitReporter::new(listener).report_changes(&self.config.paths, &view)).await
                    };
                    self.await_until_deadline(
                        deadline,
                        &view,
                        reports,
                        pin!(self.enter_and_wait(IfTaken::Wait, Some(&view))),
                    )
                    .await
                };
                Box::pin(in_time).await
            }
        };
        self.report_error(answer)
    }

    /// Enters the queue, and returns the contender once the lock or the permits are granted to it. If they are taken,
    /// waits or fails, as `if_taken` says. After each listing that makes the acquisition wait, stores the contender's
    /// place and the contenders ahead in `view`, for the timeout error and the user's listener.
    pub(crate) async fn enter_and_wait(
        &self,
        if_taken: IfTaken,
        view: Option<&QueueView>,
    ) -> Result<Arc<Contender>, Error> {
        if let Some(request) = &self.permits {
            request.check_before_queueing().await?;
        }
        let began = Instant::now();
        // This step is boxed, because a waiter's future is as large as its largest step, and a waiter spends most of
        // its time in later steps.
        let (entry, first) = Box::pin(async { self.warn_if_slow(pin!(self.queue_up())).await }).await?;
        if let Some(on_node_created) = &self.on_node_created {
            on_node_created(&entry, entry.take_directory_watch().await);
        }
        self.trace.record_span_field("sequence", entry.node_name().sequence());
        let due = self.config.warnings.after.and_then(|limit| began.checked_add(limit));
        let mut wait = PendingAcquisition {
            config: &self.config,
            permits: self.permits.as_ref(),
            aim: self.aim(),
            label: self.label(),
            trace: &self.trace,
            entry: &entry,
            view,
            waiter: Waiter::new(entry.node_name(), self.config.paths.dialect.signals_release(), if_taken),
            // If the warning was due before the acquisition entered the queue, `warn_if_slow` has logged the warning.
            warn_at: due.filter(|due| Instant::now() < *due),
            registered: None,
            denials: RetryBudget::DENIALS,
        };
        let taken = tokio::select! {
            biased;
            taken = async {
                let (grant, early_read) = wait.wait_for_turn(first).await?;
                Box::pin(self.take_lock_or_permits(grant, early_read, &mut wait)).await
            } => taken,
            // A loss of our node ends the acquisition even if the reply to a request never comes.
            loss = entry.until_lost() => Err(self.config.evicted_error(loss)),
        };
        drop(wait);
        match taken {
            Ok(()) => {
                self.begin_hold(&entry);
                Ok(entry)
            }
            Err(denied @ Error::PermissionDenied { .. }) => {
                Err(Box::pin(self.leave_lacking_rights(&entry, denied)).await)
            }
            Err(error) => Err(error),
        }
    }

    /// Awaits `queued`, which enters the queue. Logs a warning if that takes longer than the configured time. The
    /// caller's task logs the warning, because there may be no session yet whose thread could run a background task.
    async fn warn_if_slow<G>(&self, mut queued: impl Future<Output = G> + Unpin) -> G {
        let Some(limit) = self.config.warnings.after else { return queued.await };
        if let Some(answer) = retry::run_until(self.config.coordinator.sleep(limit), &mut queued).await {
            return answer;
        }
        self.config.warnings.log_slow_wait(self.aim(), self.label(), &Blockers::default(), 0);
        queued.await
    }

    /// Creates our node at the end of the queue. Returns the contender that owns the node, and the reads that were sent
    /// after the create. Tries again, a limited number of times, if the session ends, or if the directory's sequence
    /// numbers are used up and a new directory may follow.
    async fn queue_up(&self) -> Result<(Arc<Contender>, ReadsWithCreate), Error> {
        let (config, dialect, keeps) = (&self.config, self.config.paths.dialect, self.may_keep_node());
        let since = SystemTime::now();
        let metadata = Metadata {
            host: config.host.clone(),
            pid: Some(std::process::id()),
            label: self.options.label.clone(),
            permits: self.permits.as_ref().map(|request| request.count),
            is_candidate: self.config.is_election,
        };
        let (mut tries, mut restarts) = (0, 0);
        loop {
            // The tag is the beginning of our node's name. The random part of the tag identifies our node even if the
            // reply to the create is lost. Each try uses another tag, because an earlier try may have created a node
            // that belongs to an earlier session.
            let tag = AcquisitionTag::new(dialect, dialect.new_tag(&config.host, keeps, random));
            // The paths of a session's ephemeral nodes may have only a limited number of bytes, because the transaction
            // that ends the session lists them all. So bytes are reserved for the path of the contender's node in the
            // queue and, for a semaphore, the path of its permit node.
            let name = "/".len() + tag.len() + LONGEST_MARKER.len() + "0000000000".len();
            let permit = config.paths.permits.as_ref().map_or(0, |permits| permits.len() + name);
            let own_bytes = config.directory.len() + name + permit;
            let session_slot = config
                .coordinator
                .session_slot(own_bytes)
                .await
                .map_err(|failure| config.acquisition_error(failure))?;
            let node = session_slot.session().store().new_node(&config.directory, &config.path_label, &tag, self.mode);
            let note = metadata.encode(since);
            let entry = Contender::new(session_slot, node, keeps, config.user_path(), &config.coordinator, note);
            tries += 1;
            match self.create_node_and_list(&entry).await {
                Ok(first) if !has_exhausted_number(&entry.node_name()) => return Ok((entry, first)),
                Ok(_) => {
                    restarts += 1;
                    if restarts > RESTARTS || !Box::pin(self.leave_exhausted_directory(entry)).await? {
                        return Err(Error::SequenceExhausted { path: config.directory.to_string() });
                    }
                    tries = 0;
                }
                Err(SessionWorkError::Failed(Failure::Over(_))) if tries < SESSION_TRIES => {
                    follow::until_end_recorded(entry.session()).await;
                }
                Err(SessionWorkError::Failed(Failure::NoAuth(lacks))) if entry.remove_own_directories().await => {
                    return Err(Error::own_directory_denied(&config.directory, lacks));
                }
                // No create has found the directory, so our node never existed. The error `Evicted`, which
                // `acquisition_error` returns for a missing node, would be wrong here.
                Err(SessionWorkError::Failed(failure @ Failure::NoNode)) => {
                    return Err(Error::from_failure(failure, "enter", &config.directory));
                }
                Err(SessionWorkError::Failed(failure)) => return Err(config.acquisition_error(failure)),
                Err(SessionWorkError::Refused(error)) => return Err(error),
            }
        }
    }

    /// Creates the node, and lists the directory. If a create fails, the state machine
    /// [`NodeState`](crate::session::node::state::NodeState) decides the next step.
    async fn create_node_and_list(&self, entry: &Contender) -> Result<ReadsWithCreate, SessionWorkError> {
        let (mut step, mut early_read) = (EntryStep::Create, None);
        loop {
            step = match step {
                EntryStep::Create => {
                    // The listing is sent before the reply to the create has come, so that both take one round trip
                    // together. If this session already has as many listings of the directory under way as it may have,
                    // the listing is sent later, and `is_sent` is false.
                    entry.send_create();
                    let rights = retry::fail_if_rights_wider(entry.session(), entry.directory());
                    let (listing, is_sent) = listing::list_telling_if_sent(entry.session(), entry.directory());
                    let request = self.permits.as_ref().filter(|_| is_sent);
                    early_read = request.map(|request| request.send_early_read(entry));
                    // The reply to the listing comes after the reply to the create. Awaiting the later one first
                    // wakes the task once instead of twice.
                    let listing = listing.await;
                    match entry.await_create(&listing).await? {
                        None => {
                            if let Err(refused) = rights.await {
                                // The ACL of the directory is refused. Our node is removed before this function fails.
                                return Err(match entry.leave().1.await {
                                    Err(Failure::NoAuth(lacks)) => {
                                        Error::own_node_undeletable(entry.node().path(), lacks).into()
                                    }
                                    _ => refused.into(),
                                });
                            }
                            return Ok((Some(listing), early_read));
                        }
                        Some(next) => next,
                    }
                }
                EntryStep::Recover if entry.find_created_node().await? => return Ok((None, early_read)),
                EntryStep::Recover => EntryStep::Create,
                EntryStep::MakeDirectory => {
                    if let Some(request) = &self.permits {
                        request.create_semaphore_node(entry).await?;
                    }
                    match entry.make_directory(self.config.paths.dialect.must_keep_directories()).await {
                        // A parent that Curator created may be a container, which the server may have deleted
                        // meanwhile. If so, the next create fails with `NoNode`, and this step is repeated.
                        Ok(()) | Err(Failure::NoNode) => EntryStep::Create,
                        Err(failure) => return Err(failure.into()),
                    }
                }
            };
        }
    }

    /// Leaves a directory whose sequence numbers are used up. Returns whether the caller may enter the queue again:
    /// `true` if the directory is gone or empty, or has only contenders that must leave for the same reason. Always
    /// `false` in a dialect whose directories must stay.
    async fn leave_exhausted_directory(&self, entry: Arc<Contender>) -> Result<bool, Error> {
        let dialect = self.config.paths.dialect;
        match entry.leave().1.await {
            Ok(()) | Err(Failure::NoNode) => {}
            Err(Failure::NoAuth(lacks)) => return Err(Error::own_node_undeletable(entry.node().path(), lacks)),
            Err(failure) => return Err(self.config.acquisition_error(failure)),
        }
        if dialect.must_keep_directories() {
            return Ok(false);
        }
        let is_passing =
            |name: &String| NodeName::parse_as(name, dialect).is_some_and(|other| has_exhausted_number(&other));
        let names =
            retry::repeat_until_known(entry.session(), || entry.list_queue()).await.or_else(retry::default_if_no_node);
        names.map(|names| names.iter().all(is_passing)).map_err(|failure| self.config.acquisition_error(failure))
    }

    /// After the wait, takes the lock, or exchanges the node for the permits of a semaphore.
    async fn take_lock_or_permits(
        &self,
        grant: GrantSource,
        early_read: Option<Box<SeenPermits>>,
        wait: &mut PendingAcquisition<'_>,
    ) -> Result<(), Error> {
        let entry = wait.entry;
        if let Some(request) = &self.permits {
            let taken = request.take(grant, early_read, entry, wait.waiter.must_not_wait(), wait.view).await;
            let grant = taken.map_err(|why| request.state.acquisition_error(entry, why))?;
            // A quorum has just committed the exchange. So a quorum is asked again only if the lease is not valid.
            return match self.hold_if_lease_valid(entry, &grant)? {
                true => Ok(()),
                false => self.grant_once_confirmed(entry, grant).await,
            };
        }
        // While the hand-off that granted us the lock is not confirmed, we rely on the watch on our node to learn of
        // its removal. But another client's write to our node may have used up this watch. In that case, a quorum must
        // first confirm that our node exists. If our node is known to be lost, no quorum is asked, because
        // `hold_if_lease_valid` then fails.
        let may_miss_removal =
            grant.predecessor_to_confirm().is_some() && entry.detect_loss().is_none() && !entry.node().has_watch();
        if !may_miss_removal && self.hold_if_lease_valid(entry, &grant)? {
            return Ok(());
        }
        wait.register_for_warning();
        self.grant_once_confirmed(entry, grant).await
    }

    /// Marks our node as held. The caller knows that no contender ahead excludes us. Fails if our node is lost. Returns
    /// `false`, and does nothing, if the node [cannot rely on the lease](crate::session::node::Node::epoch). The caller
    /// must then ask a quorum, and call this again.
    ///
    /// If this process was cut off or stopped, the replies that show the grant may be old. Only a valid lease (the time
    /// for which this client may rely on its session) ensures that our session still exists.
    fn hold_if_lease_valid(&self, entry: &Contender, grant: &GrantSource) -> Result<bool, Error> {
        let (session, node) = (entry.session(), entry.node());
        if let Some(loss) = entry.detect_loss() {
            return Err(self.config.evicted_error(loss));
        }
        let Some(epoch) = node.epoch() else { return Ok(false) };
        node.mark_held(epoch);
        if let Some(name) = grant.predecessor_to_confirm() {
            session.store().request_hand_off_check(&entry.child_path(name).into(), node);
        }
        let kind = grant.as_str();
        trace::count_grant(self.aim(), node.path_label(), kind);
        let (sequence, token) = (entry.node_name().sequence(), entry.node().token());
        emit!(DEBUG, path = &**self.config.user_path(), mode = %self.aim(), sequence, token, kind, "granted");
        Ok(true)
    }

    async fn grant_once_confirmed(&self, entry: &Contender, grant: GrantSource) -> Result<(), Error> {
        let (session, node) = (entry.session(), entry.node());
        for tries in 0..LEASE_TRIES {
            if tries > 1 {
                session.sleep(session.timeout() / 20).await;
            }
            match presence::exists_at_leader(session, node.path(), None).await {
                Ok(true) => {}
                Ok(false) => node.record_loss(Loss::Removed),
                Err(failure) => return Err(self.config.acquisition_error(failure)),
            }
            if self.hold_if_lease_valid(entry, &grant)? {
                return Ok(());
            }
        }
        // Each reply has taken longer than the lease lasts, or the server does not confirm our session.
        Err(Error::Unreachable("the servers' answers come too late for the lease".to_owned()))
    }

    /// Starts the trace of a hold. Also starts the time limit of the hold, and the task that warns of a long hold, if
    /// the lock's options set them. But if the process may keep the node between uses, starts none of the three,
    /// because each use starts its own. Then only sets how long a use may last, and adds the token to the acquisition's
    /// trace.
    fn begin_hold(&self, hold: &Contender) {
        if let Some(longest) = self.config.max_hold {
            hold.limit_each_hold(longest);
        }
        if self.may_keep_node() {
            return self.trace.record_span_field("token", hold.node().token());
        }
        *hold.trace.lock() = self.begin_hold_trace(hold);
        // Only this hold uses the node, so the limit applies until the node is gone. The returned moment only
        // serves to end the limit earlier.
        let now = hold.lease_now();
        _ = hold.node().change(|it| it.state.limits.add_deadline(now));
    }

    /// Begins the trace of a hold, or of one use of a node that the process keeps between uses. Starts the task that
    /// warns if the hold or the use lasts long, if such warnings are configured.
    pub(crate) fn begin_hold_trace(&self, hold: &Contender) -> HoldTrace {
        let (path, node) = (self.config.user_path(), hold.node());
        let mut trace = self.trace.begin_hold(self.aim(), path, self.label(), node);
        if let Some(limit) = self.config.warn_holding {
            let (node, session) = hold.node_and_session();
            let (path, label, token) = (Arc::clone(path), self.options.label.clone(), node.token());
            let late = session.sleep(limit);
            trace.warning = Some(spawn_cancellable(&session, async move {
                late.await;
                if node.detect_loss().is_none() {
                    let node = node.path();
                    emit!(WARN, path = &*path, node, label, token, held = ?limit, "a lock is held for long");
                }
            }));
        }
        trace
    }

    /// Leaves the queue after `denied`, the error of a missing permission. Returns the error for the user: `denied`, or
    /// another error if our node may not be deleted either, or if the ACL that this client gave the directory keeps
    /// this client out.
    async fn leave_lacking_rights(&self, entry: &Contender, denied: Error) -> Error {
        match (entry.leave().1.await, denied) {
            (Err(Failure::NoAuth(lacks)), _) => Error::own_node_undeletable(entry.node().path(), lacks),
            (Ok(()), Error::PermissionDenied { lacks, .. }) if entry.remove_own_directories().await => {
                Error::own_directory_denied(&self.config.directory, lacks)
            }
            (_, denied) => denied,
        }
    }

    /// Acquires the lock or the permits without waiting for other contenders. Looks first, without a write, whether
    /// they are taken. If they are, fails.
    pub(crate) async fn try_acquire(mut self, deadline: Option<Deadline>) -> Result<Arc<Contender>, Error> {
        let span = self.begin_trace();
        let attempt = async {
            let mut tries = 0;
            loop {
                tries += 1;
                let limit = self.fail_if_taken().await?;
                match self.take_now(limit).await {
                    // The process was stopped or cut off while its node was in the queue. The node is gone, or will be
                    // removed, and never becomes a hold, so it is safe to try again.
                    Err(Error::Evicted(
                        Loss::LeaseRanOut | Loss::SessionOver(SessionEnd::Expired | SessionEnd::Replaced),
                    )) if tries < SESSION_TRIES => {}
                    answer => return answer,
                }
            }
        };
        let reported =
            async { self.report_error(call::within_deadline(&self.config.coordinator, deadline, attempt).await) };
        span.instrument(pin!(reported)).await
    }

    /// Fails if a new contender would have to wait, or could never be granted the lock or permits. Writes nothing.
    /// Returns the session timeout, which is the limit for a following [`Acquisition::take_now`].
    pub(crate) async fn fail_if_taken(&self) -> Result<Duration, Error> {
        validation::check_label(self.label())?;
        if let Some(request) = &self.permits {
            request.state.check_wanted_count(request.count)?;
        }
        let path = &self.config.directory;
        let (paths, newcomer) = (&self.config.paths, NodeName::newcomer(self.config.paths.dialect, self.mode));
        let mut looks = 0;
        loop {
            looks += 1;
            let seen = call::retry_on_fresh_session(&self.config.coordinator, ("list", path), |session| async move {
                let names = call::list_children(&session, path, false).await?;
                Ok((session, names))
            });
            let (session, names) = seen.await?;
            self.config.fail_if_foreign(&names)?;
            let has_room = async {
                match &self.permits {
                    Some(request) => request.has_room(&session).await,
                    None => self.config.fail_if_other_use(&session, &names, None).await.map(|()| true),
                }
            };
            let has_room = call::within_session_timeout(&self.config.coordinator, session.timeout(), has_room).await?;
            let ahead = turn::blocker_names(&newcomer, &names);
            if has_room && ahead.is_empty() {
                return Ok(session.timeout());
            }
            let gone = paths.ask_leader_if_gone(&session, &ahead).await;
            let are_some_gone = gone.map_err(|failure| Error::from_failure(failure, "list", path))?;
            if !are_some_gone || looks == LOOKS_MAX {
                return Err(Error::WouldBlock { blockers: paths.read_blockers(&session, &names, &newcomer).await });
            }
        }
    }

    /// Enters the queue, and takes the lock or the permits. Fails if another contender is in the way, or if
    /// [`call::within_session_timeout`] with this limit ends the attempt.
    pub(crate) async fn take_now(&self, limit: Duration) -> Result<Arc<Contender>, Error> {
        call::within_session_timeout(&self.config.coordinator, limit, self.enter_and_wait(IfTaken::GiveUp, None)).await
    }

    /// Waits for `granted`, and meanwhile polls `reports`. Fails at the deadline, if there is one. Shortly before the
    /// deadline, asks the ensemble's leader whether the contenders ahead exist, and reads their nodes, so that the
    /// timeout error names them. Fails early if that question fails, for example because this client cannot leave a
    /// server that disagrees with the leader.
    pub(crate) async fn await_until_deadline<G>(
        &self,
        deadline: Option<Deadline>,
        view: &QueueView,
        reports: impl Future<Output = Infallible>,
        granted: impl Future<Output = Result<G, Error>>,
    ) -> Result<G, Error> {
        let looking = async {
            let Some(left) = deadline.map(|deadline| deadline.time_left()) else { return pending().await };
            let (ask, look_up) = (ASK_AHEAD.min(left / 5 * 2), LOOK_UP_AHEAD.min(left / 5));
            self.config.coordinator.sleep(left - ask).await;
            let asked = self.recheck_ahead_at_leader(view);
            let until_look_up = self.config.coordinator.sleep(ask - look_up).map(Ok);
            if let (false, ()) = tokio::try_join!(asked, until_look_up)? {
                self.recheck_ahead_at_leader(view).await?;
            }
            self.refresh_blockers(view).await;
            pending::<Result<Infallible, Error>>().await
        };
        let late = async {
            let Some(deadline) = deadline else { return pending().await };
            (deadline.whole, deadline.until_passed(&self.config.coordinator).await)
        };
        tokio::select! {
            biased;
            answer = granted => answer,
            (waited, cut_off) = late => Err(Error::Timeout { waited, blockers: view.last_blockers(), cut_off }),
            Err(diverged) = looking => Err(diverged),
            never = reports => match never {},
        }
    }

    /// Lists the queue, and asks the ensemble's leader whether the first contenders ahead exist. If one of them does
    /// not exist, wakes a waiter for permits, which then reads the permits again. If this client's server still lists
    /// that contender, connects to another server first. Asks nothing if the listing fails. Returns `false`, and sends
    /// nothing, if `view` has no listing yet.
    async fn recheck_ahead_at_leader(&self, view: &QueueView) -> Result<bool, Error> {
        let snapshot = view.snapshot.lock().clone();
        let Some(LastListing { session, me, .. }) = snapshot else { return Ok(false) };
        let Some(names) = self.list_once_connected(&session).await else { return Ok(true) };
        let gone = self.config.paths.ask_leader_if_gone(&session, &turn::blocker_names(&me, &names)).await;
        if gone.map_err(|failure| self.config.acquisition_error(failure))? {
            view.look_again.notify_one();
        }
        Ok(true)
    }

    /// Waits until the session is connected, and lists the queue. Returns `None` if either fails. Without the wait, a
    /// request of a disconnected session would be sent after the reconnect, even if this acquisition had ended by then.
    async fn list_once_connected(&self, session: &Arc<dyn Session>) -> Option<Listing> {
        session.store().until_connected().await.ok()?;
        listing::list(session, &self.config.directory).await.ok()
    }

    /// Lists the queue, and reads the nodes of the first contenders ahead. Stores these contenders in `view`, with the
    /// hosts and labels that could be read. Changes nothing if the listing fails, or if `view` has no listing yet.
    async fn refresh_blockers(&self, view: &QueueView) {
        let snapshot = view.snapshot.lock().clone();
        if let Some(LastListing { session, me, .. }) = snapshot
            && let Some(names) = self.list_once_connected(&session).await
        {
            let blockers = self.config.paths.read_blockers(&session, &names, &me).await;
            if let Some(snapshot) = &mut *view.snapshot.lock() {
                snapshot.seen.blockers = blockers;
            }
        }
    }
}

/// Returns whether the contender's number shows that the directory's sequence numbers are used up: the number is
/// negative, or close to the maximum. Past the maximum, several contenders get the same number, or contenders get
/// negative numbers.
fn has_exhausted_number(contender: &NodeName) -> bool {
    !(0..mode::REFUSED_FROM).contains(&contender.sequence())
}
