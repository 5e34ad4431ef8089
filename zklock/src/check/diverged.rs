//! Finds nodes about which the servers of an ensemble disagree, and adds the advice about each.

use std::collections::BTreeSet;
use std::fmt;

use zk_rwlock::ZooKeeperBuilder;
use zk_rwlock::coordinator::Failure;

use crate::check::advice::{Advice, ServerRole, advise, reconcile_advice};
use crate::check::odd::Oddity;
use crate::check::servers::{ServerReport, without_root};
use crate::connect;

/// The node in which ZooKeeper 3.5 and later lists the servers of the ensemble.
const CONFIG: &str = "/zookeeper/config";

/// A node about which two servers disagree. `what` says which servers show the node, or a version of it, and which do
/// not.
struct Disagreement<'s> {
    node: &'s str,
    what: String,
}

/// Returns for each server its role and the node's version there (`Some(None)` if the server shows no such node). The
/// version is `None` unless the server was read three times and showed the same each time.
fn roles_and_versions(servers: &[ServerReport], node: &str) -> Vec<(ServerRole, Option<Option<i32>>)> {
    let steady = |server: &ServerReport| match &server.looks[..] {
        [first, rest @ ..] if rest.len() == 2 && rest.iter().all(|look| look.get(node) == first.get(node)) => {
            Some(first.get(node).map(|(_, version)| *version))
        }
        _ => None,
    };
    servers.iter().map(|server| (ServerRole::of(server.mode.as_deref()), steady(server))).collect()
}

/// Returns the nodes about which two servers disagree. All nodes are read on all servers three times, and each of these
/// reads is called a look. One server shows the node in the first and the third look. Another server does not show the
/// node in the second look, or shows another version of it. The looks follow one another, the name of a deleted
/// contender is never used again, each write raises the version, and a directory, record or value that is created again
/// has another czxid. So one of the two servers is wrong, unless another node in a directory was deleted and created
/// again between the looks. A directory is left out if the same difference is found for a node in it.
fn disagreements(servers: &[ServerReport]) -> Vec<Disagreement<'_>> {
    let looked: Vec<&ServerReport> = servers.iter().filter(|server| server.looks.len() == 3).collect();
    let named = |servers: &[&&ServerReport]| servers.iter().map(|it| it.name_and_role()).collect::<Vec<_>>().join(", ");
    let nodes: BTreeSet<&String> = looked.iter().flat_map(|server| server.looks[0].keys()).collect();
    let difference = |node: &&'_ String| {
        let versions: BTreeSet<i32> = looked.iter().filter_map(|server| Some(server.looks[0].get(*node)?.1)).collect();
        versions.into_iter().rev().find_map(|version| {
            let shows = |it: &&&ServerReport, at: usize| it.looks[at].get(*node).is_some_and(|seen| seen.1 == version);
            let stays = |server: &&&ServerReport| server.looks[0].get(*node) == server.looks[2].get(*node);
            let there: Vec<_> = looked.iter().filter(|server| shows(server, 0) && stays(server)).collect();
            let missing: Vec<_> = looked.iter().filter(|server| !shows(server, 1)).collect();
            let it = match missing.iter().any(|server| server.looks[1].contains_key(*node)) {
                true => format!("version {version} of it"),
                false => "it".to_owned(),
            };
            let what = format!("{} shows {it}, and {} does not", named(&there), named(&missing));
            (!there.is_empty() && !missing.is_empty()).then_some(what)
        })
    };
    let all = nodes.iter().filter_map(|node| Some(Disagreement { node: node.as_str(), what: difference(node)? }));
    let (paths, names): (Vec<_>, Vec<_>) = all.partition(|it| it.node.starts_with('/'));
    // A directory or other path with the same difference as a contender's node is left out, because the report about
    // that node is enough.
    let is_new = |it: &Disagreement<'_>| names.iter().all(|name| name.what != it.what);
    let mut reported: Vec<_> = paths.into_iter().filter(is_new).collect();
    reported.extend(names);
    reported
}

/// Returns an oddity for each disagreement of the servers about a node. Its text ends with the advice to the operator.
pub(crate) fn divergence_oddities(servers: &[ServerReport], ensemble: &EnsembleIds) -> Vec<Oddity> {
    oddities_with_advice(servers, &disagreements(servers), covers_ensemble(servers, ensemble))
}

