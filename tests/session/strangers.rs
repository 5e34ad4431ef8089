//! User code that fails when the library calls it: `tracing` subscribers that block for ever or panic, and wakers that panic. The
//! library keeps the session alive, or reports the loss of the lock before the next grant.
//!
//! A subscriber serves a whole process, so each runs in a child process, which is this test binary itself: see
//! [`support::process`].

use std::future::{IntoFuture, pending};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Wake, Waker};
use std::thread;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use support::process::{Process, role, say};
use support::scene::*;
use support::server::shared_server;
use support::wire::Proxy;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata, Subscriber};
use zk_rwlock::coordinator::{Coordinator, Operation, SessionEnd};
use zk_rwlock::{Error, Leadership, Loss, RwLock, WriteGuard, ZooKeeper};

/// The session timeout of the children.
const SHORT: Duration = Duration::from_secs(4);

/// Returns the time of the monotonic clock, in nanoseconds. All processes of this machine share that clock.
fn clock() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

fn for_ever() {
    loop {
        thread::park();
    }
}

// -------------------------------------------------------------------------------------------------------- The children

/// The behaviour of a bad subscriber when the library calls it.
#[derive(Clone, Copy, PartialEq)]
enum Habit {
    Blocks,
    Panics,
}

impl Habit {
    fn follow(self) {
        match self {
            Habit::Blocks => for_ever(),
            Habit::Panics => panic!("on purpose"),
        }
    }
}

/// A subscriber that blocks or panics at the warning that an acquisition takes long.
struct BadSubscriber(Habit);

impl BadSubscriber {
    fn is_warning_of_a_long_wait(&self, event: &Event<'_>) -> bool {
        let mut report = Message(String::new());
        event.record(&mut report);
        report.0.contains("it takes long to acquire a lock")
    }
}

struct Message(String);

impl tracing::field::Visit for Message {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}

/// Whether the subscriber blocks in `register_callsite`. `tracing` calls that method once for each site, on the first thread that
/// reaches the site.
static BLOCKS_CALL_SITES: AtomicBool = AtomicBool::new(false);

/// Whether the subscriber blocks each thread of the library that logs an event.
static BLOCKS_OUR_THREADS: AtomicBool = AtomicBool::new(false);

impl Subscriber for BadSubscriber {
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        if BLOCKS_CALL_SITES.load(Ordering::SeqCst) {
            for_ever();
        }
        Interest::sometimes()
    }
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::DEBUG || BLOCKS_OUR_THREADS.load(Ordering::SeqCst)
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        if BLOCKS_OUR_THREADS.load(Ordering::SeqCst) && thread::current().name().is_some_and(|it| it.starts_with("zk-"))
        {
            for_ever();
        }
        if self.is_warning_of_a_long_wait(event) {
            say("logged");
            self.0.follow();
        }
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
    fn try_close(&self, _: Id) -> bool {
        // A span can also close on a caller's thread, where blocking would stop only that caller. So the subscriber only panics
        // here.
        if self.0 == Habit::Panics {
            self.0.follow();
        }
        false
    }
}

struct BadWaker;

impl Wake for BadWaker {
    fn wake(self: Arc<Self>) {
        say("woken");
        panic!("on purpose");
    }
}

#[test]
fn the_child_process_of_other_tests() {
    let Some(role) = role() else { return };
    let mut words = role.split(' ').map(str::to_owned);
    let mut word = || words.next().expect("what, a habit, the number of sessions, a server and a path");
    let (what, habit, sessions, server, path) = (word(), word(), word(), word(), word());
    let fault = habit.clone();
    let habit = if habit == "blocks" { Habit::Blocks } else { Habit::Panics };
    if what == "subscriber" || what == "asked" {
        tracing::subscriber::set_global_default(BadSubscriber(habit)).expect("the first");
    }
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let zk = connect_with(&server, SHORT).await;
        let is_alone = sessions == "1";
        let other = if is_alone { zk.clone() } else { connect_with(&server, SHORT).await };
        let held = lock_at(&zk, &path).write().await.unwrap();
        if what == "fault" {
            let beside = lock_at(&other, &format!("{path}-other")).write().await.unwrap();
            go_on_after(&zk, &path, held, &fault).await;
            assert_eq!(beside.is_held(), !is_alone || fault != "task", "wrong state of the lock on the other session");
            return say("goes on");
        }
        match what.as_str() {
            "subscriber" => wait_for_long(&other, &path),
            "late" => set_subscriber_late(&other, &path, BadSubscriber(habit)).await,
            "waker" => be_woken(&other, &path).await,
            "asked" => BLOCKS_CALL_SITES.store(true, Ordering::SeqCst),
            other => panic!("there is no role {other}"),
        }
        say("held");
        work_under(&held).await;
    });
    // An ordinary exit would wait for the blocked threads.
    std::process::exit(0);
}

