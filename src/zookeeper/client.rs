//! The client of a ZooKeeper ensemble. The client owns its sessions, and decides when to open a new one.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures_util::future::{OptionFuture, join_all};

use crate::error::error::Error;
use crate::queue::quoted::quoted;
use crate::session::contract::{ConnectionState, Coordinator, Session, SessionSlot};
use crate::session::request::{Failure, SessionEnd};
use crate::session::retry::run_until;
use crate::session::thread::{BackgroundThread, is_in_forked_process, panic_message, sleep};
use crate::sync::{Mutex, watch};
use crate::telemetry::log::{self, FAREWELL};
use crate::telemetry::user_thread;
use crate::zookeeper::abilities::ClickHouseMark;
use crate::zookeeper::connect::{NewSessionSchedule, new_session};
use crate::zookeeper::connections::ConnectConfig;
use crate::zookeeper::options::ZooKeeperBuilder;
use crate::zookeeper::outage::Outage;
use crate::zookeeper::servers::ConnectString;
use crate::zookeeper::session::ZooKeeperSession;

/// A client of a ZooKeeper ensemble.
///
/// The sessions of a client run on a thread of the library. When a session expires, its guards are lost, and its
/// waiting acquisitions fail. The next acquisition then uses another session of the client, or opens a new one.
///
/// # Clone
/// Clones share their sessions. Once the last clone and the last guard are dropped, the sessions are closed. The last
/// of these drops waits up to 250 ms for the servers to end the connected sessions. [`ZooKeeper::close`] waits longer,
/// for up to one session timeout.
///
/// # Examples
///
/// ```no_run
/// # use zk_rwlock::{Error, RwLock, ZooKeeper};
/// # async fn main_of_yours() -> Result<(), Error> {
/// let zk = ZooKeeper::connect("zk1:2181,zk2:2181,zk3:2181/apps").await?;
/// let lock = RwLock::new(&zk, "/locks/config")?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct ZooKeeper {
    ensemble: Arc<ClientSessions>,
}

struct ClientSessions {
    config: ConnectConfig,
    background: Arc<BackgroundThread>,
    sessions: Mutex<Vec<Arc<ZooKeeperSession>>>,
    keeper: Arc<ClickHouseMark>,
    /// The attempt to open a session, if an attempt is under way. All callers wait for the same attempt, so that many
    /// callers open only one session.
    opening: Mutex<Option<OpeningReceiver>>,
    closed: watch::Sender<bool>,
    outage: Arc<Outage>,
}

/// The outcome of an attempt to open a session, which all callers await. `None` until the attempt has ended.
type OpeningReceiver = watch::Receiver<Option<Result<(), Failure>>>;

impl ZooKeeper {
    /// Connects with default options, and waits until a session is established. `servers` is a list
    /// `host:port,host:port`. A path may follow, which is put in front of all paths: `zk1:2181,zk2:2181/apps/billing`.
    /// The path is created if it is missing. If the path is deleted later, the next acquisition creates it again.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the attempt.
    ///
    /// # Errors
    /// - [`Error::Unreachable`] when no server gave a session within the session timeout (10 s).
    /// - [`Error::InvalidInput`] when `servers` is not a valid list.
    /// - [`Error::PermissionDenied`] when the path is missing, and this client may not create it.
    /// - [`Error::Closed`] in a process that was forked from one that had connected.
    pub async fn connect(servers: impl AsRef<str>) -> Result<ZooKeeper, Error> {
        ZooKeeper::builder().connect(servers).await
    }

    /// Returns a builder with the default options of a connection.
    pub fn builder() -> ZooKeeperBuilder {
        ZooKeeperBuilder::new()
    }

    /// Returns whether this client is connected, for readiness probes.
    ///
    /// The call returns immediately. While connected, the call sends no request. If the client has several sessions,
    /// the call returns the state of the oldest live session, because the next acquisition will likely use that
    /// session. Between two sessions the state is [`Connecting`](ConnectionState::Connecting), and its `since` is the
    /// moment at which the last session lost its connection.
    ///
    /// While the client is not connected, and not closed, a call starts two things in the background, at most once a
    /// second. If no session is live, the call opens a new one, as an acquisition would do. The call also asks each
    /// server, on a new connection, for the [reason](ConnectionState::Connecting::why). The call does not wait for the
    /// answers, so the first results may lack the reason.
    ///
    /// `Connected` does not say whether a lock is held. A guard's [`state`](crate::Hold::state) says that.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use zk_rwlock::{ConnectionState, ZooKeeper};
    /// # fn ready(zk: &ZooKeeper) -> (u16, String) {
    /// match zk.state() {
    ///     ConnectionState::Connected => (200, "ready".to_owned()),
    ///     state => (503, state.to_string()), // connecting for 7s: zk1:2181: Connection refused (os error 111)
    /// }
    /// # }
    /// ```
    pub fn state(&self) -> ConnectionState {
        self.ensemble.state()
    }

