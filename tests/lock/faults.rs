//! Faults of the network during an acquisition, a wait and a release, and faults of the session. Each fault hits single frames
//! between a session and a real server. Afterwards each contender has at most one node, and no contender holds together with a
//! writer. Fault numbers are those of `tests/FAULTS.md`.

use std::future::IntoFuture;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use support::scene::*;
use support::server::{Server, shared_server};
use support::wire::{Close, Frames, Hello, Op, Proxy, Rule};
use zk_rwlock::coordinator::{Session, SessionEnd};
use zk_rwlock::{Error, HoldState, Loss, RwLock, ZooKeeper, ZooKeeperBuilder};

/// The session timeout in tests that wait for a session to expire, or that show that heartbeats keep a session alive for longer.
const SHORT: Duration = Duration::from_secs(3);

/// The session timeout in the test of a server that answers late.
const SLOW: Duration = Duration::from_secs(4);

/// The tick that each client assumes of the servers. With the default tick, the lease would be too short for the pauses of a busy
/// machine.
const TICK: Duration = Duration::from_millis(500);

/// A session behind a proxy, its lock, and an operator's handle (`here`) of the same lock on a direct connection. The lock's
/// directory exists.
struct Stage {
    proxy: Proxy,
    zk: ZooKeeper,
    session: Arc<dyn Session>,
    lock: RwLock,
    operator: ZooKeeper,
    here: RwLock,
}

impl Stage {
    async fn set(directory: &str, session_timeout: Duration) -> Stage {
        let builder = ZooKeeper::builder().session_timeout(session_timeout);
        Stage::set_with(directory, builder.tick_time(TICK).connect_timeout(SOON)).await
    }

    async fn set_with(directory: &str, builder: ZooKeeperBuilder) -> Stage {
        let proxy = Proxy::start(shared_server().address());
        let operator = connect(&shared_server().address()).await;
        let here = lock_at(&operator, directory);
        here.read().await.unwrap().release().await.unwrap();
        let zk = builder.connect(&proxy.address()).await.expect("the server can be reached");
        let (lock, session) = (lock_at(&zk, directory), session(&zk).await);
        proxy.reset();
        Stage { proxy, zk, session, lock, operator, here }
    }

    async fn children(&self) -> Vec<String> {
        children(&self.operator, self.here.path()).await
    }

    async fn becomes_empty(&self) {
        becomes_empty(&self.operator, self.here.path()).await;
    }

    /// Waits until the node at `path` is the only one in the lock's directory.
    async fn wait_until_only(&self, path: &str) {
        eventually("one node is left", || async {
            let names = self.children().await;
            assert!(names.iter().any(|name| path.ends_with(name)), "{path} is gone: {names:?}");
            names.len() == 1
        })
        .await;
    }

    async fn wait_until_cut_off(&self) {
        let connected =
            || async { tokio::time::timeout(Duration::from_millis(1), self.session.store().until_connected()).await };
        eventually("the loss is noticed", || async { connected().await.is_err() }).await;
    }
}

// ------------------------------------------------------------------------------------------------ Creates and listings

#[support::judged]
async fn a_create_with_a_held_reply_makes_one_node() {
    let stage = Stage::set("/faults/silence", SHORT).await;
    let answer = stage.proxy.hold_reply(Op::Create2);
    // With a session timeout of 3 s, the client closes a connection that is silent for 350 ms. So the client reconnects while the
    // proxy holds the reply.
    let guard = soon("the grant", stage.lock.write()).await.unwrap();
    assert!(answer.has_arrived() && stage.proxy.connections() == 1);
    assert_eq!(stage.proxy.count(Op::Create2), 1);
    stage.wait_until_only(&guard.node_path()).await;
    guard.release().await.unwrap();
    assert_eq!(stage.children().await, [""; 0]);
}

