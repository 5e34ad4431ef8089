//! An ensemble inside the process: sessions, sequence numbers, one-shot watches and czxid without a server; knows
//! no locks and no client crate.
//!
//! Every request is answered before its call returns, so a test that polls by hand decides every interleaving
//! itself, without threads or sleeps.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use crate::session::contract::{Berth, Coordinator, Session};
use crate::session::lease::Lease;
use crate::session::node::keep_alive;
use crate::session::request::{Chore, Created, Ending, Event, Failure, Kind, Operation, Outcome, Reply, Stat, Watch};
use crate::session::thread::Keeper;

/// The timeout of every session of an embedded ensemble.
const SESSION_TIMEOUT: Duration = Duration::from_secs(10);

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
/// How our users test that their own code stops when it loses the lock:
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

struct Client {
    ensemble: Arc<Ensemble>,
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

    /// Ends this client's session, and with it every node it owns. Its guards are lost, its waiting acquisitions
    /// fail, and new ones are refused.
    pub async fn close(&self) {
        Coordinator::close(self).await;
    }

    /// The ensemble gives this client's session up, and deletes its nodes. The client is told at once, or if it is
    /// [cut](Memory::cut) off, when it is healed. It gets a fresh session with its next acquisition.
    pub fn expire(&self) {
        if let Some(session) = self.session() {
            session.ensemble.change(|world, fired| world.expire(session.id, Ending::Expired, fired));
        }
    }

    /// Cuts the connection: requests wait, events are not delivered, and the lease starts to run out.
    pub fn cut(&self) {
        if let Some(session) = self.session() {
            session.ensemble.change(|world, fired| {
                if let Some(state) = world.sessions.get_mut(&session.id).filter(|state| state.is_up()) {
                    state.seen = world.zxid;
                    fired.push(state.link_changes(Link::Down));
                    let lease = Arc::clone(&session.lease);
                    fired.push(Box::new(move || {
                        lease.steady(false);
                        lease.connected(false);
                    }));
                }
            });
        }
    }

    /// Mends the connection: missed events arrive, and the requests that waited are carried out in their order.
    pub fn heal(&self) {
        if let Some(session) = self.session() {
            session.ensemble.change(|world, fired| world.heal(&session, fired));
        }
    }

    /// The next write (create, delete or transaction) is carried out, but its answer is lost.
    pub fn lose_next_reply(&self) {
        self.with_fault(Fault::Reply);
    }

    /// The next write (create, delete or transaction) never reaches the ensemble, and has no answer.
    pub fn lose_next_request(&self) {
        self.with_fault(Fault::Request);
    }

    /// From now on this client's server is behind the others: reads show the past, and events are late.
    ///
    /// A write or a sync of its own brings the server up to that moment, and no further.
    pub fn lag(&self) {
        if let Some(session) = self.session() {
            session.ensemble.change(|world, _| {
                let tree = Arc::clone(&world.tree);
                if let Some(state) = world.sessions.get_mut(&session.id) {
                    state.view = Some(tree);
                }
            });
        }
    }

    /// Ends [`Memory::lag`]: the events that were late arrive in their order.
    pub fn catch_up(&self) {
        if let Some(session) = self.session() {
            session.ensemble.change(|world, fired| {
                world.refresh(session.id, fired);
                if let Some(state) = world.sessions.get_mut(&session.id) {
                    state.view = None;
                }
            });
        }
    }

    /// Deletes every container that had children and has none now, as a server does once a minute.
    pub fn reap_containers(&self) {
        self.client.ensemble.change(|world, fired| world.reap(fired));
    }

    /// Deletes a node with all below it, as an operator might.
    pub fn remove(&self, path: &str) {
        self.client.ensemble.change(|world, fired| {
            let below = format!("{path}/");
            let gone = world.tree.keys().filter(|node| *node == path || node.starts_with(&below)).cloned().collect();
            world.delete_all(gone, fired);
        });
    }

