//! The queue of a lock or semaphore as people see it: its members, their states, and their text.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::queue::dialect::Dialect;
use crate::queue::metadata::{Record, clamp_to_printable};
use crate::queue::mode::Mode;
use crate::queue::quoted::quoted;

/// A snapshot of the queue of a lock or semaphore. Its `Display` prints a line for the path, a line for each member,
/// and a line for the record of a job, if there is one.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Queue {
    /// The path of the lock or semaphore.
    pub path: String,
    /// The dialect of the contenders' names.
    pub dialect: Dialect,
    /// All contenders, in the order of arrival. A semaphore's holders come first, in the order of their grants.
    pub members: Vec<Member>,
    /// The last [success](crate::once::OnceGuard::done) of a job under the lock, if there is a record that this client
    /// can read.
    pub done: Option<Record>,
    /// The number of permits of a [`Semaphore`](crate::Semaphore). `None` if this is the queue of a lock. Zero in a
    /// [`Survey`](crate::Survey) if the data of the semaphore's node are not a number, so that no permit is granted.
    pub permits: Option<u32>,
}

/// One member of a queue.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Member {
    /// The mode in which the member holds or awaits the lock. [`Mode::Write`] for a semaphore's member, because waiters
    /// for permits are served one by one.
    pub mode: Mode,
    /// The number of permits that the member holds or waits for. `None` in the queue of a lock, and for a waiter whose
    /// node could not be read or does not tell the number.
    pub permits: Option<u32>,
    /// Whether the member held the lock, waited or was stuck when the queue was listed.
    pub state: MemberState,
    /// The host that the member reports; empty if it reports none.
    pub host: String,
    /// The process id that the member reports.
    pub pid: Option<u32>,
    /// The label that the member reports: what it is doing.
    pub label: Option<String>,
    /// The id of the member's session. 0 if the member's node is not ephemeral, and so outlives the process that
    /// created the node. `None` if the node could not be read.
    pub session: Option<i64>,
    /// When the member queued up, on the ensemble's clock. For a holder of permits, when the permits were granted; for
    /// a holder that has downgraded, when it downgraded. The ensemble does not record when a lock was granted. `None`
    /// if the member's node could not be read.
    pub since: Option<SystemTime>,
    /// The `czxid` of the member's node: the ensemble-wide number of the transaction that created the node. It is the
    /// [fencing token](crate::Hold::fencing_token) of the holder's guard, unless the holder has downgraded. `None` if
    /// the node could not be read.
    ///
    /// No two members of a queue have the same token. [`RwLock::evict`](crate::RwLock::evict) finds the member by its
    /// token.
    pub token: Option<i64>,
    /// Whether the member's process may [keep](crate::RwLockBuilder::keep) the node between uses. If such a member
    /// [holds](MemberState::Holds), the `Display` of [`Queue`] and `zklock ls` print *keeps* instead of *holds*. The
    /// process either uses the lock, or is idle and gives the lock up as soon as it is asked to. The queue cannot show
    /// the difference, because the process sends nothing when it uses the lock by a node that it keeps.
    pub keeps: bool,
    /// Whether the member is a candidate of an election ([`Leadership`](crate::Leadership)). A candidate that
    /// [holds](MemberState::Holds) is the leader. `false` if the member's node could not be read.
    pub is_candidate: bool,
    /// Whether the member's session belongs to this process. `false` if the member's node could not be read.
    pub is_own: bool,
    /// The name of the member's node, without the directory.
    pub node: String,
}

impl Member {
    /// Creates a member from its node's name, without the details that are in the node's data.
    pub(crate) fn from_node_name(node: &str, mode: Mode, state: MemberState, host: &str) -> Member {
        Member {
            mode,
            permits: None,
            state,
            host: host.to_owned(),
            pid: None,
            label: None,
            session: None,
            since: None,
            token: None,
            keeps: false,
            is_candidate: false,
            is_own: false,
            node: node.to_owned(),
        }
    }
}

/// Whether a member holds, waits or is stuck.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MemberState {
    /// The member holds the lock, because no earlier contender excludes it, or the member holds permits.
    Holds,
    /// The member waits behind another node.
    Waits {
        /// The name of the nearest earlier node that excludes the member. For the first waiter of a semaphore,
        /// `permits`: the name of the directory of the holders.
        behind: String,
    },
    /// The member will never hold: its sequence number is negative, or the node of another contender has the same
    /// number.
    Stuck,
}

/// Prints the words that follow the member's name: `holds`, `waits behind` and what the member waits for, or `is
/// stuck`.
impl fmt::Display for MemberState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MemberState::Holds => f.write_str("holds"),
            MemberState::Waits { behind } => write!(f, "waits behind {behind}"),
            MemberState::Stuck => f.write_str("is stuck"),
        }
    }
}

