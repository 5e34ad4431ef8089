//! A client of the embedded ensemble whose requests and replies a test can hold up. Use it to let other clients act, or
//! to break the connection, while a request is sent but not carried out yet, or carried out but not answered yet.
//!
//! On a real network time passes between a request and its effect, and between the effect and the reply. The embedded
//! ensemble answers before the call returns, so this client adds those intervals. Requests of the session's background
//! task are not held up. That task watches and checks nodes, and its order among other requests does not matter.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::oneshot;
use zk_rwlock::Memory;
use zk_rwlock::coordinator::{
    Coordinator, Created, Failure, Kind, Operation, Outcome, Reply, Session, SessionSlot, SessionStore, Stat, Task,
    Watch,
};

/// A client whose requests can be held up.
#[derive(Clone, Debug)]
pub struct Wired {
    pub memory: Memory,
    wire: Arc<Wire>,
}

#[derive(Debug, Default)]
struct Wire(Mutex<State>);

#[derive(Default)]
struct State {
    is_stalled: bool,
    /// Replies of requests that were carried out, oldest first.
    answers: VecDeque<Answer>,
    /// Requests that were sent and not carried out yet, oldest first.
    requests: VecDeque<Request>,
    /// The number of requests sent so far.
    sent: usize,
}

/// A number of requests that no schedule reaches. At this number a test fails, because some code repeats a request for
/// ever.
const ENDLESS: usize = 20_000;

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").field("is_stalled", &self.is_stalled).finish_non_exhaustive()
    }
}

/// A function that carries the request out if its argument is true, and loses the request otherwise.
type Request = Box<dyn FnOnce(bool) -> Answer + Send>;

/// A function that delivers the reply to the client if its argument is true, and loses the reply otherwise.
type Answer = Box<dyn FnOnce(bool) + Send>;

impl State {
    fn holds_up(&self) -> bool {
        !self.answers.is_empty() || !self.requests.is_empty()
    }
}

