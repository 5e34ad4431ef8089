//! Work that goes on when the call that began it has returned; knows no values.

use std::sync::Arc;

use futures_util::FutureExt;

use crate::error::error::Error;
use crate::session::contract::{Coordinator, SessionSlot};
use crate::session::request::Task;
use crate::session::thread::BackgroundThread;

/// Starts work on the session's own thread, with a slot on it; or on the library's thread, if there is no session yet. The embedded ensemble has no thread: there the client that makes the work ready runs it.
pub(crate) fn start(
    coordinator: &Arc<dyn Coordinator>,
    watched_bytes: usize,
    work: impl FnOnce(Option<SessionSlot>) -> Task,
) -> Result<(), Error> {
    // The slot is usually there at once.
    if let Some(Ok(session_slot)) = coordinator.session_slot(watched_bytes).now_or_never() {
        let session = Arc::clone(session_slot.session());
        session.spawn(work(Some(session_slot)));
        return Ok(());
    }
    let background = BackgroundThread::get().map_err(|error| Error::Unreachable(error.to_string()))?;
    let (handle, work) = (background.handle().clone(), work(None));
    handle.spawn(async move {
        work.await;
        drop(background);
    });
    Ok(())
}
