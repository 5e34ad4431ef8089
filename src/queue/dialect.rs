//! The dialects: the schemes by which this library and others name the nodes of their contenders.
//!
//! The native dialect:
//!
//! ```text
//! /locks/config/web-1~k3v9x2ma-READ-0000000007
//!               host  id       mode sequence
//! /locks/config/web-1~k3v9x2ma~keep-READ-0000000007     a node that its process may keep between uses
//! ```
//!
//! Native names are parsed from the right, because a host may itself contain `-WRITE-`.

use std::fmt;

use crate::queue::mode::{self, Mode, ModeAndSequence};

/// The naming scheme of a lock's nodes: this library's own, or that of another library that uses the same path.
///
/// A directory has one dialect, and all its contenders use it. In a foreign dialect, this library's contenders look
/// like contenders of the other library, which needs no change. This library reads the other library's nodes as
/// contenders. Readers and writers of both libraries exclude each other, and are granted the lock in the order of their
/// nodes' numbers. [`RwLockBuilder::dialect`](crate::RwLockBuilder::dialect) sets the dialect.
///
/// # Which libraries can share a path
///
/// | dialect | reader, writer | shared with |
/// |---|---|---|
/// | [`Native`](Dialect::Native) | `<host>~<id>-READ-<seq>`, `…-WRITE-<seq>` | this library |
/// | [`Curator`](Dialect::Curator) | `_c_<uuid>-__READ__<seq>`, `…-__WRIT__<seq>` | Curator 5's `InterProcessReadWriteLock` |
/// | [`CuratorMutex`](Dialect::CuratorMutex) | `_c_<uuid>-READ-lock-<seq>`, `_c_<uuid>-lock-<seq>` | Curator 5's `InterProcessMutex`, and `Client::lock` of the crate zookeeper-client with `LockPrefix::new_curator(path, "lock-")`: they are writers |
/// | [`Kazoo`](Dialect::Kazoo) | `<uuid>__rlock__<seq>`, `<uuid>__lock__<seq>` | kazoo 2's `ReadLock` and `WriteLock` |
///
/// Unmodified, Curator and kazoo do not see each other: each library looks only for its own names. Nor does Curator's
/// mutex see Curator's read/write lock. The [guide](crate::guide#mixed-fleets) has the few lines of Python that make
/// kazoo a contender among Curator's, so that Curator, kazoo and this library share one path.
///
/// # Doubt
/// Two kinds of children are in doubt, because other rules than ours may apply to them:
/// - a contender of another dialect;
/// - a node whose name has a marker of Curator or kazoo, such as `__WRIT__`, and ends with digits that are not a
///   sequence number behind the marker.
///
/// An acquisition that lists the queue while such a child is there fails with
/// [`Error::ForeignContender`](crate::Error::ForeignContender), which names the node and its dialect. The acquisition
/// leaves no node of its own in the queue. [`queue`](crate::RwLock::queue) and [`evict`](crate::RwLock::evict) fail in
/// the same way. All other children are ignored in every dialect.
///
/// A contender that already holds the lock continues to hold it, without a warning. Not every contender lists the
/// queue: in the native dialect a writer hands over to the waiter behind it, and a process that
/// [keeps](crate::RwLockBuilder::keep) its node uses the lock again without a listing. The next contender that queues
/// up lists the queue, and fails.
///
/// This library refuses only contenders that it can recognize by their nodes' names. kazoo's plain `Lock` has the names
/// of its `WriteLock` but does not wait for readers. So if there are readers, give `Lock` the argument
/// `extra_lock_patterns=["__rlock__"]`. zookeeper-client's `Client::lock` with a filter waits only for the nodes that
/// the filter lets through. A holder of another library learns late, or not at all, that it has lost its session or its
/// node. The [token](crate::Hold::fencing_token) protects against such a holder. The token of another library's holder
/// is the `czxid` of its node, in the same order as ours.
///
/// # What else differs from the native dialect
/// - **Hand-off**: a client that may write to nodes, as Curator's `Revoker` does, could forge the signal by which a
///   writer hands over to the next contender. So a writer's release is a plain delete, and the next contender has to
///   list the queue. A change of a node's data only makes a waiter list again, so a `Revoker`'s request has no effect:
///   use [`contended`](crate::Hold::contended).
/// - **Downgrade** works in place: readers and writers of each library treat the holder's new node as a reader's. A
///   thread of Curator that reads under its own write lock has two nodes of one number. Other readers wait for the
///   thread's write node, and other writers wait for both nodes of the thread.
/// - **Host and label** are in the node's data, because the names have no room for them.
///   [`Member::host`](crate::queue::Member::host) is the host in the data, and may be empty. The identifier that kazoo
///   writes is shown as the label. kazoo's `contenders()` shows our metadata as the identifier.
/// - **Identity**: a uuid takes the place of host and id. If the reply to a create is lost, this library finds the node
///   by the uuid.
/// - **[`evict`](crate::RwLock::evict)** removes the node of any library's contender. Only this library's contenders
///   notice: a waiter of Curator or kazoo queues up again at the end, and a holder continues. So stop the process of
///   such a contender first.
/// - **The directory**: kazoo makes persistent directories and never checks again that they exist. So in kazoo's
///   dialect this library makes persistent directories, too. A directory that exists keeps its kind. If it is a
///   container, the server deletes it when it is empty. kazoo's lock objects then fail, and so does `Client::lock`
///   without `with_ancestor_options`. From number 1073741824 on, this library deletes an empty directory of any kind to
///   restart the numbers, but not in kazoo's dialect. When the numbers are nearly used up, this library lets no
///   contender enter, in any dialect. The other libraries continue, and past 2147483647 their contenders no longer
///   exclude each other.
/// - **Access**: the waiters of every library, including this one, read the node that they wait for. If an
///   [`acl`](crate::ZooKeeperBuilder::acl) does not let a contender read that node, the contender fails instead of
///   waiting.
/// - **[`keep`](crate::RwLockBuilder::keep)** is refused, because contenders of other libraries do not ask a process to
///   give up the node that it keeps.
/// - [`MultiLock`](crate::MultiLock), guarded transactions, tokens and the detection of a loss are as in the native
///   dialect.
///
/// # Examples
///
/// ```
/// use zk_rwlock::{Dialect, Error, Memory, RwLock};
/// # tokio_test::block_on(async {
/// let zk = Memory::new(); // or: ZooKeeper::connect("127.0.0.1:2181").await?
/// let lock = RwLock::builder(&zk, "/locks/config").dialect(Dialect::Curator).build()?;
/// let guard = lock.write().await?; // InterProcessReadWriteLock(client, "/locks/config") waits now
/// assert!(guard.node_path().contains("-__WRIT__"));
///
/// // A lock that takes the path for a native one is refused.
/// let error = RwLock::new(&zk, "/locks/config")?.read().await.unwrap_err();
/// assert!(matches!(error, Error::ForeignContender { speaks: Dialect::Curator, .. }));
/// # Ok::<(), Error>(()) }).unwrap();
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Dialect {
    /// This library's own dialect, with the quickest hand-off, and with host and id in the names.
    ///
    /// `Client::lock` of the crate zookeeper-client can be a writer here, too, with a name of this form:
    /// `LockPrefix::new_custom(format!("{path}/{host}~{id}-WRITE-"), "-")`.
    #[default]
    Native,
    /// The dialect of Apache Curator's `InterProcessReadWriteLock`.
    ///
    /// Curator sorts all children by the text behind `__READ__` or `__WRIT__`, whatever stands before the marker. Other
    /// programs that make names of this form sort in the same way. A writer waits until its node is the first child. A
    /// reader waits until no child with `__WRIT__` is before its node.
    Curator,
    /// The dialect of Apache Curator's `InterProcessMutex`: mutexes are writers, and this library adds readers.
    ///
    /// A mutex sorts all children by the text behind the last `lock-`, and waits until it is first. Our readers have
    /// `lock-` in their names, too, so a mutex waits for them. The lock of zookeeper-client sorts by the last ten
    /// digits, and waits in the same way.
    CuratorMutex,
    /// The dialect of kazoo's `ReadLock` and `WriteLock`.
    ///
    /// Both locks treat each child whose name ends with `__lock__` or `__rlock__` and ten digits as a contender, with
    /// any text before the marker. They sort the contenders by the digits.
    Kazoo,
}

