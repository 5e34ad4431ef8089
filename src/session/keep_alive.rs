//! Keeps one session alive and watches its nodes, until it is over; knows neither modes nor turns.

use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::session::contract::Session;
use crate::session::loss::Loss;
use crate::session::node::OwnNode;
use crate::session::nodes::OwnNodes;
use crate::session::request::{Failure, Operation};
use crate::session::upkeep::Upkeep;
use crate::telemetry::meter;

/// At most so many checks go into one heartbeat: its request must stay far below ZooKeeper's limit of 1 MiB.
const CHECKS_PER_HEARTBEAT: usize = 1_000;

/// So many watches on nodes of our own are asked for before the first is answered.
const ARMED_AT_ONCE: usize = 64;

/// Looks after the nodes of a session until it is over: a backend spawns this once a session, on its own thread.
///
/// Each node is watched by its owner, at the latest from one to two `grace` after it was entered: a short hold is over by
/// then and costs nothing. A waiter watches its node from the first moment. Each fifth of the session timeout a read
/// touches the session, each quarter also while there are no nodes, so that the next acquisition need not wait for the
/// lease; while there are, a transaction that only checks them follows, by which that counts.
pub async fn keep_alive(session: Weak<dyn Session>, grace: Duration) {
    let Some(upkeep) = session.upgrade().map(|session| Arc::clone(session.upkeep())) else {
        return;
    };
    tokio::join!(watch_nodes(&session, upkeep.nodes(), grace), renew(&session, &upkeep));
}

async fn watch_nodes(session: &Weak<dyn Session>, own_nodes: &OwnNodes, grace: Duration) {
    let mut more = false;
    loop {
        if !more {
            own_nodes.unwatched.notified().await;
        }
        let pause = session.upgrade().filter(|_| !grace.is_zero()).map(|session| session.sleep(grace));
        if let Some(pause) = pause {
            pause.await;
        }
        let Some(session) = session.upgrade().filter(|_| !own_nodes.is_over()) else {
            return;
        };
        let unwatched;
        (unwatched, more) = own_nodes.to_watch(grace);
        if !unwatched.is_empty() {
            session.spawn(Box::pin(watch_own(Arc::clone(&session), unwatched)));
        }
        for path in own_nodes.to_look_at() {
            session.spawn(Box::pin(expect_gone(Arc::downgrade(&session), path)));
        }
    }
}

/// Arms the watches of nodes on their owners' behalf: of thousands, a few at a time.
async fn watch_own(session: Arc<dyn Session>, unwatched: Vec<Arc<OwnNode>>) {
    for some in unwatched.chunks(ARMED_AT_ONCE) {
        let asked: Vec<_> = some.iter().map(|own_node| (own_node, own_node.ask_to_watch(&session))).collect();
        for (own_node, asked) in asked {
            let Some(asked) = asked else { continue };
            match own_node.watched(asked).await {
                Ok(()) | Err(Failure::Over(_)) => {}
                Err(Failure::Unknown(_)) => {
                    if session.connected().await.is_ok() {
                        session.upkeep().nodes().watch(own_node);
                    }
                }
                Err(failure) => cannot_watch(own_node, &failure),
            }
        }
    }
}

pub(crate) fn cannot_watch(own_node: &OwnNode, failure: &Failure) {
    tracing::warn!(path = own_node.path(), %failure, "cannot watch a lock node of our own");
}

/// A hand-off is the one write to a lock node, in the transaction that deletes it: if the node is still there, somebody
/// else wrote to it, and the contenders that took that for a hand-off do not hold.
///
/// A server that lags may show a node that is gone. So a node that is seen is no proof: a quorum is asked as well.
async fn expect_gone(session: Weak<dyn Session>, path: Arc<str>) {
    loop {
        let Some(live) = session.upgrade() else {
            return;
        };
        let mut answer = live.data(&path).await.map(drop);
        if answer.is_ok() {
            let check = [Operation::Check { path: path.to_string(), version: None }];
            answer = live.transact(&check).await.map(drop).map_err(|failure| match failure {
                Failure::Operation { failure, .. } => *failure,
                failure => failure,
            });
        }
        if matches!(answer, Err(Failure::Unknown(_))) && live.connected().await.is_ok() {
            continue;
        }
        let is_gone = answer == Err(Failure::NoNode);
        let is_there = answer.is_ok();
        let granted = live.upkeep().nodes().looked_at(&path, is_gone);
        if is_there {
            tracing::error!(path = &*path, "a stranger wrote to a lock node, which was taken for a hand-off");
            for own_node in granted {
                own_node.lose(Loss::Interfered);
            }
        }
        return;
    }
}

