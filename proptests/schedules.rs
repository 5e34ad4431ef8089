//! P8: random schedules over the embedded backend, in virtual time, polled by hand.
//!
//! A safety phase with every fault the backend knows, and then a liveness phase: the network is mended, holders
//! release, and every waiter must be granted. Each schedule comes from a seed of its own, and one that fails prints
//! the line that runs it again.

use std::collections::hash_map::RandomState;
use std::collections::{HashMap, HashSet};
use std::hash::BuildHasher;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};
use tokio_test::task::{self, Spawn};
use zk_rwlock::coordinator::{Coordinator, Kind, Session};
use zk_rwlock::{Error, HoldState, Loss, Memory, ReadGuard, RwLock, RwLockBuilder, WriteGuard};

const LOCK: &str = "/locks/schedule";

/// The node that the lock guards: it contains the token of its last writer.
const VALUE: &str = "/value";

const CLIENTS: usize = 3;
const ACTORS: usize = 6;
const STEPS: usize = 80;

/// More than the session timeout: a client that was cut off for so long has lost what it held.
const LONG: Duration = Duration::from_secs(11);

#[derive(Clone, Copy, Debug)]
enum Action {
    Read,
    Write,
    /// With a timeout that ends when the next [`Action::Wait`] does.
    ReadBriefly,
    WriteBriefly,
    TryRead,
    TryWrite,
    /// A write to a node elsewhere, which must be refused once the lock is lost.
    Transaction,
    /// A read of that node, which must show what all earlier holders wrote.
    Look,
    /// Drops the acquisition, or the guard.
    Drop,
    Release,
    Downgrade,
    Share,
    Cut,
    Heal,
    Expire,
    LoseReply,
    LoseRequest,
    Lag,
    CatchUp,
    Reap,
    /// An operator deletes the node of this actor.
    Remove,
    /// Opens this actor's handle anew. The old one ends with its last acquisition, and takes the node that it keeps
    /// along.
    Reopen,
    Wait,
}

#[derive(Clone, Copy, Debug)]
struct Step {
    actor: usize,
    action: Action,
    /// Whether woken actors run before the next step, or race with it.
    settle: bool,
}

/// What one [`Action::Wait`] lasts.
const WHILE: Duration = LONG.checked_div(4).expect("not divided by zero");

/// Each client has two handles of the lock.
const HANDLES: usize = 2 * CLIENTS;

type Acquiring<G> = Spawn<Pin<Box<dyn Future<Output = Result<G, Error>> + Send>>>;

enum Actor {
    Idle,
    Reading(Acquiring<ReadGuard>),
    Writing(Acquiring<WriteGuard>),
    Downgrading(Acquiring<ReadGuard>),
    Reader(Vec<ReadGuard>),
    Writer(Box<WriteGuard>),
}

struct World {
    clients: Vec<Memory>,
    /// Which handle each actor uses. Actors of one client share a session, and know of each other; actors of one handle
    /// share the nodes that it keeps.
    handle_of: [usize; ACTORS],
    /// How long each handle keeps an idle node, if it keeps any.
    idle: Vec<Option<Duration>>,
    locks: Vec<RwLock>,
    cut: Vec<bool>,
    lagging: Vec<bool>,
    actors: Vec<Actor>,
    /// Whose node has each token that was granted.
    owners: HashMap<i64, usize>,
    /// A client that nothing happens to.
    observer: Arc<dyn Session>,
    written: i64,
    /// What had been written when each actor was granted what it holds.
    found: Vec<Option<i64>>,
    /// The tokens of those that said they were lost.
    lost: HashSet<i64>,
    /// The highest token of any grant, and of any grant to a writer.
    highest: i64,
    highest_writer: i64,
}

fn client_of(handle: usize) -> usize {
    handle / 2
}

fn open(client: &Memory, idle: Option<Duration>) -> RwLock {
    let lock = RwLock::builder(client, LOCK);
    idle.into_iter().fold(lock, RwLockBuilder::keep).build().expect("valid")
}

