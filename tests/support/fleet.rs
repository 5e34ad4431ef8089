//! A fleet of clients and an ensemble of limited capacity, in virtual time. Use it to measure requests and waits when
//! thousands of clients, more than a machine can run, reconnect at the same time.
//!
//! Locks, leases, heartbeats and the jitter before a reconnect are the library's own code, on the embedded ensemble.
//! The network and the servers are a model: requests wait in one queue, in order of arrival, and the servers carry out
//! a fixed number of them per second. A session that is silent for its timeout expires. A client that is cut off
//! retries at the same intervals as the client crate.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use zk_rwlock::Memory;
use zk_rwlock::coordinator::{
    AttemptFailure, Attempts, ConnectStep, ConnectTarget, Coordinator, Created, Failure, Kind, Lease, Operation,
    Outcome, Reply, Session, SessionEnd, SessionSlot, SessionStore, Stat, Task, Watch, WatchEvent, attempt_time_limit,
    keep_alive, new_session_jitter,
};

use super::polled::now;
use super::scene::Seeded;

/// A kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RequestKind {
    /// Opens a session.
    Session,
    /// Resumes a session on a new connection.
    Resume,
    /// Creates a contender's node in a queue.
    Create,
    List,
    /// Reads a node's data, or arms a watch.
    Read,
    /// Commits a transaction, for example a heartbeat's, or deletes a node.
    Write,
    /// Ends a session.
    End,
}

impl RequestKind {
    /// Returns whether a majority of the servers must agree to the request. Other requests are answered by one server
    /// alone.
    fn is_write(self) -> bool {
        !matches!(self, RequestKind::Resume | RequestKind::List | RequestKind::Read)
    }
}

/// The number of requests that an ensemble carries out per second.
#[derive(Clone, Copy, Debug)]
pub struct Capacity {
    /// Writes per second, if there are only writes.
    pub writes: u32,
    /// Reads per second, if there are only reads.
    pub reads: u32,
    /// Names per second in the replies to listings.
    pub names: u32,
}

/// The settings of a client.
#[derive(Clone, Copy, Debug)]
pub struct Habits {
    pub session_timeout: Duration,
    /// Whether a client waits a random time before it opens a new session, as the library does.
    pub pauses: bool,
}

/// The measurements of one second.
#[derive(Clone, Debug, Default)]
pub struct Second {
    /// The number of requests of each kind that were sent.
    pub asked: BTreeMap<RequestKind, u64>,
    /// The longest time between a request and its reply.
    pub longest_wait: Duration,
    /// The largest number of creates in progress at the same time.
    pub creates_under_way: u64,
}

impl Second {
    pub fn requests(&self) -> u64 {
        self.asked.values().sum()
    }
}

/// The servers: one queue of requests, and the sessions that the servers know.
pub struct Servers {
    capacity: Capacity,
    began: Instant,
    queue: Mutex<VecDeque<Request>>,
    came: Notify,
    seconds: Mutex<Vec<Second>>,
    creates_under_way: AtomicU64,
    entered: AtomicU64,
    sessions: Mutex<BTreeMap<i64, SessionRecord>>,
}

/// A function that carries a request out, and returns the number of names in the reply.
type Act = Box<dyn FnOnce() -> usize + Send>;

struct Request {
    asked: RequestKind,
    came: Instant,
    act: Act,
}

