//! One hold, from its ticket to its end: what can be done with it, and how it is lost.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use crate::contend::changes::OneHold;
use crate::contend::ticket::Ticket;
use crate::error::error::Error;
use crate::observe::trace::Holding;
use crate::queue::contender::Contender;
use crate::session::contract::Coordinator;
use crate::session::lease::Moment;
use crate::session::loss::{HoldState, Loss};
use crate::session::node::OwnNode;
use crate::session::presence::{self, SecondLook, check};
use crate::session::request::{Failure, Operation, Reply, Stat};
use crate::session::retry;
use crate::sync::Mutex;
use crate::validation;

/// A ticket, and what belongs to it once it is granted. The ticket is given back when the hold is dropped.
pub(crate) struct Tenure {
    /// Dropped first: the hold ends before its node does.
    holding: Mutex<Holding>,
    ticket: Ticket,
    /// The directory of the lock, or of the semaphore.
    directory: Arc<str>,
    data: Vec<u8>,
    /// Keeps the coordinator alive: its last user closes the sessions, and that may be a hold.
    _coordinator: Arc<dyn Coordinator>,
}

impl Tenure {
    /// It is boxed, because several futures pass it on, and each would keep room for all of it.
    pub(crate) fn new(
        ticket: Ticket,
        directory: &Arc<str>,
        coordinator: &Arc<dyn Coordinator>,
        data: Vec<u8>,
    ) -> Box<Tenure> {
        let (directory, _coordinator) = (Arc::clone(directory), Arc::clone(coordinator));
        Box::new(Tenure { holding: Mutex::default(), ticket, directory, data, _coordinator })
    }

    /// The lock was granted. `holding` ends with the hold.
    pub(crate) fn granted(&self, holding: Holding) {
        *self.holding.lock() = holding;
    }

    pub(crate) fn ticket(&self) -> &Ticket {
        &self.ticket
    }

    pub(crate) fn contender(&self) -> Arc<Contender> {
        self.own_node().contender()
    }

    pub(crate) fn own_node(&self) -> &Arc<OwnNode> {
        self.ticket.node()
    }

    /// The present moment, on the clock of the hold's session.
    pub(crate) fn now(&self) -> Moment {
        self.ticket.session().lease().now()
    }

    /// Why the lock is not held any more, if it is not. Somebody else may have given it back: the end of a leader's term
    /// does.
    pub(crate) fn loss(&self) -> Option<Loss> {
        self.own_node().loss()
    }

    /// The present moment, if the lock is held; `None` if only [`Tenure::loss`] can tell.
    pub(crate) fn held_at(&self) -> Option<Moment> {
        self.own_node().held_at()
    }

    /// Waits until the lock is not held any more.
    pub(crate) async fn lost(&self) -> Loss {
        self.own_node().lost(self.ticket.session()).await
    }

    /// What its node says for people to read.
    pub(crate) fn note(&self) -> &[u8] {
        &self.data
    }

    /// The directory of the lock, or of the semaphore.
    pub(crate) fn directory(&self) -> &str {
        &self.directory
    }

    /// How sure it is that the lock is held.
    pub(crate) fn state(&self) -> HoldState {
        self.own_node().hold_state()
    }

    /// For how long the ensemble surely keeps the hold's session, and its node.
    pub(crate) fn session_left(&self) -> Duration {
        match self.own_node().has_left() {
            false => {
                let session_left = self.ticket.session().lease().session_left();
                self.own_node().given_up_in().map_or(session_left, |left| left.min(session_left))
            }
            true => Duration::ZERO,
        }
    }

    pub(crate) fn node_and_session(&self) -> OneHold {
        (Arc::clone(self.own_node()), Arc::clone(self.ticket.session()))
    }

    /// Waits until some of these checks fail at the leader, although nothing was heard of that. Returns their indices, or the
    /// loss if it is our own node that is gone.
    pub(crate) async fn misses(
        &self,
        look: &mut SecondLook<'_>,
        others: impl Fn() -> Vec<Operation>,
    ) -> Result<Vec<usize>, Loss> {
        loop {
            look.pause().await;
            let missed = self.failing(others()).await?;
            if !missed.is_empty() {
                return Ok(missed);
            }
        }
    }

