//! The directories of a lock or a semaphore, and the reads of its queue and its holders.

use std::sync::Arc;

use futures_util::stream::{self, StreamExt, TryStreamExt};

use crate::call;
use crate::queue::dialect::Dialect;
use crate::queue::member::{Blockers, Member, MemberState, Progress, Queue};
use crate::queue::metadata::{self, Metadata};
use crate::queue::mode::Mode;
use crate::queue::node_name::NodeName;
use crate::queue::permits::{self, PERMITS, PermitAvailability, QUEUE};
use crate::queue::turn::{self, Turn};
use crate::session::contract::Session;
use crate::session::presence::{self, NAMED, existence_check};
use crate::session::request::{Failure, Stat};
use crate::session::retry;

/// The maximum number of nodes that one call of [`Session::data_of_each`] reads. If the server supports multi-reads,
/// one request reads them all.
pub(super) const NODES_A_REQUEST: usize = 256;

/// The maximum number of calls of [`Session::data_of_each`] in flight while the nodes of a queue are read.
const REQUESTS_IN_FLIGHT: usize = 4;

/// The directories of a lock or of a semaphore.
#[derive(Clone, Debug)]
pub(crate) struct LockPaths {
    /// The path that the user gave.
    pub(crate) path: Arc<str>,
    /// The directory of the queue. For a lock, the same as `path`.
    pub(crate) queue: Arc<str>,
    /// The directory of the permits. `None` for a lock.
    pub(crate) permits: Option<Arc<str>>,
    pub(crate) dialect: Dialect,
}

impl LockPaths {
    pub(crate) fn of_lock(path: Arc<str>, dialect: Dialect) -> LockPaths {
        LockPaths { queue: Arc::clone(&path), path, permits: None, dialect }
    }

    pub(crate) fn of_semaphore(path: Arc<str>, dialect: Dialect) -> LockPaths {
        let (queue, permits) = (format!("{path}/{QUEUE}").into(), format!("{path}/{PERMITS}").into());
        LockPaths { path, queue, permits: Some(permits), dialect }
    }

    /// Returns the path of a member's node.
    pub(crate) fn node_path(&self, member: &Member) -> String {
        let holders = self.permits.as_ref().filter(|_| member.state == MemberState::Holds);
        format!("{}/{}", holders.unwrap_or(&self.queue), member.node)
    }

    /// Lists the permit nodes and the queue. Returns the names of the permit nodes first. A missing directory counts as
    /// empty.
    pub(crate) async fn list_permits_and_queue(
        &self,
        session: &Arc<dyn Session>,
        is_synced: bool,
    ) -> Result<(Vec<String>, Vec<String>), Failure> {
        let taken = async {
            match &self.permits {
                Some(permits) => call::list_children(session, permits, is_synced).await,
                None => Ok(Vec::new()),
            }
        };
        tokio::try_join!(taken, call::list_children(session, &self.queue, is_synced))
    }

    /// Reads the nodes of the members, and returns the members with the data of their nodes, such as labels and tokens.
    /// Sends all reads before it awaits the first reply.
    async fn read_member_nodes(&self, session: &Arc<dyn Session>, members: &[Member]) -> Result<Vec<Member>, Failure> {
        let dialect = self.dialect;
        let paths: Vec<String> = members.iter().map(|member| self.node_path(member)).collect();
        let nodes = session.data_of_each(&paths).await?;
        // A member whose node is gone, or may not be read, is still returned, with the data that are in the node's
        // name. Without this member, a held lock could seem to have waiters but no holder.
        let members = members.iter().zip(nodes).map(|(member, node)| match node {
            Some(node) => {
                member_with_node_data(member, dialect, session.is_session_of_process(node.1.ephemeral_owner), &node)
            }
            None => member.clone(),
        });
        Ok(members.collect())
    }

