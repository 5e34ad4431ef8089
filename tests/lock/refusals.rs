//! Error codes, true and false, in reply to every kind of request. Whatever code a server answers, an acquisition has at most one
//! node, no contender holds together with a writer, and the call returns an error that names the cause.

use std::sync::Arc;
use std::time::{Duration, Instant};

use support::scene::*;
use support::server::shared_server;
use support::wire::{Close, Fault, Frames, Op, Proxy, Rule};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use zk_rwlock::coordinator::SessionEnd;
use zk_rwlock::{Error, Loss, RwLock, ZooKeeper};

/// The session timeout. It is short, so that a node left behind after a false reply is soon deleted.
const SHORT: Duration = Duration::from_secs(2);

/// The codes, in this order: SessionExpired, SessionMoved, RequestTimeout, ConnectionLoss, Throttled, NoAuth, QuotaExceeded,
/// EphemeralOnLocalSession, and an unknown code.
const CODES: [i32; 9] = [-112, -118, -122, -4, -127, -102, -125, -120, -999];

const NO_NODE: i32 = -101;

/// Whether the server carried out the request that it reported as failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Truth {
    Refused,
    /// The server carried the request out and still reported a failure.
    Done,
}

/// The result of the call whose request was answered with the error code. Unless the variant says otherwise, the call's node is
/// deleted soon afterwards, and the session lives on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The same result as without an error code.
    Well,
    Denied,
    Refused,
    /// The session has ended for the client. The server still has the session, and deletes the node when it expires the session.
    Expired,
    /// The call found its node deleted, which is true after [`Truth::Done`].
    Gone,
    /// Like `Denied`, but the node stays until the session ends.
    DeniedAndStays,
    /// Like `Refused`, but the node stays until the session ends.
    RefusedAndStays,
}

impl End {
    fn of<T>(answer: &Result<T, Error>) -> End {
        match answer {
            Ok(_) => End::Well,
            Err(Error::PermissionDenied { .. }) => End::Denied,
            Err(Error::Refused { .. }) => End::Refused,
            Err(Error::Lost(Loss::Removed) | Error::Evicted(Loss::Removed)) => End::Gone,
            Err(
                Error::Lost(Loss::SessionOver(SessionEnd::Expired))
                | Error::Evicted(Loss::SessionOver(SessionEnd::Expired)),
            ) => End::Expired,
            Err(other) => panic!("{other:?}"),
        }
    }

    /// Returns whether the node stays until the session ends, and the result that the caller gets.
    fn stays(self) -> (bool, End) {
        match self {
            End::DeniedAndStays => (true, End::Denied),
            End::RefusedAndStays => (true, End::Refused),
            end => (false, end),
        }
    }
}

/// The request that is answered with an error code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Request {
    Create,
    List,
    /// The read of the predecessor's node that sets a watch.
    Watch,
    /// The transaction that serves as a sync after a lost reply to a create.
    Sync,
    /// The transaction with which a writer releases.
    HandOff,
    /// The delete with which a reader releases.
    Delete,
}

/// A session behind a proxy that falsifies replies (`lock`), and a contender for the same lock with a direct connection (`here`).
struct Case {
    name: String,
    proxy: Proxy,
    zk: ZooKeeper,
    lock: RwLock,
    operator: ZooKeeper,
    here: RwLock,
}

impl Case {
    async fn set(request: Request, code: i32, truth: Truth) -> Case {
        let directory = format!("/refusals/{request:?}{code}-{truth:?}");
        let proxy = Proxy::start(shared_server().address());
        let (zk, operator) = (connect_with(&proxy.address(), SHORT).await, connect(&shared_server().address()).await);
        let (lock, here) = (lock_at(&zk, &directory), lock_at(&operator, &directory));
        here.read().await.unwrap().release().await.unwrap();
        Case { name: format!("{code} for {request:?}, {truth:?}"), proxy, zk, lock, operator, here }
    }

    fn lie(&self, requests: Frames, replies: Frames, code: i32, truth: Truth) -> Fault {
        self.proxy.apply(match truth {
            Truth::Refused => Rule::on(requests).refuse(code),
            Truth::Done => Rule::on(replies).claim_error(code),
        })
    }

    async fn children(&self) -> Vec<String> {
        children(&self.operator, self.here.path()).await
    }

