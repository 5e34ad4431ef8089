//! Models of how other libraries read the names in a directory. They follow the sources of those libraries line by line and
//! share no code with ours.

use zk_rwlock::coordinator::{Turn, turn};
use zk_rwlock::queue::NodeName;
use zk_rwlock::{Dialect, Mode};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Library {
    Ours,
    /// Curator 5.7.1, `InterProcessReadWriteLock`.
    CuratorReadWrite,
    /// Curator 5.7.1, `InterProcessMutex`.
    CuratorMutex,
    /// kazoo 2.11, `ReadLock` and `WriteLock`. In Curator's dialect, these locks are configured with Curator's node
    /// names.
    Kazoo,
    /// zookeeper-client 0.11.2, `Client::lock` with a filter that lets all contenders of the dialect through.
    ZookeeperClient,
}

/// A kind of contender: a library, and one of its locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kind {
    pub(crate) library: Library,
    pub(crate) mode: Mode,
}

#[derive(Debug)]
pub(crate) enum Verdict {
    Granted,
    /// The contender waits, and lists again when this node changes or is deleted.
    Watches(String),
}

impl Kind {
    /// All kinds of contenders that may share a path of this dialect.
    pub(crate) fn all_in(dialect: Dialect) -> Vec<Kind> {
        let both = |library| [Mode::Read, Mode::Write].map(|mode| Kind { library, mode });
        let writes = |library| Kind { library, mode: Mode::Write };
        let mut kinds = both(Library::Ours).to_vec();
        match dialect {
            Dialect::Curator => {
                kinds.extend(both(Library::CuratorReadWrite));
                kinds.extend(both(Library::Kazoo));
                kinds.push(writes(Library::ZookeeperClient));
            }
            Dialect::CuratorMutex => kinds.extend([writes(Library::CuratorMutex), writes(Library::ZookeeperClient)]),
            Dialect::Kazoo => {
                kinds.extend(both(Library::Kazoo));
                kinds.push(writes(Library::ZookeeperClient));
            }
            _ => kinds.push(writes(Library::ZookeeperClient)),
        }
        kinds
    }

    pub(crate) fn name(&self, dialect: Dialect, mode: Mode, number: usize) -> String {
        // The uuids sort in the opposite order to the sequence numbers, so a model that sorted by uuid would fail.
        let uuid = format!("{:08x}-2a9c-4f12-a1ab-0f4d8ce1a4a9", 0xf000_0000_u32.wrapping_shr(7 * number as u32));
        let hex = uuid.replace('-', "");
        let is_read = mode == Mode::Read;
        match (dialect, self.library) {
            (Dialect::Curator, Library::Kazoo) => {
                format!("{hex}{}{number:010}", if is_read { "__READ__" } else { "__WRIT__" })
            }
            (Dialect::Curator, _) => format!("_c_{uuid}-{}{number:010}", if is_read { "__READ__" } else { "__WRIT__" }),
            (Dialect::CuratorMutex, _) => {
                format!("_c_{uuid}-{}{number:010}", if is_read { "READ-lock-" } else { "lock-" })
            }
            (Dialect::Kazoo, _) => format!("{hex}{}{number:010}", if is_read { "__rlock__" } else { "__lock__" }),
            _ => format!("host~{}-{mode}-{number:010}", &hex[..8]),
        }
    }

    pub(crate) fn asks(&self, dialect: Dialect, me: &str, names: &[String]) -> Verdict {
        match self.library {
            Library::Ours => ours(dialect, me, names),
            Library::CuratorReadWrite if self.mode == Mode::Read => curators_reader(me, names),
            Library::CuratorReadWrite => curators_first(me, names, &["__READ__", "__WRIT__"]),
            Library::CuratorMutex => curators_first(me, names, &["lock-"]),
            Library::Kazoo => {
                let (read, write) =
                    if dialect == Dialect::Curator { ("__READ__", "__WRIT__") } else { ("__rlock__", "__lock__") };
                let excluded: &[&str] = if self.mode == Mode::Read { &[write] } else { &[read, write] };
                kazoos(me, names, excluded)
            }
            Library::ZookeeperClient => {
                let lock_name = match dialect {
                    Dialect::CuratorMutex => "lock-",
                    Dialect::Curator => "__",
                    Dialect::Kazoo => "lock__",
                    _ => "-",
                };
                zookeeper_clients(me, names, lock_name)
            }
        }
    }
}

