//! A swarm of clients that read and write under locks while faults occur, and a check that the results are
//! linearizable. Each path is judged as a register. Some are plain nodes, which are read under a guard and written by
//! guarded transactions. The others are shared values. Some clients keep their nodes between uses.
//!
//! A value that was read under a lock must be the newest value for as long as the guard says "held". So each moment at
//! which a guard was held is recorded as a read of that value. The wait for a lock is no operation.
//!
//! `SWARM_SEED`, `LINEAR_SECONDS` and `SWARM_SERVERS` (1 or 3) configure the run. `make soak` runs five minutes with
//! one server and five with three.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Display;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use support::copy::Copied;
use support::replay::Run;
use support::safe;
use support::scene::{CALM, Seeded, eventually};
use support::standstill::Stint;
use support::trace;
use support::wire::Proxy;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use zk_rwlock::{Error, RwLock, Shared, ZooKeeper};

use crate::faults::{Site, fail_links, fail_servers, seed, setting};
use crate::judge::{Event, Op, falsified, is_followed, serialized};
use crate::swarm::cut_short;
use crate::traces::replayed;

/// The prefix of the paths whose acquisitions are traced.
const TRACED: [&str; 1] = ["/linear/"];
const GUARDED: [&str; 2] = ["/linear/shared-", "/linear-"];
const CLIENTS: usize = 5;
/// The number of concurrent operations of each client.
const HANDS: usize = 2;
const LINK_STRANDS: usize = 2;
/// The number of [`Cell`]s in use at the same time. With a single cell, a holder that is cut off would block all
/// clients.
const LANES: usize = 4;
/// The number of operations on a [`Cell`]. After that many, all clients go on to another cell. The number is small,
/// because the judge's search takes longer than the operations themselves.
const OPERATIONS: usize = 60;
const PATIENCE: Duration = Duration::from_secs(3);
const JUDGED_WITHIN: Duration = Duration::from_secs(300);
/// The number of operations that a run must have. With fewer operations, a run tests too little.
const ENOUGH: usize = 100;
/// The value that stands for "the update has read no value yet".
const NOTHING: u64 = u64::MAX;

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Two registers with their histories: a node that is written only under its lock (`bare`), and a shared value
/// (`shared`).
#[derive(Default)]
struct Cell {
    /// The index of the cell. Modulo [`LANES`] it is the index of the cell's lane: a series of cells that are used one
    /// after another.
    number: usize,
    bare: Mutex<Vec<Event>>,
    shared: Mutex<Vec<Event>>,
    /// The values that each client's local copy has shown, in order, by the index of the client.
    looks: Mutex<BTreeMap<usize, Vec<u64>>>,
}

impl Cell {
    fn is_full(&self) -> bool {
        locked(&self.bare).len().max(locked(&self.shared).len()) >= OPERATIONS
    }
}

/// A cell, and one client's handles of its lock and its shared value.
struct Open {
    cell: Arc<Cell>,
    lock: RwLock,
    register: String,
    shared: Copied<u64>,
}

struct Client {
    number: usize,
    proxies: Vec<Proxy>,
    zk: ZooKeeper,
    /// How long the client keeps an idle node, or `None` if it keeps no nodes.
    keeps: Option<Duration>,
    /// The client's handles for the current cell of each lane.
    open: Mutex<[Option<Arc<Open>>; LANES]>,
}

impl Client {
    fn open(&self, cell: Arc<Cell>) -> Arc<Open> {
        let open = &mut locked(&self.open)[cell.number % LANES];
        if let Some(open) = open.as_ref().filter(|open| open.cell.number == cell.number) {
            return Arc::clone(open);
        }
        let path = |kind: &str| format!("/linear/{kind}-{}", cell.number);
        let lock = RwLock::builder(&self.zk, path("lock"));
        let shared = Shared::builder(&self.zk, path("shared")).initial(|| 0);
        let (lock, shared) = match self.keeps {
            Some(idle) => (lock.keep(idle), shared.lock(|lock| lock.keep(idle))),
            None => (lock, shared),
        };
        let (lock, shared) = (lock.build().expect("valid"), shared.build().expect("valid"));
        let register = format!("/linear-{}", cell.number);
        Arc::clone(open.insert(Arc::new(Open { cell, lock, register, shared: Copied::of(&shared) })))
    }
}

