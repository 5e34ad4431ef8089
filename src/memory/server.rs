//! The shared state of an embedded ensemble: its nodes, its sessions with their watches, and the faults of each
//! session.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Weak};

use tokio::sync::oneshot;

use crate::memory::tasks::Executor;
use crate::memory::tree::{
    Backup, Clock, FiredWatch, TransactionStamp, Tree, TreeNode, children_of, children_watch_key, commit,
    is_at_or_below, parent_of,
};
use crate::session::request::{Failure, Kind, Operation, Outcome, SessionEnd, Watch, WatchEvent};
use crate::session::store::SessionStore;
use crate::sync::atomic::AtomicU64;
use crate::sync::{Mutex, MutexGuard};

/// An embedded ensemble, which all its clients share.
#[derive(Default)]
pub(super) struct Ensemble {
    world: Mutex<EnsembleState>,
    pub(super) executor: Arc<Executor>,
    /// The number of requests that clients have made.
    pub(super) requests: AtomicU64,
}

/// A function that delivers a reply, an event or the state of the connection to a client. Called after the
/// [`EnsembleState`] is unlocked, because the delivery may wake a task that sends a request, and a request locks the
/// `EnsembleState`. If the argument is `false`, a reply is not delivered but lost. Anything else is delivered.
pub(super) type Delivery = Box<dyn FnOnce(bool) + Send>;

/// A request of a session. Executed immediately. If the session is cut off, executed when its connection is restored.
pub(super) type SessionRequest = Box<dyn FnOnce(&mut EnsembleState, &mut Vec<Delivery>) + Send>;

/// The nodes and sessions of an embedded ensemble. Each request locks the whole world.
#[derive(Default)]
pub(super) struct EnsembleState {
    pub(super) tree: Arc<Tree>,
    pub(super) zxid: i64,
    pub(super) clock: Clock,
    last_session: i64,
    /// The sessions by their ids. A session that has ended stays here until its client learns of the end. The map is
    /// sorted, so that each run of a test delivers events in the same order.
    pub(super) sessions: BTreeMap<i64, EnsembleSession>,
    /// Pairs of the key of a watch (see [`EnsembleSession::watches`]) and the id of a session that has set a watch with
    /// this key. The watch may have fired already. Without this set, each change in an ensemble of 100,000 sessions
    /// would have to look at all of them.
    watching: BTreeSet<(String, i64)>,
    /// The sessions with a lagging server. Each change is stored for each of these sessions, even if no watch is set on
    /// the node. The client may later set a watch on a node that only the lagging server still has, and that watch must
    /// fire when the server catches up.
    lagging: BTreeSet<i64>,
}

pub(super) struct EnsembleSession {
    store: Arc<SessionStore>,
    pub(super) is_cut: bool,
    /// Why the ensemble has ended the session. `None` while the session lives. A session whose client has learned of
    /// the end is removed.
    ended_as: Option<SessionEnd>,
    /// The nodes that the server shows if it lags. `None` if the server does not lag.
    view: Option<Arc<Tree>>,
    /// The changes that a lagging server has not reported yet.
    late: Vec<FiredWatch>,
    /// The replies and events that a silent server withholds; `None` if the server is not silent.
    pub(super) withheld: Option<Vec<Delivery>>,
    /// The id of the ensemble's newest transaction when the client's connection was last cut; 0 before the first cut.
    seen: i64,
    /// The requests that the client sent while it was cut off.
    pub(super) waiting: Vec<SessionRequest>,
    /// What is lost of the next write, of the write after that, and so on. Of later writes nothing is lost.
    faults: VecDeque<LostMessage>,
    /// The paths of frozen nodes. With each path comes a copy of the frozen node and of the nodes below it, as the
    /// server still shows them.
    frozen: Vec<(String, Tree)>,
    /// How many more times the client may leave its server, if that is the only one. `None` if there are other servers.
    leaves: Option<u32>,
    /// The watches that the server has forgotten. They fire only when the session ends.
    forgotten: Vec<oneshot::Sender<WatchEvent>>,
    /// The watches by their keys. The key is the path of a node, or the node's
    /// [children watch key](crate::memory::tree::children_watch_key) for a watch on its children.
    watches: BTreeMap<String, Vec<oneshot::Sender<WatchEvent>>>,
    /// The paths of the session's ephemeral nodes.
    owned: BTreeSet<String>,
}

