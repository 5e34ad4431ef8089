//! The nodes of an embedded ensemble, its transactions, and its clock.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::session::request::{Failure, Kind, Operation, Outcome, Stat, WatchEvent};
use crate::telemetry::debug::debug;

/// The nodes by their paths.
pub(super) type Tree = BTreeMap<String, TreeNode>;

#[derive(Clone)]
pub(super) struct TreeNode {
    pub(super) data: Vec<u8>,
    pub(super) czxid: i64,
    pub(super) mzxid: i64,
    /// The id of the last transaction that created or deleted a child. If there was none, the id of the transaction
    /// that created the node.
    pub(super) pzxid: i64,
    pub(super) version: i32,
    pub(super) ctime: SystemTime,
    pub(super) mtime: SystemTime,
    pub(super) kind: Kind,
    /// The id of the session that owns an ephemeral node; 0 for other nodes.
    pub(super) owner: i64,
    /// The sequence number of the next sequential child.
    pub(super) next_sequence: i32,
}

impl TreeNode {
    pub(super) fn stat(&self) -> Stat {
        let TreeNode { czxid, version, ctime, mtime, owner, .. } = *self;
        Stat { czxid, version, ctime, mtime, ephemeral_owner: owner, data_length: self.data.len() }
    }
}

/// A copy of all nodes of an embedded ensemble, with its newest transaction id. Made by
/// [`Faults::back_up`](super::Faults::back_up).
#[derive(Clone)]
pub struct Backup {
    pub(super) tree: Arc<Tree>,
    pub(super) zxid: i64,
}

debug!(Backup as "Backup", |_it|);

/// A transaction's id, and its time on the ensemble's clock.
#[derive(Clone, Copy)]
pub(super) struct TransactionStamp {
    pub(super) zxid: i64,
    pub(super) time: SystemTime,
}

/// The key of a watch, and the event that the watch fires with.
pub(super) type FiredWatch = (String, WatchEvent);

/// The result of a transaction.
pub(super) struct CommittedChanges {
    /// The outcome of each operation, with the path of its node.
    pub(super) outcomes: Vec<(Outcome, String)>,
    /// Each change with the key of the watches that it fires, in the order in which a server reports the changes.
    pub(super) changes: Vec<FiredWatch>,
    /// For each change, in order, the path of the node and the state of the node before the change (`None` if the node
    /// did not exist). A node that was changed twice occurs twice.
    pub(super) before: Vec<(String, Option<TreeNode>)>,
}

/// Applies all operations or none of them. An error contains the index of the operation that failed.
pub(super) fn commit(
    tree: &mut Tree,
    at: TransactionStamp,
    session: i64,
    operations: &[Operation],
) -> Result<CommittedChanges, (usize, Failure)> {
    let mut transaction = TreeTransaction { tree, at, session, changes: Vec::new(), before: Vec::new() };
    let mut outcomes = Vec::with_capacity(operations.len());
    for (index, operation) in operations.iter().enumerate() {
        match transaction.apply_operation(operation) {
            Ok(done) => outcomes.push(done),
            Err(failure) => {
                transaction.roll_back();
                return Err((index, failure));
            }
        }
    }
    Ok(CommittedChanges { outcomes, changes: transaction.changes, before: transaction.before })
}

/// A transaction whose operations are being applied.
struct TreeTransaction<'a> {
    tree: &'a mut Tree,
    at: TransactionStamp,
    /// The id of the session that owns the ephemeral nodes that the transaction creates.
    session: i64,
    changes: Vec<FiredWatch>,
    before: Vec<(String, Option<TreeNode>)>,
}

