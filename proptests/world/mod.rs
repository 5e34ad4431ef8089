//! A simulated world, which the test polls by hand in virtual time. It has a lock, the value that the lock guards, and a
//! semaphore. Its contenders use one session or several, and every fault of the embedded ensemble can occur.
//!
//! After the steps of a schedule all faults are repaired. Then every waiter must be granted the lock or its permits.

mod act;
mod actor;
mod checks;
pub(crate) mod draw;
pub(crate) mod plan;
pub(crate) mod shrink;

use std::sync::Arc;

use support::copy::Copied;
use support::wired::Wired;
use zk_rwlock::coordinator::{Coordinator, Kind, Session};
use zk_rwlock::memory::Backup;
use zk_rwlock::{Memory, RwLock, RwLockBuilder, Semaphore, Shared};

use crate::world::actor::{Actor, Commits, Listener};
use crate::world::checks::{Ledger, PATIENT};
use crate::world::plan::{ACTORS, Action, After, CLIENTS, LONG, Part, Schedule, Step};

const VALUE: &str = "/world";
const VALUE_NODE: &str = "/world/value";
const LOCK: &str = "/world/lock";
const LIMIT: &str = "/limit";
const QUEUE: &str = "/limit/queue";
const PERMITS: &str = "/limit/permits";

/// A node that is written only under the lock. Its data is the token of the last writer.
const RECORD: &str = "/record";

/// The number of rounds at the end in which removals of nodes may be retried.
const RETRIES: usize = 80;

struct Handle {
    plan: plan::Handle,
    lock: RwLock,
    value: Option<Copied<u64>>,
    limit: Semaphore,
}

pub(crate) struct World {
    clients: Vec<Wired>,
    permits: u32,
    handle_of: Vec<usize>,
    handles: Vec<Handle>,
    cut: Vec<bool>,
    lagging: Vec<bool>,
    hushed: Vec<bool>,
    /// Whether a server may have lost an event, or may show nodes that the ensemble no longer has.
    are_unheard: bool,
    /// The number of lost requests and replies. After several in a row the library waits before it sends a request
    /// again.
    lost_messages: usize,
    actors: Vec<Actor>,
    /// Whether each actor sleeps. An actor that sleeps is not polled.
    is_asleep: [bool; ACTORS],
    /// For each actor that holds, the token of the hold and the listener to its changes.
    listeners: Vec<Option<(i64, Listener)>>,
    /// Whether no background task runs now.
    is_blind: bool,
    /// The number of places in queues that actors have got so far. A place is a number that rises with each contender.
    queued: u64,
    commits: Commits,
    /// A client that no fault affects.
    outsider: Memory,
    /// A session of `outsider`, with which the world reads and changes nodes directly.
    observer: Arc<dyn Session>,
    /// The newest backup, and the paths of the contenders in it.
    backup: Option<(Backup, Vec<String>)>,
    /// Left-over nodes: their sessions are over for the clients, and the ensemble still has the nodes.
    ghosts: Vec<String>,
    ledger: Ledger,
}

fn open(plan: &plan::Handle, client: &Wired, permits: u32) -> Handle {
    let keep = plan.keep.map(std::time::Duration::from_millis);
    let options = |lock: RwLockBuilder| {
        let lock = lock.dialect(plan.dialect.dialect());
        keep.into_iter().fold(lock, RwLockBuilder::keep)
    };
    let value =
        plan.has_value.then(|| Shared::builder(client, VALUE).initial(|| 0_u64).lock(options).build().expect("valid"));
    let lock = match &value {
        Some(value) => value.lock().clone(),
        None => options(RwLock::builder(client, LOCK)).build().expect("valid"),
    };
    let limit = Semaphore::builder(client, LIMIT).permits(permits).build().expect("valid");
    Handle { plan: plan.clone(), lock, value: value.as_ref().map(Copied::of), limit }
}