impl World {
    async fn new(handle_of: [usize; ACTORS], idle: Vec<Option<Duration>>) -> World {
        let first = Memory::new();
        let clients: Vec<_> = (0..CLIENTS).map(|i| if i == 0 { first.clone() } else { first.connect() }).collect();
        let locks = idle.iter().enumerate().map(|(handle, idle)| open(&clients[client_of(handle)], *idle)).collect();
        let actors = (0..ACTORS).map(|_| Actor::Idle).collect();
        let observer = Arc::clone(first.connect().session_slot(0).await.expect("always open").session());
        observer.create(VALUE, b"0", Kind::Persistent).await.expect("an empty ensemble");
        let (cut, lagging) = (vec![false; CLIENTS], vec![false; CLIENTS]);
        World {
            clients,
            handle_of,
            idle,
            locks,
            cut,
            lagging,
            actors,
            owners: HashMap::new(),
            observer,
            written: 0,
            found: vec![None; ACTORS],
            lost: HashSet::new(),
            highest: 0,
            highest_writer: 0,
        }
    }

    async fn step(&mut self, step: Step) {
        self.take(step).await;
        if step.settle {
            self.settle();
            self.check_value().await;
        }
    }

    /// Takes these steps before anything happens in the background: no contender watches its own node yet.
    fn steps_blindly(mut self, steps: Vec<Step>) -> World {
        let (done, mut world) = tokio::sync::oneshot::channel();
        let session = Arc::clone(&self.observer);
        // While a background task runs, no other does.
        session.spawn(Box::pin(async move {
            for step in steps {
                self.step(step).await;
            }
            assert!(done.send(self).is_ok(), "the caller waits");
        }));
        world.try_recv().expect("no step waits")
    }

    /// Whether this step, or later ones because of it, needs time to pass, or needs a contender to watch its own node.
    fn needs_others(&self, step: Step) -> bool {
        match step.action {
            Action::Wait | Action::Cut | Action::Remove => true,
            Action::Expire => self.cut[client_of(self.handle_of[step.actor])],
            _ => false,
        }
    }

