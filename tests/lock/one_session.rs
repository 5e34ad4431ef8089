//! Several contenders of one session. Their requests reach the server in one order, but each contender can lose its node alone.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use support::rules::{Frames, Rule};
use support::scene::{connect, eventually, granted, line_becomes, lock_at, refused, session, soon, writer};
use support::server::{Server, shared_server};
use support::several::several;
use support::wire::{Op, Proxy};
use tokio_test::task::{self, Spawn};
use tokio_test::{assert_pending, assert_ready_err, assert_ready_ok};
use zk_rwlock::coordinator::{Coordinator, Failure, Operation, SessionSlot};
use zk_rwlock::{Acquire, Error, Loss, Memory, Mode, RwLock, WriteGuard, ZooKeeper};

/// ZooKeeper's error code for a missing permission.
const NO_AUTH: i32 = -102;

const DIRECTORY: &str = "/locks/one";

fn now<F: IntoFuture>(future: F) -> F::Output {
    let mut future = task::spawn(Box::pin(future.into_future()));
    match future.poll() {
        std::task::Poll::Ready(output) => output,
        std::task::Poll::Pending => panic!("no grant"),
    }
}

fn writing(lock: &RwLock) -> Spawn<<Acquire<WriteGuard> as IntoFuture>::IntoFuture> {
    task::spawn(lock.write().into_future())
}

fn newest(zk: &Memory) -> String {
    let name = zk.children(DIRECTORY).into_iter().max_by_key(|name| name[name.len() - 10..].to_owned());
    format!("{DIRECTORY}/{}", name.expect("a contender is there"))
}

#[test]
fn a_holder_whose_node_is_removed_lets_in_nobody() {
    let zk = Memory::new();
    let lock = RwLock::new(&zk, DIRECTORY).expect("valid");
    let first = now(lock.write()).expect("free");
    let mut second = writing(&lock);
    assert_pending!(second.poll());
    zk.faults().remove(first.node_path());
    assert!(!first.is_held());
    assert!(assert_ready_ok!(second.poll()).is_held(), "a waiter was not granted before the lost guard was dropped");
    drop((first, second));
    assert_eq!((zk.children(DIRECTORY).len(), zk.watches()), (0, 0));
}

#[test]
fn a_local_release_does_not_grant_a_removed_waiter() {
    let zk = Memory::new();
    let lock = RwLock::new(&zk, DIRECTORY).expect("valid");
    let first = now(lock.write()).expect("free");
    let mut second = writing(&lock);
    assert_pending!(second.poll());
    zk.faults().remove(newest(&zk));
    drop(first);
    assert!(matches!(assert_ready_err!(second.poll()), Error::Evicted(Loss::Removed)));
    assert_eq!((zk.children(DIRECTORY).len(), zk.watches()), (0, 0));
}

/// The waiter is cut off, so it cannot learn of its eviction. The same session also has the holder. When the holder leaves, the
/// session must not grant the waiter without a reply from the ensemble.
#[test]
fn a_waiter_evicted_while_cut_off_never_holds() {
    let zk = Memory::new();
    let there = zk.connect();
    let lock = RwLock::new(&zk, DIRECTORY).expect("valid");
    let first = now(lock.write()).expect("free");
    let mut second = writing(&lock);
    assert_pending!(second.poll());
    let mut next = writing(&RwLock::new(&there, DIRECTORY).expect("valid"));
    assert_pending!(next.poll());
    let evicted = zk.children(DIRECTORY).into_iter().find(|name| name.ends_with('1')).expect("the waiter waits");
    zk.faults().cut();
    there.faults().remove(format!("{DIRECTORY}/{evicted}"));
    drop(first);
    assert_pending!(second.poll());
    assert_pending!(next.poll());
    zk.faults().heal();
    assert!(matches!(assert_ready_err!(second.poll()), Error::Evicted(Loss::Removed)));
    assert!(assert_ready_ok!(next.poll()).is_held());
}

#[test]
fn a_downgraded_guard_hears_of_its_removal_at_once() {
    let zk = Memory::new();
    let guard = now(RwLock::new(&zk, DIRECTORY).expect("valid").write()).expect("free");
    let guard = now(guard.downgrade()).expect("held");
    zk.faults().remove(newest(&zk));
    assert!(!guard.is_held());
}

