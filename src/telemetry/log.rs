//! The library's own events and spans of `tracing`, and the thread on which the user's subscriber receives them.
//!
//! The subscriber may block or panic. Without a subscriber, a logger of the crate `log` receives the events, and may
//! block or panic as well. Even then, no lease may be lost, and a caller must learn of a lost lock. So the [log
//! thread](LOG_THREAD) emits all events of the library's own threads. Once the process has opened a session, the log
//! thread also emits the events of a caller's thread, if their level is INFO or above. A caller's thread itself emits
//! only spans, events below INFO, and the events before the first session.

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tracing::dispatcher::{self, DefaultGuard};
use tracing::field::Value;
use tracing::level_filters::LevelFilter;
use tracing::span::Id;
use tracing::{Dispatch, Level, Span};

use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::of_process::AtomicBool;
use crate::telemetry::user_thread::{UserCodeThread, catch_panic, is_library_thread};
use crate::telemetry::{meter, names};

/// Closing a client waits at most this long for the subscriber. The drop of a client's last handle also waits at most
/// this long in all, first for the servers to end the sessions, then for the subscriber.
pub(crate) const FAREWELL: Duration = Duration::from_millis(250);

/// If this many events and other pieces of work are queued or running on the log thread, further events are dropped and
/// only counted.
const EVENTS: usize = 4_096;

static LOG_THREAD: UserCodeThread = UserCodeThread::new("zk-rwlock-log");

static DROPPED: AtomicU64 = AtomicU64::new(0);

static HAS_SESSIONS: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// On a library thread: the span to which the events of this thread belong. The log thread emits the events in that
    /// span.
    static INSIDE: RefCell<UserSpan> = const { RefCell::new(UserSpan(None)) };
    /// On a library thread: the guard that keeps the events of other crates from the user's subscriber.
    static SILENCE: Cell<Option<DefaultGuard>> = const { Cell::new(None) };
}

/// Records that this process has opened a session. From now on the log thread emits the events of level INFO and above.
/// If a caller's thread emitted these events, a lease could run out while the subscriber blocks that thread.
pub(crate) fn mark_sessions_begun() {
    HAS_SESSIONS.store(true, Ordering::Relaxed);
}

/// From now on, the events that other crates emit on this library thread reach no subscriber. Does nothing if the
/// process has no subscriber: if even an empty subscriber were set, `tracing` would stop passing events to the crate
/// `log`.
///
/// This has a side effect. For each place in the code that emits an event, `tracing` asks only once whether a
/// subscriber wants the event, on the first thread that reaches the place. If that thread is silenced, the answer may
/// be no for the whole process. So on its own threads, this library makes no span, and leaves its events to the log
/// thread.
pub(crate) fn silence_other_crates() {
    let silence = || {
        let has_subscriber = LevelFilter::current() != LevelFilter::OFF;
        has_subscriber.then(|| dispatcher::set_default(&Dispatch::none()))
    };
    SILENCE.set(SILENCE.take().or_else(silence));
}

/// Waits until the subscriber of `tracing` has received all events of this library so far, except dropped ones. Waits
/// at most for `limit`, and returns `false` if the subscriber has not received all of them by then. Call this function
/// at the end of a program, and in tests.
///
/// Once a session has been opened, a separate thread, `zk-rwlock-log`, emits all events of level INFO and above, so
/// that a subscriber that blocks or panics costs no lock. At most 4,096 events wait for the subscriber. Further events
/// are dropped, and their number is logged. [`ZooKeeper::close`](crate::ZooKeeper::close), and the drop of the last
/// handle of a client, wait for the subscriber for up to 250 ms.
pub fn flush_events(limit: Duration) -> bool {
    LOG_THREAD.flush(limit)
}

/// Returns whether work is queued or running on the log thread.
pub(crate) fn has_waiting_events() -> bool {
    LOG_THREAD.pending_count() > 0
}

