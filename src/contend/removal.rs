//! The removal of one of our nodes. The state machine [`Leaving`] decides the steps, and this module sends the
//! requests.

use std::future::ready;
use std::sync::Arc;

use crate::queue::contender::Tag;
use crate::session::contract::Session;
use crate::session::leaving::{Deletion, Input, Leaving, RemovalReport, RemovalRequest};
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
    let pending = leaving.next_request().is_ok().then(|| GaugeGuard::new(names::REMOVALS_PENDING, None));
    let (directory, tag) = (Arc::clone(node.queue()), node.tag().clone());
    let by = Remover { session: Arc::clone(session), directory, tag, _pending: pending };
    match leaving.next_request() {
        Ok(request) => {
            let first = by.send(request, creating);
            spawn_awaited(session, by.carry_out(leaving, first), log_failure)
        }
        Err(outcome) => Box::pin(ready(outcome.clone())),
    }
}

fn log_failure(answer: Result<(), Failure>) {
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
    _pending: Option<GaugeGuard>,
}

/// The step whose result the removal awaits.
enum Awaited {
    Created(Reply<Created>),
    Deleted(Reply<()>),
    Listed(Reply<Vec<String>>),
    Link,
}

impl Remover {
    async fn carry_out(self, mut leaving: Leaving, mut awaited: Awaited) -> Result<(), Failure> {
        let mut tries = Tries::ENDLESS;
        loop {
            let answer = match awaited {
                Awaited::Created(reply) => Input::Created(reply.await.map(|created| created.path)),
                Awaited::Deleted(reply) => Input::Deleted(reply.await),
                Awaited::Listed(reply) => Input::Listed(reply.await.map(|names| self.own(names))),
                Awaited::Link => Input::Linked(tries.pause(&self.session).await),
            };
            let report;
            (leaving, report) = leaving.on(answer);
            self.report(report);
            awaited = match leaving.next_request() {
                Ok(request) => self.send(request, None),
                Err(outcome) => return outcome.clone(),
            };
        }
    }

    fn send(&self, request: RemovalRequest<'_>, creating: Option<Reply<Created>>) -> Awaited {
        match (request, creating) {
            (RemovalRequest::Created, reply) => {
                Awaited::Created(reply.unwrap_or_else(|| Box::pin(ready(Err(Failure::NoNode)))))
            }
            (RemovalRequest::List, _) => {
                Awaited::Listed(synced(&self.session, &self.directory, |it, path| it.children(path)))
            }
            (RemovalRequest::Delete(deletion), _) => Awaited::Deleted(self.delete(deletion)),
            (RemovalRequest::Restart, _) => Awaited::Deleted(self.session.delete(&self.directory)),
            (RemovalRequest::Link, _) => Awaited::Link,
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
            Some(RemovalReport::SignalRefused) => session.store().record_signal_refused(),
            Some(RemovalReport::Stays(path, failure)) => {
                emit!(ERROR, path, %failure, "a lock node could not be removed and stays until its session ends");
            }
            Some(RemovalReport::Unlisted(failure)) => {
                emit!(ERROR, %directory, owner = %tag, %failure, "a node that a lost answer may have left cannot be looked for");
            }
        }
    }
}
