//! From asking for a lock until it is granted or given up.

pub(crate) mod flow;
pub(crate) mod report;
pub(crate) mod request;
pub(crate) mod wait;
