//! What `tracing` is told of acquisitions and holds; decides nothing, and costs next to nothing if nobody listens.

use std::fmt;

use tokio::time::Instant;
use tracing::field::{Empty, debug};
use tracing::{Id, Instrument, Span};

use crate::lock::Granting;
use crate::name::Mode;
use crate::place::Standing;

/// The span of an acquisition, if anybody listens: a pointer, because thousands may wait.
#[derive(Debug, Default)]
pub(crate) struct Acquiring(Option<Box<Spans>>);

#[derive(Debug)]
struct Spans {
    acquire: Span,
    /// What the caller was in: the hold is no part of the acquisition.
    caller: Option<Id>,
    began: Instant,
}

impl Acquiring {
    pub(crate) fn begin(path: &str, mode: Mode, label: Option<&str>) -> Acquiring {
        let acquire =
            tracing::debug_span!("acquire", path, %mode, label, sequence = Empty, token = Empty, waited = Empty);
        if acquire.is_disabled() {
            return Acquiring(None);
        }
        Acquiring(Some(Box::new(Spans { acquire, caller: Span::current().id(), began: Instant::now() })))
    }

    /// Has the work happen inside the span.
    pub(crate) fn around<G: 'static>(span: Span, work: Granting<G>) -> Granting<G> {
        if span.is_disabled() { work } else { Box::pin(work.instrument(span)) }
    }

    pub(crate) fn span(&self) -> Span {
        self.0.as_ref().map_or_else(Span::none, |spans| spans.acquire.clone())
    }

    /// The lock was granted: its hold begins.
    pub(crate) fn granted(&self, path: &str, label: Option<&str>, standing: &Standing) -> Holding {
        let Some(spans) = &self.0 else {
            return Holding(None);
        };
        let (mode, sequence, token) = (standing.contender.mode(), standing.contender.sequence(), standing.czxid);
        self.granted_place(standing);
        let parent = spans.caller.clone();
        let hold = tracing::debug_span!(parent: parent, "hold", path, %mode, sequence, token, label, held = Empty);
        hold.follows_from(&spans.acquire);
        Holding(Some(Box::new((hold, Instant::now()))))
    }

    /// The lock was granted together with others: whose hold it is, is told of one of them.
    pub(crate) fn granted_place(&self, standing: &Standing) {
        if let Some(spans) = &self.0 {
            spans.acquire.record("sequence", standing.contender.sequence());
            spans.acquire.record("token", standing.czxid);
        }
    }
}

impl Drop for Spans {
    fn drop(&mut self) {
        self.acquire.record("waited", debug(self.began.elapsed()));
    }
}

/// The span of a hold, if anybody listens.
#[derive(Default)]
pub(crate) struct Holding(Option<Box<(Span, Instant)>>);

impl Drop for Holding {
    fn drop(&mut self) {
        if let Some(hold) = &self.0 {
            hold.0.record("held", debug(hold.1.elapsed()));
        }
    }
}

impl fmt::Debug for Holding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Holding")
    }
}
