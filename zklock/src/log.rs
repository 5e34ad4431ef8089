//! Prints the library's log on standard error.

use std::fmt::{self, Write};
use std::time::Instant;

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::output::{escape_controls, queue_for_stderr};

/// Begins to print the log.
pub(crate) fn enable() {
    // The error is ignored: `set_global_default` fails only if a subscriber is already set, and this process sets no
    // other.
    let _ = tracing::subscriber::set_global_default(Log { started: Instant::now() });
}

/// A subscriber that queues each event of the library, except events of the level TRACE, as a line for standard error.
/// It ignores spans, because the library's events repeat what the spans say.
struct Log {
    started: Instant,
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && metadata.target().starts_with("zk_rwlock") && *metadata.level() <= Level::DEBUG
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::DEBUG)
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = EventText::default();
        event.record(&mut text);
        let (level, target) = (event.metadata().level(), event.metadata().target());
        let origin = target.split("::").next().unwrap_or(target);
        let at = self.started.elapsed().as_secs_f32();
        let line = escape_controls(&format!("{at:.3}s {level} {origin}: {}{}", text.message, text.fields));
        // The line is queued, because events also come from the threads that keep the session alive. These threads must
        // not block if nobody reads standard error.
        queue_for_stderr(format!("zklock: {line}\n"));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[derive(Default)]
struct EventText {
    message: String,
    fields: String,
}

impl Visit for EventText {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // The result is ignored: a string accepts any text, so only the `Debug` implementation of the value can fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_has_the_librarys_events_down_to_debug() {
        tracing::subscriber::with_default(Log { started: Instant::now() }, || {
            assert!(tracing::event_enabled!(target: "zk_rwlock::lock", Level::DEBUG));
            assert!(!tracing::event_enabled!(target: "zk_rwlock::lock", Level::TRACE));
            assert!(!tracing::event_enabled!(target: "another_crate", Level::INFO));
            assert!(!tracing::span_enabled!(target: "zk_rwlock::lock", Level::INFO), "the log ignores spans");
        });
    }
}