impl Wire {
    fn send<T: Send + 'static>(&self, request: impl FnOnce() -> Reply<T> + Send + 'static) -> Reply<T> {
        let mut state = self.state();
        state.sent += 1;
        let sent = state.sent;
        if !state.is_stalled && !state.holds_up() {
            drop(state);
            // The assertion is skipped during a panic, because a second panic would abort the process before it prints its
            // seed.
            assert!(sent < ENDLESS || std::thread::panicking(), "a request is repeated for ever");
            return request();
        }
        let (tell, told) = oneshot::channel::<Reply<T>>();
        state.requests.push_back(Box::new(|is_carried_out| {
            let reply = is_carried_out.then(request);
            Box::new(|comes| {
                let lost = || Err(Failure::Unknown("the connection broke".to_owned()));
                let answer = reply.filter(|_| comes).unwrap_or_else(|| Box::pin(async move { lost() }));
                let _nobody_waits = tell.send(answer);
            })
        }));
        Box::pin(async move {
            match told.await {
                Ok(reply) => reply.await,
                Err(_) => Err(Failure::Unknown("the client was dropped".to_owned())),
            }
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wired {
    pub fn new(memory: Memory) -> Wired {
        Wired { memory, wire: Arc::default() }
    }

    /// Holds up all requests from now on.
    pub fn stall(&self) {
        self.wire.state().is_stalled = true;
    }

    /// Stops holding up requests. Those that are held up already must still be [delivered](Wired::deliver).
    pub fn flow(&self) {
        self.wire.state().is_stalled = false;
    }

    pub fn is_stalled(&self) -> bool {
        self.wire.state().is_stalled
    }

    /// Returns whether a request is held up, or its reply.
    pub fn has_requests(&self) -> bool {
        self.wire.state().holds_up()
    }

    /// Carries out the oldest request that is held up, and holds up its reply.
    pub fn carry_out(&self) {
        let oldest = self.wire.state().requests.pop_front();
        if let Some(answer) = oldest.map(|request| request(true)) {
            self.wire.state().answers.push_back(answer);
        }
    }

    /// Delivers the oldest reply that is held up, and carries out its request first if necessary. Returns whether there
    /// was a request.
    pub fn deliver(&self) -> bool {
        let answer = self.wire.state().answers.pop_front();
        if let Some(answer) = answer {
            answer(true);
            return true;
        }
        let request = self.wire.state().requests.pop_front();
        request.map(|request| request(true)(true)).is_some()
    }

    /// Cuts the connection. The first `carried_out` of the requests that are held up are carried out, and the rest are
    /// lost. All replies are lost.
    pub fn cut(&self, carried_out: usize) {
        let (mut answers, requests) = {
            let mut state = self.wire.state();
            (std::mem::take(&mut state.answers), std::mem::take(&mut state.requests))
        };
        answers.extend(requests.into_iter().enumerate().map(|(i, request)| request(i < carried_out)));
        // The client learns of the cut before it learns that the replies are lost.
        self.memory.faults().cut();
        answers.into_iter().for_each(|answer| answer(false));
    }
}

#[async_trait]
impl Coordinator for Wired {
    async fn session_slot(&self, own_bytes: usize) -> Result<SessionSlot, Failure> {
        let slot = self.memory.session_slot(own_bytes).await?;
        let (session, wire) = (Arc::clone(slot.session()), Arc::clone(&self.wire));
        Ok(SessionSlot::new(Arc::new(WiredSession { session, wire })))
    }

    async fn close(&self) {
        Coordinator::close(&self.memory).await;
    }

    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        self.memory.sleep(duration)
    }
}

#[derive(Debug)]
struct WiredSession {
    session: Arc<dyn Session>,
    wire: Arc<Wire>,
}

impl WiredSession {
    fn send<T: Send + 'static>(&self, request: impl FnOnce(&dyn Session) -> Reply<T> + Send + 'static) -> Reply<T> {
        let session = Arc::clone(&self.session);
        self.wire.send(move || request(&*session))
    }
}

impl Session for WiredSession {
    fn id(&self) -> i64 {
        self.session.id()
    }

    fn timeout(&self) -> Duration {
        self.session.timeout()
    }

    fn store(&self) -> &Arc<SessionStore> {
        self.session.store()
    }

    fn create(&self, path: &str, data: &[u8], kind: Kind) -> Reply<Created> {
        let (path, data) = (path.to_owned(), data.to_vec());
        self.send(move |session| session.create(&path, &data, kind))
    }

    fn delete(&self, path: &str) -> Reply<()> {
        let path = path.to_owned();
        self.send(move |session| session.delete(&path))
    }

    fn children_and_stat(&self, path: &str) -> Reply<(Vec<String>, Option<Stat>)> {
        let path = path.to_owned();
        self.send(move |session| session.children_and_stat(&path))
    }

    fn data(&self, path: &str) -> Reply<(Vec<u8>, Stat)> {
        let path = path.to_owned();
        self.send(move |session| session.data(&path))
    }

    fn watch(&self, path: &str) -> Reply<Watch> {
        let path = path.to_owned();
        self.send(move |session| session.watch(&path))
    }

    fn watch_children(&self, path: &str) -> Reply<(Vec<String>, Watch)> {
        let path = path.to_owned();
        self.send(move |session| session.watch_children(&path))
    }

    fn sync(&self, path: &str) -> Reply<()> {
        let path = path.to_owned();
        self.send(move |session| session.sync(&path))
    }

    fn transact(&self, operations: &[Operation]) -> Reply<Vec<Outcome>> {
        let operations = operations.to_vec();
        self.send(move |session| session.transact(&operations))
    }

    fn leave_server(&self, connection: u64, node: &str) -> Reply<bool> {
        let node = node.to_owned();
        self.send(move |session| session.leave_server(connection, &node))
    }

    fn spawn(&self, task: Task) {
        self.session.spawn(task);
    }

    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        self.session.sleep(duration)
    }
}
