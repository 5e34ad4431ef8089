//! What ends a kept node that nobody has asked for: that it was idle for long, or that a contender waits all the same.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::Kept;
use crate::queue::turn;
use crate::session::contract::Session;
use crate::session::listing;
use crate::session::retry;

/// How often to look whether a node is idle, at most.
const IDLE_LOOK: Duration = Duration::from_millis(10);

/// How often to look whether a contender waits whose ask was not heard: at most, and at least.
const QUEUE_LOOK: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(600));

/// Waits until the node was idle for as long as it may be.
pub(super) async fn is_idle(kept: &Weak<Kept>, session: &Arc<dyn Session>) {
    loop {
        let now = session.lease().now();
        let Some(left) = kept.upgrade().map(|kept| kept.may_idle(now)) else { return };
        if left.is_zero() {
            return;
        }
        // While it is in use, there is no need to look often.
        if !retry::slept(session, left.max(IDLE_LOOK)).await {
            return;
        }
    }
}

/// Waits until a contender waits behind the node. It may not be allowed to ask for it, or its ask may have been lost.
pub(super) async fn is_in_the_way(kept: &Weak<Kept>, session: &Arc<dyn Session>) {
    while let Some(pause) = kept.upgrade().map(|kept| kept.idle.clamp(QUEUE_LOOK.0, QUEUE_LOOK.1)) {
        if !retry::slept(session, pause).await {
            return std::future::pending().await;
        }
        // The hold itself is not kept here: it ends with its last use.
        let hold = kept.upgrade().and_then(|kept| kept.hold());
        let place = hold.map(|hold| (hold.contender().clone(), Arc::clone(hold.ticket().directory())));
        let Some((me, directory)) = place else { continue };
        if let Ok(names) = listing::list(session, &directory).await
            && turn::first_kept_out(&me, &names).is_some()
        {
            return;
        }
    }
    std::future::pending().await
}
