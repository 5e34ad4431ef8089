//! The node that stores a shared value: reads and writes under the lock, and the search for the outcome of a commit
//! whose reply was lost.

use std::sync::Arc;

use crate::contend::contender::{Contender, NodeData};
use crate::contend::transaction::{TRIES, Transaction, TransactionFate};
use crate::error::error::Error;
use crate::error::value::{ValueError, Written};
use crate::lock::rw_lock::RwLock;
use crate::queue::metadata;
use crate::recipes::shared::codec::{self, CommitId, Header, OVERHEAD, ValueRules};
use crate::session::contract::{Coordinator, Session};
use crate::session::follow::PAUSE;
use crate::session::presence::{self, PAUSE_MAX};
use crate::session::request::{Failure, Loss, Stat};
use crate::session::retry;

/// A value's node: its lock, its path, and the conditions that its bytes must meet.
pub(crate) struct ValueNode {
    pub(crate) lock: RwLock,
    pub(crate) path: String,
    pub(crate) rules: ValueRules,
}

/// The result of a commit.
pub(crate) struct CommittedValue {
    pub(crate) bytes: Vec<u8>,
    /// The czxid of the node. `None` if this holder created the node, because the reply to a transaction does not
    /// contain the czxid.
    pub(crate) czxid: Option<i64>,
    pub(crate) version: i32,
    pub(crate) written: Written,
}

impl ValueNode {
    pub(crate) fn coordinator(&self) -> &Arc<dyn Coordinator> {
        &self.lock.config.coordinator
    }

    pub(crate) fn label(&self) -> &Option<String> {
        &self.lock.config.label
    }

    pub(crate) fn value_error(&self, error: ValueError) -> Error {
        Error::Value { path: self.path.clone(), error }
    }

    /// Reads the node. Returns its content, which is empty if there is no node, and its state, which the next commit
    /// will replace. `is_known` says whether this process has seen a value in the node before.
    pub(crate) async fn read(&self, hold: &Contender, is_known: bool) -> Result<(Vec<u8>, CommitBase), Error> {
        let node = hold.read_node(&self.path).await?;
        let absence = match node {
            Some(_) => MissingNodeHistory::default(),
            None => hold
                .run_while_held(read_missing_node_history(hold.session(), &self.path, is_known))
                .await?
                .unwrap_or_default(),
        };
        let base = CommitBase { absence, ..CommitBase::new(node.as_ref()) };
        Ok((node.map(|node| node.data).unwrap_or_default(), base))
    }

    pub(crate) async fn write(
        &self,
        hold: &Contender,
        payload: &[u8],
        label: &Option<String>,
        base: CommitBase,
    ) -> Result<CommittedValue, Error> {
        let (node, config) = (hold.node(), &self.lock.config);
        let written = Written {
            host: config.host.clone(),
            label: label.clone(),
            token: node.token(),
            commit: node.change(|it| it.state.next_commit_id()),
            at: codec::now_to_the_millisecond(),
            schema: self.rules.schema,
        };
        let commit_id = CommitId::new(&written);
        let header = Header { format: self.rules.name.clone(), written, after: base.commit_id };
        let bytes = header.prepend_to(payload);
        if bytes.len() > self.rules.size_limit {
            node.change(|it| it.state.give_back_commit_id(commit_id.commit));
            return Err(
                self.value_error(ValueError::TooLarge { bytes: bytes.len(), limit: Some(self.rules.size_limit) })
            );
        }
        ValueCommit { node: self, hold, bytes: &bytes, commit_id, base }.carry_out().await?;
        let version = base.version.map_or(0, |version| version.wrapping_add(1));
        Ok(CommittedValue { bytes, czxid: base.czxid, version, written: header.written })
    }

    /// Writes the initial value. Returns `None` if another client has created, changed or deleted the node meanwhile.
    pub(crate) async fn write_initial(
        &self,
        hold: &Contender,
        payload: &[u8],
        base: CommitBase,
    ) -> Result<Option<CommittedValue>, Error> {
        match self.write(hold, payload, self.label(), base).await {
            Err(Error::TransactionRefused {
                reason: Failure::NodeExists | Failure::BadVersion | Failure::NoNode,
                ..
            }) => Ok(None),
            answer => answer.map(Some),
        }
    }

