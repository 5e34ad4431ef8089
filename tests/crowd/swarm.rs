//! A random swarm of clients on real servers. The clients use locks in every way while connections, sessions, nodes and
//! servers fail. After the faults, every client must be granted each lock.
//!
//! All decisions come from a seed, and a failure prints the command that repeats the run with the seed. The repetition
//! has the same mix of faults, but real time gives it another interleaving. `SWARM_SEED`, `SWARM_SECONDS` and
//! `SWARM_SERVERS` (1 or 3) configure the run. `make soak` runs ten minutes with one server and ten with three.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant};

use support::history::{Guard, History, Holding, Store, lost_updates, refused_by_fence, wrong_fences};
use support::replay::Run;
use support::scene::{CALM, Seeded, becomes_empty, connect, eventually, lock_at, session};
use support::standstill::Stint;
use support::trace;
use support::violated;
use support::wire::{Op, Proxy};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use zk_rwlock::coordinator::{Coordinator, Failure};
use zk_rwlock::leadership::Term;
use zk_rwlock::once::Work;
use zk_rwlock::{Error, Leadership, ReadGuard, RwLock, WriteGuard, ZooKeeper};

use crate::faults::{Site, fail_links, fail_servers, pause, seed, setting};
use crate::traces::replayed;

const CLIENTS: u64 = 8;
/// The number of clients with a further task, whose acquisitions have no timeout.
const PATIENT_CLIENTS: usize = 4;
/// The number of tasks that break connections of clients at the same time.
const LINK_STRANDS: u64 = 3;
const PATHS: [&str; 2] = ["/swarm/a", "/swarm/b"];
/// The paths of the locks whose acquisitions are traced.
const TRACED: [&str; 4] = [PATHS[0], PATHS[1], ONCE, LED];
/// The prefixes of the paths that only holders of a lock write.
const GUARDED: [&str; 2] = ["/count-", "/swarm/once.done"];
/// The lock path of the work that is done by `once_in`.
const ONCE: &str = "/swarm/once";
/// The lock path of the leadership.
const LED: &str = "/swarm/led";
/// The number of clients that do work by `once_in`, and the number of clients that campaign.
const OTHERS: u64 = 2;
/// The node to which each leader writes the number of its term.
const LEDGER: &str = "/count-led";
const COUNTERS: [&str; 2] = ["/count-a", "/count-b"];
/// The time limit for all grants after the faults. A session whose client is gone expires after 4 s and at most one
/// tick. The rest is for a slow machine.
const LIVENESS_LIMIT: Duration = Duration::from_secs(60);
/// The time limit of an operation during the faults.
const PATIENCE: Duration = Duration::from_secs(3);

struct Client {
    name: String,
    proxies: Vec<Proxy>,
    zk: ZooKeeper,
    locks: Vec<RwLock>,
    attempts: AtomicU64,
}

/// The state that all tasks share.
struct World {
    site: Arc<Site>,
    history: History,
    stores: [Store; 2],
    clients: Vec<Client>,
    operator: ZooKeeper,
    /// For each lock, the number of transactions that were committed.
    committed: [AtomicU64; 2],
    /// For each lock, the number of transactions with an unknown outcome.
    in_doubt: [AtomicU64; 2],
    seen: Mutex<BTreeMap<String, u64>>,
    longest_wait: Mutex<Duration>,
    surprises: Mutex<Vec<String>>,
}

impl World {
    fn saw(&self, what: impl Display) {
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner).entry(what.to_string()).or_default() += 1;
    }

    fn surprise(&self, what: String) {
        self.surprises.lock().unwrap_or_else(PoisonError::into_inner).push(what);
    }

    fn waited(&self, waited: Duration) {
        let mut longest = self.longest_wait.lock().unwrap_or_else(PoisonError::into_inner);
        *longest = longest.max(waited);
    }

    /// Counts an error by its kind. Also records the error as a surprise if no fault of the swarm explains it.
    fn failed(&self, doing: &str, error: &Error) {
        let kind = match error {
            Error::Timeout { .. } => "timeout",
            Error::WouldBlock { .. } => "would block",
            Error::Lost(_) => "lost",
            Error::Evicted(_) => "evicted",
            Error::Unreachable(_) => "unreachable",
            Error::OutcomeUnknown { .. } => "outcome unknown",
            _ => {
                self.surprise(format!("{doing}: {error}"));
                "other"
            }
        };
        self.saw(format_args!("{doing}: {kind}"));
    }
}

