//! The numbers of the table "After a reconnect" of `docs/cost.md`, which say what a break of the connection costs.
//! `tests/session/cost.rs` checks each reconnect against these numbers, and another test compares the page with them.

/// A row of the table: the maximal number of requests for each `of`, at a reconnect and in the minute after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    pub of: &'static str,
    pub at_once: u64,
    pub in_the_minute: u64,
}

const fn row(of: &'static str, at_once: u64, in_the_minute: u64) -> Row {
    Row { of, at_once, in_the_minute }
}

/// A session sends a check-only transaction first, and then heartbeats.
pub const SESSION: Row = row("session", 3, 60);
/// One transaction of a heartbeat checks up to [`HELD_AT_ONCE`] nodes of holders.
pub const HELD: Row = row("1,000 nodes held, after the first 1,000", 1, 30);
pub const HELD_AT_ONCE: usize = 1_000;
/// A path's watch is armed again once, however many contenders wait for its event.
pub const PATH: Row = row("path that is watched", 1, 0);
pub const WAITING: Row = row("waiter, for a lock or for permits", 0, 2);
pub const HEAD: Row = row("semaphore for whose permits somebody waits", 0, 4);
pub const ENDED: Row = row("acquisition that has ended", 0, 0);
/// The request that removes the node's watch is not counted, because the client crate sends it.
pub const LEFT: Row = row("node whose owner left it in the break", 1, 0);
pub const DIRECTORY: Row = row("directory with a lost create", 1, 0);
/// One check-only transaction precedes the listings of up to [`BEHIND_ONE_SYNC`] directories.
pub const SYNC: Row = row("128 such directories", 1, 0);
pub const BEHIND_ONE_SYNC: usize = 128;

/// All rows in the order of the page.
pub const ROWS: [Row; 9] = [SESSION, HELD, PATH, WAITING, HEAD, ENDED, LEFT, DIRECTORY, SYNC];

/// The number of watched paths.
pub mod watched {
    /// A holder watches its own node.
    pub const BY_HOLDER: usize = 1;
    /// A holder that keeps its node between uses watches its own node and the directory.
    pub const BY_KEEPER: usize = 2;
    /// A waiter watches its own node.
    pub const BY_WAITER: usize = 1;
    /// The first waiter of a queue watches its predecessor, in addition to its own node.
    pub const BY_FIRST: usize = 1;
    /// The first waiter for permits watches the number of permits and the permits, in addition to its own node.
    pub const BY_HEAD: usize = 2;
}
