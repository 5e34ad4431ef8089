//! Kept nodes, which a process keeps in the queue between its uses of a lock, on a real server: their cost, frame by frame, and
//! every fault of an ask. An ask is a write to the lock's directory, by which a waiter requests that processes give their kept
//! nodes up. Fault numbers are those of `tests/FAULTS.md`.

use std::time::{Duration, Instant};

use support::events;
use support::scene::*;
use support::server::shared_server;
use support::wire::{Close, Frames, Op, Proxy, Rule};
use tokio::sync::watch;
use tokio::task::JoinSet;
use zk_rwlock::coordinator::Operation;
use zk_rwlock::queue::NodeName;
use zk_rwlock::security::{Acl, Permissions};
use zk_rwlock::{RwLock, ZooKeeper};

use super::wire::{Tapped, directory, ops};

/// The time for which an unused kept node stays. It is longer than any of these tests.
const IDLE: Duration = Duration::from_secs(600);

/// The session timeout in tests that count heartbeats.
const SHORT: Duration = Duration::from_secs(2);

fn keeping(zk: &ZooKeeper, path: &str) -> RwLock {
    RwLock::builder(zk, path).keep(IDLE).build().expect("valid")
}

async fn read(lock: &RwLock) {
    soon("a read", lock.read()).await.expect("granted").release().await.expect("held");
}

async fn write(lock: &RwLock) {
    soon("a write", lock.write()).await.expect("granted").release().await.expect("held");
}

/// Returns the data version of the lock's directory. Each ask raises that version by one.
async fn version(zk: &ZooKeeper, directory: &str) -> i32 {
    session(zk).await.data(directory).await.expect("there").1.version
}

async fn ask_by_hand(zk: &ZooKeeper, directory: &str) {
    let set = Operation::Set { path: directory.to_owned(), data: Vec::new(), version: None };
    session(zk).await.transact(&[set]).await.expect("allowed");
}

/// Returns the number of asks that this session has sent for the kept nodes in this directory.
fn asks(tapped: &Tapped, directory: &str) -> usize {
    let set = format!("SetData {directory}");
    tapped.proxy.requests().iter().filter(|(op, parts)| *op == Op::Multi && *parts == set).count()
}

/// Returns the requests of this session whose paths contain this directory.
fn about(tapped: &Tapped, directory: &str) -> Vec<(Op, String)> {
    tapped.proxy.requests().into_iter().filter(|(_, path)| path.contains(directory)).collect()
}

/// Returns a session and its lock in an existing directory. The lock keeps a node: a write node if `writes`, and otherwise a read
/// node. The session has set its watches on the directory and on the node.
async fn keeper(directory: &str, writes: bool) -> (Tapped, RwLock) {
    let tapped = Tapped::new(shared_server()).await;
    let lock = keeping(&tapped.zk, directory);
    for _ in 0..2 {
        if writes {
            write(&lock).await;
        } else {
            read(&lock).await;
        }
    }
    eventually("both watches", || async { tapped.proxy.count(Op::GetData) == 2 }).await;
    tapped.settle().await;
    tapped.proxy.reset();
    (tapped, lock)
}

// --------------------------------------------------------------------------------------------------------------- Costs

#[support::judged]
async fn a_kept_node_costs_one_more_read_and_its_uses_nothing() {
    let tapped = Tapped::new(shared_server()).await;
    for (path, writes) in [("/kept/read", false), ("/kept/write", true)] {
        drop(directory(&tapped.zk, path).await);
        let lock = keeping(&tapped.zk, path);
        tapped.proxy.reset();
        if writes {
            write(&lock).await
        } else {
            read(&lock).await
        }
        eventually("both watches", || async { tapped.proxy.count(Op::GetData) == 2 }).await;
        // The session sets the watch on the directory before the create, so that it misses no ask.
        let requests = tapped.proxy.requests();
        assert_eq!(requests[0], (Op::GetData, path.to_owned()));
        let mut ops = ops(&tapped.proxy);
        ops.retain(|op| *op != Op::GetChildren2);
        assert_eq!(ops, [Op::GetData, Op::Create2, Op::GetData], "{requests:?}");
        tapped.settle().await;
        tapped.proxy.reset();

        for _ in 0..1_000 {
            if writes {
                write(&lock).await
            } else {
                read(&lock).await
            }
            drop(lock.read().await.unwrap());
            drop(lock.try_read().await.unwrap());
        }
        assert_eq!(tapped.proxy.requests(), []);
        assert_eq!(tapped.proxy.notifications(), 0);
    }
}

