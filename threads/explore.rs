//! Runs a test under many schedules, or a failed schedule again.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use shuttle::scheduler::{
    PctScheduler, RandomScheduler, ReplayScheduler, Scheduler, UncontrolledNondeterminismCheckScheduler,
};
use shuttle::{Config, FailurePersistence, MaxSteps, Runner};
use tokio::runtime::Builder;

/// More steps than any schedule needs. A schedule with more has a thread that never ends.
const STEPS_MAX: usize = 200_000;

/// Runs `test` under this many schedules, and then under more for `THREADS_SECONDS`; or under the one schedule in the
/// file that `SCHEDULE` names.
///
/// Half of the schedules draw the next thread at each step. The others give each thread a priority and change a few
/// priorities at random steps. Most faults need few changes, with one thread that runs for long while another one
/// rests.
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

/// Prints at the end how many schedules were run, also after a failure.
struct Tally {
    begun: Instant,
    ran: Arc<AtomicUsize>,
}

impl Drop for Tally {
    fn drop(&mut self) {
        println!("{} schedules in {:.1?}", self.ran.load(Ordering::Relaxed), self.begun.elapsed());
    }
}

/// Runs each of this many schedules twice. The runs differ if anything but the scheduler decides what happens, and then
/// no failed schedule could be run again.
pub(crate) fn replay_each(schedules: usize, test: impl Fn() + Send + Sync + 'static) {
    let scheduler = UncontrolledNondeterminismCheckScheduler::new(RandomScheduler::new(schedules));
    run_under(scheduler, test);
}

fn run_under<S: Scheduler + 'static>(scheduler: S, test: impl Fn() + Send + Sync + 'static) {
    // Time stands still, so that it decides nothing.
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