fn ours(dialect: Dialect, me: &str, names: &[String]) -> Verdict {
    let me = NodeName::parse_as(me, dialect).expect("a name of the dialect");
    match turn(&me, names) {
        Turn::Granted => Verdict::Granted,
        Turn::Behind(nearest) => Verdict::Watches(nearest.as_str().to_owned()),
        Turn::Evicted | Turn::Stuck(_) => panic!("{me} is evicted from {names:?}"),
    }
}

/// Models Curator's `StandardLockInternalsDriver.standardFixForSorting`.
fn fix_for_sorting<'n>(name: &'n str, lock_name: &str) -> &'n str {
    name.rfind(lock_name).map_or(name, |at| &name[at + lock_name.len()..])
}

/// Models Curator's `LockInternals.getSortedChildren`.
fn sorted<'n>(names: &'n [String], lock_names: &[&str]) -> Vec<&'n str> {
    let mut children: Vec<&str> = names.iter().map(String::as_str).collect();
    children.sort_by_key(|name| lock_names.iter().fold(*name, |rest, lock_name| fix_for_sorting(rest, lock_name)));
    children
}

/// Models Curator's `StandardLockInternalsDriver.getsTheLock`, with one lease.
fn curators_first(me: &str, names: &[String], lock_names: &[&str]) -> Verdict {
    let children = sorted(names, lock_names);
    match children.iter().position(|child| *child == me).expect("the node exists") {
        0 => Verdict::Granted,
        at => Verdict::Watches(children[at - 1].to_owned()),
    }
}

/// Models `getsTheLock` of Curator's `InterProcessReadWriteLock.ReadLock`, for a thread that does not own the write lock.
fn curators_reader(me: &str, names: &[String]) -> Verdict {
    let children = sorted(names, &["__READ__", "__WRIT__"]);
    let mut first_write_index = usize::MAX;
    for (index, node) in children.iter().enumerate() {
        if node.contains("__WRIT__") {
            first_write_index = first_write_index.min(index);
        } else if node.starts_with(me) {
            return if index < first_write_index {
                Verdict::Granted
            } else {
                Verdict::Watches(children[first_write_index].to_owned())
            };
        }
    }
    panic!("{me} is not in {names:?}")
}

/// Models kazoo's `Lock._get_predecessor`.
fn kazoos(me: &str, names: &[String], exclude_names: &[&str]) -> Verdict {
    let node_sequence = &me[me.len() - 10..];
    // Matches as kazoo's pattern `(?:{patterns})(-?\d{10})$` does, as long as the numbers have not wrapped to negative ones.
    let sequence_of = |child: &str| {
        let (before, digits) = child.split_at(child.len().checked_sub(10)?);
        let matches = digits.bytes().all(|b| b.is_ascii_digit()) && exclude_names.iter().any(|it| before.ends_with(it));
        matches.then(|| digits.to_owned())
    };
    let matches = names.iter().filter_map(|child| Some((sequence_of(child)?, child)));
    let earlier = matches.filter(|(sequence, _)| sequence.as_str() < node_sequence);
    earlier
        .max_by_key(|(sequence, _)| sequence.clone())
        .map_or(Verdict::Granted, |(_, it)| Verdict::Watches(it.clone()))
}

/// Models zookeeper-client's `Client::wait_lock`.
fn zookeeper_clients(me: &str, names: &[String], lock_name: &str) -> Verdict {
    let key = |name: &str| name[name.len() - 10..].to_owned();
    let is_let_through =
        |name: &&String| name.len() >= 10 && name.contains(lock_name) && key(name).parse::<i32>().is_ok();
    let mut children: Vec<&String> = names.iter().filter(is_let_through).collect();
    children.sort_by_key(|name| key(name));
    match children.binary_search_by(|name| key(name).cmp(&key(me))).expect("the node exists") {
        0 => Verdict::Granted,
        at => Verdict::Watches(children[at - 1].clone()),
    }
}
