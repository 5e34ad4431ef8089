//! Tests that are judged only by rounds in which the machine went on: what `#[support::judged]` calls.
//!
//! A round that succeeds is a success. A round that fails is a failure, unless the machine stood still in it or was very busy:
//! then another round follows. What fails in each of some busy rounds is the fault of no machine. Lost safety is a failure in any round: [`safe!`](crate::safe) and [`violated!`](crate::violated) say so.

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

/// So many rounds in a row may be spoilt by a machine that stands still.
const ROUNDS: usize = 10;

/// So many rounds of a test may fail on a busy machine before its failure counts.
const BUSY_ROUNDS: usize = 4;

/// So many rounds of all tests of a process. A fault has more fail, and would have each run again.
const BUSY_ROUNDS_OF_ALL: usize = 40;

/// A machine that stood still shortly before a round may have ended sessions that the round uses.
const SHORTLY: Duration = Duration::from_secs(2);

/// What a failure says of which no machine is to blame.
pub const VIOLATED: &str = "safety is lost: ";

/// Fails with [`VIOLATED`] and these words, which no standstill excuses.
#[macro_export]
macro_rules! violated {
    ($($words:tt)*) => {
        panic!("{}{}", $crate::rounds::VIOLATED, format_args!($($words)*))
    };
}

/// As `assert!`, of what holds on any machine: no standstill excuses its failure.
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

/// How a test is run.
#[derive(Clone, Copy, Debug)]
pub struct How {
    /// Whether its runtime has threads of its own.
    pub has_threads: bool,
    pub worker_threads: Option<usize>,
}

/// What the machine did in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Machine {
    WentOn,
    WasBusy,
    StoodStill,
}

/// What a test returns.
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
        lost if lost.at_once >= STANDSTILL => Machine::StoodStill,
        lost if lost.in_all >= BUSY => Machine::WasBusy,
        _ => Machine::WentOn,
    };
    judge_rounds(&machine, &|round| {
        if round.number > 0 {
            eprintln!("the machine was busy or stood still: the round before this one is not judged");
        }
        round.run(|| test().check());
    });
}

/// Has rounds run until one succeeds, or fails while the machine goes on. It is asked what it did since a moment.
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
    // It takes a fault to have all rounds end in the same way.
    let are_alike = all_said.iter().all(|said| without_digits(said) == without_digits(&last));
    assert!(!are_alike, "{last}\n(in each of {ROUNDS} rounds in a row, in all of which the machine stood still)");
    panic!("{STOOD_STILL}: {ROUNDS} rounds in a row could not be judged; the last one said: {last}");
}

/// The first line, without what differs from round to round.
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

/// One round of a test. One that is run again shares nothing with others, which may have left something behind.
#[derive(Clone, Default)]
pub struct Round {
    number: usize,
    own: Arc<Mutex<HashMap<usize, Own>>>,
}

/// What a round has of its own: a `&'static T`, and how it ends.
struct Own {
    it: Box<dyn Any + Send>,
    end: Box<dyn FnOnce() + Send>,
}

/// What is shared by the tests of a process, and can be ended while they have it.
pub trait Ends: Send + Sync + 'static {
    fn end(&self);
}

impl Round {
    fn current() -> Option<Round> {
        CURRENT.with_borrow(Clone::clone)
    }

    fn run(self, test: impl FnOnce()) {
        /// Leaves the round also if it fails.
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

/// What the tests of this process share, and a round that is run again has for itself.
pub fn shared<T: Ends>(cell: &'static OnceLock<T>, start: impl FnOnce() -> T) -> &'static T {
    let Some(round) = Round::current().filter(|round| round.number > 0) else { return cell.get_or_init(start) };
    let mut own = round.own.lock().unwrap_or_else(PoisonError::into_inner);
    let key = std::ptr::from_ref(cell).addr();
    let own = own.entry(key).or_insert_with(|| {
        let it: &'static T = Box::leak(Box::new(start()));
        Own { it: Box::new(it), end: Box::new(|| it.end()) }
    });
    own.it.downcast_ref::<&'static T>().expect("one kind of thing in one place")
}
