//! One place in a queue, from asking for it until it is surely gone.
//!
//! ```text
//!                                     refused, or the answer is lost
//!            +----------------------------------------------------+
//!            v                                                    |
//! new --> Absent -- the node is asked for --> Coming -------------+
//!            |                                  |  |
//!            | found again, after the           |  | dropped: the node is removed once it is there
//!            | answer was lost                  |  +----------------------------------+
//!            |                                  | created                             v
//!            +-----------------------------> Standing -- released, or dropped --> Left
//!                                             |    ^
//!                                             +----+
//!                                   downgraded: another node, of the same number;
//!                                   exchanged: another node, outside the queue
//! ```
//!
//! `Standing` does not say that the lock is held. What a node is for, and whether it was lost, is in `session/node.rs`.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use crate::contend::directory;
use crate::contend::removal::{Leaving, hand_off, remove, remove_all_of, remove_when_created, removed_in_background};
use crate::queue::contender::{Contender, Owner};
use crate::queue::mode::{self, Mode};
use crate::session::contract::{Session, SessionSlot};
use crate::session::lease::Moment;
use crate::session::listing;
use crate::session::listings::Names;
use crate::session::loss::Loss;
use crate::session::position::{Birth, Position};
use crate::session::presence::is_there;
use crate::session::request::{Created, Failure, Kind, Operation, Reply, Watch};
use crate::session::retry::{Tries, none_without_directory, synced, until_known};
use crate::sync::Mutex;
use crate::telemetry::log::tell;
use crate::telemetry::meter::{self, Present};
use crate::telemetry::names;

/// A node in a lock directory, or one that is being created there. Dropping the ticket removes the node, however far
/// its creation got.
pub(crate) struct Ticket {
    session_slot: SessionSlot,
    directory: Arc<str>,
    owner: Owner,
    /// The process may keep the node between uses.
    keeps: bool,
    node: Mutex<TicketNode>,
}

#[derive(Default)]
struct TicketNode {
    step: PlaceStep,
    /// On which connection the node was asked for.
    connection: u64,
    /// When a node was first asked for.
    asked: Option<Moment>,
    /// A create's answer was lost, so there may be a node that no answer has shown.
    unsure: bool,
    /// We stand at a node outside the directory, for which we have exchanged our place.
    is_outside: bool,
    /// A node outside the directory that an exchange may have made. No answer has shown it.
    doubtful: Option<String>,
    /// The directories that we made to get here, the outermost first.
    made: Vec<String>,
    /// The watch on the directory's data, by which other contenders ask for a node that is kept.
    arming: Option<Reply<Watch>>,
}

#[derive(Default)]
enum PlaceStep {
    /// No node was asked for, or the request was refused.
    #[default]
    Absent,
    Coming(Reply<Created>),
    Standing(Arc<Position>),
    /// Being deleted, or deleted.
    Left,
}

impl Ticket {
    pub(crate) fn new(session_slot: SessionSlot, directory: Arc<str>, owner: Owner, keeps: bool) -> Ticket {
        Ticket { session_slot, directory, owner, keeps, node: Mutex::default() }
    }

    pub(crate) fn session(&self) -> &Arc<dyn Session> {
        self.session_slot.session()
    }

    /// The lock's directory.
    pub(crate) fn directory(&self) -> &Arc<str> {
        &self.directory
    }

    pub(crate) fn owner(&self) -> &Owner {
        &self.owner
    }

    /// On which connection the node was asked for, as `Upkeep::connection` counts them.
    pub(crate) fn connection(&self) -> u64 {
        self.node.lock().connection
    }

