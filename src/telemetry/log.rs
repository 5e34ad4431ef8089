//! The library's own events and spans of `tracing`, and on which thread the user's subscriber hears of them.
//!
//! On a caller's thread, spans and what is below INFO are told at once. The rest is told by the [log thread](LOG_THREAD): a subscriber,
//! or without one a logger of the crate `log`, may block or panic, which must cost no lease, and keep no caller from hearing
//! of a loss.

use std::cell::RefCell;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tracing::dispatcher;
use tracing::field::Value;
use tracing::level_filters::LevelFilter;
use tracing::span::Id;
use tracing::{Dispatch, Level, Span};

use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::of_process::AtomicBool;
use crate::telemetry::user_thread::{UserThread, guarded, is_library_thread};

/// How long the end of a client waits for the subscriber.
pub(crate) const FAREWELL: Duration = Duration::from_millis(250);

/// How many events wait for the subscriber at most. Those that come then are counted, and not told.
const EVENTS: usize = 4_096;

pub(super) static LOG_THREAD: UserThread = UserThread::new("zk-rwlock-log");

static DROPPED: AtomicU64 = AtomicU64::new(0);

static HAS_SESSIONS: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// On a thread of the library's: the span that its events come in.
    static INSIDE: RefCell<OwnSpan> = const { RefCell::new(OwnSpan(None)) };
}

/// From now on, this process has sessions that a thread of the library's keeps alive.
pub(crate) fn there_are_sessions() {
    HAS_SESSIONS.store(true, Ordering::Relaxed);
}

/// Waits until the subscriber of `tracing` was told all events of this library so far, at most for `limit`. Returns whether
/// it was. For a program that ends, and for tests.
///
/// Events are told by a thread of their own, `zk-rwlock-log`, so that a subscriber that blocks or panics costs no lock. At
/// most 4,096 of them wait for the subscriber; those that come then are dropped, and their number is told.
/// [`ZooKeeper::close`](crate::ZooKeeper::close) waits for up to 250 ms, and so does dropping the last user of a client.
pub fn flush_events(limit: Duration) -> bool {
    LOG_THREAD.flush(limit)
}

/// Whether the subscriber has not been told everything yet.
pub(crate) fn is_behind() -> bool {
    LOG_THREAD.waiting() > 0
}

/// Tells an event. Takes its level, and what the macro of `tracing` of that level takes.
macro_rules! emit {
    ($level:ident, $($event:tt)+) => {{
        use tracing::level_filters::LevelFilter;
        let most = LevelFilter::current();
        // Without a subscriber it is for a logger of the crate `log`, if for anybody.
        if most == LevelFilter::OFF && !$crate::telemetry::log::is_deferred(tracing::Level::$level) {
            let _panicked = $crate::telemetry::user_thread::guarded(|| tracing::event!(tracing::Level::$level, $($event)+));
        } else if most == LevelFilter::OFF || tracing::Level::$level <= most {
            $crate::telemetry::log::owned!($level [] $($event)+);
        }
    }};
}