/// How many times a client may leave its only server, and connect to the same server again. The next attempt to leave
/// fails with [`Failure::Diverged`].
const LEAVES_OF_ONE: u32 = 3;

/// What is lost of a session's next write: its reply, or the request itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LostMessage {
    Reply,
    Request,
}

impl Ensemble {
    pub(super) fn lock_world(&self) -> MutexGuard<'_, EnsembleState> {
        self.world.lock()
    }

    /// Changes the world, and makes all deliveries when the world is unlocked.
    pub(super) fn change_and_deliver<T>(&self, act: impl FnOnce(&mut EnsembleState, &mut Vec<Delivery>) -> T) -> T {
        let mut fired = Vec::new();
        let result = act(&mut self.lock_world(), &mut fired);
        for notify in fired {
            notify(true);
        }
        result
    }
}

impl EnsembleSession {
    fn report_change(&mut self, path: &str, event: WatchEvent, fired: &mut Vec<Delivery>) {
        let hides = |(top, _): &(String, Tree)| is_at_or_below(path, top) || path == children_watch_key(parent_of(top));
        if self.frozen.iter().any(hides) {
            return;
        }
        if self.view.is_some() {
            self.late.push((path.to_owned(), event));
        } else if !self.is_cut {
            self.fire_watches(path, event, fired);
        }
    }

    fn fire_watches(&mut self, path: &str, event: WatchEvent, fired: &mut Vec<Delivery>) {
        for watch in self.watches.remove(path).into_iter().flatten() {
            self.withheld.as_mut().unwrap_or(fired).push(Box::new(move |_| _ = watch.send(event)));
        }
    }

    /// Returns a delivery that applies `change` to the client's session store.
    fn delivery_to_store(&self, change: impl FnOnce(&SessionStore) + Send + 'static) -> Delivery {
        let store = Arc::clone(&self.store);
        Box::new(move |_| change(&store))
    }
}

impl EnsembleState {
    /// Opens a session, and returns its id.
    pub(super) fn open_session(&mut self, store: &Arc<SessionStore>) -> i64 {
        let state = EnsembleSession {
            store: Arc::clone(store),
            is_cut: false,
            ended_as: None,
            view: None,
            late: Vec::new(),
            withheld: None,
            seen: 0,
            waiting: Vec::new(),
            faults: VecDeque::new(),
            frozen: Vec::new(),
            leaves: None,
            forgotten: Vec::new(),
            watches: BTreeMap::new(),
            owned: BTreeSet::new(),
        };
        self.last_session += 1;
        self.sessions.insert(self.last_session, state);
        self.last_session
    }

    /// Executes a request and returns its result. If the session is over, returns [`Failure::Over`] and does nothing
    /// else. If the request is a write, an injected fault may lose the request or its reply, and the result is then
    /// [`Failure::Unknown`].
    pub(super) fn execute_request<T>(
        &mut self,
        session: i64,
        store: &SessionStore,
        is_write: bool,
        act: impl FnOnce(&mut EnsembleState, &mut Vec<Delivery>) -> Result<T, Failure>,
        fired: &mut Vec<Delivery>,
    ) -> Result<T, Failure> {
        let Some(state) = self.sessions.get_mut(&session) else {
            return Err(Failure::Over(store.lease().ending().unwrap_or(SessionEnd::Expired)));
        };
        let lost = if is_write { state.faults.pop_front() } else { None };
        if lost == Some(LostMessage::Request) {
            return Err(Failure::Unknown("the request was lost".to_owned()));
        }
        let result = act(self, fired);
        store.record_zxid(self.zxid);
        // A write whose reply arrives brings a lagging server up to date. A write whose reply is lost does not: the
        // client may be connected to another server next, and that server may still lack the write.
        if lost == Some(LostMessage::Reply) {
            return Err(Failure::Unknown("the answer was lost".to_owned()));
        }
        if is_write {
            self.update_view(session, fired);
        }
        result
    }

    /// Returns the nodes that the server of this session shows.
    pub(super) fn tree_shown_to(&self, session: i64) -> Arc<Tree> {
        let Some(state) = self.sessions.get(&session) else { return Arc::clone(&self.tree) };
        let mut shown = Arc::clone(state.view.as_ref().unwrap_or(&self.tree));
        for (top, nodes) in &state.frozen {
            let tree = Arc::make_mut(&mut shown);
            tree.retain(|path, _| !is_at_or_below(path, top));
            tree.extend(nodes.clone());
        }
        shown
    }

