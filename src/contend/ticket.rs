//! One place in a queue, from asking for it until it is surely gone: carries out what the state of its node says.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use crate::contend::directory;
use crate::contend::removal::remove;
use crate::queue::contender::{Contender, Owner};
use crate::queue::mode::Mode;
use crate::session::contract::{Session, SessionSlot};
use crate::session::directories::Names;
use crate::session::leaving::Leaving;
use crate::session::listing;
use crate::session::node::state::NodeState;
use crate::session::node::{Locked, OwnNode};
use crate::session::presence::is_there;
use crate::session::request::{Created, Failure, Kind, Operation, Reply, Stat, Watch};
use crate::session::retry::{Tries, none_without_directory, synced, until_known};
use crate::telemetry::log::tell;
use crate::telemetry::meter;
use crate::telemetry::names;

/// A node in a lock directory, or one that is being created there. Dropping the ticket removes the node, however far
/// its creation got.
pub(crate) struct Ticket {
    session_slot: SessionSlot,
    /// The process may keep the node between uses.
    keeps: bool,
    node: Arc<OwnNode>,
}

impl Ticket {
    pub(crate) fn new(
        session_slot: SessionSlot,
        directory: &Arc<str>,
        owner: &Owner,
        mode: Mode,
        keeps: bool,
    ) -> Ticket {
        let node = session_slot.session().upkeep().begin(directory, owner, mode);
        Ticket { session_slot, keeps, node }
    }

    pub(crate) fn session(&self) -> &Arc<dyn Session> {
        self.session_slot.session()
    }

    pub(crate) fn node(&self) -> &Arc<OwnNode> {
        &self.node
    }

    /// The lock's directory.
    pub(crate) fn directory(&self) -> &Arc<str> {
        self.node.directory()
    }

    /// Asks for a node. The request is on its way when this returns. [`Ticket::entered`] waits for the answer.
    pub(crate) fn ask_for_node(&self, data: &[u8]) {
        let (session, now) = (self.session(), self.session().lease().now());
        let connection = session.upkeep().connection();
        // A contender that sees the node asks after the create, so after the watch was armed.
        let arming = self.keeps.then(|| session.watch(self.directory()));
        let reply = session.create(&self.node.path(), data, Kind::EphemeralSequential);
        let _unlocked = self.node.change(|it| {
            it.known.asked(now, connection);
            (it.creating.replace(reply), std::mem::replace(&mut it.arming, arming))
        });
    }

    /// The watch that was armed before our node was created. It fires when another contender asks for the node. `None`
    /// if no such watch is known to be armed.
    pub(crate) async fn armed(&self) -> Option<Watch> {
        let arming = self.node.change(|it| it.arming.take())?;
        arming.await.ok()
    }

    /// Waits for the answer to [`Ticket::ask_for_node`].
    ///
    /// # Cancel safety
    /// Dropping the future keeps the request. Dropping the ticket removes the node that the request makes.
    pub(crate) async fn entered(&self) -> Result<(), Failure> {
        let answer = poll_fn(|context| {
            self.node.change(|it| match &mut it.creating {
                Some(reply) => reply.as_mut().poll(context),
                None => Poll::Ready(Err(Failure::Unknown("no node was asked for".to_owned()))),
            })
        });
        match answer.await {
            Ok(created) => self.stand_at(&created),
            Err(failure) => {
                // If the create was carried out after all, nothing shows that the watch was armed before it.
                let _unlocked = self.node.change(|it| {
                    it.known.refused(&failure);
                    (it.creating.take(), it.arming.take())
                });
                Err(failure)
            }
        }
    }

    fn stand_at(&self, created: &Created) -> Result<(), Failure> {
        self.session().upkeep().created(&self.node, created, self.session().id())
    }

    /// Makes the lock directory, with the directories above it.
    pub(crate) async fn make_directory(&self, has_to_stay: bool) -> Result<(), Failure> {
        directory::make(self.session(), self.directory(), has_to_stay, |step| {
            self.node.change(|it| it.made.push(step.to_owned()))
        })
        .await
    }

