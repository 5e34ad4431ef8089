//! A false event beside the true one, at every split of a waiter's requests.
//!
//! The waiter's requests are carried out one at a time. Between two of them a stranger causes a false event: a write
//! that looks like a hand-off or an ask, or a write that changes nothing. At the same or another split the true event
//! comes: the contenders ahead take, release or give up. All pairs of splits are tried, in both orders.

use std::cell::OnceCell;
use std::future::{Future, IntoFuture};
use std::ops::Deref;
use std::panic::catch_unwind;
use std::pin::Pin;
use std::task::Poll;

use support::polled::{now, write};
use support::wired::Wired;
use tokio_test::task::{self, Spawn};
use zk_rwlock::coordinator::{Coordinator, Operation, permits_in_name};
use zk_rwlock::{Error, Hold, Loss, Memory, Mode, RwLock, Semaphore};

const LOCK: &str = "/lock";
const LIMIT: &str = "/limit";
const QUEUE: &str = "/limit/queue";
const PERMITS: &str = "/limit/permits";

/// More requests than any waiter sends.
const REQUESTS: usize = 200;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Subject {
    /// One permit for all. The waiter is second in the queue, behind a contender that waits for the permit.
    Permit,
    /// The waiter is behind a writer that waits for a holder.
    Lock(Mode),
}

/// What a stranger does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FalseEvent {
    /// Writes to the node of the waiter's predecessor, as a hand-off does.
    HandOff,
    /// Writes to the waiter's own node.
    Own,
    /// Writes to the directory of the queue, as a contender does that asks for kept nodes.
    Ask,
    /// Writes the same number of permits again. The waiter's watch on the number fires.
    Number,
}

/// What the contenders ahead of the waiter do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TrueEvent {
    /// The holder releases, so that the waiter's predecessor holds.
    Released,
    /// The predecessor gives up.
    GivenUp,
    /// The holder releases, and the predecessor holds and releases.
    Drained,
    /// The holder released before the waiter came, and its predecessor, which was not polled since, holds.
    Taken,
    /// As `Taken`, and the predecessor releases at once.
    TakenAndReleased,
}

#[derive(Clone, Copy, Debug)]
struct Case {
    subject: Subject,
    false_event: FalseEvent,
    true_event: TrueEvent,
    false_first: bool,
    /// The number of the waiter's requests that are carried out before the first event.
    before: usize,
    /// The number of those that are carried out between the two events.
    between: usize,
}

/// A guard. Dropping it gives the lock or the permit back.
type Held = Box<dyn Deref<Target = Hold>>;

/// The acquisition of a contender.
type Work = Spawn<Pin<Box<dyn Future<Output = Result<Held, Error>>>>>;

struct Contender {
    work: Option<Work>,
    is_new: bool,
    held: Option<Held>,
    error: OnceCell<Error>,
}

impl Contender {
    fn of<G: Deref<Target = Hold> + 'static>(acquiring: impl Future<Output = Result<G, Error>> + 'static) -> Contender {
        let work: Pin<Box<dyn Future<Output = Result<Held, Error>>>> =
            Box::pin(async move { acquiring.await.map(|guard| Box::new(guard) as Held) });
        Contender { work: Some(task::spawn(work)), is_new: true, held: None, error: OnceCell::new() }
    }

    fn poll(&mut self) -> bool {
        let is_new = std::mem::take(&mut self.is_new);
        let Some(work) = self.work.as_mut().filter(|work| is_new || work.is_woken()) else { return false };
        if let Poll::Ready(answer) = work.poll() {
            self.work = None;
            match answer {
                Ok(held) => self.held = Some(held),
                Err(error) => self.error = OnceCell::from(error),
            }
        }
        true
    }

    fn leave(&mut self) {
        (self.work, self.held) = (None, None);
    }

    fn is_held(&self) -> bool {
        self.held.as_ref().is_some_and(|held| held.is_held())
    }
}

struct World {
    subject: Subject,
    zk: Memory,
    wired: Wired,
    /// The holder, the waiter's predecessor, and the waiter.
    contenders: [Contender; 3],
    /// Whether a stranger has forged a hand-off. Then the waiter may hold without a right until the library has found
    /// the forgery.
    is_forged: bool,
    /// Whether the predecessor is not polled yet.
    is_asleep: bool,
}

