//! An embedded ensemble for tests with many threads. The schedule decides when its replies and timers arrive.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::panic::Location;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt;
use shuttle::rand::Rng;
use shuttle::sync::atomic::{AtomicBool, Ordering};
use shuttle::sync::{Condvar, Mutex};
use shuttle::thread::{self, JoinHandle};
use tokio::time::{Instant, advance};
use zk_rwlock::Memory;
use zk_rwlock::coordinator::{
    Coordinator, Created, Failure, Kind, Operation, Outcome, Reply, Session, SessionSlot, SessionStore, Stat, Task,
    Watch,
};

use crate::waits::Awaited;

/// Spawns a thread, and names it after the line of the call.
#[track_caller]
pub(crate) fn spawn<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    let from = Location::caller();
    let named = thread::Builder::new().name(format!("{}:{}", from.file(), from.line()));
    named.spawn(work).expect("shuttle's")
}

/// Returns a random number below `of`, which depends only on the schedule.
pub(crate) fn draw(of: usize) -> usize {
    shuttle::rand::thread_rng().gen_range(0..of)
}

/// Lets other threads run for a random number of steps below `most`. Without this, two threads that begin together
/// advance at the same pace, and a late step of one never meets an early step of the other.
pub(crate) fn let_others_run(most: usize) {
    for _ in 0..draw(most) {
        let _ = AtomicBool::new(false).load(Ordering::Relaxed);
    }
}

/// An ensemble, and the threads ("couriers") that deliver its replies and timers. [`World::ends`] checks that nothing
/// is left in the ensemble.
pub(crate) struct World {
    memory: Memory,
    routes: Arc<Routes>,
    threads: Vec<JoinHandle<()>>,
}

/// The state that all sessions of an ensemble share.
struct Routes {
    /// Whether a courier delivers the replies. Otherwise they arrive immediately.
    is_late: bool,
    answers: Courier,
    timers: Courier,
    /// Whether background tasks run on threads of their own, as with a real ensemble. Otherwise each runs on the thread
    /// that wakes it.
    is_concurrent: bool,
    tasks: Tasks,
}

/// Returns a random argument for a handle's `warn_after_waiting`: no warning, or a warning after a wait of zero. Zero
/// is the only limit that each wait reaches, because the clock is paused until a timer fires.
pub(crate) fn warned() -> Option<Duration> {
    (draw(2) == 0).then_some(Duration::ZERO)
}

impl World {
    /// Returns a random world: with replies that arrive immediately or by courier, and with background tasks on threads
    /// of their own or not.
    pub(crate) fn new() -> World {
        World::with_timers(true)
    }

    /// Returns a random world as [`World::new`] does. If `fire` is false, no timer fires, and so no timer hides a lost
    /// wake-up.
    pub(crate) fn with_timers(fire: bool) -> World {
        let (is_late, is_concurrent) = (draw(2) == 0, draw(2) == 0);
        let (answers, tasks) = (Courier { pause: 1, ..Courier::default() }, Tasks::default());
        let timers = Courier { pause: 256, ..Courier::default() };
        let routes = Arc::new(Routes { is_late, answers, timers, is_concurrent, tasks });
        let couriers: [Which; 2] = [|routes| &routes.answers, |routes| &routes.timers];
        let threads = couriers.into_iter().take(if fire { 2 } else { 1 }).map(|which| {
            let routes = Arc::clone(&routes);
            spawn(move || which(&routes).runs())
        });
        let threads = threads.collect();
        World { memory: Memory::new(), routes, threads }
    }

    /// Returns a client with a session of its own.
    pub(crate) fn client(&self) -> Client {
        Client { memory: self.memory.connect(), routes: Arc::clone(&self.routes) }
    }

    /// Waits until the background tasks have ended. Fails if a node is left in these directories, or a watch.
    pub(crate) fn ends(self, directories: &[&str]) {
        self.routes.tasks.all_end();
        for directory in directories {
            assert_eq!(self.memory.children(directory), Vec::<String>::new(), "left in {directory}");
        }
        assert_eq!(self.memory.watches(), 0, "watches are left");
        self.routes.answers.stops();
        self.routes.timers.stops();
        self.threads.into_iter().for_each(|thread| thread.join().expect("a courier"));
    }
}

/// A thread that delivers messages in the order of sending, each when the schedule lets it run.
#[derive(Default)]
struct Courier {
    /// For how many steps, at most, the courier lets other threads run after each message. The thread that runs the
    /// ensemble's tasks also runs those that a timer wakes meanwhile. So if timers followed each other at once, that
    /// thread might never return to its own work.
    pause: usize,
    state: Mutex<Bag>,
    changed: Condvar,
}

#[derive(Default)]
struct Bag {
    next: u64,
    under_way: VecDeque<(u64, Option<Waker>)>,
    stops: bool,
}

impl Courier {
    fn runs(&self) {
        loop {
            let mut bag = self.state.lock().expect("no panic");
            while bag.under_way.is_empty() && !bag.stops {
                bag = self.changed.wait(bag).expect("no panic");
            }
            let Some((_, waker)) = bag.under_way.pop_front() else { return };
            drop(bag);
            if let Some(waker) = waker {
                waker.wake();
            }
            // Yields, because a courier with the highest priority would otherwise deliver everything before any other
            // thread runs.
            thread::yield_now();
            let_others_run(self.pause);
        }
    }

    fn stops(&self) {
        self.state.lock().expect("no panic").stops = true;
        self.changed.notify_all();
    }

    fn sends(&self) -> u64 {
        let mut bag = self.state.lock().expect("no panic");
        bag.next += 1;
        let number = bag.next;
        bag.under_way.push_back((number, None));
        self.changed.notify_all();
        number
    }
}