    /// From now on, a session's server shows the node `top` and all nodes below it as they are at this call.
    pub(super) fn freeze_nodes(&mut self, session: i64, top: &str) {
        let mut nodes = Arc::unwrap_or_clone(self.tree_shown_to(session));
        nodes.retain(|path, _| is_at_or_below(path, top));
        if let Some(state) = self.sessions.get_mut(&session) {
            state.frozen.push((top.to_owned(), nodes));
        }
    }

    /// Makes a session's server forget all watches that the session has set so far.
    pub(super) fn forget_watches(&mut self, session: i64) {
        let Some(state) = self.sessions.get_mut(&session) else { return };
        for (key, watches) in std::mem::take(&mut state.watches) {
            self.watching.remove(&(key, session));
            state.forgotten.extend(watches);
        }
    }

    /// Brings a session's lagging server up to date. After that, the server lags again. Does nothing to a server that
    /// does not lag.
    pub(super) fn update_view(&mut self, session: i64, fired: &mut Vec<Delivery>) {
        let tree = Arc::clone(&self.tree);
        let Some(state) = self.sessions.get_mut(&session) else { return };
        if state.view.is_some() {
            state.view = Some(tree);
            for (path, event) in std::mem::take(&mut state.late) {
                state.fire_watches(&path, event, fired);
            }
        }
    }

    pub(super) fn set_watch(&mut self, session: i64, key: String, ensemble: Weak<Ensemble>) -> Watch {
        let (sender, event) = oneshot::channel();
        if let Some(state) = self.sessions.get_mut(&session) {
            state.watches.entry(key.clone()).or_default().push(sender);
            self.watching.insert((key.clone(), session));
        }
        let mut armed = ArmedWatch { ensemble, session, key, event };
        Box::pin(async move { (&mut armed.event).await.unwrap_or(WatchEvent::Over) })
    }

    fn notify_watchers(&mut self, changes: &[FiredWatch], fired: &mut Vec<Delivery>) {
        let of_key = |key: &String| self.watching.range((key.clone(), i64::MIN)..=(key.clone(), i64::MAX));
        let watch = changes.iter().flat_map(|(key, _)| of_key(key)).map(|(_, session)| session);
        // A `BTreeSet` is sorted and has no duplicates. So the loop visits each session once, in the same order in each
        // run.
        let concerned: BTreeSet<i64> = watch.chain(&self.lagging).copied().collect();
        for session in concerned {
            let Some(state) = self.sessions.get_mut(&session) else { continue };
            for (path, event) in changes {
                state.report_change(path, *event, fired);
            }
        }
    }

    /// Applies all operations or none of them, as one transaction.
    pub(super) fn apply_operations(
        &mut self,
        session: i64,
        operations: &[Operation],
        fired: &mut Vec<Delivery>,
    ) -> Result<Vec<(Outcome, String)>, (usize, Failure)> {
        let zxid = self.zxid + 1;
        // `make_mut` copies all nodes if something else, such as a lagging server or a backup, shares them. Otherwise
        // it copies nothing.
        let at = TransactionStamp { zxid, time: self.clock.now() };
        let committed = commit(Arc::make_mut(&mut self.tree), at, session, operations)?;
        self.zxid = zxid;
        for (path, before) in committed.before {
            if let Some(owner) = before.and_then(|node| self.sessions.get_mut(&node.owner)) {
                owner.owned.remove(&path);
            }
            if let Some(owner) = self.tree.get(&path).and_then(|node| self.sessions.get_mut(&node.owner)) {
                owner.owned.insert(path);
            }
        }
        self.notify_watchers(&committed.changes, fired);
        Ok(committed.outcomes)
    }

    pub(super) fn remove_subtree(&mut self, path: &str, fired: &mut Vec<Delivery>) {
        let gone = self.tree.keys().filter(|node| is_at_or_below(node, path)).cloned().collect();
        self.delete_nodes(gone, fired);
    }

    fn delete_nodes(&mut self, paths: Vec<String>, fired: &mut Vec<Delivery>) {
        for path in paths.into_iter().rev() {
            let _gone = self.apply_operations(0, &[Operation::Delete { path, version: None }], fired);
        }
    }