fn acquiring<C: Coordinator + Clone>(subject: Subject, client: &C, mode: Mode) -> Contender {
    match subject {
        Subject::Permit => Contender::of(Semaphore::new(client, LIMIT, 1).expect("valid").acquire().into_future()),
        Subject::Lock(_) => {
            let lock = RwLock::new(client, LOCK).expect("valid");
            match mode {
                Mode::Read => Contender::of(lock.read().into_future()),
                Mode::Write => Contender::of(lock.write().into_future()),
            }
        }
    }
}

impl World {
    fn new(subject: Subject, true_event: TrueEvent) -> World {
        let zk = Memory::new();
        let ahead = zk.connect();
        let wired = Wired::new(zk.connect());
        // The directories exist, and both clients know them.
        match subject {
            Subject::Permit => {
                for client in [&ahead, &wired.memory] {
                    drop(now(Semaphore::new(client, LIMIT, 1).expect("valid").acquire()).expect("free"));
                }
            }
            Subject::Lock(_) => drop(write(&RwLock::new(&ahead, LOCK).expect("valid"))),
        }
        let mode = match subject {
            Subject::Permit => Mode::Write,
            Subject::Lock(mode) => mode,
        };
        let mut holder = acquiring(subject, &ahead, Mode::Write);
        holder.poll();
        assert!(holder.is_held());
        let mut predecessor = acquiring(subject, &ahead, Mode::Write);
        predecessor.poll();
        let is_asleep = matches!(true_event, TrueEvent::Taken | TrueEvent::TakenAndReleased);
        if is_asleep {
            holder.leave();
        }
        wired.stall();
        let mut waiter = acquiring(subject, &wired, mode);
        waiter.poll();
        World { subject, zk, wired, contenders: [holder, predecessor, waiter], is_forged: false, is_asleep }
    }

    fn queue(&self) -> &'static str {
        if self.subject == Subject::Permit { QUEUE } else { LOCK }
    }

    /// Returns the paths of the nodes in the queue, first come first.
    fn nodes(&self) -> Vec<String> {
        let mut names = self.zk.children(self.queue());
        names.sort_by_key(|name| name[name.len() - 10..].to_owned());
        names.iter().map(|name| format!("{}/{name}", self.queue())).collect()
    }

    fn check(&self) {
        let held = self.contenders.iter().filter(|it| it.is_held()).count();
        match self.subject {
            Subject::Permit => {
                let taken: u32 = self.zk.children(PERMITS).iter().filter_map(|name| permits_in_name(name)).sum();
                assert!(taken <= 1 && held <= 1, "{held} hold {taken} permits, and there is one");
                let is_early = self.contenders[2].is_held() && self.contenders[1].work.is_some();
                assert!(!is_early, "the waiter was granted before its predecessor");
            }
            Subject::Lock(_) => assert!(held <= 1 || self.is_forged, "{held} hold the lock"),
        }
    }

    fn settle(&mut self) {
        let mut has_moved = true;
        while std::mem::take(&mut has_moved) {
            for i in 0..self.contenders.len() {
                has_moved |= !(i == 1 && self.is_asleep) && self.contenders[i].poll();
            }
            self.check();
        }
    }

    /// Carries out requests of the waiter, one after the other. Returns whether there were so many.
    fn carry_out(&mut self, requests: usize) -> bool {
        (0..requests).all(|_| {
            let delivered = self.wired.deliver();
            self.settle();
            delivered
        })
    }

    fn cause_false(&mut self, event: FalseEvent) {
        let (mut nodes, has_own) = (self.nodes(), self.has_own_node());
        let own = if has_own { nodes.pop() } else { None };
        let (path, data) = match event {
            FalseEvent::HandOff => (nodes.pop(), ""),
            FalseEvent::Own => (own, ""),
            FalseEvent::Ask => (Some(self.queue().to_owned()), ""),
            FalseEvent::Number => (Some(LIMIT.to_owned()), "permits=1"),
        };
        let Some(path) = path else { return };
        let set = Operation::Set { path, data: data.as_bytes().to_vec(), version: None };
        self.is_forged |= event == FalseEvent::HandOff;
        let session = now(self.zk.session_slot(0)).expect("open");
        now(session.session().transact(&[set])).expect("the node exists");
        self.settle();
    }

    /// Returns whether the ensemble has the waiter's node.
    fn has_own_node(&self) -> bool {
        let id = self.wired.memory.session_id();
        let session = now(self.zk.session_slot(0)).expect("open");
        let owner = |path: &String| now(session.session().data(path)).map(|(_, stat)| stat.ephemeral_owner).ok();
        self.nodes().last().and_then(owner) == id
    }

    fn cause_true(&mut self, event: TrueEvent) {
        self.is_asleep = false;
        match event {
            TrueEvent::Released => self.contenders[0].leave(),
            TrueEvent::GivenUp => self.contenders[1].leave(),
            TrueEvent::Taken => {}
            TrueEvent::Drained | TrueEvent::TakenAndReleased => {
                self.contenders[0].leave();
                self.settle();
                self.contenders[1].leave();
            }
        }
        self.settle();
    }

    fn come_to_rest(mut self, false_event: FalseEvent) {
        assert!(!self.carry_out(REQUESTS), "a request is repeated for ever");
        self.wired.flow();
        let held = self.contenders.iter().filter(|it| it.is_held()).count();
        assert!(held <= 1, "{held} hold when all has come to rest");
        for i in [0, 1, 2] {
            if let Some(error) = self.contenders[i].error.get() {
                let is_forged = matches!(error, Error::Evicted(Loss::Interfered) | Error::Lost(Loss::Interfered));
                assert!(i == 2 && false_event == FalseEvent::HandOff && is_forged, "{error}");
            } else {
                let is_granted = self.contenders[i].work.is_none();
                assert!(is_granted, "contender {i} waits for ever");
            }
            self.contenders[i].leave();
            self.settle();
        }
        let left = (self.nodes(), self.zk.children(PERMITS), self.zk.watches());
        assert_eq!(left, (vec![], vec![], 0), "something was left behind");
    }
}

