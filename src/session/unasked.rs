//! What notices a task that ends unasked: by a panic, or with its thread.

use crate::telemetry::teller::guarded;

/// Runs the task. Unless it comes to its end, this was its fault.
pub(crate) async fn on_unasked_end(task: impl Future<Output = ()>, fault: impl FnOnce()) {
    let mut unasked = Unasked(Some(fault));
    task.await;
    unasked.0 = None;
}

struct Unasked<F: FnOnce()>(Option<F>);

impl<F: FnOnce()> Drop for Unasked<F> {
    fn drop(&mut self) {
        // While a panic unwinds, another one would end the process.
        let _panicked = self.0.take().and_then(guarded);
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn a_task_that_panics_is_noticed_and_one_that_ends_is_not() {
        for (panics, expected) in [(false, false), (true, true)] {
            let (tell, told) = oneshot::channel();
            let task = async move { assert!(!panics, "as a task may") };
            drop(tokio::spawn(on_unasked_end(task, || _ = tell.send(()))).await);
            assert_eq!(told.await.is_ok(), expected);
        }
    }
}
