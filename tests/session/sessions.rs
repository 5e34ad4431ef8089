//! Sessions of one process with a real ensemble: how many are opened, which requests renew their lease, and how they end.

use std::future::IntoFuture;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use futures::FutureExt;
use support::frames::Op;
use support::port::Port;
use support::rules::{Frames, Rule};
use support::scene::*;
use support::server::{Server, shared_server};
use support::wire::Proxy;
use zk_rwlock::coordinator::{Coordinator, Failure, Operation};
use zk_rwlock::error::SessionEnd;
use zk_rwlock::{ConnectionState, Error, Granting, ReadGuard, RwLock, Semaphore, ZooKeeper};

/// Breaks every connection of the proxy and waits until all clients have reconnected.
async fn all_reconnect(proxy: &Proxy) {
    let before = proxy.connections();
    proxy.rst();
    eventually("the sessions are back", || async { proxy.connections() >= 2 * before }).await;
}

/// The client crate by itself could not reconnect with more than 128 KiB of watched paths on a session.
#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_below_a_long_chroot_survive_a_reconnect() {
    const WAITERS: usize = 60;
    let proxy = Proxy::start(shared_server().address());
    let chroot = format!("/{}", "long".repeat(500));
    let zk = connect(&format!("{}{chroot}", proxy.address())).await;
    let lock = lock_at(&zk, "/lock");
    let first = soon("free", lock.write()).await.expect("free");
    let mut waiters = Vec::new();
    for waiting in 1..=WAITERS {
        waiters.push(writer(&lock));
        eventually("the waiter is queued", || async { children(&zk, "/lock").await.len() == waiting + 1 }).await;
    }
    assert!(WAITERS * chroot.len() * 2 > 128 * 1024, "too few waiters to prove anything");
    assert_eq!(proxy.connections(), 1, "the session has more nodes than its end can list");
    all_reconnect(&proxy).await;
    assert!(first.is_held());
    first.release().await.expect("held");
    for waiter in waiters {
        granted(waiter).await.release().await.expect("held");
    }
    becomes_empty(&zk, "/lock").await;
}

/// The first contender in the queue of a semaphore watches three paths: its own node, the directory of the permits, and the node
/// with their number.
#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn heads_below_a_long_chroot_survive_a_reconnect() {
    const QUEUES: usize = 30;
    let server = tokio::task::spawn_blocking(Server::start).await.expect("the server starts");
    let proxy = Proxy::start(server.address());
    let chroot = format!("/{}", "long".repeat(500));
    let holder = connect(&format!("{}{chroot}", server.address())).await;
    let zk = connect(&format!("{}{chroot}", proxy.address())).await;
    let (mut held, mut heads) = (Vec::new(), Vec::new());
    for number in 0..QUEUES {
        let [first, second] =
            [&holder, &zk].map(|zk| Semaphore::new(zk, format!("/limit-{number}"), 1).expect("valid"));
        held.push(first.acquire().await.expect("free"));
        heads.push(tokio::spawn(second.acquire().into_future()));
    }
    eventually("each watches three", || async { server.watches() >= 3 * QUEUES as u64 }).await;
    all_reconnect(&proxy).await;
    for (held, head) in held.into_iter().zip(heads) {
        held.release().await.expect("held");
        granted(head).await.release().await.expect("held");
    }
}