/// Emits an event, unless there is a subscriber that wants no events of its level. The first argument is the level. The
/// others are those of `tracing`'s own macros, such as `tracing::warn!`.
macro_rules! emit {
    ($level:ident, $($event:tt)+) => {{
        use tracing::level_filters::LevelFilter;
        let most = LevelFilter::current();
        // Without a subscriber, `tracing` passes the event to the logger of the crate `log`, if there is one.
        if most == LevelFilter::OFF && !$crate::telemetry::log::is_for_log_thread(tracing::Level::$level) {
            let _panicked = $crate::telemetry::user_thread::catch_panic(|| tracing::event!(tracing::Level::$level, $($event)+));
        } else if most == LevelFilter::OFF || tracing::Level::$level <= most {
            $crate::telemetry::log::owned!($level [] $($event)+);
        }
    }};
}

/// Emits an event, perhaps on the log thread. That thread cannot borrow the values of the fields, so this macro makes
/// owned values. Each step takes one field. The expression after `=` becomes an owned value. The variable of a field
/// that is only a name is moved.
macro_rules! owned {
    ($level:ident [$($fields:tt)*] $message:literal $(,)?) => {
        $crate::telemetry::log::emit_or_queue(tracing::Level::$level, move || {
            tracing::event!(tracing::Level::$level, $($fields)* $message);
        })
    };
    ($level:ident [$($fields:tt)*] % $name:ident, $($rest:tt)+) => {
        $crate::telemetry::log::owned!($level [$($fields)*] $name = %$name, $($rest)+)
    };
    ($level:ident [$($fields:tt)*] ? $name:ident, $($rest:tt)+) => {
        $crate::telemetry::log::owned!($level [$($fields)*] $name = ?$name, $($rest)+)
    };
    ($level:ident [$($fields:tt)*] $name:ident, $($rest:tt)+) => {
        $crate::telemetry::log::owned!($level [$($fields)*] $name = $name, $($rest)+)
    };
    ($level:ident [$($fields:tt)*] $name:ident = % $value:expr, $($rest:tt)+) => {{
        let $name = ($value).to_string();
        $crate::telemetry::log::owned!($level [$($fields)* %$name,] $($rest)+)
    }};
    ($level:ident [$($fields:tt)*] $name:ident = ? $value:expr, $($rest:tt)+) => {{
        let $name = format!("{:?}", $value);
        $crate::telemetry::log::owned!($level [$($fields)* %$name,] $($rest)+)
    }};
    ($level:ident [$($fields:tt)*] $name:ident = $value:expr, $($rest:tt)+) => {{
        let $name = ($value).to_owned();
        $crate::telemetry::log::owned!($level [$($fields)* $name,] $($rest)+)
    }};
}
pub(crate) use {emit, owned};

/// Returns whether the log thread has to emit an event of this level that occurs on this thread.
pub(crate) fn is_for_log_thread(level: Level) -> bool {
    is_library_thread() || level <= Level::INFO && HAS_SESSIONS.load(Ordering::Relaxed)
}

/// Calls `emit`, which emits one event of this level, on this thread or on the log thread. If too much work waits for
/// the log thread, drops the event instead.
pub(crate) fn emit_or_queue(level: Level, emit: impl FnOnce() + Send + 'static) {
    if is_library_thread() {
        queue_event(|| {
            let inside = INSIDE.with_borrow(Clone::clone);
            move || inside.emit_inside(emit)
        });
    } else if !is_for_log_thread(level) {
        let _panicked = catch_panic(emit);
    } else if LevelFilter::current() == LevelFilter::OFF {
        // There is no subscriber. The next branch lets the log thread set the caller's subscriber. That must not happen
        // here: once a subscriber was set, `tracing` would never again pass events to the crate `log`.
        queue_event(|| emit);
    } else {
        queue_event(|| {
            let (subscriber, inside) = (dispatcher::get_default(Dispatch::clone), UserSpan::new(Span::current));
            move || dispatcher::with_default(&subscriber, || inside.emit_inside(emit))
        });
    }
}