// ----------------------------------------------------------------------------------------------------- What clients do

async fn use_locks(world: &World, client: &Client, mut dice: Seeded, end: Instant) {
    while Instant::now() < end {
        let which = dice.below(2) as usize;
        let lock = &client.locks[which];
        let limit = Duration::from_millis(20 + dice.below(3_000));
        client.attempts.fetch_add(1, Ordering::Relaxed);
        let asked = Instant::now();
        match dice.below(10) {
            0..=3 => {
                let acquisition = async { lock.read().timeout(limit).await };
                if let Some(guard) = acquired(world, "read", acquisition, &mut dice).await {
                    world.waited(asked.elapsed());
                    use_reader(world, world.history.granted(guard, &client.name), which, &mut dice).await;
                }
            }
            4..=7 => {
                let acquisition = async { lock.write().timeout(limit).label("swarm").await };
                if let Some(guard) = acquired(world, "write", acquisition, &mut dice).await {
                    world.waited(asked.elapsed());
                    use_writer(world, world.history.granted(guard, &client.name), which, &mut dice).await;
                }
            }
            8 => {
                if let Some(guard) = acquired(world, "try_read", lock.try_read(), &mut dice).await {
                    use_reader(world, world.history.granted(guard, &client.name), which, &mut dice).await;
                }
            }
            _ => {
                if let Some(guard) = acquired(world, "try_write", lock.try_write(), &mut dice).await {
                    use_writer(world, world.history.granted(guard, &client.name), which, &mut dice).await;
                }
            }
        }
        sleep(Duration::from_millis(dice.below(30))).await;
    }
}

/// Acquires the lock again and again without a timeout. The last acquisition, begun before `end`, must be granted after
/// the faults.
async fn wait_patiently(world: &World, client: &Client, mut dice: Seeded, end: Instant) {
    while Instant::now() < end {
        let which = dice.below(2) as usize;
        let (lock, store) = (&client.locks[which], &world.stores[which]);
        client.attempts.fetch_add(1, Ordering::Relaxed);
        let asked = Instant::now();
        let granted = if dice.below(2) == 0 {
            let granted = lock.read().label("patient").await.map(|guard| world.history.granted(guard, &client.name));
            if let Ok(holding) = &granted {
                store.look(holding, tokio::task::yield_now()).await;
            }
            granted.map(drop)
        } else {
            let granted = lock.write().label("patient").await.map(|guard| world.history.granted(guard, &client.name));
            if let Ok(holding) = &granted {
                store.update(holding, tokio::task::yield_now()).await;
                store.write_fenced(holding);
            }
            granted.map(drop)
        };
        match granted {
            Ok(()) => {
                world.saw("wait: granted");
                world.waited(asked.elapsed());
            }
            Err(error) => world.failed("wait", &error),
        }
        sleep(Duration::from_millis(dice.below(200))).await;
    }
}

/// Awaits an acquisition, or drops it at a random one of its awaits.
async fn acquired<G>(
    world: &World,
    doing: &str,
    acquisition: impl Future<Output = Result<G, Error>>,
    dice: &mut Seeded,
) -> Option<G> {
    let polls = if dice.below(5) == 0 { dice.below(6) } else { u64::MAX };
    match cut_short(acquisition, polls).await {
        Some(Ok(guard)) => {
            world.saw(format_args!("{doing}: granted"));
            return Some(guard);
        }
        Some(Err(error)) => world.failed(doing, &error),
        None => world.saw(format_args!("{doing}: dropped")),
    }
    None
}