    async fn take(&mut self, step: Step) {
        let handle = self.handle_of[step.actor];
        let client = client_of(handle);
        let (memory, lock) = (&self.clients[client], &self.locks[handle]);
        let actor = &mut self.actors[step.actor];
        match (step.action, &mut *actor) {
            (Action::Read, Actor::Idle) => *actor = Actor::Reading(task::spawn(Box::pin(lock.read().into_future()))),
            (Action::Write, Actor::Idle) => *actor = Actor::Writing(task::spawn(Box::pin(lock.write().into_future()))),
            (Action::ReadBriefly, Actor::Idle) => {
                *actor = Actor::Reading(task::spawn(Box::pin(lock.read().timeout(WHILE).into_future())));
            }
            (Action::WriteBriefly, Actor::Idle) => {
                *actor = Actor::Writing(task::spawn(Box::pin(lock.write().timeout(WHILE).into_future())));
            }
            (Action::TryRead, Actor::Idle) => {
                let lock = lock.clone();
                *actor = Actor::Reading(task::spawn(Box::pin(async move { lock.try_read().await })));
            }
            (Action::TryWrite, Actor::Idle) => {
                let lock = lock.clone();
                *actor = Actor::Writing(task::spawn(Box::pin(async move { lock.try_write().await })));
            }
            (Action::Transaction, Actor::Writer(guard)) => {
                let write = guard.transaction().set(VALUE, guard.fencing_token().to_string());
                // The transaction is on its way, and will be carried out or refused as a whole.
                let _now_or_later = task::spawn(write.commit()).poll();
            }
            (Action::Look, Actor::Reader(_) | Actor::Writer(_)) => {
                let read: Pin<Box<dyn Future<Output = _> + '_>> = match &*actor {
                    Actor::Writer(guard) => Box::pin(guard.data(VALUE)),
                    Actor::Reader(guards) => Box::pin(guards[0].data(VALUE)),
                    _ => return,
                };
                if let (std::task::Poll::Ready(Ok(Some(node))), Some(found)) =
                    (task::spawn(read).poll(), self.found[step.actor])
                {
                    let seen: i64 = String::from_utf8_lossy(&node.data).parse().expect("a token");
                    assert!(found <= seen, "a holder reads {seen}, and {found} was written before it was granted");
                }
            }
            (Action::Drop, _) => *actor = Actor::Idle,
            (Action::Release, _) => match std::mem::replace(actor, Actor::Idle) {
                Actor::Reader(guards) => guards.into_iter().for_each(|guard| give_back(guard.release())),
                Actor::Writer(guard) => give_back(guard.release()),
                other => *actor = other,
            },
            (Action::Downgrade, Actor::Writer(_)) => {
                if let Actor::Writer(guard) = std::mem::replace(actor, Actor::Idle) {
                    *actor = Actor::Downgrading(task::spawn(Box::pin(guard.downgrade())));
                }
            }
            (Action::Share, Actor::Reader(guards)) => guards.extend(guards.first().map(ReadGuard::share)),
            (Action::Cut, _) => {
                memory.cut();
                self.cut[client] = true;
            }
            (Action::Heal, _) => {
                memory.heal();
                self.cut[client] = false;
            }
            (Action::Expire, _) => {
                if self.cut[client] {
                    // The ensemble waits for the whole session timeout, and the lease is shorter.
                    tokio::time::advance(LONG).await;
                }
                memory.expire();
            }
            (Action::LoseReply, _) => memory.lose_next_reply(),
            (Action::LoseRequest, _) => memory.lose_next_request(),
            (Action::Lag, _) => {
                memory.lag();
                self.lagging[client] = true;
            }
            (Action::CatchUp, _) => {
                memory.catch_up();
                self.lagging[client] = false;
            }
            (Action::Reap, _) => memory.reap_containers(),
            // A holder that cannot hear of it at once would hold beside the next one: nothing helps against that.
            (Action::Remove, _) if !self.cut.contains(&true) && !self.lagging.contains(&true) => {
                let children = memory.children(LOCK);
                if let Some(child) = children.get(step.actor % children.len().max(1)) {
                    memory.remove(format!("{LOCK}/{child}"));
                }
            }
            (Action::Reopen, _) => self.locks[handle] = open(memory, self.idle[handle]),
            (Action::Wait, _) => tokio::time::advance(WHILE).await,
            _ => {}
        }
    }

    /// Polls woken actors until none is woken, and checks what must hold after each poll.
    fn settle(&mut self) {
        loop {
            let mut moved = false;
            for i in 0..ACTORS {
                moved |= self.poll(i);
                self.check_exclusion();
            }
            if !moved {
                return;
            }
        }
    }

    fn poll(&mut self, i: usize) -> bool {
        let next = match &mut self.actors[i] {
            Actor::Reading(acquiring) => match poll(acquiring) {
                Some(Ok(guard)) => Actor::Reader(vec![guard]),
                Some(Err(error)) => ended(&error),
                None => return false,
            },
            Actor::Downgrading(acquiring) => match poll(acquiring) {
                Some(Ok(guard)) => {
                    self.actors[i] = Actor::Reader(vec![guard]);
                    return true;
                }
                Some(Err(error)) => ended(&error),
                None => return false,
            },
            Actor::Writing(acquiring) => match poll(acquiring) {
                Some(Ok(guard)) => Actor::Writer(Box::new(guard)),
                Some(Err(error)) => ended(&error),
                None => return false,
            },
            _ => return false,
        };
        match &next {
            Actor::Reader(guards) => {
                let token = guards[0].fencing_token();
                let is_again = is_again(&mut self.owners, token, self.handle_of[i]);
                let rises = token > self.highest_writer || (is_again && token == self.highest_writer);
                assert!(rises, "a reader's token does not rise above the last writer's");
                self.highest = self.highest.max(token);
            }
            Actor::Writer(guard) => {
                let token = guard.fencing_token();
                let is_again = is_again(&mut self.owners, token, self.handle_of[i]);
                let rises = token > self.highest || (is_again && token == self.highest);
                assert!(rises, "a writer's token does not rise above all earlier ones");
                (self.highest, self.highest_writer) = (token, token);
            }
            _ => {}
        }
        self.actors[i] = next;
        true
    }

    fn check_exclusion(&mut self) {
        let (mut readers, mut writers) = (0, 0);
        let mut seen = |state: HoldState, token| {
            let held = !matches!(state, HoldState::Lost { .. });
            assert_ne!(state, HoldState::Lost { why: Loss::Interfered }, "no client wrote to a lock node");
            if !held {
                self.lost.insert(token);
            }
            assert!(!held || !self.lost.contains(&token), "a lost guard became valid again");
            usize::from(held)
        };
        for actor in &self.actors {
            match actor {
                Actor::Reader(guards) => {
                    readers += guards.iter().map(|guard| seen(guard.state(), guard.fencing_token())).sum::<usize>();
                }
                Actor::Writer(guard) => writers += seen(guard.state(), guard.fencing_token()),
                _ => {}
            }
        }
        assert!(writers == 0 || (writers == 1 && readers == 0), "{writers} writers hold beside {readers} readers");
    }

    /// What was written under the lock was written in the order of its tokens.
    async fn check_value(&mut self) {
        let (value, _) = self.observer.data(VALUE).await.expect("never deleted");
        let written = String::from_utf8_lossy(&value).parse().expect("a token");
        assert!(self.written <= written, "token {written} wrote after {}", self.written);
        self.written = written;
        for (actor, found) in self.actors.iter().zip(&mut self.found) {
            match actor {
                Actor::Reader(_) | Actor::Writer(_) => *found = Some(found.unwrap_or(written)),
                _ => *found = None,
            }
        }
    }

    fn is_done(&self) -> bool {
        self.actors.iter().all(|actor| matches!(actor, Actor::Idle))
    }

    /// Mends everything; then every waiter must be granted as holders release.
    async fn come_to_rest(&mut self) {
        for client in &self.clients {
            client.heal();
            client.catch_up();
        }
        for _round in 0..=2 * ACTORS {
            self.settle();
            // After several lost answers in a row the next try waits a little.
            tokio::time::advance(LONG).await;
            self.settle();
            for actor in &mut self.actors {
                if matches!(actor, Actor::Reader(_) | Actor::Writer(_)) {
                    *actor = Actor::Idle;
                }
            }
            if self.is_done() {
                break;
            }
        }
        assert!(self.is_done(), "an actor waits for ever: {:?}", self.clients[0].children(LOCK));
        // What is only kept goes with its handle.
        self.locks.clear();
        for _retry in 0..STEPS {
            if self.clients[0].children(LOCK).is_empty() {
                break;
            }
            tokio::time::advance(LONG).await;
        }
        self.check_value().await;
        assert_eq!(self.clients[0].children(LOCK), Vec::<String>::new(), "a node was left behind");
        assert_eq!(self.clients[0].watches(), 0, "a watch was left behind");
    }
}

