//! Tests of `support::rounds`: it must excuse no fault of the code, and blame no machine that ran well.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::Duration;

use support::process::{Process, role, say};
use support::rounds::Machine::{self, StoodStill, WasBusy, WentOn};
use support::rounds::{VIOLATED, bounded, judge_rounds};
use support::standstill::{BUSY, Delays, Record, STANDSTILL, StandstillLimit, Stint, most_lost_since, now, watch};
use support::{safe, violated};

const TICK: Duration = Duration::from_millis(10);

/// Judges the rounds of a test whose body is `round`, called with the number of the round. Returns the number of
/// rounds, and the message of the failure.
fn judged(machine: Machine, round: impl Fn(usize)) -> (usize, Option<String>) {
    let rounds = Cell::new(0);
    let run = || {
        judge_rounds(&|_| machine, &|_| {
            rounds.set(rounds.get() + 1);
            round(rounds.get());
        });
    };
    let failure = catch_unwind(AssertUnwindSafe(run)).err();
    (rounds.get(), failure.map(|failure| words(&*failure)))
}

fn words(failure: &(dyn Any + Send)) -> String {
    let words = failure.downcast_ref::<String>().cloned();
    words.or_else(|| failure.downcast_ref::<&str>().map(ToString::to_string)).expect("words")
}

#[test]
fn no_round_follows_a_success() {
    for machine in [WentOn, WasBusy, StoodStill] {
        assert_eq!(judged(machine, |_| ()), (1, None));
    }
}

#[test]
fn a_failure_on_a_quiet_machine_is_reported_at_once() {
    assert_eq!(judged(WentOn, |_| panic!("a planted fault")), (1, Some("a planted fault".to_owned())));
}

#[test]
fn a_test_that_hangs_fails_at_its_limit_and_is_not_run_again() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let hangs = |_| runtime.block_on(bounded(10 * TICK, std::future::pending::<()>()));
    let said = "the test hangs: it has not ended after 100ms".to_owned();
    for machine in [WentOn, WasBusy, StoodStill] {
        assert_eq!(judged(machine, hangs), (1, Some(said.clone())));
    }
    assert_eq!(runtime.block_on(bounded(Duration::from_secs(60), async { 7 })), 7);
}

#[test]
fn ten_standstills_are_reported_as_not_judged() {
    let (rounds, said) = judged(StoodStill, |round| panic!("{}", ["the session ended", "no answer"][round % 2]));
    let said = said.expect("the rounds fail");
    assert_eq!(rounds, 10);
    assert!(said.starts_with("the machine stood still: 10 rounds") && said.ends_with("the session ended"), "{said}");
}

#[test]
fn ten_equal_failures_count_despite_standstills() {
    let (rounds, said) = judged(StoodStill, |round| panic!("planted, round {round}"));
    assert_eq!(rounds, 10);
    assert!(said.is_some_and(|said| said.starts_with("planted, round 10\n")));
}

#[test]
fn four_failures_on_a_busy_machine_count() {
    assert_eq!(judged(WasBusy, |round| panic!("planted, round {round}")), (4, Some("planted, round 4".to_owned())));
}

#[test]
fn a_failure_during_a_standstill_is_run_again() {
    for machine in [WasBusy, StoodStill] {
        assert_eq!(judged(machine, |round| assert!(round == 3, "spoilt")), (3, None));
    }
}

#[test]
fn lost_safety_counts_despite_a_standstill() {
    let planted: [&dyn Fn(usize); 4] = [
        &|_| violated!("two hold the lock"),
        &|_| safe!(1 + 1 == 3, "two hold the lock"),
        // The message of a failure in a child process or a task does not begin with `VIOLATED`.
        &|_| panic!("a child says: {VIOLATED}two hold the lock"),
        &|_| {
            let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
            let task = async { tokio::spawn(async { violated!("two hold the lock") }).await };
            runtime.block_on(task).expect("the task ends well")
        },
    ];
    for fault in planted {
        let (rounds, said) = judged(StoodStill, fault);
        assert_eq!(rounds, 1);
        assert!(said.is_some_and(|said| said.contains("safety is lost: two hold the lock")));
    }
}

