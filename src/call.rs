//! [`Call`], the future of a call that waits for no contender (another user of the lock). Also functions that limit the
//! time of requests, and functions that repeat requests.

use std::panic;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::error::error::Error;
use crate::session::contract::{Coordinator, CutOff, Session};
use crate::session::follow::until_end_recorded;
use crate::session::request::Failure;
use crate::session::retry::{self, run_until};
use crate::sync::atomic::{AtomicU32, Ordering};
use crate::telemetry::debug::debug;

/// A disconnected client asks the servers this long before the timeout of a call why it has no connection. So the
/// timeout error can give the reason. If the timeout is shorter than twice this constant, the client asks after half of
/// the timeout.
const REASON_AHEAD: Duration = Duration::from_millis(1_200);

/// The number of equal sleeps into which [`within_unless_stopped`] divides a time limit. If one of these sleeps lasts
/// too long, the process was probably stopped meanwhile.
const SLICES: u32 = 8;

/// How many sessions a call may use, one after the other, if each session ends during the call.
pub(crate) const SESSION_TRIES: usize = 3;

/// The future of a call's answer. The call sends nothing before its future is first polled. So await the future, with
/// or without a [`timeout`](Self::timeout).
///
/// No method that returns a `Call` waits for a contender: neither the `try_` methods, nor
/// [`RwLock::queue`](crate::RwLock::queue), [`Semaphore::permits`](crate::Semaphore::permits) or
/// [`Survey::below`](crate::Survey::below). [`Shared::live`](crate::Shared::live) and
/// [`Shared::wait_for`](crate::Shared::wait_for) may wait for a value. All other calls wait only for the servers.
///
/// # How long it takes
/// With [`timeout`](Self::timeout) the call always ends in time. Without a timeout, a call that waits for a value may
/// wait for ever, and every other call has these limits:
///
/// - A step is one request or one batch of requests: up to 256 reads, or all that a `try_` method sends to enter one
///   lock. If a step has no answer within one session timeout, the call ends with [`Error::Unreachable`], even if the
///   server still answers pings. The next point names two exceptions.
/// - A step may take three session timeouts in two cases: if this process was stopped meanwhile, or if the client is
///   disconnected at the end of the first session timeout. In the added time, the client can open a new session.
/// - While the connection is lost, the call first waits until the connection is back or the session has ended. If the
///   session has ended, the call then waits for a new session, for at most the [connect
///   timeout](crate::ZooKeeperBuilder::connect_timeout).
///
/// # Cancel safety
/// If the call is dropped before its end, the watches and lock nodes that it made are removed as soon as a server can
/// be reached. A request that was sent may still be carried out.
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// # use zk_rwlock::{Error, Memory, RwLock};
/// # tokio_test::block_on(async {
/// # let lock = RwLock::new(&Memory::new(), "/locks/config")?;
/// let guard = lock.try_write().timeout(Duration::from_secs(1)).await?;
/// let queue = lock.queue().timeout(Duration::from_secs(1)).await?;
/// assert_eq!(queue.holders().count(), 1);
/// # Ok::<(), Error>(()) }).unwrap();
/// ```
#[must_use = "nothing is sent before this is awaited"]
pub struct Call<T> {
    timeout: Option<Duration>,
    begin: Option<Box<MakeAnswerFuture<T>>>,
    answer: Option<AnswerFuture<T>>,
}