struct World {
    site: Arc<Site>,
    clients: Vec<Client>,
    began: Instant,
    cells: Mutex<Vec<Arc<Cell>>>,
    /// The next value to write. No value is written twice.
    values: AtomicU64,
    seen: Mutex<BTreeMap<String, u64>>,
    surprises: Mutex<Vec<String>>,
}

impl World {
    async fn build(servers: u64, dice: &mut Seeded) -> World {
        let site = Site::start(servers).await;
        let addresses = site.addresses();
        let mut clients = Vec::new();
        for number in 0..CLIENTS {
            let proxies: Vec<_> = addresses.iter().map(Proxy::start).collect();
            let through: Vec<_> = proxies.iter().map(Proxy::address).collect();
            let session_timeout = Duration::from_secs([1, 2, 4][dice.below(3) as usize]);
            let builder = ZooKeeper::builder().session_timeout(session_timeout).connect_timeout(CALM);
            let zk = builder.connect(&through.join(",")).await.expect("nothing fails yet");
            let idle = [Duration::from_millis(100), Duration::MAX][dice.below(2) as usize];
            let keeps = number.is_multiple_of(2).then_some(idle);
            clients.push(Client { number, proxies, zk, keeps, open: Mutex::default() });
        }
        World {
            site,
            clients,
            began: Instant::now(),
            cells: Mutex::new((0..LANES).map(|number| Arc::new(Cell { number, ..Cell::default() })).collect()),
            values: AtomicU64::new(1),
            seen: Mutex::default(),
            surprises: Mutex::default(),
        }
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    fn value(&self) -> u64 {
        self.values.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns the current cell of this lane. Begins the next cell if the current one is full.
    fn cell(&self, lane: usize) -> Arc<Cell> {
        let mut cells = locked(&self.cells);
        let last = cells.iter().rfind(|cell| cell.number % LANES == lane).expect("each lane has a cell");
        if !last.is_full() {
            return Arc::clone(last);
        }
        let next = Arc::new(Cell { number: last.number + LANES, ..Cell::default() });
        cells.push(Arc::clone(&next));
        next
    }

    fn saw(&self, what: impl Display) {
        *locked(&self.seen).entry(what.to_string()).or_default() += 1;
    }

    /// Counts an error by its kind. Also records the error as a surprise if no fault of the swarm explains it.
    fn failed(&self, doing: &str, error: &Error) {
        let kind = match error {
            Error::Timeout { .. } => "timeout",
            Error::Lost(_) => "lost",
            Error::Evicted(_) => "evicted",
            Error::Unreachable(_) => "unreachable",
            Error::OutcomeUnknown { .. } => "outcome unknown",
            _ => {
                locked(&self.surprises).push(format!("{doing}: {error}"));
                "other"
            }
        };
        self.saw(format_args!("{doing}: {kind}"));
    }
}

// ----------------------------------------------------------------------------------------------------- What clients do

/// One of a client's concurrent workers.
struct Hand<'w> {
    world: &'w World,
    who: usize,
    dice: Seeded,
}

impl Hand<'_> {
    async fn work(mut self, client: &Client, end: Instant) {
        while Instant::now() < end {
            let lane = self.dice.below(LANES as u64) as usize;
            let open = client.open(self.world.cell(lane));
            match self.dice.below(12) {
                0..=2 => self.read_bare(&open).await,
                3..=4 => self.write_bare(&open).await,
                5..=7 => self.read_shared(&open).await,
                8 => self.write_shared(&open).await,
                9 => self.put_shared(&open).await,
                10 => self.update_shared(&open).await,
                _ => {}
            }
            self.look(&open, client.number);
            sleep(Duration::from_millis(self.dice.below(10))).await;
        }
    }

    fn limit(&mut self) -> Duration {
        Duration::from_millis(20 + self.dice.below(3_000))
    }

    /// Awaits an acquisition, or drops it at a random one of its awaits.
    async fn acquired<G>(&mut self, doing: &str, acquisition: impl Future<Output = Result<G, Error>>) -> Option<G> {
        let polls = if self.dice.below(8) == 0 { self.dice.below(6) } else { u64::MAX };
        match cut_short(acquisition, polls).await {
            Some(Ok(guard)) => {
                self.world.saw(format_args!("{doing}: granted"));
                return Some(guard);
            }
            Some(Err(error)) => self.world.failed(doing, &error),
            None => self.world.saw(format_args!("{doing}: dropped")),
        }
        None
    }

