//! How bytes get into a value's node under a lock, and how the outcome is found if the answer is lost; knows no types.

use std::sync::Arc;

use crate::error::error::Error;
use crate::error::value::ValueError;
use crate::hold::hold::Hold;
use crate::hold::transaction::Transaction;
use crate::session::contract::{Coordinator, Session};
use crate::session::loss::Loss;
use crate::session::request::{Failure, Outcome, Stat};
use crate::session::retry;
use crate::value::envelope::{Envelope, Mark};

/// So many answers in a row are lost, while smaller requests pass, before the size must be the reason.
const TRIES: u32 = 4;

/// What the node holds before a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Base {
    /// `None` if there is no node.
    pub(crate) version: Option<i32>,
    /// `None` if the node's content is not ours.
    pub(crate) mark: Option<Mark>,
}

impl Base {
    pub(crate) fn of(node: Option<(&[u8], i32)>) -> Base {
        let envelope = node.and_then(|(bytes, _)| Envelope::open(bytes).ok());
        Base {
            version: node.map(|(_, version)| version),
            mark: envelope.map(|(envelope, _)| Mark::of(&envelope.written)),
        }
    }
}

/// The outcome of a commit whose answer was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Done(i32),
    /// Not done, and it cannot happen any more.
    Undone,
    Unknown,
}

/// One commit.
pub(crate) struct Commit<'a> {
    pub(crate) held: &'a Hold,
    pub(crate) coordinator: &'a Arc<dyn Coordinator>,
    pub(crate) path: &'a str,
    pub(crate) bytes: &'a [u8],
    pub(crate) mark: Mark,
    pub(crate) base: Base,
}

impl Commit<'_> {
    /// Writes the bytes if the lock is held and the node is unchanged. Returns the version that this made.
    pub(crate) async fn put(self) -> Result<i32, Error> {
        let mut tries = 0;
        loop {
            let answer = self.transaction().commit().await;
            let in_doubt = tries > 0 || matches!(answer, Err(Error::OutcomeUnknown { .. }));
            let error = match answer {
                Ok(outcomes) => return Ok(version_of(&outcomes)),
                Err(error) if !in_doubt => return Err(error),
                Err(error) => error,
            };
            tries += 1;
            match (self.fate().await, error) {
                (Fate::Done(version), _) => return Ok(version),
                (Fate::Unknown, Error::OutcomeUnknown { operation, reason }) => {
                    return Err(Error::OutcomeUnknown { operation, reason });
                }
                (Fate::Unknown, error) => {
                    return Err(Error::OutcomeUnknown { operation: "commit a value", reason: error.to_string() });
                }
                (Fate::Undone, Error::OutcomeUnknown { .. }) => {
                    if let Some(loss) = self.held.loss() {
                        return Err(Error::Lost(loss));
                    }
                }
                (Fate::Undone, error) => return Err(error),
            }
            if tries == TRIES {
                let error = ValueError::TooLarge { bytes: self.bytes.len(), limit: None };
                return Err(Error::Value { path: self.path.to_owned(), error });
            }
        }
    }

    fn transaction(&self) -> Transaction<'_> {
        let transaction = Transaction::under(self.held);
        match self.base.version {
            None => transaction.create(self.path, self.bytes),
            Some(version) => transaction.set_version(self.path, self.bytes, version),
        }
    }

    /// Finds the outcome of the commit. After a reconnect, the next request on the same session comes after all earlier
    /// ones, or these are never carried out: servers refuse what a session sent to another server before.
    async fn fate(&self) -> Fate {
        let session = self.held.ticket().session();
        let connected = session.connected().await;
        let seen = match connected {
            Ok(()) => look(session, self.path).await,
            Err(ending) => Err(Failure::Over(ending)),
        };
        match seen {
            Err(Failure::Over(_)) => self.fate_after_the_session().await,
            Err(_) => Fate::Unknown,
            Ok(node) => self.read(node),
        }
    }

    /// The session is over, at least for us. Once our own node is gone, the transaction is refused, however late it
    /// comes.
    async fn fate_after_the_session(&self) -> Fate {
        let Ok(session_slot) = self.coordinator.session_slot(0).await else {
            return Fate::Unknown;
        };
        let (session, node) = (session_slot.session(), self.held.own_node().path());
        match retry::until_known(session, || session.delete(&node)).await {
            Ok(()) | Err(Failure::NoNode) => {}
            Err(_) => return Fate::Unknown,
        }
        self.held.own_node().lose(Loss::Removed);
        look(session, self.path).await.map_or(Fate::Unknown, |node| self.read(node))
    }

    fn read(&self, node: Option<(Vec<u8>, Stat)>) -> Fate {
        shown_by(node.as_ref().map(|(bytes, stat)| (&bytes[..], stat.version)), self.base, self.mark)
    }
}

