//! The processes of one library: a process for each holder, and one for all waiters. A process reads commands from its
//! standard input:
//!
//! - `hold SERVERS PATH` acquires the lock, prints `held NODE`, and then asks the API again and again whether the lock
//!   is held.
//! - `end` prints `ended SIGNAL LOST HELD_UNTIL DENIED_FROM RESUMED ANSWER`, and closes the holder's session.
//! - `wait SERVERS PATH` acquires the lock, prints `granted PATH TIME`, and keeps the lock.
//!
//! All times are nanoseconds on the machine's monotonic clock. 0 means never. If more than a session timeout passes
//! between two questions, the process was stopped: `RESUMED` is then the time of the second question, and `ANSWER` its
//! answer.

use std::collections::HashMap;
use std::io::BufRead;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use support::peer::{Peer, child_of, java, python};
use support::process::say;
use support::scene::SOON;
use tokio::runtime::Runtime;
use zk_rwlock::{HoldState, RwLock, WriteGuard, ZooKeeper};

use super::results::OURS;

/// The session timeout of every process.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(4);

/// The tick of the servers.
const TICK: Duration = Duration::from_millis(500);

/// The pause between two questions to the API.
const PAUSE: Duration = Duration::from_millis(5);

const CHILD: &str = "ZK_RWLOCK_NEMESIS_CHILD";

pub(crate) fn clock() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

// ----------------------------------------------------------------------------------------- The process of this library

/// The answers of the API about one hold, as times in nanoseconds. Zero means never.
#[derive(Debug, Default)]
struct Report {
    signal: AtomicU64,
    lost: AtomicU64,
    over: AtomicBool,
}

struct Hold {
    guard: Arc<WriteGuard>,
    said: Arc<Report>,
    asker: JoinHandle<String>,
    zk: ZooKeeper,
}

async fn open(servers: &str) -> ZooKeeper {
    let builder = ZooKeeper::builder().session_timeout(TIMEOUT).tick_time(TICK).connect_timeout(SOON);
    builder.connect(servers).await.expect("the servers can be reached")
}

async fn acquire(zk: &ZooKeeper, path: &str) -> WriteGuard {
    RwLock::new(zk, path).expect("a valid path").write().await.expect("the lock is granted")
}

impl Hold {
    async fn begin(servers: &str, path: &str) -> Hold {
        let zk = open(servers).await;
        let (guard, said) = (Arc::new(acquire(&zk, path).await), Arc::<Report>::default());
        let mut changes = guard.changes();
        tokio::spawn({
            let said = Arc::clone(&said);
            async move {
                while changes.next().await == Some(HoldState::Held) {}
                said.signal.store(clock(), Ordering::SeqCst);
            }
        });
        tokio::spawn({
            let (guard, said) = (Arc::clone(&guard), Arc::clone(&said));
            async move {
                guard.lost().await;
                said.lost.store(clock(), Ordering::SeqCst);
            }
        });
        let asker = thread::spawn({
            let (guard, said) = (Arc::clone(&guard), Arc::clone(&said));
            move || ask(&guard, &said)
        });
        Hold { guard, said, asker, zk }
    }

    async fn end(self) -> String {
        let (signal, lost) = (self.said.signal.load(Ordering::SeqCst), self.said.lost.load(Ordering::SeqCst));
        self.said.over.store(true, Ordering::SeqCst);
        let asked = self.asker.join().expect("the asking thread does not panic");
        self.zk.close().await;
        format!("ended {signal} {lost} {asked}")
    }
}

fn ask(guard: &WriteGuard, said: &Report) -> String {
    let (mut held_until, mut denied_from, mut resumed) = (0, 0, "0 -".to_owned());
    let mut last = clock();
    while !said.over.load(Ordering::SeqCst) {
        let asked = clock();
        let held = guard.is_held();
        if u128::from(asked - last) > TIMEOUT.as_nanos() {
            resumed = format!("{asked} {}", if held { "held" } else { "lost" });
        }
        last = asked;
        if held {
            held_until = asked;
        } else if denied_from == 0 {
            denied_from = asked;
        }
        thread::sleep(PAUSE);
    }
    format!("{held_until} {denied_from} {resumed}")
}

#[test]
fn the_child_process_of_other_tests() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let runtime = Runtime::new().unwrap();
    let (mut hold, mut waiting) = (None, None);
    say("ready");
    for command in std::io::stdin().lock().lines().map(Result::unwrap) {
        match command.split(' ').collect::<Vec<_>>()[..] {
            ["hold", servers, path] => {
                let hold = hold.insert(runtime.block_on(Hold::begin(servers, path)));
                say(&format!("held {}", hold.guard.node_path()));
            }
            ["end"] => say(&runtime.block_on(hold.take().expect("`hold` comes before `end`").end())),
            ["wait", servers, path] => {
                let zk = waiting.get_or_insert_with(|| runtime.block_on(open(servers))).clone();
                let path = path.to_owned();
                runtime.spawn(async move {
                    let _guard = acquire(&zk, &path).await;
                    say(&format!("granted {path} {}", clock()));
                    std::future::pending::<()>().await;
                });
            }
            _ => panic!("unknown command {command:?}"),
        }
    }
    std::process::exit(0);
}

// ---------------------------------------------------------------------------------------- The handles of the processes

/// Starts a process of this library, and waits until it prints `ready`.
pub(crate) fn start(library: &'static str) -> Peer {
    let mut command = match library {
        "Curator" => java("CuratorNemesis"),
        "kazoo" => python("nemesis/kazoo_nemesis.py"),
        _ => child_of(module_path!()),
    };
    if library == OURS {
        command.env(CHILD, "yes");
    } else {
        command.args([TIMEOUT, PAUSE].map(|time| time.as_millis().to_string()));
    }
    Peer::start(command, library)
}

/// The process of all waiters of a library, and the time of each grant by path.
pub(crate) struct Waiters(Mutex<(Peer, HashMap<String, u64>)>);

impl Waiters {
    pub(crate) fn of(peer: Peer) -> Waiters {
        Waiters(Mutex::new((peer, HashMap::new())))
    }

    pub(crate) fn wait(&self, servers: &str, path: &str) {
        self.0.lock().unwrap().0.send(&format!("wait {servers} {path}"));
    }

    /// Returns the time at which the waiter of this path was granted the lock, or `None` if it still waits.
    pub(crate) fn granted(&self, path: &str) -> Option<u64> {
        let mut waiters = self.0.lock().unwrap();
        let (peer, granted) = &mut *waiters;
        for line in peer.has_said() {
            let ["granted", path, time] = line.split(' ').collect::<Vec<_>>()[..] else {
                panic!("unexpected line {line:?}")
            };
            granted.insert(path.to_owned(), time.parse().expect("a time"));
        }
        granted.get(path).copied()
    }
}
