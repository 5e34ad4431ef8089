//! The end of a hold that lasts longer than its owner allows: who holds is told first, and then its node is given up.

use std::sync::Arc;
use std::time::Duration;

use crate::contend::removal::remove;
use crate::contend::tenure::Tenure;
use crate::session::contract::Session;
use crate::session::leaving::Leaving;
use crate::session::limits::LimitEnd;
use crate::session::loss::Loss;
use crate::session::node::OwnNode;
use crate::session::retry::slept;

/// One use of a kept node that may last only so long. It ends when this is dropped.
pub(crate) struct LimitedUse {
    own_node: Arc<OwnNode>,
    end: LimitEnd,
}

impl Drop for LimitedUse {
    fn drop(&mut self) {
        self.own_node.limits().ended(self.end);
    }
}

impl Tenure {
    /// From now on no hold by this node may last longer. The session's thread gives the node up, whatever its owner does.
    pub(crate) fn limit(&self, longest: Duration) {
        let (own_node, session) = self.node_and_session();
        own_node.limits().set(longest);
        let by = Arc::clone(&session);
        by.spawn(Box::pin(give_up_in_time(own_node, session)));
    }

    /// A use begins. `None` if it may last for ever.
    pub(crate) fn limited_use(&self) -> Option<LimitedUse> {
        let end = self.own_node().limits().begins(self.now())?;
        Some(LimitedUse { own_node: Arc::clone(self.own_node()), end })
    }

    /// The only hold by this node begins.
    pub(crate) fn hold_begins(&self) {
        let _until_the_node_is_gone = self.own_node().limits().begins(self.now());
    }
}

/// Gives the node up once it was held for too long, and its holder has had the time to stop. The node's owner may be
/// faster. A node that was lost by its lease stands as well, if its session lives on.
async fn give_up_in_time(own_node: Arc<OwnNode>, session: Arc<dyn Session>) {
    if matches!(own_node.lost(&session).await, Loss::SessionOver(_) | Loss::GivenBack | Loss::Removed) {
        return;
    }
    let slice = session.timeout() / 20;
    while let Some(left) = own_node.given_up_in().filter(|left| !left.is_zero() && !own_node.has_left()) {
        // In slices, because timers stand still while the machine is suspended.
        if !slept(&session, left.min(slice)).await {
            return;
        }
    }
    while !own_node.has_left() {
        let path = own_node.path();
        _ = remove(&session, &own_node, Leaving::delete(path.clone()), None).await;
        // Unless a downgrade is under way, which gives the node another name.
        if own_node.standing().as_ref() == Some(&path) || !slept(&session, slice).await {
            return;
        }
    }
}
