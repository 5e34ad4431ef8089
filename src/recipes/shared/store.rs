//! The state that all handles of a value share: reads under the lock, and a copy that a watch keeps fresh.
//!
//! The copy stores the bytes as they come from the ensemble. The first caller that asks for the value decodes the bytes,
//! so that the thread that keeps the sessions alive runs no user code.

use std::convert::Infallible;
use std::sync::{Arc, Weak};

use futures_util::FutureExt;
use tokio::sync::oneshot;

use crate::contend::contender::Contender;
use crate::error::error::Error;
use crate::error::value::{ValueError, Written};
use crate::lock::hold::ReadGuard;
use crate::recipes::shared::codec::{Codec, Header, Stored};
use crate::recipes::shared::known::{CopyState, LocalCopy, SeenContent};
use crate::recipes::shared::node::{self, CommitBase, CommittedValue, ValueNode};
use crate::session::contract::{Coordinator, Session};
use crate::session::follow::{self, NodeWatcher, watch_across_sessions};
use crate::session::lease::Lease;
use crate::session::node::Node;
use crate::session::presence::{self, LeaderRecheckTimer};
use crate::session::request::{Failure, SessionEnd, Stat, Task};
use crate::session::retry::{self, RetryBudget};
use crate::session::thread::BackgroundThread;
use crate::sync::{Mutex, OnceLock, watch};

/// The name of the operation that watches the node, for errors.
const WATCH: &str = "watch";

/// How often one call of `read` tries to write the initial value. It tries again if it still finds no value, for
/// example because another client has changed or deleted the node meanwhile.
const MAX_INITIAL_WRITES: u32 = 64;

/// The state that all clones of a [`Shared`](crate::Shared) share.
pub(crate) struct SharedState<T> {
    /// Dropping this sender stops the [`ValueWatcher`] of the node. The fields are dropped in their order, and this
    /// field stands first. So the watcher's watch and session slot are released before the coordinator.
    stop_watcher: OnceLock<oneshot::Sender<()>>,
    /// The copy of the node. The watcher owns another pointer to the copy, and updates it.
    pub(super) known: Arc<watch::Sender<LocalCopy>>,
    decoded: Mutex<DecodedValues<T>>,
    kept: Mutex<Option<ValueUnderKeptNode<T>>>,
    pub(crate) codec: Codec<T>,
    pub(crate) node: Arc<ValueNode>,
}

/// What callers have decoded from the copy.
struct DecodedValues<T> {
    /// The number of the newest event whose value was decoded. 0 at first.
    event: u64,
    /// The value of this event, or the error of its decoding. `None` before the first decoding.
    value: Option<Result<Arc<Stored<T>>, Error>>,
    /// The newest value that was decoded successfully.
    last_good: Option<Arc<Stored<T>>>,
}

/// The value that was read under a kept node: a lock node that this process keeps between uses.
struct ValueUnderKeptNode<T> {
    value: Arc<Stored<T>>,
    /// The kept node. Its fencing token would not identify the node: an ensemble that is restored from a backup gives
    /// the same tokens again.
    under: Weak<Node>,
    /// How many transactions under the node this process had sent before the read. The outcome of each of them was
    /// known before the read.
    writes: usize,
}

/// The value at the start of a write, and the state of its node.
pub(crate) struct LoadedValue<T> {
    pub(crate) value: T,
    pub(crate) written: Option<Written>,
    pub(crate) base: CommitBase,
}

impl<T> SharedState<T> {
    pub(crate) fn new(node: ValueNode, codec: Codec<T>) -> Arc<SharedState<T>> {
        let (stop_watcher, known) = (OnceLock::new(), Arc::new(watch::Sender::new(LocalCopy::default())));
        let (decoded, kept) = (Mutex::new(DecodedValues { event: 0, value: None, last_good: None }), Mutex::new(None));
        Arc::new(SharedState { stop_watcher, known, decoded, kept, codec, node: Arc::new(node) })
    }