/// A standalone server that loses its last transactions in a crash assigns their sequence numbers a second time. So after a
/// reconnect, a session must not rely on the queue that it knew.
#[test]
fn a_reconnect_invalidates_the_known_queue() {
    let zk = Memory::new();
    let there = zk.connect();
    let lock = RwLock::new(&zk, DIRECTORY).expect("valid");
    for _ in 0..5 {
        drop(now(lock.write()).expect("free"));
    }
    zk.faults().cut();
    zk.faults().heal();
    // The server has forgotten the last create, so it assigns the same sequence number to another contender.
    zk.faults().set_next_sequence(DIRECTORY, 4);
    let other = now(RwLock::new(&there, DIRECTORY).expect("valid").write()).expect("free");
    let mut next = writing(&lock);
    assert_pending!(next.poll());
    drop(other);
    drop(assert_ready_ok!(next.poll()));
}

// --------------------------------------------------------------------------------------------------------- On a server

/// A session behind a proxy and its lock, and another session with a direct connection and its handle of the same lock.
struct Tapped {
    proxy: Proxy,
    zk: ZooKeeper,
    lock: RwLock,
    observer: RwLock,
    operator: ZooKeeper,
}

impl Tapped {
    async fn new(server: &Server) -> Tapped {
        let proxy = Proxy::start(server.address());
        let (zk, operator) = (connect(&proxy.address()).await, connect(&server.address()).await);
        let directory = format!("/one/{}", proxy.address().replace([':', '.'], "-"));
        let (lock, observer) = (lock_at(&zk, &directory), lock_at(&operator, &directory));
        Tapped { proxy, zk, lock, observer, operator }
    }
}

/// Checks twenty times that a holder and a waiter are in the queue. In the time of these listings, a waiter that is wrongly
/// granted would show.
async fn assert_queue_unchanged(observer: &RwLock) {
    for _ in 0..20 {
        line_becomes(observer, "W+ W-").await;
    }
}

#[support::judged]
async fn a_waiter_without_its_own_watch_still_waits() {
    let t = Tapped::new(shared_server()).await;
    let held = t.lock.write().await.unwrap();
    let number: u64 = held.node_path().rsplit('-').next().unwrap().parse().unwrap();
    let own = Frames::replies(Op::GetData).about(&format!("WRITE-{:010}", number + 1));
    let refused = t.proxy.apply(Rule::on(own).and_all_later().claim_error(NO_AUTH));
    let waiter = writer(&t.lock);
    refused.happens().await;
    session(&t.operator).await.delete(&held.node_path()).await.unwrap();
    assert!(granted(waiter).await.is_held());
    soon("the loss", held.lost()).await;
}

/// The holder drops its guard while its transaction is unanswered. The next holder, of the same session, must not write before
/// the reply.
#[support::judged]
async fn an_unanswered_transaction_keeps_the_next_out() {
    let t = Tapped::new(shared_server()).await;
    let value = format!("/value-{}", t.proxy.address().replace([':', '.'], "-"));
    let held = t.lock.write().await.unwrap();
    held.transaction().create(&value, "1").commit().await.unwrap();
    let waiter = writer(&t.lock);
    line_becomes(&t.observer, "W+ W-").await;
    let on_its_way = t.proxy.hold_request(Op::Multi);
    assert_pending!(task::spawn(held.transaction().set(&value, "2").commit()).poll());
    drop(held);
    on_its_way.arrives().await;
    assert_queue_unchanged(&t.observer).await;
    assert!(!waiter.is_finished(), "the waiter was granted while a transaction may still be carried out");
    on_its_way.release();
    let next = granted(waiter).await;
    assert_eq!(next.read_node(&value).await.unwrap().unwrap().data, b"2");
    next.transaction().set(&value, "3").commit().await.unwrap();
    assert_eq!(next.read_node(&value).await.unwrap().unwrap().data, b"3");
    next.release().await.unwrap();
}

/// The holder has prepared a transaction for another session, which checks the holder's node. That transaction must fail once the
/// next contender holds, so the node must be gone before the grant.
#[support::judged]
async fn a_node_given_out_is_gone_before_the_next_grant() {
    let t = Tapped::new(shared_server()).await;
    let held = t.lock.write().await.unwrap();
    let _for_others = held.prepare_foreign_transaction();
    let waiter = writer(&t.lock);
    line_becomes(&t.observer, "W+ W-").await;
    let release = t.proxy.hold_request(Op::Multi);
    drop(held);
    release.arrives().await;
    assert_queue_unchanged(&t.observer).await;
    assert!(!waiter.is_finished());
    release.release();
    granted(waiter).await.release().await.unwrap();
}

