//! Asks each server of the connect string separately for its version, its role, the nodes that it shows, and the
//! sessions that it knows.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::future::{OptionFuture, join_all};
use serde_json::{Value, json};
use zk_rwlock::coordinator::{Coordinator, Failure, Stat, send_four_letter_word, split_connect_string};
use zk_rwlock::{ZooKeeper, ZooKeeperBuilder};

use crate::arguments::ConnectionArguments;
use crate::check::odd::Oddity;
use crate::connect::{self, exit_for_error};
use crate::exit::Exit;
use crate::output::escape_controls;

/// How long to wait for each server, unless `--connect-timeout` is given. A server that does not answer is reported and
/// left out.
const DEFAULT_LIMIT: Duration = Duration::from_secs(10);

/// How long to wait before the third look (the third read of all nodes), if the second look found ghosts: nodes that
/// stay although their sessions are over. A session may have ended only just now. The wait gives the servers time to
/// remove its nodes.
const LEAVING: Duration = Duration::from_secs(1);

/// Releases of ZooKeeper that can lose nodes, or keep deleted nodes, in an ensemble: the first affected release, the
/// first fixed release, and the number of the issue in ZooKeeper's JIRA. See also `docs/versions.md`.
const LOSSES: [([u32; 3], [u32; 3], u32); 4] = [
    ([0, 0, 0], [3, 9, 0], 4541),
    ([0, 0, 0], [3, 8, 5], 4785),
    ([3, 9, 0], [3, 9, 2], 4785),
    ([3, 9, 3], [3, 9, 4], 4925),
];

/// Releases of ZooKeeper with vulnerabilities that concern a lock: the first affected release, the first fixed release,
/// and the CVE.
const VULNERABILITIES: [([u32; 3], [u32; 3], &str); 10] = [
    ([0, 0, 0], [3, 8, 6], "CVE-2026-24281"),
    ([3, 9, 0], [3, 9, 5], "CVE-2026-24281"),
    ([0, 0, 0], [3, 8, 7], "CVE-2026-79993"),
    ([3, 9, 0], [3, 9, 6], "CVE-2026-79993"),
    ([3, 9, 0], [3, 9, 6], "CVE-2026-84439"),
    ([3, 9, 0], [3, 9, 6], "CVE-2026-84501"),
    ([3, 9, 0], [3, 9, 6], "CVE-2026-59969"),
    ([3, 9, 0], [3, 9, 6], "CVE-2026-59739"),
    ([0, 0, 0], [3, 8, 8], "CVE-2026-100235"),
    ([3, 9, 0], [3, 9, 7], "CVE-2026-100235"),
];

/// ZooKeeper's own page about its vulnerabilities.
pub(crate) const SECURITY_PAGE: &str = "https://zookeeper.apache.org/security.html";

/// The nodes that a server shows in one read of all nodes, each with its czxid and its version. Both are 0 if a node
/// was only listed with its directory, and not read itself.
pub(crate) type NodeVersions = BTreeMap<String, (i64, i32)>;

/// The state of one server, as zklock has read it.
#[derive(Debug, Default)]
pub(crate) struct ServerReport {
    pub(crate) name: String,
    pub(crate) version: Option<String>,
    pub(crate) mode: Option<String>,
    /// The id of the session that the server gave to zklock, if it gave one.
    pub(crate) session: Option<i64>,
    /// The nodes that the server showed in each of the three looks (reads of all nodes). Empty if one of
    /// the three reads failed.
    pub(crate) looks: Vec<NodeVersions>,
    /// The ids of the sessions that the server knows. `None` if the server does not answer `dump`, or not in the
    /// expected form.
    pub(crate) sessions: Option<BTreeSet<i64>>,
    /// Why the server could not be read. `None` if it was read.
    pub(crate) problem: Option<String>,
}

/// The paths that are read on every server.
pub(crate) struct PathsToRead {
    /// Directories whose children are listed.
    pub(crate) directories: Vec<String>,
    /// Persistent nodes whose versions are read. Any of them may be missing.
    pub(crate) nodes: Vec<String>,
}

