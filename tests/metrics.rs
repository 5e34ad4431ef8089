//! What is counted and measured, on the embedded ensemble, where all of it happens on the thread of the test.

use std::future::IntoFuture;
use std::time::{Duration, Instant};

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use support::polled::now;
use support::scene::{connect_with, eventually, lock_at};
use support::server::Server;
use tokio_test::task;
use tokio_test::{assert_pending, assert_ready, assert_ready_ok};
use zk_rwlock::{Memory, Mode, MultiLock, Raw, RwLock, Semaphore, Shared};

const DIRECTORY: &str = "/lock";

/// Runs this with a recorder of its own.
fn measured(run: impl FnOnce(&Measured)) {
    let recorder = PrometheusBuilder::new().build_recorder();
    let measured = Measured(recorder.handle());
    metrics::with_local_recorder(&recorder, || run(&measured));
}

struct Measured(PrometheusHandle);

impl Measured {
    /// The value of this series; 0 if there is none.
    fn value(&self, series: &str) -> f64 {
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
        assert_eq!(seen.value("zk_rwlock_grants_total{mode=\"write\",kind=\"pass\"}"), 1.0);
        assert_eq!(seen.value("zk_rwlock_grants_total{mode=\"read\",kind=\"next\"}"), 1.0);
        assert_eq!(seen.value("zk_rwlock_acquire_wait_seconds_count{mode=\"write\"}"), 2.0);
        assert_eq!(seen.value("zk_rwlock_acquire_wait_seconds_count{mode=\"read\"}"), 1.0);
        assert_eq!(seen.value("zk_rwlock_hold_seconds_count{mode=\"write\"}"), 2.0);
        // The first acquisition found an empty queue, the second found one contender.
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

/// How many nodes are kept now, and how many were given up for this cause and for any.
fn kept(seen: &Measured, cause: &str) -> [f64; 3] {
    let given_up = |cause: &str| seen.value(&format!("zk_rwlock_kept_given_up_total{{cause=\"{cause}\"}}"));
    let all = ["asked", "idle", "lost", "closed", "replaced", "unsure"].map(given_up);
    [seen.value("zk_rwlock_kept_nodes"), given_up(cause), all.iter().sum()]
}

#[test]
fn kept_nodes_are_counted_while_they_are_kept_and_by_the_cause_of_their_end() {
    let other = |zk: &Memory| RwLock::new(&zk.connect(), DIRECTORY).expect("valid");
    type End<'a> = &'a dyn Fn(&Memory, RwLock);
    let ends: [(&str, End<'_>); 7] = [
        ("asked", &|zk, _| drop(now(other(zk).write()).expect("asked for"))),
        ("asked", &|zk, _| now(other(zk).ask()).expect("allowed")),
        ("lost", &|zk, _| zk.expire()),
        ("lost", &|zk, _| zk.remove(format!("{DIRECTORY}/{}", zk.children(DIRECTORY)[0]))),
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
            let (after, given_up) = if cause == "replaced" { (0.0, 2.0) } else { (0.0, 1.0) };
            assert_eq!(kept(seen, cause), [after, 1.0, given_up], "{cause}: the end");
        });
    }
}

#[test]
fn a_kept_node_that_is_asked_for_counts_until_its_last_use_ends() {
    measured(|seen| {
        let zk = Memory::new();
        let lock = keeping(&zk);
        let guards = [now(lock.read()).expect("free"), now(lock.read()).expect("shared")];
        now(RwLock::new(&zk.connect(), DIRECTORY).expect("valid").ask()).expect("allowed");
        assert_eq!(kept(seen, "asked"), [1.0, 0.0, 0.0]);
        zk.expire();
        drop(guards);
        assert_eq!(kept(seen, "asked"), [0.0, 1.0, 1.0], "what ended it is that it was asked for");
    });
}

#[test]
fn a_node_that_is_asked_for_before_its_grant_is_not_counted_as_kept() {
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
fn a_node_whose_write_may_yet_be_carried_out_is_given_up_as_unsure() {
    measured(|seen| {
        let lock = keeping(&Memory::new());
        let guard = now(lock.write()).expect("free");
        let _given_away = guard.path();
        drop(guard);
        assert_eq!(kept(seen, "unsure"), [0.0, 1.0, 1.0]);
    });
}

#[test]
fn a_kept_node_that_was_idle_for_long_is_counted_as_idle() {
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
        let beside = RwLock::new(&other, DIRECTORY).expect("valid");
        let held = now(lock.write()).expect("free");
        assert!(now(beside.try_read()).is_err());
        assert!(now(beside.try_write()).is_err());
        assert_eq!(seen.value("zk_rwlock_would_block_total{mode=\"read\"}"), 1.0);
        assert_eq!(seen.value("zk_rwlock_would_block_total{mode=\"write\"}"), 1.0);
        zk.remove(held.path());
        assert!(!held.is_held() && !held.is_held());
        assert_eq!(seen.value("zk_rwlock_losses_total{cause=\"removed\"}"), 1.0);
        drop(held);
        let held = now(lock.write()).expect("free");
        zk.expire();
        assert_eq!(seen.value("zk_rwlock_losses_total{cause=\"session-over\"}"), 1.0);
        drop(held);
    });
}

