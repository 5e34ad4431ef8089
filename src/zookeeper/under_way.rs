//! The requests of one session that are under way, or its chores. One task of the library's thread goes on with each of them
//! that is woken, whether or not its caller waits for it. So none of them costs a task, or a thread that is woken to begin it.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use crate::session::request::{Failure, Reply};
use crate::session::shield::{Shield, unshielded};
use crate::session::thread::BackgroundThread;
use crate::sync::{HashMap, Mutex, Notify};
use crate::telemetry::teller::guarded;

/// The requests of one session that are under way, or its chores.
pub(super) struct UnderWay {
    table: Mutex<Table>,
    /// No request is left.
    is_empty: Notify,
}

#[derive(Default)]
struct Table {
    next: u64,
    requests: HashMap<u64, Arc<dyn Unanswered>>,
    /// Those whose answer may have come.
    woken: Vec<u64>,
    /// The task that goes on with them, while it waits for some.
    task: Option<Waker>,
    /// That task has ended, and with it the library's thread.
    is_over: bool,
}

trait Unanswered: Send + Sync {
    /// Goes on with it, now that its answer may have come.
    fn go_on(self: Arc<Self>);

    /// Answers without the server, unless it has been answered.
    fn give_up(&self, why: &str);

    /// Whether the end of the session takes along what it removes.
    fn is_removal(&self) -> bool;
}

/// Goes on with it. What panics has no answer.
fn go_on(request: Arc<dyn Unanswered>) {
    if guarded(|| Arc::clone(&request).go_on()).is_none() {
        request.give_up("the answer makes no sense");
    }
}

impl UnderWay {
    /// None so far. The task that goes on with them runs on this thread.
    pub(super) fn new(background: &BackgroundThread) -> Arc<UnderWay> {
        let all = Arc::new(UnderWay { table: Mutex::default(), is_empty: Notify::new() });
        let going_on = GoingOn(Arc::downgrade(&all));
        background.handle().spawn(poll_fn(move |context| going_on.poll(context)));
        all
    }

    /// Begins this work here and now, as a request is sent in its first poll. Its caller gets the answer.
    pub(super) fn send<T: Send + 'static>(self: &Arc<Self>, work: Reply<T>, is_removal: bool) -> Reply<T> {
        let mut table = self.table.lock();
        let number = table.next;
        table.next += 1;
        let state = State { work: Some(work), is_woken: false, caller: None, answer: None, is_answered: false };
        let sent = Arc::new(Sent { number, is_removal, all: Arc::clone(self), state: Mutex::new(state) });
        let is_over = table.is_over;
        if !is_over {
            table.requests.insert(number, Arc::clone(&sent) as Arc<dyn Unanswered>);
        }
        drop(table);
        go_on(Arc::clone(&sent) as Arc<dyn Unanswered>);
        if is_over {
            sent.give_up(THREAD_GONE);
        }
        Box::pin(Answer { sent, shield: Shield::default() })
    }

    /// The session is closed. Removals need no answer any more, and others are waited for no longer than this.
    pub(super) fn close(self: &Arc<Self>, background: &Arc<BackgroundThread>, patience: Duration) {
        if self.table.lock().requests.is_empty() {
            return;
        }
        let (all, late) = (Arc::clone(self), background.sleep(patience));
        background.handle().spawn(async move {
            all.give_up(CLOSED, |request| request.is_removal());
            let mut is_empty = pin!(all.is_empty.notified());
            is_empty.as_mut().enable();
            if !all.table.lock().requests.is_empty() {
                tokio::select! {
                    biased;
                    () = is_empty => {}
                    () = late => {}
                }
            }
            all.give_up(CLOSED, |_| true);
        });
    }

    fn give_up(&self, why: &str, which: impl Fn(&dyn Unanswered) -> bool) {
        let all: Vec<_> = self.table.lock().requests.values().filter(|it| which(&***it)).cloned().collect();
        all.iter().for_each(|request| request.give_up(why));
    }

    fn woken(&self, number: u64) {
        let mut table = self.table.lock();
        table.woken.push(number);
        let task = table.task.take();
        drop(table);
        task.into_iter().for_each(Waker::wake);
    }

    fn ended(&self, number: u64) {
        let mut table = self.table.lock();
        let request = table.requests.remove(&number);
        let is_empty = request.is_some() && table.requests.is_empty();
        drop(table);
        drop(request);
        if is_empty {
            self.is_empty.notify_waiters();
        }
    }
}

const CLOSED: &str = "the session was closed before the answer came";
const THREAD_GONE: &str = "the session's thread has ended";

impl Drop for UnderWay {
    fn drop(&mut self) {
        // The task ends.
        self.table.lock().task.take().into_iter().for_each(Waker::wake);
    }
}

/// The task that goes on with the requests whose answers have come.
struct GoingOn(Weak<UnderWay>);

