//! How one session's requests go out, and in which order; owns the client, and knows neither the session nor locks.
//!
//! A removal is held back until the background thread comes to it, some microseconds later, or until the next request,
//! whichever is first. If that request creates a node in the same directory, as when a task drops a lock and asks for
//! it again, both go out as one transaction: one round trip and one commit for the two.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, SystemTime};

use pin_project_lite::pin_project;
use tokio::sync::oneshot;
use zookeeper_client as zk;

use crate::session::request::{Created, Ending, Failure, Kind, Operation, Outcome, Reply, parent};
use crate::session::thread::BackgroundThread;
use crate::session::upkeep::Upkeep;
use crate::sync::{Mutex, MutexGuard, watch};
use crate::zookeeper::identity::{Identity, Owner};
use crate::zookeeper::security::Acl;
use crate::zookeeper::translate::{self, commit, failure, outcome};

/// The requests of one session.
pub(super) struct Pipeline {
    line: Mutex<Line>,
    upkeep: Arc<Upkeep>,
    background: Arc<BackgroundThread>,
    identity: Arc<Identity>,
    acl: Acl,
    /// As whom the client is authenticated.
    pub(super) whom: Arc<str>,
    /// Whether the session is closed. It takes our nodes along, so a removal under way needs no answer any more, and must
    /// not put the closing off by a round trip: its reply holds the client.
    closed: watch::Sender<bool>,
    /// How long the other requests under way may put the closing off.
    patience: Duration,
    this: Weak<Pipeline>,
}

/// Locked while a request is sent, so that a held-back removal goes out before it.
struct Line {
    /// Taken when the session is closed: dropping the last clone closes it.
    client: Option<Arc<zk::Client>>,
    held_back: Option<HeldBack>,
    /// Whether a create may go out together with a held-back removal.
    joins: bool,
}

/// A removal that was not sent yet, and the channel for its answer.
struct HeldBack {
    removal: Removal,
    answer: Answer,
}

type Answer = oneshot::Sender<Result<Vec<Outcome>, Failure>>;

/// Operations that delete one node, and touch no other.
pub(super) struct Removal {
    path: String,
    operations: Vec<Operation>,
    /// Sent as a transaction, whose failure names the operation. Otherwise as a plain delete.
    is_transaction: bool,
}

impl Line {
    fn hold_back(&mut self, removal: Removal) -> oneshot::Receiver<Result<Vec<Outcome>, Failure>> {
        let (answer, answered) = oneshot::channel();
        self.held_back = Some(HeldBack { removal, answer });
        answered
    }
}

impl Removal {
    pub(super) fn delete(path: &str) -> Removal {
        let operations = vec![Operation::Delete { path: path.to_owned(), version: None }];
        Removal { path: path.to_owned(), operations, is_transaction: false }
    }

    /// The transaction as a removal, if it is nothing else.
    pub(super) fn of(operations: &[Operation]) -> Option<Removal> {
        let Some(Operation::Delete { path, .. }) = operations.last() else { return None };
        let is_of_it = |operation: &Operation| match operation {
            Operation::Set { path: other, .. } | Operation::Delete { path: other, .. } => other == path,
            _ => false,
        };
        let is_one = operations.iter().all(is_of_it);
        is_one.then(|| Removal { path: path.clone(), operations: operations.to_vec(), is_transaction: true })
    }

    fn is_beside(&self, path: &str) -> bool {
        parent(&self.path) == parent(path)
    }
}

impl HeldBack {
    /// Answers the removal. The create is the last of `results`: gives the create's part.
    fn done_with_create(self, mut results: Vec<zk::MultiWriteResult>) -> InTransaction {
        let created = results.pop();
        let set = results.iter().find_map(|result| match result {
            zk::MultiWriteResult::SetData { stat } => Some((stat.mzxid, translate::time(stat.mtime))),
            _ => None,
        });
        let _nobody_waits = self.answer.send(Ok(results.into_iter().map(outcome).collect()));
        InTransaction { created, at: set }
    }

    fn failed(self, failure: Failure) {
        let _nobody_waits = self.answer.send(Err(failure));
    }
}