impl World {
    async fn new(schedule: &Schedule) -> World {
        let outsider = Memory::new();
        let observer = World::observe(&outsider).await;
        observer.create(RECORD, b"0", Kind::Persistent).await.expect("an empty ensemble");
        let clients: Vec<_> = (0..CLIENTS).map(|_| Wired::new(outsider.connect())).collect();
        World {
            handles: schedule.handles.iter().map(|plan| open(plan, &clients[plan.client], schedule.permits)).collect(),
            clients,
            permits: schedule.permits,
            handle_of: schedule.handle_of.clone(),
            cut: vec![false; CLIENTS],
            lagging: vec![false; CLIENTS],
            hushed: vec![false; CLIENTS],
            are_unheard: false,
            lost_messages: 0,
            actors: (0..ACTORS).map(|_| Actor::Idle).collect(),
            is_asleep: [false; ACTORS],
            listeners: (0..ACTORS).map(|_| None).collect(),
            is_blind: false,
            queued: 0,
            commits: Commits::default(),
            outsider,
            observer,
            backup: None,
            ghosts: Vec::new(),
            ledger: Ledger::new(schedule),
        }
    }

    async fn observe(outsider: &Memory) -> Arc<dyn Session> {
        Arc::clone(outsider.session_slot(0).await.expect("always open").session())
    }

    async fn step(&mut self, Step(actor, action, after): Step) {
        self.act(actor, action).await;
        self.check().await;
        match after {
            After::Nothing => {}
            After::Polls => {
                for i in 0..ACTORS {
                    self.poll(i).await;
                }
                self.check().await;
            }
            After::Settles => self.settle().await,
        }
    }

    /// Runs these steps without background tasks. Without these tasks, no contender watches its own node.
    fn steps_blindly(mut self, steps: Vec<Step>) -> World {
        let (done, mut world) = tokio::sync::oneshot::channel();
        let session = Arc::clone(&self.observer);
        // The steps run inside a background task. The ensemble runs one background task at a time, so no other background
        // task runs before the steps have ended.
        session.spawn(Box::pin(async move {
            self.is_blind = true;
            for step in steps {
                self.step(step).await;
            }
            self.is_blind = false;
            assert!(done.send(self).is_ok(), "the caller waits");
        }));
        world.try_recv().expect("no step waits")
    }

    /// Returns whether the effects of this step need background tasks: time must pass, or a contender must watch its
    /// own node.
    fn needs_others(&self, Step(actor, action, _): Step) -> bool {
        match action {
            Action::Wait | Action::Cut(_) | Action::Remove(_) | Action::Clear(_) | Action::Restore => true,
            Action::Expire => self.cut[self.client_of(actor)],
            _ => false,
        }
    }

    fn client_of(&self, actor: usize) -> usize {
        self.handles[self.handle_of[actor]].plan.client
    }

    /// Polls everything until nothing moves, with all checks after each poll.
    async fn settle(&mut self) {
        loop {
            let mut has_moved = false;
            for client in 0..CLIENTS {
                while !self.clients[client].is_stalled() && self.clients[client].deliver() {
                    has_moved = true;
                    self.check().await;
                }
            }
            for i in 0..ACTORS {
                has_moved |= self.poll(i).await;
            }
            // Without a session, the first value would be written on a thread of the library, and that thread uses real
            // time.
            for handle in self.handles.iter().filter(|handle| !self.cut[handle.plan.client]) {
                has_moved |= handle.value.as_ref().is_some_and(Copied::goes_on);
            }
            if !has_moved {
                self.check().await;
                return self.check_rest();
            }
            self.check().await;
        }
    }

    /// Polls an actor if its waker has fired and it is not asleep. Returns whether it was polled.
    async fn poll(&mut self, i: usize) -> bool {
        let Actor::Busy(work) = &mut self.actors[i] else { return false };
        if !work.is_ready() || self.is_asleep[i] {
            return false;
        }
        if let Some(answer) = work.poll() {
            let Actor::Busy(work) = std::mem::replace(&mut self.actors[i], Actor::Idle) else { return false };
            self.check_answer(i, &work, &answer);
            self.check_value().await;
            self.actors[i] = self.ledger.came(answer, self.handle_of[i], work.age);
        }
        self.check_claims();
        true
    }

