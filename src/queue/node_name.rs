//! The names of contenders' nodes in all dialects.

use std::fmt;
use std::sync::Arc;

use crate::queue::dialect::{self, Dialect};
use crate::queue::mode::{Mode, ModeAndSequence};

/// The name of a contender's node, which tells the mode, the place in the queue and, in the native dialect, the host.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NodeName {
    text: String,
    dialect: Dialect,
    host_len: usize,
    tag_len: usize,
    place: ModeAndSequence,
}

impl NodeName {
    /// Parses the name of a contender's node in the native dialect. `None` if the name is not such a name.
    ///
    /// The id (`k3v9x2ma` below) is optional, so that other programs which name their nodes like this can join the
    /// queue.
    ///
    /// ```
    /// use zk_rwlock::queue::NodeName;
    /// use zk_rwlock::Mode;
    /// let reader = NodeName::parse("web-1~k3v9x2ma-READ-0000000007").unwrap();
    /// assert_eq!((reader.host(), reader.id()), ("web-1", Some("k3v9x2ma")));
    /// assert_eq!((reader.mode(), reader.sequence()), (Mode::Read, 7));
    /// assert_eq!(NodeName::parse("web-1-READ-7"), None);
    /// ```
    pub fn parse(name: &str) -> Option<NodeName> {
        NodeName::parse_as(name, Dialect::Native)
    }

    /// Parses the name of a contender's node in this dialect. `None` if the name is not such a name.
    ///
    /// ```
    /// use zk_rwlock::queue::NodeName;
    /// use zk_rwlock::{Dialect, Mode};
    /// let name = "_c_5cf2ad84-2a9c-4f12-a1ab-0f4d8ce1a4a9-__WRIT__0000000007";
    /// let writer = NodeName::parse_as(name, Dialect::Curator).unwrap();
    /// assert_eq!((writer.mode(), writer.sequence(), writer.host()), (Mode::Write, 7, ""));
    /// assert_eq!(writer.id(), Some("5cf2ad84-2a9c-4f12-a1ab-0f4d8ce1a4a9"));
    /// assert_eq!(NodeName::parse_as(name, Dialect::Kazoo), None);
    /// ```
    pub fn parse_as(name: &str, dialect: Dialect) -> Option<NodeName> {
        let (tag, place) = dialect.split_name(name)?;
        Some(NodeName::new(name.to_owned(), dialect, tag.len(), place))
    }

    /// Returns an empty name whose sequence number is the highest, for a contender that has no node yet.
    pub(crate) fn newcomer(dialect: Dialect, mode: Mode) -> NodeName {
        NodeName::new(String::new(), dialect, 0, ModeAndSequence { mode, sequence: i64::MAX })
    }

    fn new(text: String, dialect: Dialect, tag_len: usize, place: ModeAndSequence) -> NodeName {
        let host_len = match dialect {
            Dialect::Native => text[..tag_len].find('~').unwrap_or(tag_len),
            _ => 0,
        };
        NodeName { text, dialect, host_len, tag_len, place }
    }

    /// Returns the name as the server has it, without the directory.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns the dialect of the name.
    pub fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// Returns the host in the name. The host is empty in a dialect whose names have none.
    pub fn host(&self) -> &str {
        &self.text[..self.host_len]
    }

    /// Returns the random id of the contender's acquisition, if the name has one.
    pub fn id(&self) -> Option<&str> {
        let id = match self.dialect {
            Dialect::Native => {
                let id = self.text[self.host_len..self.tag_len].strip_prefix('~')?;
                id.strip_suffix(dialect::KEEP).unwrap_or(id)
            }
            _ => Dialect::id_in_tag(self.tag()),
        };
        (!id.is_empty()).then_some(id)
    }