    /// Writes the initial value under the read lock whenever the node has no value. Goes on until the caller drops this
    /// future. The pauses between the tries grow, because the caller's server may not show the written value for a long
    /// time. Returns only an error that no retry can fix.
    pub(crate) async fn write_initial_repeatedly(&self, payload: &[u8]) -> Error {
        let mut pause = PAUSE;
        loop {
            let attempt = async {
                let guard = self.lock.read().await?;
                let (bytes, base) = self.read(&guard.held, false).await?;
                if base.is_vanished() {
                    return Err(self.value_error(ValueError::Vanished));
                }
                match bytes.is_empty() {
                    true => self.write_initial(&guard.held, payload, base).await.map(drop),
                    false => Ok(()),
                }
            };
            match attempt.await {
                Ok(()) => {
                    self.coordinator().sleep(pause).await;
                    pause = PAUSE_MAX.min(2 * pause);
                }
                Err(Error::Unreachable(_) | Error::OutcomeUnknown { .. } | Error::Lost(_) | Error::Evicted(_)) => {
                    self.coordinator().sleep(PAUSE).await;
                }
                Err(error) => return error,
            }
        }
    }

    /// After a commit whose outcome is unknown, returns the state that this holder's next commit may replace. If this
    /// holder wrote the node's present state, returns the present state. Otherwise returns `before`: if another client
    /// has written the node since `before`, the version check then refuses the next commit. Fails if the lock is lost,
    /// the node cannot be read, or another client has deleted the node and created it again.
    pub(crate) async fn base_after_unknown_commit(
        &self,
        hold: &Contender,
        before: CommitBase,
    ) -> Result<CommitBase, Error> {
        if let Some(loss) = hold.detect_loss() {
            return Err(Error::Lost(loss));
        }
        let node = retry::read_data(hold.session(), &self.path, true).await;
        let node = node.map_err(|failure| Error::from_failure_under_lock(failure, "read", &self.path))?;
        let now = CommitBase::new(node.map(NodeData::new).as_ref());
        if now.commit_id.is_some_and(|commit_id| commit_id.token == hold.node().token()) {
            return Ok(now);
        }
        if now.czxid.is_some_and(|czxid| before.is_replaced_by(czxid)) {
            let path = self.path.clone();
            return Err(Error::TransactionRefused { index: 0, path, reason: Failure::BadVersion });
        }
        Ok(before)
    }
}

/// The state of the node before a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CommitBase {
    /// The version of the node. `None` if there is no node.
    pub(crate) version: Option<i32>,
    /// The czxid of the node. `None` if there is no node, or if this holder created the node, because the reply to a
    /// transaction does not contain the czxid.
    pub(crate) czxid: Option<i64>,
    /// The commit that wrote the node's value. `None` if there is no node, or if its content has no valid header.
    pub(crate) commit_id: Option<CommitId>,
    pub(crate) absence: MissingNodeHistory,
}

/// Whether a missing node existed before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MissingNodeHistory {
    /// Whether the node existed before, and was deleted.
    pub(crate) is_gone: bool,
    /// Whether the node is gone and its twin still exists. The twin is an empty node that shows that the value existed.
    has_twin: bool,
}

impl CommitBase {
    pub(crate) fn new(node: Option<&NodeData>) -> CommitBase {
        let header = node.and_then(|node| Header::split_from(&node.data).ok());
        CommitBase {
            version: node.map(|node| node.version),
            czxid: node.map(|node| node.czxid),
            commit_id: header.map(|(header, _)| CommitId::new(&header.written)),
            absence: MissingNodeHistory::default(),
        }
    }

    pub(crate) fn is_vanished(&self) -> bool {
        self.version.is_none() && self.absence.is_gone
    }

    /// Returns whether the node of this state was deleted, and another node with this czxid was created at its path.
    /// Returns `false` if the czxid of this state is unknown.
    pub(crate) fn is_replaced_by(&self, czxid: i64) -> bool {
        self.czxid.is_some_and(|before| before != czxid)
    }
}

struct ValueCommit<'a> {
    node: &'a ValueNode,
    hold: &'a Contender,
    bytes: &'a [u8],
    commit_id: CommitId,
    base: CommitBase,
}

