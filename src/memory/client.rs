//! The clients of an embedded ensemble, and the faults that a test can inject.
//!
//! Without faults, the ensemble answers each request before the method that sends the request returns. So a test that
//! polls its futures by hand decides in which order they run, without threads or sleeps.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::memory::server::{Delivery, Ensemble, EnsembleState, LostMessage};
use crate::memory::session::{MemorySession, sleep};
use crate::memory::tree::{Backup, children_of};
use crate::session::contract::{ConnectionState, Coordinator, Session, SessionSlot};
use crate::session::keep_alive::keep_alive;
use crate::session::request::{Failure, SessionEnd};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::telemetry::debug::debug;

/// A client of an embedded ensemble. Such an ensemble is a part of this process, so tests and examples need no server.
///
/// A `Memory` keeps the same contract as [`ZooKeeper`](crate::ZooKeeper). With the [`faults`](Self::faults) of a
/// client, a test can break the client's connection, lose requests and answers, and end the client's session. A
/// `Memory` needs no runtime. Inside a tokio runtime with timers, a timeout uses the clock of that runtime. So tests
/// can use tokio's paused time.
///
/// # Clone
/// Clones share one session. [`Memory::connect`] returns another client of the same ensemble. That client has its own
/// session, as another process would have.
///
/// # Examples
///
/// A test in which a client loses a lock:
///
/// ```
/// # use zk_rwlock::{Error, Memory, RwLock};
/// # tokio_test::block_on(async {
/// let (ours, theirs) = { let zk = Memory::new(); (zk.connect(), zk) };
/// let guard = RwLock::new(&ours, "/lock")?.write().await?;
/// assert!(RwLock::new(&theirs, "/lock")?.try_write().await.is_err());
///
/// ours.faults().expire();
/// assert!(!guard.is_held());
/// assert!(RwLock::new(&theirs, "/lock")?.try_write().await.is_ok());
/// # Ok::<(), Error>(()) }).unwrap();
/// ```
#[derive(Clone)]
pub struct Memory {
    client: Arc<MemoryClient>,
}

struct MemoryClient {
    ensemble: Arc<Ensemble>,
    /// The client's newest session, which may be over. `None` if the client has not opened a session yet. A session
    /// ends at the latest when its last owner, such as a client or a guard, is dropped.
    session: Mutex<Option<Arc<MemorySession>>>,
    closed: AtomicBool,
}

impl Memory {
    /// Creates an empty ensemble, and its first client.
    #[allow(clippy::new_without_default, reason = "a default ensemble would look as if it were shared")]
    pub fn new() -> Memory {
        Memory::from_ensemble(Arc::new(Ensemble::default()))
    }

    /// Creates another client of the ensemble with a session of its own, as another process would have.
    pub fn connect(&self) -> Memory {
        Memory::from_ensemble(Arc::clone(&self.client.ensemble))
    }

    fn from_ensemble(ensemble: Arc<Ensemble>) -> Memory {
        Memory {
            client: Arc::new(MemoryClient { ensemble, session: Mutex::new(None), closed: AtomicBool::new(false) }),
        }
    }

    /// Returns the state of this client's connection: connecting while the client is [cut](crate::memory::Faults::cut)
    /// off, and closed after [`close`](Self::close). Otherwise the state is connected, even if the client has not
    /// opened a session yet.
    pub fn state(&self) -> ConnectionState {
        if self.client.closed.load(Ordering::Acquire) {
            return ConnectionState::Closed;
        }
        let session = self.newest_session().filter(|session| session.lease().ending().is_none());
        match session.and_then(|session| session.lease().disconnected_since()) {
            Some(since) => ConnectionState::Connecting { since, why: Some("the connection is cut".to_owned()) },
            None => ConnectionState::Connected,
        }
    }

    /// Closes this client for good. The client's session ends, and the session's nodes are deleted. The client's guards
    /// are lost, its waiting acquisitions fail, and new acquisitions are refused.
    pub async fn close(&self) {
        Coordinator::close(self).await;
    }

