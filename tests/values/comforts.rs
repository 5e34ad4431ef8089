//! Calls that spare a program a loop: initial values, live copies, updates, and waits for a value. The tests run on
//! every backend, each with a fresh path.

use std::collections::HashSet;
use std::future::IntoFuture;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, ThreadId};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::{JoinSet, block_in_place};
use zk_rwlock::coordinator::{Coordinator, Kind};
use zk_rwlock::error::ValueError;
use zk_rwlock::format::{Format, FormatError, Raw};
use zk_rwlock::shared::CopyState;
use zk_rwlock::{Error, Loss, Memory, RwLock, Shared};

use crate::checks::{bytes, counter, next, next_error, put, session, value_error, write};
use support::copy::Copied;
use support::harness::Harness;
use support::polled::{now, poll_up_to};
use support::safe;
use support::scene::{eventually, soon, with_time_enough};
use support::slow::Slow;

/// A timeout that is long enough and never reached.
const LONG: Duration = Duration::from_secs(60);

/// Returns a handle without an initial value.
fn bare<C: Coordinator + Clone>(client: &C, path: &str) -> Shared<u64> {
    Shared::new(client, path).expect("a valid path")
}

/// Blocks on a future, in a place where only synchronous code may run.
fn block_on_here<T>(work: impl Future<Output = T>) -> T {
    block_in_place(|| Handle::current().block_on(work))
}

pub(crate) async fn changes_and_copies_write_the_initial_value(h: &impl Harness) {
    let (one, two, path) = (h.client().await, h.client().await, h.directory());
    let made = Arc::new(AtomicUsize::new(0));
    let open = |client| {
        let made = Arc::clone(&made);
        let initial = move || 7 + made.fetch_add(1, Ordering::Relaxed);
        Shared::builder(client, &path).initial(initial).build().expect("a valid path")
    };
    let handles = [open(&one), open(&two), open(&one), open(&two)];
    let mut first = JoinSet::new();
    for (number, shared) in handles.iter().map(Copied::of).enumerate() {
        first.spawn(async move {
            match number < 2 {
                true => next(&mut shared.changes()).await,
                false => {
                    eventually("a value has come", || async { shared.latest().is_some() }).await;
                    shared.latest().expect("the copy stays")
                }
            }
        });
    }
    let first = soon("all have a value", first.join_all()).await;
    assert!(first.iter().all(|value| value == &first[0]), "{first:?}");
    assert_eq!(first[0].written().commit, 1);
    assert_eq!(*handles[0].read().await.unwrap(), **first[0]);
    // A later observer finds a value, so it does not make an initial value again.
    let before = made.load(Ordering::Relaxed);
    assert_eq!(**next(&mut open(&two).changes()).await, **first[0]);
    assert_eq!(made.load(Ordering::Relaxed), before);
    let queue = handles[0].lock().queue();
    assert_eq!(queue.await.unwrap().waiters().count(), 0);
    let lock = RwLock::new(&two, handles[0].lock().path()).unwrap();
    soon("no contender is in the way", lock.write()).await.unwrap().release().await.unwrap();
}

pub(crate) async fn the_initial_value_gives_way_to_a_writers_value(h: &impl Harness) {
    let (one, two, path) = (h.client().await, h.client().await, h.directory());
    let (here, there) = (counter(&one, &path), bare(&two, &path));
    let mut writer = there.write().replacing(5).await.unwrap();
    let first = tokio::spawn(async move { **next(&mut here.changes()).await });
    eventually("the reader waits", || async { there.lock().queue().await.unwrap().waiters().count() == 1 }).await;
    writer.commit().await.unwrap();
    assert_eq!(soon("the writer's value", first).await.unwrap(), 5);
    // The contender that waited to write the initial value has left the queue, while the writer still holds the lock.
    eventually("the reader has left", || async { there.lock().queue().await.unwrap().members.len() == 1 }).await;
    writer.release().await.unwrap();
}