async fn renew(session: &Weak<dyn Session>, upkeep: &Arc<Upkeep>) {
    let (lease, nodes) = (upkeep.lease(), upkeep.nodes());
    // At first the handshake counts.
    let Some(timeout) = session.upgrade().map(|session| session.timeout()) else { return };
    let mut due = lease.now() + timeout / 4;
    let mut is_told = true;
    loop {
        let stirred = nodes.stirred.notified();
        let Some(live) = session.upgrade().filter(|_| !nodes.is_over()) else {
            return;
        };
        let left = lease.remaining();
        // What was held is lost when the lease runs out, whether anybody looks or not.
        if left.is_none() && !std::mem::replace(&mut is_told, true) {
            nodes.look_at_all(lease);
            nodes.tell_all();
        }
        is_told &= left.is_none();
        let now = lease.now();
        // While nothing is kept the client's own pings must have room in between: requests put them off.
        let period = if nodes.is_empty() { live.timeout() / 4 } else { lease.heartbeat_period() };
        due = due.min(now + period);
        if lease.is_steady() {
            drop(live);
            stirred.await;
            continue;
        } else if !lease.is_connected() {
            // As soon as the connection is back.
            due = now;
        } else if due <= now {
            due = now + period;
            live.spawn(Box::pin(heartbeat(Weak::clone(session), Arc::clone(upkeep))));
        }
        let nap = if lease.is_connected() { due - now } else { live.timeout() };
        let nap = nap.min(left.unwrap_or(nap));
        let pause = live.sleep(nap);
        drop(live);
        let mut stirred = std::pin::pin!(stirred);
        let is_over = tokio::select! {
            () = &mut stirred => false,
            () = pause => lease.now() < now + nap / 2,
        };
        // Timers that are over at once are those of a runtime that is gone.
        if is_over {
            stirred.await;
        }
    }
}

/// Touches the session, and has that count if anything is kept under it.
async fn heartbeat(session: Weak<dyn Session>, upkeep: Arc<Upkeep>) {
    let lease = upkeep.lease();
    let Some(live) = session.upgrade() else { return };
    if !upkeep.nodes().is_empty() {
        meter::heartbeat();
    }
    let soon = live.timeout() / 20;
    let touched = lease.now();
    if lease.since_touch() > soon {
        let touch = live.data("/");
        drop(live);
        if let Err(Failure::Unknown(_) | Failure::Over(_)) = touch.await {
            return;
        }
    } else {
        drop(live);
    }
    let Some(pause) = session.upgrade().map(|session| session.sleep(lease.settling())) else { return };
    pause.await;
    // A session that is busy needs no check.
    if let Some(live) = session.upgrade().filter(|_| !lease.counts_since(touched.saturating_sub(soon)))
        && lease.is_connected()
    {
        check_own(&live).await;
    }
}

/// A check-only transaction commits through the quorum, changes nothing, and fails when a node is gone.
async fn check_own(session: &Arc<dyn Session>) {
    for some in session.upkeep().nodes().to_check().chunks(CHECKS_PER_HEARTBEAT) {
        let check = |(_, path): &(_, String)| Operation::Check { path: path.clone(), version: None };
        let checks: Vec<_> = some.iter().map(check).collect();
        match session.transact(&checks).await {
            Err(Failure::Operation { index, failure }) if *failure == Failure::NoNode => {
                if let Some((own_node, path)) = some.get(index) {
                    own_node.gone_from(path);
                }
            }
            Err(Failure::Operation { failure, .. }) => {
                tracing::warn!(%failure, "a heartbeat cannot check a lock node of our own");
            }
            Err(_) => return,
            Ok(_) => {}
        }
    }
}
