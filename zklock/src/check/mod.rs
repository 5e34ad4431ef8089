//! The subcommand `check`: finds nodes that do not belong in a lock's directory or may cause trouble, and nodes about
//! which the servers disagree. It changes nothing.

mod advice;
mod diverged;
mod odd;
mod servers;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;
use zk_rwlock::coordinator::{Coordinator, Failure, Operation, Stat, done_of};
use zk_rwlock::{Dialect, Error, Semaphore, ZooKeeper};

use crate::arguments::{CheckArguments, ConnectionArguments};
use crate::check::diverged::EnsembleCoverage;
use crate::check::odd::{ListedNode, Oddity, lock_at_semaphore_oddity, oddities_of_nodes, oddities_of_permits};
use crate::check::servers::{PathsToRead, SECURITY_PAGE};
use crate::connect::{self, connect_returning_options};
use crate::exit::{self, Exit};
use crate::output::{self, escape_controls};
use crate::place;

/// The maximal number of reads of nodes that are in flight at the same time.
const READS_IN_FLIGHT: usize = 256;

pub(crate) async fn check_lock(check: &CheckArguments, connection: &ConnectionArguments) -> Result<u8, Exit> {
    let (zk, options) = connect_returning_options(&check.path, connection).await?;
    let options = options.connect_timeout(servers::connect_limit(connection));
    let lock = connect::lock_at(&zk, &check.path, connection)?;
    let nodes = match connection.dialect {
        Dialect::Native => read_checked_nodes(&zk, lock.path()).await?,
        _ => CheckedNodes { directory: read_nodes(&zk, lock.path()).await?, semaphore: None, beside: Vec::new() },
    };
    let ephemeral = nodes.ephemeral_nodes();
    let servers =
        servers::look_three_times(&ephemeral, &nodes.paths_to_read(&check.path), &options, connection).await?;
    let mut odd = nodes.oddities(&check.path, connection.dialect);
    odd.extend(oddity_of_record(&zk, &check.path).await?);
    odd.extend(wider_acl_oddities(&zk, nodes.paths_to_read(&check.path)).await?);
    let ids = diverged::ask_ensemble_ids(&servers, &options).await;
    odd.extend(diverged::divergence_oddities(&servers, &ids));
    for (node, stat) in servers::ghost_nodes(&servers, &ephemeral) {
        odd.extend(ghost_oddity(&zk, &check.path, &nodes.path_of(&check.path, node), stat).await);
    }
    odd.extend(servers.iter().filter_map(servers::ServerReport::unread_server_oddity));
    let coverage = EnsembleCoverage::of(&servers, &ids);
    odd.extend(coverage.unread_servers_oddity());
    if odd.is_empty() {
        place::report_if_missing(&zk, &check.path).await;
    }
    for note in servers.iter().filter(|_| !check.json).filter_map(servers::ServerReport::note_on_release) {
        output::print_message(&note);
    }
    let text = if check.json {
        let odd = odd.iter().map(|odd| json!({ "kind": odd.kind, "node": odd.node, "what": odd.what }));
        let servers: Vec<_> = servers.iter().map(servers::ServerReport::json).collect();
        output::escape_controls_in_json(&format!(
            "{:#}\n",
            json!({
                "path": check.path,
                "odd": odd.collect::<Vec<_>>(),
                "servers": servers,
                "looked_at": coverage.looked_at,
                "of": coverage.of,
            })
        ))
    } else if odd.is_empty() {
        let known: BTreeSet<_> = servers.iter().flat_map(servers::ServerReport::vulnerabilities).collect();
        match known.len() {
            0 => format!("{}: nothing odd, {coverage}\n", check.path),
            1 => format!("{}: nothing odd; 1 known vulnerability above, {coverage}: {SECURITY_PAGE}\n", check.path),
            many => {
                format!(
                    "{}: nothing odd; {many} known vulnerabilities above, {coverage}: {SECURITY_PAGE}\n",
                    check.path
                )
            }
        }
    } else {
        let line = |odd: &Oddity| {
            let about = match odd.kind {
                "overdrawn" | "number" => "the permits",
                "away" => "the servers",
                _ => "the counter",
            };
            let node = odd.node.as_deref().map(escape_controls).unwrap_or_else(|| about.to_owned());
            format!("{}: {node}: {}\n", check.path, odd.what)
        };
        odd.iter().map(line).collect()
    };
    output::print_result(&text)?;
    Ok(if odd.is_empty() { 0 } else { exit::NEGATIVE })
}

