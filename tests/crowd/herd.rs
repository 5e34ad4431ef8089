//! The requests of a fleet whose clients all reconnect at the same time, counted in virtual time. `make scale` counts a
//! hundred thousand clients.

use std::time::Duration;

use support::fleet::{Capacity, Habits};
use support::storm::{Measured, Storm, World, storm};

const SECOND: Duration = Duration::from_secs(1);

/// The largest fleet that one ensemble should serve: its heartbeats use half of the ensemble's capacity.
const FLEET: World = World {
    processes: 300,
    contenders: 1,
    per_lock: 10,
    is_mixed: true,
    capacity: Capacity { writes: 90, reads: 360, names: 1_000_000 },
    habits: Habits { session_timeout: SECOND.saturating_mul(40), pauses: true },
    seed: 7,
};

/// A quarter of the contenders take a lock, a quarter keep a read lock, a quarter take a permit, and a quarter
/// campaign.
#[tokio::test(start_paused = true)]
async fn clients_come_back_spread_out_after_a_mass_expiry() {
    let Measured { before, peak, longest_wait, back_after, sessions, lost_elsewhere, .. } =
        storm(&FLEET, Storm::Expiry(60 * SECOND)).await;
    assert!((60..120).contains(&before), "{before}");
    assert!(peak < 3 * before, "{peak} requests in a second, and {before} before");
    assert!(longest_wait < SECOND, "a request waited for {longest_wait:?}");
    // The clients are cut off for 60 s. The jitter before they reconnect is at most a quarter of that, 15 s.
    // Reconnecting takes the rest.
    assert!(back_after < 18 * SECOND, "{back_after:?}");
    assert_eq!((sessions, lost_elsewhere), (300, 0));
}

#[tokio::test(start_paused = true)]
async fn leader_changes_and_restarts_cost_no_client_its_lock() {
    for event in [Storm::LeaderChange(2 * SECOND), Storm::RollingRestart(20 * SECOND)] {
        let Measured { longest_wait, sessions, lost, lost_elsewhere, .. } = storm(&FLEET, event).await;
        assert_eq!((sessions, lost, lost_elsewhere), (0, 0, 0), "{event:?}");
        // The session timeout is 40 s, so a reply that is 8 s late ends no lease.
        assert!(longest_wait < 8 * SECOND, "{event:?}: a request waited for {longest_wait:?}");
    }
}
