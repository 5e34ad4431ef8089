//! The ZooKeeper backend: with its folder, the only place that names `zookeeper_client`; knows neither modes nor turns.
//!
//! What it works around in version 0.11.2 of that crate:
//! - Requests are sent at the call, so their futures are polled once at once and can then be dropped ([`line`]).
//! - Errors other than a clear refusal leave the outcome unknown, whatever their name ([`failure`]).
//! - While disconnected it queues requests without bound: a berth is given only on a session that is connected.
//! - More than 128 KiB of watched paths make a reconnect impossible, so a session takes no more than
//!   [`WATCHED_BYTES_MAX`], and further ones are opened beyond that.
//! - Some answers that are too short make the caller panic ([`line::Survived`]).
//! - A one-shot watcher panics when its session's task is gone ([`Watched`]); persistent ones are lost on a reconnect
//!   and are not used. Watches are armed with `getData`: `exists` would leave one on a node that never returns.
//! - After `Expired` a client is dead for good: the next berth is on a fresh one.
//! - Its session id may change silently on a reconnect (ClickHouse Keeper does that): who owns our nodes is looked
//!   up after each one, and until then no answer renews the lease ([`confirm_identity`]).
//! - It repeats nothing, but we do, after a lost connection: not what a server closes connections over ([`abilities`]).
//! - Servers of one connect string may differ in encryption, and one whose name TLS cannot verify makes it panic: both
//!   are refused before it is asked ([`ZooKeeperBuilder::check_encryption`]). Why a handshake failed only its log tells.
//! - It sends each request as it comes: a removal that the next create may join is held back on our side ([`line`]).
//! - Its pauses before it tries a server again grow too fast for the lease ([`to_connect_to`]), and a silent connection is
//!   given up too late ([`ZooKeeperBuilder::quick`]).
//! - It says `Expired` only at 1.4 session timeouts: the [`Lease`] is what tells that a lock is lost.

use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::{Duration, Instant, UNIX_EPOCH};

use async_trait::async_trait;
use pin_project_lite::pin_project;
use tokio::sync::watch;
use tokio::task::JoinSet;
use zookeeper_client as zk;

use crate::coordinator::{
    Berth, Chore, Coordinator, Created, Ending, Event, Failure, Kind, Operation, Outcome, Reply, Reservation, Session,
    Stat, Watch, keep_alive,
};
use crate::error::Error;
use crate::keeper::Keeper;
use crate::lease::{Lease, Moment, since_boot};

mod abilities;
mod line;
mod security;
mod servers;

use self::abilities::Abilities;
use self::line::{Line, Removal};
use self::security::Digest;
#[cfg(any(feature = "sasl-digest-md5", zk_rwlock_gssapi))]
pub use self::security::Sasl;
#[cfg(feature = "tls")]
pub use self::security::Tls;
pub use self::security::{Acl, Permissions};

/// Long enough for a garbage collection and a leader election, short enough to take over from a dead holder.
const SESSION_TIMEOUT: Duration = Duration::from_secs(10);

/// A reconnect fails for good beyond 128 KiB; a good part is kept free for what else is watched.
const WATCHED_BYTES_MAX: usize = 96 * 1024;

/// How soon an owner watches its node: see [`keep_alive`].
const WATCH_OWN_AFTER: Duration = Duration::from_millis(5);

/// A server that grants less, zero say, does not mean to keep the session; the client would make 8 ms of it.
const SHORTEST_TIMEOUT: Duration = Duration::from_millis(20);

/// From this session timeout on a silent connection is given up sooner than the client crate would.
const LONG: Duration = Duration::from_secs(3);

/// As soon as that is possible without taking every pause of a server's for a break.
const QUICKEST: Duration = Duration::from_millis(350);

/// How long dropping the last user of a session may wait for the server to have heard of it.
const FAREWELL: Duration = Duration::from_millis(250);

/// The client crate tells the reason of a failed handshake to its log alone.
const UNTRUSTED_HINT: &str = " (over TLS: the port may be one for clear text, or one side does not accept the other's \
     certificate; zookeeper_client logs the reason at level debug)";

/// A ZooKeeper ensemble, as this process reaches it.
///
/// Its sessions live on a thread of their own. When one expires, the next acquisition opens another; guards and
/// waiters of the old one are told that they are lost.
///
/// # Clone
/// Clones share their sessions. When the last clone and the last guard are gone the sessions are closed, and
/// dropping them waits up to 250 ms for the server to have heard of it; [`ZooKeeper::close`] says when it has.
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
    ensemble: Arc<Ensemble>,
}

struct Ensemble {
    servers: String,
    options: ZooKeeperBuilder,
    keeper: Arc<Keeper>,
    sessions: Mutex<Vec<Arc<ZooKeeperSession>>>,
    /// Kept for the next session, too.
    abilities: Arc<Abilities>,
    /// The attempt to open a session that is under way, so that a crowd opens one and not one each.
    opening: Mutex<Option<Opening>>,
    closed: AtomicBool,
}

/// How an attempt to open a session ends, for all who wait for it.
type Opening = watch::Receiver<Option<Result<(), Failure>>>;

/// Options of a connection. Made by [`ZooKeeper::builder`].
#[derive(Clone, Debug)]
#[must_use = "nothing is connected before `connect`"]
pub struct ZooKeeperBuilder {
    session_timeout: Duration,
    connect_timeout: Option<Duration>,
    tick_time: Option<Duration>,
    stop_margin: Option<Duration>,
    digest: Option<Digest>,
    #[cfg(any(feature = "sasl-digest-md5", zk_rwlock_gssapi))]
    sasl: Option<Sasl>,
    #[cfg(feature = "tls")]
    tls: Option<Tls>,
    acl: Option<Acl>,
}

impl ZooKeeper {
    /// Connects with default options. `servers` is a list `host:port,host:port`, with a path at its end to keep
    /// everything below: `zk1:2181,zk2:2181/apps/billing`. That path is made if it is missing.
    ///
    /// Waits until a session is established.
    ///
    /// # Cancel safety
    /// Dropping the future gives the connection up.
    ///
    /// # Errors
    /// - [`Error::Unreachable`] when no server answered within the session timeout (10 s).
    /// - [`Error::InvalidInput`] when `servers` is not such a list.
    pub async fn connect(servers: &str) -> Result<ZooKeeper, Error> {
        ZooKeeper::builder().connect(servers).await
    }

