//! Reads of one process that share a node, decided poll by poll on the embedded ensemble: no threads and no sleeps, but
//! for the last one.

use std::future::IntoFuture;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use support::polled::*;
use tokio::time::Instant;
use tokio_test::task::{self, Spawn};
use tokio_test::{assert_pending, assert_ready_err, assert_ready_ok};
use zk_rwlock::coordinator::Coordinator;
use zk_rwlock::{Contender, Ending, Error, Loss, Memory, Mode, Progress, RwLock};

const DIRECTORY: &str = "/lock";

/// An age that no node reaches in a test that does not say so.
const MAX_AGE: Duration = Duration::from_secs(60);

const MOMENT: Duration = Duration::from_millis(1);

fn sharing<C: Coordinator + Clone>(client: &C, max_age: Duration) -> RwLock {
    RwLock::builder(client, DIRECTORY).share_reads(max_age).build().expect("valid")
}

/// A client whose reads are shared, and another one; the lock's directory exists and is empty.
fn two_with(max_age: Duration) -> (Memory, RwLock, RwLock) {
    let zk = Memory::new();
    let (shared, other) = (sharing(&zk, max_age), RwLock::new(&zk.connect(), DIRECTORY).expect("valid"));
    for lock in [&shared, &other] {
        drop(write(lock));
    }
    assert_nothing_left(&zk);
    (zk, shared, other)
}

fn two() -> (Memory, RwLock, RwLock) {
    two_with(MAX_AGE)
}

/// The modes of the contenders in the directory, in order.
fn line(zk: &Memory) -> Vec<Mode> {
    let names = zk.children(DIRECTORY);
    let mut all: Vec<_> = names.iter().filter_map(|name| Contender::parse(name)).collect();
    all.sort_by_key(Contender::sequence);
    all.iter().map(Contender::mode).collect()
}

fn assert_nothing_left(zk: &Memory) {
    assert_eq!(zk.children(DIRECTORY), Vec::<String>::new());
    assert_eq!(zk.watches(), 0);
}

fn costs<T>(zk: &Memory, requests: u64, what: &str, step: impl FnOnce() -> T) -> T {
    let before = zk.requests();
    let output = step();
    assert_eq!(zk.requests() - before, requests, "{what}");
    output
}

// One node.

#[test]
fn a_hundred_shared_reads_cost_one_create_one_listing_and_one_delete() {
    let (zk, shared, _) = two();
    let first = costs(&zk, 3, "the create, the listing, and the watch on our own node", || read(&shared));
    let others: Vec<_> = costs(&zk, 0, "joining", || (1..100).map(|_| read(&shared)).collect());
    assert_eq!(zk.children(DIRECTORY).len(), 1);
    assert!(others.iter().all(|guard| guard.is_held() && guard.path() == first.path()));
    assert!(others.iter().all(|guard| guard.fencing_token() == first.fencing_token()));
    costs(&zk, 0, "there are others", || drop(first));
    let last = costs(&zk, 0, "there is one more", || others.into_iter().reduce(|_, last| last)).expect("many");
    costs(&zk, 1, "the delete", || drop(last));
    assert_nothing_left(&zk);
}

#[test]
fn a_hundred_reads_at_once_cost_one_create_one_listing_and_one_delete() {
    let (zk, shared, _) = two();
    zk.cut(); // so that nobody is answered before all have asked
    let mut all: Vec<_> = (0..100).map(|_| reading(&shared)).collect();
    for reading in &mut all {
        assert_pending!(reading.poll());
    }
    let guards: Vec<_> = costs(&zk, 3, "the create, the listing, and the watch on our own node", || {
        zk.heal();
        assert!(all.iter().all(Spawn::is_woken));
        all.iter_mut().map(|reading| assert_ready_ok!(reading.poll())).collect()
    });
    assert_eq!(line(&zk), [Mode::Read]);
    costs(&zk, 1, "the delete", || drop(guards));
    assert_nothing_left(&zk);
}

#[test]
fn clones_of_a_lock_share_and_others_do_not() {
    let (zk, shared, _) = two();
    let (one, two) = (read(&shared), read(&shared.clone()));
    assert_eq!(one.path(), two.path());
    let (three, four) = (read(&sharing(&zk, MAX_AGE)), read(&RwLock::new(&zk, DIRECTORY).expect("valid")));
    assert_eq!(line(&zk), [Mode::Read; 3]);
    drop((one, two, three, four));
    assert_nothing_left(&zk);
}