    /// Returns the session timeout that the servers have granted to the oldest live session, which may differ from the
    /// [requested](ZooKeeperBuilder::session_timeout) one. Returns `None` if no session is live: between two sessions,
    /// and after [`close`](Self::close).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use zk_rwlock::ZooKeeper;
    /// # async fn tell() -> Result<(), zk_rwlock::Error> {
    /// let zk = ZooKeeper::connect("zk1:2181").await?;
    /// println!("after a crash the lock is free within {:?}", zk.session_timeout());
    /// # Ok(()) }
    /// ```
    pub fn session_timeout(&self) -> Option<Duration> {
        let sessions = self.ensemble.sessions.lock();
        sessions.iter().find(|session| session.lease().ending().is_none()).map(|session| session.timeout())
    }

    /// Ends every session, which deletes all nodes of the sessions. Waits until the servers have confirmed the end, for
    /// one session timeout at most. Then also waits up to 250 ms for the subscriber of `tracing` to receive the events.
    ///
    /// Guards are lost, waiting acquisitions fail, and new ones are refused with [`Error::Closed`].
    ///
    /// # Cancel safety
    /// If the future is dropped after its first poll, the sessions are still closed in the background.
    pub async fn close(&self) {
        Coordinator::close(self).await;
    }
}

impl ZooKeeperBuilder {
    /// Connects. See [`ZooKeeper::connect`].
    ///
    /// # Errors
    /// The errors of [`ZooKeeper::connect`], but the time limit is the connect timeout. Also [`Error::InvalidInput`]
    /// for an invalid option, [`Error::Closed`] for refused credentials, and [`Error::Refused`] if the library cannot
    /// start its thread.
    pub async fn connect(self, servers: impl AsRef<str>) -> Result<ZooKeeper, Error> {
        self.check()?;
        let servers = ConnectString::parse(servers.as_ref())?;
        self.check_encryption(&servers)?;
        if is_in_forked_process() {
            return Err(Error::Closed(SessionEnd::Forked));
        }
        let background = BackgroundThread::get_or_start().map_err(|error| Error::Refused {
            operation: "start the thread for",
            path: servers.as_str().to_owned(),
            reason: error.to_string(),
        })?;
        let ensemble = ClientSessions {
            config: ConnectConfig { servers: servers.clone(), options: self },
            background,
            sessions: Mutex::new(Vec::new()),
            keeper: Arc::default(),
            opening: Mutex::new(None),
            closed: watch::Sender::new(false),
            outage: Arc::default(),
        };
        let opened = ensemble.open_session().await.and_then(|session| ensemble.add_session_and_reserve(session, 0));
        opened.map_err(|failure| match failure {
            Failure::Refused(problem) => Error::invalid(format!("servers {}: {problem}", quoted(servers.as_str()))),
            failure => Error::from_failure(failure, "connect to", servers.as_str()),
        })?;
        Ok(ZooKeeper { ensemble: Arc::new(ensemble) })
    }
}

#[async_trait]
impl Coordinator for ZooKeeper {
    async fn session_slot(&self, own_bytes: usize) -> Result<SessionSlot, Failure> {
        loop {
            if let Some(ending) = self.ensemble.why_closed() {
                return Err(Failure::Over(ending));
            }
            let session_slot = match self.ensemble.reserve_or_begin_opening(own_bytes) {
                Ok(session_slot) => session_slot,
                Err(mut opening) => match opening.wait_for(Option::is_some).await.as_deref() {
                    Ok(Some(Err(failure))) => return Err(failure.clone()),
                    Ok(_) => continue,
                    Err(_) => return Err(thread_ended_failure()),
                },
            };
            // A close of the client ends all its sessions. If the session ends during this wait, the loop begins again.
            if session_slot.session().store().until_connected().await.is_ok() {
                return Ok(session_slot);
            }
        }
    }

    async fn close(&self) {
        if self.ensemble.why_closed() == Some(SessionEnd::Forked) {
            return;
        }
        self.ensemble.closed.send_replace(true);
        let sessions = std::mem::take(&mut *self.ensemble.sessions.lock());
        for session in &sessions {
            session.connections.end_session(SessionEnd::Closed);
        }
        let confirmed = sessions.iter().map(|session| async move {
            let mut follower = session.follower.clone();
            run_until(session.sleep(session.timeout()), follower.changed()).await
        });
        join_all(confirmed).await;
        // Gives the log subscriber some time to receive the events about the end of the sessions.
        let began = Instant::now();
        while log::has_waiting_events() && began.elapsed() < FAREWELL {
            self.sleep(Duration::from_millis(1)).await;
        }
    }

    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(sleep(duration))
    }

    fn state(&self) -> ConnectionState {
        self.ensemble.state()
    }

    fn namespace(&self) -> Option<(Vec<String>, String)> {
        let servers = &self.ensemble.config.servers;
        Some((
            servers.each.iter().map(|server| server.host_and_port().to_lowercase()).collect(),
            servers.root().trim_end_matches('/').to_owned(),
        ))
    }
}