/// Blocks the thread until a future of this library is done, and returns its output. For programs that are not async.
///
/// [`Acquire`](crate::Acquire) and [`Call`] have a method `blocking` that does the same. This function is for the
/// `async` methods, such as [`WriteGuard::release`](crate::WriteGuard::release).
///
/// No runtime is needed: sessions live on a thread of the library.
///
/// # Panics
/// Panics on a thread that runs tasks of a tokio runtime. The `blocking_lock` of tokio does the same. A blocked thread
/// runs no other task. If one of those tasks held the lock, the call could wait for ever. In an `async` function, write
/// `.await` in place of `.blocking()` or `block_on`. If the function is not `async`, let
/// [`spawn_blocking`](https://docs.rs/tokio/latest/tokio/task/fn.spawn_blocking.html) call the function: blocking is
/// allowed there. The text of the panic gives the same advice.
///
/// # Examples
///
/// ```
/// use zk_rwlock::{Error, Memory, RwLock, block_on};
///
/// let lock = RwLock::new(&Memory::new(), "/locks/config")?;
/// let guard = lock.write().blocking()?;
/// block_on(guard.release())?;
/// # Ok::<(), Error>(())
/// ```
#[track_caller]
pub fn block_on<F: IntoFuture>(future: F) -> F::Output {
    assert!(is_blocking_allowed(), "{BLOCKED}");
    pollster::block_on(future.into_future())
}

/// The text of the panic of [`block_on`].
const BLOCKED: &str = "a call that blocks, on a thread that runs tasks of a tokio runtime: write `.await` in place of `.blocking()` or \
                       `block_on(..)`, or make the call in `tokio::task::spawn_blocking(..)`";

/// Returns whether tokio allows this thread to block. Tokio has no function that tells. So this function calls
/// `blocking_recv`, which panics where tokio forbids blocking, and catches the panic.
fn is_blocking_allowed() -> bool {
    let (sender, receiver) = oneshot::channel();
    let _ = sender.send(());
    panic::catch_unwind(panic::AssertUnwindSafe(|| receiver.blocking_recv())).is_ok()
}

/// A function that makes the future of a call's answer. The argument is the time at which the future must end. The
/// argument is `None` if the caller gave no timeout.
type MakeAnswerFuture<T> = dyn FnOnce(Option<Deadline>) -> AnswerFuture<T> + Send;

type AnswerFuture<T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send>>;

impl<T: Send + 'static> Call<T> {
    pub(crate) fn new<F>(begin: impl FnOnce(Option<Deadline>) -> F + Send + 'static) -> Call<T>
    where
        F: Future<Output = Result<T, Error>> + Send + 'static,
    {
        Call { timeout: None, begin: Some(Box::new(|deadline| Box::pin(begin(deadline)))), answer: None }
    }

    /// Makes a call that runs `work`. If the caller sets a timeout, and `work` is not done by then, the call fails with
    /// [`Error::Timeout`].
    pub(crate) fn with_deadline(
        coordinator: &Arc<dyn Coordinator>,
        work: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Call<T> {
        let coordinator = Arc::clone(coordinator);
        Call::new(|deadline| async move { within_deadline(&coordinator, deadline, work).await })
    }

    /// Sets a time limit, counted from the first poll. If the call is not done by then, it fails with
    /// [`Error::Timeout`], even if the client is disconnected. With a timeout of zero, the call sends nothing, and
    /// fails with [`Error::InvalidInput`] when it is awaited.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Blocks the thread until the answer has come, and returns it. Needs no runtime.
    ///
    /// # Errors
    /// The same errors as when the call is awaited.
    ///
    /// # Panics
    /// Panics on a thread that runs tasks of a tokio runtime. Write `.await` there. See [`block_on`].
    #[track_caller]
    pub fn blocking(self) -> Result<T, Error> {
        block_on(self)
    }
}

impl<T> Future for Call<T> {
    type Output = Result<T, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(begin) = self.begin.take() {
            if self.timeout == Some(Duration::ZERO) {
                return Poll::Ready(Err(Error::invalid("a timeout of zero")));
            }
            self.answer = Some(begin(self.timeout.map(Deadline::new)));
        }
        match &mut self.answer {
            Some(answer) => answer.as_mut().poll(context),
            None => Poll::Pending,
        }
    }
}

debug!(Call<T> as "Call" for [T], |it| timeout: it.timeout);

/// A call's whole timeout, and the time at which the timeout began.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    pub(crate) whole: Duration,
    began: Instant,
}

impl Deadline {
    pub(crate) fn new(whole: Duration) -> Deadline {
        Deadline { whole, began: Instant::now() }
    }

    pub(crate) fn time_left(&self) -> Duration {
        self.whole.saturating_sub(self.began.elapsed())
    }

