//! What an acquisition does that would wait for a hold of its own task; knows no holds.

/// What an acquisition does that would wait for a hold of its own task. Set with
/// [`RwLockBuilder::on_deadlock`](crate::RwLockBuilder::on_deadlock).
///
/// A task waits for itself if it holds the lock and asks for the write lock. It also does if it holds the read lock,
/// and asks for the read lock behind a writer that waits for this hold. Tasks are known by tokio's task id. Outside of
/// tasks the thread counts, in a runtime's `block_on` and in the `blocking` forms, except after a `try_` method. Under
/// other executors nothing is known. A [kept](crate::RwLockBuilder::keep) node is held by the tasks that use it,
/// and by none while it is idle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Deadlock {
    /// The acquisition waits.
    Ignore,
    /// The acquisition waits. If the same task was granted the hold, a warning is logged that names the hold.
    ///
    /// Such a wait does no harm in three cases: the task has given the guard to another task, which releases it; the
    /// task runs several pieces of work side by side, as `join!` does, and each of them takes and releases the lock by
    /// itself; or the writer in between gives up.
    #[default]
    Warn,
    /// The acquisition fails with [`Error::WouldDeadlock`](crate::Error::WouldDeadlock) if the same task was granted
    /// the hold. It fails also in the three cases that [`Warn`](Deadlock::Warn) names, where it would only have to
    /// wait.
    Refuse,
    /// As [`Refuse`](Deadlock::Refuse), and the acquisition fails also if any other task was granted the hold on this
    /// session. For programs that never let two of their tasks queue for one lock. In any other program, acquisitions
    /// fail that would only have to wait.
    RefuseInProcess,
}
