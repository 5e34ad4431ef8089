//! The value while the lock is held: read, and begun with; knows the lock only by its guards.

use std::sync::{Arc, Weak};

use crate::error::error::Error;
use crate::error::value::{ValueError, Written};
use crate::guard::guard::ReadGuard;
use crate::hold::tenure::Tenure;
use crate::keep::join::Lock;
use crate::session::node::OwnNode;
use crate::session::retry;
use crate::sync::Mutex;
use crate::value::cache::Cache;
use crate::value::codec::Stored;
use crate::value::commit::Base;
use crate::value::envelope::Envelope;
use crate::value::node::ValueNode;

/// What the clones of a [`Shared`](crate::Shared) have in common.
pub(crate) struct Store<T> {
    pub(crate) cache: Arc<Cache<T>>,
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
    pub(crate) fn new(cache: Arc<Cache<T>>) -> Store<T> {
        Store { cache, found: Mutex::new(None) }
    }

    pub(crate) fn node(&self) -> &Arc<ValueNode> {
        &self.cache.node
    }

    pub(crate) fn lock(&self) -> Arc<Lock> {
        Arc::clone(&self.node().lock.lock)
    }

    /// The value that an earlier read has found under the same kept node. It cannot have changed since: a writer would
    /// need the lock, and a transaction of this process would have been counted.
    fn kept(&self, guard: &ReadGuard) -> Option<Arc<Stored<T>>> {
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
}

impl<T: Send + Sync + 'static> Store<T> {
    /// The value, read under the lock. Under a kept node only the first read asks for it.
    pub(crate) async fn read_under(&self, guard: &ReadGuard) -> Result<Arc<Stored<T>>, Error> {
        if let Some(value) = self.kept(guard) {
            return Ok(value);
        }
        let (held, Cache { node, terms, .. }) = (guard.held(), &*self.cache);
        let mut tries = 0;
        loop {
            let writes = held.own_node().settled_writes();
            let (bytes, base) = node.read(held).await?;
            match (terms.open(&node.form, &bytes), &terms.initial) {
                (Err(ValueError::Unset), Some(initial)) if tries < retry::UNKNOWN_TRIES => {
                    tries += 1;
                    let payload = self.payload(&initial())?;
                    if let Some(committed) = node.begin(held, &payload, base).await? {
                        self.cache.committed(held.ticket().session().lease(), &committed);
                    }
                }
                (Ok(value), _) => {
                    let value = Arc::new(value);
                    self.keep(guard, writes, &value);
                    return Ok(value);
                }
                (Err(error), _) => return Err(node.fault(error)),
            }
        }
    }

    /// What a write begins with: this value, whatever the node holds; or else the present value, or the initial one, which is
    /// not in the node yet.
    pub(crate) async fn load(&self, held: &Tenure, instead: Option<T>) -> Result<Loaded<T>, Error> {
        let Cache { node, terms, .. } = &*self.cache;
        let (bytes, base) = node.read(held).await?;
        if let Some(value) = instead {
            let written = Envelope::open(&bytes).ok().map(|(envelope, _)| envelope.written);
            return Ok(Loaded { value, written, base });
        }
        match (terms.open(&node.form, &bytes), &terms.initial) {
            (Ok(Stored { value, written }), _) => Ok(Loaded { value, written: Some(written), base }),
            (Err(ValueError::Unset), Some(initial)) => Ok(Loaded { value: initial(), written: None, base }),
            (Err(error), _) => Err(node.fault(error)),
        }
    }

    /// The bytes of a value. Fails if they could not be read again.
    pub(crate) fn payload(&self, value: &T) -> Result<Vec<u8>, Error> {
        self.cache.terms.payload(value).map_err(|error| self.node().fault(error))
    }
}