/// The two failures when the transaction with a removal and a create has failed.
#[derive(Debug, PartialEq, Eq)]
struct Parted {
    /// Why the removal failed. `None` if the create failed.
    removal: Option<Failure>,
    create: Failure,
    /// False if these servers refuse such transactions. Then no further create joins a removal.
    joins: bool,
}

impl Removal {
    /// Splits the failure between the removal and the create that was sent with it in one transaction. If one of the
    /// two was refused, the other was surely not carried out.
    fn parted(&self, failure: Failure) -> Parted {
        let (removal, create, joins) = match failure {
            Failure::Unknown(_) | Failure::Over(_) => (Some(failure.clone()), failure, true),
            Failure::Operation { index, failure } if index >= self.operations.len() => (None, *failure, true),
            Failure::Operation { failure, .. } if !self.is_transaction => (Some(*failure), Failure::NotTried, true),
            Failure::Operation { .. } => (Some(failure), Failure::NotTried, true),
            _ => (None, Failure::NotTried, false),
        };
        Parted { removal, create, joins }
    }
}

/// A node that was created in a transaction.
struct InTransaction {
    created: Option<zk::MultiWriteResult>,
    /// The number of the transaction, and its time, if the answer shows them.
    at: Option<(i64, SystemTime)>,
}

impl InTransaction {
    /// Servers before 3.7.2, 3.8.2 and 3.9.0 return only the node's path (ZOOKEEPER-4026). Its number and its time
    /// are then the transaction's. Its owner is this session, unless the server may have replaced the session: then we look at the
    /// node.
    async fn looked_up(self, client: &zk::Client, owner: &Owner) -> Result<Created, Failure> {
        let Some(zk::MultiWriteResult::Create { path, mut stat }) = self.created else {
            return Err(Failure::Unknown("the answer to a transaction is short of its last part".to_owned()));
        };
        if stat.is_invalid() {
            if let Some((czxid, ctime)) = self.at.filter(|_| owner.is_known()) {
                return owner.created(Created { path, czxid, ctime, ephemeral_owner: owner.session() });
            }
            // The node was removed again, or this server does not show it: the caller will look for it.
            let unseen = |error: zk::Error| Failure::Unknown(error.to_string());
            stat = client.get_data(&path).await.map_err(unseen)?.1;
        }
        owner.created(translate::created(path, &stat))
    }
}

/// A request after its first poll, in which the client sends it.
enum Sent<T> {
    Answered(Result<T, Failure>),
    UnderWay(Reply<T>),
}

impl<T> Sent<T> {
    async fn answer(self) -> Result<T, Failure> {
        match self {
            Sent::Answered(answer) => answer,
            Sent::UnderWay(reply) => reply.await,
        }
    }
}

impl Pipeline {
    pub(super) fn new(
        client: zk::Client,
        upkeep: &Arc<Upkeep>,
        background: &Arc<BackgroundThread>,
        identity: &Arc<Identity>,
        (acl, whom): (Acl, String),
        patience: Duration,
    ) -> Arc<Pipeline> {
        Arc::new_cyclic(|this| Pipeline {
            line: Mutex::new(Line { client: Some(Arc::new(client)), held_back: None, joins: true }),
            upkeep: Arc::clone(upkeep),
            background: Arc::clone(background),
            identity: Arc::clone(identity),
            acl,
            whom: whom.into(),
            closed: watch::Sender::new(false),
            patience,
            this: Weak::clone(this),
        })
    }

    /// What follows from an error of a request that needs this right on this node.
    pub(super) fn failure(&self, right: &'static str, node: &str) -> impl FnOnce(zk::Error) -> Failure + Send + use<> {
        let (node, whom) = (node.to_owned(), Arc::clone(&self.whom));
        move |error| failure(error, (right, &node), &whom)
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock()
    }

    pub(super) fn client(&self) -> Result<Arc<zk::Client>, Failure> {
        self.line().client.clone().ok_or_else(|| self.no_client())
    }

    fn no_client(&self) -> Failure {
        Failure::Over(self.upkeep.lease().over().unwrap_or(Ending::Closed))
    }

