//! Reads a semaphore as people see it: who has its permits, and who waits for some; knows no concrete backend, and decides
//! nothing.

use std::sync::Arc;

use crate::call;
use crate::queue::dialect::Dialect;
use crate::queue::member::{Blockers, Member, MemberState, Queue};
use crate::queue::metadata::{self, Said};
use crate::queue::mode::Mode;
use crate::queue::permits::{self, PERMITS, QUEUE};
use crate::session::contract::Session;
use crate::session::request::{Failure, Stat};
use crate::snapshot::read::{self, BLOCKERS_NAMED, READS_IN_FLIGHT};

/// Reads the semaphore at `path`, which has so many permits: one read for each member. The names are those in the
/// directories of its permits and of its queue.
pub(crate) async fn of(
    session: &Arc<dyn Session>,
    path: &str,
    number: u32,
    taken: &[String],
    queued: &[String],
) -> Result<Queue, Failure> {
    let mut members = holders(session, &format!("{path}/{PERMITS}"), taken).await?;
    let waiters = read::of(session, &format!("{path}/{QUEUE}"), Dialect::Native, queued).await?;
    members.extend(waiters.members.into_iter().map(as_waiter));
    Ok(Queue { path: path.to_owned(), dialect: Dialect::Native, members, done: None, permits: Some(number) })
}

/// The names in the directories of a semaphore's permits and of its queue, none of a directory that is not there.
pub(crate) async fn names(
    session: &Arc<dyn Session>,
    path: &str,
    is_synced: bool,
) -> Result<(Vec<String>, Vec<String>), Failure> {
    let (taken, queued) = (format!("{path}/{PERMITS}"), format!("{path}/{QUEUE}"));
    let taken = call::names(session, &taken, is_synced);
    let queued = call::names(session, &queued, is_synced);
    let (taken, queued) = futures_util::future::join(taken, queued).await;
    Ok((taken?, queued?))
}

/// The holders of permits, in the order in which they took them. Names that are no permit's are left out.
async fn holders(session: &Arc<dyn Session>, directory: &str, names: &[String]) -> Result<Vec<Member>, Failure> {
    let names: Vec<&String> = names.iter().filter(|name| permits::parse(name).is_some()).collect();
    let mut members = Vec::with_capacity(names.len());
    for some in names.chunks(READS_IN_FLIGHT) {
        members.extend(call::answered(session, || read_all(session, directory, some)).await?);
    }
    members.sort_by_key(|member| member.token);
    Ok(members)
}

async fn read_all(session: &Arc<dyn Session>, directory: &str, names: &[&String]) -> Result<Vec<Member>, Failure> {
    let replies: Vec<_> = names.iter().map(|name| session.data(&format!("{directory}/{name}"))).collect();
    let mut members = Vec::with_capacity(names.len());
    for (name, reply) in names.iter().zip(replies) {
        match reply.await {
            Ok((data, stat)) => {
                let is_own = session.is_own(stat.ephemeral_owner);
                members.extend(holder(name, Some((&data, stat))).map(|holder| Member { is_own, ..holder }));
            }
            // It was in the listing: see `read::of`.
            Err(Failure::NoNode | Failure::NoAuth(_)) => members.extend(holder(name, None)),
            Err(failure) => return Err(failure),
        }
    }
    Ok(members)
}

/// A holder of permits, by the name of its node and by what the node says.
fn holder(name: &str, node: Option<(&[u8], Stat)>) -> Option<Member> {
    let by = permits::parse(name)?;
    let Said { pid, label, .. } = node.map(|(data, _)| metadata::read(data)).unwrap_or_default();
    let stat = node.map(|(_, stat)| stat);
    Some(Member {
        mode: Mode::Write,
        permits: Some(by.count),
        state: MemberState::Holds,
        host: by.host.to_owned(),
        pid,
        label,
        session: stat.map(|stat| stat.ephemeral_owner),
        since: stat.map(|stat| stat.ctime),
        token: stat.map(|stat| stat.czxid),
        keeps: false,
        is_own: false,
        node: name.to_owned(),
    })
}

/// A member of the queue, as one of a semaphore: whoever has the queue's lock is the next to take permits.
pub(crate) fn as_waiter(member: Member) -> Member {
    match member.state {
        MemberState::Holds => Member { state: MemberState::Waits { behind: PERMITS.to_owned() }, ..member },
        _ => member,
    }
}

/// The opposite of [`as_waiter`].
pub(super) fn as_in_queue(member: Member) -> Member {
    match &member.state {
        MemberState::Waits { behind } if behind == PERMITS => Member { state: MemberState::Holds, ..member },
        _ => member,
    }
}

/// Those who are in the way of a waiter, without a request: the holders of permits first, and then the waiters before it.
pub(super) fn with_holders(names: &[String], waiters: Blockers) -> Blockers {
    let taken = names.iter().filter_map(|name| holder(name, None));
    let first: Vec<Member> = taken.chain(waiters.first.into_iter().map(as_waiter)).take(BLOCKERS_NAMED).collect();
    Blockers { ahead: names.len() + waiters.ahead, first }
}

/// The holders that were seen by name, with the data of their nodes.
pub(super) async fn read_again(
    session: &Arc<dyn Session>,
    directory: &str,
    seen: &[Member],
) -> Result<Vec<Member>, Failure> {
    let names: Vec<&String> = seen.iter().map(|member| &member.node).collect();
    read_all(session, directory, &names).await
}