    /// Returns the number of watches in the ensemble, for all sessions together.
    pub fn watches(&self) -> usize {
        self.client.ensemble.lock_world().watch_count()
    }

    /// Returns the number of requests that clients have made, for all sessions together.
    pub fn requests(&self) -> u64 {
        self.client.ensemble.requests.load(Ordering::Relaxed)
    }

    /// Returns the names of a directory's children, sorted; empty if the directory does not exist.
    pub fn children(&self, path: impl AsRef<str>) -> Vec<String> {
        children_of(&self.client.ensemble.lock_world().tree, path.as_ref())
    }

    /// Returns the id of this client's newest session, which may be over. `None` if the client has not opened a
    /// session.
    pub fn session_id(&self) -> Option<i64> {
        self.newest_session().map(|session| session.id())
    }

    /// If this client has opened a session, calls `act` with the id of the newest session. Then makes the deliveries
    /// that `act` has added to its list.
    pub(super) fn change_newest_session(&self, act: impl FnOnce(&mut EnsembleState, i64, &mut Vec<Delivery>)) {
        if let Some(session) = self.newest_session() {
            self.client.ensemble.change_and_deliver(|world, fired| act(world, session.id(), fired));
        }
    }

    fn newest_session(&self) -> Option<Arc<MemorySession>> {
        self.client.session.lock().clone()
    }

    /// Returns the current session. If there is none, or the current one is over, returns a new session. Returns `None`
    /// if the client is closed.
    pub(super) fn live_or_new_session(&self) -> Option<Arc<MemorySession>> {
        let mut current = self.client.session.lock();
        if self.client.closed.load(Ordering::Acquire) {
            return None;
        }
        if let Some(session) = current.as_ref().filter(|session| session.lease().ending().is_none()) {
            return Some(Arc::clone(session));
        }
        let session = MemorySession::open(&self.client.ensemble);
        *current = Some(Arc::clone(&session));
        drop(current);
        let shared: Arc<dyn Session> = session.clone();
        session.spawn(Box::pin(keep_alive(Arc::downgrade(&shared), Duration::ZERO)));
        Some(session)
    }
}

debug!(Memory as "Memory", |it| session: it.session_id());

#[async_trait]
impl Coordinator for Memory {
    async fn session_slot(&self, _own_bytes: usize) -> Result<SessionSlot, Failure> {
        loop {
            let Some(session) = self.live_or_new_session() else {
                return Err(Failure::Over(SessionEnd::Closed));
            };
            if session.store().until_connected().await.is_ok() {
                return Ok(SessionSlot::new(session));
            }
        }
    }

    async fn close(&self) {
        self.client.closed.store(true, Ordering::Release);
        self.change_newest_session(|world, id, fired| world.end_session(id, SessionEnd::Closed, fired));
    }

    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        sleep(duration)
    }

    fn state(&self) -> ConnectionState {
        Memory::state(self)
    }

    fn namespace(&self) -> Option<(Vec<String>, String)> {
        Some((vec![format!("embedded-{:p}", Arc::as_ptr(&self.client.ensemble))], String::new()))
    }
}

/// The faults that a test can inject into an embedded ensemble, and into the session of one of its clients. Made by
/// [`Memory::faults`].
///
/// # Examples
///
/// With tokio's paused time (its feature `test-util`), a test of an outage takes no time:
///
/// ```
/// # use std::time::Duration;
/// # use zk_rwlock::{Error, HoldState, Memory, RwLock};
/// # let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
/// # runtime.block_on(async {
/// let zk = Memory::new();
/// let guard = RwLock::new(&zk, "/lock")?.write().await?;
/// zk.faults().cut();
/// assert!(matches!(guard.state(), HoldState::Suspect { .. }));
/// tokio::time::sleep(Duration::from_secs(60)).await; // returns immediately
/// # Ok::<(), Error>(()) }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct Faults {
    pub(super) zk: Memory,
}

