//! The library's metrics on the embedded ensemble: the meaning of each metric, and the effects of a recorder that blocks or
//! panics.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::future::IntoFuture;
use std::sync::{Arc, Mutex, Once, PoisonError, RwLock as Guarded, mpsc};
use std::task::Poll;
use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use support::polled::{now, poll_up_to};
use support::scene::{connect_with, eventually, lock_at};
use support::server::Server;
use support::several::several;
use support::slow::Slow;
use tokio_test::task;
use tokio_test::{assert_pending, assert_ready, assert_ready_ok};
use zk_rwlock::format::Raw;
use zk_rwlock::{Leadership, Memory, Mode, RwLock, Semaphore, Shared, ZooKeeper};

const DIRECTORY: &str = "/lock";

/// The recorder of the process. It passes every metric on to the recorder of the running test.
struct Current;

static CURRENT: Guarded<Option<Arc<dyn Recorder + Send + Sync>>> = Guarded::new(None);

impl Current {
    fn get() -> Arc<dyn Recorder + Send + Sync> {
        CURRENT.read().expect("no panic").clone().expect("a test runs")
    }
}

impl Recorder for Current {
    fn describe_counter(&self, key: KeyName, unit: Option<Unit>, description: SharedString) {
        Current::get().describe_counter(key, unit, description);
    }

    fn describe_gauge(&self, key: KeyName, unit: Option<Unit>, description: SharedString) {
        Current::get().describe_gauge(key, unit, description);
    }

    fn describe_histogram(&self, key: KeyName, unit: Option<Unit>, description: SharedString) {
        Current::get().describe_histogram(key, unit, description);
    }

    fn register_counter(&self, key: &Key, metadata: &Metadata<'_>) -> Counter {
        Current::get().register_counter(key, metadata)
    }

    fn register_gauge(&self, key: &Key, metadata: &Metadata<'_>) -> Gauge {
        Current::get().register_gauge(key, metadata)
    }

    fn register_histogram(&self, key: &Key, metadata: &Metadata<'_>) -> Histogram {
        Current::get().register_histogram(key, metadata)
    }
}

/// Calls `run` with a recorder of its own, while no other test of this file runs. Fails if a gauge is not zero at the
/// end.
fn measured(run: impl FnOnce(&Measured)) {
    static ALONE: Mutex<()> = Mutex::new(());
    static INSTALLED: Once = Once::new();
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    // Delivers the remaining metrics of the previous test to the recorder of that test.
    zk_rwlock::metrics::flush();
    let measured = Measured::begins();
    INSTALLED.call_once(|| metrics::set_global_recorder(Current).unwrap_or_else(|_| panic!("the first recorder")));
    run(&measured);
    assert_eq!(measured.present(), [0.0; 2], "a gauge is not zero at the end");
}

struct Measured(PrometheusHandle);

impl Measured {
    fn begins() -> Measured {
        let recorder = PrometheusBuilder::new().build_recorder();
        let measured = Measured(recorder.handle());
        *CURRENT.write().expect("no panic") = Some(Arc::new(recorder));
        measured
    }

    /// Returns how many acquisitions in this mode wait at this path, and how many guards in this mode hold there.
    fn at(&self, path: &str, mode: &str) -> [f64; 2] {
        let value = |name: &str| self.value(&format!("zk_rwlock_{name}{{path=\"{path}\",mode=\"{mode}\"}}"));
        ["waiting", "holding"].map(value)
    }

    /// Returns how many acquisitions wait and how many guards hold, at all paths together.
    fn present(&self) -> [f64; 2] {
        zk_rwlock::metrics::flush();
        let text = self.0.render();
        let sum = |name: &str| {
            let lines = text.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('{'));
            lines.map(|line| line.rsplit(' ').next().expect("a value").parse::<f64>().expect("a number")).sum()
        };
        ["zk_rwlock_waiting", "zk_rwlock_holding"].map(sum)
    }

    /// Returns the value of this series, or 0 if it is missing.
    fn value(&self, series: &str) -> f64 {
        zk_rwlock::metrics::flush();
        self.0.run_upkeep();
        let text = self.0.render();
        let value = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        value.map_or(0.0, |value| value.parse().expect("a number"))
    }
}

#[test]
fn grants_are_counted_by_mode_and_kind_and_measured() {
    measured(|seen| {
        let zk = Memory::new();
        let lock = RwLock::new(&zk, DIRECTORY).expect("valid");
        let held = now(lock.write()).expect("free");
        let mut next = task::spawn(lock.write().into_future());
        assert_pending!(next.poll());
        assert_eq!(seen.value("zk_rwlock_hold_seconds_count{mode=\"write\"}"), 0.0);
        drop(held);
        drop(assert_ready_ok!(next.poll()));
        drop(now(lock.read()).expect("free"));
        assert_eq!(seen.value("zk_rwlock_grants_total{mode=\"write\",kind=\"at once\"}"), 1.0);
        assert_eq!(seen.value("zk_rwlock_grants_total{mode=\"write\",kind=\"hand-off\"}"), 1.0);
        assert_eq!(seen.value("zk_rwlock_grants_total{mode=\"read\",kind=\"at once\"}"), 1.0);
        assert_eq!(seen.value("zk_rwlock_acquire_wait_seconds_count{mode=\"write\"}"), 2.0);
        assert_eq!(seen.value("zk_rwlock_acquire_wait_seconds_count{mode=\"read\"}"), 1.0);
        assert_eq!(seen.value("zk_rwlock_hold_seconds_count{mode=\"write\"}"), 2.0);
        // The first acquisition found an empty queue, and the second acquisition found one contender.
        assert_eq!(seen.value("zk_rwlock_queue_length_sum{mode=\"write\"}"), 1.0);
        assert_eq!(seen.value("zk_rwlock_queue_length_count{mode=\"write\"}"), 2.0);
    });
}