/// Runs a case. Returns whether the waiter sent enough requests for this case.
fn run(case: Case) -> bool {
    let mut world = World::new(case.subject, case.true_event);
    if !world.carry_out(case.before) {
        return false;
    }
    match case.false_first {
        true => world.cause_false(case.false_event),
        false => world.cause_true(case.true_event),
    }
    if !world.carry_out(case.between) {
        return false;
    }
    match case.false_first {
        true => world.cause_true(case.true_event),
        false => world.cause_false(case.false_event),
    }
    world.come_to_rest(case.false_event);
    true
}

fn cases_of(subject: Subject, false_event: FalseEvent, true_event: TrueEvent) -> usize {
    let mut cases = 0;
    for false_first in [false, true] {
        for before in 0..REQUESTS {
            let all = (0..).map(|between| Case { subject, false_event, true_event, false_first, before, between });
            let outcome = |case| catch_unwind(|| run(case)).unwrap_or_else(|_| panic!("{case:?}"));
            let betweens = all.map(outcome).take_while(|is_whole| *is_whole).count();
            if betweens == 0 {
                break;
            }
            cases += betweens;
        }
    }
    cases
}

#[tokio::test(start_paused = true)]
async fn a_false_event_at_any_split_grants_nothing_and_hides_nothing() {
    use FalseEvent::*;
    use TrueEvent::*;
    let all = async {
        let mut cases = 0;
        for true_event in [Released, GivenUp, Drained, Taken, TakenAndReleased] {
            for false_event in [HandOff, Own, Ask, Number] {
                cases += cases_of(Subject::Permit, false_event, true_event);
            }
        }
        for true_event in [Released, GivenUp, Taken] {
            for mode in [Mode::Read, Mode::Write] {
                for false_event in [HandOff, Ask] {
                    cases += cases_of(Subject::Lock(mode), false_event, true_event);
                }
            }
        }
        cases
    };
    // Without tokio's cooperative budget: under it, a future that is ready would sometimes return `Pending`.
    let cases = tokio::task::unconstrained(all).await;
    println!("{cases} cases");
    assert!(cases > 1_000, "{cases}");
}