    /// Records an operation that began at `from` and ends now.
    fn did(&self, book: &Mutex<Vec<Event>>, op: Op, from: Duration) {
        locked(book).push(Event { who: self.who, op, from, until: Some(self.world.now()) });
    }

    /// Records an operation of unknown outcome that began at `from`.
    fn may_do(&self, book: &Mutex<Vec<Event>>, op: Op, from: Duration) {
        locked(book).push(Event { who: self.who, op, from, until: None });
    }

    /// Records reads of the value `saw`, each at a moment at which the lock is held. No other client may change the
    /// value meanwhile.
    async fn holds(&mut self, book: &Mutex<Vec<Event>>, saw: u64, is_held: impl Fn() -> bool) {
        for _ in 0..1 + self.dice.below(3) {
            let from = self.world.now();
            if is_held() {
                self.did(book, Op::Read { saw }, from);
            }
            let longest = if self.dice.below(80) == 0 { 3_000 } else { 5 };
            sleep(Duration::from_millis(self.dice.below(longest))).await;
        }
    }

    /// Records a write by the outcome of its commit. Returns whether the write was done.
    fn committed<T>(
        &self,
        book: &Mutex<Vec<Event>>,
        (op, from): (Op, Duration),
        answer: Option<Result<T, Error>>,
    ) -> bool {
        match answer {
            Some(Ok(_)) => {
                self.did(book, op, from);
                self.world.saw("commit: done");
                return true;
            }
            Some(Err(error)) => {
                if matches!(error, Error::OutcomeUnknown { .. }) {
                    self.may_do(book, op, from);
                }
                self.world.failed("commit", &error);
            }
            None => {
                self.may_do(book, op, from);
                self.world.saw("commit: dropped");
            }
        }
        false
    }

    async fn read_bare(&mut self, open: &Open) {
        let acquisition = open.lock.read().timeout(self.limit());
        let Some(guard) = self.acquired("read", async { acquisition.await }).await else { return };
        let from = self.world.now();
        match timeout(PATIENCE, guard.read_node(&open.register)).await {
            Ok(Ok(node)) => {
                let saw = node.map_or(0, |node| number(&node.data));
                self.did(&open.cell.bare, Op::Read { saw }, from);
                self.holds(&open.cell.bare, saw, || guard.is_held()).await;
            }
            Ok(Err(error)) => self.world.failed("data", &error),
            Err(_) => self.world.saw("data: dropped"),
        }
    }

    async fn write_bare(&mut self, open: &Open) {
        let acquisition = open.lock.write().timeout(self.limit());
        let Some(guard) = self.acquired("write", async { acquisition.await }).await else { return };
        let from = self.world.now();
        let node = match timeout(PATIENCE, guard.read_node(&open.register)).await {
            Ok(Ok(node)) => node,
            Ok(Err(error)) => return self.world.failed("data", &error),
            Err(_) => return self.world.saw("data: dropped"),
        };
        let (saw, wrote) = (node.as_ref().map_or(0, |node| number(&node.data)), self.world.value());
        let (transaction, data) = (guard.transaction(), wrote.to_string());
        let transaction = match node {
            Some(_) => transaction.set(&open.register, data),
            None => transaction.create(&open.register, data),
        };
        let answer = timeout(PATIENCE, transaction.commit()).await.ok();
        if self.committed(&open.cell.bare, (Op::Swap { saw, wrote }, from), answer) {
            self.holds(&open.cell.bare, wrote, || guard.is_held()).await;
        }
    }

    async fn read_shared(&mut self, open: &Open) {
        let acquisition = open.shared.read().timeout(self.limit());
        let Some(guard) = self.acquired("shared read", async { acquisition.await }).await else { return };
        self.holds(&open.cell.shared, *guard, || guard.lock().is_held()).await;
    }

    async fn write_shared(&mut self, open: &Open) {
        let acquisition = open.shared.write().timeout(self.limit());
        let Some(mut guard) = self.acquired("shared write", async { acquisition.await }).await else { return };
        let (from, saw, wrote) = (self.world.now(), *guard, self.world.value());
        *guard = wrote;
        let answer = timeout(PATIENCE, guard.commit()).await.ok();
        if self.committed(&open.cell.shared, (Op::Swap { saw, wrote }, from), answer) {
            self.holds(&open.cell.shared, wrote, || guard.lock().is_held()).await;
        }
    }