const CURATOR_WRITE: &str = "__WRIT__";
const MUTEX: &str = "lock-";
/// The marker of a reader among Curator's mutexes. Ends with [`MUTEX`], so that a mutex waits for our readers.
const MUTEX_READ: &str = "READ-lock-";

/// The longest marker of a mode, such as `-WRITE-`, in any dialect.
pub(crate) const LONGEST_MARKER: &str = MUTEX_READ;

/// The beginning of a protected name. Curator calls a name protected if it begins with `_c_` and a uuid.
const PROTECTED: &str = "_c_";

impl Dialect {
    /// All dialects.
    pub const ALL: [Dialect; 4] = [Dialect::Native, Dialect::Curator, Dialect::CuratorMutex, Dialect::Kazoo];

    /// Returns the marker of a mode, such as `-WRITE-`: the text between the tag and the sequence number.
    pub(crate) fn mode_marker(self, mode: Mode) -> &'static str {
        match (self, mode) {
            (Dialect::Native, Mode::Read) => "-READ-",
            (Dialect::Native, Mode::Write) => "-WRITE-",
            (Dialect::Curator, Mode::Read) => "__READ__",
            (Dialect::Curator, Mode::Write) => CURATOR_WRITE,
            (Dialect::CuratorMutex, Mode::Read) => MUTEX_READ,
            (Dialect::CuratorMutex, Mode::Write) => MUTEX,
            (Dialect::Kazoo, Mode::Read) => "__rlock__",
            (Dialect::Kazoo, Mode::Write) => "__lock__",
        }
    }

    /// Returns a new acquisition's tag: the part of its node names before the marker of the mode. No other acquisition
    /// has the same tag. `keeps` says whether the process may keep the node between uses, which only native names show.
    /// `random` returns random numbers.
    pub(crate) fn new_tag(self, host: &str, keeps: bool, mut random: impl FnMut() -> u64) -> String {
        if self == Dialect::Native {
            return format!("{host}~{}{}", encode_base36(random()), if keeps { KEEP } else { "" });
        }
        let (high, low) = (random(), random());
        // Sets the bits of the uuid's version (4) and variant (1), because Curator parses this part of a name as a
        // uuid.
        let (high, low) = ((high & !0xf000) | 0x4000, (low & (u64::MAX >> 2)) | (1 << 63));
        if self == Dialect::Kazoo {
            return format!("{high:016x}{low:016x}");
        }
        let groups = (high >> 32, (high >> 16) & 0xffff, high & 0xffff, low >> 48, low & 0xffff_ffff_ffff);
        format!("{PROTECTED}{:08x}-{:04x}-{:04x}-{:04x}-{:012x}-", groups.0, groups.1, groups.2, groups.3, groups.4)
    }

    /// Returns whether a writer signals its release to waiters by a write to its node. The signal is safe only where no
    /// other program writes to nodes.
    pub(crate) fn signals_release(self) -> bool {
        self == Dialect::Native
    }

    /// Returns whether a lock's directory must stay when it is empty.
    pub(crate) fn must_keep_directories(self) -> bool {
        self == Dialect::Kazoo
    }

    /// Splits a contender's name into its tag and its place (mode and sequence number). `None` if the name is not a
    /// contender's in this dialect.
    pub(crate) fn split_name(self, name: &str) -> Option<(&str, ModeAndSequence)> {
        if self == Dialect::Native {
            return split_native(name);
        }
        let (tag, mode, sequence) = trailing_sequences(name).into_iter().flatten().find_map(|(before, sequence)| {
            let (tag, mode) = self.split_mode_marker(before)?;
            Some((tag, mode, sequence))
        })?;
        // A reader of Curator waits for every name that contains the marker of a writer, at any place. So each name
        // with this marker counts as a writer's.
        let mode = if self == Dialect::Curator && name.contains(CURATOR_WRITE) { Mode::Write } else { mode };
        Some((tag, ModeAndSequence { mode, sequence }))
    }

    fn split_mode_marker(self, before: &str) -> Option<(&str, Mode)> {
        let strip = |mode| before.strip_suffix(self.mode_marker(mode)).map(|tag| (tag, mode));
        match self {
            // In this dialect, only this library makes readers. Any other name with `lock-` and a number is that of a
            // mutex, which is a writer.
            Dialect::CuratorMutex => {
                strip(Mode::Read).filter(|(tag, _)| is_curator_tag(tag)).or_else(|| strip(Mode::Write))
            }
            _ => strip(Mode::Read).or_else(|| strip(Mode::Write)),
        }
    }

    /// Returns the mode and the sequence number of a contender; `None` if the name is not a contender's in this
    /// dialect.
    pub(crate) fn parse_mode_and_sequence(self, name: &str) -> Option<ModeAndSequence> {
        self.split_name(name).map(|(_, place)| place)
    }

    /// Returns the dialect in which a name is a contender's, if there is one. A name such as `block-0000000005` is not
    /// taken for a contender's, because `block` is a common word.
    ///
    /// ```
    /// use zk_rwlock::Dialect;
    /// assert_eq!(Dialect::of("5cf2ad842a9c4f12a1ab0f4d8ce1a4a9__rlock__0000000007"), Some(Dialect::Kazoo));
    /// assert_eq!(Dialect::of("config"), None);
    /// ```
    pub fn of(name: &str) -> Option<Dialect> {
        Dialect::ALL.into_iter().find(|dialect| dialect.has_marker(name) && dialect.split_name(name).is_some())
    }

    /// Returns the dialect of a foreign child of a lock's directory. An acquisition of this dialect that lists the
    /// queue fails while the directory has a foreign child.
    ///
    /// The child may be a contender of another dialect. Or its name has a marker of Curator or kazoo, such as
    /// `__WRIT__`, and ends with digits that are not a sequence number behind the marker. For such a name this function
    /// returns the dialect of the marker, which may be this dialect itself. `None` for this dialect's own contenders,
    /// and for children that are ignored.
    ///
    /// ```
    /// use zk_rwlock::Dialect;
    /// let kazoos = "5cf2ad842a9c4f12a1ab0f4d8ce1a4a9__rlock__0000000007";
    /// assert_eq!(Dialect::Native.foreign(kazoos), Some(Dialect::Kazoo));
    /// assert_eq!(Dialect::Kazoo.foreign(kazoos), None);
    /// assert_eq!(Dialect::Native.foreign("config"), None);
    /// ```
    pub fn foreign(self, name: &str) -> Option<Dialect> {
        // Every contender's name ends with at least nine digits: the server prints ten digits, or a minus sign and nine
        // or ten digits. This quick check skips most other names.
        if !name.as_bytes().last_chunk::<9>().is_some_and(|digits| digits.iter().all(u8::is_ascii_digit))
            || self.split_name(name).is_some()
        {
            return None;
        }
        let by_marker = || Dialect::ALL.into_iter().find(|it| *it != Dialect::Native && it.has_marker(name));
        Dialect::of(name).or_else(by_marker)
    }

    /// Returns whether a name has a marker of this dialect, such as `__WRIT__`. In the native dialect, only a
    /// contender's name counts. The marker of a mutex, `lock-`, is also the end of other words, such as `block-`. So
    /// `lock-` does not count after a letter or digit. But `split_name` accepts `lock-` even there, because a mutex
    /// waits for every name that ends with `lock-` and a number.
    fn has_marker(self, name: &str) -> bool {
        let stands_alone = |at: usize| !name[..at].ends_with(|before: char| before.is_alphanumeric());
        match self {
            Dialect::Native => split_native(name).is_some(),
            Dialect::CuratorMutex => name.match_indices(MUTEX).any(|(at, _)| stands_alone(at)),
            _ => name.contains(self.mode_marker(Mode::Read)) || name.contains(self.mode_marker(Mode::Write)),
        }
    }

    /// Describes a foreign node of dialect `other` for an error. If `other` is this dialect, the node has the marker of
    /// a mode without a number behind the marker.
    pub(crate) fn describe_foreign(self, other: Dialect) -> String {
        let whose = match other {
            Dialect::Native => "of zk-rwlock's own",
            Dialect::Curator => "of Curator's read/write lock",
            Dialect::CuratorMutex => "of Curator's mutex or zookeeper-client's lock",
            Dialect::Kazoo => "of kazoo's locks",
        };
        if other == self {
            return format!("named like a contender {whose}, but not as this lock can read it");
        }
        format!("a contender {whose} (a lock that is opened with Dialect::{other:?} would queue with it)")
    }

    /// Returns whether two nodes of the same number may belong to one holder. A Curator thread that holds the write
    /// lock may take the read lock as well, which makes a second node of the same number.
    pub(crate) fn may_be_one_holder(self, one: ModeAndSequence, other: ModeAndSequence) -> bool {
        self == Dialect::Curator && one.mode != other.mode && (0..mode::REFUSED_FROM).contains(&one.sequence)
    }

    /// Returns the id in a tag of another library's dialect: the part that differs between acquisitions.
    pub(crate) fn id_in_tag(tag: &str) -> &str {
        if is_curator_tag(tag) { &tag[PROTECTED.len()..tag.len() - 1] } else { tag }
    }
}

