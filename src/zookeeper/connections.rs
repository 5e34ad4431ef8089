//! The connections of one session, one after another. [`ConnectDriver`] makes the attempts to connect, and [`Attempts`]
//! decides where and when. When a connection is lost, [`SessionConnections::serve_session`] resumes the session on a
//! new one.
//!
//! The first connection is *ready* at once. Any other connection is ready once a quorum has answered a transaction on
//! the connection, and the session's watches are armed again. Until then the requests of the session wait. So no read
//! shows a state from before that transaction. And if a watched node has changed, the event of its watch comes before
//! any answer that shows the change.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use async_executor::FallibleTask;
use futures_util::StreamExt;
use futures_util::future::{BoxFuture, join_all, try_join_all};
use futures_util::stream::FuturesUnordered;
use tokio::sync::oneshot;
use zookeeper_client as zk;

use crate::session::contract;
use crate::session::lease::{Moment, since_boot};
use crate::session::request::{self, Failure, Operation, SessionEnd, is_from_quorum};
use crate::session::retry::{self, run_until};
use crate::session::store::SessionStore;
use crate::session::thread::{BackgroundThread, sleep};
use crate::sync::{Mutex, mpsc, random, watch};
use crate::telemetry::log::emit;
use crate::telemetry::{meter, names};
use crate::zookeeper::abilities::ServerFeatures;
use crate::zookeeper::connection::{AttemptFailure, Attempts, ConnectStep, ConnectTarget, new_session_jitter};
use crate::zookeeper::link::{ConnectionEnd, OpenedConnection, drop_catching_panic};
use crate::zookeeper::lookup::look_up_addresses;
use crate::zookeeper::options::ZooKeeperBuilder;
use crate::zookeeper::pipeline::{ConnectionRecord, RequestPipeline};
use crate::zookeeper::security::AclPolicy;
use crate::zookeeper::servers::ConnectString;
use crate::zookeeper::translate::{self, commit};
use crate::zookeeper::watches::{WatchKind, Watches};

/// While watches are armed again, at most this many reads are sent together. So a heartbeat never waits behind more of
/// these reads.
const ARMED_AT_ONCE: usize = 256;

/// The servers of a client, and the options of the connections to them.
#[derive(Clone)]
pub(super) struct ConnectConfig {
    pub(super) servers: ConnectString,
    pub(super) options: ZooKeeperBuilder,
}

impl ConnectConfig {
    /// Returns the connect string for one attempt: the target's address, followed by the root. If the target has no
    /// address, the server's text from the connect string takes its place.
    fn connect_string(&self, target: ConnectTarget) -> String {
        let of_name = || self.servers.each[target.server].text.clone();
        target.address.map_or_else(of_name, |address| address.to_string()) + self.servers.root()
    }

    /// Returns the address of an attempt, or the server's name and port if there is no address, for logs and errors.
    pub(super) fn address_text(&self, target: ConnectTarget) -> String {
        target.address.map_or_else(|| self.servers.each[target.server].host_and_port(), |address| address.to_string())
    }