    /// Drops the client, which closes the session right behind the removals that are under way, and once the other
    /// requests are answered. Those that are not answered in time are given up.
    pub(super) fn close(&self) {
        let mut line = self.line();
        self.send_held_back(&mut line);
        self.closed.send_replace(true);
        let client = line.client.take();
        drop(line);
        drop(client);
    }

    /// Sends at once. Reports to the lease when a quorum has answered.
    pub(super) fn write<T, F>(&self, send: impl FnOnce(Arc<zk::Client>) -> F) -> Reply<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Failure>> + Send + 'static,
    {
        self.ask(|client| self.counted(send(client)))
    }

    /// Sends at once. Reports to the lease when a server has answered.
    pub(super) fn read<T, F>(&self, send: impl FnOnce(Arc<zk::Client>) -> F) -> Reply<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Failure>> + Send + 'static,
    {
        let upkeep = Arc::clone(&self.upkeep);
        self.ask(|client| {
            let (sent, answer) = (upkeep.lease().now(), send(client));
            async move {
                let answer = answer.await;
                if is_from_server(&answer) {
                    upkeep.answered(sent);
                }
                answer
            }
        })
    }

    /// Sends at once, right behind a held-back removal.
    fn ask<T, F>(&self, send: impl FnOnce(Arc<zk::Client>) -> F) -> Reply<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Failure>> + Send + 'static,
    {
        let mut line = self.line();
        self.send_held_back(&mut line);
        let sent = self.send(&line, send);
        drop(line);
        match sent {
            Sent::Answered(answer) => Box::pin(std::future::ready(answer)),
            // The reply holds the client, which keeps the session open. So a task waits for it, because the caller may
            // never poll it.
            Sent::UnderWay(reply) => told(self.background.handle().spawn(answered_or(reply, self.given_up()))),
        }
    }

    /// When what is not answered is given up, and as what: long after the session was closed. A server that answers pings
    /// and not a request would keep the session, and what it holds, for as long as this process lives.
    fn given_up(&self) -> impl Future<Output = Failure> + Send + use<> {
        let mut closed = self.closed.subscribe();
        let (background, patience) = (Arc::downgrade(&self.background), self.patience);
        async move {
            drop(closed.wait_for(|closed| *closed).await);
            if let Some(background) = background.upgrade() {
                background.sleep(patience).await;
            }
            unanswered()
        }
    }

