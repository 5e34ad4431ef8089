//! Follows a node by watches, on one session after another, and waits for a node that does not exist yet. [`follow`]
//! serves the copies of shared values and the observers of elections.

use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use crate::session::contract::{Coordinator, Session, SessionSlot};
use crate::session::presence::{self, Recheck, unless_over};
use crate::session::request::Failure;
use crate::session::retry;

/// The pause before the next try, after a refusal, a lost connection, or a request that could not be sent.
pub(crate) const PAUSE: Duration = Duration::from_secs(1);

/// A target of [`follow`].
pub(crate) trait Followed: Sync {
    /// Returns the coordinator, or `None` to stop following.
    fn coordinator(&self) -> Option<Arc<dyn Coordinator>>;

    /// Returns how many bytes of paths are watched.
    fn watched_bytes(&self) -> usize;

    /// Watches the target on one session, until a request fails.
    fn watch(&self, session: &Arc<dyn Session>) -> impl Future<Output = Result<Infallible, Failure>> + Send;

    /// Reports that watching was refused, for now, or for good because the coordinator was closed.
    fn refused(&self, failure: Failure);
}

/// Follows the target until the coordinator is closed, or [`Followed::coordinator`] returns `None`.
pub(crate) async fn follow(it: &impl Followed, mut session_slot: Option<SessionSlot>) {
    loop {
        let failure = match &session_slot {
            Some(on) => {
                let Err(failure) = it.watch(on.session()).await;
                if let Failure::Over(_) = failure {
                    wait_until_known_to_be_over(on.session()).await;
                    session_slot = None;
                    continue;
                }
                failure
            }
            None => {
                let Some(coordinator) = it.coordinator() else { return };
                match coordinator.session_slot(it.watched_bytes()).await {
                    Ok(another) => {
                        session_slot = Some(another);
                        continue;
                    }
                    Err(failure @ Failure::Over(_)) => return it.refused(failure),
                    Err(failure) => failure,
                }
            }
        };
        // A lost connection or answer says nothing about the target.
        if !matches!(failure, Failure::Unknown(_) | Failure::Unreachable(_)) {
            it.refused(failure);
        }
        let Some(pause) = it.coordinator().map(|coordinator| coordinator.sleep(PAUSE)) else { return };
        pause.await;
    }
}

/// Waits until the session is known to be over. Its requests fail a moment earlier, and until then the coordinator hands
/// the session out again.
pub(crate) async fn wait_until_known_to_be_over(session: &Arc<dyn Session>) {
    tokio::select! {
        biased;
        _ = session.over() => {}
        () = session.sleep(session.timeout() / 20) => {}
    }
}

/// The shortest time between two listings of a directory that other clients also use.
const LOOK_PAUSE: Duration = Duration::from_millis(20);

/// Waits until the node may exist, by a watch on the children of its nearest existing ancestor. A watch on the missing
/// node itself could never be removed.
pub(crate) async fn possible(session: &Arc<dyn Session>, path: &str) -> Result<(), Failure> {
    let (mut wanted, mut look) = (path, Recheck::new(session));
    loop {
        let (directory, name) = wanted.rsplit_once('/').unwrap_or_default();
        let directory = if directory.is_empty() { "/" } else { directory };
        match retry::until_known(session, || session.watch_children(directory)).await {
            // The node was created just now, or the server lists a node that it denies.
            Ok((names, _)) if names.iter().any(|it| it == name) => {
                session.sleep(LOOK_PAUSE).await;
                return Ok(());
            }
            Ok((names, change)) => {
                drop(names);
                tokio::select! {
                    biased;
                    event = change => unless_over(session, event).await?,
                    // This server may have the node by now. If not, the next check comes after a longer pause.
                    () = look.find(path, true) => {
                        presence::report(session, path, None);
                        wanted = path;
                        continue;
                    }
                }
                if wanted != path {
                    session.sleep(LOOK_PAUSE).await;
                }
                return Ok(());
            }
            Err(Failure::NoNode) if directory != "/" => wanted = directory,
            Err(failure @ Failure::Over(_)) => return Err(failure),
            Err(_) => {
                session.sleep(PAUSE).await;
                return Ok(());
            }
        }
    }
}