/// The nodes of the lock or semaphore that is checked.
struct CheckedNodes {
    /// The nodes in the directory of the lock, or of the semaphore's queue.
    directory: Vec<ListedNode>,
    /// For a semaphore: its number of permits (`None` if the number is missing or not valid), and the nodes of the
    /// permits that are held.
    semaphore: Option<(Option<u32>, Vec<ListedNode>)>,
    /// For a semaphore: the nodes of contenders that use the same path as a lock. Such a lock and the semaphore do not
    /// exclude each other.
    beside: Vec<ListedNode>,
}

impl CheckedNodes {
    fn oddities(&self, path: &str, dialect: Dialect) -> Vec<Oddity> {
        let mut odd = oddities_of_nodes(&self.directory, dialect);
        if let Some((number, permits)) = &self.semaphore {
            odd.extend(oddities_of_permits(path, *number, permits));
            odd.extend(self.beside.iter().map(|(name, _)| lock_at_semaphore_oddity(name)));
        }
        odd
    }

    fn ephemeral_nodes(&self) -> BTreeMap<String, Stat> {
        let permits = self.semaphore.iter().flat_map(|(_, permits)| permits);
        let nodes = self.directory.iter().chain(permits).filter_map(|(name, stat)| Some((name.clone(), (*stat)?)));
        nodes.filter(|(_, stat)| stat.ephemeral_owner != 0).collect()
    }

    /// Returns the paths that are read on every server: the directory of the lock (or those of a semaphore's queue and
    /// permits), the node at `path`, and the record of the last success under `--once-in`. A lock whose path ends with
    /// `/lock` may guard a `Shared` value, so the node of the value is read, too.
    fn paths_to_read(&self, path: &str) -> PathsToRead {
        let directories = match self.semaphore {
            None => vec![path.to_owned()],
            Some(_) => ["queue", "permits"].map(|part| format!("{path}/{part}")).into(),
        };
        let value = path.strip_suffix("/lock").map(|above| format!("{above}/value"));
        PathsToRead { directories, nodes: [path.to_owned(), format!("{path}.done")].into_iter().chain(value).collect() }
    }

    /// Returns the full path of the node with this name in the directory of the lock, or of the semaphore's permits or
    /// queue.
    fn path_of(&self, path: &str, name: &str) -> String {
        match &self.semaphore {
            None => format!("{path}/{name}"),
            Some((_, permits)) if permits.iter().any(|(permit, _)| permit == name) => format!("{path}/permits/{name}"),
            Some(_) => format!("{path}/queue/{name}"),
        }
    }
}

/// Returns an oddity for each node of `paths` whose ACL gives more rights than the ACL that this client would set. The
/// nodes are directories, and nodes with data, such as a record or the number of a semaphore's permits. A node whose ACL
/// cannot be read is left out.
async fn wider_acl_oddities(zk: &ZooKeeper, paths: PathsToRead) -> Result<Vec<Oddity>, Exit> {
    let mut odd = Vec::new();
    let with_data = paths.nodes.into_iter().filter(|node| !paths.directories.contains(node)).collect::<Vec<_>>();
    for (nodes, can) in [(paths.directories, "take the lock"), (with_data, "change its data")] {
        for node in nodes {
            let session_slot = zk.session_slot(0).await.map_err(|failure| exit_for_failure(failure, &node))?;
            let session = session_slot.session();
            let wider = connect::within_session_timeout(session, session.wider_rights(&node)).await.unwrap_or_default();
            if !wider.is_empty() {
                let what = format!("{}: wider than this client's ACL, so others can {can}", wider.join("; "));
                odd.push(Oddity { kind: "acl", node: Some(node), what });
            }
        }
    }
    Ok(odd)
}

/// Returns the oddity of a ghost: a node that the servers show although its session is over. The leader may lack this
/// node, and then the node cannot be removed, so the text depends on that. Returns `None` if zklock has no session.
async fn ghost_oddity(zk: &ZooKeeper, lock: &str, path: &str, stat: &Stat) -> Option<Oddity> {
    let (owner, token) = (stat.ephemeral_owner, stat.czxid);
    let session_slot = zk.session_slot(0).await.ok()?;
    let session = session_slot.session();
    let checks = [Operation::Check { path: path.to_owned(), version: None }];
    let cure = match connect::within_session_timeout(session, session.transact(&checks)).await {
        Ok(_) => format!("but the node is still there: remove it with zklock break {lock} {token}"),
        Err(Failure::Operation { failure, .. }) if *failure == Failure::NoNode => {
            "and the leader does not have the node, but each server that was looked at shows it: check again with all \
             servers of the ensemble in --zk"
                .to_owned()
        }
        Err(failure) => format!("but the node is still there; whether the leader has it is not known: {failure}"),
    };
    let node = path.rsplit('/').next().map(str::to_owned);
    Some(Oddity { kind: "ghost", node, what: format!("its session {owner:#x} is over, {cure}") })
}