    fn send<T, F>(&self, line: &Line, send: impl FnOnce(Arc<zk::Client>) -> F) -> Sent<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Failure>> + Send + 'static,
    {
        let Some(client) = &line.client else {
            return Sent::Answered(Err(self.no_client()));
        };
        let mut reply: Reply<T> = Box::pin(Survived { request: send(Arc::clone(client)) });
        match reply.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(answer) => Sent::Answered(answer),
            Poll::Pending => Sent::UnderWay(reply),
        }
    }

    /// The same answer, reported to the lease if it came from a quorum.
    fn counted<T, F>(&self, answer: F) -> impl Future<Output = Result<T, Failure>> + Send + use<T, F>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Failure>> + Send + 'static,
    {
        let (upkeep, identity) = (Arc::clone(&self.upkeep), Arc::clone(&self.identity));
        let sent = upkeep.lease().now();
        async move {
            let answer = answer.await;
            if is_from_quorum(&answer) {
                if identity.is_known() {
                    upkeep.resumed();
                    upkeep.acknowledged(sent);
                } else {
                    identity.ask();
                }
            }
            answer
        }
    }

    /// Sends a removal as soon as the background thread comes to it, or with or before the next request.
    pub(super) fn remove(&self, removal: Removal) -> Reply<Vec<Outcome>> {
        let mut line = self.line();
        self.send_held_back(&mut line);
        let answered = line.hold_back(removal);
        drop(line);
        let pipeline = self.this.upgrade();
        self.background.handle().spawn(async move {
            let answering = pipeline.and_then(|pipeline| pipeline.held_back_sent(&mut pipeline.line()));
            if let Some(answering) = answering {
                answering.await;
            }
        });
        told(answered)
    }

    fn send_held_back(&self, line: &mut Line) {
        if let Some(answering) = self.held_back_sent(line) {
            self.background.handle().spawn(answering);
        }
    }

    /// Sends the held-back removal. The future ends when it is answered.
    fn held_back_sent(&self, line: &mut Line) -> Option<impl Future<Output = ()> + Send + use<>> {
        let held_back = line.held_back.take()?;
        Some(self.removed(line, held_back))
    }

    fn removed(&self, line: &Line, HeldBack { removal, answer }: HeldBack) -> impl Future<Output = ()> + Send + use<> {
        let (acl, whom) = (self.acl.clone(), Arc::clone(&self.whom));
        let sent = self.send(line, |client| {
            self.counted(async move {
                if removal.is_transaction {
                    let results = commit(&client, &removal.operations, &acl, &whom).await?;
                    return Ok(results.into_iter().map(outcome).collect());
                }
                let refused = |error| failure(error, ("DELETE", parent(&removal.path)), &whom);
                client.delete(&removal.path, None).await.map_err(refused)?;
                Ok(vec![Outcome::Deleted])
            })
        });
        let mut closed = self.closed.subscribe();
        async move {
            let answered = tokio::select! {
                biased;
                answered = sent.answer() => answered,
                // What it gives locks the value: whoever closes the session would wait for what is done here.
                () = async { drop(closed.wait_for(|closed| *closed).await) } => Err(unanswered()),
            };
            let _nobody_waits = answer.send(answered);
        }
    }

    /// Sends a removal alone that was not carried out, because the create in its transaction was refused.
    fn remove_alone(&self, held_back: HeldBack, joins: bool) {
        let mut line = self.line();
        line.joins &= joins;
        let removed = self.removed(&line, held_back);
        self.background.handle().spawn(removed);
    }

    /// Sends the create of a sequential node in one transaction with the held-back removal, if there is one in the same
    /// directory.
    pub(super) fn create_with_removal(&self, path: &str, data: &[u8]) -> Option<Reply<Created>> {
        let mut line = self.line();
        let joins = line.joins;
        let held_back = line.held_back.take_if(|it| joins && it.removal.is_beside(path))?;
        let mut operations = held_back.removal.operations.clone();
        let kind = Kind::EphemeralSequential;
        operations.push(Operation::Create { path: path.to_owned(), data: data.to_vec(), kind });
        let (owner, acl, whom) = (self.identity.owner(), self.acl.clone(), Arc::clone(&self.whom));
        let sent = self.send(&line, |client| {
            self.counted(async move {
                let results = commit(&client, &operations, &acl, &whom).await?;
                Ok((client, results))
            })
        });
        drop(line);
        let (answer, answered) = oneshot::channel();
        let this = Weak::clone(&self.this);
        let given_up = self.given_up();
        self.background.handle().spawn(async move {
            let mut given_up = pin!(given_up);
            let created = match answered_or(sent.answer(), &mut given_up).await {
                Ok((client, results)) => {
                    let created = held_back.done_with_create(results);
                    // Yields, so that the caller of the removal hears first, as if the removal had been sent first.
                    tokio::task::yield_now().await;
                    answered_or(created.looked_up(&client, &owner), given_up).await
                }
                Err(failure) => {
                    let Parted { removal, create, joins } = held_back.removal.parted(failure);
                    match (removal, this.upgrade()) {
                        (None, Some(pipeline)) => pipeline.remove_alone(held_back, joins),
                        (removal, _) => held_back.failed(removal.unwrap_or(Failure::Over(Ending::Closed))),
                    }
                    // Yields, so that a caller that removes the node in another way does so before the next create.
                    tokio::task::yield_now().await;
                    Err(create)
                }
            };
            let _nobody_waits = answer.send(created);
        });
        Some(told(answered))
    }
}

/// The answer, unless it is given up before.
async fn answered_or<T>(
    answer: impl Future<Output = Result<T, Failure>>,
    given_up: impl Future<Output = Failure>,
) -> Result<T, Failure> {
    tokio::select! {
        biased;
        answer = answer => answer,
        failure = given_up => Err(failure),
    }
}

/// A request was sent, and the session was closed before the answer came: it may have been carried out.
fn unanswered() -> Failure {
    Failure::Unknown("the session was closed before the answer came".to_owned())
}