    /// Returns the value that an earlier read found under the same kept node. Clients that use the lock cannot have
    /// changed the value since then. A write by a client without the lock is not noticed. Returns `None` if there is no
    /// such value, or if this process has sent a transaction under the node since that read. Also returns `None` if an
    /// earlier transaction under the node may still be carried out.
    fn kept_value(&self, guard: &ReadGuard) -> Option<Arc<Stored<T>>> {
        let node = guard.held.node();
        let writes = node.writes_if_settled().filter(|_| guard.is_kept())?;
        let kept = self.kept.lock();
        let known = kept.as_ref().filter(|kept| kept.under.as_ptr() == Arc::as_ptr(node));
        known.filter(|kept| kept.writes == writes).map(|kept| Arc::clone(&kept.value))
    }

    fn store_kept_value(&self, guard: &ReadGuard, writes: Option<usize>, value: &Arc<Stored<T>>) {
        if let Some(writes) = writes.filter(|_| guard.is_kept()) {
            let kept =
                ValueUnderKeptNode { value: Arc::clone(value), under: Arc::downgrade(guard.held.node()), writes };
            let before = self.kept.lock().replace(kept);
            // The old value is dropped after the mutex is unlocked, because its destructor is user code.
            drop(before);
        }
    }
}

impl<T: Send + Sync + 'static> SharedState<T> {
    /// Reads the value under the lock, and writes the initial value if there is none. While the process keeps its lock
    /// node, later reads return the value of the first read without a request, until this process sends a transaction
    /// under the lock node.
    pub(crate) async fn read_or_initialize(&self, guard: &ReadGuard) -> Result<Arc<Stored<T>>, Error> {
        if let Some(value) = self.kept_value(guard) {
            return Ok(value);
        }
        let (hold, SharedState { node, codec, .. }) = (&guard.held, self);
        let mut tries = 0;
        loop {
            let (writes, is_known) = (hold.node().writes_if_settled(), self.known.borrow().was_seen);
            let (bytes, base) = node.read(hold, is_known).await?;
            match (self.decode(&bytes, &base), &codec.initial) {
                (Err(ValueError::Unset), Some(initial)) if tries < MAX_INITIAL_WRITES => {
                    tries += 1;
                    let payload = self.encode(&initial())?;
                    if let Some(committed) = node.write_initial(hold, &payload, base).await? {
                        self.record_commit(hold.session().lease(), &committed);
                    }
                }
                (Ok(value), _) => {
                    let value = Arc::new(value);
                    self.store_kept_value(guard, writes, &value);
                    return Ok(value);
                }
                (Err(error), _) => return Err(node.value_error(error)),
            }
        }
    }

    /// Returns the value at the start of a write: `instead` if that is given, else the node's value, else the initial value.
    pub(crate) async fn load_for_write(&self, hold: &Contender, instead: Option<T>) -> Result<LoadedValue<T>, Error> {
        let SharedState { node, codec, .. } = self;
        let is_known = self.known.borrow().was_seen;
        let (bytes, base) = node.read(hold, is_known).await?;
        if let Some(value) = instead {
            let written = Header::split_from(&bytes).ok().map(|(header, _)| header.written);
            return Ok(LoadedValue { value, written, base });
        }
        match (self.decode(&bytes, &base), &codec.initial) {
            (Ok(Stored { value, written }), _) => Ok(LoadedValue { value, written: Some(written), base }),
            (Err(ValueError::Unset), Some(initial)) => Ok(LoadedValue { value: initial(), written: None, base }),
            (Err(error), _) => Err(node.value_error(error)),
        }
    }

    fn decode(&self, bytes: &[u8], base: &CommitBase) -> Result<Stored<T>, ValueError> {
        let opened = self.codec.decode(&self.node.rules, bytes);
        match opened {
            Ok(_) => {
                self.known.send_if_modified(|known| {
                    known.was_seen = true;
                    false
                });
            }
            Err(ValueError::Unset) if base.is_vanished() => return Err(ValueError::Vanished),
            Err(_) => {}
        }
        opened
    }

    /// Encodes a value. Fails if the bytes cannot be decoded again.
    pub(crate) fn encode(&self, value: &T) -> Result<Vec<u8>, Error> {
        self.codec.encode(value).map_err(|error| self.node.value_error(error))
    }

    /// Returns the newest value that has come from the ensemble. If that value cannot be decoded, returns the last
    /// value that could be decoded. `None` if there is none.
    pub(crate) fn latest_value(&self) -> Option<Arc<Stored<T>>> {
        self.start_watcher();
        let newest = self.known.borrow().newest.clone()?;
        match self.decode_seen(&newest) {
            Ok(value) => Some(value),
            Err(_) => self.decoded.lock().last_good.clone(),
        }
    }

    pub(crate) fn copy_state(&self) -> CopyState {
        self.start_watcher();
        let (state, newest) = {
            let known = self.known.borrow();
            (known.copy_state(), known.newest.clone())
        };
        match (state, newest) {
            (state @ (CopyState::Current | CopyState::Disconnected), Some(newest)) => {
                self.decode_seen(&newest).map_or_else(CopyState::Behind, |_| state)
            }
            (state, _) => state,
        }
    }

    /// Starts the [`ValueWatcher`] of the node, unless it was started before.
    pub(crate) fn start_watcher(&self) {
        self.stop_watcher.get_or_init(|| {
            let (node, path) = (Arc::downgrade(&self.node), self.node.path.clone());
            let (has_initial, known) = (self.codec.initial.is_some(), Arc::clone(&self.known));
            let watcher = ValueWatcher { node, path, has_initial, known };
            let (stop, task) = retry::make_cancellable(async move { watch_across_sessions(&watcher).await });
            start_in_background(self.node.coordinator(), task).unwrap_or_else(|error| self.record_end(error));
            stop
        });
    }

    /// Returns the decoded value of `seen`. Stores the result for later callers, unless the result of a newer event is
    /// stored already.
    ///
    /// The format is user code, which may take long, panic, or use this copy. So no mutex is locked during the
    /// decoding. A caller that comes during the decoding does not wait: it decodes the bytes, too, and returns the
    /// value that was stored first.
    pub(crate) fn decode_seen(&self, seen: &SeenContent) -> Result<Arc<Stored<T>>, Error> {
        let decoded_before =
            |decoded: &DecodedValues<T>| if decoded.event == seen.event { decoded.value.clone() } else { None };
        if let Some(value) = decoded_before(&self.decoded.lock()) {
            return value;
        }
        let value = self
            .codec
            .decode(&self.node.rules, &seen.bytes)
            .map(Arc::new)
            .map_err(|error| self.node.value_error(error));
        let mut decoded = self.decoded.lock();
        if let Some(first) = decoded_before(&decoded) {
            return first;
        }
        let before = (decoded.event < seen.event).then(|| {
            decoded.event = seen.event;
            let good = value.as_ref().ok().and_then(|value| decoded.last_good.replace(Arc::clone(value)));
            (decoded.value.replace(value.clone()), good)
        });
        drop(decoded);
        // The old values are dropped after the mutex is unlocked, because their destructors are user code.
        drop(before);
        value
    }

    /// Stores a commit of this process in the copy, before the watch reports it. `lease` belongs to the session that
    /// sent the commit.
    pub(crate) fn record_commit(&self, lease: &Lease, CommittedValue { bytes, czxid, version, .. }: &CommittedValue) {
        self.known.send_if_modified(|known| {
            known.was_seen = true;
            // If the session has ended, the commit is ignored, because the ensemble may have been restored to a state
            // before the commit.
            lease.ending().is_none() && known.record_commit(bytes, *czxid, *version)
        });
    }

    pub(crate) fn end_error(&self) -> Error {
        self.known.borrow().over.clone().unwrap_or(Error::Closed(SessionEnd::Closed))
    }

    pub(crate) fn record_end(&self, error: Error) {
        self.known.send_modify(|known| known.over = Some(error));
    }
}

