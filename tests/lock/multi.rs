//! Several locks taken together by [`MultiLock`]: on the embedded ensemble, where futures are polled by hand and time is virtual,
//! and on a real server.

use std::collections::BTreeMap;
use std::future::{Future, IntoFuture};
use std::hash::{BuildHasher, RandomState};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use futures::StreamExt;
use support::polled::now;
use support::scene::*;
use support::server::{Server, shared_server};
use support::several::several;
use support::slow::Slow;
use support::two::TwoSessions;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_test::task::{self, Spawn};
use tokio_test::{assert_pending, assert_ready, assert_ready_err, assert_ready_ok};
use zk_rwlock::coordinator::{Coordinator, Failure};
use zk_rwlock::error::SessionEnd;
use zk_rwlock::hold::Outcome;
use zk_rwlock::queue::Progress;
use zk_rwlock::{Error, HoldState, Loss, Memory, Mode, MultiGuard, MultiLock, RwLock, WriteGuard};

use Mode::{Read, Write};

type Acquiring = Spawn<Pin<Box<dyn Future<Output = Result<MultiGuard, Error>> + Send>>>;

fn multi<C: Coordinator + Clone>(zk: &C, locks: &[(&str, Mode)]) -> MultiLock {
    several(zk, locks.iter().copied()).expect("valid")
}

fn acquiring(lock: &MultiLock) -> Acquiring {
    task::spawn(Box::pin(lock.lock().into_future()))
}

fn lock(lock: &MultiLock) -> MultiGuard {
    now(lock.lock().into_future()).expect("free")
}

fn write<C: Coordinator + Clone>(zk: &C, path: &str) -> WriteGuard {
    now(RwLock::new(zk, path).expect("valid").write().into_future()).expect("free")
}

/// Returns the number of contenders in each of these directories.
fn queued<const N: usize>(zk: &Memory, directories: [&str; N]) -> [usize; N] {
    directories.map(|directory| zk.children(directory).len())
}

/// Returns the path of the lock that failed, and its error.
#[track_caller]
fn of_one(error: &Error) -> (&str, &Error) {
    match error {
        Error::OneOfMany { path, error } => (path, error),
        other => panic!("the error names no lock: {other}"),
    }
}

/// Returns the reason why these locks cannot be taken together, or an empty text if they can.
fn refusal(locks: [RwLock; 2]) -> String {
    let [one, other] = &locks;
    let both = [(one, Write), (other, Read)];
    let turned = [(other, Read), (one, Write)];
    let [refused, also] = [MultiLock::new(both), MultiLock::new(turned)].map(|it| it.err());
    assert_eq!(refused.is_some(), also.is_some());
    refused.map_or_else(String::new, |error| {
        assert!(matches!(error, Error::InvalidInput(_)), "{error:?}");
        error.to_string()
    })
}

#[test]
fn locks_of_two_embedded_ensembles_are_refused() {
    let (zk, another) = (Memory::new(), Memory::new());
    let lock = |zk: &Memory, path| RwLock::new(zk, path).expect("valid");
    assert_eq!(refusal([lock(&zk, "/a"), lock(&zk.connect(), "/b")]), "", "two clients of one ensemble were refused");
    for path in ["/a", "/b"] {
        let refused = refusal([lock(&zk, "/a"), lock(&another, path)]);
        assert!(
            refused.contains("cannot be taken together: their connect strings have no server in common"),
            "{refused}"
        );
    }
}

/// Earlier versions compared locks by their paths below the chroot. So two tasks whose clients had different chroots could take
/// the same locks in different orders, and wait for each other.
#[support::judged]
async fn locks_of_other_paths_or_ensembles_are_refused() {
    let (server, another) = (shared_server(), Server::start());
    let address = server.address();
    let client = |servers: String| async move { connect(&servers).await };
    let [top, one, two] = ["", "/one", "/two"].map(|root| client(format!("{address}{root}")));
    let (top, one, two) = (top.await, one.await, two.await);
    let theirs = client(another.address()).await;
    let again = client(format!("{address},{}/one", another.address())).await;
    for path in ["/multi/a", "/multi/b"] {
        let a = |zk| lock_at(zk, "/multi/a");
        let refused = refusal([a(&one), lock_at(&two, path)]);
        assert!(
            refused.ends_with("their connect strings end in different paths, /one and /two")
                || refused.ends_with("their connect strings end in different paths, /two and /one"),
            "{refused}"
        );
        let refused = refusal([a(&one), lock_at(&top, path)]);
        assert!(refused.contains("/one") && refused.contains(" /"), "{refused}");
        let refused = refusal([a(&top), lock_at(&theirs, path)]);
        assert!(refused.contains("no server in common"), "{refused}");
        assert!(refused.contains(&address) && refused.contains(&another.address()), "{refused}");
    }
    // Two clients of one ensemble may name different servers of the ensemble.
    assert_eq!(refusal([lock_at(&one, "/multi/a"), lock_at(&again, "/multi/b")]), "");
}

// --------------------------------------------------------------------------------------------------------------- Order

#[test]
fn locks_are_taken_in_the_order_of_their_paths() {
    let zk = Memory::new();
    let all = [("/a", Write), ("/a/b", Read), ("/b", Write)];
    for shift in 0..all.len() {
        let mut named = all;
        named.rotate_left(shift);
        let locks = multi(&zk, &named);
        assert_eq!(locks.paths().collect::<Vec<_>>(), ["/a", "/a/b", "/b"]);
        let [a, ab, b] = ["/a", "/a/b", "/b"].map(|path| write(&zk.connect(), path));
        let mut acquiring = acquiring(&locks);
        // The function `queued` also counts the directory /a/b, because it is a child of /a.
        for (freed, after) in [(b, [3, 1, 0]), (ab, [3, 0, 0])] {
            assert_pending!(acquiring.poll());
            now(freed.release()).expect("held");
            assert_eq!(queued(&zk, ["/a", "/a/b", "/b"]), after, "a contender queued up out of order");
        }
        assert_pending!(acquiring.poll());
        now(a.release()).expect("held");
        let guard = assert_ready_ok!(acquiring.poll());
        assert_eq!(guard.fencing_tokens().map(|(path, _)| path).collect::<Vec<_>>(), ["/a", "/a/b", "/b"]);
        assert!(guard.node_paths().all(|node| node.contains("-READ-") == node.starts_with("/a/b/")));
        now(guard.release()).expect("held");
    }
}

