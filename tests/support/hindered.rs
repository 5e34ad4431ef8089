//! A client of the embedded ensemble whose requests a test can intercept: a request fails without being carried out, a
//! listing is changed, or the reply to a transaction is late. Use it to bring about one fault at one step, without a
//! server.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use zk_rwlock::coordinator::{
    Coordinator, Created, Failure, Kind, Lease, Operation, Outcome, Reply, Session, SessionSlot, SessionStore, Stat,
    Task, Watch,
};
use zk_rwlock::{Memory, RwLock};

/// A request to the ensemble.
#[derive(Clone, Copy, Debug)]
pub enum Request<'a> {
    /// A request for a session slot with room for this many bytes of watched paths.
    Slot(usize),
    Create(&'a str, Kind),
    Delete(&'a str),
    Children(&'a str),
    Data(&'a str),
    Watch(&'a str),
    WatchChildren(&'a str),
    Transact(&'a [Operation]),
}

/// A function that a test gives. It returns a failure for a request that must not be sent, and `None` for a request that
/// passes.
type Hinder = dyn Fn(Request<'_>) -> Option<Failure> + Send + Sync;

/// A client of the embedded ensemble whose requests can fail.
#[derive(Clone)]
pub struct Hindered {
    pub memory: Memory,
    hinder: Arc<Hinder>,
    store: Option<Arc<SessionStore>>,
    commit_takes: Duration,
    listing: Arc<Listing>,
    wider_rights: Vec<String>,
}

/// A function that changes a listing on its way to the client.
type Listing = dyn Fn(Vec<String>) -> Vec<String> + Send + Sync;

impl Hindered {
    pub fn new(memory: &Memory, hinder: impl Fn(Request<'_>) -> Option<Failure> + Send + Sync + 'static) -> Hindered {
        Hindered {
            memory: memory.clone(),
            hinder: Arc::new(hinder),
            store: None,
            commit_takes: Duration::ZERO,
            listing: Arc::new(|names| names),
            wider_rights: Vec::new(),
        }
    }

    /// Returns a client whose requests all pass, and a counter of the contenders' nodes that the client creates. Calls
    /// `first` before each create, with the number of creates so far.
    pub fn counting(memory: &Memory, first: impl Fn(usize) + Send + Sync + 'static) -> (Hindered, Count) {
        let count = Count::default();
        let counted = count.clone();
        let line = Hindered::new(memory, move |asked| {
            if let Request::Create(_, Kind::EphemeralSequential) = asked {
                first(counted.one_more());
            }
            None
        });
        (line, count)
    }

    /// Returns a client whose requests all pass, and the largest number of bytes of watched paths for which the client
    /// has requested a session slot. The largest is recorded because a semaphore requests another slot to read its
    /// number of permits.
    pub fn noting(memory: &Memory) -> (Hindered, Arc<AtomicUsize>) {
        let most = Arc::new(AtomicUsize::new(0));
        let noted = Arc::clone(&most);
        let line = Hindered::new(memory, move |asked| {
            if let Request::Slot(own_bytes) = asked {
                noted.fetch_max(own_bytes, Ordering::Relaxed);
            }
            None
        });
        (line, most)
    }

    /// Delays the reply to each transaction by this time.
    pub fn with_commits_that_take(self, commit_takes: Duration) -> Hindered {
        Hindered { commit_takes, ..self }
    }

    /// Passes each listing through `listing`.
    pub fn with_listings(self, listing: impl Fn(Vec<String>) -> Vec<String> + Send + Sync + 'static) -> Hindered {
        Hindered { listing: Arc::new(listing), ..self }
    }

    /// Makes this client refuse directories on which others have more rights than its own ACL gives, and reports `rights` as
    /// such rights on every node. The creates themselves are not checked.
    pub fn with_wider_rights(self, rights: &str) -> Hindered {
        Hindered { wider_rights: vec![rights.to_owned()], ..self }
    }

    /// Makes this client's sessions use `store`. The events of a session do not reach the store.
    pub fn with_store(self, store: &Arc<SessionStore>) -> Hindered {
        Hindered { store: Some(Arc::clone(store)), ..self }
    }
}

/// A create that has reached a server but was not carried out, because the server was stopped. The session has moved to
/// another server, and nobody waits for the reply.
pub struct LateCreate {
    memory: Memory,
    path: String,
}

impl LateCreate {
    /// Acquires the lock, and returns the create that is lost until the acquisition times out.
    pub async fn of_a_timeout(memory: &Memory, lock: &str) -> LateCreate {
        let sent = Arc::new(Mutex::new(String::new()));
        let lost = Arc::clone(&sent);
        let zk = Hindered::new(memory, move |asked| match asked {
            Request::Create(path, Kind::EphemeralSequential) => {
                path.clone_into(&mut lost.lock().expect("nothing panics here"));
                Some(Failure::Unknown("late".to_owned()))
            }
            _ => None,
        });
        let timed_out = RwLock::new(&zk, lock).expect("valid").write().timeout(Duration::from_secs(1)).await;
        assert!(timed_out.is_err(), "no node was created");
        let path = sent.lock().expect("nothing panics here").clone();
        LateCreate { memory: memory.clone(), path }
    }

    /// Carries the create out. Then the session reconnects.
    pub async fn arrives(&self) {
        let slot = self.memory.session_slot(0).await.expect("open");
        slot.session().create(&self.path, &[], Kind::EphemeralSequential).await.expect("connected");
        self.memory.faults().cut();
        self.memory.faults().heal();
    }
}

/// Returns the session store of a session that begins now, and the store's clock in seconds.
pub fn begun(timeout: Duration) -> (Arc<SessionStore>, Arc<AtomicU64>) {
    let clock = Arc::new(AtomicU64::new(1_000));
    let hands = Arc::clone(&clock);
    let read = move || Duration::from_secs(hands.load(Ordering::SeqCst));
    let store = Arc::new(SessionStore::new(Lease::with_clock(timeout, Box::new(read))));
    store.record_begin(store.lease().now());
    (store, clock)
}

impl fmt::Debug for Hindered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hindered")
    }
}

#[derive(Debug)]
struct Line {
    inner: Arc<dyn Session>,
    client: Hindered,
}

impl Line {
    fn or<T: Send + 'static>(&self, asked: Request<'_>, send: impl FnOnce(&dyn Session) -> Reply<T>) -> Reply<T> {
        match (self.client.hinder)(asked) {
            Some(failure) => Box::pin(std::future::ready(Err(failure))),
            None => send(&*self.inner),
        }
    }
}

#[async_trait]
impl Coordinator for Hindered {
    async fn session_slot(&self, own_bytes: usize) -> Result<SessionSlot, Failure> {
        if let Some(failure) = (self.hinder)(Request::Slot(own_bytes)) {
            return Err(failure);
        }
        let inner = Arc::clone(self.memory.session_slot(own_bytes).await?.session());
        Ok(SessionSlot::new(Arc::new(Line { inner, client: self.clone() })))
    }

    async fn close(&self) {
        Coordinator::close(&self.memory).await;
    }

    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        self.memory.sleep(duration)
    }
}

impl Session for Line {
    fn id(&self) -> i64 {
        self.inner.id()
    }

    fn timeout(&self) -> Duration {
        self.inner.timeout()
    }

    fn wider_rights(&self, _path: &str) -> Reply<Vec<String>> {
        Box::pin(std::future::ready(Ok(self.client.wider_rights.clone())))
    }

    fn refuses_wider_rights(&self) -> bool {
        !self.client.wider_rights.is_empty()
    }

    fn store(&self) -> &Arc<SessionStore> {
        self.client.store.as_ref().unwrap_or_else(|| self.inner.store())
    }

    fn create(&self, path: &str, data: &[u8], kind: Kind) -> Reply<Created> {
        self.or(Request::Create(path, kind), |line| line.create(path, data, kind))
    }

    fn delete(&self, path: &str) -> Reply<()> {
        self.or(Request::Delete(path), |line| line.delete(path))
    }

    fn children_and_stat(&self, path: &str) -> Reply<(Vec<String>, Option<Stat>)> {
        let (names, listing) =
            (self.or(Request::Children(path), |line| line.children(path)), Arc::clone(&self.client.listing));
        Box::pin(async move { Ok((listing(names.await?), None)) })
    }

    fn data(&self, path: &str) -> Reply<(Vec<u8>, Stat)> {
        self.or(Request::Data(path), |line| line.data(path))
    }

    fn watch(&self, path: &str) -> Reply<Watch> {
        self.or(Request::Watch(path), |line| line.watch(path))
    }

    fn watch_children(&self, path: &str) -> Reply<(Vec<String>, Watch)> {
        self.or(Request::WatchChildren(path), |line| line.watch_children(path))
    }

    fn transact(&self, operations: &[Operation]) -> Reply<Vec<Outcome>> {
        let reply = self.or(Request::Transact(operations), |inner| inner.transact(operations));
        match self.client.commit_takes {
            Duration::ZERO => reply,
            late => {
                let late = self.inner.sleep(late);
                Box::pin(async move {
                    late.await;
                    reply.await
                })
            }
        }
    }

    fn leave_server(&self, connection: u64, node: &str) -> Reply<bool> {
        self.inner.leave_server(connection, node)
    }

    fn spawn(&self, chore: Task) {
        self.inner.spawn(chore);
    }

    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        self.inner.sleep(duration)
    }
}

/// A counter of requests. It panics at 500, because a test that sends that many requests repeats one for ever.
#[derive(Clone, Default)]
pub struct Count(Arc<AtomicUsize>);

impl Count {
    /// Adds one to the counter. Returns the count before.
    pub fn one_more(&self) -> usize {
        let before = self.0.fetch_add(1, Ordering::Relaxed);
        assert!(before < 500 || std::thread::panicking(), "a request is repeated for ever");
        before
    }

    pub fn now(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// Returns the failure of a transaction whose operation at this index was refused.
pub fn refused_at(index: usize, failure: Failure) -> Failure {
    Failure::Operation { index, failure: Box::new(failure) }
}
