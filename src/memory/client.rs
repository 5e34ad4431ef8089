//! Clients of an ensemble inside the process, and what a test can do to them.
//!
//! Every request is answered before its call returns, so a test that polls by hand decides every interleaving
//! itself, without threads or sleeps.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::memory::server::{Ensemble, Fault, Notification, World};
use crate::memory::session::{MemorySession, sleep};
use crate::memory::tree::Backup;
use crate::session::contract::{ConnectionState, Coordinator, Session, SessionSlot};
use crate::session::keep_alive::keep_alive;
use crate::session::request::{Ending, Failure};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};

/// A client of an embedded ensemble: the lock without a server, for tests and examples.
///
/// Keeps the same contract as [`ZooKeeper`](crate::ZooKeeper), and lets a test do to its session whatever a network
/// can do: see [`faults`](Self::faults). Needs no runtime, except that a timeout given inside a tokio runtime uses that runtime's clock, so
/// tokio's paused time works.
///
/// # Clone
/// Clones share one session; [`Memory::connect`] is another process's client of the same ensemble.
///
/// # Examples
///
/// A test that a program stops its own work when it loses the lock:
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
    client: Arc<Client>,
}

struct Client {
    ensemble: Arc<Ensemble>,
    /// Closed when the last handle is gone, unless a guard still needs it.
    session: Mutex<Option<Arc<MemorySession>>>,
    closed: AtomicBool,
}

impl Memory {
    /// An empty ensemble, and its first client.
    #[allow(clippy::new_without_default, reason = "a default ensemble would look as if it were shared")]
    pub fn new() -> Memory {
        Memory::of(Arc::new(Ensemble::default()))
    }

    /// Another client, with a session of its own, as another process would have.
    pub fn connect(&self) -> Memory {
        Memory::of(Arc::clone(&self.client.ensemble))
    }

    fn of(ensemble: Arc<Ensemble>) -> Memory {
        Memory { client: Arc::new(Client { ensemble, session: Mutex::new(None), closed: AtomicBool::new(false) }) }
    }

    /// Whether this client is connected. It is not while it is [cut](crate::memory::Faults::cut) off.
    pub fn state(&self) -> ConnectionState {
        if self.client.closed.load(Ordering::Acquire) {
            return ConnectionState::Closed;
        }
        let cut = self.session().and_then(|session| self.client.ensemble.world().cut_since(session.id()));
        match cut {
            Some(since) => ConnectionState::Connecting { since, why: Some("the connection is cut".to_owned()) },
            None => ConnectionState::Connected,
        }
    }

    /// Ends this client's session, and with it every node it owns. Its guards are lost, its waiting acquisitions
    /// fail, and new ones are refused.
    pub async fn close(&self) {
        Coordinator::close(self).await;
    }

    /// How many watches the ensemble keeps, for all sessions together.
    pub fn watches(&self) -> usize {
        self.client.ensemble.world().watches()
    }

    /// How many requests the ensemble has carried out, for all sessions together.
    pub fn requests(&self) -> u64 {
        self.client.ensemble.requests()
    }

    /// The names of a directory's children, in the order of their names; none if it does not exist.
    pub fn children(&self, path: impl AsRef<str>) -> Vec<String> {
        self.client.ensemble.world().children(path.as_ref())
    }

    /// The session that this client has now, if any.
    pub fn session_id(&self) -> Option<i64> {
        self.session().map(|session| session.id())
    }

    /// Does something to this client's session, if it has one.
    pub(super) fn change(&self, act: impl FnOnce(&mut World, i64, &mut Vec<Notification>)) {
        if let Some(session) = self.session() {
            self.client.ensemble.change(|world, fired| act(world, session.id(), fired));
        }
    }

    pub(super) fn ensemble(&self) -> &Ensemble {
        &self.client.ensemble
    }

    fn session(&self) -> Option<Arc<MemorySession>> {
        self.client.session.lock().clone()
    }

    /// The current session, or a fresh one if the current session is over.
    pub(super) fn open(&self) -> Option<Arc<MemorySession>> {
        let mut current = self.client.session.lock();
        if self.client.closed.load(Ordering::Acquire) {
            return None;
        }
        if let Some(session) = current.as_ref().filter(|session| session.lease().over().is_none()) {
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

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("session", &self.session_id()).finish_non_exhaustive()
    }
}

#[async_trait]
impl Coordinator for Memory {
    async fn session_slot(&self, _watched_bytes: usize) -> Result<SessionSlot, Failure> {
        loop {
            let Some(session) = self.open() else {
                return Err(Failure::Over(Ending::Closed));
            };
            if session.connected().await.is_ok() {
                return Ok(SessionSlot::new(session));
            }
        }
    }

    async fn close(&self) {
        self.client.closed.store(true, Ordering::Release);
        self.change(|world, id, fired| world.expire(id, Ending::Closed, fired));
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

/// What a network, a server or an operator can do to one client of an embedded ensemble, and to the ensemble. Made by
/// [`Memory::faults`]. What it does to a session, it does to that client's.
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
/// tokio::time::sleep(Duration::from_secs(60)).await; // at once
/// # Ok::<(), Error>(()) }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct Faults {
    pub(super) zk: Memory,
}

impl Memory {
    /// What a network, a server or an operator can do to this client and to its ensemble: for tests.
    pub fn faults(&self) -> Faults {
        Faults { zk: self.clone() }
    }
}

impl Faults {
    /// The ensemble gives this client's session up, and deletes its nodes. The client learns of it at once or, if it is
    /// [cut](Self::cut) off, when it is healed. It gets a fresh session with its next acquisition.
    pub fn expire(&self) {
        self.zk.change(|world, id, fired| world.expire(id, Ending::Expired, fired));
    }

