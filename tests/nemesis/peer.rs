//! The processes: a holder, or all waiters, of one library. Told what to do in lines:
//!
//! - `hold SERVERS PATH` acquires, says `held NODE`, and asks whether it still holds, again and again;
//! - `end` says `ended SIGNAL LOST HELD_UNTIL DENIED_FROM RESUMED ANSWER`, and closes the holder's session;
//! - `wait SERVERS PATH` says `granted PATH TIME` when it has the lock, and keeps it.
//!
//! All times are nanoseconds on the one monotonic clock of the machine, and 0 is never. A pause of more than a session timeout
//! between two questions is noted as `RESUMED`, with the first answer after it.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::results::OURS;
use rustix::time::{ClockId, clock_gettime};
use support::process::{SAYS, say, test_in};
use tokio::runtime::Runtime;
use zk_rwlock::{HoldState, RwLock, WriteGuard, ZooKeeper};

/// The session timeout of every process.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(4);

/// The tick of the servers.
const TICK: Duration = Duration::from_millis(500);

/// Between two questions.
const PAUSE: Duration = Duration::from_millis(5);

/// Twenty virtual machines of Java that start at once on two cores take a while.
const PATIENCE: Duration = Duration::from_secs(180);

const CHILD: &str = "ZK_RWLOCK_NEMESIS_CHILD";

pub(crate) fn clock() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

// ---------------------------------------------------------------------------------------------------------------
// Ours

/// What the API says of a hold. Zero: never.
#[derive(Debug, Default)]
struct Said {
    signal: AtomicU64,
    lost: AtomicU64,
    over: AtomicBool,
}

struct Hold {
    guard: Arc<WriteGuard>,
    said: Arc<Said>,
    asker: JoinHandle<String>,
    zk: ZooKeeper,
}

async fn open(servers: &str) -> ZooKeeper {
    let builder = ZooKeeper::builder().session_timeout(TIMEOUT).tick_time(TICK).connect_timeout(PATIENCE);
    builder.connect(servers).await.expect("the servers can be reached")
}

async fn acquire(zk: &ZooKeeper, path: &str) -> WriteGuard {
    RwLock::new(zk, path).expect("a valid path").write().await.expect("it is granted")
}

impl Hold {
    async fn begin(servers: &str, path: &str) -> Hold {
        let zk = open(servers).await;
        let (guard, said) = (Arc::new(acquire(&zk, path).await), Arc::<Said>::default());
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
        let asked = self.asker.join().expect("the thread that asks does not panic");
        self.zk.close().await;
        format!("ended {signal} {lost} {asked}")
    }
}

fn ask(guard: &WriteGuard, said: &Said) -> String {
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
fn the_life_of_a_child() {
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
                say(&format!("held {}", hold.guard.path()));
            }
            ["end"] => say(&runtime.block_on(hold.take().expect("it holds").end())),
            ["wait", servers, path] => {
                let zk = waiting.get_or_insert_with(|| runtime.block_on(open(servers))).clone();
                let path = path.to_owned();
                runtime.spawn(async move {
                    let _guard = acquire(&zk, &path).await;
                    say(&format!("granted {path} {}", clock()));
                    std::future::pending::<()>().await;
                });
            }
            _ => panic!("what is {command:?}"),
        }
    }
    std::process::exit(0);
}

// ---------------------------------------------------------------------------------------------------------------
// The processes, as their parent sees them

fn home() -> PathBuf {
    let home = std::env::var_os("INTEROP_HOME").map(PathBuf::from);
    home.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/interop"))
}

pub(crate) struct Peer {
    pub(crate) child: Child,
    commands: ChildStdin,
    said: Receiver<String>,
    library: &'static str,
}

impl Peer {
    /// It says `ready` when it is.
    pub(crate) fn start(library: &'static str) -> Peer {
        let home = home();
        let mut command = match library {
            "Curator" => {
                let mut java = Command::new("java");
                java.args(["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp"]);
                java.arg(format!("{}/classes:{0}/jars/*", home.display())).arg("CuratorNemesis");
                java.stderr(Stdio::null());
                java
            }
            "kazoo" => {
                let mut python = Command::new(home.join("venv/bin/python"));
                python.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("nemesis/kazoo_nemesis.py"));
                python.stderr(Stdio::null());
                python
            }
            _ => Command::new(std::env::current_exe().unwrap()),
        };
        let is_ours = library == OURS;
        if is_ours {
            let test = test_in(module_path!(), "the_life_of_a_child");
            command.args([&test, "--exact", "--nocapture"]).env(CHILD, "yes");
        } else {
            command.args([TIMEOUT, PAUSE].map(|time| time.as_millis().to_string()));
        }
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = spawned.unwrap_or_else(|error| panic!("{library}: {error}; `make nemesis` provides it"));
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let (tell, said) = mpsc::channel();
        thread::spawn(move || {
            let words = |line: String| if is_ours { line.strip_prefix(SAYS).map(str::to_owned) } else { Some(line) };
            // The thread ends with the process, or with its listener.
            let _ended = lines.map_while(Result::ok).filter_map(words).try_for_each(|words| tell.send(words));
        });
        let commands = child.stdin.take().unwrap();
        Peer { child, commands, said, library }
    }

    pub(crate) fn tell(&mut self, command: &str) {
        self.commands.write_all(format!("{command}\n").as_bytes()).expect("it lives");
    }

    /// What follows this word in the next line that it says; blocks until it comes.
    pub(crate) fn says(&mut self, word: &str) -> String {
        let line = self.said.recv_timeout(PATIENCE).unwrap_or_else(|error| panic!("{}: {error}", self.library));
        let rest = line.strip_prefix(word).unwrap_or_else(|| panic!("{} says {line}, not {word}", self.library));
        rest.trim_start().to_owned()
    }
}

/// The process of all waiters of a library.
pub(crate) struct Waiters(Mutex<(Peer, HashMap<String, u64>)>);

impl Waiters {
    pub(crate) fn of(peer: Peer) -> Waiters {
        Waiters(Mutex::new((peer, HashMap::new())))
    }

    pub(crate) fn wait(&self, servers: &str, path: &str) {
        self.0.lock().unwrap().0.tell(&format!("wait {servers} {path}"));
    }

    /// When the lock at this path was granted to its waiter.
    pub(crate) fn granted(&self, path: &str) -> Option<u64> {
        let mut waiters = self.0.lock().unwrap();
        let (peer, granted) = &mut *waiters;
        for line in peer.said.try_iter() {
            let ["granted", path, time] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("what is {line:?}") };
            granted.insert(path.to_owned(), time.parse().expect("a time"));
        }
        granted.get(path).copied()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // Killing fails only if the child has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