#[test]
fn a_timeout_is_counted() {
    measured(|seen| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.expect("a runtime").block_on(async {
            let lock = RwLock::new(&Memory::new(), DIRECTORY).expect("valid");
            let _held = lock.write().await.expect("free");
            assert!(lock.read().timeout(Duration::from_secs(1)).await.is_err());
        });
        assert_eq!(seen.value("zk_rwlock_timeouts_total{mode=\"read\"}"), 1.0);
    });
}

#[test]
fn of_several_locks_the_one_that_is_not_to_be_had_is_counted_once() {
    measured(|seen| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.expect("a runtime").block_on(async {
            let zk = Memory::new();
            let _held = [write(&zk, "/b").await, write(&zk, "/c").await];
            let all = ["/a", "/b", "/c"].map(|path| (path, Mode::Write));
            let locks = MultiLock::new(&zk, all).expect("valid");
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
        assert_eq!(seen.value("zk_rwlock_grants_total{mode=\"read\",kind=\"pass\"}"), 1.0);
        assert_eq!(seen.value("zk_rwlock_grants_total{mode=\"read\",kind=\"kept\"}"), 3.0);
        drop(guards);
        assert_eq!(seen.value("zk_rwlock_hold_seconds_count{mode=\"read\"}"), 3.0);
    });
}

#[test]
fn a_downgrade_ends_the_hold_of_one_mode_and_begins_that_of_the_other() {
    measured(|seen| {
        let lock = RwLock::new(&Memory::new(), DIRECTORY).expect("valid");
        let reader = now(now(lock.write()).expect("free").downgrade()).expect("held");
        let counts = ["write", "read"].map(|mode| format!("zk_rwlock_hold_seconds_count{{mode=\"{mode}\"}}"));
        assert_eq!(counts.each_ref().map(|count| seen.value(count)), [1.0, 0.0]);
        drop(reader);
        assert_eq!(counts.each_ref().map(|count| seen.value(count)), [1.0, 1.0]);
    });
}

/// The loss is counted on the library's own thread, which only a global recorder hears: no other test here has one.
#[tokio::test]
async fn a_lease_that_runs_out_is_counted_while_disconnected_and_unobserved() {
    let seen = Measured(PrometheusBuilder::new().install_recorder().expect("the first one"));
    let server = tokio::task::spawn_blocking(Server::start).await.expect("the server starts");
    let zk = connect_with(&server.address(), Duration::from_secs(2)).await;
    // More than two quarters of the session timeout.
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    assert_eq!(seen.value("zk_rwlock_heartbeats_total"), 0.0, "nothing is held");
    let guard = lock_at(&zk, "/locks/nobody-looks").write().await.expect("free");
    let kept_on = RwLock::builder(&zk, "/locks/nobody-uses").keep(Duration::from_secs(60)).build().expect("valid");
    drop(kept_on.read().await.expect("free"));
    assert_eq!(kept(&seen, "lost"), [1.0, 0.0, 0.0]);
    server.pause();
    let lost = "zk_rwlock_losses_total{cause=\"lease-ran-out\"}";
    eventually("both losses are counted", || async { seen.value(lost) == 2.0 }).await;
    eventually("the idle node is given up", || async { kept(&seen, "lost") == [0.0, 1.0, 1.0] }).await;
    server.resume();
    assert!(!guard.is_held());
    assert!(seen.value("zk_rwlock_heartbeats_total") >= 1.0);
}

#[test]
fn recoveries_are_counted_and_nodes_that_await_their_removal() {
    measured(|seen| {
        let zk = Memory::new();
        let lock = RwLock::new(&zk, DIRECTORY).expect("valid");
        drop(now(lock.read()).expect("free"));
        zk.lose_next_reply();
        let held = now(lock.write()).expect("free");
        assert_eq!(seen.value("zk_rwlock_recoveries_total"), 1.0);
        zk.cut();
        drop(held);
        assert!(seen.value("zk_rwlock_removals_pending") >= 1.0);
        zk.heal();
        assert_eq!(seen.value("zk_rwlock_removals_pending"), 0.0);
        assert!(zk.children(DIRECTORY).is_empty());
    });
}

#[test]
fn every_name_is_described() {
    measured(|seen| {
        zk_rwlock::metrics::describe();
        let lock = RwLock::new(&Memory::new(), DIRECTORY).expect("valid");
        drop(now(lock.write()).expect("free"));
        let text = seen.0.render();
        assert!(
            text.contains("# HELP zk_rwlock_grants_total Locks granted\n# TYPE zk_rwlock_grants_total counter"),
            "{text}"
        );
    });
}

#[test]
fn a_deadline_that_has_passed_counts_as_a_timeout_for_one_lock_several_and_a_value() {
    measured(|seen| {
        let (zk, past) = (Memory::new(), Instant::now());
        let write = "zk_rwlock_timeouts_total{mode=\"write\"}";
        assert!(now(RwLock::new(&zk, DIRECTORY).expect("valid").write().deadline(past)).is_err());
        assert_eq!(seen.value(write), 1.0);
        let both = MultiLock::new(&zk, [("/a", Mode::Write), ("/b", Mode::Read)]).expect("valid");
        assert!(now(both.lock().deadline(past)).is_err());
        assert_eq!(seen.value(write), 2.0);
        let shared: Shared<String> = Shared::with_format(&zk, "/value", Raw).build().expect("valid");
        assert!(now(shared.write().deadline(past)).is_err());
        assert_eq!(seen.value(write), 3.0);
        assert!(now(shared.read().deadline(past)).is_err());
        assert_eq!(seen.value("zk_rwlock_timeouts_total{mode=\"read\"}"), 1.0);
        let once = RwLock::new(&zk, DIRECTORY).expect("valid").write().once_in(Duration::from_secs(9));
        assert!(now(once.deadline(past)).is_err());
        assert_eq!(seen.value(write), 4.0);
        assert_eq!(zk.requests(), 0);
    });
}

#[test]
fn permits_are_counted_apart_from_locks() {
    measured(|seen| {
        let semaphore = Semaphore::new(&Memory::new(), "/limit", 1).expect("valid");
        let permit = now(semaphore.acquire()).expect("free");
        assert!(now(semaphore.try_acquire()).is_err());
        assert!(now(semaphore.acquire().deadline(Instant::now())).is_err());
        drop(permit);
        for series in ["hold_seconds_count", "acquire_wait_seconds_count", "would_block_total", "timeouts_total"] {
            assert_eq!(seen.value(&format!("zk_rwlock_{series}{{mode=\"permit\"}}")), 1.0, "{series}");
        }
        assert!(!seen.0.render().contains("mode=\"write\""), "{}", seen.0.render());
    });
}

#[test]
fn a_place_that_is_lost_while_it_waits_is_no_lost_lock() {
    measured(|seen| {
        let zk = Memory::new();
        let lock = RwLock::new(&zk, DIRECTORY).expect("valid");
        let held = now(lock.write()).expect("free");
        let holder = zk.children(DIRECTORY);
        let mut waits = task::spawn(lock.write().into_future());
        assert_pending!(waits.poll());
        let waiter = zk.children(DIRECTORY).into_iter().find(|name| !holder.contains(name)).expect("it waits");
        zk.remove(format!("{DIRECTORY}/{waiter}"));
        assert!(assert_ready!(waits.poll()).is_err());
        assert!(!seen.0.render().contains("zk_rwlock_losses_total"), "{}", seen.0.render());
        zk.remove(format!("{DIRECTORY}/{}", zk.children(DIRECTORY)[0]));
        assert!(!held.is_held());
        assert_eq!(seen.value("zk_rwlock_losses_total{cause=\"removed\"}"), 1.0);
    });
}