impl fmt::Debug for ZooKeeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sessions = self.ensemble.sessions.lock().iter().map(|session| session.id()).collect::<Vec<_>>();
        f.debug_struct("ZooKeeper")
            .field("servers", &self.ensemble.config.servers.as_str())
            .field("sessions", &sessions)
            .finish()
    }
}

impl Drop for ClientSessions {
    /// Drops the sessions, and waits until the servers have ended those that are connected. Then waits for the log
    /// subscriber. Both waits together take at most 250 ms. Without the first wait, a program that ends right after its
    /// last guard would leave the lock taken for a whole session timeout. On a thread of the library, this drop does
    /// not wait. In a forked process, it does nothing.
    ///
    /// Each guard has a reference to these `ClientSessions`. So when this drop runs, no guard is left, and only
    /// removals of nodes in the background still use a session. The session is closed after the last of these removals.
    fn drop(&mut self) {
        if is_in_forked_process() {
            // The sessions belong to the parent process. They are not dropped, because a thread of the parent may have
            // held a mutex inside a session during the fork, and the drop would wait for that mutex for ever.
            std::mem::forget(std::mem::take(&mut *self.sessions.lock()));
            return;
        }
        let sessions = std::mem::take(&mut *self.sessions.lock());
        let connected = sessions.iter().filter(|it| it.lease().is_connected());
        let leaving: Vec<_> = connected.map(|it| it.follower.clone()).collect();
        drop(sessions);
        // A thread of the library does not wait: while it waited, it could not end the sessions or deliver the log
        // events, for which it would wait.
        if user_thread::is_library_thread() {
            return;
        }
        let deadline = Instant::now() + FAREWELL;
        // Blocks the thread, because a drop cannot await.
        while Instant::now() < deadline && leaving.iter().any(|follower| follower.has_changed().is_ok()) {
            thread::sleep(Duration::from_millis(1));
        }
        log::flush_events(deadline.saturating_duration_since(Instant::now()));
    }
}

impl ClientSessions {
    /// Returns why no session may be used: the client was closed, or this process is a forked child, whose sessions
    /// belong to its parent. `None` if sessions may be used.
    fn why_closed(&self) -> Option<SessionEnd> {
        let closed = || self.closed.borrow().then_some(SessionEnd::Closed);
        if is_in_forked_process() { Some(SessionEnd::Forked) } else { closed() }
    }

    /// Reserves `own_bytes` for paths of nodes on the oldest live session that has so many bytes free, and marks that
    /// session as used. Also drops each session that is over, and each unused session except the oldest live one. If
    /// sessions are over, reports the end of the oldest of them to [`Outage`].
    fn prune_and_reserve_slot(&self, own_bytes: usize) -> Option<SessionSlot> {
        let mut sessions = self.sessions.lock();
        let over: Vec<_> = sessions.extract_if(.., |session| session.lease().ending().is_some()).collect();
        let session_slot = sessions.iter().find_map(|session| {
            let session_slot = session.reserve_slot(own_bytes)?;
            session.mark_used();
            Some(session_slot)
        });
        let others = sessions.len().min(1)..;
        let idle: Vec<_> = sessions.extract_if(others, |session| !session.is_in_use()).collect();
        drop(sessions);
        if let Some(first) = over.first()
            && let Some((lost, ending)) = first.lease().disconnected_since().zip(first.lease().ending())
        {
            self.outage.record_start(lost, NewSessionSchedule::after_loss(first.lease()), ending);
        }
        drop((over, idle));
        session_slot
    }

    /// Returns `Closed` if no session may be used any more. Otherwise returns the state of the oldest live session,
    /// which the next acquisition uses if the session has enough bytes free for the paths of its nodes. If that session
    /// is not connected, or no session is live, also probes the servers for the reason, at most once a second. When a
    /// probe starts and no session is live, also begins to open a new session.
    fn state(self: &Arc<Self>) -> ConnectionState {
        if self.why_closed().is_some() {
            return ConnectionState::Closed;
        }
        let sessions = self.sessions.lock();
        let alive = sessions.iter().find(|session| session.lease().ending().is_none());
        let (is_alive, lost) =
            (alive.is_some(), alive.or(sessions.first()).and_then(|session| session.lease().disconnected_since()));
        drop(sessions);
        if is_alive && lost.is_none() {
            return ConnectionState::Connected;
        }
        let probes = self.outage.start_probe_if_due(&self.config, &self.background);
        if probes && !is_alive {
            // Opens a session, because a program may wait for `Connected` before its next acquisition.
            let _slot_or_opening = self.reserve_or_begin_opening(0);
        }
        let since = lost.or_else(|| self.outage.lost_at()).unwrap_or_else(Instant::now);
        ConnectionState::Connecting { since, why: self.outage.message_since(since) }
    }

