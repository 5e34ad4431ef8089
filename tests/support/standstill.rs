//! A clock that measures for how long the machine stood still. A thread sleeps again and again and notes how late it
//! wakes: a machine that is stopped, suspended or overloaded wakes it late. `support::rounds` uses it to tell a failed
//! test from a failed machine.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// How long the clock's thread sleeps at a time.
const TICK: Duration = Duration::from_millis(10);

/// The span over which delays are added up: on a busy machine a request waits for a core at each of its steps.
const SPAN: Duration = Duration::from_secs(1);

/// Shorter delays are not recorded.
const NOTED: Duration = Duration::from_millis(20);

/// The time since the machine booted. It includes the time in which the machine was suspended.
pub type Moment = Duration;

pub fn now() -> Moment {
    let time = clock_gettime(ClockId::Boottime);
    Duration::try_from(time).expect("after the start")
}

/// The delays that the clock has seen.
#[derive(Debug, Default)]
pub struct Record {
    last: Option<Moment>,
    /// The delays of the last [`SPAN`], with their moments.
    late: VecDeque<(Moment, Duration)>,
    /// The worst delays of each span, with the moment at which the span ended.
    lost: Vec<(Moment, Delays)>,
}

/// How late the clock's thread woke.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Delays {
    /// The sum of the delays within one second.
    pub sum: Duration,
    /// The longest single delay.
    pub longest: Duration,
}

impl Record {
    /// Records that the clock's thread woke at this moment.
    pub fn tick(&mut self, now: Moment) {
        let Some(last) = self.last.replace(now) else { return };
        self.late.push_back((now, now.saturating_sub(last + TICK)));
        // A single delay belongs to one span, however long it is.
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
        // The thread may have to wait for its first core.
        record.tick(now());
        Mutex::new(record)
    };
    RECORD.get_or_init(start).lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts the clock.
pub fn watch() {
    drop(record());
}

/// Returns the most that the machine lost within one second since `then`.
pub fn most_lost_since(then: Moment) -> Delays {
    let asked = now();
    loop {
        let record = record();
        // A delay just before `asked` is known only after the next wake-up.
        if record.last.is_some_and(|last| last > asked) {
            return record.most_lost_since(then);
        }
        drop(record);
        thread::sleep(TICK);
    }
}

/// The first words of a failure that the machine caused. Such a failure is not judged.
pub const STOOD_STILL: &str = "the machine stood still";

/// A single delay that counts as a standstill.
pub const STANDSTILL: Duration = Duration::from_millis(250);

/// The sum of delays within a second on a busy machine: threads wait for a core.
pub const BUSY: Duration = Duration::from_millis(100);

/// Fails a test that did too little within minutes. The message says whether the machine stood still since `since`.
pub fn too_little(since: Moment, what: &str) -> ! {
    let lost = most_lost_since(since).sum;
    assert!(lost < BUSY, "{STOOD_STILL}, for {lost:?} within a second: {what}");
    panic!("{what}");
}

/// A time limit for a wait. A standstill of the machine counts as one short look.
#[derive(Debug)]
pub struct Patience {
    left: Duration,
    looked: Option<Instant>,
}

impl Patience {
    /// How often a waiting task should look.
    pub const LOOK: Duration = Duration::from_millis(20);

    pub fn new(limit: Duration) -> Patience {
        Patience { left: limit, looked: None }
    }

    /// Returns whether the limit is reached, at a look at the moment `now`.
    pub fn is_over(&mut self, now: Instant) -> bool {
        let since = self.looked.replace(now).map_or(Duration::ZERO, |last| now.saturating_duration_since(last));
        self.left = self.left.saturating_sub(since.min(5 * Patience::LOOK));
        self.left.is_zero()
    }
}

/// Work that lasts a given time, and longer if not enough is done by then.
#[derive(Debug)]
pub struct Stint {
    began: Moment,
    lasts: Duration,
}

impl Stint {
    /// The extra time after which work that is not done fails.
    const MOST: Duration = Duration::from_secs(300);

    pub fn begin(lasts: Duration) -> Stint {
        Stint { began: now(), lasts }
    }

    /// Returns whether the work may end. `enough` says whether enough is done. Fails with these words after
    /// [`MOST`](Self::MOST).
    pub fn is_over(&self, enough: bool, what: impl FnOnce() -> String) -> bool {
        let took = now() - self.began;
        if took >= self.lasts && !enough && took >= self.lasts + Self::MOST {
            too_little(self.began, &what());
        }
        took >= self.lasts && enough
    }
}