/// Reads `paths` on every server three times. Each of these three reads is called a look, and begins when the look
/// before it has ended on all servers. In each look, a server catches up with the leader (`sync`) before it lists a
/// directory. `nodes` are the ephemeral nodes that may be ghosts: nodes of sessions that are over.
pub(crate) async fn look_three_times(
    nodes: &BTreeMap<String, Stat>,
    paths: &PathsToRead,
    options: &ZooKeeperBuilder,
    connection: &ConnectionArguments,
) -> Result<Vec<ServerReport>, Exit> {
    let names = split_connect_string(&connect::connect_string(connection)?)
        .map_err(|error| exit_for_error(error, connection))?;
    let limit = connect_limit(connection);
    let asked = join_all(names.iter().map(|name| connect_and_ask_server(name, options, connection))).await;
    let (mut servers, clients): (Vec<ServerReport>, Vec<Option<ZooKeeper>>) = asked.into_iter().unzip();
    for round in 0..3 {
        let looks = clients.iter().map(|client| OptionFuture::from(client.as_ref().map(|it| read_versions(it, paths))));
        for (server, look) in servers.iter_mut().zip(join_all(looks).await) {
            match look {
                Some(Ok(nodes)) => server.looks.push(nodes),
                Some(Err(failure)) => server.problem = Some(failure.to_string()),
                None => {}
            }
        }
        if round == 0 {
            // `dump` lists the sessions. It is sent after the first look, so that the list has the session of each node
            // that the look has shown, unless the session is over.
            let dumps = join_all(names.iter().map(|name| send_four_letter_word(name, "dump", options, limit))).await;
            for (server, dump) in servers.iter_mut().zip(dumps) {
                server.sessions = dump.ok().as_deref().and_then(parse_dumped_sessions);
            }
        } else if round == 1 && !ghost_nodes(&servers, nodes).is_empty() {
            tokio::time::sleep(LEAVING).await;
        }
    }
    servers.iter_mut().filter(|server| server.problem.is_some()).for_each(|server| server.looks.clear());
    let modes = join_all(names.iter().map(|name| send_four_letter_word(name, "srvr", options, limit))).await;
    for (server, said) in servers.iter_mut().zip(modes) {
        // `srvr` was sent before the first look and again after the last one. If the two answers state different roles,
        // the role of the server counts as unknown.
        if server.mode != rest_of_line(&said.unwrap_or_default(), MODE) {
            server.mode = None;
        }
    }
    Ok(servers)
}

/// The beginning of the line with the role in the answer to `srvr`.
const MODE: &str = "Mode: ";

pub(crate) fn connect_limit(connection: &ConnectionArguments) -> Duration {
    connection.connect_timeout.unwrap_or(DEFAULT_LIMIT)
}

/// Returns the address of the server, without the path at the end of the connect string.
pub(crate) fn without_root(name: &str) -> &str {
    let host = name.find("://").map_or(0, |at| at + "://".len());
    name[host..].find('/').map_or(name, |at| &name[..host + at])
}

async fn connect_and_ask_server(
    name: &str,
    options: &ZooKeeperBuilder,
    connection: &ConnectionArguments,
) -> (ServerReport, Option<ZooKeeper>) {
    let connected = async { options.clone().connect(name).await.map_err(|error| exit_for_error(error, connection)) };
    let said = send_four_letter_word(name, "srvr", options, connect_limit(connection));
    let (connected, said) = tokio::join!(connected, said);
    let said = said.unwrap_or_default();
    // The answer to `srvr` has a version like "3.8.0-5a02a05eddb5, built on 2022-02-25".
    let version = rest_of_line(&said, "Zookeeper version: ")
        .map(|rest| rest.split(['-', ',']).next().unwrap_or_default().to_owned());
    let mut server = ServerReport {
        name: without_root(name).to_owned(),
        version,
        mode: rest_of_line(&said, MODE),
        ..ServerReport::default()
    };
    match connected {
        Ok(client) => {
            server.session = client.session_slot(0).await.ok().map(|session_slot| session_slot.session().id());
            (server, Some(client))
        }
        Err(exit) => {
            server.problem = Some(exit.message().to_owned());
            (server, None)
        }
    }
}

