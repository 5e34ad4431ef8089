//! The cost of the lock at a server: requests, notifications and watches, counted frame by frame.
//!
//! The session timeout is so long that no heartbeat and no ping falls into a test.

use std::future::IntoFuture;
use std::time::Duration;

use support::keeper::READ_SEVERAL;
use support::scene::*;
use support::server::{Server, shared_server};
use support::wire::{Op, Proxy};
use tokio::task::{JoinHandle, JoinSet};
use zk_rwlock::coordinator::{Kind, Operation};
use zk_rwlock::{Error, RwLock, Transaction, WriteGuard, ZooKeeper};

/// A session behind a proxy of its own.
pub(super) struct Tapped {
    pub(super) proxy: Proxy,
    pub(super) zk: ZooKeeper,
}

impl Tapped {
    pub(super) async fn new(server: &Server) -> Tapped {
        let proxy = Proxy::start(server.address());
        let zk = connect(&proxy.address()).await;
        Tapped { proxy, zk }
    }

    /// Waits until all frames that the server has sent to this session have arrived. Frames arrive in order, so this is the case
    /// when the reply to a later request arrives.
    pub(super) async fn settle(&self) {
        soon("an answer", session(&self.zk).await.sync("/")).await.unwrap();
    }
}

pub(super) async fn directory(zk: &ZooKeeper, path: &str) -> RwLock {
    let lock = lock_at(zk, path);
    lock.read().await.unwrap().release().await.unwrap();
    lock
}

/// Returns the operations of the requests, in the order of sending.
pub(super) fn ops(proxy: &Proxy) -> Vec<Op> {
    proxy.requests().into_iter().map(|(op, _)| op).collect()
}

/// Like [`ops`], but without the watch of a holder on its own node, which comes 5 ms after the grant.
fn ops_without_own_watch(proxy: &Proxy) -> Vec<Op> {
    ops(proxy).into_iter().filter(|op| !matches!(op, Op::GetData | Op::RemoveWatches)).collect()
}

