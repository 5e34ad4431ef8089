//! The requests of one session: their order, their replies, and their wait for a connection.

use std::collections::BTreeMap;
use std::future::ready;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::oneshot;
use zookeeper_client as zk;

use crate::session::lease::Moment;
use crate::session::request::{Failure, Reply, SessionEnd, is_from_quorum};
use crate::session::store::SessionStore;
use crate::session::thread::{BackgroundThread, is_in_forked_process, sleep};
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{Mutex, Notify, OnceLock, watch};
use crate::telemetry::user_thread::catch_panic;
use crate::zookeeper::translate::is_not_sent;

/// The kind of a request, which decides whether its reply renews the lease, and whether a close waits for the reply.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestKind {
    /// A request that the connected server answers alone. If its reply certainly came from a server, the reply is
    /// reported to the lease as [answered](SessionStore::record_answer).
    Read,
    /// A request that a quorum commits. If its reply proves the commit, the reply is reported to the lease as
    /// [acknowledged](SessionStore::record_quorum_answer).
    Write,
    /// A write that only removes a node: a node of this session, a directory, or a node of another session. Closing the
    /// session does not wait for the reply, because the server receives the removal before the close, and carries it
    /// out first. If the connection is lost before the server has the removal, a node of this session is still removed
    /// with the session. The outcome for any other node is then unknown.
    Removal,
}

/// The requests of one session.
pub(super) struct RequestPipeline {
    /// Locked while a request is sent, so that requests are sent in the order of the calls.
    state: Mutex<PipelineState>,
    store: Arc<SessionStore>,
    background: Arc<BackgroundThread>,
    /// Notified when a request begins to wait for a connection, and when the session is closed.
    pub(super) wanted: Notify,
    /// Tells each request under way that the session is closed.
    closed: watch::Sender<bool>,
}

/// The present connection of a session, and the requests that wait for a connection.
struct PipelineState {
    /// The ready connection. `None` if no connection is ready, or if the session is closed or over.
    connection: Option<ReadyConnection>,
    is_closed: bool,
    /// The requests to send on the next connection, by their numbers.
    waiting: BTreeMap<u64, WaitingRequest>,
    /// The number of requests so far, which is also the number of the last request.
    requests: u64,
}

/// A ready connection, and the record of its writes and its end.
type ReadyConnection = (Arc<zk::Client>, Arc<ConnectionRecord>);

/// Sends a request that has waited, on the given connection. With `None` in place of a connection, lets the request
/// fail, because the session is closed or over.
type WaitingRequest = Box<dyn FnOnce(&Arc<RequestPipeline>, Option<&ReadyConnection>) + Send>;

/// The number of open writes of one connection, and whether the connection was given up.
#[derive(Default)]
pub(super) struct ConnectionRecord {
    /// The number of writes that may still be carried out.
    writes: AtomicUsize,
    /// Set at the end of the connection. `false` if the connection has ended by itself: the client crate then reports
    /// which requests were not sent. `true` if the library has given up the connection, or the client crate has
    /// panicked: then any request without an answer may have been sent.
    is_given_up: OnceLock<bool>,
}

impl ConnectionRecord {
    pub(super) fn has_open_writes(&self) -> bool {
        self.writes.load(Ordering::Acquire) > 0
    }

    /// Records the end of the connection, unless an earlier end is recorded.
    pub(super) fn record_end(&self, is_given_up: bool) {
        _ = self.is_given_up.set(is_given_up);
    }

    fn is_given_up(&self) -> bool {
        self.is_given_up.get() == Some(&true)
    }
}

/// A request, until its answer is known.
struct PendingRequest<T, S> {
    number: u64,
    request: RequestKind,
    send: S,
    reply: oneshot::Sender<Result<T, Failure>>,
}

impl RequestPipeline {
    /// Returns the pipeline of a session whose first connection is not ready yet.
    pub(super) fn new(store: &Arc<SessionStore>, background: &Arc<BackgroundThread>) -> RequestPipeline {
        RequestPipeline {
            state: Mutex::new(PipelineState {
                connection: None,
                is_closed: false,
                waiting: BTreeMap::new(),
                requests: 0,
            }),
            store: Arc::clone(store),
            background: Arc::clone(background),
            wanted: Notify::new(),
            closed: watch::Sender::new(false),
        }
    }

    fn session_over_failure(&self) -> Failure {
        Failure::Over(self.store.lease().ending().unwrap_or(SessionEnd::Closed))
    }

