//! Code of the user's that the library calls or wakes: a subscriber of `tracing` and a waker that block for ever, or panic.
//! Whatever they do, a lock is kept, and its loss is told before the next is granted.
//!
//! A subscriber is one for a whole process, so each is in a child, which is this test binary itself: see [`support::process`].

use std::future::IntoFuture;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Wake, Waker};
use std::thread;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use support::process::{Process, role, say};
use support::scene::*;
use support::server::shared_server;
use support::wire::Proxy;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};
use zk_rwlock::{Error, RwLock, ZooKeeper};

/// The session timeout of the children.
const SHORT: Duration = Duration::from_secs(4);

/// Nanoseconds on the one clock of all processes of this machine.
fn clock() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

fn for_ever() {
    loop {
        thread::park();
    }
}

// ---------------------------------------------------------------------------------------------------------------
// The children

/// What a subscriber or a waker does when it is called.
#[derive(Clone, Copy, PartialEq)]
enum Habit {
    Blocks,
    Panics,
}

impl Habit {
    fn follow(self) {
        match self {
            Habit::Blocks => for_ever(),
            Habit::Panics => panic!("as a stranger may"),
        }
    }
}

/// A subscriber with a bad habit, which it follows once it has heard of an acquisition that takes long.
struct Bad(Habit);

impl Bad {
    fn is_told(&self, event: &Event<'_>) -> bool {
        let mut told = Message(String::new());
        event.record(&mut told);
        told.0.contains("it takes long to acquire a lock")
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

impl Subscriber for Bad {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::DEBUG
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        if self.is_told(event) {
            say("told");
            self.0.follow();
        }
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
    fn try_close(&self, _: Id) -> bool {
        // A caller's thread may close a span, too, and a span that blocks it is the caller's own.
        if self.0 == Habit::Panics {
            self.0.follow();
        }
        false
    }
}

/// A waker with a bad habit.
struct BadWaker(Habit);

impl Wake for BadWaker {
    fn wake(self: Arc<Self>) {
        say("woken");
        self.0.follow();
    }
}

#[test]
fn the_life_of_a_child() {
    let Some(role) = role() else { return };
    let mut words = role.split(' ').map(str::to_owned);
    let mut word = || words.next().expect("what, a habit, the number of sessions, a server and a path");
    let (what, habit, sessions, server, path) = (word(), word(), word(), word(), word());
    let habit = if habit == "blocks" { Habit::Blocks } else { Habit::Panics };
    if what == "subscriber" {
        tracing::subscriber::set_global_default(Bad(habit)).expect("the first");
    }
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let mut sessions: Vec<ZooKeeper> = match sessions.as_str() {
            "1" => vec![connect_with(&server, SHORT).await],
            _ => vec![connect_with(&server, SHORT).await, connect_with(&server, SHORT).await],
        };
        let zk = sessions.pop().expect("at least one");
        let others = if sessions.is_empty() { vec![zk.clone()] } else { sessions };
        let held = lock_at(&zk, &path).write().await.unwrap();
        match what.as_str() {
            "subscriber" => wait_for_long(&others[0], &path),
            "waker" => be_woken(&others[0], &path, habit).await,
            other => panic!("there is no role {other}"),
        }
        say("held");
        work_under(&held).await;
    });
    // The threads that are blocked would be waited for.
    std::process::exit(0);
}

/// Waits for what this process holds, and has that told again and again.
fn wait_for_long(zk: &ZooKeeper, path: &str) {
    for _ in 0..3 {
        let lock = RwLock::builder(zk, path).warn_after_waiting(Duration::from_millis(50)).build().unwrap();
        tokio::spawn(async move { lock.write().await.map(drop) });
    }
}

/// Has the waker called, on the library's thread, by the grant of another lock.
async fn be_woken(zk: &ZooKeeper, path: &str, habit: Habit) {
    let other = lock_at(zk, &format!("{path}-other"));
    let guard = other.write().await.unwrap();
    let line = other.clone();
    // On a thread of its own: what it waits by is not dropped.
    thread::spawn(move || {
        let mut waits = pin!(line.write().into_future());
        let waker = Waker::from(Arc::new(BadWaker(habit)));
        assert!(waits.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        loop {
            if waits.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
                return;
            }
            thread::sleep(Duration::from_millis(20));
        }
    });
    line_becomes(&other, "W+ W-").await;
    drop(guard);
}

/// Works until the lock is lost, and says when it has worked last, and when it has heard of the loss.
async fn work_under(held: &zk_rwlock::WriteGuard) {
    let last = AtomicU64::new(0);
    let worked = held.run(async {
        loop {
            last.store(clock(), Ordering::Relaxed);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    let (worked, _) = tokio::join!(worked, held.lost());
    let error: Result<(), Error> = worked.map(|never: ()| never);
    assert!(matches!(error, Err(Error::Lost(_))), "{error:?}");
    say(&format!("{} {}", last.into_inner(), clock()));
}

// ---------------------------------------------------------------------------------------------------------------
// The parent

/// A child with such a subscriber or waker keeps its lock for as long as it is connected. Cut off, it has ended its work before
/// the next is granted.
async fn round(what: &str, habit: &str, sessions: usize) {
    let path = format!("/strangers/{what}-{habit}-{sessions}");
    let proxy = Proxy::start(shared_server().address());
    let mut child = Process::start(module_path!(), &format!("{what} {habit} {sessions} {} {path}", proxy.address()));
    let mut said = std::collections::BTreeSet::new();
    let wanted = if what == "subscriber" { ["held", "told"] } else { ["held", "woken"] };
    let mut child = tokio::task::spawn_blocking(move || {
        while !wanted.iter().all(|it| said.contains(*it)) {
            said.insert(child.says());
        }
        child
    })
    .await
    .expect("the child goes on");
    let zk = connect(&shared_server().address()).await;
    let lock = lock_at(&zk, &path);
    // Its session is kept alive well beyond its timeout.
    let granted = tokio::time::timeout(SHORT * 2, lock.write().into_future()).await;
    assert!(granted.is_err(), "it has lost its lock");
    let next = tokio::spawn(async move {
        let guard = lock.write().await.expect("the session expires");
        (clock(), guard)
    });
    line_becomes(&lock_at(&zk, &path), if what == "subscriber" { "W+ W- W- W- W-" } else { "W+ W-" }).await;
    proxy.black_hole();
    let (granted_at, guard) = within(SHORT * 5, "the grant", next).await.expect("no panic");
    let told = tokio::task::spawn_blocking(move || child.said().find(|it| it.contains(' '))).await.expect("no panic");
    let told = told.expect("it hears of the loss");
    let (worked, heard) = told.split_once(' ').expect("two moments");
    let (worked, heard): (u64, u64) = (worked.parse().unwrap(), heard.parse().unwrap());
    assert!(worked < granted_at && heard < granted_at, "worked {worked}, heard {heard}, granted {granted_at}");
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_subscriber_that_blocks_for_ever_costs_no_lease_and_hides_no_loss() {
    tokio::join!(round("subscriber", "blocks", 1), round("subscriber", "blocks", 2));
}

#[tokio::test]
async fn a_subscriber_that_panics_costs_no_lease_and_hides_no_loss() {
    tokio::join!(round("subscriber", "panics", 1), round("subscriber", "panics", 2));
}
