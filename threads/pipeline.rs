//! The pipeline of requests of a ZooKeeper session on many threads, without a socket: with requests, with a reply that
//! shows another session, and with a close.
//!
//! The file of the pipeline is compiled here again, with a client that records requests. The schedule decides whether
//! the client answers them immediately or later.

#![allow(dead_code, unused_imports, unreachable_pub, reason = "only what is tried here is used")]
#![allow(missing_docs, missing_debug_implementations, reason = "the client is nobody's interface")]

// The pipeline imports the client crate by this name. This crate takes its place.
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

/// A stand-in for the client of the client crate. Dropping the last clone closes the session.
pub struct Client {
    log: Arc<Mutex<ServerLog>>,
    /// The id of the session that the server reports.
    session: i64,
    /// If set, one in this many requests is never answered. Deletes are always answered.
    ignores_one_in: Option<usize>,
}

#[derive(Debug)]
pub struct Error;

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("no error ever")
    }
}

#[derive(Clone, Debug)]
pub struct Stat {
    pub ephemeral_owner: i64,
}

impl Client {
    /// Records the request in the first poll. The reply arrives immediately or later.
    async fn sends(&self, request: String) {
        let is_ignored = !request.contains("delete") && self.ignores_one_in.is_some_and(|some| draw(some) == 0);
        self.log.lock().expect("no panic").requests.push(request);
        if is_ignored {
            std::future::pending::<()>().await;
        }
        for _ in 0..draw(3) {
            yield_now().await;
        }
    }

    fn stat(&self) -> Stat {
        Stat { ephemeral_owner: self.session }
    }

    pub async fn delete(&self, path: &str, _: Option<i32>) -> Result<(), Error> {
        self.sends(format!("delete {path}")).await;
        Ok(())
    }

    pub async fn get_data(&self, path: &str) -> Result<(Vec<u8>, Stat), Error> {
        self.sends(format!("get {path}")).await;
        Ok((Vec::new(), self.stat()))
    }

    pub async fn create(&self, path: &str) -> Result<Stat, Error> {
        self.sends(format!("create {path}")).await;
        Ok(self.stat())
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.log.lock().expect("no panic").is_closed = true;
    }
}

#[path = "../src/session"]
mod session {
    pub(crate) mod request;

    pub(crate) mod shield {
        /// Runs `work`. The library's function of this name also catches panics of wakers; no waker panics here.
        pub(crate) async fn shielded<F: Future>(work: F) -> F::Output {
            work.await
        }
    }

    pub(crate) mod store {
        use std::time::Duration;

        use crate::session::request::Ending;

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

            pub(crate) fn over(&self) -> Option<Ending> {
                None
            }

            pub(crate) fn answered(&self, _: Duration) {}

            pub(crate) fn acknowledged(&self, _: Duration) {}

            pub(crate) fn resumed(&self) {}
        }
    }

    pub(crate) mod thread {
        use std::time::Duration;

        use std::sync::Arc;

        use shuttle::future::{JoinHandle, spawn, yield_now};

        /// A stand-in for the library's background thread. It runs its tasks when the schedule lets them run.
        #[derive(Default)]
        pub(crate) struct BackgroundThread {
            running: Arc<()>,
        }

        pub(crate) fn is_forked() -> bool {
            false
        }

        impl BackgroundThread {
            pub(crate) fn handle(&self) -> &BackgroundThread {
                self
            }

            pub(crate) fn spawn<T: Send + 'static>(
                &self,
                task: impl Future<Output = T> + Send + 'static,
            ) -> JoinHandle<T> {
                let running = Arc::clone(&self.running);
                spawn(async move {
                    let done = task.await;
                    drop(running);
                    done
                })
            }

            /// Returns whether all tasks have ended.
            pub(crate) fn is_idle(&self) -> bool {
                Arc::strong_count(&self.running) == 1
            }

            /// Sleeps for a time that the schedule chooses.
            pub(crate) fn sleep(&self, _: Duration) -> impl Future<Output = ()> + Send + use<> {
                async {
                    for _ in 0..crate::draw(4) {
                        yield_now().await;
                    }
                }
            }
        }
    }
}

#[path = "../src/zookeeper"]
mod zookeeper {
    pub(crate) mod pipeline;

    pub(crate) mod translate {
        use std::time::{Duration, UNIX_EPOCH};

        use crate::session::request::{Created, Failure};
        use crate::{Error, Stat};

        pub(crate) fn failure(error: Error, _: (&'static str, &str), _: &str) -> Failure {
            Failure::Unknown(error.to_string())
        }

        pub(crate) fn created(path: String, stat: &Stat) -> Created {
            let ctime = UNIX_EPOCH + Duration::from_millis(1);
            Created { path, czxid: 1, ctime, ephemeral_owner: stat.ephemeral_owner }
        }
    }

