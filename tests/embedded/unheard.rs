//! Lost events: the watch was lost or not allowed, or the server still shows an old state. A contender must find the change by
//! asking the leader. The tests run in virtual time.

use std::cell::RefCell;
use std::fmt::Debug;
use std::future::IntoFuture;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once};
use std::time::Duration;

use support::hindered::{Count, Hindered, Request, refused_at};
use support::polled::{now, read, write, writing};
use tokio::task::{JoinHandle, spawn};
use tokio::time::{Instant, sleep, timeout};
use tokio_test::{assert_pending, assert_ready_err, assert_ready_ok};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};
use zk_rwlock::coordinator::{Coordinator, Failure, Lease, Operation, SessionStore};
use zk_rwlock::shared::CopyState;
use zk_rwlock::{Error, Leadership, Loss, Memory, Mode, RwLock, Semaphore, Shared};

pub(crate) const PATH: &str = "/lock";
pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// The time of a waiter's first check at the leader: one session timeout (10 s) after the wait begins, and up to a tenth more by
/// jitter.
const FIRST_CHECK: Range<Duration> = Duration::from_secs(10)..Duration::from_millis(11_100);

pub(crate) fn lock_of(zk: &Memory) -> RwLock {
    RwLock::new(zk, PATH).expect("valid")
}

pub(crate) fn sole_node(zk: &Memory, directory: &str) -> String {
    let names = zk.children(directory);
    assert_eq!(names.len(), 1, "{names:?}");
    format!("{directory}/{}", names[0])
}

pub(crate) fn two() -> (Memory, Memory) {
    let zk = Memory::new();
    (zk.connect(), zk)
}

/// Polls the task until it waits for an event or a timer.
async fn waits<T: Debug>(task: &mut JoinHandle<T>) {
    let early = timeout(SECOND / 1_000, task).await;
    assert!(early.is_err(), "{early:?}");
}

/// Returns the output of a future that only a check at the leader can complete. Fails if the future never ends.
async fn ends<F: IntoFuture>(future: F) -> F::Output {
    timeout(5_000 * SECOND, future.into_future()).await.expect("in time")
}

/// Returns a client that fails the test at its 501st request, because a request is then repeated for ever.
fn counted(zk: &Memory) -> Hindered {
    let count = Count::default();
    Hindered::new(zk, move |_| {
        count.one_more();
        None
    })
}

thread_local! {
    /// The nodes about which the library has logged an error on this thread: the server shows another state than the ensemble's.
    static DIVERGED: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Starts to record the library's errors about servers whose state differs from the ensemble's. Returns a function that
/// returns the nodes that these errors name.
pub(crate) fn diverged() -> impl Fn() -> Vec<String> {
    // One subscriber serves all threads. If each test had a subscriber of its own, other tests would lose events while
    // that subscriber is installed or removed.
    static ONCE: Once = Once::new();
    ONCE.call_once(|| tracing::subscriber::set_global_default(Errors).expect("the first"));
    DIVERGED.take();
    || DIVERGED.with_borrow(Vec::clone)
}

struct Errors;

struct Node;

impl Visit for Node {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "node" {
            DIVERGED.with_borrow_mut(|nodes| nodes.push(format!("{value:?}").replace('"', "")));
        }
    }
}