/// A background task that watches a value's node as long as a handle of the value exists. A watcher owns no value and
/// no function of the user, because it runs on a thread of the library, which must not run user code.
struct ValueWatcher {
    /// The node. The reference is weak, so that the watcher does not keep the coordinator open.
    node: Weak<ValueNode>,
    path: String,
    /// Whether the user gave an initial value.
    has_initial: bool,
    known: Arc<watch::Sender<LocalCopy>>,
}

impl NodeWatcher for ValueWatcher {
    fn coordinator(&self) -> Option<Arc<dyn Coordinator>> {
        self.node.upgrade().map(|node| Arc::clone(node.coordinator()))
    }

    fn report_failure(&self, failure: Failure) {
        let is_over = matches!(failure, Failure::Over(_));
        let error = Error::from_failure(failure, WATCH, &self.path);
        match is_over {
            true => self.known.send_modify(|known| known.over = Some(error)),
            false => self.record_error(error),
        }
    }

    async fn watch(&self, session: &Arc<dyn Session>) -> Result<Infallible, Failure> {
        let mut look = LeaderRecheckTimer::new(session);
        // The number of the last event before the last sync of the server. If a commit of this process has a later
        // event number, the server may not show that commit yet.
        let mut synced = self.known.borrow().last_event;
        retry::repeat_until_known(session, || session.sync(&self.path)).await?;
        // `outdated` is a stat that this client's only server still shows although the ensemble's leader has another
        // version. `denials` limits how often the server may say that the node is missing although the leader has it.
        let (mut outdated, mut denials) = (None, RetryBudget::DENIALS);
        loop {
            // `is_known` must be read before the node. In the other order, this process could create the node after the
            // read of the node and before the read of `is_known`. The node would then look deleted.
            let is_known = self.known.borrow().was_seen;
            let (mut change, (bytes, stat)) = match retry::watch_and_read(session, &self.path).await {
                Ok(answers) => answers,
                Err(Failure::NoNode) => {
                    if self.handle_missing_node(session, is_known, &mut denials).await? {
                        follow::until_node_may_exist(session, &self.path).await?;
                    }
                    continue;
                }
                Err(failure) => return Err(failure),
            };
            denials = RetryBudget::DENIALS;
            if outdated != Some(stat) {
                self.record_read(bytes, stat, session.lease(), synced)?;
            }
            if look.until_event_or_recheck(&mut change).await? {
                continue;
            }
            // The node is read again even if the ensemble's leader has this version. The node may have been deleted and
            // created again with the same version, and the server may have missed that. The leader's reply has synced
            // the server.
            let known = self.known.borrow().last_event;
            if let Ok(is_there) = presence::exists_at_leader(session, &self.path, Some(stat.version)).await {
                (synced, outdated) = (known, None);
                if !is_there {
                    match presence::leave_differing_server(session, &self.path, Some(stat.version)).await {
                        Ok(_) => {}
                        Err(diverged @ Failure::Diverged { .. }) => {
                            outdated = Some(stat);
                            self.record_error(Error::from_failure(diverged, WATCH, &self.path));
                        }
                        Err(failure) => return Err(failure),
                    }
                }
            }
        }
    }
}