pub(crate) async fn an_unwritable_initial_value_fails_the_changes(h: &impl Harness) {
    let (zk, path) = (h.client().await, h.directory());
    let shared = Shared::builder(&zk, &path).initial(|| f64::NAN).build().unwrap();
    let shared = Copied::of(&shared);
    for error in [next_error(&mut shared.changes()).await, soon("the refusal", shared.live()).await.unwrap_err()] {
        assert!(matches!(value_error(&error), ValueError::Unwritable { .. }), "{error}");
    }
    assert!(shared.latest().is_none());
    assert_eq!(bytes(&zk, &path).await, None);
}

pub(crate) async fn a_live_value_is_always_there_and_follows(h: &impl Harness) {
    let (one, two, path) = (h.client().await, h.client().await, h.directory());
    let live = soon("the first value", counter(&one, &path).live().timeout(LONG)).await.unwrap();
    assert_eq!(**live.get(), 0);
    let there = counter(&two, &path);
    for number in 1..5 {
        write(&there, number).await;
        eventually("the copy follows", || async { **live.get() == number }).await;
    }
    assert!(matches!(live.state(), CopyState::Current));
    h.cut(&one).await;
    write(&there, 5).await;
    eventually("the copy is disconnected", || async { matches!(live.state(), CopyState::Disconnected) }).await;
    assert_eq!(**live.get(), 4);
    h.heal(&one).await;
    eventually("the copy follows", || async { **live.clone().get() == 5 }).await;
    session(&two).await.delete(there.value_path()).await.unwrap();
    eventually("the copy is behind", || async { matches!(live.state(), CopyState::Behind(_)) }).await;
    assert_eq!(**live.get(), 5);
    write(&there, 6).await;
    eventually("the copy follows", || async { **live.get() == 6 }).await;
    let mut changes = live.changes();
    assert_eq!(**next(&mut changes).await, 6);
    one.close().await;
    assert_eq!(**live.get(), 6);
    assert!(soon("the end", changes.next()).await.is_none());
    assert_eq!(**next(&mut live.changes()).await, 6);
}

pub(crate) async fn a_live_value_of_a_missing_value_is_refused(h: &impl Harness) {
    let (zk, path) = (h.client().await, h.directory());
    let shared = bare(&zk, &path);
    let error = soon("the refusal", shared.live()).await.unwrap_err();
    assert_eq!(value_error(&error), &ValueError::Unset);
    put(&zk, &path, b"rubbish").await;
    let error = soon("the refusal", bare(&zk, &path).live()).await.unwrap_err();
    assert!(matches!(value_error(&error), ValueError::Foreign { .. }), "{error}");
    zk.close().await;
    let error = soon("the refusal", bare(&zk, &path).live()).await.unwrap_err();
    assert!(matches!(error, Error::Closed(_)), "{error}");
}

pub(crate) async fn no_update_is_lost(h: &impl Harness) {
    let (one, two, path) = (h.client().await, h.client().await, h.directory());
    let mut updates = JoinSet::new();
    for number in 0..40 {
        let shared = counter(if number % 2 == 0 { &one } else { &two }, &path);
        updates.spawn(async move {
            let take = |next: &mut u64| std::mem::replace(next, *next + 1);
            let updated = shared.update(take).label(format!("ticket {number}")).await.unwrap();
            assert_eq!(updated.written.label.as_deref(), Some(&*format!("ticket {number}")));
            updated.output
        });
    }
    let mut tickets = soon("all tickets", updates.join_all()).await;
    tickets.sort_unstable();
    safe!(tickets == (0..40).collect::<Vec<_>>(), "{tickets:?}");
    assert_eq!(*counter(&one, &path).read().await.unwrap(), 40);
    let plain = counter(&two, &path);
    let blocking = tokio::task::spawn_blocking(move || plain.update(|next| *next).blocking().unwrap().output);
    assert_eq!(soon("a thread", blocking).await.unwrap(), 40);
}

