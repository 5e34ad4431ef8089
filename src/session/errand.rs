//! Work on the session's thread, which goes on whether or not the caller is polled.

use std::future::ready;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tokio::sync::oneshot;

use crate::session::contract::Session;
use crate::session::request::{Failure, Reply};
use crate::session::shield::shielded;

/// Work that a caller waits for and others, too: on the session's thread, unless it is done at once. If the caller has gone by
/// then, `unheard` gets the answer.
pub(crate) fn errand<T: Send + 'static>(
    session: &Arc<dyn Session>,
    mut work: Reply<T>,
    unheard: fn(Result<T, Failure>),
) -> Reply<T> {
    if let Poll::Ready(answer) = work.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        return Box::pin(ready(answer));
    }
    let (tell, told) = oneshot::channel();
    session.spawn(Box::pin(async move {
        if let Err(answer) = tell.send(work.await) {
            unheard(answer);
        }
    }));
    let ended = || Failure::Unknown("the session's thread has ended".to_owned());
    Box::pin(async move { shielded(told).await.unwrap_or_else(|_| Err(ended())) })
}

/// Work on the session's thread that nobody waits for. Dropping what this returns ends it.
pub(crate) fn beside(
    session: &Arc<dyn Session>,
    work: impl Future<Output: Send> + Send + 'static,
) -> oneshot::Sender<()> {
    let (end, ended) = oneshot::channel();
    session.spawn(Box::pin(async move {
        tokio::select! {
            biased;
            _ = ended => {}
            _ = work => {}
        }
    }));
    end
}
