//! How the head of a semaphore's queue (its first contender) takes its permits.
//!
//! Only the head of the queue takes permits. So while a contender is the head and has not taken permits, the number of
//! taken permits can only fall. Free permits that the head has seen stay free, because of two rules:
//!
//! - The head reads the permits after it has become the head. After a reconnect, another server may not show yet the
//!   permits that the predecessor took. So if the connection has changed, the head sends a sync before the read.
//! - The head gives up its place and takes its permits in one transaction. The ensemble refuses the transaction if the
//!   place is gone, or if the number of permits has changed.
//!
//! To save a round trip, a new contender sends an early read right after its create and its listing. If the listing
//! shows the contender as the head, the early read counts as a read after the contender became the head, because no
//! read of a session shows an older state than an earlier read of the session. A reconnect between the listing and the
//! early read does not matter.

use std::future::pending;
use std::sync::Arc;

use futures_util::future::OptionFuture;

use crate::call::{self, SessionWorkError};
use crate::contend::contender::Contender;
use crate::contend::semaphore::{SemaphoreState, TAKE};
use crate::error::error::Error;
use crate::observe::queue_view::QueueView;
use crate::queue::node_name::NodeName;
use crate::queue::permits::{self, PermitAvailability};
use crate::queue::turn::GrantSource;
use crate::session::contract::Session;
use crate::session::hand_off;
use crate::session::node::state::NodeState;
use crate::session::presence::{self, existence_check};
use crate::session::request::{Failure, Kind, Reply, Stat, Watch, WatchEvent};
use crate::session::retry::{self, RetryBudget};
use crate::sync::atomic::Ordering;

/// A request for `count` permits of a semaphore.
pub(crate) struct PermitRequest {
    pub(crate) state: Arc<SemaphoreState>,
    pub(crate) count: u32,
}

/// The early read of the permits. It is sent right after the create of the node and the listing of the queue, before
/// the contender knows its place.
pub(crate) struct PendingPermitRead {
    names: Reply<Vec<String>>,
    number: Reply<(Vec<u8>, Stat)>,
    /// The children of the semaphore's own node. `None` if they are not listed, because this semaphore's handle already
    /// knows that the path has no lock.
    children: Option<Reply<Vec<String>>>,
}

/// The result of one read: the number of permits, and the permits that are taken.
pub(crate) struct SeenPermits {
    number: u32,
    /// The version of the semaphore's node, whose data is the number of permits.
    version: i32,
    /// The names of the permit nodes, one for each holder.
    names: Vec<String>,
}

impl PermitRequest {
    /// Fails if the request is for more permits than `number`, the number of all permits of the semaphore.
    fn fail_if_too_many(&self, number: u32) -> Result<(), Error> {
        match self.count > number {
            true => Err(self.state.too_few_permits_error(self.count, number)),
            false => Ok(()),
        }
    }

    /// Fails if the request is for no permits, or for more than the semaphore has. Asks the ensemble for the number of
    /// permits only if the number that this handle knows does not show whether the request is for too many. If the
    /// semaphore's node exists and has no number yet, tries to write the number.
    pub(crate) async fn check_before_queueing(&self) -> Result<(), Error> {
        if !self.state.check_wanted_count(self.count)? {
            return Ok(());
        }
        let path = self.state.config.user_path();
        let checked =
            call::retry_on_fresh_session(&self.state.config.coordinator, (TAKE, path), |session| async move {
                let node = retry::read_data(&session, path, false).await?;
                match self.state.read_or_write_number(&session, node, None).await {
                    // The semaphore's node is missing. The acquisition creates the node when it enters the queue, and
                    // checks the number of permits afterwards.
                    Err(SessionWorkError::Failed(Failure::NoNode)) => Ok(Ok(())),
                    agreed => {
                        SessionWorkError::refusal_as_answer(agreed).map(|agreed| self.fail_if_too_many(agreed?.0))
                    }
                }
            });
        checked.await?
    }