    /// Sets how many nodes were ever created in this directory, which is the next sequence number in it.
    pub fn set_next_sequence(&self, directory: &str, next: i32) {
        self.client.ensemble.change(|world, _| {
            if let Some(node) = Arc::make_mut(&mut world.tree).get_mut(directory) {
                node.next_sequence = next;
            }
        });
    }

    /// How many watches the ensemble keeps, for all sessions together.
    pub fn watches(&self) -> usize {
        let world = self.client.ensemble.world();
        world.sessions.values().map(|state| state.watches.values().map(Vec::len).sum::<usize>()).sum()
    }

    /// How many requests the ensemble has carried out, for all sessions together.
    pub fn requests(&self) -> u64 {
        self.client.ensemble.requests.load(Ordering::Relaxed)
    }

    /// The names of a directory's children, in the order of their names; none if it does not exist.
    pub fn children(&self, path: &str) -> Vec<String> {
        children_of(&self.client.ensemble.world().tree, path)
    }

    /// The session that this client has now, if any.
    pub fn session_id(&self) -> Option<i64> {
        self.session().map(|session| session.id)
    }

    fn with_fault(&self, fault: Fault) {
        if let Some(session) = self.open() {
            session.ensemble.change(|world, _| {
                if let Some(state) = world.sessions.get_mut(&session.id) {
                    state.faults.push_back(fault);
                }
            });
        }
    }

    fn session(&self) -> Option<Arc<MemorySession>> {
        self.client.session().clone()
    }

    /// The current session, or a fresh one if there is none that lives.
    fn open(&self) -> Option<Arc<MemorySession>> {
        if self.client.closed.load(Ordering::Acquire) {
            return None;
        }
        let mut current = self.client.session();
        if let Some(session) = current.as_ref().filter(|session| session.lease.over().is_none()) {
            return Some(Arc::clone(session));
        }
        let session = MemorySession::open(&self.client.ensemble);
        *current = Some(Arc::clone(&session));
        drop(current);
        let shared: Arc<dyn Session> = session.clone();
        self.client.ensemble.executor.spawn(Box::pin(keep_alive(Arc::downgrade(&shared), Duration::ZERO)));
        Some(session)
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("session", &self.session_id()).finish_non_exhaustive()
    }
}

impl Client {
    fn session(&self) -> MutexGuard<'_, Option<Arc<MemorySession>>> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Client {
    /// The last handle gone closes the session, unless a guard still needs it.
    fn drop(&mut self) {
        drop(self.session().take());
    }
}

#[async_trait]
impl Coordinator for Memory {
    async fn berth(&self, _watched_bytes: usize) -> Result<Berth, Failure> {
        loop {
            let Some(session) = self.open() else {
                return Err(Failure::Over(Ending::Closed));
            };
            if session.connected().await.is_ok() {
                return Ok(Berth::new(session));
            }
        }
    }

    async fn close(&self) {
        self.client.closed.store(true, Ordering::Release);
        if let Some(session) = self.session() {
            session.ensemble.change(|world, fired| world.expire(session.id, Ending::Closed, fired));
        }
    }

    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        sleep(duration)
    }
}

/// On the clock of the runtime that we are called in, which a test may have paused, or on that of our own thread.
fn sleep(duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
    if tokio::runtime::Handle::try_current().is_ok() {
        // Tokio offers no other way to find out that a runtime has no timers.
        if let Ok(sleep) = catch_unwind(AssertUnwindSafe(|| Box::pin(tokio::time::sleep(duration)))) {
            return Box::pin(Sleep(sleep));
        }
    }
    match Keeper::get() {
        Ok(keeper) => keeper.sleep(duration),
        Err(_) => {
            std::thread::sleep(duration);
            Box::pin(std::future::ready(()))
        }
    }
}

/// A timer that is over when its runtime is: tokio's own would panic, and a chore may outlive the runtime that it was
/// started in.
struct Sleep(Pin<Box<tokio::time::Sleep>>);

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        catch_unwind(AssertUnwindSafe(|| self.0.as_mut().poll(context))).unwrap_or(Poll::Ready(()))
    }
}

