//! Tests of the pipeline of a ZooKeeper session's requests, on many threads and without a socket. The session is closed, or
//! the connection breaks, while requests are in the client crate's queue.
//!
//! The file of the pipeline is compiled here again, with a client that records requests. The schedule decides whether
//! the client answers them immediately or later, and which requests are in its queue when the connection breaks.

#![allow(dead_code, unused_imports, unreachable_pub, reason = "only what is tried here is used")]
#![allow(missing_docs, missing_debug_implementations, reason = "the client is nobody's interface")]

// The pipeline imports the client crate by this name. This test crate takes the place of the client crate.
extern crate self as zookeeper_client;

mod explore;
mod sync;

use std::sync::Arc;

use shuttle::future::{block_on, yield_now};
use shuttle::rand::Rng;
use shuttle::sync::Mutex;
use shuttle::thread;

use crate::session::request::Failure;
use crate::zookeeper::driven::{Session, session};

fn draw(of: usize) -> usize {
    shuttle::rand::thread_rng().gen_range(0..of)
}

/// A record of the requests to the server, and whether the session was closed.
#[derive(Default)]
struct ServerLog {
    requests: Vec<String>,
    is_closed: bool,
}

/// A stand-in for the client of the client crate. Dropping the last clone closes the session, unless the connection is
/// broken.
pub struct Client {
    log: Arc<Mutex<ServerLog>>,
    queue: Mutex<Queue>,
    /// If set, one in this many requests is never answered. Deletes are always answered.
    ignores_one_in: Option<usize>,
}

/// The requests that the client has not sent yet.
#[derive(Default)]
struct Queue {
    waiting: Vec<(usize, String)>,
    made: usize,
    is_broken: bool,
}

#[derive(Debug)]
pub enum Error {
    NotSent,
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("not sent")
    }
}

impl Client {
    fn new(log: &Arc<Mutex<ServerLog>>, ignores_one_in: Option<usize>) -> Arc<Client> {
        Arc::new(Client { log: Arc::clone(log), queue: Mutex::default(), ignores_one_in })
    }

    /// Queues the request in the first poll. The requests in the queue are sent in their order, now or later. The reply
    /// arrives when the request was sent, or later.
    async fn sends(&self, request: String) -> Result<(), Error> {
        let is_ignored = !request.contains("delete") && self.ignores_one_in.is_some_and(|some| draw(some) == 0);
        let number = {
            let mut queue = self.queue.lock().expect("no panic");
            queue.made += 1;
            let number = queue.made;
            queue.waiting.push((number, request));
            number
        };
        for _ in 0..draw(3) {
            yield_now().await;
        }
        {
            let mut queue = self.queue.lock().expect("no panic");
            if queue.waiting.iter().any(|(it, _)| *it == number) {
                if queue.is_broken {
                    return Err(Error::NotSent);
                }
                let sent = queue.waiting.drain(..).map(|(_, request)| request);
                self.log.lock().expect("no panic").requests.extend(sent);
            }
        }
        if is_ignored {
            std::future::pending::<()>().await;
        }
        for _ in 0..draw(2) {
            yield_now().await;
        }
        Ok(())
    }

    fn break_off(&self) {
        self.queue.lock().expect("no panic").is_broken = true;
    }

    pub async fn delete(&self, path: &str) -> Result<(), Error> {
        self.sends(format!("delete {path}")).await
    }

    pub async fn get_data(&self, path: &str) -> Result<(), Error> {
        self.sends(format!("get {path}")).await
    }

    pub async fn create(&self, path: &str) -> Result<(), Error> {
        self.sends(format!("create {path}")).await
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if !self.queue.lock().expect("no panic").is_broken {
            self.log.lock().expect("no panic").is_closed = true;
        }
    }
}

#[path = "../src/session"]
mod session {
    pub(crate) mod request;

    pub(crate) mod lease {
        pub(crate) type Moment = std::time::Duration;
    }

    pub(crate) mod store {
        use std::time::Duration;

