//! The names of the metrics. The comment on a name says what the metric measures.

#![cfg_attr(not(feature = "metrics"), allow(dead_code, unreachable_pub, reason = "nothing is measured"))]

/// The number of acquisitions, and of running `try_*` calls, that are neither granted nor given up.
pub const WAITING: &str = "zk_rwlock_waiting";
/// The number of guards that are neither released nor dropped. A guard whose lock is lost counts, too.
pub const HOLDING: &str = "zk_rwlock_holding";

/// The time from asking for a lock until its grant.
pub const ACQUIRE_WAIT_SECONDS: &str = "zk_rwlock_acquire_wait_seconds";
/// The time from the grant until the guard is dropped or released.
pub const HOLD_SECONDS: &str = "zk_rwlock_hold_seconds";
/// The number of other nodes in the directory at a contender's first listing.
pub const QUEUE_LENGTH: &str = "zk_rwlock_queue_length";
/// The number of grants, and of uses of nodes that are kept between uses.
pub const GRANTS: &str = "zk_rwlock_grants_total";
/// The number of `try_*` calls that found the lock taken.
pub const WOULD_BLOCK: &str = "zk_rwlock_would_block_total";
/// The number of acquisitions that timed out.
pub const TIMEOUTS: &str = "zk_rwlock_timeouts_total";
/// The number of held nodes that were lost.
pub const LOSSES: &str = "zk_rwlock_losses_total";
/// The number of nodes that this process now keeps between uses.
pub const KEPT_NODES: &str = "zk_rwlock_kept_nodes";
/// The number of nodes that were kept between uses and then given up.
pub const KEPT_GIVEN_UP: &str = "zk_rwlock_kept_given_up_total";
/// The number of times that the answer to a create was lost, and the created node was found later.
pub const RECOVERIES: &str = "zk_rwlock_recoveries_total";
/// The number of times that a heartbeat was due, which renews the lease of a session.
pub const HEARTBEATS: &str = "zk_rwlock_heartbeats_total";
/// The number of this process's nodes whose removal has begun and is not confirmed yet.
pub const REMOVALS_PENDING: &str = "zk_rwlock_removals_pending";
/// The number of sessions that have begun.
pub const SESSIONS_BEGUN: &str = "zk_rwlock_sessions_begun_total";
/// The number of sessions that are over.
pub const SESSIONS_ENDED: &str = "zk_rwlock_sessions_ended_total";
/// The number of attempts to connect to a server, whether they succeeded or not.
pub const CONNECTION_ATTEMPTS: &str = "zk_rwlock_connection_attempts_total";
/// The time from the loss of a session's connection until the session was connected again. If the session ended first,
/// and this process did not close it, the time until that end.
pub const CONNECTION_BREAK_SECONDS: &str = "zk_rwlock_connection_break_seconds";
/// The number of times that a server did not agree with the leader about a node.
pub const DISAGREEMENTS: &str = "zk_rwlock_disagreements_total";
/// The number of log events that were dropped because too many waited for the subscriber.
pub const EVENTS_DROPPED: &str = "zk_rwlock_events_dropped_total";
