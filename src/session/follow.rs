//! Following something by watches, on one session after the other; knows neither what it is nor who wants to know.

use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use crate::session::contract::{Coordinator, Session, SessionSlot};
use crate::session::request::{Event, Failure};

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
                    is_known_to_be_over(on.session()).await;
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
pub(crate) async fn is_known_to_be_over(session: &Arc<dyn Session>) {
    tokio::select! {
        biased;
        _ = session.over() => {}
        () = session.sleep(session.timeout() / 20) => {}
    }
}

/// Fails if a watch has told of the end of its session.
pub(crate) async fn unless_over(session: &Arc<dyn Session>, event: Event) -> Result<(), Failure> {
    match event {
        Event::Over => Err(Failure::Over(session.over().await)),
        _ => Ok(()),
    }
}
