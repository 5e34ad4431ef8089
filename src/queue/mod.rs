//! The contenders of a lock, as [`RwLock::queue`](crate::RwLock::queue) and the errors of a waiter report them.
//
// `turn` decides whose turn it is, and `permits` whether enough permits are free, without I/O and without a clock.

pub(crate) mod dialect;
pub(crate) mod member;
pub(crate) mod metadata;
pub(crate) mod mode;
pub(crate) mod node_name;
pub(crate) mod permits;
pub(crate) mod quoted;
#[cfg(test)]
pub(crate) mod tests;
pub(crate) mod turn;

pub use self::member::{Blockers, Member, MemberState, Progress};
pub use self::node_name::NodeName;
