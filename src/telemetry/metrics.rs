//! Counters and measurements of this library, for the [`metrics`](https://docs.rs/metrics) facade: install any
//! recorder.
//!
//! | name | kind | unit | labels | meaning |
//! |---|---|---|---|---|
//! | `zk_rwlock_waiting` | gauge | acquisitions | `path`, `mode` | acquisitions of this process that have begun, and are neither granted nor given up; also a `try_*` call while it runs |
//! | `zk_rwlock_holding` | gauge | guards | `path`, `mode` | guards of this process that are neither released nor dropped, also lost ones; a guard of several permits and a leader's term count once; an idle `kept` node does not count |
//! | `zk_rwlock_acquire_wait_seconds` | histogram | seconds | (`path`), `mode` | from asking until granted; of acquisitions that were granted, also by a `kept` node |
//! | `zk_rwlock_hold_seconds` | histogram | seconds | (`path`), `mode` | from the grant until the guard was dropped or its release began, once for each use of a `kept` node; a downgrade ends the hold of one mode and begins that of the other |
//! | `zk_rwlock_queue_length` | histogram | nodes | (`path`), `mode` | other nodes in the directory at a contender's first listing |
//! | `zk_rwlock_grants_total` | counter | | (`path`), `mode`, `kind` | nodes that were granted: `at once` by a listing before any wait, `look` by a listing after a wait, `hand-off` by the predecessor's signal; and `kept`: uses of [kept](crate::RwLockBuilder::keep) nodes. A kept node counts once by how it was granted. Each of its uses, also the first, then counts as `kept` |
//! | `zk_rwlock_would_block_total` | counter | | (`path`), `mode` | `try_*` that found the lock taken; of several locks, for the lock that the error names |
//! | `zk_rwlock_timeouts_total` | counter | | (`path`), `mode` | acquisitions that timed out; of several locks, for the lock that the error names |
//! | `zk_rwlock_losses_total` | counter | | (`path`), `cause` | held nodes that were lost: `session-over`, `lease-ran-out`, `held-too-long`, `removed`, `interfered` |
//! | `zk_rwlock_kept_nodes` | gauge | nodes | (`path`) | nodes that are [kept](crate::RwLockBuilder::keep) now, idle or in use. A node is kept from its grant on, unless another contender has asked for the node before |
//! | `zk_rwlock_kept_given_up_total` | counter | | (`path`), `cause` | kept nodes that were given up: `asked` for by another contender, `idle` for long, `lost`, `closed` with the handle or the client, `replaced` by a node of the other mode, `unsure` because a write of a use may still be carried out |
//! | `zk_rwlock_recoveries_total` | counter | | (`path`) | creates whose answer was lost and whose node was found |
//! | `zk_rwlock_heartbeats_total` | counter | | | times that a heartbeat was due to renew the lease of a session with nodes of ours. A heartbeat is a read, and later a check-only transaction. The answer to the transaction lets the read extend the lease |
//! | `zk_rwlock_removals_pending` | gauge | nodes | | nodes of ours whose removal is not confirmed yet |
//! | `zk_rwlock_sessions_begun_total` | counter | | | sessions that have begun |
//! | `zk_rwlock_sessions_ended_total` | counter | | `cause` | sessions that are over: `expired`, `closed`, `auth-failed`, `replaced`, `failed` |
//! | `zk_rwlock_connection_attempts_total` | counter | | `outcome` | attempts to connect to a server: `connected`, `failed`, `silent` |
//! | `zk_rwlock_connection_break_seconds` | histogram | seconds | | from the loss of a session's connection until it was back, or until the session was over and was not closed by this process |
//! | `zk_rwlock_disagreements_total` | counter | | | times that a server did not agree with the leader about a node: the server was left, or a call failed because no other was left |
//! | `zk_rwlock_events_dropped_total` | counter | | | log events that were dropped, because the subscriber of `tracing` fell behind |
//!
//! `mode` is `read`, `write` or `permit`; `permit` stands for the queue of a [`Semaphore`](crate::Semaphore). Only the
//! gauges `zk_rwlock_waiting` and `zk_rwlock_holding` always have the lock's `path`. Labels in parentheses come with
//! the option [`metrics_by_path`](crate::RwLockBuilder::metrics_by_path), which also bounds their number in a program
//! with very many locks. The other metrics belong to a session or to the process.
//!
//! The recorder has to be a global one. A separate thread reports to it, so a recorder that blocks or panics delays no
//! lock. While the recorder blocks, counters and gauges are summed up. At most 100,000 measurements of histograms wait
//! for the recorder, and later ones are dropped.

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use metrics::{Key, Level, Metadata, Recorder, Unit, describe_counter, describe_gauge, describe_histogram};

