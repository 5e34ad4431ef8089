//! Swarms that use one semaphore while faults occur, or while their processes are killed. No more permits are ever held
//! than exist, and after the faults every client gets permits.
//!
//! All decisions come from a seed, which is printed. `SWARM_SEED`, `SWARM_SECONDS` and `SWARM_SERVERS` (1 or 3)
//! configure the run, as for `swarm.rs`.

use std::collections::BTreeMap;
use std::future::IntoFuture;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use support::history::{History, overdrawn};
use support::process::{Process, role, say};
use support::replay::Run;
use support::safe;
use support::scene::{CALM, Seeded, becomes_empty, children, connect, connect_with, eventually, session, soon};
use support::standstill::Stint;
use support::trace;
use support::wire::Proxy;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use zk_rwlock::coordinator::Failure;
use zk_rwlock::semaphore::Permit;
use zk_rwlock::{Error, Semaphore, ZooKeeper};

use crate::faults::{Site, fail_links, fail_servers, seed, setting};
use crate::swarm::cut_short;
use crate::traces::replayed;

const PATH: &str = "/swarm/permits";
const PERMITS: u32 = 4;
const CLIENTS: u64 = 6;
/// The time limit for all grants after the faults. A session whose client is gone expires after 4 s and at most one
/// tick. The rest is for a slow machine.
const LIVENESS_LIMIT: Duration = Duration::from_secs(60);

/// Returns the seed, the duration in seconds, the number of servers, and a command that repeats the run.
fn settings() -> (u64, u64, u64, String) {
    let (seed, seconds) = (seed("SWARM_SEED"), setting("SWARM_SECONDS").unwrap_or(12));
    let servers = setting("SWARM_SERVERS").unwrap_or(1);
    let replay = format!(
        "SWARM_SEED={seed} SWARM_SECONDS={seconds} SWARM_SERVERS={servers} cargo test -p zk-rwlock-tests --test crowd permits::"
    );
    println!("{replay}");
    (seed, seconds, servers, replay)
}

struct Client {
    name: String,
    proxies: Vec<Proxy>,
    zk: ZooKeeper,
    semaphore: Semaphore,
}

struct World {
    site: Arc<Site>,
    history: History,
    clients: Vec<Client>,
    operator: ZooKeeper,
    seen: Mutex<BTreeMap<String, u64>>,
    surprises: Mutex<Vec<String>>,
    grants: AtomicU64,
}

impl World {
    fn saw(&self, what: impl Into<String>) {
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner).entry(what.into()).or_default() += 1;
    }

    /// Counts an error by its kind. Also records the error as a surprise if no fault of the swarm explains it.
    fn failed(&self, error: &Error) {
        let expected = error.is_lost()
            || error.is_timeout()
            || error.is_would_block()
            || matches!(error, Error::Unreachable(_) | Error::OutcomeUnknown { .. });
        if !expected {
            self.surprises.lock().unwrap_or_else(PoisonError::into_inner).push(error.to_string());
        }
        self.saw(if error.is_lost() { "lost" } else { "not granted" });
    }
}

async fn use_permits(world: &World, client: &Client, mut dice: Seeded, end: Instant) {
    while Instant::now() < end {
        let count = [1, 1, 1, 2, 3][dice.below(5) as usize];
        let limit = Duration::from_millis(20 + dice.below(4_000));
        let polls = if dice.below(4) == 0 { dice.below(8) } else { u64::MAX };
        let granted = match dice.below(6) {
            0 => cut_short(client.semaphore.try_acquire_many(count).timeout(limit), polls).await,
            _ => cut_short(client.semaphore.acquire_many(count).timeout(limit).into_future(), polls).await,
        };
        match granted {
            Some(Ok(permit)) => hold(world, client, permit, &mut dice).await,
            Some(Err(error)) => world.failed(&error),
            None => world.saw("dropped"),
        }
        sleep(Duration::from_millis(dice.below(20))).await;
    }
}

