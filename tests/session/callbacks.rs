//! The library calls no subscriber of the user's on the thread that runs the sessions.
//!
//! A subscriber serves a whole process, so the test runs in a child process, which is this test binary itself: see
//! [`support::process`].

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use support::process::{Process, role, say};
use support::scene::*;
use support::server::shared_server;
use support::wire::Proxy;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Event, Metadata, Subscriber};
use zk_rwlock::coordinator::flush_events;
use zk_rwlock::{Leadership, RwLock, Semaphore, Shared, ZooKeeper};

const SHORT: Duration = Duration::from_secs(2);

/// The calls of user code on threads of the library. Each is a fault.
static WRONG: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// The first four words of each logged event, after the name of the crate that logged it, and the name of each span.
static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

static DROPPED: AtomicUsize = AtomicUsize::new(0);

fn called(what: &str, by: &str) {
    let thread = std::thread::current();
    if thread.name() == Some("zk-rwlock") {
        WRONG.lock().expect("no panic").insert(format!("{what} of {by} on {:?}", thread.name()));
    }
}

/// A subscriber that enables all events and spans.
struct Watches;

struct Words(String);

impl Visit for Words {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}

impl Subscriber for Watches {
    /// `tracing` calls this method once for each call site, on the first thread that reaches the site.
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        Interest::sometimes()
    }
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        called("enabled", metadata.name());
        metadata.target().starts_with("zk_rwlock") || metadata.target().starts_with("zookeeper_client")
    }
    fn new_span(&self, span: &Attributes<'_>) -> Id {
        called("new_span", span.metadata().name());
        SAID.lock().expect("no panic").insert(format!("span: {}", span.metadata().name()));
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {
        called("record", "a span");
    }
    fn record_follows_from(&self, _: &Id, _: &Id) {
        called("record_follows_from", "a span");
    }
    fn event(&self, event: &Event<'_>) {
        called("event", event.metadata().name());
        let mut words = Words(String::new());
        event.record(&mut words);
        let origin = event.metadata().target().split("::").next().unwrap_or_default();
        let words = words.0.split_whitespace().take(4).collect::<Vec<_>>().join(" ");
        SAID.lock().expect("no panic").insert(format!("{origin}: {words}"));
    }
    fn enter(&self, _: &Id) {
        called("enter", "a span");
    }
    fn exit(&self, _: &Id) {
        called("exit", "a span");
    }
    fn clone_span(&self, span: &Id) -> Id {
        called("clone_span", "a span");
        span.clone()
    }
    fn try_close(&self, _: Id) -> bool {
        called("try_close", "a span");
        false
    }
}

/// A value that records the thread of each clone, encoding, decoding and drop.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(from = "u64", into = "u64")]
struct Value(u64);

impl Clone for Value {
    fn clone(&self) -> Value {
        called("clone", "a value");
        Value(self.0)
    }
}

impl From<u64> for Value {
    fn from(number: u64) -> Value {
        called("decode", "a value");
        Value(number)
    }
}

impl From<Value> for u64 {
    fn from(value: Value) -> u64 {
        called("encode", "a value");
        value.0
    }
}

impl Drop for Value {
    fn drop(&mut self) {
        called("drop", "a value");
        DROPPED.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn the_child_process_of_other_tests() {
    let Some(role) = role() else { return };
    let (proxied, server) = role.split_once(' ').expect("two addresses");
    tracing::subscriber::set_global_default(Watches).expect("the first");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let (one, two) = (connect_with(proxied, SHORT).await, connect(server).await);
        // The library's thread is the first to acquire a lock: it writes the initial value.
        let first = Shared::builder(&one, "/callbacks/first").initial(|| Value(1)).build().unwrap();
        soon("the first value", first.live()).await.unwrap();
        locks(&one, &two).await;
        recipes(&one, &two).await;
        losses(&one, &two).await;
        one.close().await;
    });
    assert!(flush_events(SOON), "the events are not flushed");
    assert!(DROPPED.load(Ordering::Relaxed) > 0);
    for said in SAID.lock().expect("no panic").iter() {
        say(said);
    }
    for wrong in WRONG.lock().expect("no panic").iter() {
        say(&format!("wrong: {wrong}"));
    }
}