    /// Waits until the deadline. If the client is disconnected at that time, returns since when and why. If the client
    /// is connected or closed, returns `None`.
    pub(crate) async fn until_passed(&self, coordinator: &Arc<dyn Coordinator>) -> Option<CutOff> {
        let left = self.time_left();
        coordinator.sleep(left - REASON_AHEAD.min(left / 2)).await;
        // If the client is disconnected, this call of `state` makes the client ask the servers why. If they have
        // answered by the deadline, the second call of `state` below returns the reason.
        let _for_later = coordinator.state();
        coordinator.sleep(self.time_left()).await;
        coordinator.state().into_cut_off()
    }
}

/// Returns the result of `work`. If `work` is not done at the deadline, returns [`Error::Timeout`]. Without a deadline,
/// waits until `work` is done.
pub(crate) async fn within_deadline<T>(
    coordinator: &Arc<dyn Coordinator>,
    deadline: Option<Deadline>,
    work: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let Some(deadline) = deadline else { return work.await };
    tokio::select! {
        biased;
        done = work => done,
        cut_off = deadline.until_passed(coordinator) => Err(Error::timed_out(deadline.whole, cut_off)),
    }
}

/// Returns the result of `work`, or [`Error::Unreachable`] after `limit`, which is the session timeout. If this process
/// was stopped meanwhile, or the client is disconnected at the limit, the wait is longer: see
/// [`within_unless_stopped`].
pub(crate) async fn within_session_timeout<T>(
    coordinator: &Arc<dyn Coordinator>,
    limit: Duration,
    work: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    within_unless_stopped(limit, |limit| coordinator.sleep(limit), || coordinator.state().is_connected(), work)
        .await
        .unwrap_or_else(|| Err(Error::Unreachable(no_answer_text(limit))))
}

/// Calls `ask`, which sends a request, and calls it again while the outcome of the request is unknown, as
/// [`retry::repeat_until_known`] does. If the outcome is still unknown after a session timeout, fails with
/// [`Failure::Unreachable`]. The wait is longer if this process was stopped meanwhile, or if the client has no connection
/// when the session timeout has passed: see [`within_unless_stopped`].
pub(crate) async fn ask_until_answered<T, F>(session: &Arc<dyn Session>, ask: impl Fn() -> F) -> Result<T, Failure>
where
    F: Future<Output = Result<T, Failure>>,
{
    let limit = session.timeout();
    let answer = within_unless_stopped(
        limit,
        |limit| session.sleep(limit),
        || session.lease().is_connected(),
        retry::repeat_until_known(session, ask),
    )
    .await;
    answer.unwrap_or_else(|| Err(Failure::Unreachable(no_answer_text(limit))))
}

/// Returns the names of the children of a node. If the node does not exist, returns no names. If `is_synced` is `true`,
/// a sync precedes the read, and the names show no state from before this call.
pub(crate) async fn list_children(
    session: &Arc<dyn Session>,
    directory: &str,
    is_synced: bool,
) -> Result<Vec<String>, Failure> {
    let listing =
        ask_until_answered(session, || retry::send_read(session, directory, is_synced, |it, path| it.children(path)));
    listing.await.or_else(retry::default_if_no_node)
}

/// Deletes the node at `node`, which belongs to the lock or semaphore at `path`. Returns `true` if the node was
/// deleted, and `false` if the only delete that was sent found no node. If several deletes were sent, a missing node
/// counts as deleted, because an earlier delete whose reply was lost may have deleted it.
pub(crate) async fn delete_node(coordinator: &impl Coordinator, path: &str, node: &str) -> Result<bool, Error> {
    let fault = |failure| Error::from_failure(failure, "remove a node of", path);
    let session_slot = coordinator.session_slot(0).await.map_err(fault)?;
    let session = session_slot.session();
    let tries = AtomicU32::new(0);
    let removal = ask_until_answered(session, || {
        tries.fetch_add(1, Ordering::Relaxed);
        session.delete(node)
    });
    match removal.await {
        Ok(()) => Ok(true),
        Err(Failure::NoNode) => Ok(tries.into_inner() > 1),
        Err(failure) => Err(fault(failure)),
    }
}