    /// Reads the members of a queue that have this dialect. `taken` are the names of a semaphore's permit nodes,
    /// `queued` are the names in the queue, and `permits` is the total number of permits.
    pub(crate) async fn read_queue(
        &self,
        session: &Arc<dyn Session>,
        (taken, queued): (&[String], &[String]),
        permits: Option<u32>,
    ) -> Result<Queue, Failure> {
        let turns = turn::all_turns(self.dialect, queued);
        let named: Vec<Member> =
            permit_holders(taken).chain(turns.iter().map(|(it, turn)| self.queue_member_from_name(it, turn))).collect();
        let read = |some| call::ask_until_answered(session, move || self.read_member_nodes(session, some));
        let reads: Vec<_> = named.chunks(NODES_A_REQUEST).map(read).collect();
        let mut members: Vec<Member> = stream::iter(reads).buffered(REQUESTS_IN_FLIGHT).try_concat().await?;
        // The holders of permits come first, sorted by their tokens, which is the order of the grants. Holders without
        // a known token precede the others.
        members[..permit_holders(taken).count()].sort_by_key(|member| member.token);
        Ok(Queue { path: self.path.to_string(), dialect: self.dialect, members, done: None, permits })
    }

    /// Returns a contender in the queue as a member. In the queue of a lock, a contender whose turn has come is a
    /// holder. In the queue of a semaphore, such a contender still waits for permits.
    fn queue_member_from_name(&self, contender: &NodeName, turn: &Turn) -> Member {
        let member = member_from_name(contender, turn);
        match self.permits.is_some() && member.state == MemberState::Holds {
            true => Member { state: MemberState::Waits { behind: PERMITS.to_owned() }, ..member },
            false => member,
        }
    }

    /// Returns the contenders that `me` waits for. `names` are the names in the queue. Reads the nodes of the first
    /// [`NAMED`] of these contenders, as [`read_blocker_nodes`](Self::read_blocker_nodes) does.
    pub(crate) async fn read_blockers(&self, session: &Arc<dyn Session>, names: &[String], me: &NodeName) -> Blockers {
        let seen = self.read_progress(session, names, me).await.blockers;
        self.read_blocker_nodes(session, seen).await
    }

    /// Returns the progress of the waiter `me`. `names` are the names in the queue. For a semaphore, also lists the
    /// permit nodes. Does not read the data of any node.
    pub(crate) async fn read_progress(&self, session: &Arc<dyn Session>, names: &[String], me: &NodeName) -> Progress {
        self.progress_from_names(&self.list_permit_nodes(session).await, names, me)
    }

    /// Asks the leader whether the nodes that a waiter waits for exist. These are the first [`NAMED`] nodes of `ahead`.
    /// If `ahead` is empty, these are all permit nodes of the semaphore, and for a lock no node.
    ///
    /// Returns whether one of these nodes does not exist on the leader. The caller then lists the queue again. If this
    /// client's server lists a node that the leader does not have, connects to another server. Fails if there is no
    /// other server. If the leader does not answer within a session timeout, returns `false`.
    pub(crate) async fn ask_leader_if_gone(&self, session: &Arc<dyn Session>, ahead: &[&str]) -> Result<bool, Failure> {
        let (directory, names) = match (&self.permits, ahead) {
            (Some(permits), []) => (permits, self.list_permit_nodes(session).await),
            _ => (&self.queue, ahead.iter().take(NAMED).map(|&name| name.to_owned()).collect()),
        };
        let checks: Vec<_> = names.iter().map(|name| existence_check(format!("{directory}/{name}"), None)).collect();
        let gone =
            retry::run_until(session.sleep(session.timeout()), presence::find_failed_checks(session, &checks)).await;
        let gone: Vec<_> = gone.unwrap_or_default().into_iter().map(|index| names[index].clone()).collect();
        let are_gone = !gone.is_empty();
        presence::leave_server_if_listed(session, directory, gone).await.map(|_| are_gone)
    }

    /// Returns the progress of the waiter `me`. `taken` are the names of the permit nodes, and `names` are the names in
    /// the queue. Sends nothing.
    pub(crate) fn progress_from_names(&self, taken: &[String], names: &[String], me: &NodeName) -> Progress {
        let (place, length) = turn::place_and_length(me, names);
        let ahead = turn::blocker_names(me, names);
        let ahead_of_us = ahead.iter().filter_map(|name| NodeName::parse_as(name, me.dialect()));
        let waiters = ahead_of_us.map(|it| self.queue_member_from_name(&it, &turn::turn_for_display(&it, names)));
        let first = permit_holders(taken).chain(waiters).take(NAMED).collect();
        let blockers = Blockers { ahead: taken.len() + ahead.len(), first };
        Progress { path: Arc::clone(&self.path), place, length, blockers }
    }