    async fn put_shared(&mut self, open: &Open) {
        let wrote = self.world.value();
        let acquisition = open.shared.write().replacing(wrote).timeout(self.limit());
        let Some(mut guard) = self.acquired("shared replace", async { acquisition.await }).await else { return };
        let from = self.world.now();
        let answer = timeout(PATIENCE, guard.commit()).await.ok();
        if self.committed(&open.cell.shared, (Op::Put { wrote }, from), answer) {
            self.holds(&open.cell.shared, wrote, || guard.lock().is_held()).await;
        }
    }

    async fn update_shared(&mut self, open: &Open) {
        let (from, wrote, last) = (self.world.now(), self.world.value(), Arc::new(AtomicU64::new(NOTHING)));
        let seen = Arc::clone(&last);
        let change = move |value: &mut u64| {
            seen.store(*value, Ordering::SeqCst);
            *value = wrote;
        };
        let update = open.shared.update(change).timeout(self.limit());
        let polls = if self.dice.below(4) == 0 { self.dice.below(12) } else { u64::MAX };
        let answer = cut_short(async { update.await }, polls).await;
        let saw = last.load(Ordering::SeqCst);
        if saw != NOTHING {
            self.committed(&open.cell.shared, (Op::Swap { saw, wrote }, from), answer);
        } else if let Some(Err(error)) = answer {
            self.world.failed("update", &error);
        }
    }

    /// Records the value that the client's local copy shows now. A copy may lag, so these values are judged apart.
    fn look(&self, open: &Open, client: usize) {
        let mut looks = locked(&open.cell.looks);
        if let Some(value) = open.shared.latest() {
            looks.entry(client).or_default().push(**value);
        }
    }
}

fn number(data: &[u8]) -> u64 {
    std::str::from_utf8(data).ok().and_then(|text| text.parse().ok()).expect("every written value is a number")
}

// -------------------------------------------------------------------------------------------------- The run of a swarm

async fn safety_phase(world: &Arc<World>, dice: &mut Seeded, end: Instant) {
    let mut tasks = JoinSet::new();
    for who in 0..CLIENTS * HANDS {
        let (world, dice) = (Arc::clone(world), Seeded(dice.below(u64::MAX)));
        tasks.spawn(async move {
            let client = &world.clients[who % CLIENTS];
            Hand { world: &world, who, dice }.work(client, end).await;
        });
    }
    for _ in 0..LINK_STRANDS {
        let (world, dice) = (Arc::clone(world), Seeded(dice.below(u64::MAX)));
        tasks.spawn(async move {
            let links: Vec<&[Proxy]> = world.clients.iter().map(|client| &client.proxies[..]).collect();
            fail_links(&links, &|what: &str| world.saw(what), dice, end).await;
        });
    }
    let servers_world = Arc::clone(world);
    let saw = move |what: &str| servers_world.saw(what);
    tasks.spawn(fail_servers(Arc::clone(&world.site), saw, Seeded(dice.below(u64::MAX)), end));
    while let Some(ended) = tasks.join_next().await {
        ended.expect("nothing panics");
    }
}

/// The verdict on all cells.
#[derive(Default)]
struct Verdict {
    /// The name of the history that is being searched, for the message if the search does not end in time.
    searched: Arc<Mutex<String>>,
    faults: Vec<String>,
    histories: usize,
    operations: usize,
    unknown: usize,
    looks: usize,
    /// The number of falsified histories that the judge refused, by the kind of falsification.
    refused: BTreeMap<&'static str, usize>,
}

impl Verdict {
    fn of(cells: &[Arc<Cell>], searched: Arc<Mutex<String>>) -> Verdict {
        let mut verdict = Verdict { searched, ..Verdict::default() };
        for cell in cells {
            verdict.judge(&format!("the node under lock {}", cell.number), &locked(&cell.bare));
            let shared = locked(&cell.shared);
            let written = verdict.judge(&format!("shared value {}", cell.number), &shared);
            for (client, looks) in &*locked(&cell.looks) {
                // If only a copy has shown the value of a write of unknown outcome, `written` lacks the value, so it is
                // left out here.
                let looks: Vec<u64> = looks.iter().copied().filter(|saw| *saw == 0 || written.contains(saw)).collect();
                verdict.looks += looks.len();
                *locked(&verdict.searched) = format!("client {client}: {looks:?} of {written:?}");
                if !is_followed(&written, &looks) {
                    let what = format!("client {client}'s copy of shared value {} went back", cell.number);
                    verdict.faults.push(format!("{what}: {looks:?} of {written:?}"));
                }
            }
        }
        verdict
    }

