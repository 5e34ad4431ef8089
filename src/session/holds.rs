//! The holds of one session, and which of them a contender of the same session waits for; knows no I/O and no turns.

use std::collections::hash_map::Entry;
use std::fmt;
use std::sync::{Arc, Weak};

use tokio::runtime::Handle;
use tokio::task;

use crate::session::node::OwnNode;
use crate::sync::thread::{self, ThreadId};
use crate::sync::{HashMap, HashSet, Mutex, MutexGuard};

/// The task or thread that asks for a lock, as far as that can be known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Asker {
    Task(task::Id),
    Thread(ThreadId),
    Unknown,
}

impl Asker {
    /// The task or thread that runs this. An executor other than tokio's does not show its tasks.
    pub(crate) fn here(is_blocking: bool) -> Asker {
        match task::try_id() {
            Some(id) => Asker::Task(id),
            None if is_blocking || Handle::try_current().is_ok() => Asker::Thread(thread::current().id()),
            None => Asker::Unknown,
        }
    }

    pub(crate) fn is(self, other: Asker) -> bool {
        self == other && self != Asker::Unknown
    }
}

/// What a process does under a node that it keeps between uses.
pub(crate) trait Users: fmt::Debug + Send + Sync {
    fn is_in_use(&self) -> bool;

    fn has(&self, asker: Asker) -> bool;
}

/// By which tasks a hold is used.
#[derive(Clone, Debug)]
pub(crate) enum UsedBy {
    One(Asker),
    Users(Weak<dyn Users>),
}

impl UsedBy {
    fn is(&self, asker: Asker) -> bool {
        match self {
            UsedBy::One(one) => one.is(asker),
            UsedBy::Users(users) => users.upgrade().is_some_and(|users| users.has(asker)),
        }
    }

    /// A node that is only kept is given up as soon as it is asked for.
    fn is_in_use(&self) -> bool {
        match self {
            UsedBy::One(_) => true,
            UsedBy::Users(users) => users.upgrade().is_some_and(|users| users.is_in_use()),
        }
    }
}

/// The holds under one session, by the directory. A process may have a hundred thousand, and each acquisition asks.
#[derive(Debug, Default)]
pub(crate) struct Holds(Mutex<HashMap<Arc<str>, InDirectory>>);

/// The holds in one directory. Never empty.
#[derive(Debug, Default)]
struct InDirectory {
    /// By the transactions that created their nodes.
    all: HashMap<i64, Granted>,
    /// How many holds each asker has that is the only user of its hold.
    askers: HashMap<Asker, usize>,
    /// The others: nodes that are kept between uses.
    shared: HashSet<i64>,
}

#[derive(Debug)]
struct Granted {
    sequence: i64,
    used_by: UsedBy,
    own_node: Arc<OwnNode>,
}

impl InDirectory {
    fn insert(&mut self, czxid: i64, hold: Granted) {
        match hold.used_by {
            UsedBy::One(asker) => *self.askers.entry(asker).or_default() += 1,
            UsedBy::Users(_) => drop(self.shared.insert(czxid)),
        }
        self.all.insert(czxid, hold);
    }

    fn remove(&mut self, czxid: i64) -> Option<Granted> {
        let hold = self.all.remove(&czxid)?;
        self.shared.remove(&czxid);
        if let UsedBy::One(asker) = hold.used_by
            && let Entry::Occupied(mut count) = self.askers.entry(asker)
        {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
        Some(hold)
    }

    fn shared(&self) -> Vec<UsedBy> {
        self.shared.iter().filter_map(|czxid| Some(self.all.get(czxid)?.used_by.clone())).collect()
    }
}

/// A hold that is in the way of a contender of the same session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OwnHold {
    pub(crate) node: String,
    pub(crate) is_of_the_same: bool,
}

impl Holds {
    /// The node that transaction `czxid` created has been granted the lock.
    pub(crate) fn begin(
        &self,
        czxid: i64,
        directory: &Arc<str>,
        sequence: i64,
        used_by: UsedBy,
        own_node: &Arc<OwnNode>,
    ) {
        let hold = Granted { sequence, used_by, own_node: Arc::clone(own_node) };
        self.all().entry(Arc::clone(directory)).or_default().insert(czxid, hold);
    }

