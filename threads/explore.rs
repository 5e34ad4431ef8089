//! Runs a test under many schedules, or runs one failed schedule again. A schedule is the order in which the threads of
//! the test run.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use shuttle::scheduler::{
    PctScheduler, RandomScheduler, ReplayScheduler, Scheduler, UncontrolledNondeterminismCheckScheduler,
};
use shuttle::{Config, FailurePersistence, MaxSteps, Runner};
use tokio::runtime::Builder;

/// The largest number of steps of a schedule. No test needs as many, so a schedule that reaches this number has a
/// thread that never ends.
const STEPS_MAX: usize = 200_000;

/// Runs `test` under `schedules` schedules, and then under more until `THREADS_SECONDS` have passed. If `SCHEDULE` names a
/// file, runs only the schedule in that file.
///
/// In half of the schedules, the next thread is random at each step. In the others, each thread has a priority, and a
/// few priorities change at random steps (PCT, probabilistic concurrency testing). Most faults need few such changes:
/// one thread runs for long while another one waits.
pub(crate) fn explore(schedules: usize, test: impl Fn() + Send + Sync + 'static) {
    let tally = Tally { begun: Instant::now(), ran: Arc::default() };
    let ran = Arc::clone(&tally.ran);
    let test = Arc::new(move || {
        ran.fetch_add(1, Ordering::Relaxed);
        test();
    });
    let run = |scheduler: Box<dyn Scheduler + Send>| {
        let test = Arc::clone(&test);
        run_under(scheduler, move || test());
    };
    if let Ok(file) = std::env::var("SCHEDULE") {
        return run(Box::new(ReplayScheduler::new_from_file(file).expect("a file with a schedule")));
    }
    let enough = std::env::var("THREADS_SECONDS").map(|it| it.parse().expect("a number of seconds")).unwrap_or(0);
    loop {
        run(Box::new(RandomScheduler::new(schedules / 2)));
        run(Box::new(PctScheduler::new(3, schedules / 4)));
        run(Box::new(PctScheduler::new(10, schedules / 4)));
        if tally.begun.elapsed() >= Duration::from_secs(enough) {
            return;
        }
    }
}

/// A counter of schedules. It prints their number when it is dropped, also after a failure.
struct Tally {
    begun: Instant,
    ran: Arc<AtomicUsize>,
}

impl Drop for Tally {
    fn drop(&mut self) {
        println!("{} schedules in {:.1?}", self.ran.load(Ordering::Relaxed), self.begun.elapsed());
    }
}

/// Runs each of `schedules` schedules twice. Panics if the two runs differ, because then something other than the
/// scheduler decides what happens, and a failed schedule could not be run again.
pub(crate) fn replay_each(schedules: usize, test: impl Fn() + Send + Sync + 'static) {
    let scheduler = UncontrolledNondeterminismCheckScheduler::new(RandomScheduler::new(schedules));
    run_under(scheduler, test);
}

fn run_under<S: Scheduler + 'static>(scheduler: S, test: impl Fn() + Send + Sync + 'static) {
    // Pauses tokio's clock, so that a run depends on the schedule alone and not on real time.
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime");
    let _in_its_time = runtime.enter();
    Runner::new(scheduler, config()).run(test);
}

fn config() -> Config {
    let mut config = Config::new();
    config.stack_size = 0x400000;
    config.max_steps = MaxSteps::FailAfter(STEPS_MAX);
    config.silence_warnings = true;
    config.failure_persistence = FailurePersistence::File(Some(env!("CARGO_TARGET_TMPDIR").into()));
    config
}
