//! The own nodes on one session, and what must be done for them; does none of it itself.

use std::sync::{Arc, Weak};

use tracing::level_filters::LevelFilter;

use crate::queue::contender::Owner;
use crate::queue::mode::Mode;
use crate::session::lease::Lease;
use crate::session::node::{OwnNode, Unwatched};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{HashMap, Mutex, Notify};
use crate::telemetry::log::tell;

/// A signal that a holder has released the lock. Another client can have forged it, as long as nobody has looked whether a
/// contender is left up to the holder's node.
pub(crate) struct HandOff {
    /// The path of the holder's node.
    pub(crate) path: Arc<str>,
    is_gone: AtomicBool,
}

impl HandOff {
    fn new(path: Arc<str>) -> HandOff {
        HandOff { path, is_gone: AtomicBool::new(false) }
    }

    /// Nobody is left, so the signal was true.
    pub(crate) fn confirm(&self) {
        self.is_gone.store(true, Ordering::Release);
    }

    pub(crate) fn is_confirmed(&self) -> bool {
        self.is_gone.load(Ordering::Acquire)
    }
}

/// The own nodes on one session.
#[derive(Default)]
pub(crate) struct OwnNodes {
    next: AtomicU64,
    members: Mutex<Members>,
    /// The connection was lost or is back, the session is over, or the first node was entered.
    pub(super) stirred: Notify,
    /// The nodes that keep-alive watches soon. It also hears here of a hand-off to be confirmed.
    pub(crate) unwatched: Arc<Unwatched>,
}

#[derive(Default)]
struct Members {
    all: HashMap<u64, Arc<OwnNode>>,
    /// Nodes that must be gone, because their waiters were granted by a hand-off.
    handed_off: HashMap<Arc<str>, HandedOff>,
    /// The last of these hand-offs after which nobody was left.
    gone: Option<Arc<HandOff>>,
    /// Nodes that leave by themselves with their last use.
    leaving: Vec<Weak<OwnNode>>,
    over: bool,
}

struct HandedOff {
    signal: Arc<HandOff>,
    granted: Vec<Arc<OwnNode>>,
    is_asked: bool,
}

impl OwnNodes {
    /// A node under this lease, which is not asked for yet.
    pub(super) fn begin(&self, queue: (Arc<str>, Owner), mode: Mode, lease: &Arc<Lease>) -> Arc<OwnNode> {
        OwnNode::new(self.next.fetch_add(1, Ordering::Relaxed), queue, mode, lease, &self.unwatched)
    }

    /// Enters a node that is there; it stays until [`OwnNodes::strike`].
    pub(super) fn enter(&self, own_node: &Arc<OwnNode>) {
        let mut members = self.members.lock();
        members.all.insert(own_node.number, Arc::clone(own_node));
        let is_first = members.all.len() == 1;
        drop(members);
        if is_first {
            self.stir();
        }
        self.unwatched.add(own_node);
    }

    pub(crate) fn strike(&self, own_node: &OwnNode) {
        self.members.lock().all.remove(&own_node.number);
    }

    /// The signal of the holder whose node is at `path`. One signal may let in thousands of readers.
    pub(crate) fn hand_off(&self, path: &Arc<str>) -> Arc<HandOff> {
        let members = self.members.lock();
        let known = members.handed_off.get(path).map(|handed| &handed.signal);
        let known = known.or(members.gone.as_ref().filter(|gone| gone.path == *path));
        known.cloned().unwrap_or_else(|| Arc::new(HandOff::new(Arc::clone(path))))
    }

    /// Asks keep-alive to check that the holder's node is gone, whose signal let `own_node` in.
    pub(crate) fn request_check(&self, signal: &Arc<HandOff>, own_node: &Arc<OwnNode>) {
        let mut members = self.members.lock();
        let is_gone = signal.is_confirmed() || members.gone.as_ref().is_some_and(|gone| gone.path == signal.path);
        if is_gone && !members.handed_off.contains_key(&signal.path) {
            return signal.confirm();
        }
        let handed = members.handed_off.entry(Arc::clone(&signal.path)).or_insert_with(|| {
            let signal = Arc::clone(signal);
            HandedOff { signal, granted: Vec::new(), is_asked: false }
        });
        handed.granted.push(Arc::clone(own_node));
        drop(members);
        self.unwatched.news.notify_one();
    }

