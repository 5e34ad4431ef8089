//! The watches of one session. The watches outlive the connections of the session. After a reconnect, the watch of each
//! [`WatchKey`] is armed again by one read, however many tasks wait for its event.
//!
//! The client crate gives a future, the watcher, for each watch that was armed on a connection. The watchers are polled
//! on the library's thread only: when they are armed, and right after the crate has received something
//! ([`Watches::deliver_events`]). So an event reaches its waiters before any answer that the server sent later. Once
//! their connection is lost, the watchers are dropped ([`Watches::disarm_all`]), because a poll would panic.
//!
//! The read after a reconnect never causes the event [`WatchEvent::Changed`]. Waiters take that event for the release
//! of the lock, but a changed stat does not prove a release.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use tokio::sync::oneshot;
use zookeeper_client as zk;

use crate::session::request::{Failure, Watch, WatchEvent};
use crate::sync::{HashMap, Mutex};
use crate::telemetry::user_thread::catch_panic;

/// What a watch is set on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum WatchKind {
    /// The data of a node.
    Data,
    /// The names of a node's children.
    Children,
}

/// A watched path, and what the watch on it is set on.
pub(super) type WatchKey = (Arc<str>, WatchKind);

/// The two transaction ids of a stat that show a change of what is watched. The ids are compared only for equality: if
/// the ensemble is restored from a backup, later ids may be lower than earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SeenZxids(i64, i64);

impl SeenZxids {
    fn new(kind: WatchKind, stat: &zk::Stat) -> SeenZxids {
        SeenZxids(stat.czxid, if kind == WatchKind::Data { stat.mzxid } else { stat.pzxid })
    }
}

type Watcher = Pin<Box<dyn Future<Output = zk::WatchedEvent> + Send>>;

#[derive(Default)]
pub(super) struct Watches {
    slots: Mutex<WatchSlots>,
    /// The keys whose watchers have something to report, and are polled next.
    fired: Arc<Mutex<Vec<WatchKey>>>,
}

#[derive(Default)]
struct WatchSlots {
    by_key: HashMap<WatchKey, WatchSlot>,
    /// How often the watches were disarmed. If a watcher was armed when this number was lower, it belongs to an earlier
    /// connection, and is not polled.
    disarmed: u64,
}

/// All watches of one key.
#[derive(Default)]
struct WatchSlot {
    waiters: Vec<WatchWaiter>,
    /// The crate's watcher of the present connection, which serves all waiters.
    watcher: Option<Watcher>,
}

struct WatchWaiter {
    seen: SeenZxids,
    event: oneshot::Sender<WatchEvent>,
}

struct FiredKeyWaker(WatchKey, Arc<Mutex<Vec<WatchKey>>>);

impl Wake for FiredKeyWaker {
    fn wake(self: Arc<Self>) {
        self.1.lock().push(self.0.clone());
    }
}

/// Removed slots, and the events of their waiters. The slots are dropped only after [`WatchSlots`] is unlocked, because
/// the drop of a waiter wakes the task that waits for the event, and the waker of that task may lock the watches.
type OutgoingEvents = Vec<(WatchSlot, WatchEvent)>;

fn send_events(outgoing: OutgoingEvents) {
    for (slot, event) in outgoing {
        for waiter in slot.waiters {
            // Sending the event wakes the task that waits for it. The waker of that task is the user's code, and may
            // panic.
            let _panicked = catch_panic(|| waiter.event.send(event));
        }
    }
}

impl WatchSlots {
    /// Removes a slot, and adds it to `to` with the event for its waiters.
    fn remove_with_event(&mut self, key: &WatchKey, event: WatchEvent, to: &mut OutgoingEvents) {
        to.extend(self.by_key.remove(key).map(|slot| (slot, event)));
    }

