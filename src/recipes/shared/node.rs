//! The value's node: reads and writes under the lock, and the search for the outcome of a commit whose reply was lost.

use std::sync::Arc;

use crate::contend::handle::{ContenderHandle, NodeData};
use crate::contend::transaction::Transaction;
use crate::error::error::Error;
use crate::error::value::{ValueError, Written};
use crate::lock::rw_lock::RwLock;
use crate::queue::metadata;
use crate::recipes::shared::codec::{self, Envelope, Form, Mark, OVERHEAD};
use crate::session::contract::{Coordinator, Session};
use crate::session::follow::PAUSE;
use crate::session::presence::{self, PAUSE_MAX};
use crate::session::request::{Failure, Loss, Outcome};
use crate::session::retry::{self, Tries};

/// The path of a value's node, its lock, and the form of the value.
pub(crate) struct ValueNode {
    pub(crate) lock: RwLock,
    pub(crate) path: String,
    pub(crate) form: Form,
}

/// The result of a commit.
pub(crate) struct NewValue {
    pub(crate) bytes: Vec<u8>,
    /// `None` if this holder has made the node.
    pub(crate) czxid: Option<i64>,
    pub(crate) version: i32,
    pub(crate) written: Written,
}

impl ValueNode {
    pub(crate) fn coordinator(&self) -> &Arc<dyn Coordinator> {
        &self.lock.handle().coordinator
    }

    pub(crate) fn label(&self) -> &Option<String> {
        &self.lock.handle().label
    }

    pub(crate) fn fault(&self, error: ValueError) -> Error {
        Error::Value { path: self.path.clone(), error }
    }

    /// Reads the node's content, which is empty if there is no node. `is_known` says whether a value was seen there
    /// before. If `is_needed`, the leader is asked about a node that the server does not show.
    pub(crate) async fn read(
        &self,
        held: &ContenderHandle,
        is_known: bool,
        is_needed: bool,
    ) -> Result<(Vec<u8>, Base), Error> {
        let (session, mut denials) = (held.session(), Tries::DENIALS);
        loop {
            let node = held.data(&self.path).await?;
            let absence = match node {
                Some(_) => Absence::default(),
                None => held.run(absence_of(session, &self.path, is_known)).await?.unwrap_or_default(),
            };
            if node.is_none() && is_needed && !absence.is_gone {
                match held.run(presence::leader_still_has(session, &self.path, &mut denials)).await? {
                    Ok(true) => continue,
                    Err(failure @ Failure::Refused(_)) => {
                        return Err(Error::from_failure(failure, "read", &self.path));
                    }
                    // The leader does not have the node, or did not answer.
                    Ok(false) | Err(_) => {}
                }
            }
            let base = Base { absence, ..Base::of(node.as_ref()) };
            return Ok((node.map(|node| node.data).unwrap_or_default(), base));
        }
    }

    pub(crate) async fn write(
        &self,
        held: &ContenderHandle,
        payload: &[u8],
        label: &Option<String>,
        base: Base,
    ) -> Result<NewValue, Error> {
        let (node, handle) = (held.node(), self.lock.handle());
        let written = Written {
            host: handle.host.clone(),
            label: label.clone(),
            token: node.token(),
            commit: node.next_commit(),
            at: codec::now(),
            schema: self.form.schema,
        };
        let mark = Mark::of(&written);
        let envelope = Envelope { format: self.form.name.clone(), written, after: base.mark };
        let bytes = envelope.seal(payload);
        if bytes.len() > self.form.size_limit {
            node.commit_not_sent(mark.commit);
            return Err(self.fault(ValueError::TooLarge { bytes: bytes.len(), limit: Some(self.form.size_limit) }));
        }
        let version = Commit { node: self, held, bytes: &bytes, mark, base }.put().await?;
        Ok(NewValue { bytes, czxid: base.czxid, version, written: envelope.written })
    }

