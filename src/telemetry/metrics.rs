//! What this library counts and measures, for the [`metrics`](https://docs.rs/metrics) facade: install any recorder.
//!
//! | name | kind | unit | labels | what |
//! |---|---|---|---|---|
//! | `zk_rwlock_waiting` | gauge | acquisitions | `path`, `mode` | acquisitions of this process that were asked for, and neither granted nor given up; a `try_*`, too, while it asks |
//! | `zk_rwlock_holding` | gauge | guards | `path`, `mode` | guards of this process that are neither released nor dropped, a guard of several permits and a term of a leader once; one that was lost until it is dropped; not a `kept` node that is idle |
//! | `zk_rwlock_acquire_wait_seconds` | histogram | seconds | `mode` | from asking until granted; of acquisitions that were granted, also by a `kept` node |
//! | `zk_rwlock_hold_seconds` | histogram | seconds | `mode` | from the grant until the guard was dropped or its release began, once for each use of a `kept` node; a downgrade ends the hold of one mode and begins that of the other |
//! | `zk_rwlock_queue_length` | histogram | nodes | `mode` | other nodes in the directory at the first listing of a contender that entered |
//! | `zk_rwlock_grants_total` | counter | | `mode`, `kind` | nodes that were granted: `at once` by the first listing, `look` by a later listing, `hand-off` by the predecessor's signal; and `kept`: uses of [kept](crate::RwLockBuilder::keep) nodes. A kept node is counted by how it was granted, and each of its uses as `kept`, the first one too |
//! | `zk_rwlock_would_block_total` | counter | | `mode` | `try_*` that found the lock taken; of several locks, for the lock that the error names |
//! | `zk_rwlock_timeouts_total` | counter | | `mode` | acquisitions whose time was over first; of several locks, for the lock that the error names |
//! | `zk_rwlock_losses_total` | counter | | `cause` | held nodes that were lost: `session-over`, `lease-ran-out`, `held-too-long`, `removed`, `interfered` |
//! | `zk_rwlock_kept_nodes` | gauge | nodes | | nodes that are [kept](crate::RwLockBuilder::keep) now, idle or in use. A node is kept from its grant on, unless it was asked for before |
//! | `zk_rwlock_kept_given_up_total` | counter | | `cause` | kept nodes that were given up: `asked` for by another contender, `idle` for long, `lost`, `closed` with the handle or the client, `replaced` by a node of the other mode, `unsure` because a write of a use may yet be carried out |
//! | `zk_rwlock_recoveries_total` | counter | | | creates whose answer was lost and whose node was found |
//! | `zk_rwlock_heartbeats_total` | counter | | | heartbeats that were sent to renew the lease of a session with nodes of ours: a read, and the check-only transaction by which the read counts |
//! | `zk_rwlock_removals_pending` | gauge | nodes | | nodes of ours whose removal is not confirmed yet |
//!
//! `mode` is `read`, `write` or `permit`; with `permit`, the queue is that of a [`Semaphore`](crate::Semaphore). Only the two gauges
//! of what is now have the lock's `path`. A program with very many locks may filter them out before its recorder.
//!
//! The recorder has to be a global one. It is called by a thread of its own, and may block or panic: that holds up no lock. What it
//! has not taken yet is summed up meanwhile; of a histogram's measurements 100,000 wait for it, and later ones are dropped.

use metrics::{Key, Unit, describe_counter, describe_gauge, describe_histogram};

pub use crate::telemetry::names::*;
use crate::telemetry::recorder;

/// Tells the recorder what each name means, its unit, and what the gauges show by then. Call it once, after the recorder was
/// installed: before a loss is counted, its counters are there with zero, so that an alert sees the first one.
///
/// The gauges have no unit, because exporters of OpenTelemetry take a plain number for a share, and append `_ratio` to the name.
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
    describe_counter!(HEARTBEATS, Unit::Count, "Heartbeats sent to renew a lease");
    describe_gauge!(REMOVALS_PENDING, "Nodes whose removal is not confirmed yet");
    // A counter that begins at one hides its first step from an `increase()`.
    let causes = ["session-over", "lease-ran-out", "held-too-long", "removed", "interfered"];
    recorder::begin(causes.map(|cause| Key::from_parts(LOSSES, &[("cause", cause)])));
}

/// Waits until the recorder has been told all that was counted so far. For a program that ends, and for tests.
///
/// Blocks the thread, for as long as the recorder takes. Not for the recorder itself, which would wait for its own end.
pub fn flush() {
    recorder::flush();
}