#[test]
fn uses_of_a_kept_node_are_counted_apart() {
    measured(|seen| {
        let zk = Memory::new();
        let lock = RwLock::builder(&zk, DIRECTORY).keep(Duration::from_secs(9)).build().expect("valid");
        let _guards = [now(lock.read()).expect("free"), now(lock.read()).expect("kept")];
        let _third = now(lock.try_read()).expect("kept");
        assert_eq!(seen.value("zk_rwlock_grants_total{mode=\"read\",kind=\"at once\"}"), 1.0);
        assert_eq!(seen.value("zk_rwlock_grants_total{mode=\"read\",kind=\"kept\"}"), 3.0);
        assert_eq!(seen.value("zk_rwlock_kept_nodes"), 1.0);
    });
}

fn keeping(zk: &Memory) -> RwLock {
    RwLock::builder(zk, DIRECTORY).keep(Duration::from_secs(9)).build().expect("valid")
}

/// Returns three numbers: the nodes that are kept now, those given up for `cause`, and those given up for any cause.
fn kept(seen: &Measured, cause: &str) -> [f64; 3] {
    let given_up = |cause: &str| seen.value(&format!("zk_rwlock_kept_given_up_total{{cause=\"{cause}\"}}"));
    let all = ["asked", "idle", "lost", "closed", "replaced", "unsure"].map(given_up);
    [seen.value("zk_rwlock_kept_nodes"), given_up(cause), all.iter().sum()]
}

#[test]
fn kept_nodes_are_counted_and_their_ends_by_cause() {
    let other = |zk: &Memory| RwLock::new(&zk.connect(), DIRECTORY).expect("valid");
    type End<'a> = &'a dyn Fn(&Memory, RwLock);
    let ends: [(&str, End<'_>); 7] = [
        ("asked", &|zk, _| drop(now(other(zk).write()).expect("asked for"))),
        ("asked", &|zk, _| now(other(zk).ask()).expect("allowed")),
        ("lost", &|zk, _| zk.faults().expire()),
        ("lost", &|zk, _| zk.faults().remove(format!("{DIRECTORY}/{}", zk.children(DIRECTORY)[0]))),
        ("closed", &|_, lock| drop(lock)),
        ("closed", &|zk, _| now(zk.close())),
        ("replaced", &|_, lock| drop(now(lock.try_write()))),
    ];
    for (cause, end) in ends {
        measured(|seen| {
            let zk = Memory::new();
            let lock = keeping(&zk);
            drop(now(lock.read()).expect("free"));
            assert_eq!(kept(seen, cause), [1.0, 0.0, 0.0], "{cause}: idle");
            let guard = now(lock.read()).expect("kept");
            assert_eq!(kept(seen, cause), [1.0, 0.0, 0.0], "{cause}: in use");
            drop(guard);
            end(&zk, lock.clone());
            drop(lock);
            assert_eq!(kept(seen, cause)[1], 1.0, "{cause}");
            assert_eq!(kept(seen, cause), [0.0, 1.0, 1.0], "{cause}: the end");
        });
    }
}

#[test]
fn a_kept_node_asked_for_counts_until_its_last_use() {
    measured(|seen| {
        let zk = Memory::new();
        let lock = keeping(&zk);
        let guards = [now(lock.read()).expect("free"), now(lock.read()).expect("shared")];
        now(RwLock::new(&zk.connect(), DIRECTORY).expect("valid").ask()).expect("allowed");
        assert_eq!(kept(seen, "asked"), [1.0, 0.0, 0.0]);
        zk.faults().expire();
        drop(guards);
        assert_eq!(kept(seen, "asked"), [0.0, 1.0, 1.0], "the cause is not the ask");
    });
}

#[test]
fn a_node_asked_for_before_its_grant_is_not_kept() {
    measured(|seen| {
        let zk = Memory::new();
        let (lock, other) = (keeping(&zk), RwLock::new(&zk.connect(), DIRECTORY).expect("valid"));
        let held = now(other.write()).expect("free");
        let mut waiting = task::spawn(lock.read().into_future());
        assert_pending!(waiting.poll());
        now(other.ask()).expect("allowed");
        drop(held);
        let guard = assert_ready_ok!(waiting.poll());
        assert_eq!(kept(seen, "asked"), [0.0; 3]);
        drop(guard);
        assert_eq!((kept(seen, "asked"), zk.children(DIRECTORY).len()), ([0.0; 3], 0));
    });
}

#[test]
fn a_node_with_an_unsure_write_is_given_up_as_unsure() {
    measured(|seen| {
        let lock = keeping(&Memory::new());
        let guard = now(lock.write()).expect("free");
        let _for_others = guard.prepare_foreign_transaction();
        drop(guard);
        assert_eq!(kept(seen, "unsure"), [0.0, 1.0, 1.0]);
    });
}

#[test]
fn a_node_kept_too_long_without_use_ends_as_idle() {
    measured(|seen| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.expect("a runtime").block_on(async {
            let lock = keeping(&Memory::new());
            drop(lock.read().await.expect("free"));
            tokio::time::sleep(Duration::from_secs(8)).await;
            assert_eq!(kept(seen, "idle"), [1.0, 0.0, 0.0]);
            tokio::time::sleep(Duration::from_secs(2)).await;
            assert_eq!(kept(seen, "idle"), [0.0, 1.0, 1.0]);
        });
    });
}