/// Returns the rest of the line that starts with `begins`. `said` is a server's answer to a command such as `srvr`.
fn rest_of_line(said: &str, begins: &str) -> Option<String> {
    said.lines().find_map(|line| line.strip_prefix(begins)).map(|rest| escape_controls(rest.trim()))
}

async fn read_versions(client: &ZooKeeper, paths: &PathsToRead) -> Result<NodeVersions, Failure> {
    let session_slot = client.session_slot(0).await?;
    let (session, mut look) = (session_slot.session(), NodeVersions::new());
    for directory in &paths.directories {
        let names = match connect::within_session_timeout(session, session.sync(directory)).await {
            Ok(()) => connect::within_session_timeout(session, session.children(directory)).await,
            Err(failure) => Err(failure),
        };
        match names {
            Ok(names) => look.extend(names.into_iter().map(|name| (name, (0, 0)))),
            Err(Failure::NoNode) => {}
            Err(failure) => return Err(failure),
        }
    }
    for node in &paths.nodes {
        match connect::within_session_timeout(session, session.data(node)).await {
            Ok((_, stat)) => drop(look.insert(node.clone(), (stat.czxid, stat.version))),
            Err(Failure::NoNode | Failure::NoAuth(_)) => {}
            Err(failure) => return Err(failure),
        }
    }
    Ok(look)
}

/// Returns the ids of the sessions in an answer to `dump`. `None` if the answer has another form.
fn parse_dumped_sessions(dump: &str) -> Option<BTreeSet<i64>> {
    let (sessions, _) = dump.strip_prefix("SessionTracker dump:")?.split_once("ephemeral nodes dump:")?;
    let id = |line: &str| {
        let digits = line.trim_start().strip_prefix("0x")?;
        let digits = digits.split(|c: char| !c.is_ascii_hexdigit()).next()?;
        u64::from_str_radix(digits, 16).ok().map(|id| id as i64)
    };
    Some(sessions.lines().filter_map(id).collect())
}

/// Returns the ghosts among `nodes`. A ghost is a node that each server showed in its last look, although none of the
/// servers that answered `dump` knows the node's session. Returns none if no server answered `dump`.
pub(crate) fn ghost_nodes<'n>(
    servers: &[ServerReport],
    nodes: &'n BTreeMap<String, Stat>,
) -> Vec<(&'n String, &'n Stat)> {
    let known: Vec<&BTreeSet<i64>> = servers.iter().filter_map(|server| server.sessions.as_ref()).collect();
    let mut looks = servers.iter().filter_map(|server| server.looks.last()).peekable();
    if known.is_empty() || looks.peek().is_none() {
        return Vec::new();
    }
    let looks: Vec<_> = looks.collect();
    let is_known = |stat: &Stat| known.iter().any(|sessions| sessions.contains(&stat.ephemeral_owner));
    let is_ghost = |node: &String, stat: &Stat| !is_known(stat) && looks.iter().all(|look| look.contains_key(node));
    nodes.iter().filter(|(node, stat)| is_ghost(node, stat)).collect()
}

impl ServerReport {
    /// Returns the server's name, and its role if it is known.
    pub(crate) fn name_and_role(&self) -> String {
        self.mode.as_ref().map_or_else(|| self.name.clone(), |mode| format!("{} ({mode})", self.name))
    }

    /// Returns the JIRA numbers of the issues by which this release of ZooKeeper can lose nodes or keep deleted nodes.
    /// A standalone server has none of these issues.
    fn node_loss_issues(&self) -> Vec<u32> {
        let is_alone = self.mode.as_deref() == Some("standalone");
        if is_alone { Vec::new() } else { self.affecting_this_release(&LOSSES) }
    }