/// Whether a node was granted before: only the handle that keeps it may use it again.
fn is_again(owners: &mut HashMap<i64, usize>, token: i64, handle: usize) -> bool {
    let before = owners.insert(token, handle);
    assert!(before.is_none_or(|owner| owner == handle), "one node was granted to two handles");
    before.is_some()
}

/// Starts a release, which goes on in the background if it cannot finish now.
fn give_back(release: impl Future<Output = Result<(), Error>>) {
    let mut release = task::spawn(release);
    let _in_time_or_later = release.poll();
}

fn poll<G>(acquiring: &mut Acquiring<G>) -> Option<Result<G, Error>> {
    match acquiring.poll() {
        std::task::Poll::Ready(answer) => Some(answer),
        std::task::Poll::Pending => None,
    }
}

/// Only an ended session, a removed node, or the acquisition's own options may end an acquisition here.
fn ended(error: &Error) -> Actor {
    let expected = error.is_lost() || error.is_timeout() || error.is_would_block();
    assert!(!matches!(error, Error::Evicted(Loss::Interfered)), "no client wrote to a lock node");
    assert!(expected, "an acquisition failed: {error}");
    Actor::Idle
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        4 => Just(Action::Read),
        4 => Just(Action::Write),
        1 => Just(Action::ReadBriefly),
        2 => Just(Action::WriteBriefly),
        1 => Just(Action::TryRead),
        1 => Just(Action::TryWrite),
        2 => Just(Action::Transaction),
        2 => Just(Action::Look),
        2 => Just(Action::Drop),
        3 => Just(Action::Release),
        2 => Just(Action::Downgrade),
        1 => Just(Action::Share),
        1 => Just(Action::Cut),
        2 => Just(Action::Heal),
        1 => Just(Action::Expire),
        1 => Just(Action::LoseReply),
        1 => Just(Action::LoseRequest),
        1 => Just(Action::Lag),
        1 => Just(Action::CatchUp),
        1 => Just(Action::Reap),
        1 => Just(Action::Remove),
        1 => Just(Action::Reopen),
        2 => Just(Action::Wait),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    (0..ACTORS, action(), prop::bool::weighted(0.8)).prop_map(|(actor, action, settle)| Step { actor, action, settle })
}