fn oddities_with_advice(servers: &[ServerReport], found: &[Disagreement<'_>], is_whole: bool) -> Vec<Oddity> {
    let mut advised: Vec<Advice> =
        found.iter().map(|it| advise(&roles_and_versions(servers, it.node), is_whole)).collect();
    let voters = servers.iter().filter(|server| ServerRole::of(server.mode.as_deref()) != ServerRole::Observer).count();
    reconcile_advice(&mut advised, voters);
    let odd = found.iter().zip(advised).map(|(it, advised)| {
        let what = format!("{}: {}", it.what, advised.to_text(|server| servers[server].name.clone()));
        Oddity { kind: "diverged", node: Some(it.node.to_owned()), what }
    });
    odd.collect()
}

/// The ids of the servers of an ensemble, as far as they are known.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum EnsembleIds {
    Known(BTreeSet<u8>),
    /// The servers keep no list of the ensemble, so the servers of the connect string count as the whole ensemble.
    Unlisted,
    Unknown,
}

/// Asks a server for the ids of the ensemble's servers: the first server that answered all three looks (reads of all
/// nodes). The ids stay unknown if there is no such server, or if it does not answer this time.
pub(crate) async fn ask_ensemble_ids(servers: &[ServerReport], options: &ZooKeeperBuilder) -> EnsembleIds {
    let Some(server) = servers.iter().find(|server| server.looks.len() == 3) else { return EnsembleIds::Unknown };
    let asked = async {
        let client = options.clone().connect(without_root(&server.name)).await.ok()?;
        Some(connect::send_request(&client, |session| session.data(CONFIG)).await)
    };
    match asked.await {
        Some(Ok((data, _))) => parse_ensemble_ids(&String::from_utf8_lossy(&data)),
        Some(Err(Failure::NoNode)) => EnsembleIds::Unlisted,
        _ => EnsembleIds::Unknown,
    }
}

/// Parses the ids in lines like `server.1=zk1:2888:3888:participant;0.0.0.0:2181`. Without such lines, the ensemble has
/// no list of its servers. If an id is invalid, the ids are unknown.
fn parse_ensemble_ids(config: &str) -> EnsembleIds {
    let lines = config.lines().filter_map(|line| line.trim().strip_prefix("server."));
    let ids: Option<BTreeSet<u8>> = lines.map(|line| line.split('=').next()?.parse().ok()).collect();
    match ids {
        Some(ids) if ids.is_empty() => EnsembleIds::Unlisted,
        Some(ids) => EnsembleIds::Known(ids),
        None => EnsembleIds::Unknown,
    }
}

/// Returns the server's id: the highest byte of the id of a session that the server gave. If two names in the connect
/// string have the same id, they name the same server.
fn server_id(server: &ServerReport) -> Option<u8> {
    server.session.map(|session| session.to_be_bytes()[0])
}

/// Returns whether `servers` are known to be all servers of the ensemble, and each of them answered all three looks
/// (reads of all nodes). Returns `false` if the ensemble's servers are unknown.
fn covers_ensemble(servers: &[ServerReport], ensemble: &EnsembleIds) -> bool {
    let is_looked_at = servers.iter().all(|server| server.looks.len() == 3);
    let ids: Option<BTreeSet<u8>> = servers.iter().map(server_id).collect();
    match ensemble {
        EnsembleIds::Known(listed) => is_looked_at && servers.len() == listed.len() && ids.as_ref() == Some(listed),
        EnsembleIds::Unlisted => is_looked_at,
        EnsembleIds::Unknown => false,
    }
}

/// The numbers of servers that the connect string names, that were looked at, and that the ensemble has.
pub(crate) struct EnsembleCoverage {
    named: usize,
    pub(crate) looked_at: usize,
    /// The number of servers in the ensemble. `None` if the number is unknown.
    pub(crate) of: Option<usize>,
}

impl EnsembleCoverage {
    pub(crate) fn of(servers: &[ServerReport], ensemble: &EnsembleIds) -> EnsembleCoverage {
        let looked_at = servers.iter().filter(|server| server.looks.len() == 3);
        let (looked_at, of) = match ensemble {
            EnsembleIds::Known(listed) => {
                let ids: BTreeSet<u8> = looked_at.filter_map(server_id).collect();
                (ids.intersection(listed).count(), Some(listed.len()))
            }
            EnsembleIds::Unlisted => (looked_at.count(), Some(servers.len())),
            EnsembleIds::Unknown => (looked_at.count(), None),
        };
        EnsembleCoverage { named: servers.len(), looked_at, of }
    }

