//! Faults that hit a whole [fleet](super::fleet) at the same time: all sessions expire, the leader changes, or the
//! servers restart in turn. Use it to measure how a fleet reconnects.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use zk_rwlock::{Leadership, Memory, RwLock, Semaphore};

use super::fleet::{Capacity, Habits, Process, RequestKind, Second, Servers};

/// The size of the fleet, and the locks that its processes use.
#[derive(Clone, Copy, Debug)]
pub struct World {
    pub processes: usize,
    /// The number of contenders in each process.
    pub contenders: usize,
    /// The number of contenders for one lock.
    pub per_lock: usize,
    /// Whether the locks are of four kinds, a quarter of each: plain locks, read locks that are kept between uses,
    /// semaphores and leaderships.
    pub is_mixed: bool,
    pub capacity: Capacity,
    pub habits: Habits,
    pub seed: u64,
}

/// A fault that hits the whole fleet.
#[derive(Clone, Copy, Debug)]
pub enum Storm {
    /// The fleet is cut off for this long, and its sessions expire. Other clients stay connected.
    Expiry(Duration),
    /// No client reaches a server for this long. Sessions survive.
    LeaderChange(Duration),
    /// Each of three servers in turn closes its connections, with this pause in between.
    RollingRestart(Duration),
}

/// The measurements of a fault of the whole fleet. Unless a field says otherwise, they begin when the clients can
/// reconnect after the fault.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// The number of requests per second in the ten seconds before the fault.
    pub before: u64,
    /// The number of requests in the busiest second.
    pub peak: u64,
    /// The number of requests that open a session or create a contender's node, in the busiest second.
    pub comebacks_at_peak: u64,
    /// The longest time between a request and its reply.
    pub longest_wait: Duration,
    /// The time until every process was connected and every contender had a node. In a rolling restart this time begins at
    /// the restart of the last server.
    pub back_after: Duration,
    pub creates_under_way: u64,
    /// The number of requests for a session.
    pub sessions: u64,
    /// The number of locks that were lost by clients outside the fleet, which were never cut off.
    pub lost_elsewhere: u64,
    /// The number of locks that the fleet lost.
    pub lost: u64,
}

/// The number of processes outside the fleet. Each holds one lock, and none is ever cut off.
const OTHERS: usize = 100;