#[support::judged]
async fn steady_uses_of_kept_nodes_send_only_the_heartbeat() {
    let (server, path) = (shared_server(), "/kept/steady");
    let proxy = support::wire::Proxy::start(server.address());
    let zk = connect_with(&proxy.address(), SHORT).await;
    let (reads, writes) = (keeping(&zk, path), keeping(&zk, "/kept/steady-writes"));
    drop((directory(&zk, reads.path()).await, directory(&zk, writes.path()).await));
    proxy.reset();
    read(&reads).await;
    write(&writes).await;
    let watches = || proxy.requests().iter().filter(|(op, at)| *op == Op::GetData && at.starts_with(path)).count();
    eventually("all watches", || async { watches() == 4 }).await;
    proxy.reset();
    let start = Instant::now();
    let mut uses = 0;
    while start.elapsed() < SHORT {
        read(&reads).await;
        write(&writes).await;
        uses += 2;
        tokio::task::yield_now().await;
    }
    // In each fifth of the session timeout, a heartbeat sends a read and a transaction with checks alone.
    let requests = proxy.requests();
    let heartbeats = requests.iter().filter(|(op, _)| *op == Op::Multi).count();
    assert!(uses > 1_000 && (1..=7).contains(&heartbeats), "{uses} uses, {requests:?}");
    for (op, parts) in &requests {
        let only_checks = parts.split(", ").all(|part| part.starts_with("Check "));
        assert!(*op == Op::GetData || *op == Op::Multi && only_checks, "{op:?} {parts}");
    }
    assert!(requests.len() <= 2 * heartbeats + 2, "{requests:?}");
}

/// Eight processes keep read nodes. A writer costs one write to the directory, one event of that write for each process, and the
/// deletes of the read nodes.
#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_writer_behind_eight_kept_readers_asks_once() {
    const KEEPERS: usize = 8;
    let path = "/kept/eight";
    let operator = connect(&shared_server().address()).await;
    drop(directory(&operator, path).await);
    let mut keepers = Vec::new();
    for _ in 0..KEEPERS {
        keepers.push(keeper(path, false).await);
    }
    drop(directory(&operator, "/kept/eight-beside").await);
    // The bystander has used this lock but keeps no node, and waits for another lock. The neighbour keeps a node of another lock,
    // whose path only begins with this one.
    let (bystander, neighbour) = (Tapped::new(shared_server()).await, keeper("/kept/eight-beside", true).await);
    read(&lock_at(&bystander.zk, path)).await;
    let other = lock_at(&operator, "/kept/eight-other");
    let held = soon("a free lock", other.write()).await.unwrap();
    let waits = writer(&lock_at(&bystander.zk, "/kept/eight-other"));
    line_becomes(&other, "W+ W-").await;
    eventually("the waiter's watches", || async { bystander.proxy.count(Op::GetData) >= 2 }).await;
    bystander.settle().await;
    bystander.proxy.reset();
    let version_before = version(&operator, path).await;
    let tapped = Tapped::new(shared_server()).await;
    let lock = lock_at(&tapped.zk, path);
    session(&tapped.zk).await.sync("/").await.unwrap();
    tapped.proxy.reset();

    let guard = soon("a lock that is only kept", lock.write()).await.unwrap();
    let mut requests = about(&tapped, path);
    for (keeper, _) in &keepers {
        keeper.settle().await;
        let (asked, removed) = (asks(keeper, path), keeper.proxy.count(Op::Delete));
        assert_eq!((asked, removed), (0, 1));
        // The session gets one event of the ask and one of the deletion of its own node, because it watches both.
        assert_eq!(keeper.proxy.notifications(), 2);
        assert_eq!(about(keeper, path).len(), 1, "{:?}", keeper.proxy.requests());
    }
    assert_eq!((asks(&tapped, path), version(&operator, path).await), (1, version_before + 1));
    // The writer creates its node, watches its own node and the last reader's, sends the ask, and lists the queue again. The
    // readers leave meanwhile, so a listing may still show some of them.
    assert_eq!(requests.remove(0).0, Op::Create2);
    assert!(requests.iter().all(|(op, _)| [Op::GetChildren2, Op::GetData, Op::Multi].contains(op)), "{requests:?}");
    for calm in [&bystander, &neighbour.0] {
        calm.settle().await;
        assert_eq!((calm.proxy.notifications(), about(calm, "/kept/")), (0, Vec::new()));
    }
    drop((guard, held));
    granted(waits).await.release().await.unwrap();
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn many_waiters_for_a_kept_node_write_one_ask() {
    let path = "/kept/many-ask";
    let operator = connect(&shared_server().address()).await;
    drop(directory(&operator, path).await);
    let (tapped, lock) = keeper(path, false).await;
    let guard = soon("a kept node", lock.read()).await.unwrap();
    let mut waiters = JoinSet::new();
    for _ in 0..8 {
        let zk = connect(&shared_server().address()).await;
        let lock = lock_at(&zk, path);
        waiters.spawn(async move {
            write(&lock).await;
            drop(zk);
        });
    }
    eventually("all waiters are queued", || async { children(&operator, path).await.len() == 9 }).await;
    eventually("an ask", || async { tapped.proxy.notifications() == 1 }).await;
    tapped.settle().await;
    guard.release().await.unwrap();
    soon("all had it", waiters.join_all()).await;
    assert_eq!(version(&operator, path).await, 1);
}

