//! Decides what an operator should do when the servers of an ensemble disagree about a node.
//!
//! An operator is told to delete data only on servers that contradict both the leader and a majority of the voting
//! servers. Each committed write is on at least one server of that majority, because a quorum has committed it. The
//! servers of the majority agree, so the write is on all of them. If a server was not read, states no role, or shows a
//! node that changed meanwhile, the advice is to do nothing.

use std::collections::{BTreeMap, BTreeSet};

/// The role of a server in its ensemble, as its answer to `srvr` states it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerRole {
    Leader,
    Follower,
    /// A server without a vote.
    Observer,
    /// The role is not known, or is none of those above.
    Unknown,
}

impl ServerRole {
    pub(crate) fn of(mode: Option<&str>) -> ServerRole {
        match mode {
            Some("leader") => ServerRole::Leader,
            Some("follower") => ServerRole::Follower,
            Some("observer") => ServerRole::Observer,
            _ => ServerRole::Unknown,
        }
    }
}

/// The state of a node on one server. `None` if the state changed while the servers were read, or if the server could
/// not be read each time.
pub(crate) type StateIfSteady<V> = Option<V>;

/// The advice to the operator. It names servers by their index in the list of all servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Advice {
    /// Delete the data of these servers, one after the other. Each server copies the leader's data when it starts again.
    Renew(BTreeSet<usize>),
    /// Restart this server, because it is the leader and contradicts a majority.
    Restart(usize),
    /// Do nothing, for this reason.
    Nothing(&'static str),
}

/// Returns the advice about one node from its state on each server. `is_whole` says whether all servers of the ensemble
/// are in `servers` and were read.
pub(crate) fn advise<V: Ord>(servers: &[(ServerRole, StateIfSteady<V>)], is_whole: bool) -> Advice {
    if !is_whole {
        return Advice::Nothing("not all servers of the ensemble were looked at");
    }
    let mut sides = BTreeMap::<&V, BTreeSet<usize>>::new();
    for (server, (_, shown)) in servers.iter().enumerate() {
        let Some(shown) = shown else { return Advice::Nothing("the node changed while the servers were asked") };
        sides.entry(shown).or_default().insert(server);
    }
    let votes = |of: &BTreeSet<usize>| of.iter().filter(|server| servers[**server].0 != ServerRole::Observer).count();
    let everybody = (0..servers.len()).collect();
    let are_majority = |of: &BTreeSet<usize>| 2 * votes(of) > votes(&everybody);
    let leaders: Vec<usize> =
        everybody.iter().copied().filter(|server| servers[*server].0 == ServerRole::Leader).collect();
    let [leader] = leaders[..] else { return Advice::Nothing("not exactly one server reports that it leads") };
    if servers.iter().any(|(role, _)| *role == ServerRole::Unknown) {
        return Advice::Nothing("a server does not report its role");
    }
    match sides.into_values().find(are_majority) {
        Some(side) if side.contains(&leader) => Advice::Renew(&everybody - &side),
        Some(_) => Advice::Restart(leader),
        None => Advice::Nothing("no majority of the servers agrees"),
    }
}

/// Changes the advice about several nodes so that an operator can follow all of it. Each advice to delete data becomes
/// [`Advice::Nothing`] in two cases: if the leader must be restarted, or if the advice would delete data on servers
/// whose number is at least half of `voters`.
pub(crate) fn reconcile_advice(all: &mut [Advice], voters: usize) {
    let servers = |one: &Advice| if let Advice::Renew(servers) = one { servers.clone() } else { BTreeSet::new() };
    let renewed: BTreeSet<usize> = all.iter().flat_map(servers).collect();
    let is_restarted = all.iter().any(|one| matches!(one, Advice::Restart(_)));
    for one in all.iter_mut().filter(|one| matches!(one, Advice::Renew(_))) {
        if is_restarted {
            *one = Advice::Nothing("the leader must be restarted first, because of another node");
        } else if 2 * renewed.len() >= voters {
            *one = Advice::Nothing("half of the servers or more differ from the rest about some node");
        }
    }
}

