//! Random schedules of a simulated [world](crate::world), each from its own seed. A schedule is a list of steps of
//! contenders, faults and servers. The schedules in `corpus/` failed once, and run first.
//!
//! `SCHEDULES` is the number of schedules (`make soak` sets 1,000,000), and `SCHEDULE_SEED` is the seed of the first
//! one. If only `SCHEDULE_SEED` is set, only the schedule of this seed is run, several times. A schedule that fails is
//! made as small as possible, and printed as a file for `corpus/`.

use std::cell::Cell;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, Once};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use crate::world::draw::draw;
use crate::world::plan::Schedule;
use crate::world::run;
use crate::world::shrink::shrunk;

/// The default of `SCHEDULES`.
const SCHEDULES: u64 = 5_000;

/// The number of runs of each schedule in the corpus. The runs differ, because tasks are woken in random order.
const AGAIN: usize = 5;

/// The longest time that is spent to make a failing schedule smaller.
const SHRINKING: Duration = Duration::from_secs(30);

/// The time after which a schedule counts as endless. A schedule takes milliseconds. The limit is far higher, because
/// the machine may stand still.
const ENDLESS: Duration = Duration::from_secs(90);

fn number(variable: &str) -> Option<u64> {
    env::var(variable).ok().map(|number| number.parse().expect("a whole number"))
}

