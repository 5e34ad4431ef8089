//! Who holds, who waits, since when and behind whom; knows no concrete backend.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::call;
use crate::queue::contender::Contender;
use crate::queue::dialect::Dialect;
use crate::queue::mode::Mode;
use crate::queue::turn::{self, Turn};
use crate::session::contract::Session;
use crate::session::request::{Failure, Stat};
use crate::validation;

/// At most so many of those in the way are looked up for an error: it must be told in time.
const BLOCKERS_NAMED: usize = 8;

/// How many nodes are read at once for a snapshot of the queue.
const READS_IN_FLIGHT: usize = 256;

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

impl fmt::Display for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.members.is_empty() {
            return write!(f, "{}: free", self.path);
        }
        write!(f, "{}:", self.path)?;
        for member in &self.members {
            let state = match &member.state {
                MemberState::Holds => "holds".to_owned(),
                MemberState::Waits { behind } => format!("waits behind {behind}"),
                MemberState::Stuck => "is stuck".to_owned(),
            };
            write!(f, "\n  {member}, {state}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let who = if self.host.is_empty() { &self.node } else { &self.host };
        write!(f, "{} {who}", self.mode)?;
        if let Some(pid) = self.pid {
            write!(f, " pid {pid}")?;
        }
        if let Some(label) = &self.label {
            write!(f, " {label:?}")?;
        }
        if let Some(since) = self.since {
            // The clocks of two machines differ; an entry in the future is one of just now.
            let age = SystemTime::now().duration_since(since).unwrap_or(Duration::ZERO);
            let whole_seconds = Duration::from_secs(age.as_secs());
            let age = if whole_seconds.is_zero() {
                Duration::from_millis(u64::from(age.subsec_millis()))
            } else {
                whole_seconds
            };
            write!(f, " for {}", humantime::format_duration(age))?;
        }
        Ok(())
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

impl fmt::Display for Blockers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.ahead == 0 {
            return f.write_str("nobody is known to be in the way");
        }
        let holders = self.first.iter().filter(|member| member.state == MemberState::Holds);
        let named: Vec<String> = holders.map(Member::to_string).collect();
        match (named.as_slice(), self.first.first()) {
            ([], None) => write!(f, "{} ahead", self.ahead),
            // Whoever held it has left since, and one of those who waited holds it now, or will.
            ([], Some(next)) => write!(f, "behind {next}; {} ahead", self.ahead),
            (holders, _) => write!(f, "held by {}; {} ahead", holders.join(" and "), self.ahead),
        }
    }
}

/// What a contender writes into its node, for people to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Note {
    pub(crate) host: String,
    pub(crate) pid: u32,
    pub(crate) label: Option<String>,
    pub(crate) since: SystemTime,
}

impl Note {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let since = humantime::format_rfc3339_millis(self.since.max(UNIX_EPOCH));
        let mut text = format!("host={}\npid={}\nsince={since}\n", self.host, self.pid);
        if let Some(label) = &self.label {
            text.push_str(&format!("label={label}\n"));
        }
        text.into_bytes()
    }
}

/// What was read of a note.
#[derive(Debug, Default, PartialEq, Eq)]
struct Written {
    host: Option<String>,
    pid: Option<u32>,
    label: Option<String>,
}

/// The note in a node's data, whatever else that is.
fn read_note(data: &[u8]) -> Written {
    let text = String::from_utf8_lossy(data);
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    Written {
        host: field("host").map(str::to_owned),
        pid: field("pid").and_then(|pid| pid.parse().ok()),
        label: field("label").map(str::to_owned),
    }
}

/// Anybody may have written it.
fn is_host(host: &str) -> bool {
    validation::check_host(host).is_ok()
}

/// The host and the label that another library's data may be taken for: Curator writes its address, and kazoo the
/// identifier that its user gave.
fn foreign_note(data: &[u8]) -> (String, Option<String>) {
    let text = std::str::from_utf8(data).unwrap_or_default().trim();
    if text.is_empty() || text.len() > 256 || text.chars().any(char::is_control) {
        return (String::new(), None);
    }
    match text.parse::<IpAddr>() {
        Ok(_) => (text.to_owned(), None),
        Err(_) => (String::new(), Some(text.to_owned())),
    }
}

/// Reads the queue that these children of the directory are: one read for each member.
pub(crate) async fn of(
    session: &Arc<dyn Session>,
    directory: &str,
    dialect: Dialect,
    children: &[String],
) -> Result<Queue, Failure> {
    let line = turn::line(dialect, children);
    let mut members = Vec::with_capacity(line.len());
    for some in line.chunks(READS_IN_FLIGHT) {
        members.extend(call::answered(session, || read(session, directory, some)).await?);
    }
    Ok(Queue { path: directory.to_owned(), dialect, members })
}

