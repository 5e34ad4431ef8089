//! Holders whose connection is bad for a long time: no other contender ever holds together with them.
//!
//! `FLAP_SECONDS` sets how long links flap, and `FLAP_SEED` the random sequence.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use support::safe;
use support::scene::*;
use support::server::{Server, shared_server};
use support::wire::Proxy;
use zk_rwlock::coordinator::{Operation, SessionEnd};
use zk_rwlock::queue::NodeName;
use zk_rwlock::{HoldState, Loss, Mode, ReadGuard, RwLock, WriteGuard};

const SHORT: Duration = Duration::from_secs(2);

trait Guard: Send + 'static {
    fn is_held(&self) -> bool;
}

impl Guard for ReadGuard {
    fn is_held(&self) -> bool {
        zk_rwlock::Hold::is_held(self)
    }
}

impl Guard for WriteGuard {
    fn is_held(&self) -> bool {
        zk_rwlock::Hold::is_held(self)
    }
}

/// Calls `is_held` on the guard without pause, on a thread of its own, until it returns false or `stop` is set. Returns the guard
/// and the last moment at which it surely held.
fn watch_closely<G: Guard>(guard: G, stop: Arc<AtomicBool>) -> thread::JoinHandle<(G, Option<Instant>)> {
    thread::spawn(move || {
        let mut last_yes = None;
        while !stop.load(Ordering::Relaxed) {
            // The clock is read before the call, so the guard held at this moment or later.
            let asked = Instant::now();
            if !guard.is_held() {
                break;
            }
            last_yes = Some(asked);
            thread::sleep(Duration::from_micros(200));
        }
        (guard, last_yes)
    })
}

// ------------------------------------------------------------------------------------ Links that fail in one direction

/// The server's events still arrive, so the client believes that it is connected until the server ends its session.
#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_receives_only_events_loses_in_time() {
    const NODES: usize = 200;
    let server = shared_server();
    let proxy = Proxy::start(server.address());
    let (zk, other) = (connect_with(&proxy.address(), SHORT).await, connect(&server.address()).await);

    // Readers of another lock, on the holder's session. The test writes to their nodes, which causes the events.
    let busy = lock_at(&other, "/outages/busy").write().await.unwrap();
    let readers: Vec<_> = (0..NODES).map(|_| reader(&lock_at(&zk, "/outages/busy"))).collect();
    let guard = lock_at(&zk, "/outages/storm").write().await.unwrap();
    let next = lock_at(&other, "/outages/storm").write();
    let next = tokio::spawn(async move { next.await.map(|guard| (guard, Instant::now())) });
    line_becomes(&lock_at(&other, "/outages/storm"), "W+ W-").await;
    // Each reader and the guard watch their own node. The readers share one watch on the node of the writer ahead of them.
    let id = format!("0x{:x}", session(&zk).await.id());
    let watched = || async { watched_by(&server.four_letter("wchc"), &id) };
    eventually("all watches", || async { watched().await == NODES + 2 }).await;
    let names = children(&other, "/outages/busy").await;
    let nodes = names.iter().filter(|name| name.contains("-READ-")).map(|name| format!("/outages/busy/{name}"));
    let nodes: Vec<String> = nodes.collect();
    assert_eq!(nodes.len(), NODES);

    let never = Arc::new(AtomicBool::new(false));
    let witness = watch_closely(guard, Arc::clone(&never));
    proxy.reset();
    proxy.black_hole_to_server();
    let cut_at = Instant::now();
    let storm = tokio::spawn(async move {
        // The writes cause an event every few milliseconds, for longer than a lease.
        let writer = session(&other).await;
        for node in nodes {
            let write = Operation::Set { path: node, data: Vec::new(), version: None };
            if writer.transact(&[write]).await.is_err() {
                // The write fails, because the session has ended and its nodes are gone.
                break;
            }
            tokio::time::sleep(SHORT / NODES as u32).await;
        }
        other
    });
    let (guard, last_yes) = soon("the loss", tokio::task::spawn_blocking(|| witness.join().unwrap())).await.unwrap();
    let last_yes = last_yes.expect("the lock was held at first");
    let events = proxy.notifications();
    let why = guard.lost().await;
    let (next, granted_at) = granted(next).await;

    safe!(last_yes < granted_at, "held {:?} after the next grant", last_yes - granted_at);
    assert!(last_yes < cut_at + SHORT, "said held for {:?}", last_yes - cut_at);
    assert_eq!(why, Loss::LeaseRanOut);
    assert!(events > 2, "only {events} events were heard meanwhile");
    let other = soon("the storm", storm).await.unwrap();
    for reader in readers {
        reader.abort();
    }
    proxy.heal();
    next.release().await.unwrap();
    busy.release().await.unwrap();
    becomes_empty(&other, "/outages/busy").await;
}

