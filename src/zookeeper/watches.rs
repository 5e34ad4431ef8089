//! The watches of one session. The watches outlive the connections of the session. After a reconnect, each watched path
//! is read once, which arms the watch again, however many tasks wait for the event.
//!
//! The client crate has a watcher for each watch that was armed on a connection. These watchers are polled on the
//! library's thread only, right after the crate has received something ([`Watches::deliver`]), so an event is delivered
//! before any later answer. They are dropped, and not polled, once their connection is lost ([`Watches::disarm`]),
//! because they would panic.
//!
//! What the read after a reconnect finds is never [`Event::Changed`]. Waiters take that event for the release of the
//! lock, and a stat that differs does not prove a release.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use tokio::sync::oneshot;
use zookeeper_client as zk;

use crate::session::request::{Event, Failure, Watch};
use crate::sync::{HashMap, Mutex};
use crate::telemetry::user_thread::guarded;

/// What a watch is set on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Kind {
    /// The data of a node.
    Data,
    /// The names of a node's children.
    Children,
}

/// A watched path, and what the watch on it is set on.
pub(super) type Key = (Arc<str>, Kind);

/// The part of a stat that shows a change of what is watched. Compared only for equality, because the numbers of a
/// restored ensemble go back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen(i64, i64);

impl Seen {
    fn by(kind: Kind, stat: &zk::Stat) -> Seen {
        Seen(stat.czxid, if kind == Kind::Data { stat.mzxid } else { stat.pzxid })
    }
}

type Watcher = Pin<Box<dyn Future<Output = zk::WatchedEvent> + Send>>;

#[derive(Default)]
pub(super) struct Watches {
    slots: Mutex<Slots>,
    fired: Arc<Fired>,
}

#[derive(Default)]
struct Slots {
    by_key: HashMap<Key, u64>,
    each: BTreeMap<u64, Slot>,
    /// How many slots and waiters there were so far. The count is the id of the last one.
    made: u64,
    /// How often the watches were disarmed. A watcher of an earlier connection must not be polled.
    disarmed: u64,
}

/// All watches of one key.
struct Slot {
    key: Key,
    waiters: Vec<Waiter>,
    /// The crate's watcher of the present connection, which serves all waiters.
    watcher: Option<Watcher>,
}

struct Waiter {
    id: u64,
    seen: Seen,
    event: oneshot::Sender<Event>,
}

/// The ids of the slots whose watchers have fired.
#[derive(Default)]
struct Fired(Mutex<Vec<u64>>);

struct Fires(u64, Arc<Fired>);

impl Wake for Fires {
    fn wake(self: Arc<Self>) {
        self.1.0.lock().push(self.0);
    }
}

/// Events to deliver, and watchers to drop, once the slots are unlocked.
#[derive(Default)]
struct Outgoing(Vec<(oneshot::Sender<Event>, Event)>, Vec<Watcher>);

impl Outgoing {
    fn deliver(self) {
        for (waiter, event) in self.0 {
            // The waker of the task that waits is the user's code.
            let _panicked = guarded(|| _ = waiter.send(event));
        }
        drop(self.1);
    }
}

impl Slots {
    fn remove(&mut self, id: u64) -> Option<Slot> {
        let slot = self.each.remove(&id)?;
        self.by_key.remove(&slot.key);
        Some(slot)
    }

    /// Removes a slot, and adds its event for each of its waiters.
    fn fire(&mut self, id: u64, event: Event, to: &mut Outgoing) {
        if let Some(slot) = self.remove(id) {
            to.0.extend(slot.waiters.into_iter().map(|it| (it.event, event)));
            to.1.extend(slot.watcher);
        }
    }

    /// Polls the watcher of a slot. If it has fired, fires the slot.
    fn poll(&mut self, id: u64, fired: &Arc<Fired>, to: &mut Outgoing) {
        let Some(slot) = self.each.get_mut(&id) else { return };
        let Some(watcher) = &mut slot.watcher else { return };
        let waker = Waker::from(Arc::new(Fires(id, Arc::clone(fired))));
        let Poll::Ready(came) = watcher.as_mut().poll(&mut Context::from_waker(&waker)) else { return };
        slot.watcher = None;
        if let Some(event) = translate(came.event_type) {
            self.fire(id, event, to);
        }
    }
}

/// Returns `None` for an event of the session, which says nothing about the node.
fn translate(event: zk::EventType) -> Option<Event> {
    match event {
        zk::EventType::NodeDeleted => Some(Event::Deleted),
        zk::EventType::Session => None,
        _ => Some(Event::Changed),
    }
}

impl Watches {
    /// Returns a number of the present connection.
    pub(super) fn connection(&self) -> u64 {
        self.slots.lock().disarmed
    }

    /// Adds a watch that was armed on this connection by a read with this stat.
    pub(super) fn add(
        self: &Arc<Self>,
        key: Key,
        stat: &zk::Stat,
        (connection, watcher): (u64, zk::OneshotWatcher),
    ) -> Watch {
        let (sender, event) = oneshot::channel();
        let (seen, mut outgoing) = (Seen::by(key.1, stat), Outgoing::default());
        let mut slots = self.slots.lock();
        slots.made += 1;
        let is_past = connection != slots.disarmed;
        let waiter = slots.made;
        let slot = *slots.by_key.entry(key.clone()).or_insert(waiter);
        let all = slots.each.entry(slot).or_insert_with(|| Slot { key, waiters: Vec::new(), watcher: None });
        all.waiters.push(Waiter { id: waiter, seen, event: sender });
        // The watchers of one path fire together, so one is enough. A watcher of a lost connection must not be polled.
        if all.watcher.is_some() || is_past {
            drop(slots);
            drop(watcher);
        } else {
            all.watcher = Some(Box::pin(watcher.changed()));
            // The event may have come together with the answer.
            slots.poll(slot, &self.fired, &mut outgoing);
            drop(slots);
        }
        outgoing.deliver();
        Box::pin(Armed { watches: Arc::clone(self), slot, waiter, event, has_fired: false })
    }