    /// Polls the watcher of a slot, if there is one. If an event of the node has come, calls
    /// [`WatchSlots::remove_with_event`].
    fn poll_watcher(&mut self, key: &WatchKey, fired: &Arc<Mutex<Vec<WatchKey>>>, to: &mut OutgoingEvents) {
        let Some(slot) = self.by_key.get_mut(key) else { return };
        let Some(watcher) = &mut slot.watcher else { return };
        let waker = Waker::from(Arc::new(FiredKeyWaker(key.clone(), Arc::clone(fired))));
        let Poll::Ready(came) = watcher.as_mut().poll(&mut Context::from_waker(&waker)) else { return };
        slot.watcher = None;
        if let Some(event) = event_for_waiters(came.event_type) {
            self.remove_with_event(key, event, to);
        }
    }
}

/// Returns the event that the waiters get, or `None` if the crate's event is about the session and not about the node.
fn event_for_waiters(event: zk::EventType) -> Option<WatchEvent> {
    match event {
        zk::EventType::NodeDeleted => Some(WatchEvent::Deleted),
        zk::EventType::Session => None,
        _ => Some(WatchEvent::Changed),
    }
}

impl Watches {
    /// Returns a number that identifies the present connection.
    pub(super) fn connection_number(&self) -> u64 {
        self.slots.lock().disarmed
    }

    /// Adds a watch, which was armed by a read on the connection number `connection`. The read has returned `stat`.
    pub(super) fn add(
        self: &Arc<Self>,
        key: WatchKey,
        stat: &zk::Stat,
        (connection, watcher): (u64, zk::OneshotWatcher),
    ) -> Watch {
        let (sender, event) = oneshot::channel();
        let (seen, mut outgoing) = (SeenZxids::new(key.1, stat), OutgoingEvents::default());
        let mut slots = self.slots.lock();
        let is_past = connection != slots.disarmed;
        let slot = slots.by_key.entry(key.clone()).or_default();
        slot.waiters.push(WatchWaiter { seen, event: sender });
        // One watcher for each key is enough, because all watchers of one key fire together. A watcher of a lost
        // connection must not be polled.
        if slot.watcher.is_some() || is_past {
            drop(slots);
            drop(watcher);
        } else {
            slot.watcher = Some(Box::pin(watcher.changed()));
            // The event may have come already, together with the answer to the read.
            slots.poll_watcher(&key, &self.fired, &mut outgoing);
            drop(slots);
        }
        send_events(outgoing);
        let mut armed = WatchReceiver { watches: Arc::clone(self), key, event };
        Box::pin(async move { (&mut armed.event).await.unwrap_or(WatchEvent::Over) })
    }

    /// Delivers the events that have come since the last call.
    pub(super) fn deliver_events(&self) {
        let fired = std::mem::take(&mut *self.fired.lock());
        if fired.is_empty() {
            return;
        }
        let mut outgoing = OutgoingEvents::default();
        let mut slots = self.slots.lock();
        for key in &fired {
            slots.poll_watcher(key, &self.fired, &mut outgoing);
        }
        drop(slots);
        send_events(outgoing);
    }

    /// Drops the watchers of the connection that is lost. The watches stay, and are armed again on the next connection.
    pub(super) fn disarm_all(&self) {
        let mut slots = self.slots.lock();
        slots.disarmed += 1;
        let watchers: Vec<_> = slots.by_key.values_mut().filter_map(|it| it.watcher.take()).collect();
        drop(slots);
        drop(watchers);
    }

    /// Ends all watches, because the session is over. Each gets the event [`WatchEvent::Over`].
    pub(super) fn end_all(&self) {
        let slots = std::mem::take(&mut *self.slots.lock());
        send_events(slots.by_key.into_values().map(|slot| (slot, WatchEvent::Over)).collect());
    }

    pub(super) fn keys(&self) -> Vec<WatchKey> {
        self.slots.lock().by_key.keys().cloned().collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.slots.lock().by_key.is_empty()
    }