    /// Reads the nodes of these blockers, and returns the blockers with the data of their nodes. If the nodes cannot be
    /// read within a session timeout, returns the blockers unchanged.
    pub(crate) async fn read_blocker_nodes(&self, session: &Arc<dyn Session>, seen: Blockers) -> Blockers {
        let read =
            retry::run_until(session.sleep(session.timeout()), self.read_member_nodes(session, &seen.first)).await;
        match read {
            Some(Ok(first)) => Blockers { first, ..seen },
            _ => seen,
        }
    }

    /// Returns how many permits the semaphore has in all, and whether `wanted` of them are free. If the semaphore has
    /// no number of permits, the first value is `None`, and the second is `true` if no permit is taken. Returns `None`
    /// if a read fails, or if this is a lock.
    pub(crate) async fn read_total_and_if_free(
        &self,
        session: &Arc<dyn Session>,
        wanted: u32,
    ) -> Option<(Option<u32>, bool)> {
        let (names, number) = (session.children(self.permits.as_ref()?), session.data(&self.path));
        let names = names.await.or_else(retry::default_if_no_node).ok()?;
        let number = number.await.map(Some).or_else(retry::default_if_no_node).ok()?;
        let number = number.map_or(Ok(None), |(data, _)| permits::decode_permit_number(&data)).ok()?;
        let has_room = |number| permits::permit_availability(number, &names, wanted) == Ok(PermitAvailability::Enough);
        Some((number, number.map_or(names.is_empty(), has_room)))
    }

    /// Lists the permit nodes. Returns no names for a lock, or if the listing fails or takes longer than a session
    /// timeout.
    async fn list_permit_nodes(&self, session: &Arc<dyn Session>) -> Vec<String> {
        let Some(permits) = &self.permits else { return Vec::new() };
        let names = retry::run_until(session.sleep(session.timeout()), session.children(permits)).await;
        names.and_then(Result::ok).unwrap_or_default()
    }
}

/// Returns the holders of permits, with only what the names of their nodes say. Leaves out malformed names.
fn permit_holders(taken: &[String]) -> impl Iterator<Item = Member> {
    taken.iter().filter_map(|name| {
        let by = permits::parse_permit_name(name)?;
        Some(Member {
            permits: Some(by.count),
            ..Member::from_node_name(name, Mode::Write, MemberState::Holds, by.host)
        })
    })
}

/// Returns a contender as a member of the queue. The state of the member comes from `turn`, and everything else from
/// the name of the contender's node.
pub(crate) fn member_from_name(contender: &NodeName, turn: &Turn) -> Member {
    let state = match turn {
        Turn::Granted => MemberState::Holds,
        Turn::Behind(other) => MemberState::Waits { behind: other.as_str().to_owned() },
        Turn::Evicted | Turn::Stuck(_) => MemberState::Stuck,
    };
    let keeps = contender.keeps();
    Member { keeps, ..Member::from_node_name(contender.as_str(), contender.mode(), state, contender.host()) }
}

/// Returns a copy of the member, with the data and the stat of its node added.
fn member_with_node_data(member: &Member, dialect: Dialect, is_own: bool, (data, stat): &(Vec<u8>, Stat)) -> Member {
    let Metadata { host, pid, label, permits, is_candidate } = match NodeName::parse_as(&member.node, dialect) {
        Some(contender) => Metadata::new(&contender, Some(data)),
        None => Metadata { host: member.host.clone(), permits: member.permits, ..metadata::parse_metadata(data) },
    };
    Member {
        permits: permits.filter(|_| dialect == Dialect::Native),
        host,
        pid,
        label,
        is_candidate,
        session: Some(stat.ephemeral_owner),
        since: Some(stat.ctime),
        token: Some(stat.czxid),
        is_own,
        ..member.clone()
    }
}

/// Returns blockers that consist of one contender: `holder`, a holder in this process. `note` is the data of the
/// holder's node.
pub(crate) fn blockers_from_holder(holder: &NodeName, note: &[u8], token: i64) -> Blockers {
    let Metadata { host, pid, label, .. } = Metadata::new(holder, Some(note));
    let member =
        Member { host, pid, label, token: Some(token), is_own: true, ..member_from_name(holder, &Turn::Granted) };
    Blockers { ahead: 1, first: vec![member] }
}
