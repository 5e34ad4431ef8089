//! A subscriber of `tracing` for the library's own threads, called the relay. It receives the events of the client
//! crate and of tokio on these threads. The [log thread](crate::telemetry::user_thread) then passes the events to the
//! user's subscriber, so that the subscriber's code does not run on the library's threads.
//!
//! For each place that emits an event, `tracing` calls `register_callsite` of every subscriber once, on the first
//! thread that reaches the place. On a library thread, this is the relay.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;

use tracing::dispatcher::{self, DefaultGuard};
use tracing::field::{Field, Value, ValueSet, Visit, display};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Dispatch, Event, Metadata, Span, Subscriber};

use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{HashMap, Mutex};
use crate::telemetry::log::{FAREWELL, LOG_THREAD, event};

/// The most fields of one event or span that are passed to the user's subscriber.
const FIELDS: usize = 32;

static RELAY: Mutex<Option<Dispatch>> = Mutex::new(None);

/// The number of handles of each span of the relay, by the span's id.
static SPANS: Mutex<BTreeMap<u64, usize>> = Mutex::new(BTreeMap::new());

thread_local! {
    /// The ids of the relay's spans that this thread has entered, the innermost last.
    static INSIDE: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
    /// The guard that makes the relay this thread's subscriber for as long as the guard exists.
    static IN_FORCE: Cell<Option<DefaultGuard>> = const { Cell::new(None) };
    /// On the log thread: the user's span that stands for each span of the relay, by the id of the relay's span.
    static USER_SPANS: RefCell<HashMap<u64, Span>> = RefCell::new(HashMap::default());
}

/// Creates the relay, if it does not exist yet. This must happen before the user sets a subscriber, so that the relay
/// already passes on the first event that the subscriber could receive.
pub(crate) fn prepare() {
    if RELAY.lock().is_some() {
        return;
    }
    let make = || {
        if RELAY.lock().is_none() {
            let relay = Dispatch::new(Relay);
            *RELAY.lock() = Some(relay);
        }
    };
    if has_subscriber() {
        // When a subscriber is created, `tracing` calls all other subscribers on the same thread. So the relay is
        // created on the log thread, where the user's code may run.
        LOG_THREAD.run(make);
    } else {
        make();
    }
}

/// Returns whether the user has set a subscriber. Without a subscriber there must be no relay, because the relay would
/// keep events from a logger of the crate `log`.
fn has_subscriber() -> bool {
    LevelFilter::current() != LevelFilter::OFF
}

/// As [`prepare`], but also waits until the relay is created, for at most [`FAREWELL`].
pub(crate) fn prepare_and_wait() {
    prepare();
    if RELAY.lock().is_none() {
        LOG_THREAD.flush(FAREWELL);
    }
}

/// Makes the relay this thread's subscriber, if the user has set a subscriber.
pub(crate) fn relay_this_thread() {
    let in_force = IN_FORCE.take().or_else(|| {
        if !has_subscriber() {
            return None;
        }
        prepare();
        let relay = RELAY.lock().clone();
        relay.as_ref().map(dispatcher::set_default)
    });
    IN_FORCE.set(in_force);
}

struct Relay;

