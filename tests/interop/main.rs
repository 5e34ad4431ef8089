//! `make interop`: our lock together with those of Curator, kazoo and zookeeper-client, each in a process of its own,
//! on a real server.
//!
//! The test is not part of `cargo test`, because it needs the programs that `tests/interop/setup.sh` installs. The
//! fleets that contend share the time `INTEROP_SECONDS` (180).
//!
//! A driver is a process that reads commands from its standard input, and uses one library's lock as they say. All
//! drivers take the same commands. The drivers in other languages are in `tests/interop/`. A driver in Rust is this
//! test binary: [`the_child_process_of_other_tests`], selected by an environment variable.

use std::collections::{BTreeMap, HashSet};
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use support::peer::{Peer, child_of, java, python};
use support::process::{say, signal};
use support::replay::{self, Run};
use support::scene::*;
use support::server::shared_server;
use support::trace;
use tokio::runtime::Runtime;
use zk_rwlock::coordinator::Kind;
use zk_rwlock::{Dialect, Error, ReadGuard, RwLock, WriteGuard, ZooKeeper};
use zookeeper_client as zk;

/// The session timeout of every process. It is long enough for a busy machine. After each kill, the waiters wait for
/// this time.
const SESSION_TIMEOUT: Duration = Duration::from_secs(4);

/// The number of times that each contender must hold the lock. A contender continues until then, even after the time
/// for the test is over. So a test with a starved contender never ends.
const HOLDS_AT_LEAST: u64 = 3;

/// The environment variable that makes this test binary run as a driver: a process that uses a lock on command.
const CHILD: &str = "ZK_RWLOCK_INTEROP_CHILD";

fn seconds() -> u64 {
    std::env::var("INTEROP_SECONDS").map_or(180, |seconds| seconds.parse().expect("INTEROP_SECONDS is a number"))
}