/// Sends the event that `make` returns to the log thread. If too much work waits there, counts the event as dropped
/// instead.
fn queue_event<F: FnOnce() + Send + 'static>(make: impl FnOnce() -> F) {
    if LOG_THREAD.pending_count() >= EVENTS {
        DROPPED.fetch_add(1, Ordering::Relaxed);
        meter::increment_counter(names::EVENTS_DROPPED, None, &[]);
        return;
    }
    let emit = make();
    LOG_THREAD.enqueue(move || {
        let dropped = DROPPED.swap(0, Ordering::Relaxed);
        if dropped > 0 {
            tracing::warn!(dropped, "events were dropped, because the subscriber fell behind");
        }
        emit();
    });
}

/// A span of the user's subscriber, or no span. Any thread may use and drop this value. On a library thread, the log
/// thread makes each call of the subscriber instead.
#[derive(Clone, Default)]
pub(crate) struct UserSpan(Option<Arc<SpanHandle>>);

struct SpanHandle(Span);

impl UserSpan {
    /// Makes a span. On a library thread, returns no span, because a library thread must not be the first that makes a
    /// span (see [`silence_other_crates`]). Also returns no span if the subscriber does not want the span, or panics.
    pub(crate) fn new(make: impl FnOnce() -> Span) -> UserSpan {
        if is_library_thread() {
            return UserSpan::default();
        }
        let span = catch_panic(make).filter(|span| !span.is_disabled());
        UserSpan(span.map(|span| Arc::new(SpanHandle(span))))
    }

    pub(crate) fn is_none(&self) -> bool {
        self.0.is_none()
    }

    pub(crate) fn id(&self) -> Option<Id> {
        self.0.as_ref()?.0.id()
    }

    pub(crate) fn record_field(&self, field: &'static str, value: impl Value + Send + 'static) {
        let Some(own) = self.0.clone() else { return };
        if is_library_thread() {
            LOG_THREAD.enqueue(move || _ = own.0.record(field, value));
        } else {
            let _panicked = catch_panic(|| own.0.record(field, value));
        }
    }

    /// Runs `work` in this span, so that the events that the library emits during the work belong to the span.
    pub(crate) fn run_inside<T>(&self, work: impl FnOnce() -> T) -> T {
        if is_library_thread() {
            let before = INSIDE.replace(self.clone());
            let result = work();
            INSIDE.set(before);
            return result;
        }
        let _entered = self.0.as_ref().map(|own| {
            own.call_subscriber(|subscriber, id| subscriber.enter(id));
            ExitOnDrop(own)
        });
        work()
    }

    /// Calls `emit` in this span, with the subscriber of the span. If there is no span, only calls `emit`.
    fn emit_inside(&self, emit: impl FnOnce()) {
        match self.0.as_ref().and_then(|own| own.0.with_subscriber(|(_, subscriber)| subscriber.clone())) {
            Some(subscriber) => dispatcher::with_default(&subscriber, || self.run_inside(emit)),
            None => emit(),
        }
    }

    /// Returns a future that polls `work` in this span.
    pub(crate) fn instrument<F: Future + Unpin>(self, work: F) -> Instrumented<F> {
        Instrumented { span: self, work: Some(work) }
    }
}

impl SpanHandle {
    fn call_subscriber(&self, what: impl FnOnce(&Dispatch, &Id)) {
        self.0.with_subscriber(|(id, subscriber)| catch_panic(|| what(subscriber, id)));
    }
}

impl Drop for SpanHandle {
    fn drop(&mut self) {
        let span = std::mem::replace(&mut self.0, Span::none());
        if is_library_thread() {
            LOG_THREAD.enqueue(move || drop(span));
        } else {
            let _panicked = catch_panic(move || drop(span));
        }
    }
}

struct ExitOnDrop<'s>(&'s SpanHandle);

impl Drop for ExitOnDrop<'_> {
    fn drop(&mut self) {
        self.0.call_subscriber(|subscriber, id| subscriber.exit(id));
    }
}

/// A future that polls its work in a span.
pub(crate) struct Instrumented<F> {
    span: UserSpan,
    work: Option<F>,
}

