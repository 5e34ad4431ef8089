//! The state that the clients of an embedded ensemble share: its sessions, their watches, and what each is shown.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Weak};
use std::time::Instant;

use tokio::sync::oneshot;

use crate::memory::tasks::{Executor, Link, LinkState};
use crate::memory::tree::{
    Backup, Change, Node, Owned, Stamp, Tree, children_key, children_of, commit, is_from, parent_of,
};
use crate::memory::tree::{Clock, Index};
use crate::session::request::{Created, Ending, Event, Failure, Kind, Operation, Outcome, Task, Watch};
use crate::session::upkeep::Upkeep;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Mutex, MutexGuard};

/// An ensemble, which all its clients share.
#[derive(Default)]
pub(super) struct Ensemble {
    world: Mutex<World>,
    executor: Arc<Executor>,
    requests: AtomicU64,
}

/// A notification, given when the world is unlocked again: a task that is notified may ask the ensemble for something. An answer
/// comes, or it is lost.
pub(super) type Notification = Box<dyn FnOnce(bool) + Send>;

/// A request, carried out once the connection is there.
type Job = Box<dyn FnOnce(&mut World, &mut Vec<Notification>) + Send>;

#[derive(Default)]
pub(super) struct World {
    tree: Arc<Tree>,
    /// The number of the newest transaction.
    pub(super) zxid: i64,
    pub(super) clock: Clock,
    last_session: i64,
    last_watch: u64,
    /// In an order of their own, so that what a test does has the same effect each time.
    sessions: BTreeMap<i64, SessionState>,
    index: Index,
}

struct SessionState {
    upkeep: Arc<Upkeep>,
    link: Arc<Link>,
    /// When the connection was cut, if it is.
    cut: Option<Instant>,
    /// Why the ensemble has given the session up, although its client does not know yet.
    given_up: Option<Ending>,
    /// What a lagging server shows.
    view: Option<Arc<Tree>>,
    /// What a lagging server has not shown yet.
    late: Vec<Change>,
    /// What a silent server has not is_notified, if it is silent.
    withheld: Option<Vec<Notification>>,
    /// The newest transaction that the client has seen before it was cut off.
    seen: i64,
    waiting: Vec<Job>,
    faults: VecDeque<Fault>,
    /// The tops of what its server shows as it was, each with the nodes from there on.
    frozen: Vec<(String, Tree)>,
    /// What its server has forgotten. Never fires.
    forgotten: Vec<Armed>,
    /// By the path of a node, or by its [key](crate::memory::tree::children_key) for a watch on the node's children.
    watches: BTreeMap<String, Vec<Armed>>,
}

struct Armed {
    number: u64,
    sender: oneshot::Sender<Event>,
}

impl Armed {
    fn fire(self, event: Event) {
        let _nobody_waits_any_more = self.sender.send(event);
    }
}

/// What the next write of a session loses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    Reply,
    Request,
}

impl Ensemble {
    pub(super) fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock()
    }

    /// Changes the world, and gives the notifications of it when the world is unlocked.
    pub(super) fn change<T>(&self, act: impl FnOnce(&mut World, &mut Vec<Notification>) -> T) -> T {
        let mut fired = Vec::new();
        let result = act(&mut self.world(), &mut fired);
        for notify in fired {
            notify(true);
        }
        result
    }

    /// Carries a request of a session out now, or when its connection is mended.
    pub(super) fn request<T: Send + 'static>(
        &self,
        session: i64,
        upkeep: &Arc<Upkeep>,
        is_write: bool,
        act: impl FnOnce(&mut World, &mut Vec<Notification>) -> Result<T, Failure> + Send + 'static,
    ) -> oneshot::Receiver<Result<T, Failure>> {
        let (reply, answer) = oneshot::channel();
        let upkeep = Arc::clone(upkeep);
        let job: Job = Box::new(move |world, fired| {
            let result = match world.sessions.get_mut(&session) {
                Some(state) => {
                    let fault = if is_write { state.faults.pop_front() } else { None };
                    world.carry_out(session, is_write, fault, act, fired)
                }
                None => Err(Failure::Over(upkeep.lease().over().unwrap_or(Ending::Expired))),
            };
            let withheld = world.sessions.get_mut(&session).and_then(|state| state.withheld.as_mut());
            withheld.unwrap_or(fired).push(Box::new(move |comes| {
                let lost = || Err(Failure::Unknown("the connection broke before the answer".to_owned()));
                drop(reply.send(if comes { result } else { lost() }));
            }));
        });
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.change(|world, fired| match world.sessions.get_mut(&session).filter(|state| !state.is_up()) {
            Some(cut_off) => cut_off.waiting.push(job),
            None => job(world, fired),
        });
        answer
    }

    /// How many requests were made, for all sessions together.
    pub(super) fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Runs a task on the threads that make it ready.
    pub(super) fn spawn(&self, task: Task) {
        self.executor.spawn(task);
    }
}