struct SessionRecord {
    heard: Instant,
    timeout: Duration,
    session: Weak<Line>,
    embedded: Memory,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Servers {
    /// Starts the servers. The clock of the runtime must be paused.
    pub fn start(capacity: Capacity) -> Arc<Servers> {
        let servers = Arc::new(Servers {
            capacity,
            began: Instant::now(),
            queue: Mutex::default(),
            came: Notify::new(),
            seconds: Mutex::default(),
            creates_under_way: AtomicU64::new(0),
            entered: AtomicU64::new(0),
            sessions: Mutex::default(),
        });
        // A reply must be sent in the same instant in which its request is carried out. Under tokio's cooperative budget
        // this task would yield after some requests, so the task runs without the budget.
        tokio::spawn(tokio::task::unconstrained(Arc::clone(&servers).work()));
        tokio::spawn(Arc::clone(&servers).give_up_the_silent());
        servers
    }

    /// Returns the measurements of each second so far.
    pub fn seconds(&self) -> Vec<Second> {
        locked(&self.seconds).clone()
    }

    /// Returns how many nodes of contenders were created so far.
    pub fn entered(&self) -> u64 {
        self.entered.load(Ordering::Relaxed)
    }

    /// Returns for how long the oldest request has waited.
    pub fn oldest(&self) -> Duration {
        locked(&self.queue).front().map_or(Duration::ZERO, |request| request.came.elapsed())
    }

    /// Elects a new leader, which gives every session its whole timeout again.
    pub fn new_leader(&self) {
        locked(&self.sessions).values_mut().for_each(|known| known.heard = Instant::now());
    }

    fn note(&self, note: impl FnOnce(&mut Second)) {
        let second = usize::try_from(self.began.elapsed().as_secs()).expect("a short run");
        let mut seconds = locked(&self.seconds);
        if seconds.len() <= second {
            seconds.resize_with(second + 1, Second::default);
        }
        note(&mut seconds[second]);
    }

    fn ask(&self, asked: RequestKind, act: Act) {
        let under_way = match asked {
            RequestKind::Create => self.creates_under_way.fetch_add(1, Ordering::Relaxed) + 1,
            _ => 0,
        };
        self.note(|second| {
            *second.asked.entry(asked).or_default() += 1;
            second.creates_under_way = second.creates_under_way.max(under_way);
        });
        locked(&self.queue).push_back(Request { asked, came: Instant::now(), act });
        self.came.notify_one();
    }

    /// Carries out the requests one after another, at the rate of the servers' [`Capacity`].
    async fn work(self: Arc<Self>) {
        let each = |a_second: u32| Duration::from_secs(1) / a_second;
        let (write, read, name) =
            (each(self.capacity.writes), each(self.capacity.reads), 1.0 / f64::from(self.capacity.names));
        let mut is_free = Instant::now();
        loop {
            let next = locked(&self.queue).pop_front();
            let Some(Request { asked, came, act }) = next else {
                self.came.notified().await;
                continue;
            };
            is_free = is_free.max(came);
            if is_free > Instant::now() {
                sleep_until(is_free).await;
            }
            let names = act();
            is_free += if asked.is_write() { write } else { read } + Duration::from_secs_f64(names as f64 * name);
            if asked == RequestKind::Create {
                self.creates_under_way.fetch_sub(1, Ordering::Relaxed);
            }
            self.note(|second| second.longest_wait = second.longest_wait.max(came.elapsed()));
        }
    }

    async fn give_up_the_silent(self: Arc<Self>) {
        loop {
            sleep(Duration::from_secs(1)).await;
            let now = Instant::now();
            let mut sessions = locked(&self.sessions);
            let silent = sessions.iter().filter(|(_, known)| known.heard + known.timeout < now);
            let silent: Vec<_> = silent.map(|(id, _)| *id).collect();
            let silent: Vec<_> = silent.into_iter().filter_map(|id| sessions.remove(&id)).collect();
            drop(sessions);
            for known in silent {
                let end = move || {
                    known.embedded.faults().expire();
                    if let Some(session) = known.session.upgrade().filter(|session| session.is_up()) {
                        session.expire();
                    }
                    0
                };
                self.ask(RequestKind::End, Box::new(end));
            }
        }
    }

    /// Records the present time as the last sign of life of the session. Returns whether the session exists.
    fn hears(&self, session: i64) -> bool {
        let mut sessions = locked(&self.sessions);
        let known = sessions.get_mut(&session);
        known.map(|known| known.heard = Instant::now()).is_some()
    }
}

/// One process of the fleet.
#[derive(Clone)]
pub struct Process(Arc<Client>);

struct Client {
    servers: Arc<Servers>,
    ensemble: Memory,
    habits: Habits,
    is_reachable: AtomicBool,
    dice: Mutex<Seeded>,
    line: Mutex<Option<Arc<Line>>>,
    opening: tokio::sync::Mutex<()>,
}

/// The number of addresses of the servers.
const ADDRESSES: u16 = 3;

impl Client {
    fn random(&self, below: u64) -> u64 {
        locked(&self.dice).below(below)
    }

    /// Returns the attempts of a client that has tried no address yet.
    fn attempts(&self) -> Attempts {
        let timeout = self.habits.session_timeout;
        let mut attempts = Attempts::new(timeout, attempt_time_limit(timeout));
        let addresses: Vec<_> = (1..=ADDRESSES).map(|port| Some(([127, 0, 0, 1], port).into())).collect();
        attempts.record_addresses(0, &addresses, || self.random(u64::MAX));
        attempts
    }

    /// Waits until the next attempt may begin, as the library does. Returns the attempt's address, and how long it may take.
    async fn next(&self, attempts: &mut Attempts, began: Instant) -> (ConnectTarget, Duration) {
        loop {
            match attempts.next_step(began.elapsed()) {
                ConnectStep::Attempt(target, limit) => return (target, limit),
                ConnectStep::Pause(pause) => sleep(pause).await,
            }
        }
    }