    /// Asks for a node. The request is on its way when this returns. [`Ticket::entered`] waits for the answer.
    pub(crate) fn ask_for_node(&self, mode: Mode, data: &[u8]) {
        let (prefix, now) = (self.child(&self.owner.prefix(mode)), self.session().lease().now());
        let connection = self.session().upkeep().connection();
        // A contender that sees the node asks after the create, so after the watch was armed.
        let arming = self.keeps.then(|| self.session().watch(&self.directory));
        let reply = self.session().create(&prefix, data, Kind::EphemeralSequential);
        let mut node = self.node.lock();
        (node.step, node.connection) = (PlaceStep::Coming(reply), connection);
        node.asked.get_or_insert(now);
        let old = std::mem::replace(&mut node.arming, arming);
        drop(node);
        drop(old);
    }

    /// The watch that was armed before our node was created. It fires when another contender asks for the node. `None`
    /// if no such watch is known to be armed.
    pub(crate) async fn armed(&self) -> Option<Watch> {
        let arming = self.node.lock().arming.take()?;
        arming.await.ok()
    }

    /// Waits for the answer to [`Ticket::ask_for_node`].
    ///
    /// # Cancel safety
    /// Dropping the future keeps the request. Dropping the ticket removes the node that the request makes.
    pub(crate) async fn entered(&self) -> Result<(), Failure> {
        let answer = poll_fn(|context| match &mut self.node.lock().step {
            PlaceStep::Coming(reply) => reply.as_mut().poll(context),
            _ => Poll::Ready(Err(Failure::Unknown("no node was asked for".to_owned()))),
        })
        .await;
        let mut node = self.node.lock();
        node.step = PlaceStep::Absent;
        match answer {
            Ok(created) => {
                drop(node);
                self.stand_at(created)
            }
            Err(failure) => {
                node.unsure |= matches!(failure, Failure::Unknown(_));
                // If the create was carried out after all, nothing shows that the watch was armed before it.
                let arming = node.arming.take();
                drop(node);
                drop(arming);
                Err(failure)
            }
        }
    }

    /// Makes the lock directory, with the directories above it.
    pub(crate) async fn make_directory(&self, has_to_stay: bool) -> Result<(), Failure> {
        let made = |step: &str| self.node.lock().made.push(step.to_owned());
        directory::make(self.session(), &self.directory, has_to_stay, made).await
    }

    /// Removes the directories that we made and, by their ACL, cannot use, the innermost first: other clients would fail on
    /// them. Returns whether one was removed. Only an empty directory is removed, so no other client has put anything into it.
    pub(crate) async fn unmake_directory(&self) -> bool {
        let made = std::mem::take(&mut self.node.lock().made);
        let mut is_removed = false;
        for step in made.iter().rev() {
            is_removed |= until_known(self.session(), || self.session().delete(step)).await.is_ok();
        }
        is_removed
    }

    /// After a lost answer: looks for a node that the create may have made, and stands at it if it is there.
    ///
    /// Without the sync a lagging server could hide the node, and a second node of ours would queue behind it for ever.
    pub(crate) async fn recover(&self) -> Result<bool, Failure> {
        self.node.lock().unsure = true;
        let session = self.session();
        let children = until_known(session, || synced(session, &self.directory, |it, path| it.children(path)));
        let children = children.await.or_else(none_without_directory)?;
        for child in children.iter().filter(|child| self.owner.owns(child)) {
            let path = self.child(child);
            match until_known(session, || session.data(&path)).await {
                Ok((_, stat)) if stat.ephemeral_owner == session.id() => {
                    meter::count(names::RECOVERIES, &[]);
                    tell!(INFO, path = %self.directory, node = %child, "the answer to a create was lost, and its node found");
                    self.stand_at(Created {
                        path,
                        czxid: stat.czxid,
                        ctime: stat.ctime,
                        ephemeral_owner: stat.ephemeral_owner,
                    })?;
                    return Ok(true);
                }
                Ok(_) | Err(Failure::NoNode) => {}
                Err(failure) => return Err(failure),
            }
        }
        tell!(DEBUG, path = %self.directory, owner = %self.owner, "the answer to a create was lost, and there is no node");
        Ok(false)
    }