    /// Options for a connection.
    pub fn builder() -> ZooKeeperBuilder {
        ZooKeeperBuilder {
            session_timeout: SESSION_TIMEOUT,
            connect_timeout: None,
            tick_time: None,
            stop_margin: None,
            digest: None,
            #[cfg(any(feature = "sasl-digest-md5", zk_rwlock_gssapi))]
            sasl: None,
            #[cfg(feature = "tls")]
            tls: None,
            acl: None,
        }
    }

    /// Ends every session, and with them every node they own; returns when the server has confirmed it, or when it
    /// did not within the session timeout.
    ///
    /// Guards are lost, waiting acquisitions fail, and new ones are refused with [`Error::Closed`].
    ///
    /// # Cancel safety
    /// Dropping the future after its first poll lets the closing go on in the background.
    pub async fn close(&self) {
        Coordinator::close(self).await;
    }
}

impl ZooKeeperBuilder {
    /// How long the ensemble keeps a session it does not hear from. Default: 10 s.
    ///
    /// A crashed holder's lock is free after this long, and a holder that is cut off says lost
    /// [before that](Self::stop_margin).
    /// The servers bound it (2 to 20 ticks, by default 4 to 40 s); give all of them the same bounds, or ask for no
    /// more than the least of their upper ones: that a server grants less on a reconnect than another one did at
    /// first, the client does not tell, and a holder that is cut off after that may be told too late.
    pub fn session_timeout(mut self, timeout: Duration) -> Self {
        self.session_timeout = timeout;
        self
    }

    /// How long to try to reach a server when a session is opened. Default: the session timeout.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = Some(timeout);
        self
    }

    /// What the servers' configuration calls `tickTime`. Default: the smaller of 3 s, as servers have it unless set, and
    /// half the session timeout.
    ///
    /// Servers do not tell it, and their leader hears of a session each half tick only. With a tick that is told, and
    /// small beside the session timeout, a longer break of the connection loses nothing. It must not be less than what
    /// the servers have: then a holder that is cut off may be told too late.
    pub fn tick_time(mut self, tick: Duration) -> Self {
        self.tick_time = Some(tick);
        self
    }

    /// How long before the ensemble may give the lock to others a holder that is cut off says lost: for work to stop in,
    /// and for clocks that differ. Default: a sixth of the session timeout, but at least 300 ms (and at most a quarter).
    ///
    /// Shorter in proportion where the servers grant a shorter timeout. With a longer one than by default heartbeats are
    /// sent more often, up to 20 in a session timeout, so that it shortens the breaks that are ridden out by less.
    pub fn stop_margin(mut self, margin: Duration) -> Self {
        self.stop_margin = Some(margin);
        self
    }

    /// Authenticates with ZooKeeper's `digest` scheme. Unless an [`acl`](Self::acl) is given, only the same user may
    /// then touch the nodes that are made. No server refuses a password: a wrong one makes another user.
    ///
    /// The password travels as it is, and again on each reconnect: encrypt the connection, with
    #[cfg_attr(feature = "tls", doc = "[`tls`](Self::tls).")]
    #[cfg_attr(not(feature = "tls"), doc = "the feature `tls`.")]
    pub fn digest(mut self, user: &str, password: &str) -> Self {
        self.digest = Some(Digest::new(user, password));
        self
    }

    /// Authenticates with SASL. Unless an [`acl`](Self::acl) is given, only the same user may then touch the nodes
    /// that are made.
    ///
    /// Wrong credentials end [`connect`](Self::connect) with [`Error::Closed`]. If they are refused later, on a
    /// reconnect, guards are lost and waiting acquisitions fail, at once.
    #[cfg(any(feature = "sasl-digest-md5", zk_rwlock_gssapi))]
    #[cfg_attr(docsrs, doc(cfg(any(feature = "sasl-digest-md5", zk_rwlock_gssapi))))]
    pub fn sasl(mut self, sasl: Sasl) -> Self {
        self.sasl = Some(sasl);
        self
    }

    /// Encrypts every connection, and verifies every server. Nothing is sent in clear text, whatever a server answers.
    ///
    /// The port is the servers' `secureClientPort`.
    #[cfg(feature = "tls")]
    #[cfg_attr(docsrs, doc(cfg(feature = "tls")))]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Who may do what with the nodes that are made: lock directories and the nodes in them.
    ///
    /// Default: [`Acl::anyone`], or [`Acl::creator`] after [`digest`](Self::digest) or `sasl`. A client certificate
    /// alone changes nothing, because machines that share a lock have different ones.
    pub fn acl(mut self, acl: Acl) -> Self {
        self.acl = Some(acl);
        self
    }

    /// Connects. See [`ZooKeeper::connect`].
    ///
    /// # Errors
    /// As there; also [`Error::InvalidInput`] for an option that cannot be.
    pub async fn connect(self, servers: &str) -> Result<ZooKeeper, Error> {
        let longest = Duration::from_millis(i32::MAX as u64);
        if self.session_timeout < Duration::from_millis(1) || self.session_timeout > longest {
            return Err(Error::invalid(format!("a session timeout of {:?}", self.session_timeout)));
        }
        if self.connect_timeout == Some(Duration::ZERO) {
            return Err(Error::invalid("a connect timeout of zero"));
        }
        self.check_lease(self.session_timeout).map_err(Error::invalid)?;
        if self.acl.as_ref().is_some_and(|acl| acl.entries.is_empty()) {
            return Err(Error::invalid("an ACL that allows nobody anything"));
        }
        if let Some(digest) = &self.digest {
            digest.check()?;
        }
        #[cfg(any(feature = "sasl-digest-md5", zk_rwlock_gssapi))]
        if let Some(sasl) = &self.sasl {
            sasl.check()?;
        }
        servers::check(servers)?;
        self.check_encryption(servers)?;
        let keeper = Keeper::get().map_err(|error| Error::Refused {
            operation: "start the thread for",
            path: servers.to_owned(),
            reason: error.to_string(),
        })?;
        let ensemble = Ensemble {
            servers: servers.to_owned(),
            options: self,
            keeper,
            sessions: Mutex::new(Vec::new()),
            abilities: Arc::default(),
            opening: Mutex::new(None),
            closed: AtomicBool::new(false),
        };
        let opened = ensemble.connect().await.and_then(|session| ensemble.install(session, 0));
        opened.map_err(|failure| match failure {
            Failure::Refused(problem) => Error::invalid(format!("servers {servers:?}: {problem}")),
            failure => Error::from_failure(failure, "connect to", servers),
        })?;
        Ok(ZooKeeper { ensemble: Arc::new(ensemble) })
    }

    /// Whether a session of this timeout leaves time for a lease.
    fn check_lease(&self, timeout: Duration) -> Result<(), String> {
        match (self.tick_time, self.stop_margin) {
            (Some(Duration::ZERO), _) => Err("a tick time of zero".to_owned()),
            (_, Some(Duration::ZERO)) => Err("a stop margin of zero".to_owned()),
            (_, Some(margin)) if margin >= self.session_timeout => {
                Err(format!("a stop margin of {margin:?} leaves nothing of a session timeout of {timeout:?}"))
            }
            (Some(tick), _) if !self.lease(timeout).is_renewable() => {
                Err(format!("a tick time of {tick:?} is too long for a session timeout of {timeout:?}"))
            }
            _ => Ok(()),
        }
    }

    fn lease(&self, timeout: Duration) -> Lease {
        let mut lease = Lease::new(timeout);
        if let Some(tick) = self.tick_time {
            lease = lease.with_tick_time(tick);
        }
        match self.stop_margin {
            Some(margin) => lease.with_stop_margin(margin.mul_f64(timeout.div_duration_f64(self.session_timeout))),
            None => lease,
        }
    }

    /// Whether the connect string says the same about encryption as the options: the client crate would follow a
    /// `tcp://` in it, and send a password in clear text.
    fn check_encryption(&self, servers: &str) -> Result<(), Error> {
        for server in servers.split(',') {
            let (encrypted, clear) = (server.starts_with("tcp+tls://"), server.starts_with("tcp://"));
            match self.is_encrypted() {
                true if clear => {
                    return Err(Error::invalid(format!("servers: {server:?} is clear text, but TLS is set")));
                }
                false if encrypted => return Err(Error::invalid(format!("servers: {server:?} needs `tls` to be set"))),
                _ => {}
            }
            #[cfg(feature = "tls")]
            if self.tls.is_some() {
                security::check_host(host_of(server))?;
            }
        }
        Ok(())
    }

    fn is_encrypted(&self) -> bool {
        #[cfg(feature = "tls")]
        return self.tls.is_some();
        #[cfg(not(feature = "tls"))]
        return false;
    }

    fn is_authenticated(&self) -> bool {
        #[cfg(any(feature = "sasl-digest-md5", zk_rwlock_gssapi))]
        return self.digest.is_some() || self.sasl.is_some();
        #[cfg(not(any(feature = "sasl-digest-md5", zk_rwlock_gssapi)))]
        return self.digest.is_some();
    }

    /// How soon a silent connection is given up for a fresh one, and each attempt at one: the sooner, the sooner a break
    /// is over when it is over, since the kernel sends what was lost again after longer and longer pauses.
    ///
    /// A session of a moment has the client crate's own measure: less would take every pause of a server's for a break.
    fn quick(&self) -> Duration {
        let timeout = self.session_timeout;
        if timeout < LONG { timeout * 2 / 5 } else { (timeout / 12).max(QUICKEST) }
    }

    /// One that gives connections up so soon; by default as late as the client crate does, for servers that are slow.
    fn connector(&self, gives_up_after: Option<Duration>) -> zk::Connector {
        let mut connector = zk::Client::connector().with_session_timeout(self.session_timeout);
        if let Some(silence) = gives_up_after {
            connector = connector.with_connection_timeout(silence);
        }
        if let Some(digest) = &self.digest {
            connector = connector.with_auth("digest", &digest.identity());
        }
        #[cfg(any(feature = "sasl-digest-md5", zk_rwlock_gssapi))]
        if let Some(sasl) = &self.sasl {
            connector = connector.with_sasl(sasl.options());
        }
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.tls {
            connector = connector.with_tls(tls.options());
        }
        connector
    }
}