impl fmt::Display for Dialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Dialect::Native => "native",
            Dialect::Curator => "curator",
            Dialect::CuratorMutex => "curator-mutex",
            Dialect::Kazoo => "kazoo",
        })
    }
}

/// Makes eight random letters and digits from a random number.
fn encode_base36(mut number: u64) -> String {
    let mut digit = || {
        let digit = b"0123456789abcdefghijklmnopqrstuvwxyz"[(number % 36) as usize];
        number /= 36;
        char::from(digit)
    };
    std::array::from_fn::<char, 8, _>(|_| digit()).iter().collect()
}

/// Returns whether a tag looks like `_c_<uuid>-`, as Curator makes tags. The part in place of the uuid may be any 36
/// hexadecimal digits and dashes.
fn is_curator_tag(tag: &str) -> bool {
    let uuid = tag.strip_prefix(PROTECTED).and_then(|rest| rest.strip_suffix('-'));
    uuid.is_some_and(|uuid| uuid.len() == 36 && uuid.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-'))
}

/// Parses the sequence number at the end of a name in both possible ways: as ten digits, and as a negative number.
/// Returns each number with the text before the number, or `None` if the name does not end in this way. Numbers are
/// negative after the server's counter has wrapped.
fn trailing_sequences(name: &str) -> [Option<(&str, i64)>; 2] {
    let digits = name.len() - name.bytes().rev().take_while(u8::is_ascii_digit).count();
    let (before, digits) = name.split_at(digits);
    let positive = (digits.len() == 10).then(|| digits.parse().ok().map(|number| (before, number))).flatten();
    let negative = before.strip_suffix('-').filter(|_| (9..=10).contains(&digits.len()));
    let negative = negative.and_then(|before| Some((before, -digits.parse::<i64>().ok()?)));
    [positive, negative]
}

/// The end of the tag of a node that its process may keep between uses. The suffix is in the node's name, and not in
/// its data, so that a listing alone tells a waiter whether to ask the process to give the node up.
pub(crate) const KEEP: &str = "~keep";

const HOST_BYTES: usize = 64;

/// Returns whether a name looks like that of a node that its process may keep. This is fast, because only the end of
/// the name is read.
pub(crate) fn looks_kept(name: &str) -> bool {
    let before = name.trim_end_matches(|last: char| last.is_ascii_digit() || last == '-');
    before.strip_suffix("-READ").or_else(|| before.strip_suffix("-WRITE")).is_some_and(|tag| tag.ends_with(KEEP))
}

/// Splits a native name into its tag (`host`, `host~id` or `host~id~keep`) and its place (mode and sequence number).
/// `None` if the name is no such name.
fn split_native(name: &str) -> Option<(&str, ModeAndSequence)> {
    let (before, digits) = name.rsplit_once('-')?;
    let sign = usize::from(before.ends_with('-'));
    let before = &before[..before.len() - sign];
    let sequence = parse_sequence(&name[name.len() - digits.len() - sign..])?;
    let (tag, mode) = match before.strip_suffix("-WRITE") {
        Some(tag) => (tag, Mode::Write),
        None => (before.strip_suffix("-READ")?, Mode::Read),
    };
    let (host, id) = tag.strip_suffix(KEEP).unwrap_or(tag).split_once('~').unwrap_or((tag, "0"));
    let well_formed = host_problem(host).is_none() && !id.is_empty() && id.bytes().all(|b| b.is_ascii_alphanumeric());
    well_formed.then_some((tag, ModeAndSequence { mode, sequence }))
}

/// Parses a sequence number. Accepts only the spelling that the server prints (`%010d`), so that each number has one
/// spelling.
fn parse_sequence(digits: &str) -> Option<i64> {
    let sequence: i64 = digits.parse().ok()?;
    let printed_by_server = digits.len() >= 10 && !digits.starts_with('+') && digits != "-000000000";
    let padded = digits.len() == 10 || !digits.trim_start_matches('-').starts_with('0');
    (printed_by_server && padded).then_some(sequence)
}

/// Returns the sequence number if the name ends like a native contender's, with ten digits and no sign. This is fast,
/// because only the end of the name is read.
pub(crate) fn unsigned_sequence_at_end(name: &str) -> Option<i64> {
    let (before, digits) = name.as_bytes().split_last_chunk::<10>()?;
    if !(before.ends_with(b"E-") || before.ends_with(b"D-")) {
        return None;
    }
    digits.iter().try_fold(0, |number, digit| digit.is_ascii_digit().then(|| number * 10 + i64::from(digit - b'0')))
}

/// Returns why a host is invalid, or `None` if the host is valid.
pub(crate) fn host_problem(host: &str) -> Option<&'static str> {
    if host.is_empty() {
        Some("is empty")
    } else if host.len() > HOST_BYTES {
        Some("is longer than 64 bytes")
    } else if !host.bytes().all(is_host_byte) {
        Some("may only contain letters, digits, '.', '_' and '-'")
    } else {
        None
    }
}

/// Returns the first `HOST_BYTES` bytes of the machine's name, with each invalid byte replaced by `_`. Returns
/// `localhost` if the machine has no name.
pub(crate) fn machine_name() -> String {
    let fit = |byte| if is_host_byte(byte) { char::from(byte) } else { '_' };
    let fit: String = raw_machine_name().bytes().take(HOST_BYTES).map(fit).collect();
    if fit.is_empty() { "localhost".to_owned() } else { fit }
}

/// Returns the machine's name as the system gives it.
#[cfg(not(windows))]
pub(crate) fn raw_machine_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

#[cfg(windows)]
pub(crate) fn raw_machine_name() -> String {
    std::env::var("COMPUTERNAME").unwrap_or_default()
}

fn is_host_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-')
}

#[cfg(test)]
mod tests;
