//! Contenders of one process, on sessions of their own, that know of each other.

mod support;

use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use async_trait::async_trait;
use support::named::Named;
use support::rules::{Frames, Rule};
use support::scene::{connect, eventually, granted, line_becomes, lock_at, reader, session, writer};
use support::server::{Server, shared_server};
use support::wire::{Op, Proxy};
use tokio_test::task::{self, Spawn};
use tokio_test::{assert_pending, assert_ready_err, assert_ready_ok};
use zk_rwlock::coordinator::{Berth, Coordinator, Failure, Kind, Operation};
use zk_rwlock::{AcquireWrite, Error, Memory, Mode, MultiLock, RwLock, WriteGuard, ZooKeeper};

/// What ZooKeeper says to those who may not.
const NO_AUTH: i32 = -102;

const DIRECTORY: &str = "/locks/together";

fn now<F: IntoFuture>(future: F) -> F::Output {
    let mut future = task::spawn(Box::pin(future.into_future()));
    match future.poll() {
        std::task::Poll::Ready(output) => output,
        std::task::Poll::Pending => panic!("it has to wait"),
    }
}

fn writing(lock: &RwLock) -> Spawn<<AcquireWrite as IntoFuture>::IntoFuture> {
    task::spawn(lock.write().into_future())
}

fn lock_of(client: &Memory, ensemble: &str) -> RwLock {
    let client = Named { client: client.clone(), ensemble: Some(ensemble.to_owned()) };
    RwLock::new(&client, DIRECTORY).expect("valid")
}

/// Two clients of one ensemble and of one process, whose sessions have seen each other's nodes.
fn two(ensemble: &str) -> (Memory, Memory, RwLock, RwLock) {
    let one = Memory::new();
    let other = one.connect();
    let (a, b) = (lock_of(&one, ensemble), lock_of(&other, ensemble));
    let (first, mut second) = one_behind_the_other(&a, &b);
    drop(first);
    drop(assert_ready_ok!(second.poll()));
    (one, other, a, b)
}

/// One that holds the lock, and another that waits for it.
fn one_behind_the_other(a: &RwLock, b: &RwLock) -> (WriteGuard, Spawn<<AcquireWrite as IntoFuture>::IntoFuture>) {
    let first = now(a.write()).expect("free");
    let mut second = writing(b);
    assert_pending!(second.poll());
    (first, second)
}

#[test]
fn a_writer_lets_in_the_next_of_its_process_before_any_server_has_answered() {
    let (one, other, a, b) = two("before");
    let (first, mut second) = one_behind_the_other(&a, &b);
    one.cut();
    drop(first);
    assert!(second.is_woken(), "its own process told it");
    let second = assert_ready_ok!(second.poll());
    assert!(second.is_held());
    assert_eq!(other.children(DIRECTORY).len(), 2, "the node of the first one is still there, for nothing");
    one.heal();
    drop(second);
    assert_eq!((other.children(DIRECTORY).len(), other.watches()), (0, 0));
}

#[test]
fn whoever_is_let_in_by_its_process_reads_what_was_written_under_the_lock_on_another_session() {
    let (one, other, a, b) = two("written");
    let first = now(a.write()).expect("free");
    now(first.transaction().create("/value", "1").commit()).expect("held");
    let mut second = writing(&b);
    assert_pending!(second.poll());
    // From now on the server of the second one shows the past.
    other.lag();
    now(first.transaction().set("/value", "2").commit()).expect("held");
    now(first.release()).expect("held");
    let second = assert_ready_ok!(second.poll());
    assert_eq!(now(second.data("/value")).expect("held").expect("created").data, b"2");
    other.catch_up();
    drop((second, one));
    assert_eq!(other.children(DIRECTORY), Vec::<String>::new());
}

#[test]
fn a_writer_that_was_lost_lets_in_nobody_and_the_next_looks() {
    let (one, other, a, b) = two("lost");
    let (first, mut second) = one_behind_the_other(&a, &b);
    one.expire();
    assert!(!first.is_held());
    assert!(assert_ready_ok!(second.poll()).is_held());
    drop(first);
    drop(second);
    assert_eq!((other.children(DIRECTORY).len(), other.watches()), (0, 0));
}

#[test]
fn whoever_lost_its_node_while_it_waited_is_not_let_in() {
    let (one, other, a, b) = two("removed");
    let (first, mut second) = one_behind_the_other(&a, &b);
    let name = other.children(DIRECTORY).into_iter().max_by_key(|name| name[name.len() - 10..].to_owned());
    other.remove(&format!("{DIRECTORY}/{}", name.expect("two are there")));
    drop(first);
    assert!(matches!(assert_ready_err!(second.poll()), Error::Evicted(_)));
    assert_eq!((one.children(DIRECTORY).len(), one.watches()), (0, 0));
}