impl Memory {
    /// Returns the faults that a test can inject into this client's session and into the ensemble.
    pub fn faults(&self) -> Faults {
        Faults { zk: self.clone() }
    }
}

impl Faults {
    /// Ends this client's session at the ensemble, and deletes the session's nodes. The client learns of the end
    /// immediately. If the client is [cut](Self::cut) off, it learns of the end when its connection is
    /// [healed](Self::heal). After that, the next acquisition opens a new session.
    pub fn expire(&self) {
        self.zk.change_newest_session(|world, id, fired| world.end_session(id, SessionEnd::Expired, fired));
    }

    /// Cuts the connection: requests wait, events are not delivered, and the lease starts to run out. The ensemble does
    /// not end the session after a timeout. To end it, call [`expire`](Self::expire). A release waits for its reply
    /// until [`heal`](Self::heal), even if the lock was lost meanwhile.
    pub fn cut(&self) {
        // Only a session can be cut off. So if there is none yet, a session is opened, and the first acquisition after
        // this call finds the client cut off.
        let _session = self.zk.live_or_new_session();
        self.zk.change_newest_session(EnsembleState::cut_connection);
    }

    /// Restores the connection: missed events arrive, and the requests that waited are executed in their order. If the
    /// session was [expired](Self::expire) meanwhile, the client learns only of this end, and the requests fail.
    pub fn heal(&self) {
        self.zk.change_newest_session(EnsembleState::restore_connection);
    }

    /// Loses the answer to this client's next write (create, delete or transaction). The ensemble executes the write.
    /// If the client's server [lags](Self::lag), this write does not bring the server up to date, because its answer is
    /// lost.
    pub fn lose_next_reply(&self) {
        self.lose_next(LostMessage::Reply);
    }

    /// Loses this client's next write (create, delete or transaction) before the write reaches the ensemble. The client
    /// does not learn whether the write was executed.
    pub fn lose_next_request(&self) {
        self.lose_next(LostMessage::Request);
    }

    /// Lets this client's server lag behind the other servers: from now on, reads show the nodes as they are at this
    /// call, and no events are sent.
    ///
    /// A sync by the client, or a write that is answered, brings the server up to date once. After that, the server
    /// lags again.
    pub fn lag(&self) {
        self.zk.change_newest_session(|world, id, _| world.lag_server(id));
    }

    /// Lets this client's server execute requests, but send no answers and no events. The lease starts to run out.
    /// After a later [`cut`](Self::cut), the answers that were not sent are lost, but the events that were not sent are
    /// delivered.
    pub fn silence(&self) {
        self.zk.change_newest_session(EnsembleState::silence_server);
    }

    /// Ends [`lag`](Self::lag) and [`silence`](Self::silence): late events and answers arrive in their order.
    pub fn catch_up(&self) {
        self.zk.change_newest_session(EnsembleState::catch_up_server);
    }

    /// Lets this client's server forget all watches that the client has set so far, like a server that has lost its
    /// newest state. The forgotten watches report no change any more.
    pub fn forget_watches(&self) {
        self.zk.change_newest_session(|world, id, _| world.forget_watches(id));
    }

    /// Freezes the node at `path` and all nodes below it at this client's server. From now on, the server shows these
    /// nodes as they are at this call, and sends no events about them. It also sends no events about the children of
    /// the node's parent.
    ///
    /// If the ensemble deletes a frozen node, only this server still has the node. A client that finds such a node
    /// connects to another server, which has no frozen nodes. After a [cut](Self::cut), [`heal`](Self::heal) also
    /// connects the client to another server. [`keep_server`](Self::keep_server) prevents both.
    pub fn freeze(&self, path: impl AsRef<str>) {
        self.zk.change_newest_session(|world, id, _| world.freeze_nodes(id, path.as_ref()));
    }

    /// Lets this client have only one server. Each new connection leads to the same server, which still shows its
    /// [frozen](Self::freeze) nodes.
    pub fn keep_server(&self) {
        // Opens a session if there is none yet, because the state of the server belongs to a session.
        let _session = self.zk.live_or_new_session();
        self.zk.change_newest_session(|world, id, _| world.keep_server(id));
    }