#[test]
fn locks_named_in_opposite_order_do_not_deadlock() {
    // The first acquisition is ahead by `head_start` polls. Afterwards both acquisitions are polled in turn.
    for head_start in 0..30 {
        let zk = Memory::new();
        let one = multi(&Slow(zk.connect()), &[("/a", Write), ("/b", Write)]);
        let other = multi(&Slow(zk.connect()), &[("/b", Write), ("/a", Write)]);
        let mut waiting = vec![acquiring(&one), acquiring(&other)];
        for _ in 0..head_start {
            if waiting.len() == 2 && poll_once(&mut waiting[0]).is_ready() {
                drop(waiting.remove(0));
            }
        }
        for _ in 0..100 {
            waiting.retain_mut(|acquiring| match poll_once(acquiring) {
                Poll::Ready(granted) => granted.is_err(),
                Poll::Pending => true,
            });
        }
        assert!(waiting.is_empty(), "{head_start}: {} wait for ever", waiting.len());
        assert_eq!((queued(&zk, ["/a", "/b"]), zk.watches()), ([0, 0], 0));
    }
}

fn poll_once(acquiring: &mut Acquiring) -> Poll<Result<MultiGuard, Error>> {
    acquiring.poll()
}

#[test]
fn the_locks_are_given_back_from_the_last_to_the_first() {
    struct Noting(&'static str, Arc<Mutex<Vec<&'static str>>>);
    impl Wake for Noting {
        fn wake(self: Arc<Self>) {
            self.1.lock().unwrap().push(self.0);
        }
    }
    let paths = ["/a", "/b", "/c"];
    for by_release in [true, false] {
        let zk = Memory::new();
        let guard = lock(&multi(&zk, &paths.map(|path| (path, Write))));
        let freed = Arc::new(Mutex::new(Vec::new()));
        let waiting: Vec<_> = paths
            .into_iter()
            .map(|path| {
                let waker = Waker::from(Arc::new(Noting(path, Arc::clone(&freed))));
                let mut waits = RwLock::new(&zk.connect(), path).unwrap().write().into_future();
                assert!(Pin::new(&mut waits).poll(&mut Context::from_waker(&waker)).is_pending());
                waits
            })
            .collect();
        if by_release {
            now(guard.release()).expect("held")
        } else {
            drop(guard)
        }
        assert_eq!(*freed.lock().unwrap(), ["/c", "/b", "/a"]);
        drop(waiting);
        assert_eq!((queued(&zk, paths), zk.watches()), ([0; 3], 0));
    }
}

/// Clients take random sets of locks in random modes and order, and cancel some acquisitions. One of the clients loses requests
/// and replies, and now and then its session.
///
/// The test polls only acquisitions that were woken. So a lost wake-up or a deadlock leaves an acquisition pending for ever.
/// `MULTI_SCHEDULES` sets the number of schedules (`make soak`: 5,000), and `MULTI_SEED` the seed of the first.
#[tokio::test(start_paused = true)]
async fn random_schedules_serve_all_and_keep_exclusion() {
    let number = |name: &str| std::env::var(name).ok().map(|number| number.parse::<u64>().expect("a number"));
    let seeds = number("MULTI_SCHEDULES").unwrap_or(150);
    let first = number("MULTI_SEED").unwrap_or_else(|| RandomState::new().hash_one(seeds) >> 1);
    let mut counts = [0; 4];
    for seed in first..first + seeds {
        println!(
            "MULTI_SEED={seed} MULTI_SCHEDULES=1 cargo test -p zk-rwlock-tests --test lock multi::random_schedules"
        );
        let mut schedule = Scheduled::new(seed);
        // The schedule runs without tokio's budget, because the budget makes futures return pending although they could continue.
        tokio::task::unconstrained(schedule.run()).await;
        let Scheduled { grants, waits, cancels, losses, .. } = schedule;
        counts = std::array::from_fn(|at| counts[at] + [grants, waits, cancels, losses][at]);
    }
    assert!(counts.iter().all(|count| *count >= 2 * seeds), "too few grants, waits, cancels and losses: {counts:?}");
}

const PATHS: [&str; 4] = ["/a", "/b", "/c", "/d"];

