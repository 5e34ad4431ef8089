//! How the client crate is polled: not while names hang, in which order it comes to the servers, and what notices its end.
//!
//! Each server has its turn before one is tried twice. The crate shuffles its list of names whenever it has connected, for the next
//! time. A server that answers nothing takes an attempt's whole time, so a list that begins with it several times may cost a lock. The
//! crate draws from `fastrand`, whose numbers depend on where the thread's generator stands. So before the crate is polled, the generator
//! is put where the next shuffle will be a good one. That the crate has shuffled, the generator shows afterwards. If it shows something
//! else, the crate goes on by chance.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use fastrand::Rng;
use futures_util::task::AtomicWaker;
use spawns_core::{Spawn, Task};
use tokio::sync::oneshot;

use crate::session::thread::Tasks;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, random};
use crate::zookeeper::lookup::hangs;

/// The client crate's task.
pub(super) struct ClientTask {
    /// Fires when it has ended, however it did. The crate's watcher of the state is silent when the task panics.
    pub(super) ended: oneshot::Receiver<()>,
    pub(super) gate: Arc<Gate>,
}

/// Before the client crate, which is polled through it. While it is shut, that is held up.
pub(super) struct Gate {
    turns: Mutex<Turns>,
    is_shut: AtomicBool,
    held: AtomicWaker,
}

/// The gate is shut until this is dropped.
pub(super) struct Shut<'a>(&'a Gate);

impl Gate {
    pub(super) fn shut(&self) -> Shut<'_> {
        self.is_shut.store(true, Ordering::SeqCst);
        Shut(self)
    }

    fn polled<T>(&self, context: &mut Context<'_>, poll: impl FnOnce(&mut Context<'_>) -> Poll<T>) -> Poll<T> {
        if self.is_shut.load(Ordering::SeqCst) {
            self.held.register(context.waker());
            // It may have been opened meanwhile.
            if self.is_shut.load(Ordering::SeqCst) {
                return Poll::Pending;
            }
        }
        self.turns.lock().polled(|| poll(context))
    }
}

impl Drop for Shut<'_> {
    fn drop(&mut self) {
        self.0.turns.lock().draws_anew();
        self.0.is_shut.store(false, Ordering::SeqCst);
        self.0.held.wake();
    }
}

/// What a client is made by, and the task that the client crate spawns for it. Both come to the servers by these turns.
pub(super) async fn noticed<T>(tasks: &Tasks, turns: Turns, connecting: impl Future<Output = T>) -> (T, ClientTask) {
    let (tell, ended) = oneshot::channel();
    let gate =
        Arc::new(Gate { turns: Mutex::new(turns), is_shut: AtomicBool::new(false), held: AtomicWaker::default() });
    let spawner = Spawner { tasks: tasks.clone(), tell: Mutex::new(Some(tell)), gate: Arc::clone(&gate) };
    let mut connecting = pin!(connecting);
    let connected = poll_fn(|context| {
        let _scope = spawns_core::enter(&spawner);
        gate.polled(context, |context| connecting.as_mut().poll(context))
    });
    (connected.await, ClientTask { ended, gate })
}

struct Spawner {
    tasks: Tasks,
    tell: Mutex<Option<oneshot::Sender<()>>>,
    gate: Arc<Gate>,
}

impl Spawn for Spawner {
    fn spawn(&self, task: Task) {
        let (tell, gate) = (self.tell.lock().take(), Arc::clone(&self.gate));
        self.tasks.spawn(async move {
            let _told_when_dropped = tell;
            let mut task = Box::into_pin(task.future);
            poll_fn(|context| gate.polled(context, |context| task.as_mut().poll(context))).await;
        });
    }
}

/// How many shuffles are tried, at most. Of seven servers a good one is found in this many, almost always.
const TRIES: u32 = 1_000;

/// The turns of one client.
pub(super) struct Turns {
    /// The servers of the names, in the crate's present order. Empty if that is not known.
    order: Vec<usize>,
    addresses: Vec<String>,
    /// Where the generator is put.
    seed: Option<u64>,
}

impl Turns {
    /// The crate is given the servers at these addresses, in this order, each perhaps several times.
    pub(super) fn of(names: Vec<usize>, addresses: Vec<String>) -> Turns {
        Turns { order: if addresses.len() > 1 { names } else { Vec::new() }, addresses, seed: None }
    }

    /// After a pause: other names may hang now.
    pub(super) fn draws_anew(&mut self) {
        self.seed = None;
    }

    /// Polls the crate.
    pub(super) fn polled<T>(&mut self, poll: impl FnOnce() -> T) -> T {
        if self.order.is_empty() {
            return poll();
        }
        let hang = || self.addresses.iter().map(|address| hangs(address)).collect::<Vec<_>>();
        let seed = self.seed.unwrap_or_else(|| self.drawn(&hang()));
        fastrand::seed(seed);
        let output = poll();
        let now = fastrand::get_seed();
        self.seed = (now == seed).then_some(seed);
        if now != seed {
            self.has_drawn(seed, now);
        }
        output
    }