    /// The second look after a lost answer. A listing that follows a later write of ours shows every node that the lost
    /// request made. Only the node that we stand at may stay.
    pub(crate) fn remove_strays(&self, children: &[String]) {
        if !self.node.lock().unsure {
            return;
        }
        let Some(position) = self.position() else { return };
        for stray in children.iter().filter(|child| self.owner.owns(child)) {
            if stray != position.contender.name() {
                let (session, path) = (self.session(), self.child(stray));
                let reply = session.delete(&path);
                session.spawn(Box::pin(removed_in_background(Arc::clone(session), path, reply)));
            }
        }
    }

    /// The children of the directory.
    pub(crate) fn list(&self) -> Reply<Names> {
        listing::list(self.session(), &self.directory)
    }

    pub(crate) fn child(&self, name: &str) -> String {
        format!("{}/{name}", self.directory)
    }

    /// Deletes the node. The request is on its way when this returns.
    pub(crate) fn leave(&self) -> Leaving {
        let session = Arc::clone(self.session());
        let mut node = self.node.lock();
        let PlaceStep::Standing(position) = &node.step else {
            return Leaving::new(session, async { Err(Failure::NoNode) });
        };
        let (position, is_in_queue) = (Arc::clone(position), !node.is_outside);
        node.step = PlaceStep::Left;
        drop(node);
        let path = position.own_node.path();
        // Looked at in any case, because this reports a loss.
        let loss = position.own_node.loss();
        let held_alone = is_in_queue && position.own_node.is_holding() && position.contender.mode() == Mode::Write;
        let may_signal = self.owner.dialect().hands_off() && !session.upkeep().is_signal_refused();
        let signal = may_signal && held_alone && loss != Some(Loss::Interfered);
        position.own_node.left();
        session.upkeep().nodes().strike(&position.own_node);
        let reply = if signal { hand_off(&session, &path) } else { session.delete(&path) };
        let is_old = !(0..mode::RESTART_FROM).contains(&position.contender.sequence());
        let is_old = is_old && !self.owner.dialect().keeps_directories();
        let restart = is_old.then(|| Arc::clone(&self.directory));
        let removal = remove(Arc::clone(&session), path, reply, signal, restart);
        let pending = Present::new(names::REMOVALS_PENDING, None);
        let work = async move {
            let answer = removal.await;
            drop(pending);
            answer
        };
        Leaving::new(session, work)
    }

    /// Replaces a WRITE node by a READ node of the same number, in one transaction. Gives the new position.
    pub(crate) async fn downgrade(&self, data: &[u8]) -> Result<Arc<Position>, Failure> {
        let Some(position) = self.position() else {
            return Err(Failure::NoNode);
        };
        let read = self.owner.name(Mode::Read, position.contender.sequence());
        let (from, to) = (self.child(position.contender.name()), self.child(&read));
        let Some(contender) = Contender::parse_as(&read, self.owner.dialect()) else {
            return Err(Failure::NoNode);
        };
        let swap = [
            Operation::Create { path: to.clone(), data: data.to_vec(), kind: Kind::Ephemeral },
            Operation::Delete { path: from.clone(), version: None },
        ];
        let session = self.session();
        // From here on either name may be ours; if this future is dropped, both are removed.
        self.node.lock().unsure = true;
        position.own_node.moving();
        let (czxid, own_node) = (position.czxid, Arc::clone(&position.own_node));
        let downgraded = Arc::new(Position { contender, czxid, birth: position.birth, own_node });
        let mut tries = Tries::UNKNOWN;
        loop {
            let failure = match session.transact(&swap).await {
                Ok(_) => break,
                Err(failure @ Failure::Unknown(_)) => {
                    tries.again(session, failure).await?;
                    continue;
                }
                // An earlier try, whose answer was lost, has replaced the node; or it is a stranger's; or it is gone by now.
                Err(Failure::Operation { failure, .. }) if *failure == Failure::NodeExists => {
                    match until_known(session, || session.data(&to)).await {
                        Ok((_, stat)) if stat.ephemeral_owner == session.id() => break,
                        // A server that denies the new node, or may not show it, does not overrule the leader, which has
                        // no old one any more.
                        Err(Failure::NoNode | Failure::NoAuth(_))
                            if is_there(session, &from, None).await == Ok(false) =>
                        {
                            break;
                        }
                        Err(Failure::NoNode) if !tries.are_over() => {
                            tries.pause(session).await?;
                            continue;
                        }
                        Ok(_) | Err(Failure::NoNode | Failure::NoAuth(_)) => *failure,
                        Err(failure) => failure,
                    }
                }
                Err(failure) => failure,
            };
            // If that is not known, either name may be ours.
            if !matches!(failure, Failure::Unknown(_)) {
                position.own_node.moved(from);
            }
            return Err(failure);
        }
        position.own_node.moved(to);
        session.upkeep().nodes().unwatched.add(&position.own_node);
        let mut node = self.node.lock();
        node.unsure = false;
        node.step = PlaceStep::Standing(Arc::clone(&downgraded));
        Ok(downgraded)
    }