    /// Writes the first value. Returns `None` if another reader was faster, or an operator's empty node has gone.
    pub(crate) async fn write_initial(
        &self,
        held: &ContenderHandle,
        payload: &[u8],
        base: Base,
    ) -> Result<Option<NewValue>, Error> {
        match self.write(held, payload, self.label(), base).await {
            Err(Error::TransactionRefused {
                reason: Failure::NodeExists | Failure::BadVersion | Failure::NoNode,
                ..
            }) => Ok(None),
            answer => answer.map(Some),
        }
    }

    /// Writes the first value under the read lock, and repeats the write if the value disappears, until the caller
    /// drops this future. A server may have missed the value, so the pauses between the checks grow. Returns only an
    /// error that a retry cannot fix.
    pub(crate) async fn write_initial_until_seen(&self, payload: &[u8]) -> Error {
        let mut pause = PAUSE;
        loop {
            let attempt = async {
                let guard = self.lock.read().await?;
                let (bytes, base) = self.read(guard.held(), false, false).await?;
                if base.is_vanished() {
                    return Err(self.fault(ValueError::Vanished));
                }
                match bytes.is_empty() {
                    true => self.write_initial(guard.held(), payload, base).await.map(drop),
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

    /// Returns what our next commit may replace after a commit of ours with an unknown outcome: the node's content if
    /// we wrote it. The commit must not replace what an earlier holder, or a client without the lock, has written.
    pub(crate) async fn next_base(&self, held: &ContenderHandle, before: Base) -> Result<Base, Error> {
        if let Some(loss) = held.find_loss() {
            return Err(Error::Lost(loss));
        }
        let node = match read_node(held.session(), &self.path).await {
            Ok(node) => node,
            Err(Failure::Over(ending)) => return Err(Error::Lost(Loss::SessionOver(ending))),
            Err(failure) => return Err(Error::from_failure(failure, "read", &self.path)),
        };
        let now = Base::of(node.as_ref());
        if now.mark.is_some_and(|mark| mark.token == held.node().token()) {
            return Ok(now);
        }
        if now.czxid.is_some_and(|czxid| before.is_replaced(czxid)) {
            let path = self.path.clone();
            return Err(Error::TransactionRefused { index: 0, path, reason: Failure::BadVersion });
        }
        Ok(before)
    }
}

/// The number of lost replies in a row that are put down to the size of the request, if smaller requests pass
/// meanwhile.
const TRIES: u32 = 4;

/// The state of the node before a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Base {
    /// `None` if there is no node.
    pub(crate) version: Option<i32>,
    /// `None` if there is no node, or if this holder has made it: the reply of a transaction has no czxid.
    pub(crate) czxid: Option<i64>,
    /// `None` if the content is not a value of this library.
    pub(crate) mark: Option<Mark>,
    pub(crate) absence: Absence,
}

/// What is known about a missing node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Absence {
    /// Whether the node existed before.
    pub(crate) is_gone: bool,
    /// Whether the twin of the node still exists.
    has_twin: bool,
}

impl Base {
    pub(crate) fn of(node: Option<&NodeData>) -> Base {
        let envelope = node.and_then(|node| Envelope::open(&node.data).ok());
        Base {
            version: node.map(|node| node.version),
            czxid: node.map(|node| node.czxid),
            mark: envelope.map(|(envelope, _)| Mark::of(&envelope.written)),
            absence: Absence::default(),
        }
    }

    pub(crate) fn is_vanished(&self) -> bool {
        self.version.is_none() && self.absence.is_gone
    }

    /// Returns whether the present node was made after this one was deleted. The versions do not show that.
    pub(crate) fn is_replaced(&self, czxid: i64) -> bool {
        self.czxid.is_some_and(|before| before != czxid)
    }
}

/// The outcome of a commit whose reply was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CommitOutcome {
    Done(i32),
    /// The commit was not done, and cannot be done any more.
    Undone,
    Unknown,
}

struct Commit<'a> {
    node: &'a ValueNode,
    held: &'a ContenderHandle,
    bytes: &'a [u8],
    mark: Mark,
    base: Base,
}