    /// A number by which the next shuffle lets each server have its turn, and a name that hangs comes late.
    fn drawn(&self, hangs: &[bool]) -> u64 {
        let is_heard = |server: &&usize| !hangs[**server];
        let (names, servers) = (self.order.iter().filter(is_heard).count(), hangs.iter().filter(|it| !**it).count());
        let heard_first = |seed: u64| {
            let order = self.shuffled(seed).0;
            let first: BTreeSet<_> = order.iter().take(servers).collect();
            let is_good = first.len() == servers;
            if is_good { order.iter().take_while(is_heard).count() } else { 0 }
        };
        let mut best = (0, random());
        for _ in 0..TRIES {
            if best.0 == names {
                break;
            }
            let seed = random();
            best = best.max((heard_first(seed), seed));
        }
        best.1
    }

    /// The order after a shuffle, and where the generator is then.
    fn shuffled(&self, seed: u64) -> (Vec<usize>, u64) {
        let (mut generator, mut order) = (Rng::with_seed(seed), self.order.clone());
        generator.shuffle(&mut order);
        (order, generator.get_seed())
    }

    /// The crate has shuffled, or has drawn the length of a pause.
    fn has_drawn(&mut self, seed: u64, now: u64) {
        let (order, after_shuffle) = self.shuffled(seed);
        let mut generator = Rng::with_seed(seed);
        generator.u32(..);
        if now == after_shuffle {
            self.order = order;
        } else if now != generator.get_seed() {
            self.order.clear();
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::session::thread::BackgroundThread;

    #[tokio::test]
    async fn the_end_of_the_clients_task_is_noticed() {
        let background = BackgroundThread::get().expect("a thread");
        let (go_on, goes_on) = oneshot::channel::<()>();
        let begin = async { Some(spawns_core::spawn(async { panic!("{:?}", goes_on.await) })) };
        let (task, ClientTask { mut ended, .. }) =
            noticed(background.handle(), Turns::of(Vec::new(), Vec::new()), begin).await;
        assert!(ended.try_recv().is_err_and(|error| error == oneshot::error::TryRecvError::Empty));
        drop(go_on);
        assert!(ended.await.is_err());
        drop::<Option<spawns_core::JoinHandle<()>>>(task);
    }

    #[tokio::test]
    async fn a_task_that_is_held_up_goes_on_and_ends_once_the_gate_is_open() {
        let background = BackgroundThread::get().expect("a thread");
        let polls = Arc::new(Mutex::new((0, None)));
        let seen = Arc::clone(&polls);
        let task = poll_fn(move |context| {
            let mut polls = seen.lock();
            *polls = (polls.0 + 1, Some(context.waker().clone()));
            if polls.0 < 3 { Poll::Pending } else { Poll::Ready(()) }
        });
        let begin = async { Some(spawns_core::spawn(task)) };
        let (_task, ClientTask { ended, gate }) =
            noticed(background.handle(), Turns::of(Vec::new(), Vec::new()), begin).await;
        // What was spawned before has been run.
        let run = || background.handle().begin(async {}).expect("a thread");
        let wake = || polls.lock().1.clone().expect("it was polled").wake();
        run().await;
        assert_eq!(polls.lock().0, 1);
        let shut = gate.shut();
        for _ in 0..3 {
            wake();
            run().await;
        }
        assert_eq!(polls.lock().0, 1, "it is held up");
        drop(shut);
        run().await;
        assert_eq!(polls.lock().0, 2);
        wake();
        assert!(ended.await.is_err());
    }

    fn of(names: Vec<usize>) -> Turns {
        let servers = names.iter().max().map_or(0, |last| last + 1);
        Turns::of(names, (0..servers).map(|server| format!("zk{server}:1")).collect())
    }

    #[test]
    fn each_server_has_its_turn_after_every_shuffle_of_the_crates() {
        for servers in 2..=5 {
            let mut names: Vec<usize> = (0..24).map(|name| name % servers).collect();
            let mut turns = of(names.clone());
            for round in 0..100 {
                turns.polled(|| {});
                // As the crate draws the length of a pause, in another poll.
                turns.polled(|| (round % 3 == 0).then(|| fastrand::u32(0..100)));
                turns.polled(|| fastrand::shuffle(&mut names));
                assert_eq!(turns.order, names);
                let mut first = names[..servers].to_vec();
                first.sort_unstable();
                assert_eq!(first, Vec::from_iter(0..servers), "{names:?}");
            }
        }
    }

    #[test]
    fn a_name_that_hangs_comes_after_a_turn_of_all_others_and_late() {
        let turns = of((0..24).map(|name| name % 3).collect());
        for _ in 0..20 {
            let order = turns.shuffled(turns.drawn(&[false, true, false])).0;
            assert_ne!(order[0], order[1], "{order:?}");
            assert!(order.iter().take_while(|server| **server != 1).count() >= 4, "{order:?}");
        }
        let order = turns.shuffled(turns.drawn(&[true; 3])).0;
        assert_eq!(order.len(), 24);
    }

    #[test]
    fn where_the_order_is_not_known_the_crate_goes_on_by_chance() {
        let mut turns = of(vec![0, 1, 0, 1]);
        // Neither a shuffle of four names nor the length of a pause.
        turns.polled(|| [(); 2].map(|()| fastrand::u64(..)));
        assert!(turns.order.is_empty());
        let mut drawn = [(); 2].map(|()| turns.polled(|| fastrand::u64(..)));
        drawn.sort_unstable();
        assert_ne!(drawn[0], drawn[1]);
        assert!(of(vec![0, 0, 0]).order.is_empty(), "one server has all turns");
    }
}
