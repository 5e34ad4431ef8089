//! The names of what is counted and measured.

#![cfg_attr(not(feature = "metrics"), allow(dead_code, unreachable_pub, reason = "nothing is measured"))]

/// Acquisitions that wait now.
pub const WAITING: &str = "zk_rwlock_waiting";
/// Guards that hold now.
pub const HOLDING: &str = "zk_rwlock_holding";

/// From asking until granted.
pub const ACQUIRE_WAIT_SECONDS: &str = "zk_rwlock_acquire_wait_seconds";
/// From the grant until the guard is dropped or released.
pub const HOLD_SECONDS: &str = "zk_rwlock_hold_seconds";
/// How many other nodes are in the directory at the first listing of a contender.
pub const QUEUE_LENGTH: &str = "zk_rwlock_queue_length";
/// Grants.
pub const GRANTS: &str = "zk_rwlock_grants_total";
/// `try_*` that found the lock taken.
pub const WOULD_BLOCK: &str = "zk_rwlock_would_block_total";
/// Acquisitions whose time was over first.
pub const TIMEOUTS: &str = "zk_rwlock_timeouts_total";
/// Held nodes that were lost.
pub const LOSSES: &str = "zk_rwlock_losses_total";
/// Nodes that are kept between uses now.
pub const KEPT_NODES: &str = "zk_rwlock_kept_nodes";
/// Kept nodes that were given up.
pub const KEPT_GIVEN_UP: &str = "zk_rwlock_kept_given_up_total";
/// Creates whose answer was lost and whose node was found.
pub const RECOVERIES: &str = "zk_rwlock_recoveries_total";
/// Heartbeats that were sent to renew a lease.
pub const HEARTBEATS: &str = "zk_rwlock_heartbeats_total";
/// Nodes whose removal is not confirmed yet.
pub const REMOVALS_PENDING: &str = "zk_rwlock_removals_pending";