    /// This node is no longer kept. It leaves with its last use, and nobody has to ask for it.
    pub(crate) fn leaves_soon(&self, own_node: &Arc<OwnNode>) {
        let mut members = self.members.lock();
        members.leaving.retain(|node| node.strong_count() > 0);
        members.leaving.push(Arc::downgrade(own_node));
    }

    /// The names of the nodes in this directory that nobody has to ask for.
    pub(crate) fn leaving_soon(&self, directory: &str) -> Vec<String> {
        let leaving: Vec<_> = self.members.lock().leaving.iter().filter_map(Weak::upgrade).collect();
        let name = |node: Arc<OwnNode>| Some(node.path().strip_prefix(directory)?.strip_prefix('/')?.to_owned());
        leaving.into_iter().filter_map(name).collect()
    }

    /// The paths of the nodes to check: the nodes whose hand-off let in a contender that still holds.
    pub(super) fn take_unchecked(&self) -> Vec<Arc<str>> {
        let mut members = self.members.lock();
        members.handed_off.retain(|_, handed| handed.is_asked || handed.granted.iter().any(|it| it.is_holding()));
        let unasked = members.handed_off.iter_mut().filter(|(_, handed)| !handed.is_asked);
        let asked = unasked.map(|(path, handed)| {
            handed.is_asked = true;
            Arc::clone(path)
        });
        asked.collect()
    }

    /// Nobody is left up to the node of this hand-off, so those whom it lets in later need not look again.
    pub(super) fn record_confirmed(&self, signal: Arc<HandOff>) {
        signal.confirm();
        self.members.lock().gone = Some(signal);
    }

    /// Ends the check of a node after a hand-off. Returns the hand-off, and the own nodes that were granted by it.
    pub(super) fn finish_check(&self, path: &Arc<str>) -> Option<(Arc<HandOff>, Vec<Arc<OwnNode>>)> {
        self.members.lock().handed_off.remove(path).map(|handed| (handed.signal, handed.granted))
    }

    /// The session is over. A node that was not lost before is lost with the session, whatever removes the node next.
    pub(crate) fn session_is_over(&self) {
        self.members.lock().over = true;
        self.look_at_all();
        self.stir();
        self.unwatched.news.notify_one();
    }

    /// Makes the renewal of the lease look again.
    pub(crate) fn stir(&self) {
        self.stirred.notify_one();
    }

    /// Looks at each node, and reports each loss; then every task that waits for a loss looks.
    pub(crate) fn look_at_all(&self) {
        for own_node in self.all() {
            own_node.loss();
        }
        self.tell_all();
    }

    /// Logs each hold that is in doubt because the connection is lost, or no longer in doubt because it is back.
    pub(crate) fn link_changed(&self, lease: &Lease, is_connected: bool) {
        if LevelFilter::current() < LevelFilter::WARN {
            return;
        }
        for own_node in self.all().into_iter().filter(|own_node| own_node.is_holding() && own_node.loss().is_none()) {
            let (node, left) = (own_node.path(), lease.remaining().unwrap_or_default());
            if is_connected {
                tell!(INFO, node, ?left, "the connection is back, and the lock is still held");
            } else {
                tell!(WARN, node, ?left, "the connection is lost while a lock is held");
            }
        }
    }

    /// Makes every task that waits for a loss look again.
    pub(crate) fn tell_all(&self) {
        for own_node in self.all() {
            own_node.wake_all();
        }
    }

    fn all(&self) -> Vec<Arc<OwnNode>> {
        self.members.lock().all.values().cloned().collect()
    }