    /// Acquires behind a holder, which releases after the client has got the error code. Returns the result of the acquisition.
    async fn acquire(self, request: Request, code: i32, truth: Truth, stays: bool) -> End {
        let holder = self.here.write().await.unwrap();
        let node = holder.node_path();
        let fault = match request {
            Request::Create => self.lie(Frames::requests(Op::Create2), Frames::replies(Op::Create2), code, truth),
            Request::List => {
                self.lie(Frames::requests(Op::GetChildren2), Frames::replies(Op::GetChildren2), code, truth)
            }
            Request::Watch => {
                let (asked, answered) = (Frames::requests(Op::GetData), Frames::replies(Op::GetData));
                self.lie(asked.about(&node), answered.about(&node), code, truth)
            }
            _ => {
                self.proxy.apply(Rule::on(Frames::replies(Op::Create2)).close(0, Close::Rst));
                // The first transaction on the next connection is its check.
                assert_eq!(truth, Truth::Refused);
                self.proxy.apply(Rule::on(Frames::requests(Op::Multi)).nth(2).refuse(code))
            }
        };
        let acquisition = self.lock.write();
        let waiter = tokio::spawn(async move { acquisition.await.map(|guard| (guard, Instant::now())) });
        soon(&self.name, fault.happens()).await;
        let asks_again = if request == Request::Watch { 2 } else { 1 };
        let waits = || {
            let asked = self.proxy.requests();
            asked.iter().filter(|(op, path)| *op == Op::GetData && *path == node).count() >= asks_again
        };
        eventually("the waiter has failed or waits", || async { waiter.is_finished() || waits() }).await;
        let released_at = Instant::now();
        holder.release().await.unwrap();

        let answer = soon(&self.name, waiter).await.expect("no panic");
        let end = End::of(&answer);
        if let Ok((guard, granted_at)) = answer {
            assert!(granted_at > released_at && guard.is_held(), "{}", self.name);
            eventually("one node is left", || async { self.children().await.len() == 1 }).await;
            assert!(guard.is_held() && self.children().await.iter().all(|name| guard.node_path().ends_with(name)));
            guard.release().await.unwrap();
        }
        self.settle(stays, None).await;
        end
    }

    /// Releases while another contender waits. Returns the result of the release.
    async fn release(self, request: Request, code: i32, truth: Truth, stays: bool) -> End {
        let (answer, next) = if request == Request::HandOff {
            let guard = self.lock.write().await.unwrap();
            let next = self.next("W+ W-").await;
            let part = format!("SetData {}", guard.node_path());
            let (asked, answered) = (Frames::requests(Op::Multi).about(&part), Frames::replies(Op::Multi).about(&part));
            let fault = self.lie(asked, answered, code, truth);
            let answer = soon(&self.name, guard.release()).await;
            assert!(fault.has_happened(), "{}", self.name);
            (answer, next)
        } else {
            let guard = self.lock.read().await.unwrap();
            let next = self.next("R+ W-").await;
            let fault = self.lie(Frames::requests(Op::Delete), Frames::replies(Op::Delete), code, truth);
            let answer = soon(&self.name, guard.release()).await;
            assert!(fault.has_happened(), "{}", self.name);
            (answer, next)
        };
        self.settle(stays, Some(next)).await;
        End::of(&answer)
    }

    async fn next(&self, line: &str) -> JoinHandle<()> {
        let next = writer(&self.here);
        line_becomes(&self.here, line).await;
        tokio::spawn(async move { granted(next).await.release().await.unwrap() })
    }

    /// Checks that the waiter `next` is granted and that the directory becomes empty. If `stays`, the node stays until the
    /// session is closed; otherwise the directory becomes empty while the session lives.
    async fn settle(self, stays: bool, next: Option<JoinHandle<()>>) {
        if stays {
            assert!(!self.children().await.is_empty(), "{}", self.name);
            self.zk.close().await;
        }
        if let Some(next) = next {
            soon(&self.name, next).await.unwrap();
        }
        becomes_empty(&self.operator, self.here.path()).await;
        self.zk.close().await;
    }
}

