//! Work that goes on when the call that began it has returned.

use std::sync::{Arc, Weak};

use futures_util::FutureExt;

use crate::error::error::Error;
use crate::session::contract::{Coordinator, SessionSlot};
use crate::session::request::Task;
use crate::session::thread::BackgroundThread;
use crate::telemetry::teller::{self, Teller};

/// Drops values of the user's, whose destructors may block or panic.
static DROPS: Teller = Teller::new("zk-rwlock-values");

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

/// Uses for a moment what has code of the user's in it: values, and how they are made. If its last owner goes meanwhile, it is
/// not dropped on a thread of the library's.
pub(crate) fn with<S: Send + Sync + 'static, T>(shared: &Weak<S>, work: impl FnOnce(&S) -> T) -> Option<T> {
    let shared = shared.upgrade()?;
    let result = work(&shared);
    if let Some(last) = Arc::into_inner(shared)
        && teller::is_ours()
    {
        DROPS.run(move || drop(last));
    }
    Some(result)
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    #[test]
    fn the_last_of_a_value_is_not_dropped_on_a_thread_of_the_librarys() {
        struct Tells(mpsc::Sender<Option<String>>);
        impl Drop for Tells {
            fn drop(&mut self) {
                self.0.send(thread::current().name().map(str::to_owned)).expect("it is awaited");
            }
        }
        for (is_ours, expected) in [(true, "zk-rwlock-values"), (false, "a caller")] {
            let (tell, dropped) = mpsc::channel();
            let caller = thread::Builder::new().name("a caller".to_owned()).spawn(move || {
                if is_ours {
                    teller::this_thread_is_ours();
                }
                let mut owner = Some(Arc::new(Tells(tell)));
                let weak = owner.as_ref().map(Arc::downgrade).unwrap_or_default();
                assert!(with(&weak, |_| owner.take().is_some()).is_some_and(|had_it| had_it));
                assert!(with(&weak, |_| ()).is_none());
            });
            caller.expect("a thread").join().expect("no panic");
            assert_eq!(dropped.recv().expect("it is dropped").as_deref(), Some(expected));
        }
    }
}