/// Polls the future once, and then at most `polls` times more within a time limit. Drops it if it is not ready then.
/// Returns its output, or `None` if it was dropped.
pub(super) async fn cut_short<F: Future>(future: F, polls: u64) -> Option<F::Output> {
    let mut future = std::pin::pin!(future);
    let mut left = polls;
    let polled = poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending if left == 0 => Poll::Ready(None),
        Poll::Pending => {
            left -= 1;
            Poll::Pending
        }
    });
    timeout(2 * PATIENCE, polled).await.ok().flatten()
}

async fn use_writer(world: &World, holding: Holding<WriteGuard>, which: usize, dice: &mut Seeded) {
    let store = &world.stores[which];
    store.update(&holding, sleep(Duration::from_millis(dice.below(15)))).await;
    store.write_fenced(&holding);
    if dice.below(4) == 0 {
        count_in_zookeeper(world, &holding, which).await;
    }
    if dice.below(10) == 0 {
        hold_on(world, &holding, dice).await;
    }
    store.update(&holding, tokio::task::yield_now()).await;
    // The write is sent even after a loss, as a late packet would be.
    store.write_fenced(&holding);
    if dice.below(4) == 0 {
        let downgrade = holding.changed(async |writer| writer.downgrade().await);
        match timeout(PATIENCE, downgrade).await {
            Ok(Ok(holding)) => {
                world.saw("downgrade: done");
                use_reader(world, holding, which, dice).await;
            }
            Ok(Err(error)) => world.failed("downgrade", &error),
            Err(_) => world.saw("downgrade: dropped"),
        }
    } else {
        let waits = dice.below(3) > 0;
        leave(world, holding, waits, async |guard: WriteGuard| guard.release().await).await;
    }
}

async fn use_reader(world: &World, holding: Holding<ReadGuard>, which: usize, dice: &mut Seeded) {
    let store = &world.stores[which];
    store.look(&holding, sleep(Duration::from_millis(dice.below(15)))).await;
    let shared = (dice.below(4) == 0).then(|| holding.also(holding.share()));
    if dice.below(10) == 0 {
        hold_on(world, &holding, dice).await;
    }
    let waits = dice.below(3) > 0;
    leave(world, holding, waits, async |guard: ReadGuard| guard.release().await).await;
    if let Some(shared) = shared {
        store.look(&shared, sleep(Duration::from_millis(dice.below(15)))).await;
        leave(world, shared, waits, async |guard: ReadGuard| guard.release().await).await;
    }
}

/// Holds a lock for a random time below 4 s. After a loss, half of the holders stop immediately, and the others go on
/// to the end of that time.
async fn hold_on<G: Guard>(world: &World, holding: &Holding<G>, dice: &mut Seeded) {
    let end = Instant::now() + Duration::from_millis(dice.below(4_000));
    let heeds = dice.below(2) == 0;
    while Instant::now() < end && (holding.is_held() || !heeds) {
        sleep(Duration::from_millis(5)).await;
    }
    if !holding.is_held() {
        world.saw("held: lost");
    }
}

async fn leave<G: Guard>(
    world: &World,
    holding: Holding<G>,
    waits: bool,
    release: impl AsyncFnOnce(G) -> Result<(), Error>,
) {
    if !waits {
        return drop(holding);
    }
    match timeout(PATIENCE, release(holding.leave())).await {
        Ok(Ok(())) => world.saw("release: done"),
        Ok(Err(error)) => world.failed("release", &error),
        Err(_) => world.saw("release: dropped"),
    }
}