#[support::judged]
async fn a_waiter_of_the_same_session_asks_like_any_other() {
    let path = "/kept/same-session";
    let operator = connect(&shared_server().address()).await;
    drop(directory(&operator, path).await);
    let (tapped, _lock) = keeper(path, true).await;
    write(&lock_at(&tapped.zk, path)).await;
    assert_eq!((asks(&tapped, path), version(&operator, path).await), (1, 1));
    becomes_empty(&operator, path).await;
}

// ---------------------------------------------------------------------------------------------------- Faults of an ask

/// Returns a client whose nodes no other client may write.
async fn owner(address: &str) -> ZooKeeper {
    let guests = Permissions::READ | Permissions::CREATE | Permissions::DELETE;
    let acl = Acl::creator().allow("world", "anyone", guests);
    let owner = ZooKeeper::builder().digest("owner", "secret").acl(acl).session_timeout(CALM);
    owner.connect(address).await.expect("the server can be reached")
}

/// A contender without WRITE on the directory cannot ask for the kept node, so it waits until the node's idle time is over. The
/// failed ask is logged once (fault 67).
#[support::judged]
async fn an_ask_refused_by_an_acl_is_logged_once() {
    let path = "/kept-acl/lock";
    events::collect();
    let warned = || events::with(&["cannot ask", path]).len();
    let before = warned();
    let (owner, guest) = (owner(&shared_server().address()).await, connect(&shared_server().address()).await);
    let idle = Duration::from_secs(2);
    let kept = RwLock::builder(&owner, path).keep(idle).build().unwrap();
    let lock = lock_at(&guest, path);
    for _ in 0..2 {
        read(&kept).await;
        let idle_since = Instant::now();
        let guard = soon("the end of the idle time", lock.write()).await.unwrap();
        let waited = idle_since.elapsed();
        assert!(waited >= idle - Duration::from_millis(100) && waited < idle + SOON / 4, "{waited:?}");
        assert_eq!(warned() - before, 1);
        guard.release().await.unwrap();
    }
    assert_eq!(version(&guest, path).await, 0);
}

