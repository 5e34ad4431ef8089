//! Uses of one process that wait for a kept node or for each other: timeouts, reports, tries and fairness.

use std::future::IntoFuture;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::kept::{DIRECTORY, IDLE, keeping, line, plain, two};
use support::polled::*;
use support::wired::Wired;
use tokio_test::task;
use tokio_test::{assert_pending, assert_ready_ok};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};
use zk_rwlock::{Error, Memory, Mode, RwLock};

#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

struct Message(String);
impl tracing::field::Visit for Message {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() == tracing::Level::WARN
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut message = Message(String::new());
        event.record(&mut message);
        self.0.lock().unwrap().push(message.0);
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

async fn spin() {
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
}

const SOON: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn a_timeout_reports_the_whole_wait_of_a_use() {
    let (_zk, kept, other) = two();
    drop(kept.write().await.unwrap());
    let mine = kept.write().await.unwrap();
    let clone = kept.clone();
    let late = tokio::spawn(async move { clone.write().timeout(SOON * 5).await.map(drop) });
    tokio::time::sleep(SOON * 3).await;
    let asks = tokio::spawn(async move { other.write().await.map(drop) });
    let error = late.await.unwrap().unwrap_err();
    let Error::Timeout { waited, .. } = &error else { panic!("{error}") };
    assert_eq!(*waited, SOON * 5, "{error}");
    drop(mine);
    asks.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_timeout_behind_a_local_use_reports_the_cut() {
    let (zk, kept, _other) = two();
    let mine = kept.write().await.unwrap();
    let clone = kept.clone();
    let late = tokio::spawn(async move { clone.write().timeout(SOON * 5).await.map(drop) });
    tokio::time::sleep(SOON).await;
    zk.faults().cut();
    let error = late.await.unwrap().unwrap_err();
    assert!(matches!(&error, Error::Timeout { cut_off: Some(_), .. }), "{error}");
    zk.faults().heal();
    drop(mine);
}

fn granted_after_a_wait() -> (Memory, RwLock, zk_rwlock::WriteGuard) {
    let (zk, kept, other) = two();
    let holder = now(other.write().label("left long ago")).unwrap();
    let mut writer = writing(&kept);
    assert_pending!(writer.poll());
    drop(holder);
    let guard = assert_ready_ok!(writer.poll());
    (zk, kept, guard)
}

#[test]
fn a_try_names_the_local_use_and_no_past_holder() {
    let (_zk, kept, guard) = granted_after_a_wait();
    let error = now(kept.try_write()).unwrap_err();
    let Error::WouldBlock { blockers } = &error else { panic!("{error}") };
    assert!(guard.node_path().ends_with(&blockers.first[0].node), "{error}");
}

#[test]
fn a_try_names_the_holder_of_the_kept_node() {
    let zk = Memory::new();
    let kept = RwLock::builder(&zk, DIRECTORY).host("web-1").keep(IDLE).build().expect("valid");
    let guard = now(kept.write().label("nightly")).unwrap();
    let error = now(kept.try_write()).unwrap_err();
    let Error::WouldBlock { blockers } = &error else { panic!("{error}") };
    let [holder] = &blockers.first[..] else { panic!("{blockers:?}") };
    assert_eq!((holder.host.as_str(), holder.label.as_deref()), ("web-1", Some("nightly")));
    assert_eq!((holder.pid, holder.token), (Some(std::process::id()), Some(guard.fencing_token())));
    assert_eq!((blockers.ahead, holder.mode), (1, Mode::Write));
}

#[tokio::test(start_paused = true)]
async fn on_wait_reports_a_wait_for_a_local_use() {
    let (_zk, kept, _other) = two();
    let guard = kept.write().await.unwrap();
    let reports = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&reports);
    let waits = kept.write().on_wait(move |progress| sink.lock().unwrap().push(progress.to_string()));
    waits.timeout(SOON * 10).await.unwrap_err();
    assert!(!reports.lock().unwrap().is_empty(), "the waiter heard nothing for ten seconds");
    drop(guard);
}

#[test]
fn on_wait_reports_a_grant_to_another_local_use() {
    let (_zk, kept, other) = two();
    let holder = now(other.write().label("left before")).unwrap();
    let mut first = writing(&kept);
    assert_pending!(first.poll());
    let reports = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&reports);
    let waits = kept.write().on_wait(move |progress| sink.lock().unwrap().push(format!("{progress:?}")));
    let mut second = task::spawn(waits.into_future());
    assert_pending!(second.poll());
    drop(holder);
    let first = assert_ready_ok!(first.poll());
    assert!(second.is_woken());
    assert_pending!(second.poll());
    let last = reports.lock().unwrap().last().cloned().expect("the waiter hears of the change");
    assert!(last.contains("~keep-WRITE-") && !last.contains("left before"), "{last}");
    drop(first);
    drop(assert_ready_ok!(second.poll()));
}