    /// Deletes every container node that had children and has none now, as servers do once a minute.
    pub fn reap_containers(&self) {
        self.zk.client.ensemble.change_and_deliver(EnsembleState::reap_containers);
    }

    /// Deletes a node and all nodes below it, as an operator might.
    pub fn remove(&self, path: impl AsRef<str>) {
        self.zk.client.ensemble.change_and_deliver(|world, fired| world.remove_subtree(path.as_ref(), fired));
    }

    /// Sets the sequence number of the next sequential node in this directory, if the directory exists.
    pub fn set_next_sequence(&self, directory: impl AsRef<str>, next: i32) {
        self.zk.client.ensemble.change_and_deliver(|world, _| world.set_next_sequence(directory.as_ref(), next));
    }

    /// Sets the ensemble's clock forward. The clock gives the times at which nodes were created and their data were
    /// set. Sessions are not affected. With this method, tests of [`Acquire::once_in`](crate::Acquire::once_in) need
    /// not wait until a period is over.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use zk_rwlock::{Error, Memory, RwLock};
    /// # tokio_test::block_on(async {
    /// # let zk = Memory::new();
    /// let (lock, hour) = (RwLock::new(&zk, "/cron/report")?, Duration::from_secs(60 * 60));
    /// lock.write().once_in(hour).await?.due().expect("never done").done().await?;
    /// assert!(!lock.write().once_in(hour).await?.is_due());
    /// zk.faults().set_clock_forward(hour);
    /// assert!(lock.write().once_in(hour).await?.is_due());
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub fn set_clock_forward(&self, by: Duration) {
        let ahead = &mut self.zk.client.ensemble.lock_world().clock.ahead;
        *ahead = ahead.saturating_add(by);
    }

    /// Sets the ensemble's clock back, as a new leader with a slow clock does.
    pub fn set_clock_back(&self, by: Duration) {
        let behind = &mut self.zk.client.ensemble.lock_world().clock.behind;
        *behind = behind.saturating_add(by);
    }

    /// Returns a copy of all nodes and of the newest transaction id, for [`Faults::restore`].
    pub fn back_up(&self) -> Backup {
        let world = self.zk.client.ensemble.lock_world();
        Backup { tree: Arc::clone(&world.tree), zxid: world.zxid }
    }

    /// Restores the ensemble from a backup, like servers that are started from a backup or have lost their disks.
    /// Transaction ids, and with them fencing tokens, continue from the backup. All later changes are lost.
    ///
    /// The restore ends all sessions at once, and their clients lose what they hold. A real ensemble is different:
    /// after a restore, it refuses the connection of a client that has seen a newer transaction, and such a client
    /// loses what it holds when its lease ends. To test that, [cut](Self::cut) all clients off, and let the leases end,
    /// before this call.
    ///
    /// The ephemeral nodes in the backup exist again. A real ensemble deletes these nodes after a session timeout. Here
    /// the test has to [remove](Self::remove) them.
    ///
    /// # Examples
    ///
    /// ```
    /// # use zk_rwlock::{Error, Memory, RwLock};
    /// # tokio_test::block_on(async {
    /// let zk = Memory::new();
    /// let lock = RwLock::new(&zk, "/lock")?;
    /// let backup = zk.faults().back_up();
    /// let guard = lock.write().await?;
    ///
    /// zk.faults().restore(&backup);
    /// assert!(!guard.is_held());
    /// assert!(lock.write().await?.fencing_token() <= guard.fencing_token());
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub fn restore(&self, backup: &Backup) {
        self.zk.client.ensemble.change_and_deliver(|world, fired| world.restore_backup(backup, fired));
    }

    fn lose_next(&self, message: LostMessage) {
        if let Some(session) = self.zk.live_or_new_session() {
            self.zk.client.ensemble.change_and_deliver(|world, _| world.lose_next_message(session.id(), message));
        }
    }
}
