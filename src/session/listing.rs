//! Listings of a directory that several tasks share; knows no turns, and reads no name.
//!
//! Each contender lists the directory once, so a crowd of n contenders that arrives together would read n times n
//! names. But one listing serves every caller that asked for it before it was *sent*. So while listings are under way,
//! new callers join the next one.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};

use crate::session::contract::Session;
use crate::session::listings::{Begin, Children, MANY, Names};
use crate::session::request::{Failure, Reply};

/// How long a large listing waits for the large listings of other sessions.
const TURN_MAX: Duration = Duration::from_millis(250);

/// Asks for the children of a directory. The answer shows them at some moment after this call, and after every request
/// that was sent on this session before.
pub(crate) fn list(session: &Arc<dyn Session>, directory: &Arc<str>) -> Reply<Names> {
    list_or_join(session, directory).0
}

/// As [`list`]. Says whether the request was sent just now; otherwise it is sent later.
pub(crate) fn list_or_join(session: &Arc<dyn Session>, directory: &Arc<str>) -> (Reply<Names>, bool) {
    let mut answer = match session.upkeep().listings().begin(directory) {
        Begin::Send => return (send(session, directory), true),
        Begin::Join(answer) => answer,
    };
    let joined = Box::pin(async move {
        match answer.wait_for(Option::is_some).await.as_deref() {
            Ok(Some(answer)) => answer.clone(),
            _ => Err(Failure::Unknown("no caller waited for the listing".to_owned())),
        }
    });
    (joined, false)
}

fn send(session: &Arc<dyn Session>, directory: &Arc<str>) -> Reply<Names> {
    let mut under_way = UnderWay { session: Arc::clone(session), directory: Arc::clone(directory), is_large: None };
    let reply = session.children_and_stat(directory);
    Box::pin(async move {
        let answer = reply.await;
        under_way.is_large = Some(answer.as_ref().is_ok_and(|(names, _)| names.len() > MANY));
        drop(under_way);
        answer.map(|(names, directory)| Arc::new(Children { names, directory }))
    })
}

/// A listing under way. When it is answered, or no caller waits for it any more, the next one is sent.
struct UnderWay {
    session: Arc<dyn Session>,
    directory: Arc<str>,
    /// Known once it is answered.
    is_large: Option<bool>,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        if let Some((next, is_large)) = self.session.upkeep().listings().end(&self.directory, self.is_large) {
            let (session, directory) = (Arc::clone(&self.session), Arc::clone(&self.directory));
            // The callers that wait may all leave, so the listing goes on without them.
            self.session.spawn(Box::pin(async move {
                let _turn = if is_large { its_turn(&session).await } else { None };
                next.send_replace(Some(send(&session, &directory).await));
            }));
        }
    }
}

/// Lets large listings of all sessions go one after the other. No listing waits long for one that hangs.
async fn its_turn(session: &Arc<dyn Session>) -> Option<SemaphorePermit<'static>> {
    static TURN: Semaphore = Semaphore::const_new(1);
    tokio::select! {
        biased;
        turn = TURN.acquire() => turn.ok(),
        () = session.sleep(TURN_MAX) => None,
    }
}

#[cfg(test)]
mod tests;
