//! What nobody tells of a kept node: that it was idle for long, that a contender waits all the same, that its own uses wait
//! for long.

use std::convert::Infallible;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::Kept;
use crate::queue::mode::{Aim, Mode};
use crate::queue::turn;
use crate::session::contract::Session;
use crate::session::{listing, retry};

/// How often to look whether a node is idle, at most.
const IDLE_LOOK: Duration = Duration::from_millis(10);

/// How often to look whether a contender waits whose ask was not heard: at most, and at least.
const QUEUE_LOOK: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(600));

/// How often a use is seen waiting before it is warned of.
const LOOKS: u32 = 4;

/// Waits until the node was idle for as long as it may be.
pub(super) async fn is_idle(kept: &Weak<Kept>, session: &Arc<dyn Session>) {
    // Without an idle time, the last use gives the node up by itself.
    if kept.upgrade().is_some_and(|kept| kept.idle.is_zero()) {
        return std::future::pending().await;
    }
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
        let place = hold.map(|hold| (hold.contender(), Arc::clone(hold.queue())));
        let Some((me, directory)) = place else { continue };
        if let Ok(names) = listing::list(session, &directory).await
            && turn::first_kept_out(&me, &session.upkeep().ghosts().without(&directory, &names, Mode::Write)).is_some()
        {
            return;
        }
    }
    std::future::pending().await
}

/// Warns of uses that wait for long for others under this node.
pub(super) async fn warns(kept: &Weak<Kept>, session: &Arc<dyn Session>) -> Infallible {
    // Millions of uses may wait in a second. So none of them has a timer: the first that waits is looked at now and then.
    let mut first = None;
    while let Some(limit) = kept.upgrade().and_then(|kept| kept.warn_waiting) {
        // Without a use that waits, this wakes nobody.
        if first.is_none() {
            Kept::is_crowded(kept).await;
            first = kept.upgrade().and_then(|kept| kept.granted_and_waiting()).map(|(number, ..)| (number, 1));
        }
        if !retry::slept(session, (limit / LOOKS).max(IDLE_LOOK)).await {
            break;
        }
        let Some(kept) = kept.upgrade() else { break };
        let waits = kept.granted_and_waiting();
        first = match (waits, first) {
            (Some((number, mode, _)), Some((before, seen))) if number == before => {
                if seen == LOOKS
                    && let Some(handle) = kept.handle.upgrade()
                {
                    let others = waits.map_or(0, |(_, _, all)| all - 1);
                    handle.warn(Aim::Lock(mode), None, &kept.as_blockers(), others);
                }
                Some((number, seen + 1))
            }
            _ => waits.map(|(number, ..)| (number, 1)),
        };
    }
    std::future::pending().await
}