    /// Returns the oddity that some servers of the ensemble were not looked at. `None` if there are no such servers, or
    /// if their number is unknown.
    pub(crate) fn unread_servers_oddity(&self) -> Option<Oddity> {
        let (looked_at, of) = (self.looked_at, self.of.filter(|of| *of > self.looked_at)?);
        let advice = if self.named < of { ": name all servers of the ensemble in --zk" } else { "" };
        Some(Oddity { kind: "away", node: None, what: format!("{looked_at} of {of} were looked at{advice}") })
    }
}

impl fmt::Display for EnsembleCoverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.of {
            Some(of) => write!(f, "on {} of {of} servers", self.looked_at),
            None => write!(f, "on {} servers of --zk; whether the ensemble has others is not known", self.looked_at),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::servers::NodeVersions;

    fn look(nodes: &[&str]) -> NodeVersions {
        nodes.iter().map(|name| ((*name).to_owned(), (0, 0))).collect()
    }

    fn server(name: &str, mode: &str, looks: [&[&str]; 3]) -> ServerReport {
        let looks = looks.map(look).into();
        ServerReport { name: name.to_owned(), mode: Some(mode.to_owned()), looks, ..ServerReport::default() }
    }

    #[test]
    fn a_node_lacking_between_two_sightings_is_diverged() {
        let odd = |one: [&[&str]; 3], other: [&[&str]; 3]| {
            let servers = [server("zk1", "leader", one), server("zk2", "follower", other)];
            disagreements(&servers).into_iter().map(|it| it.what).collect::<Vec<_>>()
        };
        assert_eq!(odd([&["a"], &["a"], &["a"]], [&["a"], &["a"], &["a"]]), [""; 0]);
        assert_eq!(odd([&["a"], &["a"], &["a"]], [&["a"], &["a"], &[]]), [""; 0], "the node was deleted");
        assert_eq!(
            odd([&["a"], &["a"], &[]], [&[], &[], &[]]),
            [""; 0],
            "the node may have been created and deleted in between"
        );
        assert_eq!(odd([&[], &["a"], &["a"]], [&[], &[], &["a"]]), [""; 0], "the node was created");
        let reported = odd([&["a", "b"], &["a", "b"], &["a", "b"]], [&["b"], &["b"], &["b"]]);
        assert_eq!(reported, ["zk1 (leader) shows it, and zk2 (follower) does not"]);
    }

    #[test]
    fn two_lasting_versions_of_one_node_are_diverged() {
        let at = |versions: [i32; 3]| versions.map(|it| NodeVersions::from([("/v".to_owned(), (0, it))])).into();
        let odd = |one: [i32; 3], other: [i32; 3]| {
            let servers = [("zk1", one), ("zk2", other)].map(|(name, versions)| ServerReport {
                name: name.to_owned(),
                looks: at(versions),
                ..ServerReport::default()
            });
            disagreements(&servers).into_iter().map(|it| it.what).collect::<Vec<_>>()
        };
        assert_eq!(odd([3, 3, 3], [3, 3, 3]), [""; 0]);
        assert_eq!(odd([3, 4, 4], [3, 3, 4]), [""; 0], "the node was written in between");
        assert_eq!(odd([3, 3, 3], [2, 2, 2]), ["zk1 shows version 3 of it, and zk2 does not"]);
    }

    #[test]
    fn a_node_created_again_between_the_looks_is_not_diverged() {
        let differs = |czxids: [Option<i64>; 3]| {
            let look = |czxid: Option<i64>| czxid.map(|czxid| ("/l".to_owned(), (czxid, 0))).into_iter().collect();
            let server = ServerReport { looks: czxids.map(look).into(), ..ServerReport::default() };
            !disagreements(&[server]).is_empty()
        };
        assert!(!differs([Some(1), None, Some(2)]) && differs([Some(1), None, Some(1)]));
    }

    #[test]
    fn a_server_with_a_node_created_again_counts_for_no_advice() {
        let version = |czxids: [i64; 3]| {
            let looks = czxids.map(|czxid| NodeVersions::from([("/l".to_owned(), (czxid, 0))])).into();
            roles_and_versions(&[ServerReport { looks, ..ServerReport::default() }], "/l")[0].1
        };
        assert_eq!((version([1, 1, 1]), version([1, 2, 2])), (Some(Some(0)), None));
    }

