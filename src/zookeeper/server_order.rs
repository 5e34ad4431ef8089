//! How the client crate is poll_crate: in which order it comes to the servers, and what notices its end.
//!
//! Each server has its turn before one is tried twice.
//!
//! The crate shuffles its list of names whenever it has connected, for the next time. A server that answers nothing takes an attempt's
//! whole time, so a list that begins with it several times may cost a lock. The crate draws from `fastrand`, whose numbers depend
//! on where the thread's generator stands. So before the crate is poll_crate, the generator is put where the next shuffle will be a good
//! one. That the crate has shuffled, the generator shows afterwards. If it shows something else, the crate goes on by chance.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;

use fastrand::Rng;
use spawns_core::{Spawn, Task};
use tokio::sync::oneshot;

use crate::session::thread::Tasks;
use crate::sync::{Mutex, random};

/// Fires when the client crate's task has ended, however it did.
pub(super) type ClientEnded = oneshot::Receiver<()>;

/// What a client is made by, and the end of the task that the client crate spawns for it. The crate's watcher of the state is
/// silent when that task panics. Both come to the servers by these turns.
pub(super) async fn connect_in_order<T>(
    tasks: &Tasks,
    order: ServerOrder,
    connecting: impl Future<Output = T>,
) -> (T, ClientEnded) {
    let (tell, ended) = oneshot::channel();
    let order = Arc::new(Mutex::new(order));
    let spawner = Spawner { tasks: tasks.clone(), tell: Mutex::new(Some(tell)), order: Arc::clone(&order) };
    let mut connecting = pin!(connecting);
    let connected = poll_fn(|context| {
        let _scope = spawns_core::enter(&spawner);
        order.lock().poll_crate(|| connecting.as_mut().poll(context))
    });
    (connected.await, ended)
}

struct Spawner {
    tasks: Tasks,
    tell: Mutex<Option<oneshot::Sender<()>>>,
    order: Arc<Mutex<ServerOrder>>,
}

impl Spawn for Spawner {
    fn spawn(&self, task: Task) {
        let (tell, order) = (self.tell.lock().take(), Arc::clone(&self.order));
        self.tasks.spawn(async move {
            let _fires_when_dropped = tell;
            let mut task = Box::into_pin(task.future);
            poll_fn(|context| order.lock().poll_crate(|| task.as_mut().poll(context))).await;
        });
    }
}

/// How many shuffles are tried, at most. Of seven servers a good one is found in this many, almost always.
const TRIES: u32 = 1_000;

/// The turns of one client.
pub(super) struct ServerOrder {
    /// The servers of the names, in the crate's present order. Empty if that is not known.
    order: Vec<usize>,
    servers: usize,
    /// Where the generator is put.
    seed: Option<u64>,
}

impl ServerOrder {
    /// The crate is given these servers, in this order, each perhaps several times.
    pub(super) fn of(names: Vec<usize>) -> ServerOrder {
        let servers = names.iter().max().map_or(0, |last| last + 1);
        ServerOrder { order: if servers > 1 { names } else { Vec::new() }, servers, seed: None }
    }

    /// Polls the crate.
    pub(super) fn poll_crate<T>(&mut self, poll: impl FnOnce() -> T) -> T {
        if self.order.is_empty() {
            return poll();
        }
        let seed = self.seed.unwrap_or_else(|| self.good_seed());
        fastrand::seed(seed);
        let output = poll();
        let now = fastrand::get_seed();
        self.seed = (now == seed).then_some(seed);
        if now != seed {
            self.note_shuffle(seed, now);
        }
        output
    }

    /// A number by which the next shuffle lets each server have its turn.
    fn good_seed(&self) -> u64 {
        let distinct_first = |seed: &u64| {
            let order = self.shuffled(*seed).0;
            let is_first = |(at, server): (usize, &usize)| !order[..at].contains(server);
            order.iter().take(self.servers).enumerate().take_while(|it| is_first(*it)).count()
        };
        let mut seeds = (0..TRIES).map(|_| random());
        let good = seeds.find(|seed| distinct_first(seed) == self.servers);
        good.unwrap_or_else(random)
    }

    /// The order after a shuffle, and where the generator is then.
    fn shuffled(&self, seed: u64) -> (Vec<usize>, u64) {
        let (mut generator, mut order) = (Rng::with_seed(seed), self.order.clone());
        generator.shuffle(&mut order);
        (order, generator.get_seed())
    }

    /// The crate has shuffled, or has drawn the length of a pause.
    fn note_shuffle(&mut self, seed: u64, now: u64) {
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
        let (task, mut ended) = connect_in_order(background.handle(), ServerOrder::of(Vec::new()), begin).await;
        assert!(ended.try_recv().is_err_and(|error| error == oneshot::error::TryRecvError::Empty));
        drop(go_on);
        assert!(ended.await.is_err());
        drop::<Option<spawns_core::JoinHandle<()>>>(task);
    }

    #[test]
    fn each_server_comes_once_before_any_comes_twice() {
        for servers in 2..=5 {
            let mut names: Vec<usize> = (0..24).map(|name| name % servers).collect();
            let mut server_order = ServerOrder::of(names.clone());
            for round in 0..100 {
                server_order.poll_crate(|| {});
                // As the crate draws the length of a pause, in another poll.
                server_order.poll_crate(|| (round % 3 == 0).then(|| fastrand::u32(0..100)));
                server_order.poll_crate(|| fastrand::shuffle(&mut names));
                assert_eq!(server_order.order, names);
                let mut first = names[..servers].to_vec();
                first.sort_unstable();
                assert_eq!(first, Vec::from_iter(0..servers), "{names:?}");
            }
        }
    }

    #[test]
    fn an_unknown_order_is_left_to_chance() {
        let mut server_order = ServerOrder::of(vec![0, 1, 0, 1]);
        // Neither a shuffle of four names nor the length of a pause.
        server_order.poll_crate(|| [(); 2].map(|()| fastrand::u64(..)));
        assert!(server_order.order.is_empty());
        let mut numbers = [(); 2].map(|()| server_order.poll_crate(|| fastrand::u64(..)));
        numbers.sort_unstable();
        assert_ne!(numbers[0], numbers[1]);
        assert!(ServerOrder::of(vec![0, 0, 0]).order.is_empty(), "one server has no order");
    }
}
