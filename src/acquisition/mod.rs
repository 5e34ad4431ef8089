//! From asking for a lock until it is granted or given up.

pub(crate) mod request;
pub(crate) mod shared_reads;