impl SessionState {
    fn is_up(&self) -> bool {
        self.link.state() == LinkState::Up
    }

    /// Changes the link now: a request that comes before the notification finds the link as it is. The notification for
    /// the tasks that wait for the link comes later.
    fn change_link(&self, to: LinkState) -> Notification {
        let link = Arc::clone(&self.link);
        link.change(to);
        Box::new(move |_| link.notify())
    }

    fn deliver(&mut self, path: &str, event: Event, fired: &mut Vec<Notification>) {
        let hides = |(top, _): &(String, Tree)| is_from(path, top) || path == children_key(parent_of(top));
        if self.frozen.iter().any(hides) {
            return;
        }
        if self.view.is_some() {
            self.late.push((path.to_owned(), event));
        } else if self.is_up() {
            self.fire(path, event, fired);
        }
    }

    fn fire(&mut self, path: &str, event: Event, fired: &mut Vec<Notification>) {
        for armed in self.watches.remove(path).into_iter().flatten() {
            self.withheld.as_mut().unwrap_or(fired).push(Box::new(move |_| armed.fire(event)));
        }
    }

    /// Changes what the session's client keeps up, once the world is unlocked.
    fn change_upkeep(&self, change: impl FnOnce(&Upkeep) + Send + 'static) -> Notification {
        let upkeep = Arc::clone(&self.upkeep);
        Box::new(move |_| change(&upkeep))
    }
}

impl World {
    /// Opens a session: its number, and its connection.
    pub(super) fn open(&mut self, upkeep: &Arc<Upkeep>) -> (i64, Arc<Link>) {
        let link = Arc::new(Link::up());
        let state = SessionState {
            upkeep: Arc::clone(upkeep),
            link: Arc::clone(&link),
            cut: None,
            given_up: None,
            view: None,
            late: Vec::new(),
            withheld: None,
            seen: 0,
            waiting: Vec::new(),
            faults: VecDeque::new(),
            frozen: Vec::new(),
            forgotten: Vec::new(),
            watches: BTreeMap::new(),
        };
        self.last_session += 1;
        self.sessions.insert(self.last_session, state);
        (self.last_session, link)
    }

    /// What `act` answers, if no fault is in its way.
    fn carry_out<T>(
        &mut self,
        session: i64,
        is_write: bool,
        fault: Option<Fault>,
        act: impl FnOnce(&mut World, &mut Vec<Notification>) -> Result<T, Failure>,
        fired: &mut Vec<Notification>,
    ) -> Result<T, Failure> {
        let result = match fault {
            Some(Fault::Request) => Err(Failure::Unknown("the request was lost".to_owned())),
            Some(Fault::Reply) => {
                let _lost = act(self, fired);
                Err(Failure::Unknown("the answer was lost".to_owned()))
            }
            None => act(self, fired),
        };
        // A client that loses an answer reaches another server next, which may not have the write yet.
        if is_write && fault.is_none() {
            self.refresh(session, fired);
        }
        result
    }

    /// The tree as a session's server shows it.
    pub(super) fn shown_to(&self, session: i64) -> Arc<Tree> {
        let view = self.sessions.get(&session).and_then(|state| state.view.as_ref());
        self.with_frozen(session, view.unwrap_or(&self.tree))
    }

