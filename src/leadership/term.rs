//! One term of a leader, as its work sees it; knows nothing of campaigns.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::error::error::Error;
use crate::guard::guard::WriteGuard;
use crate::hold::hold::NodeData;
use crate::hold::transaction::Transaction;

/// One term of a leader. [`Leadership::lead`](crate::Leadership::lead) gives it to the work.
///
/// It is cheap to clone, for the tasks that the work starts. It does not make the term last: when the term ends, every
/// clone [says so](Self::is_leader), and a transaction of it is refused.
#[derive(Clone)]
pub struct Term {
    pub(crate) guard: Arc<WriteGuard>,
}

impl Term {
    /// The number of the term: higher than that of every term before, of whichever candidate. It is the
    /// [fencing token](WriteGuard::fencing_token) of the grant.
    ///
    /// Send it along with every write to another system, and have that system refuse a number lower than the highest it
    /// has seen. Then a leader that was stopped, or whose packets were late, does no harm.
    pub fn number(&self) -> i64 {
        self.guard.fencing_token()
    }

    /// Whether the term still lasts. The last moment of `true` lies before another candidate leads: see
    /// [`WriteGuard::is_held`], also for the one exception. Sends nothing.
    pub fn is_leader(&self) -> bool {
        let held = self.guard.held();
        !held.own_node().has_left() && held.loss().is_none()
    }

    /// For how long the ensemble surely keeps every other candidate out: see [`WriteGuard::session_left`].
    pub fn session_left(&self) -> Duration {
        match self.is_leader() {
            true => self.guard.session_left(),
            false => Duration::ZERO,
        }
    }

    /// Starts a transaction that is committed only if the term still lasts then. See [`Transaction`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use zk_rwlock::{Error, Leadership, Memory};
    /// # tokio_test::block_on(async {
    /// # let leadership = Leadership::new(&Memory::new(), "/leaders/report")?;
    /// let publish = |term: zk_rwlock::Term| async move {
    ///     term.transaction().create("/report", "of the leader").commit().await?;
    ///     Ok::<(), Error>(())
    /// };
    /// leadership.lead(publish).await?.expect("not stopped")?;
    /// # Ok::<(), Error>(()) }).unwrap();
    /// ```
    pub fn transaction(&self) -> Transaction<'_> {
        self.guard.transaction()
    }

    /// Reads any node; `None` if it does not exist. It sees what leaders before wrote to ZooKeeper: see
    /// [`WriteGuard::data`].
    ///
    /// # Cancel safety
    /// Only reads.
    ///
    /// # Errors
    /// As for [`WriteGuard::data`].
    pub async fn data(&self, path: impl AsRef<str>) -> Result<Option<NodeData>, Error> {
        self.guard.data(path).await
    }
}

impl fmt::Debug for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Term").field("number", &self.number()).field("is_leader", &self.is_leader()).finish()
    }
}
