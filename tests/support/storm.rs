//! What befalls a fleet as a whole: all sessions expire, the leader changes, servers restart one after the other. Knows no
//! requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use zk_rwlock::{Leadership, Memory, RwLock, Semaphore};

use super::fleet::{Asked, Capacity, Habits, Process, Second, Servers};

/// Processes that contend for locks.
#[derive(Clone, Copy, Debug)]
pub struct World {
    pub processes: usize,
    /// How many contenders each process has.
    pub contenders: usize,
    /// How many contend for one lock.
    pub per_lock: usize,
    /// Whether a quarter of the locks each are kept and read, are semaphores, or have leaders.
    pub is_mixed: bool,
    pub capacity: Capacity,
    pub habits: Habits,
    pub seed: u64,
}

/// What befalls them.
#[derive(Clone, Copy, Debug)]
pub enum Storm {
    /// The whole fleet is cut off for so long, and its sessions expire. Other clients are not cut off.
    Expiry(Duration),
    /// Nobody has a server for so long. Sessions survive.
    LeaderChange(Duration),
    /// Each of three servers closes its connections in turn, so long after the one before.
    RollingRestart(Duration),
}

/// What the ensemble saw of it, from the moment when its clients could come back.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    /// Requests a second, in the ten seconds before anything happened.
    pub before: u64,
    /// Requests in the busiest second.
    pub peak: u64,
    /// Those of them that ask for a session, or for a place in a queue.
    pub comebacks_at_peak: u64,
    /// The longest that a request waited for its answer.
    pub longest_wait: Duration,
    /// How long it took until every process was connected, and every contender in its queue; of a rolling restart, since
    /// the last server's.
    pub back_after: Duration,
    pub creates_under_way: u64,
    /// Sessions that were asked for.
    pub sessions: u64,
    /// Locks that were lost by clients that were not cut off.
    pub lost_elsewhere: u64,
    /// Locks that were lost by the fleet.
    pub lost: u64,
}

/// As many others hold a lock each, and are never cut off.
const OTHERS: usize = 100;

/// A user's loop: acquires again whenever the lock is lost.
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

/// Campaigns again by itself. Its work ends with the term.
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
    panic!("the work has no end: {ended:?}");
}

/// As one of those who contend for the lock of this number.
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
    /// All are in their queues, and have been for a session timeout.
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
        fleet.is_back(contenders + OTHERS as u64).await;
        sleep(world.habits.session_timeout).await;
        fleet
    }

    /// Waits until all are connected, and so many places were taken since the beginning.
    async fn is_back(&self, entered: u64) {
        while self.servers.entered() < entered || !self.processes.iter().all(Process::is_connected) {
            sleep(Duration::from_millis(100)).await;
        }
    }

    fn second(&self) -> usize {
        self.servers.seconds().len()
    }
}

/// Call it in a runtime whose clock is paused.
pub async fn storm(world: &World, storm: Storm) -> Seen {
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
    fleet.is_back(entered + again).await;
    let back_after = came_back.elapsed();
    // What was left unanswered is answered, and a lease that will run out has run out.
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
    Seen {
        before: seconds[settled - 10..settled].iter().map(Second::requests).sum::<u64>() / 10,
        peak: busiest.requests(),
        comebacks_at_peak: of(&busiest, Asked::Session) + of(&busiest, Asked::Create),
        longest_wait: after.iter().map(|second| second.longest_wait).max().unwrap_or_default(),
        back_after,
        creates_under_way: after.iter().map(|second| second.creates_under_way).max().unwrap_or_default(),
        sessions: after.iter().map(|second| of(second, Asked::Session)).sum(),
        lost_elsewhere,
        lost: lost - lost_before,
    }
}