/// Acquires the lock, and again after each loss, as a user's program does. Counts the losses in `lost`.
async fn contend(lock: RwLock, lost: Arc<AtomicU64>) {
    loop {
        if let Ok(guard) = lock.write().await {
            guard.lost().await;
            lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

async fn read(lock: RwLock, lost: Arc<AtomicU64>) {
    loop {
        if let Ok(guard) = lock.read().await {
            guard.lost().await;
            lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

async fn take_permits(semaphore: Semaphore, lost: Arc<AtomicU64>) {
    loop {
        if let Ok(permit) = semaphore.acquire().await {
            permit.lost().await;
            lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Campaigns for the leadership, and counts lost terms in `lost`.
async fn campaign(leadership: Leadership, lost: Arc<AtomicU64>) {
    struct Led(Arc<AtomicU64>);
    impl Drop for Led {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let work = |_term| {
        let led = Led(Arc::clone(&lost));
        async move {
            std::future::pending::<()>().await;
            drop(led);
        }
    };
    let ended = leadership.lead(work).await;
    panic!("endless work has ended: {ended:?}");
}

/// Starts one contender of `process` for the lock with the index `lock`.
fn begin(tasks: &mut JoinSet<()>, world: &World, process: &Process, lock: usize, lost: &Arc<AtomicU64>) {
    let (path, lost) = (format!("/fleet/{lock}"), Arc::clone(lost));
    let plain = || RwLock::builder(process, &path);
    let an_hour = Duration::from_secs(3_600);
    let _task = match if world.is_mixed { lock % 4 } else { 0 } {
        0 => tasks.spawn(contend(plain().build().expect("valid"), lost)),
        1 => tasks.spawn(read(plain().keep(an_hour).build().expect("valid"), lost)),
        2 => tasks.spawn(take_permits(Semaphore::new(process, &path, 3).expect("valid"), lost)),
        _ => tasks.spawn(campaign(Leadership::new(process, &path).expect("valid"), lost)),
    };
}

struct Fleet {
    servers: Arc<Servers>,
    processes: Vec<Process>,
    contenders: u64,
    lost: Arc<AtomicU64>,
    lost_elsewhere: Arc<AtomicU64>,
    tasks: JoinSet<()>,
}

impl Fleet {
    /// Starts the fleet. Waits until all contenders have a node, and for one session timeout more.
    async fn settle(world: &World) -> Fleet {
        let ensemble = Memory::new();
        let servers = Servers::start(world.capacity);
        let (lost, lost_elsewhere) = (Arc::default(), Arc::default());
        let mut tasks = JoinSet::new();
        let process = |number: usize| Process::new(&servers, &ensemble, world.habits, world.seed + number as u64);
        for number in 0..OTHERS {
            let lock = RwLock::new(&process(number), format!("/elsewhere/{number}")).expect("valid");
            tasks.spawn(contend(lock, Arc::clone(&lost_elsewhere)));
        }
        let contenders = world.processes * world.contenders;
        let locks = contenders.div_ceil(world.per_lock);
        let between = world.habits.session_timeout / u32::try_from(world.processes).expect("few");
        let began = Instant::now();
        let mut processes = Vec::new();
        for number in 0..world.processes {
            let process = process(OTHERS + number);
            for contender in 0..world.contenders {
                begin(&mut tasks, world, &process, (number * world.contenders + contender) % locks, &lost);
            }
            processes.push(process);
            tokio::time::sleep_until(began + between * u32::try_from(number).expect("few")).await;
        }
        let contenders = contenders as u64;
        let fleet = Fleet { servers, processes, contenders, lost, lost_elsewhere, tasks };
        fleet.wait_until_back(contenders + OTHERS as u64).await;
        sleep(world.habits.session_timeout).await;
        fleet
    }

    /// Waits until all processes are connected, and `entered` nodes of contenders were created in all.
    async fn wait_until_back(&self, entered: u64) {
        while self.servers.entered() < entered || !self.processes.iter().all(Process::is_connected) {
            sleep(Duration::from_millis(100)).await;
        }
    }

    fn second(&self) -> usize {
        self.servers.seconds().len()
    }
}

/// Runs the fleet through the fault, and returns the measurements. The clock of the runtime must be paused.
pub async fn storm(world: &World, storm: Storm) -> Measured {
    let mut fleet = Fleet::settle(world).await;
    let settled = fleet.second() - 1;
    let lost_before = fleet.lost.load(Ordering::Relaxed);
    let entered = fleet.servers.entered();
    let mut again = 0;
    let (came_back, from) = match storm {
        Storm::Expiry(away) => {
            again = fleet.contenders;
            fleet.processes.iter().for_each(Process::cut);
            sleep(away).await;
            fleet.processes.iter().for_each(Process::heal);
            (Instant::now(), fleet.second())
        }
        Storm::LeaderChange(away) => {
            fleet.processes.iter().for_each(Process::cut);
            sleep(away).await;
            fleet.servers.new_leader();
            fleet.processes.iter().for_each(Process::heal);
            (Instant::now(), fleet.second())
        }
        Storm::RollingRestart(apart) => {
            let from = fleet.second();
            for server in 0..3 {
                sleep(apart).await;
                fleet.processes.iter().skip(server).step_by(3).for_each(Process::disconnect);
            }
            (Instant::now(), from)
        }
    };
    fleet.wait_until_back(entered + again).await;
    let back_after = came_back.elapsed();
    // Wait until no request is older than 100 ms, and then for one session timeout, so that every lease that can expire
    // has expired.
    while fleet.servers.oldest() > Duration::from_millis(100) {
        sleep(Duration::from_millis(100)).await;
    }
    sleep(world.habits.session_timeout).await;
    let seconds = fleet.servers.seconds();
    let [lost, lost_elsewhere] = [&fleet.lost, &fleet.lost_elsewhere].map(|count| count.load(Ordering::Relaxed));
    fleet.tasks.shutdown().await;
    let after = &seconds[from - 1..];
    let busiest = after.iter().max_by_key(|second| second.requests()).cloned().unwrap_or_default();
    let of = |second: &Second, asked| second.asked.get(&asked).copied().unwrap_or(0);
    Measured {
        before: seconds[settled - 10..settled].iter().map(Second::requests).sum::<u64>() / 10,
        peak: busiest.requests(),
        comebacks_at_peak: of(&busiest, RequestKind::Session) + of(&busiest, RequestKind::Create),
        longest_wait: after.iter().map(|second| second.longest_wait).max().unwrap_or_default(),
        back_after,
        creates_under_way: after.iter().map(|second| second.creates_under_way).max().unwrap_or_default(),
        sessions: after.iter().map(|second| of(second, RequestKind::Session)).sum(),
        lost_elsewhere,
        lost: lost - lost_before,
    }
}