/// The state that all clients share. Whatever is to be told to someone is told after the world is unlocked.
#[derive(Default)]
struct Ensemble {
    world: Mutex<World>,
    executor: Arc<Executor>,
    requests: AtomicU64,
}

type Tree = BTreeMap<String, Node>;
type Fired = Box<dyn FnOnce() + Send>;
type Job = Box<dyn FnOnce(&mut World, &mut Vec<Fired>) + Send>;

#[derive(Default)]
struct World {
    tree: Arc<Tree>,
    zxid: i64,
    last_session: i64,
    last_watch: u64,
    sessions: HashMap<i64, SessionState>,
}

#[derive(Clone)]
struct Node {
    data: Vec<u8>,
    czxid: i64,
    mzxid: i64,
    /// The last transaction in which a child came or went.
    pzxid: i64,
    version: i32,
    ctime: SystemTime,
    kind: Kind,
    owner: i64,
    next_sequence: i32,
}

struct SessionState {
    lease: Arc<Lease>,
    link: watch::Sender<Link>,
    /// The ensemble has given it up, although the client does not know yet.
    given_up: Option<Ending>,
    /// What a lagging server shows.
    view: Option<Arc<Tree>>,
    /// What a lagging server has not shown yet.
    late: Vec<(String, Event)>,
    /// The newest transaction that the client has seen before it was cut off.
    seen: i64,
    waiting: Vec<Job>,
    faults: VecDeque<Fault>,
    /// By the path of the node, or of its children as [`children_key`] writes it.
    watches: HashMap<String, Vec<Armed>>,
}

struct Armed {
    number: u64,
    tell: oneshot::Sender<Event>,
}

impl Armed {
    fn fire(self, event: Event) {
        let _nobody_waits_any_more = self.tell.send(event);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    Up,
    Down,
    Over(Ending),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Reply,
    Request,
}

impl Ensemble {
    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change<T>(&self, act: impl FnOnce(&mut World, &mut Vec<Fired>) -> T) -> T {
        let mut fired = Vec::new();
        let result = act(&mut self.world(), &mut fired);
        for tell in fired {
            tell();
        }
        result
    }
}

impl SessionState {
    fn is_up(&self) -> bool {
        *self.link.borrow() == Link::Up
    }

    /// Tells those who wait for the link, later.
    fn link_changes(&self, link: Link) -> Fired {
        let sender = self.link.clone();
        // Set now, so that a request that comes before the telling finds the link as it is.
        sender.send_if_modified(|current| {
            if !matches!(current, Link::Over(_)) {
                *current = link;
            }
            false
        });
        Box::new(move || {
            sender.send_if_modified(|_| true);
        })
    }

    fn happened(&mut self, path: &str, event: Event, fired: &mut Vec<Fired>) {
        if self.view.is_some() {
            self.late.push((path.to_owned(), event));
        } else if self.is_up() {
            self.fire(path, event, fired);
        }
    }

    fn fire(&mut self, path: &str, event: Event, fired: &mut Vec<Fired>) {
        for armed in self.watches.remove(path).into_iter().flatten() {
            fired.push(Box::new(move || armed.fire(event)));
        }
    }
}

impl World {
    fn tree_of(&self, session: i64) -> &Tree {
        self.sessions.get(&session).and_then(|state| state.view.as_ref()).unwrap_or(&self.tree)
    }

    /// Brings a lagging server up to now; it goes on lagging from here.
    fn refresh(&mut self, session: i64, fired: &mut Vec<Fired>) {
        let tree = Arc::clone(&self.tree);
        let Some(state) = self.sessions.get_mut(&session) else {
            return;
        };
        if state.view.is_some() {
            state.view = Some(tree);
            for (path, event) in std::mem::take(&mut state.late) {
                state.fire(&path, event, fired);
            }
        }
    }