/// Increments a number in ZooKeeper. Only transactions under the lock change this number.
async fn count_in_zookeeper(world: &World, holding: &Holding<WriteGuard>, which: usize) {
    let Ok(Ok(Some(node))) = timeout(PATIENCE, holding.read_node(COUNTERS[which])).await else {
        return world.saw("transaction: could not read");
    };
    let next = number(&node.data) + 1;
    let commit = holding.transaction().set(COUNTERS[which], next.to_string()).commit();
    match timeout(PATIENCE, commit).await {
        Ok(Ok(_)) => {
            world.saw("transaction: done");
            world.committed[which].fetch_add(1, Ordering::Relaxed);
        }
        Ok(Err(error @ Error::Lost(_))) => world.failed("transaction", &error),
        Ok(Err(error)) => {
            world.in_doubt[which].fetch_add(1, Ordering::Relaxed);
            world.failed("transaction", &error);
        }
        Err(_) => {
            world.in_doubt[which].fetch_add(1, Ordering::Relaxed);
            world.saw("transaction: dropped");
        }
    }
}

fn number(data: &[u8]) -> u64 {
    std::str::from_utf8(data).ok().and_then(|text| text.parse().ok()).expect("a number was written")
}

/// Does work with `once_in` again and again until `end`.
async fn do_once(world: &World, client: &Client, mut dice: Seeded, end: Instant) {
    let lock = RwLock::builder(&client.zk, ONCE).host(&client.name).build().expect("valid");
    while Instant::now() < end {
        let limit = Duration::from_millis(20 + dice.below(3_000));
        let acquisition = async { lock.write().timeout(limit).once_in(Duration::from_millis(50)).await };
        if let Some(Work::Due(guard)) = acquired(world, "once", acquisition, &mut dice).await {
            let guard = world.history.granted(guard, &client.name);
            match timeout(PATIENCE, guard.done()).await {
                Ok(Ok(())) => world.saw("once: done"),
                Ok(Err(error)) => world.failed("done", &error),
                Err(_) => world.saw("done: dropped"),
            }
        }
        sleep(Duration::from_millis(dice.below(50))).await;
    }
}

/// Campaigns until `end`, and records each term as a hold.
async fn lead(world: &World, client: &Client, mut dice: Seeded, end: Instant) {
    // Sets a short pause, because by default a candidate pauses longer after terms as short as these.
    let leadership =
        Leadership::builder(&client.zk, LED).pause(Duration::from_millis(1)).lock(|lock| lock.host(&client.name));
    let leadership = leadership.build().expect("valid");
    while Instant::now() < end {
        let leads = Duration::from_millis(dice.below(50));
        let work = |term: Term| async move {
            let term = world.history.granted(term, &client.name);
            let written = timeout(PATIENCE, term.transaction().set(LEDGER, term.number().to_string()).commit()).await;
            sleep(leads).await;
            written
        };
        match timeout(PATIENCE, leadership.lead(work)).await {
            Ok(Ok(Some(Ok(Ok(_))))) => world.saw("term: written"),
            Ok(Ok(Some(Ok(Err(error))))) => world.failed("term", &error),
            Ok(Err(error)) => world.failed("lead", &error),
            Ok(Ok(_)) | Err(_) => world.saw("term: dropped"),
        }
    }
}

// --------------------------------------------------------------------------------------------------- Faults of a swarm

/// Deletes random nodes of holders and of waiters until `end`, as an operator can.
async fn delete_nodes(world: &World, mut dice: Seeded, end: Instant) {
    while Instant::now() < end {
        pause(Duration::from_millis(500 + dice.below(1_000)), end).await;
        let Ok(session_slot) = world.operator.session_slot(0).await else { continue };
        let path = PATHS[dice.below(2) as usize];
        let Ok(children) = session_slot.session().children(path).await else { continue };
        if children.is_empty() {
            continue;
        }
        let node = format!("{path}/{}", children[dice.below(children.len() as u64) as usize]);
        let asked = world.history.now();
        // Unless the reply is `NoNode`, the node may have been deleted, so the deletion is recorded.
        if !matches!(session_slot.session().delete(&node).await, Err(Failure::NoNode)) {
            world.history.operator_deleted(&node, asked);
            world.saw("fault: node deleted by an operator");
        }
    }
}

