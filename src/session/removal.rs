//! The removal of a node that this library has created. The state machine [`NodeRemoval`] decides the steps, and this
//! module sends the request of each step.
//!
//! A late create is a create without an answer that is carried out after its owner has looked for its node and left:
//! 1. Server A gets the create, and is stopped or cut off before it sends the create to the leader.
//! 2. The session moves to server B, which shows no node, and the owner leaves.
//! 3. The session comes back to A, and A sends the create. The leader takes the create for a request of the new
//!    connection. (While the session is at B, the ensemble refuses a request of this session from A.)
//!
//! A sends the create before the requests of the new connection. So a listing after the reconnect shows the node.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::join_all;

use crate::queue::node_name::AcquisitionTag;
use crate::session::contract::Session;
use crate::session::leaving::{Deletion, NodeRemoval, RemovalReport, RemovalStepAnswer};
use crate::session::listing::list_synced;
use crate::session::node::Node;
use crate::session::request::{Created, Failure, Operation, Reply};
use crate::session::retry::{RetryBudget, repeat_within_limit, run_until, spawn_with_reply};
use crate::session::store::SessionStore;
use crate::telemetry::log::emit;
use crate::telemetry::meter::GaugeGuard;
use crate::telemetry::names;

/// The number of session timeouts for which a server may keep a request that it has not sent to the leader. A follower
/// keeps such a request for at most `syncLimit` ticks, and a session timeout is at least 2 ticks. So 10 session
/// timeouts suffice for a `syncLimit` of up to 20. The default is 5.
const KEPT_FOR: u32 = 10;

/// Removes a node, as `leaving` says. If the first step is a delete and the session is connected, the delete is sent
/// before this function returns. The removal goes on in the background even if the returned reply is dropped.
/// `creating` is the reply to the node's create, if it is still awaited.
pub(crate) fn remove_node(
    session: &Arc<dyn Session>,
    node: &Node,
    mut leaving: NodeRemoval,
    creating: Option<Reply<Created>>,
) -> Reply<()> {
    if let NodeRemoval::Deleting(deletion) = &mut leaving {
        deletion.signals &= !session.store().is_signal_refused(node.directory());
    }
    spawn_removal(session, Arc::clone(node.directory()), node.tag().clone(), leaving, creating)
}

impl SessionStore {
    /// Records that a create of the owner with this tag may be carried out late, within the next `KEPT_FOR` session
    /// timeouts.
    fn expect_late_create(&self, directory: &Arc<str>, tag: &AcquisitionTag) {
        let now = self.lease().now();
        let until = now.saturating_add(KEPT_FOR * self.lease().timeout());
        let expected = &mut self.record.lock().late_creates;
        while expected.front().is_some_and(|(until, ..)| *until <= now) {
            expected.pop_front();
        }
        expected.push_back((until, Arc::clone(directory), tag.clone()));
    }
}

/// Starts the removals of the nodes of late creates (explained at the top of this file). Spawned after each reconnect.
/// Costs one listing of each directory with late creates.
pub(super) async fn remove_late_nodes(session: Arc<dyn Session>) {
    let now = session.lease().now();
    let mut expected = session.store().record.lock().late_creates.clone();
    expected.retain(|(until, ..)| *until > now);
    let mut owners = BTreeMap::<_, Vec<AcquisitionTag>>::new();
    for (_, directory, tag) in expected {
        owners.entry(directory).or_default().push(tag);
    }
    join_all(owners.into_iter().map(|(directory, owners)| remove_late_nodes_in(&session, directory, owners))).await;
}

async fn remove_late_nodes_in(session: &Arc<dyn Session>, directory: Arc<str>, owners: Vec<AcquisitionTag>) {
    let Ok(names) = repeat_within_limit(session, RetryBudget::ENDLESS, || list_synced(session, &directory)).await
    else {
        return;
    };
    let owner =
        |name: &String| Some((owners.iter().find(|tag| tag.is_tag_of(name))?.clone(), format!("{directory}/{name}")));
    let found: Vec<_> = names.iter().filter_map(owner).collect();
    for (tag, path) in found {
        drop(spawn_removal(session, Arc::clone(&directory), tag, NodeRemoval::of_late_create(path), None));
    }
}