type Which = fn(&Routes) -> &Courier;

/// A future that is ready once the courier has delivered its message.
struct Arrival {
    routes: Arc<Routes>,
    which: Which,
    number: u64,
}

impl Arrival {
    fn of(routes: &Arc<Routes>, which: Which) -> Arrival {
        Arrival { routes: Arc::clone(routes), which, number: which(routes).sends() }
    }
}

impl Future for Arrival {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut bag = (self.which)(&self.routes).state.lock().expect("no panic");
        match bag.under_way.iter_mut().find(|(number, _)| *number == self.number) {
            Some((_, waker)) => {
                *waker = Some(context.waker().clone());
                Poll::Pending
            }
            None => Poll::Ready(()),
        }
    }
}

impl Drop for Arrival {
    fn drop(&mut self) {
        let mut bag = (self.which)(&self.routes).state.lock().expect("no panic");
        bag.under_way.retain(|(number, _)| *number != self.number);
    }
}

/// The background tasks that have not ended yet.
#[derive(Default)]
struct Tasks {
    count: Mutex<usize>,
    fewer: Condvar,
}

impl Tasks {
    fn all_end(&self) {
        let mut count = self.count.lock().expect("no panic");
        while *count > 0 {
            count = self.fewer.wait(count).expect("no panic");
        }
    }
}

/// The client of one process. Clones share one session.
#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) memory: Memory,
    routes: Arc<Routes>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.memory.fmt(f)
    }
}

impl Routes {
    /// Sleeps until the courier delivers the timer, and then advances the paused clock to the end of `duration`. So the
    /// schedule decides when a timer fires, but no timer fires too early.
    fn sleep(self: &Arc<Self>, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let (timer, end) = (Arrival::of(self, |routes| &routes.timers), Instant::now() + duration);
        Box::pin(async move {
            timer.await;
            // The first poll of `advance` advances the clock. The other polls wait for a runtime, which no schedule has.
            _ = advance(end.saturating_duration_since(Instant::now())).now_or_never();
        })
    }
}

#[async_trait]
impl Coordinator for Client {
    async fn session_slot(&self, own_bytes: usize) -> Result<SessionSlot, Failure> {
        let slot = self.memory.session_slot(own_bytes).await?;
        Ok(SessionSlot::new(Arc::new(OnRoutes {
            session: Arc::clone(slot.session()),
            routes: Arc::clone(&self.routes),
        })))
    }

    async fn close(&self) {
        Coordinator::close(&self.memory).await;
    }

    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        self.routes.sleep(duration)
    }
}

/// A session whose replies and timers are delivered by couriers.
#[derive(Clone)]
struct OnRoutes {
    session: Arc<dyn Session>,
    routes: Arc<Routes>,
}

impl OnRoutes {
    /// Returns a reply that arrives after all earlier replies. The request itself was already carried out by the call.
    fn brought<T: Send + 'static>(&self, kind: &str, path: &str, reply: Reply<T>) -> Reply<T> {
        let what = format!("the answer to {kind} {path}");
        if !self.routes.is_late {
            return Box::pin(Awaited::new(what, reply));
        }
        let arrival = Arrival::of(&self.routes, |routes| &routes.answers);
        Box::pin(Awaited::new(what, async move {
            arrival.await;
            reply.await
        }))
    }
}

fn event_of(path: &str) -> String {
    format!("the event of a watch on {path}")
}

impl Session for OnRoutes {
    fn id(&self) -> i64 {
        self.session.id()
    }

    fn timeout(&self) -> Duration {
        self.session.timeout()
    }

    fn store(&self) -> &Arc<SessionStore> {
        self.session.store()
    }

    fn create(&self, path: &str, data: &[u8], kind: Kind) -> Reply<Created> {
        self.brought("create", path, self.session.create(path, data, kind))
    }

    fn delete(&self, path: &str) -> Reply<()> {
        self.brought("delete", path, self.session.delete(path))
    }

    fn children_and_stat(&self, path: &str) -> Reply<(Vec<String>, Option<Stat>)> {
        self.brought("children_and_stat", path, self.session.children_and_stat(path))
    }

    fn data(&self, path: &str) -> Reply<(Vec<u8>, Stat)> {
        self.brought("data", path, self.session.data(path))
    }

    fn watch(&self, path: &str) -> Reply<Watch> {
        let (what, asked) = (event_of(path), self.brought("watch", path, self.session.watch(path)));
        Box::pin(async move { Ok(Box::pin(Awaited::new(what, asked.await?)) as Watch) })
    }

    fn watch_children(&self, path: &str) -> Reply<(Vec<String>, Watch)> {
        let asked = self.brought("watch_children", path, self.session.watch_children(path));
        let what = event_of(path);
        Box::pin(async move {
            let (names, watch) = asked.await?;
            Ok((names, Box::pin(Awaited::new(what, watch)) as Watch))
        })
    }

    fn sync(&self, path: &str) -> Reply<()> {
        self.brought("sync", path, self.session.sync(path))
    }

    fn transact(&self, operations: &[Operation]) -> Reply<Vec<Outcome>> {
        self.brought("transact", "", self.session.transact(operations))
    }

    fn spawn(&self, task: Task) {
        let routes = Arc::clone(&self.routes);
        *routes.tasks.count.lock().expect("no panic") += 1;
        let counted = async move {
            task.await;
            *routes.tasks.count.lock().expect("no panic") -= 1;
            routes.tasks.fewer.notify_all();
        };
        if self.routes.is_concurrent {
            shuttle::future::spawn(counted);
        } else {
            self.session.spawn(Box::pin(counted));
        }
    }

    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        self.routes.sleep(duration)
    }
}

impl fmt::Debug for OnRoutes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.session.fmt(f)
    }
}