    /// Connects to this address. Returns `None` if no answer comes within `limit`, or within the time limit of the
    /// client crate. If `session` is given, with its timeout, the connection resumes that session.
    pub(super) async fn open_connection(
        &self,
        target: ConnectTarget,
        limit: Duration,
        session: Option<(&zk::SessionInfo, Duration)>,
    ) -> Option<Result<OpenedConnection, zk::Error>> {
        let mut connector = self.options.connector(limit);
        if let Some((session, timeout)) = session {
            connector = connector.with_session(session.clone()).with_session_timeout(timeout);
        }
        let server = self.connect_string(target);
        #[cfg(target_os = "linux")]
        let sockets = crate::zookeeper::sockets::SocketSnapshot::take();
        let began = since_boot();
        let opened =
            run_until(sleep(limit), OpenedConnection::open(connector, &server, self.options.is_encrypted())).await;
        // The crate has a time limit of its own, which is at most three fifths of the session timeout. Its errors
        // `NoHosts` and `Timeout` may mean that this limit has passed, or that the attempt has failed earlier. So they
        // count as silence if 7/8 of the shorter of the two limits have passed.
        let is_late = since_boot().saturating_sub(began) >= limit.min(self.options.session_timeout * 3 / 5) * 7 / 8;
        let opened = opened.filter(|it| !is_late || !matches!(it, Err(zk::Error::NoHosts | zk::Error::Timeout)));
        let outcome = match &opened {
            Some(Ok(_)) => {
                #[cfg(target_os = "linux")]
                sockets.set_nodelay_on_new(target.address, self.servers.each[target.server].port);
                "connected"
            }
            Some(Err(_)) => "failed",
            None => "silent",
        };
        meter::increment_counter(names::CONNECTION_ATTEMPTS, None, &[("outcome", outcome)]);
        opened
    }
}

type ServerLookupResult = Result<Vec<Option<SocketAddr>>, String>;

/// Makes one attempt to connect after another, and looks up the servers' names meanwhile.
pub(super) struct ConnectDriver {
    pub(super) config: ConnectConfig,
    pub(super) attempts: Attempts,
    /// For each server, whether its look-up is under way, or waits to begin.
    is_under_way: Vec<bool>,
    pending: FuturesUnordered<BoxFuture<'static, (usize, ServerLookupResult)>>,
}

impl ConnectDriver {
    /// Returns the driver of a client that has not connected yet.
    pub(super) fn new(config: ConnectConfig) -> ConnectDriver {
        let attempts = Attempts::new(config.options.session_timeout, config.options.attempt_time_limit());
        let is_under_way = vec![false; config.servers.each.len()];
        ConnectDriver { config, attempts, is_under_way, pending: FuturesUnordered::new() }
    }

    /// Begins to look up each server. Ignores the answers of look-ups that are still under way.
    pub(super) fn begin_all_lookups(&mut self) {
        self.pending.clear();
        self.is_under_way.fill(false);
        (0..self.is_under_way.len()).for_each(|server| self.begin_lookup(server, Duration::ZERO));
    }

    /// Begins to look up a server after a pause, unless a look-up of this server is under way.
    fn begin_lookup(&mut self, server: usize, pause: Duration) {
        if std::mem::replace(&mut self.is_under_way[server], true) {
            return;
        }
        let (name, options) = (self.config.servers.each[server].host_and_port(), &self.config.options);
        let (needs_name, patience) = (options.must_connect_by_name(), options.session_timeout / 12);
        self.pending.push(Box::pin(async move {
            if !pause.is_zero() {
                sleep(pause).await;
            }
            // If the handshake of TLS or Kerberos needs the name of the server, the client crate is given that name,
            // and looks it up itself.
            let found = if needs_name {
                Ok(vec![None])
            } else {
                look_up_addresses(&name, patience).await.map(|found| found.into_iter().map(Some).collect())
            };
            (server, found)
        }));
    }

    /// Records the result of the next look-up that ends. After an error, looks the same server up again later. Never
    /// returns if no look-up is under way.
    async fn record_next_lookup(&mut self) {
        let Some((server, found)) = self.pending.next().await else { return std::future::pending().await };
        self.is_under_way[server] = false;
        match found {
            Ok(found) => self.attempts.record_addresses(server, &found, random),
            Err(error) => {
                let name = self.config.servers.each[server].host_and_port();
                emit!(DEBUG, name, error, "a name of a server cannot be looked up");
                self.begin_lookup(server, self.config.options.session_timeout / 20);
            }
        }
    }