    /// Removes the directories that we made and, by their ACL, cannot use, the innermost first: other clients would fail on
    /// them. Returns whether one was removed. Only an empty directory is removed, so no other client has put anything into it.
    pub(crate) async fn unmake_directory(&self) -> bool {
        let mut is_removed = false;
        for step in self.node.change(|it| std::mem::take(&mut it.made)).iter().rev() {
            is_removed |= until_known(self.session(), || self.session().delete(step)).await.is_ok();
        }
        is_removed
    }

    /// After a lost answer: looks for a node that the create may have made, and stands at it if it is there.
    ///
    /// Without the sync a lagging server could hide the node, and a second node of ours would queue behind it for ever.
    pub(crate) async fn recover(&self) -> Result<bool, Failure> {
        self.node.change(|it| it.known.doubted());
        let (session, directory, owner) = (self.session(), self.directory(), self.node.owner());
        let children = until_known(session, || synced(session, directory, |it, path| it.children(path)));
        let children = children.await.or_else(none_without_directory)?;
        for child in children.iter().filter(|child| owner.owns(child)) {
            let path = self.child(child);
            match until_known(session, || session.data(&path)).await {
                Ok((_, stat)) if stat.ephemeral_owner == session.id() => {
                    meter::count(names::RECOVERIES, &[]);
                    tell!(INFO, path = %directory, node = %child, "the answer to a create was lost, and its node found");
                    let Stat { czxid, ctime, ephemeral_owner, .. } = stat;
                    self.stand_at(&Created { path, czxid, ctime, ephemeral_owner })?;
                    return Ok(true);
                }
                Ok(_) | Err(Failure::NoNode) => {}
                Err(failure) => return Err(failure),
            }
        }
        tell!(DEBUG, path = %directory, %owner, "the answer to a create was lost, and there is no node");
        Ok(false)
    }

    /// The second look after a lost answer. A listing that follows a later write of ours shows every node that the lost
    /// request made. Only the node that we stand at may stay.
    pub(crate) fn remove_strays(&self, children: &[String]) {
        for stray in self.node.read(|it| it.orphans(children)) {
            drop(remove(self.session(), &self.node, Leaving::delete(self.child(&stray)), None));
        }
    }

    /// The children of the directory.
    pub(crate) fn list(&self) -> Reply<Names> {
        listing::list(self.session(), self.directory())
    }

    pub(crate) fn child(&self, name: &str) -> String {
        format!("{}/{name}", self.directory())
    }

    /// Deletes the node. The request is on its way when this returns.
    pub(crate) fn leave(&self) -> Reply<()> {
        let leaving = self.session().upkeep().leave(&self.node, |it, may_signal| it.known.leave(may_signal));
        remove(self.session(), &self.node, leaving.unwrap_or(Leaving::Gone(Err(Failure::NoNode))), None)
    }

    /// Replaces a WRITE node by a READ node of the same number, in one transaction.
    pub(crate) async fn downgrade(&self, data: &[u8]) -> Result<(), Failure> {
        let writer = self.node.contender();
        let reader = Contender::parse_as(&writer.downgraded(), writer.dialect());
        let Some(reader) = reader.filter(|_| self.node.read(NodeState::has_node)) else {
            return Err(Failure::NoNode);
        };
        let (from, to) = (self.child(writer.name()), self.child(reader.name()));
        let swap = [
            Operation::Create { path: to.clone(), data: data.to_vec(), kind: Kind::Ephemeral },
            Operation::Delete { path: from.clone(), version: None },
        ];
        let session = self.session();
        // From here on either name may be ours; if this future is dropped, both are removed.
        self.node.change(|it| it.known.moves(None));
        let mut tries = Tries::LOST_ANSWERS;
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
                self.node.moved(NodeState::stays);
            }
            return Err(failure);
        }
        self.node.moved(|it| it.downgraded(reader));
        session.upkeep().nodes().unwatched.add(&self.node);
        Ok(())
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let end = |it: &mut Locked, may_signal| (it.known.end(may_signal), it.creating.take());
        let (removals, mut creating) = self.session().upkeep().leave(&self.node, end);
        for leaving in removals {
            // It goes on in the background.
            drop(remove(self.session(), &self.node, leaving, creating.take()));
        }
    }
}