pub(crate) async fn an_update_is_repeated_after_a_write_without_lock(h: &impl Harness) {
    let (one, two, path) = (h.client().await, h.client().await, h.directory());
    let shared = counter(&one, &path);
    write(&shared, 1).await;
    let as_it_is = bytes(&two, &path).await.expect("a value");
    let calls = Arc::new(AtomicUsize::new(0));
    let (called, operator, node) = (Arc::clone(&calls), two.clone(), path.clone());
    let updated = shared.update(move |value| {
        if called.fetch_add(1, Ordering::Relaxed) < 2 {
            block_on_here(put(&operator, &node, &as_it_is));
        }
        *value += 1;
        *value
    });
    assert_eq!(soon("the update", updated).await.unwrap().output, 2);
    assert_eq!((calls.load(Ordering::Relaxed), *shared.read().await.unwrap()), (3, 2));
    // Each call of this closure writes the value without the lock, so each commit is refused. The library gives up
    // after 16 tries.
    let (called, operator, node) = (Arc::clone(&calls), two.clone(), path.clone());
    let stranger = bytes(&two, &path).await.expect("a value");
    let updated = shared.update(move |_| {
        called.fetch_add(1, Ordering::Relaxed);
        block_on_here(put(&operator, &node, &stranger));
    });
    let error = soon("the refusal", updated).await.unwrap_err();
    assert!(matches!(error, Error::TransactionRefused { .. }), "{error}");
    assert_eq!(calls.load(Ordering::Relaxed), 3 + 16);
}

pub(crate) async fn an_update_is_repeated_when_its_session_has_ended(h: &impl Harness) {
    let (one, two, path) = (h.client().await, h.client().await, h.directory());
    let shared = counter(&one, &path);
    // The closure of `update` must be `'static`, so it cannot borrow the harness. The test expires the session outside
    // the closure, and channels tell the closure when to go on.
    let (begun, mut begins) = tokio::sync::mpsc::unbounded_channel();
    let (go_on, goes_on) = std::sync::mpsc::channel::<()>();
    let goes_on = std::sync::Mutex::new(goes_on);
    let update = shared.update(move |value| {
        begun.send(()).expect("the test listens");
        block_in_place(|| goes_on.lock().unwrap().recv()).expect("the test goes on");
        *value += 1;
    });
    let update = tokio::spawn(update.into_future());
    soon("the first call", begins.recv()).await;
    h.expire(&one).await;
    go_on.send(()).unwrap();
    soon("the second call", begins.recv()).await;
    go_on.send(()).unwrap();
    soon("the update", update).await.unwrap().unwrap();
    assert_eq!(*counter(&two, &path).read().await.unwrap(), 1);
    assert!(begins.recv().await.is_none(), "the closure was called twice");
}

pub(crate) async fn an_update_with_a_removed_node_is_an_error(h: &impl Harness) {
    let (one, two, path) = (h.client().await, h.client().await, h.directory());
    let shared = counter(&one, &path);
    let lock = RwLock::new(&two, shared.lock().path()).unwrap();
    let update = shared.update(move |value| {
        let evict = async {
            let token = lock.queue().await.unwrap().members[0].token.expect("readable");
            lock.evict(token).await.unwrap().expect("the node existed");
        };
        block_on_here(evict);
        *value += 1;
    });
    let error = soon("the refusal", update).await.unwrap_err();
    assert!(matches!(error, Error::Lost(Loss::Removed)), "{error}");
    assert_eq!(bytes(&two, &path).await, None);
}

