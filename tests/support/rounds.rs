//! The judge of tests on a busy machine, behind `#[support::judged]`: a round that fails while the machine stood still
//! or was very busy is run again. Use it for each test that depends on time.
//!
//! A round that succeeds is a success, and ten failed rounds with the same message are a failure. Lost safety is a
//! failure in any round: [`safe!`](crate::safe) and [`violated!`](crate::violated) report it.

use std::any::Any;
use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};

use super::process;
use super::standstill::{BUSY, Moment, STANDSTILL, STOOD_STILL, most_lost_since, now, watch};

/// The number of rounds in a row that a standstill may spoil.
const ROUNDS: usize = 10;

/// The number of rounds of a test that may fail on a busy machine before a failure counts.
const BUSY_ROUNDS: usize = 4;

/// The number of rounds that may fail on a busy machine in all tests of a process together. A real fault makes more
/// rounds fail, and each would be run again.
const BUSY_ROUNDS_OF_ALL: usize = 40;

/// A standstill shortly before a round may have ended sessions that the round uses.
const SHORTLY: Duration = Duration::from_secs(2);

/// The first words of a failure that no machine excuses.
pub const VIOLATED: &str = "safety is lost: ";

/// Fails with [`VIOLATED`] and these words. No standstill excuses the failure.
#[macro_export]
macro_rules! violated {
    ($($words:tt)*) => {
        panic!("{}{}", $crate::rounds::VIOLATED, format_args!($($words)*))
    };
}

/// Asserts what holds on any machine. No standstill excuses a failure.
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

/// The runtime of a test.
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

/// The return type of a test.
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

/// Judges a test that needs a runtime.
pub fn judge<F: Future<Output = O>, O: Outcome>(how: How, test: impl Fn() -> F) {
    judge_plain(|| runtime(how).block_on(test()));
}

/// Judges a test.
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

/// Runs rounds until one succeeds, or fails on a quiet machine. `machine` gives the state of the machine since a
/// moment.
pub fn judge_rounds(machine: &dyn Fn(Moment) -> Machine, run: &dyn Fn(Round)) {
    static BUSY_OF_ALL: AtomicUsize = AtomicUsize::new(0);
    watch();
    let (mut all_said, mut busy) = (Vec::new(), 0);
    for number in 0..ROUNDS {
        let began = now();
        let round = Round { number, ..Round::default() };
        let Err(failure) = catch_unwind(AssertUnwindSafe(|| run(round))) else { return };
        let said = words(&*failure);
        let counts = said.contains(VIOLATED) || said.starts_with(STOOD_STILL);
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
    // A machine does not make all rounds fail with the same message.
    let are_alike = all_said.iter().all(|said| without_digits(said) == without_digits(&last));
    assert!(!are_alike, "{last}\n(in each of {ROUNDS} rounds in a row, in all of which the machine stood still)");
    panic!("{STOOD_STILL}: {ROUNDS} rounds in a row could not be judged; the last one said: {last}");
}

/// Returns the first line, without the digits, which differ from round to round.
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

/// One round of a test. A repeated round shares nothing with other tests, which may have left something behind.
#[derive(Clone, Default)]
pub struct Round {
    number: usize,
    own: Arc<Mutex<HashMap<usize, Own>>>,
}

/// A value that belongs to this round: a `&'static T`, and how it ends.
struct Own {
    it: Box<dyn Any + Send>,
    end: Box<dyn FnOnce() + Send>,
}

/// A value that the tests of a process share, and that can be ended while they use it.
pub trait Ends: Send + Sync + 'static {
    fn end(&self);
}

impl Round {
    fn current() -> Option<Round> {
        CURRENT.with_borrow(Clone::clone)
    }

    fn run(self, test: impl FnOnce()) {
        /// Leaves the round also after a panic.
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

/// Returns the value that the tests of this process share. A repeated round gets a value of its own.
pub fn shared<T: Ends>(cell: &'static OnceLock<T>, start: impl FnOnce() -> T) -> &'static T {
    let Some(round) = Round::current().filter(|round| round.number > 0) else { return cell.get_or_init(start) };
    let mut own = round.own.lock().unwrap_or_else(PoisonError::into_inner);
    let key = std::ptr::from_ref(cell).addr();
    let own = own.entry(key).or_insert_with(|| {
        let it: &'static T = Box::leak(Box::new(start()));
        Own { it: Box::new(it), end: Box::new(|| it.end()) }
    });
    own.it.downcast_ref::<&'static T>().expect("a place holds one type")
}
