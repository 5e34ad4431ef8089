//! What a break of the connection costs, counted: acquisitions that have timed out, wait, hold, keep, or wait for permits, and
//! then some breaks. After each break, no more is sent than `docs/cost.md` says, and another lock of the client stays held.
//!
//! `COST_CONTENDERS` sets the number of acquisitions; `make soak` sets 3,000.

use std::future::{IntoFuture, pending};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::future::join_all;
use support::cost::{
    BEHIND_ONE_SYNC, DIRECTORY, ENDED, HEAD, HELD, HELD_AT_ONCE, LEFT, PATH, Row, SESSION, SYNC, WAITING, watched,
};
use support::scene::*;
use support::server::{TICK, shared_server};
use support::wire::{Op, Proxy};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};
use zk_rwlock::coordinator::Coordinator;
use zk_rwlock::{ConnectionState, Error, Memory, RwLock, Semaphore, WriteGuard, ZooKeeper};

/// The session timeout of the embedded ensemble, and of the page.
const TIMEOUT: Duration = Duration::from_secs(10);
const MINUTE: Duration = Duration::from_secs(60);
const BREAKS: usize = 3;

fn contenders() -> usize {
    std::env::var("COST_CONTENDERS").ok().and_then(|contenders| contenders.parse().ok()).unwrap_or(300)
}

/// A backend whose requests are counted.
trait Counted {
    type C: Coordinator + Clone;
    /// The client that is counted, and whose connection breaks.
    fn zk(&self) -> &Self::C;
    fn other(&self) -> &Self::C;
    /// From now on the ensemble does not answer. The next `writes` writes are lost.
    fn silence(&self, writes: usize);
    /// Breaks the connection, waits for `meanwhile`, restores the connection, and waits until nothing more is sent. Returns the
    /// number of requests that were sent since the break, or waited for its end.
    async fn reconnect(&self, meanwhile: impl AsyncFnOnce()) -> u64;
    /// Returns the number of requests in the rest of the minute after the reconnect.
    async fn minute(&self) -> u64;
    /// Whether requests that are due in the minute may be sent before nothing more is sent for the reconnect, because the session
    /// timeout is short.
    fn is_hasty(&self) -> bool {
        false
    }
    /// Waits until nothing more is sent.
    async fn settle(&self);
    fn sessions(&self) -> usize;
}

struct Embedded {
    zk: Memory,
    other: Memory,
}

impl Embedded {
    fn new() -> Embedded {
        let zk = Memory::new();
        Embedded { other: zk.connect(), zk }
    }
}

impl Counted for Embedded {
    type C = Memory;

    fn zk(&self) -> &Memory {
        &self.zk
    }

    fn other(&self) -> &Memory {
        &self.other
    }

    fn silence(&self, writes: usize) {
        self.zk.faults().silence();
        (0..writes).for_each(|_| self.zk.faults().lose_next_request());
    }

    async fn reconnect(&self, meanwhile: impl AsyncFnOnce()) -> u64 {
        let before = self.zk.requests();
        self.zk.faults().cut();
        meanwhile().await;
        self.zk.faults().heal();
        self.settle().await;
        self.zk.requests() - before
    }

    async fn settle(&self) {
        sleep(TIMEOUT / 10).await;
    }

    async fn minute(&self) -> u64 {
        let before = self.zk.requests();
        sleep(MINUTE).await;
        self.zk.requests() - before
    }

    fn sessions(&self) -> usize {
        1
    }
}

struct OnAServer {
    proxy: Proxy,
    zk: ZooKeeper,
    other: ZooKeeper,
    /// How long is looked at for the minute after a reconnect.
    minute: Duration,
    reconnected: Mutex<Instant>,
}

impl OnAServer {
    /// The session timeout leaves out heartbeats, but for the first one after a reconnect. Almost nothing else is due in a minute
    /// either, so only its beginning is looked at.
    async fn calm() -> OnAServer {
        OnAServer::with(CALM, Duration::ZERO).await
    }

    /// What is due in a minute at the session timeout of the page is due in six session timeouts.
    async fn with(session_timeout: Duration, minute: Duration) -> OnAServer {
        let (server, proxy) = (shared_server(), Proxy::start(shared_server().address()));
        let builder = ZooKeeper::builder().session_timeout(session_timeout).tick_time(TICK).connect_timeout(SOON);
        let zk = builder.connect(&proxy.address()).await.expect("the server is up");
        OnAServer {
            zk,
            other: connect(&server.address()).await,
            proxy,
            minute,
            reconnected: Mutex::new(Instant::now()),
        }
    }