#[test]
fn refusals_and_losses_are_counted_by_their_causes() {
    measured(|seen| {
        let zk = Memory::new();
        let other = zk.connect();
        let lock = RwLock::new(&zk, DIRECTORY).expect("valid");
        let contender = RwLock::new(&other, DIRECTORY).expect("valid");
        let held = now(lock.write()).expect("free");
        assert!(now(contender.try_read()).is_err());
        assert!(now(contender.try_write()).is_err());
        assert_eq!(seen.value("zk_rwlock_would_block_total{mode=\"read\"}"), 1.0);
        assert_eq!(seen.value("zk_rwlock_would_block_total{mode=\"write\"}"), 1.0);
        zk.faults().remove(held.node_path());
        assert!(!held.is_held() && !held.is_held());
        assert_eq!(seen.value("zk_rwlock_losses_total{cause=\"removed\"}"), 1.0);
        drop(held);
        let held = now(lock.write()).expect("free");
        zk.faults().expire();
        assert_eq!(seen.value("zk_rwlock_losses_total{cause=\"session-over\"}"), 1.0);
        drop(held);
    });
}

#[test]
fn each_kind_of_call_counts_its_timeout_once() {
    measured(|seen| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.expect("a runtime").block_on(async {
            let (zk, limit) = (Memory::new(), Duration::from_secs(1));
            let lock = RwLock::new(&zk, DIRECTORY).expect("valid");
            let shared = Shared::with_format(&zk, "/value", Raw).initial(String::new).build().expect("valid");
            let _held = (lock.write().await.expect("free"), shared.write().await.expect("free"));
            assert!(lock.read().timeout(limit).await.is_err_and(|error| error.is_timeout()));
            assert!(shared.read().timeout(limit).await.is_err_and(|error| error.is_timeout()));
            assert!(shared.write().timeout(limit).await.is_err_and(|error| error.is_timeout()));
            let once = lock.write().once_in(Duration::from_secs(9)).timeout(limit).await;
            assert!(once.is_err_and(|error| error.is_timeout()));
        });
        for mode in ["read", "write"] {
            assert_eq!(seen.value(&format!("zk_rwlock_timeouts_total{{mode=\"{mode}\"}}")), 2.0, "{mode}");
        }
    });
}

#[test]
fn a_busy_lock_among_several_is_counted_once() {
    measured(|seen| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.expect("a runtime").block_on(async {
            let zk = Memory::new();
            let _held = [write(&zk, "/b").await, write(&zk, "/c").await];
            let all = ["/a", "/b", "/c"].map(|path| (path, Mode::Write));
            let locks = several(&zk, all).expect("valid");
            assert!(locks.try_lock().await.is_err());
            assert!(locks.lock().timeout(Duration::from_secs(1)).await.is_err());
        });
        assert_eq!(seen.value("zk_rwlock_would_block_total{mode=\"write\"}"), 1.0);
        assert_eq!(seen.value("zk_rwlock_timeouts_total{mode=\"write\"}"), 1.0);
    });
}

async fn write(zk: &Memory, path: &str) -> zk_rwlock::WriteGuard {
    RwLock::new(zk, path).expect("valid").write().await.expect("free")
}

#[test]
fn each_read_that_waits_for_a_kept_node_is_measured() {
    measured(|seen| {
        let zk = Memory::new();
        let lock = RwLock::builder(&zk, DIRECTORY).keep(Duration::from_secs(9)).build().expect("valid");
        let held = now(RwLock::new(&zk, DIRECTORY).expect("valid").write()).expect("free");
        let mut reads = [(); 3].map(|()| task::spawn(lock.read().into_future()));
        for read in &mut reads {
            assert_pending!(read.poll());
        }
        drop(held);
        let guards = reads.each_mut().map(|read| assert_ready_ok!(read.poll()));
        assert_eq!(seen.value("zk_rwlock_acquire_wait_seconds_count{mode=\"read\"}"), 3.0);
        assert_eq!(seen.value("zk_rwlock_grants_total{mode=\"read\",kind=\"hand-off\"}"), 1.0);
        assert_eq!(seen.value("zk_rwlock_grants_total{mode=\"read\",kind=\"kept\"}"), 3.0);
        drop(guards);
        assert_eq!(seen.value("zk_rwlock_hold_seconds_count{mode=\"read\"}"), 3.0);
    });
}

