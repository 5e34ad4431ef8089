//! Work that goes on when the call that began it has returned, and the session slot that it begins with; knows no
//! values.

use std::future::{Future, ready};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::session::contract::{Coordinator, SessionSlot};
use crate::session::request::{Failure, Task};
use crate::session::thread::BackgroundThread;

/// A session slot to come.
pub(crate) type Reserving = Pin<Box<dyn Future<Output = Result<SessionSlot, Failure>> + Send>>;

pub(crate) fn session_slot(coordinator: Arc<dyn Coordinator>, watched_bytes: usize) -> Reserving {
    Box::pin(async move { coordinator.session_slot(watched_bytes).await })
}

/// Starts work on the session's own thread, until the session is over; or on the library's thread, if there is no session
/// yet. The embedded ensemble has no thread: there the client that makes the work ready runs it.
pub(crate) fn start(
    coordinator: &Arc<dyn Coordinator>,
    watched_bytes: usize,
    work: impl FnOnce(Reserving) -> Task,
) -> io::Result<()> {
    let mut reserving = session_slot(Arc::clone(coordinator), watched_bytes);
    // The slot is usually there at once.
    match reserving.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Ok(session_slot)) => {
            let session = Arc::clone(session_slot.session());
            session.spawn(work(Box::pin(ready(Ok(session_slot)))));
        }
        answer => {
            let work = work(match answer {
                Poll::Ready(failure) => Box::pin(ready(failure)),
                Poll::Pending => reserving,
            });
            let background = BackgroundThread::get()?;
            let handle = background.handle().clone();
            handle.spawn(async move {
                work.await;
                drop(background);
            });
        }
    }
    Ok(())
}