    /// This tree, but for what is frozen.
    fn with_frozen(&self, session: i64, tree: &Arc<Tree>) -> Arc<Tree> {
        let mut shown = Arc::clone(tree);
        for (top, nodes) in self.sessions.get(&session).into_iter().flat_map(|state| &state.frozen) {
            let tree = Arc::make_mut(&mut shown);
            tree.retain(|path, _| !is_from(path, top));
            tree.extend(nodes.clone());
        }
        shown
    }

    /// From now on a session's server shows this node, and all below it, as they are now, and tells nothing of them.
    pub(super) fn freeze(&mut self, session: i64, top: &str) {
        let nodes = self
            .shown_to(session)
            .iter()
            .filter(|(path, _)| is_from(path, top))
            .map(|(path, node)| (path.clone(), node.clone()))
            .collect();
        if let Some(state) = self.sessions.get_mut(&session) {
            state.frozen.push((top.to_owned(), nodes));
        }
    }

    /// A session's server forgets the watches that are armed now.
    pub(super) fn forget_watches(&mut self, session: i64) {
        let Some(state) = self.sessions.get_mut(&session) else { return };
        for (key, armed) in std::mem::take(&mut state.watches) {
            self.index.remove_watch(session, &key);
            state.forgotten.extend(armed);
        }
    }

    /// Brings a session's lagging server up to now; it goes on lagging from here.
    pub(super) fn refresh(&mut self, session: i64, fired: &mut Vec<Notification>) {
        let tree = Arc::clone(&self.tree);
        let Some(state) = self.sessions.get_mut(&session) else { return };
        if state.view.is_some() {
            state.view = Some(tree);
            for (path, event) in std::mem::take(&mut state.late) {
                state.fire(&path, event, fired);
            }
        }
    }

    /// Arms a watch under its key.
    pub(super) fn arm(&mut self, session: i64, key: String, ensemble: Weak<Ensemble>) -> Watch {
        let (sender, event) = oneshot::channel();
        self.last_watch += 1;
        let number = self.last_watch;
        if let Some(state) = self.sessions.get_mut(&session) {
            state.watches.entry(key.clone()).or_default().push(Armed { number, sender });
            self.index.add_watch(session, &key);
        }
        let disarm = Disarm { ensemble, session, key, number };
        Box::pin(async move {
            let _disarm = disarm;
            event.await.unwrap_or(Event::Over)
        })
    }

    fn notify_all(&mut self, changes: &[Change], fired: &mut Vec<Notification>) {
        for session in self.index.concerned(changes) {
            let Some(state) = self.sessions.get_mut(&session) else { continue };
            for (path, event) in changes {
                state.deliver(path, *event, fired);
            }
        }
    }

    /// Creates one node.
    pub(super) fn create(
        &mut self,
        session: i64,
        path: String,
        data: Vec<u8>,
        kind: Kind,
        fired: &mut Vec<Notification>,
    ) -> Result<Created, Failure> {
        let create = [Operation::Create { path, data, kind }];
        let outcomes = self.apply(session, &create, fired).map_err(|(_, failure)| failure)?;
        let path = outcomes.into_iter().map(|(_, path)| path).next().unwrap_or_default();
        let node = self.tree.get(&path).ok_or(Failure::NoNode)?;
        Ok(Created { czxid: node.czxid, ctime: node.ctime, ephemeral_owner: node.owner, path })
    }

    /// Applies all operations or none, as one transaction.
    pub(super) fn apply(
        &mut self,
        session: i64,
        operations: &[Operation],
        fired: &mut Vec<Notification>,
    ) -> Result<Vec<(Outcome, String)>, (usize, Failure)> {
        let zxid = self.zxid + 1;
        // Copied only while a lagging server still shows it as it was.
        let at = Stamp { zxid, time: self.clock.now() };
        let committed = commit(Arc::make_mut(&mut self.tree), at, session, operations)?;
        self.zxid = zxid;
        committed.owned.into_iter().for_each(|node| self.index.record(node));
        self.notify_all(&committed.changes, fired);
        Ok(committed.outcomes)
    }

    /// Deletes a node with all below it.
    pub(super) fn remove(&mut self, path: &str, fired: &mut Vec<Notification>) {
        let gone = self.tree.keys().filter(|node| is_from(node, path)).cloned().collect();
        self.delete_all(gone, fired);
    }

