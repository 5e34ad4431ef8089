//! A contender's mode and sequence number, which decide its turn.

use std::fmt;

/// When a contender with this sequence number or a higher one leaves, it deletes the directory if the directory is then
/// empty. The numbers of the next directory at this path start at zero. In kazoo's dialect, the directory stays.
pub const RESTART_FROM: i64 = 1 << 30;

/// From this sequence number on, no contender may enter. The counter of ZooKeeper 3.6 and later sticks at 2147483647,
/// so several contenders get the number 2147483647; the counter of 3.5 wraps to a negative number (ZOOKEEPER-4372).
pub const REFUSED_FROM: i64 = (1 << 31) - (1 << 20);

/// How a contender uses the lock: shared with readers, or alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// The lock is shared with other readers.
    Read,
    /// The lock is held alone.
    Write,
}

impl Mode {
    /// Returns whether two contenders of these modes cannot hold the lock together.
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

/// The purpose of an acquisition, as traces and metrics show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AcquisitionAim {
    Lock(Mode),
    Permit,
}

impl fmt::Display for AcquisitionAim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AcquisitionAim::Lock(mode) => mode.fmt(f),
            AcquisitionAim::Permit => f.pad("PERMIT"),
        }
    }
}

/// A contender's mode and sequence number, which alone decide its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ModeAndSequence {
    pub(crate) mode: Mode,
    pub(crate) sequence: i64,
}
