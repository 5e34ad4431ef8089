//! One hold, from its ticket to its end: what can be done with it, whom it keeps out, how long it may last, and how it is lost.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use crate::contend::changes::OneHold;
use crate::contend::removal::remove;
use crate::contend::ticket::Ticket;
use crate::error::error::Error;
use crate::observe::trace::Holding;
use crate::queue::contender::Contender;
use crate::queue::mode::Mode;
use crate::queue::permits::{self, PERMITS, Room};
use crate::queue::{metadata, turn};
use crate::session::contract::{Coordinator, Session};
use crate::session::follow;
use crate::session::lease::Moment;
use crate::session::leaving::Leaving;
use crate::session::node::{LimitEnd, OwnNode};
use crate::session::presence::{self, SecondLook, check};
use crate::session::request::{Failure, HoldState, Loss, Operation, Reply, Stat};
use crate::session::retry::{self, slept};
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

/// One use of a kept node that may last only so long. It ends when this is dropped.
pub(crate) struct LimitedUse {
    own_node: Arc<OwnNode>,
    end: LimitEnd,
}

impl Drop for LimitedUse {
    fn drop(&mut self) {
        self.own_node.limits().ended(self.end);
    }
}

impl Tenure {
    /// From now on no hold by this node may last longer. The session's thread gives the node up, whatever its owner does.
    pub(crate) fn limit(&self, longest: Duration) {
        let (own_node, session) = self.node_and_session();
        own_node.limits().set(longest);
        let by = Arc::clone(&session);
        by.spawn(Box::pin(give_up_in_time(own_node, session)));
    }

    /// A use begins. `None` if it may last for ever.
    pub(crate) fn limited_use(&self) -> Option<LimitedUse> {
        let end = self.own_node().limits().begins(self.now())?;
        Some(LimitedUse { own_node: Arc::clone(self.own_node()), end })
    }

    /// The only hold by this node begins.
    pub(crate) fn hold_begins(&self) {
        let _until_the_node_is_gone = self.own_node().limits().begins(self.now());
    }
}

/// Gives the node up once it was held for too long, and its holder has had the time to stop. The node's owner may be
/// faster. A node that was lost by its lease stands as well, if its session lives on.
async fn give_up_in_time(own_node: Arc<OwnNode>, session: Arc<dyn Session>) {
    if matches!(own_node.lost(&session).await, Loss::SessionOver(_) | Loss::GivenBack | Loss::Removed) {
        return;
    }
    let slice = session.timeout() / 20;
    while let Some(left) = own_node.given_up_in().filter(|left| !left.is_zero() && !own_node.has_left()) {
        // In slices, because timers stand still while the machine is suspended.
        if !slept(&session, left.min(slice)).await {
            return;
        }
    }
    while !own_node.has_left() {
        let path = own_node.path();
        _ = remove(&session, &own_node, Leaving::delete(path.clone()), None).await;
        // Unless a downgrade is under way, which gives the node another name.
        if own_node.standing().as_ref() == Some(&path) || !slept(&session, slice).await {
            return;
        }
    }
}

/// A holder that waits for contention looks at the queue no more often than this.
const LOOK_PAUSE: Duration = Duration::from_millis(20);

impl Tenure {
    /// Waits until a contender waits that this hold keeps out, and gives the first one.
    pub(crate) async fn contended(&self) -> Result<Contender, Error> {
        self.run(self.somebody_waits()).await?
    }

    async fn somebody_waits(&self) -> Result<Contender, Error> {
        let (mut before, mut pause) = (None, LOOK_PAUSE);
        loop {
            let first = self.somebody_kept_out().await?;
            if !self.is_of_semaphore() || self.finds_too_few(&first).await? {
                return Ok(first);
            }
            // It is about to take permits that are free, unless its process stands still.
            let session = self.ticket().session();
            let first = Some(first.name().to_owned());
            pause = if before == first { (2 * pause).min(session.timeout()) } else { LOOK_PAUSE };
            before = first;
            session.sleep(pause).await;
        }
    }

    /// Its queue is that of a semaphore, whose own directory is above it.
    fn is_of_semaphore(&self) -> bool {
        self.directory() != &**self.ticket().directory()
    }

    async fn somebody_kept_out(&self) -> Result<Contender, Error> {
        let (session, directory) = (self.ticket().session(), self.ticket().directory());
        let (mut last_change, mut look) = (None::<Moment>, SecondLook::new(session));
        loop {
            let (names, mut change) = match retry::until_known(session, || session.watch_children(directory)).await {
                Ok(seen) => seen,
                // An empty queue of a semaphore is removed by the servers, and made anew by the next who comes.
                Err(Failure::NoNode) if self.is_of_semaphore() => match follow::possible(session, directory).await {
                    Ok(()) => continue,
                    Err(_) => return std::future::pending().await,
                },
                Err(failure) => return Err(self.lost_by(failure, "watch")),
            };
            let there = session.upkeep().ghosts().without(directory, &names, Mode::Write);
            let first = match self.is_of_semaphore() {
                true => turn::first_in_queue(&self.contender(), &there),
                false => turn::first_kept_out(&self.contender(), &there),
            };
            drop(there);
            if let Some(first) = first {
                return Ok(first);
            }
            // A long listing would take memory for as long as the watch is out.
            drop(names);
            // The event may have been lost. If the session is over, `lost` says what that means for the hold.
            if look.hears(&mut change).await.is_err() {
                return std::future::pending().await;
            }
            // Readers may come and go by the thousand: pause between two listings.
            let since = last_change.map(|last| self.now().saturating_sub(last));
            if let Some(rest) = since.and_then(|since| LOOK_PAUSE.checked_sub(since)) {
                session.sleep(rest).await;
            }
            last_change = Some(self.now());
        }
    }

    /// Whether there are too few permits for this contender, which is the first in the queue.
    async fn finds_too_few(&self, first: &Contender) -> Result<bool, Error> {
        let (session, queue) = (self.ticket().session(), self.ticket().directory());
        let Some((semaphore, _)) = queue.rsplit_once('/') else { return Ok(true) };
        let (node, taken) = (format!("{queue}/{}", first.name()), format!("{semaphore}/{PERMITS}"));
        let read = || async {
            // All are on their way before one is answered.
            let (node, number, names) = (session.data(&node), session.data(semaphore), session.children(&taken));
            let wanted = match node.await {
                Err(failure @ (Failure::Unknown(_) | Failure::Over(_))) => return Err(failure),
                answer => answer.map(|(data, _)| metadata::read(&data).permits),
            };
            Ok((wanted, number.await?.0, names.await?))
        };
        let (wanted, number, names) =
            retry::until_known(session, read).await.map_err(|failure| self.lost_by(failure, "read"))?;
        let wanted = match wanted {
            // It took its permits, or gave up.
            Err(Failure::NoNode) => return Ok(false),
            Err(_) => None,
            Ok(wanted) => wanted,
        };
        let number = permits::decode(&number).ok().flatten();
        let room = wanted.zip(number).map(|(wanted, number)| permits::room(number, &names, wanted));
        Ok(room != Some(Ok(Room::Enough)))
    }
}