thread_local! {
    /// Whether this thread prints nothing for a panic. Thousands of panics occur while a schedule is made smaller.
    static IS_QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work` without the output of panics.
fn quietly<T>(work: impl FnOnce() -> T) -> T {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !IS_QUIET.get() {
                before(panic);
            }
        }));
    });
    IS_QUIET.set(true);
    let result = work();
    IS_QUIET.set(false);
    result
}

/// Runs a schedule. Returns the message of its failure, or `None` if it succeeds.
fn failure(schedule: &Schedule) -> Option<String> {
    let panic = quietly(|| catch_unwind(AssertUnwindSafe(|| run(schedule)))).err()?;
    let words = panic.downcast_ref::<String>().cloned();
    words.or_else(|| panic.downcast_ref::<&str>().map(|&words| words.to_owned())).or_else(|| Some("a panic".to_owned()))
}

/// Runs the schedule of a seed `runs` times. If a run fails, returns the message and a schedule that also fails, as
/// small as possible, as text.
fn failure_of_seed(seed: u64, runs: usize) -> Option<String> {
    let schedule = draw(seed);
    let failed = |schedule: &Schedule, runs: usize| (0..runs).find_map(|_| failure(schedule));
    let first = failed(&schedule, runs)?;
    let began = Instant::now();
    let small = shrunk(schedule, |smaller| failed(smaller, AGAIN).is_some(), || began.elapsed() < SHRINKING);
    let why = failed(&small, AGAIN).unwrap_or_else(|| format!("{first} (once, and not again)"));
    Some(format!(
        "{why}\nthe schedule, as small as it got, for a file in proptests/corpus:\n{}\nrun it again: SCHEDULE_SEED={seed} cargo \
         test -p zk-rwlock-proptests schedules::",
        written(&small)
    ))
}

/// Returns the schedule in the format of `corpus/`, with one line for each handle and each step.
fn written(schedule: &Schedule) -> String {
    let lines = |lines: Vec<String>| lines.iter().map(|line| format!("\n    {line}")).collect::<Vec<_>>().join(",");
    format!(
        "{{\n  \"finds\": {},\n  \"permits\": {},\n  \"handles\": [{}\n  ],\n  \"handle_of\": {},\n  \"are_blind\": {},\n  \"steps\": [{}\n  ]\n}}",
        json(&schedule.finds),
        schedule.permits,
        lines(schedule.handles.iter().map(json).collect()),
        json(&schedule.handle_of),
        schedule.are_blind,
        lines(schedule.steps.iter().map(json).collect()),
    )
}

fn json(data: &(impl serde::Serialize + ?Sized)) -> String {
    serde_json::to_string(data).expect("plain data")
}

fn corpus() -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let files = fs::read_dir(directory).expect("the corpus").map(|entry| entry.expect("readable").path());
    let mut files: Vec<_> = files.filter(|path| path.extension().is_some_and(|it| it == "json")).collect();
    files.sort();
    files
}

fn read(path: &Path) -> Schedule {
    let text = fs::read_to_string(path).expect("readable");
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Runs the schedules of these seeds on all cores, each `runs` times. Returns the first failure.
fn first_failure(first: u64, schedules: u64, runs: usize) -> Option<String> {
    let (next, failed) = (AtomicU64::new(0), Mutex::new(None));
    let workers = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    if i >= schedules {
                        return;
                    }
                    let seed = first.wrapping_add(i);
                    let watched = Watchdog::watch(seed);
                    let why = failure_of_seed(seed, runs);
                    drop(watched);
                    if let Some(why) = why {
                        // Marks all seeds as taken, so that the other workers stop after this failure.
                        next.store(schedules, Ordering::Relaxed);
                        let after = format!("after {} of {schedules} schedules", i + 1);
                        failed.lock().expect("nothing panics here").get_or_insert(format!("{after}: {why}"));
                    }
                }
            });
        }
    });
    failed.into_inner().expect("nothing panics here")
}

/// A time limit for the schedule of a seed. After [`ENDLESS`] it prints the seed and ends the process.
struct Watchdog(u64);

static WATCHED: Mutex<Vec<(u64, Instant)>> = Mutex::new(Vec::new());

impl Watchdog {
    fn watch(seed: u64) -> Watchdog {
        static DOG: Once = Once::new();
        DOG.call_once(|| {
            thread::spawn(|| {
                loop {
                    thread::sleep(Duration::from_secs(1));
                    let watched = WATCHED.lock().expect("nothing panics here");
                    if let Some((seed, _)) = watched.iter().find(|(_, since)| since.elapsed() > ENDLESS) {
                        eprintln!("the schedule of SCHEDULE_SEED={seed} does not end");
                        std::process::exit(101);
                    }
                }
            });
        });
        WATCHED.lock().expect("nothing panics here").push((seed, Instant::now()));
        Watchdog(seed)
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        WATCHED.lock().expect("nothing panics here").retain(|(seed, _)| *seed != self.0);
    }
}

/// Every schedule passes all checks of the world. At its end every waiter has been granted the lock or its permits, and
/// no node is left.
#[test]
fn every_schedule_keeps_all_promises_and_ends() {
    let began = Instant::now();
    let (first, schedules) = (number("SCHEDULE_SEED"), number("SCHEDULES"));
    let is_one = first.is_some() && schedules.is_none();
    if !is_one {
        for path in corpus() {
            let schedule = read(&path);
            let why = (0..AGAIN).find_map(|_| failure(&schedule));
            assert!(why.is_none(), "{} fails again ({}): {}", path.display(), schedule.finds, why.unwrap_or_default());
        }
    }
    let (schedules, runs) = if is_one { (1, AGAIN) } else { (schedules.unwrap_or(SCHEDULES), 1) };
    // By default the first seed is random, so that each run tries other schedules.
    let first = first.unwrap_or_else(|| RandomState::new().hash_one(schedules));
    if let Some(why) = first_failure(first, schedules, runs) {
        panic!("{why} ({:.1?})", began.elapsed());
    }
    println!(
        "{schedules} schedules, from seed {first} on, in {:.0?}: every promise was kept, and all came to rest",
        began.elapsed()
    );
}

/// Each file in `corpus/` must be a complete schedule, formatted as [`written`] does.
#[test]
fn the_corpus_is_read_back_as_it_was_written() {
    let files = corpus();
    assert!(files.len() >= 6, "{files:?}");
    for path in files {
        let text = fs::read_to_string(&path).expect("readable");
        assert!(!read(&path).finds.is_empty(), "{} has no text in `finds`", path.display());
        assert_eq!(written(&read(&path)), text.trim_end(), "{}", path.display());
    }
}
