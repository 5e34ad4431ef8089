//! Nodes about which the servers of an ensemble do not agree, and what to do about that.

use std::collections::BTreeSet;

use zk_rwlock::coordinator::{Coordinator, Failure};

use crate::advice::{Advice, Role, advice, together};
use crate::arguments::Connection;
use crate::check::Odd;
use crate::connect;
use crate::servers::{ServerReport, patience, without_root};

/// Where servers from 3.5 on show which servers there are.
const CONFIG: &str = "/zookeeper/config";

/// A node that servers show differently.
struct Disagreement<'s> {
    node: &'s str,
    what: String,
}

/// What each server of the list shows of the node all the while: its version, or nothing.
fn shown(servers: &[ServerReport], node: &str) -> Vec<(Role, Option<Option<i32>>)> {
    let steady = |server: &ServerReport| match &server.looks[..] {
        [first, rest @ ..] if rest.len() == 2 && rest.iter().all(|look| look.get(node) == first.get(node)) => {
            Some(first.get(node).copied())
        }
        _ => None,
    };
    servers.iter().map(|server| (Role::of(server.mode.as_deref()), steady(server))).collect()
}

/// The nodes that one server shows before and after another does not, or has them in another version. A node that has left
/// never comes again, and a version neither, so one of the two is wrong.
fn disagreements(servers: &[ServerReport]) -> Vec<Disagreement<'_>> {
    let looked: Vec<&ServerReport> = servers.iter().filter(|server| server.looks.len() == 3).collect();
    let named = |servers: &[&&ServerReport]| servers.iter().map(|it| it.called()).collect::<Vec<_>>().join(", ");
    let nodes: BTreeSet<&String> = looked.iter().flat_map(|server| server.looks[0].keys()).collect();
    let tell = |node: &&'_ String| {
        let versions: BTreeSet<i32> = looked.iter().filter_map(|server| server.looks[0].get(*node).copied()).collect();
        versions.into_iter().rev().find_map(|version| {
            let shows = |server: &&&ServerReport, look: usize| server.looks[look].get(*node) == Some(&version);
            let there: Vec<_> = looked.iter().filter(|server| shows(server, 0) && shows(server, 2)).collect();
            let missing: Vec<_> = looked.iter().filter(|server| !shows(server, 1)).collect();
            let it = match missing.iter().any(|server| server.looks[1].contains_key(*node)) {
                true => format!("version {version} of it"),
                false => "it".to_owned(),
            };
            let what = format!("{} shows {it}, and {} does not", named(&there), named(&missing));
            (!there.is_empty() && !missing.is_empty()).then_some(what)
        })
    };
    let told = nodes.iter().filter_map(|node| Some(Disagreement { node: node.as_str(), what: tell(node)? }));
    let (paths, names): (Vec<_>, Vec<_>) = told.partition(|it| it.node.starts_with('/'));
    // A directory that is lacking is told by what is in it.
    let is_new = |it: &Disagreement<'_>| names.iter().all(|name| name.what != it.what);
    let mut told: Vec<_> = paths.into_iter().filter(is_new).collect();
    told.extend(names);
    told
}

/// What is odd about nodes that only some servers show, each with what to do.
pub(crate) async fn diverged(servers: &[ServerReport], connection: &Connection) -> Vec<Odd> {
    let found = disagreements(servers);
    if found.is_empty() {
        return Vec::new();
    }
    let is_whole = is_whole(servers, &members(servers, connection).await);
    told(servers, &found, is_whole)
}