/// Returns the size of a transaction in bytes. The transaction is made too large, and the error that refuses it names the size.
async fn size_of(transaction: Transaction<'_>) -> usize {
    let error = transaction.size_limit(0).commit().await.expect_err("too large").to_string();
    let size = error.strip_prefix("invalid input: a transaction of ").and_then(|rest| rest.split(' ').next());
    size.and_then(|size| size.parse().ok()).unwrap_or_else(|| panic!("{error}"))
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_of_the_largest_size_is_accepted() {
    let proxy = Proxy::start(shared_server().address());
    let builder = ZooKeeper::builder().session_timeout(CALM).connect_timeout(SOON).digest("user", "password");
    let zk = soon("the session", builder.connect(format!("{}/of/sizes", proxy.address()))).await.expect("reachable");
    let guard = lock_at(&zk, "/lock").write().await.unwrap();
    eventually("the own node is watched", || async { proxy.count(Op::GetData) > 0 }).await;

    let each = || {
        let made = guard.transaction().create("/x", "1").create_ephemeral("/ephemeral", [1; 300]);
        let changed = made.set("/x", "é").set_version("/x", "3", 1).check("/x", 2).check_exists("/ephemeral");
        changed.delete("/ephemeral").delete_version("/x", 2)
    };
    let (size, before) = (size_of(each()).await, proxy.bytes_to_server());
    each().commit().await.expect("held");
    let frame = 4;
    assert_eq!(proxy.bytes_to_server() - before, (frame + size) as u64);

    let empty = size_of(guard.transaction().create("/large", "")).await;
    let large = |size: usize| guard.transaction().create("/large", vec![7; size - empty]);
    assert!(matches!(large(1 << 20).commit().await, Err(Error::InvalidInput(_))));
    large((1 << 20) - 1).commit().await.expect("servers take so much");
    assert!(guard.is_held());
    assert_eq!(proxy.connections(), 1);
}

/// Acquires and releases a write lock. Returns the operations that the session sent.
async fn a_write(tapped: &Tapped, lock: &RwLock) -> Vec<Op> {
    tapped.proxy.reset();
    lock.write().await.unwrap().release().await.unwrap();
    ops(&tapped.proxy)
}

async fn a_read(tapped: &Tapped, lock: &RwLock) -> Vec<Op> {
    tapped.proxy.reset();
    lock.read().await.unwrap().release().await.unwrap();
    ops(&tapped.proxy)
}

/// Returns the shortest list. The list of a slow holder is longer, because a holder watches its own node 5 ms after the grant.
fn least(mut all: Vec<Vec<Op>>) -> Vec<Op> {
    all.sort_by_key(Vec::len);
    all.swap_remove(0)
}

#[support::judged]
async fn an_uncontended_write_and_release_cost_3_requests() {
    let server = shared_server();
    let (tapped, stranger) = (Tapped::new(server).await, Tapped::new(server).await);
    let (lock, other) = (directory(&tapped.zk, "/wire/pair").await, lock_at(&stranger.zk, "/wire/pair"));
    let (mut writes, mut reads, mut others) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..20 {
        writes.push(a_write(&tapped, &lock).await);
        reads.push(a_read(&tapped, &lock).await);
        others.push(a_read(&stranger, &other).await);
    }
    assert_eq!(least(writes), [Op::Create2, Op::GetChildren2, Op::Multi]);
    assert_eq!([least(reads), least(others)], [[Op::Create2, Op::GetChildren2, Op::Delete]; 2]);
}

/// The number of requests matters, because each request of a waiter delays the server's work for the next holder.
#[support::judged]
async fn a_contended_write_and_release_cost_5_requests() {
    let (server, mut waits) = (shared_server(), Vec::new());
    let (from, to) = (Tapped::new(server).await, Tapped::new(server).await);
    let lock = directory(&from.zk, "/wire/moment").await;
    let waits_behind = lock_at(&to.zk, "/wire/moment");
    for _ in 0..20 {
        let held = lock.write().await.unwrap();
        to.proxy.reset();
        let waiter = writer(&waits_behind);
        eventually("the watch", || async { to.proxy.count(Op::GetData) >= 1 }).await;
        held.release().await.unwrap();
        granted(waiter).await.release().await.unwrap();
        waits.push(ops(&to.proxy));
    }
    assert_eq!(least(waits), [Op::Create2, Op::GetChildren2, Op::GetData, Op::GetData, Op::Multi]);
}

#[support::judged]
async fn the_listing_is_sent_before_the_create_is_answered() {
    let tapped = Tapped::new(shared_server()).await;
    let lock = directory(&tapped.zk, "/wire/round-trip").await;
    tapped.proxy.reset();
    let answer = tapped.proxy.hold_reply(Op::Create2);
    let acquisition = writer(&lock);
    soon("the answer to the create", answer.arrives()).await;
    eventually("the listing", || async { tapped.proxy.count(Op::GetChildren2) == 1 }).await;
    assert!(!acquisition.is_finished());
    answer.release();
    let guard = granted(acquisition).await;

    // The second round trip is the release, a single request.
    let answer = tapped.proxy.hold_reply(Op::Multi);
    let release = tokio::spawn(guard.release());
    soon("the answer to the release", answer.arrives()).await;
    assert!(!release.is_finished());
    answer.release();
    soon("the release", release).await.unwrap().unwrap();
    assert_eq!(ops_without_own_watch(&tapped.proxy), [Op::Create2, Op::GetChildren2, Op::Multi]);
}

#[support::judged]
async fn the_next_create_follows_the_delete_of_a_dropped_guard() {
    let server = Server::start();
    let tapped = Tapped::new(&server).await;
    let lock = directory(&tapped.zk, "/wire/behind").await;
    lock.write().await.unwrap().release().await.unwrap();
    lock.write().await.unwrap().release().await.unwrap();
    let guard = lock.write().await.unwrap();
    tapped.proxy.reset();
    let answer = tapped.proxy.hold_reply(Op::Multi);
    drop(guard);
    eventually("the release", || async { tapped.proxy.count(Op::Multi) == 1 }).await;
    let next = writer(&lock);
    eventually("the create", || async { tapped.proxy.count(Op::Create2) == 1 }).await;
    soon("the answer to the release", answer.arrives()).await;
    assert_eq!(ops_without_own_watch(&tapped.proxy)[..2], [Op::Multi, Op::Create2]);
    assert!(!next.is_finished());
    answer.release();
    drop(granted(next).await);
}

#[support::judged]
async fn a_hand_off_to_a_writer_is_one_transaction_and_no_read() {
    let server = Server::start();
    let (from, to) = (Tapped::new(&server).await, Tapped::new(&server).await);
    let lock = directory(&from.zk, "/wire/hand-off").await;
    let holder = lock.write().await.unwrap();
    let node = holder.node_path();
    let waiter = writer(&lock_at(&to.zk, "/wire/hand-off"));
    line_becomes(&lock, "W+ W-").await;
    // The holder and the waiter watch their own nodes, and the waiter watches the holder's.
    eventually("all watches", || async { server.watches() == 3 }).await;
    from.proxy.reset();
    to.proxy.reset();
    // From now on, the server gets no request of the waiter, so only the event can grant the lock.
    to.proxy.black_hole_to_server();

    holder.release().await.unwrap();
    let guard = granted(waiter).await;

    assert!(guard.is_held());
    assert_eq!(from.proxy.requests(), [(Op::Multi, format!("SetData {node}, Delete {node}"))]);
    assert_eq!(to.proxy.notifications(), 1);
    to.proxy.heal();
    // After the grant, the new holder checks once that the former holder's node is gone.
    eventually("the check", || async { to.proxy.count(Op::GetData) == 1 }).await;
    to.settle().await;
    assert_eq!(to.proxy.requests(), [(Op::GetData, node), (Op::Multi, "Check /".to_owned())]);
    assert!(guard.is_held());
}

/// A holder behind the proxy `from`, and writers behind the proxy `to`, which wait and have set their watches.
struct Line {
    server: Server,
    from: Tapped,
    to: Tapped,
    holder: WriteGuard,
    waiters: Vec<JoinHandle<Result<WriteGuard, Error>>>,
}

impl Line {
    async fn of_writers(count: usize) -> Line {
        let server = Server::start();
        let (from, to) = (Tapped::new(&server).await, Tapped::new(&server).await);
        let lock = directory(&from.zk, "/wire/line").await;
        let holder = lock.write().await.unwrap();
        let theirs = lock_at(&to.zk, "/wire/line");
        // The waiters start one after the other, so that the list has the order of the queue.
        let mut waiters = Vec::new();
        for already in 1..=count {
            waiters.push(writer(&theirs));
            let standing = || async { children(&from.zk, "/wire/line").await.len() == already + 1 };
            eventually("the waiter stands in line", standing).await;
        }
        // The holder's node has two watches. Each waiter's node has one: its own watch and its successor's count as one, because
        // both belong to one session.
        eventually("all watches", || async { server.watches() == count as u64 + 2 }).await;
        from.settle().await;
        to.settle().await;
        from.proxy.reset();
        to.proxy.reset();
        Line { server, from, to, holder, waiters }
    }
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn one_writer_that_leaves_two_hundred_wakes_exactly_one() {
    let Line { server, from, to, holder, mut waiters } = Line::of_writers(200).await;
    let rest = waiters.split_off(1);

    holder.release().await.unwrap();
    let first = granted(waiters.remove(0)).await;
    to.settle().await;
    assert_eq!(to.proxy.notifications(), 1);
    assert!(rest.iter().all(|waiter| !waiter.is_finished()));

    // Two more waiters are granted and release. A releasing writer and its successor share one session and watch the same node,
    // so one notification reaches both.
    let mut holder = first;
    for waiter in rest.into_iter().take(2) {
        to.proxy.reset();
        holder.release().await.unwrap();
        holder = granted(waiter).await;
        to.settle().await;
        assert_eq!(to.proxy.notifications(), 1);
        // The two transactions are the release and the request of `settle`.
        assert_eq!((to.proxy.count(Op::GetChildren2), to.proxy.count(Op::Multi)), (0, 2));
    }
    assert!(from.proxy.count(Op::GetChildren2) == 0 && server.watches() > 0);
}

/// Five hundred writers of one session wait in line. Each is granted in turn and releases.
#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn five_hundred_writers_drain_with_one_event_each() {
    const WRITERS: usize = 500;
    let server = Server::start();
    let (from, to) = (Tapped::new(&server).await, Tapped::new(&server).await);
    let lock = directory(&from.zk, "/wire/drain").await;
    let holder = lock.write().await.unwrap();
    let theirs = lock_at(&to.zk, "/wire/drain");
    let mut drain = JoinSet::new();
    for _ in 0..WRITERS {
        let lock = theirs.clone();
        drain.spawn(async move { lock.write().await.unwrap().release().await.unwrap() });
    }
    eventually("all watches", || async { server.watches() == WRITERS as u64 + 2 }).await;
    to.settle().await;
    to.proxy.reset();

    holder.release().await.unwrap();
    soon("everyone had the lock", drain.join_all()).await;
    eventually("no watch is left", || async { server.watches() == 0 }).await;
    to.settle().await;

    // The first holder is of another session, so its release sends one notification. Each later release also sends one: to the
    // releasing writer and its successor together, and at the end to the last writer alone.
    assert_eq!(to.proxy.notifications(), 1 + WRITERS as u64);
    assert_eq!((to.proxy.count(Op::GetChildren2), to.proxy.count(Op::Multi)), (0, WRITERS as u64 + 1));
}

/// Each contender needs a listing that is sent after its create. Contenders that come while listings are under way share the next
/// listing.
#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_contenders_share_a_few_listings() {
    const CROWD: u64 = 200;
    let server = Server::start();
    let (one, two) = (Tapped::new(&server).await, Tapped::new(&server).await);
    let lock = directory(&one.zk, "/wire/crowd").await;
    let holder = lock.write().await.unwrap();
    let theirs = lock_at(&two.zk, "/wire/crowd");
    two.settle().await;
    two.proxy.reset();
    let answers = two.proxy.hold_reply(Op::GetChildren2);
    let mut crowd = JoinSet::new();
    for _ in 0..CROWD {
        let lock = theirs.clone();
        crowd.spawn(async move { lock.read().await.unwrap().release().await.unwrap() });
    }
    soon("the first listing's answer", answers.arrives()).await;
    eventually("all have asked for a node", || async { two.proxy.count(Op::Create2) == CROWD }).await;
    assert_eq!(two.proxy.count(Op::GetChildren2), 4);
    answers.release();
    eventually("all watch the writer and themselves", || async { two.proxy.count(Op::GetData) == 2 * CROWD }).await;
    two.settle().await;
    // The contenders that came while the first four listings were under way share the fifth. Up to three more listings serve
    // contenders that came just after the fifth listing was sent.
    let listings = two.proxy.count(Op::GetChildren2);
    assert!((5..=8).contains(&listings), "{listings}");
    holder.release().await.unwrap();
    soon("everyone had the lock", crowd.join_all()).await;
    assert_eq!(two.proxy.count(Op::GetChildren2), listings);
}