// -------------------------------------------------------------------------------------------------- The run of a swarm

async fn build(site: Arc<Site>, dice: &mut Seeded) -> World {
    let addresses = site.addresses();
    let operator = connect(&addresses.join(",")).await;
    for (path, counter) in PATHS.into_iter().zip(COUNTERS).chain([(LED, LEDGER)]) {
        let guard = lock_at(&operator, path).write().await.expect("free");
        guard.transaction().create(counter, "0").commit().await.expect("the counter does not exist yet");
        guard.release().await.expect("held");
    }
    let mut clients = Vec::new();
    for number in 0..CLIENTS + 2 * OTHERS {
        let proxies: Vec<_> = addresses.iter().map(Proxy::start).collect();
        let through: Vec<_> = proxies.iter().map(Proxy::address).collect();
        let session_timeout = Duration::from_secs([1, 2, 4][dice.below(3) as usize]);
        let builder = ZooKeeper::builder().session_timeout(session_timeout).connect_timeout(CALM);
        let zk = builder.connect(&through.join(",")).await.expect("nothing fails yet");
        let name = format!("client-{number}");
        // Every second client keeps its nodes between uses. It gives an idle node up after 100 ms, after 2 s, or never.
        let idle = [Duration::from_millis(100), Duration::from_secs(2), Duration::MAX][dice.below(3) as usize];
        let open = |path: &str| {
            let lock = RwLock::builder(&zk, path).host(&name);
            if number % 2 == 0 { lock.keep(idle) } else { lock }.build().expect("valid")
        };
        let locks = PATHS.into_iter().map(open).collect();
        clients.push(Client { name, proxies, zk, locks, attempts: AtomicU64::new(0) });
    }
    World {
        site,
        history: History::start(),
        stores: Default::default(),
        clients,
        operator,
        committed: Default::default(),
        in_doubt: Default::default(),
        seen: Mutex::default(),
        longest_wait: Mutex::default(),
        surprises: Mutex::default(),
    }
}

/// Runs the clients and random faults until `end`. Returns the tasks that still wait for the lock.
async fn safety_phase(world: &Arc<World>, dice: &mut Seeded, end: Instant) -> JoinSet<()> {
    let mut waiters = JoinSet::new();
    let mut tasks = JoinSet::new();
    let mut own_dice = || Seeded(dice.below(u64::MAX));
    // Every second client has two tasks, which contend on one session.
    for number in (0..CLIENTS as usize).chain((0..CLIENTS as usize).step_by(2)) {
        let (world, dice) = (Arc::clone(world), own_dice());
        tasks.spawn(async move { use_locks(&world, &world.clients[number], dice, end).await });
    }
    for number in 0..PATIENT_CLIENTS {
        let (world, dice) = (Arc::clone(world), own_dice());
        waiters.spawn(async move { wait_patiently(&world, &world.clients[number], dice, end).await });
    }
    for number in CLIENTS as usize..world.clients.len() {
        let (world, dice) = (Arc::clone(world), own_dice());
        tasks.spawn(async move {
            match number % 2 {
                0 => do_once(&world, &world.clients[number], dice, end).await,
                _ => lead(&world, &world.clients[number], dice, end).await,
            }
        });
    }
    for _ in 0..LINK_STRANDS {
        let (world, dice) = (Arc::clone(world), own_dice());
        tasks.spawn(async move {
            let links: Vec<&[Proxy]> = world.clients.iter().map(|client| &client.proxies[..]).collect();
            fail_links(&links, &|what: &str| world.saw(what), dice, end).await;
        });
    }
    let (operators_world, dice) = (Arc::clone(world), own_dice());
    tasks.spawn(async move { delete_nodes(&operators_world, dice, end).await });
    let (site, servers_world) = (Arc::clone(&world.site), Arc::clone(world));
    tasks.spawn(fail_servers(site, move |what: &str| servers_world.saw(what), own_dice(), end));
    while let Some(ended) = tasks.join_next().await {
        ended.expect("nothing panics");
    }
    waiters
}

