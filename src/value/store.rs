//! The value's node while the lock is held: read, begun, written; knows the lock only by its host and its label.

use std::sync::{Arc, Weak};

use crate::error::error::Error;
use crate::error::value::{ValueError, Written};
use crate::guard::guard::ReadGuard;
use crate::hold::tenure::Tenure;
use crate::lock::rw_lock::RwLock;
use crate::session::loss::Loss;
use crate::session::node::OwnNode;
use crate::session::request::Failure;
use crate::session::retry;
use crate::sync::Mutex;
use crate::value::cache::Cache;
use crate::value::codec::Stored;
use crate::value::commit::{self, Base, Commit};
use crate::value::envelope::{self, Envelope, Mark};

/// What the clones of a [`Shared`](crate::Shared) have in common.
pub(crate) struct Store<T> {
    /// Dropped first, so that the watch and its session slot are given up before the coordinator is.
    pub(crate) cache: Arc<Cache<T>>,
    pub(crate) lock: RwLock,
    found: Mutex<Option<Found<T>>>,
}

/// The value that the last read found that had to ask for it, under a kept node.
struct Found<T> {
    value: Arc<Stored<T>>,
    /// Not its token: an ensemble that is restored from a backup gives out lower tokens, and the same once more.
    under: Weak<OwnNode>,
    /// How many transactions had been sent by then.
    writes: usize,
}

/// The value that a write begins with.
pub(crate) struct Loaded<T> {
    pub(crate) value: T,
    pub(crate) written: Option<Written>,
    pub(crate) base: Base,
}

impl<T> Store<T> {
    pub(crate) fn new(cache: Arc<Cache<T>>, lock: RwLock) -> Store<T> {
        Store { cache, lock, found: Mutex::new(None) }
    }

    /// The value that an earlier read has found under the same kept node. It cannot have changed since: a writer would
    /// need the lock, and a transaction of this process would have been counted.
    pub(crate) fn kept(&self, guard: &ReadGuard) -> Option<Arc<Stored<T>>> {
        let own_node = guard.held().own_node();
        let writes = own_node.settled_writes().filter(|_| guard.is_kept())?;
        let found = self.found.lock();
        let known = found.as_ref().filter(|found| found.under.as_ptr() == Arc::as_ptr(own_node));
        known.filter(|found| found.writes == writes).map(|found| Arc::clone(&found.value))
    }

    fn keep(&self, guard: &ReadGuard, writes: Option<usize>, value: &Arc<Stored<T>>) {
        if let Some(writes) = writes.filter(|_| guard.is_kept()) {
            let found = Found { value: Arc::clone(value), under: Arc::downgrade(guard.held().own_node()), writes };
            let before = self.found.lock().replace(found);
            // Not under the lock: a value may do anything when it is dropped.
            drop(before);
        }
    }

    pub(crate) fn label(&self) -> Option<String> {
        self.lock.handle().label.clone()
    }
}

