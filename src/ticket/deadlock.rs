//! What becomes of an acquisition that waits for a hold of its own; knows no holds.

/// What becomes of an acquisition that waits for a hold of its own. Set with
/// [`RwLockBuilder::on_deadlock`](crate::RwLockBuilder::on_deadlock).
///
/// A task waits for itself if it asks for the write lock while it holds the lock, or for the read lock behind a writer
/// who waits for a read lock that it holds. What tells tasks apart is tokio's task id; outside of tasks it is the thread,
/// in a runtime's `block_on` and in the `blocking` forms. Under other executors nothing is known. A node that reads
/// [share](crate::RwLockBuilder::share_reads) is held by no task in particular.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Deadlock {
    /// It waits.
    Ignore,
    /// It waits, and a warning is logged that names the hold, if the same task was granted that.
    ///
    /// No harm is done where the task has given the guard to somebody else who releases it, where it runs several pieces
    /// of work side by side, as `join!` does, that take the lock and release it by themselves, or where the writer in
    /// between gives up.
    #[default]
    Warn,
    /// It fails with [`Error::WouldDeadlock`](crate::Error::WouldDeadlock) if the same task was granted the hold. In the
    /// three cases that [`Warn`](Deadlock::Warn) names, it refuses what would only have to wait.
    Refuse,
    /// It fails also if any other task was granted the hold on this session: for programs that never let two of their
    /// tasks queue for one lock. In any other, it refuses what would only have to wait.
    RefuseInProcess,
}
