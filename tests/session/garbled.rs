//! A server whose frames are garbled at random: no call hangs or panics, no contender holds together with a writer, no commit is
//! lost or done twice, and no node stays.
//!
//! The clients run in child processes with little memory, as in `liars.rs`. `FUZZ_SECONDS` sets the duration, and `FUZZ_SEED`
//! starts with the case that failed.

use std::backtrace::Backtrace;
use std::collections::HashSet;
use std::collections::hash_map::RandomState;
use std::env;
use std::hash::BuildHasher;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use support::garble::{Garbler, Garbling};
use support::process::test_in;
use support::replay::{Run, judge};
use support::rounds::VIOLATED;
use support::scene::children;
use support::server::shared_server;
use support::standstill::Stint;
use support::trace;
use tempfile::NamedTempFile;
use tokio::task::JoinSet;
use zk_rwlock::{Error, Mode, ReadGuard, RwLock, Shared, WriteGuard, ZooKeeper};

/// The environment variable with a child's task: the server's address, the random seed of the first case, and the number of
/// cases. Each case has the next seed.
const CASES: &str = "ZK_RWLOCK_GARBLED";

/// The environment variable with the path of the file into which children write their traces.
const TRACE: &str = "ZK_RWLOCK_GARBLED_TRACE";

/// The path of the traced cases. The other cases are not traced, because their garbled bytes can deceive a contender about
/// the ensemble.
const TRACED: &str = "/garbled/Shape/";

/// The word with which a child reports success, followed by the number of updates that it checked.
const WELL: &str = "well";

/// The prefix that marks a child's own lines in the output of the test harness.
const SAYS: &str = "child says ";

const SESSION_TIMEOUT: Duration = Duration::from_secs(2);

const GARBLED_FOR: Duration = Duration::from_millis(1_500);

/// A call that exceeds its timeout by this time counts as hung.
const HANGS: Duration = Duration::from_secs(20);

/// The number of cases that a child runs concurrently. If one case claims too much memory, the whole child dies.
const AT_ONCE: u64 = 12;

/// The limit of a child's address space in kilobytes, as in `liars.rs`.
const MEMORY: u32 = 3_000_000;

/// The timeout of an acquisition or an update, which is shorter than the session timeout. An update starts again if its session
/// seems to have ended. Within this timeout, the node of the old session still blocks the second try, so a lying server cannot
/// make an update happen twice.
const LIMIT: Duration = Duration::from_millis(400);

const KEPT: Duration = Duration::from_millis(50);

/// The indices of a case's two clients: `GARBLED` is behind the garbler, and `SOUND` is connected directly.
const GARBLED: usize = 1;
const SOUND: usize = 0;

/// The host name in the nodes of the client behind the garbler.
const LIED_TO: &str = "garbled";

enum Held {
    Read(ReadGuard),
    Write(WriteGuard),
}

impl Held {
    fn writes(&self) -> bool {
        matches!(self, Held::Write(_))
    }

    fn is_held(&self) -> bool {
        match self {
            Held::Read(guard) => guard.is_held(),
            Held::Write(guard) => guard.is_held(),
        }
    }

    async fn release(self) -> Result<(), Error> {
        match self {
            Held::Read(guard) => guard.release().await,
            Held::Write(guard) => guard.release().await,
        }
    }
}

/// The present guard of each of a case's two clients.
type Holds = Arc<Mutex<[Option<Arc<Held>>; 2]>>;

struct Case {
    garbling: Garbling,
    holds: Holds,
    /// The number of updates that were done, and the number of updates with an unknown outcome.
    updates: Mutex<(u64, u64)>,
}