/// Does this before any session has watched its own nodes, as in the first 50 ms on ZooKeeper: while a chore runs, no other
/// does.
fn blindly(client: &Memory, act: impl FnOnce() + Send + 'static) {
    let berth = now(client.berth(0)).expect("open");
    let (done, is_done) = std::sync::mpsc::channel();
    berth.session().spawn(Box::pin(async move {
        act();
        done.send(()).expect("the test waits");
    }));
    is_done.try_recv().expect("done at once");
}

#[tokio::test(start_paused = true)]
async fn a_lock_delay_holds_off_also_whoever_hears_from_its_process_that_the_writer_was_lost() {
    for is_right_behind in [true, false] {
        let (one, other, a, b) = two("delay");
        let delay = Duration::from_secs(5);
        let patient = Named { client: other.clone(), ensemble: Some("delay".to_owned()) };
        let patient = RwLock::builder(&patient, DIRECTORY).lock_delay(delay).build().expect("valid");
        let first = now(a.write()).expect("free");
        let (tell, told) = std::sync::mpsc::channel();
        let (one, b) = (one.clone(), b.clone());
        blindly(&other, move || {
            // A reader between them goes before its time has come.
            let mut between = task::spawn(b.read().into_future());
            if !is_right_behind {
                assert_pending!(between.poll());
            }
            let mut second = writing(&patient);
            assert_pending!(second.poll());
            drop(between);
            assert_pending!(second.poll());
            one.expire();
            drop(first);
            assert_pending!(second.poll());
            tell.send(second).expect("the test waits");
        });
        let mut second = told.recv().expect("sent");
        assert_pending!(second.poll());
        tokio::time::advance(delay + Duration::from_millis(2)).await;
        drop(assert_ready_ok!(second.poll()));
    }
}

/// What checks that a holder's node exists, and is still on its way when the lock is let go, must not be done beside the
/// next one.
#[test]
fn whoever_has_told_anybody_of_its_node_lets_in_nobody_before_that_is_gone() {
    let (one, other, a, b) = two("node");
    let by_hand = now(one.connect().berth(0)).expect("open");
    let write_if_held = |path: &str| {
        let check = Operation::Check { path: path.to_owned(), version: None };
        let set = Operation::Set { path: "/value".to_owned(), data: Vec::new(), version: None };
        now(by_hand.session().transact(&[check, set]))
    };
    now(by_hand.session().create("/value", b"", Kind::Persistent)).expect("new");
    let first = now(a.write()).expect("free");
    let node = first.path();
    let mut second = writing(&b);
    assert_pending!(second.poll());
    one.cut();
    drop(first);
    assert_pending!(second.poll());
    write_if_held(&node).expect("nobody else holds");
    one.heal();
    let second = assert_ready_ok!(second.poll());
    write_if_held(&node).expect_err("the lock was let go");
    drop(second);
    assert_eq!((other.children(DIRECTORY).len(), other.watches()), (0, 0));
}

/// A client that has two sessions, and gives them out in turn.
#[derive(Clone, Debug)]
struct InTurn([Memory; 2], Arc<AtomicUsize>);

#[async_trait]
impl Coordinator for InTurn {
    async fn berth(&self, watched_bytes: usize) -> Result<Berth, Failure> {
        self.0[self.1.fetch_add(1, Ordering::Relaxed) % 2].berth(watched_bytes).await
    }

    async fn close(&self) {}

    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        self.0[0].sleep(duration)
    }
}

/// Does something, once, at the moment when it is woken: as another thread may.
struct AtOnce<F>(Mutex<Option<F>>);

impl<F: FnOnce() + Send> Wake for AtOnce<F> {
    fn wake(self: Arc<Self>) {
        let act = self.0.lock().expect("no panic").take();
        act.into_iter().for_each(|act| act());
    }
}

/// Those who hold several locks write through the session of one of them, and others through a client of their own.
#[test]
fn whoever_is_let_in_reads_what_was_written_under_the_lock_through_another_session() {
    for is_by_hand in [false, true] {
        let zk = Memory::new();
        blindly(&zk.clone(), move || write_through_another_session(&zk, is_by_hand));
    }
}