    #[test]
    fn advice_needs_all_servers_of_the_ensemble() {
        let (shows, lacks): ([&[&str]; 3], [&[&str]; 3]) = ([&["a"]; 3], [&[]; 3]);
        let advised = |servers: &[ServerReport], is_whole| {
            oddities_with_advice(servers, &disagreements(servers), is_whole)
                .into_iter()
                .map(|odd| odd.what)
                .collect::<Vec<_>>()
        };
        let ensemble = |looks: [[&[&str]; 3]; 3]| {
            let [one, two, three] = looks;
            [server("zk1", "leader", one), server("zk2", "follower", two), server("zk3", "follower", three)]
        };
        let alone = advised(&ensemble([shows, shows, lacks]), true);
        assert!(alone[0].ends_with("does not: zk3 alone differs: stop it, delete its data, and start it"), "{alone:?}");
        let leads = advised(&ensemble([lacks, shows, shows]), true);
        assert!(leads[0].contains("restart the leader zk1") && !leads[0].contains("delete its data"), "{leads:?}");
        let some = advised(&ensemble([shows, shows, lacks]), false);
        assert!(
            some[0].ends_with("not all servers of the ensemble were looked at, so delete no data on any server"),
            "{some:?}"
        );
        let two: [[&[&str]; 3]; 3] = [[&["a", "b"]; 3], [&["a"]; 3], [&["b"]; 3]];
        let two = advised(&ensemble(two), true);
        assert!(two.len() == 2 && two.iter().all(|what| what.ends_with("delete no data on any server")), "{two:?}");
    }

    #[test]
    fn an_ensemble_is_whole_if_each_member_was_asked_once() {
        let config = "server.1=zk1:2888:3888:participant;0.0.0.0:2181\nserver.200=zk2:2888:3888:observer\nversion=0";
        let known = parse_ensemble_ids(config);
        assert_eq!(known, EnsembleIds::Known([1, 200].into()));
        assert_eq!(
            (parse_ensemble_ids(""), parse_ensemble_ids("server.x=zk1")),
            (EnsembleIds::Unlisted, EnsembleIds::Unknown)
        );
        let given = |ids: &[u8]| {
            let report = |number: &u8| ServerReport {
                session: Some(i64::from_be_bytes([*number, 0, 0, 0, 0, 0, 0, 1])),
                ..server("zk", "follower", [&[]; 3])
            };
            ids.iter().map(report).collect::<Vec<_>>()
        };
        assert!(covers_ensemble(&given(&[200, 1]), &known));
        for fewer in [&[1][..], &[1, 1], &[1, 3], &[1, 200, 200]] {
            assert!(!covers_ensemble(&given(fewer), &known), "{fewer:?}");
        }
        assert!(
            covers_ensemble(&given(&[0, 0]), &EnsembleIds::Unlisted)
                && !covers_ensemble(&given(&[1, 200]), &EnsembleIds::Unknown)
        );
        let mut away = given(&[1, 200]);
        away[0].looks.clear();
        assert!(!covers_ensemble(&away, &known) && !covers_ensemble(&away, &EnsembleIds::Unlisted));
    }

    #[test]
    fn the_result_counts_how_many_servers_were_asked() {
        let of = |number: i64| ServerReport { session: Some(number << 56), ..server("zk", "follower", [&["a"]; 3]) };
        let known = |ids: &[u8]| EnsembleIds::Known(ids.iter().copied().collect());
        let seen = |servers: &[ServerReport], ensemble: &EnsembleIds| {
            let seen = EnsembleCoverage::of(servers, ensemble);
            (seen.to_string(), seen.unread_servers_oddity().map(|odd| odd.what).unwrap_or_default())
        };
        let away = || ServerReport { looks: Vec::new(), session: None, ..of(0) };
        let all = "name all servers of the ensemble in --zk";
        for (servers, ensemble, on, others) in [
            (vec![of(1), of(2), of(3)], known(&[1, 2, 3]), "on 3 of 3 servers", String::new()),
            (vec![of(2)], known(&[1, 2, 3]), "on 1 of 3 servers", format!("1 of 3 were looked at: {all}")),
            (vec![of(1), of(1)], known(&[1, 2, 3]), "on 1 of 3 servers", format!("1 of 3 were looked at: {all}")),
            (vec![of(1), away(), of(3)], known(&[1, 2, 3]), "on 2 of 3 servers", "2 of 3 were looked at".to_owned()),
            (vec![of(0)], EnsembleIds::Unlisted, "on 1 of 1 servers", String::new()),
            (vec![of(0), away()], EnsembleIds::Unlisted, "on 1 of 2 servers", "1 of 2 were looked at".to_owned()),
        ] {
            assert_eq!(seen(&servers, &ensemble), (on.to_owned(), others));
        }
        let (on, others) = seen(&[of(1)], &EnsembleIds::Unknown);
        assert!(on.ends_with("whether the ensemble has others is not known") && others.is_empty(), "{on}");
    }
}