/// The host of one server in a connect string, as the client crate takes it.
#[cfg(feature = "tls")]
fn host_of(server: &str) -> &str {
    let server = server.strip_prefix("tcp+tls://").unwrap_or(server);
    let server = server.split_once('/').map_or(server, |(server, _path)| server);
    match server.strip_prefix('[') {
        Some(address) => address.split_once(']').map_or(address, |(address, _port)| address),
        None => server.rsplit_once(':').map_or(server, |(host, _port)| host),
    }
}

#[async_trait]
impl Coordinator for ZooKeeper {
    async fn berth(&self, watched_bytes: usize) -> Result<Berth, Failure> {
        loop {
            if self.ensemble.closed.load(Ordering::Acquire) {
                return Err(Failure::Over(Ending::Closed));
            }
            let berth = match self.ensemble.berth_or_opening(watched_bytes) {
                Ok(berth) => berth,
                Err(mut opening) => match opening.wait_for(Option::is_some).await.as_deref() {
                    Ok(Some(Err(failure))) => return Err(failure.clone()),
                    _ => continue,
                },
            };
            // One that ends while we wait is not chosen again.
            if berth.session().connected().await.is_ok() {
                return Ok(berth);
            }
        }
    }

    async fn close(&self) {
        self.ensemble.closed.store(true, Ordering::Release);
        let sessions = std::mem::take(&mut *self.ensemble.sessions());
        for session in &sessions {
            // Its guards are lost before the server is asked to give their locks to others.
            session.lease.end(Ending::Closed);
            session.close();
        }
        for session in sessions {
            tokio::select! {
                _ = session.over() => {}
                () = session.sleep(session.timeout()) => {}
            }
            session.ended(Ending::Closed);
        }
    }

    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        self.ensemble.keeper.sleep(duration)
    }
}