#[test]
fn reads_that_do_not_overlap_have_a_node_each() {
    let (zk, shared, _) = two();
    let one = read(&shared);
    let (path, token) = (one.path(), one.fencing_token());
    drop(one);
    assert_nothing_left(&zk);
    let two = read(&shared);
    assert!(two.path() != path && two.fencing_token() > token);
}

#[test]
fn only_the_last_release_waits_for_the_node_to_be_gone() {
    let (zk, shared, _) = two();
    let (one, two) = (read(&shared), read(&shared));
    zk.cut();
    now(one.release()).expect("held");
    let mut releasing = task::spawn(two.release());
    assert_pending!(releasing.poll());
    zk.heal();
    assert_ready_ok!(releasing.poll());
    assert_nothing_left(&zk);
}

#[test]
fn a_max_age_of_zero_is_refused_and_the_longest_is_not() {
    let zk = Memory::new();
    let error = RwLock::builder(&zk, DIRECTORY).share_reads(Duration::ZERO).build().expect_err("zero");
    assert!(matches!(&error, Error::InvalidInput(problem) if problem.contains("share_reads")), "{error}");
    let forever = sharing(&zk, Duration::MAX);
    let (one, two) = (read(&forever), read(&forever));
    assert_eq!(one.path(), two.path());
}

#[test]
fn wrong_input_is_refused_also_where_there_is_a_node_to_join() {
    let (zk, shared, _) = two();
    let _held = read(&shared);
    costs(&zk, 0, "refused", || {
        let zero = now(shared.read().timeout(Duration::ZERO).into_future()).expect_err("zero");
        let control = now(shared.read().label("a\nb").into_future()).expect_err("a control character");
        assert!(matches!((&zero, &control), (Error::InvalidInput(_), Error::InvalidInput(_))), "{zero}; {control}");
    });
}

// Labels, and reads that do not wait.

#[test]
fn a_read_with_a_label_of_its_own_has_a_node_of_its_own() {
    let zk = Memory::new();
    let shared = RwLock::builder(&zk, DIRECTORY).label("serve").share_reads(MAX_AGE).build().expect("valid");
    let labelled = |label| now(shared.read().label(label).into_future()).expect("shared");
    let reload = labelled("reload");
    let first = read(&shared);
    assert_ne!(first.path(), reload.path(), "its label would say what this one does not do");
    assert_eq!(labelled("serve").path(), first.path());
    assert_ne!(labelled("reload").path(), first.path());
    let mut labels: Vec<_> = now(shared.queue()).expect("readable").members.into_iter().map(|m| m.label).collect();
    labels.sort();
    assert_eq!(labels, [Some("reload".to_owned()), Some("serve".to_owned())]);
}

#[test]
fn a_try_joins_what_is_held_even_before_a_waiting_writer() {
    let (zk, shared, other) = two();
    let held = read(&shared);
    let mut writer = writing(&other);
    assert_pending!(writer.poll());
    let tried = costs(&zk, 0, "joining", || now(shared.try_read()).expect("shared"));
    drop(held);
    assert!(tried.is_held());
    assert_pending!(writer.poll());
    drop(tried);
    drop(assert_ready_ok!(writer.poll()));
}

#[test]
fn what_a_try_was_granted_can_be_joined() {
    let (zk, shared, _) = two();
    let tried = now(shared.try_read()).expect("free");
    let joined = costs(&zk, 0, "joining", || read(&shared));
    assert_eq!(tried.path(), joined.path());
}

#[test]
fn a_try_does_not_wait_for_those_who_enter() {
    let (zk, shared, other) = two();
    let held = write(&other);
    let mut waiting = reading(&shared);
    assert_pending!(waiting.poll());
    assert!(now(shared.try_read()).is_err_and(|error| error.is_would_block()));
    assert_eq!(line(&zk), [Mode::Write, Mode::Read]);
    drop(held);
    drop(assert_ready_ok!(waiting.poll()));
}

// Reads that wait for the same node.

