//! Keeps one session alive by heartbeats until the session is over. Also watches the nodes that this library created on
//! the session, checks hand-offs of the lock by other holders, and after a reconnect removes the nodes of late creates. A
//! backend spawns [`keep_alive`] for each session. A holder awaits the loss of its node by [`ContenderNode::lost`].

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::OptionFuture;

use crate::queue::contender::Contender;
use crate::session::contract::Session;
use crate::session::lease::Moment;
use crate::session::listing;
use crate::session::node::ContenderNode;
use crate::session::presence::{self, check};
use crate::session::removal::remove_late;
use crate::session::request::{Failure, Loss};
use crate::session::retry::{Tries, repeated, slept, spawn_cancellable};
use crate::session::store::SessionStore;
use crate::telemetry::log::emit;
use crate::telemetry::{meter, names};

/// The most requests for a watch that one call of [`watch_own`] has under way at a time.
const ARMED_AT_ONCE: usize = 64;

/// Keeps a session alive and watches our nodes on it until the session is over. A backend spawns this once for each
/// session, on the thread of the sessions.
///
/// A watch is armed on each of our nodes between one and two `grace` after the node's creation, so that a shorter hold
/// costs no watch. A waiter requests the watch on its own node itself, before it waits.
///
/// While the session has nodes, a read touches the session usually every fifth of the session timeout. One settling time later,
/// a transaction that only checks the nodes lets the read extend the lease. While the session has no node, only the
/// read is sent, every quarter of the session timeout, so that the answer to the next create makes the lease valid. The
/// transaction then follows only on a backend whose sessions [are not kept](Session::is_kept_by_reads) by reads alone.
pub async fn keep_alive(session: Weak<dyn Session>, grace: Duration) {
    let Some(store) = session.upgrade().map(|session| Arc::clone(session.store())) else {
        return;
    };
    tokio::join!(watch_nodes(&session, &store, grace), renew(&session, &store));
}

async fn watch_nodes(session: &Weak<dyn Session>, store: &SessionStore, grace: Duration) {
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
        (unwatched, more) = store.unwatched.take(grace);
        if !unwatched.is_empty() {
            session.spawn(Box::pin(watch_own(Arc::clone(&session), unwatched)));
        }
        for path in store.take_unchecked() {
            session.spawn(Box::pin(check_hand_off(Arc::downgrade(&session), path)));
        }
    }
}

/// Arms the watches on these nodes, at most [`ARMED_AT_ONCE`] at a time, and repeats a request whose answer is lost.
async fn watch_own(session: Arc<dyn Session>, mut unwatched: Vec<Arc<ContenderNode>>) {
    let mut tries = Tries::ENDLESS;
    while !unwatched.is_empty() {
        let mut unknown = Vec::new();
        for some in unwatched.chunks(ARMED_AT_ONCE) {
            let requested: Vec<_> = some.iter().map(|node| (node, node.request_watch(&session))).collect();
            for (node, requested) in requested {
                let Some(stored) = requested else { continue };
                match stored.await {
                    Ok(()) | Err(Failure::Over(_)) => {}
                    Err(Failure::Unknown(_)) => unknown.push(Arc::clone(node)),
                    Err(failure) => cannot_watch(node, &failure),
                }
            }
        }
        unwatched = unknown;
        // If an answer was lost because the connection was lost, the server is not faulty. So the backoff starts again.
        if !session.lease().is_connected() {
            tries = Tries::ENDLESS;
        }
        if !unwatched.is_empty() && tries.pause(&session).await.is_err() {
            return;
        }
    }
}

pub(crate) fn cannot_watch(node: &ContenderNode, failure: &Failure) {
    emit!(WARN, path = node.path(), %failure, "cannot watch a lock node of our own");
}

/// Checks a hand-off that granted the lock to contenders of this process. `path` is the node of the holder that
/// released.
///
/// A hand-off is one transaction that sets the data of the holder's node and deletes the node. Waiters take the lock at
/// the event "data changed". So if the node still exists, a stranger has set its data, and the granted contenders are
/// lost.
///
/// A deleted node alone does not prove the hand-off. Its owner may itself have had a false grant; or a stranger has set
/// the data of a writer's node, and a downgrade has replaced that node since. So if a granted contender still holds a
/// fifth of the session timeout later, this also checks that no contender is left whose sequence number is at most that
/// of `path`.
async fn check_hand_off(session: Weak<dyn Session>, path: Arc<str>) {
    let Some(live) = session.upgrade() else { return };
    let mut survivor = match repeated(&live, Tries::ENDLESS, || live.data(&path)).await {
        Ok(_) => presence::first_there(&live, &[path.to_string()]).await,
        Err(Failure::NoNode) => Ok(None),
        Err(failure) => Err(failure),
    };
    let pause = (survivor == Ok(None)).then(|| live.sleep(live.timeout() / 5));
    drop(live);
    OptionFuture::from(pause).await;
    let Some(live) = session.upgrade() else { return };
    let store = live.store();
    let Some(granted) = store.finish_check(&path) else { return };
    if survivor == Ok(None) && granted.iter().any(|node| node.is_held()) {
        survivor = survivor_up_to(&live, &path).await;
        if survivor == Ok(None) {
            store.record_confirmed(Arc::clone(&path));
        }
    }
    if let Ok(Some(survivor)) = survivor {
        lose_interfered(&path, &survivor, &granted);
    }
}