/// A contender without WRITE cannot ask for a kept node in constant use. The node's process lists the queue once in half a
/// minute, sees the contender and gives the node up, so the test takes as long (fault 109).
#[support::judged]
async fn a_busy_kept_node_is_given_up_to_a_denied_asker() {
    let path = "/kept-acl/busy";
    let proxy = Proxy::start(shared_server().address());
    let (owner, guest) = (owner(&proxy.address()).await, connect(&shared_server().address()).await);
    let kept = RwLock::builder(&owner, path).keep(Duration::from_secs(1)).build().unwrap();
    let lock = lock_at(&guest, path);
    let (sender, mut tokens) = watch::channel(0);
    let uses = tokio::spawn(async move {
        loop {
            let guard = kept.read().await.expect("granted");
            sender.send_replace(guard.fencing_token());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    let first = *soon("a use", tokens.wait_for(|token| *token > 0)).await.unwrap();
    proxy.reset();
    let guard = within(3 * SOON, "the end of its use", lock.write()).await.unwrap();
    assert_eq!(*tokens.borrow(), first, "another node served a use");
    let requests = proxy.requests().into_iter().filter(|(_, names)| names.contains(path)).map(|(op, _)| op);
    let listings =
        requests.take_while(|op| ![Op::Delete, Op::Create2].contains(op)).filter(|op| *op == Op::GetChildren2);
    assert_eq!(listings.count(), 1);
    assert_eq!(version(&guest, path).await, 0, "an ask was made");
    let token = guard.fencing_token();
    guard.release().await.unwrap();
    eventually("the next use", || async { *tokens.borrow() > token }).await;
    uses.abort();
}

/// The ask comes after the process has set its watch on the directory, and before the node to be kept exists (fault 68).
#[support::judged]
async fn a_node_asked_for_while_arming_serves_its_waiters() {
    let path = "/kept/arming";
    let operator = connect(&shared_server().address()).await;
    drop(directory(&operator, path).await);
    let tapped = Tapped::new(shared_server()).await;
    let lock = keeping(&tapped.zk, path);
    tapped.proxy.reset();
    let create = tapped.proxy.hold_request(Op::Create2);
    let (one, two) = (reader(&lock), reader(&lock));
    soon("the create", create.arrives()).await;
    // The session set the watch before the create, on the same connection.
    assert_eq!(tapped.proxy.requests()[0], (Op::GetData, path.to_owned()));
    let is_armed = || async { shared_server().four_letter("wchp").lines().any(|line| line == path) };
    eventually("the server has armed the watch", is_armed).await;
    ask_by_hand(&operator, path).await;
    create.release();
    let (one, two) = (granted(one).await, granted(two).await);
    assert_eq!(one.node_path(), two.node_path());
    one.release().await.unwrap();
    two.release().await.unwrap();
    becomes_empty(&operator, path).await;
}

/// The ask comes while the contender whose node would be kept still waits for its grant (fault 69).
#[support::judged]
async fn a_node_asked_for_before_its_grant_is_used_once() {
    let path = "/kept/before-grant";
    let operator = connect(&shared_server().address()).await;
    let here = directory(&operator, path).await;
    let holder = here.write().await.unwrap();
    let tapped = Tapped::new(shared_server()).await;
    let lock = keeping(&tapped.zk, path);
    let waits = reader(&lock);
    line_becomes(&here, "W+ R-").await;
    let writer = writer(&lock_at(&connect(&shared_server().address()).await, path));
    line_becomes(&here, "W+ R- W-").await;
    eventually("the ask", || async { tapped.proxy.notifications() == 1 }).await;
    tapped.settle().await;
    holder.release().await.unwrap();
    let used = granted(waits).await;
    assert!(!writer.is_finished());
    let late = reader(&lock);
    line_becomes(&here, "R+ W- R-").await;
    used.release().await.unwrap();
    granted(writer).await.release().await.unwrap();
    read(&lock).await;
    granted(late).await.release().await.unwrap();
}

/// The ask is lost, or its reply, together with the connection. The waiter repeats the ask only if it was not done (fault 70).
#[support::judged]
async fn an_ask_whose_answer_or_request_is_lost_is_heard() {
    for (path, answers) in [("/kept/lost-answer", true), ("/kept/lost-request", false)] {
        for close in [Close::Fin, Close::Rst] {
            let operator = connect(&shared_server().address()).await;
            drop(directory(&operator, path).await);
            let before = version(&operator, path).await;
            let (_tapped, lock) = keeper(path, false).await;
            let asker = Tapped::new(shared_server()).await;
            let frames = if answers { Frames::replies(Op::Multi) } else { Frames::requests(Op::Multi) };
            let lost = asker.proxy.apply(Rule::on(frames.about(&format!("SetData {path}"))).close(0, close));
            let guard = soon("the lock", lock_at(&asker.zk, path).write()).await.unwrap();
            assert!(lost.has_happened() && guard.is_held());
            guard.release().await.unwrap();
            assert_eq!(version(&operator, path).await, before + 1, "the ask was made more than once");
            drop(lock);
            becomes_empty(&operator, path).await;
        }
    }
}

/// The process that keeps the node is disconnected at the time of the ask. It gets the event after its reconnect (fault 71).
#[support::judged]
async fn a_disconnected_keeper_hears_of_an_ask_later() {
    let path = "/kept/disconnected";
    let operator = connect(&shared_server().address()).await;
    drop(directory(&operator, path).await);
    let (tapped, lock) = keeper(path, true).await;
    tapped.proxy.cut();
    let waits = writer(&lock_at(&operator, path));
    eventually("the ask", || async { version(&operator, path).await == 1 }).await;
    assert!(!waits.is_finished());
    tapped.proxy.heal();
    granted(waits).await.release().await.unwrap();
    write(&lock).await;
}

/// An operator deletes the kept node and the directory (fault 73).
#[support::judged]
async fn a_directory_deleted_under_a_kept_node_ends_it() {
    let path = "/kept/deleted";
    let operator = connect(&shared_server().address()).await;
    drop(directory(&operator, path).await);
    let (tapped, lock) = keeper(path, true).await;
    let token = lock.write().await.unwrap().fencing_token();
    let node = children(&operator, path).await.remove(0);
    let bare = session(&operator).await;
    bare.delete(&format!("{path}/{node}")).await.unwrap();
    bare.delete(path).await.unwrap();
    let guard = soon("the lock", lock_at(&operator, path).write()).await.unwrap();
    tapped.settle().await;
    let late = writer(&lock);
    line_becomes(&lock_at(&operator, path), "W+ W-").await;
    guard.release().await.unwrap();
    let guard = granted(late).await;
    assert!(guard.fencing_token() > token);
    assert!(NodeName::parse(guard.node_path().rsplit('/').next().unwrap()).is_some());
}
