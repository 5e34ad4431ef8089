//! A clock that measures for how long the machine stood still. A thread sleeps again and again and measures how late it
//! wakes, because a machine that is stopped, suspended or overloaded wakes it late. `support::rounds` uses the clock to
//! tell a fault of the code from a fault of the machine.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// The time for which the clock's thread sleeps at a time.
const TICK: Duration = Duration::from_millis(10);

/// The time over which delays are added up. On a busy machine each step of a request waits for a core, so many short
/// delays count as much as a long one.
const SPAN: Duration = Duration::from_secs(1);

/// The shortest sum of delays that is recorded.
const NOTED: Duration = Duration::from_millis(20);

/// The time since the machine booted, including the time during which the machine was suspended.
pub type Moment = Duration;

pub fn now() -> Moment {
    let time = clock_gettime(ClockId::Boottime);
    Duration::try_from(time).expect("the boot clock is not negative")
}

/// The delays that the clock has measured.
#[derive(Debug, Default)]
pub struct Record {
    last: Option<Moment>,
    /// The delays of the last [`SPAN`], each with the moment at which the thread woke.
    late: VecDeque<(Moment, Duration)>,
    /// The worst delays within each [`SPAN`], with the moment at which the span ended.
    lost: Vec<(Moment, Delays)>,
}

/// The delays of the clock's thread within one [`SPAN`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Delays {
    /// The sum of the delays.
    pub sum: Duration,
    /// The longest single delay.
    pub longest: Duration,
}

impl Record {
    /// Records that the clock's thread woke at this moment.
    pub fn tick(&mut self, now: Moment) {
        let Some(last) = self.last.replace(now) else { return };
        self.late.push_back((now, now.saturating_sub(last + TICK)));
        // A delay longer than a span belongs as a whole to the span in which it ends.
        while self.late.front().is_some_and(|(then, _)| *then + SPAN < now) {
            self.late.pop_front();
        }
        let late = || self.late.iter().map(|(_, late)| *late);
        let lost = Delays { sum: late().sum(), longest: late().max().unwrap_or_default() };
        match self.lost.last_mut() {
            _ if lost.sum < NOTED => {}
            Some((then, most)) if *then + SPAN >= now => {
                if lost > *most {
                    (*then, *most) = (now, lost);
                }
            }
            _ => self.lost.push((now, lost)),
        }
    }

    /// Returns the worst delays of the spans that ended after `then`.
    pub fn most_lost_since(&self, then: Moment) -> Delays {
        let since = || self.lost.iter().rev().take_while(|(ended, _)| *ended >= then).map(|(_, lost)| *lost);
        let most = |of: fn(Delays) -> Duration| since().map(of).max().unwrap_or_default();
        Delays { sum: most(|lost| lost.sum), longest: most(|lost| lost.longest) }
    }
}

fn record() -> MutexGuard<'static, Record> {
    static RECORD: OnceLock<Mutex<Record>> = OnceLock::new();
    let start = || {
        let run = || {
            loop {
                record().tick(now());
                thread::sleep(TICK);
            }
        };
        thread::Builder::new().name("standstill".to_owned()).spawn(run).expect("a thread");
        let mut record = Record::default();
        // The time until the new thread first runs counts as a delay.
        record.tick(now());
        Mutex::new(record)
    };
    RECORD.get_or_init(start).lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts the clock's thread, if it does not run yet.
pub fn watch() {
    drop(record());
}

/// Returns the worst delays since `then`.
pub fn most_lost_since(then: Moment) -> Delays {
    let asked = now();
    loop {
        let record = record();
        // The thread must wake once more, because a delay just before `asked` is only measured at the thread's next wake-up.
        if record.last.is_some_and(|last| last > asked) {
            return record.most_lost_since(then);
        }
        drop(record);
        thread::sleep(TICK);
    }
}

/// The first words of the message of a failure that the machine caused. Such a failure does not count against the code.
pub const STOOD_STILL: &str = "the machine stood still";

/// The shortest single delay that counts as a standstill.
pub const STANDSTILL: Duration = Duration::from_millis(250);

/// The smallest sum of delays within a second at which a machine counts as busy.
pub const BUSY: Duration = Duration::from_millis(100);

/// Fails a test that did not get enough done within minutes. The message says whether the machine was busy or stood
/// still since `since`.
pub fn too_little(since: Moment, what: &str) -> ! {
    let lost = most_lost_since(since).sum;
    assert!(lost < BUSY, "{STOOD_STILL}, for {lost:?} within a second: {what}");
    panic!("{what}");
}

/// A time limit for a task that checks a condition again and again. The time between two checks counts as at most five
/// times [`StandstillLimit::LOOK`] (100 ms), so a standstill of the machine uses up little of the limit.
#[derive(Debug)]
pub struct StandstillLimit {
    left: Duration,
    looked: Option<Instant>,
}

impl StandstillLimit {
    /// The interval at which a waiting task should check its condition.
    pub const LOOK: Duration = Duration::from_millis(20);

    pub fn new(limit: Duration) -> StandstillLimit {
        StandstillLimit { left: limit, looked: None }
    }

    /// Returns whether the limit is reached. Call it at each check of the condition, with the current time.
    pub fn is_over(&mut self, now: Instant) -> bool {
        let since = self.looked.replace(now).map_or(Duration::ZERO, |last| now.saturating_duration_since(last));
        self.left = self.left.saturating_sub(since.min(5 * StandstillLimit::LOOK));
        self.left.is_zero()
    }
}

/// A time limit for work that must get enough done. The work may last longer than this time if too little is done by
/// then.
#[derive(Debug)]
pub struct Stint {
    began: Moment,
    lasts: Duration,
}

impl Stint {
    /// The longest time that the work may last beyond its given time. If too little is done by then, the work fails.
    const MOST: Duration = Duration::from_secs(200);

    pub fn begin(lasts: Duration) -> Stint {
        Stint { began: now(), lasts }
    }

    /// Returns whether the work may end: the given time is over, and `enough` is true. Fails with the words of `what`
    /// after [`MOST`](Self::MOST).
    pub fn is_over(&self, enough: bool, what: impl FnOnce() -> String) -> bool {
        let took = now() - self.began;
        if took >= self.lasts && !enough && took >= self.lasts + Self::MOST {
            too_little(self.began, &what());
        }
        took >= self.lasts && enough
    }
}