impl Subscriber for Relay {
    /// Returns `never`, because the relay itself wants no event. `tracing` combines this with the interest of the
    /// user's subscriber, so only events that the subscriber wants are recorded.
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        Interest::never()
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= LevelFilter::current()
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::OFF)
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        SPANS.lock().insert(number, 1);
        let (metadata, fields) = (span.metadata(), Fields::of(|fields| span.record(fields)));
        let parent = if span.is_contextual() { innermost() } else { span.parent().map(Id::into_u64) };
        LOG_THREAD.run(move || {
            if is_wanted(metadata) {
                let made = fields.with(metadata, |values| match user_span(parent) {
                    None => Span::new_root(metadata, values),
                    parent => Span::child_of(parent, metadata, values),
                });
                USER_SPANS.with_borrow_mut(|all| all.insert(number, made));
            }
        });
        Id::from_u64(number)
    }

    fn record(&self, span: &Id, values: &Record<'_>) {
        let (number, fields) = (span.into_u64(), Fields::of(|fields| values.record(fields)));
        LOG_THREAD.run(move || {
            let Some(span) = USER_SPANS.with_borrow(|all| all.get(&number).cloned()) else { return };
            if let Some(metadata) = span.metadata() {
                fields.with(metadata, |values| _ = span.record_all(values));
            }
        });
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, recorded: &Event<'_>) {
        let parent = if recorded.is_contextual() { innermost() } else { recorded.parent().map(Id::into_u64) };
        let metadata = recorded.metadata();
        event(|| {
            let fields = Fields::of(|fields| recorded.record(fields));
            move || {
                if is_wanted(metadata) {
                    fields.with(metadata, |values| match user_span(parent) {
                        None => Event::dispatch(metadata, values),
                        parent => Event::child_of(parent, metadata, values),
                    });
                }
            }
        });
    }

    fn enter(&self, span: &Id) {
        INSIDE.with_borrow_mut(|inside| inside.push(span.into_u64()));
    }

    fn exit(&self, span: &Id) {
        INSIDE.with_borrow_mut(|inside| {
            if let Some(last) = inside.iter().rposition(|it| *it == span.into_u64()) {
                inside.remove(last);
            }
        });
    }

    fn clone_span(&self, span: &Id) -> Id {
        if let Some(handles) = SPANS.lock().get_mut(&span.into_u64()) {
            *handles += 1;
        }
        span.clone()
    }

    fn try_close(&self, span: Id) -> bool {
        let (number, mut spans) = (span.into_u64(), SPANS.lock());
        let Some(handles) = spans.get_mut(&number) else { return false };
        *handles -= 1;
        if *handles > 0 {
            return false;
        }
        spans.remove(&number);
        drop(spans);
        LOG_THREAD.run(move || drop(USER_SPANS.with_borrow_mut(|all| all.remove(&number))));
        true
    }
}

fn innermost() -> Option<u64> {
    INSIDE.with_borrow(|inside| inside.last().copied())
}

/// On the log thread: returns the id of the user's span that stands for the relay's span with the id `number`.
fn user_span(number: Option<u64>) -> Option<Id> {
    USER_SPANS.with_borrow(|all| all.get(&number?)?.id())
}

/// On the log thread: returns whether the user's subscriber wants this event or span. Calls the subscriber as the
/// macros of `tracing` do.
fn is_wanted(metadata: &'static Metadata<'static>) -> bool {
    dispatcher::get_default(|user| !user.register_callsite(metadata).is_never() && user.enabled(metadata))
}

/// The owned values of an event's or span's fields, to be passed to another thread.
struct Fields(Vec<(Field, Box<dyn Value + Send>)>);

impl Fields {
    fn of(record: impl FnOnce(&mut Fields)) -> Fields {
        let mut fields = Fields(Vec::new());
        record(&mut fields);
        fields
    }

    fn with<T>(&self, metadata: &'static Metadata<'static>, pass: impl FnOnce(&ValueSet<'_>) -> T) -> T {
        let Some((first, _)) = self.0.first() else { return pass(&metadata.fields().value_set(&[])) };
        let mut values: [(&Field, Option<&dyn Value>); FIELDS] = [(first, None); FIELDS];
        for (at, (field, value)) in values.iter_mut().zip(&self.0) {
            *at = (field, Some(&**value));
        }
        pass(&metadata.fields().value_set(&values))
    }

    fn push(&mut self, field: &Field, value: impl Value + Send + 'static) {
        self.0.push((field.clone(), Box::new(value)));
    }
}

impl Visit for Fields {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.push(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.push(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.push(field, value);
    }

    fn record_i128(&mut self, field: &Field, value: i128) {
        self.push(field, value);
    }

    fn record_u128(&mut self, field: &Field, value: u128) {
        self.push(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.push(field, value);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.push(field, value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.push(field, display(format!("{value:?}")));
    }
}