/// Returns the number of paths that a session watches. In the answer to `wchc`, a line for each path follows the session's line
/// and begins with a tab.
fn watched_by(answer: &str, session: &str) -> usize {
    let mut lines = answer.lines().skip_while(|line| line.trim() != session);
    lines.next().map_or(0, |_| lines.take_while(|line| line.starts_with('\t')).count())
}

// ----------------------------------------------------------------------------------------------------- Links that flap

/// A time during which a guard surely held.
#[derive(Clone, Copy, Debug)]
struct Interval {
    mode: Mode,
    granted: Instant,
    last_yes: Instant,
    token: i64,
}

impl Interval {
    fn excludes(self, other: Interval) -> bool {
        self.mode == Mode::Write || other.mode == Mode::Write
    }

    fn overlaps(self, other: Interval) -> bool {
        self.granted <= other.last_yes && other.granted <= self.last_yes
    }
}

/// Holds the guard for a moment, while a thread calls `is_held` on it. The interval is `None` if the guard was lost before the
/// first call.
async fn hold<G: Guard>(guard: G, mode: Mode, token: i64) -> (G, Option<Interval>) {
    let (granted, stop) = (Instant::now(), Arc::new(AtomicBool::new(false)));
    let witness = watch_closely(guard, Arc::clone(&stop));
    tokio::time::sleep(Duration::from_millis(20)).await;
    stop.store(true, Ordering::Relaxed);
    let (guard, last_yes) = tokio::task::spawn_blocking(|| witness.join().unwrap()).await.unwrap();
    (guard, last_yes.map(|last_yes| Interval { mode, granted, last_yes, token }))
}

/// Acquires the lock again and again until `end`, and at least until the first grant. Returns the intervals in which the guards
/// held.
async fn contend(lock: RwLock, mut dice: Seeded, end: Instant) -> Vec<Interval> {
    let mut held = Vec::new();
    while Instant::now() < end || held.is_empty() {
        // The loop goes on after any error, such as an ended session or a timeout.
        if dice.below(3) == 0 {
            if let Ok(guard) = lock.read().timeout(SHORT).await {
                let token = guard.fencing_token();
                let (guard, interval) = hold(guard, Mode::Read, token).await;
                held.extend(interval);
                drop(guard);
            }
        } else if let Ok(guard) = lock.write().timeout(SHORT).await {
            let token = guard.fencing_token();
            let (guard, interval) = hold(guard, Mode::Write, token).await;
            held.extend(interval);
            if dice.below(2) == 0 {
                guard.release().await.ok();
            }
        }
    }
    held
}

/// Cuts the link in a random way for 50 to 200 ms and heals it for as long, again and again. Now and then a cut lasts longer than
/// a session.
fn flap(proxy: &Proxy, mut dice: Seeded, end: Instant) {
    while Instant::now() < end {
        match dice.below(8) {
            0 => proxy.black_hole(),
            1 => proxy.black_hole_to_server(),
            2 => proxy.black_hole_to_client(),
            3 => proxy.rst(),
            4 => proxy.disconnect(),
            _ => proxy.cut(),
        }
        let down = if dice.below(12) == 0 { SHORT } else { Duration::from_millis(50 + dice.below(150)) };
        thread::sleep(down.min(end.saturating_duration_since(Instant::now())));
        proxy.heal();
        thread::sleep(Duration::from_millis(50 + dice.below(150)));
    }
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_holds_beside_another_on_flapping_links() {
    const CLIENTS: u64 = 4;
    let seconds = std::env::var("FLAP_SECONDS").ok().and_then(|seconds| seconds.parse().ok()).unwrap_or(6);
    let seed = std::env::var("FLAP_SEED").ok().map(|seed| seed.parse().expect("a number"));
    let seed = seed.unwrap_or_else(|| RandomState::new().hash_one(seconds) >> 32);
    println!(
        "FLAP_SEED={seed} FLAP_SECONDS={seconds} cargo test -p zk-rwlock-tests --test session outages::nobody_holds_beside_another_on_flapping"
    );
    let server = shared_server();
    let operator = connect(&server.address()).await;
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        let proxy = Arc::new(Proxy::start(server.address()));
        let zk = connect_with(&proxy.address(), SHORT).await;
        clients.push((proxy, lock_at(&zk, "/outages/flapping")));
    }

    let end = Instant::now() + Duration::from_secs(seconds);
    let mut contenders = Vec::new();
    let mut flapping = Vec::new();
    for (number, (proxy, lock)) in (0..).zip(&clients) {
        let (proxy, seed) = (Arc::clone(proxy), seed * 1_000 + number * 2);
        // The link of the first client stays sound, so that this client can be granted a lock that the others lose.
        if number > 0 {
            flapping.push(thread::spawn(move || flap(&proxy, Seeded(seed), end)));
        }
        contenders.push(tokio::spawn(contend(lock.clone(), Seeded(seed + 1), end)));
    }
    let mut held: Vec<Interval> = Vec::new();
    for contender in contenders {
        held.extend(within(Duration::from_secs(seconds) + 2 * SOON, "the contender's end", contender).await.unwrap());
    }
    for thread in flapping {
        thread.join().unwrap();
    }

    held.sort_by_key(|interval| interval.granted);
    for (position, one) in held.iter().enumerate() {
        for other in &held[position + 1..] {
            if one.excludes(*other) {
                safe!(!one.overlaps(*other), "seed {seed}: {one:?} and {other:?}");
                safe!(one.token < other.token, "seed {seed}: {one:?} and {other:?}");
            }
        }
    }
    println!("seed {seed}: {} grants in {seconds} s of flapping links, none beside another", held.len());

    // All links are sound now, so every client is granted and no node is left.
    for (_, lock) in &clients {
        soon("a grant after the flapping", lock.write()).await.unwrap().release().await.unwrap();
    }
    becomes_empty(&operator, "/outages/flapping").await;
}

