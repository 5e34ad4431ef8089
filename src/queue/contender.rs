//! The names of contenders; knows nothing of queues, time or I/O.
//!
//! ```text
//! /locks/config/web-1~k3v9x2ma-READ-0000000007
//!               host  id       mode sequence
//! ```
//!
//! Names are read from the right, because a host may itself contain `-WRITE-`.

use std::fmt;

use crate::error::error::Error;
use crate::queue::dialect::Dialect;

/// From this sequence number on, whoever leaves the directory empty deletes it, which restarts the numbers.
pub(crate) const RESTART_FROM: i64 = 1 << 30;

/// From this sequence number on, nobody may enter: the counter of ZooKeeper 3.6 and later sticks at
/// 2147483647 and gives that number to several contenders, and 3.5 wraps to a negative one (ZOOKEEPER-4372).
pub(crate) const REFUSED_FROM: i64 = (1 << 31) - (1 << 20);

/// What a contender asks for, and whom that shuts out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Shared with other readers.
    Read,
    /// Alone.
    Write,
}

impl Mode {
    /// Whether contenders of these two modes may not hold the lock together.
    ///
    /// ```
    /// use zk_rwlock::Mode;
    /// assert!(!Mode::Read.excludes(Mode::Read));
    /// assert!(Mode::Read.excludes(Mode::Write) && Mode::Write.excludes(Mode::Write));
    /// ```
    pub fn excludes(self, other: Mode) -> bool {
        self == Mode::Write || other == Mode::Write
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Mode::Read => "READ",
            Mode::Write => "WRITE",
        })
    }
}

/// A contender's mode and sequence number: all that decides its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) mode: Mode,
    pub(crate) sequence: i64,
}

/// One acquisition in the queue, as its node's name tells it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Contender {
    name: String,
    dialect: Dialect,
    host_len: usize,
    owner_len: usize,
    mode: Mode,
    sequence: i64,
}

impl Contender {
    /// Reads the name of a lock directory's child; `None` if it is not that of a contender.
    ///
    /// The id is optional, so that nodes made by other programs after the same scheme take part in the queue.
    ///
    /// ```
    /// use zk_rwlock::{Contender, Mode};
    /// let reader = Contender::parse("web-1~k3v9x2ma-READ-0000000007").unwrap();
    /// assert_eq!((reader.host(), reader.id()), ("web-1", Some("k3v9x2ma")));
    /// assert_eq!((reader.mode(), reader.sequence()), (Mode::Read, 7));
    /// assert_eq!(Contender::parse("web-1-READ-7"), None);
    /// ```
    pub fn parse(name: &str) -> Option<Contender> {
        Contender::parse_as(name, Dialect::Native)
    }

    /// As [`Contender::parse`], where the directory is written in this dialect.
    ///
    /// ```
    /// use zk_rwlock::{Contender, Dialect, Mode};
    /// let name = "_c_5cf2ad84-2a9c-4f12-a1ab-0f4d8ce1a4a9-__WRIT__0000000007";
    /// let writer = Contender::parse_as(name, Dialect::Curator).unwrap();
    /// assert_eq!((writer.mode(), writer.sequence(), writer.host()), (Mode::Write, 7, ""));
    /// assert_eq!(writer.id(), Some("5cf2ad84-2a9c-4f12-a1ab-0f4d8ce1a4a9"));
    /// assert_eq!(Contender::parse_as(name, Dialect::Kazoo), None);
    /// ```
    pub fn parse_as(name: &str, dialect: Dialect) -> Option<Contender> {
        let (owner, place) = dialect.split(name)?;
        let host_len = match dialect {
            Dialect::Native => owner.find('~').unwrap_or(owner.len()),
            _ => 0,
        };
        Some(Contender {
            name: name.to_owned(),
            dialect,
            host_len,
            owner_len: owner.len(),
            mode: place.mode,
            sequence: place.sequence,
        })
    }