#[test]
fn a_downgrade_moves_the_hold_from_write_to_read() {
    measured(|seen| {
        let lock = RwLock::new(&Memory::new(), DIRECTORY).expect("valid");
        let reader = now(now(lock.write()).expect("free").downgrade()).expect("held");
        let counts = ["write", "read"].map(|mode| format!("zk_rwlock_hold_seconds_count{{mode=\"{mode}\"}}"));
        assert_eq!(counts.each_ref().map(|count| seen.value(count)), [1.0, 0.0]);
        drop(reader);
        assert_eq!(counts.each_ref().map(|count| seen.value(count)), [1.0, 1.0]);
    });
}

#[test]
fn a_lease_expiry_is_counted_though_nobody_looks() {
    measured(|seen| {
        tokio::runtime::Runtime::new().expect("a runtime").block_on(async {
            let server = tokio::task::spawn_blocking(Server::start).await.expect("the server starts");
            let zk = connect_with(&server.address(), Duration::from_secs(2)).await;
            // The wait is longer than half of the session timeout, so a heartbeat would be due during the wait.
            tokio::time::sleep(Duration::from_millis(1_200)).await;
            assert_eq!(
                seen.value("zk_rwlock_heartbeats_total"),
                0.0,
                "heartbeats were counted although no lock is held"
            );
            let guard = lock_at(&zk, "/locks/nobody-looks").write().await.expect("free");
            let kept_on =
                RwLock::builder(&zk, "/locks/nobody-uses").keep(Duration::from_secs(60)).build().expect("valid");
            drop(kept_on.read().await.expect("free"));
            assert_eq!(kept(seen, "lost"), [1.0, 0.0, 0.0]);
            server.pause();
            let lost = "zk_rwlock_losses_total{cause=\"lease-ran-out\"}";
            eventually("both losses are counted", || async { seen.value(lost) == 2.0 }).await;
            eventually("the idle node is given up", || async { kept(seen, "lost") == [0.0, 1.0, 1.0] }).await;
            server.resume();
            assert!(!guard.is_held());
            assert!(seen.value("zk_rwlock_heartbeats_total") >= 1.0);
            drop((guard, kept_on));
            zk.close().await;
            let pending = "zk_rwlock_removals_pending";
            eventually("no removal is pending", || async { seen.value(pending) == 0.0 }).await;
        });
    });
}

#[test]
fn recoveries_and_pending_removals_are_counted() {
    measured(|seen| {
        let zk = Memory::new();
        let lock = RwLock::new(&zk, DIRECTORY).expect("valid");
        drop(now(lock.read()).expect("free"));
        zk.faults().lose_next_reply();
        let held = now(lock.write()).expect("free");
        assert_eq!(seen.value("zk_rwlock_recoveries_total"), 1.0);
        zk.faults().cut();
        drop(held);
        assert!(seen.value("zk_rwlock_removals_pending") >= 1.0);
        zk.faults().heal();
        assert_eq!(seen.value("zk_rwlock_removals_pending"), 0.0);
        assert!(zk.children(DIRECTORY).is_empty());
    });
}

#[test]
fn a_late_recorder_gets_gauges_and_zero_counters() {
    measured(|first| {
        let lock = RwLock::new(&Memory::new(), DIRECTORY).expect("valid");
        let held = now(lock.write()).expect("free");
        assert_eq!(first.at(DIRECTORY, "write"), [0.0, 1.0]);
        let recorder = PrometheusBuilder::new().build_recorder();
        let late = Measured(recorder.handle());
        let before = CURRENT.write().expect("no panic").replace(Arc::new(recorder));
        assert_eq!(late.at(DIRECTORY, "write"), [0.0, 0.0], "the late recorder has counted something");
        zk_rwlock::metrics::describe();
        assert_eq!(late.at(DIRECTORY, "write"), [0.0, 1.0]);
        for cause in ["session-over", "lease-ran-out", "held-too-long", "removed", "interfered"] {
            let series = format!("zk_rwlock_losses_total{{cause=\"{cause}\"}} 0");
            assert!(late.0.render().contains(&series), "{series}");
        }
        *CURRENT.write().expect("no panic") = before;
        drop(held);
    });
}

