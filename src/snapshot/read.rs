//! Reads the holders and waiters of a queue, with the data of their nodes; knows no concrete backend.

use std::sync::Arc;

use crate::call;
use crate::queue::contender::Contender;
use crate::queue::dialect::Dialect;
use crate::queue::member::{Blockers, Member, MemberState, Queue};
use crate::queue::metadata::Said;
use crate::queue::mode::Mode;
use crate::queue::turn::{self, Turn};
use crate::session::contract::Session;
use crate::session::request::{Failure, Stat};

/// How many of the contenders in the way are read for an error: the error must come in time.
pub(crate) const BLOCKERS_NAMED: usize = 8;

/// How many nodes are read at once for a snapshot of the queue.
pub(super) const READS_IN_FLIGHT: usize = 256;

/// Reads the queue that these children of the directory form: one read for each member.
pub(crate) async fn of(
    session: &Arc<dyn Session>,
    directory: &str,
    dialect: Dialect,
    children: &[String],
) -> Result<Queue, Failure> {
    let line = turn::turns(dialect, children);
    let mut members = Vec::with_capacity(line.len());
    for some in line.chunks(READS_IN_FLIGHT) {
        members.extend(call::answered(session, || read(session, directory, some)).await?);
    }
    Ok(Queue { path: directory.to_owned(), dialect, members, done: None, permits: None })
}

/// The contenders in the way of `me`, as far as they can be read.
pub(crate) async fn blockers(
    session: &Arc<dyn Session>,
    directory: &str,
    children: &[String],
    me: &Contender,
) -> Blockers {
    read_first(session, directory, in_the_way_of(me, children)).await
}

/// The contenders in the way of a newcomer of this dialect and mode, as far as they can be read.
pub(crate) async fn blockers_of_newcomer(
    session: &Arc<dyn Session>,
    directory: &str,
    children: &[String],
    (dialect, mode): (Dialect, Mode),
) -> Blockers {
    let ahead = turn::ahead_of_newcomer(dialect, mode, children);
    read_first(session, directory, first_of(&ahead, dialect, children)).await
}

async fn read_first(
    session: &Arc<dyn Session>,
    directory: &str,
    (ahead, first): (usize, Vec<(Contender, Turn)>),
) -> Blockers {
    let members = match call::unless(session.sleep(session.timeout()), read(session, directory, &first)).await {
        Some(Ok(members)) => members,
        // Their names alone still show the mode and the host.
        _ => unread(&first),
    };
    Blockers { ahead, first: members }
}

/// The contenders in the way of `me` as far as a listing shows them, without a request.
pub(crate) fn blockers_by_name(children: &[String], me: &Contender) -> Blockers {
    let (ahead, first) = in_the_way_of(me, children);
    Blockers { ahead, first: unread(&first) }
}

/// The contenders that were seen by name, with the data of their nodes.
pub(crate) async fn read_again(
    session: &Arc<dyn Session>,
    directory: &str,
    dialect: Dialect,
    seen: &Blockers,
) -> Blockers {
    let parse = |name: &str| Contender::parse_as(name, dialect);
    let turn_of = |member: &Member| match &member.state {
        MemberState::Holds => Turn::Granted,
        MemberState::Waits { behind } => parse(behind).map_or(Turn::Evicted, Turn::Behind),
        MemberState::Stuck => Turn::Evicted,
    };
    let line: Vec<_> = seen.first.iter().filter_map(|member| Some((parse(&member.node)?, turn_of(member)))).collect();
    let first = read(session, directory, &line).await.unwrap_or_else(|_| seen.first.clone());
    Blockers { ahead: seen.ahead, first }
}

/// How many contenders are in the way, and the first of them.
fn in_the_way_of(me: &Contender, children: &[String]) -> (usize, Vec<(Contender, Turn)>) {
    first_of(&turn::ahead_of(me, children), me.dialect(), children)
}

fn first_of(ahead: &[&str], dialect: Dialect, children: &[String]) -> (usize, Vec<(Contender, Turn)>) {
    let first = ahead.iter().take(BLOCKERS_NAMED).filter_map(|name| Contender::parse_as(name, dialect));
    let with_turn = |contender: Contender| {
        let turn = turn::as_seen(&contender, children);
        (contender, turn)
    };
    (ahead.len(), first.map(with_turn).collect())
}

fn unread(line: &[(Contender, Turn)]) -> Vec<Member> {
    line.iter().map(|(contender, turn)| member(contender, turn, None)).collect()
}

/// Reads the nodes of these contenders, all at once.
async fn read(session: &Arc<dyn Session>, directory: &str, line: &[(Contender, Turn)]) -> Result<Vec<Member>, Failure> {
    let replies: Vec<_> = line.iter().map(|(c, _)| session.data(&format!("{directory}/{}", c.name()))).collect();
    let mut members = Vec::with_capacity(line.len());
    for ((contender, turn), reply) in line.iter().zip(replies) {
        match reply.await {
            Ok((data, stat)) => {
                let is_own = session.is_own(stat.ephemeral_owner);
                members.push(Member { is_own, ..member(contender, turn, Some((&data, stat))) });
            }
            // It was in the listing, which shows one moment. If it has left since, or may not be read, its name remains:
            // without it a lock that is held would show waiters, and no holder.
            Err(Failure::NoNode | Failure::NoAuth(_)) => members.push(member(contender, turn, None)),
            Err(failure) => return Err(failure),
        }
    }
    Ok(members)
}

/// A contender of this process that is in the way, without a request. `note` is what its node says.
pub(crate) fn blocked_by(contender: &Contender, note: &[u8], token: i64) -> Blockers {
    let Said { host, pid, label, .. } = Said::of(contender, Some(note));
    let member =
        Member { host, pid, label, token: Some(token), is_own: true, ..member(contender, &Turn::Granted, None) };
    Blockers { ahead: 1, first: vec![member] }
}

pub(crate) fn member(contender: &Contender, turn: &Turn, node: Option<(&Vec<u8>, Stat)>) -> Member {
    let Said { host, pid, label, permits } = Said::of(contender, node.map(|(data, _)| data.as_slice()));
    Member {
        mode: contender.mode(),
        permits: permits.filter(|_| contender.dialect() == Dialect::Native),
        state: match turn {
            Turn::Granted => MemberState::Holds,
            Turn::Behind(other) => MemberState::Waits { behind: other.name().to_owned() },
            Turn::Evicted => MemberState::Stuck,
        },
        host,
        pid,
        label,
        session: node.map(|(_, stat)| stat.ephemeral_owner),
        since: node.map(|(_, stat)| stat.ctime),
        token: node.map(|(_, stat)| stat.czxid),
        keeps: contender.keeps(),
        is_own: false,
        node: contender.name().to_owned(),
    }
}
