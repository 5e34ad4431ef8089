//! How a task waits for news of an own node; knows neither modes nor turns.

use std::sync::Arc;
use std::time::Duration;

use crate::session::contract::Session;
use crate::session::loss::Loss;
use crate::session::node::{Asked, OwnNode};

impl OwnNode {
    /// Waits until the contender is called to look where it stands, or until the node is lost.
    pub(crate) async fn called(&self, session: &Arc<dyn Session>) -> Result<(), Loss> {
        let is_called = || self.take_call().then_some(Ok(()));
        self.until(session, || self.loss(session.lease()).map(Err).or_else(is_called)).await
    }

    /// Waits until the node is lost, at the latest when the lease runs out.
    pub(crate) async fn lost(&self, session: &Arc<dyn Session>) -> Loss {
        self.until(session, || self.loss(session.lease())).await
    }

    /// Waits until the hold is over, whether released or lost.
    pub(crate) async fn ended(&self, session: &Arc<dyn Session>) {
        let look = || (self.has_left() || self.loss(session.lease()).is_some()).then_some(());
        self.until(session, look).await;
    }

    /// Waits until a contender of the same session asks for the node, or the node is left or lost.
    pub(crate) async fn asked(&self, session: &Arc<dyn Session>) {
        let look = || (self.is_asked() || self.has_left() || self.loss(session.lease()).is_some()).then_some(());
        self.until(session, look).await;
    }

    /// Asks for a watch on this node, unless one was asked for already. The request is on its way when this returns.
    pub(crate) fn ask_to_watch(&self, session: &Arc<dyn Session>) -> Option<Asked> {
        let path = self.begin_to_watch()?;
        Some(Asked { watch: session.watch(&path), path })
    }

    /// Waits until `look` finds something; looks again after every change, and when the lease would run out.
    pub(crate) async fn until<T>(&self, session: &Arc<dyn Session>, mut look: impl FnMut() -> Option<T>) -> T {
        loop {
            // Registered before looking, so that a change in between is not missed.
            let mut changed = std::pin::pin!(self.changed());
            changed.as_mut().enable();
            if let Some(found) = look() {
                return found;
            }
            match session.lease().remaining() {
                // The lease ran out since `look` was called.
                None if self.is_holding() => {}
                Some(left) if self.is_holding() && left < Duration::MAX => {
                    // In slices, because timers stand still while the machine is suspended and the lease does not.
                    let slice = left.min(session.timeout() / 20);
                    tokio::select! {
                        biased;
                        () = changed => {}
                        () = session.sleep(slice) => {}
                    }
                }
                _ => changed.await,
            }
        }
    }
}
