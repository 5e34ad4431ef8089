//! The requests of one session: their order, their replies, and the session's identity after a reconnect.
//!
//! Some servers answer a reconnect with a new session in place of the old one, and the client crate does not report
//! that. So after a reconnect, [`Identity`] is unconfirmed until the server has shown that the session is still the
//! same.

use std::future::{Future, ready};
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use futures_util::FutureExt;
use tokio::sync::oneshot;
use tokio::task::unconstrained;
use zookeeper_client as zk;

use crate::session::request::{Ending, Failure, Reply, is_from_quorum};
use crate::session::shield::shielded;
use crate::session::store::SessionStore;
use crate::session::thread::{BackgroundThread, is_forked};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Mutex, watch};
use crate::zookeeper::translate::failure;

/// The kind of a request, which decides whether its reply renews the lease, and whether a close waits for the reply.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Request {
    /// A request that the connected server answers alone. Its reply is reported to the lease as
    /// [answered](SessionStore::answered).
    Read,
    /// A request that a quorum commits. Its reply is reported to the lease as
    /// [acknowledged](SessionStore::acknowledged), if the reply proves the commit.
    Write,
    /// A write that only removes a node: one of the session's own, a directory, or another owner's. Closing the session
    /// does not wait for the reply, because the server receives the request before the close, and carries it out first.
    /// If the connection is lost before that, the end of the session still removes a node of its own. The caller of any
    /// other removal gets the error that a lost reply gives.
    Removal,
}

/// The requests of one session.
pub(super) struct Pipeline {
    /// Locked while a request is sent, so that requests are sent in the order of the calls. `None` once the session is
    /// closed. Each request under way owns a clone of the client; dropping the last clone closes the session.
    client: Mutex<Option<Arc<zk::Client>>>,
    store: Arc<SessionStore>,
    background: Arc<BackgroundThread>,
    pub(super) identity: Arc<Identity>,
    /// The user as which this client is authenticated, for error messages.
    pub(super) whom: Arc<str>,
    /// The progress of closing the session. Each request under way owns a receiver, so `closed` completes when no
    /// request is under way.
    closing: watch::Sender<Closing>,
}

impl Pipeline {
    pub(super) fn new(
        client: zk::Client,
        store: &Arc<SessionStore>,
        background: &Arc<BackgroundThread>,
        identity: Arc<Identity>,
        whom: String,
    ) -> Pipeline {
        Pipeline {
            client: Mutex::new(Some(Arc::new(client))),
            store: Arc::clone(store),
            background: Arc::clone(background),
            identity,
            whom: whom.into(),
            closing: watch::Sender::new(Closing::NotYet),
        }
    }

    /// Returns the function that maps an error to a failure, for a request that needs the right `right` on `node`.
    pub(super) fn failure(&self, right: &'static str, node: &str) -> impl FnOnce(zk::Error) -> Failure + Send + use<> {
        let (node, whom) = (node.to_owned(), Arc::clone(&self.whom));
        move |error| failure(error, (right, &node), &whom)
    }

    fn no_client(&self) -> Failure {
        Failure::Over(self.store.lease().over().unwrap_or(Ending::Closed))
    }

    /// Drops the client. The session is closed when every request under way has dropped its clone of the client, too. A
    /// removal drops its clone immediately, because the removal has been sent. Other requests drop theirs with their
    /// replies, or after a session timeout.
    pub(super) fn close(&self) {
        let last = self.client.lock().take();
        if last.is_some() {
            let (closing, late) = (self.closing.clone(), self.background.sleep(self.store.lease().timeout()));
            closing.send_replace(Closing::Begun);
            // Requests that are still under way after a session timeout are abandoned.
            self.background.handle().spawn(async move {
                tokio::select! {
                    biased;
                    () = closing.closed() => {}
                    () = late => {
                        closing.send_replace(Closing::Late);
                    }
                }
            });
        }
        drop(last);
    }