impl<F: Future + Unpin> Future for Instrumented<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let Instrumented { span, work } = self.get_mut();
        match work {
            Some(work) => span.run_inside(|| Pin::new(work).poll(context)),
            None => Poll::Pending,
        }
    }
}

impl<F> Drop for Instrumented<F> {
    fn drop(&mut self) {
        let work = self.work.take();
        self.span.run_inside(|| drop(work));
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::cell::Cell;
    use std::process::Command;
    use std::sync::{Mutex, mpsc};
    use std::{env, fmt};

    use tracing::span::{Attributes, Record};
    use tracing::{Event, Metadata, Subscriber};

    use super::*;

    /// A subscriber that sends each event to the test, and blocks in the first event until the test lets it go on.
    struct SlowSubscriber {
        heard: mpsc::Sender<String>,
        go_on: Mutex<Option<mpsc::Receiver<()>>>,
    }

    impl Subscriber for SlowSubscriber {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }
        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }
        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn event(&self, event: &Event<'_>) {
            let mut said = String::new();
            event.record(&mut |field: &tracing::field::Field, value: &dyn fmt::Debug| {
                said += &format!("{field}={value:?} ");
            });
            self.heard.send(said).expect("the test listens");
            let go_on = self.go_on.lock().expect("no panic").take();
            go_on.map(|go_on| go_on.recv());
        }
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }

    /// This test runs itself in another process, because all tests of one process share the log thread.
    #[test]
    fn events_beyond_4096_are_dropped_and_counted() {
        const ALONE: &str = "ZK_RWLOCK_TEST_ALONE";
        if env::var_os(ALONE).is_none() {
            let name = concat!(module_path!(), "::events_beyond_4096_are_dropped_and_counted");
            let mut alone = Command::new(env::current_exe().expect("this program"));
            alone.args(["--exact", name.split_once("::").expect("a crate").1]).env(ALONE, "1");
            let output = alone.output().expect("this program can be run");
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && said.contains("1 passed"), "{said}");
            return;
        }
        let ((heard, hears), (go_on, goes_on)) = (mpsc::channel(), mpsc::channel());
        let slow = SlowSubscriber { heard, go_on: Mutex::new(Some(goes_on)) };
        tracing::subscriber::set_global_default(slow).expect("the only one");
        mark_sessions_begun();
        emit!(WARN, "the first");
        assert_eq!(hears.recv().expect("the subscriber has the first event"), "message=the first ");
        for number in 1..4_106 {
            emit!(WARN, number, "another");
        }
        go_on.send(()).expect("the subscriber waits");
        assert!(flush_events(Duration::from_secs(60)));
        // There were 4,106 events. While the subscriber blocked in the first of them, 4,095 others waited, which makes
        // the limit of 4,096. So the last 10 events were dropped.
        let behind: Vec<_> = hears.try_iter().collect();
        emit!(WARN, "the next");
        assert!(flush_events(Duration::from_secs(60)));
        let after: Vec<_> = hears.try_iter().collect();
        let all = [behind, after].concat();
        let (counted, told): (Vec<_>, Vec<_>) = all.into_iter().partition(|it| it.contains("dropped="));
        assert_eq!(counted, ["message=events were dropped, because the subscriber fell behind dropped=10 "]);
        assert_eq!(told.len(), 4_095 + 1);
        assert!(told[4_094].contains("number=4095"), "{}", told[4_094]);
    }

    /// Even without a subscriber the log thread emits the event, because a logger of the crate `log` may block as well.
    #[test]
    fn without_a_subscriber_a_loss_is_still_logged_later() {
        struct CountsFormatting(Cell<u32>);
        impl fmt::Display for CountsFormatting {
            fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.set(self.0.get() + 1);
                Ok(())
            }
        }
        mark_sessions_begun();
        let asked = CountsFormatting(Cell::new(0));
        emit!(WARN, why = %asked, "a lock was lost");
        assert_eq!(asked.0.get(), 1, "the value is formatted at once, for the log thread");
    }
}