    pub(crate) fn end(&self, czxid: i64, directory: &str) {
        let mut all = self.all();
        let Some(inside) = all.get_mut(directory) else { return };
        let ended = inside.remove(czxid);
        let emptied = if inside.all.is_empty() { all.remove(directory) } else { None };
        drop(all);
        // Dropped only once the table is unlocked: the drop of an own node may drop its watch, which calls the backend.
        drop((ended, emptied));
    }

    /// Whether the session has a hold in this directory that is in use.
    pub(crate) fn has_one(&self, directory: &str) -> bool {
        self.has(directory, |inside| !inside.askers.is_empty(), UsedBy::is_in_use)
    }

    /// Whether `asker` has a hold in this directory.
    pub(crate) fn has_one_of(&self, directory: &str, asker: Asker) -> bool {
        let is_alone = |inside: &InDirectory| asker != Asker::Unknown && inside.askers.contains_key(&asker);
        self.has(directory, is_alone, |used_by| used_by.is(asker))
    }

    /// Whether the directory has a hold with one user for which `alone` holds, or one with several for which `shared` does.
    fn has(&self, directory: &str, alone: impl Fn(&InDirectory) -> bool, shared: impl Fn(&UsedBy) -> bool) -> bool {
        let all = self.all();
        let Some(inside) = all.get(directory) else { return false };
        if alone(inside) {
            return true;
        }
        let others = inside.shared();
        // Asked only once the table is unlocked: they look at what has locks of its own.
        drop(all);
        others.iter().any(shared)
    }

    /// A hold that `asker` waits for, if its predecessor has the number `nearest`. Prefers a hold of `asker` itself.
    ///
    /// A waiter waits for its predecessor, and for every hold before the predecessor. If the predecessor holds as well,
    /// both are readers, and the waiter is a writer, which waits for both. If the predecessor waits, it waits for every
    /// hold before it, directly or through the contenders between.
    ///
    /// Only a hold whose node is still in the `queue` is in the way: a guard outlives its node if an operator removes
    /// the node.
    pub(crate) fn waited_for(&self, directory: &str, queue: &[String], nearest: i64, asker: Asker) -> Option<OwnHold> {
        let all = self.all();
        let before = all.get(directory)?.all.values().filter(|hold| hold.sequence <= nearest);
        let holding = before.filter(|hold| hold.own_node.is_holding());
        let holding: Vec<_> = holding.map(|hold| (hold.own_node.path(), hold.used_by.clone())).collect();
        drop(all);
        let in_the_way = holding.into_iter().filter_map(|(node, used_by)| {
            let name = node.rsplit('/').next().unwrap_or_default();
            let is_there = used_by.is_in_use() && queue.iter().any(|other| other == name);
            is_there.then(|| OwnHold { is_of_the_same: used_by.is(asker), node })
        });
        in_the_way.max_by_key(|hold| hold.is_of_the_same)
    }

    fn all(&self) -> MutexGuard<'_, HashMap<Arc<str>, InDirectory>> {
        self.0.lock()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::session::lease::Lease;
    use crate::session::upkeep::Upkeep;

    fn here() -> Asker {
        Asker::Thread(thread::current().id())
    }

    fn elsewhere() -> Asker {
        Asker::Thread(thread::spawn(|| thread::current().id()).join().unwrap())
    }

    /// Holds of these numbers and askers in `/a`.
    fn holds(of: &[(i64, Asker)]) -> (Holds, Vec<Arc<OwnNode>>) {
        let (holds, upkeep) = (Holds::default(), Arc::new(Upkeep::new(Lease::new(Duration::from_secs(6)))));
        let own_nodes = of.iter().map(|(sequence, asker)| {
            let own_node = OwnNode::new(format!("/a/{sequence}"), &upkeep);
            own_node.hold(0);
            holds.begin(100 + sequence, &Arc::from("/a"), *sequence, UsedBy::One(*asker), &own_node);
            own_node
        });
        let own_nodes = own_nodes.collect();
        (holds, own_nodes)
    }

    /// In a queue where 4 has been removed.
    fn found(holds: &Holds, directory: &str, nearest: i64, asker: Asker) -> Option<(String, bool)> {
        let queue = ["1", "2", "3", "5", "9"].map(str::to_owned);
        holds.waited_for(directory, &queue, nearest, asker).map(|own| (own.node, own.is_of_the_same))
    }

