//! Keeps one session alive by heartbeats until the session is over. Also watches the nodes that this library has
//! created on the session, and starts the checks of hand-offs. After a reconnect, removes the nodes of late creates
//! (creates that were carried out after their owner had left). A backend spawns [`keep_alive`] for each session.

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::OptionFuture;

use crate::session::contract::Session;
use crate::session::hand_off;
use crate::session::lease::Moment;
use crate::session::node::Node;
use crate::session::presence::{self, existence_check};
use crate::session::removal::remove_late_nodes;
use crate::session::request::Failure;
use crate::session::retry::{RetryBudget, run_until, spawn_cancellable};
use crate::session::store::SessionStore;
use crate::session::watch::watch_own_nodes;
use crate::telemetry::log::emit;
use crate::telemetry::{meter, names};

/// Keeps a session alive, and watches the nodes that this library has created on it, until the session is over. A
/// backend spawns this once for each session, on the thread of the sessions.
///
/// A watch on a node is requested after the node has existed for `grace`, and before it has existed for twice that
/// time, unless its owner has left it by then. So a hold shorter than `grace` costs no watch. A waiter requests the
/// watch on its own node itself, before it waits.
///
/// While the session has nodes, a read is sent usually every fifth of the session timeout. One [settling
/// time](crate::coordinator::Lease::with_tick_time) later, a transaction follows that only checks nodes. The answer to
/// this transaction lets the read extend the lease. While the session has no node, only the read is sent, every quarter
/// of the timeout, and the answer to the next create lets the read extend the lease. But if reads alone [do not keep
/// the session alive](Session::is_kept_alive_by_reads), a transaction is sent even without nodes. In [steady
/// mode](SessionStore::set_endless), neither the reads nor the transactions are sent.
pub async fn keep_alive(session: Weak<dyn Session>, grace: Duration) {
    let Some(store) = session.upgrade().map(|session| Arc::clone(session.store())) else {
        return;
    };
    tokio::join!(watch_and_check_until_over(&session, &store, grace), renew_lease_until_over(&session, &store));
}

async fn watch_and_check_until_over(session: &Weak<dyn Session>, store: &SessionStore, grace: Duration) {
    let mut more = false;
    loop {
        if !more {
            store.unwatched.wake.notified().await;
        }
        let pause = session.upgrade().filter(|_| !grace.is_zero()).map(|session| session.sleep(grace));
        OptionFuture::from(pause).await;
        let Some(session) = session.upgrade().filter(|_| !store.is_over()) else {
            return;
        };
        let unwatched;
        (unwatched, more) = store.unwatched.take_due(grace);
        if !unwatched.is_empty() {
            session.spawn(Box::pin(watch_own_nodes(Arc::clone(&session), unwatched)));
        }
        for path in store.begin_hand_off_checks() {
            session.spawn(Box::pin(hand_off::check_hand_off(Arc::downgrade(&session), path)));
        }
    }
}

impl SessionStore {
    /// Records when the renewal of the lease runs next. Returns `false` if the caller planned for a session without
    /// nodes (`is_idle`) and a node was added since. The caller must then plan again.
    fn record_next_renewal(&self, at: Moment, is_idle: bool) -> bool {
        let mut record = self.record.lock();
        record.renewal = at;
        !is_idle || record.nodes.is_empty()
    }

    /// Returns the nodes that a heartbeat checks, with their paths: all nodes that are held and not lost. If there are
    /// no such nodes, returns one other node. Leaves out nodes that are being replaced.
    fn nodes_to_check(&self) -> Vec<(Arc<Node>, String)> {
        let record = self.record.lock();
        let standing = |node: &Arc<Node>| Some((Arc::clone(node), node.path_if_in_place()?));
        // A lost node is not checked together with others, because a transaction fails at the first missing node, and
        // does not show whether the nodes after it exist.
        let holding = record.nodes.values().filter(|node| node.is_held());
        let mut chosen: Vec<_> = holding.filter_map(standing).collect();
        if chosen.is_empty() {
            chosen.extend(record.nodes.values().find_map(standing));
        }
        chosen
    }
}