pub(crate) async fn a_wait_ends_with_the_first_matching_value(h: &impl Harness) {
    let (one, two, path) = (h.client().await, h.client().await, h.directory());
    let (here, there) = (bare(&one, &path), bare(&two, &path));
    let here = Copied::of(&here);
    let any = tokio::spawn(here.wait_for(|_| true));
    let large = tokio::spawn(here.wait_for(|value| *value >= 3));
    eventually("the copy knows that the value is missing", || async {
        matches!(here.copy_state(), CopyState::Behind(_))
    })
    .await;
    assert!(!any.is_finished() && !large.is_finished(), "the wait ended before the value was there");
    for number in 1..3 {
        write(&there, number).await;
    }
    assert!(**soon("the first", any).await.unwrap().unwrap() <= 2);
    assert!(!large.is_finished());
    write(&there, 3).await;
    let value = soon("the third", large).await.unwrap().unwrap();
    assert_eq!((**value, value.written().commit), (3, 1));
    assert_eq!(**soon("the present one", here.wait_for(|value| *value == 3)).await.unwrap(), 3);

    let spoilt = tokio::spawn(here.wait_for(|value| *value == 4));
    put(&two, &path, b"rubbish").await;
    let error = soon("the refusal", spoilt).await.unwrap().unwrap_err();
    assert!(matches!(value_error(&error), ValueError::Foreign { .. }), "{error}");
    write(&there, 5).await;
    eventually("the copy is current again", || async { matches!(here.copy_state(), CopyState::Current) }).await;
    soon("the fifth", here.wait_for(|value| *value == 5)).await.unwrap();
    let closed = tokio::spawn(here.wait_for(|value| *value == 6));
    one.close().await;
    let error = soon("the end", closed).await.unwrap().unwrap_err();
    assert!(matches!(error, Error::Closed(_)), "{error}");
}

pub(crate) async fn waits_and_updates_end_in_time(h: &impl Harness) {
    let (one, two, path) = (h.client().await, h.client().await, h.directory());
    let (here, there) = (counter(&one, &path), counter(&two, &path));
    let limit = Duration::from_millis(100);
    let reader = there.read().label("reads on").await.unwrap();
    // On a busy machine, the call may time out before the holder is known.
    with_time_enough(limit, async |limit| {
        let text = here.update(|value| *value += 1).timeout(limit).await.unwrap_err().to_string();
        let is_expected =
            text.starts_with(&format!("not granted within {limit:?}: held by READ")) && text.contains("reads on");
        if is_expected { Ok(()) } else { Err(text) }
    })
    .await;
    let error = here.wait_for(|value| *value == 1).timeout(limit).await.unwrap_err();
    assert!(error.is_timeout(), "{error}");
    h.cut(&one).await;
    for error in [
        counter(&one, &path).live().timeout(limit).await.unwrap_err(),
        here.update(|value| *value += 1).timeout(limit).await.unwrap_err(),
    ] {
        assert!(error.is_timeout(), "{error}");
    }
    for error in [
        here.update(|value| *value += 1).timeout(Duration::ZERO).await.unwrap_err(),
        here.live().timeout(Duration::ZERO).await.unwrap_err(),
    ] {
        assert!(matches!(error, Error::InvalidInput(_)), "{error}");
    }
    h.heal(&one).await;
    reader.release().await.unwrap();
    soon("the update", here.update(|value| *value += 1)).await.unwrap();
    assert_eq!(*there.read().await.unwrap(), 1);
}

/// More polls than any of these calls takes.
const POLLS: usize = 60;

/// Checks that a dropped call has left no contender and no watch, and that the lock is free.
fn assert_nothing_left(zk: &Memory, path: &str, what: &str) {
    assert_eq!((zk.children(format!("{path}/lock")), zk.watches()), (Vec::new(), 0), "{what}");
}

#[test]
fn an_update_dropped_at_any_poll_is_done_once_or_not() {
    let mut done = [false; 2];
    for polls in 0..POLLS {
        for keeps in [false, true] {
            let (zk, path) = (Memory::new(), "/cut");
            let builder = Shared::builder(&Slow(zk.clone()), path).initial(|| 0);
            let shared: Shared<u64> =
                if keeps { builder.lock(|lock| lock.keep(LONG)) } else { builder }.build().unwrap();
            let mut update = tokio_test::task::spawn(shared.update(|value| *value += 1).into_future());
            let answer = poll_up_to(&mut update, polls);
            let is_done = matches!(answer, Some(std::task::Poll::Ready(Ok(_))));
            done[usize::from(keeps)] |= is_done;
            drop((answer, update, shared));
            assert_nothing_left(&zk, path, &format!("at poll {polls}, keeps: {keeps}"));
            let value = *counter(&zk.connect(), path).read().blocking().unwrap();
            assert!(value == 1 || (value == 0 && !is_done), "{value} at poll {polls}");
        }
    }
    assert_eq!(done, [true; 2], "{POLLS} polls are too few");
}