    /// The whole name of its node, without the directory.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The dialect that its name is of.
    pub fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// The host that it says it runs on; empty in a dialect whose names have none.
    pub fn host(&self) -> &str {
        &self.name[..self.host_len]
    }

    /// The random id of this one acquisition, if its maker gave it one.
    pub fn id(&self) -> Option<&str> {
        let id = match self.dialect {
            Dialect::Native => self.name[self.host_len..self.owner_len].strip_prefix('~')?,
            _ => Dialect::id(&self.name[..self.owner_len]),
        };
        (!id.is_empty()).then_some(id)
    }

    /// What it asks for.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Its number in the order of arrival. Not a fencing token: it restarts when the directory is made anew.
    pub fn sequence(&self) -> i64 {
        self.sequence
    }

    /// The name that its node has after a downgrade.
    pub(crate) fn downgraded(&self) -> String {
        name(&self.name[..self.owner_len], self.dialect.marker(Mode::Read), self.sequence)
    }

    /// Whether both are nodes of one acquisition.
    pub(crate) fn has_owner_of(&self, other: &Contender) -> bool {
        self.name[..self.owner_len] == other.name[..other.owner_len]
    }

    pub(crate) fn place(&self) -> Place {
        Place { mode: self.mode, sequence: self.sequence }
    }
}

impl fmt::Display for Contender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// The sequence number, if this is a native contender with an ordinary one: quick, because it looks at nothing else.
pub(crate) fn sequence_if_plain(name: &str) -> Option<i64> {
    let (before, digits) = name.as_bytes().split_last_chunk::<10>()?;
    if !(before.ends_with(b"E-") || before.ends_with(b"D-")) {
        return None;
    }
    digits.iter().try_fold(0, |number, digit| digit.is_ascii_digit().then(|| number * 10 + i64::from(digit - b'0')))
}

/// What the names of one acquisition begin with, and nobody else's do.
#[derive(Clone, Debug)]
pub(crate) struct Owner {
    dialect: Dialect,
    text: String,
}

impl Owner {
    pub(crate) fn new(dialect: Dialect, text: String) -> Owner {
        Owner { dialect, text }
    }

    pub(crate) fn dialect(&self) -> Dialect {
        self.dialect
    }

    pub(crate) fn len(&self) -> usize {
        self.text.len()
    }

    /// The name up to its sequence number, which the server appends.
    pub(crate) fn prefix(&self, mode: Mode) -> String {
        format!("{}{}", self.text, self.dialect.marker(mode))
    }

    /// The whole name, for a node that is made with a given sequence number.
    pub(crate) fn name(&self, mode: Mode, sequence: i64) -> String {
        name(&self.text, self.dialect.marker(mode), sequence)
    }

    /// Whether `name` is a contender of this owner, in whatever mode.
    pub(crate) fn owns(&self, name: &str) -> bool {
        self.dialect.split(name).is_some_and(|(owner, _)| owner == self.text)
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn name(owner: &str, marker: &str, sequence: i64) -> String {
    format!("{owner}{marker}{sequence:010}")
}

/// Refuses a host that could not be read back from a name.
pub(crate) fn check_host(host: &str) -> Result<(), Error> {
    host_problem(host).map_or(Ok(()), |problem| Err(Error::invalid(format!("host {host:?} {problem}"))))
}

fn host_problem(host: &str) -> Option<&'static str> {
    if host.is_empty() {
        Some("is empty")
    } else if host.len() > 64 {
        Some("is longer than 64 bytes")
    } else if !host.bytes().all(is_host_byte) {
        Some("may only contain letters, digits, '.', '_' and '-'")
    } else {
        None
    }
}

/// The machine's name, made fit to be a host.
pub(crate) fn machine() -> String {
    let name = rustix::system::uname();
    let fit: String = name.nodename().to_string_lossy().bytes().take(64).map(fit_host_byte).collect();
    if fit.is_empty() { "localhost".to_owned() } else { fit }
}

fn fit_host_byte(byte: u8) -> char {
    if is_host_byte(byte) { char::from(byte) } else { '_' }
}

fn is_host_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-')
}

