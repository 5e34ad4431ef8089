//! Collects the warnings of the library in this process, and all events of its connections. Use it in a test binary
//! whose tests set no other subscriber.

use std::fmt::Debug;
use std::sync::{Mutex, PoisonError};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};
use zk_rwlock::coordinator::flush_events;

use super::scene::SOON;

static EVENTS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Starts to collect warnings, unless another test of this process has already started.
pub fn collect() {
    let _is_set_by_another_test = tracing::subscriber::set_global_default(Collector);
}

/// Returns the collected events that contain all of these texts. Each has its level and its fields, as `name=value`.
pub fn with(texts: &[&str]) -> Vec<String> {
    assert!(flush_events(SOON), "the events are not flushed");
    let all = EVENTS.lock().unwrap_or_else(PoisonError::into_inner);
    all.iter().filter(|event| texts.iter().all(|text| event.contains(text))).cloned().collect()
}

struct Collector;

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0 += &format!("{field}={value:?} ");
    }
}

impl Subscriber for Collector {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let target = metadata.target();
        let is_of_library = target.starts_with("zk_rwlock");
        is_of_library && (*metadata.level() == Level::WARN || target.ends_with("::connections"))
    }

    fn new_span(&self, _span: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn event(&self, event: &Event<'_>) {
        let mut text = Text(format!("{} ", event.metadata().level()));
        event.record(&mut text);
        EVENTS.lock().unwrap_or_else(PoisonError::into_inner).push(text.0);
    }

    fn record(&self, _span: &Id, _values: &Record<'_>) {}
    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}
    fn enter(&self, _span: &Id) {}
    fn exit(&self, _span: &Id) {}
}