impl fmt::Debug for ZooKeeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sessions = self.ensemble.sessions().iter().map(|session| session.id).collect::<Vec<_>>();
        f.debug_struct("ZooKeeper").field("servers", &self.ensemble.servers).field("sessions", &sessions).finish()
    }
}

impl Drop for Ensemble {
    /// Closes the sessions, and gives the server a moment to hear of it: a program that ends right after its last
    /// guard was dropped would otherwise leave the lock taken for a whole session timeout.
    ///
    /// Every guard keeps its ensemble, so nothing but removals in the background uses the sessions any more. Each
    /// session is closed when its last removal is done.
    fn drop(&mut self) {
        let sessions = std::mem::take(&mut *self.sessions());
        let leaving: Vec<_> = sessions.iter().filter(|session| session.is_up()).map(|s| s.finished.clone()).collect();
        drop(sessions);
        if self.keeper.is_current_thread() {
            return;
        }
        let deadline = Instant::now() + FAREWELL;
        for finished in leaving {
            let left = deadline.saturating_duration_since(Instant::now());
            let yes = finished.yes.lock().unwrap_or_else(PoisonError::into_inner);
            drop(finished.changed.wait_timeout_while(yes, left, |yes| !*yes));
        }
    }
}

impl Ensemble {
    fn sessions(&self) -> MutexGuard<'_, Vec<Arc<ZooKeeperSession>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn opening(&self) -> MutexGuard<'_, Option<Opening>> {
        self.opening.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A berth on the first session that lives and has room. Forgets those that are over, and further ones that
    /// nobody uses any more.
    fn berth(&self, watched_bytes: usize) -> Option<Berth> {
        let mut sessions = self.sessions();
        let (alive, over) =
            std::mem::take(&mut *sessions).into_iter().partition(|session| session.lease.over().is_none());
        *sessions = alive;
        let berth = sessions.iter().find_map(|session| {
            let berth = session.berth(watched_bytes)?;
            session.is_fresh.store(false, Ordering::Release);
            Some(berth)
        });
        let mut idle = if sessions.len() > 1 { sessions.split_off(1) } else { Vec::new() };
        sessions.extend(idle.extract_if(.., |session| session.is_needed()));
        drop(sessions);
        drop((over as Vec<Arc<ZooKeeperSession>>, idle));
        berth
    }

    /// A berth, or else the attempt to open a session for one.
    ///
    /// The attempt is a task of its own: a future that is not polled must not hold up the others who wait for it, and
    /// those that give up must not leave an attempt behind each.
    fn berth_or_opening(self: &Arc<Self>, watched_bytes: usize) -> Result<Berth, Opening> {
        let mut opening = self.opening();
        // Under the lock, because an attempt that ended has left its session.
        if let Some(berth) = self.berth(watched_bytes) {
            return Ok(berth);
        }
        // One whose end will never be told, since its task is gone, is not waited for.
        if let Some(opening) = opening.as_ref().filter(|opening| opening.has_changed().is_ok()) {
            return Err(opening.clone());
        }
        let (end, opened) = watch::channel(None);
        *opening = Some(opened.clone());
        let (connecting, ensemble) = (self.connect(), Arc::downgrade(self));
        self.keeper.handle().spawn(async move {
            let connected = connecting.await;
            // With nobody left to use it the session is closed again.
            let Some(ensemble) = ensemble.upgrade() else { return };
            let outcome = connected.and_then(|session| ensemble.install(session, watched_bytes)).map(drop);
            *ensemble.opening() = None;
            end.send_replace(Some(outcome));
        });
        Err(opened)
    }

    /// Connects, on the keeper's thread, because the client's task is spawned onto the runtime that connects.
    ///
    /// Dropping the future gives it up.
    fn connect(&self) -> impl Future<Output = Result<Arc<ZooKeeperSession>, Failure>> + Send + use<> {
        let (servers, options, keeper) = (self.servers.clone(), self.options.clone(), Arc::clone(&self.keeper));
        let abilities = Arc::clone(&self.abilities);
        let mut task = JoinSet::new();
        task.spawn_on(new_session(servers, options, keeper, abilities), self.keeper.handle());
        async move {
            match task.join_next().await {
                Some(Ok(answer)) => answer,
                Some(Err(panicked)) => Err(Failure::Unreachable(panicked.to_string())),
                None => Err(Failure::Unreachable("nothing was tried".to_owned())),
            }
        }
    }

    /// A berth on a fresh session, which others may use too from now on.
    fn install(&self, session: Arc<ZooKeeperSession>, watched_bytes: usize) -> Result<Berth, Failure> {
        let no_room = || Failure::Refused(format!("{watched_bytes} bytes of watched paths are too many for a session"));
        let berth = session.berth(watched_bytes).ok_or_else(no_room)?;
        let mut sessions = self.sessions();
        if self.closed.load(Ordering::Acquire) {
            drop(sessions);
            session.ended(Ending::Closed);
            return Err(Failure::Over(Ending::Closed));
        }
        sessions.push(session);
        Ok(berth)
    }
}

/// Opens a session, and tells when it was asked for at the earliest.
///
/// A server that takes longer to answer than a quick client waits is met with patience, for as long as the session lasts.
async fn open(servers: &str, options: &ZooKeeperBuilder) -> Result<(zk::Client, Moment), zk::Error> {
    let (named, quick, encrypted) =
        (to_connect_to(servers, options.session_timeout), options.quick(), options.is_encrypted());
    for patience in [Some(quick), None].into_iter().cycle() {
        let (asked, limit) = (since_boot(), options.session_timeout / if patience.is_some() { 4 } else { 1 });
        let connecting = connect(options.connector(patience), &named, encrypted);
        let client = match tokio::time::timeout(limit, connecting).await {
            // It gives up after a session timeout, whatever time it has.
            Err(_) | Ok(Err(zk::Error::Timeout)) => continue,
            Ok(answer) => answer?,
        };
        let checked = Instant::now();
        // It was not slow, but away.
        if patience.is_some() || client.check_stat("/").await.is_err() || checked.elapsed() > quick / 4 {
            return Ok((client, asked));
        }
    }
    Err(zk::Error::Timeout)
}

async fn new_session(
    servers: String,
    options: ZooKeeperBuilder,
    keeper: Arc<Keeper>,
    abilities: Arc<Abilities>,
) -> Result<Arc<ZooKeeperSession>, Failure> {
    let encrypted = options.is_encrypted();
    let connecting = open(&servers, &options);
    let bound = options.connect_timeout.unwrap_or(options.session_timeout);
    let Ok(connected) = tokio::time::timeout(bound, connecting).await else {
        let waited = humantime::format_duration(bound);
        let hint = if encrypted { UNTRUSTED_HINT } else { "" };
        return Err(Failure::Unreachable(format!("no session with {servers} within {waited}{hint}")));
    };
    let (client, asked) = connected.map_err(|error| connect_failure(error, &servers, encrypted))?;
    if client.session_timeout() < SHORTEST_TIMEOUT {
        return Err(Failure::Unreachable(format!("{servers} grants sessions no time to live")));
    }
    let default_acl = || if options.is_authenticated() { Acl::creator() } else { Acl::anyone() };
    let acl = options.acl.clone().unwrap_or_else(default_acl);
    let session = ZooKeeperSession::new(client, &keeper, &options, acl, asked, abilities)?;
    let late =
        || Failure::Unreachable(format!("{servers} does not answer within {}", humantime::format_duration(bound)));
    tokio::time::timeout(bound, session.make_root()).await.map_err(|_| late())??;
    Ok(session)
}

/// One session of a ZooKeeper ensemble.
struct ZooKeeperSession {
    id: i64,
    timeout: Duration,
    acl: Acl,
    abilities: Arc<Abilities>,
    line: Mutex<Line>,
    lease: Arc<Lease>,
    link: watch::Sender<Link>,
    finished: Arc<Finished>,
    keeper: Arc<Keeper>,
    watched_bytes: Arc<AtomicUsize>,
    /// Those it was opened for have not looked at it yet.
    is_fresh: AtomicBool,
    /// How long the path is that everything is kept below.
    root_bytes: usize,
    identity: Arc<Identity>,
    this: Weak<ZooKeeperSession>,
}

/// Whether the server has shown, since the last reconnect, that this is still the session that owns our nodes.
#[derive(Debug, Default)]
struct Identity {
    /// Counts the connections of this session.
    connection: AtomicU64,
    /// The newest connection on which the server has shown it.
    shown_on: AtomicU64,
    is_asked: AtomicBool,
}

impl Identity {
    fn connection(&self) -> u64 {
        self.connection.load(Ordering::Acquire)
    }