#[test]
fn metrics_by_path_labels_all_metrics_of_the_lock() {
    measured(|seen| {
        let zk = Memory::new();
        let mut calls = 0;
        let by_path = RwLock::builder(&zk, "/orders/7").keep(Duration::from_secs(9)).metrics_by_path(|path| {
            calls += 1;
            path.replace('7', "all")
        });
        let [lock, other] = [by_path.clone(), by_path].map(|builder| builder.build().expect("valid"));
        assert_eq!(calls, 1);
        let label = "path=\"/orders/all\"";
        let value = |name: &str, rest: &str| seen.value(&format!("zk_rwlock_{name}{{{label}{rest}}}"));
        let (write, removed) = (",mode=\"write\"", ",cause=\"removed\"");
        zk_rwlock::metrics::flush();
        assert!(
            seen.0.render().contains(&format!("zk_rwlock_losses_total{{{label}{removed}}} 0")),
            "no zero to rise from"
        );
        drop(now(other.try_read()).expect("free")); // makes the directory
        zk.faults().lose_next_reply();
        drop(now(other.try_read()).expect("free"));
        let held = now(lock.write()).expect("free");
        assert_eq!(seen.at("/orders/all", "write"), [0.0, 1.0]);
        assert!(now(other.try_write()).is_err());
        assert!(other.write().timeout(Duration::from_millis(1)).blocking().is_err());
        assert_eq!((value("recoveries_total", ""), value("kept_nodes", "")), (1.0, 1.0));
        zk.faults().remove(held.node_path());
        drop(held);
        for name in ["acquire_wait_seconds_count", "hold_seconds_count", "would_block_total", "timeouts_total"] {
            assert_eq!(value(name, write), 1.0, "{name}");
        }
        assert_eq!(value("grants_total", ",mode=\"write\",kind=\"kept\""), 1.0);
        assert!(value("queue_length_count", write) >= 1.0);
        assert_eq!(value("losses_total", removed), 1.0);
        assert_eq!(value("kept_given_up_total", ",cause=\"asked\""), 1.0);
        let without = |line: &&str| line.contains("mode=") && !line.contains(label);
        assert_eq!(seen.0.render().lines().find(without), None, "a metric of the lock lacks the label");
        drop(now(RwLock::new(&zk, DIRECTORY).expect("valid").write()).expect("free"));
        assert_eq!(
            seen.value("zk_rwlock_grants_total{mode=\"write\",kind=\"at once\"}"),
            1.0,
            "the default has no label"
        );
    });
}

#[test]
fn sessions_and_breaks_are_counted() {
    measured(|seen| {
        let zk = Memory::new();
        drop(now(RwLock::new(&zk, DIRECTORY).expect("valid").write()).expect("free"));
        let ended = |cause: &str| seen.value(&format!("zk_rwlock_sessions_ended_total{{cause=\"{cause}\"}}"));
        let breaks = || seen.value("zk_rwlock_connection_break_seconds_count");
        assert_eq!((seen.value("zk_rwlock_sessions_begun_total"), breaks()), (1.0, 0.0));
        zk.faults().cut();
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(breaks(), 0.0, "the break has not ended");
        zk.faults().heal();
        assert_eq!(breaks(), 1.0);
        assert!((0.02..60.0).contains(&seen.value("zk_rwlock_connection_break_seconds_sum")));
        zk.faults().cut();
        zk.faults().expire();
        zk.faults().heal();
        assert_eq!((ended("expired"), breaks()), (1.0, 2.0), "the second break ended the session");
        drop(now(RwLock::new(&zk, DIRECTORY).expect("valid").write()).expect("free"));
        now(zk.close());
        assert_eq!((seen.value("zk_rwlock_sessions_begun_total"), ended("closed"), breaks()), (2.0, 1.0, 2.0));
    });
}

#[test]
fn a_server_that_is_left_for_its_disagreement_is_counted() {
    measured(|seen| {
        zk_rwlock::metrics::describe();
        let theirs = Memory::new();
        let held = now(RwLock::new(&theirs, DIRECTORY).expect("valid").write()).expect("free");
        let ours = theirs.connect();
        now(RwLock::new(&ours, DIRECTORY).expect("valid").queue()).expect("listed");
        ours.faults().freeze(held.node_path());
        drop(held);
        assert_eq!(seen.value("zk_rwlock_disagreements_total"), 0.0);
        for _ in 0..2 {
            drop(now(RwLock::new(&ours, DIRECTORY).expect("valid").try_write()).expect("a ghost"));
            assert_eq!(seen.value("zk_rwlock_disagreements_total"), 1.0, "the server was left");
        }
        assert!(seen.0.render().contains("# TYPE zk_rwlock_disagreements_total counter"));
    });
}

#[test]
fn attempts_and_dropped_events_are_counted() {
    measured(|seen| {
        tokio::runtime::Runtime::new().expect("a runtime").block_on(async {
            let server = tokio::task::spawn_blocking(Server::start).await.expect("the server starts");
            let attempts =
                |outcome: &str| seen.value(&format!("zk_rwlock_connection_attempts_total{{outcome=\"{outcome}\"}}"));
            let zk = connect_with(&server.address(), Duration::from_secs(2)).await;
            assert_eq!((attempts("connected"), attempts("failed")), (1.0, 0.0));
            server.pause();
            let silent = || async { attempts("silent") >= 1.0 };
            eventually("a paused server answers no attempt", silent).await;
            server.resume();
            eventually("a new session begins", || async { attempts("connected") >= 2.0 }).await;
            zk.close().await;
        });
        let nobody = ZooKeeper::builder().connect_timeout(Duration::from_millis(200)).connect("127.0.0.1:1");
        assert!(tokio::runtime::Runtime::new().expect("a runtime").block_on(nobody.into_future()).is_err());
        let failed = "zk_rwlock_connection_attempts_total{outcome=\"failed\"}";
        assert!(seen.value(failed) >= 1.0);

        // After a session of ZooKeeper, events of this level wait for a thread of their own.
        let (go_on, goes_on) = mpsc::channel();
        tracing::subscriber::with_default(Stuck(Mutex::new(goes_on)), || {
            let (zk, dropped) = (Memory::new(), "zk_rwlock_events_dropped_total");
            let lock = RwLock::new(&zk, DIRECTORY).expect("valid");
            for _ in 0..4_200 {
                let held = now(lock.write()).expect("free");
                zk.faults().remove(held.node_path());
                assert!(!held.is_held());
            }
            // Each loss is one event. The first is with the subscriber, and 4,096 or one less wait.
            let count = seen.value(dropped);
            assert!((100.0..=200.0).contains(&count), "{count}");
        });
        drop(go_on);
        assert!(zk_rwlock::coordinator::flush_events(Duration::from_secs(60)));
    });
}

