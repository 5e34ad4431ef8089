//! The twin of a persistent node: a second node beside it, by which the loss of the first shows.
//!
//! Servers before 3.8.7 and 3.9.6 let any client delete a persistent node that has no children (CVE-2026-79993), and an operator may
//! do so by mistake. A node that was never written and one that is gone would look the same. So the first write makes the twin
//! in the same transaction.

const SUFFIX: &str = ".twin";

/// Where the twin of the node at `path` lies.
pub(crate) fn of(path: &str) -> String {
    format!("{path}{SUFFIX}")
}