    /// Waits until the next attempt may begin, and makes the attempt. If `session` is given, the attempt resumes that
    /// session. Returns the address, the time limit of the attempt, a moment before its handshake, and the result of
    /// [`ConnectConfig::open_connection`].
    pub(super) async fn make_next_attempt(
        &mut self,
        session: Option<(&zk::SessionInfo, Duration)>,
    ) -> (ConnectTarget, Duration, Moment, Option<Result<OpenedConnection, zk::Error>>) {
        let (target, limit) = loop {
            match self.attempts.next_step(since_boot()) {
                ConnectStep::Attempt(target, limit) => break (target, limit),
                ConnectStep::Pause(pause) => tokio::select! {
                    biased;
                    () = self.record_next_lookup() => {}
                    () = sleep(pause) => {}
                },
            }
        };
        let (began, config) = (since_boot(), self.config.clone());
        let mut attempt = pin!(config.open_connection(target, limit, session));
        loop {
            tokio::select! {
                biased;
                opened = &mut attempt => return (target, limit, began, opened),
                () = self.record_next_lookup() => {}
            }
        }
    }

    /// Records that an attempt has failed, and begins to look its server up again.
    pub(super) fn record_failure(&mut self, target: ConnectTarget, why: AttemptFailure) {
        self.attempts.record_failure(target, why, since_boot());
        self.begin_lookup(target.server, Duration::ZERO);
    }
}

/// What all connections of one session share.
pub(super) struct SessionConnections {
    pub(super) config: ConnectConfig,
    pub(super) store: Arc<SessionStore>,
    pub(super) pipeline: Arc<RequestPipeline>,
    pub(super) watches: Arc<Watches>,
    pub(super) background: Arc<BackgroundThread>,
    /// Says as which user this client is authenticated, for error messages.
    pub(super) whom: String,
    pub(super) rights: AclPolicy,
    pub(super) features: ServerFeatures,
    /// The length in bytes of the root, which is the path at the end of the connect string.
    pub(super) root_bytes: usize,
    /// The session's id and password.
    pub(super) session: zk::SessionInfo,
    /// The session timeout that the server of the first connection granted.
    pub(super) granted: Duration,
    /// The address of the server that the session is connected to; `None` without a connection.
    pub(super) server: Mutex<Option<String>>,
    pub(super) leaves: mpsc::UnboundedSender<LeaveServerRequest>,
}

/// A request of a caller to leave the server of the present connection, because that server disagrees with its leader.
pub(super) struct LeaveServerRequest {
    /// The number of the connection that is to be left.
    pub(super) connection: u64,
    /// The path of the node about which the server and the leader do not agree.
    pub(super) node: String,
    /// Gets the answer of [`Session::leave_server`](contract::Session::leave_server).
    pub(super) answer: oneshot::Sender<Result<bool, Failure>>,
}

/// A connection whose task runs on the library's thread.
pub(super) struct ServedConnection {
    target: ConnectTarget,
    /// The crate's client before the connection is ready, and again once the server is to be left. In between, the
    /// pipeline has the client, and this is `None`.
    unready: Option<Arc<zk::Client>>,
    record: Arc<ConnectionRecord>,
    /// Why the connection has ended. `None` until it has ended.
    end: watch::Receiver<Option<ConnectionEnd>>,
    /// The task that serves the connection. Dropping the task abandons the connection.
    task: Option<FallibleTask<thread::Result<()>>>,
}

impl ServedConnection {
    /// Waits until the connection has ended, and returns why.
    async fn wait_for_end(&self) -> ConnectionEnd {
        let mut end = self.end.clone();
        let ended = end.wait_for(Option::is_some).await;
        ended.ok().and_then(|end| *end).unwrap_or(ConnectionEnd::Lost)
    }

    /// Closes the session on this connection, unless the connection has ended: drops the client, and waits up to
    /// `limit` for the server's answer. The caller makes sure that there is no other clone of the client, because only
    /// the drop of the last clone closes the session.
    async fn close_session(mut self, limit: Duration) {
        drop_catching_panic(self.unready.take());
        let _ended = run_until(sleep(limit), self.wait_for_end()).await;
    }
}