impl Subscriber for Errors {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() == tracing::Level::ERROR
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        event.record(&mut Node);
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

// Waiters for a lock whose server conceals a change.

/// The two ways in which a server conceals a change of a node: the server forgets the watch, or goes on showing the node.
const SILENCES: [fn(&Memory, &str); 2] = [|zk, _| zk.faults().forget_watches(), |zk, node| zk.faults().freeze(node)];

#[tokio::test(start_paused = true)]
async fn a_waiter_without_an_event_is_granted_at_its_check() {
    for (held, wanted) in [(Mode::Write, Mode::Write), (Mode::Write, Mode::Read), (Mode::Read, Mode::Write)] {
        for (i, silence) in SILENCES.iter().enumerate() {
            for hears in [false, true] {
                let errors = diverged();
                let (ours, theirs) = two();
                let (lock, other) = (lock_of(&ours), lock_of(&theirs));
                let (writer, reader) = match held {
                    Mode::Write => (Some(write(&other)), None),
                    Mode::Read => (None, Some(read(&other))),
                };
                let node = sole_node(&theirs, PATH);
                let began = Instant::now();
                let mut waiter = spawn(async move {
                    match (wanted, hears) {
                        (Mode::Write, false) => lock.write().await.map(drop),
                        (Mode::Read, false) => lock.read().await.map(drop),
                        (Mode::Write, true) => lock.write().on_wait(|_| ()).await.map(drop),
                        (Mode::Read, true) => lock.read().on_wait(|_| ()).await.map(drop),
                    }
                });
                waits(&mut waiter).await;
                silence(&ours, &node);
                drop((writer, reader));
                ends(&mut waiter).await.expect("no panic").expect("granted");
                let waited = began.elapsed();
                assert!(FIRST_CHECK.contains(&waited), "{waited:?}: {held:?}, {wanted:?}, {i}, {hears}");
                assert_eq!(
                    errors(),
                    vec![node; i],
                    "another number of errors than of servers that still show the node"
                );
                assert_eq!((theirs.children(PATH).len(), theirs.watches()), (0, 0));
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiter_without_an_event_fails_at_its_check() {
    for silence in SILENCES {
        let (ours, theirs) = two();
        let held = write(&lock_of(&theirs));
        let began = Instant::now();
        let mut waiter = spawn(lock_of(&ours).write().into_future());
        waits(&mut waiter).await;
        let own = ours
            .children(PATH)
            .into_iter()
            .find(|name| !held.node_path().ends_with(name.as_str()))
            .expect("the waiter waits");
        let own = format!("{PATH}/{own}");
        silence(&ours, &own);
        theirs.faults().remove(own);
        let error = ends(&mut waiter).await.expect("no panic").expect_err("the waiter's node is gone");
        assert!(matches!(error, Error::Evicted(Loss::Removed)), "{error:?}");
        assert!(FIRST_CHECK.contains(&began.elapsed()), "{:?}", began.elapsed());
    }
}

/// Returns a client whose transactions fail with `failure` if they contain nothing but checks and the range `checks`
/// contains the number of these checks.
fn without_checks(zk: &Memory, checks: Range<usize>, failure: Failure) -> Hindered {
    let is_check = |operation: &Operation| matches!(operation, Operation::Check { .. });
    Hindered::new(zk, move |asked| match asked {
        Request::Transact(all) if checks.contains(&all.len()) && all.iter().all(is_check) => Some(failure.clone()),
        _ => None,
    })
}

/// Returns the failures of a check that leave open whether the node exists. For example, a contender that may not read
/// a node may not check that node either.
fn no_answers() -> Vec<Failure> {
    let refused = (0..3).map(|index| refused_at(index, Failure::NoAuth(Box::default())));
    refused.chain([Failure::Refused("by a proxy".to_owned())]).collect()
}

/// The server refuses the waiter's watch on its own node. The waiter's node is removed, and then the holder hands off.
#[test]
fn a_hand_off_without_an_own_watch_is_confirmed_first() {
    let (ours, theirs) = two();
    let held = write(&lock_of(&theirs));
    let line = Hindered::new(&ours, |asked| match asked {
        Request::Watch(path) if path.contains("/ours~") => Some(Failure::Refused("by a proxy".to_owned())),
        _ => None,
    });
    // No event of the session reaches this store, so the session's own task does not watch the waiter's node either.
    let store = Arc::new(SessionStore::new(Lease::new(10 * SECOND)));
    store.set_endless(true);
    let line = line.with_store(&store);
    let mut waiter = writing(&RwLock::builder(&line, PATH).host("ours").build().expect("valid"));
    assert_pending!(waiter.poll());
    let own = theirs.children(PATH).into_iter().find(|name| name.starts_with("ours~")).expect("the waiter waits");
    theirs.faults().remove(format!("{PATH}/{own}"));
    let mut next = writing(&lock_of(&theirs));
    assert_pending!(next.poll());
    drop(held);
    let error = assert_ready_err!(waiter.poll(), "a waiter without a node holds");
    assert!(matches!(error, Error::Evicted(Loss::Removed)), "{error:?}");
    assert!(assert_ready_ok!(next.poll()).is_held());
}

#[tokio::test(start_paused = true)]
async fn a_refused_check_passes_over_nobody() {
    for failure in no_answers() {
        let (ours, theirs) = two();
        let line = without_checks(&ours, 2..usize::MAX, failure);
        let (held, permit) = (write(&lock_of(&theirs)), now(limit(&theirs, 1).acquire()).expect("free"));
        let mut waiter = spawn(RwLock::new(&line, PATH).expect("valid").write().into_future());
        let mut head = spawn(Semaphore::new(&line, "/limit", 1).expect("valid").acquire().into_future());
        let early = timeout(600 * SECOND, async {
            tokio::select! { it = &mut waiter => drop(it), it = &mut head => drop(it) }
        });
        assert!(early.await.is_err(), "a waiter holds beside the holder");
        drop((held, permit));
        drop(ends(waiter).await.expect("no panic").expect("granted"));
        drop(ends(head).await.expect("no panic").expect("granted"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiter_behind_a_ghost_awaits_the_holder_before() {
    let errors = diverged();
    let (ours, theirs) = two();
    let (lock, other) = (lock_of(&ours), lock_of(&theirs));
    let held = write(&other);
    let mut ghost = writing(&other);
    assert_pending!(ghost.poll());
    let mut waiter = spawn(lock.write().into_future());
    waits(&mut waiter).await;
    let names = theirs.children(PATH);
    let node = format!("{PATH}/{}", names.iter().max_by_key(|name| name.ends_with('1')).expect("the second"));
    ours.faults().freeze(&node);
    drop(ghost);
    assert!(timeout(600 * SECOND, &mut waiter).await.is_err(), "the waiter holds beside the holder");
    held.release().await.expect("held");
    drop(timeout(SECOND, &mut waiter).await.expect("another server shows it").expect("no panic").expect("granted"));
    assert_eq!(errors(), [node]);
}

/// The waiter's server has missed the whole transaction of the downgrade.
#[tokio::test(start_paused = true)]
async fn a_waiter_with_an_unseen_downgrade_awaits_the_reader() {
    for hidden in [None, Some(PATH)] {
        let (ours, theirs) = two();
        let held = write(&lock_of(&theirs));
        let node = sole_node(&theirs, PATH);
        let mut waiter = spawn(lock_of(&ours).write().into_future());
        waits(&mut waiter).await;
        ours.faults().freeze(hidden.unwrap_or(&node));
        let reader = held.downgrade().await.expect("held");
        assert!(timeout(600 * SECOND, &mut waiter).await.is_err(), "the waiter holds beside the reader");
        assert!(reader.is_held());
        drop(reader);
        drop(ends(&mut waiter).await.expect("no panic").expect("granted"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_reader_with_an_unseen_downgrade_is_granted() {
    for hidden in [None, Some(PATH)] {
        let (ours, theirs) = two();
        let held = write(&lock_of(&theirs));
        let node = sole_node(&theirs, PATH);
        let began = Instant::now();
        let mut waiter = spawn(lock_of(&ours).read().into_future());
        waits(&mut waiter).await;
        ours.faults().freeze(hidden.unwrap_or(&node));
        let reader = held.downgrade().await.expect("held");
        let beside = ends(&mut waiter).await.expect("no panic").expect("granted");
        assert!(FIRST_CHECK.contains(&began.elapsed()), "{:?}", began.elapsed());
        assert!(reader.is_held() && beside.is_held());
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_with_many_ghosts_is_left_once() {
    let errors = diverged();
    let (ours, theirs) = two();
    let other = lock_of(&theirs);
    let held = write(&other);
    let mut ghosts: Vec<_> = (0..20).map(|_| writing(&other)).collect();
    ghosts.iter_mut().for_each(|ghost| assert_pending!(ghost.poll()));
    let began = Instant::now();
    let mut waiter = spawn(lock_of(&ours).write().into_future());
    waits(&mut waiter).await;
    ours.faults().freeze(PATH);
    theirs.faults().expire();
    drop((held, ghosts));
    drop(ends(&mut waiter).await.expect("no panic").expect("granted"));
    assert!(FIRST_CHECK.contains(&began.elapsed()), "{:?}", began.elapsed());
    assert_eq!(errors().len(), 1, "{:?}", errors());
}

/// A waiter behind a contender of its own session learns of the release from the session, and sets no watch on its predecessor.
#[tokio::test(start_paused = true)]
async fn a_waiter_behind_its_own_session_checks_as_well() {
    let (ours, theirs) = two();
    let (lock, held) = (lock_of(&ours), write(&lock_of(&theirs)));
    let mut first = writing(&lock);
    assert_pending!(first.poll());
    let mut second = spawn(lock.write().into_future());
    waits(&mut second).await;
    ours.faults().forget_watches();
    let name = ours.children(PATH).into_iter().find(|name| name.ends_with('1')).expect("the first");
    // The future of the removed contender is not polled, so the contender does not notice the removal.
    ours.faults().remove(format!("{PATH}/{name}"));
    sleep(12 * SECOND).await;
    held.release().await.expect("held");
    drop(timeout(SECOND, second).await.expect("the waiter watches the holder").expect("no panic").expect("granted"));
    drop(first);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_checks_less_often_and_never_while_cut_off() {
    let (ours, theirs) = two();
    let _held = write(&lock_of(&theirs));
    let asked = Count::default();
    let count = asked.clone();
    let client = Hindered::new(&ours, move |asked| {
        if matches!(asked, Request::Transact([Operation::Check { .. }, Operation::Check { .. }])) {
            count.one_more();
        }
        None
    });
    let mut waiter = spawn(RwLock::new(&client, PATH).expect("valid").write().into_future());
    waits(&mut waiter).await;
    let checks = async |seconds| {
        let before = asked.now();
        sleep(seconds * SECOND).await;
        asked.now() - before
    };
    assert_eq!((checks(9).await, checks(3).await, checks(7).await), (0, 1, 0));
    // The first check comes about 10 s after the wait begins. Each later pause is twice as long as the last, up to 600
    // s.
    let more = checks(6_000).await;
    assert!((12..=15).contains(&more), "{more}");
    waiter.abort();

    let mut waiter = spawn(RwLock::new(&client, PATH).expect("valid").write().into_future());
    waits(&mut waiter).await;
    assert_eq!((checks(12).await, checks(16).await), (1, 0));
    ours.faults().cut();
    assert_eq!(checks(6).await, 0, "a check was sent while the client was cut off");
    ours.faults().heal();
    assert_eq!((checks(9).await, checks(3).await), (0, 1), "the pauses did not start from the beginning");
    waiter.abort();
}

// Contenders for permits whose server conceals a change.

pub(crate) fn limit(zk: &Memory, permits: u32) -> Semaphore {
    Semaphore::new(zk, "/limit", permits).expect("valid")
}

#[tokio::test(start_paused = true)]
async fn a_head_without_an_event_takes_a_freed_permit() {
    for (i, silence) in SILENCES.iter().enumerate() {
        let errors = diverged();
        let (ours, theirs) = two();
        let permit = now(limit(&theirs, 1).acquire()).expect("free");
        let node = sole_node(&theirs, "/limit/permits");
        let began = Instant::now();
        let line = counted(&ours);
        let mut head = spawn(Semaphore::new(&line, "/limit", 1).expect("valid").acquire().into_future());
        waits(&mut head).await;
        silence(&ours, &node);
        drop(permit);
        ends(head).await.expect("no panic").expect("granted").release().await.expect("held");
        assert!(FIRST_CHECK.contains(&began.elapsed()), "{:?}", began.elapsed());
        assert_eq!(errors(), vec![node; i]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_head_without_an_event_of_its_end_fails() {
    for silence in SILENCES {
        let (ours, theirs) = two();
        let permit = now(limit(&theirs, 1).acquire()).expect("free");
        let began = Instant::now();
        let mut head = spawn(limit(&ours, 1).acquire().into_future());
        waits(&mut head).await;
        let own = sole_node(&ours, "/limit/queue");
        silence(&ours, &own);
        theirs.faults().remove(own);
        let error = ends(head).await.expect("no panic").expect_err("the waiter's node is gone");
        assert!(matches!(error, Error::Evicted(Loss::Removed)) && permit.is_held(), "{error:?}");
        assert!(FIRST_CHECK.contains(&began.elapsed()), "{:?}", began.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_with_many_ghost_permits_is_left_once() {
    let errors = diverged();
    let (ours, theirs) = two();
    let other = limit(&theirs, 20);
    let mut permits = Vec::new();
    for _ in 0..20 {
        permits.push(other.acquire().await.expect("free"));
    }
    let began = Instant::now();
    let line = counted(&ours);
    let mut head = spawn(Semaphore::new(&line, "/limit", 20).expect("valid").acquire_many(20).into_future());
    waits(&mut head).await;
    permits.iter().for_each(|permit| ours.faults().freeze(permit.node_path()));
    theirs.faults().expire();
    drop(permits);
    drop(ends(head).await.expect("no panic").expect("granted"));
    assert!(FIRST_CHECK.contains(&began.elapsed()), "{:?}", began.elapsed());
    assert_eq!(errors().len(), 1, "{:?}", errors());
}

/// A transaction that checks a thousand permits at the leader would be too large, so the head needs several
/// transactions.
#[tokio::test(start_paused = true)]
async fn a_head_knows_which_of_1000_permits_was_freed() {
    let errors = diverged();
    let (ours, theirs) = two();
    let other = limit(&theirs, 1_000);
    let mut permits = Vec::new();
    for _ in 0..1_000 {
        permits.push(other.acquire().await.expect("free"));
    }
    let line = counted(&ours);
    let mut head = spawn(Semaphore::new(&line, "/limit", 1_000).expect("valid").acquire_many(3).into_future());
    waits(&mut head).await;
    permits.sort_by_key(|permit| permit.node_path().to_owned());
    let gone: Vec<_> = [999, 700, 10].map(|at| permits.remove(at)).into();
    let nodes: Vec<_> = gone.iter().map(|permit| permit.node_path().to_owned()).collect();
    nodes.iter().for_each(|node| ours.faults().freeze(node));
    for permit in gone {
        assert!(timeout(60 * SECOND, &mut head).await.is_err(), "more permits are held than exist");
        drop(permit);
    }
    drop(ends(head).await.expect("no panic").expect("granted"));
    assert_eq!(errors(), nodes[..1], "the next server shows what this one hid");
}

#[tokio::test(start_paused = true)]
async fn a_head_sees_a_new_number_of_permits_at_its_check() {
    let errors = diverged();
    let (ours, theirs) = two();
    let other = limit(&theirs, 1);
    let _permit = now(other.acquire()).expect("free");
    let began = Instant::now();
    let mut head = spawn(limit(&ours, 1).acquire().into_future());
    waits(&mut head).await;
    ours.faults().forget_watches();
    other.set_permits(2).await.expect("allowed");
    drop(ends(head).await.expect("no panic").expect("granted"));
    assert!(FIRST_CHECK.contains(&began.elapsed()), "{:?}", began.elapsed());
    assert_eq!(errors(), [""; 0], "an error was logged although the server shows the new number");
}

/// Another client changes the number of permits just before the head takes a permit. The head has not received the
/// event of that change yet.
#[tokio::test(start_paused = true)]
async fn a_number_of_permits_changed_in_the_exchange_counts() {
    let (ours, theirs) = two();
    let other = limit(&theirs, 1);
    let permit = now(other.acquire()).expect("free");
    let has_changed = AtomicBool::new(false);
    let line = Hindered::new(&ours, move |asked| {
        let takes = matches!(asked, Request::Transact([_, Operation::Check { .. }, Operation::Create { .. }, ..]));
        if takes && !has_changed.swap(true, Ordering::Relaxed) {
            now(other.set_permits(2)).expect("allowed");
        }
        None
    });
    let mut head = spawn(Semaphore::new(&line, "/limit", 1).expect("valid").acquire().into_future());
    waits(&mut head).await;
    drop(permit);
    drop(timeout(SECOND, head).await.expect("a grant without a pause").expect("no panic").expect("granted"));
}

/// The only server goes on showing a number of permits that the ensemble's leader has replaced.
#[tokio::test(start_paused = true)]
async fn a_number_of_permits_the_leader_lacks_is_an_error() {
    let (errors, tries, memory) = (diverged(), Count::default(), Memory::new());
    memory.faults().keep_server();
    let tried = tries.clone();
    let zk = Hindered::new(&memory, move |asked| {
        let Request::Transact(operations) = asked else { return None };
        let is_number = |it: &Operation| matches!(it, Operation::Check { path, version: Some(_) } if path == "/limit");
        let index = operations.iter().position(is_number)?;
        tried.one_more();
        Some(refused_at(index, Failure::BadVersion))
    });
    let limit = Semaphore::new(&zk, "/limit", 1).expect("valid");
    let waited = limit.acquire().timeout(60 * SECOND).await;
    assert!(matches!(waited, Err(Error::Diverged { .. })), "{waited:?}");
    // The first refusal may come from a very recent change. After each later refusal the server is left.
    assert_eq!((tries.now(), errors()), (5, vec!["/limit".to_owned(); 3]));
    assert!(matches!(limit.try_acquire().await, Err(Error::Diverged { .. })));
}

/// The server shows the semaphore's directory without a number of permits, while the leader has another version of that
/// directory.
#[tokio::test(start_paused = true)]
async fn a_number_of_permits_the_leader_denies_backs_off() {
    let (memory, tries) = (Memory::new(), Count::default());
    now(now(RwLock::new(&memory, "/limit").expect("valid").write()).expect("free").release()).expect("held");
    let tried = tries.clone();
    let zk = Hindered::new(&memory, move |asked| match asked {
        Request::Transact([Operation::Set { path, .. }, _twin, ..]) if path == "/limit" => {
            tried.one_more();
            Some(refused_at(0, Failure::BadVersion))
        }
        _ => None,
    });
    let limit = Semaphore::builder(&zk, "/limit").permits(1).at_existing_node().build().expect("valid");
    let waited = limit.acquire().timeout(60 * SECOND).await;
    assert!(matches!(waited, Err(Error::Timeout { .. })), "{waited:?}");
    assert!((5..=8).contains(&tries.now()), "{}", tries.now());
}

/// The server claims that the directory of the permits does not exist, when the permits are listed or when a permit is taken.
#[tokio::test(start_paused = true)]
async fn a_denied_permits_directory_is_retried_slowly() {
    for is_shown in [false, true] {
        let (errors, zk, tries) = (diverged(), Memory::new(), Count::default());
        zk.faults().keep_server();
        drop(limit(&zk, 1).acquire().await.expect("free"));
        let tried = tries.clone();
        let line = Hindered::new(&zk, move |asked| match asked {
            Request::Create("/limit/permits", _) => {
                tried.one_more();
                None
            }
            Request::WatchChildren(path) | Request::Children(path) | Request::Data(path) => {
                (!is_shown && path == "/limit/permits").then_some(Failure::NoNode)
            }
            Request::Transact([_, Operation::Check { .. }, Operation::Create { .. }, ..]) => {
                Some(refused_at(2, Failure::NoNode))
            }
            _ => None,
        });
        let waited = Semaphore::new(&line, "/limit", 1).expect("valid").acquire().timeout(60 * SECOND).await;
        let tries = tries.now();
        if is_shown {
            assert!(matches!(waited, Err(Error::Timeout { .. })) && (5..=8).contains(&tries), "{waited:?}, {tries}");
            assert_eq!(errors(), [""; 0]);
        } else {
            assert!(matches!(waited, Err(Error::Diverged { .. })), "{waited:?}");
            assert_eq!((tries, errors()), (2, vec!["/limit/permits".to_owned(); 3]));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_missed_a_number_of_permits_is_left() {
    let errors = diverged();
    let (ours, theirs) = two();
    let other = limit(&theirs, 1);
    let permit = now(other.acquire()).expect("free");
    let began = Instant::now();
    let mut head = spawn(limit(&ours, 1).acquire().into_future());
    waits(&mut head).await;
    ours.faults().freeze("/limit");
    other.set_permits(2).await.expect("allowed");
    drop(ends(head).await.expect("no panic").expect("granted"));
    assert!(FIRST_CHECK.contains(&began.elapsed()), "{:?}", began.elapsed());
    assert_eq!(errors(), ["/limit"]);
    assert!(permit.is_held());
}

/// The second contender exchanges its place in the queue for permits, but the third contender's server misses that
/// transaction. The server still shows the place, and hides the permits. The third contender must count these permits.
#[tokio::test(start_paused = true)]
async fn a_head_past_a_ghost_counts_hidden_permits() {
    for count in 1..3 {
        let (ours, theirs) = two();
        let other = limit(&theirs, count);
        let first = now(other.acquire_many(count)).expect("free");
        let mut second = tokio_test::task::spawn(other.acquire_many(count).into_future());
        assert_pending!(second.poll());
        let mut third = spawn(limit(&ours, count).acquire().into_future());
        waits(&mut third).await;
        drop(first);
        assert_eq!(ours.children("/limit/permits"), Vec::<String>::new());
        let place = theirs.children("/limit/queue").into_iter().find(|name| name.ends_with('1')).expect("the second");
        let (owner, _) = place.split_once("-WRITE-").expect("a contender");
        ours.faults().freeze(format!("/limit/queue/{place}"));
        ours.faults().freeze(format!("/limit/permits/{owner}-PERMIT-{count}"));
        let second = assert_ready_ok!(second.poll());
        assert!(timeout(600 * SECOND, &mut third).await.is_err(), "more permits are held than exist");
        assert!(second.is_held());
        drop(second);
        drop(timeout(SECOND, third).await.expect("another server shows it").expect("no panic").expect("granted"));
    }
}

// Waits for values, and copies of values, whose server conceals a change.

#[tokio::test(start_paused = true)]
async fn a_copy_without_an_event_sees_a_commit_at_its_check() {
    let errors = diverged();
    let (ours, theirs) = two();
    let value = Shared::builder(&theirs, PATH).initial(|| 1_u64).build().expect("valid");
    let copy = Shared::<u64>::new(&ours, PATH).expect("valid").live();
    value.update(|value| *value = 2).await.expect("free");
    let live = copy.await.expect("a value");
    let mut changes = live.changes();
    assert_eq!(**changes.next().await.expect("open").expect("a value"), 2);
    // During these 600 s, the pauses between checks at the leader become long. The next event resets them to the
    // shortest, one session timeout (10 s).
    sleep(600 * SECOND).await;
    value.update(|value| *value = 3).await.expect("free");
    assert_eq!(**timeout(SECOND, changes.next()).await.expect("an event").expect("open").expect("a value"), 3);
    let began = Instant::now();
    ours.faults().forget_watches();
    value.update(|value| *value = 4).await.expect("free");
    assert_eq!(**ends(changes.next()).await.expect("open").expect("a value"), 4);
    assert!(began.elapsed() < FIRST_CHECK.end, "{:?}", began.elapsed());
    assert_eq!((**live.get(), errors()), (4, vec![]));
}

#[tokio::test(start_paused = true)]
async fn a_copy_at_the_only_server_reports_it_is_behind() {
    let errors = diverged();
    let (ours, theirs) = two();
    let value = Shared::builder(&theirs, PATH).initial(|| 1_u64).build().expect("valid");
    value.update(|value| *value = 2).await.expect("free");
    let live = Shared::<u64>::new(&ours, PATH).expect("valid").live().await.expect("a value");
    let mut changes = live.changes();
    assert_eq!(**changes.next().await.expect("open").expect("a value"), 2);
    let node = format!("{PATH}/value");
    ours.faults().keep_server();
    ours.faults().freeze(&node);
    value.update(|value| *value = 3).await.expect("free");
    assert!(matches!(live.state(), CopyState::Current), "the copy noticed a commit that its server hides");

    let began = Instant::now();
    let error = ends(changes.next()).await.expect("open").expect_err("the ensemble no longer has the value");
    assert!(FIRST_CHECK.contains(&began.elapsed()), "{:?}", began.elapsed());
    assert!(matches!(&error, Error::Diverged { node: about, .. } if *about == node), "{error}");
    for _ in 0..3 {
        assert!(matches!(live.state(), CopyState::Behind(Error::Diverged { .. })), "{:?}", live.state());
        assert_eq!((**live.get(), errors()), (2, vec![node.clone(); 3]), "the only server is left three times");
        sleep(2 * FIRST_CHECK.end).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_copy_leaves_a_server_that_missed_a_commit() {
    let errors = diverged();
    let (ours, theirs) = two();
    let value = Shared::builder(&theirs, PATH).initial(|| 1_u64).build().expect("valid");
    value.update(|value| *value = 2).await.expect("free");
    let live = Shared::<u64>::new(&ours, PATH).expect("valid").live().await.expect("a value");
    let mut changes = live.changes();
    assert_eq!(**changes.next().await.expect("open").expect("a value"), 2);
    let (node, began) = (format!("{PATH}/value"), Instant::now());
    ours.faults().freeze(&node);
    value.update(|value| *value = 3).await.expect("free");
    assert_eq!(**ends(changes.next()).await.expect("open").expect("the ensemble's value"), 3);
    assert!(FIRST_CHECK.contains(&began.elapsed()), "{:?}", began.elapsed());
    assert!(matches!(live.state(), CopyState::Current), "{:?}", live.state());
    assert_eq!(errors(), [node]);
}

#[tokio::test(start_paused = true)]
async fn a_first_value_without_an_event_is_found() {
    let (ours, theirs) = two();
    let wanted = Shared::<u64>::new(&ours, PATH).expect("valid").wait_for(|_| true);
    let mut waiter = spawn(wanted.into_future());
    waits(&mut waiter).await;
    ours.faults().forget_watches();
    let began = Instant::now();
    let value = Shared::builder(&theirs, PATH).initial(|| 7_u64).build().expect("valid");
    assert_eq!(*value.read().await.expect("free"), 7);
    assert_eq!(**ends(&mut waiter).await.expect("no panic").expect("a value"), 7);
    assert!(began.elapsed() < FIRST_CHECK.end, "{:?}", began.elapsed());
}

/// The only server hides the node that a wait for a value, or an observer of elected leaders, waits for.
#[tokio::test(start_paused = true)]
async fn hidden_nodes_are_looked_for_less_and_less_often() {
    let waits_for: [fn(&Hindered) -> JoinHandle<()>; 2] = [
        |zk| {
            let value = Shared::<u64>::new(zk, PATH).expect("valid").wait_for(|_| true);
            spawn(async { panic!("{:?}", value.await) })
        },
        |zk| {
            let mut changes = Leadership::new(zk, PATH).expect("valid").changes();
            spawn(async move {
                assert!(changes.next().await.expect("open").expect("readable").is_none());
                panic!("{:?}", changes.next().await)
            })
        },
    ];
    for waits_for in waits_for {
        let errors = diverged();
        let (ours, theirs) = two();
        let looks = Count::default();
        let looked = looks.clone();
        let line = Hindered::new(&ours, move |asked| {
            if let Request::Transact([Operation::Check { .. }]) = asked {
                looked.one_more();
            }
            None
        });
        let mut waiter = waits_for(&line);
        waits(&mut waiter).await;
        ours.faults().keep_server();
        ours.faults().freeze(PATH);
        let before = looks.now();
        let _value =
            Shared::builder(&theirs, PATH).initial(|| 7_u64).build().expect("valid").read().await.expect("free");
        // The waiter's nine checks come after 10, 30, 70, 150, 310, 630, 1,230, 1,830 and 2,430 seconds, each delayed
        // by up to a tenth by jitter.
        assert!(timeout(3_000 * SECOND, &mut waiter).await.is_err());
        waiter.abort();
        // A look is a check, and a check before and after a read. The first look leaves the server three times, and looks again.
        assert_eq!((looks.now() - before, errors().len()), (9 * 3 + 3 * 2, 3), "{:?}", errors());
    }
}

#[tokio::test(start_paused = true)]
async fn a_hidden_initial_value_is_written_less_often() {
    let (ours, theirs) = two();
    let counter = |zk: &Hindered| Shared::builder(zk, PATH).initial(|| 7_u64).build().expect("valid");
    let _session = ours.session_slot(0).await.expect("open");
    ours.faults().keep_server();
    ours.faults().freeze(format!("{PATH}/value"));
    let _value = counter(&Hindered::new(&theirs, |_| None)).read().await.expect("free");
    let (line, contenders) = Hindered::counting(&ours, |_| ());
    let mut changes = counter(&line).changes();
    // The client tries to write the initial value after 0, 1, 3, 7, 15, 31, 63, 127, 255, 511, 1,023, 1,623, 2,223 and
    // 2,823 seconds, because its server hides the value that exists. The pauses double up to 600 s.
    let end = timeout(3_000 * SECOND, changes.next()).await;
    assert!(end.is_err(), "{end:?}");
    assert_eq!(contenders.now(), 14);
}

// Observers of elected leaders, and holders of a lock, whose server conceals a change.

#[tokio::test(start_paused = true)]
async fn an_observer_without_an_event_sees_a_new_leader() {
    for (i, silence) in SILENCES.iter().enumerate() {
        let errors = diverged();
        let (ours, theirs) = two();
        let leads = |zk: &Memory| {
            let leadership = Leadership::new(zk, PATH).expect("valid");
            spawn(async move { leadership.lead(|_| std::future::pending::<()>()).await.map(drop) })
        };
        let first = leads(&theirs);
        sleep(SECOND).await;
        let mut changes = Leadership::new(&counted(&ours), PATH).expect("valid").changes();
        let term = changes.next().await.expect("open").expect("readable").expect("the candidate leads").term;
        let node = sole_node(&theirs, PATH);
        silence(&ours, &node);
        first.abort();
        let began = Instant::now();
        assert!(ends(changes.next()).await.expect("open").expect("readable").is_none());
        assert!(FIRST_CHECK.contains(&began.elapsed()), "{:?}", began.elapsed());
        ours.faults().forget_watches();
        let _second = leads(&theirs);
        let began = Instant::now();
        let next = ends(changes.next()).await.expect("open").expect("readable").expect("the candidate leads").term;
        assert!(next > term && began.elapsed() < FIRST_CHECK.end, "{:?}", began.elapsed());
        assert_eq!(errors(), vec![node; i]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_holder_without_an_event_sees_a_waiter() {
    let (ours, theirs) = two();
    let held = now(lock_of(&ours).read()).expect("free");
    let contended = spawn(async move { held.contended().await.map(|who| who.mode()) });
    // During these 600 s, the pauses between checks at the leader become long. The next event resets them to the
    // shortest, one session timeout (10 s).
    sleep(600 * SECOND).await;
    let reader = read(&lock_of(&theirs));
    sleep(SECOND).await;
    ours.faults().forget_watches();
    let mut waiter = writing(&lock_of(&theirs));
    assert_pending!(waiter.poll());
    let began = Instant::now();
    assert_eq!(ends(contended).await.expect("no panic").expect("held"), Mode::Write);
    assert!(began.elapsed() < FIRST_CHECK.end, "{:?}", began.elapsed());
    drop(reader);
}

// Kept nodes that their process uses again and again without a pause.

/// Uses the lock again and again without a pause, each time for a tenth of a second.
fn in_use(lock: RwLock) -> JoinHandle<()> {
    spawn(async move {
        loop {
            let _guard = lock.read().await.expect("granted");
            sleep(SECOND / 10).await;
        }
    })
}

#[tokio::test(start_paused = true)]
async fn a_busy_kept_node_is_given_up_to_a_denied_asker() {
    for (idle, at_last) in [(SECOND, 30 * SECOND), (60 * SECOND, 120 * SECOND), (86_400 * SECOND, 600 * SECOND)] {
        let zk = Memory::new();
        let kept = RwLock::builder(&zk, PATH).keep(idle).build().expect("valid");
        let (began, used) = (Instant::now(), in_use(kept));
        sleep(at_last - 5 * SECOND).await;
        let may_not_ask = Hindered::new(&zk.connect(), |asked| match asked {
            Request::Transact([Operation::Set { path, .. }]) if path == PATH => {
                Some(refused_at(0, Failure::NoAuth(Box::default())))
            }
            _ => None,
        });
        let guard = ends(RwLock::new(&may_not_ask, PATH).expect("valid").write()).await.expect("granted");
        let waited = began.elapsed();
        assert!((at_last..at_last + SECOND / 5).contains(&waited), "{waited:?} with {idle:?}");
        drop(guard);
        used.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn a_kept_node_without_the_ask_event_is_given_up() {
    let (ours, theirs) = two();
    let kept = RwLock::builder(&ours, PATH).keep(Duration::MAX).build().expect("valid");
    drop(kept.read().await.expect("free"));
    ours.faults().forget_watches();
    let began = Instant::now();
    drop(ends(lock_of(&theirs).write()).await.expect("granted"));
    assert!(began.elapsed() < 601 * SECOND, "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_busy_kept_node_lists_its_queue_each_idle_time() {
    // The pause is at least 30 s and at most ten minutes.
    for (idle, time, listings) in [(1, 300, 10), (100, 300, 3), (3_000, 1_200, 2)] {
        let zk = Memory::new();
        let kept = RwLock::builder(&zk, PATH).keep(idle * SECOND).build().expect("valid");
        let used = in_use(kept.clone());
        sleep(SECOND / 20).await;
        let (token, before) = (kept.read().await.expect("shared").fencing_token(), zk.requests());
        sleep(time * SECOND).await;
        assert_eq!(zk.requests() - before, listings, "{idle}");
        assert_eq!(kept.read().await.expect("shared").fencing_token(), token);
        used.abort();
    }
}