    /// From here on there may be a node of ours at this path, outside the directory, instead of the one where we stand.
    /// `None`: it is not there, and will not be.
    pub(super) fn doubts(&self, path: Option<String>) {
        self.node.lock().doubtful = path;
    }

    /// We stand at the node outside.
    pub(super) fn is_outside(&self, position: Arc<Position>) {
        let mut node = self.node.lock();
        node.step = PlaceStep::Standing(position);
        node.is_outside = true;
        node.doubtful = None;
    }

    fn stand_at(&self, created: Created) -> Result<(), Failure> {
        let session = self.session();
        let name = created.path.rsplit('/').next().unwrap_or_default();
        if created.ephemeral_owner != session.id() {
            // The connection has changed to another session, and the node belongs to that session. It is not ours.
            return Err(Failure::Refused(format!("node {name} belongs to another session")));
        }
        let Some(contender) = Contender::parse_as(name, self.owner.dialect()) else {
            return Err(Failure::Refused(format!("the server named the node {name:?}, which is no contender's name")));
        };
        let own_node = session.upkeep().enter(self.child(name));
        let answered = session.lease().now();
        let mut node = self.node.lock();
        let birth = Birth { ctime: created.ctime, asked: node.asked.unwrap_or(answered), answered };
        let position = Position { contender, czxid: created.czxid, birth, own_node };
        node.step = PlaceStep::Standing(Arc::new(position));
        Ok(())
    }

    /// The position of our node, once there is one.
    pub(crate) fn position(&self) -> Option<Arc<Position>> {
        match &self.node.lock().step {
            PlaceStep::Standing(position) => Some(Arc::clone(position)),
            _ => None,
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let session = Arc::clone(self.session_slot.session());
        let (step, unsure, doubtful) = {
            let mut node = self.node.lock();
            let step = match &node.step {
                PlaceStep::Standing(_) => None,
                _ => Some(std::mem::replace(&mut node.step, PlaceStep::Left)),
            };
            (step, node.unsure, node.doubtful.take())
        };
        let (directory, owner) = (Arc::clone(&self.directory), self.owner.clone());
        match step {
            // Dropping the future lets the removal go on in the background.
            None => drop(self.leave()),
            Some(PlaceStep::Coming(reply)) => {
                session.clone().spawn(Box::pin(remove_when_created(session, directory, owner, reply, unsure)));
                return;
            }
            Some(_) => {}
        }
        // After the removal of the node in the queue: without it, the exchange is not carried out any more.
        if let Some(path) = doubtful {
            let reply = session.delete(&path);
            session.spawn(Box::pin(removed_in_background(Arc::clone(&session), path, reply)));
        }
        if unsure {
            session.clone().spawn(Box::pin(remove_all_of(session, directory, owner)));
        }
    }
}