    /// Deletes the containers that had children and have none now.
    pub(super) fn reap_containers(&mut self, fired: &mut Vec<Delivery>) {
        let idle = |(path, node): (&String, &TreeNode)| {
            (node.kind == Kind::Container && node.next_sequence > 0 && children_of(&self.tree, path).is_empty())
                .then(|| path.clone())
        };
        let idle = self.tree.iter().filter_map(idle).collect();
        self.delete_nodes(idle, fired);
    }

    /// Ends a session, and deletes its nodes. The session's client is notified immediately if it is connected, or if
    /// the client itself has ended the session. Otherwise the client is notified when its connection is restored.
    pub(super) fn end_session(&mut self, session: i64, why: SessionEnd, fired: &mut Vec<Delivery>) {
        let Some(state) = self.sessions.get_mut(&session) else { return };
        state.ended_as.get_or_insert(why);
        // If the client has closed the session, or a task of the session has failed, the client knows of the end
        // without a connection.
        let is_notified = !state.is_cut || matches!(why, SessionEnd::Closed | SessionEnd::Failed);
        let owned = std::mem::take(&mut state.owned).into_iter().collect();
        if is_notified {
            self.remove_session(session, why, fired);
        }
        self.delete_nodes(owned, fired);
    }

    /// Removes a session, and reports to its client that the session is over.
    fn remove_session(&mut self, session: i64, why: SessionEnd, fired: &mut Vec<Delivery>) {
        self.forget_watches(session);
        self.lagging.remove(&session);
        let Some(mut state) = self.sessions.remove(&session) else { return };
        fired.extend(state.withheld.take().into_iter().flatten());
        let store = Arc::clone(&state.store);
        // The lease is ended here, before the deliveries are made: as soon as the world is unlocked, another thread may
        // be granted the lock.
        store.record_end(why);
        fired.push(Box::new(move |_| store.record_end_and_report(why)));
        for watch in state.forgotten {
            fired.push(Box::new(move |_| _ = watch.send(WatchEvent::Over)));
        }
        // The session was removed above, so each of these requests fails.
        for request in state.waiting {
            request(self, fired);
        }
    }

    pub(super) fn cut_connection(&mut self, session: i64, fired: &mut Vec<Delivery>) {
        let Some(state) = self.sessions.get_mut(&session).filter(|state| !state.is_cut) else { return };
        state.seen = self.zxid;
        state.is_cut = true;
        // The loss of the connection is reported before the lost replies. So a task that learns of a lost reply knows
        // that the connection is lost, and waits for the connection before it sends the request again.
        fired.extend([
            state.delivery_to_store(|it| it.set_endless(false)),
            state.delivery_to_store(|it| it.set_connected(false)),
        ]);
        let withheld = state.withheld.take().into_iter().flatten();
        fired.extend(withheld.map(|notify| Box::new(move |_| notify(false)) as Delivery));
    }

    pub(super) fn silence_server(&mut self, session: i64, fired: &mut Vec<Delivery>) {
        if let Some(state) = self.sessions.get_mut(&session).filter(|state| !state.is_cut) {
            state.withheld.get_or_insert_default();
            fired.push(state.delivery_to_store(|it| it.set_endless(false)));
        }
    }

    /// Restores a session's connection, delivers the events that its client missed, and executes the requests that
    /// waited. If the ensemble has ended the session meanwhile, reports this end to the client instead, and lets the
    /// requests fail.
    pub(super) fn restore_connection(&mut self, session: i64, fired: &mut Vec<Delivery>) {
        let Some(state) = self.sessions.get_mut(&session).filter(|state| state.is_cut) else { return };
        if let Some(why) = state.ended_as {
            return self.remove_session(session, why, fired);
        }
        fired.push(state.delivery_to_store(|it| it.set_endless(true)));
        state.is_cut = false;
        if state.leaves.is_none() {
            state.frozen.clear();
        }
        let tree = self.tree_shown_to(session);
        let Some(state) = self.sessions.get_mut(&session) else { return };
        // Each watched node that has changed since the cut causes an event. If the node still exists, the event is
        // `LookAgain`, because `Changed` would report one certain change, such as a hand-off. The root is not in the
        // tree, so whether its children have changed is not known. A watch on them always gets an event.
        let missed = state.watches.keys().filter_map(|key| {
            let children_of = key.strip_suffix('/');
            match tree.get(children_of.unwrap_or(key)) {
                None if key != "/" => Some((key.clone(), WatchEvent::Deleted)),
                None => Some((key.clone(), WatchEvent::LookAgain)),
                Some(node) => {
                    let changed = if children_of.is_some() { node.pzxid } else { node.mzxid };
                    (changed > state.seen).then(|| (key.clone(), WatchEvent::LookAgain))
                }
            }
        });
        let missed: Vec<FiredWatch> = missed.collect();
        for (path, event) in missed {
            state.fire_watches(&path, event, fired);
        }
        fired.push(state.delivery_to_store(|it| it.set_connected(true)));
        let waiting = std::mem::take(&mut state.waiting);
        for request in waiting {
            request(self, fired);
        }
    }

