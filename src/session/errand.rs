//! Work on the session's thread, which goes on whether or not the caller is polled.

use std::sync::Arc;
use std::task::{Context, Waker};

use tokio::sync::oneshot;

use crate::session::contract::Session;
use crate::session::request::{Failure, Reply, Task};
use crate::session::shield::shielded;

/// Begins work, and leaves the rest to the session's thread: a caller that is not polled holds up nobody.
pub(crate) fn begin(session: &Arc<dyn Session>, work: impl Future<Output = ()> + Send + 'static) {
    let mut task: Task = Box::pin(work);
    if task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
        session.spawn(task);
    }
}

/// Work on the session's thread that a caller waits for. If the caller has gone by then, `unheard` gets the answer.
pub(crate) fn errand<T: Send + 'static>(
    session: &Arc<dyn Session>,
    work: impl Future<Output = Result<T, Failure>> + Send + 'static,
    unheard: fn(Result<T, Failure>),
) -> Reply<T> {
    let (tell, told) = oneshot::channel();
    begin(session, async move {
        if let Err(answer) = tell.send(work.await) {
            unheard(answer);
        }
    });
    let ended = || Failure::Unknown("the session's thread has ended".to_owned());
    Box::pin(async move { shielded(told).await.unwrap_or_else(|_| Err(ended())) })
}

/// Work on the session's thread that nobody waits for. Dropping what this returns ends it.
pub(crate) fn spawn_cancellable(
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