/// Some handles keep nodes, for shorter or longer than the schedule takes. In half of the worlds, holders do not come to
/// watch their own nodes for many steps, as on ZooKeeper at first.
#[derive(Clone, Debug)]
struct Schedule {
    handle_of: [usize; ACTORS],
    idle: Vec<Option<Duration>>,
    are_blind: bool,
    steps: Vec<Step>,
}

fn schedule() -> impl Strategy<Value = Schedule> {
    // Over before, with or after the next [`Action::Wait`], or never.
    let idle = prop::sample::select(vec![WHILE / 2, WHILE, 2 * WHILE, Duration::MAX, Duration::MAX]);
    let handle_of = prop::array::uniform6(0..HANDLES);
    let idle = prop_oneof![Just(vec![None; HANDLES]), prop::collection::vec(prop::option::of(idle), HANDLES)];
    (handle_of, idle, any::<bool>(), prop::collection::vec(step(), 1..STEPS))
        .prop_map(|(handle_of, idle, are_blind, steps)| Schedule { handle_of, idle, are_blind, steps })
}

fn run(schedule: Schedule) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    // Without a budget: tokio would otherwise answer "pending" after a while, to be fair to tasks that are not there.
    runtime.expect("a runtime").block_on(tokio::task::unconstrained(async move {
        let mut world = World::new(schedule.handle_of, schedule.idle).await;
        let mut steps = schedule.steps.into_iter().peekable();
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

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|number| number.parse().expect("a whole number"))
}

/// Runs the schedule of a seed; one that fails is made as small as it gets.
fn run_seed(seed: u64) -> Result<(), String> {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let config =
        ProptestConfig { cases: 1, max_shrink_iters: 100_000, failure_persistence: None, ..ProptestConfig::default() };
    let ran = TestRunner::new_with_rng(config, rng).run(&schedule(), |schedule| {
        run(schedule);
        Ok(())
    });
    ran.map_err(|failure| failure.to_string())
}

/// `SCHEDULES` sets how many are run (`make soak`: 100,000), `SCHEDULE_SEED` the first one's seed.
#[test]
fn every_schedule_keeps_the_lock_safe_and_comes_to_rest() {
    let first = number("SCHEDULE_SEED");
    let schedules = number("SCHEDULES").unwrap_or(if first.is_some() { 1 } else { 3_000 });
    // Each run tries others.
    let first = first.unwrap_or_else(|| RandomState::new().hash_one(schedules));
    for seed in (0..schedules).map(|i| first.wrapping_add(i)) {
        if let Err(failure) = run_seed(seed) {
            panic!("{failure}\nrun it again: SCHEDULE_SEED={seed} cargo test -p zk-rwlock-proptests every_schedule");
        }
    }
    println!("{schedules} schedules, from seed {first} on: no holder beside a writer, and all came to rest");
}
