//! Asking again until the outcome is known.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use crate::session::contract::Session;
use crate::session::request::{Failure, Reply, Stat};

/// How often an answer may be lost before the outcome stays unknown: a broken server must not be asked for ever.
pub(crate) const UNKNOWN_TRIES: u32 = 64;

/// Asks, and asks again after each reconnect until the outcome is known.
pub(crate) async fn until_known<T, F>(session: &Arc<dyn Session>, ask: impl Fn() -> F) -> Result<T, Failure>
where
    F: Future<Output = Result<T, Failure>>,
{
    let mut tries = 0;
    loop {
        match ask().await {
            Err(Failure::Unknown(_)) if tries < UNKNOWN_TRIES => before_next_try(session, &mut tries).await?,
            answer => return answer,
        }
    }
}

/// As [`until_known`], for as long as the session lives. For work that must not stay undone, and that no caller waits for
/// without a lease that runs out meanwhile.
pub(crate) async fn until_known_at_last<T>(
    session: &Arc<dyn Session>,
    ask: impl Fn() -> Reply<T>,
) -> Result<T, Failure> {
    loop {
        match until_known(session, &ask).await {
            Err(Failure::Unknown(_)) => {}
            answer => return answer,
        }
    }
}

/// Waits for the connection. Waits longer and longer if answers are lost again and again while the connection is there.
pub(crate) async fn before_next_try(session: &Arc<dyn Session>, tries: &mut u32) -> Result<(), Failure> {
    session.connected().await.map_err(Failure::Over)?;
    *tries = tries.saturating_add(1);
    if *tries > 3 {
        session.sleep(session.timeout() / 50 * (*tries - 3).min(12)).await;
    }
    Ok(())
}

/// Sleeps. `false` if the timer was over at once: it belongs to a runtime that is gone, and so would the next one.
pub(crate) async fn slept(session: &Arc<dyn Session>, pause: Duration) -> bool {
    let began = session.lease().now();
    session.sleep(pause).await;
    session.lease().now() >= began.saturating_add(pause / 2)
}

/// What `read` finds after a sync; both requests are on their way when this returns.
pub(crate) fn synced<T: 'static>(
    session: &Arc<dyn Session>,
    path: &str,
    read: fn(&dyn Session, &str) -> Reply<T>,
) -> Reply<T> {
    let (synced, read) = (session.sync(path), read(&**session, path));
    Box::pin(async move {
        synced.await?;
        read.await
    })
}

/// What `read` finds; after a sync if it may not be older than this call.
pub(crate) fn read<T: 'static>(
    session: &Arc<dyn Session>,
    path: &str,
    is_synced: bool,
    read: fn(&dyn Session, &str) -> Reply<T>,
) -> Reply<T> {
    if is_synced { synced(session, path, read) } else { read(&**session, path) }
}

/// What is in a node, `None` if it does not exist; after a sync if it may not be older than this call.
pub(crate) async fn data(
    session: &Arc<dyn Session>,
    path: &str,
    is_synced: bool,
) -> Result<Option<(Vec<u8>, Stat)>, Failure> {
    match until_known(session, || read(session, path, is_synced, |it, path| it.data(path))).await {
        Ok(node) => Ok(Some(node)),
        Err(Failure::NoNode) => Ok(None),
        Err(failure) => Err(failure),
    }
}

pub(crate) fn none_without_directory(failure: Failure) -> Result<Vec<String>, Failure> {
    if failure == Failure::NoNode { Ok(Vec::new()) } else { Err(failure) }
}