    /// Creates the semaphore's node if it is missing, and writes the number of permits if the node has none. Called
    /// before the acquisition creates the directory of the queue below that node. Fails if the node at the path must
    /// not become a semaphore's.
    pub(crate) async fn create_semaphore_node(&self, entry: &Contender) -> Result<(), SessionWorkError> {
        let node = retry::read_data(entry.session(), self.state.config.user_path(), true).await?;
        self.state.read_or_write_number(entry.session(), node, Some(entry)).await.map(drop)
    }

    /// Sends the reads of the semaphore's permits early: before the answer to the listing of the queue. The caller must
    /// have sent that listing before. Reads that were sent before the listing may show the permits as they were before
    /// the contender became the head (the first) of the queue.
    pub(crate) fn send_early_read(&self, entry: &Contender) -> PendingPermitRead {
        let (session, path) = (entry.session(), self.state.config.user_path());
        let (names, number) = (session.children(&self.state.taken), session.data(path));
        // The children are listed after the read of the number of permits. Until the number is written, a contender of
        // a lock may create its node here, and an earlier listing could miss that node.
        let has_no_lock = self.state.has_no_lock.load(Ordering::Acquire);
        PendingPermitRead { names, number, children: (!has_no_lock).then(|| session.children(path)) }
    }

    /// Returns whether enough permits are free for this request, or `true` if the permits cannot be read. Fails if the
    /// semaphore has fewer permits in all than requested, or another number of permits than the user gave.
    pub(crate) async fn has_room(&self, session: &Arc<dyn Session>) -> Result<bool, Error> {
        let room = self.state.config.paths.read_total_and_if_free(session, self.count).await;
        let Some((number, has_room)) = room else { return Ok(true) };
        if let Some(number) = number {
            self.state.record_number(number)?;
            self.fail_if_too_many(number)?;
        }
        Ok(has_room)
    }

    /// Awaits the early read. Returns `None` if the early read was not sent, or did not show both the taken permits and
    /// the number of all permits. The contender then reads both when it is the first in the queue. Fails, for example,
    /// if the semaphore has fewer permits in all than requested, or if a lock has the same path.
    pub(crate) async fn await_early_read(
        &self,
        entry: &Contender,
        sent: Option<PendingPermitRead>,
    ) -> Result<Option<Box<SeenPermits>>, SessionWorkError> {
        let Some(PendingPermitRead { names, number, children }) = sent else { return Ok(None) };
        let (names, number, children) = (names.await, number.await, OptionFuture::from(children).await);
        let node = match number {
            Ok(node) => node,
            // The error is ignored, because the contender reads the number of permits again when it is the first in the
            // queue.
            Err(Failure::Unknown(_) | Failure::NoNode) => return Ok(None),
            Err(failure) => return Err(failure.into()),
        };
        let had_number = permits::decode_permit_number(&node.0).is_ok_and(|number| number.is_some());
        let (number, version) = self.state.read_or_write_number(entry.session(), Some(node), None).await?;
        self.fail_if_too_many(number)?;
        if let Some(Ok(children)) = children.filter(|_| had_number) {
            self.state.ensure_no_lock(entry.session(), Some(children)).await?;
        }
        Ok(names.ok().map(|names| Box::new(SeenPermits { number, version, names })))
    }

