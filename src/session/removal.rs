//! The removal of one of our nodes. The state machine [`Leaving`] decides the steps, and this module sends the request of
//! each step.

use std::future::ready;
use std::sync::Arc;

use crate::queue::contender::Tag;
use crate::session::contract::Session;
use crate::session::leaving::{Deletion, Input, Leaving, RemovalReport};
use crate::session::node::ContenderNode;
use crate::session::request::{Created, Failure, Operation, Reply};
use crate::session::retry::{Tries, spawn_awaited, synced};
use crate::telemetry::log::emit;
use crate::telemetry::meter::GaugeGuard;
use crate::telemetry::names;

/// Removes a node. Sends the first request before it returns. The removal goes on in the background even if the returned reply is
/// dropped. `creating` is the reply to the node's create, if that reply has not come yet.
pub(crate) fn remove(
    session: &Arc<dyn Session>,
    node: &ContenderNode,
    leaving: Leaving,
    creating: Option<Reply<Created>>,
) -> Reply<()> {
    if let Leaving::Gone(outcome) = leaving {
        return Box::pin(ready(outcome));
    }
    remove_of(session, Arc::clone(node.queue()), node.tag().clone(), leaving, creating)
}

/// Removes the nodes that a lost create of this owner made after the owner's nodes were listed. Called after a reconnect.
///
/// Servers refuse the requests that a session sent to another server before. But a server that was stopped or cut off may still
/// have the create when the session comes back to it, and the leader then takes the create for one of the new connection. The
/// server sends it before the requests of that connection, so a new listing shows the node.
pub(super) fn remove_late(session: &Arc<dyn Session>, directory: Arc<str>, tag: Tag) -> Reply<()> {
    remove_of(session, directory, tag, Leaving::Listing, None)
}

fn remove_of(
    session: &Arc<dyn Session>,
    directory: Arc<str>,
    tag: Tag,
    leaving: Leaving,
    creating: Option<Reply<Created>>,
) -> Reply<()> {
    let _pending = GaugeGuard::new(names::REMOVALS_PENDING, None);
    let by = Remover { session: Arc::clone(session), directory, tag, _pending };
    // This call polls the work once, and the poll sends the first request.
    spawn_awaited(session, by.carry_out(leaving, creating), log_failure)
}

pub(crate) fn log_failure(answer: Result<(), Failure>) {
    match answer {
        Ok(()) => {}
        Err(failure @ (Failure::NoNode | Failure::Over(_))) => {
            emit!(DEBUG, %failure, "a lock node was not there to be removed");
        }
        Err(failure) => {
            emit!(ERROR, %failure, "a lock node could not be removed and stays until its session ends");
        }
    }
}

/// A removal under way: the session that sends the requests, and the tag by which a listing shows our nodes.
struct Remover {
    session: Arc<dyn Session>,
    directory: Arc<str>,
    tag: Tag,
    _pending: GaugeGuard,
}

impl Remover {
    async fn carry_out(self, mut leaving: Leaving, mut creating: Option<Reply<Created>>) -> Result<(), Failure> {
        let (mut tries, mut listed_on) = (Tries::ENDLESS, None);
        loop {
            let answer = match &leaving {
                Leaving::Coming { .. } => match creating.take() {
                    Some(reply) => Input::Created(reply.await.map(|created| created.path)),
                    None => Input::Created(Err(Failure::NoNode)),
                },
                Leaving::Deleting(deletion) => Input::Deleted(self.delete(deletion).await),
                Leaving::Listing => {
                    listed_on = Some(self.session.store().connection());
                    let listed = synced(&self.session, &self.directory, |it, path| it.children(path)).await;
                    Input::Listed(listed.map(|names| self.own(names)))
                }
                Leaving::Cut(_) => Input::Linked(tries.pause(&self.session).await),
                Leaving::Restarting => Input::Deleted(self.session.delete(&self.directory).await),
                Leaving::Gone(outcome) => {
                    if let Some(listed_on) = listed_on {
                        self.session.store().expect_late_create(self.directory, self.tag, listed_on);
                    }
                    return outcome.clone();
                }
            };
            let report;
            (leaving, report) = leaving.on(answer);
            self.report(report);
        }
    }

    fn delete(&self, Deletion { path, signals, .. }: &Deletion) -> Reply<()> {
        if !signals {
            return self.session.delete(path);
        }
        let released = self.session.transact(&[
            Operation::Set { path: path.clone(), data: Vec::new(), version: None },
            Operation::Delete { path: path.clone(), version: None },
        ]);
        Box::pin(async move { released.await.map(drop) })
    }

    /// Returns the paths of this contender's nodes among these names.
    fn own(&self, names: Vec<String>) -> Vec<String> {
        let own = names.iter().filter(|name| self.tag.is_on(name));
        own.map(|name| format!("{}/{name}", self.directory)).collect()
    }

    fn report(&self, report: Option<RemovalReport>) {
        let Remover { session, directory, tag, .. } = self;
        match report {
            None => {}
            Some(RemovalReport::SignalRefused) => session.store().record_signal_refused(directory),
            Some(RemovalReport::Stays(path, failure)) => {
                emit!(ERROR, path, %failure, "a lock node could not be removed and stays until its session ends");
            }
            Some(RemovalReport::Unlisted(failure)) => {
                emit!(ERROR, %directory, owner = %tag, %failure, "a node that a lost answer may have left cannot be looked for");
            }
        }
    }
}