fn told(servers: &[ServerReport], found: &[Disagreement<'_>], is_whole: bool) -> Vec<Odd> {
    let mut advised: Vec<Advice> = found.iter().map(|it| advice(&shown(servers, it.node), is_whole)).collect();
    let voters = servers.iter().filter(|server| Role::of(server.mode.as_deref()) != Role::Observer).count();
    together(&mut advised, voters);
    let odd = found.iter().zip(advised).map(|(it, advised)| {
        let what = format!("{}: {}", it.what, advised.words(|server| servers[server].name.clone()));
        Odd { kind: "diverged", node: Some(it.node.to_owned()), what }
    });
    odd.collect()
}

/// The numbers of the servers of an ensemble.
#[derive(Debug, PartialEq, Eq)]
enum Members {
    Known(BTreeSet<u8>),
    /// The servers keep no list: there are none but those of the connect string.
    Unlisted,
    Unknown,
}

/// Asks the first server that shows anything.
async fn members(servers: &[ServerReport], connection: &Connection) -> Members {
    let Some(server) = servers.iter().find(|server| server.looks.len() == 3) else { return Members::Unknown };
    let asked = async {
        let options = connect::options(patience(connection), connection).ok()?;
        let client = options.connect(without_root(&server.name)).await.ok()?;
        let session_slot = client.session_slot(0).await.ok()?;
        Some(connect::answered(session_slot.session(), session_slot.session().data(CONFIG)).await)
    };
    match asked.await {
        Some(Ok((data, _))) => listed(&String::from_utf8_lossy(&data)),
        Some(Err(Failure::NoNode)) => Members::Unlisted,
        _ => Members::Unknown,
    }
}

/// The servers in lines like `server.1=zk1:2888:3888:participant;0.0.0.0:2181`.
fn listed(config: &str) -> Members {
    let lines = config.lines().filter_map(|line| line.trim().strip_prefix("server."));
    let numbers: Option<BTreeSet<u8>> = lines.map(|line| line.split('=').next()?.parse().ok()).collect();
    match numbers {
        Some(numbers) if numbers.is_empty() => Members::Unlisted,
        Some(numbers) => Members::Known(numbers),
        None => Members::Unknown,
    }
}

/// Whether every server of the ensemble was looked at. The number of the server that gave a session is its highest byte: two
/// names in the connect string may lead to one server.
fn is_whole(servers: &[ServerReport], members: &Members) -> bool {
    let number = |server: &ServerReport| server.session.map(|session| session.to_be_bytes()[0]);
    let is_looked_at = servers.iter().all(|server| server.looks.len() == 3);
    let numbers: Option<BTreeSet<u8>> = servers.iter().map(number).collect();
    match members {
        Members::Known(listed) => is_looked_at && servers.len() == listed.len() && numbers.as_ref() == Some(listed),
        Members::Unlisted => is_looked_at,
        Members::Unknown => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::servers::Look;

    fn look(nodes: &[&str]) -> Look {
        nodes.iter().map(|name| ((*name).to_owned(), 0)).collect()
    }

    fn server(name: &str, mode: &str, looks: [&[&str]; 3]) -> ServerReport {
        let looks = looks.map(look).into();
        ServerReport { name: name.to_owned(), mode: Some(mode.to_owned()), looks, ..ServerReport::default() }
    }

    #[test]
    fn a_server_has_diverged_that_does_not_show_what_another_shows_before_and_after() {
        let odd = |one: [&[&str]; 3], other: [&[&str]; 3]| {
            let servers = [server("zk1", "leader", one), server("zk2", "follower", other)];
            disagreements(&servers).into_iter().map(|it| it.what).collect::<Vec<_>>()
        };
        assert_eq!(odd([&["a"], &["a"], &["a"]], [&["a"], &["a"], &["a"]]), [""; 0]);
        assert_eq!(odd([&["a"], &["a"], &["a"]], [&["a"], &["a"], &[]]), [""; 0], "it has left");
        assert_eq!(odd([&["a"], &["a"], &[]], [&[], &[], &[]]), [""; 0], "it may have come and gone in between");
        assert_eq!(odd([&[], &["a"], &["a"]], [&[], &[], &["a"]]), [""; 0], "it has come");
        let told = odd([&["a", "b"], &["a", "b"], &["a", "b"]], [&["b"], &["b"], &["b"]]);
        assert_eq!(told, ["zk1 (leader) shows it, and zk2 (follower) does not"]);
    }

    #[test]
    fn servers_have_diverged_that_show_one_node_in_two_versions_all_the_while() {
        let at = |versions: [i32; 3]| versions.map(|version| Look::from([("/v".to_owned(), version)])).into();
        let odd = |one: [i32; 3], other: [i32; 3]| {
            let servers = [("zk1", one), ("zk2", other)].map(|(name, versions)| ServerReport {
                name: name.to_owned(),
                looks: at(versions),
                ..ServerReport::default()
            });
            disagreements(&servers).into_iter().map(|it| it.what).collect::<Vec<_>>()
        };
        assert_eq!(odd([3, 3, 3], [3, 3, 3]), [""; 0]);
        assert_eq!(odd([3, 4, 4], [3, 3, 4]), [""; 0], "it was written in between");
        assert_eq!(odd([3, 3, 3], [2, 2, 2]), ["zk1 shows version 3 of it, and zk2 does not"]);
    }

    #[test]
    fn the_advice_goes_by_all_servers_or_by_none() {
        let (shows, lacks): ([&[&str]; 3], [&[&str]; 3]) = ([&["a"]; 3], [&[]; 3]);
        let told = |servers: &[ServerReport], is_whole| {
            told(servers, &disagreements(servers), is_whole).into_iter().map(|odd| odd.what).collect::<Vec<_>>()
        };
        let ensemble = |looks: [[&[&str]; 3]; 3]| {
            let [one, two, three] = looks;
            [server("zk1", "leader", one), server("zk2", "follower", two), server("zk3", "follower", three)]
        };
        let alone = told(&ensemble([shows, shows, lacks]), true);
        assert!(alone[0].ends_with("does not: zk3 alone differs: stop it, delete its data, and start it"), "{alone:?}");
        let leads = told(&ensemble([lacks, shows, shows]), true);
        assert!(leads[0].contains("restart the leader zk1") && !leads[0].contains("delete its data"), "{leads:?}");
        let some = told(&ensemble([shows, shows, lacks]), false);
        assert!(
            some[0].ends_with("not all servers of the ensemble were looked at, so delete no data of any"),
            "{some:?}"
        );
        let two: [[&[&str]; 3]; 3] = [[&["a", "b"]; 3], [&["a"]; 3], [&["b"]; 3]];
        let two = told(&ensemble(two), true);
        assert!(two.len() == 2 && two.iter().all(|what| what.ends_with("delete no data of any")), "{two:?}");
    }

    #[test]
    fn an_ensemble_is_whole_if_each_server_of_its_list_was_looked_at_once() {
        let config = "server.1=zk1:2888:3888:participant;0.0.0.0:2181\nserver.200=zk2:2888:3888:observer\nversion=0";
        let known = listed(config);
        assert_eq!(known, Members::Known([1, 200].into()));
        assert_eq!((listed(""), listed("server.x=zk1")), (Members::Unlisted, Members::Unknown));
        let given = |numbers: &[u8]| {
            let report = |number: &u8| ServerReport {
                session: Some(i64::from_be_bytes([*number, 0, 0, 0, 0, 0, 0, 1])),
                ..server("zk", "follower", [&[]; 3])
            };
            numbers.iter().map(report).collect::<Vec<_>>()
        };
        assert!(is_whole(&given(&[200, 1]), &known));
        for fewer in [&[1][..], &[1, 1], &[1, 3], &[1, 200, 200]] {
            assert!(!is_whole(&given(fewer), &known), "{fewer:?}");
        }
        assert!(is_whole(&given(&[0, 0]), &Members::Unlisted) && !is_whole(&given(&[1, 200]), &Members::Unknown));
        let mut away = given(&[1, 200]);
        away[0].looks.clear();
        assert!(!is_whole(&away, &known) && !is_whole(&away, &Members::Unlisted));
    }
}
