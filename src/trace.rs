//! What `tracing` is told of acquisitions and holds; decides nothing, and costs next to nothing if nobody listens.

use std::fmt;

use tokio::time::Instant;
use tracing::field::{Empty, debug};
use tracing::{Id, Instrument, Span};

use crate::lock::Granting;
use crate::meter::{self, Began};
use crate::name::Mode;
use crate::place::Standing;

/// What is seen of an acquisition. Its span, if anybody listens, is a pointer, because thousands may wait.
#[derive(Debug, Default)]
pub(crate) struct Acquiring {
    spans: Option<Box<Spans>>,
    began: Began,
}

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
            return Acquiring { spans: None, began: Began::now() };
        }
        let spans = Spans { acquire, caller: Span::current().id(), began: Instant::now() };
        Acquiring { spans: Some(Box::new(spans)), began: Began::now() }
    }

    /// Has the work happen inside the span.
    pub(crate) fn around<G: 'static>(span: Span, work: Granting<G>) -> Granting<G> {
        if span.is_disabled() { work } else { Box::pin(work.instrument(span)) }
    }

    pub(crate) fn span(&self) -> Span {
        self.spans.as_ref().map_or_else(Span::none, |spans| spans.acquire.clone())
    }

    /// The lock was granted: its hold begins.
    pub(crate) fn granted(&self, path: &str, label: Option<&str>, standing: &Standing) -> Holding {
        let (mode, sequence, token) = (standing.contender.mode(), standing.contender.sequence(), standing.czxid);
        let metered = meter::acquired(mode, self.began);
        let Some(spans) = &self.spans else {
            return Holding { span: None, _metered: metered };
        };
        self.granted_place(standing);
        let parent = spans.caller.clone();
        let hold = tracing::debug_span!(parent: parent, "hold", path, %mode, sequence, token, label, held = Empty);
        hold.follows_from(&spans.acquire);
        Holding { span: Some(Box::new((hold, Instant::now()))), _metered: metered }
    }

    /// The lock was granted together with others: whose hold it is, is told of one of them.
    pub(crate) fn granted_place(&self, standing: &Standing) {
        if let Some(spans) = &self.spans {
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

/// What is seen of a hold, until it ends.
#[derive(Default)]
pub(crate) struct Holding {
    span: Option<Box<(Span, Instant)>>,
    _metered: meter::Hold,
}

impl Drop for Holding {
    fn drop(&mut self) {
        if let Some(hold) = &self.span {
            hold.0.record("held", debug(hold.1.elapsed()));
        }
    }
}

impl fmt::Debug for Holding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Holding")
    }
}