impl Advice {
    /// Returns the advice as text. `named` returns the name of a server by its index.
    pub(crate) fn to_text(&self, named: impl Fn(usize) -> String) -> String {
        match self {
            Advice::Renew(servers) => match servers.iter().copied().map(&named).collect::<Vec<_>>().as_slice() {
                [one] => format!("{one} alone differs: stop it, delete its data, and start it"),
                several => format!(
                    "{} differ from the majority: one after the other, stop it, delete its data, start it, and wait until it \
                     follows the leader",
                    several.join(", ")
                ),
            },
            Advice::Restart(leader) => format!(
                "the leader differs from the majority: delete no data, restart the leader {}, and check again when another \
                 server leads",
                named(*leader)
            ),
            Advice::Nothing(why) => format!("{why}, so delete no data on any server"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use ServerRole::{Follower, Leader, Observer, Unknown};

    const ROLES: [ServerRole; 4] = [Leader, Follower, Observer, Unknown];

    /// Calls `check` with every combination of roles and states of up to five servers. On each server the node is
    /// missing, has one of two versions, or changed while the servers were read.
    fn every_case(mut check: impl FnMut(&[(ServerRole, StateIfSteady<u8>)])) {
        let each: Vec<(ServerRole, StateIfSteady<u8>)> =
            ROLES.into_iter().flat_map(|role| [None, Some(0), Some(1), Some(2)].map(|shown| (role, shown))).collect();
        for count in 1..=5_u32 {
            for case in 0..each.len().pow(count) {
                let case: Vec<_> = (0..count).map(|at| each[case / each.len().pow(at) % each.len()]).collect();
                check(&case);
            }
        }
    }

    #[test]
    fn no_advice_deletes_data_that_a_majority_has() {
        let (mut renewals, mut restarts) = (0, 0);
        every_case(|servers| {
            let voters = servers.iter().filter(|(role, _)| *role != Observer).count();
            match advise(servers, true) {
                Advice::Renew(renewed) => {
                    renewals += usize::from(!renewed.is_empty());
                    let kept: BTreeSet<usize> = &(0..servers.len()).collect() - &renewed;
                    let keep = kept.iter().filter(|server| servers[**server].0 != Observer).count();
                    assert!(2 * keep > voters, "{servers:?}: {renewed:?}");
                    let shown: BTreeSet<_> = kept.iter().map(|server| servers[*server].1).collect();
                    assert_eq!(shown.len(), 1, "{servers:?}: the servers that keep their data must agree");
                    assert!(kept.iter().any(|server| servers[*server].0 == Leader), "{servers:?}");
                    assert!(renewed.iter().all(|server| !shown.contains(&servers[*server].1)), "{servers:?}");
                }
                Advice::Restart(leader) => {
                    restarts += 1;
                    assert_eq!(servers[leader].0, Leader);
                    let with = servers.iter().filter(|(role, shown)| *role != Observer && *shown == servers[leader].1);
                    assert!(2 * with.count() < voters, "{servers:?}");
                }
                Advice::Nothing(_) => {}
            }
            assert!(matches!(advise(servers, false), Advice::Nothing(_)), "{servers:?}: advice without all servers");
        });
        assert!(renewals > 1_000 && restarts > 1_000, "{renewals}, {restarts}");
    }

    #[test]
    fn a_lone_follower_is_renewed_a_lone_leader_restarted() {
        let [shows, lacks] = [Some(1), Some(0)];
        for (servers, expected) in [
            ([(Leader, shows), (Follower, shows), (Follower, lacks)], Advice::Renew([2].into())),
            ([(Leader, lacks), (Follower, lacks), (Follower, shows)], Advice::Renew([2].into())),
            ([(Follower, shows), (Follower, shows), (Leader, lacks)], Advice::Restart(2)),
            ([(Leader, shows), (Follower, lacks), (Follower, lacks)], Advice::Restart(0)),
            (
                [(Leader, Some(1)), (Follower, Some(2)), (Follower, lacks)],
                Advice::Nothing("no majority of the servers agrees"),
            ),
            (
                [(Leader, shows), (Follower, shows), (Follower, None)],
                Advice::Nothing("the node changed while the servers were asked"),
            ),
            (
                [(Leader, shows), (Leader, shows), (Follower, lacks)],
                Advice::Nothing("not exactly one server reports that it leads"),
            ),
        ] {
            assert_eq!(advise(&servers, true), expected, "{servers:?}");
        }
    }

    #[test]
    fn combined_advice_keeps_a_majority_and_restarts_first() {
        let renew = |servers: &[usize]| Advice::Renew(servers.iter().copied().collect());
        let combined = |mut all: Vec<Advice>, voters| {
            reconcile_advice(&mut all, voters);
            all
        };
        assert_eq!(combined(vec![renew(&[1]), renew(&[1])], 3), [renew(&[1]), renew(&[1])]);
        assert_eq!(combined(vec![renew(&[1]), renew(&[2])], 5), [renew(&[1]), renew(&[2])]);
        assert!(combined(vec![renew(&[1]), renew(&[2])], 3).iter().all(|one| matches!(one, Advice::Nothing(_))));
        let mixed = combined(vec![Advice::Restart(0), renew(&[2])], 3);
        assert_eq!(mixed[0], Advice::Restart(0));
        assert!(matches!(mixed[1], Advice::Nothing(_)), "{mixed:?}");
    }

    #[test]
    fn the_text_names_the_servers_and_what_not_to_delete() {
        let named = |server: usize| format!("zk{server}");
        assert_eq!(
            Advice::Renew([1].into()).to_text(named),
            "zk1 alone differs: stop it, delete its data, and start it"
        );
        assert!(
            Advice::Renew([1, 2].into()).to_text(named).starts_with("zk1, zk2 differ from the majority: one after")
        );
        assert!(Advice::Restart(2).to_text(named).contains("delete no data, restart the leader zk2"));
        assert_eq!(Advice::Nothing("x").to_text(named), "x, so delete no data on any server");
    }
}