async fn hold(world: &World, client: &Client, permit: Permit, dice: &mut Seeded) {
    world.grants.fetch_add(1, Ordering::Relaxed);
    let holding = world.history.granted(permit, &client.name);
    let end =
        Instant::now() + Duration::from_millis(if dice.below(20) == 0 { dice.below(4_000) } else { dice.below(20) });
    while Instant::now() < end && holding.is_held() {
        sleep(Duration::from_millis(2)).await;
    }
    if dice.below(3) == 0 {
        return drop(holding);
    }
    match timeout(Duration::from_secs(3), holding.leave().release()).await {
        Ok(Err(error)) => world.failed(&error),
        _ => world.saw("released"),
    }
}

/// Deletes random nodes of holders and of waiters until `end`, as an operator can.
async fn delete_nodes(world: &World, mut dice: Seeded, end: Instant) {
    while Instant::now() < end {
        sleep(Duration::from_millis(300 + dice.below(900))).await;
        let directory = format!("{PATH}/{}", ["permits", "queue"][dice.below(2) as usize]);
        let names = children(&world.operator, &directory).await;
        if names.is_empty() {
            continue;
        }
        let node = format!("{directory}/{}", names[dice.below(names.len() as u64) as usize]);
        let asked = world.history.now();
        // Unless the reply is `NoNode`, the node may have been deleted, so the deletion is recorded.
        if !matches!(session(&world.operator).await.delete(&node).await, Err(Failure::NoNode)) {
            world.history.operator_deleted(&node, asked);
            world.saw("a node was deleted by an operator");
        }
    }
}

/// Checks after the faults that each client in turn can take all permits in one acquisition.
async fn liveness_phase(world: &Arc<World>) {
    for proxy in world.clients.iter().flat_map(|client| &client.proxies) {
        proxy.forget_rules();
        proxy.heal();
    }
    let mut tasks = JoinSet::new();
    for number in 0..CLIENTS as usize {
        let world = Arc::clone(world);
        tasks.spawn(async move {
            let client = &world.clients[number];
            // A fault from before the healing may still end the client's session. So the client tries until one
            // acquisition succeeds, within [`LIVENESS_LIMIT`].
            while let Err(error) = gets_all(&world, client).await {
                world.failed(&error);
            }
        });
    }
    if timeout(LIVENESS_LIMIT, tasks.join_all()).await.is_err() {
        let stuck = Semaphore::builder(&world.operator, PATH).build().expect("valid").queue().await;
        let stuck = stuck.map_or_else(|error| error.to_string(), |queue| queue.to_string());
        panic!("a client did not get the permits within {LIVENESS_LIMIT:?}:\n{stuck}");
    }
}

async fn gets_all(world: &World, client: &Client) -> Result<(), Error> {
    let permit = client.semaphore.acquire_many(PERMITS).await?;
    world.history.granted(permit, &client.name).leave().release().await
}

/// Lets the clients use the semaphore for this time, while faults occur.
async fn swarm_phase(world: &Arc<World>, dice: &mut Seeded, lasts: Duration) {
    let end = Instant::now() + lasts;
    let mut tasks = JoinSet::new();
    let mut own_dice = || Seeded(dice.below(u64::MAX));
    // Every second client has two tasks, which contend on one session.
    for number in (0..CLIENTS as usize).chain((0..CLIENTS as usize).step_by(2)) {
        let (world, dice) = (Arc::clone(world), own_dice());
        tasks.spawn(async move { use_permits(&world, &world.clients[number], dice, end).await });
    }
    for _ in 0..2 {
        let (world, dice) = (Arc::clone(world), own_dice());
        tasks.spawn(async move {
            let links: Vec<&[Proxy]> = world.clients.iter().map(|client| &client.proxies[..]).collect();
            fail_links(&links, &|what: &str| world.saw(what), dice, end).await;
        });
    }
    let (there, dice_of_operator) = (Arc::clone(world), own_dice());
    tasks.spawn(async move { delete_nodes(&there, dice_of_operator, end).await });
    let (site, there) = (Arc::clone(&world.site), Arc::clone(world));
    tasks.spawn(fail_servers(site, move |what: &str| there.saw(what), own_dice(), end));
    while let Some(ended) = tasks.join_next().await {
        ended.expect("nothing panics");
    }
}