    /// Sends a request before this function returns, and reports the reply to the lease.
    pub(super) fn send<T, F>(&self, request: Request, send: impl FnOnce(Arc<zk::Client>) -> F) -> Reply<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Failure>> + Send + 'static,
    {
        if is_forked() {
            return Box::pin(ready(Err(Failure::Over(Ending::Forked))));
        }
        let client = self.client.lock();
        let Some(there) = client.clone() else { return Box::pin(ready(Err(self.no_client()))) };
        let (store, identity) = (Arc::clone(&self.store), Arc::clone(&self.identity));
        let sent = store.lease().now();
        // The client crate panics over some replies that are too short. The panic is caught, and the outcome is
        // unknown, because the request may have been executed.
        let answer = AssertUnwindSafe(send(there)).catch_unwind();
        let reply = answer.map(move |answer| {
            let answer = answer.unwrap_or_else(|_| unknown("the answer is malformed"));
            match request {
                // These certainly came from a server. The client crate may have made any other reply itself.
                Request::Read if matches!(answer, Ok(_) | Err(Failure::NoNode | Failure::NoAuth(_))) => {
                    store.answered(sent);
                }
                Request::Read => {}
                _ if !is_from_quorum(&answer) => {}
                _ if identity.is_known() => {
                    // The server is known to have resumed this session on this connection. Only then may the handshake of the
                    // connection extend the lease. Later calls on the same connection change nothing.
                    store.resumed();
                    store.acknowledged(sent);
                }
                _ => identity.start_check(),
            }
            answer
        });
        let mut reply: Reply<T> = Box::pin(reply);
        // The client crate sends the request in this first poll. Without `unconstrained`, tokio's budget could delay
        // the poll.
        let at_once = pin!(unconstrained(reply.as_mut())).poll(&mut Context::from_waker(Waker::noop()));
        // The receiver is made while `client` is locked, so that a concurrent close waits for this request.
        let mut closing = self.closing.subscribe();
        drop(client);
        if let Poll::Ready(answer) = at_once {
            return Box::pin(ready(answer));
        }
        let (reply_sender, received) = oneshot::channel();
        let abandoned_at = if request == Request::Removal { Closing::Begun } else { Closing::Late };
        // A task drives the reply's future, because the caller may never poll it. The future owns a clone of the
        // client, which keeps the session open.
        self.background.handle().spawn(async move {
            let abandoned = closing.wait_for(|it| *it >= abandoned_at).map(drop);
            let answer = tokio::select! {
                biased;
                answer = reply => answer,
                () = abandoned => unknown("the session was closed before the answer came"),
            };
            let _nobody_waits_any_more = reply_sender.send(answer);
        });
        Box::pin(async move { shielded(received).await.unwrap_or_else(|_| unknown("the session's thread has ended")) })
    }
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        self.close();
    }
}

/// How far the close of a session has come.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Closing {
    NotYet,
    /// The session is being closed. The close no longer waits for replies to removals.
    Begun,
    /// A session timeout has passed since the close began. The close no longer waits for any reply.
    Late,
}

fn unknown<T>(why: &str) -> Result<T, Failure> {
    Err(Failure::Unknown(why.to_owned()))
}

/// The answer to the question whether the server continues this session on the present connection.
pub(super) struct Identity {
    session: i64,
    /// Starts a check of the session's identity in the background. The check ends with a call of
    /// [`Identity::check_ended`].
    confirm: Box<dyn Fn() + Send + Sync>,
    store: Arc<SessionStore>,
    /// The newest connection, by the store's [count](SessionStore::connection), on which the server has confirmed the
    /// session's identity.
    confirmed_on: AtomicU64,
    is_checking: AtomicBool,
}

impl Identity {
    pub(super) fn new(session: i64, store: &Arc<SessionStore>, confirm: impl Fn() + Send + Sync + 'static) -> Identity {
        let (store, confirmed_on, is_checking) = (Arc::clone(store), AtomicU64::new(0), AtomicBool::new(false));
        Identity { session, confirm: Box::new(confirm), store, confirmed_on, is_checking }
    }

