//! Finds what is odd in the nodes of a lock or semaphore. Nothing here sends a request.

use std::collections::BTreeMap;

use zk_rwlock::Dialect;
use zk_rwlock::coordinator::{REFUSED_FROM, RESTART_FROM, Stat, permits_in_name};
use zk_rwlock::queue::NodeName;

/// An oddity that `check` reports: a kind for programs, the node if the oddity concerns a single node, and a text for
/// people.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Oddity {
    pub(crate) kind: &'static str,
    pub(crate) node: Option<String>,
    pub(crate) what: String,
}

/// The name and the `Stat` of a node in the directory of a lock or of a semaphore. The `Stat` is `None` if this client
/// may not read the node.
pub(crate) type ListedNode = (String, Option<Stat>);

/// Returns the oddities of these nodes in the order of the nodes. An oddity of the sequence counter comes last.
pub(crate) fn oddities_of_nodes(nodes: &[ListedNode], dialect: Dialect) -> Vec<Oddity> {
    let contenders: Vec<_> = nodes.iter().filter_map(|(name, _)| NodeName::parse_as(name, dialect)).collect();
    let mut sharers = BTreeMap::<i64, Vec<&NodeName>>::new();
    for contender in &contenders {
        sharers.entry(contender.sequence()).or_default().push(contender);
    }
    let are_tied = |sharers: &[&NodeName]| match sharers {
        [_] => false,
        [one, other] => !one.may_be_one_holder_with(other),
        _ => true,
    };
    let mut odd = Vec::new();
    for (name, stat) in nodes {
        let found = match NodeName::parse_as(name, dialect) {
            None => vec![describe_foreign_node(name, dialect)],
            Some(contender) => {
                let is_tied = sharers.get(&contender.sequence()).is_some_and(|sharers| are_tied(sharers));
                contender_oddities(&contender, stat.as_ref(), is_tied)
            }
        };
        odd.extend(found.into_iter().map(|(kind, what)| Oddity { kind, node: Some(name.clone()), what }));
    }
    odd.extend(sharers.last_key_value().and_then(|(&highest, _)| counter_oddity(highest, dialect)));
    odd
}

fn describe_foreign_node(name: &str, dialect: Dialect) -> (&'static str, String) {
    let what = match dialect.foreign(name) {
        Some(own) if own == dialect => {
            "its name is almost that of a holder or waiter: nothing is granted while the node exists".to_owned()
        }
        Some(other) => {
            format!("a node of another program (--dialect {other}): nothing is granted while the node exists")
        }
        None => "neither a holder nor a waiter: it is ignored".to_owned(),
    };
    ("foreign", what)
}

fn contender_oddities(contender: &NodeName, stat: Option<&Stat>, is_tied: bool) -> Vec<(&'static str, String)> {
    // A contender's node that was written is no oddity in other dialects, because only clients of the native dialect
    // rely on the version of such a node.
    let is_written = contender.dialect() == Dialect::Native && stat.is_some_and(|stat| stat.version > 0);
    let is_persistent = stat.is_some_and(|stat| stat.ephemeral_owner == 0);
    let found = [
        (stat.is_none(), "unreadable", "this client may not read it, so its owner is unknown"),
        (is_persistent, "persistent", "not ephemeral: it blocks the lock until the node is removed"),
        (
            is_written,
            "written",
            "written to after its creation: the client that wrote to it can grant the lock to two contenders",
        ),
        (
            contender.sequence() < 0,
            "negative",
            "its sequence number is negative, because the counter has overflowed: it will never hold the lock",
        ),
        (
            is_tied,
            "tie",
            "another node has the same sequence number: no contender with this number will ever hold the lock",
        ),
    ];
    found.into_iter().filter(|(is_so, ..)| *is_so).map(|(_, kind, what)| (kind, what.to_owned())).collect()
}

fn counter_oddity(highest: i64, dialect: Dialect) -> Option<Oddity> {
    let at = format!("at {highest} of 2147483647");
    let (kind, what) = match highest {
        REFUSED_FROM.. => {
            ("used-up", format!("{at}: no contender can queue up until the directory is deleted and created again"))
        }
        RESTART_FROM.. if dialect == Dialect::Kazoo => {
            ("old", format!("{at}: kazoo needs the directory, so stop its programs before you delete it"))
        }
        RESTART_FROM.. => ("old", format!("{at}: it restarts when all contenders have left")),
        _ => return None,
    };
    Some(Oddity { kind, node: None, what })
}

/// Returns the oddity of a contender for a lock at a semaphore's path. For example, a client of an older version of the
/// library creates such a node, because that version does not check whether the path is a semaphore.
pub(crate) fn lock_at_semaphore_oddity(name: &str) -> Oddity {
    let what = "holds or waits for a lock at the path of a semaphore, and neither excludes the other: give one of them another \
                path";
    Oddity { kind: "beside", node: Some(name.to_owned()), what: what.to_owned() }
}