impl Case {
    async fn turn(&self, who: usize, lock: &RwLock, mode: Mode, limit: Duration) -> Result<Result<(), Error>, String> {
        let acquiring = async {
            match mode {
                Mode::Read => lock.read().timeout(limit).await.map(Held::Read),
                Mode::Write => lock.write().timeout(limit).await.map(Held::Write),
            }
        };
        let Ok(answer) = tokio::time::timeout(HANGS, acquiring).await else {
            return Err("an acquisition hangs".to_owned());
        };
        let guard = match answer {
            Ok(guard) => Arc::new(guard),
            Err(error) => return Ok(Err(error)),
        };
        {
            let mut holds = self.holds.lock().expect("nothing panics here");
            holds[who] = Some(Arc::clone(&guard));
            let held: Vec<_> = holds.iter().flatten().filter(|guard| guard.is_held()).collect();
            let are_two = held.len() > 1 && held.iter().any(|guard| guard.writes());
            // With `Garbling::Bytes`, a garbled reply can tell a client that an existing node is gone. So two holders prove a
            // fault of the library only with `Garbling::Shape`.
            if are_two && self.garbling == Garbling::Shape {
                return Err(format!("{VIOLATED}two hold the lock"));
            }
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
        self.holds.lock().expect("nothing panics here")[who] = None;
        let guard = Arc::into_inner(guard).ok_or("a guard is not alone")?;
        // The release goes on in the background when its future is dropped, so its result is ignored.
        let _certain_or_not = tokio::time::timeout(LIMIT, guard.release()).await;
        Ok(Ok(()))
    }

    async fn update(&self, who: usize, value: &Shared<u64>) -> Result<(), String> {
        let Ok(answer) = tokio::time::timeout(HANGS, value.update(|number| *number += 1).timeout(LIMIT)).await else {
            return Err("an update hangs".to_owned());
        };
        let mut updates = self.updates.lock().expect("nothing panics here");
        match answer {
            Ok(_) => updates.0 += 1,
            // An error of the garbled client may be false, so its update may have been done.
            Err(error) if who == GARBLED || matches!(error, Error::OutcomeUnknown { .. }) => updates.1 += 1,
            Err(_) => {}
        }
        Ok(())
    }

    async fn turns(&self, who: usize, lock: &RwLock, value: &Shared<u64>, until: Instant) -> Result<(), String> {
        for turn in 0.. {
            if Instant::now() >= until {
                break;
            }
            match turn % 4 {
                0 => self.update(who, value).await?,
                1 | 3 => drop(self.turn(who, lock, Mode::Write, LIMIT).await?),
                _ => drop(self.turn(who, lock, Mode::Read, LIMIT).await?),
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        Ok(())
    }
}

async fn connect(server: &str) -> Result<Option<ZooKeeper>, String> {
    let connecting = ZooKeeper::builder().session_timeout(SESSION_TIMEOUT).connect_timeout(SESSION_TIMEOUT);
    let answer = tokio::time::timeout(HANGS, connecting.connect(server)).await;
    Ok(answer.map_err(|_| "connecting hangs")?.ok())
}

/// Runs one case. Returns the number of updates that were checked against the value.
async fn run(server: String, seed: u64) -> Result<u64, String> {
    let garbling = if seed.is_multiple_of(3) { Garbling::Bytes } else { Garbling::Shape };
    let garbler = Garbler::start(&server, garbling, seed);
    let path = format!("/garbled/{garbling:?}/{seed}-{}", std::process::id());
    let open = |zk: &ZooKeeper, host: &str| {
        let lock = RwLock::builder(zk, &path).host(host);
        if seed.is_multiple_of(2) { lock.keep(KEPT) } else { lock }.build().expect("valid")
    };
    let value_of = |zk: &ZooKeeper, host: &str| {
        let value = Shared::builder(zk, format!("{path}-value")).initial(|| 0_u64).lock(|lock| lock.host(host));
        if seed.is_multiple_of(2) { value.lock(|lock| lock.keep(KEPT)) } else { value }.build().expect("valid")
    };
    let sound = connect(&server).await?.ok_or("the server itself gives no session")?;
    let case = Case { garbling, holds: Holds::default(), updates: Mutex::default() };
    let until = Instant::now() + GARBLED_FOR;
    let garbled = connect(&garbler.address()).await?;
    if let Some(zk) = &garbled {
        let (here, there) =
            ((open(&sound, "sound"), value_of(&sound, "sound")), (open(zk, LIED_TO), value_of(zk, LIED_TO)));
        let here = case.turns(SOUND, &here.0, &here.1, until);
        let (here, there) = tokio::join!(here, case.turns(GARBLED, &there.0, &there.1, until));
        here.and(there)?;
    }
    garbler.calm();
    // The garbled client may wait for the rest of a frame until its session ends. Its calls must still end in time.
    if let Some(zk) = garbled {
        let _granted_or_not = case.turn(GARBLED, &open(&zk, LIED_TO), Mode::Write, LIMIT).await?;
        tokio::time::timeout(HANGS, zk.close()).await.map_err(|_| "closing hangs")?;
    }
    // Only `Garbling::Shape` is checked for nodes that stay. With `Garbling::Bytes`, a garbled handshake may grant the client a
    // session timeout of a minute, which the next connection asks for again, and the nodes may stay as long.
    if garbling == Garbling::Shape {
        let closed = Instant::now();
        let value = format!("{path}-value/lock");
        while !children(&sound, &path).await.is_empty() || !children(&sound, &value).await.is_empty() {
            if closed.elapsed() > HANGS {
                return Err("a node stays though its session was closed".to_owned());
            }
            tokio::time::sleep(SESSION_TIMEOUT / 10).await;
        }
    }
    let fresh = connect(&garbler.address()).await?.ok_or("no session though all frames are whole")?;
    let granted = case.turn(GARBLED, &open(&fresh, "fresh"), Mode::Write, HANGS / 2).await?;
    let mut checked = 0;
    if garbling == Garbling::Shape {
        granted.map_err(|error| format!("the lock is free, and not granted: {error}"))?;
        let value = tokio::time::timeout(HANGS, value_of(&fresh, "fresh").read()).await.map_err(|_| "a read hangs")?;
        let value = *value.map_err(|error| format!("the value cannot be read: {error}"))?;
        let (done, unknown) = *case.updates.lock().expect("nothing panics here");
        if !(done..=done + unknown).contains(&value) {
            return Err(format!(
                "{VIOLATED}the value is {value}; {done} updates were done, and of {unknown} it is not known"
            ));
        }
        checked = done;
    }
    tokio::time::timeout(HANGS, fresh.close()).await.map_err(|_| "closing hangs")?;
    Ok(checked)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_child_process_of_other_tests() {
    let Ok(order) = env::var(CASES) else { return };
    trace::record_to(Path::new(&env::var(TRACE).expect("a file")), &[TRACED]);
    let mut order = order.split(' ').map(str::to_owned);
    let mut next = || order.next().expect("a server, a seed and a number");
    let (server, first, cases) =
        (next(), next().parse::<u64>().expect("a seed"), next().parse::<u64>().expect("a number"));
    static HAS_PANICKED: AtomicBool = AtomicBool::new(false);
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        // On some frames, the client crate panics in a task of its own, and the panic ends the session. Such a panic is no fault
        // of the library. A release build may inline the crate's function, so that its name is missing from the backtrace.
        let is_its_line = panic.location().is_some_and(|at| at.file().contains("/zookeeper-client-"));
        let trace = Backtrace::force_capture().to_string();
        let (its, ours) = (trace.find("zookeeper_client::"), trace.find("zk_rwlock::"));
        if !is_its_line && its.is_none_or(|its| ours.is_some_and(|ours| ours < its)) {
            HAS_PANICKED.store(true, Ordering::Relaxed);
            before(panic);
        }
    }));
    let mut running = JoinSet::new();
    for seed in (0..cases).map(|i| first.wrapping_add(i)) {
        let server = server.clone();
        running.spawn(async move { run(server, seed).await.map_err(|why| format!("{why}: FUZZ_SEED={seed}")) });
    }
    let (mut words, mut updates) = (WELL.to_owned(), 0);
    while let Some(ended) = running.join_next().await {
        match ended {
            Ok(Ok(done)) => updates += done,
            Ok(Err(why)) => words = why,
            Err(error) => words = format!("a panic: {error}"),
        }
    }
    if HAS_PANICKED.load(Ordering::Relaxed) {
        words = format!("a panic, with one of {cases} cases: FUZZ_SEED={first}");
    }
    if words == WELL {
        words = format!("{WELL} {updates}");
    }
    println!("\n{SAYS}{words}");
    std::process::exit(0);
}

/// Runs these cases in a child and returns the child's report. Returns `None` if the child was killed because the client crate
/// claimed as much memory as a garbled frame announced.
fn child(server: &str, first: u64, cases: u64, traces: &Path) -> Option<String> {
    let output = Command::new("sh")
        .args(["-c", &format!("ulimit -v {MEMORY}; exec \"$0\" \"$@\"")])
        .arg(env::current_exe().unwrap())
        .args([&test_in(module_path!(), "the_child_process_of_other_tests"), "--exact", "--nocapture"])
        .env(CASES, format!("{server} {first} {cases}"))
        .env(TRACE, traces)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let (said, cried) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    match said.lines().find_map(|line| line.strip_prefix(SAYS)) {
        Some(words) if words.starts_with(WELL) => Some(words.to_owned()),
        Some(words) => Some(format!("{words}\n{cried}")),
        None if cried.contains("memory allocation of") => None,
        None => Some(format!("a child died: {} FUZZ_SEED={first}\n{said}\n{cried}", output.status)),
    }
}

#[support::judged]
fn no_garbled_frame_hangs_a_call_or_makes_two_holders() {
    let number = |name: &str| env::var(name).ok().map(|number| number.parse::<u64>().expect("a whole number"));
    let stint = Stint::begin(Duration::from_secs(number("FUZZ_SECONDS").unwrap_or(0)));
    let seed = number("FUZZ_SEED").unwrap_or_else(|| RandomState::new().hash_one(Instant::now()));
    let server = shared_server().address();
    let traces = NamedTempFile::new().expect("a file");
    let (mut cases, mut ended, mut updates) = (0, 0, 0);
    loop {
        let first = seed.wrapping_add(cases);
        let firsts = [first, first.wrapping_add(AT_ONCE)];
        let said = thread::scope(|scope| {
            let children = firsts.map(|first| {
                scope.spawn({
                    let (server, traces) = (&server, traces.path());
                    move || child(server, first, AT_ONCE, traces)
                })
            });
            children.map(|child| child.join().expect("children are waited for"))
        });
        for words in said {
            match words {
                Some(words) => match words.strip_prefix(WELL).and_then(|updates| updates.trim().parse::<u64>().ok()) {
                    Some(done) => updates += done,
                    None => panic!("{words}"),
                },
                None => ended += AT_ONCE,
            }
        }
        cases += 2 * AT_ONCE;
        let message = || format!("of {cases} cases {ended} were ended, and only {updates} updates were done");
        if stint.is_over(ended < cases && updates > 0 && has_released(&traces), message) {
            break;
        }
    }
    println!(
        "{cases} cases from seed {seed} on, with {updates} updates; {ended} of them with one that claimed more memory than there is"
    );
    // All children have ended, and each has checked by itself that its waits ended.
    let run = traced(&traces);
    let verdict = judge(&run);
    println!("{:?}", verdict.seen);
    if let Some(first) = verdict.faults.first() {
        show_case(&run, first);
    }
    assert_eq!(verdict.faults, Vec::<String>::new(), "FUZZ_SEED={seed}");
}

/// Returns the children's traces with the server's transaction log.
fn traced(traces: &NamedTempFile) -> Run {
    let mut run = Run::of(&[TRACED], shared_server().transactions(), Vec::new(), HashSet::new());
    run.events = trace::read(traces.path(), |_| true);
    (run.guarded, run.lied_to) = (vec![TRACED.to_owned()], Some(LIED_TO.to_owned()));
    run
}

/// Prints all events and transactions of the lock in this fault, because a case seldom fails twice.
fn show_case(run: &Run, fault: &str) {
    let Some(path) = fault.split(' ').find(|word| word.starts_with(TRACED)) else { return };
    let directory = path.split('/').take(4).collect::<Vec<_>>().join("/");
    let is_of_it = |text: &str| text.contains(&directory);
    let its = run.events.iter().map(|event| (event.at, format!("{event:?}")));
    let logged = run.log.iter().map(|txn| (txn.time, format!("{txn:?}")));
    let mut lines: Vec<_> = its.chain(logged).filter(|(_, line)| is_of_it(line)).collect();
    lines.sort();
    lines.iter().for_each(|(_, line)| println!("{line}"));
}

fn has_released(traces: &NamedTempFile) -> bool {
    judge(&traced(traces)).seen.contains_key("Release")
}
