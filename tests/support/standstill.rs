//! How long the machine stood still: a clock beside the tests, which asks again and again whether it was woken in time.
//!
//! A machine that is stopped, suspended or so busy that threads wait for a core wakes it too late.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// How long the clock sleeps at a time.
const TICK: Duration = Duration::from_millis(10);

/// What was lost is added up over so long: on a busy machine a request waits for a core at every step of its way.
const SPAN: Duration = Duration::from_secs(1);

/// Less is not noted.
const NOTED: Duration = Duration::from_millis(20);

/// A moment of the clock: the time since the machine was started, in which it also counts for how long it was suspended.
pub type Moment = Duration;

pub fn now() -> Moment {
    let time = clock_gettime(ClockId::Boottime);
    Duration::try_from(time).expect("after the start")
}

/// What the clock has seen.
#[derive(Debug, Default)]
pub struct Record {
    last: Option<Moment>,
    /// By how much it was woken too late within the last [`SPAN`], and when.
    late: VecDeque<(Moment, Duration)>,
    /// What was lost in a span, and the moment at which that span ended: the worst of each.
    lost: Vec<(Moment, Lost)>,
}

/// How much later the clock was woken than it should have been.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lost {
    /// In all, within a second.
    pub in_all: Duration,
    /// The longest of the times.
    pub at_once: Duration,
}

impl Record {
    /// The clock was woken at this moment.
    pub fn tick(&mut self, now: Moment) {
        let Some(last) = self.last.replace(now) else { return };
        self.late.push_back((now, now.saturating_sub(last + TICK)));
        // What was lost at once is lost within one span, however long it took.
        while self.late.front().is_some_and(|(then, _)| *then + SPAN < now) {
            self.late.pop_front();
        }
        let late = || self.late.iter().map(|(_, late)| *late);
        let lost = Lost { in_all: late().sum(), at_once: late().max().unwrap_or_default() };
        match self.lost.last_mut() {
            _ if lost.in_all < NOTED => {}
            Some((then, most)) if *then + SPAN >= now => {
                if lost > *most {
                    (*then, *most) = (now, lost);
                }
            }
            _ => self.lost.push((now, lost)),
        }
    }

    /// The most that was lost within one span that ended since then.
    pub fn most_lost_since(&self, then: Moment) -> Lost {
        let since = || self.lost.iter().rev().take_while(|(ended, _)| *ended >= then).map(|(_, lost)| *lost);
        let most = |of: fn(Lost) -> Duration| since().map(of).max().unwrap_or_default();
        Lost { in_all: most(|lost| lost.in_all), at_once: most(|lost| lost.at_once) }
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

/// Has the clock run from now on.
pub fn watch() {
    drop(record());
}

/// The most that the machine lost within one second that ended since then.
pub fn most_lost_since(then: Moment) -> Lost {
    let asked = now();
    loop {
        let record = record();
        // What came just before is known only when the clock was woken after it.
        if record.last.is_some_and(|last| last > asked) {
            return record.most_lost_since(then);
        }
        drop(record);
        thread::sleep(TICK);
    }
}

/// What a failure begins with of which the machine is to blame: it is not judged.
pub const STOOD_STILL: &str = "the machine stood still";

/// So late at once is a machine that stood still.
pub const STANDSTILL: Duration = Duration::from_millis(250);

/// So late in all, within a second, is a machine on which threads wait for a core.
pub const BUSY: Duration = Duration::from_millis(100);

/// Ends a test in which too little was done in minutes, since then. It says whether the machine stood still.
pub fn too_little(since: Moment, what: &str) -> ! {
    let lost = most_lost_since(since).in_all;
    assert!(lost < BUSY, "{STOOD_STILL}, for {lost:?} within a second: {what}");
    panic!("{what}");
}

/// For how long something is waited for: a time in which the machine stood still counts for little.
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

    /// Whether it is at its end, at this moment of a look.
    pub fn is_over(&mut self, now: Instant) -> bool {
        let since = self.looked.replace(now).map_or(Duration::ZERO, |last| now.saturating_duration_since(last));
        self.left = self.left.saturating_sub(since.min(5 * Patience::LOOK));
        self.left.is_zero()
    }
}

/// Work that goes on for a time, and then until enough is done.
#[derive(Debug)]
pub struct Stint {
    began: Moment,
    lasts: Duration,
}

impl Stint {
    /// What could not be done in such a time is not going to be.
    const MOST: Duration = Duration::from_secs(300);

    pub fn begin(lasts: Duration) -> Stint {
        Stint { began: now(), lasts }
    }

    /// Whether the work may end, of which enough is done or not. If that takes minutes, it fails with these words.
    pub fn is_over(&self, enough: bool, what: impl FnOnce() -> String) -> bool {
        let took = now() - self.began;
        if took >= self.lasts && !enough && took >= self.lasts + Self::MOST {
            too_little(self.began, &what());
        }
        took >= self.lasts && enough
    }
}
