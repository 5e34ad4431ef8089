//! The lock that this instance holds while it serves. `docs/serving.md` shows this code.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::sleep;
use zk_rwlock::{Error, ReadGuard, RwLock};

/// Whether requests are served. Each request clones the guard, and the drop of the last clone releases the lock.
#[derive(Clone, Debug)]
pub(crate) enum Phase {
    Serves(Arc<ReadGuard>),
    /// `/ready` says no. Requests that come before the load balancers notice are still served.
    Drains(Arc<ReadGuard>, String),
    Waits(String),
}

/// Serves, makes way for writers and takes a lost lock again, until the client is closed.
pub(crate) async fn hold_while_serving(lock: RwLock, phase: watch::Sender<Phase>, notice: Duration) -> Error {
    loop {
        let why = match serve_once(&lock, &phase, notice).await {
            Ok(why) => why,
            Err(closed @ Error::Closed(_)) => return closed,
            Err(error) => error.to_string(),
        };
        phase.send_replace(Phase::Waits(why));
        sleep(Duration::from_secs(1)).await;
    }
}

/// Returns why this instance makes way, or the error if the lock was lost or not granted.
async fn serve_once(lock: &RwLock, phase: &watch::Sender<Phase>, notice: Duration) -> Result<String, Error> {
    let guard = Arc::new(lock.read().label("serves").await?);
    phase.send_replace(Phase::Serves(Arc::clone(&guard)));
    let why = format!("makes way for {}", guard.contended().await?);
    phase.send_replace(Phase::Drains(Arc::clone(&guard), why.clone()));
    guard.run(sleep(notice)).await?;
    Ok(why)
}
