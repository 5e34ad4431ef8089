//! What can be set before an acquisition starts; sends nothing.

use std::time::{Duration, Instant};

use crate::error::error::Error;
use crate::snapshot::progress::Listener;
use crate::validation;

/// What can be set before an acquisition starts.
#[derive(Clone, Debug, Default)]
pub struct Options {
    pub(crate) limit: Option<Limit>,
    pub(crate) label: Option<String>,
    pub(crate) on_wait: Option<Box<Listener>>,
    pub(crate) is_blocking: bool,
}

/// How long an acquisition may take.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Limit {
    Timeout(Duration),
    Deadline(Instant),
}

impl Options {
    /// How long the acquisition that starts now may take.
    ///
    /// # Errors
    /// An option was wrong, or the deadline has passed.
    pub(crate) fn timeout(&self) -> Result<Option<Duration>, Error> {
        validation::check_label(self.label.as_deref())?;
        if self.on_wait.as_ref().is_some_and(|listener| listener.every == Some(Duration::ZERO)) {
            return Err(Error::invalid("an interval of zero between looks at the queue"));
        }
        match self.limit {
            None => Ok(None),
            Some(Limit::Timeout(Duration::ZERO)) => {
                Err(Error::invalid("a timeout of zero; to not wait at all, use a try_ method"))
            }
            Some(Limit::Timeout(timeout)) => Ok(Some(timeout)),
            Some(Limit::Deadline(deadline)) => match deadline.saturating_duration_since(Instant::now()) {
                Duration::ZERO => Err(Error::Timeout { waited: Duration::ZERO, blockers: Default::default() }),
                left => Ok(Some(left)),
            },
        }
    }
}