use crate::sync::Mutex;
pub use crate::telemetry::names::*;
use crate::telemetry::user_thread::{UserCodeThread, catch_panic};

// A recorder is the user's code, which may block or panic. So the other threads only note the changes, and a separate
// thread reports the changes to the recorder. While it calls the recorder, that thread holds no mutex of the library.
// Only `describe` calls the recorder on the thread of its caller.

/// Describes each metric and its unit to the recorder, and reports the present values of the gauges. Call this function
/// once, after the recorder was installed. This function also creates the counters of losses, of disagreements and of
/// dropped events with the value zero, so that an alert sees the first increase. A lock with
/// [`metrics_by_path`](crate::RwLockBuilder::metrics_by_path) creates its own counters of losses when the lock is
/// built.
///
/// No unit is given for the gauges. Exporters of OpenTelemetry take a gauge whose unit is a plain number for a ratio,
/// and would append `_ratio` to its name.
pub fn describe() {
    describe_gauge!(WAITING, "Acquisitions that wait now");
    describe_gauge!(HOLDING, "Guards that hold now");
    describe_histogram!(ACQUIRE_WAIT_SECONDS, Unit::Seconds, "From asking for a lock until it was granted");
    describe_histogram!(HOLD_SECONDS, Unit::Seconds, "From the grant of a lock until its guard was gone");
    describe_histogram!(QUEUE_LENGTH, Unit::Count, "Other nodes in the directory at a contender's first listing");
    describe_counter!(GRANTS, Unit::Count, "Locks granted");
    describe_counter!(WOULD_BLOCK, Unit::Count, "Attempts that found the lock taken");
    describe_counter!(TIMEOUTS, Unit::Count, "Acquisitions whose time was over first");
    describe_counter!(LOSSES, Unit::Count, "Locks lost while they were held");
    describe_gauge!(KEPT_NODES, "Nodes that are kept between uses now");
    describe_counter!(KEPT_GIVEN_UP, Unit::Count, "Kept nodes that were given up");
    describe_counter!(RECOVERIES, Unit::Count, "Nodes found whose create had lost its answer");
    describe_counter!(HEARTBEATS, Unit::Count, "Heartbeats that were due to renew a lease");
    describe_gauge!(REMOVALS_PENDING, "Nodes whose removal is not confirmed yet");
    describe_counter!(SESSIONS_BEGUN, Unit::Count, "Sessions that have begun");
    describe_counter!(SESSIONS_ENDED, Unit::Count, "Sessions that are over");
    describe_counter!(CONNECTION_ATTEMPTS, Unit::Count, "Attempts to connect to a server");
    describe_histogram!(
        CONNECTION_BREAK_SECONDS,
        Unit::Seconds,
        "From the loss of a session's connection until its return"
    );
    describe_counter!(DISAGREEMENTS, Unit::Count, "Servers found to disagree with the leader");
    describe_counter!(EVENTS_DROPPED, Unit::Count, "Log events dropped because the subscriber fell behind");
    create_zero_counters(LOSS_CAUSES.map(|cause| Key::from_parts(LOSSES, &[("cause", cause)])));
    create_zero_counters([DISAGREEMENTS, EVENTS_DROPPED].map(Key::from_static_name));
    update_pending(|pending| pending.changes.gauges.extend(pending.gauges.clone()));
}

/// The values of the label `cause` of [`LOSSES`].
pub(super) const LOSS_CAUSES: [&str; 5] = ["session-over", "lease-ran-out", "held-too-long", "removed", "interfered"];

/// Creates these counters with the value zero. If a counter starts at one, Prometheus' `increase()` misses the first
/// step.
pub(super) fn create_zero_counters(counters: impl IntoIterator<Item = Key>) {
    update_pending(|pending| counters.into_iter().for_each(|key| _ = pending.changes.counts.entry(key).or_default()));
}

/// How long the metrics thread collects changes before it reports them together.
const COLLECTS_FOR: Duration = Duration::from_millis(20);

/// The maximum number of measurements of histograms that wait for the recorder. Further ones are dropped.
const MEASUREMENTS: usize = 100_000;

static METADATA: Metadata<'static> = Metadata::new("zk_rwlock", Level::INFO, None);