    fn delete_all(&mut self, paths: Vec<String>, fired: &mut Vec<Notification>) {
        for path in paths.into_iter().rev() {
            let _gone = self.apply(0, &[Operation::Delete { path, version: None }], fired);
        }
    }

    /// Deletes the containers that had children and have none now.
    pub(super) fn reap(&mut self, fired: &mut Vec<Notification>) {
        let idle = |(path, node): (&String, &Node)| {
            (node.kind == Kind::Container && node.next_sequence > 0 && children_of(&self.tree, path).is_empty())
                .then(|| path.clone())
        };
        let idle = self.tree.iter().filter_map(idle).collect();
        self.delete_all(idle, fired);
    }

    /// Gives a session up, and deletes its nodes. Its client learns of it now if it is connected.
    pub(super) fn expire(&mut self, session: i64, why: Ending, fired: &mut Vec<Notification>) {
        let Some(state) = self.sessions.get_mut(&session) else { return };
        state.given_up.get_or_insert(why);
        // What ends it at its client needs no connection.
        let is_notified = state.is_up() || matches!(why, Ending::Closed | Ending::Failed);
        let owned = self.index.owned_by(session);
        if is_notified {
            self.end(session, why, fired);
        }
        self.delete_all(owned, fired);
    }

    /// Tells the client that its session is over.
    fn end(&mut self, session: i64, why: Ending, fired: &mut Vec<Notification>) {
        self.forget_watches(session);
        self.index.set_lagging(session, false);
        let Some(mut state) = self.sessions.remove(&session) else { return };
        fired.extend(state.withheld.take().into_iter().flatten());
        let upkeep = Arc::clone(&state.upkeep);
        // Now, and not with the notifications: as soon as the world is unlocked, another thread may be granted the lock.
        upkeep.lease().end(why);
        let link = state.change_link(LinkState::Over(why));
        fired.push(Box::new(move |_| upkeep.end(why)));
        fired.push(link);
        for armed in state.forgotten {
            fired.push(Box::new(move |_| armed.fire(Event::Over)));
        }
        // Without its session, each of these requests answers that the session is over.
        for job in state.waiting {
            job(self, fired);
        }
    }

    /// Cuts a session's connection.
    pub(super) fn cut(&mut self, session: i64, fired: &mut Vec<Notification>) {
        let Some(state) = self.sessions.get_mut(&session).filter(|state| state.is_up()) else { return };
        state.seen = self.zxid;
        state.cut = Some(Instant::now());
        let withheld = state.withheld.take().into_iter().flatten();
        fired.extend(withheld.map(|notify| Box::new(move |_| notify(false)) as Notification));
        fired.extend([
            state.change_link(LinkState::Down),
            state.change_upkeep(|it| it.steady(false)),
            state.change_upkeep(|it| it.connected(false)),
        ]);
    }

    /// From now on a session's server tells its client nothing.
    pub(super) fn silence(&mut self, session: i64, fired: &mut Vec<Notification>) {
        if let Some(state) = self.sessions.get_mut(&session).filter(|state| state.is_up()) {
            state.withheld.get_or_insert_default();
            fired.push(state.change_upkeep(|it| it.steady(false)));
        }
    }

    /// Mends a session's connection: its client learns what happened meanwhile.
    pub(super) fn heal(&mut self, session: i64, fired: &mut Vec<Notification>) {
        let Some(state) = self.sessions.get_mut(&session).filter(|state| !state.is_up()) else { return };
        if let Some(why) = state.given_up {
            return self.end(session, why, fired);
        }
        fired.extend([state.change_upkeep(|it| it.steady(true)), state.change_upkeep(|it| it.connected(true))]);
        state.cut = None;
        state.frozen.clear();
        let link = state.change_link(LinkState::Up);
        let tree = Arc::clone(&self.tree);
        // The server compares what it has with what the client has seen, as it does for SetWatches.
        let missed = state.watches.keys().filter_map(|key| {
            let children_of = key.strip_suffix('/');
            match tree.get(children_of.unwrap_or(key)) {
                None if key != "/" => Some((key.clone(), Event::Deleted)),
                None => Some((key.clone(), Event::Changed)),
                Some(node) => {
                    let changed = if children_of.is_some() { node.pzxid } else { node.mzxid };
                    (changed > state.seen).then(|| (key.clone(), Event::Changed))
                }
            }
        });
        let missed: Vec<Change> = missed.collect();
        for (path, event) in missed {
            state.fire(&path, event, fired);
        }
        let waiting = std::mem::take(&mut state.waiting);
        fired.push(link);
        for job in waiting {
            job(self, fired);
        }
    }