    fn why_failed(&self) -> AttemptFailure {
        if self.is_reachable.load(Ordering::Relaxed) { AttemptFailure::Silent } else { AttemptFailure::Refused }
    }

    /// Tries to open a session. Returns `None` if no server is reachable or none replies within `silence`.
    async fn open_once(self: &Arc<Self>, silence: Duration) -> Option<Arc<Line>> {
        if !self.is_reachable.load(Ordering::Relaxed) {
            return None;
        }
        let (reply, answer) = oneshot::channel();
        let (client, asked) = (Arc::clone(self), Instant::now());
        let open = move || {
            // If the client has stopped waiting for the reply, the session remains until it expires.
            let line = Line::open(&client, asked);
            drop(reply.send(line));
            0
        };
        self.servers.ask(RequestKind::Session, Box::new(open));
        timeout(silence, answer).await.ok()?.ok()
    }

    /// Opens a session as `open_or_resume_session` in `src/zookeeper/connect.rs` does. The library's code decides about the
    /// attempts, and computes the pauses between the rounds.
    async fn open(self: &Arc<Self>, lost: Option<(Duration, Duration)>) -> Arc<Line> {
        let lost = lost.filter(|_| self.habits.pauses);
        let pause = |away| new_session_jitter(away, self.habits.session_timeout, self.random(u64::MAX));
        let answered = lost.map(|(away, ago)| {
            Instant::now().checked_sub(away + ago).expect("the loss is after the start of the clock")
        });
        if let Some((away, ago)) = lost {
            sleep(pause(away).saturating_sub(ago)).await;
        }
        let (mut attempts, began) = (self.attempts(), Instant::now());
        loop {
            let (target, limit) = self.next(&mut attempts, began).await;
            if let Some(line) = self.open_once(limit).await {
                return line;
            }
            attempts.record_failure(target, self.why_failed(), began.elapsed());
            if let Some(answered) = answered.filter(|_| attempts.is_round_over()) {
                sleep(pause(answered.elapsed())).await;
                attempts.record_pause();
            }
        }
    }
}

impl Process {
    pub fn new(servers: &Arc<Servers>, ensemble: &Memory, habits: Habits, seed: u64) -> Process {
        Process(Arc::new(Client {
            servers: Arc::clone(servers),
            ensemble: ensemble.clone(),
            habits,
            is_reachable: AtomicBool::new(true),
            dice: Mutex::new(Seeded(seed)),
            line: Mutex::default(),
            opening: tokio::sync::Mutex::default(),
        }))
    }

    /// Breaks the connection. The process retries immediately, but reaches no server until [`Process::heal`].
    pub fn cut(&self) {
        self.0.is_reachable.store(false, Ordering::Relaxed);
        self.disconnect();
    }

    /// Breaks the connection. The process can reconnect immediately.
    pub fn disconnect(&self) {
        if let Some(line) = locked(&self.0.line).clone() {
            line.lose_connection();
        }
    }

    pub fn is_connected(&self) -> bool {
        locked(&self.0.line).as_ref().is_some_and(|line| line.is_up())
    }

    pub fn heal(&self) {
        self.0.is_reachable.store(true, Ordering::Relaxed);
    }
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Process")
    }
}

#[async_trait]
impl Coordinator for Process {
    async fn session_slot(&self, _own_bytes: usize) -> Result<SessionSlot, Failure> {
        loop {
            let alone = self.0.opening.lock().await;
            let line = locked(&self.0.line).clone();
            let alive = line.as_ref().filter(|line| line.lease().ending().is_none()).cloned();
            let line = match alive {
                Some(line) => line,
                None => {
                    let away = line.and_then(|line| {
                        line.lease()
                            .last_answered_sent_at_and_end()
                            .map(|(answered, ended)| (ended - answered, line.lease().now() - ended))
                    });
                    let line = self.0.open(away).await;
                    *locked(&self.0.line) = Some(Arc::clone(&line));
                    line
                }
            };
            drop(alone);
            if line.store().until_connected().await.is_ok() {
                return Ok(SessionSlot::new(line));
            }
        }
    }