impl ValueWatcher {
    fn record_error(&self, error: Error) {
        self.known.send_if_modified(|known| known.record_error(error));
    }

    /// Returns the value's node. Fails if no handle of the value exists any more.
    fn node(&self) -> Result<Arc<ValueNode>, Failure> {
        self.node.upgrade().ok_or(Failure::Over(SessionEnd::Closed))
    }

    fn record_read(&self, bytes: Vec<u8>, stat: Stat, lease: &Arc<Lease>, synced: u64) -> Result<(), Failure> {
        let node = self.node()?;
        self.known.send_if_modified(|known| {
            known.lease = Some(Arc::clone(lease));
            match node.rules.split_and_check(&bytes) {
                Ok(_) => known.record_read(bytes, stat.czxid, stat.version, synced),
                Err(error) => known.record_error(node.value_error(error)),
            }
        });
        Ok(())
    }

    /// Handles a read that found no node. Returns `false` if the caller should read again, because the ensemble's
    /// leader has the node, and its reply has synced the server. Otherwise records the reason, and returns `true`: the
    /// caller should wait until the node is created.
    async fn handle_missing_node(
        &self,
        session: &Arc<dyn Session>,
        is_known: bool,
        denials: &mut RetryBudget,
    ) -> Result<bool, Failure> {
        let absence = node::read_missing_node_history(session, &self.path, is_known).await?;
        let may_be_denied = !absence.is_gone && !self.has_initial;
        let is_at_leader = match may_be_denied {
            true => presence::await_retry_if_leader_has(session, &self.path, denials).await,
            false => Ok(false),
        };
        self.record_error(match is_at_leader {
            Ok(true) => return Ok(false),
            Err(diverged @ Failure::Diverged { .. }) => Error::from_failure(diverged, WATCH, &self.path),
            _ if absence.is_gone => self.node()?.value_error(ValueError::Vanished),
            _ => self.node()?.value_error(ValueError::Unset),
        });
        Ok(true)
    }
}