impl Drop for ServedConnection {
    /// Abandons the connection. The task is dropped before the client, because a running task would close the session
    /// once the last client is dropped.
    fn drop(&mut self) {
        self.record.record_end(true);
        drop_catching_panic(self.task.take());
        drop_catching_panic(self.unready.take());
    }
}

impl SessionConnections {
    /// Serves a new session until it is over: on its first connection, and then on others.
    pub(super) async fn serve_session(
        self: Arc<Self>,
        mut served: ServedConnection,
        mut finder: ConnectDriver,
        mut leaves: mpsc::UnboundedReceiver<LeaveServerRequest>,
    ) {
        let mut is_told_lost = false;
        let ending = loop {
            let why = tokio::select! {
                biased;
                ended = served.wait_for_end() => ended,
                Some(asked) = leaves.recv() => {
                    match self.answer_leave_request(asked, &mut served, &mut finder.attempts).await {
                        Some(why) => why,
                        None => continue,
                    }
                }
                // The connection of an idle session is made ready only when a request waits for it. A close of the
                // session also wakes this branch.
                () = self.pipeline.wanted.notified(), if served.unready.is_some() => {
                    match self.make_ready(&served).await {
                        Ok(()) => {
                            self.adopt_connection(&mut served, &mut finder.attempts, true);
                            continue;
                        }
                        Err(why) => why,
                    }
                }
            };
            if let ConnectionEnd::Over(ending) = why {
                self.store.record_end_and_report(ending);
                served.close_session(self.granted).await;
                break ending;
            }
            let (server, session, lost_at) =
                (self.config.address_text(served.target), self.hex_session_id(), since_boot());
            // Two kinds of losses are logged only at DEBUG: the loss of a connection that was never used, because it
            // may happen again and again, and a loss after the session was closed.
            if served.unready.is_none() && !self.pipeline.is_closed() {
                is_told_lost = true;
                emit!(INFO, session, server, %why, "the connection is lost");
            } else {
                emit!(DEBUG, session, server, %why, "the connection is lost before its use");
            }
            let broke = matches!(why, ConnectionEnd::Lost | ConnectionEnd::Panicked);
            finder.attempts.record_loss(served.target, lost_at, served.record.has_open_writes(), broke);
            self.abandon_connection(served);
            let resumed = tokio::select! {
                biased;
                resumed = self.resume_session(&mut finder) => resumed,
                () = self.until_closed_for_long() => Err(SessionEnd::Closed),
                () = self.until_presumed_expired() => Err(SessionEnd::Expired),
            };
            match resumed {
                Ok(next) => served = next,
                Err(ending) => break ending,
            }
            let (server, after) = (self.config.address_text(served.target), since_boot().saturating_sub(lost_at));
            if std::mem::replace(&mut is_told_lost, false) {
                emit!(INFO, session, server, ?after, "the connection is back");
            }
        };
        let why = self.store.lease().ending().unwrap_or(ending);
        emit!(INFO, session = self.hex_session_id(), %why, "the session is over");
        self.end_session(ending);
    }

    fn hex_session_id(&self) -> String {
        format!("{:x}", self.session.id().0)
    }

    /// Records that the session is over, and drops the pipeline's clone of the crate's client. When the last clone is
    /// dropped, the crate requests the server to end the session.
    pub(super) fn end_session(&self, why: SessionEnd) {
        // The end is recorded first. So the guards of this session are lost before the server can give their locks to
        // other contenders.
        self.store.record_end_and_report(why);
        // Only ClickHouse Keeper answers a reconnect with another session. So the servers must be ClickHouse Keeper.
        if why == SessionEnd::Replaced {
            self.features.keeper.mark_as_clickhouse();
        }
        self.pipeline.close();
        self.watches.end_all();
    }

    /// Ends the session, and returns the failure for the request under way. The caller has seen that a new transaction
    /// has an id that is not higher than an earlier id. So the ensemble has gone back to an earlier state, in which
    /// other contenders may hold this session's locks.
    pub(super) fn end_after_ensemble_restore(&self) -> Failure {
        emit!(ERROR, session = self.hex_session_id(), "the ensemble has gone back to an earlier state");
        self.end_session(SessionEnd::Expired);
        Failure::Over(SessionEnd::Expired)
    }

