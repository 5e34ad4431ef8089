//! What is told of a deadlock.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use shuttle::scheduler::PctScheduler;
use shuttle::{Config, FailurePersistence, Runner};

use crate::waits::{self, Mutex};
use crate::world::spawn;

#[test]
fn a_deadlock_names_the_tasks_and_the_locks_that_they_wait_for() {
    let mut config = Config::new();
    config.failure_persistence = FailurePersistence::None;
    let run = || {
        Runner::new(PctScheduler::new(3, 1_000), config).run(|| {
            let locks = [Arc::new(Mutex::new(())), Arc::new(Mutex::new(()))];
            let tasks = [[0, 1], [1, 0]].map(|order| {
                let locks = order.map(|i| Arc::clone(&locks[i]));
                spawn(move || {
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
    let (second, first) = (format!("{}:{}", file!(), 23), format!("{}:{}", file!(), 22));
    let waits = |line: &&str| {
        line.contains(&second) && line.contains(&first) && line.contains(" waits for the lock that was taken by ")
    };
    assert_eq!(report.lines().filter(waits).count(), 2, "{report}");
}
