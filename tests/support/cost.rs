//! What a break of the connection costs: the numbers of the table "After a reconnect" of `docs/cost.md`. The instrument in
//! `tests/session/cost.rs` holds each reconnect to them, and a test compares the page with them.

/// One row of the table: for each of something, the most requests at a reconnect and in the minute after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    pub of: &'static str,
    pub at_once: u64,
    pub in_the_minute: u64,
}

const fn row(of: &'static str, at_once: u64, in_the_minute: u64) -> Row {
    Row { of, at_once, in_the_minute }
}

/// A check-only transaction; then heartbeats.
pub const SESSION: Row = row("session", 3, 60);
/// A heartbeat checks so many nodes of holders with one transaction.
pub const HELD: Row = row("1,000 nodes held, after the first 1,000", 1, 30);
pub const HELD_AT_ONCE: usize = 1_000;
/// Arms the watch again, however many wait for it.
pub const PATH: Row = row("path that is watched", 1, 0);
pub const WAITING: Row = row("waiter, for a lock or for permits", 0, 2);
pub const HEAD: Row = row("semaphore for whose permits somebody waits", 0, 4);
pub const ENDED: Row = row("acquisition that has ended", 0, 0);
/// The removal of its watch is not counted, because the client crate sends it.
pub const LEFT: Row = row("node whose owner left it in the break", 1, 0);
pub const DIRECTORY: Row = row("directory with a lost create", 1, 0);
/// A check-only transaction precedes the listings of so many directories, of fewer if there are fewer.
pub const SYNC: Row = row("128 such directories", 1, 0);
pub const BEHIND_ONE_SYNC: usize = 128;

/// All rows in the order of the page.
pub const ROWS: [Row; 9] = [SESSION, HELD, PATH, WAITING, HEAD, ENDED, LEFT, DIRECTORY, SYNC];

/// How many paths are watched.
pub mod watched {
    /// By a holder: its own node.
    pub const BY_HOLDER: usize = 1;
    /// By a holder that keeps its node between uses: also the directory.
    pub const BY_KEEPER: usize = 2;
    /// By a waiter: its own node.
    pub const BY_WAITER: usize = 1;
    /// By the first of a queue: also its predecessor.
    pub const BY_FIRST: usize = 1;
    /// By the first of a queue for permits: also the number of permits and the permits, in place of a predecessor.
    pub const BY_HEAD: usize = 2;
}