    /// Returns the requests since the last reset of the proxy, and the number of heartbeats among them. The client crate's own
    /// removals of watches are left out.
    fn requests(&self) -> (Vec<(Op, String)>, usize) {
        let requests: Vec<_> = self.proxy.requests().into_iter().filter(|(op, _)| *op != Op::RemoveWatches).collect();
        let heartbeats = requests.iter().filter(|request| is_heartbeat(request)).count();
        (requests, heartbeats)
    }
}

/// Whether this is the first of the two requests of a heartbeat.
fn is_heartbeat((op, path): &(Op, String)) -> bool {
    (*op, &**path) == (Op::GetData, "/")
}

impl Counted for OnAServer {
    type C = ZooKeeper;

    fn zk(&self) -> &ZooKeeper {
        &self.zk
    }

    fn other(&self) -> &ZooKeeper {
        &self.other
    }

    fn silence(&self, _: usize) {
        self.proxy.black_hole();
    }

    async fn reconnect(&self, meanwhile: impl AsyncFnOnce()) -> u64 {
        let is_connected = || async { matches!(self.zk.state(), ConnectionState::Connected) };
        self.proxy.cut();
        eventually("the loss is known", || async { !is_connected().await }).await;
        meanwhile().await;
        self.proxy.reset();
        self.proxy.heal();
        eventually("the connection", is_connected).await;
        *self.reconnected.lock().expect("nothing panics here") = Instant::now();
        self.settle().await;
        let (requests, heartbeats) = self.requests();
        // The lease lasts from the handshake on once a quorum answers, so nothing goes ahead of that transaction. An idle client
        // sends nothing.
        assert!(requests.first().is_none_or(|(op, _)| *op == Op::Multi), "not checked first");
        // With a short session timeout, more heartbeats than the first of each session may be due until all is sent.
        (requests.len() - 2 * heartbeats.saturating_sub(self.sessions())) as u64
    }

    async fn minute(&self) -> u64 {
        self.proxy.reset();
        if self.is_hasty() {
            let reconnected = *self.reconnected.lock().expect("nothing panics here");
            sleep_until(reconnected + self.minute).await;
        } else {
            self.settle().await;
        }
        self.requests().0.len() as u64
    }

    fn is_hasty(&self) -> bool {
        !self.minute.is_zero()
    }

    /// Waits until a quarter of a second brings no request but heartbeats. A server that commits slowly answers the sync of each
    /// look behind the writes of the others.
    async fn settle(&self) {
        let is_check = |(op, operations): &(Op, String)| {
            *op == Op::Multi && operations.starts_with("Check ") && !operations.contains(", ")
        };
        let observer = session(&self.other).await;
        let (mut sent, mut looks) = (0, 0);
        while looks < 5 {
            sleep(Duration::from_millis(50)).await;
            observer.sync("/").await.expect("the server is up");
            let now = self.proxy.requests().iter().filter(|it| !is_heartbeat(it) && !is_check(it)).count();
            looks = if now == sent { looks + 1 } else { 0 };
            sent = now;
        }
    }

    fn sessions(&self) -> usize {
        self.proxy.connections() as usize
    }
}

