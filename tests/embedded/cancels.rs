//! Every cancellation of a use of a kept node while other uses of the node are queued: a use is dropped between any two
//! requests, and between a request and its reply.
//!
//! All cases are tried. After each step of each case, all guards are compared with each other and with the nodes of the
//! ensemble.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::task::Poll;

use support::polled::write;
use support::wired::Wired;
use tokio_test::task::{self, Spawn};
use zk_rwlock::queue::NodeName;
use zk_rwlock::{Error, Memory, Mode, ReadGuard, RwLock, WriteGuard};

use crate::kept::{DIRECTORY, keeping, plain};

/// More steps than any change of a use takes. A step is the commit of one request, or the arrival of one reply.
const STEPS: usize = 40;

/// What a use does when it is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    /// The use acquires the node for itself and for those behind it.
    Acquire(Mode),
    /// The use waits for a use that runs.
    Wait(Mode),
    Downgrade,
    Commit,
    Release,
}

const CHANGES: [Change; 7] = [
    Change::Acquire(Mode::Read),
    Change::Acquire(Mode::Write),
    Change::Wait(Mode::Read),
    Change::Wait(Mode::Write),
    Change::Downgrade,
    Change::Commit,
    Change::Release,
];

/// The uses that are queued behind the use that is dropped.
const QUEUES: [&[Mode]; 4] = [&[Mode::Write], &[Mode::Read], &[Mode::Write, Mode::Read], &[Mode::Read, Mode::Write]];

/// What becomes of the requests that are under way at the drop.
#[derive(Clone, Copy, Debug)]
enum Fate {
    /// They are carried out and answered, after the others were polled.
    Late,
    /// The connection breaks, and the first of them, or none, are carried out.
    Cut(usize),
}

#[derive(Clone, Copy, Debug)]
struct Case {
    change: Change,
    queue: &'static [Mode],
    /// The mode of a contender of another process that waits when the use is dropped.
    stranger: Option<Mode>,
    fate: Fate,
    /// The number of steps before the drop.
    steps: usize,
}

enum Held {
    Reader(ReadGuard),
    Writer(WriteGuard),
    Nothing,
}

type Work = Spawn<Pin<Box<dyn Future<Output = Result<Held, Error>>>>>;

enum Use {
    Works { work: Work, is_new: bool },
    Ended(Held),
}

impl Use {
    fn begin(work: impl Future<Output = Result<Held, Error>> + 'static) -> Use {
        Use::Works { work: task::spawn(Box::pin(work)), is_new: true }
    }

    fn acquire(lock: &RwLock, mode: Mode) -> Use {
        match mode {
            Mode::Read => {
                let reading = lock.read().into_future();
                Use::begin(async move { reading.await.map(Held::Reader) })
            }
            Mode::Write => {
                let writing = lock.write().into_future();
                Use::begin(async move { writing.await.map(Held::Writer) })
            }
        }
    }

    /// Polls the work if it is new, or if its waker has fired. Returns whether it was polled.
    fn poll(&mut self) -> bool {
        let Use::Works { work, is_new } = self else { return false };
        if !std::mem::take(is_new) && !work.is_woken() {
            return false;
        }
        if let Poll::Ready(answer) = work.poll() {
            *self = Use::Ended(answer.expect("nothing is lost"));
        }
        true
    }

    /// Returns the mode of the guard that says "held", with the name of its node.
    fn held(&self) -> Option<(Mode, String)> {
        let (mode, path) = match self {
            Use::Ended(Held::Reader(guard)) if guard.is_held() => (Mode::Read, guard.node_path()),
            Use::Ended(Held::Writer(guard)) if guard.is_held() => (Mode::Write, guard.node_path()),
            _ => return None,
        };
        Some((mode, path.rsplit('/').next().unwrap_or_default().to_owned()))
    }
}

/// A lock that keeps its nodes, and its uses.
struct World {
    zk: Memory,
    wired: Wired,
    uses: Vec<Use>,
    /// The node under which a commit or a downgrade was dropped. The ensemble may still carry it out, so no further use
    /// may run under this node.
    unsure: Option<String>,
}

impl World {
    /// Checks that a writer holds alone, under a WRITE node, and that the node of each guard exists.
    fn check(&self) {
        let held: Vec<_> = self.uses.iter().filter_map(Use::held).collect();
        let writers = held.iter().filter(|(mode, _)| *mode == Mode::Write).count();
        assert!(writers == 0 || held.len() == 1, "a writer does not hold alone: {held:?}");
        let unsure = self.unsure.as_ref().filter(|unsure| held.iter().any(|(_, name)| name == *unsure));
        assert_eq!(unsure, None, "a use runs under the node of a change that may still be carried out");
        // A node that is being downgraded changes its name when the reply arrives.
        if self.wired.has_requests() {
            return;
        }
        let nodes = self.zk.children(DIRECTORY);
        for (mode, name) in held {
            assert!(nodes.contains(&name), "{name} is held, and the ensemble has {nodes:?}");
            let node = NodeName::parse(&name).map(|it| it.mode());
            assert!(mode == Mode::Read || node == Some(Mode::Write), "a writer holds by {name}");
        }
    }

