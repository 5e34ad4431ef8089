//! Following something by watches, on one session after the other, and waiting for a node that does not exist.

use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use crate::session::contract::{Coordinator, Session, SessionSlot};
use crate::session::presence::{self, Recheck, unless_over};
use crate::session::request::Failure;
use crate::session::retry;

/// How long to wait before the next try: after a refusal, after a lost connection, or after a request that could not be sent.
pub(crate) const PAUSE: Duration = Duration::from_secs(1);

/// Something that is followed.
pub(crate) trait Followed: Sync {
    /// `None` once nobody wants to know any more.
    fn coordinator(&self) -> Option<Arc<dyn Coordinator>>;

    /// How many bytes of paths are watched.
    fn watched_bytes(&self) -> usize;

    /// Watches on one session, until that fails.
    fn watch(&self, session: &Arc<dyn Session>) -> impl Future<Output = Result<Infallible, Failure>> + Send;

    /// It cannot be watched just now, or never again: the coordinator was closed.
    fn refused(&self, failure: Failure);
}

/// Follows until the coordinator is closed, or nobody wants to know any more.
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
        // A connection, or an answer, that is lost says nothing about what is followed.
        if !matches!(failure, Failure::Unknown(_) | Failure::Unreachable(_)) {
            it.refused(failure);
        }
        let Some(pause) = it.coordinator().map(|coordinator| coordinator.sleep(PAUSE)) else { return };
        pause.await;
    }
}

/// Waits until the session counts as over. Its requests fail a moment before that, and until then the coordinator gives
/// it out again.
pub(crate) async fn wait_until_known_to_be_over(session: &Arc<dyn Session>) {
    tokio::select! {
        biased;
        _ = session.over() => {}
        () = session.sleep(session.timeout() / 20) => {}
    }
}

/// A directory that other clients use, too, is listed no more often than this.
const LOOK_PAUSE: Duration = Duration::from_millis(20);

/// Waits until the node may exist. Watches the children of the nearest existing directory above it. A watch on a node
/// that does not exist could never be taken back.
pub(crate) async fn possible(session: &Arc<dyn Session>, path: &str) -> Result<(), Failure> {
    let (mut wanted, mut look) = (path, Recheck::new(session));
    loop {
        let (directory, name) = wanted.rsplit_once('/').unwrap_or_default();
        let directory = if directory.is_empty() { "/" } else { directory };
        match retry::until_known(session, || session.watch_children(directory)).await {
            // It has come just now, or a server lists what it denies.
            Ok((names, _)) if names.iter().any(|it| it == name) => {
                session.sleep(LOOK_PAUSE).await;
                return Ok(());
            }
            Ok((names, change)) => {
                drop(names);
                tokio::select! {
                    biased;
                    event = change => unless_over(session, event).await?,
                    // This server may have it by now. If not, the next look comes after a longer pause.
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