        use crate::session::request::SessionEnd;

        /// The part of the library's `SessionStore` that the pipeline uses.
        #[derive(Default)]
        pub(crate) struct SessionStore;

        impl SessionStore {
            pub(crate) fn lease(&self) -> &SessionStore {
                self
            }

            pub(crate) fn now(&self) -> Duration {
                Duration::ZERO
            }

            pub(crate) fn connection(&self) -> u64 {
                0
            }

            pub(crate) fn timeout(&self) -> Duration {
                Duration::ZERO
            }

            pub(crate) fn ending(&self) -> Option<SessionEnd> {
                None
            }

            pub(crate) fn record_answer(&self, _: Duration) {}

            pub(crate) fn record_quorum_answer(&self, _: Duration) {}
        }
    }

    pub(crate) mod thread {
        use std::time::Duration;

        use std::sync::Arc;

        use shuttle::future::{spawn, yield_now};

        /// A stand-in for the library's background thread. It runs its tasks when the schedule lets them run.
        #[derive(Default)]
        pub(crate) struct BackgroundThread {
            running: Arc<()>,
        }

        pub(crate) fn is_in_forked_process() -> bool {
            false
        }

        impl BackgroundThread {
            pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
                let running = Arc::clone(&self.running);
                drop(spawn(async move {
                    task.await;
                    drop(running);
                }));
            }

            /// Returns whether all tasks have ended.
            pub(crate) fn is_idle(&self) -> bool {
                Arc::strong_count(&self.running) == 1
            }
        }

        /// Sleeps for a time that the schedule chooses.
        pub(crate) async fn sleep(_: Duration) {
            for _ in 0..crate::draw(4) {
                yield_now().await;
            }
        }
    }
}

mod telemetry {
    pub(crate) mod user_thread {
        /// Runs `work`. The library's function of this name also catches panics of wakers, but no waker panics here.
        pub(crate) fn catch_panic<T>(work: impl FnOnce() -> T) -> Option<T> {
            Some(work())
        }
    }
}

#[path = "../src/zookeeper"]
mod zookeeper {
    pub(crate) mod pipeline;

    pub(crate) mod translate {
        use crate::Error;
        use crate::session::request::Failure;

        pub(crate) fn translate_error(error: Error) -> Failure {
            Failure::Unknown(error.to_string())
        }

        pub(crate) fn is_not_sent(failure: &Failure) -> bool {
            matches!(failure, Failure::Unknown(words) if words == "not sent")
        }

        pub(crate) fn is_moved(_: &Failure) -> bool {
            false
        }
    }

    /// A session that consists only of a pipeline.
    pub(crate) mod driven {
        use std::sync::Arc;

        use crate::Client;
        use crate::session::request::Reply;
        use crate::session::store::SessionStore;
        use crate::session::thread::BackgroundThread;
        use crate::zookeeper::pipeline::{RequestKind, RequestPipeline};
        use crate::zookeeper::translate;

        pub(crate) struct Session {
            pipeline: Arc<RequestPipeline>,
        }

        pub(crate) fn session() -> (Arc<Session>, Arc<BackgroundThread>) {
            let (store, background) = (Arc::new(SessionStore), Arc::new(BackgroundThread::default()));
            let pipeline = Arc::new(RequestPipeline::new(&store, &background));
            (Arc::new(Session { pipeline }), background)
        }

        impl Session {
            pub(crate) fn connect(&self, client: &Arc<Client>) {
                self.pipeline.set_connection(client, &Arc::default());
            }

            pub(crate) fn disconnect(&self) {
                self.pipeline.pause_and_take_client();
            }

            pub(crate) fn close(&self) {
                self.pipeline.close();
            }

            pub(crate) fn remove(&self, path: &str) -> Reply<()> {
                let path: Arc<str> = path.into();
                self.pipeline.send(RequestKind::Removal, move |client| {
                    let path = Arc::clone(&path);
                    async move { client.delete(&path).await.map_err(translate::translate_error) }
                })
            }