    /// Sends all requests on this connection from now on. The requests that have waited are sent first. Does nothing if
    /// the session is closed.
    pub(super) fn set_connection(self: &Arc<Self>, client: &Arc<zk::Client>, record: &Arc<ConnectionRecord>) {
        let mut state = self.state.lock();
        if state.is_closed {
            return;
        }
        let connection = (Arc::clone(client), Arc::clone(record));
        for (_, waiting) in std::mem::take(&mut state.waiting) {
            waiting(self, Some(&connection));
        }
        state.connection = Some(connection);
    }

    /// Lets all requests wait from now on. Returns the client of the ready connection, if there was one. Unless that
    /// connection is lost, the caller must keep the client: dropping its last clone would close the session.
    pub(super) fn pause_and_take_client(&self) -> Option<Arc<zk::Client>> {
        self.state.lock().connection.take().map(|(client, _)| client)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.state.lock().is_closed
    }

    /// Returns whether requests wait for a connection.
    pub(super) fn has_waiting_requests(&self) -> bool {
        !self.state.lock().waiting.is_empty()
    }

    /// Drops the client, and fails the requests that wait. When the last clone of the client is dropped, the session is
    /// closed. A removal under way drops its clone immediately, because the removal was sent already, and the close
    /// need not wait for its reply. Each other request under way keeps a clone until the request is answered, or for a
    /// session timeout if that is shorter.
    pub(super) fn close(self: &Arc<Self>) {
        let mut state = self.state.lock();
        state.is_closed = true;
        let (last, waiting) = (state.connection.take(), std::mem::take(&mut state.waiting));
        drop(state);
        for (_, waiting) in waiting {
            waiting(self, None);
        }
        self.wanted.notify_one();
        self.closed.send_replace(true);
        drop(last);
    }

    /// Sends a request before this function returns. Without a ready connection, the request waits until a connection
    /// is ready. If the request was certainly not sent, `send` is called again. If the session is closed or over, or
    /// this process was forked, the request fails. If the reply proves that a server or a quorum has answered, it is
    /// reported to the lease.
    pub(super) fn send<T, F>(
        self: &Arc<Self>,
        request: RequestKind,
        send: impl Fn(Arc<zk::Client>) -> F + Send + 'static,
    ) -> Reply<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Failure>> + Send + 'static,
    {
        if is_in_forked_process() {
            return Box::pin(ready(Err(Failure::Over(SessionEnd::Forked))));
        }
        let (reply, received) = oneshot::channel();
        let mut state = self.state.lock();
        state.requests += 1;
        let send = move |client| send(client).boxed();
        let pending = PendingRequest { number: state.requests, request, send, reply };
        match &state.connection {
            Some(connection) => pending.send_now(self, connection),
            None if state.is_closed => return Box::pin(ready(Err(self.session_over_failure()))),
            None => pending.wait_for_connection(self, &mut state),
        }
        drop(state);
        Box::pin(async move { received.await.unwrap_or_else(|_| unknown_outcome("the session's thread has ended")) })
    }
}

