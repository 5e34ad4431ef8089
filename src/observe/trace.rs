//! The tracing spans and the metrics of acquisitions and holds. Without a subscriber the spans cost almost nothing.

use std::pin::Pin;
use std::sync::Arc;

use tokio::sync::oneshot;
use tokio::time::Instant;
use tracing::field::{Empty, debug};
use tracing::{Span, debug_span};

use crate::error::error::Error;
use crate::queue::mode::{AcquisitionAim, Mode};
use crate::session::node::Node;
use crate::telemetry::log::{UserSpan, emit};
use crate::telemetry::meter::{self, GaugeGuard, PathLabel};
use crate::telemetry::names;

type TracedFuture<G> = Pin<Box<dyn Future<Output = Result<G, Error>> + Send>>;

/// The trace of one acquisition. The spans are in a box, so that thousands of waiting acquisitions without spans take
/// little memory.
#[derive(Default)]
pub(crate) struct AcquireTrace {
    spans: Option<Box<AcquireSpans>>,
    wait: GaugeGuard,
}

struct AcquireSpans {
    acquire: UserSpan,
    /// The caller's span, which is the parent of the hold's span.
    caller: UserSpan,
    began: Instant,
}

impl AcquireTrace {
    /// Begins the trace. `is_for_several` is true if several callers may wait for this acquisition, because its node
    /// will be kept between uses. The gauge of waiters then counts each of these callers, and not this acquisition.
    pub(crate) fn begin(
        (path, metrics): (&str, &Arc<PathLabel>),
        aim: AcquisitionAim,
        label: Option<&str>,
        is_for_several: bool,
    ) -> AcquireTrace {
        let acquire = UserSpan::new(
            || debug_span!("acquire", path, mode = %aim, label, sequence = Empty, token = Empty, waited = Empty),
        );
        let spans = (!acquire.is_none())
            .then(|| Box::new(AcquireSpans { acquire, caller: UserSpan::new(Span::current), began: Instant::now() }));
        let waits = (!is_for_several).then(|| GaugeGuard::new(names::WAITING, Some(aim), Some(metrics)));
        let wait = waits.unwrap_or_default();
        AcquireTrace { spans, wait }
    }

    /// Returns a future that polls `work` inside `span`, if there is a span.
    pub(crate) fn instrument<G: 'static>(span: UserSpan, work: TracedFuture<G>) -> TracedFuture<G> {
        if span.is_none() { work } else { Box::pin(span.instrument(work)) }
    }

    pub(crate) fn acquire_span(&self) -> UserSpan {
        self.spans.as_ref().map(|spans| spans.acquire.clone()).unwrap_or_default()
    }

    /// Records the token and the length of the wait, and begins the trace of the hold.
    pub(crate) fn begin_hold(&self, aim: AcquisitionAim, path: &str, label: Option<&str>, node: &Node) -> HoldTrace {
        self.record_span_field("token", node.token());
        self.wait.record_acquire_wait();
        let begin = |spans: &AcquireSpans| HoldSpan::begin(aim, path, node, label, &spans.caller, &spans.acquire);
        let span = self.spans.as_deref().map(begin).map(Box::new);
        HoldTrace { span, gauge: GaugeGuard::new(names::HOLDING, Some(aim), Some(node.path_label())), warning: None }
    }

    /// Sets a field of the acquisition's span, if it has one: for example, `sequence` once the node is created.
    pub(crate) fn record_span_field(&self, field: &'static str, number: i64) {
        if let Some(spans) = &self.spans {
            spans.acquire.record_field(field, number);
        }
    }
}

impl Drop for AcquireSpans {
    fn drop(&mut self) {
        self.acquire.record_field("waited", debug(self.began.elapsed()));
    }
}

/// Counts a grant. `kind` says how the contender learned that its turn had come. The kind `"kept"` stands for a use of
/// a node that was granted before.
pub(crate) fn count_grant(aim: AcquisitionAim, path: &PathLabel, kind: &'static str) {
    meter::increment_counter(names::GRANTS, Some(path), &[("mode", meter::mode_label(aim)), ("kind", kind)]);
}

/// Logs that an acquisition failed. Also counts the failure if the error is [`Error::WouldBlock`] or
/// [`Error::Timeout`].
pub(crate) fn report_failed_acquire((path, metrics): (&str, &PathLabel), aim: AcquisitionAim, error: &Error) {
    let mode = &[("mode", meter::mode_label(aim))];
    match error {
        Error::WouldBlock { .. } => meter::increment_counter(names::WOULD_BLOCK, Some(metrics), mode),
        Error::Timeout { .. } => meter::increment_counter(names::TIMEOUTS, Some(metrics), mode),
        _ => {}
    }
    emit!(DEBUG, path, mode = %aim, %error, "not granted");
}

/// The trace of a hold, until the hold ends.
#[derive(Default)]
pub(crate) struct HoldTrace {
    span: Option<Box<HoldSpan>>,
    gauge: GaugeGuard,
    /// Dropping this sender cancels the task that warns of a long hold.
    pub(crate) warning: Option<oneshot::Sender<()>>,
}

struct HoldSpan {
    span: UserSpan,
    began: Instant,
    caller: UserSpan,
    label: Option<String>,
}

impl HoldTrace {
    /// Returns whether a span, a metric or a warning task depends on the end of the hold.
    pub(crate) fn has_end_to_record(&self) -> bool {
        self.span.is_some() || self.gauge.is_raised() || self.warning.is_some()
    }

    /// Ends the trace of a write hold, and begins the trace of the read hold that follows a downgrade.
    pub(crate) fn begin_read_hold(&mut self, path: &str, node: &Node) {
        let begin_read = |hold: &HoldSpan| {
            HoldSpan::begin(
                AcquisitionAim::Lock(Mode::Read),
                path,
                node,
                hold.label.as_deref(),
                &hold.caller,
                &hold.span,
            )
        };
        self.span = self.span.as_deref().map(begin_read).map(Box::new);
        self.gauge.change_mode_to_read();
    }
}

impl HoldSpan {
    fn begin(
        aim: AcquisitionAim,
        path: &str,
        node: &Node,
        label: Option<&str>,
        caller: &UserSpan,
        after: &UserSpan,
    ) -> HoldSpan {
        let (sequence, token) = (node.node_name().sequence(), node.token());
        let span = UserSpan::new(|| {
            let span =
                debug_span!(parent: caller.id(), "hold", path, mode = %aim, sequence, token, label, held = Empty);
            span.follows_from(after.id());
            span
        });
        HoldSpan { span, began: Instant::now(), caller: caller.clone(), label: label.map(str::to_owned) }
    }
}

impl Drop for HoldSpan {
    fn drop(&mut self) {
        self.span.record_field("held", debug(self.began.elapsed()));
    }
}