#[test]
fn those_who_wait_keep_the_place_of_one_that_is_cancelled() {
    let (zk, shared, other) = two();
    let held = write(&other);
    let (mut first, mut second, mut third) = (reading(&shared), reading(&shared), reading(&shared));
    assert_pending!(first.poll());
    assert_pending!(second.poll());
    assert_pending!(third.poll());
    let mut behind = writing(&other);
    assert_pending!(behind.poll());
    let place = zk.children(DIRECTORY);
    assert_eq!(line(&zk), [Mode::Write, Mode::Read, Mode::Write]);
    drop(first);
    assert_eq!(zk.children(DIRECTORY), place);
    drop(held);
    assert!(second.is_woken() && third.is_woken());
    // A read that is woken may be cancelled instead of looking.
    drop(second);
    let guard = assert_ready_ok!(third.poll());
    assert!(guard.is_held());
    assert_pending!(behind.poll());
    drop(guard);
    drop(assert_ready_ok!(behind.poll()));
    drop((third, behind));
    assert_nothing_left(&zk);
}

#[test]
fn one_that_enters_may_be_cancelled_before_its_node_is_there() {
    let (zk, shared, _) = two();
    zk.cut();
    let (mut first, mut second) = (reading(&shared), reading(&shared));
    assert_pending!(first.poll());
    assert_pending!(second.poll());
    drop(first);
    zk.heal();
    assert!(second.is_woken());
    let guard = assert_ready_ok!(second.poll());
    assert_eq!(line(&zk), [Mode::Read]);
    drop(guard);
    assert_nothing_left(&zk);
}

#[test]
fn after_all_readers_give_up_nothing_is_left_and_the_next_enters_afresh() {
    let (zk, shared, other) = two();
    for cut in [false, true] {
        let held = write(&other);
        if cut {
            zk.cut();
        }
        let (mut first, mut second) = (reading(&shared), reading(&shared));
        assert_pending!(first.poll());
        assert_pending!(second.poll());
        drop(first);
        drop(second);
        let mut next = reading(&shared);
        assert_pending!(next.poll());
        zk.heal();
        assert_pending!(next.poll());
        assert_eq!(line(&zk), [Mode::Write, Mode::Read]);
        drop(held);
        drop(assert_ready_ok!(next.poll()));
        drop(next);
        assert_nothing_left(&zk);
    }
}

#[test]
fn a_node_goes_with_the_last_of_those_it_was_granted_to_polled_or_not() {
    let (zk, shared, other) = two();
    let held = write(&other);
    let (mut first, mut second) = (reading(&shared), reading(&shared));
    assert_pending!(first.poll());
    assert_pending!(second.poll());
    drop(held);
    drop(assert_ready_ok!(first.poll()));
    assert_eq!(line(&zk), [Mode::Read], "the second was granted it too");
    let guard = assert_ready_ok!(second.poll());
    assert!(guard.is_held());
    drop(guard);
    assert_nothing_left(&zk);
}

#[tokio::test(start_paused = true)]
async fn a_timeout_ends_only_the_read_that_it_was_given_to() {
    let (zk, shared, other) = two();
    let held = now(other.write().label("migrate").into_future()).expect("free");
    let within = |seconds| task::spawn(shared.read().timeout(Duration::from_secs(seconds)).into_future());
    let (mut first, mut second, mut third, mut patient) = (within(2), within(3), within(60), reading(&shared));
    for reading in [&mut first, &mut second, &mut third, &mut patient] {
        assert_pending!(reading.poll());
    }
    for (reading, seconds, look_up) in [(&mut first, 2, 1_800), (&mut second, 3, 800)] {
        tokio::time::advance(Duration::from_millis(look_up)).await;
        assert_pending!(reading.poll());
        tokio::time::advance(Duration::from_millis(200) + MOMENT).await;
        let error = assert_ready_err!(reading.poll());
        let Error::Timeout { waited, blockers } = &error else { panic!("{error}") };
        assert_eq!((waited.as_secs(), blockers.ahead), (seconds, 1));
        assert!(error.to_string().contains("migrate"), "{error}");
    }
    assert_eq!(line(&zk), [Mode::Write, Mode::Read]);
    drop(held);
    let (third, patient) = (assert_ready_ok!(third.poll()), assert_ready_ok!(patient.poll()));
    assert_eq!(third.path(), patient.path());
}