    /// Returns a future that runs `task`, without which the session cannot go on. If the task panics, the session ends,
    /// unless the session is over or closed already.
    pub(super) fn end_session_on_panic<F: Future<Output = ()>>(
        self: &Arc<Self>,
        task: F,
    ) -> impl Future<Output = ()> + use<F> {
        let this = Arc::downgrade(self);
        retry::with_panic_handler(task, move || {
            let this = this.upgrade().filter(|it| it.store.lease().ending().is_none() && !it.pipeline.is_closed());
            if let Some(it) = this {
                emit!(ERROR, session = it.hex_session_id(), "a task of a session has panicked, which ends the session");
                it.end_session(SessionEnd::Failed);
            }
        })
    }

    pub(super) fn translate_error(&self, error: zk::Error, needs: (&'static str, &str)) -> Failure {
        translate::translate_error(error, needs, &self.whom)
    }

    /// Waits until the session counts as expired. The wait ends seven fifths of the session timeout plus a random time
    /// after the newest answered request was sent. By then the ensemble has usually ended the session. The random time
    /// is up to an eighth of the session timeout. Without the random time, all clients of an ensemble would open new
    /// sessions at the same moment.
    async fn until_presumed_expired(&self) {
        let (lease, spread) = (self.store.lease(), new_session_jitter(self.granted / 2, self.granted, random()));
        while let Some(left) = (lease.last_answered_sent_at() + self.granted * 7 / 5 + spread).checked_sub(lease.now())
        {
            sleep(left.max(Duration::from_millis(1))).await;
        }
    }

    /// Waits until this client closes the session, and then for one more session timeout.
    async fn until_closed_for_long(&self) {
        while !self.pipeline.is_closed() {
            self.pipeline.wanted.notified().await;
        }
        sleep(self.granted).await;
    }

    /// Starts the task of a connection.
    pub(super) fn start_serving(
        self: &Arc<Self>,
        connection: OpenedConnection,
        target: ConnectTarget,
    ) -> ServedConnection {
        let (ending, end) = watch::channel(None);
        let (client, record) = (Arc::clone(&connection.client), Arc::new(ConnectionRecord::default()));
        let (watches, this, on_end) = (Arc::clone(&self.watches), Arc::clone(self), Arc::clone(&record));
        let serving = connection.serve(
            move || watches.deliver_events(),
            move |why| {
                on_end.record_end(why == ConnectionEnd::Panicked);
                let is_silent = this.store.lease().silent_for() >= this.config.options.silence_limit();
                this.mark_disconnected();
                ending.send_replace(Some(if why == ConnectionEnd::Lost && is_silent {
                    ConnectionEnd::Silent
                } else {
                    why
                }));
            },
        );
        let task = self.background.spawn_with_handle(serving);
        ServedConnection { target, unready: Some(client), record, end, task }
    }

    /// Records that the connection is lost. Called before any request or watch of the lost connection fails.
    fn mark_disconnected(&self) {
        let client = self.pipeline.pause_and_take_client();
        self.watches.disarm_all();
        *self.server.lock() = None;
        self.store.set_connected(false);
        drop_catching_panic(client);
    }

    /// Records that a connection is lost, and then abandons it.
    fn abandon_connection(&self, served: ServedConnection) {
        self.mark_disconnected();
        drop(served);
    }

    /// Lets the session use this connection: sends the requests that have waited, and then wakes the tasks that wait
    /// for a connection. On a reconnect, [`SessionConnections::rearm_watches`] has already delivered the missed events.
    ///
    /// If `is_ready` is `false`, the session is idle: no request waits, and no watch has to be armed. The session then
    /// counts as connected, although its connection is not ready. When the next request comes,
    /// [`SessionConnections::serve_session`] makes the connection ready.
    pub(super) fn adopt_connection(&self, served: &mut ServedConnection, attempts: &mut Attempts, is_ready: bool) {
        *self.server.lock() = Some(self.config.address_text(served.target));
        if is_ready {
            attempts.record_ready(served.target);
            if let Some(client) = served.unready.take() {
                self.pipeline.set_connection(&client, &served.record);
            }
        }
        self.store.set_connected(true);
    }

    /// Answers a request to leave a server. If the request is about an earlier connection, answers `false`. If
    /// [`Attempts::record_leave_if_allowed`] forbids it, answers with an error. In both cases returns `None`. Otherwise
    /// gives writes under way some time to end, answers `true`, and returns why the connection ends.
    async fn answer_leave_request(
        &self,
        asked: LeaveServerRequest,
        served: &mut ServedConnection,
        attempts: &mut Attempts,
    ) -> Option<ConnectionEnd> {
        let LeaveServerRequest { connection, node, answer } = asked;
        if connection != self.store.connection_number() {
            let _unheard = answer.send(Ok(false));
            return None;
        }
        if !attempts.record_leave_if_allowed(served.target, since_boot()) {
            let _unheard =
                answer.send(Err(Failure::Diverged { node, server: self.config.address_text(served.target) }));
            return None;
        }
        // From here on, requests wait for the next connection.
        let client = self.pipeline.pause_and_take_client();
        served.unready = served.unready.take().or(client);
        let writes = async {
            while served.record.has_open_writes() {
                sleep(self.granted / 200).await;
            }
        };
        let end = tokio::select! {
            biased;
            ended = served.wait_for_end() => ended,
            _ = run_until(sleep(self.granted / 12), writes) => ConnectionEnd::Left,
        };
        // The loss is counted before the answer, so that the caller, which takes the connection's number again, does
        // not take the number of the connection that was left.
        self.mark_disconnected();
        let _unheard = answer.send(Ok(true));
        Some(end)
    }

    /// Tries one address after another until a connection has resumed the session. Fails if the session is over, or if
    /// a server refuses the credentials.
    async fn resume_session(self: &Arc<Self>, finder: &mut ConnectDriver) -> Result<ServedConnection, SessionEnd> {
        finder.begin_all_lookups();
        loop {
            let (target, limit, handshake, opened) =
                finder.make_next_attempt(Some((&self.session, self.granted))).await;
            let why = match opened {
                None => AttemptFailure::Silent,
                Some(Err(zk::Error::AuthFailed)) if finder.attempts.is_address_fresh(target) => {
                    return Err(SessionEnd::AuthFailed);
                }
                // Here and above, a server is believed only if its address is fresh. An address of an earlier look-up
                // may belong to another ensemble by now.
                Some(Err(zk::Error::SessionExpired)) if finder.attempts.is_address_fresh(target) => {
                    return Err(SessionEnd::Expired);
                }
                Some(Err(_)) => AttemptFailure::Refused,
                Some(Ok(connection)) => {
                    let mut served = self.start_serving(connection, target);
                    match self.make_ready_unless_idle(&served, handshake).await {
                        Ok(is_ready) => {
                            self.adopt_connection(&mut served, &mut finder.attempts, is_ready);
                            return Ok(served);
                        }
                        Err(ConnectionEnd::Over(ending)) => {
                            self.store.record_end_and_report(ending);
                            served.close_session(self.granted).await;
                            return Err(ending);
                        }
                        Err(why) => {
                            self.abandon_connection(served);
                            if why == ConnectionEnd::Silent { AttemptFailure::Silent } else { AttemptFailure::Unready }
                        }
                    }
                }
            };
            let (session, server) = (self.hex_session_id(), self.config.address_text(target));
            emit!(DEBUG, session, server, ?limit, ?why, "an attempt to resume the session has failed");
            finder.record_failure(target, why);
        }
    }

    /// Makes a connection ready whose handshake has succeeded, unless the session is idle. Returns whether the
    /// connection is ready. Fails if the connection cannot be made ready, or if the server gave another session or too
    /// short a timeout.
    ///
    /// [`SessionStore::record_resume`] records when the handshake was sent. The handshake extends the lease only once a
    /// quorum has answered ([`SessionConnections::check_with_quorum`]).
    async fn make_ready_unless_idle(
        &self,
        served: &ServedConnection,
        handshake: Moment,
    ) -> Result<bool, ConnectionEnd> {
        let Some(client) = &served.unready else { return Err(ConnectionEnd::Lost) };
        if client.session_id().0 != self.session.id().0 {
            return Err(ConnectionEnd::Over(SessionEnd::Replaced));
        }
        // If the granted timeout is shorter than the lease assumes, the session could end while this client still counts
        // as a holder.
        if client.session_timeout() < self.store.lease().timeout() {
            let timeout = client.session_timeout();
            emit!(
                WARN,
                session = self.hex_session_id(),
                ?timeout,
                "a server grants a shorter session timeout than another did"
            );
            return Err(ConnectionEnd::Over(SessionEnd::Expired));
        }
        self.store.record_resume(handshake);
        // The connection of an idle session is not checked with a transaction. So many idle clients that reconnect at
        // the same time cost the ensemble no transactions.
        let is_idle = self.store.has_no_nodes() && self.watches.is_empty() && !self.pipeline.has_waiting_requests();
        if is_idle && !self.pipeline.is_closed() {
            return Ok(false);
        }
        self.make_ready(served).await.map(|()| true)
    }

    /// Checks a connection by a transaction, and then arms all watches again. Fails if the session is closed.
    ///
    /// The reply to the read of one watch may break every connection, and the session would then be unusable for ever.
    /// So the session is ended if the check succeeds, the watches cannot be armed, and the session was cut off for more
    /// than seven fifths of the session timeout.
    async fn make_ready(&self, served: &ServedConnection) -> Result<(), ConnectionEnd> {
        if self.pipeline.is_closed() {
            return Err(ConnectionEnd::Over(SessionEnd::Closed));
        }
        let Some(client) = &served.unready else { return Err(ConnectionEnd::Lost) };
        let mut is_checked = false;
        let ready = async {
            self.check_with_quorum(client).await?;
            is_checked = true;
            self.rearm_watches(client).await
        };
        let ready = tokio::select! {
            biased;
            ended = served.wait_for_end() => Err(ended),
            ready = ready => ready,
        };
        let lost = self.store.lease().disconnected_since().filter(|_| is_checked && ready.is_err());
        if lost.is_some_and(|lost| lost.elapsed() > self.granted * 7 / 5) {
            emit!(
                ERROR,
                session = self.hex_session_id(),
                "the watches of the session cannot be armed again, which ends the session"
            );
            return Err(ConnectionEnd::Over(SessionEnd::Expired));
        }
        ready
    }

    /// Sends a transaction that changes nothing. Only a quorum can answer it. Fails if no quorum answers within a
    /// quarter of the session timeout.
    async fn check_with_quorum(&self, client: &zk::Client) -> Result<(), ConnectionEnd> {
        let sent = self.store.lease().now();
        let check = [Operation::Check { path: "/".to_owned(), version: None }];
        let answer = run_until(sleep(self.granted / 4), commit(client, &check, &self.rights.acl, &self.whom)).await;
        match answer {
            None => Err(ConnectionEnd::Silent),
            Some(answer) if is_from_quorum(&answer) => {
                self.store.record_quorum_answer(sent);
                Ok(())
            }
            Some(Err(Failure::Over(ending))) => Err(ConnectionEnd::Over(ending)),
            Some(_) => Err(ConnectionEnd::Lost),
        }
    }

    /// Arms all watches of the session again, and checks whether all nodes of the session exist. If one of the nodes is
    /// gone, calls [`SessionConnections::end_if_ensemble_restored`].
    async fn rearm_watches(&self, client: &zk::Client) -> Result<(), ConnectionEnd> {
        let lease = self.store.lease();
        let mut checked = lease.now();
        let (keys, own, gone) = (self.watches.keys(), self.store.own_paths(), Mutex::new(None));
        for some in keys.chunks(ARMED_AT_ONCE) {
            // Like all requests, heartbeats wait until the connection is ready, and on a slow network the reads may
            // take longer than a heartbeat period. So this loop itself renews the lease between two portions of reads.
            if lease.now().saturating_sub(checked) > lease.heartbeat_period() {
                checked = lease.now();
                self.check_with_quorum(client).await?;
            }
            let sent = lease.now();
            let reads = some.iter().map(async |key| {
                let (path, kind) = key;
                let answer = match kind {
                    WatchKind::Data => {
                        client.check_and_watch_stat(path).await.map(|(stat, watcher)| (stat, Some(watcher)))
                    }
                    WatchKind::Children => {
                        let read = client.get_and_watch_children(path).await;
                        read.map(|(_, stat, watcher)| (Some(stat), Some(watcher)))
                    }
                };
                let answer = answer.map_err(|error| self.translate_error(error, ("READ", path)));
                if let Some(path) = own.get(&**path).filter(|_| matches!(answer, Ok((None, _)))) {
                    *gone.lock() = Some(path.clone());
                }
                self.watches.record_rearm_answer(key, answer)
            });
            try_join_all(reads).await.map_err(|_| ConnectionEnd::Lost)?;
            self.store.record_answer(sent);
        }
        // The newest nodes may not be watched yet, so their existence is checked without a watch.
        let watched: BTreeSet<&str> = keys.iter().map(|(path, _)| &**path).collect();
        let unwatched: Vec<&String> = own.iter().filter(|path| !watched.contains(path.as_str())).collect();
        for some in unwatched.chunks(ARMED_AT_ONCE) {
            join_all(some.iter().map(async |path| {
                if matches!(client.check_stat(path).await, Ok(None)) {
                    *gone.lock() = Some(path.to_string());
                }
            }))
            .await;
        }
        let gone = gone.lock().take();
        match gone {
            Some(path) => self.end_if_ensemble_restored(client, &path).await,
            None => Ok(()),
        }
    }

    /// Checks whether the ensemble has gone back to an earlier state, which may be why this session's node at `path` is
    /// gone. If it has, ends the session, and fails. Otherwise nodes that this session has deleted could exist again,
    /// and would block other contenders as long as the session lives. If the check itself fails, returns `Ok`.
    ///
    /// Only the answer to a write shows the present transaction id of the ensemble. So this check creates, sets and
    /// deletes a node of its own in one transaction. The node lies in the directory of the missing node, or, if that is
    /// gone, in the nearest directory above that exists.
    async fn end_if_ensemble_restored(&self, client: &zk::Client, path: &str) -> Result<(), ConnectionEnd> {
        let newest = self.store.newest_zxid();
        let mut directory = contract::temporary_node_directory(path);
        loop {
            let path = format!("{}/session-{}", directory.trim_end_matches('/'), self.hex_session_id());
            let operations = [
                Operation::Create { path: path.clone(), data: Vec::new(), kind: request::Kind::Ephemeral },
                // Before 3.8.1 (ZOOKEEPER-4026), only the answer to `Set` shows the transaction's id.
                Operation::Set { path: path.clone(), data: Vec::new(), version: None },
                Operation::Delete { path, version: None },
            ];
            match commit(client, &operations, &self.rights.acl, &self.whom).await {
                Ok((_, zxid)) if zxid <= newest => {
                    self.end_after_ensemble_restore();
                    return Err(ConnectionEnd::Over(SessionEnd::Expired));
                }
                Err(Failure::Operation { failure, .. }) if *failure == Failure::NoNode && directory != "/" => {
                    directory = request::parent_path(directory);
                }
                _ => return Ok(()),
            }
        }
    }
}
