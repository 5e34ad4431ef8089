//! What the user's recorder is yet to be told, and the thread that tells it.
//!
//! A recorder is the user's code: it may wait for a lock, take long, or panic. So what is counted is only noted here, and one
//! thread, which then holds no lock and does nothing else, calls the recorder. However long that takes, nothing is lost but
//! measurements beyond a limit: counters and gauges are summed up meanwhile.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::{Duration, Instant};

use metrics::{Key, Level, Metadata, Recorder};

use crate::sync::{Condvar, Mutex};

/// So long the thread gathers news before it tells them: one wake-up serves them all. In a unit test only `flush` ends that.
const GATHERS: Duration = if cfg!(test) { Duration::from_secs(3_600) } else { Duration::from_millis(20) };

/// How many measurements wait for the recorder at most.
const MEASUREMENTS: usize = 100_000;

static METADATA: Metadata<'static> = Metadata::new("zk_rwlock", Level::INFO, None);

static UNTOLD: Mutex<Untold> = Mutex::new(Untold {
    news: Measurement { counts: BTreeMap::new(), gauges: BTreeMap::new(), measured: Vec::new() },
    gauges: BTreeMap::new(),
    has_thread: false,
    is_awaited: false,
    taken: 0,
    told: 0,
});

/// There is something to tell, or all of it was told.
static CHANGED: Condvar = Condvar::new();

struct Untold {
    news: Measurement,
    /// What each gauge shows, unless it is zero.
    gauges: BTreeMap<Key, i64>,
    has_thread: bool,
    /// Somebody waits until all is told.
    is_awaited: bool,
    /// How often the thread has taken the news, and how often it has told them.
    taken: u64,
    told: u64,
}

#[derive(Default)]
struct Measurement {
    counts: BTreeMap<Key, u64>,
    gauges: BTreeMap<Key, i64>,
    measured: Vec<(Key, f64)>,
}

impl Measurement {
    fn is_empty(&self) -> bool {
        self.counts.is_empty() && self.gauges.is_empty() && self.measured.is_empty()
    }

    fn tell(self) {
        for (key, by) in self.counts {
            call(|recorder| recorder.register_counter(&key, &METADATA).increment(by));
        }
        for (key, value) in self.gauges {
            call(|recorder| recorder.register_gauge(&key, &METADATA).set(value as f64));
        }
        for (key, value) in self.measured {
            call(|recorder| recorder.register_histogram(&key, &METADATA).record(value));
        }
    }
}

/// A recorder that panics misses what it was told, and nothing else happens.
fn call(tell: impl FnOnce(&dyn Recorder)) {
    let _panicked = catch_unwind(AssertUnwindSafe(|| metrics::with_recorder(tell)));
}

pub(super) fn count(key: Key) {
    note(|untold| *untold.news.counts.entry(key).or_default() += 1);
}

pub(super) fn measure(key: Key, value: f64) {
    note(|untold| {
        if untold.news.measured.len() < MEASUREMENTS {
            untold.news.measured.push((key, value));
        }
    });
}

/// Changes what a gauge shows. The recorder is told the sum and not the change, which it may have missed the first of.
pub(super) fn raise(key: Key, by: i64) {
    note(|untold| {
        let value = untold.gauges.get(&key).copied().unwrap_or_default() + by;
        untold.news.gauges.insert(key.clone(), value);
        match value {
            0 => untold.gauges.remove(&key),
            _ => untold.gauges.insert(key, value),
        };
    });
}

/// There is a recorder now: it is told of these counters before they count, and of what the gauges show already.
pub(super) fn begin(counters: impl IntoIterator<Item = Key>) {
    note(|untold| {
        counters.into_iter().for_each(|key| _ = untold.news.counts.entry(key).or_default());
        untold.news.gauges.extend(untold.gauges.clone());
    });
}

/// Waits until the recorder was told everything that was noted before.
pub(super) fn flush() {
    let mut untold = UNTOLD.lock();
    untold.is_awaited = !untold.news.is_empty();
    let awaited = untold.taken + u64::from(untold.is_awaited);
    CHANGED.notify_all();
    while untold.has_thread && untold.told < awaited {
        untold = CHANGED.wait(untold);
    }
}

fn note(what: impl FnOnce(&mut Untold)) {
    let mut untold = UNTOLD.lock();
    if !untold.has_thread {
        let thread = thread::Builder::new().name("zk-rwlock-metrics".to_owned());
        // Without a thread the news wait for the next try.
        untold.has_thread = thread.spawn(tell).is_ok();
    }
    let is_first = untold.news.is_empty();
    what(&mut untold);
    drop(untold);
    if is_first {
        CHANGED.notify_all();
    }
}

fn tell() {
    let mut untold = UNTOLD.lock();
    loop {
        while untold.news.is_empty() {
            untold = CHANGED.wait(untold);
        }
        let end = Instant::now() + GATHERS;
        while !untold.is_awaited && Instant::now() < end {
            untold = CHANGED.wait_at_most(end.saturating_duration_since(Instant::now()), untold);
        }
        untold.is_awaited = false;
        let news = std::mem::take(&mut untold.news);
        untold.taken += 1;
        drop(untold);
        news.tell();
        untold = UNTOLD.lock();
        untold.told = untold.taken;
        CHANGED.notify_all();
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn the_thread_takes_a_thousand_counts_at_once() {
        static NAME: &str = "a_counter_of_a_test";
        let taken = || {
            flush();
            UNTOLD.lock().taken
        };
        count(Key::from_static_name(NAME));
        let before = taken();
        for _ in 0..1_000 {
            count(Key::from_static_name(NAME));
        }
        assert_eq!(taken(), before + 1);
        assert_eq!(UNTOLD.lock().news.counts.get(&Key::from_static_name(NAME)), None, "all were told");
    }
}