#[tokio::test(start_paused = true)]
async fn a_long_wait_for_a_local_use_is_warned_of() {
    let warnings = Warnings::default();
    let _guard = tracing::subscriber::set_default(warnings.clone());
    let zk = Memory::new();
    let lock = RwLock::builder(&zk, DIRECTORY).keep(IDLE).warn_after_waiting(SOON).build().unwrap();
    let guard = lock.write().await.unwrap();
    let clone = lock.clone();
    let late = tokio::spawn(async move { clone.write().await.map(drop) });
    tokio::time::sleep(SOON * 10).await;
    let seen = warnings.0.lock().unwrap().clone();
    assert!(seen.iter().any(|it| it.contains("takes long to acquire")), "{seen:?}");
    drop(guard);
    late.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_acquisition_granted_at_once_is_not_warned_of() {
    let warnings = Warnings::default();
    let _guard = tracing::subscriber::set_default(warnings.clone());
    let zk = Memory::new();
    let lock = RwLock::builder(&zk, DIRECTORY).keep(IDLE).warn_after_waiting(SOON).build().unwrap();
    let other = plain(&zk.connect());
    drop(lock.read().await.unwrap());
    drop(other.write().await.unwrap());
    tokio::time::sleep(SOON * 10).await;
    let seen = warnings.0.lock().unwrap().clone();
    assert!(seen.is_empty(), "{seen:?}");
}

#[test]
fn a_try_succeeds_while_another_use_is_entering() {
    for lock in [|zk: &Memory| plain(zk), |zk: &Memory| keeping(zk)] {
        let zk = Memory::new();
        let lock = lock(&zk);
        zk.faults().cut();
        let mut first = reading(&lock);
        assert_pending!(first.poll());
        zk.faults().heal();
        let second = now(lock.try_read());
        assert!(second.is_ok(), "{}; in the directory: {:?}", second.unwrap_err(), zk.children(DIRECTORY));
    }
}

#[test]
fn a_refused_try_gives_up_an_unsuitable_idle_node() {
    let (zk, kept, other) = two();
    drop((read(&kept), read(&kept)));
    let guard = read(&other);
    now(kept.try_write()).unwrap_err();
    assert_eq!(line(&zk), [Mode::Read], "the idle kept node was not given up");
    drop(guard);
}

#[test]
fn no_use_joins_while_a_writer_awaits_a_reader() {
    let (zk, kept, other) = two();
    drop((read(&kept), read(&kept)));
    let reader = read(&other);
    let mut writer = writing(&plain(&zk.connect()));
    assert_pending!(writer.poll());
    let mut late = reading(&kept);
    assert_pending!(late.poll(), "a use joined a node that a contender waits for");
    drop(reader);
}

#[test]
fn no_use_joins_elsewhere_while_a_local_use_waits() {
    let (zk, kept, _other) = two();
    let remote = keeping(&zk.connect());
    drop((read(&remote), read(&remote)));
    let reader = read(&kept);
    let mut writer = writing(&plain(&zk));
    assert_pending!(writer.poll());
    let mut late = reading(&remote);
    assert_pending!(late.poll(), "a use joined a node that a contender waits for");
    drop(reader);
}

#[tokio::test(start_paused = true)]
async fn a_released_use_is_not_reported_as_held_for_long() {
    let warnings = Warnings::default();
    let _guard = tracing::subscriber::set_default(warnings.clone());
    let zk = Memory::new();
    let lock = RwLock::builder(&zk, DIRECTORY).keep(IDLE).warn_after_holding(SOON).build().unwrap();
    let guard = lock.write().await.unwrap();
    lock.ask().await.unwrap();
    zk.faults().cut();
    let mut release = tokio_test::task::spawn(guard.release());
    assert_pending!(release.poll());
    tokio::time::sleep(SOON * 2).await;
    let seen = warnings.0.lock().unwrap().clone();
    assert!(!seen.iter().any(|it| it.contains("held for long")), "{seen:?}");
}

#[test]
fn reads_behind_a_cancelled_write_share_the_node() {
    let (zk, kept, other) = two();
    let holder = write(&other);
    let (mut writer, mut one, mut two) = (writing(&kept), reading(&kept), reading(&kept));
    assert_pending!(writer.poll());
    assert_pending!(one.poll());
    assert_pending!(two.poll());
    drop(writer);
    let mut asks = writing(&plain(&zk.connect()));
    assert_pending!(asks.poll());
    drop(holder);
    let _one = assert_ready_ok!(one.poll());
    let _two = assert_ready_ok!(two.poll());
}

#[test]
fn a_runtime_may_end_while_a_node_is_kept() {
    let (done, is_done) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let lock = keeping(&Memory::new());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { drop(lock.read().await.unwrap()) });
        drop(runtime);
        done.send(()).unwrap();
    });
    is_done.recv_timeout(Duration::from_secs(10)).expect("the end of the runtime hangs");
}

