//! What all clones of a lock's handle share: where the lock is kept, and its options; sends nothing.

use std::sync::Arc;
use std::time::Duration;

use crate::acquisition::ask::Asking;
use crate::acquisition::keep::Keeper;
use crate::acquisition::limit::Limit;
use crate::error::error::Error;
use crate::queue::dialect::Dialect;
use crate::queue::turn;
use crate::session::contract::Coordinator;
use crate::snapshot::site::Site;

/// What all clones of a lock's handle share.
#[derive(Debug)]
pub struct Handle {
    pub(crate) coordinator: Arc<dyn Coordinator>,
    /// The queue's directory.
    pub(crate) path: Arc<str>,
    /// Where to look for contenders in the way.
    pub(crate) site: Site,
    /// The number of permits, if the queue is that of a semaphore.
    pub(crate) limit: Option<Limit>,
    pub(crate) host: String,
    pub(crate) label: Option<String>,
    pub(crate) dialect: Dialect,
    pub(crate) warn_waiting: Option<Duration>,
    pub(crate) warn_holding: Option<Duration>,
    /// The nodes that are kept between uses, if the user asked for that.
    pub(crate) keeper: Option<Keeper>,
    pub(crate) asking: Arc<Asking>,
}

impl Handle {
    /// The path that the user gave.
    pub(crate) fn shown(&self) -> &Arc<str> {
        &self.site.path
    }

    /// Fails if the directory has a contender that may go by another rule.
    pub(crate) fn check_for_foreign(&self, names: &[String]) -> Result<(), Error> {
        turn::foreign(self.dialect, names).map_or(Ok(()), |node| Err(self.doubt(node)))
    }

    pub(crate) fn doubt(&self, foreign: &str) -> Error {
        let speaks = self.dialect.foreign(foreign).unwrap_or(self.dialect);
        let (path, node) = (self.path.to_string(), foreign.to_owned());
        Error::ForeignContender { path, node, speaks, dialect: self.dialect }
    }
}
