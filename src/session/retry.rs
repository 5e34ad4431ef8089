//! Repeats requests whose outcome is unknown. Also runs work on the thread of the sessions, so that the work goes on
//! even if its caller is never polled again.

use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::Arc;
use std::task::{Context, Waker};

use futures_util::{FutureExt, TryFutureExt};
use tokio::sync::oneshot;

use crate::session::contract::Session;
use crate::session::request::{Failure, Reply, Stat, Task, Watch};

/// How often a request was repeated, and how often it may be repeated.
#[derive(Clone)]
pub(crate) struct RetryBudget {
    made: u32,
    most: u32,
}

impl RetryBudget {
    /// The limit for a request whose answers are lost. There is a limit because a broken server could lose every
    /// answer. Beyond the limit the caller gets [`Failure::Unknown`].
    pub(crate) const LOST_ANSWERS: RetryBudget = RetryBudget { made: 0, most: 64 };
    /// The limit for a request to which a server answers that the node does not exist, although the leader has the
    /// node.
    pub(crate) const DENIALS: RetryBudget = RetryBudget { made: 0, most: 3 };
    /// No limit, for work that must be done, such as the removal of a node. The work ends once an answer comes or the
    /// session is over. A client that cannot reach the ensemble ends the session itself after about 1.5 session
    /// timeouts. So a release, which waits for this work, also ends.
    pub(crate) const ENDLESS: RetryBudget = RetryBudget { made: 0, most: u32::MAX };

    /// The limit for a request that is sent once.
    pub(crate) const fn once() -> RetryBudget {
        RetryBudget { made: 0, most: 0 }
    }

    pub(crate) fn count_try(&mut self) {
        self.made = self.made.saturating_add(1);
    }

    pub(crate) fn is_reached(&self) -> bool {
        self.made >= self.most
    }

    /// Waits until a request whose outcome is unknown may be sent again. If the outcome is known, or the limit is
    /// reached, returns `failure`. Fails with [`Failure::Over`] if the session is over.
    pub(crate) async fn await_retry(&mut self, session: &Arc<dyn Session>, failure: Failure) -> Result<(), Failure> {
        match failure {
            Failure::Unknown(_) if !self.is_reached() => self.pause(session).await,
            failure => Err(failure),
        }
    }

    /// Waits until the session is connected, and counts the try. From the fourth try on, also sleeps for 1/50 to 12/50
    /// of the session timeout, because the cause of so many failures is probably the server and not the connection.
    /// Fails if the session is over.
    pub(crate) async fn pause(&mut self, session: &Arc<dyn Session>) -> Result<(), Failure> {
        session.store().until_connected().await.map_err(Failure::Over)?;
        self.count_try();
        if self.made > 3 {
            session.sleep(session.timeout() / 50 * (self.made - 3).min(12)).await;
        }
        Ok(())
    }
}

/// Sends the request, and repeats it while its outcome is unknown, up to the limit [`RetryBudget::LOST_ANSWERS`].
pub(crate) async fn repeat_until_known<T, F>(
    session: &Arc<dyn Session>,
    request: impl FnMut() -> F,
) -> Result<T, Failure>
where
    F: Future<Output = Result<T, Failure>>,
{
    repeat_within_limit(session, RetryBudget::LOST_ANSWERS, request).await
}

/// Sends the request, and repeats it while its outcome is unknown, up to the limit `tries`.
pub(crate) async fn repeat_within_limit<T, F>(
    session: &Arc<dyn Session>,
    mut tries: RetryBudget,
    mut request: impl FnMut() -> F,
) -> Result<T, Failure>
where
    F: Future<Output = Result<T, Failure>>,
{
    loop {
        // A request that is made while the connection is lost is sent after the reconnect, even if the caller was
        // dropped by then. So the request is made only while the session is connected.
        if !session.lease().is_connected() {
            session.store().until_connected().await.map_err(Failure::Over)?;
        }
        match request().await {
            Err(failure) => tries.await_retry(session, failure).await?,
            answer => return answer,
        }
    }
}

/// Returns the result of `work`, or `None` if `end`, mostly a sleep, is ready first.
pub(crate) async fn run_until<T>(end: impl Future<Output = ()>, work: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        done = work => Some(done),
        () = end => None,
    }
}

/// Sends a read. With `is_synced`, a sync is sent before the read, so that the answer shows a state no older than this
/// call.
pub(crate) fn send_read<T: 'static>(
    session: &Arc<dyn Session>,
    path: &str,
    is_synced: bool,
    read: fn(&dyn Session, &str) -> Reply<T>,
) -> Reply<T> {
    let synced = is_synced.then(|| session.sync(path));
    let read = read(&**session, path);
    let Some(synced) = synced else { return read };
    Box::pin(synced.and_then(|()| read))
}