#[test]
fn all_who_wait_hear_of_a_failure_and_the_next_one_enters_afresh() {
    let (zk, shared, other) = two();
    let held = write(&other);
    let (mut first, mut second) = (reading(&shared), reading(&shared));
    assert_pending!(first.poll());
    assert_pending!(second.poll());
    let waiting = zk.children(DIRECTORY).into_iter().find(|name| name.contains("-READ-")).expect("it waits");
    zk.remove(&format!("{DIRECTORY}/{waiting}"));
    assert!(first.is_woken() && second.is_woken());
    for reading in [&mut second, &mut first] {
        assert!(matches!(assert_ready_err!(reading.poll()), Error::Evicted(Loss::Removed)));
        let mut next = self::reading(&shared);
        assert_pending!(next.poll());
        assert_eq!(line(&zk), [Mode::Write, Mode::Read]);
    }
    drop(held);
    assert!(read(&shared).is_held());
}

#[test]
fn all_who_wait_hear_that_the_client_was_closed() {
    let (zk, shared, other) = two();
    let _held = write(&other);
    let (mut first, mut second) = (reading(&shared), reading(&shared));
    assert_pending!(first.poll());
    assert_pending!(second.poll());
    now(zk.close());
    for reading in [&mut first, &mut second] {
        assert!(matches!(assert_ready_err!(reading.poll()), Error::Closed(Ending::Closed)));
    }
    assert!(matches!(now(shared.read().into_future()), Err(Error::Closed(Ending::Closed))));
}

#[test]
fn everyone_who_waits_is_told_who_is_in_the_way() {
    let (_zk, shared, other) = two();
    let (told, hears) = mpsc::channel();
    let telling = || {
        let told = told.clone();
        let tell = move |progress: &Progress| told.send(progress.blockers.ahead).expect("somebody hears");
        task::spawn(shared.read().on_wait(tell).into_future())
    };
    drop(assert_ready_ok!(telling().poll()));
    let held = write(&other);
    let mut quiet = reading(&shared);
    assert_pending!(quiet.poll());
    let (mut first, mut second) = (telling(), telling());
    for _ in 0..2 {
        assert_pending!(first.poll());
        assert_pending!(second.poll());
    }
    assert_eq!(hears.try_iter().collect::<Vec<_>>(), [1, 1], "once each, and not for the lock that was free");
    drop(held);
    for reading in [&mut first, &mut second, &mut quiet] {
        drop(assert_ready_ok!(reading.poll()));
    }
}

#[test]
fn one_that_enters_tells_who_is_in_the_way_when_it_finds_out() {
    let (zk, shared, other) = two();
    let _held = write(&other);
    let told = Arc::new(AtomicUsize::new(0));
    zk.cut();
    let tell = |told: &Arc<AtomicUsize>| {
        let told = Arc::clone(told);
        move |progress: &Progress| {
            told.fetch_add(progress.blockers.ahead, Ordering::Relaxed);
        }
    };
    let mut first = task::spawn(shared.read().on_wait(tell(&told)).into_future());
    let mut second = task::spawn(shared.read().on_wait(tell(&told)).into_future());
    assert_pending!(first.poll());
    assert_pending!(second.poll());
    assert_eq!(told.load(Ordering::Relaxed), 0, "no blocker is known yet");
    zk.heal();
    for reading in [&mut second, &mut first] {
        assert!(reading.is_woken());
        assert_pending!(reading.poll());
    }
    assert_eq!(told.load(Ordering::Relaxed), 2);
}

#[test]
fn all_who_share_an_entry_hear_when_it_gets_further() {
    let (zk, shared, other) = two();
    let held = write(&other);
    let mut writer = task::spawn(other.write().into_future());
    assert_pending!(writer.poll());
    let (told, hears) = mpsc::channel();
    let mut readers = [(); 2].map(|()| {
        let told = told.clone();
        let tell = move |progress: &Progress| told.send((progress.place, progress.blockers.ahead)).expect("heard");
        task::spawn(shared.read().on_wait(tell).into_future())
    });
    for reader in &mut readers {
        assert_pending!(reader.poll());
    }
    // The first one took the acquisition on before the second one asked.
    for reader in &mut readers {
        assert_pending!(reader.poll());
    }
    assert_eq!(hears.try_iter().collect::<Vec<_>>(), [(3, 2), (3, 2)]);
    drop(writer);
    let requests = zk.requests();
    for reader in &mut readers {
        assert!(reader.is_woken());
        assert_pending!(reader.poll());
    }
    assert_eq!(hears.try_iter().collect::<Vec<_>>(), [(2, 1), (2, 1)]);
    assert_eq!(zk.requests() - requests, 4, "one listing and one watch for both, and a read each");
    drop(held);
    for reader in &mut readers {
        drop(assert_ready_ok!(reader.poll()));
    }
}