/// Splits a native name into `host` or `host~id`, and its place.
pub(crate) fn split(name: &str) -> Option<(&str, Place)> {
    let (before, digits) = name.rsplit_once('-')?;
    let sign = usize::from(before.ends_with('-'));
    let before = &before[..before.len() - sign];
    let sequence = parse_sequence(&name[name.len() - digits.len() - sign..])?;
    let (owner, mode) = match before.strip_suffix("-WRITE") {
        Some(owner) => (owner, Mode::Write),
        None => (before.strip_suffix("-READ")?, Mode::Read),
    };
    let (host, id) = owner.split_once('~').unwrap_or((owner, "0"));
    let well_formed = host_problem(host).is_none() && !id.is_empty() && id.bytes().all(|b| b.is_ascii_alphanumeric());
    well_formed.then_some((owner, Place { mode, sequence }))
}

/// Accepts exactly what the server prints (`%010d`), so that one number has one spelling.
fn parse_sequence(digits: &str) -> Option<i64> {
    let sequence: i64 = digits.parse().ok()?;
    let printed_by_server = digits.len() >= 10 && !digits.starts_with('+');
    let padded = digits.len() == 10 || !digits.trim_start_matches('-').starts_with('0');
    (printed_by_server && padded).then_some(sequence)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn foreign(name: &str) {
        assert_eq!(Contender::parse(name), None, "{name:?} was taken for a contender");
    }

    #[test]
    fn a_host_may_contain_what_looks_like_a_mode() {
        let contender = Contender::parse("a-WRITE-0000000001-x~id9-READ-0000000002").unwrap();
        assert_eq!((contender.host(), contender.id()), ("a-WRITE-0000000001-x", Some("id9")));
        assert_eq!((contender.mode(), contender.sequence()), (Mode::Read, 2));
    }

    #[test]
    fn a_wrapped_sequence_is_read_with_its_sign() {
        for (digits, number) in [("-2147483648", -2147483648), ("-000000005", -5), ("2147483647", 2147483647)] {
            assert_eq!(Contender::parse(&format!("h~i-WRITE-{digits}")).unwrap().sequence(), number);
        }
    }

    #[test]
    fn foreign_names_are_not_contenders() {
        for name in
            ["", "foo", "x-READ-abc", "a-WRITE-12", "a-WRITE-00000000012", "-READ-0000000001", "~i-READ-0000000001"]
        {
            foreign(name);
        }
        for name in ["h~-READ-0000000001", "h~a~b-READ-0000000001", "a b-READ-0000000001", "h-READ-+000000001"] {
            foreign(name);
        }
        for name in ["h-read-0000000001", "h-READ-0000000001 ", "é-READ-0000000001", "h-WRITE-99999999999999999999"] {
            foreign(name);
        }
    }

    #[test]
    fn a_glance_sees_no_other_number_than_a_look() {
        for digits in ["0000000007", "2147483647", "9999999999", "-000000005", "-2147483648", "12147483647"] {
            for mode in ["READ", "WRITE"] {
                let name = format!("h-READ-0000000001~i-{mode}-{digits}");
                let looked = split(&name).map(|(_, place)| place.sequence);
                let glanced = sequence_if_plain(&name);
                assert!(glanced.is_none() || glanced == looked, "{name}: {glanced:?}, {looked:?}");
                assert_eq!(glanced.is_some(), digits.len() == 10 && !digits.starts_with('-'), "{name}");
            }
        }
        assert_eq!(sequence_if_plain("short"), None);
        assert_eq!(sequence_if_plain("h-READ-000000000x"), None);
    }

    #[test]
    fn the_machine_name_is_a_fit_host() {
        check_host(&machine()).unwrap();
    }
}