// ---------------------------------------------------------------------------------------- Servers that come back empty

/// A server that has lost its data assigns sequence numbers from 0 again. Its next number may happen to follow the number of the
/// handle's last grant, but such consecutive numbers do not prove that no contender came in between.
#[support::judged]
async fn an_uncontended_lock_lists_its_queue_after_data_loss() {
    const PATH: &str = "/outages/anew";
    let server = Server::start();
    let (zk, sequence) =
        (connect_with(&server.address(), SHORT).await, |path: String| NodeName::parse(&path[PATH.len() + 1..]));
    let lock = lock_at(&zk, PATH);
    for _ in 0..2 {
        lock.write().await.unwrap().release().await.unwrap();
    }
    let last = lock.write().await.unwrap();
    let (token, number) = (last.fencing_token(), sequence(last.node_path()).unwrap().sequence());
    last.release().await.unwrap();

    server.start_over();
    let other = connect(&server.address()).await;
    let theirs = lock_at(&other, PATH);
    for _ in 0..2 {
        theirs.write().await.unwrap().release().await.unwrap();
    }
    let held = theirs.write().await.unwrap();
    assert_eq!(sequence(held.node_path()).unwrap().sequence(), number);
    let mut waiter = writer(&lock);
    line_becomes(&theirs, "W+ W-").await;
    assert!(tokio::time::timeout(Duration::from_millis(300), &mut waiter).await.is_err(), "granted beside the holder");
    held.release().await.unwrap();
    let guard = granted(waiter).await;
    // By the sequence numbers alone, this contender directly follows the last grant of its own handle.
    assert_eq!(sequence(guard.node_path()).unwrap().sequence(), number + 1);
    assert!((1..=number + 2).contains(&(guard.fencing_token() - token)), "{} after {token}", guard.fencing_token());
}

/// A server that has lost its data grants the lock again, before the first holder has noticed the loss. On its first contact with the
/// server, the holder learns that its session is over. The fencing tokens start
/// again, too, so the new holder's token is lower. Only a check of the token at the guarded resource keeps the two holders apart.
#[support::judged]
async fn an_emptied_server_grants_beside_a_suspect_holder() {
    const PATH: &str = "/outages/empty";
    let server = Server::start();
    let proxy = Proxy::start(server.address());
    // The session timeout is longer than a server takes to start, and short enough for a test.
    let zk = connect_with(&proxy.address(), Duration::from_secs(15)).await;
    let lock = lock_at(&zk, PATH);
    for _ in 0..8 {
        lock.write().await.unwrap().release().await.unwrap();
    }
    let old = lock.write().await.unwrap();
    proxy.cut();
    server.start_over();
    let other = connect(&server.address()).await;
    let new = soon("the grant", lock_at(&other, PATH).write()).await.unwrap();
    assert!(matches!(old.state(), HoldState::Suspect { .. }) && old.is_held() && new.is_held());
    assert!(new.fencing_token() < old.fencing_token(), "the new holder has a higher token than the old one");
    proxy.heal();
    assert_eq!(soon("the loss", old.lost()).await, Loss::SessionOver(SessionEnd::Expired));
    assert!(new.is_held());

    let highest = old.fencing_token() + 1_000_000;
    server.go_on_after(highest);
    let third = connect(&server.address()).await;
    let fenced = soon("the grant", lock_at(&third, "/outages/raised").write()).await.unwrap();
    assert!(fenced.fencing_token() > highest, "the token is not higher than {highest}");
}