/// A subscriber that takes no event before the sender of this channel is dropped.
struct Stuck(Mutex<mpsc::Receiver<()>>);

impl tracing::Subscriber for Stuck {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::WARN
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, _: &tracing::Event<'_>) {
        let _dropped = self.0.lock().expect("no panic").recv();
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

/// The gauges are described without a unit, because an exporter of OpenTelemetry appends `_ratio` to the name of a
/// gauge whose unit is a count.
#[test]
fn every_name_is_described_and_no_gauge_has_a_unit() {
    let describing = Arc::new(Described::default());
    measured(|seen| {
        let prometheus = CURRENT.write().expect("no panic").replace(Arc::clone(&describing) as _);
        zk_rwlock::metrics::describe();
        *CURRENT.write().expect("no panic") = prometheus;
        zk_rwlock::metrics::describe();
        let lock = RwLock::new(&Memory::new(), DIRECTORY).expect("valid");
        drop(now(lock.write()).expect("free"));
        assert_eq!(seen.value("zk_rwlock_grants_total{mode=\"write\",kind=\"at once\"}"), 1.0);
        let text = seen.0.render();
        assert!(
            text.contains("# HELP zk_rwlock_grants_total Locks granted\n# TYPE zk_rwlock_grants_total counter"),
            "{text}"
        );
    });
    let gauges = describing.0.lock().expect("no panic");
    assert!(gauges.len() == 4 && gauges.iter().all(|(_, unit)| unit.is_none()), "{gauges:?}");
    let names = include_str!("../src/telemetry/names.rs")
        .lines()
        .filter_map(|line| line.split('"').nth(1))
        .filter(|it| it.starts_with("zk_"));
    let (names, described): (BTreeSet<_>, _) =
        (names.map(str::to_owned).collect(), describing.1.lock().expect("no panic"));
    assert_eq!(*described, names);
}

/// The described gauges, each with its unit, and all described names.
#[derive(Default)]
struct Described(Mutex<Vec<(KeyName, Option<Unit>)>>, Mutex<BTreeSet<String>>);

impl Described {
    fn record(&self, name: &KeyName) {
        self.1.lock().expect("no panic").insert(name.as_str().to_owned());
    }
}

impl Recorder for Described {
    fn describe_counter(&self, key: KeyName, _: Option<Unit>, _: SharedString) {
        self.record(&key);
    }

    fn describe_gauge(&self, key: KeyName, unit: Option<Unit>, _: SharedString) {
        self.record(&key);
        self.0.lock().expect("no panic").push((key, unit));
    }

    fn describe_histogram(&self, key: KeyName, _: Option<Unit>, _: SharedString) {
        self.record(&key);
    }

    fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
        Counter::noop()
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

#[test]
fn permits_are_counted_apart_from_locks() {
    measured(|seen| {
        let semaphore = Semaphore::new(&Memory::new(), "/limit", 1).expect("valid");
        let permit = now(semaphore.acquire()).expect("free");
        assert!(now(semaphore.try_acquire()).is_err());
        assert!(semaphore.acquire().timeout(Duration::from_millis(1)).blocking().is_err());
        drop(permit);
        for series in ["hold_seconds_count", "acquire_wait_seconds_count", "would_block_total", "timeouts_total"] {
            assert_eq!(seen.value(&format!("zk_rwlock_{series}{{mode=\"permit\"}}")), 1.0, "{series}");
        }
        assert!(!seen.0.render().contains("mode=\"write\""), "{}", seen.0.render());
    });
}

#[test]
fn a_waiter_that_loses_its_node_is_no_lost_lock() {
    measured(|seen| {
        let zk = Memory::new();
        let lock = RwLock::new(&zk, DIRECTORY).expect("valid");
        let held = now(lock.write()).expect("free");
        let holder = zk.children(DIRECTORY);
        let mut waits = task::spawn(lock.write().into_future());
        assert_pending!(waits.poll());
        let waiter =
            zk.children(DIRECTORY).into_iter().find(|name| !holder.contains(name)).expect("the acquisition waits");
        zk.faults().remove(format!("{DIRECTORY}/{waiter}"));
        assert!(assert_ready!(waits.poll()).is_err());
        assert!(!seen.0.render().contains("zk_rwlock_losses_total"), "{}", seen.0.render());
        zk.faults().remove(format!("{DIRECTORY}/{}", zk.children(DIRECTORY)[0]));
        assert!(!held.is_held());
        assert_eq!(seen.value("zk_rwlock_losses_total{cause=\"removed\"}"), 1.0);
    });
}

#[test]
fn waiters_and_holders_are_counted_by_path() {
    measured(|seen| {
        let zk = Memory::new();
        let lock = RwLock::new(&zk, DIRECTORY).expect("valid");
        let other = RwLock::new(&zk.connect(), DIRECTORY).expect("valid");
        let held = now(lock.write()).expect("free");
        let mut reads = [(); 3].map(|()| task::spawn(other.read().into_future()));
        for read in &mut reads {
            assert_pending!(read.poll());
        }
        assert!(now(other.try_write()).is_err());
        assert_eq!((seen.at(DIRECTORY, "write"), seen.at(DIRECTORY, "read")), ([0.0, 1.0], [3.0, 0.0]));
        assert_eq!(seen.at("/elsewhere", "write"), [0.0, 0.0]);
        let [first, second, cancelled] = reads;
        drop(cancelled);
        let held = now(held.downgrade()).expect("held");
        let granted = [first, second].map(|mut read| assert_ready_ok!(read.poll()));
        assert_eq!((seen.at(DIRECTORY, "write"), seen.at(DIRECTORY, "read")), ([0.0, 0.0], [0.0, 3.0]));
        let mut waits = task::spawn(lock.write().into_future());
        assert_pending!(waits.poll());
        let mut late = task::spawn(other.write().into_future());
        assert_pending!(late.poll());
        assert_eq!(seen.at(DIRECTORY, "write"), [2.0, 0.0]);
        // Ends the session of `lock`, to which the holder and the first waiting writer belong.
        zk.faults().expire();
        assert!(assert_ready!(waits.poll()).is_err() && !held.is_held());
        assert_eq!((seen.at(DIRECTORY, "write"), seen.at(DIRECTORY, "read")), ([1.0, 0.0], [0.0, 3.0]));
        drop(held);
        let [one, another] = granted;
        now(one.release()).expect("held");
        let shared = another.share();
        drop(another);
        assert_eq!(seen.at(DIRECTORY, "read"), [0.0, 1.0]);
        drop(shared);
        drop(assert_ready_ok!(late.poll()));
    });
}

#[test]
fn uses_of_a_kept_node_count_but_an_idle_node_does_not() {
    measured(|seen| {
        let zk = Memory::new();
        let lock = keeping(&zk);
        let reads = [now(lock.read()).expect("free"), now(lock.try_read()).expect("kept")];
        let mut writes = [(); 2].map(|()| task::spawn(lock.write().into_future()));
        for write in &mut writes {
            assert_pending!(write.poll());
        }
        assert_eq!((seen.at(DIRECTORY, "read"), seen.at(DIRECTORY, "write")), ([0.0, 2.0], [2.0, 0.0]));
        drop(reads);
        let [mut first, second] = writes;
        let held = assert_ready_ok!(first.poll());
        drop(second);
        assert_eq!((seen.at(DIRECTORY, "read"), seen.at(DIRECTORY, "write")), ([0.0, 0.0], [0.0, 1.0]));
        drop(held);
        assert_eq!((seen.at(DIRECTORY, "write"), kept(seen, "idle")[0]), ([0.0, 0.0], 1.0));
        drop(now(lock.try_write()).expect("idle"));
        zk.faults().expire();
        drop(now(lock.try_write()).expect("free"));
    });
}

#[test]
fn permits_multi_locks_and_terms_count_while_held() {
    measured(|seen| {
        let zk = Memory::new();
        let semaphore = Semaphore::new(&zk, "/limit", 3).expect("valid");
        let both = now(semaphore.acquire_many(2)).expect("free");
        let mut waits = task::spawn(semaphore.acquire_many(2).into_future());
        assert_pending!(waits.poll());
        assert_eq!(seen.at("/limit", "permit"), [1.0, 1.0]);
        drop((both, waits));
        let held = now(RwLock::new(&zk, "/b").expect("valid").read()).expect("free");
        let locks = several(&zk, [("/a", Mode::Write), ("/b", Mode::Write)]).expect("valid");
        let mut all = task::spawn(locks.lock().into_future());
        assert_pending!(all.poll());
        assert_eq!((seen.at("/a", "write"), seen.at("/b", "write")), ([0.0, 1.0], [1.0, 0.0]));
        drop(held);
        let guard = assert_ready_ok!(all.poll());
        assert_eq!((seen.at("/a", "write"), seen.at("/b", "write")), ([0.0, 1.0], [0.0, 1.0]));
        drop(guard);
        let leadership = Leadership::new(&zk, "/leader").expect("valid");
        let mut campaign = task::spawn(leadership.lead(|_term| std::future::pending::<()>()));
        assert_pending!(campaign.poll());
        let dropped = leadership.term().expect("the candidate leads");
        assert_eq!(seen.at("/leader", "write"), [0.0, 1.0]);
        drop(campaign);
        // A past term does not count as held, even if the program still has the term's value.
        assert_eq!(seen.at("/leader", "write"), [0.0, 0.0]);
        let done = now(leadership.lead(async |term| term)).expect("the candidate leads");
        assert_eq!(seen.at("/leader", "write"), [0.0, 0.0]);
        drop((dropped, done));
    });
}

#[test]
fn an_acquisition_dropped_at_any_poll_leaves_no_gauge() {
    measured(|seen| {
        let mut granted = 0;
        for polls in 0..20 {
            for (kind, contended) in (0..8).map(|kind| (kind / 2, kind % 2 == 1)) {
                let (keeps, tries) = (kind / 2 == 1, kind % 2 == 1);
                let zk = Memory::new();
                let builder = RwLock::builder(&Slow(zk.connect()), DIRECTORY);
                let lock = if keeps { builder.keep(Duration::from_secs(9)) } else { builder }.build().expect("valid");
                let held = contended.then(|| now(RwLock::new(&zk, DIRECTORY).expect("valid").write()).expect("free"));
                let asked = async || if tries { lock.try_write().await } else { lock.write().await };
                let mut writing = task::spawn(asked());
                let (guard, waits) = match poll_up_to(&mut writing, polls) {
                    Some(Poll::Ready(answer)) => (answer.ok(), false),
                    _ => (None, polls > 0),
                };
                granted += usize::from(guard.is_some());
                let present = [waits, guard.is_some() || contended].map(f64::from);
                let case = format!("{polls} polls, keeps: {keeps}, tries: {tries}, contended: {contended}");
                assert_eq!(seen.at(DIRECTORY, "write"), present, "{case}");
                drop((guard, writing));
                assert_eq!(seen.at(DIRECTORY, "write"), [0.0, f64::from(contended)]);
                drop(held);
            }
        }
        assert!(granted > 0, "no acquisition was granted");
    });
}

/// What a bad recorder does when it is called.
enum BadRecorder {
    /// Blocks until the sender of this channel is dropped.
    Waits(Mutex<mpsc::Receiver<()>>),
    Panics,
    Locks(RwLock),
}

impl BadRecorder {
    fn does(&self) {
        match self {
            BadRecorder::Waits(until) => assert!(until.lock().expect("no panic").recv().is_err()),
            // Panics without printing a message.
            BadRecorder::Panics => std::panic::resume_unwind(Box::new("as recorders may")),
            BadRecorder::Locks(lock) => drop(lock.write().blocking()),
        }
    }
}

impl Recorder for BadRecorder {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
        self.does();
        Counter::noop()
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        self.does();
        Gauge::noop()
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        self.does();
        Histogram::noop()
    }
}

#[test]
fn a_recorder_that_blocks_or_panics_breaks_nothing() {
    measured(|_| {
        let zk = Memory::new();
        let (lock, kept) = (RwLock::new(&zk, DIRECTORY).expect("valid"), keeping(&zk));
        let use_all = || {
            for _ in 0..3 {
                drop(now(now(lock.write()).expect("free").downgrade()).expect("held"));
                drop([now(kept.read()).expect("free"), now(kept.read()).expect("kept")]);
                now(lock.ask()).expect("allowed");
            }
            zk.faults().remove(now(lock.write()).expect("free").node_path());
            drop(now(Semaphore::new(&zk, "/limit", 1).expect("valid").acquire()));
        };
        let (closed, gate) = mpsc::channel();
        let mut closed = Some(closed);
        let its_own = RwLock::new(&Memory::new(), "/its-own").expect("valid");
        for rude in [BadRecorder::Waits(Mutex::new(gate)), BadRecorder::Panics, BadRecorder::Locks(its_own)] {
            *CURRENT.write().expect("no panic") = Some(Arc::new(rude));
            use_all();
            drop(closed.take());
            zk_rwlock::metrics::flush();
        }
        // The recorder that follows the bad ones counts everything.
        let seen = Measured::begins();
        use_all();
        assert_eq!(seen.value("zk_rwlock_grants_total{mode=\"read\",kind=\"kept\"}"), 6.0);
        assert_eq!(seen.present(), [0.0, 0.0]);
    });
}

#[test]
fn a_stuck_recorder_costs_no_lease_and_no_count() {
    measured(|seen| {
        tokio::runtime::Runtime::new().expect("a runtime").block_on(async {
            let server = tokio::task::spawn_blocking(Server::start).await.expect("the server starts");
            let zk = connect_with(&server.address(), Duration::from_secs(10)).await;
            let (closed, gate) = mpsc::channel();
            let rude = Arc::new(BadRecorder::Waits(Mutex::new(gate)));
            let recorder = CURRENT.write().expect("no panic").replace(rude);
            let guard = lock_at(&zk, "/locks/measured").write().await.expect("free");
            // The thread that renews the lease also counts each heartbeat. The recorder blocks, and the lease must
            // still be renewed.
            for _ in 0..4 {
                let least = Cell::new(Duration::MAX);
                let is_renewed = || async { least.replace(guard.session_left()) < guard.session_left() };
                eventually("the lease is renewed", is_renewed).await;
            }
            assert!(guard.is_held());
            guard.release().await.expect("held");
            *CURRENT.write().expect("no panic") = recorder;
            drop(closed);
            assert!(seen.value("zk_rwlock_heartbeats_total") >= 1.0);
            zk.close().await;
        });
    });
}
