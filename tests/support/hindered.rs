//! The embedded ensemble behind a line on which each request may be answered with a failure instead.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use zk_rwlock::Memory;
use zk_rwlock::coordinator::{
    Coordinator, Created, Ending, Failure, Kind, Operation, Outcome, Reply, Session, SessionSlot, Stat, Task, Upkeep,
    Watch,
};

/// What is asked of the ensemble.
#[derive(Clone, Copy, Debug)]
pub enum Asked<'a> {
    /// A session slot, for so many bytes of watched paths.
    Slot(usize),
    Create(&'a str, Kind),
    Delete(&'a str),
    Children(&'a str),
    Data(&'a str),
    Watch(&'a str),
    WatchChildren(&'a str),
    Transact(&'a [Operation]),
}

/// The failure that a request is answered with. It is not carried out then.
type Hinder = dyn Fn(Asked<'_>) -> Option<Failure> + Send + Sync;

/// A client of the ensemble with such a line.
#[derive(Clone)]
pub struct Hindered {
    pub memory: Memory,
    hinder: Arc<Hinder>,
    upkeep: Option<Arc<Upkeep>>,
    commit_takes: Duration,
    listing: Arc<Listing>,
}

/// What the server makes of each listing.
type Listing = dyn Fn(Vec<String>) -> Vec<String> + Send + Sync;

impl Hindered {
    pub fn new(memory: &Memory, hinder: impl Fn(Asked<'_>) -> Option<Failure> + Send + Sync + 'static) -> Hindered {
        Hindered {
            memory: memory.clone(),
            hinder: Arc::new(hinder),
            upkeep: None,
            commit_takes: Duration::ZERO,
            listing: Arc::new(|names| names),
        }
    }

    /// Hinders nothing, and counts the contenders that it creates. `first` happens before each, and is told how many there were.
    pub fn counting(memory: &Memory, first: impl Fn(usize) + Send + Sync + 'static) -> (Hindered, Count) {
        let count = Count::default();
        let counted = count.clone();
        let line = Hindered::new(memory, move |asked| {
            if let Asked::Create(_, Kind::EphemeralSequential) = asked {
                first(counted.one_more());
            }
            None
        });
        (line, count)
    }

    /// Hinders nothing, and notes how many bytes its session slots are asked for: the most, because a semaphore's number is
    /// read, too.
    pub fn noting(memory: &Memory) -> (Hindered, Arc<AtomicUsize>) {
        let most = Arc::new(AtomicUsize::new(0));
        let noted = Arc::clone(&most);
        let line = Hindered::new(memory, move |asked| {
            if let Asked::Slot(watched_bytes) = asked {
                noted.fetch_max(watched_bytes, Ordering::Relaxed);
            }
            None
        });
        (line, most)
    }

    /// The answer to each transaction comes so much later.
    pub fn with_commits_that_take(self, commit_takes: Duration) -> Hindered {
        Hindered { commit_takes, ..self }
    }

    /// The server shows something else than it would in each listing.
    pub fn with_listings(self, listing: impl Fn(Vec<String>) -> Vec<String> + Send + Sync + 'static) -> Hindered {
        Hindered { listing: Arc::new(listing), ..self }
    }

    /// Its session has this upkeep, which hears nothing of what happens to the session.
    pub fn with_upkeep(self, upkeep: &Arc<Upkeep>) -> Hindered {
        Hindered { upkeep: Some(Arc::clone(upkeep)), ..self }
    }
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
    fn or<T: Send + 'static>(&self, asked: Asked<'_>, send: impl FnOnce(&dyn Session) -> Reply<T>) -> Reply<T> {
        match (self.client.hinder)(asked) {
            Some(failure) => Box::pin(std::future::ready(Err(failure))),
            None => send(&*self.inner),
        }
    }
}

#[async_trait]
impl Coordinator for Hindered {
    async fn session_slot(&self, watched_bytes: usize) -> Result<SessionSlot, Failure> {
        if let Some(failure) = (self.hinder)(Asked::Slot(watched_bytes)) {
            return Err(failure);
        }
        let inner = Arc::clone(self.memory.session_slot(watched_bytes).await?.session());
        Ok(SessionSlot::new(Arc::new(Line { inner, client: self.clone() })))
    }

    async fn close(&self) {
        Coordinator::close(&self.memory).await;
    }

    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        self.memory.sleep(duration)
    }
}

#[async_trait]
impl Session for Line {
    fn id(&self) -> i64 {
        self.inner.id()
    }

    fn timeout(&self) -> Duration {
        self.inner.timeout()
    }

    fn upkeep(&self) -> &Arc<Upkeep> {
        self.client.upkeep.as_ref().unwrap_or_else(|| self.inner.upkeep())
    }

    async fn connected(&self) -> Result<(), Ending> {
        self.inner.connected().await
    }

    async fn over(&self) -> Ending {
        self.inner.over().await
    }

    fn create(&self, path: &str, data: &[u8], kind: Kind) -> Reply<Created> {
        self.or(Asked::Create(path, kind), |line| line.create(path, data, kind))
    }

    fn delete(&self, path: &str) -> Reply<()> {
        self.or(Asked::Delete(path), |line| line.delete(path))
    }

    fn children(&self, path: &str) -> Reply<Vec<String>> {
        let (names, listing) =
            (self.or(Asked::Children(path), |line| line.children(path)), Arc::clone(&self.client.listing));
        Box::pin(async move { names.await.map(|names| listing(names)) })
    }

    fn data(&self, path: &str) -> Reply<(Vec<u8>, Stat)> {
        self.or(Asked::Data(path), |line| line.data(path))
    }

    fn watch(&self, path: &str) -> Reply<Watch> {
        self.or(Asked::Watch(path), |line| line.watch(path))
    }

    fn watch_children(&self, path: &str) -> Reply<(Vec<String>, Watch)> {
        self.or(Asked::WatchChildren(path), |line| line.watch_children(path))
    }

    fn transact(&self, operations: &[Operation]) -> Reply<Vec<Outcome>> {
        let reply = self.or(Asked::Transact(operations), |inner| inner.transact(operations));
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

    fn spawn(&self, chore: Task) {
        self.inner.spawn(chore);
    }

    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        self.inner.sleep(duration)
    }
}

/// How often something was asked. More than a few hundred times is for ever.
#[derive(Clone, Default)]
pub struct Count(Arc<AtomicUsize>);

impl Count {
    /// Counts once more. Returns how often there was one before.
    pub fn one_more(&self) -> usize {
        let before = self.0.fetch_add(1, Ordering::Relaxed);
        assert!(before < 500 || std::thread::panicking(), "this is asked for ever");
        before
    }

    pub fn now(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// That one operation of a transaction is refused, and so all of it.
pub fn refused_at(index: usize, failure: Failure) -> Failure {
    Failure::Operation { index, failure: Box::new(failure) }
}
