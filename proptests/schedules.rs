//! P8: random schedules over the embedded backend, in virtual time, polled by hand.
//!
//! A safety phase with every fault the backend knows, and then a liveness phase: the network is mended, holders let
//! go, and everyone who still waits must get the lock.

use std::pin::Pin;
use std::time::Duration;

use proptest::prelude::*;
use tokio_test::task::{self, Spawn};
use zk_rwlock::{Error, Memory, ReadGuard, RwLock, WriteGuard};

const LOCK: &str = "/locks/schedule";
const CLIENTS: usize = 3;
const ACTORS: usize = 6;

/// More than the session timeout: whoever was cut off for so long has lost what it held.
const LONG: Duration = Duration::from_secs(11);

#[derive(Clone, Copy, Debug)]
enum Action {
    Read,
    Write,
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
    Wait,
}

#[derive(Clone, Copy, Debug)]
struct Step {
    actor: usize,
    action: Action,
}

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
    locks: Vec<RwLock>,
    cut: Vec<bool>,
    actors: Vec<Actor>,
    /// The highest token of any grant, and of any grant to a writer.
    highest: i64,
    highest_writer: i64,
}

impl World {
    fn new() -> World {
        let first = Memory::new();
        let clients: Vec<_> = (0..CLIENTS).map(|i| if i == 0 { first.clone() } else { first.connect() }).collect();
        let locks = clients.iter().map(|client| RwLock::new(client, LOCK).expect("a valid path")).collect();
        let actors = (0..ACTORS).map(|_| Actor::Idle).collect();
        World { clients, locks, cut: vec![false; CLIENTS], actors, highest: 0, highest_writer: 0 }
    }

    async fn take(&mut self, step: Step) {
        let client = step.actor % CLIENTS;
        let (memory, lock) = (&self.clients[client], &self.locks[client]);
        let actor = &mut self.actors[step.actor];
        match (step.action, &mut *actor) {
            (Action::Read, Actor::Idle) => *actor = Actor::Reading(task::spawn(lock.read().into_future())),
            (Action::Write, Actor::Idle) => *actor = Actor::Writing(task::spawn(lock.write().into_future())),
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
            (Action::Lag, _) => memory.lag(),
            (Action::CatchUp, _) => memory.catch_up(),
            (Action::Reap, _) => memory.reap_containers(),
            (Action::Wait, _) => tokio::time::advance(LONG / 4).await,
            _ => {}
        }
    }

    /// Polls whoever was woken until nobody is, and checks what must hold after each poll.
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
                assert!(token > self.highest_writer, "a reader's token does not rise above the last writer's");
                self.highest = self.highest.max(token);
            }
            Actor::Writer(guard) => {
                let token = guard.fencing_token();
                assert!(token > self.highest, "a writer's token does not rise above all earlier ones");
                (self.highest, self.highest_writer) = (token, token);
            }
            _ => {}
        }
        self.actors[i] = next;
        true
    }

    fn check_exclusion(&self) {
        let (mut readers, mut writers) = (0, 0);
        for actor in &self.actors {
            match actor {
                Actor::Reader(guards) => readers += guards.iter().filter(|guard| guard.is_held()).count(),
                Actor::Writer(guard) => writers += usize::from(guard.is_held()),
                _ => {}
            }
        }
        assert!(writers == 0 || (writers == 1 && readers == 0), "{writers} writers hold beside {readers} readers");
    }

    fn is_done(&self) -> bool {
        self.actors.iter().all(|actor| matches!(actor, Actor::Idle))
    }

    /// Mends everything; then whoever still waits must get the lock as holders let go.
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
        assert!(self.is_done(), "somebody waits for ever: {:?}", self.clients[0].children(LOCK));
        assert_eq!(self.clients[0].children(LOCK), Vec::<String>::new(), "a node was left behind");
        assert_eq!(self.clients[0].watches(), 0, "a watch was left behind");
    }
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

/// Only an ended session, or a lost answer that was lost too often, may end an acquisition here.
fn ended(error: &Error) -> Actor {
    assert!(error.is_lost(), "an acquisition failed: {error}");
    Actor::Idle
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        4 => Just(Action::Read),
        4 => Just(Action::Write),
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
        1 => Just(Action::Wait),
    ]
}

fn schedule() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec((0..ACTORS, action()).prop_map(|(actor, action)| Step { actor, action }), 1..80)
}

fn run(schedule: Vec<Step>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    // Without a budget: tokio would otherwise answer "pending" after a while, to be fair to tasks that are not there.
    runtime.expect("a runtime").block_on(tokio::task::unconstrained(async move {
        let mut world = World::new();
        for step in schedule {
            world.take(step).await;
            world.settle();
        }
        world.come_to_rest().await;
    }));
}

/// How many schedules are run; `make soak` runs 100,000.
fn schedules() -> u32 {
    std::env::var("SCHEDULES").ok().and_then(|schedules| schedules.parse().ok()).unwrap_or(3_000)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: schedules(), ..ProptestConfig::default() })]

    #[test]
    fn every_schedule_keeps_the_lock_safe_and_comes_to_rest(schedule in schedule()) {
        run(schedule);
    }
}