    /// Returns whether the contender's process may [keep](crate::RwLockBuilder::keep) the node between uses. While the
    /// process does not use the node that it keeps, it gives the node up as soon as another contender asks for this.
    ///
    /// ```
    /// use zk_rwlock::queue::NodeName;
    /// assert!(NodeName::parse("web-1~k3v9x2ma~keep-READ-0000000007").unwrap().keeps());
    /// assert!(!NodeName::parse("web-1~k3v9x2ma-READ-0000000007").unwrap().keeps());
    /// ```
    pub fn keeps(&self) -> bool {
        self.dialect == Dialect::Native && self.tag().ends_with(dialect::KEEP)
    }

    /// Returns the mode in which the contender holds or awaits the lock.
    pub fn mode(&self) -> Mode {
        self.place.mode
    }

    /// Returns the sequence number: the contender's place in the order of arrival. The number is no fencing token,
    /// because the numbers restart when the directory is deleted and created again.
    pub fn sequence(&self) -> i64 {
        self.place.sequence
    }

    /// Returns whether the two names may be those of two nodes of one holder. A Curator thread that holds the write
    /// lock and takes the read lock as well has two nodes, with the same sequence number.
    ///
    /// ```
    /// use zk_rwlock::queue::NodeName;
    /// use zk_rwlock::Dialect;
    /// let of = |name| NodeName::parse_as(name, Dialect::Curator).unwrap();
    /// let (read, write) = (of("a__READ__0000000007"), of("a__WRIT__0000000007"));
    /// assert!(read.may_be_one_holder_with(&write) && !read.may_be_one_holder_with(&of("a__WRIT__0000000008")));
    /// ```
    pub fn may_be_one_holder_with(&self, other: &NodeName) -> bool {
        let (mine, its) = (self.place(), other.place());
        self.dialect == other.dialect && mine.sequence == its.sequence && self.dialect.may_be_one_holder(mine, its)
    }

    /// Returns the name of the contender's node after a downgrade.
    pub(crate) fn name_after_downgrade(&self) -> String {
        format!("{}{}{:010}", self.tag(), self.dialect.mode_marker(Mode::Read), self.sequence())
    }

    /// Returns the tag: the part of the name before the marker of the mode, such as `-WRITE-`. No two acquisitions have
    /// the same tag, unless the tag has no id.
    pub(crate) fn tag(&self) -> &str {
        &self.text[..self.tag_len]
    }

    pub(crate) fn place(&self) -> ModeAndSequence {
        self.place
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The part of an acquisition's node names before the marker of the mode, such as `-WRITE-`. No other acquisition has
/// the same tag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AcquisitionTag {
    dialect: Dialect,
    text: Arc<str>,
}

impl AcquisitionTag {
    pub(crate) fn new(dialect: Dialect, text: String) -> AcquisitionTag {
        AcquisitionTag { dialect, text: text.into() }
    }

    pub(crate) fn len(&self) -> usize {
        self.text.len()
    }

    /// Returns the name of the acquisition's node in this mode, without the sequence number, which the server appends.
    pub(crate) fn name_prefix(&self, mode: Mode) -> String {
        format!("{}{}", self.text, self.dialect.mode_marker(mode))
    }

    /// Returns the name of the acquisition's node while the server has not assigned a sequence number yet. Until then,
    /// the number is -1, and [`turn`](crate::queue::turn::turn) grants the lock to no negative number.
    pub(crate) fn unnumbered_name(&self, mode: Mode) -> NodeName {
        NodeName::new(self.name_prefix(mode), self.dialect, self.len(), ModeAndSequence { mode, sequence: -1 })
    }

    /// Returns whether `name` is the name of a node of this acquisition, in either mode.
    pub(crate) fn is_tag_of(&self, name: &str) -> bool {
        // The prefix is compared first, which is fast, because thousands of names may be compared with thousands of
        // tags.
        name.starts_with(&*self.text) && self.dialect.split_name(name).is_some_and(|(tag, _)| *tag == *self.text)
    }
}

impl fmt::Display for AcquisitionTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn assert_foreign(name: &str) {
        assert_eq!(NodeName::parse(name), None, "{name:?} was accepted as a contender");
    }