/// Returns a node's data and stat, or `None` if the node does not exist. With `is_synced` the answer shows a state no
/// older than this call.
pub(crate) async fn read_data(
    session: &Arc<dyn Session>,
    path: &str,
    is_synced: bool,
) -> Result<Option<(Vec<u8>, Stat)>, Failure> {
    let node = repeat_until_known(session, || send_read(session, path, is_synced, |it, path| it.data(path))).await;
    node.map(Some).or_else(default_if_no_node)
}

/// Fails if this client refuses nodes with wider rights, and the node's ACL is wider than this client's own ACL or
/// cannot be read. The request for the ACL, if it is needed, is sent before this function returns.
pub(crate) fn fail_if_rights_wider(
    session: &Arc<dyn Session>,
    path: &str,
) -> impl Future<Output = Result<(), Failure>> + Send {
    let mut first = session.refuses_wider_rights().then(|| session.wider_rights(path));
    async move {
        if first.is_none() {
            return Ok(());
        }
        let wider = repeat_until_known(session, || first.take().unwrap_or_else(|| session.wider_rights(path))).await?;
        let refused =
            |rights| Failure::Refused(format!("the ACL of {path} is wider than that of this client: {rights}"));
        if wider.is_empty() { Ok(()) } else { Err(refused(wider.join("; "))) }
    }
}

/// Watches a node and reads it. The watch is sent first. So a change between the two requests is in the data, and also
/// fires the watch.
pub(crate) async fn watch_and_read(
    session: &Arc<dyn Session>,
    path: &str,
) -> Result<(Watch, (Vec<u8>, Stat)), Failure> {
    let request = || {
        let (change, node) = (session.watch(path), session.data(path));
        async move { Ok((change.await?, node.await?)) }
    };
    repeat_until_known(session, request).await
}

/// Turns the failure "the node does not exist" into the answer without a node: no names, no data.
pub(crate) fn default_if_no_node<T: Default>(failure: Failure) -> Result<T, Failure> {
    if failure == Failure::NoNode { Ok(T::default()) } else { Err(failure) }
}

/// Polls the work once on the calling thread, so that its first request is sent before this function returns. If the
/// work is not done then, spawns the rest on the thread of the sessions, so that the work goes on even if the caller is
/// never polled again. The waker of the first poll does nothing, but the spawned task is polled at once, so no wake-up
/// is lost.
pub(crate) fn poll_then_spawn(session: &Arc<dyn Session>, work: impl Future<Output = ()> + Send + 'static) {
    let mut task: Task = Box::pin(work);
    if task.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
        session.spawn(task);
    }
}

/// Runs work as [`poll_then_spawn`] does, and returns its result. If the reply is dropped before the work ends,
/// `abandoned` is called with the result.
pub(crate) fn spawn_with_reply<T: Send + 'static>(
    session: &Arc<dyn Session>,
    work: impl Future<Output = Result<T, Failure>> + Send + 'static,
    abandoned: fn(Result<T, Failure>),
) -> Reply<T> {
    let (sender, receiver) = oneshot::channel();
    poll_then_spawn(session, async move {
        if let Err(answer) = sender.send(work.await) {
            abandoned(answer);
        }
    });
    let ended = || Failure::Unknown("the session's thread has ended".to_owned());
    Box::pin(async move { receiver.await.unwrap_or_else(|_| Err(ended())) })
}

/// Spawns work on the thread of the sessions. Dropping the returned sender cancels the work.
pub(crate) fn spawn_cancellable(
    session: &Arc<dyn Session>,
    work: impl Future<Output: Send> + Send + 'static,
) -> oneshot::Sender<()> {
    let (end, task) = make_cancellable(work);
    session.spawn(task);
    end
}

/// Returns a task that does the work, and a sender. Dropping the sender cancels the work.
pub(crate) fn make_cancellable(work: impl Future<Output: Send> + Send + 'static) -> (oneshot::Sender<()>, Task) {
    let (end, ended) = oneshot::channel();
    let task = Box::pin(async move {
        tokio::select! {
            biased;
            _ = ended => {}
            _ = work => {}
        }
    });
    (end, task)
}

/// Runs the task. If the task panics, calls `fault`, and then passes the panic on.
pub(crate) async fn with_panic_handler(task: impl Future<Output = ()>, fault: impl FnOnce()) {
    if let Err(panic) = AssertUnwindSafe(task).catch_unwind().await {
        fault();
        resume_unwind(panic);
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn only_a_panicked_task_runs_its_fault_handler() {
        for (panics, expected) in [(false, false), (true, true)] {
            let (sender, receiver) = oneshot::channel();
            let task = async move { assert!(!panics, "a panic of a task") };
            drop(tokio::spawn(with_panic_handler(task, || _ = sender.send(()))).await);
            assert_eq!(receiver.await.is_ok(), expected);
        }
    }
}