    fn is_shown_on(&self, connection: u64) {
        self.shown_on.fetch_max(connection, Ordering::AcqRel);
    }

    fn is_known(&self) -> bool {
        self.shown_on.load(Ordering::Acquire) == self.connection()
    }
}

/// Whose a node must be that this session creates.
struct Owner {
    session: i64,
    this: Weak<ZooKeeperSession>,
    identity: Arc<Identity>,
    /// The connection on which it is asked for.
    connection: u64,
}

impl Owner {
    /// Some servers answer a reconnect with another session, and the client does not say so: its node would show it.
    fn created(&self, path: String, czxid: i64, ephemeral_owner: i64) -> Result<Created, Failure> {
        if ephemeral_owner != 0 && ephemeral_owner != self.session {
            if let Some(session) = self.this.upgrade() {
                session.ended(Ending::Replaced);
            }
            return Err(Failure::Over(Ending::Replaced));
        }
        if ephemeral_owner == self.session {
            self.identity.is_shown_on(self.connection);
        }
        Ok(Created { path, czxid, ephemeral_owner })
    }

    /// Whether it is known without looking at the node.
    fn is_known(&self) -> bool {
        self.identity.is_known() && self.identity.connection() == self.connection
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    Up,
    Down,
    Over(Ending),
}

/// Whether the client's task has ended, for threads that must not be async.
#[derive(Debug, Default)]
struct Finished {
    yes: Mutex<bool>,
    changed: Condvar,
}

impl ZooKeeperSession {
    fn new(
        client: zk::Client,
        keeper: &Arc<Keeper>,
        options: &ZooKeeperBuilder,
        acl: Acl,
        asked: Moment,
        abilities: Arc<Abilities>,
    ) -> Result<Arc<ZooKeeperSession>, Failure> {
        let requested = options.session_timeout;
        // A server may raise the timeout, and another one lower it again on a reconnect: the shorter one counts.
        let timeout = client.session_timeout().min(requested);
        if timeout < requested {
            // What is asked for on a reconnect is what was granted here, so only a server that grants even less can
            // lower it again, and that the client does not tell.
            tracing::warn!(?timeout, ?requested, "less is granted than was asked for: no server must grant less still");
        }
        options.check_lease(timeout).map_err(|problem| Failure::Refused(format!("{problem}, which they grant")))?;
        let lease = Arc::new(options.lease(timeout));
        lease.began(asked);
        let finished = Arc::new(Finished::default());
        let (link, _) = watch::channel(Link::Up);
        let states = client.state_watcher();
        let root_bytes = client.path().len();
        let session = Arc::new_cyclic(|this| ZooKeeperSession {
            id: client.session_id().0,
            timeout,
            acl,
            abilities,
            line: Mutex::new(Line::new(client)),
            lease,
            link,
            finished,
            keeper: Arc::clone(keeper),
            watched_bytes: Arc::default(),
            is_fresh: AtomicBool::new(true),
            root_bytes,
            identity: Arc::default(),
            this: Weak::clone(this),
        });
        let (lease, link, finished) = (Arc::clone(&session.lease), session.link.clone(), Arc::clone(&session.finished));
        let follow = follow_state(states, Arc::downgrade(&session), lease, link, finished);
        let tenant = keeper.tenant();
        keeper.handle().spawn(async move {
            follow.await;
            drop(tenant);
        });
        let shared: Arc<dyn Session> = session.clone();
        keeper.handle().spawn(keep_alive(Arc::downgrade(&shared), WATCH_OWN_AFTER));
        Ok(session)
    }