    fn arm(&mut self, session: i64, key: String, ensemble: Weak<Ensemble>) -> Watch {
        let (tell, told) = oneshot::channel();
        self.last_watch += 1;
        let number = self.last_watch;
        if let Some(state) = self.sessions.get_mut(&session) {
            state.watches.entry(key.clone()).or_default().push(Armed { number, tell });
        }
        let disarm = Disarm { ensemble, session, key, number };
        Watch::new(async move {
            let _disarm = disarm;
            told.await.unwrap_or(Event::Over)
        })
    }

    fn tell_all(&mut self, changes: &[(String, Event)], fired: &mut Vec<Fired>) {
        for state in self.sessions.values_mut() {
            for (path, event) in changes {
                state.happened(path, *event, fired);
            }
        }
    }

    /// Applies all or nothing, as one transaction.
    fn apply(
        &mut self,
        session: i64,
        operations: &[Operation],
        fired: &mut Vec<Fired>,
    ) -> Result<Vec<(Outcome, String)>, (usize, Failure)> {
        // Copied only while a lagging server still shows it as it was.
        let tree = Arc::make_mut(&mut self.tree);
        let zxid = self.zxid + 1;
        let mut changes = Vec::new();
        let mut undo: Vec<(String, Option<Node>)> = Vec::new();
        let mut outcomes = Vec::with_capacity(operations.len());
        for (index, operation) in operations.iter().enumerate() {
            match apply_one(tree, zxid, session, operation, &mut changes, &mut undo) {
                Ok(done) => outcomes.push(done),
                Err(failure) => {
                    for (path, before) in undo.into_iter().rev() {
                        match before {
                            Some(node) => drop(tree.insert(path, node)),
                            None => drop(tree.remove(&path)),
                        }
                    }
                    return Err((index, failure));
                }
            }
        }
        self.zxid = zxid;
        self.tell_all(&changes, fired);
        Ok(outcomes)
    }

    fn delete_all(&mut self, paths: Vec<String>, fired: &mut Vec<Fired>) {
        for path in paths.into_iter().rev() {
            self.zxid += 1;
            let tree = Arc::make_mut(&mut self.tree);
            tree.remove(&path);
            if let Some(parent) = tree.get_mut(parent_of(&path)) {
                parent.pzxid = self.zxid;
            }
            self.tell_all(&deletion(path), fired);
        }
    }

    fn reap(&mut self, fired: &mut Vec<Fired>) {
        let idle = |(path, node): (&String, &Node)| {
            (node.kind == Kind::Container && node.next_sequence > 0 && children_of(&self.tree, path).is_empty())
                .then(|| path.clone())
        };
        let idle = self.tree.iter().filter_map(idle).collect();
        self.delete_all(idle, fired);
    }

    fn expire(&mut self, session: i64, why: Ending, fired: &mut Vec<Fired>) {
        let Some(state) = self.sessions.get_mut(&session) else {
            return;
        };
        state.given_up.get_or_insert(why);
        let told = state.is_up() || why == Ending::Closed;
        let owned = self.tree.iter().filter(|(_, node)| node.owner == session).map(|(path, _)| path.clone());
        let owned: Vec<_> = owned.collect();
        if told {
            self.end(session, why, fired);
        }
        self.delete_all(owned, fired);
    }

    /// Tells the client that its session is over.
    fn end(&mut self, session: i64, why: Ending, fired: &mut Vec<Fired>) {
        let Some(mut state) = self.sessions.remove(&session) else {
            return;
        };
        let lease = Arc::clone(&state.lease);
        let link = state.link_changes(Link::Over(why));
        fired.push(Box::new(move || lease.end(why)));
        fired.push(link);
        for armed in state.watches.drain().flat_map(|(_, armed)| armed) {
            fired.push(Box::new(move || armed.fire(Event::Over)));
        }
        // Without its session each of them answers that it is over.
        for job in std::mem::take(&mut state.waiting) {
            job(self, fired);
        }
    }