    /// The nodes for a heartbeat to check: all nodes of holders, or else one node of a waiter.
    pub(crate) fn to_check(&self) -> Vec<(Arc<OwnNode>, String)> {
        let members = self.members.lock();
        let standing = |own_node: &Arc<OwnNode>| Some((Arc::clone(own_node), own_node.standing()?));
        let holding = members.all.values().filter(|own_node| own_node.is_held());
        let mut chosen: Vec<_> = holding.filter_map(standing).collect();
        if chosen.is_empty() {
            chosen.extend(members.all.values().find_map(standing));
        }
        chosen
    }

    pub(super) fn is_empty(&self) -> bool {
        self.members.lock().all.is_empty()
    }

    pub(super) fn is_over(&self) -> bool {
        self.members.lock().over
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::time::Duration;

    use super::*;
    use crate::session::loss::Loss;
    use crate::session::request::Ending;
    use crate::session::upkeep::Upkeep;

    const GRACE: Duration = Duration::from_millis(50);

    /// The upkeep of a session that has begun.
    fn upkeep() -> Arc<Upkeep> {
        let upkeep = Arc::new(Upkeep::new(Lease::new(Duration::from_secs(6))));
        upkeep.began(upkeep.lease().now());
        upkeep
    }

    /// Nodes with these names, entered in this order.
    fn enter<const N: usize>(upkeep: &Arc<Upkeep>, names: [&str; N]) -> [Arc<OwnNode>; N] {
        names.map(|name| upkeep.enter(format!("/a/{name}")))
    }

    fn names(own_nodes: &[Arc<OwnNode>]) -> Vec<String> {
        own_nodes.iter().map(|own_node| own_node.path()).collect()
    }

    #[test]
    fn a_node_is_watched_at_the_second_call_unless_it_has_left() {
        let upkeep = upkeep();
        let nodes = upkeep.nodes();
        let [_, gone] = enter(&upkeep, ["1", "2"]);
        let to_watch = || {
            let (due, more) = nodes.unwatched.take(GRACE);
            (names(&due), more)
        };
        assert_eq!(to_watch(), (vec![], true));
        gone.leave(|it| it.known.leave(true));
        enter(&upkeep, ["3"]);
        assert_eq!(to_watch(), (vec!["/a/1".to_owned()], true));
        assert_eq!(to_watch(), (vec!["/a/3".to_owned()], false));
        assert_eq!(to_watch(), (vec![], false));
        let [gone] = enter(&upkeep, ["4"]);
        gone.leave(|it| it.known.leave(true));
        assert_eq!(to_watch(), (vec![], false));
        enter(&upkeep, ["5"]);
        assert_eq!(names(&nodes.unwatched.take(Duration::ZERO).0), ["/a/5"]);
    }

    #[test]
    fn a_node_that_leaves_soon_is_named_in_its_directory_until_it_is_gone() {
        let upkeep = upkeep();
        let nodes = upkeep.nodes();
        let [first, second, third] = enter(&upkeep, ["1", "2", "3"]);
        nodes.leaves_soon(&first);
        nodes.leaves_soon(&second);
        assert_eq!(nodes.leaving_soon("/a"), ["1", "2"]);
        assert!(nodes.leaving_soon("/b").is_empty() && nodes.leaving_soon("/a/1").is_empty());
        nodes.strike(&first);
        drop((first, nodes.unwatched.take(Duration::ZERO)));
        assert_eq!(nodes.leaving_soon("/a"), ["2"]);
        nodes.leaves_soon(&third);
        assert_eq!(nodes.members.lock().leaving.len(), 2, "the one that is gone is forgotten");
    }

    #[test]
    fn only_the_first_of_several_nodes_stirs() {
        let upkeep = upkeep();
        let nodes = upkeep.nodes();
        let is_stirred = || pin!(nodes.stirred.notified()).enable();
        assert!(nodes.is_empty() && !is_stirred());
        let [first] = enter(&upkeep, ["1"]);
        assert!(is_stirred());
        let [second] = enter(&upkeep, ["2"]);
        assert!(!is_stirred());
        nodes.strike(&first);
        assert!(!nodes.is_empty());
        nodes.strike(&second);
        assert!(nodes.is_empty());
    }

    #[test]
    fn each_holder_is_checked_or_one_waiter_if_there_is_none() {
        let upkeep = upkeep();
        let [first, second, third] = enter(&upkeep, ["1", "2", "3"]);
        let to_check = || {
            let mut paths: Vec<_> = upkeep.nodes().to_check().into_iter().map(|(_, path)| path).collect();
            paths.sort();
            paths
        };
        assert_eq!(to_check().len(), 1);
        first.hold(0);
        second.hold(0);
        assert_eq!(to_check(), ["/a/1", "/a/2"]);
        first.leave(|it| it.known.leave(true));
        assert_eq!(to_check(), ["/a/2"]);
        second.change(|it| it.known.moves(None));
        assert_eq!(to_check(), ["/a/3"]);
        third.leave(|it| it.known.leave(true));
        assert!(to_check().is_empty());
    }

    #[test]
    fn a_hand_off_is_checked_once_for_all_that_it_let_in_and_still_hold() {
        let upkeep = upkeep();
        let nodes = upkeep.nodes();
        let [holder, other] = enter(&upkeep, ["2", "3"]);
        let path: Arc<str> = Arc::from("/a/1");
        let signal = nodes.hand_off(&path);
        nodes.request_check(&signal, &holder);
        assert!(Arc::ptr_eq(&signal, &nodes.hand_off(&path)) && !signal.is_confirmed());
        assert!(nodes.take_unchecked().is_empty(), "nobody holds who was let in");
        holder.hold(0);
        nodes.request_check(&signal, &other);
        nodes.request_check(&signal, &holder);
        assert_eq!((nodes.take_unchecked(), nodes.take_unchecked()), (vec![Arc::clone(&path)], vec![]));
        nodes.request_check(&nodes.hand_off(&path), &other);
        let (signal, granted) = nodes.finish_check(&path).expect("it is under way");
        assert_eq!(names(&granted), ["/a/3", "/a/2", "/a/3"], "until the check has ended");
        assert!(nodes.finish_check(&path).is_none() && !signal.is_confirmed());
    }

    #[test]
    fn the_last_node_that_was_gone_after_its_hand_off_is_not_checked_again() {
        let upkeep = upkeep();
        let nodes = upkeep.nodes();
        let [holder] = enter(&upkeep, ["3"]);
        holder.hold(0);
        let [gone, there]: [Arc<str>; 2] = ["/a/1", "/a/2"].map(Arc::from);
        for (path, is_gone) in [(&there, false), (&gone, true)] {
            nodes.request_check(&nodes.hand_off(path), &holder);
            nodes.take_unchecked();
            let (signal, granted) = nodes.finish_check(path).expect("it is under way");
            assert_eq!(names(&granted), ["/a/3"]);
            if is_gone {
                nodes.record_confirmed(signal);
            }
        }
        assert!(nodes.hand_off(&gone).is_confirmed() && !nodes.hand_off(&there).is_confirmed());
        let again = Arc::new(HandOff::new(Arc::clone(&gone)));
        nodes.request_check(&again, &holder);
        assert!(again.is_confirmed() && nodes.take_unchecked().is_empty());
        let again = nodes.hand_off(&there);
        nodes.request_check(&again, &holder);
        assert!(!again.is_confirmed());
        assert_eq!(nodes.take_unchecked(), [there]);
    }

    #[test]
    fn the_end_of_a_session_is_the_reason_of_each_loss_whatever_is_heard_next() {
        let upkeep = upkeep();
        let [holder, waiter, removed] = enter(&upkeep, ["1", "2", "3"]);
        holder.hold(upkeep.lease().epoch().unwrap());
        removed.lose(Loss::Removed);
        assert!(!upkeep.nodes().is_over());
        upkeep.end(Ending::Expired);
        assert!(upkeep.nodes().is_over());
        for (own_node, loss) in [
            (holder, Loss::SessionOver(Ending::Expired)),
            (waiter, Loss::SessionOver(Ending::Expired)),
            (removed, Loss::Removed),
        ] {
            own_node.lose(Loss::Interfered);
            assert_eq!(own_node.loss(), Some(loss));
        }
    }
}