/// Causes waits, hand-offs, downgrades and cancelled waits, and has processes give up their kept nodes.
async fn locks(one: &ZooKeeper, two: &ZooKeeper) {
    let open = |zk, keep: bool| {
        let lock = RwLock::builder(zk, "/callbacks/lock").warn_after_waiting(Duration::from_millis(50));
        let lock = lock.warn_after_holding(Duration::from_millis(50));
        if keep { lock.keep(CALM) } else { lock }.build().unwrap()
    };
    let (first, second, kept) = (open(one, false), open(two, false), open(one, true));
    let guard = first.write().await.unwrap();
    let waits = second.write().timeout(Duration::from_millis(300)).on_wait(|_| called("on_wait", "a wait"));
    assert!(waits.await.is_err());
    let next = reader(&second);
    line_becomes(&second, "W+ R-").await;
    let guard = guard.downgrade().await.unwrap();
    drop(next.await.unwrap().unwrap());
    let next = writer(&second);
    line_becomes(&second, "R+ W-").await;
    guard.release().await.unwrap();
    next.await.unwrap().unwrap().release().await.unwrap();
    kept.read().await.unwrap().release().await.unwrap();
    second.write().await.unwrap().release().await.unwrap();
}

/// Takes permits of a semaphore, leads for a term, and observes shared values.
async fn recipes(one: &ZooKeeper, two: &ZooKeeper) {
    let permits = |zk| Semaphore::new(zk, "/callbacks/permits", 1).unwrap();
    let permit = permits(one).acquire().await.unwrap();
    let next = permits(two);
    let next = tokio::spawn(async move { next.acquire().await.map(drop) });
    permit.release().await.unwrap();
    soon("the permit", next).await.unwrap().unwrap();
    let leads = Leadership::new(one, "/callbacks/leader").unwrap();
    leads.lead(|_| async {}).await.unwrap();
    let open = |zk| Shared::builder(zk, "/callbacks/value").initial(|| Value(1)).build().unwrap();
    let (here, there) = (open(one), open(two));
    let mut changes = here.changes();
    for _ in 0..3 {
        there.update(|value| value.0 += 1).await.unwrap();
        let _newest = soon("a change", changes.next()).await;
    }
    drop((changes, here));
}

/// Holds a lock that an operator removes, and lets a session expire while it holds, waits and keeps nodes.
async fn losses(one: &ZooKeeper, two: &ZooKeeper) {
    let path = "/callbacks/lost";
    let (held, lock) = (lock_at(one, path).write().await.unwrap(), lock_at(two, path));
    lock.evict(held.fencing_token()).await.unwrap();
    soon("the loss", held.lost()).await;
    drop(held);
    let held = soon("a free lock", lock_at(one, path).write()).await.unwrap();
    let waits = writer(&lock_at(one, path));
    line_becomes(&lock, "W+ W-").await;
    say("cut");
    soon("the loss", held.lost()).await;
    drop((soon("the end of the session", waits).await, held));
    soon("another session", lock_at(one, path).write()).await.unwrap().release().await.unwrap();
}

#[support::judged]
async fn no_user_code_runs_on_the_session_threads() {
    let (server, proxy) = (shared_server().address(), Proxy::start(shared_server().address()));
    let mut child = Process::start(module_path!(), &format!("{} {server}", proxy.address()));
    let mut child = tokio::task::spawn_blocking(move || {
        assert_eq!(child.says(), "cut");
        child
    })
    .await
    .expect("no panic");
    proxy.black_hole();
    line_becomes(&lock_at(&connect(&server).await, "/callbacks/lost"), "").await;
    proxy.heal();
    let said: Vec<_> = tokio::task::spawn_blocking(move || child.said().collect()).await.expect("no panic");
    let wrong: Vec<_> = said.iter().filter(|said| said.starts_with("wrong")).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    for expected in [
        "zk_rwlock: it takes long to",
        "zk_rwlock: a lock was lost",
        "zk_rwlock: granted",
        "zk_rwlock: the connection is lost",
        "zk_rwlock: the session is over",
        "span: acquire",
        "span: hold",
    ] {
        assert!(said.iter().any(|said| said.starts_with(expected)), "{expected} is not among {said:#?}");
    }
    assert!(said.iter().all(|said| !said.starts_with("zookeeper_client")), "{said:#?}");
}