type Requested = Vec<(&'static str, Mode)>;

struct Scheduled {
    random: Seeded,
    zk: Memory,
    slow: Slow,
    rough: Memory,
    left: u64,
    waiting: Vec<(Acquiring, Requested)>,
    holding: Vec<(MultiGuard, Requested)>,
    grants: u64,
    waits: u64,
    cancels: u64,
    losses: u64,
}

impl Scheduled {
    fn new(seed: u64) -> Scheduled {
        let (random, zk) = (Seeded(seed), Memory::new());
        let (slow, rough) = (Slow(zk.connect()), zk.connect());
        let (waiting, holding) = (Vec::new(), Vec::new());
        Scheduled { random, zk, slow, rough, left: 40, waiting, holding, grants: 0, waits: 0, cancels: 0, losses: 0 }
    }

    async fn run(&mut self) {
        let mut idle = 0;
        while self.left > 0 || !self.waiting.is_empty() || !self.holding.is_empty() {
            if self.step() {
                idle = 0;
            } else if self.left == 0 && self.holding.is_empty() {
                idle += 1;
                assert!(idle < PATIENCE, "{} wait for ever", self.waiting.len());
                // After several lost replies in a row, the client pauses before its next try. This virtual second lets the pause
                // end.
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            self.check();
        }
        for _patience in 0..PATIENCE {
            if queued(&self.zk, PATHS) == [0; 4] {
                break;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        assert_eq!((queued(&self.zk, PATHS), self.zk.watches()), ([0; 4], 0));
    }

    /// Does a random action. Returns whether an action was possible.
    fn step(&mut self) -> bool {
        let woken: Vec<usize> = (0..self.waiting.len()).filter(|at| self.waiting[*at].0.is_woken()).collect();
        match self.random.below(10) {
            0 | 1 if self.left > 0 => self.ask(),
            2 if !self.waiting.is_empty() && self.left > 0 => {
                let at = self.random.below(self.waiting.len() as u64) as usize;
                drop(self.waiting.swap_remove(at));
                self.cancels += 1;
            }
            3 | 4 if !self.holding.is_empty() => {
                let at = self.random.below(self.holding.len() as u64) as usize;
                let (guard, _) = self.holding.swap_remove(at);
                if self.random.below(2) == 0 { drop(guard) } else { drop(task::spawn(guard.release()).poll()) }
            }
            5 if self.left > 0 => {
                self.losses += 1;
                match self.random.below(6) {
                    0 => self.rough.faults().expire(),
                    1 | 2 => self.rough.faults().lose_next_request(),
                    _ => self.rough.faults().lose_next_reply(),
                }
            }
            _ if !woken.is_empty() => {
                let (acquiring, requested) =
                    self.waiting.swap_remove(woken[self.random.below(woken.len() as u64) as usize]);
                self.poll(acquiring, requested);
            }
            _ => return false,
        }
        true
    }

    fn ask(&mut self) {
        self.left -= 1;
        let (mut requested, mut paths) = (Requested::new(), PATHS.to_vec());
        for _ in 0..=self.random.below(3) {
            let path = paths.swap_remove(self.random.below(paths.len() as u64) as usize);
            requested.push((path, if self.random.below(3) == 0 { Read } else { Write }));
        }
        let locks = match self.random.below(4) {
            0 | 1 => multi(&self.slow, &requested),
            2 => multi(&self.zk, &requested),
            _ => multi(&self.rough, &requested),
        };
        self.poll(acquiring(&locks), requested);
    }

    fn poll(&mut self, mut acquiring: Acquiring, requested: Requested) {
        match poll_once(&mut acquiring) {
            Poll::Ready(Ok(guard)) => {
                self.holding.push((guard, requested));
                self.grants += 1;
            }
            Poll::Ready(Err(error)) => assert!(error.is_lost(), "{error}"),
            Poll::Pending => {
                self.waiting.push((acquiring, requested));
                self.waits += 1;
            }
        }
    }

    fn check(&self) {
        for path in PATHS {
            let held = self.holding.iter().filter(|(guard, _)| guard.is_held());
            let of_path = held.flat_map(|(_, requested)| requested.iter().filter(|(its, _)| *its == path));
            let modes: Vec<Mode> = of_path.map(|(_, mode)| *mode).collect();
            assert!(modes.len() < 2 || modes.iter().all(|mode| *mode == Read), "{path} {modes:?}");
        }
    }
}

/// The virtual seconds within which all retries of a request end.
const PATIENCE: u32 = 10;

// --------------------------------------------------------------------------------------------------------- All or none

#[test]
fn an_empty_list_or_a_repeated_path_is_refused() {
    let zk = Memory::new();
    let refusals = [
        (vec![], "a MultiLock needs at least one lock"),
        (vec!["/a", "/b", "/a"], "path \"/a\" comes twice; a lock can be held in one mode only"),
        (vec!["/a", "/a/"], "path \"/a/\" must not end with '/'"),
        (vec!["/a", "//a"], "path \"//a\" has an empty component"),
        (vec!["/a", "/./a"], "path \"/./a\" has a relative component"),
        (vec!["/a/b", "/a/c/../b"], "path \"/a/c/../b\" has a relative component"),
        (vec!["/a", "a"], "path \"a\" must start with '/'"),
        (vec!["/a", "/"], "path \"/\" cannot be a lock directory: a lock needs a path of its own below the root"),
    ];
    for (paths, reason) in refusals {
        let refused = several(&zk, paths.into_iter().map(|path| (path, Read))).unwrap_err();
        assert_eq!(refused.to_string(), format!("invalid input: {reason}"));
    }
    assert!(matches!(several(&zk, [("/a", Read), ("/a", Write)]), Err(Error::InvalidInput(_))));
    let locks = multi(&zk, &[("/a", Read)]);
    assert!(matches!(now(locks.lock().timeout(Duration::ZERO).into_future()), Err(Error::InvalidInput(_))));
    assert!(matches!(now(locks.lock().label("two\nlines").into_future()), Err(Error::InvalidInput(_))));
    assert_eq!(zk.requests(), 0);
}

#[test]
fn the_label_appears_in_the_queues_of_all_locks() {
    let zk = Memory::new();
    let open = |path| RwLock::builder(&zk, path).host("web-1").label("nightly").build().unwrap();
    let locks = MultiLock::new([(open("/a"), Read), (open("/b"), Write)]).unwrap();
    for (label, shown) in [(None, "nightly"), (Some("by hand"), "by hand")] {
        let builder = locks.lock();
        let guard = now(if let Some(label) = label { builder.label(label) } else { builder }.into_future()).unwrap();
        for path in ["/a", "/b"] {
            let queue = now(RwLock::new(&zk, path).unwrap().queue()).unwrap();
            let member = &queue.members[0];
            assert_eq!((member.label.as_deref(), member.host.as_str()), (Some(shown), "web-1"));
        }
        drop(guard);
    }
}

#[test]
fn a_waiter_hears_its_lock_and_its_place() {
    let zk = Memory::new();
    let locks = multi(&zk, &[("/a", Write), ("/b", Write)]);
    let [a, b] = ["/a", "/b"].map(|path| write(&zk.connect(), path));
    let reported = Arc::new(Mutex::new(Vec::new()));
    let hears = Arc::clone(&reported);
    let on_wait = move |progress: &Progress| {
        hears.lock().unwrap().push((progress.path.to_string(), progress.place, progress.blockers.ahead));
    };
    let mut acquiring = task::spawn(locks.lock().on_wait(on_wait).into_future());
    assert_pending!(acquiring.poll());
    drop(a);
    assert_pending!(acquiring.poll());
    drop(b);
    drop(assert_ready_ok!(acquiring.poll()));
    assert_eq!(*reported.lock().unwrap(), [("/a".to_owned(), 2, 1), ("/b".to_owned(), 2, 1)]);
}

#[tokio::test(start_paused = true)]
async fn one_timeout_counts_for_all_the_locks() {
    let zk = Memory::new();
    let other = zk.connect();
    let locks = multi(&zk, &[("/a", Write), ("/b", Write), ("/c", Write)]);
    let a = write(&other, "/a");
    let b = RwLock::new(&other, "/b").unwrap().write().label("migrate v42").await.unwrap();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_secs(6)).await;
        a.release().await.expect("held");
    });

    let begun = Instant::now();
    let late = locks.lock().timeout(Duration::from_secs(10)).await.unwrap_err();
    assert_eq!(begun.elapsed().as_millis() / 10, 1_000, "the wait did not take ten seconds in all");
    assert!(late.is_timeout(), "{late}");
    let (path, cause) = of_one(&late);
    let Error::Timeout { waited, blockers, .. } = cause else { panic!("{cause}") };
    assert_eq!((path, *waited, blockers.ahead), ("/b", Duration::from_secs(10), 1));
    assert!(late.to_string().starts_with("/b: not granted within 10s: held by WRITE "), "{late}");
    assert!(late.to_string().contains("migrate v42"), "{late}");
    assert_eq!(queued(&zk, ["/a", "/b", "/c"]), [0, 1, 0]);

    b.release().await.unwrap();
    locks.lock().timeout(Duration::from_secs(10)).await.unwrap().release().await.unwrap();
    assert_eq!((queued(&zk, ["/a", "/b", "/c"]), zk.watches()), ([0; 3], 0));
}

#[tokio::test(start_paused = true)]
async fn a_timeout_while_cut_off_ends_in_time() {
    let zk = Memory::new();
    let locks = multi(&zk, &[("/a", Write), ("/b", Write)]);
    let held = write(&zk.connect(), "/b");
    let begun = Instant::now();
    let mut waiting = task::spawn(locks.lock().timeout(Duration::from_secs(3)).into_future());
    assert_pending!(waiting.poll());
    zk.faults().cut();
    let late = waiting.await.unwrap_err();
    assert_eq!((of_one(&late).0, begun.elapsed().as_millis() / 10), ("/b", 300));
    zk.faults().heal();
    now(held.release()).expect("held");
    drop(write(&zk.connect(), "/a"));
    assert_eq!((queued(&zk, ["/a", "/b"]), zk.watches()), ([0; 2], 0));
}

#[test]
fn a_try_that_finds_one_taken_writes_nothing() {
    let zk = Memory::new();
    let locks = multi(&zk, &[("/a", Write), ("/b", Read), ("/c", Write)]);
    drop(lock(&locks));
    let held = write(&zk.connect(), "/b");
    let refused = now(locks.try_lock()).unwrap_err();
    assert!(refused.is_would_block());
    assert!(refused.to_string().starts_with("/b: would block: held by WRITE "), "{refused}");
    // The acquisition above got number 0 and the next contender gets number 1, so the failed try has made no node in /a.
    let next = write(&zk, "/a");
    assert!(next.node_path().ends_with("-0000000001"), "{}", next.node_path());
    drop((next, held));
    let guard = now(locks.try_lock()).expect("free");
    assert_eq!(queued(&zk, ["/a", "/b", "/c"]), [1; 3]);
    now(guard.release()).expect("held");
}

#[test]
fn a_try_is_not_blocked_by_nodes_its_handle_keeps() {
    let zk = Memory::new();
    let keeps = RwLock::builder(&zk, "/a").keep(Duration::MAX).build().expect("valid");
    let both = MultiLock::new([(keeps.clone(), Write), (RwLock::new(&zk, "/b").expect("valid"), Read)]).expect("two");
    for _ in 0..2 {
        now(now(keeps.write()).expect("free").release()).expect("held");
        assert_eq!(queued(&zk, ["/a"]), [1], "the node is not kept");
        now(now(both.try_lock()).expect("the node is only kept").release()).expect("held");
    }
    let _used = now(keeps.read()).expect("free");
    assert!(now(both.try_lock()).expect_err("the node is in use").is_would_block());
}

#[test]
fn a_try_beaten_to_a_later_lock_gives_back_the_earlier() {
    let zk = Memory::new();
    let locks = multi(&Slow(zk.connect()), &[("/a", Write), ("/b", Write)]);
    drop(lock(&multi(&zk, &[("/a", Write), ("/b", Write)])));
    let mut trying = task::spawn(locks.try_lock());
    while zk.children("/a").is_empty() {
        assert_pending!(trying.poll());
    }
    let held = write(&zk, "/b");
    let refused = loop {
        if let Poll::Ready(refused) = trying.poll() {
            break refused.unwrap_err();
        }
    };
    assert!(refused.is_would_block());
    assert_eq!(of_one(&refused).0, "/b");
    assert_eq!(queued(&zk, ["/a", "/b"]), [0, 1]);
    drop(held);
    assert_eq!(zk.watches(), 0);
}

#[test]
fn a_drop_after_any_poll_leaves_nothing() {
    for (way, busy) in [(0, false), (0, true), (1, false)] {
        let mut ends = false;
        for polls in 0..500 {
            let zk = Memory::new();
            let locks = multi(&Slow(zk.clone()), &[("/a", Write), ("/b", Read), ("/c", Write)]);
            let other = zk.connect();
            let mut held = busy.then(|| write(&other, "/b"));
            let mut acquiring: Acquiring = match way {
                0 => acquiring(&locks),
                _ => task::spawn(Box::pin(async move { locks.try_lock().await })),
            };
            for poll in 0..polls {
                // Once the acquisition waits for /b, the holder of /b is dropped. So /b is granted in the middle of the
                // acquisition.
                held = held.filter(|_| acquiring.is_woken() || poll == 0);
                if let Poll::Ready(granted) = poll_once(&mut acquiring) {
                    let mut releasing = task::spawn(granted.expect("granted").release());
                    ends = releasing.poll().is_ready() || poll + 1 < polls;
                    break;
                }
            }
            drop((acquiring, held));
            assert_eq!((queued(&zk, ["/a", "/b", "/c"]), zk.watches()), ([0; 3], 0), "way {way}, {polls} polls");
            if ends {
                assert!(polls > 10, "the test is too short: few polls were enough");
                break;
            }
        }
        assert!(ends, "way {way}: the acquisition was never granted");
    }
}

#[test]
fn lost_replies_and_requests_leave_one_node_each() {
    for lose in
        [(|zk: &Memory| zk.faults().lose_next_reply()) as fn(&Memory), |zk: &Memory| zk.faults().lose_next_request()]
    {
        for before in ["/a", "/b"] {
            let zk = Memory::new();
            let locks = multi(&zk, &[("/a", Write), ("/b", Write)]);
            drop(lock(&locks));
            let held = write(&zk.connect(), before);
            let mut acquiring = acquiring(&locks);
            assert_pending!(acquiring.poll());
            lose(&zk);
            now(held.release()).expect("held");
            let guard = match acquiring.poll() {
                Poll::Ready(granted) => granted.expect("granted"),
                Poll::Pending => panic!("not granted"),
            };
            assert_eq!(queued(&zk, ["/a", "/b"]), [1; 2]);
            lose(&zk);
            lose(&zk);
            now(guard.release()).expect("held");
            assert_eq!((queued(&zk, ["/a", "/b"]), zk.watches()), ([0; 2], 0));
        }
    }
}

#[test]
fn a_lock_lost_during_the_next_wait_ends_the_waiting() {
    let zk = Memory::new();
    let locks = multi(&zk, &[("/a", Write), ("/b", Write)]);
    for expire in [true, false] {
        let held = write(&zk.connect(), "/b");
        let mut acquiring = acquiring(&locks);
        assert_pending!(acquiring.poll());
        let why = if expire {
            zk.faults().expire();
            Loss::SessionOver(SessionEnd::Expired)
        } else {
            let [node] = zk.children("/a").try_into().expect("one holder");
            zk.faults().remove(format!("/a/{node}"));
            Loss::Removed
        };
        assert!(acquiring.is_woken());
        let lost = assert_ready_err!(acquiring.poll());
        assert!(lost.is_lost());
        let (_, Error::Evicted(reported)) = of_one(&lost) else { panic!("{lost}") };
        assert_eq!(*reported, why);
        // If the session expires, both locks are lost. The error names /b, because the wait for /b notices the loss first.
        assert_eq!(of_one(&lost).0, if expire { "/b" } else { "/a" });
        drop(acquiring);
        assert_eq!(queued(&zk, ["/a", "/b"]), [0, 1]);
        now(held.release()).expect("held");
        assert_eq!(zk.watches(), 0);
    }
}

// ------------------------------------------------------------------------------------------------------------- Holding

#[test]
fn a_guard_is_lost_with_one_lock_and_keeps_the_others() {
    let zk = Memory::new();
    let guard = lock(&multi(&zk, &[("/a", Write), ("/b", Read), ("/c", Write)]));
    let node = guard.node_paths().nth(1).expect("three");
    let (mut lost, mut changes) = (task::spawn(guard.lost()), guard.changes());
    assert_eq!(now(changes.next()), Some(HoldState::Held));
    assert_pending!(lost.poll());
    let mut working = task::spawn(guard.run(std::future::pending::<()>()));
    assert_pending!(working.poll());

    zk.connect().faults().remove(&node);
    assert!(lost.is_woken() && working.is_woken());
    let loss = assert_ready!(lost.poll());
    assert_eq!(loss, ("/b", Loss::Removed));
    assert_eq!(loss.1.to_string(), "the lock's node was removed by somebody else");
    let stopped = assert_ready_err!(working.poll());
    assert!(matches!(of_one(&stopped), ("/b", Error::Lost(Loss::Removed))));
    assert!(!guard.is_held());
    assert_eq!(guard.state(), HoldState::Lost { why: Loss::Removed });
    assert_eq!(now(changes.next()), Some(HoldState::Lost { why: Loss::Removed }));
    assert_eq!(now(changes.next()), None);
    assert!(matches!(of_one(&now(guard.read_node("/x")).unwrap_err()), ("/b", Error::Lost(_))));
    assert_eq!(queued(&zk, ["/a", "/b", "/c"]), [1, 0, 1]);

    drop((lost, working));
    // The guard reports the first loss. Later losses of its other locks do not change the report.
    zk.faults().expire();
    assert_eq!(now(guard.lost()), loss);
    let released = now(guard.release()).unwrap_err();
    assert!(matches!(of_one(&released), ("/b", Error::Lost(Loss::Removed))), "{released}");
}

#[test]
fn a_holder_learns_at_which_lock_somebody_waits_first() {
    let zk = Memory::new();
    let guard = lock(&multi(&zk, &[("/a", Read), ("/b", Write)]));
    let other = zk.connect();
    let mut contended = task::spawn(guard.contended());
    assert_pending!(contended.poll());
    // This reader can hold together with the guard, so the guard does not count as contended.
    drop(now(RwLock::new(&other, "/a").unwrap().read().into_future()).expect("shared"));
    assert_pending!(contended.poll());
    let mut reader = task::spawn(RwLock::new(&other, "/b").unwrap().read().into_future());
    assert_pending!(reader.poll());
    assert!(contended.is_woken());
    let (path, first) = assert_ready_ok!(contended.poll());
    assert_eq!((path, first.mode()), ("/b", Read));
    drop(contended);
    assert_eq!(guard.session_left(), Duration::MAX, "a session of the embedded ensemble has an end");
    zk.faults().remove(guard.node_paths().next().expect("two"));
    assert_eq!(of_one(&now(guard.contended()).unwrap_err()).0, "/a");
    drop((guard, reader));
    assert_eq!((queued(&zk, ["/a", "/b"]), zk.watches()), ([0; 2], 0));
}

#[test]
fn a_guard_that_lost_one_lock_releases_the_others() {
    let zk = Memory::new();
    let guard = lock(&multi(&zk, &[("/a", Write), ("/b", Write), ("/c", Write)]));
    zk.faults().remove(guard.node_paths().next().expect("three"));
    assert_eq!(of_one(&now(guard.release()).unwrap_err()).0, "/a");
    assert_eq!((queued(&zk, ["/a", "/b", "/c"]), zk.watches()), ([0; 3], 0));
}

#[tokio::test(start_paused = true)]
async fn a_guard_cut_off_is_suspect_and_then_held_or_lost() {
    let zk = Memory::new();
    let guard = lock(&multi(&zk, &[("/a", Write), ("/b", Read)]));
    let mut changes = guard.changes();
    assert_eq!(changes.next().await, Some(HoldState::Held));
    zk.faults().cut();
    assert!(matches!(changes.next().await, Some(HoldState::Suspect { .. })));
    assert!(guard.is_held());
    zk.faults().heal();
    assert_eq!(changes.next().await, Some(HoldState::Held));
    zk.faults().cut();
    assert!(matches!(changes.next().await, Some(HoldState::Suspect { .. })));
    assert_eq!(changes.next().await, Some(HoldState::Lost { why: Loss::LeaseRanOut }));
    assert_eq!(guard.lost().await.0, "/a");
    zk.faults().heal();
    assert!(!guard.is_held());
}

#[test]
fn a_lock_lost_as_the_last_is_granted_is_no_grant() {
    let zk = Memory::new();
    let held = write(&zk.connect(), "/b");
    let mut acquiring = acquiring(&multi(&zk, &[("/a", Write), ("/b", Write)]));
    assert_pending!(acquiring.poll());
    zk.faults().remove(format!("/a/{}", zk.children("/a")[0]));
    drop(held);
    let error = assert_ready_err!(acquiring.poll());
    assert!(matches!(of_one(&error), ("/a", Error::Evicted(Loss::Removed))), "{error}");
    assert_eq!((queued(&zk, ["/a", "/b"]), zk.watches()), ([0; 2], 0));
}

#[test]
fn a_release_unconfirmed_at_the_sessions_end_is_an_error() {
    let zk = Memory::new();
    let guard = lock(&multi(&zk, &[("/a", Write), ("/b", Write)]));
    zk.faults().cut();
    let mut releasing = task::spawn(Box::pin(guard.release()));
    assert_pending!(releasing.poll());
    zk.faults().expire();
    zk.faults().heal();
    let error = assert_ready_err!(releasing.poll());
    assert!(matches!(of_one(&error), ("/a", Error::Lost(Loss::SessionOver(SessionEnd::Expired)))), "{error}");
}

#[test]
fn changes_end_with_the_release() {
    let zk = Memory::new();
    let guard = lock(&multi(&zk, &[("/a", Write), ("/b", Read)]));
    let mut changes = guard.changes();
    assert_eq!(now(changes.next()), Some(HoldState::Held));
    now(guard.release()).expect("held");
    assert_eq!(now(changes.next()), None);
}

#[test]
fn the_changes_of_several_locks_are_a_stream() {
    let zk = Memory::new();
    let guard = lock(&multi(&zk, &[("/a", Write), ("/b", Read)]));
    let mut states = task::spawn(guard.changes().map(|state| matches!(state, HoldState::Held)));
    assert_eq!(states.poll_next(), Poll::Ready(Some(true)));
    assert_pending!(states.poll_next());
    zk.faults().remove("/b");
    assert!(states.is_woken());
    assert_eq!(states.poll_next(), Poll::Ready(Some(false)));
    assert_eq!(states.poll_next(), Poll::Ready(None));
    assert_eq!(states.poll_next(), Poll::Ready(None), "a change was reported after the end");
}

#[test]
fn a_transaction_counts_only_its_own_operations() {
    let zk = Memory::new();
    let guard = lock(&multi(&zk, &[("/a", Write), ("/b", Read), ("/c", Write)]));
    let done = now(guard.transaction().create("/x", "1").set("/x", "2").commit()).expect("held");
    assert_eq!(done, [Outcome::Created, Outcome::Set { version: 1 }]);
    assert_eq!(now(guard.transaction().commit()).expect("held"), []);
    assert_eq!(now(guard.read_node("/x")).expect("held").expect("made").data, b"2");
    let refused = now(guard.transaction().set("/x", "3").delete("/missing").commit()).unwrap_err();
    assert!(
        matches!(&refused, Error::TransactionRefused { index: 1, path, reason: Failure::NoNode } if path == "/missing"),
        "{refused}"
    );
    for inside in ["/a/x", "/b/x", "/c/x"] {
        assert!(matches!(now(guard.transaction().create(inside, "").commit()), Err(Error::InvalidInput(_))));
    }
    assert_eq!(now(guard.read_node("/x")).expect("held").expect("made").data, b"2");
    assert!(guard.is_held());
}

#[test]
fn a_transaction_fails_when_any_of_the_nodes_is_gone() {
    for gone in 0..3 {
        let zk = Memory::new();
        let guard = lock(&multi(&zk, &[("/a", Write), ("/b", Read), ("/c", Write)]));
        // The event of the removal is delayed, so the guard does not know of the removal yet.
        zk.faults().lag();
        zk.connect().faults().remove(guard.node_paths().nth(gone).expect("three"));
        assert!(guard.is_held());
        let refused = now(guard.transaction().create("/x", "").commit()).unwrap_err();
        let path = ["/a", "/b", "/c"][gone];
        let (reported, cause) = of_one(&refused);
        assert_eq!(reported, path);
        assert!(matches!(cause, Error::Lost(Loss::Removed)), "{refused}");
        assert!(!guard.is_held() && zk.children("/x").is_empty());
        assert_eq!(now(guard.lost()).0, path);
        zk.faults().catch_up();
        // Now the guard knows of the loss, so it refuses the transaction without a request to the server.
        let before = zk.requests();
        assert!(now(guard.transaction().create("/x", "").commit()).unwrap_err().is_lost());
        assert_eq!(zk.requests(), before);
    }
}

#[test]
fn locks_of_two_sessions_share_transactions_and_losses() {
    for ends in 0..2 {
        let zk = Memory::new();
        let clients = [zk.connect(), zk.connect()];
        let both = TwoSessions::alternately(&clients);
        let guard = lock(&multi(&both, &[("/a", Write), ("/b", Write)]));
        let [one, other] = clients.each_ref().map(|client| client.session_id().expect("open"));
        assert_ne!(one, other);
        now(guard.transaction().create("/x", "1").commit()).expect("held");
        assert_eq!(now(guard.read_node("/x")).expect("held").expect("made").data, b"1");

        clients[ends].faults().lag();
        clients[ends].faults().expire();
        let path = ["/a", "/b"][ends];
        let refused = now(guard.transaction().set("/x", "2").commit()).unwrap_err();
        assert!(matches!(of_one(&refused).1, Error::Lost(_)), "{refused}");
        assert_eq!(of_one(&refused).0, path);
        assert_eq!(now(guard.lost()).0, path);
        drop(guard);
        assert_eq!((queued(&zk, ["/a", "/b"]), zk.watches()), ([0; 2], 0));
    }
}

/// The read is sent on the session of the last lock. That session is alive, but another lock of the guard is lost.
#[test]
fn a_read_under_several_locks_ends_when_one_is_lost() {
    let zk = Memory::new();
    let clients = [zk.connect(), zk.connect()];
    let guard = lock(&multi(&TwoSessions::alternately(&clients), &[("/a", Write), ("/b", Write)]));
    clients[1].faults().cut();
    let mut read = tokio_test::task::spawn(guard.read_node("/x"));
    assert!(read.poll().is_pending());
    clients[0].faults().expire();
    clients[1].faults().heal();
    let std::task::Poll::Ready(refused) = read.poll() else { panic!("the read did not end") };
    let refused = refused.unwrap_err();
    assert!(matches!(of_one(&refused), ("/a", Error::Lost(_))), "{refused}");
}

#[test]
fn a_guard_of_two_sessions_has_the_worse_of_their_states() {
    for cut in 0..2 {
        let zk = Memory::new();
        let clients = [zk.connect(), zk.connect()];
        let guard = lock(&multi(&TwoSessions::alternately(&clients), &[("/a", Write), ("/b", Write)]));
        assert_eq!((guard.state(), guard.session_left()), (HoldState::Held, Duration::MAX));
        clients[cut].faults().cut();
        assert!(guard.is_held() && matches!(guard.state(), HoldState::Suspect { .. }), "{:?}", guard.state());
        assert!(guard.session_left() <= Duration::from_secs(10), "{:?}", guard.session_left());
        clients[cut].faults().heal();
        assert_eq!((guard.state(), guard.session_left()), (HoldState::Held, Duration::MAX));
    }
}

#[test]
fn a_guard_reads_earlier_writes_whichever_session_lags() {
    for lags in 0..2 {
        let zk = Memory::new();
        let clients = [zk.connect(), zk.connect()];
        let locks = multi(&TwoSessions::alternately(&clients), &[("/a", Write), ("/b", Write)]);
        drop(lock(&locks));
        let before = write(&zk, "/b");
        let mut acquiring = acquiring(&locks);
        assert_pending!(acquiring.poll());
        clients[lags].faults().lag();
        now(before.transaction().create("/x", "new").commit()).expect("held");
        now(before.release()).expect("held");
        clients[1].faults().catch_up();
        let guard = assert_ready_ok!(acquiring.poll());
        let seen = now(guard.read_node("/x")).expect("held").expect("written before the lock was let go");
        assert_eq!(seen.data, b"new");
    }
}

#[test]
fn each_lock_has_its_own_rising_token() {
    let zk = Memory::new();
    let locks = multi(&zk, &[("/b", Write), ("/a", Write)]);
    let mut last: BTreeMap<String, i64> = BTreeMap::new();
    for _ in 0..3 {
        let guard = lock(&locks);
        let tokens: BTreeMap<String, i64> =
            guard.fencing_tokens().map(|(path, token)| (path.to_owned(), token)).collect();
        assert_eq!(tokens.keys().collect::<Vec<_>>(), ["/a", "/b"]);
        for (path, token) in &tokens {
            assert_eq!(guard.fencing_token(path), Some(*token));
            assert!(last.get(path).is_none_or(|earlier| earlier < token));
        }
        assert_eq!(guard.fencing_token("/c"), None);
        last = tokens;
        drop(guard);
        drop(write(&zk, "/a"));
    }
}

#[test]
fn guards_and_futures_can_go_to_other_threads() {
    fn sent<T: Send + 'static>(_: &T) {}
    fn shared<T: Send + Sync>(_: &T) {}
    let locks = multi(&Memory::new(), &[("/a", Write), ("/b", Read)]);
    shared(&locks);
    sent(&locks.lock().into_future());
    fn borrowed<T: Send>(_: &T) {}
    borrowed(&locks.try_lock());
    let guard = locks.lock().blocking().expect("free");
    sent(&guard);
    shared(&guard);
    borrowed(&guard.lost());
    borrowed(&guard.run(std::future::ready(())));
    borrowed(&guard.transaction().commit());
    borrowed(&guard.read_node("/x"));
    let mut changes = guard.changes();
    borrowed(&changes.next());
    std::thread::spawn(move || drop(guard)).join().expect("dropping does not panic");
    assert!(locks.lock().blocking().is_ok());
}

// --------------------------------------------------------------------------------------------------------- On a server

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn transfers_in_any_order_of_accounts_lose_nothing() {
    const ACCOUNTS: u64 = 4;
    const EACH: i64 = 100;
    let server = shared_server();
    let setup = connect(&server.address()).await;
    let operator = session(&setup).await;
    operator.create("/accounts", b"", zk_rwlock::coordinator::Kind::Persistent).await.unwrap();
    for account in 0..ACCOUNTS {
        let (path, data) = (format!("/accounts/{account}"), EACH.to_string());
        operator.create(&path, data.as_bytes(), zk_rwlock::coordinator::Kind::Persistent).await.unwrap();
    }
    let mut tasks = JoinSet::new();
    for seed in 0..6 {
        let zk = connect(&server.address()).await;
        tasks.spawn(async move {
            let mut random = Seeded(seed);
            for _ in 0..15 {
                let from = random.below(ACCOUNTS);
                let to = (from + 1 + random.below(ACCOUNTS - 1)) % ACCOUNTS;
                let [from, to] = [from, to].map(|account| format!("/accounts/{account}"));
                let lock_of = |account: &str| format!("/locks{account}");
                let both = several(&zk, [(lock_of(&from), Write), (lock_of(&to), Write)]).unwrap();
                let guard = both.lock().timeout(SOON).await.unwrap();
                let balance = async |account: &str| {
                    let node = guard.read_node(account).await.unwrap().expect("an account");
                    String::from_utf8(node.data).unwrap().parse::<i64>().unwrap()
                };
                let (less, more) = (balance(&from).await - 7, balance(&to).await + 7);
                guard.transaction().set(&from, less.to_string()).set(&to, more.to_string()).commit().await.unwrap();
                if random.below(2) == 0 { drop(guard) } else { guard.release().await.unwrap() }
            }
        });
    }
    within(SOON * 2, "all transfers", tasks.join_all()).await;
    let mut total = 0;
    for account in 0..ACCOUNTS {
        let (data, _) = operator.data(&format!("/accounts/{account}")).await.unwrap();
        total += String::from_utf8(data).unwrap().parse::<i64>().unwrap();
        becomes_empty(&setup, &format!("/locks/accounts/{account}")).await;
    }
    assert_eq!(total, EACH * ACCOUNTS as i64);
}

#[support::judged]
async fn an_operator_who_breaks_one_lock_ends_the_guard() {
    let server = shared_server();
    let (zk, operator) = (connect(&server.address()).await, connect(&server.address()).await);
    let locks = multi(&zk, &[("/locks/broken/a", Write), ("/locks/broken/b", Write)]);
    let guard = soon("the grant", locks.lock()).await.unwrap();
    let broken = guard.node_paths().last().expect("two");
    session(&operator).await.delete(&broken).await.unwrap();

    // The server refuses the transaction, even if the guard has not noticed the loss yet.
    let refused = guard.transaction().create("/from-the-broken", "").commit().await.unwrap_err();
    assert!(matches!(of_one(&refused), ("/locks/broken/b", Error::Lost(Loss::Removed))), "{refused}");
    assert_eq!(soon("the loss", guard.lost()).await, ("/locks/broken/b", Loss::Removed));
    assert!(session(&operator).await.data("/from-the-broken").await.is_err());
    assert_eq!(children(&operator, "/locks/broken/a").await.len(), 1);
    assert_eq!(of_one(&guard.release().await.unwrap_err()).0, "/locks/broken/b");
    assert_eq!(children(&operator, "/locks/broken/a").await.len(), 0);
}

#[support::judged]
async fn a_timeout_or_drop_on_a_server_gives_all_back() {
    let server = shared_server();
    let (zk, other) = (connect(&server.address()).await, connect(&server.address()).await);
    let (a, b) = (lock_at(&other, "/locks/given/a"), lock_at(&other, "/locks/given/b"));
    let locks = multi(&zk, &[("/locks/given/b", Write), ("/locks/given/a", Write)]);
    let held = b.write().await.unwrap();

    let late = locks.lock().timeout(Duration::from_millis(300)).await.unwrap_err();
    assert!(late.is_timeout() && of_one(&late).0 == "/locks/given/b", "{late}");
    line_becomes(&a, "").await;
    line_becomes(&b, "W+").await;

    let waiting = tokio::spawn(locks.lock().into_future());
    line_becomes(&b, "W+ W-").await;
    assert_eq!(line(&a).await, "W+");
    waiting.abort();
    assert!(waiting.await.unwrap_err().is_cancelled());
    line_becomes(&a, "").await;
    line_becomes(&b, "W+").await;

    let refused = locks.try_lock().await.unwrap_err();
    assert!(refused.is_would_block() && of_one(&refused).0 == "/locks/given/b", "{refused}");
    held.release().await.unwrap();
    locks.try_lock().await.unwrap().release().await.unwrap();
    assert_eq!((line(&a).await, line(&b).await), (String::new(), String::new()));
}

#[support::judged]
async fn all_locks_end_with_their_common_session() {
    let server = shared_server();
    let (zk, other) = (connect(&server.address()).await, connect(&server.address()).await);
    let paths: Vec<String> = (0..20).map(|number| format!("/locks/many/{number:02}")).collect();
    let locks = several(&zk, paths.iter().map(|path| (path.as_str(), Write))).unwrap();
    let guard = soon("the grant", locks.lock()).await.unwrap();
    let mut owners = Vec::new();
    for node in guard.node_paths() {
        owners.push(session(&other).await.data(&node).await.unwrap().1.ephemeral_owner);
    }
    owners.dedup();
    assert_eq!(owners, [session(&zk).await.id()]);
    zk.close().await;
    assert_eq!(soon("the loss", guard.lost()).await, (paths[0].as_str(), Loss::SessionOver(SessionEnd::Closed)));
    for path in &paths {
        becomes_empty(&other, path).await;
    }
}