#[support::judged(flavor = "multi_thread", worker_threads = 4)]
async fn a_random_swarm_never_holds_too_many_permits() {
    let (seed, seconds, servers, replay) = settings();
    trace::record(&[PATH]);
    let mut dice = Seeded(seed);
    let site = Site::start(servers).await;
    let operator = connect(&site.addresses().join(",")).await;
    let mut clients = Vec::new();
    for number in 0..CLIENTS {
        let proxies: Vec<_> = site.addresses().iter().map(Proxy::start).collect();
        let through: Vec<_> = proxies.iter().map(Proxy::address).collect();
        let session_timeout = Duration::from_secs([1, 2, 4][dice.below(3) as usize]);
        let builder = ZooKeeper::builder().session_timeout(session_timeout).connect_timeout(CALM);
        let zk = builder.connect(&through.join(",")).await.expect("nothing fails yet");
        let name = format!("client-{number}");
        let semaphore =
            Semaphore::builder(&zk, PATH).permits(PERMITS).lock(|lock| lock.host(&name)).build().expect("valid");
        clients.push(Client { name, proxies, zk, semaphore });
    }
    let world = Arc::new(World {
        site,
        history: History::start(),
        clients,
        operator,
        seen: Mutex::default(),
        surprises: Mutex::default(),
        grants: AtomicU64::new(0),
    });
    let stint = Stint::begin(Duration::from_secs(seconds));
    // Runs further phases until there are enough grants. With some seeds, and on a busy machine, a phase has almost no
    // time without a fault.
    loop {
        swarm_phase(&world, &mut dice, Duration::from_secs(seconds)).await;
        liveness_phase(&world).await;
        let grants = world.grants.load(Ordering::Relaxed);
        if stint.is_over(grants > 2 * CLIENTS, || format!("only {grants} grants")) {
            break;
        }
    }

    let holds = world.history.holds();
    let mut faults = world.history.faults();
    faults.extend(overdrawn(&holds, PERMITS.into()));
    println!("{} grants: {:?}", holds.len(), world.seen.lock().unwrap_or_else(PoisonError::into_inner));
    safe!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults[..faults.len().min(10)].join("\n"));
    let surprises = world.surprises.lock().unwrap_or_else(PoisonError::into_inner).clone();
    assert!(surprises.is_empty(), "{surprises:#?}");
    for part in ["queue", "permits"] {
        becomes_empty(&world.operator, &format!("{PATH}/{part}")).await;
    }
    eventually("no watch is left", async || world.site.watches() == 0).await;
    let operators = world.history.deletions().into_keys().collect();
    let run = Run::of(&[PATH], world.site.transactions(), world.history.traced(), operators);
    replayed(&run, &["Enter", "List", "See", "TakePermit", "GiveBackPermit"], &replay);
    for client in &world.clients {
        client.zk.close().await;
    }
}

// ------------------------------------------------------------------------------------------- Processes that are killed

/// Returns nanoseconds on the machine's monotonic clock, which all processes share.
fn clock() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

/// A child process that takes and returns permits until it is killed. It reports each interval in which it certainly
/// held permits, with their number.
#[test]
fn the_child_process_of_other_tests() {
    let Some(role) = role() else { return };
    let mut words = role.split(' ');
    let mut word = || words.next().expect("a server, a path and a seed");
    let (server, path, seed) = (word(), word().to_owned(), word().parse::<u64>().expect("a number"));
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let zk = runtime.block_on(connect_with(server, Duration::from_secs(2)));
    runtime.block_on(async {
        let mut tasks = JoinSet::new();
        for task in 0..3 {
            let semaphore = Semaphore::new(&zk, &path, PERMITS).expect("valid");
            let mut dice = Seeded(seed + task);
            tasks.spawn(async move {
                loop {
                    let count = 1 + dice.below(2) as u32;
                    match take(&semaphore, count, &mut dice).await {
                        // A loss is not reported as a fault: the session timeout is two seconds, so the session ends
                        // whenever the machine stands still for longer.
                        Err(error) if !(error.is_lost() || matches!(error, Error::OutcomeUnknown { .. })) => {
                            say(&format!("fails {error}"));
                        }
                        _ => {}
                    }
                }
            });
        }
        tasks.join_all().await;
    });
}