    /// Judges one history. Returns the values of its writes in order.
    fn judge(&mut self, what: &str, events: &[Event]) -> Vec<u64> {
        self.histories += 1;
        self.operations += events.len();
        self.unknown += events.iter().filter(|event| event.until.is_none()).count();
        *locked(&self.searched) = format!("{what}: {events:#?}");
        let Some(written) = serialized(events) else {
            let lines: Vec<String> = events.iter().map(|event| format!("  {event:?}\n")).collect();
            self.faults.push(format!("no order of the operations explains {what}:\n{}", lines.concat()));
            return Vec::new();
        };
        // Tests the judge too: it must refuse falsified copies of the first 12 histories, and of later ones until three
        // kinds of falsification have been refused.
        let few = self.histories <= 12 || self.refused.len() < 3;
        for (how, wrong) in falsified(events).into_iter().filter(|_| few) {
            *locked(&self.searched) = format!("{how} in {what}: {wrong:#?}");
            match serialized(&wrong) {
                None => *self.refused.entry(how).or_default() += 1,
                Some(_) => self.faults.push(format!("{how} in {what} was not found")),
            }
        }
        written
    }
}

async fn verdict(world: &World) -> Verdict {
    let (cells, searched) = (locked(&world.cells).clone(), Arc::default());
    let judged = tokio::task::spawn_blocking({
        let searched = Arc::clone(&searched);
        move || Verdict::of(&cells, searched)
    });
    let Ok(verdict) = timeout(JUDGED_WITHIN, judged).await else {
        panic!("the search does not end: {}", locked(&searched));
    };
    verdict.expect("the judge does not panic")
}

async fn swarm(seed: u64, seconds: u64, servers: u64) {
    let replay = format!(
        "SWARM_SEED={seed} LINEAR_SECONDS={seconds} SWARM_SERVERS={servers} cargo test -p zk-rwlock-tests --test crowd linear::"
    );
    println!("{replay}");
    trace::record(&TRACED);
    let mut dice = Seeded(seed);
    let world = Arc::new(World::build(servers, &mut dice).await);
    let stint = Stint::begin(Duration::from_secs(seconds));
    let verdict = loop {
        safety_phase(&world, &mut dice, Instant::now() + Duration::from_secs(seconds)).await;
        for proxy in world.clients.iter().flat_map(|client| &client.proxies) {
            proxy.forget_rules();
            proxy.heal();
        }
        let verdict = verdict(&world).await;
        let enough = verdict.operations > ENOUGH && verdict.refused.len() == 3;
        if !verdict.faults.is_empty() || stint.is_over(enough, || format!("only {} operations", verdict.operations)) {
            break verdict;
        }
    };
    println!(
        "{} histories of {} operations, {} of them of unknown outcome, and {} looks at copies; falsified ones refused: {:?}",
        verdict.histories, verdict.operations, verdict.unknown, verdict.looks, verdict.refused
    );
    for (what, times) in &*locked(&world.seen) {
        println!("{times:8} {what}");
    }
    let report =
        |faults: &[String]| format!("{} faults, the first of them:\n{}\nreplay: {replay}", faults.len(), faults[0]);
    safe!(verdict.faults.is_empty(), "{}", report(&verdict.faults));
    let surprises = locked(&world.surprises).clone();
    assert!(surprises.is_empty(), "{}", report(&surprises));
    // Dropping a handle removes its kept node.
    world.clients.iter().for_each(|client| *locked(&client.open) = Default::default());
    eventually("all waits end", async || trace::waits(&TRACED) == 0).await;
    let mut run = Run::of(&TRACED, world.site.transactions(), Vec::new(), HashSet::new());
    run.guarded = GUARDED.map(str::to_owned).to_vec();
    replayed(&run, &["Enter", "List", "See", "Release", "Commit"], &replay);
    for client in &world.clients {
        client.zk.close().await;
    }
}

#[support::judged(flavor = "multi_thread", worker_threads = 4)]
async fn a_random_swarms_reads_and_writes_are_linearizable() {
    swarm(seed("SWARM_SEED"), setting("LINEAR_SECONDS").unwrap_or(8), setting("SWARM_SERVERS").unwrap_or(3)).await;
}