/// Returns the oddities of the nodes of permits, and of the number of permits.
pub(crate) fn oddities_of_permits(path: &str, number: Option<u32>, nodes: &[ListedNode]) -> Vec<Oddity> {
    let (mut odd, mut taken) = (Vec::new(), 0);
    for (name, stat) in nodes {
        let mut add = |kind, what: &str| odd.push(Oddity { kind, node: Some(name.clone()), what: what.to_owned() });
        match permits_in_name(name) {
            Some(count) => taken += u64::from(count),
            None => add("foreign", "not a valid permit: no permit is granted until the node is removed"),
        }
        match stat {
            None => add("unreadable", "this client may not read it, so its owner is unknown"),
            Some(stat) if stat.ephemeral_owner == 0 => {
                add("persistent", "not ephemeral: its permits stay taken until the node is removed");
            }
            Some(_) => {}
        }
    }
    let mut about = |kind, what: String| odd.push(Oddity { kind, node: None, what });
    match number {
        None => about(
            "number",
            format!(
                "the node's data is no number, and no permit is granted: set the number with zklock permits {path} N"
            ),
        ),
        Some(all) if taken > u64::from(all) => {
            about("overdrawn", format!("{taken} of {all} are taken: no permit is granted until enough are given back"));
        }
        Some(_) => {}
    }
    odd
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    fn node(name: &str, ephemeral_owner: i64, version: i32) -> ListedNode {
        (
            name.to_owned(),
            Some(Stat { czxid: 1, version, ctime: UNIX_EPOCH, mtime: UNIX_EPOCH, ephemeral_owner, data_length: 0 }),
        )
    }

    #[test]
    fn each_oddity_of_a_semaphore_is_reported() {
        let kinds = |number, nodes: &[ListedNode]| {
            oddities_of_permits("/l", number, nodes).into_iter().map(|odd| odd.kind).collect::<Vec<_>>()
        };
        assert_eq!(kinds(Some(3), &[node("a~1-PERMIT-2", 7, 0), node("b~2-PERMIT-1", 7, 0)]), [""; 0]);
        assert_eq!(kinds(Some(2), &[node("a~1-PERMIT-2", 7, 0), node("b~2-PERMIT-1", 7, 0)]), ["overdrawn"]);
        assert_eq!(kinds(Some(3), &[node("a~1-PERMIT-02", 7, 0)]), ["foreign"]);
        assert_eq!(kinds(Some(3), &[node("a~1-PERMIT-2", 0, 0)]), ["persistent"]);
        assert_eq!(kinds(Some(3), &[("a~1-PERMIT-2".to_owned(), None)]), ["unreadable"]);
        assert_eq!(kinds(None, &[]), ["number"]);
    }

    #[test]
    fn each_oddity_of_a_node_is_reported() {
        let kinds = |nodes: &[ListedNode]| {
            oddities_of_nodes(nodes, Dialect::Native).into_iter().map(|odd| odd.kind).collect::<Vec<_>>()
        };
        assert_eq!(kinds(&[]), [""; 0]);
        assert_eq!(kinds(&[node("a~1-READ-0000000001", 7, 0), node("b~2-WRITE-0000000002", 7, 0)]), [""; 0]);
        assert_eq!(kinds(&[node("config", 0, 3)]), ["foreign"]);
        assert_eq!(kinds(&[node("a~1-READ-0000000001", 0, 0)]), ["persistent"]);
        assert_eq!(kinds(&[node("a~1-READ-0000000001", 7, 1)]), ["written"]);
        assert_eq!(kinds(&[("a~1-READ-0000000001".to_owned(), None)]), ["unreadable"]);
        assert_eq!(kinds(&[node("a~1-READ--000000005", 7, 0)]), ["negative"]);
        assert_eq!(kinds(&[node("a~1-READ-0000000001", 7, 0), node("b~2-READ-0000000001", 7, 0)]), ["tie", "tie"]);
        assert_eq!(kinds(&[node("a~1-READ-1073741823", 7, 0)]), [""; 0]);
        assert_eq!(kinds(&[node("a~1-READ-1073741824", 7, 0)]), ["old"]);
        assert_eq!(kinds(&[node("a~1-READ-2146435072", 7, 0)]), ["used-up"]);
        assert_eq!(kinds(&[node("a__WRIT__0000000001", 7, 0)]), ["foreign"]);
        let said = |name: &str, dialect| oddities_of_nodes(&[node(name, 7, 0)], dialect).remove(0).what;
        for dialect in Dialect::ALL {
            let doubtful = said("a__WRIT__-x-0000000005", dialect);
            assert!(doubtful.ends_with("nothing is granted while the node exists"), "{dialect}: {doubtful}");
            assert_eq!(doubtful.contains("--dialect curator"), dialect != Dialect::Curator, "{dialect}: {doubtful}");
            assert!(said("config-0000000005", dialect).ends_with("it is ignored"));
        }
        assert!(said("a__WRIT__1073741824", Dialect::Curator).ends_with("when all contenders have left"));
        assert!(said("a__lock__1073741824", Dialect::Kazoo).contains("stop its programs"));
        let reentrant = [node("a__READ__0000000001", 7, 1), node("a__WRIT__0000000001", 7, 1)];
        assert_eq!(oddities_of_nodes(&reentrant, Dialect::Curator), []);
        let tied = [reentrant[0].clone(), reentrant[1].clone(), node("b__READ__0000000001", 7, 0)];
        assert!(oddities_of_nodes(&tied, Dialect::Curator).iter().all(|odd| odd.kind == "tie"));
    }
}