    fn heal(&mut self, session: &MemorySession, fired: &mut Vec<Fired>) {
        let Some(state) = self.sessions.get_mut(&session.id).filter(|state| !state.is_up()) else {
            return;
        };
        if let Some(why) = state.given_up {
            return self.end(session.id, why, fired);
        }
        let lease = Arc::clone(&session.lease);
        fired.push(Box::new(move || {
            lease.steady(true);
            lease.connected(true);
        }));
        let link = state.link_changes(Link::Up);
        // The server compares what it has with what the client has seen, as it does for SetWatches.
        let missed = state.watches.keys().filter_map(|key| {
            let children_of = key.strip_suffix('/');
            match self.tree.get(children_of.unwrap_or(key)) {
                None if key != "/" => Some((key.clone(), Event::Deleted)),
                None => Some((key.clone(), Event::Changed)),
                Some(node) => {
                    let changed = if children_of.is_some() { node.pzxid } else { node.mzxid };
                    (changed > state.seen).then(|| (key.clone(), Event::Changed))
                }
            }
        });
        let missed: Vec<(String, Event)> = missed.collect();
        for (path, event) in missed {
            state.fire(&path, event, fired);
        }
        let waiting = std::mem::take(&mut state.waiting);
        fired.push(link);
        for job in waiting {
            job(self, fired);
        }
    }
}

fn apply_one(
    tree: &mut Tree,
    zxid: i64,
    session: i64,
    operation: &Operation,
    changes: &mut Vec<(String, Event)>,
    undo: &mut Vec<(String, Option<Node>)>,
) -> Result<(Outcome, String), Failure> {
    match operation {
        Operation::Create { path, data, kind } => {
            let parent = parent_of(path);
            let mut path = path.clone();
            if !parent.is_empty() {
                let node = tree.get_mut(parent).ok_or(Failure::NoNode)?;
                if matches!(node.kind, Kind::Ephemeral | Kind::EphemeralSequential) {
                    return Err(Failure::ParentIsEphemeral);
                }
                if *kind == Kind::EphemeralSequential {
                    path = format!("{path}{:010}", node.next_sequence);
                }
                if tree.contains_key(&path) {
                    return Err(Failure::NodeExists);
                }
                // Sticks at its end, as ZooKeeper's does from 3.6 on (ZOOKEEPER-4372).
                if let Some(node) = tree.get_mut(parent) {
                    undo.push((parent.to_owned(), Some(node.clone())));
                    node.next_sequence = node.next_sequence.saturating_add(1);
                    node.pzxid = zxid;
                }
            } else if tree.contains_key(&path) {
                return Err(Failure::NodeExists);
            }
            let owner = if matches!(kind, Kind::Ephemeral | Kind::EphemeralSequential) { session } else { 0 };
            let (data, kind, ctime) = (data.clone(), *kind, SystemTime::now());
            let (czxid, mzxid, pzxid) = (zxid, zxid, zxid);
            let node = Node { data, czxid, mzxid, pzxid, version: 0, ctime, kind, owner, next_sequence: 0 };
            undo.push((path.clone(), tree.insert(path.clone(), node)));
            changes.push((children_key(parent), Event::Changed));
            Ok((Outcome::Created, path))
        }
        Operation::Set { path, data, version } => {
            let node = tree.get_mut(path).ok_or(Failure::NoNode)?;
            check_version(node, *version)?;
            undo.push((path.clone(), Some(node.clone())));
            node.data.clone_from(data);
            node.version = node.version.wrapping_add(1);
            node.mzxid = zxid;
            changes.push((path.clone(), Event::Changed));
            Ok((Outcome::Set { version: node.version }, path.clone()))
        }
        Operation::Delete { path, version } => {
            check_version(tree.get(path).ok_or(Failure::NoNode)?, *version)?;
            if !children_of(tree, path).is_empty() {
                return Err(Failure::NotEmpty);
            }
            if let Some(parent) = tree.get_mut(parent_of(path)) {
                undo.push((parent_of(path).to_owned(), Some(parent.clone())));
                parent.pzxid = zxid;
            }
            undo.push((path.clone(), tree.remove(path)));
            changes.extend(deletion(path.clone()));
            Ok((Outcome::Deleted, path.clone()))
        }
        Operation::Check { path, version } => {
            check_version(tree.get(path).ok_or(Failure::NoNode)?, *version)?;
            Ok((Outcome::Checked, path.clone()))
        }
    }
}

fn check_version(node: &Node, expected: Option<i32>) -> Result<(), Failure> {
    if expected.is_some_and(|version| version != node.version) { Err(Failure::BadVersion) } else { Ok(()) }
}

fn parent_of(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}

/// What a watch on a node's children is listed under: no node's path ends with a slash.
fn children_key(path: &str) -> String {
    format!("{}/", path.trim_end_matches('/'))
}

/// What a deletion tells, in the order of a server.
fn deletion(path: String) -> [(String, Event); 3] {
    let (parent, children) = (children_key(parent_of(&path)), children_key(&path));
    [(path, Event::Deleted), (children, Event::Deleted), (parent, Event::Changed)]
}

fn children_of(tree: &Tree, path: &str) -> Vec<String> {
    let below = if path == "/" { path.to_owned() } else { format!("{path}/") };
    let inside = tree.range(below.clone()..).map_while(|(node, _)| node.strip_prefix(&below));
    inside.filter(|name| !name.contains('/')).map(str::to_owned).collect()
}

/// One session of an embedded ensemble.
struct MemorySession {
    id: i64,
    ensemble: Arc<Ensemble>,
    lease: Arc<Lease>,
    link: watch::Receiver<Link>,
}

impl MemorySession {
    fn open(ensemble: &Arc<Ensemble>) -> Arc<MemorySession> {
        let opened = Instant::now();
        // Never zero, which stands for a lease that ran out.
        let clock = move || opened.elapsed() + Duration::from_nanos(1);
        let lease = Arc::new(Lease::with_clock(SESSION_TIMEOUT, Box::new(clock)));
        lease.steady(true);
        let (link, links) = watch::channel(Link::Up);
        let id = ensemble.change(|world, _| {
            world.last_session += 1;
            let state = SessionState {
                lease: Arc::clone(&lease),
                link,
                given_up: None,
                view: None,
                late: Vec::new(),
                seen: 0,
                waiting: Vec::new(),
                faults: VecDeque::new(),
                watches: HashMap::new(),
            };
            world.sessions.insert(world.last_session, state);
            world.last_session
        });
        Arc::new(MemorySession { id, ensemble: Arc::clone(ensemble), lease, link: links })
    }