/// A coordinator that returns its two sessions in turn.
#[derive(Clone, Debug)]
struct InTurn([ZooKeeper; 2], Arc<AtomicUsize>);

#[async_trait]
impl Coordinator for InTurn {
    async fn session_slot(&self, own_bytes: usize) -> Result<SessionSlot, Failure> {
        self.0[self.1.fetch_add(1, Ordering::Relaxed) % 2].session_slot(own_bytes).await
    }

    async fn close(&self) {}

    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        self.0[0].sleep(duration)
    }
}

/// A transaction under several locks is sent on the session of one of them. The server may carry it out after requests of the
/// other sessions. So the reply must come before the next grant.
#[support::judged]
async fn a_transaction_of_another_session_delays_a_grant() {
    let t = Tapped::new(shared_server()).await;
    let other = connect(&shared_server().address()).await;
    let (a, b) = (t.lock.path().to_owned(), format!("{}-b", t.lock.path()));
    let clients = InTurn([t.zk.clone(), other], Arc::default());
    let several = several(&clients, [(&a[..], Mode::Write), (&b[..], Mode::Write)]).unwrap();
    let guard = several.lock().await.unwrap();
    let value = format!("{}-value", t.lock.path().replace('/', "-").replacen('-', "/", 1));
    guard.transaction().create(&value, "1").commit().await.unwrap();
    let waiter = writer(&t.lock);
    line_becomes(&t.observer, "W+ W-").await;
    let release = t.proxy.hold_request(Op::Multi);
    drop(guard);
    release.arrives().await;
    assert_queue_unchanged(&t.observer).await;
    assert!(!waiter.is_finished());
    release.release();
    let next = granted(waiter).await;
    assert_eq!(next.read_node(&value).await.unwrap().unwrap().data, b"1");
}

/// A waiter sets the watch on its own node before the release of its predecessor can grant it the lock. Otherwise the waiter
/// could be granted although its node is gone.
#[support::judged]
async fn a_waiter_removed_at_once_is_never_granted() {
    let t = Tapped::new(shared_server()).await;
    let operator = session(&t.operator).await;
    for _ in 0..20 {
        let held = t.lock.write().await.unwrap();
        let waiter = writer(&t.observer);
        line_becomes(&t.observer, "W+ W-").await;
        let evicted = t.observer.queue().await.unwrap().members[1].node.clone();
        operator.delete(&format!("{}/{evicted}", t.lock.path())).await.unwrap();
        held.release().await.unwrap();
        assert!(matches!(refused(waiter).await, Error::Evicted(Loss::Removed)));
    }
}

/// A write to the waiter's node fires the watch on that node. The fired watch does not report the deletion that follows.
#[support::judged]
async fn an_evicted_waiter_with_a_used_watch_never_holds() {
    let t = Tapped::new(shared_server()).await;
    let operator = session(&t.operator).await;
    let waits_here = lock_at(&connect(&shared_server().address()).await, t.lock.path());
    for _ in 0..20 {
        let held = t.observer.write().await.unwrap();
        let waiter = writer(&waits_here);
        line_becomes(&t.observer, "W+ W-").await;
        let next = writer(&t.observer);
        line_becomes(&t.observer, "W+ W- W-").await;
        let evicted = format!("{}/{}", t.lock.path(), t.observer.queue().await.unwrap().members[1].node);
        let write = Operation::Set { path: evicted.clone(), data: b"x".to_vec(), version: None };
        operator.transact(&[write, Operation::Delete { path: evicted, version: None }]).await.unwrap();
        held.release().await.unwrap();
        assert!(matches!(refused(waiter).await, Error::Evicted(Loss::Removed)));
        granted(next).await.release().await.unwrap();
    }
}

#[support::judged]
async fn a_waiter_watches_its_own_node_first() {
    let t = Tapped::new(shared_server()).await;
    let held = t.observer.write().await.unwrap();
    t.proxy.reset();
    let waiter = writer(&t.lock);
    eventually("the waiter watches both nodes", || async { t.proxy.count(Op::GetData) == 2 }).await;
    let watched: Vec<String> =
        t.proxy.requests().into_iter().filter(|(op, _)| *op == Op::GetData).map(|(_, path)| path).collect();
    let number = |path: &str| path.rsplit('-').next().unwrap().parse::<u64>().unwrap();
    assert_eq!(number(&watched[0]), number(&watched[1]) + 1, "{watched:?}");
    held.release().await.unwrap();
    granted(waiter).await.release().await.unwrap();
}