/// Takes `count` permits, holds them for some milliseconds, and returns them.
async fn take(semaphore: &Semaphore, count: u32, dice: &mut Seeded) -> Result<(), Error> {
    let permit = semaphore.acquire_many(count).await?;
    let from = clock();
    let mut until = None;
    // If the permit is held now, the process has held it since its grant.
    let mut look = || {
        let asked = clock();
        if permit.is_held() {
            until = Some(asked);
        }
    };
    look();
    sleep(Duration::from_millis(dice.below(5))).await;
    look();
    if let Some(until) = until {
        say(&format!("held {from} {until} {count}"));
    }
    permit.release().await
}

/// Starts a process and kills it after this time. Returns the changes of the number of permits that it held, each with
/// its time in nanoseconds.
fn life(server: &str, path: &str, seed: u64, lasts: Duration) -> Vec<(u64, i64)> {
    let mut process = Process::start(module_path!(), &format!("{server} {path} {seed}"));
    std::thread::sleep(lasts);
    process.signal("KILL");
    let mut changes = Vec::new();
    for line in process.said() {
        let words: Vec<&str> = line.split(' ').collect();
        assert!(words[0] != "fails", "{line}");
        // The last line of a killed process may be truncated, so lines that cannot be parsed are skipped.
        let ["held", from, until, count] = words[..] else { continue };
        let (Ok(from), Ok(until), Ok(count)) = (from.parse::<u64>(), until.parse::<u64>(), count.parse::<i64>()) else {
            continue;
        };
        changes.extend([(from, count), (until.max(from + 1), -count)]);
    }
    changes
}

#[support::judged(flavor = "multi_thread", worker_threads = 4)]
async fn killed_processes_never_hold_too_many_permits() {
    /// The number of grants that a run must have. With fewer grants, a run tests too little.
    const ENOUGH: usize = 50;
    let (seed, seconds, servers, _) = settings();
    let site = Site::start(servers).await;
    let (server, path) = (site.addresses().join(","), "/swarm/killed");
    let (stint, takings) = (Arc::new(Stint::begin(Duration::from_secs(seconds))), Arc::new(AtomicUsize::new(0)));
    let mut lives = JoinSet::new();
    for number in 0..4 {
        let (server, mut dice) = (server.clone(), Seeded(seed + number));
        let (stint, takings) = (Arc::clone(&stint), Arc::clone(&takings));
        lives.spawn_blocking(move || {
            let so_far = || takings.load(Ordering::Relaxed);
            let mut changes = Vec::new();
            while !stint.is_over(so_far() > ENOUGH, || format!("only {} takings", so_far())) {
                let lasts = Duration::from_millis(1_000 + dice.below(4_000));
                let life = life(&server, path, dice.below(1 << 40), lasts);
                takings.fetch_add(life.len() / 2, Ordering::Relaxed);
                changes.extend(life);
            }
            changes
        });
    }
    let mut changes = Vec::new();
    while let Some(life) = lives.join_next().await {
        changes.extend(life.unwrap_or_else(|failed| resume_unwind(failed.into_panic())));
    }
    // At equal times, returned permits (negative changes) come before taken ones.
    changes.sort_unstable();
    let mut held = 0;
    for (at, count) in changes {
        held += count;
        safe!(held <= i64::from(PERMITS), "{held} of {PERMITS} permits at {at}");
    }
    println!("{} takings", takings.load(Ordering::Relaxed));
    let zk = connect(&server).await;
    let all = Semaphore::new(&zk, path, PERMITS).expect("valid");
    assert_eq!(soon("all permits", all.acquire_many(PERMITS)).await.expect("free").count(), PERMITS);
}