    /// Cuts the connection: requests wait, events are not delivered, and the lease starts to run out. The ensemble keeps the
    /// session and its nodes until [`expire`](Self::expire): others are not let in by time alone.
    pub fn cut(&self) {
        // Also before the first use: then the first acquisition finds the client cut off.
        let _session = self.zk.open();
        self.zk.change(World::cut);
    }

    /// Mends the connection: missed events arrive, and the requests that waited are carried out in their order.
    pub fn heal(&self) {
        self.zk.change(World::heal);
    }

    /// The next write (create, delete or transaction) is carried out, but its answer is lost. If the client's server
    /// [lags](Self::lag), it is behind this write, too.
    pub fn lose_next_reply(&self) {
        self.with_fault(Fault::Reply);
    }

    /// The next write (create, delete or transaction) never reaches the ensemble, and has no answer.
    pub fn lose_next_request(&self) {
        self.with_fault(Fault::Request);
    }

    /// From now on this client's server is behind the other servers: reads show the past, and events are late.
    ///
    /// A sync of its own, or a write that is answered, brings the server up to that moment, and no further.
    pub fn lag(&self) {
        self.zk.change(|world, id, _| world.lag(id));
    }

    /// From now on this client's server does what it is asked to, and says nothing: no answer and no event. The lease starts
    /// to run out. If the client is [cut](Self::cut) off then, it loses the answers, and the events arrive before.
    pub fn silence(&self) {
        self.zk.change(World::silence);
    }

    /// Ends [`Faults::lag`] and [`Faults::silence`]: what was late arrives in its order.
    pub fn catch_up(&self) {
        self.zk.change(World::catch_up);
    }

    /// This client's server forgets every watch that is armed now, as one does that has lost its last moments: none of them
    /// fires any more.
    pub fn forget_watches(&self) {
        self.zk.change(|world, id, _| world.forget_watches(id));
    }

    /// From now on this client's server shows the node at `path`, and all below it, as they are now, and tells nothing of
    /// them, nor of their neighbours' coming and going. A node that is deleted then is a ghost: only this server still has
    /// it. A client that was [cut](Self::cut) off is healed by another server.
    pub fn freeze(&self, path: impl AsRef<str>) {
        self.zk.change(|world, id, _| world.freeze(id, path.as_ref()));
    }

    /// Deletes every container that had children and has none now, as a server does once a minute.
    pub fn reap_containers(&self) {
        self.zk.ensemble().change(World::reap);
    }

    /// Deletes a node with all below it, as an operator might.
    pub fn remove(&self, path: impl AsRef<str>) {
        self.zk.ensemble().change(|world, fired| world.remove(path.as_ref(), fired));
    }

    /// Sets how many nodes were ever created in this directory, which is the next sequence number in it.
    pub fn set_next_sequence(&self, directory: impl AsRef<str>, next: i32) {
        self.zk.ensemble().change(|world, _| world.set_next_sequence(directory.as_ref(), next));
    }

    /// Sets the ensemble's clock forward, by which it says when a node was created and when its data was set. No session
    /// notices. For tests of [`Acquire::once_in`](crate::Acquire::once_in), which need not wait then.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use zk_rwlock::{Error, Memory, RwLock};
    /// # tokio_test::block_on(async {
    /// # let zk = Memory::new();
    /// let (lock, hour) = (RwLock::new(&zk, "/cron/report")?, Duration::from_secs(60 * 60));
    /// lock.write().once_in(hour).await?.expect("never done").done().await?;
    /// assert!(lock.write().once_in(hour).await?.is_none());
    /// zk.faults().set_clock_forward(hour);
    /// assert!(lock.write().once_in(hour).await?.is_some());
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub fn set_clock_forward(&self, by: Duration) {
        self.zk.ensemble().world().clock.set_forward(by);
    }

    /// Sets the ensemble's clock back, as a change to a leader whose clock is behind does.
    pub fn set_clock_back(&self, by: Duration) {
        self.zk.ensemble().world().clock.set_back(by);
    }

    /// Everything that the ensemble holds now, for [`Faults::restore`].
    pub fn back_up(&self) -> Backup {
        self.zk.ensemble().world().back_up()
    }

    /// The ensemble comes back as it was at that moment, as servers do that are started from a backup, or have lost their
    /// disks. The numbers of transactions, and with them fencing tokens, begin again from there. Whatever came later is
    /// forgotten.
    ///
    /// All sessions are over: servers give no session to a client that has seen more than they have. A real client loses
    /// what it holds when its lease ends, so let that time pass before, with all clients [cut](Self::cut) off. The
    /// ephemeral nodes of sessions that were open then are there again. A real ensemble deletes them after a session
    /// timeout; here a test [removes](Self::remove) them.
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
        self.zk.ensemble().change(|world, fired| world.restore(backup, fired));
    }

    fn with_fault(&self, fault: Fault) {
        if let Some(session) = self.zk.open() {
            self.zk.ensemble().change(|world, _| world.add_fault(session.id(), fault));
        }
    }
}