    /// Exchanges the node of the head of the queue for a permit node. Returns the grant, whose hand-off no longer needs
    /// a confirmation. Waits until enough permits are free. With `must_not_wait`, fails with [`Error::WouldBlock`]
    /// instead. `early_read` is given if the listing that was sent right before the early read showed the contender as
    /// the head.
    pub(crate) async fn take(
        &self,
        mut grant: GrantSource,
        early_read: Option<Box<SeenPermits>>,
        entry: &Contender,
        must_not_wait: bool,
        queue_view: Option<&QueueView>,
    ) -> Result<GrantSource, SessionWorkError> {
        let (session, paths) = (entry.session(), &self.state.config.paths);
        let mut head = QueueHead::new(&self.state, entry, &mut grant);
        let mut seen = early_read;
        loop {
            let now = match seen.take() {
                Some(now) => *now,
                None => head.read_permits().await?,
            };
            match permits::permit_availability(now.number, &now.names, self.count) {
                Err(name) => return Err(self.state.doubtful_error(format!("{name:?} is no permit")).into()),
                Ok(PermitAvailability::Never) => {
                    return Err(self.state.too_few_permits_error(self.count, now.number).into());
                }
                Ok(PermitAvailability::Enough) => {
                    self.state.ensure_no_lock(session, None).await?;
                    self.state.fail_if_rights_wider(session).await?;
                    if head.try_exchange(self.count, now.version).await? {
                        return Ok(grant);
                    }
                }
                Ok(PermitAvailability::Short) if must_not_wait && !paths.ask_leader_if_gone(session, &[]).await? => {
                    let me = &*entry.node_name();
                    let only_me = [me.as_str().to_owned()];
                    return Err(Error::WouldBlock { blockers: paths.read_blockers(session, &only_me, me).await }.into());
                }
                Ok(PermitAvailability::Short) => {
                    grant = GrantSource::Look;
                    if !must_not_wait {
                        head.wait_for_change(&now, queue_view).await?;
                    }
                }
            }
        }
    }
}

/// What the contender at the head of the queue has read, with the watches on the taken permits and on their number.
struct QueueHead<'a> {
    state: &'a SemaphoreState,
    entry: &'a Contender,
    /// The id of the connection of the last read. Before the first read, the id of the connection on which the head's
    /// node was created. If the connection has changed, the next read sends a sync first.
    connection: u64,
    /// The number of permits, the version of the semaphore's node, and the watch on that node. `None` if the number
    /// must be read.
    number: Option<(u32, i32, Watch)>,
    /// The watch on the directory of the permits. `None` until the first read, and after the watch has fired.
    names: Option<Watch>,
    /// The path of the predecessor's node, while it is not confirmed that the predecessor has handed off its place.
    /// [`QueueHead::confirm_signal`] confirms this, because another client can forge a hand-off.
    signal: Option<Arc<str>>,
    /// The version of the semaphore's node for which the ensemble's leader has last refused the exchange.
    refused: Option<i32>,
    /// How often this client's server said that the directory of the permits is missing, although the leader then
    /// refused to create the directory, because it exists. Such a server may lag behind the leader.
    rounds: u32,
}