/// Each round lets more bytes of the create request through before the cut. The rounds end when the whole request gets through
/// and the first create takes effect.
#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_create_cut_at_any_byte_makes_one_node() {
    const SESSIONS: usize = 4;
    let all: Vec<_> = (0..SESSIONS)
        .map(|first| {
            tokio::spawn(async move {
                let stage = Stage::set(&format!("/faults/cut-{first}"), CALM).await;
                for how in [Close::Fin, Close::Rst] {
                    for bytes in (first..).step_by(SESSIONS) {
                        stage.proxy.reset();
                        let cut = stage.proxy.apply(Rule::on(Frames::requests(Op::Create2)).close(bytes, how));
                        let guard = soon("the grant", stage.lock.write()).await.unwrap();
                        assert!(cut.has_happened() && guard.is_held());
                        stage.wait_until_only(&guard.node_path()).await;
                        let creates = stage.proxy.count(Op::Create2);
                        guard.release().await.unwrap();
                        assert_eq!(stage.children().await, [""; 0], "{how:?} after {bytes} bytes");
                        assert!(creates == 1 || creates == 2, "{creates} creates after {how:?} at {bytes} bytes");
                        if creates == 1 || bytes > 400 {
                            // A reset may discard even a whole frame before the server reads it, so the create may be lost at any
                            // length.
                            assert!(bytes > 100 && (how == Close::Rst || bytes < 400), "{bytes} bytes");
                            break;
                        }
                    }
                }
            })
        })
        .collect();
    for one in all {
        one.await.unwrap();
    }
}

/// In CURATOR-644 and CURATOR-696, a client that repeated creates and deletes made millions of nodes.
#[support::judged]
async fn each_lost_create_costs_at_most_one_more() {
    let stage = Stage::set("/faults/storm", CALM).await;
    for nth in 1..=5 {
        stage.proxy.drop_request(Op::Create2, nth);
    }
    stage.proxy.drop_reply(Op::Create2, 1);
    let guard = soon("the grant", stage.lock.write()).await.unwrap();
    // Five creates never arrived. The reply to the sixth was lost, and its node was found.
    assert_eq!(stage.proxy.count(Op::Create2), 6);
    stage.wait_until_only(&guard.node_path()).await;
    guard.release().await.unwrap();
}

/// Depending on the moment, the release and the next create are sent as one transaction or as two requests.
#[support::judged]
async fn a_cut_between_drop_and_acquisition_leaves_one_node() {
    let stage = Stage::set("/faults/again", CALM).await;
    let mut guard = soon("a free lock", stage.lock.write()).await.unwrap();
    for round in 0..40 {
        stage.proxy.reset();
        let (of, how) = (round % 2, if round / 2 % 2 == 0 { Close::Fin } else { Close::Rst });
        let frames = if of == 0 { Frames::requests(Op::Multi) } else { Frames::replies(Op::Multi) };
        // The cut comes before the first byte of the request, in its middle, or after its last byte.
        let cut = match round / 4 % 3 {
            0 => stage.proxy.apply(Rule::on(frames).close(0, how)),
            1 => stage.proxy.apply(Rule::on(frames).close(30, how)),
            _ => stage.proxy.apply(Rule::on(frames).close_after(how)),
        };
        let token = guard.fencing_token();
        drop(guard);
        guard = soon("the lock", stage.lock.write()).await.unwrap();
        assert!(cut.has_happened() && guard.is_held() && guard.fencing_token() > token);
        stage.wait_until_only(&guard.node_path()).await;
        stage.proxy.forget_rules();
    }
    guard.release().await.unwrap();
    assert_eq!(stage.children().await, [""; 0]);
}