    fn children(&self, directory: &str) -> Vec<String> {
        self.clients[0].memory.children(directory)
    }

    /// Returns the paths of all contenders.
    fn left(&self) -> Vec<String> {
        let paths = [LOCK, QUEUE, PERMITS]
            .into_iter()
            .flat_map(|directory| self.children(directory).into_iter().map(move |name| format!("{directory}/{name}")));
        paths.collect()
    }

    fn is_done(&self) -> bool {
        self.actors.iter().all(|actor| matches!(actor, Actor::Idle))
    }

    /// Repairs all faults, and releases holds one after another. Checks that every waiter is granted, and that no node
    /// and no watch is left.
    async fn come_to_rest(&mut self) {
        for client in &self.clients {
            client.flow();
            client.memory.faults().heal();
            client.memory.faults().catch_up();
        }
        self.is_asleep = [false; ACTORS];
        self.expire_ghosts();
        // A waiter whose event was lost lists the queue again after at most ten minutes, plus a tenth as jitter.
        let (pause, looks) = if self.are_unheard { (61 * LONG, 2 * ACTORS) } else { (LONG, 0) };
        for _round in 0..=2 * ACTORS + self.lost_messages + looks {
            self.settle().await;
            // After several lost replies in a row, the library waits each time before it sends a request again.
            for _ in 0..=self.lost_messages / PATIENT {
                tokio::time::advance(pause).await;
                self.settle().await;
            }
            self.check_nobody_is_false();
            for actor in &mut self.actors {
                if matches!(actor, Actor::Holding(_)) {
                    *actor = Actor::Idle;
                }
            }
            if self.is_done() {
                break;
            }
        }
        assert!(self.is_done(), "an actor waits for ever: {:?}", self.left());
        if self.are_unheard {
            tokio::time::advance(pause).await;
            self.settle().await;
        }
        self.check_copies();
        // Dropping a handle removes the node that it keeps between uses.
        self.handles.clear();
        for retry in 0..RETRIES {
            self.settle().await;
            // After lost replies, a removal may still be waiting to retry although its node is gone.
            if self.left().is_empty() && self.watches() == 0 && retry >= self.lost_messages {
                break;
            }
            tokio::time::advance(LONG).await;
        }
        assert_eq!(self.left(), Vec::<String>::new(), "a node was left behind");
        assert_eq!(self.watches(), 0, "a watch was left behind");
    }

    /// Returns the number of watches. If events may be lost, returns 0, because a watch whose event is lost stays.
    fn watches(&self) -> usize {
        if self.are_unheard { 0 } else { self.clients[0].memory.watches() }
    }

    /// Removes the left-over nodes: their sessions are over for the clients, and the ensemble still has the nodes.
    fn expire_ghosts(&mut self) {
        for ghost in std::mem::take(&mut self.ghosts) {
            self.clients[0].memory.faults().remove(ghost);
        }
    }

    fn directory(part: Part) -> &'static str {
        match part {
            Part::Lock => LOCK,
            Part::Queue => QUEUE,
            Part::Permits => PERMITS,
        }
    }
}

/// Runs a schedule. Panics if a check fails.
pub(crate) fn run(schedule: &Schedule) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    // Runs without tokio's cooperative budget, under which a ready future would sometimes return `Pending`.
    runtime.expect("a runtime").block_on(tokio::task::unconstrained(async move {
        let mut world = World::new(schedule).await;
        let mut steps = schedule.steps.iter().copied().peekable();
        while let Some(step) = steps.next() {
            if !schedule.are_blind || world.needs_others(step) {
                world.step(step).await;
                continue;
            }
            let mut while_blind = vec![step];
            while let Some(step) = steps.next_if(|step| !world.needs_others(*step)) {
                while_blind.push(step);
            }
            world = world.steps_blindly(while_blind);
        }
        world.come_to_rest().await;
    }));
}