    /// Connects a session to another server, as
    /// [`Session::leave_server`](crate::session::contract::Session::leave_server) says. Returns `Some(true)` after
    /// that, `Some(false)` if the session no longer has the connection with the number `connection`, and `None` if the
    /// session may not leave its only server again.
    pub(super) fn leave_server(&mut self, session: i64, connection: u64, fired: &mut Vec<Delivery>) -> Option<bool> {
        let Some(state) = self.sessions.get_mut(&session).filter(|it| !it.is_cut) else { return Some(false) };
        if state.store.connection_number() != connection {
            return Some(false);
        }
        if let Some(leaves) = &mut state.leaves {
            *leaves = leaves.checked_sub(1)?;
        }
        self.cut_connection(session, fired);
        self.restore_connection(session, fired);
        Some(true)
    }

    /// Lets a session's client have only one server. From then on, [`EnsembleState::leave_server`] connects to the same
    /// server again, up to [`LEAVES_OF_ONE`] times.
    pub(super) fn keep_server(&mut self, session: i64) {
        if let Some(state) = self.sessions.get_mut(&session) {
            state.leaves.get_or_insert(LEAVES_OF_ONE);
        }
    }

    /// Restores all nodes and the newest transaction id from a backup, and ends all sessions without deleting their
    /// nodes. So the ephemeral nodes in the backup exist again, and belong to no live session.
    pub(super) fn restore_backup(&mut self, backup: &Backup, fired: &mut Vec<Delivery>) {
        (self.tree, self.zxid) = (Arc::clone(&backup.tree), backup.zxid);
        let sessions: Vec<i64> = self.sessions.keys().copied().collect();
        for session in sessions {
            self.remove_session(session, SessionEnd::Expired, fired);
        }
    }

    /// Makes a session's server lag behind the other servers.
    pub(super) fn lag_server(&mut self, session: i64) {
        if let Some(state) = self.sessions.get_mut(&session) {
            state.view = Some(Arc::clone(&self.tree));
            self.lagging.insert(session);
        }
    }

    /// Lets a session's server show the newest state, and send the answers and events that it has withheld.
    pub(super) fn catch_up_server(&mut self, session: i64, fired: &mut Vec<Delivery>) {
        self.update_view(session, fired);
        self.lagging.remove(&session);
        let Some(state) = self.sessions.get_mut(&session) else { return };
        state.view = None;
        if let Some(withheld) = state.withheld.take() {
            fired.push(state.delivery_to_store(|it| it.set_endless(true)));
            fired.extend(withheld);
        }
    }

    pub(super) fn lose_next_message(&mut self, session: i64, message: LostMessage) {
        if let Some(state) = self.sessions.get_mut(&session) {
            state.faults.push_back(message);
        }
    }

    pub(super) fn watch_count(&self) -> usize {
        self.sessions.values().map(|state| state.watches.values().map(Vec::len).sum::<usize>()).sum()
    }

    pub(super) fn set_next_sequence(&mut self, directory: &str, next: i32) {
        if let Some(node) = Arc::make_mut(&mut self.tree).get_mut(directory) {
            node.next_sequence = next;
        }
    }
}

/// A watch that is removed from the server when this value is dropped.
struct ArmedWatch {
    ensemble: Weak<Ensemble>,
    session: i64,
    key: String,
    event: oneshot::Receiver<WatchEvent>,
}

impl Drop for ArmedWatch {
    fn drop(&mut self) {
        let Some(ensemble) = self.ensemble.upgrade() else { return };
        self.event.close();
        let mut world = ensemble.lock_world();
        if let Some(state) = world.sessions.get_mut(&self.session)
            && let Some(watches) = state.watches.get_mut(&self.key)
        {
            watches.retain(|watch| !watch.is_closed());
            if !watches.is_empty() {
                return;
            }
            state.watches.remove(&self.key);
        }
        world.watching.remove(&(std::mem::take(&mut self.key), self.session));
    }
}