    /// Reserves `own_bytes` on a live session. If no session has so many bytes free, returns a channel for the outcome
    /// of an attempt to open a new session. Begins that attempt, unless an attempt is under way.
    ///
    /// The attempt runs in a task of its own. So a caller whose future is not polled does not delay other callers. If
    /// all callers are dropped, only this one attempt goes on.
    fn reserve_or_begin_opening(self: &Arc<Self>, own_bytes: usize) -> Result<SessionSlot, OpeningReceiver> {
        let mut opening = self.opening.lock();
        // A successful attempt adds its session to the list before it sets `opening` to `None`. So if `opening`, which
        // is locked here, is `None`, the session of the last successful attempt is already in the list.
        if let Some(session_slot) = self.prune_and_reserve_slot(own_bytes) {
            return Ok(session_slot);
        }
        // If the sender of the outcome is gone, the task of the attempt has ended without an outcome, and this call
        // begins a new attempt.
        if let Some(opening) = opening.as_ref().filter(|opening| opening.has_changed().is_ok()) {
            return Err(opening.clone());
        }
        let (end, opened) = watch::channel(None);
        *opening = Some(opened.clone());
        let (connecting, ensemble, closed) = (self.open_session(), Arc::downgrade(self), self.until_closed());
        self.background.spawn(async move {
            let connected = tokio::select! {
                biased;
                () = closed => Err(Failure::Over(SessionEnd::Closed)),
                connected = connecting => connected,
            };
            let Some(ensemble) = ensemble.upgrade() else { return };
            let outcome = connected.and_then(|session| ensemble.add_session_and_reserve(session, own_bytes)).map(drop);
            if let Err(failure) = &outcome {
                ensemble.outage.record_failure(failure);
            }
            *ensemble.opening.lock() = None;
            end.send_replace(Some(outcome));
        });
        Err(opened)
    }

    /// Waits until this client is closed or dropped. The future does not keep the client alive.
    fn until_closed(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut closed = self.closed.subscribe();
        // `wait_for` returns a guard that locks the channel. The guard is dropped here, so that the future does not
        // return it.
        async move { drop(closed.wait_for(|closed| *closed).await) }
    }

    /// Connects on the library's thread. The client crate spawns its task on the runtime on which `connect` is called.
    /// On the caller's runtime, the task would stop when that runtime is blocked or ends.
    ///
    /// Dropping the returned future gives up the attempt.
    fn open_session(&self) -> impl Future<Output = Result<Arc<ZooKeeperSession>, Failure>> + Send + use<> {
        let (config, background) = (self.config.clone(), Arc::clone(&self.background));
        let (keeper, reconnect) = (Arc::clone(&self.keeper), self.outage.new_session_schedule());
        let attempt = new_session(config, background, keeper, reconnect);
        let attempt = OptionFuture::from(self.background.spawn_with_handle(attempt));
        async move {
            match attempt.await.flatten() {
                Some(Ok(answer)) => answer,
                Some(Err(panicked)) => Err(Failure::Unreachable(panic_message(&*panicked))),
                None => Err(thread_ended_failure()),
            }
        }
    }

    /// Adds a new session to the list, where other callers find it, and reserves `own_bytes` on the session. Fails if a
    /// session cannot hold so many bytes of paths, or if this client was closed meanwhile.
    fn add_session_and_reserve(
        &self,
        session: Arc<ZooKeeperSession>,
        own_bytes: usize,
    ) -> Result<SessionSlot, Failure> {
        let no_room = || Failure::Refused(format!("{own_bytes} bytes of paths are too many for a session"));
        let session_slot = session.reserve_slot(own_bytes).ok_or_else(no_room)?;
        let mut sessions = self.sessions.lock();
        if *self.closed.borrow() {
            drop(sessions);
            session.connections.end_session(SessionEnd::Closed);
            return Err(Failure::Over(SessionEnd::Closed));
        }
        sessions.push(session);
        self.outage.record_end();
        Ok(session_slot)
    }
}

/// Returns the failure for a caller that finds the library's thread ended. Only a bug can end that thread.
fn thread_ended_failure() -> Failure {
    Failure::Unreachable("the library's thread has ended".to_owned())
}
