//! The initial value, for a caller that only follows: made by that caller, and written in the background. So a caller that is
//! not polled holds up no writer. It knows no watch.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::error::error::Error;
use crate::lock::rw_lock::RwLock;
use crate::session::contract::Coordinator;
use crate::session::request::Failure;
use crate::value::background;
use crate::value::commit::{Base, Commit};
use crate::value::envelope::Mark;
use crate::value::store::Store;

/// How long to wait before the next try, after a lost connection.
const PAUSE: Duration = Duration::from_secs(1);

/// What became of the write. It ends without an answer if its session does.
pub(crate) type Begun = oneshot::Receiver<Result<(), Error>>;

impl<T: Send + Sync + 'static> Store<T> {
    /// Sets out to write the initial value; `None` if there is none. Dropping what this returns ends that.
    ///
    /// The value is made here: no code of the user's runs on the thread that keeps the sessions alive.
    pub(crate) fn begin(self: &Arc<Self>) -> Option<Begun> {
        let payload = self.cache.terms.payload(&self.cache.terms.initial.as_ref()?());
        let (told, begun) = oneshot::channel();
        let coordinator = Arc::clone(&self.cache.coordinator);
        let first = payload.map(|payload| InitialWrite {
            store: Arc::downgrade(self),
            lock: self.lock.clone(),
            coordinator: Arc::clone(&coordinator),
            path: self.cache.path.clone(),
            payload,
        });
        let first = match first {
            Ok(first) => first,
            Err(error) => {
                let _nobody_has_gone = told.send(Err(self.cache.fault(error)));
                return Some(begun);
            }
        };
        let started = background::start(&coordinator, 0, |_session_slot| {
            Box::pin(async move {
                let mut told = told;
                tokio::select! {
                    biased;
                    () = told.closed() => {}
                    answer = first.write() => drop(told.send(answer)),
                }
            })
        });
        if let Err(error) = started {
            self.cache.over(Error::Unreachable(error.to_string()));
        }
        Some(begun)
    }
}

/// The initial value, on its way into the node. It does not keep the handle alive.
struct InitialWrite<T> {
    store: Weak<Store<T>>,
    lock: RwLock,
    coordinator: Arc<dyn Coordinator>,
    path: String,
    payload: Vec<u8>,
}

impl<T: Send + Sync + 'static> InitialWrite<T> {
    /// Returns when there is a value, whoever wrote it.
    async fn write(self) -> Result<(), Error> {
        loop {
            match self.attempt().await {
                Err(Error::Unreachable(_) | Error::OutcomeUnknown { .. } | Error::Lost(_) | Error::Evicted(_)) => {
                    self.coordinator.sleep(PAUSE).await;
                }
                answer => return answer,
            }
        }
    }

    /// Writes the value under the lock, as a reader does that finds none.
    async fn attempt(&self) -> Result<(), Error> {
        let guard = self.lock.read().await?;
        let (held, coordinator, path) = (guard.held(), &self.coordinator, self.path.as_str());
        let node = held.data(path).await?;
        if node.as_ref().is_some_and(|node| !node.data.is_empty()) {
            return Ok(());
        }
        let base = Base::of(node.as_ref());
        let Some(store) = self.store.upgrade() else { return Ok(()) };
        let (bytes, written) = store.wrap(&self.payload, held, base)?;
        drop(store);
        match (Commit { held, coordinator, path, bytes: &bytes, mark: Mark::of(&written), base }).put().await {
            // Another reader was faster.
            Err(Error::TransactionRefused { reason: Failure::NodeExists | Failure::BadVersion, .. }) => Ok(()),
            answer => answer.map(drop),
        }
    }
}
