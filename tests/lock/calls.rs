//! Calls that wait for no contender, on servers that do not answer. Each call ends in time, names the reason, and leaves no node
//! behind. Fault numbers are those of `tests/FAULTS.md`.

use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, Instant};

use support::scene::*;
use support::server::shared_server;
use support::several::several;
use support::wire::{Close, Frames, Op, Proxy, Rule, UNIMPLEMENTED};
use zk_rwlock::coordinator::SessionEnd;
use zk_rwlock::{Error, Memory, Mode, MultiLock, Queue, RwLock, Semaphore, Shared, Survey, ZooKeeper};

/// The session timeout of clients whose server does not answer.
const SHORT: Duration = Duration::from_secs(2);

/// A timeout far below the session timeout [`SHORT`], and far longer than the server takes to answer a call.
const PROMPT: Duration = Duration::from_millis(300);

const SESSION_EXPIRED: i32 = -112;

/// One handle of each kind (lock, several locks, shared value) on one session.
struct Handles {
    zk: ZooKeeper,
    lock: RwLock,
    both: MultiLock,
    value: Shared<u32>,
}

type Outcome = Pin<Box<dyn Future<Output = Result<(), Error>> + Send>>;

impl Handles {
    async fn behind(proxy: &Proxy, directory: &str) -> Handles {
        let zk = connect_with(&proxy.address(), SHORT).await;
        let below = |name: &str| format!("{directory}/{name}");
        let lock = lock_at(&zk, &below("one"));
        let both = several(&zk, [(below("one"), Mode::Write), (below("two"), Mode::Read)]).unwrap();
        let value = Shared::builder(&zk, below("value")).initial(|| 1).build().unwrap();
        Handles { zk, lock, both, value }
    }

    /// Returns every call of the library that waits for no contender. Each call has this timeout, if there is one.
    fn calls(&self, timeout: Option<Duration>) -> Vec<(&'static str, Outcome)> {
        macro_rules! outcome {
            ($call:expr) => {{
                let call = $call;
                let call = if let Some(timeout) = timeout { call.timeout(timeout) } else { call };
                Box::pin(async move { call.await.map(drop) }) as Outcome
            }};
        }
        vec![
            ("try_read", outcome!(self.lock.try_read())),
            ("try_write", outcome!(self.lock.try_write())),
            ("queue", outcome!(self.lock.queue())),
            ("evict", outcome!(self.lock.evict(1))),
            ("try_lock", outcome!(self.both.try_lock())),
            ("Shared::try_read", outcome!(self.value.try_read())),
            ("Shared::try_write", outcome!(self.value.try_write())),
            ("Survey::below", outcome!(Survey::below(&self.zk, "/calls"))),
        ]
    }
}