/// The work of these calls runs on a thread of its own, so the test drops each call after a length of time and not
/// after a number of polls.
#[support::judged]
async fn a_dropped_live_value_or_wait_leaves_nothing() {
    let mut done = [0; 2];
    for moment in 0..200 {
        for lives in [false, true] {
            let zk = Memory::new();
            let shared: Shared<u64> = Shared::builder(&Slow(zk.clone()), "/cut").initial(|| 0).build().unwrap();
            let limit = Duration::from_micros(5 * moment);
            done[usize::from(lives)] += usize::from(match lives {
                true => tokio::time::timeout(limit, shared.live()).await.is_ok(),
                false => tokio::time::timeout(limit, shared.wait_for(|value| *value == 0)).await.is_ok(),
            });
            drop(shared);
            eventually("nothing is left", || async { (zk.children("/cut/lock").len(), zk.watches()) == (0, 0) }).await;
        }
    }
    let all = tokio::time::timeout(LONG, counter(&Slow(Memory::new()), "/cut").live()).await;
    assert_eq!(**all.expect("in time").unwrap().get(), 0, "{done:?} of 200 were done");
}

#[test]
fn a_refused_initial_value_is_tried_by_the_next_call() {
    let zk = Memory::new();
    let shared = Shared::builder(&zk, "/value").initial(|| 7_u64).build().unwrap();
    let directory = shared.lock().path();
    drop(now(shared.lock().write()));
    let owner = Arc::clone(now(zk.session_slot(0)).unwrap().session());
    let foreign = format!("{directory}/_c_01234567-89ab-cdef-0123-456789abcdef-__WRIT__0000000001");
    now(owner.create(&foreign, b"", Kind::Ephemeral)).unwrap();
    for _ in 0..2 {
        assert!(matches!(now(shared.live()), Err(Error::ForeignContender { .. })));
    }
    zk.faults().remove(&foreign);
    assert_eq!(**now(shared.live()).unwrap().get(), 7);
}

#[test]
fn the_last_handle_ends_the_initial_write() {
    let zk = Memory::new();
    let held = bare(&zk.connect(), "/cut").write().replacing(1).blocking().unwrap();
    let shared = Copied::of(&counter(&zk, "/cut"));
    assert!(shared.latest().is_none() && shared.latest().is_none());
    assert_eq!(zk.children("/cut/lock").len(), 2, "the read did not wait for the writer");
    drop(shared);
    assert_eq!(zk.children("/cut/lock").len(), 1);
    drop(held);
    assert_nothing_left(&zk, "/cut", "in the end");
}

/// A program may leave a stream of changes unpolled while it waits for other futures and writes.
#[tokio::test(start_paused = true)]
async fn unpolled_changes_block_no_writer() {
    let zk = Memory::new();
    let (shared, other) = (counter(&zk, "/value"), counter(&zk.connect(), "/value"));
    let held = other.lock().write().await.unwrap();
    let (mut changes, mut live) = (shared.changes(), tokio_test::task::spawn(shared.live().into_future()));
    assert!(tokio_test::task::spawn(changes.next()).poll().is_pending() && live.poll().is_pending());
    assert!(tokio_test::task::spawn(changes.next()).poll().is_pending() && live.poll().is_pending());
    drop(held);
    for number in 1..=2 {
        let update = [&shared, &other][number - 1].update(|value| *value += 1).timeout(Duration::from_secs(60));
        assert_eq!(update.await.expect("no contender is in the way").written.commit, 1, "{number}");
    }
    assert_eq!(**next(&mut changes).await, 2);
}