    /// A berth, if there is room.
    fn berth(self: &Arc<Self>, watched_bytes: usize) -> Option<Berth> {
        // What counts are the paths as the server knows them, and two are watched.
        let watched_bytes = if watched_bytes == 0 { 0 } else { watched_bytes + 2 * self.root_bytes };
        let reserved = Arc::clone(&self.watched_bytes);
        let fits = |used: usize| used.checked_add(watched_bytes).filter(|total| *total <= WATCHED_BYTES_MAX);
        reserved.fetch_update(Ordering::AcqRel, Ordering::Acquire, fits).ok()?;
        let give_back = move || {
            reserved.fetch_sub(watched_bytes, Ordering::AcqRel);
        };
        let session: Arc<dyn Session> = self.clone();
        Some(Berth::with_reservation(session, Reservation::new(give_back)))
    }

    /// Has it confirmed, in the background, that this is the session that owns our nodes.
    fn ask_identity(&self) {
        if !self.identity.is_known() && !self.identity.is_asked.swap(true, Ordering::AcqRel) {
            let (this, identity) = (Weak::clone(&self.this), Arc::clone(&self.identity));
            self.spawn(Box::pin(async move {
                confirm_identity(this).await;
                identity.is_asked.store(false, Ordering::Release);
            }));
        }
    }

    /// Whether the server lists this node among those of the session that it takes us for.
    async fn lists_as_its_own(&self, path: &str) -> Result<bool, Failure> {
        let (node, connection, abilities) = (path.to_owned(), self.identity.connection(), Arc::clone(&self.abilities));
        let owned = self.read(move |client| async move {
            let owned = client.list_ephemerals(&node).await;
            abilities.ephemerals.heard(&owned);
            match owned {
                Err(_) if abilities.ephemerals.is_lacking() => Err(Failure::Unknown("not understood".to_owned())),
                owned => owned.map_err(failure),
            }
        });
        if owned.await?.iter().any(|owned| owned == path) {
            self.identity.is_shown_on(connection);
            return Ok(true);
        }
        if matches!(self.data(path).await, Ok((_, stat)) if stat.ephemeral_owner == self.id) {
            self.ended(Ending::Replaced);
            return Ok(true);
        }
        Ok(false)
    }

    /// Makes a node beside this one, whose owner shows whom the server takes us for, and removes it again.
    async fn owns_what_it_makes(&self, path: &str) -> Result<bool, Failure> {
        let directory = path.rsplit_once('/').map_or("", |(directory, _)| directory);
        let own = format!("{directory}/session-{:x}", self.id);
        let made = self.create(&own, &[], Kind::Ephemeral).await;
        // An answer that was lost may have left it behind, and it says nothing of this connection.
        if !matches!(made, Ok(_) | Err(Failure::NodeExists)) {
            return made.map(|_| true);
        }
        loop {
            match self.delete(&own).await {
                Ok(()) | Err(Failure::NoNode) => return Ok(made.is_ok()),
                Err(Failure::Unknown(_)) if self.connected().await.is_ok() => self.sleep(self.timeout / 20).await,
                Err(failure) => return Err(failure),
            }
        }
    }

    /// Makes the path that the connect string ends with.
    async fn make_root(&self) -> Result<(), Failure> {
        let client = self.client()?;
        let root = client.path().to_owned();
        if root == "/" || client.check_stat("/").await.map_err(failure)?.is_some() {
            return Ok(());
        }
        let whole = client.as_ref().clone().chroot("/").map_err(|_| Failure::Refused(format!("path {root:?}")))?;
        let options = zk::CreateMode::Persistent.with_acls(zk::Acls::new(&self.acl.entries));
        whole.mkdir(&root, &options).await.map_err(failure)
    }

    fn is_needed(&self) -> bool {
        self.watched_bytes.load(Ordering::Acquire) > 0 || self.is_fresh.load(Ordering::Acquire)
    }

    fn is_up(&self) -> bool {
        *self.link.borrow() == Link::Up
    }

    /// What is known now is that this session serves no more.
    fn ended(&self, why: Ending) {
        self.lease.end(why);
        self.link.send_if_modified(|link| {
            let first = !matches!(link, Link::Over(_));
            if first {
                *link = Link::Over(why);
            }
            first
        });
        self.close();
    }
}

#[async_trait]
impl Session for ZooKeeperSession {
    fn id(&self) -> i64 {
        self.id
    }

    fn timeout(&self) -> Duration {
        self.timeout
    }

    fn lease(&self) -> &Arc<Lease> {
        &self.lease
    }

    async fn connected(&self) -> Result<(), Ending> {
        match self.link.subscribe().wait_for(|link| *link != Link::Down).await.map(|link| *link) {
            Ok(Link::Over(why)) => Err(why),
            Ok(_) => Ok(()),
            Err(_) => Err(self.lease.over().unwrap_or(Ending::Closed)),
        }
    }

    async fn over(&self) -> Ending {
        match self.link.subscribe().wait_for(|link| matches!(link, Link::Over(_))).await.map(|link| *link) {
            Ok(Link::Over(why)) => why,
            _ => self.lease.over().unwrap_or(Ending::Closed),
        }
    }

    fn create(&self, path: &str, data: &[u8], kind: Kind) -> Reply<Created> {
        if kind == Kind::EphemeralSequential
            && let Some(reply) = self.create_with_removal(path, data)
        {
            return reply;
        }
        let kind = match kind {
            Kind::Container if self.abilities.containers.is_lacking() => Kind::Persistent,
            kind => kind,
        };
        let (path, data, acl, owner) = (path.to_owned(), data.to_vec(), self.acl.clone(), self.owner());
        let abilities = Arc::clone(&self.abilities);
        self.write(move |client| async move {
            let options = mode(kind).with_acls(zk::Acls::new(&acl.entries));
            let created = client.create(&path, &data, &options).await;
            if kind == Kind::Container {
                abilities.containers.heard(&created);
                if abilities.containers.is_lacking() {
                    return Err(Failure::Unknown("the servers do not know container nodes".to_owned()));
                }
            }
            let (stat, sequence) = created.map_err(failure)?;
            let path = if kind == Kind::EphemeralSequential { format!("{path}{sequence}") } else { path };
            owner.created(path, stat.czxid, stat.ephemeral_owner)
        })
    }