impl<'a> QueueHead<'a> {
    fn new(state: &'a SemaphoreState, entry: &'a Contender, grant: &mut GrantSource) -> QueueHead<'a> {
        // `QueueHead` confirms the hand-off before the exchange, so the hand-off is taken out of the grant.
        let signal = match grant {
            GrantSource::HandOff { unconfirmed } => unconfirmed.take().map(|name| entry.child_path(&name).into()),
            _ => None,
        };
        let connection = entry.node().read(NodeState::connection_of_create);
        QueueHead { state, entry, connection, number: None, names: None, signal, refused: None, rounds: 0 }
    }

    /// Exchanges the node in the queue for a permit node. Returns `false` if the caller must read the permits again.
    /// `version` is the expected version of the semaphore's node.
    async fn try_exchange(&mut self, count: u32, version: i32) -> Result<bool, SessionWorkError> {
        let (entry, session) = (self.entry, self.entry.session());
        let SemaphoreState { config, taken, .. } = self.state;
        let to = format!("{taken}/{}", permits::permit_node_name(&entry.node().tag().to_string(), count));
        match entry.exchange_node(&to, (config.user_path(), version)).await {
            Ok(()) => return Ok(true),
            // The leader has refused this version before, and the version of a node only rises. So a server that still
            // shows this version is wrong.
            Err(Failure::BadVersion) if self.refused.replace(version) == Some(version) => {
                presence::leave_server(session, self.connection, config.user_path()).await?;
            }
            Err(Failure::BadVersion) => {}
            Err(Failure::NoParent(_)) => make_permits_directory(session, taken, &mut self.rounds).await?,
            Err(failure) => return Err(failure.into()),
        }
        // The number of permits may have changed although the watch has not fired yet. So the next round reads it
        // again.
        self.number = None;
        Ok(false)
    }

    /// Lists and watches the taken permits, and reads the number of permits unless it is watched. Repeats this until
    /// one round shows both.
    async fn read_permits(&mut self) -> Result<SeenPermits, SessionWorkError> {
        let session = Arc::clone(self.entry.session());
        let mut tries = RetryBudget::LOST_ANSWERS;
        loop {
            match self.read_permits_once(&session).await {
                Ok(Some((names, node))) => {
                    let (number, version) = match &self.number {
                        Some((number, version, _)) => (*number, *version),
                        None => self.state.read_or_write_number(&session, node, None).await?,
                    };
                    return Ok(SeenPermits { number, version, names });
                }
                Ok(None) => {}
                Err(failure) => tries.await_retry(&session, failure).await?,
            }
        }
    }

    /// Lists the permit nodes, and reads the semaphore's own node unless it is watched. Returns `None` if the caller
    /// must read again, for one of three reasons. The connection was lost meanwhile, so that a lagging server may have
    /// replied. The directory of the permits was missing. Or the hand-off is not confirmed.
    async fn read_permits_once(
        &mut self,
        session: &Arc<dyn Session>,
    ) -> Result<Option<(Vec<String>, Option<(Vec<u8>, Stat)>)>, Failure> {
        let (path, store) = (self.state.config.user_path(), session.store());
        let directory = &self.state.taken;
        let connection = store.connection_number();
        // All requests are sent before the first reply is awaited, so that together they take one round trip.
        let synced = (connection != self.connection).then(|| session.sync(path));
        let lists = self.signal.is_some() && self.names.is_some();
        let queue = lists.then(|| session.children(self.entry.directory()));
        let watched = session.watch_children(directory);
        let node = self.number.is_none().then(|| session.data(path));
        if let Some(synced) = synced {
            synced.await?;
        }
        let queue = OptionFuture::from(queue).await.transpose()?;
        let watched = watched.await;
        let node = OptionFuture::from(node).await.transpose()?;
        if store.connection_number() != connection {
            return Ok(None);
        }
        self.connection = connection;
        match watched {
            Ok((names, watch)) => {
                self.names = Some(watch);
                Ok(self.confirm_signal(&names, queue).await?.then_some((names, node)))
            }
            Err(Failure::NoNode) => {
                make_permits_directory(session, directory, &mut self.rounds).await?;
                Ok(None)
            }
            Err(failure) => Err(failure),
        }
    }

    /// Confirms that the predecessor sent the hand-off signal, because another client can forge the signal. Returns
    /// whether the caller may use `names`, the names of the permit nodes. If not, the caller reads again. `queue` is a
    /// listing of the queue that was sent before the listing `names`.
    ///
    /// - Without `queue`, a permit of the predecessor among `names` proves the signal, because only the head takes
    ///   permits. If there is none, the next read lists the queue, too.
    /// - With `queue`, the ensemble's leader is asked about each contender in `queue` whose number is at most the
    ///   predecessor's. If one of them exists, the signal is forged: this contender is lost, and this method fails. If
    ///   none exists, but `queue` shows some, the permits must be read again.
    async fn confirm_signal(&mut self, names: &[String], queue: Option<Vec<String>>) -> Result<bool, Failure> {
        let Some(signal) = self.signal.clone() else { return Ok(true) };
        let predecessor = signal.rsplit_once('/').and_then(|(_, name)| NodeName::parse(name));
        let has_taken =
            predecessor.is_some_and(|it| names.iter().any(|name| permits::is_node_of_owner(name, it.tag())));
        let Some(queue) = queue.or(has_taken.then(Vec::new)) else { return Ok(false) };
        let shown = hand_off::paths_numbered_up_to(&queue, &signal);
        if let Some(left) = presence::first_existing(self.entry.session(), &shown).await? {
            hand_off::record_interference(&signal, &left, [self.entry.node()]);
            return Err(Failure::NoNode);
        }
        self.signal = None;
        // None of these contenders exists. A server that still lists one of them lags behind the leader, and may also
        // lack the permit nodes that they created. So the permits are read again.
        let gone = shown.iter().filter_map(|path| path.rsplit('/').next()).map(str::to_owned).collect();
        presence::leave_server_if_listed(self.entry.session(), self.entry.directory(), gone).await?;
        Ok(shown.is_empty())
    }

    /// Stores the holders in `queue_view`, if there is one. Then waits until a permit may have been released since the
    /// read `now`, or the number of permits may have changed.
    async fn wait_for_change(
        &mut self,
        now: &SeenPermits,
        queue_view: Option<&QueueView>,
    ) -> Result<(), SessionWorkError> {
        let (session, path, me) = (self.entry.session(), self.state.config.user_path(), &*self.entry.node_name());
        if let Some(view) = queue_view {
            let queued = OptionFuture::from(view.has_listener.then(|| session.children(self.entry.directory()))).await;
            let queued = queued.and_then(Result::ok).filter(|names| !names.is_empty());
            let names = queued.unwrap_or_else(|| vec![me.as_str().to_owned()]);
            view.record_listing(session, me, self.state.config.paths.progress_from_names(&now.names, &names, me));
        }
        if self.number.is_none() {
            let (watch, (_, stat)) = retry::watch_and_read(session, path).await?;
            // If the node has changed since the read `now`, `number` stays `None`, and the caller reads again.
            self.number = (stat.version == now.version).then_some((now.number, stat.version, watch));
        }
        let (Some((_, _, number)), Some(names)) = (&mut self.number, &mut self.names) else { return Ok(()) };
        let node = |name: &str| format!("{}/{name}", self.state.taken);
        let checks = || {
            let holders = now.names.iter().map(|name| existence_check(node(name), None));
            std::iter::once(existence_check(&**path, Some(now.version))).chain(holders).collect()
        };
        let look_again = queue_view.map(|view| Box::pin(view.look_again.notified()));
        tokio::select! {
            biased;
            // If the event is the end of the session, this wait never ends. The caller, which awaits the loss of our
            // node at the same time, ends the acquisition.
            event = number => if event == WatchEvent::Over { pending().await } else { self.number = None },
            event = names => if event == WatchEvent::Over { pending().await } else { self.names = None },
            missed = self.entry.until_check_fails(false, checks) => {
                let missed = missed.map_err(|loss| self.state.config.evicted_error(loss))?;
                if missed.contains(&0) {
                    self.number = None;
                    presence::leave_differing_server(session, path, Some(now.version)).await?;
                }
                let gone = missed.iter().filter_map(|index| now.names.get(index.checked_sub(1)?));
                presence::leave_server_if_listed(session, &self.state.taken, gone.cloned().collect()).await?;
            }
            Some(()) = OptionFuture::from(look_again) => {}
        }
        Ok(())
    }
}

/// Creates the directory of the permits as a persistent node, like the semaphore's own node. If the leader has the
/// directory already, this client's server may lag behind, so this function may wait or connect to another server.
async fn make_permits_directory(session: &Arc<dyn Session>, directory: &str, rounds: &mut u32) -> Result<(), Failure> {
    match retry::repeat_until_known(session, || session.create(directory, &[], Kind::Persistent)).await {
        Ok(_) => Ok(()),
        Err(Failure::NodeExists) => SemaphoreState::leave_server_or_pause(session, directory, None, rounds).await,
        Err(failure) => Err(failure),
    }
}