    /// Delivers the events that have come.
    pub(super) fn deliver(&self) {
        let fired = std::mem::take(&mut *self.fired.0.lock());
        if fired.is_empty() {
            return;
        }
        let mut outgoing = Outgoing::default();
        let mut slots = self.slots.lock();
        for id in fired {
            slots.poll(id, &self.fired, &mut outgoing);
        }
        drop(slots);
        outgoing.deliver();
    }

    /// Drops the watchers of the present connection, which is lost. The watches stay.
    pub(super) fn disarm(&self) {
        let mut slots = self.slots.lock();
        slots.disarmed += 1;
        let watchers: Vec<_> = slots.each.values_mut().filter_map(|it| it.watcher.take()).collect();
        drop(slots);
        drop(watchers);
    }

    /// Ends all watches, because the session is over. Each gets the event [`Event::Over`].
    pub(super) fn end(&self) {
        let slots = std::mem::take(&mut *self.slots.lock());
        for waiter in slots.each.into_values().flat_map(|slot| slot.waiters) {
            let _panicked = guarded(|| drop(waiter));
        }
    }

    /// Returns the watched keys, with the ids of their slots.
    pub(super) fn keys(&self) -> Vec<(u64, Key)> {
        self.slots.lock().each.iter().map(|(id, slot)| (*id, slot.key.clone())).collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.slots.lock().each.is_empty()
    }

    /// Records the answer to the read that arms a slot again: the stat of the node, and the crate's watcher. Fails if
    /// the answer does not show the node's state.
    pub(super) fn arm(
        &self,
        slot: u64,
        answer: Result<(Option<zk::Stat>, Option<zk::OneshotWatcher>), Failure>,
    ) -> Result<(), Failure> {
        let mut outgoing = Outgoing::default();
        let mut slots = self.slots.lock();
        match answer {
            Ok((Some(stat), watcher)) => {
                if let Some(it) = slots.each.get_mut(&slot) {
                    let now = Seen::by(it.key.1, &stat);
                    let changed = it.waiters.extract_if(.., |waiter| waiter.seen != now);
                    outgoing.0.extend(changed.map(|waiter| (waiter.event, Event::LookAgain)));
                    if it.waiters.is_empty() {
                        slots.remove(slot);
                    } else {
                        it.watcher = watcher.map(|watcher| Box::pin(watcher.changed()) as Watcher);
                        slots.poll(slot, &self.fired, &mut outgoing);
                    }
                }
            }
            // The watcher that the read has left on the missing node is dropped, which removes it.
            Ok((None, _)) | Err(Failure::NoNode) => slots.fire(slot, Event::Deleted, &mut outgoing),
            Err(failure @ (Failure::Unknown(_) | Failure::Over(_))) => return Err(failure),
            Err(_) => slots.fire(slot, Event::LookAgain, &mut outgoing),
        }
        drop(slots);
        outgoing.deliver();
        Ok(())
    }

    fn forget(&self, slot: u64, waiter: u64) {
        let mut slots = self.slots.lock();
        let Some(it) = slots.each.get_mut(&slot) else { return };
        let removed: Vec<_> = it.waiters.extract_if(.., |it| it.id == waiter).collect();
        let unwatched = if it.waiters.is_empty() { slots.remove(slot) } else { None };
        drop(slots);
        drop((removed, unwatched));
    }
}

/// An armed watch. Dropping it removes the watch.
struct Armed {
    watches: Arc<Watches>,
    slot: u64,
    waiter: u64,
    event: oneshot::Receiver<Event>,
    has_fired: bool,
}

impl Future for Armed {
    type Output = Event;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Event> {
        let event = std::task::ready!(Pin::new(&mut self.event).poll(context));
        self.has_fired = true;
        Poll::Ready(event.unwrap_or(Event::Over))
    }
}

impl Drop for Armed {
    fn drop(&mut self) {
        if !self.has_fired {
            self.watches.forget(self.slot, self.waiter);
        }
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
    fn event(kind: Kind, answer: Result<Option<zk::Stat>, Failure>) -> Option<Event> {
        let watches = Watches::default();
        let (sender, mut event) = oneshot::channel();
        let waiters = vec![Waiter { id: 1, seen: Seen::by(kind, &ARMED), event: sender }];
        let key = (Arc::from("/lock/node"), kind);
        watches.slots.lock().each.insert(1, Slot { key, waiters, watcher: None });
        watches.arm(1, answer.map(|stat| (stat, None))).expect("an answer about the node");
        event.try_recv().ok()
    }

    #[test]
    fn what_a_read_finds_that_arms_a_watch_again_is_no_hand_off() {
        let newer = zk::Stat { mzxid: 9, pzxid: 9, ..ARMED };
        let older = zk::Stat { czxid: 3, mzxid: 3, pzxid: 3, ..ARMED };
        let made_anew = zk::Stat { czxid: 8, ..ARMED };
        for kind in [Kind::Data, Kind::Children] {
            for stat in [newer, older, made_anew] {
                assert_eq!(event(kind, Ok(Some(stat))), Some(Event::LookAgain), "{stat:?}");
            }
            assert_eq!(event(kind, Err(Failure::Refused("no quota".to_owned()))), Some(Event::LookAgain));
            assert_eq!(event(kind, Ok(None)), Some(Event::Deleted));
            assert_eq!(event(kind, Ok(Some(ARMED))), None);
        }
    }
}