/// What became of the commit `mark` on `base`, as the node's bytes and version show it.
fn shown_by(node: Option<(&[u8], i32)>, base: Base, mark: Mark) -> Fate {
    let Some((bytes, version)) = node else {
        // The node was there before: another client deleted it, before the commit or after.
        return if base.version.is_none() { Fate::Undone } else { Fate::Unknown };
    };
    let envelope = Envelope::open(bytes).ok().map(|(envelope, _)| envelope);
    let (last, after) = (envelope.as_ref().map(|it| Mark::of(&it.written)), envelope.as_ref().and_then(|it| it.after));
    if last == Some(mark) || after == Some(mark) {
        return Fate::Done(version);
    }
    // How often the node was written since. Making it counts.
    let since = version.wrapping_sub(base.version.unwrap_or(-1));
    match since {
        // The node is as it was, or another client has written first: then the version that our commit asks for is
        // gone.
        0 | 1 => Fate::Undone,
        // The last write but one was another client's, and it was the first since.
        2 if after.is_some() => Fate::Undone,
        _ => Fate::Unknown,
    }
}

fn version_of(outcomes: &[Outcome]) -> i32 {
    match outcomes.first() {
        Some(Outcome::Set { version }) => *version,
        _ => 0,
    }
}

/// What the node holds, no older than this call. A read whose answer is lost is repeated.
pub(crate) async fn look(session: &Arc<dyn Session>, path: &str) -> Result<Option<(Vec<u8>, Stat)>, Failure> {
    retry::data(session, path, true).await
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;
    use crate::error::value::Written;

    const OURS: Mark = Mark { token: 7, commit: 1 };
    const OTHERS: Mark = Mark { token: 8, commit: 1 };

    /// A value that this commit wrote, after that one.
    fn value(by: Mark, after: Option<Mark>) -> Vec<u8> {
        let Mark { token, commit } = by;
        let written = Written { host: "h".to_owned(), label: None, token, commit, at: UNIX_EPOCH, schema: 1 };
        Envelope { format: "raw".to_owned(), written, after }.seal(b"x")
    }

    #[test]
    fn a_commit_is_done_only_if_the_node_has_its_mark_and_undone_only_if_it_cannot_be_done_any_more() {
        let (ours, others) = (value(OURS, None), value(OTHERS, None));
        let (after_ours, after_others) = (value(OTHERS, Some(OURS)), value(OURS, Some(OTHERS)));
        let after_another = value(OTHERS, Some(OTHERS));
        for (base, node, fate) in [
            (None, None, Fate::Undone),
            (Some(3), None, Fate::Unknown),
            (Some(3), Some((&ours, 4)), Fate::Done(4)),
            (Some(3), Some((&after_others, 4)), Fate::Done(4)),
            (Some(3), Some((&after_ours, 5)), Fate::Done(5)),
            (Some(3), Some((&others, 3)), Fate::Undone),
            (Some(3), Some((&others, 4)), Fate::Undone),
            (Some(3), Some((&others, 5)), Fate::Unknown),
            (Some(3), Some((&after_another, 5)), Fate::Undone),
            (Some(3), Some((&after_another, 6)), Fate::Unknown),
            (None, Some((&others, 0)), Fate::Undone),
            (None, Some((&others, 1)), Fate::Unknown),
            (None, Some((&after_another, 1)), Fate::Undone),
            (None, Some((&b"rubbish".to_vec(), 1)), Fate::Unknown),
            (Some(i32::MAX), Some((&others, i32::MIN)), Fate::Undone),
        ] {
            let base = Base { version: base, mark: None };
            let node = node.map(|(bytes, version)| (&bytes[..], version));
            assert_eq!(shown_by(node, base, OURS), fate, "{base:?}, then version {:?}", node.map(|it| it.1));
        }
    }
}