/// Checks after the faults that every client is granted both locks in both modes, and that no node stays. Returns how
/// long this took.
async fn liveness_phase(world: &Arc<World>, mut tasks: JoinSet<()>) -> Duration {
    for proxy in world.clients.iter().flat_map(|client| &client.proxies) {
        proxy.forget_rules();
        proxy.heal();
    }
    let began = Instant::now();
    for number in 0..CLIENTS as usize {
        for which in 0..2 {
            let world = Arc::clone(world);
            tasks.spawn(async move {
                let client = &world.clients[number];
                // A fault from before the healing may still end the client's session, and each error then ends one try.
                // So the client tries until one try succeeds, within [`LIVENESS_LIMIT`].
                loop {
                    client.attempts.fetch_add(2, Ordering::Relaxed);
                    let gets = async {
                        let guard = client.locks[which].write().await?;
                        let holding = world.history.granted(guard, &client.name);
                        world.stores[which].update(&holding, tokio::task::yield_now()).await;
                        holding.leave().release().await?;
                        let holding = world.history.granted(client.locks[which].read().await?, &client.name);
                        holding.leave().release().await
                    };
                    match gets.await {
                        Ok(()) => return,
                        Err(error) => world.failed("once all is well", &error),
                    }
                }
            });
        }
    }
    let all = async {
        while let Some(ended) = tasks.join_next().await {
            ended.expect("nothing panics");
        }
    };
    if timeout(LIVENESS_LIMIT, all).await.is_err() {
        let mut stuck = String::new();
        for path in PATHS {
            stuck += &format!("{}\n", lock_at(&world.operator, path).queue().await.expect("the servers run"));
        }
        world.surprise(format!("a client did not get the lock within {LIVENESS_LIMIT:?}:\n{stuck}"));
    }
    began.elapsed()
}

/// Checks that no node and no watch is left.
async fn nothing_is_left(world: &World) {
    for path in PATHS.into_iter().chain([ONCE, LED]) {
        becomes_empty(&world.operator, path).await;
    }
    eventually("no watch is left", async || world.site.watches() == 0).await;
}

/// Checks the recorded holds and writes. Returns the faults, in words.
async fn judge(world: &World) -> Vec<String> {
    let mut faults = world.history.faults();
    let deletions = world.history.deletions();
    for (which, store) in world.stores.iter().enumerate() {
        let accesses = store.accesses();
        faults.extend(lost_updates(&accesses, &deletions));
        faults.extend(wrong_fences(&accesses, &deletions));
        let counter = session(&world.operator).await.data(COUNTERS[which]).await;
        let counted = number(&counter.expect("the counter exists").0);
        let (known, unknown) =
            (world.committed[which].load(Ordering::Relaxed), world.in_doubt[which].load(Ordering::Relaxed));
        if counted < known || counted > known + unknown {
            faults.push(format!("{counted} transactions took effect, of {known} known and {unknown} in doubt"));
        }
    }
    faults
}

/// Returns, in words, the clients that sent more creates of nodes than necessary.
fn wastes(world: &World) -> Vec<String> {
    let mut faults = Vec::new();
    // An acquisition needs one create. A second create is needed only if the connection broke (a client has up to four
    // acquisitions in progress at a time) or if the directory was missing.
    for client in world.clients.iter().take(CLIENTS as usize) {
        let count = |op| client.proxies.iter().map(|proxy| proxy.count(op)).sum::<u64>();
        let connections: u64 = client.proxies.iter().map(Proxy::connections).sum();
        let (creates, attempts) = (count(Op::Create2), client.attempts.load(Ordering::Relaxed));
        if creates > attempts + 4 * connections + 2 * count(Op::CreateContainer) {
            faults.push(format!("{creates} creates for {attempts} attempts over {connections} connections"));
        }
    }
    faults
}