    /// Returns the known vulnerabilities of this release that concern a lock.
    pub(crate) fn vulnerabilities(&self) -> Vec<&'static str> {
        self.affecting_this_release(&VULNERABILITIES)
    }

    /// Returns the entries of `known` that affect this release.
    fn affecting_this_release<T: Copy>(&self, known: &[([u32; 3], [u32; 3], T)]) -> Vec<T> {
        let Some(version) = self.version.as_deref().and_then(parse_release) else { return Vec::new() };
        let is_affected = |(from, to, _): &&([u32; 3], [u32; 3], T)| *from <= version && version < *to;
        known.iter().filter(is_affected).map(|(.., it)| *it).collect()
    }

    /// Returns the oddity that this server could not be read. `None` if it was read.
    pub(crate) fn unread_server_oddity(&self) -> Option<Oddity> {
        let what = format!("{} was not looked at: {}", self.name, self.problem.as_ref()?);
        Some(Oddity { kind: "away", node: None, what })
    }

    /// Returns the note about losses and vulnerabilities that this release is known to have, if there are any.
    pub(crate) fn note_on_release(&self) -> Option<String> {
        let losses = self.node_loss_issues().iter().map(|issue| format!("ZOOKEEPER-{issue}")).collect::<Vec<_>>();
        let vulnerabilities = self.vulnerabilities();
        let version = self.version.as_ref().filter(|_| !losses.is_empty() || !vulnerabilities.is_empty())?;
        let mut known = Vec::new();
        if !losses.is_empty() {
            known.push(format!("known losses: {}", losses.join(" and ")));
        }
        if !vulnerabilities.is_empty() {
            known.push(format!("known vulnerabilities: {}", vulnerabilities.join(", ")));
        }
        Some(format!(
            "{} runs ZooKeeper {version}, which has {}: see {SECURITY_PAGE}, and docs/versions.md of zk-rwlock",
            self.name,
            known.join("; ")
        ))
    }

    pub(crate) fn json(&self) -> Value {
        json!({
            "server": self.name,
            "version": self.version,
            "mode": self.mode,
            "losses": self.node_loss_issues(),
            "vulnerabilities": self.vulnerabilities(),
            "problem": self.problem,
        })
    }
}