/// Marks these nodes as lost, because waiters took a stranger's write for the hand-off that granted these nodes. `left`
/// is the contender in front of them that still exists.
pub(crate) fn lose_interfered<'n>(path: &str, left: &str, granted: impl IntoIterator<Item = &'n Arc<ContenderNode>>) {
    emit!(ERROR, path, left, "a stranger wrote to a lock node, and the write was taken for a hand-off");
    for node in granted {
        node.lose(Loss::Interfered);
    }
}

/// Returns a contender that still exists and whose sequence number is at most that of the node at `path`.
async fn survivor_up_to(session: &Arc<dyn Session>, path: &str) -> Result<Option<String>, Failure> {
    let directory = Arc::from(path.rsplit_once('/').unwrap_or_default().0);
    let names = match repeated(session, Tries::ENDLESS, || listing::list(session, &directory)).await {
        Err(Failure::NoNode) => return Ok(None),
        names => names?,
    };
    presence::first_there(session, &up_to(&names, path)).await
}

/// Returns the paths of those contenders among these names whose sequence numbers are at most that of the node at
/// `path`.
pub(crate) fn up_to(names: &[String], path: &str) -> Vec<String> {
    let (directory, name) = path.rsplit_once('/').unwrap_or_default();
    let number = |name: &str| Contender::parse(name).map(|it| it.sequence());
    let up_to = names.iter().filter(|other| number(other).is_some_and(|it| Some(it) <= number(name)));
    up_to.map(|name| format!("{directory}/{name}")).collect()
}

async fn renew(session: &Weak<dyn Session>, store: &Arc<SessionStore>) {
    let lease = store.lease();
    // The handshake that created the session has extended the lease, so the first heartbeat is due after a whole
    // period.
    let mut due = Moment::MAX;
    let mut is_lapse_reported = true;
    // The connection on which late creates were last looked for. The next connection cancels a search that has not ended.
    let mut swept = (store.connection(), None);
    loop {
        let woken = store.renewal_wake.notified();
        let Some(live) = session.upgrade().filter(|_| !store.is_over()) else {
            return;
        };
        let left = lease.remaining();
        // When the lease has run out, this records the loss of every hold and wakes the holders that wait for their
        // loss.
        if left.is_none() && !std::mem::replace(&mut is_lapse_reported, true) {
            store.detect_all_losses();
        }
        is_lapse_reported &= left.is_none();
        let now = lease.now();
        let is_idle = store.has_no_nodes();
        let period = if is_idle { lease.idle_period() } else { lease.heartbeat_period() };
        due = due.min(now + period);
        if !lease.is_connected() {
            // The connection is lost. The reconnect wakes this loop, and the heartbeat is then due immediately. For a session
            // without nodes, the handshake is touch enough.
            due = if is_idle { Moment::MAX } else { now };
        } else if due <= now && !lease.is_steady() {
            due = now + period;
            live.spawn(Box::pin(heartbeat(Weak::clone(session), Arc::clone(store))));
        }
        // After the heartbeat, so that the heartbeat does not wait for the listings.
        if lease.is_connected() && swept.0 != store.connection() {
            swept = (store.connection(), Some(spawn_cancellable(&live, remove_late(Arc::clone(&live)))));
        }
        if lease.is_steady() {
            drop(live);
            woken.await;
            continue;
        }
        // If the session's first node was added meanwhile, this loop plans again, because a session with nodes needs
        // the shorter period.
        if !store.plan_renewal(due, is_idle) {
            continue;
        }
        let nap = if lease.is_connected() { due - now } else { live.timeout() };
        let nap = nap.min(left.unwrap_or(nap));
        let pause = live.sleep(nap);
        drop(live);
        let mut woken = std::pin::pin!(woken);
        let is_timer_dead = tokio::select! {
            biased;
            () = &mut woken => false,
            () = pause => lease.now() < now + nap / 2,
        };
        // A timer that fires too early belongs to a runtime that has ended. Every further timer would fire too early as
        // well, so this loop waits for a wake-up instead.
        if is_timer_dead {
            store.plan_renewal(Moment::MAX, false);
            woken.await;
        }
    }
}