    fn delete(&self, path: &str) -> Reply<()> {
        let removed = self.remove(Removal::delete(path));
        Box::pin(async move { removed.await.map(drop) })
    }

    fn children(&self, path: &str) -> Reply<Vec<String>> {
        let path = path.to_owned();
        self.read(move |client| async move { client.list_children(&path).await.map_err(failure) })
    }

    fn data(&self, path: &str) -> Reply<(Vec<u8>, Stat)> {
        let path = path.to_owned();
        self.read(move |client| async move {
            let (data, stat) = client.get_data(&path).await.map_err(failure)?;
            let ctime = UNIX_EPOCH + Duration::from_millis(stat.ctime.unsigned_abs());
            let zk::Stat { czxid, version, ephemeral_owner, .. } = stat;
            Ok((data, Stat { czxid, version, ctime, ephemeral_owner }))
        })
    }

    fn watch(&self, path: &str) -> Reply<Watch> {
        let path = path.to_owned();
        self.read(move |client| async move {
            let (_, stat, watcher) = client.get_and_watch_data(&path).await.map_err(failure)?;
            Ok(Watch::new(Watched { watcher: watcher.changed() }).with_owner(stat.ephemeral_owner))
        })
    }

    fn watch_children(&self, path: &str) -> Reply<(Vec<String>, Watch)> {
        let path = path.to_owned();
        self.read(move |client| async move {
            let (names, watcher) = client.list_and_watch_children(&path).await.map_err(failure)?;
            Ok((names, Watch::new(Watched { watcher: watcher.changed() })))
        })
    }

    fn transact(&self, operations: &[Operation]) -> Reply<Vec<Outcome>> {
        if let Some(removal) = Removal::of(operations) {
            return self.remove(removal);
        }
        let (operations, acl) = (operations.to_vec(), self.acl.clone());
        self.write(move |client| async move {
            let results = commit(&client, &operations, &acl).await?;
            Ok(results.into_iter().map(outcome).collect())
        })
    }

    fn spawn(&self, chore: Chore) {
        let tenant = self.keeper.tenant();
        self.keeper.handle().spawn(async move {
            chore.await;
            drop(tenant);
        });
    }

    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        self.keeper.sleep(duration)
    }
}

impl fmt::Debug for ZooKeeperSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let link = *self.link.borrow();
        f.debug_struct("ZooKeeperSession")
            .field("id", &self.id)
            .field("link", &link)
            .field("lease", &self.lease)
            .finish_non_exhaustive()
    }
}

/// Tells the session's state to those who wait for it, until the session is over.
async fn follow_state(
    mut states: zk::StateWatcher,
    session: Weak<ZooKeeperSession>,
    lease: Arc<Lease>,
    link: watch::Sender<Link>,
    finished: Arc<Finished>,
) {
    let mut state = states.peek_state();
    loop {
        let now = match state {
            zk::SessionState::SyncConnected => Link::Up,
            // A read-only server cannot confirm anything.
            zk::SessionState::Disconnected | zk::SessionState::ConnectedReadOnly => Link::Down,
            zk::SessionState::AuthFailed => Link::Over(Ending::AuthFailed),
            zk::SessionState::Expired => Link::Over(Ending::Expired),
            zk::SessionState::Closed => Link::Over(Ending::Closed),
        };
        if let Link::Over(ending) = now {
            lease.end(ending);
        }
        let was = *link.borrow();
        if let Some(session) = session.upgrade().filter(|_| was != now && !matches!(now, Link::Over(_))) {
            session.identity.connection.fetch_add(1, Ordering::AcqRel);
            // Answers are taken on this thread too, and those of the next connection come later than the news of it: of
            // none of them has the lease been told when it is told that the connection before is lost.
            session.lease.connected(now == Link::Up);
            if now == Link::Up {
                session.ask_identity();
            }
        }
        link.send_if_modified(|link| {
            let changes = *link != now && !matches!(link, Link::Over(_));
            if changes {
                *link = now;
            }
            changes
        });
        if let Link::Over(_) = now {
            break;
        }
        state = states.changed().await;
    }
    *finished.yes.lock().unwrap_or_else(PoisonError::into_inner) = true;
    finished.changed.notify_all();
}

/// After a reconnect: makes sure that the session the server took us for is the one that owns our nodes.
async fn confirm_identity(session: Weak<ZooKeeperSession>) {
    loop {
        let Some(session) = session.upgrade().filter(|session| session.lease.over().is_none()) else { return };
        // With nothing kept there is nothing to lose; it is asked again when there is an answer to count.
        let Some((_, path)) = session.lease.roll().to_check().into_iter().next() else { return };
        let lists = !session.abilities.ephemerals.is_lacking();
        let shown = match lists {
            true => session.lists_as_its_own(&path).await,
            false => session.owns_what_it_makes(&path).await,
        };
        match shown {
            Ok(true) if session.identity.is_known() => return session.lease.resumed(),
            // The connection has been lost since, or the session has been replaced.
            Ok(true) => {}
            // There is another way to ask.
            Err(Failure::Unknown(_)) if lists && session.abilities.ephemerals.is_lacking() => {
                let _over = session.connected().await;
            }
            // The node is gone, which its watch will tell; ask about another one.
            Ok(false) | Err(Failure::NoNode) => session.sleep(session.timeout / 20).await,
            Err(Failure::Unknown(_)) if session.connected().await.is_ok() => session.sleep(session.timeout / 20).await,
            // It is asked again with the next answer.
            Err(_) => return,
        }
    }
}

pin_project! {
    /// A one-shot watcher, which panics when its session's task is gone: for us the session is over then.
    struct Watched<F> {
        #[pin]
        watcher: F,
    }
}

impl<F: Future<Output = zk::WatchedEvent>> Future for Watched<F> {
    type Output = Event;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Event> {
        let watcher = self.project().watcher;
        match catch_unwind(AssertUnwindSafe(|| watcher.poll(context))) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(event)) => Poll::Ready(match event.event_type {
                zk::EventType::NodeDeleted => Event::Deleted,
                zk::EventType::Session => Event::Over,
                _ => Event::Changed,
            }),
            Err(_) => Poll::Ready(Event::Over),
        }
    }
}