#[tokio::test(start_paused = true)]
async fn a_kept_read_does_not_block_the_first_value() {
    let zk = Memory::new();
    let open = Shared::builder(&zk, "/value").initial(|| 1_u64).lock(|lock| lock.keep(Duration::from_secs(3600)));
    let shared = open.build().unwrap();
    drop(shared.read().await.unwrap());
    put(&zk, "/value", b"").await;
    let live = shared.live().timeout(Duration::from_secs(60)).await.expect("the value is written again");
    assert_eq!(**live.get(), 1);
}

/// A format that stores numbers as text. Each method records the calling thread, and reads the copy in `copy`, if there
/// is one.
#[derive(Clone, Default)]
struct Curious {
    copy: Arc<std::sync::Mutex<Option<Copied<u64>>>>,
    threads: Arc<std::sync::Mutex<HashSet<ThreadId>>>,
}

impl Curious {
    fn observe(&self) {
        self.threads.lock().unwrap().insert(thread::current().id());
        // The format takes the copy out of its mutex, because reading the copy may call the format again.
        let copy = self.copy.lock().unwrap().take();
        if let Some(copy) = copy {
            drop((copy.latest(), copy.copy_state()));
            *self.copy.lock().unwrap() = Some(copy);
        }
    }
}

impl Format<u64> for Curious {
    fn name(&self) -> &str {
        self.observe();
        "curious"
    }

    fn encode(&self, value: &u64) -> Result<Vec<u8>, FormatError> {
        self.observe();
        Ok(value.to_string().into_bytes())
    }

    fn decode(&self, bytes: &[u8]) -> Result<u64, FormatError> {
        self.observe();
        Ok(std::str::from_utf8(bytes)?.parse()?)
    }
}

/// If the library held a lock while it called the format, the test would hang. So the uses run on a thread of their own.
pub(crate) async fn a_format_runs_on_callers_threads_without_locks(h: &impl Harness) {
    let (one, two, path) = (h.client().await, h.client().await, h.directory());
    let (format, other) = (Curious::default(), Curious::default());
    let open = |client, format: &Curious| {
        Shared::with_format(client, &path, format.clone()).initial(|| 0).build().expect("a valid path")
    };
    let (here, there) = (open(&one, &format), open(&two, &other));
    let here = Copied::of(&here);
    *format.copy.lock().unwrap() = Some(here.clone());
    let uses = thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let mut changes = here.changes();
            for value in 1..=5 {
                assert_eq!(**next(&mut changes).await, value - 1);
                write(&there, value).await;
            }
            here.update(|value| *value += 1).await.unwrap();
            assert_eq!((**here.latest().unwrap(), *here.read().await.unwrap()), (6, 6));
        });
        thread::current().id()
    });
    eventually("all is done", || async { uses.is_finished() }).await;
    let (caller, opener) = (uses.join().unwrap(), thread::current().id());
    *format.copy.lock().unwrap() = None;
    let threads = format.threads.lock().unwrap();
    assert!(threads.contains(&caller) && threads.iter().all(|it| [caller, opener].contains(it)), "{threads:?}");
}

#[support::judged]
async fn a_value_may_be_as_large_as_the_raised_limit() {
    const ALLOWED: usize = 3 << 20;
    let zk = Memory::new();
    let large: Shared<Vec<u8>> =
        Shared::with_format(&zk, "/comforts/large", Raw).size_limit(ALLOWED).initial(Vec::new).build().expect("valid");
    write(&large, vec![7; 2 << 20]).await;
    assert_eq!(large.read().await.expect("a value").len(), 2 << 20);
    let mut guard = large.write().await.expect("free");
    guard.resize(ALLOWED, 7);
    let error = guard.commit().await.expect_err("the value with its header is too large");
    assert!(matches!(error.value_error(), Some(ValueError::TooLarge { limit: Some(ALLOWED), .. })), "{error}");
}