fn spawn_removal(
    session: &Arc<dyn Session>,
    directory: Arc<str>,
    tag: AcquisitionTag,
    leaving: NodeRemoval,
    creating: Option<Reply<Created>>,
) -> Reply<()> {
    let _pending = GaugeGuard::new(names::REMOVALS_PENDING, None, None);
    let by = Remover { session: Arc::clone(session), directory, tag, _pending };
    // `spawn_with_reply` polls the future once before it returns. If the removal begins with a delete, this poll sends
    // the delete. The rest of the removal runs in the background.
    spawn_with_reply(session, by.carry_out(leaving, creating), log_removal_failure)
}

pub(crate) fn log_removal_failure(answer: Result<(), Failure>) {
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

/// Carries out one removal, by requests of this session. The owner's nodes are those with its `tag` in their names.
struct Remover {
    session: Arc<dyn Session>,
    directory: Arc<str>,
    tag: AcquisitionTag,
    _pending: GaugeGuard,
}

impl Remover {
    async fn carry_out(self, mut leaving: NodeRemoval, mut creating: Option<Reply<Created>>) -> Result<(), Failure> {
        let (mut tries, store) = (RetryBudget::ENDLESS, Arc::clone(self.session.store()));
        loop {
            let answer = match &leaving {
                NodeRemoval::Coming { .. } => match creating.take() {
                    Some(reply) => RemovalStepAnswer::Created(reply.await.map(|created| created.path)),
                    None => RemovalStepAnswer::Created(Err(Failure::NoNode)),
                },
                NodeRemoval::Deleting(deletion) => RemovalStepAnswer::Deleted(self.delete(deletion).await),
                NodeRemoval::Listing => {
                    let connection = store.connection_number();
                    let listed = list_synced(&self.session, &self.directory).await;
                    if !matches!(listed, Err(Failure::Unknown(_) | Failure::Over(_))) {
                        store.expect_late_create(&self.directory, &self.tag);
                    }
                    // If the connection broke before `expect_late_create` was called, the search after the reconnect
                    // may have missed the node. The listing is then repeated.
                    let is_same = store.connection_number() == connection;
                    let lost = || Failure::Unknown("the connection broke after the answer".to_owned());
                    RemovalStepAnswer::Listed(
                        listed.and_then(|names| is_same.then(|| self.own_paths_among(&names)).ok_or_else(lost)),
                    )
                }
                NodeRemoval::Cut(_) => RemovalStepAnswer::Linked(tries.pause(&self.session).await),
                NodeRemoval::Restarting => RemovalStepAnswer::Deleted(self.session.delete(&self.directory).await),
                NodeRemoval::Gone(outcome) => return outcome.clone(),
            };
            let report;
            (leaving, report) = leaving.advance(answer);
            self.report(report);
        }
    }

    async fn delete(&self, Deletion { path, signals, is_again, .. }: &Deletion) -> Result<(), Failure> {
        let mut turn = None;
        if *is_again || !self.session.lease().is_connected() {
            self.session.store().until_connected().await.map_err(Failure::Over)?;
            turn = self.session.store().late_removals.acquire().await.ok();
        }
        let mut deleted = if *signals {
            let release = [
                Operation::Set { path: path.clone(), data: Vec::new(), version: None },
                Operation::Delete { path: path.clone(), version: None },
            ];
            let released = self.session.transact(&release);
            Box::pin(async move { released.await.map(drop) })
        } else {
            self.session.delete(path)
        };
        if turn.is_some()
            && let Some(answer) = run_until(self.session.sleep(self.session.timeout()), &mut deleted).await
        {
            return answer;
        }
        // The permit of `late_removals`, if there is one, is released: this request may never be answered, and the
        // other removals must go on.
        drop(turn);
        deleted.await
    }

    /// Returns the paths of the owner's nodes among these names.
    fn own_paths_among(&self, names: &[String]) -> Vec<String> {
        let own = names.iter().filter(|name| self.tag.is_tag_of(name));
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
