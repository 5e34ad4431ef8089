//! One acquisition: what the caller asks for, and how it fails; sends nothing.

use std::sync::Arc;

use tracing::Span;

use crate::acquisition::handle::Handle;
use crate::acquisition::options::Options;
use crate::error::error::Error;
use crate::hold::trace::{self, Acquiring};
use crate::queue::mode::Mode;
use crate::session::holds::Asker;
use crate::session::loss::Loss;
use crate::session::request::{Ending, Failure};

/// One acquisition under way.
#[derive(Debug)]
pub(crate) struct Acquisition {
    pub(crate) handle: Arc<Handle>,
    pub(crate) mode: Mode,
    pub(crate) options: Options,
    pub(crate) trace: Acquiring,
    /// Whether several reads may share its hold. Then the deadlock check counts the hold for no single task.
    pub(crate) is_for_all: bool,
}

impl Acquisition {
    /// Without a label of its own the acquisition has the lock's label.
    pub(crate) fn new(handle: &Arc<Handle>, mode: Mode, mut options: Options) -> Acquisition {
        options.label = options.label.or_else(|| handle.label.clone());
        Acquisition { handle: Arc::clone(handle), mode, options, trace: Acquiring::default(), is_for_all: false }
    }

    pub(crate) fn label(&self) -> Option<&str> {
        self.options.label.as_deref()
    }

    pub(crate) fn begin(&mut self) -> Span {
        self.trace = Acquiring::begin(&self.handle.path, self.mode, self.label());
        self.trace.span()
    }

    /// Reports a failure to tracing and metrics.
    pub(crate) fn reported<G>(&self, answer: Result<G, Error>) -> Result<G, Error> {
        answer.inspect_err(|error| trace::not_granted(&self.handle.path, self.mode, error))
    }

    pub(crate) fn asker(&self) -> Asker {
        if self.is_for_all { Asker::Unknown } else { Asker::here(self.options.is_blocking) }
    }

    pub(crate) fn evicted(&self, loss: Loss) -> Error {
        match loss {
            Loss::SessionOver(ending) => self.stop(Failure::Over(ending)),
            loss => Error::Evicted(loss),
        }
    }

    pub(crate) fn stop(&self, failure: Failure) -> Error {
        match failure {
            // The directory was deleted while our node was in it, and our node with it.
            Failure::NoNode => Error::Evicted(Loss::Removed),
            Failure::Over(ending @ (Ending::Expired | Ending::Replaced)) => Error::Evicted(Loss::SessionOver(ending)),
            failure => Error::from_failure(failure, "enter", &self.handle.path),
        }
    }
}