impl ValueCommit<'_> {
    /// Writes the bytes if the lock is held and the node is still in the state `base`. If the reply is lost, reads the
    /// node, and writes again, a limited number of times, if the commit was certainly not carried out.
    async fn carry_out(self) -> Result<(), Error> {
        let (mut doubt, mut tries) = (None, 0);
        loop {
            let Err(error) = self.transaction().commit_without_retry().await else { return Ok(()) };
            let is_unknown = matches!(error, Error::OutcomeUnknown { .. });
            if tries == 0 && !is_unknown {
                return Err(error);
            }
            tries += 1;
            // If a repeated commit is refused, the node is read, too. The first commit may have changed the version,
            // and so may have caused the refusal.
            let (fate, loss) = self.determine_commit_fate().await.unwrap_or((TransactionFate::Unknown, None));
            let is_repeated = fate == TransactionFate::Undone && loss.is_none() && tries < TRIES;
            if is_unknown && (fate == TransactionFate::Done || is_repeated) {
                self.hold.node().settle_write();
            }
            match (fate, loss) {
                (TransactionFate::Done, _) => return Ok(()),
                (TransactionFate::Unknown, _) => return Err(doubt.unwrap_or(error)),
                (TransactionFate::Undone, _) if !is_unknown => return Err(error),
                (TransactionFate::Undone, Some(loss)) => return Err(Error::Lost(loss)),
                (TransactionFate::Undone, None) if is_repeated => doubt = doubt.or(Some(error)),
                // The reply to each commit was lost, but each read was answered. Probably the commit is too large for
                // the servers.
                _ => return Err(self.node.value_error(ValueError::TooLarge { bytes: self.bytes.len(), limit: None })),
            }
        }
    }

    fn transaction(&self) -> Transaction<'_> {
        let (path, limit) = (&self.node.path, self.node.rules.size_limit.saturating_add(OVERHEAD));
        let transaction = Transaction::new(vec![self.hold], false).size_limit(limit);
        match self.base.version {
            None if self.base.absence.has_twin => transaction.create(path, self.bytes),
            None => transaction.create(path, self.bytes).create(metadata::twin_path(path), []),
            Some(version) => transaction.set_version(path, self.bytes, version),
        }
    }

    /// Reads the node, and returns what became of the commit. If the lock is lost or the session has ended, first
    /// deletes this holder's lock node, so that the commit cannot take effect later, and also returns the loss. Returns
    /// `None` if the delete or the read fails.
    async fn determine_commit_fate(&self) -> Option<(TransactionFate, Option<Loss>)> {
        let fate = |node: Option<(Vec<u8>, Stat)>| commit_fate(node.as_ref(), self.base, self.commit_id);
        match self.hold.run_while_held(retry::read_data(self.hold.session(), &self.node.path, true)).await {
            Err(_) | Ok(Err(Failure::Over(_))) => {}
            Ok(read) => return Some((fate(read.ok()?), None)),
        }
        let session_slot = self.node.coordinator().session_slot(0).await.ok()?;
        let (session, node) = (session_slot.session(), self.hold.node().path());
        match retry::repeat_until_known(session, || session.delete(&node)).await {
            Ok(()) | Err(Failure::NoNode) => self.hold.node().record_loss(Loss::Removed),
            Err(_) => return None,
        }
        Some((fate(retry::read_data(session, &self.node.path, true).await.ok()?), self.hold.detect_loss()))
    }
}

/// Returns what became of the commit `commit_id`, which was to replace the state `base`. `node` is the present content.
fn commit_fate(node: Option<&(Vec<u8>, Stat)>, base: CommitBase, commit_id: CommitId) -> TransactionFate {
    let Some((data, stat)) = node else {
        // If the commit was to create the node, the commit was not carried out. If the node existed before the commit,
        // another client has deleted the node, and it is unknown whether that was before or after the commit.
        return if base.version.is_none() { TransactionFate::Undone } else { TransactionFate::Unknown };
    };
    let header = Header::split_from(data).ok().map(|(header, _)| header);
    let (last, after) = (header.as_ref().map(|it| CommitId::new(&it.written)), header.as_ref().and_then(|it| it.after));
    if last == Some(commit_id) || after == Some(commit_id) {
        return TransactionFate::Done;
    }
    if base.is_replaced_by(stat.czxid) {
        return TransactionFate::Unknown;
    }
    // The number of writes since `base`, including a create.
    match stat.version.wrapping_sub(base.version.unwrap_or(-1)) {
        // If there was no write, the commit was not carried out. If there was one write, it came from another client,
        // because the value is not from our commit. So the version check refuses the commit.
        0 | 1 => TransactionFate::Undone,
        // The header of the second write names the commit that made the first write, and that is not our commit. So
        // another client made the first write, and the version check refuses our commit.
        2 if after.is_some() => TransactionFate::Undone,
        _ => TransactionFate::Unknown,
    }
}