/// When a runtime shuts down, all its pending timers fire. The library must not hang then.
#[test]
fn a_runtime_may_end_while_a_kept_node_is_cut_off() {
    let (done, is_done) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let zk = Memory::new();
        let lock = keeping(&zk);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(async {
            drop(lock.read().await.unwrap());
            zk.faults().cut();
            spin().await;
        });
        drop(runtime);
        done.send(()).unwrap();
    });
    is_done.recv_timeout(Duration::from_secs(10)).expect("the end of the runtime hangs");
}

/// When a runtime shuts down, all its pending timers fire. The library must still wait for the whole idle time.
#[test]
fn an_idle_node_outlives_the_runtime_of_its_timer() {
    let (zk, _kept, other) = two();
    let idle = Duration::from_millis(300);
    let kept = RwLock::builder(&zk, DIRECTORY).keep(idle).build().expect("valid");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let used = runtime.block_on(async {
        drop(kept.read().await.expect("free"));
        let used = Instant::now();
        drop(kept.read().await.expect("kept"));
        used
    });
    drop(runtime);
    while !line(&zk).is_empty() {
        assert!(used.elapsed() < Duration::from_secs(60), "the node is not given up");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(used.elapsed() >= idle, "given up after {:?}", used.elapsed());
    drop(read(&kept));
    drop(write(&other));
}

#[test]
fn a_try_refused_by_a_local_use_keeps_the_node() {
    let (zk, kept, _other) = two();
    let guard = read(&kept);
    now(kept.try_write()).unwrap_err();
    drop(guard);
    assert_eq!(line(&zk), [Mode::Read], "the node is not kept although no contender waits");
}

#[test]
fn on_wait_does_not_report_departed_contenders() {
    let (_zk, kept, guard) = granted_after_a_wait();
    let reports = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&reports);
    let waits = kept.write().on_wait(move |progress| sink.lock().unwrap().push(format!("{progress:?}")));
    let mut waits = tokio_test::task::spawn(waits.into_future());
    assert_pending!(waits.poll());
    let reports = reports.lock().unwrap().clone();
    drop(guard);
    let [reports] = &reports[..] else { panic!("{reports:?}") };
    assert!(
        reports.contains("place: 2") && reports.contains("~keep-WRITE-") && !reports.contains("left long ago"),
        "{reports}"
    );
}

#[tokio::test(start_paused = true)]
async fn each_use_waiting_for_the_node_hears_its_progress() {
    let (zk, kept, other) = two();
    let first = other.write().label("first").await.unwrap();
    let second = tokio::spawn(other.write().label("second").into_future());
    spin().await;
    let reports = [(); 2].map(|()| Arc::new(Mutex::new(Vec::new())));
    let [one, two] = reports.each_ref().map(|reports| {
        let sink = Arc::clone(reports);
        let hears = move |progress: &zk_rwlock::queue::Progress| {
            let labels: Vec<_> = progress.blockers.first.iter().filter_map(|it| it.label.clone()).collect();
            sink.lock().unwrap().push((progress.place, labels));
        };
        tokio::spawn(kept.read().on_wait(hears).into_future())
    });
    spin().await;
    assert_eq!(line(&zk), [Mode::Write, Mode::Write, Mode::Read], "the reads do not share one node");
    drop(first);
    let second = second.await.unwrap().unwrap();
    tokio::time::sleep(SOON * 60).await;
    for reports in &reports {
        let reports = reports.lock().unwrap().clone();
        let labels: Vec<_> = reports.iter().map(|(place, labels)| (*place, labels.join(", "))).collect();
        assert_eq!(
            labels,
            [(3, "first, second".to_owned()), (2, "second".to_owned())],
            "unchanged progress was reported again"
        );
    }
    drop(second);
    assert!(one.await.unwrap().unwrap().is_held() && two.await.unwrap().unwrap().is_held());
}