impl<T, S> PendingRequest<T, S>
where
    T: Send + 'static,
    S: Fn(Arc<zk::Client>) -> BoxFuture<'static, Result<T, Failure>> + Send + 'static,
{
    /// Adds the request to those that wait for a connection, and notifies [`RequestPipeline::wanted`].
    fn wait_for_connection(self, pipeline: &RequestPipeline, state: &mut PipelineState) {
        let number = self.number;
        let send: WaitingRequest = Box::new(|pipeline, connection| match connection {
            Some(connection) => self.send_now(pipeline, connection),
            None => self.deliver_answer(Err(pipeline.session_over_failure())),
        });
        state.waiting.insert(number, send);
        pipeline.wanted.notify_one();
    }

    fn deliver_answer(self, answer: Result<T, Failure>) {
        // Sending the answer wakes the caller's task. Its waker is the user's code, and may panic.
        let _panicked = catch_panic(|| drop(self.reply.send(answer)));
    }

    /// Sends the request on this connection. The caller holds the pipeline's mutex.
    fn send_now(self, pipeline: &Arc<RequestPipeline>, (client, record): &ReadyConnection) {
        let sent = pipeline.store.lease().now();
        let is_write = self.request != RequestKind::Read;
        // The client crate panics over some replies that are too short. The panic is caught, and the outcome is
        // unknown, because the request may have been executed.
        let mut answer = AssertUnwindSafe((self.send)(Arc::clone(client))).catch_unwind();
        // The client crate sends the request in this first poll.
        let at_once = answer.poll_unpin(&mut Context::from_waker(Waker::noop()));
        if let Poll::Ready(answer) = at_once {
            // The pipeline is locked here, and the waker of the caller's task might send a request, which needs the
            // same mutex. So another task delivers the answer.
            let answer = answer.unwrap_or_else(|_| unknown_outcome("the answer is malformed"));
            return pipeline.background.spawn(async move { self.deliver_answer(answer) });
        }
        if is_write {
            record.writes.fetch_add(1, Ordering::AcqRel);
        }
        // The receiver is made while the pipeline is locked, so that a concurrent close is not missed.
        let (mut closed, is_removal) = (pipeline.closed.subscribe(), self.request == RequestKind::Removal);
        let (record, pipeline) = (Arc::clone(record), Arc::clone(pipeline));
        let background = Arc::clone(&pipeline.background);
        // A task of the library polls the future `answer`, because the caller may never poll. `answer` owns a clone of
        // the client, which keeps the session open.
        background.spawn(async move {
            // A request under way keeps the session open. So after a close the request is abandoned: a removal at once,
            // and any other request one session timeout later.
            let abandoned = async {
                drop(closed.wait_for(|it| *it).await);
                if !is_removal {
                    sleep(pipeline.store.lease().timeout()).await;
                }
            };
            let answer = tokio::select! {
                biased;
                answer = answer => answer.unwrap_or_else(|_| unknown_outcome("the answer is malformed")),
                () = abandoned => unknown_outcome("the session was closed before the answer came"),
            };
            // A write whose outcome is unknown stays counted in `writes`, because it may still be carried out later. A
            // write that was certainly not sent is no longer counted.
            let is_open = answer.as_ref().is_err_and(|failure| match failure {
                Failure::Unknown(_) => !is_not_sent(failure) || record.is_given_up(),
                _ => false,
            });
            if is_write && !is_open {
                record.writes.fetch_sub(1, Ordering::AcqRel);
            }
            self.deliver_or_resend(&pipeline, &record, sent, answer);
        });
    }

    /// Delivers the answer to a request that was sent at `sent`, and reports to the lease what the answer proves. If
    /// the request was certainly not sent, and the session is not closed, does neither: it sends the request again, or
    /// lets it wait for a connection.
    fn deliver_or_resend(
        self,
        pipeline: &Arc<RequestPipeline>,
        record: &ConnectionRecord,
        sent: Moment,
        answer: Result<T, Failure>,
    ) {
        let is_not_sent = answer.as_ref().is_err_and(is_not_sent);
        if is_not_sent && !record.is_given_up() {
            let mut state = pipeline.state.lock();
            match &state.connection {
                Some(connection) => return self.send_now(pipeline, connection),
                None if !state.is_closed => return self.wait_for_connection(pipeline, &mut state),
                None => {}
            }
        }
        match self.request {
            // These answers certainly came from a server. Any other answer may come from the client crate itself.
            RequestKind::Read if matches!(answer, Ok(_) | Err(Failure::NoNode | Failure::NoAuth(_))) => {
                pipeline.store.record_answer(sent);
            }
            RequestKind::Read => {}
            _ if is_from_quorum(&answer) => pipeline.store.record_quorum_answer(sent),
            _ => {}
        }
        self.deliver_answer(answer);
    }
}

fn unknown_outcome<T>(why: &str) -> Result<T, Failure> {
    Err(Failure::Unknown(why.to_owned()))
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    fn failure_at(index: usize, failure: Failure) -> Failure {
        Failure::Operation { index, failure: Box::new(failure) }
    }

    #[test]
    fn only_a_quorum_commit_proves_that_a_session_lives() {
        for (answer, is_proof) in [
            (Ok(()), true),
            (Err(failure_at(0, Failure::NoNode)), true),
            (Err(failure_at(1, Failure::NoAuth(Box::default()))), true),
            (Err(failure_at(0, Failure::Refused("the client crate did not send it".to_owned()))), false),
            (Err(failure_at(0, Failure::InvalidAcl)), false),
            (Err(Failure::NoNode), false),
            (Err(Failure::Unknown("cut".to_owned())), false),
        ] {
            assert_eq!(is_from_quorum(&answer), is_proof, "{answer:?}");
        }
    }
}
