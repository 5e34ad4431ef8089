//! Puts one library's lock through one workload. `benches/compare.py` starts this program and documents the orders that
//! it sends.
//!
//! All contenders are in this process and share the given number of sessions. Contenders of zk-rwlock on one session
//! know of each other, as the tasks of one service do. Contenders with a session each do not know of each other, like
//! separate processes.

mod contender;

use std::io::{BufRead, stdin};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::{Parser, ValueEnum};
use contender::{Contender, Lock, Peer};
use futures_util::future::{join_all, try_join_all};
use rustix::time::{ClockId, clock_gettime};
use tokio::sync::{Barrier, Semaphore};
use tokio::task::JoinSet;
use zk_rwlock::{RwLock, ZooKeeper};
use zookeeper_client::{Acls, Client, CreateMode};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const SESSION_TIMEOUT: Duration = Duration::from_secs(30);
const KEPT_FOR: Duration = Duration::from_secs(60);

#[derive(Clone, Parser)]
struct Arguments {
    #[arg(value_enum)]
    peer: Peer,
    servers: String,
    #[arg(value_enum)]
    kind: Kind,
    /// The number of contenders.
    n: usize,
    /// The number of acquisitions by all contenders together.
    ops: usize,
    /// The number of sessions that the contenders share. The gate, the first holder, has one more session.
    sessions: usize,
    /// The number of acquisitions for the warm-up, before the measurement.
    warm: usize,
    /// One acquisition out of this many writes, and the others read. 0 means that none writes.
    one_in: u64,
    /// How many milliseconds each contender holds the lock.
    hold: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum Kind {
    Contend,
    /// All contenders acquire a permit of a semaphore of four permits, again and again.
    Permits,
    /// All contenders queue up to write behind a first holder, the gate, which then releases the lock.
    Drain,
    /// All contenders queue up to read behind a first holder, the gate, which then releases the lock.
    Readers,
    /// All contenders keep a read node between uses, and a writer asks them to give the nodes up.
    Keepers,
}

impl Arguments {
    /// Returns whether the acquisition with the index `turn` writes. The answer is the same for every library.
    fn writes(&self, turn: usize) -> bool {
        self.one_in != 0 && ((turn as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32).is_multiple_of(self.one_in)
    }
}

/// Opens a session and a lock on it. For tokio's lock, returns a clone of `local` instead. Returns the client of
/// zk-rwlock, too, because only the client can end its session.
async fn open(args: &Arguments, directory: &Arc<str>, local: &Lock) -> Result<(Lock, Option<ZooKeeper>)> {
    Ok(match args.peer {
        Peer::Local => (local.clone(), None),
        Peer::Ours | Peer::Kept => {
            let zk = ZooKeeper::builder().session_timeout(SESSION_TIMEOUT).connect(&args.servers).await?;
            let lock = RwLock::builder(&zk, &**directory);
            let lock = if args.peer == Peer::Kept { lock.keep(KEPT_FOR) } else { lock }.build()?;
            let permits = zk_rwlock::Semaphore::new(&zk, format!("{directory}-permits"), 4)?;
            (if args.kind == Kind::Permits { Lock::Permits(permits) } else { Lock::Ours(lock) }, Some(zk))
        }
        Peer::Raw | Peer::ZookeeperClient => {
            let client = Client::connector().with_session_timeout(SESSION_TIMEOUT).connect(&args.servers).await?;
            // The directory is no container node, because a server could remove an empty container node during the
            // warm-up.
            client.mkdir(directory, &CreateMode::Persistent.with_acls(Acls::anyone_all())).await?;
            let kind = if args.peer == Peer::Raw { Lock::Raw } else { Lock::ZookeeperClient };
            (kind(client, Arc::clone(directory)), None)
        }
    })
}

/// Ends all sessions and waits for their end, because a session that expires later would disturb the next run.
async fn close(locks: Vec<Lock>, ours: Vec<ZooKeeper>) {
    join_all(ours.iter().map(ZooKeeper::close)).await;
    let state = |lock: &Lock| match lock {
        Lock::Raw(client, _) | Lock::ZookeeperClient(client, _) => Some(client.state_watcher()),
        _ => None,
    };
    let states: Vec<_> = locks.iter().filter_map(state).collect();
    drop(locks);
    for mut state in states {
        while !state.changed().await.is_terminated() {}
    }
}

/// Prints a line, and waits for the next order on standard input.
fn say(words: &str) -> Result<()> {
    println!("{words}");
    stdin().lock().read_line(&mut String::new())?;
    Ok(())
}

/// Returns the processor time that this process has used so far.
fn processor() -> Duration {
    let used = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(used.tv_sec.unsigned_abs(), u32::try_from(used.tv_nsec).unwrap_or_default())
}

/// Waits for an order, measures `work`, prints the figures, and waits for the next order.
async fn measure<T>(of: &Contender, work: impl Future<Output = Result<T>>) -> Result<T> {
    say("ready")?;
    let (before, began) = (processor(), Instant::now());
    let done = work.await?;
    let (elapsed, used) = (began.elapsed(), processor().saturating_sub(before));
    say(&format!("{} {} {}", elapsed.as_nanos(), used.as_nanos(), of.errors()))?;
    Ok(done)
}

async fn all(mut tasks: JoinSet<Result<()>>) -> Result<()> {
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(())
}

async fn contend(args: &Arguments, first: &Contender, contenders: Vec<Contender>) -> Result<()> {
    let go = Arc::new(Barrier::new(args.n + 1));
    let mut tasks = JoinSet::new();
    for (i, me) in contenders.into_iter().enumerate() {
        let (args, go) = (args.clone(), Arc::clone(&go));
        tasks.spawn(async move {
            go.wait().await;
            for turn in (i..args.ops).step_by(args.n) {
                let held = me.acquire(args.writes(turn)).await?;
                if args.hold > 0 {
                    tokio::time::sleep(Duration::from_millis(args.hold)).await;
                }
                me.release(held).await?;
            }
            Ok(())
        });
    }
    let work = async {
        go.wait().await;
        all(tasks).await
    };
    measure(first, work).await
}

async fn queue(args: &Arguments, gate: &Contender, contenders: Vec<Contender>) -> Result<()> {
    let drain = args.kind == Kind::Drain;
    let shut = gate.acquire(true).await?;
    if let contender::Guard::Node(_, node) = &shut {
        gate.gate.get_or_init(|| node.clone());
    }
    // Readers hold the lock until all of them hold it. Their release is not measured.
    let (granted, leave) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let mut tasks = JoinSet::new();
    for me in contenders {
        let (granted, leave) = (Arc::clone(&granted), Arc::clone(&leave));
        tasks.spawn(async move {
            let held = me.acquire(drain).await?;
            granted.add_permits(1);
            if !drain {
                let _may = leave.acquire().await?;
            }
            me.release(held).await
        });
    }
    let work = async {
        gate.release(shut).await?;
        let _all = granted.acquire_many(u32::try_from(args.n)?).await?;
        if drain {
            all(std::mem::take(&mut tasks)).await?;
        }
        Ok(())
    };
    measure(gate, work).await?;
    leave.add_permits(args.n);
    all(tasks).await
}

async fn keepers(args: &Arguments, writer: &Contender, contenders: Vec<Contender>) -> Result<()> {
    for _ in 0..args.ops {
        let mut tasks = JoinSet::new();
        for me in contenders.clone() {
            tasks.spawn(async move {
                // zk-rwlock keeps a node only after its second use.
                for _ in 0..2 {
                    let held = me.acquire(false).await?;
                    me.release(held).await?;
                }
                Ok(())
            });
        }
        all(tasks).await?;
        let held = measure(writer, writer.acquire(true)).await?;
        writer.release(held).await?;
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    let args = Arguments::parse();
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos();
    let directory = format!("/performance/rust-{}-{since_epoch}", std::process::id()).into();
    let local = Lock::Local(Arc::default());
    let opened = try_join_all((0..=args.sessions).map(|_| open(&args, &directory, &local))).await?;
    let (locks, ours): (Vec<_>, Vec<_>) = opened.into_iter().unzip();
    let (gate, held) = (Arc::new(OnceLock::new()), Arc::default());
    let contender =
        |session: usize| Contender { lock: locks[session].clone(), gate: Arc::clone(&gate), held: Arc::clone(&held) };
    let first = contender(0);
    for _ in 0..args.warm {
        let held = first.acquire(args.one_in != 0).await?;
        first.release(held).await?;
    }
    let contenders = (0..args.n).map(|i| contender(i % args.sessions)).collect();
    match args.kind {
        Kind::Contend | Kind::Permits => contend(&args, &first, contenders).await?,
        Kind::Drain | Kind::Readers => queue(&args, &contender(args.sessions), contenders).await?,
        Kind::Keepers => keepers(&args, &contender(args.sessions), contenders).await?,
    }
    drop((first, gate));
    close(locks, ours.into_iter().flatten().collect()).await;
    Ok(())
}
