//! One acquisition: what the caller asks for, and how it fails; sends nothing.

use std::sync::Arc;

use tracing::Span;

use crate::acquisition::handle::Handle;
use crate::acquisition::limit::Wanted;
use crate::acquisition::options::Options;
use crate::error::error::Error;
use crate::hold::kept::Kept;
use crate::hold::trace::{self, Acquiring};
use crate::queue::mode::{Aim, Mode};
use crate::session::loss::Loss;
use crate::session::request::{Ending, Failure};

/// One acquisition under way.
#[derive(Debug)]
pub(crate) struct Acquisition {
    pub(crate) handle: Arc<Handle>,
    pub(crate) mode: Mode,
    pub(crate) options: Options,
    pub(crate) trace: Acquiring,
    /// The uses that will share its node, which is to be kept.
    pub(crate) kept: Option<Arc<Kept>>,
    /// The permits that it is after.
    pub(crate) wanted: Option<Box<Wanted>>,
}

impl Acquisition {
    /// Without a label of its own the acquisition has the lock's label.
    pub(crate) fn new(handle: Arc<Handle>, mode: Mode, mut options: Options) -> Acquisition {
        options.label = options.label.or_else(|| handle.label.clone());
        Acquisition { handle, mode, options, trace: Acquiring::default(), kept: None, wanted: None }
    }

    /// What it is after.
    pub(crate) fn aim(&self) -> Aim {
        if self.handle.limit.is_some() { Aim::Permit } else { Aim::Lock(self.mode) }
    }

    pub(crate) fn label(&self) -> Option<&str> {
        self.options.label.as_deref()
    }

    pub(crate) fn begin(&mut self) -> Span {
        self.trace = Acquiring::begin(self.handle.shown(), self.aim(), self.label(), self.kept.is_some());
        self.trace.span()
    }

    /// Reports a failure to tracing and metrics.
    pub(crate) fn reported<G>(&self, answer: Result<G, Error>) -> Result<G, Error> {
        answer.inspect_err(|error| trace::not_granted(self.handle.shown(), self.aim(), error))
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