/// Runs all calls concurrently. Returns the name, the result and the duration of each.
async fn ended(calls: Vec<(&'static str, Outcome)>) -> Vec<(&'static str, Result<(), Error>, Duration)> {
    let begun = Instant::now();
    let tasks: Vec<_> = calls
        .into_iter()
        .map(|(name, call)| (name, tokio::spawn(async move { (call.await, begun.elapsed()) })))
        .collect();
    let mut ends = Vec::new();
    for (name, task) in tasks {
        let (end, took) = soon(name, task).await.unwrap();
        ends.push((name, end, took));
    }
    ends
}

#[support::judged]
async fn a_server_that_answers_only_pings_blocks_no_call() {
    let proxy = Proxy::start(shared_server().address());
    let handles = Handles::behind(&proxy, "/calls/pings").await;
    let silence = proxy.answer_only_pings();
    for (name, end, took) in ended(handles.calls(None)).await {
        let error = end.expect_err(name);
        let cause = error.cause();
        assert!(
            matches!(cause, Error::Unreachable(why) if why.starts_with("no answer within 2s")),
            "{name}: {error:?}"
        );
        assert!(took < 2 * SHORT, "{name} took {took:?}");
    }
    assert!(silence.has_happened() && proxy.connections() == 1, "the session did not live on");
}

/// The server answers the call's first request, and then nothing but pings.
#[support::judged]
async fn a_server_that_answers_only_pings_blocks_no_permit_try() {
    let limit_of = |zk: &ZooKeeper| Semaphore::new(zk, "/calls/limit", 1).unwrap();
    let operator = connect(&shared_server().address()).await;
    limit_of(&operator).acquire().await.unwrap().release().await.unwrap();
    let proxy = Proxy::start(shared_server().address());
    let zk = connect_with(&proxy.address(), SHORT).await;
    let silence = Rule::on(Frames::from_clients().but(&[Op::Handshake, Op::Ping])).nth(2).and_all_later().lose();
    let silence = proxy.apply(silence);
    let tried = soon("the end", limit_of(&zk).try_acquire()).await;
    assert!(matches!(&tried, Err(Error::Unreachable(why)) if why.starts_with("no answer within 2s")), "{tried:?}");
    assert_eq!(proxy.count(Op::Create2), 0);
    assert!(silence.has_happened() && proxy.connections() == 1, "the session did not live on");
}

#[support::judged]
async fn a_call_with_a_timeout_ends_in_time() {
    let proxy = Proxy::start(shared_server().address());
    let handles = Handles::behind(&proxy, "/calls/timeouts").await;
    proxy.answer_only_pings();
    for (name, end, took) in ended(handles.calls(Some(PROMPT))).await {
        let error = end.expect_err(name);
        assert!(error.is_timeout(), "{name}: {error:?}");
        assert_eq!(error.to_string(), "not done within 300ms: nobody is known to be in the way", "{name}");
        assert!(took >= PROMPT && took < SHORT, "{name} took {took:?}");
    }
}

#[support::judged]
async fn a_call_with_a_timeout_ends_in_time_while_disconnected() {
    let proxy = Proxy::start(shared_server().address());
    let handles = Handles::behind(&proxy, "/calls/cut").await;
    let session = session(&handles.zk).await;
    proxy.cut();
    let connected =
        || async { tokio::time::timeout(Duration::from_millis(1), session.store().until_connected()).await };
    eventually("the loss is noticed", || async { connected().await.is_err() }).await;
    for (name, end, took) in ended(handles.calls(Some(PROMPT))).await {
        assert!(end.expect_err(name).is_timeout(), "{name}");
        assert!(took < SHORT, "{name} took {took:?}");
    }
}

#[support::judged]
fn a_call_without_a_runtime_ends_in_time() {
    let proxy = Proxy::start(shared_server().address());
    let builder = ZooKeeper::builder().session_timeout(SHORT);
    let zk = pollster::block_on(builder.connect(&proxy.address())).unwrap();
    let lock = RwLock::new(&zk, "/calls/no-runtime").unwrap();
    drop(lock.try_write().blocking().unwrap());
    assert_eq!(lock.queue().timeout(SOON).blocking().unwrap().path, "/calls/no-runtime");
    proxy.answer_only_pings();
    assert!(lock.queue().timeout(PROMPT).blocking().unwrap_err().is_timeout());
    assert!(matches!(lock.try_write().blocking(), Err(Error::Unreachable(_))));
}

#[support::judged]
async fn a_timeout_of_zero_is_refused_and_nothing_is_sent() {
    let proxy = Proxy::start(shared_server().address());
    let handles = Handles::behind(&proxy, "/calls/zero").await;
    proxy.reset();
    for (name, end, _) in ended(handles.calls(Some(Duration::ZERO))).await {
        assert!(matches!(end, Err(Error::InvalidInput(_))), "{name}: {end:?}");
    }
    assert_eq!(proxy.requests(), []);
}

#[support::judged]
async fn a_connection_with_a_chroot_is_given_up_in_time() {
    let proxy = Proxy::start(shared_server().address());
    proxy.answer_only_pings();
    let below = format!("{}/calls", proxy.address());
    let connecting = soon("the end", ZooKeeper::builder().session_timeout(SHORT).connect(&below)).await;
    assert!(matches!(connecting, Err(Error::Unreachable(_))), "{connecting:?}");
}

/// The connection breaks while the client looks for its chroot or makes it (fault 114).
#[support::judged]
async fn a_connection_with_a_chroot_outlives_a_break() {
    let faults = [Frames::requests(Op::Exists), Frames::requests(Op::Create2), Frames::replies(Op::Create2)];
    for (round, frames) in faults.into_iter().enumerate() {
        let proxy = Proxy::start(shared_server().address());
        let fault = proxy.apply(Rule::on(frames).close(0, Close::Rst));
        let below = format!("{}/calls-below-{round}/path", proxy.address());
        let zk = soon("the connection", ZooKeeper::builder().session_timeout(CALM).connect(&below)).await.unwrap();
        assert!(fault.has_happened());
        drop(soon("a free lock", lock_at(&zk, "/lock").write()).await.unwrap());
    }
}

/// The server makes the node, but the client never gets the reply to the create.
#[support::judged]
async fn a_try_that_is_given_up_leaves_nothing_behind() {
    for timeout in [None, Some(PROMPT)] {
        let proxy = Proxy::start(shared_server().address());
        let handles = Handles::behind(&proxy, "/calls/given-up").await;
        let operator = connect(&shared_server().address()).await;
        handles.lock.write().await.unwrap().release().await.unwrap();
        proxy.apply(Rule::on(Frames::replies(Op::Create2)).and_all_later().lose());
        let call = handles.lock.try_write();
        let call = if let Some(timeout) = timeout { call.timeout(timeout) } else { call };
        let error = soon("the end", call).await.unwrap_err();
        assert_eq!(error.is_timeout(), timeout.is_some(), "{error:?}");
        assert_eq!(children(&operator, "/calls/given-up/one").await.len(), 1, "the node was not made");
        proxy.forget_rules();
        proxy.cut();
        proxy.heal();
        becomes_empty(&operator, "/calls/given-up/one").await;
    }
}

/// The lock is granted, but the following read of the shared value gets no reply.
#[support::judged]
async fn a_try_whose_value_does_not_come_gives_the_lock_back() {
    let proxy = Proxy::start(shared_server().address());
    let handles = Handles::behind(&proxy, "/calls/value").await;
    let operator = connect(&shared_server().address()).await;
    handles.value.read().await.unwrap().release().await.unwrap();
    proxy.apply(Rule::on(Frames::requests(Op::GetData).about("/value/value")).and_all_later().lose());
    let error = soon("the end", handles.value.try_write()).await.unwrap_err();
    assert!(matches!(error, Error::Unreachable(_)), "{error:?}");
    proxy.forget_rules();
    becomes_empty(&operator, "/calls/value/value/lock").await;
}

#[support::judged]
async fn an_unanswered_eviction_is_an_error() {
    let proxy = Proxy::start(shared_server().address());
    let handles = Handles::behind(&proxy, "/calls/eviction").await;
    let operator = connect(&shared_server().address()).await;
    let held = lock_at(&operator, handles.lock.path()).write().await.unwrap();
    proxy.apply(Rule::on(Frames::requests(Op::Delete)).and_all_later().lose());
    let error = soon("the end", handles.lock.evict(held.fencing_token())).await.unwrap_err();
    assert!(matches!(error, Error::Unreachable(_)), "{error:?}");
    assert!(held.is_held());
}

#[support::judged]
async fn an_eviction_with_a_lost_reply_names_the_removed() {
    let proxy = Proxy::start(shared_server().address());
    let handles = Handles::behind(&proxy, "/calls/lost-eviction").await;
    let operator = connect(&shared_server().address()).await;
    let held = lock_at(&operator, handles.lock.path()).write().label("hangs").await.unwrap();
    let lost = proxy.drop_reply(Op::Delete, 1);
    let removed = soon("the end", handles.lock.evict(held.fencing_token())).await.unwrap();
    assert!(lost.has_happened());
    assert_eq!(removed.and_then(|member| member.label).as_deref(), Some("hangs"));
}

/// The server answers each listing with "session expired". The ended session has no node of this call, so the library may repeat
/// the call on a fresh session.
#[support::judged]
async fn a_call_on_an_ended_session_is_answered_on_a_fresh_one() {
    let proxy = Proxy::start(shared_server().address());
    let handles = Handles::behind(&proxy, "/calls/ended").await;
    proxy.apply(Rule::on(Frames::requests(Op::GetChildren2)).refuse(SESSION_EXPIRED));
    for (name, call) in handles.calls(None) {
        let end = soon(name, call).await;
        assert!(end.is_ok(), "{name}: {end:?}");
    }
}

/// Each failed request gives the call an error of its own. No error says that the caller has lost its own place in the queue.
#[support::judged]
async fn each_failure_to_read_a_queue_has_its_own_error() {
    const NO_NODE: i32 = -101;
    const NO_AUTH: i32 = -102;
    let proxy = Proxy::start(shared_server().address());
    let handles = Handles::behind(&proxy, "/calls/failures").await;
    let operator = connect(&shared_server().address()).await;
    assert!(handles.lock.queue().await.unwrap().members.is_empty(), "a missing directory has members");
    let _held = lock_at(&operator, handles.lock.path()).write().label("held").await.unwrap();
    // The transactions are those that check a new connection.
    let but = &[Op::Handshake, Op::Ping, Op::GetData, Op::Multi];
    let listing = || Rule::on(Frames::from_clients().but(but)).and_all_later();
    let reading = || Rule::on(Frames::requests(Op::GetData)).and_all_later();
    let read_queue = async |rule: Rule| {
        let fault = proxy.apply(rule);
        let answer = soon("an answer", handles.lock.queue()).await;
        assert!(fault.has_happened());
        proxy.forget_rules();
        answer.map(|queue| queue.members).inspect_err(|error| {
            assert!(!error.is_lost() && !error.to_string().contains("the place in the queue"), "{error}");
        })
    };
    let denied = read_queue(listing().refuse(NO_AUTH)).await;
    assert!(matches!(denied, Err(Error::PermissionDenied { operation: "read the queue of", .. })), "{denied:?}");
    let refused = read_queue(listing().refuse(UNIMPLEMENTED)).await;
    assert!(matches!(refused, Err(Error::Refused { .. } | Error::Unreachable(_))), "{refused:?}");
    assert!(read_queue(listing().refuse(NO_NODE)).await.unwrap().is_empty());
    let expired = read_queue(listing().refuse(SESSION_EXPIRED)).await;
    assert!(matches!(&expired, Err(Error::Unreachable(why)) if why == "the session expired"), "{expired:?}");
    for rule in [listing(), reading()] {
        let unanswered = read_queue(rule.lose()).await;
        assert!(matches!(unanswered, Err(Error::Unreachable(_))), "{unanswered:?}");
        proxy.rst();
    }
    for rule in [listing(), reading()] {
        let broken = read_queue(rule.close(0, Close::Rst)).await;
        assert!(matches!(broken, Err(Error::Unreachable(_))), "{broken:?}");
    }
    for has_left_or_is_closed in [NO_NODE, NO_AUTH] {
        let unreadable = read_queue(reading().refuse(has_left_or_is_closed)).await.unwrap();
        assert!(matches!(&unreadable[..], [member] if member.label.is_none()), "{unreadable:?}");
    }
    assert_eq!(handles.lock.queue().await.unwrap().members.len(), 1);
    handles.zk.close().await;
    assert!(matches!(handles.lock.queue().await, Err(Error::Closed(SessionEnd::Closed))));
}

#[support::judged]
async fn contenders_of_any_local_client_are_of_this_process() {
    let address = shared_server().address();
    let (one, other) = (connect(&address).await, connect(&address).await);
    let (lock, elsewhere) = (lock_at(&one, "/calls/own"), lock_at(&other, "/calls/own"));
    let held = elsewhere.read().await.unwrap();
    // A bare client of the client crate plays another process. The library did not open its session.
    let stranger = zookeeper_client::Client::connect(&address).await.unwrap();
    let options = zookeeper_client::CreateMode::EphemeralSequential.with_acls(zookeeper_client::Acls::anyone_all());
    stranger.create("/calls/own/web-9~k3v9x2ma-READ-", b"", &options).await.unwrap();
    let own = |queue: Queue| queue.members.iter().map(|member| member.is_own).collect::<Vec<_>>();
    for lock in [&lock, &elsewhere] {
        assert_eq!(own(lock.queue().await.unwrap()), [true, false]);
    }
    let error = lock.try_write().await.unwrap_err().to_string();
    assert!(
        error.matches(" (this process)").count() == 1 && error.contains(" (this process) and READ web-9"),
        "{error}"
    );
    // After this release, only the stranger's node is in the queue.
    held.release().await.unwrap();
    drop((elsewhere, other));
    assert_eq!(own(lock.queue().await.unwrap()), [false]);
}

#[support::judged]
async fn a_call_is_a_future_that_can_be_joined() {
    let lock = RwLock::new(&Memory::new(), "/lock").unwrap();
    let (guard, queue) = tokio::join!(lock.try_write(), lock.queue());
    assert!(guard.unwrap().is_held());
    assert_eq!(queue.unwrap().members.len(), 1);
}

#[support::judged]
async fn a_write_unanswered_at_the_close_is_in_doubt() {
    let (server, operator) = (shared_server(), connect(&shared_server().address()).await);
    let written = async |path: String| session(&operator).await.data(&path).await.map(drop);
    for call in ["transaction", "commit", "update", "done"] {
        let (proxy, path) = (Proxy::start(server.address()), format!("/calls-unanswered-{call}"));
        let zk = connect_with(&proxy.address(), SHORT).await;
        let (lock, value) = (lock_at(&zk, &path), Shared::builder(&zk, &path).initial(|| 1).build().unwrap());
        let (node, work): (String, Outcome) = match call {
            "transaction" => {
                let (guard, node) = (lock.write().await.unwrap(), format!("{path}.written"));
                let to = node.clone();
                (node, Box::pin(async move { guard.transaction().create(to, "").commit().await.map(drop) }))
            }
            "commit" => {
                let mut guard = value.write().await.unwrap();
                (format!("{path}/value"), Box::pin(async move { guard.commit().await.map(drop) }))
            }
            "update" => {
                let update = value.update(|value| *value += 1);
                (format!("{path}/value"), Box::pin(async move { update.await.map(drop) }))
            }
            _ => {
                let guard = lock.write().once_in(SHORT).await.unwrap().due().expect("due");
                (format!("{path}.done"), Box::pin(async move { guard.done().await }))
            }
        };
        let lost = proxy.apply(Rule::on(Frames::replies(Op::Multi).about(&node)).lose());
        let work = tokio::spawn(work);
        soon("the write", lost.happens()).await;
        soon("the close", zk.close()).await;
        let error = soon(call, work).await.unwrap().expect_err("no answer came");
        assert!(matches!(error, Error::OutcomeUnknown { .. }), "{call}: {error}");
        assert_eq!(written(node).await, Ok(()), "{call}");
    }
}