/// Sets the subscriber while a session exists, and causes log events immediately.
async fn set_subscriber_late(zk: &ZooKeeper, path: &str, subscriber: BadSubscriber) {
    let leadership = Leadership::new(zk, format!("{path}-led")).unwrap();
    let mut leads = Box::pin(leadership.lead(|_| pending::<()>()));
    tokio::select! {
        _ = &mut leads => panic!("the term ended"),
        () = eventually("the candidate leads", || async { leadership.is_leader() }) => {}
    }
    BLOCKS_OUR_THREADS.store(true, Ordering::SeqCst);
    tracing::subscriber::set_global_default(subscriber).expect("the first");
    // Dropping the future ends the term, which the library logs.
    drop(leads);
    wait_for_long(zk, path);
}

/// Starts acquisitions of a lock that this process itself holds, so the library logs warnings that they take long.
fn wait_for_long(zk: &ZooKeeper, path: &str) {
    for _ in 0..3 {
        let lock = RwLock::builder(zk, path).warn_after_waiting(Duration::from_millis(50)).build().unwrap();
        tokio::spawn(async move { lock.write().await.map(drop) });
    }
}

/// Grants another lock to a waiter with a bad waker, so that the library's thread calls that waker.
async fn be_woken(zk: &ZooKeeper, path: &str) {
    let other = lock_at(zk, &format!("{path}-other"));
    let guard = other.write().await.unwrap();
    let line = other.clone();
    let ((arm, is_to_arm), (notify, armed)) = (mpsc::channel::<()>(), oneshot::channel());
    // A thread of its own polls the waiting future and never drops it.
    thread::spawn(move || {
        let mut waits = pin!(line.write().into_future());
        while is_to_arm.try_recv().is_err() {
            assert!(waits.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            thread::sleep(Duration::from_millis(5));
        }
        let waker = Waker::from(Arc::new(BadWaker));
        assert!(waits.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        notify.send(()).expect("the other thread waits");
        for_ever();
    });
    line_becomes(&other, "W+ W-").await;
    arm.send(()).expect("the thread runs");
    armed.await.expect("the thread answers");
    drop(guard);
}

/// Causes a panic. In a task of the session, the panic loses the lock immediately, and the next acquisition opens another session.
/// A waker that panics at the event of a watch, or in the loop of the library's thread, costs no lock and no session.
async fn go_on_after(zk: &ZooKeeper, path: &str, held: WriteGuard, fault: &str) {
    let lock = lock_at(zk, path);
    let waits = writer(&lock);
    line_becomes(&lock, "W+ W-").await;
    let slot = zk.session_slot(0).await.unwrap();
    let (session, directory) = (Arc::clone(slot.session()), path.to_owned());
    drop(slot);
    let waker = Waker::from(Arc::new(BadWaker));
    let its_own = Arc::clone(&session);
    // The task is first polled on this thread. After the pause, it is polled on the library's thread.
    const PAUSE: Duration = Duration::from_millis(1);
    let (notify, is_called) = oneshot::channel();
    session.spawn(match fault {
        "task" => Box::pin(async { panic!("on purpose") }),
        // When the watch fires, the task that serves the connection calls the waker.
        "watch" => Box::pin(async move {
            its_own.sleep(PAUSE).await;
            let mut watch = its_own.watch(&directory).await.expect("the node exists");
            assert!(watch.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            let set = Operation::Set { path: directory, data: Vec::new(), version: None };
            drop(its_own.transact(&[set]).await);
            its_own.sync("/").await.expect("the session goes on");
            notify.send(()).expect("the other thread waits");
        }),
        // When the timer expires, the loop of the library's thread calls the waker, before the wakers of later timers.
        _ => Box::pin(async move {
            its_own.sleep(PAUSE).await;
            let mut sleep = its_own.sleep(Duration::from_millis(20));
            assert!(sleep.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            its_own.sleep(Duration::from_millis(40)).await;
            notify.send(()).expect("the other thread waits");
        }),
    });
    drop(session);
    if fault != "task" {
        soon("the panic", is_called).await.expect("the session goes on");
        assert!(held.is_held() && zk.state().is_connected());
        return;
    }
    assert_eq!(soon("the loss", held.lost()).await, Loss::SessionOver(SessionEnd::Failed));
    let waited = soon("the end of the wait", waits).await.expect("no panic");
    assert!(matches!(waited, Err(Error::Evicted(Loss::SessionOver(SessionEnd::Failed)))), "{waited:?}");
    soon("another session", lock.write()).await.expect("granted").release().await.expect("held");
    assert!(zk.state().is_connected());
}

/// Works until the lock is lost. Prints the time of the last work and the time at which the loss was reported.
async fn work_under(held: &WriteGuard) {
    let last = AtomicU64::new(0);
    let worked = held.run(async {
        loop {
            last.store(clock(), Ordering::Relaxed);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    let (worked, _) = within(SHORT * 5, "the loss", async { tokio::join!(worked, held.lost()) }).await;
    let error: Result<(), Error> = worked.map(|never: ()| never);
    assert!(matches!(error, Err(Error::Lost(_))), "{error:?}");
    say(&format!("{} {}", last.into_inner(), clock()));
}

// ---------------------------------------------------------------------------------------------------------- The parent

/// Starts a child with this bad subscriber or waker. Waits until the child holds the lock and, if `what` is "subscriber" or
/// "waker", until the library has called the bad code. Returns the path of the child's lock, its proxy and the child.
async fn begin(what: &str, habit: &str, sessions: usize) -> (String, Proxy, Process) {
    let path = format!("/strangers/{what}-{habit}-{sessions}");
    let proxy = Proxy::start(shared_server().address());
    let mut child = Process::start(module_path!(), &format!("{what} {habit} {sessions} {} {path}", proxy.address()));
    let mut said = std::collections::BTreeSet::new();
    let wanted = match what {
        "subscriber" => &["held", "logged"][..],
        "waker" => &["held", "woken"],
        _ => &["held"],
    };
    let child = tokio::task::spawn_blocking(move || {
        while !wanted.iter().all(|it| said.contains(*it)) {
            said.insert(child.says());
        }
        child
    })
    .await
    .expect("the child goes on");
    (path, proxy, child)
}

/// Starts an acquisition of the child's lock. Its task returns the time of the grant and the guard.
fn contend(lock: RwLock) -> JoinHandle<(u64, WriteGuard)> {
    tokio::spawn(async move {
        let guard = lock.write().await.expect("the session expires");
        (clock(), guard)
    })
}

/// Checks that the child ended its work and reported the loss before the next grant.
async fn ends(mut child: Process, next: JoinHandle<(u64, WriteGuard)>) {
    let (granted_at, guard) = within(SHORT * 5, "the grant", next).await.expect("no panic");
    let report = tokio::task::spawn_blocking(move || child.said().find(|it| it.contains(' ')));
    let report = report.await.expect("no panic").expect("the child hears of the loss");
    let (worked, heard) = report.split_once(' ').expect("two moments");
    let (worked, heard): (u64, u64) = (worked.parse().unwrap(), heard.parse().unwrap());
    assert!(worked < granted_at && heard < granted_at, "worked {worked}, heard {heard}, granted {granted_at}");
    guard.release().await.unwrap();
}

/// Checks that a child with this bad subscriber or waker keeps its lock while it is connected, and ends its work before the next
/// grant after a cut.
async fn round(what: &str, habit: &str, sessions: usize) {
    let (path, proxy, child) = begin(what, habit, sessions).await;
    let zk = connect(&shared_server().address()).await;
    let lock = lock_at(&zk, &path);
    // The wait lasts two session timeouts. No grant comes, because the library renews the child's session.
    let granted = tokio::time::timeout(SHORT * 2, lock.write().into_future()).await;
    assert!(granted.is_err(), "the child has lost its lock");
    let next = contend(lock);
    let has_own_waiters = matches!(what, "subscriber" | "late");
    line_becomes(&lock_at(&zk, &path), if has_own_waiters { "W+ W- W- W- W-" } else { "W+ W-" }).await;
    proxy.black_hole();
    ends(child, next).await;
}

/// Checks that a child goes on working after a panic of this kind.
async fn goes_on(fault: &str, sessions: usize) {
    let address = shared_server().address();
    let mut child =
        Process::start(module_path!(), &format!("fault {fault} {sessions} {address} /strangers/{fault}-{sessions}"));
    let said = tokio::task::spawn_blocking(move || child.said().last()).await.expect("no panic");
    assert_eq!(said.as_deref(), Some("goes on"), "{fault}, {sessions}");
}

#[support::judged]
async fn a_background_panic_ends_one_session() {
    for fault in ["task", "watch", "timer"] {
        tokio::join!(goes_on(fault, 1), goes_on(fault, 2));
    }
}

#[support::judged]
async fn a_waker_that_panics_costs_no_lease() {
    tokio::join!(round("waker", "panics", 1), round("waker", "panics", 2));
}

#[support::judged]
async fn a_subscriber_that_blocks_or_panics_costs_no_lease() {
    for habit in ["blocks", "panics"] {
        tokio::join!(round("subscriber", habit, 1), round("subscriber", habit, 2));
    }
}

#[support::judged]
async fn a_late_subscriber_that_blocks_costs_no_lease() {
    tokio::join!(round("late", "blocks", 1), round("late", "blocks", 2));
}

#[support::judged]
async fn a_subscriber_that_blocks_when_it_is_asked_costs_no_lease() {
    tokio::join!(round("asked", "blocks", 1), round("asked", "blocks", 2));
}