    async fn close(&self) {}

    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(sleep(duration))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Link {
    Up,
    Down,
    Over,
}

/// One session of a client, and its connection.
struct Line {
    client: Weak<Client>,
    servers: Arc<Servers>,
    session: Arc<dyn Session>,
    store: Arc<SessionStore>,
    timeout: Duration,
    /// The state of the connection, and the number of connections that have broken so far.
    link: watch::Sender<(Link, u64)>,
    /// Requests that wait for a connection.
    held: Mutex<Vec<(RequestKind, Act)>>,
    answered: Mutex<Instant>,
    this: Weak<Line>,
}

impl Line {
    fn open(client: &Arc<Client>, asked: Instant) -> Arc<Line> {
        let embedded = client.ensemble.connect();
        let slot = now(embedded.session_slot(0)).expect("the embedded ensemble is there");
        let (session, timeout) = (Arc::clone(slot.session()), client.habits.session_timeout);
        // The library's lease uses the time 0 to mean "expired", so the clock begins at one second.
        let clock = move || asked.elapsed() + Duration::from_secs(1);
        let store = Arc::new(SessionStore::new(Lease::with_clock(timeout, Box::new(clock))));
        store.record_begin(Duration::from_secs(1));
        let line = Arc::new_cyclic(|this| Line {
            client: Arc::downgrade(client),
            servers: Arc::clone(&client.servers),
            session,
            store,
            timeout,
            link: watch::channel((Link::Up, 0)).0,
            held: Mutex::default(),
            answered: Mutex::new(asked),
            this: Weak::clone(this),
        });
        let known = SessionRecord { heard: Instant::now(), timeout, session: Arc::downgrade(&line), embedded };
        locked(&client.servers.sessions).insert(line.session.id(), known);
        let shared: Arc<dyn Session> = line.clone();
        tokio::spawn(keep_alive(Arc::downgrade(&shared), Duration::from_millis(5)));
        line
    }

    fn is_up(&self) -> bool {
        self.link.borrow().0 == Link::Up
    }

    fn expire(&self) {
        self.store.record_end_and_report(SessionEnd::Expired);
        self.link.send_modify(|link| link.0 = Link::Over);
        locked(&self.held).clear();
    }

    fn lose_connection(&self) {
        if !self.is_up() {
            return;
        }
        self.store.set_connected(false);
        self.link.send_modify(|link| *link = (Link::Down, link.1 + 1));
        if let Some(line) = self.this.upgrade() {
            tokio::spawn(line.resume());
        }
    }

    /// Reconnects as the library does, until the library would take the session for expired.
    async fn resume(self: Arc<Self>) {
        let Some(client) = self.client.upgrade() else { return };
        let spread = new_session_jitter(self.timeout / 2, self.timeout, client.random(u64::MAX));
        let until = *locked(&self.answered) + self.timeout * 7 / 5 + spread;
        let mut attempts = client.attempts();
        drop(client);
        let began = Instant::now();
        loop {
            let Some(client) = self.client.upgrade() else { return };
            if Instant::now() > until {
                return self.expire();
            }
            let (target, limit) = client.next(&mut attempts, began).await;
            let handshake = self.lease().now();
            if client.is_reachable.load(Ordering::Relaxed) {
                let (reply, answer) = oneshot::channel();
                let (servers, id) = (Arc::clone(&self.servers), self.session.id());
                let resume = move || {
                    let _has_given_up = reply.send(servers.hears(id));
                    0
                };
                self.servers.ask(RequestKind::Resume, Box::new(resume));
                match timeout(limit, answer).await {
                    Ok(Ok(true)) => return self.finish_resume(handshake).await,
                    Ok(Ok(false)) => return self.expire(),
                    _ => {}
                }
            }
            attempts.record_failure(target, client.why_failed(), began.elapsed());
        }
    }

    /// Sends the requests that follow each reconnect: a transaction, and a read for each watched path, of which a
    /// contender has two.
    async fn finish_resume(self: Arc<Self>, handshake: Duration) {
        *locked(&self.answered) = Instant::now();
        self.store.record_resume(handshake);
        for _ in 0..2 {
            self.servers.ask(RequestKind::Read, Box::new(|| 0));
        }
        self.link.send_modify(|link| link.0 = Link::Up);
        self.store.set_connected(true);
        for (asked, act) in std::mem::take(&mut *locked(&self.held)) {
            self.servers.ask(asked, act);
        }
        // This is the check-only transaction that the library sends first after a reconnect.
        drop(self.sync("/").await);
    }