            pub(crate) fn read(&self, path: &str) -> Reply<()> {
                let path: Arc<str> = path.into();
                self.pipeline.send(RequestKind::Read, move |client| {
                    let path = Arc::clone(&path);
                    async move { client.get_data(&path).await.map_err(translate::translate_error) }
                })
            }

            pub(crate) fn create(&self, path: &str) -> Reply<()> {
                let path: Arc<str> = path.into();
                self.pipeline.send(RequestKind::Write, move |client| {
                    let path = Arc::clone(&path);
                    async move { client.create(&path).await.map_err(translate::translate_error) }
                })
            }
        }
    }
}

/// Runs two threads that delete, create and read, and a thread that closes the session. If `breaks` is set, the
/// connection breaks meanwhile, and another one takes its place.
fn a_session_is_used_and_closed(breaks: bool) {
    let log = Arc::new(Mutex::new(ServerLog::default()));
    // The session is closed before or after the threads end. A request that is never answered must end with the close,
    // and must not keep the session alive.
    let is_closed_early = !breaks && draw(2) == 0;
    let (session, background) = session();
    let first = Client::new(&log, is_closed_early.then_some(4));
    session.connect(&first);
    let users: Vec<_> = ["a", "b"]
        .map(|name| {
            let session = Arc::clone(&session);
            thread::spawn(move || uses(&session, name))
        })
        .into();
    if breaks {
        // The loss is reported before the requests in the queue fail, as in the library.
        session.disconnect();
        first.break_off();
        for _ in 0..draw(4) {
            thread::yield_now();
        }
        // The library connects again on the background thread, after the lost requests have failed there.
        while !background.is_idle() {
            thread::yield_now();
        }
        session.connect(&Client::new(&log, None));
    }
    drop(first);
    if is_closed_early {
        session.close();
    }
    let is_done: Vec<bool> = users.into_iter().map(|user| user.join().expect("no panic")).collect();
    session.close();
    drop(session);
    // Wait until no request and no task of the session is left.
    while !log.lock().expect("no panic").is_closed || !background.is_idle() {
        thread::yield_now();
    }
    let requests = std::mem::take(&mut log.lock().expect("no panic").requests);
    for (name, is_done) in ["a", "b"].into_iter().zip(is_done) {
        let at = |what: &str| requests.iter().position(|it| it.contains(&format!("{what} /lock/{name}")));
        let times = requests.iter().filter(|it| it.contains(&format!("delete /lock/{name}"))).count();
        assert!(times <= 1 && (times == 1 || !is_done), "{requests:?}");
        assert!(is_done || !breaks, "a break costs no request");
        assert!(at("delete") <= at("get") || at("get").is_none(), "{requests:?}");
    }
}

/// Sends the requests of one thread. Returns whether all of them were answered.
fn uses(session: &Session, name: &str) -> bool {
    let removed = session.remove(&format!("/lock/{name}"));
    let (read, created) = match draw(3) {
        0 => (Some(session.read(&format!("/lock/{name}"))), None),
        1 => (None, Some(session.create("/lock/new"))),
        _ => (None, None),
    };
    let answers = [Some(block_on(removed)), read.map(block_on), created.map(block_on)];
    let failures: Vec<_> = answers.into_iter().flatten().filter_map(Result::err).collect();
    // A request may fail only because the session was closed. If the send of a request panicked, the pipeline would
    // report a malformed answer, and this assertion would fail.
    let is_closed =
        |it: &Failure| matches!(it, Failure::Over(_)) || it.to_string().ends_with("closed before the answer came");
    assert!(failures.iter().all(is_closed), "{failures:?}");
    failures.is_empty()
}

#[test]
fn every_request_is_sent_in_order_and_answered() {
    explore::explore(2_000, || a_session_is_used_and_closed(false));
}

#[test]
fn a_request_that_was_not_sent_is_sent_again_in_its_order() {
    explore::explore(2_000, || a_session_is_used_and_closed(true));
}