    #[test]
    fn what_is_held_at_or_before_the_one_waited_for_is_waited_for() {
        let (holds, _own_nodes) = holds(&[(3, here())]);
        assert_eq!(found(&holds, "/a", 3, here()), Some(("/a/3".to_owned(), true)));
        assert_eq!(found(&holds, "/a", 9, elsewhere()), Some(("/a/3".to_owned(), false)));
        assert_eq!(found(&holds, "/a", 2, here()), None);
        assert_eq!(found(&holds, "/b", 3, here()), None);
    }

    #[test]
    fn the_own_one_of_several_is_named() {
        let (holds, _own_nodes) = holds(&[(1, elsewhere()), (2, here()), (3, elsewhere())]);
        assert_eq!(found(&holds, "/a", 3, here()), Some(("/a/2".to_owned(), true)));
    }

    #[test]
    fn nobody_knows_whether_the_unknown_are_the_same() {
        let (holds, _own_nodes) = holds(&[(1, Asker::Unknown)]);
        assert_eq!(found(&holds, "/a", 1, Asker::Unknown), Some(("/a/1".to_owned(), false)));
    }

    #[test]
    fn what_has_ended_is_forgotten_with_its_asker_and_its_directory() {
        let (holds, _own_nodes) = holds(&[(1, here()), (2, here()), (3, elsewhere())]);
        assert!(holds.has_one("/a") && holds.has_one_of("/a", here()) && !holds.has_one_of("/b", here()));
        holds.end(101, "/a");
        assert!(holds.has_one_of("/a", here()));
        holds.end(102, "/a");
        assert!(holds.has_one("/a") && !holds.has_one_of("/a", here()));
        holds.end(103, "/a");
        assert!(!holds.has_one("/a") && holds.all().is_empty());
    }

    #[test]
    fn what_is_held_but_not_in_the_queue_any_more_is_not_waited_for() {
        let (holds, _own_nodes) = holds(&[(4, here())]);
        assert_eq!(found(&holds, "/a", 9, here()), None);
    }

    #[test]
    fn what_has_left_or_has_ended_is_not_waited_for() {
        let (holds, own_nodes) = holds(&[(1, here()), (2, here())]);
        own_nodes[0].left();
        assert_eq!(found(&holds, "/a", 2, here()), Some(("/a/2".to_owned(), true)));
        holds.end(102, "/a");
        assert_eq!(found(&holds, "/a", 2, here()), None);
    }

    /// The users of a node that is kept.
    #[derive(Debug)]
    struct Kept {
        users: Vec<Asker>,
    }

    impl Users for Kept {
        fn is_in_use(&self) -> bool {
            !self.users.is_empty()
        }

        fn has(&self, asker: Asker) -> bool {
            self.users.contains(&asker)
        }
    }

    #[test]
    fn a_node_that_is_kept_is_waited_for_only_while_it_is_used() {
        for users in [vec![], vec![elsewhere()], vec![elsewhere(), here()]] {
            let (holds, own_nodes) = holds(&[]);
            assert!(own_nodes.is_empty());
            let own_node = OwnNode::new("/a/3".to_owned(), &Arc::new(Upkeep::new(Lease::new(Duration::from_secs(6)))));
            own_node.hold(0);
            let kept: Arc<dyn Users> = Arc::new(Kept { users: users.clone() });
            holds.begin(103, &Arc::from("/a"), 3, UsedBy::Users(Arc::downgrade(&kept)), &own_node);
            let (in_use, is_ours) = (!users.is_empty(), users.contains(&here()));
            assert_eq!((holds.has_one("/a"), holds.has_one_of("/a", here())), (in_use, is_ours));
            assert_eq!(found(&holds, "/a", 3, here()), in_use.then(|| ("/a/3".to_owned(), is_ours)));
            drop(kept);
            assert!(!holds.has_one("/a") && found(&holds, "/a", 3, here()).is_none());
        }
    }

    #[test]
    fn a_thread_asks_only_where_no_task_can() {
        assert_eq!(Asker::here(false), Asker::Unknown);
        assert_eq!(Asker::here(true), here());
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async { assert_eq!(Asker::here(false), here()) });
        let asker = runtime.block_on(runtime.spawn(async { Asker::here(true) })).unwrap();
        assert!(matches!(asker, Asker::Task(_)));
    }
}