/// Starts `work` in the background: on the thread of a connected session, or else on the library's thread. A session of
/// the embedded ensemble has no thread, and polls `work` on the thread that wakes it.
pub(crate) fn start_in_background(coordinator: &Arc<dyn Coordinator>, work: Task) -> Result<(), Error> {
    // `session_slot` is usually ready at the first poll if a session is connected.
    match coordinator.session_slot(0).now_or_never() {
        Some(Ok(session_slot)) => {
            session_slot.session().spawn(work);
            return Ok(());
        }
        Some(Err(failure @ Failure::Over(_))) => return Err(Error::from_failure(failure, WATCH, "")),
        _ => {}
    }
    let background = BackgroundThread::get_or_start().map_err(|error| Error::Unreachable(error.to_string()))?;
    let user = Arc::clone(&background);
    background.spawn(async move {
        work.await;
        drop(user);
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::lock::rw_lock::RwLock;
    use crate::memory::client::Memory;
    use crate::recipes::shared::codec::{Raw, ValueRules};

    fn trouble(reason: &str) -> Error {
        Error::Unreachable(reason.to_owned())
    }

    /// Returns a state whose watcher is never started.
    fn copy() -> Arc<SharedState<String>> {
        let lock = RwLock::new(&Memory::new(), "/lock").expect("valid");
        let node = ValueNode { lock, path: "/value".to_owned(), rules: ValueRules::new("raw") };
        let copy = SharedState::new(node, Codec { format: Box::new(Raw), initial: None, migrate: None });
        let (stop, _) = oneshot::channel();
        copy.stop_watcher.set(stop).expect("no watcher was started");
        copy
    }

    fn committed(czxid: Option<i64>, version: i32) -> CommittedValue {
        let (host, at) = ("h".to_owned(), std::time::UNIX_EPOCH);
        let written = Written { host, label: None, token: 7, commit: 1, at, schema: 1 };
        CommittedValue { bytes: b"x".to_vec(), czxid, version, written }
    }

    #[test]
    fn a_commit_to_a_known_node_is_in_the_copy_at_once() {
        let copy = copy();
        let version = |copy: &SharedState<String>| copy.known.borrow().newest.as_ref().map(|newest| newest.version);
        let lease = Lease::new(Duration::from_secs(6));
        copy.record_commit(&lease, &committed(Some(10), 1));
        assert_eq!(version(&copy), None, "the copy does not know the node");
        copy.known.send_modify(|known| assert!(known.record_read(Vec::new(), 10, -5, 0)));
        for (czxid, number, known) in [(None, 0, -5), (Some(10), 1, 1), (Some(10), 2, 2), (Some(9), 3, 2)] {
            copy.record_commit(&lease, &committed(czxid, number));
            assert_eq!(version(&copy), Some(known), "version {number} was committed");
        }
        lease.record_end(SessionEnd::Expired);
        copy.record_commit(&lease, &committed(Some(10), 3));
        assert_eq!(version(&copy), Some(2), "the ensemble may have been restored without the commit");
    }

    #[test]
    fn a_copy_that_cannot_follow_says_why() {
        let copy = copy();
        assert!(matches!(copy.copy_state(), CopyState::Fetching));
        copy.known.send_if_modified(|known| known.record_error(trouble("a")));
        assert!(matches!(copy.copy_state(), CopyState::Behind(Error::Unreachable(reason)) if reason == "a"));
    }
}