fn parse_release(version: &str) -> Option<[u32; 3]> {
    let parts: Vec<u32> = version.split('.').map(str::parse).collect::<Result<_, _>>().ok()?;
    parts.try_into().ok()
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::arguments::Arguments;

    fn server(name: &str, looks: [&[&str]; 3], sessions: Option<&[i64]>) -> ServerReport {
        let sessions = sessions.map(|sessions| sessions.iter().copied().collect());
        let look = |names: &[&str]| names.iter().map(|name| ((*name).to_owned(), (0, 0))).collect();
        ServerReport { name: name.to_owned(), looks: looks.map(look).into(), sessions, ..ServerReport::default() }
    }

    #[test]
    fn connect_timeout_limits_the_wait_for_each_server() {
        let limit_of = |line: &str| {
            let words = line.split(' ').map(Into::into).collect();
            connect_limit(&Arguments::from_command_line(words).expect("valid").connection)
        };
        assert_eq!(limit_of("zklock --connect-timeout 1m check /l"), Duration::from_secs(60));
        assert_eq!(limit_of("zklock --session-timeout 2s check /l"), DEFAULT_LIMIT);
    }

    #[test]
    fn the_chroot_is_cut_from_a_server_name() {
        for (name, shown) in [("zk1:2181/apps/a", "zk1:2181"), ("zk1:2181", "zk1:2181")] {
            assert_eq!(
                (without_root(name), without_root(&format!("tcp://{name}"))),
                (shown, &*format!("tcp://{shown}"))
            );
        }
    }

    #[test]
    fn a_ghost_is_on_all_servers_without_a_live_session() {
        let now = SystemTime::UNIX_EPOCH;
        let owned =
            |ephemeral_owner| Stat { czxid: 1, version: 0, ctime: now, mtime: now, ephemeral_owner, data_length: 0 };
        let nodes = BTreeMap::from([("a", 7), ("b", 8), ("c", 9)].map(|(name, owner)| (name.to_owned(), owned(owner))));
        let ghosts = |one: Option<&[i64]>, other: Option<&[i64]>, seen: &[&str]| {
            let servers = [server("zk1", [&["a", "b"]; 3], one), server("zk2", [&[], &[], seen], other)];
            ghost_nodes(&servers, &nodes).into_iter().map(|(node, _)| node.clone()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(ghosts(None, None, &["a", "b"]), "", "no server answers dump");
        assert_eq!(ghosts(Some(&[7]), None, &["a", "b"]), "b");
        assert_eq!(ghosts(Some(&[7]), Some(&[8]), &["a", "b"]), "");
        assert_eq!(ghosts(Some(&[]), Some(&[]), &["a"]), "a", "a node that only one server shows is no ghost");
    }

    #[test]
    fn sessions_are_read_from_the_answer_to_dump() {
        let dump = "SessionTracker dump:\nSession Sets (2)/(1):\n0 expire at Mon Nov 23:\n1 expire at Mon Nov 23:\n\
                    \t0x100000a\nGlobal Sessions(1):\n0xffffffffffffffff\t6000ms\nephemeral nodes dump:\n\
                    Sessions with Ephemerals (1):\n0x7:\n\t/l/a\n";
        assert_eq!(parse_dumped_sessions(dump), Some(BTreeSet::from([-1, 0x100_000a])));
        assert_eq!(parse_dumped_sessions("dump is not executed because it is not in the whitelist.\n"), None);
        assert_eq!(parse_dumped_sessions("SessionTracker dump:\n0x7\n"), None, "the dump is cut short");
    }

    #[test]
    fn releases_with_known_losses_are_named_in_an_ensemble() {
        let losses = |version: &str, mode: &str| {
            let (version, mode) = (Some(version.to_owned()), Some(mode.to_owned()));
            ServerReport { version, mode, ..ServerReport::default() }.node_loss_issues()
        };
        assert_eq!(losses("3.8.0", "follower"), [4541, 4785]);
        assert_eq!(losses("3.8.5", "leader"), [4541]);
        assert_eq!(losses("3.9.1", "leader"), [4785]);
        assert_eq!(losses("3.9.3", "observer"), [4925]);
        assert_eq!(losses("3.9.4", "leader"), [0; 0]);
        assert_eq!(losses("3.8.0", "standalone"), [0; 0]);
        assert_eq!(losses("", "leader"), [0; 0]);
    }

    #[test]
    fn vulnerable_releases_are_named_even_standalone() {
        let server = |version: &str| ServerReport {
            name: "zk1".to_owned(),
            version: Some(version.to_owned()),
            mode: Some("standalone".to_owned()),
            ..ServerReport::default()
        };
        let many = ["CVE-2026-79993", "CVE-2026-84439", "CVE-2026-84501", "CVE-2026-59969", "CVE-2026-59739"];
        assert_eq!(server("3.9.5").vulnerabilities(), [&many[..], &["CVE-2026-100235"]].concat());
        assert_eq!(server("3.8.6").vulnerabilities(), ["CVE-2026-79993", "CVE-2026-100235"]);
        assert_eq!(server("3.8.0").vulnerabilities(), ["CVE-2026-24281", "CVE-2026-79993", "CVE-2026-100235"]);
        for version in ["3.8.7", "3.9.6"] {
            assert_eq!(server(version).vulnerabilities(), ["CVE-2026-100235"], "{version}");
        }
        for version in ["3.8.8", "3.9.7", "4.0.0", ""] {
            assert_eq!(server(version).vulnerabilities(), [""; 0], "{version}");
            assert_eq!(server(version).note_on_release(), None, "{version}");
        }
        let note = server("3.9.6").note_on_release();
        let said = "zk1 runs ZooKeeper 3.9.6, which has known vulnerabilities: CVE-2026-100235: see https://zookeeper.apache.org/security.html, and docs/versions.md of zk-rwlock";
        assert_eq!(note.as_deref(), Some(said));
    }
}