/// Runs `ask` on a session, and returns the answer. If the session ends before the answer, runs `ask` again on a new
/// session. Uses at most [`SESSION_TRIES`] sessions in all. `operation` and `path` are for the text of an error.
///
/// `ask` must create no ephemeral node. Such a node lives only as long as its session, and the session may end as soon
/// as this function has returned.
pub(crate) async fn retry_on_fresh_session<T, F>(
    coordinator: &impl Coordinator,
    (operation, path): (&'static str, &str),
    ask: impl Fn(Arc<dyn Session>) -> F,
) -> Result<T, Error>
where
    F: Future<Output = Result<T, Failure>>,
{
    let fault = |failure| Error::from_failure(failure, operation, path);
    let mut tries = 0;
    loop {
        let session_slot = coordinator.session_slot(0).await.map_err(fault)?;
        tries += 1;
        match ask(Arc::clone(session_slot.session())).await {
            Err(Failure::Over(_)) if tries < SESSION_TRIES => until_end_recorded(session_slot.session()).await,
            answer => return answer.map_err(fault),
        }
    }
}

/// Why a piece of work on a session was not done.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub(crate) enum SessionWorkError {
    /// A request failed. The work may succeed on another session.
    Failed(#[from] Failure),
    /// The work cannot be done, as the answers to its requests show. Another session would not help.
    Refused(#[from] Error),
}

impl SessionWorkError {
    /// Turns [`SessionWorkError::Failed`] into the outer error. After an outer error, [`retry_on_fresh_session`] and
    /// [`ask_until_answered`] may repeat the work. Turns [`SessionWorkError::Refused`] into the inner error. To these
    /// two functions, an inner error is an answer, so they do not repeat the work.
    pub(crate) fn refusal_as_answer<T>(answer: Result<T, SessionWorkError>) -> Result<Result<T, Error>, Failure> {
        match answer {
            Ok(done) => Ok(Ok(done)),
            Err(SessionWorkError::Refused(error)) => Ok(Err(error)),
            Err(SessionWorkError::Failed(failure)) => Err(failure),
        }
    }
}

/// Returns the result of `work`, or `None` after `limit`.
///
/// If the process was stopped during the wait, or if the client is disconnected at the limit, `work` gets twice the
/// limit in addition. The reason is that the session may have ended, and `work` may need a new session. The process
/// counts as stopped if one of the sleeps below lasts too long.
async fn within_unless_stopped<T, S: Future<Output = ()>>(
    limit: Duration,
    sleep: impl Fn(Duration) -> S,
    is_connected: impl Fn() -> bool,
    work: impl Future<Output = T>,
) -> Option<T> {
    let (mut work, mut is_late) = (pin!(work), false);
    // The wait is a sequence of short sleeps. A single sleep would not show that the process was stopped, if it goes on
    // before the limit: the sleep would end on time.
    let end = async {
        for slice in [limit / SLICES; SLICES as usize] {
            let began = Instant::now();
            sleep(slice).await;
            is_late |= began.elapsed() > slice + limit / 50;
        }
    };
    match run_until(end, &mut work).await {
        None if is_late || !is_connected() => run_until(sleep(limit.saturating_mul(2)), work).await,
        answer => answer,
    }
}

fn no_answer_text(limit: Duration) -> String {
    format!("no answer within {}, the session timeout", humantime::format_duration(limit))
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use tokio::time::{advance, sleep};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_stop_at_the_limit_gives_time_for_another_session() {
        for (stopped, is_answered) in [(0, false), (960, true), (2_000, true)] {
            let work = async {
                sleep(Duration::from_millis(50)).await;
                advance(Duration::from_millis(stopped)).await;
                sleep(Duration::from_millis(1_500)).await;
            };
            let answer = within_unless_stopped(Duration::from_secs(1), sleep, || true, work).await;
            assert_eq!(answer.is_some(), is_answered, "{stopped}");
        }
    }
}
