//! Collects the warnings of the library in this process. Use it in a chapter whose tests set no other subscriber.

use std::fmt::Debug;
use std::sync::{Mutex, PoisonError};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};
use zk_rwlock::coordinator::flush_events;

use super::scene::SOON;

static WARNINGS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Starts to collect warnings, unless an earlier test of this process has started.
pub fn collect() {
    let _is_set_by_another_test = tracing::subscriber::set_global_default(Collector);
}

/// Returns the collected warnings that contain all of these texts. Each has the fields of its event, as `name=value`.
pub fn with(texts: &[&str]) -> Vec<String> {
    assert!(flush_events(SOON), "the events are not flushed");
    let all = WARNINGS.lock().unwrap_or_else(PoisonError::into_inner);
    all.iter().filter(|warning| texts.iter().all(|text| warning.contains(text))).cloned().collect()
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
        *metadata.level() == Level::WARN && metadata.target().starts_with("zk_rwlock")
    }

    fn new_span(&self, _span: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn event(&self, event: &Event<'_>) {
        let mut text = Text(String::new());
        event.record(&mut text);
        WARNINGS.lock().unwrap_or_else(PoisonError::into_inner).push(text.0);
    }

    fn record(&self, _span: &Id, _values: &Record<'_>) {}
    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}
    fn enter(&self, _span: &Id) {}
    fn exit(&self, _span: &Id) {}
}
