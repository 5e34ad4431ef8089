//! What became of a transaction whose answer was lost, where the nodes that it changes show it.

use std::sync::Arc;

use futures_util::future::select_all;

use crate::contend::tenure::{Tenure, while_held};
use crate::queue::mode::Mode;
use crate::session::contract::Session;
use crate::session::request::{Contents, Failure, Kind, Operation, Outcome, Stat, parent};
use crate::session::retry;

/// How often a transaction is sent whose answers are lost while smaller requests pass: a server closes the connection over one
/// that is too large for it.
const TRIES: u32 = 4;

/// A transaction, and what was known when it was sent.
pub(crate) struct Doubt<'a> {
    locks: &'a [Tenure],
    session: &'a Arc<dyn Session>,
    /// The first of them check that the locks are held.
    operations: &'a [Operation],
    /// The newest change of the ensemble that was known. What is newer was changed after the transaction was sent.
    newest: i64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Fate {
    Done,
    /// Not done, and it cannot happen any more.
    Undone,
    Unknown,
}

impl<'a> Doubt<'a> {
    pub(crate) fn of(locks: &'a [Tenure], session: &'a Arc<dyn Session>, operations: &'a [Operation]) -> Doubt<'a> {
        let own = locks.iter().map(|lock| lock.own_node().token()).max().unwrap_or_default();
        Doubt { locks, session, operations, newest: session.upkeep().newest().max(own) }
    }

    /// Sends the transaction. If no answer comes, looks what became of it, and sends it again if it surely was not done. Gives up
    /// when a lock is lost.
    pub(crate) async fn settled(&self) -> Result<Vec<Outcome>, Failure> {
        let answer = self.session.transact(self.operations);
        self.looks_at_what_is_made();
        let answer = answer.await;
        if !matches!(answer, Err(Failure::Unknown(_))) {
            return answer;
        }
        let lost = select_all(self.locks.iter().map(|lock| Box::pin(lock.lost())));
        let find_out = async {
            let mut answer = answer.clone();
            // It was sent once.
            for _ in 1..TRIES {
                let nodes = self.look().await?;
                match self.fate(&nodes) {
                    Fate::Done => return self.outcomes(&nodes),
                    Fate::Undone => answer = self.session.transact(self.operations).await,
                    Fate::Unknown => break,
                }
                if !matches!(answer, Err(Failure::Unknown(_))) {
                    break;
                }
            }
            Some(answer)
        };
        let found = while_held(|| self.locks.iter().find_map(Tenure::loss), async { lost.await.0 }, find_out);
        found.await.ok().flatten().unwrap_or(answer)
    }

    /// Looks behind the transaction at a node that it makes, whose number no server gives in the answer: so the next transaction knows
    /// the node as one that was there. Nobody waits for that.
    fn looks_at_what_is_made(&self) {
        let is_made = |operation: &&Operation| matches!(operation, Operation::Create { .. });
        if let Some(create) = self.changes().filter(is_made).find(|create| self.is_changed_once(create.path())) {
            drop(self.session.children_and_stat(create.path()));
        }
    }

    /// What the nodes that it changes hold now, if the locks are held at that moment. A reconnect lets no earlier request of the
    /// session pass any more: servers refuse what it sent to another one before.
    async fn look(&self) -> Option<Contents> {
        let (session, paths) = (self.session, self.changed());
        let checks = self.locks.len().min(self.operations.len());
        session.connected().await.ok()?;
        let look = || {
            // A quorum answers the first, which brings the second up to date.
            let (held, nodes) = (session.transact(&self.operations[..checks]), session.data_of_each(&paths));
            async move { held.await.and(nodes.await) }
        };
        retry::until_known(session, look).await.ok()
    }

    /// The nodes that it changes, one for each operation that changes anything.
    fn changed(&self) -> Vec<String> {
        self.changes().map(|operation| operation.path().to_owned()).collect()
    }

    fn changes(&self) -> impl Iterator<Item = &'a Operation> + use<'a> {
        self.operations.iter().filter(|operation| !matches!(operation, Operation::Check { .. }))
    }

    fn is_changed_once(&self, path: &str) -> bool {
        self.changes().filter(|other| other.path() == path).count() == 1
    }

    /// Whether nobody else can hold the locks meanwhile.
    fn is_alone(&self) -> bool {
        let is_of_a_lock = |lock: &Tenure| parent(&lock.own_node().path()) == lock.directory();
        self.locks.iter().all(|lock| lock.contender().mode() == Mode::Write && is_of_a_lock(lock))
    }

    fn fate(&self, nodes: &Contents) -> Fate {
        let told = self.changes().zip(nodes).filter(|(operation, _)| self.is_changed_once(operation.path()));
        let (session, is_alone) = (self.session.id(), self.is_alone());
        let told = told.map(|(operation, node)| shown_by(operation, node.as_ref(), self.newest, session, is_alone));
        let told: Vec<_> = told.collect();
        // What changes nothing may be done twice.
        let changes_nothing = self.changes().next().is_none();
        match (changes_nothing || told.contains(&Fate::Undone), told.contains(&Fate::Done)) {
            (true, _) => Fate::Undone,
            (false, true) => Fate::Done,
            (false, false) => Fate::Unknown,
        }
    }

    /// The outcomes of a transaction that was done; `None` if they are not known.
    fn outcomes(&self, nodes: &Contents) -> Option<Result<Vec<Outcome>, Failure>> {
        let mut nodes = nodes.iter();
        let outcome = |operation: &Operation| {
            let node = if matches!(operation, Operation::Check { .. }) { None } else { nodes.next() };
            Some(match (operation, node) {
                (Operation::Check { .. }, _) => Outcome::Checked,
                (Operation::Create { .. }, _) => Outcome::Created,
                (Operation::Delete { .. }, _) => Outcome::Deleted,
                (Operation::Set { version: Some(version @ 0..), .. }, _) => {
                    Outcome::Set { version: version.wrapping_add(1) }
                }
                (Operation::Set { data, .. }, Some(Some((now, stat)))) if now == data => {
                    Outcome::Set { version: stat.version }
                }
                (Operation::Set { .. }, _) => return None,
            })
        };
        self.operations.iter().map(outcome).collect::<Option<Vec<_>>>().map(Ok)
    }
}

/// What a node shows of the only operation that changes it. `newest` is the newest change that was known before.
fn shown_by(operation: &Operation, node: Option<&(Vec<u8>, Stat)>, newest: i64, session: i64, is_alone: bool) -> Fate {
    // Who has deleted a node, or made and deleted it, nothing tells.
    let Some((now, stat)) = node else { return Fate::Unknown };
    let was_there = stat.czxid <= newest;
    match operation {
        // No write takes a version back, and only one write can follow a version.
        Operation::Set { data, version: Some(version @ 0..), .. } if was_there => {
            match stat.version.wrapping_sub(*version) {
                0 => Fate::Undone,
                1 if now != data => Fate::Undone,
                1 if is_alone => Fate::Done,
                _ => Fate::Unknown,
            }
        }
        Operation::Create { .. } | Operation::Delete { .. } if was_there => Fate::Undone,
        Operation::Create { data, kind, .. } if is_alone && now == data && stat.version == 0 => {
            let owner = if *kind == Kind::Persistent { 0 } else { session };
            if stat.ephemeral_owner == owner { Fate::Done } else { Fate::Unknown }
        }
        _ => Fate::Unknown,
    }
}