/// The answer of a task of the background thread. Unknown if the task ended early.
fn told<T, E>(answered: impl Future<Output = Result<Result<T, Failure>, E>> + Send + 'static) -> Reply<T>
where
    T: Send + 'static,
    E: std::fmt::Display + Send + 'static,
{
    Box::pin(async move { answered.await.unwrap_or_else(|gone| Err(Failure::Unknown(gone.to_string()))) })
}

/// Whether the answer surely came from a server.
fn is_from_server<T>(answer: &Result<T, Failure>) -> bool {
    matches!(answer, Ok(_) | Err(Failure::NoNode | Failure::NoAuth(_)))
}

/// Whether the answer went through the quorum. Only that proves that the session was alive.
fn is_from_quorum<T>(answer: &Result<T, Failure>) -> bool {
    match answer {
        Ok(_) => true,
        // The quorum commits a failed transaction too, as an error. But a request that the client refuses was never
        // sent.
        Err(Failure::Operation { failure, .. }) => !matches!(**failure, Failure::Refused(_) | Failure::InvalidAcl),
        Err(_) => false,
    }
}

pin_project! {
    /// A request of the client crate, which panics over some answers that are too short. The request may have been
    /// done.
    struct Survived<F> {
        #[pin]
        request: F,
    }
}

impl<T, F: Future<Output = Result<T, Failure>>> Future for Survived<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let request = self.project().request;
        catch_unwind(AssertUnwindSafe(|| request.poll(context)))
            .unwrap_or_else(|_| Poll::Ready(Err(Failure::Unknown("the answer makes no sense".to_owned()))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(path: &str) -> Operation {
        Operation::Set { path: path.to_owned(), data: Vec::new(), version: None }
    }

    fn delete(path: &str) -> Operation {
        Operation::Delete { path: path.to_owned(), version: None }
    }

    fn failure_of(index: usize, failure: Failure) -> Failure {
        Failure::Operation { index, failure: Box::new(failure) }
    }

    #[test]
    fn only_what_the_quorum_has_committed_proves_that_the_session_was_alive() {
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

    #[test]
    fn a_transaction_is_a_removal_if_it_touches_only_the_node_it_deletes() {
        assert!(
            Removal::of(&[set("/a/b"), delete("/a/b")]).is_some_and(|it| it.is_beside("/a/c") && !it.is_beside("/b/c"))
        );
        assert!(Removal::of(&[delete("/a/b")]).is_some_and(|it| it.is_transaction));
        assert!(Removal::of(&[set("/a/c"), delete("/a/b")]).is_none());
        assert!(Removal::of(&[delete("/a/b"), set("/a/b")]).is_none());
        let check = Operation::Check { path: "/a/b".to_owned(), version: None };
        assert!(Removal::of(&[check, delete("/a/b")]).is_none());
        assert!(Removal::of(&[]).is_none());
    }

    #[test]
    fn what_was_refused_because_of_the_other_is_known_as_not_carried_out() {
        let parted = |removal: &Removal, failure| {
            let Parted { removal, create, joins } = removal.parted(failure);
            (removal, create, joins)
        };
        let plain = Removal::delete("/a/b");
        assert_eq!(parted(&plain, failure_of(0, Failure::NoNode)), (Some(Failure::NoNode), Failure::NotTried, true));

        let hand_off = Removal::of(&[set("/a/b"), delete("/a/b")]).unwrap();
        let unsignalled = failure_of(0, Failure::NoAuth(Box::default()));
        assert_eq!(parted(&hand_off, unsignalled.clone()), (Some(unsignalled), Failure::NotTried, true));
        let denied = Failure::NoAuth(Box::default());
        assert_eq!(parted(&hand_off, failure_of(2, denied.clone())), (None, denied, true));
        assert_eq!(parted(&hand_off, Failure::Refused("all".to_owned())), (None, Failure::NotTried, false));

        for both in [Failure::Unknown("cut".to_owned()), Failure::Over(Ending::Expired)] {
            assert_eq!(parted(&hand_off, both.clone()), (Some(both.clone()), both, true));
        }
    }
}