// A read does not join a lost node.

#[test]
fn guards_on_one_node_are_lost_together_and_the_next_read_enters_afresh() {
    let (zk, shared, _) = two();
    let (one, two) = (read(&shared), read(&shared));
    zk.remove(&one.path());
    let next = read(&shared);
    assert!(!one.is_held() && !two.is_held() && next.is_held());
    assert!(matches!(now(two.release()), Err(Error::Lost(Loss::Removed))));
    assert_eq!(now(one.lost()), Loss::Removed);
    zk.expire();
    let last = read(&shared);
    assert!(!next.is_held() && last.is_held());
    assert!(matches!(now(next.release()), Err(Error::Lost(Loss::SessionOver(Ending::Expired)))));
    assert_eq!(line(&zk), [Mode::Read]);
}

#[tokio::test(start_paused = true)]
async fn nobody_joins_a_node_whose_lease_has_run_out() {
    let (zk, shared, _) = two();
    let held = read(&shared);
    zk.cut();
    // The lock is suspect, but no other contender can have it yet.
    let joined = read(&shared);
    tokio::time::advance(Duration::from_secs(9)).await;
    // Since then the lease was not looked at, and no timer has run.
    let mut next = reading(&shared);
    assert_pending!(next.poll());
    assert!(!held.is_held() && !joined.is_held());
    zk.heal();
    let next = assert_ready_ok!(next.poll());
    assert!(next.is_held() && next.path() != held.path());
}

#[test]
fn one_that_was_granted_with_others_and_looks_too_late_has_lost_its_place() {
    let (zk, shared, other) = two();
    let held = write(&other);
    let (mut first, mut late) = (reading(&shared), reading(&shared));
    assert_pending!(first.poll());
    assert_pending!(late.poll());
    drop(held);
    let guard = assert_ready_ok!(first.poll());
    zk.remove(&guard.path());
    assert!(matches!(assert_ready_err!(late.poll()), Error::Evicted(Loss::Removed)));
}

// The price that writers pay.

#[tokio::test(start_paused = true)]
async fn nobody_joins_once_the_age_is_over_counted_from_the_grant() {
    let max_age = Duration::from_secs(5);
    let (zk, shared, other) = two_with(max_age);
    let held = write(&other);
    let mut first = reading(&shared);
    assert_pending!(first.poll());
    tokio::time::advance(2 * max_age).await; // it waits for longer than that
    drop(held);
    let first = assert_ready_ok!(first.poll());
    let mut writer = writing(&other);
    assert_pending!(writer.poll());
    tokio::time::advance(max_age - MOMENT).await;
    let joined = read(&shared);
    assert_eq!(joined.path(), first.path());
    tokio::time::advance(MOMENT).await;
    let (mut after, mut beside) = (reading(&shared), reading(&shared));
    assert_pending!(after.poll());
    assert_pending!(beside.poll());
    assert!(now(shared.try_read()).is_err_and(|error| error.is_would_block()));
    assert_eq!(line(&zk), [Mode::Read, Mode::Write, Mode::Read]);
    drop(first);
    assert_pending!(writer.poll());
    drop(joined);
    let writer = assert_ready_ok!(writer.poll());
    assert_pending!(after.poll());
    drop(writer);
    let (after, beside) = (assert_ready_ok!(after.poll()), assert_ready_ok!(beside.poll()));
    assert_eq!(after.path(), beside.path());
}