/// Waits until no other fleet runs, because each fleet needs all cores of a small machine. Dropping the returned value
/// lets the next fleet run.
fn alone() -> impl Drop {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

// ------------------------------------------------------------------------------------------------- The drivers in Rust

/// A guard of our lock, or of zookeeper-client's lock.
enum Guard {
    Read(ReadGuard),
    Write(WriteGuard),
    Foreign(zk::OwnedLockClient),
}

impl Guard {
    fn path(&self) -> String {
        match self {
            Guard::Read(guard) => guard.node_path(),
            Guard::Write(guard) => guard.node_path(),
            Guard::Foreign(guard) => guard.lock_path().to_owned(),
        }
    }

    async fn release(self, client: &zk::Client) {
        match self {
            Guard::Read(guard) => guard.release().await.unwrap(),
            Guard::Write(guard) => guard.release().await.unwrap(),
            Guard::Foreign(guard) => {
                client.delete(guard.lock_path(), None).await.unwrap();
                // When it is dropped, zookeeper-client's guard sends a second delete, which fails because the node is
                // gone.
                drop(guard);
            }
        }
    }
}

/// The state of a child process of this test that takes our lock, or zookeeper-client's, on command.
struct Driver {
    client: zk::Client,
    /// Our lock, or `None` for a driver that uses zookeeper-client's own lock.
    lock: Option<RwLock>,
    dialect: Dialect,
    path: String,
    value: String,
    log: PathBuf,
    name: String,
}

impl Driver {
    async fn open(words: &[&str]) -> Driver {
        let [library, servers, path, value, log, name, dialect] = words else { panic!("{words:?}") };
        let dialect: Dialect = dialect.parse().unwrap();
        let zk = connect_with(servers, SESSION_TIMEOUT).await;
        let lock = RwLock::builder(&zk, path).dialect(dialect).build().unwrap();
        Driver {
            client: zk::Client::connector().with_session_timeout(SESSION_TIMEOUT).connect(servers).await.unwrap(),
            lock: (*library == "ours").then_some(lock),
            dialect,
            path: (*path).to_owned(),
            value: (*value).to_owned(),
            log: PathBuf::from(log),
            name: (*name).to_owned(),
        }
    }

    async fn acquire(&self, mode: &str) -> Guard {
        match (&self.lock, mode) {
            (Some(lock), "read") => Guard::Read(lock.read().await.unwrap()),
            (Some(lock), _) => Guard::Write(lock.write().await.unwrap()),
            (None, _) => self.acquire_foreign().await,
        }
    }

    async fn acquire_foreign(&self) -> Guard {
        let (path, hex) = (&self.path, format!("{:032x}", rand_u128()));
        let prefix = match self.dialect {
            Dialect::Curator => zk::LockPrefix::new_custom(format!("{path}/{hex}__WRIT__"), "__"),
            Dialect::Kazoo => zk::LockPrefix::new_custom(format!("{path}/{hex}__lock__"), "lock__"),
            Dialect::CuratorMutex => zk::LockPrefix::new_curator(path, "lock-"),
            _ => zk::LockPrefix::new_custom(format!("{path}/other~{hex}-WRITE-"), "-"),
        };
        let parent = zk::CreateMode::Container.with_acls(zk::Acls::anyone_all());
        let options = zk::LockOptions::new(zk::Acls::anyone_all()).with_ancestor_options(parent).unwrap();
        let guard = self.client.lock(prefix.unwrap(), b"", options).await.unwrap();
        Guard::Foreign(guard.into_owned())
    }

    fn note(&self, words: &str) {
        let mut log = OpenOptions::new().append(true).open(&self.log).unwrap();
        log.write_all(format!("{words}\n").as_bytes()).unwrap();
    }

    async fn value(&self) -> u64 {
        number(&self.client.get_data(&self.value).await.unwrap().0)
    }

    /// Holds the lock once, and reads the protected value or increments it.
    async fn hold(&self, chance: &mut Seeded) {
        let mode = if self.lock.is_none() || chance.below(3) == 0 { "write" } else { "read" };
        let guard = self.acquire(mode).await;
        let letter = if mode == "write" { "W" } else { "R" };
        let token = self.client.check_stat(&guard.path()).await.unwrap().expect("the lock is held").czxid;
        self.note(&format!("B {} {letter} {token}", self.name));
        let before = self.value().await;
        tokio::time::sleep(Duration::from_millis(chance.below(4))).await;
        let after = if mode == "write" {
            self.client.set_data(&self.value, (before + 1).to_string().as_bytes(), None).await.unwrap();
            before + 1
        } else {
            self.value().await
        };
        // A contender that downgrades still holds, so it must read the value that it wrote.
        match guard {
            Guard::Write(guard) if chance.below(3) == 0 => {
                self.note(&format!("D {} {before} {after}", self.name));
                let guard = guard.downgrade().await.unwrap();
                self.note(&format!("E {} R {after} {}", self.name, self.value().await));
                guard.release().await.unwrap();
            }
            guard => {
                self.note(&format!("E {} {letter} {before} {after}", self.name));
                guard.release(&self.client).await;
            }
        }
    }

    async fn obey(&self, command: &str, held: &mut BTreeMap<String, Guard>) -> String {
        let words: Vec<_> = command.split(' ').collect();
        match words[..] {
            [mode @ ("read" | "write")] => {
                let guard = self.acquire(mode).await;
                let path = guard.path();
                held.insert(mode.to_owned(), guard);
                format!("held {path}")
            }
            ["release", mode] => {
                held.remove(mode).expect("held").release(&self.client).await;
                "released".to_owned()
            }
            ["contend", seed, milliseconds] => {
                let mut chance = Seeded(seed.parse().unwrap());
                let end = Instant::now() + Duration::from_millis(milliseconds.parse().unwrap());
                let mut holds = 0;
                while Instant::now() < end || holds < HOLDS_AT_LEAST {
                    self.hold(&mut chance).await;
                    holds += 1;
                }
                "done".to_owned()
            }
            _ => panic!("unknown command {command:?}"),
        }
    }
}

/// Returns the file for our library's traces, which is next to the log that all drivers share.
fn traces(log: &Path) -> PathBuf {
    log.with_extension("traces")
}

fn number(data: &[u8]) -> u64 {
    std::str::from_utf8(data).unwrap().parse().unwrap()
}

fn rand_u128() -> u128 {
    use std::hash::BuildHasher;
    let random = || u128::from(std::collections::hash_map::RandomState::new().hash_one(0));
    random() << 64 | random()
}

#[test]
fn the_child_process_of_other_tests() {
    let Ok(words) = std::env::var(CHILD) else { return };
    let words: Vec<_> = words.split(' ').collect();
    trace::record_to(&traces(Path::new(words[4])), &[words[2]]);
    let runtime = Runtime::new().unwrap();
    let driver = runtime.block_on(Driver::open(&words));
    let mut held = BTreeMap::new();
    say("ready");
    for command in std::io::stdin().lock().lines() {
        say(&runtime.block_on(driver.obey(&command.unwrap(), &mut held)));
    }
    std::process::exit(0);
}

// ---------------------------------------------------------------------------------------- The handles of the processes

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Library {
    Ours,
    Curator,
    Kazoo,
    ZookeeperClient,
}

/// A fleet: its server, the path for which its processes contend, their log, and the processes.
struct Field {
    zk: ZooKeeper,
    dialect: Dialect,
    path: String,
    value: String,
    /// The temporary directory of the log and the traces.
    files: tempfile::TempDir,
}

impl Field {
    async fn set(what: &str, dialect: Dialect) -> Field {
        let zk = connect(&shared_server().address()).await;
        let (path, value) = (format!("/interop-{what}-{dialect}"), format!("/value-{what}-{dialect}"));
        let session = session(&zk).await;
        // Makes the directory persistent, because kazoo checks only once that the directory exists. A container would
        // disappear when empty.
        if dialect == Dialect::Curator {
            session.create(&path, b"", Kind::Persistent).await.unwrap();
        }
        session.create(&value, b"0", Kind::Persistent).await.unwrap();
        let field = Field { zk, dialect, path, value, files: tempfile::tempdir().unwrap() };
        // Creates the log, to which the drivers append.
        std::fs::File::create(field.log()).unwrap();
        field
    }

    fn log(&self) -> PathBuf {
        self.files.path().join("log")
    }

    fn lock(&self) -> RwLock {
        RwLock::builder(&self.zk, &self.path).dialect(self.dialect).build().unwrap()
    }

    fn start(&self, library: Library, name: &str) -> Peer {
        let (server, log) = (shared_server().address(), self.log().display().to_string());
        let dialect = self.dialect.to_string();
        let mut command = match library {
            Library::Curator => java("CuratorPeer"),
            Library::Kazoo => python("interop/kazoo_peer.py"),
            Library::Ours | Library::ZookeeperClient => child_of(module_path!()),
        };
        if matches!(library, Library::Curator | Library::Kazoo) {
            let timeout = SESSION_TIMEOUT.as_millis().to_string();
            command.args([&server, &self.path, &self.value, &log, name, &timeout, &dialect]);
        } else {
            let library = if library == Library::Ours { "ours" } else { "zookeeper-client" };
            let words = [library, &server, &self.path, &self.value, &log, name, &dialect].join(" ");
            command.env(CHILD, words).stderr(Stdio::null());
        }
        let mut process = Peer::start(command, name);
        process.says("ready");
        process
    }

    /// Writes into the log that a process is dead: from then on the server may grant its lock to another process.
    fn note_end(&self, name: &str) {
        let mut log = OpenOptions::new().append(true).open(self.log()).unwrap();
        log.write_all(format!("K {name}\n").as_bytes()).unwrap();
    }

    async fn queue_has(&self, members: usize) {
        eventually("the contender queues up", || async { children(&self.zk, &self.path).await.len() == members }).await;
    }
}

fn release(process: &mut Peer, mode: &str) {
    process.send(&format!("release {mode}"));
    process.says("released");
}

// -------------------------------------------------------------------------------------------------- Contenders in turn

/// Returns the libraries that use this dialect, each with whether it also has a read lock.
fn fleet(dialect: Dialect) -> Vec<(Library, bool)> {
    match dialect {
        Dialect::Curator => vec![
            (Library::Ours, true),
            (Library::Curator, true),
            (Library::Kazoo, true),
            (Library::ZookeeperClient, false),
        ],
        Dialect::CuratorMutex => {
            vec![(Library::Ours, true), (Library::Curator, false), (Library::ZookeeperClient, false)]
        }
        Dialect::Kazoo => vec![(Library::Ours, true), (Library::Kazoo, true), (Library::ZookeeperClient, false)],
        _ => vec![(Library::Ours, true), (Library::ZookeeperClient, false)],
    }
}

/// Checks that contenders that queue up behind a writer are granted the lock in the order of their arrival, and
/// adjacent readers together.
async fn turns_are_taken_in_the_order_of_arrival(dialect: Dialect) {
    let _alone = alone();
    let field = Field::set("turns", dialect).await;
    let lock = field.lock();
    let gate = lock.write().await.unwrap();
    let fleet = fleet(dialect);
    let readers = || fleet.iter().filter(|(_, reads)| *reads).map(|(library, _)| (*library, "read"));
    let writers = || fleet.iter().map(|(library, _)| (*library, "write"));
    let line: Vec<_> = writers().chain(readers()).chain(writers().rev()).chain(readers()).collect();
    let mut processes = Vec::new();
    for (i, (library, mode)) in line.iter().enumerate() {
        let mut process = field.start(*library, &format!("{library:?}-{i}"));
        process.send(mode);
        field.queue_has(i + 2).await;
        processes.push((process, *mode));
    }
    let members = lock.queue().await.unwrap().members;
    let modes: Vec<_> = members.iter().skip(1).map(|it| it.mode.to_string().to_lowercase()).collect();
    assert_eq!(modes, line.iter().map(|(_, mode)| *mode).collect::<Vec<_>>());
    gate.release().await.unwrap();
    let mut next = 0;
    while next < processes.len() {
        // The next group is one writer, or all readers before the next writer.
        let together = processes[next..].iter().take_while(|(_, mode)| *mode == "read").count().max(1);
        let (now, later) = processes[next..].split_at_mut(together);
        for (process, _) in now.iter_mut() {
            process.says("held");
        }
        assert!(later.iter().all(|(process, _)| process.is_silent()), "{dialect}: a contender overtakes number {next}");
        for (process, mode) in now {
            release(process, mode);
        }
        next += together;
    }
    becomes_empty(&field.zk, &field.path).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn turns_with_curator_and_kazoo_are_taken_in_order() {
    turns_are_taken_in_the_order_of_arrival(Dialect::Curator).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn turns_with_curators_mutex_are_taken_in_order() {
    turns_are_taken_in_the_order_of_arrival(Dialect::CuratorMutex).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn turns_with_kazoo_are_taken_in_order() {
    turns_are_taken_in_the_order_of_arrival(Dialect::Kazoo).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn turns_with_zookeeper_client_are_taken_in_order() {
    turns_are_taken_in_the_order_of_arrival(Dialect::Native).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn curators_revoker_writes_to_nodes_but_grants_nothing() {
    let _alone = alone();
    for dialect in [Dialect::Curator, Dialect::CuratorMutex] {
        let field = Field::set("revoke", dialect).await;
        let lock = field.lock();
        let (mut holder, mut revoker) =
            (field.start(Library::Curator, "holder"), field.start(Library::Curator, "revoker"));
        holder.send("write");
        let theirs = holder.says("held");
        let ours = writer(&lock);
        line_becomes(&lock, "W+ W-").await;
        revoker.send(&format!("revoke {theirs}"));
        revoker.says("revoked");
        line_becomes(&lock, "W+ W-").await;
        assert!(!ours.is_finished());
        release(&mut holder, "write");
        let ours = granted(ours).await;
        holder.send("write");
        line_becomes(&lock, "W+ W-").await;
        revoker.send(&format!("revoke {}", ours.node_path()));
        revoker.says("revoked");
        assert!(ours.is_held() && holder.is_silent());
        ours.release().await.unwrap();
        holder.says("held");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_curator_thread_in_both_modes_blocks_writers() {
    let _alone = alone();
    let field = Field::set("reentrant", Dialect::Curator).await;
    let lock = field.lock();
    let mut curator = field.start(Library::Curator, "curator");
    curator.send("write");
    curator.says("held");
    let reads = reader(&lock);
    line_becomes(&lock, "W+ R-").await;
    let writes = writer(&lock);
    line_becomes(&lock, "W+ R- W-").await;
    curator.send("read");
    curator.says("held");
    assert_eq!(lock.queue().await.unwrap().holders().count(), 2);
    assert!(!reads.is_finished());
    release(&mut curator, "write");
    let reads = granted(reads).await;
    reads.release().await.unwrap();
    line_becomes(&lock, "R+ W-").await;
    assert!(!writes.is_finished());
    release(&mut curator, "read");
    granted(writes).await.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_evicted_waiter_queues_up_at_the_end_or_fails() {
    let _alone = alone();
    for (library, goes_on) in [(Library::Curator, true), (Library::Kazoo, true), (Library::ZookeeperClient, false)] {
        let field = Field::set(&format!("evicted-{library:?}"), Dialect::Curator).await;
        let lock = field.lock();
        let gate = lock.write().await.unwrap();
        let mut evicted = field.start(library, "evicted");
        evicted.send("write");
        field.queue_has(2).await;
        let next = writer(&lock);
        line_becomes(&lock, "W+ W- W-").await;
        let token = lock.queue().await.unwrap().members[1].token.unwrap();
        assert!(lock.evict(token).await.unwrap().is_some());
        gate.release().await.unwrap();
        let next = granted(next).await;
        if goes_on {
            line_becomes(&lock, "W+ W-").await;
            assert!(evicted.is_silent(), "{library:?} is granted before its turn");
            next.release().await.unwrap();
            evicted.says("held");
            release(&mut evicted, "write");
        } else {
            evicted.ends().await;
            next.release().await.unwrap();
        }
        becomes_empty(&field.zk, &field.path).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_contender_behind_an_unreadable_node_fails() {
    let _alone = alone();
    for library in [Library::Curator, Library::Kazoo, Library::ZookeeperClient] {
        let field = Field::set(&format!("closed-{library:?}"), Dialect::Curator).await;
        let builder = ZooKeeper::builder().session_timeout(SESSION_TIMEOUT).digest("us", "secret");
        let zk = builder.connect(&shared_server().address()).await.unwrap();
        let lock = RwLock::builder(&zk, &field.path).dialect(field.dialect).build().unwrap();
        let held = lock.write().await.unwrap();
        let mut refused = field.start(library, "refused");
        refused.send("write");
        refused.ends().await;
        assert!(held.is_held());
        held.release().await.unwrap();
        becomes_empty(&field.zk, &field.path).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn contenders_of_another_dialect_are_refused_by_name() {
    let _alone = alone();
    for (library, theirs) in [
        (Library::Curator, Dialect::Curator),
        (Library::Curator, Dialect::CuratorMutex),
        (Library::Kazoo, Dialect::Kazoo),
        (Library::ZookeeperClient, Dialect::CuratorMutex),
    ] {
        let field = Field::set(&format!("refused-{library:?}"), theirs).await;
        let mut holder = field.start(library, "holder");
        holder.send("write");
        let node = holder.says("held");
        for dialect in Dialect::ALL.into_iter().filter(|dialect| *dialect != theirs) {
            let lock = RwLock::builder(&field.zk, &field.path).dialect(dialect).build().unwrap();
            let error = soon("the refusal", lock.read()).await.unwrap_err();
            let Error::ForeignContender { node: named, speaks, .. } = &error else { panic!("{error}") };
            assert_eq!((format!("{}/{named}", field.path), *speaks), (node.clone(), theirs));
        }
        assert_eq!(children(&field.zk, &field.path).await.len(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_waiter_queues_up_at_the_end_or_fails() {
    let _alone = alone();
    for (library, goes_on) in
        [(Library::Curator, true), (Library::Kazoo, true), (Library::ZookeeperClient, false), (Library::Ours, false)]
    {
        let field = Field::set(&format!("frozen-{library:?}"), Dialect::Curator).await;
        let lock = field.lock();
        let gate = lock.write().await.unwrap();
        let mut frozen = field.start(library, "frozen");
        frozen.send("write");
        field.queue_has(2).await;
        signal(frozen.child.id(), "STOP");
        field.queue_has(1).await;
        let next = writer(&lock);
        line_becomes(&lock, "W+ W-").await;
        signal(frozen.child.id(), "CONT");
        if !goes_on {
            frozen.ends().await;
        }
        gate.release().await.unwrap();
        let next = granted(next).await;
        if goes_on {
            // Curator makes a new node once it notices that its old one is gone. It may notice only after the release
            // above.
            line_becomes(&lock, "W+ W-").await;
            assert!(frozen.is_silent(), "{library:?} is granted before its turn");
            next.release().await.unwrap();
            frozen.says("held");
            release(&mut frozen, "write");
        } else {
            next.release().await.unwrap();
        }
        becomes_empty(&field.zk, &field.path).await;
    }
}

// --------------------------------------------------------------------------- Contenders at random, some of them killed

/// Judges a fleet's log, line by line.
#[derive(Default)]
struct Judge {
    /// The names of the processes that hold the lock, each with whether it holds as a writer.
    holders: BTreeMap<String, bool>,
    last_token: i64,
    last_write_token: i64,
    /// The protected value. After the kill of a writer the value is uncertain, because the writer may have written or
    /// not.
    value: u64,
    unsure: u64,
    holds: BTreeMap<String, u64>,
}

impl Judge {
    fn hear(&mut self, line: &str) {
        let words: Vec<_> = line.split(' ').collect();
        match words[..] {
            ["B", name, mode, token] => {
                let (writes, token) = (mode == "W", token.parse::<i64>().unwrap());
                let conflicts = self.holders.values().any(|other| writes || *other);
                assert!(!conflicts, "{line}: granted together with {:?}", self.holders);
                let excluded = if writes { self.last_token } else { self.last_write_token };
                assert!(token > excluded, "{line}: granted after token {excluded}");
                self.last_token = self.last_token.max(token);
                if writes {
                    self.last_write_token = token;
                }
                self.holders.insert(name.to_owned(), writes);
            }
            ["D", name, before, after] => {
                self.see(line, true, before, after);
                self.holders.insert(name.to_owned(), false);
            }
            ["E", name, mode, before, after] => {
                self.see(line, mode == "W", before, after);
                assert!(self.holders.remove(name).is_some(), "{line}: did not hold");
                *self.holds.entry(name.to_owned()).or_default() += 1;
            }
            ["K", name] => {
                self.holds.entry(name.to_owned()).or_default();
                if self.holders.remove(name) == Some(true) {
                    self.unsure += 1;
                }
            }
            _ => panic!("unexpected line {line:?}"),
        }
    }

    /// Checks the value at the beginning of a hold (`before`) and at its end (`after`).
    fn see(&mut self, line: &str, writes: bool, before: &str, after: &str) {
        let (before, after): (u64, u64) = (before.parse().unwrap(), after.parse().unwrap());
        assert!((self.value..=self.value + self.unsure).contains(&before), "{line}: the value is {}", self.value);
        assert_eq!(after - before, u64::from(writes), "{line}: the value changed while it was locked");
        self.unsure = if writes { 0 } else { self.unsure - (before - self.value) };
        self.value = after;
    }
}

async fn contend(dialect: Dialect) {
    let _alone = alone();
    let field = Field::set("contend", dialect).await;
    let time = Duration::from_secs(seconds()) / 3;
    let fleet = fleet(dialect);
    let begun = Instant::now();
    let mut seed = 0_u64;
    let mut enlist = |library: Library| {
        seed += 1;
        let mut process = field.start(library, &format!("{library:?}-{seed}"));
        let left = time.saturating_sub(begun.elapsed()).as_millis();
        process.send(&format!("contend {seed} {left}"));
        process
    };
    let mut killed = Vec::new();
    let mut processes: Vec<_> = fleet.iter().chain(&fleet).map(|(library, _)| enlist(*library)).collect();
    // Kills the processes in turn, and starts a new process in place of each.
    for (i, (library, _)) in fleet.iter().enumerate() {
        let at = time * (i as u32 + 1) / (fleet.len() as u32 + 2);
        tokio::time::sleep(at.saturating_sub(begun.elapsed())).await;
        let victim = processes
            .iter()
            .position(|it| it.name.starts_with(&format!("{library:?}-")))
            .expect("there are two processes of each library");
        let mut victim = processes.remove(victim);
        victim.kill();
        killed.push(victim.child.id());
        field.note_end(&victim.name);
        processes.push(enlist(*library));
    }
    for process in &mut processes {
        let limit = time.saturating_sub(begun.elapsed()) + SOON;
        assert_eq!(process.says_within(limit).as_deref(), Some("done"), "{} is stuck", process.name);
    }
    let mut judge = Judge::default();
    for line in BufReader::new(std::fs::File::open(field.log()).unwrap()).lines() {
        judge.hear(&line.unwrap());
    }
    assert!(judge.holders.is_empty(), "{:?}", judge.holders);
    let last = number(&session(&field.zk).await.data(&field.value).await.unwrap().0);
    assert!(
        (judge.value..=judge.value + judge.unsure).contains(&last),
        "the last value is {last}, not {}",
        judge.value
    );
    for process in &processes {
        let holds = judge.holds.get(&process.name).copied().unwrap_or_default();
        assert!(holds >= HOLDS_AT_LEAST, "{} held {holds} times: {:?}", process.name, judge.holds);
    }
    println!("{dialect}: {} writes, holds {:?}", last, judge.holds);
    becomes_empty(&field.zk, &field.path).await;
    let events = trace::read(&traces(&field.log()), |pid| killed.contains(&pid));
    let log = shared_server().transactions();
    let run = Run { events, ..Run::of(&[&format!("{}/", field.path)], log, Vec::new(), HashSet::new()) };
    let verdict = replay::judge(&run);
    println!("{dialect}: {} events replayed: {:?}", run.events.len(), verdict.seen);
    assert_eq!(verdict.faults, Vec::<String>::new());
    assert!(verdict.seen["Release"] > 0 && verdict.seen["List"] > 0, "{:?}", verdict.seen);
}

#[tokio::test(flavor = "multi_thread")]
async fn all_libraries_contend_and_are_killed_in_turn() {
    contend(Dialect::Curator).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn curators_mutex_and_ours_contend_and_die_in_turn() {
    contend(Dialect::CuratorMutex).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn kazoo_and_ours_contend_and_are_killed_in_turn() {
    contend(Dialect::Kazoo).await;
}
