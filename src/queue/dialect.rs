//! The dialects: how each library names its contenders, and what those names mean to it.

use std::fmt;

use crate::queue::mode::{self, Mode, Slot};
use crate::queue::native;

/// The naming scheme of a lock's nodes: this library's own, or that of a library that used the path before.
///
/// A directory has one dialect, and all its contenders use it. In a foreign dialect the other library, unmodified,
/// takes this lock for one more contender, and this lock reads the other library's nodes as contenders. Readers and
/// writers of both exclude each other. They are granted the lock in one order: that of their nodes' numbers. Set by
/// [`RwLockBuilder::dialect`](crate::RwLockBuilder::dialect).
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
/// kazoo a contender among Curator's, so that all three share one path.
///
/// # Doubt
/// A node may be a contender of another dialect, or have the mark of this dialect without a number behind it. The rule
/// of such a node may differ from ours. So an acquisition that lists the queue while the node is there is neither
/// granted nor kept waiting: it fails with [`Error::ForeignContender`](crate::Error::ForeignContender), which names the
/// node and its dialect, and leaves no node behind. [`queue`](crate::RwLock::queue) and [`evict`](crate::RwLock::evict)
/// fail in the same way. All other children are ignored in every dialect.
///
/// A contender that already holds the lock goes on, and is not warned. Nor does every contender list the queue: in the
/// native dialect a writer hands over to the waiter behind it, and uses of a [kept](crate::RwLockBuilder::keep)
/// node join it. The next contender to queue up lists the queue, and fails.
///
/// A difference that no name shows cannot be refused. kazoo's plain `Lock` is named like its `WriteLock` but does not
/// wait for readers: where there are readers, give `Lock` `extra_lock_patterns=["__rlock__"]`. `Client::lock` with a
/// filter of its own waits for the nodes that the filter lets through. A holder of another library learns late, or not
/// at all, that it has lost its session or its node. The [token](crate::Hold::fencing_token) protects against
/// such a holder. The token of another library's holder is the `czxid` of its node, in the same order as ours.
///
/// # What else differs from the native dialect
/// - **Hand-off**: a client that may write to nodes, as Curator's `Revoker` does, could forge the signal by which a
///   writer hands over to the next. So a writer's release is a plain delete, a change of a node's data only makes a
///   waiter list again, and a hand-off costs a listing. A request to revoke is not obeyed: ask
///   [`contended`](crate::Hold::contended).
/// - **Downgrade** works in place: readers and writers of each library take the new node for the reader that it is. A
///   thread of Curator that reads under its own write lock has two nodes of one number: readers wait for the writer's
///   node, writers for both.
/// - **Host and label** are in the node's data, because the names have no room for them.
///   [`Member::host`](crate::Member::host) is the host in the data, and may be empty. The identifier that kazoo writes
///   is shown as the label. kazoo's `contenders()` shows our metadata as the identifier.
/// - **Identity**: a uuid takes the place of host and id. By the uuid, a node is found whose create was not answered.
/// - **[`evict`](crate::RwLock::evict)** removes the node of any library's contender. Only this library's contenders
///   notice: a waiter of Curator or kazoo queues up again at the end, and a holder goes on. So stop that process first.
/// - **The directory**: kazoo makes persistent directories and never checks again that they are there. So in kazoo's
///   dialect this library makes persistent directories, too. A directory that exists keeps its kind. A container goes
///   when it is empty: then kazoo's lock objects fail, and so does `Client::lock` without `with_ancestor_options`. From
///   number 1073741824 on, an empty directory of any kind is deleted to restart the numbers, but not in kazoo's
///   dialect. When the numbers are used up, this library lets no contender enter, in any dialect. The other libraries
///   go on, and past 2147483647 their contenders no longer exclude each other.
/// - **Access**: a waiter of any library reads the node that it waits for, and so does ours. A contender that an
///   [`acl`](crate::ZooKeeperBuilder::acl) keeps from reading fails when it would have to wait.
/// - **[`keep`](crate::RwLockBuilder::keep)** is refused, because contenders of other libraries do not ask.
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
/// assert!(guard.path().contains("-__WRIT__"));
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
    /// Curator sorts all children by the text behind `__READ__` or `__WRIT__`, whatever stands before that. Other
    /// programs that make such names do the same. A writer waits until it is first, a reader until no `__WRIT__` is
    /// before it.
    Curator,
    /// The dialect of Apache Curator's `InterProcessMutex`, whose contenders are writers, with readers of our own
    /// beside them.
    ///
    /// A mutex sorts all children by the text behind the last `lock-`, and waits until it is first. Our readers have
    /// `lock-` in their names, too, so a mutex waits for them. zookeeper-client's lock does the same with the last ten
    /// digits.
    CuratorMutex,
    /// The dialect of kazoo's `ReadLock` and `WriteLock`.
    ///
    /// Both read every child as a contender whose name ends with `__lock__` or `__rlock__` and ten digits, whatever
    /// stands before that. They compare the digits.
    Kazoo,
}