async fn renew_lease_until_over(session: &Weak<dyn Session>, store: &Arc<SessionStore>) {
    let lease = store.lease();
    // The handshake that created the session has extended the lease, so no heartbeat is due yet. The loop below sets
    // the first heartbeat to one period from now.
    let mut due = Moment::MAX;
    let mut is_lapse_reported = true;
    // The number of the connection on which nodes of late creates (carried out after their owner had left) were last
    // searched for, and the handle of that search. The first connection needs no search. Dropping the handle cancels
    // the search.
    let mut swept = (store.connection_number(), None);
    loop {
        let woken = store.renewal_wake.notified();
        let Some(live) = session.upgrade().filter(|_| !store.is_over()) else {
            return;
        };
        let left = lease.remaining();
        // Once the lease has run out, the loss of every hold is recorded, and the tasks that wait for a loss are woken.
        if left.is_none() && !std::mem::replace(&mut is_lapse_reported, true) {
            store.detect_all_losses();
        }
        is_lapse_reported &= left.is_none();
        let (now, is_endless) = (lease.now(), lease.is_endless());
        let is_idle = store.has_no_nodes();
        let period = if is_idle { lease.nodeless_read_period() } else { lease.heartbeat_period() };
        due = due.min(now + period);
        if !lease.is_connected() {
            // The connection is lost. The reconnect wakes this loop. A session with nodes needs a heartbeat right after
            // the reconnect. A session without nodes does not, because the handshake of the reconnect was itself a
            // request of the session.
            due = if is_idle { Moment::MAX } else { now };
        } else if due <= now && !is_endless {
            due = now + period;
            live.spawn(Box::pin(send_heartbeat(Weak::clone(session), Arc::clone(store))));
        }
        // The search for late creates starts after the heartbeat, so that the heartbeat does not wait for the listings.
        if lease.is_connected() && swept.0 != store.connection_number() {
            swept = (store.connection_number(), Some(spawn_cancellable(&live, remove_late_nodes(Arc::clone(&live)))));
        }
        if is_endless {
            drop(live);
            woken.await;
            continue;
        }
        // If the session's first node was added meanwhile, this loop plans again, because a session with nodes needs
        // heartbeats more often.
        if !store.record_next_renewal(due, is_idle) {
            continue;
        }
        let nap = if lease.is_connected() { due - now } else { live.timeout() };
        let nap = nap.min(left.unwrap_or(nap));
        let pause = live.sleep(nap);
        drop(live);
        run_until(pause, woken).await;
    }
}

/// Sends a read, waits for the settling time after the answer, and then calls [`check_own_nodes`], so that the read
/// extends the lease. The read is left out if a request that was sent shortly before is answered already. The check is
/// left out if a recent request has extended the lease already, or if the read's answer or the connection is lost.
async fn send_heartbeat(session: Weak<dyn Session>, store: Arc<SessionStore>) {
    let lease = store.lease();
    let Some(live) = session.upgrade() else { return };
    if !store.has_no_nodes() {
        meter::increment_counter(names::HEARTBEATS, None, &[]);
    }
    let soon = live.timeout() / 20;
    let touched = lease.now();
    let touch = (lease.since_touch() > soon).then(|| live.data("/"));
    drop(live);
    if let Some(Err(Failure::Unknown(_) | Failure::Over(_))) = OptionFuture::from(touch).await {
        return;
    }
    let Some(pause) = session.upgrade().map(|session| session.sleep(lease.settling_time())) else { return };
    pause.await;
    // If another operation has already let a recent request extend the lease, no check is needed.
    if let Some(live) = session.upgrade().filter(|_| !lease.has_been_extended_since(touched.saturating_sub(soon)))
        && lease.is_connected()
    {
        check_own_nodes(&live).await;
    }
}

/// Checks that the nodes of `nodes_to_check` exist, by transactions that change nothing. Since a quorum commits each
/// transaction, its answer lets earlier answered requests extend the lease. Records the loss of a node that is gone. If
/// there is no node to check, may send a sync instead (see below).
async fn check_own_nodes(session: &Arc<dyn Session>) {
    let store = session.store();
    let to_check = store.nodes_to_check();
    // If no node can be checked, a sync is sent instead. This happens while all nodes are being replaced, or while the
    // session has no node. In the second case, the sync is sent only if reads alone do not keep the session alive.
    if to_check.is_empty() && !(store.has_no_nodes() && session.is_kept_alive_by_reads()) {
        drop(session.sync("/").await);
    }
    let checks: Vec<_> = to_check.iter().map(|(_, path)| existence_check(path, None)).collect();
    for ((node, path), holds) in to_check.iter().zip(presence::run_checks(session, &checks, RetryBudget::once()).await)
    {
        match holds {
            Ok(false) => node.record_gone_if_at(path),
            Err(failure @ Failure::NoAuth(_)) => {
                emit!(WARN, path, %failure, "a heartbeat cannot check a lock node of our own");
            }
            _ => {}
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests;