    /// Polls all uses until nothing moves. Requests that are held up stay held up.
    fn settle(&mut self) {
        loop {
            let mut has_moved = false;
            for i in 0..self.uses.len() {
                if self.uses[i].poll() {
                    has_moved = true;
                    self.check();
                }
            }
            if !has_moved {
                return self.check();
            }
        }
    }

    fn step(&mut self, step: usize) {
        match step % 2 {
            0 => self.wired.carry_out(),
            _ => _ = self.wired.deliver(),
        }
    }

    /// Lets everything go on, and ends one guard after the other. All uses must be granted, and nothing may be left.
    fn come_to_rest(mut self, lock: RwLock) {
        self.wired.flow();
        for _ in 0..=2 * self.uses.len() {
            while self.wired.deliver() {
                self.settle();
            }
            self.settle();
            if let Some(held) = self.uses.iter_mut().find(|it| it.held().is_some()) {
                *held = Use::Ended(Held::Nothing);
            }
        }
        assert!(self.uses.iter().all(|it| matches!(it, Use::Ended(Held::Nothing))), "a use waits for ever");
        drop(lock);
        while self.wired.deliver() {}
        assert_eq!((self.zk.children(DIRECTORY), self.zk.watches()), (vec![], 0), "something was left behind");
    }
}

/// Begins the use that is dropped, after the uses that must run before it. Returns it.
fn begun(change: Change, lock: &RwLock, uses: &mut Vec<Use>) -> Use {
    let held = |lock| Held::Writer(write(lock));
    match change {
        Change::Acquire(mode) => Use::acquire(lock, mode),
        Change::Wait(mode) => {
            uses.push(Use::Ended(held(lock)));
            Use::acquire(lock, mode)
        }
        Change::Downgrade => {
            let guard = write(lock);
            Use::begin(async move { guard.downgrade().await.map(Held::Reader) })
        }
        Change::Commit => {
            let guard = write(lock);
            Use::begin(async move {
                guard.transaction().create("/written", "").commit().await?;
                Ok(Held::Writer(guard))
            })
        }
        Change::Release => {
            let guard = write(lock);
            Use::begin(async move { guard.release().await.map(|()| Held::Nothing) })
        }
    }
}

/// Runs a case. Returns whether the last step before the drop changed anything, and the use was still under way.
fn run(case: Case) -> bool {
    let zk = Memory::new();
    let wired = Wired::new(zk.connect());
    let (lock, other) = (keeping(&wired), plain(&zk.connect()));
    drop(write(&other));
    let mut world = World { zk, wired, uses: Vec::new(), unsure: None };
    let mut changing = begun(case.change, &lock, &mut world.uses);
    let kept = world.zk.children(DIRECTORY).pop();
    // A use that acquires or waits takes its place before the others. The others queue up behind a hold.
    let enters = matches!(case.change, Change::Acquire(_) | Change::Wait(_));
    world.wired.stall();
    if enters {
        changing.poll();
    }
    world.uses.extend(case.queue.iter().map(|mode| Use::acquire(&lock, *mode)));
    world.settle();
    world.uses.extend(case.stranger.map(|mode| Use::acquire(&other, mode)));
    world.settle();
    changing.poll();
    let mut is_step = true;
    for step in 0..case.steps {
        if let Change::Wait(_) = case.change {
            // The use that runs ends. The use that waits is granted, and is dropped before it is polled.
            is_step = step == 0;
            world.uses[0] = Use::Ended(Held::Nothing);
        } else {
            is_step = world.wired.has_requests();
            world.step(step);
            changing.poll();
        }
        world.settle();
    }
    let was_under_way = is_step && matches!(changing, Use::Works { .. });
    if !was_under_way || (matches!(case.fate, Fate::Cut(_)) && !world.wired.has_requests()) {
        return was_under_way;
    }
    drop(changing);
    if matches!(case.change, Change::Commit | Change::Downgrade) {
        world.unsure = kept;
    }
    world.settle();
    // A contender of another process sees the nodes that the ensemble has now.
    world.uses.push(Use::acquire(&other, Mode::Read));
    world.settle();
    if let Fate::Cut(carried_out) = case.fate {
        world.wired.cut(carried_out);
        world.settle();
        world.wired.memory.faults().heal();
        world.settle();
    }
    world.come_to_rest(lock);
    was_under_way
}

#[tokio::test(start_paused = true)]
async fn a_use_dropped_at_any_step_leaves_those_behind_it_their_turn() {
    // Without tokio's cooperative budget: under it, a future that is ready would sometimes return `Pending`.
    let drops = tokio::task::unconstrained(async { CHANGES.into_iter().map(drops_of).sum::<usize>() }).await;
    println!("{drops} drops");
    assert!(drops > 1_000, "{drops}");
}

/// Runs all cases of a change. Returns how many of them dropped the use while it was under way.
fn drops_of(change: Change) -> usize {
    let mut drops = 0;
    for queue in QUEUES {
        for stranger in [None, Some(Mode::Read), Some(Mode::Write)] {
            for fate in [Fate::Late, Fate::Cut(0), Fate::Cut(1)] {
                let all = (0..STEPS).map(|steps| Case { change, queue, stranger, fate, steps });
                let outcome = |case| std::panic::catch_unwind(|| run(case)).unwrap_or_else(|_| panic!("{case:?}"));
                drops += all.map(outcome).take_while(|was_under_way| *was_under_way).count();
            }
        }
    }
    drops
}
