//! The options of one acquisition; sends nothing.

use std::time::Duration;

use crate::call::Limit;
use crate::error::error::Error;
use crate::snapshot::on_wait::Listener;
use crate::validation;

/// The options of one acquisition.
#[derive(Clone, Debug, Default)]
pub struct Options {
    pub(crate) limit: Option<Limit>,
    pub(crate) label: Option<String>,
    pub(crate) on_wait: Option<Box<Listener>>,
}

impl Options {
    /// How long the acquisition may take if it starts now.
    ///
    /// # Errors
    /// An option was wrong, or the deadline has passed.
    pub(crate) fn timeout(&self) -> Result<Option<Duration>, Error> {
        validation::check_label(self.label.as_deref())?;
        if self.on_wait.as_ref().is_some_and(|listener| listener.every == Some(Duration::ZERO)) {
            return Err(Error::invalid("an interval of zero between looks at the queue"));
        }
        if matches!(self.limit, Some(Limit::Timeout(Duration::ZERO))) {
            return Err(Error::invalid("a timeout of zero; to not wait at all, use a try_ method"));
        }
        self.limit.map(Limit::left).transpose()
    }
}
