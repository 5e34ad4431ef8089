//! The queue of a lock as plain data: holders, waiters and the contenders in the way; reads nothing.

use std::time::SystemTime;

use crate::queue::dialect::Dialect;
use crate::queue::done::Done;
use crate::queue::mode::Mode;

/// A snapshot of a lock's queue, in the order of arrival. Its `Display` prints one line for each member.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Queue {
    /// The lock's directory.
    pub path: String,
    /// The dialect of the names in it.
    pub dialect: Dialect,
    /// All contenders in it, in the order of arrival.
    pub members: Vec<Member>,
    /// When a job under the lock last [succeeded](crate::OnceGuard::done), if there is a record of it that this client can
    /// read.
    pub done: Option<Done>,
    /// How many permits there are, if this is the queue of a [`Semaphore`](crate::Semaphore). Then the members that hold
    /// are those that have permits, in the order in which they took them. `None` if this is the queue of a lock. Zero in a
    /// [`Survey`](crate::Survey) if what is there is no number: none is granted then.
    pub permits: Option<u32>,
}

/// One member of a queue.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Member {
    /// What it asks for. [`Mode::Write`] of a semaphore's member, which waits in the queue alone at its place.
    pub mode: Mode,
    /// How many permits it holds or waits for. `None` if it is in the queue of a lock, and if its node could not be read.
    pub permits: Option<u32>,
    /// Whether it holds the lock, at the moment of the listing. A node that has gone since could not be read.
    pub state: MemberState,
    /// The host that it gives; empty if it gives none.
    pub host: String,
    /// The process id that it gives.
    pub pid: Option<u32>,
    /// The label that it gives: what it is doing.
    pub label: Option<String>,
    /// The ensemble's number for its session. 0 if its node is not ephemeral: such a node stays when its creator is
    /// gone. `None` if its node could not be read.
    pub session: Option<i64>,
    /// When it queued up, on the ensemble's clock. Since when it holds the lock does not show from outside. Of a holder of
    /// permits, when it was granted them. `None` if its node could not be read.
    pub since: Option<SystemTime>,
    /// The ensemble-wide number of the transaction that created its node. It is the
    /// [fencing token](crate::Hold::fencing_token) of its guard, unless the holder has downgraded. `None` if its
    /// node could not be read.
    ///
    /// No two nodes ever have the same token. [`RwLock::evict`](crate::RwLock::evict) takes it.
    pub token: Option<i64>,
    /// Whether its process may [keep](crate::RwLockBuilder::keep) the node between uses. If it does and the member
    /// [holds](MemberState::Holds), texts say that it *keeps* the lock: it uses the lock, or is idle and gives it up as soon
    /// as it is asked. Which of the two does not show from outside: uses of a kept node send nothing.
    pub keeps: bool,
    /// Whether its session is of this process. Not if its node could not be read.
    pub is_own: bool,
    /// Its node's name, without the directory.
    pub node: String,
}

/// Whether a member holds, waits or is stuck.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MemberState {
    /// Nothing before it excludes it: it holds the lock.
    Holds,
    /// It waits behind another node.
    Waits {
        /// The name of the nearest node before it that excludes it. For the first in the queue of a semaphore it is
        /// `permits`, the name of the directory of those who hold.
        behind: String,
    },
    /// It will never hold: its sequence number is negative, or another node has the same number.
    Stuck,
}

impl Queue {
    /// The members that hold the lock: one writer, or any number of readers. Those that hold permits, if there are any.
    pub fn holders(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|member| member.state == MemberState::Holds)
    }

    /// The members that do not hold, in the order of arrival.
    pub fn waiters(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|member| member.state != MemberState::Holds)
    }

    /// How many permits are free; `None` if this is the queue of a lock.
    ///
    /// Zero also if more are taken than there are, because [`set_permits`](crate::Semaphore::set_permits) has lowered the
    /// number.
    pub fn free(&self) -> Option<u32> {
        let taken = self.holders().filter_map(|holder| holder.permits).map(u64::from).sum::<u64>();
        self.permits.map(|all| u32::try_from(u64::from(all).saturating_sub(taken)).unwrap_or(u32::MAX))
    }
}

/// The contenders in the way of another: how many, and the first of them.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Blockers {
    /// How many contenders must leave first.
    pub ahead: usize,
    /// The first of them, holders before waiters, at most 8.
    pub first: Vec<Member>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_permits_are_free_as_no_holder_has_and_never_less_than_none() {
        let member = |state, permits| Member {
            mode: Mode::Write,
            permits: Some(permits),
            state,
            host: String::new(),
            pid: None,
            label: None,
            session: None,
            since: None,
            token: None,
            keeps: false,
            is_own: false,
            node: String::new(),
        };
        let waits = MemberState::Waits { behind: "permits".to_owned() };
        let members = vec![member(MemberState::Holds, 2), member(MemberState::Holds, 3), member(waits, 4)];
        let queue = |permits| {
            let (path, dialect) = ("/limits/geocoder".to_owned(), Dialect::Native);
            Queue { path, dialect, members: members.clone(), done: None, permits }
        };
        for (all, free) in [(None, None), (Some(9), Some(4)), (Some(5), Some(0)), (Some(4), Some(0))] {
            assert_eq!(queue(all).free(), free, "of {all:?}");
        }
        assert_eq!((queue(None).holders().count(), queue(None).waiters().count()), (2, 1));
    }
}