fn fresh() -> String {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    format!("/cost/{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

async fn held<C: Coordinator + Clone>(zk: &C, path: &str) -> WriteGuard {
    soon("the lock", RwLock::new(zk, path).expect("valid").write()).await.expect("free")
}

/// What there is at the breaks. Dropping it leaves every node.
#[derive(Default)]
struct There {
    guards: Vec<WriteGuard>,
    keepers: Vec<RwLock>,
    waiters: JoinSet<Result<(), Error>>,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Hold,
    Keep,
    Wait,
    WaitForPermits,
}

/// Returns for how many more transactions than one a heartbeat has to check the nodes of so many holders and of the unrelated lock.
fn more_checks(holders: usize) -> usize {
    holders / HELD_AT_ONCE
}

const KINDS: [Kind; 4] = [Kind::Hold, Kind::Keep, Kind::Wait, Kind::WaitForPermits];

impl Kind {
    /// Returns `count` of this kind, and the rows that tell their cost.
    async fn set_up<B: Counted>(self, on: &B, count: usize) -> (There, Vec<(usize, Row)>) {
        let mut there = There::default();
        match self {
            Kind::Hold => {
                there.guards = join_all((0..count).map(async |_| held(on.zk(), &fresh()).await)).await;
                (there, vec![(count * watched::BY_HOLDER, PATH), (more_checks(count), HELD)])
            }
            Kind::Keep => {
                let keeper = async |_| {
                    let lock = RwLock::builder(on.zk(), fresh()).keep(10 * MINUTE).build().expect("valid");
                    drop(lock.write().await.expect("free"));
                    lock
                };
                there.keepers = join_all((0..count).map(keeper)).await;
                (there, vec![(count * watched::BY_KEEPER, PATH), (more_checks(count), HELD)])
            }
            Kind::Wait => {
                let paths = count * watched::BY_WAITER + watched::BY_FIRST;
                (waiters(on, count, 60 * MINUTE).await, vec![(count, WAITING), (paths, PATH)])
            }
            Kind::WaitForPermits => {
                let path = fresh();
                let theirs = Semaphore::new(on.other(), &path, 1).expect("valid");
                let taken = theirs.acquire().await.expect("free");
                let limit = Semaphore::new(on.zk(), &path, 1).expect("valid");
                for _ in 0..count {
                    let waits = limit.acquire().into_future();
                    there.waiters.spawn(async { waits.await.map(drop) });
                }
                let is_full = async || theirs.queue().await.is_ok_and(|queue| queue.members.len() == count + 1);
                eventually("all wait", &is_full).await;
                there.waiters.spawn(async move {
                    let _taken = taken;
                    pending().await
                });
                let paths = count * watched::BY_WAITER + watched::BY_HEAD;
                (there, vec![(count, WAITING), (1, HEAD), (paths, PATH)])
            }
        }
    }
}

/// Returns acquisitions that wait for a lock of another client, for at most `limit`.
async fn waiters<B: Counted>(on: &B, count: usize, limit: Duration) -> There {
    let (path, mut there) = (fresh(), There::default());
    there.guards.push(held(on.other(), &path).await);
    let lock = RwLock::new(on.zk(), &path).expect("valid");
    for _ in 0..count {
        let waits = lock.write().timeout(limit).into_future();
        there.waiters.spawn(async { waits.await.map(drop) });
    }
    let queue = RwLock::new(on.other(), &path).expect("valid");
    eventually("all wait", || async { queue.queue().await.is_ok_and(|queue| queue.members.len() == count + 1) }).await;
    there
}

/// Breaks the connection while `meanwhile` runs. Fails if more is sent after the break than these rows allow.
async fn assert_cost<B: Counted>(on: &B, rows: &[(usize, Row)], meanwhile: impl AsyncFnOnce()) {
    let at_reconnect = on.reconnect(meanwhile).await;
    // The unrelated lock is watched, too.
    let rows = [rows, &[(on.sessions(), SESSION), (watched::BY_HOLDER, PATH)]].concat();
    let most = |cost: fn(&Row) -> u64| rows.iter().map(|(count, row)| *count as u64 * cost(row)).sum::<u64>();
    let (at_once, in_the_minute) = (most(|row| row.at_once), most(|row| row.in_the_minute));
    let sooner = if on.is_hasty() { at_reconnect.saturating_sub(at_once) } else { 0 };
    let sent = at_reconnect - sooner;
    assert!(sent <= at_once, "{sent} requests at a reconnect, and {at_once} are right for {rows:?}");
    let sent = sooner + on.minute().await;
    assert!(sent <= in_the_minute, "{sent} requests in the minute after, and {in_the_minute} are right for {rows:?}");
}

/// Breaks the connection so often, then while everything is left, and then once more.
async fn assert_cost_of<B: Counted>(on: B, kind: Kind, breaks: usize) {
    let (count, unrelated) = (contenders(), held(on.zk(), &fresh()).await);
    let (there, rows) = kind.set_up(&on, count).await;
    on.settle().await;
    for _ in 0..breaks {
        assert_cost(&on, &rows, async || {}).await;
    }
    let leave = async || {
        drop(there);
        sleep(Duration::from_millis(100)).await;
    };
    assert_cost(&on, &[(count, LEFT)], leave).await;
    assert_cost(&on, &[(count, ENDED)], async || {}).await;
    assert!(unrelated.is_held());
}

/// Acquisitions time out while the ensemble is silent, so that their creates get no answer. Later breaks last for `pause`.
async fn assert_cost_of_timeouts<B: Counted>(on: &B, directories: usize, pause: Duration) {
    let (count, path, unrelated) = (contenders(), fresh(), held(on.zk(), &fresh()).await);
    let lock = |number| RwLock::new(on.zk(), format!("{path}/{number}")).expect("valid");
    let locks: Vec<_> = (0..directories).map(lock).collect();
    for lock in &locks {
        lock.read().await.expect("free").release().await.expect("held");
    }
    on.silence(count);
    let mut ends = JoinSet::new();
    for lock in locks.iter().cycle().take(count) {
        let end = lock.write().timeout(Duration::from_millis(300)).into_future();
        ends.spawn(async { end.await.map(drop) });
    }
    for end in ends.join_all().await {
        assert!(end.expect_err("nobody answers").is_timeout());
    }
    // A listing that is sent before the loss is known is repeated.
    let once = [(directories, DIRECTORY), (directories.div_ceil(BEHIND_ONE_SYNC), SYNC), (count, ENDED)];
    assert_cost(on, &[once, once].concat(), async || {}).await;
    for _ in 0..BREAKS {
        assert_cost(on, &once, async || sleep(pause).await).await;
    }
    assert!(unrelated.is_held());
}

async fn assert_cost_of_waiters_that_time_out<B: Counted>(on: B, limit: Duration) {
    let mut there = waiters(&on, contenders(), limit).await;
    on.settle().await;
    let end = async || {
        while let Some(end) = there.waiters.join_next().await {
            assert!(end.expect("no panic").expect_err("the lock is taken").is_timeout());
        }
    };
    assert_cost(&on, &[(contenders(), LEFT)], end).await;
    assert_cost(&on, &[(contenders(), ENDED)], async || {}).await;
}

#[tokio::test(start_paused = true)]
async fn an_embedded_reconnect_costs_what_the_page_says() {
    for kind in KINDS {
        assert_cost_of(Embedded::new(), kind, BREAKS).await;
    }
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_reconnect_costs_what_the_page_says() {
    join_all(KINDS.map(async |kind| assert_cost_of(OnAServer::calm().await, kind, BREAKS).await)).await;
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn the_minute_after_a_reconnect_costs_what_the_page_says() {
    let timeout = if contenders() < 1_000 { Duration::from_secs(2) } else { TIMEOUT };
    // A tenth less than six session timeouts, so that the end is between two heartbeats, which come each fifth.
    let on = async || OnAServer::with(timeout, timeout * 59 / 10).await;
    join_all(KINDS.map(async |kind| assert_cost_of(on().await, kind, 1).await)).await;
}

#[tokio::test(start_paused = true)]
async fn embedded_timeouts_in_a_silent_break_cost_one_listing_a_directory() {
    for directories in [1, contenders()] {
        let on = Embedded::new();
        assert_cost_of_timeouts(&on, directories, Duration::ZERO).await;
        sleep(10 * TIMEOUT).await;
        assert_cost(&on, &[(contenders(), ENDED)], async || {}).await;
    }
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn timeouts_in_a_silent_break_cost_one_listing_a_directory() {
    let check =
        async |directories| assert_cost_of_timeouts(&OnAServer::calm().await, directories, Duration::ZERO).await;
    join_all([1, contenders()].map(check)).await;
}

/// The other lock of the client needs its heartbeats in time, behind a listing of each directory.
#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn timeouts_in_a_silent_break_cost_no_other_lock() {
    let on = OnAServer::with(TIMEOUT, Duration::ZERO).await;
    assert_cost_of_timeouts(&on, contenders().min(1_000), TIMEOUT / 3).await;
}

#[tokio::test(start_paused = true)]
async fn embedded_waiters_that_time_out_in_a_break_send_nothing_later() {
    assert_cost_of_waiters_that_time_out(Embedded::new(), TIMEOUT / 2).await;
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_that_time_out_in_a_break_send_nothing_later() {
    assert_cost_of_waiters_that_time_out(OnAServer::calm().await, SOON / 2).await;
}
