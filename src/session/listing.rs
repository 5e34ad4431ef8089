//! Listings of a directory that several tasks share; knows neither names nor turns.
//!
//! Each contender lists the directory once, so a crowd of n that arrives together would read n times n names. But
//! a listing serves whoever asked for it before it was *sent*: while some are under way, those who come join the next.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit, watch};

use crate::session::contract::Session;
use crate::session::request::{Failure, Reply};

/// Few do not wait for each other: theirs are all under way at once.
const UNDER_WAY_MAX: usize = 4;

/// With more names than this, one listing at a time: they would fill memory with copies of the same names.
const MANY: usize = 256;

/// How long a large listing waits for those of other sessions.
const TURN_MAX: Duration = Duration::from_millis(250);

/// The names of a directory's children.
pub(crate) type Names = Arc<Vec<String>>;

type Next = watch::Sender<Option<Result<Names, Failure>>>;

/// The listings of one session.
#[derive(Default)]
pub(crate) struct Listings(Mutex<HashMap<Arc<str>, Directory>>);

#[derive(Default)]
struct Directory {
    under_way: usize,
    /// The last answer had many names.
    is_large: bool,
    /// The one that is sent when one of those under way is answered, and who waits for it.
    next: Option<Next>,
}

impl Directory {
    fn most(&self) -> usize {
        if self.is_large { 1 } else { UNDER_WAY_MAX }
    }
}

/// Asks for the children of a directory: they are as they were at some moment after this call, and after everything
/// that was sent on this session before.
pub(crate) fn list(session: &Arc<dyn Session>, directory: &Arc<str>) -> Reply<Names> {
    let mut all = session.lease().listings().0.lock().unwrap_or_else(PoisonError::into_inner);
    let listed = all.entry(Arc::clone(directory)).or_default();
    if listed.under_way < listed.most() {
        listed.under_way += 1;
        drop(all);
        return send(session, directory);
    }
    let mut answer = listed.next.get_or_insert_with(|| watch::channel(None).0).subscribe();
    Box::pin(async move {
        match answer.wait_for(Option::is_some).await.as_deref() {
            Ok(Some(answer)) => answer.clone(),
            _ => Err(Failure::Unknown("nobody waited for the listing".to_owned())),
        }
    })
}

fn send(session: &Arc<dyn Session>, directory: &Arc<str>) -> Reply<Names> {
    let mut under_way = UnderWay { session: Arc::clone(session), directory: Arc::clone(directory), is_large: None };
    let reply = session.children(directory);
    Box::pin(async move {
        let answer = reply.await;
        under_way.is_large = Some(answer.as_ref().is_ok_and(|names| names.len() > MANY));
        drop(under_way);
        answer.map(Arc::new)
    })
}

/// A listing under way. When it is answered, or nobody waits for it any more, the next one is sent.
struct UnderWay {
    session: Arc<dyn Session>,
    directory: Arc<str>,
    /// Known once it is answered.
    is_large: Option<bool>,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let mut all = self.session.lease().listings().0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(listed) = all.get_mut(&self.directory) else { return };
        listed.is_large = self.is_large.unwrap_or(listed.is_large);
        let is_large = listed.is_large;
        // With more under way than there may be, the next one waits for them, too.
        let next = if listed.under_way <= listed.most() { listed.next.take() } else { None };
        let next = next.filter(|next| next.receiver_count() > 0);
        if next.is_none() {
            listed.under_way -= 1;
            if listed.under_way == 0 {
                all.remove(&self.directory);
            }
        }
        drop(all);
        if let Some(next) = next {
            let (session, directory) = (Arc::clone(&self.session), Arc::clone(&self.directory));
            // Those who wait may all leave, so it goes on without them.
            self.session.spawn(Box::pin(async move {
                let _turn = if is_large { its_turn(&session).await } else { None };
                next.send_replace(Some(send(&session, &directory).await));
            }));
        }
    }
}

/// One large listing after the other, whatever session it is of; but none waits long for one that hangs.
async fn its_turn(session: &Arc<dyn Session>) -> Option<SemaphorePermit<'static>> {
    static TURN: Semaphore = Semaphore::const_new(1);
    tokio::select! {
        biased;
        turn = TURN.acquire() => turn.ok(),
        () = session.sleep(TURN_MAX) => None,
    }
}

impl fmt::Debug for Listings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Listings")
    }
}