/// Several contenders share a listing. When the contenders that requested it give up, the others must still get the reply.
#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_whose_first_contenders_give_up_is_served() {
    let server = Server::start();
    let (one, two) = (Tapped::new(&server).await, Tapped::new(&server).await);
    let lock = directory(&one.zk, "/wire/leavers").await;
    let theirs = lock_at(&two.zk, "/wire/leavers");
    two.settle().await;
    two.proxy.reset();
    let answers = two.proxy.hold_reply(Op::GetChildren2);
    let mut first = JoinSet::new();
    for _ in 0..4 {
        first.spawn(theirs.read().into_future());
    }
    soon("the first listing's answer", answers.arrives()).await;
    eventually("all listings are sent", || async { two.proxy.count(Op::GetChildren2) == 4 }).await;
    let mut later = JoinSet::new();
    for _ in 0..20 {
        later.spawn(theirs.read().into_future());
    }
    eventually("all have asked for a node", || async { two.proxy.count(Op::Create2) == 24 }).await;
    first.shutdown().await;
    answers.release();
    for guard in soon("everyone else has the lock", later.join_all()).await {
        guard.unwrap().release().await.unwrap();
    }
    becomes_empty(&one.zk, lock.path()).await;
}

/// Another program keeps twenty thousand nodes in the lock's directory.
#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowded_directory_is_listed_once_per_event() {
    const FILES: usize = 20_000;
    let server = Server::start();
    let (one, two) = (Tapped::new(&server).await, Tapped::new(&server).await);
    let lock = directory(&one.zk, "/wire/crowded").await;
    let session = session(&one.zk).await;
    for files in (0..FILES).collect::<Vec<_>>().chunks(1_000) {
        let path = |file: &usize| format!("/wire/crowded/file-{file}");
        let create = |file| Operation::Create { path: path(file), data: Vec::new(), kind: Kind::Persistent };
        session.transact(&files.iter().map(create).collect::<Vec<_>>()).await.unwrap();
    }
    one.settle().await;
    one.proxy.reset();
    let holder = lock.write().await.unwrap();
    one.settle().await;
    assert_eq!((one.proxy.count(Op::Create2), one.proxy.count(Op::GetChildren2)), (1, 1));
    let theirs = lock_at(&two.zk, "/wire/crowded");
    let between = writer(&theirs);
    line_becomes(&lock, "W+ W-").await;
    let last = writer(&theirs);
    line_becomes(&lock, "W+ W- W-").await;
    // All three contenders watch their own nodes, and each waiter also watches its predecessor's. Two watches of one session on a
    // node count as one.
    eventually("all watches", || async { server.watches() == 4 }).await;
    two.settle().await;
    two.proxy.reset();
    between.abort();
    line_becomes(&lock, "W+ W-").await;
    eventually("the last one watches the holder", || async { server.watches() == 3 }).await;
    two.settle().await;
    assert_eq!(two.proxy.count(Op::GetChildren2), 1);
    holder.release().await.unwrap();
    granted(last).await.release().await.unwrap();
    assert_eq!(two.proxy.count(Op::GetChildren2), 1);
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_off_costs_as_much_with_200_waiters_as_with_10() {
    let mut costs = Vec::new();
    for count in [10, 200] {
        let Line { server: _server, from, to, holder, mut waiters } = Line::of_writers(count).await;
        holder.release().await.unwrap();
        let _first = granted(waiters.remove(0)).await;
        eventually("the check after the grant", || async { to.proxy.count(Op::GetData) == 1 }).await;
        from.settle().await;
        to.settle().await;

        assert_eq!((from.proxy.count(Op::Ping), to.proxy.count(Op::Ping)), (0, 0));
        assert_eq!(ops(&from.proxy), [Op::Multi, Op::Multi]);
        assert_eq!(ops(&to.proxy), [Op::GetData, Op::Multi]);
        costs.push([
            from.proxy.bytes_to_server(),
            from.proxy.bytes_to_client(),
            to.proxy.bytes_to_server(),
            to.proxy.bytes_to_client(),
            from.proxy.notifications(),
            to.proxy.notifications(),
        ]);
    }
    assert_eq!(costs[0], costs[1]);
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_readers_are_let_in_without_a_request() {
    const SESSIONS: usize = 4;
    const READERS: usize = 1_000;
    let server = Server::start();
    let from = Tapped::new(&server).await;
    let lock = directory(&from.zk, "/wire/readers").await;
    let holder = lock.write().await.unwrap();
    let mut sessions = Vec::new();
    for _ in 0..SESSIONS {
        sessions.push(Tapped::new(&server).await);
    }
    let mut readers = Vec::new();
    for i in 0..READERS {
        readers.push(reader(&lock_at(&sessions[i % SESSIONS].zk, "/wire/readers")));
    }
    // All contenders watch their own nodes. Each session has one watch on the writer's node for all its readers.
    eventually("all watches", || async { server.watches() == (1 + READERS + SESSIONS) as u64 }).await;
    for tapped in &sessions {
        // Each reader has set its watch and got the reply. The session sends the server no further request until all readers
        // hold.
        tapped.settle().await;
        let asked = |tapped: &Tapped| tapped.proxy.count(Op::GetData) == 2 * (READERS / SESSIONS) as u64;
        eventually("every reader's watches", || async { asked(tapped) }).await;
        tapped.settle().await;
        tapped.proxy.reset();
        tapped.proxy.black_hole_to_server();
    }
    from.proxy.reset();

    holder.release().await.unwrap();
    let mut guards = Vec::new();
    for task in readers {
        guards.push(granted(task).await);
    }

    assert!(guards.iter().all(|guard| guard.is_held()));
    assert_eq!(ops(&from.proxy), [Op::Multi]);
    for tapped in &sessions {
        assert_eq!(tapped.proxy.notifications(), 1);
        tapped.proxy.heal();
    }
    for tapped in &sessions {
        // The session reads the writer's node once for all its readers.
        eventually("the check", || async { tapped.proxy.count(Op::GetData) == 1 }).await;
        tapped.settle().await;
        assert_eq!(ops(&tapped.proxy), [Op::GetData, Op::Multi]);
    }
    assert!(guards.iter().all(|guard| guard.is_held()));
}

#[support::judged]
async fn a_reader_that_leaves_wakes_only_the_writer_behind_it() {
    let server = Server::start();
    let (one, two, three) = (Tapped::new(&server).await, Tapped::new(&server).await, Tapped::new(&server).await);
    let lock = directory(&one.zk, "/wire/readers-leave").await;
    let first = lock.read().await.unwrap();
    let second = lock_at(&two.zk, "/wire/readers-leave").read().await.unwrap();
    let waiter = writer(&lock_at(&three.zk, "/wire/readers-leave"));
    line_becomes(&lock, "R+ R+ W-").await;
    // All three contenders watch their own nodes, and the writer also watches the second reader's.
    eventually("all watches", || async { server.watches() == 4 }).await;
    for tapped in [&two, &three] {
        tapped.settle().await;
        tapped.proxy.reset();
    }

    first.release().await.unwrap();
    two.settle().await;
    three.settle().await;
    assert_eq!((two.proxy.notifications(), three.proxy.notifications()), (0, 0));
    second.release().await.unwrap();
    drop(granted(waiter).await);
    assert_eq!((three.proxy.count(Op::GetChildren2), three.proxy.count(Op::Create2)), (1, 0));
}

#[support::judged]
async fn trying_a_taken_lock_writes_nothing() {
    let server = shared_server();
    let tapped = Tapped::new(server).await;
    let other = connect(&server.address()).await;
    let lock = directory(&other, "/wire/try").await;
    let theirs = lock_at(&tapped.zk, "/wire/try");
    tapped.proxy.reset();

    let guard = lock.write().await.unwrap();
    assert!(theirs.try_write().await.unwrap_err().is_would_block());
    assert!(theirs.try_read().await.unwrap_err().is_would_block());
    let guard = guard.downgrade().await.unwrap();
    assert!(theirs.try_write().await.unwrap_err().is_would_block());
    // Each try lists the queue, asks the leader in a transaction of checks whether the holders exist, and reads their nodes for
    // the error.
    assert_eq!(ops(&tapped.proxy), [Op::GetChildren2, Op::Multi, Op::GetData].repeat(3));
    let mut asked = tapped.proxy.requests();
    asked.retain(|(op, _)| *op == Op::Multi);
    assert!(asked.iter().all(|(_, about)| about.starts_with("Check /") && !about.contains(',')), "{asked:?}");
    let reader = theirs.try_read().await.unwrap();
    drop((reader, guard));
}

#[support::judged]
async fn a_waiter_that_gives_up_leaves_no_watch() {
    let server = Server::start();
    let (zk, other) = (connect(&server.address()).await, connect(&server.address()).await);
    let lock = lock_at(&zk, "/wire/gives-up");
    let holder = lock.write().await.unwrap();
    eventually("the holder's own watch", || async { server.watches() == 1 }).await;
    let theirs = lock_at(&other, "/wire/gives-up");

    let error = theirs.write().timeout(Duration::from_millis(100)).await.unwrap_err();
    assert!(error.is_timeout(), "{error:?}");
    eventually("only the holder's watch is left", || async { server.watches() == 1 }).await;
    let waiters: Vec<_> = (0..10).map(|_| tokio::spawn(theirs.read().into_future())).collect();
    eventually("theirs and the holder's", || async { server.watches() == 12 }).await;
    for waiter in waiters {
        waiter.abort();
    }
    eventually("only the holder's watch is left", || async { server.watches() == 1 }).await;
    line_becomes(&lock, "W+").await;
    holder.release().await.unwrap();
    eventually("no watch", || async { server.watches() == 0 }).await;
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_is_read_with_a_request_for_each_256_members() {
    let [fleet, observer] = [(); 2].map(|()| Tapped::new(shared_server()));
    let (fleet, observer) = (fleet.await, observer.await);
    let lock = directory(&fleet.zk, "/wire/looked-at").await;
    let mut held = Vec::new();
    for _ in 0..258 {
        held.push(lock.read().await.unwrap());
    }
    observer.settle().await;
    let before = ops(&observer.proxy).len();
    let queue = lock_at(&observer.zk, "/wire/looked-at").queue().await.unwrap();
    assert_eq!(queue.members.len(), 258);
    assert!(queue.members.iter().all(|member| member.pid == Some(std::process::id()) && !member.node.is_empty()));
    let mut sent = ops(&observer.proxy).split_off(before);
    sent.sort_by_key(|op| format!("{op:?}"));
    assert_eq!(
        sent,
        [Op::GetChildren2, Op::GetData, READ_SEVERAL, READ_SEVERAL],
        "expected two reads for 258 members and the record"
    );
}