/// Touches the session by a read, and then lets the read extend the lease, by [`check_own`]. Leaves out the read if a
/// recent request has touched the session.
async fn heartbeat(session: Weak<dyn Session>, store: Arc<SessionStore>) {
    let lease = store.lease();
    let Some(live) = session.upgrade() else { return };
    if !store.has_no_nodes() {
        meter::count(names::HEARTBEATS, None, &[]);
    }
    let soon = live.timeout() / 20;
    let touched = lease.now();
    let touch = (lease.since_touch() > soon).then(|| live.data("/"));
    drop(live);
    if let Some(Err(Failure::Unknown(_) | Failure::Over(_))) = OptionFuture::from(touch).await {
        return;
    }
    let Some(pause) = session.upgrade().map(|session| session.sleep(lease.settling())) else { return };
    pause.await;
    // If other operations have let a recent touch extend the lease, no check is needed.
    if let Some(live) = session.upgrade().filter(|_| !lease.counts_since(touched.saturating_sub(soon)))
        && lease.is_connected()
    {
        check_own(&live).await;
    }
}

/// Checks that our nodes exist, by transactions that only check. A quorum commits each transaction, which lets earlier
/// touches extend the lease. Records the loss of a node that is gone.
async fn check_own(session: &Arc<dyn Session>) {
    let store = session.store();
    let to_check = store.to_check();
    // If no node can be checked, a sync takes the place of the check. No node can be checked while all nodes are being
    // replaced, or while the session has no node. In the second case, the sync is sent only if reads alone do not keep
    // the session alive.
    if to_check.is_empty() && !(store.has_no_nodes() && session.is_kept_by_reads()) {
        drop(session.sync("/").await);
    }
    let checks: Vec<_> = to_check.iter().map(|(_, path)| check(path, None)).collect();
    for ((node, path), holds) in to_check.iter().zip(presence::run_checks_once(session, &checks).await) {
        match holds {
            Ok(false) => node.record_gone_from(path),
            Err(failure @ Failure::NoAuth(_)) => {
                emit!(WARN, path, %failure, "a heartbeat cannot check a lock node of our own");
            }
            _ => {}
        }
    }
}

impl ContenderNode {
    /// Waits until the hold is lost or given back, and returns the reason as a [`Loss`].
    pub(crate) async fn lost(self: &Arc<Self>, session: &Arc<dyn Session>) -> Loss {
        self.until(session, || self.detect_loss()).await
    }

    /// Sends a request for a watch on this node before this function returns. The returned future stores the watch.
    /// Returns `None` if a watch was requested already, or if no watch is needed.
    ///
    /// If the server answers that the node does not exist, the future asks the leader for the node. If the leader does
    /// not have the node either, the hold is lost. If the leader has the node, the future leaves the server. If no other server is
    /// left, it returns [`Failure::Diverged`], and the hold or the wait goes on.
    pub(crate) fn request_watch(
        self: &Arc<Self>,
        session: &Arc<dyn Session>,
    ) -> Option<impl Future<Output = Result<(), Failure>> + Send + use<>> {
        let path = self.change(|it| it.state.begin_to_watch())?;
        let (mut connection, mut watch) = (session.store().connection(), session.watch(&path));
        let (node, session) = (Arc::clone(self), Arc::clone(session));
        Some(async move {
            let answer = loop {
                let answer = watch.await;
                if answer.as_ref().err() != Some(&Failure::NoNode) {
                    break answer;
                }
                match presence::is_there(&session, &path, None).await {
                    Ok(true) => {}
                    Ok(false) => break Err(Failure::NoNode),
                    Err(failure) => break Err(failure),
                }
                if let Err(failure) = presence::leave(&session, connection, &path).await {
                    break Err(failure);
                }
                (connection, watch) = (session.store().connection(), session.watch(&path));
            };
            node.store_watch(&path, answer)
        })
    }

    /// Waits until `look` returns a value. Calls `look` immediately, after every change of the node, and when the lease
    /// or a limit of the hold may have ended.
    pub(crate) async fn until<T>(&self, session: &Arc<dyn Session>, mut look: impl FnMut() -> Option<T>) -> T {
        loop {
            // `changed` is created before the call of `look`, so that no change during the call is missed.
            let mut changed = std::pin::pin!(self.changed.notified());
            if let Some(found) = look() {
                return found;
            }
            match self.remaining() {
                // The lease or a limit has ended since the call of `look`, so `look` is called again immediately.
                None if self.is_holding() => {}
                Some(left) if self.is_holding() && left < Duration::MAX => {
                    // While the machine is suspended, a timer stands still and the lease does not. One long sleep would
                    // then end after the lease. So the sleep is divided into slices.
                    let slice = left.min(session.timeout() / 20);
                    let is_awake = tokio::select! {
                        biased;
                        () = changed.as_mut() => true,
                        is_awake = slept(session, slice) => is_awake,
                    };
                    if !is_awake {
                        changed.await;
                    }
                }
                _ => changed.await,
            }
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests;