impl TreeTransaction<'_> {
    fn apply_operation(&mut self, operation: &Operation) -> Result<(Outcome, String), Failure> {
        match operation {
            Operation::Create { path, data, kind } => Ok((Outcome::Created, self.create_node(path, data, *kind)?)),
            Operation::Set { path, data, version } => {
                let version = self.set_data(path, data, *version)?;
                Ok((Outcome::Set { version }, path.clone()))
            }
            Operation::Delete { path, version } => {
                self.delete_node(path, *version)?;
                Ok((Outcome::Deleted, path.clone()))
            }
            Operation::Check { path, version } => {
                check_version(self.tree.get(path).ok_or(Failure::NoNode)?, *version)?;
                Ok((Outcome::Checked, path.clone()))
            }
        }
    }

    /// Creates a node, and returns its path. The path of a sequential node includes its sequence number. But a node
    /// directly below the root gets no number.
    fn create_node(&mut self, path: &str, data: &[u8], kind: Kind) -> Result<String, Failure> {
        let is_ephemeral = |kind: Kind| matches!(kind, Kind::Ephemeral | Kind::EphemeralSequential);
        let parent = parent_of(path);
        let mut path = path.to_owned();
        if !parent.is_empty() {
            let node = self.tree.get(parent).ok_or(Failure::NoNode)?;
            if is_ephemeral(node.kind) {
                return Err(Failure::ParentIsEphemeral);
            }
            if kind == Kind::EphemeralSequential {
                path = format!("{path}{:010}", node.next_sequence);
            }
        }
        if self.tree.contains_key(&path) {
            return Err(Failure::NodeExists);
        }
        if let Some(node) = self.tree.get_mut(parent) {
            self.before.push((parent.to_owned(), Some(node.clone())));
            // The counter stays at its maximum, as in ZooKeeper 3.6 and later (ZOOKEEPER-4372).
            node.next_sequence = node.next_sequence.saturating_add(1);
            node.pzxid = self.at.zxid;
        }
        let owner = if is_ephemeral(kind) { self.session } else { 0 };
        let TransactionStamp { zxid, time } = self.at;
        let (czxid, mzxid, pzxid) = (zxid, zxid, zxid);
        let (data, ctime, mtime) = (data.to_vec(), time, time);
        let node = TreeNode { data, czxid, mzxid, pzxid, version: 0, ctime, mtime, kind, owner, next_sequence: 0 };
        self.before.push((path.clone(), self.tree.insert(path.clone(), node)));
        self.changes.push((children_watch_key(parent), WatchEvent::Changed));
        Ok(path)
    }

    /// Sets a node's data, and returns the node's new version.
    fn set_data(&mut self, path: &str, data: &[u8], version: Option<i32>) -> Result<i32, Failure> {
        let node = self.tree.get_mut(path).ok_or(Failure::NoNode)?;
        check_version(node, version)?;
        self.before.push((path.to_owned(), Some(node.clone())));
        node.data = data.to_vec();
        node.version = node.version.wrapping_add(1);
        (node.mzxid, node.mtime) = (self.at.zxid, self.at.time);
        self.changes.push((path.to_owned(), WatchEvent::Changed));
        Ok(node.version)
    }

    fn delete_node(&mut self, path: &str, version: Option<i32>) -> Result<(), Failure> {
        check_version(self.tree.get(path).ok_or(Failure::NoNode)?, version)?;
        if !children_of(self.tree, path).is_empty() {
            return Err(Failure::NotEmpty);
        }
        if let Some(parent) = self.tree.get_mut(parent_of(path)) {
            self.before.push((parent_of(path).to_owned(), Some(parent.clone())));
            parent.pzxid = self.at.zxid;
        }
        self.before.push((path.to_owned(), self.tree.remove(path)));
        // A real server fires the watches in this order: on the node itself, on its list of children, on its parent's
        // list of children.
        self.changes.push((path.to_owned(), WatchEvent::Deleted));
        self.changes.push((children_watch_key(path), WatchEvent::Deleted));
        self.changes.push((children_watch_key(parent_of(path)), WatchEvent::Changed));
        Ok(())
    }

    fn roll_back(self) {
        for (path, before) in self.before.into_iter().rev() {
            match before {
                Some(node) => drop(self.tree.insert(path, node)),
                None => drop(self.tree.remove(&path)),
            }
        }
    }
}

fn check_version(node: &TreeNode, expected: Option<i32>) -> Result<(), Failure> {
    if expected.is_some_and(|version| version != node.version) { Err(Failure::BadVersion) } else { Ok(()) }
}

pub(super) fn parent_of(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}

/// Returns whether `path` belongs to the node at `top`, or to a node below that node. `path` is the path of a node or
/// the key of a watch. `top` must not be `/`.
pub(super) fn is_at_or_below(path: &str, top: &str) -> bool {
    path.strip_prefix(top).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Returns the key of a watch on a node's children: the node's path and a slash, or `/` for the root. No other watch
/// has this key: only the path of the root ends with a slash, and the root itself is not watched.
pub(super) fn children_watch_key(path: &str) -> String {
    format!("{}/", path.trim_end_matches('/'))
}

/// Returns the names of a node's children, sorted.
pub(super) fn children_of(tree: &Tree, path: &str) -> Vec<String> {
    let below = if path == "/" { path.to_owned() } else { format!("{path}/") };
    let inside = tree.range(below.clone()..).map_while(|(node, _)| node.strip_prefix(&below));
    inside.filter(|name| !name.contains('/')).map(str::to_owned).collect()
}

/// The ensemble's clock: the clock of this machine, which a test may set forward and back.
#[derive(Default)]
pub(super) struct Clock {
    pub(super) ahead: Duration,
    pub(super) behind: Duration,
}

impl Clock {
    /// Returns the present time in whole milliseconds, as ZooKeeper does. Never before 1970.
    pub(super) fn now(&self) -> SystemTime {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let set = since_1970.saturating_add(self.ahead).saturating_sub(self.behind);
        UNIX_EPOCH + Duration::from_millis(u64::try_from(set.as_millis()).unwrap_or(u64::MAX).min(LATEST))
    }
}

/// The latest time that ZooKeeper can represent, in milliseconds since 1970.
const LATEST: u64 = i64::MAX.unsigned_abs();
