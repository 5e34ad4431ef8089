//! A hand-off is a release that a waiter takes as its grant.
//!
//! A holder hands the lock off by one transaction that sets the data of its node and deletes the node. A waiter takes
//! the lock at the event "data changed". But that event also comes if a stranger (a client that does not own the node)
//! has set the data. So this process checks a hand-off that granted the lock to its own contenders, unless these
//! contenders release the lock first. The hand-off is confirmed once no contender is left whose sequence number is at
//! most that of the holder that released.

use std::mem;
use std::sync::{Arc, Weak};

use futures_util::future::OptionFuture;

use crate::queue::node_name::NodeName;
use crate::session::contract::Session;
use crate::session::listing;
use crate::session::node::Node;
use crate::session::presence;
use crate::session::request::{Failure, Loss};
use crate::session::retry::{RetryBudget, default_if_no_node, repeat_within_limit};
use crate::session::store::SessionStore;
use crate::telemetry::log::emit;

/// A server may refuse the write that signals a release (the write to the data of the holder's node). Releases in the
/// directory of that node are then plain deletes for this number of session timeouts.
const UNSIGNALLED_FOR: u32 = 60;

/// The maximum number of directories with refused signals that a session records. Before a session records one more
/// directory, it drops all the records.
const UNSIGNALLED_MAX: usize = 1_000;

impl SessionStore {
    /// Records that the server has refused to let this session set the data of its own node in this directory. For a
    /// while, releases there are plain deletes. A later release tries again whether the server accepts the write.
    pub(crate) fn record_signal_refused(&self, directory: &Arc<str>) {
        let until = self.lease().now().saturating_add(UNSIGNALLED_FOR * self.lease().timeout());
        let mut record = self.record.lock();
        if record.signals_refused.len() >= UNSIGNALLED_MAX && !record.signals_refused.contains_key(directory) {
            record.signals_refused.clear();
        }
        record.signals_refused.insert(Arc::clone(directory), until);
    }

    pub(crate) fn is_signal_refused(&self, directory: &str) -> bool {
        let until = self.record.lock().signals_refused.get(directory).copied();
        until.is_some_and(|until| self.lease().now() < until)
    }

    /// Requests that the task `keep_alive` checks the hand-off that has granted the lock to `node`. `path` is the path
    /// of the node of the holder that released. Does nothing if this hand-off was confirmed last and no further check
    /// of this hand-off is due.
    pub(crate) fn request_hand_off_check(&self, path: &Arc<str>, node: &Arc<Node>) {
        let mut record = self.record.lock();
        // A further check of the confirmed hand-off may be due, because another contender was granted the lock just
        // before the confirmation. `node` is then added to that check.
        if record.last_confirmed.as_ref() == Some(path) && !record.hand_offs.contains_key(path) {
            return;
        }
        record.hand_offs.entry(Arc::clone(path)).or_default().granted.push(Arc::clone(node));
        drop(record);
        self.unwatched.wake.notify_one();
    }

    /// Returns the paths of the hand-offs whose check must start now, and marks them as under check. First drops each
    /// hand-off that is not under check and whose contenders have all given the lock back. A contender that has lost
    /// the lock must still give it back.
    pub(super) fn begin_hand_off_checks(&self) -> Vec<Arc<str>> {
        let mut record = self.record.lock();
        record.hand_offs.retain(|_, it| it.is_under_check || it.granted.iter().any(|node| node.is_held_even_if_lost()));
        let all = record.hand_offs.iter_mut();
        all.filter_map(|(path, it)| (!mem::replace(&mut it.is_under_check, true)).then(|| Arc::clone(path))).collect()
    }

    /// Ends the check of a hand-off. Returns the nodes of this process to which the hand-off granted the lock, or
    /// `None` if no such hand-off is recorded.
    fn finish_hand_off_check(&self, path: &Arc<str>) -> Option<Vec<Arc<Node>>> {
        self.record.lock().hand_offs.remove(path).map(|it| it.granted)
    }
}

/// Checks a hand-off that granted the lock to contenders of this process. `path` is the path of the node of the holder
/// that released.
///
/// If that node still exists, a stranger has set its data, and the granted contenders lose the lock.
///
/// If that node is gone, the hand-off may still be false, in two cases:
/// - The owner of the node itself had a false grant.
/// - A stranger has set the data of a writer's node, and then a downgrade has replaced that node.
///
/// So if a granted contender still holds the lock a fifth of the session timeout later, the queue is listed. If a
/// contender is left whose sequence number is at most that of `path`, the granted contenders lose the lock. If no such
/// contender is left, the hand-off is confirmed. If a request fails, nothing is decided.
pub(super) async fn check_hand_off(session: Weak<dyn Session>, path: Arc<str>) {
    let Some(live) = session.upgrade() else { return };
    let mut survivor = match repeat_within_limit(&live, RetryBudget::ENDLESS, || live.data(&path)).await {
        Ok(_) => presence::first_existing(&live, &[path.to_string()]).await,
        Err(Failure::NoNode) => Ok(None),
        Err(failure) => Err(failure),
    };
    let pause = (survivor == Ok(None)).then(|| live.sleep(live.timeout() / 5));
    drop(live);
    OptionFuture::from(pause).await;
    let Some(live) = session.upgrade() else { return };
    let store = live.store();
    let Some(granted) = store.finish_hand_off_check(&path) else { return };
    if survivor == Ok(None) && granted.iter().any(|node| node.is_held()) {
        survivor = find_contender_up_to(&live, &path).await;
        if survivor == Ok(None) {
            store.record.lock().last_confirmed = Some(Arc::clone(&path));
        }
    }
    if let Ok(Some(survivor)) = survivor {
        record_interference(&path, &survivor, &granted);
    }
}

/// Records that these nodes are lost, because their owners took a stranger's write to the node at `path` for a
/// hand-off. `left` is the path of another contender's node, which still exists and is in front of these nodes.
pub(crate) fn record_interference<'n>(path: &str, left: &str, granted: impl IntoIterator<Item = &'n Arc<Node>>) {
    emit!(ERROR, path, left, "a stranger wrote to a lock node, and the write was taken for a hand-off");
    for node in granted {
        node.record_loss(Loss::Interfered);
    }
}

/// Returns the path of a contender that still exists and whose sequence number is at most that of the node at `path`,
/// or `None` if there is no such contender.
async fn find_contender_up_to(session: &Arc<dyn Session>, path: &str) -> Result<Option<String>, Failure> {
    let directory = Arc::from(path.rsplit_once('/').unwrap_or_default().0);
    let listed = repeat_within_limit(session, RetryBudget::ENDLESS, || listing::list(session, &directory)).await;
    let names = listed.or_else(default_if_no_node)?;
    presence::first_existing(session, &paths_numbered_up_to(&names, path)).await
}

/// Returns the paths of those contenders among these names whose sequence numbers are at most that of the node at
/// `path`.
pub(crate) fn paths_numbered_up_to(names: &[String], path: &str) -> Vec<String> {
    let (directory, name) = path.rsplit_once('/').unwrap_or_default();
    let number = |name: &str| NodeName::parse(name).map(|it| it.sequence());
    let up_to = names.iter().filter(|other| number(other).is_some_and(|it| Some(it) <= number(name)));
    up_to.map(|name| format!("{directory}/{name}")).collect()
}

#[cfg(test)]
mod tests;