fn write_through_another_session(zk: &Memory, is_by_hand: bool) {
    let clients = [zk.connect(), zk.connect()];
    let ensemble = Some("several".to_owned());
    let several = Named { client: InTurn(clients.clone(), Arc::default()), ensemble: ensemble.clone() };
    let several = MultiLock::new(&several, [("/a", Mode::Write), ("/b", Mode::Write)]).expect("valid");
    let single = RwLock::new(&Named { client: clients[0].clone(), ensemble }, "/a").expect("valid");
    // Only later numbers show that nobody is between them when others write as well.
    (0..10).for_each(|_| drop(now(several.lock()).expect("free")));
    let by_hand = now(zk.berth(0)).expect("open");
    now(by_hand.session().create("/value", b"1", Kind::Persistent)).expect("new");
    let guard = now(several.lock()).expect("free");
    let mut next = single.write().into_future();
    assert!(next.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    clients[0].lag();
    if is_by_hand {
        let write = Operation::Set { path: "/value".to_owned(), data: b"2".to_vec(), version: None };
        now(by_hand.session().transact(&[write])).expect("there");
    } else {
        now(guard.transaction().set("/value", "2").commit()).expect("held");
    }
    let (tell, told) = std::sync::mpsc::channel();
    let next = Arc::new(Mutex::new(next));
    let (its, ensemble) = (Arc::clone(&next), zk.clone());
    let at_once = AtOnce(Mutex::new(Some(move || {
        let next = &mut *its.lock().expect("no panic");
        let next = assert_ready_ok!(next.as_mut().poll(&mut Context::from_waker(Waker::noop())));
        let before = ensemble.requests();
        let value = now(next.data("/value")).expect("held").expect("created");
        tell.send((value.data, ensemble.requests() - before)).expect("the test waits");
    })));
    let waker = Waker::from(Arc::new(at_once));
    assert!(next.lock().expect("no panic").as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    drop(guard);
    let (value, requests) = told.try_recv().expect("let in at once");
    assert_eq!(value, b"2");
    // A new connection may be to a server that has not heard of what another session wrote.
    assert_eq!(requests, if is_by_hand { 1 } else { 2 }, "it syncs if the process knows of another session");
}

/// That two ensembles have one name in this process, as when a host's name is pointed elsewhere, makes nobody wait for
/// somebody in the other, nor be let in by it.
#[test]
fn contenders_in_two_ensembles_of_one_name_neither_wait_for_each_other_nor_let_each_other_in() {
    let here = two("one name");
    let there = two("one name");
    for round in 0..50 {
        let (a, b) = if round % 2 == 0 { (&here, &there) } else { (&there, &here) };
        let first = now(a.2.write()).expect("nobody is in this ensemble's queue");
        let other = now(b.2.write()).expect("nor in that one's");
        let (mut second, mut another) = (writing(&a.3), writing(&b.3));
        assert_pending!(second.poll());
        assert_pending!(another.poll());
        drop(other);
        assert_pending!(second.poll());
        let another = assert_ready_ok!(another.poll());
        assert!(first.is_held() && another.is_held());
        drop(first);
        drop(assert_ready_ok!(second.poll()));
        drop(another);
        assert_eq!((a.0.children(DIRECTORY).len(), b.0.children(DIRECTORY).len()), (0, 0));
    }
}

#[test]
fn what_is_known_of_a_lock_ends_with_its_last_handle() {
    let (zk, _other, a, b) = two("last");
    drop((a, b));
    let again = lock_of(&zk, "last");
    let before = zk.requests();
    drop(now(again.write()).expect("free"));
    // Create, list, watch of its own node, and the removal: it had to look.
    assert_eq!(zk.requests() - before, 4);
}

/// Two sessions of one process, which have seen each other's nodes, behind one proxy; and what nobody taps.
struct Tapped {
    proxy: Proxy,
    a: RwLock,
    b: RwLock,
    observer: RwLock,
    operator: ZooKeeper,
}

impl Tapped {
    async fn new(server: &Server) -> Tapped {
        let proxy = Proxy::start(server.address());
        let (one, other) = (connect(&proxy.address()).await, connect(&proxy.address()).await);
        let operator = connect(&server.address()).await;
        let directory = format!("/together/{}", proxy.address().replace([':', '.'], "-"));
        let lock = |client| lock_at(client, &directory);
        let (a, b, observer) = (lock(&one), lock(&other), lock(&operator));
        let first = a.write().await.unwrap();
        let second = writer(&b);
        eventually("it waits", || async { proxy.count(Op::GetData) >= 1 }).await;
        first.release().await.unwrap();
        granted(second).await.release().await.unwrap();
        Tapped { proxy, a, b, observer, operator }
    }

    /// The requests in the order of sending, without paths.
    fn requests(&self) -> Vec<Op> {
        self.proxy.requests().into_iter().map(|(op, _)| op).collect()
    }
}

#[tokio::test]
async fn a_pair_that_waited_for_its_own_process_costs_two_requests() {
    // Of its own: what others write in between is counted against what the numbers show.
    let server = Server::start();
    let t = Tapped::new(&server).await;
    let mut held = t.a.write().await.unwrap();
    let mut all = Vec::new();
    for round in 0..40 {
        t.proxy.reset();
        let waiter = writer(if round % 2 == 0 { &t.b } else { &t.a });
        // Not by looks at the queue: a holder of more than 5 ms watches its own node besides.
        while t.proxy.count(Op::Create2) == 0 {
            tokio::task::yield_now().await;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert!(!waiter.is_finished());
        held.release().await.unwrap();
        held = granted(waiter).await;
        all.push(t.requests());
    }
    held.release().await.unwrap();
    all.sort_by_key(Vec::len);
    assert_eq!(all[0], [Op::Create2, Op::Multi]);
}

/// Should its own process fail to tell it, the server does.
#[tokio::test]
async fn whoever_waits_for_its_own_process_for_long_watches_the_one_before_it() {
    let server = Server::start();
    let t = Tapped::new(&server).await;
    let held = t.a.write().await.unwrap();
    t.proxy.reset();
    let waiter = writer(&t.b);
    // The holder's own, the waiter's own, and the waiter's of the holder.
    eventually("all is watched", || async { t.proxy.count(Op::GetData) == 3 }).await;
    assert_eq!(t.proxy.count(Op::GetChildren), 0);
    // An operator removes the holder's node, which the process hears of only from the server.
    session(&t.operator).await.delete(&held.path()).await.unwrap();
    assert!(granted(waiter).await.is_held());
    assert!(!held.is_held());
}

#[tokio::test]
async fn readers_and_writers_of_one_process_pass_through_without_a_look() {
    // Of its own: what others write in between is counted against what the numbers show.
    let server = Server::start();
    let t = Tapped::new(&server).await;
    let mut looks = Vec::new();
    for _ in 0..10 {
        let held = t.a.write().await.unwrap();
        t.proxy.reset();
        let one = reader(&t.a);
        line_becomes(&t.observer, "W+ R-").await;
        let other = reader(&t.b);
        line_becomes(&t.observer, "W+ R- R-").await;
        let last = writer(&t.a);
        line_becomes(&t.observer, "W+ R- R- W-").await;
        held.release().await.unwrap();
        let (one, other) = (granted(one).await, granted(other).await);
        one.release().await.unwrap();
        other.release().await.unwrap();
        granted(last).await.release().await.unwrap();
        looks.push(t.proxy.count(Op::GetChildren));
    }
    // Answers that come in another order than the numbers, or beside other work of the server, cost a look.
    assert_eq!(looks.iter().min(), Some(&0), "{looks:?}");
}

/// It does not hear of its own node what it should, and does not wait for its process alone.
#[tokio::test]
async fn whoever_cannot_watch_its_own_node_watches_the_one_before_it() {
    let t = Tapped::new(shared_server()).await;
    let held = t.a.write().await.unwrap();
    let number: u64 = held.path().rsplit('-').next().unwrap().parse().unwrap();
    let own = Frames::replies(Op::GetData).about(&format!("WRITE-{:010}", number + 1));
    let refused = t.proxy.apply(Rule::on(own).claim_error(NO_AUTH));
    let waiter = writer(&t.b);
    refused.strikes().await;
    session(&t.operator).await.delete(&held.path()).await.unwrap();
    assert!(granted(waiter).await.is_held());
    assert!(!held.is_held());
}

/// Whoever is let in by its process may write before the ensemble has heard of it. What was sent under the hold before
/// and is still on its way must not come after that.
#[tokio::test]
async fn whoever_has_sent_a_transaction_and_not_heard_of_it_lets_in_nobody_before_its_node_is_gone() {
    let t = Tapped::new(shared_server()).await;
    let value = format!("/value-{}", t.proxy.address().replace([':', '.'], "-"));
    let held = t.a.write().await.unwrap();
    held.transaction().create(&value, "1").commit().await.unwrap();
    let waiter = writer(&t.b);
    line_becomes(&t.observer, "W+ W-").await;
    let on_its_way = t.proxy.hold_request(Op::Multi);
    assert_pending!(task::spawn(held.transaction().set(&value, "2").commit()).poll());
    drop(held);
    on_its_way.arrives().await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!waiter.is_finished(), "the transaction before may still be carried out");
    on_its_way.release();
    let next = granted(waiter).await;
    assert_eq!(next.data(&value).await.unwrap().unwrap().data, b"2");
    next.transaction().set(&value, "3").commit().await.unwrap();
    assert_eq!(next.data(&value).await.unwrap().unwrap().data, b"3");
    next.release().await.unwrap();
}