/// The event with values of its own, one field after the other.
macro_rules! owned {
    ($level:ident [$($fields:tt)*] $message:literal $(,)?) => {
        $crate::telemetry::log::later(tracing::Level::$level, move || {
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

/// Whether the teller tells the events of this level that come on this thread.
pub(crate) fn is_deferred(level: Level) -> bool {
    is_library_thread() || level <= Level::INFO && HAS_SESSIONS.load(Ordering::Relaxed)
}

/// `told` tells an event of this level.
pub(crate) fn later(level: Level, emit: impl FnOnce() + Send + 'static) {
    if is_library_thread() {
        event(|| {
            let inside = INSIDE.with_borrow(Clone::clone);
            move || inside.emit(emit)
        });
    } else if !is_deferred(level) {
        let _panicked = guarded(emit);
    } else if LevelFilter::current() == LevelFilter::OFF {
        // No subscriber is set for a while either: after that, nothing is told to a logger of the crate `log`.
        event(|| emit);
    } else {
        event(|| {
            let (subscriber, inside) = (dispatcher::get_default(Dispatch::clone), OwnSpan::new(Span::current));
            move || dispatcher::with_default(&subscriber, || inside.emit(emit))
        });
    }
}

/// Has the teller tell an event, unless it is too far behind.
pub(super) fn event<F: FnOnce() + Send + 'static>(make: impl FnOnce() -> F) {
    if LOG_THREAD.waiting() >= EVENTS {
        DROPPED.fetch_add(1, Ordering::Relaxed);
        return;
    }
    let emit = make();
    LOG_THREAD.run(move || {
        let dropped = DROPPED.swap(0, Ordering::Relaxed);
        if dropped > 0 {
            tracing::warn!(dropped, "events were dropped, because the subscriber fell behind");
        }
        emit();
    });
}

/// A span of the user's subscriber, which may be used and dropped on every thread. By default it is none.
#[derive(Clone, Default)]
pub(crate) struct OwnSpan(Option<Arc<Entered>>);

struct Entered(Span);

impl OwnSpan {
    pub(crate) fn new(make: impl FnOnce() -> Span) -> OwnSpan {
        let span = guarded(make).filter(|span| !span.is_disabled());
        OwnSpan(span.map(|span| Arc::new(Entered(span))))
    }

    pub(crate) fn is_none(&self) -> bool {
        self.0.is_none()
    }

    pub(crate) fn id(&self) -> Option<Id> {
        self.0.as_ref()?.0.id()
    }

    pub(crate) fn record(&self, field: &'static str, value: impl Value + Send + 'static) {
        let Some(own) = self.0.clone() else { return };
        if is_library_thread() {
            LOG_THREAD.run(move || _ = own.0.record(field, value));
        } else {
            let _panicked = guarded(|| own.0.record(field, value));
        }
    }

    /// Runs the work with the library's events in this span.
    pub(crate) fn inside<T>(&self, work: impl FnOnce() -> T) -> T {
        if is_library_thread() {
            let before = INSIDE.replace(self.clone());
            let result = work();
            INSIDE.set(before);
            return result;
        }
        let _entered = self.0.as_ref().map(|own| {
            own.call(|subscriber, id| subscriber.enter(id));
            Exit(own)
        });
        work()
    }

    /// Tells in this span, to its subscriber.
    fn emit(&self, emit: impl FnOnce()) {
        match self.0.as_ref().and_then(|own| own.0.with_subscriber(|(_, subscriber)| subscriber.clone())) {
            Some(subscriber) => dispatcher::with_default(&subscriber, || self.inside(emit)),
            None => emit(),
        }
    }

    /// Polls the work in this span.
    pub(crate) fn around<F: Future + Unpin>(self, work: F) -> Around<F> {
        Around { span: self, work: Some(work) }
    }
}

impl Entered {
    fn call(&self, what: impl FnOnce(&Dispatch, &Id)) {
        self.0.with_subscriber(|(id, subscriber)| guarded(|| what(subscriber, id)));
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let span = std::mem::replace(&mut self.0, Span::none());
        if is_library_thread() {
            LOG_THREAD.run(move || drop(span));
        } else {
            let _panicked = guarded(move || drop(span));
        }
    }
}

struct Exit<'s>(&'s Entered);

impl Drop for Exit<'_> {
    fn drop(&mut self) {
        self.0.call(|subscriber, id| subscriber.exit(id));
    }
}

/// Work that is polled in a span.
pub(crate) struct Around<F> {
    span: OwnSpan,
    work: Option<F>,
}

impl<F: Future + Unpin> Future for Around<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let Around { span, work } = self.get_mut();
        match work {
            Some(work) => span.inside(|| Pin::new(work).poll(context)),
            None => Poll::Pending,
        }
    }
}

impl<F> Drop for Around<F> {
    fn drop(&mut self) {
        let work = self.work.take();
        self.span.inside(|| drop(work));
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::cell::Cell;
    use std::fmt;

    use super::*;

    /// A logger of the crate `log` may block as a subscriber may.
    #[test]
    fn without_a_subscriber_a_loss_is_still_logged_later() {
        struct Asked(Cell<u32>);
        impl fmt::Display for Asked {
            fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.set(self.0.get() + 1);
                Ok(())
            }
        }
        there_are_sessions();
        let asked = Asked(Cell::new(0));
        emit!(WARN, why = %asked, "a lock was lost");
        assert_eq!(asked.0.get(), 1, "it is written down for the teller");
    }
}
