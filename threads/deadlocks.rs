//! Tests of the report that is printed when a schedule deadlocks: for each waiting task, the lock or event for which it
//! waits.

use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use shuttle::future::block_on;
use shuttle::scheduler::PctScheduler;
use shuttle::{Config, FailurePersistence, Runner};

use crate::waits::{self, Awaited, Mutex};
use crate::world::spawn;

#[test]
fn a_deadlock_report_names_tasks_and_locks() {
    static FIRST: AtomicU32 = AtomicU32::new(0);
    let mut config = Config::new();
    config.failure_persistence = FailurePersistence::None;
    let run = || {
        Runner::new(PctScheduler::new(3, 1_000), config).run(|| {
            let locks = [Arc::new(Mutex::new(())), Arc::new(Mutex::new(()))];
            let tasks = [[0, 1], [1, 0]].map(|order| {
                let locks = order.map(|i| Arc::clone(&locks[i]));
                spawn(move || {
                    FIRST.store(line!() + 1, Relaxed);
                    let _first = locks[0].lock();
                    let _second = locks[1].lock();
                })
            });
            for task in tasks {
                task.join().expect("no panic");
            }
        });
    };
    let why = catch_unwind(AssertUnwindSafe(run)).expect_err("a deadlock");
    assert!(why.downcast_ref::<String>().is_some_and(|why| why.starts_with("deadlock!")));
    let report = waits::report();
    let line = FIRST.load(Relaxed);
    let (second, first) = (format!("{}:{}", file!(), line + 1), format!("{}:{line}", file!()));
    let waits = |line: &&str| {
        line.contains(&second) && line.contains(&first) && line.contains(" waits for the lock that was taken by ")
    };
    assert_eq!(report.lines().filter(waits).count(), 2, "{report}");
}

#[test]
fn a_deadlock_report_names_tasks_and_their_awaits() {
    let mut config = Config::new();
    config.failure_persistence = FailurePersistence::None;
    let here = Location::caller();
    let run = || {
        Runner::new(PctScheduler::new(3, 1), config).run(|| {
            let wait = || {
                let (_nobody_tells, told) = tokio::sync::oneshot::channel::<()>();
                let told = Awaited::since(here, "a notification", told);
                drop(block_on(async { (told.await, _nobody_tells) }));
            };
            spawn(wait).join().expect("no panic");
        });
    };
    let why = catch_unwind(AssertUnwindSafe(run)).expect_err("a deadlock");
    assert!(why.downcast_ref::<String>().is_some_and(|why| why.starts_with("deadlock!")));
    let report = waits::report();
    let waits = |line: &&str| line.ends_with(&format!(" waits for a notification at {}:{}", file!(), here.line()));
    assert_eq!(report.lines().filter(waits).count(), 1, "{report}");
}
