//! A judge for tests that depend on time, behind `#[support::judged]`. A round is one run of a test. A round that fails
//! while the machine stood still or was very busy is run again.
//!
//! A test succeeds as soon as one round succeeds. It fails if ten rounds fail with the same message. A failure by
//! [`safe!`](crate::safe) or [`violated!`](crate::violated), which report that the lock was not safe, fails the test in
//! any round.

use std::any::Any;
use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;

use super::process;
use super::standstill::{BUSY, Moment, STANDSTILL, STOOD_STILL, StandstillLimit, most_lost_since, now, watch};

/// The largest number of rounds of a test. If a standstill spoils all of them, the test fails without a verdict on the
/// code.
const ROUNDS: usize = 10;

/// The number of failed rounds on a busy machine at which a test fails.
const BUSY_ROUNDS: usize = 4;

/// The number of failed rounds on a busy machine that are run again, in all tests of a process together. Without a
/// limit, a fault of the code that makes many tests fail would run each of them several times.
const BUSY_ROUNDS_OF_ALL: usize = 40;

/// The time before a round in which a standstill still excuses the round's failure, because the standstill may have
/// ended sessions that the round uses.
const SHORTLY: Duration = Duration::from_secs(2);

/// The first words of the message of a failure that no state of the machine excuses.
pub const VIOLATED: &str = "safety is lost: ";

/// The first words of the message of a test that hangs. Such a test is not repeated, because it would hang again.
pub const HANGS: &str = "the test hangs";

/// Panics with [`VIOLATED`] and the given words. No standstill excuses the failure.
#[macro_export]
macro_rules! violated {
    ($($words:tt)*) => {
        panic!("{}{}", $crate::rounds::VIOLATED, format_args!($($words)*))
    };
}

/// Asserts a condition that holds on any machine, however slow. No standstill excuses the failure.
#[macro_export]
macro_rules! safe {
    ($condition:expr $(,)?) => {
        if !$condition {
            $crate::violated!("{}", stringify!($condition))
        }
    };
    ($condition:expr, $($words:tt)*) => {
        if !$condition {
            $crate::violated!($($words)*)
        }
    };
}

/// The settings of a test's tokio runtime.
#[derive(Clone, Copy, Debug)]
pub struct How {
    /// Whether the runtime has worker threads.
    pub has_threads: bool,
    pub worker_threads: Option<usize>,
}

/// The state of the machine during a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Machine {
    WentOn,
    WasBusy,
    StoodStill,
}

/// The return type of a test: `()` or a result.
pub trait Outcome {
    fn check(self);
}

impl Outcome for () {
    fn check(self) {}
}

impl<E: Debug> Outcome for Result<(), E> {
    fn check(self) {
        self.expect("the test succeeds");
    }
}

