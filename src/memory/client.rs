//! Clients of an ensemble inside the process, and the faults that a test can cause them; knows no locks and no client
//! crate.
//!
//! Every request is answered before its call returns, so a test that polls by hand decides every interleaving
//! itself, without threads or sleeps.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::memory::server::{Ensemble, Fault, Fired, Saved, World};
use crate::memory::session::{MemorySession, sleep};
use crate::session::connection::ConnectionState;
use crate::session::contract::{Coordinator, Session, SessionSlot};
use crate::session::keep_alive::keep_alive;
use crate::session::request::{Ending, Failure};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};

/// A client of an embedded ensemble: the lock without a server, for tests and examples.
///
/// Keeps the same contract as [`ZooKeeper`](crate::ZooKeeper), and lets a test do to its session whatever a network
/// can do. Needs no runtime, except that a timeout given inside a tokio runtime uses that runtime's clock, so
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
/// ours.expire();
/// assert!(!guard.is_held());
/// assert!(RwLock::new(&theirs, "/lock")?.try_write().await.is_ok());
/// # Ok::<(), Error>(()) }).unwrap();
/// ```
#[derive(Clone)]
pub struct Memory {
    client: Arc<Client>,
}

/// All nodes of an embedded ensemble at one moment. Made by [`Memory::back_up`].
#[derive(Clone)]
pub struct Backup {
    saved: Saved,
}

impl fmt::Debug for Backup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Backup").finish_non_exhaustive()
    }
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

    /// Whether this client is connected. It is not while it is [cut](Memory::cut) off.
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

    /// The ensemble gives this client's session up, and deletes its nodes. The client learns of it at once or, if it is
    /// [cut](Memory::cut) off, when it is healed. It gets a fresh session with its next acquisition.
    pub fn expire(&self) {
        self.change(|world, id, fired| world.expire(id, Ending::Expired, fired));
    }

    /// Cuts the connection: requests wait, events are not delivered, and the lease starts to run out.
    pub fn cut(&self) {
        // Also before the first use: then the first acquisition finds the client cut off.
        let _session = self.open();
        self.change(World::cut);
    }

    /// Mends the connection: missed events arrive, and the requests that waited are carried out in their order.
    pub fn heal(&self) {
        self.change(World::heal);
    }

    /// The next write (create, delete or transaction) is carried out, but its answer is lost.
    pub fn lose_next_reply(&self) {
        self.with_fault(Fault::Reply);
    }

    /// The next write (create, delete or transaction) never reaches the ensemble, and has no answer.
    pub fn lose_next_request(&self) {
        self.with_fault(Fault::Request);
    }

    /// From now on this client's server is behind the other servers: reads show the past, and events are late.
    ///
    /// A write or a sync of its own brings the server up to that moment, and no further.
    pub fn lag(&self) {
        self.change(|world, id, _| world.lag(id));
    }

    /// Ends [`Memory::lag`]: the events that were late arrive in their order.
    pub fn catch_up(&self) {
        self.change(World::catch_up);
    }

    /// This client's server forgets every watch that is armed now, as one does that has lost its last moments: none of them
    /// fires any more.
    pub fn forget_watches(&self) {
        self.change(|world, id, _| world.forget_watches(id));
    }

    /// From now on this client's server shows the node at `path`, and all below it, as they are now, and tells nothing of
    /// them, nor of their neighbours' coming and going. A node that is deleted then is a ghost: only this server still has
    /// it. A client that was [cut](Memory::cut) off is healed by another server.
    pub fn freeze(&self, path: impl AsRef<str>) {
        self.change(|world, id, _| world.freeze(id, path.as_ref()));
    }

    /// Deletes every container that had children and has none now, as a server does once a minute.
    pub fn reap_containers(&self) {
        self.client.ensemble.change(World::reap);
    }

    /// Deletes a node with all below it, as an operator might.
    pub fn remove(&self, path: impl AsRef<str>) {
        self.client.ensemble.change(|world, fired| world.remove(path.as_ref(), fired));
    }

    /// Sets how many nodes were ever created in this directory, which is the next sequence number in it.
    pub fn set_next_sequence(&self, directory: impl AsRef<str>, next: i32) {
        self.client.ensemble.change(|world, _| world.set_next_sequence(directory.as_ref(), next));
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
    /// zk.set_clock_forward(hour);
    /// assert!(lock.write().once_in(hour).await?.is_some());
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub fn set_clock_forward(&self, by: Duration) {
        self.client.ensemble.world().clock().set_forward(by);
    }

    /// Sets the ensemble's clock back, as a change to a leader whose clock is behind does.
    pub fn set_clock_back(&self, by: Duration) {
        self.client.ensemble.world().clock().set_back(by);
    }

    /// Everything that the ensemble holds now, for [`Memory::restore`].
    pub fn back_up(&self) -> Backup {
        Backup { saved: self.client.ensemble.world().back_up() }
    }

    /// The ensemble comes back as it was at that moment, as servers do that are started from a backup, or have lost their
    /// disks. The numbers of transactions, and with them fencing tokens, begin again from there. Whatever came later is
    /// forgotten.
    ///
    /// All sessions are over: servers give no session to a client that has seen more than they have. A real client loses
    /// what it holds when its lease ends, so let that time pass before, with all clients [cut](Memory::cut) off. The
    /// ephemeral nodes of sessions that were open then are there again. A real ensemble deletes them after a session
    /// timeout; here a test [removes](Memory::remove) them.
    ///
    /// # Examples
    ///
    /// ```
    /// # use zk_rwlock::{Error, Memory, RwLock};
    /// # tokio_test::block_on(async {
    /// let zk = Memory::new();
    /// let lock = RwLock::new(&zk, "/lock")?;
    /// let backup = zk.back_up();
    /// let guard = lock.write().await?;
    ///
    /// zk.restore(&backup);
    /// assert!(!guard.is_held());
    /// assert!(lock.write().await?.fencing_token() <= guard.fencing_token());
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub fn restore(&self, backup: &Backup) {
        self.client.ensemble.change(|world, fired| world.restore(&backup.saved, fired));
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
    fn change(&self, act: impl FnOnce(&mut World, i64, &mut Vec<Fired>)) {
        if let Some(session) = self.session() {
            self.client.ensemble.change(|world, fired| act(world, session.id(), fired));
        }
    }

    fn with_fault(&self, fault: Fault) {
        if let Some(session) = self.open() {
            self.client.ensemble.change(|world, _| world.add_fault(session.id(), fault));
        }
    }

    fn session(&self) -> Option<Arc<MemorySession>> {
        self.client.session.lock().clone()
    }

    /// The current session, or a fresh one if the current session is over.
    fn open(&self) -> Option<Arc<MemorySession>> {
        if self.client.closed.load(Ordering::Acquire) {
            return None;
        }
        let mut current = self.client.session.lock();
        if let Some(session) = current.as_ref().filter(|session| session.lease().over().is_none()) {
            return Some(Arc::clone(session));
        }
        let session = MemorySession::open(&self.client.ensemble);
        *current = Some(Arc::clone(&session));
        drop(current);
        let shared: Arc<dyn Session> = session.clone();
        self.client.ensemble.spawn(Box::pin(keep_alive(Arc::downgrade(&shared), Duration::ZERO)));
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
}