#[support::judged]
async fn an_acquisition_dropped_while_cut_off_leaves_nothing() {
    let stage = Stage::set("/faults/dropped", CALM).await;
    // The first acquisition sends its create before the cut. The second starts after the cut.
    stage.proxy.black_hole_to_client();
    let sent = writer(&stage.lock);
    eventually("the acquisition's create", || async { stage.proxy.count(Op::Create2) == 1 }).await;
    eventually("the acquisition's node", || async { stage.children().await.len() == 1 }).await;
    stage.proxy.cut();
    stage.wait_until_cut_off().await;
    let began = writer(&stage.lock);
    tokio::task::yield_now().await;
    sent.abort();
    began.abort();
    assert!(sent.await.is_err() && began.await.is_err());
    assert_eq!(stage.children().await.len(), 1);

    stage.proxy.heal();
    stage.becomes_empty().await;
    soon("the session", stage.session.store().until_connected()).await.unwrap();
    assert_eq!(stage.proxy.count(Op::Create2), 1);
    drop(soon("the next", stage.lock.write()).await.unwrap());
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_timeouts_in_an_outage_send_nothing_later() {
    const WAVES: usize = 50;
    const CROWD: usize = 20;
    const TIMEOUT: Duration = Duration::from_millis(50);
    let stage = Stage::set("/faults/outage", CALM).await;
    stage.proxy.cut();
    stage.wait_until_cut_off().await;
    let mut slowest = Duration::ZERO;
    for _ in 0..WAVES {
        let crowd: Vec<_> = (0..CROWD)
            .map(|_| {
                let acquisition = stage.lock.write().timeout(TIMEOUT);
                tokio::spawn(async move {
                    let began = Instant::now();
                    (acquisition.await.map(drop), began.elapsed())
                })
            })
            .collect();
        for one in crowd {
            let (answer, took) = soon("the timeout", one).await.unwrap();
            assert!(answer.unwrap_err().is_timeout());
            slowest = slowest.max(took);
        }
    }
    // None of the acquisitions waits for the connection, so each ends far below this limit.
    assert!(slowest < SOON / 4, "{slowest:?}");
    stage.proxy.reset();
    stage.proxy.heal();
    let guard = soon("the grant after the heal", stage.lock.write()).await.unwrap();
    assert_eq!(
        stage.proxy.count(Op::Create2),
        1,
        "creates were sent for some of {} acquisitions that had given up",
        WAVES * CROWD
    );
    stage.wait_until_only(&guard.node_path()).await;
    guard.release().await.unwrap();
    assert_eq!(stage.children().await, [""; 0]);
}

#[support::judged]
async fn a_waiter_whose_listing_is_lost_keeps_its_place() {
    let stage = Stage::set("/faults/place", CALM).await;
    let holder = stage.here.write().await.unwrap();
    let listing = stage.proxy.hold_reply(Op::GetChildren2);
    let waiter = writer(&stage.lock);
    soon("the listing", listing.arrives()).await;
    line_becomes(&stage.here, "W+ W-").await;
    let before = stage.children().await;
    let last = writer(&stage.here);
    line_becomes(&stage.here, "W+ W- W-").await;

    stage.proxy.rst();
    listing.release();
    eventually("the waiter lists again", || async { stage.proxy.count(Op::GetChildren2) == 2 }).await;
    holder.release().await.unwrap();
    let guard = granted(waiter).await;
    assert!(before.iter().any(|name| guard.node_path().ends_with(name)));
    assert!(stage.proxy.count(Op::Create2) == 1 && !last.is_finished());
    guard.release().await.unwrap();
    granted(last).await.release().await.unwrap();
}

/// In CURATOR-604, the new session found the old session's node by its name, took that node for its own, and then deleted it.
#[support::judged]
async fn a_new_session_does_not_adopt_the_node_of_the_old_one() {
    let stage = Stage::set("/faults/adopted", SHORT).await;
    // The server creates the node, but the client receives the error that its session has expired. So the client opens another
    // session. There, the reply to the create is lost, and the client must look for its node.
    let expired = stage.proxy.apply(Rule::on(Frames::replies(Op::Create2)).claim_error(-112));
    let lost = stage.proxy.apply(Rule::on(Frames::replies(Op::Create2)).nth(2).close(0, Close::Rst));
    let guard = soon("the grant", stage.lock.write()).await.unwrap();
    assert!(expired.has_happened() && lost.has_happened() && stage.proxy.count(Op::Create2) == 2);
    let now = session(&stage.zk).await;
    assert_ne!(now.id(), stage.session.id());
    let (_, stat) = session(&stage.operator).await.data(&guard.node_path()).await.unwrap();
    assert_eq!(stat.ephemeral_owner, now.id());
    // Either the new session has removed the old session's node, or the server has removed that node with the old session.
    assert_eq!(stage.children().await.len(), 1);
    guard.release().await.unwrap();
}

// ------------------------------------------------------------------------------------------------------------- Waiters

/// The predecessor is gone before the waiter sets its watch. In this situation the Helix client slept for ever, and Go's client
/// sent requests without a pause.
#[support::judged]
async fn a_predecessor_gone_before_the_watch_is_noticed() {
    for released in [true, false] {
        let stage = Stage::set(&format!("/faults/between-{released}"), CALM).await;
        let holder = stage.here.write().await.unwrap();
        let watch = stage.proxy.hold(Frames::requests(Op::GetData).about(&holder.node_path()));
        let waiter = writer(&stage.lock);
        soon("the watch", watch.arrives()).await;
        if released {
            holder.release().await.unwrap();
        } else {
            session(&stage.operator).await.delete(&holder.node_path()).await.unwrap();
            drop(holder);
        }
        assert!(!waiter.is_finished());
        watch.release();
        let guard = granted(waiter).await;
        assert_eq!((stage.proxy.count(Op::Create2), stage.proxy.count(Op::GetChildren2)), (1, 2));
        guard.release().await.unwrap();
    }
}

#[support::judged]
async fn a_waiter_whose_queue_was_recreated_is_evicted() {
    let stage = Stage::set("/faults/anew", CALM).await;
    let holder = stage.here.write().await.unwrap();
    let waiter = writer(&stage.lock);
    line_becomes(&stage.here, "W+ W-").await;
    eventually("the waiter's watches", || async { stage.proxy.count(Op::GetData) >= 2 }).await;

    stage.proxy.cut();
    let operator = session(&stage.operator).await;
    for name in stage.children().await {
        operator.delete(&format!("{}/{name}", stage.here.path())).await.unwrap();
    }
    operator.delete(stage.here.path()).await.unwrap();
    soon("the loss", holder.lost()).await;
    // The new contenders get the same sequence numbers as the old ones, in the same order.
    let anew = stage.here.write().await.unwrap();
    assert!(anew.node_path().ends_with("-WRITE-0000000000"), "{anew:?}");
    stage.proxy.heal();
    let error = refused(waiter).await;
    assert!(matches!(error, Error::Evicted(Loss::Removed)), "{error:?}");
    assert!(anew.is_held());
    stage.wait_until_only(&anew.node_path()).await;
    anew.release().await.unwrap();
}

#[support::judged]
async fn refused_credentials_end_all_waiters_and_guards() {
    let stage = Stage::set("/faults/auth", SHORT).await;
    let guard = stage.lock.write().await.unwrap();
    let mut waiters = Vec::new();
    for _ in 0..5 {
        waiters.push(writer(&stage.lock));
    }
    line_becomes(&stage.here, "W+ W- W- W- W- W-").await;
    let fault = stage.proxy.apply(Rule::on(Frames::replies(Op::GetChildren2)).claim_error(-115));
    let listing = stage.session.children(stage.here.path()).await;
    assert!(fault.has_happened() && listing.is_err());
    for waiter in waiters {
        let error = refused(waiter).await;
        let typed = matches!(error, Error::Closed(SessionEnd::AuthFailed));
        assert!(typed, "{error:?}");
    }
    assert_eq!(soon("the loss", guard.lost()).await, Loss::SessionOver(SessionEnd::AuthFailed));
    // The server does not know that the client has ended the session. So a contender on a fresh session is granted only after the
    // old session's timeout.
    soon("a fresh session", stage.lock.write()).await.unwrap().release().await.unwrap();
    stage.becomes_empty().await;
}

#[support::judged]
async fn waiters_and_handles_dropped_together_leave_nothing() {
    let stage = Stage::set("/faults/abandoned", CALM).await;
    let holder = stage.here.write().await.unwrap();
    let waiters: Vec<_> = (0..10).map(|_| tokio::spawn(stage.lock.read().into_future())).collect();
    line_becomes(&stage.here, "W+ R- R- R- R- R- R- R- R- R- R-").await;
    let Stage { zk, session, lock, operator, here, .. } = stage;
    drop((zk, session, lock));
    // The handles are dropped, but the waiters keep the client open, so they still wait.
    assert!(waiters.iter().all(|waiter| !waiter.is_finished()));
    for waiter in &waiters {
        waiter.abort();
    }
    // The library deletes the nodes long before the session timeout would.
    eventually("the waiters have left", || async { children(&operator, here.path()).await.len() == 1 }).await;
    holder.release().await.unwrap();
}

// ------------------------------------------------------------------------------------------------------------ Releases

#[support::judged]
async fn a_release_at_the_sessions_end_deletes_no_other_node() {
    let stage = Stage::set("/faults/instant", CALM).await;
    let guard = stage.lock.write().await.unwrap();
    let next = writer(&stage.here);
    line_becomes(&stage.here, "W+ W-").await;
    let request = stage.proxy.hold_request(Op::Multi);
    let release = tokio::spawn(guard.release());
    soon("the release", request.arrives()).await;
    // The proxy holds the handshake, so that the client cannot reconnect before the server has ended the session.
    let comes_back = stage.proxy.hold_request(Op::Handshake);
    shared_server().end_session(&stage.proxy.granted().unwrap());
    request.release();
    comes_back.release();
    let answer = soon("the answer", release).await.unwrap();
    assert!(matches!(answer, Err(Error::Lost(Loss::SessionOver(SessionEnd::Expired)))), "{answer:?}");
    let next = granted(next).await;
    assert!(next.is_held());
    stage.wait_until_only(&next.node_path()).await;
    next.release().await.unwrap();
    soon("a fresh session", stage.lock.write()).await.unwrap().release().await.unwrap();
}

#[support::judged]
async fn a_late_delete_spares_the_node_of_another() {
    let stage = Stage::set("/faults/late-delete", CALM).await;
    let late = RwLock::builder(&stage.zk, stage.here.path()).host("same").build().unwrap();
    let other = RwLock::builder(&stage.operator, stage.here.path()).host("same").build().unwrap();
    let operator = session(&stage.operator).await;
    for written in [true, false] {
        operator.delete(stage.here.path()).await.unwrap();
        let (release, request, path) = if written {
            let guard = late.write().await.unwrap();
            let (path, request) = (guard.node_path(), stage.proxy.hold_request(Op::Multi));
            (tokio::spawn(guard.release()), request, path)
        } else {
            let guard = late.read().await.unwrap();
            let (path, request) = (guard.node_path(), stage.proxy.hold_request(Op::Delete));
            (tokio::spawn(guard.release()), request, path)
        };
        soon("the delete", request.arrives()).await;
        operator.delete(&path).await.unwrap();
        operator.delete(stage.here.path()).await.unwrap();
        let anew = other.write().await.unwrap();
        // The new node has the same host and the same sequence number as the old node.
        assert!(path.ends_with("-0000000000") && anew.node_path().ends_with("-0000000000"), "{path} {anew:?}");
        request.release();
        let answer = soon("the release", release).await.unwrap();
        assert!(matches!(answer, Err(Error::Lost(Loss::Removed))), "{answer:?}");
        stage.wait_until_only(&anew.node_path()).await;
        assert!(anew.is_held());
        anew.release().await.unwrap();
    }
}

// --------------------------------------------------------------------------------------- Replaced and altered sessions

#[support::judged]
async fn a_reconnect_with_another_session_loses_the_lock() {
    // The session timeout is longer than the test waits for the loss, so that the loss cannot come from the lease.
    let stage = Stage::set("/faults/replaced", SHORT * 3).await;
    let guard = stage.lock.write().await.unwrap();
    let waiter = writer(&stage.lock);
    line_becomes(&stage.here, "W+ W-").await;
    let forgotten = |hello: &mut Hello| {
        hello.session = 0;
        hello.password = vec![0; 16];
    };
    let fault = stage.proxy.apply(Rule::on(Frames::requests(Op::Handshake)).falsify(forgotten));
    let before = stage.proxy.granted().unwrap();
    stage.proxy.disconnect();
    let why = within(SHORT, "the loss", guard.lost()).await;
    assert_eq!(why, Loss::SessionOver(SessionEnd::Replaced));
    assert!(fault.has_happened());
    assert_ne!(stage.proxy.granted().unwrap().session, before.session);
    let error = refused(waiter).await;
    assert!(matches!(error, Error::Evicted(Loss::SessionOver(SessionEnd::Replaced))), "{error:?}");
    assert!(matches!(guard.release().await, Err(Error::Lost(_))));
    soon("a fresh session", stage.lock.write()).await.unwrap().release().await.unwrap();
    stage.becomes_empty().await;
}

#[support::judged]
async fn a_shorter_granted_timeout_shortens_the_lease() {
    let proxy = Proxy::start(shared_server().address());
    let operator = connect(&shared_server().address()).await;
    let here = lock_at(&operator, "/faults/shorter");
    // The proxy shortens the timeout in the client's handshake. So the server grants no more than this timeout, and expires the
    // session after it.
    let fault = proxy
        .apply(Rule::on(Frames::requests(Op::Handshake)).falsify(|hello| hello.timeout = SHORT.as_millis() as i32));
    let zk = connect_with(&proxy.address(), CALM).await;
    assert!(fault.has_happened());
    let guard = lock_at(&zk, "/faults/shorter").write().await.unwrap();
    // A client that reconnects asks for the timeout granted before.
    let asked = proxy.apply(Rule::on(Frames::requests(Op::Handshake)).falsify(|hello| {
        assert_eq!(hello.timeout, SHORT.as_millis() as i32);
    }));
    proxy.disconnect();
    soon("the reconnect", asked.happens()).await;
    let next = here.write();
    let next = tokio::spawn(async move { next.await.map(|guard| (guard, Instant::now())) });
    line_becomes(&here, "W+ W-").await;
    proxy.black_hole();
    assert_eq!(soon("the loss", guard.lost()).await, Loss::LeaseRanOut);
    let lost_at = Instant::now();
    let (next, granted_at) = granted(next).await;
    assert!(lost_at < granted_at);
    proxy.heal();
    next.release().await.unwrap();
    drop(soon("a fresh session", lock_at(&zk, "/faults/shorter").write()).await.unwrap());
}

/// The lease of the session assumes the timeout that was granted first.
#[support::judged]
async fn a_session_ends_if_a_server_grants_it_less_on_a_reconnect() {
    let proxy = Proxy::start(shared_server().address());
    let zk = connect_with(&proxy.address(), CALM).await;
    let guard = lock_at(&zk, "/faults/less").write().await.unwrap();
    let less = proxy
        .apply(Rule::on(Frames::requests(Op::Handshake)).falsify(|hello| hello.timeout = SHORT.as_millis() as i32));
    proxy.disconnect();
    soon("the reconnect", less.happens()).await;
    assert_eq!(soon("the loss", guard.lost()).await, Loss::SessionOver(SessionEnd::Expired));
    drop(soon("a new session", lock_at(&zk, "/faults/less").write()).await.unwrap());
}

/// The client crate takes its limit of silence from the session timeout that it asks for, before it connects.
#[support::judged]
async fn a_client_asks_for_no_more_than_it_was_granted() {
    static ASKED: Mutex<Vec<i32>> = Mutex::new(Vec::new());
    let short = SHORT.as_millis() as i32;
    let limit = format!("maxSessionTimeout={short}");
    let server = tokio::task::spawn_blocking(move || Server::start_with(&[&limit], &[])).await.unwrap();
    let proxy = Proxy::start(server.address());
    let record = |hello: &mut Hello| ASKED.lock().unwrap().push(hello.timeout);
    proxy.apply(Rule::on(Frames::requests(Op::Handshake)).and_all_later().falsify(record));
    let zk = connect_with(&proxy.address(), CALM).await;
    assert_eq!(zk.session_timeout(), Some(SHORT));
    assert_eq!(*ASKED.lock().unwrap(), [CALM.as_millis() as i32, short]);
    zk.close().await;

    // A fraction of a millisecond costs no second handshake.
    ASKED.lock().unwrap().clear();
    let zk = connect_with(&proxy.address(), Duration::from_secs(1) / 3).await;
    assert_eq!(zk.session_timeout(), Some(Duration::from_millis(333)));
    assert_eq!(*ASKED.lock().unwrap(), [333]);
}

/// The proxy answers the pings itself, because the client closes a connection on which pings get no answer.
#[support::judged]
async fn a_holder_whose_pings_are_lost_lives_by_heartbeats() {
    let is_kept_alive = async |seconds| {
        let timeout = Duration::from_secs(seconds);
        let stage = Stage::set(&format!("/faults/pings-{seconds}"), timeout).await;
        let fault = stage.proxy.apply(Rule::on(Frames::requests(Op::Ping)).and_all_later().refuse(0));
        soon("a ping", fault.happens()).await;
        // On a busy machine, even heartbeats may come too late, so one loss does not fail the test.
        let mut lost = Vec::new();
        while lost.len() < 5 {
            let guard = soon("the grant", stage.lock.write()).await.unwrap();
            let held = Instant::now();
            while guard.is_held() {
                // The handshake also keeps the session alive, so the time is measured from the last handshake.
                let alone = stage.proxy.arrivals(Op::Handshake).into_iter().fold(held, Instant::max);
                if alone.elapsed() > timeout * 5 / 4 {
                    return;
                }
                tokio::time::sleep(timeout / 50).await;
            }
            lost.push(guard.state());
        }
        panic!("T = {timeout:?}: {lost:?}");
    };
    tokio::join!(is_kept_alive(2), is_kept_alive(3), is_kept_alive(4));
}

/// The next heartbeat is due before the client takes the connection for dead. The heartbeat's reply shows that the connection
/// lives, as the reply to the ping would.
#[support::judged]
async fn a_lost_ping_costs_a_long_session_nothing() {
    let timeout = SHORT * 3;
    let stage = Stage::set("/faults/ping", timeout).await;
    let guard = stage.lock.write().await.unwrap();
    let before = stage.proxy.connections();
    let fault = stage.proxy.apply(Rule::on(Frames::requests(Op::Ping)).lose());
    eventually("a lost ping", || async { fault.has_happened() }).await;
    tokio::time::sleep(timeout / 2).await;
    assert_eq!(stage.proxy.connections(), before);
    guard.release().await.unwrap();
}

#[support::judged]
async fn a_read_only_server_renews_no_lease() {
    let stage = Stage::set("/faults/read-only", SHORT).await;
    let guard = stage.lock.write().await.unwrap();
    let next = stage.here.write();
    let next = tokio::spawn(async move { next.await.map(|guard| (guard, Instant::now())) });
    line_becomes(&stage.here, "W+ W-").await;
    let read_only = Rule::on(Frames::replies(Op::Handshake)).and_all_later().falsify(|hello| hello.read_only = true);
    let fault = stage.proxy.apply(read_only);
    stage.proxy.disconnect();
    let why = soon("the loss", guard.lost()).await;
    let lost_at = Instant::now();
    assert!(fault.has_happened());
    assert_eq!(why, Loss::LeaseRanOut);
    let (next, granted_at) = granted(next).await;
    assert!(lost_at < granted_at);

    // A read-only server gives new clients no session either.
    let builder = ZooKeeper::builder().session_timeout(SHORT).connect_timeout(SHORT);
    let error = soon("the refusal", builder.connect(&stage.proxy.address())).await.unwrap_err();
    assert!(matches!(error, Error::Unreachable(_)), "{error:?}");
    stage.proxy.forget_rules();
    next.release().await.unwrap();
    soon("a server that writes", stage.lock.write()).await.unwrap().release().await.unwrap();
}

#[support::judged]
async fn a_slow_servers_reply_counts_from_its_request() {
    // Every reply comes 1.2 s late, and only two such replies, one after the other, renew the lease. With a longer tick, the
    // lease would be shorter than these delays.
    let builder = ZooKeeper::builder().session_timeout(SLOW).tick_time(TICK).connect_timeout(SOON);
    let stage = Stage::set_with("/faults/slow", builder).await;
    let late = SLOW.mul_f64(0.3);
    stage.proxy.apply(Rule::on(Frames::from_server()).and_all_later().delay(late));
    let guard = soon("the grant", stage.lock.write()).await.unwrap();
    // Only a disconnected guard reports when its lease ends, so the test cuts the connection.
    stage.proxy.cut();
    let cut_at = Instant::now();
    let state = loop {
        match guard.state() {
            HoldState::Held => tokio::task::yield_now().await,
            other => break other,
        }
    };
    let HoldState::Suspect { until } = state else { panic!("{state:?}") };
    // `newest` is the moment at which the last write that was answered before the cut reached the proxy. The lease counts from the latest request whose reply came at least half a tick before `newest`.
    let arrivals = |ops: &[Op]| ops.iter().flat_map(|op| stage.proxy.arrivals(*op)).collect::<Vec<_>>();
    let writes = arrivals(&[Op::Create2, Op::Multi]).into_iter().filter(|arrival| *arrival + late <= cut_at);
    let newest = writes.max().unwrap();
    let touches = arrivals(&[Op::Create2, Op::Multi, Op::GetData, Op::GetChildren2, Op::Exists]);
    let touches = touches.into_iter().filter(|arrival| *arrival + late + TICK / 2 <= newest);
    // The lease may also count from a handshake whose reply came before `newest`.
    let handshakes = arrivals(&[Op::Handshake]).into_iter().filter(|arrival| *arrival + late <= newest);
    let newest = touches.chain(handshakes).max().unwrap_or(newest);
    let end = newest + SLOW - SLOW / 6;
    assert!(until <= end, "{:?} too long", until - end);
    stage.proxy.heal();
    // The error of the release is ignored, because with such late replies the guard may be lost already.
    soon("the release", guard.release()).await.ok();
    stage.becomes_empty().await;

    // A client of such a slow server can keep a lock if there is no further fault. The test tries five times, because a busy
    // machine may delay the replies further.
    let mut lost = Vec::new();
    while lost.len() < 5 {
        let guard = soon("the grant", stage.lock.write()).await.unwrap();
        tokio::time::sleep(SLOW * 2).await;
        let (is_held, state) = (guard.is_held(), guard.state());
        soon("the release", guard.release()).await.ok();
        if is_held {
            return;
        }
        lost.push(state);
    }
    panic!("{lost:?}");
}

/// The waiter gets no event of its predecessor's deletion. In the second round, the proxy also shows a ghost: a node that the
/// ensemble has deleted (fault 108). The client knows no other server.
#[support::judged]
async fn a_waiter_behind_a_hidden_departure_does_not_wait_for_ever() {
    for is_ghost in [false, true] {
        let stage = Stage::set(&format!("/faults/unheard-{is_ghost}"), SHORT).await;
        let held = stage.here.write().await.unwrap();
        let name = held.node_path().rsplit('/').next().unwrap().to_owned();
        let began = Instant::now();
        let mut waiter = tokio::spawn(stage.lock.write().into_future());
        eventually("the waiter watches its predecessor", || async {
            let watched = shared_server().four_letter("wchp");
            stage.children().await.iter().all(|name| watched.contains(name.as_str()))
        })
        .await;
        let lost = stage.proxy.apply(Rule::on(Frames::events().about(&name)).lose().and_all_later());
        let lists = Frames::replies(Op::GetChildren2).about(stage.here.path()).with_error(0);
        let shown = is_ghost.then(|| stage.proxy.apply(Rule::on(lists).show(&name).and_all_later()));
        held.release().await.unwrap();
        soon("the lost notification", lost.happens()).await;
        let answer = soon("the first check", &mut waiter).await.unwrap();
        assert!(began.elapsed() >= SHORT, "{:?}", began.elapsed());
        match answer {
            Ok(guard) => assert!(guard.is_held() && shown.is_none()),
            Err(error) => {
                assert!(matches!(&error, Error::Diverged { node, .. } if node.ends_with(&name)), "{error:?}");
                assert!(shown.is_some_and(|shown| shown.has_happened()));
            }
        }
        stage.becomes_empty().await;
    }
}