impl Commit<'_> {
    /// Writes the bytes if the lock is held and the node is unchanged. Returns the node's new version.
    async fn put(self) -> Result<i32, Error> {
        let mut tries = 0;
        loop {
            let error = match self.transaction().commit_once().await {
                Ok(outcomes) => return Ok(version_of(&outcomes)),
                Err(error) => error,
            };
            let is_unknown = matches!(error, Error::OutcomeUnknown { .. });
            if tries == 0 && !is_unknown {
                return Err(error);
            }
            tries += 1;
            match self.find_outcome().await {
                CommitOutcome::Done(version) => return Ok(version),
                CommitOutcome::Unknown if !is_unknown => {
                    return Err(Error::OutcomeUnknown { operation: "commit a value", reason: error.to_string() });
                }
                CommitOutcome::Undone if is_unknown => {
                    if let Some(loss) = self.held.find_loss() {
                        return Err(Error::Lost(loss));
                    }
                }
                CommitOutcome::Unknown | CommitOutcome::Undone => return Err(error),
            }
            if tries == TRIES {
                let error = ValueError::TooLarge { bytes: self.bytes.len(), limit: None };
                return Err(self.node.fault(error));
            }
        }
    }

    fn transaction(&self) -> Transaction<'_> {
        let (path, limit) = (&self.node.path, self.node.form.size_limit.saturating_add(OVERHEAD));
        let transaction = Transaction::under(self.held).size_limit(limit);
        match self.base.version {
            None if self.base.absence.has_twin => transaction.create(path, self.bytes),
            None => transaction.create(path, self.bytes).create(metadata::twin_of(path), []),
            Some(version) => transaction.set_version(path, self.bytes, version),
        }
    }

    /// Finds the outcome of the commit by reading the node on the same session. After a reconnect, an earlier commit is
    /// done before this read, or is never done: servers refuse requests that the session sent to another server before.
    async fn find_outcome(&self) -> CommitOutcome {
        let session = self.held.session();
        let read = async {
            session.connected().await.map_err(Failure::Over)?;
            read_node(session, &self.node.path).await
        };
        let seen = match read.await {
            Err(Failure::Over(_)) => self.read_after_session_end().await,
            seen => seen.ok(),
        };
        seen.map_or(CommitOutcome::Unknown, |node| outcome_of(node.as_ref(), self.base, self.mark))
    }

    /// Reads the node after our session has ended. Deletes our lock's node first: then a late transaction is refused.
    /// Returns `None` if the delete fails.
    async fn read_after_session_end(&self) -> Option<Option<NodeData>> {
        let session_slot = self.node.coordinator().session_slot(0).await.ok()?;
        let (session, node) = (session_slot.session(), self.held.node().path());
        match retry::until_known(session, || session.delete(&node)).await {
            Ok(()) | Err(Failure::NoNode) => self.held.node().lose(Loss::Removed),
            Err(_) => return None,
        }
        read_node(session, &self.node.path).await.ok()
    }
}

/// Returns the outcome of the commit `mark` on `base`, as the node's content shows it.
fn outcome_of(node: Option<&NodeData>, base: Base, mark: Mark) -> CommitOutcome {
    let Some(NodeData { data, version, czxid }) = node else {
        // The node existed before. Another client deleted it, before or after the commit.
        return if base.version.is_none() { CommitOutcome::Undone } else { CommitOutcome::Unknown };
    };
    let envelope = Envelope::open(data).ok().map(|(envelope, _)| envelope);
    let (last, after) = (envelope.as_ref().map(|it| Mark::of(&it.written)), envelope.as_ref().and_then(|it| it.after));
    if last == Some(mark) || after == Some(mark) {
        return CommitOutcome::Done(*version);
    }
    if base.is_replaced(*czxid) {
        return CommitOutcome::Unknown;
    }
    // The number of writes since `base`. The create counts.
    let since = version.wrapping_sub(base.version.unwrap_or(-1));
    match since {
        // The node is unchanged, or another client has written first: then the commit's version is outdated.
        0 | 1 => CommitOutcome::Undone,
        // The first of these two writes was another client's, so the commit's version is outdated.
        2 if after.is_some() => CommitOutcome::Undone,
        _ => CommitOutcome::Unknown,
    }
}