/// Tries every code of [`CODES`] in reply to this request, and compares the results with [`ENDS`].
async fn each_code(request: Request, truth: Truth) {
    let (.., expected) = ENDS.into_iter().find(|row| (row.0, row.1) == (request, truth)).expect("a row of the table");
    // Limits the concurrent cases to as many as a small machine can serve.
    let turnstile = Arc::new(Semaphore::new(6));
    let cases: Vec<_> = (CODES.into_iter().zip(expected))
        .map(|(code, expected)| {
            let (turnstile, (stays, expected)) = (Arc::clone(&turnstile), expected.stays());
            let case = tokio::spawn(async move {
                let _turn = turnstile.acquire().await.unwrap();
                let case = Case::set(request, code, truth).await;
                match request {
                    Request::HandOff | Request::Delete => case.release(request, code, truth, stays).await,
                    _ => case.acquire(request, code, truth, stays).await,
                }
            });
            (code, case, expected)
        })
        .collect();
    for (code, case, expected) in cases {
        assert_eq!(case.await.unwrap(), expected, "{code} for {request:?}, {truth:?}");
    }
}

use End::*;

/// For each request, the expected results in the order of [`CODES`].
#[rustfmt::skip]
const ENDS: [(Request, Truth, [End; 9]); 10] = [
    // -112 expired, -118 moved, -122 timeout, -4 loss, -127 throttled, -102 no auth, -125 quota, -120 local, -999
    (Request::Create, Truth::Refused, [Well, Well, Well, Well, Well, Denied, Refused, Well, Well]),
    (Request::Create, Truth::Done, [Well, Well, Well, Well, Well, DeniedAndStays, RefusedAndStays, Well, Well]),
    (Request::List, Truth::Done, [Expired, Well, Well, Well, Well, Denied, Refused, Well, Well]),
    (Request::Watch, Truth::Refused, [Expired, Well, Well, Well, Well, Denied, Refused, Well, Well]),
    (Request::Watch, Truth::Done, [Expired, Well, Well, Well, Well, Denied, Refused, Well, Well]),
    (Request::Sync, Truth::Refused, [Well, Well, Well, Well, Well, Denied, Refused, Well, Well]),
    (Request::HandOff, Truth::Refused, [Expired, Well, Well, Well, Well, Well, Well, Well, Well]),
    (Request::HandOff, Truth::Done, [Expired, Well, Well, Well, Well, Gone, Gone, Well, Well]),
    (Request::Delete, Truth::Refused, [Expired, Well, Well, Well, Well, DeniedAndStays, RefusedAndStays, Well, Well]),
    (Request::Delete, Truth::Done, [Expired, Well, Well, Well, Well, Denied, Refused, Well, Well]),
];

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_create_that_was_refused() {
    each_code(Request::Create, Truth::Refused).await;
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_create_done_but_reported_refused() {
    each_code(Request::Create, Truth::Done).await;
}

/// The server makes the node and reports that the directory is missing. If the client made a second node, that node would wait
/// behind the first.
#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_create_done_but_reported_without_a_directory() {
    let case = Case::set(Request::Create, NO_NODE, Truth::Done).await;
    assert_eq!(case.acquire(Request::Create, NO_NODE, Truth::Done, false).await, Well);
}

#[support::judged]
async fn a_dropped_create_reported_without_a_directory() {
    let path = "/refusals/dropped";
    let (proxy, operator) = (Proxy::start(shared_server().address()), connect(&shared_server().address()).await);
    let (zk, here) = (connect(&proxy.address()).await, lock_at(&operator, path));
    here.read().await.unwrap().release().await.unwrap();
    let create = proxy.hold_request(Op::Create2);
    let fault = proxy.apply(Rule::on(Frames::replies(Op::Create2)).claim_error(NO_NODE));
    let asks = writer(&lock_at(&zk, path));
    soon("the create", create.arrives()).await;
    asks.abort();
    assert!(asks.await.is_err_and(|end| end.is_cancelled()));
    create.release();
    soon("the answer", fault.happens()).await;
    becomes_empty(&operator, path).await;
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_listing_that_failed() {
    each_code(Request::List, Truth::Done).await;
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_that_was_refused() {
    each_code(Request::Watch, Truth::Refused).await;
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_armed_but_reported_refused() {
    each_code(Request::Watch, Truth::Done).await;
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_sync_that_was_refused() {
    each_code(Request::Sync, Truth::Refused).await;
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_off_that_was_refused() {
    each_code(Request::HandOff, Truth::Refused).await;
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_hand_off_done_but_reported_refused() {
    each_code(Request::HandOff, Truth::Done).await;
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_delete_that_was_refused() {
    each_code(Request::Delete, Truth::Refused).await;
}

#[support::judged(flavor = "multi_thread", worker_threads = 2)]
async fn a_delete_done_but_reported_refused() {
    each_code(Request::Delete, Truth::Done).await;
}