    /// Records the answer to the read that arms a slot again: the stat of the node, if the node exists, and the crate's
    /// watcher. Sends [`WatchEvent::LookAgain`] to each waiter that has seen another state of the node. If the node is
    /// gone, sends [`WatchEvent::Deleted`] to all waiters. If the server refused the read, sends
    /// [`WatchEvent::LookAgain`] to all. Fails if the outcome of the read is unknown, or the session is over.
    pub(super) fn record_rearm_answer(
        &self,
        key: &WatchKey,
        answer: Result<(Option<zk::Stat>, Option<zk::OneshotWatcher>), Failure>,
    ) -> Result<(), Failure> {
        let mut outgoing = OutgoingEvents::default();
        let mut slots = self.slots.lock();
        match answer {
            Ok((Some(stat), watcher)) => {
                if let Some(slot) = slots.by_key.get_mut(key) {
                    let now = SeenZxids::new(key.1, &stat);
                    let waiters = slot.waiters.extract_if(.., |waiter| waiter.seen != now).collect();
                    outgoing.push((WatchSlot { waiters, watcher: None }, WatchEvent::LookAgain));
                    if slot.waiters.is_empty() {
                        slots.by_key.remove(key);
                    } else {
                        slot.watcher = watcher.map(|watcher| Box::pin(watcher.changed()) as Watcher);
                        slots.poll_watcher(key, &self.fired, &mut outgoing);
                    }
                }
            }
            // The read has set a watch on the missing node. Here its watcher is dropped, and the crate then removes the
            // watch.
            Ok((None, _)) | Err(Failure::NoNode) => slots.remove_with_event(key, WatchEvent::Deleted, &mut outgoing),
            Err(failure @ (Failure::Unknown(_) | Failure::Over(_))) => return Err(failure),
            Err(_) => slots.remove_with_event(key, WatchEvent::LookAgain, &mut outgoing),
        }
        drop(slots);
        send_events(outgoing);
        Ok(())
    }
}

/// One waiter of a watch. When this value is dropped, the waiter is removed, and with the last waiter also the watch.
struct WatchReceiver {
    watches: Arc<Watches>,
    key: WatchKey,
    event: oneshot::Receiver<WatchEvent>,
}

impl Drop for WatchReceiver {
    fn drop(&mut self) {
        self.event.close();
        let mut slots = self.watches.slots.lock();
        let Some(slot) = slots.by_key.get_mut(&self.key) else { return };
        let removed: Vec<_> = slot.waiters.extract_if(.., |it| it.event.is_closed()).collect();
        let unwatched = if slot.waiters.is_empty() { slots.by_key.remove(&self.key) } else { None };
        drop(slots);
        drop((removed, unwatched));
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    const ARMED: zk::Stat = zk::Stat {
        czxid: 7,
        mzxid: 7,
        ctime: 0,
        mtime: 0,
        version: 0,
        cversion: 0,
        aversion: 0,
        ephemeral_owner: 0,
        data_length: 0,
        num_children: 0,
        pzxid: 7,
    };

    /// Returns the event that a watch gets from the answer to the read that arms it again.
    fn event_after_rearm(kind: WatchKind, answer: Result<Option<zk::Stat>, Failure>) -> Option<WatchEvent> {
        let watches = Watches::default();
        let (sender, mut event) = oneshot::channel();
        let waiters = vec![WatchWaiter { seen: SeenZxids::new(kind, &ARMED), event: sender }];
        let key = (Arc::from("/lock/node"), kind);
        watches.slots.lock().by_key.insert(key.clone(), WatchSlot { waiters, watcher: None });
        watches.record_rearm_answer(&key, answer.map(|stat| (stat, None))).expect("an answer about the node");
        event.try_recv().ok()
    }

    #[test]
    fn a_read_that_arms_a_watch_again_reports_no_change() {
        let newer = zk::Stat { mzxid: 9, pzxid: 9, ..ARMED };
        let older = zk::Stat { czxid: 3, mzxid: 3, pzxid: 3, ..ARMED };
        let made_anew = zk::Stat { czxid: 8, ..ARMED };
        for kind in [WatchKind::Data, WatchKind::Children] {
            for stat in [newer, older, made_anew] {
                assert_eq!(event_after_rearm(kind, Ok(Some(stat))), Some(WatchEvent::LookAgain), "{stat:?}");
            }
            assert_eq!(
                event_after_rearm(kind, Err(Failure::Refused("no quota".to_owned()))),
                Some(WatchEvent::LookAgain)
            );
            assert_eq!(event_after_rearm(kind, Ok(None)), Some(WatchEvent::Deleted));
            assert_eq!(event_after_rearm(kind, Ok(Some(ARMED))), None);
        }
    }
}