    /// Carries a request out now, or when the connection is mended.
    fn request<T: Send + 'static>(
        &self,
        is_write: bool,
        act: impl FnOnce(&mut World, &mut Vec<Fired>) -> Result<T, Failure> + Send + 'static,
    ) -> Reply<T> {
        let (reply, answer) = oneshot::channel();
        let id = self.id;
        let lease = Arc::clone(&self.lease);
        let job: Job = Box::new(move |world, fired| {
            let Some(state) = world.sessions.get_mut(&id) else {
                let over = Failure::Over(lease.over().unwrap_or(Ending::Expired));
                return fired.push(Box::new(move || drop(reply.send(Err(over)))));
            };
            let fault = if is_write { state.faults.pop_front() } else { None };
            let result = match fault {
                Some(Fault::Request) => Err(Failure::Unknown("the request was lost".to_owned())),
                Some(Fault::Reply) => {
                    let _lost = act(world, fired);
                    Err(Failure::Unknown("the answer was lost".to_owned()))
                }
                None => act(world, fired),
            };
            if is_write {
                world.refresh(id, fired);
            }
            fired.push(Box::new(move || drop(reply.send(result))));
        });
        self.ensemble.requests.fetch_add(1, Ordering::Relaxed);
        self.ensemble.change(|world, fired| match world.sessions.get_mut(&id).filter(|state| !state.is_up()) {
            Some(cut_off) => cut_off.waiting.push(job),
            None => job(world, fired),
        });
        Box::pin(async move {
            answer.await.unwrap_or_else(|_| Err(Failure::Unknown("the ensemble was dropped".to_owned())))
        })
    }

