//! Clients of an ensemble inside the process.
//!
//! Every request is answered before its call returns, so a test that polls by hand decides every interleaving
//! itself, without threads or sleeps.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::memory::server::{Ensemble, Fired, World};
use crate::memory::session::{MemorySession, sleep};
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
    pub(super) fn change(&self, act: impl FnOnce(&mut World, i64, &mut Vec<Fired>)) {
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