/// Reads of equal length overlap all the time, and a writer elsewhere comes at some moment. Returns how long the writer
/// waits, and how many reads overtake it.
async fn wait_of_a_writer(max_age: Duration, comes_at: Duration, step: Duration, length: Duration) -> (Duration, u32) {
    let (zk, shared, other) = two_with(max_age);
    let began = Instant::now();
    let mut queued = Vec::new();
    let mut held = Vec::new();
    let mut writer = None;
    let mut overtaking = 0;
    loop {
        let now = Instant::now();
        held.retain(|(since, _)| now - *since < length);
        if now - began >= comes_at {
            let (since, writer) = writer.get_or_insert_with(|| (now, writing(&other)));
            if let std::task::Poll::Ready(answer) = writer.poll() {
                let guard = answer.expect("nothing goes wrong");
                assert!(guard.is_held() && held.is_empty());
                drop((queued, guard));
                assert_eq!(zk.children(DIRECTORY), Vec::<String>::new());
                return (now - *since, overtaking);
            }
        }
        let mut reading = reading(&shared);
        match reading.poll() {
            std::task::Poll::Ready(guard) => {
                held.push((now, guard.expect("nothing goes wrong")));
                overtaking += u32::from(writer.is_some());
            }
            std::task::Poll::Pending => queued.push(reading),
        }
        assert!(now - began < 10 * (comes_at + max_age + length), "the writer starves");
        tokio::time::advance(step).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_writer_waits_at_most_the_age_and_the_longest_read() {
    let (max_age, step) = (Duration::from_millis(1_000), Duration::from_millis(10));
    for length in [Duration::from_millis(20), Duration::from_millis(300), Duration::from_millis(2_500)] {
        let (mut longest, mut most) = (Duration::ZERO, 0);
        for comes_at in (0..100).map(|i| i * Duration::from_millis(30)) {
            let (wait, overtaking) = wait_of_a_writer(max_age, comes_at, step, length).await;
            // Each end is seen in the step in which it falls, or in the next.
            assert!(wait <= max_age + length + step, "reads of {length:?}: {wait:?}, come at {comes_at:?}");
            longest = longest.max(wait);
            most = most.max(overtaking);
        }
        assert!(longest + 6 * step > max_age + length, "reads of {length:?}: the bound is not tried, only {longest:?}");
        assert!(most > 90, "reads of {length:?}: {most} reads joined while the writer waited");
    }
}

/// The control of the test above: reads that have a node each let the writer in when those before it have left.
#[tokio::test(start_paused = true)]
async fn an_age_of_one_step_is_no_price() {
    let (step, length) = (Duration::from_millis(10), Duration::from_millis(300));
    let (wait, overtaking) = wait_of_a_writer(step, Duration::from_secs(1), step, length).await;
    assert!(wait <= length + step && overtaking == 0, "{wait:?}, overtaken by {overtaking}");
}

#[tokio::test]
async fn a_task_that_does_nothing_but_join_lets_others_run() {
    let (_zk, shared, _) = two();
    let _held = read(&shared);
    let other = tokio::spawn(async {});
    for _ in 0..10_000 {
        drop(shared.read().await.expect("shared"));
    }
    assert!(other.is_finished());
}

// With threads.

/// No wake-up is lost, and nothing is left behind, when reads come, join, give up and fail on several threads.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn reads_that_come_and_give_up_at_random_all_end() {
    const ROUNDS: u32 = 300;
    let (zk, shared, other) = two_with(Duration::from_millis(2));
    let counter = Arc::new(AtomicUsize::new(0));
    let readers = (0..16_u32).map(|number| {
        let (shared, counter) = (shared.clone(), Arc::clone(&counter));
        tokio::spawn(async move {
            for round in 0..ROUNDS {
                let patience = Duration::from_micros(u64::from(number * 7 + round) % 50);
                let read = shared.read();
                let guard = match (number + round) % 4 {
                    0 => tokio::time::timeout(patience, read.into_future()).await.ok(),
                    1 => Some(read.timeout(Duration::from_millis(1)).await),
                    _ => Some(read.await),
                };
                match guard {
                    Some(Ok(guard)) => {
                        let seen = counter.load(Ordering::Relaxed);
                        tokio::task::yield_now().await;
                        assert_eq!(counter.load(Ordering::Relaxed), seen, "a writer held beside a reader");
                        assert!(guard.is_held());
                    }
                    Some(Err(error)) => assert!(error.is_timeout(), "{error}"),
                    None => {}
                }
            }
        })
    });
    let readers: Vec<_> = readers.collect();
    let writer = tokio::spawn(async move {
        for _ in 0..ROUNDS {
            let guard = other.write().await.expect("nothing goes wrong");
            counter.fetch_add(1, Ordering::Relaxed);
            guard.release().await.expect("held");
        }
    });
    let all = async {
        for task in readers.into_iter().chain([writer]) {
            task.await.expect("no contradiction");
        }
    };
    tokio::time::timeout(Duration::from_secs(60), all).await.expect("a task waits for ever");
    assert_nothing_left(&zk);
}