/// Runs and judges an async test, in a new runtime for each round. A round that lasts for four fifths of
/// `TEST_SECONDS`, if `tests/chapters.sh` has set this variable, hangs, and fails the test.
pub fn judge<F: Future<Output = O>, O: Outcome>(how: How, test: impl Fn() -> F) {
    let limit = std::env::var("TEST_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    let limit = limit.filter(|_| process::role().is_none()).map(|limit: u32| Duration::from_secs(limit.into()) * 4 / 5);
    judge_plain(|| {
        runtime(how).block_on(async {
            match limit {
                Some(limit) => bounded(limit, test()).await,
                None => test().await,
            }
        })
    });
}

/// Awaits the test. Panics with [`HANGS`] after this limit, which counts only while the machine runs.
///
/// A thread measures the limit, because a test may pause the clock of its runtime.
pub async fn bounded<O>(limit: Duration, test: impl Future<Output = O>) -> O {
    let (sender, receiver) = oneshot::channel();
    let mut left = StandstillLimit::new(limit);
    let watches = move || {
        while !sender.is_closed() && !left.is_over(Instant::now()) {
            thread::sleep(StandstillLimit::LOOK);
        }
        let _ = sender.send(());
    };
    thread::Builder::new().name("limit".to_owned()).spawn(watches).expect("a thread");
    tokio::select! {
        biased;
        output = test => output,
        _ = receiver => panic!("{HANGS}: it has not ended after {limit:?}"),
    }
}

/// Runs and judges a test without a runtime.
pub fn judge_plain<O: Outcome>(test: impl Fn() -> O) {
    if process::role().is_some() {
        return test().check();
    }
    let machine = |from| match most_lost_since(from) {
        lost if lost.longest >= STANDSTILL => Machine::StoodStill,
        lost if lost.sum >= BUSY => Machine::WasBusy,
        _ => Machine::WentOn,
    };
    judge_rounds(&machine, &|round| {
        if round.number > 0 {
            eprintln!("the machine was busy or stood still: the round before this one is not judged");
        }
        round.run(|| test().check());
    });
}

/// Runs rounds until one succeeds, or one fails while the machine was neither busy nor standing still. `machine`
/// returns the state of the machine since the given time.
pub fn judge_rounds(machine: &dyn Fn(Moment) -> Machine, run: &dyn Fn(Round)) {
    static BUSY_OF_ALL: AtomicUsize = AtomicUsize::new(0);
    watch();
    let (mut all_said, mut busy) = (Vec::new(), 0);
    for number in 0..ROUNDS {
        let began = now();
        let round = Round { number, ..Round::default() };
        let Err(failure) = catch_unwind(AssertUnwindSafe(|| run(round))) else { return };
        let said = words(&*failure);
        let counts = said.contains(VIOLATED) || said.starts_with(STOOD_STILL) || said.starts_with(HANGS);
        let counts = counts
            || match machine(began.saturating_sub(SHORTLY)) {
                Machine::WentOn => true,
                Machine::WasBusy => {
                    busy += 1;
                    busy == BUSY_ROUNDS || BUSY_OF_ALL.fetch_add(1, Ordering::Relaxed) >= BUSY_ROUNDS_OF_ALL
                }
                Machine::StoodStill => false,
            };
        if counts {
            resume_unwind(failure);
        }
        all_said.push(said);
    }
    let last = all_said.pop().unwrap_or_default();
    // If all rounds failed with the same message, the code is at fault, because a standstill interrupts a test at random
    // places.
    let are_alike = all_said.iter().all(|said| without_digits(said) == without_digits(&last));
    assert!(!are_alike, "{last}\n(in each of {ROUNDS} rounds in a row, in all of which the machine stood still)");
    panic!("{STOOD_STILL}: {ROUNDS} rounds in a row could not be judged; the last one said: {last}");
}

/// Returns the first line without digits, because numbers differ from round to round.
fn without_digits(said: &str) -> String {
    said.lines().next().unwrap_or_default().replace(|letter: char| letter.is_ascii_digit(), "")
}

fn words(failure: &(dyn Any + Send)) -> String {
    let words = failure.downcast_ref::<String>().map(String::as_str).or_else(|| failure.downcast_ref().copied());
    words.unwrap_or("(no words)").to_owned()
}

fn runtime(how: How) -> Runtime {
    let mut builder = if how.has_threads { Builder::new_multi_thread() } else { Builder::new_current_thread() };
    if let Some(number) = how.worker_threads {
        builder.worker_threads(number);
    }
    let round = Round::current();
    builder.enable_all().on_thread_start(move || CURRENT.set(round.clone()));
    builder.build().expect("a runtime")
}

thread_local! {
    static CURRENT: RefCell<Option<Round>> = const { RefCell::new(None) };
}

/// One run of a test. The second and later rounds get new servers instead of those that tests share, because the failed
/// round may have left the shared servers in a bad state.
#[derive(Clone, Default)]
pub struct Round {
    number: usize,
    own: Arc<Mutex<HashMap<usize, Own>>>,
}

/// A value that only this round uses: a `&'static T`, and the function that ends it.
struct Own {
    it: Box<dyn Any + Send>,
    end: Box<dyn FnOnce() + Send>,
}

/// A value that the tests of a process share, such as a server. `end` takes `&self`, because other tests may still
/// refer to the value.
pub trait Ends: Send + Sync + 'static {
    fn end(&self);
}

impl Round {
    fn current() -> Option<Round> {
        CURRENT.with_borrow(Clone::clone)
    }

    fn run(self, test: impl FnOnce()) {
        /// Ends the values of the round when it is dropped, also after a panic.
        struct Leave(Round);
        impl Drop for Leave {
            fn drop(&mut self) {
                CURRENT.set(None);
                let own = std::mem::take(&mut *self.0.own.lock().unwrap_or_else(PoisonError::into_inner));
                own.into_values().for_each(|own| (own.end)());
            }
        }
        CURRENT.set(Some(self.clone()));
        let _leave = Leave(self);
        test();
    }
}

/// Returns the value that all tests of this process share, or, in a second or later round, a value for this round
/// alone.
pub fn shared<T: Ends>(cell: &'static OnceLock<T>, start: impl FnOnce() -> T) -> &'static T {
    let Some(round) = Round::current().filter(|round| round.number > 0) else { return cell.get_or_init(start) };
    let mut own = round.own.lock().unwrap_or_else(PoisonError::into_inner);
    let key = std::ptr::from_ref(cell).addr();
    let own = own.entry(key).or_insert_with(|| {
        let it: &'static T = Box::leak(Box::new(start()));
        Own { it: Box::new(it), end: Box::new(|| it.end()) }
    });
    own.it.downcast_ref::<&'static T>().expect("a cell holds one type")
}
