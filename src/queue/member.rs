//! The queue of a lock as plain data: who holds, who waits, who is in the way; knows no nodes and reads nothing.

use std::time::SystemTime;

use crate::queue::dialect::Dialect;
use crate::queue::mode::Mode;

/// A snapshot of a lock's queue, in the order of arrival. Printed, it is a table.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Queue {
    /// The lock's directory.
    pub path: String,
    /// Whose names are in it.
    pub dialect: Dialect,
    /// Everyone in it, first come first.
    pub members: Vec<Member>,
}

/// One member of a queue.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Member {
    /// What it asks for.
    pub mode: Mode,
    /// Whether it holds the lock.
    pub state: MemberState,
    /// The host it says it runs on; empty if it does not say.
    pub host: String,
    /// The process it says it is.
    pub pid: Option<u32>,
    /// What it says it is doing.
    pub label: Option<String>,
    /// The ensemble's number for its session, 0 if its node is not ephemeral and so stays when its maker is gone;
    /// `None` if its node could not be read.
    pub session: Option<i64>,
    /// When it entered, on the ensemble's clock; `None` if its node could not be read.
    pub since: Option<SystemTime>,
    /// The ensemble-wide number of the transaction that made its node: its guard's
    /// [fencing token](crate::WriteGuard::fencing_token), unless it downgraded; `None` if its node could not be read.
    ///
    /// No two nodes ever have the same. [`RwLock::evict`](crate::RwLock::evict) takes it.
    pub token: Option<i64>,
    /// Its node's name, without the directory.
    pub node: String,
}

/// Where a member stands.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MemberState {
    /// Nothing before it excludes it: it holds the lock.
    Holds,
    /// It waits, behind this node.
    Waits {
        /// The name of the nearest node before it that excludes it.
        behind: String,
    },
    /// It will never hold: its sequence number is negative or not its alone.
    Stuck,
}

impl Queue {
    /// Those who hold the lock: one writer, or any number of readers.
    pub fn holders(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|member| member.state == MemberState::Holds)
    }

    /// Those who wait, first come first.
    pub fn waiters(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|member| member.state != MemberState::Holds)
    }
}

/// Who is in the way: how many, and the first of them.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Blockers {
    /// How many must leave first.
    pub ahead: usize,
    /// The first of them, holders before waiters, at most 8.
    pub first: Vec<Member>,
}