fn version_of(outcomes: &[Outcome]) -> i32 {
    match outcomes.first() {
        Some(Outcome::Set { version }) => *version,
        _ => 0,
    }
}

/// Returns whether a node that our server does not show existed before: a value was seen there, or its twin exists. The
/// leader is asked, because the server may have missed the node, and another client may have made it since.
pub(crate) async fn absence_of(session: &Arc<dyn Session>, path: &str, is_known: bool) -> Result<Absence, Failure> {
    let has_twin = retry::data(session, &metadata::twin_of(path), false).await?.is_some();
    let is_gone = (is_known || has_twin) && presence::is_there(session, path, None).await == Ok(false);
    Ok(Absence { is_gone, has_twin: is_gone && has_twin })
}

/// Reads the node, no older than this call. Repeats the read if its reply is lost.
pub(crate) async fn read_node(session: &Arc<dyn Session>, path: &str) -> Result<Option<NodeData>, Failure> {
    Ok(retry::data(session, path, true).await?.map(NodeData::of))
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;
    use crate::error::value::Written;

    const OURS: Mark = Mark { token: 7, commit: 1 };
    const OTHERS: Mark = Mark { token: 8, commit: 1 };

    /// Returns a value written by the commit `by`, which replaced the commit `after`.
    fn value(by: Mark, after: Option<Mark>) -> Vec<u8> {
        let Mark { token, commit } = by;
        let written = Written { host: "h".to_owned(), label: None, token, commit, at: UNIX_EPOCH, schema: 1 };
        Envelope { format: "raw".to_owned(), written, after }.seal(b"x")
    }

    #[test]
    fn only_certain_outcomes_are_done_or_undone() {
        let (ours, others) = (value(OURS, None), value(OTHERS, None));
        let (after_ours, after_others) = (value(OTHERS, Some(OURS)), value(OURS, Some(OTHERS)));
        let after_another = value(OTHERS, Some(OTHERS));
        for (base, node, expected) in [
            (None, None, CommitOutcome::Undone),
            (Some(3), None, CommitOutcome::Unknown),
            (Some(3), Some((&ours, 4)), CommitOutcome::Done(4)),
            (Some(3), Some((&after_others, 4)), CommitOutcome::Done(4)),
            (Some(3), Some((&after_ours, 5)), CommitOutcome::Done(5)),
            (Some(3), Some((&others, 3)), CommitOutcome::Undone),
            (Some(3), Some((&others, 4)), CommitOutcome::Undone),
            (Some(3), Some((&others, 5)), CommitOutcome::Unknown),
            (Some(3), Some((&after_another, 5)), CommitOutcome::Undone),
            (Some(3), Some((&after_another, 6)), CommitOutcome::Unknown),
            (None, Some((&others, 0)), CommitOutcome::Undone),
            (None, Some((&others, 1)), CommitOutcome::Unknown),
            (None, Some((&after_another, 1)), CommitOutcome::Undone),
            (None, Some((&b"rubbish".to_vec(), 1)), CommitOutcome::Unknown),
            (Some(i32::MAX), Some((&others, i32::MIN)), CommitOutcome::Undone),
        ] {
            let base = Base { version: base, czxid: base.map(|_| 1), mark: None, absence: Absence::default() };
            let node = node.map(|(data, version)| NodeData { data: data.clone(), version, czxid: 1 });
            let found = outcome_of(node.as_ref(), base, OURS);
            assert_eq!(found, expected, "{base:?}, then version {:?}", node.map(|it| it.version));
        }
    }

    #[test]
    fn a_recreated_node_only_proves_a_done_commit() {
        let (ours, others) = (value(OURS, None), value(OTHERS, None));
        let base = Base { version: Some(3), czxid: Some(1), mark: None, absence: Absence::default() };
        for (data, version, expected) in [
            (&others, 3, CommitOutcome::Unknown),
            (&others, 4, CommitOutcome::Unknown),
            (&ours, 0, CommitOutcome::Done(0)),
        ] {
            let node = NodeData { data: data.clone(), version, czxid: 2 };
            assert_eq!(outcome_of(Some(&node), base, OURS), expected, "{version}");
        }
    }
}