fn mode(kind: Kind) -> zk::CreateMode {
    match kind {
        Kind::Persistent => zk::CreateMode::Persistent,
        Kind::Container => zk::CreateMode::Container,
        Kind::Ephemeral => zk::CreateMode::Ephemeral,
        Kind::EphemeralSequential => zk::CreateMode::EphemeralSequential,
    }
}

/// Commits all or none; sent in the first poll.
async fn commit(
    client: &zk::Client,
    operations: &[Operation],
    acl: &Acl,
) -> Result<Vec<zk::MultiWriteResult>, Failure> {
    let of = |index: usize| move |error| Failure::Operation { index, failure: Box::new(failure(error)) };
    let mut writer = client.new_multi_writer();
    for (index, operation) in operations.iter().enumerate() {
        let added = match operation {
            Operation::Create { path, data, kind } => {
                writer.add_create(path, data, &mode(*kind).with_acls(zk::Acls::new(&acl.entries)))
            }
            Operation::Set { path, data, version } => writer.add_set_data(path, data, *version),
            Operation::Delete { path, version } => writer.add_delete(path, *version),
            Operation::Check { path, version } => writer.add_check_version(path, version.unwrap_or(-1)),
        };
        added.map_err(of(index))?;
    }
    writer.commit().await.map_err(|error| match error {
        zk::MultiWriteError::RequestFailed { source } => failure(source),
        zk::MultiWriteError::OperationFailed { index, source } => of(index)(source),
    })
}

fn outcome(result: zk::MultiWriteResult) -> Outcome {
    match result {
        zk::MultiWriteResult::Create { .. } => Outcome::Created,
        zk::MultiWriteResult::SetData { stat } => Outcome::Set { version: stat.version },
        zk::MultiWriteResult::Delete => Outcome::Deleted,
        _ => Outcome::Checked,
    }
}

/// What an error allows to conclude. Whatever is not a clear refusal leaves the outcome unknown: a reset or silent
/// connection gives `Custom`, an orderly close `ConnectionLoss`, and the request may have been carried out in each.
///
/// `SessionMoved` and `Throttled` are refusals, but passing ones: the session lives on, and whatever is said to be
/// unknown is asked again.
fn failure(error: zk::Error) -> Failure {
    match error {
        zk::Error::NoNode => Failure::NoNode,
        zk::Error::NodeExists => Failure::NodeExists,
        zk::Error::NotEmpty => Failure::NotEmpty,
        zk::Error::BadVersion => Failure::BadVersion,
        zk::Error::NoAuth => Failure::NoAuth,
        zk::Error::NoChildrenForEphemerals => Failure::ParentIsEphemeral,
        zk::Error::SessionExpired => Failure::Over(Ending::Expired),
        zk::Error::AuthFailed => Failure::Over(Ending::AuthFailed),
        zk::Error::ClientClosed => Failure::Over(Ending::Closed),
        zk::Error::InvalidAcl => Failure::Refused(
            "the ACL is not valid on these servers; `Acl::creator` needs a client that they have authenticated"
                .to_owned(),
        ),
        zk::Error::NoHosts
        | zk::Error::BadArguments(_)
        | zk::Error::NotReadOnly
        | zk::Error::NoWatcher
        | zk::Error::QuotaExceeded
        | zk::Error::MarshallingError
        | zk::Error::Unimplemented
        | zk::Error::ReconfigDisabled => Failure::Refused(error.to_string()),
        _ => Failure::Unknown(error.to_string()),
    }
}

async fn connect(connector: zk::Connector, servers: &str, encrypted: bool) -> Result<zk::Client, zk::Error> {
    #[cfg(feature = "tls")]
    if encrypted {
        return connector.secure_connect(servers).await;
    }
    debug_assert!(!encrypted, "only the feature can ask for it");
    connector.connect(servers).await
}

/// The list of servers as the client is given it: each is named several times.
///
/// The client doubles its pauses with each round through the list, so that it would come back only up to twice as long
/// after a break began as the break lasted: too late for the lease. Within a round the pauses grow by 50 ms only, and in
/// the first there are none. It shuffles the list, so a frozen one of several may come twice in a row, which costs
/// [little](ZooKeeperBuilder::quick).
fn to_connect_to(servers: &str, session_timeout: Duration) -> String {
    let last = servers.rfind(',').map_or(0, |comma| comma + 1);
    let scheme = servers[last..].find("://").map_or(last, |colon| last + colon + "://".len());
    let root = servers[scheme..].find('/').map_or(servers.len(), |slash| scheme + slash);
    let (servers, root) = servers.split_at(root);
    // The second round begins after 100 ms for each name, at most 1 s, and the third half a session timeout later.
    let names = (session_timeout.as_millis() / 300).clamp(2, 24);
    let times = (names as usize).div_ceil(servers.split(',').count());
    vec![servers; times].join(",") + root
}

fn connect_failure(error: zk::Error, servers: &str, encrypted: bool) -> Failure {
    match error {
        zk::Error::BadArguments(problem) => Failure::Refused((*problem).to_owned()),
        zk::Error::AuthFailed => Failure::Over(Ending::AuthFailed),
        // What goes wrong on the network ends in a timeout; this is about certificates, before anything was sent.
        zk::Error::Custom(problem) => Failure::Refused(problem.to_string()),
        error => Failure::Unreachable(format!("{servers}: {error}{}", if encrypted { UNTRUSTED_HINT } else { "" })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_server_is_named_several_times() {
        let second = Duration::from_secs(1);
        assert_eq!(to_connect_to("a:1,b:2/root", second), "a:1,b:2,a:1,b:2/root");
        assert_eq!(to_connect_to("a:1/root/of", second), "a:1,a:1,a:1/root/of");
        assert_eq!(to_connect_to("tcp://[::1]:2181", second), "tcp://[::1]:2181,tcp://[::1]:2181,tcp://[::1]:2181");
        assert_eq!(to_connect_to("tcp://a,tcp://b/c", second), "tcp://a,tcp://b,tcp://a,tcp://b/c");
        assert_eq!(to_connect_to("a", 60 * second).split(',').count(), 24);
        assert_eq!(to_connect_to("a,b,c,d,e", 60 * second).split(',').count(), 25);
    }
}
