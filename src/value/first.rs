//! The initial value, for a handle that only follows: made by its caller, and written in the background; knows no watch.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::error::error::Error;
use crate::lock::rw_lock::RwLock;
use crate::session::contract::Coordinator;
use crate::session::request::Failure;
use crate::sync::watch;
use crate::value::background;
use crate::value::cache::Begun;
use crate::value::commit::{Base, Commit};
use crate::value::envelope::Mark;
use crate::value::known::Known;
use crate::value::store::Store;

/// How long to wait before the next try, after a lost connection.
const PAUSE: Duration = Duration::from_secs(1);

impl<T: Send + Sync + 'static> Store<T> {
    /// Sets out to write the initial value if the follower has found that there is none. Sends nothing, and does nothing
    /// otherwise.
    ///
    /// The value is made here: no code of the user's runs on the thread that keeps the sessions alive.
    pub(crate) fn begin_if_wanted(self: &Arc<Self>) {
        let Some((begun, initial)) = self.cache.set_out() else { return };
        let terms = &self.cache.terms;
        let payload = match terms.payload(&initial()) {
            Ok(payload) => payload,
            Err(error) => return begun.failed(self.cache.fault(error)),
        };
        let (stop, stopped) = oneshot::channel();
        let first = InitialWrite {
            store: Arc::downgrade(self),
            lock: self.lock.clone(),
            known: self.cache.subscribe(),
            coordinator: Arc::clone(&self.cache.coordinator),
            path: self.cache.path.clone(),
            payload,
        };
        let started = background::start(&self.cache.coordinator, 0, |_session_slot| {
            Box::pin(async move {
                tokio::select! {
                    biased;
                    _ = stopped => {}
                    answer = first.write() => match answer {
                        Ok(()) => begun.done(),
                        Err(error) => begun.failed(error),
                    },
                }
            })
        });
        match started {
            Ok(()) => self.writes_first(stop),
            Err(error) => self.cache.over(Error::Unreachable(error.to_string())),
        }
    }
}

/// The initial value, on its way into the node. It does not keep the handle alive.
struct InitialWrite<T> {
    store: Weak<Store<T>>,
    lock: RwLock,
    known: watch::Receiver<Known<T>>,
    coordinator: Arc<dyn Coordinator>,
    path: String,
    payload: Vec<u8>,
}

impl<T: Send + Sync + 'static> InitialWrite<T> {
    /// Returns when there is a value, whoever wrote it.
    async fn write(mut self) -> Result<(), Error> {
        let mut known = self.known.clone();
        tokio::select! {
            biased;
            answer = self.write_on() => answer,
            // The writer that this one waits for may have written a value.
            _ = known.wait_for(Known::has_value) => Ok(()),
        }
    }

    async fn write_on(&mut self) -> Result<(), Error> {
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
        let node = guard.data(&self.path).await?;
        if node.as_ref().is_some_and(|node| !node.data.is_empty()) {
            return Ok(());
        }
        let base = Base::of(node.as_ref());
        let Some(store) = self.store.upgrade() else { return Ok(()) };
        let (bytes, written) = store.wrap(&self.payload, guard.held(), base)?;
        drop(store);
        let (held, coordinator, path) = (guard.held(), &self.coordinator, self.path.as_str());
        match (Commit { held, coordinator, path, bytes: &bytes, mark: Mark::of(&written), base }).put().await {
            // Another reader was faster.
            Err(Error::TransactionRefused { reason: Failure::NodeExists | Failure::BadVersion, .. }) => Ok(()),
            answer => answer.map(drop),
        }
    }
}

impl<T> Begun<T> {
    /// There is a value now.
    fn done(self) {
        self.ends(None);
    }

    /// It was refused. Whoever waits for a value is told, and the next new caller tries again.
    fn failed(self, error: Error) {
        self.ends(Some(error));
    }
}