    #[test]
    fn display_prints_the_name_and_modes_in_capitals() {
        use crate::queue::mode::AcquisitionAim;
        let name = "h~i-WRITE-0000000005";
        assert_eq!(NodeName::parse(name).unwrap().to_string(), name);
        assert_eq!([Mode::Read, Mode::Write].map(|mode| mode.to_string()), ["READ", "WRITE"]);
        let aims = [AcquisitionAim::Lock(Mode::Read), AcquisitionAim::Lock(Mode::Write), AcquisitionAim::Permit];
        assert_eq!(aims.map(|aim| format!("{aim:>7}")), ["   READ", "  WRITE", " PERMIT"]);
    }

    #[test]
    fn a_host_may_contain_a_mode_marker() {
        let contender = NodeName::parse("a-WRITE-0000000001-x~id9-READ-0000000002").unwrap();
        assert_eq!((contender.host(), contender.id()), ("a-WRITE-0000000001-x", Some("id9")));
        assert_eq!((contender.mode(), contender.sequence()), (Mode::Read, 2));
    }

    #[test]
    fn a_wrapped_sequence_is_parsed_as_negative() {
        for (digits, number) in [("-2147483648", -2147483648), ("-000000005", -5), ("2147483647", 2147483647)] {
            assert_eq!(NodeName::parse(&format!("h~i-WRITE-{digits}")).unwrap().sequence(), number);
        }
    }

    #[test]
    fn malformed_names_are_not_contenders() {
        for name in
            ["", "foo", "x-READ-abc", "a-WRITE-12", "a-WRITE-00000000012", "-READ-0000000001", "~i-READ-0000000001"]
        {
            assert_foreign(name);
        }
        for name in ["h~keep-READ-0000000001x", "h~~keep-READ-0000000001", "h~a~keep~keep-READ-0000000001"] {
            assert_foreign(name);
        }
        for name in [
            "h~-READ-0000000001",
            "h~a~b-READ-0000000001",
            "a b-READ-0000000001",
            "h-READ-+000000001",
            "h-READ--000000000",
        ] {
            assert_foreign(name);
        }
        for name in ["h-read-0000000001", "h-READ-0000000001 ", "é-READ-0000000001", "h-WRITE-99999999999999999999"] {
            assert_foreign(name);
        }
    }

    #[test]
    fn only_native_names_can_have_the_keep_marker() {
        let keeps = |name: &str, dialect| NodeName::parse_as(name, dialect).unwrap().keeps();
        assert!(keeps("h~i~keep-READ-0000000001", Dialect::Native));
        assert!(!keeps("h~i-READ-0000000001", Dialect::Native));
        assert!(!keeps("h~i~keep__READ__0000000001", Dialect::Curator));
    }

    #[test]
    fn two_nodes_of_one_curator_holder_are_recognized() {
        let one = |dialect: Dialect, mode, sequence| {
            let name = format!("_c_5cf2ad84-2a9c-4f12-a1ab-0f4d8ce1a4a9-{}{sequence:010}", dialect.mode_marker(mode));
            NodeName::parse_as(&name, dialect).unwrap()
        };
        let write = one(Dialect::Curator, Mode::Write, 7);
        assert!(one(Dialect::Curator, Mode::Read, 7).may_be_one_holder_with(&write));
        for other in [
            one(Dialect::Curator, Mode::Read, 8),
            one(Dialect::Curator, Mode::Write, 7),
            one(Dialect::CuratorMutex, Mode::Read, 7),
        ] {
            assert!(!write.may_be_one_holder_with(&other), "{other}");
            assert!(!other.may_be_one_holder_with(&write), "{other}");
        }
        let kazoos = |mode| one(Dialect::Kazoo, mode, 7);
        assert!(!kazoos(Mode::Read).may_be_one_holder_with(&kazoos(Mode::Write)));
    }
}