#[derive(serde::Serialize, serde::Deserialize)]
struct Noisy(u32);

static NOISY: std::sync::OnceLock<zk_rwlock::Shared<Noisy>> = std::sync::OnceLock::new();
static IS_ARMED: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);

impl Drop for Noisy {
    fn drop(&mut self) {
        if IS_ARMED.swap(false, std::sync::atomic::Ordering::SeqCst) {
            let _value = NOISY.get().unwrap().read().blocking();
        }
    }
}

#[test]
fn a_value_may_be_used_while_an_old_one_is_dropped() {
    let (done, is_done) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let zk = Memory::new();
        let shared = zk_rwlock::Shared::builder(&zk, "/noisy")
            .initial(|| Noisy(1))
            .lock(|lock| lock.keep(IDLE))
            .build()
            .unwrap();
        let shared = NOISY.get_or_init(|| shared);
        // The first read writes the initial value. The library keeps the node of the second read, and the third read
        // uses that node.
        drop(shared.read().blocking().unwrap());
        drop(shared.read().blocking().unwrap());
        drop(shared.read().blocking().unwrap());
        zk.faults().expire();
        IS_ARMED.store(true, std::sync::atomic::Ordering::SeqCst);
        drop(shared.read().blocking().unwrap());
        assert!(!IS_ARMED.load(std::sync::atomic::Ordering::SeqCst));
        done.send(()).unwrap();
    });
    is_done.recv_timeout(Duration::from_secs(10)).expect("a value was dropped while the store was locked");
}

#[tokio::test(start_paused = true)]
async fn a_refused_use_waits_for_the_rest_of_its_timeout() {
    let (_zk, kept, other) = two();
    let held = kept.write().await.expect("free");
    let began = tokio::time::Instant::now();
    let waits = tokio::spawn(kept.write().timeout(Duration::from_secs(10)).into_future());
    tokio::time::sleep(Duration::from_secs(6)).await;
    let asks = tokio::spawn(other.write().into_future());
    let error = waits.await.expect("no panic").expect_err("the lock is held");
    assert!(error.is_timeout(), "{error}");
    assert!(began.elapsed() < Duration::from_millis(10_100), "{:?}", began.elapsed());
    drop((held, asks));
}

#[test]
fn a_kept_node_ahead_of_a_reader_is_asked_for_later() {
    let zk = Memory::new();
    let (keeper, other) = (keeping(&zk), plain(&zk));
    let held = write(&other);
    let (mut kept, mut reader) = (reading(&keeper), reading(&other));
    assert_pending!(kept.poll());
    assert_pending!(reader.poll());
    drop(held);
    drop(assert_ready_ok!(kept.poll()));
    let reader = assert_ready_ok!(reader.poll());
    assert_eq!(zk.children(DIRECTORY).len(), 2, "the first reader's node is not kept");
    let mut writer = writing(&other);
    assert_pending!(writer.poll());
    drop(reader);
    assert!(writer.is_woken(), "the acquisition waits for a node without a use");
    drop(assert_ready_ok!(writer.poll()));
}

/// A waiter behind a node that its own session keeps can ask that session to give the node up, without a request to the
/// server. Here a reconnect makes the session forget the owner of the node before the waiter asks.
#[test]
fn a_node_of_the_session_is_asked_for_after_a_break() {
    for mode in [Mode::Read, Mode::Write] {
        let zk = Memory::new();
        let wired = Wired::new(zk.clone());
        let (keeper, other) = (keeping(&wired), plain(&wired));
        let uses_again = || match mode {
            Mode::Read => drop(read(&keeper)),
            Mode::Write => drop(write(&keeper)),
        };
        uses_again();
        let mut waiter = task::spawn(other.write().on_wait(|_| ()).into_future());
        wired.stall();
        assert_pending!(waiter.poll());
        assert!(wired.deliver() && wired.deliver() && !wired.has_requests(), "expected a create and a listing");
        assert_pending!(waiter.poll());
        assert!(wired.has_requests(), "the waiter did not read the blocking nodes");
        wired.cut(0);
        wired.flow();
        zk.faults().heal();
        drop(assert_ready_ok!(waiter.poll(), "the waiter was not granted an unused node"));
    }
}