impl<T: Send + Sync + 'static> Store<T> {
    /// The bytes of a value, and what is kept beside it. Fails if they could not be read again.
    pub(crate) fn seal(
        &self,
        value: &T,
        held: &Tenure,
        label: &Option<String>,
        base: Base,
    ) -> Result<(Vec<u8>, Written), Error> {
        self.sealed(held, label, |written| self.cache.terms.seal(value, written, base.mark))
    }

    /// As [`Store::seal`], for a value that was made into bytes before.
    pub(crate) fn wrap(&self, payload: &[u8], held: &Tenure, base: Base) -> Result<(Vec<u8>, Written), Error> {
        self.sealed(held, &self.label(), |written| self.cache.terms.wrap(payload, written, base.mark))
    }

    fn sealed(
        &self,
        held: &Tenure,
        label: &Option<String>,
        seal: impl FnOnce(&Written) -> Result<Vec<u8>, ValueError>,
    ) -> Result<(Vec<u8>, Written), Error> {
        let own_node = held.own_node();
        let written = Written {
            host: self.lock.handle().host.clone(),
            label: label.clone(),
            token: held.position().czxid,
            commit: own_node.next_commit(),
            at: envelope::now(),
            schema: self.cache.terms.schema,
        };
        match seal(&written) {
            Ok(bytes) => Ok((bytes, written)),
            Err(error) => {
                own_node.commit_not_sent(written.commit);
                Err(self.cache.fault(error))
            }
        }
    }

    /// Writes the bytes into the node. Returns the version that this made.
    pub(crate) async fn put(&self, held: &Tenure, bytes: &[u8], written: &Written, base: Base) -> Result<i32, Error> {
        let Written { token, commit, .. } = *written;
        let mark = Mark { token, commit };
        let (coordinator, path) = (&self.cache.coordinator, &self.cache.path);
        Commit { held, coordinator, path, bytes, mark, base }.put().await
    }

    /// What our next commit may replace, after a commit of ours with an unknown outcome: the node's content, if we
    /// wrote it. It must not replace what an earlier holder, or a client without the lock, has written.
    pub(crate) async fn base(&self, held: &Tenure, before: Base) -> Result<Base, Error> {
        if let Some(loss) = held.loss() {
            return Err(Error::Lost(loss));
        }
        let node = match commit::look(held.ticket().session(), &self.cache.path).await {
            Ok(node) => node,
            Err(Failure::Over(ending)) => return Err(Error::Lost(Loss::SessionOver(ending))),
            Err(failure) => return Err(Error::from_failure(failure, "read", &self.cache.path)),
        };
        let now = Base::of(node.as_ref());
        if now.mark.is_some_and(|mark| mark.token == held.position().czxid) {
            return Ok(now);
        }
        if now.czxid.is_some_and(|czxid| before.is_replaced(czxid)) {
            let path = self.cache.path.clone();
            return Err(Error::TransactionRefused { index: 0, path, reason: Failure::BadVersion });
        }
        Ok(before)
    }

    /// The value, read under the lock. Under a kept node only the first read asks for it.
    pub(crate) async fn read_under(&self, guard: &ReadGuard) -> Result<Arc<Stored<T>>, Error> {
        if let Some(value) = self.kept(guard) {
            return Ok(value);
        }
        let (writes, value) = self.read(guard.held()).await?;
        let value = Arc::new(value);
        self.keep(guard, writes, &value);
        Ok(value)
    }

    /// The value, read under the lock, and how many transactions had been sent before.
    async fn read(&self, held: &Tenure) -> Result<(Option<usize>, Stored<T>), Error> {
        let mut tries = 0;
        loop {
            let writes = held.own_node().settled_writes();
            let (bytes, base) = self.node(held).await?;
            match (self.cache.terms.open(&bytes), &self.cache.terms.initial) {
                (Err(ValueError::Unset), Some(initial)) if tries < retry::UNKNOWN_TRIES => {
                    tries += 1;
                    self.begin_under(held, initial(), base).await?;
                }
                (Ok(value), _) => return Ok((writes, value)),
                (Err(error), _) => return Err(self.cache.fault(error)),
            }
        }
    }

    /// Writes the first value, unless another reader was faster.
    async fn begin_under(&self, held: &Tenure, value: T, base: Base) -> Result<(), Error> {
        let (bytes, written) = self.seal(&value, held, &self.label(), base)?;
        drop(value);
        match self.put(held, &bytes, &written, base).await {
            Ok(version) => {
                self.cache.committed(held.ticket().session().lease(), &bytes, version);
                Ok(())
            }
            Err(Error::TransactionRefused { reason: Failure::NodeExists | Failure::BadVersion, .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// What a write begins with: the present value, or the initial one, which is not in the node yet.
    pub(crate) async fn load(&self, held: &Tenure) -> Result<Loaded<T>, Error> {
        let (bytes, base) = self.node(held).await?;
        match (self.cache.terms.open(&bytes), &self.cache.terms.initial) {
            (Ok(Stored { value, written }), _) => Ok(Loaded { value, written: Some(written), base }),
            (Err(ValueError::Unset), Some(initial)) => Ok(Loaded { value: initial(), written: None, base }),
            (Err(error), _) => Err(self.cache.fault(error)),
        }
    }

    /// What a write begins with if it replaces whatever the node holds.
    pub(crate) async fn load_instead(&self, held: &Tenure, value: T) -> Result<Loaded<T>, Error> {
        let (bytes, base) = self.node(held).await?;
        let written = Envelope::open(&bytes).ok().map(|(envelope, _)| envelope.written);
        Ok(Loaded { value, written, base })
    }

    async fn node(&self, held: &Tenure) -> Result<(Vec<u8>, Base), Error> {
        let node = held.data(&self.cache.path).await?;
        let base = Base::of(node.as_ref());
        Ok((node.map(|node| node.data).unwrap_or_default(), base))
    }
}