#[support::judged]
async fn an_invalid_connect_string_is_refused_unsent() {
    let proxy = Proxy::start(shared_server().address());
    let good = proxy.address();
    for servers in ["::::", "", "zk1:2181 zk2:2181", "[::1:2181", &format!("{good},:::"), &format!("{good}/a\u{1f512}")]
    {
        let error = soon("the refusal", ZooKeeper::connect(servers)).await.unwrap_err();
        assert!(
            matches!(&error, Error::InvalidInput(problem) if problem.contains("servers")),
            "{servers:?}: {error:?}"
        );
    }
    assert_eq!(proxy.connections(), 0);
    drop(connect(&format!("tcp://{good}/apps")).await);
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_refused_by_the_client_renews_no_lease() {
    let zk = connect(&shared_server().address()).await;
    let session = session(&zk).await;
    let nothing = Operation::Check { path: "/".to_owned(), version: None };
    session.transact(&[nothing]).await.expect("the root is there");
    let remaining = || session.lease().remaining().expect("the lease was renewed just now");
    let before = remaining();
    eventually("time passes", || async { remaining() < before }).await;
    let before = remaining();
    let refused = session.transact(&[Operation::Delete { path: "no/path".to_owned(), version: None }]).await;
    assert!(
        matches!(&refused, Err(Failure::Operation { failure, .. }) if matches!(**failure, Failure::Refused(_))),
        "{refused:?}"
    );
    assert!(remaining() <= before);
}

/// Closing a handle must also end a session that the client is still opening. Otherwise that session would live on after the
/// close.
#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn closing_a_handle_ends_a_session_being_opened() {
    let server = Server::start();
    let proxy = Proxy::start(server.address());
    let zk = ZooKeeper::builder().session_timeout(Duration::from_secs(2)).connect_timeout(10 * SOON);
    let zk = zk.connect(&proxy.address()).await.expect("the server can be reached");
    let lock = lock_at(&zk, "/locks/closing");
    let first = session(&zk).await;
    proxy.cut();
    assert_eq!(soon("the session ends", first.store().until_over()).await, SessionEnd::Expired);
    proxy.heal();
    server.pause();
    let connections = proxy.connections();
    let next = writer(&lock);
    eventually("a session is being opened", || async { proxy.connections() > connections }).await;
    soon("closed", zk.close()).await;
    // The call fails immediately, and does not wait for the connect timeout.
    let error = refused(next).await;
    assert!(matches!(error, Error::Closed(SessionEnd::Closed)), "{error:?}");
    server.resume();
    // The server may still open the requested session, but then the client ends that session.
    eventually("no session is left", || async { server.counter("zk_global_sessions") == 0 }).await;
}

/// The waiting call must end although the future of `close` is dropped after its first poll.
#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_for_the_connection_ends_when_it_is_closed() {
    let proxy = Proxy::start(shared_server().address());
    let zk = connect_with(&proxy.address(), 3 * SOON).await;
    let lock = lock_at(&zk, "/sessions/closed-while-cut-off");
    proxy.cut();
    eventually("the client is cut off", || async { !zk.state().is_connected() }).await;
    let waits = writer(&lock);
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!waits.is_finished());
    assert!(zk.close().now_or_never().is_none(), "the close ended without the server's reply");
    let error = refused(waits).await;
    assert!(matches!(error, Error::Closed(SessionEnd::Closed)), "{error:?}");
}

/// At its end, a program must not wait for its sessions one after the other, because the servers may be unreachable.
#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn unconfirmed_sessions_are_given_up_together() {
    const TIMEOUT: Duration = Duration::from_secs(4);
    let server = Server::start();
    let proxy = Proxy::start(server.address());
    let zk = connect_with(&format!("{}/{}", proxy.address(), "long".repeat(1500)), TIMEOUT).await;
    let lock = lock_at(&zk, "/lock");
    let mut waiters = Vec::new();
    while server.counter("zk_global_sessions") < 5 {
        waiters.push(writer(&lock));
        eventually("the waiter is queued", || async { children(&zk, "/lock").await.len() == waiters.len() }).await;
    }
    proxy.answer_only_pings();
    within(3 * TIMEOUT, "closed", zk.close()).await;
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_further_session_is_given_up() {
    let server = Server::start();
    let zk = connect(&format!("{}/{}", server.address(), "long".repeat(1500))).await;
    let lock = lock_at(&zk, "/lock");
    let held = soon("free", lock.write()).await.expect("free");
    let mut waiters = Vec::new();
    for waiting in 1..=50 {
        waiters.push(writer(&lock));
        eventually("the waiter is queued", || async { children(&zk, "/lock").await.len() == waiting + 1 }).await;
    }
    let sessions = || server.counter("zk_global_sessions");
    assert!(sessions() > 1);
    for waiter in waiters {
        waiter.abort();
    }
    held.release().await.expect("held");
    becomes_empty(&zk, "/lock").await;
    eventually("one session is left", || async {
        soon("free", lock.write()).await.expect("free").release().await.expect("held");
        sessions() == 1
    })
    .await;
}