    fn read<T: Send + 'static>(
        &self,
        path: &str,
        look: impl FnOnce(&Tree, &str) -> Result<T, Failure> + Send + 'static,
    ) -> Reply<T> {
        let (id, path) = (self.id, path.to_owned());
        self.request(false, move |world, _| look(world.tree_of(id), &path))
    }
}

#[async_trait]
impl Session for MemorySession {
    fn id(&self) -> i64 {
        self.id
    }

    fn timeout(&self) -> Duration {
        SESSION_TIMEOUT
    }

    fn lease(&self) -> &Arc<Lease> {
        &self.lease
    }

    async fn connected(&self) -> Result<(), Ending> {
        let link = self.link.clone().wait_for(|link| *link != Link::Down).await.map(|link| *link);
        match link {
            Ok(Link::Over(why)) => Err(why),
            Ok(_) => Ok(()),
            Err(_) => Err(self.lease.over().unwrap_or(Ending::Closed)),
        }
    }

    async fn over(&self) -> Ending {
        let link = self.link.clone().wait_for(|link| matches!(link, Link::Over(_))).await.map(|link| *link);
        match link {
            Ok(Link::Over(why)) => why,
            _ => self.lease.over().unwrap_or(Ending::Closed),
        }
    }

    fn create(&self, path: &str, data: &[u8], kind: Kind) -> Reply<Created> {
        let id = self.id;
        let create = [Operation::Create { path: path.to_owned(), data: data.to_vec(), kind }];
        self.request(true, move |world, fired| {
            let outcomes = world.apply(id, &create, fired).map_err(|(_, failure)| failure)?;
            let path = outcomes.into_iter().map(|(_, path)| path).next().unwrap_or_default();
            let node = world.tree.get(&path).ok_or(Failure::NoNode)?;
            Ok(Created { czxid: node.czxid, ephemeral_owner: node.owner, path })
        })
    }

    fn delete(&self, path: &str) -> Reply<()> {
        let id = self.id;
        let delete = [Operation::Delete { path: path.to_owned(), version: None }];
        self.request(true, move |world, fired| {
            world.apply(id, &delete, fired).map(drop).map_err(|(_, failure)| failure)
        })
    }

    fn children(&self, path: &str) -> Reply<Vec<String>> {
        self.read(path, |tree, path| {
            let exists = path == "/" || tree.contains_key(path);
            exists.then(|| children_of(tree, path)).ok_or(Failure::NoNode)
        })
    }

    fn data(&self, path: &str) -> Reply<(Vec<u8>, Stat)> {
        self.read(path, |tree, path| {
            let node = tree.get(path).ok_or(Failure::NoNode)?;
            let Node { czxid, version, ctime, owner, .. } = *node;
            Ok((node.data.clone(), Stat { czxid, version, ctime, ephemeral_owner: owner }))
        })
    }

    fn watch(&self, path: &str) -> Reply<Watch> {
        let (id, path, ensemble) = (self.id, path.to_owned(), Arc::downgrade(&self.ensemble));
        self.request(false, move |world, _| {
            let owner = world.tree_of(id).get(&path).ok_or(Failure::NoNode)?.owner;
            Ok(world.arm(id, path, ensemble).with_owner(owner))
        })
    }

    fn watch_children(&self, path: &str) -> Reply<(Vec<String>, Watch)> {
        let (id, path, ensemble) = (self.id, path.to_owned(), Arc::downgrade(&self.ensemble));
        self.request(false, move |world, _| {
            if path != "/" && !world.tree_of(id).contains_key(&path) {
                return Err(Failure::NoNode);
            }
            let names = children_of(world.tree_of(id), &path);
            Ok((names, world.arm(id, children_key(&path), ensemble)))
        })
    }