/// Returns whether a node that this client's server does not show existed before, and was deleted. The node existed
/// before if this process has seen a value in it (`is_known`), or if its twin exists: an empty node that shows that the
/// value existed. Asks the ensemble's leader whether the node is gone, because this client's server may lag behind.
pub(crate) async fn read_missing_node_history(
    session: &Arc<dyn Session>,
    path: &str,
    is_known: bool,
) -> Result<MissingNodeHistory, Failure> {
    let has_twin = retry::read_data(session, &metadata::twin_path(path), false).await?.is_some();
    let is_gone = (is_known || has_twin) && presence::exists_at_leader(session, path, None).await == Ok(false);
    Ok(MissingNodeHistory { is_gone, has_twin: is_gone && has_twin })
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;
    use crate::error::value::Written;

    const OURS: CommitId = CommitId { token: 7, commit: 1 };
    const OTHERS: CommitId = CommitId { token: 8, commit: 1 };

    /// Returns the bytes of a value that the commit `by` wrote. The commit `after` wrote the previous value.
    fn value(by: CommitId, after: Option<CommitId>) -> Vec<u8> {
        let CommitId { token, commit } = by;
        let written = Written { host: "h".to_owned(), label: None, token, commit, at: UNIX_EPOCH, schema: 1 };
        Header { format: "raw".to_owned(), written, after }.prepend_to(b"x")
    }

    fn stat(version: i32, czxid: i64) -> Stat {
        Stat { czxid, version, ctime: UNIX_EPOCH, mtime: UNIX_EPOCH, ephemeral_owner: 0, data_length: 0 }
    }

    #[test]
    fn only_certain_outcomes_are_done_or_undone() {
        let (ours, others) = (value(OURS, None), value(OTHERS, None));
        let (after_ours, after_others) = (value(OTHERS, Some(OURS)), value(OURS, Some(OTHERS)));
        let after_another = value(OTHERS, Some(OTHERS));
        for (base, node, expected) in [
            (None, None, TransactionFate::Undone),
            (Some(3), None, TransactionFate::Unknown),
            (Some(3), Some((&ours, 4)), TransactionFate::Done),
            (Some(3), Some((&after_others, 4)), TransactionFate::Done),
            (Some(3), Some((&after_ours, 5)), TransactionFate::Done),
            (Some(3), Some((&others, 3)), TransactionFate::Undone),
            (Some(3), Some((&others, 4)), TransactionFate::Undone),
            (Some(3), Some((&others, 5)), TransactionFate::Unknown),
            (Some(3), Some((&after_another, 5)), TransactionFate::Undone),
            (Some(3), Some((&after_another, 6)), TransactionFate::Unknown),
            (None, Some((&others, 0)), TransactionFate::Undone),
            (None, Some((&others, 1)), TransactionFate::Unknown),
            (None, Some((&after_another, 1)), TransactionFate::Undone),
            (None, Some((&b"rubbish".to_vec(), 1)), TransactionFate::Unknown),
            (Some(i32::MAX), Some((&others, i32::MIN)), TransactionFate::Undone),
        ] {
            let base = CommitBase {
                version: base,
                czxid: base.map(|_| 1),
                commit_id: None,
                absence: MissingNodeHistory::default(),
            };
            let node = node.map(|(data, version)| (data.clone(), stat(version, 1)));
            let found = commit_fate(node.as_ref(), base, OURS);
            assert_eq!(found, expected, "{base:?}, then {:?}", node.map(|it| it.1));
        }
    }

    #[test]
    fn a_recreated_node_only_proves_a_done_commit() {
        let (ours, others) = (value(OURS, None), value(OTHERS, None));
        let base =
            CommitBase { version: Some(3), czxid: Some(1), commit_id: None, absence: MissingNodeHistory::default() };
        for (data, version, expected) in [
            (&others, 3, TransactionFate::Unknown),
            (&others, 4, TransactionFate::Unknown),
            (&ours, 0, TransactionFate::Done),
        ] {
            let node = (data.clone(), stat(version, 2));
            assert_eq!(commit_fate(Some(&node), base, OURS), expected, "{version}");
        }
    }
}