impl GoingOn {
    fn poll(&self, context: &mut Context<'_>) -> Poll<()> {
        let Some(all) = self.0.upgrade() else { return Poll::Ready(()) };
        let mut table = all.table.lock();
        if table.woken.is_empty() {
            table.task = Some(context.waker().clone());
            return Poll::Pending;
        }
        let woken = std::mem::take(&mut table.woken);
        let requests: Vec<_> = woken.iter().filter_map(|number| table.requests.get(number).cloned()).collect();
        drop(table);
        requests.into_iter().for_each(go_on);
        // What was woken meanwhile has its turn after the thread's other tasks.
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

impl Drop for GoingOn {
    /// With its thread: nothing would go on with the requests.
    fn drop(&mut self) {
        let Some(all) = self.0.upgrade() else { return };
        all.table.lock().is_over = true;
        all.give_up(THREAD_GONE, |_| true);
    }
}

/// One request, from its sending until its caller has the answer.
struct Sent<T> {
    number: u64,
    is_removal: bool,
    all: Arc<UnderWay>,
    state: Mutex<State<T>>,
}

struct State<T> {
    /// `None` while it is polled, and once it is answered. It runs other code than ours, so nothing is locked meanwhile.
    work: Option<Reply<T>>,
    /// Woken while it was polled.
    is_woken: bool,
    caller: Option<Waker>,
    /// Until the caller takes it.
    answer: Option<Result<T, Failure>>,
    is_answered: bool,
}

impl<T: Send + 'static> Sent<T> {
    /// The first answer counts.
    fn answered(&self, answer: Result<T, Failure>) {
        let mut state = self.state.lock();
        if std::mem::replace(&mut state.is_answered, true) {
            return;
        }
        state.answer = Some(answer);
        let (caller, work) = (state.caller.take(), state.work.take());
        drop(state);
        // It may be the client crate's.
        let _panicked = guarded(|| drop(work));
        self.all.ended(self.number);
        caller.into_iter().for_each(Waker::wake);
    }
}

impl<T: Send + 'static> Unanswered for Sent<T> {
    fn go_on(self: Arc<Self>) {
        let mut state = self.state.lock();
        let Some(mut work) = state.work.take() else {
            state.is_woken = true;
            return;
        };
        drop(state);
        let waker = Waker::from(Arc::clone(&self));
        // In a task that has run for long, tokio would have it yield for ever.
        let unconstrained = pin!(tokio::task::unconstrained(work.as_mut()));
        let polled = unshielded(&waker, || unconstrained.poll(&mut Context::from_waker(&waker)));
        if let Poll::Ready(answer) = polled {
            drop(work);
            return self.answered(answer);
        }
        let mut state = self.state.lock();
        if !state.is_answered {
            state.work = Some(work);
        }
        if std::mem::take(&mut state.is_woken) {
            drop(state);
            self.all.woken(self.number);
        }
    }

    fn give_up(&self, why: &str) {
        self.answered(Err(Failure::Unknown(why.to_owned())));
    }

    fn is_removal(&self) -> bool {
        self.is_removal
    }
}

impl<T: Send + 'static> Wake for Sent<T> {
    fn wake(self: Arc<Self>) {
        self.all.woken(self.number);
    }
}

/// The answer to a request, for its caller.
struct Answer<T> {
    sent: Arc<Sent<T>>,
    shield: Shield,
}

impl<T: Send + 'static> Future for Answer<T> {
    type Output = Result<T, Failure>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Answer { sent, shield } = &mut *self;
        if let Some(answer) = sent.state.lock().answer.take() {
            return Poll::Ready(answer);
        }
        shield.poll(context, |context| {
            let waker = context.waker().clone();
            let mut state = sent.state.lock();
            if let Some(answer) = state.answer.take() {
                return Poll::Ready(answer);
            }
            let before = state.caller.replace(waker);
            drop(state);
            drop(before);
            Poll::Pending
        })
    }
}

impl<T> Drop for Answer<T> {
    fn drop(&mut self) {
        let caller = self.sent.state.lock().caller.take();
        drop(caller);
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn work_that_wakes_itself_again_and_again_holds_up_no_other_task() {
        let (background, is_done) = (BackgroundThread::get().expect("a thread"), Arc::new(AtomicBool::new(false)));
        let all = UnderWay::new(&background);
        let seen = Arc::clone(&is_done);
        let work = poll_fn(move |context| match seen.load(Ordering::Acquire) {
            true => Poll::Ready(Ok(())),
            false => {
                context.waker().wake_by_ref();
                Poll::Pending
            }
        });
        let answer = all.send(Box::pin(work), false);
        background.handle().spawn(async move { is_done.store(true, Ordering::Release) });
        pollster::block_on(answer).expect("it is done");
    }
}