    fn sync(&self, _path: &str) -> Reply<()> {
        let id = self.id;
        self.request(false, move |world, fired| {
            world.refresh(id, fired);
            Ok(())
        })
    }

    fn transact(&self, operations: &[Operation]) -> Reply<Vec<Outcome>> {
        let (id, operations) = (self.id, operations.to_vec());
        self.request(true, move |world, fired| match world.apply(id, &operations, fired) {
            Ok(outcomes) => Ok(outcomes.into_iter().map(|(outcome, _)| outcome).collect()),
            Err((index, failure)) => Err(Failure::Operation { index, failure: Box::new(failure) }),
        })
    }

    fn spawn(&self, chore: Chore) {
        self.ensemble.executor.spawn(chore);
    }

    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        sleep(duration)
    }
}

impl fmt::Debug for MemorySession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemorySession").field("id", &self.id).field("lease", &self.lease).finish_non_exhaustive()
    }
}

impl Drop for MemorySession {
    /// Nobody can use it any more: it is closed, and its nodes go.
    fn drop(&mut self) {
        self.ensemble.change(|world, fired| world.expire(self.id, Ending::Closed, fired));
    }
}

/// Removes a watch that nobody waits for any more.
struct Disarm {
    ensemble: Weak<Ensemble>,
    session: i64,
    key: String,
    number: u64,
}

impl Drop for Disarm {
    fn drop(&mut self) {
        let Some(ensemble) = self.ensemble.upgrade() else {
            return;
        };
        let mut world = ensemble.world();
        let Some(state) = world.sessions.get_mut(&self.session) else {
            return;
        };
        if let Some(armed) = state.watches.get_mut(&self.key) {
            armed.retain(|armed| armed.number != self.number);
            if armed.is_empty() {
                state.watches.remove(&self.key);
            }
        }
    }
}

/// Runs chores on whatever thread made them ready: nothing happens in the background that a test did not cause.
#[derive(Default)]
struct Executor {
    chores: Mutex<Chores>,
    running: AtomicBool,
}

#[derive(Default)]
struct Chores {
    next: u64,
    pending: HashMap<u64, Chore>,
    ready: VecDeque<u64>,
}

impl Executor {
    fn spawn(self: &Arc<Self>, chore: Chore) {
        let number = {
            let mut chores = self.chores();
            chores.next += 1;
            let number = chores.next;
            chores.pending.insert(number, chore);
            number
        };
        self.ready(number);
    }

    fn ready(self: &Arc<Self>, number: u64) {
        self.chores().ready.push_back(number);
        // Whoever runs already will come to it; a chore may make others ready while it runs.
        while !self.chores().ready.is_empty() && !self.running.swap(true, Ordering::AcqRel) {
            let _running = Running(&self.running);
            self.run();
        }
    }

    fn run(self: &Arc<Self>) {
        loop {
            let Some((number, mut chore)) = self.next() else {
                return;
            };
            let waker = Waker::from(Arc::new(Ready { executor: Arc::downgrade(self), number }));
            // A task that has run for long would be told to come back later, and the chore would, here and now, for ever.
            let polled =
                std::pin::pin!(tokio::task::unconstrained(chore.as_mut())).poll(&mut Context::from_waker(&waker));
            if polled.is_pending() {
                self.chores().pending.insert(number, chore);
            }
        }
    }

    fn next(&self) -> Option<(u64, Chore)> {
        let mut chores = self.chores();
        loop {
            let number = chores.ready.pop_front()?;
            if let Some(chore) = chores.pending.remove(&number) {
                return Some((number, chore));
            }
        }
    }

    fn chores(&self) -> MutexGuard<'_, Chores> {
        self.chores.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Lets the next one run, also after a panic.
struct Running<'a>(&'a AtomicBool);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

struct Ready {
    executor: Weak<Executor>,
    number: u64,
}

impl Wake for Ready {
    fn wake(self: Arc<Self>) {
        if let Some(executor) = self.executor.upgrade() {
            executor.ready(self.number);
        }
    }
}