impl Queue {
    /// Returns the members that hold the lock: one writer, or any number of readers. In a semaphore's queue, the
    /// holders of permits.
    pub fn holders(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|member| member.state == MemberState::Holds)
    }

    /// Returns the members that wait or are stuck, in the order of arrival.
    pub fn waiters(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|member| member.state != MemberState::Holds)
    }

    /// Returns the number of free permits; `None` if this is the queue of a lock.
    ///
    /// The number is also zero if more permits are taken than exist, for example after
    /// [`set_permits`](crate::Semaphore::set_permits) has lowered the number of permits.
    pub fn free(&self) -> Option<u32> {
        let taken = self.holders().filter_map(|holder| holder.permits).map(u64::from).sum::<u64>();
        self.permits.map(|all| u32::try_from(u64::from(all).saturating_sub(taken)).unwrap_or(u32::MAX))
    }
}

/// The contenders that a waiter waits for: their number, and the first of them.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Blockers {
    /// The number of these contenders.
    pub ahead: usize,
    /// The first of these contenders, holders before waiters, at most 8.
    pub first: Vec<Member>,
}

impl fmt::Display for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.permits, self.free()) {
            (Some(all), Some(free)) => {
                let plural = if all == 1 { "" } else { "s" };
                write!(f, "{}: {free} of {all} permit{plural} free", self.path)?;
            }
            _ => write!(f, "{}:{}", self.path, if self.members.is_empty() { " free" } else { "" })?,
        }
        for member in &self.members {
            match &member.state {
                MemberState::Holds if member.keeps => write!(f, "\n  {member}, keeps")?,
                state => write!(f, "\n  {member}, {state}")?,
            }
        }
        if let Some(done) = &self.done {
            write!(f, "\n  last {done}")?;
        }
        Ok(())
    }
}

/// Writes the process id and the label, each with a space before it, if there are any.
pub(crate) fn write_pid_and_label(f: &mut fmt::Formatter<'_>, pid: Option<u32>, label: Option<&String>) -> fmt::Result {
    let pid = pid.map(|pid| format!(" pid {pid}")).unwrap_or_default();
    let label = label.map(|label| format!(" {}", quoted(label))).unwrap_or_default();
    write!(f, "{pid}{label}")
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let who = if self.host.is_empty() { &self.node } else { &self.host };
        match self.permits {
            Some(1) => write!(f, "PERMIT {who}")?,
            Some(many) => write!(f, "{many} PERMITS {who}")?,
            None => write!(f, "{} {who}", self.mode)?,
        }
        write_pid_and_label(f, self.pid, self.label.as_ref())?;
        if let Some(since) = self.since {
            // The clocks of two machines differ. A time in the future is treated as now.
            let age = SystemTime::now().duration_since(since).unwrap_or(Duration::ZERO);
            let age = match age.as_secs() {
                0 => Duration::from_millis(age.subsec_millis().into()),
                seconds => Duration::from_secs(seconds),
            };
            // `since` is when the member's node was created. The grant of a permit creates the permit's node. A
            // contender of a lock creates its node when it queues up, and another one when it downgrades. Nothing tells
            // that node from the node of a contender that has queued up as a reader.
            let is_permit = self.permits.is_some() && self.state == MemberState::Holds;
            let how = if is_permit { "granted" } else { "queued" };
            write!(f, " {how} {} ago", humantime::format_duration(age))?;
        }
        f.write_str(if self.is_own { " (this process)" } else { "" })
    }
}

/// Prints the time on the ensemble's clock instead of an age, so that people whose clocks differ see the same text.
impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "done at {}", humantime::format_rfc3339_seconds(clamp_to_printable(self.at)))?;
        if !self.host.is_empty() {
            write!(f, " by {}", self.host)?;
        }
        write_pid_and_label(f, self.pid, self.label.as_ref())
    }
}

impl fmt::Display for Blockers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.ahead == 0 {
            return f.write_str("nobody is known to be in the way");
        }
        let holders = || self.first.iter().filter(|member| member.state == MemberState::Holds);
        let named = |how: &str, keeps| {
            let all: Vec<_> = holders().filter(|member| member.keeps == keeps).map(Member::to_string).collect();
            (!all.is_empty()).then(|| format!("{how} by {}", all.join(" and ")))
        };
        let named = Vec::from_iter(named("held", false).into_iter().chain(named("kept", true)));
        match (named.as_slice(), self.first.first()) {
            ([], None) => write!(f, "{} ahead", self.ahead),
            // None of the named blockers holds the lock. For example, a reader waits for a writer, which itself waits
            // for the readers that hold.
            ([], Some(next)) => write!(f, "behind {next}; {} ahead", self.ahead),
            (holders, _) => write!(f, "{}; {} ahead", holders.join(", "), self.ahead),
        }
    }
}