/// Waits until the client's state names the reason of its outage. Returns the start of the outage and the reason.
async fn reason(zk: &ZooKeeper) -> (Instant, String) {
    let reason_now = || match zk.state() {
        ConnectionState::Connecting { since, why: Some(why) } => Some((since, why)),
        _ => None,
    };
    eventually("the reason is known", || async { reason_now().is_some() }).await;
    reason_now().expect("the server is away")
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_probe_reports_an_outage_its_start_and_its_end() {
    let server = Server::start();
    let zk = connect_with(&server.address(), Duration::from_secs(4)).await;
    assert_eq!(zk.state(), ConnectionState::Connected);

    let stopped = Instant::now();
    server.kill();
    eventually("the connection is lost", || async { !zk.state().is_connected() }).await;
    let seen = Instant::now();
    let (since, why) = reason(&zk).await;
    assert!(stopped <= since && since <= seen, "{:?} after the stop", since - stopped);
    assert!(why.contains(&server.address()) && why.contains("refused"), "{why}");
    assert!(zk.state().to_string().contains("refused"), "{}", zk.state());

    server.start_again();
    eventually("the client has reconnected", || async { zk.state().is_connected() }).await;
    soon("closed", zk.close()).await;
    assert_eq!(zk.state(), ConnectionState::Closed);
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_probe_alone_replaces_an_expired_session() {
    let (proxy, zk) = without_a_session().await;
    let (since, why) = reason(&zk).await;
    assert!(
        since.elapsed() >= Duration::from_secs(1),
        "the outage counts from the end of the session, not from the break: {why}"
    );
    let later = reason(&zk).await.0;
    assert_eq!(later, since);
    proxy.heal();
    eventually("there is a fresh session", || async { zk.state().is_connected() }).await;
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_probe_reports_a_silent_server() {
    let proxy = Proxy::start(shared_server().address());
    let zk = connect_with(&proxy.address(), Duration::from_secs(4)).await;
    proxy.black_hole();
    let (_, why) = reason(&zk).await;
    assert!(why.contains(&proxy.address()) && why.contains("takes connections"), "{why}");
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_probe_of_a_connected_client_sends_nothing() {
    let proxy = Proxy::start(shared_server().address());
    let zk = connect(&proxy.address()).await;
    let (connections, sent) = (proxy.connections(), proxy.requests().len());
    for _ in 0..1_000 {
        assert!(zk.state().is_connected());
    }
    assert_eq!((proxy.connections(), proxy.requests().len()), (connections, sent));
}

/// Returns a proxy that is still cut, and its client, whose session has expired meanwhile.
async fn without_a_session() -> (Proxy, ZooKeeper) {
    let proxy = Proxy::start(shared_server().address());
    let zk = connect_with(&proxy.address(), Duration::from_secs(2)).await;
    let session = session(&zk).await;
    proxy.cut();
    soon("the end of the session", session.store().until_over()).await;
    (proxy, zk)
}

/// Polls an acquisition once and returns it with the result, like a `select!` branch that a program does not poll again.
fn parked(acquisition: impl IntoFuture<IntoFuture = Acquiring>) -> (Acquiring, Poll<<Acquiring as Future>::Output>) {
    let mut parked = acquisition.into_future();
    let polled = Pin::new(&mut parked).poll(&mut Context::from_waker(Waker::noop()));
    (parked, polled)
}

type Acquiring = Granting<ReadGuard>;

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn an_unpolled_acquisition_blocks_no_other() {
    let (proxy, zk) = without_a_session().await;
    proxy.heal();
    let lock = lock_at(&zk, "/sessions/parked");
    let (parked, polled) = parked(lock.read());
    assert!(polled.is_pending());
    let guard = soon("another acquisition", lock.read()).await.expect("free");
    drop(parked);
    guard.release().await.expect("held");
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn acquisitions_that_give_up_share_one_new_session() {
    const TRIES: usize = 30;
    let (proxy, zk) = without_a_session().await;
    proxy.black_hole();
    proxy.reset();
    let lock = lock_at(&zk, "/sessions/given-up");
    for _ in 0..TRIES {
        let error = lock.read().timeout(Duration::from_millis(5)).await.expect_err("no server is there");
        assert!(error.is_timeout(), "{error}");
    }
    proxy.heal();
    soon("the server is back", lock.read()).await.expect("free").release().await.expect("held");
    assert!(proxy.connections() < TRIES as u64 / 2, "{} connections", proxy.connections());
}

/// If closing waited for the acquisition, an acquisition that is never polled again would keep the session and all its nodes
/// alive.
#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn closing_ends_an_unpolled_acquisition() {
    let server = shared_server();
    let (zk, other) = (connect(&server.address()).await, connect(&server.address()).await);
    let lock = lock_at(&zk, "/sessions/closed");
    let guard = lock_at(&zk, "/sessions/held").write().await.expect("free");
    lock.read().await.expect("free").release().await.expect("held");
    // The reply to the create is still on its way, or has come while a busy machine polled. In both cases the acquisition is not
    // polled again.
    let parked = parked(lock.read());
    soon("the close", zk.close()).await;
    becomes_empty(&other, "/sessions/closed").await;
    becomes_empty(&other, "/sessions/held").await;
    drop((parked, guard));
}

/// A listing never gets its reply, but the server still answers pings, so it would keep the session as long as the process lives.
/// The client must end the session itself, although that request is unanswered.
#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_ends_despite_an_unanswered_request() {
    const TIMEOUT: Duration = Duration::from_secs(2);
    let server = shared_server();
    let other = connect(&server.address()).await;
    for way in ["close", "drop"] {
        let proxy = Proxy::start(server.address());
        let zk = connect_with(&proxy.address(), TIMEOUT).await;
        let path = format!("/sessions/unanswered-{way}");
        let guard = lock_at(&zk, &path).write().await.expect("free");
        let lost = proxy.apply(Rule::on(Frames::replies(Op::GetChildren2)).lose());
        let listing = soon("the listing", async { lock_at(&zk, &path).queue().timeout(TIMEOUT / 10).await }).await;
        assert!(listing.expect_err("no answer comes").is_timeout() && lost.has_happened());
        assert_eq!(proxy.connections(), 1, "{way}: the client reconnected");
        if way == "close" {
            soon("the close", zk.close()).await;
            becomes_empty(&other, &path).await;
        }
        drop((guard, zk));
        eventually("the server is asked to end it", || async { proxy.count(Op::CloseSession) == 1 }).await;
        becomes_empty(&other, &path).await;
    }
}

/// Another task obtains and drops sessions meanwhile. Its drops must not end a session that no acquisition has used yet.
#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_further_session_is_kept_until_it_was_used() {
    const SESSIONS: usize = 8;
    let proxy = Proxy::start(shared_server().address());
    let zk = connect(&proxy.address()).await;
    // The paths of a session's nodes have at most half a megabyte. Each acquisition needs more than half of that, and so a session of
    // its own.
    let room_for_one = 300 * 1024;
    let looking = tokio::spawn({
        let zk = zk.clone();
        async move {
            loop {
                drop(session(&zk).await);
                tokio::task::yield_now().await;
            }
        }
    });
    let mut slots = Vec::new();
    for _ in 0..SESSIONS {
        slots.push(soon("a session", zk.session_slot(room_for_one)).await.expect("the server is there"));
    }
    looking.abort();
    assert_eq!(proxy.connections(), SESSIONS as u64);
}

/// At the end of a program, the library waits for a short time, so that the server learns of the released locks.
#[support::judged]
async fn dropping_the_last_handle_waits_only_briefly() {
    const DIRECTORY: &str = "/locks/good-bye";
    let server = tokio::task::spawn_blocking(Server::start).await.expect("the server starts");
    let (zk, other) = (connect(&server.address()).await, connect(&server.address()).await);
    let lock = lock_at(&zk, DIRECTORY);
    let guard = soon("the grant", lock.write()).await.expect("free");
    server.pause();
    let begun = Instant::now();
    tokio::task::spawn_blocking(move || drop((guard, lock, zk))).await.expect("no panic");
    // The drop waits for a quarter of a second, while the session would last a minute.
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    server.resume();
    becomes_empty(&other, DIRECTORY).await;
}

#[support::judged]
async fn a_longer_granted_timeout_prolongs_no_lease() {
    let server = Server::start_with(&["minSessionTimeout=20000"], &[]);
    let zk = connect_with(&server.address(), Duration::from_secs(4)).await;
    assert_eq!(session(&zk).await.timeout(), Duration::from_secs(4));
    let guard = lock_at(&zk, "/sessions/raised").write().await.expect("free");
    assert!(guard.session_left() <= Duration::from_secs(4), "{:?}", guard.session_left());
}

#[support::judged]
async fn a_session_is_kept_for_ten_seconds_by_default() {
    let zk = ZooKeeper::connect(&shared_server().address()).await.expect("the server can be reached");
    assert_eq!(session(&zk).await.timeout(), Duration::from_secs(10));
}

#[support::judged]
async fn all_locks_and_handles_of_a_process_share_a_thread() {
    let server = shared_server();
    let (one, other) = (connect(&server.address()).await, connect(&server.address()).await);
    let locks =
        (0..8).map(|number| lock_at(if number % 2 == 0 { &one } else { &other }, &format!("/locks/thread/{number}")));
    let mut guards = Vec::new();
    for lock in locks {
        guards.push(soon("the grant", lock.write()).await.expect("free"));
    }
    let threads = || {
        let tasks = std::fs::read_dir("/proc/self/task").expect("Linux");
        let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
        names.filter(|name| name.trim() == "zk-rwlock").count()
    };
    // The thread of an earlier test may still be closing its sessions.
    eventually("there is one thread", || async { threads() == 1 }).await;
    assert!(guards.iter().all(|guard| guard.is_held()));
}

/// The client refuses the options before it connects: no server listens at this address.
#[support::judged]
async fn an_impossible_lease_is_refused_with_the_reason() {
    let second = Duration::from_secs(1);
    let builder = || ZooKeeper::builder().session_timeout(4 * second);
    for (builder, problem) in [
        (builder().tick_time(Duration::ZERO), "a tick time of 0ns"),
        (builder().tick_time(Duration::from_nanos(1)), "a tick time of 1ns: servers count ticks in milliseconds"),
        (builder().tick_time(6 * second), "a tick time of 6s is too long for a session timeout of 4s"),
        (builder().stop_margin(Duration::ZERO), "a stop margin of 0ns"),
        (builder().stop_margin(second / 26), "it must be at least a hundredth of the session timeout of 4s"),
        (builder().stop_margin(4 * second), "a stop margin of 4s leaves no time to renew a session timeout of 4s"),
        (builder().session_timeout(second / 1000), "a session timeout of 1ms: it must be from 250ms to"),
    ] {
        let error = builder.connect("127.0.0.1:1").await.expect_err("the lease is impossible");
        assert!(matches!(&error, Error::InvalidInput { .. }) && error.to_string().contains(problem), "{error}");
    }
}

/// Makes nodes with long paths by each kind of hold: locks, permits and kept nodes. When a session ends, one reply lists all its
/// nodes, and must not be too large. So the client spreads the nodes over several sessions.
#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn no_session_gets_more_nodes_than_its_end_can_list() {
    const READS: usize = 600;
    const EACH: usize = 10;
    let server = shared_server();
    let zk = connect(&server.address()).await;
    let long = format!("/sessions/{}", "p".repeat(900));
    let (mut guards, mut permits, mut kept) = (Vec::new(), Vec::new(), Vec::new());
    let lock = lock_at(&zk, &format!("{long}/lock"));
    let limit = Semaphore::new(&zk, format!("{long}/limit"), 1000).expect("valid");
    let reads = (0..READS).map(async |_| soon("shared", lock.read()).await.expect("shared"));
    guards.extend(futures::future::join_all(reads).await);
    for one in 0..EACH {
        permits.push(soon("free", limit.acquire()).await.expect("free"));
        let keeps = RwLock::builder(&zk, format!("{long}/kept-{one}")).keep(CALM).build().expect("valid");
        drop(soon("free", keeps.read()).await.expect("free"));
        kept.push(keeps);
    }
    let dump = server.four_letter("dump");
    let sessions: Vec<usize> = dump
        .split("0x")
        .map(|session| session.lines().map(str::trim).filter(|line| line.starts_with(&long)).map(str::len).sum())
        .collect();
    assert!(sessions.iter().sum::<usize>() > (READS + 2 * EACH) * long.len(), "{sessions:?}");
    assert!(sessions.iter().all(|bytes| *bytes <= 512 * 1024), "{sessions:?}");
}

/// ZooKeeper 3.10 sheds connections while it has too many: it closes them as soon as it has accepted them.
#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn an_overloaded_server_is_passed_over() {
    let (proxy, port) = (Proxy::start(shared_server().address()), Port::reserve());
    let (listener, shed) = (port.listen(), Arc::new(AtomicUsize::new(0)));
    let sheds = Arc::clone(&shed);
    std::thread::spawn(move || {
        listener.incoming().for_each(|_shed| {
            sheds.fetch_add(1, Ordering::Relaxed);
        })
    });
    let zk = connect(&format!("{},{}", port.address(), proxy.address())).await;
    let lock = lock_at(&zk, "/sessions/shed");
    let guard = soon("free", lock.write()).await.expect("free");
    for _ in 0..3 {
        proxy.disconnect();
        eventually("an answer of the other server", || async { session(&zk).await.sync("/").await.is_ok() }).await;
    }
    assert!(guard.is_held());
    proxy.cut();
    let (before, began) = (shed.load(Ordering::Relaxed), Instant::now());
    eventually("the client retries again and again", || async { shed.load(Ordering::Relaxed) > before + 4 }).await;
    assert!(began.elapsed() > Duration::from_millis(500), "{:?}", began.elapsed());
    proxy.heal();
    soon("the release", guard.release()).await.expect("held");
}

#[support::judged]
async fn a_client_may_try_for_ever_to_reach_a_server() {
    let zk = ZooKeeper::builder().connect_timeout(Duration::MAX).connect(shared_server().address()).await;
    drop(soon("free", lock_at(&zk.expect("the server is up"), "/tries/for-ever").write()).await.expect("free"));
}

#[support::judged]
async fn a_client_reports_the_granted_session_timeout() {
    // The tests' servers grant a session timeout of a minute at most.
    for (asked, granted) in [(4, 4), (3_600, 60)] {
        let zk = connect_with(&shared_server().address(), Duration::from_secs(asked)).await;
        assert_eq!(zk.session_timeout(), Some(Duration::from_secs(granted)));
        zk.close().await;
        assert_eq!(zk.session_timeout(), None);
    }
    let refused = ZooKeeper::builder().session_timeout(Duration::from_secs(27 * 3_600)).connect("127.0.0.1:1").await;
    assert!(matches!(&refused, Err(Error::InvalidInput(why)) if why.contains("to an hour")), "{refused:?}");
}