    /// The indices of those of these checks that fail at the leader, or the loss if our own node is gone as well.
    pub(crate) async fn failing(&self, others: Vec<Operation>) -> Result<Vec<usize>, Loss> {
        let checks = [vec![check(self.own_node().path(), None)], others].concat();
        let missed = presence::failing(self.ticket.session(), &checks).await;
        if missed.contains(&0) {
            self.own_node().lose(Loss::Removed);
            return Err(Loss::Removed);
        }
        Ok(missed.into_iter().map(|index| index - 1).collect())
    }

    pub(crate) async fn run<F: Future>(&self, work: F) -> Result<F::Output, Error> {
        while_held(|| self.loss(), self.lost(), work).await.map_err(Error::Lost)
    }

    pub(crate) async fn data(&self, path: &str) -> Result<Option<NodeData>, Error> {
        validation::check(path)?;
        match self.run(retry::data(self.ticket.session(), path, false)).await? {
            Ok(node) => Ok(node.map(NodeData::of)),
            Err(Failure::Over(ending)) => Err(Error::Lost(Loss::SessionOver(ending))),
            Err(failure) => Err(Error::from_failure(failure, "read", path)),
        }
    }

    /// Deletes the node. The request is on its way when this returns.
    pub(crate) fn leave(&self) -> Reply<()> {
        // The span ends here, however long the ensemble takes to answer, and also while the guard is still there.
        let holding = std::mem::take(&mut *self.holding.lock());
        drop(holding);
        self.ticket.leave()
    }

    /// Removes the node, and returns when it is surely gone.
    pub(crate) async fn give_back(&self) -> Result<(), Error> {
        let loss = self.loss();
        // The node is deleted even if the lock was lost: the session may still be alive, and contenders would wait for the
        // node.
        let answer = self.leave().await;
        match (loss, answer) {
            (Some(loss), _) => Err(Error::Lost(loss)),
            (None, Ok(())) => Ok(()),
            (None, Err(Failure::NoAuth(lacks))) => Err(Error::stays(self.own_node().path(), lacks)),
            (None, Err(failure)) => Err(self.lost_by(failure, "release")),
        }
    }

    pub(crate) async fn downgrade(&self) -> Result<(), Error> {
        self.change_to_read().await?;
        self.holding.lock().goes_on_as_read(&self.directory, self.own_node());
        Ok(())
    }

    /// Replaces the node by a READ node.
    pub(crate) async fn change_to_read(&self) -> Result<(), Error> {
        if let Some(loss) = self.loss() {
            return Err(Error::Lost(loss));
        }
        self.ticket.downgrade(&self.data).await.map_err(|failure| self.lost_by(failure, "downgrade"))
    }

    /// What a failed request about the own node means for its holder.
    pub(crate) fn lost_by(&self, failure: Failure, operation: &'static str) -> Error {
        match failure {
            Failure::NoNode => Error::Lost(Loss::Removed),
            Failure::Over(ending) => Error::Lost(Loss::SessionOver(ending)),
            Failure::Operation { failure, .. } => self.lost_by(*failure, operation),
            failure => Error::from_failure(failure, operation, &self.directory),
        }
    }
}

/// Polls `work` only while `loss` finds none, and gives its output only if there is none by then. `lost` wakes the caller.
///
/// A wake-up says nothing of the time that has passed: a process that was stopped may find an answer for its work before its
/// timers are due. So the clock is read before each poll of the work, and once more after its last.
pub(crate) async fn while_held<L, F: Future>(
    loss: impl Fn() -> Option<L>,
    lost: impl Future<Output = L>,
    work: F,
) -> Result<F::Output, L> {
    let (mut lost, mut work) = (pin!(lost), pin!(work));
    let until_lost = poll_fn(|context| {
        if let Some(loss) = loss() {
            return Poll::Ready(Err(loss));
        }
        if let Poll::Ready(loss) = lost.as_mut().poll(context) {
            return Poll::Ready(Err(loss));
        }
        work.as_mut().poll(context).map(|output| loss().map_or(Ok(output), Err))
    });
    until_lost.await
}

/// What a node holds, as [`Hold::data`](crate::Hold::data) reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeData {
    /// The node's data.
    pub data: Vec<u8>,
    /// How often the data was set. [`Transaction::set_version`](crate::Transaction::set_version) takes it.
    pub version: i32,
    pub(crate) czxid: i64,
}

impl NodeData {
    pub(crate) fn of((data, stat): (Vec<u8>, Stat)) -> NodeData {
        NodeData { data, version: stat.version, czxid: stat.czxid }
    }
}
