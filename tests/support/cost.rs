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

/// A read, the watches, the session's nodes and two check-only transactions; then heartbeats.
pub const SESSION: Row = row("session", 5, 60);
pub const HELD: Row = row("lock that is held", 0, 0);
pub const WAITING: Row = row("waiter, for a lock or for permits", 0, 2);
pub const HEAD: Row = row("semaphore for whose permits somebody waits", 0, 4);
pub const KEPT: Row = row("node that is kept between uses", 0, 0);
pub const ENDED: Row = row("acquisition that has ended", 0, 0);
/// The removal of its watch is not counted, because the client crate sends it.
pub const LEFT: Row = row("node whose owner left it in the break", 1, 0);
pub const DIRECTORY: Row = row("directory with a lost create", 1, 0);
/// A check-only transaction precedes the listings of so many directories, of fewer if there are fewer.
pub const SYNC: Row = row("128 such directories", 1, 0);
pub const BEHIND_ONE_SYNC: usize = 128;
/// The most requests of a session that are sent before the first heartbeat after a reconnect: listings, and removals of nodes.
pub const AHEAD_OF_HEARTBEAT: usize = 2 * BEHIND_ONE_SYNC + SESSION.at_once as usize;

/// All rows in the order of the page.
pub const ROWS: [Row; 9] = [SESSION, HELD, WAITING, HEAD, KEPT, ENDED, LEFT, DIRECTORY, SYNC];