    /// A session that consists only of a pipeline.
    pub(crate) mod driven {
        use std::sync::{Arc, Weak};

        use crate::Client;
        use crate::session::request::{Created, Ending, Failure, Reply};
        use crate::session::store::SessionStore;
        use crate::session::thread::BackgroundThread;
        use crate::zookeeper::pipeline::{Identity, Pipeline, Request};
        use crate::zookeeper::translate;

        pub(crate) struct Session {
            pipeline: Arc<Pipeline>,
            /// Whether the session closes its pipeline in the same call in which it learns that the server reports
            /// another session. The pipeline may make that call while its lock is held.
            is_rash: bool,
        }

        pub(crate) fn session(client: Client, is_rash: bool) -> (Arc<Session>, Arc<BackgroundThread>) {
            let (store, background) = (Arc::new(SessionStore), Arc::new(BackgroundThread::default()));
            let identity = Arc::new_cyclic(|this: &Weak<Identity>| {
                let this = Weak::clone(this);
                Identity::new(1, &store, move || this.upgrade().iter().for_each(|it| it.check_ended()))
            });
            let pipeline = Arc::new(Pipeline::new(client, &store, &background, identity, String::new()));
            (Arc::new(Session { pipeline, is_rash }), background)
        }

        impl Session {
            pub(crate) fn close(&self) {
                self.pipeline.close();
            }

            pub(crate) fn remove(&self, path: &str) -> Reply<()> {
                let path = path.to_owned();
                self.pipeline.send(Request::Removal, move |client| async move {
                    client.delete(&path, None).await.map_err(|error| translate::failure(error, ("", ""), ""))
                })
            }

            pub(crate) fn read(&self, path: &str) -> Reply<()> {
                let path = path.to_owned();
                self.pipeline.send(Request::Read, move |client| async move {
                    client.get_data(&path).await.map(drop).map_err(|error| translate::failure(error, ("", ""), ""))
                })
            }

            pub(crate) fn create(&self, path: &str) -> Reply<Created> {
                let identity = Arc::clone(&self.pipeline.identity);
                let connection = 0;
                let (pipeline, is_rash, path) = (Arc::downgrade(&self.pipeline), self.is_rash, path.to_owned());
                self.pipeline.send(Request::Write, move |client| async move {
                    let stat = client.create(&path).await.map_err(|error| translate::failure(error, ("", ""), ""))?;
                    if identity.confirm_by_create(stat.ephemeral_owner, connection) {
                        return Ok(translate::created(path, &stat));
                    }
                    match pipeline.upgrade() {
                        Some(pipeline) if is_rash => pipeline.close(),
                        pipeline => {
                            drop(shuttle::future::spawn(async move { pipeline.iter().for_each(|it| it.close()) }))
                        }
                    }
                    Err(Failure::Over(Ending::Replaced))
                })
            }
        }
    }
}

/// Runs two threads that delete, create and read, and a thread that closes the session. If `is_replaced`, the server
/// reports another session.
fn a_session_is_used_and_closed(is_replaced: bool, is_rash: bool) {
    let log = Arc::new(Mutex::new(ServerLog::default()));
    // The session is closed before or after the threads end. A request that is never answered must end with the close,
    // and must not keep the session alive.
    let is_closed_early = draw(2) == 0;
    let client = Client {
        log: Arc::clone(&log),
        session: if is_replaced { 2 } else { 1 },
        ignores_one_in: is_closed_early.then_some(4),
    };
    let (session, background) = session(client, is_rash);
    let users: Vec<_> = ["a", "b"]
        .map(|name| {
            let session = Arc::clone(&session);
            thread::spawn(move || uses(&session, name))
        })
        .into();
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
    let answers = [Some(block_on(removed)), read.map(block_on), created.map(|it| block_on(it).map(drop))];
    let failures: Vec<_> = answers.into_iter().flatten().filter_map(Result::err).collect();
    // A request may fail only because the session was closed. If the send of a request panicked, the pipeline would
    // report a malformed answer, and this assertion fails.
    let is_closed =
        |it: &Failure| matches!(it, Failure::Over(_)) || it.to_string().ends_with("closed before the answer came");
    assert!(failures.iter().all(is_closed), "{failures:?}");
    failures.is_empty()
}

#[test]
fn every_request_is_sent_in_order_and_answered() {
    explore::explore(2_000, || a_session_is_used_and_closed(false, false));
}

#[test]
fn a_reply_for_another_session_hangs_no_thread() {
    explore::explore(2_000, || a_session_is_used_and_closed(true, false));
}

/// Plants a former fault again: the session closes its pipeline during a send, while the pipeline's lock is held. The
/// test must find the fault.
#[test]
#[should_panic = "is malformed"]
fn a_close_of_the_pipeline_during_a_send_is_found() {
    explore::explore(2_000, || a_session_is_used_and_closed(true, true));
}