    fn ask<T: Send + 'static>(
        &self,
        asked: RequestKind,
        names: fn(&T) -> usize,
        ask: impl FnOnce(&dyn Session) -> Reply<T> + Send + 'static,
    ) -> Reply<T> {
        let (reply, answer) = oneshot::channel();
        let (line, sent, mut link) = (Weak::clone(&self.this), self.lease().now(), self.link.subscribe());
        let (state, connection) = *link.borrow_and_update();
        let session = Arc::clone(&self.session);
        let act = move || {
            let answer = now(ask(&*session));
            let Some(line) = line.upgrade() else { return 0 };
            let is_heard = line.servers.hears(session.id()) && line.is_up();
            if is_heard && !matches!(answer, Err(Failure::Over(_))) {
                *locked(&line.answered) = Instant::now();
                match asked.is_write() {
                    true => line.store.record_quorum_answer(sent),
                    false => line.store.record_answer(sent),
                }
            }
            if asked == RequestKind::Create && answer.is_ok() {
                line.servers.entered.fetch_add(1, Ordering::Relaxed);
            }
            let names = answer.as_ref().map_or(0, names);
            drop(reply.send(answer));
            names
        };
        match state {
            Link::Up => self.servers.ask(asked, Box::new(act)),
            Link::Down => locked(&self.held).push((asked, Box::new(act))),
            Link::Over => return Box::pin(std::future::ready(Err(Failure::Over(SessionEnd::Expired)))),
        }
        Box::pin(async move {
            let breaks = link.wait_for(|(state, now)| *state == Link::Over || *now > connection);
            tokio::select! {
                biased;
                answer = answer => answer.unwrap_or(Err(Failure::Over(SessionEnd::Expired))),
                broken = breaks => Err(match broken.map(|link| link.0) {
                    Ok(Link::Down | Link::Up) => Failure::Unknown("the connection broke".to_owned()),
                    _ => Failure::Over(SessionEnd::Expired),
                }),
            }
        })
    }

    fn read<T: Send + 'static>(&self, ask: impl FnOnce(&dyn Session) -> Reply<T> + Send + 'static) -> Reply<T> {
        self.ask(RequestKind::Read, |_| 0, ask)
    }

    fn write<T: Send + 'static>(&self, ask: impl FnOnce(&dyn Session) -> Reply<T> + Send + 'static) -> Reply<T> {
        self.ask(RequestKind::Write, |_| 0, ask)
    }

    /// Returns a watch whose event arrives only when the session is connected.
    fn over_the_wire(line: Weak<Line>, watch: Watch) -> Watch {
        Box::pin(async move {
            let event = watch.await;
            let Some(line) = line.upgrade() else { return event };
            if line.store().until_connected().await.is_ok() { event } else { WatchEvent::Over }
        })
    }
}

impl fmt::Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Line").field("id", &self.session.id()).finish_non_exhaustive()
    }
}

impl Session for Line {
    fn id(&self) -> i64 {
        self.session.id()
    }

    fn timeout(&self) -> Duration {
        self.timeout
    }

    fn store(&self) -> &Arc<SessionStore> {
        &self.store
    }

    fn create(&self, path: &str, data: &[u8], kind: Kind) -> Reply<Created> {
        let (path, data) = (path.to_owned(), data.to_vec());
        let asked = if kind == Kind::EphemeralSequential { RequestKind::Create } else { RequestKind::Write };
        self.ask(asked, |_| 0, move |session| session.create(&path, &data, kind))
    }

    fn delete(&self, path: &str) -> Reply<()> {
        let path = path.to_owned();
        self.write(move |session| session.delete(&path))
    }

    fn children_and_stat(&self, path: &str) -> Reply<(Vec<String>, Option<Stat>)> {
        let path = path.to_owned();
        self.ask(RequestKind::List, |(names, _)| names.len(), move |session| session.children_and_stat(&path))
    }

    fn data(&self, path: &str) -> Reply<(Vec<u8>, Stat)> {
        let path = path.to_owned();
        self.read(move |session| session.data(&path))
    }

    fn watch(&self, path: &str) -> Reply<Watch> {
        let (path, line) = (path.to_owned(), Weak::clone(&self.this));
        self.read(move |session| {
            let armed = now(session.watch(&path)).map(|watch| Line::over_the_wire(line, watch));
            Box::pin(std::future::ready(armed))
        })
    }

    fn watch_children(&self, path: &str) -> Reply<(Vec<String>, Watch)> {
        let (path, line) = (path.to_owned(), Weak::clone(&self.this));
        let armed = self.ask(
            RequestKind::List,
            |(names, _): &(Vec<_>, Watch)| names.len(),
            move |session| session.watch_children(&path),
        );
        Box::pin(async move {
            let (names, watch) = armed.await?;
            Ok((names, Line::over_the_wire(line, watch)))
        })
    }

    fn transact(&self, operations: &[Operation]) -> Reply<Vec<Outcome>> {
        let operations = operations.to_vec();
        self.write(move |session| session.transact(&operations))
    }

    fn spawn(&self, task: Task) {
        tokio::spawn(task);
    }

    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(sleep(duration))
    }
}