/// Returns an oddity if the record of the last success under `--once-in` is invalid, or if this client may not read it.
async fn oddity_of_record(zk: &ZooKeeper, path: &str) -> Result<Option<Oddity>, Exit> {
    let record = format!("{path}.done");
    let (kind, what) = match connect::send_request(zk, |session| session.data(&record)).await {
        Ok((data, stat)) if !data.is_empty() && done_of(&data, stat.mtime).is_none() => {
            ("record", "its data is no valid record, and every --once-in fails until the node is removed")
        }
        Err(Failure::NoAuth(_)) => {
            ("unreadable", "this client may not read it, and --once-in fails for every client without READ")
        }
        Ok(_) | Err(Failure::NoNode) => return Ok(None),
        Err(failure) => return Err(exit_for_failure(failure, &record)),
    };
    Ok(Some(Oddity { kind, node: Some(record), what: what.to_owned() }))
}

/// Reads the nodes of the lock or semaphore at this path.
async fn read_checked_nodes(zk: &ZooKeeper, path: &str) -> Result<CheckedNodes, Exit> {
    let semaphore = Semaphore::builder(zk, path).build()?;
    if !place::is_semaphore(&semaphore, zk).await? {
        return Ok(CheckedNodes { directory: read_nodes(zk, path).await?, semaphore: None, beside: Vec::new() });
    }
    let number = match semaphore.permits().await {
        Err(Error::Permits { .. }) => None,
        number => number?,
    };
    let permits = read_nodes(zk, &format!("{path}/permits")).await?;
    let mut beside = read_nodes(zk, path).await?;
    beside.retain(|(name, _)| Dialect::of(name).is_some());
    Ok(CheckedNodes {
        directory: read_nodes(zk, &format!("{path}/queue")).await?,
        semaphore: Some((number, permits)),
        beside,
    })
}

fn exit_for_failure(failure: Failure, path: &str) -> Exit {
    match failure {
        Failure::NoAuth(lacks) => {
            Exit::from(Error::PermissionDenied { operation: "read", path: path.to_owned(), lacks })
        }
        Failure::Unreachable(_) | Failure::Unknown(_) | Failure::Over(_) => {
            Exit::new(exit::UNAVAILABLE, format!("{path}: {failure}"))
        }
        failure => Exit::new(exit::IN_THE_WAY, format!("{path}: {failure}")),
    }
}

/// Returns the name of every node in the directory, and its `Stat` if this client may read it, sorted by name. The
/// library's own function for queues cannot be used here, because it leaves out the nodes that are no contenders.
async fn read_nodes(zk: &ZooKeeper, path: &str) -> Result<Vec<ListedNode>, Exit> {
    let session_slot = zk.session_slot(0).await.map_err(|failure| exit_for_failure(failure, path))?;
    let session = session_slot.session();
    let names = match connect::within_session_timeout(session, session.children(path)).await {
        Err(Failure::NoNode) => Vec::new(),
        answer => answer.map_err(|failure| exit_for_failure(failure, path))?,
    };
    let mut nodes = Vec::with_capacity(names.len());
    for some in names.chunks(READS_IN_FLIGHT) {
        // All requests of the chunk are sent before the first reply is awaited, so a chunk takes about one round trip.
        let replies: Vec<_> = some.iter().map(|name| session.data(&format!("{path}/{name}"))).collect();
        for (name, reply) in some.iter().zip(replies) {
            match connect::within_session_timeout(session, reply).await {
                Ok((_, stat)) => nodes.push((name.clone(), Some(stat))),
                Err(Failure::NoNode) => {}
                Err(Failure::NoAuth(_)) => nodes.push((name.clone(), None)),
                Err(failure) => return Err(exit_for_failure(failure, path)),
            }
        }
    }
    nodes.sort_by(|(one, _), (other, _)| one.cmp(other));
    Ok(nodes)
}