static PENDING: Mutex<PendingMetrics> = Mutex::new(PendingMetrics {
    changes: MetricChanges { counts: BTreeMap::new(), gauges: BTreeMap::new(), measured: Vec::new() },
    gauges: BTreeMap::new(),
    is_collecting: false,
});

static METRICS_THREAD: UserCodeThread = UserCodeThread::new("zk-rwlock-metrics");

struct PendingMetrics {
    changes: MetricChanges,
    /// The value of each gauge that is not zero.
    gauges: BTreeMap<Key, i64>,
    /// Whether the metrics thread was woken and has not taken the changes yet. If so, the thread will also report a new
    /// change, and need not be woken again.
    is_collecting: bool,
}

#[derive(Default)]
struct MetricChanges {
    counts: BTreeMap<Key, u64>,
    gauges: BTreeMap<Key, i64>,
    measured: Vec<(Key, f64)>,
}

impl MetricChanges {
    fn add_measurement(&mut self, key: Key, value: f64) {
        if self.measured.len() < MEASUREMENTS {
            self.measured.push((key, value));
        }
    }

    fn report_to_recorder(self) {
        for (key, by) in self.counts {
            call_recorder(|recorder| recorder.register_counter(&key, &METADATA).increment(by));
        }
        for (key, value) in self.gauges {
            call_recorder(|recorder| recorder.register_gauge(&key, &METADATA).set(value as f64));
        }
        for (key, value) in self.measured {
            call_recorder(|recorder| recorder.register_histogram(&key, &METADATA).record(value));
        }
    }
}

/// Calls the recorder, and catches its panic.
fn call_recorder(report: impl FnOnce(&dyn Recorder)) {
    let _panicked = catch_panic(|| metrics::with_recorder(report));
}

pub(super) fn increment_counter(key: Key) {
    update_pending(|pending| *pending.changes.counts.entry(key).or_default() += 1);
}

pub(super) fn record_measurement(key: Key, value: f64) {
    update_pending(|pending| pending.changes.add_measurement(key, value));
}

/// Adds `by` to a gauge. The recorder gets the new value and not the change, because a recorder that was installed late
/// does not know the earlier changes.
pub(super) fn add_to_gauge(key: Key, by: i64) {
    update_pending(|pending| {
        let value = pending.gauges.get(&key).copied().unwrap_or_default() + by;
        pending.changes.gauges.insert(key.clone(), value);
        match value {
            0 => pending.gauges.remove(&key),
            _ => pending.gauges.insert(key, value),
        };
    });
}

/// Waits until all changes and measurements so far were reported to the recorder. Call this before a program ends, and
/// in tests.
///
/// Changes are collected for 20 ms. If something is still to be reported, this function blocks the thread for the rest
/// of that time, and then for as long as the recorder takes. The recorder must not call this function, because it would
/// wait for itself.
pub fn flush() {
    METRICS_THREAD.flush(Duration::MAX);
}

fn update_pending(what: impl FnOnce(&mut PendingMetrics)) {
    let mut pending = PENDING.lock();
    what(&mut pending);
    // If the metrics thread cannot be started, the changes stay in `pending`, and the next call tries to start the
    // thread again.
    pending.is_collecting = pending.is_collecting || METRICS_THREAD.enqueue(collect_and_report);
}

fn collect_and_report() {
    thread::sleep(COLLECTS_FOR);
    let mut pending = PENDING.lock();
    pending.is_collecting = false;
    let changes = std::mem::take(&mut pending.changes);
    drop(pending);
    changes.report_to_recorder();
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn measurements_beyond_100_000_are_dropped() {
        let mut changes = MetricChanges::default();
        for number in 0..100_010 {
            changes.add_measurement(Key::from_static_name("a_histogram_of_a_test"), f64::from(number));
        }
        assert_eq!(changes.measured.len(), 100_000);
        assert_eq!(changes.measured.last().map(|(_, value)| *value), Some(99_999.0), "later ones are dropped");
    }

    #[test]
    fn one_wake_up_takes_a_thousand_counts() {
        static NAME: &str = "a_counter_of_a_test";
        for _ in 0..1_000 {
            increment_counter(Key::from_static_name(NAME));
        }
        // The metrics thread has one piece of work for all these counts, and perhaps another one for the counts of
        // other tests.
        assert!(METRICS_THREAD.pending_count() <= 2);
        flush();
        assert_eq!(PENDING.lock().changes.counts.get(&Key::from_static_name(NAME)), None, "all counts were reported");
    }
}