    /// Everything that there is now.
    pub(super) fn back_up(&self) -> Backup {
        Backup { tree: Arc::clone(&self.tree), zxid: self.zxid }
    }

    /// Everything is as it was then. All sessions are over; the ephemeral nodes of those that were open then are there.
    pub(super) fn restore(&mut self, backup: &Backup, fired: &mut Vec<Notification>) {
        (self.tree, self.zxid) = (Arc::clone(&backup.tree), backup.zxid);
        let ephemeral = self.tree.iter().filter(|(_, node)| node.owner != 0);
        let owned = |(path, node): (&String, &Node)| Owned { session: node.owner, path: path.clone(), is_there: true };
        self.index.reset_owned(ephemeral.map(owned));
        let sessions: Vec<i64> = self.sessions.keys().copied().collect();
        for session in sessions {
            self.end(session, Ending::Expired, fired);
        }
    }

    /// When a session's connection was cut, if it is.
    pub(super) fn cut_since(&self, session: i64) -> Option<Instant> {
        self.sessions.get(&session)?.cut
    }

    /// From now on a session's server is behind the other servers.
    pub(super) fn lag(&mut self, session: i64) {
        if let Some(state) = self.sessions.get_mut(&session) {
            state.view = Some(Arc::clone(&self.tree));
            self.index.set_lagging(session, true);
        }
    }

    /// A session's server is neither behind the other servers any more nor silent.
    pub(super) fn catch_up(&mut self, session: i64, fired: &mut Vec<Notification>) {
        self.refresh(session, fired);
        self.index.set_lagging(session, false);
        let Some(state) = self.sessions.get_mut(&session) else { return };
        state.view = None;
        if let Some(withheld) = state.withheld.take() {
            fired.push(state.change_upkeep(|it| it.steady(true)));
            fired.extend(withheld);
        }
    }

    /// Has the next write of a session meet a fault.
    pub(super) fn add_fault(&mut self, session: i64, fault: Fault) {
        if let Some(state) = self.sessions.get_mut(&session) {
            state.faults.push_back(fault);
        }
    }

    /// How many watches are armed, for all sessions together.
    pub(super) fn watches(&self) -> usize {
        self.sessions.values().map(|state| state.watches.values().map(Vec::len).sum::<usize>()).sum()
    }

    /// The names of a node's children, as the newest server shows them.
    pub(super) fn children(&self, path: &str) -> Vec<String> {
        children_of(&self.tree, path)
    }

    /// Sets the number of a directory's next sequential child.
    pub(super) fn set_next_sequence(&mut self, directory: &str, next: i32) {
        if let Some(node) = Arc::make_mut(&mut self.tree).get_mut(directory) {
            node.next_sequence = next;
        }
    }
}

/// Removes a watch that no task waits for any more.
struct Disarm {
    ensemble: Weak<Ensemble>,
    session: i64,
    key: String,
    number: u64,
}

impl Drop for Disarm {
    fn drop(&mut self) {
        let Some(ensemble) = self.ensemble.upgrade() else { return };
        let mut world = ensemble.world();
        let watches = world.sessions.get_mut(&self.session).map(|state| &mut state.watches);
        let is_watched = watches.is_some_and(|watches| {
            if let Some(armed) = watches.get_mut(&self.key) {
                armed.retain(|armed| armed.number != self.number);
                if armed.is_empty() {
                    watches.remove(&self.key);
                }
            }
            watches.contains_key(&self.key)
        });
        if !is_watched {
            world.index.remove_watch(self.session, &self.key);
        }
    }
}