/// Returns the record of a standstill clock whose thread woke after these pauses, and the time of the last.
fn record(pauses: impl IntoIterator<Item = Duration>) -> (Record, Duration) {
    let (mut record, mut now) = (Record::default(), Duration::from_secs(1_000));
    record.tick(now);
    for pause in pauses {
        now += pause;
        record.tick(now);
    }
    (record, now)
}

#[test]
fn late_timers_are_no_standstill() {
    // Linux wakes a sleeping thread about 60 microseconds late, and sometimes a millisecond.
    let pauses = (0..6_000).map(|tick| TICK + Duration::from_micros(if tick % 100 == 0 { 1_000 } else { 60 }));
    let lost = record(pauses).0.most_lost_since(Duration::ZERO);
    assert!(lost.sum < BUSY / 2 && lost.longest < STANDSTILL / 2, "{lost:?}");
}

#[test]
fn one_long_pause_or_many_short_ones_are_a_standstill() {
    let calm = || std::iter::repeat_n(TICK, 200);
    let stop = Duration::from_secs(3);
    let (stopped, end) = record(calm().chain([stop]).chain(calm()));
    let lost = stop - TICK;
    assert_eq!(stopped.most_lost_since(Duration::ZERO), Delays { sum: lost, longest: lost });
    let (busy, _) = record(calm().chain([2 * TICK; 20]).chain(calm()));
    assert_eq!(busy.most_lost_since(Duration::ZERO), Delays { sum: 20 * TICK, longest: TICK });
    // Only standstills after the given time count, and this standstill ended before it.
    assert_eq!(stopped.most_lost_since(end - 90 * TICK), Delays::default());
}

/// The code under test blocks its runtime. The standstill clock must not take this for a standstill of the machine.
#[support::judged]
async fn a_blocked_runtime_is_no_standstill() {
    watch();
    let blocked = Duration::from_secs(2);
    let began = now();
    thread::sleep(blocked);
    let lost = most_lost_since(began).longest;
    assert!(lost < blocked / 2, "{lost:?} of {blocked:?}");
}

/// A child process that waits, and then reports whether the machine stood still.
#[test]
fn the_child_process_of_other_tests() {
    if role().is_none() {
        return;
    }
    watch();
    let began = now();
    say("goes on");
    while most_lost_since(began).longest < Duration::from_secs(1) {}
    say("stood still");
}

#[test]
fn a_stopped_process_notices_its_standstill() {
    let mut child = Process::start(module_path!(), "be stopped");
    assert_eq!(child.says(), "goes on");
    child.signal("STOP");
    thread::sleep(Duration::from_millis(1_100));
    child.signal("CONT");
    assert_eq!(child.says(), "stood still");
}

#[test]
fn a_wait_counts_a_standstill_as_one_look() {
    let looks = |pauses: &[Duration]| {
        let (mut limit_left, mut now) = (StandstillLimit::new(Duration::from_secs(1)), std::time::Instant::now());
        assert!(!limit_left.is_over(now));
        let mut is_over = pauses.iter().map(|pause| {
            now += *pause;
            limit_left.is_over(now)
        });
        is_over.position(|is_over| is_over)
    };
    let (look, stop) = (StandstillLimit::LOOK, Duration::from_secs(30));
    assert_eq!(looks(&[look; 50]), Some(49));
    assert_eq!(looks(&[&[stop][..], &[look; 44]].concat()), None);
    assert_eq!(looks(&[&[stop][..], &[look; 45]].concat()), Some(45));
}

#[test]
fn a_stint_ends_after_its_time_with_enough_done() {
    let (short, long) = (Stint::begin(Duration::ZERO), Stint::begin(Duration::from_secs(3_600)));
    let nothing = || unreachable!("it has minutes");
    assert!(short.is_over(true, nothing) && !short.is_over(false, nothing));
    assert!(!long.is_over(true, nothing) && !long.is_over(false, nothing));
}