const CURATOR_READ: &str = "__READ__";
const CURATOR_WRITE: &str = "__WRIT__";
const MUTEX: &str = "lock-";
/// Ends as [`MUTEX`] does, so that a mutex waits for it.
const MUTEX_READ: &str = "READ-lock-";
const KAZOO_READ: &str = "__rlock__";
const KAZOO_WRITE: &str = "__lock__";

/// The beginning of a name that Curator or this library protects. A uuid follows it.
const PROTECTED: &str = "_c_";

impl Dialect {
    /// All dialects.
    pub const ALL: [Dialect; 4] = [Dialect::Native, Dialect::Curator, Dialect::CuratorMutex, Dialect::Kazoo];

    /// The text between the owner and the number.
    pub(crate) fn marker(self, mode: Mode) -> &'static str {
        match (self, mode) {
            (Dialect::Native, Mode::Read) => "-READ-",
            (Dialect::Native, Mode::Write) => "-WRITE-",
            (Dialect::Curator, Mode::Read) => CURATOR_READ,
            (Dialect::Curator, Mode::Write) => CURATOR_WRITE,
            (Dialect::CuratorMutex, Mode::Read) => MUTEX_READ,
            (Dialect::CuratorMutex, Mode::Write) => MUTEX,
            (Dialect::Kazoo, Mode::Read) => KAZOO_READ,
            (Dialect::Kazoo, Mode::Write) => KAZOO_WRITE,
        }
    }

    /// How the names of a new acquisition begin. No other acquisition's names begin so.
    pub(crate) fn new_owner(self, host: &str, keeps: bool, mut random: impl FnMut() -> u64) -> String {
        if self == Dialect::Native {
            return format!("{host}~{}{}", letters_and_digits(random()), if keeps { native::KEEP } else { "" });
        }
        let (high, low) = (random(), random());
        // Version 4, variant 1: Curator reads this part of a name as a uuid.
        let (high, low) = ((high & !0xf000) | 0x4000, (low & (u64::MAX >> 2)) | (1 << 63));
        if self == Dialect::Kazoo {
            return format!("{high:016x}{low:016x}");
        }
        let groups = (high >> 32, (high >> 16) & 0xffff, high & 0xffff, low >> 48, low & 0xffff_ffff_ffff);
        format!("{PROTECTED}{:08x}-{:04x}-{:04x}-{:04x}-{:012x}-", groups.0, groups.1, groups.2, groups.3, groups.4)
    }

    /// How long the owner of another contender may be, beside one of ours with so many bytes.
    pub(crate) fn longest_owner(self, ours: usize) -> usize {
        if self == Dialect::Native { ours.max(native::OWNER_BYTES) } else { ours }
    }

    /// Whether a writer signals its release to waiters by a write to its node. Only in a dialect in which nothing else
    /// writes to nodes.
    pub(crate) fn hands_off(self) -> bool {
        self == Dialect::Native
    }

    /// Whether its directories must stay when they are empty.
    pub(crate) fn keeps_directories(self) -> bool {
        self == Dialect::Kazoo
    }

    /// Splits the name of one of its contenders into the owner and the slot; `None` for any other name.
    pub(crate) fn split(self, name: &str) -> Option<(&str, Slot)> {
        if self == Dialect::Native {
            return native::split(name);
        }
        let (owner, mode, sequence) = numbers(name).into_iter().flatten().find_map(|(before, sequence)| {
            let (owner, mode) = self.split_mode(before)?;
            Some((owner, mode, sequence))
        })?;
        // Curator's readers look for the mark of a writer anywhere in the name.
        let mode = if self == Dialect::Curator && name.contains(CURATOR_WRITE) { Mode::Write } else { mode };
        Some((owner, Slot { mode, sequence }))
    }

    fn split_mode(self, before: &str) -> Option<(&str, Mode)> {
        let strip = |mode| before.strip_suffix(self.marker(mode)).map(|owner| (owner, mode));
        match self {
            // Only this library makes readers here. Any other name that a mutex waits for is a writer's.
            Dialect::CuratorMutex => {
                strip(Mode::Read).filter(|(owner, _)| is_protection(owner)).or_else(|| strip(Mode::Write))
            }
            _ => strip(Mode::Read).or_else(|| strip(Mode::Write)),
        }
    }

    /// The slot of one of its contenders; `None` for any other name.
    pub(crate) fn slot(self, name: &str) -> Option<Slot> {
        self.split(name).map(|(_, slot)| slot)
    }

    /// The dialect in which a name is a contender's, if there is one.
    ///
    /// ```
    /// use zk_rwlock::Dialect;
    /// assert_eq!(Dialect::of("5cf2ad842a9c4f12a1ab0f4d8ce1a4a9__rlock__0000000007"), Some(Dialect::Kazoo));
    /// assert_eq!(Dialect::of("config"), None);
    /// ```
    pub fn of(name: &str) -> Option<Dialect> {
        Dialect::ALL.into_iter().find(|dialect| dialect.has_mark(name) && dialect.split(name).is_some())
    }

    /// The dialect of a foreign child: a child beside which a lock of this dialect grants nothing. It is the dialect in
    /// which the child is a contender, or else the dialect whose mark the child has without a number behind it. The
    /// latter may be this dialect itself.
    ///
    /// `None` for this dialect's own contenders, and for children that are ignored.
    ///
    /// ```
    /// use zk_rwlock::Dialect;
    /// let kazoos = "5cf2ad842a9c4f12a1ab0f4d8ce1a4a9__rlock__0000000007";
    /// assert_eq!(Dialect::Native.foreign(kazoos), Some(Dialect::Kazoo));
    /// assert_eq!(Dialect::Kazoo.foreign(kazoos), None);
    /// assert_eq!(Dialect::Native.foreign("config"), None);
    /// ```
    pub fn foreign(self, name: &str) -> Option<Dialect> {
        // The name of every contender ends with a number.
        if !name.as_bytes().last_chunk::<9>().is_some_and(|digits| digits.iter().all(u8::is_ascii_digit))
            || self.split(name).is_some()
        {
            return None;
        }
        let by_mark = || Dialect::ALL.into_iter().find(|it| *it != Dialect::Native && it.has_mark(name));
        Dialect::of(name).or_else(by_mark)
    }

    /// Whether a name has the mark of this dialect's contenders. A mutex's mark is a common word, so here it must stand
    /// alone. A lock of that dialect does not need this: it takes every name with the mark and a number for a
    /// contender's.
    fn has_mark(self, name: &str) -> bool {
        let stands_alone = |at: usize| !name[..at].ends_with(|before: char| before.is_alphanumeric());
        match self {
            Dialect::Native => native::split(name).is_some(),
            Dialect::Curator => name.contains(CURATOR_READ) || name.contains(CURATOR_WRITE),
            Dialect::CuratorMutex => name.match_indices(MUTEX).any(|(at, _)| stands_alone(at)),
            Dialect::Kazoo => name.contains(KAZOO_READ) || name.contains(KAZOO_WRITE),
        }
    }

    /// What an error says of a foreign node of dialect `other`, or of a node with this dialect's mark and no number
    /// behind it.
    pub(crate) fn describe(self, other: Dialect) -> String {
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

    /// Whether two nodes of one number may belong to one holder. A thread of Curator that holds the write lock may take
    /// the read lock as well, and then makes a node of the same number.
    pub(crate) fn is_one_holder(self, one: Slot, other: Slot) -> bool {
        self == Dialect::Curator && one.mode != other.mode && (0..mode::REFUSED_FROM).contains(&one.sequence)
    }

    /// The id in an owner: the part that differs between acquisitions.
    pub(crate) fn id(owner: &str) -> &str {
        if is_protection(owner) { &owner[PROTECTED.len()..owner.len() - 1] } else { owner }
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

/// Eight letters and digits.
fn letters_and_digits(mut number: u64) -> String {
    let mut digit = || {
        let digit = b"0123456789abcdefghijklmnopqrstuvwxyz"[(number % 36) as usize];
        number /= 36;
        char::from(digit)
    };
    std::array::from_fn::<char, 8, _>(|_| digit()).iter().collect()
}

/// Whether an owner is `_c_<uuid>-`, and nothing more.
fn is_protection(owner: &str) -> bool {
    let uuid = owner.strip_prefix(PROTECTED).and_then(|rest| rest.strip_suffix('-'));
    uuid.is_some_and(|uuid| uuid.len() == 36 && uuid.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-'))
}

/// The two ways to read the number at the end of a name: as ten digits, and with a sign, as the server prints a counter
/// that has wrapped.
fn numbers(name: &str) -> [Option<(&str, i64)>; 2] {
    let digits = name.len() - name.bytes().rev().take_while(u8::is_ascii_digit).count();
    let (before, digits) = name.split_at(digits);
    let positive = (digits.len() == 10).then(|| digits.parse().ok().map(|number| (before, number))).flatten();
    let negative = before.strip_suffix('-').filter(|_| (9..=10).contains(&digits.len()));
    let negative = negative.and_then(|before| Some((before, -digits.parse::<i64>().ok()?)));
    [positive, negative]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::contender::{Contender, Owner};
    use crate::queue::tests::fuzz_text;

    const UUID: &str = "5cf2ad84-2a9c-4f12-a1ab-0f4d8ce1a4a9";

    /// As `split` reads them: the mode's first letter, and the number.
    fn read(dialect: Dialect, name: &str) -> Option<(char, i64)> {
        let slot = dialect.slot(name)?;
        Some((if slot.mode == Mode::Read { 'R' } else { 'W' }, slot.sequence))
    }

    #[test]
    fn each_dialect_reads_its_own_names_and_no_others() {
        let hex = UUID.replace('-', "");
        for (dialect, reader, writer) in [
            (Dialect::Native, "web-1~k3v9x2ma-READ-".to_owned(), "web-1~k3v9x2ma-WRITE-".to_owned()),
            (Dialect::Curator, format!("_c_{UUID}-__READ__"), format!("_c_{UUID}-__WRIT__")),
            (Dialect::CuratorMutex, format!("_c_{UUID}-READ-lock-"), format!("_c_{UUID}-lock-")),
            (Dialect::Kazoo, format!("{hex}__rlock__"), format!("{hex}__lock__")),
        ] {
            for (digits, number) in [("0000000007", 7), ("2147483647", 2147483647), ("-2147483648", -2147483648)] {
                let (reader, writer) = (format!("{reader}{digits}"), format!("{writer}{digits}"));
                for other in Dialect::ALL {
                    let is_own = other == dialect;
                    assert_eq!(read(other, &reader), is_own.then_some(('R', number)), "{reader} as {other}");
                    assert_eq!(read(other, &writer), is_own.then_some(('W', number)), "{writer} as {other}");
                    assert_eq!(other.foreign(&reader), (!is_own).then_some(dialect), "{reader} among {other}");
                    assert_eq!(other.foreign(&writer), (!is_own).then_some(dialect), "{writer} among {other}");
                }
            }
        }
    }

    #[test]
    fn what_is_written_is_read_again() {
        let mut number = 0_u64;
        for dialect in Dialect::ALL {
            let owner = dialect.new_owner("web-1", false, || {
                number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
                number
            });
            let owner = Owner::new(dialect, owner);
            for mode in [Mode::Read, Mode::Write] {
                let name = format!("{}0000000042", owner.prefix(mode));
                assert_eq!(dialect.slot(&name), Some(Slot { mode, sequence: 42 }), "{name}");
                assert!(name.starts_with(&owner.prefix(mode)) && owner.owns(&name), "{name}");
                assert_eq!(name.len(), owner.len() + dialect.marker(mode).len() + "0000000042".len(), "{name}");
                assert_eq!(Dialect::of(&name), Some(dialect), "{name}");
            }
        }
    }

    #[test]
    fn the_uuids_of_owners_are_of_version_four() {
        let uuids = [(Dialect::Curator, "_c_", "-"), (Dialect::CuratorMutex, "_c_", "-"), (Dialect::Kazoo, "", "")];
        for (dialect, before, after) in uuids {
            for bits in [0, u64::MAX] {
                let owner = dialect.new_owner("web-1", false, || bits);
                let uuid = owner.strip_prefix(before).and_then(|rest| rest.strip_suffix(after)).expect("around it");
                let digits = uuid.replace('-', "");
                assert_eq!(digits.len(), 32);
                assert_eq!(&digits[12..13], "4", "{uuid}");
                assert!(matches!(&digits[16..17], "8" | "b"), "{uuid}");
                assert_eq!(Dialect::id(&owner), uuid);
            }
        }
    }

    #[test]
    fn an_owner_has_all_that_was_drawn_but_what_makes_it_a_uuid() {
        for (dialect, owner) in [
            (Dialect::Curator, "_c_01234567-89ab-4def-bedc-ba9876543210-"),
            (Dialect::CuratorMutex, "_c_01234567-89ab-4def-bedc-ba9876543210-"),
            (Dialect::Kazoo, "0123456789ab4defbedcba9876543210"),
        ] {
            let mut drawn = [0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210].into_iter();
            assert_eq!(dialect.new_owner("web-1", false, || drawn.next().expect("a third number")), owner);
        }
        assert_eq!(Dialect::Native.new_owner("web-1", false, || 36 + 2), "web-1~21000000");
        assert_eq!(Dialect::Native.new_owner("web-1", true, || 35), "web-1~z0000000~keep");
    }

    #[test]
    fn what_stands_before_the_mark_is_anybodys() {
        assert_eq!(read(Dialect::Curator, "3f2a__WRIT__0000000005"), Some(('W', 5)));
        assert_eq!(read(Dialect::Curator, "__READ__0000000005"), Some(('R', 5)));
        assert_eq!(read(Dialect::CuratorMutex, "lock-0000000005"), Some(('W', 5)));
        assert_eq!(
            read(Dialect::CuratorMutex, "block-0000000005"),
            Some(('W', 5)),
            "as Curator and zookeeper-client do"
        );
        assert_eq!(read(Dialect::Kazoo, "__lock__0000000005"), Some(('W', 5)));
    }

    #[test]
    fn only_a_reader_of_ours_is_no_writer_to_a_mutex() {
        let no_digit = format!("_c_{}-READ-lock-0000000005", UUID.replace('5', "x"));
        let short = "_c_5cf2ad84-READ-lock-0000000005";
        for name in ["READ-lock-0000000005", "x-READ-lock-0000000005", "_c_x-READ-lock-0000000005", short, &no_digit] {
            assert_eq!(read(Dialect::CuratorMutex, name), Some(('W', 5)), "{name}");
        }
    }

    #[test]
    fn curators_readers_take_for_a_writer_whatever_has_its_mark() {
        assert_eq!(read(Dialect::Curator, "__WRIT__0000000001__READ__0000000005"), Some(('W', 5)));
        assert_eq!(read(Dialect::Curator, "__READ__0000000001__WRIT__0000000005"), Some(('W', 5)));
    }

    #[test]
    fn a_mark_without_its_number_is_in_doubt_in_every_dialect() {
        for (name, dialect) in [
            ("a__WRIT__-x-0000000005", Dialect::Curator),
            ("a__READ__00000000005", Dialect::Curator),
            ("a__lock__00000000005", Dialect::Kazoo),
            ("x-lock-1f-0000000005", Dialect::CuratorMutex),
        ] {
            for among in Dialect::ALL {
                assert_eq!(among.foreign(name), Some(dialect), "{name} among {among}");
            }
        }
    }

    #[test]
    fn what_nobody_queues_up_with_is_passed_over() {
        for name in ["", "foo", "leases", "__lock__", "config-0000000005", "0000000005", "x-READ-abc", "a-WRITE-12"] {
            for among in Dialect::ALL {
                assert_eq!((among.foreign(name), Dialect::of(name)), (None, None), "{name} among {among}");
            }
        }
        for among in [Dialect::Native, Dialect::Curator, Dialect::Kazoo] {
            assert_eq!(among.foreign("block-0000000005"), None, "a common word, among {among}");
        }
    }

    #[test]
    fn a_name_may_be_anything() {
        for name in ["é__lock__0000000001", "ü0000000001", "_c_é-lock-0000000001", "\u{200b}", "-", "--0000000001"] {
            for dialect in Dialect::ALL {
                let _whatever = (dialect.split(name), dialect.foreign(name));
            }
        }
        assert_eq!(read(Dialect::Kazoo, "é__lock__0000000001"), Some(('W', 1)));
    }

    #[test]
    fn any_name_is_read_in_one_way_and_written_back() {
        let samples = [
            "web-1~k3v9x2ma-READ-0000000007".to_owned(),
            "web-1~k3v9x2ma~keep-WRITE--2147483648".to_owned(),
            format!("_c_{UUID}-__WRIT__0000000007"),
            format!("_c_{UUID}-READ-lock-0000000007"),
            format!("{}__rlock__-000000005", UUID.replace('-', "")),
        ];
        fuzz_text(&samples.each_ref().map(String::as_str), |name| {
            for dialect in Dialect::ALL {
                let foreign = dialect.foreign(name);
                let Some((owner, Slot { mode, sequence })) = dialect.split(name) else { continue };
                assert_eq!(foreign, None, "{dialect}");
                let contender = Contender::parse_as(name, dialect).unwrap();
                assert_eq!((contender.mode(), contender.sequence(), contender.name()), (mode, sequence, name));
                assert!(contender.host().len() + contender.id().map_or(0, str::len) <= owner.len());
                // Curator's readers take for a writer's whatever has a writer's mark, also further left.
                let modes = [mode, Mode::Read];
                let owner = Owner::new(dialect, owner.to_owned());
                let is_written_back = |mode: &Mode| {
                    let begins = name.strip_prefix(&owner.prefix(*mode));
                    begins.is_some_and(|number| number.parse() == Ok(sequence))
                };
                assert!(modes.iter().any(is_written_back) && owner.owns(name), "{dialect}");
            }
        });
    }
}