    pub(super) fn mark_confirmed_on(&self, connection: u64) {
        self.confirmed_on.fetch_max(connection, Ordering::AcqRel);
    }

    pub(super) fn is_known(&self) -> bool {
        self.confirmed_on.load(Ordering::Acquire) == self.store.connection()
    }

    /// Starts a check of the session's identity in the background, unless it is confirmed or a check is under way.
    pub(super) fn start_check(&self) {
        if !self.is_known() && !self.is_checking.swap(true, Ordering::AcqRel) {
            (self.confirm)();
        }
    }

    /// Records that the check has ended, with any result.
    pub(super) fn check_ended(&self) {
        self.is_checking.store(false, Ordering::Release);
    }

    /// Records what a create shows about the session's identity. Returns `false` if the new node's owner is another
    /// session, so that the server has replaced this session. Returns `true` if the owner is this session, or 0, which
    /// shows nothing. `connection` is the connection on which the create was sent.
    pub(super) fn confirm_by_create(&self, ephemeral_owner: i64, connection: u64) -> bool {
        if ephemeral_owner == self.session {
            self.mark_confirmed_on(connection);
        }
        ephemeral_owner == 0 || ephemeral_owner == self.session
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::session::lease::Lease;

    fn failure_of(index: usize, failure: Failure) -> Failure {
        Failure::Operation { index, failure: Box::new(failure) }
    }

    #[test]
    fn only_a_quorum_commit_proves_that_a_session_lives() {
        for (answer, is_proof) in [
            (Ok(()), true),
            (Err(failure_of(0, Failure::NoNode)), true),
            (Err(failure_of(1, Failure::NoAuth(Box::default()))), true),
            (Err(failure_of(0, Failure::Refused("the client crate did not send it".to_owned()))), false),
            (Err(failure_of(0, Failure::InvalidAcl)), false),
            (Err(Failure::NoNode), false),
            (Err(Failure::Unknown("cut".to_owned())), false),
        ] {
            assert_eq!(is_from_quorum(&answer), is_proof, "{answer:?}");
        }
    }

    /// Returns the store and the identity of the session with the id 7, and the counter of its started checks.
    fn session_7() -> (Arc<SessionStore>, Arc<AtomicU64>, Identity) {
        let store = Arc::new(SessionStore::new(Lease::new(Duration::from_secs(10))));
        let checks = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&checks);
        let confirm = move || {
            count.fetch_add(1, Ordering::Relaxed);
        };
        let identity = Identity::new(7, &store, confirm);
        (store, checks, identity)
    }

    fn reconnect(store: &SessionStore) {
        store.connected(false);
        store.connected(true);
    }

    #[test]
    fn identity_is_checked_once_at_a_time_after_reconnect() {
        let (store, count, identity) = session_7();
        let start = || {
            identity.start_check();
            count.load(Ordering::Relaxed)
        };
        assert!(identity.is_known());
        assert_eq!(start(), 0, "the first connection needs no check");
        reconnect(&store);
        assert!(!identity.is_known());
        assert_eq!([start(), start()], [1, 1]);
        identity.check_ended();
        assert_eq!(start(), 2, "the first check confirmed nothing");
        identity.mark_confirmed_on(store.connection());
        identity.check_ended();
        assert_eq!((start(), identity.is_known()), (2, true));
        reconnect(&store);
        identity.mark_confirmed_on(0);
        assert!(!identity.is_known(), "the confirmation is of an earlier connection");
    }

    #[test]
    fn a_created_node_confirms_identity_on_its_connection() {
        let (store, _, identity) = session_7();
        reconnect(&store);
        let connection = store.connection();
        assert!(identity.confirm_by_create(0, connection));
        assert!(!identity.is_known(), "a node without an owner confirms nothing");
        assert!(identity.confirm_by_create(7, connection));
        assert!(identity.is_known());
        reconnect(&store);
        assert!(identity.confirm_by_create(7, connection));
        assert!(!identity.is_known(), "the create was sent on another connection");
        assert!(!identity.confirm_by_create(8, connection), "the server has replaced the session");
    }
}
