//! Makes the client crate try each server before it tries any server twice, and reports when the crate's task ends.
//!
//! After each connection, the crate shuffles its list of names for the next one. The list names each server several
//! times. If a silent server comes first several times in a row, that server takes the whole time of several attempts
//! to connect, which may cost a lock. The crate has no option for the order, and no patch in `docs/upstream/` adds one.
//!
//! The crate shuffles with `fastrand`, whose numbers depend only on the thread's seed. So before each poll of the
//! crate, this module sets a seed with which the shuffle puts each server once at the front. After the poll, the seed
//! shows whether the crate has shuffled. If the crate has used the generator in an unexpected way, this module leaves
//! the random order to the crate.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;

use fastrand::Rng;
use spawns_core::{Spawn, Task};
use tokio::sync::oneshot;

use crate::session::thread::Tasks;
use crate::sync::{Mutex, random};

/// Fires when the client crate's task has ended or panicked.
pub(super) type ClientEnded = oneshot::Receiver<()>;

/// Polls `connecting`, and all tasks that the crate spawns, with this order of servers. Returns the output of
/// `connecting`, and a receiver that fires when the crate's task has ended. The crate's own state watcher does not fire
/// when that task panics.
pub(super) async fn connect_in_order<T>(
    tasks: &Tasks,
    order: ServerOrder,
    connecting: impl Future<Output = T>,
) -> (T, ClientEnded) {
    let (sender, ended) = oneshot::channel();
    let order = Arc::new(Mutex::new(order));
    let spawner = Spawner { tasks: tasks.clone(), sender: Mutex::new(Some(sender)), order: Arc::clone(&order) };
    let mut connecting = pin!(connecting);
    let connected = poll_fn(|context| {
        let _scope = spawns_core::enter(&spawner);
        order.lock().poll_crate(|| connecting.as_mut().poll(context))
    });
    (connected.await, ended)
}

struct Spawner {
    tasks: Tasks,
    sender: Mutex<Option<oneshot::Sender<()>>>,
    order: Arc<Mutex<ServerOrder>>,
}

impl Spawn for Spawner {
    fn spawn(&self, task: Task) {
        let (sender, order) = (self.sender.lock().take(), Arc::clone(&self.order));
        self.tasks.spawn(async move {
            let _fires_when_dropped = sender;
            let mut task = Box::into_pin(task.future);
            poll_fn(|context| order.lock().poll_crate(|| task.as_mut().poll(context))).await;
        });
    }
}

/// The most seeds that are tried. With up to seven servers, one of 1,000 shuffles almost always puts each server once
/// at the front.
const TRIES: u32 = 1_000;

/// The order in which the client crate tries the servers for one client.
pub(super) struct ServerOrder {
    /// For each name in the crate's list, in the present order: the index of its server. Empty if the order is unknown.
    order: Vec<usize>,
    servers: usize,
    /// The seed that was chosen for the next shuffle, until a poll of the crate uses it.
    seed: Option<u64>,
}

impl ServerOrder {
    /// Creates the order of a list that names these servers, each perhaps several times.
    pub(super) fn of(names: Vec<usize>) -> ServerOrder {
        let servers = names.iter().max().map_or(0, |last| last + 1);
        ServerOrder { order: if servers > 1 { names } else { Vec::new() }, servers, seed: None }
    }

    /// Polls the crate with the chosen seed, and updates the order if the crate has shuffled.
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

    /// Returns a seed with which the shuffle puts each server once at the front, or a random seed if none of [`TRIES`]
    /// seeds does.
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

    /// Returns the order after a shuffle with this seed, and the generator's seed after the shuffle.
    fn shuffled(&self, seed: u64) -> (Vec<usize>, u64) {
        let (mut generator, mut order) = (Rng::with_seed(seed), self.order.clone());
        generator.shuffle(&mut order);
        (order, generator.get_seed())
    }

    /// Updates the order after a poll in which the crate has used the generator, to shuffle or to choose the length of
    /// a pause. `seed` is the seed before the poll, `now` the seed after it. If `now` fits neither use, the order is
    /// unknown from now on.
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
        let background = BackgroundThread::get().expect("the background thread");
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
                // In every third round, this poll chooses the length of a pause, as some polls of the crate do.
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
        // A shuffle of four names, or the choice of a pause, never uses exactly two random numbers.
        server_order.poll_crate(|| [(); 2].map(|()| fastrand::u64(..)));
        assert!(server_order.order.is_empty());
        let mut numbers = [(); 2].map(|()| server_order.poll_crate(|| fastrand::u64(..)));
        numbers.sort_unstable();
        assert_ne!(numbers[0], numbers[1]);
        assert!(ServerOrder::of(vec![0, 0, 0]).order.is_empty(), "one server has no order");
    }
}