/// Those in the way of `me`, as far as they can be read.
pub(crate) async fn blockers(
    session: &Arc<dyn Session>,
    directory: &str,
    children: &[String],
    me: &Contender,
) -> Blockers {
    read_first(session, directory, in_the_way_of(me, children)).await
}

/// Those in the way of a newcomer of this dialect and mode, as far as they can be read.
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
        // Their names alone still tell the mode and the host.
        _ => unread(&first),
    };
    Blockers { ahead, first: members }
}

/// Those in the way of `me` as far as a listing tells, without asking anybody.
pub(crate) fn blockers_by_name(children: &[String], me: &Contender) -> Blockers {
    let (ahead, first) = in_the_way_of(me, children);
    Blockers { ahead, first: unread(&first) }
}

/// The same as were seen by name, with what they have written into their nodes; those that have left are left out.
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

/// How many are in the way, and the first of them.
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

/// Reads the nodes of these contenders, all at once; those that have left meanwhile are left out.
async fn read(session: &Arc<dyn Session>, directory: &str, line: &[(Contender, Turn)]) -> Result<Vec<Member>, Failure> {
    let replies: Vec<_> = line.iter().map(|(c, _)| session.data(&format!("{directory}/{}", c.name()))).collect();
    let mut members = Vec::with_capacity(line.len());
    for ((contender, turn), reply) in line.iter().zip(replies) {
        match reply.await {
            Ok((data, stat)) => members.push(member(contender, turn, Some((&data, stat)))),
            Err(Failure::NoNode) => {}
            // Somebody else's node may be unreadable for us, but it is there.
            Err(Failure::NoAuth) => members.push(member(contender, turn, None)),
            Err(failure) => return Err(failure),
        }
    }
    Ok(members)
}

fn member(contender: &Contender, turn: &Turn, node: Option<(&Vec<u8>, Stat)>) -> Member {
    let written = node.map(|(data, _)| read_note(data)).unwrap_or_default();
    let (host, label) = match (contender.dialect(), node) {
        (Dialect::Native, _) | (_, None) => (contender.host().to_owned(), written.label),
        _ if written.pid.is_some() => (written.host.filter(|host| is_host(host)).unwrap_or_default(), written.label),
        (_, Some((data, _))) => foreign_note(data),
    };
    Member {
        mode: contender.mode(),
        state: match turn {
            Turn::Granted => MemberState::Holds,
            Turn::Behind(other) => MemberState::Waits { behind: other.name().to_owned() },
            Turn::Evicted => MemberState::Stuck,
        },
        host,
        pid: written.pid,
        label,
        session: node.map(|(_, stat)| stat.ephemeral_owner),
        since: node.map(|(_, stat)| stat.ctime),
        token: node.map(|(_, stat)| stat.czxid),
        node: contender.name().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_text_that_can_be_read_back() {
        let since = UNIX_EPOCH + Duration::from_millis(1_700_000_000_123);
        let note = Note { host: "web-1".to_owned(), pid: 42, label: Some("migrate = v42".to_owned()), since };
        let text = String::from_utf8(note.encode()).unwrap();
        assert_eq!(text, "host=web-1\npid=42\nsince=2023-11-14T22:13:20.123Z\nlabel=migrate = v42\n");
        let (host, label) = (Some("web-1".to_owned()), Some("migrate = v42".to_owned()));
        assert_eq!(read_note(text.as_bytes()), Written { host, pid: Some(42), label });
    }

    #[test]
    fn blockers_name_the_next_in_line_when_the_holder_has_just_left() {
        let contender = Contender::parse("web-1~k3v9x2ma-WRITE-0000000007").unwrap();
        let waits = member(&contender, &Turn::Behind(contender.clone()), None);
        let holds = member(&contender, &Turn::Granted, None);
        let text = |ahead, first: &[Member]| Blockers { ahead, first: first.to_vec() }.to_string();
        assert_eq!(text(0, &[]), "nobody is known to be in the way");
        assert_eq!(text(2, &[]), "2 ahead");
        assert_eq!(text(2, std::slice::from_ref(&waits)), "behind WRITE web-1; 2 ahead");
        assert_eq!(text(2, &[holds, waits]), "held by WRITE web-1; 2 ahead");
    }

    #[test]
    fn an_address_is_curators_host_and_other_words_are_kazoos_identifier() {
        let none = (String::new(), None);
        assert_eq!(foreign_note(b"10.1.2.3"), ("10.1.2.3".to_owned(), None));
        assert_eq!(foreign_note(b"nightly report"), (String::new(), Some("nightly report".to_owned())));
        for data in [&b""[..], b"\xff\xfe", b"two\nlines"] {
            assert_eq!(foreign_note(data), none);
        }
    }

    #[test]
    fn any_data_may_stand_where_a_note_should() {
        for data in [&b""[..], b"\xff\xfe", b"pid=x\nlabel", b"=\n="] {
            assert_eq!(read_note(data), Written::default());
        }
    }
}