/// The progress of a waiter. Reported by [`Acquire::on_wait`](crate::Acquire::on_wait).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Progress {
    /// The directory of the lock or semaphore.
    pub path: Arc<str>,
    /// The waiter's place in the queue; the first contender has place 1. All earlier contenders of a lock count:
    /// holders, and also readers that a reader need not wait for. Holders of permits do not count, because they have
    /// left the semaphore's queue.
    pub place: usize,
    /// The number of contenders in the queue, including the waiter and the contenders behind the waiter.
    pub length: usize,
    /// The contenders that the waiter waits for.
    pub blockers: Blockers,
}

impl Progress {
    pub(crate) fn looks_same_as(&self, other: &Progress) -> bool {
        let nodes = |of: &Progress| -> Vec<String> { of.blockers.first.iter().map(|it| it.node.clone()).collect() };
        (self.place, self.blockers.ahead) == (other.place, other.blockers.ahead) && nodes(self) == nodes(other)
    }
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "place {} of {}: {}", self.place, self.length, self.blockers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::lock_paths::member_from_name as member;
    use crate::queue::node_name::NodeName;
    use crate::queue::turn::Turn;

    #[test]
    fn free_permits_are_those_not_held_and_at_least_zero() {
        let member =
            |state, permits| Member { permits: Some(permits), ..Member::from_node_name("", Mode::Write, state, "") };
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

    #[test]
    fn blockers_name_the_first_waiter_if_none_holds() {
        let contender = NodeName::parse("web-1~k3v9x2ma-WRITE-0000000007").unwrap();
        let waits = member(&contender, &Turn::Behind(contender.clone()));
        let holds = member(&contender, &Turn::Granted);
        let text = |ahead, first: &[Member]| Blockers { ahead, first: first.to_vec() }.to_string();
        assert_eq!(text(0, &[]), "nobody is known to be in the way");
        assert_eq!(text(2, &[]), "2 ahead");
        assert_eq!(text(2, std::slice::from_ref(&waits)), "behind WRITE web-1; 2 ahead");
        assert_eq!(text(2, &[holds, waits]), "held by WRITE web-1; 2 ahead");
    }

    #[test]
    fn blockers_distinguish_kept_from_held() {
        let reader = |name, turn: &Turn| member(&NodeName::parse(name).unwrap(), turn);
        let plain = reader("web-1~k3v9x2ma-READ-0000000007", &Turn::Granted);
        let kept = reader("web-2~k3v9x2mb~keep-READ-0000000008", &Turn::Granted);
        let other = reader("web-3~k3v9x2mc~keep-READ-0000000009", &Turn::Granted);
        let behind = Turn::Behind(NodeName::parse("web-1~k3v9x2ma-WRITE-0000000007").unwrap());
        let waits = reader("web-4~k3v9x2md~keep-READ-0000000010", &behind);
        let text = |first: &[&Member]| {
            Blockers { ahead: first.len(), first: first.iter().copied().cloned().collect() }.to_string()
        };
        assert_eq!(text(&[&kept]), "kept by READ web-2; 1 ahead");
        assert_eq!(text(&[&kept, &other]), "kept by READ web-2 and READ web-3; 2 ahead");
        assert_eq!(text(&[&kept, &plain, &other]), "held by READ web-1, kept by READ web-2 and READ web-3; 3 ahead");
        assert_eq!(text(&[&waits]), "behind READ web-4; 1 ahead", "a waiter keeps nothing yet");
    }

    #[test]
    fn a_queue_prints_the_state_of_each_member() {
        let mut members: Vec<Member> =
            [("web-1~k3v9x2ma-READ-0000000007", Turn::Granted), ("web-2~k3v9x2mb~keep-READ-0000000008", Turn::Granted)]
                .map(|(name, turn)| member(&NodeName::parse(name).unwrap(), &turn))
                .into();
        let waits = NodeName::parse("web-3~k3v9x2mc~keep-WRITE-0000000009").unwrap();
        members.push(member(&waits, &Turn::Behind(NodeName::parse(&members[1].node).unwrap())));
        let (dialect, path) = (waits.dialect(), "/lock".to_owned());
        let queue = Queue { path, dialect, members, done: None, permits: None };
        assert_eq!(
            queue.to_string(),
            "/lock:\n  READ web-1, holds\n  READ web-2, keeps\n  \
             WRITE web-3, waits behind web-2~k3v9x2mb~keep-READ-0000000008"
        );
    }
}
