//! The value's node, read and written under the lock; knows no types.

use std::sync::Arc;

use crate::error::error::Error;
use crate::error::value::{ValueError, Written};
use crate::hold::tenure::Tenure;
use crate::lock::rw_lock::RwLock;
use crate::session::contract::Coordinator;
use crate::session::follow::PAUSE;
use crate::session::loss::Loss;
use crate::session::request::Failure;
use crate::value::codec::Form;
use crate::value::commit::{self, Base, Commit};
use crate::value::envelope::{self, Envelope, Mark};

/// Where a value is kept, and in which form.
pub(crate) struct ValueNode {
    pub(crate) lock: RwLock,
    pub(crate) path: String,
    pub(crate) form: Form,
}

/// What a commit has written.
pub(crate) struct NewValue {
    pub(crate) bytes: Vec<u8>,
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

    /// What the node holds, which is nothing if there is no node.
    pub(crate) async fn read(&self, held: &Tenure) -> Result<(Vec<u8>, Base), Error> {
        let node = held.data(&self.path).await?;
        let base = Base::of(node.as_ref());
        Ok((node.map(|node| node.data).unwrap_or_default(), base))
    }

    /// Writes a value, with what is kept beside it.
    pub(crate) async fn write(
        &self,
        held: &Tenure,
        payload: &[u8],
        label: &Option<String>,
        base: Base,
    ) -> Result<NewValue, Error> {
        let (own_node, handle) = (held.own_node(), self.lock.handle());
        let written = Written {
            host: handle.host.clone(),
            label: label.clone(),
            token: held.position().czxid,
            commit: own_node.next_commit(),
            at: envelope::now(),
            schema: self.form.schema,
        };
        let mark = Mark::of(&written);
        let envelope = Envelope { format: self.form.name.clone(), written, after: base.mark };
        let bytes = envelope.seal(payload);
        if bytes.len() > self.form.size_limit {
            own_node.commit_not_sent(mark.commit);
            return Err(self.fault(ValueError::TooLarge { bytes: bytes.len(), limit: Some(self.form.size_limit) }));
        }
        let (coordinator, path) = (self.coordinator(), &self.path);
        let version = Commit { held, coordinator, path, bytes: &bytes, mark, base }.put().await?;
        Ok(NewValue { bytes, version, written: envelope.written })
    }

    /// Writes the first value; `None` if another reader was faster.
    pub(crate) async fn begin(&self, held: &Tenure, payload: &[u8], base: Base) -> Result<Option<NewValue>, Error> {
        match self.write(held, payload, self.label(), base).await {
            Err(Error::TransactionRefused { reason: Failure::NodeExists | Failure::BadVersion, .. }) => Ok(None),
            answer => answer.map(Some),
        }
    }

    /// Writes the first value under the lock, as a reader does that finds none. Returns when there is a value, whoever wrote it.
    pub(crate) async fn begin_at_last(&self, payload: &[u8]) -> Result<(), Error> {
        loop {
            let attempt = async {
                let guard = self.lock.read().await?;
                let (bytes, base) = self.read(guard.held()).await?;
                match bytes.is_empty() {
                    true => self.begin(guard.held(), payload, base).await.map(drop),
                    false => Ok(()),
                }
            };
            match attempt.await {
                Err(Error::Unreachable(_) | Error::OutcomeUnknown { .. } | Error::Lost(_) | Error::Evicted(_)) => {
                    self.coordinator().sleep(PAUSE).await;
                }
                answer => return answer,
            }
        }
    }

    /// What our next commit may replace, after a commit of ours with an unknown outcome: the node's content, if we
    /// wrote it. It must not replace what an earlier holder, or a client without the lock, has written.
    pub(crate) async fn base(&self, held: &Tenure, before: Base) -> Result<Base, Error> {
        if let Some(loss) = held.loss() {
            return Err(Error::Lost(loss));
        }
        let node = match commit::look(held.ticket().session(), &self.path).await {
            Ok(node) => node,
            Err(Failure::Over(ending)) => return Err(Error::Lost(Loss::SessionOver(ending))),
            Err(failure) => return Err(Error::from_failure(failure, "read", &self.path)),
        };
        let now = Base::of(node.as_ref());
        if now.mark.is_some_and(|mark| mark.token == held.position().czxid) {
            return Ok(now);
        }
        if now.czxid.is_some_and(|czxid| before.is_replaced(czxid)) {
            let path = self.path.clone();
            return Err(Error::TransactionRefused { index: 0, path, reason: Failure::BadVersion });
        }
        Ok(before)
    }
}