/// Returns the errors that no fault of the swarm explains.
fn surprises(world: &World) -> Vec<String> {
    world.surprises.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

fn traced(world: &World) -> Run {
    let operators = world.history.deletions().into_keys().collect();
    let run = Run::of(&TRACED, world.site.transactions(), world.history.traced(), operators);
    Run { guarded: GUARDED.map(str::to_owned).to_vec(), ..run }
}

async fn swarm(seed: u64, seconds: u64, servers: u64) {
    let replay = format!(
        "SWARM_SEED={seed} SWARM_SECONDS={seconds} SWARM_SERVERS={servers} cargo test -p zk-rwlock-tests --test crowd swarm::"
    );
    println!("{replay}");
    trace::record(&TRACED);
    let mut dice = Seeded(seed);
    let world = Arc::new(build(Site::start(servers).await, &mut dice).await);
    let stint = Stint::begin(Duration::from_secs(seconds));
    let took = loop {
        let waiters = safety_phase(&world, &mut dice, Instant::now() + Duration::from_secs(seconds)).await;
        let took = liveness_phase(&world, waiters).await;
        // The phase without faults alone grants a lock to each client four times. So a run needs more than eight grants
        // for each client.
        let grants = world.history.holds().len() as u64;
        if !surprises(&world).is_empty() || stint.is_over(grants > 8 * CLIENTS, || format!("only {grants} grants")) {
            break took;
        }
    };
    let faults = judge(&world).await;

    let holds = world.history.holds();
    println!("{} grants, of which {} ended by loss", holds.len(), holds.iter().filter(|hold| hold.lost).count());
    for (what, times) in &*world.seen.lock().unwrap_or_else(PoisonError::into_inner) {
        println!("{times:8} {what}");
    }
    let refused: usize = world.stores.iter().map(|store| refused_by_fence(&store.accesses())).sum();
    println!("{refused} late writes kept out by the fence");
    println!(
        "longest wait for a grant {:?}; all were granted {took:?} after the faults",
        *world.longest_wait.lock().unwrap_or_else(PoisonError::into_inner)
    );
    println!("unsafe windows: {}", support::history::overlaps(&holds).len());
    let report = |faults: &[String]| {
        let first = faults[..faults.len().min(10)].join("\n");
        format!("{} faults, the first of them:\n{first}\nreplay: {replay}", faults.len())
    };
    if !faults.is_empty() {
        // The log of the servers may show an earlier forbidden step, which is nearer to the cause.
        println!("by the servers' log: {:#?}", support::replay::judge(&traced(&world)).faults.first());
        violated!("{}", report(&faults));
    }
    let others = [wastes(&world), surprises(&world)].concat();
    assert!(others.is_empty(), "{}", report(&others));
    let mut world = Arc::into_inner(world).expect("all tasks have ended");
    // Dropping a handle removes its kept node.
    world.clients.iter_mut().for_each(|client| client.locks.clear());
    nothing_is_left(&world).await;
    eventually("all waits end", async || trace::waits(&TRACED) == 0).await;
    let mut steps = vec!["Enter", "List", "See", "Release", "Commit"];
    // These steps are rare. A shorter run may lack them, because one long fault can last for most of it.
    if seconds >= 60 {
        steps.extend(["UseAgain", "Downgrade", "Expire"]);
        let seen = world.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let is_seen = ["once: done", "term: written"].map(|what| seen.contains_key(what));
        assert_eq!(is_seen, [true; 2], "{seen:?}: {replay}");
    }
    replayed(&traced(&world), &steps, &replay);
    for client in &world.clients {
        client.zk.close().await;
    }
}

#[support::judged(flavor = "multi_thread", worker_threads = 4)]
async fn a_random_swarm_never_has_two_holders() {
    swarm(seed("SWARM_SEED"), setting("SWARM_SECONDS").unwrap_or(12), setting("SWARM_SERVERS").unwrap_or(1)).await;
}
